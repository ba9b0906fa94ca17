/* SPDX-License-Identifier: Apache-2.0 */
/* Coded chunks that are read into the memory of a device, which decodes them. The device is `host`,
 * whose memory the test can read. */
#include "coded_store.h"
#include "log_record.h"

#include <errno.h>

#define MIB (1ULL << 20)

enum { GUARD = 0xee };

static struct store s;
static const struct tierce__codec *lossless;
static struct tierce__device_ops ops; /* of the host, but for `decode` */
static struct tierce__coded_device where;
static struct tierce__pool *there; /* in the memory of the device */
static uint8_t *memory, guard[MIB];

static int answer;       /* of the device; 0: it decodes */
static unsigned answers; /* so many calls */

static bool prefers_host;

bool __wrap_tierce__coded_speed_prefers_host(struct tierce__coded_speed *speed);
bool __wrap_tierce__coded_speed_prefers_host(struct tierce__coded_speed *speed)
{
    ck_assert_ptr_nonnull(speed);
    return prefers_host;
}

static unsigned decoded_ranges;

int __real_tierce__coded_range_decode(const struct tierce__coded_range *range,
                                      const struct tierce__coded_parsed *parsed,
                                      const struct tierce__store_req *req, const uint8_t *coded,
                                      struct tierce__coded_work *work);
int __wrap_tierce__coded_range_decode(const struct tierce__coded_range *range,
                                      const struct tierce__coded_parsed *parsed,
                                      const struct tierce__store_req *req, const uint8_t *coded,
                                      struct tierce__coded_work *work);
int __wrap_tierce__coded_range_decode(const struct tierce__coded_range *range,
                                      const struct tierce__coded_parsed *parsed,
                                      const struct tierce__store_req *req, const uint8_t *coded,
                                      struct tierce__coded_work *work)
{
    decoded_ranges++;
    return __real_tierce__coded_range_decode(range, parsed, req, coded, work);
}

static int decode(struct tierce__device *device, const struct tierce__device_run *runs,
                  size_t count, uint64_t deadline_ns)
{
    const struct tierce__device_ops *host = tierce__device_find("host");
    if (answers == 0)
        return host->decode(device, runs, count, deadline_ns);
    answers--;
    return answer;
}

static void setup(void)
{
    lossless = tierce__codec_find("lossless");
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace(&s, "bfloat16");
    memory = aligned_alloc(4096, MIB);
    ck_assert_ptr_nonnull(memory);
    memset(guard, GUARD, MIB);
    ck_assert_int_eq(
        tierce__pool_create(&there,
                            &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                        .cap_bytes = MIB,
                                                        .device_memory = memory}),
        0);
    ops = *tierce__device_find("host");
    ops.decode = decode;
    where.ops = &ops;
    ck_assert_int_eq(tierce__device_find("host")->open(&where.device, memory), 0);
    answers = 0;
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    tierce__pool_destroy(there);
    free(memory);
    ck_assert(where.device->ops->close(where.device, 0));
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void open_coded(void)
{
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.codec = lossless});
}

/* Reads a range into the memory of the device; 0 only if its bytes are right, and none beside it
 * has changed. */
static int get_there(uint64_t n, enum coded_kind kind, uint64_t from, uint64_t length)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__buf *buf;
    uint64_t bytes = coded_bytes(&s);
    uint8_t *want = aligned_alloc(64, bytes);
    ck_assert_ptr_nonnull(want);
    ck_assert_int_eq(tierce__pool_alloc(there, &buf, bytes), 0);
    ck_assert(buf->on_device);
    memcpy(memory, guard, MIB);
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .offset = from,
                                    .length = length};
    int rc = store_run(&s, &req);
    const uint8_t *got = buf->data;
    if (rc == 0) {
        coded_make(&s, want, n, kind);
        ck_assert_mem_eq(got + from, want + from, length);
    }
    if (rc == 0) {
        size_t begin = (size_t)(got + from - memory), end = begin + length;
        ck_assert(memcmp(memory, guard, begin) == 0);
        ck_assert(memcmp(memory + end, guard, MIB - end) == 0);
    }
    tierce__buf_release(buf);
    free(want);
    return rc;
}

