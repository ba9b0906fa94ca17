/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_WIRE_NATIVE_H
#define TIERCE_WIRE_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tierce/status.h>

#include "base/assert.h"
#include "base/bytes.h"

/*
 * The native protocol: requests and answers about a node's pool, between the node and clients on
 * the same host that map the pool. It carries no KV. Byte by byte: docs/inside/format/native.md.
 *
 *     union tierce__native_request ask = {.lookup = {.view = view, .to_block = blocks, ...}};
 *     rc = tierce__native_pack_request(&frame, TIERCE__NATIVE_LOOKUP, &ask);
 *     ... send frame.bytes[0, frame.used); receive 8 bytes and, as they say, the body ...
 *     tierce__native_head(&body_bytes, &status, head);
 *     rc = tierce__native_unpack_answer(&answer, TIERCE__NATIVE_LOOKUP, body, body_bytes);
 *
 * Unpacked texts and rows borrow from the body and lie within its bounds. All lengths of the other
 * side are checked; the caller checks only the meaning of numbers.
 */

/* A node accepts clients of this version too; a client offers it to a node that rejects its own. */
#define TIERCE__NATIVE_VERSION_OLD 2u
#define TIERCE__NATIVE_MAGIC       0x4e435254u /* "TRCN" */
#define TIERCE__NATIVE_VERSION     3u
/* The first versions with NOTE_REQUEST, with TIERCE_PREFETCH_VERIFY in PREFETCH_BEGIN, and with
 * HAND_OVER. */
#define TIERCE__NATIVE_VERSION_NOTES     3u
#define TIERCE__NATIVE_VERSION_VERIFY    3u
#define TIERCE__NATIVE_VERSION_HAND_OVER 3u
#define TIERCE__NATIVE_ID_BYTES          16u
#define TIERCE__NATIVE_HASH              32u
#define TIERCE__NATIVE_HEAD              8u /* bytes: those of the body, and op or status */
#define TIERCE__NATIVE_BODY_MAX          (64u << 20) /* a chain of two million blocks */

/* Values are never used again. */
enum tierce__native_op {
    TIERCE__NATIVE_HELLO = 1, /* the first of a connection; no other */
    TIERCE__NATIVE_PING = 2,
    TIERCE__NATIVE_VIEW = 3,
    TIERCE__NATIVE_VIEW_CLOSE = 4,
    TIERCE__NATIVE_COMPUTED = 5,
    TIERCE__NATIVE_LOOKUP = 6,
    TIERCE__NATIVE_DURABLE = 7,
    TIERCE__NATIVE_UNPIN = 8,
    TIERCE__NATIVE_LOAD_BEGIN = 9,
    TIERCE__NATIVE_LOAD_WAIT = 10,
    TIERCE__NATIVE_LOAD_END = 11,
    TIERCE__NATIVE_STORE_BEGIN = 12,
    TIERCE__NATIVE_STORE_END = 13,
    TIERCE__NATIVE_PREFETCH_BEGIN = 14,
    TIERCE__NATIVE_PREFETCH_POLL = 15,
    TIERCE__NATIVE_PREFETCH_END = 16,
    TIERCE__NATIVE_FLUSH = 17,
    TIERCE__NATIVE_CLEAR = 18,
    TIERCE__NATIVE_LOAD_NEXT = 19,
    TIERCE__NATIVE_GROUP_VIEW = 20,
    TIERCE__NATIVE_GROUP_STORE_BEGIN = 21,
    TIERCE__NATIVE_NOTE_REQUEST = 22, /* from version 3 on */
    TIERCE__NATIVE_HAND_OVER = 23,    /* from version 3 on */
    TIERCE__NATIVE_NOTE_TOKENS = 24,  /* of a node that asks for it: TIERCE__NATIVE_ASKS_TOKENS */
    TIERCE__NATIVE_PUSH_POLL = 25,    /* of a node that has answered TIERCE__NATIVE_HAND_PUSH */
    TIERCE__NATIVE_STORE_LAYERS = 26, /* of a node with TIERCE__NATIVE_TAKES_LAYERS */
    TIERCE__NATIVE_SESSION_HINT = 27, /* of a node with TIERCE__NATIVE_TAKES_HINTS */
    TIERCE__NATIVE_OPS
};

