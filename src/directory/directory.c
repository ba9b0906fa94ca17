/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/directory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/mix.h"
#include "directory/directory_private.h"

#define DIRECTORY_MAGIC 0x44495231u
#define WORKERS_DEFAULT 4096u
#define SILENCE_DEFAULT 10000000000ULL

/* ---- the whole ------------------------------------------------------------------------------- */

static int create_slots(struct tierce__directory *directory)
{
    /* The slots last: destroy ends the locks of all of them. */
    directory->group_words =
        tierce__calloc(TIERCE__DIRECTORY_GROUPS((size_t)directory->opts.workers_max),
                       sizeof(*directory->group_words));
    if (directory->group_words == NULL)
        return -ENOMEM;
    directory->slots = tierce__calloc(directory->opts.workers_max, sizeof(*directory->slots));
    if (directory->slots == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < directory->opts.workers_max; i++)
        tierce__lock_init(&directory->slots[i].lock, TIERCE__LOCK_DIRECTORY_WORKER);
    return 0;
}

int tierce__directory_create(struct tierce__directory **out,
                             const struct tierce__directory_opts *opts)
{
    TIERCE_DASSERT(opts->size == sizeof(*opts));
    if (opts->workers_max > TIERCE__DIRECTORY_WORKERS_MAX)
        return TIERCE_E_ARGUMENT;
    struct tierce__directory *directory = tierce__calloc(1, sizeof(*directory));
    if (directory == NULL)
        return -ENOMEM;
    directory->magic = DIRECTORY_MAGIC;
    directory->opts = *opts;
    if (opts->workers_max == 0)
        directory->opts.workers_max = WORKERS_DEFAULT;
    if (opts->silence_ns == 0)
        directory->opts.silence_ns = SILENCE_DEFAULT;
    tierce__lock_init(&directory->cleaning, TIERCE__LOCK_DIRECTORY_CLEANING);
    tierce__lock_init(&directory->lock, TIERCE__LOCK_DIRECTORY);
    uint64_t random[2];
    int rc = getrandom(random, sizeof(random), 0) == (ssize_t)sizeof(random) ? 0 : -EIO;
    directory->seed = random[0];
    directory->session = random[1] >> 1; /* so that a worker of an earlier process is unknown */
    if (rc == 0)
        rc = create_slots(directory);
    if (rc == 0)
        rc = tierce__directory_table_create(directory);
    if (rc < 0) {
        tierce__directory_destroy(directory);
        return rc;
    }
    *out = directory;
    return 0;
}

void tierce__directory_destroy(struct tierce__directory *directory)
{
    if (directory == NULL)
        return;
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    directory->magic = 0;
    tierce__directory_table_destroy(directory);
    for (uint32_t i = 0; directory->slots != NULL && i < directory->opts.workers_max; i++)
        tierce__lock_fini(&directory->slots[i].lock);
    tierce__free(directory->slots);
    tierce__free(directory->group_words);
    tierce__directory_members_fini(directory);
    tierce__lock_fini(&directory->lock);
    tierce__lock_fini(&directory->cleaning);
    tierce__free(directory);
}

/* ---- epochs ---------------------------------------------------------------------------------- */

static void publish(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                    uint32_t ages, uint32_t flags)
{
    tierce__lock_assert_held(&directory->lock);
    atomic_store_explicit(&slot->view, tierce__directory_view(slot->epoch, ages, flags),
                          memory_order_release);
}

/* Something that the worker held is not valid any more. */
static void need_clean(struct tierce__directory *directory, struct tierce__directory_slot *slot)
{
    tierce__lock_assert_held(&directory->lock);
    bool is_between =
        !directory->is_cleaning && directory->shard_at == 0 && directory->entry_at == 0;
    slot->clean_round = directory->rounds + (is_between ? 1 : 2);
    if (slot->epochs_used == 0) {
        slot->epochs_used = 1;
        directory->dirty++;
    }
}

static void clear_keys(struct tierce__directory_slot *slot)
{
    atomic_store_explicit(&slot->keys, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_TIERS_MAX; i++)
        atomic_store_explicit(&slot->tier_keys[i], 0, memory_order_relaxed);
}

