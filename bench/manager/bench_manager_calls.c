/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/manager/bench_manager_rpc.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/threads.h"
#include "proto/kvcm/meta_service.pb-c.h"

/* ---- writes --------------------------------------------------------------------------------- */

/* A session on its way: started, then finished. */
struct calls_writer {
    struct tierce__bench_rpc *r;
    struct tierce__bench_body body;
    bool is_finish;
};

static int write_start(struct tierce__bench_rpc *r, struct tierce__bench_body *out)
{
    int64_t keys[RPC_WRITE_KEYS];
    char id[] = RPC_INSTANCE;
    Meta__StartWriteCacheRequest request = META__START_WRITE_CACHE_REQUEST__INIT;
    for (int i = 0; i < RPC_WRITE_KEYS; i++)
        keys[i] = (int64_t)tierce__bench_random(21, (uint64_t)r->next_key++);
    request.instance_id = id;
    request.block_keys = keys;
    request.n_block_keys = RPC_WRITE_KEYS;
    request.write_timeout_seconds = 60;
    return tierce__bench_body_write(out, &request.base);
}

static int write_finish(struct tierce__bench_body *out, char *session)
{
    char id[] = RPC_INSTANCE;
    Meta__BlockMask mask = META__BLOCK_MASK__INIT;
    Meta__FinishWriteCacheRequest request = META__FINISH_WRITE_CACHE_REQUEST__INIT;
    mask.info_case = META__BLOCK_MASK__INFO_OFFSET;
    mask.offset = RPC_WRITE_KEYS;
    request.instance_id = id;
    request.write_session_id = session;
    request.success_blocks = &mask;
    return tierce__bench_body_write(out, &request.base);
}

static void write_done(void *arg, struct tierce__grpc_answer *answer);

static void write_next(struct calls_writer *w)
{
    struct tierce__bench_rpc *r = w->r;
    enum tierce__rpc_id id =
        w->is_finish ? TIERCE__RPC_meta_finish_write_cache : TIERCE__RPC_meta_start_write_cache;
    if (r->rc == 0)
        r->rc = tierce__grpc_client_start(
            r->many,
            &(struct tierce__grpc_request){.path = tierce__rpcs[id].grpc_path,
                                           .body = w->body.bytes,
                                           .bytes = w->body.count,
                                           .timeout_ms = RPC_TIMEOUT_MS},
            write_done, w);
}

static void write_again(struct calls_writer *w)
{
    struct tierce__bench_rpc *r = w->r;
    if (r->started == RPC_SESSIONS || r->rc < 0)
        return;
    r->started++;
    w->is_finish = false;
    r->rc = write_start(r, &w->body);
    write_next(w);
}

static void write_done(void *arg, struct tierce__grpc_answer *answer)
{
    struct calls_writer *w = (struct calls_writer *)arg;
    struct tierce__bench_rpc *r = w->r;
    enum tierce__rpc_id id =
        w->is_finish ? TIERCE__RPC_meta_finish_write_cache : TIERCE__RPC_meta_start_write_cache;
    char why[TIERCE__PROTO_WHY_BYTES];
    ProtobufCMessage *reply = NULL;
    tierce__bench_body_free(&w->body);
    if (answer->status != TIERCE__GRPC_OK)
        r->rc = tierce__bench_fail(r->bench, "a write: %s", answer->message);
    if (r->rc == 0)
        r->rc =
            tierce__proto_unpack(&reply, tierce__rpcs[id].reply, answer->body, answer->bytes, why);
    if (r->rc < 0 || reply == NULL)
        return;
    if (w->is_finish) {
        if (((Meta__CommonResponse *)reply)->header->status->code != META__ERROR_CODE__OK)
            r->rc = tierce__bench_fail(r->bench, "a session was not finished");
        r->ended++;
        write_again(w);
    } else {
        Meta__StartWriteCacheResponse *started = (Meta__StartWriteCacheResponse *)reply;
        if (started->n_locations != RPC_WRITE_KEYS)
            r->rc = tierce__bench_fail(r->bench, "a session has %zu keys", started->n_locations);
        else
            r->rc = write_finish(&w->body, started->write_session_id);
        w->is_finish = true;
        write_next(w);
    }
    tierce__proto_free(reply);
}

int64_t tierce__bench_rpc_writes(void *arg)
{
    struct tierce__bench_rpc *r = (struct tierce__bench_rpc *)arg;
    struct calls_writer writers[RPC_WRITERS] = {0};
    r->started = r->ended = 0;
    uint64_t start = tierce__now_ns();
    for (int i = 0; i < RPC_WRITERS; i++) {
        writers[i].r = r;
        write_again(&writers[i]);
    }
    while (tierce__grpc_client_poll(r->many, RPC_TIMEOUT_MS) > 0)
        continue;
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    for (int i = 0; i < RPC_WRITERS; i++)
        tierce__bench_body_free(&writers[i].body);
    return r->rc < 0 ? r->rc : ns;
}

