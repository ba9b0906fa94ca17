/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/file.h"
#include "base/log/log_repeat.h"
#include "store/remote/fleet/fleet_stores_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CLOSE_MS 1000u /* no request is in progress then */

static struct tierce__store_req *req_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__store_req, node);
}

/* ---- requests -------------------------------------------------------------------------------- */

void tierce__fleet_answer_all(struct tierce__list *reqs, int status)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    while (!tierce__list_empty(reqs)) {
        struct tierce__store_req *req = req_of(reqs->next);
        tierce__list_remove(&req->node);
        req->status = status;
        req->done(req);
    }
}

void tierce__fleet_take_waiting(struct tierce__list *out, struct tierce__fleet_store *store)
{
    tierce__lock_assert_held(&store->stores->lock);
    while (!tierce__list_empty(&store->waiting)) {
        struct tierce__list *node = store->waiting.next;
        tierce__list_remove(node);
        tierce__list_push_back(out, node);
    }
}

/* Takes the requests whose time is over; lowers *next_ns to the earliest deadline of the others. */
static void take_late(struct tierce__list *out, struct tierce__fleet_store *store, uint64_t now_ns,
                      uint64_t *next_ns)
{
    tierce__lock_assert_held(&store->stores->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &store->waiting) {
        uint64_t deadline_ns = req_of(node)->deadline_ns;
        if (deadline_ns <= now_ns) {
            tierce__list_remove(node);
            tierce__list_push_back(out, node);
        } else if (deadline_ns < *next_ns) {
            *next_ns = deadline_ns;
        }
    }
}

static void let_go(struct tierce__fleet_stores *stores, struct tierce__fleet_use *use)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE_ASSERT(use->holders > 0);
    if (--use->holders == 0 && !tierce__list_empty(&use->node))
        tierce__cond_broadcast(&stores->wake); /* it is retired */
}

void tierce__fleet_let_go(struct tierce__fleet_stores *stores, struct tierce__fleet_use *use)
{
    tierce__lock_take(&stores->lock);
    let_go(stores, use);
    tierce__lock_drop(&stores->lock);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* False: a call of it has not returned. */
static bool close_use(struct tierce__fleet_use *use, uint64_t deadline_ns)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    bool is_closed = use->connector->ops->close(use->connector, deadline_ns);
    tierce__free(use);
    return is_closed;
}

static void end_job(struct tierce__fleet_job *job, bool has_lost)
{
    struct tierce__fleet_stores *stores = job->stores;
    tierce__lock_take(&stores->lock);
    TIERCE_DASSERT(!job->has_ended);
    job->has_ended = true;
    job->is_handing_over = false;
    stores->has_lost = stores->has_lost || has_lost;
    tierce__cond_broadcast(&stores->wake);
    tierce__lock_drop(&stores->lock);
}

static void *run_close(void *arg)
{
    struct tierce__fleet_job *job = arg;
    bool is_closed = close_use(job->use, tierce__deadline_in_ms(CLOSE_MS));
    end_job(job, !is_closed);
    return NULL;
}

/* Errors: those of the connector, -ENOMEM. */
static int open_use(struct tierce__fleet_use **out, const struct tierce__fleet_store *store,
                    char why[TIERCE__FLEET_WHY_BYTES])
{
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = store->stores->pool};
    char text[TIERCE__CONNECTOR_WHY_BYTES] = "";
    struct tierce__fleet_use *use = tierce__calloc(1, sizeof(*use));
    int rc =
        use != NULL ? tierce__connector_open(&use->connector, store->url, &opts, text) : -ENOMEM;
    if (rc == 0) {
        tierce__list_init(&use->node);
        use->opened_ns = tierce__now_ns();
        *out = use;
        return 0;
    }
    snprintf(why, TIERCE__FLEET_WHY_BYTES, "%s", text[0] != '\0' ? text : tierce_strerror(rc));
    tierce__free(use);
    return rc;
}

/* Whether a folder has its mark; an empty mount point has not. */
static int check_mark(struct tierce__fleet_store *store, char why[TIERCE__FLEET_WHY_BYTES])
{
    char mark[TIERCE__STORAGE_MARK_BYTES + 1], *text = NULL;
    size_t bytes = 0;
    tierce__lock_take(&store->stores->lock);
    memcpy(mark, store->mark, sizeof(mark));
    tierce__lock_drop(&store->stores->lock);
    if (mark[0] == '\0')
        return 0;
    char *path = tierce__join_path(store->root, TIERCE__STORAGE_MARK);
    int rc = path != NULL ? tierce__read_file(&text, &bytes, path, sizeof(mark)) : -ENOMEM;
    tierce__free(path);
    bool is_it = rc == 0 && strcmp(text, mark) == 0;
    tierce__free(text);
    if (is_it || rc == -ENOMEM)
        return rc;
    if (rc == 0 || rc == -ENOENT)
        snprintf(why, TIERCE__FLEET_WHY_BYTES,
                 "%.120s has %s mark " TIERCE__STORAGE_MARK "; is its file system mounted?",
                 store->root, rc == 0 ? "another" : "no");
    else
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "%.120s: its mark cannot be read: %s", store->root,
                 tierce_strerror(rc));
    return TIERCE_E_DOWN;
}

