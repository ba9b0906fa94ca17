/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/config/config_parse.h"
#include "base/config/config_yaml.h"
#include "base/file.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "base/text/nearest.h"
#include "cli/cli.h"
#include "cli/doctor/doctor.h"
#include "core/policy/policy.h"
#include "engine/engine_config.h"

#include <errno.h>
#include <libfyaml.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tierce/key.h>

#define JSON_BYTES_MAX (1u << 20)
#define YAML_DEPTH_MAX 64

_Static_assert(sizeof(struct tierce__config_error) == TIERCE__DOCTOR_WHY_BYTES,
               "messages of the configuration fit");

/* The fields of a description of an instance. */
static const char *const description_names[] = {
    "weights",    "model",        "kv_dtype",     "quantization", "layout", "layer_count",
    "cell_bytes", "block_tokens", "chunk_tokens", "hash",         NULL};

/* A file being read. */
struct yaml_source {
    struct tierce__doctor_set *set;
    const char *path;
    char *why; /* [TIERCE__DOCTOR_WHY_BYTES] */
};

static int fail(struct yaml_source *source, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct yaml_source *source, int rc, const char *format, ...)
{
    va_list ap;
    int n = snprintf(source->why, TIERCE__DOCTOR_WHY_BYTES, "%.200s: ", source->path);
    va_start(ap, format);
    vsnprintf(source->why + n, TIERCE__DOCTOR_WHY_BYTES - (size_t)n, format, ap);
    va_end(ap);
    return rc;
}

static int put(struct yaml_source *source, const char *name, const char *value)
{
    int rc = tierce__doctor_put(source->set, name, value);
    return rc == 0 ? 0 : fail(source, rc, "%s: %s", name, tierce_strerror(rc));
}

static int put_number(struct yaml_source *source, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return put(source, name, text);
}

/* ---- the model ------------------------------------------------------------------------------ */

/* A plain scalar that is a number, true, false or null in JSON stays as it is; every other scalar
 * becomes a text. */
static int write_scalar(struct tierce__json_write *json, const char *name, struct fy_node *node)
{
    char *text = NULL;
    struct tierce__json_doc doc = {0};
    int rc = node != NULL ? tierce__yaml_scalar(&text, node) : -EINVAL;
    if (rc == -ENOMEM)
        return rc;
    bool plain = text != NULL && fy_node_get_style(node) == FYNS_PLAIN;
    rc = plain ? tierce__json_parse(&doc, text, strlen(text), NULL) : TIERCE_E_FORMAT;
    if (text == NULL || (plain && strcmp(text, "~") == 0))
        tierce__json_write_text(json, name, NULL);
    else if (rc == 0 && tierce__json_value_kind(doc.value) != '"')
        tierce__json_write_value(json, name, doc.value);
    else
        tierce__json_write_text(json, name, text);
    tierce__json_doc_clear(&doc);
    tierce__free(text);
    return rc == -ENOMEM ? rc : 0;
}

static int write_node(struct tierce__json_write *json, const char *name, struct fy_node *node);

/* Whether a pair before this one has the key. */
static bool is_repeated(struct fy_node *node, const struct fy_node_pair *pair, const char *key)
{
    void *state = NULL;
    struct fy_node_pair *other;
    bool found = false;
    while (!found && (other = fy_node_mapping_iterate(node, &state)) != pair) {
        size_t bytes = 0;
        const char *text = fy_node_get_scalar(fy_node_pair_key(other), &bytes);
        found = text != NULL && bytes == strlen(key) && memcmp(text, key, bytes) == 0;
    }
    return found;
}

static int write_pairs(struct tierce__json_write *json, struct fy_node *node)
{
    void *state = NULL;
    struct fy_node_pair *pair;
    int rc = 0;
    while (rc == 0 && (pair = fy_node_mapping_iterate(node, &state)) != NULL) {
        char *key = NULL;
        rc = tierce__yaml_scalar(&key, fy_node_pair_key(pair));
        if (rc == 0)
            rc = is_repeated(node, pair, key) ? -EEXIST
                                              : write_node(json, key, fy_node_pair_value(pair));
        tierce__free(key);
    }
    return rc;
}

