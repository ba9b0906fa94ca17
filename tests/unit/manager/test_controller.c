/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "check_main.h"
#include "log_record.h"
#include "manager/lmcache/controller.h"

#include <stdarg.h>
#include <stdlib.h>

/* The messages of LMCache's workers, and what becomes of them. The hex texts are LMCache's own
 * bytes (0.5.6, msgspec). */

#define MS     1000000ULL
#define SECOND (1000 * MS)

static struct tierce__holdings *holdings;
static struct tierce__controller *controller;
static struct tierce__line reply;
static uint64_t now_ns;

static void open_controller(uint32_t workers_max)
{
    now_ns = SECOND;
    ck_assert_int_eq(
        tierce__holdings_create(
            &holdings, &(struct tierce__holdings_opts){.size = sizeof(struct tierce__holdings_opts),
                                                       .workers_max = 300,
                                                       .silence_ms = 10000,
                                                       .senders_max = 1}),
        0);
    ck_assert_int_eq(tierce__controller_create(&controller,
                                               &(struct tierce__controller_opts){
                                                   .size = sizeof(struct tierce__controller_opts),
                                                   .holdings = holdings,
                                                   .group = "g",
                                                   .heartbeat_url = "127.0.0.1:8082",
                                                   .workers_max = workers_max,
                                                   .silence_ns = 300 * SECOND}),
                     0);
}

static void setup(void)
{
    open_controller(0);
}

