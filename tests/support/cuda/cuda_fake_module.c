/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, and our kernels compiled as C from the sources that the modules were compiled from. */
#include "cuda_fake_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device/kernels/copy_sum.cu"
#include "core/device/kernels/spin.cu"

enum { MODULE_MAGIC = 0x6d6f6475, PROCESSORS = 43, BLOCKS_MAX = 2, PARAMETER_BYTES_MAX = 4096 };

/* The kernels: each is a module of its own. */
static const struct kernel {
    const char *name, *entry;
    unsigned blocks_max, threads;
} kernels[] = {
    {TIERCE__LAUNCH_KERNEL, ".entry " TIERCE__LAUNCH_KERNEL "(", BLOCKS_MAX,
     TIERCE__LAUNCH_THREADS},
    {TIERCE__SPIN_KERNEL, ".entry " TIERCE__SPIN_KERNEL "(", PROCESSORS, TIERCE__SPIN_THREADS},
    {TIERCE__ROTATE_KERNEL, ".entry " TIERCE__ROTATE_KERNEL "(", 4 * PROCESSORS,
     TIERCE__ROTATE_THREADS},
    {TIERCE__DECODE_KERNEL, ".entry " TIERCE__DECODE_KERNEL "(", 4 * PROCESSORS,
     TIERCE__DECODE_THREADS},
    {TIERCE__DISTANCES_KERNEL, ".entry " TIERCE__DISTANCES_KERNEL "(", 4 * PROCESSORS,
     TIERCE__DISTANCES_THREADS}};
enum { COPIES, SPIN, ROTATE, DECODE, DISTANCES, KERNELS = sizeof(kernels) / sizeof(kernels[0]) };

struct tierce__cu_function {
    unsigned magic;
    const struct kernel *kernel;
};

struct tierce__cu_module {
    unsigned magic;
    struct tierce__cu_function function;
};

static unsigned module_count;
static bool host_pointers = true;
static enum cuda_fake_flip flip;
static unsigned launch_pause_us;

unsigned fake_modules(void)
{
    return module_count;
}

void cuda_fake_set_host_pointers(bool usable)
{
    pthread_mutex_lock(&fake_lock);
    host_pointers = usable;
    pthread_mutex_unlock(&fake_lock);
}

void cuda_fake_flip(enum cuda_fake_flip how)
{
    pthread_mutex_lock(&fake_lock);
    flip = how;
    pthread_mutex_unlock(&fake_lock);
}

void cuda_fake_pause_launches(unsigned pause_us)
{
    pthread_mutex_lock(&fake_lock);
    launch_pause_us = pause_us;
    pthread_mutex_unlock(&fake_lock);
}

/* ---- the driver ------------------------------------------------------------------------------ */

TIERCE__CU_RESULT cuDeviceGetAttribute(int *value, TIERCE__CU_DEVICE_ATTRIBUTE attribute,
                                       TIERCE__CU_DEVICE device)
{
    TIERCE__CU_RESULT code = fake_begin("cuDeviceGetAttribute", false);
    bool known = attribute == TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS ||
                 attribute == TIERCE__CU_ATTRIBUTE_HOST_POINTERS;
    if (code == TIERCE__CU_SUCCESS && (!known || device < 0 || device >= FAKE_DEVICES))
        code = TIERCE__CU_INVALID_VALUE;
    if (code == TIERCE__CU_SUCCESS)
        *value = attribute == TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS ? PROCESSORS : host_pointers;
    return fake_end(code);
}

/* The kernel whose text for this driver it is, or NULL. */
static const struct kernel *find_kernel(const char *ptx)
{
    if (strstr(ptx, "\n.version ") == NULL || strstr(ptx, "\n.target sm_75") == NULL)
        return NULL;
    for (size_t i = 0; i < KERNELS; i++) {
        if (strstr(ptx, kernels[i].entry) != NULL)
            return &kernels[i];
    }
    return NULL;
}

