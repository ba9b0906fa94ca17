/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_MANAGER_RPC_H
#define TIERCE_CLI_BENCH_MANAGER_RPC_H

#include <rocksdb/c.h>

#include "base/alloc.h"
#include "bench/manager/bench_manager.h"
#include "manager/manager_config.h"
#include "manager/manager.h"
#include "net/grpc/grpc_client.h"
#include "net/server/serve.h"
#include "proto/kvcm/proto.h"
#include "proto/kvcm/rpcs.h"

/*
 * A manager and its clients in this process, and measured rounds of calls. Two of
 * them may run at a time. Thread: the main one.
 */

enum {
    RPC_CONNECTIONS = 4,
    RPC_FLIGHT = 128, /* concurrent calls on all connections together */
    RPC_CALLS = 8192, /* of one round */
    RPC_GET_KEYS = 1024,
    RPC_GETS = 16, /* calls of a client in one round of several */
    RPC_CLIENTS = 2,
    RPC_WRITE_KEYS = 128,
    RPC_SESSIONS = 32, /* of one round */
    RPC_CHAINS = 256,  /* gets of the keys of a session, of one round */
    RPC_READERS = 16,  /* such gets at a time */
    RPC_WRITERS = 4,   /* sessions at a time */
    RPC_TIMEOUT_MS = 30000,
    RPC_STORAGE_MS = 60000, /* a storage that is out of service may take to return */
    RPC_RECORD_BYTES = 64,  /* approximate size of a record of one location */
};

#define RPC_INSTANCE "bench"
#define RPC_ECHO     "/bench.Echo/Echo"

struct tierce__bench_body {
    void *bytes;
    size_t count;
};

static inline int tierce__bench_body_write(struct tierce__bench_body *out,
                                           const ProtobufCMessage *message)
{
    return tierce__proto_pack(&out->bytes, &out->count, message);
}

static inline void tierce__bench_body_free(struct tierce__bench_body *body)
{
    tierce__free(body->bytes);
    *body = (struct tierce__bench_body){0};
}

struct tierce__bench_rpc {
    const struct tierce__bench *bench;
    const char *kind;   /* of the index */
    bool logs_accesses; /* with its access log, which lies in `folder` */
    char folder[4096];  /* for all files, absolute */
    char startup[4128], index_folder[4128], bare_folder[4128];
    struct tierce__manager_config config;
    struct tierce__manager *manager;
    struct tierce__server *echo;
    struct tierce__grpc_client *many, *to_echo, *clients[RPC_CLIENTS];
    struct tierce__bench_body get_one, get_all;
    int64_t next_key;
    uint64_t draws;               /* of chains */
    size_t started, ended, calls; /* of the round that runs */
    int rc;
    rocksdb_options_t *options;
    rocksdb_writeoptions_t *writes;
    rocksdb_t *bare;
};

/* A manager with that index ("local", "rocksdb"), which leads and has an instance. Errors are
 * printed. */
TIERCE_MUSTUSE int tierce__bench_rpc_start(struct tierce__bench_rpc *r, const char *kind);
/* Clients of a manager that listens for gRPC on that port of loopback. Blocks until it leads and
 * has the instance. Errors are printed. */
TIERCE_MUSTUSE int tierce__bench_rpc_connect(struct tierce__bench_rpc *r, uint16_t port);
/* Also for clients alone, and after an error of the two above. */
void tierce__bench_rpc_stop(struct tierce__bench_rpc *r);
/* A server that answers nothing. */
TIERCE_MUSTUSE int tierce__bench_rpc_start_echo(struct tierce__bench_rpc *r);

/* Calls once and reads the answer. */
TIERCE_MUSTUSE int tierce__bench_rpc_call(struct tierce__bench_rpc *r, enum tierce__rpc_id id,
                                          const struct tierce__bench_body *body,
                                          ProtobufCMessage **out);

/* Asks once for the blocks that the first writes have stored, and checks that all are there. */
TIERCE_MUSTUSE int tierce__bench_rpc_prepare_gets(struct tierce__bench_rpc *r);

/* The rows of the directory's calls. Errors are printed. */
TIERCE_MUSTUSE int tierce__bench_rpc_directory(struct tierce__bench_rpc *r);

/* Rounds, as tierce__bench_run_fn of a struct tierce__bench_rpc: sessions of writes; the same with
 * the bare library; gets of one key; empty calls; gets of all keys by one client and by several;
 * gets of the keys of one session each, some more often than others. */
int64_t tierce__bench_rpc_writes(void *arg);
int64_t tierce__bench_rpc_bare_writes(void *arg);
int64_t tierce__bench_rpc_gets_of_one(void *arg);
int64_t tierce__bench_rpc_echoes(void *arg);
int64_t tierce__bench_rpc_prefix(void *arg);
int64_t tierce__bench_rpc_prefixes(void *arg);
int64_t tierce__bench_rpc_chains(void *arg);

#endif
