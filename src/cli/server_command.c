/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/server_command.h"

#include "base/log/log.h"
#include "cli/cli.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>

static void put_upper(const char *text)
{
    for (; *text != '\0'; text++)
        putchar(toupper((unsigned char)*text));
}

void tierce__cli_server_markdown(const struct tierce__cli_server *s,
                                 const struct tierce__param *params, size_t count)
{
    printf("# Parameters of %s\n\nThis page is printed by `tierce %s --markdown`.\n\n", s->title,
           s->command);
    printf(
        "%sValues come from the defaults, then a YAML file, %sthen the environment, then flags.\n"
        "A later source overrides an earlier one. An unknown name is rejected with the nearest\n"
        "valid one, and so is a value out of its bounds. `tierce %s --print-config` prints\n"
        "the effective configuration and where each value comes from.\n\n",
        s->first, s->files, s->command);
    printf("- In YAML (`--config FILE`) a name is a nested mapping (`%s:` with `%s: %s` below\n"
           "  it) or the dotted name (`%s.%s: %s`).\n",
           s->section, s->leaf, s->value, s->section, s->leaf, s->value);
    printf("- In the environment it is `%s_`, then the name in upper case with `_` for\n"
           "  the dot: `%s_",
           s->env_prefix, s->env_prefix);
    put_upper(s->section);
    putchar('_');
    put_upper(s->leaf);
    printf("=%s`. `%s_CONFIG` names the YAML file.\n", s->value, s->env_prefix);
    printf("%s- As a flag it is `--%s.%s=%s`.\n\n", s->source, s->section, s->leaf, s->value);
    fputs(
        "Sizes are bytes with a unit (`64MiB`, `1GB` decimal, `4096`), durations have a unit too\n"
        "(`250ms`, `5s`, `2min`; a bare number is milliseconds), bools `true` or `false`.\n\n",
        stdout);
    tierce__config_print_markdown(params, count, stdout);
}

bool tierce__cli_server_answers(const struct tierce__cli_server *server,
                                enum tierce__config_action action,
                                const struct tierce__config *values,
                                const struct tierce__param *params, size_t count)
{
    switch (action) {
    case TIERCE__CONFIG_HELP:
        tierce__cli_print_help(stdout, server->help);
        return true;
    case TIERCE__CONFIG_PRINT:
        tierce__config_print(values, stdout);
        return true;
    case TIERCE__CONFIG_MARKDOWN:
        tierce__cli_server_markdown(server, params, count);
        return true;
    case TIERCE__CONFIG_RUN:
        break;
    }
    return false;
}

/* ---- signals --------------------------------------------------------------------------------- */

static void log_line(const struct tierce__cli_server *server, const char *text)
{
    char who[64];
    snprintf(who, sizeof(who), "tierce %s", server->command);
    tierce__log_to_stderr(who, text);
}

void tierce__cli_server_signals(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

void tierce__cli_server_refused(const struct tierce__cli_server *server, const char *why)
{
    char text[320];
    snprintf(text, sizeof(text), "%s; the previous tokens and certificates stay in use", why);
    log_line(server, text);
}

void tierce__cli_server_wait(const struct tierce__cli_server *server, const sigset_t *signals,
                             int (*reload)(void *arg, char why[256]), void *arg)
{
    char why[256];
    int got = 0;
    while (sigwait(signals, &got) != 0 || got == SIGHUP)
        if (got == SIGHUP && reload(arg, why) != 0)
            tierce__cli_server_refused(server, why);
    log_line(server, got == SIGINT ? "ends on SIGINT" : "ends on SIGTERM");
}
