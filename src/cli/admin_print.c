/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "cli/admin.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS_MAX = 24, WIDTH_MAX = 48 };

static bool is_list(struct tierce__text value)
{
    return value.length > 0 && tierce__json_value_kind(value) == '[';
}

static void put_length(struct tierce__line *line, struct tierce__text list)
{
    char text[32];
    unsigned count = 0;
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(list);
    while (tierce__json_next(&each, &name, &value))
        count++;
    snprintf(text, sizeof(text), "(%u)", count);
    tierce__line_put(line, text);
}

/* A value in a cell, in `line`; nested values as short JSON, and lists of lists, which may be long,
 * by their length. */
static const char *cell(struct tierce__line *line, struct tierce__text value)
{
    char *text = NULL;
    struct tierce__json_write json = {.line = line};
    line->bytes = 0;
    if (is_list(value) && is_list(tierce__json_get(value, "0")))
        put_length(line, value);
    else if (tierce__json_copy_text(&text, value, "") == 0)
        tierce__line_put(line, text);
    else if (value.length > 0 && tierce__json_value_kind(value) != 'n')
        tierce__json_write_value(&json, NULL, value);
    tierce__line_put_bytes(line, "", 1);
    tierce__free(text);
    return line->failed ? "" : line->text;
}

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

/* A field of a row, by its name, which may hold points. */
static struct tierce__text find(struct tierce__text row, const char *name)
{
    return tierce__json_find(row, (struct tierce__text){.at = name, .length = strlen(name)});
}

/* Objects as rows; their fields, in the order of the first, as columns. */
static void print_table(struct tierce__line *line, struct tierce__text list)
{
    char names[COLUMNS_MAX][TIERCE__JSON_NAME_MAX + 1];
    int widths[COLUMNS_MAX];
    int columns = 0;
    struct tierce__text name, value, row;
    struct tierce__json each = tierce__json_each(tierce__json_get(list, "0"));
    while (columns < COLUMNS_MAX && tierce__json_next(&each, &name, &value)) {
        snprintf(names[columns], sizeof(names[0]), "%.*s", (int)name.length, name.at);
        widths[columns] = width_of(names[columns]);
        columns++;
    }
    TIERCE_ASSERT(columns <= COLUMNS_MAX);
    each = tierce__json_each(list);
    while (tierce__json_next(&each, &name, &row)) {
        for (int c = 0; c < columns; c++) {
            int width = width_of(cell(line, find(row, names[c])));
            widths[c] = width > widths[c] ? width : widths[c];
            widths[c] = widths[c] < WIDTH_MAX ? widths[c] : WIDTH_MAX;
        }
    }
    for (int c = 0; c < columns; c++)
        print_cell(names[c], widths[c], c + 1 == columns);
    each = tierce__json_each(list);
    while (tierce__json_next(&each, &name, &row)) {
        for (int c = 0; c < columns; c++)
            print_cell(cell(line, find(row, names[c])), widths[c], c + 1 == columns);
    }
}

static void print_json(struct tierce__text value)
{
    struct tierce__json_write json = {.file = stdout, .layout = TIERCE__JSON_LINES};
    tierce__json_write_value(&json, NULL, value);
    TIERCE_ASSERT(json.depth == 0);
    printf("\n");
}

void tierce__admin_print(const struct tierce__admin_target *target, struct tierce__text reply)
{
    struct tierce__line line = {0};
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(reply);
    if (target->raw) {
        print_json(reply);
        return;
    }
    while (tierce__json_next(&each, &name, &value)) {
        char kind = tierce__json_value_kind(value);
        if (name.length == 6 && memcmp(name.at, "header", 6) == 0)
            continue;
        if (tierce__json_value_kind(tierce__json_get(value, "0")) == '{' && kind == '[') {
            print_table(&line, value);
            continue;
        }
        printf("%.*s: ", (int)name.length, name.at);
        if (kind == '{' || kind == '[')
            print_json(value);
        else
            printf("%s\n", cell(&line, value));
    }
    tierce__line_clear(&line);
}
