/* SPDX-License-Identifier: Apache-2.0 */
/* transfer:// against servers that answer what they must not, and URLs that are wrong.
 * tests/conformance/test_transfer_connector.c tests it with a real server. */
#include "base/bytes.h"
#include "connector_harness.h"
#include "raw_transfer.h"
#include "net/tls.h"
#include "script_server.h"
#include "server_process.h"

#include <sys/stat.h>

static struct tierce__pool *pool;
static struct tierce__connector *connector;
static struct script_server server;

static int try_open(const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static void open_port(uint16_t port, const char *space, const char *more)
{
    char url[200], why[TIERCE__CONNECTOR_WHY_BYTES];
    pool = connector_pool();
    snprintf(url, sizeof(url), "transfer://127.0.0.1:%u/%s?connections=2%s", (unsigned)port, space,
             more);
    ck_assert_msg(try_open(url, why) == 0, "%s", why);
}

static void close_connector(void)
{
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
    tierce__pool_destroy(pool);
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static const struct {
    const char *url, *why;
} wrong_urls[] = {
    {"transfer:///memory", "URL: exactly one host is required"},
    {"transfer://host/memory", "URL: a port is needed"},
    {"transfer://a:1,b:2/memory", "URL: exactly one host is required"},
    {"transfer://user@host:1/memory", "URL: this protocol accepts no user name"},
    {"transfer://host:1",
     "URL: the path must name a space of 1 to 64 bytes, as in transfer://HOST:PORT/memory"},
    {"transfer://host:1/",
     "URL: the path must name a space of 1 to 64 bytes, as in transfer://HOST:PORT/memory"},
    {"transfer://host:1/memory?ttl=1",
     "URL: unknown parameter \"ttl\" (\"ca_file\"?); there are connections, token_file, ca_file, "
     "client_certificate, client_key"},
    {"transfer://host:1/memory?connections=1",
     "URL: parameter connections is \"1\"; accepted are 2 to 150"},
    {"transfer://host:1/memory?ca_file=/x", "URL: certificates require transfer+tls://"},
    {"transfer+tls://host:1/memory?ca_file=/none",
     "cannot load /none: No such file or directory (TLS CA)"},
};

START_TEST(wrong_urls_are_told)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    ck_assert_int_eq(try_open(wrong_urls[_i].url, why), TIERCE_E_CONFIG);
    ck_assert_str_eq(why, wrong_urls[_i].why);
}
END_TEST

/* ---- calls ----------------------------------------------------------------------------------- */

#define BYTES 5u

/* The status, or what a lookup has found, and `why`. `wanted`: only where that is the deadline is
 * it waited for. */
static int operate(enum tierce__store_op op, int wanted, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct connector_call call;
    connector_call_init(&call, op, op == TIERCE__STORE_PING ? NULL : "n", 0);
    call.req.buf = connector_object(pool, 1, BYTES);
    call.req.length = BYTES;
    call.req.deadline_ns = tierce__deadline_in_ms(wanted == TIERCE_E_DEADLINE ? 300 : 30000);
    int rc = connector_call_run(connector, &call);
    connector->ops->why(connector, why);
    if (op == TIERCE__STORE_GET && rc == 0)
        ck_assert_int_eq(memcmp(call.req.buf->data, "xxxxx", BYTES), 0);
    /* A call that is left behind has a reference until it is back. */
    while (atomic_load(&call.req.buf->refs) > 1)
        sched_yield();
    tierce__buf_release(call.req.buf);
    return op == TIERCE__STORE_LOOKUP && rc == 0 ? (int)call.req.found : rc;
}

/* ---- greetings ------------------------------------------------------------------------------- */

static const struct {
    const char *what;
    uint32_t version;
    int32_t status;
    size_t cut; /* 0: none */
    uint8_t first;
    int rc;
    const char *why; /* a part of it */
} welcomes[] = {
#define M 'T'
    {"another version", 9, TIERCE_E_VERSION, 0, M, TIERCE_E_FORMAT,
     "the server speaks version 9 of the protocol, this build version 1"},
    {"a token", 1, TIERCE_E_REFUSED, 0, M, TIERCE_E_REFUSED,
     "the server requires a token: token_file=FILE"},
    {"a space", 1, TIERCE_E_ARGUMENT, 0, M, TIERCE_E_REFUSED, "the server has no space \"memory\""},
    {"another magic", 1, 0, 0, 'X', TIERCE_E_FORMAT,
     "the server does not speak the protocol of transfer://"},
    {"half of it", 1, 0, 30, M, TIERCE_E_DOWN, "if it requires TLS: transfer+tls://"},
#undef M
};

static size_t make_welcome(uint8_t out[TIERCE__TRANSFER_WELCOME_BYTES], uint32_t version,
                           int32_t status)
{
    tierce__transfer_welcome_encode(
        out,
        &(struct tierce__transfer_welcome){
            .version = version, .status = status, .rights = 3, .pipeline = 8, .names_max = 100});
    return TIERCE__TRANSFER_WELCOME_BYTES;
}

START_TEST(wrong_welcomes)
{
    uint8_t bytes[TIERCE__TRANSFER_WELCOME_BYTES];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    size_t count = make_welcome(bytes, welcomes[_i].version, welcomes[_i].status);
    bytes[0] = welcomes[_i].first;
    struct script_reply reply = {bytes, welcomes[_i].cut > 0 ? welcomes[_i].cut : count, true,
                                 false};
    script_server_start(&server, &reply, 1);
    open_port(server.port, "memory", "");
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), welcomes[_i].rc);
    ck_assert_msg(strstr(why, welcomes[_i].why) != NULL, "%s: %s", welcomes[_i].what, why);
    close_connector();
    script_server_stop(&server);
}
END_TEST

