/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request of the connector as a job of HTTP requests:
 *
 *     EXISTS      HEAD of each name, side by side, until one is missing
 *     GET         one GET, or one for each `part` of a long range, side by side
 *     PUT         one PUT; a long object: Create, UploadPart side by side, Complete, each of which
 *                 is followed by Abort where it fails
 *     the others  one request
 *
 * A job answered at its deadline continues until its upload is aborted; it no longer accesses its
 * request.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/remote/s3/s3_private.h"
#include "store/remote/s3/s3_xml.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define RESTARTS_MAX 3u
#define PARTS_MAX    10000u /* of S3 */

static struct tierce__s3_job *job_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__s3_job, node);
}

/* ---- answers --------------------------------------------------------------------------------- */

void tierce__s3_job_answer(struct tierce__s3_job *job, int status)
{
    struct tierce__store_req *req = job->req;
    if (req == NULL)
        return;
    TIERCE_DASSERT(req->op != TIERCE__STORE_LOOKUP || job->certain <= req->name_count);
    TIERCE_DASSERT(status <= 0 && !tierce__lock_holds_any());
    job->req = NULL;
    if (req->op == TIERCE__STORE_LOOKUP)
        req->found = (size_t)job->certain;
    req->status = status;
    req->done(req);
}

void tierce__s3_job_free(struct tierce__s3_job *job)
{
    TIERCE_ASSERT(job->req == NULL && job->in_flight == 0);
    tierce__list_remove(&job->node);
    tierce__list_remove(&job->bin);
    tierce__list_remove(&job->ride);
    tierce__free(job->etags);
    tierce__free(job->there);
    tierce__free(job);
}

/* Nothing of it is with curl any more. */
static void stop_transfers(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    for (uint64_t i = 0; i < s3->config.connections && job->in_flight > 0; i++) {
        if (s3->transfers[i].job == job) {
            tierce__s3_transfer_free(&s3->transfers[i]);
            job->in_flight--;
        }
    }
    TIERCE_DASSERT(job->in_flight == 0);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The items of a step that begins; the step is older than the ready items. */
static void set_step(struct tierce__s3 *s3, struct tierce__s3_job *job, enum tierce__s3_step step,
                     uint64_t count)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3) && job->urgency < TIERCE__CONNECTOR_URGENCIES);
    TIERCE_DASSERT(job->in_flight == 0 && count > 0);
    job->step = step;
    job->next = 0;
    job->count = count;
    tierce__list_remove(&job->node);
    tierce__list_push_front(&s3->ready[job->urgency], &job->node);
}

static void begin_abort(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(job->req == NULL && job->token[0] != '\0' && job->step != TIERCE__S3_ABORTING);
    job->deadline_ns = tierce__deadline_in_ms(TIERCE__S3_ABORT_MS);
    s3->look_ns = job->deadline_ns < s3->look_ns ? job->deadline_ns : s3->look_ns;
    job->status = 0;
    set_step(s3, job, TIERCE__S3_ABORTING, 1);
}

static void finish(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    int status = job->status;
    TIERCE_DASSERT(job->in_flight == 0 && status <= 0);
    if (status == 0 && job->is_mixed && job->restarts++ < RESTARTS_MAX) {
        job->is_mixed = job->has_version = false;
        set_step(s3, job, TIERCE__S3_WHOLE, job->count);
        return;
    }
    if (status == 0 && job->is_mixed) {
        tierce__s3_set_why(s3, "GetObject: the object was replaced during each attempt");
        status = TIERCE_E_FORMAT;
    }
    bool is_upload = job->step == TIERCE__S3_PARTS || job->step == TIERCE__S3_COMPLETING;
    tierce__s3_job_answer(job, status);
    if (is_upload && status != 0)
        begin_abort(s3, job);
    else
        tierce__s3_job_free(job);
}

