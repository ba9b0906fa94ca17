/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_PROGRAMS_H
#define TIERCE_ENGINE_PROGRAMS_H

#include <tierce/config.h>

/*
 * The programs of `plugins.start`, which an engine's adapter runs beside the engine, and what they
 * may know of its configuration.
 *
 * Thread: any, while no thread sets a value.
 */

/* Of a program: its path, resolved, and ""; of a parameter: its name, and its value without
 * credentials. Returns 0, or an error that ends the call. [borrow for the call] */
typedef int tierce__engine_text_fn(void *arg, const char *text, const char *value);

/* Calls `each` for every program. Errors: TIERCE_E_CONFIG, `why` in words (a path that is not
 * absolute, or a file that other users can write: base/trusted_path.h); those of `each`. */
TIERCE_MUSTUSE int tierce__engine_programs(const struct tierce_config *config,
                                           tierce__engine_text_fn *each, void *arg,
                                           char why[TIERCE_CONFIG_ERROR_BYTES]);

/* Calls `each` for every parameter. Errors: -ENOMEM; those of `each`. */
TIERCE_MUSTUSE int tierce__engine_settings(const struct tierce_config *config,
                                           tierce__engine_text_fn *each, void *arg);

#endif
