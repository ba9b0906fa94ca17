/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/config/config_private.h"
#include "base/config/config_yaml.h"
#include "base/log/log.h"
#include "base/text/nearest.h"
#include "base/text/url.h"

#include <errno.h>
#include <libfyaml.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_MAGIC   0x7c0f19e5u
#define NAME_BYTES_MAX 128 /* longest dotted name that is looked at in a file */
#define VALUE_SHOWN    64  /* bytes of a rejected value that a message repeats */
#define OTHERS_BYTES   96  /* of the names of other parameters that accept a rejected value, */
#define OTHERS_MAX     2   /* of which a message names so many */
#define TEXT_BYTES_MAX 4096

/* A value as number (share in billionths, bool as 0 or 1) and as the text that set reads back.
 * Text and choices have no number. `source` NULL stands for the default. */
struct value {
    uint64_t number;
    char *text;
    char *source;
};

struct tierce__config {
    uint32_t magic;
    const struct tierce__param *table;
    size_t count;
    const char *env_prefix;
    struct value *values;
};

/* The form of a value of the type, for messages. */
static const char *type_help(enum tierce__param_type type)
{
    TIERCE_DASSERT(type <= TIERCE__PARAM_CHOICE);
    static const char *const help[] = {
        [TIERCE__PARAM_SIZE] = "a size in bytes such as 512MiB, 1.5GiB, 1GB or 4096",
        [TIERCE__PARAM_COUNT] = "a whole number such as 16",
        [TIERCE__PARAM_DURATION] = "a duration such as 250ms, 5s, 2min or 1h",
        [TIERCE__PARAM_BOOL] = "true or false",
        [TIERCE__PARAM_SHARE] = "a share such as 0.5 or 50%",
        [TIERCE__PARAM_TEXT] = "text in UTF-8 of at most 4096 bytes without control characters",
        [TIERCE__PARAM_CHOICE] = "one of the choices",
    };
    return help[type];
}

static bool is_choice(const char *choices, const char *value)
{
    size_t len = strlen(value);
    for (const char *at = choices; len > 0; at++) {
        size_t n = strcspn(at, "|");
        if (n == len && memcmp(at, value, len) == 0)
            return true;
        if (n > 3 && memcmp(at + n - 3, "...", 3) == 0 && len > n - 3 && len <= TEXT_BYTES_MAX &&
            memcmp(at, value, n - 3) == 0 && tierce__text_is_clean(value, len))
            return true;
        at += n;
        if (*at == '\0')
            break;
    }
    return false;
}

static bool parse_number(uint64_t *out, enum tierce__param_type type, const char *value)
{
    bool flag = false;
    switch (type) {
    case TIERCE__PARAM_SIZE:
        return tierce__parse_size(out, value);
    case TIERCE__PARAM_COUNT:
        return tierce__parse_count(out, value);
    case TIERCE__PARAM_DURATION:
        return tierce__parse_duration(out, value);
    case TIERCE__PARAM_SHARE:
        return tierce__parse_share(out, value);
    case TIERCE__PARAM_BOOL:
        if (!tierce__parse_bool(&flag, value))
            return false;
        *out = flag;
        return true;
    case TIERCE__PARAM_TEXT:
    case TIERCE__PARAM_CHOICE:
        break;
    }
    return false;
}

/* The end of a message about a value that is a choice of one or two other parameters, which it
 * names. Empty for other values: of many parameters, none is the one that was meant. */
static void name_others(char out[OTHERS_BYTES], const struct tierce__config *config,
                        const char *value)
{
    size_t used = 0, others = 0;
    out[0] = '\0';
    for (size_t row = 0; row < config->count; row++) {
        const struct tierce__param *param = &config->table[row];
        if (param->type != TIERCE__PARAM_CHOICE || !is_choice(param->choices, value))
            continue;
        int n = snprintf(out + used, OTHERS_BYTES - used, "%s%s",
                         others == 0 ? "; that is a value of " : " and ", param->name);
        used += (size_t)n;
        if (++others > OTHERS_MAX || n < 0 || used >= OTHERS_BYTES) {
            out[0] = '\0';
            return;
        }
    }
}

