/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_FLEET_CASE_H
#define TIERCE_TESTS_FLEET_CASE_H

#include "connector_harness.h"
#include "fleet_fake.h"
#include "silent_log.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "store/remote/fleet/fleet_requests.h"

/* A connector through a manager, over a manager, parts and storages with faults. */

enum { BYTES = FLEET_FAKE_BYTES, SOON_MS = 150, LATE_MS = 20000 };

static struct tierce__namespaces *namespaces;
static struct tierce__pool *pool;
static struct tierce__connector *connector;

static inline int open_url(const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    why[0] = '\0';
    return tierce__connector_open(
        &connector, url,
        &(struct tierce__connector_opts){
            .size = sizeof(struct tierce__connector_opts), .pool = pool, .namespaces = namespaces},
        why);
}

static inline void setup(void)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    silence_log();
    pool = connector_pool();
    ck_assert_int_eq(tierce__namespaces_create(&namespaces), 0);
    fleet_fake_start();
    int rc = open_url("fleet://127.0.0.1:1/default", why);
    ck_assert_msg(rc == 0, "%s", why);
}

static inline void close_connector(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    connector = NULL;
}

static inline void teardown(void)
{
    struct tierce__pool_stats stats;
    if (connector != NULL)
        close_connector();
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
    fleet_fake_stop();
    tierce__pool_destroy(pool);
    tierce__namespaces_destroy(namespaces);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The name of block i, of a rank of tensor parallelism. */
static inline const char *name_of(uint32_t i, uint16_t rank, uint16_t ranks)
{
    static _Thread_local char text[TIERCE__KEY_TEXT_BYTES];
    uint8_t digest[TIERCE_HASH_BYTES] = {7}, hash[TIERCE_HASH_BYTES] = {0};
    int64_t key = i;
    memcpy(hash, &key, sizeof(key));
    ck_assert_int_gt(
        tierce__key_text_format(text, digest, &(struct tierce_shard){rank, ranks, 0, 1}, hash), 0);
    return text;
}

static inline const char *name(uint32_t i)
{
    return name_of(i, 0, 1);
}

static inline int put(uint32_t i)
{
    return connector_put(connector, pool, name(i), i, BYTES);
}

static inline int get(uint32_t i)
{
    return connector_get(connector, pool, name(i), i, 0, BYTES);
}

enum { MANY = 200 };
static struct connector_call many[MANY];
static struct tierce__key parents[MANY];

/* Requests for blocks from `first` on, without waiting. */
static inline void make_many(enum tierce__store_op op, uint32_t first, uint32_t count, uint32_t ms)
{
    for (uint32_t i = 0; i < count; i++) {
        connector_call_init(&many[i], op, name(first + i), 0);
        many[i].req.deadline_ns = tierce__deadline_in_ms(ms);
        if (op == TIERCE__STORE_PUT || op == TIERCE__STORE_GET) {
            many[i].req.buf = connector_object(pool, first + i, BYTES);
            many[i].req.length = BYTES;
        }
        if (op == TIERCE__STORE_PUT && i > 0) { /* a chain */
            int64_t key = first + i - 1;
            parents[i] = (struct tierce__key){.shard = {0, 1, 0, 1}};
            memcpy(parents[i].hash, &key, sizeof(key));
            many[i].req.parent = &parents[i];
        }
    }
}

static inline void send_many(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        connector->ops->submit(connector, &many[i].req);
}

static inline void submit_many(enum tierce__store_op op, uint32_t first, uint32_t count,
                               uint32_t ms)
{
    make_many(op, first, count, ms);
    send_many(count);
}

static inline int wait_call(struct connector_call *call)
{
    int rc = connector_call_wait(call);
    if (call->req.buf != NULL)
        tierce__buf_release(call->req.buf);
    return rc;
}

static inline void expect_many(uint32_t count, int status)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_int_eq(wait_call(&many[i]), status);
}

static inline int look_up(uint32_t first, uint32_t count, size_t *found)
{
    static char texts[MANY][TIERCE__KEY_TEXT_BYTES];
    static struct tierce_plugin_name names[MANY];
    struct connector_call call;
    for (uint32_t i = 0; i < count; i++) {
        snprintf(texts[i], sizeof(texts[i]), "%s", name(first + i));
        names[i] = (struct tierce_plugin_name){.text = texts[i], .bytes = strlen(texts[i])};
    }
    connector_call_init(&call, TIERCE__STORE_LOOKUP, NULL, 0);
    call.req.names = names;
    call.req.name_count = count;
    int rc = connector_call_run(connector, &call);
    *found = call.req.found;
    return rc;
}

static inline struct tierce__fleet *fleet(void)
{
    return (struct tierce__fleet *)connector;
}

/* Forgets where a block lies. No request is in progress, so the thread does not use its table. */
static inline void forget(uint32_t i)
{
    struct tierce_plugin_name it = {.text = name(i), .bytes = strlen(name(i))};
    struct tierce__fleet_part *part;
    int64_t key;
    ck_assert_int_eq(tierce__fleet_part_of(fleet()->parts, &part, &key, &it), 0);
    tierce__fleet_places_forget(fleet()->places, part, key);
}

#define expect_why(word)                                                                           \
    ck_assert_msg(strstr(connector_why(connector), word) != NULL, "%s", connector_why(connector))

static inline int delete_left(const char *text, enum tierce__tier_left left)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_DELETE, text, 0);
    call.req.left = left;
    return connector_call_run(connector, &call);
}

#endif
