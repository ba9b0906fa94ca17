/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of our clients of Redis, lm:// and memcached, byte by byte (clients.txt). */
#include "frozen.h"

#include "connector_harness.h"
#include "fake_server.h"

#include <ctype.h>

#define FILE_NAME "clients.txt"

/* ---- requests -------------------------------------------------------------------------------- */

static size_t resp_request(const char *bytes, size_t count)
{
    const char *at = bytes, *end = bytes + count;
    char *next;
    if (count < 4 || memchr(at, '\n', count) == NULL)
        return 0;
    long parts = strtol(at + 1, &next, 10);
    at = next + 2;
    for (; parts > 0; parts--) {
        if (at >= end || memchr(at, '\n', (size_t)(end - at)) == NULL)
            return 0;
        long length = strtol(at + 1, &next, 10);
        at = next + 2 + length + 2;
    }
    return at <= end ? (size_t)(at - bytes) : 0;
}

#define LM_REQUEST 186u

static size_t lm_request(const char *bytes, size_t count)
{
    int32_t command, length;
    if (count < LM_REQUEST)
        return 0;
    memcpy(&command, bytes, 4);
    memcpy(&length, bytes + 4, 4);
    size_t whole = LM_REQUEST + (command == 1 ? (size_t)length : 0);
    return count >= whole ? whole : 0;
}

static size_t memcached_request(const char *bytes, size_t count)
{
    const char *end = memchr(bytes, '\n', count);
    char word[8], key[256];
    unsigned flags, length = 0;
    long expires;
    if (end == NULL)
        return 0;
    size_t whole = (size_t)(end + 1 - bytes);
    if (sscanf(bytes, "%7s %255s %u %ld %u", word, key, &flags, &expires, &length) == 5 &&
        (strcmp(word, "set") == 0 || strcmp(word, "add") == 0 || strcmp(word, "cas") == 0))
        whole += length + 2;
    return count >= whole ? whole : 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

#define TEXT(text) text, sizeof(text) - 1

static const struct fake_reply resp_replies[] = {{"AUTH", TEXT("+OK\r\n")},
                                                 {"SELECT", TEXT("+OK\r\n")},
                                                 {"PING", TEXT("+PONG\r\n")},
                                                 {"EXISTS", TEXT(":1\r\n")},
                                                 {"GETRANGE", TEXT("$5\r\n\0\7\16\25\34\r\n")},
                                                 {"SET", TEXT("+OK\r\n")},
                                                 {"UNLINK", TEXT(":1\r\n")},
                                                 {"SCAN", TEXT("*2\r\n$1\r\n0\r\n*0\r\n")},
                                                 {NULL, NULL, 0}};

#define LM_OK(length)                                                                              \
    "\310\0\0\0" length "\0\0\0\4\0\0\0\6\0\0\0" length "\0\0\0"                                   \
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

static const struct fake_reply lm_replies[] = {{"\1\0\0\0\5", NULL, 0}, /* PUT */
                                               {"\2", TEXT(LM_OK("\5") "\0\7\16\25\34")},
                                               {"\3", TEXT(LM_OK("\0"))},
                                               {"\5", TEXT(LM_OK("\0"))},
                                               {NULL, NULL, 0}};

#define HEAD                                                                                       \
    "TierceH1"                                                                                     \
    "\21\21\21\21\21\21\21\21\21\21\21\21\21\21\21\21"                                             \
    "\5\0\0\0\0\0\0\0\5\0\0\0\1\0\0\0name"

static const struct fake_reply memcached_replies[] = {
    {"stats settings", TEXT("STAT item_size_max 1048576\r\nEND\r\n")},
    {"version", TEXT("VERSION 1.6.18\r\n")},
    {"gets tierce:n:name", TEXT("VALUE tierce:n:name 0 44 7\r\n" HEAD "\r\nEND\r\n")},
    {"gets", TEXT("END\r\n")},
    {"get tierce:n:name", TEXT("VALUE tierce:n:name 0 44\r\n" HEAD "\r\nEND\r\n")},
    {"get tierce:p:", TEXT("VALUE tierce:p:11111111111111111111111111111111:0 0 5\r\n"
                           "\0\7\16\25\34\r\nEND\r\n")},
    {"get ", TEXT("END\r\n")},
    {"touch", TEXT("TOUCHED\r\n")},
    {"delete", TEXT("DELETED\r\n")},
    {"set ", TEXT("STORED\r\n")},
    {"add ", TEXT("STORED\r\n")},
    {"cas ", TEXT("STORED\r\n")},
    {NULL, NULL, 0}};

/* ---- transcripts ----------------------------------------------------------------------------- */

static const struct client {
    const char *name, *url;
    size_t (*request_bytes)(const char *bytes, size_t count);
    const struct fake_reply *replies;
    bool lists, deletes, misses;
} clients[] = {
    {"redis", "redis://127.0.0.1:%u/?connections=2", resp_request, resp_replies, true, true, false},
    {"redis-options", "redis://user:secret@127.0.0.1:%u/3?connections=2&ttl=1h&prefix=p:",
     resp_request, resp_replies, true, true, false},
    {"lm", "lm://127.0.0.1:%u?connections=2", lm_request, lm_replies, false, false, false},
    {"memcached", "memcached://127.0.0.1:%u?connections=2", memcached_request, memcached_replies,
     false, true, false},
    {"memcached-options", "memcached://127.0.0.1:%u?connections=2&ttl=1h&prefix=p:",
     memcached_request, memcached_replies, false, true, true},
};

/* A new object has a random generation: its digits become '?'. */
static void hide_generation(char *bytes, size_t count)
{
    for (size_t i = 0; i + 10 < count; i++) {
        char *part = memcmp(bytes + i, ":p:", 3) == 0 ? bytes + i + 3 : NULL;
        for (size_t n = 0; part != NULL && n < 32 && i + 3 + n < count && isxdigit(part[n]); n++)
            part[n] = '?';
        if (memcmp(bytes + i, "TierceH1", 8) == 0 && i + 24 <= count)
            memset(bytes + i + 8, '?', 16);
    }
}

static char *escape(const char *bytes, size_t count)
{
    char *out = NULL;
    size_t room;
    FILE *file = open_memstream(&out, &room);
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] == '\r')
            fputs("\\r", file);
        else if (bytes[i] == '\n')
            fputs("\\n", file);
        else if (isprint((unsigned char)bytes[i]) && bytes[i] != '\\')
            fputc(bytes[i], file);
        else
            fprintf(file, "\\x%02x", (unsigned char)bytes[i]);
    }
    ck_assert_int_eq(fclose(file), 0);
    return out;
}

