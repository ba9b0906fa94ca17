/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "cli/cli.h"
#include "net/notify.h"
#include "router/router.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#define COMMAND "router-index"
#define WHO     "tierce router-index"

extern char **environ;

const char *const tierce__cli_router_index_help[] = {
    "Follows the KV events of inference engines and nodes, and answers over HTTP how many tokens\n"
    "of a prompt each of them holds in GPU memory, CPU memory and on disk: the API of Dynamo's\n"
    "indexer and Mooncake's conductor. docs/using/router-index.md describes it.\n"
    "\n"
    "  --config FILE       YAML; default: the file that TIERCE_ROUTER_INDEX_CONFIG names\n"
    "  --PARAMETER=VALUE   a parameter, such as --publishers.file=publishers.json\n"
    "  --print-config      prints all parameters with their sources, and exits\n"
    "  --markdown          prints the reference of all parameters, and exits\n"
    "\n"
    "On SIGTERM or SIGINT it exits. On SIGHUP it reads tokens and certificates again; if one is\n"
    "invalid, it keeps the previous ones.\n",
    NULL};

static const char reference_head[] =
    "# Parameters of the router index\n"
    "\n"
    "This page is printed by `tierce router-index --markdown`.\n"
    "\n"
    "Values come from the defaults, then a YAML file, then the environment, then flags. A later "
    "source\n"
    "overrides an earlier one. An unknown name is rejected with the nearest valid one, and so is\n"
    "a value out of its bounds. `tierce router-index --print-config` prints the effective\n"
    "configuration and where each value comes from.\n"
    "\n"
    "- In YAML (`--config FILE`) a name is a nested mapping (`listen:` with `port: 6496` below it) "
    "or\n"
    "  the dotted name (`listen.port: 6496`).\n"
    "- In the environment it is `TIERCE_ROUTER_INDEX_`, then the name in upper case with `_` for\n"
    "  the dot: `TIERCE_ROUTER_INDEX_LISTEN_PORT=6496`. `TIERCE_ROUTER_INDEX_CONFIG` names the\n"
    "  YAML file.\n"
    "- As a flag it is `--listen.port=6496`.\n"
    "\n"
    "Sizes are bytes with a unit (`64MiB`, `1GB` decimal, `4096`), durations have a unit too\n"
    "(`250ms`, `5s`, `2min`; a bare number is milliseconds), bools `true` or `false`.\n"
    "\n";

static void reload(struct tierce__router *router)
{
    char why[256], text[320];
    if (tierce__router_reload(router, why) == 0)
        return;
    snprintf(text, sizeof(text), "%s; the previous tokens and certificates stay in use", why);
    tierce__log_to_stderr(WHO, text);
}

static int run(const struct tierce__router_config *config)
{
    struct tierce__router *router;
    sigset_t signals;
    char why[256], text[300];
    int got;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* all threads inherit it: only we see them */
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
    while (sigwait(&signals, &got) != 0 || got == SIGHUP)
        reload(router);
    tierce__log_to_stderr(WHO, got == SIGINT ? "ends on SIGINT" : "ends on SIGTERM");
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
    switch (config.action) {
    case TIERCE__CONFIG_HELP:
        tierce__cli_print_help(stdout, tierce__cli_router_index_help);
        break;
    case TIERCE__CONFIG_PRINT:
        tierce__config_print(config.values, stdout);
        break;
    case TIERCE__CONFIG_MARKDOWN:
        fputs(reference_head, stdout);
        tierce__config_print_markdown(tierce__router_params(), TIERCE__ROUTER_PARAMS, stdout);
        break;
    case TIERCE__CONFIG_RUN:
        status = run(&config);
        break;
    }
    tierce__router_config_clear(&config);
    return status;
}
