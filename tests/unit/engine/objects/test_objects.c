/* SPDX-License-Identifier: Apache-2.0 */
/* Named values: found whole or not at all, replaced everywhere, expired, counted, told, cleared. */
#include "check_main.h"
#include "engine/objects/objects_private.h"
#include "object_fixture.h"
#include "core/paged/paged.h"
#include "tier_fault.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <tierce/log.h>
#include <tierce/operate.h>

#define KIB 1024u
#define MIB (1024u * KIB)

static struct fixture fx;
static struct tierce__objects *space;
static const char *const no_wait[] = {"disk.flush_interval", "1h", NULL};

static void open_space(bool disk, const char *const *sets)
{
    fx_open(&fx, disk, sets);
    ck_assert_int_eq(tierce__objects_open(&space, fx.engine, "test", ""), 0);
}

static void close_space(void)
{
    tierce__objects_close(space);
    fx_close(&fx);
}

static void end(void)
{
    close_space();
    fx_remove(&fx);
}

static void reopen(void)
{
    close_space();
    open_space(true, NULL);
}

/* ---- one value ---- */

static const uint64_t sizes[] = {
    0, 1, 63, 64, 4096, 100000, 256 * KIB, 256 * KIB + 1, 512 * KIB, 1000 * KIB + 7, 2 * MIB};

START_TEST(a_value_is_found_as_it_was_stored)
{
    uint64_t bytes;
    open_space(true, NULL);
    ck_assert_int_eq(ox_get(space, "a name", NULL), 0);
    ck_assert_int_eq(ox_put(space, "a name", 7, sizes[_i]), 0);
    ck_assert_int_eq(ox_get(space, "a name", &bytes), 7);
    ck_assert_uint_eq(bytes, sizes[_i]);
    ck_assert_int_eq(ox_get(space, "another", NULL), 0);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "a name", &bytes), 7); /* from the disk */
    ck_assert_uint_eq(bytes, sizes[_i]);
    ck_assert_int_eq(fx_stats(&fx).promotions, 1);
    ck_assert_int_eq(ox_get(space, "a name", &bytes), 7); /* from memory again */
    ck_assert_int_eq(fx_stats(&fx).promotions, 1);
    reopen();
    ck_assert_int_eq(ox_get(space, "a name", &bytes), 7);
    ck_assert_uint_eq(bytes, sizes[_i]);
    end();
}
END_TEST

