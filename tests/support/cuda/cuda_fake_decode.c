/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that decodes, compiled as C: in a file of its own, because kernels use the same names
 * for their constants. */
#include "cuda_fake_private.h"

#include <string.h>

#include "core/device/kernels/decode.cu"

static bool is_sane(const struct tierce__decode_launch *what)
{
    bool sane = what->count > 0 && what->count <= TIERCE__DECODE_BLOCKS;
    for (uint32_t i = 0; sane && i < what->count; i++) {
        const struct tierce__decode_block *block = &what->blocks[i];
        sane = block->raw_bytes > 0 && block->raw_bytes <= 65536 &&
               block->body_bytes <= block->raw_bytes && block->element < TIERCE__ELEMENTS &&
               block->from % TIERCE__DECODE_ALIGN == 0;
    }
    return sane;
}

static size_t coded_bytes(const struct tierce__decode_launch *what)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < what->count; i++) {
        size_t end = (size_t)what->blocks[i].from + what->blocks[i].body_bytes;
        bytes = end > bytes ? end : bytes;
    }
    return bytes;
}

bool fake_decode_translate(struct tierce__decode_launch *to, const struct tierce__decode_launch *in)
{
    *to = *in;
    if (!is_sane(in)) {
        fake_violation("cuLaunchKernel of %u blocks to decode", in->count);
        return false;
    }
    to->coded = (uintptr_t)fake_kernel_memory(in->coded, coded_bytes(in));
    to->good = (uintptr_t)fake_kernel_memory(in->good, in->count * sizeof(uint32_t));
    bool known = to->coded != 0 && to->good != 0;
    for (uint32_t i = 0; i < in->count && known; i++) {
        to->blocks[i].to = (uintptr_t)fake_kernel_memory(in->blocks[i].to, in->blocks[i].raw_bytes);
        known = to->blocks[i].to != 0;
    }
    return known;
}

bool fake_decode_access(const struct fake_clock *clock, unsigned actor,
                        const struct tierce__decode_launch *device)
{
    const char *what = "the decoding kernel";
    bool ordered =
        fake_access(clock, actor, (uintptr_t)device->coded, coded_bytes(device), false, what) &
        fake_access(clock, actor, (uintptr_t)device->good, device->count * sizeof(uint32_t), true,
                    what);
    for (uint32_t i = 0; i < device->count; i++)
        ordered &= fake_access(clock, actor, (uintptr_t)device->blocks[i].to,
                               device->blocks[i].raw_bytes, true, what);
    return ordered;
}

void fake_decode_spoil(const struct tierce__decode_launch *what)
{
    for (uint32_t i = 0; i < what->count; i++) {
        memset((void *)(uintptr_t)what->blocks[i].to, 0xDB, what->blocks[i].raw_bytes);
        ((uint32_t *)(uintptr_t)what->good)[i] = 0xDBDBDBDB;
    }
}

void fake_decode_run(const struct tierce__decode_launch *what, uint32_t blocks,
                     enum cuda_fake_flip flip)
{
    for (uint32_t i = 0; i < blocks; i++)
        tierce__decode(*what, i, blocks);
    const struct tierce__decode_block *last = &what->blocks[what->count - 1];
    if (flip == CUDA_FAKE_FLIP_DECODED)
        ((uint8_t *)(uintptr_t)last->to)[last->raw_bytes - 1] ^= 0x40;
    else if (flip == CUDA_FAKE_FLIP_VERDICT)
        ((uint32_t *)(uintptr_t)what->good)[what->count - 1] ^= 1;
}
