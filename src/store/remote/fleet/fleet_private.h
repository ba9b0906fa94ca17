/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FLEET_PRIVATE_H
#define TIERCE_CONNECTOR_FLEET_PRIVATE_H

#include <stdatomic.h>

#include "core/key/key.h"
#include "store/remote/connector_private.h"
#include "store/remote/fleet/fleet_manager.h"
#include "store/remote/fleet/fleet_stores.h"

/*
 * A connector through a manager (KVCM's protocol): the manager knows where each block lies, and
 * this process moves the bytes, straight to and from the storage that the manager names.
 *
 *     fleet://manager1:6381,manager2:6381/GROUP[/INSTANCE]?token_file=...      fleet+tls://...
 *
 * mooncake_python= in the URL names the interpreter for storages of Mooncake; their connector works
 * on the pool in another process, so the pool must be shared (tierce__connector_needs_shared_pool).
 *
 *     LOOKUP   GetCacheLocation; the places are remembered
 *     GET      the place is remembered, or asked for; then GET from the storage's own connector
 *     PUT      StartWriteCache, PUT to the storage, FinishWriteCache; puts that come together share
 *              the two calls
 *     DELETE   ReportCache, or RemoveCache for a block of one rank
 *     PING     GetInstanceInfo
 *     hint     HintCache, of blocks that were used; StartWriteCache, of new ones
 *
 *     fleet.c           requests and answers, the thread, open and close
 *     fleet_write.c     puts and write sessions
 *     fleet_read.c      lookups and gets
 *     fleet_places.c    remembered places
 *     fleet_hint.c      hints of clients
 *     fleet_part.c      names as instance, spec and block key; registration
 *     fleet_generation.c what the manager invalidated
 *     fleet_hello.c     the first question, if no request asks one
 *     fleet_manager.c   calls of the manager; which address leads (net/grpc)
 *     fleet_stores.h    one connector for each storage (fleet_opener.c opens it)
 *     fleet_uri.c       URIs as names of objects in a storage
 *
 * Everything below belongs to the connector's thread, which blocks nowhere but in
 * tierce__fleet_manager_poll. Other threads only append requests, and answers of the storages'
 * connectors, to the two lists under the lock FLEET, and wake it.
 */

/* ---- parts: what a name is to the manager (fleet_part.c) ---------------------------------------
 */

/*
 * A namespace's shard: a location spec of an instance. A name is the text of a key
 * (core/key/key_text.h); its namespace and shard choose the part, and the first 8 bytes of its hash
 * (little-endian) are the block key.
 *
 * Each namespace has an instance of its own. A namespace of all layers has the one in the URL, if
 * the URL has one. Otherwise the instance's name consists of
 *
 *     the name in the URL, or "tierce-" and 32 hex digits of tierce__namespace_family
 *     '-' and "all", "full", "window", "chunked" or "linear" (the group of layers)
 *     '-' and 8 hex digits of the namespace's digest
 *     "-tpN" if there are N > 1 tensor ranks
 *
 * So groups of one model can be recognised as a family by the beginning of the name; one instance
 * for all of them would have to be registered at once, but a process opens its groups one after the
 * other. With several stages each stage has an instance, "-ppPofN" behind the rest, because their
 * sizes differ. block_size is the tokens of a chunk. The model's `extra` is the digest of the
 * family, ':', and the namespace's digest, in full; so a manager never accepts two namespaces as
 * one instance, also if an operator named it.
 *
 * Registration names the kind of attention, and the family of instances whose blocks the manager
 * reclaims together: the instance in the URL or "tierce", a digest, and the numbers of ranks.
 *
 * The specs of an instance are "tp0" to "tpN", one for each tensor rank, all of one size and
 * registered at once. With several ranks each spec is a spec group of its own, named alike.
 *
 * The size of a spec is that of a whole chunk's object. Shorter chunks (tails) are not stored.
 */
struct tierce__fleet_part;
typedef bool tierce__fleet_invalidated_fn(void *arg, const struct tierce__fleet_part *part,
                                          bool is_first);

