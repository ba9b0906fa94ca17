/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/why/why_request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/json/json_write.h"
#include "engine/engine.h"
#include "engine/lender.h"
#include "engine/why/requests.h"
#include "engine/why/why_answer.h"

#define NAME_SHOWN 160 /* bytes of a name in a message */

static const struct {
    const char *name, *words;
} limits[] = {
    [TIERCE_REQUEST_LIMIT_NONE] = {"none", "everything that was found was loaded"},
    [TIERCE_REQUEST_LIMIT_SHORT] = {"short",
                                    "the prompt is shorter than the smallest part that can "
                                    "be loaded, plus one token to compute"},
    [TIERCE_REQUEST_LIMIT_LOCAL] = {"local", "the inference engine's own cache held all that can "
                                             "be loaded"},
    [TIERCE_REQUEST_LIMIT_OPTION] = {"option", "loads are excluded by an option of the request or "
                                               "of the inference engine"},
    [TIERCE_REQUEST_LIMIT_UNSUPPORTED] = {"unsupported", "the request has a property that is not "
                                                         "supported; the inference engine's log "
                                                         "names it"},
    [TIERCE_REQUEST_LIMIT_MINIMUM] = {"minimum", "fewer tokens were found than load.min_tokens"},
    [TIERCE_REQUEST_LIMIT_ROOM] = {"room",
                                   "the inference engine used fewer tokens than were found"},
    [TIERCE_REQUEST_LIMIT_FAILED] = {"failed", "a lookup or a load failed; the inference engine's "
                                               "log has the error"},
    [TIERCE_REQUEST_LIMIT_ENDED] = {"ended", "the request ended before its lookup"},
    [TIERCE_REQUEST_LIMIT_NOT_READY] =
        {"not_ready", "no KV could be moved then: the GPU was being prepared, "
                      "its driver could not pin memory, the GPU had failed, there "
                      "was no node, or the inference engine slept; its log "
                      "names it"},
    [TIERCE_REQUEST_LIMIT_BLENDED] = {"blended",
                                      "the KV of tokens after the found ones was blended "
                                      "from documents"},
    [TIERCE_REQUEST_LIMIT_UNBLENDED] = {"unblended",
                                        "blend.enabled is set, but nothing is blended; "
                                        "the inference engine's log names the reason"},
};

_Static_assert(sizeof(limits) / sizeof(limits[0]) == TIERCE_REQUEST_LIMIT_COUNT,
               "each limit has a name");

static bool is_valid(const struct tierce_request *request)
{
    size_t bytes = request->name != NULL ? strnlen(request->name, TIERCE_REQUEST_NAME_MAX + 1) : 0;
    return bytes > 0 && bytes <= TIERCE_REQUEST_NAME_MAX &&
           (unsigned)request->limit < TIERCE_REQUEST_LIMIT_COUNT;
}

int tierce_request_note(struct tierce_engine *engine, const struct tierce_request *request)
{
    TIERCE_CHECK_MAGIC(engine, TIERCE__ENGINE_MAGIC);
    if (request->size != sizeof(*request) || !is_valid(request))
        return TIERCE_E_ARGUMENT;
    if (tierce__engine_inherited(engine))
        return TIERCE_E_CLOSED;
    engine->lender->note_request(engine, request);
    return 0;
}

/* ---- the answer ------------------------------------------------------------------------------ */

struct request_answer {
    const struct tierce__request_record *record;
    uint32_t matches;
    bool has_miss;              /* a chunk was missing: `miss` is filled */
    struct tierce__answer miss; /* its prompt's fields are not used */
    uint64_t missing_token;     /* the first token that was not found, if has_miss */
    const char *reason, *words; /* why not all was found and loaded; "none" if it was */
};

/* The inference engine reports a lookup that this engine has not recorded, or no longer has. */
static bool is_unknown(const struct tierce__request_record *record)
{
    const struct tierce_request *noted = &record->noted;
    return !record->was_looked && noted->looked_tokens > 0 &&
           noted->found_tokens < noted->looked_tokens;
}

static void fill_miss(struct request_answer *out, struct tierce_engine *engine)
{
    const struct tierce__request_lookup *lookup = &out->record->lookup;
    TIERCE_DASSERT(lookup->block_tokens > 0 && lookup->chunk_blocks > 0);
    out->has_miss = true;
    out->miss = (struct tierce__answer){
        .ns_text = tierce__namespaces_text(engine->namespaces, lookup->ns),
        .ns_digest = tierce__namespaces_digest(engine->namespaces, lookup->ns),
        .naming.group = {.block_tokens = lookup->block_tokens,
                         .chunk_blocks = lookup->chunk_blocks},
        .miss = lookup->miss,
        .now_s = tierce__wall_s()};
    out->missing_token = lookup->miss.block * lookup->block_tokens;
    out->reason = tierce_miss_name(lookup->miss.reason);
    out->words = tierce_miss_text(lookup->miss.reason);
}

