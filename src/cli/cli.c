/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "base/alloc.h"
#include "base/config_parse.h"
#include "base/nearest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tierce/version.h>
#include <unistd.h>

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
    const char *best = "help";
    size_t best_distance = tierce__edit_distance(name, best);
    char shown[64];

    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        size_t distance = tierce__edit_distance(name, commands[i].name);
        if (distance < best_distance) {
            best_distance = distance;
            best = commands[i].name;
        }
    }
    tierce__text_for_message(shown, sizeof(shown), name);
    fprintf(stderr, "tierce: there is no command \"%s\"; the nearest is \"%s\" (see tierce help)\n",
            shown, best);
    return TIERCE__CLI_USAGE;
}

static void print_overview(FILE *out)
{
    fprintf(out, "usage: tierce COMMAND [ARGUMENTS]\n\n"
                 "A tiered KV-cache store for LLM engines.\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out,
            "  %-10s %s\n\n"
            "tierce help COMMAND and tierce COMMAND --help tell more; tierce --version prints "
            "the version.\n"
            "Exit status: 0 done, 1 failed or found what it looks for (damage, a difference), "
            "2 wrong arguments.\n",
            "help", "prints this, or the help of a command");
}

static void print_command_help(const struct tierce__command *command)
{
    printf("usage: tierce %s %s\n\n%s", command->name, command->args, command->help);
}

static int run_help(int argc, char **argv)
{
    if (argc == 1) {
        print_overview(stdout);
        return TIERCE__CLI_OK;
    }
    if (argc > 2)
        return tierce__cli_usage("help", "takes one command");
    const struct tierce__command *command = find_command(argv[1]);
    if (command == NULL)
        return unknown_command(argv[1]);
    print_command_help(command);
    return TIERCE__CLI_OK;
}

static int dispatch(int argc, char **argv)
{
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

int tierce__cli_main(int argc, char **argv)
{
    if (argc < 2) {
        print_overview(stderr);
        return TIERCE__CLI_USAGE;
    }
    return tierce__cli_finish(argv[1], dispatch(argc, argv));
}

static void print_message(const char *command, const char *format, va_list ap)
{
    char message[2048];
    vsnprintf(message, sizeof(message), format, ap);
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
    fprintf(stderr, "See tierce help %s.\n", command);
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

int tierce__cli_finish(const char *command, int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    return tierce__cli_fail(command, "the output could not be written: %s", strerror(errno));
}

/* Fills buf[0 .. size) as far as the file goes; returns the bytes read or a negative errno. */
static ssize_t read_up_to(int fd, char *buf, size_t size)
{
    size_t used = 0;
    while (used < size) {
        ssize_t n = read(fd, buf + used, size - used);
        if (n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

/* The size of an open regular file, or a negative errno. */
static int64_t regular_size(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    return S_ISREG(st.st_mode) ? st.st_size : -EINVAL;
}

int tierce__cli_read_text(char **out, const char *path, size_t bytes_max)
{
    char *text = NULL;
    int rc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int64_t size = regular_size(fd);
    if (size < 0 || (uint64_t)size > bytes_max) {
        rc = size < 0 ? (int)size : -EFBIG;
        goto out;
    }
    text = tierce__alloc((size_t)size + 1);
    if (text == NULL) {
        rc = -ENOMEM;
        goto out;
    }
    ssize_t n = read_up_to(fd, text, (size_t)size);
    if (n < 0 || memchr(text, '\0', (size_t)n) != NULL) {
        rc = n < 0 ? (int)n : -EILSEQ;
        goto out;
    }
    text[n] = '\0';
    *out = text;
    text = NULL;
out:
    tierce__free(text);
    close(fd);
    return rc;
}

char *tierce__cli_join_path(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = tierce__alloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}
