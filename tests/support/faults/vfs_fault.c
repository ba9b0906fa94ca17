/* SPDX-License-Identifier: Apache-2.0 */
#include "vfs_fault.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"
#include "vfs_cut.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define RULE_MAX   16
#define SHADOW_MAX 256

struct tierce__vfs_file {
    struct tierce__vfs_file *inner;
    struct tierce__cut_file *cut; /* NULL without power */
};

/* One submitted transfer on its way through the inner vfs. */
struct shadow {
    struct tierce__vfs_io io;
    struct tierce__vfs_io *outer;
    struct fault *fault;
    struct tierce__list node;
    struct tierce__cut_effect *effect;
    uint64_t due_ns;
    int error; /* ready: the answer in place of a disk access */
    bool flip;
    uint64_t bit;
};

struct rule {
    struct tierce__vfs_fault_rule rule;
    uint64_t seen;
};

struct fault {
    struct tierce__vfs base;
    struct tierce__vfs *inner;
    struct tierce__lock lock;
    struct rule rules[RULE_MAX];
    unsigned rule_count;
    uint64_t counts[TIERCE__FAULT_COUNTERS];
    struct tierce__cut *cut; /* NULL without power */
    uint64_t seed;
    bool dead;
    struct tierce__list held;  /* shadows that are late or hang; the lock */
    struct tierce__list ready; /* shadows with an error to deliver; owner thread */
    struct tierce__list spare; /* owner thread */
    struct shadow shadows[SHADOW_MAX];
};

/* The script's decision about one operation. */
struct verdict {
    int error;
    uint64_t delay_ns;
    bool hang;
    bool flip;
    uint64_t bit;
};

static bool fits(enum tierce__fault_kind rule, enum tierce__fault_kind kind, bool change)
{
    return rule == kind || rule == TIERCE__FAULT_ANY || (rule == TIERCE__FAULT_CHANGE && change);
}

/* Counts an operation and asks the script. Under the lock. */
static struct verdict judge(struct fault *f, enum tierce__fault_kind kind, bool change)
{
    struct verdict v = {0};
    f->counts[kind]++;
    f->counts[TIERCE__FAULT_ANY]++;
    f->counts[TIERCE__FAULT_CHANGE] += change;
    for (unsigned i = 0; i < f->rule_count; i++) {
        struct rule *r = &f->rules[i];
        if (!fits(r->rule.kind, kind, change))
            continue;
        r->seen++;
        if (r->seen != r->rule.nth && !(r->rule.forever && r->seen > r->rule.nth))
            continue;
        switch (r->rule.action) {
        case TIERCE__FAULT_FAIL:
            v.error = r->rule.error;
            break;
        case TIERCE__FAULT_LATE:
            v.delay_ns = r->rule.delay_ns;
            break;
        case TIERCE__FAULT_HANG:
            v.hang = true;
            break;
        case TIERCE__FAULT_FLIP:
            v.flip = true;
            v.bit = r->rule.bit;
            break;
        case TIERCE__FAULT_CUT:
            f->dead = true;
            break;
        case TIERCE__FAULT_KILL:
            kill(getpid(), SIGKILL);
            break;
        }
    }
    if (f->dead)
        v.error = -EIO;
    return v;
}

/* The same for a blocking call, which also waits here if it is to be late. */
static struct verdict enter(struct fault *f, enum tierce__fault_kind kind, bool change)
{
    tierce__lock_take(&f->lock);
    struct verdict v = judge(f, kind, change);
    tierce__lock_drop(&f->lock);
    if (v.delay_ns > 0) {
        struct timespec ts = {.tv_sec = (time_t)(v.delay_ns / 1000000000ULL),
                              .tv_nsec = (long)(v.delay_ns % 1000000000ULL)};
        nanosleep(&ts, NULL);
    }
    return v;
}

/* After a call: if the power was cut meanwhile, its result does not count. */
static int leave(struct fault *f, int rc)
{
    tierce__lock_take(&f->lock);
    if (f->dead)
        rc = -EIO;
    tierce__lock_drop(&f->lock);
    return rc;
}

static void flip_bit(uint8_t *data, uint64_t length, uint64_t bit)
{
    bit %= length * 8;
    data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
}

static int enter_folder(struct tierce__vfs *vfs, const char *folder)
{
    struct fault *f = (struct fault *)vfs;
    int rc = f->inner->ops->enter(f->inner, folder);
    if (rc == 0 && f->cut != NULL)
        rc = tierce__cut_enter(f->cut, f->inner->folder);
    if (rc == 0)
        vfs->folder = f->inner->folder;
    return rc;
}