int64_t tierce__bench_rpc_bare_writes(void *arg)
{
    enum { KEY_BYTES = 13 };
    struct tierce__bench_rpc *r = (struct tierce__bench_rpc *)arg;
    char key[KEY_BYTES] = {0}, value[RPC_RECORD_BYTES] = {0}, *error = NULL;
    uint64_t start = tierce__now_ns();
    for (int i = 0; i < RPC_SESSIONS && error == NULL; i++) {
        rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
        for (int k = 0; k < RPC_WRITE_KEYS; k++) {
            uint64_t id = tierce__bench_random(22, (uint64_t)r->next_key++);
            memcpy(key + KEY_BYTES - sizeof(id), &id, sizeof(id));
            memcpy(value, &id, sizeof(id));
            rocksdb_writebatch_put(batch, key, KEY_BYTES, value, RPC_RECORD_BYTES);
        }
        rocksdb_write(r->bare, r->writes, batch, &error);
        rocksdb_writebatch_destroy(batch);
    }
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (error == NULL)
        return ns;
    int rc = tierce__bench_fail(r->bench, "the bare database: %s", error);
    rocksdb_free(error);
    return rc;
}

/* ---- gets ----------------------------------------------------------------------------------- */

static int write_get(struct tierce__bench_body *out, int64_t *keys, size_t count)
{
    char id[] = RPC_INSTANCE;
    Meta__GetCacheLocationRequest request = META__GET_CACHE_LOCATION_REQUEST__INIT;
    request.instance_id = id;
    request.query_type = META__QUERY_TYPE__QT_PREFIX_MATCH;
    request.block_keys = keys;
    request.n_block_keys = count;
    return tierce__bench_body_write(out, &request.base);
}

int tierce__bench_rpc_prepare_gets(struct tierce__bench_rpc *r)
{
    int64_t keys[RPC_GET_KEYS];
    for (int i = 0; i < RPC_GET_KEYS; i++)
        keys[i] = (int64_t)tierce__bench_random(21, (uint64_t)i);
    int rc = write_get(&r->get_one, keys, 1);
    if (rc == 0)
        rc = write_get(&r->get_all, keys, RPC_GET_KEYS);
    ProtobufCMessage *reply = NULL;
    if (rc == 0)
        rc = tierce__bench_rpc_call(r, TIERCE__RPC_meta_get_cache_location, &r->get_all, &reply);
    if (rc == 0 && ((Meta__GetCacheLocationResponse *)reply)->n_locations != RPC_GET_KEYS)
        rc = tierce__bench_fail(r->bench, "the manager lost a block");
    tierce__proto_free(reply);
    return rc;
}

struct flight {
    struct tierce__bench_rpc *r;
    struct tierce__grpc_client *client;
    struct tierce__grpc_request request;
};

static void flight_done(void *arg, struct tierce__grpc_answer *answer)
{
    struct flight *f = (struct flight *)arg;
    struct tierce__bench_rpc *r = f->r;
    if (answer != NULL && answer->status != TIERCE__GRPC_OK)
        r->rc = tierce__bench_fail(r->bench, "%s: %s", f->request.path, answer->message);
    if (r->rc == 0 && r->started < RPC_CALLS) {
        r->started++;
        r->rc = tierce__grpc_client_start(f->client, &f->request, flight_done, f);
    }
}

static int64_t fly(struct flight *f)
{
    f->r->started = 0;
    uint64_t start = tierce__now_ns();
    for (int i = 0; i < RPC_FLIGHT; i++)
        flight_done(f, NULL);
    while (tierce__grpc_client_poll(f->client, RPC_TIMEOUT_MS) > 0)
        continue;
    return f->r->rc < 0 ? f->r->rc : (int64_t)(tierce__now_ns() - start);
}

static struct tierce__grpc_request get_request(const struct tierce__bench_body *body)
{
    return (struct tierce__grpc_request){
        .path = tierce__rpcs[TIERCE__RPC_meta_get_cache_location].grpc_path,
        .body = body->bytes,
        .bytes = body->count};
}

int64_t tierce__bench_rpc_gets_of_one(void *arg)
{
    struct tierce__bench_rpc *r = (struct tierce__bench_rpc *)arg;
    return fly(&(struct flight){r, r->many, get_request(&r->get_one)});
}

int64_t tierce__bench_rpc_echoes(void *arg)
{
    struct tierce__bench_rpc *r = (struct tierce__bench_rpc *)arg;
    return fly(&(struct flight){r, r->to_echo, {.path = RPC_ECHO}});
}

/* Asks for all keys; *bytes: of the answer. */
static int64_t get_once(struct tierce__bench_rpc *r, struct tierce__grpc_client *client,
                        size_t *bytes)
{
    struct tierce__grpc_request request = get_request(&r->get_all);
    struct tierce__grpc_answer answer;
    uint64_t start = tierce__now_ns();
    int rc = tierce__grpc_client_unary(client, &request, &answer);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc < 0)
        return tierce__bench_fail(r->bench, "%s: %s", request.path, tierce_strerror(rc));
    *bytes = answer.bytes;
    if (answer.status != TIERCE__GRPC_OK)
        ns = tierce__bench_fail(r->bench, "%s: %s", request.path, answer.message);
    tierce__grpc_answer_fini(&answer);
    return ns;
}

