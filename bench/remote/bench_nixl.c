/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects to a folder and back, one at a time: by nixl://, by file:// in the same folder, and by
 * plain pwrite with fdatasync, and pread. Reads come from the page cache. The connectors write each
 * object to a new file, which they rename, and sync its folder; the plain side writes over a file.
 * Then objects by s3+nixl:// (bench_nixl_objects.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/bench.h"
#include "bench/remote/bench_peer.h"
#include "bench/remote/bench_calls.h"
#include "bench/remote/bench_nixl_objects.h"
#include "core/chunk/pool.h"
#include "store/remote/connector.h"

#define CALL_MS     60000u
#define ROUND_BYTES (64ull << 20) /* at most, and an eighth of the memory; at least an object */

/* Prints the path of NIXL's C library, or an empty line. */
static const char script[] =
    "import glob, importlib.util, os\n"
    "spec = importlib.util.find_spec('nixl_cu12')\n"
    "folder = os.path.dirname(os.path.dirname(spec.origin)) if spec else '/nothing'\n"
    "print(*glob.glob(folder + '/.nixl_cu12.mesonpy.libs/libnixl_capi.so'))\n";

struct nixl_bench {
    const struct tierce__bench *bench;
    uint64_t object_bytes;
    uint64_t objects; /* of a round */
    struct tierce__pool *pool;
    struct tierce__buf *buf;
    struct tierce__connector *nixl, *file;
    char dir[PATH_MAX];
    int plain; /* a file without a name */
};

struct nixl_side {
    struct nixl_bench *b;
    struct tierce__connector *connector; /* NULL: plain */
    bool is_write;
};

/* ---- sides ----------------------------------------------------------------------------------- */

static int move_object(const struct nixl_side *side, const char *name)
{
    struct nixl_bench *b = side->b;
    const struct tierce_plugin_name names = {.text = name, .bytes = strlen(name)};
    struct tierce__store_req req = {.op = side->is_write ? TIERCE__STORE_PUT : TIERCE__STORE_GET,
                                    .urgency = side->is_write ? TIERCE__CONNECTOR_STORE
                                                              : TIERCE__CONNECTOR_FETCH,
                                    .names = &names,
                                    .name_count = 1,
                                    .buf = b->buf,
                                    .length = b->object_bytes};
    int64_t ns = tierce__bench_calls_try(side->connector, &req, 1);
    return ns < 0 ? (int)ns : 0;
}

static int move_plain(const struct nixl_side *side)
{
    struct nixl_bench *b = side->b;
    for (uint64_t at = 0; at < b->object_bytes;) {
        size_t left = (size_t)(b->object_bytes - at);
        ssize_t moved = side->is_write ? pwrite(b->plain, b->buf->data + at, left, (off_t)at)
                                       : pread(b->plain, b->buf->data + at, left, (off_t)at);
        if (moved <= 0)
            return moved < 0 ? -errno : -EIO;
        at += (uint64_t)moved;
    }
    return side->is_write && fdatasync(b->plain) != 0 ? -errno : 0;
}

static int64_t run_side(void *arg)
{
    const struct nixl_side *side = arg;
    uint64_t start_ns = tierce__now_ns();
    for (uint64_t i = 0; i < side->b->objects; i++) {
        int rc = side->connector != NULL ? move_object(side, "object") : move_plain(side);
        if (rc < 0)
            return tierce__bench_fail(side->b->bench, "an object: %s", tierce_strerror(rc));
    }
    return (int64_t)(tierce__now_ns() - start_ns);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* Each connector reads what the other has written. */
static int check(struct nixl_bench *b)
{
    struct tierce__connector *const connectors[] = {b->nixl, b->file};
    for (uint64_t i = 0; i < 2; i++) {
        const struct nixl_side put = {b, connectors[i], true}, get = {b, connectors[1 - i], false};
        tierce__bench_fill(b->buf->data, b->object_bytes, i + 1);
        int rc = move_object(&put, "object");
        memset(b->buf->data, 0x5a, (size_t)b->object_bytes);
        if (rc == 0)
            rc = move_object(&get, "object");
        if (rc < 0)
            return tierce__bench_fail(b->bench, "an object: %s", tierce_strerror(rc));
        if (!tierce__bench_filled(b->buf->data, b->object_bytes, i + 1))
            return tierce__bench_fail(b->bench, "the bytes read differ from those written");
    }
    return 0;
}

static int measure(struct nixl_bench *b, bool is_write)
{
    struct nixl_side nixl = {b, b->nixl, is_write}, file = {b, b->file, is_write},
                     plain = {b, NULL, is_write};
    double bytes = (double)(b->objects * b->object_bytes);
    struct tierce__bench_side sides[] = {{.run = run_side, .arg = &nixl},
                                         {.run = run_side, .arg = &plain},
                                         {.run = run_side, .arg = &file}};
    char name[64];
    int rc = tierce__bench_alternate(sides, 3, b->bench->seconds);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s %u MiB", is_write ? "write" : "read",
             (unsigned)(b->object_bytes >> 20));
    tierce__bench_emit(b->bench, &(struct tierce__bench_row){
                                     .case_name = name,
                                     .unit = "GB/s",
                                     .value = bytes / sides[0].median_ns,
                                     .limit = bytes / sides[1].median_ns,
                                     .goal = is_write ? 0.5 : 0.8,
                                     .peer = "file://",
                                     .peer_value = bytes / sides[2].median_ns,
                                 });
    return 0;
}

