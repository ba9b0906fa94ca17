/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_OBJECT_FIXTURE_H
#define TIERCE_TESTS_OBJECT_FIXTURE_H

/*
 * Named values for tests: the bytes of a value follow from a number, which stands in its note, so
 * that a wrong byte anywhere is seen.
 */

#include <errno.h>
#include <pthread.h>

#include "base/clock.h"
#include "engine/objects/objects.h"
#include "engine_fixture.h"

static inline void ox_fill(uint8_t *value, uint64_t bytes, uint64_t version)
{
    uint64_t x = version * 0x9e3779b97f4a7c15ULL + 1;
    for (uint64_t i = 0; i < bytes; i += sizeof(x)) { /* words: tsan looks at each access */
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ULL;
        memcpy(value + i, &x, bytes - i < sizeof(x) ? bytes - i : sizeof(x));
    }
}

static inline bool ox_is(const uint8_t *value, uint64_t bytes, uint64_t version)
{
    uint64_t x = version * 0x9e3779b97f4a7c15ULL + 1;
    for (uint64_t i = 0; i < bytes; i += sizeof(x)) {
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ULL;
        if (memcmp(value + i, &x, bytes - i < sizeof(x) ? bytes - i : sizeof(x)) != 0)
            return false;
    }
    return true;
}

/* Publishes `version` of `bytes` bytes. Returns create's or publish's status. */
static inline int ox_put_until(struct tierce__objects *space, const char *name, uint64_t version,
                               uint64_t bytes, uint64_t expires_ms)
{
    struct tierce__object *object;
    int rc = tierce__object_create(space, &object,
                                   &(struct tierce__object_what){.name = name,
                                                                 .name_bytes = strlen(name),
                                                                 .note = &version,
                                                                 .note_bytes = sizeof(version),
                                                                 .value_bytes = bytes,
                                                                 .expires_ms = expires_ms});
    if (rc < 0)
        return rc;
    ox_fill(object->value, bytes, version);
    tierce__object_filled(object, bytes / 2);
    return tierce__object_publish(object);
}

static inline int ox_put(struct tierce__objects *space, const char *name, uint64_t version,
                         uint64_t bytes)
{
    return ox_put_until(space, name, version, bytes, 0);
}

/* A find and its answer. */
struct ox_call {
    struct tierce__object_find find;
    pthread_mutex_t mutex;
    pthread_cond_t answered;
    bool done;
};

static inline void ox_done(struct tierce__object_find *find)
{
    struct ox_call *call = find->arg;
    pthread_mutex_lock(&call->mutex);
    call->done = true;
    pthread_cond_signal(&call->answered);
    pthread_mutex_unlock(&call->mutex);
}

/* Finds a value and waits for it. */
static inline int ox_find(struct tierce__objects *space, const char *name,
                          struct tierce__object **out)
{
    struct ox_call call = {.find = {.name = name,
                                    .name_bytes = strlen(name),
                                    .deadline_ns = tierce__deadline_in_ms(60000),
                                    .done = ox_done}};
    call.find.arg = &call;
    pthread_mutex_init(&call.mutex, NULL);
    pthread_cond_init(&call.answered, NULL);
    int rc = tierce__object_find(space, &call.find);
    if (rc == -EINPROGRESS) {
        pthread_mutex_lock(&call.mutex);
        while (!call.done)
            pthread_cond_wait(&call.answered, &call.mutex);
        pthread_mutex_unlock(&call.mutex);
        rc = call.find.status;
    }
    pthread_cond_destroy(&call.answered);
    pthread_mutex_destroy(&call.mutex);
    *out = rc == 0 ? call.find.object : NULL;
    return rc;
}

/* The result of a find: the version of the value, 0 for none (whatever the status), or -1 if the
 * value did not verify. A byte that is wrong and verified ends the test. */
static inline int64_t ox_get(struct tierce__objects *space, const char *name, uint64_t *bytes)
{
    struct tierce__object *object;
    uint64_t version;
    if (ox_find(space, name, &object) < 0)
        return 0;
    bool good = true;
    for (uint64_t at = 0; good && at < object->what.value_bytes; at += 100000)
        good = tierce__object_verified(object, at);
    good = good && tierce__object_verified(object, object->what.value_bytes);
    ck_assert_uint_eq(object->what.note_bytes, sizeof(version));
    memcpy(&version, object->what.note, sizeof(version));
    ck_assert_uint_eq(object->what.name_bytes, strlen(name));
    ck_assert_mem_eq(object->what.name, name, strlen(name));
    ck_assert(!good || ox_is(object->value, object->what.value_bytes, version));
    if (bytes != NULL)
        *bytes = object->what.value_bytes;
    tierce__object_release(object);
    return good ? (int64_t)version : -1;
}

/* Only the disk remembers. */
static inline void ox_empty_memory(struct fixture *fx)
{
    ck_assert_int_eq(tierce_engine_flush(fx->engine, 60000), 0);
    struct tierce__tier *memory = fx->engine->levels[0].tier;
    uint64_t give_up = tierce__deadline_in_ms(60000);
    while (fx_stats(fx).memory_bytes_now > 0 && tierce__now_ns() < give_up) {
        if (memory->ops->evict(memory, 1) == 0)
            usleep(100);
    }
    ck_assert_int_eq(fx_stats(fx).memory_bytes_now, 0);
}

#endif
