/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_BRIDGE_H
#define TIERCE_CONNECTOR_BRIDGE_H

#include "store/remote/connector.h"

/*
 * A child process that is a client of a store, in Python (bridge.py): Mooncake's, or a class of a
 * user. It maps the pool, so the client transfers bytes directly from and to buffers; only names
 * and offsets pass between the two processes. Each seat has a socket, which carries one call at a
 * time.
 *
 * The first call starts the process. A later call restarts it after it has ended, with a growing
 * delay if it ends soon each time. Any error on a socket ends the process for all seats. A failed
 * call returns only after the process is dead and reaped, because until then it may write into the
 * pool.
 *
 *     rc = tierce__bridge_call(bridge, seat, &ask, &result, why);
 *
 * Thread: any; a seat has one caller at a time.
 */

struct tierce__bridge;

/* bridge.py, and the client's file after it. [borrow until destroy] */
struct tierce__bridge_script {
    const unsigned char *text;
    const size_t *bytes;
};

struct tierce__bridge_opts {
    const char *python; /* as execvp finds it */
    const struct tierce__bridge_script *script;
    const char *const *arguments; /* "name=value", up to NULL; any user of the host can see them */
    const char *const *options;   /* the same for the client alone, or NULL: none */
    const char *log;              /* a file for the output of the process, or NULL */
    const struct tierce__pool *pool; /* shared; [borrow until destroy] */
    uint32_t seats;                  /* 1 .. TIERCE__BRIDGE_SEATS_MAX */
    uint32_t call_ms;                /* a call that takes longer ends the process */
};

#define TIERCE__BRIDGE_SEATS_MAX 150u
#define TIERCE__BRIDGE_NAMES_MAX 512u /* of one call */

/* [borrow] all but the pool for the call. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__bridge_create(struct tierce__bridge **out,
                                         const struct tierce__bridge_opts *opts);

/* After all calls. Gives the process up to two seconds to close its client. */
void tierce__bridge_destroy(struct tierce__bridge *bridge);

enum tierce__bridge_op {
    TIERCE__BRIDGE_EXISTS = 1, /* how many leading names are stored? */
    TIERCE__BRIDGE_GET,        /* a range of an object to a place of the pool: bytes read */
    TIERCE__BRIDGE_PUT,        /* bytes at a place of the pool, unless the name is stored */
    TIERCE__BRIDGE_DELETE,
    TIERCE__BRIDGE_LENGTH,   /* of an object */
    TIERCE__BRIDGE_ABILITIES /* of the client, as bits */
};

struct tierce__bridge_ask {
    enum tierce__bridge_op op;
    const struct tierce_plugin_name *names;
    size_t name_count;
    uint64_t place; /* in the pool */
    uint64_t offset, length;
};

/*
 * Result: as described above, or an error of the client, below 0, with its text in `why`, or "".
 * Errors, `why` in words: TIERCE_E_DOWN, TIERCE_E_FORMAT, TIERCE_E_CLOSED (after an abort),
 * -ENOMEM. May take as long as the start of the process and opts->call_ms together.
 */
TIERCE_MUSTUSE int tierce__bridge_call(struct tierce__bridge *bridge, uint32_t seat,
                                       const struct tierce__bridge_ask *ask, int64_t *result,
                                       char why[TIERCE__CONNECTOR_WHY_BYTES]);

/* Ends the process that the seat's last call went to, and returns when it is dead. */
void tierce__bridge_end(struct tierce__bridge *bridge, uint32_t seat);

/* Ends the process for good, so that all calls return soon. */
void tierce__bridge_abort(struct tierce__bridge *bridge);

/* For the seat's caller: whether there is a process, and how many there have been. */
bool tierce__bridge_is_up(const struct tierce__bridge *bridge, uint32_t seat);
uint64_t tierce__bridge_starts(const struct tierce__bridge *bridge, uint32_t seat);

extern const unsigned char tierce__bridge_mooncake_py[], tierce__bridge_python_py[];
extern const size_t tierce__bridge_mooncake_py_size, tierce__bridge_python_py_size;

#endif
