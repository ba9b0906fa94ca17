/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's inbox: chunks are visible when whole and right; without a ticket, no byte is. */
#include "core/key/key_text.h"
#include "engine/observe/engine_metrics.h"
#include "engine/handover/handover_landing.h"
#include "engine/handover/handover_ranges.h"
#include "engine/waterfall.h"
#include "log_record.h"
#include "push_fixture.h"
#include "store/remote/transfer/transfer_link.h"
#include "test_random.h"

/* ---- ranges by hand -------------------------------------------------------------------------- */

static struct tierce__transfer_link *links[2];

static void open_link(size_t at, const char *text)
{
    ck_assert_int_eq(tierce__transfer_link_create(&links[at], "127.0.0.1",
                                                  tierce__handover_port(taking), "chunks", NULL),
                     0);
    ck_assert_int_eq(tierce__transfer_link_reach(links[at], text, tierce__deadline_in_ms(LONG_MS)),
                     0);
}

static void close_links(void)
{
    for (size_t i = 0; i < 2; i++) {
        tierce__transfer_link_destroy(links[i]);
        links[i] = NULL;
    }
}

/* A chunk of the prefiller: its object and its name. */
struct sample {
    struct tierce__buf *buf;
    char text[TIERCE__KEY_TEXT_BYTES];
    struct tierce_plugin_name name;
};

static void take_sample(struct sample *sample, size_t index)
{
    struct tierce__keys keys;
    const struct tierce_view *view = prefiller.inner;
    ck_assert_int_eq(tierce__keys_init(&keys, view, chain, BLOCKS, BLOCKS, true), 0);
    const struct tierce__key *key = &keys.keys[index];
    sample->buf = tierce__storage_lease(prefiller.engine, key);
    ck_assert_ptr_nonnull(sample->buf);
    int bytes = tierce__key_text_format(sample->text, view->ns_digest, &key->shard, key->hash);
    ck_assert_int_gt(bytes, 0);
    sample->name = (struct tierce_plugin_name){sample->text, (size_t)bytes};
    tierce__keys_fini(&keys);
}

static int write_range(size_t link, const struct sample *sample, uint64_t from, uint64_t to)
{
    uint64_t deadline_ns = tierce__deadline_in_ms(LONG_MS);
    const struct tierce__link_range range = {from, to - from, sample->buf->bytes};
    int rc = tierce__transfer_link_write(links[link], &sample->name, &range,
                                         sample->buf->data + from, deadline_ns);
    return rc == 0 ? tierce__transfer_link_written(links[link], deadline_ns) : rc;
}

/* Cuts the object in up to 20 ranges, and mixes them. Returns how many. */
static size_t cut(struct test_random *random, struct tierce__range ranges[20], uint64_t bytes)
{
    size_t count = 0, parts = 1 + test_random_below(random, 20);
    for (uint64_t at = 0; at < bytes; count++) {
        uint64_t left = bytes - at;
        uint64_t length = count + 1 == parts
                              ? left
                              : 1 + test_random_below(random, (uint32_t)(2 * bytes / parts));
        ranges[count] = (struct tierce__range){at, at + (length < left ? length : left)};
        at = ranges[count].to;
    }
    for (size_t i = count; i > 1; i--) {
        size_t other = test_random_below(random, (uint32_t)i);
        struct tierce__range swapped = ranges[i - 1];
        ranges[i - 1] = ranges[other];
        ranges[other] = swapped;
    }
    return count;
}

START_TEST(ranges_in_every_order_on_two_connections)
{
    struct test_random random = test_random_start("ranges_in_every_order");
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    open_link(0, ticket);
    open_link(1, ticket);
    for (size_t chunk = 0; chunk < CHUNKS; chunk++) {
        struct tierce__range ranges[20];
        struct sample sample;
        take_sample(&sample, chunk);
        size_t count = cut(&random, ranges, sample.buf->bytes);
        for (size_t i = 0; i < count; i++) {
            ck_assert_uint_eq(stats().chunks, chunk);
            ck_assert_int_eq(
                write_range(test_random_below(&random, 2), &sample, ranges[i].from, ranges[i].to),
                0);
        }
        ck_assert_uint_eq(stats().chunks, chunk + 1);
        ck_assert_int_eq(write_range(0, &sample, 0, 1), -EEXIST);
        tierce__buf_release(sample.buf);
    }
    ck_assert_uint_eq(load(), BLOCKS);
    close_links();
}
END_TEST

