/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/options.h"

#define SECONDS_DEFAULT 3.0
#define SECONDS_MAX     600.0
#define MEMORY_DEFAULT  (5ULL << 30)
#define MEMORY_MIN      (64ULL << 20)

const char *const tierce__cli_bench_help[] = {
    "Measures Tierce against the limits of this machine and prints a line per case. The ratio is\n"
    "value to limit, or limit to value if less is better: a higher ratio is always better. The\n"
    "goal is the ratio that the project aims at; a lower one is not an error.\n\n"
    "  NAME           only these benchmarks (default: all)\n"
    "  --csv          bench,case,unit,value,limit,ratio,goal,peer,peer_value,\n"
    "                 value_min,value_max,limit_min,limit_max\n"
    "  --list         lists the benchmarks\n"
    "  --seconds N    time per case, without preparation (default 3)\n"
    "  --memory SIZE  approximate limit of memory (default 5GiB, or half of the free memory)\n"
    "  --blocks N     blocks in the manager's index (default 1000000, or as --memory allows)\n"
    "  --dir DIR      folder for files (default: a new folder in the current one)\n"
    "  --trace FILE   trace that optimize replays (default: Mooncake's conversation trace below\n"
    "                 TIERCE_TEST_DATA, or a generated one)\n"
    "  --kv FILE      KV that codec measures, of tools/kv_samples.py: a name that ends with "
    ".bf16,\n"
    "                 .fp16, .e4m3 or .e5m2 (default: made-up values); peers uses one of\n"
    "                 .bf16\n"
    "  --python FILE  Python with the packages of peers: libcachesim (for optimize), lmcache "
    "(codec),\n"
    "                 mooncake and nixl-cu12; rows without their package are left out (default:\n"
    "                 python3)\n",
    NULL};

static const struct bench_entry {
    const char *name;
    const char *summary;
    int (*run)(const struct tierce__bench *bench);
    bool needs_device;
} entries[] = {
#define TIERCE_BENCH(suffix, name, summary)           {name, summary, tierce__bench_##suffix, false},
#define TIERCE_BENCH_ON_DEVICE(suffix, name, summary) {name, summary, tierce__bench_##suffix, true},
#include "bench/benches.def"
#undef TIERCE_BENCH
};

#define ENTRY_COUNT (sizeof(entries) / sizeof(entries[0]))

/* ---- output --------------------------------------------------------------------------------- */

/* A number in four significant digits, or nothing for 0. */
static void format_number(char *out, size_t size, double value)
{
    out[0] = '\0';
    if (value > 0)
        snprintf(out, size, value < 9999.5 ? "%.4g" : "%.0f", value);
}

/* Once, before the first row. */
static void print_header(bool csv)
{
    static bool is_printed;
    if (is_printed)
        return;
    is_printed = true;
    if (csv)
        printf("bench,case,unit,value,limit,ratio,goal,peer,peer_value,value_min,value_max,"
               "limit_min,limit_max\n");
    else
        printf("%-8s %-46s %-9s %9s %9s %7s %6s  %s\n", "bench", "case", "unit", "value", "limit",
               "ratio", "goal", "peer");
    fflush(stdout);
}

/* ",a,b,c,d" for a file, " (a-b; c-d)" for people; numbers that are not there are empty. */
static void print_spread(const struct tierce__bench_row *row, bool csv)
{
    char n[4][32];
    format_number(n[0], sizeof(n[0]), row->value_min);
    format_number(n[1], sizeof(n[1]), row->value_max);
    format_number(n[2], sizeof(n[2]), row->limit_min);
    format_number(n[3], sizeof(n[3]), row->limit_max);
    if (csv)
        printf(",%s,%s,%s,%s\n", n[0], n[1], n[2], n[3]);
    else if (row->limit_max > 0)
        printf("  (%s to %s; %s to %s)\n", n[0], n[1], n[2], n[3]);
    else if (row->value_max > 0)
        printf("  (%s to %s)\n", n[0], n[1]);
    else
        printf("\n");
}

void tierce__bench_emit(const struct tierce__bench *bench, const struct tierce__bench_row *row)
{
    char value[32], limit[32], ratio[32], goal[32], peer_value[32];
    double r = 0;
    if (row->limit > 0 && row->value > 0)
        r = row->sense == TIERCE__BENCH_LESS_IS_BETTER ? row->limit / row->value
                                                       : row->value / row->limit;
    format_number(value, sizeof(value), row->value);
    format_number(limit, sizeof(limit), row->limit);
    format_number(ratio, sizeof(ratio), r);
    format_number(goal, sizeof(goal), row->goal);
    format_number(peer_value, sizeof(peer_value), row->peer_value);
    const char *peer = row->peer != NULL ? row->peer : "";
    print_header(bench->csv);
    if (bench->csv)
        printf("%s,%s,%s,%s,%s,%s,%s,%s,%s", bench->name, row->case_name, row->unit, value, limit,
               ratio, goal, peer, peer_value);
    else
        printf("%-8s %-46s %-9s %9s %9s %7s %6s  %s%s%s", bench->name, row->case_name, row->unit,
               value, limit, ratio, goal, peer, peer[0] != '\0' ? " " : "", peer_value);
    print_spread(row, bench->csv);
    fflush(stdout);
}

int tierce__bench_fail(const struct tierce__bench *bench, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "tierce bench: %s: ", bench->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return -ECANCELED;
}

static void list_benches(void)
{
    for (size_t i = 0; i < ENTRY_COUNT; i++)
        printf("%-8s %s\n", entries[i].name, entries[i].summary);
}

