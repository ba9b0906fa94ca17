/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_RESP_SESSION_H
#define TIERCE_NODE_RESP_SESSION_H

#include "node/node_private.h"
#include "proto/resp/resp_request.h"

/*
 * A connection that speaks Redis' protocol. A command is executed when it has arrived completely. A
 * command for several values handles them one after the other (step). A command that waits for the
 * engine continues at `after`. The value of a large SET is received directly into the pool.
 */

struct tierce__resp_session;
typedef void tierce__resp_after_fn(struct tierce__resp_session *s, int rc,
                                   struct tierce__object *object);

struct tierce__resp_command {
    const char *name; /* upper case */
    int arity;        /* as Redis counts: with the name; -2: two or more */
    uint32_t scopes;  /* that it needs */
    bool is_open;     /* also for clients that have not authenticated */
    void (*run)(struct tierce__resp_session *s);
    int key_first, key_last,
        key_step; /* the arguments that are keys, as in Redis' COMMAND; 0: none */
    int value;    /* the argument stored under the key; PAIRS: one after each key; 0: none */
};

#define TIERCE__RESP_PAIRS     (-1)
#define TIERCE__RESP_KEY_ERROR "ERR a key is 1 to 1024 bytes long"

struct tierce__resp_set {
    bool nx, xx, gets, keeps_ttl;
    bool is_nx_command; /* SETNX, which answers a number */
    uint64_t expires_ms;
    struct tierce__object *object; /* to be published */
    struct tierce__object *old;    /* that GET asks for */
    const char *wrong;             /* the error if a value cannot be changed; or NULL */
    bool is_stored;
    int rc;
};

#define TIERCE__RESP_BATCH 256u

/* Consecutive plain SETs, to be published together: one sync makes the removal of all values that
 * they replace on disk durable. They are answered in their order. */
struct tierce__resp_batch {
    size_t count;
    bool is_unsettled; /* the removal of a replaced value is not durable yet */
    struct {
        struct tierce__object *object; /* NULL: none, or published */
        int rc;
    } sets[TIERCE__RESP_BATCH];
};

struct tierce__resp_expire {
    bool nx, xx, gt, lt, persists;
    int64_t at_ms; /* since 1970 */
};

/* The part of a connection that CLIENT LIST shows. Under NODE_CLIENTS unless stated otherwise. */
struct tierce__resp_client {
    struct tierce__list member;          /* in the node's list */
    const struct tierce__objects *space; /* the values that it can access; NULL: none */
    char name[64], user[64], lib_name[64], lib_version[64];
    int fd; /* constant, as is begun_ns */
    uint64_t begun_ns;
    _Atomic uint64_t active_ns;                           /* relaxed, without the lock, as below */
    _Atomic(const struct tierce__resp_command *) command; /* the last one */
    _Atomic int protocol;
};

struct tierce__resp_session {
    struct tierce__connection *connection;
    struct tierce__node *node;
    struct tierce__resp_request_parser *parser;
    struct tierce__resp_request request; /* the command that is executed */
    const struct tierce__resp_command *command;
    struct tierce__resp_client client; /* for CLIENT LIST */

    struct tierce__identity who;
    bool is_known;
    int protocol; /* 2 or 3 */
    uint8_t hint; /* enum tierce_hint of the values that commands use */

    struct tierce__upload *incoming; /* receives the large argument; or NULL */
    uint64_t incoming_bytes;
    int incoming_rc; /* why there is none; TIERCE_E_ARGUMENT: the key is invalid */
    bool incoming_is_value;
    int broken; /* protocol error in the last bytes; reported after the pending answers */

    /* State of the command in progress. */
    void (*step)(struct tierce__resp_session *s); /* more to do, or NULL */
    bool rests; /* set by a step to yield to other connections before the next */
    tierce__resp_after_fn *after_find;
    void (*work)(void *session);
    void (*after_work)(struct tierce__resp_session *s);
    uint64_t deadline_ns; /* of the work */
    bool is_working;
    size_t at; /* the next argument */
    int64_t number, number_end;
    struct tierce__resp_set set;
    struct tierce__resp_batch *batch; /* NULL: none yet */
    struct tierce__object **values;   /* MSET's, to be published; or NULL */
    size_t value_count;
    struct tierce__resp_expire expire;
    struct tierce__line line; /* the output of a work */
    uint64_t cursor;
    int rc;
};

/* ---- resp_table.c ---------------------------------------------------------------------------- */

/* NULL: there is none. */
const struct tierce__resp_command *tierce__resp_command_find(const struct tierce__resp_arg *name);
/* Whether the argument at `index` is a key; the index of the key for the value at `index`, or 0 if
 * that argument is not stored. */
