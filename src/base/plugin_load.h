/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_PLUGIN_LOAD_H
#define TIERCE_BASE_PLUGIN_LOAD_H

#include <tierce/plugin.h>

#include "base/text/url.h"

/*
 * The part of loading that all kinds of plug-ins share: the file of a plugin:// URL, the symbol
 * that returns the table, and the version and size at the beginning of the table.
 *
 * Thread: any; blocks on the file system.
 */

struct tierce__plugin_kind {
    const char *symbol; /* const TABLE *symbol(void) */
    const char *header; /* for messages: "plugin.h" */
    uint32_t version;
    uint32_t size; /* of the table, at least */
};

/* *object: ended with dlclose; *table: valid until then. Errors, `why` in words: TIERCE_E_CONFIG.
 */
TIERCE_MUSTUSE int tierce__plugin_load(void **object, const void **table,
                                       const struct tierce__url *url,
                                       const struct tierce__plugin_kind *kind,
                                       char why[TIERCE__URL_WHY_BYTES]);

/* Writes "plug-in PATH: WHAT" to `why`. Returns TIERCE_E_CONFIG. */
int tierce__plugin_refuse(char why[TIERCE__URL_WHY_BYTES], const char *path, const char *what);

/* The parameters of the URL except `own`, which may be NULL. Errors: TIERCE_E_CONFIG (a parameter
 * is given twice). */
TIERCE_MUSTUSE int tierce__plugin_params(struct tierce_plugin_param params[TIERCE__URL_PARAMS_MAX],
                                         size_t *count, const struct tierce__url *url,
                                         const char *own, char why[TIERCE__URL_WHY_BYTES]);

#endif