static int get_all_there(uint64_t n)
{
    return get_there(n, CODED_VALUES, 0, coded_bytes(&s));
}

/* Every range of pages, also those that cut layers, the header or the padding. */
START_TEST(ranges_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    open_coded();
    tierce__coded_tier_use_device(s.tier, &where);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    for (uint64_t from = 0; from <= bytes; from += 4096) {
        for (uint64_t length = 0; from + length <= bytes; length += 4096)
            ck_assert_int_eq(get_there(1, CODED_VALUES, from, length), 0);
    }
    struct tierce__coded_stats stats = coded_stats(&s);
    ck_assert_uint_gt(stats.device_decoded_raw_bytes, 0);
    ck_assert_uint_lt(stats.device_decoded_raw_bytes, stats.decoded_raw_bytes);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).device_decoded_raw_bytes, stats.device_decoded_raw_bytes);
    ck_assert_uint_gt(coded_stats(&s).decoded_raw_bytes, stats.decoded_raw_bytes);
}
END_TEST

/* The host decodes a layer that a range cuts, so the device is not said to have done it. */
START_TEST(only_whole_layers_are_decoded_there)
{
    open_coded();
    tierce__coded_tier_use_device(s.tier, &where);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(get_there(1, CODED_VALUES, 4096, 4096), 0);
    struct tierce__coded_stats stats = coded_stats(&s);
    ck_assert_uint_gt(stats.decoded_raw_bytes, 0);
    ck_assert_uint_eq(stats.device_decoded_raw_bytes, 0);
    ck_assert_int_eq(get_all_there(1), 0);
    ck_assert_uint_eq(coded_stats(&s).decoded_raw_bytes - stats.decoded_raw_bytes,
                      coded_stats(&s).device_decoded_raw_bytes);
}
END_TEST

static bool spoils; /* what is encoded */

static int64_t encode_spoiled(uint8_t *dst, uint64_t room, const uint8_t *src, uint64_t bytes,
                              const struct tierce__codec_shape *shape)
{
    int64_t length = lossless->encode(dst, room, src, bytes, shape);
    if (spoils && length > 0)
        memset(dst, 0xff, 4); /* of the header of a block */
    return length;
}

/* Bytes whose sum is right, and which nobody can decode, say nothing about the device. */
START_TEST(a_device_is_used_after_an_invalid_object)
{
    struct tierce__codec spoiled = *lossless;
    spoiled.encode = encode_spoiled;
    record_log(TIERCE_LOG_INFO);
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.codec = &spoiled});
    tierce__coded_tier_use_device(s.tier, &where);
    spoils = true;
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    spoils = false;
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    ck_assert_int_eq(get_all_there(1), TIERCE_E_FORMAT);
    ck_assert_uint_eq(recorded("gpu_decode_off"), 0);
    ck_assert_int_eq(get_all_there(2), 0);
    ck_assert_uint_gt(coded_stats(&s).device_decoded_raw_bytes, 0);
    store_close(&s);
    open_coded();
}
END_TEST

START_TEST(without_a_device_nothing_is_decoded_there)
{
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(get_all_there(1), TIERCE_E_UNSUPPORTED);
    tierce__coded_tier_use_device(s.tier, &where);
    ck_assert_int_eq(get_all_there(1), 0);
    ck_assert_int_eq(get_there(7, CODED_VALUES, 0, coded_bytes(&s)), TIERCE_E_MISS);
}
END_TEST

