/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a proxy that need no network: bodies, the choice of engines, their list. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "proxy/bodies.h"
#include "proxy/engine_choice.h"

#include <string.h>

static struct tierce__json_doc doc;
static struct tierce__body body;

static struct tierce__text read_json(const char *text)
{
    tierce__json_doc_clear(&doc);
    ck_assert_int_eq(tierce__json_parse(&doc, text, strlen(text), NULL), 0);
    return doc.value;
}

static const struct tierce__body *read_body(const char *text)
{
    tierce__body_clear(&body);
    ck_assert_int_eq(tierce__body_read(&body, text, strlen(text), NULL), 0);
    return &body;
}

static void teardown(void)
{
    tierce__json_doc_clear(&doc);
    tierce__body_clear(&body);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void check_line(struct tierce__line *line, const char *expected)
{
    ck_assert(!line->failed);
    tierce__line_put_bytes(line, "", 1);
    ck_assert_str_eq(line->text, expected);
    tierce__line_clear(line);
}

#define ASKS                                                                                       \
    "\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"               \
    "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,"                    \
    "\"remote_port\":null}}"

START_TEST(prefill_asks_for_one_token)
{
    struct tierce__line line = {0};
    tierce__body_put_prefill(&line,
                             read_body("{\"prompt\": \"x\\u00e9\", \"max_tokens\": 9, "
                                       "\"stream\":true,\"max_tokens\":8,\"seed\":1.50}"),
                             NULL);
    check_line(&line,
               "{\"prompt\":\"x\\u00e9\",\"seed\":1.50,\"stream\":false,\"max_tokens\":1," ASKS);
    tierce__body_put_prefill(&line,
                             read_body("{\"messages\":[],\"max_completion_tokens\":9,"
                                       "\"kv_transfer_params\":{\"a\":1}}"),
                             NULL);
    check_line(&line, "{\"messages\":[],\"stream\":false,\"max_tokens\":1,"
                      "\"max_completion_tokens\":1," ASKS);
}
END_TEST

START_TEST(a_prefill_with_a_push)
{
    struct tierce__line line = {0};
    struct tierce__inbox_place place = {.host = "fd00::1", .port = 7000, .ticket = "abc"};
    tierce__body_put_prefill(&line, read_body("{\"prompt\":\"x\"}"), &place);
    check_line(&line,
               "{\"prompt\":\"x\",\"stream\":false,\"max_tokens\":1,\"kv_transfer_params\":{"
               "\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
               "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null,"
               "\"tierce\":{\"push\":{\"host\":\"fd00::1\",\"port\":7000,"
               "\"ticket\":\"abc\"}}}}");
    place.uses_tls = true;
    tierce__body_put_prefill(&line, read_body("{\"prompt\":\"x\"}"), &place);
    ck_assert_ptr_nonnull(strstr(line.text, "\"ticket\":\"abc\",\"tls\":true}"));
    tierce__line_clear(&line);
    tierce__body_put_inbox(&line, read_body("{\"prompt\":\"x\",\"model\":\"m\",\"n\":1}"), "me");
    check_line(&line, "{\"model\":\"m\",\"prompt\":[0],\"max_tokens\":1,"
                      "\"kv_transfer_params\":{\"tierce\":{\"inbox\":64,\"holder\":\"me\"}}}");
}
END_TEST

/* The answer of an engine about its inbox, or none. */
static void tell(struct tierce__inboxes *inboxes, const char *text, uint64_t now_ns)
{
    struct tierce__json_doc answer = {0};
    if (text != NULL)
        ck_assert_int_eq(tierce__json_parse(&answer, text, strlen(text), NULL), 0);
    tierce__inboxes_answered(inboxes, 1, answer.value, now_ns);
    tierce__json_doc_clear(&answer);
}

#define INBOX(host, port, tickets, seconds)                                                        \
    "{\"kv_transfer_params\":{\"tierce\":{\"inbox\":{\"host\":" host ",\"port\":" port             \
    ",\"tickets\":" tickets ",\"seconds\":" seconds "}}}}"

START_TEST(tickets_are_used_once_and_expire)
{
    struct tierce__inboxes inboxes;
    struct tierce__inbox_place place;
    uint64_t now_ns = 1000000 * TIERCE__MS_NS, second_ns = 1000 * TIERCE__MS_NS;
    ck_assert_int_eq(tierce__inboxes_init(&inboxes, 2), 0);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_NONE);
    tell(&inboxes, INBOX("\"10.0.0.6\"", "7000", "[\"a\",3,\"b\"]", "100"), now_ns);
    for (const char *expected = "ba"; *expected != '\0'; expected++) {
        ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_TICKET);
        ck_assert_str_eq(place.host, "10.0.0.6");
        ck_assert_int_eq(place.port, 7000);
        ck_assert(place.ticket[0] == *expected && place.ticket[1] == '\0');
    }
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 0, &place, now_ns), TIERCE__INBOX_ASK);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    ck_assert(!place.uses_tls);
    tell(&inboxes, INBOX("\"10.0.0.6\"", "7000,\"tls\":true", "[\"c\"]", "100"), now_ns);
    now_ns += 91 * second_ns;
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    tell(&inboxes, NULL, now_ns); /* it did not answer */
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_NONE);
    now_ns += second_ns;
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    tell(&inboxes, NULL, now_ns); /* nor the second time */
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns + second_ns),
                     TIERCE__INBOX_NONE);
    now_ns += 2 * second_ns;
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    /* Nobody has told the answer: another request asks. */
    now_ns += 3 * second_ns;
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    static const char *const none[] = {
        "{}",
        "{\"kv_transfer_params\":null}",
        INBOX("\"h\"", "0", "[\"a\"]", "9"),
        INBOX("\"h\"", "70000", "[\"a\"]", "9"),
        INBOX("7", "1", "[\"a\"]", "9"),
        INBOX("\"\"", "1", "[\"a\"]", "9"),
        INBOX("\"h\"", "1", "\"a\"", "9"),
        INBOX("\"h\"", "1", "[]", "9"),
        INBOX("\"h\"", "1", "[\"a\"]", "-9"),
    };
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        tell(&inboxes, none[i], now_ns);
        ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns + 59 * second_ns),
                         TIERCE__INBOX_NONE);
        now_ns += 60 * second_ns;
        ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    }
    /* However often it has failed, it is asked after a minute: an inbox that comes later is found.
     */
    for (unsigned i = 0; i < 20; i++) {
        tell(&inboxes, NULL, now_ns);
        now_ns += 60 * second_ns;
        ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    }
    tell(&inboxes, INBOX("\"10.0.0.6\"", "7000", "[\"d\"]", "100"), now_ns);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_TICKET);
    tierce__inboxes_fini(&inboxes);
}
END_TEST

