/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "node/resp/resp_session.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Commands about connections: authentication, CLIENT, and others that access no value. */

#define NAME_BYTES sizeof(((struct tierce__resp_client *)0)->name)

/* ---- the public part of a connection ----------------------------------------------------------
 */

/* `field`: a text of the client. Only its own session may read it without the lock. */
static void note(struct tierce__resp_session *s, char field[64], const char *text)
{
    tierce__lock_take(&s->node->clients_lock);
    snprintf(field, NAME_BYTES, "%s", text);
    tierce__lock_drop(&s->node->clients_lock);
}

static void speak(struct tierce__resp_session *s, int protocol)
{
    TIERCE_ASSERT(protocol == 2 || protocol == 3);
    s->protocol = protocol;
    atomic_store_explicit(&s->client.protocol, protocol, memory_order_relaxed);
}

static unsigned long long seconds(uint64_t now_ns, uint64_t then_ns)
{
    return now_ns > then_ns ? (now_ns - then_ns) / (1000 * TIERCE__MS_NS) : 0;
}

void tierce__resp_client_enter(struct tierce__resp_session *s)
{
    struct tierce__resp_client *client = &s->client;
    client->fd = s->connection->source.fd;
    client->begun_ns = tierce__now_ns();
    snprintf(client->user, sizeof(client->user), "default");
    atomic_store_explicit(&client->active_ns, client->begun_ns, memory_order_relaxed);
    speak(s, 2);
    tierce__lock_take(&s->node->clients_lock);
    tierce__list_push_back(&s->node->clients, &client->member);
    tierce__lock_drop(&s->node->clients_lock);
}

void tierce__resp_client_leave(struct tierce__resp_session *s)
{
    tierce__lock_take(&s->node->clients_lock);
    TIERCE_ASSERT(!tierce__list_empty(&s->client.member));
    tierce__list_remove(&s->client.member);
    tierce__lock_drop(&s->node->clients_lock);
}

void tierce__resp_client_became(struct tierce__resp_session *s)
{
    tierce__lock_take(&s->node->clients_lock);
    s->client.space = s->who.space;
    tierce__lock_drop(&s->node->clients_lock);
}

/* ---- authentication -------------------------------------------------------------------------- */

static bool log_in(struct tierce__resp_session *s, const struct tierce__resp_arg *name,
                   const struct tierce__resp_arg *token)
{
    struct tierce__identity who;
    bool has_name = name != NULL && !tierce__resp_arg_is(name, "default");
    if (token->text != NULL && (name == NULL || name->text != NULL) &&
        tierce__access_token(s->node->access, TIERCE__SPACE_RESP, has_name ? name->text : NULL,
                             has_name ? name->bytes : 0, token->text, token->bytes, &who)) {
        note(s, s->client.user, has_name ? name->text : "default");
        tierce__resp_become(s, &who);
        return true;
    }
    tierce__node_count(s->node, TIERCE__NODE_logins_refused, 1);
    tierce__resp_error(s, "WRONGPASS invalid username-password pair or user is disabled.");
    return false;
}

void tierce__resp_run_auth(struct tierce__resp_session *s)
{
    struct tierce__identity nobody;
    size_t count = s->request.count;
    if (count > 3)
        tierce__resp_error(s, "ERR syntax error");
    else if (tierce__access_nobody(s->node->access, TIERCE__SPACE_RESP, &nobody) && count == 2)
        tierce__resp_error(s, "ERR AUTH <password> called without any password configured for the "
                              "default user. Are you sure your configuration is correct?");
    else if (log_in(s, count == 3 ? tierce__resp_arg(s, 1) : NULL, tierce__resp_arg(s, count - 1)))
        tierce__resp_ok(s);
}

/* The name of a client or library: printable, without blanks. */
static bool is_plain(const struct tierce__resp_arg *name)
{
    bool is_good = name->text != NULL && name->bytes < NAME_BYTES;
    for (size_t i = 0; is_good && i < name->bytes; i++)
        is_good = name->text[i] > ' ' && name->text[i] <= '~';
    return is_good;
}