START_TEST(names_are_any_bytes_up_to_a_limit)
{
    char name[TIERCE__OBJECT_NAME_MAX + 1];
    struct tierce__object *object;
    open_space(true, NULL);
    memset(name, 0, sizeof(name));
    for (size_t n = 1; n <= TIERCE__OBJECT_NAME_MAX; n = 2 * n - (n > 512)) {
        struct tierce__object_what what = {.name = name, .name_bytes = n, .value_bytes = n};
        ck_assert_int_eq(tierce__object_create(space, &object, &what), 0);
        ck_assert_uint_eq((uintptr_t)object->value % 16, 0);
        memset(object->value, (int)n, n);
        ck_assert_int_eq(tierce__object_publish(object), 0);
        if (n == TIERCE__OBJECT_NAME_MAX)
            break;
    }
    struct tierce__object_what wrong[] = {
        {.name = name, .name_bytes = 0},
        {.name = name, .name_bytes = sizeof(name)},
        {.name = name, .name_bytes = 1, .note = name, .note_bytes = TIERCE__OBJECT_NOTE_MAX + 1},
        {.name = name, .name_bytes = 1, .value_bytes = TIERCE__OBJECT_VALUE_MAX + 1},
        {.name = name, .name_bytes = 1, .value_bytes = 5 * MIB}, /* than memory */
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_int_eq(tierce__object_create(space, &object, &wrong[i]), TIERCE_E_LIMIT);
    for (int from_disk = 0; from_disk < 2; from_disk++) {
        struct tierce__object_find find = {.name = name, .name_bytes = 1};
        find.deadline_ns = tierce__deadline_in_ms(60000);
        if (from_disk) {
            ox_empty_memory(&fx);
            break;
        }
        ck_assert_int_eq(tierce__object_find(space, &find), 0);
        ck_assert_uint_eq(find.object->what.name_bytes, 1);
        ck_assert_uint_eq(find.object->value[0], 1);
        tierce__object_release(find.object);
    }
    end();
}
END_TEST

START_TEST(spaces_do_not_see_each_other)
{
    struct tierce__objects *other[3], *refused;
    open_space(false, NULL);
    ck_assert_int_eq(tierce__objects_open(&other[0], fx.engine, "test", "tenant"), 0);
    ck_assert_int_eq(tierce__objects_open(&other[1], fx.engine, "other", ""), 0);
    ck_assert_int_eq(tierce__objects_open(&other[2], fx.engine, "test", ""), 0); /* the same */
    ck_assert_int_eq(tierce__objects_open(&refused, fx.engine, "", ""), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__objects_open(&refused, fx.engine, "a\nb", ""), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__objects_open(&refused, fx.engine, "a", "\n"), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(ox_put(space, "name", 1, 1000), 0);
    ck_assert_int_eq(ox_put(other[0], "name", 2, 1000), 0);
    ck_assert_int_eq(ox_get(space, "name", NULL), 1);
    ck_assert_int_eq(ox_get(other[0], "name", NULL), 2);
    ck_assert_int_eq(ox_get(other[1], "name", NULL), 0);
    ck_assert_int_eq(ox_get(other[2], "name", NULL), 1);
    ck_assert_uint_eq(tierce__objects_count(other[1]), 0);
    ck_assert_int_eq(tierce__objects_clear(other[0]), 1);
    ck_assert_int_eq(ox_get(other[0], "name", NULL), 0);
    ck_assert_int_eq(ox_get(space, "name", NULL), 1);
    for (int i = 0; i < 3; i++)
        tierce__objects_close(other[i]);
    end();
}
END_TEST

START_TEST(of_what_was_not_published_nothing_stays)
{
    struct tierce__object *object;
    open_space(false, NULL);
    struct tierce__object_what what = {.name = "x", .name_bytes = 1, .value_bytes = MIB};
    ck_assert_int_eq(tierce__object_create(space, &object, &what), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    tierce__object_release(object);
    tierce__object_release(NULL);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    end();
}
END_TEST

START_TEST(a_handle_outlives_what_becomes_of_the_value)
{
    struct tierce__object *object, *second;
    bool was;
    open_space(false, NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, MIB), 0);
    ck_assert_int_eq(ox_find(space, "x", &object), 0);
    ck_assert_int_eq(ox_find(space, "x", &second), 0);
    ck_assert_int_eq(ox_put(space, "x", 2, MIB), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ck_assert_int_eq(tierce__object_remove(space, "x", 1, &was), 0);
    ck_assert(was);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    ck_assert(tierce__object_verified(object, MIB));
    ck_assert(ox_is(object->value, MIB, 1));
    tierce__object_release(object);
    ck_assert(tierce__object_verified(second, MIB));
    ck_assert(ox_is(second->value, MIB, 1));
    tierce__object_release(second);
    ck_assert_int_eq(fx_stats(&fx).memory_bytes_now, 0);
    end();
}
END_TEST

/* ---- room ---- */

START_TEST(values_leave_by_policy_and_what_is_held_does_not)
{
    struct tierce__object *held[3], *object;
    char name[16];
    open_space(false, NULL);
    for (uint64_t i = 1; i <= 40; i++) {
        snprintf(name, sizeof(name), "n%llu", (unsigned long long)i);
        ck_assert_int_eq(ox_put(space, name, i, MIB / 2), 0);
    }
    ck_assert_int_eq(ox_get(space, "n1", NULL), 0);
    ck_assert_int_eq(ox_get(space, "n40", NULL), 40);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "m%d", i);
        ck_assert_int_eq(ox_put(space, name, 100 + (uint64_t)i, MIB), 0);
        ck_assert_int_eq(ox_find(space, name, &held[i]), 0);
    }
    struct tierce__object_what what = {.name = "x", .name_bytes = 1, .value_bytes = 2 * MIB};
    ck_assert_int_eq(tierce__object_create(space, &object, &what), TIERCE_E_FULL);
    for (int i = 0; i < 3; i++)
        tierce__object_release(held[i]);
    ck_assert_int_eq(tierce__object_create(space, &object, &what), 0);
    tierce__object_release(object);
    end();
}
END_TEST

START_TEST(modes_are_obeyed)
{
    struct tierce__object *object;
    bool was;
    open_space(true, NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, 10000), 0);
    struct tierce__object_what what = {.name = "y", .name_bytes = 1, .value_bytes = 1};
    ck_assert_int_eq(tierce__object_create(space, &object, &what), 0);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_FREEZE), 0);
    ck_assert_int_eq(tierce__object_publish(object), TIERCE_E_CLOSED);
    ck_assert_int_eq(ox_put(space, "y", 1, 10000), TIERCE_E_CLOSED);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1); /* read, and not kept */
    ck_assert_int_eq(fx_stats(&fx).promotions, 0);
    ck_assert_int_eq(fx_stats(&fx).memory_chunks_now, 0);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_BYPASS), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    ck_assert_int_eq(tierce__object_remove(space, "x", 1, &was), 0); /* forgetting is safe */
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_NORMAL), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0);
    end();
}
END_TEST