/* VIEW for GROUP_VIEW, STORE_BEGIN for GROUP_STORE_BEGIN, otherwise `op` itself. Both have the same
 * answer, and the same operation ends the view or store. */
static inline enum tierce__native_op tierce__native_plain(enum tierce__native_op op)
{
    return op == TIERCE__NATIVE_GROUP_VIEW          ? TIERCE__NATIVE_VIEW
           : op == TIERCE__NATIVE_GROUP_STORE_BEGIN ? TIERCE__NATIVE_STORE_BEGIN
                                                    : op;
}

/* Whether the node answers a request. One that it does not answer changes nothing that its client
 * must know, and the next request may follow it at once. */
static inline bool tierce__native_is_answered(enum tierce__native_op op)
{
    return op != TIERCE__NATIVE_STORE_LAYERS;
}

/* A status of an answer is 0, a negative errno, TIERCE_E_*, or one of these. An answer with a
 * status other than 0 has no body. */
enum tierce__native_status {
    TIERCE__NATIVE_UNKNOWN_CHAIN = 1, /* ask again, with the chain from its first block on */
    TIERCE__NATIVE_UNKNOWN =
        2, /* the view, load, store, prefetch or push is unknown, ended or expired */
};

/* Consecutive rows of equal form, as on the wire; [borrow] the body, or when packing, the sender's
 * memory. */
struct tierce__native_rows {
    const uint8_t *bytes;
    uint32_t count;
};

/*
 * A chain by the number that the client has given it, which it gives to no other. The blocks that
 * the node lacks follow: afterwards the node's chain has first + hashes.count blocks. `parent` is
 * the hash of the block before `first`; the node compares it with its own. If `first` is 0,
 * `parent` is the chain's root hash, and the chain starts again.
 */
struct tierce__native_chain {
    uint64_t number;
    uint32_t first;
    uint8_t parent[TIERCE__NATIVE_HASH];
    struct tierce__native_rows hashes; /* of TIERCE__NATIVE_HASH */
};

/* ---- requests -------------------------------------------------------------------------------- */

struct tierce__native_hello {
    uint32_t magic;
    uint32_t version;
    uint8_t client[TIERCE__NATIVE_ID_BYTES]; /* zero: a new one */
    uint64_t pid;                            /* for the log */
};

/* struct tierce_namespace, tierce_shard and tierce_part. */
struct tierce__native_view {
    const char *weights, *model, *kv_dtype, *quantization, *layout;
    struct tierce__native_rows cell_bytes; /* of 4 bytes: of all layers of a chunk */
    uint32_t block_tokens, chunk_blocks, algo;
    uint32_t tp_rank, tp_size, pp_rank, pp_size;
    uint32_t first_layer, layer_count, part_index, part_count;
    const char *engine; /* whose processes share sessions; "": none is named */
};

/* The same for a group of layers. */
struct tierce__native_group_view {
    struct tierce__native_view view;
    uint32_t group, window;
    struct tierce__native_rows layers; /* of 4 bytes: as many as cell_bytes */
};

struct tierce__native_computed {
    uint64_t view, tokens, ns;
};

/* As tierce_lookup's; for DURABLE only view, to_block and chain count. */
struct tierce__native_lookup {
    uint64_t view, session, from_block, to_block;
    uint32_t flags, tiers, pin_ms;
    uint32_t wait_ms; /* for remote stores, at most; 0: as the node's timeout.lookup says */
    const char *tag;
    struct tierce__native_chain chain;
};

struct tierce__native_session {
    uint64_t view, session;
};

/* As tierce_session_hint; with returns_ms as tierce_session_returns. */
struct tierce__native_hint {
    uint64_t view, session;
    uint32_t hint;       /* enum tierce_hint */
    uint32_t returns_ms; /* 0: unknown; else of TIERCE_HINT_SOON and _LATER */
};

struct tierce__native_load {
    uint64_t view, session, from_block, to_block;
    uint32_t timeout_ms, tiers;
    uint32_t wait_ms; /* as of LOOKUP, for the answer */
    struct tierce__native_chain chain;
};