/* Moves all that it holds to an earlier epoch, of which `ages` remain valid. */
static void advance(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                    uint32_t ages)
{
    TIERCE_DASSERT(slot->epochs_used < TIERCE__DIRECTORY_EPOCHS_MAX &&
                   ages < TIERCE__DIRECTORY_EPOCHS);
    need_clean(directory, slot);
    slot->epochs_used++;
    slot->epoch = (slot->epoch + 1) % TIERCE__DIRECTORY_EPOCHS;
    clear_keys(slot);
    publish(directory, slot, ages, TIERCE__DIRECTORY_ALIVE);
}

/* Earlier epochs of which its holdings are valid. */
static uint32_t ages_of(const struct tierce__directory_slot *slot)
{
    return tierce__directory_view_ages(atomic_load(&slot->view));
}

/* Whether nothing in the table is of the present epoch. */
static bool is_empty(const struct tierce__directory_slot *slot)
{
    return atomic_load_explicit(&slot->keys, memory_order_relaxed) == 0;
}

uint64_t tierce__directory_host(const struct tierce__directory *directory, const char *host)
{
    return host[0] != '\0' ? tierce__mix(tierce__hash_text(directory->seed, host)) | 1 : 0;
}

/* ---- joining and leaving --------------------------------------------------------------------- */

/* A worker whose lock is held. */
static void leave_held(struct tierce__directory *directory, struct tierce__directory_slot *slot)
{
    tierce__lock_assert_held(&slot->lock);
    slot->is_sending = slot->is_synced = false;
    atomic_store(&slot->is_whole, false);
    tierce__lock_take(&directory->lock);
    TIERCE_DASSERT(slot->is_joined && directory->worker_count > 0);
    if (!is_empty(slot) || ages_of(slot) > 0)
        need_clean(directory, slot);
    atomic_store(&slot->session, 0);
    publish(directory, slot, 0, 0);
    tierce__directory_give_slot(directory, slot);
    directory->worker_count--;
    tierce__lock_drop(&directory->lock);
}

static struct tierce__directory_id id_of(const struct tierce__directory *directory,
                                         const struct tierce__directory_slot *slot)
{
    return (struct tierce__directory_id){atomic_load(&slot->session),
                                         (uint32_t)(slot - directory->slots)};
}

static const char *zone_of(const struct tierce__directory_worker *worker)
{
    return worker->zone != NULL ? worker->zone : "";
}

/* Nobody else touches a slot without a session, whose lock is not needed therefore. */
static void enter(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                  const struct tierce__directory_worker *worker,
                  const uint32_t zone[TIERCE__ZONE_PARTS_MAX], uint64_t now_ns)
{
    tierce__lock_assert_held(&directory->lock);
    TIERCE_DASSERT(atomic_load(&slot->session) == 0 && slot->is_joined);
    slot->next = 1;
    slot->gaps = slot->left_out = slot->sending = 0;
    slot->has_left_out = false;
    memcpy(slot->address, worker->address, strlen(worker->address) + 1);
    memcpy(slot->host_name, worker->host, strlen(worker->host) + 1);
    snprintf(slot->zone_name, sizeof(slot->zone_name), "%s", zone_of(worker));
    atomic_store(&slot->group, directory->groups[slot->group_at].id);
    atomic_store(&slot->host, tierce__directory_host(directory, worker->host));
    for (uint32_t i = 0; i < TIERCE__ZONE_PARTS_MAX; i++)
        atomic_store(&slot->zone[i], zone[i]);
    atomic_store(&slot->load, 0);
    atomic_store(&slot->seen_ns, now_ns);
    clear_keys(slot);
    slot->models[0] = '\0';
    slot->takes_commands = worker->takes_commands;
    slot->uses_tls = worker->uses_tls;
    directory->worker_count++;
    /* After the rest: lookups see it now, and then its own calls. */
    if (slot->epochs_used > 0)
        advance(directory, slot, 0);
    else
        publish(directory, slot, 0, TIERCE__DIRECTORY_ALIVE);
    atomic_store(&slot->session, ++directory->session);
}

static bool is_short(const char *text, size_t bytes)
{
    return text != NULL && strnlen(text, bytes) < bytes;
}

