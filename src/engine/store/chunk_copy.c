/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/store/chunk_copy.h"

#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "core/chunk/header.h"
#include "core/key/namespace.h"
#include "core/key/namespaces.h"

void tierce__chunk_record(struct tierce__storage_chunk *out, const struct tierce__tier_event *event)
{
    TIERCE_DASSERT(event->admitted);
    *out = (struct tierce__storage_chunk){.key = *event->key,
                                          .parent = *event->key,
                                          .has_parent = event->parent != NULL,
                                          .object_bytes = event->object_bytes,
                                          .token_start = event->token_start,
                                          .block_count = event->block_count};
    if (event->parent != NULL)
        memcpy(out->parent.hash, event->parent, TIERCE_HASH_BYTES);
    memcpy(out->first_block, event->first_block, TIERCE_HASH_BYTES);
}

/* Whether a parsed header has the chunk's key. */
static bool is_named(const struct tierce_engine *engine, const struct tierce__storage_chunk *chunk,
                     const struct tierce__chunk_info *info)
{
    const uint8_t *digest = tierce__namespaces_digest(engine->namespaces, chunk->key.ns);
    return memcmp(info->ns_digest, digest, sizeof(info->ns_digest)) == 0 &&
           memcmp(info->hash, chunk->key.hash, sizeof(info->hash)) == 0 &&
           memcmp(&info->shard, &chunk->key.shard, sizeof(info->shard)) == 0;
}

/* TIERCE_E_ARGUMENT: the chunk has another length than the record. */
static int verify(struct tierce__chunk_info *info, const struct tierce_engine *engine,
                  const struct tierce__storage_chunk *chunk, const struct tierce__buf *buf)
{
    int rc = tierce__chunk_parse(info, buf->data, chunk->object_bytes);
    if (rc == 0 && !is_named(engine, chunk, info))
        rc = TIERCE_E_IDENTITY;
    if (rc == 0 && info->extent.object_bytes != chunk->object_bytes)
        rc = TIERCE_E_ARGUMENT;
    if (rc == 0 && tierce__chunk_verify_cells(buf->data, info) > 0)
        rc = TIERCE_E_CHECKSUM;
    return rc;
}

bool tierce__chunk_fits(const struct tierce_engine *engine, const struct tierce__key *key,
                        uint64_t object_bytes)
{
    struct tierce__namespace_read read;
    const char *text = tierce__namespaces_text(engine->namespaces, key->ns);
    if (text == NULL || tierce__namespace_read(&read, text) < 0)
        return false;
    const struct tierce__geometry full = {.layer_count = read.ns.layer_count,
                                          .cell_bytes = read.ns.cell_bytes,
                                          .block_tokens = read.ns.block_tokens,
                                          .block_count = read.ns.chunk_blocks};
    bool fits = tierce__chunk_has_length(&full, object_bytes);
    tierce__namespace_read_fini(&read);
    return fits;
}

struct tierce__buf *tierce__chunk_read(struct tierce_engine *engine, size_t level,
                                       const struct tierce__storage_chunk *chunk,
                                       struct tierce__chunk_info *info, int *status)
{
    struct tierce__chunk_info verified;
    TIERCE_DASSERT(level > 0);
    struct tierce__buf *buf = tierce__storage_alloc(engine, chunk->object_bytes);
    *status = -ENOMEM;
    if (buf == NULL)
        return NULL;
    *status = tierce__storage_read_head(engine, level, &chunk->key, buf,
                                        tierce__deadline_in_ms(engine->settings.load_ms));
    if (*status == 0) {
        *status = verify(&verified, engine, chunk, buf);
        bool is_claim = *status == TIERCE_E_ARGUMENT && engine->levels[level].health.shared;
        if (*status == TIERCE_E_ARGUMENT && !is_claim)
            *status = TIERCE_E_IDENTITY;
        if (*status < 0 && !is_claim)
            tierce__storage_quarantine(engine, level, &chunk->key, *status);
    }
    if (*status == 0 && info != NULL)
        *info = verified;
    if (*status == 0)
        return buf;
    tierce__buf_release(buf);
    return NULL;
}
