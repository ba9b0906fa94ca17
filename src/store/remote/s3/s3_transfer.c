/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP request: made, signed, sent, received, and sent again where the store asks for it. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/mix.h"
#include "net/http_client.h"
#include "store/remote/s3/s3_private.h"
#include "store/remote/s3/sigv4.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT_BYTES_MAX (64u << 10) /* of an answer that is not an object */
#define PAGE_BYTES_MAX (8u << 20)
#define PAGE_KEYS      500u
#define HEADER_BYTES   (TIERCE__S3_TOKEN_MAX + 64u)
#define BUFFER_BYTES   (256L << 10)
#define BACKOFF_MS     100u
#define BACKOFF_MS_MAX 5000u
#define RENEW_MS       500u
#define SKEW_S_MIN     240 /* S3 forgives 15 minutes */
#define SILENCE_S      30L

/* ---- from curl ------------------------------------------------------------------------------- */

static bool make_room(struct tierce__s3_transfer *transfer, size_t more)
{
    return TIERCE__GROW(transfer->text, transfer->text_room, transfer->text_bytes + more, 1024) ==
           0;
}

/* Bytes of an answer that is not an object. */
static size_t take_text(struct tierce__s3_transfer *transfer, const char *data, size_t bytes)
{
    bool is_page = transfer->call == TIERCE__S3_LIST;
    TIERCE_DASSERT(transfer->text_bytes <= (is_page ? PAGE_BYTES_MAX : TEXT_BYTES_MAX));
    if (bytes > (is_page ? PAGE_BYTES_MAX : TEXT_BYTES_MAX) - transfer->text_bytes) {
        transfer->is_wrong = true;
        return CURL_WRITEFUNC_ERROR;
    }
    if (!make_room(transfer, bytes)) {
        transfer->no_memory = true;
        return CURL_WRITEFUNC_ERROR;
    }
    memcpy(transfer->text + transfer->text_bytes, data, bytes);
    transfer->text_bytes += bytes;
    TIERCE_DASSERT(transfer->text_bytes <= transfer->text_room);
    return bytes;
}

/* The only copy of received data: curl receives into its own buffer, which is still in the
 * processor's cache. */
static size_t take_body(char *data, size_t one, size_t bytes, void *arg)
{
    struct tierce__s3_transfer *transfer = arg;
    TIERCE_DASSERT(tierce__s3_is_own(transfer->s3) && transfer->is_running);
    (void)one;
    if (transfer->http == 0)
        curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &transfer->http);
    if (transfer->call != TIERCE__S3_GET || (transfer->http != 206 && transfer->http != 200))
        return take_text(transfer, data, bytes);
    TIERCE_ASSERT(transfer->got <= transfer->wanted);
    bool is_other = transfer->http == 206
                        ? !transfer->has_range || transfer->range_first != transfer->offset
                        : transfer->offset > 0;
    if (is_other || bytes > transfer->wanted - transfer->got) {
        transfer->is_wrong = true;
        transfer->got = is_other ? 0 : transfer->wanted + 1;
        return CURL_WRITEFUNC_ERROR;
    }
    memcpy(transfer->into + transfer->got, data, bytes);
    transfer->got += bytes;
    TIERCE_DASSERT(transfer->got <= transfer->wanted);
    return bytes;
}

static size_t give_body(char *data, size_t one, size_t room, void *arg)
{
    struct tierce__s3_transfer *transfer = arg;
    TIERCE_DASSERT(tierce__s3_is_own(transfer->s3) && transfer->is_running);
    TIERCE_DASSERT(transfer->body_sent <= transfer->body_bytes);
    uint64_t left = transfer->body_bytes - transfer->body_sent;
    size_t bytes = left < room ? (size_t)left : room;
    (void)one;
    if (bytes > 0)
        memcpy(data, transfer->body + transfer->body_sent, bytes);
    transfer->body_sent += bytes;
    return bytes;
}

/* A connection that was kept and is closed before it answers: curl sends again on a new one. */
static int seek_body(void *arg, curl_off_t offset, int origin)
{
    struct tierce__s3_transfer *transfer = arg;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > transfer->body_bytes)
        return CURL_SEEKFUNC_FAIL;
    transfer->body_sent = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* The value of a header of that name, without blanks around it; false: another one. */
static bool take_header(char *value, size_t room, const char *line, size_t bytes, const char *name)
{
    size_t before = strlen(name);
    if (bytes <= before || line[before] != ':' || strncasecmp(line, name, before) != 0)
        return false;
    const char *from = line + before + 1, *to = line + bytes;
    while (from < to && (*from == ' ' || *from == '\t'))
        from++;
    while (to > from && strchr(" \t\r\n", to[-1]) != NULL)
        to--;
    size_t length = (size_t)(to - from);
    if (length >= room)
        length = 0; /* none that we can use */
    TIERCE_DASSERT(length < room);
    memcpy(value, from, length);
    value[length] = '\0';
    return true;
}

