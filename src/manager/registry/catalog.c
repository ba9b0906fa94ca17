/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/catalog.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- the four kinds -------------------------------------------------------------------------- */

static const struct tierce__fields *const kinds[TIERCE__KINDS] = {
    [TIERCE__KIND_STORAGE] = &tierce__storage_fields,
    [TIERCE__KIND_GROUP] = &tierce__group_fields,
    [TIERCE__KIND_INSTANCE] = &tierce__instance_fields,
    [TIERCE__KIND_ACCOUNT] = &tierce__account_fields,
};

/* The fields of a catalog begin at `next`: the references before it are never copied. */
#define AT(member)                                                                                 \
    (offsetof(struct tierce__catalog, member) - offsetof(struct tierce__catalog, next))
#define NEXT(member, key)                                                                          \
    {                                                                                              \
        .path = key, .kind = TIERCE__FIELD_UINT, .offset = AT(next.member), .initial = 1,          \
        .bytes = sizeof(uint64_t), .low = 1, .high = (int64_t)UINT32_MAX + 1,                      \
        .flags = TIERCE__FIELD_IS_CLOSED                                                           \
    }
#define ENTRIES(which, table, key)                                                                 \
    {                                                                                              \
        .path = key, .kind = TIERCE__FIELD_LIST, .offset = AT(lists[which].items),                 \
        .count_offset = AT(lists[which].count), .items = &(table), .high = INT64_MAX               \
    }
static const struct tierce__model_field catalog_rows[] = {
    NEXT(storage, "next_storage"),
    NEXT(group, "next_instance_group"),
    NEXT(instance, "next_instance"),
    {.path = "generation_floor",
     .kind = TIERCE__FIELD_UINT,
     .offset = AT(generation_floor),
     .bytes = sizeof(uint64_t),
     .high = (int64_t)TIERCE__GENERATION_MAX,
     .flags = TIERCE__FIELD_IS_STORED | TIERCE__FIELD_IS_CLOSED},
    {.path = "id",
     .kind = TIERCE__FIELD_TEXT,
     .offset = AT(id),
     .bytes = sizeof(char *),
     .flags = TIERCE__FIELD_IS_STORED},
    ENTRIES(TIERCE__KIND_STORAGE, tierce__storage_fields, "storages"),
    ENTRIES(TIERCE__KIND_GROUP, tierce__group_fields, "instance_groups"),
    ENTRIES(TIERCE__KIND_INSTANCE, tierce__instance_fields, "instances"),
    ENTRIES(TIERCE__KIND_ACCOUNT, tierce__account_fields, "accounts"),
};
enum { CATALOG_ROWS = sizeof(catalog_rows) / sizeof(catalog_rows[0]) };
static const struct tierce__fields catalog_fields = {
    .rows = catalog_rows,
    .count = CATALOG_ROWS,
    .size = sizeof(struct tierce__catalog) - offsetof(struct tierce__catalog, next),
};

/* The key of a kind's list in the JSON. */
static const char *key_of(enum tierce__registry_kind kind)
{
    TIERCE_DASSERT(kind < TIERCE__KINDS);
    return catalog_rows[CATALOG_ROWS - TIERCE__KINDS + kind].path;
}

const struct tierce__fields *tierce__catalog_fields(enum tierce__registry_kind kind)
{
    TIERCE_DASSERT(kind < TIERCE__KINDS);
    return kinds[kind];
}

void *tierce__catalog_entry(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                            size_t i)
{
    TIERCE_DASSERT(kind < TIERCE__KINDS);
    TIERCE_DASSERT(i < catalog->lists[kind].count);
    return (char *)catalog->lists[kind].items + i * kinds[kind]->size;
}

