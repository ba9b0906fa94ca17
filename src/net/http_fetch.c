/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http_fetch.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/list.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECTIONS_KEPT 256u
#define HANDLES_KEPT     64u

struct tierce__fetch {
    struct tierce__list node; /* `running` or `spare` of the fetcher */
    struct tierce__fetcher *fetcher;
    CURL *easy;
    struct curl_slist *headers;
    struct tierce__fetch_request request;
    bool is_refused; /* `take` ended the request */
    int os_error;    /* of the last socket that could not be made for it, or 0 */
    char error[CURL_ERROR_SIZE];
};

struct tierce__fetcher {
    CURLM *multi;
    struct tierce__curl_opts curl;
    char *ca_file;
    struct tierce__list running, spare;
    uint32_t spare_count;
    uint32_t receive_bytes;
};

/* ---- a request ------------------------------------------------------------------------------- */

static size_t take_bytes(char *bytes, size_t one, size_t count, void *arg)
{
    struct tierce__fetch *fetch = arg;
    size_t taken = fetch->request.take(fetch->request.arg, bytes, one * count);
    TIERCE_DASSERT(taken == one * count || taken == 0 || taken == TIERCE__CURL_PAUSE);
    fetch->is_refused = fetch->is_refused || (taken == 0 && count > 0);
    return taken == 0 && count > 0 ? CURL_WRITEFUNC_ERROR : taken;
}

/* libcurl keeps the error of a connection for the handle's next request, and notes none if there is
 * no socket. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct tierce__fetch *fetch = arg;
    (void)purpose;
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd < 0)
        fetch->os_error = errno;
    return fd >= 0 ? fd : CURL_SOCKET_BAD;
}

static int set_receive_buffer(void *arg, curl_socket_t fd, curlsocktype purpose)
{
    const struct tierce__fetcher *fetcher = arg;
    int bytes = (int)fetcher->receive_bytes;
    (void)purpose;
    return setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)) == 0 ? CURL_SOCKOPT_OK
                                                                             : CURL_SOCKOPT_ERROR;
}

static void destroy_fetch(struct tierce__fetch *fetch)
{
    curl_easy_cleanup(fetch->easy);
    curl_slist_free_all(fetch->headers);
    tierce__free(fetch);
}

static int create_fetch(struct tierce__fetch **out, struct tierce__fetcher *fetcher)
{
    struct tierce__fetch *fetch = tierce__calloc(1, sizeof(*fetch));
    if (fetch == NULL)
        return -ENOMEM;
    tierce__list_init(&fetch->node);
    fetch->fetcher = fetcher;
    fetch->easy = curl_easy_init();
    int rc = fetch->easy != NULL ? tierce__curl_set_options(fetch->easy, &fetcher->curl) : -ENOMEM;
    if (rc != 0) {
        destroy_fetch(fetch);
        return rc;
    }
    curl_easy_setopt(fetch->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(fetch->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(fetch->easy, CURLOPT_WRITEDATA, fetch);
    curl_easy_setopt(fetch->easy, CURLOPT_ERRORBUFFER, fetch->error);
    curl_easy_setopt(fetch->easy, CURLOPT_PRIVATE, fetch);
    curl_easy_setopt(fetch->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(fetch->easy, CURLOPT_OPENSOCKETDATA, fetch);
    if (fetcher->receive_bytes > 0) {
        curl_easy_setopt(fetch->easy, CURLOPT_SOCKOPTFUNCTION, set_receive_buffer);
        curl_easy_setopt(fetch->easy, CURLOPT_SOCKOPTDATA, fetcher);
    }
    *out = fetch;
    return 0;
}

/* One that is spare, or a new one. */
static int find_fetch(struct tierce__fetch **out, struct tierce__fetcher *fetcher)
{
    if (tierce__list_empty(&fetcher->spare))
        return create_fetch(out, fetcher);
    TIERCE_DASSERT(fetcher->spare_count > 0);
    *out = TIERCE__CONTAINER_OF(fetcher->spare.next, struct tierce__fetch, node);
    tierce__list_remove(&(*out)->node);
    fetcher->spare_count--;
    return 0;
}

