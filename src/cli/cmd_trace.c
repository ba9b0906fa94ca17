/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace/trace_commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/options.h"
#include "optimizer/trace/formats/trace_write.h"

const char *const tierce__cli_trace_help[] = {
    "Summarises and converts recorded workloads. FILE may be - for standard input, and may be\n"
    "compressed by gzip or zstd. The format is detected from the first lines. Requests are sorted\n"
    "by time.\n\n"
    "  stat FILE                       prints a summary\n"
    "  head FILE [-n N]                prints the first N requests (default 10), one per line\n"
    "  convert FILE --to FORMAT        writes it in another format, and lists lost information\n"
    "  sample FILE --rate R --by WHAT  writes a share R of it: whole sessions (session), or all\n"
    "                                  that begins with the same block (prefix-tree)\n\n"
    "  --format FORMAT   reads FILE in this format\n"
    "  --to FORMAT       access, csv, kvcm-schema or mooncake (sample: by default FILE's, or else\n"
    "                    access)\n"
    "  --renumber        writes blocks as numbers from 0, different in each instance\n"
    "  --seed S          seed of the sample (default 0); equal seeds select equal requests\n"
    "  --bad-share R     fails if more than this share of lines, and more than ten, are bad "
    "(0.01)\n"
    "  --window N        sorts within N requests (default 65536)\n"
    "  --line-size SIZE  a longer line is a bad one (default 64MiB)\n\n"
    "Formats:\n"
#define TIERCE_TRACE_FORMAT(suffix, name, summary) "  " name ": " summary "\n"
#include "optimizer/trace/trace_formats.def"
#undef TIERCE_TRACE_FORMAT
    "\n"
    "Exit status: 0 success (bad lines are reported), 1 the file cannot be read, or too many "
    "lines\n"
    "are bad, 2 invalid arguments.\n",
    NULL};

/* ---- arguments ------------------------------------------------------------------------------ */

enum {
    HEAD = 1,
    CONVERT = 2,
    SAMPLE = 4,
};

static const struct subcommand {
    const char *name;
    unsigned verb; /* in the options' table */
    int (*run)(struct tierce__trace_run *run);
} subcommands[] = {{"stat", 0, tierce__trace_stat},
                   {"head", HEAD, tierce__trace_head},
                   {"convert", CONVERT, tierce__trace_convert},
                   {"sample", SAMPLE, tierce__trace_sample}};

#define SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

static const struct subcommand *find_subcommand(const char *name)
{
    const struct subcommand *best = &subcommands[0];
    for (size_t i = 0; i < SUBCOMMANDS; i++) {
        if (strcmp(subcommands[i].name, name) == 0)
            return &subcommands[i];
        if (tierce__edit_distance(name, subcommands[i].name) <
            tierce__edit_distance(name, best->name))
            best = &subcommands[i];
    }
    char shown[64];
    tierce__text_for_message(shown, sizeof(shown), name);
    (void)tierce__cli_usage("trace", "there is no action \"%s\"; the nearest is \"%s\"", shown,
                            best->name);
    return NULL;
}

static const char *const groups[] = {"session", "prefix-tree", NULL};

static const struct tierce__option options[] = {
    {"--format", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct tierce__trace_run, opts.format),
     .names = tierce__trace_format_name},
    {"--window", TIERCE__OPTION_COUNT,
     TIERCE__OPTION_FIELD(struct tierce__trace_run, opts.window_requests), .min = 1,
     .max = 1u << 28},
    {"--line-size", TIERCE__OPTION_SIZE,
     TIERCE__OPTION_FIELD(struct tierce__trace_run, opts.line_bytes_max), .min = 1,
     .max = (double)(1ULL << 32), .wants = "a size up to 4GiB"},
    {"--bad-share", TIERCE__OPTION_SHARE,
     TIERCE__OPTION_FIELD(struct tierce__trace_run, opts.bad_share_max)},
    {"-n", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct tierce__trace_run, requests_max),
     .verbs = HEAD},
    {"--to", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct tierce__trace_run, to),
     .names = tierce__trace_writer_format, .verbs = CONVERT | SAMPLE},
    {"--renumber", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct tierce__trace_run, renumber),
     .verbs = CONVERT | SAMPLE},
    {"--rate", TIERCE__OPTION_SHARE, TIERCE__OPTION_FIELD(struct tierce__trace_run, rate),
     .verbs = SAMPLE},
    {"--by", TIERCE__OPTION_CHOICE, TIERCE__OPTION_FIELD(struct tierce__trace_run, by),
     .min = TIERCE__TRACE_BY_SESSION, .choices = groups, .verbs = SAMPLE},
    {"--seed", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct tierce__trace_run, seed),
     .verbs = SAMPLE},
    {NULL, .may_shorten = true},
};

static int read_arguments(struct tierce__trace_run *run, const struct subcommand *subcommand,
                          int argc, char **argv)
{
    int rc = tierce__options_read("trace", options, run, subcommand->verb, &argc, argv);
    if (rc != 0)
        return rc;
    if (argc != 2)
        return tierce__cli_usage("trace", "%s requires one file, or - for standard input",
                                 subcommand->name);
    run->path = argv[1];
    run->name = strcmp(run->path, "-") == 0 ? "standard input" : run->path;
    return 0;
}

int tierce__cli_trace(int argc, char **argv)
{
    struct tierce__trace_run run = {.opts = {.size = sizeof(struct tierce__trace_opts)},
                                    .requests_max = 10};
    if (argc < 2)
        return tierce__cli_usage("trace", "requires stat, head, convert or sample, and a file");
    const struct subcommand *subcommand = find_subcommand(argv[1]);
    if (subcommand == NULL)
        return TIERCE__CLI_USAGE;
    int rc = read_arguments(&run, subcommand, argc - 1, argv + 1);
    if (rc != 0)
        return rc;
    if (subcommand->run == tierce__trace_convert && run.to == NULL)
        return tierce__cli_usage("trace", "convert requires --to FORMAT");
    if (subcommand->run == tierce__trace_sample && (run.rate <= 0 || run.by == 0))
        return tierce__cli_usage("trace", "sample requires --rate R and --by session|prefix-tree");
    return subcommand->run(&run);
}
