/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/storage_worker.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define WORKER_MAGIC 0x7477726bu

enum storage_work {
    REMOVE,         /* paths */
    REMOVE_LISTED,  /* paths that have not changed since `changed_us` */
    MEASURE,        /* paths */
    MEASURE_MARKED, /* paths, if the storage has the mark */
    READ,           /* a range of a path into `data` */
    LIST,           /* the next page */
    END_LIST,
    READ_MARK,
    REPLACE_MARK,
};

/* The caller frees it; if the caller has given up, the thread does. */
struct storage_job {
    struct tierce__list node;
    struct tierce__cond ended; /* its own, because several callers wait for jobs */
    enum storage_work work;
    size_t count, done, taken; /* of paths, at least 1; taken: those of the current driver call */
    bool is_left;              /* the caller has given up */
    int *status;
    uint64_t *bytes;
    char **paths;
    int64_t *changed_us;
    struct tierce__storage_page *page;
    bool is_first; /* page of its listing */
    uint64_t offset;
    void *data; /* of `data_bytes` */
    size_t data_bytes;
    struct tierce__storage_mark mark;
    enum tierce__mark_state state; /* of the mark */
    char why[128];
};

struct tierce__storage_worker {
    uint32_t magic;
    const struct tierce__storage_ops *ops;
    struct tierce__storage_driver *driver;
    uint64_t timeout_ns;
    pthread_t thread;

    struct tierce__lock lock; /* guards the fields below */
    struct tierce__cond wanted;
    struct tierce__cond changed; /* a probe or the thread has ended */
    unsigned references;         /* of the thread and of holders */
    struct tierce__list jobs;
    struct storage_job *current;
    uint64_t busy_ns; /* start of the current driver call; 0: none */
    bool wants_probe, is_ending, has_ended, is_joined;
    struct tierce__storage_mark mark; /* of the next probe */
    struct tierce__storage_report report;
};

/* ---- jobs ------------------------------------------------------------------------------------ */

static void free_job(struct storage_job *job)
{
    TIERCE_DASSERT(job->done <= job->count);
    TIERCE_ASSERT(tierce__list_empty(&job->node));
    for (size_t i = 0; job->paths != NULL && i < job->count; i++)
        tierce__free(job->paths[i]);
    tierce__free(job->paths);
    tierce__free(job->status);
    tierce__free(job->bytes);
    if (job->page != NULL)
        tierce__storage_page_clear(job->page);
    tierce__free(job->page);
    tierce__free(job->changed_us);
    tierce__free(job->data);
    tierce__cond_fini(&job->ended);
    tierce__free(job);
}

