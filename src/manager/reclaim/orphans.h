/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_ORPHANS_H
#define TIERCE_MANAGER_ORPHANS_H

#include "base/threads/lock.h"
#include "base/map.h"
#include "manager/reclaim/reclaimer.h"

/*
 * Removal of unreachable blocks (docs/inside/design/008-reclaim.md). A prefix match ends at the
 * first missing block, so blocks that follow a removed block cannot be found. A key that was
 * removed while indexed blocks still follow it is a hole. A hole is noted in the batch that makes
 * it, and closed when the key is stored again or the last block that follows it is removed. For the
 * holes that stay open, the reclaimer scans all records of the instance once, finds the blocks that
 * follow a hole, and removes them.
 *
 *     tierce__holes_take(&live->holes, gone, count, note);    // a step of a removal was written
 *     tierce__live_sweep_orphans(live, &how, &swept, &next_us); // at *next_us or earlier
 */

struct tierce__arena;
struct tierce__meta_note;
struct tierce__removed;

/* A record that is removed from the index. */
struct tierce__gone {
    int64_t key, parent;
    bool has_parent;
    uint32_t children; /* children that stay */
};

struct tierce__hole {
    struct tierce__map_node node;
    int64_t key;
    uint32_t children; /* children that are left */
    uint64_t note;     /* number of its note; 0: none */
};

#define TIERCE__CHILDREN_UNKNOWN UINT32_MAX

/* The holes of an instance. */
struct tierce__holes {
    struct tierce__lock lock; /* HOLES: all of it */
    struct tierce__map map;   /* by key */
    uint64_t *notes;          /* numbers of the notes in the store */
    size_t note_count, note_room;
};

void tierce__holes_init(struct tierce__holes *holes);
void tierce__holes_fini(struct tierce__holes *holes);

/* Subtracts the children that are removed in the same step. Returns true if some children stay, so
 * that a hole remains. */
bool tierce__gone_settle(struct tierce__gone *gone, size_t count);

/* Makes the note of a step's holes, in the arena. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__gone_write(const struct tierce__gone *gone, size_t count,
                                      uint64_t number, struct tierce__arena *arena,
                                      struct tierce__meta_note *out);

/* Applies a step that was written: adds holes, and subtracts removed children from existing ones.
 * `note` 0: there is no note, because blocks were stored behind missing keys, which may be holes
 * already. If memory runs out, only the next leader learns of a hole. */
void tierce__holes_take(struct tierce__holes *holes, const struct tierce__gone *gone, size_t count,
                        uint64_t note);

/* A step whose outcome is unknown: its keys with children may be holes, and their note may exist.
 * The next sweep closes those that are indexed, and drops the note. */
void tierce__holes_doubt(struct tierce__holes *holes, const struct tierce__gone *gone, size_t count,
                         uint64_t note);

/* The number of blocks that follow a key; 0 if it is not a hole or the number is unknown. */
uint32_t tierce__holes_children(struct tierce__holes *holes, int64_t key);

/* Closes a hole. */
void tierce__holes_close(struct tierce__holes *holes, int64_t key);

/* Returns whether there are open holes or notes of holes. */
bool tierce__holes_any(struct tierce__holes *holes);

/* Lists the keys of all holes, in the arena. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__holes_list(struct tierce__holes *holes, struct tierce__arena *arena,
                                      int64_t **out, size_t *count);

struct tierce__live;

/* Reads the holes that earlier leaders left. Errors: of the store, -ENOMEM. */
TIERCE_MUSTUSE int tierce__live_find_holes(struct tierce__live *live);

/* Drops the notes whose holes are all closed. Errors: of the store. */
TIERCE_MUSTUSE int tierce__live_drop_hole_notes(struct tierce__live *live);

/* ---- the sweep ------------------------------------------------------------------------------- */

struct tierce__orphan_link {
    int64_t key, parent;
};

enum tierce__orphan_state {
    TIERCE__ORPHANS_IDLE,
    TIERCE__ORPHANS_SCAN,   /* reads records until the cursor reaches the end */
    TIERCE__ORPHANS_FIND,   /* all records were read; selects the victims */
    TIERCE__ORPHANS_REMOVE, /* removes victims until none are left */
};

/* One sweep of an instance. The reclaimer's thread alone. */
struct tierce__orphan_sweep {
    enum tierce__orphan_state state;
    uint64_t cursor;
    int64_t began_us, not_before_us;
    struct tierce__orphan_link *links; /* of all records with a parent: 16 bytes each */
    size_t link_count, link_room;
    int64_t *holes, *victims; /* open holes; the blocks behind them, nearest first */
    size_t hole_count, victim_count;
};

void tierce__orphan_sweep_clear(struct tierce__orphan_sweep *sweep);

struct tierce__orphan_sweeping {
    int64_t delay_us;                         /* until the bytes are deleted */
    tierce__reclaimer_submitted_fn submitted; /* or NULL */
    void *arg;
};

/*
 * Runs a bounded part of a sweep if there are holes. Adds to `swept`. Lowers *next_us to the time
 * of the next call that is needed. Steps that fail in the store are retried. Thread: one at a time
 * per instance.
 */
void tierce__live_sweep_orphans(struct tierce__live *live,
                                const struct tierce__orphan_sweeping *how,
                                struct tierce__removed *swept, int64_t *next_us);

#endif
