/* SPDX-License-Identifier: Apache-2.0 */
/* The example of a plug-in; or another one, where TIERCE_PLUGIN has what stands behind
 * "plugin://". */
#include "conformance/connector_conformance.h"
#include "plugin_file.h"

static struct plugin_file file;

static bool start_example(char *url, size_t room, void *ctx)
{
    plugin_file_make(&file, TIERCE_PLUGIN_MEMORY);
    snprintf(url, room, "plugin://%s%s", file.path, (const char *)ctx);
    return true;
}

static void stop_example(void *ctx)
{
    (void)ctx;
    plugin_file_remove(&file);
}

static bool start_other(char *url, size_t room, void *ctx)
{
    snprintf(url, room, "plugin://%s", (const char *)ctx);
    return true;
}

static void stop_other(void *ctx)
{
    (void)ctx;
}

static char plain[] = "", capped[] = "?bytes=100000000&connections=2";

#define CAPS (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS)

/* Another plug-in may have other capabilities. */
static unsigned caps_of(const char *where)
{
    char url[1024], why[TIERCE__CONNECTOR_WHY_BYTES];
    struct tierce__connector *connector;
    struct tierce__pool *pool = connector_pool();
    snprintf(url, sizeof(url), "plugin://%s", where);
    int rc =
        tierce__connector_open(&connector, url,
                               &(struct tierce__connector_opts){
                                   .size = sizeof(struct tierce__connector_opts), .pool = pool},
                               why);
    if (rc != 0) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    unsigned caps = connector->caps;
    (void)connector->ops->close(connector, tierce__deadline_in_ms(10000));
    tierce__pool_destroy(pool);
    return caps;
}

int main(void)
{
    struct connector_factory factories[] = {
        {.name = "example",
         .start = start_example,
         .stop = stop_example,
         .ctx = plain,
         .caps = CAPS},
        {.name = "capped",
         .start = start_example,
         .stop = stop_example,
         .ctx = capped,
         .caps = CAPS},
    };
    char *other = getenv("TIERCE_PLUGIN");
    if (other == NULL)
        return connector_conformance_main(factories, 2);
    factories[0] = (struct connector_factory){.name = "other",
                                              .start = start_other,
                                              .stop = stop_other,
                                              .ctx = other,
                                              .caps = caps_of(other)};
    return connector_conformance_main(factories, 1);
}
