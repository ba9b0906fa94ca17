/* SPDX-License-Identifier: Apache-2.0 */
/* The example of a store in Python, by its file and by a module; or another one, where
 * TIERCE_PYTHON_STORE has what stands behind "python://". */
#include "conformance/connector_conformance.h"
#include "plugin_file.h"

static struct plugin_file file;
static char data[40];

static bool start_example(char *url, size_t room, void *ctx)
{
    plugin_file_make(&file, TIERCE_PYTHON_EXAMPLE "/folder_store.py");
    snprintf(data, sizeof(data), "/tmp/tierce-python-XXXXXX");
    temp_folder_make(data);
    snprintf(url, room, "python://%s:FolderStore?python=" TIERCE_PYTHON "&folder=%s%s", file.path,
             data, (const char *)ctx);
    return true;
}

static bool start_module(char *url, size_t room, void *ctx)
{
    if (setenv("PYTHONPATH", TIERCE_PYTHON_EXAMPLE ":" TIERCE_PYTHON_STORES, 1) != 0)
        return false;
    snprintf(data, sizeof(data), "/tmp/tierce-python-XXXXXX");
    temp_folder_make(data);
    snprintf(url, room, "python://python_stores/WholeStore?python=" TIERCE_PYTHON "&folder=%s%s",
             data, (const char *)ctx);
    return true;
}

static void stop_example(void *ctx)
{
    (void)ctx;
    temp_folder_remove(data);
    if (file.path[0] != '\0')
        plugin_file_remove(&file);
}

static bool start_other(char *url, size_t room, void *ctx)
{
    snprintf(url, room, "python://%s", (const char *)ctx);
    return true;
}

static void stop_other(void *ctx)
{
    (void)ctx;
}

/* Another store may have other capabilities. */
static unsigned caps_of(const char *where)
{
    char url[1024], why[TIERCE__CONNECTOR_WHY_BYTES];
    struct tierce__connector *connector;
    struct tierce__pool *pool = connector_pool();
    snprintf(url, sizeof(url), "python://%s", where);
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

static char plain[] = "", many[] = "&connections=9&timeout=60s";

int main(void)
{
    struct connector_factory factories[] = {
        {.name = "example",
         .start = start_example,
         .stop = stop_example,
         .ctx = plain,
         .has_lengths = true,
         .caps = TIERCE__CONNECTOR_RANGES},
        {.name = "whole objects",
         .start = start_module,
         .stop = stop_example,
         .ctx = many,
         .is_twin = true,
         .caps = TIERCE__CONNECTOR_TELLS_LENGTH},
    };
    char *other = getenv("TIERCE_PYTHON_STORE");
    if (other == NULL)
        return connector_conformance_main(factories, 2);
    factories[0] = (struct connector_factory){.name = "other",
                                              .start = start_other,
                                              .stop = stop_other,
                                              .ctx = other,
                                              .caps = caps_of(other)};
    return connector_conformance_main(factories, 1);
}
