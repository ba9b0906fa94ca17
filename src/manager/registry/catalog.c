/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/registry/catalog.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/registry/model_json.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

/* ---- the four kinds -------------------------------------------------------------------------- */

struct kind {
    const char *list; /* the key of its list in the JSON */
    const char *noun;
    size_t size, name_at;
    int (*copy)(void *out, const void *in);
    void (*clear)(void *entry);
    int (*read)(void *out, struct json_object *json, char why[256]);
    int (*write)(struct json_object **out, const void *entry);
};

#define KIND_FUNCTIONS(name)                                                                       \
    static int copy_##name(void *out, const void *in)                                              \
    {                                                                                              \
        return tierce__##name##_copy(out, in);                                                     \
    }                                                                                              \
    static void clear_##name(void *entry)                                                          \
    {                                                                                              \
        tierce__##name##_clear(entry);                                                             \
    }                                                                                              \
    static int read_##name(void *out, struct json_object *json, char why[256])                     \
    {                                                                                              \
        return tierce__##name##_from_json(out, json, why);                                         \
    }
KIND_FUNCTIONS(storage)
KIND_FUNCTIONS(group)
KIND_FUNCTIONS(instance)
KIND_FUNCTIONS(account)

static int write_storage(struct json_object **out, const void *entry)
{
    return tierce__storage_to_json(out, entry, TIERCE__JSON_STORED);
}

static int write_group(struct json_object **out, const void *entry)
{
    return tierce__group_to_json(out, entry, TIERCE__JSON_STORED);
}

static int write_instance(struct json_object **out, const void *entry)
{
    return tierce__instance_to_json(out, entry, TIERCE__JSON_STORED);
}

static int write_account(struct json_object **out, const void *entry)
{
    return tierce__account_to_json(out, entry);
}

#define KIND(name, plural, key)                                                                    \
    {                                                                                              \
        plural, #name, sizeof(struct tierce__##name), offsetof(struct tierce__##name, key),        \
            copy_##name, clear_##name, read_##name, write_##name                                   \
    }
static const struct kind kinds[TIERCE__KINDS] = {
    [TIERCE__KIND_STORAGE] = KIND(storage, "storages", name),
    [TIERCE__KIND_GROUP] = KIND(group, "instance_groups", name),
    [TIERCE__KIND_INSTANCE] = KIND(instance, "instances", id),
    [TIERCE__KIND_ACCOUNT] = KIND(account, "accounts", name),
};

static void *item_at(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                     size_t i)
{
    return (char *)catalog->lists[kind].items + i * kinds[kind].size;
}

static const char *name_of(const void *entry, enum tierce__registry_kind kind)
{
    return *(char *const *)(const void *)((const char *)entry + kinds[kind].name_at);
}