/* Errors: -EINVAL (aliases, too deep), -EEXIST (a key is repeated), -ENOMEM. */
static int write_node(struct tierce__json_write *json, const char *name, struct fy_node *node)
{
    void *state = NULL;
    struct fy_node *item;
    int rc = 0;
    if (json->depth > YAML_DEPTH_MAX || (node != NULL && fy_node_is_alias(node)))
        return -EINVAL;
    if (node == NULL || fy_node_is_scalar(node))
        return write_scalar(json, name, node);
    bool mapping = fy_node_is_mapping(node);
    tierce__json_write_open(json, name, mapping ? '{' : '[');
    if (mapping)
        rc = write_pairs(json, node);
    while (!mapping && rc == 0 && (item = fy_node_sequence_iterate(node, &state)) != NULL)
        rc = write_node(json, NULL, item);
    tierce__json_write_close(json, mapping ? '}' : ']');
    return rc;
}

static int put_model_mapping(struct yaml_source *source, struct fy_node *node)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    int rc = write_node(&json, NULL, node);
    tierce__line_put_bytes(&line, "", 1);
    if (rc == -ENOMEM || line.failed)
        rc = fail(source, -ENOMEM, "no memory");
    else if (rc != 0)
        rc =
            fail(source, TIERCE_E_CONFIG, "model: %s",
                 rc == -EEXIST ? "a key is given twice"
                               : "holds a value that JSON cannot represent, or is nested too deep");
    else
        rc = put(source, "model", line.text);
    tierce__line_clear(&line);
    return rc;
}

/* The configuration file of a model folder, or a JSON file itself. */
static int put_model_path(struct yaml_source *source, const char *path)
{
    struct stat st;
    char *text = NULL, *inside = NULL;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        inside = tierce__join_path(path, "config.json");
        if (inside == NULL)
            return fail(source, -ENOMEM, "no memory");
        path = inside;
    }
    int rc = tierce__cli_read_text(&text, path, JSON_BYTES_MAX);
    if (rc != 0)
        fail(source, rc, "model: %.150s: %s", path, tierce__cli_read_error(rc));
    else if (!tierce__doctor_is_json(text))
        rc = fail(source, TIERCE_E_CONFIG, "model: %.150s: is not JSON", path);
    else
        rc = put(source, "model", text);
    source->set->raw_model = true;
    tierce__free(text);
    tierce__free(inside);
    return rc;
}

/* JSON text or a path. */
static int put_model_text(struct yaml_source *source, const char *text)
{
    if (text[0] != '{')
        return put_model_path(source, text);
    if (!tierce__doctor_is_json(text))
        return fail(source, TIERCE_E_CONFIG, "model: begins with { but is not JSON");
    return put(source, "model", text);
}

/* ---- descriptions --------------------------------------------------------------------------- */

static int put_count(struct yaml_source *source, const char *name, const char *text)
{
    uint64_t value;
    if (!tierce__parse_count(&value, text) || value < 1 || value > UINT32_MAX)
        return fail(source, TIERCE_E_CONFIG,
                    "%s cannot be \"%.60s\"; accepted is a whole number >= 1", name, text);
    return put_number(source, name, value);
}

static int put_hash(struct yaml_source *source, const char *text)
{
    enum tierce_chain_algo algo;
    if (strcmp(text, "auto") == 0)
        return 0;
    if (tierce_chain_algo_parse(&algo, text) != 0)
        return fail(source, TIERCE_E_CONFIG,
                    "hash cannot be \"%.60s\"; accepted are auto, %s, %s, %s", text,
                    tierce_chain_algo_name(TIERCE_CHAIN_SHA256),
                    tierce_chain_algo_name(TIERCE_CHAIN_XXH3_128),
                    tierce_chain_algo_name(TIERCE_CHAIN_VLLM_SHA256_CBOR));
    return put(source, "algo", text);
}

/* "BYTESxLAYERS,..." of a list with one number per layer, and how many there are. */
static int put_cell_list(struct yaml_source *source, struct fy_node *list)
{
    static const char wrong[] = "cell_bytes requires a list of whole numbers, one for each layer";
    char text[TIERCE_LAYERS_MAX * 4];
    size_t used = 0;
    uint64_t before = 0, run = 0, layers = 0;
    void *state = NULL;

    for (bool more = true; more;) {
        struct fy_node *item = fy_node_sequence_iterate(list, &state);
        uint64_t value = 0;
        char *scalar = NULL;
        more = item != NULL;
        if (more &&
            (tierce__yaml_scalar(&scalar, item) != 0 || !tierce__parse_count(&value, scalar) ||
             value == 0 || ++layers > TIERCE_LAYERS_MAX)) {
            tierce__free(scalar);
            return fail(source, TIERCE_E_CONFIG, wrong);
        }
        tierce__free(scalar);
        if (value != before && run > 0) {
            int n = snprintf(text + used, sizeof(text) - used, "%s%llux%llu", used > 0 ? "," : "",
                             (unsigned long long)before, (unsigned long long)run);
            if (n < 0 || (size_t)n >= sizeof(text) - used)
                return fail(source, TIERCE_E_LIMIT,
                            "cell_bytes has too many runs of different values");
            used += (size_t)n;
            run = 0;
        }
        before = value;
        run++;
    }
    if (layers == 0)
        return fail(source, TIERCE_E_CONFIG, wrong);
    int rc = put(source, "cell_bytes", text);
    return rc != 0 ? rc : put_number(source, "layer_count", layers);
}

