/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OBJECTS_H
#define TIERCE_ENGINE_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * Named values of opaque bytes in the same tiers as chunks. A node stores them for clients of
 * foreign protocols (lm://, RESP). A value has the form of a chunk object, with header and sums
 * (docs/inside/format/object.md), so every tier stores, verifies and evicts it like a chunk. It is
 * sent and received without another copy.
 *
 *     rc = tierce__object_create(space, &object, &what);      // room in the pool, evicting
 *     ... read what.value_bytes from the socket to object->value; tierce__object_filled() ...
 *     rc = tierce__object_publish(object);                    // or tierce__object_release: nothing
 *
 *     rc = tierce__object_find(space, &find);                 // answered now, or by find.done
 *     ... while (tierce__object_verified(object, upto)) send object->value ...
 *     tierce__object_release(object);
 *
 * A space holds the values of one tenant under the names of one protocol. Spaces are isolated from
 * each other.
 *
 * Promises: a value is found whole or not at all; its name is compared in full; no byte is handed
 * out before its piece was verified (pieces of TIERCE__OBJECT_PIECE bytes, so that verifying leaves
 * them in the processor's cache for the caller that sends them); a value that fails is a miss,
 * counted, and taken out of memory and of the tier that it was read from. A published value
 * replaces the old value of its name in all tiers: later finds return the new value or none, never
 * the old one, even after a crash. The replacement in memory is atomic.
 *
 * Thread: any; an object handle belongs to one thread at a time. Nothing here waits for a device,
 * except where stated.
 */

#define TIERCE__OBJECT_PIECE     (256u << 10)
#define TIERCE__OBJECT_VALUE_MAX (512ULL << 20)
#define TIERCE__OBJECT_NAME_MAX  1024u
#define TIERCE__OBJECT_NOTE_MAX  64u

struct tierce__objects; /* a space */

/* Opens a space; `kind` and `tenant` are UTF-8 without control characters and name it ("resp", "").
 * It may be opened several times. [borrow] the engine until close. Errors: those of
 * tierce__tombstones_open (logged: old values could be served), -ENOMEM, TIERCE_E_ARGUMENT (no such
 * text, or longer than 900 bytes), TIERCE_E_LIMIT (too many namespaces). */
TIERCE_MUSTUSE int tierce__objects_open(struct tierce__objects **out, struct tierce_engine *engine,
                                        const char *kind, const char *tenant);
/* Called repeatedly by the engine's keeper: makes remote stores that have returned to service
 * delete the values that have a tombstone (tombstones.h). Does not wait for them. */
void tierce__objects_purge(struct tierce_engine *engine);
/* Whether purge may go on now: those that it began are deleted, and there may be more. It becomes
 * true with a broadcast of the engine's `changed`. */
bool tierce__objects_purge_is_due(struct tierce_engine *engine);

/* No object and no find may be alive. */
void tierce__objects_close(struct tierce__objects *space);

struct tierce__object_what {
    const void *name; /* any bytes, 1 .. TIERCE__OBJECT_NAME_MAX */
    size_t name_bytes;
    const void *note; /* the protocol's own few bytes about the value */
    size_t note_bytes;
    uint64_t value_bytes; /* 0 .. TIERCE__OBJECT_VALUE_MAX */
    uint64_t expires_ms;  /* wall clock, since 1970; 0: never */
    uint8_t hint;         /* enum tierce_hint of this use of the value; it is not stored. A value
                             that expires has the hint TTL unless another one is given */
};

struct tierce__object {
    uint8_t *value; /* contiguous; to be written before publish, only to be read after find */
    struct tierce__object_what what; /* name and note lie in the object itself */
    uint64_t deadline_ns; /* of publish; may be set before it. 0: timeout.load after it begins */
};

/* Room for a value that will be written; name and note are copied. Errors: TIERCE_E_FULL (nothing
 * can be evicted now; the value is not stored), TIERCE_E_LIMIT (larger than memory, or than a limit
 * above), -ENOMEM, TIERCE_E_CLOSED (mode freeze or bypass). */
TIERCE_MUSTUSE int tierce__object_create(struct tierce__objects *space, struct tierce__object **out,
                                         const struct tierce__object_what *what);

/* The first `bytes` of the value have been written: their sums are taken while they are in the
 * processor's cache. Optional; publish takes those that are left. */
void tierce__object_filled(struct tierce__object *object, uint64_t bytes);

/* Sets the expiry of a value between create and publish, for protocols that send it last. */
void tierce__object_expire(struct tierce__object *object, uint64_t expires_ms);

/*
 * Makes the value findable in memory and hands it to the slower tiers; ends the handle. The same
 * bytes under the same name, with the same note and expiry, are not stored again. Returns 0 once it
 * can be found, or an error. After an error the old value stays; or the new value can be found,
 * because a tier deleted the old one and could not make that durable. Both may be lost if only a
 * remote store held the old value, has deleted it, and a faster tier failed afterwards. Does not
 * wait for a device, unless a slower tier has, or recently had, a value of that name. Then it reads
 * that value's header, and its bytes too if they may be equal, and durably deletes a different
 * value, by object->deadline_ns. Errors: TIERCE_E_CLOSED (mode), -ENOMEM, TIERCE_E_FULL,
 * TIERCE_E_DEADLINE, TIERCE__TOMBSTONES_FULL (a remote store cannot delete, and there are too many
 * tombstones), or the error of a slower tier that could not delete.
 */
TIERCE_MUSTUSE int tierce__object_publish(struct tierce__object *object);

/*
 * The same without a sync, to publish many values with one sync. *unsettled is set if a durable
 * tier held an older value, which could reappear after a crash until tierce__objects_settle has
 * returned 0. The caller must not acknowledge the value before then.
 */
TIERCE_MUSTUSE int tierce__object_publish_unsettled(struct tierce__object *object, bool *unsettled);

/* Makes the removal of all values replaced before durable, with one sync. Blocks for at most
 * timeout.load. Errors: TIERCE_E_DEADLINE, or the error of a tier. */
TIERCE_MUSTUSE int tierce__objects_settle(struct tierce__objects *space);

/* The same without blocking: `done` is called once with the status, from any thread, perhaps before
 * this call returns. The caller keeps the struct until then. `done` must not block. */
struct tierce__object_settle {
    void (*done)(struct tierce__object_settle *settle);
    void *arg;
    int status;
    uint64_t scratch[81]; /* used by the engine until done */
};
void tierce__objects_settle_begin(struct tierce__objects *space,
                                  struct tierce__object_settle *settle);

/* Ends a handle; an unpublished value is discarded. NULL is accepted. */
void tierce__object_release(struct tierce__object *object);

/* The memory that the handle keeps, in bytes: the object with header and padding, and at least the
 * pool's size divided by its number of buffers. */
uint64_t tierce__object_bytes(struct tierce__object *object);

/* A query for a value. The memory of it is the caller's until the answer. */
struct tierce__object_find {
    const void *name;
    size_t name_bytes;
    uint64_t deadline_ns; /* of reads from slower tiers */
    uint8_t hint;         /* as in struct tierce__object_what */
    /* Called once if find returned -EINPROGRESS, from any thread; must not block. */
    void (*done)(struct tierce__object_find *find);
    void *arg;
    /* [out] 0: object, the caller's; TIERCE_E_MISS; TIERCE_E_DEADLINE; TIERCE_E_DOWN. */
    int status;
    struct tierce__object *object;
    uint64_t scratch[64]; /* used by the engine until done */
};

/*
 * Finds a value and takes a lease on it: the value stays readable as long as the handle exists,
 * even if it is evicted or replaced. A value in memory is returned at once (0; TIERCE_E_MISS if no
 * tier holds it). A value in a slower tier is read, verified as a whole and promoted, and reported
 * by `done` (returns -EINPROGRESS). A value that does not verify is a miss in that tier, and the
 * next tier is searched. Errors: as find->status.
 */
TIERCE_MUSTUSE int tierce__object_find(struct tierce__objects *space,
                                       struct tierce__object_find *find);

/* Verifies the whole pieces in the first `bytes` of the value, except those already verified
 * through this handle or the handle that it was shared from. False: the bytes differ from the
 * stored ones. The value is taken out of service, and the caller must not use it (bytes sent before
 * were good). */
TIERCE_MUSTUSE bool tierce__object_verified(struct tierce__object *object, uint64_t bytes);

/* Deletes a value from every tier, in any mode; *was: whether an unexpired value existed. May
 * wait for a device, at most timeout.load. Errors: as publish; the value may then be stored or not.
 */
TIERCE_MUSTUSE int tierce__object_remove(struct tierce__objects *space, const void *name,
                                         size_t name_bytes, bool *was);
/* The same by a deadline. */
TIERCE_MUSTUSE int tierce__object_remove_by(struct tierce__objects *space, const void *name,
                                            size_t name_bytes, uint64_t deadline_ns, bool *was);

/*
 * Counts the values of the space in memory and on disk, and lists their names. Each value counts
 * once; expired values count until they are next requested. The names come in pages: *cursor is 0
 * at first and again after the last. `count`: the intended length of a page; it may have more
 * names, fewer, or none. A value that exists during the whole walk and is not replaced is reported
 * at least once, and twice only if it was evicted from memory to a slower tier meanwhile, or if it
 * is in coded memory and on disk, and not in memory. Both walk
 * over the indexes of the tiers. Names of values that only a slower tier holds are read from it:
 * may wait, timeout.load a page at most. Errors: those of a tier that does not answer.
 */
uint64_t tierce__objects_count(struct tierce__objects *space);
typedef void tierce__objects_each_fn(void *arg, const struct tierce__object_what *what);
TIERCE_MUSTUSE int tierce__objects_scan(struct tierce__objects *space, uint64_t *cursor,
                                        uint32_t count, tierce__objects_each_fn *each, void *arg);

/* Forgets every value of the space that was published before. May wait, as remove. Returns how many
 * there were, or an error. */
TIERCE_MUSTUSE int64_t tierce__objects_clear(struct tierce__objects *space);

#endif
