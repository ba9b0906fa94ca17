/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/log/log.h"
#include "net/notify.h"
#include "cli/cli.h"
#include "cli/manager_backup.h"
#include "cli/server_command.h"
#include "manager/manager_config.h"
#include "manager/manager.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tierce/version.h>
#include <unistd.h>

#define COMMAND "manager"

extern char **environ;

const char *const tierce__cli_manager_help[] = {
    "Manages storages, instance groups, instances and the locations of their blocks. It serves\n"
    "Tierce's clients and those of Tair KVCache Manager over gRPC and HTTP. By default it listens\n"
    "on loopback and keeps all state in memory.\n"
    "\n"
    "  --config FILE       YAML; default: the file that TIERCE_MANAGER_CONFIG names\n"
    "  --PARAMETER=VALUE   a parameter, such as --listen.http_port=6382\n"
    "  -c FILE             KVCM's configuration: lines of key = value\n"
    "  -l FILE             KVCM's configuration of logs\n"
    "  -e, --env KEY=VALUE one of KVCM's keys (repeatable; the first value of a key counts)\n"
    "  -d, --daemon        runs in the background\n"
    "  --print-config      prints all parameters with their sources, and exits\n"
    "  --markdown          prints the reference of all parameters, and exits\n"
    "\n"
    "  backup FILE         writes registry and index of a leading manager to a file. Options: "
    "--url,\n"
    "                      --token-file, --user, --ca-file, as those of tierce cluster\n"
    "  restore FILE        reads such a file into an empty registry while no manager runs. "
    "Options:\n"
    "                      the manager's parameters\n"
    "\n"
    "On SIGTERM or SIGINT it finishes calls in progress, releases the lease, and exits. On SIGHUP "
    "it\n"
    "reads tokens, certificates, keys and quota.groups again; if one is invalid, it keeps the\n"
    "previous ones.\n",
    NULL};

static const struct tierce__cli_server server = {
    .command = COMMAND,
    .title = "the manager",
    .env_prefix = "TIERCE_MANAGER",
    .section = "listen",
    .leaf = "http_port",
    .value = "6382",
    .first = "",
    .files = "then KVCM's configuration, ",
    .source = "- In KVCM's configuration (`-c FILE`, `-e KEY=VALUE`) it is "
              "`tierce.listen.http_port`; KVCM's\n"
              "  own keys are in docs/using/manager.md.\n",
    .help = tierce__cli_manager_help,
};

/* Fills in the signals that end a manager (the same ones as in KVCM), and SIGHUP. */
static void list_signals(sigset_t *signals)
{
    static const int waited_for[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};
    sigemptyset(signals);
    for (size_t i = 0; i < sizeof(waited_for) / sizeof(waited_for[0]); i++)
        sigaddset(signals, waited_for[i]);
}

/* Writes the line in one piece, so that a reader gets it whole. */
static void tell_ports(const struct tierce__manager *manager, const char *host)
{
    struct tierce__manager_ports ports;
    char debug[32] = "", text[512];
    tierce__manager_ports(manager, &ports);
    if (ports.admin_grpc == 0)
        ports.admin_grpc = ports.meta_grpc;
    if (ports.debug_http != 0)
        snprintf(debug, sizeof(debug), ", debug HTTP %u", ports.debug_http);
    snprintf(text, sizeof(text),
             "listening on %s: gRPC %u, HTTP %u, administration gRPC %u, HTTP %u%s", host,
             ports.meta_grpc, ports.meta_http, ports.admin_grpc, ports.admin_http, debug);
    tierce__log_to_stderr("tierce manager", text);
}