const char *tierce__catalog_name(const struct tierce__catalog *catalog,
                                 enum tierce__registry_kind kind, size_t i)
{
    return name_of(item_at(catalog, kind, i), kind);
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__catalog_create(struct tierce__catalog **out)
{
    struct tierce__catalog *catalog = tierce__calloc(1, sizeof(*catalog));
    if (catalog == NULL)
        return -ENOMEM;
    atomic_init(&catalog->references, 1);
    catalog->next = (struct tierce__catalog_numbers){1, 1, 1};
    *out = catalog;
    return 0;
}

static int copy_list(struct tierce__catalog *out, const struct tierce__catalog *in,
                     enum tierce__registry_kind kind)
{
    out->lists[kind].items = tierce__calloc(in->lists[kind].count, kinds[kind].size);
    if (out->lists[kind].items == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < in->lists[kind].count; i++) {
        int rc = kinds[kind].copy(item_at(out, kind, i), item_at(in, kind, i));
        if (rc != 0)
            return rc;
        out->lists[kind].count++;
    }
    return 0;
}

int tierce__catalog_copy(struct tierce__catalog **out, const struct tierce__catalog *in)
{
    struct tierce__catalog *copy = NULL;
    int rc = tierce__catalog_create(&copy);
    if (rc == 0)
        copy->next = in->next;
    for (unsigned kind = 0; rc == 0 && kind < TIERCE__KINDS; kind++)
        rc = copy_list(copy, in, (enum tierce__registry_kind)kind);
    if (rc == 0)
        *out = copy;
    else
        tierce__catalog_put(copy);
    return rc;
}

void tierce__catalog_put(struct tierce__catalog *catalog)
{
    /* acq_rel: the thread that frees the catalog sees that all other readers have finished. */
    if (catalog == NULL ||
        atomic_fetch_sub_explicit(&catalog->references, 1, memory_order_acq_rel) != 1)
        return;
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++) {
        for (size_t i = 0; i < catalog->lists[kind].count; i++)
            kinds[kind].clear(item_at(catalog, (enum tierce__registry_kind)kind, i));
        tierce__free(catalog->lists[kind].items);
    }
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
        int order = strcmp(tierce__catalog_name(catalog, kind, middle), name);
        if (order == 0) {
            *is_there = true;
            return middle;
        }
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

void *tierce__catalog_find(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                           const char *name)
{
    bool is_there;
    size_t i = position_of(catalog, kind, name, &is_there);
    return is_there ? item_at(catalog, kind, i) : NULL;
}

int tierce__catalog_set(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                        const void *entry)
{
    struct tierce__catalog_list *list = &catalog->lists[kind];
    const size_t size = kinds[kind].size;
    bool is_there;
    size_t i = position_of(catalog, kind, name_of(entry, kind), &is_there);
    if (is_there) {
        kinds[kind].clear(item_at(catalog, kind, i));
    } else {
        void *items = tierce__realloc(list->items, (list->count + 1) * size);
        if (items == NULL)
            return -ENOMEM;
        list->items = items;
        memmove((char *)items + (i + 1) * size, (char *)items + i * size, (list->count - i) * size);
        list->count++;
    }
    memcpy(item_at(catalog, kind, i), entry, size);
    return 0;
}

void tierce__catalog_remove(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                            const char *name)
{
    struct tierce__catalog_list *list = &catalog->lists[kind];
    const size_t size = kinds[kind].size;
    bool is_there;
    size_t i = position_of(catalog, kind, name, &is_there);
    if (!is_there)
        return;
    char *at = item_at(catalog, kind, i);
    kinds[kind].clear(at);
    list->count--;
    memmove(at, at + size, (list->count - i) * size);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t number_of(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                          size_t i)
{
    const void *entry = item_at(catalog, kind, i);
    if (kind == TIERCE__KIND_STORAGE)
        return ((const struct tierce__storage *)entry)->number;
    if (kind == TIERCE__KIND_GROUP)
        return ((const struct tierce__group *)entry)->number;
    return ((const struct tierce__instance *)entry)->number;
}

static void set_number(struct tierce__catalog *catalog, enum tierce__registry_kind kind, size_t i,
                       uint64_t number)
{
    void *entry = item_at(catalog, kind, i);
    if (kind == TIERCE__KIND_STORAGE)
        ((struct tierce__storage *)entry)->number = (uint16_t)number;
    else if (kind == TIERCE__KIND_GROUP)
        ((struct tierce__group *)entry)->number = (uint16_t)number;
    else
        ((struct tierce__instance *)entry)->number = (uint32_t)number;
}

static bool has_number(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                       size_t before, uint64_t number)
{
    for (size_t i = 0; i < before; i++)
        if (number_of(catalog, kind, i) == number)
            return true;
    return false;
}

static int number_kind(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                       uint64_t *next, uint64_t max, char why[256])
{
    size_t count = catalog->lists[kind].count;
    for (size_t i = 0; i < count; i++)
        if (number_of(catalog, kind, i) >= *next)
            *next = number_of(catalog, kind, i) + 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t number = number_of(catalog, kind, i);
        if (number != 0 && !has_number(catalog, kind, i, number))
            continue;
        if (*next > max) {
            snprintf(why, 256, "all %llu numbers for %s have been used", (unsigned long long)max,
                     kinds[kind].list);
            return TIERCE_E_LIMIT;
        }
        set_number(catalog, kind, i, (*next)++);
    }
    return 0;
}

int tierce__catalog_number(struct tierce__catalog *catalog, char why[256])
{
    int rc = number_kind(catalog, TIERCE__KIND_STORAGE, &catalog->next.storage, UINT16_MAX, why);
    if (rc == 0)
        rc = number_kind(catalog, TIERCE__KIND_GROUP, &catalog->next.group, UINT16_MAX, why);
    if (rc == 0)
        rc = number_kind(catalog, TIERCE__KIND_INSTANCE, &catalog->next.instance, UINT32_MAX, why);
    return rc;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

int tierce__catalog_print(char **out, const struct tierce__catalog *catalog,
                          enum tierce__registry_kind kind, size_t i)
{
    struct json_object *json = NULL;
    int rc = kinds[kind].write(&json, item_at(catalog, kind, i));
    char *text = rc == 0 ? tierce__model_print(json) : NULL;
    json_object_put(json);
    if (text == NULL)
        return rc != 0 ? rc : -ENOMEM;
    *out = text;
    return 0;
}

int tierce__catalog_read(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                         struct json_object *json, char why[256])
{
    union {
        struct tierce__storage storage;
        struct tierce__group group;
        struct tierce__instance instance;
        struct tierce__account account;
    } entry;
    memset(&entry, 0, sizeof(entry));
    int rc = kinds[kind].read(&entry, json, why);
    if (rc != 0)
        return rc;
    const char *name = name_of(&entry, kind);
    if (*name == '\0' || tierce__catalog_find(catalog, kind, name) != NULL) {
        snprintf(why, 256, *name == '\0' ? "a %s without a name%s" : "two %ss named %.200s",
                 kinds[kind].noun, name);
        rc = TIERCE_E_FORMAT;
    } else {
        rc = tierce__catalog_set(catalog, kind, &entry);
    }
    if (rc != 0)
        kinds[kind].clear(&entry);
    return rc;
}

static int write_list(struct json_object *json, const struct tierce__catalog *catalog,
                      enum tierce__registry_kind kind)
{
    struct json_object *list = json_object_new_array();
    if (list == NULL || json_object_object_add(json, kinds[kind].list, list) != 0) {
        json_object_put(list);
        return -ENOMEM;
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < catalog->lists[kind].count; i++) {
        struct json_object *entry = NULL;
        rc = kinds[kind].write(&entry, item_at(catalog, kind, i));
        if (rc == 0 && json_object_array_add(list, entry) != 0) {
            json_object_put(entry);
            rc = -ENOMEM;
        }
    }
    return rc;
}

static int write_next(struct json_object *json, const char *key, uint64_t value)
{
    struct json_object *number = json_object_new_int64((int64_t)value);
    if (number != NULL && json_object_object_add(json, key, number) == 0)
        return 0;
    json_object_put(number);
    return -ENOMEM;
}

int tierce__catalog_print_all(char **out, const struct tierce__catalog *catalog)
{
    struct json_object *json = json_object_new_object();
    int rc = json != NULL ? 0 : -ENOMEM;
    if (rc == 0)
        rc = write_next(json, "next_storage", catalog->next.storage);
    if (rc == 0)
        rc = write_next(json, "next_instance_group", catalog->next.group);
    if (rc == 0)
        rc = write_next(json, "next_instance", catalog->next.instance);
    for (unsigned kind = 0; rc == 0 && kind < TIERCE__KINDS; kind++)
        rc = write_list(json, catalog, (enum tierce__registry_kind)kind);
    char *text = rc == 0 ? tierce__model_print(json) : NULL;
    json_object_put(json);
    if (text == NULL)
        return rc != 0 ? rc : -ENOMEM;
    *out = text;
    return 0;
}

static int read_next(uint64_t *out, struct json_object *json, const char *key, char why[256])
{
    struct json_object *value;
    if (!json_object_object_get_ex(json, key, &value))
        return 0;
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 1 ||
        json_object_get_int64(value) > (int64_t)UINT32_MAX + 1) {
        snprintf(why, 256, "%s: not a valid next number", key);
        return TIERCE_E_FORMAT;
    }
    *out = (uint64_t)json_object_get_int64(value);
    return 0;
}

static int read_list(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                     struct json_object *json, char why[256])
{
    struct json_object *list;
    if (!json_object_object_get_ex(json, kinds[kind].list, &list))
        return 0;
    if (!json_object_is_type(list, json_type_array)) {
        snprintf(why, 256, "%s: not a list", kinds[kind].list);
        return TIERCE_E_FORMAT;
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_object_array_length(list); i++) {
        char inner[256] = "";
        rc = tierce__catalog_read(catalog, kind, json_object_array_get_idx(list, i), inner);
        if (rc != 0)
            snprintf(why, 256, "%s[%zu]: %.200s", kinds[kind].list, i, inner);
    }
    return rc;
}

int tierce__catalog_read_all(struct tierce__catalog *catalog, const char *text, size_t bytes,
                             char why[256])
{
    struct json_object *json = NULL;
    int rc = tierce__model_parse(&json, text, bytes, why);
    if (rc == 0)
        rc = read_next(&catalog->next.storage, json, "next_storage", why);
    if (rc == 0)
        rc = read_next(&catalog->next.group, json, "next_instance_group", why);
    if (rc == 0)
        rc = read_next(&catalog->next.instance, json, "next_instance", why);
    for (unsigned kind = 0; rc == 0 && kind < TIERCE__KINDS; kind++)
        rc = read_list(catalog, (enum tierce__registry_kind)kind, json, why);
    if (rc == 0)
        rc = tierce__catalog_number(catalog, why);
    json_object_put(json);
    return rc;
}

/* ---- public queries -------------------------------------------------------------------------- */

const struct tierce__storage *tierce__catalog_storage(const struct tierce__catalog *catalog,
                                                      const char *name)
{
    return tierce__catalog_find(catalog, TIERCE__KIND_STORAGE, name);
}

const struct tierce__storage *
tierce__catalog_storage_numbered(const struct tierce__catalog *catalog, uint16_t number)
{
    for (size_t i = 0; i < catalog->lists[TIERCE__KIND_STORAGE].count; i++)
        if (number_of(catalog, TIERCE__KIND_STORAGE, i) == number)
            return item_at(catalog, TIERCE__KIND_STORAGE, i);
    return NULL;
}

const struct tierce__group *tierce__catalog_group(const struct tierce__catalog *catalog,
                                                  const char *name)
{
    return tierce__catalog_find(catalog, TIERCE__KIND_GROUP, name);
}

const struct tierce__instance *tierce__catalog_instance(const struct tierce__catalog *catalog,
                                                        const char *id)
{
    return tierce__catalog_find(catalog, TIERCE__KIND_INSTANCE, id);
}

const struct tierce__account *tierce__catalog_account(const struct tierce__catalog *catalog,
                                                      const char *name)
{
    return tierce__catalog_find(catalog, TIERCE__KIND_ACCOUNT, name);
}

const struct tierce__storage *tierce__catalog_storages(const struct tierce__catalog *catalog,
                                                       size_t *count)
{
    *count = catalog->lists[TIERCE__KIND_STORAGE].count;
    return catalog->lists[TIERCE__KIND_STORAGE].items;
}

const struct tierce__group *tierce__catalog_groups(const struct tierce__catalog *catalog,
                                                   size_t *count)
{
    *count = catalog->lists[TIERCE__KIND_GROUP].count;
    return catalog->lists[TIERCE__KIND_GROUP].items;
}

const struct tierce__instance *tierce__catalog_instances(const struct tierce__catalog *catalog,
                                                         size_t *count)
{
    *count = catalog->lists[TIERCE__KIND_INSTANCE].count;
    return catalog->lists[TIERCE__KIND_INSTANCE].items;
}

const struct tierce__account *tierce__catalog_accounts(const struct tierce__catalog *catalog,
                                                       size_t *count)
{
    *count = catalog->lists[TIERCE__KIND_ACCOUNT].count;
    return catalog->lists[TIERCE__KIND_ACCOUNT].items;
}
