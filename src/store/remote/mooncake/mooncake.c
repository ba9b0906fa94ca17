/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mooncake Store: each object is one object of Mooncake.
 *
 *     mooncake://master:50051?protocol=rdma&device=mlx5_0&replicas=2&python=/opt/venv/bin/python
 *
 * Its published client library has no C interface, but one for Python. Therefore a separate process
 * (bridge.h) works on our pool, and no byte is copied on the way to Mooncake.
 *
 * Objects of Mooncake do not change, so the first PUT of a name stays. There is an update in place,
 * but a reader may get a part of each version then.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/text/host_port.h"
#include "store/remote/bridge/bridge_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LINKS            4u
#define PORT             50051u
#define PREFIX_BYTES_MAX 128u
#define TIMEOUT_MS       10000u
#define BUFFER_BYTES     (16u << 20) /* of Mooncake's own */
#define NO_NUMA_NODE     UINT64_MAX
#define ARGUMENT_BYTES   512u

/* Mooncake's errors that are handled here; all others are failures of the store. */
#define NO_HANDLE         -200
#define INVALID_PARAMS    -600
#define INVALID_REPLICA   -702
#define NOT_READY         -703
#define NOT_FOUND         -704
#define LEASE_EXPIRED     -707
#define REPLICA_NOT_FOUND -710
#define REPLICA_GONE      -712
#define TRANSFER_FAIL     -800 /* to -899 */

/* Shared by the links. */
struct mooncake {
    struct tierce__bridge_store base;
    bool is_tcp;
    char prefix[PREFIX_BYTES_MAX + 1];
};

/* ---- calls ----------------------------------------------------------------------------------- */

/* The status of a request after an error of Mooncake. */
static int status_of(struct tierce__bridge_link *link, enum tierce__bridge_op op, int64_t error)
{
    const struct mooncake *mooncake = (const struct mooncake *)link->store;
    TIERCE_DASSERT(error < 0);
    /* Over TCP a failed transfer has ended. Other transports may still be writing. */
    if (op == TIERCE__BRIDGE_GET && error <= TRANSFER_FAIL && error > TRANSFER_FAIL - 100 &&
        !mooncake->is_tcp)
        tierce__bridge_end(link->store->bridge, link->seat);
    snprintf(link->why, sizeof(link->why), "Mooncake's error %" PRId64, error);
    switch (error) {
    case NOT_FOUND:
    case NOT_READY:
    case INVALID_REPLICA:
    case LEASE_EXPIRED: /* the bytes may be another object's */
    case REPLICA_NOT_FOUND:
    case REPLICA_GONE:
        return TIERCE_E_MISS;
    case NO_HANDLE:
        return TIERCE_E_FULL;
    case INVALID_PARAMS: /* the object ends before the range does */
        return TIERCE_E_FORMAT;
    default:
        return TIERCE_E_DOWN;
    }
}

static int mooncake_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                        uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    struct tierce__bridge_link *link = opened;
    uint64_t bytes;
    (void)deadline_ns;
    int rc = tierce__bridge_link_ask_get(
        link, &bytes,
        &(struct tierce__link_get){
            .name = name, .memory = memory, .offset = offset, .length = length});
    if (rc != 0 || bytes == length)
        return rc;
    if (bytes > length || bytes == 0)
        return tierce__bridge_link_misunderstood(link, (int64_t)bytes);
    snprintf(link->why, sizeof(link->why), "an object with an unexpected length");
    return TIERCE_E_FORMAT;
}

/* ---- life ------------------------------------------------------------------------------------ */

struct numbers {
    uint64_t links, timeout_ms, segment_bytes, buffer_bytes, replicas, numa;
};

static int refuse(char why[TIERCE__CONNECTOR_WHY_BYTES], const char *what)
{
    snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "URL: %s", what);
    return TIERCE_E_CONFIG;
}

static int check_texts(const struct tierce__url *url, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"prefix", "python",  "log",         "host",   "metadata",
                                        "device", "segment", "protocol",    "buffer", "replicas",
                                        "numa",   "timeout", "connections", NULL};
    if (url->host_count != 1 || url->hosts[0].name[0] == '\0')
        return refuse(why, "exactly one master is required: mooncake://host:port");
    if (url->user != NULL || strspn(url->path, "/") != strlen(url->path))
        return refuse(why, "a Mooncake URL has no user and no path");
    for (size_t i = 0; i < url->param_count; i++) {
        if (strlen(url->params[i].value) >= ARGUMENT_BYTES / 2)
            return refuse(why, "a parameter is longer than 255 bytes");
    }
    const char *prefix = tierce__url_param(url, "prefix"), *log = tierce__url_param(url, "log");
    if (prefix != NULL && strlen(prefix) > PREFIX_BYTES_MAX)
        return refuse(why, "the prefix is longer than 128 bytes");
    if (log != NULL && log[0] != '/')
        return refuse(why, "log must be the absolute path of a file");
    return tierce__url_check_params(url, known, why);
}

