/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/config/config_yaml.h"
#include "base/text/line.h"
#include "cli/migrate/migrate.h"

#include <ctype.h>
#include <errno.h>
#include <libfyaml.h>
#include <string.h>

#define EXTRA    "extra_config"
#define TRANSFER "kv_connector_extra_config"
#define OURS     "lmcache."    /* LMCache's names in kv_connector_extra_config */
#define SERVERS  "lmcache.mp." /* those for its multiprocess server */
#define VARIABLE "LMCACHE_"

extern char **environ;

struct reader {
    struct tierce__migration *migration;
    struct tierce__config_error *error;
    int line; /* of all keys that are read, if it is not 0; otherwise each has its own */
};

/* An error at a key. */
static int fail_at(struct reader *reader, int rc, int line, const char *name, const char *why)
{
    const char *place = tierce__migrate_place(line);
    if (place != NULL)
        return tierce__config_fail(reader->error, rc, "%.64s in the %s: %s", name, place, why);
    return tierce__config_fail(reader->error, rc, "%.200s:%d: \"%.64s\": %s",
                               reader->migration->path, line, name, why);
}

const char *tierce__migrate_place(int line)
{
    switch (line) {
    case TIERCE__MIGRATE_ENVIRONMENT:
        return "environment";
    case TIERCE__MIGRATE_CONNECTOR:
        return TRANSFER;
    case TIERCE__MIGRATE_SERVER:
        return "command line";
    default:
        return NULL;
    }
}

static const struct tierce__lmcache_key *find_key(const char *name)
{
    char adapter[128];
    if (strncmp(name, TIERCE__MIGRATE_ADAPTER, strlen(TIERCE__MIGRATE_ADAPTER)) == 0) {
        const char *number = name + strlen(TIERCE__MIGRATE_ADAPTER);
        const char *member = number + strspn(number, "0123456789.");
        snprintf(adapter, sizeof(adapter), TIERCE__MIGRATE_ADAPTER "%s", member);
        name = adapter;
    }
    for (const struct tierce__lmcache_key *key = tierce__lmcache_keys; key->name != NULL; key++) {
        size_t length = strlen(key->name);
        TIERCE_ASSERT(length > 0);
        bool is_pattern = key->name[length - 1] == '*';
        if (is_pattern ? strncmp(key->name, name, length - 1) == 0 : strcmp(key->name, name) == 0)
            return key;
    }
    return &tierce__lmcache_unknown;
}

/* The elements of a list with commas between, or a text for a mapping. */
static int read_list(char **out, struct fy_node *node)
{
    struct tierce__line line = {0};
    struct fy_node *item;
    void *state = NULL;
    int rc = 0;
    if (fy_node_is_mapping(node))
        tierce__line_put(&line, "(a mapping)");
    while (fy_node_is_sequence(node) && rc == 0 &&
           (item = fy_node_sequence_iterate(node, &state)) != NULL) {
        char *text = NULL;
        rc = tierce__yaml_scalar(&text, item);
        tierce__line_put(&line, line.bytes > 0 ? "," : "");
        tierce__line_put(&line, text != NULL ? text : "(a list)");
        tierce__free(text);
        rc = rc == -EINVAL ? 0 : rc;
    }
    tierce__line_put_bytes(&line, "", 1);
    if (rc == 0 && line.failed)
        rc = -ENOMEM;
    if (rc == 0)
        *out = tierce__strdup(line.text);
    tierce__line_clear(&line);
    return rc == 0 && *out == NULL ? -ENOMEM : rc;
}

/* NULL for null. */
static int read_value(char **out, struct fy_node *node)
{
    *out = NULL;
    if (node == NULL)
        return 0;
    if (fy_node_is_alias(node))
        return -EINVAL;
    if (!fy_node_is_scalar(node))
        return read_list(out, node);
    int rc = tierce__yaml_scalar(out, node);
    if (rc == -EINVAL) /* no value at all */
        return 0;
    if (rc != 0 || fy_node_get_style(node) != FYNS_PLAIN)
        return rc;
    if (strcmp(*out, "~") == 0 || strcmp(*out, "null") == 0 || strcmp(*out, "None") == 0) {
        tierce__free(*out);
        *out = NULL;
    }
    return 0;
}

static int read_pairs(struct reader *reader, struct fy_node *node, const char *prefix);

