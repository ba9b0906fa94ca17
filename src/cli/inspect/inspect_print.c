/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/config/config_parse.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "core/codec/codec.h"
#include "cli/inspect/inspect.h"
#include "cli/optimize/progress.h"
#include "core/key/model_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define VALUE_BYTES 256
#define DIGEST_TEXT (2 * TIERCE_HASH_BYTES + 1)

/* ---- fields of a namespace ------------------------------------------------------------------ */

/* The value of a field of a canonical text, which may be NULL; heap, or NULL. */
static char *copy_field(const char *text, const char *name)
{
    size_t len = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        if (end == NULL)
            return NULL;
        if (strncmp(line, name, len) == 0 && line[len] == '=') {
            size_t size = (size_t)(end - line) - len - 1;
            char *value = tierce__alloc(size + 1);
            if (value != NULL) {
                memcpy(value, line + len + 1, size);
                value[size] = '\0';
            }
            return value;
        }
        line = end + 1;
    }
    return NULL;
}

/* Writes the model's name from the JSON of a namespace; "" if the JSON has none. */
static void model_name(char name[VALUE_BYTES], const char *text)
{
    char *model = copy_field(text, "model");
    name[0] = '\0';
    if (model != NULL)
        tierce__model_name(name, VALUE_BYTES, model);
    tierce__free(model);
}

static void short_field(char value[VALUE_BYTES], const char *text, const char *name)
{
    char *copy = copy_field(text, name);
    tierce__text_for_message(value, VALUE_BYTES, copy != NULL ? copy : "");
    tierce__free(copy);
}

/* A numeric field, 0 if it is missing. */
static uint64_t number_field(const char *text, const char *name)
{
    uint64_t number = 0;
    char *copy = copy_field(text, name);
    if (copy == NULL || !tierce__parse_count(&number, copy))
        number = 0;
    tierce__free(copy);
    return number;
}

/* ---- for people ----------------------------------------------------------------------------- */

static void print_ages(const struct tierce__inspect *inspect,
                       const struct tierce__inspect_sums *sums, const char *indent, FILE *out)
{
    char oldest[32], newest[32];
    uint64_t now = inspect->now_s;
    if (sums->chunks == 0)
        return;
    /* The wall clock may have been set back since: no negative ages. */
    tierce__human_seconds(oldest, sizeof(oldest), now > sums->oldest_s ? now - sums->oldest_s : 0);
    tierce__human_seconds(newest, sizeof(newest), now > sums->newest_s ? now - sums->newest_s : 0);
    fprintf(out, "%sage      %s (oldest), %s (newest)\n", indent, oldest, newest);
}

static void print_shards(const struct tierce__inspect_namespace *item, FILE *out)
{
    char bytes[32];
    for (size_t i = 0; i < item->shard_count; i++) {
        const struct tierce__inspect_shard *s = &item->shards[i];
        tierce__human_bytes(bytes, sizeof(bytes), s->sums.bytes);
        fprintf(out, "  shard    tp %u of %u, pp %u of %u: %" PRIu64 " chunks, %s\n",
                s->shard.tp_rank, s->shard.tp_size, s->shard.pp_rank, s->shard.pp_size,
                s->sums.chunks, bytes);
    }
}

static void print_line(const char *name, const char *value, FILE *out)
{
    if (*value != '\0')
        fprintf(out, "  %-8s %s\n", name, value);
}

/* Chunks that are compressed or encrypted. The codec and the key are those of the last chunk; the
 * element type is that of the namespace. */
static void print_coded(const struct tierce__inspect_namespace *item, const char *text, FILE *out)
{
    const struct tierce__inspect_sums *sums = &item->sums;
    char dtype[VALUE_BYTES], coded[32], raw[32];
    if (sums->coded_chunks == 0)
        return;
    short_field(dtype, text, "kv_dtype");
    tierce__human_bytes(coded, sizeof(coded), sums->coded_bytes);
    tierce__human_bytes(raw, sizeof(raw), sums->coded_raw_bytes);
    if (item->key_number > 0)
        fprintf(out, "  cipher   AES-256-GCM; the last of these has the key %u\n",
                (unsigned)item->key_number);
    const char *codec = item->codec != NULL ? item->codec : "an unknown codec";
    const struct tierce__codec *known = tierce__codec_find(codec);
    if (strcmp(codec, "none") == 0)
        fprintf(out,
                "  codec    %" PRIu64
                " of these are compressed or encrypted, %s in place of %s; the "
                "last has no codec\n",
                sums->coded_chunks, coded, raw);
    else
        fprintf(out,
                "  codec    %" PRIu64
                " of these are compressed or encrypted, %s in place of %s; the "
                "last is compressed by %s%s%s as %s%s\n",
                sums->coded_chunks, coded, raw, codec,
                known != NULL && !known->is_exact ? " (lossy)" : "",
                item->plugin[0] != '\0' ? " (a plug-in, read with disk.codec=plugin://FILE)" : "",
                tierce__element_name(tierce__element_of_dtype(dtype)),
                item->key_number > 0 ? "" : ", and not encrypted");
}