static int read_numbers(struct numbers *out, const struct tierce__url *url, uint32_t links,
                        char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const uint64_t most = 1ull << 50;
    const struct {
        struct tierce__url_number number;
        uint64_t *value;
    } numbers[] = {
        {{"timeout", TIERCE__URL_MILLISECONDS, 1000, 600000}, &out->timeout_ms},
        {{"segment", TIERCE__URL_SIZE, 0, most}, &out->segment_bytes},
        {{"buffer", TIERCE__URL_SIZE, 1u << 20, most}, &out->buffer_bytes},
        {{"replicas", TIERCE__URL_COUNT, 1, 64}, &out->replicas},
        {{"numa", TIERCE__URL_COUNT, 0, 1023}, &out->numa},
    };
    int rc = 0;
    *out = (struct numbers){.links = links,
                            .timeout_ms = TIMEOUT_MS,
                            .buffer_bytes = BUFFER_BYTES,
                            .replicas = 1,
                            .numa = NO_NUMA_NODE};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers) && rc == 0; i++)
        rc = tierce__url_param_number(url, numbers[i].value, &numbers[i].number, why);
    return rc;
}

static const char *text_or(const struct tierce__url *url, const char *name, const char *otherwise)
{
    const char *value = tierce__url_param(url, name);
    return value != NULL ? value : otherwise;
}

/* The arguments of the process, as "name=value". */
struct mooncake_arguments {
    char texts[11][ARGUMENT_BYTES];
    const char *list[12];
};

static void tell(struct mooncake_arguments *out, size_t i, const char *name, const char *value)
{
    TIERCE_ASSERT(i < sizeof(out->texts) / sizeof(*out->texts));
    snprintf(out->texts[i], ARGUMENT_BYTES, "%s=%s", name, value);
    out->list[i] = out->texts[i];
    out->list[i + 1] = NULL;
}

static void tell_number(struct mooncake_arguments *out, size_t i, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    tell(out, i, name, text);
}

static void make_arguments(struct mooncake_arguments *out, const struct tierce__url *url,
                           const struct numbers *numbers)
{
    char master[300];
    const struct tierce__url_host *host = &url->hosts[0];
    (void)tierce__host_port_format(master, sizeof(master), host->name,
                                   host->port != 0 ? host->port : PORT);
    tell(out, 0, "master", master);
    tell(out, 1, "metadata", text_or(url, "metadata", "P2PHANDSHAKE"));
    tell(out, 2, "protocol", text_or(url, "protocol", "tcp"));
    tell(out, 3, "device", text_or(url, "device", ""));
    tell(out, 4, "host", text_or(url, "host", ""));
    tell_number(out, 5, "seats", numbers->links);
    tell_number(out, 6, "segment", numbers->segment_bytes);
    tell_number(out, 7, "buffer", numbers->buffer_bytes);
    tell_number(out, 8, "replicas", numbers->replicas);
    tell_number(out, 9, "timeout", (numbers->timeout_ms + 999) / 1000);
    if (numbers->numa != NO_NUMA_NODE)
        tell_number(out, 10, "numa", numbers->numa);
}

static int start_bridge(struct mooncake *mooncake, const struct tierce__connector_source *source,
                        const struct numbers *numbers, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const struct tierce__bridge_script script = {tierce__bridge_mooncake_py,
                                                        &tierce__bridge_mooncake_py_size};
    const struct tierce__url *url = source->url;
    struct mooncake_arguments *arguments = tierce__calloc(1, sizeof(*arguments));
    if (arguments == NULL)
        return -ENOMEM;
    snprintf(mooncake->prefix, sizeof(mooncake->prefix), "%s", text_or(url, "prefix", ""));
    mooncake->base.prefix = mooncake->prefix;
    mooncake->base.status_of = status_of;
    mooncake->is_tcp = strcmp(text_or(url, "protocol", "tcp"), "tcp") == 0;
    make_arguments(arguments, url, numbers);
    /* A call consists of a request to the master and a transfer, each with that timeout. If the
     * master is gone, Mooncake searches it for four seconds, independent of the timeout. */
    int rc = tierce__bridge_store_open(
        &mooncake->base, source,
        &(struct tierce__bridge_opts){.python = text_or(url, "python", "python3"),
                                      .script = &script,
                                      .arguments = arguments->list,
                                      .log = tierce__url_param(url, "log"),
                                      .seats = (uint32_t)numbers->links,
                                      .call_ms = 2 * (uint32_t)numbers->timeout_ms + 5000},
        why);
    tierce__free(arguments);
    return rc;
}

static int open_mooncake(void **store, struct tierce__client *own,
                         const struct tierce__connector_source *source,
                         char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct numbers numbers;
    struct mooncake *mooncake = *store;
    int rc = check_texts(source->url, why);
    if (rc == 0)
        rc = read_numbers(&numbers, source->url, own->links, why);
    own->prefix = mooncake->prefix;
    return rc == 0 ? start_bridge(mooncake, source, &numbers, why) : rc;
}

const struct tierce__client tierce__mooncake_client = {
    .table = {.caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_NO_REPLACE,
              .close = tierce__bridge_store_close,
              .link_open = tierce__bridge_link_open,
              .link_close = tierce__free,
              .exists = tierce__bridge_link_exists,
              .get = mooncake_get,
              .put = tierce__bridge_link_put,
              .remove = tierce__bridge_link_remove,
              .ping = tierce__bridge_link_ping,
              .why = tierce__bridge_link_why},
    .scheme = "mooncake",
    .store_bytes = sizeof(struct mooncake),
    .link_bytes = sizeof(struct tierce__bridge_link),
    .links = LINKS,
    .names_max = TIERCE__BRIDGE_NAMES_MAX,
    .open = open_mooncake,
    .state = tierce__bridge_link_state,
    .abort = tierce__bridge_store_abort,
};
