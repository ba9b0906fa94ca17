/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "cli/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COLUMNS_MAX = 24, WIDTH_MAX = 48 };

/* The columns of a table: of the list's view, or the fields of its objects. */
struct table {
    const struct tierce__admin_column *columns; /* of a view; NULL: none */
    char names[COLUMNS_MAX][TIERCE__JSON_NAME_MAX + 1];
    int widths[COLUMNS_MAX];
    bool is_used[COLUMNS_MAX]; /* a row has a value */
    int count;
};

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_list(struct tierce__text value)
{
    return value.length > 0 && tierce__json_value_kind(value) == '[';
}

/* A value for a cell or a line; nested values as short JSON, and lists of lists, which may be long,
 * by their length. */
static void put_value(struct tierce__line *line, struct tierce__text value)
{
    char *text = NULL;
    struct tierce__json_write json = {.line = line};
    if (is_list(value) && is_list(tierce__json_get(value, "0")))
        tierce__line_put_format(line, "(%zu)", tierce__json_count(value));
    else if (tierce__json_copy_text(&text, value, "") == 0)
        tierce__line_put(line, text);
    else if (value.length > 0 && tierce__json_value_kind(value) != 'n')
        tierce__json_write_value(&json, NULL, value);
    tierce__free(text);
}

/* A field of a row, by its name, which may hold points. */
static struct tierce__text find(struct tierce__text row, const char *name)
{
    return tierce__json_find(row, (struct tierce__text){.at = name, .length = strlen(name)});
}

