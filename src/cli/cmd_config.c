/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "cli/config_check.h"
#include "cli/options.h"
#include "engine/engine_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tierce__cli_config_help[] = {
    "Prints the configuration of an engine as YAML, with the source of each value. A value in the\n"
    "file overrides the default, the environment overrides the file, and arguments override the\n"
    "environment. Unknown names are rejected.\n"
    "\n"
    "  --file FILE           the YAML file; default: the file that TIERCE_CONFIG names\n"
    "  --PARAMETER=VALUE     one value, such as --memory.size=8GiB\n"
    "  --set PARAMETER=VALUE the same\n"
    "  --markdown            prints the reference of all parameters instead\n",
    NULL};

static const char reference_head[] =
    "# Configuration\n"
    "\n"
    "This page is printed by `tierce config --markdown`.\n"
    "\n"
    "Values come from the defaults, then a YAML file, then the environment, then single values\n"
    "(flags of `tierce`, or the values that a program sets). A later source overrides an earlier "
    "one.\n"
    "An unknown name is rejected with the nearest valid one, and so is a value out of its bounds.\n"
    "`tierce config` prints the effective configuration and where each value comes from.\n"
    "\n"
    "- In YAML a name is a nested mapping (`memory:` with `size: 8GiB` below it) or the dotted\n"
    "  name (`memory.size: 8GiB`).\n"
    "- In the environment it is `TIERCE_`, then the name in upper case with `_` for the dot:\n"
    "  `TIERCE_MEMORY_SIZE=8GiB`. `TIERCE_CONFIG` names the YAML file.\n"
    "- As a flag it is `--memory.size=8GiB`.\n"
    "\n"
    "Sizes are bytes with a unit (`512MiB`, `1.5GiB`, `1GB` decimal, `4096`), durations have a\n"
    "unit too (`250ms`, `5s`, `2min`, `1h`; a bare number is milliseconds), shares are `0.5` or\n"
    "`50%`, bools `true` or `false`.\n"
    "\n"
    "The parameters `handover.*` of vLLM's connector are set in `kv_connector_extra_config` only:\n"
    "[prefill-decode.md](../prefill-decode.md).\n"
    "\n";

/* The parsed arguments. */
struct config_request {
    const char *file;
    bool markdown;
};

/* Whether argv[*i] is `flag` with a value, which lands in *value; moves *i over it. */
static bool take_value(const char **value, int *i, int argc, char **argv, const char *flag)
{
    TIERCE_ASSERT(*i < argc);
    size_t len = strlen(flag);
    if (strncmp(argv[*i], flag, len) != 0)
        return false;
    if (argv[*i][len] == '=') {
        *value = argv[*i] + len + 1;
        return true;
    }
    if (argv[*i][len] != '\0' || *i + 1 >= argc)
        return false;
    *value = argv[++*i];
    return true;
}

/* Sets "name=value". */
static int set_pair(struct tierce_config *config, const char *pair)
{
    char name[128], source[160], why[TIERCE_CONFIG_ERROR_BYTES];
    const char *equals = strchr(pair, '=');
    if (equals == NULL || equals == pair || (size_t)(equals - pair) >= sizeof(name))
        return tierce__cli_usage("config", "\"%.100s\" is not PARAMETER=VALUE", pair);
    memcpy(name, pair, (size_t)(equals - pair));
    name[equals - pair] = '\0';
    snprintf(source, sizeof(source), "--%s", name);
    int rc = tierce__engine_config_set(config, name, equals + 1, source, why);
    return rc == 0 ? TIERCE__CLI_OK : tierce__cli_usage("config", "%s", why);
}

static int set_file(struct config_request *request, const char *path)
{
    request->file = path;
    return path[0] != '\0' ? TIERCE__CLI_OK
                           : tierce__cli_usage("config", "--file requires the name of a file");
}

/* An argument that is not an option with its value. */
static int refuse(const char *arg)
{
    static const char *const known[] = {"--markdown", "--file", "--set",
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text) "--" name,
#include "engine/engine_params.def"
#undef TIERCE_PARAM
                                        NULL};
    char shown[64];
    tierce__text_for_message(shown, sizeof(shown), arg);
    for (size_t i = 1; known[i] != NULL; i++) {
        if (strcmp(known[i], arg) == 0)
            return tierce__cli_usage("config", "%s requires a value: %s=VALUE", arg, arg);
    }
    if (arg[0] == '-')
        return tierce__option_unknown("config", arg, known);
    if (strchr(arg, '=') != NULL)
        return tierce__cli_usage("config", "\"%s\" is not expected; a value is given by --%s",
                                 shown, shown);
    return tierce__cli_usage("config", "\"%s\" is not expected; a file is given by --file", shown);
}

/* First pass (config NULL): the request. Second pass: the values, which come last. */
static int read_args(struct config_request *request, struct tierce_config *config, int argc,
                     char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value;
        int status = TIERCE__CLI_OK;
        if (strcmp(argv[i], "--markdown") == 0)
            request->markdown = true;
        else if (take_value(&value, &i, argc, argv, "--file"))
            status = set_file(request, value);
        else if (take_value(&value, &i, argc, argv, "--set"))
            status = config != NULL ? set_pair(config, value) : TIERCE__CLI_OK;
        else if (strncmp(argv[i], "--", 2) == 0 && strchr(argv[i], '=') != NULL)
            status = config != NULL ? set_pair(config, argv[i] + 2) : TIERCE__CLI_OK;
        else
            return refuse(argv[i]);
        if (status != TIERCE__CLI_OK)
            return status;
    }
    return TIERCE__CLI_OK;
}

/* File and environment. */
static int load_sources(struct tierce_config *config, const char *file)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    if (file == NULL)
        file = getenv("TIERCE_CONFIG");
    if (file != NULL && *file != '\0' && tierce_config_load_file(config, file, why) != 0)
        return tierce__cli_usage("config", "%s", why);
    if (tierce_config_load_env(config, why) != 0)
        return tierce__cli_usage("config", "%s", why);
    return TIERCE__CLI_OK;
}

int tierce__cli_config(int argc, char **argv)
{
    struct config_request request = {0};
    struct tierce_config *config = NULL;

    int status = read_args(&request, NULL, argc, argv);
    if (status != TIERCE__CLI_OK)
        return status;
    if (request.markdown) {
        fputs(reference_head, stdout);
        tierce__config_print_markdown(tierce__engine_params(), TIERCE__ENGINE_PARAMS, stdout);
        return TIERCE__CLI_OK;
    }
    int rc = tierce_config_create(&config);
    if (rc != 0)
        return tierce__cli_fail("config", "%s", tierce_strerror(rc));
    status = load_sources(config, request.file);
    if (status == TIERCE__CLI_OK)
        status = read_args(&request, config, argc, argv);
    if (status == TIERCE__CLI_OK)
        status = tierce__cli_check_config("config", config);
    if (status == TIERCE__CLI_OK)
        tierce_config_print(config, stdout);
    tierce_config_destroy(config);
    return status;
}
