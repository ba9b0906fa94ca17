/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_FLEET_FAKE_H
#define TIERCE_TESTS_FLEET_FAKE_H

#include "store/remote/fleet/fleet_private.h"
#include "store_connector.h"

/*
 * The parts below a connector through a manager, with faults: a manager, the parts of names and the
 * storages of a group. A program that is linked with fleet_fake.c has these in place of
 * fleet_manager.c, fleet_part.c and fleet_stores.c.
 *
 * The manager knows the blocks of instance "i", each at the place "fake://s/KEY?size=BYTES" of the
 * only storage, a store_connector. Its calls are answered by poll.
 *
 * Thread: any, except where a function says otherwise.
 */

enum fleet_fake_call {
    FLEET_FAKE_INFO,
    FLEET_FAKE_META,
    FLEET_FAKE_LOCATE,
    FLEET_FAKE_START,
    FLEET_FAKE_FINISH,
    FLEET_FAKE_REMOVE,
    FLEET_FAKE_RENEW,
    FLEET_FAKE_REPORT,
    FLEET_FAKE_HINT,
    FLEET_FAKE_CALLS
};

enum { FLEET_FAKE_BYTES = 8192 }; /* of an object */

/* Before a connector is opened, and after it was closed. */
void fleet_fake_start(void);
void fleet_fake_stop(void);
struct store_connector *fleet_fake_store(void);

/* The next `times` calls fail so, with an effect if `after`. */
void fleet_fake_fail(enum fleet_fake_call call, int status, const char *why, unsigned times,
                     bool after);
/* Answers of that kind wait until they are let go, or their deadline is over. */
void fleet_fake_hold(enum fleet_fake_call call);
void fleet_fake_let_go(void);
unsigned fleet_fake_held(void);
unsigned fleet_fake_count(enum fleet_fake_call call);

/* Changes every answer of that kind before it is delivered. NULL: none. */
typedef void fleet_fake_lie_fn(ProtobufCMessage *reply);
void fleet_fake_lie(enum fleet_fake_call call, fleet_fake_lie_fn *lie);

/* What another session, or the manager itself, does to a block. */
enum fleet_fake_state { FLEET_FAKE_ABSENT, FLEET_FAKE_WRITING, FLEET_FAKE_SERVING };
void fleet_fake_set(int64_t key, enum fleet_fake_state state);
enum fleet_fake_state fleet_fake_state(int64_t key);
/* From now on blocks get no places. */
void fleet_fake_set_full(bool is_full);
/* From now on places have the sizes that StartWriteCache states, as those of a manager of Tierce.
 */
void fleet_fake_set_sized(void);
/* The URI of new places, with one %lld for the key; NULL: the usual one. */
void fleet_fake_set_uri(const char *format);
/* The last hint of a block: of HintCache, or of StartWriteCache if it serves; "": none. */
const char *fleet_fake_hint(int64_t key);
int64_t fleet_fake_first_key(void); /* of the last StartWriteCache of several keys */
/* The storage is a folder with a mark; and how often it was to be opened again. */
void fleet_fake_set_marked(void);
unsigned fleet_fake_reopened(void);
/* The manager has changed the configuration of the storage that it named. */
void fleet_fake_set_replaced(bool is_replaced);
/* Of the instance, in the answers of calls from now on; 0 at first: the manager has none. */
void fleet_fake_set_generation(uint64_t generation);
/* Registration ends so; 0 at first. */
void fleet_fake_set_register(int status);
unsigned fleet_fake_outdated(void); /* how often a part was called that */

#endif
