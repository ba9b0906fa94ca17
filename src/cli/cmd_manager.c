/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "cli/cli.h"
#include "manager/config.h"
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

const char tierce__cli_manager_help[] =
    "Governs storages, instance groups, instances and the places of their blocks, for Tair "
    "KVCache\n"
    "Manager's clients and our own: gRPC and HTTP. Without an argument it listens on loopback and\n"
    "keeps everything in memory.\n"
    "\n"
    "  --config FILE       YAML; --print-config shows all parameters and where they come from\n"
    "  --PARAMETER=VALUE   one of them, such as --listen.http_port=6382\n"
    "  -c FILE             KVCM's configuration: lines of key = value\n"
    "  -l FILE             KVCM's configuration of logs\n"
    "  -e, --env KEY=VALUE one of KVCM's keys (repeatable; of several the first counts)\n"
    "  -d, --daemon        in the background\n"
    "\n"
    "SIGTERM or SIGINT end it: calls in progress are finished, the lease is given back.\n";

/* What ends a manager, as in the original. */
static void list_signals(sigset_t *signals)
{
    static const int ending[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    sigemptyset(signals);
    for (size_t i = 0; i < sizeof(ending) / sizeof(ending[0]); i++)
        sigaddset(signals, ending[i]);
}

static void tell_ports(const struct tierce__manager *manager, const char *host)
{
    struct tierce__manager_ports ports;
    tierce__manager_ports(manager, &ports);
    fprintf(stderr,
            "tierce manager: listening on %s: gRPC %u, HTTP %u, administration gRPC %u, HTTP %u",
            host, ports.meta_grpc, ports.meta_http,
            ports.admin_grpc != 0 ? ports.admin_grpc : ports.meta_grpc, ports.admin_http);
    if (ports.debug_http != 0)
        fprintf(stderr, ", debug HTTP %u", ports.debug_http);
    fputc('\n', stderr);
}

static int run(const struct tierce__manager_config *config)
{
    struct tierce__manager *manager;
    sigset_t signals;
    char why[256];
    int got;
    if (config->is_daemon && daemon(1, 0) != 0)
        return tierce__cli_fail(COMMAND, "no process in the background: %s",
                                tierce_strerror(-errno));
    list_signals(&signals);
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* all threads inherit it: only sigwait sees them */
    int rc = tierce__manager_start(&manager, config, why);
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%s", why[0] != '\0' ? why : tierce_strerror(rc));
    tell_ports(manager, config->host);
    while (sigwait(&signals, &got) != 0)
        continue;
    tierce__manager_stop(manager);
    return TIERCE__CLI_OK;
}

int tierce__cli_manager(int argc, char **argv)
{
    struct tierce__manager_config config = {0};
    struct tierce__config_error error;
    char *warnings = NULL;
    int rc = tierce__manager_config_load(&config, argc - 1, argv + 1, environ, &warnings, &error);
    int status = TIERCE__CLI_OK;
    if (warnings != NULL)
        fputs(warnings, stderr);
    tierce__free(warnings);
    if (rc < 0) {
        tierce__cli_fail(COMMAND, "%s", error.text);
        return TIERCE__CLI_USAGE;
    }
    switch (config.action) {
    case TIERCE__MANAGER_HELP:
        fputs(tierce__cli_manager_help, stderr);
        status = TIERCE__CLI_FAILED; /* as the original's */
        break;
    case TIERCE__MANAGER_VERSION:
        fprintf(stderr, "tierce %s\n", TIERCE_VERSION);
        status = TIERCE__CLI_FAILED;
        break;
    case TIERCE__MANAGER_RUN:
        status = run(&config);
        break;
    }
    tierce__manager_config_clear(&config);
    return status;
}
