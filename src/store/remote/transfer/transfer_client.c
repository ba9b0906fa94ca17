/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     transfer://HOST:PORT/SPACE?connections=8&token_file=FILE
 *     transfer+tls://...&ca_file=FILE&client_certificate=FILE&client_key=FILE
 *
 * Objects in the memory of another process (store/transfer/transfer.h), by the frames of
 * docs/inside/format/transfer.md.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "net/token_file.h"
#include "proto/transfer/transfer_wire.h"
#include "store/remote/links.h"
#include "store/remote/node/peer.h"
#include "store/remote/transfer/transfer_client_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINKS       8u
#define NAMES       TIERCE__TRANSFER_NAMES_MAX
#define HEAD        TIERCE__TRANSFER_HEAD_BYTES
#define PIECE_BYTES (1u << 20) /* that must arrive within the patience */

/* ---- patience -------------------------------------------------------------------------------- */

/* When the next bytes must have moved. */
static uint64_t soon(const struct transfer_link *link, uint64_t deadline_ns)
{
    uint32_t ms = link->store->patience_ms;
    uint64_t soon_ns = ms > 0 ? tierce__deadline_in_ms(ms) : deadline_ns;
    return soon_ns < deadline_ns ? soon_ns : deadline_ns;
}

static int send_all(struct transfer_link *link, struct iovec *pieces, int count,
                    uint64_t deadline_ns)
{
    return tierce__peer_send(&link->peer, pieces, count, soon(link, deadline_ns));
}

static int receive_some(struct transfer_link *link, struct iovec *pieces, int count, size_t least,
                        size_t *got, uint64_t deadline_ns)
{
    return tierce__peer_receive(&link->peer, pieces, count, least, got, soon(link, deadline_ns));
}

static int misunderstood(struct transfer_link *link, const char *what)
{
    return tierce__peer_misunderstood(&link->peer, what);
}

/* ---- the greeting ---------------------------------------------------------------------------- */

static int send_hello(struct transfer_link *link, const char *token, uint64_t deadline_ns)
{
    const char *space = link->store->space;
    uint8_t hello[TIERCE__TRANSFER_HELLO_BYTES];
    size_t token_bytes = strlen(token), space_bytes = strlen(space);
    TIERCE_ASSERT(token_bytes <= TIERCE__TRANSFER_TOKEN_MAX);
    tierce__transfer_hello_encode(
        hello, &(struct tierce__transfer_hello){.version = TIERCE__TRANSFER_VERSION,
                                                .space_bytes = (uint16_t)space_bytes,
                                                .token_bytes = (uint16_t)token_bytes});
    struct iovec pieces[3] = {{hello, sizeof(hello)},
                              {(void *)(uintptr_t)space, space_bytes},
                              {(void *)(uintptr_t)token, token_bytes}};
    return send_all(link, pieces, 3, deadline_ns);
}

/* The server does not accept this client. */
static int rejected(struct transfer_link *link, const struct tierce__transfer_welcome *welcome)
{
    char *why = link->peer.why;
    size_t room = sizeof(link->peer.why);
    tierce__peer_close(&link->peer);
    if (welcome->version != TIERCE__TRANSFER_VERSION) {
        snprintf(why, room, "the server speaks version %u of the protocol, this build version %u",
                 welcome->version, TIERCE__TRANSFER_VERSION);
        return TIERCE_E_FORMAT;
    }
    link->lacks_space = welcome->status == TIERCE_E_ARGUMENT;
    if (welcome->status == TIERCE_E_REFUSED)
        snprintf(why, room,
                 link->store->token != NULL ? "the server rejected the secret or ticket: it is "
                                              "used, expired, or from before a restart"
                 : link->store->token_file != NULL
                     ? "the server rejects the token in token_file"
                     : "the server requires a token: token_file=FILE");
    else if (welcome->status == TIERCE_E_ARGUMENT)
        snprintf(why, room, "the server has no space \"%s\"", link->store->space);
    else
        snprintf(why, room, "the server rejects the connection: %s",
                 tierce_strerror(welcome->status));
    return welcome->status == TIERCE_E_FORMAT ? TIERCE_E_FORMAT : TIERCE_E_REFUSED;
}

