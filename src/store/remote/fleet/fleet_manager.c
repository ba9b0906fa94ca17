/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to a manager: which address leads, and what is done when one does not answer. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/text/host_port.h"
#include "net/grpc/grpc_client.h"
#include "net/token_file.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "proto/kvcm/rpcs.h"
#include "store/remote/fleet/fleet_manager.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX ((size_t)16 << 20)
#define JUDGED_MS        50u   /* an address without an answer after that is given up */
#define ROUND_MS         50u   /* between two rounds of all addresses: an election takes a while */
#define CONNECT_MS       1000u /* of one address */
#define FDS_PER_ADDRESS  4u    /* a connection, and others that end */
#define LOOK_S           1u    /* how often the token file is looked at */

struct fleet_address {
    char name[280]; /* "10.0.0.5:6381" */
    struct tierce__grpc_client *client;
};

struct tierce__fleet_manager {
    struct fleet_address addresses[TIERCE__URL_HOSTS_MAX];
    uint32_t address_count;
    bool uses_tls;
    uint32_t leader; /* the address that answered last */
    int wake;        /* an eventfd */

    char *token_file;
    char *authorization;      /* "Bearer ...", or NULL */
    struct timespec token_at; /* when the file was changed */
    uint64_t token_look_ns;

    struct tierce__list running;            /* calls that were sent */
    struct tierce__list paused;             /* calls that are sent again at again_ns */
    struct tierce__list ended;              /* calls whose `done` is due */
    size_t in_flight;                       /* calls that a client has */
    _Atomic uint64_t connections, connects; /* connects: as often as poll saw a new connection */
};

static struct tierce__fleet_call *call_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__fleet_call, node);
}

/* ---- the token ------------------------------------------------------------------------------- */

static void forget_token(struct tierce__fleet_manager *m)
{
    tierce__free_secret(m->authorization);
    m->authorization = NULL;
}

/* Errors: as tierce__token_file_read. */
static int read_token(struct tierce__fleet_manager *m, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct tierce__token_file read = {0};
    int rc =
        tierce__token_file_read(&read, "token_file", m->token_file, why, TIERCE__FLEET_WHY_BYTES);
    if (rc < 0)
        return rc;
    char *authorization = tierce__token_bearer(read.token, strlen(read.token));
    if (authorization != NULL) {
        forget_token(m);
        m->authorization = authorization;
        m->token_at = read.modified;
    } else {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "no memory");
    }
    tierce__token_file_clear(&read);
    return authorization != NULL ? 0 : -ENOMEM;
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

static int open_address(struct tierce__fleet_manager *m, const struct tierce__url *url,
                        const struct tierce__url_host *host, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct fleet_address *address = &m->addresses[m->address_count];
    TIERCE_ASSERT(host->name[0] != '\0' && host->port != 0);
    (void)tierce__host_port_format(address->name, sizeof(address->name), host->name, host->port);
    int rc = tierce__grpc_client_open(
        &address->client,
        &(struct tierce__grpc_client_opts){.size = sizeof(struct tierce__grpc_client_opts),
                                           .host = host->name,
                                           .port = host->port,
                                           .connect_timeout_ms = CONNECT_MS,
                                           .message_bytes_max = ANSWER_BYTES_MAX,
                                           .tls = strcmp(url->scheme, "fleet+tls") == 0,
                                           .ca_file = tierce__url_param(url, "ca_file"),
                                           .lazy = true},
        why);
    m->address_count += rc == 0;
    return rc;
}

static int take_token(struct tierce__fleet_manager *m, const struct tierce__url *url,
                      char why[TIERCE__FLEET_WHY_BYTES])
{
    const char *token_file = tierce__url_param(url, "token_file");
    if (token_file == NULL)
        return 0;
    m->token_file = tierce__strdup(token_file);
    return m->token_file != NULL ? read_token(m, why) : -ENOMEM;
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
    m->uses_tls = strcmp(opts->url->scheme, "fleet+tls") == 0;
    m->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc = m->wake >= 0 ? take_token(m, opts->url, why) : -errno;
    for (size_t i = 0; rc == 0 && i < opts->url->host_count; i++)
        rc = open_address(m, opts->url, &opts->url->hosts[i], why);
    if (rc < 0) {
        tierce__fleet_manager_close(m);
        return rc;
    }
    *out = m;
    return 0;
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
        tierce__proto_free(call->reply);
        call->reply = NULL;
        free_body(call);
    }
}

