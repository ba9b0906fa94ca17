/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "cli/cli.h"
#include "cli/server_command.h"
#include "net/notify.h"
#include "proxy/proxy.h"

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

static const struct tierce__cli_server server = {
    .command = COMMAND,
    .title = "the proxy",
    .env_prefix = "TIERCE_PROXY",
    .section = "listen",
    .leaf = "port",
    .value = "6495",
    .first = "",
    .files = "",
    .source = "",
    .help = tierce__cli_proxy_help,
};

static int reload(void *arg, char why[256])
{
    return tierce__proxy_reload(arg, why);
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
    tierce__cli_server_signals(&signals);
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
    tierce__cli_server_wait(&server, &signals, reload, proxy);
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
    if (!tierce__cli_server_answers(&server, config.action, config.values, tierce__proxy_params(),
                                    TIERCE__PROXY_PARAMS))
        status = run(&config);
    tierce__proxy_config_clear(&config);
    return status;
}
