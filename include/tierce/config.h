/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONFIG_H
#define TIERCE_CONFIG_H

#include <stddef.h>
#include <stdio.h>

#include <tierce/status.h>

/*
 * The configuration of an engine. Sources, later ones win: defaults, a YAML file, TIERCE_*
 * environment variables, single values. docs/using/ref/config.md lists the parameters. An unknown
 * name is rejected, and the error suggests the nearest known name.
 *
 *     struct tierce_config *config;
 *     char why[TIERCE_CONFIG_ERROR_BYTES];
 *     rc = tierce_config_create(&config);
 *     rc = tierce_config_load_file(config, "tierce.yaml", why);
 *     rc = tierce_config_set(config, "memory.size", "8GiB", why);
 *
 * Thread: one at a time.
 */

#ifdef __cplusplus
extern "C" {
#endif

#define TIERCE_CONFIG_ERROR_BYTES 512

struct tierce_config;

/* The defaults. The caller owns *out. Errors: -ENOMEM. */
TIERCE_API TIERCE_MUSTUSE int tierce_config_create(struct tierce_config **out);

/* NULL is accepted. Engines opened with it are not affected. */
TIERCE_API void tierce_config_destroy(struct tierce_config *config);

/*
 * Reads a file, the process's environment, or one value. On failure `why` gets a sentence that
 * names the invalid value and the accepted ones. Errors: TIERCE_E_CONFIG, negative errno, -ENOMEM.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_config_load_file(struct tierce_config *config,
                                                      const char *path,
                                                      char why[TIERCE_CONFIG_ERROR_BYTES]);
TIERCE_API TIERCE_MUSTUSE int tierce_config_load_env(struct tierce_config *config,
                                                     char why[TIERCE_CONFIG_ERROR_BYTES]);
TIERCE_API TIERCE_MUSTUSE int tierce_config_set(struct tierce_config *config, const char *name,
                                                const char *value,
                                                char why[TIERCE_CONFIG_ERROR_BYTES]);

/* The effective value of a parameter as canonical text, [borrow until the next set or load];
 * NULL for an unknown name. */
TIERCE_API const char *tierce_config_get(const struct tierce_config *config, const char *name);

/* Writes the effective configuration as YAML with the origin of each value, without the users and
 * passwords of URLs. */
TIERCE_API void tierce_config_print(const struct tierce_config *config, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
