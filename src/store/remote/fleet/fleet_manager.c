/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to a manager: which address leads, and what is done when one does not answer. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "net/grpc_transfer.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "proto/kvcm/rpcs.h"
#include "store/remote/fleet/fleet_private.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ANSWER_BYTES_MAX ((size_t)16 << 20)
#define TOKEN_BYTES_MAX  4096u
#define ROUND_MS         50u   /* between two rounds of all addresses: an election takes a while */
#define CONNECT_MS_MAX   2000u /* of one address */
#define LOOK_S           1u    /* how often the token file is looked at */

struct fleet_address {
    char origin[300]; /* "http://10.0.0.5:6381" */
    const char *name; /* in it: "10.0.0.5:6381" */
};

struct tierce__fleet_manager {
    CURLM *multi;
    struct fleet_address addresses[TIERCE__URL_HOSTS_MAX];
    uint32_t address_count;
    uint32_t leader; /* the address that answered last */
    char *ca_file;

    char *token_file;
    char *authorization;      /* "Bearer ...", or NULL */
    struct timespec token_at; /* when the file was changed */
    uint64_t token_look_ns;

    struct tierce__list running; /* calls with a transfer */
    struct tierce__list
        paused;                /* calls that are sent again at again_ns, or end at their deadline */
    struct tierce__list ended; /* calls whose `done` is due */
    struct tierce__list idle;  /* transfers of no call: struct fleet_transfer */
    _Atomic uint64_t connections, connects;
};

/* A transfer and the memory that it borrows. */
struct fleet_transfer {
    struct tierce__list node;
    struct tierce__grpc_transfer *grpc;
    struct tierce__fleet_call *call;
    char url[512];
};

static struct tierce__fleet_call *call_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__fleet_call, node);
}

/* ---- the token ------------------------------------------------------------------------------- */

static void forget_token(struct tierce__fleet_manager *m)
{
    if (m->authorization != NULL)
        explicit_bzero(m->authorization, strlen(m->authorization));
    tierce__free(m->authorization);
    m->authorization = NULL;
}

/* Errors: TIERCE_E_CONFIG, -ENOMEM; `why` in words, never with the token. */
static int read_token(struct tierce__fleet_manager *m, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct stat status;
    char *text = NULL;
    size_t bytes = 0;
    int rc = stat(m->token_file, &status) == 0 ? 0 : -errno;
    if (rc == 0)
        rc = tierce__read_file(&text, &bytes, m->token_file, TOKEN_BYTES_MAX);
    if (rc < 0) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "token_file %.150s cannot be read: %s",
                 m->token_file, tierce_strerror(rc));
        return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
    }
    size_t length = strcspn(text, " \t\r\n"), room = length + sizeof("Bearer ");
    bool is_open = (status.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    char *authorization = length > 0 && !is_open ? tierce__alloc(room) : NULL;
    if (authorization != NULL)
        snprintf(authorization, room, "Bearer %.*s", (int)length, text);
    explicit_bzero(text, bytes);
    tierce__free(text);
    if (authorization == NULL) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "token_file %.150s %s", m->token_file,
                 is_open       ? "can be read by other users; chmod 600 it"
                 : length == 0 ? "is empty; it holds the token alone"
                               : "needs memory");
        return is_open || length == 0 ? TIERCE_E_CONFIG : -ENOMEM;
    }
    forget_token(m);
    m->authorization = authorization;
    m->token_at = status.st_mtim;
    return 0;
}

/* A token that was replaced counts from the next call on. A file that cannot be read any more
 * leaves the token that there is. */
