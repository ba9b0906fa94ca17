/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "proxy/bodies.h"

#include <stdint.h>
#include <string.h>

/* The bodies that a proxy makes of any request are objects again; each member of the request is
 * in them unchanged, unless it is one that the proxy sets. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tierce__json_doc read_line(struct tierce__line *line)
{
    struct tierce__json_doc doc = {0};
    TIERCE_ASSERT(!line->failed);
    TIERCE_ASSERT(tierce__json_parse(&doc, line->text, line->bytes, NULL) == 0);
    TIERCE_ASSERT(tierce__json_value_kind(doc.value) == '{');
    tierce__line_clear(line);
    return doc;
}

static bool is_own(struct tierce__text name, const char *const *own)
{
    for (; *own != NULL; own++)
        if (name.length == strlen(*own) && memcmp(name.at, *own, name.length) == 0)
            return true;
    return false;
}

static bool is_same(struct tierce__text a, struct tierce__text b)
{
    return a.length == b.length && memcmp(a.at, b.at, a.length) == 0;
}

/* The next byte that is no white space between tokens, or -1. */
static int next_byte(struct tierce__text *text, bool *in_string)
{
    while (text->length > 0) {
        unsigned char c = (unsigned char)*text->at++;
        text->length--;
        if (!*in_string && memchr(" \t\n\r", c, 4) != NULL)
            continue;
        if (c == '"')
            *in_string = !*in_string;
        if (c == '\\' && *in_string && text->length > 0 &&
            (*text->at == '"' || *text->at == '\\')) {
            /* an escaped one ends no string; both texts have it */
            c = (unsigned char)*text->at++ | 0x80u;
            text->length--;
        }
        return c;
    }
    return -1;
}

static bool is_same_value(struct tierce__text a, struct tierce__text b)
{
    bool in_a = false, in_b = false;
    for (;;) {
        int c = next_byte(&a, &in_a);
        if (c != next_byte(&b, &in_b))
            return false;
        if (c < 0)
            return true;
    }
}

/* The members come in their order, before those that the proxy sets. */
static void check_members(struct tierce__text request, struct tierce__text made,
                          const char *const *own)
{
    struct tierce__text name, value, made_name, made_value;
    struct tierce__json each = tierce__json_each(request), made_each = tierce__json_each(made);
    while (tierce__json_next(&each, &name, &value)) {
        if (is_own(name, own))
            continue;
        TIERCE_ASSERT(tierce__json_next(&made_each, &made_name, &made_value));
        TIERCE_ASSERT(is_same(name, made_name) && is_same_value(value, made_value));
    }
    while (tierce__json_next(&made_each, &made_name, &made_value))
        TIERCE_ASSERT(is_own(made_name, own));
}

static void check_prefill(const struct tierce__body *request,
                          const struct tierce__inbox_place *place)
{
    static const char *const own[] = {
        "stream",     "stream_options",        "max_tokens",         "max_completion_tokens",
        "min_tokens", "min_completion_tokens", "kv_transfer_params", NULL};
    struct tierce__line line = {0};
    tierce__body_put_prefill(&line, request, place);
    struct tierce__json_doc made = read_line(&line);
    TIERCE_ASSERT(tierce__json_get_int(made.value, "max_tokens", 0) == 1);
    TIERCE_ASSERT(!tierce__json_get_bool(made.value, "stream"));
    TIERCE_ASSERT(tierce__json_get_bool(made.value, "kv_transfer_params.do_remote_decode"));
    TIERCE_ASSERT(tierce__json_get_int(made.value, "kv_transfer_params.tierce.push.port", 0) ==
                  (place != NULL ? place->port : 0));
    TIERCE_ASSERT(tierce__json_get_bool(made.value, "kv_transfer_params.tierce.push.tls") ==
                  (place != NULL && place->uses_tls));
    check_members(request->doc.value, made.value, own);
    tierce__json_doc_clear(&made);
}

static void check_decode(const struct tierce__body *request)
{
    static const char *const own[] = {"kv_transfer_params", NULL};
    static const char params[] = "{\"x\":[1,null]}";
    struct tierce__line line = {0};
    tierce__body_put_decode(&line, request, (struct tierce__text){params, sizeof(params) - 1});
    struct tierce__json_doc made = read_line(&line);
    check_members(request->doc.value, made.value, own);
    TIERCE_ASSERT(tierce__body_params(made.value).length == sizeof(params) - 1);
    tierce__json_doc_clear(&made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__body body;
    struct tierce__line line = {0};
    if (size > 4096 || tierce__body_read(&body, (const char *)data, size, NULL) < 0)
        return 0;
    if (tierce__body_can_prefill(&body)) {
        check_prefill(&body, NULL);
        check_prefill(&body, &(struct tierce__inbox_place){
                                 .host = "10.0.0.1", .port = 7201, .ticket = "0123"});
        check_prefill(&body, &(struct tierce__inbox_place){
                                 .host = "a", .port = 1, .uses_tls = true, .ticket = "0"});
    }
    if (body.can_copy)
        check_decode(&body);
    if (body.is_object && tierce__body_put_tokenize(&line, &body)) {
        struct tierce__json_doc made = read_line(&line);
        tierce__json_doc_clear(&made);
    }
    (void)tierce__body_params(body.doc.value);
    (void)tierce__body_tokens(&body);
    tierce__body_clear(&body);
    TIERCE_ASSERT(tierce__alloc_live() == 0);
    return 0;
}
