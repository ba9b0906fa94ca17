/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/intern.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

#include <errno.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <stdbool.h>
#include <string.h>

/*
 * Arrays indexed by number hold the ids and, if used, the instances. A hash table with open
 * addressing and 8 bytes per cell holds 32 bits of each hash, so most cells are rejected without
 * reading the id.
 *
 * A repeated or extended chain has consecutive numbers. So the id after the last number is compared
 * first, and the table is searched only where chains diverge.
 *
 * The table is divided into segments by the first bits of the hash, and each segment grows
 * separately, so only one of them exists twice during a copy. A bucket is a cache line and is
 * checked as a whole. Buckets are in the order of the tags, so copying reads and writes
 * sequentially. A segment doubles when 4 of 5 cells are used: 10 to 20 bytes for each number, and 8
 * for its id.
 */

#define INTERN_MAGIC   0x4e52544eu
#define SEGMENT_BITS   4u
#define SEGMENTS       (1u << SEGMENT_BITS)
#define BUCKET_CELLS   8u
#define BITS_MAX       26u /* 2^4 segments of 2^26 buckets: 4 of 5 cells are over 2^32 */
#define AHEAD          32u /* ids whose buckets are prefetched */
#define HUGE_PAGE      ((size_t)2 << 20)
#define CHUNK_BITS     12u
#define CHUNK          (1u << CHUNK_BITS)
#define CHUNK_MASK     (CHUNK - 1)
#define CHUNK_ROOM_MIN 16u

struct bucket {
    uint32_t tags[BUCKET_CELLS]; /* of the hash; 0: empty, and so are the following ones */
    uint32_t numbers[BUCKET_CELLS];
};

struct intern_segment {
    struct bucket *buckets; /* [1 << bits] */
    uint32_t bits;
    uint32_t left; /* until it grows */
};

/* Arrays by number, in pieces that never move. */
struct intern_pieces {
    void **at; /* [room], of which the first `count` are there */
    uint32_t count, room;
};

struct tierce__intern {
    uint32_t magic;
    uint32_t count;
    struct intern_segment segments[SEGMENTS];
    struct intern_pieces ids;       /* uint64_t [CHUNK] each */
    struct intern_pieces instances; /* uint32_t [CHUNK] each; of numbers beyond: 0 */
};

__extension__ typedef unsigned __int128 product;

static inline uint32_t tag_of(uint32_t instance, uint64_t id)
{
    product x = (product)(id ^ TIERCE__MIX_GOLDEN) *
                (instance * 0xe7037ed1a0b428dcULL + TIERCE__MIX_SECOND);
    uint32_t tag = (uint32_t)(((uint64_t)(x >> 64) ^ (uint64_t)x) >> 32);
    return tag != 0 ? tag : 1;
}

/* ---- names of numbers ------------------------------------------------------------------------ */

static inline uint64_t *id_of(const struct tierce__intern *intern, uint32_t number)
{
    TIERCE_DASSERT(number >> CHUNK_BITS < intern->ids.count);
    return (uint64_t *)intern->ids.at[number >> CHUNK_BITS] + (number & CHUNK_MASK);
}

static inline uint32_t instance_of(const struct tierce__intern *intern, uint32_t number)
{
    uint32_t piece = number >> CHUNK_BITS;
    return piece < intern->instances.count
               ? ((const uint32_t *)intern->instances.at[piece])[number & CHUNK_MASK]
               : 0;
}

static inline bool stands_for(const struct tierce__intern *intern, uint32_t number,
                              uint32_t instance, uint64_t id)
{
    return *id_of(intern, number) == id && instance_of(intern, number) == instance;
}

/* Appends pieces of zeros until there are `count`. */
static int extend(struct intern_pieces *pieces, uint32_t count, size_t item_bytes)
{
    while (pieces->count < count) {
        if (TIERCE__GROW(pieces->at, pieces->room, (size_t)pieces->count + 1, CHUNK_ROOM_MIN) < 0)
            return -ENOMEM;
        void *piece = tierce__calloc(CHUNK, item_bytes);
        if (piece == NULL)
            return -ENOMEM;
        pieces->at[pieces->count++] = piece;
    }
    TIERCE_ASSERT(pieces->count >= count);
    return 0;
}

static void free_pieces(struct intern_pieces *pieces)
{
    for (uint32_t i = 0; i < pieces->count; i++)
        tierce__free(pieces->at[i]);
    tierce__free(pieces->at);
}

/* Room for the next number. */
static int make_number(struct tierce__intern *intern, uint32_t instance)
{
    uint32_t pieces = (intern->count >> CHUNK_BITS) + 1;
    if (intern->count == TIERCE__INTERN_NONE)
        return TIERCE_E_LIMIT;
    int rc = extend(&intern->ids, pieces, sizeof(uint64_t));
    if (rc == 0 && instance != 0)
        rc = extend(&intern->instances, pieces, sizeof(uint32_t));
    return rc;
}