static void look_at_token(struct tierce__fleet_manager *m)
{
    struct stat status;
    char why[TIERCE__FLEET_WHY_BYTES];
    uint64_t now_ns = tierce__now_ns();
    if (m->token_file == NULL || now_ns < m->token_look_ns)
        return;
    m->token_look_ns = now_ns + LOOK_S * 1000 * TIERCE__MS_NS;
    if (stat(m->token_file, &status) == 0 && (status.st_mtim.tv_sec != m->token_at.tv_sec ||
                                              status.st_mtim.tv_nsec != m->token_at.tv_nsec))
        (void)read_token(m, why);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int take_addresses(struct tierce__fleet_manager *m, const struct tierce__url *url,
                          char why[TIERCE__FLEET_WHY_BYTES])
{
    bool tls = strcmp(url->scheme, "fleet+tls") == 0;
    for (size_t i = 0; i < url->host_count; i++) {
        const struct tierce__url_host *host = &url->hosts[i];
        struct fleet_address *address = &m->addresses[m->address_count++];
        if (host->name[0] == '\0' || host->port == 0) {
            snprintf(why, TIERCE__FLEET_WHY_BYTES,
                     "each manager is HOST:PORT, the port of its gRPC listener");
            return TIERCE_E_CONFIG;
        }
        const char *format = strchr(host->name, ':') != NULL ? "%s[%s]:%u" : "%s%s:%u";
        int used = snprintf(address->origin, sizeof(address->origin), format,
                            tls ? "https://" : "http://", host->name, (unsigned)host->port);
        if ((size_t)used >= sizeof(address->origin)) {
            snprintf(why, TIERCE__FLEET_WHY_BYTES, "a host name is longer than 255 characters");
            return TIERCE_E_CONFIG;
        }
        address->name = strstr(address->origin, "://") + 3;
    }
    TIERCE_ASSERT(m->address_count <= TIERCE__URL_HOSTS_MAX);
    return 0;
}

static int take_files(struct tierce__fleet_manager *m, const struct tierce__url *url,
                      char why[TIERCE__FLEET_WHY_BYTES])
{
    const char *token_file = tierce__url_param(url, "token_file");
    const char *ca_file = tierce__url_param(url, "ca_file");
    m->token_file = token_file != NULL ? tierce__strdup(token_file) : NULL;
    m->ca_file = ca_file != NULL ? tierce__strdup(ca_file) : NULL;
    if ((token_file != NULL && m->token_file == NULL) || (ca_file != NULL && m->ca_file == NULL))
        return -ENOMEM;
    return token_file != NULL ? read_token(m, why) : 0;
}

int tierce__fleet_manager_open(struct tierce__fleet_manager **out,
                               const struct tierce__fleet_manager_opts *opts,
                               char why[TIERCE__FLEET_WHY_BYTES])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->url->host_count > 0);
    struct tierce__fleet_manager *m = tierce__calloc(1, sizeof(*m));
    snprintf(why, TIERCE__FLEET_WHY_BYTES, "no memory");
    if (m == NULL)
        return -ENOMEM;
    tierce__list_init(&m->running);
    tierce__list_init(&m->paused);
    tierce__list_init(&m->ended);
    tierce__list_init(&m->idle);
    int rc = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : -ENOMEM;
    m->multi = rc == 0 ? curl_multi_init() : NULL;
    if (m->multi == NULL)
        rc = -ENOMEM;
    if (rc == 0)
        rc = take_addresses(m, opts->url, why);
    if (rc == 0)
        rc = take_files(m, opts->url, why);
    if (rc < 0) {
        tierce__fleet_manager_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

static void free_transfer(struct fleet_transfer *transfer)
{
    tierce__grpc_transfer_destroy(transfer->grpc);
    tierce__free(transfer);
}

static void free_body(struct tierce__fleet_call *call)
{
    tierce__free(call->body);
    call->body = NULL;
}

/* Calls without their `done`. */
static void drop_calls(struct tierce__list *calls)
{
    TIERCE__LIST_FOR_EACH_SAFE (node, after, calls) {
        struct tierce__fleet_call *call = call_of(node);
        tierce__list_remove(node);
        if (call->transfer != NULL) {
            tierce__grpc_transfer_cancel(call->transfer->grpc);
            free_transfer(call->transfer);
            call->transfer = NULL;
        }
        tierce__proto_free(call->reply);
        call->reply = NULL;
        free_body(call);
    }
}

void tierce__fleet_manager_close(struct tierce__fleet_manager *manager)
{
    if (manager == NULL)
        return;
    drop_calls(&manager->running);
    drop_calls(&manager->paused);
    drop_calls(&manager->ended);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &manager->idle) {
        tierce__list_remove(node);
        free_transfer(TIERCE__CONTAINER_OF(node, struct fleet_transfer, node));
    }
    if (manager->multi != NULL)
        curl_multi_cleanup(manager->multi);
    forget_token(manager);
    tierce__free(manager->token_file);
    tierce__free(manager->ca_file);
    tierce__free(manager);
}

