/* SPDX-License-Identifier: Apache-2.0 */
#include "node/resp_session.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/lock.h"
#include "node/glob.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tierce/version.h>

#define READ  TIERCE__SCOPE_READ
#define WRITE TIERCE__SCOPE_WRITE
#define ADMIN TIERCE__SCOPE_ADMIN

/* What clients that look at the version take for one that has what is served here. */
#define REDIS_VERSION "7.0.0"

static const struct tierce__resp_arg *arg(const struct tierce__resp_session *s, size_t index)
{
    return &s->request.args[index];
}

/* ---- who is there ---------------------------------------------------------------------------- */

static bool log_in(struct tierce__resp_session *s, const struct tierce__resp_arg *name,
                   const struct tierce__resp_arg *token)
{
    struct tierce__identity who;
    bool has_name = name != NULL && !tierce__resp_arg_is(name, "default");
    if (token->text != NULL && (name == NULL || name->text != NULL) &&
        tierce__access_token(s->node->access, TIERCE__SPACE_RESP, has_name ? name->text : NULL,
                             has_name ? name->bytes : 0, token->text, token->bytes, &who)) {
        tierce__resp_become(s, &who);
        return true;
    }
    tierce__node_count(s->node, TIERCE__NODE_logins_refused, 1);
    tierce__resp_error(s, "WRONGPASS invalid username-password pair or user is disabled.");
    return false;
}

static void run_auth(struct tierce__resp_session *s)
{
    struct tierce__identity nobody;
    size_t count = s->request.count;
    if (count > 3)
        tierce__resp_error(s, "ERR syntax error");
    else if (tierce__access_nobody(s->node->access, TIERCE__SPACE_RESP, &nobody) && count == 2)
        tierce__resp_error(s, "ERR AUTH <password> called without any password configured for the "
                              "default user. Are you sure your configuration is correct?");
    else if (log_in(s, count == 3 ? arg(s, 1) : NULL, arg(s, count - 1)))
        tierce__resp_ok(s);
}

static bool set_name(struct tierce__resp_session *s, const struct tierce__resp_arg *name)
{
    bool is_good = name->text != NULL && name->bytes < sizeof(s->name);
    for (size_t i = 0; is_good && i < name->bytes; i++)
        is_good = name->text[i] > ' ' && name->text[i] <= '~';
    if (is_good)
        snprintf(s->name, sizeof(s->name), "%s", name->text);
    else
        tierce__resp_error(s, "ERR Client names cannot contain spaces, newlines or special "
                              "characters, and have at most 63 of them.");
    return is_good;
}