/* No request of the step is in progress, and none remains. */
static void end_step(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(job->status != 0 || job->next >= job->count);
    TIERCE_DASSERT(job->in_flight == 0);
    if (job->status == 0 && job->step == TIERCE__S3_BEGINNING && job->req == NULL) {
        begin_abort(s3, job);
    } else if (job->status == 0 && job->step == TIERCE__S3_BEGINNING) {
        uint64_t part = s3->config.part_bytes;
        TIERCE_DASSERT(job->token[0] != '\0' && job->req->length > part);
        set_step(s3, job, TIERCE__S3_PARTS, (job->req->length + part - 1) / part);
    } else if (job->status == 0 && job->step == TIERCE__S3_PARTS) {
        set_step(s3, job, TIERCE__S3_COMPLETING, 1);
    } else {
        finish(s3, job);
    }
}

/* After an item. */
static void advance(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    if (job->status != 0)
        stop_transfers(s3, job);
    if (job->in_flight == 0 && (job->status != 0 || job->next >= job->count))
        end_step(s3, job);
}

/* ---- items ----------------------------------------------------------------------------------- */

static const struct tierce_plugin_name *name_of(const struct tierce__s3_job *job, uint64_t i)
{
    static const struct tierce_plugin_name none = {.text = ""};
    return job->req != NULL && i < job->req->name_count ? &job->req->names[i] : &none;
}

/* A range of the job's, as long as a part at most. */
static uint64_t cut(const struct tierce__s3 *s3, const struct tierce__s3_job *job, uint64_t item,
                    uint64_t *bytes)
{
    uint64_t part = s3->config.part_bytes, from = item * part;
    TIERCE_DASSERT(from <= job->req->length);
    uint64_t left = job->req->length - from;
    *bytes = left < part ? left : part;
    TIERCE_DASSERT(*bytes > 0);
    return from;
}

/* Builds the body of CompleteMultipartUpload. */
static int make_list_of_parts(struct tierce__s3_transfer *transfer,
                              const struct tierce__s3_job *job)
{
    uint64_t part = transfer->s3->config.part_bytes;
    uint64_t count = (job->req->length + part - 1) / part;
    TIERCE_DASSERT(count > 1 && count <= PARTS_MAX);
    size_t room = (size_t)count * (TIERCE__S3_ETAG_BYTES + 64) + 128, used = 0;
    char *text = tierce__alloc(room);
    if (text == NULL)
        return -ENOMEM;
    used += (size_t)snprintf(text, room, "<CompleteMultipartUpload>");
    for (uint64_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, room - used,
                                 "<Part><PartNumber>%" PRIu64 "</PartNumber><ETag>%s</ETag></Part>",
                                 i + 1, job->etags[i]);
    used += (size_t)snprintf(text + used, room - used, "</CompleteMultipartUpload>");
    TIERCE_ASSERT(used < room);
    transfer->own_body = text;
    transfer->body = (const uint8_t *)text;
    transfer->body_bytes = used;
    return 0;
}

static enum tierce__s3_call call_of(const struct tierce__s3_job *job)
{
    static const enum tierce__s3_call of_ops[] = {
        [TIERCE__STORE_LOOKUP] = TIERCE__S3_HEAD, [TIERCE__STORE_GET] = TIERCE__S3_GET,
        [TIERCE__STORE_PUT] = TIERCE__S3_PUT,     [TIERCE__STORE_DELETE] = TIERCE__S3_DELETE,
        [TIERCE__STORE_LIST] = TIERCE__S3_LIST,   [TIERCE__STORE_PING] = TIERCE__S3_PING,
    };
    switch (job->step) {
    case TIERCE__S3_BEGINNING:
        return TIERCE__S3_BEGIN;
    case TIERCE__S3_PARTS:
        return TIERCE__S3_PART;
    case TIERCE__S3_COMPLETING:
        return TIERCE__S3_COMPLETE;
    case TIERCE__S3_ABORTING:
        return TIERCE__S3_ABORT;
    case TIERCE__S3_DRAINING:
    case TIERCE__S3_WHOLE:
    default:
        TIERCE_DASSERT(job->step == TIERCE__S3_WHOLE);
        TIERCE_DASSERT((size_t)job->req->op < sizeof(of_ops) / sizeof(of_ops[0]));
        return of_ops[job->req->op];
    }
}

