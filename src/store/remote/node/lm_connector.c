/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lm://host:port?connections=8: a node, or the server of LMCache.
 *
 * That protocol has no deletion, no listing that is answered and no ranges; a PUT is not answered
 * either, so that each is followed by the question whether the object is there. The server stores
 * values under keys in LMCache's form, which it parses; Tierce's keys are made of a name's digest:
 *
 *     tierce1@1@0@<SHA-256 of the name, 64 hex digits>@uint8
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "store/remote/links.h"
#include "store/remote/node/peer.h"
#include "core/key/sha256.h"
#include "proto/lm/lm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINKS          8u
#define EXISTS_AT_ONCE 128u
#define KEY_BEGIN      "tierce1@1@0@"
#define KEY_END        "@uint8"
#define FORMAT_BINARY  4 /* LMCache's MemoryFormat.BINARY: bytes, of shape [length, 0, 0, 0] */
#define DTYPE_UINT8    6

/* Shared by the links. */
struct lm {
    struct tierce__peer_place place;
};

struct lm_link {
    struct tierce__peer peer;
    uint8_t requests[EXISTS_AT_ONCE][TIERCE__LM_REQUEST_BYTES];
    uint8_t replies[EXISTS_AT_ONCE][TIERCE__LM_REPLY_BYTES];
};

/* ---- messages -------------------------------------------------------------------------------- */

static void make_request(uint8_t out[TIERCE__LM_REQUEST_BYTES], enum tierce__lm_command command,
                         const struct tierce_plugin_name *name, uint32_t value_bytes)
{
    uint8_t digest[TIERCE__SHA256_BYTES];
    char hex[2 * TIERCE__SHA256_BYTES + 1], key[TIERCE__LM_KEY_BYTES + 1];
    tierce__sha256(digest, name->text, name->bytes);
    tierce__hex_encode(hex, digest, sizeof(digest));
    int bytes = snprintf(key, sizeof(key), KEY_BEGIN "%s" KEY_END, hex);
    TIERCE_DASSERT(bytes > 0 && (size_t)bytes <= TIERCE__LM_KEY_BYTES);
    struct tierce__lm_request request = {
        .command = command,
        .value_bytes = value_bytes,
        .shape = {.format = FORMAT_BINARY, .dtype = DTYPE_UINT8, .dims = {(int32_t)value_bytes}},
        .key = key,
        .key_bytes = (size_t)bytes};
    int rc = tierce__lm_request_encode(out, &request);
    TIERCE_ASSERT(rc == 0); /* the key is short, and the length was looked at */
}

/* An answer without a value. */
static int read_answer(struct lm_link *link, const uint8_t bytes[TIERCE__LM_REPLY_BYTES], bool *yes)
{
    struct tierce__lm_reply reply;
    if (tierce__lm_reply_decode(&reply, bytes) != 0 || reply.value_bytes != 0)
        return tierce__peer_misunderstood(&link->peer, "not an answer of lm://");
    *yes = reply.code == TIERCE__LM_SUCCESS;
    return 0;
}

static int receive_answer(struct lm_link *link, uint64_t deadline_ns)
{
    size_t got;
    struct iovec piece = {.iov_base = link->replies, .iov_len = TIERCE__LM_REPLY_BYTES};
    return tierce__peer_receive(&link->peer, &piece, 1, TIERCE__LM_REPLY_BYTES, &got, deadline_ns);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* All answers are read, so that the connection stays in step. */
static int lm_find(void *opened, const struct tierce_plugin_name *names, size_t count,
                   _Atomic size_t *found, uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0 && *found == 0);
    struct lm_link *link = opened;
    TIERCE_ASSERT(count <= EXISTS_AT_ONCE);
    for (size_t i = 0; i < count; i++)
        make_request(link->requests[i], TIERCE__LM_EXIST, &names[i], 0);
    struct iovec piece = {.iov_base = link->requests, .iov_len = count * TIERCE__LM_REQUEST_BYTES};
    int rc = tierce__peer_begin(&link->peer, deadline_ns);
    if (rc == 0)
        rc = tierce__peer_send(&link->peer, &piece, 1, deadline_ns);
    size_t bytes = count * TIERCE__LM_REPLY_BYTES, have = 0, got;
    bool yes = true;
    for (size_t i = 0; i < count && rc == 0; i++) {
        size_t end = (i + 1) * TIERCE__LM_REPLY_BYTES;
        bool there = false;
        if (have < end) {
            piece = (struct iovec){.iov_base = link->replies[0] + have, .iov_len = bytes - have};
            rc = tierce__peer_receive(&link->peer, &piece, 1, end - have, &got, deadline_ns);
            have += rc == 0 ? got : 0;
            TIERCE_DASSERT(have <= bytes);
        }
        if (rc == 0)
            rc = read_answer(link, link->replies[i], &there);
        yes = yes && there;
        *found += yes;
    }
    TIERCE_DASSERT(rc != 0 || have == bytes);
    return rc;
}