/* Checks the value of a TEXT or CHOICE row. `where` starts the message. */
static int check_text(const struct tierce__config *config, size_t row, const char *value,
                      const char *where, struct tierce__config_error *error)
{
    const struct tierce__param *param = &config->table[row];
    bool is_choice_row = param->type == TIERCE__PARAM_CHOICE;
    size_t len = strlen(value);
    if (is_choice_row ? is_choice(param->choices, value)
                      : len <= TEXT_BYTES_MAX && tierce__text_is_clean(value, len))
        return 0;
    char shown[VALUE_SHOWN];
    char *clean = tierce__url_show_all(value); /* it may be a URL with a password */
    tierce__text_for_message(shown, sizeof(shown), clean != NULL ? clean : "***");
    tierce__free(clean);
    char others[OTHERS_BYTES] = "";
    if (is_choice_row)
        name_others(others, config, value);
    return tierce__config_fail(error, TIERCE_E_CONFIG, "%s: %s cannot be \"%s\"; %s %s%s", where,
                               param->name, shown, is_choice_row ? "it is one of" : "accepted is",
                               is_choice_row ? param->choices : type_help(param->type), others);
}

/* Reads a number row's value and compares it with its bounds. */
static int check_number(uint64_t *out, const struct tierce__param *param, const char *value,
                        const char *where, struct tierce__config_error *error)
{
    char shown[VALUE_SHOWN];
    uint64_t number;
    tierce__text_for_message(shown, sizeof(shown), value);
    if (!parse_number(&number, param->type, value))
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "%s: %s cannot be \"%s\"; accepted is %s", where, param->name,
                                   shown, type_help(param->type));
    uint64_t min = tierce__config_bound(param, param->min);
    uint64_t max = tierce__config_bound(param, param->max);
    TIERCE_DASSERT(!tierce__config_is_bounded(param) || min <= max);
    if (tierce__config_is_bounded(param) && (number < min || number > max)) {
        char low[32], high[32];
        bool is_hinted = param->type == TIERCE__PARAM_SHARE && min <= TIERCE__SHARE_ONE / 100 * 15;
        tierce__config_format_number(low, sizeof(low), param->type, min);
        tierce__config_format_number(high, sizeof(high), param->type, max);
        return tierce__config_fail(
            error, TIERCE_E_CONFIG, "%s: %s cannot be %s; accepted are values from %s to %s%s",
            where, param->name, shown, low, high, is_hinted ? "; 15% is 0.15" : "");
    }
    *out = number;
    return 0;
}

/* Replaces the value of a row, or leaves it unchanged and reports why. */
static int assign(struct tierce__config *config, size_t row, const char *value, const char *source,
                  const char *where, struct tierce__config_error *error)
{
    TIERCE_DASSERT(row < config->count);
    const struct tierce__param *param = &config->table[row];
    struct value next = {0};
    char number[32];
    int rc;

    if (param->type == TIERCE__PARAM_TEXT || param->type == TIERCE__PARAM_CHOICE) {
        rc = check_text(config, row, value, where, error);
    } else {
        rc = check_number(&next.number, param, value, where, error);
        if (rc == 0) {
            tierce__config_format_number(number, sizeof(number), param->type, next.number);
            value = number;
        }
    }
    if (rc != 0)
        return rc;
    next.text = tierce__strdup(value);
    if (source != NULL)
        next.source = tierce__strdup(source);
    if (next.text == NULL || (source != NULL && next.source == NULL)) {
        tierce__free(next.text);
        tierce__free(next.source);
        return tierce__config_fail(error, -ENOMEM, "%s: no memory for %s", where, param->name);
    }
    tierce__free(config->values[row].text);
    tierce__free(config->values[row].source);
    config->values[row] = next;
    return 0;
}