/* ---- the end of a call ----------------------------------------------------------------------- */

static void end_call(struct tierce__fleet_manager *m, struct tierce__fleet_call *call, int status)
{
    TIERCE_ASSERT(call->transfer == NULL && (status == 0) == (call->reply != NULL));
    call->status = status;
    free_body(call);
    tierce__list_remove(&call->node);
    tierce__list_push_back(&m->ended, &call->node);
}

/* "10.0.0.5:6381: GetCacheLocation: WHAT" */
static void say(const struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                const char *what)
{
    snprintf(call->why, sizeof(call->why), "%.100s: %s: %.120s", m->addresses[call->address].name,
             call->method, what);
}

/* Ends a call with an answer of the manager that is not the one that was asked for. */
static void end_refused(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                        int status, const char *what)
{
    TIERCE_DASSERT(status < 0);
    say(m, call, what);
    end_call(m, call, status);
}

static bool deliver(struct tierce__fleet_manager *m)
{
    bool any = false;
    while (!tierce__list_empty(&m->ended)) {
        struct tierce__fleet_call *call = call_of(m->ended.next);
        tierce__list_remove(&call->node);
        any = true;
        call->done(call);
    }
    return any;
}

/* ---- sending --------------------------------------------------------------------------------- */

static struct fleet_transfer *take_transfer(struct tierce__fleet_manager *m)
{
    struct tierce__list *first = m->idle.next;
    if (!tierce__list_empty(&m->idle)) {
        tierce__list_remove(first);
        return TIERCE__CONTAINER_OF(first, struct fleet_transfer, node);
    }
    const struct tierce__grpc_transfer_opts opts = {.size = sizeof(opts),
                                                    .ca_file = m->ca_file,
                                                    .answer_bytes_max = ANSWER_BYTES_MAX,
                                                    .connections = &m->connections,
                                                    .connects = &m->connects};
    struct fleet_transfer *transfer = tierce__calloc(1, sizeof(*transfer));
    if (transfer == NULL || tierce__grpc_transfer_create(&transfer->grpc, &opts) < 0) {
        tierce__free(transfer);
        return NULL;
    }
    tierce__list_init(&transfer->node);
    return transfer;
}

static uint32_t left_ms(const struct tierce__fleet_call *call)
{
    uint64_t now_ns = tierce__now_ns();
    if (call->deadline_ns <= now_ns)
        return 0;
    uint64_t ms = (call->deadline_ns - now_ns) / TIERCE__MS_NS;
    return ms < 1 ? 1 : ms < INT32_MAX ? (uint32_t)ms : INT32_MAX;
}

/* Each address that was not tried in this round gets a share of what is left: one that drops
 * packets must not take all of it. */
static uint32_t connect_ms(const struct tierce__fleet_manager *m,
                           const struct tierce__fleet_call *call, uint32_t left)
{
    uint32_t untried = m->address_count - call->tried % m->address_count;
    uint32_t ms = left / untried;
    TIERCE_DASSERT(untried > 0 && left > 0);
    return ms < 1 ? 1 : ms < CONNECT_MS_MAX ? ms : CONNECT_MS_MAX;
}