/* Takes `name`. */
static int add_entry(struct reader *reader, char *name, int line, struct fy_node *value)
{
    struct tierce__migration *migration = reader->migration;
    struct tierce__migrate_entry entry = {.name = name, .line = line, .key = find_key(name)};
    const char *why = NULL;
    int rc = 0;
    if (tierce__migrate_find(migration, name) != NULL) {
        rc = -EEXIST;
        why = "is given twice";
    } else if (migration->count >= TIERCE__MIGRATE_ENTRIES_MAX) {
        rc = -E2BIG;
        why = "there are too many keys";
    } else {
        rc = read_value(&entry.value, value);
        entry.is_text = rc == 0 && entry.value != NULL && fy_node_is_scalar(value) &&
                        fy_node_get_style(value) != FYNS_PLAIN;
        why = rc == -EINVAL ? "aliases are not supported; write the value" : tierce_strerror(rc);
    }
    if (rc == 0) {
        migration->entries[migration->count++] = entry;
        return 0;
    }
    rc = fail_at(reader, rc == -ENOMEM ? rc : TIERCE_E_CONFIG, line, name, why);
    tierce__free(name);
    return rc;
}

/* JSON, which YAML includes: the members of a mapping, each named with the prefix. */
static int read_json(struct reader *reader, const char *name, const char *text, int line,
                     const char *prefix)
{
    struct reader inner = {.migration = reader->migration, .error = reader->error, .line = line};
    struct tierce__yaml yaml = {0};
    int rc = tierce__yaml_parse(&yaml, name, text, strlen(text), reader->error);
    if (rc == 0 && (yaml.root == NULL || !fy_node_is_mapping(yaml.root)))
        rc = fail_at(reader, TIERCE_E_CONFIG, line, name, "must be a mapping");
    else if (rc == 0)
        rc = read_pairs(&inner, yaml.root, prefix);
    tierce__yaml_close(&yaml);
    return rc;
}

/* LMCache takes JSON from its variable, and in place of a mapping. */
static int read_extra(struct reader *reader, const char *text, int line)
{
    return read_json(reader, EXTRA, text, line, EXTRA ".");
}

/* The value of extra_config in a file. */
static int read_extra_node(struct reader *reader, struct fy_node *value, int line)
{
    char *text = NULL;
    if (value != NULL && fy_node_is_mapping(value))
        return read_pairs(reader, value, EXTRA ".");
    int rc = read_value(&text, value);
    if (rc != 0)
        rc =
            fail_at(reader, rc == -ENOMEM ? rc : TIERCE_E_CONFIG, line, EXTRA, "must be a mapping");
    else if (!tierce__migrate_is_off(text))
        rc = read_extra(reader, text, line);
    tierce__free(text);
    return rc;
}

static int read_pair(struct reader *reader, struct fy_node_pair *pair, const char *prefix)
{
    struct tierce__line full = {0};
    char *key = NULL, *name;
    int rc = tierce__yaml_scalar(&key, fy_node_pair_key(pair));
    if (rc != 0)
        return tierce__config_fail(
            reader->error, rc == -ENOMEM ? rc : TIERCE_E_CONFIG, "%.200s: a key is not a text",
            reader->migration->path != NULL ? reader->migration->path : EXTRA);
    int line = reader->line != 0 ? reader->line : tierce__yaml_line(fy_node_pair_key(pair));
    if (*prefix == '\0' && strcmp(key, EXTRA) == 0) {
        tierce__free(key);
        return read_extra_node(reader, fy_node_pair_value(pair), line);
    }
    tierce__line_put(&full, prefix);
    tierce__line_put_bytes(&full, key, strlen(key) + 1);
    name = full.failed ? NULL : tierce__strdup(full.text);
    tierce__line_clear(&full);
    tierce__free(key);
    if (name == NULL)
        return tierce__config_fail(reader->error, -ENOMEM, "%s", tierce_strerror(-ENOMEM));
    return add_entry(reader, name, line, fy_node_pair_value(pair));
}

static int read_pairs(struct reader *reader, struct fy_node *node, const char *prefix)
{
    struct fy_node_pair *pair;
    void *state = NULL;
    int rc = 0;
    while (rc == 0 && (pair = fy_node_mapping_iterate(node, &state)) != NULL)
        rc = read_pair(reader, pair, prefix);
    return rc;
}

