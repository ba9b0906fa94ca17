/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3: an object is the object PREFIX + its name, as s3_key.c writes that.
 *
 *     s3://bucket/prefix?region=eu-central-1&profile=cache
 *     s3://bucket?endpoint=https://minio.example:9000&ca_file=/etc/ssl/own.pem
 *
 * Asynchronous by nature, and so one thread with curl's multi interface instead of links: it owns
 * jobs (s3_job.c) and transfers (s3_transfer.c); other threads hand it requests under the lock and
 * wake it. A transfer that is taken from curl is not touched by it any more, so that a request can
 * be answered at any time and nothing is ever left behind.
 *
 * S3 itself sees to it that an object is there whole or not at all: a PUT counts when all its bytes
 * have come, a multipart upload when it is completed. A GET in several pieces compares their ETags.
 */
#include "store/remote/links.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/remote/s3/s3_private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define S3_MAGIC    0x53334b56u
#define WAITING_MAX 4096u
#define POLL_MS_MAX 60000

static struct tierce__s3 *s3_of(struct tierce__connector *connector)
{
    struct tierce__s3 *s3 = (struct tierce__s3 *)connector;
    TIERCE_CHECK_MAGIC(s3, S3_MAGIC);
    return s3;
}

void tierce__s3_set_why(struct tierce__s3 *s3, const char *format, ...)
{
    va_list args;
    tierce__lock_take(&s3->lock);
    int used = snprintf(s3->why, sizeof(s3->why), "%s: ", s3->store_name);
    TIERCE_ASSERT(used > 0 && (size_t)used < sizeof(s3->why));
    va_start(args, format);
    vsnprintf(s3->why + used, sizeof(s3->why) - (size_t)used, format, args);
    va_end(args);
    tierce__lock_drop(&s3->lock);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Turns submitted requests into jobs. Returns the deadline for the end of all jobs, or 0 while the
 * connector is open. */
static uint64_t take_arrived(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    struct tierce__list arrived;
    tierce__list_init(&arrived);
    tierce__lock_take(&s3->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &s3->arrived) {
        tierce__list_remove(node);
        tierce__list_push_back(&arrived, node);
    }
    uint64_t close_ns = s3->closing ? s3->close_ns : 0;
    TIERCE_DASSERT(!s3->closing || s3->close_ns > 0);
    tierce__lock_drop(&s3->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &arrived) {
        tierce__list_remove(node);
        tierce__s3_job_begin(s3, TIERCE__CONTAINER_OF(node, struct tierce__store_req, node));
    }
    return close_ns;
}

/* Transfers that were put off. Returns when the next one is due. */
static uint64_t retry(struct tierce__s3 *s3, uint64_t now)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    uint64_t next = TIERCE__DEADLINE_NEVER;
    for (uint64_t i = 0; i < s3->config.connections; i++) {
        struct tierce__s3_transfer *transfer = &s3->transfers[i];
        if (transfer->job == NULL || transfer->again_ns == 0)
            continue;
        TIERCE_DASSERT(!transfer->is_running);
        if (transfer->again_ns <= now)
            tierce__s3_transfer_begin(transfer);
        else if (transfer->again_ns < next)
            next = transfer->again_ns;
    }
    return next;
}

/* Lets curl work; true: something is over. */
static bool transfer_some(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    int running, left;
    bool any = false;
    curl_multi_perform(s3->multi, &running);
    for (CURLMsg *message; (message = curl_multi_info_read(s3->multi, &left)) != NULL;) {
        struct tierce__s3_transfer *transfer = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode code = message->data.result; /* the message is gone with its handle */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&transfer);
        TIERCE_DASSERT(transfer->s3 == s3);
        tierce__s3_transfer_end(transfer, code);
        any = true;
    }
    return any;
}

static int poll_ms(uint64_t until, uint64_t now)
{
    if (until <= now)
        return 0;
    uint64_t ms = (until - now + TIERCE__MS_NS - 1) / TIERCE__MS_NS;
    return ms < POLL_MS_MAX ? (int)ms : POLL_MS_MAX;
}

