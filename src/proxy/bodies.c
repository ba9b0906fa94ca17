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

/* ---- reading --------------------------------------------------------------------------------- */

static const char *const member_names[TIERCE__BODY_MEMBERS] = {
    [TIERCE__BODY_MODEL] = "model",
    [TIERCE__BODY_PROMPT] = "prompt",
    [TIERCE__BODY_MESSAGES] = "messages",
    [TIERCE__BODY_N] = "n",
    [TIERCE__BODY_BEST_OF] = "best_of",
    [TIERCE__BODY_BEAM] = "use_beam_search",
    [TIERCE__BODY_MAX_COMPLETION] = "max_completion_tokens",
    [TIERCE__BODY_PARAMS] = PARAMS,
    [TIERCE__BODY_TOOLS] = "tools",
    [TIERCE__BODY_TEMPLATE] = "chat_template",
    [TIERCE__BODY_TEMPLATE_KWARGS] = "chat_template_kwargs",
    [TIERCE__BODY_GENERATION_PROMPT] = "add_generation_prompt",
    [TIERCE__BODY_FINAL_MESSAGE] = "continue_final_message",
    [TIERCE__BODY_SPECIAL_TOKENS] = "add_special_tokens",
    [TIERCE__BODY_MEDIA_KWARGS] = "media_io_kwargs",
    [TIERCE__BODY_PROCESSOR_KWARGS] = "mm_processor_kwargs",
};

/* The reader does not decode longer names. */
static bool can_copy(struct tierce__text name)
{
    return name.length <= TIERCE__JSON_NAME_MAX && memchr(name.at, '\0', name.length) == NULL;
}

static void note_member(struct tierce__body *body, struct tierce__text name,
                        struct tierce__text value)
{
    body->can_copy = body->can_copy && can_copy(name);
    for (unsigned i = 0; i < TIERCE__BODY_MEMBERS; i++)
        if (is_name(name, member_names[i]))
            body->members[i] = value; /* of several, the last one counts */
}

int tierce__body_read(struct tierce__body *out, const char *text, size_t bytes, const char **why)
{
    struct tierce__body body = {0};
    struct tierce__text name, value;
    int rc = tierce__json_parse(&body.doc, text, bytes, why);
    if (rc != 0)
        return rc;
    body.is_object = body.can_copy = tierce__json_value_kind(body.doc.value) == '{';
    struct tierce__json each = tierce__json_each(body.doc.value);
    while (body.is_object && tierce__json_next(&each, &name, &value))
        note_member(&body, name, value);
    *out = body;
    return 0;
}

