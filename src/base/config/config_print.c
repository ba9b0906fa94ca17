/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/config/config.h"
#include "base/config/config_parse.h"
#include "base/config/config_private.h"
#include "base/text/url.h"

#include <string.h>

#define SOURCE_SHOWN 200

void tierce__config_format_number(char *out, size_t size, enum tierce__param_type type,
                                  uint64_t number)
{
    switch (type) {
    case TIERCE__PARAM_SIZE:
        tierce__format_size(out, size, number);
        break;
    case TIERCE__PARAM_DURATION:
        tierce__format_duration(out, size, number);
        break;
    case TIERCE__PARAM_SHARE:
        tierce__format_share(out, size, number);
        break;
    case TIERCE__PARAM_BOOL:
        snprintf(out, size, "%s", number != 0 ? "true" : "false");
        break;
    case TIERCE__PARAM_COUNT:
    case TIERCE__PARAM_TEXT:
    case TIERCE__PARAM_CHOICE:
        snprintf(out, size, "%llu", (unsigned long long)number);
        break;
    }
}

uint64_t tierce__config_bound(const struct tierce__param *param, double bound)
{
    if (param->type == TIERCE__PARAM_SHARE)
        bound *= (double)TIERCE__SHARE_ONE;
    return (uint64_t)bound;
}

bool tierce__config_is_bounded(const struct tierce__param *param)
{
    return param->min != 0 || param->max != 0;
}

/* Bytes of the name's section ("memory" of "memory.size"), 0 if it has none. */
static size_t section_length(const char *name)
{
    const char *dot = strchr(name, '.');
    return dot != NULL ? (size_t)(dot - name) : 0;
}

static bool same_section(const char *a, const char *b)
{
    size_t n = section_length(a);
    return n == section_length(b) && memcmp(a, b, n) == 0;
}

/* Whether text needs no quotes in YAML: names, paths and numbers. */
static bool is_plain(const char *text)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/";
    return *text != '\0' && strchr(first, *text) != NULL &&
           text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "_./-+%")] == '\0';
}

int tierce__config_print_value(const char *text, FILE *out)
{
    if (is_plain(text))
        return fprintf(out, "%s", text);
    int width = fprintf(out, "\"");
    for (const char *p = text; *p != '\0'; p++)
        width += fprintf(out, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
    return width + fprintf(out, "\"");
}

static void print_row(const struct tierce__config *config, size_t row, const char *key,
                      const char *indent, FILE *out)
{
    char source[SOURCE_SHOWN];
    char *shown = tierce__url_show_all(tierce__config_canonical(config, row));
    tierce__text_for_message(source, sizeof(source), tierce__config_source(config, row));
    int width = fprintf(out, "%s%s: ", indent, key);
    width += tierce__config_print_value(shown != NULL ? shown : "***", out);
    tierce__free(shown);
    fprintf(out, "%*s # %s\n", width < 32 ? 32 - width : 0, "", source);
}

/* Prints all rows of the section that row `first` opens; nothing if an earlier row opened it. */
static void print_section(const struct tierce__config *config, size_t first, FILE *out)
{
    size_t count;
    const struct tierce__param *table = tierce__config_table(config, &count);
    const char *name = table[first].name;
    size_t skip = section_length(name) + 1;

    for (size_t row = 0; row < first; row++) {
        if (same_section(table[row].name, name))
            return;
    }
    fprintf(out, "%.*s:\n", (int)section_length(name), name);
    for (size_t row = first; row < count; row++) {
        if (same_section(table[row].name, name))
            print_row(config, row, table[row].name + skip, "  ", out);
    }
}

void tierce__config_print(const struct tierce__config *config, FILE *out)
{
    size_t count;
    const struct tierce__param *table = tierce__config_table(config, &count);
    for (size_t row = 0; row < count; row++) {
        if (section_length(table[row].name) == 0)
            print_row(config, row, table[row].name, "", out);
        else
            print_section(config, row, out);
    }
}

static const char *type_name(enum tierce__param_type type)
{
    static const char *const names[] = {
        [TIERCE__PARAM_SIZE] = "size",         [TIERCE__PARAM_COUNT] = "count",
        [TIERCE__PARAM_DURATION] = "duration", [TIERCE__PARAM_BOOL] = "bool",
        [TIERCE__PARAM_SHARE] = "share",       [TIERCE__PARAM_TEXT] = "text",
        [TIERCE__PARAM_CHOICE] = "choice",
    };
    return names[type];
}

static void print_bounds(const struct tierce__param *param, FILE *out)
{
    char low[32], high[32];
    if (param->type == TIERCE__PARAM_CHOICE) {
        for (const char *at = param->choices; *at != '\0';) {
            size_t n = strcspn(at, "|");
            fprintf(out, "%s`%.*s`", at == param->choices ? "" : ", ", (int)n, at);
            at += n + (at[n] == '|');
        }
    } else if (tierce__config_is_bounded(param)) {
        tierce__config_format_number(low, sizeof(low), param->type,
                                     tierce__config_bound(param, param->min));
        tierce__config_format_number(high, sizeof(high), param->type,
                                     tierce__config_bound(param, param->max));
        fprintf(out, "%s .. %s", low, high);
    }
}

void tierce__config_print_markdown(const struct tierce__param *table, size_t count, FILE *out)
{
    fprintf(out, "| name | type | default | bounds | what it is |\n|---|---|---|---|---|\n");
    for (size_t row = 0; row < count; row++) {
        const struct tierce__param *param = &table[row];
        fprintf(out, "| `%s` | %s | %s%s%s | ", param->name, type_name(param->type),
                *param->fallback != '\0' ? "`" : "", param->fallback,
                *param->fallback != '\0' ? "`" : "");
        print_bounds(param, out);
        fprintf(out, " | ");
        for (const char *p = param->text; *p != '\0'; p++)
            fprintf(out, *p == '|' ? "\\%c" : "%c", *p);
        fprintf(out, " |\n");
    }
}