/* The reason that comes first: no lookup, a missing chunk, a limit on what was found. A prompt that
 * the inference engine held itself lacks nothing. */
static void conclude(struct request_answer *out, struct tierce_engine *engine)
{
    const struct tierce__request_record *record = out->record;
    enum tierce_request_limit limit = record->noted.limit;
    bool is_short = record->noted.found_tokens < record->noted.looked_tokens;
    TIERCE_DASSERT(limit < TIERCE_REQUEST_LIMIT_COUNT);
    out->reason = limits[TIERCE_REQUEST_LIMIT_NONE].name;
    out->words = limits[TIERCE_REQUEST_LIMIT_NONE].words;
    if (is_short && record->was_looked && record->lookup.miss.reason != TIERCE_MISS_NONE) {
        fill_miss(out, engine);
    } else if (limit != TIERCE_REQUEST_LIMIT_NONE && limit != TIERCE_REQUEST_LIMIT_LOCAL) {
        out->reason = limits[limit].name;
        out->words = limits[limit].words;
    } else if (is_unknown(record)) {
        out->reason = "unknown";
        out->words =
            "the lookup is not recorded: there was no node then, or it was longer ago than "
            "requests.remembered";
    }
}

/* ---- for people ------------------------------------------------------------------------------ */

static void put_name(struct tierce__line *out, const struct request_answer *a)
{
    char shown[NAME_SHOWN], when[32] = "";
    time_t at = (time_t)a->record->when_s;
    uint64_t now_s = tierce__wall_s();
    struct tm tm;
    tierce__text_for_message(shown, sizeof(shown), a->record->name);
    tierce__line_put_format(out, "request    %s\n", shown);
    if (a->matches > 1)
        tierce__line_put_format(
            out, "           the last of %" PRIu32 " requests with this name or part\n",
            a->matches);
    if (gmtime_r(&at, &tm) != NULL && strftime(when, sizeof(when), "%F %TZ", &tm) > 0)
        tierce__line_put_format(out, "ended      %s, %" PRIu64 " s ago\n", when,
                                now_s > a->record->when_s ? now_s - a->record->when_s : 0);
}

static void put_numbers(struct tierce__line *out, const struct tierce__request_record *record)
{
    const struct tierce_request *noted = &record->noted;
    tierce__line_put_format(out, "prompt     %" PRIu64 " tokens", noted->tokens);
    if (noted->looked_tokens > 0)
        tierce__line_put_format(out, ", of which %" PRIu64 " were looked up\n",
                                noted->looked_tokens);
    else
        tierce__line_put_format(out, ", not looked up\n");
    tierce__line_put_format(out, "local      %" PRIu64 " tokens, held by the inference engine\n",
                            noted->local_tokens);
    tierce__line_put_format(out, "found      %" PRIu64 " tokens, local ones included\n",
                            noted->found_tokens);
    tierce__line_put_format(out, "loaded     %" PRIu64 " tokens\n", noted->loaded_tokens);
    if (noted->failed_tokens > 0)
        tierce__line_put_format(out, "failed     %" PRIu64 " tokens\n", noted->failed_tokens);
    tierce__line_put_format(out, "stored     %" PRIu64 " tokens\n", record->stored_tokens);
}

/* The last block of a prompt may be padded: see python/tierce/vllm/prompt_end.py. */
static uint64_t handed_tokens(const struct tierce__request_record *record)
{
    uint64_t tokens = record->handover.tokens;
    return tokens < record->noted.tokens ? tokens : record->noted.tokens;
}

static void put_handover(struct tierce__line *out, const struct tierce__request_record *record)
{
    const struct tierce__request_handover *handover = &record->handover;
    if (handover->from[0] == '\0')
        return;
    tierce__line_put_format(out, "handover   from %s: ", handover->from);
    if (handover->pushed_bytes > 0)
        tierce__line_put_format(out, "%" PRIu64 " bytes pushed, ", handover->pushed_bytes);
    tierce__line_put_format(out, "%" PRIu64 " bytes read; memory then had %" PRIu64 " tokens\n",
                            handover->bytes, handed_tokens(record));
    if (handover->why[0] != '\0')
        tierce__line_put_format(out, "           ended early: %s\n", handover->why);
}

static void put_missing(struct tierce__line *out, const struct request_answer *a)
{
    const struct tierce__request_lookup *lookup = &a->record->lookup;
    char hash[2 * TIERCE_HASH_BYTES + 1];
    tierce__hex_encode(hash, a->miss.miss.hash, TIERCE_HASH_BYTES);
    tierce__line_put_format(out, "missing    %s, from token %" PRIu64 " on\n", hash,
                            a->missing_token);
    if (lookup->is_tail)
        tierce__line_put_format(out,
                                "           shorter than a chunk of %" PRIu64
                                " tokens: stored only where tails are (chunk.tail)\n",
                                (uint64_t)lookup->block_tokens * lookup->chunk_blocks);
    if (lookup->only_memory)
        tierce__line_put_format(out,
                                "           only memory was searched: other tiers may hold it\n");
    tierce__answer_put_reason(out, &a->miss);
}

