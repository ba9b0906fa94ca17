/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memcached, by its text protocol:
 *
 *     memcached://host:11211?ttl=24h&connections=8&prefix=tierce:
 *     memcached+unix:///path/of/socket
 *
 * An object is a head and parts no larger than the server's items (memcached_head.h). The parts of
 * a PUT are stored first, under keys of their own; its head replaces the old one atomically, and
 * the client that has replaced a head deletes the old parts. They stay for a while for readers. A
 * reader that misses a part checks for a new head. Without one, the server has evicted the part:
 * the reader deletes the head, so that the object is a miss and the next PUT is sent.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "store/remote/links.h"
#include "store/remote/memcached/memcached_client.h"
#include "store/remote/memcached/memcached_head.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define PORT           11211u
#define LINKS          8u
#define PREFIX         "tierce:"
#define ITEM_HEAD      512u                 /* of the server's own, beside the bytes of an item */
#define GRACE_S        60u                  /* how long replaced parts stay */
#define RELATIVE_S_MAX (30u * 24 * 60 * 60) /* longer times are seconds since 1970 to memcached */
#define TTL_MS_MIN     1000u                /* less is a number without its unit */
#define TTL_MS_MAX     (3650ull * 24 * 60 * 60 * 1000)
#define SWAPS_MAX      1000u

/* Shared by the links. */
struct memcached {
    struct tierce__peer_place place;
    char prefix[TIERCE__MEMCACHED_PREFIX_BYTES + 1];
    uint64_t ttl_ms; /* 0: none */
};

struct memcached_link {
    const struct memcached *store;
    struct tierce__memcached client;
    uint8_t found_bytes[TIERCE__MEMCACHED_HEAD_BYTES];
};

/* The result of reading a head's key. */
struct found {
    bool is_there;
    bool is_head; /* and one that can be understood; its name is in link->found_bytes */
    uint64_t unique;
    struct tierce__memcached_head head;
};

/* ---- heads ----------------------------------------------------------------------------------- */

/* The answer to get or gets of a head's key. */
static int read_found(struct memcached_link *link, struct found *found, uint64_t deadline_ns)
{
    struct tierce__memcached *client = &link->client;
    struct tierce__memcached_line line;
    *found = (struct found){0};
    int rc = tierce__memcached_read(client, &line, deadline_ns);
    if (rc == 0 && line.kind == TIERCE__MEMCACHED_VALUE) {
        bool fits = line.bytes <= sizeof(link->found_bytes);
        uint64_t bytes = fits ? line.bytes : 0;
        found->is_there = true;
        found->unique = line.unique;
        if (line.bytes > client->item_bytes)
            return tierce__memcached_refused(client, &line);
        rc = tierce__memcached_read_value(client, &line, link->found_bytes, 0, bytes, deadline_ns);
        found->is_head = rc == 0 && tierce__memcached_head_decode(&found->head, link->found_bytes,
                                                                  (size_t)bytes) == 0;
        if (rc == 0)
            rc = tierce__memcached_read(client, &line, deadline_ns);
    }
    if (rc == 0 && line.kind != TIERCE__MEMCACHED_END)
        rc = tierce__memcached_refused(client, &line);
    if (rc == 0)
        tierce__memcached_answered(client);
    return rc;
}

static int find(struct memcached_link *link, const struct tierce__memcached_key *key,
                struct found *found, uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->client.awaited == 0);
    tierce__memcached_add(&link->client, "gets %s", key->text);
    int rc = tierce__memcached_send(&link->client, NULL, 0, deadline_ns);
    return rc == 0 ? read_found(link, found, deadline_ns) : rc;
}

static bool is_of(const struct found *found, const struct tierce_plugin_name *name)
{
    return found->is_head && found->head.name.bytes == name->bytes &&
           memcmp(found->head.name.text, name->text, name->bytes) == 0;
}

static bool is_same(const struct found *found, const struct tierce__memcached_head *head)
{
    return found->is_head &&
           memcmp(found->head.generation, head->generation, sizeof(head->generation)) == 0;
}

/* An answer of one line. */
static int read_word(struct memcached_link *link, enum tierce__memcached_kind *kind,
                     uint64_t deadline_ns)
{
    struct tierce__memcached_line line;
    int rc = tierce__memcached_read(&link->client, &line, deadline_ns);
    if (rc != 0)
        return rc;
    if (line.kind == TIERCE__MEMCACHED_VALUE || line.kind == TIERCE__MEMCACHED_END ||
        line.kind == TIERCE__MEMCACHED_STAT || line.kind == TIERCE__MEMCACHED_ERROR)
        return tierce__memcached_refused(&link->client, &line);
    tierce__memcached_answered(&link->client);
    *kind = line.kind;
    return 0;
}

