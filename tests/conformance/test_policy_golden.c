/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/policy.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Replays a trace of block chains through every policy of this build that the golden table names,
 * and compares the hits of each row. A request looks its blocks up on the state at its start
 * (`prefix`: the leading ones that are there, `any`: all that are), then uses them one at a time
 * in the order of the row; `stream` counts what is there at that moment. Blocks have size one, an
 * insertion into a full cache evicts one first.
 *
 * Needs TIERCE_TEST_DATA: golden/policy_small_expected.csv and traces/shifting_small.jsonl.
 */

enum { REQUESTS_MAX = 1000, BLOCKS_MAX = 10000, SKIPPED = 77 };

static uint32_t blocks[BLOCKS_MAX];         /* of all requests, one after the other */
static uint32_t request_ends[REQUESTS_MAX]; /* index in `blocks` */
static uint32_t request_count, block_count;

static FILE *open_data(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", getenv("TIERCE_TEST_DATA"), name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        printf("cannot open %s\n", path);
    return file;
}

/* Reads the number lists after "hash_ids" and checks that time does not run backwards. */
static bool read_trace(FILE *file)
{
    static char line[1 << 16];
    double before = 0;
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *at = strstr(line, "\"hash_ids\": ["), *time = strstr(line, "\"timestamp\": ");
        if (at == NULL || time == NULL || request_count == REQUESTS_MAX)
            return false;
        double now = strtod(time + strlen("\"timestamp\": "), NULL);
        if (now < before)
            return false;
        before = now;
        at += strlen("\"hash_ids\": [");
        while (*at != ']' && block_count < BLOCKS_MAX) {
            char *end;
            blocks[block_count++] = (uint32_t)strtoul(at, &end, 10);
            if (end == at)
                return false;
            at = end + strspn(end, ", ");
        }
        request_ends[request_count++] = block_count;
    }
    return request_count > 0 && block_count < BLOCKS_MAX;
}

struct cache {
    struct tierce__policy *policy;
    uint32_t slot_of[BLOCKS_MAX]; /* slot + 1 of a block, 0 for none */
    uint32_t *block_in;           /* [capacity] */
    uint32_t capacity;
    uint32_t count;
    uint64_t now;
};

/* Uses one block; returns whether it was there. */
static bool use_block(struct cache *cache, uint32_t block)
{
    const struct tierce__policy_ops *ops = cache->policy->ops;
    cache->now++;
    if (cache->slot_of[block] != 0) {
        ops->touch(cache->policy, cache->slot_of[block] - 1, cache->now);
        return true;
    }
    uint32_t slot = cache->count;
    if (cache->count < cache->capacity) {
        cache->count++;
    } else {
        if (!ops->victim(cache->policy, cache->now, &slot))
            abort();
        ops->remove(cache->policy, slot, true);
        cache->slot_of[cache->block_in[slot]] = 0;
    }
    ops->insert(cache->policy, slot,
                &(struct tierce__policy_entry){
                    .key = block, .bytes = 1, .now = cache->now, .parent = TIERCE__NO_SLOT});
    cache->block_in[slot] = block;
    cache->slot_of[block] = slot + 1;
    return false;
}

static uint64_t look_up(const struct cache *cache, const uint32_t *ids, uint32_t count,
                        const char *match)
{
    uint64_t hits = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (cache->slot_of[ids[i]] != 0)
            hits++;
        else if (strcmp(match, "prefix") == 0)
            break;
    }
    return strcmp(match, "stream") == 0 ? 0 : hits;
}

static uint64_t replay(struct cache *cache, const char *order, const char *match)
{
    uint64_t hits = 0;
    for (uint32_t r = 0; r < request_count; r++) {
        uint32_t from = r > 0 ? request_ends[r - 1] : 0, count = request_ends[r] - from;
        hits += look_up(cache, blocks + from, count, match);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t at = strcmp(order, "rev") == 0 ? count - 1 - i : i;
            bool there = use_block(cache, blocks[from + at]);
            hits += there && strcmp(match, "stream") == 0;
        }
    }
    return hits;
}

static uint64_t hits_of(const struct tierce__policy_ops *ops, const char *order, const char *match,
                        uint32_t capacity)
{
    struct cache *cache = calloc(1, sizeof(*cache));
    struct tierce__policy_opts opts = {
        .size = sizeof(opts), .slot_count = capacity, .capacity = capacity};
    if (cache == NULL || ops->create(&cache->policy, &opts) < 0)
        abort();
    cache->capacity = capacity;
    cache->block_in = calloc(capacity, sizeof(uint32_t));
    uint64_t hits = replay(cache, order, match);
    ops->destroy(cache->policy);
    free(cache->block_in);
    free(cache);
    return hits;
}

/* Compares every row whose policy this build has. Returns rows that differ, or -1 for none read. */
static int compare_table(FILE *file)
{
    char line[512], policy[32], order[8], match[8];
    unsigned capacity, requests, count, rows = 0;
    unsigned long long want;
    int differ = 0;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "shifting_small,%31[^,],%7[^,],%7[^,],%u,%u,%u,%llu,", policy, order,
                   match, &capacity, &requests, &count, &want) != 7)
            continue; /* the head, and policies without an order */
        const struct tierce__policy_ops *ops = tierce__policy_find(policy);
        if (ops == NULL)
            continue;
        uint64_t got = hits_of(ops, order, match, capacity);
        if (got != want || requests != request_count || count != block_count) {
            printf("%s %s %s %u: %llu hits, expected %llu\n", policy, order, match, capacity,
                   (unsigned long long)got, want);
            differ++;
        }
        rows++;
    }
    printf("%u rows, %d differ\n", rows, differ);
    return rows >= 24 ? differ : -1;
}

int main(void)
{
    if (getenv("TIERCE_TEST_DATA") == NULL)
        return SKIPPED;
    FILE *trace = open_data("traces/shifting_small.jsonl");
    FILE *table = open_data("golden/policy_small_expected.csv");
    bool good = trace != NULL && table != NULL && read_trace(trace) && compare_table(table) == 0;
    if (trace != NULL)
        fclose(trace);
    if (table != NULL)
        fclose(table);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
