/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_DIRECTORY_H
#define TIERCE_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text/zone.h"
#include <tierce/status.h>

/*
 * Which workers hold which chunks in which tiers. A worker is a process with tiers of its own: an
 * engine's rank, or a node.
 *
 *     rc = tierce__directory_create(&directory, &opts);
 *     rc = tierce__directory_join(directory, &worker, now_ns, &id);   // its contents are unknown
 *     answer = tierce__directory_sync_begin(directory, id, now_ns);
 *     answer = tierce__directory_sync_add(directory, id, contents, count, now_ns);
 *     answer = tierce__directory_sync_end(directory, id, covered, now_ns);
 *     answer = tierce__directory_report(directory, id, covered + 1, changes, count, now_ns);
 *     rc = tierce__directory_find(directory, keys, count, &asker, &found);
 *
 * A worker's changes have consecutive numbers. A change that was reported before is skipped, so a
 * report may be repeated. If numbers are missing, that worker, and no other, must send all of its
 * contents again; until it has, its old contents stay, because the bytes of a chunk are verified
 * when they have arrived, and a chunk that is gone costs one round trip. A worker that is silent
 * for too long leaves.
 *
 * Everything is in memory. After a restart workers are unknown, join again and send their contents.
 *
 * Thread: any, several at a time. Calls for one worker wait for one another, and each keeps the
 * worker locked while it applies its changes. A call about a worker (join, leave, about, next) may
 * wait for a call of that worker, and delays no other worker and no lookup while it waits.
 * So a report should have some thousands of changes at most. Times are of clock.h.
 */

struct tierce__directory;

/* 128 bits of a chunk's identity: of namespace, ranks and hash. The holder compares all of it. */
struct tierce__directory_key {
    uint64_t high, low;
};

#define TIERCE__DIRECTORY_TIERS_MAX   8u
#define TIERCE__DIRECTORY_WORKERS_MAX 65535u
#define TIERCE__DIRECTORY_NAME_BYTES  128u
#define TIERCE__DIRECTORY_HOST_BYTES  40u

struct tierce__directory_opts {
    size_t size;          /* sizeof(struct tierce__directory_opts) */
    uint32_t workers_max; /* 0: 4096 */
    uint64_t bytes_max;   /* of keys and holders; 0: no limit */
    uint64_t silence_ns;  /* after so much of it a worker leaves; 0: 10 s */
    /* Of one group, and of one owner; 0: no limit but those above. Holders are pairs of a key and a
     * worker. */
    uint32_t group_workers_max;
    uint64_t group_holders_max;
};

/* Errors: TIERCE_E_ARGUMENT (workers_max), -ENOMEM, -EIO (no random numbers). */
TIERCE_MUSTUSE int tierce__directory_create(struct tierce__directory **out,
                                            const struct tierce__directory_opts *opts);
/* No call may be running. NULL is accepted. */
void tierce__directory_destroy(struct tierce__directory *directory);

/* ---- workers --------------------------------------------------------------------------------- */

/* Texts are copied. Workers of different groups do not see one another. */
struct tierce__directory_worker {
    const char *group, *name; /* the name is unique in its group */
    const char *address;      /* where it serves its chunks; "" if it does not */
    const char *host;         /* net/host_id.h; "" if unknown */
    bool takes_commands;      /* of an operator; kept for `about` */
    /* The account that may use several groups: its workers of all groups together have the bounds
     * of one group, too. "" or NULL: no bound but the group's. A longer text is cut. */
    const char *owner;
    bool uses_tls;    /* the address accepts TLS only */
    const char *zone; /* base/text/zone.h; "" or NULL: unknown */
};

/* A worker since it joined. Never 0 for a worker. */
struct tierce__directory_id {
    uint64_t session;
    uint32_t slot;
};

/*
 * A worker of the same name leaves first. It must send its contents before its reports count.
 * Errors: TIERCE_E_ARGUMENT (a text is too long, no name, or no zone), TIERCE_E_FULL
 * (group_workers_max, of the group or the owner), TIERCE_E_LIMIT (workers_max, or the places of
 * workers that have left are not clean yet: it may try again after tierce__directory_clean),
 * -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__directory_join(struct tierce__directory *directory,
                                          const struct tierce__directory_worker *worker,
                                          uint64_t now_ns, struct tierce__directory_id *id);

enum tierce__directory_answer {
    TIERCE__DIRECTORY_DONE = 0,
    TIERCE__DIRECTORY_UNKNOWN, /* not joined, or it has left: it must join */
    TIERCE__DIRECTORY_RESYNC,  /* numbers are missing: it must send all of its contents */
    TIERCE__DIRECTORY_LATER,   /* sync_begin: too many one after another; after `clean` again */
};

