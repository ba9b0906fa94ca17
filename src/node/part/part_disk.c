/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part on disk: an object is a file of a store folder (store/remote/file), which is reached by
 * requests and never blocks the caller. Its bytes pass through a buffer. The folder has
 *
 *     incarnation    32 hex digits and a newline, written when the folder is made
 *     lock           for one process at a time
 *     objects/       the store
 *
 * Names in the index are those of files that are complete. A crash between a file's end and its
 * answer leaves an object that no manager knows, until a manager deletes that name.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/log/log.h"
#include "base/text/line.h"
#include "base/text/url.h"
#include "base/threads/threads.h"
#include "node/part/part_disk.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    WRITE_MS = 30000, /* of a file, and of its deletion */
    WAITING_MAX = 1024,
};

/* A request in progress: of a find, a drop or a room. */
struct disk_job {
    struct tierce__part_room own; /* of a room; object is NULL otherwise */
    struct tierce__store_req req;
    struct tierce_plugin_name name;
    struct tierce__disk_part *disk;
    struct tierce__keeper_call *call; /* of a find or a drop */
    struct tierce__keeper_room *room;
    char text[TIERCE_PLUGIN_NAME_MAX];
};

static struct tierce__disk_part *disk_of(struct tierce__part *part)
{
    return TIERCE__CONTAINER_OF(part, struct tierce__disk_part, part);
}

static struct disk_job *job_create(struct tierce__disk_part *disk,
                                   const struct tierce_plugin_name *name)
{
    struct disk_job *job = tierce__calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    TIERCE_ASSERT(name->bytes <= sizeof(job->text));
    memcpy(job->text, name->text, name->bytes);
    job->name = (struct tierce_plugin_name){.text = job->text, .bytes = name->bytes};
    job->disk = disk;
    job->req.names = &job->name;
    job->req.name_count = 1;
    job->req.arg = job;
    return job;
}

/* Whether the store may be called; then leave() follows. */
static bool enter(struct tierce__disk_part *disk)
{
    atomic_fetch_add_explicit(&disk->calling, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&disk->is_closed, memory_order_seq_cst))
        return true;
    atomic_fetch_sub_explicit(&disk->calling, 1, memory_order_seq_cst);
    return false;
}

static void leave(struct tierce__disk_part *disk)
{
    atomic_fetch_sub_explicit(&disk->calling, 1, memory_order_seq_cst);
}

void tierce__disk_part_submit(struct tierce__disk_part *disk, struct tierce__store_req *req)
{
    if (enter(disk)) {
        disk->connector->ops->submit(disk->connector, req);
        leave(disk);
    } else {
        req->status = TIERCE_E_CLOSED;
        req->done(req);
    }
}

void tierce__disk_part_why(struct tierce__disk_part *disk, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    why[0] = '\0';
    if (enter(disk)) {
        disk->connector->ops->why(disk->connector, why);
        leave(disk);
    }
}

static void submit(struct disk_job *job, enum tierce__store_op op,
                   enum tierce__connector_urgency urgency, uint64_t deadline_ns,
                   tierce__store_done_fn *done)
{
    job->req.op = op;
    job->req.urgency = urgency;
    job->req.deadline_ns = deadline_ns;
    job->req.done = done;
    tierce__disk_part_submit(job->disk, &job->req);
}

/* Ends the reference on a buffer, for which finds may wait. */
static void release(struct tierce__disk_part *disk, struct tierce__buf *buf)
{
    tierce__buf_release(buf);
    tierce__part_waits_tell(disk->waits);
}

static bool disk_has_waiting(struct tierce__part *part)
{
    return tierce__part_waits_any(disk_of(part)->waits);
}

static void disk_freed(struct tierce__part *part)
{
    tierce__part_waits_tell(disk_of(part)->waits);
}

/* ---- find ------------------------------------------------------------------------------------ */