static void say_hello(struct tierce__resp_session *s)
{
    tierce__resp_map(s, 7);
    tierce__resp_text(s, "server");
    tierce__resp_text(s, "tierce");
    tierce__resp_text(s, "version");
    tierce__resp_text(s, REDIS_VERSION);
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
static void run_hello(struct tierce__resp_session *s)
{
    int64_t protocol = s->protocol;
    size_t count = s->request.count;
    if (count > 1 &&
        (!tierce__resp_arg_int(arg(s, 1), &protocol) || protocol < 2 || protocol > 3)) {
        tierce__resp_error(s, "NOPROTO unsupported protocol version");
        return;
    }
    for (size_t i = 2; i < count;) {
        if (tierce__resp_arg_is(arg(s, i), "AUTH") && count - i > 2) {
            if (!log_in(s, arg(s, i + 1), arg(s, i + 2)))
                return;
            i += 3;
        } else if (tierce__resp_arg_is(arg(s, i), "SETNAME") && count - i > 1) {
            if (!set_name(s, arg(s, i + 1)))
                return;
            i += 2;
        } else {
            tierce__resp_error(s, "ERR Syntax error in HELLO");
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
    s->protocol = (int)protocol;
    say_hello(s);
}

static void run_client(struct tierce__resp_session *s)
{
    const struct tierce__resp_arg *what = arg(s, 1);
    size_t count = s->request.count;
    if (tierce__resp_arg_is(what, "SETNAME") && count == 3) {
        if (set_name(s, arg(s, 2)))
            tierce__resp_ok(s);
    } else if (tierce__resp_arg_is(what, "GETNAME") && count == 2) {
        if (s->name[0] != '\0')
            tierce__resp_text(s, s->name);
        else
            tierce__resp_nil(s);
    } else if (tierce__resp_arg_is(what, "ID") && count == 2) {
        tierce__resp_int(s, (int64_t)s->connection->id);
    } else if ((tierce__resp_arg_is(what, "SETINFO") && count == 4) ||
               ((tierce__resp_arg_is(what, "NO-EVICT") || tierce__resp_arg_is(what, "NO-TOUCH")) &&
                count == 3)) {
        tierce__resp_ok(s); /* nobody is thrown out for room, and no use is hidden */
    } else {
        tierce__resp_error(s, "ERR unknown subcommand or wrong number of arguments for CLIENT; "
                              "SETINFO, SETNAME, GETNAME, ID, NO-EVICT and NO-TOUCH are served");
    }
}

static void run_ping(struct tierce__resp_session *s)
{
    if (s->request.count > 2)
        tierce__resp_error(s, "ERR wrong number of arguments for 'PING' command");
    else if (s->request.count == 2)
        tierce__resp_bulk(s, arg(s, 1)->text, arg(s, 1)->bytes);
    else
        tierce__resp_simple(s, "PONG");
}

static void run_echo(struct tierce__resp_session *s)
{
    tierce__resp_bulk(s, arg(s, 1)->text, arg(s, 1)->bytes);
}

static void run_select(struct tierce__resp_session *s)
{
    int64_t index;
    if (!tierce__resp_arg_int(arg(s, 1), &index))
        tierce__resp_error(s, "ERR invalid DB index");
    else if (index != 0)
        tierce__resp_error(s, "ERR DB index is out of range: there is one, 0");
    else
        tierce__resp_ok(s);
}

static void run_quit(struct tierce__resp_session *s)
{
    tierce__resp_ok(s);
    tierce__connection_end(s->connection);
}

static void run_reset(struct tierce__resp_session *s)
{
    struct tierce__identity nobody;
    s->protocol = 2;
    s->name[0] = '\0';
    bool is_known = tierce__access_nobody(s->node->access, TIERCE__SPACE_RESP, &nobody);
    tierce__resp_become(s, is_known ? &nobody : NULL);
    tierce__resp_simple(s, "RESET");
}

/* ---- reading --------------------------------------------------------------------------------- */

static void reply_found(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__node_count(s->node, TIERCE__NODE_gets, 1);
    if (rc != 0) { /* a failure of a cache is a miss */
        tierce__resp_nil(s);
        return;
    }
    tierce__node_count(s->node, TIERCE__NODE_hits, 1);
    tierce__resp_value(s, object, 0, object->what.value_bytes);
}

static void run_get(struct tierce__resp_session *s)
{
    tierce__resp_find(s, arg(s, 1), reply_found);
}

static void step_mget(struct tierce__resp_session *s)
{
    size_t at = s->at++;
    if (s->at == s->request.count)
        s->step = NULL;
    tierce__resp_find(s, arg(s, at), reply_found);
}

static void run_mget(struct tierce__resp_session *s)
{
    tierce__resp_array(s, s->request.count - 1);
    s->step = step_mget;
}

static void reply_range(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    int64_t size = rc == 0 ? (int64_t)object->what.value_bytes : 0;
    int64_t from = s->number < 0 ? size + s->number : s->number;
    int64_t to = s->number_end < 0 ? size + s->number_end : s->number_end;
    from = from < 0 ? 0 : from;
    to = to >= size ? size - 1 : to;
    if (rc == 0 && from <= to && size > 0) {
        tierce__resp_value(s, object, (uint64_t)from, (uint64_t)to + 1);
        return;
    }
    tierce__object_release(object);
    tierce__resp_text(s, "");
}

static void run_getrange(struct tierce__resp_session *s)
{
    if (!tierce__resp_arg_int(arg(s, 2), &s->number) ||
        !tierce__resp_arg_int(arg(s, 3), &s->number_end))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else
        tierce__resp_find(s, arg(s, 1), reply_range);
}

static void reply_strlen(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__resp_int(s, rc == 0 ? (int64_t)object->what.value_bytes : 0);
    tierce__object_release(object);
}

static void run_strlen(struct tierce__resp_session *s)
{
    tierce__resp_find(s, arg(s, 1), reply_strlen);
}

static void reply_ttl(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    int64_t left_ms = rc != 0 ? -2 : -1;
    if (rc == 0 && object->what.expires_ms != 0) {
        int64_t ms = (int64_t)(object->what.expires_ms - tierce__wall_us() / 1000);
        left_ms = ms > 0 ? ms : 0;
    }
    tierce__object_release(object);
    tierce__resp_int(s, left_ms < 0 || s->number == 1 ? left_ms : (left_ms + 500) / 1000);
}

static void run_ttl(struct tierce__resp_session *s)
{
    s->number = tierce__resp_arg_is(arg(s, 0), "PTTL") ? 1 : 1000;
    tierce__resp_find(s, arg(s, 1), reply_ttl);
}

static void reply_type(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__object_release(object);
    tierce__resp_simple(s, rc == 0 ? "string" : "none");
}

static void run_type(struct tierce__resp_session *s)
{
    tierce__resp_find(s, arg(s, 1), reply_type);
}

/* Yes is a promise for a moment. */
static void count_existing(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__node_count(s->node, TIERCE__NODE_questions, 1);
    if (rc == 0) {
        s->number++;
        tierce__grace_keep(s->node->grace, object);
    }
    if (s->at == s->request.count)
        tierce__resp_int(s, s->number);
}

static void step_exists(struct tierce__resp_session *s)
{
    size_t at = s->at++;
    if (s->at == s->request.count)
        s->step = NULL;
    tierce__resp_find(s, arg(s, at), count_existing);
}

static void run_exists(struct tierce__resp_session *s)
{
    s->number = 0;
    s->step = step_exists;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* NULL, or what is to be said. */
static const char *read_set_options(struct tierce__resp_session *s)
{
    struct tierce__resp_set *set = &s->set;
    for (size_t i = 3; i < s->request.count; i++) {
        const struct tierce__resp_arg *word = arg(s, i);
        if (tierce__resp_arg_is(word, "NX"))
            set->nx = true;
        else if (tierce__resp_arg_is(word, "XX"))
            set->xx = true;
        else if (tierce__resp_arg_is(word, "GET"))
            set->gets = true;
        else if (tierce__resp_arg_is(word, "KEEPTTL"))
            set->keeps_ttl = true;
        else if (!tierce__resp_is_expiry(word) || i + 1 == s->request.count || set->expires_ms != 0)
            return "ERR syntax error";
        else if (!tierce__resp_read_expiry(&set->expires_ms, word, arg(s, ++i)))
            return "ERR invalid expire time in 'set' command";
    }
    return (set->nx && set->xx) || (set->keeps_ttl && set->expires_ms != 0) ? "ERR syntax error"
                                                                            : NULL;
}

/* The value that came at once with its command, or the large one whose place was there before. */
static int make_object(struct tierce__resp_session *s, struct tierce__object **out,
                       const struct tierce__resp_arg *name, const struct tierce__resp_arg *value)
{
    if (value->text == NULL) {
        TIERCE_ASSERT(s->incoming != NULL);
        *out = s->incoming;
        s->incoming = NULL;
        tierce__node_arrived(s->node, s->incoming_bytes);
        return 0;
    }
    int rc = tierce__node_receive(s->node, s->who.space, out,
                                  &(struct tierce__object_what){.name = name->text,
                                                                .name_bytes = name->bytes,
                                                                .value_bytes = value->bytes});
    if (rc < 0)
        return rc;
    tierce__node_arrived(s->node, value->bytes);
    if (value->bytes > 0)
        memcpy((*out)->value, value->text, value->bytes);
    return 0;
}

/* May wait. Under the lock of the name: what it decides by does not change. */
static void set_locked(struct tierce__resp_session *s)
{
    struct tierce__resp_set *set = &s->set;
    const struct tierce__resp_arg *name = arg(s, 1);
    if (set->nx || set->xx || set->gets || set->keeps_ttl) {
        int rc = tierce__node_find(s->node, s->who.space, &set->old, name->text, name->bytes);
        bool exists = rc == 0;
        if (exists && set->keeps_ttl)
            set->expires_ms = set->old->what.expires_ms;
        if ((set->nx && exists) || (set->xx && !exists))
            return;
    }
    if (set->expires_ms != 0)
        tierce__object_expire(set->object, set->expires_ms);
    set->rc = tierce__object_publish(set->object);
    set->object = NULL;
    set->is_stored = set->rc == 0;
}

static void set_work(void *session)
{
    struct tierce__resp_session *s = session;
    const struct tierce__resp_arg *name = arg(s, 1);
    struct tierce__lock *lock = tierce__node_name_lock(s->node, name->text, name->bytes);
    tierce__lock_take(lock);
    set_locked(s);
    tierce__lock_drop(lock);
}

static void after_set(struct tierce__resp_session *s)
{
    struct tierce__resp_set *set = &s->set;
    int rc = s->rc < 0 ? s->rc : set->rc;
    struct tierce__object *old = set->old;
    tierce__object_release(set->object);
    set->object = set->old = NULL;
    tierce__node_count(s->node, set->is_stored ? TIERCE__NODE_sets : TIERCE__NODE_sets_dropped, 1);
    if (rc < 0) {
        tierce__resp_error_rc(s, rc);
    } else if (set->gets && old != NULL) {
        tierce__resp_value(s, old, 0, old->what.value_bytes);
        return;
    } else if (set->gets || !set->is_stored) {
        tierce__resp_nil(s);
    } else {
        tierce__resp_ok(s);
    }
    tierce__object_release(old);
}

void tierce__resp_store(struct tierce__resp_session *s, size_t value)
{
    int rc = make_object(s, &s->set.object, arg(s, 1), arg(s, value));
    if (rc == 0) {
        tierce__resp_work(s, set_work, after_set);
        return;
    }
    tierce__node_count(s->node, TIERCE__NODE_sets_dropped, 1);
    tierce__resp_error_rc(s, rc);
}

void tierce__resp_set(struct tierce__resp_session *s)
{
    s->set = (struct tierce__resp_set){0};
    const char *wrong =
        tierce__resp_is_name(arg(s, 1)) ? read_set_options(s) : "ERR a key is 1 to 1024 bytes long";
    if (wrong != NULL)
        tierce__resp_error(s, "%s", wrong);
    else
        tierce__resp_store(s, 2);
}

/* All of them have their room before the first is published. */
static int make_values(struct tierce__resp_session *s)
{
    size_t count = s->request.count / 2;
    s->values = tierce__calloc(count, sizeof(*s->values));
    if (s->values == NULL)
        return -ENOMEM;
    for (; s->value_count < count; s->value_count++) {
        size_t at = 1 + 2 * s->value_count;
        int rc = make_object(s, &s->values[s->value_count], arg(s, at), arg(s, at + 1));
        if (rc < 0)
            return rc;
    }
    return 0;
}

void tierce__resp_mset_drop(struct tierce__resp_session *s)
{
    for (size_t i = 0; i < s->value_count; i++)
        tierce__object_release(s->values[i]);
    tierce__free(s->values);
    s->values = NULL;
    s->value_count = 0;
}

/* One after the other: who asks meanwhile may find some new and some old. */
static void mset_work(void *session)
{
    struct tierce__resp_session *s = session;
    for (size_t i = 0; i < s->value_count && s->rc == 0; i++) {
        const struct tierce__resp_arg *name = arg(s, 1 + 2 * i);
        struct tierce__lock *lock = tierce__node_name_lock(s->node, name->text, name->bytes);
        tierce__lock_take(lock);
        s->rc = tierce__object_publish(s->values[i]);
        tierce__lock_drop(lock);
        s->values[i] = NULL;
        s->number += s->rc == 0;
    }
}

static void after_mset(struct tierce__resp_session *s)
{
    uint64_t count = s->request.count / 2, stored = (uint64_t)s->number;
    tierce__resp_mset_drop(s);
    tierce__node_count(s->node, TIERCE__NODE_sets, stored);
    tierce__node_count(s->node, TIERCE__NODE_sets_dropped, count - stored);
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_ok(s);
}

void tierce__resp_mset(struct tierce__resp_session *s)
{
    bool are_names = true;
    s->number = 0;
    for (size_t i = 1; i < s->request.count; i += 2)
        are_names = are_names && tierce__resp_is_name(arg(s, i));
    if (s->request.count % 2 == 0) {
        tierce__resp_error(s, "ERR wrong number of arguments for 'MSET' command");
    } else if (!are_names) {
        tierce__resp_error(s, "ERR a key is 1 to 1024 bytes long");
    } else {
        s->rc = make_values(s);
        if (s->rc < 0)
            after_mset(s);
        else
            tierce__resp_work(s, mset_work, after_mset);
    }
}

static void del_work(void *session)
{
    struct tierce__resp_session *s = session;
    for (size_t i = 1; i < s->request.count; i++) {
        const struct tierce__resp_arg *name = arg(s, i);
        bool was = false;
        if (!tierce__resp_is_name(name))
            continue;
        struct tierce__lock *lock = tierce__node_name_lock(s->node, name->text, name->bytes);
        tierce__lock_take(lock);
        int rc = tierce__object_remove(s->who.space, name->text, name->bytes, &was);
        tierce__lock_drop(lock);
        s->number += was ? 1 : 0;
        s->rc = rc < 0 ? rc : s->rc;
    }
}

static void reply_number(struct tierce__resp_session *s)
{
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_int(s, s->number);
}

static void run_del(struct tierce__resp_session *s)
{
    s->number = 0;
    tierce__resp_work(s, del_work, reply_number);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void clear_work(void *session)
{
    struct tierce__resp_session *s = session;
    int64_t count = tierce__objects_clear(s->who.space);
    s->rc = count < 0 ? (int)count : 0;
}

static void after_clear(struct tierce__resp_session *s)
{
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_ok(s);
}

static void run_flush(struct tierce__resp_session *s)
{
    bool is_plain = s->request.count == 1 ||
                    (s->request.count == 2 && (tierce__resp_arg_is(arg(s, 1), "ASYNC") ||
                                               tierce__resp_arg_is(arg(s, 1), "SYNC")));
    if (is_plain)
        tierce__resp_work(s, clear_work, after_clear);
    else
        tierce__resp_error(s, "ERR syntax error");
}

/* Goes over the indexes of all tiers. */
static void count_work(void *session)
{
    struct tierce__resp_session *s = session;
    s->number = (int64_t)tierce__objects_count(s->who.space);
}

static void run_dbsize(struct tierce__resp_session *s)
{
    tierce__resp_work(s, count_work, reply_number);
}

/* ---- the server ------------------------------------------------------------------------------ */

static unsigned long long counted(const struct tierce__node *node,
                                  enum tierce__node_counter counter)
{
    return atomic_load_explicit(&node->counters[counter], memory_order_relaxed);
}

/* Of what a Redis tells, what programs that watch one want to see. */
static void after_info(struct tierce__resp_session *s)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    const struct tierce__node *node = s->node;
    unsigned long long gets = counted(node, TIERCE__NODE_gets),
                       hits = counted(node, TIERCE__NODE_hits);
    char text[1024];
    if (s->rc < 0) {
        tierce__resp_error_rc(s, s->rc);
        return;
    }
    tierce_engine_stats(node->engine, &stats);
    uint64_t uptime_s = (tierce__now_ns() - node->started_ns) / (1000 * TIERCE__MS_NS);
    int n = snprintf(
        text, sizeof(text),
        "# Server\r\nredis_version:%s\r\ntierce_version:%s\r\nredis_mode:standalone\r\n"
        "tcp_port:%u\r\nuptime_in_seconds:%llu\r\n"
        "# Clients\r\nconnected_clients:%u\r\nmaxclients:%u\r\nblocked_clients:0\r\n"
        "# Memory\r\nused_memory:%lld\r\nmaxmemory:%llu\r\n"
        "# Persistence\r\nloading:0\r\n"
        "# Stats\r\ntotal_connections_received:%llu\r\ntotal_commands_processed:%llu\r\n"
        "keyspace_hits:%llu\r\nkeyspace_misses:%llu\r\n"
        "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
        "# Keyspace\r\ndb0:keys=%llu,expires=0,avg_ttl=0\r\n",
        REDIS_VERSION, TIERCE_VERSION, node->resp_port, (unsigned long long)uptime_s,
        atomic_load_explicit(&node->connections_now, memory_order_relaxed),
        node->config->connections_max, (long long)stats.memory_bytes_now,
        (unsigned long long)tierce__config_number(node->config->values, TIERCE__ENGINE_MEMORY_SIZE),
        counted(node, TIERCE__NODE_connections), counted(node, TIERCE__NODE_resp_commands), hits,
        gets > hits ? gets - hits : 0, (unsigned long long)s->number);
    tierce__resp_bulk(s, text, (size_t)n);
}

static void run_info(struct tierce__resp_session *s)
{
    tierce__resp_work(s, count_work, after_info);
}

static void run_config(struct tierce__resp_session *s)
{
    char memory[24], clients[16];
    const struct {
        const char *name, *value;
    } rows[] = {{"save", ""},          {"appendonly", "no"}, {"databases", "1"},
                {"maxmemory", memory}, {"timeout", "0"},     {"maxclients", clients},
                {"requirepass", ""}};
    bool wanted[sizeof(rows) / sizeof(rows[0])] = {false};
    size_t count = 0;
    if (!tierce__resp_arg_is(arg(s, 1), "GET") || s->request.count < 3) {
        tierce__resp_error(s, "ERR CONFIG GET is served; a node is configured when it starts");
        return;
    }
    snprintf(memory, sizeof(memory), "%llu",
             (unsigned long long)tierce__config_number(s->node->config->values,
                                                       TIERCE__ENGINE_MEMORY_SIZE));
    snprintf(clients, sizeof(clients), "%u", s->node->config->connections_max);
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        for (size_t i = 2; i < s->request.count && !wanted[r]; i++)
            wanted[r] =
                arg(s, i)->text != NULL && tierce__glob_match(arg(s, i)->text, arg(s, i)->bytes,
                                                              rows[r].name, strlen(rows[r].name));
        count += wanted[r];
    }
    tierce__resp_map(s, count);
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        if (!wanted[r])
            continue;
        tierce__resp_text(s, rows[r].name);
        tierce__resp_text(s, rows[r].value);
    }
}

static void put_command(struct tierce__resp_session *s, const struct tierce__resp_command *command)
{
    char name[32];
    size_t i = 0;
    for (; command->name[i] != '\0'; i++)
        name[i] = (char)(command->name[i] | 0x20);
    bool has_key = (command->scopes & (READ | WRITE)) != 0 && command->arity != 1;
    tierce__resp_array(s, 6);
    tierce__resp_bulk(s, name, i);
    tierce__resp_int(s, command->arity);
    tierce__resp_array(s, 1);
    tierce__resp_simple(s, (command->scopes & WRITE) != 0 ? "write" : "readonly");
    tierce__resp_int(s, has_key ? 1 : 0);
    tierce__resp_int(s, has_key ? 1 : 0);
    tierce__resp_int(s, has_key ? 1 : 0);
}

static void run_command(struct tierce__resp_session *s)
{
    if (s->request.count > 1 && tierce__resp_arg_is(arg(s, 1), "COUNT")) {
        tierce__resp_int(s, (int64_t)tierce__resp_command_count);
    } else if (s->request.count > 1 && tierce__resp_arg_is(arg(s, 1), "DOCS")) {
        tierce__resp_map(s, 0);
    } else if (s->request.count > 1) {
        tierce__resp_error(s, "ERR COMMAND, COMMAND COUNT and COMMAND DOCS are served");
    } else {
        tierce__resp_array(s, tierce__resp_command_count);
        for (size_t i = 0; i < tierce__resp_command_count; i++)
            put_command(s, &tierce__resp_commands[i]);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

const struct tierce__resp_command tierce__resp_commands[] = {
    {"GET", 2, READ, false, run_get},
    {"SET", -3, WRITE, false, tierce__resp_set},
    {"SETEX", 4, WRITE, false, tierce__resp_setex},
    {"PSETEX", 4, WRITE, false, tierce__resp_setex},
    {"MSET", -3, WRITE, false, tierce__resp_mset},
    {"EXISTS", -2, READ, false, run_exists},
    {"MGET", -2, READ, false, run_mget},
    {"GETRANGE", 4, READ, false, run_getrange},
    {"STRLEN", 2, READ, false, run_strlen},
    {"TTL", 2, READ, false, run_ttl},
    {"PTTL", 2, READ, false, run_ttl},
    {"TYPE", 2, READ, false, run_type},
    {"EXPIRE", -3, WRITE, false, tierce__resp_run_expire},
    {"PEXPIRE", -3, WRITE, false, tierce__resp_run_expire},
    {"EXPIREAT", -3, WRITE, false, tierce__resp_run_expire},
    {"PEXPIREAT", -3, WRITE, false, tierce__resp_run_expire},
    {"PERSIST", 2, WRITE, false, tierce__resp_run_persist},
    {"DEL", -2, WRITE, false, run_del},
    {"UNLINK", -2, WRITE, false, run_del},
    {"SCAN", -2, READ, false, tierce__resp_run_scan},
    {"DBSIZE", 1, READ, false, run_dbsize},
    {"FLUSHDB", -1, ADMIN, false, run_flush},
    {"FLUSHALL", -1, ADMIN, false, run_flush},
    {"PING", -1, 0, false, run_ping},
    {"ECHO", 2, 0, false, run_echo},
    {"SELECT", 2, 0, false, run_select},
    {"AUTH", -2, 0, true, run_auth},
    {"HELLO", -1, 0, true, run_hello},
    {"CLIENT", -2, 0, false, run_client},
    {"RESET", 1, 0, true, run_reset},
    {"QUIT", -1, 0, true, run_quit},
    {"INFO", -1, READ, false, run_info},
    {"CONFIG", -2, READ, false, run_config},
    {"COMMAND", -1, 0, false, run_command},
};

const size_t tierce__resp_command_count =
    sizeof(tierce__resp_commands) / sizeof(tierce__resp_commands[0]);

const struct tierce__resp_command *tierce__resp_command_find(const struct tierce__resp_arg *name)
{
    for (size_t i = 0; i < tierce__resp_command_count; i++) {
        if (tierce__resp_arg_is(name, tierce__resp_commands[i].name))
            return &tierce__resp_commands[i];
    }
    return NULL;
}