static int read_welcome(struct transfer_link *link, uint64_t deadline_ns)
{
    uint8_t bytes[TIERCE__TRANSFER_WELCOME_BYTES];
    struct iovec piece = {bytes, sizeof(bytes)};
    struct tierce__transfer_welcome welcome;
    size_t got;
    int rc = receive_some(link, &piece, 1, sizeof(bytes), &got, deadline_ns);
    if (rc != 0)
        return rc;
    if (tierce__transfer_welcome_decode(&welcome, bytes) != 0)
        return misunderstood(link, "the server does not speak the protocol of transfer://");
    if (welcome.version != TIERCE__TRANSFER_VERSION || welcome.status != 0)
        return rejected(link, &welcome);
    link->names_max = welcome.names_max;
    link->sent = link->awaited = 0;
    link->greeted = link->peer.connects;
    return 0;
}

static int greet(struct transfer_link *link, uint64_t deadline_ns)
{
    struct tierce__token_file file = {0};
    const char *path = link->store->token_file;
    int rc = 0;
    link->lacks_space = false;
    if (path != NULL)
        rc = tierce__token_file_read(&file, "token_file", path, link->peer.why,
                                     sizeof(link->peer.why));
    if (rc == 0 && file.token != NULL && strlen(file.token) > TIERCE__TRANSFER_TOKEN_MAX) {
        snprintf(link->peer.why, sizeof(link->peer.why),
                 "the token in token_file has more than %u bytes", TIERCE__TRANSFER_TOKEN_MAX);
        rc = TIERCE_E_CONFIG;
    }
    if (rc != 0)
        tierce__peer_close(&link->peer);
    const char *token = link->store->token != NULL ? link->store->token : file.token;
    if (rc == 0)
        rc = send_hello(link, token != NULL ? token : "", deadline_ns);
    tierce__token_file_clear(&file);
    if (rc == 0)
        rc = read_welcome(link, deadline_ns);
    if (rc == TIERCE_E_DOWN)
        snprintf(link->peer.why, sizeof(link->peer.why),
                 "the server closed the connection before it answered the greeting; %s",
                 link->store->place.tls == NULL
                     ? (link->store->token != NULL ? "it may require TLS"
                                                   : "if it requires TLS: transfer+tls://")
                     : "if it requires a certificate: client_certificate and client_key");
    return rc;
}

