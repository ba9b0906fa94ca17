/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_args.h"

#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define IGNORED_MAX 8u

struct arguments {
    struct tierce__config_request request;
    const char *yaml; /* of --config, or NULL */
};

/* Takes "--NAME FILE" and "--NAME=FILE"; *i moves over it. */
static bool take_value(const char **out, const char *flag, int *i, int argc, char *const *argv)
{
    size_t bytes = strlen(flag);
    if (strncmp(argv[*i], flag, bytes) != 0)
        return false;
    if (argv[*i][bytes] == '=') {
        *out = argv[*i] + bytes + 1;
        return true;
    }
    if (argv[*i][bytes] != '\0' || *i + 1 >= argc)
        return false;
    *out = argv[++*i];
    return true;
}

static bool take_file(struct arguments *out, const struct tierce__config_program *program, int *i,
                      int argc, char *const *argv)
{
    return take_value(&out->yaml, "--config", i, argc, argv) ||
           (program->file_flag != NULL &&
            take_value(&out->request.file, program->file_flag, i, argc, argv));
}

static int read_arguments(struct arguments *out, const struct tierce__config_program *program,
                          int argc, char *const *argv, struct tierce__config_error *error)
{
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)
            out->request.action = TIERCE__CONFIG_HELP;
        else if (strcmp(arg, "--print-config") == 0)
            out->request.action = TIERCE__CONFIG_PRINT;
        else if (strcmp(arg, "--markdown") == 0)
            out->request.action = TIERCE__CONFIG_MARKDOWN;
        else if (take_file(out, program, &i, argc, argv))
            continue;
        else if (strcmp(arg, "--config") == 0 ||
                 (program->file_flag != NULL && strcmp(arg, program->file_flag) == 0))
            return tierce__config_fail(error, TIERCE_E_CONFIG, "%s requires a file", arg);
        else if (strncmp(arg, "--", 2) != 0 || strchr(arg, '=') == NULL)
            return tierce__config_refuse_argument(error, program->table, program->count,
                                                  program->command, arg);
    }
    return 0;
}

static int apply_flags(struct tierce__config *values, const struct tierce__config_program *program,
                       int argc, char *const *argv, struct tierce__config_error *error)
{
    int rc = 0;
    for (int i = 0; i < argc && rc == 0; i++) {
        char name[80], source[84];
        struct arguments taken;
        const char *equals;
        if (take_file(&taken, program, &i, argc, argv) || (equals = strchr(argv[i], '=')) == NULL)
            continue;
        TIERCE_ASSERT(equals - argv[i] >= 2);
        snprintf(name, sizeof(name), "%.*s", (int)(equals - argv[i] - 2), argv[i] + 2);
        snprintf(source, sizeof(source), "--%s", name);
        rc = tierce__config_set(values, name, equals + 1, source, error);
    }
    return rc;
}

/* The file, the environment, the flags. */
static int load_values(struct tierce__config *values, const struct tierce__config_program *program,
                       const char *yaml, int argc, char *const *argv, char *const *env,
                       struct tierce__config_error *error)
{
    const char *ignored[IGNORED_MAX + 2] = {NULL};
    char variable[80];
    snprintf(variable, sizeof(variable), "%s_CONFIG", program->env_prefix);
    ignored[0] = variable;
    for (size_t i = 0; program->ignored != NULL && program->ignored[i] != NULL; i++) {
        TIERCE_ASSERT(i < IGNORED_MAX);
        ignored[i + 1] = program->ignored[i];
    }
    if (yaml == NULL)
        yaml = tierce__config_env_value(env, variable);
    int rc = yaml != NULL ? tierce__config_load_file(values, yaml, error) : 0;
    if (rc == 0)
        rc = tierce__config_load_env(values, env, ignored, error);
    return rc == 0 ? apply_flags(values, program, argc, argv, error) : rc;
}

int tierce__config_load_program(struct tierce__config **out, struct tierce__config_request *request,
                                const struct tierce__config_program *program, int argc,
                                char *const *argv, char *const *env,
                                struct tierce__config_error *error)
{
    struct arguments arguments = {.request = {.action = TIERCE__CONFIG_RUN}};
    struct tierce__config *values = NULL;
    int rc = read_arguments(&arguments, program, argc, argv, error);
    if (rc == 0 &&
        tierce__config_create(&values, program->table, program->count, program->env_prefix) != 0)
        rc = tierce__config_fail(error, -ENOMEM, "no memory");
    if (rc == 0 && (arguments.request.action == TIERCE__CONFIG_RUN ||
                    arguments.request.action == TIERCE__CONFIG_PRINT))
        rc = load_values(values, program, arguments.yaml, argc, argv, env, error);
    if (rc != 0) {
        tierce__config_destroy(values);
        return rc;
    }
    *request = arguments.request;
    *out = values;
    return 0;
}
