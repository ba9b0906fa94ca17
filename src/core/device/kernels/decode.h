/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KERNEL_DECODE_H
#define TIERCE_KERNEL_DECODE_H

#include <stddef.h>
#include <stdint.h>

#include "core/codec/element.h"
#include "core/codec/split.h"

/*
 * One launch of the kernel in decode.cu: decodes blocks of the lossless codec. Host, device and
 * tests share this description; the driver copies it when the kernel is launched. All addresses are
 * valid on the device. The host has read the headers of the blocks (core/codec/lossless_blocks.h),
 * so the lengths here are right; the bodies may be any bytes.
 */

enum {
    TIERCE__DECODE_THREADS = 64, /* one for each coder of a block */
    TIERCE__DECODE_BLOCKS = 160, /* the driver accepts 4,096 bytes of parameters */
    TIERCE__DECODE_ALIGN = 16,   /* of bodies */
};

#define TIERCE__DECODE_KERNEL "tierce__decode"

struct tierce__decode_block {
    uint64_t to;         /* [raw_bytes]; need not be aligned */
    uint32_t from;       /* where the body begins in the coded bytes */
    uint32_t body_bytes; /* as in struct tierce__lossless_block */
    uint32_t raw_bytes;
    uint16_t period;
    uint8_t element;
    uint8_t is_coded;
};

struct tierce__decode_launch {
    uint64_t coded; /* the bodies */
    uint64_t good;  /* address of uint32_t[count]: becomes 1 if a block was decoded, else 0 */
    uint32_t count; /* at most TIERCE__DECODE_BLOCKS */
    struct tierce__split splits[TIERCE__ELEMENTS];
    struct tierce__decode_block blocks[TIERCE__DECODE_BLOCKS];
};

/* decode.ptx, NUL-terminated: the driver compiles it for its device. */
extern const unsigned char tierce__decode_ptx[];
extern const size_t tierce__decode_ptx_size;

#endif
