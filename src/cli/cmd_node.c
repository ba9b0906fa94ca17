/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/log/log.h"
#include "net/notify.h"
#include "cli/cli.h"
#include "cli/server_command.h"
#include "node/node.h"
#include "node/node_users.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#define COMMAND "node"

enum { USERS_TICK_MS = 100 }; /* interval of the checks for users */

extern char **environ;

const char *const tierce__cli_node_help[] = {
    "Runs one cache for the programs of a host, in memory, on disk and in remote stores. It "
    "serves\n"
    "clients of Redis' protocol (redis-cli, LMCache's redis:// and resp://) and of LMCache's\n"
    "protocol (lm://) on loopback by default. --listen.native=PATH also serves engines, which map\n"
    "its memory (node.socket). docs/using/node.md describes each of them.\n"
    "\n"
    "  --config FILE       YAML; default: the file that TIERCE_NODE_CONFIG names\n"
    "  --users FILE        when no process holds a shared lock (flock) on FILE, removes it and "
    "ends\n"
    "  --PARAMETER=VALUE   a parameter, such as --memory.size=8GiB or --listen.resp_port=6380\n"
    "  --print-config      prints all parameters with their sources, and exits\n"
    "  --markdown          prints the reference of the node's parameters, and exits\n"
    "\n"
    "A node accepts the engine's parameters (docs/using/ref/config.md) and its own "
    "(docs/using/ref/node.md).\n"
    "On SIGTERM or SIGINT it finishes requests in progress, writes queued values to disk, and\n"
    "exits. On SIGHUP it reads tokens and certificates again; if one is invalid, it keeps the\n"
    "previous ones.\n",
    NULL};

static const struct tierce__cli_server server = {
    .command = COMMAND,
    .title = "the node",
    .env_prefix = "TIERCE_NODE",
    .section = "listen",
    .leaf = "resp_port",
    .value = "6380",
    .first = "A node also accepts every parameter of its engine (docs/using/ref/config.md), in the "
             "same\n"
             "file. ",
    .files = "",
    .source = "",
    .help = tierce__cli_node_help,
};

/* Written in one piece, so that a waiting reader gets the whole line. */
static void tell_ports(const struct tierce__node *node, const char *host, const char *native)
{
    struct tierce__node_ports ports;
    char resp[16] = "", lm[16] = "", pool[16] = "", text[512];
    tierce__node_ports(node, &ports);
    if (ports.resp != 0)
        snprintf(resp, sizeof(resp), " RESP %u,", ports.resp);
    if (ports.lm != 0)
        snprintf(lm, sizeof(lm), " lm %u,", ports.lm);
    if (ports.pool != 0)
        snprintf(pool, sizeof(pool), " pool %u,", ports.pool);
    snprintf(text, sizeof(text), "listening on %s:%s%s%s HTTP 127.0.0.1 %u%s%s", host, resp, lm,
             pool, ports.http, native[0] != '\0' ? ", native " : "", native);
    tierce__log_to_stderr("tierce node", text);
}

/* After each probe that returns, even if it fails: a restart helps a node that hangs, but it does
 * not bring a remote store back, and loses what is in memory. */
static void notify_watchdog(struct tierce__node *node)
{
    char unready[TIERCE__NODE_WHY_BYTES];
    (void)tierce__node_is_ready(node, unready);
    tierce__notify("WATCHDOG=1");
}

/* Waits for a signal that ends the node (SIGHUP does not), or for the end of its users. */
static void wait_for_end(struct tierce__node *node, const sigset_t *signals,
                         struct tierce__node_users *users)
{
    uint64_t interval_ms = tierce__notify_watchdog_ms();
    uint64_t probed_ns = tierce__now_ns();
    uint64_t wait_ms = users->fd >= 0 ? USERS_TICK_MS : interval_ms;
    struct timespec wait = {.tv_sec = (time_t)(wait_ms / 1000),
                            .tv_nsec = (long)(wait_ms % 1000 * TIERCE__MS_NS)};
    char why[256];
    while (!tierce__node_users_have_gone(users)) {
        int got = sigtimedwait(signals, NULL, wait_ms > 0 ? &wait : NULL);
        if (got > 0 && got != SIGHUP) {
            tierce__log_to_stderr("tierce node",
                                  got == SIGINT ? "ends on SIGINT" : "ends on SIGTERM");
            return;
        }
        if (got == SIGHUP && tierce__node_reload(node, why) < 0)
            tierce__cli_server_refused(&server, why);
        /* After a SIGHUP too: each restarts the wait. */
        if (interval_ms > 0 &&
            (got == SIGHUP || tierce__now_ns() - probed_ns >= interval_ms * TIERCE__MS_NS)) {
            notify_watchdog(node);
            probed_ns = tierce__now_ns();
        }
    }
    tierce__log_to_stderr("tierce node", "ends: no process uses it any more");
}

static int run(const struct tierce__node_config *config)
{
    struct tierce__node *node;
    char why[TIERCE_CONFIG_ERROR_BYTES] = "", text[TIERCE__NODE_TEXT_BYTES];
    struct tierce__node_users users = TIERCE__NODE_USERS_NONE;
    sigset_t signals;
    if (config->users_path != NULL && tierce__node_users_open(&users, config->users_path, why) < 0)
        return tierce__cli_fail(COMMAND, "%s", why);
    tierce__cli_server_signals(&signals);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails as one to a full disk does */
    tierce__cli_raise_files("tierce node", "limit.connections", config->connections_max);
    int rc = tierce__node_start(&node, config, why);
    if (rc < 0) {
        tierce__node_users_close(&users);
        (void)tierce__cli_fail(COMMAND, "%s", why[0] != '\0' ? why : tierce_strerror(rc));
        return rc == TIERCE_E_CONFIG ? TIERCE__CLI_USAGE : TIERCE__CLI_FAILED;
    }
    tierce__node_describe(node, text);
    tierce__log_to_stderr("tierce node", text);
    tell_ports(node, config->host, config->native_path);
    tierce__notify("READY=1");
    wait_for_end(node, &signals, &users);
    tierce__notify("STOPPING=1");
    tierce__node_stop(node);
    tierce__node_users_close(&users); /* after the store folder: the next node may open it */
    return TIERCE__CLI_OK;
}

int tierce__cli_node(int argc, char **argv)
{
    struct tierce__node_config config = {0};
    struct tierce__config_error error;
    int status = TIERCE__CLI_OK;
    int rc = tierce__node_config_load(&config, argc - 1, argv + 1, environ, &error);
    if (rc < 0) {
        tierce__cli_fail(COMMAND, "%s", error.text);
        return TIERCE__CLI_USAGE;
    }
    size_t count;
    const struct tierce__param *params = tierce__node_params(&count);
    if (!tierce__cli_server_answers(&server, config.action, config.values, params, count))
        status = run(&config);
    tierce__node_config_clear(&config);
    return status;
}