/* Replaces the value of a key, or adds the key. `line` 0 keeps the line of a key that is there. */
static int put_value(struct tierce__migration *migration, const char *name, const char *value,
                     int line)
{
    struct tierce__migrate_entry *old = tierce__migrate_find(migration, name);
    struct tierce__migrate_entry entry = {
        .key = find_key(name), .line = line, .is_text = line == TIERCE__MIGRATE_ENVIRONMENT};
    if (old == NULL && migration->count >= TIERCE__MIGRATE_ENTRIES_MAX)
        return TIERCE_E_LIMIT;
    entry.value = tierce__strdup(value);
    entry.name = old == NULL ? tierce__strdup(name) : NULL;
    if (entry.value == NULL || (old == NULL && entry.name == NULL)) {
        tierce__free(entry.name);
        tierce__free(entry.value);
        return -ENOMEM;
    }
    if (old == NULL) {
        migration->entries[migration->count++] = entry;
        return 0;
    }
    tierce__free(old->value);
    old->value = entry.value;
    old->line = line != 0 ? line : old->line;
    old->is_text = entry.is_text;
    return 0;
}

static void free_entry(struct tierce__migrate_entry *entry)
{
    tierce__free(entry->name);
    tierce__free(entry->value);
}

/* The variable of extra_config replaces all members of the file's. */
static void drop_extra(struct tierce__migration *migration)
{
    size_t kept = 0;
    for (size_t i = 0; i < migration->count; i++) {
        if (strncmp(migration->entries[i].name, EXTRA ".", sizeof(EXTRA)) == 0)
            free_entry(&migration->entries[i]);
        else
            migration->entries[kept++] = migration->entries[i];
    }
    migration->count = kept;
}

/* Ends the quotes that LMCache allows around the value of a variable. */
static void unquote(char *text)
{
    size_t length = strlen(text);
    if (length >= 2 && (*text == '"' || *text == '\'') && text[length - 1] == *text) {
        memmove(text, text + 1, length - 2);
        text[length - 2] = '\0';
    }
}

