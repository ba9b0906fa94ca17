/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as objects of a store that a connector reaches (store/remote): S3, Mooncake, and the part
 * of a node. An object's name is the path without its first '/'. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/text/line.h"
#include "manager/storage/places.h"
#include "manager/storage/storage.h"
#include "store/await.h"
#include "store/remote/connector.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum {
    PROBE_BYTES = 4096,
    POOL_BYTES = 1 << 20, /* the smallest, for probes */
    /* Of addresses, for a scrub that verifies blocks: pages that are not touched take no memory,
     * and those of a read are given back after it. */
    READ_POOL_BYTES = 128 << 20,
    S3_PIECE = 4 << 20, /* a request costs a round trip */
    CALL_MS = 30000,
    CLOSE_MS = 5000,
};

#define NODE_CONNECTIONS "connections=2"

struct connector_driver {
    struct tierce__storage_driver base;
    struct tierce__pool *pool;
    struct tierce__connector *connector; /* NULL: not open; opened by the first call */
    char *url;
    char probe_text[32]; /* a name that no other driver has */
    struct tierce_plugin_name probe_name;
    uint64_t list_cursor; /* of the next page; 0: no listing */
};

static struct connector_driver *driver_of(struct tierce__storage_driver *base)
{
    TIERCE_DASSERT(base->ops == &tierce__storage_s3 || base->ops == &tierce__storage_node ||
                   base->ops == &tierce__storage_mooncake);
    return (struct connector_driver *)base;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int name_probe(struct connector_driver *driver)
{
    static const char prefix[] = "tierce-probe-";
    uint8_t random[8];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return -EIO;
    memcpy(driver->probe_text, prefix, sizeof(prefix));
    tierce__hex_encode(driver->probe_text + sizeof(prefix) - 1, random, sizeof(random));
    driver->probe_name.text = driver->probe_text;
    driver->probe_name.bytes = strlen(driver->probe_text);
    TIERCE_ASSERT(driver->probe_name.bytes < sizeof(driver->probe_text));
    return 0;
}

static void free_driver(struct connector_driver *driver)
{
    TIERCE_DASSERT(driver->connector == NULL);
    tierce__pool_destroy(driver->pool);
    tierce__free(driver->url);
    tierce__free(driver);
}

/* A connection has a thread, and a fleet has many nodes, so a node's connector has few. A URI
 * that says how many keeps its number. */
static int limit_connections(struct connector_driver *driver)
{
    struct tierce__line line = {0};
    if (strstr(driver->url, "connections=") != NULL)
        return 0;
    tierce__line_put(&line, driver->url);
    tierce__line_put(&line, strchr(driver->url, '?') != NULL ? "&" : "?");
    tierce__line_put(&line, NODE_CONNECTIONS);
    tierce__line_put_bytes(&line, "", 1);
    if (line.failed) {
        tierce__line_clear(&line);
        return -ENOMEM;
    }
    tierce__free(driver->url);
    driver->url = line.text;
    return 0;
}

static int connector_open(struct tierce__storage_driver **out,
                          const struct tierce__storage *storage, char why[128])
{
    const struct tierce__storage_ops *ops = tierce__storage_ops_find(storage->type);
    const struct tierce__pool_opts opts = {.size = sizeof(opts),
                                           .cap_bytes =
                                               ops->read != NULL ? READ_POOL_BYTES : POOL_BYTES,
                                           .no_touch = true,
                                           .no_huge_pages = true,
                                           .shared = ops == &tierce__storage_mooncake};
    const struct tierce__storage_at at = tierce__storage_at_of(storage);
    char text[TIERCE__STORAGE_WHY_BYTES] = "";
    struct connector_driver *driver = tierce__calloc(1, sizeof(*driver));
    if (driver == NULL)
        return -ENOMEM;
    driver->base.ops = ops;
    int rc = tierce__storage_at_url(&driver->url, &at, text);
    if (rc == 0 && storage->type == TIERCE__STORAGE_NODE)
        rc = limit_connections(driver);
    if (rc == 0)
        rc = name_probe(driver);
    if (rc == 0)
        rc = tierce__pool_create(&driver->pool, &opts);
    if (rc == 0) {
        *out = &driver->base;
        return 0;
    }
    snprintf(why, 128, "%.127s", text[0] != '\0' ? text : tierce_strerror(rc));
    free_driver(driver);
    return rc;
}

static void connector_close(struct tierce__storage_driver *base)
{
    struct connector_driver *driver = driver_of(base);
    struct tierce__connector *connector = driver->connector;
    driver->connector = NULL;
    if (connector != NULL && !connector->ops->close(connector, tierce__deadline_in_ms(CLOSE_MS)))
        driver->pool = NULL; /* an abandoned call may still write to it */
    free_driver(driver);
}

/* Opens the connector. It may search for credentials on the network, which open must not do. */
static int ready(struct connector_driver *driver, char why[128])
{
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = driver->pool};
    char text[TIERCE__CONNECTOR_WHY_BYTES] = "";
    TIERCE_DASSERT(driver->pool != NULL);
    if (driver->connector != NULL)
        return 0;
    int rc = tierce__connector_open(&driver->connector, driver->url, &opts, text);
    if (rc != 0)
        snprintf(why, 128, "%.127s", text[0] != '\0' ? text : tierce_strerror(rc));
    return rc;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void answered(struct tierce__store_req *req)
{
    (void)tierce__await_answer(req->arg);
}

/* A connector answers each request by its deadline, so the wait needs none. */
static void call(struct connector_driver *driver, struct tierce__store_req *reqs, size_t count)
{
    struct tierce__await await;
    uint64_t deadline_ns = tierce__deadline_in_ms(CALL_MS);
    TIERCE_ASSERT(driver->connector != NULL);
    tierce__await_begin(&await);
    for (size_t i = 0; i < count; i++) {
        reqs[i].done = answered;
        reqs[i].arg = &await;
        reqs[i].deadline_ns = deadline_ns;
        reqs[i].name_count = 1;
        tierce__await_expect(&await);
        driver->connector->ops->submit(driver->connector, &reqs[i]);
    }
    bool all = tierce__await_end(&await, TIERCE__DEADLINE_NEVER);
    TIERCE_ASSERT(all);
}

/* False: no object can have this name. */
static bool name_of(struct tierce_plugin_name *out, const char *path)
{
    const char *name = tierce__storage_at_name(path, "/");
    if (name == NULL || strlen(name) > TIERCE__CONNECTOR_NAME_MAX)
        return false;
    *out = (struct tierce_plugin_name){.text = name, .bytes = strlen(name)};
    return true;
}

/* ---- probe ----------------------------------------------------------------------------------- */

/* One step of a probe; `why` names it if it fails. */
static int try_step(struct connector_driver *driver, struct tierce__store_req *req,
                    const char *step, char why[128])
{
    char text[TIERCE__CONNECTOR_WHY_BYTES] = "";
    req->names = &driver->probe_name;
    call(driver, req, 1);
    TIERCE_DASSERT(req->status <= 0);
    if (req->status == 0)
        return 0;
    if (req->status == TIERCE_E_MISS)
        snprintf(text, sizeof(text), "the object is missing when it is read back");
    else
        driver->connector->ops->why(driver->connector, text);
    snprintf(why, 128, "%s: %.110s", step, text[0] != '\0' ? text : tierce_strerror(req->status));
    return req->status;
}

static int read_back(struct connector_driver *driver, const struct tierce__buf *written,
                     struct tierce__buf *buf, char why[128])
{
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .urgency = TIERCE__CONNECTOR_FETCH,
                                    .buf = buf,
                                    .length = PROBE_BYTES};
    memset(buf->data, 0, PROBE_BYTES);
    int rc = try_step(driver, &req, "read", why);
    if (rc != 0 || memcmp(buf->data, written->data, PROBE_BYTES) == 0)
        return rc;
    snprintf(why, 128, "read: the bytes differ from those written");
    return TIERCE_E_CHECKSUM;
}

