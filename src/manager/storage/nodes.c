/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/nodes.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/list.h"
#include "base/log/log.h"
#include "base/map.h"
#include "base/mix.h"
#include "base/text/host_port.h"
#include "base/text/line.h"
#include "base/text/url.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    LEASE_MS = 5000,
    FORGET_MS = 60000,
    TICK_US = 250000,
    NAME_BYTES_MAX = 64,
    TEXT_BYTES_MAX = 255
};

/* A part that was heard of, or that the registry had when this manager began to lead. */
struct known_part {
    struct tierce__map_node node; /* by the number of its storage */
    uint16_t storage;
    int64_t heard_us;
    bool is_heard, is_leaving;
    bool has_rejected; /* it had no room for a write since the last report */
    char version[64];
    uint64_t used_bytes, object_count, load_bytes_per_s;
};

struct tierce__nodes {
    struct tierce__nodes_opts opts;
    char *token_file, *ca_file;
    struct tierce__lock lock; /* NODES: the fields below */
    struct tierce__map parts;
    int64_t led_us, ticked_us;
    uint64_t load_max; /* bytes/s of the busiest node */
    bool is_load_old;  /* the load of the busiest node has fallen: load_max is found again when it
                          is needed, and not for each report of many nodes */
};

static int64_t system_us(void *arg)
{
    (void)arg;
    return (int64_t)(tierce__now_ns() / 1000);
}

int tierce__nodes_create(struct tierce__nodes **out, const struct tierce__nodes_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__nodes *nodes = tierce__calloc(1, sizeof(*nodes));
    if (nodes == NULL)
        return -ENOMEM;
    nodes->opts = *opts;
    tierce__lock_init(&nodes->lock, TIERCE__LOCK_NODES);
    nodes->token_file = tierce__strdup(opts->token_file != NULL ? opts->token_file : "");
    nodes->ca_file = tierce__strdup(opts->ca_file != NULL ? opts->ca_file : "");
    if (nodes->token_file == NULL || nodes->ca_file == NULL) {
        tierce__nodes_destroy(nodes);
        return -ENOMEM;
    }
    if (nodes->opts.lease_ms == 0)
        nodes->opts.lease_ms = LEASE_MS;
    if (nodes->opts.forget_ms == 0)
        nodes->opts.forget_ms = FORGET_MS;
    if (nodes->opts.now_us == NULL)
        nodes->opts.now_us = system_us;
    *out = nodes;
    return 0;
}

static void drop_parts(struct tierce__nodes *nodes)
{
    TIERCE__MAP_FOR_EACH (node, &nodes->parts)
        tierce__free(TIERCE__CONTAINER_OF(node, struct known_part, node));
    tierce__map_fini(&nodes->parts);
    nodes->parts = (struct tierce__map){0};
    nodes->load_max = 0;
    nodes->is_load_old = false;
}

void tierce__nodes_destroy(struct tierce__nodes *nodes)
{
    if (nodes == NULL)
        return;
    drop_parts(nodes);
    tierce__lock_fini(&nodes->lock);
    tierce__free(nodes->token_file);
    tierce__free(nodes->ca_file);
    tierce__free(nodes);
}

uint32_t tierce__nodes_lease_ms(const struct tierce__nodes *nodes)
{
    return nodes->opts.lease_ms;
}

static int64_t now_of(const struct tierce__nodes *nodes)
{
    return nodes->opts.now_us(nodes->opts.clock_arg);
}

void tierce__nodes_lead(struct tierce__nodes *nodes)
{
    tierce__lock_take(&nodes->lock);
    drop_parts(nodes);
    nodes->led_us = now_of(nodes);
    nodes->ticked_us = 0;
    tierce__lock_drop(&nodes->lock);
}

/* ---- the table ------------------------------------------------------------------------------- */

static struct known_part *find_part(const struct tierce__nodes *nodes, uint16_t storage)
{
    tierce__lock_assert_held(&nodes->lock);
    struct tierce__map_node *node = tierce__map_find(&nodes->parts, tierce__spread(storage));
    return node != NULL ? TIERCE__CONTAINER_OF(node, struct known_part, node) : NULL;
}

