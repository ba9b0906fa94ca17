/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_LIAR_H
#define TIERCE_TESTS_LIAR_H

/*
 * A proxy between a client and a real node that forwards requests and falsifies answers; and every
 * call of a client that receives such answers. Whatever it says, a call is a miss at worst, and no
 * block is reported that is not right.
 */
#define TIERCE_TEST_NODE
#include "check_main.h"
#include "engine_fixture.h"
#include "native_harness.h"
#include "test_random.h"

#include <tierce/why.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#define BLOCKS      14u /* three chunks and a tail */
#define RELAYS_MAX  2048u
#define BODY_MAX    (1u << 20)
#define LOOKUP_TIME "2s"
#define POLL_MS     5

/* The falsified answer. `say` borrows body, which may be written to; a status other than 0 has no
 * body. */
struct answer {
    int32_t status;
    union tierce__native_answer say;
    uint8_t *body;
    uint32_t bytes;
    bool is_cut, hangs;
    size_t sends;
};

struct lie {
    enum tierce__native_op op; /* 0: none, nothing but the truth */
    void (*tell)(const struct lie *lie, struct answer *answer);
    void (*fd)(int *fd); /* instead of the pool's */
    int32_t status;
    uint64_t number;
    size_t at, width; /* of the number in the body */
    size_t a, b;      /* rows */
    bool is_cut;      /* no more than `sends` bytes of the answer go out */
    bool hangs;       /* and nothing behind them; otherwise the connection ends */
    size_t sends;
    long late_ms;     /* every answer, whatever is asked */
    bool stops;       /* no answer, whatever is asked, until the next lie */
    uint32_t version; /* 0, or the only version of the protocol that is accepted */
};

static struct {
    char path[96], node[96];
    int fd;
    pthread_t thread, relays[RELAYS_MAX];
    size_t relay_count;
    pthread_mutex_t lock; /* what follows */
    pthread_cond_t changed;
    struct lie lie;
    unsigned told;
    struct test_random random;
} liar = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct fixture fx;
static struct tierce_engine *client;
static struct tierce_view *honest;

/* ---- the proxy ------------------------------------------------------------------------------- */

struct relay {
    int from, to;
    uint8_t body[BODY_MAX];
};

/* The node rejects the version that this leaves of a wrong one. */
static inline void check_version(struct relay *r, uint32_t op, uint32_t bytes)
{
    pthread_mutex_lock(&liar.lock);
    uint32_t version = liar.lie.version;
    pthread_mutex_unlock(&liar.lock);
    if (op == TIERCE__NATIVE_HELLO && bytes >= 8 && version != 0 &&
        tierce__load_le32(r->body + 4) != version)
        tierce__store_le32(r->body + 4, UINT32_MAX);
}

static inline bool read_question(struct relay *r, uint8_t *head, uint32_t *bytes, uint32_t *op)
{
    int none = -1;
    return native_receive(r->from, head, TIERCE__NATIVE_HEAD, &none) &&
           tierce__native_head(bytes, op, head) == 0 && *bytes <= BODY_MAX &&
           native_receive(r->from, r->body, *bytes, &none);
}

static inline bool pass_question(struct relay *r, uint32_t *op)
{
    uint8_t head[TIERCE__NATIVE_HEAD];
    uint32_t bytes;
    if (!read_question(r, head, &bytes, op))
        return false;
    check_version(r, *op, bytes);
    return send(r->to, head, sizeof(head), MSG_NOSIGNAL) == (ssize_t)sizeof(head) &&
           (bytes == 0 || send(r->to, r->body, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

static inline bool send_answer(int to, const struct tierce__native_frame *frame, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {.iov_base = frame->bytes, .iov_len = frame->used};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &fd, sizeof(int));
    }
    return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)frame->used;
}

static inline void tell(struct answer *answer, uint32_t op, int *fd)
{
    const struct lie *lie = &liar.lie;
    pthread_mutex_lock(&liar.lock);
    while (lie->stops)
        pthread_cond_wait(&liar.changed, &liar.lock);
    if (lie->op == (enum tierce__native_op)op) {
        if (lie->fd != NULL && *fd >= 0)
            lie->fd(fd);
        if (lie->tell != NULL)
            lie->tell(lie, answer);
        answer->is_cut = lie->is_cut;
        answer->hangs = lie->hangs;
        answer->sends = lie->sends;
        liar.told++;
    }
    long late_ms = lie->late_ms;
    /* A node waits before it answers that a prefetch goes on. If a false answer came at once, the
     * client would ask again at once, for as long as it waits. */
    if (late_ms == 0 && lie->op == TIERCE__NATIVE_PREFETCH_POLL &&
        op == TIERCE__NATIVE_PREFETCH_POLL)
        late_ms = POLL_MS;
    pthread_mutex_unlock(&liar.lock);
    poll(NULL, 0, (int)late_ms);
}

