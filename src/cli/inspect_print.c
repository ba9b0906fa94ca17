/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/config/config_parse.h"
#include "cli/inspect.h"
#include "cli/optimize/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <limits.h>
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

/* The first string among the names that people know a model by. */
static const char *find_name(struct json_object *object)
{
    static const char *const names[] = {"_name_or_path", "name", "architectures", "model_type"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        struct json_object *value = NULL;
        if (!json_object_object_get_ex(object, names[i], &value))
            continue;
        if (json_object_is_type(value, json_type_array))
            value = json_object_array_get_idx(value, 0);
        if (json_object_is_type(value, json_type_string) && json_object_get_string_len(value) > 0)
            return json_object_get_string(value);
    }
    return NULL;
}

/* Names the model of a namespace as far as its JSON does; "" if it does not. */
static void model_name(char name[VALUE_BYTES], const char *text)
{
    name[0] = '\0';
    char *model = copy_field(text, "model");
    struct json_tokener *tokener = model != NULL ? json_tokener_new_ex(128) : NULL;
    if (tokener != NULL && strlen(model) < INT_MAX) {
        struct json_object *tree = json_tokener_parse_ex(tokener, model, (int)strlen(model));
        struct json_object *config = NULL;
        const char *found = NULL;
        if (json_object_is_type(tree, json_type_object)) {
            found = find_name(tree);
            if (found == NULL && json_object_object_get_ex(tree, "config", &config) &&
                json_object_is_type(config, json_type_object))
                found = find_name(config);
        }
        if (found != NULL)
            tierce__text_for_message(name, VALUE_BYTES, found);
        json_object_put(tree);
    }
    if (tokener != NULL)
        json_tokener_free(tokener);
    tierce__free(model);
}

static void short_field(char value[VALUE_BYTES], const char *text, const char *name)
{
    char *copy = copy_field(text, name);
    tierce__text_for_message(value, VALUE_BYTES, copy != NULL ? copy : "");
    tierce__free(copy);
}

/* A numeric field, 0 if it is not there. */
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

