/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/why_answer.h"
#include "base/assert.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/json/json_write.h"
#include "engine/why/why.h"
#include "engine/why/why_chunk.h"
#include "engine/why/why_request.h"

#define DIGEST_TEXT    (2 * TIERCE_HASH_BYTES + 1)
#define VALUE_SHOWN    60 /* bytes of a field's value in a line of text */
#define ROOT_BYTES_MAX 4096u

/* ---- for people ------------------------------------------------------------------------------ */

static void put_difference(void *arg, const char *field, const char *a, const char *b)
{
    char here[VALUE_SHOWN], there[VALUE_SHOWN];
    tierce__text_for_message(here, sizeof(here), a != NULL ? a : "(none)");
    tierce__text_for_message(there, sizeof(there), b != NULL ? b : "(none)");
    tierce__line_put_format(arg, "differs    %s: %s here, %s there\n", field, here, there);
}

static void put_twin(struct tierce__line *out, const struct tierce__answer *a)
{
    TIERCE_DASSERT(a->miss.reason == TIERCE_MISS_NAMESPACE);
    char digest[DIGEST_TEXT];
    tierce__hex_encode(digest, a->miss.twin_digest, TIERCE_HASH_BYTES);
    tierce__line_put_format(out, "there      %s\n", digest);
    if (a->miss.twin == NULL)
        tierce__line_put_format(out,
                                "           (its text is missing, so the difference is unknown)\n");
    else if (tierce_namespace_diff(a->ns_text, a->miss.twin, put_difference, out) < 0)
        tierce__line_put_format(out, "           (its text cannot be compared)\n");
}

void tierce__answer_put_reason(struct tierce__line *out, const struct tierce__answer *a)
{
    const struct tierce_miss *miss = &a->miss;
    TIERCE_DASSERT(miss->reason > TIERCE_MISS_NONE && miss->reason < TIERCE_MISS_COUNT);
    tierce__line_put_format(out, "reason     %s: %s\n", tierce_miss_name(miss->reason),
                            tierce_miss_text(miss->reason));
    if (miss->tier != NULL)
        tierce__line_put_format(out, "tier       %s%s%s\n", miss->tier,
                                miss->policy != NULL ? ", by " : "",
                                miss->policy != NULL ? miss->policy : "");
    if (miss->when_s != 0) {
        char when[32];
        time_t at = (time_t)miss->when_s;
        struct tm tm;
        if (gmtime_r(&at, &tm) != NULL && strftime(when, sizeof(when), "%F %TZ", &tm) > 0)
            tierce__line_put_format(out, "when       %s, %" PRIu64 " s ago\n", when,
                                    a->now_s > miss->when_s ? a->now_s - miss->when_s : 0);
    }
    if (miss->status != 0)
        tierce__line_put_format(out, "status     %s\n", tierce_strerror(miss->status));
    if (miss->reason == TIERCE_MISS_NAMESPACE)
        put_twin(out, a);
    if (a->is_folder && miss->reason == TIERCE_MISS_NEVER_STORED)
        tierce__line_put_format(
            out, "           a folder has no record of removed chunks; a running process has\n");
    if (a->later)
        tierce__line_put_format(
            out, "           later chunks are stored, so this one was stored once\n");
    tierce__branches_text(out, a);
}

static uint64_t chunk_tokens(const struct tierce__answer *a)
{
    return (uint64_t)a->naming.group.block_tokens * a->naming.group.chunk_blocks;
}

static void put_group(struct tierce__line *out, const struct tierce__layer_group *group)
{
    tierce__line_put_format(out, "group      %s", tierce_group_name(group->kind));
    if (group->window > 0)
        tierce__line_put_format(out, " of %" PRIu32 " tokens", group->window);
    tierce__line_put_format(out, "\n");
}

