/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_fake_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORIES_MAX = 64, STACK_MAX = 16, PAGE_BYTES = 4096 };

/* Device memory is mapped twice: at its address without access, and at its alias. */
static struct memory {
    uintptr_t address;
    uint8_t *alias;
    size_t bytes;
    int device;
} memories[MEMORIES_MAX];

static struct slice {
    uintptr_t from, to;
    bool is_mapped;
    bool is_own;                /* of cuMemHostAlloc */
    TIERCE__CU_CONTEXT context; /* NULL: of all contexts (portable) */
    TIERCE__CU_CONTEXT maker;
} slices[MEMORIES_MAX];

static struct tierce__cu_context contexts[FAKE_DEVICES] = {{.device = 0}, {.device = 1}};

static _Thread_local TIERCE__CU_CONTEXT stack[STACK_MAX];
static _Thread_local unsigned depth;

/* ---- contexts ---------------------------------------------------------------------------------
 */

TIERCE__CU_CONTEXT fake_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

unsigned fake_stack_depth(void)
{
    return depth;
}

unsigned fake_retained(void)
{
    return contexts[0].retained + contexts[1].retained;
}

TIERCE__CU_RESULT cuDeviceGet(TIERCE__CU_DEVICE *device, int ordinal)
{
    TIERCE__CU_RESULT code = fake_begin("cuDeviceGet", false);
    if (code == TIERCE__CU_SUCCESS && (ordinal < 0 || ordinal >= FAKE_DEVICES))
        code = TIERCE__CU_INVALID_VALUE;
    if (code == TIERCE__CU_SUCCESS)
        *device = ordinal;
    return fake_end(code);
}

TIERCE__CU_RESULT cuDeviceGetPCIBusId(char *name, int bytes, TIERCE__CU_DEVICE device)
{
    TIERCE__CU_RESULT code = fake_begin("cuDeviceGetPCIBusId", false);
    if (code == TIERCE__CU_SUCCESS)
        snprintf(name, (size_t)bytes, "0000:%02X:00.0", 10 + (unsigned)device);
    return fake_end(code);
}

