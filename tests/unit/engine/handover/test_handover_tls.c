/* SPDX-License-Identifier: Apache-2.0 */
/* Offers and pushes by TLS: a prefiller and a decoder with certificates, without, and with one side
 * alone. */
#include "base/alloc.h"
#include "check_main.h"
#include "engine/handover/handover.h"
#include "engine/handover/handover_inbox.h"
#include "engine/handover/handover_push.h"
#include "engine_fixture.h"
#include "server_process.h"
#include "silent_log.h"
#include "wait_for.h"

#define BLOCKS  42u /* ten chunks and a tail of two blocks */
#define SESSION 7u
#define LONG_MS 20000u

static const char token[] = "0123456789abcdef0123456789abcdef";
static char folder[64];
static struct fixture prefiller, decoder;
static struct tierce_chain *chain, *same;
static struct tierce__handover *serving,
    *taking; /* offers of the prefiller, the inbox of the decoder */
static char why[TIERCE__HANDOVER_WHY_BYTES];

/* The certificates of an engine. */
enum kind { PLAIN, READER /* peers.ca alone */, TLS };

static void open_one(struct fixture *fx, enum kind kind, const char *memory)
{
    char certificate[96], key[96], ca[96];
    snprintf(certificate, sizeof(certificate), "%s/s.pem", folder);
    snprintf(key, sizeof(key), "%s/s.key", folder);
    snprintf(ca, sizeof(ca), "%s/ca.pem", folder);
    const char *sets[] = {"memory.size", memory, NULL, ca, NULL, certificate, NULL, key, NULL};
    sets[2] = kind != PLAIN ? "peers.ca" : NULL;
    sets[4] = kind == TLS ? "peers.certificate" : NULL;
    sets[6] = kind == TLS ? "peers.key" : NULL;
    fx_open(fx, false, sets);
}

/* The prefiller has the prompt, and offers it. */
static void open_both(enum kind gives, enum kind takes)
{
    open_one(&prefiller, gives, "6MiB");
    open_one(&decoder, takes, "5MiB");
    chain = fx_chain(&prefiller, 1, BLOCKS, 0);
    same = fx_chain(&decoder, 1, BLOCKS, 0);
    fx_wipe(&decoder);
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    ck_assert_msg(tierce__handover_start(&serving, prefiller.engine, "127.0.0.1", 0, why) == 0,
                  "%s", why);
    ck_assert_int_eq(tierce__handover_offer(serving, prefiller.view, chain, BLOCKS, token, LONG_MS),
                     BLOCKS);
}

static void close_both(void)
{
    tierce_unpin(decoder.view, SESSION);
    tierce__handover_stop(taking);
    tierce__handover_stop(serving);
    taking = serving = NULL;
    tierce_chain_destroy(chain);
    tierce_chain_destroy(same);
    fx_close(&prefiller);
    fx_close(&decoder);
    fx_remove(&prefiller);
    fx_remove(&decoder);
    prefiller = decoder = (struct fixture){0};
}

static void set_up(void)
{
    silence_log();
    ck_assert(server_folder(folder) && tls_make_certificates(folder));
}