int tierce__directory_join(struct tierce__directory *directory,
                           const struct tierce__directory_worker *worker, uint64_t now_ns,
                           struct tierce__directory_id *id)
{
    uint32_t zone[TIERCE__ZONE_PARTS_MAX];
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    if (!is_short(worker->group, TIERCE__DIRECTORY_NAME_BYTES) ||
        !is_short(worker->name, TIERCE__DIRECTORY_NAME_BYTES) || worker->name[0] == '\0' ||
        !is_short(worker->address, TIERCE__DIRECTORY_NAME_BYTES) ||
        !is_short(worker->host, TIERCE__DIRECTORY_HOST_BYTES) ||
        tierce__zone_parse(zone, zone_of(worker), directory->seed) < 0)
        return TIERCE_E_ARGUMENT;
    tierce__lock_take(&directory->lock);
    /* The lock is not held while the worker of this name ends a call. */
    for (struct tierce__directory_slot *same;
         (same = tierce__directory_find_name(directory, worker->group, worker->name)) != NULL;
         tierce__lock_take(&directory->lock)) {
        struct tierce__directory_id other = id_of(directory, same);
        tierce__lock_drop(&directory->lock);
        (void)tierce__directory_leave(directory, other);
    }
    struct tierce__directory_slot *slot = NULL;
    int rc = tierce__directory_take_slot(directory, worker, &slot);
    if (rc == 0) {
        enter(directory, slot, worker, zone, now_ns);
        *id = id_of(directory, slot);
    }
    tierce__lock_drop(&directory->lock);
    return rc;
}

/* The slot of a worker, if it is still there. */
static struct tierce__directory_slot *slot_of(struct tierce__directory *directory,
                                              struct tierce__directory_id id)
{
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    if (id.session == 0 || id.slot >= directory->opts.workers_max)
        return NULL;
    struct tierce__directory_slot *slot = &directory->slots[id.slot];
    return atomic_load(&slot->session) == id.session ? slot : NULL;
}

/* Takes the lock of a worker that is still there. NULL: it is not, and no lock is held. */
static struct tierce__directory_slot *hold(struct tierce__directory *directory,
                                           struct tierce__directory_id id)
{
    struct tierce__directory_slot *slot = slot_of(directory, id);
    if (slot == NULL)
        return NULL;
    tierce__lock_take(&slot->lock);
    if (atomic_load(&slot->session) == id.session)
        return slot;
    tierce__lock_drop(&slot->lock);
    return NULL;
}

/* The same for a call of the worker, which is a sign of life. */
static struct tierce__directory_slot *hold_caller(struct tierce__directory *directory,
                                                  struct tierce__directory_id id, uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold(directory, id);
    if (slot != NULL)
        atomic_store(&slot->seen_ns, now_ns);
    return slot;
}

enum tierce__directory_answer tierce__directory_leave(struct tierce__directory *directory,
                                                      struct tierce__directory_id id)
{
    struct tierce__directory_slot *slot = hold(directory, id);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    leave_held(directory, slot);
    tierce__lock_drop(&slot->lock);
    return TIERCE__DIRECTORY_DONE;
}

static uint32_t slots_used(struct tierce__directory *directory)
{
    tierce__lock_take(&directory->lock);
    uint32_t count = directory->slots_used;
    tierce__lock_drop(&directory->lock);
    return count;
}

static bool is_silent(const struct tierce__directory *directory,
                      const struct tierce__directory_slot *slot, uint64_t now_ns)
{
    /* In this order: another worker that enters the slot is seen before it has a session. */
    bool is_there = atomic_load(&slot->session) != 0;
    uint64_t seen_ns = atomic_load(&slot->seen_ns);
    return is_there && now_ns >= seen_ns && now_ns - seen_ns >= directory->opts.silence_ns;
}

uint32_t tierce__directory_expire(struct tierce__directory *directory, uint64_t now_ns)
{
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    uint32_t count = 0, slots = slots_used(directory);
    for (uint32_t i = 0; i < slots; i++) {
        struct tierce__directory_slot *slot = &directory->slots[i];
        /* A worker with a call in progress is not silent. */
        if (!is_silent(directory, slot, now_ns) || !tierce__lock_try(&slot->lock))
            continue;
        if (is_silent(directory, slot, now_ns)) {
            leave_held(directory, slot);
            count++;
        }
        tierce__lock_drop(&slot->lock);
    }
    return count;
}

/* ---- reports --------------------------------------------------------------------------------- */

