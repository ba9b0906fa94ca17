/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/optimize/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char *const tierce__cli_ctl_help[] = {
    "Controls the cache of a running process.\n"
    "\n"
    "  PID|SOCKET       the process id, or the path of the control socket\n"
    "\n"
    "  mode             prints the mode\n"
    "  mode normal      finds and stores chunks\n"
    "  mode freeze      finds stored chunks; stores and promotes none\n"
    "  mode bypass      finds and stores nothing; stored chunks are kept\n"
    "\n"
    "  clear            deletes all chunks, and prints their number\n"
    "    --tier NAME    only in one tier, as `tierce top` names it\n"
    "    --namespace HEX   only in one namespace: its digest, or the first digits of it;\n"
    "                   `tierce top --json` lists the namespaces\n"
    "\n"
    "  backfill         sends the chunks on disk to the remote stores that lack them, and shows\n"
    "                   the progress until it ends. A chunk that a store holds is not sent "
    "again.\n"
    "                   Ctrl-C ends the display; the backfill continues.\n"
    "    --rate SIZE    bytes read per second; default 64MiB\n"
    "  backfill show    shows the running backfill, or the result of the last one\n"
    "  backfill stop    stops the running backfill\n",
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
    if (argc == 1)
        return ask(process, "/mode");
    if (argc > 2)
        return tierce__cli_usage("ctl", "mode requires one mode: normal, freeze or bypass");
    if (strcmp(argv[1], "normal") != 0 && strcmp(argv[1], "freeze") != 0 &&
        strcmp(argv[1], "bypass") != 0)
        return tierce__cli_usage("ctl", "mode accepts normal, freeze or bypass, not '%.64s'",
                                 argv[1]);
    snprintf(path, sizeof(path), "/mode?set=%s", argv[1]);
    return ask(process, path);
}

/* Whether a word needs no escaping in a URL. */
static bool is_plain(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    size_t n = strlen(text);
    return n > 0 && n <= 64 && strspn(text, plain) == n;
}

static int read_word(void *field, const char *option, const char *text)
{
    const char **word = field;
    if (!is_plain(text))
        return tierce__cli_usage("ctl", "%s requires %s", option,
                                 strcmp(option, "--tier") == 0 ? "a tier's name"
                                                               : "a digest in hex");
    if (*word != NULL)
        return tierce__cli_usage("ctl", "%s may be given only once", option);
    *word = text;
    return TIERCE__CLI_OK;
}

struct clear_request {
    const char *tier, *ns;
};

static const struct tierce__option clear_options[] = {
    {"--tier", TIERCE__OPTION_CALL, TIERCE__OPTION_FIELD(struct clear_request, tier),
     .read = read_word},
    {"--namespace", TIERCE__OPTION_CALL, TIERCE__OPTION_FIELD(struct clear_request, ns),
     .read = read_word},
    {NULL},
};

static int clear(const struct tierce__process *process, int argc, char **argv)
{
    struct clear_request r = {0};
    char path[256];
    int status = tierce__options_read("ctl", clear_options, &r, 0, &argc, argv);
    if (status == TIERCE__CLI_OK && argc > 1)
        status = tierce__cli_usage("ctl", "clear accepts --tier and --namespace, not \"%.64s\"",
                                   argv[1]);
    if (status != TIERCE__CLI_OK)
        return status;
    bool has_both = r.tier != NULL && r.ns != NULL;
    snprintf(path, sizeof(path), "/clear%s%s%s%s%s%s", r.tier != NULL || r.ns != NULL ? "?" : "",
             r.tier != NULL ? "tier=" : "", r.tier != NULL ? r.tier : "", has_both ? "&" : "",
             r.ns != NULL ? "namespace=" : "", r.ns != NULL ? r.ns : "");
    TIERCE_ASSERT(strlen(path) + 1 < sizeof(path));
    return ask(process, path);
}

/* ---- backfill ---- */

#define LOOK_MS 500

static uint64_t number(const struct tierce__json_doc *status, const char *name)
{
    return (uint64_t)tierce__json_get_int(status->value, name, 0);
}

static const char *word(char out[64], const struct tierce__json_doc *status, const char *name)
{
    return tierce__process_word(out, 64, status->value, name, "");
}

static int ask_backfill(struct tierce__json_doc *status, const struct tierce__process *process,
                        const char *path)
{
    char *text;
    int rc = tierce__process_ask("ctl", process, path, "", false, &text);
    if (rc != TIERCE__CLI_OK)
        return rc;
    rc = tierce__process_read("ctl", process, text, status);
    tierce__free(text);
    return rc;
}