/* A store may answer a deletion and keep the object. */
static int delete_probe(struct connector_driver *driver, char why[128])
{
    struct tierce__store_req gone = {.op = TIERCE__STORE_DELETE,
                                     .urgency = TIERCE__CONNECTOR_STORE};
    struct tierce__store_req look = {.op = TIERCE__STORE_LOOKUP, .urgency = TIERCE__CONNECTOR_PEEK};
    int rc = try_step(driver, &gone, "delete", why);
    if (rc == 0)
        rc = try_step(driver, &look, "delete", why);
    if (rc != 0 || look.found == 0)
        return rc;
    snprintf(why, 128, "delete: the object exists after its deletion");
    return TIERCE_E_DOWN;
}

static int probe_with(struct connector_driver *driver, struct tierce__buf *written,
                      struct tierce__buf *buf, char why[128])
{
    char other[128];
    struct tierce__store_req req = {.op = TIERCE__STORE_PUT,
                                    .urgency = TIERCE__CONNECTOR_STORE,
                                    .buf = written,
                                    .length = PROBE_BYTES};
    TIERCE_DASSERT(written->bytes >= PROBE_BYTES && buf->bytes >= PROBE_BYTES);
    if (getrandom(written->data, PROBE_BYTES, 0) != PROBE_BYTES)
        return -EIO;
    int rc = try_step(driver, &req, "write", why);
    if (rc == TIERCE_E_FULL && driver->base.ops == &tierce__storage_node)
        return 0; /* its objects can be read and deleted, and nothing else will make room */
    if (rc != 0)
        return rc;
    rc = read_back(driver, written, buf, why);
    int end_rc = delete_probe(driver, rc == 0 ? why : other);
    return rc != 0 ? rc : end_rc;
}

