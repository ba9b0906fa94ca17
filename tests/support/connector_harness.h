/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CONNECTOR_HARNESS_H
#define TIERCE_TESTS_CONNECTOR_HARNESS_H

#include "check_main.h"
#include "base/clock.h"
#include "store/remote/connector.h"
#include "wait_for.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/*
 * Connector requests with a blocking wait, and objects whose bytes follow from a number.
 */

#define CONNECTOR_POOL_BYTES (64u << 20)

static inline struct tierce__pool *connector_pool(void)
{
    struct tierce__pool *pool = NULL;
    ck_assert_int_eq(
        tierce__pool_create(&pool,
                            &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                        .cap_bytes = CONNECTOR_POOL_BYTES,
                                                        .no_touch = true,
                                                        .shared = true}),
        0);
    return pool;
}

struct connector_call {
    struct tierce__store_req req;
    struct tierce_plugin_name name;
    char text[TIERCE__CONNECTOR_NAME_MAX + 1];
    sem_t done;
    _Atomic int done_count;
};

static inline void connector_call_done(struct tierce__store_req *req)
{
    struct connector_call *call = (struct connector_call *)req->arg;
    ck_assert_int_eq(atomic_fetch_add(&call->done_count, 1), 0);
    sem_post(&call->done);
}

/* A request of 30 seconds for a name of `bytes` bytes, or of a text where that is 0. */
static inline void connector_call_init(struct connector_call *call, enum tierce__store_op op,
                                       const char *name, size_t bytes)
{
    static const enum tierce__connector_urgency urgencies[] = {
        [TIERCE__STORE_LOOKUP] = TIERCE__CONNECTOR_PEEK,
        [TIERCE__STORE_GET] = TIERCE__CONNECTOR_FETCH,
        [TIERCE__STORE_PUT] = TIERCE__CONNECTOR_STORE,
        [TIERCE__STORE_DELETE] = TIERCE__CONNECTOR_STORE,
        [TIERCE__STORE_LIST] = TIERCE__CONNECTOR_STORE,
        [TIERCE__STORE_PING] = TIERCE__CONNECTOR_PEEK,
    };
    memset(call, 0, sizeof(*call));
    ck_assert_int_eq(sem_init(&call->done, 0, 0), 0);
    if (name != NULL) {
        call->name.bytes = bytes != 0 ? bytes : strlen(name);
        memcpy(call->text, name, call->name.bytes);
        call->name.text = call->text;
        call->req.names = &call->name;
        call->req.name_count = 1;
    }
    call->req.op = op;
    call->req.urgency = urgencies[op];
    call->req.deadline_ns = tierce__deadline_in_ms(100000);
    call->req.done = connector_call_done;
    call->req.arg = call;
    call->req.status = 1;
}

static inline int connector_call_wait(struct connector_call *call)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    ck_assert_msg(sem_timedwait(&call->done, &until) == 0, "a request is not answered");
    ck_assert_int_eq(atomic_load(&call->done_count), 1);
    return call->req.status;
}

static inline int connector_call_run(struct tierce__connector *connector,
                                     struct connector_call *call)
{
    connector->ops->submit(connector, &call->req);
    return connector_call_wait(call);
}

/* The same, until nothing but the caller holds the buffer: a call may hold it a little longer than
 * its request lasts, and one that its deadline has ended does until it returns. */
static inline int connector_run_and_return(struct tierce__connector *connector,
                                           struct connector_call *call)
{
    int rc = connector_call_run(connector, call);
    WAIT_FOR(atomic_load(&call->req.buf->refs) == 1);
    return rc;
}

/* ---- objects --------------------------------------------------------------------------------- */

/*
 * The byte at place i of an object is version * 31 + i * 7 + i / 256. The rows of 256 bytes are
 * rotations of one, so objects are made and compared by rows: a sanitizer checks each access, and a
 * loop over bytes took most of a test's time.
 */
enum { CONNECTOR_ROW = 256, CONNECTOR_INVERSE_OF_7 = 183 };