/* It holds nothing from now on. */
enum tierce__directory_answer tierce__directory_leave(struct tierce__directory *directory,
                                                      struct tierce__directory_id id);

/* A sign of life. `load`: how busy it is, for the choice among holders: reads in progress for
 * others, in thousandths of the most that it admits. */
enum tierce__directory_answer tierce__directory_beat(struct tierce__directory *directory,
                                                     struct tierce__directory_id id, uint32_t load,
                                                     uint64_t now_ns);

/* The models that it serves, for `about`; cut after NAME_BYTES - 1. */
void tierce__directory_set_models(struct tierce__directory *directory,
                                  struct tierce__directory_id id, const char *models);

struct tierce__directory_change {
    struct tierce__directory_key key;
    uint8_t tier; /* below TIERS_MAX, 0 is the fastest */
    bool admitted;
};

/* The changes `first` to `first` + count - 1 (first at least 1), in their order. */
enum tierce__directory_answer
tierce__directory_report(struct tierce__directory *directory, struct tierce__directory_id id,
                         uint64_t first, const struct tierce__directory_change *changes,
                         size_t count, uint64_t now_ns);

/* All contents of a worker, as admissions: begin, add any number of times, end. They have the
 * effect of the changes up to `covered`. Until the end lookups see the last complete contents,
 * beside all that was sent since. A worker may restart its sending at any time. add and end
 * without begin, or a `covered` of UINT64_MAX: RESYNC.
 *
 * Calls that arrive over a network may be repeated, and late: each has the number of its sending,
 * from 1, and a later sending has a larger one. A call of another sending than the present one
 * changes nothing, and is answered RESYNC; a repeated begin or end of the present one is DONE. */
enum tierce__directory_answer tierce__directory_sending_begin(struct tierce__directory *directory,
                                                              struct tierce__directory_id id,
                                                              uint64_t sending, uint64_t now_ns);
enum tierce__directory_answer
tierce__directory_sending_add(struct tierce__directory *directory, struct tierce__directory_id id,
                              uint64_t sending, const struct tierce__directory_change *contents,
                              size_t count, uint64_t now_ns);
enum tierce__directory_answer tierce__directory_sending_end(struct tierce__directory *directory,
                                                            struct tierce__directory_id id,
                                                            uint64_t sending, uint64_t covered,
                                                            uint64_t now_ns);
/* The same for a caller whose calls are neither late nor repeated: begin chooses the number. */
enum tierce__directory_answer tierce__directory_sync_begin(struct tierce__directory *directory,
                                                           struct tierce__directory_id id,
                                                           uint64_t now_ns);
enum tierce__directory_answer
tierce__directory_sync_add(struct tierce__directory *directory, struct tierce__directory_id id,
                           const struct tierce__directory_change *contents, size_t count,
                           uint64_t now_ns);
enum tierce__directory_answer tierce__directory_sync_end(struct tierce__directory *directory,
                                                         struct tierce__directory_id id,
                                                         uint64_t covered, uint64_t now_ns);

/* Removes workers that were silent for too long. Returns how many. */
uint32_t tierce__directory_expire(struct tierce__directory *directory, uint64_t now_ns);

/* Frees up to `entries` places of what workers held before they left or resent their contents.
 * To be called again while it returns true: there is more. */
bool tierce__directory_clean(struct tierce__directory *directory, uint32_t entries);

/* ---- lookup ---------------------------------------------------------------------------------- */

struct tierce__directory_asker {
    const char *group;
    const char *host;                    /* "": unknown */
    struct tierce__directory_id exclude; /* the asker itself; zeroes: nobody */
    const char *zone;                    /* base/text/zone.h; "" or NULL: unknown */
};

#define TIERCE__DIRECTORY_PREFIXES_MAX 64u
#define TIERCE__DIRECTORY_RUNS_MAX     8u

/*
 * The order of holders, best first:
 *
 *     1. the holder of the most keys that follow;
 *     2. a holder that admits further reads from its slower tiers (its load is below 1000), or has
 *        all of these keys in its fastest tier;
 *     3. the holder whose slowest tier with these keys is the fastest;
 *     4. the nearest holder;
 *     5. the holder with the lowest load.
 *
 * Equal holders take turns from key to key.
 *
 * Distance: 0 on the asker's host; otherwise 1, and 1 more for each trailing part of the asker's
 * zone that the holder's zone does not share.
 */

