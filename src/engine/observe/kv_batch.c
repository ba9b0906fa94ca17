/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/kv_batch.h"

#include <stdlib.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "engine/objects/object_form.h"
#include "proto/msgpack/msgpack_write.h"

static uint64_t big_endian(const uint8_t bytes[8])
{
    uint64_t n = 0;
    for (unsigned i = 0; i < 8; i++)
        n = n << 8 | bytes[i];
    return n;
}

/* A hash of 128 bits is followed by zeros. */
uint64_t tierce__kv_hash(const uint8_t hash[TIERCE_HASH_BYTES])
{
    static const uint8_t zeros[16];
    return big_endian(hash + (memcmp(hash + 16, zeros, sizeof(zeros)) == 0 ? 8 : 24));
}

/* NULL: the tier's chunks are not published. Readers know two media of a host: coded memory has
 * that of the slower one. */
static const char *medium_of(const char *tier)
{
    bool is_slower = strcmp(tier, "disk") == 0 || strcmp(tier, "coded_memory") == 0;
    return strcmp(tier, "memory") == 0 ? "CPU" : is_slower ? "DISK" : NULL;
}

bool tierce__kv_is_published(const struct tierce_event *e)
{
    return medium_of(e->tier) != NULL &&
           (e->ns_text == NULL || !tierce__object_is_space(e->ns_text));
}

static size_t hex_digits(const char *text)
{
    return strspn(text, "0123456789abcdefABCDEF");
}

bool tierce__kv_namespaces_are_valid(const char *list)
{
    enum { DIGITS_MIN = 8, DIGITS_MAX = 2 * TIERCE_HASH_BYTES };
    for (;; list++) {
        size_t digits = hex_digits(list);
        list += digits;
        if (digits < DIGITS_MIN || digits > DIGITS_MAX || (*list != ',' && *list != '\0'))
            return false;
        if (*list == '\0')
            return true;
    }
}

static bool is_in_list(const char *list, const uint8_t digest[TIERCE_HASH_BYTES])
{
    char text[2 * TIERCE_HASH_BYTES + 1];
    tierce__hex_encode(text, digest, TIERCE_HASH_BYTES);
    for (size_t digits; (digits = hex_digits(list)) > 0;
         list += list[digits] == ',' ? digits + 1 : digits) {
        if (strncasecmp(text, list, digits) == 0)
            return true;
    }
    return false;
}

/* A digest stays at its address while the engine is open. */
static bool is_shown(struct tierce__kv_form *form, const struct tierce_event *e)
{
    if (form->namespaces == NULL || form->namespaces[0] == '\0')
        return true;
    if (e->ns_digest != form->ns_digest) {
        form->ns_digest = e->ns_digest;
        form->is_shown = is_in_list(form->namespaces, e->ns_digest);
    }
    return form->is_shown;
}

void tierce__kv_form_fini(struct tierce__kv_form *form)
{
    tierce__free(form->found);
    form->found = NULL;
    form->found_room = 0;
}

/* Reads the text of a namespace, in which no value contains a newline. */
static void read_namespace(struct tierce__kv_form *form, const char *ns_text)
{
    static const char tokens[] = "\nblock_tokens=", group[] = "\ngroup=";
    const char *at = strstr(ns_text, tokens);
    form->ns_text = ns_text;
    form->block_tokens = at != NULL ? (uint32_t)strtoul(at + strlen(tokens), NULL, 10) : 0;
    at = strstr(ns_text, group);
    form->has_prefixes = at == NULL || strncmp(at + strlen(group), "full\n", 5) == 0;
}

/* The tokens of a chunk; 0: its namespace is not known. */
static uint32_t tokens_of(struct tierce__kv_form *form, const struct tierce_event *e)
{
    if (e->ns_text == NULL)
        return 0;
    if (e->ns_text != form->ns_text)
        read_namespace(form, e->ns_text);
    return e->block_count * form->block_tokens;
}

static bool is_of_one_rank(const struct tierce_shard *s)
{
    return s->tp_rank == 0 && s->tp_size == 1 && s->pp_rank == 0 && s->pp_size == 1;
}

