/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/connector.h"
#include "connector/connector_private.h"

#include <stdio.h>
#include <string.h>

static const struct scheme {
    const char *name;
    tierce__connector_open_fn *open;
} schemes[] = {
#define TIERCE_CONNECTOR(scheme, name) {scheme, tierce__##name##_open},
#include "connector/connectors.def"
#undef TIERCE_CONNECTOR
};

#define SCHEME_COUNT (sizeof(schemes) / sizeof(*schemes))

static const struct scheme *find_scheme(const char *name)
{
    for (size_t i = 0; i < SCHEME_COUNT; i++) {
        if (strcmp(schemes[i].name, name) == 0)
            return &schemes[i];
    }
    return NULL;
}

/* `name` NULL: the URL has none. */
static int refuse_scheme(const char *name, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    size_t room = TIERCE__CONNECTOR_WHY_BYTES;
    int used = name == NULL ? snprintf(why, room, "a URL begins with one of")
                            : snprintf(why, room, "no connector for %.32s://; there are", name);
    for (size_t i = 0; i < SCHEME_COUNT && (size_t)used < room; i++)
        used += snprintf(why + used, room - (size_t)used, "%s %s://", i > 0 ? "," : "",
                         schemes[i].name);
    return TIERCE_E_CONFIG;
}

int tierce__connector_open(struct tierce__connector **out, const char *url,
                           const struct tierce__connector_opts *opts,
                           char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__url parsed = {0};
    char store_name[TIERCE__CONNECTOR_WHY_BYTES / 2];
    why[0] = '\0';
    if (strstr(url, "://") == NULL)
        return refuse_scheme(NULL, why);
    int rc = tierce__url_parse(&parsed, url, why);
    if (rc != 0)
        return rc;
    const struct scheme *scheme = find_scheme(parsed.scheme);
    tierce__url_store_name(store_name, sizeof(store_name), url);
    const struct tierce__connector_source source = {
        .url = &parsed, .text = url, .store_name = store_name, .opts = opts};
    rc = scheme != NULL ? scheme->open(out, &source, why) : refuse_scheme(parsed.scheme, why);
    if (rc != 0 && why[0] == '\0')
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", tierce_strerror(rc));
    tierce__url_clear(&parsed);
    return rc;
}