/* Key, range and body of a transfer whose call and item are known. */
static int fill(struct tierce__s3_transfer *transfer, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(transfer->job == job);
    struct tierce__s3 *s3 = transfer->s3;
    const struct tierce__s3_config *config = &s3->config;
    uint64_t bytes = 0;
    switch (transfer->call) {
    case TIERCE__S3_HEAD:
        tierce__s3_key(transfer->key, config->prefix, config->has_paths,
                       name_of(job, transfer->item));
        return 0;
    case TIERCE__S3_PING:
        snprintf(transfer->key, sizeof(transfer->key), "%s", config->prefix);
        return 0;
    case TIERCE__S3_LIST:
        if (!tierce__s3_key_prefix(transfer->key, config, name_of(job, 0), job->of_long_ones)) {
            job->of_long_ones = true;
            (void)tierce__s3_key_prefix(transfer->key, config, name_of(job, 0), true);
        }
        return 0;
    case TIERCE__S3_GET:
        transfer->offset = job->req->offset + cut(s3, job, transfer->item, &bytes);
        transfer->into = job->req->buf->data + transfer->offset;
        transfer->wanted = bytes;
        TIERCE_ASSERT(transfer->wanted <= job->req->buf->bytes - transfer->offset);
        break;
    case TIERCE__S3_PUT:
        TIERCE_DASSERT(job->req->length <= job->req->buf->bytes);
        transfer->body = job->req->buf->data;
        transfer->body_bytes = job->req->length;
        break;
    case TIERCE__S3_PART:
        transfer->body = job->req->buf->data + cut(s3, job, transfer->item, &bytes);
        TIERCE_DASSERT((uint64_t)(transfer->body - job->req->buf->data) + bytes <=
                       job->req->length);
        transfer->body_bytes = bytes;
        break;
    case TIERCE__S3_COMPLETE:
        memcpy(transfer->key, job->key, sizeof(job->key));
        return make_list_of_parts(transfer, job);
    case TIERCE__S3_BEGIN:
    case TIERCE__S3_ABORT:
    case TIERCE__S3_DELETE:
    case TIERCE__S3_DELETE_MANY:
    default:
        break;
    }
    memcpy(transfer->key, job->key, sizeof(job->key));
    return 0;
}

/* A name exists: extends the known leading names. bytes: of its object; 0: not known. */
static void note_there(struct tierce__s3_job *job, uint64_t item, uint64_t bytes)
{
    if (job->there == NULL)
        return;
    if (job->req != NULL && job->name_count == 1)
        job->req->object_bytes = bytes;
    TIERCE_DASSERT(item < job->name_count);
    job->there[item] = 1;
    TIERCE_DASSERT(job->certain <= job->name_count);
    while (job->certain < job->name_count && job->there[job->certain] != 0)
        job->certain++;
}

/* Names that are known to be there need not be asked for. */
static void skip_known(const struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    char key[TIERCE__S3_KEY_BYTES];
    if (s3->sizes == NULL || job->req == NULL || job->req->op != TIERCE__STORE_LOOKUP)
        return;
    TIERCE_DASSERT(job->step == TIERCE__S3_WHOLE && job->count <= job->name_count);
    for (; job->next < job->count; job->next++) {
        tierce__s3_key(key, s3->config.prefix, s3->config.has_paths, name_of(job, job->next));
        uint64_t bytes = tierce__s3_known(s3, key);
        if (bytes == 0)
            return;
        note_there(job, job->next, bytes);
    }
}