const char *tierce__entry_name(const void *entry, enum tierce__registry_kind kind)
{
    TIERCE_DASSERT(kind < TIERCE__KINDS);
    return *(char *const *)(const void *)((const char *)entry + kinds[kind]->name);
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__catalog_create(struct tierce__catalog **out)
{
    struct tierce__catalog empty = {.text_bytes = 0};
    tierce__model_start(&empty.next, &catalog_fields);
    return tierce__catalog_copy(out, &empty);
}

int tierce__catalog_copy(struct tierce__catalog **out, const struct tierce__catalog *in)
{
    struct tierce__catalog *copy = tierce__calloc(1, sizeof(*copy));
    if (copy == NULL)
        return -ENOMEM;
    int rc = tierce__model_copy(&copy->next, &in->next, &catalog_fields);
    if (rc == 0) {
        atomic_init(&copy->references, 1);
        copy->text_bytes = in->text_bytes;
        *out = copy;
    } else {
        tierce__free(copy);
    }
    return rc;
}

void tierce__catalog_put(struct tierce__catalog *catalog)
{
    TIERCE_ASSERT(catalog == NULL ||
                  atomic_load_explicit(&catalog->references, memory_order_relaxed) > 0);
    /* acq_rel: the thread that frees the catalog sees that all other readers have finished. */
    if (catalog == NULL ||
        atomic_fetch_sub_explicit(&catalog->references, 1, memory_order_acq_rel) != 1)
        return;
    tierce__model_clear(&catalog->next, &catalog_fields);
    tierce__free(catalog);
}

/* ---- entries --------------------------------------------------------------------------------- */

/* The index of an entry, or the index at which to insert it. */
static size_t position_of(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                          const char *name, bool *is_there)
{
    size_t from = 0, to = catalog->lists[kind].count;
    *is_there = false;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        int order =
            strcmp(tierce__entry_name(tierce__catalog_entry(catalog, kind, middle), kind), name);
        if (order == 0) {
            *is_there = true;
            return middle;
        }
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    TIERCE_DASSERT(from <= catalog->lists[kind].count);
    TIERCE_DASSERT(
        from == 0 ||
        strcmp(tierce__entry_name(tierce__catalog_entry(catalog, kind, from - 1), kind), name) < 0);
    TIERCE_DASSERT(
        from == catalog->lists[kind].count ||
        strcmp(tierce__entry_name(tierce__catalog_entry(catalog, kind, from), kind), name) > 0);
    return from;
}

void *tierce__catalog_find(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                           const char *name)
{
    bool is_there;
    size_t i = position_of(catalog, kind, name, &is_there);
    return is_there ? tierce__catalog_entry(catalog, kind, i) : NULL;
}

/* The bytes of an entry as it is stored. */
static int measure(uint64_t *bytes, enum tierce__registry_kind kind, const void *entry)
{
    char *text = NULL;
    int rc = tierce__model_to_json(&text, entry, kinds[kind], TIERCE__JSON_STORED);
    if (rc == 0)
        *bytes = strlen(text);
    tierce__free(text);
    return rc;
}

/* An entry that was changed in place may be longer now than it was counted. */
static void uncount(struct tierce__catalog *catalog, uint64_t bytes)
{
    catalog->text_bytes -= bytes < catalog->text_bytes ? bytes : catalog->text_bytes;
}

int tierce__catalog_set(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                        const void *entry)
{
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    struct tierce__catalog_list *list = &catalog->lists[kind];
    const size_t size = kinds[kind]->size;
    bool is_there;
    size_t i = position_of(catalog, kind, tierce__entry_name(entry, kind), &is_there);
    uint64_t bytes = 0, old_bytes = 0;
    int rc = measure(&bytes, kind, entry);
    if (rc == 0 && is_there)
        rc = measure(&old_bytes, kind, tierce__catalog_entry(catalog, kind, i));
    if (rc != 0)
        return rc;
    if (is_there) {
        tierce__model_clear(tierce__catalog_entry(catalog, kind, i), kinds[kind]);
    } else {
        void *items = tierce__realloc(list->items, (list->count + 1) * size);
        if (items == NULL)
            return -ENOMEM;
        list->items = items;
        memmove((char *)items + (i + 1) * size, (char *)items + i * size, (list->count - i) * size);
        list->count++;
    }
    memcpy(tierce__catalog_entry(catalog, kind, i), entry, size);
    uncount(catalog, old_bytes);
    catalog->text_bytes += bytes;
    return 0;
}

void tierce__catalog_remove(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                            const char *name)
{
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    struct tierce__catalog_list *list = &catalog->lists[kind];
    const size_t size = kinds[kind]->size;
    bool is_there;
    size_t i = position_of(catalog, kind, name, &is_there);
    if (!is_there)
        return;
    char *at = tierce__catalog_entry(catalog, kind, i);
    uint64_t bytes = 0;
    if (measure(&bytes, kind, at) == 0)
        uncount(catalog, bytes);
    tierce__model_clear(at, kinds[kind]);
    TIERCE_ASSERT(list->count > i);
    list->count--;
    memmove(at, at + size, (list->count - i) * size);
}

/* ---- numbers --------------------------------------------------------------------------------- */

const struct tierce__model_field *tierce__catalog_number_row(enum tierce__registry_kind kind)
{
    TIERCE_DASSERT(kind < TIERCE__KINDS);
    const struct tierce__model_field *last = &kinds[kind]->rows[kinds[kind]->count - 1];
    return (last->flags & TIERCE__FIELD_IS_STORED) != 0 ? last : NULL;
}

/* The next number of a kind that has numbers. */
static uint64_t *next_of(struct tierce__catalog *catalog, enum tierce__registry_kind kind)
{
    TIERCE_ASSERT(tierce__catalog_number_row(kind) != NULL);
    return kind == TIERCE__KIND_STORAGE ? &catalog->next.storage
           : kind == TIERCE__KIND_GROUP ? &catalog->next.group
                                        : &catalog->next.instance;
}

int tierce__catalog_assign(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                           void *entry, char why[256])
{
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    const struct tierce__model_field *row = tierce__catalog_number_row(kind);
    if (row == NULL)
        return 0;
    uint64_t *next = next_of(catalog, kind);
    TIERCE_ASSERT(*next > 0);
    if (*next > (uint64_t)row->high) {
        snprintf(why, 256, "all %lld numbers for %ss have been used", (long long)row->high,
                 kinds[kind]->noun);
        return TIERCE_E_LIMIT;
    }
    tierce__field_set_integer(entry, row, (int64_t)(*next)++);
    return 0;
}

static uint64_t number_of(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                          size_t i)
{
    TIERCE_DASSERT(tierce__catalog_number_row(kind)->bytes <= sizeof(uint32_t));
    return (uint64_t)tierce__field_integer(tierce__catalog_entry(catalog, kind, i),
                                           tierce__catalog_number_row(kind));
}

static bool has_number(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                       size_t before, uint64_t number)
{
    TIERCE_DASSERT(before <= catalog->lists[kind].count);
    for (size_t i = 0; i < before; i++)
        if (number_of(catalog, kind, i) == number)
            return true;
    return false;
}

static int number_kind(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                       char why[256])
{
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    uint64_t *next = next_of(catalog, kind);
    size_t count = catalog->lists[kind].count;
    int rc = 0;
    for (size_t i = 0; i < count; i++)
        if (number_of(catalog, kind, i) >= *next)
            *next = number_of(catalog, kind, i) + 1;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        uint64_t number = number_of(catalog, kind, i);
        if (number == 0 || has_number(catalog, kind, i, number))
            rc =
                tierce__catalog_assign(catalog, kind, tierce__catalog_entry(catalog, kind, i), why);
        TIERCE_DASSERT(rc != 0 || number_of(catalog, kind, i) < *next);
        TIERCE_DASSERT(rc != 0 || !has_number(catalog, kind, i, number_of(catalog, kind, i)));
    }
    return rc;
}