static void put_answer(struct tierce__line *out, const struct tierce__answer *a)
{
    char text[DIGEST_TEXT];
    TIERCE_DASSERT(a->naming.group.block_tokens > 0 && a->naming.group.chunk_blocks > 0);
    tierce__hex_encode(text, a->ns_digest, TIERCE_HASH_BYTES);
    tierce__line_put_format(out, "namespace  %s\n", text);
    tierce__line_put_format(out,
                            "prompt     %" PRIu64 " tokens: %" PRIu64 " blocks of %u, %" PRIu64
                            " chunks of %" PRIu64 "\n",
                            a->tokens, a->blocks, a->naming.group.block_tokens,
                            a->blocks / a->naming.group.chunk_blocks, chunk_tokens(a));
    if (a->blocks == 0)
        tierce__line_put_format(out,
                                "           shorter than a block: such a prompt is never stored\n");
    else if (a->blocks < a->naming.group.chunk_blocks)
        tierce__line_put_format(
            out, "           shorter than a chunk: stored only where tails are (chunk.tail)\n");
    if (a->naming.group.kind != TIERCE_GROUP_ALL)
        put_group(out, &a->naming.group);
    tierce__line_put_format(out, "held       %" PRIu64 " tokens\n",
                            a->held_blocks * a->naming.group.block_tokens);
    if (a->miss.reason == TIERCE_MISS_NONE) {
        tierce__line_put_format(out, "missing    nothing\n");
        return;
    }
    tierce__hex_encode(text, a->miss.hash, TIERCE_HASH_BYTES);
    tierce__line_put_format(out, "missing    %s, from token %" PRIu64 " on\n", text,
                            a->miss.block * a->naming.group.block_tokens);
    tierce__answer_put_reason(out, a);
}

void tierce__why_text(struct tierce__line *out, const struct tierce__answers *answers)
{
    TIERCE_DASSERT(answers->count > 0);
    if (answers->count > 1) {
        tierce__line_put_format(
            out, "prompt     %" PRIu64 " tokens, for a model with %zu groups of layers\n",
            answers->tokens, answers->count);
        tierce__line_put_format(out, "held       %" PRIu64 " tokens in every group\n",
                                answers->held_tokens);
    }
    for (size_t i = 0; i < answers->count; i++) {
        if (answers->count > 1)
            tierce__line_put_format(out, "\n");
        put_answer(out, &answers->items[i]);
    }
}

/* ---- for programs ---------------------------------------------------------------------------- */

static void put_hash(struct tierce__json_write *out, const char *name, const uint8_t *hash)
{
    char text[DIGEST_TEXT];
    tierce__hex_encode(text, hash, TIERCE_HASH_BYTES);
    tierce__json_write_text(out, name, text);
}

static void put_json_difference(void *arg, const char *field, const char *a, const char *b)
{
    struct tierce__json_write *out = arg;
    tierce__json_write_open(out, NULL, '{');
    tierce__json_write_text(out, "field", field);
    tierce__json_write_text(out, "here", a);
    tierce__json_write_text(out, "there", b);
    tierce__json_write_close(out, '}');
}

void tierce__answer_put_miss(struct tierce__json_write *out, const struct tierce__answer *a)
{
    const struct tierce_miss *miss = &a->miss;
    TIERCE_DASSERT(miss->reason > TIERCE_MISS_NONE && miss->reason < TIERCE_MISS_COUNT);
    tierce__json_write_text(out, "words", tierce_miss_text(miss->reason));
    tierce__json_write_count(out, "block", miss->block);
    tierce__json_write_count(out, "token", miss->block * a->naming.group.block_tokens);
    put_hash(out, "hash", miss->hash);
    tierce__json_write_text(out, "tier", miss->tier);
    tierce__json_write_text(out, "policy", miss->policy);
    tierce__json_write_count(out, "when_s", miss->when_s);
    tierce__json_write_text(out, "status",
                            miss->status != 0 ? tierce_error_name(miss->status) : NULL);
    tierce__json_write_bool(out, "later_chunks_are_there", a->later);
    tierce__branches_json(out, a);
    if (miss->reason != TIERCE_MISS_NAMESPACE)
        return;
    put_hash(out, "twin", miss->twin_digest);
    tierce__json_write_open(out, "differences", '[');
    int rc = miss->twin != NULL
                 ? tierce_namespace_diff(a->ns_text, miss->twin, put_json_difference, out)
                 : 0;
    (void)rc; /* a text that cannot be compared differs in nothing that could be named */
    tierce__json_write_close(out, ']');
}

