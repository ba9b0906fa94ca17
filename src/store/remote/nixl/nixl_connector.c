/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/nixl/nixl_connector.h"
#include "store/remote/file/file_connector.h"
#include "store/remote/links.h"
#include "store/remote/nixl/nixl_files.h"
#include "store/remote/nixl/nixl_objects.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINKS 8u

/* An agent has one transfer of one range. The plug-in's default is a queue of 9 MB for each. */
static const struct tierce__nixl_param params[] = {{"ios_pool_size", "64"}, /* its least */
                                                   {"kernel_queue_size", "16"}};

/* Agents for the library of a URL. */
static int open_agents(struct tierce__nixl_agents **out, const struct tierce__url *url,
                       uint8_t *memory, uint64_t bytes, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"library", "size", "fanout", "sweep", "connections", NULL};
    const struct tierce__nixl_agents_opts opts = {.size = sizeof(opts),
                                                  .library = tierce__url_param(url, "library"),
                                                  .plugin = "POSIX",
                                                  .params = params,
                                                  .param_count = sizeof(params) / sizeof(*params),
                                                  .memory = memory,
                                                  .memory_bytes = bytes};
    int rc = tierce__url_check_params(url, known, why);
    return rc == 0 ? tierce__nixl_agents_open(out, &opts, why) : rc;
}

static int open_nixl(void **out, struct tierce__client *own,
                     const struct tierce__connector_source *source,
                     char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__nixl_agents *agents = NULL;
    struct tierce__vfs *vfs = NULL;
    uint8_t *memory = NULL;
    uint64_t bytes = 0;
    tierce__pool_mapping(source->opts->pool, &memory, &bytes);
    int rc = open_agents(&agents, source->url, memory, bytes, why);
    if (rc == 0)
        rc = tierce__nixl_files_create(&vfs, agents);
    return rc == 0 ? tierce__file_open_with(out, own, source->url, vfs, why) : rc;
}

int tierce__nixl_check(const char *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__url parsed = {0};
    struct tierce__nixl_agents *agents = NULL;
    uint8_t memory[1];
    /* Callees do not set it if they lack memory. */
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", tierce_strerror(-ENOMEM));
    int rc = tierce__url_parse(&parsed, url, why);
    if (rc != 0)
        return rc;
    if (strcmp(parsed.scheme, TIERCE__NIXL_OBJECTS_SCHEME) == 0)
        rc = tierce__nixl_objects_check(&parsed, why);
    else
        rc = open_agents(&agents, &parsed, memory, sizeof(memory), why);
    tierce__nixl_agents_close(agents);
    tierce__url_clear(&parsed);
    return rc;
}

const struct tierce__client tierce__nixl_client = {
    .scheme = "nixl", .links = LINKS, .open = open_nixl};
