/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_REMOTE_PRIVATE_H
#define TIERCE_TIER_REMOTE_PRIVATE_H

#include "base/lock.h"
#include "key/key_text.h"
#include "tier/remote.h"

/*
 * remote.c takes requests, and answers lookups, reads and deletions; remote_write.c is the life of
 * a put; remote_clear.c forgets what a listing names.
 *
 * What takes several calls of the connector is a *step*: an answer is noted as an event, and one
 * thread at a time runs the events in order, under no lock. So a step is never run twice at once,
 * and an answer that comes inside submit does not recurse.
 */

#define TIERCE__REMOTE_HIDDEN 1024u
#define TIERCE__REMOTE_KNOWN  8192u

struct tierce__remote_event {
    struct tierce__list node;
    void (*run)(struct tierce__remote_event *event);
};

struct tierce__remote {
    struct tierce__tier base;
    struct tierce__tier_ops ops; /* of its own, for the name */
    char name[32];
    struct tierce__connector *connector;
    struct tierce__namespaces *namespaces;
    uint64_t queue_bytes_max;
    uint32_t writes_max;
    uint32_t write_timeout_ms;
    bool read_only;

    struct tierce__lock lock; /* REMOTE: all below */
    struct tierce__cond changed;
    struct tierce__list events;
    bool running; /* some thread runs events */
    bool closing; /* no new requests */
    bool cut;     /* no new calls of the connector either */
    uint32_t submitting;
    uint64_t requests;           /* not answered, or whose answer has not returned */
    struct tierce__list waiting; /* puts in the queue, the oldest first */
    struct tierce__list writing; /* puts that have been begun, the oldest first */
    uint32_t writes;             /* of these, those with a call under way */
    uint64_t puts_made;          /* numbers puts and clears */
    uint64_t waiting_bytes;
    uint64_t writing_bytes;
    struct tierce__list clears;    /* waiters that wait for puts */
    struct tierce__list deletions; /* waiters of one key, until it is deleted */
    struct tierce__list wholes;    /* readings of whole objects */
    struct tierce__remote_hidden {
        struct tierce__key key;
        enum tierce__remote_hiding {
            TIERCE__REMOTE_SHOWN,       /* or never was */
            TIERCE__REMOTE_REPLACEABLE, /* until a put has replaced it */
            TIERCE__REMOTE_LEFT_ALONE,  /* puts are refused too */
        } how;
    } hidden[TIERCE__REMOTE_HIDDEN];
    uint64_t hidden_count; /* that were ever hidden: the last ones are kept */
    struct tierce__remote_known {
        uint64_t spread; /* of a key that was there; 0: none */
        uint64_t at_ns;
    } known[TIERCE__REMOTE_KNOWN];
    struct tierce__tier_stats stats;
};

/* The name of a key. False: a key that no object can have. */
struct tierce__remote_name {
    struct tierce__store_name name;
    char text[TIERCE__KEY_TEXT_BYTES];
};
bool tierce__remote_name(struct tierce__remote *remote, struct tierce__remote_name *name,
                         const struct tierce__key *key);

/* Submits to the connector; answers TIERCE_E_CLOSED itself once that may not be called any more. */
void tierce__remote_call(struct tierce__remote *remote, struct tierce__connector_req *call);

/* One more event. Under the lock; whoever holds it then calls run. */
void tierce__remote_push(struct tierce__remote *remote, struct tierce__remote_event *event);
/* Drops the lock, having run the events, unless another thread does that, or this one further up:
 * then `remote` may be gone by the return. */
void tierce__remote_run(struct tierce__remote *remote);
/* One event, and run. No lock held. */
void tierce__remote_note(struct tierce__remote *remote, struct tierce__remote_event *event);

/* A request begins: false, and it is answered: the tier is closing. */
bool tierce__remote_enter(struct tierce__remote *remote, struct tierce__tier_req *req);
/* It is answered. From here on close may free `remote`: nothing but run and call may be further up
 * in this thread that still needs it. */
void tierce__remote_answer(struct tierce__remote *remote, struct tierce__tier_req *req, int status);

/* Whether the store cannot delete: what is bad or forgotten is hidden then, until it is
 * replaced. */
bool tierce__remote_keeps(const struct tierce__remote *remote);

/* Under the lock, as all of these. */
enum tierce__remote_hiding tierce__remote_hiding(const struct tierce__remote *remote,
                                                 const struct tierce__key *key);
void tierce__remote_hide(struct tierce__remote *remote, const struct tierce__key *key,
                         enum tierce__remote_hiding how);
/* A put of it has come to the store. */
void tierce__remote_show(struct tierce__remote *remote, const struct tierce__key *key);

/* Known: it was there a few seconds ago. */
bool tierce__remote_is_known(const struct tierce__remote *remote, const struct tierce__key *key);
void tierce__remote_learn(struct tierce__remote *remote, const struct tierce__key *key);
void tierce__remote_unlearn(struct tierce__remote *remote, const struct tierce__key *key);

/* What the status of a call is to those who ask a tier. */
int tierce__remote_status(const struct tierce__connector_req *call);

/* ---- remote_write.c ---- */

struct tierce__remote_put;

void tierce__remote_put(struct tierce__remote *remote, struct tierce__tier_req *req);

/* Takes back what is on its way: of one key, or of a namespace (NULL: all), if it was asked for
 * before. Returns the puts that will be over only later. `waiter` is told of the end of each. */
struct tierce__remote_waiter {
    struct tierce__list node;   /* among the clears */
    struct tierce__list active; /* among the deletions */
    struct tierce__remote *remote;
    const struct tierce__key *key;   /* of one key */
    const struct tierce__key *ns_of; /* of a namespace */
    uint64_t number;                 /* of puts before it */
    size_t left;
    struct tierce__remote_event over;
};
void tierce__remote_take_back(struct tierce__remote *remote, struct tierce__remote_waiter *waiter);

/* A deletion is over: puts of its key that came after it may begin. */
void tierce__remote_end_deletion(struct tierce__remote *remote,
                                 struct tierce__remote_waiter *waiter);

/* Close: what waits is cancelled. */
void tierce__remote_cancel_waiting(struct tierce__remote *remote);

/* ---- remote_clear.c ---- */

void tierce__remote_clear(struct tierce__remote *remote, struct tierce__tier_req *req);

#endif
