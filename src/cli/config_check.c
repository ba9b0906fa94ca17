/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/config_check.h"
#include "base/alloc.h"
#include "base/text/url.h"
#include "cli/cli.h"
#include "engine/engine_config.h"
#include "engine/remotes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool has_connector(const char *scheme)
{
    static const char *const schemes[] = {
#define TIERCE_CONNECTOR(scheme, name) scheme,
#include "store/remote/connectors.def"
#undef TIERCE_CONNECTOR
    };
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strcmp(schemes[i], scheme) == 0)
            return true;
    }
    return false;
}

int tierce__cli_check_url(const char *text, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const struct tierce__connector_opts opts = {.size = sizeof(opts)};
    struct tierce__connector *connector;
    struct tierce__url url = {0};
    int rc = strstr(text, "://") != NULL ? tierce__url_parse(&url, text, why) : 0;
    /* Without a known scheme nothing is opened: this names the schemes. */
    if (rc == 0 && (url.scheme == NULL || !has_connector(url.scheme)))
        rc = tierce__connector_open(&connector, text, &opts, why);
    tierce__url_clear(&url);
    return rc;
}

static int check_remotes(const char *command, const struct tierce_config *config)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES] = "";
    char *urls = tierce__strdup(tierce__engine_text(config, TIERCE__ENGINE_REMOTE_URLS));
    if (urls == NULL)
        return tierce__cli_fail(command, "%s", tierce_strerror(-ENOMEM));
    char *rest = urls, *url;
    size_t count = 0;
    int rc = 0;
    while (rc == 0 && (url = strtok_r(rest, " \t\r\n", &rest)) != NULL) {
        if (count++ < TIERCE__REMOTES_MAX) {
            rc = tierce__cli_check_url(url, why);
        } else {
            rc = TIERCE_E_CONFIG;
            snprintf(why, sizeof(why), "there are more than %u", TIERCE__REMOTES_MAX);
        }
    }
    tierce__free(urls);
    if (rc == 0)
        return TIERCE__CLI_OK;
    (void)tierce__cli_fail(command, "remote.urls, number %zu: %s", count, why);
    return rc == TIERCE_E_CONFIG ? TIERCE__CLI_USAGE : TIERCE__CLI_FAILED;
}

/* Rules over several parameters, without which no engine opens, or vLLM does not start. */
static int check_rules(const char *command, const struct tierce_config *config)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    bool is_lossy = strcmp(tierce__engine_text(config, TIERCE__ENGINE_CODEC_LOSSY), "none") != 0;
    if (tierce__engine_config_check(config, why) < 0)
        return tierce__cli_usage(command, "%s", why);
    if (is_lossy && tierce__engine_text(config, TIERCE__ENGINE_CODEC_QUALITY)[0] == '\0')
        return tierce__cli_usage(command,
                                 "codec.lossy requires codec.quality; measure the model with "
                                 "tools/kv_quality.py --quality FILE and name the file");
    return TIERCE__CLI_OK;
}

int tierce__cli_check_config(const char *command, const struct tierce_config *config)
{
    int status = check_remotes(command, config);
    return status == TIERCE__CLI_OK ? check_rules(command, config) : status;
}
