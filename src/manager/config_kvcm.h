/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONFIG_KVCM_H
#define TIERCE_MANAGER_CONFIG_KVCM_H

#include "base/config/config.h"

/*
 * The configuration of Tair KVCache Manager: keys such as kvcm.service.rpc_port, in a file of "key
 * = value" lines, as arguments of -e, and in the environment under the same names, dots included. A
 * parameter of manager_params.def can be set there too, as tierce.NAME.
 *
 * As in KVCM, if any port is set, ports that are not set become 0.
 *
 * Thread: one at a time.
 */

struct tierce__kvcm_settings; /* an ordered set of keys, their values and sources */

/* NULL for no memory. */
struct tierce__kvcm_settings *tierce__kvcm_settings_create(void);
void tierce__kvcm_settings_destroy(struct tierce__kvcm_settings *settings);

/* Later calls override earlier ones. Errors with `error` filled: TIERCE_E_CONFIG (a line without
 * '='), negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__kvcm_settings_load_file(struct tierce__kvcm_settings *settings,
                                                   const char *path,
                                                   struct tierce__config_error *error);

/* The same for bytes in memory, [borrow] for the call; errors name the source `name`. */
TIERCE_MUSTUSE int tierce__kvcm_settings_load_text(struct tierce__kvcm_settings *settings,
                                                   const char *name, const char *text,
                                                   struct tierce__config_error *error);

/* Adds one "key=value" of -e. If a key is repeated, the first value is used. */
TIERCE_MUSTUSE int tierce__kvcm_settings_set(struct tierce__kvcm_settings *settings,
                                             const char *pair, struct tierce__config_error *error);

/* The variables kvcm.*, KVCM_LOG_LEVEL and KVCM_LOG_TO_CONSOLE. */
TIERCE_MUSTUSE int tierce__kvcm_settings_load_env(struct tierce__kvcm_settings *settings,
                                                  char *const *env,
                                                  struct tierce__config_error *error);

/* Applies the settings to a configuration of manager_params.def. Appends a line to *warnings (NULL
 * or heap) for each key that is unknown or has no effect here. Errors: as tierce__config_set. */
TIERCE_MUSTUSE int tierce__kvcm_settings_apply(const struct tierce__kvcm_settings *settings,
                                               struct tierce__config *values, char **warnings,
                                               struct tierce__config_error *error);

#endif
