/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/policy.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Replays traces of block chains through every policy of this build that a golden table names,
 * and compares the hits of each row. A request looks its blocks up on the state at its start
 * (`prefix`: the leading ones that are there, `any`: all that are), then uses them one at a time
 * in the order of the row; `stream` counts what is there at that moment. Blocks have size one, an
 * insertion into a full cache evicts one first.
 *
 * Rows without an order are of policies that keep a prefix for its suffix: a request holds what it
 * finds and what it stores until its end, stores from the first block on, and stops at the first
 * for which there is no room.
 *
 * Needs TIERCE_TEST_DATA with the folders `golden` and `traces`.
 */

enum { REQUESTS_MAX = 20000, BLOCKS_MAX = 300000, SKIPPED = 77 };

static uint32_t blocks[BLOCKS_MAX];         /* of all requests, one after the other */
static uint32_t request_ends[REQUESTS_MAX]; /* index in `blocks` */
static uint32_t request_count, block_count;

static FILE *open_data(const char *folder, const char *name, const char *end)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s/%s%s", getenv("TIERCE_TEST_DATA"), folder, name, end);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        printf("cannot open %s\n", path);
    return file;
}

/* Reads the number lists after "hash_ids" and checks that time does not run backwards. */
static bool read_requests(FILE *file)
{
    static char line[1 << 16];
    double before = 0;
    request_count = block_count = 0;
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
            blocks[block_count] = (uint32_t)strtoul(at, &end, 10);
            if (end == at || blocks[block_count] >= BLOCKS_MAX)
                return false;
            block_count++;
            at = end + strspn(end, ", ");
        }
        request_ends[request_count++] = block_count;
    }
    return request_count > 0 && block_count < BLOCKS_MAX;
}

static bool read_trace(const char *name)
{
    static char read_last[64];
    if (strcmp(read_last, name) == 0)
        return true;
    FILE *file = open_data("traces", name, ".jsonl");
    bool good = file != NULL && read_requests(file);
    if (file != NULL)
        fclose(file);
    snprintf(read_last, sizeof(read_last), "%s", good ? name : "");
    return good;
}

struct cache {
    const struct tierce__policy_ops *ops;
    struct tierce__policy *policy;
    uint32_t slot_of[BLOCKS_MAX]; /* slot + 1 of a block, 0 for none */
    uint32_t *block_in;           /* [capacity] */
    uint32_t capacity;
    uint32_t count;
    uint64_t now;
};

struct hits {
    uint64_t prefix, any, stream;
};

/* Stores a block that is not there; false if nothing can be evicted for it. */
static bool store_block(struct cache *cache, uint32_t block, uint32_t parent)
{
    struct tierce__policy_entry entry = {
        .key = block, .bytes = 1, .now = cache->now, .parent = parent};
    uint32_t slot = cache->count;
    tierce__policy_expect(cache->policy, &entry);
    if (cache->count == cache->capacity) {
        if (!cache->ops->victim(cache->policy, cache->now, &slot))
            return false;
        cache->ops->remove(cache->policy, slot, true);
        cache->slot_of[cache->block_in[slot]] = 0;
        cache->count--;
    }
    cache->ops->insert(cache->policy, slot, &entry);
    cache->block_in[slot] = block;
    cache->slot_of[block] = slot + 1;
    cache->count++;
    return true;
}

static void look_up(const struct cache *cache, const uint32_t *ids, uint32_t count,
                    struct hits *hits)
{
    bool prefix = true;
    for (uint32_t i = 0; i < count; i++) {
        bool there = cache->slot_of[ids[i]] != 0;
        prefix = prefix && there;
        hits->prefix += prefix;
        hits->any += there;
    }
}

static void use_each(struct cache *cache, const uint32_t *ids, uint32_t count, bool backwards,
                     struct hits *hits)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block = ids[backwards ? count - 1 - i : i];
        cache->now++;
        if (cache->slot_of[block] != 0) {
            cache->ops->touch(cache->policy, cache->slot_of[block] - 1, cache->now);
            hits->stream++;
        } else if (!store_block(cache, block, TIERCE__NO_SLOT)) {
            abort();
        }
    }
}

