/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_programs.h"
#include "base/alloc.h"
#include "base/trusted_path.h"
#include "engine/engine_config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int take_program(const char *path, tierce__engine_text_fn *each, void *arg,
                        char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char real[PATH_MAX], words[TIERCE__URL_WHY_BYTES];
    if (path[0] != '/') {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES,
                 "plugins.start: %.120s: the path of a program must be absolute", path);
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__trusted_path(real, "plugins.start:", path, words);
    if (rc < 0) {
        snprintf(why, TIERCE_CONFIG_ERROR_BYTES, "%s", words);
        return rc;
    }
    return each(arg, real, "");
}

int tierce__engine_programs(const struct tierce_config *config, tierce__engine_text_fn *each,
                            void *arg, char why[TIERCE_CONFIG_ERROR_BYTES])
{
    char *paths = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_PLUGINS_START));
    char *rest = paths;
    int rc = paths != NULL ? 0 : -ENOMEM;
    for (const char *path; rc == 0 && (path = strtok_r(rest, " \t\r\n", &rest)) != NULL;)
        rc = take_program(path, each, arg, why);
    tierce__free(paths);
    return rc;
}

int tierce__engine_settings(const struct tierce_config *config, tierce__engine_text_fn *each,
                            void *arg)
{
    int rc = 0;
    for (size_t row = 0; row < TIERCE__ENGINE_PARAMS && rc == 0; row++) {
        const char *name = tierce__engine_params()[row].name;
        char *shown = tierce__url_show_all(tierce_config_get(config, name));
        rc = shown != NULL ? each(arg, name, shown) : -ENOMEM;
        tierce__free(shown);
    }
    return rc;
}
