/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"
#include "base/threads/threads.h"
#include "store/coded/coded_parts.h"

#define MEASURED_BYTES (64u << 20)
/* After so many bytes older reads count half. */
#define RECENT_BYTES (1024.0 * 1048576)

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

void tierce__coded_speed_end(struct tierce__coded_speed *speed, uint64_t bytes)
{
    uint64_t now = tierce__now_ns();
    TIERCE_ASSERT(speed->reading > 0);
    speed->reading--;
    speed->s += (double)(now - speed->since_ns) / 1e9;
    speed->since_ns = now;
    speed->bytes += (double)bytes;
    if (speed->bytes < RECENT_BYTES)
        return;
    speed->bytes /= 2;
    speed->s /= 2;
}

double tierce__coded_speed_of_device(const struct tierce__coded_speed *speed)
{
    return speed->bytes >= speed->measured_bytes && speed->s > 0 ? speed->bytes / speed->s : 0;
}

double tierce__coded_speed_of_decoding(const struct tierce__coded_speed *speed,
                                       const struct tierce__coded_stats *stats)
{
    if ((double)stats->decoded_raw_bytes < speed->measured_bytes || stats->decode_ns == 0)
        return 0;
    return (double)stats->decoded_raw_bytes / ((double)stats->decode_ns / 1e9) *
           speed->decode_threads;
}

/* While a chunk is decoded the next is read, so a load takes as long as the slower of the two. */
bool tierce__coded_speed_is_slow(const struct tierce__coded_speed *speed,
                                 const struct tierce__coded_stats *stats)
{
    double device = tierce__coded_speed_of_device(speed);
    double decode = tierce__coded_speed_of_decoding(speed, stats);
    return device > 0 && decode > 0 && decode < device;
}

void tierce__coded_log_slow(const char *tier, const struct tierce__codec *codec, double decode,
                            double device)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    tierce__log(TIERCE_LOG_WARN, "codec_not_used",
                "tier=%s codec=%s decode_MBps=%.0f device_MBps=%.0f effect=\"new chunks stay "
                "uncompressed, because decompression would make loads slower\"",
                tier, codec->name, decode / 1e6, device / 1e6);
}
