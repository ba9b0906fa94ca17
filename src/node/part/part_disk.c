/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part on disk: an object is a file of a store folder (store/remote/file), which is reached by
 * requests and never blocks the caller. The folder has
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
#include "node/part/part_private.h"
#include "store/await.h"
#include "store/remote/connector.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    WRITE_MS = 30000, /* of a file, and of its deletion */
    READ_MS = 30000,  /* of a page of names, when the folder is read */
};

struct disk_part {
    struct tierce__part part;
    struct tierce__connector *connector;
    int lock_fd;
    char *mark; /* the path of the incarnation */
    pthread_t reader;
    bool has_reader;
    uint64_t capacity_bytes; /* counts once the folder is read */
    _Atomic bool is_closing; /* relaxed: a flag alone */
    void (*known)(void *arg);
    void *known_arg;
};

/* A request in progress: of a find, a drop or a room. */
struct disk_job {
    struct tierce__part_room own; /* of a room; object is NULL otherwise */
    struct tierce__store_req req;
    struct tierce_plugin_name name;
    struct disk_part *disk;
    struct tierce__keeper_call *call; /* of a find or a drop */
    struct tierce__keeper_room *room;
    char text[TIERCE_PLUGIN_NAME_MAX];
};

static struct disk_part *disk_of(struct tierce__part *part)
{
    return TIERCE__CONTAINER_OF(part, struct disk_part, part);
}

static struct disk_job *job_create(struct disk_part *disk, const struct tierce_plugin_name *name)
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

static void submit(struct disk_job *job, enum tierce__store_op op,
                   enum tierce__connector_urgency urgency, uint64_t deadline_ns,
                   tierce__store_done_fn *done)
{
    job->req.op = op;
    job->req.urgency = urgency;
    job->req.deadline_ns = deadline_ns;
    job->req.done = done;
    job->disk->connector->ops->submit(job->disk->connector, &job->req);
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
        tierce__buf_release(job->own.buf);
    tierce__free(job);
    tierce__part_end_call(call, status);
}

static void disk_find(struct tierce__part *part, struct tierce__keeper_call *call)
{
    struct disk_part *disk = disk_of(part);
    uint64_t bytes = 0;
    if (!tierce__part_index_find(&part->index, &call->name, &bytes, NULL)) {
        tierce__part_end_call(call, TIERCE_E_MISS);
        return;
    }
    struct disk_job *job = job_create(disk, &call->name);
    int rc = job != NULL ? tierce__pool_alloc(part->pool, &job->own.buf, bytes) : -ENOMEM;
    if (rc != 0) {
        tierce__free(job);
        tierce__part_end_call(call, rc == -ENOMEM ? rc : TIERCE_E_LIMIT);
        return;
    }
    job->call = call;
    job->req.buf = job->own.buf;
    job->req.length = bytes;
    submit(job, TIERCE__STORE_GET, TIERCE__CONNECTOR_FETCH, call->deadline_ns, on_read);
}

/* ---- make and keep --------------------------------------------------------------------------- */

static int disk_make(struct tierce__part *part, struct tierce__keeper_room *room,
                     const struct tierce_plugin_name *name, uint64_t bytes)
{
    struct disk_job *job = job_create(disk_of(part), name);
    if (job == NULL)
        return -ENOMEM;
    int rc = tierce__part_make_room(part, &job->own, room, name, bytes);
    if (rc != 0)
        tierce__free(job);
    else
        job->room = room;
    return rc;
}

static void disk_abandon(struct tierce__part *part, struct tierce__keeper_room *room)
{
    struct disk_job *job = room->owner;
    TIERCE_ASSERT(job->own.part == part);
    tierce__buf_release(job->own.buf);
    tierce__part_index_cancel(&part->index, job->own.object);
    tierce__free(job);
}

