/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/man.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/file.h"
#include "base/log/log.h"
#include "base/text/nearest.h"
#include "base/text/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <tierce/version.h>
#include <unistd.h>

/* Open files of a node or manager that are not connections of clients. */
#define FILES_BESIDE 64u

static const struct tierce__command commands[] = {
#define TIERCE_COMMAND(suffix, name, args, summary)                                                \
    {name, args, summary, tierce__cli_##suffix##_help, tierce__cli_##suffix},
#include "cli/commands.def"
#undef TIERCE_COMMAND
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(*commands))

static const struct tierce__command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    static const char *const known[] = {"help", "--help", "--version",
#define TIERCE_COMMAND(suffix, word, args, summary) word,
#include "cli/commands.def"
#undef TIERCE_COMMAND
                                        NULL};
    char shown[64];
    const char *nearest = tierce__nearest(name, known);
    tierce__text_for_message(shown, sizeof(shown), name);
    if (2 * tierce__edit_distance(name, nearest) <= strlen(nearest))
        fprintf(stderr,
                "tierce: there is no command \"%s\"; the nearest is \"%s\" (see tierce help)\n",
                shown, nearest);
    else
        fprintf(stderr, "tierce: there is no command \"%s\"; tierce help lists all\n", shown);
    return TIERCE__CLI_USAGE;
}

void tierce__cli_trace_name(char out[TIERCE__CLI_TRACE_NAME_BYTES], const char *path)
{
    static const char *const endings[] = {".gz", ".zst", ".jsonl", ".json", ".csv", ".log"};
    char name[TIERCE__CLI_TRACE_NAME_BYTES];
    const char *slash = strrchr(path, '/');
    snprintf(name, sizeof(name), "%s",
             strcmp(path, "-") == 0 ? "stdin"
             : slash != NULL        ? slash + 1
                                    : path);
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0)
            name[length - ending] = '\0';
    }
    tierce__text_for_message(out, TIERCE__CLI_TRACE_NAME_BYTES, name);
    for (char *p = out; *p != '\0'; p++)
        *p = *p == ',' || *p == '"' ? '_' : *p;
}

static void print_overview(FILE *out)
{
    fprintf(out, "usage: tierce COMMAND [ARGUMENTS]\n\n"
                 "A tiered KV-cache store for LLM engines.\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(
        out,
        "  %-10s %s\n\n"
        "tierce help COMMAND and tierce COMMAND --help print the help of a command.\n"
        "tierce help --man [COMMAND] prints a manual page; tierce --version prints the version.\n"
        "Exit status: 0 success; 1 failure, or damage or a difference was found; 2 invalid "
        "arguments.\n",
        "help", "prints this, or the help of a command");
}

void tierce__cli_print_help(FILE *file, const char *const *help)
{
    for (; *help != NULL; help++)
        fputs(*help, file);
}

static void print_command_help(const struct tierce__command *command)
{
    printf("usage: tierce %s %s\n\n", command->name, command->args);
    tierce__cli_print_help(stdout, command->help);
}

/* `tierce help --man [COMMAND]`: `make install` writes its output as manual pages. */
static int print_man(int argc, char **argv)
{
    const struct tierce__command *command = argc > 0 ? find_command(argv[0]) : NULL;
    if (argc > 1)
        return tierce__cli_usage("help", "--man accepts at most one command");
    if (argc > 0 && command == NULL)
        return unknown_command(argv[0]);
    tierce__man_print(stdout, command, commands, COMMAND_COUNT);
    return TIERCE__CLI_OK;
}

static int run_help(int argc, char **argv)
{
    TIERCE_ASSERT(argc >= 1);
    if (argc > 1 && strcmp(argv[1], "--man") == 0)
        return print_man(argc - 2, argv + 2);
    if (argc > 2)
        return tierce__cli_usage("help", "accepts at most one command");
    if (argc == 1 || strcmp(argv[1], "help") == 0) {
        print_overview(stdout);
        return TIERCE__CLI_OK;
    }
    const struct tierce__command *command = find_command(argv[1]);
    if (command == NULL)
        return unknown_command(argv[1]);
    print_command_help(command);
    return TIERCE__CLI_OK;
}

static int dispatch(int argc, char **argv)
{
    TIERCE_ASSERT(argc >= 2);
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("tierce %s\n", tierce_version());
        return TIERCE__CLI_OK;
    }
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return run_help(argc - 1, argv + 1);
    const struct tierce__command *command = find_command(name);
    if (command == NULL)
        return unknown_command(name);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_command_help(command);
            return TIERCE__CLI_OK;
        }
    }
    return command->run(argc - 1, argv + 1);
}

/* Whether everything printed to stdout arrived; says so if not. */
static int finish(const char *command, int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    return tierce__cli_fail(command, "the output could not be written: %s", strerror(errno));
}

/* The next opened file would get the number of a closed standard descriptor, and output would be
 * written into it. Writing to one that is open for reading still fails. */
static void fill_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", O_RDONLY);
    }
}

int tierce__cli_main(int argc, char **argv)
{
    fill_standard_files();
    if (argc < 2) {
        print_overview(stderr);
        return TIERCE__CLI_USAGE;
    }
    return finish(argv[1], dispatch(argc, argv));
}

static void print_message(const char *command, const char *format, va_list ap)
{
    char message[2048];
    vsnprintf(message, sizeof(message), format, ap);
    tierce__cli_clean(message); /* a cut in the middle of a letter as well */
    /* Results that came before a message stay before it where both go to one file. */
    fflush(stdout);
    fprintf(stderr, "tierce %s: %s\n", command, message);
}

int tierce__cli_usage(const char *command, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    print_message(command, format, ap);
    va_end(ap);
    fprintf(stderr, "See tierce help %.*s.\n", (int)strcspn(command, " "), command);
    return TIERCE__CLI_USAGE;
}

int tierce__cli_fail(const char *command, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    print_message(command, format, ap);
    va_end(ap);
    return TIERCE__CLI_FAILED;
}

void tierce__cli_raise_files(const char *command, const char *name, uint32_t connections)
{
    struct rlimit files;
    char text[256];
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return;
    struct rlimit most = {.rlim_cur = files.rlim_max, .rlim_max = files.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &most) == 0)
        files = most;
    if (files.rlim_cur >= connections + FILES_BESIDE)
        return;
    snprintf(text, sizeof(text),
             "only %llu files can be open, too few for %u connections (%s); raise the limit "
             "(ulimit -Hn, or LimitNOFILE of systemd), or lower %s",
             (unsigned long long)files.rlim_cur, (unsigned)connections, name, name);
    tierce__log_to_stderr(command, text);
}

void tierce__cli_clean(char *text)
{
    for (size_t n; *text != '\0'; text += n) {
        const uint8_t *p = (const uint8_t *)text;
        n = tierce__utf8_length(p, strnlen(text, 4));
        bool bad = n == 0 || (*text != '\n' && tierce__is_control(p, n));
        n = n > 0 ? n : 1;
        if (bad)
            memset(text, '?', n);
    }
}

const char *tierce__cli_read_error(int rc)
{
    if (rc == -EINVAL)
        return "is neither a file nor a folder";
    return rc == -EILSEQ ? "holds a NUL byte, and must be text" : tierce_strerror(rc);
}

int tierce__cli_read_text(char **out, const char *path, size_t bytes_max)
{
    char *text;
    size_t length;
    int rc = tierce__read_file(&text, &length, path, bytes_max);
    if (rc < 0)
        return rc;
    if (memchr(text, '\0', length) != NULL) {
        tierce__free(text);
        return -EILSEQ;
    }
    *out = text;
    return 0;
}