static void teardown(void)
{
    tierce__controller_destroy(controller);
    tierce__holdings_destroy(holdings);
    tierce__line_clear(&reply);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void ask_bytes(const void *frame, size_t bytes)
{
    reply.bytes = 0;
    ck_assert(tierce__controller_take(controller, frame, bytes, true, now_ns, &reply));
}

static void push_bytes(const void *frame, size_t bytes)
{
    ck_assert(!tierce__controller_take(controller, frame, bytes, true, now_ns, NULL));
}

static void __attribute__((format(printf, 1, 2))) ask(const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ask_bytes(text, (size_t)bytes);
}

static void __attribute__((format(printf, 1, 2))) push(const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    push_bytes(text, (size_t)bytes);
}

static bool replies(const char *text)
{
    return memmem(reply.text, reply.bytes, text, strlen(text)) != NULL;
}

static size_t unhex(uint8_t *out, const char *hex)
{
    size_t bytes = strlen(hex) / 2;
    for (size_t i = 0; i < bytes; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return bytes;
}

static void ask_hex(const char *hex)
{
    uint8_t frame[1024];
    size_t bytes = unhex(frame, hex);
    ask_bytes(frame, bytes);
}

static void push_hex(const char *hex)
{
    uint8_t frame[1024];
    size_t bytes = unhex(frame, hex);
    push_bytes(frame, bytes);
}

static void expect_hex(const char *hex)
{
    uint8_t expected[1024];
    size_t bytes = unhex(expected, hex);
    ck_assert_uint_eq(reply.bytes, bytes);
    ck_assert_mem_eq(reply.text, expected, bytes);
}

/* ---- short forms ----------------------------------------------------------------------------- */

static void enter(const char *instance, int worker, const char *peer)
{
    ask("{\"type\":\"RegisterMsg\",\"instance_id\":\"%s\",\"worker_id\":%d,\"ip\":\"10.0.0.%d\","
        "\"port\":%d,\"peer_init_url\":%s}",
        instance, worker, worker + 1, 8000 + worker, peer);
    ck_assert(replies("RegisterRetMsg"));
}

static void beat(const char *instance, int worker)
{
    ask("{\"type\":\"HeartbeatMsg\",\"instance_id\":\"%s\",\"worker_id\":%d,\"ip\":\"10.0.0.1\","
        "\"port\":8000,\"peer_init_url\":\"p:1\"}",
        instance, worker);
    ck_assert(replies("HeartbeatRetMsg"));
}

static void change(const char *instance, int worker, const char *location, const char *type,
                   long long key, unsigned number)
{
    push("{\"type\":\"BatchedKVOperationMsg\",\"instance_id\":\"%s\",\"worker_id\":%d,\"location\":"
         "\"%s\",\"operations\":[{\"op_type\":\"%s\",\"key\":%lld,\"seq_num\":%u}]}",
         instance, worker, location, type, key, number);
}

static void find(const char *keys, const char *instance, int worker)
{
    ask("{\"type\":\"BatchedP2PLookupMsg\",\"hashes\":%s,\"instance_id\":\"%s\",\"worker_id\":%d}",
        keys, instance, worker);
}

static struct tierce__controller_found longest;
static char longest_texts[2][128];

static void keep_longest(void *arg, const struct tierce__controller_found *found)
{
    (void)arg;
    if (found->keys <= longest.keys)
        return;
    longest = *found;
    snprintf(longest_texts[0], sizeof(longest_texts[0]), "%s", found->instance);
    snprintf(longest_texts[1], sizeof(longest_texts[1]), "%s", found->location);
}

/* The longest prefix of the keys first, first + 1, ... */
static uint32_t prefix(uint64_t first, size_t count)
{
    struct tierce__lmcache_int keys[64];
    longest = (struct tierce__controller_found){0};
    ck_assert_uint_le(count, 64);
    for (size_t i = 0; i < count; i++)
        keys[i] = (struct tierce__lmcache_int){first + i, false};
    ck_assert_int_eq(tierce__controller_find(controller, keys, count, keep_longest, NULL), 0);
    return longest.keys;
}

static struct tierce__controller_stats stats(void)
{
    struct tierce__controller_stats out;
    tierce__controller_stats(controller, &out);
    return out;
}

static void start(const char *sync, unsigned keys, unsigned batches)
{
    ask("{\"type\":\"FullSyncStartMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"location\":"
        "\"LocalCPUBackend\",\"sync_id\":\"%s\",\"total_keys\":%u,\"batch_count\":%u}",
        sync, keys, batches);
    ck_assert(replies("FullSyncStartRetMsg"));
}

static void send_batch(const char *sync, unsigned batch, const char *keys)
{
    push("{\"type\":\"FullSyncBatchMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"location\":"
         "\"LocalCPUBackend\",\"sync_id\":\"%s\",\"batch_id\":%u,\"keys\":%s}",
         sync, batch, keys);
}

static void send_end(const char *sync, unsigned keys)
{
    push("{\"type\":\"FullSyncEndMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"location\":"
         "\"LocalCPUBackend\",\"sync_id\":\"%s\",\"actual_total_keys\":%u}",
         sync, keys);
}

static void ask_status(const char *sync)
{
    ask("{\"type\":\"FullSyncStatusMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"sync_id\":\"%s\"}",
        sync);
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(bytes_of_lmcache)
{
    ask_hex("86a474797065ab52656769737465724d7367ab696e7374616e63655f6964a4696e7374a9776f726b65725f"
            "696400a26970a93132372e302e302e31a4706f7274cd1f41ad706565725f696e69745f75726cae3132372e"
            "302e302e313a38323030");
    expect_hex("82a474797065ae52656769737465725265744d7367ac65787472615f636f6e66696781ad6865617274"
               "626561745f75726cae3132372e302e302e313a38303832");
    push_hex(
        "85a474797065b5426174636865644b564f7065726174696f6e4d7367ab696e7374616e63655f6964a4696e"
        "7374a9776f726b65725f696400a86c6f636174696f6eaf4c6f63616c4350554261636b656e64aa6f706572"
        "6174696f6e739283a76f705f74797065a561646d6974a36b65797ba77365715f6e756d0083a76f705f7479"
        "7065a56576696374a36b65797ca77365715f6e756d01");
    ck_assert_uint_eq(prefix(123, 2), 1);
    ck_assert_str_eq(longest_texts[0], "inst");
    ck_assert_str_eq(longest_texts[1], "LocalCPUBackend");
    ask_hex("84a474797065b3426174636865645032504c6f6f6b75704d7367a668617368657393010203ab696e737461"
            "6e63655f6964a4696e7374a9776f726b65725f696400");
    ck_assert(replies("BatchedP2PLookupRetMsg"));
    ask_hex("86a474797065ac4865617274626561744d7367ab696e7374616e63655f6964a4696e7374a9776f726b6572"
            "5f696400a26970a93132372e302e302e31a4706f7274cd1f41ad706565725f696e69745f75726cc0");
    expect_hex("82a474797065af4865617274626561745265744d7367a8636f6d6d616e647390");
}
END_TEST

START_TEST(answers_in_the_bytes_of_lmcache)
{
    enter("i2", 0, "\"h:1\"");
    change("i2", 0, "LocalCPUBackend", "admit", 1, 0);
    change("i2", 0, "LocalCPUBackend", "admit", 2, 1);
    find("[1,2,3]", "inst", 0);
    expect_hex("82a474797065b6426174636865645032504c6f6f6b75705265744d7367ab6c61796f75745f696e666f"
               "9194a26932af4c6f63616c4350554261636b656e6402a3683a31");
    tierce__holdings_clear(holdings);
    tierce__controller_tick(controller, true, now_ns);
    beat("i2", 0);
    expect_hex(
        "82a474797065af4865617274626561745265744d7367a8636f6d6d616e64739183ac636f6d6d616e645f"
        "74797065a966756c6c5f73796e63a6726561736f6eb2636f6e74726f6c6c65725f72657374617274a461"
        "726773c0");
}
END_TEST

START_TEST(keys_of_all_numbers)
{
    enter("a", 0, "\"h:1\"");
    change("a", 0, "LocalCPUBackend", "admit", -5, 0);
    push("{\"type\":\"BatchedKVOperationMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"location\":"
         "\"LocalCPUBackend\",\"operations\":[{\"op_type\":\"admit\",\"key\":18446744073709551615,"
         "\"seq_num\":1},{\"op_type\":\"admit\",\"key\":-9223372036854775808,\"seq_num\":2}]}");
    find("[-5,18446744073709551615,-9223372036854775808,5]", "b", 0);
    ck_assert(replies("\x94\xa1"
                      "a\xaf"
                      "LocalCPUBackend\x03\xa3"
                      "h:1"));
    find("[5]", "b", 0); /* not -5 */
    ck_assert(replies("\x94\xa0\xa0\x00\xa0"));
    ck_assert_uint_eq(stats().lookup_hits, 1);
}
END_TEST

START_TEST(evictions_and_workers_that_leave)
{
    enter("a", 0, "null");
    for (unsigned i = 0; i < 10; i++)
        change("a", 0, "LocalCPUBackend", "admit", 100 + i, i);
    ck_assert_uint_eq(prefix(100, 12), 10);
    change("a", 0, "LocalCPUBackend", "evict", 104, 10);
    ck_assert_uint_eq(prefix(100, 12), 4);
    change("a", 0, "LocalDiskBackend", "admit", 100, 0);
    ck_assert_uint_eq(prefix(100, 12), 4);
    push("{\"type\":\"DeRegisterMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"ip\":\"x\",\"port\":"
         "1}");
    ck_assert_uint_eq(prefix(100, 12), 0);
    ck_assert_uint_eq(stats().workers, 0);
    change("a", 0, "LocalCPUBackend", "admit", 1, 0);
    ck_assert_uint_eq(stats().unknown, 1);
}
END_TEST

START_TEST(a_worker_that_registers_again_holds_nothing)
{
    enter("a", 0, "null");
    change("a", 0, "LocalCPUBackend", "admit", 1, 0);
    enter("a", 0, "null");
    ck_assert_uint_eq(prefix(1, 1), 0);
    change("a", 0, "LocalCPUBackend", "admit", 1, 0);
    ck_assert_uint_eq(prefix(1, 1), 1);
    ck_assert_uint_eq(stats().gaps, 0);
    ck_assert_uint_eq(stats().workers, 1);
}
END_TEST

START_TEST(peers_of_the_same_rank)
{
    enter("a", 0, "\"a:0\"");
    enter("b", 0, "\"b:0\"");
    enter("b", 1, "\"b:1\"");
    enter("c", 1, "null");
    change("a", 0, "LocalCPUBackend", "admit", 1, 0);
    change("b", 0, "LocalCPUBackend", "admit", 1, 0);
    change("b", 0, "LocalCPUBackend", "admit", 2, 1);
    change("b", 1, "LocalDiskBackend", "admit", 1, 0);
    change("b", 1, "LocalCPUBackend", "admit", 1, 0);
    change("c", 1, "LocalCPUBackend", "admit", 1, 0);
    change("c", 1, "LocalCPUBackend", "admit", 2, 1);
    find("[1,2]", "a", 1);
    ck_assert(replies("b:1") && replies("LocalCPUBackend\x01"));
    find("[1,2]", "a", 0);
    ck_assert(replies("b:0") && replies("LocalCPUBackend\x02"));
    find("[1,2]", "b", 0);
    ck_assert(replies("a:0"));
    find("[1,2]", "b", 1); /* c has no peer; another rank is better than nobody */
    ck_assert(replies("a:0"));
    find("[]", "b", 1);
    ck_assert(replies("\x94\xa0\xa0\x00\xa0"));
}
END_TEST

START_TEST(a_gap_asks_for_all_contents)
{
    enter("a", 0, "null");
    change("a", 0, "LocalCPUBackend", "admit", 1, 7); /* the first number may be any */
    beat("a", 0);
    ck_assert(!replies("full_sync"));
    change("a", 0, "LocalCPUBackend", "admit", 2, 9);
    ck_assert_uint_eq(prefix(1, 2), 2); /* later changes count */
    beat("a", 0);
    ck_assert(replies("full_sync") && replies("sequence_gap"));
    ck_assert_uint_eq(stats().gaps, 1);

    start("s1", 3, 2);
    ck_assert(replies("accepted\xc3"));
    beat("a", 0);
    ck_assert(!replies("full_sync"));
    ck_assert_uint_eq(prefix(1, 2), 2); /* the old contents, until the new ones are complete */
    send_batch("s1", 0, "[11,12]");
    change("a", 0, "LocalCPUBackend", "admit", 14, 10);
    send_end("s1", 3);
    ask_status("s1");
    ck_assert(replies("is_complete\xc2") && replies("can_exit_freeze\xc2"));
    ck_assert(replies("missing_batches\xdd"));
    ck_assert_int_eq(reply.text[reply.bytes - 1], 1);
    send_batch("s1", 1, "[13]");
    send_batch("s1", 1, "[13]"); /* repeated */
    send_end("s1", 3);
    ask_status("s1");
    ck_assert(replies("is_complete\xc3") && replies("can_exit_freeze\xc3"));
    ck_assert_uint_eq(prefix(1, 2), 0);
    ck_assert_uint_eq(prefix(11, 5), 4); /* with the change that came meanwhile */
    change("a", 0, "LocalCPUBackend", "evict", 11, 11);
    ck_assert_uint_eq(prefix(12, 5), 3);
    ck_assert_uint_eq(stats().syncs, 1);
    ck_assert_uint_eq(stats().gaps, 1);
}
END_TEST

START_TEST(contents_that_do_not_end)
{
    enter("a", 0, "null");
    start("s1", 5, 2);
    send_batch("s1", 0, "[1]");
    send_batch("other", 1, "[2]");
    send_end("other", 5);
    send_batch("s1", 2, "[2]"); /* there is none */
    start("s2", 2, 1);
    ck_assert(replies("accepted\xc3"));
    send_batch("s1", 1, "[2]");
    send_batch("s2", 0, "[1]");
    send_end("s2", 2); /* two keys were to come */
    ask_status("s2");
    ck_assert(replies("is_complete\xc2") && replies("can_exit_freeze\xc3"));
    beat("a", 0);
    ck_assert(replies("sync_failed_retry"));
    start("s3", 1, 1);
    send_batch("s3", 0, "[1]");
    now_ns += 301 * SECOND;
    tierce__controller_tick(controller, true, now_ns);
    ck_assert_uint_eq(stats().workers, 0); /* it was silent */
    ck_assert_uint_eq(stats().syncs, 0);
}
END_TEST

START_TEST(others_wait_while_one_sends)
{
    enter("a", 0, "null");
    enter("b", 0, "null");
    start("s1", 1, 1);
    ask("{\"type\":\"FullSyncStartMsg\",\"instance_id\":\"b\",\"worker_id\":0,\"location\":"
        "\"LocalCPUBackend\",\"sync_id\":\"t\",\"total_keys\":1,\"batch_count\":1}");
    ck_assert(replies("accepted\xc2") && replies("directory.senders"));
    beat("b", 0);
    ck_assert(replies("sync_failed_retry"));
    send_batch("s1", 0, "[1]");
    send_end("s1", 1);
    ask("{\"type\":\"FullSyncStartMsg\",\"instance_id\":\"b\",\"worker_id\":0,\"location\":"
        "\"LocalCPUBackend\",\"sync_id\":\"t\",\"total_keys\":1,\"batch_count\":1}");
    ck_assert(replies("accepted\xc3"));
}
END_TEST

/* Whether the directory shows a location of worker 0 of "a" as complete. */
static bool is_whole(const char *location)
{
    struct tierce__directory_about about;
    char name[64];
    snprintf(name, sizeof(name), "lmcache/a/0/%s", location);
    for (uint32_t from = 0;
         tierce__directory_next(tierce__holdings_directory(holdings), &from, &about);) {
        if (strcmp(about.name, name) == 0)
            return about.is_whole;
    }
    ck_abort_msg("%s is not there", name);
    return false;
}

START_TEST(a_new_leader)
{
    enter("a", 0, "null");
    change("a", 0, "LocalCPUBackend", "admit", 1, 0);
    tierce__controller_tick(controller, false, now_ns); /* it does not lead */
    ck_assert_uint_eq(prefix(1, 1), 0);
    reply.bytes = 0;
    ck_assert(tierce__controller_take(controller, "{\"type\":\"KVAdmitMsg\"}", 21, false, now_ns,
                                      &reply));
    ck_assert(replies("ErrorMsg"));
    beat("a", 0); /* of a worker that is unknown now */
    ck_assert(replies("worker_re_registered"));
    change("a", 0, "LocalCPUBackend", "admit", 2, 5);
    ck_assert_uint_eq(prefix(2, 1), 1);
    change("a", 0, "LocalCPUBackend", "evict", 2, 6);
    ck_assert_uint_eq(prefix(2, 1), 0);
    change("a", 0, "LocalCPUBackend", "admit", 2, 7);
    tierce__holdings_clear(holdings); /* between two ticks */
    change("a", 0, "LocalCPUBackend", "admit", 3, 8);
    ck_assert_uint_eq(prefix(3, 1), 1);
    ck_assert_uint_eq(prefix(2, 1), 0);
    beat("a", 0);
    ck_assert(replies("controller_restart"));
    start("s0", 1, 1);
    send_batch("s0", 0, "[9]");
    send_end("s0", 1);
    ck_assert(is_whole("LocalCPUBackend"));
    change("a", 0, "LocalDiskBackend", "admit", 9, 3); /* which held more, perhaps */
    ck_assert(!is_whole("LocalDiskBackend"));
    start("s1", 1, 1);
    tierce__holdings_clear(holdings);
    send_batch("s1", 0, "[9]");
    send_end("s1", 1);
    ask_status("s1");
    ck_assert(replies("is_complete\xc2") && replies("can_exit_freeze\xc3"));
    beat("a", 0);
    ck_assert(replies("full_sync"));
}
END_TEST

START_TEST(silence_counts_after_a_heartbeat)
{
    enter("a", 0, "null");
    enter("b", 0, "null");
    beat("a", 0);
    record_log(TIERCE_LOG_WARN);
    for (unsigned i = 0; i < 40; i++) { /* longer than the directory's own silence */
        now_ns += 10 * SECOND;
        tierce__controller_tick(controller, true, now_ns);
        tierce__holdings_tick(holdings, now_ns);
        if (i == 20) {
            change("b", 0, "LocalCPUBackend", "admit", 1, 0);
            ck_assert_uint_eq(stats().workers, 2);
        }
    }
    ck_assert_uint_eq(stats().workers, 1);
    ck_assert_uint_eq(prefix(1, 1), 1);
    ck_assert_uint_eq(recorded_with("lmcache.silent", "workers=1"), 1);
}
END_TEST

START_TEST(bounds)
{
    teardown();
    open_controller(2);
    enter("a", 0, "null");
    enter("b", 0, "null");
    ask("{\"type\":\"RegisterMsg\",\"instance_id\":\"c\",\"worker_id\":0,\"ip\":\"h\",\"port\":1,"
        "\"peer_init_url\":null}");
    ck_assert(replies("ErrorMsg") && replies("lmcache.workers"));
    for (unsigned i = 0; i < 9; i++) {
        char location[16];
        snprintf(location, sizeof(location), "l%u", i);
        change("a", 0, location, "admit", 1 + i, 0);
    }
    ck_assert_uint_eq(prefix(8, 1), 1);
    ck_assert_uint_eq(prefix(9, 1), 0);
    ck_assert_uint_eq(stats().full, 2);
}
END_TEST

/* Each is answered with an error that names what is wrong, and none has an effect. */
static const struct {
    const char *message, *error;
} invalid[] = {
    {"", "the frame is invalid"},
    {"\xc1", "the frame is invalid"},
    {"\x81", "the frame is invalid"},
    {"\x81\xa1x", "the frame is invalid"},
    {"\x90", "the frame is invalid"},
    {"\x80", "the type of the message is missing"},
    {"\x80\x80", "the frame is invalid"},
    {"{", "the frame begins as JSON"},
    {"{}", "the type of the message is missing"},
    {"{\"type\":7}", "the type of the message is missing"},
    {"{\"type\":\"Other\"}", "the type of the message is missing"},
    {"{\"type\":\"RegisterMsg\"}", "RegisterMsg: the field instance_id is missing"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"\"}", "instance_id is missing or invalid"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\\u0000\"}",
     "instance_id is missing or invalid"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\\n\"}", "instance_id is missing or invalid"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\\\"\"}", "instance_id is missing or invalid"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"0123456789012345678901234567890123456789"
     "012345678901234567890123456789012345\"}",
     "a text of 1 to 75 bytes"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\",\"worker_id\":-1}",
     "worker_id is missing or invalid; accepted is a whole number from 0 to 65535"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\",\"worker_id\":65536}", "worker_id"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\",\"worker_id\":1.5}",
     "accepted is one object"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"ip\":\"h\",\"port\":0}",
     "port is missing or invalid; accepted is a whole number from 1 to 65535"},
    {"{\"type\":\"RegisterMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"ip\":\"h\",\"port\":1}",
     "peer_init_url"},
    {"{\"type\":\"FullSyncStartMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"location\":\"a/b\"}",
     "location is missing or invalid"},
    {"{\"type\":\"FullSyncStartMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"location\":\"a\","
     "\"sync_id\":\"s\",\"total_keys\":1,\"batch_count\":65537}",
     "batch_count"},
    {"{\"type\":\"BatchedP2PLookupMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"hashes\":[\"x\"]}",
     "hashes"},
    {"{\"type\":\"BatchedP2PLookupMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"hashes\":3}",
     "hashes"},
    {"{\"type\":\"KVAdmitMsg\"}", "lmcache.pull_port"},
    {"{\"type\":\"DeRegisterMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"ip\":\"h\",\"port\":1}",
     "lmcache.pull_port"},
};

START_TEST(invalid_messages)
{
    enter("a", 0, "null");
    for (size_t i = 0; i < sizeof(invalid) / sizeof(*invalid); i++) {
        ask_bytes(invalid[i].message, strlen(invalid[i].message));
        ck_assert_msg(replies("ErrorMsg") && replies(invalid[i].error), "%s", invalid[i].message);
    }
    ck_assert_uint_eq(stats().invalid, sizeof(invalid) / sizeof(*invalid));
    ck_assert_uint_eq(stats().workers, 1);
    push("{\"type\":\"BatchedKVOperationMsg\",\"instance_id\":\"a\",\"worker_id\":0,\"location\":"
         "\"l\",\"operations\":[{\"op_type\":\"admit\",\"key\":1,\"seq_num\":0},"
         "{\"op_type\":\"pin\",\"key\":2,\"seq_num\":1}]}");
    ck_assert_uint_eq(prefix(1, 1), 0); /* all or nothing */
    push("{\"type\":\"KVAdmitMsg\"}");
    ck_assert_uint_eq(stats().invalid, sizeof(invalid) / sizeof(*invalid) + 1);
}
END_TEST

/* Every message of the first test, cut at every byte and with each byte changed: no crash. */
START_TEST(damaged_messages)
{
    static const char hex[] =
        "85a474797065b5426174636865644b564f7065726174696f6e4d7367ab696e7374616e63655f6964a4696e7374"
        "a9776f726b65725f696400a86c6f636174696f6eaf4c6f63616c4350554261636b656e64aa6f7065726174696f"
        "6e739283a76f705f74797065a561646d6974a36b65797ba77365715f6e756d0083a76f705f74797065a5657669"
        "6374a36b65797ca77365715f6e756d01";
    uint8_t frame[512];
    size_t bytes = unhex(frame, hex);
    for (size_t cut = 0; cut < bytes; cut++) {
        push_bytes(frame, cut);
        for (unsigned bit = 0; bit < 8; bit++) {
            frame[cut] ^= (uint8_t)(1u << bit);
            push_bytes(frame, bytes);
            frame[cut] ^= (uint8_t)(1u << bit);
        }
    }
    ck_assert_uint_ge(stats().invalid, bytes);
    ck_assert_uint_eq(stats().workers, 0);
}
END_TEST

START_TEST(lists)
{
    struct tierce__controller_about *list;
    size_t count;
    enter("a", 0, "\"a:0\"");
    enter("b", 1, "null");
    change("b", 1, "LocalCPUBackend", "admit", 1, 0);
    change("b", 1, "LocalDiskBackend", "admit", 1, 0);
    ck_assert_int_eq(tierce__controller_list(controller, NULL, &list, &count), 0);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(list[0].peer, "a:0");
    ck_assert_str_eq(list[1].host, "10.0.0.2");
    ck_assert_uint_eq(list[1].port, 8001);
    ck_assert_uint_eq(list[1].keys, 2);
    tierce__free(list);
    ck_assert_int_eq(tierce__controller_list(controller, "a", &list, &count), 0);
    ck_assert_uint_eq(count, 1);
    tierce__free(list);
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    static const char *const frames[] = {
        "{\"type\":\"RegisterMsg\",\"instance_id\":\"b\",\"worker_id\":0,\"ip\":\"h\",\"port\":1,"
        "\"peer_init_url\":\"b:0\"}",
        "{\"type\":\"FullSyncStartMsg\",\"instance_id\":\"b\",\"worker_id\":0,\"location\":\"l\","
        "\"sync_id\":\"s\",\"total_keys\":1,\"batch_count\":9}",
        "{\"type\":\"FullSyncStatusMsg\",\"instance_id\":\"b\",\"worker_id\":0,\"sync_id\":\"s\"}",
        "{\"type\":\"BatchedP2PLookupMsg\",\"instance_id\":\"c\",\"worker_id\":0,\"hashes\":[1]}"};
    uint64_t made = UINT64_MAX;
    for (uint64_t nth = 1; nth <= made; nth++) { /* until fewer are made: none of them fails */
        struct tierce__line answer = {0};
        tierce__alloc_fail_nth(nth);
        for (size_t i = 0; i < sizeof(frames) / sizeof(*frames); i++)
            (void)tierce__controller_take(controller, frames[i], strlen(frames[i]), true, now_ns,
                                          &answer);
        made = tierce__alloc_fail_nth(0);
        tierce__line_clear(&answer);
        tierce__controller_tick(controller, false, now_ns);
    }
    ck_assert_uint_eq(stats().workers, 0);
}
END_TEST

CHECK_MAIN("controller", .setup = setup, .teardown = teardown,
           .tests = {bytes_of_lmcache, answers_in_the_bytes_of_lmcache, keys_of_all_numbers,
                     evictions_and_workers_that_leave, a_worker_that_registers_again_holds_nothing,
                     peers_of_the_same_rank, a_gap_asks_for_all_contents, contents_that_do_not_end,
                     others_wait_while_one_sends, a_new_leader, silence_counts_after_a_heartbeat,
                     bounds, invalid_messages, damaged_messages, lists, each_allocation_fails_once})
