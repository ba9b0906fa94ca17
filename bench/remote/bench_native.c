/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a request about 128 chunks in memory, for a program that maps a node's pool: a node
 * in this process, queried over its Unix socket with a chain that it knows. The limit of a case is
 * a bare round trip of the same bytes, both ways, between two threads over the same kind of socket.
 *
 * Client and server each have a processor, or share one, in both measurements alike. If the
 * scheduler placed them, one measurement might wake a sleeping processor and the other not, and the
 * ratio would mean nothing.
 */
#include "bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "net/stream.h"
#include "node/node.h"
#include "proto/native/native.h"

#define BLOCK_TOKENS  16u
#define CHUNK_BLOCKS  16u
#define PROMPT_CHUNKS 128u
#define PROMPT_BLOCKS (PROMPT_CHUNKS * CHUNK_BLOCKS)
#define CELL_BYTES    64u
#define CHAIN         1u
#define GOAL          (1 / 1.5)
#define ANSWER_MAX    65536u

struct native {
    const struct tierce__bench *bench;
    struct tierce__node_config config;
    struct tierce__node *node;
    struct tierce_engine *engine; /* the node's */
    struct tierce_view *view;
    struct tierce_chain *chain;
    int fd;
    uint64_t number; /* of the view */
    struct tierce__native_frame frame;
    uint8_t answer[ANSWER_MAX];

    cpu_set_t before;  /* where this thread was */
    int asks, answers; /* processors, if there are two */
    int here;          /* of this thread */

    /* The bare side. */
    int pair[2]; /* asks, answers */
    pthread_t echo;
    bool echoes;
    size_t ask_bytes, answer_bytes;
};

static const uint32_t cell_bytes = CELL_BYTES;

static struct tierce_namespace the_namespace(void)
{
    return (struct tierce_namespace){.size = sizeof(struct tierce_namespace),
                                     .weights = "00",
                                     .layout = "bench",
                                     .layer_count = 1,
                                     .cell_bytes = &cell_bytes,
                                     .block_tokens = BLOCK_TOKENS,
                                     .chunk_blocks = CHUNK_BLOCKS,
                                     .algo = TIERCE_CHAIN_SHA256};
}

/* ---- sockets --------------------------------------------------------------------------------- */

