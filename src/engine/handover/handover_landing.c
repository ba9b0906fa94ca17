/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_landing.h"

#include <string.h>

#include "base/assert.h"
#include "engine/waterfall.h"

bool tierce__landing_fits(const struct tierce_view *view, uint64_t bytes)
{
    return tierce__chunk_has_length(&view->full.geometry, bytes);
}

struct tierce__buf *tierce__landing_reserve(struct tierce_view *view, const struct tierce__key *key,
                                            uint64_t bytes)
{
    const struct tierce__storage_chunk record = {
        .key = *key, .object_bytes = bytes, .block_count = view->chunk_blocks};
    return tierce__storage_reserve(view->engine, &record, NULL);
}

/* Whether the header is that of a chunk of the view with this key. */
static int check_header(struct tierce__chunk_info *got, const struct tierce_view *view,
                        const struct tierce__key *key, const struct tierce__buf *buf)
{
    int rc = tierce__chunk_parse(got, buf->data, buf->bytes);
    if (rc < 0)
        return rc;
    uint32_t blocks = got->geometry.block_count;
    if (blocks > view->chunk_blocks || got->geometry.layer_count != view->full.geometry.layer_count)
        return TIERCE_E_IDENTITY;
    struct tierce__shape shape = tierce__shape_of(view, blocks);
    uint64_t chunk_tokens = (uint64_t)view->chunk_blocks * shape.geometry.block_tokens;
    const uint8_t *hashes = tierce__chunk_block_hashes(buf->data, got->geometry.layer_count);
    const uint8_t *last = hashes + (size_t)(blocks - 1) * TIERCE_HASH_BYTES;
    if (shape.extent.object_bytes != buf->bytes || got->token_start % chunk_tokens != 0 ||
        memcmp(last, key->hash, TIERCE_HASH_BYTES) != 0)
        return TIERCE_E_IDENTITY;
    struct tierce__chunk_info want = {.shard = key->shard,
                                      .algo = view->algo,
                                      .group = view->group,
                                      .window = view->window,
                                      .token_start = got->token_start,
                                      .created_s = got->created_s,
                                      .geometry = shape.geometry,
                                      .extent = shape.extent};
    memcpy(want.ns_digest, view->ns_digest, sizeof(want.ns_digest));
    memcpy(want.hash, key->hash, sizeof(want.hash));
    memcpy(want.parent, got->parent, sizeof(want.parent));
    return tierce__chunk_match(buf->data, got, &want, hashes);
}

static int verify(struct tierce__chunk_info *got, const struct tierce_view *view,
                  const struct tierce__key *key, const struct tierce__buf *buf)
{
    int rc = check_header(got, view, key, buf);
    if (rc == 0 && tierce__chunk_verify_cells(buf->data, got) != 0)
        rc = TIERCE_E_CHECKSUM;
    if (rc < 0)
        tierce__count(view->engine,
                      rc == TIERCE_E_CHECKSUM ? TIERCE__STAT_checksum_failures
                                              : TIERCE__STAT_identity_failures,
                      1);
    return rc;
}

int tierce__landing_publish(struct tierce_view *view, const struct tierce__key *key,
                            struct tierce__buf *buf)
{
    struct tierce__chunk_info got;
    int rc = verify(&got, view, key, buf);
    if (rc < 0)
        return rc;
    struct tierce__storage_chunk record = {.key = *key,
                                           .parent = *key,
                                           .has_parent =
                                               got.token_start > 0 && !tierce__view_is_sparse(view),
                                           .object_bytes = buf->bytes,
                                           .token_start = got.token_start,
                                           .block_count = got.geometry.block_count};
    memcpy(record.parent.hash, got.parent, sizeof(got.parent));
    memcpy(record.first_block, tierce__chunk_block_hashes(buf->data, got.geometry.layer_count),
           TIERCE_HASH_BYTES);
    rc = tierce__storage_publish(view->engine, &record, buf);
    return rc < 0 ? rc : 0;
}