void tierce__fleet_manager_close(struct tierce__fleet_manager *manager)
{
    if (manager == NULL)
        return;
    for (uint32_t i = 0; i < manager->address_count; i++)
        tierce__grpc_client_close(manager->addresses[i].client);
    drop_calls(&manager->running);
    drop_calls(&manager->paused);
    drop_calls(&manager->ended);
    if (manager->wake >= 0)
        close(manager->wake);
    forget_token(manager);
    tierce__free(manager->token_file);
    tierce__free(manager);
}

/* ---- the end of a call ----------------------------------------------------------------------- */

static void end_call(struct tierce__fleet_manager *m, struct tierce__fleet_call *call, int status)
{
    TIERCE_ASSERT(!call->is_sent && (status == 0) == (call->reply != NULL));
    call->status = status;
    free_body(call);
    tierce__list_remove(&call->node);
    tierce__list_push_back(&m->ended, &call->node);
}

/* The remedy for an address that does not answer as a manager; "": none is known. */
static const char *remedy_of(const struct tierce__fleet_manager *m, const char *what)
{
    if (strstr(what, "does not speak HTTP/2") != NULL)
        return m->uses_tls ? "; set the gRPC port of the manager (6381)"
                           : "; set the gRPC port of the manager (6381), or a scheme with +tls if "
                             "it has TLS";
    if (strstr(what, "sent nothing") != NULL || strstr(what, "requires TLS") != NULL)
        return "; if the manager has TLS, set a scheme with +tls (peers+tls://, fleet+tls://)";
    if (strstr(what, "wrong version number") != NULL)
        return "; set a scheme without +tls if the manager has no TLS, or its gRPC port (6381)";
    if (strstr(what, "issuer certificate") != NULL || strstr(what, "self-signed") != NULL)
        return "; set ca_file= to the CA of the manager's certificate";
    if (strstr(what, "address mismatch") != NULL || strstr(what, "hostname mismatch") != NULL)
        return "; set an address that the manager's certificate names (subjectAltName)";
    if (strstr(what, "Connection refused") != NULL)
        return "; start the manager, or set its gRPC port (6381)";
    return "";
}

/* "10.0.0.5:6381: GetCacheLocation: WHAT" */
static void say(const struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                const char *what)
{
    char shown[128]; /* a manager's words are shown in logs */
    tierce__text_for_message(shown, sizeof(shown), what);
    for (char *at = shown; *at != '\0'; at++)
        *at = *at == '"' ? '\'' : *at;
    int used = snprintf(call->why, sizeof(call->why), "%.100s: %.20s: %s",
                        m->addresses[call->address].name, call->method, shown);
    if (used > 0 && (size_t)used < sizeof(call->why))
        snprintf(call->why + used, sizeof(call->why) - (size_t)used, "%.100s", remedy_of(m, what));
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

static uint32_t left_ms(const struct tierce__fleet_call *call)
{
    uint64_t now_ns = tierce__now_ns();
    if (call->deadline_ns <= now_ns)
        return 0;
    uint64_t ms = (call->deadline_ns - now_ns) / TIERCE__MS_NS;
    return ms < 1 ? 1 : ms < INT32_MAX ? (uint32_t)ms : INT32_MAX;
}

static void answered(void *arg, struct tierce__grpc_answer *answer);

/* From one of the lists, or from none. */
static void send_call(struct tierce__fleet_manager *m, struct tierce__fleet_call *call)
{
    uint32_t left = left_ms(call);
    char path[128];
    TIERCE_ASSERT(!call->is_sent && call->body != NULL && call->address < m->address_count);
    if (left == 0) {
        end_refused(m, call, TIERCE_E_DEADLINE, "no answer in time");
        return;
    }
    look_at_token(m);
    snprintf(path, sizeof(path), "%s%s", TIERCE__RPC_PATH("meta", "MetaService", ""), call->method);
    int rc = tierce__grpc_client_start(
        m->addresses[call->address].client,
        &(struct tierce__grpc_request){.path = path,
                                       .body = call->body,
                                       .bytes = call->body_bytes,
                                       .timeout_ms = left,
                                       .header_name =
                                           m->authorization != NULL ? "authorization" : NULL,
                                       .header_value = m->authorization},
        answered, call);
    if (rc < 0) {
        end_refused(m, call, rc, tierce_strerror(rc));
        return;
    }
    call->is_sent = true;
    m->in_flight++;
    tierce__list_remove(&call->node);
    tierce__list_push_back(&m->running, &call->node);
}

void tierce__fleet_manager_start(struct tierce__fleet_manager *manager,
                                 struct tierce__fleet_call *call)
{
    tierce__list_init(&call->node);
    call->manager = manager;
    call->begun_ns = tierce__now_ns();
    call->generation = call->registry = 0;
    call->is_sent = false;
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
        /* Not :63810 for :6381, nor 110.0.0.5 for 10.0.0.5. */
        if (at != NULL && !isdigit((unsigned char)at[bytes]) &&
            (at == text || !isalnum((unsigned char)at[-1])))
            return i;
    }
    return m->address_count;
}

