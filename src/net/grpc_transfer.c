/* SPDX-License-Identifier: Apache-2.0 */
#include "net/grpc_transfer.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "net/http_client.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define PREFIX_BYTES 5u /* a byte for compression, four of length (big-endian) */
#define NO_STATUS    UINT32_MAX

struct tierce__grpc_transfer {
    CURL *easy;
    CURLM *multi; /* NULL: not in progress */
    struct curl_slist *headers;
    char *ca_file;
    size_t answer_bytes_max;
    _Atomic uint64_t *connections, *connects;
    void *arg;

    uint8_t *sent; /* prefix and message */
    size_t sent_room, sent_bytes;
    uint8_t *got;
    size_t got_room, got_bytes;
    bool is_grpc, is_too_long, no_memory;
    uint32_t status; /* NO_STATUS: none has come */
    char text[256];
    char error[CURL_ERROR_SIZE];
};

/* ---- from curl ------------------------------------------------------------------------------- */

static size_t take_body(char *data, size_t one, size_t bytes, void *arg)
{
    struct tierce__grpc_transfer *t = arg;
    (void)one;
    TIERCE_DASSERT(t->multi != NULL && t->got_bytes <= t->answer_bytes_max + PREFIX_BYTES);
    t->is_too_long = bytes > t->answer_bytes_max + PREFIX_BYTES - t->got_bytes;
    if (t->is_too_long)
        return CURL_WRITEFUNC_ERROR;
    t->no_memory = TIERCE__GROW(t->got, t->got_room, t->got_bytes + bytes, 4096) != 0;
    if (t->no_memory)
        return CURL_WRITEFUNC_ERROR;
    memcpy(t->got + t->got_bytes, data, bytes);
    t->got_bytes += bytes;
    return bytes;
}

/* The value of a header line with that name; false: another one. */
static bool is_header(const char *line, size_t bytes, const char *name, const char **value,
                      size_t *value_bytes)
{
    size_t before = strlen(name);
    if (bytes <= before || line[before] != ':' || strncasecmp(line, name, before) != 0)
        return false;
    const char *from = line + before + 1, *to = line + bytes;
    while (from < to && (*from == ' ' || *from == '\t'))
        from++;
    while (to > from && strchr(" \t\r\n", to[-1]) != NULL)
        to--;
    *value = from;
    *value_bytes = (size_t)(to - from);
    return true;
}

/* grpc-message is percent-encoded. */
static void take_text(struct tierce__grpc_transfer *t, const char *value, size_t bytes)
{
    int length = 0;
    char *text = curl_easy_unescape(t->easy, value, bytes < 4096 ? (int)bytes : 4096, &length);
    snprintf(t->text, sizeof(t->text), "%.*s", text != NULL ? length : 0, text != NULL ? text : "");
    for (char *at = t->text; *at != '\0'; at++)
        *at = (unsigned char)*at < ' ' ? ' ' : *at; /* it is shown in logs */
    curl_free(text);
}

/* Of headers and trailers alike. */
static size_t take_header(char *line, size_t one, size_t bytes, void *arg)
{
    struct tierce__grpc_transfer *t = arg;
    const char *value;
    size_t count;
    char digits[12];
    (void)one;
    if (is_header(line, bytes, "grpc-status", &value, &count) && count < sizeof(digits)) {
        memcpy(digits, value, count);
        digits[count] = '\0';
        t->status = (uint32_t)strtoul(digits, NULL, 10);
    } else if (is_header(line, bytes, "grpc-message", &value, &count)) {
        take_text(t, value, count);
    } else if (is_header(line, bytes, "content-type", &value, &count)) {
        t->is_grpc = count >= 16 && strncasecmp(value, "application/grpc", 16) == 0;
    }
    return bytes;
}

static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct tierce__grpc_transfer *t = arg;
    (void)purpose;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0)
        return CURL_SOCKET_BAD;
    atomic_fetch_add_explicit(t->connections, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(t->connects, 1, memory_order_relaxed);
    return fd;
}