/* Bytes that came with the head are already in the buffer; this reads the rest of the value.
 * LMCache's server stores a truncated PUT as a value that it cannot send: it closes the connection
 * after the head, each time. */
static int receive_rest(struct lm_link *link, uint8_t *memory, uint64_t length,
                        uint64_t deadline_ns)
{
    size_t got;
    struct iovec piece = {.iov_base = memory, .iov_len = length};
    int rc = tierce__peer_receive(&link->peer, &piece, 1, length, &got, deadline_ns);
    if (rc != TIERCE_E_DOWN)
        return rc;
    return tierce__peer_misunderstood(&link->peer, "an object shorter than its stated length");
}

/* An object of at least `least` and up to `room` bytes; *bytes is its length. */
static int get(struct lm_link *link, const struct tierce_plugin_name *name, void *memory,
               uint64_t least, uint64_t room, uint64_t *bytes, uint64_t deadline_ns)
{
    TIERCE_DASSERT(least > 0 && least <= room);
    struct tierce__lm_reply reply;
    uint8_t request[TIERCE__LM_REQUEST_BYTES], head[TIERCE__LM_REPLY_BYTES];
    size_t got = 0;
    make_request(request, TIERCE__LM_GET, name, 0);
    struct iovec out = {.iov_base = request, .iov_len = sizeof(request)};
    struct iovec in[2] = {{.iov_base = head, .iov_len = sizeof(head)},
                          {.iov_base = memory, .iov_len = room}};
    int rc = tierce__peer_begin(&link->peer, deadline_ns);
    if (rc == 0)
        rc = tierce__peer_send(&link->peer, &out, 1, deadline_ns);
    if (rc == 0)
        rc = tierce__peer_receive(&link->peer, in, 2, sizeof(head), &got, deadline_ns);
    if (rc != 0)
        return rc;
    TIERCE_DASSERT(got >= sizeof(head));
    uint64_t body = got - sizeof(head);
    TIERCE_DASSERT(body <= room);
    if (tierce__lm_reply_decode(&reply, head) != 0)
        return tierce__peer_misunderstood(&link->peer, "not an answer of lm://");
    if (reply.code == TIERCE__LM_FAIL && reply.value_bytes == 0 && body == 0)
        return TIERCE_E_MISS;
    if (reply.code == TIERCE__LM_FAIL || reply.value_bytes < least || reply.value_bytes > room)
        return tierce__peer_misunderstood(&link->peer, "an object with an unexpected length");
    if (body > reply.value_bytes)
        return tierce__peer_misunderstood(&link->peer, "an object longer than its stated length");
    *bytes = reply.value_bytes;
    return receive_rest(link, (uint8_t *)memory + body, reply.value_bytes - body, deadline_ns);
}

static int lm_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                  uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    uint64_t bytes;
    TIERCE_ASSERT(offset == 0);
    return get(opened, name, memory, length, length, &bytes, deadline_ns);
}

static int lm_get_whole(void *opened, const struct tierce_plugin_name *name, void *memory,
                        uint64_t room, uint64_t *bytes, uint64_t deadline_ns)
{
    return get(opened, name, memory, 1, room, bytes, deadline_ns);
}