static bool read_all(int fd, void *out, size_t bytes)
{
    uint8_t *at = out;
    while (bytes > 0) {
        ssize_t n = read(fd, at, bytes);
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t bytes)
{
    const uint8_t *at = from;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Asks what is in the frame. Returns the bytes of the answer, head included, or a negative
 * error. */
static int64_t exchange(struct native *n)
{
    size_t have = 0;
    uint32_t body, status;
    if (!write_all(n->fd, n->frame.bytes, n->frame.used))
        return -EPIPE;
    for (;;) {
        ssize_t got = read(n->fd, n->answer + have, sizeof(n->answer) - have);
        if (got <= 0)
            return -EPIPE;
        have += (size_t)got;
        if (have < TIERCE__NATIVE_HEAD || tierce__native_head(&body, &status, n->answer) < 0)
            continue;
        if (body > sizeof(n->answer) - TIERCE__NATIVE_HEAD)
            return -EMSGSIZE;
        if (have == TIERCE__NATIVE_HEAD + body)
            return status == 0 ? (int64_t)have : -EPROTO;
    }
}

static int64_t ask(struct native *n, union tierce__native_answer *say, enum tierce__native_op op,
                   const union tierce__native_request *request)
{
    int rc = tierce__native_pack_request(&n->frame, op, request);
    int64_t bytes = rc == 0 ? exchange(n) : rc;
    if (bytes < 0)
        return tierce__bench_fail(n->bench, "the node does not answer a request of type %d",
                                  (int)op);
    rc = tierce__native_unpack_answer(say, op, n->answer + TIERCE__NATIVE_HEAD,
                                      (size_t)bytes - TIERCE__NATIVE_HEAD);
    return rc < 0 ? rc : bytes;
}

/* ---- processors ------------------------------------------------------------------------------ */

/* So do the threads that are made afterwards. */
static void go_to(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)processor, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

/* The last two that may be used, because the first serves most interrupts. One: it is both. */
static void choose_processors(struct native *n)
{
    n->asks = n->answers = 0;
    for (int i = 0, count = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET((size_t)i, &n->before))
            continue;
        n->asks = count++ > 0 ? n->answers : i;
        n->answers = i;
    }
}

/* ---- the node -------------------------------------------------------------------------------- */

static int start_node(struct native *n)
{
    char path[128], why[TIERCE_CONFIG_ERROR_BYTES] = "";
    char *const argv[] = {path,
                          (char *)"--listen.resp=false",
                          (char *)"--listen.lm=false",
                          (char *)"--listen.http_port=0",
                          (char *)"--control.socket=",
                          (char *)"--memory.size=64MiB"};
    char *const no_environment[] = {NULL};
    struct tierce__config_error error;
    int written = snprintf(path, sizeof(path), "--listen.native=%s/node.sock", n->bench->dir);
    const char *socket_path = path + strlen("--listen.native=");
    if (written >= (int)sizeof(path))
        return tierce__bench_fail(n->bench, "the folder's name is too long for a socket");
    if (tierce__node_config_load(&n->config, 6, argv, no_environment, &error) < 0)
        return tierce__bench_fail(n->bench, "%s", error.text);
    int rc = tierce__node_start(&n->node, &n->config, why);
    if (rc == 0)
        rc = tierce_engine_open(&n->engine, n->config.engine, why);
    if (rc < 0)
        return tierce__bench_fail(n->bench, "%s", why);
    rc = tierce__stream_connect_unix(&n->fd, socket_path);
    /* Blocking reads, as on the bare side. */
    return rc == 0 && fcntl(n->fd, F_SETFL, 0) < 0 ? -errno : rc;
}

/* A prompt of which memory has all. */
static int store_prompt(struct native *n)
{
    struct tierce_namespace ns = the_namespace();
    static uint8_t cells[PROMPT_BLOCKS * CELL_BYTES], hashes[PROMPT_BLOCKS * TIERCE_HASH_BYTES];
    static int32_t ids[PROMPT_BLOCKS];
    struct tierce_paged_layer layer = {
        .base = cells, .block_stride = CELL_BYTES, .block_bytes = CELL_BYTES};
    struct tierce_paged paged = {
        .size = sizeof(paged), .layers = &layer, .layer_count = 1, .block_count = PROMPT_BLOCKS};
    for (int32_t i = 0; i < (int32_t)PROMPT_BLOCKS; i++)
        ids[i] = i;
    tierce__bench_fill(hashes, sizeof(hashes), 1);
    int64_t rc = tierce_view_open(&n->view, n->engine, &ns, &(struct tierce_shard){0, 1, 0, 1});
    if (rc == 0)
        rc = tierce_view_chain(&n->chain, n->view, NULL);
    if (rc == 0)
        rc = tierce_chain_append_hashes(n->chain, hashes, PROMPT_BLOCKS);
    if (rc < 0)
        return (int)rc;
    rc = tierce_store(n->view,
                      &(struct tierce_transfer_opts){.size = sizeof(struct tierce_transfer_opts),
                                                     .chain = n->chain,
                                                     .to_block = PROMPT_BLOCKS,
                                                     .paged = &paged,
                                                     .block_ids = ids});
    return rc == PROMPT_BLOCKS ? 0
                               : tierce__bench_fail(n->bench, "a store did not accept all chunks");
}

static struct tierce__native_chain known_chain(const struct native *n)
{
    struct tierce__native_chain chain = {.number = CHAIN, .first = PROMPT_BLOCKS};
    memcpy(chain.parent, tierce_chain_hash(n->chain, PROMPT_BLOCKS - 1), TIERCE_HASH_BYTES);
    return chain;
}

/* Greets, opens a view, and tells the chain. */
static int introduce(struct native *n)
{
    struct tierce_namespace ns = the_namespace();
    union tierce__native_answer say;
    union tierce__native_request request = {
        .hello = {.magic = TIERCE__NATIVE_MAGIC, .version = TIERCE__NATIVE_VERSION}};
    int64_t rc = ask(n, &say, TIERCE__NATIVE_HELLO, &request);
    request.view = (struct tierce__native_view){
        .weights = ns.weights,
        .layout = ns.layout,
        .cell_bytes = {.bytes = (const uint8_t *)&cell_bytes, .count = 1},
        .block_tokens = BLOCK_TOKENS,
        .chunk_blocks = CHUNK_BLOCKS,
        .algo = ns.algo,
        .tp_size = 1,
        .pp_size = 1,
        .layer_count = 1,
        .part_count = 1};
    if (rc >= 0)
        rc = ask(n, &say, TIERCE__NATIVE_VIEW, &request);
    if (rc < 0)
        return (int)rc;
    n->number = say.view.number;
    request.lookup = (struct tierce__native_lookup){
        .view = n->number,
        .to_block = PROMPT_BLOCKS,
        .chain = {.number = CHAIN,
                  .hashes = {.bytes = tierce_chain_hash(n->chain, 0), .count = PROMPT_BLOCKS}}};
    memcpy(request.lookup.chain.parent, tierce_chain_root_hash(n->chain), TIERCE_HASH_BYTES);
    rc = ask(n, &say, TIERCE__NATIVE_LOOKUP, &request);
    if (rc >= 0 && say.lookup.memory_blocks != PROMPT_BLOCKS)
        return tierce__bench_fail(n->bench, "a lookup did not find all chunks");
    return rc < 0 ? (int)rc : 0;
}

/* ---- sides ----------------------------------------------------------------------------------- */

/* Lets the previous server thread go to sleep first, if it shares this processor. */
static uint64_t begin_clock(void)
{
    sched_yield();
    return tierce__now_ns();
}

static int64_t run_lookup(void *arg)
{
    struct native *n = arg;
    union tierce__native_answer say;
    union tierce__native_request request = {
        .lookup = {.view = n->number, .to_block = PROMPT_BLOCKS, .chain = known_chain(n)}};
    uint64_t start = begin_clock();
    int64_t rc = ask(n, &say, TIERCE__NATIVE_LOOKUP, &request);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    n->ask_bytes = n->frame.used;
    n->answer_bytes = rc > 0 ? (size_t)rc : 0;
    return rc < 0 ? rc : ns;
}

static int64_t run_load(void *arg)
{
    struct native *n = arg;
    union tierce__native_answer say;
    struct tierce__native_lent lent;
    union tierce__native_request request = {
        .load_begin = {.view = n->number, .to_block = PROMPT_BLOCKS, .chain = known_chain(n)}};
    uint64_t start = begin_clock();
    int64_t rc = ask(n, &say, TIERCE__NATIVE_LOAD_BEGIN, &request);
    int64_t ns = (int64_t)(tierce__now_ns() - start);
    if (rc < 0)
        return rc;
    n->ask_bytes = n->frame.used;
    n->answer_bytes = (size_t)rc;
    bool is_whole = say.load_begin.chunks.count == PROMPT_CHUNKS;
    for (uint32_t i = 0; is_whole && i < PROMPT_CHUNKS; i++)
        is_whole = tierce__native_get_lent(&lent, &say.load_begin.chunks, i) == 0 &&
                   lent.state == TIERCE__NATIVE_HERE;
    if (!is_whole)
        return tierce__bench_fail(n->bench, "a load did not return all chunks");
    request.load_end = (struct tierce__native_load_end){.load = say.load_begin.load};
    rc = ask(n, &say, TIERCE__NATIVE_LOAD_END, &request);
    return rc < 0 ? rc : ns;
}

static void *run_echo(void *arg)
{
    struct native *n = arg;
    static uint8_t bytes[ANSWER_MAX];
    go_to(n->answers);
    while (read_all(n->pair[1], bytes, n->ask_bytes) &&
           write_all(n->pair[1], bytes, n->answer_bytes)) {
    }
    return NULL;
}

static int64_t run_bare(void *arg)
{
    struct native *n = arg;
    uint64_t start = begin_clock();
    bool ok = write_all(n->pair[0], n->answer, n->ask_bytes) &&
              read_all(n->pair[0], n->answer, n->answer_bytes);
    return ok ? (int64_t)(tierce__now_ns() - start) : -EPIPE;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void stop_echo(struct native *n)
{
    shutdown(n->pair[0], SHUT_RDWR);
    if (n->echoes)
        pthread_join(n->echo, NULL);
    n->echoes = false;
    close(n->pair[0]);
    close(n->pair[1]);
}

static int run_case(struct native *n, const char *name, tierce__bench_run_fn *run)
{
    char placed[80];
    int64_t once = run(n); /* tells the bytes */
    if (once < 0)
        return (int)once;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, n->pair) < 0)
        return -errno;
    int rc = -pthread_create(&n->echo, NULL, run_echo, n);
    n->echoes = rc == 0;
    struct tierce__bench_side sides[] = {{.run = run, .arg = n}, {.run = run_bare, .arg = n}};
    if (rc == 0)
        rc = tierce__bench_alternate(sides, 2, n->bench->seconds);
    stop_echo(n);
    if (rc < 0)
        return rc;
    snprintf(placed, sizeof(placed), "%s; %s", name,
             n->here == n->answers ? "one processor" : "two processors");
    tierce__bench_emit(n->bench, &(struct tierce__bench_row){.case_name = placed,
                                                             .unit = "us",
                                                             .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                                             .value = sides[0].median_ns / 1e3,
                                                             .limit = sides[1].median_ns / 1e3,
                                                             .goal = GOAL,
                                                             .value_min = sides[0].min_ns / 1e3,
                                                             .value_max = sides[0].max_ns / 1e3,
                                                             .limit_min = sides[1].min_ns / 1e3,
                                                             .limit_max = sides[1].max_ns / 1e3});
    return 0;
}

