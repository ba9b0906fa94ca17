/* SPDX-License-Identifier: Apache-2.0 */
#include "node/upload.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "base/clock.h"

#include <errno.h>

enum {
    SILENT_MS = 250,   /* no byte since the announcement */
    STALLED_MS = 2000, /* no byte since the last one */
};

void tierce__uploads_init(struct tierce__uploads *uploads, uint64_t bytes_max)
{
    *uploads = (struct tierce__uploads){
        .bytes_max = bytes_max,
        .stalled_ns = {SILENT_MS * TIERCE__MS_NS, STALLED_MS * TIERCE__MS_NS}};
    tierce__lock_init(&uploads->lock, TIERCE__LOCK_NODE_UPLOADS);
    tierce__list_init(&uploads->running);
}

void tierce__uploads_fini(struct tierce__uploads *uploads)
{
    TIERCE_ASSERT(tierce__list_empty(&uploads->running));
    TIERCE_ASSERT(uploads->small_bytes == 0 && uploads->large_bytes == 0);
    tierce__lock_fini(&uploads->lock);
}

uint64_t tierce__uploads_bytes(struct tierce__uploads *uploads)
{
    tierce__lock_take(&uploads->lock);
    uint64_t bytes = uploads->small_bytes + uploads->large_bytes;
    tierce__lock_drop(&uploads->lock);
    return bytes;
}

/* ---- accounts: under the lock ---------------------------------------------------------------- */

static bool is_small(uint64_t bytes)
{
    return bytes <= TIERCE__UPLOAD_SMALL;
}

static uint64_t *account_of(struct tierce__uploads *uploads, uint64_t bytes)
{
    tierce__lock_assert_held(&uploads->lock);
    return is_small(bytes) ? &uploads->small_bytes : &uploads->large_bytes;
}

/* Even a limit below one small value admits one value at a time. */
static bool fits(struct tierce__uploads *uploads, uint64_t bytes)
{
    uint64_t limit = is_small(bytes) ? uploads->bytes_max / 4 : uploads->bytes_max;
    uint64_t taken = *account_of(uploads, bytes);
    TIERCE_ASSERT(uploads->large_bytes <= uploads->bytes_max);
    return bytes <= uploads->bytes_max &&
           (taken + bytes <= limit || (is_small(bytes) && taken == 0));
}

static bool is_stalled(const struct tierce__upload *upload, uint64_t now_ns)
{
    tierce__lock_assert_held(&upload->uploads->lock);
    TIERCE_DASSERT(now_ns >= upload->moved_ns);
    return !upload->is_held &&
           now_ns - upload->moved_ns >= upload->uploads->stalled_ns[upload->filled > 0];
}

/* Drops the upload that has stalled longest and returns its memory, which the caller must release;
 * NULL if none has stalled. `bytes` > 0: only an upload under the same limit. */
static struct tierce__object *give_up_one(struct tierce__uploads *uploads, uint64_t bytes)
{
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH (it, &uploads->running) {
        struct tierce__upload *upload = TIERCE__CONTAINER_OF(it, struct tierce__upload, node);
        if (!is_stalled(upload, now_ns) ||
            (bytes > 0 && is_small(bytes) != is_small(upload->bytes)))
            continue;
        TIERCE_ASSERT(!upload->is_held && *account_of(uploads, upload->bytes) >= upload->bytes);
        struct tierce__object *object = upload->object;
        upload->object = NULL;
        tierce__list_remove(&upload->node);
        *account_of(uploads, upload->bytes) -= upload->bytes;
        atomic_fetch_add_explicit(&uploads->dropped, 1, memory_order_relaxed);
        return object;
    }
    return NULL;
}

static void note_moved(struct tierce__upload *upload)
{
    tierce__lock_assert_held(&upload->uploads->lock);
    upload->moved_ns = tierce__now_ns();
    tierce__list_remove(&upload->node);
    tierce__list_push_back(&upload->uploads->running, &upload->node);
}

