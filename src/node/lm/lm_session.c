/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "node/node_private.h"
#include "proto/lm/lm.h"

#include <errno.h>
#include <string.h>

/*
 * An lm:// connection. A client's description of a value (format, dtype, shape) is stored as its
 * note. An incomplete value is never stored. A value without room is read and dropped, because a
 * PUT has no answer.
 */

enum { NOTE_BYTES = 24, SMALL_BYTES = 16 << 10 };

struct session {
    struct tierce__connection *connection;
    struct tierce__node *node;
    struct tierce__objects *space;
    uint8_t head[TIERCE__LM_REQUEST_BYTES];
    size_t head_bytes;
    struct tierce__lm_request request; /* once the head is there */
    bool is_putting, is_working;
    struct tierce__upload *upload; /* of a PUT in progress; NULL: dropped */
    struct tierce__object *object; /* of a received PUT */
    uint32_t filled;
    uint64_t deadline_ns; /* of publishing it */
    int rc;
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static void write_note(uint8_t note[NOTE_BYTES], const struct tierce__lm_shape *shape)
{
    tierce__store_le32(note, (uint32_t)shape->format);
    tierce__store_le32(note + 4, (uint32_t)shape->dtype);
    for (size_t i = 0; i < 4; i++)
        tierce__store_le32(note + 8 + 4 * i, (uint32_t)shape->dims[i]);
}

static bool read_note(struct tierce__lm_shape *shape, const struct tierce__object_what *what)
{
    const uint8_t *note = what->note;
    if (what->note_bytes != NOTE_BYTES)
        return false;
    shape->format = (int32_t)tierce__load_le32(note);
    shape->dtype = (int32_t)tierce__load_le32(note + 4);
    for (size_t i = 0; i < 4; i++)
        shape->dims[i] = (int32_t)tierce__load_le32(note + 8 + 4 * i);
    return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void reply(struct session *s, enum tierce__lm_code code, uint32_t value_bytes,
                  const struct tierce__lm_shape *shape)
{
    uint8_t bytes[TIERCE__LM_REPLY_BYTES];
    int rc = tierce__lm_reply_encode(
        bytes,
        &(struct tierce__lm_reply){.code = code, .value_bytes = value_bytes, .shape = *shape});
    TIERCE_ASSERT(rc == 0); /* no value is longer than its bound */
    tierce__connection_put(s->connection, bytes, sizeof(bytes));
}

static void reply_get(struct session *s, int rc, struct tierce__object *object)
{
    struct tierce__lm_shape shape;
    uint64_t size = rc == 0 ? object->what.value_bytes : 0;
    uint64_t first = size < TIERCE__OBJECT_PIECE ? size : TIERCE__OBJECT_PIECE;
    tierce__node_count(s->node, TIERCE__NODE_gets, 1);
    if (rc != 0 || !read_note(&shape, &object->what) || !tierce__object_verified(object, first)) {
        tierce__object_release(object);
        reply(s, TIERCE__LM_FAIL, 0, &tierce__lm_no_shape);
        return;
    }
    tierce__node_count(s->node, TIERCE__NODE_hits, 1);
    reply(s, TIERCE__LM_SUCCESS, (uint32_t)size, &shape);
    if (size > SMALL_BYTES) {
        tierce__connection_put_value(s->connection, object, 0, size, NULL);
        return;
    }
    tierce__connection_put(s->connection, object->value, (size_t)size);
    tierce__object_release(object);
}

static void reply_exist(struct session *s, int rc, struct tierce__object *object)
{
    tierce__node_count(s->node, TIERCE__NODE_questions, 1);
    if (rc == 0)
        tierce__short_leases_keep(s->node->leases, object); /* yes is a promise for a moment */
    reply(s, rc == 0 ? TIERCE__LM_SUCCESS : TIERCE__LM_FAIL, 0, &tierce__lm_no_shape);
}

static void found(struct session *s, int rc, struct tierce__object *object)
{
    if (s->request.command == TIERCE__LM_GET)
        reply_get(s, rc, object);
    else
        reply_exist(s, rc, object);
}

/* ---- PUT ------------------------------------------------------------------------------------- */

static void begin_put(struct session *s)
{
    TIERCE_ASSERT(!s->is_putting);
    uint8_t note[NOTE_BYTES];
    write_note(note, &s->request.shape);
    s->is_putting = true;
    s->filled = 0;
    s->rc =
        tierce__node_receive(s->node, &s->upload, s->space,
                             &(struct tierce__object_what){.name = s->request.key,
                                                           .name_bytes = s->request.key_bytes,
                                                           .note = note,
                                                           .note_bytes = sizeof(note),
                                                           .value_bytes = s->request.value_bytes});
    if (s->rc < 0)
        s->upload = NULL;
}

static void drop_upload(struct session *s)
{
    tierce__object_release(tierce__upload_end(s->upload));
    s->upload = NULL;
}

/* Whether the upload still has its memory; otherwise its bytes are dropped. */
static bool hold_upload(struct session *s)
{
    if (s->upload == NULL || tierce__upload_hold(s->upload))
        return s->upload != NULL;
    drop_upload(s);
    s->rc = TIERCE_E_FULL;
    return false;
}

static void let_upload_go(struct session *s)
{
    if (s->upload != NULL)
        tierce__upload_let_go(s->upload, s->filled);
}

static void publish(void *session)
{
    struct session *s = session;
    struct tierce__object_name *held;
    s->rc = TIERCE__NODE_NO_WORKER;
    if (tierce__now_ns() < s->deadline_ns)
        s->rc = tierce__node_name_begin(s->node, &held, s->request.key, s->request.key_bytes,
                                        s->deadline_ns);
    if (s->rc < 0) {
        tierce__object_release(s->object);
    } else {
        s->object->deadline_ns = s->deadline_ns;
        s->rc = tierce__object_publish(s->object);
        tierce__object_name_end(held);
    }
    s->object = NULL;
}

static void after_put(struct session *s)
{
    char why[TIERCE__NODE_ERROR_BYTES];
    if (s->rc < 0) {
        tierce__node_error(why, s->node, s->rc);
        tierce__log_repeated(TIERCE_LOG_WARN, "node_put_dropped", "peer=%s err=\"%s\"",
                             s->connection->peer, why);
    }
    tierce__node_count(s->node, s->rc < 0 ? TIERCE__NODE_sets_dropped : TIERCE__NODE_sets, 1);
}

static void end_put(struct session *s)
{
    TIERCE_ASSERT(s->is_putting && s->filled == s->request.value_bytes);
    s->is_putting = false;
    /* No answer carries it, and a client that has not set TCP_NODELAY (LMCache's) would hold its
     * next request back until it has one: 40 ms. */
    tierce__connection_acknowledge(s->connection);
    bool is_there = hold_upload(s);
    s->object = is_there ? tierce__upload_end(s->upload) : NULL;
    s->upload = NULL;
    if (!is_there) {
        after_put(s);
        return;
    }
    s->is_working = true;
    s->deadline_ns = tierce__node_deadline(s->node);
    int rc = tierce__connection_work(s->connection, publish);
    if (rc == TIERCE__NODE_NO_WORKER) {
        tierce__object_release(s->object);
        s->object = NULL;
        s->rc = rc;
    }
    if (rc != -EINPROGRESS)
        after_put(s);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void ask(struct session *s)
{
    s->is_working = false;
    int rc = tierce__connection_find(s->connection, s->space, s->request.key, s->request.key_bytes);
    if (rc != -EINPROGRESS)
        found(s, rc, rc == 0 ? s->connection->find.object : NULL);
}

static int refuse(struct session *s, const char *why, long long number)
{
    tierce__node_count(s->node, TIERCE__NODE_protocol_errors, 1);
    tierce__log_repeated(TIERCE_LOG_INFO, "node_protocol_error",
                         "protocol=lm peer=%s why=\"%s\" number=%lld", s->connection->peer, why,
                         number);
    return TIERCE_E_FORMAT;
}

static int begin(struct session *s)
{
    TIERCE_ASSERT(s->head_bytes == TIERCE__LM_REQUEST_BYTES);
    int rc = tierce__lm_request_decode(&s->request, s->head);
    s->head_bytes = 0;
    if (rc < 0)
        return refuse(s, "not a request; number is its command or length",
                      (long long)(int32_t)tierce__load_le32(s->head + 4));
    if (s->request.value_bytes > s->node->config->value_max)
        return refuse(s, "a value above limit.value", s->request.value_bytes);
    tierce__node_count(s->node, TIERCE__NODE_lm_requests, 1);
    switch (s->request.command) {
    case TIERCE__LM_PUT:
        begin_put(s);
        break;
    case TIERCE__LM_GET:
    case TIERCE__LM_EXIST:
        ask(s);
        break;
    case TIERCE__LM_HEALTH:
        reply(s, TIERCE__LM_SUCCESS, 0, &tierce__lm_no_shape);
        break;
    case TIERCE__LM_LIST: /* which the original does not answer */
        break;
    }
    return 0;
}

/* Of the value, or of the next head. Returns how many it took. */
static size_t take(struct session *s, const uint8_t *bytes, size_t count)
{
    TIERCE_ASSERT(!s->is_putting || s->filled <= s->request.value_bytes);
    size_t left = s->is_putting ? s->request.value_bytes - s->filled
                                : TIERCE__LM_REQUEST_BYTES - s->head_bytes;
    size_t n = count < left ? count : left;
    if (!s->is_putting) {
        memcpy(s->head + s->head_bytes, bytes, n);
        s->head_bytes += n;
        return n;
    }
    bool is_kept = n > 0 && hold_upload(s);
    if (is_kept) {
        memcpy(s->upload->object->value + s->filled, bytes, n);
        tierce__object_filled(s->upload->object, s->filled + n);
    }
    s->filled += (uint32_t)n;
    let_upload_go(s);
    return n;
}

static int feed(void *session, const uint8_t *bytes, size_t count, size_t *used)
{
    struct session *s = session;
    int rc = 0;
    *used = 0;
    while (rc == 0 && !tierce__connection_is_waiting(s->connection)) {
        if (s->is_putting && s->filled == s->request.value_bytes)
            end_put(s);
        else if (!s->is_putting && s->head_bytes == TIERCE__LM_REQUEST_BYTES)
            rc = begin(s);
        else if (*used < count)
            *used += take(s, bytes + *used, count - *used);
        else
            break;
    }
    return rc;
}

/* ---- the protocol ---------------------------------------------------------------------------- */

static int open_session(void *session, struct tierce__connection *connection)
{
    struct session *s = session;
    s->connection = connection;
    s->node = connection->node;
    s->space = tierce__access_space(s->node->access, TIERCE__SPACE_LM);
    connection->is_open = true;
    return 0;
}

static void close_session(void *session)
{
    struct session *s = session;
    drop_upload(s);
    tierce__object_release(s->object);
}

static void *room(void *session, size_t *bytes)
{
    struct session *s = session;
    if (!s->is_putting || s->filled == s->request.value_bytes || !hold_upload(s))
        return NULL;
    *bytes = s->request.value_bytes - s->filled;
    return s->upload->object->value + s->filled;
}

static void filled(void *session, size_t bytes)
{
    struct session *s = session;
    TIERCE_ASSERT(s->is_putting && bytes <= s->request.value_bytes - s->filled);
    s->filled += (uint32_t)bytes;
    if (bytes > 0)
        tierce__object_filled(s->upload->object, s->filled);
    let_upload_go(s);
}

/* No more than a head, so that no byte of a value takes the way over the loop's memory. */
static size_t wanted(const void *session)
{
    const struct session *s = session;
    TIERCE_DASSERT(s->head_bytes <= TIERCE__LM_REQUEST_BYTES);
    if (s->is_putting && s->upload == NULL)
        return SIZE_MAX;
    return TIERCE__LM_REQUEST_BYTES - s->head_bytes;
}

static bool is_within(const void *session)
{
    const struct session *s = session;
    return s->is_putting || s->head_bytes > 0;
}

static void answered(void *session)
{
    struct session *s = session;
    struct tierce__object_find *find = &s->connection->find;
    struct tierce__object *object = find->object;
    find->object = NULL;
    if (s->is_working)
        after_put(s);
    else
        found(s, find->status, find->status == 0 ? object : NULL);
    tierce__connection_go_on(s->connection);
}

const struct tierce__protocol tierce__lm_protocol = {
    .name = "lm",
    .session_bytes = sizeof(struct session),
    .open = open_session,
    .close = close_session,
    .feed = feed,
    .room = room,
    .filled = filled,
    .wanted = wanted,
    .is_within = is_within,
    .answered = answered,
};
