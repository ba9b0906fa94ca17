/* SPDX-License-Identifier: Apache-2.0 */
#include "router/router_body.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/json/json_write.h"
#include "base/text/utf8.h"
#include "proto/msgpack/msgpack.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define NUMBERS_STEP 1024u /* of JSON, that are read at a time */
#define TEXT_BYTES   512u  /* more than any field accepts */
/* A text of TEXT_BYTES has at most six bytes of JSON for each of its own. */
#define VALUE_BYTES_MAX (6u * TEXT_BYTES)
#define REST_BYTES_MAX  (1u << 20)

bool tierce__router_body_is_msgpack(const char *type)
{
    size_t length = strlen(TIERCE__ROUTER_MSGPACK);
    if (type == NULL || strncasecmp(type, TIERCE__ROUTER_MSGPACK, length) != 0)
        return false;
    return type[length] == '\0' || type[length] == ';' || type[length] == ' ';
}

static struct tierce__text *array_of(struct tierce__router_body *body, struct tierce__text name)
{
    static const char *const names[TIERCE__ROUTER_ARRAYS] = {"token_ids", "block_hashes",
                                                             "seq_hashes"};
    for (unsigned i = 0; i < TIERCE__ROUTER_ARRAYS; i++) {
        if (strlen(names[i]) == name.length && memcmp(names[i], name.at, name.length) == 0)
            return &body->arrays[i];
    }
    return NULL;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_empty(struct tierce__json_write *rest, const char *name, char open, char close)
{
    tierce__json_write_open(rest, name, open);
    tierce__json_write_close(rest, close);
}

static void split_json(struct tierce__router_body *body, struct tierce__json_write *rest)
{
    struct tierce__json each = tierce__json_each(body->whole.value);
    struct tierce__text name, value;
    while (tierce__json_next(&each, &name, &value)) {
        char text[TIERCE__JSON_NAME_MAX + 1];
        struct tierce__text *array = array_of(body, name);
        if (array != NULL)
            *array = value;
        if (array != NULL || name.length > TIERCE__JSON_NAME_MAX)
            continue;
        snprintf(text, sizeof(text), "%.*s", (int)name.length, name.at);
        if (value.length <= VALUE_BYTES_MAX)
            tierce__json_write_value(rest, text, value);
        else
            put_empty(rest, text, '[', ']'); /* no field accepts it */
    }
}

static int read_json(struct tierce__router_body *body, struct tierce__json_write *rest,
                     const void *bytes, size_t count, const char **why)
{
    int rc = tierce__json_parse(&body->whole, bytes, count, why);
    if (rc == 0 && tierce__json_value_kind(body->whole.value) != '{')
        rc = TIERCE_E_FORMAT;
    if (rc == 0)
        split_json(body, rest);
    return rc;
}

static int64_t json_numbers(uint64_t **out, struct tierce__text array, uint64_t count_max,
                            uint64_t number_max)
{
    size_t count = 0, room = 0;
    uint64_t *numbers = NULL;
    int64_t rc = tierce__json_value_kind(array) == '[' ? 0 : -EINVAL;
    struct tierce__json each = tierce__json_each(array);
    while (rc == 0 && tierce__json_element(&each)) {
        size_t before = count;
        if (count >= count_max)
            rc = TIERCE_E_LIMIT;
        else if (TIERCE__GROW(numbers, room, count + NUMBERS_STEP, NUMBERS_STEP) < 0)
            rc = -ENOMEM;
        else
            count += tierce__json_ids(&each, numbers + count, NUMBERS_STEP);
        if (rc == 0 && count == before)
            rc = -EINVAL;
        for (size_t i = before; rc == 0 && i < count; i++)
            rc = numbers[i] <= number_max ? 0 : -EINVAL;
    }
    if (rc == 0 && count > count_max)
        rc = TIERCE_E_LIMIT;
    if (rc < 0 || count == 0) {
        tierce__free(numbers);
        return rc < 0 ? rc : -EINVAL;
    }
    *out = numbers;
    return (int64_t)count;
}

/* ---- MessagePack ----------------------------------------------------------------------------- */

/* The next item; everything in it is skipped. The body was checked as a whole. */
static struct tierce__msgpack_item take_whole(struct tierce__msgpack *from)
{
    struct tierce__msgpack start = *from;
    struct tierce__msgpack_item item = {.type = TIERCE__MSGPACK_NIL};
    (void)tierce__msgpack_skip(from);
    (void)tierce__msgpack_next(&start, &item);
    return item;
}

static bool is_short_text(const struct tierce__msgpack_item *item, size_t bytes_max)
{
    return item->type == TIERCE__MSGPACK_TEXT && item->count <= bytes_max &&
           memchr(item->bytes, '\0', item->count) == NULL &&
           tierce__is_utf8((const char *)item->bytes, item->count);
}

/* No field is a fraction, bytes, a list, a map or a long text. An empty list or map stands for such
 * a value, so that a field that has one is rejected, not missing. */
static void put_value(struct tierce__json_write *rest, const char *name,
                      const struct tierce__msgpack_item *item)
{
    char text[TEXT_BYTES];
    if (item->type == TIERCE__MSGPACK_NIL) {
        tierce__json_write_text(rest, name, NULL);
    } else if (item->type == TIERCE__MSGPACK_BOOL) {
        tierce__json_write_bool(rest, name, item->number != 0);
    } else if (item->type == TIERCE__MSGPACK_UINT) {
        tierce__json_write_count(rest, name, item->number);
    } else if (item->type == TIERCE__MSGPACK_INT) {
        tierce__json_write_signed(rest, name, (int64_t)item->number);
    } else if (is_short_text(item, TEXT_BYTES - 1)) {
        memcpy(text, item->bytes, item->count);
        text[item->count] = '\0';
        tierce__json_write_text(rest, name, text);
    } else if (item->type == TIERCE__MSGPACK_MAP) {
        put_empty(rest, name, '{', '}');
    } else {
        put_empty(rest, name, '[', ']');
    }
}

static void split_msgpack(struct tierce__router_body *body, struct tierce__json_write *rest,
                          struct tierce__msgpack *from)
{
    char text[TIERCE__JSON_NAME_MAX + 1];
    struct tierce__msgpack_item name = take_whole(from);
    const uint8_t *start = from->at;
    struct tierce__msgpack_item value = take_whole(from);
    if (!is_short_text(&name, TIERCE__JSON_NAME_MAX))
        return;
    struct tierce__text *array =
        array_of(body, (struct tierce__text){(const char *)name.bytes, name.count});
    if (array != NULL) {
        *array = (struct tierce__text){(const char *)start, (size_t)(from->at - start)};
        return;
    }
    memcpy(text, name.bytes, name.count);
    text[name.count] = '\0';
    put_value(rest, text, &value);
}

static int read_msgpack(struct tierce__router_body *body, struct tierce__json_write *rest,
                        const void *bytes, size_t count, const char **why)
{
    struct tierce__msgpack from = {bytes, (const uint8_t *)bytes + count}, end = from;
    struct tierce__msgpack_item map = {.type = TIERCE__MSGPACK_NIL};
    *why = "it ends too early, is damaged, or has bytes after its end";
    if (tierce__msgpack_skip(&end) != TIERCE__MSGPACK_OK || end.at != end.end)
        return TIERCE_E_FORMAT;
    (void)tierce__msgpack_next(&from, &map);
    *why = "a map is expected";
    if (map.type != TIERCE__MSGPACK_MAP)
        return TIERCE_E_FORMAT;
    for (uint32_t i = 0; i < map.count; i++)
        split_msgpack(body, rest, &from);
    return 0;
}

static int64_t msgpack_numbers(uint64_t **out, struct tierce__text array, uint64_t count_max,
                               bool is_tokens)
{
    struct tierce__msgpack from = {(const uint8_t *)array.at,
                                   (const uint8_t *)array.at + array.length};
    struct tierce__msgpack_item list = {.type = TIERCE__MSGPACK_NIL}, number;
    (void)tierce__msgpack_next(&from, &list);
    bool is_bytes = is_tokens && list.type == TIERCE__MSGPACK_BYTES && !list.is_extension &&
                    list.count % 4 == 0;
    size_t count = is_bytes ? list.count / 4 : list.count;
    if ((list.type != TIERCE__MSGPACK_ARRAY && !is_bytes) || count == 0)
        return -EINVAL;
    if (count > count_max)
        return TIERCE_E_LIMIT;
    uint64_t *numbers = tierce__alloc(count * sizeof(*numbers));
    if (numbers == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        if (is_bytes) {
            numbers[i] = tierce__load_le32(list.bytes + 4 * i);
            continue;
        }
        if (tierce__msgpack_next(&from, &number) != TIERCE__MSGPACK_OK ||
            number.type != TIERCE__MSGPACK_UINT || (is_tokens && number.number > UINT32_MAX)) {
            tierce__free(numbers);
            return -EINVAL;
        }
        numbers[i] = number.number;
    }
    *out = numbers;
    return (int64_t)count;
}

/* ---- both ------------------------------------------------------------------------------------ */

int tierce__router_body_read(struct tierce__router_body *out, const void *bytes, size_t count,
                             bool is_msgpack, const char **why)
{
    struct tierce__line line = {.bytes_max = REST_BYTES_MAX};
    struct tierce__json_write rest = {.line = &line};
    struct tierce__router_body body = {.is_msgpack = is_msgpack};
    *why = "an object is expected";
    tierce__json_write_open(&rest, NULL, '{');
    int rc = is_msgpack ? read_msgpack(&body, &rest, bytes, count, why)
                        : read_json(&body, &rest, bytes, count, why);
    tierce__json_write_close(&rest, '}');
    if (rc == 0 && line.is_full) {
        *why = "the fields other than token_ids, block_hashes and seq_hashes have more than 1 MiB";
        rc = TIERCE_E_LIMIT;
    }
    if (rc == 0)
        rc = line.failed ? -ENOMEM : tierce__json_parse(&body.rest, line.text, line.bytes, why);
    tierce__line_clear(&line);
    if (rc == 0)
        *out = body;
    else
        tierce__router_body_close(&body);
    return rc;
}

void tierce__router_body_close(struct tierce__router_body *body)
{
    tierce__json_doc_clear(&body->whole);
    tierce__json_doc_clear(&body->rest);
}

int64_t tierce__router_body_numbers(uint64_t **out, const struct tierce__router_body *body,
                                    enum tierce__router_array which, uint64_t count_max)
{
    bool is_tokens = which == TIERCE__ROUTER_TOKENS;
    struct tierce__text array = body->arrays[which];
    if (array.length == 0)
        return -EINVAL;
    return body->is_msgpack
               ? msgpack_numbers(out, array, count_max, is_tokens)
               : json_numbers(out, array, count_max, is_tokens ? UINT32_MAX : UINT64_MAX);
}
