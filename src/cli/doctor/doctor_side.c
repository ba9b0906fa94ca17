/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "base/config/config_parse.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/doctor/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <tierce/key.h>

#define TEXT_BYTES_MAX     (8u << 20)
#define NAMESPACES_MAX     4096
#define NAMESPACE_FIRST    "tierce-namespace="
#define DIGEST_HEX_LENGTH  (2 * TIERCE_HASH_BYTES)
#define TITLE_DIGEST_SHOWN 16

const char *const tierce__doctor_names[] = {
    "weights",    "model",        "kv_dtype",     "quantization", "layout", "layer_count",
    "cell_bytes", "block_tokens", "chunk_tokens", "algo",         NULL};

void tierce__doctor_clear(struct tierce__doctor_side *side)
{
    for (size_t i = 0; i < side->count; i++) {
        for (size_t k = 0; k < side->sets[i].count; k++) {
            tierce__free(side->sets[i].fields[k].name);
            tierce__free(side->sets[i].fields[k].value);
        }
        tierce__free(side->sets[i].remote_urls);
        for (size_t k = 0; k < 4; k++)
            tierce__free(side->sets[i].plugins[k]);
    }
    tierce__free(side->sets);
    *side = (struct tierce__doctor_side){0};
}

const char *tierce__doctor_find(const struct tierce__doctor_set *set, const char *name)
{
    for (size_t i = 0; i < set->count; i++) {
        if (strcmp(set->fields[i].name, name) == 0)
            return set->fields[i].value;
    }
    return NULL;
}

int tierce__doctor_put(struct tierce__doctor_set *set, const char *name, const char *value)
{
    char *copy = tierce__strdup(value);
    if (copy == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < set->count; i++) {
        if (strcmp(set->fields[i].name, name) == 0) {
            tierce__free(set->fields[i].value);
            set->fields[i].value = copy;
            return 0;
        }
    }
    char *name_copy = set->count < TIERCE__DOCTOR_FIELDS_MAX ? tierce__strdup(name) : NULL;
    if (name_copy == NULL) {
        tierce__free(copy);
        return set->count < TIERCE__DOCTOR_FIELDS_MAX ? -ENOMEM : TIERCE_E_LIMIT;
    }
    set->fields[set->count++] = (struct tierce__doctor_field){name_copy, copy};
    return 0;
}

/* Replaces chunk_blocks by chunk_tokens, which descriptions know too. */
static int put_chunk_tokens(struct tierce__doctor_set *set, const char *chunk_blocks)
{
    uint64_t blocks, tokens;
    char text[24];
    const char *block_tokens = tierce__doctor_find(set, "block_tokens");
    if (block_tokens == NULL || !tierce__parse_count(&tokens, block_tokens) ||
        !tierce__parse_count(&blocks, chunk_blocks) || !tierce__mul_ok(&tokens, tokens, blocks))
        return tierce__doctor_put(set, "chunk_blocks", chunk_blocks);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)tokens);
    return tierce__doctor_put(set, "chunk_tokens", text);
}

/* Cuts a canonical text, which the comparison has accepted, into fields. */
static int put_lines(struct tierce__doctor_set *set, char *text)
{
    int rc = 0;
    for (char *line = text; rc == 0 && *line != '\0';) {
        char *end = strchr(line, '\n');
        char *equals = strchr(line, '=');
        if (end == NULL || equals == NULL || equals > end)
            return TIERCE_E_FORMAT;
        *end = '\0';
        *equals = '\0';
        if (strcmp(line, "chunk_blocks") == 0)
            rc = put_chunk_tokens(set, equals + 1);
        else
            rc = tierce__doctor_put(set, line, equals + 1);
        line = end + 1;
    }
    set->complete = true;
    return rc;
}

/* Fills a set from a namespace text; the text is cut into pieces. */
static int parse_text(struct tierce__doctor_set *set, char *text, const char *path,
                      char why[TIERCE__DOCTOR_WHY_BYTES])
{
    uint8_t digest[TIERCE_HASH_BYTES];
    char hex[DIGEST_HEX_LENGTH + 1];
    int rc = tierce_namespace_diff(text, text, NULL, NULL);
    if (rc == 0) {
        tierce_namespace_digest(digest, text);
        tierce__hex_encode(hex, digest, TIERCE_HASH_BYTES);
        snprintf(set->title + strlen(set->title), sizeof(set->title) - strlen(set->title),
                 ", namespace %.*s", TITLE_DIGEST_SHOWN, hex);
        rc = put_lines(set, text);
    }
    if (rc == TIERCE_E_FORMAT)
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "%.200s: is a damaged namespace text", path);
    else if (rc != 0)
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "%.200s: %s", path, tierce_strerror(rc));
    return rc;
}

static void set_title(struct tierce__doctor_set *set, const char *path)
{
    tierce__text_for_message(set->title, 120, path);
}

/* ---- store folders -------------------------------------------------------------------------- */

static bool is_digest_name(const char *name)
{
    uint8_t digest[TIERCE_HASH_BYTES];
    return strlen(name) == DIGEST_HEX_LENGTH && tierce__hex_decode(digest, TIERCE_HASH_BYTES, name);
}