/* NULL: no memory. */
static struct known_part *make_part(struct tierce__nodes *nodes, uint16_t storage)
{
    struct known_part *part = find_part(nodes, storage);
    if (part != NULL)
        return part;
    part = tierce__calloc(1, sizeof(*part));
    if (part == NULL)
        return NULL;
    part->storage = storage;
    part->heard_us = nodes->led_us;
    tierce__map_put(&nodes->parts, &part->node, tierce__spread(storage));
    return part;
}

static bool is_live(const struct tierce__nodes *nodes, const struct known_part *part,
                    int64_t now_us)
{
    return !part->is_leaving && now_us - part->heard_us <= (int64_t)nodes->opts.lease_ms * 1000;
}

static void find_load(struct tierce__nodes *nodes)
{
    tierce__lock_assert_held(&nodes->lock);
    if (!nodes->is_load_old)
        return;
    nodes->load_max = 0;
    nodes->is_load_old = false;
    TIERCE__MAP_FOR_EACH (node, &nodes->parts) {
        const struct known_part *part = TIERCE__CONTAINER_OF(node, struct known_part, node);
        if (part->load_bytes_per_s > nodes->load_max)
            nodes->load_max = part->load_bytes_per_s;
    }
}

static void note_load(struct tierce__nodes *nodes, struct known_part *part, uint64_t load)
{
    tierce__lock_assert_held(&nodes->lock);
    if (load >= nodes->load_max)
        nodes->load_max = load;
    else if (part->load_bytes_per_s == nodes->load_max)
        nodes->is_load_old = true;
    part->load_bytes_per_s = load;
}

static void note_heard(struct tierce__nodes *nodes, uint16_t storage,
                       const struct tierce__node_report *report,
                       const struct tierce__node_part *sent)
{
    tierce__lock_take(&nodes->lock);
    struct known_part *part = make_part(nodes, storage);
    if (part != NULL) {
        part->heard_us = now_of(nodes);
        part->is_heard = true;
        part->is_leaving = report->is_leaving;
        part->has_rejected = false;
        part->used_bytes = sent->used_bytes;
        part->object_count = sent->object_count;
        note_load(nodes, part, report->load_bytes_per_s);
        tierce__text_for_message(part->version, sizeof(part->version), report->version);
    }
    /* Under the lock: an older check that ends later would otherwise mark the node as silent. */
    tierce__storages_set_silent(nodes->opts.storages, storage, report->is_leaving);
    tierce__lock_drop(&nodes->lock);
}

/* ---- registering ----------------------------------------------------------------------------- */