static void on_read(struct tierce__store_req *req)
{
    struct disk_job *job = req->arg;
    struct tierce__keeper_call *call = job->call;
    int status = req->status;
    if (status == TIERCE_E_MISS || status == TIERCE_E_FORMAT) {
        /* Somebody else removed or cut the file. */
        tierce__part_index_remove(&job->disk->part.index, &job->name);
        status = TIERCE_E_MISS;
    }
    if (status == 0)
        call->lease = (struct tierce__keeper_lease){
            .data = job->own.buf->data, .bytes = req->length, .owner = job->own.buf};
    else
        release(job->disk, job->own.buf);
    tierce__free(job);
    tierce__part_end_call(call, status);
}

/* 0: the call has begun, or was answered. TIERCE_E_FULL: there is no buffer now. */
static int begin_find(struct tierce__disk_part *disk, struct tierce__keeper_call *call)
{
    struct tierce__part *part = &disk->part;
    uint64_t bytes = 0;
    if (!tierce__part_index_find(&part->index, &call->name, &bytes, NULL)) {
        tierce__part_end_call(call, TIERCE_E_MISS);
        return 0;
    }
    struct disk_job *job = job_create(disk, &call->name);
    int rc = job != NULL ? tierce__pool_alloc(part->pool, &job->own.buf, bytes) : -ENOMEM;
    if (rc != 0)
        tierce__free(job);
    if (rc == TIERCE_E_FULL) {
        atomic_store_explicit(&disk->needed_bytes, bytes, memory_order_relaxed);
        return rc;
    }
    if (rc != 0) {
        tierce__part_end_call(call, rc);
        return 0;
    }
    job->call = call;
    job->req.buf = job->own.buf;
    job->req.length = bytes;
    submit(job, TIERCE__STORE_GET, TIERCE__CONNECTOR_FETCH, call->deadline_ns, on_read);
    return 0;
}

static bool begin_waiting(void *arg, struct tierce__keeper_call *call)
{
    return begin_find(arg, call) == 0;
}

/* Finds wait for a buffer in the order of their arrival. A miss needs none, so it is answered at
 * once. */
static void disk_find(struct tierce__part *part, struct tierce__keeper_call *call)
{
    struct tierce__disk_part *disk = disk_of(part);
    uint64_t bytes;
    bool others_wait = tierce__part_waits_any(disk->waits);
    if (others_wait && !tierce__part_index_find(&part->index, &call->name, &bytes, NULL)) {
        tierce__part_end_call(call, TIERCE_E_MISS);
        return;
    }
    int rc = others_wait ? TIERCE_E_FULL : begin_find(disk, call);
    if (rc == TIERCE_E_FULL && (rc = tierce__part_waits_add(disk->waits, call)) != 0)
        tierce__part_end_call(call, rc);
}

/* ---- make and keep --------------------------------------------------------------------------- */

/* Writes do not wait, so they leave half of the buffers to finds that do; and all of them to an
 * object that needs more than half. */
static bool has_buffer(struct tierce__disk_part *disk, uint64_t bytes)
{
    uint64_t half = disk->buffer_bytes / 2;
    uint64_t writing = atomic_load_explicit(&disk->writing_bytes, memory_order_relaxed);
    if (!tierce__part_waits_any(disk->waits))
        return true;
    return atomic_load_explicit(&disk->needed_bytes, memory_order_relaxed) <= half &&
           writing <= half && bytes <= half - writing;
}

static int disk_make(struct tierce__part *part, struct tierce__keeper_room *room,
                     const struct tierce_plugin_name *name, uint64_t bytes)
{
    struct tierce__disk_part *disk = disk_of(part);
    if (!has_buffer(disk, bytes))
        return TIERCE_E_LIMIT;
    struct disk_job *job = job_create(disk, name);
    if (job == NULL)
        return -ENOMEM;
    int rc = tierce__part_make_room(part, &job->own, room, name, bytes);
    if (rc != 0) {
        tierce__free(job);
        return rc;
    }
    job->room = room;
    atomic_fetch_add_explicit(&disk->writing_bytes, bytes, memory_order_relaxed);
    return 0;
}

