/* SPDX-License-Identifier: Apache-2.0 */
/* When a codec makes loads slower, on a simulated clock: loads of any number of parts, links and
 * decoders; a host that was busy uses the codec again, and one that becomes busy stops. */
#include <string.h>

#include "base/clock.h"
#include "base/log/log.h"
#include "check_main.h"
#include "store/coded/coded_parts.h"

#define MIB        (1ULL << 20)
#define GIB        (1ULL << 30)
#define PART_BYTES (MIB)
#define RATIO      0.68 /* coded bytes by raw ones */
#define PARTS_MAX  64

static const struct tierce__codec codec = {.name = "simulated"};
static struct tierce__coded_speed speed;
static struct tierce__coded_stats stats;
static uint64_t now_ns;
static char logged[512]; /* the last line */
static unsigned log_count;

uint64_t __wrap_tierce__now_ns(void);
uint64_t __wrap_tierce__now_ns(void)
{
    return now_ns;
}

static void note_line(void *arg, enum tierce_log_level level, const char *event, const char *fields)
{
    (void)arg, (void)level;
    if (strncmp(event, "codec_", 6) != 0)
        return;
    snprintf(logged, sizeof(logged), "%s %s", event, fields);
    log_count++;
}

static void setup(void)
{
    now_ns = 1000 * TIERCE__MS_NS;
    stats = (struct tierce__coded_stats){0};
    log_count = 0;
    tierce_set_log_fn(note_line, NULL, TIERCE_LOG_INFO);
    tierce__coded_speed_init(&speed, 0, 2, 0);
}

static void pass_minutes(unsigned minutes)
{
    now_ns += minutes * 60000 * TIERCE__MS_NS;
}

static uint64_t ns_of(double bytes, double MBps)
{
    return (uint64_t)(bytes * 1000 / MBps);
}

/* As for a put; logs what has changed. */
static bool is_slow(void)
{
    struct tierce__coded_news news = {0};
    bool slow = tierce__coded_speed_is_slow(&speed, &news, &codec);
    tierce__coded_log_news("disk", &news);
    return slow;
}

/* ---- simulated loads ------------------------------------------------------------------------- */

struct load {
    unsigned parts;
    double link_MBps, decode_MBps; /* of one thread, raw bytes */
    unsigned threads;
    uint64_t head_ns;    /* before the parts */
    uint64_t decrypt_ns; /* of a part */
    bool on_device;
};

static void load_raw(const struct load *load)
{
    for (unsigned i = 0; i < load->parts; i++)
        tierce__coded_speed_begin(&speed, TIERCE__CODED_READ_RAW);
    for (unsigned i = 0; i < load->parts; i++) {
        now_ns += ns_of(PART_BYTES, load->link_MBps);
        tierce__coded_speed_end(&speed, TIERCE__CODED_READ_RAW, PART_BYTES);
    }
}

/* All parts are requested at once, arrive one after the other, and are decoded by the thread that
 * is free first. Returns how long the load took. */
static uint64_t load_coded(const struct load *load)
{
    const uint64_t coded_bytes = (uint64_t)(RATIO * PART_BYTES);
    const uint64_t took = ns_of(PART_BYTES, load->decode_MBps) + load->decrypt_ns;
    const struct tierce__coded_work work = {.raw_bytes = PART_BYTES,
                                            .coded_bytes = coded_bytes,
                                            .decrypt_ns = load->decrypt_ns,
                                            .device_raw_bytes = load->on_device ? PART_BYTES : 0};
    uint64_t arrives[PARTS_MAX], ends[PARTS_MAX], begun = now_ns;
    ck_assert_uint_le(load->parts, PARTS_MAX);
    tierce__coded_speed_begin(&speed, TIERCE__CODED_READ_HEAD);
    now_ns += load->head_ns;
    tierce__coded_speed_end(&speed, TIERCE__CODED_READ_HEAD, 1);
    for (unsigned i = 0; i < load->parts; i++) {
        tierce__coded_speed_begin(&speed, TIERCE__CODED_READ_CODED);
        arrives[i] = now_ns + (i + 1) * ns_of((double)coded_bytes, load->link_MBps);
        uint64_t is_free = i >= load->threads ? ends[i - load->threads] : 0;
        ends[i] = (arrives[i] > is_free ? arrives[i] : is_free) + took;
    }
    for (unsigned arrived = 0, decoded = 0; decoded < load->parts;) {
        if (arrived < load->parts && arrives[arrived] <= ends[decoded]) {
            now_ns = arrives[arrived++];
            tierce__coded_speed_arrived(&speed);
            tierce__coded_speed_end(&speed, TIERCE__CODED_READ_CODED, coded_bytes);
        } else {
            now_ns = ends[decoded++];
            tierce__coded_speed_decoded(&speed, &stats, &work, 0, took);
        }
    }
    return now_ns - begun;
}