int tierce__catalog_number(struct tierce__catalog *catalog, char why[256])
{
    int rc = number_kind(catalog, TIERCE__KIND_STORAGE, why);
    if (rc == 0)
        rc = number_kind(catalog, TIERCE__KIND_GROUP, why);
    return rc == 0 ? number_kind(catalog, TIERCE__KIND_INSTANCE, why) : rc;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Adds an entry [transfer, unless it fails] whose name is new. */
static int add(struct tierce__catalog *catalog, enum tierce__registry_kind kind, const void *entry,
               char why[256])
{
    const char *name = tierce__entry_name(entry, kind);
    if (*name != '\0' && tierce__catalog_find(catalog, kind, name) == NULL)
        return tierce__catalog_set(catalog, kind, entry);
    snprintf(why, 256, *name == '\0' ? "a %s without a name%s" : "two %ss named %.200s",
             kinds[kind]->noun, name);
    return TIERCE_E_FORMAT;
}

int tierce__catalog_read(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                         struct tierce__text json, char why[256])
{
    union tierce__entry entry;
    int rc = tierce__model_take_json(&entry, kinds[kind], json, why);
    if (rc != 0)
        return rc;
    rc = add(catalog, kind, &entry, why);
    if (rc != 0)
        tierce__model_clear(&entry, kinds[kind]);
    return rc;
}

int tierce__catalog_print_all(char **out, const struct tierce__catalog *catalog)
{
    return tierce__model_to_json(out, &catalog->next, &catalog_fields, TIERCE__JSON_STORED);
}

/* Moves the entries of a list into the catalog, sorted. */
static int add_list(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                    struct tierce__catalog *from, char why[256])
{
    TIERCE_DASSERT(from != catalog);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < from->lists[kind].count; i++) {
        char inner[256] = "";
        rc = add(catalog, kind, tierce__catalog_entry(from, kind, i), inner);
        if (rc == 0)
            memset(tierce__catalog_entry(from, kind, i), 0, kinds[kind]->size);
        else
            snprintf(why, 256, "%s[%zu]: %.200s", key_of(kind), i, inner);
    }
    return rc;
}

unsigned tierce__catalog_format(const struct tierce__catalog *catalog)
{
    size_t count;
    const struct tierce__instance *instances = tierce__catalog_instances(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (instances[i].generation > 0)
            return TIERCE__REGISTRY_FORMAT_MAX;
    }
    return catalog->generation_floor > 0 ? TIERCE__REGISTRY_FORMAT_MAX : TIERCE__REGISTRY_FORMAT;
}

