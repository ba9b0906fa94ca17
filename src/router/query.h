/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_QUERY_H
#define TIERCE_ROUTER_QUERY_H

#include "router/sources.h"

/*
 * How much of a prompt each instance holds. Thread: any.
 */

#define TIERCE__QUERY_RANKS_MAX TIERCE__DIRECTORY_PREFIXES_MAX

/* One rank of an instance. All lengths are leading tokens. */
struct tierce__query_rank {
    char instance[TIERCE__SOURCE_NAME_BYTES];
    uint32_t dp_rank;
    bool is_exact;
    uint64_t longest;        /* in any medium */
    uint64_t gpu, cpu, disk; /* in this medium alone */
    uint64_t memory;         /* in GPU or CPU memory */
};

struct tierce__query_answer {
    struct tierce__query_rank ranks[TIERCE__QUERY_RANKS_MAX];
    uint32_t count;
    bool has_model; /* a publisher of this model is registered */
};

struct tierce__query {
    const char *tenant, *model;
    struct tierce__text lora; /* "" */
    const uint32_t *tokens;   /* by tokens; or NULL: */
    const uint64_t *hashes;   /* by hashes, of the engines or standard ones */
    size_t count;             /* of either */
    uint32_t block_size; /* 0: any; for hashes, lengths are blocks times that of the publisher */
    bool is_standard;    /* the hashes */
};

/* Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__query_run(struct tierce__query_answer *out,
                                     struct tierce__sources *sources,
                                     struct tierce__directory *directory,
                                     const struct tierce__query *query);

#endif
