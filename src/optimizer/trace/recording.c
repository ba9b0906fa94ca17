/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/recording.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "core/policy/policy.h"
#include "optimizer/trace/temporary.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUFFER_BYTES  ((size_t)1 << 20)
#define IDS_TOGETHER  4096u
#define EXPECTS_LEAST 65536u /* below this size growing is free */
#define EXPECTED_MAX  8.0

/*
 * Blocks of many requests are numbered together, so that the memory of one request's numbers is
 * fetched while another's are looked at. Until then a request is in the buffer without them.
 */
struct tierce__recording {
    struct tierce__intern *intern;
    struct tierce__recording_totals totals;
    int fd;
    uint8_t *buffer; /* [buffer_room] whole requests that are not written yet */
    size_t buffered, buffer_room;
    size_t numbered;   /* bytes of the buffer that have their numbers */
    uint64_t *ids;     /* [id_room] of requests without numbers */
    uint32_t *numbers; /* [id_room] */
    uint32_t id_count, id_room;
    uint32_t instance; /* of all of them */
    uint64_t written;
    uint32_t last_bytes; /* of the request added last, in eights */
    uint64_t expects_at; /* the number of blocks at which more room is reserved */
    uint8_t *map;        /* sealed: the file, [written] */
};

/* ---- the layout of a request ----------------------------------------------------------------- */

static size_t numbers_bytes(uint32_t count)
{
    return ((size_t)count + 1) / 2 * 2 * sizeof(uint32_t);
}

static size_t sizes_bytes(const struct tierce__recorded *r)
{
    return r->has_bytes ? (size_t)r->count * sizeof(uint64_t) : 0;
}

static size_t internal_bytes(const struct tierce__recorded *r)
{
    return r->has_internal ? ((size_t)r->count + 7) / 8 * 8 : 0;
}

static size_t recorded_bytes(const struct tierce__recorded *r)
{
    return sizeof(*r) + numbers_bytes(r->count) + sizes_bytes(r) + internal_bytes(r);
}

const uint8_t *tierce__recorded_internal(const struct tierce__recorded *request)
{
    const uint8_t *end = (const uint8_t *)(request + 1);
    return request->has_internal ? end + numbers_bytes(request->count) + sizes_bytes(request)
                                 : NULL;
}

