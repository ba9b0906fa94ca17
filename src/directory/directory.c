/* SPDX-License-Identifier: Apache-2.0 */
#include "directory/directory.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"
#include "directory/directory_private.h"

#define DIRECTORY_MAGIC 0x44495231u
#define WORKERS_DEFAULT 4096u
#define SILENCE_DEFAULT 10000000000ULL
#define GROUPS_MAX      65536u
/* Of 256 epochs, the present one and the one before may be valid. */
#define EPOCHS_MAX 250u

/* ---- the whole ------------------------------------------------------------------------------- */

static int create_slots(struct tierce__directory *directory)
{
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
    tierce__free(directory->groups);
    tierce__lock_fini(&directory->lock);
    tierce__free(directory);
}

/* ---- epochs ---------------------------------------------------------------------------------- */

static void publish(struct tierce__directory_slot *slot, uint32_t flags)
{
    tierce__lock_assert_held(&slot->lock);
    atomic_store_explicit(&slot->view, slot->epoch << 8 | flags, memory_order_release);
}

/* Something that the worker held is not valid any more. */
static void need_clean(struct tierce__directory *directory, struct tierce__directory_slot *slot)
{
    tierce__lock_assert_held(&directory->lock);
    bool is_between = directory->shard_at == 0 && directory->entry_at == 0;
    slot->clean_round = directory->rounds + (is_between ? 1 : 2);
    if (slot->epochs_used == 0) {
        slot->epochs_used = 1;
        directory->dirty++;
    }
}

/* Moves all that it holds to an earlier epoch. */
static void advance(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                    uint32_t flags)
{
    TIERCE_DASSERT(slot->epochs_used < EPOCHS_MAX);
    need_clean(directory, slot);
    slot->epochs_used++;
    slot->epoch = (slot->epoch + 1) % TIERCE__DIRECTORY_EPOCHS;
    atomic_store_explicit(&slot->keys, 0, memory_order_relaxed);
    publish(slot, flags);
}

static bool holds_nothing(const struct tierce__directory_slot *slot)
{
    return atomic_load_explicit(&slot->keys, memory_order_relaxed) == 0 &&
           (atomic_load(&slot->view) & TIERCE__DIRECTORY_PREVIOUS) == 0;
}

/* ---- joining and leaving --------------------------------------------------------------------- */

uint64_t tierce__directory_host(const struct tierce__directory *directory, const char *host)
{
    return host[0] != '\0' ? tierce__mix(tierce__hash_text(directory->seed, host)) | 1 : 0;
}

static uint32_t find_group(const struct tierce__directory *directory, const char *name)
{
    tierce__lock_assert_held(&directory->lock);
    for (uint32_t i = 0; i < directory->group_count; i++) {
        if (strcmp(directory->groups[i], name) == 0)
            return i + 1;
    }
    return 0;
}

uint32_t tierce__directory_group(struct tierce__directory *directory, const char *name)
{
    tierce__lock_take(&directory->lock);
    uint32_t group = find_group(directory, name);
    tierce__lock_drop(&directory->lock);
    return group;
}

/* The number of a group, which is new perhaps. Below zero: an error. */
static int64_t add_group(struct tierce__directory *directory, const char *name)
{
    uint32_t known = find_group(directory, name);
    if (known != 0)
        return known;
    if (directory->group_count >= GROUPS_MAX)
        return TIERCE_E_LIMIT;
    int rc = TIERCE__GROW(directory->groups, directory->group_room, directory->group_count + 1u, 4);
    if (rc < 0)
        return rc;
    memcpy(directory->groups[directory->group_count], name, strlen(name) + 1);
    return ++directory->group_count;
}

static void leave_locked(struct tierce__directory *directory, struct tierce__directory_slot *slot)
{
    tierce__lock_take(&slot->lock);
    TIERCE_DASSERT(slot->is_joined && directory->worker_count > 0);
    slot->is_joined = slot->is_sending = slot->is_synced = false;
    atomic_store(&slot->session, 0);
    publish(slot, 0);
    need_clean(directory, slot);
    directory->worker_count--;
    tierce__lock_drop(&slot->lock);
}

