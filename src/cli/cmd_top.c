/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/optimize/progress.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Shows what running processes count, again and again: each time their /status, and rates from
 * what it was the time before. */

const char *const tierce__cli_top_help[] = {
    "Shows the processes that have a cache: tiers, hits, rates. Without an argument it shows all\n"
    "processes of this user. On a terminal it refreshes the page until Ctrl-C.\n"
    "\n"
    "A tier in state OUT is out of service after failures, until a probe of it succeeds. `slots` "
    "is\n"
    "the used share of the maximum number of chunks (memory.chunks, disk.chunks), and `full` that "
    "of\n"
    "the bytes.\n"
    "\n"
    "  PID|SOCKET       one process: its id, or the path of its control socket\n"
    "  --interval SECONDS   time between two samples; default 2\n"
    "  --count N        number of samples; default: no limit on a terminal, else 1\n"
    "  --json           prints /status as JSON, one line per process and sample\n",
    NULL,
};

struct options {
    double interval_s;
    uint64_t count; /* 0: until Ctrl-C */
    bool json;
};

/* The previous counters of a process. */
struct look {
    struct tierce__json_doc status; /* zeroed: there are none */
    uint64_t at_ns;
};

static volatile sig_atomic_t is_over;

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static int64_t number(struct tierce__text object, const char *name)
{
    return tierce__json_get_int(object, name, 0);
}

/* A word for a terminal. */
static const char *word(char out[32], struct tierce__text object, const char *name)
{
    return tierce__process_word(out, 32, object, name, "?");
}

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* Growth a second; without an earlier look: since the process began. */
static double rate(struct tierce__text now, struct tierce__text before, const char *name,
                   double seconds)
{
    return seconds > 0 ? (double)(number(now, name) - number(before, name)) / seconds : 0;
}

/* ---- one process ----------------------------------------------------------------------------- */

static struct tierce__text tier_of(const struct tierce__json_doc *status, size_t index)
{
    char path[32];
    snprintf(path, sizeof(path), "tiers.%zu", index);
    return tierce__json_get(status->value, path);
}

/* The contents of a remote store are not known here. */
static void print_held(struct tierce__text tier)
{
    char used[32], cap[32];
    if (tierce__json_get_bool(tier, "shared")) {
        printf(" %9s %5s %10s %10s %5s", "-", "-", "-", "-", "-");
        return;
    }
    tierce__human_bytes(used, sizeof(used), (uint64_t)number(tier, "used_bytes"));
    tierce__human_bytes(cap, sizeof(cap), (uint64_t)number(tier, "cap_bytes"));
    printf(" %9lld %4.0f%% %10s %10s %4.0f%%", (long long)number(tier, "chunks"),
           share(number(tier, "used_slots"), number(tier, "slots")), used, cap,
           share(number(tier, "used_bytes"), number(tier, "cap_bytes")));
}

static void print_tier(struct tierce__text tier, struct tierce__text before, double seconds)
{
    char name[32], queued[32], read[32], put[32], evicted[32] = "-", unsent[32] = "-";
    bool shared = tierce__json_get_bool(tier, "shared");
    tierce__human_bytes(queued, sizeof(queued), (uint64_t)number(tier, "queued_bytes"));
    tierce__human_bytes(read, sizeof(read), (uint64_t)rate(tier, before, "read_bytes", seconds));
    tierce__human_bytes(put, sizeof(put), (uint64_t)rate(tier, before, "put_bytes", seconds));
    word(name, tier, "name");
    if (shared || strcmp(name, "disk") == 0)
        snprintf(unsent, sizeof(unsent), "%lld",
                 (long long)(number(tier, "unsent_waiting") + number(tier, "lost_chunks")));
    if (!shared)
        snprintf(evicted, sizeof(evicted), "%.1f/s", rate(tier, before, "evicted_chunks", seconds));
    printf("  %-8s %-7s", name, tierce__json_get_bool(tier, "in_service") ? "serves" : "OUT");
    print_held(tier);
    printf(" %10s %10s/s %10s/s %10s %7lld %8s\n", queued, read, put, evicted,
           (long long)number(tier, "errors"), unsent);
    if (number(tier, "out_of_slots") > number(before, "out_of_slots"))
        printf("  %-8s holds its maximum number of chunks, %lld: set %s.chunks to a larger value\n",
               name, (long long)number(tier, "slots"),
               strcmp(name, "disk") == 0 ? "disk" : "memory");
}