/* The connection ends, and with it the ticket. */
static void is_rejected(uint64_t from, uint64_t to, uint64_t total)
{
    struct sample sample;
    uint64_t deadline_ns = tierce__deadline_in_ms(LONG_MS), wrong = stats().wrong;
    take_sample(&sample, 0);
    open_link(0, ticket);
    ck_assert_int_eq(write_range(0, &sample, 100, 200), 0);
    const struct tierce__link_range range = {from, to - from, total};
    int rc =
        tierce__transfer_link_write(links[0], &sample.name, &range, sample.buf->data, deadline_ns);
    if (rc == 0)
        rc = tierce__transfer_link_written(links[0], deadline_ns);
    ck_assert_int_eq(rc, TIERCE_E_DOWN);
    WAIT_FOR(stats().incoming_now == 0);
    ck_assert_uint_ge(stats().wrong, wrong);
    ck_assert(!tierce__inbox_admits(inbox(), ticket, strlen(ticket)));
    ck_assert_int_eq(
        tierce__inbox_await(inbox(), ticket, 1, LONG_MS, tierce__deadline_in_ms(LONG_MS)),
        TIERCE_E_DOWN);
    tierce__buf_release(sample.buf);
    close_links();
    tierce__inbox_end(inbox(), ticket);
    issue();
}

START_TEST(ranges_that_contradict_end_the_connection)
{
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    uint64_t bytes = prefiller.view->full.extent.object_bytes;
    is_rejected(100, 200, bytes);         /* the same again */
    is_rejected(199, 300, bytes);         /* one byte of it */
    is_rejected(0, 101, bytes);           /* one byte of it */
    is_rejected(0, bytes, bytes);         /* all of it */
    is_rejected(0, 10, bytes + 4096);     /* another length */
    is_rejected(0, bytes + 1, bytes);     /* beyond the object */
    is_rejected(0, 1, UINT64_MAX - 4096); /* no length of a chunk */
    ck_assert_uint_eq(load(), 0);
}
END_TEST

START_TEST(only_a_ticket_admits_a_write)
{
    struct sample sample;
    uint64_t deadline_ns = tierce__deadline_in_ms(LONG_MS);
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&sample, 0);
    ck_assert_int_eq(tierce__transfer_link_create(&links[0], "127.0.0.1",
                                                  tierce__handover_port(taking), "chunks", NULL),
                     0);
    ck_assert_int_eq(tierce__transfer_link_reach(links[0], token, deadline_ns), TIERCE_E_REFUSED);
    ck_assert_int_eq(tierce__transfer_link_reach(links[0], "", deadline_ns), TIERCE_E_REFUSED);
    close_links();
    /* The token of an offer reads, and does not write. */
    ck_assert_int_eq(tierce__handover_offer(taking, decoder.view, same, BLOCKS, token, LONG_MS), 0);
    open_link(0, token);
    ck_assert_int_eq(write_range(0, &sample, 0, 100), TIERCE_E_REFUSED);
    close_links();
    /* A ticket writes, and does not read. */
    uint8_t bytes[16];
    open_link(0, ticket);
    const struct tierce__link_get get = {
        .name = &sample.name, .memory = bytes, .length = sizeof(bytes)};
    ck_assert_int_eq(tierce__transfer_link_get(links[0], ticket, &get, deadline_ns),
                     TIERCE_E_REFUSED);
    close_links();
    tierce__inbox_end(inbox(), ticket);
    issue();
    /* It is for one prompt: after its end, it is none. */
    open_link(0, ticket);
    const struct tierce_plugin_name name = {ticket, strlen(ticket)};
    ck_assert_int_eq(write_range(0, &sample, 0, 100), 0);
    ck_assert_int_eq(tierce__transfer_link_remove(links[0], &name, deadline_ns), 0);
    ck_assert_int_eq(write_range(0, &sample, 100, 200), TIERCE_E_REFUSED);
    ck_assert_int_eq(tierce__inbox_await(inbox(), ticket, 1, LONG_MS, deadline_ns), 0);
    close_links();
    /* Its time is over before it is used. */
    tierce__inbox_end(inbox(), ticket);
    ck_assert_int_eq(tierce__inbox_issue(inbox(), &ticket, 1, 1, ""), 1);
    WAIT_FOR(stats().tickets_now == 0);
    ck_assert_int_eq(tierce__inbox_await(inbox(), ticket, 1, LONG_MS, deadline_ns), TIERCE_E_MISS);
    ck_assert_uint_eq(load(), 0);
    tierce__buf_release(sample.buf);
}
END_TEST