static void check_requests(struct fake_server *server, const struct client *client,
                           const char *what)
{
    char bytes[8192], name[64];
    size_t count = fake_server_take(server, bytes);
    snprintf(name, sizeof(name), "%s.%s", client->name, what);
    ck_assert_uint_gt(count, 0);
    hide_generation(bytes, count);
    char *text = escape(bytes, count);
    frozen_check(FILE_NAME, name, text);
    free(text);
}

static void ignore_name(void *arg, const struct tierce_plugin_name *name)
{
    (void)arg;
    (void)name;
}

static int run(struct tierce__connector *connector, struct tierce__pool *pool, const char *what)
{
    struct connector_call call;
    if (strcmp(what, "PING") == 0)
        return connector_ping(connector);
    if (strcmp(what, "GET") == 0)
        return connector_get(connector, pool, "name", 0, 0, 5);
    if (strcmp(what, "PUT") == 0)
        return connector_put(connector, pool, "name", 0, 5);
    if (strcmp(what, "PUT-strange") == 0)
        return connector_put(connector, pool, "a b%/\xff", 0, 5);
    if (strcmp(what, "DELETE") == 0)
        return connector_delete(connector, "name");
    bool lists = strcmp(what, "LIST") == 0;
    connector_call_init(&call, lists ? TIERCE__STORE_LIST : TIERCE__STORE_LOOKUP, "name", 0);
    call.req.each = ignore_name;
    return connector_call_run(connector, &call);
}

/* Each with a connector of its own, so that it begins with the greeting of one connection. */
static void check_operation(const struct client *client, struct fake_server *server,
                            const char *what, int status)
{
    struct tierce__pool *pool = connector_pool();
    struct tierce__connector *connector;
    char url[128], why[TIERCE__CONNECTOR_WHY_BYTES];
    snprintf(url, sizeof(url), client->url, (unsigned)server->port);
    int rc =
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               why);
    ck_assert_msg(rc == 0, "%s", why);
    rc = run(connector, pool, what);
    check_requests(server, client, what);
    ck_assert_msg(rc == status, "%s of %s: %s", what, client->name, tierce_strerror(rc));
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(10000)));
    tierce__pool_destroy(pool);
}

START_TEST(requests)
{
    const struct client *client = &clients[_i];
    struct fake_server server = {.request_bytes = client->request_bytes,
                                 .replies = client->replies};
    fake_server_start(&server);
    check_operation(client, &server, "PING", 0);
    check_operation(client, &server, "EXISTS", 0);
    check_operation(client, &server, "GET", client->misses ? TIERCE_E_MISS : 0);
    check_operation(client, &server, "PUT", 0);
    check_operation(client, &server, "PUT-strange", 0);
    if (client->deletes)
        check_operation(client, &server, "DELETE", 0);
    if (client->lists)
        check_operation(client, &server, "LIST", 0);
    fake_server_stop(&server);
}
END_TEST

CHECK_MAIN("frozen_clients", .seconds = 60,
           .loops = {{requests, 0, (int)(sizeof(clients) / sizeof(clients[0]))}})
