/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "store/coded/coded_parts.h"

#define MEASURED_BYTES (64u << 20)
/* After so many bytes, and after so much time, older work counts half. A codec that is not used is
 * therefore tried again after 20 minutes without a decoded layer, when its speed is unknown again.
 */
#define RECENT_BYTES (1024.0 * 1048576)
#define RECENT_NS    (300000u * TIERCE__MS_NS)
#define HALVINGS_MAX 64u

void tierce__coded_speed_init(struct tierce__coded_speed *speed, uint64_t measured_bytes,
                              uint32_t decode_threads)
{
    *speed = (struct tierce__coded_speed){
        .measured_bytes = (double)(measured_bytes > 0 ? measured_bytes : MEASURED_BYTES),
        .decode_threads = tierce__processors() > 1 ? 2 : 1};
    if (decode_threads > 0)
        speed->decode_threads = decode_threads;
}

void tierce__coded_speed_begin(struct tierce__coded_speed *speed)
{
    if (speed->reading++ == 0)
        speed->since_ns = tierce__now_ns();
}

/* ---- rates ----------------------------------------------------------------------------------- */

static void halve(struct tierce__coded_rate *rate)
{
    rate->bytes /= 2;
    rate->s /= 2;
}

static void fade(struct tierce__coded_rate *rate, uint64_t now)
{
    if (now - rate->halved_ns >= HALVINGS_MAX * RECENT_NS)
        *rate = (struct tierce__coded_rate){.halved_ns = now};
    for (; now - rate->halved_ns >= RECENT_NS; rate->halved_ns += RECENT_NS)
        halve(rate);
}

static void add(struct tierce__coded_rate *rate, uint64_t bytes, uint64_t ns, uint64_t now)
{
    fade(rate, now);
    rate->bytes += (double)bytes;
    rate->s += (double)ns / 1e9;
    if (rate->bytes >= RECENT_BYTES)
        halve(rate);
}

static double rate_of(struct tierce__coded_rate *rate, double measured_bytes)
{
    fade(rate, tierce__now_ns());
    return rate->bytes >= measured_bytes && rate->s > 0 ? rate->bytes / rate->s : 0;
}

/* ---- the two speeds -------------------------------------------------------------------------- */

void tierce__coded_speed_end(struct tierce__coded_speed *speed, uint64_t bytes)
{
    uint64_t now = tierce__now_ns();
    TIERCE_ASSERT(speed->reading > 0);
    speed->reading--;
    add(&speed->device, bytes, now - speed->since_ns, now);
    speed->since_ns = now;
}

void tierce__coded_speed_decoded(struct tierce__coded_speed *speed,
                                 struct tierce__coded_stats *stats,
                                 const struct tierce__coded_work *work, int rc, uint64_t took_ns)
{
    stats->locked_reads += work->is_locked;
    if (rc != 0 || work->raw_bytes == 0)
        return;
    /* A chunk without a codec is decrypted as well. */
    uint64_t ns = took_ns > work->decrypt_ns ? took_ns - work->decrypt_ns : 0;
    stats->decoded_raw_bytes += work->raw_bytes;
    stats->lossy_decoded_raw_bytes += work->is_lossy ? work->raw_bytes : 0;
    stats->decoded_bytes += work->coded_bytes;
    stats->decode_ns += ns;
    add(&speed->decoding, work->raw_bytes, ns, tierce__now_ns());
}

double tierce__coded_speed_of_device(struct tierce__coded_speed *speed)
{
    return rate_of(&speed->device, speed->measured_bytes);
}

double tierce__coded_speed_of_decoding(struct tierce__coded_speed *speed)
{
    return rate_of(&speed->decoding, speed->measured_bytes) * speed->decode_threads;
}

/* While a chunk is decoded the next is read, so a load takes about as long as the slower of the
 * two. The decoding of the last chunk comes on top of it, and is not counted. */
bool tierce__coded_speed_is_slow(struct tierce__coded_speed *speed)
{
    double device = tierce__coded_speed_of_device(speed);
    double decode = tierce__coded_speed_of_decoding(speed);
    return device > 0 && decode > 0 && decode < device;
}

/* ---- the log --------------------------------------------------------------------------------- */

struct tierce__coded_slow tierce__coded_speed_tell(struct tierce__coded_speed *speed,
                                                   const struct tierce__codec *codec)
{
    struct tierce__coded_slow slow = {.codec = speed->is_told ? NULL : codec,
                                      .decode = tierce__coded_speed_of_decoding(speed),
                                      .device = tierce__coded_speed_of_device(speed)};
    speed->is_told = true;
    return slow;
}

void tierce__coded_log_slow(const char *tier, const struct tierce__coded_slow *slow)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (slow->codec != NULL)
        tierce__log(TIERCE_LOG_WARN, "codec_not_used",
                    "tier=%s codec=%s decode_MBps=%.0f device_MBps=%.0f effect=\"new chunks stay "
                    "uncompressed, because decompression would make loads slower\"",
                    tier, slow->codec->name, slow->decode / 1e6, slow->device / 1e6);
}