static int reject(struct tierce__node_answer *answer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A precision may cut a node's text within a character, so the whole reason is made clean: answers
 * are UTF-8. */
static int reject(struct tierce__node_answer *answer, const char *format, ...)
{
    char text[2 * sizeof(answer->reason)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    tierce__text_for_message(answer->reason, sizeof(answer->reason), text);
    answer->state = TIERCE__NODE_REJECTED;
    return TIERCE_E_ARGUMENT;
}

static bool is_name(const char *name)
{
    static const char accepted[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789-_.";
    size_t length = strlen(name);
    return length > 0 && length <= NAME_BYTES_MAX && strspn(name, accepted) == length;
}

static bool is_incarnation(const char *text)
{
    enum { DIGITS = 32 };
    return strlen(text) == DIGITS && strspn(text, "0123456789abcdef") == DIGITS;
}

/* Registry and answers have it as it is. */
static bool is_text(const char *text)
{
    return strlen(text) <= TEXT_BYTES_MAX && tierce__text_is_clean(text, strlen(text));
}

/* Names such that "POOL.NODE" and "POOL.NODE.disk" are different for different parts. */
static int check_names(const struct tierce__node_report *report, struct tierce__node_answer *answer)
{
    static const char disk[] = ".disk";
    size_t length = strlen(report->node), end = sizeof(disk) - 1;
    if (!is_name(report->pool) || strchr(report->pool, '.') != NULL)
        return reject(answer, "pool is \"%.64s\"; accepted are 1 to 64 of A-Z a-z 0-9 - _",
                      report->pool);
    if (!is_name(report->node) || (length >= end && strcmp(report->node + length - end, disk) == 0))
        return reject(answer,
                      "node is \"%.64s\"; accepted are 1 to 64 of A-Z a-z 0-9 - _ . that do not "
                      "end in .disk",
                      report->node);
    return 0;
}

static int check_part(const struct tierce__node_report *report,
                      const struct tierce__node_part *part, struct tierce__node_answer *answer)
{
    if (!is_incarnation(part->incarnation))
        return reject(answer, "incarnation is \"%.40s\"; it must be 32 hex digits in lower case",
                      part->incarnation);
    if (part->capacity_bytes == 0)
        return reject(answer, "capacity_bytes is 0; it must be the size of the part");
    struct tierce__host_port at;
    if (!tierce__host_port_split(&at, report->address, strlen(report->address)) || at.port == 0 ||
        strpbrk(report->address, "/?#@,& \t\r\n%") != NULL || !is_text(report->address))
        return reject(answer, "address is \"%.100s\"; it must be HOST:PORT", report->address);
    if (!is_text(report->host_id))
        return reject(
            answer,
            "host_id is \"%.100s\"; it must be at most 255 bytes of UTF-8 without control "
            "characters",
            report->host_id);
    return 0;
}

/* Texts of a part's storage. */
struct part_texts {
    char *uri;
    char host[256];
    char pool[NAME_BYTES_MAX + 1], node[NAME_BYTES_MAX + 1], incarnation[40], medium[8];
};

/* A parameter that names a file, if there is one; what stands before the next parameter. */
static const char *put_file(struct tierce__line *line, const char *next, const char *name,
                            const char *path)
{
    if (path[0] == '\0')
        return next;
    tierce__line_put(line, next);
    tierce__line_put(line, name);
    tierce__url_put_encoded(line, path);
    return "&";
}

static int make_texts(struct part_texts *out, const struct tierce__nodes *nodes,
                      const struct tierce__node_report *report,
                      const struct tierce__node_part *part)
{
    struct tierce__line line = {0};
    snprintf(out->medium, sizeof(out->medium), "%s", part->is_disk ? "disk" : "memory");
    snprintf(out->pool, sizeof(out->pool), "%s", report->pool);
    snprintf(out->node, sizeof(out->node), "%s", report->node);
    snprintf(out->incarnation, sizeof(out->incarnation), "%s", part->incarnation);
    uint16_t port;
    out->host[0] = '\0';
    if (report->host_id[0] != '\0')
        snprintf(out->host, sizeof(out->host), "%s", report->host_id);
    else
        (void)tierce__host_port_read(out->host, sizeof(out->host), &port, report->address);
    tierce__line_put(&line, report->uses_tls ? "transfer+tls://" : "transfer://");
    tierce__line_put(&line, report->address);
    tierce__line_put(&line, "/");
    tierce__line_put(&line, out->medium);
    const char *next = "?";
    next = put_file(&line, next, "token_file=", nodes->token_file);
    if (report->uses_tls)
        (void)put_file(&line, next, "ca_file=", nodes->ca_file);
    tierce__line_put_bytes(&line, "", 1);
    if (line.failed) {
        tierce__line_clear(&line);
        return -ENOMEM;
    }
    out->uri = line.text;
    return 0;
}

/* A second node of this name while the first one is alive: another process at another address. */
static bool is_taken(struct tierce__nodes *nodes, const struct tierce__storage *now,
                     const struct tierce__storage *part)
{
    if (strcmp(now->incarnation, part->incarnation) == 0 || strcmp(now->uri, part->uri) == 0)
        return false;
    tierce__lock_take(&nodes->lock);
    const struct known_part *known = find_part(nodes, now->number);
    bool is = known != NULL && known->is_heard && is_live(nodes, known, now_of(nodes));
    tierce__lock_drop(&nodes->lock);
    return is;
}

static bool is_same(const struct tierce__storage *now, const struct tierce__storage *part)
{
    return strcmp(now->incarnation, part->incarnation) == 0 && strcmp(now->uri, part->uri) == 0 &&
           strcmp(now->host_id, part->host_id) == 0 && now->capacity_bytes == part->capacity_bytes;
}

static enum tierce__node_state state_of(const struct tierce__storage *storage)
{
    switch (storage->contents) {
    case TIERCE__CONTENTS_KEPT:
        return storage->is_enabled ? TIERCE__NODE_SERVES : TIERCE__NODE_DISABLED;
    case TIERCE__CONTENTS_LOST:
        return TIERCE__NODE_EMPTYING;
    case TIERCE__CONTENTS_FORGOTTEN:
    case TIERCE__CONTENTS_GONE:
        break;
    }
    return TIERCE__NODE_FORGOTTEN;
}

/* Reads the part's storage from the current catalog. Its number, or 0: `part` differs from it. */
static uint16_t look_up(struct tierce__nodes *nodes, const struct tierce__storage *part,
                        struct tierce__node_answer *answer)
{
    uint16_t number = 0;
    const struct tierce__catalog *catalog = tierce__registry_acquire(nodes->opts.registry);
    const struct tierce__storage *now = tierce__catalog_storage(catalog, part->name);
    if (now != NULL && now->type == TIERCE__STORAGE_NODE && is_taken(nodes, now, part))
        (void)reject(answer,
                     "node %.64s of pool %.64s is alive at %.60s; a second node of this name is at "
                     "%.60s: give it another name",
                     part->node, part->pool, now->uri, part->uri);
    else if (now != NULL && now->type == TIERCE__STORAGE_NODE && is_same(now, part)) {
        number = now->number;
        answer->state = state_of(now);
    }
    tierce__registry_release(nodes->opts.registry, catalog);
    return number;
}

static void register_part(struct tierce__nodes *nodes, const struct tierce__node_report *report,
                          const struct tierce__node_part *sent, struct tierce__node_answer *answer)
{
    struct part_texts texts = {0};
    if (check_part(report, sent, answer) < 0)
        return;
    if (make_texts(&texts, nodes, report, sent) < 0) {
        (void)reject(answer, "no memory");
        return;
    }
    const struct tierce__storage part = {.name = answer->storage,
                                         .type = TIERCE__STORAGE_NODE,
                                         .is_enabled = true,
                                         .capacity_bytes = sent->capacity_bytes,
                                         .uri = texts.uri,
                                         .pool = texts.pool,
                                         .node = texts.node,
                                         .medium = texts.medium,
                                         .incarnation = texts.incarnation,
                                         .host_id = texts.host};
    uint16_t number = look_up(nodes, &part, answer);
    if (number == 0 && answer->state != TIERCE__NODE_REJECTED) {
        char why[256] = "";
        int rc =
            tierce__registry_put_part(nodes->opts.registry, &part, sent->object_count > 0, why);
        if (rc == 0)
            number = look_up(nodes, &part, answer);
        if (rc < 0 || (number == 0 && answer->state != TIERCE__NODE_REJECTED))
            (void)reject(answer, "%s", why[0] != '\0' ? why : tierce_strerror(rc));
    }
    if (number != 0)
        note_heard(nodes, number, report, sent);
    tierce__free(texts.uri);
}

void tierce__nodes_register(struct tierce__nodes *nodes, const struct tierce__node_report *report,
                            struct tierce__node_answer *answers)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    for (size_t i = 0; i < report->part_count; i++) {
        struct tierce__node_answer *answer = &answers[i];
        *answer = (struct tierce__node_answer){0};
        if (check_names(report, answer) < 0)
            continue;
        snprintf(answer->storage, sizeof(answer->storage), "%s.%s%s", report->pool, report->node,
                 report->parts[i].is_disk ? ".disk" : "");
        register_part(nodes, report, &report->parts[i], answer);
        TIERCE_DASSERT(answer->state != 0);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

static void look_after(struct tierce__nodes *nodes, const struct tierce__storage *storage)
{
    tierce__lock_take(&nodes->lock);
    int64_t now_us = now_of(nodes);
    const struct known_part *part = make_part(nodes, storage->number);
    bool lives = part == NULL || is_live(nodes, part, now_us);
    bool is_gone = part != NULL && now_us - part->heard_us > (int64_t)nodes->opts.forget_ms * 1000;
    tierce__storages_set_silent(nodes->opts.storages, storage->number, !lives);
    tierce__lock_drop(&nodes->lock);
    bool has_objects =
        storage->contents == TIERCE__CONTENTS_KEPT || storage->contents == TIERCE__CONTENTS_LOST;
    if (!is_gone || !has_objects || strcmp(storage->medium, "memory") != 0)
        return;
    char why[256] = "";
    int rc = tierce__registry_forget_storage(nodes->opts.registry, storage->name, why);
    tierce__log(TIERCE_LOG_WARN, "node_gone",
                "storage=%s silent_ms=%u consequence=\"its objects are forgotten\" why=\"%s\"",
                storage->name, nodes->opts.forget_ms, rc < 0 ? why : "");
}

void tierce__nodes_tick(struct tierce__nodes *nodes)
{
    size_t count;
    tierce__lock_take(&nodes->lock);
    int64_t now_us = now_of(nodes);
    bool is_due = nodes->ticked_us == 0 || now_us - nodes->ticked_us >= TICK_US;
    nodes->ticked_us = is_due ? now_us : nodes->ticked_us;
    tierce__lock_drop(&nodes->lock);
    if (!is_due)
        return;
    const struct tierce__catalog *catalog = tierce__registry_acquire(nodes->opts.registry);
    const struct tierce__storage *storages = tierce__catalog_storages(catalog, &count);
    for (size_t i = 0; i < count; i++) {
        if (storages[i].type == TIERCE__STORAGE_NODE && storages[i].pool[0] != '\0')
            look_after(nodes, &storages[i]);
    }
    tierce__registry_release(nodes->opts.registry, catalog);
}

/* ---- queries --------------------------------------------------------------------------------- */

bool tierce__nodes_seen(struct tierce__nodes *nodes, uint16_t storage,
                        struct tierce__node_seen *out)
{
    *out = (struct tierce__node_seen){0};
    tierce__lock_take(&nodes->lock);
    const struct known_part *part = find_part(nodes, storage);
    bool is_heard = part != NULL && part->is_heard;
    if (is_heard) {
        int64_t now_us = now_of(nodes);
        out->is_live = is_live(nodes, part, now_us);
        out->heard_ms = (now_us - part->heard_us) / 1000;
        out->used_bytes = part->used_bytes;
        out->object_count = part->object_count;
        out->load_bytes_per_s = part->load_bytes_per_s;
        memcpy(out->version, part->version, sizeof(out->version));
    }
    tierce__lock_drop(&nodes->lock);
    return is_heard;
}

static double suit_of(const struct tierce__nodes *nodes, const struct tierce__node_suit *at,
                      const char *host_id)
{
    const double local_share = 0.1, local_bonus = 2, rejected = -10;
    const struct tierce__storage *part = at->part;
    const struct known_part *known = find_part(nodes, part->number);
    double capacity = (double)part->capacity_bytes, free = 0, load = 0;
    if (part->capacity_bytes > at->used_bytes)
        free = (double)(part->capacity_bytes - at->used_bytes) / capacity;
    if (known != NULL && nodes->load_max > 0)
        load = (double)known->load_bytes_per_s / (double)nodes->load_max;
    bool is_local = host_id != NULL && host_id[0] != '\0' && strcmp(host_id, part->host_id) == 0;
    return free - load + (is_local && free >= local_share ? local_bonus : 0) +
           (known != NULL && known->has_rejected ? rejected : 0);
}

void tierce__nodes_suit(struct tierce__nodes *nodes, struct tierce__node_suit *parts, size_t count,
                        const char *host_id)
{
    tierce__lock_take(&nodes->lock);
    find_load(nodes);
    for (size_t i = 0; i < count; i++)
        parts[i].suit = suit_of(nodes, &parts[i], host_id);
    tierce__lock_drop(&nodes->lock);
}

void tierce__nodes_not_written(struct tierce__nodes *nodes, uint16_t storage)
{
    tierce__lock_take(&nodes->lock);
    struct known_part *part = find_part(nodes, storage);
    if (part != NULL)
        part->has_rejected = true;
    tierce__lock_drop(&nodes->lock);
    if (part != NULL)
        tierce__storages_doubt(nodes->opts.storages, storage);
}