uint32_t tierce__recorded_held(const struct tierce__recorded *request)
{
    const uint8_t *internal = tierce__recorded_internal(request);
    uint32_t held = 0;
    while (internal != NULL && held < request->read_count && internal[held] != 0)
        held++;
    return held;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int write_buffer(struct tierce__recording *r)
{
    size_t done = 0;
    TIERCE_ASSERT(r->numbered == r->buffered);
    while (done < r->buffered) {
        ssize_t n = write(r->fd, r->buffer + done, r->buffered - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    r->written += r->buffered;
    r->buffered = r->numbered = 0;
    return 0;
}

/* ---- adding ---------------------------------------------------------------------------------- */

static int number_blocks(struct tierce__recording *r)
{
    int rc = tierce__intern_chain(r->intern, r->instance, r->ids, r->id_count, r->numbers);
    if (rc < 0)
        return rc;
    const uint32_t *numbers = r->numbers;
    while (r->numbered < r->buffered) {
        struct tierce__recorded *head = (void *)(r->buffer + r->numbered);
        if (head->count > 0)
            memcpy(head + 1, numbers, (size_t)head->count * sizeof(*numbers));
        numbers += head->count;
        r->numbered += recorded_bytes(head);
    }
    TIERCE_ASSERT(r->numbered == r->buffered && numbers == r->numbers + r->id_count);
    r->id_count = 0;
    return r->buffered >= BUFFER_BYTES ? write_buffer(r) : 0;
}

static int make_room(struct tierce__recording *r, const struct tierce__recorded *head)
{
    size_t ids = (size_t)r->id_count + head->count;
    uint32_t ids_room = r->id_room; /* of both arrays, once both have grown */
    if (TIERCE__GROW(r->buffer, r->buffer_room, r->buffered + recorded_bytes(head),
                     2 * BUFFER_BYTES) < 0 ||
        TIERCE__GROW(r->ids, ids_room, ids, IDS_TOGETHER) < 0 ||
        TIERCE__GROW(r->numbers, r->id_room, ids, IDS_TOGETHER) < 0)
        return -ENOMEM;
    TIERCE_ASSERT(r->buffered + recorded_bytes(head) <= r->buffer_room);
    return 0;
}

/* Appends `length` bytes, then zeros up to `padded`. */
static void append(struct tierce__recording *r, const void *data, size_t length, size_t padded)
{
    TIERCE_ASSERT(length <= padded && r->buffered + padded <= r->buffer_room);
    uint8_t *to = r->buffer + r->buffered;
    memset(to + length, 0, padded - length);
    if (length > 0)
        memcpy(to, data, length);
    r->buffered += padded;
}

static void count_request(struct tierce__recording *r, const struct tierce__recorded *head,
                          const uint8_t *internal)
{
    TIERCE_ASSERT(head->read_count <= head->count && head->stored <= head->count);
    struct tierce__recording_totals *t = &r->totals;
    if (t->requests == 0)
        t->first_us = head->time_us;
    t->last_us = head->time_us;
    t->requests++;
    t->blocks += head->count;
    t->read_blocks += head->read_count;
    for (uint32_t i = 0; internal != NULL && i < head->read_count; i++)
        t->internal_blocks += internal[i] != 0;
    t->instances = head->instance >= t->instances ? head->instance + 1 : t->instances;
    t->longest = head->count > t->longest ? head->count : t->longest;
    t->has_bytes = t->has_bytes || head->has_bytes;
    t->has_reads = t->has_reads || head->stored < head->count;
    t->has_sessions = t->has_sessions || head->session != 0;
}

int tierce__recording_add(struct tierce__recording *recording,
                          const struct tierce__trace_request *request)
{
    TIERCE_ASSERT(recording->map == NULL);
    if (request->kind == TIERCE__TRACE_DROP)
        return 0;
    struct tierce__recorded head = {
        .time_us = request->time_us,
        .session = request->session,
        .input_tokens = request->input_tokens,
        .instance = request->instance,
        .count = request->count,
        .read_count = request->kind == TIERCE__TRACE_WRITE ? 0 : request->read_count,
        .window = request->window,
        .kind = (uint8_t)request->kind,
        .query = (uint8_t)request->query,
        .has_internal = request->internal != NULL && request->count > 0,
        .has_bytes = request->bytes != NULL && request->count > 0,
        .hint = request->hint < TIERCE__HINTS ? request->hint & 7u : 0u,
        .before = recording->last_bytes,
        .stored = request->kind == TIERCE__TRACE_READ ? 0 : request->count - request->unstored,
        .output_tokens =
            request->output_tokens < UINT32_MAX ? (uint32_t)request->output_tokens : UINT32_MAX,
    };
    if (recorded_bytes(&head) / 8 > UINT32_MAX)
        return TIERCE_E_LIMIT;
    bool together =
        recording->id_count == 0 || (recording->instance == head.instance &&
                                     (uint64_t)recording->id_count + head.count <= IDS_TOGETHER);
    int rc = together && recording->buffered < BUFFER_BYTES ? 0 : number_blocks(recording);
    if (rc == 0)
        rc = make_room(recording, &head);
    if (rc < 0)
        return rc;
    recording->instance = head.instance;
    append(recording, &head, sizeof(head), sizeof(head));
    append(recording, NULL, 0, numbers_bytes(head.count));
    if (head.has_bytes)
        append(recording, request->bytes, sizes_bytes(&head), sizes_bytes(&head));
    if (head.has_internal)
        append(recording, request->internal, head.count, internal_bytes(&head));
    if (head.count > 0)
        memcpy(recording->ids + recording->id_count, request->blocks,
               (size_t)head.count * sizeof(*recording->ids));
    recording->id_count += head.count;
    TIERCE_ASSERT(recording->id_count <= recording->id_room);
    count_request(recording, &head, head.has_internal ? request->internal : NULL);
    recording->last_bytes = (uint32_t)(recorded_bytes(&head) / 8);
    return 0;
}

int tierce__recording_expect(struct tierce__recording *recording, uint64_t done, uint64_t total)
{
    uint64_t count = tierce__intern_count(recording->intern);
    if (count < recording->expects_at || done < total / 64 || done >= total)
        return 0;
    /* Distinct blocks may be concentrated at the start of a trace, so the estimate is applied in
     * steps. */
    double share = (double)total / (double)done;
    uint64_t wanted = (uint64_t)((double)count * (share < EXPECTED_MAX ? share : EXPECTED_MAX));
    if (wanted > UINT32_MAX)
        return 0;
    recording->expects_at = wanted - wanted / 8;
    return tierce__intern_reserve(recording->intern, (uint32_t)wanted);
}

int tierce__recording_seal(struct tierce__recording *recording)
{
    TIERCE_ASSERT(recording->map == NULL);
    int rc = number_blocks(recording);
    if (rc == 0)
        rc = write_buffer(recording);
    if (rc < 0 || recording->written == 0)
        return rc;
    void *map = mmap(NULL, recording->written, PROT_READ, MAP_SHARED, recording->fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    recording->map = map;
    return 0;
}

int tierce__recording_end(struct tierce__recording *recording, int rc,
                          struct tierce__recording **out)
{
    TIERCE_ASSERT(recording != NULL || rc < 0);
    if (rc == 0)
        rc = tierce__recording_seal(recording);
    if (rc == 0)
        *out = recording;
    else
        tierce__recording_destroy(recording);
    return rc;
}

/* ---- create, destroy, read ------------------------------------------------------------------- */

int tierce__recording_create(struct tierce__recording **out, const char *folder)
{
    struct tierce__recording *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->fd = -1;
    r->expects_at = EXPECTS_LEAST;
    int rc = tierce__intern_create(&r->intern);
    if (rc == 0) {
        r->fd = tierce__open_temporary(folder);
        rc = r->fd >= 0 ? 0 : r->fd;
    }
    if (rc < 0) {
        tierce__recording_destroy(r);
        return rc;
    }
    *out = r;
    return 0;
}

void tierce__recording_destroy(struct tierce__recording *recording)
{
    if (recording == NULL)
        return;
    if (recording->map != NULL)
        munmap(recording->map, recording->written);
    if (recording->fd >= 0)
        close(recording->fd);
    tierce__intern_destroy(recording->intern);
    tierce__free(recording->buffer);
    tierce__free(recording->ids);
    tierce__free(recording->numbers);
    tierce__free(recording);
}

const struct tierce__recorded *tierce__recording_first(const struct tierce__recording *recording)
{
    return (const struct tierce__recorded *)(const void *)recording->map;
}

const struct tierce__recorded *tierce__recording_last(const struct tierce__recording *recording)
{
    return recording->map == NULL
               ? NULL
               : (const struct tierce__recorded *)(const void *)(recording->map +
                                                                 recording->written -
                                                                 8 * (size_t)recording->last_bytes);
}

const struct tierce__recorded *tierce__recording_next(const struct tierce__recording *recording,
                                                      const struct tierce__recorded *request)
{
    TIERCE_DASSERT((const uint8_t *)request >= recording->map);
    const uint8_t *next = (const uint8_t *)request + recorded_bytes(request);
    TIERCE_DASSERT(next <= recording->map + recording->written);
    return next < recording->map + recording->written
               ? (const struct tierce__recorded *)(const void *)next
               : NULL;
}

struct tierce__recording_totals tierce__recording_totals(const struct tierce__recording *recording)
{
    struct tierce__recording_totals totals = recording->totals;
    totals.distinct = tierce__intern_count(recording->intern);
    return totals;
}

int tierce__recording_bytes(const struct tierce__recording *recording, uint64_t *out)
{
    uint32_t distinct = tierce__intern_count(recording->intern);
    uint64_t *size_of = tierce__calloc((size_t)distinct + 1, sizeof(*size_of)), sum = 0;
    if (size_of == NULL)
        return -ENOMEM;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        const uint64_t *bytes = tierce__recorded_bytes(r);
        for (uint32_t i = 0; bytes != NULL && i < r->count; i++)
            size_of[tierce__recorded_blocks(r)[i]] = bytes[i];
    }
    for (uint32_t b = 0; b < distinct; b++)
        sum += size_of[b] < TIERCE__CAPACITY_BYTES_MAX - sum ? size_of[b]
                                                             : TIERCE__CAPACITY_BYTES_MAX - sum;
    tierce__free(size_of);
    *out = sum;
    return 0;
}
