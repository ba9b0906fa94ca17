/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_REMOTE_PRIVATE_H
#define TIERCE_TIER_REMOTE_PRIVATE_H

#include <pthread.h>

#include "base/threads/lock.h"
#include "core/key/key_text.h"
#include "store/remote/remote.h"

/*
 * remote.c takes requests, and answers lookups and reads; remote_names.c names keys; remote_known.c
 * remembers the store's answers; remote_write.c is the life of a put; remote_delete.c deletes a
 * chunk, remote_clear.c listed ones.
 *
 * An operation of several connector calls consists of *steps*: each answer is queued as an event,
 * and one thread at a time runs the events in order, under no lock. So two steps never run at once,
 * and an answer inside submit does not recurse.
 */

#define TIERCE__REMOTE_HIDDEN 1024u
#define TIERCE__REMOTE_SETS   4096u /* of answers that are remembered: 768 KiB */
#define TIERCE__REMOTE_WAYS   8u

/* How far the read of an object has come, which may be damaged (remote.c). */
struct tierce__remote_reading {
    enum tierce__remote_step {
        TIERCE__READING_FIRST = 0,
        TIERCE__READING_ASKED, /* whether the store has the object */
        TIERCE__READING_AGAIN, /* the store has it */
    } step;
    uint64_t object_bytes; /* of the request */
};

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
    pthread_t clock;

    struct tierce__lock lock; /* REMOTE: all below */
    struct tierce__cond changed;
    struct tierce__list events;
    bool running; /* some thread runs events */
    bool closing; /* no new requests */
    bool cut;     /* no new requests, and no new calls of the connector */
    uint32_t submitting;
    uint64_t requests;           /* not answered, or whose answer has not returned */
    struct tierce__list waiting; /* puts in the queue, the oldest first */
    struct tierce__list writing; /* puts that have been begun, the oldest first */
    bool rejects;                /* the store permitted no write when it was asked last */
    uint32_t writes;             /* writes with a call in progress */
    uint64_t puts_made;          /* numbers puts and clears */
    uint64_t waiting_bytes;
    uint64_t writing_bytes;
    struct tierce__list clears; /* waiters that wait for puts */
    struct tierce__list timed;  /* waiters whose request the clock answers at its deadline */
    struct tierce__cond clock_wake;
    bool clock_ends;
    struct tierce__list deletions; /* waiters of one key, until it is deleted */
    struct tierce__list wholes;    /* readings of whole objects */
    struct tierce__remote_hidden {
        struct tierce__key key;
        enum tierce__remote_hiding {
            TIERCE__REMOTE_SHOWN,       /* or never was */
            TIERCE__REMOTE_REPLACEABLE, /* until a put has replaced it */
            TIERCE__REMOTE_LEFT_ALONE,  /* puts are rejected too */
            TIERCE__REMOTE_LOCKED,      /* no key decrypted it: until a put has replaced it, and
                                           for lookups and reads until until_ns at most,
                                           since the key may have come */
        } how;
        uint64_t until_ns;
    } hidden[TIERCE__REMOTE_HIDDEN];
    uint64_t hidden_count; /* that were ever hidden: the last ones are kept */
    struct tierce__remote_known {
        uint64_t spread; /* of a key; 0: none */
        uint64_t at_ns;
        bool is_there;
    } known[TIERCE__REMOTE_SETS * TIERCE__REMOTE_WAYS];
    uint64_t forgotten_ns; /* answers to earlier queries do not count */
    struct tierce__tier_stats stats;
};

/* The name of a key. False: a key that no object can have. */
struct tierce__remote_name {
    struct tierce_plugin_name name;
    char text[TIERCE__KEY_TEXT_BYTES];
};
bool tierce__remote_name(const struct tierce__remote *remote, struct tierce__remote_name *name,
                         const struct tierce__key *key);
/* The names of keys up to one that has none, with their texts behind them; *named: how many. NULL:
 * no memory. [transfer] tierce__free */
struct tierce_plugin_name *tierce__remote_names(const struct tierce__remote *remote,
                                                const struct tierce__key *keys, size_t count,
                                                size_t *named);

/* Submits to the connector; answers TIERCE_E_CLOSED itself once that may not be called any more. */
void tierce__remote_call(struct tierce__remote *remote, struct tierce__store_req *call);

/* Adds an event. Under the lock; its holder then calls run. */
void tierce__remote_push(struct tierce__remote *remote, struct tierce__remote_event *event);
/* Runs the events and releases the lock. If another thread, or a caller further up in this one, is
 * running events already, only releases the lock. `remote` may be freed by the time it returns. */
