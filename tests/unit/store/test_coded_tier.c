/* SPDX-License-Identifier: Apache-2.0 */
/* A disk whose chunks are coded: callers see raw chunks, and no damage gives other bytes. */
#include "coded_store.h"
#include "store/coded/coded_keys.h"
#include "wait_for.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MIB (1ULL << 20)

static struct store s;
static const struct tierce__codec *lossless;

static void setup(void)
{
    lossless = tierce__codec_find("lossless");
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace(&s, "bfloat16");
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static void open_coded(void)
{
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.codec = lossless});
}

static uint64_t looked_up_bytes(uint64_t n)
{
    struct tierce__key key = store_key(&s, n);
    struct tierce__store_req req = {.op = TIERCE__STORE_LOOKUP, .keys = &key, .key_count = 1};
    ck_assert_int_eq(store_run(&s, &req), 0);
    return req.found == 1 ? req.object_bytes : 0;
}

START_TEST(chunks_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    open_coded();
    for (uint64_t n = 0; n < 6; n++)
        ck_assert_int_eq(coded_put(&s, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    struct tierce__coded_stats stats = coded_stats(&s);
    ck_assert_uint_eq(stats.encoded_chunks, 4);
    ck_assert_uint_eq(stats.encoded_raw_bytes, 4 * bytes);
    ck_assert_uint_lt(stats.encoded_bytes, 3 * bytes);
    ck_assert_uint_eq(stats.raw_chunks[TIERCE__CODED_RAW_LONGER], 2);
    ck_assert_uint_eq(store_stats(&s).put_bytes, stats.encoded_bytes + 2 * bytes);
    for (uint64_t n = 0; n < 6; n++) {
        ck_assert_uint_eq(looked_up_bytes(n), bytes);
        ck_assert_int_eq(coded_get_all(&s, n, (enum coded_kind)(n % CODED_KINDS)), 0);
    }
    stats = coded_stats(&s);
    ck_assert_uint_eq(stats.decoded_raw_bytes, 4 * coded_info(&s, 0).extent.payload_bytes);
    ck_assert_int_eq(coded_get_all(&s, 9, CODED_VALUES), TIERCE_E_MISS);
}
END_TEST

/* Every range of pages, also those that cut layers, the header or the padding. */
START_TEST(ranges_come_back)
{
    uint64_t bytes = coded_bytes(&s);
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    for (uint64_t from = 0; from <= bytes; from += 4096) {
        for (uint64_t length = 0; from + length <= bytes; length += 4096)
            ck_assert_int_eq(coded_get(&s, 1, CODED_VALUES, from, length), 0);
    }
    struct tierce__key key = store_key(&s, 1);
    struct tierce__buf *buf;
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &buf, 2 * bytes), 0);
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .offset = bytes,
                                    .length = 4096};
    ck_assert_int_eq(store_run(&s, &req), TIERCE_E_MISS);
    req.offset = 100;
    ck_assert_int_eq(store_run(&s, &req), TIERCE_E_ARGUMENT);
    tierce__buf_release(buf);
}
END_TEST