/* Whether an ETag has only characters that can be sent back in XML. */
static bool is_etag(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at <= ' ' || *at >= 0x7f || strchr("<>&", *at) != NULL)
            return false;
    }
    return true;
}

static size_t take_header_line(char *line, size_t one, size_t bytes, void *arg)
{
    struct tierce__s3_transfer *transfer = arg;
    char value[TIERCE__S3_ETAG_BYTES];
    (void)one;
    if (bytes > 5 && memcmp(line, "HTTP/", 5) == 0) { /* the first, or after 100 Continue */
        transfer->etag[0] = transfer->bucket_region[0] = '\0';
        transfer->has_range = false;
        transfer->date_s = 0;
    } else if (take_header(transfer->bucket_region, sizeof(transfer->bucket_region), line, bytes,
                           "x-amz-bucket-region")) {
        return bytes;
    } else if (take_header(value, sizeof(value), line, bytes, "etag")) {
        snprintf(transfer->etag, sizeof(transfer->etag), "%s", is_etag(value) ? value : "");
    } else if (take_header(value, sizeof(value), line, bytes, "content-range")) {
        transfer->has_range =
            sscanf(value, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &transfer->range_first,
                   &transfer->range_last, &transfer->object_bytes) >= 2;
    } else if (take_header(value, sizeof(value), line, bytes, "date")) {
        transfer->date_s = curl_getdate(value, NULL);
    }
    return bytes;
}

static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct tierce__s3 *s3 = arg;
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    (void)purpose;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    s3->socket_error = fd < 0 ? errno : 0;
    if (fd < 0)
        return CURL_SOCKET_BAD;
    atomic_fetch_add_explicit(&s3->connections, 1, memory_order_relaxed);
    return fd;
}

static int close_socket(void *arg, curl_socket_t fd)
{
    struct tierce__s3 *s3 = arg;
    TIERCE_DASSERT(atomic_load_explicit(&s3->connections, memory_order_relaxed) > 0);
    atomic_fetch_sub_explicit(&s3->connections, 1, memory_order_relaxed);
    return close(fd);
}

/* ---- the request ----------------------------------------------------------------------------- */

static const char *method_of(enum tierce__s3_call call)
{
    switch (call) {
    case TIERCE__S3_HEAD:
        return "HEAD";
    case TIERCE__S3_PUT:
    case TIERCE__S3_PART:
        return "PUT";
    case TIERCE__S3_BEGIN:
    case TIERCE__S3_COMPLETE:
    case TIERCE__S3_DELETE_MANY:
        return "POST";
    case TIERCE__S3_DELETE:
    case TIERCE__S3_ABORT:
        return "DELETE";
    case TIERCE__S3_GET:
    case TIERCE__S3_LIST:
    case TIERCE__S3_PING:
    default:
        return "GET";
    }
}

static bool is_of_bucket(enum tierce__s3_call call)
{
    return call == TIERCE__S3_LIST || call == TIERCE__S3_PING || call == TIERCE__S3_DELETE_MANY;
}

static uint32_t page_keys(const struct tierce__s3_job *job)
{
    uint32_t wanted = job->req != NULL ? job->req->page_max : 0;
    return wanted > 0 && wanted < PAGE_KEYS ? wanted : PAGE_KEYS;
}

/* Path and query, both terminated; sorted by name, as signatures require it. */
static void make_target(const struct tierce__s3_transfer *transfer, char *path, char *query)
{
    const struct tierce__s3_config *config = &transfer->s3->config;
    char token[3 * TIERCE__S3_TOKEN_BYTES], text[3 * TIERCE__S3_KEY_BYTES];
    size_t room = TIERCE__S3_QUERY_BYTES;
    bool of_bucket = is_of_bucket(transfer->call);
    tierce__s3_encode(token, sizeof(token), transfer->job->token, false);
    tierce__s3_encode(text, sizeof(text), transfer->key, !of_bucket);
    query[0] = '\0';
    if (of_bucket)
        snprintf(path, TIERCE__S3_PATH_BYTES, "%s",
                 config->bucket[0] != '\0' ? config->bucket : "/");
    else
        snprintf(path, TIERCE__S3_PATH_BYTES, "%s/%s", config->bucket, text);
    if (transfer->call == TIERCE__S3_LIST)
        snprintf(query, room, "%s%s%sencoding-type=url&list-type=2&max-keys=%" PRIu32 "&prefix=%s",
                 token[0] != '\0' ? "continuation-token=" : "", token, token[0] != '\0' ? "&" : "",
                 page_keys(transfer->job), text);
    else if (transfer->call == TIERCE__S3_PING)
        snprintf(query, room, "list-type=2&max-keys=1&prefix=%s", text);
    else if (transfer->call == TIERCE__S3_DELETE_MANY)
        snprintf(query, room, "delete=");
    else if (transfer->call == TIERCE__S3_BEGIN)
        snprintf(query, room, "uploads=");
    else if (transfer->call == TIERCE__S3_PART)
        snprintf(query, room, "partNumber=%" PRIu64 "&uploadId=%s", transfer->item + 1, token);
    else if (transfer->call == TIERCE__S3_COMPLETE || transfer->call == TIERCE__S3_ABORT)
        snprintf(query, room, "uploadId=%s", token);
}