/* A field whose value is a scalar. */
static int put_scalar(struct yaml_source *source, const char *name, const char *text)
{
    if (strcmp(name, "model") == 0)
        return put_model_text(source, text);
    if (strcmp(name, "hash") == 0)
        return put_hash(source, text);
    if (strcmp(name, "block_tokens") == 0 || strcmp(name, "chunk_tokens") == 0 ||
        strcmp(name, "layer_count") == 0)
        return put_count(source, name, text);
    if (!tierce__text_is_clean(text, strlen(text)))
        return fail(source, TIERCE_E_CONFIG, "%s holds a control character", name);
    return put(source, name, text);
}

static int put_pair(struct yaml_source *source, const char *name, struct fy_node *value)
{
    char *text = NULL;
    if (value != NULL && fy_node_is_mapping(value) && strcmp(name, "model") == 0)
        return put_model_mapping(source, value);
    if (value != NULL && fy_node_is_sequence(value) && strcmp(name, "cell_bytes") == 0)
        return put_cell_list(source, value);
    if (tierce__yaml_scalar(&text, value) != 0)
        return fail(source, TIERCE_E_CONFIG, "%s requires a single value", name);
    int rc = put_scalar(source, name, text);
    tierce__free(text);
    return rc;
}

/* The row of description_names, or -1. */
static int find_name(const char *name)
{
    for (int i = 0; description_names[i] != NULL; i++) {
        if (strcmp(description_names[i], name) == 0)
            return i;
    }
    return -1;
}

static int unknown_name(struct yaml_source *source, const char *name)
{
    return fail(source, TIERCE_E_CONFIG,
                "an instance has no field \"%.60s\"; the nearest name is \"%s\"", name,
                tierce__nearest(name, description_names));
}

/* "4096" with a number of layers is "4096xLAYERS", as the namespace writes it. */
static int complete_cells(struct yaml_source *source)
{
    uint64_t bytes;
    char text[64];
    const char *cells = tierce__doctor_find(source->set, "cell_bytes");
    const char *layers = tierce__doctor_find(source->set, "layer_count");
    if (cells == NULL || !tierce__parse_count(&bytes, cells))
        return 0;
    if (layers == NULL)
        return fail(source, TIERCE_E_CONFIG,
                    "cell_bytes is one number; write a list with one for each layer, or give "
                    "layer_count too");
    snprintf(text, sizeof(text), "%llux%.20s", (unsigned long long)bytes, layers);
    return put(source, "cell_bytes", text);
}

static int read_pair(struct yaml_source *source, struct fy_node_pair *pair, uint32_t *seen)
{
    char *name = NULL;
    if (tierce__yaml_scalar(&name, fy_node_pair_key(pair)) != 0)
        return fail(source, TIERCE_E_CONFIG, "a key is not a plain name");
    int rc, row = find_name(name);
    if (row < 0)
        rc = unknown_name(source, name);
    else if ((*seen & 1u << row) != 0)
        rc = fail(source, TIERCE_E_CONFIG, "%s is given twice", name);
    else
        rc = put_pair(source, name, fy_node_pair_value(pair));
    if (row >= 0)
        *seen |= 1u << row;
    tierce__free(name);
    return rc;
}

static int read_description(struct yaml_source *source, struct fy_node *root)
{
    void *state = NULL;
    struct fy_node_pair *pair;
    uint32_t seen = 0;
    while ((pair = fy_node_mapping_iterate(root, &state)) != NULL) {
        int rc = read_pair(source, pair, &seen);
        if (rc != 0)
            return rc;
    }
    return complete_cells(source);
}

/* ---- configurations ------------------------------------------------------------------------- */

