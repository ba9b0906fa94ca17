/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_cluster.h"
#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "net/redis/resp_private.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CLUSTER_MAGIC   0x53c8a90du
#define SLOTS           TIERCE__RESP_SLOTS
#define NODES_MAX       1024u
#define NOBODY          UINT16_MAX
#define ROUNDS_MAX      64u /* of one batch; each waits a little, a redirection does not */
#define PAUSE_MS        20u
#define COMMANDS_FIRST  64u
#define CALL_TIMEOUT_MS 1000u
#define SLOTS_BYTES_MAX (32ull << 20) /* each slot a range of its own, of a few nodes */

struct node {
    char *host;
    uint16_t port;
    struct tierce__resp *resp; /* NULL until it is asked for */
    bool has_begun;            /* in this batch: its values must stay */
    size_t first, last;        /* its commands of this round: a list through struct command */
    bool is_used;              /* in this round */
};

struct command {
    const char **arguments;
    const size_t *bytes;
    size_t count;
    unsigned slot;
    bool borrows_last; /* the last argument is the caller's */
    void *into;        /* a bulk string goes there; or NULL */
    size_t into_bytes;
    struct tierce__resp_value value;
    bool is_answered;
    uint16_t asked; /* the node named by ASK, for one attempt; or NOBODY */
    size_t next;    /* of the same node and round; NONE: the last */
};

#define NONE SIZE_MAX

struct tierce__resp_cluster {
    uint32_t magic;
    struct tierce__resp_opts opts; /* for further nodes: texts as the caller gave them, copied */
    struct tierce__arena opts_arena;
    struct node *nodes;
    size_t node_count, node_size;
    uint16_t *slots;            /* node by slot, or NOBODY */
    bool is_stale;              /* the slots must be asked for again */
    struct tierce__arena arena; /* of the batch */
    struct command *commands;
    size_t count, size;
    uint32_t wait_replicas;
    char why[TIERCE__RESP_WHY_BYTES];
};

/* ---- slots ----------------------------------------------------------------------------------- */

/* CRC-16/XMODEM, four bits at once. */
static uint16_t crc16(const char *bytes, size_t count)
{
    static const uint16_t table[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5,
                                       0x60c6, 0x70e7, 0x8108, 0x9129, 0xa14a, 0xb16b,
                                       0xc18c, 0xd1ad, 0xe1ce, 0xf1ef};
    uint16_t crc = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        crc = (uint16_t)(crc << 4 ^ table[crc >> 12 ^ byte >> 4]);
        crc = (uint16_t)(crc << 4 ^ table[crc >> 12 ^ (byte & 15)]);
    }
    return crc;
}

unsigned tierce__resp_slot(const char *key, size_t bytes)
{
    const char *open = bytes > 0 ? memchr(key, '{', bytes) : NULL;
    if (open != NULL) {
        const char *tag = open + 1;
        const char *close = memchr(tag, '}', bytes - (size_t)(tag - key));
        if (close != NULL && close > tag) {
            key = tag;
            bytes = (size_t)(close - tag);
        }
    }
    return crc16(key, bytes) % SLOTS;
}

static uint32_t slot_tags[SLOTS];

static void find_slot_tags(void)
{
    static bool has_tag[SLOTS];
    unsigned left = SLOTS;
    for (uint32_t number = 0; left > 0; number++) {
        char digits[12];
        int bytes = snprintf(digits, sizeof(digits), "%" PRIu32, number);
        unsigned slot = crc16(digits, (size_t)bytes) % SLOTS;
        if (has_tag[slot])
            continue;
        has_tag[slot] = true;
        slot_tags[slot] = number;
        left--;
    }
}

uint32_t tierce__resp_slot_tag(unsigned slot)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    TIERCE_ASSERT(slot < SLOTS);
    (void)pthread_once(&once, find_slot_tags);
    return slot_tags[slot];
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static int fail(struct tierce__resp_cluster *cluster, int rc, const char *why)
{
    snprintf(cluster->why, sizeof(cluster->why), "%s", why);
    return rc;
}

