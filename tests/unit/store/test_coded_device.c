/* SPDX-License-Identifier: Apache-2.0 */
/* The coded tier on a device that fails, that is late, or that is fast: which failures count for
 * its health, and which speed is logged. */
#include "base/log/log.h"
#include "coded_store.h"
#include "engine/health/health.h"
#include "store/coded/coded_keys.h"
#include "wait_for.h"

#define MIB (1ULL << 20)

static struct store s;
static const struct tierce__codec *lossless;
static struct tierce__health health;
static struct tierce__coded_keys *keys;

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
    tierce__coded_keys_close(keys);
    tierce__health_fini(&health);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

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

/* While holds_put, the thread that puts is held. */
static _Atomic bool holds_put, put_is_held;

static void device_submit(struct tierce__tier *tier, struct tierce__store_req *req)
{
    (void)tier;
    if (req->op == TIERCE__STORE_PUT) {
        atomic_store(&put_is_held, true);
        WAIT_FOR(!atomic_load(&holds_put));
    }
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

static struct tierce__store_req gets[GETS];
static struct tierce__key get_keys[GETS];
static struct store_wait get_wait = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

/* A tier with chunks 1 and 2 on a device that can fail, and what an engine knows of it. */
static void open_on_device(const struct tierce__coded_opts *with)
{
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.codec = lossless});
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

/* Submits a read of a range of chunk n, as an engine does. */
static void begin_range(unsigned i, uint64_t n, uint64_t from, uint64_t length,
                        uint64_t deadline_ns, tierce__store_done_fn *done)
{
    get_keys[i] = store_key(&s, n);
    gets[i] = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                         .deadline_ns = deadline_ns,
                                         .done = done,
                                         .arg = &get_wait,
                                         .keys = &get_keys[i],
                                         .key_count = 1,
                                         .offset = from,
                                         .length = length};
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &gets[i].buf, coded_bytes(&s)), 0);
    ck_assert(tierce__health_pass(&health, &gets[i]));
    s.tier->ops->submit(s.tier, &gets[i]);
}

/* Submits a read of a page. */
static void begin_get(unsigned i, uint64_t n, uint64_t from, uint64_t deadline_ns,
                      tierce__store_done_fn *done)
{
    begin_range(i, n, from, 4096, deadline_ns, done);
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
}
END_TEST

/* Memory for the first and the last layer, or for all of them alone. A get of all waits for that of
 * the first; a get of the last, for which there is room, does not overtake it. Nor does it wait
 * longer than for the deadline of the get before it (_i: 1). */
START_TEST(gets_that_wait_for_memory_are_served_in_order)
{
    open_on_device(&(struct tierce__coded_opts){.staging_bytes_max = 48 << 10});
    uint64_t bytes = coded_bytes(&s), first = coded_info(&s, 1).extent.header_bytes;
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0); /* the heads are known */
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), 0);
    device_holds();
    begin_get(0, 1, first, TIERCE__DEADLINE_NEVER, store_done);
    begin_get(1, 2, bytes - 8192, TIERCE__DEADLINE_NEVER, store_done);
    ck_assert_uint_eq(device_held(), 2); /* there is room for both */
    device_answers(1);
    await_gets(2);
    device_holds();
    begin_get(2, 1, first, TIERCE__DEADLINE_NEVER, store_done);
    begin_range(3, 2, 0, bytes, _i == 0 ? TIERCE__DEADLINE_NEVER : tierce__deadline_in_ms(20),
                store_done);
    begin_get(4, 2, bytes - 8192, TIERCE__DEADLINE_NEVER, store_done);
    if (_i == 0)
        ck_assert_uint_eq(device_held(), 1);
    else
        WAIT_FOR(device_held() == 2);
    device_answers(1);
    await_gets(5);
    for (unsigned i = 0; i < 5; i++) {
        ck_assert_int_eq(gets[i].status, i == 3 && _i == 1 ? TIERCE_E_DEADLINE : 0);
        tierce__buf_release(gets[i].buf);
    }
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
}
END_TEST

static void begin_put(unsigned i, uint64_t n, uint64_t deadline_ns)
{
    get_keys[i] = store_key(&s, n);
    gets[i] = (struct tierce__store_req){.op = TIERCE__STORE_PUT,
                                         .deadline_ns = deadline_ns,
                                         .done = store_done,
                                         .arg = &get_wait,
                                         .keys = &get_keys[i],
                                         .key_count = 1,
                                         .object_bytes = coded_bytes(&s),
                                         .block_count = CODED_BLOCKS};
    ck_assert_int_eq(tierce__pool_alloc(s.pool, &gets[i].buf, coded_bytes(&s)), 0);
    coded_make(&s, gets[i].buf->data, n, CODED_VALUES);
    s.tier->ops->submit(s.tier, &gets[i]);
}

