/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks in a real Redis in LMCache's layout: the bytes, chunks without our header, chunks with an
 * evicted half, and chunks that must not be shared.
 */
#include "check_main.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "core/key/key_text.h"
#include "lmcache_fixture.h"
#include "redis_server.h"
#include "net/redis/resp_client.h"
#include "store/remote/lmcache_names.h"

#include <errno.h>

enum { BLOCKS = 12, CHUNKS = BLOCKS / LF_CHUNK_BLOCKS };

static struct redis_server server;
static struct tierce__resp *resp;
static struct lmcache_fixture fx;
static char url[256];

static void start(void)
{
    char why[TIERCE__RESP_WHY_BYTES];
    ck_assert(redis_start(&server, NULL));
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u?layout=lmcache&model=" LF_MODEL,
             (unsigned)server.port);
    ck_assert_int_eq(
        tierce__resp_open(&resp,
                          &(struct tierce__resp_opts){.size = sizeof(struct tierce__resp_opts),
                                                      .port = server.port},
                          why),
        0);
}

static void end(void)
{
    tierce__resp_close(resp);
    redis_stop(&server);
}

static void open_as(const char *layout, const char *weights)
{
    ck_assert_int_eq(lf_open(&fx, url, layout, weights), 0);
}

/* Stores, in an engine of its own. */
static void store(unsigned seed)
{
    open_as(LF_LAYOUT, "00");
    ck_assert_int_ge(lf_store(&fx, seed, BLOCKS, NULL), 0); /* as many as were missing */
    lf_close(&fx);
}

/* Loads, in an engine of its own. */
static int64_t load(unsigned seed)
{
    open_as(LF_LAYOUT, "00");
    int64_t loaded = lf_load(&fx, seed, BLOCKS, NULL);
    lf_close(&fx);
    return loaded;
}

/* One command of texts to the server. */
static struct tierce__resp_value tell(const char *a, const char *b, const char *c, size_t c_bytes)
{
    struct tierce__resp_value value;
    const char *arguments[] = {a, b, c};
    size_t bytes[] = {strlen(a), b != NULL ? strlen(b) : 0, c_bytes};
    size_t count = b == NULL ? 1 : c == NULL ? 2 : 3;
    ck_assert_int_eq(tierce__resp_call(resp, arguments, bytes, count, &value, 0), 0);
    return value;
}

/* LMCache's key of a chunk, by its documented rules. */
static const char *key_of(unsigned seed, unsigned chunk, const char *suffix)
{
    static char text[256];
    int32_t tokens[BLOCKS * LF_BLOCK_TOKENS];
    struct tierce__lmcache_int hashes[CHUNKS];
    for (unsigned i = 0; i < BLOCKS * LF_BLOCK_TOKENS; i++)
        tokens[i] = lf_token(seed, i);
    tierce__lmcache_hash_chunks(hashes,
                                &(struct tierce__lmcache_opts){.chunk_tokens = LF_CHUNK_TOKENS},
                                tokens, BLOCKS * LF_BLOCK_TOKENS);
    snprintf(text, sizeof(text), LF_MODEL "@1@0@%s%llx@bfloat16%s",
             hashes[chunk].negative ? "-" : "", (unsigned long long)hashes[chunk].magnitude,
             suffix);
    return text;
}

/* LMCache's bytes of a chunk: [2, layers, tokens, hidden]. */
static void expect_kv(uint8_t out[LF_CHUNK_BYTES], unsigned seed, unsigned chunk)
{
    for (unsigned kv = 0; kv < 2; kv++)
        for (unsigned layer = 0; layer < LF_LAYERS; layer++)
            for (unsigned token = 0; token < LF_CHUNK_TOKENS; token++)
                for (unsigned place = 0; place < LF_HIDDEN; place++) {
                    uint16_t element =
                        lf_element(seed, kv, layer, chunk * LF_CHUNK_TOKENS + token, place);
                    memcpy(out, &element, 2);
                    out += 2;
                }
}

static const uint8_t metadata[28] = {LF_CHUNK_BYTES & 255,
                                     LF_CHUNK_BYTES >> 8,
                                     0,
                                     0,
                                     1,
                                     0,
                                     0,
                                     0,
                                     3,
                                     0,
                                     0,
                                     0,
                                     2,
                                     0,
                                     0,
                                     0,
                                     LF_LAYERS,
                                     0,
                                     0,
                                     0,
                                     16,
                                     0,
                                     0,
                                     0,
                                     8,
                                     0,
                                     0,
                                     0};