/* ---- one upload ------------------------------------------------------------------------------ */

/* Counts the announced bytes, dropping stalled uploads if needed. */
static int enter(struct tierce__uploads *uploads, uint64_t bytes)
{
    struct tierce__object *object;
    bool fit;
    do {
        object = NULL;
        tierce__lock_take(&uploads->lock);
        fit = fits(uploads, bytes);
        if (fit)
            *account_of(uploads, bytes) += bytes;
        else
            object = give_up_one(uploads, bytes);
        tierce__lock_drop(&uploads->lock);
        tierce__object_release(object);
    } while (!fit && object != NULL);
    return fit ? 0 : TIERCE_E_FULL;
}

static void leave(struct tierce__uploads *uploads, uint64_t bytes)
{
    tierce__lock_take(&uploads->lock);
    TIERCE_ASSERT(*account_of(uploads, bytes) >= bytes);
    *account_of(uploads, bytes) -= bytes;
    tierce__lock_drop(&uploads->lock);
}

int tierce__upload_create(struct tierce__uploads *uploads, struct tierce__object **out,
                          struct tierce__objects *space, const struct tierce__object_what *what)
{
    int rc;
    for (;;) {
        rc = tierce__object_create(space, out, what);
        if (rc != TIERCE_E_FULL)
            return rc;
        tierce__lock_take(&uploads->lock);
        struct tierce__object *object = give_up_one(uploads, 0);
        tierce__lock_drop(&uploads->lock);
        if (object == NULL)
            return rc;
        tierce__object_release(object);
    }
}

int tierce__upload_begin(struct tierce__uploads *uploads, struct tierce__upload **out,
                         struct tierce__objects *space, const struct tierce__object_what *what)
{
    struct tierce__upload *upload = tierce__calloc(1, sizeof(*upload));
    if (upload == NULL)
        return -ENOMEM;
    int rc = enter(uploads, what->value_bytes);
    if (rc == 0 && (rc = tierce__upload_create(uploads, &upload->object, space, what)) < 0)
        leave(uploads, what->value_bytes);
    if (rc < 0) {
        tierce__free(upload);
        return rc;
    }
    upload->uploads = uploads;
    upload->bytes = what->value_bytes;
    upload->is_held = true;
    tierce__list_init(&upload->node);
    tierce__lock_take(&uploads->lock);
    note_moved(upload);
    tierce__lock_drop(&uploads->lock);
    *out = upload;
    return 0;
}

bool tierce__upload_hold(struct tierce__upload *upload)
{
    if (upload->is_held) /* which only this thread changes */
        return true;
    tierce__lock_take(&upload->uploads->lock);
    upload->is_held = upload->object != NULL;
    tierce__lock_drop(&upload->uploads->lock);
    return upload->is_held;
}

void tierce__upload_let_go(struct tierce__upload *upload, uint64_t filled)
{
    if (!upload->is_held)
        return;
    tierce__lock_take(&upload->uploads->lock);
    TIERCE_ASSERT(filled <= upload->bytes);
    if (filled > upload->filled)
        note_moved(upload);
    upload->filled = filled;
    upload->is_held = false;
    tierce__lock_drop(&upload->uploads->lock);
}

struct tierce__object *tierce__upload_end(struct tierce__upload *upload)
{
    if (upload == NULL)
        return NULL;
    struct tierce__uploads *uploads = upload->uploads;
    tierce__lock_take(&uploads->lock);
    struct tierce__object *object = upload->object;
    if (object != NULL) {
        TIERCE_ASSERT(*account_of(uploads, upload->bytes) >= upload->bytes);
        tierce__list_remove(&upload->node);
        *account_of(uploads, upload->bytes) -= upload->bytes;
    }
    tierce__lock_drop(&uploads->lock);
    tierce__free(upload);
    return object;
}