TIERCE__CU_RESULT cuDevicePrimaryCtxGetState(TIERCE__CU_DEVICE device, unsigned int *flags,
                                             int *active)
{
    TIERCE__CU_RESULT code = fake_begin("cuDevicePrimaryCtxGetState", false);
    if (code == TIERCE__CU_SUCCESS) {
        *flags = 0;
        *active = contexts[device].retained > 0;
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuDevicePrimaryCtxRetain(TIERCE__CU_CONTEXT *context, TIERCE__CU_DEVICE device)
{
    TIERCE__CU_RESULT code = fake_begin("cuDevicePrimaryCtxRetain", false);
    if (code == TIERCE__CU_SUCCESS) {
        contexts[device].retained++;
        *context = &contexts[device];
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuDevicePrimaryCtxRelease_v2(TIERCE__CU_DEVICE device)
{
    TIERCE__CU_RESULT code = fake_begin("cuDevicePrimaryCtxRelease", false);
    if (code == TIERCE__CU_SUCCESS && contexts[device].retained == 0)
        fake_violation("the primary context of device %d is released too often", device);
    else if (code == TIERCE__CU_SUCCESS)
        contexts[device].retained--;
    return fake_end(code);
}

TIERCE__CU_RESULT cuCtxPushCurrent_v2(TIERCE__CU_CONTEXT context)
{
    TIERCE__CU_RESULT code = fake_begin("cuCtxPushCurrent", false);
    if (code == TIERCE__CU_SUCCESS && (context->retained == 0 || depth == STACK_MAX)) {
        fake_violation(
            "cuCtxPushCurrent of a context that is not retained, or more than %u contexts deep",
            depth);
        code = TIERCE__CU_INVALID_CONTEXT;
    }
    if (code == TIERCE__CU_SUCCESS)
        stack[depth++] = context;
    return fake_end(code);
}

TIERCE__CU_RESULT cuCtxPopCurrent_v2(TIERCE__CU_CONTEXT *context)
{
    TIERCE__CU_RESULT code = fake_begin("cuCtxPopCurrent", false);
    if (code == TIERCE__CU_SUCCESS && depth == 0) {
        fake_violation("cuCtxPopCurrent without a context");
        code = TIERCE__CU_INVALID_CONTEXT;
    }
    if (code == TIERCE__CU_SUCCESS)
        *context = stack[--depth];
    return fake_end(code);
}

/* ---- device memory ----------------------------------------------------------------------------
 */

static const struct memory *find_memory(TIERCE__CU_ADDRESS address, size_t bytes)
{
    for (size_t i = 0; i < MEMORIES_MAX; i++) {
        const struct memory *m = &memories[i];
        if (m->bytes > 0 && address >= m->address && address - m->address <= m->bytes &&
            bytes <= m->bytes - (address - m->address))
            return m;
    }
    return NULL;
}

uint8_t *fake_alias(TIERCE__CU_ADDRESS address, size_t bytes)
{
    const struct memory *memory = find_memory(address, bytes);
    return memory != NULL ? memory->alias + (address - memory->address) : NULL;
}

void *cuda_fake_processor_address(TIERCE__CU_ADDRESS address, size_t bytes)
{
    pthread_mutex_lock(&fake_lock);
    uint8_t *alias = fake_alias(address, bytes);
    pthread_mutex_unlock(&fake_lock);
    return alias;
}

unsigned fake_memories(void)
{
    unsigned count = 0;
    for (size_t i = 0; i < MEMORIES_MAX; i++)
        count += memories[i].bytes > 0;
    return count;
}

static void map_twice(struct memory *memory, size_t bytes)
{
    int fd = memfd_create("cuda_fake", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        abort();
    void *address = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    void *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (address == MAP_FAILED || alias == MAP_FAILED)
        abort();
    *memory = (struct memory){.address = (uintptr_t)address,
                              .alias = alias,
                              .bytes = bytes,
                              .device = fake_current()->device};
}

TIERCE__CU_RESULT cuMemAlloc_v2(TIERCE__CU_ADDRESS *address, size_t bytes)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuMemAlloc");
    size_t i = 0;
    while (i < MEMORIES_MAX && memories[i].bytes > 0)
        i++;
    if (code == TIERCE__CU_SUCCESS && (i == MEMORIES_MAX || bytes == 0))
        code = TIERCE__CU_OUT_OF_MEMORY;
    if (code == TIERCE__CU_SUCCESS) {
        map_twice(&memories[i], (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
        *address = memories[i].address;
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuMemFree_v2(TIERCE__CU_ADDRESS address)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuMemFree");
    for (size_t i = 0; code == TIERCE__CU_SUCCESS && i < MEMORIES_MAX; i++) {
        struct memory *memory = &memories[i];
        if (memory->bytes == 0 || memory->address != address)
            continue;
        if (fake_in_progress(memory->address, memory->bytes))
            fake_violation("cuMemFree of memory that is in use");
        fake_forget_accesses(memory->address, memory->bytes);
        munmap((void *)memory->address, memory->bytes);
        munmap(memory->alias, memory->bytes);
        *memory = (struct memory){0};
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuPointerGetAttribute(void *value, TIERCE__CU_POINTER_ATTRIBUTE attribute,
                                        TIERCE__CU_ADDRESS address)
{
    TIERCE__CU_RESULT code = fake_begin("cuPointerGetAttribute", false);
    const struct memory *memory = find_memory(address, 1);
    if (code == TIERCE__CU_SUCCESS && memory == NULL)
        code = TIERCE__CU_INVALID_VALUE;
    if (code == TIERCE__CU_SUCCESS && attribute == TIERCE__CU_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned int *)value = TIERCE__CU_MEMORY_DEVICE;
    else if (code == TIERCE__CU_SUCCESS && attribute == TIERCE__CU_ATTRIBUTE_ORDINAL)
        *(int *)value = memory->device;
    return fake_end(code);
}

void cuda_fake_violate(const char *what)
{
    pthread_mutex_lock(&fake_lock);
    fake_violation("%s", what);
    pthread_mutex_unlock(&fake_lock);
}

void cuda_fake_write_device(TIERCE__CU_ADDRESS to, const void *bytes, size_t n, const char *what)
{
    pthread_mutex_lock(&fake_lock);
    struct fake_clock *clock = fake_host_clock();
    uint8_t *alias = fake_alias(to, n);
    clock->of[FAKE_HOST]++;
    if (fake_current() == NULL)
        fake_violation("%s without a current context", what);
    else if (alias == NULL)
        fake_violation("%s to memory that is not the device's", what);
    else if (fake_access(clock, FAKE_HOST, (uintptr_t)to, n, true, what))
        memcpy(alias, bytes, n);
    pthread_mutex_unlock(&fake_lock);
}

/* ---- registered memory ------------------------------------------------------------------------
 */

unsigned fake_slices(void)
{
    unsigned count = 0;
    for (size_t i = 0; i < MEMORIES_MAX; i++)
        count += slices[i].to > 0 && !slices[i].is_own;
    return count;
}

unsigned fake_host_memories(void)
{
    unsigned count = 0;
    for (size_t i = 0; i < MEMORIES_MAX; i++)
        count += slices[i].to > 0 && slices[i].is_own;
    return count;
}

bool fake_check_pinned(const void *memory, size_t bytes, const char *call)
{
    uintptr_t from = (uintptr_t)memory, to = from + bytes;
    bool begins = false;
    for (size_t i = 0; i < MEMORIES_MAX; i++) {
        if (slices[i].context != NULL && slices[i].context != fake_current())
            continue;
        if (slices[i].from <= from && to <= slices[i].to)
            return true;
        begins |= slices[i].from <= from && from < slices[i].to;
    }
    fake_violation("%s of host memory that %s", call,
                   begins ? "is not in one registration" : "is not registered");
    return false;
}

static size_t registration_max, locked_max; /* under the lock, as the next */
static bool registrations_held;

void cuda_fake_limit_registration(size_t bytes_max)
{
    pthread_mutex_lock(&fake_lock);
    registration_max = bytes_max;
    pthread_mutex_unlock(&fake_lock);
}

void cuda_fake_limit_locked(size_t bytes_max)
{
    pthread_mutex_lock(&fake_lock);
    locked_max = bytes_max;
    pthread_mutex_unlock(&fake_lock);
}

void cuda_fake_hold_registrations(bool held)
{
    pthread_mutex_lock(&fake_lock);
    registrations_held = held;
    (void)fake_end(0);
}

static bool is_too_large(size_t bytes)
{
    size_t locked = bytes;
    for (size_t i = 0; i < MEMORIES_MAX; i++)
        locked += slices[i].is_own ? 0 : slices[i].to - slices[i].from;
    return (registration_max > 0 && bytes > registration_max) ||
           (locked_max > 0 && locked > locked_max);
}

TIERCE__CU_RESULT cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuMemHostRegister");
    uintptr_t from = (uintptr_t)memory, to = from + bytes;
    size_t room = MEMORIES_MAX;
    while (code == TIERCE__CU_SUCCESS && registrations_held)
        pthread_cond_wait(&fake_changed, &fake_lock);
    for (size_t i = 0; code == TIERCE__CU_SUCCESS && i < MEMORIES_MAX; i++) {
        if (slices[i].to == 0)
            room = i;
        else if (slices[i].from < to && from < slices[i].to)
            code = TIERCE__CU_ALREADY_REGISTERED;
    }
    if (code == TIERCE__CU_SUCCESS && (room == MEMORIES_MAX || is_too_large(bytes)))
        code = TIERCE__CU_OUT_OF_MEMORY;
    if (code == TIERCE__CU_SUCCESS)
        slices[room] = (struct slice){
            .from = from,
            .to = to,
            .is_mapped = (flags & TIERCE__CU_REGISTER_DEVICEMAP) != 0,
            .context = (flags & TIERCE__CU_REGISTER_PORTABLE) != 0 ? NULL : fake_current(),
            .maker = fake_current()};
    return fake_end(code);
}

TIERCE__CU_RESULT cuMemHostUnregister(void *memory)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuMemHostUnregister");
    size_t i = 0;
    while (i < MEMORIES_MAX &&
           (slices[i].to == 0 || slices[i].is_own || slices[i].from != (uintptr_t)memory))
        i++;
    if (code == TIERCE__CU_SUCCESS && i == MEMORIES_MAX)
        code = TIERCE__CU_NOT_REGISTERED;
    if (code == TIERCE__CU_SUCCESS) {
        if (fake_in_progress(slices[i].from, slices[i].to - slices[i].from))
            fake_violation("cuMemHostUnregister of memory that copies use");
        if (slices[i].maker != fake_current())
            fake_violation("cuMemHostUnregister in another context than cuMemHostRegister");
        slices[i] = (struct slice){0};
    }
    return fake_end(code);
}

/* ---- memory of the host that a kernel uses ----------------------------------------------------
 */

TIERCE__CU_RESULT cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuMemHostAlloc");
    size_t i = 0;
    while (i < MEMORIES_MAX && slices[i].to > 0)
        i++;
    if (code == TIERCE__CU_SUCCESS && (i == MEMORIES_MAX || bytes == 0))
        code = TIERCE__CU_OUT_OF_MEMORY;
    if (code == TIERCE__CU_SUCCESS) {
        void *at = calloc(1, bytes);
        if (at == NULL)
            abort();
        slices[i] = (struct slice){
            .from = (uintptr_t)at,
            .to = (uintptr_t)at + bytes,
            .is_mapped = (flags & TIERCE__CU_HOST_DEVICEMAP) != 0,
            .is_own = true,
            .context = (flags & TIERCE__CU_HOST_PORTABLE) != 0 ? NULL : fake_current()};
        *memory = at;
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuMemFreeHost(void *memory)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuMemFreeHost");
    size_t i = 0;
    while (i < MEMORIES_MAX && (!slices[i].is_own || slices[i].from != (uintptr_t)memory))
        i++;
    if (code == TIERCE__CU_SUCCESS && i == MEMORIES_MAX) {
        fake_violation("cuMemFreeHost of memory that is not of cuMemHostAlloc");
        code = TIERCE__CU_INVALID_VALUE;
    }
    if (code == TIERCE__CU_SUCCESS) {
        if (fake_in_progress(slices[i].from, slices[i].to - slices[i].from))
            fake_violation("cuMemFreeHost of memory that a kernel uses");
        fake_forget_accesses(slices[i].from, slices[i].to - slices[i].from);
        slices[i] = (struct slice){0};
        free(memory);
    }
    return fake_end(code);
}

/* The end of the mapped slice that holds the address, or 0. */
static uintptr_t mapped_end(uintptr_t address)
{
    for (size_t i = 0; i < MEMORIES_MAX; i++) {
        if (slices[i].is_mapped && slices[i].from <= address && address < slices[i].to)
            return slices[i].to;
    }
    return 0;
}

/* Slices may be adjacent, because all addresses are the host's. */
uint8_t *fake_kernel_memory(uint64_t address, size_t bytes)
{
    uint8_t *alias = fake_alias(address, bytes);
    uintptr_t at = address;
    while (alias == NULL && at < address + bytes) {
        at = mapped_end(at);
        if (at == 0) {
            fake_violation("a kernel uses memory that is neither the device's nor mapped");
            return NULL;
        }
    }
    return alias != NULL ? alias : (uint8_t *)(uintptr_t)address;
}