static void put_fields(struct tierce__json_write *json, const struct tierce__answer *a)
{
    put_hash(json, "namespace", a->ns_digest);
    tierce__json_write_count(json, "tokens", a->tokens);
    tierce__json_write_count(json, "blocks", a->blocks);
    tierce__json_write_count(json, "block_tokens", a->naming.group.block_tokens);
    tierce__json_write_count(json, "chunk_blocks", a->naming.group.chunk_blocks);
    tierce__json_write_text(json, "group", tierce_group_name(a->naming.group.kind));
    tierce__json_write_count(json, "held_blocks", a->held_blocks);
    tierce__json_write_text(json, "reason", tierce_miss_name(a->miss.reason));
    if (a->miss.reason != TIERCE_MISS_NONE)
        tierce__answer_put_miss(json, a);
}

/* The reason of the first group that lacks something. */
static enum tierce_miss_reason reason_of(const struct tierce__answers *answers)
{
    for (size_t i = 0; i < answers->count; i++)
        if (answers->items[i].miss.reason != TIERCE_MISS_NONE)
            return answers->items[i].miss.reason;
    return TIERCE_MISS_NONE;
}

static void put_groups(struct tierce__json_write *json, const struct tierce__answers *answers)
{
    tierce__json_write_count(json, "tokens", answers->tokens);
    tierce__json_write_count(json, "held_tokens", answers->held_tokens);
    tierce__json_write_text(json, "reason", tierce_miss_name(reason_of(answers)));
    tierce__json_write_open(json, "groups", '[');
    for (size_t i = 0; i < answers->count; i++) {
        tierce__json_write_open(json, NULL, '{');
        put_fields(json, &answers->items[i]);
        tierce__json_write_close(json, '}');
    }
    tierce__json_write_close(json, ']');
}

void tierce__why_json(struct tierce__line *out, const struct tierce__answers *answers)
{
    struct tierce__json_write json = {.line = out};
    struct tierce__line text = {0};
    tierce__why_text(&text, answers);
    tierce__line_put_bytes(&text, "", 1);
    tierce__json_write_open(&json, NULL, '{');
    if (answers->count == 1)
        put_fields(&json, &answers->items[0]);
    else
        put_groups(&json, answers);
    tierce__json_write_text(&json, "text", text.failed ? "" : text.text);
    tierce__json_write_close(&json, '}');
    tierce__line_put(out, "\n");
    tierce__line_clear(&text);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static uint64_t held_tokens(const struct tierce__answer *a)
{
    return a->held_blocks * a->naming.group.block_tokens;
}

int tierce__why_groups(struct tierce__answers *out, const uint32_t *ids, size_t count,
                       tierce__why_ask_fn *ask, void *arg)
{
    int rc = 0;
    TIERCE_DASSERT(count > 0 && count <= TIERCE__GROUPS_MAX);
    out->count = count;
    out->held_tokens = out->tokens;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = ask(arg, &out->items[i], ids[i], out->tokens);
        if (rc == 0 && held_tokens(&out->items[i]) < out->held_tokens)
            out->held_tokens = held_tokens(&out->items[i]);
    }
    /* A group that can continue after more tokens may lack the chunks that fewer tokens require. */
    for (size_t agreed = 0, i = 0; rc == 0 && count > 1 && agreed < count; i = (i + 1) % count) {
        struct tierce__answer again;
        rc = ask(arg, &again, ids[i], out->held_tokens);
        agreed++;
        if (rc == 0 && held_tokens(&again) < out->held_tokens) {
            out->held_tokens = held_tokens(&again);
            agreed = 1;
        }
    }
    return rc;
}

