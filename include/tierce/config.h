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
 *     rc = tierce_engine_open(&engine, config, why);
 *     tierce_config_destroy(config);                  // the engine does not need it any more
 *
 * Values are text: sizes "8GiB", "1GB" or bytes; durations "250ms", "5s", "2min", "1h" or
 * milliseconds; shares "0.5" or "50%"; "true" or "false". A value is checked when it is set. Rules
 * that concern several parameters are checked when an engine is opened.
 *
 * Thread: one at a time.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Room for an error message and its NUL; a longer message is cut. */
#define TIERCE_CONFIG_ERROR_BYTES 512

struct tierce_config;

/* A configuration that holds the defaults. It reads neither a file nor the environment. [transfer]
 * *out to the caller, who destroys it. Errors, *out untouched: -ENOMEM. Does not block. */
TIERCE_API TIERCE_MUSTUSE int tierce_config_create(struct tierce_config **out);

/* NULL is accepted. Engines opened with it are not affected. */
TIERCE_API void tierce_config_destroy(struct tierce_config *config);

/*
 * Reads a YAML file: nested mappings ("memory:" with "size: 8GiB" below it) or dotted names
 * ("memory.size: 8GiB"). Logs the event config_file_readable if the file has passwords that other
 * users can read.
 *
 * On failure of this and the next two calls, `why` gets a sentence that names the invalid value and
 * the accepted ones; `why` is untouched on success. Values that were read before the invalid one
 * stay set, so do not open an engine with the configuration after a failure.
 * Errors: TIERCE_E_CONFIG, negative errno (the file cannot be read), -ENOMEM. A retry helps only
 * after the file was changed. Blocks on the file.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_config_load_file(struct tierce_config *config,
                                                      const char *path,
                                                      char why[TIERCE_CONFIG_ERROR_BYTES]);

/*
 * Reads the environment of the process: TIERCE_MEMORY_SIZE sets memory.size. Rejects names with
 * the prefix TIERCE_ that name no parameter, except TIERCE_CONFIG, TIERCE_VENV, and those of the
 * manager (TIERCE_MANAGER_*), the node (TIERCE_NODE_*) and the tests (TIERCE_TEST_*). Does not read
 * the file that TIERCE_CONFIG names: the program does. Errors: TIERCE_E_CONFIG, -ENOMEM.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_config_load_env(struct tierce_config *config,
                                                     char why[TIERCE_CONFIG_ERROR_BYTES]);

/* Sets one parameter. [borrow] name and value for the call. Errors, the parameter unchanged:
 * TIERCE_E_CONFIG, -ENOMEM. Does not block. */
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
