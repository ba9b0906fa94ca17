/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "check_main.h"
#include "core/device/kernels/copy_sum.h"
#include "core/device/kernels/launch.h"
#include "core/device/kernels/spin.h"
#include "cuda_fake.h"

#include <sys/mman.h>
#include <xxhash.h>

/* The driver of tests/support/cuda reports exactly the violations that its header lists. */

enum { BYTES = 8192 };

static TIERCE__CU_CONTEXT context;
static TIERCE__CU_STREAM compute, copies;
static TIERCE__CU_EVENT event;
static TIERCE__CU_ADDRESS memory;
static uint8_t *pinned, bytes[BYTES];

static void ok(TIERCE__CU_RESULT code)
{
    ck_assert_int_eq(code, TIERCE__CU_SUCCESS);
}

static void setup(void)
{
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxPushCurrent_v2(context));
    ok(cuStreamCreate(&compute, 1));
    ok(cuStreamCreate(&copies, 1));
    ok(cuEventCreate(&event, 2));
    ok(cuMemAlloc_v2(&memory, BYTES));
    pinned = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(pinned, MAP_FAILED);
    ok(cuMemHostRegister_v2(pinned, BYTES, 1));
    memset(bytes, 7, BYTES);
    cuda_fake_kernel_write(compute, memory, bytes, BYTES, "the first kernel");
    ok(cuStreamSynchronize(compute));
    ck_assert_str_eq(cuda_fake_report(), "");
}

static void expect(const char *text)
{
    if (text[0] == '\0')
        ck_assert_str_eq(cuda_fake_report(), "");
    else
        ck_assert_msg(strstr(cuda_fake_report(), text) != NULL, "not \"%s\", but \"%s\"", text,
                      cuda_fake_report());
    cuda_fake_forgive();
}

/* `copies` continues after `compute`, or the reverse. */
static void order(TIERCE__CU_STREAM first, TIERCE__CU_STREAM second)
{
    ok(cuEventRecord(event, first));
    ok(cuStreamWaitEvent(second, event, 0));
}

START_TEST(reads_before_the_event)
{
    cuda_fake_kernel_write(compute, memory, bytes, BYTES, "a kernel");
    ok(cuMemcpyDtoHAsync_v2(pinned, memory + 100, 10, copies));
    expect("a copy to the host reads what a kernel may still write");
    cuda_fake_kernel_write(compute, memory + 200, bytes, 10, "a kernel");
    order(compute, copies);
    ok(cuMemcpyDtoHAsync_v2(pinned, memory + 200, 10, copies));
    expect("");
}
END_TEST

/* The event was recorded before the kernel. */
START_TEST(events_that_are_too_early)
{
    order(compute, copies);
    cuda_fake_kernel_write(compute, memory, bytes, BYTES, "a kernel");
    ok(cuMemcpyDtoHAsync_v2(pinned, memory, 10, copies));
    expect("a copy to the host reads what a kernel may still write");
}
END_TEST

START_TEST(writes_while_a_copy_reads)
{
    ok(cuMemcpyDtoHAsync_v2(pinned, memory, BYTES, copies));
    cuda_fake_kernel_write(compute, memory + BYTES - 1, bytes, 1, "a kernel");
    expect("a kernel writes what a copy to the host may still read");
    ok(cuStreamSynchronize(copies));
    ok(cuStreamSynchronize(compute));
    ok(cuMemcpyDtoHAsync_v2(pinned, memory, BYTES, copies));
    order(copies, compute);
    cuda_fake_kernel_write(compute, memory, bytes, BYTES, "a kernel");
    expect("");
}
END_TEST

START_TEST(premature_use_by_the_host)
{
    ok(cuMemcpyDtoHAsync_v2(pinned, memory, BYTES, copies));
    ok(cuEventRecord(event, copies));
    cuda_fake_tell_host_access(pinned, 1, false, "the host");
    expect("the host reads what a copy to the host may still write");
    while (cuEventQuery(event) != TIERCE__CU_SUCCESS)
        ;
    cuda_fake_tell_host_access(pinned, BYTES, true, "the host");
    expect("");
    ck_assert_mem_eq(pinned, bytes, BYTES);
}
END_TEST

START_TEST(garbage_until_the_event)
{
    memset(pinned, 7, BYTES);
    cuda_fake_seed(1, 0);
    ok(cuMemcpyDtoHAsync_v2(pinned, memory, BYTES, copies));
    ok(cuStreamSynchronize(copies));
    ck_assert_mem_eq(pinned, bytes, BYTES);
    expect("");
}
END_TEST

START_TEST(calls_without_a_context)
{
    TIERCE__CU_CONTEXT popped;
    ok(cuCtxPopCurrent_v2(&popped));
    ck_assert_ptr_eq(popped, context);
    ck_assert_int_eq(cuEventQuery(event), TIERCE__CU_INVALID_CONTEXT);
    expect("cuEventQuery without a current context");
    ck_assert_int_eq(cuCtxPopCurrent_v2(&popped), TIERCE__CU_INVALID_CONTEXT);
    expect("cuCtxPopCurrent without a context");
}
END_TEST