static void count_begun(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    TIERCE_DASSERT(job->has_begun || atomic_load_explicit(&s3->waiting, memory_order_relaxed) > 0);
    if (!job->has_begun)
        atomic_fetch_sub_explicit(&s3->waiting, 1, memory_order_relaxed);
    job->has_begun = true;
}

void tierce__s3_job_is_begun(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(job->next == 0 && job->count == 1); /* only such jobs are joined */
    count_begun(s3, job);
    job->next = job->count;
    tierce__list_remove(&job->node);
    tierce__list_push_back(&s3->busy, &job->node);
}

/* Begins the next item of a job that is ready. */
static void begin_item(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(s3->is_logged_in && s3->free_count > 0);
    uint64_t at = 0;
    count_begun(s3, job);
    tierce__list_remove(&job->bin);
    skip_known(s3, job);
    if (job->next >= job->count) {
        tierce__list_remove(&job->node);
        tierce__list_push_back(&s3->busy, &job->node);
        advance(s3, job);
        return;
    }
    while (s3->transfers[at].job != NULL)
        at++;
    struct tierce__s3_transfer *transfer = &s3->transfers[at];
    TIERCE_ASSERT(at < s3->config.connections);
    TIERCE_DASSERT(s3->free_count > 0);
    s3->free_count--;
    transfer->job = job;
    transfer->item = job->next++;
    TIERCE_DASSERT(job->req != NULL || job->step == TIERCE__S3_ABORTING);
    transfer->call = call_of(job);
    job->in_flight++;
    if (job->next >= job->count) {
        tierce__list_remove(&job->node);
        tierce__list_push_back(&s3->busy, &job->node);
    }
    int rc = fill(transfer, job);
    if (rc == 0) {
        tierce__s3_join(transfer);
        tierce__s3_transfer_begin(transfer);
    } else
        tierce__s3_job_note(transfer, rc);
}

/* One connection is reserved for requests other than stores. */
static struct tierce__s3_job *next_ready(struct tierce__s3 *s3)
{
    for (unsigned i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        if (!tierce__list_empty(&s3->ready[i]) &&
            (i != TIERCE__CONNECTOR_STORE || s3->free_count > 1))
            return job_of(s3->ready[i].next);
    }
    return NULL;
}

void tierce__s3_jobs_go_on(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    while (s3->free_count > 0 && s3->is_logged_in) {
        struct tierce__s3_job *job = next_ready(s3);
        if (job == NULL)
            return;
        begin_item(s3, job);
    }
}

/* ---- the end of an item ---------------------------------------------------------------------- */

/* Pieces of one object must be of one version of it. */
static void note_piece(struct tierce__s3_job *job, const struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(transfer->call == TIERCE__S3_GET && transfer->got == transfer->wanted);
    uint64_t version = XXH3_64bits(transfer->etag, strlen(transfer->etag));
    if (job->has_version && version != job->version)
        job->is_mixed = true;
    job->has_version = true;
    job->version = version;
}

static int note_head(struct tierce__s3_job *job, const struct tierce__s3_transfer *transfer,
                     int status)
{
    TIERCE_DASSERT(transfer->item < job->name_count);
    tierce__s3_learn(transfer->s3, transfer->key, status == 0 ? transfer->object_bytes : 0);
    if (status == 0)
        note_there(job, transfer->item, transfer->object_bytes);
    if (status == TIERCE_E_MISS) {
        job->missing = transfer->item < job->missing ? transfer->item : job->missing;
        job->count = job->count < job->missing ? job->count : job->missing;
        status = 0;
    }
    if (status == 0 && job->certain == job->missing) /* later names do not matter */
        tierce__s3_job_answer(job, 0);
    return status;
}

