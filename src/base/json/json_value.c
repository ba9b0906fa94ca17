/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json/json_value.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct tierce__text none = {"", 0};

/* Takes the next value; empty after a mistake. */
static struct tierce__text take_value(struct tierce__json *json)
{
    (void)tierce__json_kind(json); /* skips white space */
    const char *at = json->at;
    return tierce__json_skip(json) ? (struct tierce__text){at, (size_t)(json->at - at)} : none;
}

int tierce__json_parse(struct tierce__json_doc *out, const char *text, size_t bytes,
                       const char **why)
{
    struct tierce__json json;
    char *copy = tierce__alloc(bytes + TIERCE__JSON_SLACK);
    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, text, bytes);
    memset(copy + bytes, '\n', TIERCE__JSON_SLACK);
    tierce__json_start(&json, copy, bytes);
    json.takes_nan = true;
    struct tierce__text value = take_value(&json);
    if (tierce__json_end(&json)) {
        TIERCE_DASSERT(value.length > 0);
        TIERCE_DASSERT(value.at + value.length <= copy + bytes);
        *out = (struct tierce__json_doc){copy, value};
        return 0;
    }
    if (why != NULL)
        *why = json.why;
    tierce__free(copy);
    return TIERCE_E_FORMAT;
}

void tierce__json_doc_clear(struct tierce__json_doc *doc)
{
    tierce__free(doc->copy);
    *doc = (struct tierce__json_doc){0};
}

static struct tierce__json read_again(struct tierce__text value)
{
    struct tierce__json json;
    tierce__json_start(&json, value.length > 0 ? value.at : "", value.length);
    json.takes_nan = true;
    return json;
}

char tierce__json_value_kind(struct tierce__text value)
{
    struct tierce__json json = read_again(value);
    char kind = tierce__json_kind(&json);
    return kind == 0 && value.length > 0 ? '0' : kind; /* NaN and Infinity */
}

struct tierce__json tierce__json_each(struct tierce__text value)
{
    struct tierce__json json = read_again(value);
    char kind = tierce__json_kind(&json);
    if (kind == '{')
        (void)tierce__json_object(&json);
    else if (kind == '[')
        (void)tierce__json_array(&json);
    TIERCE_DASSERT(json.depth <= 1);
    return json;
}

bool tierce__json_next(struct tierce__json *each, struct tierce__text *name,
                       struct tierce__text *value)
{
    *name = none;
    /* The depth falls to 0 at the closing bracket. */
    bool found = each->depth == 1 && (*each->start == '{' ? tierce__json_member(each, name)
                                                          : tierce__json_element(each));
    if (found)
        *value = take_value(each);
    TIERCE_DASSERT(each->why == NULL); /* the whole text was checked */
    TIERCE_DASSERT(each->at <= each->end);
    return found;
}

size_t tierce__json_count(struct tierce__text value)
{
    size_t count = 0;
    struct tierce__text name, item;
    struct tierce__json each = tierce__json_each(value);
    while (tierce__json_next(&each, &name, &item))
        count++;
    return count;
}

bool tierce__json_is_integer(struct tierce__text value)
{
    size_t i = 0;
    while (i < value.length && (value.at[i] == '-' || (value.at[i] >= '0' && value.at[i] <= '9')))
        i++;
    return i > 0 && i == value.length;
}

struct tierce__text tierce__json_find(struct tierce__text object, struct tierce__text name)
{
    struct tierce__text found = none, key, value;
    struct tierce__json each = tierce__json_each(object);
    while (tierce__json_next(&each, &key, &value)) {
        if (*object.at == '{' && key.length == name.length &&
            memcmp(key.at, name.at, name.length) == 0)
            found = value;
    }
    return found;
}

static struct tierce__text find_index(struct tierce__text array, size_t index)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(array);
    while (tierce__json_next(&each, &name, &value)) {
        if (index-- == 0)
            return value;
    }
    return none;
}

struct tierce__text tierce__json_get(struct tierce__text value, const char *path)
{
    while (*path != '\0') {
        size_t n = strcspn(path, ".");
        TIERCE_DASSERT(n > 0);
        if (tierce__json_value_kind(value) == '[')
            value = find_index(value, strtoul(path, NULL, 10));
        else
            value = tierce__json_find(value, (struct tierce__text){path, n});
        path += n + (path[n] == '.');
    }
    return value;
}

int64_t tierce__json_get_int(struct tierce__text value, const char *path, int64_t fallback)
{
    int64_t number;
    struct tierce__json json = read_again(tierce__json_get(value, path));
    return tierce__json_i64(&json, &number) ? number : fallback;
}

double tierce__json_get_number(struct tierce__text value, const char *path)
{
    value = tierce__json_get(value, path);
    return tierce__json_value_kind(value) == '0' ? strtod(value.at, NULL) : NAN;
}

bool tierce__json_get_bool(struct tierce__text value, const char *path)
{
    return tierce__json_value_kind(tierce__json_get(value, path)) == 't';
}

bool tierce__json_get_text(char *out, size_t size, struct tierce__text value, const char *path)
{
    size_t length;
    struct tierce__json json = read_again(tierce__json_get(value, path));
    TIERCE_DASSERT(size > 0);
    if (tierce__json_kind(&json) == '"' && tierce__json_text(&json, out, size, &length))
        return true;
    out[0] = '\0';
    return false;
}

int tierce__json_copy_text(char **out, struct tierce__text value, const char *path)
{
    value = tierce__json_get(value, path);
    if (tierce__json_value_kind(value) != '"')
        return TIERCE_E_FORMAT;
    TIERCE_DASSERT(value.length >= 2); /* the quotes make room for the NUL */
    char *text = tierce__alloc(value.length);
    if (text == NULL)
        return -ENOMEM;
    if (!tierce__json_get_text(text, value.length, value, "")) {
        tierce__free(text);
        return TIERCE_E_FORMAT;
    }
    *out = text;
    return 0;
}
