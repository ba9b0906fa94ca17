/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_DIRECTORY_PRIVATE_H
#define TIERCE_DIRECTORY_PRIVATE_H

#include <stdatomic.h>

#include "base/map.h"
#include "base/threads/lock.h"
#include "directory/directory.h"

/*
 * Keys lie in shards, by their first bits. A shard has a table of numbers over its entries. An
 * entry has its key and a word for the holders: the only one, or the number of a list.
 *
 *     holder:  worker's slot << 16 | epoch << 8 | tiers, a bit for each, not 0
 *     list:    (its number + 1) << 8
 *     free:    0; the key's first word is the next free entry, plus 1
 *
 * A worker's holdings are valid in its present epoch, and, while it sends its contents, in earlier
 * ones: that of its last complete contents, and those that it began since and did not end. So a
 * worker leaves, or replaces all of its contents, by a change of its view, and `clean` removes what
 * is invalid, shard by shard. The 256 epochs of a worker are used again only after a full round of
 * `clean`, which also moves the holdings of several valid epochs to the last but one.
 *
 * An upper bound of memory for a key with one holder: 20 bytes of entry and 19.2 of table, which is
 * between five twelfths and five sixths full, so below 40; each further holder costs 4 to 8 bytes.
 */

#define TIERCE__DIRECTORY_SHARDS  64u
#define TIERCE__DIRECTORY_SEGMENT 256u /* entries that are allocated together */
#define TIERCE__DIRECTORY_EPOCHS  256u

struct tierce__directory_entry {
    uint32_t key[4];
    uint32_t holders;
};

_Static_assert(sizeof(struct tierce__directory_entry) == 20, "memory for each key");

struct tierce__directory_list {
    uint32_t room, count;
    uint32_t holders[];
};

struct tierce__directory_shard {
    struct tierce__lock lock; /* DIRECTORY_SHARD: all below */
    struct tierce__numbers table;
    struct tierce__directory_entry **segments;
    uint32_t segment_count, segment_room;
    uint32_t fresh;     /* entries from here on were never used */
    uint32_t free_link; /* the entry that was freed last, plus 1; 0: none */
    uintptr_t *lists;   /* struct tierce__directory_list *, or, free, a link as list_link */
    uint32_t list_count, list_room;
    uintptr_t list_link; /* the list that was freed last, times 2, plus 1; LIST_END: none */
    uint64_t holders;
} __attribute__((aligned(64)));

/* Of a worker, for lookups, without a lock. */
#define TIERCE__DIRECTORY_ALIVE 1u

struct tierce__directory_slot {
    _Atomic uint32_t view; /* tierce__directory_view; changes under DIRECTORY */
    _Atomic uint32_t load;
    _Atomic uint64_t group;                        /* its group's id */
    _Atomic uint64_t host;                         /* hash of its host; 0: unknown */
    _Atomic uint32_t zone[TIERCE__ZONE_PARTS_MAX]; /* tierce__zone_parse */
    _Atomic uint64_t session; /* 0: nobody; then the rest changes under DIRECTORY */
    _Atomic uint64_t seen_ns;
    _Atomic int64_t keys;                                   /* in the present epoch */
    _Atomic int64_t tier_keys[TIERCE__DIRECTORY_TIERS_MAX]; /* the same, in each tier */
    _Atomic int64_t words;                                  /* in the table, of all epochs */
    /* Its contents are complete, and none were left out since. Changes under DIRECTORY_WORKER. */
    _Atomic bool is_whole;

    struct tierce__lock lock; /* DIRECTORY_WORKER: below */
    bool is_sending, is_synced;
    bool has_left_out; /* since it began to send its contents */
    uint64_t next, gaps, left_out;
    uint64_t sending; /* number of the last sending of its contents that began */
    char models[TIERCE__DIRECTORY_NAME_BYTES];
    bool takes_commands;

    /* Read under either lock, changed under both: */
    uint32_t epoch;
    char name[TIERCE__DIRECTORY_NAME_BYTES], address[TIERCE__DIRECTORY_NAME_BYTES];
    char host_name[TIERCE__DIRECTORY_HOST_BYTES], zone_name[TIERCE__ZONE_BYTES];
    bool uses_tls;
    /* In `groups`; they change only while `words` is 0. owner_at: TIERCE__NUMBER_NONE: it has none.
     */
    uint32_t group_at, owner_at;

    /* DIRECTORY: */
    bool is_joined;
    uint32_t free_link;   /* the next slot of its list of free ones, plus 1; 0: none */
    uint32_t epochs_used; /* since nothing of other epochs was left */
    uint64_t clean_round; /* the number of rounds of `clean` when nothing is left again */
};

/* A group, or an owner of workers in several groups, for whom only the counts are used.
 *
 * It stays, by its name, until nothing of it is left in the table, so that no other group has its
 * words. Its id is never used again, because a lookup keeps it without a lock. */
struct tierce__directory_group {
    uint64_t id; /* 0: its place is free */
    uint32_t workers;
    uint32_t free_slots; /* that only this group may use until they are clean; plus 1; 0: none */
    uint32_t free_link;  /* of a free place: the next one, plus 1; 0: none */
    bool is_owner;
    char name[TIERCE__DIRECTORY_NAME_BYTES];
};

