/* SPDX-License-Identifier: Apache-2.0 */
#include "router/contents.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "router/standard_hash.h"

#include <errno.h>

#define BLOCK_TOKENS_MAX (1u << 20)
#define STORE_BLOCKS     32u /* whose cache misses are in flight together */

static uint32_t hash_of(const struct tierce__contents *c, uint64_t number)
{
    return (uint32_t)(tierce__mix(number ^ c->seed) >> 32);
}

static uint32_t find(const struct tierce__contents *c, uint64_t hash, uint64_t space)
{
    TIERCE__NUMBERS_FOR_EACH (it, &c->by_hash, hash_of(c, hash)) {
        if (c->blocks[it.number].hash == hash && c->blocks[it.number].space == space)
            return it.number;
    }
    return TIERCE__NUMBER_NONE;
}

const struct tierce__contents_block *tierce__contents_find(const struct tierce__contents *contents,
                                                           uint64_t hash, uint64_t space)
{
    uint32_t number = find(contents, hash, space);
    return number != TIERCE__NUMBER_NONE ? &contents->blocks[number] : NULL;
}

/* ---- changes --------------------------------------------------------------------------------- */

void tierce__contents_flush(struct tierce__contents *contents)
{
    if (contents->change_count > 0 && contents->give != NULL)
        contents->give(contents->arg, contents->changes, contents->change_count);
    contents->change_count = 0;
}

static void note(struct tierce__contents *c, uint64_t high, uint64_t low, uint8_t tier,
                 bool admitted)
{
    if (c->give == NULL)
        return;
    if (c->change_count == TIERCE__CONTENTS_CHANGES)
        tierce__contents_flush(c);
    c->changes[c->change_count++] =
        (struct tierce__directory_change){.key = {high, low}, .tier = tier, .admitted = admitted};
}

/* Media as tiers of the directory. */
static uint8_t wide(uint8_t media)
{
    const uint8_t memory = 1u << TIERCE__KV_GPU | 1u << TIERCE__KV_CPU;
    return (uint8_t)(media | ((media & memory) != 0 ? 1u << TIERCE__CONTENTS_MEMORY : 0));
}

static void note_tiers(struct tierce__contents *c, uint64_t high, uint64_t low, uint8_t tiers,
                       bool admitted)
{
    for (; tiers != 0; tiers &= (uint8_t)(tiers - 1))
        note(c, high, low, (uint8_t)__builtin_ctz(tiers), admitted);
}

static bool is_whole(const struct tierce__contents *c, const struct tierce__contents_block *block)
{
    return block->tokens == 0 || block->tokens >= c->block_size;
}

/* The tiers in which the directory knows a block by its engine's hash. */
static uint8_t engine_tiers(const struct tierce__contents *c,
                            const struct tierce__contents_block *block)
{
    return is_whole(c, block) ? wide(block->media) : 0;
}

/* The same of other blocks of that hash: of other namespaces. */
static uint8_t twin_tiers(const struct tierce__contents *c, uint32_t number)
{
    uint64_t hash = c->blocks[number].hash;
    uint8_t tiers = 0;
    TIERCE__NUMBERS_FOR_EACH (it, &c->by_hash, hash_of(c, hash)) {
        if (it.number != number && c->blocks[it.number].hash == hash)
            tiers |= engine_tiers(c, &c->blocks[it.number]);
    }
    return tiers;
}