/* The index of a node, which is added if it is new. Errors: -ENOMEM, TIERCE_E_LIMIT. */
static int find_node(struct tierce__resp_cluster *cluster, const char *host, size_t host_bytes,
                     uint16_t port)
{
    TIERCE_DASSERT(port > 0);
    TIERCE_DASSERT(cluster->node_count <= cluster->node_size);
    for (size_t i = 0; i < cluster->node_count; i++) {
        const struct node *node = &cluster->nodes[i];
        if (node->port == port && strlen(node->host) == host_bytes &&
            memcmp(node->host, host, host_bytes) == 0)
            return (int)i;
    }
    if (cluster->node_count == NODES_MAX)
        return TIERCE_E_LIMIT;
    if (TIERCE__GROW(cluster->nodes, cluster->node_size, cluster->node_count + 1, 8) < 0)
        return -ENOMEM;
    char *copy = tierce__alloc(host_bytes + 1);
    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, host, host_bytes);
    copy[host_bytes] = '\0';
    TIERCE_DASSERT(cluster->node_count < cluster->node_size);
    cluster->nodes[cluster->node_count] = (struct node){.host = copy, .port = port};
    return (int)cluster->node_count++;
}

/* The same of a place that a server names. A path would be a socket of this machine's. Errors:
 * TIERCE_E_FORMAT too. */
static int find_named(struct tierce__resp_cluster *cluster, const char *host, size_t host_bytes,
                      uint16_t port)
{
    for (size_t i = 0; i < host_bytes; i++) {
        char c = host[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            (c == '\0' || strchr("-._:%", c) == NULL))
            return TIERCE_E_FORMAT;
    }
    return find_node(cluster, host, host_bytes, port);
}

/* The client of a node, connected and with a pipeline of this batch. */
static int begin_node(struct tierce__resp_cluster *cluster, struct node *node)
{
    TIERCE_DASSERT(node >= cluster->nodes && node < cluster->nodes + cluster->node_count);
    int rc = 0;
    if (node->resp == NULL) {
        struct tierce__resp_opts opts = cluster->opts;
        opts.host = node->host;
        opts.port = node->port;
        opts.database = 0;
        rc = tierce__resp_create(&node->resp, &opts, cluster->why);
    }
    if (rc == 0 && !node->has_begun) {
        rc = tierce__resp_begin(node->resp);
        if (rc != 0)
            return fail(cluster, rc, tierce__resp_why(node->resp));
        node->has_begun = true;
    }
    return rc;
}

/* ---- learning -------------------------------------------------------------------------------- */

/* One entry of CLUSTER SLOTS: first, last, [host, port, ..], .. */
static int learn_entry(struct tierce__resp_cluster *cluster, const struct tierce__resp_value *entry,
                       const char *asked)
{
    if (entry->type != TIERCE__RESP_ARRAY || entry->count < 3)
        return TIERCE_E_FORMAT;
    const struct tierce__resp_value *first = &entry->items[0], *last = &entry->items[1],
                                    *node = &entry->items[2];
    if (first->type != TIERCE__RESP_INTEGER || last->type != TIERCE__RESP_INTEGER ||
        first->integer < 0 || last->integer < first->integer || last->integer >= SLOTS ||
        node->type != TIERCE__RESP_ARRAY || node->count < 2 ||
        node->items[1].type != TIERCE__RESP_INTEGER || node->items[1].integer <= 0 ||
        node->items[1].integer > UINT16_MAX)
        return TIERCE_E_FORMAT;
    const struct tierce__resp_value *host = &node->items[0];
    bool named = host->type == TIERCE__RESP_STRING && host->bytes > 0;
    uint16_t port = (uint16_t)node->items[1].integer;
    int found = named ? find_named(cluster, host->text, host->bytes, port)
                      : find_node(cluster, asked, strlen(asked), port);
    if (found < 0)
        return found;
    TIERCE_DASSERT((size_t)found < cluster->node_count);
    for (int64_t slot = first->integer; slot <= last->integer; slot++)
        cluster->slots[slot] = (uint16_t)found;
    return 0;
}