struct tierce__directory {
    uint32_t magic;
    struct tierce__directory_opts opts;
    struct tierce__directory_shard *shards; /* [TIERCE__DIRECTORY_SHARDS] */
    _Atomic uint64_t bytes;
    _Atomic uint64_t left_out;            /* changes, for want of memory */
    uint64_t seed;                        /* of the hashes, so that nobody can choose keys of one
                                             place */
    struct tierce__directory_slot *slots; /* [workers_max] */
    _Atomic int64_t *group_words; /* [TIERCE__DIRECTORY_GROUPS(workers_max)] of the slots of a
                                     group, or of an owner, by place in `groups` */

    struct tierce__lock cleaning; /* DIRECTORY_CLEANING: a step of `clean` */

    struct tierce__lock lock; /* DIRECTORY: below; never held while a worker's lock is awaited */
    struct tierce__directory_group *groups;
    uint32_t group_count, group_room;
    struct tierce__numbers group_table; /* places in `groups`, by name */
    struct tierce__numbers names;       /* slots of workers, by group and name */
    uint64_t last_group;
    uint32_t free_group; /* the first free place in `groups`, plus 1; 0: none */
    uint32_t free_slot;  /* the first free slot of which nothing is in the table, plus 1; 0: none */
    uint32_t slots_used; /* slots from here on were never used */
    uint32_t worker_count;
    uint64_t session;            /* of the last worker */
    uint64_t rounds;             /* rounds of `clean` that have ended */
    uint32_t dirty;              /* slots with epochs_used > 0 */
    uint32_t shard_at, entry_at; /* where `clean` is; changed under DIRECTORY_CLEANING, too */
    bool is_cleaning;            /* a step is running; the same */
};

/* ---- directory_members.c: groups, names and free slots --------------------------------------- */

/* The id of a group, from 1. 0: it has no worker. */
uint64_t tierce__directory_group(struct tierce__directory *directory, const char *name);

/* The worker of this name in the group, or NULL. Under DIRECTORY, as all below. */
struct tierce__directory_slot *tierce__directory_find_name(struct tierce__directory *directory,
                                                           const char *group, const char *name);

/* Places in `groups`: each worker may have a group and an owner of its own. */
#define TIERCE__DIRECTORY_GROUPS(workers_max) (2 * (workers_max))

/* A free slot for a worker: with group_at, owner_at and name, and is_joined. Errors: TIERCE_E_FULL
 * (group_workers_max), TIERCE_E_LIMIT (no slot, or none that is clean), -ENOMEM. */
TIERCE_MUSTUSE int tierce__directory_take_slot(struct tierce__directory *directory,
                                               const struct tierce__directory_worker *worker,
                                               struct tierce__directory_slot **out);
/* Its worker has left: not is_joined. */
void tierce__directory_give_slot(struct tierce__directory *directory,
                                 struct tierce__directory_slot *slot);
/* After a round of cleaning: lists the slots and the places of groups that are free now. */
void tierce__directory_list_free(struct tierce__directory *directory);
void tierce__directory_members_fini(struct tierce__directory *directory);

/* ---- directory.c ----------------------------------------------------------------------------- */

/* New epochs of a worker until all is clean: with the present one and the one before, fewer than
 * 256 are in use. */
#define TIERCE__DIRECTORY_EPOCHS_MAX 250u

/* 0 of "". */
uint64_t tierce__directory_host(const struct tierce__directory *directory, const char *host);

static inline uint32_t tierce__directory_holder(uint32_t slot, uint32_t epoch, uint32_t tiers)
{
    return slot << 16 | epoch << 8 | tiers;
}

/* A worker's view: its epoch, how many epochs before it are valid, too, and flags. */
static inline uint32_t tierce__directory_view(uint32_t epoch, uint32_t ages, uint32_t flags)
{
    return epoch << 16 | ages << 8 | flags;
}

static inline uint32_t tierce__directory_view_ages(uint32_t view)
{
    return view >> 8 & 0xff;
}

/* How many epochs ago a holder's word was written, for a worker with this view. */
static inline uint32_t tierce__directory_age(uint32_t view, uint32_t holder)
{
    return ((view >> 16) - (holder >> 8)) & 0xff;
}

/* Whether a holder's word is valid for a worker with this view. */
static inline bool tierce__directory_view_has(uint32_t view, uint32_t holder)
{
    return (view & TIERCE__DIRECTORY_ALIVE) != 0 &&
           tierce__directory_age(view, holder) <= tierce__directory_view_ages(view);
}

/* ---- directory_table.c ----------------------------------------------------------------------- */

TIERCE_MUSTUSE int tierce__directory_table_create(struct tierce__directory *directory);
void tierce__directory_table_destroy(struct tierce__directory *directory);

/* Notes what the worker, in its epoch, holds or holds no more. Changes of one key take effect in
 * their order. Returns how many it left out: there is no memory, or no such tier. */
uint64_t tierce__directory_apply(struct tierce__directory *directory,
                                 const struct tierce__directory_change *changes, size_t count,
                                 uint32_t slot, uint32_t epoch);

/* The holders of a key, as words, valid or not: up to `room` of them. Returns how many there are.
 */
uint32_t tierce__directory_copy(struct tierce__directory *directory,
                                const struct tierce__directory_key *key, uint32_t *holders,
                                uint32_t room);

/* Removes invalid holders of the shard's entries from *at on, of `count` entries at most, and moves
 * valid ones of several earlier epochs to the last of these; *at moves on. False: the shard ends
 * there. */
bool tierce__directory_clean_shard(struct tierce__directory *directory, uint32_t shard,
                                   uint32_t *at, uint32_t count);

/* Sets keys, holders and bytes of zeroed figures. */
void tierce__directory_table_stats(struct tierce__directory *directory,
                                   struct tierce__directory_stats *out);

#endif