/* Logs each line of `warnings` (NULL or heap, cut into lines here). */
static void log_warnings(char *warnings)
{
    char *rest = NULL;
    if (warnings == NULL)
        return;
    for (char *line = strtok_r(warnings, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        tierce__log_to_stderr("tierce manager", line);
}

/* Handles SIGHUP: reads the configuration again, from the sources that were read at the start. */
static void reload(struct tierce__manager *manager, int argc, char **argv)
{
    struct tierce__manager_config config = {0};
    struct tierce__config_error error;
    char *warnings = NULL, why[256] = "", text[320];
    int rc = tierce__manager_config_load(&config, argc - 1, argv + 1, environ, &warnings, &error);
    tierce__free(warnings); /* logged at the start */
    if (rc < 0)
        snprintf(why, sizeof(why), "%.250s", error.text);
    else
        rc = tierce__manager_reload(manager, &config, why);
    if (rc < 0) {
        snprintf(text, sizeof(text), "%s; the previous values stay in use",
                 why[0] != '\0' ? why : tierce_strerror(rc));
        tierce__log_to_stderr("tierce manager", text);
    }
    tierce__manager_config_clear(&config);
}

/* Waits for the next signal. Until it is known which manager leads, it looks a few times a second,
 * and says once of which one this is a standby: a standby serves no calls. */
static int wait_for_signal(const struct tierce__manager *manager, const sigset_t *signals,
                           bool *knows_leader)
{
    const struct timespec look = {.tv_nsec = 200 * 1000 * 1000};
    char leader[128], text[256];
    for (;;) {
        int got = sigtimedwait(signals, NULL, *knows_leader ? NULL : &look);
        if (got > 0)
            return got;
        if (*knows_leader || !tierce__manager_knows_leader(manager, leader))
            continue;
        *knows_leader = true;
        snprintf(text, sizeof(text), "standby: manager %s leads; this one takes over when it ends",
                 leader);
        if (leader[0] != '\0')
            tierce__log_to_stderr("tierce manager", text);
    }
}

static int run(const struct tierce__manager_config *config, int argc, char **argv)
{
    struct tierce__manager *manager;
    sigset_t signals;
    char why[256];
    bool knows_leader = false;
    int got;
    if (config->is_daemon && daemon(1, 0) != 0)
        return tierce__cli_fail(COMMAND, "cannot run in the background: %s",
                                tierce_strerror(-errno));
    list_signals(&signals);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails as one to a full disk does */
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* all threads inherit it: only sigwait sees them */
    tierce__cli_raise_files("tierce manager", "serve.connections", config->connections_max);
    int rc = tierce__manager_start(&manager, config, why);
    if (rc < 0) {
        (void)tierce__cli_fail(COMMAND, "%s", why[0] != '\0' ? why : tierce_strerror(rc));
        return rc == TIERCE_E_CONFIG ? TIERCE__CLI_USAGE : TIERCE__CLI_FAILED;
    }
    tell_ports(manager, config->host);
    tierce__notify("READY=1");
    while ((got = wait_for_signal(manager, &signals, &knows_leader)) == SIGHUP)
        reload(manager, argc, argv);
    tierce__notify("STOPPING=1");
    tierce__manager_stop(manager);
    return TIERCE__CLI_OK;
}

int tierce__cli_manager(int argc, char **argv)
{
    struct tierce__manager_config config = {0};
    struct tierce__config_error error;
    char *warnings = NULL;
    if (argc > 1 && strcmp(argv[1], "backup") == 0)
        return tierce__cli_manager_backup(argc, argv);
    if (argc > 1 && strcmp(argv[1], "restore") == 0)
        return tierce__cli_manager_restore(argc, argv);
    int rc = tierce__manager_config_load(&config, argc - 1, argv + 1, environ, &warnings, &error);
    int status = TIERCE__CLI_OK;
    log_warnings(warnings);
    tierce__free(warnings);
    if (rc < 0) {
        tierce__cli_fail(COMMAND, "%s", error.text);
        return TIERCE__CLI_USAGE;
    }
    switch (config.action) {
    case TIERCE__MANAGER_HELP:
        tierce__cli_print_help(stderr, tierce__cli_manager_help);
        status = TIERCE__CLI_FAILED; /* as the original's */
        break;
    case TIERCE__MANAGER_VERSION:
        fprintf(stderr, "tierce %s\n", TIERCE_VERSION);
        status = TIERCE__CLI_FAILED;
        break;
    case TIERCE__MANAGER_PRINT:
        tierce__config_print(config.values, stdout);
        break;
    case TIERCE__MANAGER_MARKDOWN:
        tierce__cli_server_markdown(&server, tierce__manager_params(), TIERCE__MANAGER_PARAMS);
        break;
    case TIERCE__MANAGER_RUN:
        status = run(&config, argc, argv);
        break;
    }
    tierce__manager_config_clear(&config);
    return status;
}