/* The bytes of a room have moved on, or will not. */
static void release_room(struct disk_job *job)
{
    atomic_fetch_sub_explicit(&job->disk->writing_bytes, job->own.object->bytes,
                              memory_order_relaxed);
    release(job->disk, job->own.buf);
    job->own.buf = NULL;
}

static void disk_abandon(struct tierce__part *part, struct tierce__keeper_room *room)
{
    struct disk_job *job = room->owner;
    TIERCE_ASSERT(job->own.part == part);
    release_room(job);
    tierce__part_index_cancel(&part->index, job->own.object);
    tierce__free(job);
}

/* The part has forgotten its objects while this one was written: its file is deleted, too. */
static void on_undone(struct tierce__store_req *req)
{
    struct disk_job *job = req->arg;
    struct tierce__keeper_room *room = job->room;
    tierce__part_index_cancel(&job->disk->part.index, job->own.object);
    tierce__free(job);
    tierce__part_end_room(room, TIERCE_E_DOWN);
}

static void on_written(struct tierce__store_req *req)
{
    struct disk_job *job = req->arg;
    struct tierce__keeper_room *room = job->room;
    int status = req->status;
    release_room(job);
    if (status != 0) {
        tierce__part_index_cancel(&job->disk->part.index, job->own.object);
    } else if (!tierce__part_index_publish(&job->disk->part.index, job->own.object)) {
        job->req.buf = NULL;
        submit(job, TIERCE__STORE_DELETE, TIERCE__CONNECTOR_STORE, tierce__deadline_in_ms(WRITE_MS),
               on_undone);
        return;
    }
    tierce__free(job);
    tierce__part_end_room(room, status == -ENOSPC || status == -EDQUOT ? TIERCE_E_FULL : status);
}

static void disk_keep(struct tierce__part *part, struct tierce__keeper_room *room)
{
    struct disk_job *job = room->owner;
    TIERCE_ASSERT(job->own.part == part && job->own.object->buf == NULL);
    job->req.buf = job->own.buf;
    job->req.length = room->bytes;
    submit(job, TIERCE__STORE_PUT, TIERCE__CONNECTOR_STORE, tierce__deadline_in_ms(WRITE_MS),
           on_written);
}

/* ---- drop ------------------------------------------------------------------------------------ */

/* Names are never used again, so an object of this name that became visible meanwhile is not taken
 * into account. */
static void on_dropped(struct tierce__store_req *req)
{
    struct disk_job *job = req->arg;
    struct tierce__keeper_call *call = job->call;
    int status = req->status;
    if (status == 0)
        tierce__part_index_remove(&job->disk->part.index, &job->name);
    tierce__free(job);
    tierce__part_end_call(call, status);
}

/* Also a name that is not in the index may have a file: of a write that was answered too late. */
static void disk_drop(struct tierce__part *part, struct tierce__keeper_call *call)
{
    struct disk_job *job = job_create(disk_of(part), &call->name);
    if (job == NULL) {
        tierce__part_end_call(call, -ENOMEM);
        return;
    }
    job->call = call;
    submit(job, TIERCE__STORE_DELETE, TIERCE__CONNECTOR_STORE, call->deadline_ns, on_dropped);
}

/* ---- the folder ------------------------------------------------------------------------------ */

static int make_folder(const char *path, char why[256])
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return 0;
    int rc = -errno;
    snprintf(why, 256, "pool.disk %.150s cannot be made: %s", path, tierce_strerror(rc));
    return rc;
}

static int lock_folder(struct tierce__disk_part *disk, const char *folder, char why[256])
{
    char *path = tierce__join_path(folder, "lock");
    int fd = path != NULL ? tierce__file_lock(path, 0) : -ENOMEM;
    tierce__free(path);
    if (fd >= 0) {
        disk->lock_fd = fd;
        return 0;
    }
    snprintf(why, 256, "pool.disk %.150s %s%s", folder,
             fd == TIERCE_E_LOCKED ? "belongs to another process that runs" : "cannot be locked: ",
             fd == TIERCE_E_LOCKED ? "" : tierce_strerror(fd));
    return fd;
}

