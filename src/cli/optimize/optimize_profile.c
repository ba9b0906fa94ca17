/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/config/config_yaml.h"
#include "base/text/nearest.h"
#include "cli/cli.h"
#include "cli/optimize/optimize_money.h"

#include <errno.h>
#include <libfyaml.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND    "optimize"
#define SPEEDS_MAX (1u << 20) /* bytes of a file */

/* ---- --profile ------------------------------------------------------------------------------- */

/* The file that is being read. */
struct profile_source {
    struct tierce__profiles *profiles;
    const char *path;
};

static int wrong(const struct profile_source *source, int line, const char *key, const char *what)
{
    return tierce__cli_usage(COMMAND, "%.300s:%d: \"%.100s\" %s", source->path, line, key, what);
}

/* A key and its value; the key is heap. Returns an exit status. */
static int read_pair(const struct profile_source *source, struct fy_node *mapping,
                     struct fy_node_pair *pair, char **key, struct fy_node **value, int *line)
{
    void *state = NULL;
    struct fy_node_pair *before;
    *line = tierce__yaml_line(fy_node_pair_key(pair));
    *value = fy_node_pair_value(pair);
    if (tierce__yaml_scalar(key, fy_node_pair_key(pair)) != 0)
        return tierce__cli_usage(COMMAND, "%.300s: a key must be a string", source->path);
    while ((before = fy_node_mapping_iterate(mapping, &state)) != pair) {
        char *other = NULL;
        bool same =
            tierce__yaml_scalar(&other, fy_node_pair_key(before)) == 0 && strcmp(other, *key) == 0;
        tierce__free(other);
        if (same) {
            int status = wrong(source, *line, *key, "is given twice");
            tierce__free(*key);
            return status;
        }
    }
    return TIERCE__CLI_OK;
}

static bool is_mapping(struct fy_node *node)
{
    return node != NULL && fy_node_is_mapping(node) && !fy_node_is_alias(node);
}

/* {price: 2.1, mfu: 0.5} of one name. */
static int read_figures(const struct profile_source *source, enum tierce__profile_kind kind,
                        const char *name, struct fy_node *mapping)
{
    void *state = NULL;
    struct fy_node_pair *pair;
    int status = TIERCE__CLI_OK;
    while (status == TIERCE__CLI_OK && (pair = fy_node_mapping_iterate(mapping, &state)) != NULL) {
        char why[TIERCE__PROFILE_WHY_BYTES], *key, *text = NULL;
        struct fy_node *value;
        int line;
        status = read_pair(source, mapping, pair, &key, &value, &line);
        if (status != TIERCE__CLI_OK)
            return status;
        if (tierce__yaml_scalar(&text, value) != 0)
            status = wrong(source, line, key, "must be a number");
        else if (tierce__profiles_set(source->profiles, kind, name, key, text, TIERCE__MARK_GIVEN,
                                      why) < 0)
            status = tierce__cli_usage(COMMAND, "%.300s:%d: %s", source->path, line, why);
        tierce__free(key);
        tierce__free(text);
    }
    return status;
}

/* {h100: {...}, mine: {...}} of one kind. */
static int read_names(const struct profile_source *source, enum tierce__profile_kind kind,
                      struct fy_node *mapping)
{
    void *state = NULL;
    struct fy_node_pair *pair;
    int status = TIERCE__CLI_OK;
    while (status == TIERCE__CLI_OK && (pair = fy_node_mapping_iterate(mapping, &state)) != NULL) {
        char *name;
        struct fy_node *value;
        int line;
        status = read_pair(source, mapping, pair, &name, &value, &line);
        if (status != TIERCE__CLI_OK)
            return status;
        status = is_mapping(value)
                     ? read_figures(source, kind, name, value)
                     : wrong(source, line, name, "must be a mapping of keys to numbers");
        tierce__free(name);
    }
    return status;
}

