/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_CODED_CONNECTOR_CASE_H
#define TIERCE_TESTS_CODED_CONNECTOR_CASE_H

/* A remote store in memory behind the connector that encodes, with real chunks (coded_store.h). */
#include "coded_store.h"
#include "connector_harness.h"
#include "store/coded/coded_connector.h"
#include "store/coded/coded_keys.h"
#include "store_connector.h"

#define MIB (1ULL << 20)

enum { OBJECTS = 16 };

static uint8_t untouched[256 << 10]; /* of 0xee */

static struct store s; /* its pool and its namespaces */
static struct store_connector *store;
static struct tierce__connector *below, *connector;
static const struct tierce__codec *lossless;

static inline struct tierce__buf *new_buf(uint64_t bytes)
{
    struct tierce__buf *buf;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, bytes), 0);
    return buf;
}

static inline void wrap(const struct tierce__coded_connector_opts *with)
{
    struct tierce__coded_connector_opts opts = *with;
    opts.size = sizeof(opts);
    opts.connector = below;
    opts.name = "store";
    opts.namespaces = s.namespaces;
    opts.alloc = opts.alloc != NULL ? opts.alloc : coded_alloc;
    opts.alloc_arg = s.pool;
    ck_assert_int_eq(tierce__coded_connector_open(&connector, &opts), 0);
}

static inline void make_store(bool ranges)
{
    store = store_connector_create(ranges);
    below = store_connector_base(store);
}

static inline void open_store(bool ranges, const struct tierce__coded_connector_opts *with)
{
    make_store(ranges);
    wrap(with);
}

static inline void close_all(void)
{
    if (connector != NULL)
        ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    connector = NULL;
}

static inline void setup(void)
{
    lossless = tierce__codec_find("lossless");
    s = (struct store){.chunk_bytes = 64 * 1024};
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace(&s, "bfloat16");
    memset(untouched, 0xee, sizeof(untouched));
}

static inline void teardown(void)
{
    close_all();
    store_parts_end(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline const char *name_of(uint64_t n)
{
    static char text[24];
    snprintf(text, sizeof(text), "object%llu", (unsigned long long)n);
    return text;
}

static inline int put_to(struct tierce__connector *to, uint64_t n, const uint8_t *bytes,
                         uint64_t length)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_PUT, name_of(n), 0);
    call.req.buf = new_buf(length);
    call.req.length = length;
    memcpy(call.req.buf->data, bytes, length);
    int rc = connector_call_run(to, &call);
    tierce__buf_release(call.req.buf);
    return rc;
}

/* The raw object, made once: a sanitizer looks at each access. */
static inline const uint8_t *made(uint64_t n, enum coded_kind kind)
{
    static uint8_t *objects[OBJECTS][CODED_KINDS];
    ck_assert_uint_lt(n, OBJECTS);
    if (objects[n][kind] == NULL) {
        objects[n][kind] = malloc(coded_bytes(&s));
        ck_assert_ptr_nonnull(objects[n][kind]);
        coded_make(&s, objects[n][kind], n, kind);
    }
    return objects[n][kind];
}

static inline int put(struct tierce__connector *to, uint64_t n, enum coded_kind kind)
{
    return put_to(to, n, made(n, kind), coded_bytes(&s));
}

static inline void begin_get_by(struct connector_call *call, uint64_t n, uint64_t from,
                                uint64_t length, uint64_t deadline_ns)
{
    connector_call_init(call, TIERCE__STORE_GET, name_of(n), 0);
    call->req.buf = new_buf(coded_bytes(&s));
    ck_assert_uint_le(coded_bytes(&s), sizeof(untouched));
    memcpy(call->req.buf->data, untouched, coded_bytes(&s));
    call->req.offset = from;
    call->req.length = length;
    call->req.deadline_ns = deadline_ns;
    connector->ops->submit(connector, &call->req);
}

static inline void begin_get(struct connector_call *call, uint64_t n, uint64_t from,
                             uint64_t length)
{
    begin_get_by(call, n, from, length, tierce__deadline_in_ms(100000));
}

/* Waits; 0 only if the bytes are right, and none beside the range has changed. */
static inline int end_get(struct connector_call *call, uint64_t n, enum coded_kind kind)
{
    uint64_t bytes = coded_bytes(&s), from = call->req.offset, end = from + call->req.length;
    struct tierce__chunk_info info = coded_info(&s, n);
    int rc = connector_call_wait(call);
    const uint8_t *got = call->req.buf->data;
    if (rc == 0) {
        const uint8_t *want = made(n, kind);
        uint64_t header = end == bytes && from == 0 ? info.extent.header_bytes : from;
        /* No sum covers the zeroes at the end of a header. */
        ck_assert(header == from || tierce__chunk_same(got, want, &info.geometry));
        ck_assert_mem_eq(got + header, want + header, end - header);
        ck_assert(memcmp(got, untouched, from) == 0);
        ck_assert(memcmp(got + end, untouched, bytes - end) == 0);
    }
    tierce__buf_release(call->req.buf);
    return rc;
}

static inline int get(uint64_t n, enum coded_kind kind, uint64_t from, uint64_t length)
{
    struct connector_call call;
    begin_get(&call, n, from, length);
    return end_get(&call, n, kind);
}

static inline int get_all(uint64_t n, enum coded_kind kind)
{
    return get(n, kind, 0, coded_bytes(&s));
}

/* The length of the stored object; 0: there is none. */
static inline uint64_t stored_bytes(uint64_t n)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_LOOKUP, name_of(n), 0);
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    return call.req.found == 1 ? call.req.object_bytes : 0;
}

static inline struct tierce__coded_stats stats_now(void)
{
    struct tierce__coded_stats stats;
    tierce__coded_connector_stats(connector, &stats);
    return stats;
}

/* The stored bytes of an object. */
static inline uint8_t *read_stored(uint64_t n, uint64_t *bytes)
{
    struct connector_call call;
    *bytes = stored_bytes(n);
    connector_call_init(&call, TIERCE__STORE_GET, name_of(n), 0);
    call.req.buf = new_buf(*bytes);
    call.req.length = *bytes;
    ck_assert_int_eq(connector_call_run(below, &call), 0);
    uint8_t *stored = malloc(*bytes);
    ck_assert_ptr_nonnull(stored);
    memcpy(stored, call.req.buf->data, *bytes);
    tierce__buf_release(call.req.buf);
    return stored;
}

static inline bool is_fault(int rc)
{
    return rc == TIERCE_E_CHECKSUM || rc == TIERCE_E_FORMAT || rc == TIERCE_E_VERSION;
}

#endif
