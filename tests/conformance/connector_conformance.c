/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/connector_conformance.h"
#include "check_main.h"
#include "store/coded/coded_connector.h"

#include <pthread.h>
#include <stdlib.h>

static const struct connector_factory *factories;
static const struct connector_factory *factory;
static struct tierce__pool *pool;
static struct tierce__connector *connector;
static char url[1024];

static struct tierce__namespaces *namespaces_of_tests(void)
{
    static struct tierce__namespaces *own;
    if (factory->namespaces != NULL)
        return *factory->namespaces;
    if (own == NULL)
        ck_assert_int_eq(tierce__namespaces_create(&own), 0);
    return own;
}

static struct tierce__buf *alloc_coded(void *arg, uint64_t bytes)
{
    struct tierce__buf *buf;
    return tierce__pool_alloc(arg, &buf, bytes) == 0 ? buf : NULL;
}

/* Puts the connector that encodes chunks above another one. */
static struct tierce__connector *wrap(struct tierce__connector *below)
{
    struct tierce__connector *out = NULL;
    const struct tierce__coded_connector_opts opts = {.size = sizeof(opts),
                                                      .connector = below,
                                                      .name = factory->name,
                                                      .codec = tierce__codec_find("lossless"),
                                                      .namespaces = namespaces_of_tests(),
                                                      .alloc = alloc_coded,
                                                      .alloc_arg = pool};
    ck_assert_int_eq(tierce__coded_connector_open(&out, &opts), 0);
    return out;
}

static struct tierce__connector *open_another(void)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    struct tierce__connector *out = NULL;
    const struct tierce__connector_opts opts = {
        .size = sizeof(opts),
        .pool = pool,
        .namespaces = factory->namespaces != NULL ? *factory->namespaces : NULL};
    int rc = tierce__connector_open(&out, url, &opts, why);
    ck_assert_msg(rc == 0, "%s: %s", url, why);
    return factory->codes ? wrap(out) : out;
}

static void start(int index)
{
    factory = &factories[index];
    bool (*begin)(char *, size_t, void *) =
        factory->renew != NULL ? factory->renew : factory->start;
    ck_assert_msg(begin(url, sizeof(url), factory->ctx), "%s does not start", factory->name);
    pool = connector_pool();
    connector = open_another();
    ck_assert_uint_eq(connector->caps, factory->caps);
}

/* ---- names and lengths that the store accepts ------------------------------------------------ */

static const char *name_of(const char *text)
{
    static _Thread_local char room[TIERCE__CONNECTOR_NAME_MAX + 1];
    if (factory->key == NULL || text == NULL)
        return text;
    factory->key(room, text);
    return room;
}

static uint64_t bytes_of(uint64_t bytes)
{
    return factory->key != NULL ? factory->object_bytes : bytes;
}

static int put(const char *name, uint32_t version, uint64_t bytes)
{
    return connector_put(connector, pool, name_of(name), version, bytes_of(bytes));
}

/* A store that tells the length of an object tells the right one. */
static void expect_length(const char *name, uint64_t bytes)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_LOOKUP, name_of(name), 0);
    call.req.object_bytes = UINT64_MAX;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    ck_assert_uint_eq(call.req.found, 1);
    ck_assert_msg(call.req.object_bytes == UINT64_MAX || call.req.object_bytes == bytes_of(bytes),
                  "%s: %llu bytes, not %llu", name, (unsigned long long)call.req.object_bytes,
                  (unsigned long long)bytes_of(bytes));
    ck_assert(!factory->has_lengths || call.req.object_bytes != UINT64_MAX);
}

/* The object as a whole. */
static int get(const char *name, uint32_t version, uint64_t bytes)
{
    return connector_get(connector, pool, name_of(name), version, 0, bytes_of(bytes));
}

static int delete (const char *name)
{
    return connector_delete(connector, name_of(name));
}

static int exists(const char *name)
{
    return connector_exists(connector, name_of(name));
}

static void end(void)
{
    struct tierce__pool_stats stats;
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
    tierce__pool_destroy(pool);
    if (factory->renew == NULL)
        factory->stop(factory->ctx);
}

static bool keeps(void)
{
    return (factory->caps & TIERCE__CONNECTOR_NO_DELETE) != 0;
}

/* ---- single objects -------------------------------------------------------------------------- */

