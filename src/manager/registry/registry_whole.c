/* SPDX-License-Identifier: Apache-2.0 */
/* The whole content of a registry at once: snapshots, backups, and the first start. */
#include "base/assert.h"
#include "base/clock.h"
#include "manager/registry/registry_private.h"
#include "manager/registry/registry_rules.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- all at once ----------------------------------------------------------------------------- */

int tierce__registry_snapshot(struct tierce__registry *registry, char **out)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    int rc = tierce__catalog_print_all(out, catalog);
    tierce__registry_release(registry, catalog);
    return rc;
}

/* Whether an imported entry is the one that has this name. */
static bool is_kept(enum tierce__registry_kind kind, const union tierce__entry *old,
                    const union tierce__entry *entry)
{
    char field[128];
    return old != NULL &&
           (kind != TIERCE__KIND_STORAGE || old->storage.type == entry->storage.type) &&
           (kind != TIERCE__KIND_INSTANCE ||
            tierce__instance_is_same(&old->instance, &entry->instance, field));
}

/* An import takes no invalidation back, and neither does one that leaves an instance out and a
 * later one that has it again. */
static void keep_generations(struct tierce__catalog *after, struct tierce__catalog *before)
{
    for (size_t i = 0; i < before->lists[TIERCE__KIND_INSTANCE].count; i++) {
        const struct tierce__instance *old =
            tierce__catalog_entry(before, TIERCE__KIND_INSTANCE, i);
        struct tierce__instance *entry =
            tierce__catalog_find(after, TIERCE__KIND_INSTANCE, old->id);
        if (entry == NULL)
            tierce__registry_keep_generation(before, old);
        else
            entry->generation = larger(entry->generation, old->generation);
    }
    for (size_t i = 0; i < after->lists[TIERCE__KIND_INSTANCE].count; i++) {
        struct tierce__instance *entry = tierce__catalog_entry(after, TIERCE__KIND_INSTANCE, i);
        if (tierce__catalog_instance(before, entry->id) == NULL)
            entry->generation = larger(entry->generation, before->generation_floor);
    }
}

/* Imported numbers and marks are ignored: equal entries keep those that they have. */
static void keep_numbers(struct tierce__catalog *after, const struct tierce__catalog *before,
                         enum tierce__registry_kind kind)
{
    TIERCE_DASSERT(after != before);
    const struct tierce__model_field *number = tierce__catalog_number_row(kind);
    for (size_t i = 0; number != NULL && i < after->lists[kind].count; i++) {
        void *entry = tierce__catalog_entry(after, kind, i);
        const void *old = tierce__catalog_find(before, kind, tierce__entry_name(entry, kind));
        bool keeps = is_kept(kind, old, entry);
        tierce__field_set_integer(entry, number, keeps ? tierce__field_integer(old, number) : 0);
        if (kind == TIERCE__KIND_STORAGE)
            tierce__storage_keep_state(entry, keeps ? old : NULL);
    }
}

static int check_all(struct tierce__catalog *catalog, char why[256])
{
    int rc = 0;
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++) {
        for (size_t i = 0; rc == 0 && i < catalog->lists[kind].count; i++)
            rc = tierce__entry_check(kind, tierce__catalog_entry(catalog, kind, i), why);
    }
    const struct tierce__instance *instances = catalog->lists[TIERCE__KIND_INSTANCE].items;
    for (size_t i = 0; rc == 0 && i < catalog->lists[TIERCE__KIND_INSTANCE].count; i++) {
        if (tierce__catalog_group(catalog, instances[i].group_name) == NULL) {
            snprintf(why, 256, "instance %.100s belongs to group %.100s, which does not exist",
                     instances[i].id, instances[i].group_name);
            rc = TIERCE_E_ARGUMENT;
        }
    }
    return rc;
}

static void swap_lists(struct tierce__catalog *a, struct tierce__catalog *b)
{
    TIERCE_DASSERT(a != b);
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++) {
        struct tierce__catalog_list list = a->lists[kind];
        a->lists[kind] = b->lists[kind];
        b->lists[kind] = list;
    }
    uint64_t text_bytes = a->text_bytes;
    a->text_bytes = b->text_bytes;
    b->text_bytes = text_bytes;
}

