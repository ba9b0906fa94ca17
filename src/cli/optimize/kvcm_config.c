/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/optimize/kvcm_config.h"
#include "base/alloc.h"
#include "base/nearest.h"
#include "cli/cli.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX (16u << 20)

/* A configuration that is being read, and the current position for messages. */
struct reader {
    struct tierce__kvcm_config config;
    char where[160]; /* "" or "instance_groups[0].instances[1]" */
    char *why;
};

static int wrong(const struct reader *r, const char *key, const char *what)
{
    const char *dot = r->where[0] != '\0' ? "." : "";
    snprintf(r->why, TIERCE__KVCM_CONFIG_WHY_BYTES, "\"%s%s%.100s\" %s", r->where, dot, key, what);
    return TIERCE_E_FORMAT;
}

/* ---- values ---------------------------------------------------------------------------------- */

enum kind { OBJECT, ARRAY, TEXT, INTEGER, NUMBER, BOOLEAN };

struct key {
    const char *name;
    enum kind kind;
    bool is_optional;
};

static bool is_of(struct json_object *value, enum kind kind)
{
    static const enum json_type types[] = {json_type_object, json_type_array,  json_type_string,
                                           json_type_int,    json_type_double, json_type_boolean};
    return json_object_is_type(value, types[kind]) ||
           (kind == NUMBER && json_object_is_type(value, json_type_int));
}

static int unknown_key(const struct reader *r, const char *key, const struct key *keys)
{
    const char *nearest = keys->name;
    char text[120];
    for (const struct key *k = keys; k->name != NULL; k++) {
        if (tierce__edit_distance(k->name, key) < tierce__edit_distance(nearest, key))
            nearest = k->name;
    }
    snprintf(text, sizeof(text), "is not known here (\"%s\"?)", nearest);
    return wrong(r, key, text);
}

/* Checks the members of an object against a table; values[i] is that of keys[i], or NULL. */
static int read_keys(const struct reader *r, struct json_object *object, const struct key *keys,
                     struct json_object **values)
{
    static const char *const kinds[] = {"is not an object",  "is not an array", "is not a text",
                                        "is not an integer", "is not a number", "is not a boolean"};
    struct json_object_iterator it = json_object_iter_begin(object);
    struct json_object_iterator end = json_object_iter_end(object);
    for (; !json_object_iter_equal(&it, &end); json_object_iter_next(&it)) {
        const struct key *k = keys;
        while (k->name != NULL && strcmp(k->name, json_object_iter_peek_name(&it)) != 0)
            k++;
        if (k->name == NULL)
            return unknown_key(r, json_object_iter_peek_name(&it), keys);
    }
    for (size_t i = 0; keys[i].name != NULL; i++) {
        if (!json_object_object_get_ex(object, keys[i].name, &values[i])) {
            values[i] = NULL;
            if (!keys[i].is_optional)
                return wrong(r, keys[i].name, "is missing");
        } else if (!is_of(values[i], keys[i].kind)) {
            return wrong(r, keys[i].name, kinds[keys[i].kind]);
        }
    }
    return 0;
}

static int read_text(char **out, struct json_object *value)
{
    *out = tierce__strdup(json_object_get_string(value));
    return *out != NULL ? 0 : -ENOMEM;
}

/* An integer between two bounds; json-c would clip a larger one. */
static int read_integer(const struct reader *r, uint64_t *out, const char *key,
                        struct json_object *value, uint64_t least, uint64_t most)
{
    char text[120];
    int64_t number = json_object_get_int64(value);
    if (number >= 0 && (uint64_t)number >= least && (uint64_t)number <= most &&
        number != INT64_MAX) {
        *out = (uint64_t)number;
        return 0;
    }
    snprintf(text, sizeof(text), "is not between %llu and %llu", (unsigned long long)least,
             (unsigned long long)most);
    return wrong(r, key, text);
}

/* ---- the parts ------------------------------------------------------------------------------- */

static int read_eviction(struct reader *r, struct json_object *object)
{
    enum { MODE, BATCH, COUNT };
    static const struct key keys[] = {{"eviction_mode", INTEGER, false},
                                      {"eviction_batch_size_per_instance", INTEGER, false},
                                      {NULL, 0, false}};
    struct json_object *values[COUNT];
    uint64_t mode = 0, batch = 0;
    snprintf(r->where, sizeof(r->where), "eviction_params");
    int rc = read_keys(r, object, keys, values);
    if (rc == 0)
        rc = read_integer(r, &mode, keys[MODE].name, values[MODE], 1, 3);
    if (rc == 0)
        rc = read_integer(r, &batch, keys[BATCH].name, values[BATCH], 1, INT32_MAX);
    r->config.mode = (enum tierce__kvcm_mode)mode;
    r->config.batch = (uint32_t)batch;
    return rc;
}

