/* SPDX-License-Identifier: Apache-2.0 */
/* A mover between real folders, before a manager that is simulated: this program has the functions
 * of fleet_manager.c itself. */
#include "mover/mover.h"
#include "chunk_object.h"
#include "silent_log.h"
#include "temp_folder.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "base/text/url.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { CELL = 512, BATCHES = 32, BLOCKS = 8 };

/* ---- the manager ----------------------------------------------------------------------------- */

struct batch {
    char session[32];
    int64_t first_key;
    size_t count;
    const char *from, *to; /* storages */
    enum { WAITS, TAKEN, FINISHED } state;
    Meta__MoveResult results[BLOCKS];
    unsigned renewals;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct tierce__list calls; /* that are not delivered */
    struct batch batches[BATCHES];
    size_t count;
    const char *storages;
    int64_t lease_ms;
    int status;              /* of calls: 0, or they fail so */
    bool holds_finishes;     /* they are not delivered */
    bool is_awake, ends_all; /* ends_all: batches that are held are lost */
    unsigned takes, finishes;
    char mover[32], host[64];
} fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static int the_manager;

static void lock(void)
{
    pthread_mutex_lock(&fake.mutex);
}

static void unlock(void)
{
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.mutex);
}

int tierce__fleet_manager_open(struct tierce__fleet_manager **out,
                               const struct tierce__fleet_manager_opts *opts,
                               char why[TIERCE__FLEET_WHY_BYTES])
{
    (void)why;
    ck_assert_uint_eq(opts->url->host_count, 1);
    *out = (struct tierce__fleet_manager *)(void *)&the_manager;
    return 0;
}

void tierce__fleet_manager_close(struct tierce__fleet_manager *manager)
{
    if (manager == NULL)
        return;
    lock();
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fake.calls) {
        struct tierce__fleet_call *call = TIERCE__CONTAINER_OF(it, struct tierce__fleet_call, node);
        tierce__list_remove(it);
        tierce__proto_free(call->reply);
        call->reply = NULL;
    }
    unlock();
}

void tierce__fleet_manager_wake(struct tierce__fleet_manager *manager)
{
    (void)manager;
    lock();
    fake.is_awake = true;
    unlock();
}

void tierce__fleet_manager_stats(struct tierce__fleet_manager *manager,
                                 struct tierce__tier_stats *out)
{
    (void)manager, (void)out;
}

static char *text_in(ProtobufCMessage *root, const char *text)
{
    char *copy = tierce__proto_alloc(root, strlen(text) + 1);
    ck_assert_ptr_nonnull(copy);
    return strcpy(copy, text);
}

static char *uri_in(ProtobufCMessage *root, const char *storage, int64_t key)
{
    char uri[256], folder[128], name[64];
    snprintf(name, sizeof(name), "\"global_unique_name\":\"%s\",", storage);
    const char *at = strstr(fake.storages, name) + strlen(name);
    ck_assert_int_eq(sscanf(at, "\"storage_spec\":{\"root_path\":\"%120[^\"]", folder), 1);
    snprintf(uri, sizeof(uri), "file://%s%s/%lld?size=%llu", storage, folder, (long long)key,
             (unsigned long long)chunk_object_bytes(CELL));
    return text_in(root, uri);
}

static void fill_batch(ProtobufCMessage *root, Meta__MoveBatch *out, struct batch *batch)
{
    out->instance_id = text_in(root, "i");
    out->write_session_id = text_in(root, batch->session);
    out->from_storage = text_in(root, batch->from);
    out->to_storage = text_in(root, batch->to);
    out->kind = META__MOVE_KIND__MK_MOVE;
    out->moves = tierce__proto_alloc(root, batch->count * sizeof(*out->moves));
    for (size_t i = 0; i < batch->count; i++) {
        Meta__BlockMove *move =
            (Meta__BlockMove *)tierce__proto_add(root, &meta__block_move__descriptor);
        Meta__MovedPart *part =
            (Meta__MovedPart *)tierce__proto_add(root, &meta__moved_part__descriptor);
        move->block_key = batch->first_key + (int64_t)i;
        move->parts = tierce__proto_alloc(root, sizeof(*move->parts));
        move->parts[0] = part;
        move->n_parts = 1;
        part->location_spec_name = text_in(root, "tp0");
        part->from_uri = uri_in(root, batch->from, move->block_key);
        part->to_uri = uri_in(root, batch->to, move->block_key);
        out->moves[out->n_moves++] = move;
    }
}