static int restore(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const char *text = arg;
    struct tierce__catalog *read = NULL;
    int rc = tierce__catalog_create(&read);
    if (rc == 0)
        rc = tierce__catalog_read_all(read, text, strlen(text), why);
    if (rc == 0)
        rc = check_all(read, why);
    if (rc == 0) {
        for (unsigned kind = 0; kind < TIERCE__KINDS; kind++)
            keep_numbers(read, catalog, kind);
        keep_generations(read, catalog);
        read->next = catalog->next;
        rc = tierce__catalog_number(read, why);
    }
    if (rc == 0)
        swap_lists(catalog, read);
    TIERCE_ASSERT(rc != 0 || (read->next.storage >= catalog->next.storage &&
                              read->next.group >= catalog->next.group &&
                              read->next.instance >= catalog->next.instance));
    if (rc == 0)
        catalog->next = read->next;
    tierce__catalog_put(read);
    return rc;
}

int tierce__registry_restore(struct tierce__registry *registry, const char *text, char why[256])
{
    return tierce__registry_change(registry, restore, text, why);
}

/* Numbers of instances, and generations, that may have been given after a text was made are
 * skipped. */
#define NUMBERS_SKIPPED 65536u

static int check_empty(const struct tierce__catalog *catalog, char why[256])
{
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++) {
        if (catalog->lists[kind].count == 0)
            continue;
        snprintf(why, 256, "the registry is not empty: it has %s %.150s",
                 tierce__catalog_fields(kind)->noun,
                 tierce__entry_name(tierce__catalog_entry(catalog, kind, 0), kind));
        return -EEXIST;
    }
    return 0;
}

/* Numbers that the catalog has assigned are not assigned again. */
static void skip_numbers(struct tierce__catalog_numbers *next,
                         const struct tierce__catalog_numbers *before)
{
    next->storage = larger(next->storage, before->storage);
    next->group = larger(next->group, before->group);
    next->instance = larger(next->instance, before->instance);
    next->instance = next->instance < UINT32_MAX - NUMBERS_SKIPPED
                         ? next->instance + NUMBERS_SKIPPED
                         : (uint64_t)UINT32_MAX + 1;
}

/* The same text may be read twice, and what it led to before is unknown: the skip is random, too.
 */
static uint64_t generations_skipped(void)
{
    enum { RANDOM_BITS = 40 };
    uint64_t random = 0;
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        random = tierce__now_ns(); /* no second restore is made in the same nanosecond */
    return NUMBERS_SKIPPED + (random & ((UINT64_C(1) << RANDOM_BITS) - 1));
}

/* Engines may have heard generations that instances were given after the text was made. */
static void skip_generations(struct tierce__catalog *read, const struct tierce__catalog *before)
{
    uint64_t skipped = generations_skipped();
    uint64_t floor = larger(read->generation_floor, before->generation_floor);
    size_t count;
    const struct tierce__instance *instances = tierce__catalog_instances(read, &count);
    for (size_t i = 0; i < count; i++)
        floor = larger(floor, instances[i].generation);
    read->generation_floor =
        floor < TIERCE__GENERATION_MAX - skipped ? floor + skipped : TIERCE__GENERATION_MAX;
}

/* The manager of the text may still run: with its id, this one would delete in its storages. */
static int take_id(struct tierce__catalog *catalog, const char *id, bool keeps_id, char why[256])
{
    return id[0] == '\0' || keeps_id ? tierce__catalog_set_id(catalog, id, why)
                                     : tierce__registry_give_id(catalog, why);
}

/* The backup's manager had a scrub under way. Here it could delete what was stored after the
 * backup, so it begins only if an operator asks for it. */
static void end_scrubs(struct tierce__catalog *catalog)
{
    size_t count;
    (void)tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        struct tierce__storage *storage = tierce__catalog_entry(catalog, TIERCE__KIND_STORAGE, i);
        if (storage->scrub[0] != '\0')
            storage->scrub[0] = '\0';
    }
}

/* Reads a text into an empty catalog, which has assigned numbers. */
static int take_over(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct tierce__registry_text *whole = arg;
    struct tierce__catalog *read = NULL;
    int rc = check_empty(catalog, why);
    if (rc == 0)
        rc = tierce__catalog_create(&read);
    if (rc == 0)
        rc = tierce__catalog_read_all(read, whole->text, strlen(whole->text), why);
    if (rc == 0)
        rc = check_all(read, why);
    if (rc == 0) {
        skip_numbers(&read->next, &catalog->next);
        skip_generations(read, catalog);
        end_scrubs(read);
        catalog->next = read->next;
        catalog->generation_floor = read->generation_floor;
        rc = take_id(catalog, read->id, whole->keeps_id, why);
        swap_lists(catalog, read);
    }
    tierce__catalog_put(read);
    return rc;
}