static void *work(void *arg)
{
    struct tierce__s3 *s3 = arg;
    for (;;) {
        uint64_t close_ns = take_arrived(s3), now = tierce__now_ns();
        tierce__s3_jobs_expire(s3, now);
        if (close_ns != 0)
            tierce__s3_jobs_cancel(s3, close_ns <= now);
        if (close_ns != 0 && !tierce__s3_has_jobs(s3))
            break;
        int refused = tierce__s3_login_take(s3);
        if (refused != 0)
            tierce__s3_jobs_refuse(s3, refused);
        uint64_t next = retry(s3, now);
        tierce__s3_jobs_go_on(s3);
        bool any = transfer_some(s3);
        tierce__s3_join_deliver(s3);
        if (any)
            continue;
        next = s3->look_ns < next ? s3->look_ns : next;
        next = close_ns != 0 && close_ns < next ? close_ns : next;
        curl_multi_poll(s3->multi, NULL, 0, poll_ms(next, tierce__now_ns()), NULL);
    }
    return NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

static int hand_over(struct tierce__s3 *s3, struct tierce__store_req *req)
{
    TIERCE_DASSERT(tierce__list_empty(&req->node) && req->urgency < TIERCE__CONNECTOR_URGENCIES);
    int rc = 0;
    tierce__lock_take(&s3->lock);
    if (s3->closing)
        rc = TIERCE_E_CLOSED;
    else if (atomic_load_explicit(&s3->waiting, memory_order_relaxed) >= WAITING_MAX)
        rc = TIERCE_E_LIMIT;
    else {
        atomic_fetch_add_explicit(&s3->waiting, 1, memory_order_relaxed);
        TIERCE_DASSERT(atomic_load_explicit(&s3->waiting, memory_order_relaxed) <= WAITING_MAX);
        tierce__list_push_back(&s3->arrived, &req->node);
        curl_multi_wakeup(s3->multi); /* under the lock: close does not come between */
    }
    tierce__lock_drop(&s3->lock);
    if (rc == TIERCE_E_LIMIT)
        tierce__s3_set_why(s3, "the request queue is full");
    return rc;
}

static void submit(struct tierce__connector *connector, struct tierce__store_req *req)
{
    struct tierce__s3 *s3 = s3_of(connector);
    int rc = tierce__connector_accept(req, s3->base.caps);
    if (rc == 0)
        rc = hand_over(s3, req);
    if (rc == 0)
        return;
    TIERCE_DASSERT(rc < 0 && !tierce__lock_holds_any());
    req->status = rc;
    req->done(req);
}

static void get_why(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__s3 *s3 = s3_of(connector);
    tierce__lock_take(&s3->lock);
    memcpy(why, s3->why, sizeof(s3->why));
    tierce__lock_drop(&s3->lock);
}

static void get_stats(struct tierce__connector *connector, struct tierce__tier_stats *out)
{
    struct tierce__s3 *s3 = s3_of(connector);
    out->connections = atomic_load_explicit(&s3->connections, memory_order_relaxed);
    out->connects = atomic_load_explicit(&s3->connects, memory_order_relaxed);
    out->waiting = atomic_load_explicit(&s3->waiting, memory_order_relaxed);
    out->calls_hanging = 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void destroy(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(tierce__list_empty(&s3->arrived) && !tierce__s3_has_jobs(s3));
    TIERCE_DASSERT(atomic_load_explicit(&s3->waiting, memory_order_relaxed) == 0);
    tierce__s3_login_stop(s3);
    tierce__s3_transfers_destroy(s3);
    if (s3->multi != NULL)
        curl_multi_cleanup(s3->multi);
    for (uint32_t i = 0; i < TIERCE__S3_MARKS; i++)
        tierce__free(s3->marks[i].token);
    tierce__free(s3->sizes);
    tierce__s3_config_clear(&s3->config);
    tierce__lock_fini(&s3->lock);
    s3->magic = 0;
    tierce__free(s3);
}

static bool close_s3(struct tierce__connector *connector, uint64_t deadline_ns)
{
    struct tierce__s3 *s3 = s3_of(connector);
    tierce__lock_take(&s3->lock);
    TIERCE_DASSERT(!s3->closing);
    s3->closing = true;
    s3->close_ns = deadline_ns > 0 ? deadline_ns : 1;
    curl_multi_wakeup(s3->multi);
    tierce__lock_drop(&s3->lock);
    pthread_join(s3->thread, NULL);
    destroy(s3);
    return true;
}

static const struct tierce__connector_ops ops = {
    .scheme = "s3",
    .submit = submit,
    .why = get_why,
    .stats = get_stats,
    .close = close_s3,
};

static int start(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(s3->config.connections >= 2 &&
                   s3->config.connections <= TIERCE__S3_CONNECTIONS_MAX);
    TIERCE_DASSERT(s3->config.part_bytes > 0);
    s3->multi = curl_multi_init();
    if (s3->multi == NULL)
        return -ENOMEM;
    curl_multi_setopt(s3->multi, CURLMOPT_MAXCONNECTS, (long)s3->config.connections);
    if (s3->config.remember_ms > 0) {
        s3->sizes = tierce__calloc(TIERCE__S3_SIZES, sizeof(*s3->sizes));
        if (s3->sizes == NULL)
            return -ENOMEM;
    }
    int rc = tierce__s3_transfers_create(s3);
    if (rc == 0)
        rc = tierce__s3_login_start(s3);
    if (rc != 0)
        return rc;
    tierce__lock_take(&s3->lock); /* the thread takes it first, and then knows its own number */
    rc = -pthread_create(&s3->thread, NULL, work, s3);
    tierce__lock_drop(&s3->lock);
    return rc;
}

static int make_s3(struct tierce__connector **out, const struct tierce__connector_source *source,
                   char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__s3 *s3 = tierce__calloc(1, sizeof(*s3));
    if (s3 == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        tierce__free(s3);
        return -ENOMEM;
    }
    s3->magic = S3_MAGIC;
    s3->base = (struct tierce__connector){
        .ops = &ops, .caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS};
    s3->look_ns = TIERCE__DEADLINE_NEVER;
    s3->random = tierce__now_ns();
    snprintf(s3->store_name, sizeof(s3->store_name), "%s", source->store_name);
    tierce__lock_init(&s3->lock, TIERCE__LOCK_CONNECTOR);
    tierce__list_init(&s3->arrived);
    tierce__list_init(&s3->busy);
    for (unsigned i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++)
        tierce__list_init(&s3->ready[i]);
    for (unsigned i = 0; i < TIERCE__S3_BINS; i++)
        tierce__list_init(&s3->bins[i]);
    int rc = tierce__s3_configure(&s3->config, source->url, why);
    s3->base.read_bytes = s3->config.part_bytes;
    if (rc == 0)
        rc = start(s3);
    if (rc != 0) {
        destroy(s3);
        return rc;
    }
    *out = &s3->base;
    return 0;
}

const struct tierce__client tierce__s3_client = {.scheme = "s3", .make = make_s3};
