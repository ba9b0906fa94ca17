/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "net/server/http/http_private.h"

#include <string.h>

/*
 * An endless answer. libmicrohttpd pulls data; while there is none its connection is suspended, and
 * the next write resumes it. A stream has two holders: the application until tierce__stream_end,
 * and the response until the connection is over.
 */

#define STREAM_MAGIC 0x6d727473u

struct tierce__http_stream {
    uint32_t magic;
    struct tierce__lock lock;
    struct MHD_Connection *connection;
    struct tierce__http *http; /* used by the response only */
    struct tierce__list node;  /* of http, under its lock */
    int fd;
    unsigned holders;
    bool is_suspended, is_gone, is_ended;
    bool is_broken;             /* bytes are lost: the connection ends without the end's mark */
    bool awaits_room;           /* `drained` is due as soon as there is some */
    void (*drained)(void *arg); /* or NULL */
    void *arg;
    char *data; /* [begin, end) is queued; the sent part is discarded when it is as large as that */
    size_t begin, end, capacity, bytes_max;
};

static void drop(struct tierce__http_stream *stream)
{
    tierce__lock_take(&stream->lock);
    TIERCE_ASSERT(stream->holders > 0);
    bool was_last = --stream->holders == 0;
    tierce__lock_drop(&stream->lock);
    if (!was_last)
        return;
    stream->magic = 0;
    tierce__lock_fini(&stream->lock);
    tierce__free(stream->data);
    tierce__free(stream);
}

/* Called under the lock. Returns whether the writer must be woken after unlocking. */
static bool has_drained(struct tierce__http_stream *stream)
{
    tierce__lock_assert_held(&stream->lock);
    bool due = stream->awaits_room &&
               (stream->is_gone || stream->end - stream->begin <= stream->bytes_max / 2);
    if (due)
        stream->awaits_room = false;
    return due;
}

/* Called by libmicrohttpd's thread. */
static ssize_t pull(void *arg, uint64_t position, char *out, size_t capacity)
{
    (void)position;
    struct tierce__http_stream *stream = arg;
    ssize_t result = 0;
    tierce__lock_take(&stream->lock);
    TIERCE_ASSERT(stream->begin <= stream->end && stream->end <= stream->capacity);
    size_t n = stream->end - stream->begin;
    if (n > capacity)
        n = capacity;
    if (n > 0) {
        memcpy(out, stream->data + stream->begin, n);
        stream->begin += n;
        result = (ssize_t)n;
    } else if (stream->is_ended) {
        result = stream->is_broken ? MHD_CONTENT_READER_END_WITH_ERROR
                                   : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        stream->is_suspended = true;
        MHD_suspend_connection(stream->connection);
    }
    bool drained = has_drained(stream);
    tierce__lock_drop(&stream->lock);
    if (drained)
        stream->drained(stream->arg);
    return result;
}

static void response_is_gone(void *arg)
{
    struct tierce__http_stream *stream = arg;
    tierce__lock_take(&stream->http->lock);
    tierce__list_remove(&stream->node);
    tierce__lock_drop(&stream->http->lock);
    tierce__lock_take(&stream->lock);
    TIERCE_ASSERT(!stream->is_gone);
    stream->is_gone = true;
    bool drained = has_drained(stream);
    tierce__lock_drop(&stream->lock);
    if (drained)
        stream->drained(stream->arg);
    drop(stream);
}

static struct tierce__http_stream *make_stream(struct tierce__http_call *call)
{
    struct tierce__http_stream *stream = tierce__calloc(1, sizeof(*stream));
    if (stream == NULL)
        return NULL;
    stream->magic = STREAM_MAGIC;
    tierce__lock_init(&stream->lock, TIERCE__LOCK_SERVE_STREAM);
    stream->connection = call->connection;
    stream->http = call->http;
    stream->fd = call->fd;
    stream->holders = 2;
    stream->bytes_max = call->base.shared->stream_buffer_max;
    tierce__lock_take(&call->http->lock);
    tierce__list_push_back(&call->http->streams, &stream->node);
    stream->is_ended = call->http->is_draining;
    call->is_stream = true;
    tierce__lock_drop(&call->http->lock);
    return stream;
}

