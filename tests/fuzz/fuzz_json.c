/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "json_oracle.h"

#include <stdint.h>

/* json-c accepts every text that the pull reader accepts, with the same values. A value that is
 * looked up begins and ends as its kind does, and a value that is written again, in any layout, is
 * the same when it is read. */

static struct tierce__json_doc parse(const char *text, size_t bytes)
{
    struct tierce__json_doc doc = {0};
    int rc = tierce__json_parse(&doc, text, bytes, NULL);
    TIERCE_ASSERT(rc == 0);
    return doc;
}

static void walk(struct tierce__text value)
{
    struct tierce__text name, item;
    struct tierce__json each = tierce__json_each(value);
    size_t count = 0;
    for (; tierce__json_next(&each, &name, &item); count++) {
        TIERCE_ASSERT(item.length > 0 && item.at > value.at);
        TIERCE_ASSERT(item.at + item.length < value.at + value.length);
        TIERCE_ASSERT(*value.at == '[' || tierce__json_find(value, name).length > 0);
        walk(item);
    }
    TIERCE_ASSERT(count == tierce__json_count(value));
}

static struct tierce__line write_as(struct tierce__text value, enum tierce__json_layout layout)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line, .layout = layout};
    tierce__json_write_value(&json, NULL, value);
    TIERCE_ASSERT(!line.failed && json.depth == 0);
    return line;
}

static void write_again(struct tierce__text value)
{
    struct tierce__line wanted = write_as(value, TIERCE__JSON_COMPACT);
    for (int layout = 0; layout <= TIERCE__JSON_SPACED; layout++) {
        struct tierce__line line = write_as(value, (enum tierce__json_layout)layout);
        struct tierce__json_doc doc = parse(line.text, line.bytes);
        struct tierce__line again = write_as(doc.value, TIERCE__JSON_COMPACT);
        TIERCE_ASSERT(again.bytes == wanted.bytes);
        TIERCE_ASSERT(memcmp(again.text, wanted.text, wanted.bytes) == 0);
        tierce__line_clear(&again);
        tierce__line_clear(&line);
        tierce__json_doc_clear(&doc);
    }
    tierce__line_clear(&wanted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[2048 + TIERCE__JSON_SLACK];
    if (size > 2048)
        return 0;
    memcpy(text, data, size);
    memset(text + size, '\n', TIERCE__JSON_SLACK);
    uint64_t live = tierce__alloc_live();
    struct tierce__json_doc doc = {0};
    bool is_json = oracle_accepts(text, size);
    if (is_json)
        TIERCE_ASSERT(oracle_agrees(text, size));
    /* The document accepts NaN and Infinity too. */
    if (tierce__json_parse(&doc, text, size, NULL) == 0) {
        walk(doc.value);
        write_again(doc.value);
        tierce__json_doc_clear(&doc);
    } else {
        TIERCE_ASSERT(!is_json);
    }
    TIERCE_ASSERT(tierce__alloc_live() == live);
    return 0;
}
