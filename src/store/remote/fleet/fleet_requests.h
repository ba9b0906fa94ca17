/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FLEET_REQUESTS_H
#define TIERCE_CONNECTOR_FLEET_REQUESTS_H

#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "net/host_id.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_private.h"

#include <errno.h>
#include <stdatomic.h>

/*
 * Shared by fleet.c, fleet_read.c, fleet_write.c, fleet_report.c, fleet_hint.c and fleet_places.c:
 * the requests of a connector through a manager, on its thread.
 *
 * Memory. Lookups, gets and deletions are allocated when they arrive, and end with -ENOMEM without
 * memory. Puts have a place in one of a fixed number of write sessions, made when the connector is
 * opened; a put that finds none waits in its request's own list node. A session allocates nothing
 * of its own; calls do, for the bytes that are sent and received.
 */

#define TIERCE__FLEET_WAITING_MAX 4096u /* requests; beyond it TIERCE_E_LIMIT */

/* Kinds of trouble: each is logged once a minute. */
enum tierce__fleet_trouble {
    TIERCE__FLEET_TROUBLE_MANAGER,  /* a call failed */
    TIERCE__FLEET_TROUBLE_INSTANCE, /* a part cannot be registered */
    TIERCE__FLEET_TROUBLE_ANSWER,   /* the manager's answer makes no sense */
    TIERCE__FLEET_TROUBLE_STORAGE,  /* a storage failed */
    TIERCE__FLEET_TROUBLE_LOST,     /* a storage does not have what the manager lists */
    TIERCE__FLEET_TROUBLE_FULL,
    TIERCE__FLEET_TROUBLES
};

struct tierce__fleet {
    struct tierce__connector base;
    uint32_t magic;
    tierce__invalidated_fn *invalidated; /* of the engine, or NULL */
    void *invalidated_arg;
    char store_name[TIERCE__CONNECTOR_WHY_BYTES / 2];
    char *instance;                      /* of the URL, or NULL */
    char host_id[TIERCE__HOST_ID_BYTES]; /* so that nodes of this host are preferred */
    struct tierce__fleet_manager *manager;
    struct tierce__fleet_stores *stores;
    struct tierce__fleet_parts *parts;
    pthread_t thread;
    _Atomic uint64_t waiting;  /* requests that are not answered */
    _Atomic bool awaits_early; /* the thread waits for early answers of a part */

    struct tierce__lock lock; /* FLEET: from here to why */
    struct tierce__cond early_over;
    struct tierce__list arrived;  /* requests */
    struct tierce__list answered; /* struct tierce__fleet_io */
    bool has_answers;             /* there are some that the thread must handle soon */
    struct tierce__list adopted;  /* struct fleet_adoption: of tierce__connector_ops.adopt */
    struct tierce__list hinted;   /* struct fleet_hint */
    size_t hinted_names;          /* of these and of `hints` */
    uint64_t lost_hints;          /* that were not reported yet */
    bool closing;
    uint64_t close_ns;
    char why[TIERCE__CONNECTOR_WHY_BYTES];

    /* The thread's. */
    struct tierce__fleet_places *places;
    struct tierce__fleet_writes *writes;
    struct tierce__list jobs;     /* lookups, pings and questions for places: a call each */
    struct tierce__list gets;     /* all */
    struct tierce__list unplaced; /* those of which no question for the place was sent */
    struct tierce__list reports;
    uint32_t report_count;
    struct tierce__list hints;
    bool cannot_report;  /* the manager does not have ReportCache */
    bool cannot_hint;    /* nor HintCache */
    uint32_t ios;        /* requests that the storages have */
    uint64_t look_ns;    /* not after the next deadline of a get or a put */
    uint32_t session_ms; /* how long a write session lasts without a renewal */
    bool is_closing;     /* a copy of `closing` */
    uint64_t logged_ns[TIERCE__FLEET_TROUBLES];
    struct tierce__fleet_hello {
        struct tierce__fleet_call call;
        uint64_t due_ns;  /* NEVER: it runs, or was answered */
        bool is_needless; /* requests ask the manager */
    } hello;
};

/* Answers a request of the connector. */
void tierce__fleet_answer(struct tierce__fleet *fleet, struct tierce__store_req *req, int status);