enum tierce__directory_answer tierce__directory_beat(struct tierce__directory *directory,
                                                     struct tierce__directory_id id, uint32_t load,
                                                     uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold_caller(directory, id, now_ns);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    atomic_store(&slot->load, load);
    bool is_synced = slot->is_synced || slot->is_sending;
    tierce__lock_drop(&slot->lock);
    return is_synced ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_RESYNC;
}

void tierce__directory_set_models(struct tierce__directory *directory,
                                  struct tierce__directory_id id, const char *models)
{
    struct tierce__directory_slot *slot = hold(directory, id);
    if (slot == NULL)
        return;
    tierce__text_for_message(slot->models, sizeof(slot->models), models);
    tierce__lock_drop(&slot->lock);
}

/* Of a worker whose lock is held. */
static void apply(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                  const struct tierce__directory_change *changes, size_t count)
{
    tierce__lock_assert_held(&slot->lock);
    uint64_t left_out = tierce__directory_apply(directory, changes, count,
                                                (uint32_t)(slot - directory->slots), slot->epoch);
    if (left_out == 0)
        return;
    slot->left_out += left_out;
    slot->has_left_out = true;
    atomic_store(&slot->is_whole, false);
    atomic_fetch_add_explicit(&directory->left_out, left_out, memory_order_relaxed);
}

enum tierce__directory_answer
tierce__directory_report(struct tierce__directory *directory, struct tierce__directory_id id,
                         uint64_t first, const struct tierce__directory_change *changes,
                         size_t count, uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold_caller(directory, id, now_ns);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    enum tierce__directory_answer answer = TIERCE__DIRECTORY_RESYNC;
    if (slot->is_synced && first <= slot->next && first > 0) {
        uint64_t known = slot->next - first;
        if (known < count)
            apply(directory, slot, changes + known, count - (size_t)known);
        slot->next = known < count ? first + count : slot->next;
        answer = TIERCE__DIRECTORY_DONE;
    } else if (slot->is_synced) {
        slot->is_synced = false;
        atomic_store(&slot->is_whole, false);
        slot->gaps++;
    }
    tierce__lock_drop(&slot->lock);
    return answer;
}

/* ---- all contents ---------------------------------------------------------------------------- */

/* Of a worker whose lock is held. */
static enum tierce__directory_answer begin_held(struct tierce__directory *directory,
                                                struct tierce__directory_slot *slot,
                                                uint64_t sending)
{
    enum tierce__directory_answer answer = TIERCE__DIRECTORY_DONE;
    tierce__lock_assert_held(&slot->lock);
    tierce__lock_take(&directory->lock);
    if (!is_empty(slot) && slot->epochs_used >= TIERCE__DIRECTORY_EPOCHS_MAX)
        answer = TIERCE__DIRECTORY_LATER;
    else if (!is_empty(slot)) /* contents without an end do not count, but those before them do */
        advance(directory, slot, ages_of(slot) + 1);
    tierce__lock_drop(&directory->lock);
    slot->is_synced = slot->has_left_out = false;
    atomic_store(&slot->is_whole, false);
    slot->is_sending = answer == TIERCE__DIRECTORY_DONE;
    if (slot->is_sending)
        slot->sending = sending;
    return answer;
}

enum tierce__directory_answer tierce__directory_sending_begin(struct tierce__directory *directory,
                                                              struct tierce__directory_id id,
                                                              uint64_t sending, uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold_caller(directory, id, now_ns);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    enum tierce__directory_answer answer = TIERCE__DIRECTORY_RESYNC;
    if (sending == 0 || sending > slot->sending)
        answer = begin_held(directory, slot, sending > 0 ? sending : slot->sending + 1);
    else if (sending == slot->sending && slot->is_sending)
        answer = TIERCE__DIRECTORY_DONE; /* repeated: what was added since is of this sending */
    tierce__lock_drop(&slot->lock);
    return answer;
}

enum tierce__directory_answer tierce__directory_sync_begin(struct tierce__directory *directory,
                                                           struct tierce__directory_id id,
                                                           uint64_t now_ns)
{
    return tierce__directory_sending_begin(directory, id, 0, now_ns);
}

/* Whether a call belongs to the present sending. 0: it has no number. */
static bool is_of_sending(const struct tierce__directory_slot *slot, uint64_t sending)
{
    return sending == 0 || sending == slot->sending;
}

