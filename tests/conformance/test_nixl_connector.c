/* SPDX-License-Identifier: Apache-2.0 */
/* Against NIXL's published library and its plug-ins POSIX and OBJ, the latter before a real server
 * of S3, nanio from PyPI. */
#include "conformance/connector_conformance.h"

#include "nixl_here.h"
#include "s3_server.h"
#include "temp_folder.h"

#include <stdlib.h>

/* ---- a folder -------------------------------------------------------------------------------- */

static char folder[64];

static bool start(char *url, size_t room, void *ctx)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-nixl-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return false;
    snprintf(url, room, "nixl://%s/store?library=%s", folder, (const char *)ctx);
    return true;
}

static void stop(void *ctx)
{
    (void)ctx;
    temp_folder_remove(folder);
}

/* ---- a bucket -------------------------------------------------------------------------------- */

static struct s3_server server;

static bool start_server(char *url, size_t room, void *ctx)
{
    (void)url;
    (void)room;
    (void)ctx;
    setenv("NIXL_LOG_LEVEL", "FATAL", 1);           /* it logs each missing object */
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1); /* asked for a region, although one is given */
    return s3_start(&server);
}

/* Each test has a bucket of its own, which is named for its process. */
static bool make_bucket(char *url, size_t room, void *ctx)
{
    char bucket[32];
    snprintf(bucket, sizeof(bucket), "kv-cache-%d", (int)getpid());
    if (!s3_make_bucket(&server, bucket))
        return false;
    snprintf(url, room,
             "s3+nixl://%s:%s@%s/a/b?endpoint=http://127.0.0.1:%u&timeout_ms=60000&library=%s",
             S3_ACCESS, S3_SECRET_IN_URL, bucket, (unsigned)server.port, (const char *)ctx);
    return true;
}

static void stop_server(void *ctx)
{
    (void)ctx;
    s3_stop(&server);
}

int main(void)
{
    const char *library = nixl_library();
    if (library == NULL) {
        printf("skipped: no NIXL (tools/setup python installs it)\n");
        return 77;
    }
    const struct connector_factory factories[] = {
        {.name = "nixl",
         .start = start,
         .stop = stop,
         .ctx = (char *)(uintptr_t)library,
         .caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS,
         .has_lengths = true,
         .exists = 20,
         .listed = 20,
         .prefixes = 3},
        {.name = "s3+nixl",
         .start = start_server,
         .renew = make_bucket,
         .stop = stop_server,
         .ctx = (char *)(uintptr_t)library,
         .caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS,
         .has_lengths = true,
         .exists = 20,
         .listed = 20,
         .prefixes = 3},
    };
    if (!s3_is_there())
        printf("skipped in part: no nanio (tools/requirements-test.txt)\n");
    return connector_conformance_main(factories, s3_is_there() ? 2 : 1);
}
