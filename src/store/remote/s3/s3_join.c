/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins waiting jobs into one HTTP request, because each request costs a round trip and a fee.
 *
 * Adjacent waiting ranges of one object become one GET of at most `part` bytes. Its bytes arrive in
 * order, and each range is answered when its last byte has arrived, so that no job waits for the
 * ranges after its own.
 *
 *     ready:  [0, 1 MiB) [1, 2 MiB) [2, 3 MiB)  of one buffer and one name
 *     busy:   one transfer, [0, 3 MiB), whose `riders` are the three jobs, in order
 *
 * Waiting DELETEs become one DeleteObjects.
 *
 * The first job has the transfer (transfer->job). The transfer is split, and each unanswered job is
 * sent again as a request of its own, in four cases: a job must be answered before the store has
 * answered; the object ends inside the joined range; the connection breaks inside it; an object
 * cannot be deleted.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/mix.h"
#include "store/remote/s3/s3_private.h"

#include <stdio.h>
#include <string.h>

#define DELETIONS_MAX 1000u /* of S3 */
#define LOOKED_AT_MAX 4096u

static struct tierce__list *bin_of(struct tierce__s3 *s3, const struct tierce__buf *buf,
                                   uint64_t offset)
{
    uint64_t x = tierce__mix(tierce__spread((uint64_t)(uintptr_t)buf) + offset);
    return &s3->bins[x % TIERCE__S3_BINS];
}

static struct tierce__s3_job *rider_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__s3_job, ride);
}

void tierce__s3_join_await(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3) && !job->has_begun);
    const struct tierce__store_req *req = job->req;
    TIERCE_DASSERT(tierce__list_empty(&job->bin));
    if (req->op == TIERCE__STORE_GET && job->count == 1)
        tierce__list_push_back(bin_of(s3, req->buf, req->offset), &job->bin);
}

/* The waiting job whose range begins where `lead` and its riders end. */
static struct tierce__s3_job *find_next(struct tierce__s3 *s3, const struct tierce__s3_job *lead,
                                        uint64_t offset)
{
    const struct tierce__store_req *first = lead->req;
    TIERCE__LIST_FOR_EACH (node, bin_of(s3, first->buf, offset)) {
        struct tierce__s3_job *job = TIERCE__CONTAINER_OF(node, struct tierce__s3_job, bin);
        const struct tierce__store_req *req = job->req;
        if (req->buf == first->buf && req->offset == offset &&
            req->names[0].bytes == first->names[0].bytes &&
            memcmp(req->names[0].text, first->names[0].text, first->names[0].bytes) == 0)
            return job;
    }
    return NULL;
}

static void take_along(struct tierce__s3_transfer *transfer, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(!job->is_alone && job->in_flight <= 1);
    tierce__list_remove(&job->bin);
    TIERCE_DASSERT(tierce__list_empty(&job->ride));
    tierce__list_push_back(&transfer->riders, &job->ride);
    job->transfer = transfer;
}

static void join_ranges(struct tierce__s3_transfer *transfer)
{
    struct tierce__s3 *s3 = transfer->s3;
    struct tierce__s3_job *lead = transfer->job, *next;
    while ((next = find_next(s3, lead, transfer->offset + transfer->wanted)) != NULL &&
           next->req->length <= s3->config.part_bytes - transfer->wanted) {
        if (tierce__list_empty(&transfer->riders))
            take_along(transfer, lead);
        take_along(transfer, next);
        tierce__s3_job_is_begun(s3, next);
        TIERCE_DASSERT(next != lead && next->req->offset == transfer->offset + transfer->wanted);
        TIERCE_ASSERT(next->req->length <= next->req->buf->bytes - next->req->offset);
        transfer->wanted += next->req->length;
        TIERCE_DASSERT(transfer->wanted <= s3->config.part_bytes);
    }
}

/* The body of DeleteObjects. Keys contain no character that XML must escape (s3_key.c). */
static bool list_keys(struct tierce__s3_transfer *transfer, size_t count)
{
    size_t room = count * (TIERCE__S3_KEY_BYTES + 32) + 64, used = 0;
    TIERCE_DASSERT(count > 1 && count <= DELETIONS_MAX);
    char *text = tierce__alloc(room);
    if (text == NULL)
        return false;
    used += (size_t)snprintf(text, room, "<Delete><Quiet>true</Quiet>");
    TIERCE__LIST_FOR_EACH (node, &transfer->riders)
        used += (size_t)snprintf(text + used, room - used, "<Object><Key>%s</Key></Object>",
                                 rider_of(node)->key);
    used += (size_t)snprintf(text + used, room - used, "</Delete>");
    TIERCE_ASSERT(used < room);
    transfer->own_body = text;
    transfer->body = (const uint8_t *)text;
    transfer->body_bytes = used;
    return true;
}

static bool is_deletion(const struct tierce__s3_job *job)
{
    return job->req != NULL && job->req->op == TIERCE__STORE_DELETE && !job->is_alone;
}