static void print_process(const char *socket, const struct tierce__json_doc *now,
                          const struct look *before)
{
    char uptime[32], mode[32], role[32], state[32], reason[256];
    struct tierce__text status = now->value;
    struct tierce__text stats = tierce__json_get(status, "stats");
    struct tierce__text old = tierce__json_get(before->status.value, "stats");
    bool is_first = before->status.copy == NULL;
    double uptime_s = (double)number(status, "uptime_ms") / 1e3;
    double seconds = is_first ? uptime_s : (double)(tierce__now_ns() - before->at_ns) / 1e9;
    int64_t asked = number(stats, "lookup_blocks") - number(old, "lookup_blocks");
    int64_t hit = number(stats, "lookup_hit_blocks") - number(old, "lookup_hit_blocks");
    tierce__human_seconds(uptime, sizeof(uptime), (uint64_t)uptime_s);
    bool stands_out = strcmp(word(mode, status, "mode"), "normal") != 0;
    tierce__process_word(reason, sizeof(reason), status, "state_reason", "?");
    bool is_ok = strcmp(word(state, status, "state"), "ok") == 0;
    printf("%s %lld  up %s  %s%s%s%s%s%s%s%s  %s\n", word(role, status, "role"),
           (long long)number(status, "pid"), uptime, socket, stands_out ? "  mode " : "",
           stands_out ? mode : "", is_ok ? "" : "  STATE ", is_ok ? "" : state, is_ok ? "" : " (",
           is_ok ? "" : reason, is_ok ? "" : ")", is_first ? "(rates since the start)" : "");
    printf("  lookups %.1f/s  blocks asked %.0f/s  hit %.1f%% (since it began %.1f%%)  loaded "
           "%.0f/s  failed %lld  pins %lld\n",
           rate(stats, old, "lookups", seconds), rate(stats, old, "lookup_blocks", seconds),
           share(hit, asked),
           share(number(stats, "lookup_hit_blocks"), number(stats, "lookup_blocks")),
           rate(stats, old, "blocks_loaded_memory", seconds) +
               rate(stats, old, "blocks_loaded_disk", seconds) +
               rate(stats, old, "blocks_loaded_remote", seconds),
           (long long)number(stats, "blocks_failed"), (long long)number(stats, "sessions_now"));
    printf("  checksum failures %lld  identity failures %lld  device failures %lld  deadlines "
           "%lld\n",
           (long long)number(stats, "checksum_failures"),
           (long long)number(stats, "identity_failures"),
           (long long)number(stats, "device_failures"),
           (long long)number(stats, "deadline_failures"));
    printf("  %-8s %-7s %9s %5s %10s %10s %5s %10s %12s %12s %10s %7s %8s\n", "tier", "state",
           "chunks", "slots", "used", "cap", "full", "queued", "read", "written", "evicted",
           "errors", "unsent");
    for (size_t i = 0; tier_of(now, i).length > 0; i++)
        print_tier(tier_of(now, i), tier_of(&before->status, i), seconds);
    printf("\n");
}

/* ---- again and again ------------------------------------------------------------------------- */

static int show(const struct options *options, const struct tierce__process *process,
                struct look *look)
{
    char *text;
    int rc = tierce__process_ask("top", process, "/status", NULL, false, &text);
    if (rc != TIERCE__CLI_OK)
        return rc;
    uint64_t now = tierce__now_ns();
    struct tierce__json_doc status = {0};
    if (options->json)
        fputs(text, stdout);
    else
        rc = tierce__process_read("top", process, text, &status);
    if (rc == TIERCE__CLI_OK && !options->json)
        print_process(process->socket, &status, look);
    tierce__free(text);
    tierce__json_doc_clear(&look->status);
    *look = (struct look){.status = status, .at_ns = now};
    return rc;
}

static void wait_for(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    (void)nanosleep(&left, NULL);
}

static int show_all(const struct options *options, const struct tierce__process *processes,
                    size_t count)
{
    struct look *looks = tierce__calloc(count, sizeof(*looks));
    if (looks == NULL)
        return tierce__cli_fail("top", "no memory");
    bool redraws = !options->json && options->count != 1 && isatty(STDOUT_FILENO);
    int rc = TIERCE__CLI_OK;
    for (uint64_t n = 0; !is_over && rc == TIERCE__CLI_OK; n++) {
        if (options->count > 0 && n == options->count)
            break;
        if (n > 0)
            wait_for(options->interval_s);
        if (is_over)
            break;
        if (redraws)
            fputs("\033[H\033[2J", stdout);
        for (size_t i = 0; i < count && rc == TIERCE__CLI_OK; i++)
            rc = show(options, &processes[i], &looks[i]);
        if (fflush(stdout) != 0 && rc == TIERCE__CLI_OK)
            rc = tierce__cli_fail("top", "cannot write to standard output");
    }
    for (size_t i = 0; i < count; i++)
        tierce__json_doc_clear(&looks[i].status);
    tierce__free(looks);
    return rc;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static const struct tierce__option rows[] = {
    {"--interval", TIERCE__OPTION_NUMBER, TIERCE__OPTION_FIELD(struct options, interval_s),
     .min = 0.1, .max = 86400, .wants = "a number from 0.1 to 86400"},
    {"--count", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct options, count), .min = 1,
     .max = 86400, .wants = "a number from 1 to 86400"},
    {"--json", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct options, json)},
    {NULL},
};

int tierce__cli_top(int argc, char **argv)
{
    struct options options = {.interval_s = 2, .count = isatty(STDOUT_FILENO) ? 0 : 1};
    struct tierce__process *processes;
    size_t count;
    int rc = tierce__options_read("top", rows, &options, 0, &argc, argv);
    if (rc == TIERCE__CLI_OK && argc > 2)
        rc = tierce__cli_usage("top", "accepts at most one process");
    if (rc != TIERCE__CLI_OK)
        return rc;
    rc = tierce__processes_find("top", argv[1], &processes, &count);
    if (rc != TIERCE__CLI_OK)
        return rc;
    struct sigaction action = {.sa_handler = end};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    rc = show_all(&options, processes, count);
    tierce__free(processes);
    return rc;
}
