/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole calls of the manager over gRPC on loopback: a manager in this process, without logs, and
 * clients beside it. The limit of a call for one key is the same server with a route that answers
 * nothing; that of writes on RocksDB is the bare library, a batch of as many records as a session
 * has keys; that of a manager with its access log is the one without.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "bench/manager/bench_manager_rpc.h"

/* ---- cases ---------------------------------------------------------------------------------- */

/* A row of rates: `amount` things a round; scale 1e6: thousands a second, 1e3: millions. */
static struct tierce__bench_row rates(const struct tierce__bench_side *side,
                                      const struct tierce__bench_side *limit, double amount,
                                      double scale)
{
    struct tierce__bench_row row = {.value = amount / side->median_ns * scale,
                                    .value_min = amount / side->max_ns * scale,
                                    .value_max = amount / side->min_ns * scale};
    if (limit != NULL) {
        row.limit = amount / limit->median_ns * scale;
        row.limit_min = amount / limit->max_ns * scale;
        row.limit_max = amount / limit->min_ns * scale;
    }
    return row;
}

static int get_cases(struct tierce__bench_rpc *r)
{
    struct tierce__bench_side small[] = {{.run = tierce__bench_rpc_gets_of_one, .arg = r},
                                         {.run = tierce__bench_rpc_echoes, .arg = r}};
    struct tierce__bench_side one = {.run = tierce__bench_rpc_prefix, .arg = r},
                              two = {.run = tierce__bench_rpc_prefixes, .arg = r};
    int rc = tierce__bench_alternate(small, 2, r->bench->seconds);
    if (rc == 0)
        rc = tierce__bench_alternate(&one, 1, r->bench->seconds);
    if (rc == 0)
        rc = tierce__bench_alternate(&two, 1, r->bench->seconds);
    if (rc < 0)
        return rc;
    struct tierce__bench_row row = rates(&small[0], &small[1], RPC_CALLS, 1e6);
    row.case_name = "rpc get 1 key; 4 x 32 calls; beside an empty call";
    row.unit = "kcalls/s";
    row.goal = 0.5;
    tierce__bench_emit(r->bench, &row);
    row = (struct tierce__bench_row){.case_name = "rpc get prefix of 1024 keys",
                                     .unit = "ms",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = one.median_ns / 1e6,
                                     .value_min = one.min_ns / 1e6,
                                     .value_max = one.max_ns / 1e6,
                                     .limit = 1,
                                     .goal = 1};
    tierce__bench_emit(r->bench, &row);
    row = rates(&two, NULL, RPC_CLIENTS * RPC_GETS * RPC_GET_KEYS, 1e3);
    row.case_name = "rpc get prefix of 1024 keys; 2 clients";
    row.unit = "Mkeys/s";
    row.limit = 2;
    row.goal = 1;
    tierce__bench_emit(r->bench, &row);
    return 0;
}

static int write_case(struct tierce__bench_rpc *r, bool is_memory)
{
    struct tierce__bench_side sides[] = {{.run = tierce__bench_rpc_writes, .arg = r},
                                         {.run = tierce__bench_rpc_bare_writes, .arg = r}};
    int rc = tierce__bench_alternate(sides, is_memory ? 1 : 2, r->bench->seconds);
    if (rc < 0)
        return rc;
    struct tierce__bench_row row =
        rates(&sides[0], is_memory ? NULL : &sides[1], RPC_SESSIONS * RPC_WRITE_KEYS, 1e6);
    row.case_name = is_memory ? "rpc write 128 keys; memory" : "rpc write 128 keys; rocksdb";
    row.unit = "kkeys/s";
    row.limit = is_memory ? 300 : row.limit;
    row.goal = is_memory ? 1 : 0.5;
    tierce__bench_emit(r->bench, &row);
    return 0;
}

/* The rate of a manager with an access log, as a share of one without. */
static int log_case(struct tierce__bench_rpc *logged, struct tierce__bench_rpc *plain,
                    const char *name, tierce__bench_run_fn *run, double amount)
{
    struct tierce__bench_side sides[] = {{.run = run, .arg = logged}, {.run = run, .arg = plain}};
    int rc = tierce__bench_alternate(sides, 2, plain->bench->seconds);
    if (rc < 0)
        return rc;
    struct tierce__bench_row row = rates(&sides[0], &sides[1], amount, 1e6);
    row.case_name = name;
    row.unit = amount == RPC_CALLS ? "kcalls/s" : "kkeys/s";
    row.goal = 0.5; /* a line may cost as much as its call */
    tierce__bench_emit(plain->bench, &row);
    return 0;
}