/* The cut's own descriptor of the folder stays. */
static void leave_folder(struct tierce__vfs *vfs)
{
    struct fault *f = (struct fault *)vfs;
    f->inner->ops->leave(f->inner);
    vfs->folder = f->inner->folder;
}

static int open_file(struct tierce__vfs *vfs, struct tierce__vfs_file **out, const char *path,
                     unsigned flags)
{
    struct fault *f = (struct fault *)vfs;
    bool change = (flags & (TIERCE__VFS_CREATE | TIERCE__VFS_TRUNCATE)) != 0;
    struct verdict v = enter(f, TIERCE__FAULT_OPEN, change);
    if (v.error != 0)
        return v.error;
    struct tierce__vfs_file *file = tierce__calloc(1, sizeof(*file));
    if (file == NULL)
        return -ENOMEM;
    bool tracked = f->cut != NULL && (flags & TIERCE__VFS_READONLY) == 0;
    int rc = 0;
    if (tracked && (flags & TIERCE__VFS_EXCLUSIVE) != 0) {
        if (faccessat(vfs->folder, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
            tierce__free(file);
            return -EEXIST;
        }
        flags &= ~TIERCE__VFS_EXCLUSIVE; /* to follow what happens to it, it is made first */
    }
    if (tracked) {
        tierce__lock_take(&f->lock);
        file->cut = tierce__cut_open(f->cut, path, (flags & TIERCE__VFS_CREATE) != 0,
                                     (flags & TIERCE__VFS_TRUNCATE) != 0);
        tierce__lock_drop(&f->lock);
    }
    rc = f->inner->ops->open(f->inner, &file->inner, path, flags);
    if (rc == 0 && tracked && file->cut == NULL) {
        f->inner->ops->close(f->inner, file->inner);
        rc = -ENOMEM;
    }
    if (rc < 0) {
        tierce__lock_take(&f->lock);
        if (file->cut != NULL)
            tierce__cut_close(f->cut, file->cut);
        tierce__lock_drop(&f->lock);
        tierce__free(file);
        return rc;
    }
    *out = file;
    return 0;
}

static void close_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    struct fault *f = (struct fault *)vfs;
    if (file == NULL)
        return;
    f->inner->ops->close(f->inner, file->inner);
    tierce__lock_take(&f->lock);
    if (file->cut != NULL)
        tierce__cut_close(f->cut, file->cut);
    tierce__lock_drop(&f->lock);
    tierce__free(file);
}

static int read_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, void *data,
                     size_t length, uint64_t offset)
{
    struct fault *f = (struct fault *)vfs;
    struct verdict v = enter(f, TIERCE__FAULT_READ, false);
    if (v.error != 0)
        return v.error;
    int rc = f->inner->ops->read(f->inner, file->inner, data, length, offset);
    if (rc == 0 && v.flip)
        flip_bit(data, length, v.bit);
    return rc;
}

/* Notes a change before it is made; -EIO if that is not possible. */
static int note(struct fault *f, struct tierce__vfs_file *file, struct tierce__cut_effect **effect,
                const void *data, uint64_t offset, uint64_t length)
{
    *effect = NULL;
    if (file->cut == NULL)
        return 0;
    tierce__lock_take(&f->lock);
    *effect = tierce__cut_begin(f->cut, file->cut, data, offset, length);
    tierce__lock_drop(&f->lock);
    return *effect != NULL ? 0 : -EIO;
}

static void ended(struct fault *f, struct tierce__cut_effect *effect)
{
    if (effect == NULL)
        return;
    tierce__lock_take(&f->lock);
    if (!f->dead)
        tierce__cut_ended(f->cut, effect);
    tierce__lock_drop(&f->lock);
}

static int write_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, const void *data,
                      size_t length, uint64_t offset)
{
    struct fault *f = (struct fault *)vfs;
    struct tierce__cut_effect *effect;
    struct verdict v = enter(f, TIERCE__FAULT_WRITE, true);
    if (v.error != 0)
        return v.error;
    int rc = note(f, file, &effect, data, offset, length);
    if (rc < 0)
        return rc;
    rc = f->inner->ops->write(f->inner, file->inner, data, length, offset);
    ended(f, effect);
    return leave(f, rc);
}