/* ---- replies --------------------------------------------------------------------------------- */

/* What is said to the first request, and what becomes of a GET of five bytes, a PUT, a LOOKUP, a
 * DELETE and a PING then. The op of the reply is the request's, unless it is `op`. */
static const struct {
    const char *what;
    uint16_t sequence;
    int32_t status;
    uint64_t bytes;
    size_t body, cut;
    bool closes;
    int op;
    int get, put, lookup, remove, ping;
} replies[] = {
#define F TIERCE_E_FORMAT
#define D TIERCE_E_DOWN
#define T TIERCE_E_DEADLINE
    {"there", 0, 0, BYTES, BYTES, 0, false, 0, 0, F, F, F, F},
    {"done", 0, 0, 0, 0, 0, false, 0, F, 0, F, 0, 0},
    {"one length", 0, 0, 8, 8, 0, false, 0, F, F, 1, F, F},
    {"no object", 0, TIERCE_E_MISS, 0, 0, 0, false, 0, TIERCE_E_MISS, F, F, F, F},
    {"full", 0, TIERCE_E_FULL, 0, 0, 0, false, 0, F, TIERCE_E_FULL, F, F, F},
    {"no right", 0, TIERCE_E_REFUSED, 0, 0, 0, false, 0, TIERCE_E_REFUSED, TIERCE_E_REFUSED,
     TIERCE_E_REFUSED, TIERCE_E_REFUSED, TIERCE_E_REFUSED},
    {"an unknown status", 0, -6000, 0, 0, 0, false, 0, F, F, F, F, F},
    {"another request's", 1, 0, BYTES, BYTES, 0, false, 0, F, F, F, F, F},
    {"another kind of reply", 0, 0, BYTES, BYTES, 0, false, TIERCE__TRANSFER_OP_LIST, F, F, F, F,
     F},
    {"too long", 0, 0, BYTES + 1, BYTES + 1, 0, false, 0, F, F, F, F, F},
    {"very long", 0, 0, UINT64_MAX, 100, 0, false, 0, F, F, F, F, F},
    {"a miss with bytes behind it", 0, TIERCE_E_MISS, 0, 3, 0, true, 0, F, F, F, F, F},
    {"half a head", 0, 0, BYTES, 0, 20, true, 0, D, D, D, D, D},
    {"half a head, and silence", 0, 0, BYTES, 0, 20, false, 0, T, T, T, T, T},
    {"half an object", 0, 0, BYTES, BYTES, RAW_HEAD + 3, true, 0, D, F, F, F, F},
    {"half an object, and silence", 0, 0, BYTES, BYTES, RAW_HEAD + 3, false, 0, T, F, F, F, F},
#undef F
#undef D
#undef T
};

