/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that decodes blocks of the lossless codec (docs/inside/format/codec.md).
 * tools/build_kernels compiles it to decode.ptx; tests compile it as C (kernel_source.h).
 *
 * A thread block takes one block of the codec after another. A block has 64 coders, one for each
 * element of a group, and a thread for each coder. The coders read from one stream: where each of
 * them reads depends on how many before it read a byte in the same group. So a group has two steps,
 * and the second step of a group runs together with the first one of the next group:
 *
 *     step      the symbol of the coder, and its vote: whether it reads a byte, and whether its
 *               symbol is the escape
 *     finish    with all votes, the place of its bytes in the stream; then the element is written
 *
 * A body may be any bytes. Whatever they are, the kernel reads only the body and writes only the
 * decoded bytes: the symbols are checked first, and a group whose bytes exceed the stream is not
 * finished. The block is good if its stream and all coders have ended where the format requires.
 */
#include "core/device/kernels/kernel_source.h"
#include "core/device/kernels/decode.h"

enum {
    THREADS = TIERCE__DECODE_THREADS,
    SLOTS = 256,
    SYMBOLS_MAX = 16,
    HAS_ESCAPE = 0x80,
    STATE_BYTES = 2 * THREADS,
    END_STATE = 256,
    WORD_BYTES = 4,
};

/* A position behind every stream: the coder has needed bytes that do not exist. */
#define LOST 0xffffffffu

/* Each thread uses only its own. */
struct coder {
    uint32_t x;        /* the state */
    uint32_t at;       /* where the group begins in the body; equal in all coders */
    uint32_t exponent; /* of the symbol, unless it is the escape */
};

/* Where the parts of a body are. */
struct parts {
    uint32_t is_valid;
    uint32_t sets[2]; /* equal if there is one */
    uint32_t states, low, bits, stream;
    uint32_t groups;
};

/* Bit i is of thread i. */
struct votes {
    uint32_t refills[2], escapes[2];
};

struct shared {
    struct parts parts;
    /* For each slot: frequency, slot - the first slot of its symbol, exponent, and 1 for the
     * escape, a byte each. */
    uint32_t slots[2][SLOTS];
    struct coder coders[THREADS];
    struct votes votes[2]; /* of groups with an even and with an odd number */
};

#if defined(__CUDACC__)
/* All threads of a warp call it. */
TIERCE__DEVICE void vote(struct votes *votes, uint32_t t, uint32_t refills, uint32_t escapes)
{
    uint32_t a = __ballot_sync(0xffffffffu, refills), b = __ballot_sync(0xffffffffu, escapes);
    if (t % 32 == 0) {
        votes->refills[t / 32] = a;
        votes->escapes[t / 32] = b;
    }
}

TIERCE__DEVICE uint32_t ones(uint32_t word)
{
    return (uint32_t)__popc(word);
}
#else
/* The threads are a loop in ascending order. */
TIERCE__DEVICE void vote(struct votes *votes, uint32_t t, uint32_t refills, uint32_t escapes)
{
    if (t % 32 == 0)
        votes->refills[t / 32] = votes->escapes[t / 32] = 0;
    votes->refills[t / 32] |= (uint32_t)(refills != 0) << t % 32;
    votes->escapes[t / 32] |= (uint32_t)(escapes != 0) << t % 32;
}

TIERCE__DEVICE uint32_t ones(uint32_t word)
{
    return (uint32_t)__builtin_popcount(word);
}
#endif

TIERCE__DEVICE uint32_t all_of(const uint32_t votes[2])
{
    return ones(votes[0]) + ones(votes[1]);
}

TIERCE__DEVICE uint32_t has_voted(const uint32_t votes[2], uint32_t t)
{
    return votes[t / 32] >> t % 32 & 1;
}

/* How many threads before t have voted. */
TIERCE__DEVICE uint32_t before(const uint32_t votes[2], uint32_t t)
{
    uint32_t own = ones(votes[t / 32] & ((1u << t % 32) - 1));
    return t < 32 ? own : own + ones(votes[0]);
}

/* ---- the parts of a body ----------------------------------------------------------------------
 */

