/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/scrub/scrub_set.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"
#include "base/mix.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FILE_DIGITS = 16, SEEN_MAX = 1 << 20 };

/* ---- names ----------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *text, size_t bytes)
{
    return XXH3_64bits(text, bytes);
}

/* ---- objects --------------------------------------------------------------------------------- */

static struct tierce__scrub_folder *find_folder(const struct tierce__scrub_set *set,
                                                const char *name, size_t bytes)
{
    struct tierce__map_node *node = tierce__map_find(&set->by_name, hash_of(name, bytes));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct tierce__scrub_folder *folder =
            TIERCE__CONTAINER_OF(node, struct tierce__scrub_folder, node);
        if (strncmp(folder->name, name, bytes) == 0 && folder->name[bytes] == '\0')
            return folder;
    }
    return NULL;
}

static int add_folder(struct tierce__scrub_set *set, const char *name, size_t bytes,
                      struct tierce__scrub_folder **out)
{
    struct tierce__scrub_folder *folder = tierce__calloc(1, sizeof(*folder));
    char *copy = tierce__alloc(bytes + 1);
    int rc = set->folder_count < UINT32_MAX ? 0 : TIERCE_E_LIMIT;
    if (rc == 0 && (folder == NULL || copy == NULL ||
                    TIERCE__GROW(set->folders, set->folder_room, set->folder_count + 1, 16) < 0))
        rc = -ENOMEM;
    if (rc < 0) {
        tierce__free(folder);
        tierce__free(copy);
        return rc;
    }
    memcpy(copy, name, bytes);
    copy[bytes] = '\0';
    folder->name = copy;
    folder->number = (uint32_t)set->folder_count;
    set->folders[set->folder_count++] = folder;
    tierce__map_put(&set->by_name, &folder->node, hash_of(name, bytes));
    *out = folder;
    return 0;
}

int tierce__scrub_set_add(struct tierce__scrub_set *set, const char *name, uint64_t bytes,
                          int64_t changed_us)
{
    size_t folder_bytes = 0;
    uint64_t number = tierce__place_number(name, &folder_bytes);
    TIERCE_ASSERT(number != 0);
    struct tierce__scrub_folder *folder = find_folder(set, name, folder_bytes);
    int rc = folder == NULL ? add_folder(set, name, folder_bytes, &folder) : 0;
    if (rc == 0 && TIERCE__GROW(set->objects, set->room, set->count + 1, 256) < 0)
        rc = -ENOMEM;
    if (rc == 0)
        set->objects[set->count++] = (struct tierce__scrub_object){
            .folder = folder->number, .number = number, .bytes = bytes, .changed_us = changed_us};
    return rc;
}

