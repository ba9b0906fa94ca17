/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_REMOTE_WORLD_H
#define TIERCE_TESTS_REMOTE_WORLD_H

/* A remote tier over a store of the test's own, and requests that are answered or not. */
#include "store/remote/remote.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "check_main.h"
#include "store_connector.h"

#include <string.h>

enum { BYTES = 64 << 10, CALLS = 64 };

struct call {
    struct tierce__store_req req;
    struct tierce__key key, parent;
    _Atomic unsigned done; /* perhaps by the tier's clock */
};

static struct tierce__pool *pool;
static struct tierce__namespaces *namespaces;
static struct store_connector *store;
static struct tierce__tier *tier;
static struct call calls[CALLS];
static unsigned call_count;
static uint32_t ns[2];

static inline void open_tier(const struct tierce__remote_opts *how, bool ranges)
{
    struct tierce__pool_opts opts = {
        .size = sizeof(opts), .cap_bytes = 16u << 20, .no_touch = true};
    ck_assert_int_eq(tierce__pool_create(&pool, &opts), 0);
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
    for (unsigned i = 0; i < 2; i++) {
        uint8_t digest[TIERCE_HASH_BYTES] = {(uint8_t)(i + 1)};
        ns[i] = (uint32_t)tierce__namespaces_intern(namespaces, digest, NULL);
    }
    store = store_connector_create(ranges);
    struct tierce__remote_opts all = *how;
    all.size = sizeof(all);
    all.connector = store_connector_base(store);
    all.namespaces = namespaces;
    all.name = "store";
    ck_assert_int_eq(tierce__remote_open(&tier, &all), 0);
    call_count = 0;
}

static inline void close_tier(void)
{
    ck_assert(tier->ops->close(tier, tierce__deadline_in_ms(1000)));
    for (unsigned i = 0; i < call_count; i++) {
        ck_assert_uint_eq(calls[i].done, 1);
        if (calls[i].req.op == TIERCE__STORE_PUT || calls[i].req.op == TIERCE__STORE_GET)
            tierce__buf_release(calls[i].req.buf);
    }
    struct tierce__pool_stats stats;
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
    tierce__pool_destroy(pool);
    tierce__namespaces_destroy(namespaces);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline void done(struct tierce__store_req *req)
{
    struct call *call = req->arg;
    call->done++;
}

static inline struct tierce__key key_of(unsigned n)
{
    struct tierce__key key = {.shard = {0, 1, 0, 1}, .ns = ns[0]};
    memset(key.hash, (int)n, sizeof(key.hash));
    return key;
}

static inline struct call *make(enum tierce__store_op op, unsigned n)
{
    struct call *call = &calls[call_count++];
    *call = (struct call){.key = key_of(n)};
    call->req = (struct tierce__store_req){.op = op,
                                           .deadline_ns = TIERCE__DEADLINE_NEVER,
                                           .done = done,
                                           .arg = call,
                                           .keys = &call->key,
                                           .key_count = 1};
    return call;
}

static inline struct call *make_put(unsigned n)
{
    struct call *call = make(TIERCE__STORE_PUT, n);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call->req.buf, BYTES), 0);
    memset(call->req.buf->data, (int)n, BYTES);
    call->req.object_bytes = BYTES;
    return call;
}

static inline struct call *submit(struct call *call)
{
    tier->ops->submit(tier, &call->req);
    return call;
}

static inline struct call *put(unsigned n)
{
    return submit(make_put(n));
}

/* A chunk that must not be there without chunk `parent`. */
static inline struct call *put_after(unsigned n, unsigned parent)
{
    struct call *call = make_put(n);
    call->parent = key_of(parent);
    call->req.parent = &call->parent;
    call->req.needs_parent = true;
    return submit(call);
}

/* What names of a key end with. */
static inline const char *ending(unsigned n)
{
    static char text[9];
    uint8_t bytes[4] = {(uint8_t)n, (uint8_t)n, (uint8_t)n, (uint8_t)n};
    tierce__hex_encode(text, bytes, sizeof(bytes));
    return text;
}

static inline bool is_there(unsigned n)
{
    struct call *call = submit(make(TIERCE__STORE_LOOKUP, n));
    ck_assert_uint_eq(call->done, 1);
    ck_assert_int_eq(call->req.status, 0);
    return call->req.found == 1;
}

static inline void check(const struct call *call, int status)
{
    ck_assert_uint_eq(call->done, 1);
    ck_assert_msg(call->req.status == status, "%s", tierce_strerror(call->req.status));
}

static inline struct tierce__tier_stats stats(void)
{
    struct tierce__tier_stats out;
    tier->ops->stats(tier, &out);
    return out;
}

static inline struct call *get(unsigned n, uint64_t bytes, uint64_t offset, uint64_t length)
{
    struct call *call = make(TIERCE__STORE_GET, n);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call->req.buf, bytes), 0);
    call->req.offset = offset;
    call->req.length = length;
    return submit(call);
}

#endif