static void has_kept(struct tierce__keeper_room *room)
{
    (void)room;
}

static int make_range(struct tierce__keeper_room *room, const char *text,
                      const struct sample *sample, uint64_t from, uint64_t to)
{
    const struct tierce__keeper_range range = {from, to - from, sample->buf->bytes};
    *room = (struct tierce__keeper_room){
        .token = {text, strlen(text)}, .peer = "127.0.0.1:1", .done = has_kept};
    return tierce__inbox_make(inbox(), room, &sample->name, &range);
}

/* It accepts nothing more, and its room is there for others, although nobody asks for tickets. */
START_TEST(a_ticket_that_stalls_gives_its_room_back)
{
    uint64_t chunk = prefiller.view->full.extent.object_bytes;
    struct tierce__keeper_room room;
    struct sample samples[2];
    char other[1][TIERCE__TICKET_BYTES];
    hold_ms = 1000;
    open_anew("127.0.0.1", chunk, "5MiB");
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&samples[0], 0);
    take_sample(&samples[1], 1);
    ck_assert_int_eq(tierce__inbox_issue(inbox(), other, 1, LONG_MS, ""), 1);
    ck_assert_int_eq(make_range(&room, ticket, &samples[0], 0, 100), 0);
    memcpy(room.data, samples[0].buf->data, 100);
    tierce__inbox_keep(inbox(), &room);
    WAIT_FOR(!tierce__inbox_admits(inbox(), ticket, strlen(ticket)));
    ck_assert_int_eq(make_range(&room, ticket, &samples[0], 100, 200), TIERCE_E_REFUSED);
    ck_assert_int_eq(make_range(&room, other[0], &samples[1], 0, 100), 0);
    tierce__inbox_abandon(inbox(), &room);
    ck_assert_uint_eq(stats().tickets_expired, 1);
    tierce__buf_release(samples[0].buf);
    tierce__buf_release(samples[1].buf);
    ck_assert_uint_eq(load(), 0);
}
END_TEST

static char refusal[256];

static void note_refusal(void *arg, enum tierce_log_level level, const char *event,
                         const char *fields)
{
    (void)arg, (void)level;
    if (strcmp(event, "inbox_refused") == 0)
        snprintf(refusal, sizeof(refusal), "%s", fields);
}

START_TEST(only_named_hosts_write)
{
    open_anew("127.0.0.2 ::1", 0, "5MiB");
    tierce_set_log_fn(note_refusal, NULL, TIERCE_LOG_WARN);
    struct tierce__push *push = push_begin(LONG_MS);
    store_watched(push, BLOCKS, true);
    push_end(push);
    ck_assert_uint_eq(pushed.chunks, 0);
    ck_assert_int_eq(pushed.status, TIERCE_E_REFUSED);
    ck_assert_uint_gt(stats().refused_host, 0);
    silence_log();
    ck_assert_str_eq(refusal, "peer=127.0.0.1 why=\"its host is not named in handover.allow\"");
    ck_assert_uint_eq(load(), 0);
}
END_TEST