struct tierce__http_stream *tierce__call_stream_with(struct tierce__call *base,
                                                     const struct tierce__stream_opts *opts)
{
    if (tierce__call_info(base)->protocol != TIERCE__SERVE_HTTP)
        return NULL;
    struct tierce__http_call *call = TIERCE__CONTAINER_OF(base, struct tierce__http_call, base);
    struct tierce__http_stream *stream = make_stream(call);
    if (stream == NULL)
        return NULL;
    stream->drained = opts->drained;
    stream->arg = opts->arg;
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, 16u << 10, pull, stream, response_is_gone);
    if (response == NULL) {
        stream->holders = 1;
        response_is_gone(stream);
        return NULL;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, opts->type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    for (size_t i = 0; i < opts->header_count; i++)
        (void)MHD_add_response_header(response, opts->headers[i].name, opts->headers[i].value);
    tierce__http_settle(call, opts->status != 0 ? opts->status : 200, response);
    tierce__call_handler_is_done(base);
    return stream;
}

struct tierce__http_stream *tierce__call_stream(struct tierce__call *base, const char *type)
{
    return tierce__call_stream_with(base, &(struct tierce__stream_opts){.type = type});
}

/* Makes room for `count` bytes after the queued ones. */
static bool reserve(struct tierce__http_stream *stream, size_t count)
{
    tierce__lock_assert_held(&stream->lock);
    size_t waiting = stream->end - stream->begin;
    if (count > stream->bytes_max || waiting > stream->bytes_max - count)
        return false;
    if (stream->begin > 0 && stream->begin >= waiting) {
        memmove(stream->data, stream->data + stream->begin, waiting);
        stream->begin = 0;
        stream->end = waiting;
    }
    if (TIERCE__GROW(stream->data, stream->capacity, stream->end + count, 256) < 0)
        return false;
    TIERCE_ASSERT(count <= stream->capacity - stream->end);
    return true;
}

/* While the connection is suspended, only this check detects it. */
static bool has_left(const struct tierce__http_stream *stream)
{
    tierce__lock_assert_held(&stream->lock);
    return stream->is_suspended && tierce__http_has_left(stream->fd);
}

/* Called under the lock; returns the connection to resume after unlocking, or NULL. */
static struct MHD_Connection *awaken(struct tierce__http_stream *stream)
{
    tierce__lock_assert_held(&stream->lock);
    bool was_suspended = stream->is_suspended;
    stream->is_suspended = false;
    return was_suspended ? stream->connection : NULL;
}

bool tierce__stream_write(struct tierce__http_stream *stream, const void *bytes, size_t count)
{
    TIERCE_CHECK_MAGIC(stream, STREAM_MAGIC);
    struct MHD_Connection *resumed = NULL;
    tierce__lock_take(&stream->lock);
    bool good = !stream->is_gone && !stream->is_ended;
    if (good && (has_left(stream) || !reserve(stream, count))) {
        good = false;
        stream->is_ended = stream->is_broken = true;
        stream->begin = stream->end;
        resumed = awaken(stream);
    }
    if (good && count > 0) {
        memcpy(stream->data + stream->end, bytes, count);
        stream->end += count;
        TIERCE_ASSERT(stream->end <= stream->capacity);
        resumed = awaken(stream);
    }
    tierce__lock_drop(&stream->lock);
    if (resumed != NULL)
        MHD_resume_connection(resumed);
    return good;
}

size_t tierce__stream_room(struct tierce__http_stream *stream, size_t wanted)
{
    TIERCE_CHECK_MAGIC(stream, STREAM_MAGIC);
    tierce__lock_take(&stream->lock);
    TIERCE_ASSERT(stream->end - stream->begin <= stream->bytes_max);
    size_t room = stream->bytes_max - (stream->end - stream->begin);
    if (stream->is_gone || stream->is_ended)
        room = stream->bytes_max; /* the next write reports it */
    else if (room < wanted && stream->drained != NULL)
        stream->awaits_room = true;
    tierce__lock_drop(&stream->lock);
    return room;
}

static void end(struct tierce__http_stream *stream)
{
    tierce__lock_take(&stream->lock);
    stream->is_ended = true;
    struct MHD_Connection *resumed = awaken(stream);
    tierce__lock_drop(&stream->lock);
    if (resumed != NULL)
        MHD_resume_connection(resumed);
}

void tierce__stream_end(struct tierce__http_stream *stream)
{
    if (stream == NULL)
        return;
    TIERCE_CHECK_MAGIC(stream, STREAM_MAGIC);
    end(stream);
    drop(stream);
}

/* Their nodes stay until the responses are freed. */
void tierce__http_streams_end(struct tierce__http *http)
{
    tierce__lock_take(&http->lock);
    TIERCE__LIST_FOR_EACH (node, &http->streams)
        end(TIERCE__CONTAINER_OF(node, struct tierce__http_stream, node));
    tierce__lock_drop(&http->lock);
}
