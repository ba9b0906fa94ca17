/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TIER_DISK_TABLE_H
#define TIERCE_TIER_DISK_TABLE_H

#include "core/key/namespaces.h"
#include "store/disk/disk_journal.h"
#include "store/index.h"

/*
 * The chunks of a disk tier by slot, and how a journal is read back into them. Used by the tier
 * and by the inspection of a folder. Thread: one at a time; the owner locks.
 */

enum tierce__disk_state {
    TIERCE__DISK_NONE,
    TIERCE__DISK_WRITING,    /* has a slot and space; its bytes are being written */
    TIERCE__DISK_DIRTY,      /* visible; no sync has covered its bytes */
    TIERCE__DISK_COMMITTING, /* the journal thread is making it durable */
    TIERCE__DISK_DURABLE,    /* in the journal */
    TIERCE__DISK_LEAVING,    /* doomed and read: the record of its end waits for a commit */
    TIERCE__DISK_FORGOTTEN,  /* doomed: no journal has it, it is kept for reads alone */
};

struct tierce__disk_chunk {
    uint64_t seq;
    uint64_t offset;
    uint64_t object_bytes; /* as stored */
    uint64_t raw_bytes;    /* of the raw chunk, if the object is coded; 0: it is raw */
    uint64_t token_start;
    uint64_t stored_s;
    uint64_t head_sum;
    uint32_t block_count;
    uint32_t reads;     /* in flight */
    uint32_t next;      /* slots of the list of its state; LEAVING: its place in limbo */
    uint32_t prev;      /* "" */
    uint32_t doom_next; /* list of the doomed */
    uint8_t state;      /* enum tierce__disk_state */
    bool recorded;      /* a journal that failed may hold it, though it is not durable */
    bool hidden;        /* not served by this process, and kept */
    bool lacks_key;     /* hidden for its key: a put replaces it */
    bool doomed;        /* deleted or dropped: invisible, gone when nothing holds it */
    bool cancelled;     /* WRITING, and to be thrown away at the end */
    bool fresh;         /* for tierce__policy_hears */
    uint16_t recode;    /* place + 1 among the recodes that hold an object of it; 0: none */
    uint8_t parent[TIERCE_HASH_BYTES];
    uint8_t first_block[TIERCE_HASH_BYTES];
};

/* The length of the raw chunk. */
static inline uint64_t tierce__disk_chunk_bytes(const struct tierce__disk_chunk *c)
{
    return c->raw_bytes > 0 ? c->raw_bytes : c->object_bytes;
}

#define TIERCE__DISK_NS_MAX   65536u
#define TIERCE__DISK_TEXT_MAX (1 << 20) /* bytes of the text of a namespace */

struct tierce__disk_table {
    struct tierce__index *index;
    struct tierce__disk_chunk *chunks; /* [slot_count] */
    uint32_t slot_count;
    struct tierce__namespaces *namespaces;
    /* While a journal is read: */
    uint32_t *ns_of; /* [NS_MAX] id in the process + 1, by the file's number; NULL afterwards */
    uint64_t seq_max;
    uint64_t day;
    uint64_t day_bytes;
    uint64_t dropped; /* records that could not be trusted */
    int status;       /* the first error: -ENOMEM */
};

/* Errors: -ENOMEM, TIERCE_E_ARGUMENT. */
TIERCE_MUSTUSE int tierce__disk_table_init(struct tierce__disk_table *table, uint32_t slot_count,
                                           struct tierce__namespaces *namespaces);
/* A zeroed table is accepted. */
void tierce__disk_table_fini(struct tierce__disk_table *table);

/* Applies one record; a tierce__journal_visit_fn with the table as arg. */
void tierce__disk_table_apply(void *arg, const struct tierce__journal_record *record);

/* Removes a chunk. */
void tierce__disk_table_erase(struct tierce__disk_table *table, uint32_t slot);

enum tierce__disk_order {
    TIERCE__DISK_BY_SEQ, /* as the stored objects were written */
    TIERCE__DISK_BY_AGE, /* as the chunks were stored, prefixes first: a recode changes nothing */
};

/* Slots in an order, oldest first: count of them is the index's. NULL for no memory; tierce__free.
 */
uint32_t *tierce__disk_table_sorted(const struct tierce__disk_table *table,
                                    enum tierce__disk_order order);
/* Whether a chunk comes before another one in the order BY_AGE. */
bool tierce__disk_is_older(const struct tierce__disk_chunk *a, const struct tierce__disk_chunk *b);

/* Reads the text of namespace `id` from the folder and interns it; a text that is missing or
 * wrong is omitted. Returns the bytes of the text, 0 for none; -ENOMEM. */
TIERCE_MUSTUSE int64_t tierce__disk_load_text(struct tierce__vfs *vfs, const char *folder,
                                              struct tierce__namespaces *namespaces, uint32_t id);

#endif