/* ---- replacing ---- */

/* Where the old value is when the new one comes. */
enum where { IN_MEMORY, IN_BOTH, ON_DISK, DURABLE, IN_QUEUE };

START_TEST(a_new_value_takes_the_place_of_the_old_one_everywhere)
{
    open_space(_i != IN_MEMORY, _i == IN_BOTH ? no_wait : NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, 300000), 0);
    if (_i == ON_DISK)
        ox_empty_memory(&fx);
    if (_i == DURABLE)
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(ox_put(space, "x", 2, 300000), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ck_assert_uint_eq(tierce__objects_count(space), 1);
    if (_i != IN_MEMORY) {
        ox_empty_memory(&fx);
        ck_assert_int_eq(ox_get(space, "x", NULL), 2);
        reopen();
        ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    }
    end();
}
END_TEST

START_TEST(the_same_bytes_are_kept_as_they_are)
{
    open_space(true, NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, 600000), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    int64_t written = fx_stats(&fx).disk_written_bytes_today;
    ck_assert_int_eq(ox_put(space, "x", 1, 600000), 0);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_put(space, "x", 1, 600000), 0); /* on the disk alone */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(fx_stats(&fx).disk_written_bytes_today, written);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    ck_assert_int_eq(fx_stats(&fx).promotions, 0);
    /* Other bytes, another note, another end are another value. */
    ck_assert_int_eq(ox_put(space, "x", 2, 600000), 0);
    ck_assert_int_eq(ox_put_until(space, "x", 2, 600000, UINT64_MAX), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_gt(fx_stats(&fx).disk_written_bytes_today, written);
    end();
}
END_TEST

/* XXH3 multiplies the first 8 bytes, less known ones, by the next 8: where they are the known ones,
 * the next 8 count for nothing. */
static void fill_colliding(uint8_t value[32], uint8_t byte)
{
    static const uint8_t known[8] = {0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe};
    memset(value, 'x', 32);
    memcpy(value, known, 8);
    memset(value + 8, byte, 8);
}

