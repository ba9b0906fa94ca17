/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_S3_CASE_H
#define TIERCE_TESTS_S3_CASE_H

#include "connector_harness.h"
#include "s3_fake.h"

/* A connector of S3 before what stands in place of S3, and requests of it. */

static struct tierce__pool *pool;
static struct tierce__connector *connector;

static inline void open_url(const char *url)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    int rc =
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               why);
    ck_assert_msg(rc == 0, "%s", why);
}

static inline void open_fake(const char *more)
{
    char url[512];
    snprintf(url, sizeof(url), "s3://AKID:hidden@bucket?endpoint=http://127.0.0.1:%u%s",
             (unsigned)fake.port, more);
    open_url(url);
}

static inline void start(s3_fake_fn *answer, const char *more)
{
    pool = connector_pool();
    s3_fake_start(answer);
    open_fake(more);
}

static inline void close_connector(void)
{
    struct tierce__pool_stats stats;
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
}

static inline void end(void)
{
    close_connector();
    s3_fake_stop();
    tierce__pool_destroy(pool);
}

static inline void expect_why(const char *part)
{
    const char *why = connector_why(connector);
    ck_assert_msg(strstr(why, part) != NULL, "\"%s\" is not in: %s", part, why);
    ck_assert_ptr_null(strstr(why, "hidden"));
}

static inline void no_name(void *arg, const struct tierce_plugin_name *name)
{
    (void)arg;
    ck_abort_msg("a name: %.*s", (int)name->bytes, name->text);
}

/* A request of one of the ops that ends in `ms`; 5 bytes where it has any. */
static inline int run(enum tierce__store_op op, uint32_t ms)
{
    struct connector_call call;
    bool is_named = op != TIERCE__STORE_LIST && op != TIERCE__STORE_PING;
    connector_call_init(&call, op, is_named ? "n" : NULL, 0);
    call.req.buf = connector_object(pool, 1, 5);
    call.req.length = 5;
    call.req.each = no_name;
    call.req.deadline_ns = tierce__deadline_in_ms(ms);
    int rc = connector_call_run(connector, &call);
    if (op == TIERCE__STORE_LOOKUP && rc == 0)
        rc = (int)call.req.found;
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    tierce__buf_release(call.req.buf);
    return rc;
}

#endif