TIERCE__CU_RESULT cuModuleLoadData(TIERCE__CU_MODULE *module, const void *image)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuModuleLoadData");
    const struct kernel *kernel = code == TIERCE__CU_SUCCESS ? find_kernel(image) : NULL;
    if (code == TIERCE__CU_SUCCESS && kernel == NULL) {
        fake_violation("cuModuleLoadData of an unknown text");
        code = TIERCE__CU_INVALID_IMAGE;
    }
    if (code == TIERCE__CU_SUCCESS) {
        TIERCE__CU_MODULE new = calloc(1, sizeof(*new));
        if (new == NULL)
            abort();
        new->magic = new->function.magic = MODULE_MAGIC;
        new->function.kernel = kernel;
        module_count++;
        *module = new;
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuModuleUnload(TIERCE__CU_MODULE module)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuModuleUnload");
    if (code == TIERCE__CU_SUCCESS && module->magic != MODULE_MAGIC) {
        fake_violation("cuModuleUnload of a module that does not exist");
        code = TIERCE__CU_INVALID_HANDLE;
    }
    if (code == TIERCE__CU_SUCCESS) {
        module->magic = module->function.magic = 0;
        module_count--;
        free(module);
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuModuleGetFunction(TIERCE__CU_FUNCTION *function, TIERCE__CU_MODULE module,
                                      const char *name)
{
    TIERCE__CU_RESULT code = fake_begin("cuModuleGetFunction", true);
    if (code == TIERCE__CU_SUCCESS && strcmp(name, module->function.kernel->name) != 0)
        code = TIERCE__CU_NOT_FOUND;
    if (code == TIERCE__CU_SUCCESS)
        *function = &module->function;
    return fake_end(code);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Of a launch of another kernel. */
static const struct tierce__launch no_copies;
static const struct tierce__decode_launch no_decode;

/* The addresses that the processor uses. */
static bool translate(struct tierce__launch *to, const struct tierce__launch *from)
{
    bool known = true;
    *to = *from;
    if (from->count > 0)
        to->sums = (uintptr_t)fake_kernel_memory(from->sums, from->count * sizeof(uint64_t));
    known &= from->count == 0 || to->sums != 0;
    for (uint32_t i = 0; i < from->count && known; i++) {
        to->from[i] = (uintptr_t)fake_kernel_memory(from->from[i], from->bytes);
        to->to[i] = (uintptr_t)fake_kernel_memory(from->to[i], from->bytes);
        known = to->from[i] != 0 && to->to[i] != 0;
    }
    return known;
}

/* Under the lock. */
static TIERCE__CU_RESULT launch_copies(TIERCE__CU_STREAM stream, const struct tierce__launch *in,
                                       unsigned blocks)
{
    static struct fake_launch launch; /* it is copied */
    if (in->bytes == 0 || in->count > TIERCE__LAUNCH_CELLS) {
        fake_violation("cuLaunchKernel of %u cells of %u bytes", in->count, in->bytes);
        return TIERCE__CU_INVALID_VALUE;
    }
    fake_count_launch();
    launch = (struct fake_launch){.blocks = blocks, .flip = flip};
    return translate(&launch.what, in) ? fake_enqueue_launch(stream, &launch, in, &no_decode)
                                       : TIERCE__CU_INVALID_VALUE;
}

/* Under the lock. */
static TIERCE__CU_RESULT launch_spin(TIERCE__CU_STREAM stream, const struct tierce__spin *in)
{
    struct fake_launch launch = {.spin = *in};
    if (in->release != 0 && fake_kernel_memory(in->release, sizeof(uint32_t)) == NULL)
        return TIERCE__CU_INVALID_VALUE;
    return fake_enqueue_launch(stream, &launch, &no_copies, &no_decode);
}

/* Under the lock. */
static TIERCE__CU_RESULT launch_rotation(TIERCE__CU_STREAM stream,
                                         const struct tierce__rotate_launch *in, unsigned blocks)
{
    static struct fake_launch launch; /* it is copied */
    if (in->items == 0 || in->items > TIERCE__ROTATE_ITEMS_MAX || in->heads == 0 ||
        in->pairs == 0 || in->pairs > TIERCE__ROTATE_PAIRS) {
        fake_violation("cuLaunchKernel of %u pairs in rows of %u", in->items, in->pairs);
        return TIERCE__CU_INVALID_VALUE;
    }
    uint32_t rows = in->items / in->pairs, tokens = rows / in->heads;
    size_t bytes = (tokens - 1) * in->token_bytes + (in->heads - 1) * in->head_bytes +
                   2 * (size_t)in->pairs * (in->is_fp32 ? 4 : 2);
    uint8_t *at = fake_kernel_memory(in->at, bytes);
    if (at == NULL)
        return TIERCE__CU_INVALID_VALUE;
    fake_count_launch();
    launch = (struct fake_launch){.blocks = blocks,
                                  .flip = flip,
                                  .rotate = *in,
                                  .used = {{in->at, bytes}},
                                  .name = "the rotating kernel"};
    launch.rotate.at = (uintptr_t)at;
    return fake_enqueue_launch(stream, &launch, &no_copies, &no_decode);
}

/* Under the lock. */
static TIERCE__CU_RESULT launch_decode(TIERCE__CU_STREAM stream,
                                       const struct tierce__decode_launch *in, unsigned blocks)
{
    static struct fake_launch launch; /* it is copied */
    launch = (struct fake_launch){.blocks = blocks, .flip = flip};
    if (!fake_decode_translate(&launch.decode, in))
        return TIERCE__CU_INVALID_VALUE;
    fake_count_launch();
    return fake_enqueue_launch(stream, &launch, &no_copies, in);
}

/* Under the lock. */
static TIERCE__CU_RESULT launch_distances(TIERCE__CU_STREAM stream,
                                          const struct tierce__distances_launch *in,
                                          unsigned blocks)
{
    static struct fake_launch launch; /* it is copied */
    if (in->tokens == 0 || in->tokens > TIERCE__DISTANCES_TOKENS_MAX || in->heads == 0 ||
        in->elements == 0 || in->to % sizeof(float) != 0) {
        fake_violation("cuLaunchKernel of the distances of %u tokens", in->tokens);
        return TIERCE__CU_INVALID_VALUE;
    }
    size_t row = (size_t)in->elements * (in->is_fp32 ? 4 : 2), last = in->tokens - 1;
    launch = (struct fake_launch){
        .blocks = blocks,
        .flip = flip,
        .distances = *in,
        .used = {{in->to, in->tokens * sizeof(float)},
                 {in->a, last * in->a_token_bytes + (in->heads - 1) * in->a_head_bytes + row},
                 {in->b, last * in->b_token_bytes + (in->heads - 1) * in->b_head_bytes + row}},
        .name = "the comparing kernel"};
    uint64_t *addresses[] = {&launch.distances.to, &launch.distances.a, &launch.distances.b};
    for (size_t i = 0; i < FAKE_RANGES; i++) {
        uint8_t *at = fake_kernel_memory(launch.used[i].at, launch.used[i].bytes);
        if (at == NULL)
            return TIERCE__CU_INVALID_VALUE;
        *addresses[i] = (uintptr_t)at;
    }
    fake_count_launch();
    return fake_enqueue_launch(stream, &launch, &no_copies, &no_decode);
}

TIERCE__CU_RESULT cuLaunchKernel(TIERCE__CU_FUNCTION function, unsigned int grid_x,
                                 unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                 unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_bytes, TIERCE__CU_STREAM stream,
                                 void **parameters, void **extra)
{
    TIERCE__CU_RESULT code = fake_begin("cuLaunchKernel", true);
    if (code != TIERCE__CU_SUCCESS)
        return fake_end(code);
    const struct kernel *kernel = function->kernel;
    bool copies = kernel == &kernels[COPIES];
    if (function->magic != MODULE_MAGIC || grid_x == 0 || grid_x > kernel->blocks_max ||
        grid_y != 1 || grid_z != 1 || block_x != kernel->threads || block_y != 1 || block_z != 1 ||
        shared_bytes != 0 || stream == NULL || extra != NULL) {
        fake_violation("cuLaunchKernel with invalid arguments: %u blocks of %u threads", grid_x,
                       block_x);
        return fake_end(TIERCE__CU_INVALID_VALUE);
    }
    if (kernel == &kernels[ROTATE])
        code = launch_rotation(stream, parameters[0], grid_x);
    else if (kernel == &kernels[DECODE])
        code = launch_decode(stream, parameters[0], grid_x);
    else if (kernel == &kernels[DISTANCES])
        code = launch_distances(stream, parameters[0], grid_x);
    else
        code = copies ? launch_copies(stream, parameters[0], grid_x)
                      : launch_spin(stream, parameters[0]);
    unsigned pause_us = copies ? launch_pause_us : 0;
    (void)fake_end(code);
    if (pause_us > 0)
        usleep(pause_us);
    return code;
}

void fake_launch_spoil(const struct fake_launch *launch)
{
    const struct tierce__launch *what = &launch->what;
    for (uint32_t i = 0; i < what->count; i++) {
        memset((void *)(uintptr_t)what->to[i], 0xDB, what->bytes);
        ((uint64_t *)(uintptr_t)what->sums)[i] = 0xDBDBDBDBDBDBDBDB;
    }
    fake_decode_spoil(&launch->decode);
}

void fake_launch_run(const struct fake_launch *launch)
{
    const struct tierce__launch *what = &launch->what;
    if (launch->spin.ns > 0) /* all blocks take the same time at the same time */
        tierce__spin(launch->spin, 0, 1);
    if (launch->rotate.items > 0) {
        for (unsigned i = 0; i < launch->blocks; i++)
            fake_rotate(&launch->rotate, i, launch->blocks);
        if (launch->flip == CUDA_FAKE_FLIP_BYTE)
            *(uint8_t *)(uintptr_t)launch->rotate.at ^= 0x40;
        return;
    }
    if (launch->distances.tokens > 0) {
        for (unsigned i = 0; i < launch->blocks; i++)
            fake_distances(&launch->distances, i, launch->blocks);
        if (launch->flip == CUDA_FAKE_FLIP_BYTE)
            *(uint8_t *)(uintptr_t)launch->distances.to ^= 0x40;
        return;
    }
    if (launch->decode.count > 0) {
        fake_decode_run(&launch->decode, launch->blocks, launch->flip);
        return;
    }
    for (unsigned i = 0; i < launch->blocks; i++)
        tierce__copy_sum(*what, i, launch->blocks);
    if (what->count == 0)
        return;
    if (launch->flip == CUDA_FAKE_FLIP_SUM)
        ((uint64_t *)(uintptr_t)what->sums)[what->count - 1] ^= 1u << 20;
    else if (launch->flip == CUDA_FAKE_FLIP_BYTE)
        ((uint8_t *)(uintptr_t)what->to[what->count - 1])[what->bytes - 1] ^= 0x40;
}
