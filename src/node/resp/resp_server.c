/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "node/resp/glob.h"
#include "node/resp/resp_session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <tierce/version.h>
#include <unistd.h>

/*
 * Commands that Redis' tools send at their start: INFO, CONFIG and others. Features that a node
 * does not have (slow log, modules, cluster) are answered like a Redis server without them.
 */

/* ---- INFO ------------------------------------------------------------------------------------ */

static unsigned long long counted(const struct tierce__node *node,
                                  enum tierce__node_counter counter)
{
    return atomic_load_explicit(&node->counters[counter], memory_order_relaxed);
}

static unsigned long long memory_max(const struct tierce__resp_session *s)
{
    return tierce__config_number(s->node->config->values, TIERCE__ENGINE_MEMORY_SIZE);
}

static void put_row(struct tierce__line *line, const char *name, unsigned long long value)
{
    char text[80];
    int n = snprintf(text, sizeof(text), "%s:%llu\r\n", name, value);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    tierce__line_put_bytes(line, text, (size_t)n);
}

static void put_server(const struct tierce__resp_session *s, struct tierce__line *line)
{
    uint64_t uptime_s = (tierce__now_ns() - s->node->started_ns) / (1000 * TIERCE__MS_NS);
    tierce__line_put(line, "redis_version:" TIERCE__RESP_REDIS_VERSION "\r\n"
                           "tierce_version:" TIERCE_VERSION "\r\nredis_mode:standalone\r\n");
    put_row(line, "process_id", (unsigned long long)getpid());
    put_row(line, "tcp_port", s->node->resp_port);
    put_row(line, "server_time_usec", tierce__wall_us());
    put_row(line, "uptime_in_seconds", uptime_s);
    put_row(line, "uptime_in_days", uptime_s / 86400);
}

static void put_clients(const struct tierce__resp_session *s, struct tierce__line *line)
{
    put_row(line, "connected_clients",
            atomic_load_explicit(&s->node->connections_now, memory_order_relaxed));
    put_row(line, "maxclients", s->node->config->connections_max);
    put_row(line, "blocked_clients", 0);
}

static void put_memory(const struct tierce__resp_session *s, struct tierce__line *line)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    tierce_engine_stats(s->node->engine, &stats);
    put_row(line, "used_memory", (unsigned long long)stats.memory_bytes_now);
    put_row(line, "maxmemory", memory_max(s));
}

static void put_persistence(const struct tierce__resp_session *s, struct tierce__line *line)
{
    (void)s;
    put_row(line, "loading", 0);
}

static void put_stats(const struct tierce__resp_session *s, struct tierce__line *line)
{
    unsigned long long gets = counted(s->node, TIERCE__NODE_gets);
    unsigned long long hits = counted(s->node, TIERCE__NODE_hits);
    put_row(line, "total_connections_received", counted(s->node, TIERCE__NODE_connections));
    put_row(line, "total_commands_processed", counted(s->node, TIERCE__NODE_resp_commands));
    put_row(line, "total_net_input_bytes", counted(s->node, TIERCE__NODE_received_bytes));
    put_row(line, "total_net_output_bytes", counted(s->node, TIERCE__NODE_sent_bytes));
    put_row(line, "rejected_connections", counted(s->node, TIERCE__NODE_connections_refused));
    put_row(line, "keyspace_hits", hits);
    put_row(line, "keyspace_misses", gets > hits ? gets - hits : 0);
}

static void put_replication(const struct tierce__resp_session *s, struct tierce__line *line)
{
    (void)s;
    tierce__line_put(line, "role:master\r\n");
    put_row(line, "connected_slaves", 0);
}

static void put_cpu(const struct tierce__resp_session *s, struct tierce__line *line)
{
    struct rusage used;
    char text[96];
    (void)s;
    if (getrusage(RUSAGE_SELF, &used) != 0)
        return;
    int n = snprintf(text, sizeof(text), "used_cpu_sys:%lld.%06ld\r\nused_cpu_user:%lld.%06ld\r\n",
                     (long long)used.ru_stime.tv_sec, (long)used.ru_stime.tv_usec,
                     (long long)used.ru_utime.tv_sec, (long)used.ru_utime.tv_usec);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    tierce__line_put_bytes(line, text, (size_t)n);
}