static int read_root(const struct profile_source *source, struct fy_node *root)
{
    static const char *const kinds[] = {"models", "gpus", "tiers", NULL};
    void *state = NULL;
    struct fy_node_pair *pair;
    int status = TIERCE__CLI_OK;
    if (!is_mapping(root))
        return tierce__cli_usage(COMMAND,
                                 "%.300s: must be a mapping with the keys models, gpus and tiers",
                                 source->path);
    while (status == TIERCE__CLI_OK && (pair = fy_node_mapping_iterate(root, &state)) != NULL) {
        char *name, what[80];
        struct fy_node *value;
        int line, kind = 0;
        status = read_pair(source, root, pair, &name, &value, &line);
        if (status != TIERCE__CLI_OK)
            return status;
        while (kind < 3 && strcmp(kinds[kind], name) != 0)
            kind++;
        snprintf(what, sizeof(what), "is unknown here; the nearest is \"%s\"",
                 tierce__nearest(name, kinds));
        if (kind == 3)
            status = wrong(source, line, name, what);
        else
            status = is_mapping(value) ? read_names(source, (enum tierce__profile_kind)kind, value)
                                       : wrong(source, line, name, "must be a mapping of names");
        tierce__free(name);
    }
    return status;
}

int tierce__optimize_read_profile(struct tierce__profiles *profiles, const char *path)
{
    struct tierce__config_error error;
    struct tierce__yaml yaml;
    struct profile_source source = {.profiles = profiles, .path = path};
    if (tierce__yaml_open(&yaml, path, "--profile", &error) < 0)
        return tierce__cli_usage(COMMAND, "%s", error.text);
    int status = read_root(&source, yaml.root);
    tierce__yaml_close(&yaml);
    return status;
}

/* ---- --tier-speeds --------------------------------------------------------------------------- */

/* The cases of `tierce bench --csv` that measure the read speed of a tier. */
static const struct speed {
    const char *prefix; /* of a line, before the size in MiB */
    const char *tier;
} speeds[] = {
    {"memory,load chunks of ", "dram"},
    {"disk,read chunks of ", "nvme"},
};

/* "memory,load chunks of 16 MiB,GB/s,11.13,...": the chunk's bytes and the bytes a second. */
static bool read_speed(const struct speed *speed, const char *line, double *bytes, double *value)
{
    static const char unit[] = " MiB,GB/s,";
    char *end;
    size_t prefix = strlen(speed->prefix);
    if (strncmp(line, speed->prefix, prefix) != 0)
        return false;
    *bytes = strtod(line + prefix, &end) * 1048576;
    if (strncmp(end, unit, strlen(unit)) != 0)
        return false;
    *value = strtod(end + strlen(unit), &end) * 1e9;
    return *bytes > 0 && *value > 0 && *end == ',';
}

int tierce__optimize_read_speeds(struct tierce__profiles *profiles, const char *path,
                                 double block_bytes)
{
    char *text, why[TIERCE__PROFILE_WHY_BYTES], number[32];
    int rc = tierce__cli_read_text(&text, path, SPEEDS_MAX), found = 0;
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%.300s: %s", path, tierce__cli_read_error(rc));
    for (size_t i = 0; rc == 0 && i < sizeof(speeds) / sizeof(speeds[0]); i++) {
        double bytes, value, nearest = INFINITY, chosen = 0;
        for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
            line += *line == '\n';
            if (!read_speed(&speeds[i], line, &bytes, &value))
                continue;
            if (fabs(log(bytes / block_bytes)) < nearest) {
                nearest = fabs(log(bytes / block_bytes));
                chosen = value;
            }
        }
        if (chosen <= 0)
            continue;
        found++;
        snprintf(number, sizeof(number), "%.6g", chosen);
        rc = tierce__profiles_set(profiles, TIERCE__PROFILE_STORAGE, speeds[i].tier, "bandwidth",
                                  number, TIERCE__MARK_MEASURED, why);
    }
    tierce__free(text);
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%.300s: %s", path, why);
    return found > 0 ? TIERCE__CLI_OK
                     : tierce__cli_fail(COMMAND,
                                        "%.300s: no line of `tierce bench memory disk --csv` with "
                                        "the speed of loading chunks",
                                        path);
}