static void release(struct tierce__fetch *fetch)
{
    struct tierce__fetcher *fetcher = fetch->fetcher;
    tierce__list_remove(&fetch->node);
    curl_easy_setopt(fetch->easy, CURLOPT_HTTPHEADER, NULL);
    curl_easy_setopt(fetch->easy, CURLOPT_POSTFIELDS, NULL); /* was borrowed */
    curl_slist_free_all(fetch->headers);
    fetch->headers = NULL;
    if (fetcher->spare_count >= HANDLES_KEPT) {
        destroy_fetch(fetch);
        return;
    }
    tierce__list_push_front(&fetcher->spare, &fetch->node);
    fetcher->spare_count++;
}

/* Without "Expect:", libcurl would wait a second for an answer to the headers of a long body. */
static bool add_headers(struct tierce__fetch *fetch, const struct tierce__fetch_request *request)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < request->header_count; i++) {
        const struct tierce__curl_header *header = &request->headers[i];
        size_t room = strlen(header->name) + strlen(header->value) + 3;
        char *line = tierce__alloc(room);
        struct curl_slist *longer = NULL;
        if (line != NULL) {
            snprintf(line, room, "%s: %s", header->name, header->value);
            longer = curl_slist_append(list, line);
            explicit_bzero(line, room); /* it may hold a token */
            tierce__free(line);
        }
        ok = longer != NULL;
    }
    fetch->headers = list;
    return ok;
}

static bool set_request(struct tierce__fetch *fetch, const struct tierce__fetch_request *request)
{
    CURL *easy = fetch->easy;
    if (curl_easy_setopt(easy, CURLOPT_URL, request->url) != CURLE_OK ||
        !add_headers(fetch, request))
        return false;
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, fetch->headers);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)request->timeout_ms);
    if (request->body == NULL) {
        curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
        return true;
    }
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_bytes);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body);
    return true;
}

int tierce__fetch_begin(struct tierce__fetch **out, struct tierce__fetcher *fetcher,
                        const struct tierce__fetch_request *request)
{
    struct tierce__fetch *fetch;
    TIERCE_ASSERT(request->take != NULL && request->done != NULL);
    int rc = find_fetch(&fetch, fetcher);
    if (rc != 0)
        return rc;
    fetch->request = *request;
    fetch->is_refused = false;
    fetch->os_error = 0;
    fetch->error[0] = '\0';
    tierce__list_push_back(&fetcher->running, &fetch->node);
    if (!set_request(fetch, request) ||
        curl_multi_add_handle(fetcher->multi, fetch->easy) != CURLM_OK) {
        release(fetch);
        return -ENOMEM;
    }
    *out = fetch;
    return 0;
}

void tierce__fetch_cancel(struct tierce__fetch *fetch)
{
    curl_multi_remove_handle(fetch->fetcher->multi, fetch->easy);
    release(fetch);
}

void tierce__fetch_resume(struct tierce__fetch *fetch)
{
    (void)curl_easy_pause(fetch->easy, CURLPAUSE_CONT);
}

/* ---- the answer ------------------------------------------------------------------------------ */