static void put_cluster(const struct tierce__resp_session *s, struct tierce__line *line)
{
    (void)s;
    put_row(line, "cluster_enabled", 0);
}

/* As in Redis, a database without keys is not listed. The number of expiring keys is unknown. */
static void put_keyspace(const struct tierce__resp_session *s, struct tierce__line *line)
{
    char text[80];
    if (s->number == 0)
        return;
    TIERCE_ASSERT(s->number > 0);
    int n = snprintf(text, sizeof(text), "db0:keys=%llu,expires=0,avg_ttl=0\r\n",
                     (unsigned long long)s->number);
    TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
    tierce__line_put_bytes(line, text, (size_t)n);
}

static const struct {
    const char *name;
    void (*put)(const struct tierce__resp_session *s, struct tierce__line *line);
} sections[] = {{"Server", put_server},    {"Clients", put_clients},
                {"Memory", put_memory},    {"Persistence", put_persistence},
                {"Stats", put_stats},      {"Replication", put_replication},
                {"CPU", put_cpu},          {"Cluster", put_cluster},
                {"Keyspace", put_keyspace}};

#define SECTIONS (sizeof(sections) / sizeof(sections[0]))

static bool has_section(const struct tierce__resp_session *s, const char *section)
{
    bool wanted = s->request.count == 1;
    for (size_t i = 1; i < s->request.count && !wanted; i++)
        wanted = tierce__resp_arg_is(tierce__resp_arg(s, i), section) ||
                 tierce__resp_arg_is(tierce__resp_arg(s, i), "ALL") ||
                 tierce__resp_arg_is(tierce__resp_arg(s, i), "DEFAULT") ||
                 tierce__resp_arg_is(tierce__resp_arg(s, i), "EVERYTHING");
    return wanted;
}

static void after_info(struct tierce__resp_session *s)
{
    struct tierce__line line = {0};
    for (size_t i = 0; i < SECTIONS && s->rc == 0; i++) {
        if (!has_section(s, sections[i].name))
            continue;
        tierce__line_put(&line, line.bytes > 0 ? "\r\n# " : "# ");
        tierce__line_put(&line, sections[i].name);
        tierce__line_put(&line, "\r\n");
        sections[i].put(s, &line);
    }
    if (s->rc == 0 && line.failed)
        s->rc = -ENOMEM;
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_verbatim(s, line.text != NULL ? line.text : "", line.bytes);
    tierce__line_clear(&line);
}

/* INFO [section ...] */
void tierce__resp_run_info(struct tierce__resp_session *s)
{
    if (has_section(s, "Keyspace"))
        tierce__resp_work(s, tierce__resp_count_work, after_info);
    else
        after_info(s);
}

/* ---- CONFIG ---------------------------------------------------------------------------------- */

static void run_config_get(struct tierce__resp_session *s)
{
    char memory[24], clients[16], port[8];
    const struct {
        const char *name, *value;
    } rows[] = {{"save", ""},
                {"appendonly", "no"},
                {"databases", "1"},
                {"maxmemory", memory},
                {"maxmemory-policy", "allkeys-lru"},
                {"timeout", "0"},
                {"maxclients", clients},
                {"port", port},
                {"cluster-enabled", "no"},
                {"requirepass", ""}};
    enum { ROWS = sizeof(rows) / sizeof(rows[0]) };
    bool wanted[ROWS] = {false};
    size_t count = 0;
    snprintf(memory, sizeof(memory), "%llu", memory_max(s));
    snprintf(clients, sizeof(clients), "%u", s->node->config->connections_max);
    snprintf(port, sizeof(port), "%u", s->node->resp_port);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 2; i < s->request.count && !wanted[r]; i++)
            wanted[r] =
                tierce__resp_arg(s, i)->text != NULL &&
                tierce__glob_match(tierce__resp_arg(s, i)->text, tierce__resp_arg(s, i)->bytes,
                                   rows[r].name, strlen(rows[r].name));
        count += wanted[r];
    }
    tierce__resp_map(s, count);
    for (size_t r = 0; r < ROWS; r++) {
        if (!wanted[r])
            continue;
        tierce__resp_text(s, rows[r].name);
        tierce__resp_text(s, rows[r].value);
    }
}

