/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All objects of a part on disk, page by page: their names are read when the node starts, and their
 * files are deleted when the part is to forget them. Both run on threads of their own.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log/log.h"
#include "node/part/part_disk.h"
#include "store/await.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    ASK_MS = 30000, /* of a request */
    AT_ONCE = 64,   /* requests in progress */
    PAUSE_MS_MIN = 10,
    PAUSE_MS_MAX = 30000, /* between tries */
    LOOKS = 6,            /* tries to look at an object, while the store answers otherwise */
    PATIENT_OBJECTS = 3,  /* after so many that could not be looked at, each gets one try */
    LOGGED_OBJECTS = 8,   /* of those; the others are counted in the event "part_ready" */
};

/* ---- requests that are waited for ------------------------------------------------------------ */

/* Requests in progress. */
struct batch {
    struct tierce__await await;
    struct tierce__store_req reqs[AT_ONCE];
    struct tierce_plugin_name names[AT_ONCE];
    size_t count;
};

/* The names of a page, NUL-terminated, one behind the other. */
struct page {
    char *text;
    size_t bytes, room;
    int status;
};

/* An answer to one request, with the names that it lists. */
struct answer {
    struct tierce__await await;
    struct page page;
};

static void on_answer(struct tierce__store_req *req)
{
    (void)tierce__await_answer(req->arg);
}

static void submit(struct tierce__disk_part *disk, struct tierce__store_req *req,
                   struct tierce__await *await)
{
    req->done = on_answer;
    req->arg = await;
    req->deadline_ns = tierce__deadline_in_ms(ASK_MS);
    tierce__await_expect(await);
    tierce__disk_part_submit(disk, req);
}

/* A store answers by the deadline, and when it is closed, so the wait needs no deadline. */
static void wait_for(struct tierce__await *await)
{
    bool all = tierce__await_end(await, TIERCE__DEADLINE_NEVER);
    TIERCE_ASSERT(all);
}

static int ask(struct tierce__disk_part *disk, struct tierce__store_req *req)
{
    struct tierce__await await;
    tierce__await_begin(&await);
    submit(disk, req, &await);
    wait_for(&await);
    return req->status;
}

static bool is_closing(const struct tierce__disk_part *disk)
{
    return atomic_load_explicit(&disk->part.is_closing, memory_order_relaxed);
}

/* Before the next try. False: the part is being closed. */
static bool pause_before(struct tierce__disk_part *disk, unsigned try)
{
    unsigned ms = PAUSE_MS_MAX;
    if (try < 12 && (unsigned)PAUSE_MS_MIN << try < PAUSE_MS_MAX)
        ms = (unsigned)PAUSE_MS_MIN << try;
    uint64_t until_ns = tierce__deadline_in_ms(ms);
    tierce__lock_take(&disk->lock);
    while (!disk->is_ending && tierce__now_ns() < until_ns)
        (void)tierce__cond_wait(&disk->ended, &disk->lock, until_ns);
    bool goes_on = !disk->is_ending;
    tierce__lock_drop(&disk->lock);
    return goes_on;
}

/* ---- pages of names -------------------------------------------------------------------------- */

static void put_name(struct page *page, const struct tierce_plugin_name *name)
{
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

static void on_name(void *arg, const struct tierce_plugin_name *name)
{
    put_name(arg, name);
}

/* `arg` of a request of the store is that of its answer. */
static void on_listed(void *arg, const struct tierce_plugin_name *name)
{
    put_name(&TIERCE__CONTAINER_OF(arg, struct answer, await)->page, name);
}

/* Asks for `op` on the next names of a page, as many as are possible at once. */
static void ask_some(struct tierce__disk_part *disk, struct batch *batch, enum tierce__store_op op,
                     const struct page *page, size_t *at)
{
    tierce__await_begin(&batch->await);
    for (batch->count = 0; batch->count < AT_ONCE && *at < page->bytes; batch->count++) {
        struct tierce__store_req *req = &batch->reqs[batch->count];
        struct tierce_plugin_name *name = &batch->names[batch->count];
        *name = (struct tierce_plugin_name){.text = page->text + *at,
                                            .bytes = strlen(page->text + *at)};
        *req = (struct tierce__store_req){.op = op,
                                          .urgency = op == TIERCE__STORE_DELETE
                                                         ? TIERCE__CONNECTOR_STORE
                                                         : TIERCE__CONNECTOR_PEEK,
                                          .names = name,
                                          .name_count = 1};
        submit(disk, req, &batch->await);
        *at += name->bytes + 1;
    }
    wait_for(&batch->await);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reading {
    struct tierce__disk_part *disk;
    struct batch batch;
    uint64_t skipped;
};

/* The part is not ready yet, and why. */
static void tell_trouble(struct tierce__disk_part *disk, int rc)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES], text[192];
    tierce__disk_part_why(disk, why);
    snprintf(text, sizeof(text), "its folder cannot be read: %.150s",
             why[0] != '\0' ? why : tierce_strerror(rc));
    tierce__part_report(&disk->part, -EINPROGRESS, text);
}

