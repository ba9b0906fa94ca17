/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "proxy/bodies.h"

#include <stdint.h>

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

static void check_prefill(struct tierce__text request)
{
    struct tierce__line line = {0};
    tierce__body_put_prefill(&line, request);
    struct tierce__json_doc made = read_line(&line);
    TIERCE_ASSERT(tierce__json_get_int(made.value, "max_tokens", 0) == 1);
    TIERCE_ASSERT(!tierce__json_get_bool(made.value, "stream"));
    TIERCE_ASSERT(tierce__json_get_bool(made.value, "kv_transfer_params.do_remote_decode"));
    tierce__json_doc_clear(&made);
}

static void check_decode(struct tierce__text request)
{
    static const char params[] = "{\"x\":[1,null]}";
    struct tierce__line line = {0};
    tierce__body_put_decode(&line, request, (struct tierce__text){params, sizeof(params) - 1});
    struct tierce__json_doc made = read_line(&line);
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(made.value);
    while (tierce__json_next(&each, &name, &value))
        TIERCE_ASSERT(tierce__json_find(request, name).length > 0 ||
                      (name.length == 18 && value.length == sizeof(params) - 1));
    TIERCE_ASSERT(tierce__body_params(made.value).length == sizeof(params) - 1);
    tierce__json_doc_clear(&made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__json_doc doc;
    struct tierce__line line = {0};
    if (size > 4096 || tierce__json_parse(&doc, (const char *)data, size, NULL) < 0)
        return 0;
    if (tierce__body_can_prefill(doc.value)) {
        check_prefill(doc.value);
        check_decode(doc.value);
    }
    if (tierce__json_value_kind(doc.value) == '{' && tierce__body_put_tokenize(&line, doc.value)) {
        struct tierce__json_doc made = read_line(&line);
        tierce__json_doc_clear(&made);
    }
    (void)tierce__body_params(doc.value);
    (void)tierce__body_tokens(doc.value);
    tierce__json_doc_clear(&doc);
    TIERCE_ASSERT(tierce__alloc_live() == 0);
    return 0;
}
