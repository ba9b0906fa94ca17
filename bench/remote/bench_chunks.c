/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/bench_chunks.h"
#include "bench/remote/bench_calls.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

#define CHUNKS TIERCE__BENCH_CHUNKS

static int name_chunk(struct tierce__bench_chunks *c, size_t i, const uint8_t *ns_digest,
                      uint64_t number)
{
    struct tierce__key *key = &c->keys[i];
    *key = (struct tierce__key){.shard = {.tp_size = 1, .pp_size = 1}};
    memcpy(key->hash, &number, sizeof(number));
    int bytes = tierce__key_text_format(c->texts[i], ns_digest, &key->shard, key->hash);
    if (bytes < 0)
        return bytes;
    c->names[i] = (struct tierce_plugin_name){.text = c->texts[i], .bytes = (size_t)bytes};
    return 0;
}

int tierce__bench_chunks_open(struct tierce__bench_chunks *c, const struct tierce__bench *bench,
                              uint64_t bytes, const uint8_t ns_digest[TIERCE_HASH_BYTES],
                              uint64_t first)
{
    TIERCE_ASSERT(bytes > 0 && bytes % 8 == 0);
    c->bench = bench;
    c->bytes = bytes;
    int rc = tierce__pool_create(
        &c->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = (CHUNKS + 1) * bytes + (8u << 20)});
    for (size_t i = 0; i < CHUNKS && rc == 0; i++) {
        rc = tierce__pool_alloc(c->pool, &c->bufs[i], bytes);
        if (rc == 0)
            rc = name_chunk(c, i, ns_digest, first + i);
    }
    return rc;
}

void tierce__bench_chunks_close(struct tierce__bench_chunks *c)
{
    for (size_t i = 0; i < CHUNKS; i++)
        tierce__buf_release(c->bufs[i]);
    if (c->pool != NULL)
        tierce__pool_destroy(c->pool);
    *c = (struct tierce__bench_chunks){0};
}

void tierce__bench_chunks_fill(struct tierce__bench_chunks *c)
{
    for (size_t i = 0; i < CHUNKS; i++)
        tierce__bench_fill(c->bufs[i]->data, c->bytes, 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

bool tierce__bench_chunks_is_served(struct tierce__bench_chunks *c,
                                    struct tierce__connector *connector)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .urgency = TIERCE__CONNECTOR_STORE,
                                    .names = c->names,
                                    .name_count = 1,
                                    .buf = c->bufs[0],
                                    .length = c->bytes};
    return tierce__bench_calls_try(connector, &req, 1) >= 0;
}

int64_t tierce__bench_chunks_lookup(struct tierce__bench_chunks *c,
                                    struct tierce__connector *connector)
{
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP,
                                    .urgency = TIERCE__CONNECTOR_PEEK,
                                    .names = c->names,
                                    .name_count = CHUNKS};
    int64_t ns = tierce__bench_calls_run(c->bench, connector, &req, 1);
    return ns >= 0 && req.found != CHUNKS
               ? tierce__bench_fail(c->bench, "%zu of %u chunks were found", req.found, CHUNKS)
               : ns;
}

static int64_t move_all(struct tierce__bench_chunks *c, struct tierce__connector *connector,
                        enum tierce__store_op op, uint64_t piece)
{
    size_t pieces = (size_t)(c->bytes / piece), count = CHUNKS * pieces;
    TIERCE_ASSERT(pieces > 0 && c->bytes % piece == 0);
    struct tierce__store_req *reqs = tierce__calloc(count, sizeof(*reqs));
    if (reqs == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        size_t chunk = i / pieces;
        reqs[i] = (struct tierce__store_req){
            .op = op,
            .urgency = op == TIERCE__STORE_PUT ? TIERCE__CONNECTOR_STORE : TIERCE__CONNECTOR_FETCH,
            .names = &c->names[chunk],
            .name_count = 1,
            .parent = op == TIERCE__STORE_PUT && chunk > 0 ? &c->keys[chunk - 1] : NULL,
            .buf = c->bufs[chunk],
            .offset = i % pieces * piece,
            .length = piece};
    }
    int64_t ns = tierce__bench_calls_run(c->bench, connector, reqs, count);
    tierce__free(reqs);
    return ns;
}

int64_t tierce__bench_chunks_put(struct tierce__bench_chunks *c,
                                 struct tierce__connector *connector)
{
    return move_all(c, connector, TIERCE__STORE_PUT, c->bytes);
}

int64_t tierce__bench_chunks_get(struct tierce__bench_chunks *c,
                                 struct tierce__connector *connector, uint64_t piece)
{
    return move_all(c, connector, TIERCE__STORE_GET,
                    piece == 0 || piece > c->bytes ? c->bytes : piece);
}

int tierce__bench_chunks_check(struct tierce__bench_chunks *c, struct tierce__connector *connector,
                               uint64_t piece)
{
    for (size_t i = 0; i < CHUNKS; i++)
        memset(c->bufs[i]->data, 0x5a, c->bytes);
    int64_t ns = tierce__bench_chunks_get(c, connector, piece);
    for (size_t i = 0; ns >= 0 && i < CHUNKS; i++) {
        if (!tierce__bench_filled(c->bufs[i]->data, c->bytes, 1))
            return tierce__bench_fail(c->bench, "the loaded bytes differ from the stored bytes");
    }
    return ns < 0 ? (int)ns : 0;
}
