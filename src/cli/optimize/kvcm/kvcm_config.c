/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/optimize/kvcm/kvcm_config.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_value.h"
#include "base/text/nearest.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX (16u << 20)

/* A configuration that is being read, and the current position for messages. */
struct kvcm_config_reader {
    struct tierce__kvcm_config config;
    char where[160]; /* "" or "instance_groups[0].instances[1]" */
    char *why;
};

static int wrong(const struct kvcm_config_reader *r, const char *key, const char *what)
{
    const char *dot = r->where[0] != '\0' ? "." : "";
    snprintf(r->why, TIERCE__KVCM_CONFIG_WHY_BYTES, "\"%s%s%.100s\" %s", r->where, dot, key, what);
    return TIERCE_E_FORMAT;
}

/* ---- values ---------------------------------------------------------------------------------- */

struct kvcm_config_key {
    const char *name;
    char kind; /* as base/json/json.h has them; 'i' is an integer */
    bool is_optional;
    int64_t least, most; /* of an integer */
};

static bool is_of(struct tierce__text value, char wanted)
{
    char kind = tierce__json_value_kind(value);
    return wanted == 'i' ? tierce__json_is_integer(value) : (kind == 'f' ? 't' : kind) == wanted;
}

static const char *no_such_value(char wanted)
{
    return wanted == '{'   ? "is not an object"
           : wanted == '[' ? "is not an array"
           : wanted == '"' ? "is not a string"
           : wanted == 'i' ? "is not an integer"
           : wanted == '0' ? "is not a number"
                           : "is not a boolean";
}

static int unknown_key(const struct kvcm_config_reader *r, const char *key,
                       const struct kvcm_config_key *keys)
{
    const char *nearest = keys->name;
    char text[120];
    for (const struct kvcm_config_key *k = keys; k->name != NULL; k++) {
        if (tierce__edit_distance(k->name, key) < tierce__edit_distance(nearest, key))
            nearest = k->name;
    }
    snprintf(text, sizeof(text), "is unknown here; the nearest is \"%s\"", nearest);
    return wrong(r, key, text);
}

static int check_value(const struct kvcm_config_reader *r, const struct kvcm_config_key *key,
                       struct tierce__text value)
{
    char text[120];
    if (value.length == 0)
        return key->is_optional ? 0 : wrong(r, key->name, "is missing");
    if (!is_of(value, key->kind))
        return wrong(r, key->name, no_such_value(key->kind));
    int64_t number = tierce__json_get_int(value, "", INT64_MAX); /* also if it is larger */
    if (key->kind != 'i' || (number >= key->least && number <= key->most))
        return 0;
    snprintf(text, sizeof(text), "must be between %lld and %lld", (long long)key->least,
             (long long)key->most);
    return wrong(r, key->name, text);
}

/* Checks the members of an object against a table; values[i] is that of keys[i], or empty. */
static int read_keys(const struct kvcm_config_reader *r, struct tierce__text object,
                     const struct kvcm_config_key *keys, struct tierce__text *values)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(object);
    int rc = is_of(object, '{') ? 0 : wrong(r, "", no_such_value('{'));
    while (rc == 0 && tierce__json_next(&each, &name, &value)) {
        char text[TIERCE__JSON_NAME_MAX * 2];
        const struct kvcm_config_key *k = keys;
        snprintf(text, sizeof(text), "%.*s", (int)name.length, name.at);
        while (k->name != NULL && strcmp(k->name, text) != 0)
            k++;
        if (k->name == NULL)
            rc = unknown_key(r, text, keys);
    }
    for (size_t i = 0; rc == 0 && keys[i].name != NULL; i++) {
        values[i] = tierce__json_get(object, keys[i].name);
        rc = check_value(r, &keys[i], values[i]);
    }
    return rc;
}

static int read_text(const struct kvcm_config_reader *r, char **out, const char *key,
                     struct tierce__text value)
{
    int rc = tierce__json_copy_text(out, value, "");
    return rc == TIERCE_E_FORMAT ? wrong(r, key, "holds a NUL") : rc;
}

/* ---- the parts ------------------------------------------------------------------------------- */

static int read_eviction(struct kvcm_config_reader *r, struct tierce__text object)
{
    enum { MODE, BATCH, COUNT };
    static const struct kvcm_config_key keys[] = {
        {"eviction_mode", 'i', false, 1, 3},
        {"eviction_batch_size_per_instance", 'i', false, 1, INT32_MAX},
        {.name = NULL}};
    struct tierce__text values[COUNT];
    snprintf(r->where, sizeof(r->where), "eviction_params");
    int rc = read_keys(r, object, keys, values);
    if (rc < 0)
        return rc;
    r->config.mode = (enum tierce__kvcm_mode)tierce__json_get_int(values[MODE], "", 0);
    r->config.batch = (uint32_t)tierce__json_get_int(values[BATCH], "", 0);
    return 0;
}