/* Many requests at once, with memory for one of them. */
START_TEST(requests_wait_for_memory)
{
    enum { COUNT = 32 };
    uint64_t bytes = coded_bytes(&s);
    uint8_t *want = malloc(bytes);
    struct tierce__store_req reqs[COUNT];
    struct store_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct tierce__key keys[COUNT];
    coded_open(&s, 8 * MIB,
               &(struct tierce__coded_opts){.codec = lossless, .staging_bytes_max = 1});
    for (uint64_t n = 0; n < COUNT / 2; n++)
        ck_assert_int_eq(coded_put(&s, n, CODED_VALUES), 0);
    for (uint64_t i = 0; i < COUNT; i++) {
        keys[i] = store_key(&s, i / 2);
        reqs[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                             .deadline_ns = TIERCE__DEADLINE_NEVER,
                                             .done = store_done,
                                             .arg = &w,
                                             .keys = &keys[i],
                                             .key_count = 1,
                                             .offset = i % 2 * 16384,
                                             .length = 16384};
        ck_assert_int_eq(tierce__pool_alloc(s.pool, &reqs[i].buf, bytes), 0);
        s.tier->ops->submit(s.tier, &reqs[i]);
    }
    pthread_mutex_lock(&w.mutex);
    while (w.dones < COUNT)
        pthread_cond_wait(&w.cond, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    for (uint64_t i = 0; i < COUNT; i++) {
        coded_make(&s, want, i / 2, CODED_VALUES);
        ck_assert_int_eq(reqs[i].status, 0);
        ck_assert_mem_eq(reqs[i].buf->data + reqs[i].offset, want + reqs[i].offset, 16384);
        tierce__buf_release(reqs[i].buf);
    }
    free(want);
}
END_TEST

/* The journal states which objects are coded, so another process needs no configuration. */
START_TEST(both_kinds_survive_a_restart)
{
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){0});
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).encoded_chunks, 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).decoded_raw_bytes, coded_info(&s, 1).extent.payload_bytes);
    ck_assert_int_eq(store_delete(&s, 1), 0);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0); /* raw now */
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    store_close(&s);
    open_coded();
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), 0);
    ck_assert_uint_eq(looked_up_bytes(1), coded_bytes(&s));
}
END_TEST

START_TEST(chunks_without_a_known_element_stay_raw)
{
    coded_namespace(&s, "float32");
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    struct tierce__coded_stats stats = coded_stats(&s);
    ck_assert_uint_eq(stats.raw_chunks[TIERCE__CODED_RAW_ELEMENT], 1);
    ck_assert_uint_eq(stats.encoded_chunks, 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
}
END_TEST

static struct tierce__buf *no_memory(void *arg, uint64_t bytes)
{
    (void)arg;
    (void)bytes;
    return NULL;
}

START_TEST(without_memory_chunks_stay_raw_and_reads_fail)
{
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    store_close(&s);
    coded_open(
        &s, 8 * MIB,
        &(struct tierce__coded_opts){.codec = lossless, .alloc = no_memory, .no_pool = true});
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).raw_chunks[TIERCE__CODED_RAW_MEMORY], 1);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_FULL);
}
END_TEST

static struct tierce__store_req second;
static bool second_is_submitted;

/* The first request for memory is rejected, after another read has come and waits for the same
 * memory. */
static struct tierce__buf *alloc_after_the_second(void *arg, uint64_t bytes)
{
    if (second_is_submitted)
        return coded_alloc(arg, bytes);
    second_is_submitted = true;
    s.tier->ops->submit(s.tier, &second);
    return NULL;
}

START_TEST(a_read_without_memory_does_not_leave_others_waiting)
{
    uint64_t bytes = coded_bytes(&s);
    uint8_t *want = malloc(bytes);
    struct tierce__key key = store_key(&s, 2);
    struct store_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    coded_open(&s, 8 * MIB,
               &(struct tierce__coded_opts){
                   .alloc = alloc_after_the_second, .no_pool = true, .staging_bytes_max = 1});
    second = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                        .deadline_ns = tierce__deadline_in_ms(30000),
                                        .done = store_done,
                                        .arg = &w,
                                        .keys = &key,
                                        .key_count = 1,
                                        .length = bytes};
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &second.buf, bytes), 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_FULL);
    pthread_mutex_lock(&w.mutex);
    while (w.dones == 0)
        pthread_cond_wait(&w.cond, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    ck_assert_int_eq(second.status, 0);
    coded_make(&s, want, 2, CODED_VALUES);
    uint64_t header = coded_info(&s, 2).extent.header_bytes;
    ck_assert_mem_eq(second.buf->data + header, want + header, bytes - header);
    tierce__buf_release(second.buf);
    free(want);
}
END_TEST

static unsigned threads_to_fail;

int __real_pthread_create(pthread_t *out, const pthread_attr_t *with, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *with, void *(*run)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *with, void *(*run)(void *),
                          void *arg)
{
    if (threads_to_fail == 0)
        return __real_pthread_create(out, with, run, arg);
    threads_to_fail--;
    return EAGAIN;
}