static void put_colliding(uint8_t byte)
{
    struct tierce__object *object;
    struct tierce__object_what what = {.name = "x", .name_bytes = 1, .value_bytes = 32};
    ck_assert_int_eq(tierce__object_create(space, &object, &what), 0);
    fill_colliding(object->value, byte);
    ck_assert_int_eq(tierce__object_publish(object), 0);
}

static void expect_colliding(uint8_t byte)
{
    struct tierce__object *object;
    uint8_t wanted[32];
    fill_colliding(wanted, byte);
    ck_assert_int_eq(ox_find(space, "x", &object), 0);
    ck_assert(tierce__object_verified(object, 32));
    ck_assert_mem_eq(object->value, wanted, 32);
    tierce__object_release(object);
}

START_TEST(other_bytes_with_the_same_sums_are_another_value)
{
    uint8_t a[32], b[32];
    fill_colliding(a, 'a');
    fill_colliding(b, 'b');
    ck_assert_uint_eq(tierce__sum(a, 32), tierce__sum(b, 32));
    open_space(_i != IN_MEMORY, _i == IN_BOTH ? no_wait : NULL);
    put_colliding('a');
    if (_i == ON_DISK)
        ox_empty_memory(&fx);
    if (_i == DURABLE)
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    put_colliding('b');
    expect_colliding('b');
    if (_i != IN_MEMORY) {
        ox_empty_memory(&fx);
        expect_colliding('b');
        reopen();
        expect_colliding('b');
    }
    end();
}
END_TEST

static void soil_memory(void)
{
    struct tierce__buf *buf = tierce__storage_alloc(fx.engine, 4 * MIB);
    ck_assert_ptr_nonnull(buf);
    memset(buf->data, 0x5a, buf->bytes);
    tierce__buf_release(buf);
}

START_TEST(what_lay_in_memory_before_does_not_go_to_disk)
{
    struct tierce__object *object;
    open_space(true, NULL);
    soil_memory();
    ck_assert_int_eq(ox_put(space, "x", 1, 100), 0);
    ox_empty_memory(&fx);
    soil_memory();
    ck_assert_int_eq(ox_find(space, "x", &object), 0); /* all of it, as the disk has it */
    const uint8_t *header = object->value - 64 - 4096, *last = object->value + 100;
    ck_assert_mem_eq(header, "TIERCE", 6);
    ck_assert_ptr_null(memchr(header + 320, 0x5a, 4096 - 320)); /* behind its tables */
    ck_assert_ptr_null(memchr(last, 0x5a, header + 8192 - last));
    tierce__object_release(object);
    end();
}
END_TEST