enum tierce__directory_answer
tierce__directory_sending_add(struct tierce__directory *directory, struct tierce__directory_id id,
                              uint64_t sending, const struct tierce__directory_change *contents,
                              size_t count, uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold_caller(directory, id, now_ns);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    bool is_sending = slot->is_sending && is_of_sending(slot, sending);
    if (is_sending)
        apply(directory, slot, contents, count);
    tierce__lock_drop(&slot->lock);
    return is_sending ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_RESYNC;
}

enum tierce__directory_answer
tierce__directory_sync_add(struct tierce__directory *directory, struct tierce__directory_id id,
                           const struct tierce__directory_change *contents, size_t count,
                           uint64_t now_ns)
{
    return tierce__directory_sending_add(directory, id, 0, contents, count, now_ns);
}

enum tierce__directory_answer tierce__directory_sending_end(struct tierce__directory *directory,
                                                            struct tierce__directory_id id,
                                                            uint64_t sending, uint64_t covered,
                                                            uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold_caller(directory, id, now_ns);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    bool is_of = is_of_sending(slot, sending);
    bool is_end = slot->is_sending && is_of && covered < UINT64_MAX;
    bool is_repeated = sending > 0 && is_of && slot->is_synced; /* its changes may have followed */
    if (is_end) {
        slot->is_sending = false;
        slot->is_synced = true;
        atomic_store(&slot->is_whole, !slot->has_left_out);
        slot->next = covered + 1;
        tierce__lock_take(&directory->lock);
        if (ages_of(slot) > 0)
            need_clean(directory, slot);
        publish(directory, slot, 0, TIERCE__DIRECTORY_ALIVE);
        tierce__lock_drop(&directory->lock);
    }
    tierce__lock_drop(&slot->lock);
    return is_end || is_repeated ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_RESYNC;
}

enum tierce__directory_answer tierce__directory_sync_end(struct tierce__directory *directory,
                                                         struct tierce__directory_id id,
                                                         uint64_t covered, uint64_t now_ns)
{
    return tierce__directory_sending_end(directory, id, 0, covered, now_ns);
}

/* ---- cleaning -------------------------------------------------------------------------------- */

/* A round has ended. It has moved valid holdings of several epochs to the last one of them. */
static void end_round(struct tierce__directory *directory)
{
    directory->rounds++;
    directory->shard_at = directory->entry_at = 0;
    for (uint32_t i = 0; i < directory->slots_used; i++) {
        struct tierce__directory_slot *slot = &directory->slots[i];
        if (slot->epochs_used == 0 || slot->clean_round > directory->rounds)
            continue;
        slot->epochs_used = 0;
        directory->dirty--;
        if (ages_of(slot) > 1)
            publish(directory, slot, 1, TIERCE__DIRECTORY_ALIVE);
    }
    tierce__directory_list_free(directory);
}

/* Begins a step: nothing that becomes invalid from now on is sure to be found in this round. */
static bool begin_cleaning(struct tierce__directory *directory)
{
    tierce__lock_take(&directory->lock);
    directory->is_cleaning = directory->dirty > 0;
    tierce__lock_drop(&directory->lock);
    return directory->is_cleaning;
}