/* The connection outlives the transfer that made it, so `arg` is the counter. */
static int close_socket(void *arg, curl_socket_t fd)
{
    _Atomic uint64_t *connections = arg;
    TIERCE_DASSERT(atomic_load_explicit(connections, memory_order_relaxed) > 0);
    atomic_fetch_sub_explicit(connections, 1, memory_order_relaxed);
    return close(fd);
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__grpc_transfer_create(struct tierce__grpc_transfer **out,
                                 const struct tierce__grpc_transfer_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__grpc_transfer *t = tierce__calloc(1, sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->answer_bytes_max = opts->answer_bytes_max;
    t->connections = opts->connections;
    t->connects = opts->connects;
    t->ca_file = opts->ca_file != NULL ? tierce__strdup(opts->ca_file) : NULL;
    t->easy = curl_easy_init();
    if (t->easy == NULL || (opts->ca_file != NULL && t->ca_file == NULL)) {
        tierce__grpc_transfer_destroy(t);
        return -ENOMEM;
    }
    *out = t;
    return 0;
}

void tierce__grpc_transfer_destroy(struct tierce__grpc_transfer *transfer)
{
    if (transfer == NULL)
        return;
    TIERCE_ASSERT(transfer->multi == NULL);
    curl_easy_cleanup(transfer->easy);
    curl_slist_free_all(transfer->headers);
    tierce__free(transfer->ca_file);
    tierce__free(transfer->sent);
    tierce__free(transfer->got);
    tierce__free(transfer);
}

/* ---- the request ----------------------------------------------------------------------------- */

static bool add_header(struct tierce__grpc_transfer *t, const char *line)
{
    struct curl_slist *list = curl_slist_append(t->headers, line);
    t->headers = list != NULL ? list : t->headers;
    return list != NULL;
}

static bool add_authorization(struct tierce__grpc_transfer *t, const char *value)
{
    size_t room = strlen(value) + sizeof("authorization: ");
    char *line = tierce__alloc(room);
    if (line == NULL)
        return false;
    snprintf(line, room, "authorization: %s", value);
    bool ok = add_header(t, line);
    explicit_bzero(line, room);
    tierce__free(line);
    return ok;
}

/* Without "Expect: 100-continue", which would cost a round trip. */
static bool make_headers(struct tierce__grpc_transfer *t,
                         const struct tierce__grpc_transfer_request *request)
{
    char timeout[48];
    snprintf(timeout, sizeof(timeout), "grpc-timeout: %um", request->timeout_ms);
    curl_slist_free_all(t->headers);
    t->headers = NULL;
    return add_header(t, "content-type: application/grpc") && add_header(t, "te: trailers") &&
           add_header(t, "expect:") && add_header(t, timeout) &&
           (request->authorization == NULL || add_authorization(t, request->authorization));
}

static bool make_body(struct tierce__grpc_transfer *t,
                      const struct tierce__grpc_transfer_request *request)
{
    TIERCE_ASSERT(request->bytes <= UINT32_MAX);
    if (TIERCE__GROW(t->sent, t->sent_room, request->bytes + PREFIX_BYTES, 1024) != 0)
        return false;
    t->sent[0] = 0;
    for (unsigned i = 0; i < 4; i++)
        t->sent[1 + i] = (uint8_t)(request->bytes >> (24 - 8 * i));
    if (request->bytes > 0)
        memcpy(t->sent + PREFIX_BYTES, request->message, request->bytes);
    t->sent_bytes = request->bytes + PREFIX_BYTES;
    return true;
}

static bool set_options(struct tierce__grpc_transfer *t,
                        const struct tierce__grpc_transfer_request *request)
{
    CURL *easy = t->easy;
    bool tls = strncmp(request->url, "https:", 6) == 0;
    curl_easy_reset(easy);
    bool ok = tierce__curl_set_options(
                  easy, &(struct tierce__curl_opts){.ca_file = t->ca_file,
                                                    .connect_ms = request->connect_ms,
                                                    .timeout_ms = request->timeout_ms}) == 0 &&
              curl_easy_setopt(easy, CURLOPT_URL, request->url) == CURLE_OK;
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION,
                     tls ? (long)CURL_HTTP_VERSION_2TLS
                         : (long)CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE);
    curl_easy_setopt(easy, CURLOPT_PIPEWAIT, 1L); /* one connection for all calls */
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->error);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->sent_bytes);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, t->sent);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, t);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, t->connections);
    return ok;
}