static size_t make_reply(uint8_t out[256], int index, enum tierce__transfer_op op)
{
    memset(out, 'x', 256);
    enum tierce__transfer_op told =
        replies[index].op != 0 ? (enum tierce__transfer_op)replies[index].op : op;
    struct tierce__transfer_reply reply = {.op = told, .sequence = replies[index].sequence};
    tierce__transfer_reply_encode(out, &reply);
    tierce__store_le32(out + 4, (uint32_t)replies[index].status);
    tierce__store_le64(out + 8, replies[index].bytes);
    tierce__store_le64(out + 16, op == TIERCE__TRANSFER_OP_READ ? replies[index].bytes : 0);
    return replies[index].cut > 0 ? replies[index].cut : RAW_HEAD + replies[index].body;
}

START_TEST(wrong_replies)
{
    static const struct {
        enum tierce__store_op op;
        enum tierce__transfer_op wire;
    } ops[] = {{TIERCE__STORE_GET, TIERCE__TRANSFER_OP_READ},
               {TIERCE__STORE_PUT, TIERCE__TRANSFER_OP_WRITE},
               {TIERCE__STORE_LOOKUP, TIERCE__TRANSFER_OP_ASK},
               {TIERCE__STORE_DELETE, TIERCE__TRANSFER_OP_DROP},
               {TIERCE__STORE_PING, TIERCE__TRANSFER_OP_ASK}};
    const int wanted[] = {replies[_i].get, replies[_i].put, replies[_i].lookup, replies[_i].remove,
                          replies[_i].ping};
    uint8_t welcome[TIERCE__TRANSFER_WELCOME_BYTES], bytes[256];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        struct script_reply script[2] = {
            {welcome, make_welcome(welcome, 1, 0), false, false},
            {bytes, make_reply(bytes, _i, ops[i].wire), replies[_i].closes, false}};
        script_server_start(&server, script, 2);
        open_port(server.port, "memory", "");
        int rc = operate(ops[i].op, wanted[i], why);
        ck_assert_msg(rc == wanted[i], "%s, operation %d: %d instead of %d: %s", replies[_i].what,
                      (int)ops[i].op, rc, wanted[i], why);
        close_connector();
        script_server_stop(&server);
    }
}
END_TEST

/* ---- lists ----------------------------------------------------------------------------------- */

static const struct {
    const char *what;
    uint8_t page[8];
    size_t bytes;
    int rc;
} pages[] = {
    {"two names", {1, 0, 'a', 1, 0, 'b'}, 6, 0},
    {"no names", {0}, 0, 0},
    {"a name that is cut", {2, 0, 'a'}, 3, TIERCE_E_FORMAT},
    {"an empty name", {0, 0}, 2, TIERCE_E_FORMAT},
    {"a NUL", {1, 0, 0}, 3, TIERCE_E_FORMAT},
    {"half a length", {1, 0, 'a', 1}, 4, TIERCE_E_FORMAT},
};

static unsigned listed;

static void count_name(void *arg, const struct tierce_plugin_name *name)
{
    (void)arg;
    ck_assert_uint_eq(name->bytes, 1);
    listed++;
}

START_TEST(wrong_lists)
{
    uint8_t welcome[TIERCE__TRANSFER_WELCOME_BYTES], bytes[64];
    struct connector_call call;
    tierce__transfer_reply_encode(
        bytes,
        &(struct tierce__transfer_reply){.op = TIERCE__TRANSFER_OP_LIST, .bytes = pages[_i].bytes});
    memcpy(bytes + RAW_HEAD, pages[_i].page, pages[_i].bytes);
    struct script_reply script[2] = {{welcome, make_welcome(welcome, 1, 0), false, false},
                                     {bytes, RAW_HEAD + pages[_i].bytes, false, false}};
    script_server_start(&server, script, 2);
    open_port(server.port, "memory", "");
    connector_call_init(&call, TIERCE__STORE_LIST, "", 0);
    call.req.each = count_name;
    listed = 0;
    ck_assert_int_eq(connector_call_run(connector, &call), pages[_i].rc);
    ck_assert_uint_le(listed, 2);
    close_connector();
    script_server_stop(&server);
}
END_TEST

