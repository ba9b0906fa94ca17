/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_DOCTOR_H
#define TIERCE_CLI_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <tierce/status.h>

/*
 * Sets of namespace fields, which `tierce doctor` compares. A store folder gives one complete set
 * for each of its namespaces. A description or a configuration gives one set with the fields in the
 * file; fields that only the engine knows are missing.
 *
 * The number of blocks of a chunk is compared as "chunk_tokens", which every kind of source knows.
 */

#define TIERCE__DOCTOR_FIELDS_MAX 72
#define TIERCE__DOCTOR_WHY_BYTES  512
#define TIERCE__DOCTOR_LOSSY      "tierce-" /* begins the field "quantization" of lossy KV */

struct tierce__doctor_field {
    char *name;
    char *value;
};

struct tierce__doctor_set {
    char title[160];   /* its source, for messages */
    bool complete;     /* has every field of the namespace */
    bool raw_model;    /* the model is the file of its folder, not an engine's version of it */
    bool shared;       /* found equal to a set of the other side */
    char *remote_urls; /* of a configuration, as are the two below; NULL: none */
    /* memory.policy, disk.policy, disk.codec and remote.codec, if they are plug-ins; or NULL */
    char *plugins[4];
    bool gpu_direct;  /* of a configuration: disk.gpu_direct is set */
    bool names_codec; /* a configuration: its field "quantization" is "tierce-" and codec.lossy, or
                         empty; that of a namespace may continue, or be another kind */
    size_t count;
    struct tierce__doctor_field fields[TIERCE__DOCTOR_FIELDS_MAX];
};

struct tierce__doctor_side {
    size_t count;
    struct tierce__doctor_set *sets; /* [count] */
};

/* Names that every namespace has, in the order of its text; NULL-terminated. */
extern const char *const tierce__doctor_names[];

/*
 * Reads one argument of the command. Errors, *out untouched: TIERCE_E_CONFIG, TIERCE_E_FORMAT,
 * negative errno, -ENOMEM; `why` gets a sentence each time. The caller clears *out.
 */
TIERCE_MUSTUSE int tierce__doctor_read(struct tierce__doctor_side *out, const char *path,
                                       char why[TIERCE__DOCTOR_WHY_BYTES]);

/* Zeroed is accepted. */
void tierce__doctor_clear(struct tierce__doctor_side *side);

/* The value of a field, or NULL. */
const char *tierce__doctor_find(const struct tierce__doctor_set *set, const char *name);

/* Adds a field, or replaces the value of one; copies both. Errors: -ENOMEM, TIERCE_E_LIMIT. */
TIERCE_MUSTUSE int tierce__doctor_put(struct tierce__doctor_set *set, const char *name,
                                      const char *value);

/* Fills `set` from a YAML file: a description, or a configuration. Errors as doctor_read's. */
TIERCE_MUSTUSE int tierce__doctor_read_yaml(struct tierce__doctor_set *set, const char *path,
                                            char why[TIERCE__DOCTOR_WHY_BYTES]);

/* Receives one value that differs, by dotted path; NULL if one side lacks the value. */
typedef void tierce__doctor_diff_fn(void *arg, const char *path, const char *a, const char *b);

/* A model's configuration as JSON text. An engine keeps more than the model's own file holds
 * (defaults, its own settings around it) and drops irrelevant fields. */
struct tierce__doctor_model {
    const char *json;
    bool raw; /* the model's own file */
};

/*
 * Compares two models value by value; numbers by value, the order of keys does not count. If only
 * one side is raw, only the fields that both have are compared. Returns the number of differences,
 * TIERCE_E_FORMAT if one is not JSON, or -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__doctor_diff_models(const struct tierce__doctor_model *a,
                                              const struct tierce__doctor_model *b,
                                              tierce__doctor_diff_fn *fn, void *arg);

/* Whether a text is JSON. */
bool tierce__doctor_is_json(const char *text);

#endif