static inline void connector_rows(uint8_t rows[2 * CONNECTOR_ROW])
{
    for (uint32_t i = 0; i < 2 * CONNECTOR_ROW; i++)
        rows[i] = (uint8_t)(i * 7u);
}

/* The object's bytes from a place to the end of its row. */
static inline const uint8_t *connector_row(const uint8_t *rows, uint32_t version, uint64_t from)
{
    uint8_t first = (uint8_t)(version * 31u + from / CONNECTOR_ROW);
    return rows + (uint8_t)(first * CONNECTOR_INVERSE_OF_7) + from % CONNECTOR_ROW;
}

static inline uint64_t connector_row_left(uint64_t from, uint64_t end)
{
    uint64_t left = CONNECTOR_ROW - from % CONNECTOR_ROW;
    return left < end - from ? left : end - from;
}

/* A buffer whose bytes follow from version and place. */
static inline struct tierce__buf *connector_object(struct tierce__pool *pool, uint32_t version,
                                                   uint64_t bytes)
{
    struct tierce__buf *buf = NULL;
    uint8_t rows[2 * CONNECTOR_ROW];
    connector_rows(rows);
    ck_assert_int_eq(tierce__pool_alloc(pool, &buf, bytes), 0);
    for (uint64_t i = 0; i < bytes; i += connector_row_left(i, bytes))
        memcpy(buf->data + i, connector_row(rows, version, i), connector_row_left(i, bytes));
    return buf;
}

static inline bool connector_is_object(const uint8_t *data, uint32_t version, uint64_t from,
                                       uint64_t bytes)
{
    uint8_t rows[2 * CONNECTOR_ROW];
    connector_rows(rows);
    for (uint64_t i = from; i < from + bytes; i += connector_row_left(i, from + bytes)) {
        if (memcmp(data + i, connector_row(rows, version, i),
                   connector_row_left(i, from + bytes)) != 0)
            return false;
    }
    return true;
}

/* ---- whole operations, each with a status ---------------------------------------------------- */

static inline int connector_put(struct tierce__connector *connector, struct tierce__pool *pool,
                                const char *name, uint32_t version, uint64_t bytes)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_PUT, name, 0);
    call.req.buf = connector_object(pool, version, bytes);
    call.req.length = bytes;
    int rc = connector_run_and_return(connector, &call);
    tierce__buf_release(call.req.buf);
    return rc;
}

/* Reads a range and looks whether it is that version's. */
static inline int connector_get(struct tierce__connector *connector, struct tierce__pool *pool,
                                const char *name, uint32_t version, uint64_t offset,
                                uint64_t length)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_GET, name, 0);
    ck_assert_int_eq(tierce__pool_alloc(pool, &call.req.buf, offset + length), 0);
    memset(call.req.buf->data, 0xa5, offset + length);
    call.req.offset = offset;
    call.req.length = length;
    int rc = connector_run_and_return(connector, &call);
    if (rc == 0)
        ck_assert(connector_is_object(call.req.buf->data, version, offset, length));
    uint64_t untouched = 0;
    while (untouched < offset && call.req.buf->data[untouched] == 0xa5)
        untouched++;
    ck_assert_uint_eq(untouched, offset);
    tierce__buf_release(call.req.buf);
    return rc;
}

static inline int connector_delete(struct tierce__connector *connector, const char *name)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_DELETE, name, 0);
    return connector_call_run(connector, &call);
}

static inline int connector_ping(struct tierce__connector *connector)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_PING, NULL, 0);
    return connector_call_run(connector, &call);
}

/* Whether a name is there: 1, 0, or an error. */
static inline int connector_exists(struct tierce__connector *connector, const char *name)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_LOOKUP, name, 0);
    int rc = connector_call_run(connector, &call);
    return rc == 0 ? (int)call.req.found : rc;
}

static inline const char *connector_why(struct tierce__connector *connector)
{
    static char why[TIERCE__CONNECTOR_WHY_BYTES];
    connector->ops->why(connector, why);
    return why;
}

static inline struct tierce__tier_stats connector_stats(struct tierce__connector *connector)
{
    struct tierce__tier_stats stats = {0};
    connector->ops->stats(connector, &stats);
    return stats;
}

#endif
