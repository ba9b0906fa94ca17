/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_private.h"

#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The holders of a prompt's chunks, and the lists for operators. */

/* ---- lookups --------------------------------------------------------------------------------- */

/* A name of the directory, in its parts. */
struct name {
    char text[TIERCE__DIRECTORY_NAME_BYTES]; /* of which these are parts: */
    const char *instance, *location;
    uint32_t worker;
};

/* False: it is not one of LMCache's workers, or has left. */
static bool name_of(struct tierce__controller *controller, struct tierce__directory_id id,
                    struct name *out)
{
    static const char prefix[] = TIERCE__CONTROLLER_PREFIX;
    struct tierce__directory_who who;
    if (!tierce__directory_who(controller->directory, id, &who) ||
        strncmp(who.name, prefix, sizeof(prefix) - 1) != 0)
        return false;
    memcpy(out->text, who.name, sizeof(out->text));
    out->instance = out->text + sizeof(prefix) - 1;
    char *location = strrchr(out->text + sizeof(prefix) - 1, '/');
    if (location == NULL)
        return false;
    *location++ = '\0';
    char *worker = strrchr(out->text + sizeof(prefix) - 1, '/'), *end;
    if (worker == NULL)
        return false;
    *worker++ = '\0';
    out->location = location;
    out->worker = (uint32_t)strtoul(worker, &end, 10);
    return *end == '\0';
}

/* The prefixes of the keys. Errors: -ENOMEM. */
static int find(struct tierce__controller *controller, const struct tierce__directory_key *keys,
                size_t count, struct tierce__directory_found *found)
{
    return tierce__directory_find(
        controller->directory, keys, count,
        &(struct tierce__directory_asker){.group = controller->opts.group, .host = ""}, found);
}

int tierce__controller_find(struct tierce__controller *controller,
                            const struct tierce__lmcache_int *keys, size_t count,
                            void (*each)(void *arg, const struct tierce__controller_found *),
                            void *arg)
{
    struct tierce__directory_found *found = tierce__calloc(1, sizeof(*found));
    struct tierce__directory_key *numbers = tierce__calloc(count + 1, sizeof(*numbers));
    int rc = found != NULL && numbers != NULL ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < count; i++)
        numbers[i] = tierce__controller_key(controller, keys[i]);
    if (rc == 0 && count > 0)
        rc = find(controller, numbers, count, found);
    for (uint32_t i = 0; rc == 0 && i < found->prefix_count; i++) {
        struct name name;
        if (found->prefixes[i].keys > 0 && name_of(controller, found->prefixes[i].worker, &name))
            each(arg, &(struct tierce__controller_found){.instance = name.instance,
                                                         .location = name.location,
                                                         .worker = name.worker,
                                                         .keys = found->prefixes[i].keys});
    }
    tierce__free(numbers);
    tierce__free(found);
    return rc;
}

/* ---- a peer ---------------------------------------------------------------------------------- */

struct best {
    struct name name;
    const struct tierce__controller_worker *worker; /* NULL: nobody */
    uint32_t keys;
    unsigned rank; /* the same rank: 2; in memory: 1 */
};

/* The chunks of other ranks have other bytes, so the asker's own rank comes first; then the longest
 * prefix; then memory. */
static void compare(struct best *best, const struct name *name,
                    const struct tierce__controller_worker *worker, uint32_t keys,
                    uint64_t own_worker)
{
    unsigned rank = (worker->about.worker == own_worker ? 2u : 0u) |
                    (strcmp(name->location, TIERCE__CONTROLLER_MEMORY) == 0 ? 1u : 0u);
    bool is_better = best->worker == NULL || (rank & 2) > (best->rank & 2) ||
                     ((rank & 2) == (best->rank & 2) &&
                      (keys > best->keys || (keys == best->keys && rank > best->rank)));
    if (!is_better)
        return;
    *best = (struct best){.worker = worker, .keys = keys, .rank = rank};
    memcpy(best->name.text, name->text, sizeof(best->name.text));
    best->name.location = best->name.text + (name->location - name->text);
}

void tierce__controller_find_peer(struct tierce__controller *controller,
                                  struct tierce__controller_message *message,
                                  struct tierce__line *reply)
{
    struct tierce__directory_found *found = &controller->found;
    struct best best = {.worker = NULL};
    struct tierce__lmcache_int number;
    size_t count = 0;
    tierce__lock_assert_held(&controller->lock);
    controller->stats.lookups++;
    while (count < TIERCE__CONTROLLER_FIND_MAX &&
           tierce__controller_next_key(&message->hashes, &number))
        controller->keys[count++] = tierce__controller_key(controller, number);
    if (count == 0 || find(controller, controller->keys, count, found) < 0)
        found->prefix_count = 0;
    for (uint32_t i = 0; i < found->prefix_count; i++) {
        struct name name;
        if (found->prefixes[i].keys == 0 ||
            !name_of(controller, found->prefixes[i].worker, &name) ||
            strcmp(name.instance, message->instance) == 0)
            continue;
        const struct tierce__controller_worker *worker =
            tierce__controller_worker(controller, name.instance, name.worker);
        if (worker != NULL && worker->about.peer[0] != '\0')
            compare(&best, &name, worker, found->prefixes[i].keys, message->worker);
    }
    controller->stats.lookup_hits += best.worker != NULL;
    if (best.worker == NULL)
        tierce__controller_put_found(reply, "", "", 0, "");
    else
        tierce__controller_put_found(reply, best.worker->about.instance, best.name.location,
                                     best.keys, best.worker->about.peer);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static uint64_t keys_of(struct tierce__controller *controller,
                        const struct tierce__controller_worker *worker)
{
    struct tierce__directory_about about;
    uint64_t keys = 0;
    for (uint32_t i = 0; i < worker->place_count; i++) {
        if (tierce__directory_about(controller->directory, worker->places[i].id, &about))
            keys += about.keys;
    }
    return keys;
}

int tierce__controller_list(struct tierce__controller *controller, const char *instance,
                            struct tierce__controller_about **out, size_t *count)
{
    int rc = 0;
    size_t used = 0;
    tierce__lock_take(&controller->lock);
    struct tierce__controller_about *list =
        tierce__calloc(controller->stats.workers + 1, sizeof(*list));
    if (list == NULL)
        rc = -ENOMEM;
    for (const struct tierce__controller_worker *it = controller->first; rc == 0 && it != NULL;
         it = it->next) {
        if (instance != NULL && strcmp(it->about.instance, instance) != 0)
            continue;
        TIERCE_ASSERT(used < controller->stats.workers);
        list[used] = it->about;
        list[used++].keys = keys_of(controller, it);
    }
    tierce__lock_drop(&controller->lock);
    if (rc == 0) {
        *out = list;
        *count = used;
    }
    return rc;
}

void tierce__controller_stats(struct tierce__controller *controller,
                              struct tierce__controller_stats *out)
{
    tierce__lock_take(&controller->lock);
    *out = controller->stats;
    tierce__lock_drop(&controller->lock);
}