void tierce__remote_run(struct tierce__remote *remote);
/* One event, and run. No lock held. */
void tierce__remote_note(struct tierce__remote *remote, struct tierce__remote_event *event);

/* Begins a request. False: the tier is closing, and the request was answered. */
bool tierce__remote_enter(struct tierce__remote *remote, struct tierce__store_req *req);
/* Answers the request, unless it was answered before. From here on close may free `remote`, so of
 * the callers further up in this thread only run and call may still use it. */
void tierce__remote_answer(struct tierce__remote *remote, struct tierce__store_req *req,
                           int status);
void tierce__remote_leave(struct tierce__remote *remote);

/* Whether the store cannot delete: wrong and forgotten chunks are then hidden until they are
 * replaced. */
bool tierce__remote_keeps(const struct tierce__remote *remote);

/* Under the lock, as all that follow. */
enum tierce__remote_hiding tierce__remote_hiding(const struct tierce__remote *remote,
                                                 const struct tierce__key *key);
/* Whether lookups do not find the key and reads miss it. */
bool tierce__remote_is_hidden(const struct tierce__remote *remote, const struct tierce__key *key);
void tierce__remote_hide(struct tierce__remote *remote, const struct tierce__key *key,
                         enum tierce__remote_hiding how);
/* A put of the key has reached the store, so the key is no longer hidden. */
void tierce__remote_show(struct tierce__remote *remote, const struct tierce__key *key);

/* The tier's status for the status of a connector call. */
int tierce__remote_status(const struct tierce__store_req *call);

/* ---- remote_known.c: recent answers of the store; all under the lock ---- */

enum tierce__remote_belief {
    TIERCE__REMOTE_UNKNOWN,
    TIERCE__REMOTE_THERE,
    TIERCE__REMOTE_ABSENT,
};

/* however_old: a chunk that was found once counts as stored, however long ago that was. */
enum tierce__remote_belief tierce__remote_recall(struct tierce__remote *remote,
                                                 const struct tierce__key *key, bool however_old);

/* asked_ns: when the query began; TIERCE__REMOTE_NOW for a write or deletion of this process. */
#define TIERCE__REMOTE_NOW UINT64_MAX
void tierce__remote_learn(struct tierce__remote *remote, const struct tierce__key *key,
                          bool is_there, uint64_t asked_ns);

/* Forgets all answers, including those that have not arrived yet. */
void tierce__remote_forget(struct tierce__remote *remote);
/* The store is asked again for the key. */
void tierce__remote_unlearn(struct tierce__remote *remote, const struct tierce__key *key);

/* ---- remote_write.c ---- */

struct tierce__remote_put;

void tierce__remote_put(struct tierce__remote *remote, struct tierce__store_req *req);

/*
 * Cancels earlier puts: those of one key, or of a namespace (NULL: all). `over` runs when all have
 * ended. A put in the store's hands may end long after the deadline of the waiter's request. The
 * clock then answers `req` (a deletion, which goes on without it), or runs `over` while `left` is
 * not 0 (a clear).
 */
struct tierce__remote_waiter {
    struct tierce__list node;   /* among the clears */
    struct tierce__list active; /* among the deletions */
    struct tierce__list timed;
    struct tierce__remote *remote;
    const struct tierce__key *key;   /* of one key */
    const struct tierce__key *ns_of; /* of a namespace */
    uint64_t deadline_ns;
    struct tierce__store_req *req; /* of a deletion; NULL: it is answered. Under the lock */
    uint64_t number;               /* of puts before it */
    size_t left;
    bool has_waited; /* for puts */
    struct tierce__remote_event over;
};
void tierce__remote_waiter_init(struct tierce__remote_waiter *waiter, struct tierce__remote *remote,
                                uint64_t deadline_ns);
void tierce__remote_take_back(struct tierce__remote *remote, struct tierce__remote_waiter *waiter);

/* A deletion has ended: later puts of its key may begin. */
void tierce__remote_end_deletion(struct tierce__remote *remote,
                                 struct tierce__remote_waiter *waiter);

/* For close: cancels waiting puts. */
void tierce__remote_cancel_waiting(struct tierce__remote *remote);

/* ---- remote_delete.c, remote_clear.c ---- */

/* The thread that answers at deadlines. Errors: -EAGAIN. */
TIERCE_MUSTUSE int tierce__remote_clock_start(struct tierce__remote *remote);
void tierce__remote_clock_end(struct tierce__remote *remote);

void tierce__remote_delete(struct tierce__remote *remote, struct tierce__store_req *req);

void tierce__remote_clear(struct tierce__remote *remote, struct tierce__store_req *req);

#endif