/* Waits until one of the part's layers has arrived for all chunks that have not failed. */
struct tierce__native_wait {
    uint64_t load;
    uint32_t layer;
};

/* For a load that does not fit into memory: returns the chunk that this request lent last, with its
 * `verdict` (UNUSED: there is none), and lends a later one. */
struct tierce__native_next {
    uint64_t load;
    uint32_t chunk;   /* its place in the answer to LOAD_BEGIN */
    uint32_t verdict; /* enum tierce__native_verdict */
};

/* A client's report about a chunk that was lent to it. */
enum tierce__native_verdict {
    TIERCE__NATIVE_GOOD = 0,
    TIERCE__NATIVE_BAD_CELLS = 1,
    TIERCE__NATIVE_WRONG_HEADER = 2,
    TIERCE__NATIVE_UNUSED = 3, /* it did not arrive, or the load was aborted */
};

/* verdicts: one for each chunk of the load, in its order; none: it is aborted. */
struct tierce__native_load_end {
    uint64_t load;
    struct tierce__native_rows verdicts; /* struct tierce__native_result */
};

struct tierce__native_store {
    uint64_t view, session, to_block, write;
    uint32_t tail; /* 0 or 1 */
    uint32_t tiers;
    const char *tag;
    struct tierce__native_chain chain;
};

/* The same for a part of a chain. */
struct tierce__native_group_store {
    struct tierce__native_store store;
    uint64_t from_block;
};

struct tierce__native_store_end {
    uint64_t store;
    uint32_t complete; /* 1: every layer was written; 0: it is aborted */
};

/* The cells of the first `layers` layers of the part are written. Layers that are not reported
 * count as written when the store has ended. */
struct tierce__native_store_layers {
    uint64_t store;
    uint32_t layers;
};

struct tierce__native_prefetch {
    uint64_t view, session, from_block, to_block;
    uint32_t flags, tiers, timeout_ms;
    struct tierce__native_chain chain;
};

/* The answer comes when the result is final, or after wait_ms. */
struct tierce__native_poll {
    uint64_t prefetch;
    uint32_t wait_ms;
};

struct tierce__native_number {
    uint64_t number; /* of the view or prefetch that ends */
};

struct tierce__native_flush {
    uint32_t timeout_ms;
};

struct tierce__native_clear {
    uint32_t tiers;
    uint64_t view; /* 0: whatever its namespace */
};

/* struct tierce_request. */
struct tierce__native_note {
    uint64_t session, tokens, unit_tokens, local_tokens, looked_tokens, found_tokens, loaded_tokens,
        failed_tokens;
    uint32_t limit;
    const char *name;
};

/* A call of engine/handover/handover.h that the node carries out. */
enum tierce__native_hand_kind {
    TIERCE__NATIVE_HAND_SERVE = 1,  /* host, port -> number: the port */
    TIERCE__NATIVE_HAND_EXPECT,     /* token, timeout_ms */
    TIERCE__NATIVE_HAND_PIN,        /* view, chain, to_block, token -> number: blocks */
    TIERCE__NATIVE_HAND_OPEN,       /* token, number: tokens */
    TIERCE__NATIVE_HAND_WITHDRAW,   /* token */
    TIERCE__NATIVE_HAND_MEET,       /* host, port, token, times -> number: tokens */
    TIERCE__NATIVE_HAND_READ,       /* as MEET, view, chain, from_block, to_block, session ->
                                       number: blocks; bytes */
    TIERCE__NATIVE_HAND_END,        /* host, port, token: the offer is not read any longer */
    TIERCE__NATIVE_HAND_NOTE,       /* view, session, host, port, number: blocks, bytes, why;
                                       to_block: bytes that were pushed */
    TIERCE__NATIVE_HAND_READ_OTHER, /* READ of a prefiller with a different tensor-parallel size
                                       (TP); number: its view, why: core/chunk/heads.h */
    /* The client's inbox. */
    TIERCE__NATIVE_HAND_ACCEPT,     /* host: names of hosts, bytes, number: see struct
                                       tierce__inbox_opts, wait_ms: how long chunks are held */
    TIERCE__NATIVE_HAND_TICKETS,    /* number: how many, wait_ms: their time, token: the holder ->
                                       number: how many; why: they, separated by blanks */
    TIERCE__NATIVE_HAND_AWAIT,      /* token: a ticket, wait_ms: until it begins, timeout_ms */
    TIERCE__NATIVE_HAND_TICKET_END, /* token: a ticket -> bytes: that came */
    /* A push to the inbox of another engine. */
    TIERCE__NATIVE_HAND_PUSH,       /* host, port, uses_tls, token: a ticket, times -> number */
    TIERCE__NATIVE_HAND_PUSH_HELD,  /* number, view, chain, to_block -> number: chunks */
    TIERCE__NATIVE_HAND_PUSH_STORE, /* number, view; session: the number of a store */
    TIERCE__NATIVE_HAND_PUSH_END,   /* number: no more chunks are added */
    TIERCE__NATIVE_HAND_PUSH_CLOSE, /* number */
};