/* A put is being passed on: its deletion waits for it, and the deadline of the next put passes. */
START_TEST(requests_wait_for_a_put_that_is_passed_on)
{
    open_on_device(&(struct tierce__coded_opts){.codec = lossless});
    atomic_store(&holds_put, true);
    begin_put(0, 3, TIERCE__DEADLINE_NEVER);
    WAIT_FOR(atomic_load(&put_is_held));
    begin_put(1, 4, tierce__now_ns() + 1);
    gets[2] = (struct tierce__store_req){.op = TIERCE__STORE_DELETE,
                                         .deadline_ns = TIERCE__DEADLINE_NEVER,
                                         .done = store_done,
                                         .arg = &get_wait,
                                         .keys = &get_keys[0],
                                         .key_count = 1};
    s.tier->ops->submit(s.tier, &gets[2]);
    pthread_mutex_lock(&get_wait.mutex);
    ck_assert_int_eq(get_wait.dones, 0);
    pthread_mutex_unlock(&get_wait.mutex);
    atomic_store(&holds_put, false);
    await_gets(3);
    ck_assert(gets[0].status == 0 || gets[0].status == TIERCE_E_CANCELLED);
    ck_assert_int_eq(gets[1].status, TIERCE_E_DEADLINE);
    ck_assert(gets[1].repeats); /* not the device's failure */
    ck_assert(!store_has(&s, 3));
    ck_assert(!store_has(&s, 4));
    tierce__buf_release(gets[0].buf);
    tierce__buf_release(gets[1].buf);
}
END_TEST

static _Atomic unsigned slow_is_logged;

static void read_stats_in_log(void *arg, enum tierce_log_level level, const char *event,
                              const char *fields)
{
    (void)arg, (void)level, (void)fields;
    if (strcmp(event, "codec_not_used") == 0 && coded_stats(&s).decode_bytes_per_s > 0)
        atomic_fetch_add(&slow_is_logged, 1);
}

/* Loads wait for the decoder of a device that reads a terabyte at once, with encryption (_i: 1) and
 * without. A receiver of the log may read statistics. */
START_TEST(a_codec_that_makes_loads_slower_is_not_used)
{
    struct tierce__key key = store_key(&s, 3);
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    const struct tierce__coded_keys_opts print = {
        .size = sizeof(print),
        .command = "echo 1 0101010101010101010101010101010101010101010101010101010101010101"};
    if (_i == 1)
        ck_assert_int_eq(tierce__coded_keys_open(&keys, &print, why), 0);
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.codec = lossless});
    ck_assert_int_eq(coded_put(&s, 3, CODED_NOISE), 0);
    store_close(&s);
    open_on_device(&(struct tierce__coded_opts){
        .codec = lossless, .measured_bytes = 1, .keys = keys, .encrypts = _i == 1});
    tierce_set_log_fn(read_stats_in_log, NULL, TIERCE_LOG_WARN);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    device_answers(0);
    struct tierce__store_req req = {
        .op = TIERCE__STORE_GET, .keys = &key, .key_count = 1, .length = MIB * MIB};
    ck_assert_int_eq(store_run(&s, &req), 0);
    device_answers(1);
    for (unsigned n = 4; n < 6; n++)
        ck_assert_int_eq(coded_put(&s, n, CODED_VALUES), 0);
    ck_assert_uint_eq(coded_stats(&s).raw_chunks[TIERCE__CODED_RAW_SLOW], 2);
    ck_assert_uint_eq(atomic_load(&slow_is_logged), 1);
    ck_assert_uint_eq(coded_stats(&s).encrypted_chunks, _i == 1 ? 2 : 0);
    ck_assert_int_eq(coded_get_all(&s, 4, CODED_VALUES), 0);
}
END_TEST

CHECK_MAIN("coded_device", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {a_head_that_cannot_be_read_counts_once, a_head_that_is_late_counts_once,
                     no_read_is_answered_without_the_device,
                     a_deadline_that_passes_in_a_queue_does_not_count,
                     a_deadline_that_passes_before_the_decoder_does_not_count,
                     requests_wait_for_a_put_that_is_passed_on},
           .loops = {{gets_that_wait_for_memory_are_served_in_order, 0, 2},
                     {a_codec_that_makes_loads_slower_is_not_used, 0, 2}})