static bool add_header(struct tierce__s3_transfer *transfer, const char *name, const char *value)
{
    char line[HEADER_BYTES];
    int bytes = snprintf(line, sizeof(line), "%s: %s", name, value);
    struct curl_slist *list =
        (size_t)bytes < sizeof(line) ? curl_slist_append(transfer->headers, line) : NULL;
    explicit_bzero(line, sizeof(line));
    transfer->headers = list != NULL ? list : transfer->headers;
    return list != NULL;
}

/* DeleteObjects requires a checksum of the list. */
static bool add_sum(struct tierce__s3_transfer *transfer)
{
    uint8_t sum[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    if (EVP_Digest(transfer->body, transfer->body_bytes, sum, &bytes, EVP_md5(), NULL) != 1)
        return add_header(transfer, "Content-MD5", ""); /* the store rejects this */
    EVP_EncodeBlock((uint8_t *)text, sum, (int)bytes);
    return add_header(transfer, "Content-MD5", text) &&
           add_header(transfer, "Content-Type", "application/xml");
}

/* Headers, signed at the store's time. */
static bool make_headers(struct tierce__s3_transfer *transfer, const char *path, const char *query)
{
    const struct tierce__s3_config *config = &transfer->s3->config;
    char payload[TIERCE__SIGV4_HASH_BYTES] = TIERCE__SIGV4_UNSIGNED;
    char time[TIERCE__SIGV4_TIME_BYTES], authorization[768], range[64];
    transfer->signed_s = (uint64_t)((int64_t)tierce__wall_s() + transfer->s3->skew_s);
    tierce__sigv4_time(time, transfer->signed_s);
    if (config->signs_payload)
        tierce__sigv4_hash(payload, transfer->body != NULL ? (const void *)transfer->body : "",
                           transfer->body_bytes);
    const struct tierce__sigv4_header headers[] = {
        {"host", config->host},
        {"x-amz-content-sha256", payload},
        {"x-amz-date", time},
        {"x-amz-security-token", config->credentials.token},
    };
    size_t count = config->credentials.token[0] != '\0' ? 4 : 3;
    int rc = tierce__sigv4_sign(
        authorization, sizeof(authorization),
        &(struct tierce__sigv4_signer){config->credentials.access_key,
                                       config->credentials.secret_key, config->region, "s3"},
        &(struct tierce__sigv4_request){method_of(transfer->call), path, query, headers, count,
                                        payload, transfer->signed_s});
    TIERCE_ASSERT(rc == 0);
    bool ok = add_header(transfer, "Authorization", authorization);
    for (size_t i = 0; i < count && ok; i++)
        ok = add_header(transfer, headers[i].name, headers[i].value);
    if (ok && transfer->call == TIERCE__S3_GET) {
        TIERCE_DASSERT(transfer->wanted > 0);
        snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, transfer->offset,
                 transfer->offset + transfer->wanted - 1);
        ok = add_header(transfer, "Range", range);
    }
    if (ok && transfer->call == TIERCE__S3_DELETE_MANY)
        ok = add_sum(transfer);
    /* Sends bodies without "Expect: 100-continue", which would cost a round trip. */
    return ok && add_header(transfer, "Expect", "");
}

static void set_method(const struct tierce__s3_transfer *transfer)
{
    CURL *easy = transfer->easy;
    enum tierce__s3_call call = transfer->call;
    const char *method = method_of(call);
    if (call == TIERCE__S3_HEAD)
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    if (call == TIERCE__S3_DELETE || call == TIERCE__S3_ABORT)
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    if (method[0] != 'P')
        return;
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)transfer->body_bytes);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
    curl_easy_setopt(easy, CURLOPT_READDATA, transfer);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, seek_body);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, transfer);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
}

