/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_register.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log_repeat.h"

struct registration {
    uintptr_t from, to;
    uint32_t users;
    /* In which it was made, and is ended. Its device stays open until all users have unpinned the
     * range (engine/device/pinnings.c), or the inference engine keeps the context. */
    TIERCE__CU_CONTEXT context;
};

/* The driver takes about 0.1 s per GB, and copies ask the table meanwhile. So a change of the table
 * takes both locks, and a look takes one of them. */
static struct tierce__lock registering; /* REGISTER */
static struct tierce__lock lock;        /* REGISTRATIONS */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct registration *table; /* [count], ascending and apart; NULL if it is empty */
static size_t count, room;

static void init_locks(void)
{
    tierce__lock_init(&registering, TIERCE__LOCK_REGISTER);
    tierce__lock_init(&lock, TIERCE__LOCK_REGISTRATIONS);
}

/* ---- the table --------------------------------------------------------------------------------
 */

/* The first registration that ends after the address, or `count`. */
static size_t find(uintptr_t address)
{
    size_t from = 0, to = count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (table[middle].to > address)
            to = middle;
        else
            from = middle + 1;
    }
    TIERCE_DASSERT(from == count || table[from].to > address);
    return from;
}

static int make_room(void)
{
    tierce__lock_take(&lock);
    int rc = TIERCE__GROW(table, room, count + 1, 16);
    tierce__lock_drop(&lock);
    return rc;
}

static void insert(const struct registration *what)
{
    tierce__lock_take(&lock);
    size_t at = find(what->from);
    TIERCE_DASSERT(count < room && (at == count || table[at].from >= what->to));
    memmove(&table[at + 1], &table[at], (count - at) * sizeof(*table));
    table[at] = *what;
    count++;
    tierce__lock_drop(&lock);
}

/* An empty table holds no memory. */
static void free_if_empty(void)
{
    tierce__lock_take(&lock);
    if (count == 0) {
        tierce__free(table);
        table = NULL;
        room = 0;
    }
    tierce__lock_drop(&lock);
}

static void take_out(size_t at)
{
    tierce__lock_take(&lock);
    TIERCE_DASSERT(at < count);
    count--;
    memmove(&table[at], &table[at + 1], (count - at) * sizeof(*table));
    tierce__lock_drop(&lock);
}

size_t tierce__cuda_registered_run(const void *address)
{
    uintptr_t at = (uintptr_t)address;
    pthread_once(&once, init_locks);
    tierce__lock_take(&lock);
    size_t i = find(at);
    size_t bytes = i < count && table[i].from <= at ? table[i].to - at : 0;
    tierce__lock_drop(&lock);
    return bytes;
}

/* ---- the driver -------------------------------------------------------------------------------
 */

static int call_register(struct tierce__cuda *cuda, uintptr_t from, uintptr_t to)
{
    char text[TIERCE__CUDA_TEXT_BYTES];
    TIERCE__CU_RESULT code = cuda->api->host_register(
        (void *)from, to - from, TIERCE__CU_REGISTER_PORTABLE | TIERCE__CU_REGISTER_DEVICEMAP);
    if (code == TIERCE__CU_OUT_OF_MEMORY) /* the caller tries a smaller slice, or logs */
        return -ENOMEM;
    if (!tierce__cuda_is_refusal(code))
        return tierce__cuda_check(cuda, "cuMemHostRegister", code);
    tierce__log_repeated(TIERCE_LOG_WARN, "cuda_not_pinned", "device=%d why=\"%s\"", cuda->device,
                         tierce__cuda_text(cuda->api, "cuMemHostRegister", code, text));
    bool is_taken = code == TIERCE__CU_ALREADY_REGISTERED || code == TIERCE__CU_INVALID_VALUE;
    return is_taken ? TIERCE_E_ARGUMENT : TIERCE_E_UNSUPPORTED;
}

static int call_unregister(struct tierce__cuda *cuda, const struct registration *what)
{
    const struct tierce__cuda_api *api = cuda->api;
    TIERCE__CU_CONTEXT popped;
    bool is_other = what->context != cuda->context;
    int rc = 0;
    if (is_other)
        rc = tierce__cuda_required(cuda, "cuCtxPushCurrent", api->context_push(what->context));
    if (rc < 0)
        return rc;
    rc = tierce__cuda_check(cuda, "cuMemHostUnregister", api->host_unregister((void *)what->from));
    if (is_other) {
        int left = tierce__cuda_required(cuda, "cuCtxPopCurrent", api->context_pop(&popped));
        rc = rc < 0 ? rc : left;
    }
    return rc;
}

/* ---- ranges -----------------------------------------------------------------------------------
 */

static int register_part(struct tierce__cuda *cuda, uintptr_t from, uintptr_t to)
{
    struct registration new = {.from = from, .to = to, .users = 1, .context = cuda->context};
    tierce__lock_assert_held(&registering);
    int rc = make_room(); /* first, so that a registration is always known */
    if (rc == 0)
        rc = call_register(cuda, from, to);
    if (rc == 0)
        insert(&new);
    return rc;
}

/* Ends the use of all registrations in a range: first of those without other users, because only
 * this may fail. A call that is repeated continues where the failed one ended. */
static int release(struct tierce__cuda *cuda, uintptr_t from, uintptr_t to)
{
    tierce__lock_assert_held(&registering);
    size_t i = find(from);
    while (i < count && table[i].from < to) {
        if (table[i].users > 1) {
            i++;
            continue;
        }
        int rc = call_unregister(cuda, &table[i]);
        if (rc < 0)
            return rc;
        take_out(i);
    }
    for (i = find(from); i < count && table[i].from < to; i++)
        table[i].users--;
    return 0;
}

static int acquire(struct tierce__cuda *cuda, uintptr_t from, uintptr_t to)
{
    uintptr_t at = from;
    int rc = 0;
    tierce__lock_assert_held(&registering);
    while (at < to && rc == 0) {
        size_t i = find(at);
        uintptr_t next = i < count && table[i].from < to ? table[i].from : to;
        if (next > at) {
            rc = register_part(cuda, at, next);
            at = rc == 0 ? next : at;
        } else {
            table[i].users++;
            at = table[i].to;
        }
    }
    if (rc < 0 && at > from && release(cuda, from, at) < 0)
        rc = -EIO;
    return rc;
}

int tierce__cuda_register(struct tierce__cuda *cuda, const void *memory, size_t bytes)
{
    uintptr_t from = (uintptr_t)memory;
    TIERCE_DASSERT(bytes > 0 && bytes <= UINTPTR_MAX - from);
    pthread_once(&once, init_locks);
    tierce__lock_take(&registering);
    int rc = acquire(cuda, from, from + bytes);
    free_if_empty();
    tierce__lock_drop(&registering);
    return rc;
}

int tierce__cuda_unregister(struct tierce__cuda *cuda, const void *memory, size_t bytes)
{
    uintptr_t from = (uintptr_t)memory;
    TIERCE_DASSERT(bytes > 0);
    pthread_once(&once, init_locks);
    tierce__lock_take(&registering);
    int rc = release(cuda, from, from + bytes);
    free_if_empty();
    tierce__lock_drop(&registering);
    return rc;
}