static int sync_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    struct fault *f = (struct fault *)vfs;
    struct verdict v = enter(f, TIERCE__FAULT_SYNC, true);
    if (v.error != 0)
        return v.error;
    uint64_t mark = 0;
    tierce__lock_take(&f->lock);
    if (f->cut != NULL)
        mark = tierce__cut_mark(f->cut);
    tierce__lock_drop(&f->lock);
    int rc = f->inner->ops->sync(f->inner, file->inner);
    tierce__lock_take(&f->lock);
    if (f->dead)
        rc = -EIO;
    if (rc == 0 && file->cut != NULL)
        tierce__cut_covered(f->cut, file->cut, mark);
    tierce__lock_drop(&f->lock);
    return rc;
}

static int64_t length_of(struct tierce__vfs *vfs, struct tierce__vfs_file *file)
{
    struct fault *f = (struct fault *)vfs;
    return f->inner->ops->length(f->inner, file->inner);
}

static int truncate_file(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t length)
{
    struct fault *f = (struct fault *)vfs;
    struct tierce__cut_effect *effect;
    struct verdict v = enter(f, TIERCE__FAULT_TRUNCATE, true);
    if (v.error != 0)
        return v.error;
    int rc = note(f, file, &effect, NULL, length, 0);
    if (rc < 0)
        return rc;
    rc = f->inner->ops->truncate(f->inner, file->inner, length);
    ended(f, effect);
    return leave(f, rc);
}

static int allocate(struct tierce__vfs *vfs, struct tierce__vfs_file *file, uint64_t offset,
                    uint64_t length)
{
    struct fault *f = (struct fault *)vfs;
    struct tierce__cut_effect *effect;
    struct verdict v = enter(f, TIERCE__FAULT_ALLOCATE, true);
    if (v.error != 0)
        return v.error;
    int rc = note(f, file, &effect, NULL, offset, length);
    if (rc < 0)
        return rc;
    rc = f->inner->ops->allocate(f->inner, file->inner, offset, length);
    ended(f, effect);
    return leave(f, rc);
}

static int rename_file(struct tierce__vfs *vfs, const char *from, const char *to)
{
    struct fault *f = (struct fault *)vfs;
    struct verdict v = enter(f, TIERCE__FAULT_RENAME, true);
    if (v.error != 0)
        return v.error;
    uint64_t undo = 0;
    tierce__lock_take(&f->lock);
    int rc = f->cut != NULL ? tierce__cut_rename(f->cut, &undo, from, to) : 0;
    if (rc == 0)
        rc = f->inner->ops->rename(f->inner, from, to);
    if (rc < 0 && undo != 0)
        tierce__cut_cancel(f->cut, undo);
    tierce__lock_drop(&f->lock);
    return leave(f, rc);
}

static int unlink_file(struct tierce__vfs *vfs, const char *path)
{
    struct fault *f = (struct fault *)vfs;
    struct verdict v = enter(f, TIERCE__FAULT_UNLINK, true);
    if (v.error != 0)
        return v.error;
    uint64_t undo = 0;
    tierce__lock_take(&f->lock);
    int rc = f->cut != NULL ? tierce__cut_unlink(f->cut, &undo, path) : 0;
    if (rc == 0)
        rc = f->inner->ops->unlink(f->inner, path);
    if (rc < 0 && undo != 0)
        tierce__cut_cancel(f->cut, undo);
    tierce__lock_drop(&f->lock);
    return leave(f, rc);
}

static int make_folder(struct tierce__vfs *vfs, const char *path)
{
    struct fault *f = (struct fault *)vfs;
    struct verdict v = enter(f, TIERCE__FAULT_MAKE_FOLDER, true);
    return v.error != 0 ? v.error : f->inner->ops->make_folder(f->inner, path);
}

static int sync_folder(struct tierce__vfs *vfs, const char *path)
{
    struct fault *f = (struct fault *)vfs;
    struct verdict v = enter(f, TIERCE__FAULT_SYNC_FOLDER, true);
    if (v.error != 0)
        return v.error;
    tierce__lock_take(&f->lock);
    uint64_t mark = f->cut != NULL ? tierce__cut_mark(f->cut) : 0;
    tierce__lock_drop(&f->lock);
    int rc = f->inner->ops->sync_folder(f->inner, path);
    tierce__lock_take(&f->lock);
    if (f->dead)
        rc = -EIO;
    if (rc == 0 && f->cut != NULL)
        tierce__cut_folder_covered(f->cut, path, mark);
    tierce__lock_drop(&f->lock);
    return rc;
}