int tierce__transfer_begin(struct transfer_link *link, uint64_t deadline_ns)
{
    if (link->store->is_once && link->has_begun && !tierce__peer_is_connected(&link->peer))
        return TIERCE_E_DOWN;
    link->has_begun = true;
    link->peer.why[0] = '\0';
    link->head_bytes = 0;
    int rc = tierce__peer_begin(&link->peer, soon(link, deadline_ns));
    if (rc == 0 && link->greeted != link->peer.connects)
        rc = greet(link, deadline_ns);
    TIERCE_DASSERT(rc != 0 || link->sent == link->awaited);
    return rc;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The rest of the time, for the server, which need not work longer. */
static uint32_t wait_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = tierce__now_ns();
    if (deadline_ns == TIERCE__DEADLINE_NEVER)
        return 0;
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / TIERCE__MS_NS : 0;
    return ms == 0 ? 1 : ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

static void encode(struct transfer_link *link, uint8_t out[HEAD],
                   struct tierce__transfer_request request, const struct tierce_plugin_name *name,
                   uint64_t deadline_ns)
{
    TIERCE_ASSERT(name == NULL || name->bytes <= TIERCE__TRANSFER_NAME_MAX);
    request.name_bytes = (uint16_t)(name != NULL ? name->bytes : 0);
    request.wait_ms = wait_ms(soon(link, deadline_ns));
    tierce__transfer_request_encode(out, &request);
    link->sent++;
}

static struct iovec piece_of(const struct tierce_plugin_name *name)
{
    return (struct iovec){(void *)(uintptr_t)name->text, name->bytes};
}

/* A status that a server may answer `op` with. */
static bool is_status(enum tierce__transfer_op op, int status)
{
    switch (status) {
    case TIERCE_E_MISS:
    case TIERCE_E_FORMAT:
        return op == TIERCE__TRANSFER_OP_READ;
    case TIERCE_E_FULL:
        return op == TIERCE__TRANSFER_OP_WRITE;
    case TIERCE_E_LIMIT:
    case TIERCE_E_DOWN:
    case TIERCE_E_REFUSED:
    case TIERCE_E_DEADLINE:
    case TIERCE_E_ARGUMENT:
    case TIERCE_E_UNSUPPORTED:
        return true;
    default:
        return status < 0 && status > -4096; /* an errno */
    }
}

static int explain(struct transfer_link *link, const struct tierce__transfer_reply *reply)
{
    static const char *const ops[] = {[TIERCE__TRANSFER_OP_READ] = "read",
                                      [TIERCE__TRANSFER_OP_WRITE] = "write",
                                      [TIERCE__TRANSFER_OP_ASK] = "lookup",
                                      [TIERCE__TRANSFER_OP_DROP] = "deletion",
                                      [TIERCE__TRANSFER_OP_LIST] = "listing"};
    char *why = link->peer.why;
    size_t room = sizeof(link->peer.why);
    if (reply->status == TIERCE_E_FORMAT)
        snprintf(why, room, "an object with an unexpected length: it has %llu bytes",
                 (unsigned long long)reply->total);
    else if (reply->status == TIERCE_E_REFUSED)
        snprintf(why, room, "the server does not permit this client a %s", ops[reply->op]);
    else if (reply->status == TIERCE_E_ARGUMENT)
        snprintf(why, room, "the server does not accept the name of an object in \"%s\"",
                 link->store->space);
    else if (reply->status == TIERCE_E_DOWN)
        snprintf(why, room, "\"%s\" of the server cannot be used now", link->store->space);
    else if (reply->status == TIERCE_E_LIMIT && reply->op == TIERCE__TRANSFER_OP_READ)
        snprintf(why, room,
                 "\"%s\" of the server is busy: too much is read from its disk (limits: "
                 "pool.disk_buffer of a node's pool; peers.disk_reads, peers.disk_rate of a peer)",
                 link->store->space);
    else
        snprintf(why, room, "the server answered a %s with: %s", ops[reply->op],
                 tierce_strerror(reply->status));
    return reply->status;
}

/* The head of the next reply has arrived. 0, or the status, with `why`. */
static int take_reply(struct transfer_link *link, struct tierce__transfer_reply *reply,
                      enum tierce__transfer_op op)
{
    TIERCE_DASSERT(link->head_bytes == HEAD);
    link->head_bytes = 0;
    if (tierce__transfer_reply_decode(reply, link->head) != 0 || reply->op != op ||
        reply->sequence != link->awaited || (reply->status != 0 && !is_status(op, reply->status)))
        return misunderstood(link, "an invalid reply");
    link->awaited++;
    if (reply->status == TIERCE_E_MISS)
        return TIERCE_E_MISS;
    return reply->status == 0 ? 0 : explain(link, reply);
}

static int receive(struct transfer_link *link, void *into, size_t bytes, uint64_t deadline_ns)
{
    size_t got;
    struct iovec piece = {into, bytes};
    if (bytes == 0)
        return 0;
    return receive_some(link, &piece, 1, bytes, &got, deadline_ns);
}

int tierce__transfer_read_reply(struct transfer_link *link, struct tierce__transfer_reply *reply,
                                enum tierce__transfer_op op, uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->head_bytes == 0);
    int rc = receive(link, link->head, HEAD, deadline_ns);
    if (rc != 0)
        return rc;
    link->head_bytes = HEAD;
    return take_reply(link, reply, op);
}