static void print_namespace(const struct tierce__inspect *inspect, uint32_t id, FILE *out)
{
    const struct tierce__inspect_namespace *item = &inspect->items[id];
    const char *text = tierce__namespaces_text(inspect->namespaces, id);
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
    short_field(value, text, "algo");
    print_line("hash", value, out);
    uint64_t tokens = number_field(text, "block_tokens");
    if (tokens > 0)
        fprintf(out, "  tokens   %" PRIu64 " a block, %" PRIu64 " a chunk, %" PRIu64 " layers\n",
                tokens, tokens * number_field(text, "chunk_blocks"),
                number_field(text, "layer_count"));
    fprintf(out, "  chunks   %" PRIu64 ", %s\n", item->sums.chunks, bytes);
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
    fprintf(out, "\n");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* Adds a value that may be NULL for no memory; remembers that in *ok. */
static void put(struct json_object *object, bool *ok, const char *name, struct json_object *value)
{
    if (value == NULL || json_object_object_add(object, name, value) != 0) {
        json_object_put(value);
        *ok = false;
    }
}

static void put_number(struct json_object *object, bool *ok, const char *name, uint64_t value)
{
    put(object, ok, name, json_object_new_uint64(value));
}

static void put_text(struct json_object *object, bool *ok, const char *name, const char *value)
{
    put(object, ok, name, json_object_new_string(value));
}

static void put_sums(struct json_object *object, bool *ok, const struct tierce__inspect_sums *sums)
{
    put_number(object, ok, "chunks", sums->chunks);
    put_number(object, ok, "bytes", sums->bytes);
    if (sums->chunks > 0) {
        put_number(object, ok, "oldest_s", sums->oldest_s);
        put_number(object, ok, "newest_s", sums->newest_s);
    }
}

static struct json_object *json_shards(const struct tierce__inspect_namespace *item, bool *ok)
{
    struct json_object *array = json_object_new_array();
    for (size_t i = 0; array != NULL && i < item->shard_count; i++) {
        const struct tierce__inspect_shard *s = &item->shards[i];
        struct json_object *object = json_object_new_object();
        if (object == NULL || json_object_array_add(array, object) != 0) {
            json_object_put(object);
            *ok = false;
            break;
        }
        put_number(object, ok, "tp_rank", s->shard.tp_rank);
        put_number(object, ok, "tp_size", s->shard.tp_size);
        put_number(object, ok, "pp_rank", s->shard.pp_rank);
        put_number(object, ok, "pp_size", s->shard.pp_size);
        put_sums(object, ok, &s->sums);
    }
    return array;
}

static struct json_object *json_namespace(const struct tierce__inspect *inspect, uint32_t id,
                                          bool *ok)
{
    static const char *const texts[] = {"weights", "kv_dtype", "quantization", "layout", "algo"};
    static const char *const numbers[] = {"layer_count", "block_tokens", "chunk_blocks"};
    const char *text = tierce__namespaces_text(inspect->namespaces, id);
    char digest[DIGEST_TEXT], value[VALUE_BYTES];
    struct json_object *object = json_object_new_object();
    if (object == NULL)
        return NULL;
    tierce__hex_encode(digest, tierce__namespaces_digest(inspect->namespaces, id),
                       TIERCE_HASH_BYTES);
    put_text(object, ok, "digest", digest);
    model_name(value, text);
    put_text(object, ok, "model_name", value);
    for (size_t i = 0; text != NULL && i < sizeof(texts) / sizeof(*texts); i++) {
        char *field = copy_field(text, texts[i]);
        put_text(object, ok, texts[i], field != NULL ? field : "");
        tierce__free(field);
    }
    for (size_t i = 0; text != NULL && i < sizeof(numbers) / sizeof(*numbers); i++)
        put_number(object, ok, numbers[i], number_field(text, numbers[i]));
    put_sums(object, ok, &inspect->items[id].sums);
    put(object, ok, "shards", json_shards(&inspect->items[id], ok));
    return object;
}

static struct json_object *json_namespaces(const struct tierce__inspect *inspect, bool *ok)
{
    struct json_object *array = json_object_new_array();
    for (uint32_t id = 0; array != NULL && id < inspect->count; id++) {
        if (inspect->items[id].sums.chunks == 0)
            continue;
        struct json_object *object = json_namespace(inspect, id, ok);
        if (object == NULL || json_object_array_add(array, object) != 0) {
            json_object_put(object);
            *ok = false;
            break;
        }
    }
    return array;
}

static struct json_object *json_verify(const struct tierce__verify *verify, bool *ok)
{
    struct json_object *object = json_object_new_object();
    if (object == NULL)
        return NULL;
    put_number(object, ok, "chunks", verify->chunks);
    put_number(object, ok, "bytes", verify->bytes);
    put_number(object, ok, "damaged", verify->bad);
    put_number(object, ok, "vanished", verify->vanished);
    return object;
}

int tierce__inspect_print_json(const struct tierce__inspect *inspect,
                               const struct tierce__verify *verify, FILE *out)
{
    bool ok = true;
    char path[4096];
    struct json_object *object = json_object_new_object();
    if (object == NULL)
        return -ENOMEM;
    tierce__text_for_message(path, sizeof(path), inspect->path);
    put_text(object, &ok, "store", path);
    put_number(object, &ok, "data_file_bytes", inspect->data_bytes);
    put_number(object, &ok, "journal_pages", inspect->journal.good);
    put_number(object, &ok, "journal_damage", tierce__inspect_journal_damage(inspect));
    put_sums(object, &ok, &inspect->sums);
    put(object, &ok, "namespaces", json_namespaces(inspect, &ok));
    if (verify != NULL)
        put(object, &ok, "verify", json_verify(verify, &ok));
    const char *text = json_object_to_json_string_ext(
        object, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (ok && text != NULL)
        fprintf(out, "%s\n", text);
    int rc = ok && text != NULL ? 0 : -ENOMEM;
    json_object_put(object);
    return rc;
}
