/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_BODIES_H
#define TIERCE_PROXY_BODIES_H

#include "base/json/json_value.h"
#include "base/text/line.h"

/*
 * The JSON of requests, as OpenAI and vLLM define it, made from a client's request. Members that
 * are not named here are copied as they are written. Lines that run out of memory have `failed`
 * set. Thread: any.
 */

/* Whether another engine can compute the prompt of a request: it has one prompt, and one answer,
 * and no member whose name is longer than those of any engine. */
bool tierce__body_can_prefill(struct tierce__text request);

/* Appends the request to the engine that computes the prompt: one token, not streamed, with
 * kv_transfer_params that ask for KV to be kept for another engine. */
void tierce__body_put_prefill(struct tierce__line *line, struct tierce__text request);

/* Appends the request to the engine that answers, with the kv_transfer_params of a prefill, or with
 * none if `params` is empty; never with the client's. */
void tierce__body_put_decode(struct tierce__line *line, struct tierce__text request,
                             struct tierce__text params);

/* Whether a request has kv_transfer_params of its own. */
bool tierce__body_has_params(struct tierce__text request);

/* The kv_transfer_params of a prefill's answer; empty if there are none. */
struct tierce__text tierce__body_params(struct tierce__text answer);

/* The prompt's tokens, if the request has them: an array of integers; otherwise empty. */
struct tierce__text tierce__body_tokens(struct tierce__text request);

/* Appends the request to /tokenize for a prompt that is a text or messages. False: it has neither.
 */
bool tierce__body_put_tokenize(struct tierce__line *line, struct tierce__text request);

/* Appends the question to a router index about tokens, an array of integers. */
void tierce__body_put_query(struct tierce__line *line, struct tierce__text request,
                            struct tierce__text tokens);

/* Appends an error as OpenAI's API has it. */
void tierce__body_put_error(struct tierce__line *line, unsigned status, const char *why);

#endif
