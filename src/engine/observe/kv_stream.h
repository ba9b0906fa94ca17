/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_KV_STREAM_H
#define TIERCE_ENGINE_KV_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

#include "net/zmq_curve.h"

/*
 * The sockets of a publisher of KV events, over libzmq: numbered batches for all subscribers, and
 * the last of them for readers that missed some. docs/inside/format/kv-events.md has the frames.
 *
 *     rc = tierce__kv_stream_open(&stream, &opts, why);
 *     rc = tierce__kv_stream_send(stream, batch, bytes);       // on one thread
 *     tierce__kv_stream_serve(stream, TIERCE__DEADLINE_NEVER); // on another one, until it is woken
 *
 * A subscriber that is more than TIERCE__KV_BEHIND_MAX batches behind loses some: with batches of
 * TIERCE__KV_BATCH_BYTES (kv_batch.h), it keeps at most 128 MiB of them in memory. Replays advance
 * in turns, so a reader that does not read delays no other one.
 */

#define TIERCE__KV_BEHIND_MAX 4096

struct tierce__kv_stream_opts {
    size_t size;          /* sizeof(struct tierce__kv_stream_opts) */
    const char *endpoint; /* tcp://... or ipc://..., which PUB binds */
    const char *replay;   /* which ROUTER binds; "": none */
    const char *topic;    /* [borrow until close] */
    uint64_t first;       /* sequence of the first batch */
    uint64_t bytes_max;   /* of the batches that are kept */
    /* The keys of a stream that is encrypted, and the file of its readers (kv_readers.h); NULL: it
     * is not, and every reader may connect. [borrow for the call] */
    const struct tierce__zmq_curve_pair *curve;
    const char *readers;
};

struct tierce__kv_stream;

/* Errors, `why` in words: TIERCE_E_CONFIG (an endpoint of another kind, or one that cannot be
 * bound; an invalid file of readers), -ENOMEM, negative errno. */
TIERCE_MUSTUSE int tierce__kv_stream_open(struct tierce__kv_stream **out,
                                          const struct tierce__kv_stream_opts *opts, char why[256]);
/* NULL is accepted. No other call is in progress. */
void tierce__kv_stream_close(struct tierce__kv_stream *stream);

/* Sends the next batch. Does not block. Errors: -ENOMEM; the batch is not sent, and its sequence is
 * missing for readers, who see the gap. Thread: one at a time. */
TIERCE_MUSTUSE int tierce__kv_stream_send(struct tierce__kv_stream *stream, const void *batch,
                                          size_t bytes);

/* Leaves out a sequence, so that readers see that they lack something. Thread: that of send. */
void tierce__kv_stream_skip(struct tierce__kv_stream *stream);

/* The sequence of the next batch. Thread: any. */
uint64_t tierce__kv_stream_next(struct tierce__kv_stream *stream);

/* Answers requests for replay, and requests of ZAP, until the time has come or the stream
 * is woken. Thread: one at a time, that which closes the stream too. */
void tierce__kv_stream_serve(struct tierce__kv_stream *stream, uint64_t until_ns);
/* Thread: any. */
void tierce__kv_stream_wake(struct tierce__kv_stream *stream);

#endif