/* Deleted values do not reappear, even without a later flush. */
START_TEST(what_was_replaced_or_removed_is_not_there_after_a_crash)
{
    bool was;
    pid_t child = fork();
    snprintf(fx.folder, sizeof(fx.folder), "/tmp/tierce-test-objects-%d",
             (int)(child == 0 ? getpid() : child));
    if (child == 0) {
        open_space(true, no_wait);
        for (int i = 0; i < 3; i++) {
            char name[8];
            snprintf(name, sizeof(name), "x%d", i);
            ck_assert_int_eq(ox_put(space, name, 1, 300000), 0);
        }
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
        ck_assert_int_eq(ox_put(space, "x0", 2, 300000), 0);
        ck_assert_int_eq(tierce__object_remove(space, "x1", 2, &was), 0);
        if (_i == 1)
            ck_assert_int_eq(tierce__objects_clear(space), 2);
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    open_space(true, NULL);
    int64_t replaced = ox_get(space, "x0", NULL);
    ck_assert(replaced == 0 || replaced == 2);
    ck_assert_int_eq(ox_get(space, "x1", NULL), 0);
    ck_assert_int_eq(ox_get(space, "x2", NULL), _i == 1 ? 0 : 1);
    end();
}
END_TEST

static void copy_folder(const char *from, const char *to)
{
    char command[256];
    snprintf(command, sizeof(command), "rm -rf %s%s && cp -r %s%s %s%s", fx.folder, to, fx.folder,
             from, fx.folder, to);
    ck_assert_int_eq(system(command), 0);
}

/* A page of the journal is damaged, or the journal is cut there, after all was durable: values that
 * were replaced or removed stay gone, though the journal's remaining pages name them. */
START_TEST(a_damaged_journal_brings_no_old_value_back)
{
    enum { VERSIONS = 4 };
#ifdef __SANITIZE_THREAD__ /* the threads do the same after each page */
    enum { STEP = 4 };
#else
    enum { STEP = 1 };
#endif
    bool was;
    char path[80];
    struct stat st;
    open_space(true, NULL);
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        ck_assert_int_eq(ox_put(space, "replaced", v, sizes[_i]), 0);
        ck_assert_int_eq(ox_put(space, "removed", v, sizes[_i]), 0);
        ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    }
    ck_assert_int_eq(tierce__object_remove(space, "removed", 7, &was), 0);
    close_space();
    copy_folder("", ".whole");
    snprintf(path, sizeof(path), "%s/journal", fx.folder);
    ck_assert_int_eq(stat(path, &st), 0);
    for (int64_t page = 0; page < st.st_size / 4096; page += STEP) {
        for (int cut = 0; cut < 2; cut++) {
            copy_folder(".whole", "");
            int fd = open(path, O_RDWR | O_CLOEXEC);
            ck_assert(cut == 0 ? pwrite(fd, "?", 1, page * 4096 + 100) == 1
                               : ftruncate(fd, page * 4096) == 0);
            close(fd);
            open_space(true, NULL);
            int64_t found = ox_get(space, "replaced", NULL);
            ck_assert_msg(found == 0 || found == VERSIONS, "page %d: %d", (int)page, (int)found);
            ck_assert_int_eq(ox_get(space, "removed", NULL), 0);
            ck_assert_int_eq(ox_put(space, "replaced", 9, sizes[_i]), 0);
            reopen();
            ck_assert_int_eq(ox_get(space, "replaced", NULL), 9);
            close_space();
        }
    }
    char command[160];
    snprintf(command, sizeof(command), "rm -r %s %s.whole", fx.folder, fx.folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* The disk does not give the old value up: the new one is rejected, and the old one stays whole. */
START_TEST(a_disk_that_does_not_forget_refuses_the_new_value)
{
    open_space(true, NULL);
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    ck_assert_int_eq(ox_put(space, "x", 1, 10000), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_ERROR, .status = -EIO};
    tierce__fault_set(fault, TIERCE__STORE_FLUSH, &rule);
    ck_assert_int_eq(ox_put(space, "x", 2, 10000), -EIO);
    ck_assert_int_eq(ox_put(space, "fresh", 3, 10000), 0); /* nothing to forget */
    tierce__fault_set(fault, TIERCE__STORE_FLUSH, NULL);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    ck_assert_int_eq(ox_put(space, "x", 2, 10000), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    end();
}
END_TEST

/* A find that reads the old value while it is replaced brings it neither back nor to memory. */
static void *put_two(void *arg)
{
    (void)arg;
    ck_assert_int_eq(ox_put(space, "x", 2, 300000), 0);
    return NULL;
}

START_TEST(a_reading_under_way_does_not_bring_the_old_value_back)
{
    struct ox_call call = {.find = {.name = "x",
                                    .name_bytes = 1,
                                    .deadline_ns = tierce__deadline_in_ms(60000),
                                    .done = ox_done}};
    call.find.arg = &call;
    pthread_mutex_init(&call.mutex, NULL);
    pthread_cond_init(&call.answered, NULL);
    open_space(true, NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, 300000), 0);
    ox_empty_memory(&fx);
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    /* The first of two reads is answered late. */
    struct tierce__fault_rule rule = {
        .kind = TIERCE__FAULT_DELAY, .delay_ms = 200, .skip = (uint32_t)_i, .times = 1};
    tierce__fault_set(fault, TIERCE__STORE_GET, &rule);
    ck_assert_int_eq(tierce__object_find(space, &call.find), -EINPROGRESS);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, put_two, NULL), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    pthread_mutex_lock(&call.mutex);
    while (!call.done)
        pthread_cond_wait(&call.answered, &call.mutex);
    pthread_mutex_unlock(&call.mutex);
    /* It began before the other, so it may return either value, but a complete one. */
    if (call.find.status == 0) {
        ck_assert(tierce__object_verified(call.find.object, 300000));
        tierce__object_release(call.find.object);
    }
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ck_assert_int_eq(fx_stats(&fx).checksum_failures, 0);
    ck_assert_int_eq(fx_stats(&fx).identity_failures, 0);
    end();
}
END_TEST

/* ---- expiry ---- */

START_TEST(what_has_expired_is_not_found_and_is_taken_out)
{
    bool was;
    uint64_t now_ms = tierce__wall_us() / 1000;
    open_space(true, NULL);
    ck_assert_int_eq(ox_put_until(space, "late", 1, 10000, now_ms + 3600000), 0);
    ck_assert_int_eq(ox_put_until(space, "soon", 1, 10000, now_ms + 300), 0);
    ck_assert_int_eq(ox_put_until(space, "past", 1, 10000, now_ms - 1), 0);
    ck_assert_int_eq(ox_get(space, "past", NULL), 0);
    ck_assert_int_eq(tierce__object_remove(space, "past", 4, &was), 0);
    ck_assert(!was);
    /* A value that the disk stores after the find below stays there until the next find. */
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    if (_i == 1)
        ox_empty_memory(&fx);
    while (tierce__wall_us() / 1000 <= now_ms + 300)
        usleep(10000);
    ck_assert_int_eq(ox_get(space, "soon", NULL), 0);
    ck_assert_int_eq(ox_get(space, "late", NULL), 1);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_uint_eq(tierce__objects_count(space), 1);
    end();
}
END_TEST

/* ---- bytes that rot ---- */

START_TEST(a_byte_that_rots_in_memory_is_found)
{
    struct tierce__object *object;
    open_space(true, NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, 600000), 0);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, 60000), 0);
    ck_assert_int_eq(ox_find(space, "x", &object), 0);
    static const int64_t places[] = {-4096, -3900, -60, 0, 300000, 599999};
    object->value[places[_i]] ^= 4;
    tierce__object_release(object);
    int64_t first = ox_get(space, "x", NULL);
    ck_assert(first == -1 || (places[_i] < 0 && first == 1)); /* read again from the disk */
    ck_assert_int_eq(fx_stats(&fx).checksum_failures + fx_stats(&fx).identity_failures, 1);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1); /* the disk has it */
    end();
}
END_TEST