/* The same for its standard hash. */
static uint8_t standard_twin_tiers(const struct tierce__contents *c, uint32_t number)
{
    const struct tierce__contents_block *block = &c->blocks[number];
    uint8_t tiers = 0;
    TIERCE__NUMBERS_FOR_EACH (it, &c->by_standard, hash_of(c, block->standard)) {
        const struct tierce__contents_block *other = &c->blocks[it.number];
        if (it.number != number && other->standard == block->standard &&
            other->scope == block->scope)
            tiers |= wide(other->media);
    }
    return tiers;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void leave_out(struct tierce__contents *c)
{
    c->counts.left_out++;
    c->has_lost = true;
}

/* A new block without a medium; TIERCE__NUMBER_NONE: there is no room. */
static uint32_t add(struct tierce__contents *c, uint64_t hash, uint64_t space, uint32_t tokens)
{
    uint32_t number = c->free != 0 ? c->free - 1 : c->used;
    if (c->count >= c->blocks_max || number == TIERCE__NUMBER_NONE - 1 ||
        TIERCE__GROW(c->blocks, c->room, (size_t)number + 1, 256) < 0 ||
        tierce__numbers_reserve(&c->by_hash, (size_t)c->by_hash.count + 1) < 0) {
        leave_out(c);
        return TIERCE__NUMBER_NONE;
    }
    if (c->free != 0)
        c->free = (uint32_t)c->blocks[number].hash;
    else
        c->used++;
    c->blocks[number] =
        (struct tierce__contents_block){.hash = hash, .space = space, .tokens = tokens};
    tierce__numbers_put(&c->by_hash, hash_of(c, hash), number);
    c->count++;
    return number;
}

/* ---- orphans --------------------------------------------------------------------------------- */

/* Hashes, and namespaces too, are those of the publisher: the seed covers both. */
static uint32_t family_hash(const struct tierce__contents *c, uint64_t parent, uint64_t space)
{
    return hash_of(c, tierce__mix(parent ^ c->seed) + space);
}

/* The orphans of a block, or TIERCE__NUMBER_NONE. */
static uint32_t family_of(const struct tierce__contents *c, uint64_t parent, uint64_t space)
{
    TIERCE__NUMBERS_FOR_EACH (it, &c->by_parent, family_hash(c, parent, space)) {
        if (c->families[it.number].parent == parent && c->families[it.number].space == space)
            return it.number;
    }
    return TIERCE__NUMBER_NONE;
}

/* A family without orphans; TIERCE__NUMBER_NONE: there is no memory. */
static uint32_t add_family(struct tierce__contents *c, uint64_t parent, uint64_t space)
{
    uint32_t number = c->family_free != 0 ? c->family_free - 1 : c->family_used;
    if (TIERCE__GROW(c->families, c->family_room, (size_t)number + 1, 256) < 0 ||
        tierce__numbers_reserve(&c->by_parent, (size_t)c->by_parent.count + 1) < 0)
        return TIERCE__NUMBER_NONE;
    if (c->family_free != 0)
        c->family_free = (uint32_t)c->families[number].parent;
    else
        c->family_used++;
    c->families[number] = (struct tierce__contents_family){.parent = parent, .space = space};
    tierce__numbers_put(&c->by_parent, family_hash(c, parent, space), number);
    return number;
}

static void forget_family(struct tierce__contents *c, uint32_t number)
{
    struct tierce__contents_family *family = &c->families[number];
    TIERCE_ASSERT(family->first == 0);
    tierce__numbers_erase(&c->by_parent, family_hash(c, family->parent, family->space), number);
    *family = (struct tierce__contents_family){.parent = c->family_free};
    c->family_free = number + 1;
}

static void forget_orphan(struct tierce__contents *c, struct tierce__contents_block *block)
{
    TIERCE_ASSERT(block->scope == 0);
    if (block->standard == 0)
        return;
    uint32_t number = (uint32_t)block->standard - 1;
    struct tierce__contents_orphan *orphan = &c->orphans[number];
    struct tierce__contents_family *family = &c->families[orphan->family];
    if (orphan->next != 0)
        c->orphans[orphan->next - 1].previous = orphan->previous;
    if (orphan->previous != 0)
        c->orphans[orphan->previous - 1].next = orphan->next;
    else
        family->first = orphan->next;
    if (family->first == 0)
        forget_family(c, orphan->family);
    *orphan = (struct tierce__contents_orphan){.next = c->orphan_free};
    c->orphan_free = number + 1;
    block->standard = 0;
}

/* Notes `orphan`, of which scope, local hash and block are set. */
static void note_orphan(struct tierce__contents *c, const struct tierce__contents_orphan *orphan,
                        uint64_t parent)
{
    uint64_t space = c->blocks[orphan->block].space;
    uint32_t number = c->orphan_free != 0 ? c->orphan_free - 1 : c->orphan_used;
    if (TIERCE__GROW(c->orphans, c->orphan_room, (size_t)number + 1, 256) < 0) {
        leave_out(c);
        return;
    }
    uint32_t family = family_of(c, parent, space);
    if (family == TIERCE__NUMBER_NONE)
        family = add_family(c, parent, space);
    if (family == TIERCE__NUMBER_NONE) {
        leave_out(c);
        return;
    }
    if (c->orphan_free != 0)
        c->orphan_free = c->orphans[number].next;
    else
        c->orphan_used++;
    uint32_t next = c->families[family].first;
    c->orphans[number] = *orphan;
    c->orphans[number].family = family;
    c->orphans[number].next = next;
    if (next != 0)
        c->orphans[next - 1].previous = number + 1;
    c->families[family].first = number + 1;
    c->blocks[orphan->block].standard = (uint64_t)number + 1;
}

/* Returns one orphan of a block, or NULL if it has none. */
static const struct tierce__contents_orphan *orphan_of(const struct tierce__contents *c,
                                                       const struct tierce__contents_block *parent)
{
    uint32_t family = family_of(c, parent->hash, parent->space);
    return family != TIERCE__NUMBER_NONE ? &c->orphans[c->families[family].first - 1] : NULL;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The block's tokens are known from now on. False: there is no memory. */
static bool name_one(struct tierce__contents *c, uint32_t number, uint64_t scope, uint64_t standard)
{
    struct tierce__contents_block *block = &c->blocks[number];
    if (tierce__numbers_reserve(&c->by_standard, (size_t)c->by_standard.count + 1) < 0) {
        leave_out(c);
        return false;
    }
    forget_orphan(c, block);
    block->scope = scope;
    block->standard = standard;
    tierce__numbers_put(&c->by_standard, hash_of(c, standard), number);
    note_tiers(c, scope, standard, wide(block->media), true);
    return true;
}

/* Names a block and its orphaned descendants: blocks may arrive before their parents. */
static void name(struct tierce__contents *c, uint32_t number, uint64_t scope, uint64_t standard)
{
    uint32_t due = 0;
    if (c->blocks[number].scope != 0 || scope == 0 || !name_one(c, number, scope, standard))
        return;
    const struct tierce__contents_orphan *orphan;
    for (;;) {
        const struct tierce__contents_block *block = &c->blocks[number];
        if ((orphan = orphan_of(c, block)) != NULL) {
            uint32_t child = orphan->block;
            if (orphan->scope != scope) { /* a short last block, which no query by tokens finds */
                forget_orphan(c, &c->blocks[child]);
                continue;
            }
            if (TIERCE__GROW(c->named, c->named_room, (size_t)due + 1, 64) < 0) {
                leave_out(c);
                return;
            }
            if (!name_one(c, child, scope, tierce__standard_next(block->standard, orphan->local)))
                return;
            c->named[due++] = child;
        } else if (due > 0) {
            number = c->named[--due];
        } else {
            return;
        }
    }
}

/* ---- media ----------------------------------------------------------------------------------- */

static void admit(struct tierce__contents *c, uint32_t number, enum tierce__kv_medium medium)
{
    struct tierce__contents_block *block = &c->blocks[number];
    uint8_t before = wide(block->media);
    block->media |= (uint8_t)(1u << medium);
    uint8_t tiers = (uint8_t)(wide(block->media) & ~before);
    if (is_whole(c, block))
        note_tiers(c, tierce__engine_scope(c->model), block->hash, tiers, true);
    if (block->scope != 0)
        note_tiers(c, block->scope, block->standard, tiers, true);
}

static void evict(struct tierce__contents *c, uint64_t hash, uint64_t space,
                  enum tierce__kv_medium medium)
{
    uint32_t number = find(c, hash, space);
    if (number == TIERCE__NUMBER_NONE)
        return;
    struct tierce__contents_block *block = &c->blocks[number];
    uint8_t before = wide(block->media);
    block->media &= (uint8_t) ~(1u << medium);
    uint8_t tiers = (uint8_t)(before & ~wide(block->media));
    if (tiers == 0)
        return;
    if (is_whole(c, block))
        note_tiers(c, tierce__engine_scope(c->model), hash,
                   (uint8_t)(tiers & ~twin_tiers(c, number)), false);
    if (block->scope != 0)
        note_tiers(c, block->scope, block->standard,
                   (uint8_t)(tiers & ~standard_twin_tiers(c, number)), false);
    if (block->media != 0)
        return;
    if (block->scope != 0)
        tierce__numbers_erase(&c->by_standard, hash_of(c, block->standard), number);
    else
        forget_orphan(c, block);
    tierce__numbers_erase(&c->by_hash, hash_of(c, hash), number);
    block->hash = c->free;
    c->free = number + 1;
    TIERCE_ASSERT(c->count > 0);
    c->count--;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The chain that an event's blocks continue. */
struct chain {
    uint64_t scope; /* 0: the blocks are known by their hashes only */
    uint64_t before;
    bool is_first;
    bool is_orphan; /* the tokens before are unknown; `parent` is the block before */
    uint64_t parent;
};

static struct chain chain_of(struct tierce__contents *c, const struct tierce__kv_event *event)
{
    struct chain chain = {.is_first = !event->has_parent};
    uint64_t tokens = (uint64_t)event->hash_count * event->block_size;
    if (event->is_keyed || event->block_size == 0 || event->block_size > BLOCK_TOKENS_MAX ||
        tokens != event->token_count ||
        TIERCE__GROW(c->tokens, c->token_room, event->block_size, 64) < 0)
        return chain;
    chain.scope = tierce__standard_scope(c->model, event->lora, event->block_size);
    if (event->has_parent) {
        const struct tierce__contents_block *parent =
            tierce__contents_find(c, event->parent, event->space);
        chain.is_orphan = parent == NULL || parent->scope == 0;
        chain.before = chain.is_orphan ? 0 : parent->standard;
        chain.parent = event->parent;
        /* The last block of a prompt may be shorter than its parent: no query by tokens finds it,
         * because all blocks of a query have the same size. */
        if (!chain.is_orphan && parent->scope != chain.scope)
            chain.scope = 0;
    }
    return chain;
}

/* A block of an event. */
struct place {
    uint64_t hash, parent;
    uint64_t standard; /* of an orphan: the local hash */
};

/* Moves past the chain's next block, whose tokens come next. */
static void advance(struct tierce__contents *c, struct chain *chain, struct tierce__msgpack *tokens,
                    uint32_t count, struct place *place)
{
    size_t taken = tierce__msgpack_u32s(tokens, c->tokens, count);
    TIERCE_ASSERT(taken == count); /* the event was checked */
    bool has_before = !chain->is_first && !chain->is_orphan;
    chain->before = tierce__standard_hash(has_before ? &chain->before : NULL, c->tokens, count);
    chain->is_first = false;
    place->standard = chain->before;
    place->parent = chain->parent;
    chain->parent = place->hash;
}

/* A longer block has come: those that were taken for whole ones were the last ones of prompts. */
static void raise_block_size(struct tierce__contents *c, uint32_t block_size)
{
    uint64_t scope = tierce__engine_scope(c->model);
    uint32_t before = c->block_size;
    c->block_size = block_size;
    for (uint32_t i = 0; before > 0 && i < c->used; i++) {
        const struct tierce__contents_block *block = &c->blocks[i];
        if (block->media != 0 && block->tokens >= before && !is_whole(c, block))
            note_tiers(c, scope, block->hash, (uint8_t)(wide(block->media) & ~twin_tiers(c, i)),
                       false);
    }
}

/* Brings the cells of both tables into the processor's cache: their misses are in flight together,
 * while the next tokens are hashed. */
static void prefetch(const struct tierce__contents *c, uint64_t hash, const struct chain *chain)
{
    if (c->by_hash.cells != NULL)
        tierce__numbers_prefetch(&c->by_hash, hash_of(c, hash));
    if (chain->scope != 0 && !chain->is_orphan && c->by_standard.cells != NULL)
        tierce__numbers_prefetch(&c->by_standard, hash_of(c, chain->before));
}

/* A block whose own tokens are known: its parent may be known by now. */
static void name_orphan(struct tierce__contents *c, uint32_t number, uint64_t scope,
                        const struct place *place)
{
    struct tierce__contents_block *block = &c->blocks[number];
    if (block->scope != 0)
        return;
    const struct tierce__contents_block *parent =
        tierce__contents_find(c, place->parent, block->space);
    forget_orphan(c, block);
    if (parent != NULL && parent->scope == scope)
        name(c, number, scope, tierce__standard_next(parent->standard, place->standard));
    else if (parent == NULL || parent->scope == 0)
        note_orphan(c,
                    &(struct tierce__contents_orphan){
                        .scope = scope, .local = place->standard, .block = number},
                    place->parent);
}

static void store_block(struct tierce__contents *c, const struct tierce__kv_event *event,
                        const struct chain *chain, const struct place *place)
{
    uint32_t number = find(c, place->hash, event->space);
    if (number == TIERCE__NUMBER_NONE)
        number = add(c, place->hash, event->space, event->block_size);
    if (number == TIERCE__NUMBER_NONE)
        return;
    if (chain->scope != 0 && chain->is_orphan)
        name_orphan(c, number, chain->scope, place);
    else
        name(c, number, chain->scope, place->standard);
    admit(c, number, event->medium);
}

static void store(struct tierce__contents *c, const struct tierce__kv_event *event)
{
    struct tierce__msgpack hashes = event->hashes, tokens = event->tokens;
    struct chain chain = chain_of(c, event);
    struct place places[STORE_BLOCKS] = {0};
    c->lacks_tokens |= event->hash_count > 0 && event->token_count == 0;
    if (event->block_size > c->block_size)
        raise_block_size(c, event->block_size);
    for (uint32_t left = event->hash_count; left > 0;) {
        uint32_t count = left < STORE_BLOCKS ? left : STORE_BLOCKS;
        for (uint32_t i = 0; i < count; i++) {
            places[i].hash = 0;
            (void)tierce__kv_take_hash(&hashes, &places[i].hash);
            if (chain.scope != 0)
                advance(c, &chain, &tokens, event->block_size, &places[i]);
            prefetch(c, places[i].hash, &chain);
        }
        for (uint32_t i = 0; i < count; i++)
            store_block(c, event, &chain, &places[i]);
        left -= count;
    }
}

static void remove_all(struct tierce__contents *c, const struct tierce__kv_event *event)
{
    struct tierce__msgpack hashes = event->hashes;
    for (uint32_t i = 0; i < event->hash_count; i++) {
        uint64_t hash = 0;
        (void)tierce__kv_take_hash(&hashes, &hash);
        evict(c, hash, event->space, event->medium);
    }
}

/* AllBlocksCleared. Blocks left out and invalid events before it no longer make the publisher
 * inexact. */
static void remove_everything(struct tierce__contents *c)
{
    tierce__contents_flush(c);
    tierce__contents_clear(c);
    if (c->give != NULL)
        c->give_none(c->arg);
    c->has_cleared = true;
    c->has_lost = false;
}

/* The first group of layers that attends to all tokens is the one that counts: its blocks say how
 * long a prefix is. Removals name the group only. */
static bool counts(struct tierce__contents *c, const struct tierce__kv_event *event)
{
    if (event->medium == TIERCE__KV_ELSEWHERE || event->is_partial || event->is_other_shard)
        return false;
    if (event->type == TIERCE__KV_STORED && !c->has_group) {
        c->has_group = true;
        c->group = event->group;
    }
    return !c->has_group || c->group == event->group;
}

bool tierce__contents_apply(struct tierce__contents *contents, const void *payload, size_t bytes)
{
    struct tierce__kv_batch batch;
    struct tierce__kv_event event;
    if (!tierce__kv_batch_open(&batch, payload, bytes))
        return false;
    while (tierce__kv_batch_next(&batch, &event)) {
        bool is_block = event.type == TIERCE__KV_STORED || event.type == TIERCE__KV_REMOVED;
        contents->counts.unknown += event.type == TIERCE__KV_UNKNOWN;
        contents->counts.invalid += event.type == TIERCE__KV_INVALID;
        contents->has_lost |= event.type == TIERCE__KV_INVALID;
        contents->counts.events += is_block || event.type == TIERCE__KV_CLEARED;
        if (event.type == TIERCE__KV_CLEARED)
            remove_everything(contents);
        else if (is_block && !counts(contents, &event))
            contents->counts.ignored++;
        else if (event.type == TIERCE__KV_STORED)
            store(contents, &event);
        else if (event.type == TIERCE__KV_REMOVED)
            remove_all(contents, &event);
    }
    tierce__contents_flush(contents);
    return true;
}

/* ---- all ------------------------------------------------------------------------------------- */

void tierce__contents_clear(struct tierce__contents *contents)
{
    tierce__free(contents->blocks);
    contents->blocks = NULL;
    tierce__numbers_fini(&contents->by_hash);
    tierce__numbers_fini(&contents->by_standard);
    tierce__numbers_fini(&contents->by_parent);
    tierce__free(contents->orphans);
    contents->orphans = NULL;
    contents->orphan_room = contents->orphan_used = contents->orphan_free = 0;
    tierce__free(contents->families);
    contents->families = NULL;
    contents->family_room = contents->family_used = contents->family_free = 0;
    contents->room = contents->used = contents->free = 0;
    contents->count = 0;
    contents->change_count = 0;
    contents->has_group = false;
    contents->block_size = 0; /* another life may have another one */
    contents->counts.left_out = 0;
}

bool tierce__contents_give_part(struct tierce__contents *contents, uint32_t *from, uint32_t entries)
{
    uint64_t scope = tierce__engine_scope(contents->model);
    for (; *from < contents->used && entries > 0; ++*from, entries--) {
        const struct tierce__contents_block *block = &contents->blocks[*from];
        note_tiers(contents, scope, block->hash, engine_tiers(contents, block), true);
        if (block->scope != 0)
            note_tiers(contents, block->scope, block->standard, wide(block->media), true);
    }
    tierce__contents_flush(contents);
    return *from < contents->used;
}

void tierce__contents_fini(struct tierce__contents *contents)
{
    tierce__contents_clear(contents);
    tierce__free(contents->tokens);
    tierce__free(contents->named);
    *contents = (struct tierce__contents){0};
}
