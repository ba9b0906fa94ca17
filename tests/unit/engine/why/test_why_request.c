/* SPDX-License-Identifier: Apache-2.0 */
/* Why the hit of a served request was not longer: in an engine, and in a node that a client
 * uses. */
#include "base/json/json_value.h"
#include "check_main.h"
#include "engine/why/requests.h"
#include "engine/why/why_request.h"
#include "engine_fixture.h"

#include <tierce/why.h>

#define BLOCKS 20u

static struct fixture fx;

static void setup(void)
{
    static const char *const sets[] = {"requests.remembered", "4", NULL};
    fx_open(&fx, false, sets);
}

static void teardown(void)
{
    fx_close(&fx);
    fx_remove(&fx);
}

/* The engine that serves requests. */
static struct tierce_engine *server(void)
{
#ifdef TIERCE_TEST_NODE
    return fx.client;
#else
    return fx.engine;
#endif
}

static struct tierce_request a_request(const char *name, uint64_t session, uint64_t found)
{
    return (struct tierce_request){.size = sizeof(struct tierce_request),
                                   .name = name,
                                   .session = session,
                                   .tokens = (uint64_t)BLOCKS * FX_BLOCK_TOKENS,
                                   .unit_tokens = FX_BLOCK_TOKENS,
                                   .looked_tokens = (uint64_t)BLOCKS * FX_BLOCK_TOKENS,
                                   .found_tokens = found * FX_BLOCK_TOKENS,
                                   .loaded_tokens = found * FX_BLOCK_TOKENS};
}

static void note(struct tierce_request request)
{
    ck_assert_int_eq(tierce_request_note(server(), &request), 0);
}

/* Looks up and stores a prompt as a request, and notes it. */
static void serve(const char *name, uint64_t session, const struct tierce_chain *chain)
{
    uint64_t found = fx_found(&fx, chain, BLOCKS, 0, session, NULL);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    what.session = session;
    fx_fill(&fx, chain, 0, BLOCKS, fx_ids);
    ck_assert_int_eq(tierce_store(fx.view, &what), (int64_t)(BLOCKS - found));
    note(a_request(name, session, found));
}

struct told {
    struct tierce__line line;
    struct tierce__json_doc doc;
};

static void ask(struct told *out, const char *name)
{
    char why[TIERCE__PROMPT_WHY_BYTES];
    *out = (struct told){0};
    ck_assert_int_eq(tierce__why_request(&out->line, fx.engine, name, why), 0);
    ck_assert_int_eq(tierce__json_parse(&out->doc, out->line.text, out->line.bytes, NULL), 0);
}

static void check_text(const struct told *told, const char *field, const char *wanted)
{
    char text[1024] = "";
    ck_assert(tierce__json_get_text(text, sizeof(text), told->doc.value, field));
    ck_assert_msg(strstr(text, wanted) != NULL, "%s: \"%s\", not \"%s\"", field, text, wanted);
}

static void check_int(const struct told *told, const char *field, int64_t wanted)
{
    int64_t value = tierce__json_get_int(told->doc.value, field, -1);
    ck_assert_msg(value == wanted, "%s: %lld, not %lld", field, (long long)value,
                  (long long)wanted);
}

static void forget(struct told *told)
{
    tierce__json_doc_clear(&told->doc);
    tierce__line_clear(&told->line);
}

static void check_unknown(const char *name)
{
    char why[TIERCE__PROMPT_WHY_BYTES] = "";
    struct tierce__line line = {0};
    ck_assert_int_eq(tierce__why_request(&line, fx.engine, name, why), TIERCE_E_MISS);
    ck_assert_msg(strstr(why, "the last 4 requests (requests.remembered)") != NULL, "%s", why);
    ck_assert_uint_eq(line.bytes, 0);
    tierce__line_clear(&line);
}

START_TEST(a_new_prompt_was_never_stored)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct told told;
    serve("cmpl-1-0af3", 71, chain);
    ask(&told, "cmpl-1");
    check_text(&told, "request", "cmpl-1-0af3");
    check_text(&told, "reason", "never_stored");
    check_int(&told, "matches", 1);
    check_int(&told, "tokens", 80);
    check_int(&told, "found_tokens", 0);
    check_int(&told, "stored_tokens", 80);
    check_int(&told, "token", 0);
    check_text(&told, "text", "stored     80 tokens\nmissing    ");
    forget(&told);
    serve("cmpl-2", 72, chain);
    ask(&told, "cmpl-2");
    check_text(&told, "reason", "none");
    check_int(&told, "loaded_tokens", 80);
    check_int(&told, "stored_tokens", 0);
    check_text(&told, "text", "missing    nothing\n");
    forget(&told);
    tierce_chain_destroy(chain);
}
END_TEST

START_TEST(a_part_was_evicted)
{
    struct tierce_chain *chain = fx_chain(&fx, 1, BLOCKS, 0);
    struct tierce__tier *memory = fx.engine->levels[0].tier;
    struct told told;
    serve("first", 71, chain);
    ck_assert_uint_gt(memory->ops->evict(memory, 1), 0);
    serve("second", 72, chain);
    ask(&told, "second");
    check_text(&told, "reason", "evicted");
    check_text(&told, "tier", "memory");
    check_int(&told, "token", tierce__json_get_int(told.doc.value, "found_tokens", -2));
    forget(&told);
    tierce_chain_destroy(chain);
}
END_TEST