/* Only those of the answer's batches, as the manager does it. */
static char *storages_in(Meta__TakeMovesResponse *reply)
{
    char text[1200] = "[", entry[400], folder[128];
    const char *at = fake.storages;
    while ((at = strstr(at, "{\"type\"")) != NULL) {
        const char *end = strstr(at, "}}") + 2;
        char name[32];
        bool is_used = false;
        ck_assert_int_eq(sscanf(at,
                                "{\"type\":\"file\",\"global_unique_name\":\"%31[^\"]\","
                                "\"storage_spec\":{\"root_path\":\"%120[^\"]",
                                name, folder),
                         2);
        for (size_t i = 0; i < reply->n_batches; i++)
            is_used = is_used || strcmp(reply->batches[i]->from_storage, name) == 0 ||
                      strcmp(reply->batches[i]->to_storage, name) == 0;
        snprintf(entry, sizeof(entry), "%s%.*s", text[1] != '\0' ? "," : "", (int)(end - at), at);
        if (is_used)
            strncat(text, entry, sizeof(text) - strlen(text) - 1);
        at = end;
    }
    strncat(text, "]", sizeof(text) - strlen(text) - 1);
    return text_in(&reply->base, text);
}

static struct batch *batch_named(const char *session)
{
    for (size_t i = 0; i < fake.count; i++) {
        if (strcmp(fake.batches[i].session, session) == 0)
            return &fake.batches[i];
    }
    return NULL;
}

static void renew(Meta__TakeMovesResponse *reply, const Meta__TakeMovesRequest *request)
{
    reply->lost = tierce__proto_alloc(&reply->base, (request->n_held + 1) * sizeof(*reply->lost));
    for (size_t i = 0; i < request->n_held; i++) {
        struct batch *batch = batch_named(request->held[i]->write_session_id);
        ck_assert_str_eq(request->held[i]->instance_id, "i");
        batch->renewals++;
        if (fake.ends_all || batch->state != TAKEN)
            reply->lost[reply->n_lost++] = text_in(&reply->base, batch->session);
    }
}

static void take(Meta__TakeMovesResponse *reply, const Meta__TakeMovesRequest *request)
{
    size_t left = (size_t)request->blocks_max;
    fake.takes++;
    snprintf(fake.mover, sizeof(fake.mover), "%s", request->mover);
    snprintf(fake.host, sizeof(fake.host), "%s", request->host_id);
    renew(reply, request);
    reply->lease_ms = fake.lease_ms;
    reply->wait_ms = 5;
    reply->batches = tierce__proto_alloc(&reply->base, BATCHES * sizeof(*reply->batches));
    for (size_t i = 0; i < fake.count; i++) {
        struct batch *batch = &fake.batches[i];
        if (batch->state != WAITS || batch->count > left)
            continue;
        batch->state = TAKEN;
        left -= batch->count;
        Meta__MoveBatch *out =
            (Meta__MoveBatch *)tierce__proto_add(&reply->base, &meta__move_batch__descriptor);
        fill_batch(&reply->base, out, batch);
        reply->batches[reply->n_batches++] = out;
    }
    reply->storage_configs = storages_in(reply);
}

/* TIERCE_E_MISS: no such session. */
static int finish(Meta__FinishMovesResponse *reply, const Meta__FinishMovesRequest *request)
{
    struct batch *batch = batch_named(request->write_session_id);
    fake.finishes++;
    if (batch == NULL || batch->state != TAKEN || fake.ends_all)
        return TIERCE_E_MISS;
    ck_assert_uint_eq(request->n_results, batch->count);
    memcpy(batch->results, request->results, batch->count * sizeof(batch->results[0]));
    batch->state = FINISHED;
    for (size_t i = 0; i < batch->count; i++)
        reply->moved_blocks += batch->results[i] == META__MOVE_RESULT__MR_COPIED;
    return 0;
}