int tierce__grpc_transfer_begin(struct tierce__grpc_transfer *transfer, CURLM *multi,
                                const struct tierce__grpc_transfer_request *request)
{
    TIERCE_ASSERT(transfer->multi == NULL && request->timeout_ms > 0 && request->connect_ms > 0);
    transfer->got_bytes = 0;
    transfer->is_grpc = transfer->is_too_long = transfer->no_memory = false;
    transfer->status = NO_STATUS;
    transfer->text[0] = transfer->error[0] = '\0';
    transfer->arg = request->arg;
    if (!make_body(transfer, request) || !make_headers(transfer, request) ||
        !set_options(transfer, request) || curl_multi_add_handle(multi, transfer->easy) != CURLM_OK)
        return -ENOMEM;
    transfer->multi = multi;
    return 0;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static enum tierce__grpc_transfer_outcome outcome_of(struct tierce__grpc_transfer *t, CURLcode code)
{
    curl_off_t before_us = 0;
    if (t->no_memory || code == CURLE_OUT_OF_MEMORY)
        return TIERCE__GRPC_TRANSFER_NO_MEMORY;
    if (t->is_too_long)
        return TIERCE__GRPC_TRANSFER_WRONG;
    /* A server that resets the stream after its trailers has answered too. */
    if (t->status != NO_STATUS && t->is_grpc)
        return TIERCE__GRPC_TRANSFER_ANSWERED;
    if (code == CURLE_OK)
        return TIERCE__GRPC_TRANSFER_WRONG;
    /* 0 until the request can be sent. */
    curl_easy_getinfo(t->easy, CURLINFO_PRETRANSFER_TIME_T, &before_us);
    if (before_us == 0)
        return TIERCE__GRPC_TRANSFER_UNSENT;
    return code == CURLE_OPERATION_TIMEDOUT ? TIERCE__GRPC_TRANSFER_LATE
                                            : TIERCE__GRPC_TRANSFER_LOST;
}

/* Whether it is one whole message that is not compressed. */
static bool is_message(const struct tierce__grpc_transfer *t)
{
    size_t bytes = 0;
    if (t->got_bytes < PREFIX_BYTES || t->got[0] != 0)
        return false;
    for (unsigned i = 0; i < 4; i++)
        bytes = bytes << 8 | t->got[1 + i];
    return bytes == t->got_bytes - PREFIX_BYTES;
}

static void say_wrong(struct tierce__grpc_transfer *t, struct tierce__grpc_transfer_answer *answer)
{
    long http = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &http);
    if (t->is_too_long)
        snprintf(answer->text, sizeof(answer->text), "an answer of more than %zu bytes",
                 t->answer_bytes_max);
    else if (http != 200 || !t->is_grpc)
        snprintf(answer->text, sizeof(answer->text), "not gRPC: HTTP status %ld", http);
    else
        snprintf(answer->text, sizeof(answer->text), "an answer without a whole message");
}

void tierce__grpc_transfer_end(struct tierce__grpc_transfer *transfer, CURLcode code,
                               struct tierce__grpc_transfer_answer *answer)
{
    TIERCE_ASSERT(transfer->multi != NULL);
    *answer = (struct tierce__grpc_transfer_answer){.outcome = outcome_of(transfer, code),
                                                    .arg = transfer->arg};
    tierce__grpc_transfer_cancel(transfer);
    bool answered = answer->outcome == TIERCE__GRPC_TRANSFER_ANSWERED;
    if (answered && transfer->status == 0 && !is_message(transfer))
        answer->outcome = TIERCE__GRPC_TRANSFER_WRONG;
    if (answer->outcome == TIERCE__GRPC_TRANSFER_WRONG) {
        say_wrong(transfer, answer);
    } else if (answered) {
        answer->status = transfer->status;
        memcpy(answer->text, transfer->text, sizeof(answer->text));
        answer->message = transfer->status == 0 ? transfer->got + PREFIX_BYTES : NULL;
        answer->bytes = transfer->status == 0 ? transfer->got_bytes - PREFIX_BYTES : 0;
    } else {
        snprintf(answer->text, sizeof(answer->text), "%.255s",
                 transfer->error[0] != '\0' ? transfer->error : curl_easy_strerror(code));
    }
}

void tierce__grpc_transfer_cancel(struct tierce__grpc_transfer *transfer)
{
    if (transfer->multi != NULL)
        curl_multi_remove_handle(transfer->multi, transfer->easy);
    transfer->multi = NULL;
}