static bool has_same_owner(const struct tierce_event *a, const struct tierce_event *b)
{
    return strcmp(a->tier, b->tier) == 0 &&
           memcmp(a->ns_digest, b->ns_digest, TIERCE_HASH_BYTES) == 0 &&
           a->shard.tp_rank == b->shard.tp_rank && a->shard.tp_size == b->shard.tp_size &&
           a->shard.pp_rank == b->shard.pp_rank && a->shard.pp_size == b->shard.pp_size;
}

/* Whether `next` belongs to the same event as `last`. */
static bool continues(const struct tierce_event *last, const struct tierce_event *next)
{
    if (last->kind != next->kind || !has_same_owner(last, next))
        return false;
    return next->kind == TIERCE_EVENT_EVICT ||
           (next->has_parent && next->block_count == last->block_count &&
            memcmp(next->parent, last->hash, TIERCE_HASH_BYTES) == 0);
}

/* Finds the tokens of the leading events of a run: of all that are returned, or of none. */
static size_t find_tokens(struct tierce__kv_form *form, const struct tierce_event *events,
                          size_t count, bool *has_tokens)
{
    uint32_t each = tokens_of(form, events);
    *has_tokens = false;
    if (form->tokens == NULL || each == 0 || !form->has_prefixes ||
        TIERCE__GROW(form->found, form->found_room, count * each, 1024) < 0)
        return count;
    for (size_t i = 0; i < count; i++) {
        bool is_found =
            tierce__kv_tokens_get(form->tokens, events[i].hash, form->found + i * each, each);
        if (i == 0)
            *has_tokens = is_found;
        else if (is_found != *has_tokens)
            return i;
    }
    return count;
}

static void put_tokens(struct tierce__line *out, const struct tierce__kv_form *form, size_t count)
{
    size_t place = tierce__msgpack_begin_array(out);
    for (size_t i = 0; i < count; i++)
        tierce__msgpack_put_uint(out, form->found[i]);
    tierce__msgpack_end_array(out, place, (uint32_t)count);
}

static void put_hashes(struct tierce__line *out, const struct tierce_event *events, size_t count)
{
    size_t place = tierce__msgpack_begin_array(out);
    for (size_t i = 0; i < count; i++)
        tierce__msgpack_put_uint(out, tierce__kv_hash(events[i].hash));
    tierce__msgpack_end_array(out, place, (uint32_t)count);
}

/* The name of a field, which arrays lack. */
static void put_name(struct tierce__line *out, const struct tierce__kv_form *form, const char *name)
{
    if (!form->arrays)
        tierce__msgpack_put_text(out, name);
}

static void put_owner(struct tierce__line *out, const struct tierce__kv_form *form,
                      const struct tierce_event *e)
{
    if (form->arrays)
        return;
    tierce__msgpack_put_text(out, "namespace");
    tierce__msgpack_put_uint(out, big_endian(e->ns_digest));
    if (is_of_one_rank(&e->shard))
        return;
    tierce__msgpack_put_text(out, "shard");
    tierce__msgpack_put_array(out, 4);
    tierce__msgpack_put_uint(out, e->shard.tp_rank);
    tierce__msgpack_put_uint(out, e->shard.tp_size);
    tierce__msgpack_put_uint(out, e->shard.pp_rank);
    tierce__msgpack_put_uint(out, e->shard.pp_size);
}

/* The head of an event with so many fields besides its type, as vLLM has them, and its type. */
static void begin_event(struct tierce__line *out, const struct tierce__kv_form *form,
                        const char *type, unsigned fields, const struct tierce_event *e)
{
    if (form->arrays) {
        tierce__msgpack_put_array(out, 1 + fields);
    } else {
        unsigned owner = e == NULL ? 0 : is_of_one_rank(&e->shard) ? 1 : 2;
        tierce__msgpack_put_map(out, 1 + fields + owner);
        tierce__msgpack_put_text(out, "type");
    }
    tierce__msgpack_put_text(out, type);
}