/* Sends a call to another address; `what` failed at this one. */
static void try_next(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                     uint32_t next, const char *what)
{
    TIERCE_ASSERT(!call->is_sent && next < m->address_count);
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

/* Ends a call for which nothing more can be done at its address; the next call goes elsewhere,
 * unless the call had too little time to judge the address by: cost.wait asks with a few
 * milliseconds. */
static void give_up(struct tierce__fleet_manager *m, struct tierce__fleet_call *call, int status,
                    const char *what)
{
    bool is_judged = status != TIERCE_E_DEADLINE ||
                     tierce__now_ns() - call->begun_ns >= JUDGED_MS * TIERCE__MS_NS;
    if (m->leader == call->address && is_judged)
        m->leader = next_address(m, call);
    end_refused(m, call, status, what);
}

/* Of an answer; every type of answer has one. NULL: this one has none. */
static const Meta__CommonResponseHeader *header_of(const ProtobufCMessage *reply)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(reply->descriptor, "header");
    TIERCE_ASSERT(field != NULL);
    return *(Meta__CommonResponseHeader *const *)tierce__proto_member(reply, field->offset);
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
    case META__ERROR_CODE__NAMESPACE_INVALIDATED:
        return TIERCE_E_CANCELLED;
    default:
        return -EPROTO;
    }
}

static void take_reply(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                       const struct tierce__grpc_answer *answer)
{
    char why[TIERCE__PROTO_WHY_BYTES];
    ProtobufCMessage *reply = NULL;
    int rc = tierce__proto_unpack(&reply, call->answers, answer->body, answer->bytes, why);
    if (rc < 0) {
        end_refused(m, call, rc == -ENOMEM ? rc : -EPROTO, why);
        return;
    }
    const Meta__CommonResponseHeader *header = header_of(reply);
    const Meta__Status *status = header != NULL ? header->status : NULL;
    call->generation = header != NULL && header->generation > 0 ? (uint64_t)header->generation : 0;
    call->registry = header != NULL ? (uint64_t)header->registry : 0;
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
        call->generation = call->registry = 0;
        bool is_other = named < m->address_count && named != call->address;
        try_next(m, call, is_other ? named : next_address(m, call), text);
    } else {
        m->leader = call->address;
        end_refused(m, call, status_of_code(code), text);
    }
    tierce__proto_free(reply);
}

/* An answer without a message, or none. */
static void take_status(struct tierce__fleet_manager *m, struct tierce__fleet_call *call,
                        const struct tierce__grpc_answer *answer)
{
    switch (answer->status) {
    case TIERCE__GRPC_UNAVAILABLE:
        if (answer->unsent || call->repeats)
            try_next(m, call, next_address(m, call), answer->message);
        else
            give_up(m, call, TIERCE_E_DOWN, answer->message);
        break;
    case TIERCE__GRPC_DEADLINE_EXCEEDED:
        give_up(m, call, TIERCE_E_DEADLINE, "no answer in time");
        break;
    case TIERCE__GRPC_PERMISSION_DENIED:
    case TIERCE__GRPC_UNAUTHENTICATED:
        end_refused(m, call, TIERCE_E_REFUSED, answer->message);
        break;
    case TIERCE__GRPC_RESOURCE_EXHAUSTED:
        end_refused(m, call, TIERCE_E_LIMIT, answer->message);
        break;
    case TIERCE__GRPC_UNIMPLEMENTED:
        end_refused(m, call, TIERCE_E_UNSUPPORTED, "the manager does not have this call");
        break;
    default:
        end_refused(m, call, -EPROTO, answer->message);
    }
}