/* The following query is its answer: if the object is absent, there was no room. */
static int lm_put(void *opened, const struct tierce_plugin_name *name, const void *memory,
                  uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    struct lm_link *link = opened;
    uint8_t head[TIERCE__LM_REQUEST_BYTES], question[TIERCE__LM_REQUEST_BYTES];
    bool there = false;
    if (length > INT32_MAX) {
        snprintf(link->peer.why, sizeof(link->peer.why), "an object of 2 GiB or more");
        return TIERCE_E_LIMIT;
    }
    make_request(head, TIERCE__LM_PUT, name, (uint32_t)length);
    make_request(question, TIERCE__LM_EXIST, name, 0);
    struct iovec pieces[3] = {{.iov_base = head, .iov_len = sizeof(head)},
                              {.iov_base = (void *)(uintptr_t)memory, .iov_len = length},
                              {.iov_base = question, .iov_len = sizeof(question)}};
    int rc = tierce__peer_begin(&link->peer, deadline_ns);
    if (rc == 0)
        rc = tierce__peer_send(&link->peer, pieces, 3, deadline_ns);
    if (rc == 0)
        rc = receive_answer(link, deadline_ns);
    if (rc == 0)
        rc = read_answer(link, link->replies[0], &there);
    if (rc != 0 || there)
        return rc;
    snprintf(link->peer.why, sizeof(link->peer.why), "the server did not store an object");
    return TIERCE_E_FULL;
}

static int lm_ping(void *opened, uint64_t deadline_ns)
{
    struct lm_link *link = opened;
    static const struct tierce_plugin_name name = {.text = "", .bytes = 0};
    bool well = false;
    make_request(link->requests[0], TIERCE__LM_HEALTH, &name, 0);
    struct iovec piece = {.iov_base = link->requests, .iov_len = TIERCE__LM_REQUEST_BYTES};
    int rc = tierce__peer_begin(&link->peer, deadline_ns);
    if (rc == 0)
        rc = tierce__peer_send(&link->peer, &piece, 1, deadline_ns);
    if (rc == 0)
        rc = receive_answer(link, deadline_ns);
    if (rc == 0)
        rc = read_answer(link, link->replies[0], &well);
    if (rc != 0 || well)
        return rc;
    snprintf(link->peer.why, sizeof(link->peer.why), "the server reports that it is not healthy");
    return TIERCE_E_DOWN;
}

/* ---- links ----------------------------------------------------------------------------------- */

static int open_link(void **out, void *store)
{
    struct lm_link *link = *out;
    tierce__peer_init(&link->peer, &((const struct lm *)store)->place);
    return 0;
}

static void close_link(void *opened)
{
    struct lm_link *link = opened;
    tierce__peer_close(&link->peer);
    tierce__free(link);
}

static struct tierce__link_state state_of(const void *opened)
{
    const struct lm_link *link = opened;
    return tierce__peer_state(&link->peer);
}

static const char *why_of(void *opened)
{
    const struct lm_link *link = opened;
    return link->peer.why;
}

static int open_lm(void **store, struct tierce__client *own,
                   const struct tierce__connector_source *source,
                   char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"connections", NULL};
    (void)own;
    struct lm *lm = *store;
    int rc = tierce__url_check_params(source->url, known, why);
    return rc == 0 ? tierce__peer_place_parse(&lm->place, source->url, 0, why) : rc;
}

const struct tierce__client tierce__lm_client = {
    .table = {.caps = TIERCE__CONNECTOR_NO_DELETE | TIERCE__CONNECTOR_TELLS_LENGTH,
              .close = tierce__free,
              .link_open = open_link,
              .link_close = close_link,
              .get = lm_get,
              .put = lm_put,
              .ping = lm_ping,
              .why = why_of},
    .scheme = "lm",
    .store_bytes = sizeof(struct lm),
    .link_bytes = sizeof(struct lm_link),
    .links = LINKS,
    .names_max = EXISTS_AT_ONCE,
    .open = open_lm,
    .find = lm_find,
    .get_whole = lm_get_whole,
    .state = state_of,
};