/* ---- of an engine ---------------------------------------------------------------------------- */

/* A view that only names chunks, for a namespace that is not open. */
static struct tierce_view naming_view(struct tierce_engine *engine,
                                      const struct tierce__naming *naming,
                                      const struct tierce__key *key)
{
    TIERCE_DASSERT(naming->group.block_tokens > 0 && naming->group.chunk_blocks > 0);
    return (struct tierce_view){.magic = TIERCE__VIEW_MAGIC,
                                .engine = engine,
                                .algo = naming->algo,
                                .chunk_blocks = naming->group.chunk_blocks,
                                .key = *key,
                                .group = naming->group.kind,
                                .window = naming->group.window,
                                .full.geometry.block_tokens = naming->group.block_tokens};
}

struct engine_asking {
    struct tierce_engine *engine;
    const struct tierce__prompt *prompt;
    char *why; /* [TIERCE__PROMPT_WHY_BYTES] */
};

static int ask_chain(struct engine_asking *asking, struct tierce__answer *out,
                     const struct tierce__key *key, const struct tierce_chain *chain)
{
    struct tierce_view naming = naming_view(asking->engine, &out->naming, key);
    struct tierce_view *open = tierce__view_borrow(asking->engine, key);
    struct tierce__why_what what = {.to_block = out->blocks, .whole_view = open != NULL};
    struct tierce__why_found found = {.miss = out->miss};
    int rc = tierce__why_chain(open != NULL ? open : &naming, chain, &what, &found);
    out->miss = found.miss;
    out->held_blocks = found.held;
    if (rc == 0 && open != NULL && !tierce__view_is_sparse(open) &&
        out->miss.reason == TIERCE_MISS_NEVER_STORED)
        tierce__branches_find(out, open, chain);
    if (open != NULL)
        tierce__view_give_back(open);
    TIERCE_DASSERT(rc < 0 || out->held_blocks <= out->blocks);
    return rc;
}

static int ask_engine(void *arg, struct tierce__answer *out, uint32_t id, uint64_t tokens)
{
    struct engine_asking *asking = arg;
    struct tierce__namespaces *table = asking->engine->namespaces;
    struct tierce_chain *chain;
    *out = (struct tierce__answer){.ns_text = tierce__namespaces_text(table, id),
                                   .ns_digest = tierce__namespaces_digest(table, id),
                                   .shard = asking->prompt->shard,
                                   .tokens = tokens,
                                   .now_s = tierce__wall_s()};
    int rc = tierce__naming_of(&out->naming, out->ns_text);
    if (rc < 0) {
        snprintf(asking->why, TIERCE__PROMPT_WHY_BYTES,
                 "the text of that namespace is not known until an engine opens it");
        return rc;
    }
    rc = tierce__prompt_chain(&chain, asking->prompt, &out->naming);
    if (rc == 0) {
        out->blocks = tokens / out->naming.group.block_tokens;
        TIERCE_DASSERT(out->blocks <= tierce_chain_blocks(chain));
        rc = ask_chain(asking, out, &(struct tierce__key){.shard = out->shard, .ns = id}, chain);
        tierce_chain_destroy(chain);
    }
    if (rc < 0)
        snprintf(asking->why, TIERCE__PROMPT_WHY_BYTES, "%s", tierce_strerror(rc));
    return rc;
}

int tierce__why_ask(struct tierce__answers *out, struct tierce_engine *engine,
                    const struct tierce__prompt *prompt, char why[TIERCE__PROMPT_WHY_BYTES])
{
    uint32_t ids[TIERCE__GROUPS_MAX];
    struct engine_asking asking = {engine, prompt, why};
    int count = tierce__prompt_groups(ids, prompt->ns, engine->namespaces, NULL, 0, why);
    out->tokens = prompt->count;
    return count < 0 ? count : tierce__why_groups(out, ids, (size_t)count, ask_engine, &asking);
}