#define TIERCE__NATIVE_TICKETS_MAX 7u /* of one answer */

struct tierce__native_hand {
    uint32_t kind, port, uses_tls, wait_ms, timeout_ms;
    uint64_t view, session, from_block, to_block, number, bytes;
    const char *host, *token, *why;    /* "": none */
    struct tierce__native_chain chain; /* for PIN, READ, READ_OTHER and PUSH_HELD */
};

/* Tokens for KV events: those of a chain's blocks from `from_block` on, which begins a chunk. */
struct tierce__native_tokens {
    uint64_t view, from_block;
    struct tierce__native_chain chain;
    struct tierce__native_rows tokens; /* 4 bytes each; whole blocks */
};

union tierce__native_request {
    struct tierce__native_hello hello;
    struct tierce__native_view view;
    struct tierce__native_group_view group_view;
    struct tierce__native_number view_close;
    struct tierce__native_computed computed;
    struct tierce__native_lookup lookup; /* and DURABLE */
    struct tierce__native_session unpin;
    struct tierce__native_load load_begin;
    struct tierce__native_wait load_wait;
    struct tierce__native_next load_next;
    struct tierce__native_load_end load_end;
    struct tierce__native_store store_begin;
    struct tierce__native_group_store group_store_begin;
    struct tierce__native_store_end store_end;
    struct tierce__native_prefetch prefetch_begin;
    struct tierce__native_poll prefetch_poll;
    struct tierce__native_number prefetch_end;
    struct tierce__native_flush flush;
    struct tierce__native_clear clear;
    struct tierce__native_note note_request;
    struct tierce__native_hand hand_over;
    struct tierce__native_tokens note_tokens;
    struct tierce__native_number push_poll;
    struct tierce__native_store_layers store_layers;
    struct tierce__native_hint session_hint;
};

/* ---- answers --------------------------------------------------------------------------------- */

/* In `tiers` of a node that publishes KV events with tokens: it accepts NOTE_TOKENS. */
#define TIERCE__NATIVE_ASKS_TOKENS (1u << 31)
/* In `tiers` of a node that accepts STORE_LAYERS. */
#define TIERCE__NATIVE_TAKES_LAYERS (1u << 30)
/* In `tiers` of a node that accepts SESSION_HINT. */
#define TIERCE__NATIVE_TAKES_HINTS (1u << 29)

/* For a new client, the pool's descriptor is sent with the head of this answer. The node answers
 * after these times at the latest, whatever its tiers do. */
struct tierce__native_welcome {
    uint8_t client[TIERCE__NATIVE_ID_BYTES];
    uint64_t boot; /* a new number at each start of the node */
    uint64_t pool_bytes;
    uint32_t tiers; /* 1u << enum tierce_origin of each existing tier; TIERCE__NATIVE_ASKS_TOKENS,
                       TIERCE__NATIVE_TAKES_LAYERS, TIERCE__NATIVE_TAKES_HINTS */
    uint32_t lookup_ms, load_ms, store_ms, pin_ms, prefetch_ms;
};

/* Of VIEW, GROUP_VIEW and PREFETCH_BEGIN. */
struct tierce__native_given {
    uint64_t number;
};

struct tierce__native_found {
    uint64_t blocks;
    uint64_t memory_blocks; /* DURABLE: 0 */
    uint32_t pending;       /* 1: a query to a remote store for the following blocks is in
                               progress */
};