static void print_lossy(const char *text, FILE *out)
{
    char value[VALUE_BYTES];
    short_field(value, text, "quantization");
    const struct tierce__codec *codec = tierce__codec_of_quantization(value, NULL);
    if (codec != NULL)
        fprintf(out,
                "  lossy    %s: KV that leaves memory is approximate; only engines with the same "
                "codec.lossy share it\n",
                codec->name);
}

static void print_namespace(const struct tierce__inspect *inspect, uint32_t id, FILE *out)
{
    const struct tierce__inspect_namespace *item = &inspect->items[id];
    const char *text = tierce__namespaces_text(inspect->namespaces, id);
    static const char *const of_groups[] = {"group", "window", "layers"};
    char digest[DIGEST_TEXT], value[VALUE_BYTES], bytes[32];

    tierce__hex_encode(digest, tierce__namespaces_digest(inspect->namespaces, id),
                       TIERCE_HASH_BYTES);
    tierce__human_bytes(bytes, sizeof(bytes), item->sums.bytes);
    fprintf(out, "\nnamespace %s\n", digest);
    if (text == NULL)
        fprintf(out, "  (its text is missing; an engine writes it again at its next store)\n");
    model_name(value, text);
    print_line("model", value, out);
    short_field(value, text, "weights");
    print_line("weights", value, out);
    short_field(value, text, "objects");
    print_line("values", value, out); /* of a protocol, not KV */
    short_field(value, text, "tenant");
    print_line("tenant", value, out);
    short_field(value, text, "kv_dtype");
    print_line("dtype", value, out);
    print_lossy(text, out);
    short_field(value, text, "algo");
    print_line("hash", value, out);
    for (size_t i = 0; i < sizeof(of_groups) / sizeof(*of_groups); i++) {
        short_field(value, text, of_groups[i]);
        print_line(of_groups[i], value, out);
    }
    uint64_t tokens = number_field(text, "block_tokens");
    if (tokens > 0)
        fprintf(out, "  tokens   %" PRIu64 " a block, %" PRIu64 " a chunk, %" PRIu64 " layers\n",
                tokens, tokens * number_field(text, "chunk_blocks"),
                number_field(text, "layer_count"));
    fprintf(out, "  chunks   %" PRIu64 ", %s\n", item->sums.chunks, bytes);
    print_coded(item, text, out);
    print_ages(inspect, &item->sums, "  ", out);
    print_shards(item, out);
}

static size_t used_namespaces(const struct tierce__inspect *inspect)
{
    size_t used = 0;
    for (size_t i = 0; i < inspect->count; i++)
        used += inspect->items[i].sums.chunks > 0;
    return used;
}

void tierce__inspect_print(const struct tierce__inspect *inspect,
                           const struct tierce__verify *verify, FILE *out)
{
    char bytes[32], file[32], path[VALUE_BYTES];
    size_t used = used_namespaces(inspect);
    tierce__text_for_message(path, sizeof(path), inspect->path);
    tierce__human_bytes(bytes, sizeof(bytes), inspect->sums.bytes);
    tierce__human_bytes(file, sizeof(file), inspect->data_bytes);
    fprintf(out, "store    %s\nchunks   %" PRIu64 " in %zu namespace%s\n", path,
            inspect->sums.chunks, used, used == 1 ? "" : "s");
    fprintf(out, "bytes    %s in a data file of %s\n", bytes, file);
    if (tierce__inspect_journal_damage(inspect) > 0)
        fprintf(out,
                "journal  DAMAGED: %" PRIu64 " of %" PRIu64 " pages and %" PRIu64
                " records are lost, with the chunks\n"
                "         that they named; an engine repairs it when it opens the folder\n",
                inspect->journal.missing + inspect->journal_lost,
                inspect->journal.end + inspect->journal_lost, inspect->journal.damaged_records);
    print_ages(inspect, &inspect->sums, "", out);
    for (uint32_t id = 0; id < inspect->count; id++) {
        if (inspect->items[id].sums.chunks > 0)
            print_namespace(inspect, id, out);
    }
    if (verify == NULL)
        return;
    tierce__human_bytes(bytes, sizeof(bytes), verify->bytes);
    fprintf(out, "\nverified %" PRIu64 " chunks, %s: %" PRIu64 " damaged", verify->chunks, bytes,
            verify->bad);
    if (verify->vanished > 0)
        fprintf(out, ", %" PRIu64 " vanished meanwhile", verify->vanished);
    if (verify->locked > 0)
        fprintf(out,
                ", %" PRIu64
                " encrypted, of which only the header and the checksums of the encrypted "
                "bytes were verified (--key-file)",
                verify->locked);
    fprintf(out, "\n");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void put_sums(struct tierce__json_write *json, const struct tierce__inspect_sums *sums)
{
    tierce__json_write_count(json, "chunks", sums->chunks);
    tierce__json_write_count(json, "bytes", sums->bytes);
    tierce__json_write_count(json, "coded_chunks", sums->coded_chunks);
    tierce__json_write_count(json, "coded_bytes", sums->coded_bytes);
    tierce__json_write_count(json, "coded_raw_bytes", sums->coded_raw_bytes);
    if (sums->chunks > 0) {
        tierce__json_write_count(json, "oldest_s", sums->oldest_s);
        tierce__json_write_count(json, "newest_s", sums->newest_s);
    }
}

static void put_shard(struct tierce__json_write *json, const struct tierce__inspect_shard *s)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_count(json, "tp_rank", s->shard.tp_rank);
    tierce__json_write_count(json, "tp_size", s->shard.tp_size);
    tierce__json_write_count(json, "pp_rank", s->shard.pp_rank);
    tierce__json_write_count(json, "pp_size", s->shard.pp_size);
    put_sums(json, &s->sums);
    tierce__json_write_close(json, '}');
}