/* The length of the set of symbols at `at`, or 0 if it is invalid. */
TIERCE__DEVICE uint32_t check_set(const uint8_t *body, uint32_t bytes, uint32_t at, uint32_t mask)
{
    if (at >= bytes)
        return 0;
    uint32_t count = body[at] & ~(uint32_t)HAS_ESCAPE, length = 1 + 2 * count, sum = 0;
    if (count < 2 || count > SYMBOLS_MAX || length > bytes - at)
        return 0;
    TIERCE__ROLLED
    for (uint32_t i = 0; i < count; i++) {
        uint32_t exponent = body[at + 1 + i], frequency = body[at + 1 + count + i];
        uint32_t is_escape = (body[at] & HAS_ESCAPE) != 0 && i == count - 1;
        if (frequency == 0 || (exponent & ~mask) != 0 || (is_escape && exponent != 0))
            return 0;
        sum += frequency;
    }
    return sum == SLOTS ? length : 0;
}

TIERCE__DEVICE struct parts find_parts(const uint8_t *body,
                                       const struct tierce__decode_block *block,
                                       const struct tierce__split *split)
{
    struct parts parts = {0, {0, 0}, 0, 0, 0, 0, 0};
    uint32_t length = check_set(body, block->body_bytes, 0, split->mask), first = length;
    if (length == 0)
        return parts;
    if (block->period > 0) {
        parts.sets[1] = length;
        length = check_set(body, block->body_bytes, first, split->mask);
        if (length == 0)
            return parts;
        first += length;
    }
    parts.groups = (block->raw_bytes / split->bytes + THREADS - 1) / THREADS;
    parts.states = first;
    parts.low = first + STATE_BYTES;
    parts.bits = parts.low + parts.groups * THREADS * (split->bytes - 1u);
    parts.stream = parts.bits + parts.groups * 8 * split->bit_count;
    parts.is_valid = parts.stream <= block->body_bytes;
    return parts;
}

/* The entry of a slot in a set that was checked. */
TIERCE__DEVICE uint32_t slot_of(const uint8_t *set, uint32_t slot)
{
    uint32_t count = set[0] & ~(uint32_t)HAS_ESCAPE, i = 0, begin = 0;
    TIERCE__ROLLED
    for (; i + 1 < count && slot >= begin + set[1 + count + i]; i++)
        begin += set[1 + count + i];
    uint32_t is_escape = (set[0] & HAS_ESCAPE) != 0 && i == count - 1;
    return set[1 + count + i] | (slot - begin) << 8 | (uint32_t)set[1 + i] << 16 | is_escape << 24;
}

/* Prepares the coder and the slots of a thread. */
TIERCE__DEVICE void begin(struct shared *shared, const uint8_t *body, uint32_t t)
{
    const struct parts *parts = &shared->parts;
    const uint8_t *states = body + parts->states;
    struct coder *coder = &shared->coders[t];
    coder->x = states[t] | (uint32_t)states[THREADS + t] << 8;
    coder->at = parts->stream;
    coder->exponent = 0;
    TIERCE__ROLLED
    for (uint32_t i = t; i < 2 * SLOTS; i += THREADS)
        shared->slots[i / SLOTS][i % SLOTS] = slot_of(body + parts->sets[i / SLOTS], i % SLOTS);
}

/* ---- a group ----------------------------------------------------------------------------------
 */

TIERCE__DEVICE void step(struct shared *shared, uint32_t period, uint32_t g, uint32_t t)
{
    struct coder *coder = &shared->coders[t];
    uint32_t set = period > 0 ? g / period % 2 : 0;
    uint32_t entry = shared->slots[set][coder->x & 255];
    coder->x = (entry & 255) * (coder->x >> 8) + (entry >> 8 & 255);
    coder->exponent = entry >> 16 & 255;
    vote(&shared->votes[g % 2], t, coder->x < END_STATE, entry >> 24);
}

/* Writes element i of the block. */
TIERCE__DEVICE void write_element(const struct tierce__decode_block *block,
                                  const struct tierce__split *split, const struct parts *parts,
                                  const uint8_t *body, uint32_t i, uint32_t exponent)
{
    uint32_t top = exponent << split->shift, g = i / THREADS, t = i % THREADS;
    const uint8_t *bits = body + parts->bits + g * 8 * split->bit_count + t / 8;
    uint8_t *to = (uint8_t *)(uintptr_t)(block->to + (uint64_t)i * split->bytes);
    for (uint32_t k = 0; k < split->bit_count; k++)
        top |= (uint32_t)(bits[8 * k] >> t % 8 & 1) << split->bits[k];
    if (split->bytes == 1) {
        to[0] = (uint8_t)top;
        return;
    }
    uint32_t low = body[parts->low + i], word = top << 8 | low;
    if (block->element == TIERCE__ELEMENT_BF16)
        word = (low & 0x80) << 8 | top << 7 | (low & 0x7f);
    if (block->to % 2 == 0) {
        *(uint16_t *)(uintptr_t)to = (uint16_t)word;
    } else {
        to[0] = (uint8_t)word;
        to[1] = (uint8_t)(word >> 8);
    }
}

