/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/codec_metrics.h"

#include <string.h>

#include "base/assert.h"
#include "engine/engine.h"
#include "store/coded/coded_connector.h"

#define RAW_HELP                                                                                   \
    "Chunks that were stored uncompressed: element (no known element type), longer (it would not " \
    "become shorter), behind (queue full), memory (no memory), slow (loads of compressed chunks "  \
    "would not be faster), sample (to measure loads of uncompressed chunks)."

/* In the order of the page: rows of one metric lie together. */
static const struct codec_row {
    const char *name;
    const char *reason; /* the label, or NULL */
    const char *field;  /* in the state */
    size_t offset;      /* of a uint64_t in struct tierce__coded_stats */
    double scale;       /* of the metric's unit */
    const char *help;
} rows[] = {
#define ROW(name, member, scale, help)                                                             \
    {                                                                                              \
        "codec." name, NULL, #member, offsetof(struct tierce__coded_stats, member), scale, help    \
    }
#define RAW(reason, kind)                                                                          \
    {                                                                                              \
        "codec.raw_chunks", reason, "raw_" reason,                                                 \
            offsetof(struct tierce__coded_stats, raw_chunks[kind]), 1, RAW_HELP                    \
    }
    ROW("encoded_chunks", encoded_chunks, 1, "Chunks that were compressed."),
    ROW("encoded_raw_bytes", encoded_raw_bytes, 1, "Uncompressed bytes of these chunks."),
    ROW("encoded_bytes", encoded_bytes, 1, "Compressed bytes of these chunks."),
    ROW("lossy_chunks", lossy_chunks, 1,
        "Of these chunks, those of a lossy codec, which their namespace has chosen."),
    ROW("encode_seconds", encode_ns, 1e-9,
        "Time of compression, also of chunks that did not become shorter."),
    RAW("element", TIERCE__CODED_RAW_ELEMENT),
    RAW("longer", TIERCE__CODED_RAW_LONGER),
    RAW("behind", TIERCE__CODED_RAW_BEHIND),
    RAW("memory", TIERCE__CODED_RAW_MEMORY),
    RAW("slow", TIERCE__CODED_RAW_SLOW),
    RAW("sample", TIERCE__CODED_RAW_SAMPLE),
    ROW("decoded_raw_bytes", decoded_raw_bytes, 1, "Uncompressed bytes of decoded layers."),
    ROW("decoded_bytes", decoded_bytes, 1, "Compressed bytes of these layers."),
    ROW("lossy_decoded_raw_bytes", lossy_decoded_raw_bytes, 1,
        "Uncompressed bytes of layers that a lossy codec decoded: approximate KV."),
    ROW("device_decoded_raw_bytes", device_decoded_raw_bytes, 1,
        "Uncompressed bytes of layers that a GPU decoded, in loads into its memory."),
    ROW("decode_seconds", decode_ns, 1e-9, "Time of decompression, of all threads together."),
    ROW("encrypted_chunks", encrypted_chunks, 1, "Chunks that were encrypted."),
    ROW("refused_chunks", refused_chunks, 1,
        "Chunks that were not stored, because they could not be encrypted."),
    ROW("locked_reads", locked_reads, 1,
        "Reads of encrypted chunks whose key is missing or another one."),
    ROW("wrong_key_reads", wrong_key_reads, 1,
        "Of these reads, those of chunks that another key encrypted than the one with its number."),
#undef ROW
#undef RAW
};

static uint64_t value_of(const struct tierce__coded_stats *stats, const struct codec_row *row)
{
    uint64_t value;
    TIERCE_DASSERT(row->offset + sizeof(value) <= sizeof(*stats));
    memcpy(&value, (const char *)stats + row->offset, sizeof(value));
    return value;
}

/* Whether a level encodes, or has encoded or decoded. */
static bool read_stats(const struct tierce__level *level, struct tierce__coded_stats *out)
{
    if (level->coded != NULL)
        tierce__coded_tier_stats(level->coded, out);
    else if (level->decodes)
        tierce__coded_connector_stats(level->connector, out);
    else
        return false;
    return out->codec != NULL || out->encrypts || out->encoded_chunks > 0 ||
           out->decoded_bytes > 0 || out->locked_reads > 0;
}

static void put_row(struct tierce__prometheus *text, const struct codec_row *row, const char *tier,
                    const struct tierce__coded_stats *stats)
{
    const struct tierce__metric_tag tags[] = {{"tier", tier}, {"reason", row->reason}};
    tierce__prometheus_put(
        text, &(struct tierce__metric){.name = row->name,
                                       .help = row->help,
                                       .is_counter = true,
                                       .value = (double)value_of(stats, row) * row->scale,
                                       .tags = tags,
                                       .tag_count = row->reason != NULL ? 2 : 1});
}

void tierce__codec_metrics(struct tierce_engine *engine, struct tierce__prometheus *text)
{
    struct tierce__coded_stats stats[TIERCE__TIERS_MAX];
    bool has[TIERCE__TIERS_MAX] = {false};
    for (size_t i = 1; i < engine->level_count; i++)
        has[i] = read_stats(&engine->levels[i], &stats[i]);
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        for (size_t i = 1; i < engine->level_count; i++) {
            if (has[i])
                put_row(text, &rows[row], engine->levels[i].tier->ops->name, &stats[i]);
        }
    }
}

static void write_stats(struct tierce__json_write *json, const char *tier,
                        const struct tierce__coded_stats *stats)
{
    tierce__json_write_text(json, "tier", tier);
    tierce__json_write_text(json, "name", stats->codec != NULL ? stats->codec->name : "none");
    tierce__json_write_text(json, "encryption", stats->encrypts ? "aes-256-gcm" : "none");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tierce__json_write_signed(json, rows[i].field, (int64_t)value_of(stats, &rows[i]));
    /* 0: not known, because too little was read. */
    tierce__json_write_signed(json, "device_bytes_per_s", (int64_t)stats->device_bytes_per_s);
    tierce__json_write_signed(json, "decode_bytes_per_s", (int64_t)stats->decode_bytes_per_s);
    tierce__json_write_signed(json, "load_time_percent", (int64_t)(stats->load_time * 100));
}

/* `codec` is that of the disk, `memory_codec` that of coded memory, `remote_codecs` has those of
 * remote stores. */
void tierce__codec_status(struct tierce_engine *engine, struct tierce__json_write *json)
{
    struct tierce__coded_stats stats;
    for (size_t i = 1; i < engine->level_count; i++) {
        const struct tierce__level *level = &engine->levels[i];
        if (level->coded == NULL || !read_stats(level, &stats))
            continue;
        tierce__json_write_open(
            json, level->origin == TIERCE_ORIGIN_DISK ? "codec" : "memory_codec", '{');
        write_stats(json, level->tier->ops->name, &stats);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_open(json, "remote_codecs", '[');
    for (size_t i = 1; i < engine->level_count; i++) {
        const struct tierce__level *level = &engine->levels[i];
        if (!level->decodes || !read_stats(level, &stats))
            continue;
        tierce__json_write_open(json, NULL, '{');
        write_stats(json, level->tier->ops->name, &stats);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
}