bool tierce__directory_clean(struct tierce__directory *directory, uint32_t entries)
{
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    bool is_dirty = false;
    tierce__lock_take(&directory->cleaning);
    if (begin_cleaning(directory)) {
        uint32_t at = directory->entry_at;
        bool more = tierce__directory_clean_shard(directory, directory->shard_at, &at, entries);
        tierce__lock_take(&directory->lock);
        directory->is_cleaning = false;
        directory->entry_at = more ? at : 0;
        directory->shard_at += more ? 0 : 1;
        if (directory->shard_at == TIERCE__DIRECTORY_SHARDS)
            end_round(directory);
        is_dirty = directory->dirty > 0;
        tierce__lock_drop(&directory->lock);
    }
    tierce__lock_drop(&directory->cleaning);
    return is_dirty;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Of a worker whose lock is held. */
static void describe(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                     struct tierce__directory_about *out)
{
    tierce__lock_assert_held(&slot->lock);
    *out = (struct tierce__directory_about){.id = id_of(directory, slot),
                                            .seen_ns = atomic_load(&slot->seen_ns),
                                            .next = slot->next,
                                            .keys = (uint64_t)atomic_load(&slot->keys),
                                            .gaps = slot->gaps,
                                            .left_out = slot->left_out,
                                            .load = atomic_load(&slot->load),
                                            .is_synced = slot->is_synced,
                                            .is_whole = atomic_load(&slot->is_whole),
                                            .takes_commands = slot->takes_commands,
                                            .uses_tls = slot->uses_tls};
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_TIERS_MAX; i++)
        out->tier_keys[i] = (uint64_t)atomic_load(&slot->tier_keys[i]);
    memcpy(out->models, slot->models, sizeof(out->models));
    memcpy(out->name, slot->name, sizeof(out->name));
    memcpy(out->address, slot->address, sizeof(out->address));
    memcpy(out->host, slot->host_name, sizeof(out->host));
    memcpy(out->zone, slot->zone_name, sizeof(out->zone));
    tierce__lock_take(&directory->lock); /* `groups` moves as it grows */
    memcpy(out->group, directory->groups[slot->group_at].name, sizeof(out->group));
    tierce__lock_drop(&directory->lock);
}

bool tierce__directory_about(struct tierce__directory *directory, struct tierce__directory_id id,
                             struct tierce__directory_about *out)
{
    struct tierce__directory_slot *slot = hold(directory, id);
    if (slot == NULL)
        return false;
    describe(directory, slot, out);
    tierce__lock_drop(&slot->lock);
    return true;
}

bool tierce__directory_who(struct tierce__directory *directory, struct tierce__directory_id id,
                           struct tierce__directory_who *out)
{
    tierce__lock_take(&directory->lock); /* a slot changes hands under it */
    struct tierce__directory_slot *slot = slot_of(directory, id);
    if (slot != NULL) {
        memcpy(out->name, slot->name, sizeof(out->name));
        memcpy(out->address, slot->address, sizeof(out->address));
        memcpy(out->host, slot->host_name, sizeof(out->host));
        out->uses_tls = slot->uses_tls;
    }
    tierce__lock_drop(&directory->lock);
    return slot != NULL;
}

bool tierce__directory_is_of(struct tierce__directory *directory, struct tierce__directory_id id,
                             const char *group)
{
    tierce__lock_take(&directory->lock);
    const struct tierce__directory_slot *slot = slot_of(directory, id);
    bool is_of = slot != NULL && strcmp(directory->groups[slot->group_at].name, group) == 0;
    tierce__lock_drop(&directory->lock);
    return is_of;
}

bool tierce__directory_named(struct tierce__directory *directory, const char *group,
                             const char *name, struct tierce__directory_id *id)
{
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    tierce__lock_take(&directory->lock);
    const struct tierce__directory_slot *slot = tierce__directory_find_name(directory, group, name);
    if (slot != NULL)
        *id = id_of(directory, slot);
    tierce__lock_drop(&directory->lock);
    return slot != NULL;
}

uint64_t tierce__directory_group_of(struct tierce__directory *directory,
                                    struct tierce__directory_id id)
{
    const struct tierce__directory_slot *slot = slot_of(directory, id);
    uint64_t group = slot != NULL ? atomic_load(&slot->group) : 0;
    return group != 0 && atomic_load(&slot->session) == id.session ? group : 0;
}

bool tierce__directory_next(struct tierce__directory *directory, uint32_t *from,
                            struct tierce__directory_about *out)
{
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    bool found = false;
    for (uint32_t slots = slots_used(directory); !found && *from < slots; ++*from)
        found = tierce__directory_about(directory, id_of(directory, &directory->slots[*from]), out);
    return found;
}

uint64_t tierce__directory_left_out(const struct tierce__directory *directory)
{
    return atomic_load_explicit(&directory->left_out, memory_order_relaxed);
}

void tierce__directory_stats(struct tierce__directory *directory,
                             struct tierce__directory_stats *out)
{
    *out = (struct tierce__directory_stats){0};
    tierce__lock_take(&directory->lock);
    out->workers = directory->worker_count;
    out->is_clean = directory->dirty == 0;
    tierce__lock_drop(&directory->lock);
    out->left_out = tierce__directory_left_out(directory);
    tierce__directory_table_stats(directory, out);
}
