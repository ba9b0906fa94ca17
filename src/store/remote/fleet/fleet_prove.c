/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/fleet_prove.h"
#include "base/bytes.h"
#include "core/chunk/coded.h"
#include "core/paged/paged.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The tensor rank in the name of a spec, "tp3"; -1: it names none. */
static long rank_of(const char *spec)
{
    if (strncmp(spec, "tp", 2) != 0 || !isdigit((unsigned char)spec[2]) || strlen(spec) > 7)
        return -1;
    char *end;
    long rank = strtol(spec + 2, &end, 10);
    return *end == '\0' ? rank : -1;
}

static enum tierce__fleet_proof answer(enum tierce__fleet_proof proof, const char **why,
                                       const char *text)
{
    *why = text;
    return proof;
}

/* Whether a chunk is the one that the index names. */
static enum tierce__fleet_proof prove_identity(const struct tierce__chunk_info *info,
                                               int64_t block_key, const char *spec,
                                               const char **why)
{
    if ((int64_t)tierce__load_le64(info->hash) != block_key)
        return answer(TIERCE__FLEET_DAMAGED, why, "it is the chunk of another block");
    long rank = rank_of(spec);
    if (rank >= 0 && rank != info->shard.tp_rank)
        return answer(TIERCE__FLEET_DAMAGED, why, "it is the chunk of another rank");
    return answer(TIERCE__FLEET_PROVEN, why, "");
}

/* The sums of coded layers are those of the coded bytes: neither a codec nor a key is needed. */
static enum tierce__fleet_proof prove_coded(const uint8_t *object, uint64_t bytes,
                                            int64_t block_key, const char *spec, const char **why)
{
    struct tierce__coded_info info;
    int rc = tierce__coded_parse(&info, object, bytes);
    if (rc == TIERCE_E_VERSION)
        return answer(TIERCE__FLEET_UNPROVABLE, why,
                      "it is a chunk of a version that this program does not know");
    if (rc != 0)
        return answer(TIERCE__FLEET_DAMAGED, why, "its header is damaged");
    if (info.object_bytes != bytes)
        return answer(TIERCE__FLEET_DAMAGED, why, "its length is not that of its header");
    enum tierce__fleet_proof proof = prove_identity(&info.chunk, block_key, spec, why);
    for (uint32_t i = 0; proof == TIERCE__FLEET_PROVEN && i < info.chunk.geometry.layer_count;
         i++) {
        struct tierce__coded_layer layer = tierce__coded_layer(&info, object, i);
        if (tierce__sum(object + layer.offset, layer.bytes) != layer.sum)
            proof = answer(TIERCE__FLEET_DAMAGED, why, "a sum does not match");
    }
    return proof;
}

enum tierce__fleet_proof tierce__fleet_prove(const uint8_t *object, uint64_t bytes,
                                             int64_t block_key, const char *spec, const char **why)
{
    struct tierce__chunk_info info;
    if (bytes < TIERCE__CHUNK_FIXED || !tierce__chunk_has_magic(object))
        return answer(TIERCE__FLEET_DAMAGED, why,
                      "it is no chunk of Tierce, and engines store nothing else");
    int rc = tierce__chunk_parse(&info, object, bytes);
    if (rc == TIERCE_E_VERSION)
        return prove_coded(object, bytes, block_key, spec, why);
    if (rc != 0)
        return answer(TIERCE__FLEET_DAMAGED, why, "its header is damaged");
    if (info.extent.object_bytes != bytes)
        return answer(TIERCE__FLEET_DAMAGED, why, "its length is not that of its header");
    enum tierce__fleet_proof proof = prove_identity(&info, block_key, spec, why);
    if (proof == TIERCE__FLEET_PROVEN && tierce__chunk_verify_cells(object, &info) != 0)
        return answer(TIERCE__FLEET_DAMAGED, why, "a sum does not match");
    return proof;
}