static bool set_options(struct tierce__s3_transfer *transfer)
{
    CURL *easy = transfer->easy;
    struct tierce__s3 *s3 = transfer->s3;
    const struct tierce__s3_config *config = &s3->config;
    curl_easy_reset(easy);
    bool ok =
        tierce__curl_set_options(
            easy, &(struct tierce__curl_opts){.ca_file = config->ca_file,
                                              .connect_ms = (uint32_t)config->connect_ms}) == 0 &&
        curl_easy_setopt(easy, CURLOPT_URL, transfer->url) == CURLE_OK &&
        curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, config->is_plain ? "http" : "https") ==
            CURLE_OK;
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer->headers);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->error);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, transfer->takes_fresh ? 1L : 0L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header_line);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, transfer);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, s3);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, s3);
    set_method(transfer);
    return ok;
}

/* ---- life of a transfer ---------------------------------------------------------------------- */

static void forget_answer(struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(!transfer->is_running); /* curl still has the headers */
    transfer->body_sent = 0;
    transfer->got = 0;
    transfer->http = 0;
    transfer->is_wrong = transfer->no_memory = transfer->has_range = false;
    transfer->etag[0] = transfer->bucket_region[0] = transfer->error[0] = '\0';
    transfer->object_bytes = 0;
    transfer->date_s = 0;
    transfer->text_bytes = 0;
    curl_slist_free_all(transfer->headers);
    transfer->headers = NULL;
}

void tierce__s3_transfer_begin(struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(tierce__s3_is_own(transfer->s3));
    char path[TIERCE__S3_PATH_BYTES], query[TIERCE__S3_QUERY_BYTES];
    TIERCE_ASSERT(transfer->job != NULL && !transfer->is_running);
    transfer->again_ns = 0;
    forget_answer(transfer);
    make_target(transfer, path, query);
    int bytes = snprintf(transfer->url, sizeof(transfer->url), "%s%s%s%s",
                         transfer->s3->config.origin, path, query[0] != '\0' ? "?" : "", query);
    TIERCE_ASSERT((size_t)bytes < sizeof(transfer->url));
    bool ok = make_headers(transfer, path, query) && set_options(transfer) &&
              curl_multi_add_handle(transfer->s3->multi, transfer->easy) == CURLM_OK;
    transfer->is_running = ok;
    if (!ok)
        tierce__s3_job_note(transfer, -ENOMEM);
}

static void stop(struct tierce__s3_transfer *transfer)
{
    if (transfer->is_running)
        curl_multi_remove_handle(transfer->s3->multi, transfer->easy);
    transfer->is_running = false;
}

void tierce__s3_transfer_free(struct tierce__s3_transfer *transfer)
{
    struct tierce__s3 *s3 = transfer->s3;
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    TIERCE_ASSERT(transfer->job != NULL && tierce__list_empty(&transfer->riders));
    stop(transfer);
    forget_answer(transfer);
    tierce__free(transfer->own_body);
    transfer->own_body = NULL;
    transfer->body = NULL;
    transfer->body_bytes = 0;
    transfer->into = NULL;
    transfer->tries = 0;
    transfer->again_ns = 0;
    transfer->corrected_clock = transfer->renewed_credentials = transfer->takes_fresh = false;
    if (transfer->text_room > TEXT_BYTES_MAX) {
        tierce__free(transfer->text);
        transfer->text = NULL;
        transfer->text_room = 0;
    }
    transfer->job = NULL;
    s3->free_count++;
    TIERCE_DASSERT(s3->free_count <= s3->config.connections);
}

/* Takes the store's time where ours is so far off that it rejected it. */
static bool correct_clock(struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(!transfer->is_running && transfer->again_ns == 0);
    struct tierce__s3 *s3 = transfer->s3;
    int64_t off_s = transfer->date_s - (int64_t)transfer->signed_s;
    if (transfer->http != 403 || transfer->date_s <= 0 || transfer->corrected_clock ||
        llabs(off_s) < SKEW_S_MIN)
        return false;
    transfer->corrected_clock = true;
    s3->skew_s = transfer->date_s - (int64_t)tierce__wall_s();
    tierce__s3_set_why(s3,
                       "the clock of this machine is %" PRId64 " s %s the store's; requests are "
                       "now signed with the store's time",
                       (int64_t)llabs(s3->skew_s), s3->skew_s > 0 ? "behind" : "ahead of");
    return true;
}

