/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "cli/cli.h"
#include "cli/server_command.h"
#include "net/notify.h"
#include "router/router.h"

#include <signal.h>
#include <stdio.h>

#define COMMAND "router-index"
#define WHO     "tierce router-index"

extern char **environ;

const char *const tierce__cli_router_index_help[] = {
    "Follows the KV events of inference engines and nodes, and answers over HTTP how many tokens\n"
    "of a prompt each of them holds in GPU memory, CPU memory and on disk: the API of Dynamo's\n"
    "indexer. docs/using/router-index.md describes it.\n"
    "\n"
    "  --config FILE       YAML; default: the file that TIERCE_ROUTER_INDEX_CONFIG names\n"
    "  --PARAMETER=VALUE   a parameter, such as --publishers.file=publishers.json\n"
    "  --print-config      prints all parameters with their sources, and exits\n"
    "  --markdown          prints the reference of all parameters, and exits\n"
    "\n"
    "On SIGTERM or SIGINT it exits. On SIGHUP it reads tokens and certificates again; if one is\n"
    "invalid, it keeps the previous ones.\n",
    NULL};

static const struct tierce__cli_server server = {
    .command = COMMAND,
    .title = "the router index",
    .env_prefix = "TIERCE_ROUTER_INDEX",
    .section = "listen",
    .leaf = "port",
    .value = "6496",
    .first = "",
    .files = "",
    .source = "",
    .help = tierce__cli_router_index_help,
};

static int reload(void *arg, char why[256])
{
    return tierce__router_reload(arg, why);
}

static int run(const struct tierce__router_config *config)
{
    struct tierce__router *router;
    sigset_t signals;
    char why[256], text[300];
    tierce__cli_server_signals(&signals);
    tierce__cli_raise_files(WHO, "limit.connections", config->connections_max);
    int rc = tierce__router_start(&router, config, why);
    if (rc < 0) {
        (void)tierce__cli_fail(COMMAND, "%s", why);
        return rc == TIERCE_E_CONFIG ? TIERCE__CLI_USAGE : TIERCE__CLI_FAILED;
    }
    snprintf(text, sizeof(text), "listening on %.200s: HTTP %u", config->host,
             tierce__router_port(router));
    tierce__log_to_stderr(WHO, text);
    tierce__notify("READY=1");
    tierce__cli_server_wait(&server, &signals, reload, router);
    tierce__notify("STOPPING=1");
    tierce__router_stop(router);
    return TIERCE__CLI_OK;
}

int tierce__cli_router_index(int argc, char **argv)
{
    struct tierce__router_config config = {0};
    struct tierce__config_error error;
    int status = TIERCE__CLI_OK;
    if (tierce__router_config_load(&config, argc - 1, argv + 1, environ, &error) < 0) {
        tierce__cli_fail(COMMAND, "%s", error.text);
        return TIERCE__CLI_USAGE;
    }
    if (!tierce__cli_server_answers(&server, config.action, config.values, tierce__router_params(),
                                    TIERCE__ROUTER_PARAMS))
        status = run(&config);
    tierce__router_config_clear(&config);
    return status;
}
