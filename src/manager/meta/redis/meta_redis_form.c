/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record as the fields of a hash. __tierce__ holds the compact form behind a hash of __uri__;
 * __uri__ has the same locations in KVCM's form. If another program changed __uri__ since, __uri__
 * takes precedence.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/assert.h"
#include "base/bytes.h"
#include "base/json/json_write.h"
#include "base/text/utf8.h"
#include "manager/meta/redis/meta_redis_private.h"
#include "manager/locate/location_json.h"

enum { HASH_BYTES = 8 };

const char *const tierce__redis_fields[TIERCE__REDIS_FIELDS] = {
    [TIERCE__REDIS_FORM] = "__tierce__",  [TIERCE__REDIS_URI] = "__uri__",
    [TIERCE__REDIS_LRU] = "__lru_time__", [TIERCE__REDIS_HITS] = "__hit_count__",
    [TIERCE__REDIS_PREV] = "_prev_key_",  [TIERCE__REDIS_HINT] = "__hint__",
};

/* ---- out ------------------------------------------------------------------------------------ */

/* Returns whether the record can be expressed in KVCM's form. */
static bool has_names(const struct tierce__location *location,
                      const struct tierce__instance *instance,
                      const struct tierce__storage *storage)
{
    for (uint16_t i = 0; i < location->place_count; i++)
        if (location->places[i].spec >= instance->spec_count ||
            (location->places[i].uri == NULL && storage == NULL))
            return false;
    return true;
}

/* The locations in KVCM's form, in the arena; "" if there are none. */
static int print_locations(const char **out, const struct tierce__redis_space *space,
                           const struct tierce__catalog *catalog,
                           const struct tierce__record *record, struct tierce__arena *arena)
{
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    int rc = 0;
    *out = "";
    if (space->instance == NULL || catalog == NULL)
        return 0;
    tierce__json_write_open(&json, NULL, '{');
    for (uint16_t i = 0; rc == 0 && i < record->location_count; i++) {
        const struct tierce__location *location = &record->locations[i];
        const struct tierce__storage *storage =
            tierce__catalog_storage_numbered(catalog, location->storage);
        char id[TIERCE__LOCATION_ID_BYTES + 1] = {0};
        memcpy(id, location->id, TIERCE__LOCATION_ID_BYTES);
        if (has_names(location, space->instance, storage))
            rc = tierce__location_to_json(&json, id, location, TIERCE__LOCATION_SERVING,
                                          space->instance, storage, arena);
    }
    if (rc == 0) {
        tierce__json_write_close(&json, '}');
        TIERCE_DASSERT(line.failed || json.depth == 0);
        *out = line.failed ? NULL : tierce__arena_copy(arena, line.text, line.bytes);
    }
    tierce__line_clear(&line);
    return rc < 0 ? rc : *out == NULL ? -ENOMEM : 0;
}

void tierce__redis_add_record(struct tierce__resp_pipeline *batch,
                              const struct tierce__redis_space *space,
                              const struct tierce__catalog *catalog,
                              const struct tierce__record *record)
{
    TIERCE_DASSERT(batch->rc == 0);
    const char *uri = "";
    int rc = print_locations(&uri, space, catalog, record, batch->arena);
    size_t bytes = HASH_BYTES + tierce__record_size(record);
    char *form = rc == 0 ? tierce__arena_alloc(batch->arena, bytes) : NULL;
    if (form == NULL) {
        batch->rc = rc < 0 ? rc : -ENOMEM;
        return;
    }
    tierce__store_le64(form, XXH3_64bits(uri, strlen(uri)));
    tierce__record_write(record, form + HASH_BYTES);
    tierce__resp_pipeline_add(batch, form, bytes);
    tierce__resp_pipeline_add_text(batch, uri);
    tierce__resp_pipeline_addf(batch, "%" PRId64, record->used_us);
    tierce__resp_pipeline_addf(batch, "%" PRIu32, record->uses);
    if (record->has_parent)
        tierce__resp_pipeline_addf(batch, "%" PRId64, record->parent);
    else
        tierce__resp_pipeline_add(batch, "", 0);
}

/* ---- in ------------------------------------------------------------------------------------- */

static bool read_i64(int64_t *out, const struct tierce__resp_value *value)
{
    if (value->type != TIERCE__RESP_STRING || value->bytes == 0)
        return false;
    char *end;
    errno = 0;
    long long number = strtoll(value->text, &end, 10);
    bool starts = (value->text[0] >= '0' && value->text[0] <= '9') || value->text[0] == '-';
    if (!starts || errno != 0 || end != value->text + value->bytes)
        return false;
    *out = number;
    return true;
}

/* 1: the form is ours, and __uri__ was not changed since. */
static int read_form(struct tierce__record *out, const struct tierce__resp_value *form,
                     const struct tierce__resp_value *uri, struct tierce__arena *arena)
{
    if (form->type != TIERCE__RESP_STRING || form->bytes < HASH_BYTES)
        return 0;
    bool has_uri = uri->type == TIERCE__RESP_STRING;
    if (tierce__load_le64(form->text) !=
        XXH3_64bits(has_uri ? uri->text : "", has_uri ? uri->bytes : 0))
        return 0;
    int rc = tierce__record_read(out, arena, form->text + HASH_BYTES, form->bytes - HASH_BYTES);
    return rc == -ENOMEM ? rc : rc == 0;
}