/* A disk that is busy for seconds is out of service meanwhile, and its blocks are not listed. Such
 * calls do not count. */
static int64_t get_all(struct tierce__bench_rpc *r, struct tierce__grpc_client *client)
{
    uint64_t end_ns = tierce__deadline_in_ms(RPC_STORAGE_MS);
    size_t bytes = 0;
    int64_t ns = get_once(r, client, &bytes);
    while (ns >= 0 && bytes <= RPC_GET_KEYS) { /* a location is far longer than a byte */
        if (tierce__now_ns() > end_ns)
            return tierce__bench_fail(r->bench,
                                      "the manager has not listed its %d blocks for %d s: its "
                                      "storage, a folder in --dir, is out of service",
                                      RPC_GET_KEYS, RPC_STORAGE_MS / 1000);
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
        ns = get_once(r, client, &bytes);
    }
    return ns;
}

int64_t tierce__bench_rpc_prefix(void *arg)
{
    struct tierce__bench_rpc *r = (struct tierce__bench_rpc *)arg;
    return get_all(r, r->clients[0]);
}

struct prefix_task {
    struct tierce__task task;
    struct tierce__bench_rpc *r;
    struct tierce__grpc_client *client;
    int64_t rc;
};

static void run_prefix_task(struct tierce__task *task)
{
    struct prefix_task *t = TIERCE__CONTAINER_OF(task, struct prefix_task, task);
    for (int i = 0; i < RPC_GETS && t->rc >= 0; i++)
        t->rc = get_all(t->r, t->client);
}

int64_t tierce__bench_rpc_prefixes(void *arg)
{
    struct tierce__bench_rpc *r = (struct tierce__bench_rpc *)arg;
    struct prefix_task tasks[RPC_CLIENTS];
    struct tierce__workers *workers;
    uint64_t start = tierce__now_ns();
    int64_t rc = tierce__workers_create(&workers, RPC_CLIENTS, RPC_CLIENTS);
    if (rc < 0)
        return rc;
    for (int i = 0; i < RPC_CLIENTS; i++) {
        tasks[i] = (struct prefix_task){{.run = run_prefix_task}, r, r->clients[i], 0};
        bool is_taken = tierce__workers_submit(workers, &tasks[i].task);
        TIERCE_ASSERT(is_taken); /* the queue has room for all */
    }
    tierce__workers_destroy(workers);
    for (int i = 0; i < RPC_CLIENTS; i++)
        rc = tasks[i].rc < 0 ? tasks[i].rc : rc;
    return rc < 0 ? rc : (int64_t)(tierce__now_ns() - start);
}

/* ---- gets of sessions' keys ------------------------------------------------------------------ */

struct chain_reader {
    struct tierce__bench_rpc *r;
    struct tierce__bench_body body;
};

static void chain_done(void *arg, struct tierce__grpc_answer *answer);

static void chain_next(struct chain_reader *reader)
{
    int64_t keys[RPC_WRITE_KEYS];
    struct tierce__bench_rpc *r = reader->r;
    if (r->started == RPC_CHAINS || r->rc < 0)
        return;
    r->started++;
    uint64_t draw = tierce__bench_random(23, r->draws++);
    uint64_t chains = (uint64_t)r->next_key / RPC_WRITE_KEYS;
    uint64_t chain = (draw >> 40) % chains * (draw % chains) / chains;
    for (uint64_t i = 0; i < RPC_WRITE_KEYS; i++)
        keys[i] = (int64_t)tierce__bench_random(21, chain * RPC_WRITE_KEYS + i);
    r->rc = write_get(&reader->body, keys, RPC_WRITE_KEYS);
    struct tierce__grpc_request request = get_request(&reader->body);
    if (r->rc == 0)
        r->rc = tierce__grpc_client_start(r->many, &request, chain_done, reader);
}

static void chain_done(void *arg, struct tierce__grpc_answer *answer)
{
    struct chain_reader *reader = (struct chain_reader *)arg;
    tierce__bench_body_free(&reader->body);
    if (answer->status != TIERCE__GRPC_OK)
        reader->r->rc = tierce__bench_fail(reader->r->bench, "a get: %s", answer->message);
    chain_next(reader);
}

int64_t tierce__bench_rpc_chains(void *arg)
{
    struct tierce__bench_rpc *r = (struct tierce__bench_rpc *)arg;
    struct chain_reader readers[RPC_READERS] = {0};
    r->started = 0;
    uint64_t start = tierce__now_ns();
    for (int i = 0; i < RPC_READERS; i++) {
        readers[i].r = r;
        chain_next(&readers[i]);
    }
    while (tierce__grpc_client_poll(r->many, RPC_TIMEOUT_MS) > 0)
        continue;
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    for (int i = 0; i < RPC_READERS; i++)
        tierce__bench_body_free(&readers[i].body);
    return r->rc < 0 ? r->rc : ns;
}