enum tierce__native_kind {
    TIERCE__NATIVE_FULL = 0,
    TIERCE__NATIVE_TAIL = 1,
    TIERCE__NATIVE_SIBLING = 2, /* another chunk, which begins with the same blocks */
};

enum tierce__native_state {
    TIERCE__NATIVE_HERE = 0,   /* all its bytes */
    TIERCE__NATIVE_COMING = 1, /* LOAD_WAIT returns when it has arrived */
    TIERCE__NATIVE_FAILED = 2,
    TIERCE__NATIVE_WAITS = 3, /* memory does not have room for it yet: LOAD_NEXT */
};

/* One chunk of a load. */
struct tierce__native_lent {
    uint64_t offset; /* in the pool; FAILED, WAITS: 0 */
    uint64_t bytes;
    uint32_t index;       /* of the chunk in the chain */
    uint32_t block_count; /* of the object */
    uint32_t from, to; /* the requested blocks, as far as they may be stored; to <= block_count */
    uint8_t kind, state, origin;
    uint8_t hash[TIERCE__NATIVE_HASH]; /* its own */
};

struct tierce__native_loan {
    uint64_t load;
    uint32_t left_ms;                  /* until the memory is given to others */
    struct tierce__native_rows chunks; /* struct tierce__native_lent */
};

/* states: enum tierce__native_state of each chunk, for the requested layer. Layers below `ready`
 * need no wait: they are in memory for every chunk that has not failed. */
struct tierce__native_ready {
    uint32_t ready;
    struct tierce__native_rows states; /* of 1 byte */
};

/* Of LOAD_NEXT: all layers of the part are here, or the chunk has failed. */
struct tierce__native_passed {
    uint64_t offset; /* in the pool; FAILED: 0 */
    uint32_t state;  /* TIERCE__NATIVE_HERE, _FAILED */
    uint32_t origin; /* enum tierce_origin */
};

/* One chunk of a store. */
struct tierce__native_reserved {
    uint64_t offset; /* in the pool, where its header is already */
    uint64_t bytes;
    uint32_t index; /* of the chunk in the chain */
    uint32_t block_count;
};

/* store: 0, and no chunks, if there is nothing to store. */
struct tierce__native_reservation {
    uint64_t store;
    uint32_t left_ms;
    struct tierce__native_rows chunks; /* struct tierce__native_reserved */
};

struct tierce__native_count {
    uint64_t count; /* STORE_END: blocks; CLEAR: chunks */
};

#define TIERCE__NATIVE_FINAL     1u
#define TIERCE__NATIVE_CANCELLED 2u
#define TIERCE__NATIVE_LATE      4u
#define TIERCE__NATIVE_SHORT     8u

/* struct tierce_prefetch_result. */
struct tierce__native_come {
    uint64_t blocks, memory_blocks;
    uint32_t flags;
    struct tierce__native_rows tiers; /* struct tierce__native_come_tier */
};

/* status: of the call, 0 or a negative code; why: in words, or "". */
struct tierce__native_handed {
    uint64_t number, bytes;
    uint32_t status, uses_tls;
    const char *why;
};

/* struct tierce__pushed. */
struct tierce__native_pushed {
    uint64_t chunks, bytes, present, left_out, over_ns;
    uint32_t is_over; /* 0 or 1 */
    uint32_t status;
    const char *why;
};

union tierce__native_answer {
    struct tierce__native_welcome hello;
    struct tierce__native_given view;   /* and GROUP_VIEW, PREFETCH_BEGIN */
    struct tierce__native_found lookup; /* and DURABLE */
    struct tierce__native_loan load_begin;
    struct tierce__native_ready load_wait;
    struct tierce__native_passed load_next;
    struct tierce__native_reservation store_begin;
    struct tierce__native_count store_end; /* and CLEAR */
    struct tierce__native_come prefetch_poll;
    struct tierce__native_handed hand_over;
    struct tierce__native_pushed push_poll;
};

/* ---- rows ------------------------------------------------------------------------------------ */