START_TEST(the_bytes)
{
    uint8_t kv[LF_CHUNK_BYTES];
    start();
    store(1);
    for (unsigned i = 0; i < CHUNKS; i++) {
        struct tierce__resp_value value = tell("GET", key_of(1, i, "metadata"), NULL, 0);
        ck_assert_uint_eq(value.bytes, sizeof(metadata));
        ck_assert_mem_eq(value.text, metadata, sizeof(metadata));
        value = tell("GET", key_of(1, i, "kv_bytes"), NULL, 0);
        expect_kv(kv, 1, i);
        ck_assert_uint_eq(value.bytes, sizeof(kv));
        ck_assert_mem_eq(value.text, kv, sizeof(kv));
        value = tell("GET", key_of(1, i, "tierce"), NULL, 0);
        ck_assert_uint_eq(value.bytes, 4096);
        ck_assert_mem_eq(value.text, "TIERCECK", 8);
    }
    ck_assert_int_eq(tell("DBSIZE", NULL, NULL, 0).integer, 3 * CHUNKS);
    ck_assert_int_eq(load(1), BLOCKS);
    ck_assert_int_eq(load(2), 0);
    end();
}
END_TEST

/* Without our header it is LMCache's: a header is made for it. */
START_TEST(without_a_header)
{
    uint8_t kv[LF_CHUNK_BYTES];
    start();
    for (unsigned i = 0; i < CHUNKS; i++) {
        expect_kv(kv, 3, i);
        tell("SET", key_of(3, i, "kv_bytes"), (const char *)kv, sizeof(kv));
        tell("SET", key_of(3, i, "metadata"), (const char *)metadata, sizeof(metadata));
    }
    ck_assert_int_eq(load(3), BLOCKS);
    /* And what is there is not written again. */
    store(3);
    ck_assert_int_eq(tell("DBSIZE", NULL, NULL, 0).integer, 2 * CHUNKS);
    end();
}
END_TEST

/* One of the three is gone, cut short or somebody else's. */
START_TEST(halves)
{
    static const struct {
        const char *what;
        int64_t loaded;
    } cases[] = {{"kv_bytes", LF_CHUNK_BLOCKS}, {"metadata", LF_CHUNK_BLOCKS}, {"tierce", BLOCKS}};
    uint8_t other[sizeof(metadata)];
    start();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        store(1);
        tell("DEL", key_of(1, 1, cases[i].what), NULL, 0);
        ck_assert_int_eq(load(1), cases[i].loaded);
        store(1);
        ck_assert_int_eq(load(1), BLOCKS);
    }
    store(1);
    tell("SET", key_of(1, 1, "kv_bytes"), "short", 5);
    ck_assert_int_eq(load(1), LF_CHUNK_BLOCKS);
    ck_assert_int_eq(tell("EXISTS", key_of(1, 1, "metadata"), NULL, 0).integer, 0);
    store(1);
    memcpy(other, metadata, sizeof(other));
    other[20]++; /* of more tokens */
    tell("SET", key_of(1, 2, "metadata"), (const char *)other, sizeof(other));
    ck_assert_int_eq(load(1), 2 * LF_CHUNK_BLOCKS);
    end();
}
END_TEST

/* The server accepts everything but metadata, as after an interrupted store: the chunk is not
 * found, and is stored again later. */
START_TEST(metadata_comes_last)
{
    static const char *const rights[] = {"ACL",        "SETUSER",  "default",      "resetkeys",
                                         "~*kv_bytes", "~*tierce", "%R~*metadata", "~*"};
    size_t bytes[8];
    struct tierce__resp_value value;
    for (size_t i = 0; i < 8; i++)
        bytes[i] = strlen(rights[i]);
    start();
    ck_assert_int_eq(tierce__resp_call(resp, rights, bytes, 7, &value, 0), 0);
    open_as(LF_LAYOUT, "00");
    ck_assert_int_eq(lf_store(&fx, 1, BLOCKS, NULL), -EACCES);
    lf_close(&fx);
    ck_assert_int_eq(tell("EXISTS", key_of(1, 0, "kv_bytes"), NULL, 0).integer, 1);
    ck_assert_int_eq(tell("EXISTS", key_of(1, 0, "tierce"), NULL, 0).integer, 1);
    ck_assert_int_eq(tell("EXISTS", key_of(1, 0, "metadata"), NULL, 0).integer, 0);
    ck_assert_int_eq(load(1), 0);
    ck_assert_int_eq(tierce__resp_call(resp, rights, bytes, 8, &value, 0), 0);
    store(1);
    ck_assert_int_eq(tell("DBSIZE", NULL, NULL, 0).integer, 3 * CHUNKS);
    ck_assert_int_eq(load(1), BLOCKS);
    end();
}
END_TEST

/* A bit that turned: the sums of our header find it. */
START_TEST(damage)
{
    start();
    store(1);
    uint8_t kv[LF_CHUNK_BYTES];
    expect_kv(kv, 1, 1);
    kv[77] ^= 4;
    tell("SET", key_of(1, 1, "kv_bytes"), (const char *)kv, sizeof(kv));
    open_as(LF_LAYOUT, "00");
    int64_t loaded = lf_load(&fx, 1, BLOCKS, NULL);
    ck_assert_msg(loaded < BLOCKS && loaded >= 0, "%d", (int)loaded);
    lf_close(&fx);
    end();
}
END_TEST