static struct tierce__directory_slot *find_name(struct tierce__directory *directory, uint32_t group,
                                                const char *name)
{
    for (uint32_t i = 0; i < directory->slots_used; i++) {
        struct tierce__directory_slot *slot = &directory->slots[i];
        if (slot->is_joined && atomic_load(&slot->group) == group && strcmp(slot->name, name) == 0)
            return slot;
    }
    return NULL;
}

/* A slot that nobody uses. NULL: none, or those that left have no epoch until they are clean. */
static struct tierce__directory_slot *free_slot(struct tierce__directory *directory)
{
    for (uint32_t i = 0; i < directory->slots_used; i++) {
        if (!directory->slots[i].is_joined && directory->slots[i].epochs_used < EPOCHS_MAX)
            return &directory->slots[i];
    }
    return directory->slots_used < directory->opts.workers_max
               ? &directory->slots[directory->slots_used++]
               : NULL;
}

static void enter(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                  const struct tierce__directory_worker *worker, uint32_t group, uint64_t now_ns)
{
    tierce__lock_take(&slot->lock);
    slot->is_joined = true;
    slot->next = 1;
    slot->gaps = slot->left_out = 0;
    memcpy(slot->name, worker->name, strlen(worker->name) + 1);
    memcpy(slot->address, worker->address, strlen(worker->address) + 1);
    memcpy(slot->host_name, worker->host, strlen(worker->host) + 1);
    atomic_store(&slot->group, group);
    atomic_store(&slot->host, tierce__directory_host(directory, worker->host));
    atomic_store(&slot->load, 0);
    atomic_store(&slot->seen_ns, now_ns);
    atomic_store(&slot->session, ++directory->session);
    directory->worker_count++;
    advance(directory, slot, TIERCE__DIRECTORY_ALIVE); /* after the rest: lookups see it now */
    tierce__lock_drop(&slot->lock);
}

static bool is_short(const char *text, size_t bytes)
{
    return text != NULL && strnlen(text, bytes) < bytes;
}