static void use_chain(struct cache *cache, const uint32_t *ids, uint32_t count)
{
    const struct tierce__policy_ops *ops = cache->ops;
    uint32_t stored = count, parent = TIERCE__NO_SLOT;
    cache->now++;
    for (uint32_t i = count; i-- > 0;) {
        if (cache->slot_of[ids[i]] != 0) {
            ops->touch(cache->policy, cache->slot_of[ids[i]] - 1, cache->now);
            ops->set_evictable(cache->policy, cache->slot_of[ids[i]] - 1, false);
        }
    }
    for (uint32_t i = 0; i < count && i < stored; i++) {
        if (cache->slot_of[ids[i]] == 0) {
            if (!store_block(cache, ids[i], parent))
                stored = i;
            else
                ops->set_evictable(cache->policy, cache->slot_of[ids[i]] - 1, false);
        }
        parent = cache->slot_of[ids[i]] - 1;
    }
    for (uint32_t i = 0; i < stored; i++)
        ops->set_evictable(cache->policy, cache->slot_of[ids[i]] - 1, true);
}

static struct hits replay(struct cache *cache, const char *order)
{
    struct hits hits = {0};
    for (uint32_t r = 0; r < request_count; r++) {
        uint32_t from = r > 0 ? request_ends[r - 1] : 0, count = request_ends[r] - from;
        look_up(cache, blocks + from, count, &hits);
        if (strcmp(order, "-") == 0)
            use_chain(cache, blocks + from, count);
        else
            use_each(cache, blocks + from, count, strcmp(order, "rev") == 0, &hits);
    }
    return hits;
}

static struct hits hits_of(const struct tierce__policy_ops *ops, const char *order,
                           uint32_t capacity)
{
    struct cache *cache = calloc(1, sizeof(*cache));
    struct tierce__policy_opts opts = {
        .size = sizeof(opts), .slot_count = capacity, .capacity = capacity};
    if (cache == NULL || ops->create(&cache->policy, &opts) < 0)
        abort();
    cache->ops = ops;
    cache->capacity = capacity;
    cache->block_in = calloc(capacity, sizeof(uint32_t));
    struct hits hits = replay(cache, order);
    ops->destroy(cache->policy);
    free(cache->block_in);
    free(cache);
    return hits;
}

struct row {
    char trace[64], policy[32], order[8], match[8];
    unsigned capacity, requests, blocks;
    unsigned long long hits;
};

/* The rows of one replay follow each other. */
static uint64_t hits_of_row(const struct tierce__policy_ops *ops, const struct row *row)
{
    static struct row last;
    static struct hits hits;
    if (strcmp(last.trace, row->trace) != 0 || strcmp(last.policy, row->policy) != 0 ||
        strcmp(last.order, row->order) != 0 || last.capacity != row->capacity)
        hits = hits_of(ops, row->order, row->capacity);
    last = *row;
    return strcmp(row->match, "prefix") == 0 ? hits.prefix
           : strcmp(row->match, "any") == 0  ? hits.any
                                             : hits.stream;
}

/* Compares every row whose policy this build has. */
static bool compare_table(const char *name)
{
    char line[512];
    unsigned rows = 0, differ = 0;
    FILE *file = open_data("golden", name, ".csv");
    if (file == NULL)
        return false;
    while (fgets(line, sizeof(line), file) != NULL) {
        struct row row;
        if (sscanf(line, "%63[^,],%31[^,],%7[^,],%7[^,],%u,%u,%u,%llu,", row.trace, row.policy,
                   row.order, row.match, &row.capacity, &row.requests, &row.blocks, &row.hits) != 8)
            continue; /* the head, and what has no capacity */
        const struct tierce__policy_ops *ops = tierce__policy_find(row.policy);
        if (ops == NULL)
            continue;
        if (!read_trace(row.trace))
            break;
        uint64_t got = hits_of_row(ops, &row);
        if (got != row.hits || row.requests != request_count || row.blocks != block_count) {
            printf("%s %s %s %s %u: %llu hits, expected %llu\n", row.trace, row.policy, row.order,
                   row.match, row.capacity, (unsigned long long)got, row.hits);
            differ++;
        }
        rows++;
    }
    bool good = feof(file) != 0 && rows > 0 && differ == 0;
    fclose(file);
    printf("%s: %u rows, %u differ\n", name, rows, differ);
    return good;
}

int main(void)
{
    if (getenv("TIERCE_TEST_DATA") == NULL)
        return SKIPPED;
    bool small = compare_table("policy_small_expected");
    bool large = compare_table("optimizer_expected");
    return small && large ? EXIT_SUCCESS : EXIT_FAILURE;
}