int tierce__config_create(struct tierce__config **out, const struct tierce__param *table,
                          size_t count, const char *env_prefix)
{
    struct tierce__config *config = tierce__calloc(1, sizeof(*config));
    if (config == NULL)
        return -ENOMEM;
    *config =
        (struct tierce__config){.magic = CONFIG_MAGIC, .table = table, .env_prefix = env_prefix};
    config->values = tierce__calloc(count, sizeof(*config->values));
    if (config->values == NULL)
        goto fail;
    config->count = count;
    for (size_t row = 0; row < count; row++) {
        struct tierce__config_error error;
        TIERCE_ASSERT(strchr(table[row].name, '.') == strrchr(table[row].name, '.'));
        int rc = assign(config, row, table[row].fallback, NULL, "default", &error);
        /* A default that breaks its own bounds is a mistake in the table. */
        TIERCE_ASSERT(rc == 0 || rc == -ENOMEM);
        if (rc != 0)
            goto fail;
    }
    *out = config;
    return 0;
fail:
    tierce__config_destroy(config);
    return -ENOMEM;
}

void tierce__config_destroy(struct tierce__config *config)
{
    if (config == NULL)
        return;
    TIERCE_CHECK_MAGIC(config, CONFIG_MAGIC);
    for (size_t row = 0; row < config->count; row++) {
        tierce__free(config->values[row].text);
        tierce__free(config->values[row].source);
    }
    tierce__free(config->values);
    config->magic = 0;
    tierce__free(config);
}

size_t tierce__config_find(const struct tierce__config *config, const char *name)
{
    TIERCE_CHECK_MAGIC(config, CONFIG_MAGIC);
    for (size_t row = 0; row < config->count; row++) {
        if (strcmp(config->table[row].name, name) == 0)
            return row;
    }
    return TIERCE__CONFIG_NONE;
}

/* ---- names ---------------------------------------------------------------------------------- */

static const char *nearest_name(const struct tierce__config *config, const char *name)
{
    TIERCE_DASSERT(config->count > 0);
    const char *best = "";
    size_t best_distance = SIZE_MAX;
    for (size_t row = 0; row < config->count; row++) {
        size_t distance = tierce__edit_distance(name, config->table[row].name);
        if (distance < best_distance) {
            best_distance = distance;
            best = config->table[row].name;
        }
    }
    return best;
}

int tierce__config_refuse_argument(struct tierce__config_error *error,
                                   const struct tierce__param *table, size_t count,
                                   const char *command, const char *arg)
{
    char shown[VALUE_SHOWN];
    for (size_t row = 0; row < count; row++) {
        if (strncmp(arg, "--", 2) == 0 && strcmp(arg + 2, table[row].name) == 0)
            return tierce__config_fail(error, TIERCE_E_CONFIG, "%s requires a value: %s=VALUE", arg,
                                       arg);
    }
    tierce__text_for_message(shown, sizeof(shown), arg);
    return tierce__config_fail(error, TIERCE_E_CONFIG,
                               "\"%s\" is not an argument of the %s; parameters are written "
                               "--NAME=VALUE (see tierce help %s)",
                               shown, command, command);
}

/* The first row whose name starts with "name.", which stands for that section. */
static size_t find_section(const struct tierce__config *config, const char *name)
{
    size_t len = strlen(name);
    for (size_t row = 0; row < config->count; row++) {
        if (strncmp(config->table[row].name, name, len) == 0 && config->table[row].name[len] == '.')
            return row;
    }
    return TIERCE__CONFIG_NONE;
}

static int unknown_name(const struct tierce__config *config, const char *name, const char *where,
                        struct tierce__config_error *error)
{
    char shown[VALUE_SHOWN];
    tierce__text_for_message(shown, sizeof(shown), name);
    return tierce__config_fail(error, TIERCE_E_CONFIG,
                               "%s: there is no parameter \"%s\"; the nearest name is \"%s\"",
                               where, shown, nearest_name(config, name));
}