/* The capacity of the tier with the least priority value. */
static int read_tiers(struct kvcm_config_reader *r, uint64_t *capacity, struct tierce__text array,
                      uint32_t group)
{
    enum { NAME, TYPE, BANDWIDTH, PRIORITY, CAPACITY, COUNT };
    static const struct kvcm_config_key keys[] = {
        {"unique_name", '"', false, 0, 0},          {"storage_type", '"', false, 0, 0},
        {"band_width_mbps", '0', false, 0, 0},      {"priority", 'i', false, INT64_MIN, INT64_MAX},
        {"capacity", 'i', false, 0, INT64_MAX - 1}, {.name = NULL}};
    struct tierce__text values[COUNT], name, tier;
    struct tierce__json each = tierce__json_each(array);
    int64_t least = 0;
    size_t i = 0;
    for (; tierce__json_next(&each, &name, &tier); i++) {
        snprintf(r->where, sizeof(r->where), "instance_groups[%u].storages[%zu]", group, i);
        int rc = read_keys(r, tier, keys, values);
        if (rc < 0)
            return rc;
        int64_t priority = tierce__json_get_int(values[PRIORITY], "", INT64_MAX);
        if (i == 0 || priority < least) {
            least = priority;
            *capacity = (uint64_t)tierce__json_get_int(values[CAPACITY], "", 0);
        }
    }
    return i > 0 ? 0 : wrong(r, "storages", "is empty; at least one storage is required");
}

static int read_policy(struct kvcm_config_reader *r, struct tierce__kvcm_config_instance *instance,
                       struct tierce__text policy, struct tierce__text params)
{
    static const char *const names[] = {"lru", "random_lru", "leaf_aware_lru"};
    static const struct kvcm_config_key keys[] = {{"sample_rate", '0', true, 0, 0}, {.name = NULL}};
    struct tierce__text rate = {0};
    char name[32];
    int kind = 0;
    (void)tierce__json_get_text(name, sizeof(name), policy, "");
    while (kind < 3 && strcmp(names[kind], name) != 0)
        kind++;
    if (kind == 3)
        return wrong(r, "eviction_policy_type", "must be lru, random_lru or leaf_aware_lru");
    instance->kind = (enum tierce__kvcm_kind)kind;
    size_t length = strlen(r->where);
    snprintf(r->where + length, sizeof(r->where) - length, ".eviction_policy_params");
    int rc = read_keys(r, params, keys, &rate);
    if (rc == 0 && rate.length == 0 && instance->kind == TIERCE__KVCM_RANDOM_LRU)
        rc = wrong(r, "sample_rate", "is missing");
    if (rc == 0 && rate.length > 0)
        instance->sample_rate = tierce__json_get_number(rate, "");
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

/* Whether a text, which may be missing, names the group. */
static int check_group(const struct kvcm_config_reader *r, const struct kvcm_config_key *key,
                       struct tierce__text value, uint32_t group)
{
    char *name = NULL;
    int rc = value.length > 0 ? read_text(r, &name, key->name, value) : 0;
    if (name != NULL && strcmp(name, r->config.groups[group].name) != 0)
        rc = wrong(r, key->name, "is not the group that contains it");
    tierce__free(name);
    return rc;
}

static int read_instance(struct kvcm_config_reader *r, struct tierce__text object, uint32_t group)
{
    enum { ID, SIZE, POLICY, PARAMS, GROUP, COUNT };
    static const struct kvcm_config_key keys[] = {{"instance_id", '"', false, 0, 0},
                                                  {"block_size", 'i', false, INT64_MIN, INT64_MAX},
                                                  {"eviction_policy_type", '"', false, 0, 0},
                                                  {"eviction_policy_params", '{', false, 0, 0},
                                                  {"instance_group_name", '"', true, 0, 0},
                                                  {.name = NULL}};
    struct tierce__text values[COUNT];
    struct tierce__kvcm_config *config = &r->config;
    TIERCE_ASSERT(group < config->group_count);
    int rc = read_keys(r, object, keys, values);
    if (rc < 0)
        return rc;
    struct tierce__kvcm_config_instance *instance = &config->instances[config->instance_count++];
    *instance = (struct tierce__kvcm_config_instance){.group = group};
    rc = read_text(r, &instance->name, keys[ID].name, values[ID]);
    if (rc == 0 && is_taken(config, instance->name))
        rc = wrong(r, keys[ID].name, "is also the id of another instance");
    if (rc == 0)
        rc = check_group(r, &keys[GROUP], values[GROUP], group);
    return rc < 0 ? rc : read_policy(r, instance, values[POLICY], values[PARAMS]);
}

static int read_instances(struct kvcm_config_reader *r, struct tierce__text array, uint32_t group)
{
    size_t count = tierce__json_count(array);
    struct tierce__kvcm_config *config = &r->config;
    if (count == 0)
        return wrong(r, "instances", "is empty");
    struct tierce__kvcm_config_instance *instances =
        tierce__realloc(config->instances, (config->instance_count + count) * sizeof(*instances));
    if (instances == NULL)
        return -ENOMEM;
    config->instances = instances;
    struct tierce__text name, instance;
    struct tierce__json each = tierce__json_each(array);
    int rc = 0;
    for (size_t i = 0; rc == 0 && tierce__json_next(&each, &name, &instance); i++) {
        snprintf(r->where, sizeof(r->where), "instance_groups[%u].instances[%zu]", group, i);
        rc = read_instance(r, instance, group);
    }
    return rc;
}

static int read_group(struct kvcm_config_reader *r, struct tierce__text object, uint32_t at)
{
    enum { NAME, QUOTA, USED, TIERED, STORAGES, INSTANCES, COUNT };
    static const struct kvcm_config_key keys[] = {
        {"group_name", '"', false, 0, 0},
        {"quota_capacity", 'i', false, 0, INT64_MAX - 1},
        {"used_percentage", '0', false, 0, 0},
        {"hierarchical_eviction_enabled", 't', false, 0, 0},
        {"storages", '[', false, 0, 0},
        {"instances", '[', false, 0, 0},
        {.name = NULL}};
    struct tierce__text values[COUNT];
    struct tierce__kvcm_config_group *group = &r->config.groups[at];
    uint64_t tier = 0;
    snprintf(r->where, sizeof(r->where), "instance_groups[%u]", at);
    int rc = read_keys(r, object, keys, values);
    if (rc == 0)
        rc = read_text(r, &group->name, keys[NAME].name, values[NAME]);
    if (rc < 0)
        return rc;
    group->used_share = tierce__json_get_number(values[USED], "");
    if (!(group->used_share >= 0 && group->used_share <= 1))
        return wrong(r, keys[USED].name, "must be a share between 0 and 1");
    rc = read_tiers(r, &tier, values[STORAGES], at);
    group->capacity = tierce__json_get_bool(values[TIERED], "")
                          ? tier
                          : (uint64_t)tierce__json_get_int(values[QUOTA], "", 0);
    return rc < 0 ? rc : read_instances(r, values[INSTANCES], at);
}

static int read_groups(struct kvcm_config_reader *r, struct tierce__text array)
{
    size_t count = tierce__json_count(array);
    r->where[0] = '\0';
    if (count == 0 || count > INT32_MAX)
        return wrong(r, "instance_groups", "is empty");
    r->config.groups = tierce__calloc(count, sizeof(*r->config.groups));
    if (r->config.groups == NULL)
        return -ENOMEM;
    struct tierce__text name, group;
    struct tierce__json each = tierce__json_each(array);
    int rc = 0;
    while (rc == 0 && tierce__json_next(&each, &name, &group)) {
        r->config.group_count++;
        TIERCE_ASSERT(r->config.group_count <= count);
        rc = read_group(r, group, r->config.group_count - 1);
    }
    return rc;
}

static int read_format(struct kvcm_config_reader *r, struct tierce__text value)
{
    static const char *const types[][2] = {{"publisher_log", "kvcm-log"},
                                           {"qwen_bailian", "qwen"},
                                           {"optimizer_schema", "kvcm-schema"}};
    char type[32];
    (void)tierce__json_get_text(type, sizeof(type), value, "");
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i][0], type) == 0) {
            r->config.format = types[i][1];
            return 0;
        }
    }
    return wrong(r, "trace_type", "must be publisher_log, qwen_bailian or optimizer_schema");
}