static inline bool pass_answer(struct relay *r, uint32_t op)
{
    struct tierce__native_frame frame = {0};
    struct answer answer = {.body = r->body};
    uint8_t head[TIERCE__NATIVE_HEAD];
    uint32_t word;
    int fd = -1, none = -1;
    if (!native_receive(r->to, head, sizeof(head), &fd) ||
        tierce__native_head(&answer.bytes, &word, head) != 0 || answer.bytes > BODY_MAX ||
        !native_receive(r->to, r->body, answer.bytes, &none))
        return false;
    answer.status = (int32_t)word;
    if (answer.status == 0 &&
        tierce__native_unpack_answer(&answer.say, op, r->body, answer.bytes) != 0)
        return false;
    tell(&answer, op, &fd);
    bool ok = tierce__native_pack_answer(&frame, (enum tierce__native_op)op, answer.status,
                                         &answer.say) == 0;
    if (answer.is_cut && answer.sends < frame.used)
        frame.used = answer.sends;
    ok = ok && (frame.used == 0 || send_answer(r->from, &frame, fd)) && !answer.is_cut;
    while (answer.hangs && recv(r->from, head, sizeof(head), 0) > 0)
        continue;
    tierce__native_frame_fini(&frame);
    if (fd >= 0)
        close(fd);
    return ok;
}

static inline void *run_relay(void *arg)
{
    struct relay *r = arg;
    uint32_t op;
    while (pass_question(r, &op) && pass_answer(r, op))
        continue;
    close(r->from);
    close(r->to);
    free(r);
    return NULL;
}

