/* SPDX-License-Identifier: Apache-2.0 */
/* A disk of namespaces that have chosen a lossy codec: callers read what the codec restores, with
 * sums that fit, and no other namespace is given such bytes. */
#include "coded_store.h"
#include "silent_log.h"

#define MIB (1ULL << 20)

static struct store s;

static void setup(void)
{
    silence_log();
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace_of(&s, "bfloat16", "tierce-int8");
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void open_without_codec(void)
{
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){0});
}

/* Whether the tier has a codec of its own makes no difference. */
START_TEST(chunks_are_coded_by_the_codec_of_their_namespace)
{
    static const char *const chosen[] = {"tierce-int8", "tierce-int4", "tierce-fp8",
                                         "tierce-cachegen-3-hk.tc8.c8t"};
    const struct tierce__codec *own = _i == 0 ? NULL : tierce__codec_find("lossless");
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.codec = own});
    for (uint64_t i = 0; i < 4; i++) {
        coded_namespace_of(&s, "bfloat16", chosen[i]);
        struct tierce__coded_stats before = coded_stats(&s);
        for (uint64_t n = 0; n < CODED_KINDS; n++)
            ck_assert_int_eq(coded_put(&s, n, (enum coded_kind)n), 0);
        struct tierce__coded_stats stats = coded_stats(&s);
        ck_assert_uint_eq(stats.lossy_chunks - before.lossy_chunks, 2);
        ck_assert_uint_eq(stats.encoded_chunks, stats.lossy_chunks);
        for (uint64_t n = 0; n < CODED_KINDS; n++)
            ck_assert_int_eq(coded_get_all(&s, n, (enum coded_kind)n), 0);
        stats = coded_stats(&s);
        ck_assert_uint_eq(stats.lossy_decoded_raw_bytes, stats.decoded_raw_bytes);
    }
    coded_namespace(&s, "bfloat16");
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).encoded_chunks, 8 + (own != NULL));
    ck_assert_uint_eq(coded_stats(&s).lossy_chunks, 8);
}
END_TEST

/* Pages and suffixes, after a restart, for which no setting is required. */
START_TEST(ranges_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    open_without_codec();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    open_without_codec();
    for (uint64_t from = 0; from < bytes; from += 4096) {
        ck_assert_int_eq(coded_get(&s, 1, CODED_VALUES, from, 4096), 0);
        ck_assert_int_eq(coded_get(&s, 1, CODED_VALUES, from, bytes - from), 0);
    }
}
END_TEST

/* A lossy object in a namespace of exact KV is never read. */
START_TEST(a_codec_that_was_not_chosen_is_not_read)
{
    /* No cell has channels of 32 in three heads, and there are three layers. */
    static const char *const other[] = {"",
                                        "tierce-cachegen",
                                        "int8",
                                        "tierce-int8-3-kthc8",
                                        "tierce-cachegen-2-kthc8",
                                        "tierce-cachegen-3-kthc32",
                                        "tierce-cachegen-03-kthc8"};
    open_without_codec();
    for (uint64_t n = 0; n < sizeof(other) / sizeof(other[0]); n++) {
        struct tierce__buf *raw, *coded;
        enum tierce__coded_raw why;
        uint64_t bytes = coded_bytes(&s);
        coded_namespace_of(&s, "bfloat16", other[n]);
        ck_assert_int_eq(coded_put(&s, n, CODED_VALUES), 0);
        ck_assert_int_eq(coded_get_all(&s, n, CODED_VALUES), 0);
        ck_assert_uint_eq(coded_stats(&s).encoded_chunks, 0);
        struct tierce__key key = store_key(&s, n);
        ck_assert_int_eq(tierce__pool_alloc(s.pool, &raw, bytes), 0);
        coded_make(&s, raw->data, n, CODED_VALUES);
        const struct tierce__coded_source source = {
            .raw = raw, .object_bytes = bytes, .ns = s.ns, .codec = tierce__codec_find("int8")};
        struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                        .keys = &key,
                                        .key_count = 1,
                                        .object_bytes = bytes,
                                        .recodes = true};
        req.coded_bytes = tierce__coded_tier_encode(s.tier, &coded, &source, &why);
        ck_assert_ptr_nonnull(coded);
        req.buf = coded;
        int rc = TIERCE_E_REFUSED;
        while (rc == TIERCE_E_REFUSED) { /* until the first form is durable */
            ck_assert_int_eq(store_flush(&s), 0);
            rc = store_run(&s, &req);
        }
        ck_assert_int_eq(rc, 0);
        ck_assert_int_eq(coded_get_all(&s, n, CODED_VALUES), TIERCE_E_VERSION);
        tierce__buf_release(raw);
        tierce__buf_release(coded);
    }
}
END_TEST

/* Layers of a group have numbers that the order of a chunk does not show. */
START_TEST(a_group_of_layers_stays_exact)
{
    static const uint32_t layers[] = {0, 2, 4};
    struct tierce_namespace ns = coded_fields("bfloat16", "tierce-cachegen-3-kthc8");
    open_without_codec();
    ns.group = TIERCE_GROUP_FULL;
    ns.layers = layers;
    coded_name(&s, &ns);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).encoded_chunks, 0);
}
END_TEST

/* KV of a type that lossy codecs do not code is stored as if nothing had been chosen. */
START_TEST(other_types_stay_exact)
{
    static const char *const types[] = {"float32", "fp8_e4m3"};
    open_without_codec();
    for (uint64_t n = 0; n < 2; n++) {
        coded_namespace_of(&s, types[n], "tierce-int8");
        ck_assert_int_eq(coded_put(&s, n, CODED_VALUES), 0);
        ck_assert_uint_eq(coded_stats(&s).encoded_chunks, 0);
    }
}
END_TEST

/* A chunk whose cells have rotted in memory is stored with its old sums. */
START_TEST(damage_in_memory_is_not_hidden)
{
    struct tierce__key key = store_key(&s, 1);
    struct tierce__buf *buf;
    uint8_t first[TIERCE_HASH_BYTES];
    uint64_t bytes = coded_bytes(&s);
    struct tierce__chunk_info info;
    open_without_codec();
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, bytes), 0);
    coded_make(&s, buf->data, 1, CODED_VALUES);
    buf->data[coded_info(&s, 1).extent.header_bytes + 7000] ^= 4;
    memset(first, 1, sizeof(first));
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .first_block = first,
                                    .object_bytes = bytes,
                                    .token_start = 64,
                                    .block_count = CODED_BLOCKS};
    ck_assert_int_eq(store_run(&s, &req), 0);
    ck_assert_uint_eq(coded_stats(&s).raw_chunks[TIERCE__CODED_RAW_LONGER], 1);
    req.op = TIERCE__STORE_GET;
    req.length = bytes;
    ck_assert_int_eq(store_run(&s, &req), 0);
    ck_assert_int_eq(tierce__chunk_parse(&info, buf->data, bytes), 0);
    ck_assert_uint_eq(tierce__chunk_verify_cells(buf->data, &info), 1);
    tierce__buf_release(buf);
}
END_TEST

CHECK_MAIN("coded_lossy", .seconds = 60, .setup = setup, .teardown = teardown,
           .tests = {ranges_come_back, a_codec_that_was_not_chosen_is_not_read,
                     other_types_stay_exact, a_group_of_layers_stays_exact,
                     damage_in_memory_is_not_hidden},
           .loops = {{chunks_are_coded_by_the_codec_of_their_namespace, 0, 2}})
