/* SPDX-License-Identifier: Apache-2.0 */
/* A part in memory: an object is a buffer, and a lease is a reference on it. */
#include "base/alloc.h"
#include "base/assert.h"
#include "node/part/part_private.h"

#include <errno.h>

static void memory_find(struct tierce__part *part, struct tierce__keeper_call *call)
{
    struct tierce__buf *buf = NULL;
    uint64_t bytes = 0;
    bool found = tierce__part_index_find(&part->index, &call->name, &bytes, &buf);
    if (found) {
        TIERCE_ASSERT(buf != NULL && buf->bytes == bytes);
        call->lease =
            (struct tierce__keeper_lease){.data = buf->data, .bytes = bytes, .owner = buf};
    }
    tierce__part_end_call(call, found ? 0 : TIERCE_E_MISS);
}

static int memory_make(struct tierce__part *part, struct tierce__keeper_room *room,
                       const struct tierce_plugin_name *name, uint64_t bytes)
{
    struct tierce__part_room *own = tierce__alloc(sizeof(*own));
    if (own == NULL)
        return -ENOMEM;
    int rc = tierce__part_make_room(part, own, room, name, bytes);
    if (rc != 0)
        tierce__free(own);
    return rc;
}

/* An object that the part was to forget while it arrived cannot be kept. */
static void memory_keep(struct tierce__part *part, struct tierce__keeper_room *room)
{
    struct tierce__part_room *own = room->owner;
    TIERCE_ASSERT(own->part == part && own->object->buf == NULL);
    own->object->buf = own->buf;
    bool is_kept = tierce__part_index_publish(&part->index, own->object);
    if (!is_kept)
        tierce__part_index_cancel(&part->index, own->object);
    tierce__free(own);
    tierce__part_end_room(room, is_kept ? 0 : TIERCE_E_DOWN);
}

static void memory_abandon(struct tierce__part *part, struct tierce__keeper_room *room)
{
    struct tierce__part_room *own = room->owner;
    TIERCE_ASSERT(own->part == part);
    tierce__buf_release(own->buf);
    tierce__part_index_cancel(&part->index, own->object);
    tierce__free(own);
}

static void memory_drop(struct tierce__part *part, struct tierce__keeper_call *call)
{
    tierce__part_index_remove(&part->index, &call->name);
    tierce__part_end_call(call, 0);
}

static int memory_forget(struct tierce__part *part,
                         uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES])
{
    tierce__part_index_expire(&part->index);
    return tierce__part_index_clear(&part->index, &part->is_closing)
               ? tierce__part_new_incarnation(incarnation)
               : TIERCE_E_CLOSED;
}

static void memory_close(struct tierce__part *part)
{
    tierce__part_index_fini(&part->index);
    tierce__pool_destroy(part->pool);
    tierce__free(part);
}

static const struct tierce__part_ops memory_ops = {
    .find = memory_find,
    .make = memory_make,
    .keep = memory_keep,
    .abandon = memory_abandon,
    .drop = memory_drop,
    .forget = memory_forget,
    .close = memory_close,
};

int tierce__part_memory_open(struct tierce__part **out, struct tierce__parts *parts, uint64_t bytes)
{
    const struct tierce__pool_opts opts = {.size = sizeof(opts), .cap_bytes = bytes};
    struct tierce__part *part = tierce__calloc(1, sizeof(*part));
    if (part == NULL)
        return -ENOMEM;
    part->ops = &memory_ops;
    part->space = "memory";
    part->parts = parts;
    int rc = tierce__part_new_incarnation(part->incarnation);
    if (rc == 0)
        rc = tierce__pool_create(&part->pool, &opts);
    if (rc == 0)
        rc = tierce__part_index_init(&part->index, bytes);
    if (rc == 0) {
        *out = part;
        return 0;
    }
    tierce__pool_destroy(part->pool);
    tierce__free(part);
    return rc;
}