/* The inner transfer is over. Owner thread. */
static void inner_done(struct tierce__vfs_io *io)
{
    struct shadow *s = io->arg;
    struct fault *f = s->fault;
    struct tierce__vfs_io *outer = s->outer;
    ended(f, s->effect);
    tierce__lock_take(&f->lock);
    outer->result = f->dead && io->result >= 0 ? -EIO : io->result;
    tierce__lock_drop(&f->lock);
    if (outer->result >= 0 && s->flip)
        flip_bit(outer->data, outer->length, s->bit);
    tierce__list_push_back(&f->spare, &s->node);
    outer->done(outer);
}

/* Sends a shadow to the disk, or makes it ready with an error. Owner thread. */
static void start(struct fault *f, struct shadow *s)
{
    struct tierce__vfs_io *outer = s->outer;
    tierce__lock_take(&f->lock);
    if (f->dead)
        s->error = -EIO;
    tierce__lock_drop(&f->lock);
    if (s->error == 0 && outer->is_write)
        s->error = note(f, outer->file, &s->effect, outer->data, outer->offset, outer->length);
    if (s->error != 0) {
        tierce__list_push_back(&f->ready, &s->node);
        return;
    }
    s->io = (struct tierce__vfs_io){.file = outer->file->inner,
                                    .is_write = outer->is_write,
                                    .data = outer->data,
                                    .offset = outer->offset,
                                    .length = outer->length,
                                    .done = inner_done,
                                    .arg = s};
    f->inner->ops->submit(f->inner, &s->io);
}

static void submit(struct tierce__vfs *vfs, struct tierce__vfs_io *io)
{
    struct fault *f = (struct fault *)vfs;
    TIERCE_ASSERT(!tierce__list_empty(&f->spare));
    struct shadow *s = TIERCE__CONTAINER_OF(f->spare.next, struct shadow, node);
    tierce__list_remove(&s->node);
    tierce__lock_take(&f->lock);
    struct verdict v = judge(
        f, io->is_write ? TIERCE__FAULT_SUBMIT_WRITE : TIERCE__FAULT_SUBMIT_READ, io->is_write);
    bool held = v.error == 0 && (v.hang || v.delay_ns > 0);
    s->outer = io;
    s->fault = f;
    s->effect = NULL;
    s->error = v.error;
    s->flip = v.flip && !io->is_write;
    s->bit = v.bit;
    s->due_ns = v.hang ? TIERCE__DEADLINE_NEVER : tierce__now_ns() + v.delay_ns;
    if (held) /* under the same lock as the count: a thread that saw the count can release this */
        tierce__list_push_back(&f->held, &s->node);
    tierce__lock_drop(&f->lock);
    if (!held)
        start(f, s);
}

/* Delivers requests that failed without touching the disk. */
static unsigned deliver(struct fault *f)
{
    unsigned ran = 0;
    while (!tierce__list_empty(&f->ready)) {
        struct shadow *s = TIERCE__CONTAINER_OF(f->ready.next, struct shadow, node);
        tierce__list_remove(&s->node);
        struct tierce__vfs_io *outer = s->outer;
        outer->result = s->error;
        tierce__list_push_back(&f->spare, &s->node);
        outer->done(outer);
        ran++;
    }
    return ran;
}

/* Starts requests that were delayed long enough; returns when the next one is due. */
static uint64_t start_due(struct fault *f)
{
    struct tierce__list due;
    tierce__list_init(&due);
    uint64_t next = TIERCE__DEADLINE_NEVER, now = tierce__now_ns();
    tierce__lock_take(&f->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &f->held) {
        struct shadow *s = TIERCE__CONTAINER_OF(it, struct shadow, node);
        if (s->due_ns <= now) {
            tierce__list_remove(it);
            tierce__list_push_back(&due, it);
        } else if (s->due_ns < next) {
            next = s->due_ns;
        }
    }
    tierce__lock_drop(&f->lock);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &due) {
        tierce__list_remove(it);
        start(f, TIERCE__CONTAINER_OF(it, struct shadow, node));
    }
    return next;
}

static unsigned poll_fault(struct tierce__vfs *vfs, uint64_t deadline_ns)
{
    struct fault *f = (struct fault *)vfs;
    uint64_t next = start_due(f);
    unsigned ran = deliver(f);
    if (ran > 0)
        deadline_ns = 0;
    ran += f->inner->ops->poll(f->inner, next < deadline_ns ? next : deadline_ns);
    start_due(f);
    return ran + deliver(f);
}