bool tierce__resp_is_key(const struct tierce__resp_command *command, size_t index);
size_t tierce__resp_key_of(const struct tierce__resp_command *command, size_t index);
void tierce__resp_run_command(struct tierce__resp_session *s);

/* A subcommand. */
struct tierce__resp_word {
    const char *word; /* upper case */
    int arity;        /* includes the command and the subcommand */
    void (*run)(struct tierce__resp_session *s);
};
void tierce__resp_dispatch(struct tierce__resp_session *s, const struct tierce__resp_word *words,
                           size_t count);

/* ---- resp_commands.c ------------------------------------------------------------------------- */

void tierce__resp_run_get(struct tierce__resp_session *s);
void tierce__resp_run_mget(struct tierce__resp_session *s);
void tierce__resp_run_getrange(struct tierce__resp_session *s);
void tierce__resp_run_strlen(struct tierce__resp_session *s);
void tierce__resp_run_ttl(struct tierce__resp_session *s);
void tierce__resp_run_type(struct tierce__resp_session *s);
void tierce__resp_run_exists(struct tierce__resp_session *s);
void tierce__resp_run_setnx(struct tierce__resp_session *s);
void tierce__resp_run_getset(struct tierce__resp_session *s);
void tierce__resp_run_del(struct tierce__resp_session *s);
void tierce__resp_run_flush(struct tierce__resp_session *s);
void tierce__resp_run_dbsize(struct tierce__resp_session *s);
/* Runs on a worker: counts the values of the space into s->number. Walks the indexes of all tiers.
 */
void tierce__resp_count_work(void *session);

/* A value of SET or MSET is in s->incoming or in its argument. */
void tierce__resp_set(struct tierce__resp_session *s);
/* The common end of SET and MSET: publishes argument `value` under the argument before it, as
 * s->set says. */
void tierce__resp_store(struct tierce__resp_session *s, size_t value);
void tierce__resp_setex(struct tierce__resp_session *s);
void tierce__resp_mset(struct tierce__resp_session *s);
/* Drops the values that MSET has not published. */
void tierce__resp_mset_drop(struct tierce__resp_session *s);

/* ---- resp_numbers.c -------------------------------------------------------------------------- */

void tierce__resp_run_incr(struct tierce__resp_session *s); /* INCR, DECR, INCRBY, DECRBY */
void tierce__resp_run_incrbyfloat(struct tierce__resp_session *s);
void tierce__resp_run_getdel(struct tierce__resp_session *s);
void tierce__resp_run_getex(struct tierce__resp_session *s);

/* ---- resp_batch.c ---------------------------------------------------------------------------- */

/* Adds the command to the batch if it is a plain SET whose value has been received. */
bool tierce__resp_batch_take(struct tierce__resp_session *s);
/* Publishes and answers the batch. No effect if it is empty. */
void tierce__resp_batch_run(struct tierce__resp_session *s);
void tierce__resp_batch_drop(struct tierce__resp_session *s);

/* ---- resp_expire.c --------------------------------------------------------------------------- */

void tierce__resp_run_expire(struct tierce__resp_session *s);
void tierce__resp_run_persist(struct tierce__resp_session *s);

/* SET's EX, PX, EXAT and PXAT, and the number after one. */
bool tierce__resp_is_expiry(const struct tierce__resp_arg *word);
bool tierce__resp_read_expiry(uint64_t *out_ms, const struct tierce__resp_arg *word,
                              const struct tierce__resp_arg *value);
/* Changes the expiry of the first key's value to s->expire, under the lock of the name. Returns 1
 * if changed, 0 if not, or an error. Blocks. */
TIERCE_MUSTUSE int tierce__resp_change_end(struct tierce__resp_session *s);
/* Stores bytes under the first key, under the lock of the name. Errors: as tierce__object_publish.
 * Blocks. */
TIERCE_MUSTUSE int tierce__resp_write(struct tierce__resp_session *s, const void *bytes,
                                      uint64_t count, uint64_t expires_ms);

/* ---- resp_hint.c ----------------------------------------------------------------------------- */

void tierce__resp_run_hint(struct tierce__resp_session *s);

/* ---- resp_scan.c ----------------------------------------------------------------------------- */

void tierce__resp_run_scan(struct tierce__resp_session *s);
void tierce__resp_run_keys(struct tierce__resp_session *s);

/* ---- resp_clients.c -------------------------------------------------------------------------- */