static inline void append(struct tierce__intern *intern, uint32_t instance, uint64_t id)
{
    uint32_t number = intern->count++, piece = number >> CHUNK_BITS;
    *id_of(intern, number) = id;
    if (piece < intern->instances.count)
        ((uint32_t *)intern->instances.at[piece])[number & CHUNK_MASK] = instance;
}

/* ---- the table ------------------------------------------------------------------------------- */

static inline uint32_t segment_of(uint32_t tag)
{
    return tag >> (32 - SEGMENT_BITS);
}

/* The first bucket of a tag in its segment. */
static inline uint32_t home_of(uint32_t tag, uint32_t bits)
{
    return (uint32_t)((uint64_t)(tag << SEGMENT_BITS) << bits >> 32);
}

/* Bit i: the bucket's tag i is this one; bit 8 + i: cell i is empty. */
#ifdef __SSE2__
static inline uint32_t look(const struct bucket *bucket, uint32_t tag)
{
    const __m128i *tags = (const __m128i *)(const void *)bucket->tags;
    __m128i wanted = _mm_set1_epi32((int)tag), none = _mm_setzero_si128();
    __m128i same = _mm_packs_epi32(_mm_cmpeq_epi32(tags[0], wanted), //
                                   _mm_cmpeq_epi32(tags[1], wanted));
    __m128i empty = _mm_packs_epi32(_mm_cmpeq_epi32(tags[0], none), //
                                    _mm_cmpeq_epi32(tags[1], none));
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(same, empty));
}
#else
static inline uint32_t look(const struct bucket *bucket, uint32_t tag)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < BUCKET_CELLS; i++)
        seen |= (uint32_t)(bucket->tags[i] == tag) << i | (uint32_t)(bucket->tags[i] == 0)
                                                              << (BUCKET_CELLS + i);
    return seen;
}
#endif

struct intern_place {
    struct bucket *bucket;
    uint32_t cell;
};

/* The number of the id; NONE: *place is the empty cell where it belongs. The segment has one. */
static inline uint32_t seek(const struct tierce__intern *intern, uint32_t tag, uint32_t instance,
                            uint64_t id, struct intern_place *place)
{
    const struct intern_segment *segment = &intern->segments[segment_of(tag)];
    uint32_t last = (1u << segment->bits) - 1;
    for (uint32_t at = home_of(tag, segment->bits);; at = (at + 1) & last) {
        struct bucket *bucket = &segment->buckets[at];
        uint32_t seen = look(bucket, tag);
        for (uint32_t same = seen & 0xff; __builtin_expect(same != 0, 0); same &= same - 1) {
            uint32_t number = bucket->numbers[__builtin_ctz(same)];
            if (stands_for(intern, number, instance, id))
                return number;
        }
        if (__builtin_expect(seen >> BUCKET_CELLS != 0, 1)) {
            *place = (struct intern_place){.bucket = bucket,
                                           .cell = (uint32_t)__builtin_ctz(seen >> BUCKET_CELLS)};
            return TIERCE__INTERN_NONE;
        }
    }
}

static int make_buckets(struct intern_segment *segment)
{
    TIERCE_DASSERT(segment->bits <= BITS_MAX);
    size_t bytes = sizeof(struct bucket) << segment->bits;
    size_t align = bytes < HUGE_PAGE ? sizeof(struct bucket) : HUGE_PAGE;
    segment->buckets = tierce__alloc_aligned(align, bytes);
    if (segment->buckets == NULL)
        return -ENOMEM;
    tierce__advise_huge(segment->buckets, bytes);
    memset(segment->buckets, 0, bytes);
    segment->left = ((uint32_t)BUCKET_CELLS << segment->bits) / 5 * 4;
    return 0;
}

static int grow(struct intern_segment *segment, uint32_t bits)
{
    struct intern_segment grown = {.bits = bits};
    TIERCE_ASSERT(bits > segment->bits && bits <= BITS_MAX);
    uint8_t *taken = tierce__calloc((size_t)1 << bits, sizeof(*taken)); /* cells of a bucket */
    if (taken == NULL || make_buckets(&grown) < 0) {
        tierce__free(taken);
        return -ENOMEM;
    }
    uint32_t last = (1u << bits) - 1;
    for (uint32_t i = 0; i < 1u << segment->bits; i++) {
        const struct bucket *bucket = &segment->buckets[i];
        for (uint32_t k = 0; k < BUCKET_CELLS && bucket->tags[k] != 0; k++) {
            uint32_t at = home_of(bucket->tags[k], bits);
            while (taken[at] == BUCKET_CELLS)
                at = (at + 1) & last;
            grown.buckets[at].tags[taken[at]] = bucket->tags[k];
            grown.buckets[at].numbers[taken[at]++] = bucket->numbers[k];
            TIERCE_DASSERT(grown.left > 0);
            grown.left--;
        }
    }
    tierce__free(taken);
    tierce__free(segment->buckets);
    *segment = grown;
    return 0;
}