/* Loads so many bytes with the codec. Returns how long a load takes, by the time with raw chunks.
 */
static double load_bytes(uint64_t bytes, const struct load *load)
{
    uint64_t took = 0;
    for (uint64_t at = 0; at < bytes; at += load->parts * PART_BYTES)
        took = load_coded(load);
    return (double)took / (double)(load->parts * ns_of(PART_BYTES, load->link_MBps));
}

/* A host that is busy, and one that is not, beside a link of 1 GB/s. */
static const struct load busy = {.parts = 16, .link_MBps = 1000, .decode_MBps = 400, .threads = 2};
static const struct load idle = {.parts = 16, .link_MBps = 1000, .decode_MBps = 5000, .threads = 2};

/* ---- tests ----------------------------------------------------------------------------------- */

/* The measured time is that of the loads, for any number of parts, and the rule keeps its bounds.
 */
START_TEST(loads_of_all_shapes)
{
    const unsigned parts[] = {1, 2, 5, 16, 64};
    const double link[] = {120, 1000, 4000}, decode[] = {300, 600, 2000, 6000};
    unsigned used = 0, unused = 0;
    for (unsigned i = 0; i < 5 * 3 * 4 * 2 * 2; i++) {
        const struct load load = {.parts = parts[i % 5],
                                  .link_MBps = link[i / 5 % 3],
                                  .decode_MBps = decode[i / 15 % 4],
                                  .threads = 1 + i / 60 % 2,
                                  .head_ns = i / 120 * TIERCE__MS_NS / 4};
        setup();
        ck_assert(!is_slow());
        double took = load_bytes(256 * MIB, &load);
        double measured = tierce__coded_speed_of_loads(&speed);
        ck_assert_msg(measured > took - 0.01 && measured < took + 0.01,
                      "case %u: %f in place of %f", i, measured, took);
        ck_assert(is_slow() ? took > 0.94 : took < 0.96);
        used += took < 0.9;
        unused += took > 1;
    }
    ck_assert_uint_gt(used, 50);
    ck_assert_uint_gt(unused, 50);
}
END_TEST

/* Two threads together decode faster than the link delivers, or nearly so; still the loads take
 * longer than those of raw chunks. The last one has a single chunk. */
START_TEST(near_equality_the_codec_is_not_used)
{
    const struct load loads[] = {
        {.parts = 16, .link_MBps = 1000, .decode_MBps = 510, .threads = 2},
        {.parts = 8, .link_MBps = 1000, .decode_MBps = 520, .threads = 2},
        {.parts = 1, .link_MBps = 1000, .decode_MBps = 2000, .threads = 2}};
    const double longer[] = {1.06, 1.12, 1.17};
    for (unsigned i = 0; i < 3; i++) {
        setup();
        double took = load_bytes(256 * MIB, &loads[i]);
        ck_assert_msg(took > longer[i] - 0.02 && took < longer[i] + 0.06, "%u: %f", i, took);
        ck_assert(tierce__coded_speed_of_decoding(&speed) > tierce__coded_speed_of_device(&speed));
        ck_assert(is_slow());
    }
}
END_TEST

