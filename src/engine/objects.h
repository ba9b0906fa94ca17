/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_OBJECTS_H
#define TIERCE_ENGINE_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/engine.h>

/*
 * Named values of opaque bytes in the same tiers as chunks: what a node keeps for clients that
 * speak a foreign protocol (lm://, RESP). A value lies in the pool as a chunk object does, header,
 * sums and all (docs/format/object.md), so that every tier keeps, verifies and evicts it as it does
 * any chunk, and goes from and to a socket without another copy.
 *
 *     rc = tierce__object_create(space, &object, &what);      // room in the pool, evicting
 *     ... read what.value_bytes from the socket to object->value; tierce__object_filled() ...
 *     rc = tierce__object_publish(object);                    // or tierce__object_release: nothing
 *
 *     rc = tierce__object_find(space, &find);                 // answered now, or by find.done
 *     ... while (tierce__object_verified(object, upto)) send object->value ...
 *     tierce__object_release(object);
 *
 * A space is the values of one tenant in one protocol's names; values of different spaces do not
 * see each other.
 *
 * Promises: a value is found whole or not at all; its name is compared in full; no byte is handed
 * out before its piece was verified (pieces of TIERCE__OBJECT_PIECE bytes, so that verifying leaves
 * them in the processor's cache for the one who sends them); a value that fails is a miss, counted,
 * and taken out of memory and of the tier that it was read from. A value that is published replaces
 * the one of its name everywhere: whoever finds it afterwards finds the new one or none, never the
 * old one, also after a crash. What memory has is replaced in one step, without a moment of
 * neither.
 *
 * Thread: any; an object handle belongs to one thread at a time. Nothing here waits for a device,
 * except where said.
 */

#define TIERCE__OBJECT_PIECE     (256u << 10)
#define TIERCE__OBJECT_VALUE_MAX (512ULL << 20)
#define TIERCE__OBJECT_NAME_MAX  1024u
#define TIERCE__OBJECT_NOTE_MAX  64u

struct tierce__objects; /* a space */

/* Opens a space; `kind` and `tenant` are UTF-8 without control characters and name it ("resp", "").
 * It may be opened several times. [borrow] the engine until close. Errors: -ENOMEM,
 * TIERCE_E_ARGUMENT (no such text, or longer than 900 bytes), TIERCE_E_LIMIT (too many
 * namespaces). */
TIERCE_MUSTUSE int tierce__objects_open(struct tierce__objects **out, struct tierce_engine *engine,
                                        const char *kind, const char *tenant);
/* No object and no find may be alive. */
void tierce__objects_close(struct tierce__objects *space);

struct tierce__object_what {
    const void *name; /* any bytes, 1 .. TIERCE__OBJECT_NAME_MAX */
    size_t name_bytes;
    const void *note; /* the protocol's own few bytes about the value */
    size_t note_bytes;
    uint64_t value_bytes; /* 0 .. TIERCE__OBJECT_VALUE_MAX */
    uint64_t expires_ms;  /* wall clock, since 1970; 0: never */
};

struct tierce__object {
    uint8_t *value; /* contiguous; to be written before publish, only to be read after find */
    struct tierce__object_what what; /* name and note lie in the object itself */
};

/* Room for a value that will be written; name and note are copied. Errors: TIERCE_E_FULL (nothing
 * can be evicted now; the value is not stored), TIERCE_E_LIMIT (larger than memory, or than a limit
 * above), -ENOMEM, TIERCE_E_CLOSED (mode freeze or bypass). */
TIERCE_MUSTUSE int tierce__object_create(struct tierce__objects *space, struct tierce__object **out,
                                         const struct tierce__object_what *what);

/* The first `bytes` of the value have been written: their sums are taken while they are in the
 * processor's cache. Optional; publish takes those that are left. */
void tierce__object_filled(struct tierce__object *object, uint64_t bytes);