/* An object that cannot be looked at, although the store answers. It is a miss, and its bytes are
 * not counted, until a manager deletes it or the node starts again. */
static int skip(struct reading *reading, const struct tierce_plugin_name *name, int rc)
{
    if (reading->skipped++ < LOGGED_OBJECTS)
        tierce__log(TIERCE_LOG_ERROR, "part_object_unreadable",
                    "space=disk name=\"%.*s\" err=\"%s\"", (int)name->bytes, name->text,
                    tierce_strerror(rc));
    return 0;
}

/* A look has failed: looks again. 0: `look` has the answer, or nothing is found. */
static int look_again(struct reading *reading, struct tierce__store_req *look)
{
    struct tierce__disk_part *disk = reading->disk;
    unsigned looks = reading->skipped < PATIENT_OBJECTS ? LOOKS : 1, try = 0;
    struct tierce__store_req ping = {.op = TIERCE__STORE_PING, .urgency = TIERCE__CONNECTOR_PEEK};
    while (look->status != 0 && look->status != TIERCE_E_MISS) {
        tell_trouble(disk, look->status);
        if (++try >= looks && ask(disk, &ping) == 0) {
            look->found = 0;
            return skip(reading, look->names, look->status);
        }
        if (!pause_before(disk, try - 1))
            return TIERCE_E_CLOSED;
        look->found = 0;
        (void)ask(disk, look);
    }
    return 0;
}

static int take_in(struct reading *reading, struct tierce__store_req *look)
{
    struct tierce__part_index *index = &reading->disk->part.index;
    struct tierce__part_object *object = NULL;
    int rc = look_again(reading, look);
    if (rc != 0 || look->found == 0 || look->object_bytes == 0)
        return rc;
    rc = tierce__part_index_reserve(index, &object, look->names, look->object_bytes);
    if (rc == 0 && !tierce__part_index_publish(index, object))
        tierce__part_index_cancel(index, object);
    return rc;
}

static int take_page(struct reading *reading, const struct page *page)
{
    int rc = page->status;
    for (size_t at = 0; at < page->bytes && rc == 0;) {
        ask_some(reading->disk, &reading->batch, TIERCE__STORE_LOOKUP, page, &at);
        for (size_t i = 0; i < reading->batch.count && rc == 0; i++)
            rc = take_in(reading, &reading->batch.reqs[i]);
        if (rc == 0 && is_closing(reading->disk))
            rc = TIERCE_E_CLOSED;
    }
    return rc;
}

/* The next page of names. The store is asked until it answers. */
static int list_page(struct tierce__disk_part *disk, struct page *out, uint64_t *cursor)
{
    static const struct tierce_plugin_name all = {.text = "", .bytes = 0};
    for (unsigned try = 0;; try++) {
        struct answer answer = {.page = {0}};
        struct tierce__store_req list = {.op = TIERCE__STORE_LIST,
                                         .urgency = TIERCE__CONNECTOR_STORE,
                                         .names = &all,
                                         .name_count = 1,
                                         .cursor = *cursor,
                                         .each = on_listed};
        tierce__await_begin(&answer.await);
        submit(disk, &list, &answer.await);
        wait_for(&answer.await);
        int rc = list.status != 0 ? list.status : answer.page.status;
        if (rc == 0) {
            *cursor = list.cursor;
            *out = answer.page;
            return 0;
        }
        tierce__free(answer.page.text);
        tell_trouble(disk, rc);
        if (!pause_before(disk, try))
            return TIERCE_E_CLOSED;
    }
}