START_TEST(what_was_put_is_got)
{
    static const uint64_t sizes[] = {1, 2, 100, 4095, 4096, 65537, 1 << 20, (5 << 20) + 3};
    start(_i);
    ck_assert_int_eq(connector_ping(connector), 0);
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        char name[16];
        snprintf(name, sizeof(name), "object-%u", i);
        ck_assert_int_eq(exists(name), 0);
        ck_assert_int_eq(put(name, i, sizes[i]), 0);
        expect_length(name, sizes[i]);
        ck_assert_int_eq(get(name, i, sizes[i]), 0);
    }
    ck_assert_str_eq(connector_why(connector), "");
    end();
}
END_TEST

/* A store that cannot delete reports so and keeps the object; only a PUT replaces it. */
static void expect_kept(void)
{
    ck_assert_int_eq(delete ("none"), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(put("one", 1, 1000), 0);
    ck_assert_int_eq(delete ("one"), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(get("one", 1, 1000), 0);
    ck_assert_int_eq(put("one", 2, 10), 0);
    ck_assert_int_eq(get("one", 2, 10), 0);
}

START_TEST(what_is_not_there_is_a_miss)
{
    start(_i);
    ck_assert_int_eq(get("none", 0, 100), TIERCE_E_MISS);
    if (keeps()) {
        expect_kept();
        end();
        return;
    }
    ck_assert_int_eq(delete ("none"), 0);
    ck_assert_int_eq(put("one", 1, 1000), 0);
    ck_assert_int_eq(delete ("one"), 0);
    ck_assert_int_eq(delete ("one"), 0);
    ck_assert_int_eq(get("one", 1, 1000), TIERCE_E_MISS);
    ck_assert_int_eq(exists("one"), 0);
    ck_assert_int_eq(put("one", 2, 10), 0);
    ck_assert_int_eq(get("one", 2, 10), 0);
    end();
}
END_TEST

START_TEST(a_put_replaces)
{
    static const uint64_t sizes[] = {100000, 100, 200000, 200000, 1};
    start(_i);
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(put("name", i, sizes[i]), 0);
        if (i > 0 && (connector->caps & TIERCE__CONNECTOR_NO_REPLACE) != 0) {
            uint64_t before = sizes[i - 1];
            ck_assert_int_eq(get("name", i - 1, before), 0);
            ck_assert_int_eq(delete ("name"), 0);
            ck_assert_int_eq(put("name", i, sizes[i]), 0);
        }
        ck_assert_int_eq(get("name", i, sizes[i]), 0);
        ck_assert_int_eq(
            connector_get(connector, pool, name_of("name"), i, 0, bytes_of(sizes[i]) + 1),
            TIERCE_E_FORMAT);
    }
    end();
}
END_TEST

START_TEST(ranges)
{
    static const uint64_t offsets[] = {0, 1, 4096, 65536, 299999, 300000};
    start(_i);
    const uint64_t size = bytes_of(300001);
    ck_assert_int_eq(put("name", 3, size), 0);
    for (size_t i = 0; i < 6 && offsets[i] < size; i++) {
        uint64_t left = size - offsets[i];
        bool any = (connector->caps & TIERCE__CONNECTOR_RANGES) != 0;
        int want = any ? 0 : offsets[i] != 0 ? TIERCE_E_UNSUPPORTED : TIERCE_E_FORMAT;
        ck_assert_int_eq(connector_get(connector, pool, name_of("name"), 3, offsets[i], 1), want);
        ck_assert_int_eq(connector_get(connector, pool, name_of("name"), 3, offsets[i], left),
                         offsets[i] == 0 ? 0 : want);
        if (!any)
            continue;
        ck_assert_int_eq(connector_get(connector, pool, name_of("name"), 3, offsets[i], left + 1),
                         TIERCE_E_FORMAT);
    }
    if ((connector->caps & TIERCE__CONNECTOR_RANGES) != 0) {
        int rc = connector_get(connector, pool, name_of("name"), 3, size, 1);
        ck_assert(rc == TIERCE_E_FORMAT || rc == TIERCE_E_MISS);
        rc = connector_get(connector, pool, name_of("name"), 3, size + 1000, 1000);
        ck_assert(rc == TIERCE_E_FORMAT || rc == TIERCE_E_MISS);
    }
    end();
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

static const char *const names[] = {
    "a",
    "A",
    ".",
    "..",
    "/",
    "//",
    "a/b",
    "a/../b",
    "../a",
    "/etc/passwd",
    "a.b",
    ".a",
    "a.",
    "%41",
    "%",
    "%%",
    "~",
    "~tmp-0",
    "~store",
    "~claim",
    "a~",
    "a b",
    " ",
    "-",
    "--help",
    "*",
    "?",
    "[a]",
    "\\",
    "\"",
    "'",
    "\x01",
    "\x7f",
    "\xff\xfe",
    "\xc3\xa4",
    "a\r\nb",
    "\t",
    "{tag}a",
    "$a",
    "a:b@c",
    "model@1@0@5c7c4165af101b9a@float",
    "CON",
    "a;b|c&d",
    "#",
    "+",
    "=",
};
#define NAMES (sizeof(names) / sizeof(*names))

static void expect_rejected(const char *name)
{
    ck_assert_int_eq(put(name, 1, 50), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(get(name, 1, 50), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(exists(name), TIERCE_E_ARGUMENT);
    ck_assert_str_ne(connector_why(connector), "");
}

/* Whatever is accepted is stored under this name alone. */
static void expect_paths(void)
{
    static const char *const bad[] = {".",    "..",   "/",    "//",  "/a",    "a/",
                                      "a//b", "a/..", "../a", "./a", "a/./b", "a/../b"};
    static const char *const good[] = {"a/b", "a.b", ".a", "a.", "...", "a-b/c_d/e", "A", "a~b/~c"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        expect_rejected(bad[i]);
    for (uint32_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        ck_assert_int_eq(put(good[i], i, 50 + i), 0);
    for (uint32_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        ck_assert_int_eq(get(good[i], i, 50 + i), 0);
}

START_TEST(a_name_is_any_bytes)
{
    start(_i);
    if (factory->has_paths) {
        expect_paths();
        end();
        return;
    }
    for (uint32_t i = 0; i < NAMES; i++)
        ck_assert_int_eq(put(names[i], i, 50 + i), 0);
    for (uint32_t i = 0; i < NAMES; i++) {
        ck_assert_int_eq(exists(names[i]), 1);
        ck_assert_int_eq(get(names[i], i, 50 + i), 0);
    }
    for (uint32_t i = 0; i < NAMES && !keeps(); i += 2)
        ck_assert_int_eq(delete (names[i]), 0);
    for (uint32_t i = 0; i < NAMES; i++)
        ck_assert_int_eq(exists(names[i]), keeps() || i % 2);
    end();
}
END_TEST

/* Of each length around the limits of file names, of bytes that are written as one and as three,
 * and each beginning where another one ends. */
START_TEST(a_name_is_long)
{
    static const size_t sizes[] = {66, 67, 199, 200, 201, 255, 256, 400, 511, 512};
    static const char bytes[] = {'a', '/', '.'};
    char text[TIERCE__CONNECTOR_NAME_MAX + 1];
    start(_i);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < (factory->has_paths ? 6 : 30); i++) {
            memset(text, bytes[i / 10], sizeof(text));
            text[sizes[i % 10]] = '\0';
            if (round == 0)
                ck_assert_int_eq(put(text, i, 1000), 0);
            ck_assert_int_eq(get(text, i, 1000), 0);
        }
    }
    end();
}
END_TEST

/* Puts many small objects under names, as many at once as the connector takes. */
static void put_all(const struct tierce_plugin_name *all, uint32_t count, uint64_t bytes)
{
    struct connector_call *calls = calloc(count, sizeof(*calls));
    ck_assert_ptr_nonnull(calls);
    bytes = bytes_of(bytes);
    for (uint32_t i = 0; i < count; i++) {
        connector_call_init(&calls[i], TIERCE__STORE_PUT, all[i].text, all[i].bytes);
        calls[i].req.buf = connector_object(pool, i, bytes);
        calls[i].req.length = bytes;
        connector->ops->submit(connector, &calls[i].req);
    }
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(connector_call_wait(&calls[i]), 0);
        tierce__buf_release(calls[i].req.buf);
    }
    free(calls);
}

/* ---- EXISTS ---------------------------------------------------------------------------------- */

#define MANY_MAX 600u

static struct tierce_plugin_name many[MANY_MAX];
static char many_texts[MANY_MAX][24], many_keys[MANY_MAX][TIERCE__CONNECTOR_NAME_MAX + 1];
static uint32_t many_count;

static void make_many(uint32_t count)
{
    many_count = count;
    for (uint32_t i = 0; i < many_count; i++) {
        snprintf(many_texts[i], sizeof(many_texts[i]), "many/%06u", i);
        const char *key = name_of(many_texts[i]);
        memcpy(many_keys[i], key, strlen(key) + 1);
        many[i] = (struct tierce_plugin_name){.text = many_keys[i], .bytes = strlen(key)};
    }
}

static size_t count_leading(size_t first, size_t count)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_LOOKUP, NULL, 0);
    call.req.names = many + first;
    call.req.name_count = count;
    int rc = connector_call_run(connector, &call);
    ck_assert_msg(rc == 0, "%s: %s", tierce_strerror(rc), connector_why(connector));
    return call.req.found;
}

/* The position of the i-th absent name, in order; many_count after the last. */
static size_t gap_at(size_t i)
{
    static const size_t gaps[] = {0, 1, 40, 127, 128, 255, 256, 257, 512};
    size_t last = many_count - 1;
    for (size_t k = 0; k < sizeof(gaps) / sizeof(*gaps) && gaps[k] < last; k++, i--) {
        if (i == 0)
            return gaps[k];
    }
    return i == 0 ? last : many_count;
}

/* Without deletions: the gaps are closed one after the other. */
static void close_gaps(void)
{
    for (size_t i = 0, gap = 0; i < many_count; i++) {
        if (gap_at(gap) == i)
            gap++;
        else
            ck_assert_int_eq(put(many_texts[i], 0, 10), 0);
    }
    for (size_t i = 0, gap; (gap = gap_at(i)) < many_count; i++) {
        ck_assert_uint_eq(count_leading(0, many_count), gap);
        ck_assert_uint_eq(count_leading(gap + 1, many_count - gap - 1), gap_at(i + 1) - gap - 1);
        ck_assert_int_eq(put(many_texts[gap], 0, 10), 0);
    }
    ck_assert_uint_eq(count_leading(0, many_count), many_count);
}

START_TEST(exists_counts_the_leading_names)
{
    start(_i);
    make_many(factory->exists > 0 ? factory->exists : MANY_MAX);
    ck_assert_uint_eq(count_leading(0, 0), 0);
    ck_assert_uint_eq(count_leading(0, many_count), 0);
    if (keeps()) {
        close_gaps();
        end();
        return;
    }
    put_all(many, many_count, 10);
    for (size_t i = 0, gap; (gap = gap_at(i)) < many_count; i++) {
        ck_assert_uint_eq(count_leading(0, many_count), many_count);
        ck_assert_int_eq(delete (many_texts[gap]), 0);
        ck_assert_uint_eq(count_leading(0, many_count), gap);
        ck_assert_uint_eq(count_leading(gap + 1, many_count - gap - 1), many_count - gap - 1);
        ck_assert_int_eq(put(many_texts[gap], 0, 10), 0);
    }
    end();
}
END_TEST

/* At any deadline, however short, only certain names are reported, and the connector continues. */
START_TEST(exists_tells_what_is_certain)
{
    const size_t gap = 20;
    start(_i);
    make_many(30);
    for (size_t i = 0; i < many_count; i++) {
        if (i != gap)
            ck_assert_int_eq(put(many_texts[i], 0, 10), 0);
    }
    for (uint64_t us = 1; us <= 1000000; us *= 3) {
        struct connector_call call;
        connector_call_init(&call, TIERCE__STORE_LOOKUP, NULL, 0);
        call.req.names = many;
        call.req.name_count = many_count;
        call.req.deadline_ns = tierce__now_ns() + us * 1000;
        int rc = connector_call_run(connector, &call);
        ck_assert(rc == 0 || rc == TIERCE_E_DEADLINE);
        ck_assert_uint_le(call.req.found, gap);
        if (rc == 0)
            ck_assert_uint_eq(call.req.found, gap);
    }
    ck_assert_uint_eq(count_leading(0, many_count), gap);
    end();
}
END_TEST

/* ---- LIST ------------------------------------------------------------------------------------ */

static uint32_t told[MANY_MAX + NAMES];

static void tell(void *arg, const struct tierce_plugin_name *name)
{
    ck_assert_ptr_eq(((struct connector_call *)arg)->req.arg, arg);
    ck_assert_int_eq(atomic_load(&((struct connector_call *)arg)->done_count), 0);
    for (uint32_t i = 0; i < many_count; i++) {
        if (name->bytes == many[i].bytes && memcmp(name->text, many[i].text, name->bytes) == 0) {
            told[i]++;
            return;
        }
    }
    for (uint32_t i = 0; i < NAMES; i++) {
        if (name->bytes == strlen(names[i]) && memcmp(name->text, names[i], name->bytes) == 0) {
            told[MANY_MAX + i]++;
            return;
        }
    }
    ck_abort_msg("a name that is not there: %.*s", (int)name->bytes, name->text);
}

static void list_all(const char *prefix)
{
    uint64_t cursor = 0;
    memset(told, 0, sizeof(told));
    for (uint32_t pages = 0;; pages++) {
        struct connector_call call;
        ck_assert_uint_lt(pages, 10000);
        connector_call_init(&call, TIERCE__STORE_LIST, prefix, 0);
        call.req.each = tell;
        call.req.cursor = cursor;
        ck_assert_int_eq(connector_call_run(connector, &call), 0);
        cursor = call.req.cursor;
        if (cursor == 0)
            return;
    }
}

static void expect_told(const char *prefix)
{
    list_all(prefix);
    prefix = prefix != NULL ? prefix : "";
    for (uint32_t i = 0; i < many_count; i++)
        ck_assert_int_eq(told[i] > 0, strncmp(many_texts[i], prefix, strlen(prefix)) == 0);
    for (uint32_t i = 0; i < NAMES; i++)
        ck_assert_int_eq(told[MANY_MAX + i] > 0, strncmp(names[i], prefix, strlen(prefix)) == 0);
}

START_TEST(list_tells_all_names)
{
    static const char *const prefixes[] = {NULL, "many/", "many/00001", "many/0005", "many/000599",
                                           "*",  "[",     "\\",         "?",         "a",
                                           ".",  "~",     "%",          "/",         "nothing"};
    size_t count = sizeof(prefixes) / sizeof(*prefixes);
    start(_i);
    make_many(factory->listed > 0 ? factory->listed : MANY_MAX);
    if ((connector->caps & TIERCE__CONNECTOR_LISTS) == 0) {
        struct connector_call call;
        connector_call_init(&call, TIERCE__STORE_LIST, NULL, 0);
        call.req.each = tell;
        ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_UNSUPPORTED);
        end();
        return;
    }
    list_all(NULL);
    put_all(many, many_count, 10);
    for (uint32_t i = 0; i < NAMES; i++)
        ck_assert_int_eq(put(names[i], i, 10), 0);
    if (factory->prefixes > 0)
        count = factory->prefixes;
    for (size_t i = 0; i < count; i++)
        expect_told(prefixes[i]);
    ck_assert_int_eq(delete (many_texts[7]), 0);
    list_all("many/000007");
    ck_assert_uint_eq(told[7], 0);
    end();
}
END_TEST

/* ---- contracts ------------------------------------------------------------------------------- */

static int run_wrong(enum tierce__store_op op, size_t name_bytes, uint64_t offset, uint64_t length)
{
    char name[TIERCE__CONNECTOR_NAME_MAX + 2];
    struct connector_call call;
    memset(name, 'n', sizeof(name));
    connector_call_init(&call, op, NULL, 0);
    call.name = (struct tierce_plugin_name){.text = name, .bytes = name_bytes};
    call.req.names = &call.name;
    call.req.name_count = 1;
    call.req.buf = connector_object(pool, 1, 100);
    call.req.offset = offset;
    call.req.length = length;
    int rc = connector_call_run(connector, &call);
    tierce__buf_release(call.req.buf);
    return rc;
}

START_TEST(broken_contracts_are_told)
{
    struct connector_call call;
    start(_i);
    if (factory->key == NULL)
        ck_assert_int_eq(run_wrong(TIERCE__STORE_PUT, 5, 0, 100), 0);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_PUT, 0, 0, 100), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_PUT, 513, 0, 100), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_PUT, 5, 0, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_PUT, 5, 0, 101), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_PUT, 5, 1, 99), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_GET, 5, 0, 101), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_GET, 5, 99, 2), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_GET, 5, UINT64_MAX, 2), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_GET, 5, 0, 0), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(run_wrong(TIERCE__STORE_DELETE, 0, 0, 0), TIERCE_E_ARGUMENT);
    connector_call_init(&call, TIERCE__STORE_LOOKUP, "a\0b", 3);
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_ARGUMENT);
    connector_call_init(&call, TIERCE__STORE_GET, NULL, 0);
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_ARGUMENT);
    if (factory->key == NULL)
        ck_assert_int_eq(run_wrong(TIERCE__STORE_GET, 5, 0, 100), 0);
    end();
}
END_TEST

