/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http_client.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define KEEP_ALIVE_S 30L
#define WAIT_MS      1000u
/* At first, for a body. Credentials are shorter, so they are never copied and always wiped. */
#define ROOM_BYTES ((size_t)68 << 10)

struct tierce__curl {
    CURLM *multi;
    CURL *easy;
    _Atomic bool stopped; /* seq_cst: with the wake-up of curl, which follows it */

    /* Of the request in progress. */
    struct tierce__curl_request request;
    struct curl_slist *headers;
    struct tierce__curl_answer answer;
    size_t room; /* of answer.body */
    bool is_running;
    CURLcode code; /* once it runs no more */
    int rc;        /* why the body was not taken */
    char error[CURL_ERROR_SIZE];
};

/* NULL is the default. Without memory for a copy *ok becomes false. */
static void set_text(CURL *easy, bool *ok, CURLoption option, const char *text)
{
    *ok = curl_easy_setopt(easy, option, text) == CURLE_OK && *ok;
}

int tierce__curl_set_options(CURL *easy, const struct tierce__curl_opts *opts)
{
    bool ok = true;
    set_text(easy, &ok, CURLOPT_PROTOCOLS_STR, "http,https");
    set_text(easy, &ok, CURLOPT_USERAGENT, "tierce");
    set_text(easy, &ok, CURLOPT_PROXY, opts->uses_proxies ? NULL : "");
    if (opts->ca_file != NULL) {
        set_text(easy, &ok, CURLOPT_CAINFO, opts->ca_file);
        /* A file that was replaced counts from the next connection on; the default is 24 h. */
        curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, 0L);
    }
    set_text(easy, &ok, CURLOPT_UNIX_SOCKET_PATH, opts->unix_socket);
    set_text(easy, &ok, CURLOPT_USERPWD, opts->login);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)opts->connect_ms);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)opts->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, opts->closes ? 1L : 0L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, KEEP_ALIVE_S);
    /* A cancelled request does not wait for the thread that resolves its host name. */
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    return ok ? 0 : -ENOMEM;
}

/* ---- the body -------------------------------------------------------------------------------- */

static size_t collect(struct tierce__curl *client, const char *bytes, size_t count)
{
    struct tierce__curl_answer *answer = &client->answer;
    size_t wanted = answer->bytes + count + TIERCE__JSON_SLACK;
    TIERCE_DASSERT(answer->bytes <= client->request.bytes_max);
    if (count > client->request.bytes_max - answer->bytes)
        client->rc = TIERCE_E_LIMIT;
    if (client->rc == 0 && wanted > client->room) {
        client->room = wanted > ROOM_BYTES ? 2 * wanted : ROOM_BYTES;
        char *grown = tierce__realloc(answer->body, client->room);
        client->rc = grown != NULL ? 0 : -ENOMEM;
        answer->body = grown != NULL ? grown : answer->body;
    }
    if (client->rc != 0)
        return CURL_WRITEFUNC_ERROR;
    TIERCE_ASSERT(wanted <= client->room);
    memcpy(answer->body + answer->bytes, bytes, count);
    answer->bytes += count;
    memset(answer->body + answer->bytes, 0, TIERCE__JSON_SLACK);
    return count;
}

static size_t take_bytes(char *bytes, size_t one, size_t count, void *arg)
{
    struct tierce__curl *client = arg;
    const struct tierce__curl_request *request = &client->request;
    TIERCE_DASSERT(client->is_running);
    return request->take != NULL ? request->take(request->arg, bytes, one * count)
                                 : collect(client, bytes, one * count);
}

void tierce__curl_answer_clear(struct tierce__curl_answer *answer)
{
    if (answer->body != NULL)
        explicit_bzero(answer->body, answer->bytes);
    tierce__free(answer->body);
    *answer = (struct tierce__curl_answer){0};
}

/* ---- a request ------------------------------------------------------------------------------- */

static bool add_header(struct tierce__curl *client, const struct tierce__curl_header *header)
{
    size_t room = strlen(header->name) + strlen(header->value) + 3;
    char *line = tierce__alloc(room);
    if (line == NULL)
        return false;
    snprintf(line, room, "%s: %s", header->name, header->value);
    struct curl_slist *list = curl_slist_append(client->headers, line);
    explicit_bzero(line, room);
    tierce__free(line);
    if (list != NULL)
        client->headers = list;
    return list != NULL;
}

void tierce__curl_begin(struct tierce__curl *client, const struct tierce__curl_request *request)
{
    CURL *easy = client->easy;
    TIERCE_DASSERT(!client->is_running);
    TIERCE_DASSERT(client->headers == NULL);
    TIERCE_DASSERT(client->answer.body == NULL);
    bool ok = curl_easy_setopt(easy, CURLOPT_URL, request->url) == CURLE_OK;
    for (size_t i = 0; i < TIERCE__CURL_HEADERS_MAX && request->headers[i].name != NULL; i++)
        ok = ok && add_header(client, &request->headers[i]);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, client->headers);
    if (request->body != NULL) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(request->body));
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body);
    } else {
        curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    client->request = *request;
    client->room = 0;
    client->code = CURLE_ABORTED_BY_CALLBACK;
    client->error[0] = '\0';
    client->is_running = ok && curl_multi_add_handle(client->multi, easy) == CURLM_OK;
    client->rc = client->is_running ? 0 : -ENOMEM;
    TIERCE_DASSERT(client->is_running == (client->rc == 0));
}