/* Adds a connection to CLIENT LIST, and removes it. */
void tierce__resp_client_enter(struct tierce__resp_session *s);
void tierce__resp_client_leave(struct tierce__resp_session *s);
/* Call when the values that the connection can access have changed. */
void tierce__resp_client_became(struct tierce__resp_session *s);
void tierce__resp_run_auth(struct tierce__resp_session *s);
void tierce__resp_run_hello(struct tierce__resp_session *s);
void tierce__resp_run_client(struct tierce__resp_session *s);
void tierce__resp_run_acl(struct tierce__resp_session *s);
void tierce__resp_run_ping(struct tierce__resp_session *s);
void tierce__resp_run_echo(struct tierce__resp_session *s);
void tierce__resp_run_select(struct tierce__resp_session *s);
void tierce__resp_run_quit(struct tierce__resp_session *s);
void tierce__resp_run_reset(struct tierce__resp_session *s);

/* ---- resp_server.c --------------------------------------------------------------------------- */

/* Reported to clients, which infer the available commands from it. */
#define TIERCE__RESP_REDIS_VERSION "7.0.0"

void tierce__resp_run_info(struct tierce__resp_session *s);
void tierce__resp_run_config(struct tierce__resp_session *s);
void tierce__resp_run_time(struct tierce__resp_session *s);
void tierce__resp_run_role(struct tierce__resp_session *s);
void tierce__resp_run_slowlog(struct tierce__resp_session *s);
void tierce__resp_run_latency(struct tierce__resp_session *s);
void tierce__resp_run_module(struct tierce__resp_session *s);
void tierce__resp_run_cluster(struct tierce__resp_session *s);
void tierce__resp_run_memory(struct tierce__resp_session *s);
void tierce__resp_run_object(struct tierce__resp_session *s);

/* ---- resp_session.c -------------------------------------------------------------------------- */

static inline const struct tierce__resp_arg *tierce__resp_arg(const struct tierce__resp_session *s,
                                                              size_t index)
{
    return &s->request.args[index];
}

/* Whether an argument can be the name of a value. */
bool tierce__resp_is_name(const struct tierce__resp_arg *arg);
/* Whether an argument is a word, in any case. */
bool tierce__resp_arg_is(const struct tierce__resp_arg *arg, const char *word);
bool tierce__resp_arg_int(const struct tierce__resp_arg *arg, int64_t *out);

/* Asks for a value; `after` is called now or later. An invalid name is a miss. */
void tierce__resp_find(struct tierce__resp_session *s, const struct tierce__resp_arg *name,
                       tierce__resp_after_fn *after);
/* Runs `work` where it may wait, by s->deadline_ns, and then `after`. If no worker is free in time,
 * only `after` runs, with s->rc TIERCE__NODE_NO_WORKER. */
void tierce__resp_work(struct tierce__resp_session *s, void (*work)(void *session),
                       void (*after)(struct tierce__resp_session *s));

/* In a work: takes the name of a value to be changed, as tierce__node_name_begin. */
TIERCE_MUSTUSE int tierce__resp_name_begin(struct tierce__resp_session *s,
                                           struct tierce__object_name **out, const void *name,
                                           size_t name_bytes);
/* In a work that changes several values: after a success the others have timeout.load again. */
void tierce__resp_renew_deadline(struct tierce__resp_session *s);
bool tierce__resp_is_late(const struct tierce__resp_session *s);

/* Sets the identity of the session; NULL: none. */
void tierce__resp_become(struct tierce__resp_session *s, const struct tierce__identity *who);

void tierce__resp_ok(struct tierce__resp_session *s);
void tierce__resp_simple(struct tierce__resp_session *s, const char *text);
void tierce__resp_error(struct tierce__resp_session *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Sends the error of a failed store or removal. */
void tierce__resp_error_rc(struct tierce__resp_session *s, int rc);
void tierce__resp_int(struct tierce__resp_session *s, int64_t value);
void tierce__resp_nil(struct tierce__resp_session *s);
void tierce__resp_bulk(struct tierce__resp_session *s, const void *bytes, size_t count);
void tierce__resp_text(struct tierce__resp_session *s, const char *text);
/* A verbatim string: RESP3 distinguishes it from a value. */
void tierce__resp_verbatim(struct tierce__resp_session *s, const char *text, size_t bytes);
/* The command, or a command and its word in lower case, has too few arguments or too many. */
void tierce__resp_error_arity(struct tierce__resp_session *s, const char *name, const char *word);
void tierce__resp_array(struct tierce__resp_session *s, size_t count);
void tierce__resp_map(struct tierce__resp_session *s, size_t pairs);
/* value [from, to) as a bulk string. [transfer] object */
void tierce__resp_value(struct tierce__resp_session *s, struct tierce__object *object,
                        uint64_t from, uint64_t to);

#endif