int tierce__catalog_set_id(struct tierce__catalog *catalog, const char *id, char why[256])
{
    TIERCE_ASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    if (id[0] != '\0' && !tierce__storage_id_is(id)) {
        snprintf(why, 256, "the id of the registry must be %u hex digits in lower case",
                 TIERCE__STORAGE_ID_HEX);
        return TIERCE_E_FORMAT;
    }
    char *copy = tierce__strdup(id);
    if (copy == NULL)
        return -ENOMEM;
    tierce__free(catalog->id);
    catalog->id = copy;
    return 0;
}

int tierce__catalog_read_all(struct tierce__catalog *catalog, const char *text, size_t bytes,
                             char why[256])
{
    struct tierce__catalog read = {0};
    TIERCE_DASSERT(catalog->next.storage == 1 && catalog->next.instance == 1);
    int rc = tierce__model_from_json(&read.next, &catalog_fields, text, bytes, why);
    if (rc == 0) {
        catalog->next = read.next;
        catalog->generation_floor = read.generation_floor;
        rc = tierce__catalog_set_id(catalog, read.id, why);
    }
    for (unsigned kind = 0; rc == 0 && kind < TIERCE__KINDS; kind++)
        rc = add_list(catalog, (enum tierce__registry_kind)kind, &read, why);
    if (rc == 0)
        rc = tierce__catalog_number(catalog, why);
    tierce__model_clear(&read.next, &catalog_fields);
    return rc;
}

const char *tierce__catalog_id(const struct tierce__catalog *catalog)
{
    return catalog->id;
}

/* ---- public queries -------------------------------------------------------------------------- */

/* Lookups of blocks call it for each location, so a pool of many nodes must not be searched. */
const struct tierce__storage *
tierce__catalog_storage_numbered(const struct tierce__catalog *catalog, uint16_t number)
{
    _Atomic uint16_t *hint =
        (_Atomic uint16_t *)(uintptr_t)&catalog->storage_hints[number % TIERCE__CATALOG_HINTS];
    size_t count = catalog->lists[TIERCE__KIND_STORAGE].count;
    size_t at = atomic_load_explicit(hint, memory_order_relaxed);
    if (at < count && number_of(catalog, TIERCE__KIND_STORAGE, at) == number)
        return tierce__catalog_entry(catalog, TIERCE__KIND_STORAGE, at);
    for (at = 0; at < count; at++) {
        if (number_of(catalog, TIERCE__KIND_STORAGE, at) == number) {
            atomic_store_explicit(hint, (uint16_t)at, memory_order_relaxed);
            return tierce__catalog_entry(catalog, TIERCE__KIND_STORAGE, at);
        }
    }
    return NULL;
}

#define QUERIES(type, kind)                                                                        \
    const struct tierce__##type *tierce__catalog_##type(const struct tierce__catalog *catalog,     \
                                                        const char *name)                          \
    {                                                                                              \
        return tierce__catalog_find(catalog, kind, name);                                          \
    }                                                                                              \
    const struct tierce__##type *tierce__catalog_##type##s(const struct tierce__catalog *catalog,  \
                                                           size_t *count)                          \
    {                                                                                              \
        *count = catalog->lists[kind].count;                                                       \
        return catalog->lists[kind].items;                                                         \
    }
QUERIES(storage, TIERCE__KIND_STORAGE)
QUERIES(group, TIERCE__KIND_GROUP)
QUERIES(instance, TIERCE__KIND_INSTANCE)
QUERIES(account, TIERCE__KIND_ACCOUNT)

enum tierce__storage_type tierce__catalog_candidate_type(const struct tierce__catalog *catalog,
                                                         const char *name)
{
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, name);
    return storage != NULL ? storage->type : TIERCE__STORAGE_NODE;
}

static bool share_place(const struct tierce__catalog *catalog, const char *one, const char *other)
{
    const struct tierce__storage *x = tierce__catalog_storage(catalog, one);
    const struct tierce__storage *y = tierce__catalog_storage(catalog, other);
    return strcmp(one, other) == 0 || (x != NULL && tierce__storage_is_in_pool(x, other)) ||
           (y != NULL && tierce__storage_is_in_pool(y, one));
}

bool tierce__catalog_share_storage(const struct tierce__catalog *catalog,
                                   const struct tierce__group *one,
                                   const struct tierce__group *other,
                                   enum tierce__storage_type type)
{
    for (size_t i = 0; i < one->storage_candidate_count; i++) {
        const char *name = one->storage_candidates[i];
        enum tierce__storage_type kind =
            tierce__storage_type_quota(tierce__catalog_candidate_type(catalog, name));
        for (size_t k = 0; k < other->storage_candidate_count; k++) {
            if ((type == TIERCE__STORAGE_NONE || type == kind) &&
                share_place(catalog, name, other->storage_candidates[k]))
                return true;
        }
    }
    return false;
}