static int compare(const void *a, const void *b)
{
    const struct tierce__scrub_object *x = a, *y = b;
    if (x->folder != y->folder)
        return x->folder < y->folder ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

size_t tierce__scrub_set_seal(struct tierce__scrub_set *set)
{
    size_t kept = 0, before = set->count;
    if (set->count > 1)
        qsort(set->objects, set->count, sizeof(*set->objects), compare);
    for (size_t i = 0; i < set->count; i++) {
        if (kept > 0 && compare(&set->objects[kept - 1], &set->objects[i]) == 0)
            continue;
        struct tierce__scrub_folder *folder = set->folders[set->objects[i].folder];
        if (folder->count++ == 0)
            folder->first = kept;
        set->objects[kept++] = set->objects[i];
    }
    set->count = kept;
    return before - kept;
}

/* "INSTANCE/SPEC/FILE" at the end of a path; NULL: it has fewer parts. */
static const char *name_in(const char *path)
{
    const char *at = path + strlen(path);
    int slashes = 0;
    for (; at > path; at--)
        if (at[-1] == '/' && ++slashes == 3)
            return at;
    return slashes == 2 ? path : NULL;
}

struct tierce__scrub_folder *tierce__scrub_set_folder_at(const struct tierce__scrub_set *set,
                                                         const char *path)
{
    size_t folder_bytes = 0;
    const char *name = name_in(path);
    if (name == NULL || tierce__place_number(name, &folder_bytes) == 0)
        return NULL;
    return find_folder(set, name, folder_bytes);
}

void tierce__scrub_set_use(struct tierce__scrub_set *set, const char *path)
{
    size_t folder_bytes = 0;
    const char *name = name_in(path);
    uint64_t number = name != NULL ? tierce__place_number(name, &folder_bytes) : 0;
    const struct tierce__scrub_folder *folder =
        number != 0 ? find_folder(set, name, folder_bytes) : NULL;
    if (folder == NULL)
        return;
    const struct tierce__scrub_object key = {.folder = folder->number, .number = number};
    TIERCE_DASSERT(folder->first + folder->count <= set->count);
    struct tierce__scrub_object *object =
        bsearch(&key, set->objects + folder->first, folder->count, sizeof(key), compare);
    if (object != NULL)
        object->is_used = true;
}

void tierce__scrub_set_name(char *out, const struct tierce__scrub_set *set,
                            const struct tierce__scrub_object *object)
{
    const char *folder = set->folders[object->folder]->name;
    size_t bytes = strlen(folder);
    memcpy(out, folder, bytes);
    snprintf(out + bytes, FILE_DIGITS + 1, "%016" PRIx64, object->number);
}

uint64_t tierce__scrub_set_hash(const struct tierce__scrub_set *set,
                                const struct tierce__scrub_object *object)
{
    const char *folder = set->folders[object->folder]->name;
    return XXH3_64bits_withSeed(folder, strlen(folder), object->number);
}

void tierce__scrub_set_clear(struct tierce__scrub_set *set)
{
    for (size_t i = 0; i < set->folder_count; i++) {
        tierce__free(set->folders[i]->name);
        tierce__free(set->folders[i]);
    }
    tierce__map_fini(&set->by_name);
    tierce__free(set->folders);
    tierce__free(set->objects);
    *set = (struct tierce__scrub_set){0};
}

/* ---- names that are in use --------------------------------------------------------------------
 */

int tierce__scrub_filter_init(struct tierce__scrub_filter *filter, uint64_t names,
                              uint64_t bytes_max, uint64_t salt)
{
    enum { BITS_A_NAME = 10, WORD_BITS = 64, TRIES_MAX = 7 };
    uint64_t bits = WORD_BITS;
    TIERCE_ASSERT(bytes_max >= sizeof(uint64_t));
    while (bits / BITS_A_NAME < names && bits / 8 <= bytes_max / 2)
        bits *= 2;
    uint64_t *words = tierce__calloc(bits / WORD_BITS, sizeof(*words));
    if (words == NULL)
        return -ENOMEM;
    uint64_t tries = names > 0 ? bits * 7 / 10 / names : TRIES_MAX; /* ln 2 */
    *filter = (struct tierce__scrub_filter){.words = words,
                                            .mask = bits - 1,
                                            .salt = salt,
                                            .tries = tries < 1           ? 1
                                                     : tries > TRIES_MAX ? TRIES_MAX
                                                                         : (unsigned)tries};
    return 0;
}

void tierce__scrub_filter_fini(struct tierce__scrub_filter *filter)
{
    tierce__free(filter->words);
    *filter = (struct tierce__scrub_filter){0};
}

static uint64_t hash_in(const struct tierce__scrub_filter *filter, const char *folder,
                        size_t folder_bytes, uint64_t number)
{
    return XXH3_64bits_withSeed(folder, folder_bytes, tierce__mix(number) ^ filter->salt);
}

static uint64_t bit_of(const struct tierce__scrub_filter *filter, uint64_t hash, unsigned i)
{
    return (hash + i * (tierce__mix(hash) | 1)) & filter->mask;
}

static bool has_hash(const struct tierce__scrub_filter *filter, uint64_t hash)
{
    for (unsigned i = 0; i < filter->tries; i++) {
        uint64_t bit = bit_of(filter, hash, i);
        if ((filter->words[bit / 64] >> bit % 64 & 1) == 0)
            return false;
    }
    return true;
}

/* False: the path ends with no block's name. */
static bool hash_path(const struct tierce__scrub_filter *filter, const char *path, uint64_t *hash)
{
    size_t folder_bytes = 0;
    const char *name = name_in(path);
    uint64_t number = name != NULL ? tierce__place_number(name, &folder_bytes) : 0;
    if (number != 0)
        *hash = hash_in(filter, name, folder_bytes, number);
    return number != 0;
}

void tierce__scrub_filter_add(struct tierce__scrub_filter *filter, const char *path)
{
    uint64_t hash;
    bool is_block = hash_path(filter, path, &hash);
    TIERCE_ASSERT(filter->words != NULL);
    for (unsigned i = 0; is_block && i < filter->tries; i++) {
        uint64_t bit = bit_of(filter, hash, i);
        filter->words[bit / 64] |= UINT64_C(1) << bit % 64;
    }
}

bool tierce__scrub_filter_has(const struct tierce__scrub_filter *filter, const char *path)
{
    uint64_t hash;
    return filter->words != NULL && hash_path(filter, path, &hash) && has_hash(filter, hash);
}

void tierce__scrub_set_filter(struct tierce__scrub_set *set,
                              const struct tierce__scrub_filter *filter)
{
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct tierce__scrub_object *object = &set->objects[i];
        const char *folder = set->folders[object->folder]->name;
        if (!has_hash(filter, hash_in(filter, folder, strlen(folder), object->number)))
            set->objects[kept++] = *object;
    }
    set->count = kept;
}