/* From either list, or from none. */
static void send_call(struct tierce__fleet_manager *m, struct tierce__fleet_call *call)
{
    uint32_t left = left_ms(call);
    TIERCE_ASSERT(call->transfer == NULL && call->body != NULL);
    if (left == 0) {
        end_refused(m, call, TIERCE_E_DEADLINE, "no answer in time");
        return;
    }
    look_at_token(m);
    struct fleet_transfer *transfer = take_transfer(m);
    int rc = transfer != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        snprintf(transfer->url, sizeof(transfer->url),
                 "%s" TIERCE__RPC_PATH("meta", "MetaService", "") "%s",
                 m->addresses[call->address].origin, call->method);
        rc = tierce__grpc_transfer_begin(
            transfer->grpc, m->multi,
            &(struct tierce__grpc_transfer_request){.url = transfer->url,
                                                    .authorization = m->authorization,
                                                    .message = call->body,
                                                    .bytes = call->body_bytes,
                                                    .timeout_ms = left,
                                                    .connect_ms = connect_ms(m, call, left),
                                                    .arg = call});
    }
    if (rc < 0) {
        if (transfer != NULL)
            tierce__list_push_back(&m->idle, &transfer->node);
        end_refused(m, call, rc, "no memory");
        return;
    }
    call->transfer = transfer;
    tierce__list_remove(&call->node);
    tierce__list_push_back(&m->running, &call->node);
}

void tierce__fleet_manager_start(struct tierce__fleet_manager *manager,
                                 struct tierce__fleet_call *call)
{
    tierce__list_init(&call->node);
    call->transfer = NULL;
    call->reply = NULL;
    call->body = NULL;
    call->tried = 0;
    call->any_alive = false;
    call->why[0] = '\0';
    call->address = manager->leader;
    int rc = tierce__proto_pack(&call->body, &call->body_bytes, call->request);
    if (rc < 0)
        end_refused(manager, call, rc, rc == -ENOMEM ? "no memory" : "the request is not UTF-8");
    else
        send_call(manager, call);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The address that an answer names as the leader's; address_count: none of ours. */
static uint32_t named_leader(const struct tierce__fleet_manager *m, const char *text)
{
    for (uint32_t i = 0; text != NULL && i < m->address_count; i++) {
        const char *at = strstr(text, m->addresses[i].name);
        size_t bytes = strlen(m->addresses[i].name);
        if (at != NULL && (at[bytes] < '0' || at[bytes] > '9')) /* not :63810 for :6381 */
            return i;
    }
    return m->address_count;
}

/* Sends a call to another address; `what` failed at this one. */
static void try_next(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                     uint32_t next, const char *what)
{
    TIERCE_ASSERT(call->transfer == NULL && next < m->address_count);
    say(m, call, what);
    call->tried++;
    bool round_over = call->tried % m->address_count == 0;
    call->address = next;
    m->leader = next;
    call->again_ns = tierce__deadline_in_ms(ROUND_MS);
    if (!round_over) {
        send_call(m, call);
    } else if (!call->any_alive) {
        end_call(m, call, TIERCE_E_DOWN);
    } else if (call->again_ns >= call->deadline_ns) {
        end_call(m, call, TIERCE_E_DOWN);
    } else {
        call->any_alive = false;
        tierce__list_remove(&call->node);
        tierce__list_push_back(&m->paused, &call->node);
    }
}

static uint32_t next_address(const struct tierce__fleet_manager *m,
                             const struct tierce__fleet_call *call)
{
    return (call->address + 1) % m->address_count;
}

/* A connection that failed after the call was sent. */
static void end_lost(struct tierce__fleet_manager *m, struct tierce__fleet_call *call, int status,
                     const char *what)
{
    if (call->repeats && left_ms(call) > 0) {
        try_next(m, call, next_address(m, call), what);
        return;
    }
    if (m->leader == call->address) /* the next call goes elsewhere */
        m->leader = next_address(m, call);
    end_refused(m, call, status, what);
}

/* The header of an answer, which every type of answer has. */
static const Meta__Status *status_of(const ProtobufCMessage *reply)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(reply->descriptor, "header");
    TIERCE_ASSERT(field != NULL);
    const Meta__CommonResponseHeader *header =
        *(Meta__CommonResponseHeader *const *)tierce__proto_member(reply, field->offset);
    return header != NULL ? header->status : NULL;
}

