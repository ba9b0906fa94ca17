/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/bodies.h"

#include "base/assert.h"
#include "base/json/json_write.h"

#include <string.h>

#define PARAMS "kv_transfer_params"

static bool is_name(struct tierce__text name, const char *of)
{
    return name.length == strlen(of) && memcmp(name.at, of, name.length) == 0;
}

static bool is_one_of(struct tierce__text name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (is_name(name, *names))
            return true;
    return false;
}

/* The reader does not decode longer names. */
static bool can_copy(struct tierce__text name)
{
    return name.length <= TIERCE__JSON_NAME_MAX && memchr(name.at, '\0', name.length) == NULL;
}

static void put_member(struct tierce__json_write *json, struct tierce__text name,
                       struct tierce__text value)
{
    char text[TIERCE__JSON_NAME_MAX + 1];
    TIERCE_ASSERT(can_copy(name));
    memcpy(text, name.at, name.length);
    text[name.length] = '\0';
    tierce__json_write_value(json, text, value);
}

/* Copies the members of an object except the named ones. */
static void put_others(struct tierce__json_write *json, struct tierce__text object,
                       const char *const *without)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(object);
    while (tierce__json_next(&each, &name, &value))
        if (!is_one_of(name, without))
            put_member(json, name, value);
}

/* ---- prefill --------------------------------------------------------------------------------- */

/* Whether a number is absent, null or 1. */
static bool is_single(struct tierce__text request, const char *name)
{
    struct tierce__text value = tierce__json_get(request, name);
    return value.length == 0 || tierce__json_value_kind(value) == 'n' ||
           tierce__json_get_int(request, name, 0) == 1;
}

static bool is_prompt(struct tierce__text value)
{
    char kind = tierce__json_value_kind(value);
    if (kind == '"')
        return true;
    return kind == '[' && tierce__json_is_integer(tierce__json_get(value, "0"));
}

/* Whether the members of a request can be copied one by one. */
static bool can_copy_all(struct tierce__text request)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(request);
    bool can = true;
    while (can && tierce__json_next(&each, &name, &value))
        can = can_copy(name);
    return can;
}

bool tierce__body_can_prefill(struct tierce__text request)
{
    if (tierce__json_value_kind(request) != '{' || !can_copy_all(request))
        return false;
    struct tierce__text prompt = tierce__json_get(request, "prompt");
    struct tierce__text messages = tierce__json_get(request, "messages");
    bool has_prompt =
        prompt.length > 0 ? is_prompt(prompt) : tierce__json_value_kind(messages) == '[';
    return has_prompt && is_single(request, "n") && is_single(request, "best_of") &&
           !tierce__json_get_bool(request, "use_beam_search");
}

void tierce__body_put_prefill(struct tierce__line *line, struct tierce__text request)
{
    static const char *const own[] = {
        "stream",     "stream_options",        "max_tokens", "max_completion_tokens",
        "min_tokens", "min_completion_tokens", PARAMS,       NULL};
    struct tierce__json_write json = {.line = line};
    TIERCE_ASSERT(tierce__json_value_kind(request) == '{');
    tierce__json_write_open(&json, NULL, '{');
    put_others(&json, request, own);
    tierce__json_write_bool(&json, "stream", false);
    tierce__json_write_count(&json, "max_tokens", 1);
    if (tierce__json_get(request, "max_completion_tokens").length > 0)
        tierce__json_write_count(&json, "max_completion_tokens", 1);
    tierce__json_write_open(&json, PARAMS, '{');
    tierce__json_write_bool(&json, "do_remote_decode", true);
    tierce__json_write_bool(&json, "do_remote_prefill", false);
    tierce__json_write_text(&json, "remote_engine_id", NULL);
    tierce__json_write_text(&json, "remote_block_ids", NULL);
    tierce__json_write_text(&json, "remote_host", NULL);
    tierce__json_write_text(&json, "remote_port", NULL);
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
}