/* A job of `count` paths; `paths` NULL: of none, with one status. NULL: no memory. */
static struct storage_job *make_job(enum storage_work work, const struct tierce__storage_mark *mark,
                                    const char *const *paths, size_t count)
{
    struct storage_job *job = tierce__calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    TIERCE_ASSERT(count > 0 && (paths != NULL || count == 1));
    job->work = work;
    job->count = count;
    tierce__list_init(&job->node);
    tierce__cond_init(&job->ended);
    if (mark != NULL)
        job->mark = *mark;
    job->status = tierce__calloc(count, sizeof(*job->status));
    job->paths = tierce__calloc(count, sizeof(*job->paths));
    bool measures = work == MEASURE || work == MEASURE_MARKED;
    if (measures)
        job->bytes = tierce__calloc(count, sizeof(*job->bytes));
    bool is_whole = job->status != NULL && job->paths != NULL && (job->bytes != NULL || !measures);
    for (size_t i = 0; is_whole && paths != NULL && i < count; i++) {
        job->paths[i] = tierce__strdup(paths[i]);
        is_whole = job->paths[i] != NULL;
    }
    if (is_whole)
        return job;
    free_job(job);
    return NULL;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Drops a reference and frees the worker if it was the last. Always drops the lock. */
static void drop_reference(struct tierce__storage_worker *worker)
{
    tierce__lock_assert_held(&worker->lock);
    TIERCE_ASSERT(worker->references > 0);
    bool is_last = --worker->references == 0;
    tierce__lock_drop(&worker->lock);
    if (!is_last)
        return;
    TIERCE_ASSERT(worker->current == NULL && tierce__list_empty(&worker->jobs));
    worker->ops->close(worker->driver);
    tierce__cond_fini(&worker->wanted);
    tierce__cond_fini(&worker->changed);
    tierce__lock_fini(&worker->lock);
    worker->magic = 0;
    tierce__free(worker);
}

/* begin and got_on surround calls that may hang: the lock is not held meanwhile, and other threads
 * see the start time. They are not woken after each call: they look when the call that they saw
 * would hang. */
static void begin(struct tierce__storage_worker *worker)
{
    tierce__lock_assert_held(&worker->lock);
    TIERCE_ASSERT(worker->busy_ns == 0);
    TIERCE_DASSERT(!worker->has_ended);
    worker->busy_ns = tierce__now_ns();
    tierce__lock_drop(&worker->lock);
}

static void got_on(struct tierce__storage_worker *worker)
{
    tierce__lock_take(&worker->lock);
    TIERCE_ASSERT(worker->busy_ns != 0);
    worker->busy_ns = 0;
}

/* The number of files of the next driver call. */
static size_t take_count(const struct tierce__storage_worker *worker, const struct storage_job *job)
{
    size_t left = job->count - job->done;
    TIERCE_DASSERT(left > 0);
    bool is_many =
        worker->ops->remove_many != NULL &&
        (job->work == REMOVE || (job->work == REMOVE_LISTED && worker->ops->remove_listed == NULL));
    if (!is_many)
        return 1;
    return left < TIERCE__STORAGE_BATCH_MAX ? left : TIERCE__STORAGE_BATCH_MAX;
}

static void remove_taken(struct tierce__storage_worker *worker, struct storage_job *job)
{
    size_t at = job->done;
    if (worker->ops->remove_many != NULL)
        worker->ops->remove_many(worker->driver, (const char *const *)&job->paths[at], job->taken,
                                 &job->status[at]);
    else
        job->status[at] = worker->ops->remove(worker->driver, job->paths[at]);
}

static void remove_listed(struct tierce__storage_worker *worker, struct storage_job *job)
{
    size_t at = job->done;
    if (worker->ops->remove_listed != NULL) {
        job->status[at] = worker->ops->remove_listed(worker->driver, job->mark.id, job->paths[at],
                                                     job->changed_us[at]);
        return;
    }
    int rc = tierce__storage_mark_check(worker->ops, worker->driver, job->mark.id, job->why);
    for (size_t i = at; rc < 0 && i < at + job->taken; i++)
        job->status[i] = rc;
    if (rc == 0)
        remove_taken(worker, job);
}

/* Without the lock: no other thread reads the status of files that are not done. */
static void do_taken(struct tierce__storage_worker *worker, struct storage_job *job)
{
    const struct tierce__storage_ops *ops = worker->ops;
    struct tierce__storage_driver *driver = worker->driver;
    size_t at = job->done;
    TIERCE_DASSERT(job->taken > 0 && job->taken <= job->count - at);
    TIERCE_DASSERT(worker->busy_ns != 0 && worker->current == job);
    switch (job->work) {
    case REMOVE:
        remove_taken(worker, job);
        break;
    case REMOVE_LISTED:
        remove_listed(worker, job);
        break;
    case MEASURE:
        job->status[at] = ops->measure(driver, job->paths[at], &job->bytes[at]);
        break;
    case MEASURE_MARKED:
        job->status[at] = tierce__storage_mark_measure(ops, driver, job->mark.id, job->paths[at],
                                                       &job->bytes[at]);
        break;
    case READ:
        job->status[at] =
            ops->read(driver, job->paths[at], job->offset, job->data, job->data_bytes);
        break;
    case LIST:
        job->status[at] = ops->list(driver, job->is_first, job->page, job->why);
        break;
    case END_LIST:
        ops->end_list(driver);
        break;
    case READ_MARK:
        job->state = tierce__storage_mark_look(ops, driver, &job->mark, job->why);
        break;
    case REPLACE_MARK:
        job->status[at] = tierce__storage_mark_replace(ops, driver, job->mark.id, job->why);
        job->state = job->status[at] == 0 ? TIERCE__MARK_OURS : TIERCE__MARK_UNKNOWN;
        break;
    }
}

/* A mark that was read or replaced is news for the health of the storage. */
static void report_mark(struct tierce__storage_worker *worker, enum tierce__mark_state state,
                        const char *why, bool replaces)
{
    tierce__lock_assert_held(&worker->lock);
    if (state == TIERCE__MARK_UNKNOWN)
        return;
    worker->report.mark = state;
    if (tierce__mark_is_wrong(state))
        snprintf(worker->report.why, sizeof(worker->report.why), "%s", why);
    else if (replaces)
        worker->report.failures = 0;
}

/*
 * Until the mark was read it is unknown whether the storage is the one of the index. In an empty
 * mount point every file would count as deleted. A storage that has lost its memory has lost the
 * files, too.
 */
static bool may_remove(struct tierce__storage_worker *worker, const struct storage_job *job)
{
    tierce__lock_assert_held(&worker->lock);
    char why[128] = "";
    if (job->work != REMOVE || job->mark.id[0] == '\0' || worker->ops->read_mark == NULL ||
        worker->report.mark == TIERCE__MARK_OURS)
        return true;
    begin(worker);
    enum tierce__mark_state state =
        tierce__storage_mark_look(worker->ops, worker->driver, &job->mark, why);
    got_on(worker);
    if (state == TIERCE__MARK_LOST && worker->ops->may_forget)
        return true;
    report_mark(worker, state, why, false);
    return state == TIERCE__MARK_OURS || state == TIERCE__MARK_ABSENT;
}

static void do_job(struct tierce__storage_worker *worker)
{
    tierce__lock_assert_held(&worker->lock);
    TIERCE_ASSERT(!tierce__list_empty(&worker->jobs));
    struct storage_job *job = TIERCE__CONTAINER_OF(worker->jobs.next, struct storage_job, node);
    TIERCE_ASSERT(worker->current == NULL);
    tierce__list_remove(&job->node);
    worker->current = job;
    bool may = may_remove(worker, job);
    for (; !may && job->done < job->count; job->done++)
        job->status[job->done] = TIERCE_E_DOWN;
    while (job->done < job->count && !job->is_left) {
        job->taken = take_count(worker, job);
        begin(worker);
        do_taken(worker, job);
        got_on(worker);
        job->done += job->taken;
        job->taken = 0;
        TIERCE_ASSERT(job->done <= job->count);
    }
    TIERCE_ASSERT(worker->current == job && job->done <= job->count);
    if (job->work == READ_MARK || job->work == REPLACE_MARK)
        report_mark(worker, job->state, job->why, job->work == REPLACE_MARK);
    worker->current = NULL;
    if (job->is_left)
        free_job(job);
    else
        tierce__cond_signal(&job->ended);
}

static void do_probe(struct tierce__storage_worker *worker)
{
    tierce__lock_assert_held(&worker->lock);
    TIERCE_ASSERT(!worker->report.is_probing);
    TIERCE_ASSERT(worker->current == NULL && !worker->is_ending);
    struct tierce__storage_report *report = &worker->report;
    const struct tierce__storage_mark mark = worker->mark;
    enum tierce__mark_state state = TIERCE__MARK_UNKNOWN;
    char why[128] = "";
    double used_share = -1;
    worker->wants_probe = false;
    report->is_probing = true;
    uint64_t from_ns = tierce__now_ns();
    begin(worker);
    int rc = tierce__storage_mark_probe(worker->ops, worker->driver, &mark, &state, why);
    uint64_t to_ns = tierce__now_ns();
    if (rc == 0)
        used_share = worker->ops->used_share(worker->driver);
    got_on(worker);
    report->is_probing = false;
    report->is_probed = true;
    report->probed_ns = to_ns;
    report->took_ns = to_ns - from_ns;
    report->failures = rc == 0 ? 0 : report->failures + 1;
    report->used_share = used_share;
    report->mark = state != TIERCE__MARK_UNKNOWN ? state : report->mark;
    if (rc != 0)
        snprintf(report->why, sizeof(report->why), "%s", *why != '\0' ? why : tierce_strerror(rc));
    tierce__cond_broadcast(&worker->changed);
}

static void *run(void *arg)
{
    struct tierce__storage_worker *worker = arg;
    tierce__lock_take(&worker->lock);
    for (;;) {
        if (worker->wants_probe && !worker->is_ending)
            do_probe(worker);
        if (!tierce__list_empty(&worker->jobs))
            do_job(worker);
        else if (worker->is_ending)
            break;
        else if (!worker->wants_probe)
            (void)tierce__cond_wait(&worker->wanted, &worker->lock, TIERCE__DEADLINE_NEVER);
    }
    TIERCE_ASSERT(worker->is_ending && tierce__list_empty(&worker->jobs));
    TIERCE_ASSERT(worker->current == NULL && !worker->has_ended);
    worker->has_ended = true;
    tierce__cond_broadcast(&worker->changed);
    drop_reference(worker);
    return NULL;
}

/* ---- start and end --------------------------------------------------------------------------- */

int tierce__storage_worker_start(struct tierce__storage_worker **out,
                                 const struct tierce__storage *storage,
                                 const struct tierce__storage_ops *ops, uint32_t timeout_ms,
                                 char why[128])
{
    TIERCE_DASSERT(timeout_ms > 0);
    struct tierce__storage_worker *worker = tierce__calloc(1, sizeof(*worker));
    if (worker == NULL)
        return -ENOMEM;
    int rc = ops->open(&worker->driver, storage, why);
    if (rc != 0) {
        tierce__free(worker);
        return rc;
    }
    worker->magic = WORKER_MAGIC;
    worker->ops = ops;
    worker->timeout_ns = timeout_ms * TIERCE__MS_NS;
    worker->references = 2;
    tierce__list_init(&worker->jobs);
    worker->report.used_share = -1;
    tierce__lock_init(&worker->lock, TIERCE__LOCK_STORAGE);
    tierce__cond_init(&worker->wanted);
    tierce__cond_init(&worker->changed);
    rc = -pthread_create(&worker->thread, NULL, run, worker);
    if (rc != 0) {
        snprintf(why, 128, "a thread: %s", tierce_strerror(rc));
        tierce__lock_take(&worker->lock);
        worker->references = 1;
        drop_reference(worker);
        return rc;
    }
    *out = worker;
    return 0;
}

void tierce__storage_worker_end(struct tierce__storage_worker *worker)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    tierce__lock_take(&worker->lock);
    TIERCE_ASSERT(!worker->is_ending);
    worker->is_ending = true;
    tierce__cond_signal(&worker->wanted);
    tierce__lock_drop(&worker->lock);
}