/* Records the result of an item in its job. Returns the item's status, which may have changed. */
static int note(struct tierce__s3_job *job, const struct tierce__s3_transfer *transfer, int status)
{
    TIERCE_DASSERT(transfer->job == job);
    struct tierce__s3 *s3 = transfer->s3;
    switch (transfer->call) {
    case TIERCE__S3_HEAD:
        return note_head(job, transfer, status);
    case TIERCE__S3_GET:
        if (status == 0)
            note_piece(job, transfer);
        if (status == 0 || status == TIERCE_E_MISS)
            tierce__s3_learn(s3, transfer->key, status == 0 ? transfer->object_bytes : 0);
        return status;
    case TIERCE__S3_PUT:
    case TIERCE__S3_COMPLETE:
        tierce__s3_learn(s3, transfer->key, status == 0 ? job->req->length : 0);
        return status;
    case TIERCE__S3_PART:
        TIERCE_DASSERT(transfer->item < job->count);
        memcpy(job->etags[transfer->item], transfer->etag, sizeof(transfer->etag));
        return status;
    case TIERCE__S3_BEGIN:
        if (status == 0 && (tierce__s3_xml_find(job->token, sizeof(job->token), transfer->text,
                                                transfer->text_bytes,
                                                "InitiateMultipartUploadResult/UploadId") != 0 ||
                            job->token[0] == '\0')) {
            tierce__s3_set_why(s3, "CreateMultipartUpload: an answer without UploadId");
            return TIERCE_E_FORMAT;
        }
        return status;
    case TIERCE__S3_DELETE:
        tierce__s3_learn(s3, transfer->key, 0);
        return status;
    case TIERCE__S3_LIST:
        return status == 0 ? tierce__s3_page_end(s3, job, transfer) : status;
    case TIERCE__S3_PING:
    case TIERCE__S3_ABORT:
    case TIERCE__S3_DELETE_MANY:
    default:
        return status;
    }
}

void tierce__s3_job_note(struct tierce__s3_transfer *transfer, int status)
{
    struct tierce__s3 *s3 = transfer->s3;
    TIERCE_DASSERT(tierce__s3_is_own(s3) && !transfer->is_running);
    struct tierce__s3_job *job = transfer->job;
    if (tierce__s3_join_end(transfer, status))
        return;
    status = note(job, transfer, status);
    if (job->status == 0)
        job->status = status;
    tierce__s3_transfer_free(transfer);
    TIERCE_DASSERT(job->in_flight > 0);
    job->in_flight--;
    advance(s3, job);
}

/* ---- a new job ------------------------------------------------------------------------------- */

/* A list's name is only the beginning of names. */
static bool has_path_names(const struct tierce__store_req *req)
{
    for (size_t i = 0; i < req->name_count && req->op != TIERCE__STORE_LIST; i++) {
        if (!tierce__s3_is_path(&req->names[i]))
            return false;
    }
    return true;
}