/* The rare case: adds a missing id. */
static __attribute__((noinline)) int make_room(struct tierce__intern *intern, uint32_t tag,
                                               uint32_t instance, uint64_t id,
                                               struct intern_place *place)
{
    struct intern_segment *segment = &intern->segments[segment_of(tag)];
    if (segment->left == 0) {
        int rc = segment->bits < BITS_MAX ? grow(segment, segment->bits + 1) : TIERCE_E_LIMIT;
        if (rc < 0)
            return rc;
        (void)seek(intern, tag, instance, id, place);
    }
    TIERCE_DASSERT(segment->left > 0);
    return make_number(intern, instance);
}

static inline int number_one(struct tierce__intern *intern, uint32_t tag, uint32_t instance,
                             uint64_t id, uint32_t *out)
{
    struct intern_place place;
    struct intern_segment *segment = &intern->segments[segment_of(tag)];
    *out = seek(intern, tag, instance, id, &place);
    if (*out != TIERCE__INTERN_NONE)
        return 0;
    if (segment->left == 0 || (intern->count & CHUNK_MASK) == 0 || instance != 0) {
        int rc = make_room(intern, tag, instance, id, &place);
        if (rc < 0)
            return rc;
    }
    TIERCE_DASSERT(segment->left > 0 && place.bucket->tags[place.cell] == 0);
    place.bucket->tags[place.cell] = tag;
    place.bucket->numbers[place.cell] = *out = intern->count;
    segment->left--;
    append(intern, instance, id);
    return 0;
}

/* Always inline: gcc 12 treats a function that only prefetches as having no effect. */
static inline __attribute__((always_inline)) void prefetch(const struct tierce__intern *intern,
                                                           uint32_t tag)
{
    const struct intern_segment *segment = &intern->segments[segment_of(tag)];
    __builtin_prefetch(&segment->buckets[home_of(tag, segment->bits)], 1);
}

int tierce__intern_reserve(struct tierce__intern *intern, uint32_t count)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    uint32_t bits = 0;
    /* Segments get different shares; slightly more than the mean is enough for nearly all. */
    while (bits < BITS_MAX && ((uint64_t)BUCKET_CELLS << bits) / 5 * 4 * SEGMENTS < count)
        bits++;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        if (intern->segments[i].bits < bits && grow(&intern->segments[i], bits) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* ---- chains ---------------------------------------------------------------------------------- */

int tierce__intern_chain(struct tierce__intern *intern, uint32_t instance, const uint64_t *ids,
                         size_t count, uint32_t *out)
{
    uint32_t tags[AHEAD], next = TIERCE__INTERN_NONE; /* the number after the last one */
    size_t fetched = 0;
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    for (size_t i = 0; i < count; i++) {
        for (; fetched < count && fetched < i + AHEAD; fetched++) {
            tags[fetched % AHEAD] = tag_of(instance, ids[fetched]);
            prefetch(intern, tags[fetched % AHEAD]);
        }
        if (next < intern->count && stands_for(intern, next, instance, ids[i])) {
            out[i] = next++;
            continue;
        }
        int rc = number_one(intern, tags[i % AHEAD], instance, ids[i], &out[i]);
        if (rc < 0)
            return rc;
        next = out[i] + 1;
        TIERCE_DASSERT(out[i] < intern->count);
    }
    return 0;
}

/* ---- the rest -------------------------------------------------------------------------------- */

int tierce__intern_create(struct tierce__intern **out)
{
    struct tierce__intern *intern = tierce__calloc(1, sizeof(*intern));
    if (intern == NULL)
        return -ENOMEM;
    intern->magic = INTERN_MAGIC;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        if (make_buckets(&intern->segments[i]) < 0) {
            tierce__intern_destroy(intern);
            return -ENOMEM;
        }
    }
    *out = intern;
    return 0;
}

void tierce__intern_destroy(struct tierce__intern *intern)
{
    if (intern == NULL)
        return;
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        tierce__free(intern->segments[i].buckets);
    free_pieces(&intern->ids);
    free_pieces(&intern->instances);
    intern->magic = 0;
    tierce__free(intern);
}

int tierce__intern_one(struct tierce__intern *intern, uint32_t instance, uint64_t id, uint32_t *out)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    return number_one(intern, tag_of(instance, id), instance, id, out);
}

uint32_t tierce__intern_find(const struct tierce__intern *intern, uint32_t instance, uint64_t id)
{
    struct intern_place place;
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    return seek(intern, tag_of(instance, id), instance, id, &place);
}

uint32_t tierce__intern_count(const struct tierce__intern *intern)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    return intern->count;
}

uint64_t tierce__intern_bytes(const struct tierce__intern *intern)
{
    TIERCE_CHECK_MAGIC(intern, INTERN_MAGIC);
    uint64_t bytes = sizeof(*intern) + (intern->ids.room + intern->instances.room) * sizeof(void *);
    bytes += (uint64_t)intern->ids.count * CHUNK * sizeof(uint64_t);
    bytes += (uint64_t)intern->instances.count * CHUNK * sizeof(uint32_t);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        bytes += sizeof(struct bucket) << intern->segments[i].bits;
    return bytes;
}