/* Returns whether the current driver call takes longer than the time limit. */
static bool hangs(const struct tierce__storage_worker *worker)
{
    TIERCE_DASSERT(worker->timeout_ns > 0);
    tierce__lock_assert_held(&worker->lock);
    return worker->busy_ns != 0 && tierce__now_ns() - worker->busy_ns >= worker->timeout_ns;
}

/* Waits for `event`, at most until the thread's current call hangs; returns false if it does. */
static bool wait_for_it(struct tierce__storage_worker *worker, struct tierce__cond *event)
{
    tierce__lock_assert_held(&worker->lock);
    uint64_t from_ns = worker->busy_ns != 0 ? worker->busy_ns : tierce__now_ns();
    return tierce__cond_wait(event, &worker->lock, from_ns + worker->timeout_ns) || !hangs(worker);
}

bool tierce__storage_worker_has_ended(struct tierce__storage_worker *worker, bool wait)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    tierce__lock_take(&worker->lock);
    TIERCE_ASSERT(worker->is_ending);
    while (wait && !worker->has_ended && wait_for_it(worker, &worker->changed))
        continue;
    bool has_ended = worker->has_ended;
    tierce__lock_drop(&worker->lock);
    if (has_ended && !worker->is_joined) {
        pthread_join(worker->thread, NULL);
        worker->is_joined = true;
    }
    return has_ended;
}