/* How many of the leading keys one worker holds. */
struct tierce__directory_prefix {
    struct tierce__directory_id worker;
    uint32_t keys;                                 /* in any of its tiers */
    uint32_t in_tier[TIERCE__DIRECTORY_TIERS_MAX]; /* in this one */
    uint32_t load;
    uint32_t distance;
    bool is_incomplete; /* it may hold more: as is_whole of its state */
};

/* `keys` consecutive keys, from `first` on, and where to read them. */
struct tierce__directory_run {
    struct tierce__directory_id worker;
    uint32_t first, keys;
    uint32_t load;
    uint32_t distance;
    uint8_t slowest; /* the slowest tier that one of them is in */
};

struct tierce__directory_found {
    /* The best holders of prefixes, the best first. */
    struct tierce__directory_prefix prefixes[TIERCE__DIRECTORY_PREFIXES_MAX];
    uint32_t prefix_count;
    /* A way to read as many leading keys as possible: each run is of the best holder of the keys
     * that follow. The first one is prefixes[0]. */
    struct tierce__directory_run runs[TIERCE__DIRECTORY_RUNS_MAX];
    uint32_t run_count;
};

/* Describes the past: any of it may have left since. Errors: -ENOMEM, TIERCE_E_ARGUMENT (zone). */
TIERCE_MUSTUSE int tierce__directory_find(struct tierce__directory *directory,
                                          const struct tierce__directory_key *keys, size_t count,
                                          const struct tierce__directory_asker *asker,
                                          struct tierce__directory_found *found);

/* A worker's state. */
struct tierce__directory_about {
    struct tierce__directory_id id;
    char group[TIERCE__DIRECTORY_NAME_BYTES], name[TIERCE__DIRECTORY_NAME_BYTES];
    char address[TIERCE__DIRECTORY_NAME_BYTES], host[TIERCE__DIRECTORY_HOST_BYTES];
    char models[TIERCE__DIRECTORY_NAME_BYTES], zone[TIERCE__ZONE_BYTES];
    uint64_t seen_ns;                                /* its last call */
    uint64_t next;                                   /* number of its next change */
    uint64_t keys;                                   /* that it holds, in one tier or several */
    uint64_t tier_keys[TIERCE__DIRECTORY_TIERS_MAX]; /* that each of its tiers holds */
    uint64_t gaps;                                   /* how often numbers were missing */
    uint64_t left_out;                               /* changes for which there was no memory */
    uint32_t load;
    bool is_synced; /* its contents are complete, as far as it has reported them */
    bool is_whole;  /* that, and there was memory for all of them */
    bool takes_commands, uses_tls;
};

/* False: it has left. */
bool tierce__directory_about(struct tierce__directory *directory, struct tierce__directory_id id,
                             struct tierce__directory_about *out);

/* The next worker, from slot *from on; *from moves past it. False: there is none. */
bool tierce__directory_next(struct tierce__directory *directory, uint32_t *from,
                            struct tierce__directory_about *out);

/* About a worker; none of it changes while the worker is there. */
struct tierce__directory_who {
    char name[TIERCE__DIRECTORY_NAME_BYTES], address[TIERCE__DIRECTORY_NAME_BYTES];
    char host[TIERCE__DIRECTORY_HOST_BYTES];
    bool uses_tls;
};

/* For answers of lookups: waits for no worker. False: it has left. */
bool tierce__directory_who(struct tierce__directory *directory, struct tierce__directory_id id,
                           struct tierce__directory_who *out);

/* Whether a worker is there and of this group. A caller who may only see one group asks this before
 * a call with an id that was sent to it. Waits for no worker. */
bool tierce__directory_is_of(struct tierce__directory *directory, struct tierce__directory_id id,
                             const char *group);

/* The worker of this name in the group. Waits for no worker. False: there is none. */
bool tierce__directory_named(struct tierce__directory *directory, const char *group,
                             const char *name, struct tierce__directory_id *id);

/* A number of the group that a worker is in, which no other group ever has. 0: the worker has left.
 * Takes no lock. */
uint64_t tierce__directory_group_of(struct tierce__directory *directory,
                                    struct tierce__directory_id id);

/* Changes for which there was no memory, of all times. Takes no lock. */
uint64_t tierce__directory_left_out(const struct tierce__directory *directory);

struct tierce__directory_stats {
    uint64_t keys;     /* that anybody holds */
    uint64_t holders;  /* pairs of a key and a worker */
    uint64_t bytes;    /* of memory for them */
    uint64_t left_out; /* tierce__directory_left_out */
    uint32_t workers;
    bool is_clean; /* nothing is left for tierce__directory_clean */
};
void tierce__directory_stats(struct tierce__directory *directory,
                             struct tierce__directory_stats *out);

#endif