/* The leading events of a run, as one. Returns how many. */
static size_t put_stored(struct tierce__line *out, struct tierce__kv_form *form,
                         const struct tierce_event *events, size_t count)
{
    const struct tierce_event *first = &events[0];
    uint32_t each = tokens_of(form, first);
    bool has_tokens;
    count = find_tokens(form, events, count, &has_tokens);
    begin_event(out, form, "BlockStored", 7, first);
    put_name(out, form, "block_hashes");
    put_hashes(out, events, count);
    put_name(out, form, "parent_block_hash");
    if (first->has_parent)
        tierce__msgpack_put_uint(out, tierce__kv_hash(first->parent));
    else
        tierce__msgpack_put_nil(out);
    put_name(out, form, "token_ids");
    put_tokens(out, form, has_tokens ? count * each : 0);
    put_name(out, form, "block_size");
    tierce__msgpack_put_uint(out, each);
    put_name(out, form, "lora_id");
    tierce__msgpack_put_nil(out);
    put_name(out, form, "medium");
    tierce__msgpack_put_text(out, medium_of(first->tier));
    put_name(out, form, "lora_name");
    tierce__msgpack_put_nil(out);
    put_owner(out, form, first);
    return count;
}

static void put_removed(struct tierce__line *out, const struct tierce__kv_form *form,
                        const struct tierce_event *events, size_t count)
{
    begin_event(out, form, "BlockRemoved", 2, &events[0]);
    put_name(out, form, "block_hashes");
    put_hashes(out, events, count);
    put_name(out, form, "medium");
    tierce__msgpack_put_text(out, medium_of(events[0].tier));
    put_owner(out, form, &events[0]);
}

/* The head of a batch. Returns the place of the number of its events. */
static size_t begin_batch(struct tierce__line *out)
{
    tierce__msgpack_put_array(out, 3);
    tierce__msgpack_put_float(out, (double)tierce__wall_us() / 1e6);
    return tierce__msgpack_begin_array(out);
}

static void end_batch(struct tierce__line *out, const struct tierce__kv_form *form, size_t place,
                      uint32_t events)
{
    tierce__msgpack_end_array(out, place, events);
    tierce__msgpack_put_uint(out, form->dp_rank);
}

/* How many chunks like that of `e` fit into a batch that has so many bytes. */
static size_t room_for(struct tierce__kv_form *form, const struct tierce_event *e, size_t bytes)
{
    enum { EVENT_BYTES = 192, HASH_BYTES = 9, TOKEN_BYTES = 5 }; /* at most */
    size_t each = HASH_BYTES;
    if (e->kind == TIERCE_EVENT_ADMIT && form->tokens != NULL)
        each += (size_t)tokens_of(form, e) * TOKEN_BYTES;
    return bytes + EVENT_BYTES < TIERCE__KV_BATCH_BYTES
               ? (TIERCE__KV_BATCH_BYTES - bytes - EVENT_BYTES) / each
               : 0;
}

size_t tierce__kv_batch_write(struct tierce__line *out, struct tierce__kv_form *form,
                              const struct tierce_event *events, size_t *count, uint64_t after)
{
    size_t start = out->bytes, place = begin_batch(out), hashes = 0, i, n;
    uint32_t written = 0;
    for (i = 0; i < *count; i += n) {
        n = 1;
        if (!tierce__kv_is_published(&events[i]) || !is_shown(form, &events[i]) ||
            (after > 0 && events[i].sequence <= after))
            continue;
        size_t room = room_for(form, &events[i], out->bytes - start);
        if (room == 0 && written > 0)
            break;
        while (n < room && i + n < *count && continues(&events[i + n - 1], &events[i + n]))
            n++;
        if (events[i].kind == TIERCE_EVENT_ADMIT)
            n = put_stored(out, form, &events[i], n);
        else
            put_removed(out, form, &events[i], n);
        written++;
        hashes += n;
    }
    *count = i;
    end_batch(out, form, place, written);
    if (written == 0 && !out->failed)
        out->bytes = start;
    return hashes;
}

void tierce__kv_batch_clear(struct tierce__line *out, const struct tierce__kv_form *form)
{
    size_t place = begin_batch(out);
    begin_event(out, form, "AllBlocksCleared", 0, NULL);
    end_batch(out, form, place, 1);
}
