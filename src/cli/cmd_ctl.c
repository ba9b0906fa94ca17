/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "cli/cli.h"
#include "cli/process.h"

#include <stdio.h>
#include <string.h>

const char *const tierce__cli_ctl_help[] = {
    "Changes what a process that keeps a cache does.\n"
    "\n"
    "  PID|SOCKET       the process: its id, or the path of its control socket\n"
    "\n"
    "  mode             says its mode\n"
    "  mode normal      it stores, and answers from what is there\n"
    "  mode freeze      it answers from what is there, and stores and promotes nothing\n"
    "  mode bypass      it finds and stores nothing; what is there stays\n"
    "\n"
    "  clear            forgets all chunks, and says how many that were\n"
    "    --tier NAME    only those of one tier, as `tierce top` names it\n"
    "    --namespace HEX   only those of one namespace: its digest, or the beginning of it;\n"
    "                   /status on the socket (`tierce top --json`) lists them\n",
    NULL,
};

/* POSTs to `path` and prints the answer. */
static int ask(const struct tierce__process *process, const char *path)
{
    char *text;
    int rc = tierce__process_ask("ctl", process, path, "", false, &text);
    if (rc != TIERCE__CLI_OK)
        return rc;
    fputs(text, stdout);
    tierce__free(text);
    return fflush(stdout) == 0 ? TIERCE__CLI_OK
                               : tierce__cli_fail("ctl", "cannot write to standard output");
}

static int set_mode(const struct tierce__process *process, int argc, char **argv)
{
    char path[64];
    if (argc == 0)
        return ask(process, "/mode");
    if (argc > 1)
        return tierce__cli_usage("ctl", "one mode");
    if (strcmp(argv[0], "normal") != 0 && strcmp(argv[0], "freeze") != 0 &&
        strcmp(argv[0], "bypass") != 0)
        return tierce__cli_usage("ctl", "a mode is normal, freeze or bypass, not '%.64s'", argv[0]);
    snprintf(path, sizeof(path), "/mode?set=%s", argv[0]);
    return ask(process, path);
}

/* A word that may stand in a URL as it is. */
static bool is_plain(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    size_t n = strlen(text);
    return n > 0 && n <= 64 && strspn(text, plain) == n;
}

static int clear(const struct tierce__process *process, int argc, char **argv)
{
    static const char *const known[] = {"--tier", "--namespace", NULL};
    char path[256] = "/clear";
    const char *between = "?";
    bool given[2] = {false, false};
    for (int i = 0; i < argc; i += 2) {
        bool is_tier = strcmp(argv[i], "--tier") == 0;
        if (!is_tier && strcmp(argv[i], "--namespace") != 0)
            return tierce__cli_unknown_option("ctl", argv[i], known);
        if (i + 1 == argc || !is_plain(argv[i + 1]))
            return tierce__cli_usage("ctl", "%s wants %s", argv[i],
                                     is_tier ? "a tier's name" : "a digest in hex");
        if (given[is_tier])
            return tierce__cli_usage("ctl", "%s comes once", argv[i]);
        given[is_tier] = true;
        size_t at = strlen(path);
        snprintf(path + at, sizeof(path) - at, "%s%s=%s", between, argv[i] + 2, argv[i + 1]);
        between = "&";
    }
    return ask(process, path);
}

int tierce__cli_ctl(int argc, char **argv)
{
    struct tierce__process *processes;
    size_t count;
    if (argc < 3 || strcmp(argv[1], "mode") == 0 || strcmp(argv[1], "clear") == 0)
        return tierce__cli_usage("ctl", "a process, and then what it shall do: mode or clear");
    bool is_mode = strcmp(argv[2], "mode") == 0;
    if (!is_mode && strcmp(argv[2], "clear") != 0)
        return tierce__cli_usage("ctl", "it can do mode and clear, not '%.64s'", argv[2]);
    int rc = tierce__processes_find("ctl", argv[1], &processes, &count);
    if (rc != TIERCE__CLI_OK)
        return rc;
    if (count > 1)
        rc = tierce__cli_usage("ctl", "process %.20s has several engines: name a socket", argv[1]);
    else
        rc = (is_mode ? set_mode : clear)(&processes[0], argc - 3, argv + 3);
    tierce__free(processes);
    return rc;
}
