/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/man.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tierce/version.h>

/* One line of text, or the `bytes` of it. */
static void put_text(FILE *out, const char *text, size_t bytes)
{
    if (bytes > 0 && (*text == '.' || *text == '\''))
        fputs("\\&", out);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\\')
            fputs("\\e", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else
            fputc(text[i], out);
    }
}

static void put_line(FILE *out, const char *text)
{
    put_text(out, text, strlen(text));
    fputc('\n', out);
}

/* The day of the build, which SOURCE_DATE_EPOCH may name. */
static void put_title(FILE *out, const char *name)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t now = epoch != NULL ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    struct tm day;
    char date[16];
    gmtime_r(&now, &day);
    strftime(date, sizeof(date), "%Y-%m-%d", &day);
    fputs(*name != '\0' ? ".TH TIERCE\\-" : ".TH TIERCE", out);
    for (const char *p = name; *p != '\0'; p++)
        fputc(toupper((unsigned char)*p), out);
    fprintf(out, " 1 %s \"Tierce %s\"\n", date, TIERCE_VERSION);
}

/* The help text of a command: one string of lines. */
struct body {
    FILE *out;
    bool is_table; /* inside lines that stay as they are */
    bool has_text; /* of the section */
    bool gap;      /* an empty line came */
};

static void put_body_line(struct body *b, const char *line, size_t bytes)
{
    bool is_table = bytes > 0 && line[0] == ' ';
    if (bytes == 0) {
        b->gap = b->has_text;
        return;
    }
    if (b->is_table && !is_table)
        fputs(".fi\n", b->out);
    if (b->gap || (b->has_text && b->is_table != is_table))
        fputs(b->is_table && is_table ? "\n" : ".PP\n", b->out);
    if (is_table && !b->is_table)
        fputs(".nf\n", b->out);
    b->is_table = is_table;
    b->has_text = true;
    b->gap = false;
    put_text(b->out, line, bytes);
    fputc('\n', b->out);
}

/* A help text may end a string inside a line. */
static void put_body(FILE *out, const char *const *help)
{
    struct body body = {.out = out};
    char line[512];
    size_t bytes = 0;
    for (; *help != NULL; help++) {
        for (const char *p = *help; *p != '\0'; p++) {
            if (*p == '\n') {
                put_body_line(&body, line, bytes);
                bytes = 0;
            } else if (bytes < sizeof(line)) {
                line[bytes++] = *p;
            }
        }
    }
    if (bytes > 0)
        put_body_line(&body, line, bytes);
    if (body.is_table)
        fputs(".fi\n", out);
}

static void put_exit_status(FILE *out)
{
    fputs(".SH EXIT STATUS\n"
          "0: success; 1: failure, or damage or a difference was found; 2: invalid arguments.\n",
          out);
}

/* Some help texts state their own exit statuses. */
static bool states_exit(const char *const *help)
{
    for (; *help != NULL; help++) {
        if (strstr(*help, "Exit status:") != NULL)
            return true;
    }
    return false;
}

static void print_command(FILE *out, const struct tierce__command *command)
{
    put_title(out, command->name);
    fprintf(out, ".SH NAME\ntierce\\-%s \\- ", command->name);
    put_line(out, command->summary);
    fprintf(out, ".SH SYNOPSIS\n.B tierce %s\n", command->name);
    put_line(out, command->args);
    fputs(".SH DESCRIPTION\n", out);
    put_body(out, command->help);
    if (!states_exit(command->help))
        put_exit_status(out);
    fputs(".SH SEE ALSO\n.BR tierce (1)\n", out);
}

static void print_overview(FILE *out, const struct tierce__command *commands, size_t count)
{
    put_title(out, "");
    fputs(".SH NAME\ntierce \\- a tiered KV\\-cache store for LLM engines\n"
          ".SH SYNOPSIS\n.B tierce\n.I COMMAND\n[\\fIARGUMENTS\\fR]\n.SH COMMANDS\n",
          out);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, ".TP\n.BR tierce\\-%s (1)\n", commands[i].name);
        put_line(out, commands[i].summary);
    }
    put_exit_status(out);
}

void tierce__man_print(FILE *out, const struct tierce__command *command,
                       const struct tierce__command *commands, size_t count)
{
    if (command == NULL)
        print_overview(out, commands, count);
    else
        print_command(out, command);
}