/* Ids with other bytes could not be written back. */
static bool is_id(const char id[TIERCE__LOCATION_ID_BYTES])
{
    for (unsigned i = 0; i < TIERCE__LOCATION_ID_BYTES; i++)
        if (!(id[i] >= 'a' && id[i] <= 'z') && !(id[i] >= '0' && id[i] <= '9'))
            return false;
    return true;
}

/* The number of the storage that the first text names; 0 if unknown. */
static uint16_t storage_number(const struct tierce__location *location,
                               const struct tierce__catalog *catalog)
{
    size_t bytes = 0;
    const char *name = location->place_count > 0 && location->places[0].uri != NULL
                           ? tierce__uri_storage(location->places[0].uri, &bytes)
                           : NULL;
    size_t count = 0;
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; name != NULL && i < count; i++)
        if (strlen(storages[i].name) == bytes && memcmp(storages[i].name, name, bytes) == 0)
            return storages[i].number;
    return 0;
}

/* Reads the serving locations of a map; KVCM finishes or deletes the others. */
static int read_map(struct tierce__record *out, bool *is_unreadable, struct tierce__text map,
                    const struct tierce__redis_space *space, const struct tierce__catalog *catalog,
                    struct tierce__arena *arena)
{
    size_t count = tierce__json_count(map);
    struct tierce__location *locations = tierce__arena_calloc(arena, count, sizeof(*locations));
    struct tierce__text name, value;
    struct tierce__json each = tierce__json_each(map);
    if (locations == NULL)
        return -ENOMEM;
    out->locations = locations;
    while (tierce__json_next(&each, &name, &value)) {
        struct tierce__location location;
        enum tierce__location_status status;
        char why[256];
        int rc = tierce__location_from_json(&location, &status, value, space->instance, arena, why);
        if (rc == -ENOMEM)
            return rc;
        if (rc < 0 || !is_id(location.id)) {
            *is_unreadable = true;
        } else if (status == TIERCE__LOCATION_SERVING && out->location_count < UINT16_MAX) {
            TIERCE_DASSERT(out->location_count < count);
            location.storage = storage_number(&location, catalog);
            locations[out->location_count++] = location;
        }
    }
    return 0;
}

static int read_uri(struct tierce__record *out, bool *is_unreadable,
                    const struct tierce__redis_space *space, const struct tierce__catalog *catalog,
                    const struct tierce__resp_value *values, struct tierce__arena *arena)
{
    const struct tierce__resp_value *uri = &values[TIERCE__REDIS_URI];
    struct tierce__json_doc doc = {0};
    int rc = tierce__json_parse(&doc, uri->text, uri->bytes, NULL);
    if (rc == -ENOMEM)
        return rc;
    *out = (struct tierce__record){0};
    *is_unreadable = rc < 0 || tierce__json_value_kind(doc.value) != '{' ||
                     !tierce__is_utf8(uri->text, uri->bytes);
    if (!*is_unreadable)
        rc = read_map(out, is_unreadable, doc.value, space, catalog, arena);
    tierce__json_doc_clear(&doc);
    out->has_parent = read_i64(&out->parent, &values[TIERCE__REDIS_PREV]);
    if (read_i64(&out->used_us, &values[TIERCE__REDIS_LRU]))
        out->stored_us = out->used_us;
    return rc == -ENOMEM ? rc : 0;
}

int tierce__redis_read_record(struct tierce__record *out, bool *found, bool *is_unreadable,
                              const struct tierce__redis_space *space,
                              const struct tierce__catalog *catalog,
                              const struct tierce__resp_value *values, struct tierce__arena *arena)
{
    struct tierce__record record;
    int64_t number;
    *found = false;
    *is_unreadable = false;
    int rc = read_form(&record, &values[TIERCE__REDIS_FORM], &values[TIERCE__REDIS_URI], arena);
    if (rc < 0)
        return rc;
    *found = rc == 1;
    if (rc == 0 && values[TIERCE__REDIS_URI].type == TIERCE__RESP_STRING &&
        space->instance != NULL && catalog != NULL) {
        rc = read_uri(&record, is_unreadable, space, catalog, values, arena);
        *found = rc == 0 && record.location_count > 0;
    } else if (rc == 0) {
        *is_unreadable = values[TIERCE__REDIS_FORM].type == TIERCE__RESP_STRING;
    }
    if (!*found)
        return rc < 0 ? rc : 0;
    /* Touches are written beside the form. One without a hint leaves no field. */
    if (read_i64(&number, &values[TIERCE__REDIS_LRU]) && number > record.used_us) {
        record.used_us = number;
        record.hint = 0;
    }
    if (read_i64(&number, &values[TIERCE__REDIS_HINT]) && tierce__hint_is_valid((uint64_t)number))
        record.hint = (uint16_t)number;
    if (read_i64(&number, &values[TIERCE__REDIS_HITS]) && number >= 0)
        record.uses = number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
    *out = record;
    return 0;
}