static int put_lossy(struct yaml_source *source, const char *codec)
{
    char text[64] = "";
    if (strcmp(codec, "none") != 0)
        snprintf(text, sizeof(text), TIERCE__DOCTOR_LOSSY "%s", codec);
    source->set->names_codec = true;
    return put(source, "quantization", text);
}

static int put_plugins(struct yaml_source *source, const struct tierce__config *config)
{
    static const enum tierce__engine_param rows[] = {
        TIERCE__ENGINE_MEMORY_POLICY, TIERCE__ENGINE_DISK_POLICY, TIERCE__ENGINE_DISK_CODEC,
        TIERCE__ENGINE_REMOTE_CODEC};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *value = tierce__config_text(config, rows[i]);
        if (strncmp(value, TIERCE__POLICY_PLUGIN, strlen(TIERCE__POLICY_PLUGIN)) != 0)
            continue;
        source->set->plugins[i] = tierce__strdup(value);
        if (source->set->plugins[i] == NULL)
            return fail(source, -ENOMEM, "no memory");
    }
    return 0;
}

/* The engine's parameters and one more: "model", a path or JSON text. */
static int read_config(struct yaml_source *source)
{
    struct tierce__config *config = NULL;
    struct tierce__config_error error = {""};
    struct tierce__param table[TIERCE__ENGINE_PARAMS + 1];
    memcpy(table, tierce__engine_params(), TIERCE__ENGINE_PARAMS * sizeof(*table));
    table[TIERCE__ENGINE_PARAMS] = (struct tierce__param){
        .name = "model", .type = TIERCE__PARAM_TEXT, .fallback = "", .text = ""};

    int rc = tierce__config_create(&config, table, TIERCE__ENGINE_PARAMS + 1, "TIERCE");
    if (rc != 0)
        return fail(source, rc, "no memory");
    rc = tierce__config_load_file(config, source->path, &error);
    if (rc != 0) {
        memcpy(source->why, error.text, sizeof(error.text));
        goto out;
    }
    rc = put_number(source, "chunk_tokens",
                    tierce__config_number(config, TIERCE__ENGINE_CHUNK_TOKENS));
    if (rc == 0)
        rc = put_hash(source, tierce__config_text(config, TIERCE__ENGINE_CHUNK_HASH));
    if (rc == 0)
        rc = put_lossy(source, tierce__config_text(config, TIERCE__ENGINE_CODEC_LOSSY));
    const char *model = tierce__config_text(config, TIERCE__ENGINE_PARAMS);
    if (rc == 0 && *model != '\0')
        rc = put_model_text(source, model);
    source->set->gpu_direct = tierce__config_number(config, TIERCE__ENGINE_DISK_GPU_DIRECT) > 0;
    if (rc == 0) {
        source->set->remote_urls =
            tierce__strdup(tierce__config_text(config, TIERCE__ENGINE_REMOTE_URLS));
        rc = source->set->remote_urls != NULL ? 0 : fail(source, -ENOMEM, "no memory");
    }
    if (rc == 0)
        rc = put_plugins(source, config);
out:
    tierce__config_destroy(config);
    return rc;
}

/* A file with a field of an instance (the model apart, which both may have) describes one. */
static bool is_description(struct fy_node *root)
{
    void *state = NULL;
    struct fy_node_pair *pair;
    bool found = false;
    while (!found && (pair = fy_node_mapping_iterate(root, &state)) != NULL) {
        char *name = NULL;
        if (tierce__yaml_scalar(&name, fy_node_pair_key(pair)) == 0)
            found = find_name(name) >= 0 && strcmp(name, "model") != 0;
        /* A mapping as the model can only be a description's. */
        if (name != NULL && strcmp(name, "model") == 0)
            found = fy_node_is_mapping(fy_node_pair_value(pair));
        tierce__free(name);
    }
    return found;
}

int tierce__doctor_read_yaml(struct tierce__doctor_set *set, const char *path,
                             char why[TIERCE__DOCTOR_WHY_BYTES])
{
    struct yaml_source source = {.set = set, .path = path, .why = why};
    struct tierce__config_error error = {""};
    struct tierce__yaml yaml = {0};
    int rc = tierce__yaml_open(&yaml, path, "a description or a configuration", &error);
    if (rc != 0) {
        memcpy(why, error.text, sizeof(error.text));
        return rc;
    }
    if (yaml.root != NULL && fy_node_is_mapping(yaml.root) && is_description(yaml.root))
        rc = read_description(&source, yaml.root);
    else
        rc = read_config(&source);
    tierce__yaml_close(&yaml);
    return rc;
}