static bool set_name(struct tierce__resp_session *s, const struct tierce__resp_arg *name)
{
    bool is_good = is_plain(name);
    if (is_good)
        note(s, s->client.name, name->text);
    else
        tierce__resp_error(s, "ERR Client names cannot contain spaces, newlines or special "
                              "characters, or be longer than 63 bytes.");
    return is_good;
}

static void say_hello(struct tierce__resp_session *s)
{
    tierce__resp_map(s, 7);
    tierce__resp_text(s, "server");
    tierce__resp_text(s, "tierce");
    tierce__resp_text(s, "version");
    tierce__resp_text(s, TIERCE__RESP_REDIS_VERSION);
    tierce__resp_text(s, "proto");
    tierce__resp_int(s, s->protocol);
    tierce__resp_text(s, "id");
    tierce__resp_int(s, (int64_t)s->connection->id);
    tierce__resp_text(s, "mode");
    tierce__resp_text(s, "standalone");
    tierce__resp_text(s, "role");
    tierce__resp_text(s, "master");
    tierce__resp_text(s, "modules");
    tierce__resp_array(s, 0);
}

/* HELLO [2|3 [AUTH name token] [SETNAME name]] */
void tierce__resp_run_hello(struct tierce__resp_session *s)
{
    int64_t protocol = s->protocol;
    size_t count = s->request.count;
    if (count > 1 && !tierce__resp_arg_int(tierce__resp_arg(s, 1), &protocol)) {
        tierce__resp_error(s, "ERR Protocol version is not an integer or out of range");
        return;
    }
    if (protocol < 2 || protocol > 3) {
        tierce__resp_error(s, "NOPROTO unsupported protocol version");
        return;
    }
    for (size_t i = 2; i < count;) {
        if (tierce__resp_arg_is(tierce__resp_arg(s, i), "AUTH") && count - i > 2) {
            if (!log_in(s, tierce__resp_arg(s, i + 1), tierce__resp_arg(s, i + 2)))
                return;
            i += 3;
        } else if (tierce__resp_arg_is(tierce__resp_arg(s, i), "SETNAME") && count - i > 1) {
            if (!set_name(s, tierce__resp_arg(s, i + 1)))
                return;
            i += 2;
        } else {
            tierce__resp_error(s, "ERR Syntax error in HELLO option '%.64s'",
                               tierce__resp_arg(s, i)->text != NULL ? tierce__resp_arg(s, i)->text
                                                                    : "");
            return;
        }
    }
    if (!s->is_known) {
        tierce__resp_error(s,
                           "NOAUTH HELLO must be called with the client already authenticated, "
                           "otherwise the HELLO <proto> AUTH <user> <pass> option can be used to "
                           "authenticate the client and select the RESP protocol version at the "
                           "same time");
        return;
    }
    speak(s, (int)protocol);
    say_hello(s);
}

/* ---- CLIENT ---------------------------------------------------------------------------------- */

static void run_setname(struct tierce__resp_session *s)
{
    if (set_name(s, tierce__resp_arg(s, 2)))
        tierce__resp_ok(s);
}

static void run_getname(struct tierce__resp_session *s)
{
    if (s->client.name[0] != '\0')
        tierce__resp_text(s, s->client.name);
    else
        tierce__resp_nil(s);
}

static void run_id(struct tierce__resp_session *s)
{
    tierce__resp_int(s, (int64_t)s->connection->id);
}

static void run_setinfo(struct tierce__resp_session *s)
{
    bool is_name = tierce__resp_arg_is(tierce__resp_arg(s, 2), "LIB-NAME");
    if (!is_name && !tierce__resp_arg_is(tierce__resp_arg(s, 2), "LIB-VER")) {
        tierce__resp_error(s, "ERR Unrecognized option '%.64s'",
                           tierce__resp_arg(s, 2)->text != NULL ? tierce__resp_arg(s, 2)->text
                                                                : "");
    } else if (!is_plain(tierce__resp_arg(s, 3))) {
        tierce__resp_error(s, "ERR %s cannot contain spaces, newlines or special characters.",
                           is_name ? "lib-name" : "lib-ver");
    } else {
        note(s, is_name ? s->client.lib_name : s->client.lib_version, tierce__resp_arg(s, 3)->text);
        tierce__resp_ok(s);
    }
}