/* Any client can ask for tickets. Those of a holder that has used one are kept. */
START_TEST(clients_that_only_ask_keep_nobody_out)
{
    static char taken[TIERCE__TICKETS_MAX][TIERCE__TICKET_BYTES], mine[2][TIERCE__TICKET_BYTES];
    struct sample sample;
    tierce__inbox_end(inbox(), ticket);
    ck_assert_int_eq(
        tierce__inbox_issue(inbox(), mine, 1, LONG_MS, "a name that is longer than the bound is"),
        TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__inbox_issue(inbox(), taken, TIERCE__TICKETS_MAX, LONG_MS, ""),
                     TIERCE__TICKETS_MAX);
    /* The proxy's first tickets displace the oldest ones. */
    ck_assert_int_eq(tierce__inbox_issue(inbox(), mine, 2, LONG_MS, "proxy"), 2);
    ck_assert_uint_eq(stats().tickets_displaced, 2);
    ck_assert(!tierce__inbox_admits(inbox(), taken[0], TIERCE__TICKET_BYTES - 1));
    ck_assert(tierce__inbox_admits(inbox(), taken[2], TIERCE__TICKET_BYTES - 1));
    /* It uses one. */
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&sample, 0);
    open_link(0, mine[0]);
    ck_assert_int_eq(write_range(0, &sample, 0, sample.buf->bytes), 0);
    close_links();
    tierce__buf_release(sample.buf);
    tierce__inbox_end(inbox(), mine[0]);
    /* Its other one outlives whatever others ask for. */
    ck_assert_int_eq(tierce__inbox_issue(inbox(), taken, TIERCE__TICKETS_MAX, LONG_MS, "others"),
                     TIERCE__TICKETS_MAX);
    ck_assert(tierce__inbox_admits(inbox(), mine[1], TIERCE__TICKET_BYTES - 1));
    ck_assert_uint_eq(stats().tickets_now, TIERCE__TICKETS_MAX);
    ck_assert_uint_eq(stats().tickets_denied, 0);
}
END_TEST

/* The page of metrics and the state of the decoder. */
static void has_line(const char *line)
{
    size_t bytes;
    char *page = tierce__engine_metrics(decoder.engine, &bytes);
    ck_assert_ptr_nonnull(page);
    ck_assert_msg(strstr(page, line) != NULL, "%s is not in %s", line, page);
    tierce__free(page);
}

START_TEST(metrics_of_the_inbox)
{
    struct tierce__push *push = push_begin(LONG_MS);
    struct tierce__line status = {0};
    has_line("\ntierce_inbox_tickets_total{event=\"given\"} 1\n");
    has_line("\ntierce_inbox_tickets_held 1\n");
    store_watched(push, BLOCKS, true);
    push_end(push);
    has_line("\ntierce_inbox_tickets_total{event=\"used\"} 1\n");
    has_line("\ntierce_inbox_chunks_total{result=\"arrived\"} 11\n");
    has_line("\ntierce_inbox_incoming_chunks 0\n");
    has_line("\ntierce_inbox_waits 0\n");
    /* A used ticket opens no second connection. */
    ck_assert_int_eq(tierce__transfer_link_create(&links[0], "127.0.0.1",
                                                  tierce__handover_port(taking), "chunks", NULL),
                     0);
    ck_assert_int_eq(tierce__transfer_link_reach(links[0], ticket, tierce__deadline_in_ms(LONG_MS)),
                     TIERCE_E_REFUSED);
    close_links();
    has_line("\ntierce_inbox_refused_total{reason=\"ticket\"} 1\n");
    tierce__engine_status(decoder.engine, &status);
    ck_assert_ptr_nonnull(strstr(status.text, "\"inbox\":{\"tickets_given\":1,"));
    tierce__line_clear(&status);
    size_t bytes;
    char *page = tierce__engine_metrics(prefiller.engine, &bytes);
    ck_assert_ptr_null(strstr(page, "tierce_inbox"));
    tierce__free(page);
}
END_TEST