static int read_names(struct reading *reading)
{
    uint64_t cursor = 0;
    int rc;
    do {
        struct page page = {0};
        rc = list_page(reading->disk, &page, &cursor);
        if (rc == 0)
            rc = take_page(reading, &page);
        tierce__free(page.text);
    } while (rc == 0 && cursor != 0);
    return rc;
}

/* Memory has failed, and not the store. */
static int read_until_done(struct reading *reading)
{
    int rc;
    for (unsigned try = 0;; try++) {
        rc = read_names(reading);
        if (rc == 0 || rc == TIERCE_E_CLOSED)
            return rc;
        tell_trouble(reading->disk, rc);
        if (!pause_before(reading->disk, try))
            return TIERCE_E_CLOSED;
    }
}

void *tierce__disk_part_read(void *arg)
{
    struct tierce__disk_part *disk = arg;
    struct tierce__part *part = &disk->part;
    uint64_t capacity_bytes, used_bytes, objects, begun_ns = tierce__now_ns();
    struct reading *reading = tierce__calloc(1, sizeof(*reading));
    while (reading == NULL && pause_before(disk, 0))
        reading = tierce__calloc(1, sizeof(*reading));
    if (reading == NULL)
        return NULL;
    reading->disk = disk;
    int rc = read_until_done(reading);
    /* A part that has been made smaller keeps what it has. */
    tierce__part_index_set_capacity(&part->index, disk->capacity_bytes);
    tierce__part_index_count(&part->index, &capacity_bytes, &used_bytes, &objects);
    if (rc == 0)
        tierce__log(TIERCE_LOG_INFO, "part_ready",
                    "space=disk objects=%llu bytes=%llu unreadable=%llu ms=%llu",
                    (unsigned long long)objects, (unsigned long long)used_bytes,
                    (unsigned long long)reading->skipped,
                    (unsigned long long)((tierce__now_ns() - begun_ns) / TIERCE__MS_NS));
    tierce__free(reading);
    tierce__part_report(part, rc, "");
    return NULL;
}

/* ---- forgetting ------------------------------------------------------------------------------ */

int tierce__disk_part_mark(const char *path, uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES])
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

/* An object leaves the index when its file is gone, so none is lost from sight. */
static int delete_page(struct tierce__disk_part *disk, struct batch *batch, const struct page *page)
{
    int rc = page->status;
    for (size_t at = 0; at < page->bytes && rc == 0;) {
        ask_some(disk, batch, TIERCE__STORE_DELETE, page, &at);
        for (size_t i = 0; i < batch->count; i++) {
            if (batch->reqs[i].status == 0)
                tierce__part_index_remove(&disk->part.index, &batch->names[i]);
            else
                rc = batch->reqs[i].status;
        }
        if (is_closing(disk))
            rc = TIERCE_E_CLOSED;
    }
    return rc;
}

int tierce__disk_part_forget(struct tierce__part *part,
                             uint8_t incarnation[TIERCE__PART_INCARNATION_BYTES])
{
    static const struct tierce_plugin_name all = {.text = "", .bytes = 0};
    struct tierce__disk_part *disk = TIERCE__CONTAINER_OF(part, struct tierce__disk_part, part);
    struct batch *batch = tierce__calloc(1, sizeof(*batch));
    uint64_t cursor = 0;
    int rc = batch != NULL ? 0 : -ENOMEM;
    if (rc != 0)
        return rc;
    tierce__part_index_expire(&part->index);
    do {
        struct page page = {0};
        rc = tierce__part_index_list(&part->index, &all, &cursor, on_name, &page);
        if (rc == 0)
            rc = delete_page(disk, batch, &page);
        tierce__free(page.text);
    } while (rc == 0 && cursor != 0);
    tierce__free(batch);
    return rc == 0 ? tierce__disk_part_mark(disk->mark, incarnation) : rc;
}