/* Reads one file of STORE/ns and compares its digest with its name. */
static int read_entry(struct tierce__doctor_set *set, const char *folder, const char *name,
                      const char *store, char why[TIERCE__DOCTOR_WHY_BYTES])
{
    uint8_t digest[TIERCE_HASH_BYTES];
    char hex[DIGEST_HEX_LENGTH + 1];
    char *text = NULL;
    char *path = tierce__join_path(folder, name);
    int rc = path == NULL ? -ENOMEM : tierce__cli_read_text(&text, path, TEXT_BYTES_MAX);
    if (rc != 0) {
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "%.200s/%.70s: %s", folder, name,
                 tierce__cli_read_error(rc));
        goto out;
    }
    tierce_namespace_digest(digest, text);
    tierce__hex_encode(hex, digest, TIERCE_HASH_BYTES);
    if (strcmp(hex, name) != 0) {
        rc = TIERCE_E_FORMAT;
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES,
                 "%.200s/%.70s: is damaged: its digest is not its name", folder, name);
        goto out;
    }
    set_title(set, store);
    rc = parse_text(set, text, path, why);
out:
    tierce__free(text);
    tierce__free(path);
    return rc;
}

static int read_entries(struct tierce__doctor_side *side, DIR *dir, const char *folder,
                        const char *store, char why[TIERCE__DOCTOR_WHY_BYTES])
{
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (!is_digest_name(entry->d_name))
            continue;
        if (side->count == NAMESPACES_MAX) {
            snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "%.200s: holds more than %d namespaces", folder,
                     NAMESPACES_MAX);
            return TIERCE_E_LIMIT;
        }
        struct tierce__doctor_set *grown =
            tierce__realloc(side->sets, (side->count + 1) * sizeof(*grown));
        if (grown == NULL) {
            snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "no memory");
            return -ENOMEM;
        }
        side->sets = grown;
        memset(&grown[side->count], 0, sizeof(*grown));
        side->count++;
        int rc = read_entry(&grown[side->count - 1], folder, entry->d_name, store, why);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_store(struct tierce__doctor_side *side, const char *store,
                      char why[TIERCE__DOCTOR_WHY_BYTES])
{
    int rc = 0;
    char *folder = tierce__join_path(store, "ns");
    DIR *dir = folder != NULL ? opendir(folder) : NULL;
    if (folder == NULL) {
        rc = -ENOMEM;
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "no memory");
    } else if (dir == NULL) {
        rc = -errno;
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES,
                 rc == -ENOENT ? "%.300s: is not a store folder: it has no folder \"ns\" (%s)"
                               : "%.300s/ns: %s",
                 store, tierce_strerror(rc));
    } else {
        rc = read_entries(side, dir, folder, store, why);
    }
    if (rc == 0 && side->count == 0) {
        rc = TIERCE_E_CONFIG;
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES,
                 "%.300s: holds no namespaces yet; an engine writes one when it first stores",
                 store);
    }
    if (dir != NULL)
        closedir(dir);
    tierce__free(folder);
    return rc;
}

/* ---- files ---------------------------------------------------------------------------------- */

static int read_file(struct tierce__doctor_side *side, const char *path,
                     char why[TIERCE__DOCTOR_WHY_BYTES])
{
    char *text = NULL;
    int rc = tierce__cli_read_text(&text, path, TEXT_BYTES_MAX);
    if (rc != 0) {
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "%.300s: %s", path, tierce__cli_read_error(rc));
        return rc;
    }
    side->sets = tierce__calloc(1, sizeof(*side->sets));
    if (side->sets == NULL) {
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "no memory");
        rc = -ENOMEM;
        goto out;
    }
    side->count = 1;
    set_title(&side->sets[0], path);
    if (strncmp(text, NAMESPACE_FIRST, strlen(NAMESPACE_FIRST)) == 0)
        rc = parse_text(&side->sets[0], text, path, why);
    else
        rc = tierce__doctor_read_yaml(&side->sets[0], path, why);
out:
    tierce__free(text);
    return rc;
}

int tierce__doctor_read(struct tierce__doctor_side *out, const char *path,
                        char why[TIERCE__DOCTOR_WHY_BYTES])
{
    struct tierce__doctor_side side = {0};
    struct stat st;
    int rc;

    if (path[0] == '\0') {
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES, "\"\" is neither a file nor a folder");
        return -ENOENT;
    }
    if (stat(path, &st) != 0) {
        rc = -errno;
        snprintf(why, TIERCE__DOCTOR_WHY_BYTES,
                 "%.300s: %s; A and B are each a store folder, a file of STORE/ns, or YAML (see "
                 "tierce help doctor)",
                 path, tierce_strerror(rc));
        return rc;
    }
    rc = S_ISDIR(st.st_mode) ? read_store(&side, path, why) : read_file(&side, path, why);
    if (rc != 0) {
        tierce__doctor_clear(&side);
        return rc;
    }
    *out = side;
    return 0;
}