static void report(const struct tierce__fleet_store *store, const char *why)
{
    char name[64];
    tierce__text_for_message(name, sizeof(name), store->name);
    tierce__log_repeated(TIERCE_LOG_WARN, "fleet_storage_unusable", "storage=%s why=\"%s\"", name,
                         why);
}

/* Publishes what an attempt has led to, and takes the requests that waited for it. Each holds the
 * use then, and so does the job. False: nobody wants the connector any more. Under the lock. */
static bool publish(struct tierce__fleet_job *job, struct tierce__fleet_use *use, const char *why,
                    struct tierce__list *waiting)
{
    struct tierce__fleet_store *store = job->store;
    tierce__lock_assert_held(&store->stores->lock);
    TIERCE_ASSERT(store->state == TIERCE__FLEET_OPENING && store->use == NULL);
    bool is_wanted = store->is_current && !store->stores->is_ending;
    bool is_open = use != NULL && is_wanted;
    tierce__fleet_take_waiting(waiting, store);
    store->state = is_open ? TIERCE__FLEET_OPEN : TIERCE__FLEET_CLOSED;
    store->failed_ns = use != NULL ? 0 : tierce__now_ns();
    snprintf(store->why, sizeof(store->why), "%s", use != NULL ? "" : why);
    job->is_handing_over = true; /* requests that only the job knows */
    if (!is_open)
        return false;
    store->use = use;
    use->holders = 1;
    TIERCE__LIST_FOR_EACH (node, waiting)
        use->holders++;
    return true;
}

static void *run_open(void *arg)
{
    struct tierce__fleet_job *job = arg;
    struct tierce__fleet_store *store = job->store;
    struct tierce__fleet_stores *stores = job->stores;
    struct tierce__fleet_use *use = NULL;
    struct tierce__list waiting;
    char why[TIERCE__FLEET_WHY_BYTES] = "";
    bool is_closed = true;
    tierce__list_init(&waiting);
    int rc = check_mark(store, why);
    if (rc == 0)
        rc = open_use(&use, store, why);
    if (rc != 0)
        report(store, why);
    tierce__lock_take(&stores->lock);
    bool is_open = publish(job, use, why, &waiting);
    tierce__lock_drop(&stores->lock);
    while (is_open && !tierce__list_empty(&waiting)) {
        struct tierce__store_req *req = req_of(waiting.next);
        tierce__list_remove(&req->node);
        tierce__fleet_hand_over(use, req);
    }
    tierce__fleet_answer_all(&waiting, rc == -ENOMEM ? rc : TIERCE_E_DOWN);
    tierce__lock_take(&stores->lock);
    job->is_handing_over = false; /* from now on the use may be closed and freed */
    if (is_open)
        let_go(stores, use);
    tierce__cond_broadcast(&stores->wake);
    tierce__lock_drop(&stores->lock);
    if (!is_open && use != NULL)
        is_closed = close_use(use, tierce__deadline_in_ms(CLOSE_MS));
    end_job(job, !is_closed);
    return NULL;
}

/* Starts a job. False: there is no thread or memory for it. Under the lock. */
static bool start_job(struct tierce__fleet_stores *stores, struct tierce__fleet_store *store,
                      struct tierce__fleet_use *use)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE_DASSERT((store == NULL) != (use == NULL));
    struct tierce__fleet_job *job = tierce__calloc(1, sizeof(*job));
    if (job == NULL)
        return false;
    *job = (struct tierce__fleet_job){.stores = stores, .store = store, .use = use};
    if (pthread_create(&job->thread, NULL, store != NULL ? run_open : run_close, job) != 0) {
        tierce__free(job);
        return false;
    }
    tierce__list_push_back(&stores->jobs, &job->node);
    return true;
}

/* Joins the threads that have ended. Under the lock: they do not need it any more. */
static void reap(struct tierce__fleet_stores *stores)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &stores->jobs) {
        struct tierce__fleet_job *job = TIERCE__CONTAINER_OF(node, struct tierce__fleet_job, node);
        if (!job->has_ended)
            continue;
        tierce__list_remove(node);
        pthread_join(job->thread, NULL);
        tierce__free(job);
    }
}

/* ---- the keeper ------------------------------------------------------------------------------ */

void tierce__fleet_retire(struct tierce__fleet_store *store)
{
    struct tierce__fleet_stores *stores = store->stores;
    tierce__lock_assert_held(&stores->lock);
    TIERCE_ASSERT((store->state == TIERCE__FLEET_OPEN) == (store->use != NULL));
    if (store->use == NULL)
        return;
    tierce__list_push_back(&stores->retired, &store->use->node);
    store->use = NULL;
    store->state = TIERCE__FLEET_CLOSED;
    tierce__cond_broadcast(&stores->wake);
}

