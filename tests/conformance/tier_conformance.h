/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_TIER_CONFORMANCE_H
#define TIERCE_TESTS_TIER_CONFORMANCE_H

#include "check_main.h"
#include "store/tier.h"

/*
 * The contract of every tier, on any medium. A test program names its tiers and runs them:
 *
 *     static const struct tier_factory factories[] = {{.name = "memory", .open = open_memory}};
 *     int main(void) { return tier_conformance_main(factories, 1); }
 *
 * Each test opens a fresh tier in a process of its own.
 */

struct tier_factory {
    const char *name;
    /*
     * Opens an empty tier with the policy LRU and a cap of 4 to 24 MiB that holds chunks in a pool
     * of TIER_TEST_POOL_BYTES and takes every put (no admission rule). 0 or an error, which fails
     * the test.
     */
    int (*open)(struct tierce__tier **out, struct tierce__pool *pool, void *ctx);
    /* Cleans up behind a tier that was closed (its folder), or NULL. */
    void (*cleanup)(void *ctx);
    /* After open: the id of a namespace that keys may carry; NULL for 1. `which` is 0 or 1: two
     * different namespaces. */
    uint32_t (*namespace_id)(void *ctx, unsigned which);
    void *ctx;
};

#define TIER_TEST_POOL_BYTES (32u << 20)

/* Runs all tests over all factories. Returns the exit status of the program. */
int tier_conformance_main(const struct tier_factory *factories, size_t count);

/* ---- between the files of the suite, and for tests of one tier ------------------------------- */

/* The tier under test, opened by tier_test_start for factory `index`. */
struct tier_test {
    const struct tier_factory *factory;
    struct tierce__pool *pool;
    struct tierce__tier *tier;
    bool lends;
    bool shared; /* TIERCE__TIER_SHARED: it counts and orders nothing */
    bool whole;  /* TIERCE__TIER_WHOLE */
    uint32_t ns;
    uint32_t ns_other;
};

extern struct tier_test tier_test;

void tier_test_use(const struct tier_factory *factories);
void tier_test_start(int index);
/* Closes the tier; fails if it did not let go of a buffer. */
void tier_test_end(void);

/* A request that can be waited for. */
struct tier_call {
    struct tierce__store_req req;
    struct tierce__key key;
    struct tierce__key parent;
    uint8_t first_block[TIERCE_HASH_BYTES];
    _Atomic int done_count;
};

/* Zeroes the call and makes it a request of that kind for key number `n`, not submitted. */
void tier_call_init(struct tier_call *call, enum tierce__store_op op, uint64_t n);
void tier_call_submit(struct tier_call *call);
/* Waits for done; returns the status. False answers: done twice, or not in 30 s, fails. */
int tier_call_wait(struct tier_call *call);
/* Submit and wait. */
int tier_call_run(struct tier_call *call);

struct tierce__key tier_test_key(uint64_t n);

/* A buffer whose bytes follow from key number, version and size; NULL if the pool is full even
 * after evicting. Its reference is the caller's. */
struct tierce__buf *tier_test_object(uint64_t n, uint32_t version, uint64_t bytes);
void tier_test_fill(struct tierce__buf *buf, uint64_t n, uint32_t version);
/* Whether bytes [from, to) of the buffer are those of the object. */
bool tier_test_is_object(const struct tierce__buf *buf, uint64_t n, uint32_t version, uint64_t from,
                         uint64_t to);
/* The version that an object names; 0 for one that is not an object of key `n`. */
uint32_t tier_test_version(const struct tierce__buf *buf, uint64_t n);

/* Whole operations. `put` makes, fills and releases the buffer. */
int tier_test_put(uint64_t n, uint32_t version, uint64_t bytes);
/* *version = that of the bytes got, all of which are checked. Returns the status. */
int tier_test_get(uint64_t n, uint64_t bytes, uint32_t *version);
int tier_test_delete(uint64_t n);
size_t tier_test_lookup(uint64_t first, size_t count);
struct tierce__tier_stats tier_test_stats(void);

/* Uses of `count` keys at one time, the first time for their request. */
void tier_test_touch(const struct tierce__key *keys, size_t count);

/* The tests of the files tier_conformance_*.c. */
void tier_conformance_add_threads(TCase *tcase, int index);
void tier_conformance_add_watch(TCase *tcase, int index);
void tier_conformance_add_siblings(TCase *tcase, int index);

#endif