long tierce__fetch_status(struct tierce__fetch *fetch)
{
    long status = 0;
    curl_easy_getinfo(fetch->easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

bool tierce__fetch_was_sent(struct tierce__fetch *fetch)
{
    long sent = 0;
    curl_easy_getinfo(fetch->easy, CURLINFO_REQUEST_SIZE, &sent);
    return sent > 0;
}

const char *tierce__fetch_header(struct tierce__fetch *fetch, const char *name)
{
    struct curl_header *header;
    return curl_easy_header(fetch->easy, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK
               ? header->value
               : NULL;
}

bool tierce__fetch_is_local(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS ||
           rc == -EADDRNOTAVAIL;
}

/* libcurl says that it could not connect also if this process lacks descriptors or ports. */
static int status_of(const struct tierce__fetch *fetch, CURLcode code)
{
    long os_error = fetch->os_error;
    if (fetch->is_refused)
        return TIERCE_E_CANCELLED;
    if (code == CURLE_COULDNT_CONNECT && os_error == 0)
        curl_easy_getinfo(fetch->easy, CURLINFO_OS_ERRNO, &os_error);
    if (code != CURLE_OK && tierce__fetch_is_local(-(int)os_error))
        return -(int)os_error;
    return code != CURLE_OK && os_error != 0 && os_error != ECONNREFUSED ? -EIO
                                                                         : tierce__curl_error(code);
}

static void finish(struct tierce__fetch *fetch, CURLcode code)
{
    int rc = status_of(fetch, code);
    const char *why = rc == 0                    ? ""
                      : rc == TIERCE_E_CANCELLED ? tierce_strerror(rc)
                      : fetch->error[0] != '\0'  ? fetch->error
                                                 : curl_easy_strerror(code);
    fetch->request.done(fetch->request.arg, rc, why);
    curl_multi_remove_handle(fetch->fetcher->multi, fetch->easy);
    release(fetch);
}

void tierce__fetcher_step(struct tierce__fetcher *fetcher)
{
    int running, left;
    curl_multi_perform(fetcher->multi, &running);
    for (CURLMsg *message; (message = curl_multi_info_read(fetcher->multi, &left)) != NULL;) {
        struct tierce__fetch *fetch = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode code = message->data.result; /* the message is gone with its handle */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&fetch);
        TIERCE_DASSERT(fetch->fetcher == fetcher);
        finish(fetch, code);
    }
}

void tierce__fetcher_wait(struct tierce__fetcher *fetcher, uint32_t ms)
{
    curl_multi_poll(fetcher->multi, NULL, 0, ms < INT32_MAX ? (int)ms : INT32_MAX, NULL);
}

void tierce__fetcher_wake(struct tierce__fetcher *fetcher)
{
    curl_multi_wakeup(fetcher->multi);
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__fetcher_create(struct tierce__fetcher **out, const struct tierce__fetcher_opts *opts)
{
    tierce__curl_init();
    struct tierce__fetcher *fetcher = tierce__calloc(1, sizeof(*fetcher));
    if (fetcher == NULL)
        return -ENOMEM;
    fetcher->receive_bytes = opts->receive_bytes;
    TIERCE_ASSERT(fetcher->receive_bytes <= INT32_MAX);
    tierce__list_init(&fetcher->running);
    tierce__list_init(&fetcher->spare);
    fetcher->multi = curl_multi_init();
    fetcher->ca_file = opts->ca_file != NULL ? tierce__strdup(opts->ca_file) : NULL;
    if (fetcher->multi == NULL || (opts->ca_file != NULL && fetcher->ca_file == NULL)) {
        tierce__fetcher_destroy(fetcher);
        return -ENOMEM;
    }
    fetcher->curl =
        (struct tierce__curl_opts){.ca_file = fetcher->ca_file, .connect_ms = opts->connect_ms};
    uint32_t kept = opts->connections_max != 0 ? opts->connections_max : CONNECTIONS_KEPT;
    curl_multi_setopt(fetcher->multi, CURLMOPT_MAXCONNECTS, (long)kept);
    *out = fetcher;
    return 0;
}

void tierce__fetcher_destroy(struct tierce__fetcher *fetcher)
{
    if (fetcher == NULL)
        return;
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &fetcher->running)
        tierce__fetch_cancel(TIERCE__CONTAINER_OF(node, struct tierce__fetch, node));
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &fetcher->spare) {
        tierce__list_remove(node);
        destroy_fetch(TIERCE__CONTAINER_OF(node, struct tierce__fetch, node));
    }
    if (fetcher->multi != NULL)
        curl_multi_cleanup(fetcher->multi);
    tierce__free(fetcher->ca_file);
    tierce__free(fetcher);
}