/* Asks one node, on a connection of its own, so that values of the batch stay. */
static int learn_from(struct tierce__resp_cluster *cluster, const char *host, uint16_t port,
                      uint64_t deadline_ns)
{
    struct tierce__resp_opts opts = cluster->opts;
    struct tierce__resp *resp = NULL;
    struct tierce__resp_value value = {0};
    opts.answer_bytes_max = SLOTS_BYTES_MAX;
    opts.host = host;
    opts.port = port;
    opts.database = 0;
    int rc = tierce__resp_open(&resp, &opts, cluster->why);
    if (rc == 0) {
        rc = tierce__resp_call(resp, (const char *[]){"CLUSTER", "SLOTS"}, (size_t[]){7, 5}, 2,
                               &value, deadline_ns);
        if (rc != 0)
            fail(cluster, rc, tierce__resp_why(resp));
    }
    if (rc == 0 && value.count > SLOTS)
        rc = fail(cluster, TIERCE_E_FORMAT, "CLUSTER SLOTS: more ranges than slots");
    if (rc == 0 && value.type != TIERCE__RESP_ARRAY)
        rc = fail(cluster, TIERCE_E_UNSUPPORTED,
                  value.type == TIERCE__RESP_ERROR ? tierce__resp_words(&value)
                                                   : "CLUSTER SLOTS: not an array");
    for (size_t slot = 0; rc == 0 && slot < SLOTS; slot++)
        cluster->slots[slot] = NOBODY;
    for (size_t i = 0; rc == 0 && i < value.count; i++) {
        rc = learn_entry(cluster, &value.items[i], host);
        if (rc != 0)
            fail(cluster, rc, "CLUSTER SLOTS: an invalid answer");
    }
    if (rc == 0)
        cluster->is_stale = false;
    tierce__resp_close(resp);
    return rc;
}

/* Queries the nodes in turn, the newest first: nodes that left the cluster are the oldest. */
static int learn(struct tierce__resp_cluster *cluster, uint64_t deadline_ns)
{
    TIERCE_DASSERT(cluster->is_stale);
    int rc = TIERCE_E_DEADLINE;
    for (size_t i = cluster->node_count; i-- > 0 && tierce__now_ns() < deadline_ns;) {
        /* The table of nodes may move while it grows. */
        char *host = tierce__strdup(cluster->nodes[i].host);
        if (host == NULL)
            return fail(cluster, -ENOMEM, tierce_strerror(-ENOMEM));
        rc = learn_from(cluster, host, cluster->nodes[i].port, deadline_ns);
        tierce__free(host);
        if (rc == 0)
            break;
    }
    return rc;
}