struct tierce__fleet_part {
    struct tierce__list node;
    uint8_t ns_digest[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    char instance[128]; /* as registered */
    char spec[64];      /* and the name of its spec group */
    bool has_groups;    /* StartWriteCache must name spec groups: the instance has several specs */
    uint64_t object_bytes;
    enum tierce__fleet_part_state {
        TIERCE__FLEET_NEW,
        TIERCE__FLEET_REGISTERING,
        TIERCE__FLEET_REGISTERED,
        TIERCE__FLEET_REJECTED, /* the manager has this instance with another model, and `why` names
                                   the field; or no such instance is possible, or too many are
                                   there. Asked again after a minute */
    } state;
    uint64_t asked_ns; /* the last registration */
    char why[TIERCE__FLEET_WHY_BYTES];
    /* Generations of the instance (InvalidateNamespace). While they differ, this process may hold
     * blocks that were invalidated: the part has no blocks for readers and takes none. */
    uint64_t generation; /* for which the engine is ready; 0: none was heard */
    uint64_t heard;      /* the manager's; 0: it has none */
    uint64_t registry;   /* that counts `heard`; 0: not known */
    uint64_t registries; /* how often another one was heard: what began before is stale */
    uint64_t heard_ns;   /* when the manager answered last */
    /* Another number for each generation of a registry while the part is current, otherwise 0: for
     * answers on other threads.
     * Sequentially consistent with `early`: see answer_early in fleet_read.c. */
    _Atomic uint64_t serves;
    _Atomic uint32_t early; /* gets that are being answered on other threads */
    /* Called when the part is not current any more, and with the first generation. True: this
     * process has nothing of another one, so this one is adopted at once. NULL: the first
     * generation is adopted if it is 1. */
    tierce__fleet_invalidated_fn *invalidated;
    void *invalidated_arg;
};

static inline bool tierce__fleet_part_is_current(const struct tierce__fleet_part *part)
{
    return part->heard == part->generation;
}

struct tierce__fleet_parts;

struct tierce__fleet_parts_opts {
    size_t size;
    struct tierce__fleet_manager *manager; /* [borrow]; closed before the parts */
    struct tierce__fleet_stores *stores; /* [borrow until close] learns the storages of the group */
    struct tierce__namespaces *namespaces; /* [borrow until close] */
    const char *group, *instance;          /* instance NULL: by namespace; [borrow for the call] */
    tierce__fleet_invalidated_fn *invalidated; /* of all parts; or NULL */
    void *arg;
};
TIERCE_MUSTUSE int tierce__fleet_parts_open(struct tierce__fleet_parts **out,
                                            const struct tierce__fleet_parts_opts *opts);
/* After the manager was closed, which drops the calls in progress. Waiters are dropped without
 * their `done`. NULL is accepted. */
void tierce__fleet_parts_close(struct tierce__fleet_parts *parts);

/* The part of a name, and the block key. Errors: TIERCE_E_ARGUMENT (not the text of a key, a
 * namespace whose text is not known, a name of an instance that is too long), TIERCE_E_LIMIT (more
 * than 256 parts), -ENOMEM. */
TIERCE_MUSTUSE int tierce__fleet_part_of(struct tierce__fleet_parts *parts,
                                         struct tierce__fleet_part **part, int64_t *block_key,
                                         const struct tierce_plugin_name *name);

/* The reason why the last tierce__fleet_part_of failed, in words; "" for -ENOMEM. [borrow until the
 * next] */
const char *tierce__fleet_parts_why(const struct tierce__fleet_parts *parts);

/*
 * Waits until a part is registered: `done` is called once, by this call or by a later poll of the
 * manager, with 0, or TIERCE_E_REFUSED (rejected: part->why), or a call's status. A part that is
 * registered, or that was rejected within the last minute, is answered at once, and so is one whose
 * registration failed at the manager in the last second. Concurrent waiters share a call.
 */
struct tierce__fleet_wait {
    struct tierce__list node;
    uint64_t deadline_ns;
    void (*done)(struct tierce__fleet_wait *wait, int status);
    void *arg;
};
void tierce__fleet_register(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part,
                            struct tierce__fleet_wait *wait);

/* Answers waiters whose deadline is over, TIERCE_E_DEADLINE; lowers *until_ns to the next one. To
 * be called before each poll. */
void tierce__fleet_expire(struct tierce__fleet_parts *parts, uint64_t *until_ns);

/*
 * Takes the generation from a call about the part that has ended. Returns whether the part is
 * current and the answer is of its generation: otherwise the answer's blocks must not be used.
 *
 * Another registry's generation is another one, also if it has the same number: what happened to
 * the first registry is not known. An answer that does not name its registry counts as one of the
 * registry that was heard.
 */
bool tierce__fleet_part_hear(struct tierce__fleet_part *part,
                             const struct tierce__fleet_call *call);
/* The engine has dropped what it had of the part before this generation of a registry (0: not
 * known). It is ignored if another one was heard since. */
void tierce__fleet_part_adopt(struct tierce__fleet_part *part, uint64_t generation,
                              uint64_t registry);
/* Finds a part that exists; NULL: there is none. */
struct tierce__fleet_part *tierce__fleet_part_find(struct tierce__fleet_parts *parts,
                                                   const uint8_t ns_digest[TIERCE_HASH_BYTES],
                                                   const struct tierce_shard *shard);
/* Asks the manager about parts of which it has answered nothing for some seconds, so that also an
 * engine that finds everything in its own tiers learns of an invalidation. Parts that are not
 * registered, because no manager answered, are registered. Lowers *until_ns to the next time. */
void tierce__fleet_parts_ask(struct tierce__fleet_parts *parts, uint64_t *until_ns);

/* The manager does not know the instance any more, or named a storage that `stores` does not know:
 * the next tierce__fleet_register registers again; at most once a second for a part. */
void tierce__fleet_part_outdated(struct tierce__fleet_part *part);

#endif