START_TEST(threads_that_do_not_start_are_started_by_the_next_request)
{
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    for (unsigned fail = 1; fail <= 2; fail++) {
        store_close(&s);
        open_coded();
        threads_to_fail = fail;
        ck_assert_int_eq(coded_put(&s, 1 + fail, CODED_VALUES), 0); /* raw */
        ck_assert_uint_eq(coded_stats(&s).encoded_chunks, 0);
        if (fail == 2)
            ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_FULL);
        ck_assert_uint_eq(threads_to_fail, 0);
        ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
        ck_assert_int_eq(coded_get_all(&s, 1 + fail, CODED_VALUES), 0);
        ck_assert_int_eq(coded_put(&s, 10 + fail, CODED_VALUES), 0);
        ck_assert_uint_eq(coded_stats(&s).encoded_chunks, 1);
    }
}
END_TEST

/* A bit of the stored object is flipped: an error, or the right bytes if a gap has it. */
START_TEST(flipped_bits_give_no_other_bytes)
{
    char path[200];
    uint64_t bytes = coded_bytes(&s), failures = 0, rounds = 0;
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    uint64_t length = coded_stats(&s).encoded_bytes;
    store_close(&s);
    snprintf(path, sizeof(path), "%s/data", s.folder);
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    for (uint64_t at = 0; at < length; at += at < 512 ? 7 : 211, rounds++) {
        uint8_t byte;
        ck_assert_int_eq(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= (uint8_t)(1u << at % 8);
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
        struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
        opts.buffered = true;
        if (rounds % 16 == 0) {
            store_close(&s);
            ck_assert_int_eq(store_open(&s, &opts), 0);
            coded_wrap(&s, &(struct tierce__coded_opts){0});
        }
        int rc = coded_get(&s, 1, CODED_VALUES, 0, bytes);
        ck_assert(rc == 0 || rc == TIERCE_E_CHECKSUM || rc == TIERCE_E_FORMAT ||
                  rc == TIERCE_E_VERSION);
        failures += rc != 0;
        byte ^= (uint8_t)(1u << at % 8);
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
    }
    close(fd);
    ck_assert_uint_gt(failures, rounds / 2);
}
END_TEST

/* Whatever fails for lack of memory: never a wrong byte, and the next request succeeds. */
START_TEST(each_allocation_fails_once)
{
    uint64_t made = 1;
    open_coded();
    ck_assert_int_eq(coded_put(&s, 0, CODED_VALUES), 0);
    for (uint64_t nth = 1; nth <= made; nth++) {
        store_close(&s);
        open_coded();
        tierce__alloc_fail_nth(nth);
        int put = coded_put(&s, nth, CODED_VALUES), got = coded_get_all(&s, 0, CODED_VALUES);
        uint64_t count = tierce__alloc_fail_nth(0);
        made = count > made ? count : made;
        ck_assert(put == 0 || put == TIERCE_E_FULL);
        /* Not an errno, which would count against the device. */
        ck_assert(got == 0 || got == TIERCE_E_FULL);
        ck_assert(put != 0 || coded_get_all(&s, nth, CODED_VALUES) == 0);
        ck_assert_int_eq(coded_get_all(&s, 0, CODED_VALUES), 0);
    }
    ck_assert_uint_gt(made, 4);
}
END_TEST

static _Atomic bool holds_encoder, encoder_is_held;

static struct tierce__buf *alloc_that_holds(void *arg, uint64_t bytes)
{
    atomic_store(&encoder_is_held, true);
    WAIT_FOR(!atomic_load(&holds_encoder));
    return coded_alloc(arg, bytes);
}

/* A full queue is no failure to encrypt. */
START_TEST(a_dropped_chunk_is_not_refused)
{
    struct tierce__coded_keys *keys;
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    const struct tierce__coded_keys_opts opts = {
        .size = sizeof(opts), .file = "", .command = "printf '1 %064d\\n' 1"};
    struct store_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    coded_open(&s, 8 * MIB,
               &(struct tierce__coded_opts){.keys = keys,
                                            .encrypts = true,
                                            .alloc = alloc_that_holds,
                                            .no_pool = true,
                                            .queue_bytes_max = coded_bytes(&s)});
    atomic_store(&holds_encoder, true);
    struct tierce__key key = store_key(&s, 1);
    struct tierce__store_req put = {.op = TIERCE__STORE_PUT,
                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                    .done = store_done,
                                    .arg = &w,
                                    .keys = &key,
                                    .key_count = 1,
                                    .object_bytes = coded_bytes(&s),
                                    .block_count = CODED_BLOCKS};
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &put.buf, coded_bytes(&s)), 0);
    coded_make(&s, put.buf->data, 1, CODED_VALUES);
    s.tier->ops->submit(s.tier, &put);
    WAIT_FOR(atomic_load(&encoder_is_held));
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), TIERCE_E_FULL);
    ck_assert_int_eq(coded_put(&s, 3, CODED_VALUES), TIERCE_E_FULL);
    ck_assert_uint_ge(store_stats(&s).dropped_puts, 1);
    ck_assert_uint_eq(coded_stats(&s).refused_chunks, 0);
    atomic_store(&holds_encoder, false);
    pthread_mutex_lock(&w.mutex);
    while (w.dones < 1)
        pthread_cond_wait(&w.cond, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    ck_assert_int_eq(put.status, 0);
    tierce__buf_release(put.buf);
    store_close(&s);
    tierce__coded_keys_close(keys);
}
END_TEST