START_TEST(a_deadline_that_has_passed)
{
    struct connector_call call;
    start(_i);
    connector_call_init(&call, TIERCE__STORE_LOOKUP, name_of("a"), 0);
    call.req.deadline_ns = tierce__now_ns();
    ck_assert_int_eq(connector_call_run(connector, &call), TIERCE_E_DEADLINE);
    connector_call_init(&call, TIERCE__STORE_LOOKUP, name_of("a"), 0);
    call.req.deadline_ns = TIERCE__DEADLINE_NEVER;
    ck_assert_int_eq(connector_call_run(connector, &call), 0);
    end();
}
END_TEST

/* ---- many at once ---------------------------------------------------------------------------- */

#define WRITERS  4
#define VERSIONS 40u
#define SHARED   300000u

static _Atomic bool writing;

static void *write_versions(void *arg)
{
    uint32_t writer = (uint32_t)(uintptr_t)arg;
    for (uint32_t i = 0; i < VERSIONS; i++)
        ck_assert_int_eq(put("shared", writer * VERSIONS + i, SHARED + writer), 0);
    return NULL;
}

/* The version of an object, or -1 if it is a mixture. */
static int32_t version_of(const uint8_t *data, uint64_t bytes)
{
    for (uint32_t version = 0; version < WRITERS * VERSIONS; version++) {
        if (data[0] == (uint8_t)(version * 31u) && connector_is_object(data, version, 0, bytes))
            return (int32_t)version;
    }
    return -1;
}