void tierce__storage_worker_forget(struct tierce__storage_worker *worker)
{
    if (!worker->is_joined)
        pthread_detach(worker->thread);
    tierce__storage_worker_release(worker);
}

void tierce__storage_worker_release(struct tierce__storage_worker *worker)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    tierce__lock_take(&worker->lock);
    drop_reference(worker);
}

void tierce__storage_worker_hold(struct tierce__storage_worker *worker)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    tierce__lock_take(&worker->lock);
    TIERCE_ASSERT(worker->references > 0);
    TIERCE_ASSERT(!worker->has_ended);
    worker->references++;
    tierce__lock_drop(&worker->lock);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Queues a job and waits for it. Status and bytes: see tierce__storages_measure. Returns whether
 * the job is the caller's again; else the thread frees it. */
static bool ask(struct tierce__storage_worker *worker, struct storage_job *job, uint64_t *bytes,
                int *status)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    const size_t count = job->count;
    tierce__lock_take(&worker->lock);
    bool is_asked = !worker->is_ending && !hangs(worker);
    if (is_asked) {
        tierce__list_push_back(&worker->jobs, &job->node);
        tierce__cond_signal(&worker->wanted);
    }
    while (is_asked && job->done < count && wait_for_it(worker, &job->ended))
        continue;
    TIERCE_ASSERT(job->done <= count);
    bool is_current = worker->current == job;
    TIERCE_ASSERT(!is_current || job->done < count);
    for (size_t i = 0; i < count; i++)
        status[i] = i < job->done ? job->status[i] : TIERCE_E_DOWN;
    for (size_t i = 0; bytes != NULL && i < job->done; i++)
        bytes[i] = job->bytes[i];
    for (size_t i = job->done; is_current && i < job->done + job->taken; i++)
        status[i] = TIERCE_E_DEADLINE;
    job->is_left = is_current && job->done < count;
    if (!is_current)
        tierce__list_remove(&job->node);
    bool is_left = job->is_left;
    tierce__lock_drop(&worker->lock);
    return !is_left;
}

