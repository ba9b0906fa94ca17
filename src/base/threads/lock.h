/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LOCK_H
#define TIERCE_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Mutexes with a class, and condition variables on the monotonic clock.
 *
 * The classes are listed in locks.def, whose order is the lock order. In TIERCE_CHECKED builds
 * taking a lock of an earlier or the same class while holding one panics, and so does a failed
 * assert_held. Callbacks never run under a lock, and no function returns holding one.
 */

enum tierce__lock_class {
#define TIERCE_LOCK(name, text) TIERCE__LOCK_##name,
#include "base/threads/locks.def"
#undef TIERCE_LOCK
    TIERCE__LOCK_COUNT
};

struct tierce__lock {
    pthread_mutex_t mutex;
    enum tierce__lock_class class_;
#ifdef TIERCE_CHECKED
    pthread_t owner;
    bool held;
#endif
};

struct tierce__cond {
    pthread_cond_t cond;
};

/* Cannot fail on Linux; a failure is a panic. */
void tierce__lock_init(struct tierce__lock *lock, enum tierce__lock_class class_);
void tierce__lock_fini(struct tierce__lock *lock);
void tierce__lock_take(struct tierce__lock *lock);
void tierce__lock_drop(struct tierce__lock *lock);
/* Takes a lock only if no thread holds it; returns whether it did. */
TIERCE_MUSTUSE bool tierce__lock_try(struct tierce__lock *lock);
#ifdef TIERCE_CHECKED
void tierce__lock_assert_held(const struct tierce__lock *lock);
/* Whether this thread holds any lock. For assertions only: always false without TIERCE_CHECKED. */
bool tierce__lock_holds_any(void);
#else
static inline bool tierce__lock_holds_any(void)
{
    return false;
}
static inline void tierce__lock_assert_held(const struct tierce__lock *lock)
{
    (void)lock;
}
#endif

/* Several locks of one class at once, in ascending order of their addresses (asserted): the only
 * way to hold more than one of a class. `count` may be 0. */
void tierce__lock_take_all(struct tierce__lock *const *locks, size_t count);
void tierce__lock_drop_all(struct tierce__lock *const *locks, size_t count);

void tierce__cond_init(struct tierce__cond *cond);
void tierce__cond_fini(struct tierce__cond *cond);
void tierce__cond_signal(struct tierce__cond *cond);
void tierce__cond_broadcast(struct tierce__cond *cond);

/* Waits until woken or until `deadline_ns` (clock.h; TIERCE__DEADLINE_NEVER waits for ever).
 * Returns false when the deadline has passed. Spurious wake-ups happen: test your condition. */
bool tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock, uint64_t deadline_ns);

#endif
