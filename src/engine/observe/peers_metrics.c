/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/peers_metrics.h"

#include <string.h>

#include "base/assert.h"
#include "engine/engine.h"
#include "engine/peer/peers.h"

#define READS_HELP                                                                                 \
    "Reads of chunks of other engines: served; missed (evicted there); busy; length (the peer "    \
    "has it in another length or form); damaged (wrong bytes); untried (no memory or no time "     \
    "here); late, rejected, failed (the peer is paused)."
#define ANSWERS_HELP                                                                               \
    "Answers to reads of other engines: memory, disk, missed (evicted), busy, length (the chunk "  \
    "has another length or form), failed."

/* In the order of the page: rows of one metric lie together. */
static const struct peers_row {
    const char *name;
    const char *result; /* the label, or NULL */
    const char *field;  /* in the state */
    size_t offset;      /* of a uint64_t in struct tierce__peers_stats */
    bool is_counter;
    const char *help;
} rows[] = {
#define READ(result, kind)                                                                         \
    {                                                                                              \
        "peers.reads", result, "read_" result,                                                     \
            offsetof(struct tierce__peers_stats, read.results[kind]), true, READS_HELP             \
    }
#define ANSWER(result, member)                                                                     \
    {                                                                                              \
        "peers.answers", result, "answered_" result,                                               \
            offsetof(struct tierce__peers_stats, served.member), true, ANSWERS_HELP                \
    }
#define ROW(name, member, is_counter, help)                                                        \
    {                                                                                              \
        "peers." name, NULL, name, offsetof(struct tierce__peers_stats, member), is_counter, help  \
    }
    READ("served", TIERCE__PEER_SERVED),
    READ("missed", TIERCE__PEER_MISSED),
    READ("busy", TIERCE__PEER_BUSY),
    READ("length", TIERCE__PEER_LENGTH),
    READ("damaged", TIERCE__PEER_DAMAGED),
    READ("untried", TIERCE__PEER_UNTRIED),
    READ("late", TIERCE__PEER_LATE),
    READ("rejected", TIERCE__PEER_REJECTED),
    READ("failed", TIERCE__PEER_FAILED),
    ROW("read_chunks", read.chunks, true, "Chunks of other engines whose beginning was read."),
    ROW("read_bytes", read.bytes, true, "Bytes read from other engines."),
    ROW("known", read.known_now, false, "Other engines that the directory has named."),
    ROW("paused", read.paused_now, false, "Those that are not asked for a while."),
    ROW("links_paused", read.links_paused_now, false,
        "Addresses that are not used for a while, of engines with several."),
    ANSWER("memory", memory_hits),
    ANSWER("disk", disk_hits),
    ANSWER("missed", misses),
    ANSWER("busy", busy),
    ANSWER("length", lengths),
    ANSWER("failed", errors),
    ROW("served_bytes", transfers.read_bytes, true, "Bytes that other engines asked for and got."),
    ROW("served_coded_bytes", served.coded_bytes, true,
        "Of these bytes, those of chunks that were sent compressed, as they are stored."),
    ROW("clients", transfers.connections, false, "Connections of other engines."),
    ROW("clients_rejected", transfers.refused, true,
        "Connections without the secret of the group, or above the limit."),
    ROW("disk_reads", served.reads_now, false, "Reads from disk for other engines in progress."),
    ROW("leases", served.leases_now, false, "Chunks that are being sent to other engines."),
#undef READ
#undef ANSWER
#undef ROW
};

static uint64_t value_of(const struct tierce__peers_stats *stats, const struct peers_row *row)
{
    uint64_t value;
    TIERCE_DASSERT(row->offset + sizeof(value) <= sizeof(*stats));
    memcpy(&value, (const char *)stats + row->offset, sizeof(value));
    return value;
}

void tierce__peers_metrics(struct tierce_engine *engine, struct tierce__prometheus *text)
{
    struct tierce__peers_stats stats;
    if (!tierce__peers_stats(engine->peers, &stats))
        return;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tierce__metric_tag tag = {"result", rows[i].result};
        tierce__prometheus_put(
            text, &(struct tierce__metric){.name = rows[i].name,
                                           .help = rows[i].help,
                                           .is_counter = rows[i].is_counter,
                                           .value = (double)value_of(&stats, &rows[i]),
                                           .tags = rows[i].result != NULL ? &tag : NULL,
                                           .tag_count = rows[i].result != NULL});
    }
}

void tierce__peers_status(struct tierce_engine *engine, struct tierce__json_write *json)
{
    struct tierce__peers_stats stats;
    if (!tierce__peers_stats(engine->peers, &stats))
        return;
    tierce__json_write_open(json, "peers", '{');
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tierce__json_write_signed(json, rows[i].field, (int64_t)value_of(&stats, &rows[i]));
    tierce__json_write_close(json, '}');
}