static int connector_probe(struct tierce__storage_driver *base, char why[128])
{
    struct connector_driver *driver = driver_of(base);
    struct tierce__buf *written = NULL, *buf = NULL;
    int rc = ready(driver, why);
    if (rc == 0)
        rc = tierce__pool_alloc(driver->pool, &written, PROBE_BYTES);
    if (rc == 0)
        rc = tierce__pool_alloc(driver->pool, &buf, PROBE_BYTES);
    if (rc == 0)
        rc = probe_with(driver, written, buf, why);
    tierce__buf_release(written);
    tierce__buf_release(buf);
    return rc;
}

/* ---- the mark -------------------------------------------------------------------------------- */

/* A request for the mark with a buffer for its bytes. */
static int call_mark(struct connector_driver *driver, struct tierce__store_req *req,
                     const char *step, char why[128])
{
    static const struct tierce_plugin_name name = {.text = TIERCE__STORAGE_MARK,
                                                   .bytes = sizeof(TIERCE__STORAGE_MARK) - 1};
    char text[TIERCE__CONNECTOR_WHY_BYTES] = "";
    req->names = &name;
    req->length = TIERCE__STORAGE_MARK_BYTES;
    call(driver, req, 1);
    TIERCE_DASSERT(req->status <= 0);
    if (req->status == TIERCE_E_MISS)
        return -ENOENT;
    if (req->status == 0 || req->status == TIERCE_E_FORMAT)
        return req->status;
    driver->connector->ops->why(driver->connector, text);
    snprintf(why, 128, "%s: %.110s", step, text[0] != '\0' ? text : tierce_strerror(req->status));
    return req->status;
}