/* The status of memcached's answer to a store command. */
static int status_of(struct memcached_link *link, enum tierce__memcached_kind kind)
{
    const struct tierce__memcached_line line = {.kind = kind, .name = ""};
    char *why = link->client.peer.why;
    switch ((int)kind) {
    case TIERCE__MEMCACHED_STORED:
        return 0;
    case TIERCE__MEMCACHED_FULL:
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "the server has no memory for an item");
        return TIERCE_E_FULL;
    case TIERCE__MEMCACHED_TOO_LARGE:
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "an item is larger than the server's limit");
        return TIERCE_E_LIMIT;
    default:
        return tierce__memcached_refused(&link->client, &line);
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

static uint32_t at_once(uint32_t count)
{
    TIERCE_DASSERT(count > 0);
    return count < TIERCE__MEMCACHED_AT_ONCE ? count : TIERCE__MEMCACHED_AT_ONCE;
}

/* "VERB KEY" or "VERB KEY SECONDS" for some parts, sent together. */
static int ask_for_parts(struct memcached_link *link, const char *verb, unsigned seconds,
                         const struct tierce__memcached_head *head, uint32_t first, uint32_t count,
                         uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->client.awaited == 0 && count > 0 && first < head->parts);
    struct tierce__memcached_key key;
    TIERCE_DASSERT(count <= TIERCE__MEMCACHED_AT_ONCE && count <= head->parts - first);
    for (uint32_t i = 0; i < count; i++) {
        tierce__memcached_part_key(&key, link->store->prefix, head, first + i);
        if (seconds > 0)
            tierce__memcached_add(&link->client, "%s %s %u", verb, key.text, seconds);
        else
            tierce__memcached_add(&link->client, "%s %s", verb, key.text);
    }
    return tierce__memcached_send(&link->client, NULL, 0, deadline_ns);
}

/* Deletes parts [0, count) of a head that was replaced or deleted: at once, or after a while if
 * readers may use them. If that fails, they stay until they are evicted; no head refers to them. */
static void drop_parts(struct memcached_link *link, const struct tierce__memcached_head *head,
                       uint32_t count, bool may_be_read, uint64_t deadline_ns)
{
    int rc = 0;
    TIERCE_DASSERT(count <= head->parts);
    for (uint32_t done = 0; done < count && rc == 0;) {
        uint32_t some = at_once(count - done);
        rc = ask_for_parts(link, may_be_read ? "touch" : "delete", may_be_read ? GRACE_S : 0, head,
                           done, some, deadline_ns);
        for (uint32_t i = 0; i < some && rc == 0; i++) {
            enum tierce__memcached_kind kind = TIERCE__MEMCACHED_ERROR;
            rc = read_word(link, &kind, deadline_ns);
        }
        done += some;
    }
}

/* The part of an object that a GET reads. */
struct memcached_range {
    uint8_t *memory;
    uint64_t offset, length;
};

/* One part, as far as it lies in the range. */
static int read_part(struct memcached_link *link, const struct tierce__memcached_head *head,
                     uint32_t part, const struct memcached_range *range, bool *lost,
                     uint64_t deadline_ns)
{
    struct tierce__memcached *client = &link->client;
    struct tierce__memcached_line line;
    int rc = tierce__memcached_read(client, &line, deadline_ns);
    TIERCE_DASSERT(part < head->parts);
    if (rc == 0 && line.kind == TIERCE__MEMCACHED_VALUE) {
        uint64_t begin = (uint64_t)part * head->part_bytes, end = begin + line.bytes;
        uint64_t from = begin > range->offset ? begin : range->offset;
        uint64_t range_end = range->offset + range->length;
        uint64_t until = end < range_end ? end : range_end;
        if (line.bytes != tierce__memcached_part_size(head, part))
            return tierce__peer_misunderstood(&client->peer, "a part with an unexpected length");
        TIERCE_DASSERT(range->offset <= from && begin <= from && from <= until);
        rc = tierce__memcached_read_value(client, &line, range->memory + (from - range->offset),
                                          from - begin, until - from, deadline_ns);
        if (rc == 0)
            rc = tierce__memcached_read(client, &line, deadline_ns);
    } else {
        *lost = true;
    }
    if (rc == 0 && line.kind != TIERCE__MEMCACHED_END)
        rc = tierce__memcached_refused(client, &line);
    if (rc == 0)
        tierce__memcached_answered(client);
    return rc;
}

/* *lost: one of the parts is not there. All answers are read, so that the connection stays in
 * step. */