/* ---- arguments ------------------------------------------------------------------------------ */

struct bench_arguments {
    struct tierce__bench bench;
    char **names;
    int name_count;
    bool list;
};

static int usage(const char *what, const char *word)
{
    char shown[64];
    tierce__text_for_message(shown, sizeof(shown), word);
    return tierce__cli_usage("bench", "%s: \"%s\"", what, shown);
}

static int unknown_bench(const char *word)
{
    static const char *const known[] = {
#define TIERCE_BENCH(suffix, name, summary) name,
#include "bench/benches.def"
#undef TIERCE_BENCH
        NULL};
    char shown[64];
    tierce__text_for_message(shown, sizeof(shown), word);
    return tierce__cli_usage("bench", "there is no benchmark \"%s\"; the nearest is \"%s\"", shown,
                             tierce__nearest(word, known));
}

static const struct bench_entry *find_entry(const char *name)
{
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    }
    return NULL;
}

/* Half of the available memory, if that is known. */
static uint64_t memory_by_default(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return MEMORY_DEFAULT;
    char line[128];
    unsigned long long kib = 0;
    while (kib == 0 && fgets(line, sizeof(line), file) != NULL)
        (void)sscanf(line, "MemAvailable: %llu kB", &kib);
    fclose(file);
    uint64_t half = kib * 1024 / 2;
    if (half == 0 || half > MEMORY_DEFAULT)
        return MEMORY_DEFAULT;
    return half > MEMORY_MIN ? half : MEMORY_MIN;
}

static const struct tierce__option options[] = {
    {"--csv", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct bench_arguments, bench.csv)},
    {"--list", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct bench_arguments, list)},
    {"--seconds", TIERCE__OPTION_NUMBER,
     TIERCE__OPTION_FIELD(struct bench_arguments, bench.seconds), .min = DBL_MIN,
     .max = SECONDS_MAX, .wants = "a number up to 600"},
    {"--memory", TIERCE__OPTION_SIZE,
     TIERCE__OPTION_FIELD(struct bench_arguments, bench.memory_bytes), .min = (double)MEMORY_MIN,
     .wants = "at least 64MiB"},
    {"--blocks", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct bench_arguments, bench.blocks),
     .min = 1024, .max = 1000000000, .wants = "a number from 1024 to 1000000000"},
    {"--dir", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct bench_arguments, bench.dir)},
    {"--trace", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct bench_arguments, bench.trace)},
    {"--kv", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct bench_arguments, bench.kv)},
    {"--python", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct bench_arguments, bench.python)},
    {NULL, .may_shorten = true},
};

static int read_arguments(struct bench_arguments *a, int argc, char **argv)
{
    *a = (struct bench_arguments){
        .bench = {.seconds = SECONDS_DEFAULT, .memory_bytes = memory_by_default()}};
    int rc = tierce__options_read("bench", options, a, 0, &argc, argv);
    a->names = argv + 1;
    a->name_count = argc - 1;
    for (int i = 0; rc == 0 && i < a->name_count; i++) {
        if (find_entry(a->names[i]) == NULL)
            rc = unknown_bench(a->names[i]);
    }
    return rc;
}

/* ---- running -------------------------------------------------------------------------------- */

static bool is_wanted(const struct bench_arguments *a, const struct bench_entry *entry)
{
    for (int i = 0; i < a->name_count; i++) {
        if (strcmp(a->names[i], entry->name) == 0)
            return true;
    }
    return a->name_count == 0;
}

/* Runs every benchmark, even after a failure; none if the results cannot be written. */
static int run_all(struct bench_arguments *a)
{
    int status = TIERCE__CLI_OK;
    for (size_t i = 0; i < ENTRY_COUNT && !ferror(stdout); i++) {
        if (!is_wanted(a, &entries[i]))
            continue;
        if (!entries[i].needs_device)
            print_header(a->bench.csv);
        if (ferror(stdout))
            break;
        a->bench.name = entries[i].name;
        int rc = entries[i].run(&a->bench);
        if (rc < 0 && rc != -ECANCELED)
            (void)tierce__bench_fail(&a->bench, "%s", tierce_strerror(rc));
        if (rc < 0)
            status = TIERCE__CLI_FAILED;
    }
    return status;
}

int tierce__cli_bench(int argc, char **argv)
{
    struct bench_arguments a;
    char folder[PATH_MAX] = "tierce-bench-XXXXXX";
    int rc = read_arguments(&a, argc, argv);
    if (rc != 0)
        return rc;
    if (a.list) {
        list_benches();
        return TIERCE__CLI_OK;
    }
    if (a.bench.dir != NULL) {
        int length = snprintf(folder, sizeof(folder), "%s/tierce-bench-XXXXXX", a.bench.dir);
        if (length < 0 || (size_t)length >= sizeof(folder))
            return usage("--dir is too long", a.bench.dir);
    }
    struct tierce__bench_guard guard;
    rc = tierce__bench_guard_begin(&guard, folder);
    if (rc < 0)
        return tierce__cli_fail("bench", "cannot create %s: %s; pass another folder with --dir",
                                folder, tierce_strerror(rc));
    a.bench.dir = folder;
    rc = run_all(&a);
    tierce__bench_guard_end(&guard);
    /* Benchmarks remove the files that they create. */
    if (rmdir(folder) != 0)
        return tierce__cli_fail("bench", "cannot remove %s: %s", folder, strerror(errno));
    return rc;
}