START_TEST(memory_that_is_not_registered)
{
    ck_assert_int_ne(cuMemcpyDtoHAsync_v2(pinned + BYTES, memory, 1, copies), 0);
    expect("cuMemcpyDtoHAsync of host memory that is not registered");
    ok(cuMemHostRegister_v2(pinned + BYTES, BYTES, 1));
    ck_assert_int_ne(cuMemcpyHtoDAsync_v2(memory, pinned + BYTES - 1, 2, copies), 0);
    expect("cuMemcpyHtoDAsync of host memory that is not in one registration");
    ck_assert_int_ne(cuMemcpyHtoDAsync_v2(memory + 1, pinned, BYTES, copies), 0);
    expect("cuMemcpyHtoDAsync of device memory that is not in one allocation");
    ck_assert_int_eq(cuMemHostRegister_v2(pinned, 4096, 1), TIERCE__CU_ALREADY_REGISTERED);
    ck_assert_int_eq(cuMemHostUnregister(pinned + 4096), TIERCE__CU_NOT_REGISTERED);
    cuda_fake_hold(true);
    ok(cuMemcpyHtoDAsync_v2(memory, pinned, BYTES, copies));
    ok(cuMemHostUnregister(pinned));
    expect("cuMemHostUnregister of memory that copies use");
}
END_TEST

START_TEST(streams_of_another_context)
{
    TIERCE__CU_CONTEXT other;
    ok(cuDevicePrimaryCtxRetain(&other, 1));
    ok(cuCtxPushCurrent_v2(other));
    ck_assert_int_ne(cuStreamQuery(copies), 0);
    expect("the stream is of another context");
    ck_assert_int_ne(cuStreamQuery((TIERCE__CU_STREAM)(void *)bytes), 0);
    expect("the stream does not exist");
}
END_TEST

START_TEST(a_stream_is_destroyed_while_it_copies)
{
    cuda_fake_hold(true);
    ok(cuMemcpyDtoHAsync_v2(pinned, memory, BYTES, copies));
    ok(cuStreamDestroy_v2(copies));
    expect("cuStreamDestroy of a stream with work in progress");
}
END_TEST

/* ---- our kernel ---- */

enum { CELL = 1000 };

/* Launches the copy of some cells, which follow each other. */
static int launch(TIERCE__CU_ADDRESS to, TIERCE__CU_ADDRESS from, uint32_t cells, void *sums)
{
    static TIERCE__CU_MODULE module;
    TIERCE__CU_FUNCTION function;
    struct tierce__launch what = {.sums = (uintptr_t)sums, .bytes = CELL, .count = cells};
    void *parameters[] = {&what};
    for (uint32_t i = 0; i < cells; i++)
        what.to[i] = to + i * CELL, what.from[i] = from + i * CELL;
    if (module == NULL)
        ok(cuModuleLoadData(&module, tierce__copy_sum_ptx));
    ok(cuModuleGetFunction(&function, module, TIERCE__LAUNCH_KERNEL));
    return cuLaunchKernel(function, 2, 1, 1, TIERCE__LAUNCH_THREADS, 1, 1, 0, copies, parameters,
                          NULL);
}

START_TEST(launches_of_our_kernel)
{
    void *sums;
    ok(cuMemHostAlloc(&sums, 4096, TIERCE__CU_HOST_DEVICEMAP));
    ok(cuMemHostUnregister(pinned));
    ok(cuMemHostRegister_v2(pinned, 4096, TIERCE__CU_REGISTER_DEVICEMAP));
    ok(cuMemHostRegister_v2(pinned + 4096, 4096, TIERCE__CU_REGISTER_DEVICEMAP));
    ok(launch((uintptr_t)pinned, memory, 5, sums)); /* the last cell lies in both */
    cuda_fake_tell_host_access(sums, 8, false, "the host");
    expect("the host reads what the copying kernel may still write");
    ok(cuStreamSynchronize(copies));
    ck_assert_mem_eq(pinned, bytes, 5 * CELL);
    for (size_t i = 0; i < 5; i++)
        ck_assert_uint_eq(((uint64_t *)sums)[i], XXH3_64bits(bytes, CELL));
    cuda_fake_tell_host_access(pinned, BYTES, true, "the host");
    expect("");
}
END_TEST

/* ---- the kernel that takes time ---- */