int tierce__transfer_ask(struct transfer_link *link, struct tierce__transfer_reply *reply,
                         struct tierce__transfer_request request,
                         const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    uint8_t head[HEAD];
    int rc = tierce__transfer_begin(link, deadline_ns);
    if (rc != 0)
        return rc;
    encode(link, head, request, name, deadline_ns);
    struct iovec pieces[2] = {{head, HEAD}, piece_of(name)};
    rc = send_all(link, pieces, name->bytes > 0 ? 2 : 1, deadline_ns);
    return rc == 0 ? tierce__transfer_read_reply(link, reply, request.op, deadline_ns) : rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Of the object that the range is of; 0: it is not known. */
static uint64_t total_of(const struct tierce__link_get *get)
{
    return get->object_bytes != NULL ? *get->object_bytes : 0;
}

int tierce__transfer_send_reads(struct transfer_link *link, const struct tierce__link_get *gets,
                                size_t count, uint64_t deadline_ns)
{
    uint8_t heads[TIERCE__LINKS_GETS][HEAD];
    TIERCE_ASSERT(count > 0 && count <= TIERCE__LINKS_GETS);
    for (size_t i = 0; i < count; i++) {
        encode(link, heads[i],
               (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_READ,
                                                 .offset = gets[i].offset,
                                                 .length = gets[i].length,
                                                 .total = total_of(&gets[i])},
               gets[i].name, deadline_ns);
        link->pieces[2 * i] = (struct iovec){heads[i], HEAD};
        link->pieces[2 * i + 1] = piece_of(gets[i].name);
    }
    return send_all(link, link->pieces, 2 * (int)count, deadline_ns);
}

static int send_gets(void *opened, const struct tierce__link_get *gets, size_t count,
                     uint64_t deadline_ns)
{
    int rc = tierce__transfer_begin(opened, deadline_ns);
    return rc == 0 ? tierce__transfer_send_reads(opened, gets, count, deadline_ns) : rc;
}

/* Receives the head of the next reply. *body: bytes behind it that are in `memory` already, which
 * only the last reply can have. */
static int receive_head(struct transfer_link *link, const struct tierce__link_get *get,
                        bool is_last, size_t *body, uint64_t deadline_ns)
{
    size_t missing = HEAD - link->head_bytes, got;
    struct iovec pieces[2] = {{link->head + link->head_bytes, missing}, {get->memory, get->length}};
    *body = 0;
    if (missing == 0)
        return 0;
    int rc = receive_some(link, pieces, is_last ? 2 : 1, missing, &got, deadline_ns);
    if (rc != 0)
        return rc;
    link->head_bytes = HEAD;
    *body = got - missing;
    TIERCE_DASSERT(*body <= get->length);
    return 0;
}

/* The rest of an object, and with it the head of the next reply as far as it has arrived. */
static int receive_rest(struct transfer_link *link, const struct tierce__link_get *get, size_t have,
                        bool is_last, uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->head_bytes == 0);
    bool has_patience = link->store->patience_ms > 0;
    while (have < get->length) {
        size_t rest = get->length - have, got = 0;
        size_t least = has_patience && rest > PIECE_BYTES ? PIECE_BYTES : rest;
        struct iovec pieces[2] = {{get->memory + have, rest}, {link->head, HEAD}};
        int rc = receive_some(link, pieces, is_last ? 1 : 2, least, &got, deadline_ns);
        if (rc != 0)
            return rc;
        link->head_bytes = got > rest ? got - rest : 0;
        have += got - link->head_bytes;
    }
    return 0;
}

int tierce__transfer_read_read(void *opened, const struct tierce__link_get *get,
                               uint64_t deadline_ns)
{
    struct transfer_link *link = opened;
    struct tierce__transfer_reply reply;
    bool is_last = (uint16_t)(link->awaited + 1) == link->sent;
    size_t have = 0;
    int rc = receive_head(link, get, is_last, &have, deadline_ns);
    if (rc == 0)
        rc = take_reply(link, &reply, TIERCE__TRANSFER_OP_READ);
    if (rc != 0 && have > 0 && tierce__peer_is_connected(&link->peer))
        return misunderstood(link, "bytes behind a reply without any");
    if (rc != 0)
        return rc;
    if (reply.bytes != get->length)
        return misunderstood(link, "a reply with another number of bytes than requested");
    if (total_of(get) != 0 && reply.total != total_of(get))
        return misunderstood(link, "a range of another object than requested");
    if (get->object_bytes != NULL)
        *get->object_bytes = reply.total;
    return receive_rest(link, get, have, is_last, deadline_ns);
}