static int ask_paths(struct tierce__storage_worker *worker, struct storage_job *job,
                     uint64_t *bytes, int *status)
{
    if (job == NULL)
        return -ENOMEM;
    if (ask(worker, job, bytes, status))
        free_job(job);
    return 0;
}

int tierce__storage_worker_remove(struct tierce__storage_worker *worker,
                                  const struct tierce__storage_mark *mark, const char *const *paths,
                                  size_t count, int *status)
{
    return ask_paths(worker, make_job(REMOVE, mark, paths, count), NULL, status);
}

int tierce__storage_worker_measure(struct tierce__storage_worker *worker,
                                   const struct tierce__storage_mark *mark,
                                   const char *const *paths, size_t count, uint64_t *bytes,
                                   int *status)
{
    enum storage_work work = mark != NULL ? MEASURE_MARKED : MEASURE;
    return ask_paths(worker, make_job(work, mark, paths, count), bytes, status);
}

int tierce__storage_worker_remove_listed(struct tierce__storage_worker *worker,
                                         const struct tierce__storage_mark *mark,
                                         const char *const *paths, const int64_t *changed_us,
                                         size_t count, int *status)
{
    struct storage_job *job = make_job(REMOVE_LISTED, mark, paths, count);
    if (job == NULL)
        return -ENOMEM;
    job->changed_us = tierce__alloc(count * sizeof(*changed_us));
    if (job->changed_us == NULL) {
        free_job(job);
        return -ENOMEM;
    }
    memcpy(job->changed_us, changed_us, count * sizeof(*changed_us));
    return ask_paths(worker, job, NULL, status);
}

int tierce__storage_worker_read(struct tierce__storage_worker *worker, const char *path,
                                uint64_t offset, void *out, size_t bytes)
{
    struct storage_job *job = make_job(READ, NULL, &path, 1);
    int rc = -ENOMEM;
    if (job == NULL)
        return rc;
    TIERCE_ASSERT(worker->ops->read != NULL && bytes > 0 && bytes <= worker->ops->read_max);
    job->offset = offset;
    job->data_bytes = bytes;
    job->data = tierce__alloc(bytes);
    bool is_ours = job->data == NULL || ask(worker, job, NULL, &rc);
    if (is_ours && rc == 0)
        memcpy(out, job->data, bytes);
    if (is_ours)
        free_job(job);
    return rc;
}

