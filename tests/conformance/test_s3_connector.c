/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Against a real server of S3 that checks signatures: nanio, from PyPI; or against any other one:
 * TIERCE_TEST_S3 is the URL of an empty bucket, TIERCE_TEST_S3_EMPTY a command that empties it.
 * tools/radosgw runs these tests against Ceph's.
 */
#include "conformance/connector_conformance.h"
#include "s3_server.h"
#include "tls_front.h"

#include <stdlib.h>

static struct s3_server server;
static struct tls_front front;

static bool start_path(char *url, size_t room, void *ctx)
{
    if (!s3_start(&server))
        return false;
    snprintf(url, room, "s3://%s:%s@kv-cache?endpoint=http://127.0.0.1:%u%s", S3_ACCESS,
             S3_SECRET_IN_URL, (unsigned)server.port, (const char *)ctx);
    return true;
}

/* Credentials of a file, a prefix, and bodies that are signed too. */
static bool start_prefix(char *url, size_t room, void *ctx)
{
    if (!s3_start(&server) || !s3_write_credentials(&server, "kv"))
        return false;
    snprintf(url, room,
             "s3://kv-cache/a/b=c?endpoint=http://localhost:%u&credentials_file=%s/credentials&"
             "profile=kv&payload=signed%s",
             (unsigned)server.port, server.dir, (const char *)ctx);
    return true;
}

static bool start_tls(char *url, size_t room, void *ctx)
{
    if (!s3_start(&server) || !tls_front_start(&front, server.port))
        return false;
    snprintf(url, room, "s3://%s:%s@kv-cache?endpoint=https://127.0.0.1:%u&ca_file=%s/ca.pem%s",
             S3_ACCESS, S3_SECRET_IN_URL, (unsigned)front.port, front.dir, (const char *)ctx);
    return true;
}

static void stop_tls(void *ctx)
{
    (void)ctx;
    tls_front_stop(&front);
    s3_stop(&server);
}

/* A server that is there already: its bucket is emptied. */
static bool start_other(char *url, size_t room, void *ctx)
{
    char *command = getenv("TIERCE_TEST_S3_EMPTY");
    (void)ctx;
    snprintf(url, room, "%s", getenv("TIERCE_TEST_S3"));
    return command == NULL || system(command) == 0;
}

static void stop(void *ctx)
{
    (void)ctx;
    s3_stop(&server);
}

static void stop_other(void *ctx)
{
    (void)ctx;
}

#define CAPS   (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS)
#define EXISTS 60u /* more than connections */

/* As long as it takes until forty connections have shaken hands beside other tests. */
#define PATIENT "&timeout_ms=60000"
static char plain[] = PATIENT, few[] = PATIENT "&connections=2",
            parts[] = PATIENT "&part=5MiB&connections=40";

static const struct connector_factory nanio[] = {
    {.name = "s3", .start = start_path, .stop = stop, .ctx = plain, .caps = CAPS, .exists = EXISTS},
    {.name = "s3 in parts",
     .start = start_path,
     .stop = stop,
     .ctx = parts,
     .caps = CAPS,
     .exists = EXISTS},
    {.name = "s3 with a prefix",
     .start = start_prefix,
     .stop = stop,
     .ctx = few,
     .caps = CAPS,
     .exists = EXISTS},
    {.name = "s3 by TLS",
     .start = start_tls,
     .stop = stop_tls,
     .ctx = parts,
     .caps = CAPS,
     .exists = EXISTS},
};

static const struct connector_factory other[] = {
    {.name = "another s3",
     .start = start_other,
     .stop = stop_other,
     .caps = CAPS,
     .exists = EXISTS},
};

int main(void)
{
    if (getenv("TIERCE_TEST_S3") != NULL)
        return connector_conformance_main(other, 1);
    if (!s3_is_there()) {
        printf("no nanio (tools/requirements-test.txt)\n");
        return 77;
    }
    return connector_conformance_main(nanio, sizeof(nanio) / sizeof(nanio[0]));
}
