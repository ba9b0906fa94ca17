/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A streaming HTTP response, line by line. Data goes into a bounded buffer; while it is full the
 * connection is not read. A connection that breaks after it delivered data is reopened, at most
 * once per second; the end of a response ends the source, and an error status is an error.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "optimizer/live/live_private.h"

#include <curl/curl.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)1 << 20)
#define CONNECT_MS   10000L
#define AGAIN_MS     1000u
#define KEEP_ALIVE_S 30L

struct live_http {
    struct tierce__live_source base;
    CURLM *multi;
    CURL *easy;
    char *buffer; /* [BUFFER_BYTES] */
    size_t at, end;
    bool paused;
    bool is_added; /* the transfer is */
    bool received; /* whether any data has arrived */
    bool in_line;
    CURLcode result;   /* result of the finished transfer */
    uint64_t again_ns; /* start of the next transfer */
    char error[CURL_ERROR_SIZE];
};

static struct live_http *http_of(struct tierce__live_source *source)
{
    return (struct live_http *)(void *)source;
}

static bool is_redirect(struct live_http *h)
{
    long status = 0;
    curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    return status / 100 == 3;
}

static size_t take_bytes(char *data, size_t one, size_t count, void *arg)
{
    struct live_http *h = arg;
    size_t n = one * count;
    if (is_redirect(h))
        return n;
    if (h->at == h->end)
        h->at = h->end = 0;
    if (n > BUFFER_BYTES - h->end) {
        h->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    memcpy(h->buffer + h->end, data, n);
    h->end += n;
    h->received = h->received || n > 0;
    return n;
}

static void http_close(struct tierce__live_source *source)
{
    struct live_http *h = http_of(source);
    if (h->is_added)
        curl_multi_remove_handle(h->multi, h->easy);
    curl_easy_cleanup(h->easy);
    if (h->multi != NULL)
        curl_multi_cleanup(h->multi);
    tierce__free(h->buffer);
    tierce__free(h);
}

static bool set_options(struct live_http *h, const char *url)
{
    CURL *e = h->easy;
    return curl_easy_setopt(e, CURLOPT_URL, url) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_bytes) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_WRITEDATA, h) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_ERRORBUFFER, h->error) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_FAILONERROR, 1L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK &&
           curl_easy_setopt(e, CURLOPT_TCP_KEEPIDLE, KEEP_ALIVE_S) == CURLE_OK;
}

static int http_open(struct tierce__live_source **out, const char *url,
                     char why[TIERCE__TRACE_WHY_BYTES])
{
    struct live_http *h = tierce__calloc(1, sizeof(*h));
    snprintf(why, TIERCE__TRACE_WHY_BYTES, "no memory");
    if (h == NULL)
        return -ENOMEM;
    h->buffer = tierce__alloc(BUFFER_BYTES);
    h->multi = curl_multi_init();
    h->easy = curl_easy_init();
    if (h->buffer == NULL || h->multi == NULL || h->easy == NULL || !set_options(h, url)) {
        http_close(&h->base);
        return -ENOMEM;
    }
    *out = &h->base;
    return 0;
}

/* Returns whether a transfer with this result may be restarted. */
static bool is_broken(const struct live_http *h)
{
    return h->result != CURLE_OK && h->result != CURLE_HTTP_RETURNED_ERROR && h->received;
}

static int begin_transfer(struct live_http *h)
{
    if (curl_multi_add_handle(h->multi, h->easy) != CURLM_OK)
        return -ENOMEM;
    h->is_added = true;
    return 0;
}

/* Notes the end of the transfer, if it is over. */
static void look_for_end(struct live_http *h)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE)
            continue;
        h->result = m->data.result;
        curl_multi_remove_handle(h->multi, h->easy);
        h->is_added = false;
        h->again_ns = tierce__deadline_in_ms(AGAIN_MS);
        return;
    }
}

static ssize_t give_out(struct live_http *h, char *out, size_t size)
{
    size_t n = h->end - h->at < size ? h->end - h->at : size;
    memcpy(out, h->buffer + h->at, n);
    h->at += n;
    h->in_line = out[n - 1] != '\n';
    return (ssize_t)n;
}

/* Called after a transfer has ended and its data was consumed. */
static ssize_t go_on(struct live_http *h, char *out, char why[TIERCE__TRACE_WHY_BYTES])
{
    if (h->again_ns == 0)
        return begin_transfer(h) < 0 ? -ENOMEM : -EAGAIN;
    if (h->result == CURLE_OK && is_redirect(h)) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES,
                 "it redirects to another address, which is not followed: name that address");
        return -EIO;
    }
    if (!is_broken(h)) {
        if (h->result == CURLE_OK)
            return 0;
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "%.300s",
                 h->error[0] != '\0' ? h->error : curl_easy_strerror(h->result));
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
    return begin_transfer(h) < 0 ? -ENOMEM : -EAGAIN;
}

static ssize_t http_read(struct tierce__live_source *source, void *out, size_t size,
                         char why[TIERCE__TRACE_WHY_BYTES])
{
    struct live_http *h = http_of(source);
    int running;
    if (h->at < h->end)
        return give_out(h, out, size);
    if (!h->is_added)
        return go_on(h, out, why);
    if (h->paused) {
        h->paused = false;
        (void)curl_easy_pause(h->easy, CURLPAUSE_CONT);
    }
    if (curl_multi_perform(h->multi, &running) != CURLM_OK) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES, "the transfer cannot continue");
        return -EIO;
    }
    look_for_end(h);
    if (h->at < h->end)
        return give_out(h, out, size);
    if (h->is_added)
        (void)curl_multi_poll(h->multi, NULL, 0, TIERCE__LIVE_WAIT_MS, NULL);
    return -EAGAIN;
}

const struct tierce__live_ops tierce__live_http_ops = {
    .open = http_open,
    .read = http_read,
    .close = http_close,
};
