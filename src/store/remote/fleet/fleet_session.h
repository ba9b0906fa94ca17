/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FLEET_SESSION_H
#define TIERCE_CONNECTOR_FLEET_SESSION_H

#include "store/remote/fleet/fleet_requests.h"

/* A write session of a connector through a manager: fleet_write.c is its life, fleet_masked.c what
 * becomes of blocks that the manager gives no place. */

#define BATCH_MAX        64u
#define NAME_BYTES       640u
#define SESSION_ID_BYTES 160u

enum put_state {
    PUT_NEW,
    PUT_MASKED, /* the manager gave no place */
    PUT_MOVES,  /* a storage has it */
    PUT_STORED, /* the storage answered so; counts after FinishWriteCache */
    PUT_OVER,
};

struct fleet_session;

struct fleet_put {
    enum put_state state;
    struct fleet_session *session;
    struct tierce__store_req *req; /* NULL: it was answered */
    int64_t key;
    uint64_t coded_bytes; /* 0: it is raw */
    uint64_t deadline_ns;
    size_t number;   /* among the locations of the session */
    bool is_asked;   /* the question in progress is about it */
    const char *uri; /* in session->started */
    struct tierce__fleet_io io;
    char name[NAME_BYTES];
};

struct fleet_session {
    enum session_state { FREE, COLLECTS, REGISTERS, STARTS, MOVES, FINISHES, ENDS } state;
    struct tierce__fleet *fleet;
    struct tierce__fleet_part *part;
    uint64_t generation; /* of the part when the puts came; 0: none was known */
    uint64_t registries; /* the same */
    struct fleet_put puts[BATCH_MAX];
    size_t count;
    enum tierce__policy_hint hint; /* of all puts */
    bool has_parent;               /* the first put has */
    int64_t parent;
    uint64_t collect_until_ns;
    struct tierce__fleet_wait wait;
    struct tierce__fleet_call call; /* StartWriteCache, FinishWriteCache */
    bool retried;                   /* after the manager had forgotten the instance */

    char id[SESSION_ID_BYTES];
    ProtobufCMessage *started; /* the answer of StartWriteCache, with the URIs */
    size_t given;              /* locations in it */
    size_t moving;
    uint64_t finish_again_ns, finish_until_ns; /* 0: the call is under way */
    bool finish_lost;                          /* an attempt was not answered */

    struct tierce__fleet_call look;
    bool is_looking;
    bool was_lost;                         /* it looks for blocks that were stored */
    uint64_t look_again_ns, look_until_ns; /* 0: no question is due */

    struct tierce__fleet_call renewal;
    bool is_renewing;
    uint64_t renew_ns;
};

/* ---- fleet_write.c ---- */

/* `had`: the store had the block, and nothing was transferred. */
void tierce__fleet_put_answer(struct fleet_put *put, int status, bool had);
/* All puts of a state. */
void tierce__fleet_puts_answer(struct fleet_session *s, enum put_state state, int status);
size_t tierce__fleet_puts_count(const struct fleet_session *s, enum put_state state);
/* Whether a put of that state is not answered yet. */
bool tierce__fleet_puts_awaited(const struct fleet_session *s, enum put_state state);
/* The last deadline of a session's puts, but not after so many ms. */
uint64_t tierce__fleet_puts_deadline(const struct fleet_session *s, uint32_t ms_max);
/* Frees a session that has ended, unless something of it is still in progress. */
void tierce__fleet_session_end(struct fleet_session *s);

/* ---- fleet_masked.c ---- */

/* Asks the manager about the blocks that are PUT_MASKED, and again until they are answered. */
void tierce__fleet_look_first(struct fleet_session *s);
void tierce__fleet_look(struct fleet_session *s);

#endif