int tierce__config_set(struct tierce__config *config, const char *name, const char *value,
                       const char *source, struct tierce__config_error *error)
{
    char where[VALUE_SHOWN];
    size_t row = tierce__config_find(config, name);
    tierce__text_for_message(where, sizeof(where), source);
    if (row == TIERCE__CONFIG_NONE && find_section(config, name) != TIERCE__CONFIG_NONE)
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "%s: \"%.60s\" is a section; a parameter of it is named with a "
                                   "dot, such as \"%s\"",
                                   where, name, config->table[find_section(config, name)].name);
    if (row == TIERCE__CONFIG_NONE)
        return unknown_name(config, name, where, error);
    return assign(config, row, value, source, where, error);
}

/* ---- environment ---------------------------------------------------------------------------- */

/* "PREFIX_DISK_SIZE" for "disk.size"; false if it does not fit. */
static bool env_name(char *out, size_t size, const char *prefix, const char *name)
{
    int n = snprintf(out, size, "%s_%s", prefix, name);
    if (n < 0 || (size_t)n >= size)
        return false;
    for (char *p = out + strlen(prefix); *p != '\0'; p++) {
        if (*p == '.')
            *p = '_';
        else if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
    }
    return true;
}

static size_t find_env(const struct tierce__config *config, const char *name)
{
    char known[NAME_BYTES_MAX];
    for (size_t row = 0; row < config->count; row++) {
        if (env_name(known, sizeof(known), config->env_prefix, config->table[row].name) &&
            strcmp(known, name) == 0)
            return row;
    }
    return TIERCE__CONFIG_NONE;
}

static int unknown_env(const struct tierce__config *config, const char *name,
                       struct tierce__config_error *error)
{
    char shown[VALUE_SHOWN], known[NAME_BYTES_MAX], best[NAME_BYTES_MAX] = "";
    size_t best_distance = SIZE_MAX;
    tierce__text_for_message(shown, sizeof(shown), name);
    for (size_t row = 0; row < config->count; row++) {
        if (!env_name(known, sizeof(known), config->env_prefix, config->table[row].name))
            continue;
        size_t distance = tierce__edit_distance(name, known);
        if (distance < best_distance) {
            best_distance = distance;
            memcpy(best, known, sizeof(best));
        }
    }
    return tierce__config_fail(error, TIERCE_E_CONFIG,
                               "environment: %s names no parameter; the nearest name is %s", shown,
                               best);
}

/* Whether a name of the list, or a prefix that ends in '*', covers `name`. */
static bool is_listed(const char *const *list, const char *name)
{
    for (; list != NULL && *list != NULL; list++) {
        size_t len = strlen(*list);
        bool prefix = len > 0 && (*list)[len - 1] == '*';
        if (prefix ? strncmp(*list, name, len - 1) == 0 : strcmp(*list, name) == 0)
            return true;
    }
    return false;
}

/* Handles one NAME=VALUE. */
static int load_env_entry(struct tierce__config *config, const char *entry,
                          const char *const *ignore, struct tierce__config_error *error)
{
    char name[NAME_BYTES_MAX], where[NAME_BYTES_MAX + 16];
    size_t prefix_len = strlen(config->env_prefix);
    const char *equals = strchr(entry, '=');

    if (equals == NULL || strncmp(entry, config->env_prefix, prefix_len) != 0 ||
        entry[prefix_len] != '_')
        return 0;
    snprintf(name, sizeof(name), "%.*s", (int)(equals - entry), entry);
    size_t row = find_env(config, name);
    if (row == TIERCE__CONFIG_NONE)
        return is_listed(ignore, name) ? 0 : unknown_env(config, name, error);
    snprintf(where, sizeof(where), "environment %s", name);
    return assign(config, row, equals + 1, where, where, error);
}