static void *read_versions(void *arg)
{
    struct connector_call call;
    struct tierce__buf *buf = NULL;
    (void)arg;
    uint64_t shared = bytes_of(SHARED);
    ck_assert_int_eq(tierce__pool_alloc(pool, &buf, shared), 0);
    while (atomic_load(&writing)) {
        connector_call_init(&call, TIERCE__STORE_GET, name_of("shared"), 0);
        call.req.buf = buf;
        call.req.length = shared;
        int rc = connector_call_run(connector, &call);
        /* All are as long or longer; whole reads tell the longer ones. */
        ck_assert(rc == 0 ||
                  (rc == TIERCE_E_FORMAT && !(connector->caps & TIERCE__CONNECTOR_RANGES)));
        if (rc == 0)
            ck_assert_int_ge(version_of(buf->data, shared), 0);
    }
    tierce__buf_release(buf);
    return NULL;
}

START_TEST(nobody_finds_half_an_object)
{
    pthread_t writers[WRITERS], readers[2];
    start(_i);
    if (factory->is_in_place) {
        end();
        return;
    }
    ck_assert_int_eq(put("shared", 0, SHARED), 0);
    atomic_store(&writing, true);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&readers[i], NULL, read_versions, NULL), 0);
    for (size_t i = 0; i < WRITERS; i++)
        ck_assert_int_eq(pthread_create(&writers[i], NULL, write_versions, (void *)i), 0);
    for (size_t i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    atomic_store(&writing, false);
    for (size_t i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    end();
}
END_TEST

#define CALLS 600

/* All kinds at once, and the connector is closed at once: each is answered once. */
START_TEST(close_answers_everything)
{
    struct connector_call *calls = calloc(CALLS, sizeof(*calls));
    struct tierce__buf *buf;
    start(_i);
    buf = connector_object(pool, 1, bytes_of(100000));
    for (int i = 0; i < CALLS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i % 50);
        connector_call_init(&calls[i], (enum tierce__store_op)(i % 4), name_of(name), 0);
        calls[i].req.buf = buf;
        calls[i].req.length = bytes_of(100000);
        if (calls[i].req.op == TIERCE__STORE_GET) /* which write, perhaps at the same time */
            ck_assert_int_eq(tierce__pool_alloc(pool, &calls[i].req.buf, bytes_of(100000)), 0);
    }
    for (int i = 0; i < CALLS; i++)
        connector->ops->submit(connector, &calls[i].req);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    for (int i = 0; i < CALLS; i++) {
        ck_assert_int_eq(atomic_load(&calls[i].done_count), 1);
        int status = calls[i].req.status;
        bool misses =
            calls[i].req.op == TIERCE__STORE_GET &&
            (status == TIERCE_E_MISS || (factory->is_in_place && status == TIERCE_E_FORMAT));
        ck_assert_msg(status == 0 || status == TIERCE_E_CANCELLED || misses ||
                          (keeps() && status == TIERCE_E_UNSUPPORTED),
                      "call %d, op %d: %d", i, (int)calls[i].req.op, status);
    }
    for (int i = 0; i < CALLS; i++) {
        ck_assert_uint_eq(atomic_load(&calls[i].req.buf->refs), 1);
        if (calls[i].req.buf != buf)
            tierce__buf_release(calls[i].req.buf);
    }
    tierce__buf_release(buf);
    free(calls);
    connector = open_another();
    ck_assert_int_eq(connector_ping(connector), 0);
    end();
}
END_TEST