/* NO-EVICT, NO-TOUCH: accepted without effect. */
static void run_switch(struct tierce__resp_session *s)
{
    if (tierce__resp_arg_is(tierce__resp_arg(s, 2), "ON") ||
        tierce__resp_arg_is(tierce__resp_arg(s, 2), "OFF"))
        tierce__resp_ok(s);
    else
        tierce__resp_error(s, "ERR syntax error");
}

/* Under NODE_CLIENTS. */
static void put_client(struct tierce__line *line, const struct tierce__resp_session *of,
                       uint64_t now_ns)
{
    tierce__lock_assert_held(&of->node->clients_lock);
    const struct tierce__resp_client *client = &of->client;
    const struct tierce__resp_command *command =
        atomic_load_explicit(&client->command, memory_order_relaxed);
    uint64_t active_ns = atomic_load_explicit(&client->active_ns, memory_order_relaxed);
    char text[512], name[32] = "NULL";
    for (size_t i = 0; command != NULL && i <= strlen(command->name); i++)
        name[i] = (char)tolower((unsigned char)command->name[i]);
    int n = snprintf(text, sizeof(text),
                     "id=%llu addr=%s laddr=", (unsigned long long)of->connection->id,
                     of->connection->peer);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    tierce__line_put_bytes(line, text, (size_t)n);
    tierce__line_put(line, of->node->config->host); /* as long as its owner likes */
    n = snprintf(
        text, sizeof(text),
        ":%u fd=%d name=%s age=%llu idle=%llu flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 qbuf=0 "
        "qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r "
        "cmd=%s user=%s redir=-1 resp=%d",
        of->node->resp_port, client->fd, client->name, seconds(now_ns, client->begun_ns),
        seconds(now_ns, active_ns), name, client->user,
        atomic_load_explicit(&client->protocol, memory_order_relaxed));
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    tierce__line_put_bytes(line, text, (size_t)n);
    n = snprintf(text, sizeof(text), " lib-name=%s lib-ver=%s\n", client->lib_name,
                 client->lib_version);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    tierce__line_put_bytes(line, text, (size_t)n);
}

static void reply_clients(struct tierce__resp_session *s, struct tierce__line *line)
{
    if (line->failed)
        tierce__resp_error_rc(s, -ENOMEM);
    else
        tierce__resp_verbatim(s, line->text != NULL ? line->text : "", line->bytes);
    tierce__line_clear(line);
}

static void run_client_info(struct tierce__resp_session *s)
{
    struct tierce__line line = {0};
    tierce__lock_take(&s->node->clients_lock);
    put_client(&line, s, tierce__now_ns());
    tierce__lock_drop(&s->node->clients_lock);
    reply_clients(s, &line);
}

/* Parses [TYPE type | ID id ...]; false if invalid, and the error has been sent. */
static bool check_list(struct tierce__resp_session *s)
{
    static const char *const types[] = {"normal", "master", "replica", "slave", "pubsub"};
    size_t count = s->request.count, i = 0;
    int64_t id;
    if (count == 2)
        return true;
    if (count == 4 && tierce__resp_arg_is(tierce__resp_arg(s, 2), "TYPE")) {
        while (i < 5 && !tierce__resp_arg_is(tierce__resp_arg(s, 3), types[i]))
            i++;
        if (i == 5)
            tierce__resp_error(s, "ERR Unknown client type '%.64s'",
                               tierce__resp_arg(s, 3)->text != NULL ? tierce__resp_arg(s, 3)->text
                                                                    : "");
        return i < 5;
    }
    if (count < 4 || !tierce__resp_arg_is(tierce__resp_arg(s, 2), "ID")) {
        tierce__resp_error(s, "ERR syntax error");
        return false;
    }
    for (i = 3; i < count; i++) {
        if (tierce__resp_arg_int(tierce__resp_arg(s, i), &id) && id > 0)
            continue;
        tierce__resp_error(s, "ERR Invalid client ID");
        return false;
    }
    return true;
}

