/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "node/resp/resp_session.h"

#include <string.h>
#include <strings.h>

/* All supported commands of Redis' protocol, and COMMAND, which lists them. */

#define READ  TIERCE__SCOPE_READ
#define WRITE TIERCE__SCOPE_WRITE
#define ADMIN TIERCE__SCOPE_ADMIN
#define PAIRS TIERCE__RESP_PAIRS

/* The most frequent commands come first. */
static const struct tierce__resp_command commands[] = {
    {"GET", 2, READ, false, tierce__resp_run_get, 1, 1, 1, 0},
    {"SET", -3, WRITE, false, tierce__resp_set, 1, 1, 1, 2},
    {"MGET", -2, READ, false, tierce__resp_run_mget, 1, -1, 1, 0},
    {"MSET", -3, WRITE, false, tierce__resp_mset, 1, -1, 2, PAIRS},
    {"EXISTS", -2, READ, false, tierce__resp_run_exists, 1, -1, 1, 0},
    {"SETEX", 4, WRITE, false, tierce__resp_setex, 1, 1, 1, 3},
    {"PSETEX", 4, WRITE, false, tierce__resp_setex, 1, 1, 1, 3},
    {"SETNX", 3, WRITE, false, tierce__resp_run_setnx, 1, 1, 1, 2},
    {"GETSET", 3, WRITE, false, tierce__resp_run_getset, 1, 1, 1, 2},
    {"GETDEL", 2, WRITE, false, tierce__resp_run_getdel, 1, 1, 1, 0},
    {"GETEX", -2, WRITE, false, tierce__resp_run_getex, 1, 1, 1, 0},
    {"GETRANGE", 4, READ, false, tierce__resp_run_getrange, 1, 1, 1, 0},
    {"SUBSTR", 4, READ, false, tierce__resp_run_getrange, 1, 1, 1, 0},
    {"STRLEN", 2, READ, false, tierce__resp_run_strlen, 1, 1, 1, 0},
    {"INCR", 2, WRITE, false, tierce__resp_run_incr, 1, 1, 1, 0},
    {"DECR", 2, WRITE, false, tierce__resp_run_incr, 1, 1, 1, 0},
    {"INCRBY", 3, WRITE, false, tierce__resp_run_incr, 1, 1, 1, 0},
    {"DECRBY", 3, WRITE, false, tierce__resp_run_incr, 1, 1, 1, 0},
    {"INCRBYFLOAT", 3, WRITE, false, tierce__resp_run_incrbyfloat, 1, 1, 1, 0},
    {"TTL", 2, READ, false, tierce__resp_run_ttl, 1, 1, 1, 0},
    {"PTTL", 2, READ, false, tierce__resp_run_ttl, 1, 1, 1, 0},
    {"EXPIRETIME", 2, READ, false, tierce__resp_run_ttl, 1, 1, 1, 0},
    {"PEXPIRETIME", 2, READ, false, tierce__resp_run_ttl, 1, 1, 1, 0},
    {"TYPE", 2, READ, false, tierce__resp_run_type, 1, 1, 1, 0},
    {"TOUCH", -2, READ, false, tierce__resp_run_exists, 1, -1, 1, 0},
    {"EXPIRE", -3, WRITE, false, tierce__resp_run_expire, 1, 1, 1, 0},
    {"PEXPIRE", -3, WRITE, false, tierce__resp_run_expire, 1, 1, 1, 0},
    {"EXPIREAT", -3, WRITE, false, tierce__resp_run_expire, 1, 1, 1, 0},
    {"PEXPIREAT", -3, WRITE, false, tierce__resp_run_expire, 1, 1, 1, 0},
    {"PERSIST", 2, WRITE, false, tierce__resp_run_persist, 1, 1, 1, 0},
    {"DEL", -2, WRITE, false, tierce__resp_run_del, 1, -1, 1, 0},
    {"UNLINK", -2, WRITE, false, tierce__resp_run_del, 1, -1, 1, 0},
    {"SCAN", -2, READ, false, tierce__resp_run_scan, 0, 0, 0, 0},
    {"KEYS", 2, READ, false, tierce__resp_run_keys, 0, 0, 0, 0},
    {"DBSIZE", 1, READ, false, tierce__resp_run_dbsize, 0, 0, 0, 0},
    {"FLUSHDB", -1, ADMIN, false, tierce__resp_run_flush, 0, 0, 0, 0},
    {"FLUSHALL", -1, ADMIN, false, tierce__resp_run_flush, 0, 0, 0, 0},
    {"MEMORY", -2, READ, false, tierce__resp_run_memory, 2, 2, 1, 0},
    {"OBJECT", -2, READ, false, tierce__resp_run_object, 2, 2, 1, 0},
    {"PING", -1, 0, false, tierce__resp_run_ping, 0, 0, 0, 0},
    {"ECHO", 2, 0, false, tierce__resp_run_echo, 0, 0, 0, 0},
    {"TIME", 1, 0, false, tierce__resp_run_time, 0, 0, 0, 0},
    {"SELECT", 2, 0, false, tierce__resp_run_select, 0, 0, 0, 0},
    {"AUTH", -2, 0, true, tierce__resp_run_auth, 0, 0, 0, 0},
    {"HELLO", -1, 0, true, tierce__resp_run_hello, 0, 0, 0, 0},
    {"TIERCE.HINT", -2, 0, false, tierce__resp_run_hint, 0, 0, 0, 0},
    {"CLIENT", -2, 0, false, tierce__resp_run_client, 0, 0, 0, 0},
    {"ACL", -2, 0, false, tierce__resp_run_acl, 0, 0, 0, 0},
    {"RESET", 1, 0, true, tierce__resp_run_reset, 0, 0, 0, 0},
    {"QUIT", -1, 0, true, tierce__resp_run_quit, 0, 0, 0, 0},
    {"INFO", -1, READ, false, tierce__resp_run_info, 0, 0, 0, 0},
    {"CONFIG", -2, READ, false, tierce__resp_run_config, 0, 0, 0, 0},
    {"COMMAND", -1, 0, false, tierce__resp_run_command, 0, 0, 0, 0},
    {"ROLE", 1, READ, false, tierce__resp_run_role, 0, 0, 0, 0},
    {"SLOWLOG", -2, READ, false, tierce__resp_run_slowlog, 0, 0, 0, 0},
    {"LATENCY", -2, READ, false, tierce__resp_run_latency, 0, 0, 0, 0},
    {"MODULE", -2, READ, false, tierce__resp_run_module, 0, 0, 0, 0},
    {"CLUSTER", -2, READ, false, tierce__resp_run_cluster, 0, 0, 0, 0},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

const struct tierce__resp_command *tierce__resp_command_find(const struct tierce__resp_arg *name)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (tierce__resp_arg_is(name, commands[i].name))
            return &commands[i];
    }
    return NULL;
}