static void put_text(struct tierce__line *out, const struct request_answer *a)
{
    const struct tierce_request *noted = &a->record->noted;
    put_name(out, a);
    put_numbers(out, a->record);
    put_handover(out, a->record);
    if (noted->limit == TIERCE_REQUEST_LIMIT_SHORT)
        tierce__line_put_format(out, "           loads end at multiples of %" PRIu64 " tokens\n",
                                noted->unit_tokens);
    if (a->has_miss)
        put_missing(out, a);
    else if (strcmp(a->reason, limits[TIERCE_REQUEST_LIMIT_NONE].name) != 0)
        tierce__line_put_format(out, "reason     %s: %s\n", a->reason, a->words);
    else
        tierce__line_put_format(out, "missing    nothing\n");
    bool is_extra = noted->limit != TIERCE_REQUEST_LIMIT_NONE &&
                    strcmp(a->reason, limits[noted->limit].name) != 0;
    if (is_extra)
        tierce__line_put_format(out, "limit      %s: %s\n", limits[noted->limit].name,
                                limits[noted->limit].words);
}

/* ---- for programs ---------------------------------------------------------------------------- */

static void put_handover_members(struct tierce__json_write *json,
                                 const struct tierce__request_record *record)
{
    if (record->handover.from[0] == '\0')
        return;
    tierce__json_write_text(json, "handover_from", record->handover.from);
    tierce__json_write_count(json, "handover_tokens", handed_tokens(record));
    tierce__json_write_count(json, "handover_bytes", record->handover.bytes);
    tierce__json_write_count(json, "handover_pushed_bytes", record->handover.pushed_bytes);
    tierce__json_write_text(json, "handover_why", record->handover.why);
}

static void put_members(struct tierce__json_write *json, const struct request_answer *a)
{
    const struct tierce_request *noted = &a->record->noted;
    tierce__json_write_text(json, "request", a->record->name);
    tierce__json_write_count(json, "matches", a->matches);
    tierce__json_write_count(json, "ended_s", a->record->when_s);
    tierce__json_write_count(json, "tokens", noted->tokens);
    tierce__json_write_count(json, "unit_tokens", noted->unit_tokens);
    tierce__json_write_count(json, "local_tokens", noted->local_tokens);
    tierce__json_write_count(json, "looked_tokens", noted->looked_tokens);
    tierce__json_write_count(json, "found_tokens", noted->found_tokens);
    tierce__json_write_count(json, "loaded_tokens", noted->loaded_tokens);
    tierce__json_write_count(json, "failed_tokens", noted->failed_tokens);
    tierce__json_write_count(json, "stored_tokens", a->record->stored_tokens);
    put_handover_members(json, a->record);
    tierce__json_write_text(json, "limit", limits[noted->limit].name);
    tierce__json_write_text(json, "reason", a->reason);
    if (!a->has_miss) {
        tierce__json_write_text(json, "words", a->words);
        return;
    }
    char digest[2 * TIERCE_HASH_BYTES + 1];
    tierce__hex_encode(digest, a->miss.ns_digest, TIERCE_HASH_BYTES);
    tierce__json_write_text(json, "namespace", digest);
    tierce__json_write_count(json, "block_tokens", a->record->lookup.block_tokens);
    tierce__json_write_count(json, "chunk_blocks", a->record->lookup.chunk_blocks);
    tierce__json_write_bool(json, "is_tail", a->record->lookup.is_tail);
    tierce__json_write_bool(json, "only_memory", a->record->lookup.only_memory);
    tierce__answer_put_miss(json, &a->miss);
}

static void put_answer(struct tierce__line *out, const struct request_answer *a)
{
    struct tierce__json_write json = {.line = out, .is_html = true};
    struct tierce__line text = {0};
    put_text(&text, a);
    tierce__line_put_bytes(&text, "", 1);
    tierce__json_write_open(&json, NULL, '{');
    put_members(&json, a);
    tierce__json_write_text(&json, "text", text.failed ? "" : text.text);
    tierce__json_write_close(&json, '}');
    tierce__line_put(out, "\n");
    tierce__line_clear(&text);
}

int tierce__why_request(struct tierce__line *json, struct tierce_engine *engine, const char *name,
                        char why[TIERCE__PROMPT_WHY_BYTES])
{
    struct tierce__request_record record;
    struct request_answer answer = {.record = &record};
    char shown[NAME_SHOWN];
    answer.matches = tierce__requests_find(engine->requests, &record, name);
    if (answer.matches == 0) {
        tierce__text_for_message(shown, sizeof(shown), name);
        snprintf(why, TIERCE__PROMPT_WHY_BYTES,
                 "no ended request with \"%s\" in its id is remembered; this process remembers the "
                 "last %" PRIu32 " requests (requests.remembered)",
                 shown, tierce__requests_room(engine->requests));
        return TIERCE_E_MISS;
    }
    conclude(&answer, engine);
    put_answer(json, &answer);
    return 0;
}
