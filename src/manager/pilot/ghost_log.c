/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/ghost_log.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <string.h>

/* The words before the keys of an entry. */
enum { AT_TIME, AT_UNIT, AT_SIZES, AT_HEAD, HEAD_WORDS };
enum { COUNT_BITS = 32, MEMBER_BITS = 16 };

/* Two halves: when both are full, the older one is emptied. So entries need not be cut, and the log
 * holds at least half of its words. */
struct log_half {
    uint64_t *words;
    size_t used;
};

struct tierce__ghost_log {
    size_t room; /* of a half */
    struct log_half halves[2];
    unsigned newer; /* the half that is being filled */
};

static uint64_t word_of(double value)
{
    uint64_t word;
    memcpy(&word, &value, sizeof(word));
    return word;
}

static double double_of(uint64_t word)
{
    double value;
    memcpy(&value, &word, sizeof(value));
    return value;
}

static uint64_t pair_of(double one, double other)
{
    float pair[2] = {(float)one, (float)other};
    uint64_t word;
    memcpy(&word, pair, sizeof(word));
    return word;
}

int tierce__ghost_log_create(struct tierce__ghost_log **out, size_t words)
{
    TIERCE_ASSERT(words >= 2 * (TIERCE__GHOST_LOG_KEYS_MAX / 2 + HEAD_WORDS));
    struct tierce__ghost_log *log = tierce__calloc(1, sizeof(*log));
    if (log == NULL)
        return -ENOMEM;
    log->room = words / 2;
    *out = log;
    return 0;
}

void tierce__ghost_log_destroy(struct tierce__ghost_log *log)
{
    if (log == NULL)
        return;
    tierce__free(log->halves[0].words);
    tierce__free(log->halves[1].words);
    tierce__free(log);
}

/* Makes room in the half that is being filled, or empties the other one. */
static struct log_half *make_room(struct tierce__ghost_log *log, size_t words)
{
    struct log_half *half = &log->halves[log->newer];
    if (half->used + words > log->room) {
        log->newer = !log->newer;
        half = &log->halves[log->newer];
        half->used = 0;
    }
    if (half->words == NULL)
        half->words = tierce__alloc(log->room * sizeof(*half->words));
    return half->words != NULL ? half : NULL;
}

void tierce__ghost_log_add(struct tierce__ghost_log *log, const struct tierce__ghost_entry *entry)
{
    size_t most = log->room - HEAD_WORDS;
    most = most < TIERCE__GHOST_LOG_KEYS_MAX ? most : TIERCE__GHOST_LOG_KEYS_MAX;
    size_t count = entry->count < most ? entry->count : most;
    TIERCE_ASSERT(entry->member < 1u << MEMBER_BITS);
    struct log_half *half = make_room(log, HEAD_WORDS + count);
    if (half == NULL)
        return;
    uint64_t *words = half->words + half->used;
    words[AT_TIME] = (uint64_t)entry->time_us;
    words[AT_UNIT] = word_of(entry->unit_bytes);
    words[AT_SIZES] = pair_of(entry->key_bytes, entry->tokens);
    words[AT_HEAD] = count | (uint64_t)entry->member << COUNT_BITS |
                     (uint64_t)entry->kind << (COUNT_BITS + MEMBER_BITS);
    memcpy(words + HEAD_WORDS, entry->keys, count * sizeof(*words));
    half->used += HEAD_WORDS + count;
    TIERCE_ASSERT(half->used <= log->room);
}

void tierce__ghost_log_clear(struct tierce__ghost_log *log)
{
    log->halves[0].used = log->halves[1].used = 0;
}

int tierce__ghost_log_copy(struct tierce__ghost_log **out, const struct tierce__ghost_log *log)
{
    struct tierce__ghost_log *copy = NULL;
    int rc = tierce__ghost_log_create(&copy, 2 * log->room);
    for (unsigned i = 0; rc == 0 && i < 2; i++) {
        size_t used = log->halves[i].used;
        copy->halves[i].words = tierce__alloc((used + 1) * sizeof(uint64_t));
        copy->halves[i].used = used;
        if (copy->halves[i].words == NULL)
            rc = -ENOMEM;
        else if (used > 0)
            memcpy(copy->halves[i].words, log->halves[i].words, used * sizeof(uint64_t));
    }
    if (rc < 0) {
        tierce__ghost_log_destroy(copy);
        return rc;
    }
    copy->newer = log->newer;
    *out = copy;
    return 0;
}

bool tierce__ghost_log_next(const struct tierce__ghost_log *log, size_t *at,
                            struct tierce__ghost_entry *out)
{
    const struct log_half *older = &log->halves[!log->newer], *newer = &log->halves[log->newer];
    TIERCE_DASSERT(*at <= older->used + newer->used);
    if (*at == older->used + newer->used)
        return false;
    const uint64_t *words =
        *at < older->used ? older->words + *at : newer->words + (*at - older->used);
    uint64_t head = words[AT_HEAD];
    float sizes[2];
    memcpy(sizes, &words[AT_SIZES], sizeof(sizes));
    *out = (struct tierce__ghost_entry){
        .time_us = (int64_t)words[AT_TIME],
        .unit_bytes = double_of(words[AT_UNIT]),
        .key_bytes = (double)sizes[0],
        .tokens = (double)sizes[1],
        .member = (uint32_t)(head >> COUNT_BITS & ((1u << MEMBER_BITS) - 1)),
        .kind = (uint8_t)(head >> (COUNT_BITS + MEMBER_BITS)),
        .count = (uint32_t)head,
        .keys = words + HEAD_WORDS};
    *at += HEAD_WORDS + out->count;
    return true;
}