void tierce__fleet_manager_start(struct tierce__fleet_manager *manager,
                                 struct tierce__fleet_call *call)
{
    (void)manager;
    tierce__list_init(&call->node);
    lock();
    call->reply = tierce__proto_create(call->answers);
    call->status = fake.status;
    if (call->status == 0 && strcmp(call->method, "TakeMoves") == 0)
        take((Meta__TakeMovesResponse *)call->reply, (const Meta__TakeMovesRequest *)call->request);
    else if (call->status == 0)
        call->status = finish((Meta__FinishMovesResponse *)call->reply,
                              (const Meta__FinishMovesRequest *)call->request);
    if (call->status != 0) {
        tierce__proto_free(call->reply);
        call->reply = NULL;
        snprintf(call->why, sizeof(call->why), "fake: %s failed", call->method);
    }
    tierce__list_push_back(&fake.calls, &call->node);
    unlock();
}

static struct tierce__fleet_call *find_due(void)
{
    TIERCE__LIST_FOR_EACH (it, &fake.calls) {
        struct tierce__fleet_call *call = TIERCE__CONTAINER_OF(it, struct tierce__fleet_call, node);
        if (!fake.holds_finishes || strcmp(call->method, "TakeMoves") == 0)
            return call;
    }
    return NULL;
}

void tierce__fleet_manager_poll(struct tierce__fleet_manager *manager, uint64_t until_ns)
{
    struct tierce__fleet_call *call;
    bool in_time = true;
    (void)manager;
    pthread_mutex_lock(&fake.mutex);
    while ((call = find_due()) == NULL && !fake.is_awake && in_time) {
        uint64_t most_ns = tierce__deadline_in_ms(60000);
        until_ns = until_ns < most_ns ? until_ns : most_ns;
        struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                 .tv_nsec = (long)(until_ns % 1000000000)};
        in_time = tierce__now_ns() < until_ns &&
                  pthread_cond_timedwait(&fake.changed, &fake.mutex, &until) == 0;
    }
    fake.is_awake = false;
    if (call != NULL)
        tierce__list_remove(&call->node);
    pthread_mutex_unlock(&fake.mutex);
    if (call != NULL)
        call->done(call);
}

/* ---- the world ------------------------------------------------------------------------------- */

static char root[64], storages[1200];
static struct tierce__mover *mover;

static const char *at(const char *folder, int64_t key)
{
    static char path[4][160];
    static unsigned next;
    snprintf(path[next % 4], sizeof(path[0]), "%s/%s/%lld", root, folder, (long long)key);
    return path[next++ % 4];
}

static int start_mover(uint64_t rate)
{
    char why[TIERCE__FLEET_WHY_BYTES];
    return tierce__mover_start(
        &mover,
        &(struct tierce__mover_opts){.size = sizeof(struct tierce__mover_opts),
                                     .url = "fleet://127.0.0.1:1/pool",
                                     .name = "m1",
                                     .memory_bytes = 4 << 20,
                                     .rate_bytes_per_s = rate,
                                     .parallel_max = 4,
                                     .timeout_ms = 10000},
        why);
}