void tierce__resp_run_config(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"GET", -3, run_config_get}};
    tierce__resp_dispatch(s, words, 1);
}

/* ---- features of a server ---------------------------------------------------------------------
 */

void tierce__resp_run_time(struct tierce__resp_session *s)
{
    char text[24];
    uint64_t now_us = tierce__wall_us();
    tierce__resp_array(s, 2);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)(now_us / 1000000));
    tierce__resp_text(s, text);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)(now_us % 1000000));
    tierce__resp_text(s, text);
}

void tierce__resp_run_role(struct tierce__resp_session *s)
{
    tierce__resp_array(s, 3);
    tierce__resp_text(s, "master");
    tierce__resp_int(s, 0);
    tierce__resp_array(s, 0);
}

static void reply_empty(struct tierce__resp_session *s)
{
    tierce__resp_array(s, 0);
}

static void reply_empty_map(struct tierce__resp_session *s)
{
    tierce__resp_map(s, 0);
}

static void reply_zero(struct tierce__resp_session *s)
{
    tierce__resp_int(s, 0);
}

void tierce__resp_run_slowlog(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {
        {"GET", -2, reply_empty}, {"LEN", 2, reply_zero}, {"RESET", 2, tierce__resp_ok}};
    tierce__resp_dispatch(s, words, sizeof(words) / sizeof(words[0]));
}

void tierce__resp_run_latency(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"LATEST", 2, reply_empty},
                                                     {"HISTORY", 3, reply_empty},
                                                     {"HISTOGRAM", -2, reply_empty_map},
                                                     {"RESET", -2, reply_zero}};
    tierce__resp_dispatch(s, words, sizeof(words) / sizeof(words[0]));
}

void tierce__resp_run_module(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"LIST", 2, reply_empty}};
    tierce__resp_dispatch(s, words, 1);
}

void tierce__resp_run_cluster(struct tierce__resp_session *s)
{
    tierce__resp_error(s, "ERR This instance has cluster support disabled");
}

/* ---- details of a key ------------------------------------------------------------------------ */

static void reply_usage(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    if (rc == 0)
        tierce__resp_int(s, (int64_t)tierce__object_bytes(object));
    else
        tierce__resp_nil(s);
    tierce__object_release(object);
}

/* MEMORY USAGE name [SAMPLES count] */
static void run_usage(struct tierce__resp_session *s)
{
    int64_t samples;
    size_t count = s->request.count;
    bool is_plain =
        count == 3 || (count == 5 && tierce__resp_arg_is(tierce__resp_arg(s, 3), "SAMPLES"));
    if (!is_plain)
        tierce__resp_error(s, "ERR syntax error");
    else if (count == 5 && !tierce__resp_arg_int(tierce__resp_arg(s, 4), &samples))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else if (count == 5 && samples < 0)
        tierce__resp_error(s, "ERR syntax error");
    else
        tierce__resp_find(s, tierce__resp_arg(s, 2), reply_usage);
}

void tierce__resp_run_memory(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"USAGE", -3, run_usage}};
    tierce__resp_dispatch(s, words, 1);
}

/* Derived from the length; tools only display it. */
static void reply_encoding(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    enum { EMBEDDED_MAX = 44 };
    if (rc == 0)
        tierce__resp_text(s, object->what.value_bytes <= EMBEDDED_MAX ? "embstr" : "raw");
    else
        tierce__resp_nil(s);
    tierce__object_release(object);
}

static void run_encoding(struct tierce__resp_session *s)
{
    tierce__resp_find(s, tierce__resp_arg(s, 2), reply_encoding);
}

void tierce__resp_run_object(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"ENCODING", 3, run_encoding}};
    tierce__resp_dispatch(s, words, 1);
}