static void tear_down(void)
{
    server_remove(folder);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static struct tierce__handover_pulled pull(bool says_tls)
{
    struct tierce__handover_pulled out;
    const struct tierce__handover_from from = {.host = "127.0.0.1",
                                               .port = tierce__handover_port(serving),
                                               .uses_tls = says_tls,
                                               .token = token,
                                               .session = SESSION,
                                               .timeout_ms = LONG_MS};
    ck_assert_int_eq(tierce__handover_pull(decoder.view, same, 0, BLOCKS, &from, &out), 0);
    return out;
}

/* All blocks that the decoder holds now, each compared byte by byte. */
static void is_right(void)
{
    uint64_t memory;
    uint8_t origins[FX_BLOCKS];
    (void)fx_found(&decoder, same, BLOCKS, TIERCE_LOOKUP_PIN, SESSION, &memory);
    ck_assert_uint_eq(memory, BLOCKS);
    struct tierce_transfer_opts what = fx_what(&decoder, same, 0, BLOCKS, fx_ids);
    what.session = SESSION;
    ck_assert_int_eq(tierce_load(decoder.view, &what, origins), BLOCKS);
    for (size_t b = 0; b < BLOCKS; b++)
        ck_assert(fx_right(&decoder, same, b, fx_ids[b]));
}

START_TEST(an_offer_is_read_by_tls)
{
    open_both(TLS, _i == 0 ? READER : TLS);
    struct tierce__handover_pulled out = pull(true);
    ck_assert_msg(out.status == 0 && out.blocks == BLOCKS && out.bytes > 0, "%s", out.why);
    is_right();
    ck_assert_uint_eq(tierce__handover_offers(serving), 0); /* the reader has ended it */
    close_both();
}
END_TEST

/* gives, takes, what the offer says, and what the decoder reports. */
static const struct {
    enum kind gives, takes;
    bool says_tls;
    int status;
    const char *why;
} wrong[] = {
    {TLS, PLAIN, true, TIERCE_E_REFUSED, "it requires TLS: set peers.ca"},
    {PLAIN, TLS, false, TIERCE_E_REFUSED, "does not use TLS, which this engine requires"},
    {PLAIN, READER, false, TIERCE_E_REFUSED, "does not use TLS, which this engine requires"},
    {TLS, PLAIN, false, TIERCE_E_DOWN, "may require TLS"}, /* an offer that lies */
    {PLAIN, TLS, true, TIERCE_E_DOWN, "TLS with 127.0.0.1"},
};

START_TEST(one_side_alone_is_refused)
{
    open_both(wrong[_i].gives, wrong[_i].takes);
    struct tierce__handover_pulled out = pull(wrong[_i].says_tls);
    ck_assert_int_eq(out.status, wrong[_i].status);
    ck_assert_msg(strstr(out.why, wrong[_i].why) != NULL, "%s", out.why);
    ck_assert_uint_eq(out.blocks, 0);
    close_both();
}
END_TEST

/* The prefiller's certificate is replaced; it is not restarted. */
START_TEST(wrong_certificates_and_a_new_one)
{
    static const struct {
        const char *names;
        int days;
        const char *why;
    } tries[] = {{"IP:127.0.0.2", 2, "address mismatch"},
                 {"IP:127.0.0.1", -1, "expired"},
                 {"IP:127.0.0.1", 2, NULL}};
    open_both(TLS, TLS);
    for (size_t i = 0; i < 3; i++) {
        ck_assert(tls_make_certificate(folder, "s", "ca", tries[i].names, tries[i].days));
        struct tierce__handover_pulled out = pull(true);
        ck_assert_int_eq(out.status, tries[i].why == NULL ? 0 : TIERCE_E_DOWN);
        ck_assert_msg(tries[i].why == NULL || strstr(out.why, tries[i].why) != NULL, "%s", out.why);
    }
    is_right();
    close_both();
}
END_TEST

/* Pushes the prompt to the decoder's inbox; returns the result. */
static struct tierce__pushed push(bool says_tls)
{
    struct tierce__push *push;
    struct tierce__pushed out;
    char ticket[TIERCE__TICKET_BYTES];
    ck_assert_int_eq(tierce__inbox_issue(tierce__handover_inbox(taking), &ticket, 1, LONG_MS, ""),
                     1);
    const struct tierce__push_to to = {.host = "127.0.0.1",
                                       .port = tierce__handover_port(taking),
                                       .uses_tls = says_tls,
                                       .ticket = ticket,
                                       .wait_ms = LONG_MS,
                                       .timeout_ms = LONG_MS};
    ck_assert_int_eq(tierce__push_begin(&push, prefiller.view, &to), 0);
    ck_assert_int_gt(tierce__push_held(push, prefiller.view, chain, BLOCKS), 0);
    tierce__push_end(push);
    WAIT_FOR(tierce__push_is_over(push, &out));
    tierce__push_destroy(push);
    tierce__inbox_end(tierce__handover_inbox(taking), ticket);
    return out;
}

START_TEST(a_prompt_is_pushed_by_tls)
{
    open_both(TLS, TLS);
    ck_assert_int_eq(tierce__handover_start(&taking, decoder.engine, "127.0.0.1", 0, why), 0);
    const struct tierce__inbox_opts opts = {
        .size = sizeof(opts), .hosts = "127.0.0.1", .hold_ms = LONG_MS};
    ck_assert_int_eq(tierce__handover_accept(taking, &opts, why), 0);
    struct tierce__pushed out = push(false);
    ck_assert_int_eq(out.status, TIERCE_E_REFUSED);
    ck_assert_msg(strstr(out.why, "does not use TLS") != NULL, "%s", out.why);
    out = push(true);
    ck_assert_msg(out.status == 0 && out.left_out == 0 && out.bytes > 0, "%s", out.why);
    is_right();
    close_both();
}
END_TEST

START_TEST(a_certificate_for_another_address)
{
    open_one(&prefiller, TLS, "6MiB");
    ck_assert_int_eq(tierce__handover_start(&serving, prefiller.engine, "127.0.0.2", 0, why),
                     TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "is not for 127.0.0.2") != NULL, "%s", why);
    fx_close(&prefiller);
    fx_remove(&prefiller);
    prefiller = (struct fixture){0};
    open_one(&prefiller, READER, "6MiB");
    ck_assert_int_eq(tierce__handover_start(&serving, prefiller.engine, "127.0.0.1", 0, why),
                     TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "requires peers.certificate") != NULL, "%s", why);
    fx_close(&prefiller);
    fx_remove(&prefiller);
    prefiller = (struct fixture){0};
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("handover_tls");
    TCase *t = tcase_create("handover_tls");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_loop_test(t, an_offer_is_read_by_tls, 0, 2);
    tcase_add_loop_test(t, one_side_alone_is_refused, 0, 5);
    tcase_add_test(t, wrong_certificates_and_a_new_one);
    tcase_add_test(t, a_prompt_is_pushed_by_tls);
    tcase_add_test(t, a_certificate_for_another_address);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