/* Chunks that LMCache could not distinguish or read are not stored there; no request fails for
 * that. */
START_TEST(what_is_not_shared)
{
    start();
    open_as("vllm/opaque", "00");
    ck_assert_int_eq(lf_store(&fx, 1, BLOCKS, NULL), BLOCKS);
    ck_assert_int_eq(lf_load(&fx, 1, BLOCKS, NULL), BLOCKS); /* from memory */
    lf_close(&fx);
    open_as("lmcache:KV_2LTD:float:8", "00"); /* cells of another length */
    ck_assert_int_eq(lf_store(&fx, 1, BLOCKS, NULL), BLOCKS);
    lf_close(&fx);
    open_as(LF_LAYOUT, "00");
    ck_assert_int_eq(lf_store(&fx, 1, BLOCKS, "salt"), BLOCKS);
    lf_close(&fx);
    ck_assert_int_eq(tell("DBSIZE", NULL, NULL, 0).integer, 0);
    /* The unfull chunk at the end. */
    open_as(LF_LAYOUT, "00");
    ck_assert_int_eq(lf_store(&fx, 1, BLOCKS - 1, NULL), BLOCKS - LF_CHUNK_BLOCKS);
    lf_close(&fx);
    ck_assert_int_eq(tell("DBSIZE", NULL, NULL, 0).integer, 3 * (CHUNKS - 1));
    end();
}
END_TEST

/* The same tokens of other weights have the same key there: a miss, never the other's bytes. */
START_TEST(other_weights)
{
    start();
    store(1);
    open_as(LF_LAYOUT, "11");
    ck_assert_int_eq(lf_load(&fx, 1, BLOCKS, NULL), 0);
    lf_close(&fx);
    end();
}
END_TEST

/* A chunk of LMCache has all layers of the model. */
START_TEST(a_group_is_not_shared)
{
    static const uint32_t cells[LF_LAYERS] = {LF_CELL, LF_CELL, LF_CELL}, layers[] = {0, 1, 2};
    struct tierce__lmcache_form form;
    char why[TIERCE__LMCACHE_WHY_BYTES];
    struct tierce_namespace ns = {.size = sizeof(ns),
                                  .layout = LF_LAYOUT,
                                  .layer_count = LF_LAYERS,
                                  .cell_bytes = cells,
                                  .block_tokens = LF_BLOCK_TOKENS,
                                  .chunk_blocks = LF_CHUNK_BLOCKS,
                                  .layers = layers};
    ck_assert_int_eq(tierce__lmcache_form_of(&form, &ns, why), 0);
    ns.group = TIERCE_GROUP_FULL;
    ck_assert_int_eq(tierce__lmcache_form_of(&form, &ns, why), TIERCE_E_UNSUPPORTED);
    ck_assert_str_eq(why,
                     "LMCache cannot read it: the namespace describes one group of layers only");
}
END_TEST

static const char *const refused[][2] = {
    {"redis://h?layout=other", "layout is 'other'; accepted are tierce and lmcache"},
    {"redis://h?layout=lmcache", "layout=lmcache requires model="},
    {"redis://h?layout=lmcache&model=a%40b", "model is not valid in LMCache's keys"},
    {"redis://h?layout=lmcache&model=m&hash=md5", "hash must be builtin or sha256_cbor"},
    {"redis://h?layout=lmcache&model=m&none_hash=x", "none_hash must be vllm or"},
    {"file:///tmp/x?layout=lmcache&model=m", "layout=lmcache requires a Redis store"},
    {"redis://h?layout=lmcache&model=m redis://i?layout=lmcache&model=m",
     "only one store may have"},
    {"redis://h?model=m", "unknown parameter \"model\""},
    {"redis://h?read_only=maybe", "read_only is 'maybe'; accepted are true and false"},
};

START_TEST(wrong_urls)
{
    struct tierce_config *config = NULL;
    struct tierce_engine *engine = NULL;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "";
    uint64_t live = tierce__alloc_live();
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_set(config, "memory.size", "4MiB", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "disk.path", "", why), 0);
    ck_assert_int_eq(tierce_config_set(config, "remote.urls", refused[_i][0], why), 0);
    ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, refused[_i][1]) != NULL, "%s", why);
    tierce_config_destroy(config);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

CHECK_MAIN("lmcache layout", .seconds = 60,
           .tests = {the_bytes, without_a_header, halves, metadata_comes_last, damage,
                     what_is_not_shared, other_weights, a_group_is_not_shared},
           .loops = {{wrong_urls, 0, sizeof(refused) / sizeof(*refused)}})