#define TIERCE__NATIVE_LENT_BYTES     72u
#define TIERCE__NATIVE_RESERVED_BYTES 24u
#define TIERCE__NATIVE_RESULT_BYTES   8u
#define TIERCE__NATIVE_TIER_BYTES     32u
#define TIERCE__NATIVE_TIER_NAME      16u

struct tierce__native_result {
    uint32_t verdict;
    uint32_t blocks; /* that were loaded */
};

struct tierce__native_come_tier {
    char name[TIERCE__NATIVE_TIER_NAME]; /* NUL-terminated, cut */
    uint64_t promised, loaded;
};

/* Write and read one row as bytes. Errors: TIERCE_E_FORMAT (an invalid value). The functions that a
 * load calls for each of its chunks are inline. */
static inline void tierce__native_put_lent(uint8_t *row, const struct tierce__native_lent *lent)
{
    TIERCE_DASSERT(lent->from <= lent->to && lent->to <= lent->block_count);
    TIERCE_DASSERT(lent->kind <= TIERCE__NATIVE_SIBLING && lent->state <= TIERCE__NATIVE_WAITS);
    tierce__store_le64(row, lent->offset);
    tierce__store_le64(row + 8, lent->bytes);
    tierce__store_le32(row + 16, lent->index);
    tierce__store_le32(row + 20, lent->block_count);
    tierce__store_le32(row + 24, lent->from);
    tierce__store_le32(row + 28, lent->to);
    row[32] = lent->kind;
    row[33] = lent->state;
    row[34] = lent->origin;
    memset(row + 35, 0, 5);
    memcpy(row + 40, lent->hash, TIERCE__NATIVE_HASH);
}
TIERCE_MUSTUSE int tierce__native_get_lent(struct tierce__native_lent *out,
                                           const struct tierce__native_rows *rows, uint32_t i);
void tierce__native_put_reserved(uint8_t *row, const struct tierce__native_reserved *reserved);
TIERCE_MUSTUSE int tierce__native_get_reserved(struct tierce__native_reserved *out,
                                               const struct tierce__native_rows *rows, uint32_t i);
void tierce__native_put_result(uint8_t *row, const struct tierce__native_result *result);
TIERCE_MUSTUSE int tierce__native_get_result(struct tierce__native_result *out,
                                             const struct tierce__native_rows *rows, uint32_t i);
void tierce__native_put_tier(uint8_t *row, const struct tierce__native_come_tier *tier);
TIERCE_MUSTUSE int tierce__native_get_tier(struct tierce__native_come_tier *out,
                                           const struct tierce__native_rows *rows, uint32_t i);

/* ---- frames ---------------------------------------------------------------------------------- */

/* A frame that is being made: head and body. Its memory grows and is used again. */
struct tierce__native_frame {
    uint8_t *bytes;
    size_t used, room;
    int status; /* while it is packed */
};

void tierce__native_frame_fini(struct tierce__native_frame *frame);

/* Replace the content of the frame; [borrow] the message for the call. `message` may be NULL where
 * there is no body. Errors: -ENOMEM, TIERCE_E_LIMIT (a body above TIERCE__NATIVE_BODY_MAX). */
TIERCE_MUSTUSE int tierce__native_pack_request(struct tierce__native_frame *frame,
                                               enum tierce__native_op op,
                                               const union tierce__native_request *message);
TIERCE_MUSTUSE int tierce__native_pack_answer(struct tierce__native_frame *frame,
                                              enum tierce__native_op op, int32_t status,
                                              const union tierce__native_answer *message);

/* word: the op, or the status. Errors: TIERCE_E_LIMIT (a body that is too long). */
TIERCE_MUSTUSE int tierce__native_head(uint32_t *body_bytes, uint32_t *word,
                                       const uint8_t head[TIERCE__NATIVE_HEAD]);

/* [borrow as long as *out] body. Errors, *out undefined: TIERCE_E_FORMAT (too short or too long, an
 * invalid text or op). */
TIERCE_MUSTUSE int tierce__native_unpack_request(union tierce__native_request *out, uint32_t op,
                                                 const uint8_t *body, size_t body_bytes);
TIERCE_MUSTUSE int tierce__native_unpack_answer(union tierce__native_answer *out, uint32_t op,
                                                const uint8_t *body, size_t body_bytes);

#endif
