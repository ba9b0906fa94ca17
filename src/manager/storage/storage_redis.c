/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks as keys of Redis or Valkey: a server, a master of sentinels, or a cluster. The key is the
 * path without its first '/'. */
#include "base/alloc.h"
#include "base/bytes.h"
#include "manager/storage/storage.h"
#include "net/redis/resp_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { PROBE_BYTES = 4096 };

struct redis_driver {
    struct tierce__storage_driver base;
    struct tierce__resp_link *link;
};

static int redis_open(struct tierce__storage_driver **out, const struct tierce__storage *storage,
                      char why[128])
{
    struct tierce__resp_uri parsed = {0};
    char text[TIERCE__RESP_WHY_BYTES] = "";
    struct redis_driver *driver = tierce__calloc(1, sizeof(*driver));
    if (driver == NULL)
        return -ENOMEM;
    driver->base.ops = &tierce__storage_redis;
    int rc = tierce__resp_uri_parse(&parsed, storage->uri, text);
    if (rc == 0)
        rc = tierce__resp_link_create(&driver->link, &parsed, text);
    tierce__resp_uri_clear(&parsed);
    if (rc == 0) {
        *out = &driver->base;
        return 0;
    }
    snprintf(why, 128, "%.127s", text);
    tierce__free(driver);
    return rc;
}

static void redis_close(struct tierce__storage_driver *base)
{
    tierce__resp_link_close(((struct redis_driver *)base)->link);
    tierce__free(base);
}

/* One command, whose second word is its key; an error reply is -EPROTO. */
static int call(struct redis_driver *driver, const char *const *arguments, const size_t *bytes,
                size_t count, struct tierce__resp_value *out)
{
    int rc = tierce__resp_link_call(driver->link, 1, arguments, bytes, count, out, 0);
    return rc == 0 && out->type == TIERCE__RESP_ERROR ? -EPROTO : rc;
}

static int say(struct redis_driver *driver, char why[128], const char *what, int rc,
               const struct tierce__resp_value *value)
{
    const char *text = tierce__resp_link_why(driver->link);
    if (rc == -EPROTO && value->type == TIERCE__RESP_ERROR)
        text = tierce__resp_words(value);
    snprintf(why, 128, "%s: %.100s", what, *text != '\0' ? text : tierce_strerror(rc));
    return rc;
}

static int remove_key(struct redis_driver *driver, const char *key)
{
    struct tierce__resp_value value;
    return call(driver, (const char *[]){"DEL", key}, (size_t[]){3, strlen(key)}, 2, &value);
}

static int exchange(struct redis_driver *driver, const char *key, char why[128])
{
    struct tierce__resp_value value;
    char written[PROBE_BYTES];
    if (getrandom(written, sizeof(written), 0) != (ssize_t)sizeof(written))
        return -EIO;
    /* The key expires even if its deletion fails. */
    int rc = call(driver, (const char *[]){"SET", key, written, "EX", "60"},
                  (size_t[]){3, strlen(key), sizeof(written), 2, 2}, 5, &value);
    if (rc != 0)
        return say(driver, why, "write", rc, &value);
    rc = call(driver, (const char *[]){"GET", key}, (size_t[]){3, strlen(key)}, 2, &value);
    if (rc != 0)
        return say(driver, why, "read", rc, &value);
    if (value.type != TIERCE__RESP_STRING || value.bytes != sizeof(written) ||
        memcmp(value.text, written, sizeof(written)) != 0) {
        snprintf(why, 128, "read: the bytes differ from those written");
        return TIERCE_E_CHECKSUM;
    }
    return 0;
}

static int redis_probe(struct tierce__storage_driver *base, char why[128])
{
    struct redis_driver *driver = (struct redis_driver *)base;
    uint8_t random[8];
    char key[40] = "tierce-probe:";
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return -EIO;
    tierce__hex_encode(key + strlen(key), random, sizeof(random));
    int rc = exchange(driver, key, why);
    if (rc == 0 && (rc = remove_key(driver, key)) != 0)
        snprintf(why, 128, "delete: %.100s", tierce_strerror(rc));
    return rc;
}

static int redis_remove(struct tierce__storage_driver *base, const char *path)
{
    if (path[0] != '/' || path[1] == '\0')
        return TIERCE_E_ARGUMENT;
    return remove_key((struct redis_driver *)base, path + 1);
}

static int redis_measure(struct tierce__storage_driver *base, const char *path, uint64_t *bytes)
{
    struct tierce__resp_value value;
    if (path[0] != '/' || path[1] == '\0')
        return TIERCE_E_ARGUMENT;
    int rc = call((struct redis_driver *)base, (const char *[]){"STRLEN", path + 1},
                  (size_t[]){6, strlen(path + 1)}, 2, &value);
    if (rc < 0)
        return rc;
    if (value.type != TIERCE__RESP_INTEGER || value.integer < 0)
        return -EPROTO;
    *bytes = (uint64_t)value.integer;
    return value.integer > 0 ? 0 : -ENOENT; /* a key that is not there has length 0 */
}

/* The number after "name:" in INFO's answer; 0 if missing. */
static double info_of(const char *info, const char *name)
{
    const char *at = strstr(info, name);
    return at != NULL ? strtod(at + strlen(name), NULL) : 0;
}

/* The used share of one server; -1: unknown. */
static double used_share_of(struct tierce__resp *server)
{
    struct tierce__resp_value value;
    int rc = tierce__resp_append(server, (const char *[]){"INFO", "memory"}, (size_t[]){4, 6}, 2);
    if (rc == 0)
        rc = tierce__resp_flush(server, 0);
    if (rc == 0)
        rc = tierce__resp_read(server, &value, 0);
    if (rc != 0 || value.type != TIERCE__RESP_STRING)
        return -1;
    double max = info_of(value.text, "\nmaxmemory:");
    return max > 0 ? info_of(value.text, "\nused_memory:") / max : -1;
}

/* Returns the share of the fullest server, because its keys cannot go to another one. */
static double redis_used_share(struct tierce__storage_driver *base)
{
    struct tierce__resp_link *link = ((struct redis_driver *)base)->link;
    struct tierce__resp *server;
    double most = -1;
    if (tierce__resp_link_begin(link) != 0)
        return -1;
    for (size_t i = 0; tierce__resp_link_node(link, i, &server) == 0; i++) {
        double share = used_share_of(server);
        most = share > most ? share : most;
    }
    return most;
}

const struct tierce__storage_ops tierce__storage_redis = {
    .name = "redis",
    .is_reached = true,
    .open = redis_open,
    .close = redis_close,
    .probe = redis_probe,
    .remove = redis_remove,
    .measure = redis_measure,
    .used_share = redis_used_share,
};