int tierce__storage_worker_list(struct tierce__storage_worker *worker, bool is_first,
                                struct tierce__storage_page **page, char why[128])
{
    struct storage_job *job = make_job(LIST, NULL, NULL, 1);
    int rc = -ENOMEM;
    if (job == NULL)
        return rc;
    TIERCE_ASSERT(worker->ops->list != NULL);
    job->is_first = is_first;
    job->page = tierce__calloc(1, sizeof(*job->page));
    bool is_ours = job->page == NULL || ask(worker, job, NULL, &rc);
    if (is_ours && rc == 0) {
        *page = job->page;
        job->page = NULL;
    }
    if (is_ours) {
        snprintf(why, 128, "%s", job->why);
        free_job(job);
    }
    return rc;
}

void tierce__storage_worker_end_list(struct tierce__storage_worker *worker)
{
    int status = 0;
    if (worker->ops->end_list != NULL)
        (void)ask_paths(worker, make_job(END_LIST, NULL, NULL, 1), NULL, &status);
}

void tierce__storage_worker_probe(struct tierce__storage_worker *worker,
                                  const struct tierce__storage_mark *mark)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    tierce__lock_take(&worker->lock);
    if (!worker->report.is_probing) {
        worker->mark = *mark;
        TIERCE_ASSERT(!worker->is_ending);
        worker->wants_probe = true;
        tierce__cond_signal(&worker->wanted);
    }
    tierce__lock_drop(&worker->lock);
}

int tierce__storage_worker_mark(struct tierce__storage_worker *worker,
                                const struct tierce__storage_mark *mark, bool replaces,
                                enum tierce__mark_state *state, char why[128])
{
    struct storage_job *job = make_job(replaces ? REPLACE_MARK : READ_MARK, mark, NULL, 1);
    int rc = -ENOMEM;
    if (job == NULL)
        return rc;
    if (!ask(worker, job, NULL, &rc)) { /* the thread still has it */
        snprintf(why, 128, "it does not answer");
        return TIERCE_E_DOWN;
    }
    if (job->done == 0) {
        snprintf(why, 128, "it does not answer");
    } else {
        *state = job->state;
        snprintf(why, 128, "%s", job->why);
    }
    free_job(job);
    return rc;
}

int tierce__storage_worker_try(struct tierce__storage_worker *worker, char why[128])
{
    tierce__storage_worker_probe(worker, &(struct tierce__storage_mark){.id = ""});
    tierce__lock_take(&worker->lock);
    while (!worker->report.is_probed && wait_for_it(worker, &worker->changed))
        continue;
    bool is_healthy = worker->report.is_probed && worker->report.failures == 0;
    snprintf(why, 128, "%s", worker->report.is_probed ? worker->report.why : "it does not answer");
    tierce__lock_drop(&worker->lock);
    return is_healthy ? 0 : TIERCE_E_DOWN;
}

void tierce__storage_worker_reset(struct tierce__storage_worker *worker)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    tierce__lock_take(&worker->lock);
    TIERCE_ASSERT(worker->report.is_probed || worker->report.failures == 0);
    worker->report.failures = 0;
    worker->report.is_probed = false;
    worker->report.why[0] = '\0';
    tierce__lock_drop(&worker->lock);
}

void tierce__storage_worker_report(struct tierce__storage_worker *worker,
                                   struct tierce__storage_report *out)
{
    TIERCE_CHECK_MAGIC(worker, WORKER_MAGIC);
    tierce__lock_take(&worker->lock);
    TIERCE_ASSERT(worker->report.is_probed || worker->report.failures == 0);
    *out = worker->report;
    out->is_probing = out->is_probing || worker->wants_probe;
    out->hangs = hangs(worker);
    tierce__lock_drop(&worker->lock);
}