static void answered(void *arg, struct tierce__grpc_answer *answer)
{
    struct tierce__fleet_call *call = arg;
    struct tierce__fleet_manager *m = call->manager;
    TIERCE_ASSERT(call->is_sent && m->in_flight > 0);
    call->is_sent = false;
    m->in_flight--;
    if (answer->status == TIERCE__GRPC_OK)
        take_reply(m, call, answer);
    else
        take_status(m, call, answer);
}

/* ---- poll ------------------------------------------------------------------------------------ */

static void send_again(struct tierce__fleet_manager *m, uint64_t *until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &m->paused) {
        struct tierce__fleet_call *call = call_of(node);
        if (call->again_ns <= now_ns)
            send_call(m, call);
        else if (call->again_ns < *until_ns)
            *until_ns = call->again_ns;
    }
}

static int wait_ms(uint64_t until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    if (until_ns <= now_ns)
        return 0;
    uint64_t ms = (until_ns - now_ns + TIERCE__MS_NS - 1) / TIERCE__MS_NS;
    return ms < 60000 ? (int)ms : 60000;
}

static void take_wake(const struct tierce__fleet_manager *m)
{
    uint64_t count;
    while (read(m->wake, &count, sizeof(count)) > 0) {
    }
}

static void count_connections(struct tierce__fleet_manager *m, uint64_t now)
{
    uint64_t before = atomic_load_explicit(&m->connections, memory_order_relaxed);
    if (now > before)
        atomic_fetch_add_explicit(&m->connects, now - before, memory_order_relaxed);
    atomic_store_explicit(&m->connections, now, memory_order_relaxed);
}

void tierce__fleet_manager_poll(struct tierce__fleet_manager *manager, uint64_t until_ns)
{
    struct pollfd fds[1 + FDS_PER_ADDRESS * TIERCE__URL_HOSTS_MAX];
    size_t first[TIERCE__URL_HOSTS_MAX + 1], count = 1;
    uint64_t connections = 0;
    if (deliver(manager))
        return;
    send_again(manager, &until_ns);
    fds[0] = (struct pollfd){.fd = manager->wake, .events = POLLIN};
    for (uint32_t i = 0; i < manager->address_count; i++) {
        first[i] = count;
        count += tierce__grpc_client_wants(manager->addresses[i].client, &fds[count],
                                           FDS_PER_ADDRESS, &until_ns);
    }
    first[manager->address_count] = count;
    if (deliver(manager)) /* what ended while it was sent */
        return;
    if (poll(fds, count, wait_ms(until_ns)) < 0)
        count = 0;
    if (count > 0 && fds[0].revents != 0)
        take_wake(manager);
    for (uint32_t i = 0; i < manager->address_count; i++) {
        struct tierce__grpc_client *client = manager->addresses[i].client;
        tierce__grpc_client_serve(client, &fds[first[i]], count > 0 ? first[i + 1] - first[i] : 0);
        connections += tierce__grpc_client_connected(client);
    }
    count_connections(manager, connections);
    (void)deliver(manager);
}

void tierce__fleet_manager_wake(struct tierce__fleet_manager *manager)
{
    uint64_t one = 1;
    (void)!write(manager->wake, &one, sizeof(one)); /* full: it is awake already */
}

void tierce__fleet_manager_stats(struct tierce__fleet_manager *manager,
                                 struct tierce__tier_stats *out)
{
    out->connections = atomic_load_explicit(&manager->connections, memory_order_relaxed);
    out->connects = atomic_load_explicit(&manager->connects, memory_order_relaxed);
}
