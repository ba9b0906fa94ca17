/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_STORE_H
#define TIERCE_TESTS_SIM_STORE_H

#include "check_main.h"
#include "manager/meta/meta_store.h"
#include "test_random.h"

#include <errno.h>
#include <string.h>

/*
 * A meta store that outlives its locators, as a database outlives its clients: a store in memory or
 * RocksDB, kept open, behind calls that fail by chance: some before anything was written, some
 * after. It is fenced: who opened it with an older token than somebody else writes nothing.
 */

enum { SIM_SPACES = 8 };

/* One client's connection. */
struct sim_client {
    struct tierce__meta_store base;
    uint64_t token;
};

struct sim_space {
    struct tierce__meta_space base;
    struct tierce__meta_space *inner;
    const struct sim_client *client;
};

static struct {
    struct tierce__meta_store *inner;
    struct tierce__meta_space *spaces[SIM_SPACES]; /* by number */
    struct test_random random;
    uint32_t fail_permille;
    /* How often it might have failed, and which of them do; 0: by chance only. */
    uint64_t asked, fails_at, fails_until;
    uint64_t token; /* the highest that was seen */
    uint64_t refused;
} sim_store;

static inline bool sim_store_fails(void)
{
    sim_store.asked++;
    if (sim_store.asked >= sim_store.fails_at && sim_store.asked <= sim_store.fails_until)
        return true;
    return sim_store.fail_permille > 0 &&
           test_random_below(&sim_store.random, 1000) < sim_store.fail_permille;
}

static inline struct tierce__meta_space *sim_inner(struct tierce__meta_space *space)
{
    return ((struct sim_space *)space)->inner;
}

/* Whether the space's client is an old one. */
static inline bool sim_is_fenced(struct tierce__meta_space *space)
{
    return ((struct sim_space *)space)->client->token < sim_store.token;
}

static const struct tierce__meta_store_ops sim_store_ops;

static int sim_open(struct tierce__meta_store **out, const char *uri, char why[256])
{
    (void)uri;
    if (sim_store_fails()) {
        snprintf(why, 256, "by chance");
        return -EIO;
    }
    struct sim_client *client = calloc(1, sizeof(*client));
    client->base.ops = &sim_store_ops;
    *out = &client->base;
    return 0;
}

static void sim_close(struct tierce__meta_store *store)
{
    free(store);
}

static int sim_fence(struct tierce__meta_store *store, uint64_t token)
{
    if (token < sim_store.token)
        return TIERCE_E_REFUSED;
    ((struct sim_client *)store)->token = sim_store.token = token;
    return 0;
}

static int sim_space_open(struct tierce__meta_space **out, struct tierce__meta_store *store,
                          uint32_t number, const char *instance_id)
{
    ck_assert_uint_lt(number, SIM_SPACES);
    if (sim_store_fails())
        return -EIO;
    if (sim_store.spaces[number] == NULL)
        ck_assert_int_eq(sim_store.inner->ops->space_open(&sim_store.spaces[number],
                                                          sim_store.inner, number, instance_id),
                         0);
    struct sim_space *space = calloc(1, sizeof(*space));
    space->base.ops = &sim_store_ops;
    space->inner = sim_store.spaces[number];
    space->client = (const struct sim_client *)store;
    *out = &space->base;
    return 0;
}

static void sim_space_close(struct tierce__meta_space *space)
{
    free(space);
}

static int sim_space_drop(struct tierce__meta_space *space)
{
    return sim_store_fails() ? -EIO : sim_inner(space)->ops->space_drop(sim_inner(space));
}

static int sim_get(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                   struct tierce__arena *arena, struct tierce__record *records, bool *found)
{
    if (sim_store_fails())
        return TIERCE_E_DEADLINE;
    return sim_inner(space)->ops->get(sim_inner(space), keys, count, arena, records, found);
}

static int sim_write(struct tierce__meta_space *space, const struct tierce__meta_batch *batch)
{
    static const int before[] = {-ENOMEM, -EIO, TIERCE_E_DEADLINE};
    if (sim_is_fenced(space)) {
        sim_store.refused++;
        return TIERCE_E_REFUSED;
    }
    if (sim_store_fails())
        return before[test_random_below(&sim_store.random, 3)];
    int rc = sim_inner(space)->ops->write(sim_inner(space), batch);
    return rc == 0 && sim_store_fails() ? TIERCE_E_DEADLINE : rc;
}

static void sim_touch(struct tierce__meta_space *space, const int64_t *keys, size_t count,
                      const struct tierce__record_use *use)
{
    if (!sim_is_fenced(space))
        sim_inner(space)->ops->touch(sim_inner(space), keys, count, use);
}

static int sim_scan(struct tierce__meta_space *space, uint64_t *cursor, size_t limit, int64_t *keys,
                    size_t *count)
{
    return sim_store_fails()
               ? -EIO
               : sim_inner(space)->ops->scan(sim_inner(space), cursor, limit, keys, count);
}

static int sim_sample(struct tierce__meta_space *space, uint64_t *random, size_t count,
                      int64_t *keys, size_t *found)
{
    return sim_store_fails()
               ? -EIO
               : sim_inner(space)->ops->sample(sim_inner(space), random, count, keys, found);
}

static int sim_notes(struct tierce__meta_space *space, uint8_t kind,
                     int (*each)(void *arg, const struct tierce__meta_note *note), void *arg)
{
    return sim_store_fails() ? -EIO
                             : sim_inner(space)->ops->notes(sim_inner(space), kind, each, arg);
}

static int sim_note(struct tierce__meta_space *space, uint8_t kind, uint64_t number,
                    struct tierce__arena *arena, const void **value, size_t *bytes)
{
    return sim_store_fails()
               ? -EIO
               : sim_inner(space)->ops->note(sim_inner(space), kind, number, arena, value, bytes);
}

static int sim_counters(struct tierce__meta_space *space, int64_t out[TIERCE__META_COUNTERS])
{
    return sim_store_fails() ? -EIO : sim_inner(space)->ops->counters(sim_inner(space), out);
}

static uint64_t sim_memory(struct tierce__meta_space *space)
{
    struct tierce__meta_space *inner = sim_inner(space);
    return inner->ops->memory != NULL ? inner->ops->memory(inner) : 0;
}

static const struct tierce__meta_store_ops sim_store_ops = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .fence = sim_fence,
    .space_open = sim_space_open,
    .space_close = sim_space_close,
    .space_drop = sim_space_drop,
    .get = sim_get,
    .write = sim_write,
    .touch = sim_touch,
    .scan = sim_scan,
    .sample = sim_sample,
    .notes = sim_notes,
    .note = sim_note,
    .counters = sim_counters,
    .memory = sim_memory,
};

static inline const struct tierce__meta_store_ops *sim_find_store(const char *type, const char *uri)
{
    (void)type, (void)uri;
    return &sim_store_ops;
}

static inline void sim_store_begin(uint64_t seed, const struct tierce__meta_store_ops *inner,
                                   const char *uri)
{
    char why[256];
    memset(&sim_store, 0, sizeof(sim_store));
    sim_store.random.state = seed;
    ck_assert_int_eq(inner->open(&sim_store.inner, uri, why), 0);
}

static inline void sim_store_end(void)
{
    for (size_t i = 0; i < SIM_SPACES; i++) {
        if (sim_store.spaces[i] != NULL)
            sim_store.spaces[i]->ops->space_close(sim_store.spaces[i]);
    }
    sim_store.inner->ops->close(sim_store.inner);
}

#endif