START_TEST(another_connector_finds_it)
{
    start(_i);
    ck_assert_int_eq(put("a/b", 1, 70000), 0);
    struct tierce__connector *other = open_another();
    ck_assert_int_eq(connector_get(other, pool, name_of("a/b"), 1, 0, bytes_of(70000)), 0);
    ck_assert_int_eq(connector_delete(other, name_of("a/b")), keeps() ? TIERCE_E_UNSUPPORTED : 0);
    ck_assert_int_eq(exists("a/b"), keeps());
    struct tierce__tier_stats stats = connector_stats(other);
    ck_assert(stats.connects >= 1 && stats.connections >= 1);
    ck_assert(stats.waiting == 0 && stats.calls_hanging == 0);
    ck_assert(other->ops->close(other, tierce__deadline_in_ms(30000)));
    end();
}
END_TEST

/* All tests over one factory. Requests that close abandons may still reach a shared store, so the
 * test that closes during requests is the last. */
static Suite *make_suite(int i)
{
    Suite *suite = suite_create(factories[i].name);
    TCase *tcase = tcase_create(factories[i].name);
    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, what_was_put_is_got, i, i + 1);
    tcase_add_loop_test(tcase, what_is_not_there_is_a_miss, i, i + 1);
    tcase_add_loop_test(tcase, a_put_replaces, i, i + 1);
    tcase_add_loop_test(tcase, ranges, i, i + 1);
    tcase_add_loop_test(tcase, a_name_is_any_bytes, i, i + 1);
    tcase_add_loop_test(tcase, a_name_is_long, i, i + 1);
    tcase_add_loop_test(tcase, exists_counts_the_leading_names, i, i + 1);
    tcase_add_loop_test(tcase, exists_tells_what_is_certain, i, i + 1);
    tcase_add_loop_test(tcase, list_tells_all_names, i, i + 1);
    tcase_add_loop_test(tcase, broken_contracts_are_told, i, i + 1);
    tcase_add_loop_test(tcase, a_deadline_that_has_passed, i, i + 1);
    tcase_add_loop_test(tcase, nobody_finds_half_an_object, i, i + 1);
    tcase_add_loop_test(tcase, another_connector_finds_it, i, i + 1);
    tcase_add_loop_test(tcase, close_answers_everything, i, i + 1);
    suite_add_tcase(suite, tcase);
    return suite;
}

static int run_factory(size_t i)
{
#ifdef __SANITIZE_THREAD__
    if (factories[i].is_twin)
        return EXIT_SUCCESS;
#endif
    const struct connector_factory *shared = factories[i].renew != NULL ? &factories[i] : NULL;
    if (shared != NULL && !shared->start(url, sizeof(url), shared->ctx)) {
        fprintf(stderr, "%s does not start\n", shared->name);
        return EXIT_FAILURE;
    }
    int status = check_main(make_suite((int)i));
    if (shared != NULL)
        shared->stop(shared->ctx);
    return status;
}

int connector_conformance_main(const struct connector_factory *all, size_t count)
{
    factories = all;
    return check_at_once(run_factory, count) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