/* The capacity of the tier with the least priority value. */
static int read_tiers(struct reader *r, uint64_t *capacity, struct json_object *array,
                      uint32_t group)
{
    enum { NAME, TYPE, BANDWIDTH, PRIORITY, CAPACITY, COUNT };
    static const struct key keys[] = {
        {"unique_name", TEXT, false},       {"storage_type", TEXT, false},
        {"band_width_mbps", NUMBER, false}, {"priority", INTEGER, false},
        {"capacity", INTEGER, false},       {NULL, 0, false}};
    struct json_object *values[COUNT];
    int64_t least = 0;
    size_t count = json_object_array_length(array);
    int rc = count > 0 ? 0 : wrong(r, "storages", "is empty; at least one storage is required");
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct json_object *tier = json_object_array_get_idx(array, i);
        uint64_t blocks = 0;
        snprintf(r->where, sizeof(r->where), "instance_groups[%u].storages[%zu]", group, i);
        rc = is_of(tier, OBJECT) ? read_keys(r, tier, keys, values)
                                 : wrong(r, "", "is not an object");
        if (rc == 0)
            rc = read_integer(r, &blocks, keys[CAPACITY].name, values[CAPACITY], 0, INT64_MAX - 1);
        if (rc == 0 && (i == 0 || json_object_get_int64(values[PRIORITY]) < least)) {
            least = json_object_get_int64(values[PRIORITY]);
            *capacity = blocks;
        }
    }
    return rc;
}

static int read_policy(struct reader *r, struct tierce__kvcm_config_instance *instance,
                       struct json_object *name, struct json_object *params)
{
    static const char *const names[] = {"lru", "random_lru", "leaf_aware_lru"};
    static const struct key keys[] = {{"sample_rate", NUMBER, true}, {NULL, 0, false}};
    struct json_object *rate = NULL;
    int kind = 0;
    while (kind < 3 && strcmp(names[kind], json_object_get_string(name)) != 0)
        kind++;
    if (kind == 3)
        return wrong(r, "eviction_policy_type", "is not lru, random_lru or leaf_aware_lru");
    instance->kind = (enum tierce__kvcm_kind)kind;
    size_t length = strlen(r->where);
    snprintf(r->where + length, sizeof(r->where) - length, ".eviction_policy_params");
    int rc = read_keys(r, params, keys, &rate);
    if (rc == 0 && rate == NULL && instance->kind == TIERCE__KVCM_RANDOM_LRU)
        rc = wrong(r, "sample_rate", "is missing");
    if (rc == 0 && rate != NULL)
        instance->sample_rate = json_object_get_double(rate);
    r->where[length] = '\0';
    return rc;
}

static bool is_taken(const struct tierce__kvcm_config *config, const char *name)
{
    for (uint32_t i = 0; i + 1 < config->instance_count; i++) {
        if (strcmp(config->instances[i].name, name) == 0)
            return true;
    }
    return false;
}

static int read_instance(struct reader *r, struct json_object *object, uint32_t group)
{
    enum { ID, SIZE, POLICY, PARAMS, GROUP, COUNT };
    static const struct key keys[] = {
        {"instance_id", TEXT, false},          {"block_size", INTEGER, false},
        {"eviction_policy_type", TEXT, false}, {"eviction_policy_params", OBJECT, false},
        {"instance_group_name", TEXT, true},   {NULL, 0, false}};
    struct json_object *values[COUNT];
    struct tierce__kvcm_config *config = &r->config;
    if (!is_of(object, OBJECT))
        return wrong(r, "", "is not an object");
    int rc = read_keys(r, object, keys, values);
    if (rc < 0)
        return rc;
    struct tierce__kvcm_config_instance *instance = &config->instances[config->instance_count++];
    *instance = (struct tierce__kvcm_config_instance){.group = group};
    rc = read_text(&instance->name, values[ID]);
    if (rc == 0 && is_taken(config, instance->name))
        rc = wrong(r, keys[ID].name, "is also the id of another instance");
    if (rc == 0 && values[GROUP] != NULL &&
        strcmp(json_object_get_string(values[GROUP]), config->groups[group].name) != 0)
        rc = wrong(r, keys[GROUP].name, "is not the group that contains it");
    return rc < 0 ? rc : read_policy(r, instance, values[POLICY], values[PARAMS]);
}

static int read_instances(struct reader *r, struct json_object *array, uint32_t group)
{
    size_t count = json_object_array_length(array);
    struct tierce__kvcm_config *config = &r->config;
    if (count == 0)
        return wrong(r, "instances", "is empty");
    struct tierce__kvcm_config_instance *instances =
        tierce__realloc(config->instances, (config->instance_count + count) * sizeof(*instances));
    if (instances == NULL)
        return -ENOMEM;
    config->instances = instances;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        snprintf(r->where, sizeof(r->where), "instance_groups[%u].instances[%zu]", group, i);
        rc = read_instance(r, json_object_array_get_idx(array, i), group);
    }
    return rc;
}