static uint64_t default_deadline(const struct tierce__resp_cluster *cluster)
{
    uint32_t timeout_ms = cluster->opts.call_timeout_ms;
    return tierce__deadline_in_ms(timeout_ms != 0 ? timeout_ms : CALL_TIMEOUT_MS);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int add_seeds(struct tierce__resp_cluster *cluster, const struct tierce__resp_node *nodes,
                     size_t count)
{
    enum { PORT = 6379 };
    /* The last is asked first. */
    for (size_t i = count; i-- > 0;) {
        const char *host = nodes[i].host != NULL ? nodes[i].host : "127.0.0.1";
        int seed =
            find_node(cluster, host, strlen(host), nodes[i].port != 0 ? nodes[i].port : PORT);
        if (seed < 0)
            return seed;
    }
    return 0;
}

int tierce__resp_cluster_create(struct tierce__resp_cluster **out,
                                const struct tierce__resp_opts *opts,
                                const struct tierce__resp_node *nodes, size_t count)
{
    struct tierce__resp_cluster *cluster = tierce__calloc(1, sizeof(*cluster));
    if (cluster == NULL)
        return -ENOMEM;
    cluster->magic = CLUSTER_MAGIC;
    cluster->is_stale = true;
    int rc = tierce__resp_opts_copy(&cluster->opts, &cluster->opts_arena, opts);
    cluster->slots = tierce__alloc(SLOTS * sizeof(*cluster->slots));
    if (rc == 0 && cluster->slots == NULL)
        rc = -ENOMEM;
    for (size_t slot = 0; rc == 0 && slot < SLOTS; slot++)
        cluster->slots[slot] = NOBODY;
    if (rc == 0)
        rc = add_seeds(cluster, nodes, count);
    if (rc != 0)
        tierce__resp_cluster_close(cluster);
    else
        *out = cluster;
    return rc;
}

void tierce__resp_cluster_close(struct tierce__resp_cluster *cluster)
{
    if (cluster == NULL)
        return;
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    for (size_t i = 0; i < cluster->node_count; i++) {
        tierce__resp_close(cluster->nodes[i].resp);
        tierce__free(cluster->nodes[i].host);
    }
    tierce__free(cluster->nodes);
    tierce__free(cluster->slots);
    tierce__free(cluster->commands);
    tierce__arena_clear(&cluster->arena);
    tierce__resp_opts_clear(&cluster->opts, &cluster->opts_arena);
    cluster->magic = 0;
    tierce__free(cluster);
}

bool tierce__resp_cluster_is_connected(const struct tierce__resp_cluster *cluster)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    for (size_t i = 0; i < cluster->node_count; i++) {
        const struct tierce__resp *resp = cluster->nodes[i].resp;
        if (resp != NULL && tierce__resp_is_connected(resp))
            return true;
    }
    return false;
}

uint64_t tierce__resp_cluster_connects(const struct tierce__resp_cluster *cluster)
{
    uint64_t connects = 0;
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    for (size_t i = 0; i < cluster->node_count; i++) {
        const struct tierce__resp *resp = cluster->nodes[i].resp;
        connects += resp != NULL ? tierce__resp_connects(resp) : 0;
    }
    return connects;
}

const char *tierce__resp_cluster_why(const struct tierce__resp_cluster *cluster)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    return cluster->why;
}

/* ---- a batch --------------------------------------------------------------------------------- */

void tierce__resp_cluster_begin(struct tierce__resp_cluster *cluster)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    tierce__arena_reset(&cluster->arena);
    cluster->count = 0;
    cluster->wait_replicas = 0;
    cluster->why[0] = '\0';
    for (size_t i = 0; i < cluster->node_count; i++)
        cluster->nodes[i].has_begun = false;
}

void tierce__resp_cluster_wait(struct tierce__resp_cluster *cluster, uint32_t replicas)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    cluster->wait_replicas = replicas;
}

static int append(struct tierce__resp_cluster *cluster, size_t key, const char *const *arguments,
                  const size_t *bytes, size_t count, bool borrows_last)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    TIERCE_ASSERT(key < count);
    if (TIERCE__GROW(cluster->commands, cluster->size, cluster->count + 1, COMMANDS_FIRST) < 0)
        return -ENOMEM;
    const char **texts = tierce__arena_calloc(&cluster->arena, count, sizeof(*texts));
    size_t *lengths = tierce__arena_calloc(&cluster->arena, count, sizeof(*lengths));
    bool ok = texts != NULL && lengths != NULL;
    for (size_t i = 0; i < count && ok; i++) {
        bool borrowed = borrows_last && i + 1 == count;
        texts[i] =
            borrowed ? arguments[i] : tierce__arena_copy(&cluster->arena, arguments[i], bytes[i]);
        lengths[i] = bytes[i];
        ok = texts[i] != NULL;
    }
    if (!ok)
        return -ENOMEM;
    TIERCE_DASSERT(cluster->count < cluster->size);
    cluster->commands[cluster->count++] =
        (struct command){.arguments = texts,
                         .bytes = lengths,
                         .count = count,
                         .slot = tierce__resp_slot(arguments[key], bytes[key]),
                         .borrows_last = borrows_last,
                         .asked = NOBODY};
    return 0;
}