static void make_world(void)
{
    pthread_condattr_t attributes;
    char folder[128];
    silence_log();
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&fake.changed, &attributes);
    tierce__list_init(&fake.calls);
    fake.lease_ms = 30000;
    snprintf(root, sizeof(root), "/tmp/tierce-mover-XXXXXX");
    temp_folder_make(root);
    for (const char *name = "abc"; *name != '\0'; name++) {
        snprintf(folder, sizeof(folder), "%s/%c", root, *name);
        ck_assert_int_eq(mkdir(folder, 0700), 0);
    }
    static const char entry[] = "%s{\"type\":\"file\",\"global_unique_name\":\"%s\","
                                "\"storage_spec\":{\"root_path\":\"%s%s\"}}";
    static const char *const names[] = {"a", "b", "c", "gone"};
    int used = 0;
    for (size_t i = 0; i < 4; i++)
        used += snprintf(storages + used, sizeof(storages) - (size_t)used, entry, i > 0 ? "," : "[",
                         names[i], i < 3 ? root : "/proc/tierce/",
                         i < 3 ? (const char *const[]){"/a", "/b", "/c"}[i] : "none");
    snprintf(storages + used, sizeof(storages) - (size_t)used, "]");
    fake.storages = storages;
}

static void start(uint64_t rate)
{
    make_world();
    ck_assert_int_eq(start_mover(rate), 0);
}

static void stop(void)
{
    ck_assert(tierce__mover_stop(mover, tierce__deadline_in_ms(30000)));
    mover = NULL;
}

static void end(void)
{
    if (mover != NULL)
        stop();
    temp_folder_remove(root);
}

static void write_chunk(const char *folder, int64_t key)
{
    static uint8_t object[1 << 16];
    uint64_t bytes = chunk_object_bytes(CELL);
    chunk_object_fill(object, key, 0, CELL, 1);
    int fd = open(at(folder, key), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(write(fd, object, bytes), (ssize_t)bytes);
    close(fd);
}

static bool has_chunk(const char *folder, int64_t key)
{
    static uint8_t object[1 << 16], found[1 << 16];
    uint64_t bytes = chunk_object_bytes(CELL);
    int fd = open(at(folder, key), O_RDONLY);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, found, sizeof(found));
    close(fd);
    chunk_object_fill(object, key, 0, CELL, 1);
    return got == (ssize_t)bytes && memcmp(object, found, bytes) == 0;
}

/* A batch of `count` keys, whose chunks are written to its source if that is a folder. */
static struct batch *want(int64_t first_key, size_t count, const char *from, const char *to)
{
    for (size_t i = 0; i < count && from[1] == '\0'; i++)
        write_chunk(from, first_key + (int64_t)i);
    lock();
    ck_assert_uint_lt(fake.count, BATCHES);
    struct batch *batch = &fake.batches[fake.count++];
    *batch = (struct batch){.first_key = first_key, .count = count, .from = from, .to = to};
    snprintf(batch->session, sizeof(batch->session), "session%zu", fake.count);
    unlock();
    return batch;
}

static bool is_in(const struct batch *batch, int state)
{
    lock();
    bool is = (int)batch->state == state;
    unlock();
    return is;
}

static struct tierce__mover_state state(void)
{
    struct tierce__mover_state out;
    tierce__mover_state(mover, &out);
    return out;
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(blocks_are_moved)
{
    start(0);
    WAIT_FOR(state().is_connected);
    for (int64_t i = 0; i < 20; i++)
        (void)want(100 * i, BLOCKS, "a", "b");
    for (size_t i = 0; i < 20; i++) {
        WAIT_FOR(is_in(&fake.batches[i], FINISHED));
        for (size_t k = 0; k < BLOCKS; k++) {
            ck_assert_int_eq(fake.batches[i].results[k], META__MOVE_RESULT__MR_COPIED);
            ck_assert(has_chunk("b", fake.batches[i].first_key + (int64_t)k));
        }
    }
    WAIT_FOR(state().finished == 20);
    ck_assert_uint_eq(state().moved_blocks, 20 * BLOCKS);
    ck_assert_uint_eq(state().copies.objects[TIERCE__COPY_COPIED], 20 * BLOCKS);
    ck_assert_uint_eq(state().lost, 0);
    WAIT_FOR(state().batches == 0);
    lock(); /* the mover asks again */
    ck_assert_str_eq(fake.mover, "m1");
    ck_assert_uint_gt(strlen(fake.host), 0);
    unlock();
    end();
}
END_TEST

/* Each block has a result of its own; the source of a failed one stays. */
START_TEST(results_of_bad_blocks)
{
    uint8_t zeroes[64] = {0};
    start(0);
    write_chunk("a", 1);
    write_chunk("a", 2);
    int fd = open(at("a", 2), O_WRONLY);
    ck_assert_int_eq(pwrite(fd, zeroes, sizeof(zeroes), 4096 + 77), sizeof(zeroes));
    close(fd);
    write_chunk("a", 4);
    fd = open(at("a", 4), O_WRONLY);
    ck_assert_int_eq(pwrite(fd, zeroes, sizeof(zeroes), 0), sizeof(zeroes));
    close(fd);
    lock();
    fake.batches[0] =
        (struct batch){.session = "s", .first_key = 1, .count = 4, .from = "a", .to = "b"};
    fake.count = 1;
    unlock();
    WAIT_FOR(is_in(&fake.batches[0], FINISHED));
    static const Meta__MoveResult results[] = {
        META__MOVE_RESULT__MR_COPIED, META__MOVE_RESULT__MR_SOURCE_DAMAGED,
        META__MOVE_RESULT__MR_SOURCE_MISSING, META__MOVE_RESULT__MR_SOURCE_DAMAGED};
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(fake.batches[0].results[i], results[i]);
        ck_assert(has_chunk("b", 1 + (int64_t)i) == (i == 0));
    }
    end();
}
END_TEST

