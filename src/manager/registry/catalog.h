/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CATALOG_H
#define TIERCE_MANAGER_CATALOG_H

#include <stdatomic.h>

#include "base/json/json_value.h"
#include "manager/registry/registry.h"

/*
 * A snapshot of everything in a registry. One thread builds and changes it; once published
 * (registry.c) it is immutable. Lists are sorted by name.
 */

enum tierce__registry_kind {
    TIERCE__KIND_STORAGE,
    TIERCE__KIND_GROUP,
    TIERCE__KIND_INSTANCE,
    TIERCE__KIND_ACCOUNT,
    TIERCE__KINDS,
};

/* The next numbers to assign, from 1. */
struct tierce__catalog_numbers {
    uint64_t storage, group, instance;
};

#define TIERCE__CATALOG_HINTS 1024u

struct tierce__catalog {
    atomic_uint references;
    /* Where storages are in their list, by number modulo the size; compared before use, so one may
     * be wrong. Relaxed: each is a value of its own. */
    _Atomic uint16_t storage_hints[TIERCE__CATALOG_HINTS];
    struct tierce__catalog_numbers next;
    /* The smallest generation that an instance gets when it is registered or invalidated; 0: no
     * instance that was invalidated was removed, and no backup was restored. */
    uint64_t generation_floor;
    /* Of the entries as they are stored, without what was changed in place since they were set. */
    uint64_t text_bytes;
    char *id; /* heap: of the registry, which marks its storages with it; "": it has none yet */
    struct tierce__catalog_list {
        void *items; /* of the kind's struct */
        size_t count;
    } lists[TIERCE__KINDS];
};

/* An empty one, and a copy, both with one reference. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__catalog_create(struct tierce__catalog **out);
TIERCE_MUSTUSE int tierce__catalog_copy(struct tierce__catalog **out,
                                        const struct tierce__catalog *in);
/* Releases a reference; the last one frees the catalog. NULL is accepted. */
void tierce__catalog_put(struct tierce__catalog *catalog);

/* The fields of a kind's entries. */
const struct tierce__fields *tierce__catalog_fields(enum tierce__registry_kind kind);
/* The row of an entry's number; NULL: the kind has none. */
const struct tierce__model_field *tierce__catalog_number_row(enum tierce__registry_kind kind);

/* The i-th entry. */
void *tierce__catalog_entry(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                            size_t i);
/* One entry by its name, or NULL. */
void *tierce__catalog_find(const struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                           const char *name);
/* Inserts an entry [transfer], replacing an entry of the same name. Error: -ENOMEM, the entry stays
 * the caller's. */
TIERCE_MUSTUSE int tierce__catalog_set(struct tierce__catalog *catalog,
                                       enum tierce__registry_kind kind, const void *entry);
void tierce__catalog_remove(struct tierce__catalog *catalog, enum tierce__registry_kind kind,
                            const char *name);
const char *tierce__entry_name(const void *entry, enum tierce__registry_kind kind);

/* The format of the stored forms that a catalog needs. An older manager ignores keys that it does
 * not know and loses them with its next write. It must not do so with generations, because blocks
 * that were invalidated would be valid again; so it rejects format 2. */
#define TIERCE__REGISTRY_FORMAT     1
#define TIERCE__REGISTRY_FORMAT_MAX 2 /* an instance has a generation, or the next one will */
unsigned tierce__catalog_format(const struct tierce__catalog *catalog);

/* Sets the id. Errors, unchanged: TIERCE_E_FORMAT (no id), -ENOMEM. */
TIERCE_MUSTUSE int tierce__catalog_set_id(struct tierce__catalog *catalog, const char *id,
                                          char why[256]);

/* Gives an entry the next number of its kind, if the kind has numbers. TIERCE_E_LIMIT: all are used
 * up. */
TIERCE_MUSTUSE int tierce__catalog_assign(struct tierce__catalog *catalog,
                                          enum tierce__registry_kind kind, void *entry,
                                          char why[256]);
/* Assigns a number to each storage, group and instance whose number is missing or a duplicate.
 * TIERCE_E_LIMIT: all numbers are used up. */
TIERCE_MUSTUSE int tierce__catalog_number(struct tierce__catalog *catalog, char why[256]);

/* Reads an entry whose name is new into the catalog (tierce__model_take_json). Errors:
 * TIERCE_E_FORMAT. */
TIERCE_MUSTUSE int tierce__catalog_read(struct tierce__catalog *catalog,
                                        enum tierce__registry_kind kind, struct tierce__text json,
                                        char why[256]);

/* Write the catalog as one JSON text (heap), and read it back into an empty catalog. After reading
 * every entry has a number. */
TIERCE_MUSTUSE int tierce__catalog_print_all(char **out, const struct tierce__catalog *catalog);
TIERCE_MUSTUSE int tierce__catalog_read_all(struct tierce__catalog *catalog, const char *text,
                                            size_t bytes, char why[256]);

#endif
