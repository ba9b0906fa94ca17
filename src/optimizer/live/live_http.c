/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A streaming HTTP response, line by line. Data goes into a bounded buffer; while it is full the
 * connection is not read. A connection that breaks after it delivered data is reopened, at most
 * once per second; the end of a response ends the source, and an error status is an error.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "net/http_client.h"
#include "optimizer/live/live_private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)1 << 20)
#define CONNECT_MS   10000u
#define AGAIN_MS     1000u

struct live_http {
    struct tierce__live_source base;
    struct tierce__curl *client;
    char *url;
    char *buffer; /* [BUFFER_BYTES] */
    size_t at, end;
    bool paused;
    bool is_running; /* a transfer is in progress, or its end has not been seen */
    bool received;   /* whether any data has arrived */
    bool in_line;
    int result;        /* of the finished transfer */
    uint64_t again_ns; /* start of the next transfer */
    char error[256];
};

static struct live_http *http_of(struct tierce__live_source *source)
{
    return (struct live_http *)(void *)source;
}

static size_t take_bytes(void *arg, const char *data, size_t n)
{
    struct live_http *h = arg;
    long kind = tierce__curl_status(h->client) / 100;
    if (kind != 2)
        return kind == 3 ? n : 0; /* the text of a redirect, of an error */
    if (h->at == h->end)
        h->at = h->end = 0;
    TIERCE_DASSERT(h->at <= h->end);
    if (n > BUFFER_BYTES - h->end) {
        h->paused = true;
        return TIERCE__CURL_PAUSE;
    }
    memcpy(h->buffer + h->end, data, n);
    h->end += n;
    TIERCE_ASSERT(h->end <= BUFFER_BYTES);
    h->received = h->received || n > 0;
    return n;
}

static void http_close(struct tierce__live_source *source)
{
    struct live_http *h = http_of(source);
    tierce__curl_destroy(h->client);
    tierce__free(h->url);
    tierce__free(h->buffer);
    tierce__free(h);
}

static int http_open(struct tierce__live_source **out, const char *url,
                     char why[TIERCE__TRACE_WHY_BYTES])
{
    struct live_http *h = tierce__calloc(1, sizeof(*h));
    snprintf(why, TIERCE__TRACE_WHY_BYTES, "no memory");
    if (h == NULL)
        return -ENOMEM;
    h->buffer = tierce__alloc(BUFFER_BYTES);
    h->url = tierce__strdup(url);
    if (h->buffer == NULL || h->url == NULL ||
        tierce__curl_create(&h->client, &(struct tierce__curl_opts){.connect_ms = CONNECT_MS,
                                                                    .uses_proxies = true}) != 0) {
        http_close(&h->base);
        return -ENOMEM;
    }
    *out = &h->base;
    return 0;
}

static void begin_transfer(struct live_http *h)
{
    TIERCE_DASSERT(!h->is_running);
    h->paused = false;
    h->is_running = true;
    tierce__curl_begin(h->client,
                       &(struct tierce__curl_request){.url = h->url, .take = take_bytes, .arg = h});
}

/* Transfers some data, and notes the end of the transfer if it is over. */
static void transfer_some(struct live_http *h)
{
    TIERCE_DASSERT(h->is_running);
    struct tierce__curl_answer answer;
    if (tierce__curl_step(h->client))
        return;
    h->result = tierce__curl_end(&answer, h->client, h->error);
    h->is_running = false;
    h->again_ns = tierce__deadline_in_ms(AGAIN_MS);
}

static ssize_t give_out(struct live_http *h, char *out, size_t size)
{
    TIERCE_ASSERT(size > 0 && h->at < h->end);
    size_t n = h->end - h->at < size ? h->end - h->at : size;
    memcpy(out, h->buffer + h->at, n);
    h->at += n;
    h->in_line = out[n - 1] != '\n';
    return (ssize_t)n;
}

/* Called after a transfer has ended and its data was consumed. */
static ssize_t go_on(struct live_http *h, char *out, char why[TIERCE__TRACE_WHY_BYTES])
{
    TIERCE_DASSERT(h->at == h->end);
    TIERCE_DASSERT(!h->is_running);
    if (h->again_ns == 0) {
        begin_transfer(h);
        return -EAGAIN;
    }
    long status = tierce__curl_status(h->client);
    if (status >= 400) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "the server answered HTTP %ld", status);
        return -EIO;
    }
    if (h->result == 0 && status / 100 == 3) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES,
                 "it redirects to another address, which is not followed: name that address");
        return -EIO;
    }
    if (h->result == 0)
        return 0;
    if (!h->received) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "%s", h->error);
        return -EIO;
    }
    if (h->in_line) {
        h->in_line = false;
        out[0] = '\n';
        return 1;
    }
    if (tierce__now_ns() < h->again_ns) {
        (void)poll(NULL, 0, TIERCE__LIVE_WAIT_MS);
        return -EAGAIN;
    }
    h->base.counts.restarts++;
    begin_transfer(h);
    return -EAGAIN;
}

static ssize_t http_read(struct tierce__live_source *source, void *out, size_t size,
                         char why[TIERCE__TRACE_WHY_BYTES])
{
    TIERCE_DASSERT(source->ops == &tierce__live_http_ops && size > 0);
    struct live_http *h = http_of(source);
    if (h->at < h->end)
        return give_out(h, out, size);
    if (!h->is_running)
        return go_on(h, out, why);
    if (h->paused) {
        h->paused = false;
        tierce__curl_resume(h->client);
    }
    transfer_some(h);
    if (h->at < h->end)
        return give_out(h, out, size);
    if (h->is_running)
        tierce__curl_wait(h->client, TIERCE__LIVE_WAIT_MS);
    return -EAGAIN;
}

const struct tierce__live_ops tierce__live_http_ops = {
    .open = http_open,
    .read = http_read,
    .close = http_close,
};