static inline void *run_liar(void *arg)
{
    int fd;
    while ((fd = accept4(liar.fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct relay *r = malloc(sizeof(*r));
        ck_assert(r != NULL && liar.relay_count < RELAYS_MAX);
        r->from = fd;
        r->to = native_connect(liar.node);
        ck_assert_int_ge(r->to, 0);
        ck_assert_int_eq(pthread_create(&liar.relays[liar.relay_count++], NULL, run_relay, r), 0);
    }
    return arg;
}

static inline void start_liar(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(liar.node, sizeof(liar.node), "%s/node", fx.socket_folder);
    snprintf(liar.path, sizeof(liar.path), "%s/liar", fx.socket_folder);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", liar.path);
    liar.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(liar.fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(liar.fd, 64), 0);
    ck_assert_int_eq(pthread_create(&liar.thread, NULL, run_liar, NULL), 0);
}

/* The client must be closed. */
static inline void stop_liar(void)
{
    shutdown(liar.fd, SHUT_RDWR);
    pthread_join(liar.thread, NULL);
    close(liar.fd);
    for (size_t i = 0; i < liar.relay_count; i++)
        pthread_join(liar.relays[i], NULL);
    unlink(liar.path);
}

/* ---- a client of it -------------------------------------------------------------------------- */

/* Its timeout.lookup and timeout.pin. */
static inline void open_client_with(const char *lookup, const char *pin)
{
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct tierce_namespace ns = fx_namespace();
    struct tierce_config *config;
    ck_assert_int_eq(tierce_config_create(&config), 0);
    ck_assert_int_eq(tierce_config_set(config, "node.socket", liar.path, why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.lookup", lookup, why), 0);
    ck_assert_int_eq(tierce_config_set(config, "timeout.pin", pin, why), 0);
    client = fx_engine(config);
    tierce_config_destroy(config);
    ck_assert_int_eq(tierce_view_open(&fx.view, client, &ns, &(struct tierce_shard){0, 1, 0, 1}),
                     0);
}

static inline void open_client(void)
{
    open_client_with(LOOKUP_TIME, "60s");
}

static inline void close_client(void)
{
    tierce_view_close(fx.view);
    tierce_engine_close(client);
    fx.view = honest;
}

static inline void start_over(bool disk, const char *const *sets)
{
    fx_open(&fx, disk, sets);
    honest = fx.view;
    start_liar();
    open_client();
}

static inline void start(const char *const *sets)
{
    start_over(false, sets);
}

static inline void end(void)
{
    close_client();
    stop_liar();
    fx_close(&fx);
    fx_remove(&fx);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline void is_no_failure(int64_t rc)
{
    ck_assert_msg(rc >= 0 || rc == TIERCE_E_ARGUMENT || rc == -ENOMEM, "%lld", (long long)rc);
}

/* Returns the blocks that were loaded, each of which is right. */
static inline int64_t check_load(const struct tierce_chain *chain)
{
    uint8_t origins[BLOCKS];
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, BLOCKS, fx_ids);
    what.timeout_ms = 1000;
    fx_wipe(&fx);
    int64_t loaded = tierce_load(fx.view, &what, origins), right = 0;
    is_no_failure(loaded);
    for (size_t b = 0; loaded >= 0 && b < BLOCKS; b++) {
        if (origins[b] == TIERCE_ORIGIN_FAILED)
            continue;
        ck_assert(fx_right(&fx, chain, b, fx_ids[b]));
        right++;
    }
    ck_assert(loaded < 0 || loaded == right);
    return loaded;
}

static inline void check_store(uint32_t seed)
{
    struct tierce_chain *chain = fx_chain(&fx, seed, BLOCKS, 0);
    int64_t stored = fx_store(&fx, chain, BLOCKS, fx_ids, true);
    is_no_failure(stored);
    ck_assert_int_le(stored, BLOCKS);
    tierce_chain_destroy(chain);
}

static inline void check_prefetch(const struct tierce_chain *chain)
{
    struct tierce_prefetch *prefetch;
    struct tierce_prefetch_opts opts = {.size = sizeof(opts), .timeout_ms = 200};
    struct tierce_prefetch_result result = {.size = sizeof(result)};
    int rc = tierce_prefetch_begin(&prefetch, fx.view, chain, BLOCKS, &opts);
    is_no_failure(rc);
    if (rc < 0)
        return;
    ck_assert_int_eq(tierce_prefetch_wait(prefetch, 10000), 0);
    (void)tierce_prefetch_poll(prefetch, &result);
    ck_assert(result.final);
    ck_assert_uint_le(result.blocks, BLOCKS);
    ck_assert_uint_le(result.memory_blocks, result.blocks);
    ck_assert_uint_le(result.tier_count, TIERCE_PREFETCH_TIERS_MAX);
    tierce_prefetch_end(prefetch);
}

/* Every call once. */
static inline void check_all(const struct tierce_chain *chain, uint32_t seed)
{
    struct tierce_found found = {0};
    struct tierce_lookup_opts look = {
        .size = sizeof(look), .flags = TIERCE_LOOKUP_PIN, .session = 7, .pin_ms = 100};
    uint64_t durable = 0;
    is_no_failure(tierce_lookup(fx.view, chain, BLOCKS, &look, &found));
    ck_assert(found.blocks <= BLOCKS && found.memory_blocks <= found.blocks);
    is_no_failure(tierce_durable(fx.view, chain, BLOCKS, &durable));
    ck_assert_uint_le(durable, BLOCKS);
    (void)check_load(chain);
    check_store(seed);
    check_prefetch(chain);
    tierce_unpin(fx.view, 7);
    is_no_failure(tierce_session_hint(fx.view, 7, TIERCE_HINT_OPEN));
    tierce_view_computed(fx.view, 100, 100);
    struct tierce_request request = {.size = sizeof(request), .name = "request", .session = 7};
    ck_assert_int_eq(tierce_request_note(client, &request), 0);
    ck_assert_int_le(tierce_engine_flush(client, 10), 0);
}

/* Returns how often the last one was told. */
static inline unsigned lie_with(struct lie lie)
{
    pthread_mutex_lock(&liar.lock);
    unsigned told = liar.told;
    liar.told = 0;
    liar.lie = lie;
    pthread_cond_broadcast(&liar.changed);
    pthread_mutex_unlock(&liar.lock);
    return told;
}

static inline unsigned tell_the_truth(void)
{
    return lie_with((struct lie){0});
}

/* ---- lies ------------------------------------------------------------------------------------ */

static inline void tell_status(const struct lie *lie, struct answer *answer)
{
    answer->status = lie->status;
}

/* Every number of an answer becomes each of these. */
static const uint64_t numbers[] = {
    0,    1,        2,          3,          4,          5,          255,        4095,
    4097, 1u << 31, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX, 4ull << 20, 0xfffffff8u};
/* Takes over what the bytes say by now; what they do not is nonsense. */
static inline void take_bytes(const struct lie *lie, struct answer *answer)
{
    if (answer->status == 0 && tierce__native_unpack_answer(&answer->say, (uint32_t)lie->op,
                                                            answer->body, answer->bytes) != 0)
        answer->status = TIERCE_E_FORMAT;
}

static inline void tell_number(const struct lie *lie, struct answer *answer)
{
    if (answer->status == 0 && lie->at + lie->width <= answer->bytes)
        memcpy(answer->body + lie->at, &lie->number, lie->width);
    take_bytes(lie, answer);
}

/* Fields of `width` bytes, `count` of them from `at` on. */
static inline void try_numbers(enum tierce__native_op op, size_t at, size_t width, size_t count,
                               void (*check)(const struct tierce_chain *, uint32_t),
                               const struct tierce_chain *chain)
{
    static uint32_t seed = 100000;
    for (size_t end = at + width * count; at < end; at += width) {
        for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
            lie_with((struct lie){op, tell_number, .number = numbers[i], .at = at, .width = width});
            check(chain, seed++);
        }
    }
    tell_the_truth();
}

#endif