static int read_group(struct reader *r, struct json_object *object, uint32_t at)
{
    enum { NAME, QUOTA, USED, TIERED, STORAGES, INSTANCES, COUNT };
    static const struct key keys[] = {{"group_name", TEXT, false},
                                      {"quota_capacity", INTEGER, false},
                                      {"used_percentage", NUMBER, false},
                                      {"hierarchical_eviction_enabled", BOOLEAN, false},
                                      {"storages", ARRAY, false},
                                      {"instances", ARRAY, false},
                                      {NULL, 0, false}};
    struct json_object *values[COUNT];
    struct tierce__kvcm_config_group *group = &r->config.groups[at];
    uint64_t quota = 0, tier = 0;
    snprintf(r->where, sizeof(r->where), "instance_groups[%u]", at);
    if (!is_of(object, OBJECT))
        return wrong(r, "", "is not an object");
    int rc = read_keys(r, object, keys, values);
    if (rc == 0)
        rc = read_text(&group->name, values[NAME]);
    if (rc == 0)
        rc = read_integer(r, &quota, keys[QUOTA].name, values[QUOTA], 0, INT64_MAX - 1);
    if (rc < 0)
        return rc;
    group->used_share = json_object_get_double(values[USED]);
    if (!(group->used_share >= 0 && group->used_share <= 1))
        return wrong(r, keys[USED].name, "is not a share between 0 and 1");
    rc = read_tiers(r, &tier, values[STORAGES], at);
    group->capacity = json_object_get_boolean(values[TIERED]) ? tier : quota;
    return rc < 0 ? rc : read_instances(r, values[INSTANCES], at);
}

static int read_groups(struct reader *r, struct json_object *array)
{
    size_t count = json_object_array_length(array);
    r->where[0] = '\0';
    if (count == 0 || count > INT32_MAX)
        return wrong(r, "instance_groups", "is empty");
    r->config.groups = tierce__calloc(count, sizeof(*r->config.groups));
    if (r->config.groups == NULL)
        return -ENOMEM;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        r->config.group_count++;
        rc = read_group(r, json_object_array_get_idx(array, i), (uint32_t)i);
    }
    return rc;
}

static int read_format(struct reader *r, const char *type)
{
    static const char *const types[][2] = {{"publisher_log", "kvcm-log"},
                                           {"qwen_bailian", "qwen"},
                                           {"optimizer_schema", "kvcm-schema"}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i][0], type) == 0) {
            r->config.format = types[i][1];
            return 0;
        }
    }
    return wrong(r, "trace_type", "is not publisher_log, qwen_bailian or optimizer_schema");
}

static int read_config(struct reader *r, struct json_object *object)
{
    enum { TRACE, TYPE, OUTPUT, EVICTION, GROUPS, COUNT };
    static const struct key keys[] = {
        {"trace_file_path", TEXT, false},    {"trace_type", TEXT, false},
        {"output_result_path", TEXT, false}, {"eviction_params", OBJECT, false},
        {"instance_groups", ARRAY, false},   {NULL, 0, false}};
    struct json_object *values[COUNT];
    int rc = read_keys(r, object, keys, values);
    if (rc == 0)
        rc = read_format(r, json_object_get_string(values[TYPE]));
    if (rc == 0)
        rc = read_text(&r->config.trace_path, values[TRACE]);
    if (rc == 0)
        rc = read_text(&r->config.output_path, values[OUTPUT]);
    if (rc == 0)
        rc = read_eviction(r, values[EVICTION]);
    return rc < 0 ? rc : read_groups(r, values[GROUPS]);
}

int tierce__kvcm_config_read_text(struct tierce__kvcm_config *out, const char *text,
                                  char why[TIERCE__KVCM_CONFIG_WHY_BYTES])
{
    struct reader r = {.why = why};
    enum json_tokener_error error = json_tokener_success;
    struct json_object *object = json_tokener_parse_verbose(text, &error);
    int rc;
    if (object == NULL || !is_of(object, OBJECT)) {
        snprintf(why, TIERCE__KVCM_CONFIG_WHY_BYTES, "no JSON object: %s",
                 json_tokener_error_desc(error));
        rc = TIERCE_E_FORMAT;
    } else {
        rc = read_config(&r, object);
    }
    json_object_put(object);
    if (rc == -ENOMEM)
        snprintf(why, TIERCE__KVCM_CONFIG_WHY_BYTES, "%s", tierce_strerror(rc));
    if (rc == 0)
        *out = r.config;
    else
        tierce__kvcm_config_clear(&r.config);
    return rc;
}