int tierce__registry_stage(struct tierce__registry *registry,
                           const struct tierce__registry_text *whole, char why[256])
{
    return tierce__registry_change_unsaved(registry, take_over, whole, why);
}

/* ---- the first start ------------------------------------------------------------------------- */

/* The entries of a startup file. */
static const struct {
    const char *key;
    enum tierce__registry_kind kind;
} startup_entries[] = {
    {"storage_config", TIERCE__KIND_STORAGE},
    {"instance_group", TIERCE__KIND_GROUP},
};
enum { STARTUP_ENTRIES = sizeof(startup_entries) / sizeof(startup_entries[0]) };

/* An entry, if it is there. */
static int start_with(struct tierce__catalog *catalog, size_t at, struct tierce__text json,
                      char why[256])
{
    const char *key = startup_entries[at].key;
    enum tierce__registry_kind kind = startup_entries[at].kind;
    struct tierce__text entry = tierce__json_get(json, key);
    char inner[256] = "";
    int rc = entry.length > 0 ? tierce__catalog_read(catalog, kind, entry, inner) : 0;
    if (rc != 0)
        snprintf(why, 256, "%s: %.200s", key, inner);
    return rc;
}

static int start(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const char *text = arg;
    TIERCE_DASSERT(atomic_load_explicit(&catalog->references, memory_order_relaxed) == 1);
    struct tierce__json_doc doc = {0};
    for (unsigned kind = 0; kind < TIERCE__KINDS; kind++)
        if (catalog->lists[kind].count > 0)
            return 1;
    if (text == NULL) {
        snprintf(
            why, 256,
            "the registry is empty, and there is no folder for a first storage: set startup.file, "
            "or set STATE_DIRECTORY, XDG_STATE_HOME or HOME to an absolute path");
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__model_parse_json(&doc, text, strlen(text), why);
    for (size_t i = 0; rc == 0 && i < STARTUP_ENTRIES; i++)
        rc = start_with(catalog, i, doc.value, why);
    if (rc == 0)
        rc = check_all(catalog, why);
    if (rc == 0)
        rc = tierce__catalog_number(catalog, why);
    tierce__json_doc_clear(&doc);
    return rc;
}

int tierce__registry_startup(struct tierce__registry *registry, const char *text, char why[256])
{
    int rc = tierce__registry_change(registry, start, text, why);
    return rc > 0 ? 0 : rc;
}

int tierce__registry_check_startup(const char *text, char why[256])
{
    struct tierce__catalog *catalog = NULL;
    int rc = tierce__catalog_create(&catalog);
    if (rc == 0)
        rc = start(catalog, text, why);
    tierce__catalog_put(catalog);
    return rc;
}

struct startup_names {
    const char *key;
    tierce__model_unknown_fn *each;
    void *arg;
};

static void on_name(void *arg, const char *path)
{
    const struct startup_names *names = arg;
    char text[512];
    snprintf(text, sizeof(text), "%s.%s", names->key, path);
    names->each(names->arg, text);
}

void tierce__registry_startup_unknown(const char *text, tierce__model_unknown_fn *each, void *arg)
{
    struct tierce__json_doc doc = {0};
    struct tierce__text name, value;
    char ignored[256];
    if (tierce__model_parse_json(&doc, text, strlen(text), ignored) != 0)
        return;
    struct tierce__json members = tierce__json_each(doc.value);
    while (tierce__json_next(&members, &name, &value)) {
        char key[64];
        size_t i = 0;
        snprintf(key, sizeof(key), "%.*s", (int)(name.length < 64 ? name.length : 64), name.at);
        while (i < STARTUP_ENTRIES && strcmp(startup_entries[i].key, key) != 0)
            i++;
        struct startup_names names = {.key = key, .each = each, .arg = arg};
        if (i < STARTUP_ENTRIES)
            tierce__model_each_unknown(tierce__catalog_fields(startup_entries[i].kind), value,
                                       on_name, &names);
        else
            each(arg, key);
    }
    tierce__json_doc_clear(&doc);
}