/* A new part where another one was loses its blocks: the managers forget them when it registers. */
static int begin_part(struct tierce__disk_part *disk, const char *path,
                      const struct tierce__parts_opts *opts, char why[256])
{
    if (opts->disk_must_exist) {
        snprintf(why, 256,
                 "pool.disk %.120s has no part: mount the disk that has it, or set "
                 "pool.disk_new: true to begin with an empty one",
                 opts->disk_path);
        return -ENOENT;
    }
    int rc = tierce__disk_part_mark(path, disk->part.incarnation);
    if (rc == 0)
        tierce__log(
            TIERCE_LOG_WARN, "node_part_is_new",
            "space=disk path=\"%s\" consequence=\"the managers forget the blocks of an earlier "
            "part of this node\" hint=\"if the disk of that part is not mounted, end the node, "
            "mount it, and set pool.disk_new: false\"",
            opts->disk_path);
    return rc;
}

/* Reads the folder's incarnation, or makes one in a new folder. */
static int know_incarnation(struct tierce__disk_part *disk, const char *path, const char *objects,
                            const struct tierce__parts_opts *opts, char why[256])
{
    char *text = NULL;
    size_t length = 0;
    int rc = tierce__read_file(&text, &length, path, 64);
    if (rc == 0) {
        bool is_good = length == 2 * TIERCE__PART_INCARNATION_BYTES + 1 && text[length - 1] == '\n';
        if (is_good)
            text[length - 1] = '\0';
        if (!is_good ||
            !tierce__hex_decode(disk->part.incarnation, TIERCE__PART_INCARNATION_BYTES, text))
            rc = TIERCE_E_FORMAT;
        tierce__free(text);
    } else if (rc == -ENOENT) {
        rc = access(objects, F_OK) == 0 ? -EEXIST : begin_part(disk, path, opts, why);
    }
    if (rc == 0 || why[0] != '\0')
        return rc;
    if (rc == -EEXIST)
        snprintf(why, 256,
                 "%.150s is missing beside objects/: restore it, or remove the folder to give its "
                 "blocks up",
                 path);
    else if (rc == TIERCE_E_FORMAT || rc == -EFBIG)
        snprintf(why, 256,
                 "%.130s is damaged, it must be 32 hex digits and a newline: restore it, or remove "
                 "the folder to give its blocks up",
                 path);
    else
        snprintf(why, 256, "%.150s cannot be used: %s", path, tierce_strerror(rc));
    return rc;
}

static int open_connector(struct tierce__disk_part *disk, const char *objects, char why[256])
{
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = disk->part.pool};
    char text[TIERCE__CONNECTOR_WHY_BYTES] = "";
    struct tierce__line url = {0};
    tierce__line_put(&url, "file://");
    tierce__url_put_encoded(&url, objects);
    tierce__line_put_bytes(&url, "", 1);
    if (url.failed) {
        tierce__line_clear(&url);
        return -ENOMEM;
    }
    int rc = tierce__connector_open(&disk->connector, url.text, &opts, text);
    tierce__line_clear(&url);
    if (rc != 0)
        snprintf(why, 256, "pool.disk: %.230s", text[0] != '\0' ? text : tierce_strerror(rc));
    return rc;
}