/* Plans the HTTP requests of a job. Errors: the status for the request. */
static int plan(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    const struct tierce__store_req *req = job->req;
    uint64_t part = s3->config.part_bytes;
    TIERCE_DASSERT(part > 0 && !job->has_begun);
    uint64_t parts = (req->length + part - 1) / part;
    job->count = 1;
    if (s3->config.has_paths && !has_path_names(req)) {
        tierce__s3_set_why(s3, "names=path: a name is not a path of letters, digits and "
                               "-_.:@+,=~! without the components . and ..");
        return TIERCE_E_ARGUMENT;
    }
    switch (req->op) {
    case TIERCE__STORE_LOOKUP:
        job->count = job->name_count = req->name_count;
        job->there = tierce__calloc(req->name_count + 1, sizeof(*job->there));
        return job->there != NULL ? 0 : -ENOMEM;
    case TIERCE__STORE_GET: {
        tierce__s3_key(job->key, s3->config.prefix, s3->config.has_paths, &req->names[0]);
        uint64_t known = tierce__s3_known(s3, job->key);
        job->count = parts;
        return known > 0 && req->offset + req->length > known ? TIERCE_E_FORMAT : 0;
    }
    case TIERCE__STORE_PUT:
        tierce__s3_key(job->key, s3->config.prefix, s3->config.has_paths, &req->names[0]);
        if (parts == 1)
            return 0;
        if (parts > PARTS_MAX) {
            tierce__s3_set_why(s3, "an object of more than 10000 parts");
            return TIERCE_E_LIMIT;
        }
        job->step = TIERCE__S3_BEGINNING;
        job->etags = tierce__calloc(parts, sizeof(*job->etags));
        return job->etags != NULL ? 0 : -ENOMEM;
    case TIERCE__STORE_DELETE:
        tierce__s3_key(job->key, s3->config.prefix, s3->config.has_paths, &req->names[0]);
        return 0;
    case TIERCE__STORE_LIST:
        return tierce__s3_page_begin(s3, job);
    case TIERCE__STORE_PING:
        return 0;
    case TIERCE__STORE_HIDE:
    case TIERCE__STORE_SHOW:
    case TIERCE__STORE_FLUSH:
    case TIERCE__STORE_CLEAR:
    case TIERCE__STORE_SIBLINGS:
    default:
        return TIERCE_E_ARGUMENT;
    }
}

void tierce__s3_job_begin(struct tierce__s3 *s3, struct tierce__store_req *req)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    struct tierce__s3_job *job = tierce__calloc(1, sizeof(*job));
    if (job == NULL) {
        atomic_fetch_sub_explicit(&s3->waiting, 1, memory_order_relaxed);
        req->status = -ENOMEM;
        req->done(req);
        return;
    }
    TIERCE_DASSERT(req->urgency < TIERCE__CONNECTOR_URGENCIES);
    job->req = req;
    job->urgency = req->urgency;
    job->deadline_ns = req->deadline_ns;
    job->missing = UINT64_MAX;
    tierce__list_init(&job->bin);
    tierce__list_init(&job->ride);
    tierce__list_push_back(&s3->ready[job->urgency], &job->node);
    s3->look_ns = job->deadline_ns < s3->look_ns ? job->deadline_ns : s3->look_ns;
    int rc = plan(s3, job);
    if (rc == 0) {
        tierce__s3_join_await(s3, job);
        return;
    }
    atomic_fetch_sub_explicit(&s3->waiting, 1, memory_order_relaxed);
    tierce__s3_job_answer(job, rc);
    tierce__s3_job_free(job);
}

/* ---- deadlines and the end ------------------------------------------------------------------- */

/* Answers a job while its requests are in progress. Removing them from curl would close their
 * connections, and reconnecting would make the next lookups late too. */
static void drain(struct tierce__s3 *s3, struct tierce__s3_job *job, int status)
{
    TIERCE_DASSERT(job->name_count > 0 && job->step == TIERCE__S3_WHOLE);
    TIERCE_DASSERT(job->in_flight > 0);
    tierce__s3_job_answer(job, status);
    job->step = TIERCE__S3_DRAINING;
    job->count = job->next < job->count ? job->next : job->count;
    job->deadline_ns = tierce__deadline_in_ms(TIERCE__S3_DRAIN_MS);
    tierce__list_remove(&job->node);
    tierce__list_push_back(&s3->busy, &job->node);
}