START_TEST(the_inference_engine_names_its_limit)
{
    static const struct {
        enum tierce_request_limit limit;
        const char *reason, *text;
    } cases[] = {{TIERCE_REQUEST_LIMIT_SHORT, "short", "loads end at multiples of 4 tokens\n"},
                 {TIERCE_REQUEST_LIMIT_LOCAL, "none", "limit      local: "},
                 {TIERCE_REQUEST_LIMIT_OPTION, "option", "reason     option: "},
                 {TIERCE_REQUEST_LIMIT_UNSUPPORTED, "unsupported", "not looked up"},
                 {TIERCE_REQUEST_LIMIT_MINIMUM, "minimum", "load.min_tokens"},
                 {TIERCE_REQUEST_LIMIT_ROOM, "room", "used fewer tokens than were found"},
                 {TIERCE_REQUEST_LIMIT_FAILED, "failed", "log has the error"},
                 {TIERCE_REQUEST_LIMIT_ENDED, "ended", "ended before its lookup"},
                 {TIERCE_REQUEST_LIMIT_NOT_READY, "not_ready", "the GPU was being prepared"},
                 {TIERCE_REQUEST_LIMIT_BLENDED, "blended", "was blended from documents"},
                 {TIERCE_REQUEST_LIMIT_UNBLENDED, "unblended", "log names the reason"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce_request request = a_request("limited", 0, 0);
        struct told told;
        request.looked_tokens = 0;
        request.limit = cases[i].limit;
        note(request);
        ask(&told, "limited");
        check_text(&told, "reason", cases[i].reason);
        check_text(&told, "text", cases[i].text);
        forget(&told);
    }
}
END_TEST

/* The request was looked up according to its note, but this engine has no record of the lookup. */
START_TEST(a_lookup_that_is_not_recorded)
{
    struct told told;
    note(a_request("elsewhere", 5, 3));
    ask(&told, "elsewhere");
    check_text(&told, "reason", "unknown");
    check_text(&told, "words", "the lookup is not recorded");
    forget(&told);
}
END_TEST

START_TEST(requests_are_forgotten)
{
    check_unknown("none");
    for (uint32_t i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof(name), "request-%u", i);
        note(a_request(name, 0, BLOCKS));
    }
    struct told told;
    ask(&told, "request-");
    check_int(&told, "matches", 4);
    check_text(&told, "request", "request-4");
    check_text(&told, "text", "the last of 4 requests");
    forget(&told);
    check_unknown("request-0");
    check_unknown("");
}
END_TEST

START_TEST(wrong_notes_are_rejected)
{
    struct tierce_request request = a_request("right", 1, 0);
    char longer[TIERCE_REQUEST_NAME_MAX + 2];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    request.size--;
    ck_assert_int_eq(tierce_request_note(server(), &request), TIERCE_E_ARGUMENT);
    request = a_request(NULL, 1, 0);
    ck_assert_int_eq(tierce_request_note(server(), &request), TIERCE_E_ARGUMENT);
    request.name = "";
    ck_assert_int_eq(tierce_request_note(server(), &request), TIERCE_E_ARGUMENT);
    request.name = longer;
    ck_assert_int_eq(tierce_request_note(server(), &request), TIERCE_E_ARGUMENT);
    request.name = "right";
    request.limit = TIERCE_REQUEST_LIMIT_COUNT;
    ck_assert_int_eq(tierce_request_note(server(), &request), TIERCE_E_ARGUMENT);
    check_unknown("right");
    /* Users choose the names, so any bytes must be valid JSON in the answer. */
    request = a_request("\"\\ \x01 \xff", 1, 0);
    struct told told;
    note(request);
    ask(&told, "\"\\");
    forget(&told);
}
END_TEST

/* The offer of a prefiller that was read for a request, by engine/handover. */
START_TEST(a_prompt_was_handed_over)
{
    struct tierce__request_handover handover = {
        .from = "10.0.0.5:7000", .tokens = 96, .bytes = 4096};
    struct told told;
    tierce__requests_handed(fx.engine->requests, 71, &handover);
    tierce__requests_handed(fx.engine->requests, 0, &handover);
    struct tierce_request request = a_request("handed", 71, BLOCKS);
    note(request);
    ask(&told, "handed");
    check_text(&told, "handover_from", "10.0.0.5:7000");
    check_int(&told, "handover_tokens", 80); /* of the prompt */
    check_int(&told, "handover_bytes", 4096);
    check_text(&told, "text",
               "handover   from 10.0.0.5:7000: 4096 bytes read; memory then had 80 ");
    forget(&told);
    handover.pushed_bytes = 12288;
    tierce__requests_handed(fx.engine->requests, 74, &handover);
    note(a_request("pushed", 74, BLOCKS));
    ask(&told, "pushed");
    check_int(&told, "handover_pushed_bytes", 12288);
    check_text(&told, "text", "from 10.0.0.5:7000: 12288 bytes pushed, 4096 bytes read; memory");
    forget(&told);
    snprintf(handover.why, sizeof(handover.why), "it is gone");
    tierce__requests_handed(fx.engine->requests, 72, &handover);
    note(a_request("cut", 72, 0));
    ask(&told, "cut");
    check_text(&told, "handover_why", "it is gone");
    check_text(&told, "text", "ended early: it is gone\n");
    forget(&told);
    note(a_request("plain", 73, 0));
    ask(&told, "plain");
    char text[64];
    ck_assert(!tierce__json_get_text(text, sizeof(text), told.doc.value, "handover_from"));
    forget(&told);
}
END_TEST

CHECK_MAIN("why_request", .seconds = 120, .setup = setup, .teardown = teardown,
           .tests = {a_new_prompt_was_never_stored, a_part_was_evicted,
                     the_inference_engine_names_its_limit, a_lookup_that_is_not_recorded,
                     requests_are_forgotten, wrong_notes_are_rejected, a_prompt_was_handed_over})