/* The rates of loads that were measured over 10 Gbit/s and on loopback, where decoding and the
 * transfer shared two processors. Loads of raw chunks show it. */
START_TEST(a_transfer_that_decoding_slows_is_seen_beside_raw_loads)
{
    const double raw_MBps[] = {812, 1091}, coded_MBps[] = {385, 465}, longer[] = {1.44, 1.60};
    for (unsigned i = 0; i < 2; i++) {
        const struct load raw = {.parts = 16, .link_MBps = raw_MBps[i]};
        const struct load slowed = {
            .parts = 16, .link_MBps = coded_MBps[i], .decode_MBps = 6000, .threads = 2};
        setup();
        load_bytes(256 * MIB, &slowed);
        ck_assert(!is_slow());
        for (unsigned n = 0; n < 16; n++) {
            load_raw(&raw);
            load_bytes(16 * MIB, &slowed);
        }
        double loads = tierce__coded_speed_of_loads(&speed);
        ck_assert_msg(loads > longer[i] - 0.03 && loads < longer[i] + 0.03, "%f", loads);
        ck_assert(is_slow());
    }
}
END_TEST

/* The same link, in a store whose chunks are all coded: prompts are put, and loaded later, each
 * coded or as a sample. */
START_TEST(a_store_of_coded_chunks_learns_the_rate_of_raw_ones)
{
    const struct load slowed = {.parts = 16, .link_MBps = 385, .decode_MBps = 6000, .threads = 2},
                      raw = {.parts = 16, .link_MBps = 812};
    bool is_raw[512] = {false};
    unsigned raws = 0, n = 0;
    load_bytes(64 * MIB, &slowed);
    for (; n < 512 && !is_slow(); n++) {
        for (unsigned part = 0; part < 16; part++)
            is_raw[n] = tierce__coded_speed_samples(&speed, PART_BYTES);
        raws += is_raw[n];
        if (n < 64)
            continue;
        if (is_raw[n - 64])
            load_raw(&raw);
        else
            load_coded(&slowed);
    }
    ck_assert_msg(n > 64 && n < 128, "%u prompts", n);
    ck_assert_uint_le(raws, 8);
    ck_assert(tierce__coded_speed_of_loads(&speed) > 1.4);
}
END_TEST

/* Raw and coded parts that share a link: the coded ones end first, because they are shorter, and
 * the raw ones arrive within the rest of the time, but not at the rate that this suggests. */
START_TEST(reads_of_both_kinds_at_the_same_time)
{
    const uint64_t coded_bytes = (uint64_t)(RATIO * PART_BYTES), raw_ns = ns_of(PART_BYTES, 1000);
    const uint64_t coded_ns = ns_of((double)coded_bytes, 1000), took = ns_of(PART_BYTES, 5000);
    const struct tierce__coded_work work = {.raw_bytes = PART_BYTES, .coded_bytes = coded_bytes};
    for (unsigned n = 0; n < 64; n++) {
        for (unsigned i = 0; i < 16; i++) {
            tierce__coded_speed_begin(&speed, TIERCE__CODED_READ_RAW);
            tierce__coded_speed_begin(&speed, TIERCE__CODED_READ_CODED);
        }
        for (unsigned i = 0; i < 16; i++) {
            now_ns += 2 * coded_ns;
            tierce__coded_speed_arrived(&speed);
            tierce__coded_speed_end(&speed, TIERCE__CODED_READ_CODED, coded_bytes);
            now_ns += took;
            tierce__coded_speed_decoded(&speed, &stats, &work, 0, took);
        }
        for (unsigned i = 0; i < 16; i++) {
            now_ns += raw_ns - coded_ns;
            tierce__coded_speed_end(&speed, TIERCE__CODED_READ_RAW, PART_BYTES);
        }
    }
    double loads = tierce__coded_speed_of_loads(&speed);
    ck_assert_msg(loads > 0.67 && loads < 0.85, "%f", loads);
    ck_assert(!is_slow());
    for (unsigned n = 0; n < 8; n++)
        load_raw(&idle);
    double MBps = tierce__coded_speed_of_device(&speed) / 1e6;
    ck_assert_msg(MBps > 990 && MBps < 1010, "%f", MBps);
}
END_TEST