static int open_folder(struct tierce__disk_part *disk, const struct tierce__parts_opts *opts,
                       char why[256])
{
    const char *folder = opts->disk_path;
    char *mark = tierce__join_path(folder, "incarnation");
    char *objects = tierce__join_path(folder, "objects");
    int rc = mark != NULL && objects != NULL ? make_folder(folder, why) : -ENOMEM;
    if (rc == 0)
        rc = lock_folder(disk, folder, why);
    if (rc == 0)
        rc = know_incarnation(disk, mark, objects, opts, why);
    if (rc == 0 && opts->store != NULL)
        disk->connector = opts->store;
    else if (rc == 0)
        rc = open_connector(disk, objects, why);
    disk->mark = mark;
    tierce__free(objects);
    return rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void disk_end(struct tierce__part *part, uint64_t deadline_ns)
{
    struct tierce__disk_part *disk = disk_of(part);
    tierce__lock_take(&disk->lock);
    disk->is_ending = true;
    tierce__cond_broadcast(&disk->ended);
    tierce__lock_drop(&disk->lock);
    tierce__part_waits_end(disk->waits);
    if (atomic_exchange_explicit(&disk->is_closed, true, memory_order_seq_cst))
        return;
    /* No such call blocks. */
    while (atomic_load_explicit(&disk->calling, memory_order_seq_cst) > 0)
        sched_yield();
    if (disk->connector != NULL)
        disk->is_abandoned = !disk->connector->ops->close(disk->connector, deadline_ns);
    if (disk->has_reader)
        (void)pthread_join(disk->reader, NULL);
}

static void disk_close(struct tierce__part *part)
{
    struct tierce__disk_part *disk = disk_of(part);
    if (disk->is_abandoned)
        part->pool = NULL; /* an abandoned call may still write to it */
    if (disk->lock_fd >= 0)
        (void)close(disk->lock_fd);
    tierce__part_waits_destroy(disk->waits);
    tierce__part_index_fini(&part->index);
    tierce__pool_destroy(part->pool);
    tierce__cond_fini(&disk->ended);
    tierce__lock_fini(&disk->lock);
    tierce__free(disk->mark);
    tierce__free(disk);
}

static const struct tierce__part_ops disk_ops = {
    .find = disk_find,
    .make = disk_make,
    .keep = disk_keep,
    .abandon = disk_abandon,
    .drop = disk_drop,
    .has_waiting = disk_has_waiting,
    .freed = disk_freed,
    .forget = tierce__disk_part_forget,
    .end = disk_end,
    .close = disk_close,
};

static int start_threads(struct tierce__disk_part *disk, const struct tierce__parts_opts *opts)
{
    const struct tierce__part_waits_opts waits = {
        .size = sizeof(waits),
        .calls_max = opts->waiting_max > 0 ? opts->waiting_max : WAITING_MAX,
        .begin = begin_waiting,
        .arg = disk};
    int rc = tierce__part_waits_create(&disk->waits, &waits);
    if (rc == 0)
        rc = tierce__thread_start(&disk->reader, tierce__disk_part_read, disk);
    disk->has_reader = rc == 0;
    return rc;
}

int tierce__part_disk_open(struct tierce__part **out, struct tierce__parts *parts,
                           const struct tierce__parts_opts *opts, char why[256])
{
    const struct tierce__pool_opts pool = {
        .size = sizeof(pool), .cap_bytes = opts->buffer_bytes, .no_touch = true};
    struct tierce__disk_part *disk = tierce__calloc(1, sizeof(*disk));
    why[0] = '\0';
    if (disk == NULL)
        return -ENOMEM;
    disk->part.ops = &disk_ops;
    disk->part.space = "disk";
    disk->part.parts = parts;
    disk->part.status = -EINPROGRESS;
    disk->lock_fd = -1;
    disk->capacity_bytes = opts->disk_bytes;
    disk->buffer_bytes = opts->buffer_bytes;
    int rc = tierce__part_index_init(&disk->part.index, UINT64_MAX);
    if (rc != 0) {
        tierce__free(disk);
        return rc;
    }
    tierce__lock_init(&disk->lock, TIERCE__LOCK_PART_DISK);
    tierce__cond_init(&disk->ended);
    rc = tierce__pool_create(&disk->part.pool, &pool);
    if (rc == 0)
        rc = open_folder(disk, opts, why);
    if (rc == 0)
        rc = start_threads(disk, opts);
    if (rc == 0) {
        *out = &disk->part;
        return 0;
    }
    disk_end(&disk->part, tierce__now_ns());
    disk_close(&disk->part);
    return rc;
}