/* A storage that fails costs one attempt of a batch, and other batches go on. */
START_TEST(a_storage_that_fails)
{
    start(0);
    struct batch *first = want(1, BLOCKS, "a", "gone"), *second = want(100, BLOCKS, "a", "b");
    WAIT_FOR(is_in(first, FINISHED) && is_in(second, FINISHED));
    for (size_t i = 0; i < BLOCKS; i++) {
        ck_assert_int_eq(first->results[i], META__MOVE_RESULT__MR_TARGET_FAILED);
        ck_assert_int_eq(second->results[i], META__MOVE_RESULT__MR_COPIED);
    }
    end();
}
END_TEST

/* An answer names its own storages only: those of batches in progress stay open. */
START_TEST(answers_with_other_storages)
{
    start(chunk_object_bytes(CELL) * 20);
    struct batch *first = want(1, BLOCKS, "a", "b");
    WAIT_FOR(has_chunk("b", 1));
    struct batch *second = want(100, 1, "c", "gone");
    WAIT_FOR(is_in(first, FINISHED) && is_in(second, FINISHED));
    for (size_t i = 0; i < BLOCKS; i++)
        ck_assert_int_eq(first->results[i], META__MOVE_RESULT__MR_COPIED);
    ck_assert_int_eq(second->results[0], META__MOVE_RESULT__MR_TARGET_FAILED);
    end();
}
END_TEST

/* Batches are renewed while they last. */
START_TEST(long_batches_are_renewed)
{
    make_world();
    fake.lease_ms = 2000;                                           /* renewed each 667 ms */
    ck_assert_int_eq(start_mover(chunk_object_bytes(CELL) * 5), 0); /* 5 blocks a second */
    struct batch *batch = want(1, BLOCKS, "a", "b");
    WAIT_FOR(is_in(batch, FINISHED));
    for (size_t i = 0; i < BLOCKS; i++)
        ck_assert_int_eq(batch->results[i], META__MOVE_RESULT__MR_COPIED);
    ck_assert_uint_ge(batch->renewals, 2);
    end();
}
END_TEST

/* The manager ends a batch: nothing more of it is written. */
START_TEST(batches_that_are_lost)
{
    make_world();
    fake.lease_ms = 1000;
    ck_assert_int_eq(start_mover(chunk_object_bytes(CELL)), 0); /* a block a second */
    struct batch *batch = want(1, BLOCKS, "a", "b");
    WAIT_FOR(has_chunk("b", 1));
    lock();
    fake.ends_all = true;
    unlock();
    WAIT_FOR(state().lost == 1 && state().batches == 0);
    ck_assert(!has_chunk("b", BLOCKS));
    ck_assert(is_in(batch, TAKEN));
    lock();
    ck_assert_uint_eq(fake.finishes, 0);
    unlock();
    end();
}
END_TEST