/* Deletions and clears end puts that are not with the disk yet: the one that is being encoded, and
 * those behind it. */
START_TEST(puts_are_cancelled)
{
    enum { COUNT = 24 };
    struct tierce__store_req puts[COUNT];
    struct tierce__key keys[COUNT];
    struct store_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    coded_open(&s, 8 * MIB,
               &(struct tierce__coded_opts){.codec = lossless,
                                            .alloc = alloc_that_holds,
                                            .no_pool = true,
                                            .queue_bytes_max = COUNT * coded_bytes(&s)});
    atomic_store(&holds_encoder, true);
    for (uint64_t n = 0; n < COUNT; n++) {
        keys[n] = store_key(&s, n);
        puts[n] = (struct tierce__store_req){.op = TIERCE__STORE_PUT,
                                             .deadline_ns = TIERCE__DEADLINE_NEVER,
                                             .done = store_done,
                                             .arg = &w,
                                             .keys = &keys[n],
                                             .key_count = 1,
                                             .object_bytes = coded_bytes(&s),
                                             .block_count = CODED_BLOCKS};
        ck_assert_int_eq(tierce__pool_alloc(s.pool, &puts[n].buf, coded_bytes(&s)), 0);
        coded_make(&s, puts[n].buf->data, n, CODED_VALUES);
    }
    for (uint64_t n = 0; n < COUNT; n++)
        s.tier->ops->submit(s.tier, &puts[n]);
    WAIT_FOR(atomic_load(&encoder_is_held));
    /* The second half of the queue is not encoded, and no more chunks have room. */
    ck_assert_uint_eq(coded_stats(&s).raw_chunks[TIERCE__CODED_RAW_BEHIND], COUNT / 2 - 1);
    ck_assert_int_eq(coded_put(&s, COUNT, CODED_VALUES), TIERCE_E_FULL);
    ck_assert_uint_eq(store_stats(&s).dropped_puts, 1);
    for (uint64_t n = 0; n < COUNT / 2; n++)
        ck_assert_int_eq(store_delete(&s, n), TIERCE_E_MISS);
    pthread_mutex_lock(&w.mutex);
    ck_assert_int_eq(w.dones, COUNT / 2 - 1); /* the first is being encoded */
    pthread_mutex_unlock(&w.mutex);
    ck_assert_int_eq(store_clear(&s), 0);
    atomic_store(&holds_encoder, false);
    pthread_mutex_lock(&w.mutex);
    while (w.dones < COUNT)
        pthread_cond_wait(&w.cond, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    for (uint64_t n = 0; n < COUNT; n++) {
        ck_assert_int_eq(puts[n].status, TIERCE_E_CANCELLED);
        ck_assert(!store_has(&s, n));
        tierce__buf_release(puts[n].buf);
    }
    uint64_t encoded = coded_stats(&s).encoded_chunks;
    ck_assert_int_eq(coded_put(&s, 0, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).encoded_chunks, encoded + 1); /* the queue has room again */
    ck_assert_int_eq(coded_get_all(&s, 0, CODED_VALUES), 0);
}
END_TEST

/* Close writes the chunks that wait to be encoded, if it has the time. */
START_TEST(close_writes_the_queue)
{
    enum { COUNT = 8 };
    struct tierce__store_req puts[COUNT];
    struct tierce__key keys[COUNT];
    struct store_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    open_coded();
    for (uint64_t n = 0; n < COUNT; n++) {
        keys[n] = store_key(&s, n);
        puts[n] = (struct tierce__store_req){.op = TIERCE__STORE_PUT,
                                             .deadline_ns = TIERCE__DEADLINE_NEVER,
                                             .done = store_done,
                                             .arg = &w,
                                             .keys = &keys[n],
                                             .key_count = 1,
                                             .parent = n > 0 ? &keys[n - 1] : NULL,
                                             .needs_parent = true,
                                             .object_bytes = coded_bytes(&s),
                                             .block_count = CODED_BLOCKS};
        ck_assert_int_eq(tierce__pool_alloc(s.pool, &puts[n].buf, coded_bytes(&s)), 0);
        coded_make(&s, puts[n].buf->data, n, n % 2 == 0 ? CODED_VALUES : CODED_NOISE);
        s.tier->ops->submit(s.tier, &puts[n]);
        tierce__buf_release(puts[n].buf);
    }
    if (_i == 0) {
        ck_assert(s.tier->ops->close(s.tier, tierce__deadline_in_ms(60000)));
    } else {
        ck_assert(s.tier->ops->close(s.tier, 0));
    }
    s.tier = NULL;
    ck_assert_int_eq(w.dones, COUNT);
    open_coded();
    for (uint64_t n = 0; n < COUNT; n++) {
        ck_assert(_i == 0 ? puts[n].status == 0
                          : puts[n].status == 0 || puts[n].status == TIERCE_E_CLOSED);
        int rc = coded_get_all(&s, n, n % 2 == 0 ? CODED_VALUES : CODED_NOISE);
        ck_assert(rc == 0 || (_i == 1 && rc == TIERCE_E_MISS));
    }
}
END_TEST

/* Puts and flushes until it is killed; *flushed: how many chunks a flush has covered. */
static void be_killed(_Atomic uint64_t *flushed)
{
    alarm(60);
    open_coded();
    for (uint64_t n = 0;; n++) {
        if (coded_put(&s, n, (enum coded_kind)(n % CODED_KINDS)) != 0)
            _exit(1);
        if (n % 3 == 2 && store_flush(&s) == 0)
            atomic_store(flushed, n + 1);
    }
}

/* Killed at any moment: every chunk that a flush has covered is there, and right. */
START_TEST(a_kill_loses_nothing_that_was_flushed)
{
    _Atomic uint64_t *flushed =
        mmap(NULL, sizeof(*flushed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(flushed, MAP_FAILED);
    for (unsigned round = 1; round <= 4; round++) {
        atomic_store(flushed, 0);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_killed(flushed);
        WAIT_FOR(atomic_load(flushed) >= 5 * round);
        int status;
        kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        open_coded();
        for (uint64_t n = 0; n < atomic_load(flushed); n++)
            ck_assert_int_eq(coded_get_all(&s, n, (enum coded_kind)(n % CODED_KINDS)), 0);
        ck_assert_int_eq(store_clear(&s), 0);
        store_close(&s);
    }
    munmap(flushed, sizeof(*flushed));
}
END_TEST

/* A random mix of operations, kinds of chunks and codecs equals a model. */
START_TEST(a_mix_equals_a_model)
{
    enum { CHUNKS = 12 };
    int have[CHUNKS]; /* kind, or -1 */
    struct test_random rng = test_random_start("a_mix_equals_a_model");
    memset(have, -1, sizeof(have));
    open_coded();
    for (unsigned i = 0; i < 400; i++) {
        uint32_t what = test_random_below(&rng, 100), n = test_random_below(&rng, CHUNKS);
        enum coded_kind kind = (enum coded_kind)test_random_below(&rng, CODED_KINDS);
        uint64_t pages = coded_bytes(&s) / 4096, from = test_random_below(&rng, (uint32_t)pages);
        uint64_t count = test_random_below(&rng, (uint32_t)(pages - from)) + 1;
        if (what < 35) {
            ck_assert_int_eq(coded_put(&s, n, kind), 0);
            have[n] = have[n] < 0 ? (int)kind : have[n];
        } else if (what < 50) {
            int rc = store_delete(&s, n);
            ck_assert_int_eq(rc, have[n] < 0 ? TIERCE_E_MISS : 0);
            have[n] = -1;
        } else if (what < 95) {
            int rc = coded_get(&s, n, (enum coded_kind)(have[n] < 0 ? 0 : have[n]), from * 4096,
                               count * 4096);
            ck_assert_int_eq(rc, have[n] < 0 ? TIERCE_E_MISS : 0);
            ck_assert(store_has(&s, n) == (have[n] >= 0));
        } else if (what < 96) {
            ck_assert_int_eq(store_clear(&s), 0);
            memset(have, -1, sizeof(have));
        } else {
            store_close(&s);
            coded_open(&s, 8 * MIB,
                       &(struct tierce__coded_opts){
                           .codec = test_random_below(&rng, 2) == 0 ? NULL : lossless,
                           .staging_bytes_max = test_random_below(&rng, 2)});
        }
    }
    uint64_t count = 0;
    for (unsigned n = 0; n < CHUNKS; n++)
        count += have[n] >= 0;
    ck_assert_uint_eq(store_stats(&s).chunks, count);
}
END_TEST

/* A disk of the same size holds more chunks of values, and not more of noise. */
START_TEST(a_disk_holds_more)
{
    uint64_t held[CODED_KINDS];
    for (unsigned kind = CODED_VALUES; kind <= CODED_NOISE; kind++) {
        coded_open(&s, 3 * MIB, &(struct tierce__coded_opts){.codec = lossless});
        for (uint64_t n = 0; n < 100; n++)
            ck_assert_int_eq(coded_put(&s, n, (enum coded_kind)kind), 0);
        ck_assert_int_eq(store_flush(&s), 0);
        held[kind] = store_stats(&s).chunks;
        ck_assert_uint_le(store_stats(&s).used_bytes, 3 * MIB);
        ck_assert_int_eq(coded_get_all(&s, 99, (enum coded_kind)kind), 0);
        ck_assert_int_eq(store_clear(&s), 0);
        store_close(&s);
    }
    ck_assert_uint_gt(held[CODED_VALUES] * 10, held[CODED_NOISE] * 11);
}
END_TEST

CHECK_MAIN("coded_tier", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {a_dropped_chunk_is_not_refused, chunks_come_back, ranges_come_back,
                     requests_wait_for_memory, both_kinds_survive_a_restart,
                     chunks_without_a_known_element_stay_raw,
                     without_memory_chunks_stay_raw_and_reads_fail, puts_are_cancelled,
                     a_read_without_memory_does_not_leave_others_waiting,
                     threads_that_do_not_start_are_started_by_the_next_request,
                     a_mix_equals_a_model, a_disk_holds_more, each_allocation_fails_once,
                     a_kill_loses_nothing_that_was_flushed, flipped_bits_give_no_other_bytes},
           .loops = {{close_writes_the_queue, 0, 2}})