static const char *cell(struct tierce__line *line, const struct table *table, int column,
                        struct tierce__text row)
{
    line->bytes = 0;
    if (table->columns != NULL)
        table->columns[column].put(line, row, table->columns[column].path);
    else
        put_value(line, find(row, table->names[column]));
    tierce__line_put_bytes(line, "", 1);
    return line->failed ? "" : line->text;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int width_of(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80; /* bytes that begin a character */
    return width;
}

static void print_cell(const char *text, int width, bool last)
{
    int missing = width - width_of(text);
    printf("%s", text);
    if (last)
        printf("\n");
    else
        printf("%*s", (missing > 0 ? missing : 0) + 2, "");
}

static void add_name(struct table *table, struct tierce__text name)
{
    for (int c = 0; c < table->count; c++) {
        if (strlen(table->names[c]) == name.length &&
            memcmp(table->names[c], name.at, name.length) == 0)
            return;
    }
    if (table->count < COLUMNS_MAX)
        snprintf(table->names[table->count++], sizeof(table->names[0]), "%.*s", (int)name.length,
                 name.at);
}

/* Objects of one list may have different fields: each field of any of them is a column. */
static void name_columns(struct table *table, struct tierce__text list)
{
    struct tierce__text name, value, row;
    struct tierce__json rows = tierce__json_each(list);
    for (; table->columns != NULL && table->columns[table->count].title != NULL; table->count++) {
        TIERCE_ASSERT(table->count < COLUMNS_MAX);
        snprintf(table->names[table->count], sizeof(table->names[0]), "%s",
                 table->columns[table->count].title);
    }
    while (table->columns == NULL && tierce__json_next(&rows, &name, &row)) {
        struct tierce__json fields = tierce__json_each(row);
        while (tierce__json_next(&fields, &name, &value))
            add_name(table, name);
    }
}

static void measure(struct table *table, struct tierce__line *line, struct tierce__text list)
{
    struct tierce__text name, row;
    struct tierce__json each = tierce__json_each(list);
    for (int c = 0; c < table->count; c++)
        table->widths[c] = width_of(table->names[c]);
    while (tierce__json_next(&each, &name, &row)) {
        for (int c = 0; c < table->count; c++) {
            int width = width_of(cell(line, table, c, row));
            table->is_used[c] |= width > 0;
            table->widths[c] = width > table->widths[c] ? width : table->widths[c];
            table->widths[c] = table->widths[c] < WIDTH_MAX ? table->widths[c] : WIDTH_MAX;
        }
    }
}

/* Objects as rows. Columns without any value are left out. */
static void print_table(struct tierce__line *line, const struct tierce__admin_column *columns,
                        struct tierce__text list)
{
    struct table table = {.columns = columns};
    struct tierce__text name, row;
    int last = 0;
    name_columns(&table, list);
    measure(&table, line, list);
    for (int c = 0; c < table.count; c++)
        last = table.is_used[c] ? c : last;
    for (int c = 0; c <= last; c++) {
        if (table.is_used[c] || c == last)
            print_cell(table.names[c], table.widths[c], c == last);
    }
    struct tierce__json each = tierce__json_each(list);
    while (tierce__json_next(&each, &name, &row)) {
        for (int c = 0; c <= last; c++) {
            if (table.is_used[c] || c == last)
                print_cell(cell(line, &table, c, row), table.widths[c], c == last);
        }
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void print_json(struct tierce__text value)
{
    struct tierce__json_write json = {.file = stdout, .layout = TIERCE__JSON_LINES};
    tierce__json_write_value(&json, NULL, value);
    TIERCE_ASSERT(json.depth == 0);
    printf("\n");
}

static bool ends_with(struct tierce__text name, const char *end)
{
    size_t length = strlen(end);
    return name.length >= length && memcmp(name.at + name.length - length, end, length) == 0;
}

/* Microseconds of the wall clock are printed as a time; 0 and counts as they are. */
static void print_line(struct tierce__line *line, struct tierce__text name,
                       struct tierce__text value)
{
    static const int64_t year_2000_us = 946684800000000;
    char digits[32], shown[64];
    struct tm parts;
    bool may_be_time = ends_with(name, "_us") || ends_with(name, "_time");
    int64_t us = may_be_time ? tierce__json_get_int(value, "", 0) : 0;
    if (may_be_time && tierce__json_get_text(digits, sizeof(digits), value, ""))
        us = strtoll(digits, NULL, 10);
    time_t seconds = (time_t)(us / 1000000);
    if (us > year_2000_us && gmtime_r(&seconds, &parts) != NULL &&
        strftime(shown, sizeof(shown), "%Y-%m-%dT%H:%M:%SZ", &parts) > 0) {
        printf("%.*s: %s\n", (int)name.length, name.at, shown);
        return;
    }
    line->bytes = 0;
    put_value(line, value);
    tierce__line_put_bytes(line, "", 1);
    const char *text = line->failed ? "" : line->text;
    if (ends_with(name, "left_locations") && strcmp(text, "-1") == 0)
        text = "not counted yet";
    if (text[0] != '\0')
        printf("%.*s: %s\n", (int)name.length, name.at, text);
}

static bool has_state(struct tierce__text reply, const char *state)
{
    char text[32];
    return tierce__json_get_text(text, sizeof(text), reply, "state") && strcmp(text, state) == 0;
}

void tierce__admin_print(const struct tierce__admin_target *target, const char *rpc,
                         struct tierce__text reply)
{
    struct tierce__line line = {0};
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(reply);
    if (target->raw) {
        print_json(reply);
        return;
    }
    if (strcmp(rpc, "scrubStorage") == 0 && has_state(reply, "none")) {
        printf("no scrub since this manager began to lead; tierce storage scrub NAME start begins "
               "one\n");
        return;
    }
    if (strcmp(rpc, "drainStorage") == 0 && has_state(reply, ""))
        printf("state: not drained\n");
    while (tierce__json_next(&each, &name, &value)) {
        char kind = tierce__json_value_kind(value);
        if (name.length == 6 && memcmp(name.at, "header", 6) == 0)
            continue;
        if (tierce__json_value_kind(tierce__json_get(value, "0")) == '{' && kind == '[') {
            print_table(&line, tierce__admin_view(rpc), value);
            continue;
        }
        if (kind == '[' && tierce__json_count(value) == 0) {
            printf("%.*s: none\n", (int)name.length, name.at);
        } else if (kind == '{' || kind == '[') {
            printf("%.*s: ", (int)name.length, name.at);
            print_json(value);
        } else {
            print_line(&line, name, value);
        }
    }
    tierce__line_clear(&line);
}