void tierce__body_clear(struct tierce__body *body)
{
    tierce__json_doc_clear(&body->doc);
    *body = (struct tierce__body){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

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
static bool is_single(struct tierce__text value)
{
    return value.length == 0 || tierce__json_value_kind(value) == 'n' ||
           tierce__json_get_int(value, "", 0) == 1;
}

/* The first element of an array, or the empty value. */
static struct tierce__text first_of(struct tierce__text array)
{
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(array);
    bool has_one = tierce__json_value_kind(array) == '[' && tierce__json_next(&each, &name, &value);
    return has_one ? value : (struct tierce__text){0};
}

static bool is_tokens(struct tierce__text prompt)
{
    return tierce__json_is_integer(first_of(prompt));
}

bool tierce__body_can_prefill(const struct tierce__body *request)
{
    const struct tierce__text *members = request->members;
    struct tierce__text prompt = members[TIERCE__BODY_PROMPT];
    bool has_prompt = prompt.length > 0
                          ? tierce__json_value_kind(prompt) == '"' || is_tokens(prompt)
                          : tierce__json_value_kind(members[TIERCE__BODY_MESSAGES]) == '[';
    return request->can_copy && has_prompt && is_single(members[TIERCE__BODY_N]) &&
           is_single(members[TIERCE__BODY_BEST_OF]) &&
           !tierce__json_get_bool(members[TIERCE__BODY_BEAM], "");
}

static void put_place(struct tierce__json_write *json, const struct tierce__inbox_place *place)
{
    tierce__json_write_open(json, "tierce", '{');
    tierce__json_write_open(json, "push", '{');
    tierce__json_write_text(json, "host", place->host);
    tierce__json_write_count(json, "port", place->port);
    tierce__json_write_text(json, "ticket", place->ticket);
    if (place->uses_tls)
        tierce__json_write_bool(json, "tls", true);
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
}

void tierce__body_put_inbox(struct tierce__line *line, const struct tierce__body *request,
                            const char *holder)
{
    struct tierce__json_write json = {.line = line};
    struct tierce__text model = request->members[TIERCE__BODY_MODEL];
    tierce__json_write_open(&json, NULL, '{');
    if (tierce__json_value_kind(model) == '"')
        tierce__json_write_value(&json, "model", model);
    tierce__json_write_open(&json, "prompt", '[');
    tierce__json_write_count(&json, NULL, 0);
    tierce__json_write_close(&json, ']');
    tierce__json_write_count(&json, "max_tokens", 1);
    tierce__json_write_open(&json, PARAMS, '{');
    tierce__json_write_open(&json, "tierce", '{');
    tierce__json_write_count(&json, "inbox", TIERCE__INBOX_TICKETS);
    tierce__json_write_text(&json, "holder", holder);
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
}

void tierce__body_put_prefill(struct tierce__line *line, const struct tierce__body *request,
                              const struct tierce__inbox_place *place)
{
    static const char *const own[] = {
        "stream",     "stream_options",        "max_tokens", "max_completion_tokens",
        "min_tokens", "min_completion_tokens", PARAMS,       NULL};
    struct tierce__json_write json = {.line = line};
    TIERCE_ASSERT(request->can_copy);
    tierce__json_write_open(&json, NULL, '{');
    put_others(&json, request->doc.value, own);
    tierce__json_write_bool(&json, "stream", false);
    tierce__json_write_count(&json, "max_tokens", 1);
    if (request->members[TIERCE__BODY_MAX_COMPLETION].length > 0)
        tierce__json_write_count(&json, "max_completion_tokens", 1);
    tierce__json_write_open(&json, PARAMS, '{');
    tierce__json_write_bool(&json, "do_remote_decode", true);
    tierce__json_write_bool(&json, "do_remote_prefill", false);
    tierce__json_write_text(&json, "remote_engine_id", NULL);
    tierce__json_write_text(&json, "remote_block_ids", NULL);
    tierce__json_write_text(&json, "remote_host", NULL);
    tierce__json_write_text(&json, "remote_port", NULL);
    if (place != NULL)
        put_place(&json, place);
    tierce__json_write_close(&json, '}');
    tierce__json_write_close(&json, '}');
}

void tierce__body_put_decode(struct tierce__line *line, const struct tierce__body *request,
                             struct tierce__text params)
{
    static const char *const own[] = {PARAMS, NULL};
    struct tierce__json_write json = {.line = line};
    TIERCE_ASSERT(request->can_copy);
    tierce__json_write_open(&json, NULL, '{');
    put_others(&json, request->doc.value, own);
    if (params.length > 0)
        tierce__json_write_value(&json, PARAMS, params);
    tierce__json_write_close(&json, '}');
}

struct tierce__text tierce__body_params(struct tierce__text answer)
{
    struct tierce__text params = tierce__json_get(answer, PARAMS);
    bool is_there = tierce__json_value_kind(params) == '{' && tierce__json_count(params) > 0;
    return is_there ? params : (struct tierce__text){0};
}

/* ---- tokens ---------------------------------------------------------------------------------- */

struct tierce__text tierce__body_tokens(const struct tierce__body *request)
{
    struct tierce__text prompt = request->members[TIERCE__BODY_PROMPT];
    return is_tokens(prompt) ? prompt : (struct tierce__text){0};
}

bool tierce__body_put_tokenize(struct tierce__line *line, const struct tierce__body *request)
{
    static const enum tierce__body_member
        of_text[] = {TIERCE__BODY_MODEL, TIERCE__BODY_PROMPT, TIERCE__BODY_SPECIAL_TOKENS},
        of_chat[] = {TIERCE__BODY_MODEL,           TIERCE__BODY_MESSAGES,
                     TIERCE__BODY_TOOLS,           TIERCE__BODY_TEMPLATE,
                     TIERCE__BODY_TEMPLATE_KWARGS, TIERCE__BODY_GENERATION_PROMPT,
                     TIERCE__BODY_FINAL_MESSAGE,   TIERCE__BODY_SPECIAL_TOKENS,
                     TIERCE__BODY_MEDIA_KWARGS,    TIERCE__BODY_PROCESSOR_KWARGS};
    const struct tierce__text *members = request->members;
    bool is_text = tierce__json_value_kind(members[TIERCE__BODY_PROMPT]) == '"';
    if (!is_text && tierce__json_value_kind(members[TIERCE__BODY_MESSAGES]) != '[')
        return false;
    const enum tierce__body_member *names = is_text ? of_text : of_chat;
    size_t count =
        is_text ? sizeof(of_text) / sizeof(*of_text) : sizeof(of_chat) / sizeof(*of_chat);
    struct tierce__json_write json = {.line = line};
    tierce__json_write_open(&json, NULL, '{');
    for (size_t i = 0; i < count; i++)
        if (members[names[i]].length > 0)
            tierce__json_write_value(&json, member_names[names[i]], members[names[i]]);
    tierce__json_write_close(&json, '}');
    return true;
}

void tierce__body_put_query(struct tierce__line *line, const struct tierce__body *request,
                            struct tierce__text tokens, const char *tenant)
{
    struct tierce__json_write json = {.line = line};
    struct tierce__text model = request->members[TIERCE__BODY_MODEL];
    tierce__json_write_open(&json, NULL, '{');
    if (tierce__json_value_kind(model) == '"') {
        tierce__json_write_value(&json, "model", model);
        tierce__json_write_value(&json, "model_name", model); /* Dynamo's name of it */
    }
    if (tenant[0] != '\0')
        tierce__json_write_text(&json, "tenant_id", tenant);
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