START_TEST(tickets_of_an_engine_that_was_restarted_are_forgotten)
{
    struct tierce__inboxes inboxes;
    struct tierce__inbox_place place;
    uint64_t now_ns = 1000000 * TIERCE__MS_NS;
    const char *answer = INBOX("\"10.0.0.6\"", "7000", "[\"a\",\"b\"]", "600");
    ck_assert_int_eq(tierce__inboxes_init(&inboxes, 2), 0);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    tell(&inboxes, answer, now_ns);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_TICKET);
    tierce__inboxes_forget(&inboxes, 1);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    /* The answer that is due is that of the process before. */
    tierce__inboxes_forget(&inboxes, 1);
    tell(&inboxes, answer, now_ns);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_ASK);
    tell(&inboxes, answer, now_ns);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, now_ns), TIERCE__INBOX_TICKET);
    /* After a lost connection, its failures count until a check is passed; a busy engine's always
     * do. */
    uint64_t later_ns = now_ns + 3600ULL * 1000000000ULL;
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, later_ns), TIERCE__INBOX_ASK);
    tell(&inboxes, NULL, later_ns);
    tierce__inboxes_returned(&inboxes, 1);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, later_ns), TIERCE__INBOX_NONE);
    tierce__inboxes_forget(&inboxes, 1);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, later_ns), TIERCE__INBOX_NONE);
    tierce__inboxes_returned(&inboxes, 1);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, later_ns), TIERCE__INBOX_ASK);
    tierce__inboxes_returned(&inboxes, 1);
    ck_assert_int_eq(tierce__inboxes_take(&inboxes, 1, &place, later_ns), TIERCE__INBOX_NONE);
    tierce__inboxes_fini(&inboxes);
}
END_TEST