int tierce__directory_join(struct tierce__directory *directory,
                           const struct tierce__directory_worker *worker, uint64_t now_ns,
                           struct tierce__directory_id *id)
{
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    if (!is_short(worker->group, TIERCE__DIRECTORY_NAME_BYTES) ||
        !is_short(worker->name, TIERCE__DIRECTORY_NAME_BYTES) || worker->name[0] == '\0' ||
        !is_short(worker->address, TIERCE__DIRECTORY_NAME_BYTES) ||
        !is_short(worker->host, TIERCE__DIRECTORY_HOST_BYTES))
        return TIERCE_E_ARGUMENT;
    tierce__lock_take(&directory->lock);
    int64_t group = add_group(directory, worker->group);
    struct tierce__directory_slot *slot = NULL;
    if (group > 0) {
        slot = find_name(directory, (uint32_t)group, worker->name);
        if (slot != NULL)
            leave_locked(directory, slot);
        slot = free_slot(directory);
        if (slot != NULL)
            enter(directory, slot, worker, (uint32_t)group, now_ns);
    }
    if (slot != NULL)
        *id = (struct tierce__directory_id){atomic_load(&slot->session),
                                            (uint32_t)(slot - directory->slots)};
    tierce__lock_drop(&directory->lock);
    if (group < 0)
        return (int)group;
    return slot != NULL ? 0 : TIERCE_E_LIMIT;
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

enum tierce__directory_answer tierce__directory_leave(struct tierce__directory *directory,
                                                      struct tierce__directory_id id)
{
    tierce__lock_take(&directory->lock);
    struct tierce__directory_slot *slot = slot_of(directory, id);
    if (slot != NULL)
        leave_locked(directory, slot);
    tierce__lock_drop(&directory->lock);
    return slot != NULL ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_UNKNOWN;
}

uint32_t tierce__directory_expire(struct tierce__directory *directory, uint64_t now_ns)
{
    uint32_t count = 0;
    tierce__lock_take(&directory->lock);
    for (uint32_t i = 0; i < directory->slots_used; i++) {
        struct tierce__directory_slot *slot = &directory->slots[i];
        uint64_t seen_ns = atomic_load(&slot->seen_ns);
        if (atomic_load(&slot->session) == 0 || now_ns < seen_ns ||
            now_ns - seen_ns < directory->opts.silence_ns)
            continue;
        leave_locked(directory, slot);
        count++;
    }
    tierce__lock_drop(&directory->lock);
    return count;
}

/* ---- reports --------------------------------------------------------------------------------- */

/* Takes the lock of a worker that is still there. NULL: it is not, and no lock is held. */
static struct tierce__directory_slot *hold(struct tierce__directory *directory,
                                           struct tierce__directory_id id, uint64_t now_ns)
{
    struct tierce__directory_slot *slot = slot_of(directory, id);
    if (slot == NULL)
        return NULL;
    tierce__lock_take(&slot->lock);
    if (atomic_load(&slot->session) != id.session) {
        tierce__lock_drop(&slot->lock);
        return NULL;
    }
    atomic_store(&slot->seen_ns, now_ns);
    return slot;
}

enum tierce__directory_answer tierce__directory_beat(struct tierce__directory *directory,
                                                     struct tierce__directory_id id, uint32_t load,
                                                     uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold(directory, id, now_ns);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    atomic_store(&slot->load, load);
    bool is_synced = slot->is_synced || slot->is_sending;
    tierce__lock_drop(&slot->lock);
    return is_synced ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_RESYNC;
}

/* Of a worker whose lock is held. */
static void apply(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                  const struct tierce__directory_change *changes, size_t count)
{
    tierce__lock_assert_held(&slot->lock);
    slot->left_out += tierce__directory_apply(directory, changes, count,
                                              (uint32_t)(slot - directory->slots), slot->epoch);
}

enum tierce__directory_answer
tierce__directory_report(struct tierce__directory *directory, struct tierce__directory_id id,
                         uint64_t first, const struct tierce__directory_change *changes,
                         size_t count, uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold(directory, id, now_ns);
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
        slot->gaps++;
    }
    tierce__lock_drop(&slot->lock);
    return answer;
}

enum tierce__directory_answer tierce__directory_sync_begin(struct tierce__directory *directory,
                                                           struct tierce__directory_id id,
                                                           uint64_t now_ns)
{
    enum tierce__directory_answer answer = TIERCE__DIRECTORY_DONE;
    tierce__lock_take(&directory->lock);
    struct tierce__directory_slot *slot = hold(directory, id, now_ns);
    if (slot == NULL) {
        answer = TIERCE__DIRECTORY_UNKNOWN;
    } else {
        if (!holds_nothing(slot) && slot->epochs_used >= EPOCHS_MAX)
            answer = TIERCE__DIRECTORY_LATER;
        else if (!holds_nothing(slot))
            advance(directory, slot, TIERCE__DIRECTORY_ALIVE | TIERCE__DIRECTORY_PREVIOUS);
        slot->is_synced = false;
        slot->is_sending = answer == TIERCE__DIRECTORY_DONE;
        tierce__lock_drop(&slot->lock);
    }
    tierce__lock_drop(&directory->lock);
    return answer;
}

enum tierce__directory_answer
tierce__directory_sync_add(struct tierce__directory *directory, struct tierce__directory_id id,
                           const struct tierce__directory_change *contents, size_t count,
                           uint64_t now_ns)
{
    struct tierce__directory_slot *slot = hold(directory, id, now_ns);
    if (slot == NULL)
        return TIERCE__DIRECTORY_UNKNOWN;
    bool is_sending = slot->is_sending;
    if (is_sending)
        apply(directory, slot, contents, count);
    tierce__lock_drop(&slot->lock);
    return is_sending ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_RESYNC;
}