static int log_cases(struct tierce__bench_rpc *logged, struct tierce__bench_rpc *plain)
{
    int rc = log_case(logged, plain, "rpc write 128 keys; access log beside none",
                      tierce__bench_rpc_writes, RPC_SESSIONS * RPC_WRITE_KEYS);
    if (rc == 0)
        rc = tierce__bench_rpc_prepare_gets(logged);
    if (rc == 0)
        rc = log_case(logged, plain, "rpc get 1 key; access log beside none",
                      tierce__bench_rpc_gets_of_one, RPC_CALLS);
    return rc < 0 ? rc
                  : log_case(logged, plain, "rpc get prefix of 1024 keys; access log beside none",
                             tierce__bench_rpc_prefix, RPC_GET_KEYS);
}

static int open_bare(struct tierce__bench_rpc *r)
{
    char *error = NULL;
    r->options = rocksdb_options_create();
    r->writes = rocksdb_writeoptions_create();
    rocksdb_options_set_create_if_missing(r->options, 1);
    rocksdb_options_set_compression(r->options, rocksdb_no_compression);
    r->bare = rocksdb_open(r->options, r->bare_folder, &error);
    if (error == NULL)
        return 0;
    int rc = tierce__bench_fail(r->bench, "the bare database: %s", error);
    rocksdb_free(error);
    return rc;
}

static void close_all(struct tierce__bench_rpc *r)
{
    tierce__bench_rpc_stop(r);
    tierce__grpc_client_close(r->to_echo);
    if (r->echo != NULL)
        tierce__server_stop(r->echo, 0);
    if (r->bare != NULL)
        rocksdb_close(r->bare);
    if (r->options != NULL) {
        rocksdb_options_destroy(r->options);
        rocksdb_writeoptions_destroy(r->writes);
    }
    tierce__bench_body_free(&r->get_one);
    tierce__bench_body_free(&r->get_all);
    tierce__bench_remove(r->folder);
}

static int make_folder(struct tierce__bench_rpc *r, const char *name)
{
    char *whole = realpath(r->bench->dir, NULL);
    if (whole == NULL)
        return -errno;
    int bytes = snprintf(r->folder, sizeof(r->folder), "%s/%s", whole, name);
    free(whole);
    if (bytes < 0 || (size_t)bytes >= sizeof(r->folder))
        return -ENAMETOOLONG;
    snprintf(r->startup, sizeof(r->startup), "%s/startup.json", r->folder);
    snprintf(r->index_folder, sizeof(r->index_folder), "%s/index", r->folder);
    snprintf(r->bare_folder, sizeof(r->bare_folder), "%s/bare", r->folder);
    return mkdir(r->folder, 0700) == 0 ? 0 : -errno;
}

static int run_log_cases(struct tierce__bench_rpc *plain)
{
    struct tierce__bench_rpc *logged = tierce__calloc(1, sizeof(*logged));
    if (logged == NULL)
        return -ENOMEM;
    logged->bench = plain->bench;
    logged->logs_accesses = true;
    int rc = make_folder(logged, "rpc_logged");
    if (rc == 0)
        rc = tierce__bench_rpc_start(logged, "local");
    if (rc == 0)
        rc = log_cases(logged, plain);
    close_all(logged);
    tierce__free(logged);
    return rc;
}

static int run_cases(struct tierce__bench_rpc *r)
{
    int rc = tierce__bench_rpc_start(r, "local");
    if (rc == 0)
        rc = tierce__bench_rpc_start_echo(r);
    if (rc == 0)
        rc = write_case(r, true);
    if (rc == 0)
        rc = tierce__bench_rpc_prepare_gets(r);
    if (rc == 0)
        rc = get_cases(r);
    if (rc == 0)
        rc = run_log_cases(r);
    if (rc == 0)
        rc = tierce__bench_rpc_directory(r);
    tierce__bench_rpc_stop(r);
    if (rc == 0)
        rc = open_bare(r);
    if (rc == 0)
        rc = tierce__bench_rpc_start(r, "rocksdb");
    return rc == 0 ? write_case(r, false) : rc;
}

int tierce__bench_manager_rpc(const struct tierce__bench *bench)
{
    struct tierce__bench_rpc *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->bench = bench;
    int rc = make_folder(r, "rpc");
    if (rc == 0)
        rc = run_cases(r);
    close_all(r);
    tierce__free(r);
    return rc;
}
