/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "store/coded/coded_parts.h"

#include <stdio.h>

#define MEASURED_BYTES (64u << 20)
/* After so many bytes, and after so much time, older work counts half. A codec that is not used is
 * therefore tried again after 20 minutes without a decoded layer, when its speed is unknown again.
 */
#define RECENT_BYTES (1024.0 * 1048576)
#define RECENT_NS    (300000u * TIERCE__MS_NS)
#define HALVINGS_MAX 64u
/* Times of loads with the codec, by those with raw chunks: the default, and how much less they must
 * be for a codec that is not used. */
#define LOAD_TIME_MAX 0.95
#define LOAD_TIME_GAP 0.1
/* One of so many new bytes is a sample. */
#define SAMPLE_EVERY 32

void tierce__coded_speed_init(struct tierce__coded_speed *speed, uint64_t measured_bytes,
                              uint32_t decode_threads, double load_time_max)
{
    *speed = (struct tierce__coded_speed){
        .measured_bytes = (double)(measured_bytes > 0 ? measured_bytes : MEASURED_BYTES),
        .load_time_max = load_time_max > 0 ? load_time_max : LOAD_TIME_MAX,
        .decode_threads = tierce__processors() > 1 ? 2 : 1};
    if (decode_threads > 0)
        speed->decode_threads = decode_threads;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Counts the time since the last change, before the next one. Time in which raw chunks are read
 * beside work of the codec is in no rate of raw chunks, and no time alone. */
static void settle(struct tierce__coded_speed *speed, uint64_t now)
{
    uint64_t ns = now - speed->since_ns;
    bool has_raw = speed->reading_raw > 0, has_delay = speed->delaying > 0;
    speed->since_ns = now;
    speed->raw_is_mixed |= has_raw && (speed->reading > 0 || has_delay);
    if (speed->reading > 0)
        speed->read_ns += ns;
    else if (has_raw && !has_delay)
        speed->raw_ns += ns;
    else if (has_delay && !has_raw)
        speed->alone_ns += ns;
}

/* A store that does not answer says nothing about the codec. */
static void forget_time(struct tierce__coded_speed *speed)
{
    speed->read_ns = 0;
    speed->raw_ns = 0;
    speed->alone_ns = 0;
}

static void begin_delay(struct tierce__coded_speed *speed)
{
    settle(speed, tierce__now_ns());
    speed->delaying++;
}

static void end_delay(struct tierce__coded_speed *speed)
{
    settle(speed, tierce__now_ns());
    TIERCE_ASSERT(speed->delaying > 0);
    speed->delaying--;
}

void tierce__coded_speed_begin(struct tierce__coded_speed *speed, enum tierce__coded_read kind)
{
    if (kind == TIERCE__CODED_READ_HEAD) {
        begin_delay(speed);
        return;
    }
    settle(speed, tierce__now_ns());
    *(kind == TIERCE__CODED_READ_RAW ? &speed->reading_raw : &speed->reading) += 1;
}

void tierce__coded_speed_arrived(struct tierce__coded_speed *speed)
{
    begin_delay(speed);
}

/* ---- recent work ----------------------------------------------------------------------------- */

static void halve(struct tierce__coded_recent *recent)
{
    recent->bytes /= 2;
    recent->s /= 2;
    recent->coded_bytes /= 2;
    recent->alone_s /= 2;
}

static void fade(struct tierce__coded_recent *recent, uint64_t now)
{
    if (now - recent->halved_ns >= HALVINGS_MAX * RECENT_NS)
        *recent = (struct tierce__coded_recent){.halved_ns = now};
    for (; now - recent->halved_ns >= RECENT_NS; recent->halved_ns += RECENT_NS)
        halve(recent);
}

static void add(struct tierce__coded_recent *recent, const struct tierce__coded_recent *work,
                uint64_t now)
{
    fade(recent, now);
    recent->bytes += work->bytes;
    recent->s += work->s;
    recent->coded_bytes += work->coded_bytes;
    recent->alone_s += work->alone_s;
    if (recent->bytes >= RECENT_BYTES)
        halve(recent);
}

static double rate_of(struct tierce__coded_recent *recent, double measured_bytes)
{
    fade(recent, tierce__now_ns());
    return recent->bytes >= measured_bytes && recent->s > 0 ? recent->bytes / recent->s : 0;
}

static void add_read(struct tierce__coded_recent *reads, uint64_t *ns, uint64_t bytes, uint64_t now)
{
    add(reads, &(struct tierce__coded_recent){.bytes = (double)bytes, .s = (double)*ns / 1e9}, now);
    *ns = 0;
}

/* Raw bytes that arrive while coded chunks are read share the link with these. */
static void end_raw(struct tierce__coded_speed *speed, uint64_t bytes, uint64_t now)
{
    if (!speed->raw_is_mixed)
        add_read(&speed->raw_reads, &speed->raw_ns, bytes, now);
    else if (speed->reading > 0)
        add_read(&speed->coded_reads, &speed->read_ns, bytes, now);
    TIERCE_ASSERT(speed->reading_raw > 0);
    if (--speed->reading_raw == 0) {
        speed->raw_is_mixed = false;
        speed->raw_ns = 0;
    }
}

void tierce__coded_speed_end(struct tierce__coded_speed *speed, enum tierce__coded_read kind,
                             uint64_t bytes)
{
    uint64_t now = tierce__now_ns();
    settle(speed, now);
    if (bytes == 0)
        forget_time(speed);
    if (kind == TIERCE__CODED_READ_HEAD) {
        end_delay(speed);
        return;
    }
    if (kind == TIERCE__CODED_READ_RAW) {
        end_raw(speed, bytes, now);
        return;
    }
    add_read(&speed->coded_reads, &speed->read_ns, bytes, now);
    TIERCE_ASSERT(speed->reading > 0);
    speed->reading--;
}

void tierce__coded_speed_decoded(struct tierce__coded_speed *speed,
                                 struct tierce__coded_stats *stats,
                                 const struct tierce__coded_work *work, int rc, uint64_t took_ns)
{
    end_delay(speed);
    double alone_s = (double)speed->alone_ns / 1e9;
    speed->alone_ns = 0;
    stats->locked_reads += work->is_locked;
    stats->wrong_key_reads += work->is_wrong_key;
    if (rc != 0 || work->raw_bytes == 0)
        return;
    /* A chunk without a codec is decrypted as well. */
    uint64_t ns = took_ns > work->decrypt_ns ? took_ns - work->decrypt_ns : 0;
    alone_s *= took_ns > 0 ? (double)ns / (double)took_ns : 1;
    stats->decoded_raw_bytes += work->raw_bytes;
    stats->lossy_decoded_raw_bytes += work->is_lossy ? work->raw_bytes : 0;
    stats->device_decoded_raw_bytes += work->device_raw_bytes;
    stats->decoded_bytes += work->coded_bytes;
    stats->decode_ns += ns;
    const struct tierce__coded_recent decoded = {.bytes = (double)work->raw_bytes,
                                                 .s = (double)ns / 1e9,
                                                 .coded_bytes = (double)work->coded_bytes,
                                                 .alone_s = alone_s};
    uint64_t now = tierce__now_ns();
    add(&speed->decoding, &decoded, now);
    if (work->device_raw_bytes == work->raw_bytes)
        add(&speed->by_device, &decoded, now);
    else if (work->device_raw_bytes == 0)
        add(&speed->by_host, &decoded, now);
}

/* ---- the rule -------------------------------------------------------------------------------- */

double tierce__coded_speed_of_device(struct tierce__coded_speed *speed)
{
    double raw = rate_of(&speed->raw_reads, speed->measured_bytes);
    double coded = rate_of(&speed->coded_reads, speed->measured_bytes);
    return raw > coded ? raw : coded;
}

double tierce__coded_speed_of_decoding(struct tierce__coded_speed *speed)
{
    return rate_of(&speed->decoding, speed->measured_bytes) * speed->decode_threads;
}

double tierce__coded_speed_of_loads(struct tierce__coded_speed *speed)
{
    const struct tierce__coded_recent *decoding = &speed->decoding;
    double rate = rate_of(&speed->coded_reads, 1);
    if (rate == 0 || rate_of(&speed->decoding, speed->measured_bytes) == 0)
        return 0;
    double device = tierce__coded_speed_of_device(speed);
    double raw_s = decoding->bytes / (device > rate ? device : rate);
    return (decoding->coded_bytes / rate + decoding->alone_s) / raw_s;
}

bool tierce__coded_speed_prefers_host(struct tierce__coded_speed *speed)
{
    double host = rate_of(&speed->by_host, speed->measured_bytes);
    double device = rate_of(&speed->by_device, speed->measured_bytes);
    return device > 0 && host > device;
}

bool tierce__coded_speed_is_slow(struct tierce__coded_speed *speed, struct tierce__coded_news *news,
                                 const struct tierce__codec *codec)
{
    double loads = tierce__coded_speed_of_loads(speed);
    bool is_off = loads > speed->load_time_max - (speed->is_off ? LOAD_TIME_GAP : 0);
    if (is_off != speed->is_off)
        *news = (struct tierce__coded_news){.codec = codec,
                                            .is_off = is_off,
                                            .loads = loads,
                                            .loads_max = speed->load_time_max,
                                            .decode = tierce__coded_speed_of_decoding(speed),
                                            .device = tierce__coded_speed_of_device(speed)};
    speed->is_off = is_off;
    return is_off;
}

bool tierce__coded_speed_samples(struct tierce__coded_speed *speed, uint64_t raw_bytes)
{
    double sample = speed->measured_bytes;
    if (rate_of(&speed->decoding, sample) == 0 || rate_of(&speed->raw_reads, sample) > 0) {
        speed->offered_bytes = 0;
        return false;
    }
    double at = speed->offered_bytes, next = at + (double)raw_bytes;
    speed->offered_bytes = next < SAMPLE_EVERY * sample ? next : 0;
    return at < sample;
}

/* ---- the log --------------------------------------------------------------------------------- */

void tierce__coded_log_news(const char *tier, const struct tierce__coded_news *news)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (news->codec == NULL)
        return;
    char why[80] = "reason=\"no recent loads to compare\"", device[32] = "";
    if (news->device > 0) /* otherwise too few bytes were read to know it */
        snprintf(device, sizeof(device), " device_MBps=%.0f", news->device / 1e6);
    if (news->loads > 0)
        snprintf(why, sizeof(why), "load_time_percent=%.0f decode_MBps=%.0f%s", news->loads * 100,
                 news->decode / 1e6, device);
    if (news->is_off)
        tierce__log(
            TIERCE_LOG_WARN, "codec_not_used",
            "tier=%s codec=%s %s effect=\"new chunks stay uncompressed, because loads of "
            "compressed chunks take more than %.0f %% (codec.load_time) of the time without "
            "compression\"",
            tier, news->codec->name, why, news->loads_max * 100);
    else
        tierce__log(TIERCE_LOG_INFO, "codec_used_again",
                    "tier=%s codec=%s %s effect=\"new chunks are compressed\"", tier,
                    news->codec->name, why);
}
