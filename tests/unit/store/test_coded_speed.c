/* SPDX-License-Identifier: Apache-2.0 */
/* When a codec is too slow for a device, on a simulated clock: a host that was busy uses the codec
 * again, and one that becomes busy stops. */
#include "base/clock.h"
#include "check_main.h"
#include "store/coded/coded_parts.h"

#define MIB (1ULL << 20)
#define GIB (1ULL << 30)

static const struct tierce__codec codec = {.name = "simulated"};
static struct tierce__coded_speed speed;
static struct tierce__coded_stats stats;
static uint64_t now_ns;

uint64_t __wrap_tierce__now_ns(void);
uint64_t __wrap_tierce__now_ns(void)
{
    return now_ns;
}

static void setup(void)
{
    now_ns = 1000 * TIERCE__MS_NS;
    stats = (struct tierce__coded_stats){0};
    tierce__coded_speed_init(&speed, 0, 1);
}

static void pass_minutes(unsigned minutes)
{
    now_ns += minutes * 60000 * TIERCE__MS_NS;
}

/* Both in pieces of 16 MiB, at so many megabytes a second. */
static void read_bytes(uint64_t bytes, uint64_t MBps)
{
    for (uint64_t at = 0; at < bytes; at += 16 * MIB) {
        tierce__coded_speed_begin(&speed);
        now_ns += 16 * MIB * 1000 / MBps;
        tierce__coded_speed_end(&speed, 16 * MIB);
    }
}

static void decode_bytes(uint64_t bytes, uint64_t MBps, uint64_t decrypt_ns)
{
    const struct tierce__coded_work work = {
        .raw_bytes = 16 * MIB, .coded_bytes = 11 * MIB, .decrypt_ns = decrypt_ns};
    for (uint64_t at = 0; at < bytes; at += 16 * MIB)
        tierce__coded_speed_decoded(&speed, &stats, &work, 0, 16 * MIB * 1000 / MBps + decrypt_ns);
}

START_TEST(a_busy_hour_is_forgotten_after_some_gigabytes)
{
    read_bytes(GIB, 1000);
    decode_bytes(100 * GIB, 400, 0);
    ck_assert(tierce__coded_speed_is_slow(&speed));
    decode_bytes(4 * GIB, 5000, 0);
    ck_assert(!tierce__coded_speed_is_slow(&speed));
    ck_assert_uint_eq(stats.decoded_raw_bytes, 104 * GIB); /* the statistics forget nothing */
    decode_bytes(4 * GIB, 400, 0);
    ck_assert(tierce__coded_speed_is_slow(&speed));
}
END_TEST

/* While it is not used nothing may be decoded that would show that it has become faster. */
START_TEST(an_unused_codec_is_tried_again)
{
    decode_bytes(100 * GIB, 400, 0);
    for (unsigned minutes = 0; minutes < 20; minutes++) {
        read_bytes(GIB, 1000);
        ck_assert(minutes > 15 || tierce__coded_speed_is_slow(&speed));
        pass_minutes(1);
    }
    ck_assert(!tierce__coded_speed_is_slow(&speed));
    ck_assert(tierce__coded_speed_of_device(&speed) > 900e6);
    decode_bytes(64 * MIB, 400, 0);
    ck_assert(tierce__coded_speed_is_slow(&speed));
    pass_minutes(60 * 24 * 365);
    ck_assert(tierce__coded_speed_of_device(&speed) == 0);
    ck_assert(tierce__coded_speed_of_decoding(&speed) == 0);
}
END_TEST

START_TEST(decryption_is_not_the_time_of_the_codec)
{
    read_bytes(GIB, 1000);
    decode_bytes(GIB, 2000, 60000 * TIERCE__MS_NS);
    ck_assert(!tierce__coded_speed_is_slow(&speed));
    double MBps = tierce__coded_speed_of_decoding(&speed) / 1e6;
    ck_assert(MBps > 1990 && MBps < 2010);
    ck_assert_uint_lt(stats.decode_ns, 1000 * TIERCE__MS_NS);
}
END_TEST

/* Time in which two reads are in progress counts once. */
START_TEST(reads_at_the_same_time)
{
    tierce__coded_speed_begin(&speed);
    for (unsigned i = 0; i < 64; i++) {
        tierce__coded_speed_begin(&speed);
        now_ns += 16 * TIERCE__MS_NS;
        tierce__coded_speed_end(&speed, 16 * MIB);
    }
    tierce__coded_speed_end(&speed, 0);
    double MiBps = tierce__coded_speed_of_device(&speed) / (double)MIB;
    ck_assert(MiBps > 990 && MiBps < 1010);
}
END_TEST

START_TEST(it_is_told_once)
{
    read_bytes(GIB, 1000);
    decode_bytes(GIB, 400, 0);
    struct tierce__coded_slow first = tierce__coded_speed_tell(&speed, &codec);
    ck_assert_ptr_eq(first.codec, &codec);
    ck_assert(first.decode > 390e6 && first.decode < 410e6 && first.device > 990e6);
    ck_assert_ptr_null(tierce__coded_speed_tell(&speed, &codec).codec);
}
END_TEST

CHECK_MAIN("coded_speed", .setup = setup,
           .tests = {a_busy_hour_is_forgotten_after_some_gigabytes, an_unused_codec_is_tried_again,
                     decryption_is_not_the_time_of_the_codec, reads_at_the_same_time,
                     it_is_told_once})