int tierce__kvcm_config_read(struct tierce__kvcm_config *out, const char *path,
                             char why[TIERCE__KVCM_CONFIG_WHY_BYTES])
{
    char *text;
    int rc = tierce__cli_read_text(&text, path, FILE_BYTES_MAX);
    if (rc < 0) {
        snprintf(why, TIERCE__KVCM_CONFIG_WHY_BYTES, "%s", tierce__cli_read_error(rc));
        return rc;
    }
    rc = tierce__kvcm_config_read_text(out, text, why);
    tierce__free(text);
    return rc;
}

void tierce__kvcm_config_clear(struct tierce__kvcm_config *config)
{
    for (uint32_t i = 0; i < config->group_count; i++)
        tierce__free(config->groups[i].name);
    for (uint32_t i = 0; i < config->instance_count; i++)
        tierce__free(config->instances[i].name);
    tierce__free(config->trace_path);
    tierce__free(config->output_path);
    tierce__free(config->groups);
    tierce__free(config->instances);
    *config = (struct tierce__kvcm_config){0};
}

/* ---- for a trace ----------------------------------------------------------------------------- */

/* The instance of the config that a name of the trace means; instance_count for none. */
static uint32_t find_instance(const struct tierce__kvcm_config *config, const char *name)
{
    uint32_t i = 0;
    const char *wanted = name[0] != '\0' ? name : "instance";
    while (i < config->instance_count && strcmp(config->instances[i].name, wanted) != 0)
        i++;
    return name[0] == '\0' && config->instance_count == 1 ? 0 : i;
}

/* index[i] becomes the place of the config's instance i in the layout. */
static int place_instances(uint32_t *index, uint32_t *extra,
                           const struct tierce__kvcm_config *config, const char *const *instances,
                           uint32_t instance_count, char *why)
{
    memset(index, 0xff, config->instance_count * sizeof(*index));
    for (uint32_t t = 0; t < instance_count; t++) {
        uint32_t i = find_instance(config, instances[t]);
        if (i == config->instance_count) {
            snprintf(why, TIERCE__KVCM_CONFIG_WHY_BYTES,
                     "the trace's instance \"%.200s\" is in no group", instances[t]);
            return TIERCE_E_ARGUMENT;
        }
        if (index[i] != UINT32_MAX) {
            snprintf(why, TIERCE__KVCM_CONFIG_WHY_BYTES,
                     "the trace has requests of \"%.200s\" and requests of no instance",
                     config->instances[i].name);
            return TIERCE_E_ARGUMENT;
        }
        index[i] = t;
    }
    *extra = 0;
    for (uint32_t i = 0; i < config->instance_count; i++) {
        if (index[i] == UINT32_MAX)
            index[i] = instance_count + (*extra)++;
    }
    return 0;
}

int tierce__kvcm_config_layout(struct tierce__kvcm_layout *out, const char ***names_out,
                               const struct tierce__kvcm_config *config,
                               const char *const *instances, uint32_t instance_count,
                               char why[TIERCE__KVCM_CONFIG_WHY_BYTES])
{
    struct tierce__kvcm_layout layout = {0};
    uint32_t extra = 0;
    uint32_t *index = tierce__calloc(config->instance_count, sizeof(*index));
    const char **names = tierce__calloc(config->instance_count, sizeof(*names));
    int rc = index == NULL || names == NULL
                 ? -ENOMEM
                 : place_instances(index, &extra, config, instances, instance_count, why);
    if (rc == 0)
        rc = tierce__kvcm_layout_create(&layout, config->instance_count, config->group_count);
    if (rc == -ENOMEM)
        snprintf(why, TIERCE__KVCM_CONFIG_WHY_BYTES, "%s", tierce_strerror(rc));
    if (rc != 0)
        goto out;
    layout.mode = config->mode;
    layout.batch = config->batch;
    for (uint32_t g = 0; g < config->group_count; g++)
        layout.groups[g].quota =
            tierce__kvcm_quota(config->groups[g].capacity, config->groups[g].used_share);
    for (uint32_t i = 0; i < config->instance_count; i++) {
        const struct tierce__kvcm_config_instance *from = &config->instances[i];
        struct tierce__kvcm_group *group = &layout.groups[from->group];
        layout.instances[index[i]] = (struct tierce__kvcm_instance){
            .kind = from->kind, .sample_rate = from->sample_rate, .group = from->group};
        names[index[i]] = from->name;
        layout.members[i] = index[i];
        if (group->member_count++ == 0)
            group->first_member = i;
    }
    *out = layout;
    *names_out = names;
    names = NULL;
out:
    tierce__free(names);
    tierce__free(index);
    return rc;
}