static int read_config(struct kvcm_config_reader *r, struct tierce__text object)
{
    enum { TRACE, TYPE, OUTPUT, EVICTION, GROUPS, COUNT };
    static const struct kvcm_config_key keys[] = {
        {"trace_file_path", '"', false, 0, 0},    {"trace_type", '"', false, 0, 0},
        {"output_result_path", '"', false, 0, 0}, {"eviction_params", '{', false, 0, 0},
        {"instance_groups", '[', false, 0, 0},    {.name = NULL}};
    struct tierce__text values[COUNT];
    int rc = read_keys(r, object, keys, values);
    if (rc == 0)
        rc = read_format(r, values[TYPE]);
    if (rc == 0)
        rc = read_text(r, &r->config.trace_path, keys[TRACE].name, values[TRACE]);
    if (rc == 0)
        rc = read_text(r, &r->config.output_path, keys[OUTPUT].name, values[OUTPUT]);
    if (rc == 0)
        rc = read_eviction(r, values[EVICTION]);
    return rc < 0 ? rc : read_groups(r, values[GROUPS]);
}

int tierce__kvcm_config_read_text(struct tierce__kvcm_config *out, const char *text,
                                  char why[TIERCE__KVCM_CONFIG_WHY_BYTES])
{
    struct kvcm_config_reader r = {.why = why};
    struct tierce__json_doc doc = {0};
    const char *mistake = "is not an object";
    int rc = tierce__json_parse(&doc, text, strlen(text), &mistake);
    if (rc == TIERCE_E_FORMAT || (rc == 0 && !is_of(doc.value, '{'))) {
        snprintf(why, TIERCE__KVCM_CONFIG_WHY_BYTES, "not a JSON object: %s", mistake);
        rc = TIERCE_E_FORMAT;
    }
    if (rc == 0)
        rc = read_config(&r, doc.value);
    tierce__json_doc_clear(&doc);
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
                     "some requests of the trace name the instance \"%.200s\", others name none",
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