/* New credentials are being fetched: retries a little later. */
static bool await_credentials(struct tierce__s3_transfer *transfer)
{
    uint64_t again_ns = tierce__deadline_in_ms(RENEW_MS);
    TIERCE_DASSERT(!transfer->is_running && transfer->again_ns == 0);
    if (transfer->renewed_credentials || again_ns >= transfer->job->deadline_ns ||
        !tierce__s3_login_ask(transfer->s3))
        return false;
    transfer->renewed_credentials = true;
    transfer->again_ns = again_ns;
    return true;
}

static bool renew_credentials(struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(!transfer->is_running && transfer->again_ns == 0);
    if (transfer->renewed_credentials || transfer->s3->login != NULL)
        return false;
    transfer->renewed_credentials = true;
    return tierce__s3_renew_credentials(&transfer->s3->config);
}

/* The connections that were kept may all have been closed meanwhile, which curl detects only when
 * it uses them, and it fails after five of them. */
static bool leave_kept_connections(struct tierce__s3_transfer *transfer, CURLcode code,
                                   long connects)
{
    TIERCE_DASSERT(code == CURLE_OK || !transfer->is_running);
    bool is_lost =
        code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING;
    if (!is_lost || transfer->http != 0 || connects > 0 || transfer->takes_fresh)
        return false;
    transfer->takes_fresh = true;
    return true;
}

/* Schedules a retry, with an increasing and randomised delay; false if the attempts or the time are
 * used up. */
static bool put_off(struct tierce__s3_transfer *transfer)
{
    struct tierce__s3 *s3 = transfer->s3;
    TIERCE_DASSERT(!transfer->is_running && transfer->again_ns == 0);
    if (transfer->tries >= s3->config.retries)
        return false;
    uint64_t wait_ms = (uint64_t)BACKOFF_MS << (transfer->tries < 10 ? transfer->tries : 10);
    wait_ms = wait_ms < BACKOFF_MS_MAX ? wait_ms : BACKOFF_MS_MAX;
    wait_ms = wait_ms / 2 + tierce__random_next(&s3->random) % (wait_ms / 2 + 1);
    uint64_t again_ns = tierce__now_ns() + wait_ms * TIERCE__MS_NS;
    if (again_ns >= transfer->job->deadline_ns)
        return false;
    transfer->tries++;
    transfer->again_ns = again_ns;
    return true;
}

void tierce__s3_transfer_end(struct tierce__s3_transfer *transfer, CURLcode code)
{
    TIERCE_DASSERT(tierce__s3_is_own(transfer->s3));
    long connects = 0;
    bool again;
    TIERCE_DASSERT(transfer->is_running);
    curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &transfer->http);
    curl_easy_getinfo(transfer->easy, CURLINFO_NUM_CONNECTS, &connects);
    atomic_fetch_add_explicit(&transfer->s3->connects, (uint64_t)connects, memory_order_relaxed);
    if (transfer->job->req != NULL)
        transfer->job->req->connected |= connects > 0;
    if (transfer->http == 200) { /* an object, not a range of it */
        curl_off_t length = 0;
        curl_easy_getinfo(transfer->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        transfer->object_bytes = length > 0 ? (uint64_t)length : 0;
    }
    stop(transfer);
    if (leave_kept_connections(transfer, code, connects)) {
        tierce__s3_transfer_begin(transfer);
        return;
    }
    int status = tierce__s3_answer(transfer, code, &again);
    if (status == TIERCE_E_REFUSED && (correct_clock(transfer) || renew_credentials(transfer)))
        tierce__s3_transfer_begin(transfer);
    else if (status == TIERCE_E_REFUSED && await_credentials(transfer))
        return;
    else if (!again || !put_off(transfer))
        tierce__s3_job_note(transfer, status);
}

int tierce__s3_transfers_create(struct tierce__s3 *s3)
{
    uint32_t count = (uint32_t)s3->config.connections;
    s3->transfers = tierce__calloc(count, sizeof(*s3->transfers));
    if (s3->transfers == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        s3->transfers[i].s3 = s3;
        tierce__list_init(&s3->transfers[i].riders);
        s3->transfers[i].easy = curl_easy_init();
        if (s3->transfers[i].easy == NULL)
            return -ENOMEM;
    }
    s3->free_count = count;
    return 0;
}

void tierce__s3_transfers_destroy(struct tierce__s3 *s3)
{
    for (uint32_t i = 0; s3->transfers != NULL && i < s3->config.connections; i++) {
        TIERCE_DASSERT(s3->transfers[i].job == NULL && !s3->transfers[i].is_running);
        curl_easy_cleanup(s3->transfers[i].easy);
        tierce__free(s3->transfers[i].text);
    }
    tierce__free(s3->transfers);
}