static int read_parts(struct memcached_link *link, const struct tierce__memcached_head *head,
                      const struct memcached_range *range, bool *lost, uint64_t deadline_ns)
{
    TIERCE_DASSERT(range->length > 0 && range->length <= head->length);
    TIERCE_DASSERT(range->offset <= head->length - range->length);
    uint32_t part = (uint32_t)(range->offset / head->part_bytes);
    uint32_t last = (uint32_t)((range->offset + range->length - 1) / head->part_bytes);
    TIERCE_DASSERT(part <= last && last < head->parts);
    int rc = 0;
    *lost = false;
    while (part <= last && rc == 0 && !*lost) {
        uint32_t some = at_once(last - part + 1);
        rc = ask_for_parts(link, "get", 0, head, part, some, deadline_ns);
        for (uint32_t i = 0; i < some && rc == 0; i++)
            rc = read_part(link, head, part + i, range, lost, deadline_ns);
        part += some;
    }
    return rc;
}

/* ---- replacing heads ------------------------------------------------------------------------- */

/* As memcached counts: seconds, or since 1970 where they are many. */
static uint64_t expires_in(uint64_t ttl_ms, uint64_t more_s)
{
    if (ttl_ms == 0)
        return 0;
    uint64_t seconds = (ttl_ms + 999) / 1000 + more_s;
    return seconds <= RELATIVE_S_MAX ? seconds : (uint64_t)time(NULL) + seconds;
}

static void add_put(struct memcached_link *link, const struct tierce__memcached_key *key,
                    const struct found *found, size_t bytes)
{
    uint64_t expires = expires_in(link->store->ttl_ms, 0);
    if (found->is_there)
        tierce__memcached_add(&link->client, "cas %s 0 %" PRIu64 " %zu %" PRIu64, key->text,
                              expires, bytes, found->unique);
    else
        tierce__memcached_add(&link->client, "add %s 0 %" PRIu64 " %zu", key->text, expires, bytes);
}

/*
 * Atomically replaces the value of a key by these bytes, or deletes it (`bytes` NULL): *old is the
 * previous value. `only`: nothing happens unless that is the head which is there.
 */