static int status_of_code(Meta__ErrorCode code)
{
    switch ((int)code) {
    case META__ERROR_CODE__INSTANCE_NOT_EXIST:
    case META__ERROR_CODE__WRITE_SESSION_UNKNOWN:
    case META__ERROR_CODE__WRITE_SESSION_FINISHED:
    case META__ERROR_CODE__WRITE_SESSION_EXPIRED:
        return TIERCE_E_MISS;
    case META__ERROR_CODE__INVALID_ARGUMENT:
        return TIERCE_E_ARGUMENT;
    case META__ERROR_CODE__DUPLICATE_ENTITY:
        return -EEXIST;
    case META__ERROR_CODE__UNSUPPORTED:
        return TIERCE_E_UNSUPPORTED;
    case META__ERROR_CODE__REACH_MAX_ENTITY_CAPACITY:
        return TIERCE_E_FULL;
    default:
        return -EPROTO;
    }
}

static void take_reply(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                       const struct tierce__grpc_transfer_answer *answer)
{
    char why[TIERCE__PROTO_WHY_BYTES];
    ProtobufCMessage *reply = NULL;
    int rc = tierce__proto_unpack(&reply, call->answers, answer->message, answer->bytes, why);
    if (rc < 0) {
        end_refused(m, call, rc == -ENOMEM ? rc : -EPROTO, why);
        return;
    }
    const Meta__Status *status = status_of(reply);
    Meta__ErrorCode code = status != NULL ? status->code : META__ERROR_CODE__UNSPECIFIED;
    const char *text = status != NULL && status->message != NULL && status->message[0] != '\0'
                           ? status->message
                           : "no reason was given";
    if (code == META__ERROR_CODE__OK) {
        m->leader = call->address;
        call->reply = reply;
        end_call(m, call, 0);
        return;
    }
    if (code == META__ERROR_CODE__SERVER_NOT_LEADER ||
        code == META__ERROR_CODE__SERVICE_NOT_READY) {
        uint32_t named = named_leader(m, text);
        call->any_alive = true;
        bool is_other = named < m->address_count && named != call->address;
        try_next(m, call, is_other ? named : next_address(m, call), text);
    } else {
        m->leader = call->address;
        end_refused(m, call, status_of_code(code), text);
    }
    tierce__proto_free(reply);
}

/* An answer without a message. */
static void take_status(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                        const struct tierce__grpc_transfer_answer *answer)
{
    enum {
        DEADLINE_EXCEEDED = 4,
        DENIED = 7,
        EXHAUSTED = 8,
        UNIMPLEMENTED = 12,
        UNAVAILABLE = 14,
        UNAUTHENTICATED = 16
    };
    char text[300];
    snprintf(text, sizeof(text), "gRPC status %u%s%s", answer->status,
             answer->text[0] != '\0' ? ": " : "", answer->text);
    switch (answer->status) {
    case UNAVAILABLE:
        end_lost(m, call, TIERCE_E_DOWN, text);
        break;
    case DEADLINE_EXCEEDED:
        end_lost(m, call, TIERCE_E_DEADLINE, text);
        break;
    case DENIED:
    case UNAUTHENTICATED:
        end_refused(m, call, TIERCE_E_REFUSED, text);
        break;
    case EXHAUSTED:
        end_refused(m, call, TIERCE_E_LIMIT, text);
        break;
    case UNIMPLEMENTED:
        end_refused(m, call, TIERCE_E_UNSUPPORTED, text);
        break;
    default:
        end_refused(m, call, -EPROTO, text);
    }
}