static void on_written(struct tierce__store_req *req)
{
    struct disk_job *job = req->arg;
    struct tierce__keeper_room *room = job->room;
    struct tierce__part *part = job->own.part;
    int status = req->status;
    if (status != 0) {
        disk_abandon(part, room);
    } else {
        tierce__part_index_publish(&part->index, job->own.object);
        tierce__buf_release(job->own.buf);
        tierce__free(job);
    }
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

/* ---- reading the folder ---------------------------------------------------------------------- */

/* The names of a page, NUL-terminated, one behind the other; `arg` of requests for which a thread
 * waits. */
struct page {
    struct tierce__await await;
    char *text;
    size_t bytes, room;
    int status;
};

static void on_answer(struct tierce__store_req *req)
{
    struct page *page = req->arg;
    (void)tierce__await_answer(&page->await);
}

static void on_name(void *arg, const struct tierce_plugin_name *name)
{
    struct page *page = arg;
    size_t need = page->bytes + name->bytes + 1;
    if (page->status == 0 && need > page->room) {
        char *text = tierce__realloc(page->text, need * 2);
        page->status = text != NULL ? 0 : -ENOMEM;
        page->text = text != NULL ? text : page->text;
        page->room = text != NULL ? need * 2 : page->room;
    }
    if (page->status != 0)
        return;
    TIERCE_ASSERT(need <= page->room);
    memcpy(page->text + page->bytes, name->text, name->bytes);
    page->text[need - 1] = '\0';
    page->bytes = need;
}

/* A connector answers by the deadline, so the wait needs none. */
static int ask(struct disk_part *disk, struct tierce__store_req *req, struct page *page)
{
    tierce__await_begin(&page->await);
    req->done = on_answer;
    req->arg = page;
    req->deadline_ns = tierce__deadline_in_ms(READ_MS);
    tierce__await_expect(&page->await);
    disk->connector->ops->submit(disk->connector, req);
    bool all = tierce__await_end(&page->await, TIERCE__DEADLINE_NEVER);
    TIERCE_ASSERT(all);
    return req->status;
}

static int take_in(struct disk_part *disk, const struct tierce_plugin_name *name)
{
    struct page page = {0};
    struct tierce__part_object *object = NULL;
    struct tierce__store_req look = {.op = TIERCE__STORE_LOOKUP,
                                     .urgency = TIERCE__CONNECTOR_PEEK,
                                     .names = name,
                                     .name_count = 1};
    int rc = ask(disk, &look, &page);
    if (rc != 0 || look.found == 0 || look.object_bytes == 0)
        return rc == TIERCE_E_MISS ? 0 : rc;
    rc = tierce__part_index_reserve(&disk->part.index, &object, name, look.object_bytes);
    if (rc == 0)
        tierce__part_index_publish(&disk->part.index, object);
    return rc;
}

static int take_page(struct disk_part *disk, const struct page *page)
{
    int rc = page->status;
    for (size_t at = 0; at < page->bytes && rc == 0;) {
        const struct tierce_plugin_name name = {.text = page->text + at,
                                                .bytes = strlen(page->text + at)};
        rc = take_in(disk, &name);
        at += name.bytes + 1;
        if (atomic_load_explicit(&disk->is_closing, memory_order_relaxed))
            return TIERCE_E_CLOSED;
    }
    return rc;
}

static int read_names(struct disk_part *disk)
{
    uint64_t cursor = 0;
    int rc;
    do {
        struct page page = {0};
        struct tierce__store_req list = {.op = TIERCE__STORE_LIST,
                                         .urgency = TIERCE__CONNECTOR_STORE,
                                         .cursor = cursor,
                                         .each = on_name};
        rc = ask(disk, &list, &page);
        cursor = list.cursor;
        if (rc == 0)
            rc = take_page(disk, &page);
        tierce__free(page.text);
    } while (rc == 0 && cursor != 0);
    return rc;
}

static void *run_reader(void *arg)
{
    struct disk_part *disk = arg;
    struct tierce__part *part = &disk->part;
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    uint64_t capacity_bytes, used_bytes, objects, begun_ns = tierce__now_ns();
    int rc = read_names(disk);
    if (rc != 0 && rc != TIERCE_E_CLOSED) {
        disk->connector->ops->why(disk->connector, why);
        snprintf(part->why, sizeof(part->why), "its folder cannot be read: %.150s",
                 why[0] != '\0' ? why : tierce_strerror(rc));
        tierce__log(TIERCE_LOG_ERROR, "part_unreadable", "space=disk err=\"%s\"", part->why);
    }
    /* A part that has been made smaller keeps what it has. */
    tierce__part_index_set_capacity(&part->index, disk->capacity_bytes);
    atomic_store_explicit(&part->status, rc, memory_order_release);
    tierce__part_index_count(&part->index, &capacity_bytes, &used_bytes, &objects);
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "part_ready", "space=disk objects=%llu bytes=%llu ms=%llu",
                    (unsigned long long)objects, (unsigned long long)used_bytes,
                    (unsigned long long)((tierce__now_ns() - begun_ns) / TIERCE__MS_NS));
    disk->known(disk->known_arg);
    return NULL;
}

/* ---- forgetting ------------------------------------------------------------------------------ */

static int write_incarnation(const char *path, uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES])
{
    char text[2 * TIERCE__PART_INCARNATION_BYTES + 1];
    struct tierce__new_file file = {0};
    int rc = tierce__part_new_incarnation(incarnation);
    if (rc == 0)
        rc = tierce__new_file_open(&file, path);
    if (rc != 0)
        return rc;
    tierce__hex_encode(text, incarnation, TIERCE__PART_INCARNATION_BYTES);
    bool is_good = fprintf(file.file, "%s\n", text) > 0;
    return tierce__new_file_close(&file, is_good);
}