static void join_deletions(struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(is_deletion(transfer->job) && transfer->job->count == 1);
    struct tierce__s3 *s3 = transfer->s3;
    size_t count = 1, seen = 0;
    take_along(transfer, transfer->job);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &s3->ready[transfer->job->urgency]) {
        struct tierce__s3_job *job = TIERCE__CONTAINER_OF(node, struct tierce__s3_job, node);
        if (count == DELETIONS_MAX || seen++ == LOOKED_AT_MAX)
            break;
        if (job == transfer->job || !is_deletion(job))
            continue;
        take_along(transfer, job);
        tierce__s3_job_is_begun(s3, job);
        count++;
    }
    if (count > 1 && list_keys(transfer, count)) {
        transfer->call = TIERCE__S3_DELETE_MANY;
        TIERCE__LIST_FOR_EACH (node, &transfer->riders)
            tierce__s3_learn(s3, rider_of(node)->key, 0);
        return;
    }
    while (!tierce__list_empty(&transfer->riders)) { /* each gets a request of its own */
        struct tierce__s3_job *job = rider_of(transfer->riders.prev);
        job->transfer = NULL;
        tierce__list_remove(&job->ride);
        if (job == transfer->job)
            continue;
        job->next = 0;
        tierce__list_remove(&job->node);
        tierce__list_push_front(&s3->ready[job->urgency], &job->node);
    }
}

void tierce__s3_join(struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(tierce__s3_is_own(transfer->s3));
    const struct tierce__s3_job *lead = transfer->job;
    TIERCE_ASSERT(tierce__list_empty(&transfer->riders));
    if (lead->is_alone)
        return;
    if (transfer->call == TIERCE__S3_GET && lead->count == 1)
        join_ranges(transfer);
    else if (transfer->call == TIERCE__S3_DELETE && !transfer->s3->deletes_alone)
        join_deletions(transfer);
}

/* Whether the store sends the whole joined range. */
static bool is_delivering(const struct tierce__s3_transfer *transfer)
{
    return transfer->http == 206 && !transfer->is_wrong && transfer->has_range &&
           transfer->range_first == transfer->offset &&
           transfer->range_last == transfer->offset + transfer->wanted - 1;
}

/* Answers a rider; the owner of the transfer is answered at its end. */
static void answer_rider(struct tierce__s3_transfer *transfer, struct tierce__s3_job *job,
                         int status)
{
    TIERCE_DASSERT(status <= 0);
    long connects = 0;
    TIERCE_DASSERT(job->transfer == transfer);
    curl_easy_getinfo(transfer->easy, CURLINFO_NUM_CONNECTS, &connects);
    job->req->connected = connects > 0;
    tierce__list_remove(&job->ride);
    tierce__s3_job_answer(job, status);
    if (job == transfer->job)
        job->deadline_ns = TIERCE__DEADLINE_NEVER;
    else
        tierce__s3_job_free(job);
}

static void deliver(struct tierce__s3_transfer *transfer)
{
    uint64_t end = transfer->offset + transfer->got;
    while (!tierce__list_empty(&transfer->riders) && is_delivering(transfer)) {
        struct tierce__s3_job *job = rider_of(transfer->riders.next);
        TIERCE_DASSERT(transfer->got <= transfer->wanted);
        TIERCE_DASSERT(job->req->offset >= transfer->offset);
        if (job->req->offset + job->req->length > end)
            return;
        answer_rider(transfer, job, 0);
    }
}

void tierce__s3_join_deliver(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    for (uint64_t i = 0; i < s3->config.connections; i++) {
        struct tierce__s3_transfer *transfer = &s3->transfers[i];
        if (transfer->job != NULL && transfer->job->transfer == transfer)
            deliver(transfer);
    }
}

void tierce__s3_join_part(struct tierce__s3_transfer *transfer)
{
    struct tierce__s3 *s3 = transfer->s3;
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    struct tierce__s3_job *lead = transfer->job;
    TIERCE_DASSERT(lead->transfer == transfer);
    while (
        !tierce__list_empty(&transfer->riders)) { /* the last one first: each goes to the front */
        struct tierce__s3_job *job = rider_of(transfer->riders.prev);
        tierce__list_remove(&job->ride);
        tierce__list_remove(&job->node);
        tierce__list_push_front(&s3->ready[job->urgency], &job->node);
        TIERCE_DASSERT(job->transfer == transfer);
        job->transfer = NULL;
        job->is_alone = true;
        job->next = 0;
    }
    lead->transfer = NULL;
    TIERCE_DASSERT(lead->in_flight > 0);
    lead->in_flight--;
    tierce__s3_transfer_free(transfer);
    if (lead->req == NULL)
        tierce__s3_job_free(lead);
}

bool tierce__s3_join_end(struct tierce__s3_transfer *transfer, int status)
{
    struct tierce__s3_job *lead = transfer->job;
    if (lead->transfer != transfer)
        return false;
    /* One connection that breaks must not be a failure of each of them: that would be enough of
     * them to open the breaker. */
    bool is_cut = status == TIERCE_E_DOWN && transfer->http == 206;
    if (status == 0 || is_cut)
        deliver(transfer);
    if (status == TIERCE_E_FORMAT || is_cut) { /* the former perhaps of one of them alone */
        tierce__s3_join_part(transfer);
        return true;
    }
    /* A store without range requests sends the whole object; these bytes are its beginning. */
    for (bool repeats = false; !tierce__list_empty(&transfer->riders); repeats = true) {
        struct tierce__s3_job *job = rider_of(transfer->riders.next);
        job->req->repeats = repeats && status < 0;
        answer_rider(transfer, job, status);
    }
    lead->transfer = NULL;
    return false;
}