/* ---- tokens ---------------------------------------------------------------------------------- */

static uint32_t rights_of(void *arg, const char *token, size_t bytes)
{
    (void)arg, (void)bytes;
    return strcmp(token, "good") == 0 ? TIERCE__TRANSFER_READ : 0;
}

static void write_token(const char *path, const char *token)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%s\n", token);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0600), 0);
}

/* The file is read again for a new connection; a reader may not write. */
START_TEST(a_token)
{
    struct raw_world world = {.opts.rights = rights_of};
    char folder[] = "/tmp/tierce-transfer-XXXXXX", path[64], more[100];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/token", folder);
    snprintf(more, sizeof(more), "&token_file=%s", path);
    write_token(path, "bad");
    raw_start(&world, 1 << 20);
    open_port(tierce__transfer_server_port(world.server), "memory", more);
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), TIERCE_E_REFUSED);
    ck_assert_msg(strstr(why, "the server rejects the token in token_file") != NULL, "%s", why);
    write_token(path, "good");
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), TIERCE_E_MISS);
    ck_assert_int_eq(operate(TIERCE__STORE_PUT, 0, why), TIERCE_E_REFUSED);
    ck_assert_msg(strstr(why, "the server does not permit this client a write") != NULL, "%s", why);
    close_connector();
    raw_stop(&world);
}
END_TEST

START_TEST(another_space)
{
    struct raw_world world = {0};
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    raw_start(&world, 1 << 20);
    open_port(tierce__transfer_server_port(world.server), "disk", "");
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), TIERCE_E_REFUSED);
    ck_assert_msg(strstr(why, "the server has no space \"disk\"") != NULL, "%s", why);
    close_connector();
    raw_stop(&world);
}
END_TEST

/* ---- TLS ------------------------------------------------------------------------------------- */

static struct raw_world secure;
static char folder[64];

static void load_tls(void)
{
    char certificate[96], key[96], why[256];
    ck_assert(server_folder(folder) && tls_make_certificates(folder));
    snprintf(certificate, sizeof(certificate), "%s/s.pem", folder);
    snprintf(key, sizeof(key), "%s/s.key", folder);
    ck_assert_int_eq(
        tierce__tls_server_context(&secure.opts.tls,
                                   &(struct tierce__tls){certificate, key, .is_bare = true}, why),
        0);
}

static void start_tls(void)
{
    load_tls();
    secure.opts.request_ms = 1000;
    raw_start(&secure, 64 << 20);
}

static void stop_tls(void)
{
    raw_stop(&secure);
    tierce__tls_context_destroy(secure.opts.tls);
    server_remove(folder);
    secure = (struct raw_world){0};
}

static void open_tls(uint16_t port, const char *ca, const char *more)
{
    char url[400], why[TIERCE__CONNECTOR_WHY_BYTES];
    pool = connector_pool();
    snprintf(url, sizeof(url), "transfer+tls://127.0.0.1:%u/memory?connections=2&ca_file=%s/%s%s",
             (unsigned)port, folder, ca, more);
    ck_assert_msg(try_open(url, why) == 0, "%s", why);
}

/* Larger than a call to TLS, and than the buffers of a socket. */
START_TEST(large_objects_by_tls)
{
    enum { LARGE = 9000000 };
    open_tls(tierce__transfer_server_port(secure.server), "ca.pem", "");
    ck_assert_int_eq(connector_put(connector, pool, "a", 1, LARGE), 0);
    ck_assert_int_eq(connector_get(connector, pool, "a", 1, 0, LARGE), 0);
    ck_assert_int_eq(connector_put(connector, pool, "b", 2, 1), 0);
    ck_assert_int_eq(connector_get(connector, pool, "b", 2, 0, 1), 0);
    ck_assert_int_eq(connector_exists(connector, "a"), 1);
    close_connector();
}
END_TEST

