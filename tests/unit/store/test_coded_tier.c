/* SPDX-License-Identifier: Apache-2.0 */
/* A disk whose chunks are coded: callers see raw chunks, and no damage gives other bytes. */
#include "coded_store.h"
#include "engine/health/health.h"
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

/* ---- whose failure it is --------------------------------------------------------------------- */

enum { GETS = 6 };

/* A device between the coded tier and the disk, whose reads can be kept, and fail. */
static struct {
    struct tierce__tier base;
    struct tierce__tier_ops ops;
    struct tierce__tier *disk;
    pthread_mutex_t mutex;
    bool holds;
    int status; /* 1: the disk's */
    struct tierce__store_req *held[16];
    unsigned held_count;
} device = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void device_submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    (void)tier;
    pthread_mutex_lock(&device.mutex);
    int status = req->op == TIERCE__STORE_GET ? device.status : 1;
    bool holds = req->op == TIERCE__STORE_GET && device.holds;
    if (holds)
        device.held[device.held_count++] = req;
    pthread_mutex_unlock(&device.mutex);
    if (holds)
        return;
    if (status == 1) {
        device.disk->ops->submit(device.disk, req);
        return;
    }
    req->status = status;
    req->done(req);
}

static bool device_close(struct tierce__tier *tier, uint64_t deadline_ns)
{
    (void)tier;
    return device.disk->ops->close(device.disk, deadline_ns);
}

static void device_holds(void)
{
    pthread_mutex_lock(&device.mutex);
    device.holds = true;
    pthread_mutex_unlock(&device.mutex);
}

static unsigned device_held(void)
{
    pthread_mutex_lock(&device.mutex);
    unsigned count = device.held_count;
    pthread_mutex_unlock(&device.mutex);
    return count;
}

/* From now on reads have this status, also those that were kept. 1: the disk reads. */
static void device_answers(int status)
{
    pthread_mutex_lock(&device.mutex);
    device.holds = false;
    device.status = status;
    unsigned count = device.held_count;
    device.held_count = 0;
    pthread_mutex_unlock(&device.mutex);
    for (unsigned i = 0; i < count; i++)
        device_submit(&device.base, device.held[i]);
}

static struct tierce__health health;
static struct tierce__store_req gets[GETS];
static struct tierce__key get_keys[GETS];
static struct store_wait get_wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

/* A tier with chunks 1 and 2 on a device that can fail, and what an engine knows of it. */
static void open_on_device(const struct tierce__coded_opts *with)
{
    open_coded();
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    struct tierce__disk_opts opts = store_opts(&s, 8 * MIB);
    ck_assert_int_eq(store_open(&s, &opts), 0);
    device.disk = s.tier;
    device.status = 1;
    device.ops = (struct tierce__tier_ops){.name = s.tier->ops->name,
                                           .caps = s.tier->ops->caps,
                                           .read_bytes = s.tier->ops->read_bytes,
                                           .submit = device_submit,
                                           .close = device_close};
    device.base.ops = &device.ops;
    s.tier = &device.base;
    coded_wrap(&s, with);
    tierce__health_init(&health,
                        &(struct tierce__health_limits){.errors_max = 2, .retry_ms = 60000});
}

/* Submits a read of a page of chunk n, as an engine does. */
static void begin_get(unsigned i, uint64_t n, uint64_t from, uint64_t deadline_ns,
                      tierce__store_done_fn *done)
{
    get_keys[i] = store_key(&s, n);
    gets[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                         .deadline_ns = deadline_ns,
                                         .done = done,
                                         .arg = &get_wait,
                                         .keys = &get_keys[i],
                                         .key_count = 1,
                                         .offset = from,
                                         .length = 4096};
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &gets[i].buf, coded_bytes(&s)), 0);
    ck_assert(tierce__health_pass(&health, &gets[i]));
    s.tier->ops->submit(s.tier, &gets[i]);
}

