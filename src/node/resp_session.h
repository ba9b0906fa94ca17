/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NODE_RESP_SESSION_H
#define TIERCE_NODE_RESP_SESSION_H

#include "node/node_private.h"
#include "wire/resp_request.h"

/*
 * A connection that speaks Redis' protocol. A command is executed when it is whole; one that asks
 * for several values does so one after the other (step), and one that waits for the engine goes on
 * where `after` says. The value of a large SET arrives in the pool while the command does.
 */

struct tierce__resp_session;
typedef void tierce__resp_after_fn(struct tierce__resp_session *s, int rc,
                                   struct tierce__object *object);

struct tierce__resp_command {
    const char *name; /* upper case */
    int arity;        /* as Redis counts: with the name; -2: two or more */
    uint32_t scopes;  /* that it needs */
    bool is_open;     /* also for those who have not said who they are */
    void (*run)(struct tierce__resp_session *s);
};

struct tierce__resp_set {
    bool nx, xx, gets, keeps_ttl;
    uint64_t expires_ms;
    struct tierce__object *object; /* to be published */
    struct tierce__object *old;    /* that GET asks for */
    bool is_stored;
    int rc;
};

struct tierce__resp_expire {
    bool nx, xx, gt, lt, persists;
    int64_t at_ms; /* since 1970 */
};

struct tierce__resp_session {
    struct tierce__connection *connection;
    struct tierce__node *node;
    struct tierce__resp_request_parser *parser;
    struct tierce__resp_request request; /* the command that is executed */

    struct tierce__identity who;
    bool is_known;
    int protocol; /* 2 or 3 */
    char name[64];

    struct tierce__object *incoming; /* the large argument arrives in it, or NULL */
    uint64_t incoming_bytes;
    int incoming_rc; /* why it does not */

    /* Of the command that is executed. */
    void (*step)(struct tierce__resp_session *s); /* more to do, or NULL */
    tierce__resp_after_fn *after_find;
    void (*after_work)(struct tierce__resp_session *s);
    bool is_working;
    size_t at; /* the next argument */
    int64_t number, number_end;
    struct tierce__resp_set set;
    struct tierce__object **values; /* MSET's, to be published; or NULL */
    size_t value_count;
    struct tierce__resp_expire expire;
    struct tierce__line line; /* what a work wrote */
    uint64_t cursor;
    int rc;
};

/* ---- resp_commands.c ------------------------------------------------------------------------- */

extern const struct tierce__resp_command tierce__resp_commands[];
extern const size_t tierce__resp_command_count;

/* NULL: there is none. */
const struct tierce__resp_command *tierce__resp_command_find(const struct tierce__resp_arg *name);

/* SET's value, and one of MSET's, lies in s->incoming or in its argument. */
void tierce__resp_set(struct tierce__resp_session *s);
/* What both of them end with: that argument under the name in front, as s->set says. */
void tierce__resp_store(struct tierce__resp_session *s, size_t value);
void tierce__resp_setex(struct tierce__resp_session *s);
void tierce__resp_mset(struct tierce__resp_session *s);
/* What MSET has not published was never there. */
void tierce__resp_mset_drop(struct tierce__resp_session *s);

/* ---- resp_expire.c --------------------------------------------------------------------------- */

void tierce__resp_run_expire(struct tierce__resp_session *s);
void tierce__resp_run_persist(struct tierce__resp_session *s);
void tierce__resp_run_scan(struct tierce__resp_session *s);

/* SET's EX, PX, EXAT and PXAT, and the number behind one. */
bool tierce__resp_is_expiry(const struct tierce__resp_arg *word);
bool tierce__resp_read_expiry(uint64_t *out_ms, const struct tierce__resp_arg *word,
                              const struct tierce__resp_arg *value);

/* ---- resp_session.c -------------------------------------------------------------------------- */

/* Whether an argument can be the name of a value. */
bool tierce__resp_is_name(const struct tierce__resp_arg *arg);
/* Whether an argument is a word, in any case. */
bool tierce__resp_arg_is(const struct tierce__resp_arg *arg, const char *word);
bool tierce__resp_arg_int(const struct tierce__resp_arg *arg, int64_t *out);

/* Asks for a value; `after` is called now or later. A name that can be none is a miss. */
void tierce__resp_find(struct tierce__resp_session *s, const struct tierce__resp_arg *name,
                       tierce__resp_after_fn *after);
/* Runs `work` where it may wait, and `after` behind it; too many waiting: an error is replied. */
void tierce__resp_work(struct tierce__resp_session *s, void (*work)(void *session),
                       void (*after)(struct tierce__resp_session *s));

/* Who somebody is from now on, or nobody. */
void tierce__resp_become(struct tierce__resp_session *s, const struct tierce__identity *who);

void tierce__resp_ok(struct tierce__resp_session *s);
void tierce__resp_simple(struct tierce__resp_session *s, const char *text);
void tierce__resp_error(struct tierce__resp_session *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What storing or removing says when it fails. */
void tierce__resp_error_rc(struct tierce__resp_session *s, int rc);
void tierce__resp_int(struct tierce__resp_session *s, int64_t value);
void tierce__resp_nil(struct tierce__resp_session *s);
void tierce__resp_bulk(struct tierce__resp_session *s, const void *bytes, size_t count);
void tierce__resp_text(struct tierce__resp_session *s, const char *text);
void tierce__resp_array(struct tierce__resp_session *s, size_t count);
void tierce__resp_map(struct tierce__resp_session *s, size_t pairs);
/* value [from, to) as a bulk string. [transfer] object */
void tierce__resp_value(struct tierce__resp_session *s, struct tierce__object *object,
                        uint64_t from, uint64_t to);

#endif