static int connector_read_mark(struct tierce__storage_driver *base,
                               char id[TIERCE__STORAGE_ID_HEX + 1], char why[128])
{
    struct connector_driver *driver = driver_of(base);
    struct tierce__buf *buf = NULL;
    int rc = ready(driver, why);
    if (rc == 0)
        rc = tierce__pool_alloc(driver->pool, &buf, PROBE_BYTES);
    if (rc == 0)
        rc = call_mark(driver,
                       &(struct tierce__store_req){
                           .op = TIERCE__STORE_GET, .urgency = TIERCE__CONNECTOR_FETCH, .buf = buf},
                       "read the mark", why);
    if (rc == 0 &&
        !tierce__storage_mark_read(id, (const char *)buf->data, TIERCE__STORAGE_MARK_BYTES))
        rc = TIERCE_E_FORMAT;
    tierce__buf_release(buf);
    return rc;
}

static int connector_write_mark(struct tierce__storage_driver *base, const char *id, char why[128])
{
    struct connector_driver *driver = driver_of(base);
    struct tierce__buf *buf = NULL;
    int rc = ready(driver, why);
    if (rc == 0)
        rc = tierce__pool_alloc(driver->pool, &buf, PROBE_BYTES);
    if (rc == 0) {
        tierce__storage_mark_write((char *)buf->data, id);
        rc = call_mark(driver,
                       &(struct tierce__store_req){
                           .op = TIERCE__STORE_PUT, .urgency = TIERCE__CONNECTOR_STORE, .buf = buf},
                       "write the mark", why);
    }
    tierce__buf_release(buf);
    return rc;
}

/* ---- the other calls ------------------------------------------------------------------------- */

/* Adds a request for each path that can be a name; the other paths get their status. Returns the
 * number of requests; `of` has the path of each. */
static size_t add_requests(struct tierce__store_req *reqs, struct tierce_plugin_name *names,
                           size_t *of, const char *const *paths, size_t count, int *status)
{
    size_t used = 0;
    TIERCE_ASSERT(count > 0 && count <= TIERCE__STORAGE_BATCH_MAX);
    for (size_t i = 0; i < count; i++) {
        status[i] = TIERCE_E_ARGUMENT;
        if (!name_of(&names[used], paths[i]))
            continue;
        reqs[used] = (struct tierce__store_req){
            .op = TIERCE__STORE_DELETE, .urgency = TIERCE__CONNECTOR_STORE, .names = &names[used]};
        of[used++] = i;
    }
    return used;
}

/* All at once, so that the connector can join them. */
static void connector_remove_many(struct tierce__storage_driver *base, const char *const *paths,
                                  size_t count, int *status)
{
    struct connector_driver *driver = driver_of(base);
    struct tierce_plugin_name names[TIERCE__STORAGE_BATCH_MAX];
    size_t of[TIERCE__STORAGE_BATCH_MAX], used = 0;
    char why[128];
    struct tierce__store_req *reqs = tierce__calloc(count, sizeof(*reqs));
    int rc = reqs != NULL ? ready(driver, why) : -ENOMEM;
    if (rc == 0) {
        used = add_requests(reqs, names, of, paths, count, status);
        call(driver, reqs, used);
    }
    for (size_t i = 0; i < count && rc != 0; i++)
        status[i] = rc;
    for (size_t i = 0; i < used; i++)
        status[of[i]] = reqs[i].status == TIERCE_E_MISS ? 0 : reqs[i].status;
    tierce__free(reqs);
}

static int connector_remove(struct tierce__storage_driver *base, const char *path)
{
    int status = -EIO;
    connector_remove_many(base, &path, 1, &status);
    return status;
}

/* Whether an object has a first byte. A store that does not report lengths answers a lookup as if
 * the object was empty. */
static int has_byte(struct connector_driver *driver, const struct tierce_plugin_name *name,
                    bool *has)
{
    struct tierce__store_req req = {
        .op = TIERCE__STORE_GET, .urgency = TIERCE__CONNECTOR_FETCH, .names = name, .length = 1};
    int rc = tierce__pool_alloc(driver->pool, &req.buf, PROBE_BYTES);
    if (rc != 0)
        return rc;
    call(driver, &req, 1);
    tierce__buf_release(req.buf);
    *has = req.status == 0;
    return req.status == TIERCE_E_FORMAT || req.status == TIERCE_E_MISS ? 0 : req.status;
}

