/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/trace_waiting.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"
#include "optimizer/trace/trace_private.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#define LIMIT_MIN 32u

struct waiting_request {
    struct tierce__map_node node;
    struct tierce__order_ticket ticket;
    uint8_t length;
    char name[TIERCE__WAITING_NAME_MAX];
};

static struct waiting_request *named_of(struct tierce__map_node *node)
{
    return TIERCE__CONTAINER_OF(node, struct waiting_request, node);
}

static struct waiting_request *find(const struct tierce__waiting *w, uint64_t hash,
                                    const void *name, size_t length)
{
    struct tierce__map_node *node = tierce__map_find(&w->names, hash);
    while (node != NULL &&
           (named_of(node)->length != length || memcmp(named_of(node)->name, name, length) != 0))
        node = tierce__map_find_next(node);
    return node != NULL ? named_of(node) : NULL;
}

static void drop(struct tierce__waiting *w, struct waiting_request *named)
{
    tierce__map_remove(&w->names, &named->node);
    tierce__free(named);
}

static void drop_returned(struct tierce__waiting *w, const struct tierce__trace *trace)
{
    TIERCE__MAP_FOR_EACH (node, &w->names) {
        if (!tierce__trace_waits(trace, named_of(node)->ticket))
            drop(w, named_of(node));
    }
    w->limit = w->names.count < LIMIT_MIN / 2 ? LIMIT_MIN : 2 * w->names.count;
}

int tierce__waiting_put(struct tierce__waiting *waiting, const struct tierce__trace *trace,
                        const void *name, size_t length, struct tierce__order_ticket ticket)
{
    TIERCE_ASSERT(length > 0 && length <= TIERCE__WAITING_NAME_MAX);
    if (waiting->names.count >= waiting->limit)
        drop_returned(waiting, trace);
    uint64_t hash = XXH3_64bits(name, length);
    struct waiting_request *named = find(waiting, hash, name, length);
    if (named == NULL) {
        int rc = tierce__map_reserve(&waiting->names, waiting->names.count + 1);
        named = rc == 0 ? tierce__alloc(sizeof(*named)) : NULL;
        if (named == NULL)
            return -ENOMEM;
        named->length = (uint8_t)length;
        memcpy(named->name, name, length);
        tierce__map_put(&waiting->names, &named->node, hash);
    }
    named->ticket = ticket;
    return 0;
}

bool tierce__waiting_find(const struct tierce__waiting *waiting, struct tierce__order_ticket *out,
                          const void *name, size_t length)
{
    const struct waiting_request *named = find(waiting, XXH3_64bits(name, length), name, length);
    if (named != NULL)
        *out = named->ticket;
    return named != NULL;
}

void tierce__waiting_forget(struct tierce__waiting *waiting, const void *name, size_t length)
{
    struct waiting_request *named = find(waiting, XXH3_64bits(name, length), name, length);
    if (named != NULL)
        drop(waiting, named);
}

void tierce__waiting_fini(struct tierce__waiting *waiting)
{
    TIERCE__MAP_FOR_EACH (node, &waiting->names)
        drop(waiting, named_of(node));
    tierce__map_fini(&waiting->names);
    *waiting = (struct tierce__waiting){0};
}