static int spin(unsigned blocks, uint64_t ns, uint32_t *release)
{
    static TIERCE__CU_MODULE module;
    TIERCE__CU_FUNCTION function;
    struct tierce__spin what = {.ns = ns, .release = (uintptr_t)release};
    void *parameters[] = {&what};
    if (module == NULL)
        ok(cuModuleLoadData(&module, tierce__spin_ptx));
    ck_assert_int_ne(cuModuleGetFunction(&function, module, TIERCE__LAUNCH_KERNEL), 0);
    ok(cuModuleGetFunction(&function, module, TIERCE__SPIN_KERNEL));
    return cuLaunchKernel(function, blocks, 1, 1, TIERCE__SPIN_THREADS, 1, 1, 0, copies, parameters,
                          NULL);
}

START_TEST(a_stream_spins_until_its_release)
{
    void *release;
    ok(cuMemHostAlloc(&release, 4096, TIERCE__CU_HOST_DEVICEMAP));
    ok(spin(1, 60000000000, release));
    ck_assert_int_eq(cuStreamQuery(copies), TIERCE__CU_NOT_READY);
    __atomic_store_n((uint32_t *)release, 1, __ATOMIC_RELEASE);
    ok(cuStreamSynchronize(copies));
    uint64_t begin_ns = tierce__now_ns();
    ok(spin(40, 20000000, NULL)); /* the blocks run at the same time */
    ok(cuStreamSynchronize(copies));
    ck_assert_uint_ge(tierce__now_ns() - begin_ns, 20000000);
    expect("");
    ck_assert_int_ne(spin(1, 1, (uint32_t *)bytes), 0);
    expect("a kernel uses memory that is neither the device's nor mapped");
    ck_assert_int_ne(spin(1000, 1, NULL), 0);
    expect("cuLaunchKernel with invalid arguments: 1000 blocks of 256 threads");
}
END_TEST

START_TEST(launches_that_are_wrong)
{
    void *sums;
    ok(cuMemHostAlloc(&sums, 4096, TIERCE__CU_HOST_DEVICEMAP));
    ck_assert_int_ne(launch((uintptr_t)pinned, memory, 1, sums), 0); /* registered, not mapped */
    expect("a kernel uses memory that is neither the device's nor mapped");
    ck_assert_int_ne(launch(memory, (uintptr_t)bytes, 1, sums), 0);
    expect("a kernel uses memory that is neither the device's nor mapped");
    ck_assert_int_ne(launch(memory, memory + CELL, 1, bytes), 0);
    expect("a kernel uses memory that is neither the device's nor mapped");
    ck_assert_int_ne(launch(memory, memory + BYTES - CELL + 1, 1, sums), 0);
    expect("a kernel uses memory that is neither the device's nor mapped");
    cuda_fake_kernel_write(compute, memory, bytes, BYTES, "a kernel");
    ok(launch(memory + 4 * CELL, memory, 1, sums));
    expect("the copying kernel reads what a kernel may still write");
    ok(cuMemFreeHost(sums));
    expect("cuMemFreeHost of memory that a kernel uses");
}
END_TEST

START_TEST(calls_while_a_graph_is_captured)
{
    TIERCE__CU_ADDRESS more;
    TIERCE__CU_CAPTURE_MODE mode = TIERCE__CU_CAPTURE_RELAXED;
    cuda_fake_capture(compute, true);
    (void)cuMemAlloc_v2(&more, BYTES);
    expect("cuMemAlloc while a graph is being captured");
    ok(cuEventQuery(event));
    expect("cuEventQuery while a graph is being captured");
    ok(cuStreamQuery(copies));
    expect("cuStreamQuery while a graph is being captured");
    ok(cuThreadExchangeStreamCaptureMode(&mode));
    ok(cuMemAlloc_v2(&more, BYTES));
    ok(cuEventQuery(event));
    ok(cuStreamQuery(copies));
    expect("");
}
END_TEST

START_TEST(texts_that_are_no_module)
{
    TIERCE__CU_MODULE module;
    ck_assert_int_eq(cuModuleLoadData(&module, "// nothing"), TIERCE__CU_INVALID_IMAGE);
    expect("cuModuleLoadData of an unknown text");
}
END_TEST

START_TEST(the_nth_call_fails)
{
    (void)cuda_fake_fail_nth(2, TIERCE__CU_UNKNOWN);
    ok(cuEventRecord(event, copies));
    ck_assert_int_eq(cuEventRecord(event, copies), TIERCE__CU_UNKNOWN);
    ok(cuEventRecord(event, copies));
    ck_assert_uint_eq(cuda_fake_fail_nth(0, 0), 3);
    expect("");
}
END_TEST

CHECK_MAIN("cuda_fake", .seconds = 60, .setup = setup,
           .tests = {reads_before_the_event, events_that_are_too_early, writes_while_a_copy_reads,
                     premature_use_by_the_host, garbage_until_the_event, calls_without_a_context,
                     memory_that_is_not_registered, streams_of_another_context,
                     a_stream_is_destroyed_while_it_copies, launches_of_our_kernel,
                     a_stream_spins_until_its_release, launches_that_are_wrong,
                     calls_while_a_graph_is_captured, texts_that_are_no_module, the_nth_call_fails})