/* A store that does not answer until the deadline: raw chunks would have waited, too. */
START_TEST(reads_that_fail_do_not_count)
{
    const enum tierce__coded_read kinds[] = {TIERCE__CODED_READ_HEAD, TIERCE__CODED_READ_CODED,
                                             TIERCE__CODED_READ_RAW};
    for (unsigned i = 0; i < 3; i++) {
        setup();
        load_bytes(64 * MIB, &idle);
        double before = tierce__coded_speed_of_loads(&speed);
        tierce__coded_speed_begin(&speed, kinds[i]);
        now_ns += 10000 * TIERCE__MS_NS;
        tierce__coded_speed_end(&speed, kinds[i], 0);
        load_bytes(64 * MIB, &idle);
        double after = tierce__coded_speed_of_loads(&speed);
        ck_assert_msg(after > before - 0.01 && after < before + 0.01, "%u: %f", i, after);
        ck_assert(!is_slow());
    }
}
END_TEST

/* One of 32 bytes, in a row, as long as coded chunks are loaded and K is unknown. */
START_TEST(samples_are_few)
{
    for (unsigned n = 0; n < 1000; n++)
        ck_assert(!tierce__coded_speed_samples(&speed, PART_BYTES));
    load_bytes(64 * MIB, &idle);
    for (unsigned n = 0; n < 4096; n++)
        ck_assert_int_eq(tierce__coded_speed_samples(&speed, PART_BYTES), n % 2048 < 64);
    for (unsigned n = 0; n < 3; n++)
        load_raw(&idle);
    ck_assert(tierce__coded_speed_samples(&speed, PART_BYTES));
    load_raw(&idle);
    ck_assert(!tierce__coded_speed_samples(&speed, PART_BYTES));
    for (unsigned minutes = 0; minutes < 10; minutes++) {
        pass_minutes(1);
        load_bytes(64 * MIB, &idle);
    }
    ck_assert(tierce__coded_speed_samples(&speed, PART_BYTES)); /* K is unknown again */
}
END_TEST

/* An operator who wants more chunks accepts slower loads. */
START_TEST(the_bound_is_the_operators)
{
    const double bounds[] = {0.5, 1.2, 1.5};
    const bool slow[] = {true, true, false};
    for (unsigned i = 0; i < 3; i++) {
        tierce__coded_speed_init(&speed, 0, 2, bounds[i]);
        double took = load_bytes(8 * GIB, &busy);
        ck_assert_msg(took > 1.25 && took < 1.45, "%f", took);
        ck_assert_int_eq(is_slow(), slow[i]);
    }
}
END_TEST

/* Loads that get slower and faster by little change nothing. */
START_TEST(it_does_not_alternate)
{
    const struct load fair = {.parts = 16, .link_MBps = 1000, .decode_MBps = 600, .threads = 2};
    double took = load_bytes(8 * GIB, &fair);
    ck_assert_msg(took > 0.87 && took < 0.93, "%f", took);
    ck_assert(!is_slow());
    load_bytes(8 * GIB, &busy);
    ck_assert(is_slow());
    ck_assert_uint_eq(log_count, 1);
    load_bytes(8 * GIB, &fair);
    ck_assert(is_slow());
    load_bytes(8 * GIB, &idle);
    ck_assert(!is_slow());
    load_bytes(8 * GIB, &fair);
    ck_assert(!is_slow());
    ck_assert_uint_eq(log_count, 2);
}
END_TEST