START_TEST(decode_has_the_params_unchanged)
{
    struct tierce__line line = {0};
    struct tierce__json_doc answer;
    const char *text = "{\"kv_transfer_params\":{\"n\":123456789012345678901234567890}}";
    ck_assert_int_eq(tierce__json_parse(&answer, text, strlen(text), NULL), 0);
    tierce__body_put_decode(&line, read_body("{\"kv_transfer_params\":1,\"prompt\":\"x\"}"),
                            tierce__body_params(answer.value));
    check_line(&line, "{\"prompt\":\"x\",\"kv_transfer_params\":{\"n\":"
                      "123456789012345678901234567890}}");
    tierce__json_doc_clear(&answer);
}
END_TEST

START_TEST(params_that_are_none)
{
    const char *const texts[] = {"{}",
                                 "[]",
                                 "1",
                                 "{\"kv_transfer_params\":null}",
                                 "{\"kv_transfer_params\":{}}",
                                 "{\"kv_transfer_params\":[1]}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        ck_assert_uint_eq(tierce__body_params(read_json(texts[i])).length, 0);
}
END_TEST

START_TEST(which_requests_are_prefilled)
{
    const char *const yes[] = {"{\"prompt\":\"x\"}", "{\"prompt\":[1,2]}", "{\"messages\":[]}",
                               "{\"prompt\":\"x\",\"n\":1,\"best_of\":null}"};
    const char *const no[] = {"[]",
                              "1",
                              "{}",
                              "{\"prompt\":[\"x\"]}",
                              "{\"prompt\":[[1]]}",
                              "{\"prompt\":[]}",
                              "{\"prompt\":null,\"messages\":[]}",
                              "{\"messages\":{}}",
                              "{\"prompt\":\"x\",\"n\":2}",
                              "{\"prompt\":\"x\",\"n\":\"1\"}",
                              "{\"prompt\":\"x\",\"best_of\":3}",
                              "{\"prompt\":\"x\",\"use_beam_search\":true}",
                              "{\"prompt\":\"x\",\"\\u0000\":1}",
                              "{\"prompt\":\"x\",\"a234567890123456789012345678901234567890"
                              "1234567890123456789012345\":1}"};
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        ck_assert_msg(tierce__body_can_prefill(read_body(yes[i])), "%s", yes[i]);
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        ck_assert_msg(!tierce__body_can_prefill(read_body(no[i])), "%s", no[i]);
}
END_TEST

START_TEST(tokenize_and_query)
{
    struct tierce__line line = {0};
    ck_assert(tierce__body_put_tokenize(
        &line, read_body("{\"prompt\":\"x\",\"model\":\"m\",\"seed\":1,\"messages\":[]}")));
    check_line(&line, "{\"model\":\"m\",\"prompt\":\"x\"}");
    ck_assert(tierce__body_put_tokenize(
        &line, read_body("{\"messages\":[1],\"tools\":[],\"add_generation_prompt\":false}")));
    check_line(&line, "{\"messages\":[1],\"tools\":[],\"add_generation_prompt\":false}");
    ck_assert(!tierce__body_put_tokenize(&line, read_body("{\"prompt\":[1]}")));
    const struct tierce__body *request = read_body("{\"prompt\":[1,2],\"model\":\"m\"}");
    tierce__body_put_query(&line, request, tierce__body_tokens(request), "");
    check_line(&line, "{\"model\":\"m\",\"model_name\":\"m\",\"token_ids\":[1,2]}");
}
END_TEST

/* ---- engines --------------------------------------------------------------------------------- */

static void open_three(struct tierce__engines *engines)
{
    char why[256];
    *engines = (struct tierce__engines){0};
    ck_assert_int_eq(
        tierce__engines_init(engines, "http://a:1/#7, http://b:2#b/8\nhttps://u:p@c#9", true, why),
        0);
    ck_assert_uint_eq(engines->count, 3);
    ck_assert_str_eq(engines->items[0].url, "http://a:1");
    ck_assert_str_eq(engines->items[1].id, "b/8");
    ck_assert_ptr_null(strstr(engines->items[2].name, "u:p"));
}

/* The index of the engine that is chosen, which is then used once. */
static uint32_t choose_and_use(struct tierce__engines *engines)
{
    struct tierce__engine *engine = tierce__choose(engines, NULL, 0, 0);
    ck_assert_ptr_nonnull(engine);
    tierce__engine_use(engines, engine);
    tierce__engine_release(engine);
    return engine->index;
}

START_TEST(load_decides_and_equals_take_turns)
{
    struct tierce__engines engines;
    open_three(&engines);
    for (uint32_t i = 0; i < 6; i++)
        ck_assert_uint_eq(choose_and_use(&engines), i % 3);
    tierce__engine_use(&engines, &engines.items[0]);
    ck_assert_uint_eq(choose_and_use(&engines), 1);
    ck_assert_uint_eq(choose_and_use(&engines), 2);
    ck_assert_uint_eq(choose_and_use(&engines), 1);
    ck_assert_uint_eq(tierce__choose(&engines, NULL, 0, 6)->index, 0); /* both others were tried */
    tierce__engine_checked(&engines.items[0], false, 1, "test");
    ck_assert_ptr_null(tierce__choose(&engines, NULL, 0, 6));
    ck_assert_uint_eq(tierce__engines_up(&engines), 2);
    ck_assert(!tierce__engines_ready(&engines));
    tierce__engine_checked(&engines.items[0], true, 1, "test");
    ck_assert(tierce__engines_ready(&engines));
    tierce__engine_release(&engines.items[0]);
    tierce__engines_fini(&engines);
}
END_TEST

START_TEST(tokens_outweigh_load)
{
    struct tierce__engines engines;
    struct tierce__choice choice;
    open_three(&engines);
    ck_assert(tierce__choice_read(
        &choice, &engines,
        read_json(
            "{\"instances\":{\"b/8\":{\"longest_matched\":1000},\"9\":{\"longest_matched\":-1},"
            "\"10\":{\"longest_matched\":5000},\"7\":1}}")));
    ck_assert_uint_eq(choice.tokens[0] + choice.tokens[2], 0);
    ck_assert_uint_eq(tierce__choose(&engines, &choice, 512, 0)->index, 1);
    tierce__engine_use(&engines, &engines.items[1]);
    ck_assert_uint_eq(tierce__choose(&engines, &choice, 512, 0)->index, 1);
    tierce__engine_use(&engines, &engines.items[1]); /* 1000 - 2 * 512 < 0 */
    ck_assert_uint_eq(tierce__choose(&engines, &choice, 512, 0)->index, 0);
    ck_assert_uint_eq(tierce__choose(&engines, &choice, 0, 0)->index, 1); /* tokens alone */
    ck_assert(tierce__choice_read(&choice, &engines, read_json("{\"instances\":{}}")));
    ck_assert_uint_ne(tierce__choose(&engines, &choice, 0, 0)->index, 1); /* then the load */
    ck_assert(!tierce__choice_read(&choice, &engines, read_json("{\"scores\":{}}")));
    ck_assert(!choice.is_known);
    tierce__engine_release(&engines.items[1]);
    tierce__engine_release(&engines.items[1]);
    tierce__engines_fini(&engines);
}
END_TEST

START_TEST(lists_that_are_invalid)
{
    const struct {
        const char *urls, *word;
        bool needs_ids;
    } cases[] = {{"", "no URL", false},
                 {" , ", "no URL", false},
                 {"redis://a", "http or https", false},
                 {"http://a,b:1", "", false},
                 {"http://a?x=1", "parameters", false},
                 {"http://a http://a/", "twice", false},
                 {"http://a#", "instance_id", false},
                 {"http://a#x#y", "instance_id", false},
                 {"http://a#;tenant=", "is invalid; a tenant name has 1 to", false},
                 {"http://a#1;tenant=b;c", "is invalid; a tenant name has 1 to", true},
                 {"http://a#;tenant=b", "instance_id", true},
                 {"http://a", "router.url", true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__engines engines = {0};
        char why[256] = "";
        ck_assert_int_eq(tierce__engines_init(&engines, cases[i].urls, cases[i].needs_ids, why),
                         TIERCE_E_CONFIG);
        ck_assert_msg(strstr(why, cases[i].word) != NULL, "%s: %s", cases[i].urls, why);
        tierce__engines_fini(&engines);
    }
}
END_TEST

CHECK_MAIN("proxy_parts", .teardown = teardown,
           .tests = {
               prefill_asks_for_one_token, a_prefill_with_a_push, tickets_are_used_once_and_expire,
               tickets_of_an_engine_that_was_restarted_are_forgotten,
               decode_has_the_params_unchanged, params_that_are_none, which_requests_are_prefilled,
               tokenize_and_query, load_decides_and_equals_take_turns, tokens_outweigh_load,
               lists_that_are_invalid})
