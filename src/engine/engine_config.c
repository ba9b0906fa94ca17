/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_config.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "store/disk/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ENGINE_CONFIG_MAGIC 0x5ec0f1a7u
#define SIZE_LEAST          (1u << 20)

struct tierce_config {
    uint32_t magic;
    struct tierce__config *values;
    bool requires_disk;
};

_Static_assert(TIERCE_CONFIG_ERROR_BYTES == sizeof(struct tierce__config_error),
               "a message fits the public buffer exactly");

static const struct tierce__param params[] = {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text)                           \
    [TIERCE__ENGINE_##row] = {name, TIERCE__PARAM_##type, fallback, min, max, choices, text},
#include "engine/engine_params.def"
#undef TIERCE_PARAM
};

/* Variables that share the prefix and are not parameters of an engine. */
static const char *const other_variables[] = {
    "TIERCE_CONFIG",    /* path of the file that the adapters and the command line read first */
    "TIERCE_MANAGER_*", /* of the manager */
    "TIERCE_NODE_*",    /* of the node */
    "TIERCE_PLUGIN_*",  /* variables of the programs of plugins.start */
    "TIERCE_PROXY_*",   /* of the proxy */
    "TIERCE_ROUTER_INDEX_*", /* of the router index */
    "TIERCE_TEST_*",         /* of the tests */
    "TIERCE_DYNAMO_*",       /* the same */
    "TIERCE_EXECUTABLE",     /* the same: the program that they run */
    "TIERCE_PYTHON",         /* the interpreter of `tierce why --text` */
    "TIERCE_VENV",           /* where tools/setup puts the Python environment */
    NULL,
};

const struct tierce__param *tierce__engine_params(void)
{
    return params;
}

/* Hands the inner message out. */
static int tell(int rc, char why[TIERCE_CONFIG_ERROR_BYTES],
                const struct tierce__config_error *error)
{
    if (rc != 0)
        memcpy(why, error->text, sizeof(error->text));
    return rc;
}

int tierce_config_create(struct tierce_config **out)
{
    struct tierce_config *config = tierce__calloc(1, sizeof(*config));
    if (config == NULL)
        return -ENOMEM;
    int rc = tierce__config_create(&config->values, params, TIERCE__ENGINE_PARAMS, "TIERCE");
    if (rc != 0) {
        tierce__free(config);
        return rc;
    }
    config->magic = ENGINE_CONFIG_MAGIC;
    *out = config;
    return 0;
}

void tierce_config_destroy(struct tierce_config *config)
{
    if (config == NULL)
        return;
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    tierce__config_destroy(config->values);
    config->magic = 0;
    tierce__free(config);
}

int tierce_config_load_file(struct tierce_config *config, const char *path,
                            char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__config_error error = {""};
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tell(tierce__config_load_file(config->values, path, &error), why, &error);
}

int tierce_config_load_env(struct tierce_config *config, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__config_error error = {""};
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tell(tierce__config_load_env(config->values, environ, other_variables, &error), why,
                &error);
}

int tierce__engine_config_set(struct tierce_config *config, const char *name, const char *value,
                              const char *source, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    struct tierce__config_error error = {""};
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tell(tierce__config_set(config->values, name, value, source, &error), why, &error);
}

int tierce_config_set(struct tierce_config *config, const char *name, const char *value,
                      char why[TIERCE_CONFIG_ERROR_BYTES])
{
    return tierce__engine_config_set(config, name, value, "set by the program", why);
}

const char *tierce_config_get(const struct tierce_config *config, const char *name)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    size_t row = tierce__config_find(config->values, name);
    return row == TIERCE__CONFIG_NONE ? NULL : tierce__config_canonical(config->values, row);
}

void tierce_config_print(const struct tierce_config *config, FILE *out)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    tierce__config_print(config->values, out);
}

void tierce__engine_config_require_disk(struct tierce_config *config, bool is_required)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    config->requires_disk = is_required;
}

bool tierce__engine_requires_disk(const struct tierce_config *config)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return config->requires_disk;
}

uint64_t tierce__engine_number(const struct tierce_config *config, enum tierce__engine_param param)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tierce__config_number(config->values, param);
}

double tierce__engine_share(const struct tierce_config *config, enum tierce__engine_param param)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tierce__config_share(config->values, param);
}

bool tierce__engine_bool(const struct tierce_config *config, enum tierce__engine_param param)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tierce__config_bool(config->values, param);
}

const char *tierce__engine_text(const struct tierce_config *config, enum tierce__engine_param param)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tierce__config_text(config->values, param);
}

const char *tierce__engine_source(const struct tierce_config *config,
                                  enum tierce__engine_param param)
{
    TIERCE_CHECK_MAGIC(config, ENGINE_CONFIG_MAGIC);
    return tierce__config_source(config->values, param);
}

bool tierce__engine_encrypts(const struct tierce_config *config, enum tierce__engine_param param)
{
    return strcmp(tierce__engine_text(config, param), "none") != 0;
}

/* NULL: nothing is wrong. */
static const char *keys_fault(const struct tierce_config *config)
{
    bool has_file = tierce__engine_text(config, TIERCE__ENGINE_ENCRYPTION_KEY_FILE)[0] != '\0';
    bool has_command =
        tierce__engine_text(config, TIERCE__ENGINE_ENCRYPTION_KEY_COMMAND)[0] != '\0';
    if (has_file && has_command)
        return "encryption.key_file and encryption.key_command are both set; remove one";
    if (has_file || has_command)
        return NULL;
    if (tierce__engine_encrypts(config, TIERCE__ENGINE_DISK_ENCRYPTION))
        return "disk.encryption requires encryption.key_file or encryption.key_command";
    if (tierce__engine_encrypts(config, TIERCE__ENGINE_REMOTE_ENCRYPTION))
        return "remote.encryption requires encryption.key_file or encryption.key_command";
    return NULL;
}

int tierce__engine_config_check(const struct tierce_config *config,
                                char why[TIERCE_CONFIG_ERROR_BYTES])
{
    static const enum tierce__engine_param sizes[] = {TIERCE__ENGINE_MEMORY_CODED_SIZE,
                                                      TIERCE__ENGINE_DISK_GPU_DIRECT};
    const char *fault = keys_fault(config);
    if (fault != NULL) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s", fault);
        return TIERCE_E_CONFIG;
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t bytes = tierce__engine_number(config, sizes[i]);
        char shown[32];
        if (bytes == 0 || bytes >= SIZE_LEAST)
            continue;
        tierce__format_size(shown, sizeof(shown), bytes);
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s is %s; set it to 0, or to 1MiB or more",
                 params[sizes[i]].name, shown);
        return TIERCE_E_CONFIG;
    }
    uint64_t chunks = tierce__engine_number(config, TIERCE__ENGINE_DISK_CHUNKS);
    uint32_t most =
        tierce__disk_chunk_count_max(tierce__engine_number(config, TIERCE__ENGINE_DISK_SIZE));
    if (chunks > most) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 "disk.chunks is %" PRIu64
                 ", but the index of a disk.size of %s has room for %" PRIu32
                 " chunks; set disk.chunks to a smaller value, or disk.size to a larger one",
                 chunks, tierce__config_canonical(config->values, TIERCE__ENGINE_DISK_SIZE), most);
        return TIERCE_E_CONFIG;
    }
    return 0;
}