/* Lists only connections of the same tenant. */
static bool lists_client(const struct tierce__resp_session *s,
                         const struct tierce__resp_session *of)
{
    tierce__lock_assert_held(&s->node->clients_lock);
    size_t count = s->request.count;
    int64_t id = 0;
    if (of->client.space != s->who.space)
        return false;
    if (count == 2 || tierce__resp_arg_is(tierce__resp_arg(s, 2), "TYPE"))
        return count == 2 || tierce__resp_arg_is(tierce__resp_arg(s, 3), "normal");
    for (size_t i = 3; i < count && (uint64_t)id != of->connection->id; i++)
        (void)tierce__resp_arg_int(tierce__resp_arg(s, i), &id);
    return (uint64_t)id == of->connection->id;
}

static void run_client_list(struct tierce__resp_session *s)
{
    struct tierce__line line = {0};
    if (!check_list(s))
        return;
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&s->node->clients_lock);
    TIERCE__LIST_FOR_EACH (it, &s->node->clients) {
        const struct tierce__resp_session *of =
            TIERCE__CONTAINER_OF(it, struct tierce__resp_session, client.member);
        if (lists_client(s, of))
            put_client(&line, of, now_ns);
    }
    tierce__lock_drop(&s->node->clients_lock);
    reply_clients(s, &line);
}

void tierce__resp_run_client(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {
        {"SETINFO", 4, run_setinfo}, {"SETNAME", 3, run_setname},  {"GETNAME", 2, run_getname},
        {"ID", 2, run_id},           {"INFO", 2, run_client_info}, {"LIST", -2, run_client_list},
        {"NO-EVICT", 3, run_switch}, {"NO-TOUCH", 3, run_switch}};
    tierce__resp_dispatch(s, words, sizeof(words) / sizeof(words[0]));
}

static void run_whoami(struct tierce__resp_session *s)
{
    tierce__resp_text(s, s->client.user);
}

void tierce__resp_run_acl(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"WHOAMI", 2, run_whoami}};
    tierce__resp_dispatch(s, words, 1);
}

/* ---- commands without values ----------------------------------------------------------------- */

void tierce__resp_run_ping(struct tierce__resp_session *s)
{
    if (s->request.count > 2)
        tierce__resp_error_arity(s, "PING", NULL);
    else if (s->request.count == 2)
        tierce__resp_bulk(s, tierce__resp_arg(s, 1)->text, tierce__resp_arg(s, 1)->bytes);
    else
        tierce__resp_simple(s, "PONG");
}

void tierce__resp_run_echo(struct tierce__resp_session *s)
{
    tierce__resp_bulk(s, tierce__resp_arg(s, 1)->text, tierce__resp_arg(s, 1)->bytes);
}

void tierce__resp_run_select(struct tierce__resp_session *s)
{
    int64_t index;
    if (!tierce__resp_arg_int(tierce__resp_arg(s, 1), &index))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else if (index != 0)
        tierce__resp_error(s, "ERR DB index is out of range");
    else
        tierce__resp_ok(s);
}

void tierce__resp_run_quit(struct tierce__resp_session *s)
{
    tierce__resp_ok(s);
    tierce__connection_end(s->connection);
}

void tierce__resp_run_reset(struct tierce__resp_session *s)
{
    struct tierce__identity nobody;
    speak(s, 2);
    s->hint = TIERCE_HINT_NONE;
    note(s, s->client.name, "");
    note(s, s->client.user, "default");
    bool is_known = tierce__access_nobody(s->node->access, TIERCE__SPACE_RESP, &nobody);
    tierce__resp_become(s, is_known ? &nobody : NULL);
    tierce__resp_simple(s, "RESET");
}
