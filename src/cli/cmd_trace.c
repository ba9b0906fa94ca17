/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace/trace_commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/config_parse.h"
#include "base/text/nearest.h"
#include "cli/cli.h"
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

static int usage(const char *what, const char *word)
{
    char shown[64];
    tierce__text_for_message(shown, sizeof(shown), word);
    return tierce__cli_usage("trace", "%s: \"%s\"", what, shown);
}

static const struct subcommand {
    const char *name;
    const char *options; /* the letters of those that it takes */
    int (*run)(struct tierce__trace_run *run);
} subcommands[] = {{"stat", "", tierce__trace_stat},
                   {"head", "n", tierce__trace_head},
                   {"convert", "tr", tierce__trace_convert},
                   {"sample", "tryRs", tierce__trace_sample}};

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

static int read_format(struct tierce__trace_run *run, int option)
{
    if (option == 'f') {
        run->opts.format = optarg;
        return tierce__cli_check_name("trace", "--format", tierce__trace_format_name, optarg);
    }
    run->to = optarg;
    return tierce__cli_check_name("trace", "--to", tierce__trace_writer_format, optarg);
}

static int read_number(struct tierce__trace_run *run, int option)
{
    uint64_t number;
    if (option == 'l') {
        if (!tierce__parse_size(&number, optarg) || number == 0 || number > 1ULL << 32)
            return usage("--line-size requires a size up to 4GiB", optarg);
        run->opts.line_bytes_max = number;
        return 0;
    }
    if (!tierce__parse_count(&number, optarg))
        return usage(option == 'w'   ? "--window requires a number"
                     : option == 'n' ? "-n requires a number"
                                     : "--seed requires a number",
                     optarg);
    if (option == 'w' && (number == 0 || number > 1u << 28))
        return usage("--window accepts 1 to 268435456", optarg);
    if (option == 'w')
        run->opts.window_requests = (uint32_t)number;
    else if (option == 'n')
        run->requests_max = number;
    else
        run->seed = number;
    return 0;
}

static int read_option(struct tierce__trace_run *run, int option)
{
    switch (option) {
    case 'f':
    case 't':
        return read_format(run, option);
    case 'w':
    case 'l':
    case 'n':
    case 's':
        return read_number(run, option);
    case 'b':
        return tierce__cli_read_share(&run->opts.bad_share_max, "trace", "--bad-share", optarg);
    case 'R':
        return tierce__cli_read_share(&run->rate, "trace", "--rate", optarg);
    case 'r':
        run->renumber = true;
        return 0;
    default:
        run->by_session = strcmp(optarg, "session") == 0;
        run->by_tree = strcmp(optarg, "prefix-tree") == 0;
        return run->by_session || run->by_tree
                   ? 0
                   : usage("--by accepts session or prefix-tree", optarg);
    }
}

/* An option as it is written. */
static void print_option(char out[32], const struct option *options, int letter)
{
    snprintf(out, 32, "-%c", letter);
    for (; options->name != NULL; options++) {
        if (options->val == letter)
            snprintf(out, 32, "--%s", options->name);
    }
}

static int read_arguments(struct tierce__trace_run *run, const struct subcommand *subcommand,
                          int argc, char **argv)
{
    static const struct option options[] = {
        {"format", required_argument, NULL, 'f'},    {"to", required_argument, NULL, 't'},
        {"window", required_argument, NULL, 'w'},    {"line-size", required_argument, NULL, 'l'},
        {"bad-share", required_argument, NULL, 'b'}, {"rate", required_argument, NULL, 'R'},
        {"by", required_argument, NULL, 'y'},        {"seed", required_argument, NULL, 's'},
        {"renumber", no_argument, NULL, 'r'},        {NULL, 0, NULL, 0}};
    char name[32];
    int option, rc = 0;
    optind = 1;
    while (rc == 0 && (option = getopt_long(argc, argv, ":n:", options, NULL)) != -1) {
        if (option == '?' || option == ':')
            return tierce__cli_wrong_option("trace", option, argv[optind - 1], options);
        if (strchr("fwlb", option) == NULL && strchr(subcommand->options, option) == NULL) {
            print_option(name, options, option);
            return tierce__cli_usage("trace", "%s does not accept %s", subcommand->name, name);
        }
        rc = read_option(run, option);
    }
    if (rc != 0)
        return rc;
    if (argc - optind != 1)
        return tierce__cli_usage("trace", "%s requires one file, or - for standard input",
                                 subcommand->name);
    run->path = argv[optind];
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
    if (subcommand->run == tierce__trace_sample &&
        (run.rate <= 0 || !(run.by_session || run.by_tree)))
        return tierce__cli_usage("trace", "sample requires --rate R and --by session|prefix-tree");
    return subcommand->run(&run);
}