static void take_answer(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                        const struct tierce__grpc_transfer_answer *answer)
{
    switch (answer->outcome) {
    case TIERCE__GRPC_TRANSFER_ANSWERED:
        if (answer->status == 0)
            take_reply(m, call, answer);
        else
            take_status(m, call, answer);
        break;
    case TIERCE__GRPC_TRANSFER_UNSENT:
        if (left_ms(call) == 0)
            end_lost(m, call, TIERCE_E_DEADLINE, answer->text);
        else
            try_next(m, call, next_address(m, call), answer->text);
        break;
    case TIERCE__GRPC_TRANSFER_LOST:
        end_lost(m, call, TIERCE_E_DOWN, answer->text);
        break;
    case TIERCE__GRPC_TRANSFER_LATE:
        end_lost(m, call, TIERCE_E_DEADLINE, "no answer in time");
        break;
    case TIERCE__GRPC_TRANSFER_WRONG:
        end_refused(m, call, -EPROTO, answer->text);
        break;
    case TIERCE__GRPC_TRANSFER_NO_MEMORY:
        end_refused(m, call, -ENOMEM, "no memory");
        break;
    }
}

/* ---- poll ------------------------------------------------------------------------------------ */

static void end_transfer(struct tierce__fleet_manager *m, struct tierce__grpc_transfer *grpc,
                         CURLcode code)
{
    struct tierce__grpc_transfer_answer answer;
    tierce__grpc_transfer_end(grpc, code, &answer);
    struct tierce__fleet_call *call = answer.arg;
    struct fleet_transfer *transfer = call->transfer;
    TIERCE_ASSERT(transfer->grpc == grpc);
    call->transfer = NULL;
    take_answer(m, call, &answer);
    /* Behind it: a call that is sent again takes another one, while the answer lies in this one. */
    tierce__list_push_back(&m->idle, &transfer->node);
}

static void work(struct tierce__fleet_manager *m)
{
    int running, left;
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &m->paused) {
        struct tierce__fleet_call *call = call_of(node);
        if (call->again_ns <= now_ns)
            send_call(m, call);
    }
    curl_multi_perform(m->multi, &running);
    for (CURLMsg *message; (message = curl_multi_info_read(m->multi, &left)) != NULL;) {
        char *grpc = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode code = message->data.result; /* the message is gone with its handle */
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &grpc);
        end_transfer(m, (struct tierce__grpc_transfer *)(void *)grpc, code);
    }
}

static int wait_ms(const struct tierce__fleet_manager *m, uint64_t until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH (node, &m->paused) {
        uint64_t again_ns = call_of(node)->again_ns;
        until_ns = again_ns < until_ns ? again_ns : until_ns;
    }
    if (until_ns <= now_ns)
        return 0;
    uint64_t ms = (until_ns - now_ns + TIERCE__MS_NS - 1) / TIERCE__MS_NS;
    return ms < 60000 ? (int)ms : 60000;
}

void tierce__fleet_manager_poll(struct tierce__fleet_manager *manager, uint64_t until_ns)
{
    if (deliver(manager))
        return;
    work(manager);
    if (deliver(manager))
        return;
    curl_multi_poll(manager->multi, NULL, 0, wait_ms(manager, until_ns), NULL);
    work(manager);
    (void)deliver(manager);
}

void tierce__fleet_manager_wake(struct tierce__fleet_manager *manager)
{
    curl_multi_wakeup(manager->multi);
}

void tierce__fleet_manager_stats(struct tierce__fleet_manager *manager,
                                 struct tierce__tier_stats *out)
{
    out->connections = atomic_load_explicit(&manager->connections, memory_order_relaxed);
    out->connects = atomic_load_explicit(&manager->connects, memory_order_relaxed);
}
