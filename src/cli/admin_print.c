/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/admin.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS_MAX = 24, WIDTH_MAX = 48 };

static bool is_plain(struct json_object *value)
{
    return !json_object_is_type(value, json_type_object) &&
           !json_object_is_type(value, json_type_array);
}

/* A value in a cell; nested values as short JSON. */
static const char *cell(struct json_object *value)
{
    return value == NULL ? ""
           : json_object_is_type(value, json_type_string)
               ? json_object_get_string(value)
               : json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN |
                                                           JSON_C_TO_STRING_NOSLASHESCAPE);
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

/* Objects as rows; their fields, in the order of the first, as columns. */
static void print_table(struct json_object *list)
{
    const char *names[COLUMNS_MAX];
    int widths[COLUMNS_MAX];
    size_t columns = 0, rows = json_object_array_length(list);
    struct json_object *first = rows > 0 ? json_object_array_get_idx(list, 0) : NULL;
    json_object_object_foreach(first, name, unused)
    {
        (void)unused;
        if (columns < COLUMNS_MAX)
            names[columns++] = name;
    }
    for (size_t c = 0; c < columns; c++) {
        widths[c] = width_of(names[c]);
        for (size_t r = 0; r < rows; r++) {
            struct json_object *value = NULL;
            json_object_object_get_ex(json_object_array_get_idx(list, r), names[c], &value);
            int width = width_of(cell(value));
            widths[c] = width > widths[c] ? width : widths[c];
        }
        widths[c] = widths[c] < WIDTH_MAX ? widths[c] : WIDTH_MAX;
    }
    for (size_t c = 0; c < columns; c++)
        print_cell(names[c], widths[c], c + 1 == columns);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            struct json_object *value = NULL;
            json_object_object_get_ex(json_object_array_get_idx(list, r), names[c], &value);
            print_cell(cell(value), widths[c], c + 1 == columns);
        }
    }
}

static bool is_table(struct json_object *value)
{
    return json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0 &&
           json_object_is_type(json_object_array_get_idx(value, 0), json_type_object);
}

static void print_value(const char *name, struct json_object *value)
{
    if (is_table(value))
        print_table(value);
    else if (is_plain(value))
        printf("%s: %s\n", name, cell(value));
    else
        printf("%s: %s\n", name,
               json_object_to_json_string_ext(value, JSON_C_TO_STRING_PRETTY |
                                                         JSON_C_TO_STRING_NOSLASHESCAPE));
}

void tierce__admin_print(const struct tierce__admin_target *target, struct json_object *reply)
{
    if (target->raw) {
        puts(json_object_to_json_string_ext(reply, JSON_C_TO_STRING_PRETTY |
                                                       JSON_C_TO_STRING_NOSLASHESCAPE));
        return;
    }
    json_object_object_foreach(reply, name, value)
    {
        if (strcmp(name, "header") != 0)
            print_value(name, value);
    }
}