bool tierce__resp_is_key(const struct tierce__resp_command *command, size_t index)
{
    size_t first = (size_t)command->key_first, step = (size_t)command->key_step;
    return step > 0 && index >= first && (index - first) % step == 0 &&
           (command->key_last < 0 || index <= (size_t)command->key_last);
}

size_t tierce__resp_key_of(const struct tierce__resp_command *command, size_t index)
{
    if (command->value == PAIRS)
        return index > 1 && index % 2 == 0 ? index - 1 : 0;
    return command->value > 0 && index == (size_t)command->value ? 1 : 0;
}

/* ---- subcommands ----------------------------------------------------------------------------- */

void tierce__resp_dispatch(struct tierce__resp_session *s, const struct tierce__resp_word *words,
                           size_t count)
{
    TIERCE_ASSERT(s->request.count >= 2);
    const struct tierce__resp_arg *word = tierce__resp_arg(s, 1);
    for (size_t i = 0; i < count; i++) {
        int arity = words[i].arity;
        if (!tierce__resp_arg_is(word, words[i].word))
            continue;
        if (arity < 0 ? s->request.count >= (size_t)-arity : s->request.count == (size_t)arity)
            words[i].run(s);
        else
            tierce__resp_error_arity(s, s->command->name, words[i].word);
        return;
    }
    tierce__resp_error(s, "ERR unknown subcommand '%.128s'. Try %s HELP.",
                       word->text != NULL ? word->text : "", s->command->name);
}

/* ---- COMMAND --------------------------------------------------------------------------------- */

static void put_name(struct tierce__resp_session *s, const struct tierce__resp_command *command)
{
    char name[32];
    size_t i = 0;
    for (; command->name[i] != '\0'; i++)
        name[i] = (char)(command->name[i] | 0x20);
    TIERCE_ASSERT(i < sizeof(name));
    tierce__resp_bulk(s, name, i);
}

static void put_command(struct tierce__resp_session *s, const struct tierce__resp_command *command)
{
    const char *flag = (command->scopes & ADMIN) != 0   ? "admin"
                       : (command->scopes & WRITE) != 0 ? "write"
                       : (command->scopes & READ) != 0  ? "readonly"
                                                        : "fast";
    tierce__resp_array(s, 6);
    put_name(s, command);
    tierce__resp_int(s, command->arity);
    tierce__resp_array(s, 1);
    tierce__resp_simple(s, flag);
    tierce__resp_int(s, command->key_first);
    tierce__resp_int(s, command->key_last);
    tierce__resp_int(s, command->key_step);
}

static void put_all(struct tierce__resp_session *s)
{
    tierce__resp_array(s, COMMANDS);
    for (size_t i = 0; i < COMMANDS; i++)
        put_command(s, &commands[i]);
}

static void run_count(struct tierce__resp_session *s)
{
    tierce__resp_int(s, (int64_t)COMMANDS);
}

/* Tools use it for completion and work without it. */
static void run_docs(struct tierce__resp_session *s)
{
    tierce__resp_map(s, 0);
}

static void run_list(struct tierce__resp_session *s)
{
    if (s->request.count > 2) {
        tierce__resp_error(s, "ERR syntax error");
        return;
    }
    tierce__resp_array(s, COMMANDS);
    for (size_t i = 0; i < COMMANDS; i++)
        put_name(s, &commands[i]);
}

static void run_about(struct tierce__resp_session *s)
{
    if (s->request.count == 2) {
        put_all(s);
        return;
    }
    tierce__resp_array(s, s->request.count - 2);
    for (size_t i = 2; i < s->request.count; i++) {
        const struct tierce__resp_command *command =
            tierce__resp_command_find(tierce__resp_arg(s, i));
        if (command != NULL)
            put_command(s, command);
        else
            tierce__resp_nil(s);
    }
}

void tierce__resp_run_command(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"COUNT", 2, run_count},
                                                     {"DOCS", -2, run_docs},
                                                     {"INFO", -2, run_about},
                                                     {"LIST", -2, run_list}};
    if (s->request.count == 1)
        put_all(s);
    else
        tierce__resp_dispatch(s, words, sizeof(words) / sizeof(words[0]));
}