static int swap(struct memcached_link *link, const struct tierce__memcached_key *key,
                const uint8_t *bytes, size_t count, const struct tierce__memcached_head *only,
                struct found *old, uint64_t deadline_ns)
{
    static const uint8_t nothing[1];
    TIERCE_DASSERT(bytes != NULL || count == 0);
    for (unsigned i = 0; i < SWAPS_MAX; i++) {
        enum tierce__memcached_kind kind = TIERCE__MEMCACHED_ERROR;
        int rc = find(link, key, old, deadline_ns);
        if (rc != 0 || (bytes == NULL && !old->is_there))
            return rc;
        if (only != NULL && !is_same(old, only)) {
            *old = (struct found){0};
            return 0;
        }
        if (bytes != NULL)
            add_put(link, key, old, count);
        else /* replace by an item that has expired: the only way to delete exactly the value that
                was read */
            tierce__memcached_add(&link->client, "cas %s 0 -1 0 %" PRIu64, key->text, old->unique);
        rc = tierce__memcached_send(&link->client, bytes != NULL ? bytes : nothing, count,
                                    deadline_ns);
        if (rc == 0)
            rc = read_word(link, &kind, deadline_ns);
        if (rc != 0)
            return rc;
        /* Another client was faster, or the item was evicted. */
        if (kind == TIERCE__MEMCACHED_EXISTS || kind == TIERCE__MEMCACHED_NOT_FOUND ||
            kind == TIERCE__MEMCACHED_NOT_STORED)
            continue;
        return status_of(link, kind);
    }
    return tierce__peer_misunderstood(&link->client.peer,
                                      "a head that changed at every attempt to replace it");
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int begin(struct memcached_link *link, struct tierce__memcached_key *key,
                 const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    tierce__memcached_head_key(key, link->store->prefix, name);
    return tierce__memcached_begin(&link->client, deadline_ns);
}

static int memcached_find(void *opened, const struct tierce_plugin_name *names, size_t count,
                          _Atomic size_t *found, uint64_t deadline_ns)
{
    TIERCE_DASSERT(count > 0 && *found == 0);
    struct memcached_link *link = opened;
    struct tierce__memcached_key key;
    bool yes = true;
    TIERCE_DASSERT(count <= TIERCE__MEMCACHED_AT_ONCE);
    int rc = tierce__memcached_begin(&link->client, deadline_ns);
    for (size_t i = 0; i < count && rc == 0; i++) {
        tierce__memcached_head_key(&key, link->store->prefix, &names[i]);
        tierce__memcached_add(&link->client, "get %s", key.text);
    }
    if (rc == 0)
        rc = tierce__memcached_send(&link->client, NULL, 0, deadline_ns);
    for (size_t i = 0; i < count && rc == 0; i++) {
        struct found one;
        rc = read_found(link, &one, deadline_ns);
        yes = yes && rc == 0 && is_of(&one, &names[i]);
        *found += yes;
    }
    TIERCE_DASSERT(*found <= count);
    return rc;
}

static int memcached_get(void *opened, const struct tierce_plugin_name *name, void *memory,
                         uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    TIERCE_DASSERT(length > 0);
    struct memcached_link *link = opened;
    const struct memcached_range range = {memory, offset, length};
    struct tierce__memcached_key key;
    struct tierce__memcached_head before = {0};
    for (;;) {
        struct found found;
        bool lost = false;
        int rc = begin(link, &key, name, deadline_ns);
        if (rc == 0)
            rc = find(link, &key, &found, deadline_ns);
        if (rc != 0)
            return rc;
        if (!is_of(&found, name))
            return TIERCE_E_MISS;
        if (before.parts > 0 && is_same(&found, &before)) {
            rc = swap(link, &key, NULL, 0, &before, &found, deadline_ns);
            if (rc != 0)
                return rc;
            if (found.is_head) {
                drop_parts(link, &before, before.parts, false, deadline_ns);
                return TIERCE_E_MISS;
            }
            continue; /* another one has come just now, or it has gone */
        }
        before = found.head;
        if (length > found.head.length || offset > found.head.length - length) {
            snprintf(link->client.peer.why, sizeof(link->client.peer.why),
                     "an object with an unexpected length");
            return TIERCE_E_FORMAT;
        }
        rc = read_parts(link, &before, &range, &lost, deadline_ns);
        if (rc != 0 || !lost)
            return rc;
    }
}

/* *sent: how many were, whatever became of them. */
static int put_parts(struct memcached_link *link, const struct tierce__memcached_head *head,
                     const uint8_t *memory, uint32_t *sent, uint64_t deadline_ns)
{
    TIERCE_DASSERT(link->client.awaited == 0);
    TIERCE_DASSERT(head->length > 0 && (head->length - 1) / head->part_bytes + 1 == head->parts);
    uint64_t expires = expires_in(link->store->ttl_ms, GRACE_S);
    struct tierce__memcached_key key;
    enum tierce__memcached_kind kind = TIERCE__MEMCACHED_ERROR;
    int rc = 0, status = 0;
    for (*sent = 0; *sent < head->parts && rc == 0 && status == 0;) {
        uint32_t some = at_once(head->parts - *sent);
        for (uint32_t i = 0; i < some && rc == 0; i++) {
            uint32_t part = *sent + i, bytes = tierce__memcached_part_size(head, part);
            TIERCE_DASSERT(part < head->parts && bytes <= head->part_bytes);
            tierce__memcached_part_key(&key, link->store->prefix, head, part);
            tierce__memcached_add(&link->client, "set %s 0 %" PRIu64 " %" PRIu32, key.text, expires,
                                  bytes);
            rc = tierce__memcached_send(&link->client, memory + (uint64_t)part * head->part_bytes,
                                        bytes, deadline_ns);
        }
        for (uint32_t i = 0; i < some && rc == 0; i++) {
            rc = read_word(link, &kind, deadline_ns);
            if (rc == 0 && status == 0)
                status = status_of(link, kind);
            if (!tierce__peer_is_connected(&link->client.peer))
                return status != 0 ? status : rc;
        }
        *sent += some;
    }
    TIERCE_DASSERT(*sent <= head->parts);
    return rc != 0 ? rc : status;
}

static int memcached_put(void *opened, const struct tierce_plugin_name *name, const void *memory,
                         uint64_t length, uint64_t deadline_ns)
{
    struct memcached_link *link = opened;
    struct tierce__memcached_key key;
    struct tierce__memcached_head head = {.length = length, .name = *name};
    uint8_t bytes[TIERCE__MEMCACHED_HEAD_BYTES];
    struct found old = {0};
    uint32_t sent = 0;
    int rc = begin(link, &key, name, deadline_ns);
    if (rc != 0)
        return rc;
    head.part_bytes = (uint32_t)(link->client.item_bytes - ITEM_HEAD);
    TIERCE_DASSERT(head.part_bytes > 0 && length > 0);
    uint64_t parts = (length - 1) / head.part_bytes + 1;
    if (parts > TIERCE__MEMCACHED_PARTS_MAX) {
        snprintf(link->client.peer.why, sizeof(link->client.peer.why),
                 "an object of %" PRIu64 " items of the server", parts);
        return TIERCE_E_LIMIT;
    }
    head.parts = (uint32_t)parts;
    if (getrandom(head.generation, sizeof(head.generation), 0) != sizeof(head.generation))
        return -EIO;
    rc = put_parts(link, &head, memory, &sent, deadline_ns);
    if (rc == 0)
        rc = swap(link, &key, bytes, tierce__memcached_head_encode(bytes, &head), NULL, &old,
                  deadline_ns);
    if (rc == 0 && old.is_head)
        drop_parts(link, &old.head, old.head.parts, true, deadline_ns);
    if (rc != 0 && tierce__peer_is_connected(&link->client.peer))
        drop_parts(link, &head, sent, false, deadline_ns);
    return rc;
}

static int memcached_remove(void *opened, const struct tierce_plugin_name *name,
                            uint64_t deadline_ns)
{
    struct memcached_link *link = opened;
    struct tierce__memcached_key key;
    struct found old = {0};
    int rc = begin(link, &key, name, deadline_ns);
    if (rc == 0)
        rc = swap(link, &key, NULL, 0, NULL, &old, deadline_ns);
    if (rc == 0 && old.is_head)
        drop_parts(link, &old.head, old.head.parts, false, deadline_ns);
    return rc;
}

static int memcached_ping(void *opened, uint64_t deadline_ns)
{
    struct memcached_link *link = opened;
    struct tierce__memcached_line line;
    int rc = tierce__memcached_begin(&link->client, deadline_ns);
    if (rc != 0)
        return rc;
    tierce__memcached_add(&link->client, "version");
    rc = tierce__memcached_send(&link->client, NULL, 0, deadline_ns);
    if (rc == 0)
        rc = tierce__memcached_read(&link->client, &line, deadline_ns);
    if (rc == 0 && line.kind != TIERCE__MEMCACHED_VERSION)
        rc = tierce__memcached_refused(&link->client, &line);
    if (rc == 0)
        tierce__memcached_answered(&link->client);
    return rc;
}

/* ---- links ----------------------------------------------------------------------------------- */

static int open_link(void **out, void *store)
{
    struct memcached_link *link = *out;
    link->store = store;
    tierce__memcached_init(&link->client, &link->store->place);
    return 0;
}

static void close_link(void *opened)
{
    struct memcached_link *link = opened;
    tierce__peer_close(&link->client.peer);
    tierce__free(link);
}

static struct tierce__link_state state_of(const void *opened)
{
    const struct memcached_link *link = opened;
    return tierce__peer_state(&link->client.peer);
}

static const char *why_of(void *opened)
{
    const struct memcached_link *link = opened;
    return link->client.peer.why;
}

static int open_memcached(void **out, struct tierce__client *own,
                          const struct tierce__connector_source *source,
                          char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct memcached *store = *out;
    static const char *const known[] = {"ttl", "connections", "prefix", NULL};
    static const struct tierce__url_number ttl = {"ttl", TIERCE__URL_MILLISECONDS, TTL_MS_MIN,
                                                  TTL_MS_MAX};
    (void)own;
    const char *prefix = tierce__url_param(source->url, "prefix");
    prefix = prefix != NULL ? prefix : PREFIX;
    int rc = tierce__url_check_params(source->url, known, why);
    if (rc == 0)
        rc = tierce__url_param_number(source->url, &store->ttl_ms, &ttl, why);
    if (rc == 0 && !tierce__memcached_prefix_is_sane(prefix)) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "URL: the prefix is longer than %u bytes or has unprintable characters",
                 TIERCE__MEMCACHED_PREFIX_BYTES);
        rc = TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = tierce__peer_place_parse(&store->place, source->url, PORT, why);
    if (rc == 0)
        snprintf(store->prefix, sizeof(store->prefix), "%s", prefix);
    return rc;
}

const struct tierce__client tierce__memcached_client = {
    .table = {.caps = TIERCE__CONNECTOR_RANGES,
              .close = tierce__free,
              .link_open = open_link,
              .link_close = close_link,
              .get = memcached_get,
              .put = memcached_put,
              .remove = memcached_remove,
              .ping = memcached_ping,
              .why = why_of},
    .scheme = "memcached",
    .store_bytes = sizeof(struct memcached),
    .link_bytes = sizeof(struct memcached_link),
    .links = LINKS,
    .names_max = TIERCE__MEMCACHED_AT_ONCE,
    .open = open_memcached,
    .find = memcached_find,
    .state = state_of,
};