/* Flips a byte of each object in the data file, at an offset from its end of header. */
static void rot_on_disk(long at)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/data", fx.folder);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    uint8_t magic[8];
    for (long page = 0; fseek(file, page, SEEK_SET) == 0 && fread(magic, 8, 1, file) == 1;
         page += 4096) {
        if (memcmp(magic, "TIERCECK", 8) != 0)
            continue;
        ck_assert_int_eq(fseek(file, page + at, SEEK_SET), 0);
        int c = fgetc(file);
        ck_assert_int_eq(fseek(file, page + at, SEEK_SET), 0);
        fputc(c ^ 32, file);
    }
    fclose(file);
}

START_TEST(a_byte_that_rots_on_disk_is_found)
{
    static const long places[] = {0, 9, 40, 70, 300, 4096, 4096 + 16, 4096 + 33, 4096 + 70, 310000};
    open_space(true, NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, 600000), 0);
    close_space();
    rot_on_disk(places[_i]);
    open_space(true, NULL);
    ck_assert_int_le(ox_get(space, "x", NULL), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 0); /* and is not asked again */
    ck_assert_int_eq(ox_put(space, "x", 2, 600000), 0);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    ox_empty_memory(&fx);
    ck_assert_int_eq(ox_get(space, "x", NULL), 2);
    end();
}
END_TEST