/* Opens the storages that are wanted; the requests of one that cannot be opened go to `failed`. */
static void open_wanted(struct tierce__fleet_store *store, struct tierce__list *failed)
{
    tierce__lock_assert_held(&store->stores->lock);
    if (store->state != TIERCE__FLEET_WANTED)
        return;
    TIERCE_DASSERT(store->url != NULL && store->use == NULL);
    store->state = TIERCE__FLEET_OPENING;
    if (start_job(store->stores, store, NULL))
        return;
    store->state = TIERCE__FLEET_CLOSED;
    store->failed_ns = tierce__now_ns();
    snprintf(store->why, sizeof(store->why), "no thread or memory to open it");
    tierce__fleet_take_waiting(failed, store);
}

/* A use that cannot be closed now is closed by a later round, or at the end. */
static void close_retired(struct tierce__fleet_stores *stores)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &stores->retired) {
        struct tierce__fleet_use *use = TIERCE__CONTAINER_OF(node, struct tierce__fleet_use, node);
        if (use->holders > 0)
            continue;
        tierce__list_remove(node);
        if (start_job(stores, NULL, use))
            continue;
        tierce__list_push_front(&stores->retired, node);
        return;
    }
}

void *tierce__fleet_keep(void *arg)
{
    struct tierce__fleet_stores *stores = arg;
    struct tierce__list late, failed;
    tierce__list_init(&late);
    tierce__list_init(&failed);
    tierce__lock_take(&stores->lock);
    while (!stores->is_ending) {
        uint64_t next_ns = TIERCE__DEADLINE_NEVER, now_ns = tierce__now_ns();
        reap(stores);
        close_retired(stores);
        TIERCE__LIST_FOR_EACH (node, &stores->all) {
            struct tierce__fleet_store *store =
                TIERCE__CONTAINER_OF(node, struct tierce__fleet_store, node);
            open_wanted(store, &failed);
            take_late(&late, store, now_ns, &next_ns);
        }
        if (tierce__list_empty(&late) && tierce__list_empty(&failed)) {
            (void)tierce__cond_wait(&stores->wake, &stores->lock, next_ns);
            continue;
        }
        tierce__lock_drop(&stores->lock);
        tierce__fleet_answer_all(&late, TIERCE_E_DEADLINE);
        tierce__fleet_answer_all(&failed, TIERCE_E_DOWN);
        tierce__lock_take(&stores->lock);
    }
    tierce__lock_drop(&stores->lock);
    return NULL;
}

static bool is_handing_over(const struct tierce__fleet_stores *stores)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE__LIST_FOR_EACH (node, &stores->jobs) {
        if (TIERCE__CONTAINER_OF(node, struct tierce__fleet_job, node)->is_handing_over)
            return true;
    }
    return false;
}

/* No storage gets a connector from now on. Takes the requests that wait for one, and all
 * connectors.
 */
static void end_stores(struct tierce__fleet_stores *stores, struct tierce__list *waiting,
                       struct tierce__list *uses)
{
    tierce__lock_take(&stores->lock);
    stores->is_ending = true;
    tierce__cond_broadcast(&stores->wake);
    while (is_handing_over(stores)) /* not for long: to submit does not block */
        tierce__cond_wait(&stores->wake, &stores->lock, TIERCE__DEADLINE_NEVER);
    TIERCE__LIST_FOR_EACH (node, &stores->all) {
        struct tierce__fleet_store *store =
            TIERCE__CONTAINER_OF(node, struct tierce__fleet_store, node);
        tierce__fleet_take_waiting(waiting, store);
        tierce__fleet_retire(store);
    }
    tierce__lock_drop(&stores->lock);
    pthread_join(stores->keeper, NULL);
    tierce__lock_take(&stores->lock);
    while (!tierce__list_empty(&stores->retired)) {
        struct tierce__list *node = stores->retired.next;
        tierce__list_remove(node);
        tierce__list_push_back(uses, node);
    }
    tierce__lock_drop(&stores->lock);
}

bool tierce__fleet_keeper_stop(struct tierce__fleet_stores *stores, uint64_t deadline_ns)
{
    struct tierce__list waiting, uses;
    bool has_lost = false, in_time = true;
    tierce__list_init(&waiting);
    tierce__list_init(&uses);
    end_stores(stores, &waiting, &uses);
    tierce__fleet_answer_all(&waiting, TIERCE_E_CANCELLED);
    while (!tierce__list_empty(&uses)) {
        struct tierce__list *node = uses.next;
        tierce__lock_take(&stores->lock); /* tierce__fleet_let_go looks at it */
        tierce__list_remove(node);
        tierce__lock_drop(&stores->lock);
        has_lost |=
            !close_use(TIERCE__CONTAINER_OF(node, struct tierce__fleet_use, node), deadline_ns);
    }
    tierce__lock_take(&stores->lock);
    for (reap(stores); !tierce__list_empty(&stores->jobs) && in_time; reap(stores))
        in_time = tierce__cond_wait(&stores->wake, &stores->lock, deadline_ns);
    bool has_ended = tierce__list_empty(&stores->jobs);
    TIERCE__LIST_FOR_EACH (node, &stores->jobs)
        pthread_detach(TIERCE__CONTAINER_OF(node, struct tierce__fleet_job, node)->thread);
    stores->has_lost = stores->has_lost || has_lost;
    tierce__lock_drop(&stores->lock);
    return has_ended;
}