/* The rule is that of coded_speed.h. */
START_TEST(a_slow_device_does_not_decode)
{
    open_coded();
    tierce__coded_tier_use_device(s.tier, &where);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    prefers_host = true;
    ck_assert_int_eq(get_all_there(1), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    prefers_host = false;
    ck_assert_int_eq(get_all_there(1), 0);
}
END_TEST

/* A device that may decode the next range is asked again; another is not. */
START_TEST(a_device_that_fails)
{
    static const struct {
        int error, status;
        bool is_over;
    } rows[] = {{-ENOMEM, TIERCE_E_UNSUPPORTED, false},
                {-ECANCELED, TIERCE_E_UNSUPPORTED, false},
                {TIERCE_E_DEADLINE, TIERCE_E_DEADLINE, false},
                {TIERCE_E_UNSUPPORTED, TIERCE_E_UNSUPPORTED, true},
                {TIERCE_E_FORMAT, TIERCE_E_UNSUPPORTED, true},
                {TIERCE_E_CLOSED, TIERCE_E_UNSUPPORTED, true},
                {-EIO, TIERCE_E_UNSUPPORTED, true}};
    record_log(TIERCE_LOG_INFO);
    open_coded();
    tierce__coded_tier_use_device(s.tier, &where);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    answer = rows[_i].error;
    answers = 1;
    ck_assert_int_eq(get_all_there(1), rows[_i].status);
    ck_assert_uint_eq(answers, 0);
    ck_assert_int_eq(get_all_there(1), rows[_i].is_over ? TIERCE_E_UNSUPPORTED : 0);
    ck_assert_uint_eq(recorded("gpu_decode_off"), rows[_i].is_over);
    ck_assert_uint_eq(coded_stats(&s).device_decoded_raw_bytes > 0, !rows[_i].is_over);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0); /* the chunk is there */
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    open_coded();
    tierce__coded_tier_use_device(s.tier, &where);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(get_all_there(1), 0); /* the threads have started */
    for (uint64_t nth = 1, made = 1; nth <= made; nth++) {
        (void)tierce__alloc_fail_nth(nth);
        int rc = get_there(1, CODED_VALUES, 4096, 8192);
        made = tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == TIERCE_E_FULL);
        ck_assert_int_eq(get_there(1, CODED_VALUES, 4096, 8192), 0);
    }
}
END_TEST

/* KV that is approximate is decoded by the host. */
START_TEST(lossy_chunks_are_not_decoded_there)
{
    coded_namespace_of(&s, "bfloat16", "tierce-int8");
    open_coded();
    tierce__coded_tier_use_device(s.tier, &where);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).lossy_chunks, 1);
    ck_assert_int_eq(get_all_there(1), TIERCE_E_UNSUPPORTED);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
}
END_TEST

/* Whether new chunks are encrypted or not: an object shows that it is. */
START_TEST(encrypted_chunks_are_not_decoded_there)
{
    static const struct tierce__coded_keys_opts print = {
        .size = sizeof(print),
        .command = "echo 1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"};
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__coded_keys *keys;
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &print, why), 0);
    coded_open(&s, 8 * MIB,
               &(struct tierce__coded_opts){.codec = lossless, .keys = keys, .encrypts = true});
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).encrypted_chunks, 1);
    store_close(&s);
    coded_open(&s, 8 * MIB,
               &(struct tierce__coded_opts){.codec = lossless, .keys = keys, .encrypts = _i == 0});
    tierce__coded_tier_use_device(s.tier, &where);
    decoded_ranges = 0;
    ck_assert_int_eq(get_all_there(1), TIERCE_E_UNSUPPORTED);
    ck_assert_uint_eq(decoded_ranges, 0); /* the head was enough to know */
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    store_close(&s);
    tierce__coded_keys_close(keys);
    open_coded();
}
END_TEST

CHECK_MAIN("coded_on_device", .seconds = 60, .setup = setup, .teardown = teardown,
           .tests = {ranges_come_back, only_whole_layers_are_decoded_there,
                     a_device_is_used_after_an_invalid_object,
                     without_a_device_nothing_is_decoded_there, a_slow_device_does_not_decode,
                     each_allocation_fails_once, lossy_chunks_are_not_decoded_there},
           .loops = {{a_device_that_fails, 0, 7}, {encrypted_chunks_are_not_decoded_there, 0, 2}})