int tierce__resp_cluster_append(struct tierce__resp_cluster *cluster, size_t key,
                                const char *const *arguments, const size_t *bytes, size_t count)
{
    return append(cluster, key, arguments, bytes, count, false);
}

int tierce__resp_cluster_append_borrowed(struct tierce__resp_cluster *cluster, size_t key,
                                         const char *const *arguments, const size_t *bytes,
                                         size_t count)
{
    return append(cluster, key, arguments, bytes, count, true);
}

void tierce__resp_cluster_into(struct tierce__resp_cluster *cluster, void *memory, size_t capacity)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    TIERCE_DASSERT(!cluster->commands[cluster->count - 1].is_answered);
    TIERCE_ASSERT(cluster->count > 0);
    cluster->commands[cluster->count - 1].into = memory;
    cluster->commands[cluster->count - 1].into_bytes = capacity;
}

const struct tierce__resp_value *
tierce__resp_cluster_value(const struct tierce__resp_cluster *cluster, size_t i)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    TIERCE_ASSERT(i < cluster->count && cluster->commands[i].is_answered);
    return &cluster->commands[i].value;
}

int tierce__resp_cluster_node(struct tierce__resp_cluster *cluster, size_t i,
                              struct tierce__resp **out)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    int rc = cluster->is_stale ? learn(cluster, default_deadline(cluster)) : 0;
    if (rc != 0)
        return rc;
    for (size_t slot = 0; slot < SLOTS; slot++) {
        if (cluster->slots[slot] == NOBODY) {
            cluster->is_stale = true;
            return fail(cluster, TIERCE_E_DOWN, "no node serves some slots of the cluster");
        }
    }
    for (size_t n = 0; n < cluster->node_count; n++) {
        bool has_slots = false;
        for (size_t slot = 0; slot < SLOTS && !has_slots; slot++)
            has_slots = cluster->slots[slot] == n;
        if (!has_slots || i-- > 0)
            continue;
        rc = begin_node(cluster, &cluster->nodes[n]);
        if (rc == 0)
            *out = cluster->nodes[n].resp;
        else
            cluster->is_stale = true;
        return rc;
    }
    return -ENOENT;
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Gives each command that has no answer to the list of its node. */
static void assign(struct tierce__resp_cluster *cluster)
{
    for (size_t n = 0; n < cluster->node_count; n++)
        cluster->nodes[n].is_used = false;
    for (size_t i = 0; i < cluster->count; i++) {
        struct command *command = &cluster->commands[i];
        TIERCE_DASSERT(command->slot < SLOTS);
        uint16_t where = command->asked != NOBODY ? command->asked : cluster->slots[command->slot];
        if (command->is_answered)
            continue;
        if (where == NOBODY) {
            cluster->is_stale = true;
            continue;
        }
        TIERCE_DASSERT(where < cluster->node_count);
        struct node *node = &cluster->nodes[where];
        command->next = NONE;
        if (node->is_used)
            cluster->commands[node->last].next = i;
        else
            node->first = i;
        node->last = i;
        node->is_used = true;
    }
}

/* wrote: the node has executed a write; otherwise its answer about replicas is ignored. */
static int read_wait(struct tierce__resp_cluster *cluster, struct tierce__resp *resp, bool wrote,
                     uint64_t deadline_ns)
{
    TIERCE_DASSERT(cluster->wait_replicas > 0);
    struct tierce__resp_value value;
    int rc = tierce__resp_read(resp, &value, deadline_ns);
    if (rc != 0)
        return fail(cluster, rc, tierce__resp_why(resp));
    if (!wrote)
        return 0;
    if (value.type != TIERCE__RESP_INTEGER || value.integer < (int64_t)cluster->wait_replicas)
        return fail(cluster, TIERCE_E_DEADLINE, "too few replicas have confirmed the write");
    return 0;
}