/* Managers that do not answer are asked again; the results of a batch go to the next leader. */
START_TEST(no_manager_for_a_while)
{
    make_world();
    fake.status = TIERCE_E_DOWN;
    ck_assert_int_eq(start_mover(0), 0);
    WAIT_FOR(state().failures >= 1);
    ck_assert(!state().is_connected);
    ck_assert_str_eq(state().why, "fake: TakeMoves failed");
    lock();
    fake.status = 0;
    fake.holds_finishes = true; /* the first one is cut off */
    unlock();
    struct batch *batch = want(1, BLOCKS, "a", "b");
    WAIT_FOR(is_in(batch, FINISHED));
    ck_assert_str_eq(state().why, "");
    lock();
    TIERCE__LIST_FOR_EACH (it, &fake.calls) {
        struct tierce__fleet_call *call = TIERCE__CONTAINER_OF(it, struct tierce__fleet_call, node);
        if (strcmp(call->method, "FinishMoves") != 0)
            continue;
        batch->state = TAKEN;
        tierce__proto_free(call->reply);
        call->reply = NULL;
        call->status = TIERCE_E_DOWN;
    }
    fake.holds_finishes = false;
    unlock();
    WAIT_FOR(is_in(batch, FINISHED));
    WAIT_FOR(state().finished == 1);
    ck_assert_uint_eq(state().lost, 0);
    end();
}
END_TEST

/* It finishes what is done and gives the rest back. */
START_TEST(stopped_in_a_batch)
{
    start(chunk_object_bytes(CELL) * 4); /* 4 blocks a second */
    struct batch *batch = want(1, BLOCKS, "a", "b");
    WAIT_FOR(has_chunk("b", 1));
    stop();
    ck_assert(is_in(batch, FINISHED));
    ck_assert_int_eq(batch->results[0], META__MOVE_RESULT__MR_COPIED);
    ck_assert_int_eq(batch->results[BLOCKS - 1], META__MOVE_RESULT__MR_UNDONE);
    for (size_t i = 0; i < BLOCKS; i++)
        ck_assert((batch->results[i] == META__MOVE_RESULT__MR_COPIED) ==
                  has_chunk("b", 1 + (int64_t)i));
    end();
}
END_TEST

START_TEST(urls)
{
    char why[TIERCE__FLEET_WHY_BYTES];
    static const char *const good[] = {"fleet://h:1", "fleet://h:1,g:2/pool",
                                       "fleet+tls://h:1?token_file=/t&ca_file=/c"};
    static const char *const bad[] = {"",         "h:1",           "redis://h:1",
                                      "fleet://", "fleet://u@h:1", "fleet://h:1?rate=5"};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        ck_assert_msg(tierce__mover_check(good[i], why) == 0, "%s: %s", good[i], why);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        ck_assert_msg(tierce__mover_check(bad[i], why) == TIERCE_E_CONFIG, "%s", bad[i]);
        ck_assert_uint_gt(strlen(why), 0);
    }
}
END_TEST

START_TEST(each_allocation_of_the_start_fails_once)
{
    make_world();
    fake.status = TIERCE_E_DOWN; /* the thread's allocations may fail too, but not the fake's */
    uint64_t live = tierce__alloc_live();
    int rc = -ENOMEM;
    for (uint64_t nth = 1; rc != 0; nth++) {
        tierce__alloc_fail_nth(nth);
        rc = start_mover(0);
        (void)tierce__alloc_fail_nth(0);
        ck_assert(rc == 0 || rc == -ENOMEM);
        if (rc == 0)
            stop();
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    end();
}
END_TEST

CHECK_MAIN("mover", .seconds = 120,
           .tests = {blocks_are_moved, results_of_bad_blocks, a_storage_that_fails,
                     answers_with_other_storages, long_batches_are_renewed, batches_that_are_lost,
                     no_manager_for_a_while, stopped_in_a_batch, urls,
                     each_allocation_of_the_start_fails_once})