bool tierce__curl_step(struct tierce__curl *client)
{
    int running, left;
    if (!client->is_running)
        return false;
    curl_multi_perform(client->multi, &running);
    CURLMsg *message = curl_multi_info_read(client->multi, &left);
    if (message == NULL)
        return true;
    TIERCE_DASSERT(message->msg == CURLMSG_DONE);
    client->code = message->data.result;
    client->is_running = false;
    return false;
}

void tierce__curl_wait(struct tierce__curl *client, uint32_t ms)
{
    if (!atomic_load(&client->stopped))
        curl_multi_poll(client->multi, NULL, 0, ms < INT32_MAX ? (int)ms : INT32_MAX, NULL);
}

void tierce__curl_resume(struct tierce__curl *client)
{
    TIERCE_DASSERT(client->is_running);
    (void)curl_easy_pause(client->easy, CURLPAUSE_CONT);
}

long tierce__curl_status(struct tierce__curl *client)
{
    long status = 0;
    curl_easy_getinfo(client->easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

int tierce__curl_error(CURLcode code)
{
    if (code == CURLE_OPERATION_TIMEDOUT)
        return TIERCE_E_DEADLINE;
    if (code == CURLE_COULDNT_CONNECT)
        return -ECONNREFUSED;
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        return -EKEYREJECTED;
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return TIERCE_E_CANCELLED;
    return code == CURLE_OUT_OF_MEMORY ? -ENOMEM : code == CURLE_OK ? 0 : -EIO;
}

int tierce__curl_end(struct tierce__curl_answer *out, struct tierce__curl *client, char why[256])
{
    curl_multi_remove_handle(client->multi, client->easy);
    client->is_running = false;
    int rc = client->rc != 0 ? client->rc : tierce__curl_error(client->code);
    if (rc == 0 && client->request.take == NULL && collect(client, "", 0) != 0)
        rc = client->rc;
    curl_easy_setopt(client->easy, CURLOPT_POSTFIELDS, NULL); /* borrowed for this request only */
    curl_easy_setopt(client->easy, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(client->headers);
    client->headers = NULL;
    if (rc == 0) {
        *out = client->answer;
        out->status = tierce__curl_status(client);
        client->answer = (struct tierce__curl_answer){0};
        return 0;
    }
    bool is_ours = client->rc != 0 || rc == TIERCE_E_CANCELLED;
    snprintf(why, 256, "%s",
             is_ours                    ? tierce_strerror(rc)
             : client->error[0] != '\0' ? client->error
                                        : curl_easy_strerror(client->code));
    tierce__curl_answer_clear(&client->answer);
    return rc;
}

int tierce__curl_call(struct tierce__curl_answer *out, struct tierce__curl *client,
                      const struct tierce__curl_request *request, char why[256])
{
    tierce__curl_begin(client, request);
    while (!atomic_load(&client->stopped) && tierce__curl_step(client))
        tierce__curl_wait(client, WAIT_MS);
    return tierce__curl_end(out, client, why);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

void tierce__curl_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_curl);
}

int tierce__curl_create(struct tierce__curl **out, const struct tierce__curl_opts *opts)
{
    tierce__curl_init();
    struct tierce__curl *client = tierce__calloc(1, sizeof(*client));
    if (client == NULL)
        return -ENOMEM;
    client->multi = curl_multi_init();
    client->easy = curl_easy_init();
    int rc = client->multi != NULL && client->easy != NULL
                 ? tierce__curl_set_options(client->easy, opts)
                 : -ENOMEM;
    if (rc != 0) {
        tierce__curl_destroy(client);
        return rc;
    }
    curl_easy_setopt(client->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(client->easy, CURLOPT_WRITEDATA, client);
    curl_easy_setopt(client->easy, CURLOPT_ERRORBUFFER, client->error);
    *out = client;
    return 0;
}

void tierce__curl_destroy(struct tierce__curl *client)
{
    if (client == NULL)
        return;
    curl_multi_remove_handle(client->multi, client->easy);
    tierce__curl_answer_clear(&client->answer);
    curl_easy_cleanup(client->easy);
    if (client->multi != NULL)
        curl_multi_cleanup(client->multi);
    curl_slist_free_all(client->headers);
    tierce__free(client);
}

void tierce__curl_wake(struct tierce__curl *client)
{
    curl_multi_wakeup(client->multi);
}

void tierce__curl_stop(struct tierce__curl *client)
{
    atomic_store(&client->stopped, true);
    curl_multi_wakeup(client->multi);
}
