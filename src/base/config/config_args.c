/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_args.h"

#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct arguments {
    enum tierce__config_action action;
    const char *yaml; /* of --config, or NULL */
};

/* Takes "--config FILE" and "--config=FILE". */
static bool take_file(struct arguments *out, int *i, int argc, char *const *argv)
{
    static const char flag[] = "--config";
    size_t bytes = sizeof(flag) - 1;
    if (strncmp(argv[*i], flag, bytes) != 0)
        return false;
    if (argv[*i][bytes] == '=') {
        out->yaml = argv[*i] + bytes + 1;
        return true;
    }
    if (argv[*i][bytes] != '\0' || *i + 1 >= argc)
        return false;
    out->yaml = argv[++*i];
    return true;
}

static int read_arguments(struct arguments *out, const struct tierce__config_program *program,
                          int argc, char *const *argv, struct tierce__config_error *error)
{
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)
            out->action = TIERCE__CONFIG_HELP;
        else if (strcmp(arg, "--print-config") == 0)
            out->action = TIERCE__CONFIG_PRINT;
        else if (strcmp(arg, "--markdown") == 0)
            out->action = TIERCE__CONFIG_MARKDOWN;
        else if (take_file(out, &i, argc, argv))
            continue;
        else if (strcmp(arg, "--config") == 0)
            return tierce__config_fail(error, TIERCE_E_CONFIG, "--config requires a file");
        else if (strncmp(arg, "--", 2) != 0 || strchr(arg, '=') == NULL)
            return tierce__config_refuse_argument(error, program->table, program->count,
                                                  program->command, arg);
    }
    return 0;
}

static int apply_flags(struct tierce__config *values, int argc, char *const *argv,
                       struct tierce__config_error *error)
{
    int rc = 0;
    for (int i = 0; i < argc && rc == 0; i++) {
        char name[80], source[84];
        struct arguments taken;
        const char *equals;
        if (take_file(&taken, &i, argc, argv) || (equals = strchr(argv[i], '=')) == NULL)
            continue;
        TIERCE_ASSERT(equals - argv[i] >= 2);
        snprintf(name, sizeof(name), "%.*s", (int)(equals - argv[i] - 2), argv[i] + 2);
        snprintf(source, sizeof(source), "--%s", name);
        rc = tierce__config_set(values, name, equals + 1, source, error);
    }
    return rc;
}

int tierce__config_load_program(struct tierce__config **out, enum tierce__config_action *action,
                                const struct tierce__config_program *program, int argc,
                                char *const *argv, char *const *env,
                                struct tierce__config_error *error)
{
    struct arguments arguments = {.action = TIERCE__CONFIG_RUN};
    struct tierce__config *values = NULL;
    char variable[80];
    snprintf(variable, sizeof(variable), "%s_CONFIG", program->env_prefix);
    const char *const ignored[] = {variable, NULL};
    int rc = read_arguments(&arguments, program, argc, argv, error);
    if (rc == 0 &&
        tierce__config_create(&values, program->table, program->count, program->env_prefix) != 0)
        rc = tierce__config_fail(error, -ENOMEM, "no memory");
    if (rc == 0 &&
        (arguments.action == TIERCE__CONFIG_RUN || arguments.action == TIERCE__CONFIG_PRINT)) {
        const char *yaml =
            arguments.yaml != NULL ? arguments.yaml : tierce__config_env_value(env, variable);
        rc = yaml != NULL ? tierce__config_load_file(values, yaml, error) : 0;
        if (rc == 0)
            rc = tierce__config_load_env(values, env, ignored, error);
        if (rc == 0)
            rc = apply_flags(values, argc, argv, error);
    }
    if (rc != 0) {
        tierce__config_destroy(values);
        return rc;
    }
    *action = arguments.action;
    *out = values;
    return 0;
}
