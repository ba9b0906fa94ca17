/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/text/url.h"

#include <stdio.h>
#include <string.h>

/* A URL: parsed parts lie within its text, and its printed form has no user and no password. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HIDDEN "Xhidd3nX"

static void check_shown(const char *text)
{
    char hiding[700], shown[800];
    const char *behind = strstr(text, "://");
    if (behind == NULL || behind[3] == '/')
        return;
    int before = (int)(behind + 3 - text);
    snprintf(hiding, sizeof(hiding), "%.*su:" HIDDEN "@%s", before, text, behind + 3);
    tierce__url_show(shown, sizeof(shown), hiding);
    TIERCE_ASSERT(strstr(shown, HIDDEN) == NULL || strstr(text, HIDDEN) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const known[] = {"ttl", "size", NULL};
    char text[512], why[TIERCE__URL_WHY_BYTES] = "";
    struct tierce__url url = {0};
    uint64_t value = 0;
    size_t bytes = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    check_shown(text);
    if (tierce__url_parse(&url, text, why) != 0) {
        TIERCE_ASSERT(url.text == NULL && why[0] != '\0');
        return 0;
    }
    TIERCE_ASSERT(strlen(url.path) <= bytes && url.host_count <= TIERCE__URL_HOSTS_MAX);
    for (size_t i = 0; i < url.host_count; i++)
        TIERCE_ASSERT(strlen(url.hosts[i].name) <= bytes);
    for (size_t i = 0; i < url.param_count; i++)
        TIERCE_ASSERT(tierce__url_param(&url, url.params[i].name) != NULL);
    int checked = tierce__url_check_params(&url, known, why);
    for (int kind = 0; kind < 3 && checked == 0; kind++) {
        int rc = tierce__url_param_number(
            &url, &value,
            &(struct tierce__url_number){"ttl", (enum tierce__url_kind)kind, 2, 1 << 20}, why);
        TIERCE_ASSERT(rc == TIERCE_E_CONFIG || value == 0 || (value >= 2 && value <= 1 << 20));
    }
    tierce__url_clear(&url);
    return 0;
}