static int tell_backfill(const struct tierce__json_doc *status)
{
    char bytes[32], state[64], reason[64];
    (void)word(state, status, "state");
    (void)word(reason, status, "reason");
    if (strcmp(state, "never") == 0)
        return tierce__cli_fail("ctl", "no backfill was started in this process");
    tierce__human_bytes(bytes, sizeof(bytes), number(status, "sent_bytes"));
    printf("%s%s%s: %llu of %llu chunks, %llu sent (%s), %llu already stored, %llu rejected, "
           "%llu unreadable, %.1f s\n",
           state, reason[0] != '\0' ? ", " : "", reason, (unsigned long long)number(status, "seen"),
           (unsigned long long)number(status, "chunks"), (unsigned long long)number(status, "sent"),
           bytes, (unsigned long long)number(status, "there"),
           (unsigned long long)number(status, "refused"),
           (unsigned long long)number(status, "unreadable"), (double)number(status, "ms") / 1e3);
    if (fflush(stdout) != 0)
        return tierce__cli_fail("ctl", "cannot write to standard output");
    return strcmp(state, "done") == 0 || strcmp(state, "running") == 0 ? TIERCE__CLI_OK
                                                                       : TIERCE__CLI_FAILED;
}

/* Until it has ended. */
static int follow_backfill(const struct tierce__process *process, struct tierce__json_doc *status)
{
    struct tierce__progress progress;
    struct timespec wait = {.tv_nsec = LOOK_MS * 1000000L};
    char state[64];
    int rc = TIERCE__CLI_OK;
    tierce__progress_begin(&progress, "backfill", number(status, "chunks"));
    progress.unit = "chunks";
    while (rc == TIERCE__CLI_OK && strcmp(word(state, status, "state"), "running") == 0) {
        uint64_t seen = number(status, "seen");
        tierce__progress_add(&progress, seen > progress.done ? seen - progress.done : 0);
        (void)nanosleep(&wait, NULL);
        tierce__json_doc_clear(status);
        rc = ask_backfill(status, process, "/backfill");
    }
    tierce__progress_end(&progress);
    if (rc == TIERCE__CLI_OK)
        rc = tell_backfill(status);
    return rc;
}

static int refuse_rate(void)
{
    return tierce__cli_usage("ctl",
                             "--rate requires backfill start and a size above 0, such as 64MiB");
}

static int read_rate(void *field, const char *option, const char *text)
{
    uint64_t rate;
    (void)option;
    if (!is_plain(text) || !tierce__parse_size(&rate, text) || rate == 0)
        return refuse_rate();
    *(const char **)field = text;
    return TIERCE__CLI_OK;
}

static const struct tierce__option backfill_options[] = {
    {"--rate", TIERCE__OPTION_CALL, .read = read_rate},
    {NULL},
};

static int backfill(const struct tierce__process *process, int argc, char **argv)
{
    char path[128] = "/backfill?do=start";
    const char *rate = NULL;
    int rc = tierce__options_read("ctl", backfill_options, &rate, 0, &argc, argv);
    if (rc != TIERCE__CLI_OK)
        return rc;
    const char *what = argc > 1 ? argv[1] : "start";
    bool starts = strcmp(what, "start") == 0, shows = strcmp(what, "show") == 0;
    if (argc > 2 || (!starts && !shows && strcmp(what, "stop") != 0))
        return tierce__cli_usage("ctl", "backfill accepts start, show or stop, not '%.64s'",
                                 argv[argc - 1]);
    if (rate != NULL && !starts)
        return refuse_rate();
    if (rate != NULL)
        snprintf(path, sizeof(path), "/backfill?do=start&rate=%s", rate);
    struct tierce__json_doc status = {0};
    rc = ask_backfill(&status, process, starts ? path : shows ? "/backfill" : "/backfill?do=stop");
    if (rc == TIERCE__CLI_OK)
        rc = follow_backfill(process, &status);
    tierce__json_doc_clear(&status);
    return rc;
}

typedef int deed_fn(const struct tierce__process *process, int argc, char **argv);

static deed_fn *find_deed(const char *name)
{
    return strcmp(name, "mode") == 0       ? set_mode
           : strcmp(name, "clear") == 0    ? clear
           : strcmp(name, "backfill") == 0 ? backfill
                                           : NULL;
}

int tierce__cli_ctl(int argc, char **argv)
{
    struct tierce__process *processes;
    size_t count;
    if (argc < 3 || find_deed(argv[1]) != NULL)
        return tierce__cli_usage("ctl", "requires a process, then mode, clear or backfill");
    deed_fn *deed = find_deed(argv[2]);
    if (deed == NULL)
        return tierce__cli_usage("ctl", "requires mode, clear or backfill, not '%.64s'", argv[2]);
    int rc = tierce__processes_find("ctl", argv[1], &processes, &count);
    if (rc != TIERCE__CLI_OK)
        return rc;
    if (count > 1)
        rc = tierce__cli_usage(
            "ctl", "process %.20s has several engines: pass the path of a socket", argv[1]);
    else
        rc = deed(&processes[0], argc - 2, argv + 2);
    tierce__free(processes);
    return rc;
}