static void wake(struct tierce__vfs *vfs)
{
    struct fault *f = (struct fault *)vfs;
    f->inner->ops->wake(f->inner);
}

static void use_memory(struct tierce__vfs *vfs, uint8_t *base, uint64_t bytes)
{
    struct fault *f = (struct fault *)vfs;
    f->inner->ops->use_memory(f->inner, base, bytes);
}

static void destroy(struct tierce__vfs *vfs)
{
    struct fault *f = (struct fault *)vfs;
    if (f == NULL)
        return;
    TIERCE_ASSERT(tierce__list_empty(&f->held) && tierce__list_empty(&f->ready));
    f->inner->ops->destroy(f->inner);
    if (f->cut != NULL && f->dead)
        tierce__cut_apply(f->cut, f->seed);
    tierce__cut_destroy(f->cut);
    tierce__lock_fini(&f->lock);
    tierce__free(f);
}

static const struct tierce__vfs_ops fault_ops = {
    .name = "fault",
    .enter = enter_folder,
    .leave = leave_folder,
    .open = open_file,
    .close = close_file,
    .read = read_file,
    .write = write_file,
    .sync = sync_file,
    .length = length_of,
    .truncate = truncate_file,
    .allocate = allocate,
    .rename = rename_file,
    .unlink = unlink_file,
    .make_folder = make_folder,
    .sync_folder = sync_folder,
    .submit = submit,
    .poll = poll_fault,
    .wake = wake,
    .use_memory = use_memory,
    .destroy = destroy,
};

int tierce__vfs_fault_create(struct tierce__vfs **out, struct tierce__vfs *inner, bool power)
{
    struct fault *f = tierce__calloc(1, sizeof(*f));
    if (f == NULL)
        return -ENOMEM;
    int rc = power ? tierce__cut_create(&f->cut) : 0;
    if (rc < 0) {
        tierce__free(f);
        return rc;
    }
    f->base.ops = &fault_ops;
    f->base.folder = inner->folder;
    f->inner = inner;
    tierce__lock_init(&f->lock, TIERCE__LOCK_FAULT);
    tierce__list_init(&f->held);
    tierce__list_init(&f->ready);
    tierce__list_init(&f->spare);
    for (unsigned i = 0; i < SHADOW_MAX; i++)
        tierce__list_push_back(&f->spare, &f->shadows[i].node);
    *out = &f->base;
    return 0;
}

void tierce__vfs_fault_add(struct tierce__vfs *vfs, const struct tierce__vfs_fault_rule *rule)
{
    struct fault *f = (struct fault *)vfs;
    tierce__lock_take(&f->lock);
    TIERCE_ASSERT(f->rule_count < RULE_MAX);
    f->rules[f->rule_count++] = (struct rule){.rule = *rule};
    tierce__lock_drop(&f->lock);
}

void tierce__vfs_fault_clear(struct tierce__vfs *vfs)
{
    struct fault *f = (struct fault *)vfs;
    tierce__lock_take(&f->lock);
    f->rule_count = 0;
    tierce__lock_drop(&f->lock);
}

uint64_t tierce__vfs_fault_count(struct tierce__vfs *vfs, enum tierce__fault_kind kind)
{
    struct fault *f = (struct fault *)vfs;
    tierce__lock_take(&f->lock);
    uint64_t count = f->counts[kind];
    tierce__lock_drop(&f->lock);
    return count;
}

void tierce__vfs_fault_release(struct tierce__vfs *vfs)
{
    struct fault *f = (struct fault *)vfs;
    tierce__lock_take(&f->lock);
    TIERCE__LIST_FOR_EACH (it, &f->held)
        TIERCE__CONTAINER_OF(it, struct shadow, node)->due_ns = 0;
    tierce__lock_drop(&f->lock);
    f->inner->ops->wake(f->inner);
}

void tierce__vfs_fault_power_cut(struct tierce__vfs *vfs)
{
    struct fault *f = (struct fault *)vfs;
    tierce__lock_take(&f->lock);
    f->dead = true;
    tierce__lock_drop(&f->lock);
}

void tierce__vfs_fault_seed(struct tierce__vfs *vfs, uint64_t seed)
{
    struct fault *f = (struct fault *)vfs;
    tierce__lock_take(&f->lock);
    f->seed = seed;
    tierce__lock_drop(&f->lock);
}
