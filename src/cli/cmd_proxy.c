/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "cli/cli.h"
#include "net/notify.h"
#include "proxy/proxy.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#define COMMAND "proxy"
#define WHO     "tierce proxy"

extern char **environ;

const char *const tierce__cli_proxy_help[] = {
    "Serves OpenAI's API in front of several inference engines: /v1/completions,\n"
    "/v1/chat/completions and /v1/models. Each request goes to the engine with the least load, or\n"
    "with the most of its prompt if a router index is configured. With prefill.urls, one engine\n"
    "computes the prompt and another one answers. Answers are streamed as they arrive.\n"
    "docs/using/proxy.md describes it.\n"
    "\n"
    "  --config FILE       YAML; default: the file that TIERCE_PROXY_CONFIG names\n"
    "  --PARAMETER=VALUE   a parameter, such as --decode.urls=http://127.0.0.1:8000\n"
    "  --print-config      prints all parameters with their sources, and exits\n"
    "  --markdown          prints the reference of all parameters, and exits\n"
    "\n"
    "On SIGTERM or SIGINT it finishes answers in progress and exits; a second one ends them at\n"
    "once, streamed ones with an error event. On SIGHUP it reads tokens and certificates again; "
    "if\n"
    "one is invalid, it keeps the previous ones.\n",
    NULL};

static const char reference_head[] =
    "# Parameters of the proxy\n"
    "\n"
    "This page is printed by `tierce proxy --markdown`.\n"
    "\n"
    "Values come from the defaults, then a YAML file, then the environment, then flags. A later "
    "source\n"
    "overrides an earlier one. An unknown name is rejected with the nearest valid one, and so is\n"
    "a value out of its bounds. `tierce proxy --print-config` prints the effective configuration "
    "and\n"
    "where each value comes from.\n"
    "\n"
    "- In YAML (`--config FILE`) a name is a nested mapping (`listen:` with `port: 6495` below it) "
    "or\n"
    "  the dotted name (`listen.port: 6495`).\n"
    "- In the environment it is `TIERCE_PROXY_`, then the name in upper case with `_` for the "
    "dot:\n"
    "  `TIERCE_PROXY_LISTEN_PORT=6495`. `TIERCE_PROXY_CONFIG` names the YAML file.\n"
    "- As a flag it is `--listen.port=6495`.\n"
    "\n"
    "Sizes are bytes with a unit (`64MiB`, `1GB` decimal, `4096`), durations have a unit too\n"
    "(`250ms`, `5s`, `2min`; a bare number is milliseconds), bools `true` or `false`.\n"
    "\n";

static void reload(struct tierce__proxy *proxy)
{
    char why[256], text[320];
    if (tierce__proxy_reload(proxy, why) == 0)
        return;
    snprintf(text, sizeof(text), "%s; the previous tokens and certificates stay in use", why);
    tierce__log_to_stderr(WHO, text);
}

/* Whether a second signal to end has come. */
static bool is_urgent(void *arg)
{
    const struct timespec now = {0};
    int got = sigtimedwait(arg, NULL, &now);
    return got == SIGINT || got == SIGTERM;
}

static int run(const struct tierce__proxy_config *config)
{
    struct tierce__proxy *proxy;
    sigset_t signals;
    char why[256], text[300];
    int got;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* all threads inherit it: only we see them */
    /* A relay keeps a connection more than it has requests. */
    tierce__cli_raise_files(WHO, "limit.connections and limit.requests",
                            config->connections_max + config->requests_max + config->loops);
    int rc = tierce__proxy_start(&proxy, config, why);
    if (rc < 0) {
        (void)tierce__cli_fail(COMMAND, "%s", why);
        return rc == TIERCE_E_CONFIG ? TIERCE__CLI_USAGE : TIERCE__CLI_FAILED;
    }
    snprintf(text, sizeof(text), "listening on %.200s: HTTP %u", config->host,
             tierce__proxy_port(proxy));
    tierce__log_to_stderr(WHO, text);
    tierce__notify("READY=1");
    while (sigwait(&signals, &got) != 0 || got == SIGHUP)
        reload(proxy);
    tierce__log_to_stderr(WHO, got == SIGINT ? "ends on SIGINT" : "ends on SIGTERM");
    tierce__notify("STOPPING=1");
    tierce__proxy_drain(proxy, is_urgent, &signals);
    tierce__proxy_stop(proxy);
    return TIERCE__CLI_OK;
}

int tierce__cli_proxy(int argc, char **argv)
{
    struct tierce__proxy_config config = {0};
    struct tierce__config_error error;
    int status = TIERCE__CLI_OK;
    if (tierce__proxy_config_load(&config, argc - 1, argv + 1, environ, &error) < 0) {
        tierce__cli_fail(COMMAND, "%s", error.text);
        return TIERCE__CLI_USAGE;
    }
    switch (config.action) {
    case TIERCE__CONFIG_HELP:
        tierce__cli_print_help(stdout, tierce__cli_proxy_help);
        break;
    case TIERCE__CONFIG_PRINT:
        tierce__config_print(config.values, stdout);
        break;
    case TIERCE__CONFIG_MARKDOWN:
        fputs(reference_head, stdout);
        tierce__config_print_markdown(tierce__proxy_params(), TIERCE__PROXY_PARAMS, stdout);
        break;
    case TIERCE__CONFIG_RUN:
        status = run(&config);
        break;
    }
    tierce__proxy_config_clear(&config);
    return status;
}