/* An authority that did not sign the server's certificate. */
START_TEST(another_authority)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    open_tls(tierce__transfer_server_port(secure.server), "other.pem", "");
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), TIERCE_E_DOWN);
    ck_assert_msg(strstr(why, "TLS with 127.0.0.1: ") != NULL, "%s", why);
    ck_assert_msg(strstr(why, "certificate") != NULL, "%s", why);
    close_connector();
}
END_TEST

START_TEST(a_client_without_tls)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    open_port(tierce__transfer_server_port(secure.server), "memory", "");
    int rc = operate(TIERCE__STORE_GET, 0, why);
    ck_assert_msg(rc == TIERCE_E_DOWN && strstr(why, "transfer+tls://") != NULL, "%d: %s", rc, why);
    close_connector();
}
END_TEST

START_TEST(a_server_without_tls)
{
    struct raw_world plain = {0};
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    raw_start(&plain, 1 << 20);
    open_tls(tierce__transfer_server_port(plain.server), "ca.pem", "");
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), TIERCE_E_DOWN);
    ck_assert_msg(strstr(why, "TLS with 127.0.0.1: ") != NULL, "%s", why);
    close_connector();
    raw_stop(&plain);
}
END_TEST

/* A server that demands a certificate of its authority. */
START_TEST(certificates_of_clients)
{
    struct raw_world strict = {0};
    char certificate[96], key[96], ca[96], more[300], why[256];
    snprintf(certificate, sizeof(certificate), "%s/s.pem", folder);
    snprintf(key, sizeof(key), "%s/s.key", folder);
    snprintf(ca, sizeof(ca), "%s/ca.pem", folder);
    ck_assert_int_eq(
        tierce__tls_server_context(
            &strict.opts.tls, &(struct tierce__tls){certificate, key, ca, .is_bare = true}, why),
        0);
    raw_start(&strict, 1 << 20);
    uint16_t port = tierce__transfer_server_port(strict.server);
    open_tls(port, "ca.pem", "");
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), TIERCE_E_DOWN);
    ck_assert_msg(strstr(why, "requires a certificate") != NULL, "%s", why);
    close_connector();
    snprintf(more, sizeof(more), "&client_certificate=%s&client_key=%s", certificate, key);
    open_tls(port, "ca.pem", more);
    ck_assert_int_eq(operate(TIERCE__STORE_GET, 0, why), TIERCE_E_MISS);
    close_connector();
    raw_stop(&strict);
    tierce__tls_context_destroy(strict.opts.tls);
}
END_TEST

START_TEST(a_client_that_does_not_shake_hands)
{
    int fd = raw_connect(&secure);
    raw_send(fd, "\x16\x03\x01", 3); /* the beginning of a handshake */
    raw_ends(fd);
    WAIT_FOR(raw_stats(&secure).connections == 0);
}
END_TEST

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

int main(void)
{
    Suite *suite = suite_create("transfer client");
    TCase *tcase = tcase_create("servers");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, wrong_urls_are_told, 0, COUNT(wrong_urls));
    tcase_add_loop_test(tcase, wrong_welcomes, 0, COUNT(welcomes));
    tcase_add_loop_test(tcase, wrong_replies, 0, COUNT(replies));
    tcase_add_loop_test(tcase, wrong_lists, 0, COUNT(pages));
    tcase_add_test(tcase, a_token);
    tcase_add_test(tcase, another_space);
    suite_add_tcase(suite, tcase);
    TCase *tls = tcase_create("tls");
    tcase_set_timeout(tls, 120);
    tcase_add_checked_fixture(tls, start_tls, stop_tls);
    tcase_add_test(tls, large_objects_by_tls);
    tcase_add_test(tls, another_authority);
    tcase_add_test(tls, a_client_without_tls);
    tcase_add_test(tls, a_server_without_tls);
    tcase_add_test(tls, certificates_of_clients);
    tcase_add_test(tls, a_client_that_does_not_shake_hands);
    suite_add_tcase(suite, tls);
    return check_main(suite);
}