static int send_command(struct tierce__resp *resp, const struct command *command)
{
    TIERCE_DASSERT(command->count > 0 && !command->is_answered);
    return command->borrows_last
               ? tierce__resp_append_borrowed(resp, command->arguments, command->bytes,
                                              command->count)
               : tierce__resp_append(resp, command->arguments, command->bytes, command->count);
}

static int read_command(struct tierce__resp *resp, const struct command *command,
                        struct tierce__resp_value *value, uint64_t deadline_ns)
{
    TIERCE_DASSERT(!command->is_answered);
    return command->into != NULL ? tierce__resp_read_into(resp, command->into, command->into_bytes,
                                                          value, deadline_ns)
                                 : tierce__resp_read(resp, value, deadline_ns);
}

/* Sends a node its commands. A node that cannot be reached is skipped in this round, and the slots
 * are queried again. */
static int send_node(struct tierce__resp_cluster *cluster, struct node *node, uint64_t deadline_ns)
{
    TIERCE_DASSERT(node->is_used);
    TIERCE_DASSERT(node->first <= node->last && node->last < cluster->count);
    int rc = begin_node(cluster, node);
    if (rc != 0) {
        for (size_t i = node->first; i != NONE; i = cluster->commands[i].next)
            cluster->commands[i].asked = NOBODY; /* the slot's owner is asked again */
        node->is_used = false;
        cluster->is_stale = true;
        return rc == -ENOMEM || rc == TIERCE_E_CONFIG || rc == -EACCES ? rc : 0;
    }
    for (size_t i = node->first; i != NONE && rc == 0; i = cluster->commands[i].next) {
        const struct command *command = &cluster->commands[i];
        if (command->asked != NOBODY)
            rc = tierce__resp_append(node->resp, (const char *[]){"ASKING"}, (size_t[]){6}, 1);
        if (rc == 0)
            rc = send_command(node->resp, command);
    }
    if (rc == 0 && cluster->wait_replicas > 0)
        rc = tierce__resp_append_wait(node->resp, cluster->wait_replicas, deadline_ns);
    if (rc == 0)
        rc = tierce__resp_flush(node->resp, deadline_ns);
    return rc == 0 ? 0 : fail(cluster, rc, tierce__resp_why(node->resp));
}

/* "MOVED 3999 host:port" or "ASK ..": the node, or an error. An empty host is the one that
 * spoke. */
static int redirected_to(struct tierce__resp_cluster *cluster,
                         const struct tierce__resp_value *value, size_t from)
{
    TIERCE_DASSERT(from < cluster->node_count);
    const char *place = strrchr(value->text, ' ');
    const char *colon = place != NULL ? strrchr(place, ':') : NULL;
    uint64_t port;
    if (colon == NULL || !tierce__parse_count(&port, colon + 1) || port == 0 || port > UINT16_MAX)
        return TIERCE_E_FORMAT;
    size_t bytes = (size_t)(colon - place) - 1;
    const char *self = cluster->nodes[from].host;
    return bytes > 0 ? find_named(cluster, place + 1, bytes, (uint16_t)port)
                     : find_node(cluster, self, strlen(self), (uint16_t)port);
}

/* Decides about a command's answer: it is kept, or the command is retried on another node or
 * later. */