/* Sets ops->why, and logs it if nothing of that kind was logged in the last minute. */
void tierce__fleet_say(struct tierce__fleet *fleet, enum tierce__fleet_trouble trouble,
                       const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Whether a storage failed by itself. The pool has others, so its tier is not to blame. A storage
 * that hangs is an exception, because it costs time. */
static inline bool tierce__fleet_storage_failed(int status)
{
    return status < 0 && status != TIERCE_E_MISS && status != TIERCE_E_DEADLINE &&
           status != TIERCE_E_CANCELLED && status != -ENOMEM;
}

/* Asks the manager once it is due, so that a wrong address or token is logged before the first
 * request of an engine: a node that only Redis clients use has none. Lowers *until_ns. */
void tierce__fleet_hello(struct tierce__fleet *fleet, uint64_t *until_ns);

/* The status of a request whose call of the manager failed; says why. */
int tierce__fleet_call_failed(struct tierce__fleet *fleet, const struct tierce__fleet_call *call);
/* The same for a part that is not registered. */
int tierce__fleet_register_failed(struct tierce__fleet *fleet,
                                  const struct tierce__fleet_part *part, int status);

/* tierce__fleet_part_of, and says why it failed. */
TIERCE_MUSTUSE int tierce__fleet_find_part(struct tierce__fleet *fleet,
                                           struct tierce__fleet_part **part, int64_t *key,
                                           const struct tierce_plugin_name *name);

/* The next deadline is not after this one. */
static inline void tierce__fleet_look_by(struct tierce__fleet *fleet, uint64_t deadline_ns)
{
    if (deadline_ns < fleet->look_ns)
        fleet->look_ns = deadline_ns;
}

/* ---- requests to storages (fleet.c) ------------------------------------------------------------
 */

struct tierce__fleet_io {
    struct tierce__list node;
    struct tierce__fleet *fleet;
    struct tierce__fleet_store *store;
    struct tierce_plugin_name name;
    struct tierce__store_req req;
    /* On any thread, under no lock, before `done`. True: the request behind this one is answered,
     * so `done` may come later, with the thread's next turn. NULL: nothing is done early. */
    bool (*early)(struct tierce__fleet_io *io);
    void (*done)(struct tierce__fleet_io *io); /* on the thread, never inside begin */
};

/* Sends a GET, PUT or LOOKUP of `place` with op, buf, length, deadline_ns and urgency of io->req.
 */
void tierce__fleet_io_begin(struct tierce__fleet *fleet, struct tierce__fleet_io *io,
                            const struct tierce__fleet_place *place);

/* ---- places (fleet_places.c) -------------------------------------------------------------------
 */

/* Remembers where blocks lie: for 10 s, of at most 32,768 blocks. The manager does not reuse a
 * place for a minute after its block was removed. Errors: -ENOMEM. */
struct tierce__fleet_places;
TIERCE_MUSTUSE int tierce__fleet_places_open(struct tierce__fleet_places **out);
void tierce__fleet_places_close(struct tierce__fleet_places *places);

/* The place of a block: the manager's URI, checked and read once for all gets. A
 * request that keeps it holds it. Thread: the connector's. */
struct tierce__fleet_spot {
    struct tierce__fleet_place place;
    const char *uri;
};
void tierce__fleet_spot_hold(struct tierce__fleet_spot *spot);
/* NULL is accepted. */
void tierce__fleet_spot_release(struct tierce__fleet_spot *spot);

/* Remembers a place, and forgets the one before. Errors: -ENOMEM, and those of
 * tierce__fleet_place_check; then none is remembered. `out` may be NULL. [borrow until the next put
 * or forget] */
int tierce__fleet_places_put(struct tierce__fleet *fleet, struct tierce__fleet_spot **out,
                             struct tierce__fleet_part *part, int64_t key, const char *uri);
/* [borrow until the next put or forget] NULL: not known, or in a storage that the manager does not
 * name any more. */
struct tierce__fleet_spot *tierce__fleet_places_find(struct tierce__fleet_places *places,
                                                     const struct tierce__fleet_part *part,
                                                     int64_t key);
void tierce__fleet_places_forget(struct tierce__fleet_places *places,
                                 const struct tierce__fleet_part *part, int64_t key);
/* All of a part. */
void tierce__fleet_places_forget_part(struct tierce__fleet_places *places,
                                      const struct tierce__fleet_part *part);

/* ---- reads (fleet_read.c) ----------------------------------------------------------------------
 */

void tierce__fleet_lookup(struct tierce__fleet *fleet, struct tierce__store_req *req);
void tierce__fleet_get(struct tierce__fleet *fleet, struct tierce__store_req *req);
/* Operations of the connector; the guard of a GET is its part and what that serves. Thread: any. */
bool tierce__fleet_answer_begin(struct tierce__connector *connector,
                                const struct tierce__store_guard *guard);
void tierce__fleet_answer_end(struct tierce__connector *connector,
                              const struct tierce__store_guard *guard);
void tierce__fleet_ping(struct tierce__fleet *fleet, struct tierce__store_req *req);
/* Asks for the places of the gets that arrived without one. */
void tierce__fleet_reads_ask(struct tierce__fleet *fleet);
/* Answers gets whose deadline is over and that no storage has. */
void tierce__fleet_reads_expire(struct tierce__fleet *fleet, uint64_t now_ns);
/* Answers requests that no storage has. */
void tierce__fleet_reads_cancel(struct tierce__fleet *fleet);
/* After the manager was closed: what its calls left. */
void tierce__fleet_reads_free(struct tierce__fleet *fleet);

/* The URI of a part in a location; NULL: there is none. */
const char *tierce__fleet_uri_of(const Meta__CacheLocation *location, const char *spec);

/* Reads a URI of a part's block, whose length may differ from that of a raw chunk. 0; or what a
 * request for it is answered with, and the reason was said. `room` as tierce__fleet_place_read. */
int tierce__fleet_place_check(struct tierce__fleet *fleet, struct tierce__fleet_part *part,
                              struct tierce__fleet_place *out, char *room, const char *uri);

/* ---- writes (fleet_write.c) --------------------------------------------------------------------
 */

TIERCE_MUSTUSE int tierce__fleet_writes_open(struct tierce__fleet_writes **out,
                                             struct tierce__fleet *fleet);
void tierce__fleet_writes_close(struct tierce__fleet_writes *writes);
void tierce__fleet_put(struct tierce__fleet *fleet, struct tierce__store_req *req);
/* Takes sessions further; returns when one of them has something to do. */
uint64_t tierce__fleet_writes_step(struct tierce__fleet *fleet, uint64_t now_ns);
void tierce__fleet_writes_expire(struct tierce__fleet *fleet, uint64_t now_ns);
enum tierce__fleet_stage {
    TIERCE__FLEET_CANCEL_NEW,      /* puts that the manager was not asked about, or must be asked
                                      about again */
    TIERCE__FLEET_CANCEL_UNSTORED, /* and the others; sessions end now, with what was stored */
    TIERCE__FLEET_CANCEL_ALL,      /* and those that were stored, whose session did not end */
};
void tierce__fleet_writes_cancel(struct tierce__fleet *fleet, enum tierce__fleet_stage stage);
/* Whether a session is open at the manager, or being opened. */
bool tierce__fleet_writes_busy(const struct tierce__fleet *fleet);

/* ---- deletions and reports (fleet_report.c) ----------------------------------------------------
 */

void tierce__fleet_delete(struct tierce__fleet *fleet, struct tierce__store_req *req);

/* Reports that `store` does not have the object at a block's place, in the background. If the store
 * has a mark, it is looked for first: nothing is reported of an empty mount point. */
void tierce__fleet_report_missing(struct tierce__fleet *fleet, struct tierce__fleet_part *part,
                                  int64_t key, const char *uri, struct tierce__fleet_store *store);
/* Reports a block's place to the manager, in the background. At most 64 at once; more are dropped,
 * because the next reader of the block finds the same. */
void tierce__fleet_report(struct tierce__fleet *fleet, struct tierce__fleet_part *part, int64_t key,
                          const char *uri, Meta__ReportReason reason);
void tierce__fleet_reports_cancel(struct tierce__fleet *fleet);
void tierce__fleet_reports_free(struct tierce__fleet *fleet);

/* ---- hints (fleet_hint.c) ----------------------------------------------------------------------
 */

/* False: the manager needs no such hint, or more than the kind. */
bool tierce__fleet_hint_fill(Meta__SessionHint *out, enum tierce__policy_hint kind);
/* The operation of the connector. Thread: any. */
void tierce__fleet_hint(struct tierce__connector *connector, const struct tierce_plugin_name *names,
                        size_t count, enum tierce__policy_hint kind);
void tierce__fleet_hints_send(struct tierce__fleet *fleet);
/* After the manager was closed. */
void tierce__fleet_hints_free(struct tierce__fleet *fleet);

#endif