int tierce__transfer_read(struct transfer_link *link, const struct tierce__link_get *get,
                          uint64_t deadline_ns)
{
    int rc = send_gets(link, get, 1, deadline_ns);
    return rc == 0 ? tierce__transfer_read_read(link, get, deadline_ns) : rc;
}

int tierce__transfer_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                         uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    const struct tierce__link_get get = {
        .name = name, .memory = memory, .offset = offset, .length = length};
    return tierce__transfer_read(opened, &get, deadline_ns);
}

/* ---- other calls ----------------------------------------------------------------------------- */

int tierce__transfer_send_write(struct transfer_link *link, const struct tierce_plugin_name *name,
                                struct tierce__transfer_request request, const void *bytes,
                                uint64_t deadline_ns)
{
    uint8_t head[HEAD];
    TIERCE_DASSERT(request.length > 0 && request.op == TIERCE__TRANSFER_OP_WRITE);
    encode(link, head, request, name, deadline_ns);
    struct iovec pieces[3] = {
        {head, HEAD}, piece_of(name), {(void *)(uintptr_t)bytes, (size_t)request.length}};
    return send_all(link, pieces, 3, deadline_ns);
}

static int put_object(void *opened, const struct tierce_plugin_name *name, const void *memory,
                      uint64_t length, uint64_t deadline_ns)
{
    struct transfer_link *link = opened;
    struct tierce__transfer_reply reply;
    int rc = tierce__transfer_begin(link, deadline_ns);
    if (rc == 0)
        rc = tierce__transfer_send_write(
            link, name,
            (struct tierce__transfer_request){
                .op = TIERCE__TRANSFER_OP_WRITE, .length = length, .total = length},
            memory, deadline_ns);
    return rc == 0
               ? tierce__transfer_read_reply(link, &reply, TIERCE__TRANSFER_OP_WRITE, deadline_ns)
               : rc;
}

static int send_names(struct transfer_link *link, const struct tierce_plugin_name *names,
                      size_t count, uint64_t deadline_ns)
{
    uint8_t head[HEAD];
    uint64_t bytes = 0;
    TIERCE_ASSERT(count <= NAMES);
    for (size_t i = 0; i < count; i++) {
        tierce__store_le16(link->name_heads[i], (uint16_t)names[i].bytes);
        link->pieces[1 + 2 * i] = (struct iovec){link->name_heads[i], 2};
        link->pieces[2 + 2 * i] = piece_of(&names[i]);
        bytes += 2 + names[i].bytes;
    }
    encode(link, head,
           (struct tierce__transfer_request){
               .op = TIERCE__TRANSFER_OP_ASK, .offset = count, .length = bytes},
           NULL, deadline_ns);
    link->pieces[0] = (struct iovec){head, HEAD};
    return send_all(link, link->pieces, 1 + 2 * (int)count, deadline_ns);
}

/* The lengths of the objects of these names, into link->lengths. The link has begun. */
static int ask_lengths(struct transfer_link *link, const struct tierce_plugin_name *names,
                       size_t count, uint64_t deadline_ns)
{
    struct tierce__transfer_reply reply = {.bytes = 0};
    int rc = send_names(link, names, count, deadline_ns);
    if (rc == 0)
        rc = tierce__transfer_read_reply(link, &reply, TIERCE__TRANSFER_OP_ASK, deadline_ns);
    if (rc == 0 && reply.bytes != 8 * count)
        return misunderstood(link, "a reply with another number of lengths than names");
    return rc == 0 ? receive(link, link->lengths, 8 * count, deadline_ns) : rc;
}

