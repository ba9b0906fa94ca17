/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "proto/resp/resp_parse.h"
#include "net/redis/resp_uri.h"

#include <string.h>

/*
 * Replies of RESP, whole and in pieces of the size in the first byte: the same values, or the same
 * error. The rest is also parsed as a URI.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BULK_BYTES_MAX 65536u

/* A sum over everything that can be reached. */
static uint64_t digest(const struct tierce__resp_value *value)
{
    uint64_t sum = (uint64_t)value->type * 31 + (uint64_t)value->integer * 7 + value->bytes;
    if (value->text != NULL) {
        TIERCE_ASSERT(value->text[value->bytes] == '\0');
        for (size_t i = 0; i < value->bytes; i++)
            sum = sum * 131 + (uint8_t)value->text[i];
    }
    for (size_t i = 0; i < value->count; i++)
        sum = sum * 65599 + digest(&value->items[i]);
    return sum;
}

/* The digest of all replies, and how it ended. */
static int run(struct tierce__resp_parser *parser, const char *text, size_t bytes, size_t step,
               uint64_t *sum)
{
    size_t at = 0, end = 0;
    tierce__resp_parser_reset(parser);
    for (;;) {
        struct tierce__resp_value value;
        size_t used;
        if (end < bytes)
            end = end + step < bytes ? end + step : bytes;
        int rc = tierce__resp_parser_feed(parser, text + at, end - at, &used, &value);
        TIERCE_ASSERT(used <= end - at);
        at += used;
        if (rc == 1)
            *sum = *sum * 1000003 + digest(&value);
        else if (rc < 0 || end == bytes)
            return rc;
    }
}

static void check_uri(const uint8_t *data, size_t size)
{
    char text[512], why[TIERCE__RESP_WHY_BYTES] = "";
    struct tierce__resp_uri uri = {0};
    size_t length = size < sizeof(text) ? size : sizeof(text) - 1;
    memcpy(text, data, length);
    text[length] = '\0';
    int rc = tierce__resp_uri_parse(&uri, text, why);
    TIERCE_ASSERT(rc == 0 ? uri.opts.host != NULL : why[0] != '\0');
    tierce__resp_uri_clear(&uri);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t live = tierce__alloc_live();
    if (size < 1)
        return 0;
    struct tierce__resp_parser *parser =
        tierce__resp_parser_create(BULK_BYTES_MAX, 2 * BULK_BYTES_MAX + (1u << 20));
    if (parser == NULL)
        return 0;
    const char *text = (const char *)data + 1;
    uint64_t whole = 0, pieces = 0;
    int whole_rc = run(parser, text, size - 1, size, &whole);
    int pieces_rc = run(parser, text, size - 1, data[0] % 16 + 1u, &pieces);
    TIERCE_ASSERT(whole_rc == pieces_rc && whole == pieces);
    tierce__resp_parser_destroy(parser);
    check_uri(data + 1, size - 1);
    TIERCE_ASSERT(tierce__alloc_live() == live);
    return 0;
}
