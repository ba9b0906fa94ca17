/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONFIG_KVCM_H
#define TIERCE_MANAGER_CONFIG_KVCM_H

#include "base/config.h"

/*
 * The configuration of Tair KVCache Manager: keys such as kvcm.service.rpc_port, in a file of
 * "key = value" lines, behind -e, and in the environment under the same names with their dots.
 * Any parameter of params.def can stand there too, as tierce.NAME.
 *
 * As in the original, a port that is not named is 0 as soon as another one is.
 *
 * Thread: one at a time.
 */

struct tierce__kvcm_settings; /* an ordered set of keys, values, and where they come from */

/* NULL for no memory. */
struct tierce__kvcm_settings *tierce__kvcm_settings_create(void);
void tierce__kvcm_settings_destroy(struct tierce__kvcm_settings *settings);

/* Later calls override earlier ones. Errors with `error` filled: TIERCE_E_CONFIG (a line without
 * '='), negative errno, -ENOMEM. */
TIERCE_MUSTUSE int tierce__kvcm_settings_load_file(struct tierce__kvcm_settings *settings,
                                                   const char *path,
                                                   struct tierce__config_error *error);

/* The same for bytes in memory, [borrow] for the call; `name` stands for the path. */
TIERCE_MUSTUSE int tierce__kvcm_settings_load_text(struct tierce__kvcm_settings *settings,
                                                   const char *name, const char *text,
                                                   struct tierce__config_error *error);

/* One "key=value" of -e. Of several with one key the first counts. */
TIERCE_MUSTUSE int tierce__kvcm_settings_set(struct tierce__kvcm_settings *settings,
                                             const char *pair, struct tierce__config_error *error);

/* The variables kvcm.*, KVCM_LOG_LEVEL and KVCM_LOG_TO_CONSOLE. */
TIERCE_MUSTUSE int tierce__kvcm_settings_load_env(struct tierce__kvcm_settings *settings,
                                                  char *const *env,
                                                  struct tierce__config_error *error);

/* Sets what the keys mean in a configuration of params.def. Appends a line for each key that is
 * not known or means nothing here to *warnings (NULL or heap). Errors: as tierce__config_set. */
TIERCE_MUSTUSE int tierce__kvcm_settings_apply(const struct tierce__kvcm_settings *settings,
                                               struct tierce__config *values, char **warnings,
                                               struct tierce__config_error *error);

#endif
