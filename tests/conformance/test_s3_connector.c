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

/* Each test has a bucket of its own, which is named for its process. */
static char bucket[32];

static bool make_bucket(void)
{
    snprintf(bucket, sizeof(bucket), "kv-cache-%d", (int)getpid());
    return s3_make_bucket(&server, bucket);
}

static bool start(char *url, size_t room, void *ctx)
{
    (void)url;
    (void)room;
    (void)ctx;
    return s3_start(&server);
}

static bool renew_path(char *url, size_t room, void *ctx)
{
    if (!make_bucket())
        return false;
    snprintf(url, room, "s3://%s:%s@%s?endpoint=http://127.0.0.1:%u%s", S3_ACCESS, S3_SECRET_IN_URL,
             bucket, (unsigned)server.port, (const char *)ctx);
    return true;
}

/* Credentials of a file, a prefix, and bodies that are signed too. */
static bool start_prefix(char *url, size_t room, void *ctx)
{
    return start(url, room, ctx) && s3_write_credentials(&server, "kv");
}

static bool renew_prefix(char *url, size_t room, void *ctx)
{
    if (!make_bucket())
        return false;
    snprintf(url, room,
             "s3://%s/a/b=c?endpoint=http://localhost:%u&credentials_file=%s/credentials&"
             "profile=kv&payload=signed%s",
             bucket, (unsigned)server.port, server.dir, (const char *)ctx);
    return true;
}

static bool start_tls(char *url, size_t room, void *ctx)
{
    return start(url, room, ctx) && tls_front_start(&front, server.port);
}

static bool renew_tls(char *url, size_t room, void *ctx)
{
    if (!make_bucket())
        return false;
    snprintf(url, room, "s3://%s:%s@%s?endpoint=https://127.0.0.1:%u&ca_file=%s/ca.pem%s",
             S3_ACCESS, S3_SECRET_IN_URL, bucket, (unsigned)front.port, front.dir,
             (const char *)ctx);
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

/* "s3" lists more names than a page has, "s3 with a prefix" by all prefixes. */
static const struct connector_factory nanio[] = {
    {.name = "s3",
     .start = start,
     .renew = renew_path,
     .stop = stop,
     .ctx = plain,
     .caps = CAPS,
     .has_lengths = true,
     .exists = EXISTS,
     .prefixes = 3,
     .is_twin = true},
    {.name = "s3 in parts",
     .start = start,
     .renew = renew_path,
     .stop = stop,
     .ctx = parts,
     .caps = CAPS,
     .has_lengths = true,
     .exists = EXISTS,
     .listed = EXISTS,
     .prefixes = 3},
    {.name = "s3 with a prefix",
     .start = start_prefix,
     .renew = renew_prefix,
     .stop = stop,
     .ctx = few,
     .caps = CAPS,
     .has_lengths = true,
     .exists = EXISTS,
     .listed = EXISTS,
     .is_twin = true},
    {.name = "s3 by TLS",
     .start = start_tls,
     .renew = renew_tls,
     .stop = stop_tls,
     .ctx = parts,
     .caps = CAPS,
     .has_lengths = true,
     .exists = EXISTS,
     .listed = EXISTS,
     .prefixes = 3},
};

static const struct connector_factory other[] = {
    {.name = "another s3",
     .start = start_other,
     .stop = stop_other,
     .caps = CAPS,
     .has_lengths = true,
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