/* "NAME=value" after the prefix. LMCache ignores variables whose name is not a key. */
static int read_variable(struct reader *reader, const char *variable)
{
    size_t length = strcspn(variable, "=");
    char *name = tierce__strdup(variable);
    if (name == NULL)
        return tierce__config_fail(reader->error, -ENOMEM, "%s", tierce_strerror(-ENOMEM));
    char *value = name + length + (name[length] == '=');
    name[length] = '\0';
    for (char *p = name; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
    unquote(value);
    int rc = 0;
    if (strcmp(name, EXTRA) == 0) {
        drop_extra(reader->migration);
        if (!tierce__migrate_is_off(value))
            rc = read_extra(reader, value, TIERCE__MIGRATE_ENVIRONMENT);
    } else if (find_key(name) != &tierce__lmcache_unknown) {
        rc = put_value(reader->migration, name, value, TIERCE__MIGRATE_ENVIRONMENT);
        if (rc != 0)
            fail_at(reader, rc, TIERCE__MIGRATE_ENVIRONMENT, name, tierce_strerror(rc));
    }
    tierce__free(name);
    return rc;
}

static int read_file(struct reader *reader)
{
    struct tierce__migration *migration = reader->migration;
    struct tierce__yaml yaml = {0};
    int rc =
        tierce__yaml_open(&yaml, migration->path, "the configuration of LMCache", reader->error);
    if (rc != 0)
        return rc;
    if (yaml.root != NULL && !fy_node_is_mapping(yaml.root))
        rc = tierce__config_fail(reader->error, TIERCE_E_CONFIG,
                                 "%.200s: is not a mapping of keys to values", migration->path);
    else if (yaml.root != NULL)
        rc = read_pairs(reader, yaml.root, "");
    tierce__yaml_close(&yaml);
    size_t known = 0;
    for (size_t i = 0; i < migration->count; i++)
        known += migration->entries[i].key != &tierce__lmcache_unknown;
    if (rc == 0 && known == 0 && migration->count > 0)
        rc = fail_at(reader, TIERCE_E_CONFIG, migration->entries[0].line,
                     migration->entries[0].name, "no key of this file is one of LMCache's");
    return rc;
}

/* ---- multiprocess mode */

/* A value of kv_connector_extra_config. "lmcache.NAME" overrides NAME, and names of servers are
 * keys of their own. */
static int put_transfer(struct reader *reader, struct fy_node_pair *pair)
{
    struct tierce__line full = {0};
    char *key = NULL, *value = NULL;
    int rc = tierce__yaml_scalar(&key, fy_node_pair_key(pair));
    if (rc == 0)
        rc = read_value(&value, fy_node_pair_value(pair));
    bool is_ours = rc == 0 && strncmp(key, OURS, strlen(OURS)) == 0;
    bool is_server = is_ours && strncmp(key, SERVERS, strlen(SERVERS)) == 0;
    if (rc == 0 && is_ours && strcmp(key + strlen(OURS), EXTRA) == 0) {
        drop_extra(reader->migration);
        tierce__free(key);
        tierce__free(value);
        return read_extra_node(reader, fy_node_pair_value(pair), TIERCE__MIGRATE_CONNECTOR);
    }
    if (rc == 0) {
        tierce__line_put(&full, is_ours ? "" : TRANSFER ".");
        tierce__line_put(&full, key + (is_ours && !is_server ? strlen(OURS) : 0));
        tierce__line_put_bytes(&full, "", 1);
        rc = full.failed ? -ENOMEM
                         : put_value(reader->migration, full.text, value != NULL ? value : "",
                                     TIERCE__MIGRATE_CONNECTOR);
    }
    if (rc != 0)
        fail_at(reader, rc == -ENOMEM ? rc : TIERCE_E_CONFIG, TIERCE__MIGRATE_CONNECTOR,
                key != NULL ? key : "a key", rc == -EINVAL ? "is invalid" : tierce_strerror(rc));
    tierce__line_clear(&full);
    tierce__free(key);
    tierce__free(value);
    return rc == 0 || rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
}

/* The JSON of --kv-transfer-config, or of its member kv_connector_extra_config alone. */
static int read_transfer(struct reader *reader)
{
    const char *text = reader->migration->kv_transfer;
    struct reader inner = {
        .migration = reader->migration, .error = reader->error, .line = TIERCE__MIGRATE_CONNECTOR};
    struct tierce__yaml yaml = {0};
    struct fy_node_pair *pair;
    void *state = NULL;
    int rc = tierce__yaml_parse(&yaml, "--kv-transfer-config", text, strlen(text), reader->error);
    if (rc != 0)
        return rc;
    struct fy_node *values = yaml.root;
    if (values != NULL && fy_node_is_mapping(values) &&
        fy_node_mapping_lookup_by_string(values, TRANSFER, FY_NT) != NULL)
        values = fy_node_mapping_lookup_by_string(values, TRANSFER, FY_NT);
    else if (values != NULL && fy_node_is_mapping(values) &&
             fy_node_mapping_lookup_by_string(values, "kv_connector", FY_NT) != NULL)
        values = NULL; /* nothing is set */
    else if (values == NULL || !fy_node_is_mapping(values))
        rc = fail_at(reader, TIERCE_E_CONFIG, TIERCE__MIGRATE_CONNECTOR, TRANSFER,
                     "must be a mapping");
    while (rc == 0 && values != NULL && (pair = fy_node_mapping_iterate(values, &state)) != NULL)
        rc = put_transfer(&inner, pair);
    tierce__yaml_close(&yaml);
    return rc;
}

/* A flag and its values, as LMCache's parser reads them: --no-NAME is false, and a flag without a
 * value true. */
static int put_flag(struct reader *reader, const char *word, char **values, int count,
                    unsigned *adapters)
{
    struct tierce__line value = {0};
    char name[128], prefix[64];
    size_t length = strcspn(word, "=");
    bool is_negative = strncmp(word, "--no-", 5) == 0 && word[length] == '\0' && count == 0;
    snprintf(name, sizeof(name), "%s%.*s", is_negative ? "--" : "",
             (int)length - (is_negative ? 5 : 0), word + (is_negative ? 5 : 0));
    if (word[length] == '=')
        tierce__line_put(&value, word + length + 1);
    for (int i = 0; i < count; i++) {
        tierce__line_put(&value, value.bytes > 0 ? "," : "");
        tierce__line_put(&value, values[i]);
    }
    if (word[length] != '=' && count == 0)
        tierce__line_put(&value, is_negative ? "false" : "true");
    tierce__line_put_bytes(&value, "", 1);
    int rc = value.failed ? -ENOMEM : 0;
    if (rc == 0 && strcmp(name, "--l2-adapter") == 0) {
        snprintf(prefix, sizeof(prefix), TIERCE__MIGRATE_ADAPTER "%u.", ++*adapters);
        rc = read_json(reader, name, value.text, TIERCE__MIGRATE_SERVER, prefix);
    } else {
        if (rc == 0)
            rc = put_value(reader->migration, name, value.text, TIERCE__MIGRATE_SERVER);
        if (rc != 0)
            fail_at(reader, rc, TIERCE__MIGRATE_SERVER, name, tierce_strerror(rc));
    }
    tierce__line_clear(&value);
    return rc;
}

/* The words before the first flag are the program. */
static int read_server(struct reader *reader)
{
    char **words = reader->migration->server;
    int count = reader->migration->server_words, rc = 0;
    unsigned adapters = 0;
    for (int i = 0; rc == 0 && i < count;) {
        int end = i + 1;
        while (end < count && strncmp(words[end], "--", 2) != 0)
            end++;
        if (strncmp(words[i], "--", 2) == 0)
            rc = put_flag(reader, words[i], words + i + 1, end - i - 1, &adapters);
        i = end;
    }
    return rc;
}

/* Whether a key of this parameter is given. */
static bool has_target(const struct tierce__migration *migration, const char *target)
{
    for (size_t i = 0; i < migration->count; i++) {
        const struct tierce__lmcache_key *key = migration->entries[i].key;
        if (key->target != NULL && strcmp(key->target, target) == 0)
            return true;
    }
    return false;
}

static bool is_multiprocess(const struct tierce__migration *migration)
{
    bool is_found = migration->server != NULL;
    for (size_t i = 0; i < migration->count; i++)
        is_found |= strncmp(migration->entries[i].name, SERVERS, strlen(SERVERS)) == 0;
    return is_found;
}

static bool is_missing(const struct tierce__migration *migration, const char *name)
{
    const struct tierce__migrate_entry *entry = tierce__migrate_find(migration, name);
    return entry == NULL || entry->value == NULL;
}

int tierce__migrate_read(struct tierce__migration *migration, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__config_error error = {{0}};
    struct reader reader = {.migration = migration, .error = &error};
    int rc = 0;
    migration->entries = tierce__calloc(TIERCE__MIGRATE_ENTRIES_MAX, sizeof(*migration->entries));
    if (migration->entries == NULL)
        rc = tierce__config_fail(&error, -ENOMEM, "%s", tierce_strerror(-ENOMEM));
    if (rc == 0 && migration->path != NULL)
        rc = read_file(&reader);
    for (char **p = environ; rc == 0 && migration->environment && *p != NULL; p++) {
        if (strncmp(*p, VARIABLE, strlen(VARIABLE)) == 0)
            rc = read_variable(&reader, *p + strlen(VARIABLE));
    }
    if (rc == 0 && migration->kv_transfer != NULL)
        rc = read_transfer(&reader);
    if (rc == 0 && migration->server != NULL)
        rc = read_server(&reader);
    /* LMCache's server has a port without a flag too. */
    if (rc == 0 && migration->server != NULL && !has_target(migration, "node.start")) {
        rc = put_value(migration, "--port", "5555", 0);
        if (rc != 0)
            tierce__config_fail(&error, rc, "%s", tierce_strerror(rc));
    }
    /* LMCache's default for a key that is missing or null, where Tierce's default is smaller. In
     * multiprocess mode the server has the memory. */
    if (rc == 0 && !is_multiprocess(migration) && is_missing(migration, "max_local_cpu_size")) {
        rc = put_value(migration, "max_local_cpu_size", "5.0", 0);
        if (rc != 0)
            tierce__config_fail(&error, rc, "%s", tierce_strerror(rc));
    }
    snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s", error.text);
    return rc;
}

void tierce__migrate_clear(struct tierce__migration *migration)
{
    for (size_t i = 0; i < migration->count; i++)
        free_entry(&migration->entries[i]);
    tierce__free(migration->entries);
    tierce_config_destroy(migration->config);
    *migration = (struct tierce__migration){0};
}

struct tierce__migrate_entry *tierce__migrate_find(const struct tierce__migration *migration,
                                                   const char *name)
{
    for (size_t i = 0; i < migration->count; i++) {
        if (strcmp(migration->entries[i].name, name) == 0)
            return &migration->entries[i];
    }
    return NULL;
}
