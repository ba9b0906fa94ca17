/* SPDX-License-Identifier: Apache-2.0 */
#include "base/threads/lock.h"
#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <time.h>

#ifdef TIERCE_CHECKED
#define CLASS_WORDS (((size_t)TIERCE__LOCK_COUNT + 63) / 64)
/* Bit n: this thread holds a lock of class n, or several that it took at once. */
static _Thread_local uint64_t held_classes[CLASS_WORDS];

/* Bit n: this thread holds one of class `class_` + n. All bits: of classes beyond these. */
static uint64_t held_from(enum tierce__lock_class class_)
{
    for (size_t i = class_ / 64 + 1; i < CLASS_WORDS; i++)
        if (held_classes[i] != 0)
            return UINT64_MAX;
    return held_classes[class_ / 64] >> class_ % 64;
}
#endif

void tierce__lock_init(struct tierce__lock *lock, enum tierce__lock_class class_)
{
    TIERCE_ASSERT(class_ < TIERCE__LOCK_COUNT);
    *lock = (struct tierce__lock){.class_ = class_};
    int rc = pthread_mutex_init(&lock->mutex, NULL);
    TIERCE_ASSERT(rc == 0);
}

void tierce__lock_fini(struct tierce__lock *lock)
{
    int rc = pthread_mutex_destroy(&lock->mutex);
    TIERCE_ASSERT(rc == 0);
}

static void note_taken(struct tierce__lock *lock)
{
#ifdef TIERCE_CHECKED
    /* Only classes of earlier rows may be held. */
    TIERCE_ASSERT(!lock->held);
    TIERCE_ASSERT(held_from(lock->class_) == 0);
    held_classes[lock->class_ / 64] |= UINT64_C(1) << lock->class_ % 64;
    lock->owner = pthread_self();
    lock->held = true;
#else
    (void)lock;
#endif
}

static void note_dropped(struct tierce__lock *lock)
{
#ifdef TIERCE_CHECKED
    tierce__lock_assert_held(lock);
    lock->held = false;
    held_classes[lock->class_ / 64] &= ~(UINT64_C(1) << lock->class_ % 64);
#else
    (void)lock;
#endif
}

/* A further one of a class that this thread holds. */
static void note_another(struct tierce__lock *lock)
{
#ifdef TIERCE_CHECKED
    TIERCE_ASSERT(!lock->held && held_from(lock->class_) == 1);
    lock->owner = pthread_self();
    lock->held = true;
#else
    (void)lock;
#endif
}

static void note_another_dropped(struct tierce__lock *lock)
{
#ifdef TIERCE_CHECKED
    tierce__lock_assert_held(lock);
    lock->held = false;
#else
    (void)lock;
#endif
}

void tierce__lock_take(struct tierce__lock *lock)
{
    int rc = pthread_mutex_lock(&lock->mutex);
    TIERCE_ASSERT(rc == 0);
    note_taken(lock);
}

bool tierce__lock_try(struct tierce__lock *lock)
{
    int rc = pthread_mutex_trylock(&lock->mutex);
    TIERCE_ASSERT(rc == 0 || rc == EBUSY);
    if (rc == 0)
        note_taken(lock);
    return rc == 0;
}

void tierce__lock_drop(struct tierce__lock *lock)
{
    note_dropped(lock);
    int rc = pthread_mutex_unlock(&lock->mutex);
    TIERCE_ASSERT(rc == 0);
}

void tierce__lock_take_all(struct tierce__lock *const *locks, size_t count)
{
    if (count == 0)
        return;
    tierce__lock_take(locks[0]);
    for (size_t i = 1; i < count; i++) {
        TIERCE_ASSERT(locks[i]->class_ == locks[0]->class_);
        TIERCE_ASSERT((uintptr_t)locks[i] > (uintptr_t)locks[i - 1]);
        int rc = pthread_mutex_lock(&locks[i]->mutex);
        TIERCE_ASSERT(rc == 0);
        note_another(locks[i]);
    }
}

void tierce__lock_drop_all(struct tierce__lock *const *locks, size_t count)
{
    for (size_t i = count; i-- > 1;) {
        note_another_dropped(locks[i]);
        int rc = pthread_mutex_unlock(&locks[i]->mutex);
        TIERCE_ASSERT(rc == 0);
    }
    if (count > 0)
        tierce__lock_drop(locks[0]);
}

#ifdef TIERCE_CHECKED
void tierce__lock_assert_held(const struct tierce__lock *lock)
{
    TIERCE_ASSERT(lock->held && pthread_equal(lock->owner, pthread_self()));
}

bool tierce__lock_holds_any(void)
{
    return held_from((enum tierce__lock_class)0) != 0;
}
#endif

void tierce__cond_init(struct tierce__cond *cond)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    rc |= pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc |= pthread_cond_init(&cond->cond, &attr);
    rc |= pthread_condattr_destroy(&attr);
    TIERCE_ASSERT(rc == 0);
}

void tierce__cond_fini(struct tierce__cond *cond)
{
    int rc = pthread_cond_destroy(&cond->cond);
    TIERCE_ASSERT(rc == 0);
}

void tierce__cond_signal(struct tierce__cond *cond)
{
    pthread_cond_signal(&cond->cond);
}

void tierce__cond_broadcast(struct tierce__cond *cond)
{
    pthread_cond_broadcast(&cond->cond);
}

bool tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock, uint64_t deadline_ns)
{
    note_dropped(lock);
    int rc;
    if (deadline_ns == TIERCE__DEADLINE_NEVER) {
        rc = pthread_cond_wait(&cond->cond, &lock->mutex);
    } else {
        struct timespec ts = {.tv_sec = (time_t)(deadline_ns / 1000000000ULL),
                              .tv_nsec = (long)(deadline_ns % 1000000000ULL)};
        rc = pthread_cond_timedwait(&cond->cond, &lock->mutex, &ts);
    }
    TIERCE_ASSERT(rc == 0 || rc == ETIMEDOUT);
    note_taken(lock);
    return rc == 0;
}
