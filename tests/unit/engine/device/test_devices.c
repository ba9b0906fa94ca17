/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/device/devices.h"

#include "base/alloc.h"
#include "cuda_check.h"

/* Devices that several engines of a process use, on the driver of tests/support/cuda. */

static struct tierce__open_device *acquire(TIERCE__CU_ADDRESS address)
{
    struct tierce__open_device *device = NULL;
    ck_assert_int_eq(
        tierce__device_acquire(&device, TIERCE_DEVICE_CUDA, (const void *)(uintptr_t)address), 0);
    ck_assert_ptr_nonnull(device);
    return device;
}

static int has(const struct tierce__open_device *open, TIERCE__CU_ADDRESS address)
{
    return open->ops->has(open->device, (const void *)(uintptr_t)address);
}

/* The engines have a stream on each of two devices, and each open device has two more. */
START_TEST(a_device_is_closed_by_its_last_user)
{
    TIERCE__CU_CONTEXT context;
    TIERCE__CU_ADDRESS memory[2], more;
    for (int i = 0; i < 2; i++) {
        (void)cuda_check_start(&context, 1, i);
        cuda_check(cuMemAlloc_v2(&memory[i], 4096));
    }
    cuda_check(cuMemAlloc_v2(&more, 4096)); /* of device 1 */
    struct tierce__open_device *first = acquire(memory[0]), *second = acquire(memory[1]);
    ck_assert_ptr_ne(first, second);
    ck_assert_uint_eq(cuda_fake_live().streams, 6);
    ck_assert_ptr_eq(acquire(more), second);
    ck_assert_ptr_eq(acquire(memory[1] + 100), second);
    ck_assert_uint_eq(cuda_fake_live().streams, 6);
    for (unsigned users = 3; users > 0; users--) {
        ck_assert_int_eq(has(second, more), 1);
        tierce__device_release(second);
        ck_assert_uint_eq(cuda_fake_live().streams, users > 1 ? 6 : 4);
    }
    ck_assert_int_eq(has(first, memory[0]), 1);
    ck_assert_int_eq(has(first, memory[1]), 0);
    tierce__device_release(acquire(memory[1])); /* it can be opened again */
    tierce__device_release(first);
    ck_assert_uint_eq(cuda_fake_live().streams, 2);
    ck_assert_str_eq(cuda_fake_report(), "");
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("devices", .seconds = 60, .tests = {a_device_is_closed_by_its_last_user})