static int run_cases(struct native *n, int processor)
{
    n->here = processor;
    go_to(processor);
    int rc = run_case(n, "load of 128 chunks begins", run_load);
    return rc == 0 ? run_case(n, "lookup of 128 chunks", run_lookup) : rc;
}

int tierce__bench_native(const struct tierce__bench *bench)
{
    struct native *n = tierce__calloc(1, sizeof(*n));
    if (n == NULL)
        return -ENOMEM;
    n->bench = bench;
    n->fd = -1;
    int rc = sched_getaffinity(0, sizeof(n->before), &n->before) < 0 ? -errno : 0;
    choose_processors(n);
    go_to(n->answers);
    if (rc == 0)
        rc = start_node(n);
    if (rc == 0)
        rc = store_prompt(n);
    if (rc == 0)
        rc = introduce(n);
    if (rc == 0)
        rc = run_cases(n, n->asks);
    if (rc == 0 && n->asks != n->answers)
        rc = run_cases(n, n->answers);
    (void)sched_setaffinity(0, sizeof(n->before), &n->before);
    if (n->fd >= 0)
        close(n->fd);
    tierce_chain_destroy(n->chain);
    tierce_view_close(n->view);
    tierce_engine_close(n->engine);
    tierce__node_stop(n->node);
    tierce__node_config_clear(&n->config);
    tierce__native_frame_fini(&n->frame);
    tierce__free(n);
    return rc;
}