/* ---- which there are ---- */

static unsigned told[100];

static void note_name(void *arg, const struct tierce__object_what *what)
{
    char name[16] = "";
    (void)arg;
    ck_assert_uint_lt(what->name_bytes, sizeof(name));
    memcpy(name, what->name, what->name_bytes);
    int n = atoi(name);
    ck_assert(n >= 0 && n < 100);
    told[n]++;
}

static void scan(uint32_t count)
{
    uint64_t cursor = 0;
    memset(told, 0, sizeof(told));
    do
        ck_assert_int_eq(tierce__objects_scan(space, &cursor, count, note_name, NULL), 0);
    while (cursor != 0);
}

START_TEST(values_are_counted_and_told_wherever_they_lie)
{
    char name[16];
    bool was;
    open_space(true, NULL);
    ck_assert_uint_eq(tierce__objects_count(space), 0);
    scan(10);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(ox_put(space, name, i + 1, 1000 + i), 0);
        if (i == 60)
            ox_empty_memory(&fx);
    }
    for (unsigned i = 0; i < 100; i += 10) {
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(tierce__object_remove(space, name, strlen(name), &was), 0);
        ck_assert(was);
        ck_assert_int_eq(tierce__object_remove(space, name, strlen(name), &was), 0);
        ck_assert(!was);
    }
    ck_assert_uint_eq(tierce__objects_count(space), 90);
    for (uint32_t count = 1; count <= 1000; count *= 10) {
        scan(count);
        for (unsigned i = 0; i < 100; i++)
            ck_assert_uint_eq(told[i], i % 10 != 0);
    }
    ck_assert_int_eq(tierce__objects_clear(space), 90);
    ck_assert_uint_eq(tierce__objects_count(space), 0);
    scan(10);
    for (unsigned i = 0; i < 100; i++)
        ck_assert_uint_eq(told[i], 0);
    end();
}
END_TEST

/* ---- several at once ---- */

START_TEST(one_reading_serves_all_who_want_it)
{
    struct ox_call calls[4];
    open_space(true, NULL);
    ck_assert_int_eq(ox_put(space, "x", 1, 900000), 0);
    ox_empty_memory(&fx);
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_DELAY, .delay_ms = 100, .times = 1};
    tierce__fault_set(fault, TIERCE__STORE_GET, &rule);
    uint64_t deadline_ns = tierce__deadline_in_ms(60000);
    for (int i = 0; i < 4; i++) {
        calls[i] = (struct ox_call){.find = {.name = "x",
                                             .name_bytes = 1,
                                             .deadline_ns = deadline_ns,
                                             .done = ox_done,
                                             .arg = &calls[i]}};
        pthread_mutex_init(&calls[i].mutex, NULL);
        pthread_cond_init(&calls[i].answered, NULL);
        ck_assert_int_eq(tierce__object_find(space, &calls[i].find), -EINPROGRESS);
    }
    for (int i = 0; i < 4; i++) {
        pthread_mutex_lock(&calls[i].mutex);
        while (!calls[i].done)
            pthread_cond_wait(&calls[i].answered, &calls[i].mutex);
        pthread_mutex_unlock(&calls[i].mutex);
        ck_assert_int_eq(calls[i].find.status, 0);
        ck_assert(tierce__object_verified(calls[i].find.object, 900000));
        ck_assert(ox_is(calls[i].find.object->value, 900000, 1));
        tierce__object_release(calls[i].find.object);
    }
    ck_assert_int_eq(fx_stats(&fx).fetches_shared, 3);
    ck_assert_int_eq(fx_stats(&fx).promotions, 1);
    end();
}
END_TEST