static void await_gets(int count)
{
    pthread_mutex_lock(&get_wait.mutex);
    while (get_wait.dones < count)
        pthread_cond_wait(&get_wait.cond, &get_wait.mutex);
    pthread_mutex_unlock(&get_wait.mutex);
}

/* Notes the answers, which are all in. Returns how many count against the device. */
static unsigned note_gets(unsigned count, int status)
{
    unsigned counted = 0;
    for (unsigned i = 0; i < count; i++) {
        ck_assert_int_eq(gets[i].status, status);
        counted += !gets[i].repeats;
        (void)tierce__health_note(&health, &gets[i]);
        tierce__buf_release(gets[i].buf);
    }
    return counted;
}

START_TEST(a_head_that_cannot_be_read_counts_once)
{
    open_on_device(&(struct tierce__coded_opts){0});
    device_holds();
    for (unsigned i = 0; i < GETS; i++)
        begin_get(i, 1, i * 4096, TIERCE__DEADLINE_NEVER, store_done);
    ck_assert_uint_eq(device_held(), 1); /* the others share it */
    device_answers(-EIO);
    await_gets(GETS);
    ck_assert_uint_eq(note_gets(GETS, -EIO), 1);
    ck_assert(tierce__health_serves(&health));
    device_answers(1);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    tierce__health_fini(&health);
}
END_TEST

/* The device does not answer: every read ends at its deadline, and one of them counts. */
START_TEST(a_head_that_is_late_counts_once)
{
    open_on_device(&(struct tierce__coded_opts){0});
    device_holds();
    uint64_t deadline_ns = tierce__deadline_in_ms(200);
    begin_get(0, 1, 0, TIERCE__DEADLINE_NEVER, store_done);
    ck_assert_uint_eq(device_held(), 1);
    for (unsigned i = 1; i < GETS; i++)
        begin_get(i, 1, i * 4096, deadline_ns, store_done);
    await_gets(GETS - 1);
    device_answers(TIERCE_E_DEADLINE);
    await_gets(GETS);
    ck_assert(!gets[0].repeats);
    ck_assert_uint_eq(note_gets(GETS, TIERCE_E_DEADLINE), 1);
    ck_assert(tierce__health_serves(&health));
    tierce__health_fini(&health);
}
END_TEST

/* The head is in memory, and the probe of a device that fails asks for no more than the head. */
START_TEST(no_read_is_answered_without_the_device)
{
    open_on_device(&(struct tierce__coded_opts){0});
    ck_assert_uint_ge(coded_info(&s, 1).extent.header_bytes, 4096);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    device_answers(-EIO);
    ck_assert_int_eq(coded_get(&s, 1, CODED_VALUES, 0, 4096), -EIO);
    ck_assert_int_eq(coded_get(&s, 1, CODED_VALUES, coded_bytes(&s) - 4096, 4096), -EIO);
    device_answers(1);
    ck_assert_int_eq(coded_get(&s, 1, CODED_VALUES, 0, 4096), 0);
    tierce__health_fini(&health);
}
END_TEST

/* The deadline of a read passes while it waits for the head that another reads, or for memory. */
START_TEST(a_deadline_that_passes_in_a_queue_does_not_count)
{
    open_on_device(&(struct tierce__coded_opts){.staging_bytes_max = 1});
    device_holds();
    begin_get(GETS - 1, 1, 0, TIERCE__DEADLINE_NEVER, store_done);
    ck_assert_uint_eq(device_held(), 1);
    for (unsigned i = 0; i < GETS - 1; i++)
        begin_get(i, 1 + i % 2, i / 2 * 4096, tierce__deadline_in_ms(20), store_done);
    await_gets(GETS - 1);
    ck_assert_uint_eq(note_gets(GETS - 1, TIERCE_E_DEADLINE), 0);
    ck_assert(tierce__health_serves(&health));
    device_answers(1);
    await_gets(GETS);
    ck_assert_int_eq(gets[GETS - 1].status, 0);
    tierce__buf_release(gets[GETS - 1].buf);
    tierce__health_fini(&health);
}
END_TEST