static int find_names(void *opened, const struct tierce_plugin_name *names, size_t count,
                      _Atomic size_t *found, uint64_t deadline_ns)
{
    struct transfer_link *link = opened;
    size_t there = 0;
    int rc = tierce__transfer_begin(link, deadline_ns); /* tells how many names the server takes */
    for (size_t at = 0; rc == 0 && at < count && there == at;) {
        size_t some = count - at < link->names_max ? count - at : link->names_max;
        rc = ask_lengths(link, names + at, some, deadline_ns);
        for (size_t i = 0; rc == 0 && i < some && there == at + i; i++)
            there += tierce__load_le64(link->lengths + 8 * i) != TIERCE__TRANSFER_ABSENT;
        atomic_store_explicit(found, there, memory_order_relaxed);
        at += some;
    }
    return rc;
}

static int measure_object(void *opened, const struct tierce_plugin_name *name, uint64_t *bytes,
                          uint64_t deadline_ns)
{
    struct transfer_link *link = opened;
    int rc = tierce__transfer_begin(link, deadline_ns);
    if (rc == 0)
        rc = ask_lengths(link, name, 1, deadline_ns);
    if (rc != 0)
        return rc;
    *bytes = tierce__load_le64(link->lengths);
    return *bytes != TIERCE__TRANSFER_ABSENT ? 0 : TIERCE_E_MISS;
}

static int ping_server(void *opened, uint64_t deadline_ns)
{
    int rc = tierce__transfer_begin(opened, deadline_ns);
    return rc == 0 ? ask_lengths(opened, NULL, 0, deadline_ns) : rc;
}

static int remove_object(void *opened, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    struct tierce__transfer_reply reply;
    return tierce__transfer_ask(opened, &reply,
                                (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_DROP},
                                name, deadline_ns);
}

static int tell_names(struct transfer_link *link, const uint8_t *page, size_t bytes,
                      tierce_plugin_each_fn *each, void *arg)
{
    for (size_t at = 0; at < bytes;) {
        struct tierce_plugin_name name;
        if (tierce__transfer_name_decode(&name.text, &name.bytes, page, bytes, &at) != 0)
            return misunderstood(link, "an invalid list of names");
        each(arg, &name);
    }
    return 0;
}

static int list_names(void *opened, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                      tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns)
{
    struct transfer_link *link = opened;
    struct tierce__transfer_reply reply;
    int rc = tierce__transfer_ask(
        link, &reply,
        (struct tierce__transfer_request){.op = TIERCE__TRANSFER_OP_LIST, .offset = *cursor},
        prefix, deadline_ns);
    if (rc != 0)
        return rc;
    TIERCE_DASSERT(reply.bytes <= TIERCE__TRANSFER_PAGE_MAX);
    uint8_t *page = tierce__alloc((size_t)reply.bytes);
    if (page == NULL) {
        tierce__peer_close(&link->peer); /* its bytes are not read */
        return -ENOMEM;
    }
    rc = receive(link, page, (size_t)reply.bytes, deadline_ns);
    if (rc == 0)
        rc = tell_names(link, page, (size_t)reply.bytes, each, arg);
    if (rc == 0)
        *cursor = reply.cursor;
    tierce__free(page);
    return rc;
}

/* ---- links ----------------------------------------------------------------------------------- */

static int open_link(void **out, void *store)
{
    struct transfer_link *link = *out;
    link->store = store;
    tierce__peer_init(&link->peer, &link->store->place);
    link->peer.channel.silence_ms = link->store->silence_ms;
    return 0;
}

static void close_link(void *opened)
{
    struct transfer_link *link = opened;
    tierce__peer_close(&link->peer);
    tierce__free(link);
}

static struct tierce__link_state state_of(const void *opened)
{
    const struct transfer_link *link = opened;
    return tierce__peer_state(&link->peer);
}

static const char *why_of(void *opened)
{
    const struct transfer_link *link = opened;
    return link->peer.why;
}

static void close_store(void *opened)
{
    struct transfer_store *store = opened;
    tierce__free(store->token_file);
    tierce__free(store->kept_token);
    tierce__tls_context_destroy(store->own_tls);
    tierce__free(store);
}