static int connector_measure(struct tierce__storage_driver *base, const char *path, uint64_t *bytes)
{
    struct connector_driver *driver = driver_of(base);
    struct tierce_plugin_name name;
    char why[128];
    bool has = false;
    struct tierce__store_req req = {
        .op = TIERCE__STORE_LOOKUP, .urgency = TIERCE__CONNECTOR_PEEK, .names = &name};
    if (!name_of(&name, path))
        return TIERCE_E_ARGUMENT;
    int rc = ready(driver, why);
    if (rc != 0)
        return rc;
    call(driver, &req, 1);
    TIERCE_DASSERT(req.status <= 0);
    if (req.status != 0)
        return req.status;
    if (req.found == 0)
        return -ENOENT;
    *bytes = req.object_bytes;
    if (*bytes == 0 && (driver->connector->caps & TIERCE__CONNECTOR_RANGES) == 0)
        return TIERCE_E_UNSUPPORTED; /* it is not read whole to find out */
    rc = *bytes == 0 ? has_byte(driver, &name, &has) : 0;
    return rc == 0 && has ? TIERCE_E_UNSUPPORTED : rc;
}

/* A connector writes each byte of an object to its place in the buffer, so the buffer is as long as
 * the part of the object up to the range's end; only the range is touched. */
static int connector_read(struct tierce__storage_driver *base, const char *path, uint64_t offset,
                          void *out, size_t bytes)
{
    struct connector_driver *driver = driver_of(base);
    struct tierce_plugin_name name;
    char why[128];
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .urgency = TIERCE__CONNECTOR_PREFETCH,
                                    .names = &name,
                                    .offset = offset,
                                    .length = bytes};
    if (!name_of(&name, path))
        return TIERCE_E_ARGUMENT;
    if (offset + bytes > TIERCE__STORAGE_READ_MAX)
        return TIERCE_E_LIMIT;
    int rc = ready(driver, why);
    if (rc == 0)
        rc = tierce__pool_alloc(driver->pool, &req.buf, offset + bytes);
    if (rc != 0)
        return rc;
    call(driver, &req, 1);
    if (req.status == 0)
        memcpy(out, req.buf->data + offset, bytes);
    tierce__buf_discard(req.buf, offset, bytes);
    tierce__buf_release(req.buf);
    return req.status == TIERCE_E_MISS ? -ENOENT : req.status;
}

/* ---- list ------------------------------------------------------------------------------------ */

/* A request for a page of names. */
struct list_call {
    struct tierce__await await;
    struct tierce__store_req req;
    struct tierce__storage_page *page;
    int error;
};

static void page_answered(struct tierce__store_req *req)
{
    struct list_call *call = req->arg;
    (void)tierce__await_answer(&call->await);
}

static void add_name(void *arg, const struct tierce_plugin_name *name)
{
    static const char probe[] = "tierce-probe-";
    struct list_call *call = arg;
    char text[TIERCE__CONNECTOR_NAME_MAX + 1];
    TIERCE_ASSERT(name->bytes <= TIERCE__CONNECTOR_NAME_MAX);
    memcpy(text, name->text, name->bytes);
    text[name->bytes] = '\0';
    if (strcmp(text, TIERCE__STORAGE_MARK) == 0 || strncmp(text, probe, sizeof(probe) - 1) == 0)
        return;
    int rc =
        tierce__storage_page_add(call->page, text, call->req.object_bytes, call->req.changed_us);
    call->error = rc < 0 ? rc : call->error;
}

/* The page at a cursor, which moves to the next one; 0 at the end. Small pages, because the call is
 * limited like a probe. */