/* Ends a job before it is done. */
static void give_up(struct tierce__s3 *s3, struct tierce__s3_job *job, int status, bool may_abort)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3) && !tierce__list_empty(&job->node));
    bool is_beginning = job->step == TIERCE__S3_BEGINNING && job->in_flight > 0;
    bool is_upload = job->token[0] != '\0' && job->step != TIERCE__S3_WHOLE;
    bool was_answered = job->req == NULL;
    TIERCE_DASSERT(status < 0);
    count_begun(s3, job);
    if (job->transfer != NULL) {
        tierce__s3_join_part(job->transfer);
        if (was_answered)
            return;
    }
    if (job->there != NULL && job->in_flight > 0 && may_abort && !was_answered) {
        drain(s3, job, status);
        return;
    }
    if (is_beginning && may_abort && !was_answered) {
        /* The upload's id is still to come; then it is aborted. */
        job->deadline_ns = tierce__deadline_in_ms(TIERCE__S3_ABORT_MS);
        tierce__s3_job_answer(job, status);
        return;
    }
    stop_transfers(s3, job);
    tierce__s3_job_answer(job, status);
    if (is_upload && may_abort && !was_answered)
        begin_abort(s3, job);
    else
        tierce__s3_job_free(job);
}

/* The first job of a list whose deadline has passed. */
static struct tierce__s3_job *find_late(const struct tierce__list *list, uint64_t now)
{
    TIERCE__LIST_FOR_EACH (node, list) {
        if (job_of(node)->deadline_ns <= now)
            return job_of(node);
    }
    return NULL;
}

/* Ending a job may move other jobs between lists, so each step searches the list from its start.
 */
static void expire_list(struct tierce__s3 *s3, const struct tierce__list *list, uint64_t now)
{
    for (struct tierce__s3_job *job; (job = find_late(list, now)) != NULL;) {
        if (job->req != NULL)
            tierce__s3_set_why(s3, job->has_begun ? "no answer by the deadline"
                                                  : "all connections were busy until the deadline");
        give_up(s3, job, TIERCE_E_DEADLINE, true);
    }
}

static uint64_t next_deadline(const struct tierce__list *list, uint64_t next)
{
    TIERCE__LIST_FOR_EACH (node, list) {
        uint64_t deadline_ns = job_of(node)->deadline_ns;
        next = deadline_ns < next ? deadline_ns : next;
    }
    return next;
}

void tierce__s3_jobs_expire(struct tierce__s3 *s3, uint64_t now)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    if (s3->look_ns > now)
        return;
    expire_list(s3, &s3->busy, now);
    for (unsigned i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++)
        expire_list(s3, &s3->ready[i], now);
    s3->look_ns = next_deadline(&s3->busy, TIERCE__DEADLINE_NEVER);
    for (unsigned i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++)
        s3->look_ns = next_deadline(&s3->ready[i], s3->look_ns);
    TIERCE_DASSERT(s3->look_ns > now);
}

void tierce__s3_jobs_refuse(struct tierce__s3 *s3, int status)
{
    TIERCE_DASSERT(status < 0 && tierce__s3_is_own(s3));
    for (unsigned i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++) {
        while (!tierce__list_empty(&s3->ready[i]))
            give_up(s3, job_of(s3->ready[i].next), status, false);
    }
}

static struct tierce__s3_job *find_cancelled(const struct tierce__list *list, bool all)
{
    TIERCE__LIST_FOR_EACH (node, list) {
        if (all || !job_of(node)->has_begun)
            return job_of(node);
    }
    return NULL;
}

static void cancel_list(struct tierce__s3 *s3, const struct tierce__list *list, bool all)
{
    for (struct tierce__s3_job *job; (job = find_cancelled(list, all)) != NULL;)
        give_up(s3, job, TIERCE_E_CANCELLED, false);
}

void tierce__s3_jobs_cancel(struct tierce__s3 *s3, bool all)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    cancel_list(s3, &s3->busy, all);
    for (unsigned i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++)
        cancel_list(s3, &s3->ready[i], all);
    TIERCE_DASSERT(!all || !tierce__s3_has_jobs(s3));
}

bool tierce__s3_has_jobs(const struct tierce__s3 *s3)
{
    bool has = !tierce__list_empty(&s3->busy);
    for (unsigned i = 0; i < TIERCE__CONNECTOR_URGENCIES; i++)
        has |= !tierce__list_empty(&s3->ready[i]);
    return has;
}