TIERCE__DEVICE void finish(struct shared *shared, const struct tierce__decode_block *block,
                           const struct tierce__split *split, const uint8_t *body, uint32_t g,
                           uint32_t t)
{
    struct coder *coder = &shared->coders[t];
    const struct votes *votes = &shared->votes[g % 2];
    uint32_t refills = all_of(votes->refills), escapes = all_of(votes->escapes), at = coder->at;
    if (at == LOST || refills + escapes > block->body_bytes - at) {
        coder->at = LOST;
        return;
    }
    if (has_voted(votes->refills, t))
        coder->x = coder->x << 8 | body[at + before(votes->refills, t)];
    if (has_voted(votes->escapes, t))
        coder->exponent = body[at + refills + before(votes->escapes, t)] & split->mask;
    coder->at = at + refills + escapes;
    uint32_t i = g * THREADS + t;
    if (i < block->raw_bytes / split->bytes)
        write_element(block, split, &shared->parts, body, i, coder->exponent);
}

/* ---- blocks -----------------------------------------------------------------------------------
 */

/* The part of a thread in a block that is stored. */
TIERCE__DEVICE void copy_stored(const struct tierce__decode_block *block, const uint8_t *body,
                                uint32_t t)
{
    uint8_t *to = (uint8_t *)(uintptr_t)block->to;
    uint32_t words =
        (block->to | (uintptr_t)body) % WORD_BYTES == 0 ? block->raw_bytes / WORD_BYTES : 0;
    TIERCE__ROLLED
    for (uint32_t i = t; i < words; i += THREADS)
        ((uint32_t *)(uintptr_t)to)[i] = ((const uint32_t *)(uintptr_t)body)[i];
    TIERCE__ROLLED
    for (uint32_t i = words * WORD_BYTES + t; i < block->raw_bytes; i += THREADS)
        to[i] = body[i];
}

TIERCE__KERNEL(tierce__decode, struct tierce__decode_launch, THREADS)
{
    TIERCE__SHARED struct shared shared;
    uint32_t *good = (uint32_t *)(uintptr_t)in.good;
    for (uint32_t b = TIERCE__BLOCK; b < in.count; b += TIERCE__BLOCKS) {
        const struct tierce__decode_block block = in.blocks[b];
        const struct tierce__split split = in.splits[block.element];
        const uint8_t *body = (const uint8_t *)(uintptr_t)(in.coded + block.from);
        TIERCE__THREADS(t, THREADS)
        {
            if (!block.is_coded)
                copy_stored(&block, body, t);
            else if (t == 0)
                shared.parts = find_parts(body, &block, &split);
        }
        TIERCE__BARRIER();
        uint32_t is_decoded = block.is_coded && shared.parts.is_valid;
        uint32_t groups = is_decoded ? shared.parts.groups : 0;
        if (is_decoded) {
            TIERCE__THREADS(t, THREADS)
            begin(&shared, body, t);
        }
        TIERCE__BARRIER();
        for (uint32_t g = 0; is_decoded && g <= groups; g++) {
            TIERCE__THREADS(t, THREADS)
            {
                const struct coder *coder = &shared.coders[t];
                if (g > 0)
                    finish(&shared, &block, &split, body, g - 1, t);
                if (g < groups)
                    step(&shared, block.period, g, t);
                else /* the verdict: whether this coder has not ended as it must */
                    vote(&shared.votes[g % 2], t,
                         coder->at != block.body_bytes || coder->x != END_STATE, 0);
            }
            TIERCE__BARRIER();
        }
        TIERCE__THREADS(t, THREADS)
        {
            if (t == 0)
                good[b] = !block.is_coded ||
                          (is_decoded && all_of(shared.votes[groups % 2].refills) == 0);
        }
        TIERCE__BARRIER();
    }
}