void tierce__body_put_decode(struct tierce__line *line, struct tierce__text request,
                             struct tierce__text params)
{
    static const char *const own[] = {PARAMS, NULL};
    struct tierce__json_write json = {.line = line};
    TIERCE_ASSERT(tierce__json_value_kind(request) == '{');
    tierce__json_write_open(&json, NULL, '{');
    put_others(&json, request, own);
    if (params.length > 0)
        tierce__json_write_value(&json, PARAMS, params);
    tierce__json_write_close(&json, '}');
}

bool tierce__body_has_params(struct tierce__text request)
{
    return tierce__json_get(request, PARAMS).length > 0;
}

struct tierce__text tierce__body_params(struct tierce__text answer)
{
    struct tierce__text params = tierce__json_get(answer, PARAMS);
    bool is_there = tierce__json_value_kind(params) == '{' && tierce__json_count(params) > 0;
    return is_there ? params : (struct tierce__text){0};
}

/* ---- tokens ---------------------------------------------------------------------------------- */

struct tierce__text tierce__body_tokens(struct tierce__text request)
{
    struct tierce__text prompt = tierce__json_get(request, "prompt");
    bool is_tokens = tierce__json_value_kind(prompt) == '[' &&
                     tierce__json_is_integer(tierce__json_get(prompt, "0"));
    return is_tokens ? prompt : (struct tierce__text){0};
}

static void put_members(struct tierce__json_write *json, struct tierce__text request,
                        const char *const *names)
{
    for (; *names != NULL; names++) {
        struct tierce__text value = tierce__json_get(request, *names);
        if (value.length > 0)
            tierce__json_write_value(json, *names, value);
    }
}

bool tierce__body_put_tokenize(struct tierce__line *line, struct tierce__text request)
{
    static const char *const of_text[] = {"model", "prompt", "add_special_tokens", NULL};
    static const char *const of_chat[] = {"model",
                                          "messages",
                                          "tools",
                                          "chat_template",
                                          "chat_template_kwargs",
                                          "add_generation_prompt",
                                          "continue_final_message",
                                          "add_special_tokens",
                                          "media_io_kwargs",
                                          "mm_processor_kwargs",
                                          NULL};
    bool is_text = tierce__json_value_kind(tierce__json_get(request, "prompt")) == '"';
    if (!is_text && tierce__json_value_kind(tierce__json_get(request, "messages")) != '[')
        return false;
    struct tierce__json_write json = {.line = line};
    tierce__json_write_open(&json, NULL, '{');
    put_members(&json, request, is_text ? of_text : of_chat);
    tierce__json_write_close(&json, '}');
    return true;
}

void tierce__body_put_query(struct tierce__line *line, struct tierce__text request,
                            struct tierce__text tokens)
{
    struct tierce__json_write json = {.line = line};
    struct tierce__text model = tierce__json_get(request, "model");
    tierce__json_write_open(&json, NULL, '{');
    if (tierce__json_value_kind(model) == '"') {
        tierce__json_write_value(&json, "model", model);
        tierce__json_write_value(&json, "model_name", model); /* Dynamo's name of it */
    }
    tierce__json_write_value(&json, "token_ids", tokens);
    tierce__json_write_close(&json, '}');
}

/* ---- errors ---------------------------------------------------------------------------------- */

void tierce__body_put_error(struct tierce__line *line, unsigned status, const char *why)
{
    struct tierce__json_write json = {.line = line};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_open(&json, "error", '{');
    tierce__json_write_text(&json, "message", why);
    tierce__json_write_text(&json, "type",
                            status == 401   ? "authentication_error"
                            : status < 500  ? "invalid_request_error"
                            : status == 503 ? "overloaded_error"
                                            : "upstream_error");
    tierce__json_write_text(&json, "param", NULL);
    tierce__json_write_count(&json, "code", status);
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
}