const char *tierce__config_env_value(char *const *env, const char *name)
{
    size_t length = strlen(name);
    for (; env != NULL && *env != NULL; env++) {
        if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
            return *env + length + 1;
    }
    return NULL;
}

int tierce__config_load_env(struct tierce__config *config, char *const *env,
                            const char *const *ignore, struct tierce__config_error *error)
{
    TIERCE_CHECK_MAGIC(config, CONFIG_MAGIC);
    for (; env != NULL && *env != NULL; env++) {
        int rc = load_env_entry(config, *env, ignore, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- file ----------------------------------------------------------------------------------- */

/* A file being read. */
struct load {
    struct tierce__config *config;
    const char *path;   /* as it was given, for the origin of values */
    char shown[200];    /* for messages */
    int *lines;         /* [count] where a row was set in this file, 0: not yet */
    int *section_lines; /* [count] the same for the section that a row is the first of */
    struct tierce__config_error *error;
};

/* "prefix.key", or "key" at the top. A name that does not fit is cut, and known it cannot be. */
static void join_name(char out[NAME_BYTES_MAX], const char *prefix, const char *key)
{
    int n = snprintf(out, NAME_BYTES_MAX, "%s%s%s", prefix, *prefix != '\0' ? "." : "", key);
    if (n >= NAME_BYTES_MAX)
        memcpy(out + NAME_BYTES_MAX - 4, "...", 4);
}

static const char *node_kind(struct fy_node *node)
{
    if (node == NULL)
        return "nothing";
    if (fy_node_is_alias(node))
        return "an alias (aliases are not supported)";
    if (fy_node_is_mapping(node))
        return "a mapping";
    if (fy_node_is_sequence(node))
        return "a list";
    return "nothing";
}

/* One parameter with its value. */
static int load_value(struct load *load, size_t row, struct fy_node *value, int line)
{
    TIERCE_DASSERT(row < load->config->count);
    const struct tierce__param *param = &load->config->table[row];
    char where[sizeof(load->shown) + 16];
    char *text = NULL, *source = NULL;
    int rc;

    snprintf(where, sizeof(where), "%s:%d", load->shown, line);
    if (load->lines[row] != 0)
        return tierce__config_fail(load->error, TIERCE_E_CONFIG,
                                   "%s: %s is set twice, first in line %d", where, param->name,
                                   load->lines[row]);
    rc = tierce__yaml_scalar(&text, value);
    if (rc == -EINVAL)
        return tierce__config_fail(load->error, TIERCE_E_CONFIG,
                                   "%s: %s has %s for a value; accepted is %s", where, param->name,
                                   node_kind(value), type_help(param->type));
    if (rc == -EILSEQ)
        return tierce__config_fail(load->error, TIERCE_E_CONFIG,
                                   "%s: the value of %s holds a NUL; accepted is %s", where,
                                   param->name, type_help(param->type));
    size_t source_size = strlen(load->path) + 32;
    if (rc == 0)
        source = tierce__alloc(source_size);
    if (source == NULL) {
        rc = tierce__config_fail(load->error, -ENOMEM, "%s: no memory", where);
        goto out;
    }
    snprintf(source, source_size, "file %s:%d", load->path, line);
    rc = assign(load->config, row, text, source, where, load->error);
    if (rc == 0)
        load->lines[row] = line;
out:
    tierce__free(source);
    tierce__free(text);
    return rc;
}

/* The message for a key that neither is nor leads to a parameter. If the value is a mapping, the
 * first name below it gives a better suggestion ("memori.size" rather than "memori"). */
static int unknown_key(struct load *load, const char *name, struct fy_node *value, int line)
{
    char full[NAME_BYTES_MAX], longer[NAME_BYTES_MAX], where[sizeof(load->shown) + 16];
    char *key = NULL;
    void *state = NULL;
    struct fy_node_pair *pair = NULL;

    snprintf(full, sizeof(full), "%s", name);
    snprintf(where, sizeof(where), "%s:%d", load->shown, line);
    if (value != NULL && fy_node_is_mapping(value))
        pair = fy_node_mapping_iterate(value, &state);
    if (pair != NULL && tierce__yaml_scalar(&key, fy_node_pair_key(pair)) == 0) {
        join_name(longer, full, key);
        memcpy(full, longer, sizeof(full));
        tierce__free(key);
    }
    return unknown_name(load->config, full, where, load->error);
}

static int load_mapping(struct load *load, struct fy_node *mapping, const char *prefix);

static int load_section(struct load *load, size_t section, const char *name, struct fy_node *value,
                        int line)
{
    TIERCE_DASSERT(section < load->config->count);
    if (load->section_lines[section] != 0)
        return tierce__config_fail(load->error, TIERCE_E_CONFIG,
                                   "%s:%d: \"%s\" is set twice, first in line %d", load->shown,
                                   line, name, load->section_lines[section]);
    load->section_lines[section] = line;
    if (value == NULL || !fy_node_is_mapping(value))
        return tierce__config_fail(
            load->error, TIERCE_E_CONFIG,
            "%s:%d: \"%s\" is a section; a mapping of its parameters belongs "
            "under it",
            load->shown, line, name);
    return load_mapping(load, value, name);
}

static int load_pair(struct load *load, struct fy_node_pair *pair, const char *prefix)
{
    struct fy_node *key_node = fy_node_pair_key(pair);
    struct fy_node *value = fy_node_pair_value(pair);
    char name[NAME_BYTES_MAX];
    char *key = NULL;

    int rc = tierce__yaml_scalar(&key, key_node);
    int line = key_node != NULL ? tierce__yaml_line(key_node) : 0;
    if (rc == -ENOMEM)
        return tierce__config_fail(load->error, rc, "%s: no memory", load->shown);
    if (rc != 0)
        return tierce__config_fail(load->error, TIERCE_E_CONFIG,
                                   "%s: a key under \"%s\" is not the plain name of a parameter",
                                   load->shown, prefix);
    join_name(name, prefix, key);
    tierce__free(key);

    size_t row = tierce__config_find(load->config, name);
    if (row != TIERCE__CONFIG_NONE)
        return load_value(load, row, value, line);
    size_t section = find_section(load->config, name);
    if (section == TIERCE__CONFIG_NONE)
        return unknown_key(load, name, value, line);
    return load_section(load, section, name, value, line);
}

/* A name has one dot at most, and so the recursion one level. */
static int load_mapping(struct load *load, struct fy_node *mapping, const char *prefix)
{
    void *state = NULL;
    struct fy_node_pair *pair;
    while ((pair = fy_node_mapping_iterate(mapping, &state)) != NULL) {
        int rc = load_pair(load, pair, prefix);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Sets the values of a parsed document. */
static int load_yaml(struct tierce__config *config, const char *path, struct fy_node *root,
                     struct tierce__config_error *error)
{
    struct load load = {.config = config, .path = path, .error = error};
    tierce__text_for_message(load.shown, sizeof(load.shown), path);
    if (root == NULL)
        return 0;
    if (!fy_node_is_mapping(root))
        return tierce__config_fail(error, TIERCE_E_CONFIG,
                                   "%s: must be a mapping of parameters, such as \"memory.size: "
                                   "8GiB\"",
                                   load.shown);
    load.lines = tierce__calloc(2 * config->count, sizeof(*load.lines));
    if (load.lines == NULL)
        return tierce__config_fail(error, -ENOMEM, "%s: no memory to read it", load.shown);
    load.section_lines = load.lines + config->count;
    int rc = load_mapping(&load, root, "");
    tierce__free(load.lines);
    return rc;
}

/* Whether a value from this file holds a secret, which is never shown. */
static bool holds_secrets(const struct tierce__config *config, const char *path)
{
    static const char from[] = "file ";
    for (size_t row = 0; row < config->count; row++) {
        const struct value *value = &config->values[row];
        if (config->table[row].type != TIERCE__PARAM_TEXT || value->source == NULL ||
            strncmp(value->source, from, sizeof(from) - 1) != 0 ||
            strncmp(value->source + sizeof(from) - 1, path, strlen(path)) != 0)
            continue;
        char *shown = tierce__url_show_all(value->text);
        bool differs = shown != NULL && strcmp(shown, value->text) != 0;
        tierce__free(shown);
        if (differs)
            return true;
    }
    return false;
}

static void warn_of_readers(const struct tierce__config *config, const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && (st.st_mode & (S_IRGRP | S_IROTH)) != 0 &&
        holds_secrets(config, path))
        tierce__log(TIERCE_LOG_WARN, "config_file_readable",
                    "path=\"%s\" mode=%04o hint=\"its group or other users can read the "
                    "passwords in it: chmod go-r\"",
                    path, (unsigned)st.st_mode & 07777u);
}

int tierce__config_load_file(struct tierce__config *config, const char *path,
                             struct tierce__config_error *error)
{
    struct tierce__yaml yaml = {0};
    TIERCE_CHECK_MAGIC(config, CONFIG_MAGIC);
    int rc = tierce__yaml_open(&yaml, path, "the configuration file", error);
    if (rc == 0)
        rc = load_yaml(config, path, yaml.root, error);
    tierce__yaml_close(&yaml);
    if (rc == 0)
        warn_of_readers(config, path);
    return rc;
}

int tierce__config_load_text(struct tierce__config *config, const char *name, const char *text,
                             size_t len, struct tierce__config_error *error)
{
    struct tierce__yaml yaml = {0};
    TIERCE_CHECK_MAGIC(config, CONFIG_MAGIC);
    int rc = tierce__yaml_parse(&yaml, name, text, len, error);
    if (rc == 0)
        rc = load_yaml(config, name, yaml.root, error);
    tierce__yaml_close(&yaml);
    return rc;
}

/* ---- reading -------------------------------------------------------------------------------- */

static const struct value *value_of(const struct tierce__config *config, size_t row)
{
    TIERCE_CHECK_MAGIC(config, CONFIG_MAGIC);
    TIERCE_ASSERT(row < config->count);
    return &config->values[row];
}

uint64_t tierce__config_number(const struct tierce__config *config, size_t row)
{
    const struct value *value = value_of(config, row);
    enum tierce__param_type type = config->table[row].type;
    TIERCE_ASSERT(type == TIERCE__PARAM_SIZE || type == TIERCE__PARAM_COUNT ||
                  type == TIERCE__PARAM_DURATION);
    return value->number;
}

double tierce__config_share(const struct tierce__config *config, size_t row)
{
    const struct value *value = value_of(config, row);
    TIERCE_ASSERT(config->table[row].type == TIERCE__PARAM_SHARE);
    return (double)value->number / (double)TIERCE__SHARE_ONE;
}

bool tierce__config_bool(const struct tierce__config *config, size_t row)
{
    const struct value *value = value_of(config, row);
    TIERCE_ASSERT(config->table[row].type == TIERCE__PARAM_BOOL);
    return value->number != 0;
}

const char *tierce__config_text(const struct tierce__config *config, size_t row)
{
    const struct value *value = value_of(config, row);
    TIERCE_ASSERT(config->table[row].type == TIERCE__PARAM_TEXT ||
                  config->table[row].type == TIERCE__PARAM_CHOICE);
    return value->text;
}

const char *tierce__config_canonical(const struct tierce__config *config, size_t row)
{
    return value_of(config, row)->text;
}

const struct tierce__param *tierce__config_table(const struct tierce__config *config, size_t *count)
{
    TIERCE_CHECK_MAGIC(config, CONFIG_MAGIC);
    *count = config->count;
    return config->table;
}

const char *tierce__config_source(const struct tierce__config *config, size_t row)
{
    const struct value *value = value_of(config, row);
    return value->source != NULL ? value->source : "default";
}
