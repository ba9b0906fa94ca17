/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_BODIES_H
#define TIERCE_PROXY_BODIES_H

#include "base/json/json_value.h"
#include "base/text/line.h"
#include "proxy/inboxes.h"

/*
 * The JSON of requests, as OpenAI and vLLM define it, made from a client's request. Members that
 * are not named here are copied as they are written. Lines that run out of memory have `failed`
 * set. Thread: any.
 */

/* The members that the proxy looks at. */
enum tierce__body_member {
    TIERCE__BODY_MODEL,
    TIERCE__BODY_PROMPT,
    TIERCE__BODY_MESSAGES,
    TIERCE__BODY_N,
    TIERCE__BODY_BEST_OF,
    TIERCE__BODY_BEAM,
    TIERCE__BODY_MAX_COMPLETION,
    TIERCE__BODY_PARAMS, /* kv_transfer_params */
    TIERCE__BODY_TOOLS,
    TIERCE__BODY_TEMPLATE,
    TIERCE__BODY_TEMPLATE_KWARGS,
    TIERCE__BODY_GENERATION_PROMPT,
    TIERCE__BODY_FINAL_MESSAGE,
    TIERCE__BODY_SPECIAL_TOKENS,
    TIERCE__BODY_MEDIA_KWARGS,
    TIERCE__BODY_PROCESSOR_KWARGS,
    TIERCE__BODY_MEMBERS
};

/* A client's request, read once: a long one has megabytes. Zeroed: none. */
struct tierce__body {
    struct tierce__json_doc doc;
    struct tierce__text members[TIERCE__BODY_MEMBERS]; /* empty: missing */
    bool is_object;
    bool can_copy; /* it is an object whose names the reader decodes: at most 64 bytes, no NUL */
};

/* Errors, *out untouched: TIERCE_E_FORMAT, and *why is the reason; -ENOMEM. */
TIERCE_MUSTUSE int tierce__body_read(struct tierce__body *out, const char *text, size_t bytes,
                                     const char **why);
/* Accepts a zeroed one. */
void tierce__body_clear(struct tierce__body *body);

/* Whether another engine can compute the prompt of a request: it can be copied, and has one prompt
 * and one answer. */
bool tierce__body_can_prefill(const struct tierce__body *request);

/* Appends the request to the engine that computes the prompt, from one that can be copied: one
 * token, not streamed, with kv_transfer_params that ask for KV to be kept for another engine, and
 * pushed to it if `place` is not NULL. */
void tierce__body_put_prefill(struct tierce__line *line, const struct tierce__body *request,
                              const struct tierce__inbox_place *place);

/* Appends the request of one token that asks an engine for tickets of its inbox, with the proxy's
 * own name; of the model of a client's request. */
void tierce__body_put_inbox(struct tierce__line *line, const struct tierce__body *request,
                            const char *holder);

/* Appends the request to the engine that answers, with the kv_transfer_params of a prefill, or with
 * none if `params` is empty; never with the client's. */
void tierce__body_put_decode(struct tierce__line *line, const struct tierce__body *request,
                             struct tierce__text params);

/* The kv_transfer_params of a prefill's answer; empty if there are none. */
struct tierce__text tierce__body_params(struct tierce__text answer);

/* The prompt's tokens, if the request has them: an array of integers; otherwise empty. */
struct tierce__text tierce__body_tokens(const struct tierce__body *request);

/* Appends the request to /tokenize for a prompt that is a text or messages. False: it has neither.
 */
bool tierce__body_put_tokenize(struct tierce__line *line, const struct tierce__body *request);

/* Appends the question to a router index about tokens, an array of integers. */
void tierce__body_put_query(struct tierce__line *line, const struct tierce__body *request,
                            struct tierce__text tokens, const char *tenant);

/* Appends an error as OpenAI's API has it. */
void tierce__body_put_error(struct tierce__line *line, unsigned status, const char *why);

#endif
