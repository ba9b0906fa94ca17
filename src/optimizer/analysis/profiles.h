/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_PROFILES_H
#define TIERCE_OPTIMIZER_PROFILES_H

#include <stdbool.h>
#include <stddef.h>

#include <tierce/status.h>

/*
 * Profiles of models, GPUs and tiers. Each number has a mark that gives its source.
 *
 *     tierce__profiles_init(&profiles);                                   // those of profiles.def
 *     rc = tierce__profiles_set(&profiles, TIERCE__PROFILE_GPU, "h100", "price", "2.1",
 *                               TIERCE__MARK_GIVEN, why);
 *     rc = tierce__model_read(&model, &profiles, "llama-3.1-8b", why);
 *     rc = tierce__model_read(&model, &profiles, "bytes=131072,params=8e9", why);
 *     rc = tierce__gpu_read(&gpu, &profiles, "h100,mfu=0.5", why);
 *
 * Threads: any; one at a time for each set of profiles.
 */

enum tierce__mark {
    TIERCE__MARK_PLACEHOLDER, /* only the order of magnitude is right */
    TIERCE__MARK_CONFIG,      /* the model's public configuration */
    TIERCE__MARK_DATA_SHEET,  /* the maker's */
    TIERCE__MARK_REPORTED,    /* reported by others */
    TIERCE__MARK_GIVEN,       /* by the user */
    TIERCE__MARK_MEASURED,    /* measured by tierce bench on some machine */
    TIERCE__MARKS,
};

/* "placeholder", "public config", ... */
const char *tierce__mark_text(enum tierce__mark mark);

struct tierce__figure {
    double value;
    enum tierce__mark mark;
};

#define TIERCE__PROFILE_NAME_BYTES 64u
#define TIERCE__PROFILE_WHY_BYTES  512u

struct tierce__model_profile {
    char name[TIERCE__PROFILE_NAME_BYTES]; /* "given" if the name is unknown */
    const char *source;                    /* of the public configuration, or NULL */
    struct tierce__figure bytes;           /* of KV a token, all layers */
    struct tierce__figure params;          /* that a token passes, without the input embedding */
    struct tierce__figure layers;       /* 0: attention costs nothing, and loads do not overlap */
    struct tierce__figure heads;        /* of queries, in a layer */
    struct tierce__figure qk_dim;       /* of a query or key in a head */
    struct tierce__figure v_dim;        /* of a value in a head */
    struct tierce__figure weight_bytes; /* of a parameter; 1: computed in fp8, where the GPU can */
};

struct tierce__gpu {
    char name[TIERCE__PROFILE_NAME_BYTES];
    struct tierce__figure flops;     /* FLOP/s in bf16, dense */
    struct tierce__figure flops_fp8; /* 0: it has none */
    struct tierce__figure bandwidth; /* bytes/s of its memory; 0: unlimited */
    struct tierce__figure memory;    /* bytes; 0: not known */
    struct tierce__figure price;     /* dollars an hour */
    struct tierce__figure mfu;       /* the share of the peak that prefill reaches */
    struct tierce__figure count;     /* that compute one request together */
};

struct tierce__storage_profile {
    char name[TIERCE__PROFILE_NAME_BYTES];
    struct tierce__figure price;     /* dollars a GB, 10^9 bytes */
    struct tierce__figure years;     /* until it is replaced */
    struct tierce__figure bandwidth; /* bytes/s of loads to one request */
    struct tierce__figure latency;   /* seconds until the first byte of a load */
    struct tierce__figure
        writes; /* how many times its whole capacity can be written; 0: no limit */
};

/* The fields of a profile, for parsing and for lists, in the order of the struct. */
struct tierce__profile_key {
    const char *name;
    size_t offset; /* of the struct tierce__figure */
    const char *unit;
    double least, most;
    bool is_needed; /* the default if the name is unknown */
    double usual;   /* the default if it is optional and not given: a placeholder */
};

extern const struct tierce__profile_key tierce__model_keys[];   /* end with a NULL name */
extern const struct tierce__profile_key tierce__gpu_keys[];     /* the same */
extern const struct tierce__profile_key tierce__storage_keys[]; /* the same */

enum tierce__profile_kind {
    TIERCE__PROFILE_MODEL,
    TIERCE__PROFILE_GPU,
    TIERCE__PROFILE_STORAGE,
};

#define TIERCE__PROFILES_MAX 32u /* of a kind */

/* The profiles by name. */
struct tierce__profiles {
    struct tierce__model_profile models[TIERCE__PROFILES_MAX];
    struct tierce__gpu gpus[TIERCE__PROFILES_MAX];
    struct tierce__storage_profile storages[TIERCE__PROFILES_MAX];
    size_t counts[3]; /* by enum tierce__profile_kind */
};

void tierce__profiles_init(struct tierce__profiles *out);

/*
 * Sets a figure by name and key, ignoring case; an unknown name creates a profile. Numbers are like
 * 8e9, 0.45, 40GB. TIERCE_E_ARGUMENT: `why` is a sentence (no such key, with the nearest; out of
 * range; too many names, or too long a one).
 */
TIERCE_MUSTUSE int tierce__profiles_set(struct tierce__profiles *profiles,
                                        enum tierce__profile_kind kind, const char *name,
                                        const char *key, const char *value, enum tierce__mark mark,
                                        char why[TIERCE__PROFILE_WHY_BYTES]);

/* Parses NAME, NAME,KEY=VALUE,... or KEY=VALUE,...; keys without a default must be given unless the
 * name's profile has them. TIERCE_E_ARGUMENT: *out is untouched and `why` a sentence, which
 * suggests the nearest name for an unknown one. */
TIERCE_MUSTUSE int tierce__model_read(struct tierce__model_profile *out,
                                      const struct tierce__profiles *profiles, const char *text,
                                      char why[TIERCE__PROFILE_WHY_BYTES]);
TIERCE_MUSTUSE int tierce__gpu_read(struct tierce__gpu *out,
                                    const struct tierce__profiles *profiles, const char *text,
                                    char why[TIERCE__PROFILE_WHY_BYTES]);
TIERCE_MUSTUSE int tierce__storage_read(struct tierce__storage_profile *out,
                                        const struct tierce__profiles *profiles, const char *text,
                                        char why[TIERCE__PROFILE_WHY_BYTES]);

#endif