START_TEST(wrong_bytes_are_dropped)
{
    struct sample sample, other;
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&sample, 3);
    take_sample(&other, 4);
    uint64_t bytes = sample.buf->bytes, header = prefiller.view->full.extent.header_bytes;
    const uint64_t places[] = {header + 5, 40, 70, bytes - 4097};
    open_link(0, ticket);
    record_log(TIERCE_LOG_WARN);
    for (size_t i = 0; i < 4; i++) { /* a cell, the header */
        sample.buf->data[places[i]] ^= 1;
        ck_assert_int_eq(write_range(0, &sample, 0, bytes), -EBADMSG);
        sample.buf->data[places[i]] ^= 1;
    }
    /* A right chunk under the name of another one. */
    struct sample renamed = {.buf = other.buf, .name = sample.name};
    ck_assert_int_eq(write_range(0, &renamed, 0, bytes), -EBADMSG);
    ck_assert_uint_eq(stats().wrong, 5);
    ck_assert_uint_eq(stats().chunks, 0);
    ck_assert_msg(recorded_with("inbox_chunk_dropped", "peer=127.0.0.1 chunk=") > 0, "%s",
                  recorded_text());
    struct tierce_engine_stats counted = fx_stats(&decoder);
    ck_assert_uint_eq(counted.checksum_failures + counted.identity_failures, 5);
    ck_assert_int_eq(write_range(0, &sample, 0, bytes), 0);
    ck_assert_uint_eq(stats().chunks, 1);
    /* No chunk, and none of this engine. */
    sample.name.bytes--;
    ck_assert_int_eq(write_range(0, &sample, 0, bytes), TIERCE_E_ARGUMENT);
    sample.name.bytes++;
    ck_assert_msg(recorded_with("inbox_refused", "its chunk's name is invalid") == 1, "%s",
                  recorded_text());
    silence_log();
    sample.text[0] = sample.text[0] == '0' ? '1' : '0';
    ck_assert_int_lt(write_range(0, &sample, 0, bytes), 0);
    close_links();
    tierce__buf_release(sample.buf);
    tierce__buf_release(other.buf);
}
END_TEST

__typeof__(tierce__landing_publish) __real_tierce__landing_publish, __wrap_tierce__landing_publish;
static _Atomic bool evicts; /* each chunk, as soon as it is published */

int __wrap_tierce__landing_publish(struct tierce_view *view, const struct tierce__key *key,
                                   struct tierce__buf *buf)
{
    int rc = __real_tierce__landing_publish(view, key, buf);
    if (evicts)
        tierce__storage_quarantine(view->engine, 0, key, TIERCE_E_VERSION);
    return rc;
}

/* Memory is too small for it: the prefiller learns that the decoder does not have it. */
START_TEST(a_chunk_that_is_evicted_at_once_has_not_arrived)
{
    struct sample sample;
    ck_assert_int_eq(fx_store(&prefiller, chain, BLOCKS, fx_ids, true), BLOCKS);
    take_sample(&sample, 0);
    open_link(0, ticket);
    evicts = true;
    ck_assert_int_eq(write_range(0, &sample, 0, sample.buf->bytes), TIERCE_E_FULL);
    ck_assert_uint_eq(stats().chunks, 0);
    evicts = false;
    ck_assert_int_eq(write_range(0, &sample, 0, sample.buf->bytes), 0);
    ck_assert_uint_eq(stats().chunks, 1);
    close_links();
    tierce__buf_release(sample.buf);
}
END_TEST

CHECK_MAIN("handover_inbox", .seconds = 60, .setup = open_default, .teardown = close_all,
           .tests = {FX_EMBEDDED(ranges_in_every_order_on_two_connections),
                     FX_EMBEDDED(ranges_that_contradict_end_the_connection),
                     only_a_ticket_admits_a_write,
                     FX_EMBEDDED(a_ticket_that_stalls_gives_its_room_back), only_named_hosts_write,
                     FX_EMBEDDED(clients_that_only_ask_keep_nobody_out), metrics_of_the_inbox,
                     FX_EMBEDDED(wrong_bytes_are_dropped),
                     FX_EMBEDDED(a_chunk_that_is_evicted_at_once_has_not_arrived)})