/* ---- orphans of earlier scrubs --------------------------------------------------------------- */

struct seen_orphan {
    uint64_t name; /* its hash */
    int64_t first_us;
};

struct tierce__scrub_seen {
    struct seen_orphan *old; /* by name */
    size_t old_count;
    struct seen_orphan *new; /* of this scrub */
    size_t new_count, new_room;
};

struct tierce__scrub_seen *tierce__scrub_seen_create(void)
{
    return tierce__calloc(1, sizeof(struct tierce__scrub_seen));
}

void tierce__scrub_seen_destroy(struct tierce__scrub_seen *seen)
{
    if (seen == NULL)
        return;
    tierce__free(seen->old);
    tierce__free(seen->new);
    tierce__free(seen);
}

static int compare_seen(const void *a, const void *b)
{
    const struct seen_orphan *x = a, *y = b;
    return (x->name > y->name) - (x->name < y->name);
}

/* Without memory the orphan is new in the next scrub, too. */
int64_t tierce__scrub_seen_note(struct tierce__scrub_seen *seen, uint64_t name, int64_t now_us)
{
    const struct seen_orphan key = {.name = name};
    const struct seen_orphan *old =
        seen->old_count > 0 ? bsearch(&key, seen->old, seen->old_count, sizeof(key), compare_seen)
                            : NULL;
    int64_t first_us = old != NULL ? old->first_us : now_us;
    if (seen->new_count < SEEN_MAX &&
        TIERCE__GROW(seen->new, seen->new_room, seen->new_count + 1, 64) == 0)
        seen->new[seen->new_count++] = (struct seen_orphan){.name = name, .first_us = first_us};
    return first_us;
}

void tierce__scrub_seen_end(struct tierce__scrub_seen *seen, bool whole)
{
    if (whole) {
        tierce__free(seen->old);
        seen->old = seen->new;
        seen->old_count = seen->new_count;
        if (seen->old_count > 1)
            qsort(seen->old, seen->old_count, sizeof(*seen->old), compare_seen);
    } else {
        tierce__free(seen->new);
    }
    seen->new = NULL;
    seen->new_count = seen->new_room = 0;
}