static int judge(struct tierce__resp_cluster *cluster, struct command *command,
                 const struct tierce__resp_value *value, size_t from)
{
    TIERCE_DASSERT(!command->is_answered);
    bool moved = tierce__resp_is_error(value, "MOVED");
    bool asks = tierce__resp_is_error(value, "ASK");
    command->asked = NOBODY;
    if (moved || asks) {
        int found = redirected_to(cluster, value, from);
        if (found < 0)
            return fail(cluster, found, tierce__resp_words(value));
        TIERCE_DASSERT((size_t)found < cluster->node_count);
        if (asks)
            command->asked = (uint16_t)found;
        else
            cluster->slots[command->slot] = (uint16_t)found;
        return 0;
    }
    if (tierce__resp_is_error(value, "TRYAGAIN") || tierce__resp_is_error(value, "CLUSTERDOWN")) {
        cluster->is_stale = true;
        return 0;
    }
    command->value = *value;
    command->is_answered = true;
    return 0;
}

static int read_node(struct tierce__resp_cluster *cluster, size_t index, uint64_t deadline_ns)
{
    TIERCE_DASSERT(index < cluster->node_count && cluster->nodes[index].is_used);
    struct tierce__resp *resp = cluster->nodes[index].resp;
    bool wrote = false;
    size_t next;
    for (size_t i = cluster->nodes[index].first; i != NONE; i = next) {
        struct command *command = &cluster->commands[i];
        struct tierce__resp_value value;
        int rc = 0;
        next = command->next;
        if (command->asked != NOBODY)
            rc = tierce__resp_read(resp, &value, deadline_ns); /* of ASKING */
        if (rc == 0)
            rc = read_command(resp, command, &value, deadline_ns);
        if (rc != 0) {
            cluster->is_stale = true;
            return fail(cluster, rc, tierce__resp_why(resp));
        }
        rc = judge(cluster, command, &value, index);
        if (rc != 0)
            return rc;
        wrote |= command->is_answered && value.type != TIERCE__RESP_ERROR;
    }
    return cluster->wait_replicas > 0 ? read_wait(cluster, resp, wrote, deadline_ns) : 0;
}

/* Sends to all nodes, then reads from all. *left = the commands that have no answer yet. */
static int run_round(struct tierce__resp_cluster *cluster, uint64_t deadline_ns, size_t *left)
{
    size_t nodes = cluster->node_count; /* redirections may add some */
    int rc = 0;
    assign(cluster);
    for (size_t n = 0; n < nodes && rc == 0; n++) {
        if (cluster->nodes[n].is_used)
            rc = send_node(cluster, &cluster->nodes[n], deadline_ns);
    }
    for (size_t n = 0; n < nodes && rc == 0; n++) {
        if (cluster->nodes[n].is_used)
            rc = read_node(cluster, n, deadline_ns);
    }
    *left = 0;
    for (size_t i = 0; i < cluster->count; i++)
        *left += !cluster->commands[i].is_answered;
    TIERCE_DASSERT(*left <= cluster->count);
    return rc;
}

int tierce__resp_cluster_run(struct tierce__resp_cluster *cluster, uint64_t deadline_ns)
{
    TIERCE_CHECK_MAGIC(cluster, CLUSTER_MAGIC);
    if (deadline_ns == 0)
        deadline_ns = default_deadline(cluster);
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        size_t left;
        int rc = cluster->is_stale ? learn(cluster, deadline_ns) : 0;
        if (rc == -ENOMEM || rc == -EACCES || rc == TIERCE_E_UNSUPPORTED)
            return rc;
        rc = run_round(cluster, deadline_ns, &left);
        if (rc != 0)
            return rc;
        if (left == 0)
            return 0;
        if (tierce__now_ns() >= deadline_ns)
            break;
        /* A redirection is followed at once; a slot that no node serves is retried after a
         * pause. */
        if (cluster->is_stale)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * (long)TIERCE__MS_NS}, NULL);
    }
    cluster->is_stale = true;
    if (cluster->why[0] == '\0')
        fail(cluster, TIERCE_E_DEADLINE, "no node answers for some slots");
    return TIERCE_E_DEADLINE;
}