static int list_page(struct connector_driver *driver, uint64_t *cursor,
                     struct tierce__storage_page *page, char why[128])
{
    static const struct tierce_plugin_name any = {.text = ""};
    enum { PAGE_NAMES = 128 };
    char text[TIERCE__CONNECTOR_WHY_BYTES] = "";
    int rc = ready(driver, why);
    if (rc != 0)
        return rc;
    struct list_call call = {
        .page = page,
        .req = {.op = TIERCE__STORE_LIST,
                .urgency = TIERCE__CONNECTOR_STORE,
                .names = &any,
                .name_count = 1,
                .each = add_name,
                .page_max = PAGE_NAMES,
                .object_bytes = TIERCE__STORAGE_UNKNOWN_BYTES,
                .cursor = *cursor,
                .deadline_ns = tierce__deadline_in_ms(CALL_MS),
                .done = page_answered},
    };
    call.req.arg = &call;
    tierce__await_begin(&call.await);
    tierce__await_expect(&call.await);
    driver->connector->ops->submit(driver->connector, &call.req);
    bool all = tierce__await_end(&call.await, TIERCE__DEADLINE_NEVER);
    TIERCE_ASSERT(all);
    rc = call.req.status != 0 ? call.req.status : call.error;
    if (call.req.status != 0)
        driver->connector->ops->why(driver->connector, text);
    if (rc != 0)
        snprintf(why, 128, "%.127s", text[0] != '\0' ? text : tierce_strerror(rc));
    *cursor = rc == 0 ? call.req.cursor : 0;
    return rc;
}

static int connector_list(struct tierce__storage_driver *base, bool is_first,
                          struct tierce__storage_page *page, char why[128])
{
    struct connector_driver *driver = driver_of(base);
    TIERCE_ASSERT(page->count == 0);
    if (is_first)
        driver->list_cursor = 0;
    else if (driver->list_cursor == 0)
        return -ESTALE;
    int rc = list_page(driver, &driver->list_cursor, page, why);
    page->is_end = driver->list_cursor == 0;
    return rc;
}

/* On the first pages: the names of blocks begin with an instance, before most others. */
static int connector_has_blocks(struct tierce__storage_driver *base, bool *has)
{
    enum { PAGES_MAX = 8 };
    uint64_t cursor = 0;
    size_t folder_bytes;
    char why[128];
    int rc = 0, pages = 0;
    *has = false;
    do {
        struct tierce__storage_page page = {0};
        rc = list_page(driver_of(base), &cursor, &page, why);
        for (size_t i = 0; rc == 0 && i < page.count; i++)
            *has = *has || tierce__place_number(page.objects[i].name, &folder_bytes) != 0;
        tierce__storage_page_clear(&page);
    } while (rc == 0 && !*has && cursor != 0 && ++pages < PAGES_MAX);
    return rc;
}

/* A bucket does not report its room; that of a node's part is its storage's capacity_bytes. */
static double connector_used_share(struct tierce__storage_driver *base)
{
    (void)base;
    return -1;
}

/* The calls of every store that a connector reaches. */
#define OF_CONNECTOR                                                                               \
    .open = connector_open, .close = connector_close, .probe = connector_probe,                    \
    .remove = connector_remove, .remove_many = connector_remove_many,                              \
    .measure = connector_measure, .used_share = connector_used_share

const struct tierce__storage_ops tierce__storage_s3 = {
    OF_CONNECTOR,
    .name = "s3",
    .read_mark = connector_read_mark,
    .write_mark = connector_write_mark,
    .has_blocks = connector_has_blocks,
    .read_max = S3_PIECE,
    .read = connector_read,
    .list = connector_list,
};

/* Without marks: a part that has lost its objects has another incarnation. */
const struct tierce__storage_ops tierce__storage_node = {
    OF_CONNECTOR,
    .name = "tierce",
    .read_max = TIERCE__STORAGE_READ_MAX, /* a disk part reads whole objects */
    .read = connector_read,
    .list = connector_list,
};

/* Without marks: Mooncake evicts the mark as any object, and its master forgets all of them when it
 * ends. */
const struct tierce__storage_ops tierce__storage_mooncake = {OF_CONNECTOR, .name = "mooncake"};
