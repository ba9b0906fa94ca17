/* SPDX-License-Identifier: Apache-2.0 */
#include "store/slots.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/threads/lock.h"

#include <inttypes.h>

#define LOG_EVERY_NS (60000u * TIERCE__MS_NS)

void tierce__slots_note(struct tierce__slots *slots, struct tierce__slots_news *news,
                        struct tierce__tier_stats *stats, uint64_t used_bytes)
{
    TIERCE_DASSERT(stats->slots > 0 && used_bytes <= stats->cap_bytes);
    uint64_t now = tierce__now_ns();
    stats->out_of_slots++;
    if (slots->opts.setting == NULL ||
        (slots->logged_ns != 0 && now - slots->logged_ns < LOG_EVERY_NS))
        return;
    slots->logged_ns = now;
    *news = (struct tierce__slots_news){.is_due = true,
                                        .slots = stats->slots,
                                        .used_bytes = used_bytes,
                                        .cap_bytes = stats->cap_bytes};
}

void tierce__slots_log(const struct tierce__slots *slots, const struct tierce__slots_news *news)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    if (!news->is_due)
        return;
    TIERCE_DASSERT(news->slots > 0);
    uint64_t chunk_bytes = news->used_bytes / news->slots;
    uint64_t fits = (slots->opts.setting_bytes + chunk_bytes) / (chunk_bytes + 1);
    tierce__log(TIERCE_LOG_WARN, "tier_out_of_slots",
                "tier=%s setting=%s slots=%" PRIu64 " used_bytes=%" PRIu64 " cap_bytes=%" PRIu64
                " chunk_bytes=%" PRIu64
                " hint=\"chunks are evicted or not stored, because the tier holds its maximum "
                "number of chunks, although it has free space: set %s to %" PRIu64 "\"",
                slots->opts.tier, slots->opts.setting, news->slots, news->used_bytes,
                news->cap_bytes, chunk_bytes, slots->opts.setting, fits);
}