START_TEST(a_busy_hour_is_forgotten_after_some_gigabytes)
{
    load_bytes(100 * GIB, &busy);
    ck_assert(is_slow());
    load_bytes(6 * GIB, &idle);
    ck_assert(!is_slow());
    ck_assert_uint_eq(stats.decoded_raw_bytes, 106 * GIB); /* the statistics forget nothing */
    load_bytes(6 * GIB, &busy);
    ck_assert(is_slow());
}
END_TEST

/* While it is not used nothing may be decoded that would show that it has become faster. Raw chunks
 * that are loaded meanwhile do not shorten this. */
START_TEST(an_unused_codec_is_tried_again)
{
    load_bytes(100 * GIB, &busy);
    for (unsigned minutes = 0; minutes < 20; minutes++) {
        for (unsigned i = 0; i < 64; i++)
            load_raw(&busy);
        ck_assert(minutes > 15 || is_slow());
        pass_minutes(1);
    }
    ck_assert(!is_slow());
    ck_assert_str_eq(logged, "codec_used_again tier=disk codec=simulated reason=\"no recent loads "
                             "to compare\" effect=\"new chunks are compressed\"");
    ck_assert(tierce__coded_speed_of_device(&speed) > 900e6);
    load_bytes(64 * MIB, &busy);
    ck_assert(is_slow());
    ck_assert_uint_eq(log_count, 3);
    pass_minutes(60 * 24 * 365);
    ck_assert(tierce__coded_speed_of_device(&speed) == 0);
    ck_assert(tierce__coded_speed_of_decoding(&speed) == 0);
    ck_assert(tierce__coded_speed_of_loads(&speed) == 0);
}
END_TEST

/* Raw chunks are decrypted too. */
START_TEST(decryption_is_not_the_time_of_the_codec)
{
    const struct load encrypted = {.parts = 1,
                                   .link_MBps = 1000,
                                   .decode_MBps = 5000,
                                   .threads = 2,
                                   .decrypt_ns = 1000 * TIERCE__MS_NS};
    load_bytes(GIB, &encrypted);
    ck_assert(!is_slow());
    double MBps = tierce__coded_speed_of_decoding(&speed) / 1e6;
    ck_assert(MBps > 9990 && MBps < 10010);
    ck_assert_uint_lt(stats.decode_ns, 1000 * TIERCE__MS_NS);
    double loads = tierce__coded_speed_of_loads(&speed);
    ck_assert_msg(loads > 0.87 && loads < 0.89, "%f", loads);
}
END_TEST

/* Layers that turn out to be damaged, or that are only decrypted, do not count as decoding. */
START_TEST(work_without_decoded_bytes_does_not_count)
{
    const struct tierce__coded_work decrypted = {.decrypt_ns = TIERCE__MS_NS},
                                    damaged = {.raw_bytes = PART_BYTES, .coded_bytes = MIB / 2};
    load_bytes(GIB, &idle);
    double before = tierce__coded_speed_of_loads(&speed);
    for (unsigned i = 0; i < 1000; i++) {
        tierce__coded_speed_arrived(&speed);
        now_ns += TIERCE__MS_NS;
        tierce__coded_speed_decoded(&speed, &stats, i % 2 > 0 ? &damaged : &decrypted,
                                    i % 2 > 0 ? TIERCE_E_CHECKSUM : 0, TIERCE__MS_NS);
    }
    ck_assert(tierce__coded_speed_of_loads(&speed) == before);
}
END_TEST

/* Time in which two reads are in progress counts once. */
START_TEST(reads_at_the_same_time)
{
    tierce__coded_speed_begin(&speed, TIERCE__CODED_READ_RAW);
    for (unsigned i = 0; i < 64; i++) {
        tierce__coded_speed_begin(&speed, TIERCE__CODED_READ_RAW);
        now_ns += 16 * TIERCE__MS_NS;
        tierce__coded_speed_end(&speed, TIERCE__CODED_READ_RAW, 16 * MIB);
    }
    tierce__coded_speed_end(&speed, TIERCE__CODED_READ_RAW, 0);
    double MiBps = tierce__coded_speed_of_device(&speed) / (double)MIB;
    ck_assert(MiBps > 990 && MiBps < 1010);
}
END_TEST