static void put_namespace(struct tierce__json_write *json, const struct tierce__inspect *inspect,
                          uint32_t id)
{
    static const char *const texts[] = {"weights", "kv_dtype", "quantization", "layout",
                                        "algo",    "group",    "layers"};
    static const char *const numbers[] = {"layer_count", "block_tokens", "chunk_blocks", "window"};
    const struct tierce__inspect_namespace *item = &inspect->items[id];
    const char *text = tierce__namespaces_text(inspect->namespaces, id);
    char digest[DIGEST_TEXT], value[VALUE_BYTES];
    tierce__hex_encode(digest, tierce__namespaces_digest(inspect->namespaces, id),
                       TIERCE_HASH_BYTES);
    model_name(value, text);
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "digest", digest);
    tierce__json_write_text(json, "model_name", value);
    for (size_t i = 0; text != NULL && i < sizeof(texts) / sizeof(*texts); i++) {
        char *field = copy_field(text, texts[i]);
        tierce__json_write_text(json, texts[i], field != NULL ? field : "");
        tierce__free(field);
    }
    for (size_t i = 0; text != NULL && i < sizeof(numbers) / sizeof(*numbers); i++)
        tierce__json_write_count(json, numbers[i], number_field(text, numbers[i]));
    put_sums(json, &item->sums);
    tierce__json_write_text(json, "codec", item->codec != NULL ? item->codec : "");
    tierce__json_write_count(json, "key_number", item->key_number);
    tierce__json_write_open(json, "shards", '[');
    for (size_t i = 0; i < item->shard_count; i++)
        put_shard(json, &item->shards[i]);
    tierce__json_write_close(json, ']');
    tierce__json_write_close(json, '}');
}

void tierce__inspect_print_json(const struct tierce__inspect *inspect,
                                const struct tierce__verify *verify, FILE *out)
{
    char path[4096];
    struct tierce__json_write json = {.file = out, .layout = TIERCE__JSON_SPACED};
    tierce__text_for_message(path, sizeof(path), inspect->path);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "store", path);
    tierce__json_write_count(&json, "data_file_bytes", inspect->data_bytes);
    tierce__json_write_count(&json, "journal_pages", inspect->journal.good);
    tierce__json_write_count(&json, "journal_damage", tierce__inspect_journal_damage(inspect));
    put_sums(&json, &inspect->sums);
    tierce__json_write_open(&json, "namespaces", '[');
    for (uint32_t id = 0; id < inspect->count; id++) {
        if (inspect->items[id].sums.chunks > 0)
            put_namespace(&json, inspect, id);
    }
    tierce__json_write_close(&json, ']');
    if (verify != NULL) {
        tierce__json_write_open(&json, "verify", '{');
        tierce__json_write_count(&json, "chunks", verify->chunks);
        tierce__json_write_count(&json, "bytes", verify->bytes);
        tierce__json_write_count(&json, "damaged", verify->bad);
        tierce__json_write_count(&json, "vanished", verify->vanished);
        tierce__json_write_count(&json, "locked", verify->locked);
        tierce__json_write_close(&json, '}');
    }
    tierce__json_write_close(&json, '}');
    TIERCE_ASSERT(json.depth == 0);
    fputc('\n', out);
}
