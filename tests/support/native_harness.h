/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_NATIVE_HARNESS_H
#define TIERCE_TESTS_NATIVE_HARNESS_H

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include "check_main.h"
#include "core/chunk/header.h"
#include "engine_fixture.h"
#include "proto/native/native.h"

/* A bare client of the native protocol: it maps the pool and writes chunks itself, by what
 * docs/inside/format/native.md and chunk.md say. Its KV is that of engine_fixture.h. */

/* A process that may be killed at any moment must not be writing to Check's pipe. */
static bool native_is_mortal;

#define NATIVE_ASSERT(condition)                                                                   \
    do {                                                                                           \
        if (!native_is_mortal)                                                                     \
            ck_assert(condition);                                                                  \
        else if (!(condition))                                                                     \
            _exit(1);                                                                              \
    } while (0)

struct native_client {
    int fd;
    uint8_t id[TIERCE__NATIVE_ID_BYTES];
    uint64_t boot, view;
    uint32_t tiers;
    uint8_t *pool;
    uint64_t pool_bytes;
    struct tierce__native_frame frame;
    uint8_t body[1 << 20]; /* of the last answer */
};

static inline int native_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static inline bool native_receive(int fd, void *out, size_t bytes, int *pool_fd)
{
    uint8_t *at = out;
    while (bytes > 0) {
        char control[CMSG_SPACE(sizeof(int))];
        struct iovec iov = {.iov_base = at, .iov_len = bytes};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof(control)};
        ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (n <= 0)
            return false;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head != NULL && head->cmsg_type == SCM_RIGHTS)
            memcpy(pool_fd, CMSG_DATA(head), sizeof(int));
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

enum { NATIVE_GONE = -99999 }; /* the node has closed the connection */

/* Returns the status; *answer borrows c->body. */
static inline int32_t native_ask(struct native_client *c, enum tierce__native_op op,
                                 const union tierce__native_request *ask,
                                 union tierce__native_answer *answer, int *pool_fd)
{
    union tierce__native_answer ignored;
    uint8_t head[TIERCE__NATIVE_HEAD];
    uint32_t bytes, status;
    int none = -1;
    NATIVE_ASSERT(tierce__native_pack_request(&c->frame, op, ask) == 0);
    /* A rejected client is notified before its first request. */
    (void)send(c->fd, c->frame.bytes, c->frame.used, MSG_NOSIGNAL);
    if (!tierce__native_is_answered(op))
        return 0;
    if (!native_receive(c->fd, head, sizeof(head), pool_fd != NULL ? pool_fd : &none))
        return NATIVE_GONE;
    NATIVE_ASSERT(tierce__native_head(&bytes, &status, head) == 0);
    NATIVE_ASSERT(bytes <= sizeof(c->body));
    if (!native_receive(c->fd, c->body, bytes, &none))
        return NATIVE_GONE;
    if (status != 0)
        NATIVE_ASSERT(bytes == 0);
    else
        NATIVE_ASSERT(tierce__native_unpack_answer(answer != NULL ? answer : &ignored, op, c->body,
                                                   bytes) == 0);
    return (int32_t)status;
}