/* The faster of a device and the host's threads decodes, if both are known. */
START_TEST(a_slow_device_does_not_decode)
{
    struct load there = {
        .parts = 16, .link_MBps = 1000, .decode_MBps = 3000, .threads = 2, .on_device = true};
    load_bytes(GIB, &there);
    ck_assert(!tierce__coded_speed_prefers_host(&speed)); /* the host is unknown */
    load_bytes(32 * MIB, &idle);
    ck_assert(!tierce__coded_speed_prefers_host(&speed)); /* too little */
    load_bytes(64 * MIB, &idle);
    ck_assert(tierce__coded_speed_prefers_host(&speed)); /* 5000 MB/s beside 3000 */
    ck_assert_uint_eq(stats.device_decoded_raw_bytes, GIB);
    pass_minutes(10);
    load_bytes(GIB, &idle);
    ck_assert(tierce__coded_speed_prefers_host(&speed));
    pass_minutes(20);
    ck_assert(!tierce__coded_speed_prefers_host(&speed)); /* it is tried again */
    there.decode_MBps = 20000;
    load_bytes(GIB, &there);
    load_bytes(GIB, &idle);
    ck_assert(!tierce__coded_speed_prefers_host(&speed));
    load_bytes(GIB, &busy);
    ck_assert(!tierce__coded_speed_prefers_host(&speed));
}
END_TEST

START_TEST(each_change_is_logged_once)
{
    ck_assert(!is_slow());
    load_bytes(8 * GIB, &busy);
    ck_assert(is_slow() && is_slow());
    ck_assert_uint_eq(log_count, 1);
    ck_assert_str_eq(logged,
                     "codec_not_used tier=disk codec=simulated load_time_percent=133 "
                     "decode_MBps=800 device_MBps=1000 effect=\"new chunks stay uncompressed, "
                     "because loads of compressed chunks take more than 95 % (codec.load_time) "
                     "of the time without compression\"");
    load_bytes(8 * GIB, &idle);
    ck_assert(!is_slow() && !is_slow());
    ck_assert_uint_eq(log_count, 2);
    ck_assert_str_eq(logged,
                     "codec_used_again tier=disk codec=simulated load_time_percent=69 "
                     "decode_MBps=9998 device_MBps=1000 effect=\"new chunks are compressed\"");
}
END_TEST

/* Decoded bytes suffice for a decision before read bytes, which are fewer. */
START_TEST(an_unknown_rate_is_not_logged)
{
    load_bytes(64 * MIB, &busy);
    ck_assert(is_slow());
    ck_assert(tierce__coded_speed_of_device(&speed) == 0);
    ck_assert_ptr_nonnull(strstr(logged, "decode_MBps=800 effect="));
    ck_assert_ptr_null(strstr(logged, "device_MBps"));
}
END_TEST

CHECK_MAIN("coded_speed", .setup = setup,
           .tests = {loads_of_all_shapes, an_unknown_rate_is_not_logged,
                     near_equality_the_codec_is_not_used,
                     a_transfer_that_decoding_slows_is_seen_beside_raw_loads,
                     a_store_of_coded_chunks_learns_the_rate_of_raw_ones, samples_are_few,
                     reads_of_both_kinds_at_the_same_time, reads_that_fail_do_not_count,
                     the_bound_is_the_operators, it_does_not_alternate,
                     a_busy_hour_is_forgotten_after_some_gigabytes, an_unused_codec_is_tried_again,
                     decryption_is_not_the_time_of_the_codec,
                     work_without_decoded_bytes_does_not_count, reads_at_the_same_time,
                     a_slow_device_does_not_decode, each_change_is_logged_once})
