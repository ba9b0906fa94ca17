/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_CONFIG_H
#define TIERCE_ENGINE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/config.h>

#include "base/config/config.h"

/*
 * The engine's parameters (engine_params.def) and how its own code reads them: by row, with the
 * row's type. Reading with another type than the row's is a bug and panics.
 *
 * Thread: any, while no thread sets a value.
 */

enum tierce__engine_param {
#define TIERCE_PARAM(row, name, type, fallback, min, max, choices, text) TIERCE__ENGINE_##row,
#include "engine/engine_params.def"
#undef TIERCE_PARAM
    TIERCE__ENGINE_PARAMS
};

/* The table, TIERCE__ENGINE_PARAMS rows. Constant storage. */
const struct tierce__param *tierce__engine_params(void);

/* SIZE (bytes), COUNT, DURATION (milliseconds). */
uint64_t tierce__engine_number(const struct tierce_config *config, enum tierce__engine_param param);
/* SHARE: 0 .. 1. */
double tierce__engine_share(const struct tierce_config *config, enum tierce__engine_param param);
bool tierce__engine_bool(const struct tierce_config *config, enum tierce__engine_param param);
/* TEXT and CHOICE; [borrow until the next set or load]. */
const char *tierce__engine_text(const struct tierce_config *config,
                                enum tierce__engine_param param);

/* The origin of the value: "default", or as in messages. [borrow until the next set] */
const char *tierce__engine_source(const struct tierce_config *config,
                                  enum tierce__engine_param param);

/* tierce_config_set with an origin for messages and print ("--memory.size"). */
TIERCE_MUSTUSE int tierce__engine_config_set(struct tierce_config *config, const char *name,
                                             const char *value, const char *source,
                                             char why[TIERCE_CONFIG_ERROR_BYTES]);

/* For a program that ends without a usable disk.path, after it has opened the engine: the engine's
 * event says so, and not that chunks are kept in memory. Default: false. */
void tierce__engine_config_require_disk(struct tierce_config *config, bool is_required);
/* Whether DISK_ENCRYPTION or REMOTE_ENCRYPTION, which `param` names, is set. */
bool tierce__engine_encrypts(const struct tierce_config *config, enum tierce__engine_param param);
bool tierce__engine_requires_disk(const struct tierce_config *config);
/* Rules that one parameter's bounds cannot state: at most one source of keys, and one if the engine
 * encrypts; sizes that are 0 or at least 1MiB. Errors: TIERCE_E_CONFIG, `why` in words. */
TIERCE_MUSTUSE int tierce__engine_config_check(const struct tierce_config *config,
                                               char why[TIERCE_CONFIG_ERROR_BYTES]);

#endif