enum tierce__directory_answer tierce__directory_sync_end(struct tierce__directory *directory,
                                                         struct tierce__directory_id id,
                                                         uint64_t covered, uint64_t now_ns)
{
    enum tierce__directory_answer answer = TIERCE__DIRECTORY_UNKNOWN;
    tierce__lock_take(&directory->lock);
    struct tierce__directory_slot *slot = hold(directory, id, now_ns);
    if (slot != NULL) {
        bool is_end = slot->is_sending && covered < UINT64_MAX;
        answer = is_end ? TIERCE__DIRECTORY_DONE : TIERCE__DIRECTORY_RESYNC;
        if (is_end) {
            slot->is_sending = false;
            slot->is_synced = true;
            slot->next = covered + 1;
            publish(slot, TIERCE__DIRECTORY_ALIVE);
            need_clean(directory, slot);
        }
        tierce__lock_drop(&slot->lock);
    }
    tierce__lock_drop(&directory->lock);
    return answer;
}

/* ---- cleaning -------------------------------------------------------------------------------- */

/* A round has ended. */
static void end_round(struct tierce__directory *directory)
{
    directory->rounds++;
    directory->shard_at = directory->entry_at = 0;
    for (uint32_t i = 0; i < directory->slots_used; i++) {
        struct tierce__directory_slot *slot = &directory->slots[i];
        if (slot->epochs_used > 0 && slot->clean_round <= directory->rounds) {
            slot->epochs_used = 0;
            directory->dirty--;
        }
    }
}

bool tierce__directory_clean(struct tierce__directory *directory, uint32_t entries)
{
    TIERCE_CHECK_MAGIC(directory, DIRECTORY_MAGIC);
    tierce__lock_take(&directory->lock);
    if (directory->dirty > 0) {
        bool more = tierce__directory_clean_shard(directory, directory->shard_at,
                                                  &directory->entry_at, entries);
        if (!more) {
            directory->entry_at = 0;
            directory->shard_at++;
        }
        if (directory->shard_at == TIERCE__DIRECTORY_SHARDS)
            end_round(directory);
    }
    bool is_dirty = directory->dirty > 0;
    tierce__lock_drop(&directory->lock);
    return is_dirty;
}

/* ---- figures --------------------------------------------------------------------------------- */

static void describe(struct tierce__directory *directory, struct tierce__directory_slot *slot,
                     struct tierce__directory_about *out)
{
    tierce__lock_take(&slot->lock);
    *out = (struct tierce__directory_about){
        .id = {atomic_load(&slot->session), (uint32_t)(slot - directory->slots)},
        .seen_ns = atomic_load(&slot->seen_ns),
        .next = slot->next,
        .keys = (uint64_t)atomic_load(&slot->keys),
        .gaps = slot->gaps,
        .left_out = slot->left_out,
        .load = atomic_load(&slot->load),
        .is_synced = slot->is_synced};
    memcpy(out->group, directory->groups[atomic_load(&slot->group) - 1], sizeof(out->group));
    memcpy(out->name, slot->name, sizeof(out->name));
    memcpy(out->address, slot->address, sizeof(out->address));
    memcpy(out->host, slot->host_name, sizeof(out->host));
    tierce__lock_drop(&slot->lock);
}

bool tierce__directory_about(struct tierce__directory *directory, struct tierce__directory_id id,
                             struct tierce__directory_about *out)
{
    tierce__lock_take(&directory->lock);
    struct tierce__directory_slot *slot = slot_of(directory, id);
    if (slot != NULL)
        describe(directory, slot, out);
    tierce__lock_drop(&directory->lock);
    return slot != NULL;
}

bool tierce__directory_next(struct tierce__directory *directory, uint32_t *from,
                            struct tierce__directory_about *out)
{
    bool found = false;
    tierce__lock_take(&directory->lock);
    while (!found && *from < directory->slots_used) {
        struct tierce__directory_slot *slot = &directory->slots[(*from)++];
        found = slot->is_joined;
        if (found)
            describe(directory, slot, out);
    }
    tierce__lock_drop(&directory->lock);
    return found;
}

void tierce__directory_stats(struct tierce__directory *directory,
                             struct tierce__directory_stats *out)
{
    *out = (struct tierce__directory_stats){0};
    tierce__lock_take(&directory->lock);
    out->workers = directory->worker_count;
    out->is_clean = directory->dirty == 0;
    tierce__lock_drop(&directory->lock);
    tierce__directory_table_stats(directory, out);
}