/* Bytes that an argument names in hex; *bytes 0 without one. */
static bool take_hex(uint8_t *out, size_t *bytes, const struct tierce__control_query *query,
                     const char *name)
{
    const char *text = tierce__control_arg(query, name);
    size_t length = text != NULL ? strlen(text) : 0;
    *bytes = length / 2;
    return length % 2 == 0 && *bytes <= ROOT_BYTES_MAX &&
           (length == 0 || tierce__hex_decode(out, *bytes, text));
}

static int answer_hash(struct tierce_engine *engine, const char *hex, struct tierce__line *out,
                       char why[TIERCE__PROMPT_WHY_BYTES])
{
    struct tierce__hash_prefix prefix;
    snprintf(why, TIERCE__PROMPT_WHY_BYTES, "a hash has up to 64 hex digits");
    return tierce__hash_prefix(&prefix, hex) ? tierce__why_chunk(out, engine, &prefix)
                                             : TIERCE_E_ARGUMENT;
}

static int answer_prompt(struct tierce_engine *engine, const struct tierce__prompt *prompt,
                         struct tierce__line *out, char why[TIERCE__PROMPT_WHY_BYTES])
{
    struct tierce__answers *answers = tierce__calloc(1, sizeof(*answers));
    int rc = answers != NULL ? tierce__why_ask(answers, engine, prompt, why) : -ENOMEM;
    if (rc == 0)
        tierce__why_json(out, answers);
    tierce__free(answers);
    return rc;
}

static int answer_query(struct tierce_engine *engine, const struct tierce__control_query *query,
                        struct tierce__line *out, char why[TIERCE__PROMPT_WHY_BYTES])
{
    uint8_t salt[ROOT_BYTES_MAX], lora[ROOT_BYTES_MAX];
    const char *shard = tierce__control_arg(query, "shard");
    const char *hash = tierce__control_arg(query, "hash");
    const char *request = tierce__control_arg(query, "request");
    if (request != NULL)
        return tierce__why_request(out, engine, request, why);
    if (hash != NULL)
        return answer_hash(engine, hash, out, why);
    struct tierce__prompt prompt = {
        .ns = tierce__control_arg(query, "namespace"),
        .shard = {0, 1, 0, 1},
        .root = {.size = sizeof(prompt.root), .lora = lora, .salt = salt}};
    snprintf(why, TIERCE__PROMPT_WHY_BYTES, "salt and lora must be hex, shard must be RANK/SIZE");
    if (!take_hex(salt, &prompt.root.salt_bytes, query, "salt") ||
        !take_hex(lora, &prompt.root.lora_bytes, query, "lora") ||
        (shard != NULL && !tierce__prompt_shard(&prompt.shard, shard)))
        return TIERCE_E_ARGUMENT;
    int rc =
        tierce__prompt_tokens(&prompt.tokens, &prompt.count, query->body, query->body_bytes, why);
    if (rc == 0) {
        rc = answer_prompt(engine, &prompt, out, why);
        tierce__free(prompt.tokens);
    }
    return rc;
}

void tierce__why_page(void *arg, const struct tierce__control_query *query,
                      struct tierce__control_answer *answer)
{
    char why[TIERCE__PROMPT_WHY_BYTES] = "no memory";
    answer->type = "application/json";
    int rc = answer_query(arg, query, &answer->body, why);
    if (rc == 0)
        return;
    bool is_unknown = rc == TIERCE_E_MISS && tierce__control_arg(query, "request") != NULL;
    answer->status = is_unknown ? 404 : 400;
    answer->type = "text/plain; charset=utf-8";
    tierce__line_put(&answer->body, why);
}
