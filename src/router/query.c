/* SPDX-License-Identifier: Apache-2.0 */
#include "router/query.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "router/standard_hash.h"

#include <errno.h>
#include <string.h>

#define SIZES_MAX 8u /* different block sizes of one model */

/* The block sizes of a model's publishers. */
struct sizes {
    const struct tierce__query *query;
    uint32_t at[SIZES_MAX], count;
    bool has_model;
};

static bool add_size(void *arg, const struct tierce__source_opts *opts,
                     struct tierce__follower *follower)
{
    struct sizes *sizes = arg;
    struct tierce__follower_about about;
    if (strcmp(opts->model, sizes->query->model) != 0)
        return true;
    sizes->has_model = true;
    tierce__follower_about(follower, &about);
    uint32_t size = about.block_size != 0 ? about.block_size : opts->block_size;
    if (size == 0 || (sizes->query->block_size != 0 && size != sizes->query->block_size))
        return true;
    for (uint32_t i = 0; i < sizes->count; i++) {
        if (sizes->at[i] == size)
            return true;
    }
    if (sizes->count < SIZES_MAX)
        sizes->at[sizes->count++] = size;
    return true;
}

/* A rank's answer, from its prefix. */
struct row {
    struct tierce__query_answer *answer;
    const struct tierce__query *query;
    const struct tierce__directory_prefix *prefix;
    uint32_t block_size; /* 0: that of the publisher */
};

static bool add_row(void *arg, const struct tierce__source_opts *opts,
                    struct tierce__follower *follower)
{
    const struct row *row = arg;
    struct tierce__query_answer *answer = row->answer;
    const uint32_t *in_tier = row->prefix->in_tier;
    struct tierce__follower_about about;
    /* The keys of two models differ; a publisher of another one is here by a collision. */
    if (answer->count == TIERCE__QUERY_RANKS_MAX || strcmp(opts->model, row->query->model) != 0)
        return false;
    tierce__follower_about(follower, &about);
    uint64_t size = row->block_size != 0    ? row->block_size
                    : about.block_size != 0 ? about.block_size
                                            : opts->block_size;
    struct tierce__query_rank *rank = &answer->ranks[answer->count++];
    *rank = (struct tierce__query_rank){.dp_rank = opts->dp_rank,
                                        .is_exact = about.is_exact,
                                        .longest = row->prefix->keys * size,
                                        .gpu = in_tier[TIERCE__KV_GPU] * size,
                                        .cpu = in_tier[TIERCE__KV_CPU] * size,
                                        .disk = in_tier[TIERCE__KV_DISK] * size,
                                        .memory = in_tier[TIERCE__CONTENTS_MEMORY] * size};
    memcpy(rank->instance, opts->instance, sizeof(rank->instance));
    return true;
}

static int find(struct tierce__query_answer *out, struct tierce__sources *sources,
                struct tierce__directory *directory, const struct tierce__query *query,
                const struct tierce__directory_key *keys, size_t count, uint32_t block_size)
{
    struct tierce__directory_found found;
    int rc = tierce__directory_find(
        directory, keys, count,
        &(struct tierce__directory_asker){.group = query->tenant, .host = ""}, &found);
    for (uint32_t i = 0; rc == 0 && i < found.prefix_count; i++) {
        struct row row = {out, query, &found.prefixes[i], block_size};
        tierce__sources_of(sources, found.prefixes[i].worker, add_row, &row);
    }
    return rc;
}

/* The keys of whole blocks. */
static size_t hash_tokens(struct tierce__directory_key *keys, const struct tierce__query *query,
                          uint32_t block_size)
{
    uint64_t scope = tierce__standard_scope(query->model, query->lora, block_size);
    size_t count = query->count / block_size;
    for (size_t i = 0; i < count; i++)
        keys[i] = (struct tierce__directory_key){
            scope, tierce__standard_hash(i > 0 ? &keys[i - 1].low : NULL,
                                         query->tokens + i * block_size, block_size)};
    return count;
}

int tierce__query_run(struct tierce__query_answer *out, struct tierce__sources *sources,
                      struct tierce__directory *directory, const struct tierce__query *query)
{
    struct sizes sizes = {.query = query};
    int rc = 0;
    out->count = 0;
    TIERCE_ASSERT(query->count > 0 && (query->tokens != NULL) != (query->hashes != NULL));
    tierce__sources_each(sources, query->tenant, add_size, &sizes);
    out->has_model = sizes.has_model;
    if (!sizes.has_model)
        return 0;
    struct tierce__directory_key *keys = tierce__alloc(query->count * sizeof(*keys));
    if (keys == NULL)
        return -ENOMEM;
    if (query->hashes != NULL && !query->is_standard) {
        for (size_t i = 0; i < query->count; i++)
            keys[i] = (struct tierce__directory_key){tierce__engine_scope(query->model),
                                                     query->hashes[i]};
        rc = find(out, sources, directory, query, keys, query->count, 0);
    }
    for (uint32_t i = 0; rc == 0 && i < sizes.count; i++) {
        size_t count = query->count;
        if (query->tokens != NULL) {
            count = hash_tokens(keys, query, sizes.at[i]);
        } else if (query->is_standard) {
            uint64_t scope = tierce__standard_scope(query->model, query->lora, sizes.at[i]);
            for (size_t j = 0; j < count; j++)
                keys[j] = (struct tierce__directory_key){scope, query->hashes[j]};
        } else {
            break;
        }
        if (count > 0)
            rc = find(out, sources, directory, query, keys, count, sizes.at[i]);
    }
    tierce__free(keys);
    return rc;
}