START_TEST(a_disk_that_hangs_is_answered_by_the_deadline)
{
    struct tierce__object *object;
    open_space(true, (const char *const[]){"timeout.lookup", "100ms", NULL});
    ck_assert_int_eq(ox_put(space, "x", 1, 900000), 0);
    ox_empty_memory(&fx);
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    struct tierce__fault_rule rule = {.kind = TIERCE__FAULT_HANG, .times = 1};
    static const enum tierce__store_op ops[] = {TIERCE__STORE_LOOKUP, TIERCE__STORE_GET};
    tierce__fault_set(fault, ops[_i], &rule);
    struct ox_call call = {.find = {.name = "x",
                                    .name_bytes = 1,
                                    .deadline_ns = tierce__deadline_in_ms(200),
                                    .done = ox_done}};
    call.find.arg = &call;
    pthread_mutex_init(&call.mutex, NULL);
    pthread_cond_init(&call.answered, NULL);
    ck_assert_int_eq(tierce__object_find(space, &call.find), -EINPROGRESS);
    /* One that has more time is not held up by the other's. */
    ck_assert_int_eq(ox_find(space, "x", &object), 0);
    pthread_mutex_lock(&call.mutex);
    while (!call.done)
        pthread_cond_wait(&call.answered, &call.mutex);
    pthread_mutex_unlock(&call.mutex);
    ck_assert_int_eq(call.find.status, TIERCE_E_DEADLINE);
    ck_assert_ptr_null(call.find.object);
    tierce__object_release(object);
    ck_assert_int_eq(ox_get(space, "x", NULL), 1);
    end();
}
END_TEST

static void count_clears(void *arg, enum tierce_log_level level, const char *event,
                         const char *detail)
{
    (void)level;
    (void)detail;
    atomic_fetch_add((atomic_int *)arg, strcmp(event, "engine_cleared") == 0);
}

START_TEST(a_clear_is_told_once)
{
    atomic_int clears = 0;
    open_space(true, no_wait);
    tierce_set_log_fn(count_clears, &clears, TIERCE_LOG_DEBUG);
    ck_assert_int_eq(ox_put(space, "name", 1, 1000), 0);
    ck_assert_int_eq(tierce__objects_clear(space), 1);
    end();
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    ck_assert_int_eq(clears, 1);
}
END_TEST

CHECK_MAIN(
    "objects", .seconds = 60,
    .tests = {names_are_any_bytes_up_to_a_limit, spaces_do_not_see_each_other,
              of_what_was_not_published_nothing_stays, a_handle_outlives_what_becomes_of_the_value,
              values_leave_by_policy_and_what_is_held_does_not, modes_are_obeyed,
              the_same_bytes_are_kept_as_they_are, what_lay_in_memory_before_does_not_go_to_disk,
              a_disk_that_does_not_forget_refuses_the_new_value,
              values_are_counted_and_told_wherever_they_lie, a_clear_is_told_once,
              one_reading_serves_all_who_want_it},
    .loops = {{a_value_is_found_as_it_was_stored, 0, (int)(sizeof(sizes) / sizeof(sizes[0]))},
              {a_new_value_takes_the_place_of_the_old_one_everywhere, IN_MEMORY, IN_QUEUE + 1},
              {other_bytes_with_the_same_sums_are_another_value, IN_MEMORY, IN_QUEUE + 1},
              {what_was_replaced_or_removed_is_not_there_after_a_crash, 0, 2},
              {a_damaged_journal_brings_no_old_value_back, 4, 6},
              {a_reading_under_way_does_not_bring_the_old_value_back, 0, 2},
              {what_has_expired_is_not_found_and_is_taken_out, 0, 2},
              {a_byte_that_rots_in_memory_is_found, 0, 6},
              {a_byte_that_rots_on_disk_is_found, 0, 10},
              {a_disk_that_hangs_is_answered_by_the_deadline, 0, 2}})