static int delete_page(struct disk_part *disk, const struct page *page)
{
    struct page waiting = {0};
    int rc = page->status;
    for (size_t at = 0; at < page->bytes && rc == 0;) {
        const struct tierce_plugin_name name = {.text = page->text + at,
                                                .bytes = strlen(page->text + at)};
        struct tierce__store_req gone = {.op = TIERCE__STORE_DELETE,
                                         .urgency = TIERCE__CONNECTOR_STORE,
                                         .names = &name,
                                         .name_count = 1};
        rc = ask(disk, &gone, &waiting);
        at += name.bytes + 1;
    }
    return rc;
}

static int disk_forget(struct tierce__part *part,
                       uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES])
{
    static const struct tierce_plugin_name all = {.text = "", .bytes = 0};
    struct disk_part *disk = disk_of(part);
    uint64_t cursor = 0;
    int rc;
    do {
        struct page page = {0};
        rc = tierce__part_index_list(&part->index, &all, &cursor, on_name, &page);
        if (rc == 0)
            rc = delete_page(disk, &page);
        tierce__free(page.text);
    } while (rc == 0 && cursor != 0);
    if (rc != 0)
        return rc;
    tierce__part_index_clear(&part->index);
    return write_incarnation(disk->mark, incarnation);
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

static int lock_folder(struct disk_part *disk, const char *folder, char why[256])
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

/* Reads the folder's incarnation, or makes one in a new folder. */
static int know_incarnation(struct disk_part *disk, const char *path, const char *objects,
                            char why[256])
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
        rc = access(objects, F_OK) == 0 ? -EEXIST : write_incarnation(path, disk->part.incarnation);
    }
    if (rc == -EEXIST)
        snprintf(why, 256,
                 "%.150s is missing beside objects/: restore it, or remove the folder to give its "
                 "blocks up",
                 path);
    else if (rc != 0)
        snprintf(why, 256, "%.150s cannot be used: %s", path, tierce_strerror(rc));
    return rc;
}

static int open_connector(struct disk_part *disk, const char *objects, char why[256])
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

static int open_folder(struct disk_part *disk, const char *folder, char why[256])
{
    char *mark = tierce__join_path(folder, "incarnation");
    char *objects = tierce__join_path(folder, "objects");
    int rc = mark != NULL && objects != NULL ? make_folder(folder, why) : -ENOMEM;
    if (rc == 0)
        rc = lock_folder(disk, folder, why);
    if (rc == 0)
        rc = know_incarnation(disk, mark, objects, why);
    if (rc == 0)
        rc = open_connector(disk, objects, why);
    disk->mark = mark;
    tierce__free(objects);
    return rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void disk_close(struct tierce__part *part, uint64_t deadline_ns)
{
    struct disk_part *disk = disk_of(part);
    atomic_store_explicit(&disk->is_closing, true, memory_order_relaxed);
    if (disk->has_reader)
        (void)pthread_join(disk->reader, NULL);
    if (disk->connector != NULL && !disk->connector->ops->close(disk->connector, deadline_ns))
        part->pool = NULL; /* an abandoned call may still write to it */
    if (disk->lock_fd >= 0)
        (void)close(disk->lock_fd);
    tierce__part_index_fini(&part->index);
    tierce__pool_destroy(part->pool);
    tierce__free(disk->mark);
    tierce__free(disk);
}

static const struct tierce__part_ops disk_ops = {
    .find = disk_find,
    .make = disk_make,
    .keep = disk_keep,
    .abandon = disk_abandon,
    .drop = disk_drop,
    .forget = disk_forget,
    .close = disk_close,
};

static int start_reader(struct disk_part *disk)
{
    int rc = tierce__thread_start(&disk->reader, run_reader, disk);
    disk->has_reader = rc == 0;
    return rc;
}

int tierce__part_disk_open(struct tierce__part **out, const struct tierce__parts_opts *opts,
                           void (*known)(void *arg), void *arg, char why[256])
{
    const struct tierce__pool_opts pool = {
        .size = sizeof(pool), .cap_bytes = opts->buffer_bytes, .no_touch = true};
    struct disk_part *disk = tierce__calloc(1, sizeof(*disk));
    why[0] = '\0';
    if (disk == NULL)
        return -ENOMEM;
    disk->part.ops = &disk_ops;
    disk->part.space = "disk";
    disk->part.status = -EINPROGRESS;
    disk->lock_fd = -1;
    disk->capacity_bytes = opts->disk_bytes;
    disk->known = known;
    disk->known_arg = arg;
    int rc = tierce__part_index_init(&disk->part.index, UINT64_MAX);
    if (rc != 0) {
        tierce__free(disk);
        return rc;
    }
    rc = tierce__pool_create(&disk->part.pool, &pool);
    if (rc == 0)
        rc = open_folder(disk, opts->disk_path, why);
    if (rc == 0)
        rc = start_reader(disk);
    if (rc == 0)
        *out = &disk->part;
    else
        disk_close(&disk->part, tierce__now_ns());
    return rc;
}
