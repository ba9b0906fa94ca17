/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_CONTENTS_H
#define TIERCE_ROUTER_CONTENTS_H

#include "base/map.h"
#include "directory/directory.h"
#include "router/kv_event.h"

/*
 * The blocks that one publisher holds, by medium, from its events, and what of it a directory has
 * to know. A block is known by the engine's hash, and, if its tokens and those of all blocks before
 * it are known, by its standard hash. Storing a known block and removing an unknown one change
 * nothing. The directory does not know the engine's hash of a block that is shorter than others, so
 * that each of its keys stands for as many tokens.
 *
 * Thread: one at a time.
 */

#define TIERCE__CONTENTS_CHANGES 1024u

/* Tiers in the directory: each medium's number, and this one for blocks in GPU or CPU memory. */
#define TIERCE__CONTENTS_MEMORY 3u

struct tierce__contents_block {
    uint64_t hash, space;     /* together unique */
    uint64_t scope, standard; /* standard_hash.h; scope 0: not known by tokens, and `standard` is
                                 the number of its orphan + 1, or 0 */
    uint32_t tokens;          /* 0: unknown */
    uint8_t media;            /* bits; 0: the entry is free */
};

/* A block whose own tokens are known, and not those before it: it came before its parent, as in a
 * snapshot, or the parent is not held. It is known by tokens once its parent is. */
struct tierce__contents_orphan {
    uint64_t scope, local; /* local hash; scope 0: the entry is free, and `next` is the next one */
    uint32_t block;
    uint32_t family;         /* of its parent */
    uint32_t next, previous; /* orphans of the family + 1; 0: none */
};

/* The orphans of one parent. They are linked, because one parent may have most of the blocks, such
 * as the end of a system prompt: a hash table would keep them in one run of cells. */
struct tierce__contents_family {
    uint64_t parent, space; /* together unique */
    uint32_t first;         /* orphan + 1; 0: the entry is free, and `parent` is the next one */
};

struct tierce__contents_counts {
    uint64_t events;   /* of the three types */
    uint64_t unknown;  /* events of other types */
    uint64_t invalid;  /* events that lack a field */
    uint64_t ignored;  /* events of other media, groups of layers or ranks */
    uint64_t left_out; /* blocks beyond blocks_max, or without memory */
};

struct tierce__contents {
    const char *model; /* [borrow] */
    uint64_t seed;     /* of the tables */
    uint64_t blocks_max;
    /* Receives the changes of the directory, in their order; NULL: they are not collected. */
    void (*give)(void *arg, const struct tierce__directory_change *changes, size_t count);
    /* The publisher holds nothing, after the changes that were given. Used with `give`. */
    void (*give_none)(void *arg);
    void *arg;

    struct tierce__contents_block *blocks;
    uint32_t room, used; /* entries from `used` on were never used */
    uint32_t free;       /* the entry freed last + 1; its `hash` is the next; 0: none */
    uint64_t count;
    struct tierce__numbers by_hash, by_standard;
    struct tierce__contents_orphan *orphans;
    uint32_t orphan_room, orphan_used, orphan_free; /* as of `blocks` */
    struct tierce__contents_family *families;
    uint32_t family_room, family_used, family_free; /* as of `blocks` */
    struct tierce__numbers by_parent;               /* of families */
    uint32_t *named; /* blocks whose orphans are due; used while a block is named */
    uint32_t named_room;
    bool has_group;
    uint32_t group;      /* of layers, that counts */
    uint32_t block_size; /* of a whole block: the last one of a prompt may be shorter */
    uint32_t *tokens;    /* of a block */
    uint32_t token_room;
    bool lacks_tokens; /* a block came without tokens: queries by tokens do not find it */
    struct tierce__contents_counts counts;
    /* Set by batches; the owner clears them: */
    bool has_cleared; /* all blocks were cleared */
    bool has_lost;    /* since then, an event was invalid or a block was left out */
    struct tierce__directory_change changes[TIERCE__CONTENTS_CHANGES];
    size_t change_count;
};

/* `model`, seed, blocks_max, give and arg are set. */
void tierce__contents_fini(struct tierce__contents *contents);

/* Applies a batch. False: it is none, and nothing has changed. */
bool tierce__contents_apply(struct tierce__contents *contents, const void *payload, size_t bytes);

/* Gives the collected changes away. */
void tierce__contents_flush(struct tierce__contents *contents);

/* Forgets all blocks and frees their memory, without changes for the directory. */
void tierce__contents_clear(struct tierce__contents *contents);

/* Gives an admission for each block and medium of the next `entries` entries from *from on, which
 * moves past them. False: there are no more. */
bool tierce__contents_give_part(struct tierce__contents *contents, uint32_t *from,
                                uint32_t entries);

/* A block by the engine's hash and the namespace, or NULL. */
const struct tierce__contents_block *tierce__contents_find(const struct tierce__contents *contents,
                                                           uint64_t hash, uint64_t space);

#endif