static int measure_size(struct nixl_bench *b, uint64_t bytes)
{
    const struct nixl_side plain = {b, NULL, true};
    uint64_t round = b->bench->memory_bytes / 8;
    b->object_bytes = bytes;
    b->objects = (round < ROUND_BYTES ? round : ROUND_BYTES) / bytes;
    if (b->objects == 0)
        b->objects = 1;
    int rc = tierce__pool_alloc(b->pool, &b->buf, bytes);
    if (rc < 0)
        return rc;
    rc = check(b);
    if (rc == 0)
        rc = move_plain(&plain); /* for the reads */
    if (rc == 0)
        rc = measure(b, true);
    if (rc == 0)
        rc = measure(b, false);
    tierce__buf_release(b->buf);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* False: that Python has none. */
static bool find_library(char path[PATH_MAX], const char *python)
{
    struct tierce__bench_peer peer;
    int rc = tierce__bench_peer_start(&peer, python, script, NULL);
    path[0] = '\0';
    if (rc == 0 && fgets(path, PATH_MAX, peer.answer) != NULL)
        path[strcspn(path, "\n")] = '\0';
    tierce__bench_peer_end(&peer);
    return path[0] == '/';
}

static int open_sides(struct nixl_bench *b, const char *library)
{
    char url[3 * PATH_MAX];
    int rc = tierce__pool_create(
        &b->pool, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                              .cap_bytes = 64u << 20});
    if (rc < 0)
        return rc;
    if (realpath(b->bench->dir, b->dir) == NULL ||
        (b->plain = open(b->dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600)) < 0)
        return tierce__bench_fail(b->bench, "%s: %s", b->bench->dir, tierce_strerror(-errno));
    snprintf(url, sizeof(url), "file://%s/objects?connections=2", b->dir);
    rc = tierce__bench_connector(b->bench, &b->file, url, b->pool, NULL);
    if (rc < 0)
        return rc;
    snprintf(url, sizeof(url), "nixl://%s/objects?connections=2&library=%s", b->dir, library);
    return tierce__bench_connector(b->bench, &b->nixl, url, b->pool, NULL);
}

static void remove_objects(const struct nixl_bench *b)
{
    char path[PATH_MAX + sizeof("/objects")];
    snprintf(path, sizeof(path), "%s/objects", b->dir);
    if (b->dir[0] != '\0')
        tierce__bench_remove(path);
}

static void close_connector(struct tierce__connector *connector)
{
    if (connector != NULL)
        (void)connector->ops->close(connector, tierce__deadline_in_ms(CALL_MS));
}

int tierce__bench_nixl(const struct tierce__bench *bench)
{
    static const uint64_t sizes[] = {1u << 20, 16u << 20};
    struct nixl_bench b = {.bench = bench, .plain = -1};
    const char *python = bench->python != NULL ? bench->python : "python3";
    char library[PATH_MAX];
    if (!find_library(library, python)) {
        fprintf(stderr,
                "tierce bench: %s: left out, %s has no package nixl-cu12; --python names another\n",
                bench->name, python);
        return 0;
    }
    int rc = open_sides(&b, library);
    for (size_t i = 0; rc == 0 && i < sizeof(sizes) / sizeof(*sizes); i++)
        rc = measure_size(&b, sizes[i]);
    close_connector(b.nixl);
    close_connector(b.file);
    if (b.plain >= 0)
        close(b.plain);
    remove_objects(&b);
    tierce__pool_destroy(b.pool);
    return rc == 0 ? tierce__bench_nixl_objects(bench, library) : rc;
}