static int take_space(struct transfer_store *store, const char *path,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    size_t bytes = path[0] == '/' ? strlen(path + 1) : 0;
    if (bytes == 0 || bytes > TIERCE__TRANSFER_SPACE_MAX) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "URL: the path must name a space of 1 to %u bytes, as in "
                 "transfer://HOST:PORT/memory",
                 TIERCE__TRANSFER_SPACE_MAX);
        return TIERCE_E_CONFIG;
    }
    memcpy(store->space, path + 1, bytes + 1);
    return 0;
}

/* A file that cannot be used is reported at once. It is read again for each connection. */
static int take_token_file(struct transfer_store *store, const char *path,
                           char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__token_file file = {0};
    if (path == NULL)
        return 0;
    store->token_file = tierce__strdup(path);
    if (store->token_file == NULL)
        return -ENOMEM;
    int rc = tierce__token_file_read(&file, "token_file", path, why, TIERCE__CONNECTOR_WHY_BYTES);
    tierce__token_file_clear(&file);
    return rc;
}

/* [in] token: of the opener, not of the URL. */
static int take_token(struct transfer_store *store, const char *token)
{
    if (token == NULL)
        return 0;
    if (strlen(token) > TIERCE__TRANSFER_TOKEN_MAX)
        return TIERCE_E_ARGUMENT;
    store->token = store->kept_token = tierce__strdup(token);
    return store->token != NULL ? 0 : -ENOMEM;
}

/* [in] given: of the opener, in place of files. */
static int take_tls(struct transfer_store *store, const struct tierce__url *url,
                    struct tierce__tls_context *given, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *ca_file = tierce__url_param(url, "ca_file");
    const struct tierce__tls files = {.certificate = tierce__url_param(url, "client_certificate"),
                                      .key = tierce__url_param(url, "client_key"),
                                      .is_bare = true};
    bool uses_tls = strcmp(url->scheme, "transfer+tls") == 0;
    int rc = 0;
    if (!uses_tls && (ca_file != NULL || files.certificate != NULL || files.key != NULL)) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: certificates require transfer+tls://");
        return TIERCE_E_CONFIG;
    }
    if (uses_tls && given == NULL)
        rc = tierce__tls_client_context(&store->own_tls, ca_file, &files, why);
    if (uses_tls)
        store->place.tls = given != NULL ? given : store->own_tls;
    return rc;
}

static int open_store(void **out, struct tierce__client *own,
                      const struct tierce__connector_source *source,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"connections",        "token_file", "ca_file",
                                        "client_certificate", "client_key", NULL};
    static char no_path[] = "";
    (void)own;
    struct transfer_store *store = *out;
    struct tierce__url place = *source->url;
    place.path = no_path;
    store->silence_ms = source->opts->silence_ms;
    store->is_once = store->silence_ms > 0;
    int rc = tierce__url_check_params(source->url, known, why);
    if (rc == 0)
        rc = tierce__peer_place_parse(&store->place, &place, 0, why);
    if (rc == 0)
        rc = take_space(store, source->url->path, why);
    if (rc == 0)
        rc = take_tls(store, source->url, source->opts->tls, why);
    if (rc == 0)
        rc = take_token_file(store, tierce__url_param(source->url, "token_file"), why);
    store->patience_ms = source->opts->patience_ms;
    return rc == 0 ? take_token(store, source->opts->token) : rc;
}

/* ---- the client -------------------------------------------------------------------------------
 */

const struct tierce__client tierce__transfer_client = {
    .table = {.caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS,
              .close = close_store,
              .link_open = open_link,
              .link_close = close_link,
              .get = tierce__transfer_get,
              .put = put_object,
              .remove = remove_object,
              .list = list_names,
              .ping = ping_server,
              .why = why_of},
    .scheme = "transfer",
    .store_bytes = sizeof(struct transfer_store),
    .link_bytes = sizeof(struct transfer_link),
    .links = LINKS,
    .names_max = NAMES,
    .open = open_store,
    .find = find_names,
    .measure = measure_object,
    .send_gets = send_gets,
    .read_get = tierce__transfer_read_read,
    .state = state_of,
};