/* A connection to the client of an id, or a new one. Returns the status. */
static inline int32_t native_hello_as(struct native_client *c, const char *path,
                                      const struct native_client *of, uint32_t version)
{
    union tierce__native_request ask = {
        .hello = {.magic = TIERCE__NATIVE_MAGIC, .version = version, .pid = (uint64_t)getpid()}};
    union tierce__native_answer say;
    int fd = -1;
    memset(c, 0, offsetof(struct native_client, body));
    c->fd = native_connect(path);
    if (c->fd < 0)
        return NATIVE_GONE;
    if (of != NULL)
        memcpy(ask.hello.client, of->id, sizeof(of->id));
    int32_t status = native_ask(c, TIERCE__NATIVE_HELLO, &ask, &say, &fd);
    if (status != 0)
        return status;
    memcpy(c->id, say.hello.client, sizeof(c->id));
    c->boot = say.hello.boot;
    c->pool_bytes = say.hello.pool_bytes;
    c->tiers = say.hello.tiers;
    if (of == NULL) {
        NATIVE_ASSERT(fd >= 0);
        c->pool = mmap(NULL, c->pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        NATIVE_ASSERT(c->pool != MAP_FAILED);
        close(fd);
    } else {
        NATIVE_ASSERT(fd == -1);
        c->pool = of->pool;
        c->view = of->view;
    }
    return 0;
}

static inline int32_t native_hello(struct native_client *c, const char *path,
                                   const struct native_client *of)
{
    return native_hello_as(c, path, of, TIERCE__NATIVE_VERSION);
}

static inline void native_close(struct native_client *c, bool unmap)
{
    close(c->fd);
    if (unmap)
        munmap(c->pool, c->pool_bytes);
    tierce__native_frame_fini(&c->frame);
}

/* Part `index` of `parts` of the fixture's namespace: layers `first` .. first + count. */
static inline union tierce__native_request native_view_question(uint32_t first, uint32_t count,
                                                                uint32_t index, uint32_t parts)
{
    struct tierce_namespace ns = fx_namespace();
    return (union tierce__native_request){
        .view = {.weights = ns.weights,
                 .model = ns.model,
                 .kv_dtype = ns.kv_dtype,
                 .quantization = "",
                 .layout = ns.layout,
                 .cell_bytes = {(const uint8_t *)fx_cells, FX_LAYERS},
                 .block_tokens = ns.block_tokens,
                 .chunk_blocks = ns.chunk_blocks,
                 .algo = ns.algo,
                 .tp_size = 1,
                 .pp_size = 1,
                 .first_layer = first,
                 .layer_count = count,
                 .part_index = index,
                 .part_count = parts,
                 .engine = ""}};
}

static inline int32_t native_view(struct native_client *c, uint32_t first, uint32_t count,
                                  uint32_t index, uint32_t parts)
{
    union tierce__native_answer say;
    union tierce__native_request ask = native_view_question(first, count, index, parts);
    int32_t status = native_ask(c, TIERCE__NATIVE_VIEW, &ask, &say, NULL);
    if (status == 0)
        c->view = say.view.number;
    return status;
}

static inline void native_open(struct native_client *c, const char *path)
{
    NATIVE_ASSERT(native_hello(c, path, NULL) == 0);
    NATIVE_ASSERT(native_view(c, 0, FX_LAYERS, 0, 1) == 0);
}

/* All of a chain from block `first` on. */
static inline struct tierce__native_chain
native_chain(uint64_t number, const struct tierce_chain *chain, uint32_t first)
{
    uint32_t blocks = (uint32_t)tierce_chain_blocks(chain);
    struct tierce__native_chain out = {.number = number, .first = first};
    if (first < blocks)
        out.hashes = (struct tierce__native_rows){tierce_chain_hash(chain, first), blocks - first};
    memcpy(out.parent,
           first > 0 ? tierce_chain_hash(chain, first - 1) : tierce_chain_root_hash(chain),
           TIERCE_HASH_BYTES);
    return out;
}

static inline int32_t native_store_begin(struct native_client *c, union tierce__native_answer *say,
                                         const struct tierce_chain *chain, uint64_t number,
                                         uint64_t write)
{
    union tierce__native_request ask = {.store_begin = {.view = c->view,
                                                        .to_block = tierce_chain_blocks(chain),
                                                        .write = write,
                                                        .tail = 1,
                                                        .chain = native_chain(number, chain, 0)}};
    return native_ask(c, TIERCE__NATIVE_STORE_BEGIN, &ask, say, NULL);
}

static inline int32_t native_store_end(struct native_client *c, uint64_t store, bool complete,
                                       uint64_t *blocks)
{
    union tierce__native_request ask = {.store_end = {.store = store, .complete = complete}};
    union tierce__native_answer say = {.store_end = {0}};
    int32_t status = native_ask(c, TIERCE__NATIVE_STORE_END, &ask, &say, NULL);
    if (blocks != NULL)
        *blocks = say.store_end.count;
    return status;
}

static inline uint64_t native_header_bytes(uint32_t blocks, struct tierce__geometry *geometry)
{
    struct tierce__extent extent;
    *geometry = (struct tierce__geometry){.layer_count = FX_LAYERS,
                                          .block_count = blocks,
                                          .cell_bytes = fx_cells,
                                          .block_tokens = FX_BLOCK_TOKENS};
    NATIVE_ASSERT(tierce__chunk_extent(&extent, geometry) == 0);
    return extent.header_bytes;
}

/* Writes layers [from, to) of a room: cells and sums. */
static inline void native_fill(struct native_client *c, const struct tierce__native_reserved *room,
                               const struct tierce_chain *chain, uint32_t from, uint32_t to)
{
    struct tierce__geometry geometry;
    uint8_t *object = c->pool + room->offset;
    uint8_t *cell = object + native_header_bytes(room->block_count, &geometry);
    for (uint32_t l = 0; l < to; l++) {
        uint64_t *sums = tierce__chunk_sums(object, &geometry, l);
        for (uint32_t b = 0; b < room->block_count; b++, cell += fx_cells[l]) {
            if (l < from)
                continue;
            memset(cell, fx_byte(chain, room->index * FX_CHUNK_BLOCKS + b, l), fx_cells[l]);
            sums[b] = XXH3_64bits(cell, fx_cells[l]);
        }
    }
}

/* The spaces of an answer; valid until the next request. */
static inline uint32_t native_rooms(struct tierce__native_reserved *out, uint32_t max,
                                    const union tierce__native_answer *say)
{
    NATIVE_ASSERT(say->store_begin.chunks.count <= max);
    for (uint32_t i = 0; i < say->store_begin.chunks.count; i++)
        NATIVE_ASSERT(tierce__native_get_reserved(&out[i], &say->store_begin.chunks, i) == 0);
    return say->store_begin.chunks.count;
}

/* Returns the blocks stored. */
static inline uint64_t native_store(struct native_client *c, const struct tierce_chain *chain,
                                    uint64_t number)
{
    union tierce__native_answer say;
    struct tierce__native_reserved rooms[64];
    uint64_t blocks = 0;
    NATIVE_ASSERT(native_store_begin(c, &say, chain, number, 0) == 0);
    uint64_t store = say.store_begin.store;
    uint32_t count = native_rooms(rooms, 64, &say);
    if (store == 0)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        native_fill(c, &rooms[i], chain, 0, FX_LAYERS);
    NATIVE_ASSERT(native_store_end(c, store, true, &blocks) == 0);
    return blocks;
}

static inline uint64_t native_found(struct native_client *c, const struct tierce_chain *chain,
                                    uint64_t number, uint32_t flags, uint64_t session)
{
    union tierce__native_request ask = {.lookup = {.view = c->view,
                                                   .session = session,
                                                   .to_block = tierce_chain_blocks(chain),
                                                   .flags = flags,
                                                   .chain = native_chain(number, chain, 0)}};
    union tierce__native_answer say;
    NATIVE_ASSERT(native_ask(c, TIERCE__NATIVE_LOOKUP, &ask, &say, NULL) == 0);
    return say.lookup.blocks;
}

static inline int32_t native_load_begin(struct native_client *c, union tierce__native_answer *say,
                                        const struct tierce_chain *chain, uint64_t number,
                                        uint64_t session)
{
    union tierce__native_request ask = {.load_begin = {.view = c->view,
                                                       .session = session,
                                                       .to_block = tierce_chain_blocks(chain),
                                                       .chain = native_chain(number, chain, 0)}};
    return native_ask(c, TIERCE__NATIVE_LOAD_BEGIN, &ask, say, NULL);
}

/* Whether the lent chunk is the chain's, byte by byte. */
static inline bool native_right(const struct native_client *c,
                                const struct tierce__native_lent *lent,
                                const struct tierce_chain *chain)
{
    struct tierce__geometry geometry;
    struct tierce__chunk_info info;
    const uint8_t *object = c->pool + lent->offset;
    uint64_t header = native_header_bytes(lent->block_count, &geometry);
    if (tierce__chunk_parse(&info, object, header) != 0 ||
        memcmp(info.hash, lent->hash, TIERCE_HASH_BYTES) != 0 ||
        tierce__chunk_verify_cells(object, &info) != 0)
        return false;
    const uint8_t *cell = object + header;
    for (uint32_t l = 0; l < FX_LAYERS; l++) {
        for (uint32_t b = 0; b < lent->block_count; b++, cell += fx_cells[l]) {
            for (uint32_t i = 0; i < fx_cells[l]; i++) {
                if (cell[i] != fx_byte(chain, lent->index * FX_CHUNK_BLOCKS + b, l))
                    return false;
            }
        }
    }
    return true;
}

/* Ends a load of `count` chunks with the same verdict for all. */
static inline int32_t native_load_end(struct native_client *c, uint64_t load, uint32_t count,
                                      uint32_t verdict, uint32_t blocks)
{
    uint8_t rows[64 * TIERCE__NATIVE_RESULT_BYTES];
    NATIVE_ASSERT(count <= 64);
    for (uint32_t i = 0; i < count; i++)
        tierce__native_put_result(rows + i * TIERCE__NATIVE_RESULT_BYTES,
                                  &(struct tierce__native_result){verdict, blocks});
    union tierce__native_request ask = {.load_end = {.load = load, .verdicts = {rows, count}}};
    return native_ask(c, TIERCE__NATIVE_LOAD_END, &ask, NULL, NULL);
}

#endif