/* When it ends, said before publish and after create: of a protocol that tells it last. */
void tierce__object_expire(struct tierce__object *object, uint64_t expires_ms);

/*
 * Makes the value findable in memory and hands it to the slower tiers; ends the handle. The same
 * bytes under the same name, with the same note and end, are kept as they are. Returns 0 once it
 * can be found, or the error, and then it cannot; the value before it may be there or not. Does not
 * wait for a device, unless a slower tier has, or lately had, a value of that name: of that the
 * header is read, the rest too if it may be the same, and what differs is forgotten for good, at
 * most timeout.load. Errors: TIERCE_E_CLOSED (mode), -ENOMEM, TIERCE_E_FULL, TIERCE_E_DEADLINE, or
 * why a slower tier could not forget.
 */
TIERCE_MUSTUSE int tierce__object_publish(struct tierce__object *object);

/* Ends a handle: of one that was not published nothing stays. NULL is accepted. */
void tierce__object_release(struct tierce__object *object);

/* What its handle keeps of memory: header and padding too, and at least one of its places
 * (memory.chunks), as bytes. */
uint64_t tierce__object_bytes(struct tierce__object *object);

/* A question for a value. The memory of it is the caller's until the answer. */
struct tierce__object_find {
    const void *name;
    size_t name_bytes;
    uint64_t deadline_ns; /* of what slower tiers read */
    /* Called once if find returned -EINPROGRESS, from any thread; must not block. */
    void (*done)(struct tierce__object_find *find);
    void *arg;
    /* [out] 0: object, the caller's; TIERCE_E_MISS; TIERCE_E_DEADLINE; TIERCE_E_DOWN. */
    int status;
    struct tierce__object *object;
    uint64_t scratch[64]; /* the engine's meanwhile */
};

/*
 * Finds a value and takes a lease on it: while the handle lives it can be read, whatever is evicted
 * or replaced meanwhile. What memory holds is answered at once (0, or TIERCE_E_MISS where no tier
 * has it); what a slower tier holds is read and promoted, and answered by `done` (returns
 * -EINPROGRESS). Errors: as find->status.
 */
TIERCE_MUSTUSE int tierce__object_find(struct tierce__objects *space,
                                       struct tierce__object_find *find);

/* Verifies what of the first `bytes` of the value, whole pieces, was not verified through this
 * handle or the one that it was shared from. False: it is not what was stored; it is taken out of
 * service, and the caller must not use it (what it sent before was good). */
TIERCE_MUSTUSE bool tierce__object_verified(struct tierce__object *object, uint64_t bytes);

/* Forgets a value in every tier, in any mode; *was: whether there was one that had not expired. May
 * wait for a device, at most timeout.load. Errors: as publish, and then it may be there or not. */
TIERCE_MUSTUSE int tierce__object_remove(struct tierce__objects *space, const void *name,
                                         size_t name_bytes, bool *was);

/*
 * Values of the space: how many there are in memory and on disk, each counted once, with those that
 * have expired and not been asked for since; and all their names, in pages: *cursor is 0 at first
 * and again after the last. `count` is how many a page should have: some more or fewer, perhaps
 * none. A value that is there all the time, and not replaced, is told at least once. Both walk over
 * the indexes of the tiers. Names of values that only a slower tier holds are read from it: may
 * wait, timeout.lookup a page at most. Errors: those of a tier that does not answer.
 */
uint64_t tierce__objects_count(struct tierce__objects *space);
typedef void tierce__objects_each_fn(void *arg, const struct tierce__object_what *what);
TIERCE_MUSTUSE int tierce__objects_scan(struct tierce__objects *space, uint64_t *cursor,
                                        uint32_t count, tierce__objects_each_fn *each, void *arg);

/* Forgets every value of the space that was published before. May wait, as remove. Returns how many
 * there were, or an error. */
TIERCE_MUSTUSE int64_t tierce__objects_clear(struct tierce__objects *space);

#endif