static _Atomic bool holds_decoder, decoder_is_held;

static void done_that_holds(struct tierce__store_req *req)
{
    atomic_store(&decoder_is_held, true);
    WAIT_FOR(!atomic_load(&holds_decoder));
    store_done(req);
}

/* The device has answered in time, and the thread that decodes is behind. */
START_TEST(a_deadline_that_passes_before_the_decoder_does_not_count)
{
    open_on_device(&(struct tierce__coded_opts){.decode_threads = 1});
    uint64_t payload = coded_info(&s, 1).extent.header_bytes;
    atomic_store(&holds_decoder, true);
    begin_get(GETS - 1, 1, payload, TIERCE__DEADLINE_NEVER, done_that_holds);
    WAIT_FOR(atomic_load(&decoder_is_held));
    device_answers(0); /* answers at once, with bytes that nobody decodes */
    for (unsigned i = 0; i < GETS - 1; i++) {
        begin_get(i, 1, payload, TIERCE__DEADLINE_NEVER, store_done);
        gets[i].deadline_ns = tierce__now_ns(); /* as if time had passed */
    }
    atomic_store(&holds_decoder, false);
    await_gets(GETS);
    ck_assert_uint_eq(note_gets(GETS - 1, TIERCE_E_DEADLINE), 0);
    ck_assert(tierce__health_serves(&health));
    ck_assert_int_eq(gets[GETS - 1].status, 0);
    tierce__buf_release(gets[GETS - 1].buf);
    tierce__health_fini(&health);
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
    for (uint64_t at = _i; at < length; at += at < 512 ? 7 : 211, rounds++) {
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

/* Deletions and clears end puts that are not with the disk yet. */
START_TEST(puts_are_cancelled)
{
    enum { COUNT = 24 };
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
                                             .object_bytes = coded_bytes(&s),
                                             .block_count = CODED_BLOCKS};
        ck_assert_int_eq(tierce__pool_alloc(s.pool, &puts[n].buf, coded_bytes(&s)), 0);
        coded_make(&s, puts[n].buf->data, n, CODED_VALUES);
    }
    for (uint64_t n = 0; n < COUNT; n++)
        s.tier->ops->submit(s.tier, &puts[n]);
    for (uint64_t n = 0; n < COUNT / 2; n++) {
        int rc = store_delete(&s, n);
        ck_assert(rc == 0 || rc == TIERCE_E_MISS);
        ck_assert(!store_has(&s, n));
    }
    ck_assert_int_eq(store_clear(&s), 0);
    pthread_mutex_lock(&w.mutex);
    while (w.dones < COUNT)
        pthread_cond_wait(&w.cond, &w.mutex);
    pthread_mutex_unlock(&w.mutex);
    for (uint64_t n = 0; n < COUNT; n++) {
        ck_assert(puts[n].status == 0 || puts[n].status == TIERCE_E_CANCELLED);
        ck_assert(!store_has(&s, n));
        tierce__buf_release(puts[n].buf);
    }
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
           .tests = {chunks_come_back, ranges_come_back, requests_wait_for_memory,
                     both_kinds_survive_a_restart, chunks_without_a_known_element_stay_raw,
                     without_memory_chunks_stay_raw_and_reads_fail, puts_are_cancelled,
                     a_read_without_memory_does_not_leave_others_waiting,
                     threads_that_do_not_start_are_started_by_the_next_request,
                     a_mix_equals_a_model, a_disk_holds_more, each_allocation_fails_once,
                     a_kill_loses_nothing_that_was_flushed, a_head_that_cannot_be_read_counts_once,
                     a_head_that_is_late_counts_once, no_read_is_answered_without_the_device,
                     a_deadline_that_passes_in_a_queue_does_not_count,
                     a_deadline_that_passes_before_the_decoder_does_not_count},
           .loops = {{flipped_bits_give_no_other_bytes, 0, 1}, {close_writes_the_queue, 0, 2}})
