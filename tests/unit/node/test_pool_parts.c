/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a node that belong to a pool, by the functions that their server calls. */
#include "base/bytes.h"
#include "base/clock.h"
#include "check_main.h"
#include "node/part/part.h"
#include "wait_for.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { MIB = 1 << 20, OBJECT = 64 << 10, DEADLINE_MS = 60000 };

static struct tierce__parts *parts;
static char folder[] = "/tmp/tierce-test-XXXXXX", disk[64];

/* ---- calls that wait ------------------------------------------------------------------------- */

static struct tierce_plugin_name text_of(const char *text)
{
    return (struct tierce_plugin_name){.text = text, .bytes = strlen(text)};
}

static void on_call(struct tierce__keeper_call *call)
{
    atomic_store((_Atomic bool *)call->arg, true);
}

static void on_room(struct tierce__keeper_room *room)
{
    atomic_store((_Atomic bool *)room->arg, true);
}

static const struct tierce__keeper_ops *ops(void)
{
    return tierce__parts_keeper(parts)->ops;
}

static int find(const char *space, const char *name, struct tierce__keeper_lease *lease)
{
    _Atomic bool done = false;
    struct tierce__keeper_call call = {.space = text_of(space),
                                       .name = text_of(name),
                                       .deadline_ns = tierce__deadline_in_ms(DEADLINE_MS),
                                       .done = on_call,
                                       .arg = &done};
    ops()->find(tierce__parts_keeper(parts), &call);
    WAIT_FOR(atomic_load(&done));
    *lease = call.lease;
    return call.status;
}

static int drop(const char *space, const char *name)
{
    _Atomic bool done = false;
    struct tierce__keeper_call call = {.space = text_of(space),
                                       .name = text_of(name),
                                       .deadline_ns = tierce__deadline_in_ms(DEADLINE_MS),
                                       .done = on_call,
                                       .arg = &done};
    ops()->drop(tierce__parts_keeper(parts), &call);
    WAIT_FOR(atomic_load(&done));
    return call.status;
}

static int make(const char *space, const char *name, uint64_t bytes,
                struct tierce__keeper_room *room)
{
    struct tierce_plugin_name space_name = text_of(space), object_name = text_of(name);
    *room = (struct tierce__keeper_room){.done = on_room};
    return ops()->make(tierce__parts_keeper(parts), room, &space_name, &object_name, bytes);
}

static int keep(struct tierce__keeper_room *room, int fill)
{
    _Atomic bool done = false;
    memset(room->data, fill, room->bytes);
    room->arg = &done;
    ops()->keep(tierce__parts_keeper(parts), room);
    WAIT_FOR(atomic_load(&done));
    return room->status;
}

static int put(const char *space, const char *name, uint64_t bytes, int fill)
{
    struct tierce__keeper_room room;
    int rc = make(space, name, bytes, &room);
    return rc == 0 ? keep(&room, fill) : rc;
}

/* Objects that are written at the same time, because a disk takes a while for each. */
static struct putting {
    struct tierce__keeper_room room;
    _Atomic bool is_done;
    bool has_begun;
} puttings[32];

static void end_put(struct putting *putting)
{
    if (!putting->has_begun)
        return;
    WAIT_FOR(atomic_load(&putting->is_done));
    ck_assert_int_eq(putting->room.status, 0);
    putting->has_begun = false;
}

static void begin_put(int number, const char *space, const char *name, uint64_t bytes, int fill)
{
    struct putting *putting = &puttings[(size_t)number % (sizeof(puttings) / sizeof(puttings[0]))];
    end_put(putting);
    ck_assert_int_eq(make(space, name, bytes, &putting->room), 0);
    atomic_store(&putting->is_done, false);
    putting->has_begun = true;
    putting->room.arg = &putting->is_done;
    memset(putting->room.data, fill, bytes);
    ops()->keep(tierce__parts_keeper(parts), &putting->room);
}

static void end_puts(void)
{
    for (size_t i = 0; i < sizeof(puttings) / sizeof(puttings[0]); i++)
        end_put(&puttings[i]);
}

/* The byte that fills an object; -1: a miss. */
static int read_fill(const char *space, const char *name, uint64_t bytes)
{
    struct tierce__keeper_lease lease;
    int rc = find(space, name, &lease);
    if (rc == TIERCE_E_MISS)
        return -1;
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_eq(lease.bytes, bytes);
    int fill = lease.data[0];
    for (uint64_t i = 0; i < bytes; i++)
        ck_assert_int_eq(lease.data[i], fill);
    ops()->release(tierce__parts_keeper(parts), &lease);
    return fill;
}

static struct tierce__part_state state_of(const char *space)
{
    struct tierce__part_state state = {0};
    for (size_t i = 0; i < tierce__parts_count(parts); i++) {
        tierce__parts_state(parts, i, &state);
        if (strcmp(state.space, space) == 0)
            return state;
    }
    ck_abort_msg("no part %s", space);
    return state;
}

static size_t index_of(const char *space)
{
    struct tierce__part_state state;
    tierce__parts_state(parts, 0, &state);
    return strcmp(state.space, space) == 0 ? 0 : 1;
}

static void open_parts(uint64_t memory, uint64_t on_disk)
{
    char why[256];
    const struct tierce__parts_opts opts = {.size = sizeof(opts),
                                            .memory_bytes = memory,
                                            .disk_path = on_disk > 0 ? disk : "",
                                            .disk_bytes = on_disk,
                                            .buffer_bytes = 4 * MIB};
    int rc = tierce__parts_open(&parts, &opts, why);
    ck_assert_msg(rc == 0, "%s", why);
    WAIT_FOR(on_disk == 0 || state_of("disk").is_ready);
}

static void close_parts(void)
{
    tierce__parts_close(parts, tierce__deadline_in_ms(DEADLINE_MS));
    parts = NULL;
}

static void set_up(void)
{
    temp_folder_make(folder);
    snprintf(disk, sizeof(disk), "%s/part", folder);
}

static void tear_down(void)
{
    temp_folder_remove(folder);
    memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
}

/* ---- one object ------------------------------------------------------------------------------ */

static const char *const spaces[] = {"memory", "disk"};

START_TEST(test_an_object_is_there_until_it_is_dropped)
{
    const char *space = spaces[_i];
    open_parts(8 * MIB, 8 * MIB);
    ck_assert_int_eq(read_fill(space, "demo/tp0/1", OBJECT), -1);
    ck_assert_int_eq(put(space, "demo/tp0/1", OBJECT, 7), 0);
    ck_assert_int_eq(read_fill(space, "demo/tp0/1", OBJECT), 7);
    ck_assert_int_eq(read_fill(spaces[1 - _i], "demo/tp0/1", OBJECT), -1);
    ck_assert_uint_eq(state_of(space).used_bytes, OBJECT);
    ck_assert_uint_eq(state_of(space).objects, 1);
    ck_assert_int_eq(drop(space, "demo/tp0/1"), 0);
    ck_assert_int_eq(read_fill(space, "demo/tp0/1", OBJECT), -1);
    ck_assert_uint_eq(state_of(space).used_bytes, 0);
    ck_assert_int_eq(drop(space, "demo/tp0/1"), 0);
    close_parts();
}
END_TEST

START_TEST(test_an_object_that_arrives_is_not_there)
{
    const char *space = spaces[_i];
    struct tierce__keeper_room room;
    open_parts(8 * MIB, 8 * MIB);
    ck_assert_int_eq(make(space, "demo/tp0/1", OBJECT, &room), 0);
    ck_assert_int_eq(read_fill(space, "demo/tp0/1", OBJECT), -1);
    ck_assert_uint_eq(state_of(space).used_bytes, OBJECT); /* its room is taken */
    ck_assert_uint_eq(state_of(space).objects, 0);
    ops()->abandon(tierce__parts_keeper(parts), &room);
    ck_assert_int_eq(read_fill(space, "demo/tp0/1", OBJECT), -1);
    ck_assert_uint_eq(state_of(space).used_bytes, 0);
    close_parts();
}
END_TEST

START_TEST(test_the_last_write_of_a_name_counts)
{
    const char *space = spaces[_i];
    open_parts(8 * MIB, 8 * MIB);
    ck_assert_int_eq(put(space, "a", OBJECT, 1), 0);
    ck_assert_int_eq(put(space, "a", 2 * OBJECT, 2), 0);
    ck_assert_int_eq(read_fill(space, "a", 2 * OBJECT), 2);
    ck_assert_uint_eq(state_of(space).used_bytes, 2 * OBJECT);
    ck_assert_uint_eq(state_of(space).objects, 1);
    close_parts();
}
END_TEST

/* A reader keeps the bytes that it has found. */
START_TEST(test_a_lease_outlives_its_object)
{
    const char *space = spaces[_i];
    struct tierce__keeper_lease lease;
    open_parts(MIB, MIB);
    ck_assert_int_eq(put(space, "a", OBJECT, 1), 0);
    ck_assert_int_eq(find(space, "a", &lease), 0);
    ck_assert_int_eq(drop(space, "a"), 0);
    for (int i = 0; i < 64; i++) {
        char name[16];
        snprintf(name, sizeof(name), "b%d", i);
        (void)put(space, name, OBJECT, 2);
    }
    for (uint64_t i = 0; i < lease.bytes; i++)
        ck_assert_int_eq(lease.data[i], 1);
    ops()->release(tierce__parts_keeper(parts), &lease);
    close_parts();
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------- */

START_TEST(test_a_full_part_evicts_nothing)
{
    const char *space = spaces[_i];
    char name[16];
    open_parts(MIB, MIB);
    for (int i = 0; i < MIB / OBJECT; i++) {
        snprintf(name, sizeof(name), "a%d", i);
        ck_assert_int_eq(put(space, name, OBJECT, i), 0);
    }
    ck_assert_int_eq(put(space, "more", 1, 99), TIERCE_E_FULL);
    ck_assert_int_eq(put(space, "huge", 2 * MIB, 99), TIERCE_E_LIMIT);
    for (int i = 0; i < MIB / OBJECT; i++) {
        snprintf(name, sizeof(name), "a%d", i);
        ck_assert_int_eq(read_fill(space, name, OBJECT), i);
    }
    ck_assert_int_eq(drop(space, "a3"), 0);
    ck_assert_int_eq(put(space, "more", OBJECT, 99), 0);
    close_parts();
}
END_TEST

START_TEST(test_what_is_wrong_is_refused)
{
    struct tierce__keeper_lease lease;
    char name[TIERCE_PLUGIN_NAME_MAX + 2];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    open_parts(MIB, 0);
    ck_assert_int_eq(find("disk", "a", &lease), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(find("memor", "a", &lease), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(put("memory2", "a", 1, 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(put("memory", "", 1, 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(put("memory", name, 1, 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(put("memory", "a", 0, 1), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(put("memory", name + 1, 1, 1), 0);
    close_parts();
}
END_TEST

/* ---- lists ----------------------------------------------------------------------------------- */

struct listed {
    int counts[2000];
    int others;
};

static void on_name(void *arg, const struct tierce_plugin_name *name)
{
    struct listed *listed = arg;
    char text[32] = "";
    int number = -1;
    ck_assert_uint_lt(name->bytes, sizeof(text));
    memcpy(text, name->text, name->bytes);
    if (sscanf(text, "in/%d", &number) == 1 && number >= 0 && number < 2000)
        listed->counts[number]++;
    else
        listed->others++;
}

/* Objects that come and go during the walk do not hide others. */
START_TEST(test_a_list_has_all_that_stays)
{
    const char *space = spaces[_i];
    enum { COUNT = 300 };
    static struct listed listed;
    struct tierce_plugin_name space_name = text_of(space), prefix = text_of("in/");
    uint64_t cursor = 0;
    char name[32];
    int step = 0;
    memset(&listed, 0, sizeof(listed));
    open_parts(16 * MIB, 16 * MIB);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof(name), i % 3 == 0 ? "out/%d" : "in/%d", i);
        begin_put(i, space, name, 1, i & 0x7f);
    }
    end_puts();
    do {
        ck_assert_int_eq(ops()->list(tierce__parts_keeper(parts), &space_name, &prefix, &cursor,
                                     on_name, &listed),
                         0);
        snprintf(name, sizeof(name), "out/%d", step * 3);
        ck_assert_int_eq(drop(space, name), 0);
        snprintf(name, sizeof(name), "in/%d", 1000 + step++);
        ck_assert_int_eq(put(space, name, 1, 1), 0);
    } while (cursor != 0);
    ck_assert_int_gt(step, 1);
    ck_assert_int_eq(listed.others, 0);
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(listed.counts[i], i % 3 == 0 ? 0 : 1);
    close_parts();
}
END_TEST

/* ---- starts ---------------------------------------------------------------------------------- */

START_TEST(test_a_restart_keeps_the_disk)
{
    open_parts(MIB, 8 * MIB);
    struct tierce__part_state memory = state_of("memory"), before = state_of("disk");
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof(name), "demo/tp0/%d?", i);
        begin_put(i, "disk", name, 1 + (uint64_t)i, i & 0x7f);
    }
    end_puts();
    ck_assert_int_eq(put("memory", "demo/tp0/0", OBJECT, 1), 0);
    close_parts();
    open_parts(MIB, 8 * MIB);
    struct tierce__part_state after = state_of("disk"), fresh = state_of("memory");
    ck_assert_mem_eq(before.incarnation, after.incarnation, sizeof(after.incarnation));
    ck_assert_mem_ne(memory.incarnation, fresh.incarnation, sizeof(fresh.incarnation));
    ck_assert_uint_eq(after.objects, 300);
    ck_assert_uint_eq(after.used_bytes, 300 * 4096);
    ck_assert_int_eq(read_fill("disk", "demo/tp0/299?", 300), 299 & 0x7f);
    ck_assert_int_eq(read_fill("memory", "demo/tp0/0", OBJECT), -1);
    close_parts();
    /* It was made smaller: all is served, and nothing new is accepted. */
    open_parts(0, MIB);
    ck_assert_uint_eq(state_of("disk").objects, 300);
    ck_assert_uint_eq(state_of("disk").capacity_bytes, MIB);
    ck_assert_int_eq(read_fill("disk", "demo/tp0/299?", 300), 299 & 0x7f);
    ck_assert_int_eq(put("disk", "more", 1, 1), TIERCE_E_FULL);
    close_parts();
}
END_TEST

static bool disk_must_exist;

static int try_open(char why[256])
{
    const struct tierce__parts_opts opts = {.size = sizeof(opts),
                                            .disk_path = disk,
                                            .disk_bytes = MIB,
                                            .disk_must_exist = disk_must_exist,
                                            .buffer_bytes = MIB};
    struct tierce__parts *other = NULL;
    int rc = tierce__parts_open(&other, &opts, why);
    tierce__parts_close(other, tierce__deadline_in_ms(DEADLINE_MS));
    return rc;
}

START_TEST(test_a_folder_that_cannot_be_used_is_named)
{
    char why[256], path[128];
    open_parts(0, MIB);
    ck_assert_int_eq(try_open(why), TIERCE_E_LOCKED);
    ck_assert_ptr_nonnull(strstr(why, disk));
    ck_assert_int_eq(put("disk", "a", 1, 1), 0);
    close_parts();

    snprintf(path, sizeof(path), "%s/incarnation", disk);
    ck_assert_int_eq(truncate(path, 5), 0);
    ck_assert_int_eq(try_open(why), TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, path));
    ck_assert_ptr_nonnull(strstr(why, "must be 32 hex digits and a newline: restore it"));
    /* Without it nobody knows whose objects they are. */
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(try_open(why), -EEXIST);
    ck_assert_ptr_nonnull(strstr(why, path));

    /* As the mount point of a disk that is not mounted. */
    snprintf(disk, sizeof(disk), "%s/mounted", folder);
    ck_assert_int_eq(mkdir(disk, 0700), 0);
    disk_must_exist = true;
    ck_assert_int_eq(try_open(why), -ENOENT);
    ck_assert_msg(strstr(why, disk) != NULL && strstr(why, "mount the disk that has it") != NULL,
                  "%s", why);
    disk_must_exist = false;
    ck_assert_int_eq(try_open(why), 0);
    disk_must_exist = true;
    ck_assert_int_eq(try_open(why), 0);
    disk_must_exist = false;

    snprintf(disk, sizeof(disk), "%s/no/part", folder);
    ck_assert_int_eq(try_open(why), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, disk));
}
END_TEST

START_TEST(test_forgetting_empties_a_part)
{
    const char *space = spaces[_i];
    char name[16];
    open_parts(8 * MIB, 8 * MIB);
    struct tierce__part_state before = state_of(space);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "a%d", i);
        begin_put(i, space, name, 1, 1);
    }
    end_puts();
    ck_assert_int_eq(put(spaces[1 - _i], "a0", 1, 2), 0);
    ck_assert_int_eq(tierce__parts_forget(parts, index_of(space)), 0);
    WAIT_FOR(state_of(space).is_ready);
    struct tierce__part_state after = state_of(space);
    ck_assert_mem_ne(before.incarnation, after.incarnation, sizeof(after.incarnation));
    ck_assert_uint_eq(after.objects, 0);
    ck_assert_uint_eq(after.used_bytes, 0);
    ck_assert_int_eq(read_fill(space, "a0", 1), -1);
    ck_assert_int_eq(read_fill(spaces[1 - _i], "a0", 1), 2);
    ck_assert_int_eq(put(space, "a0", 1, 3), 0);
    close_parts();
    if (strcmp(space, "disk") == 0) {
        open_parts(0, 8 * MIB);
        ck_assert_mem_eq(after.incarnation, state_of("disk").incarnation, 16);
        ck_assert_uint_eq(state_of("disk").objects, 1);
        close_parts();
    }
}
END_TEST

/* A file that somebody removed is a miss, and no longer counted. */
START_TEST(test_a_lost_file_is_a_miss)
{
    char command[160];
    open_parts(0, MIB);
    ck_assert_int_eq(put("disk", "a", OBJECT, 1), 0);
    snprintf(command, sizeof(command), "find %s/objects -type f ! -name '~*' -delete", disk);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(read_fill("disk", "a", OBJECT), -1);
    ck_assert_uint_eq(state_of("disk").used_bytes, 0);
    close_parts();
}
END_TEST

/* ---- many threads ---------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 40 };

static void *work(void *arg)
{
    int own = *(int *)arg;
    const char *space = spaces[own % 2];
    for (int round = 0; round < ROUNDS; round++) {
        char name[32];
        snprintf(name, sizeof(name), "%d/%d", own, round % 7);
        int rc = put(space, name, OBJECT, round & 0x7f);
        ck_assert(rc == 0 || rc == TIERCE_E_FULL);
        if (rc == 0)
            ck_assert_int_eq(read_fill(space, name, OBJECT), round & 0x7f);
        ck_assert_int_eq(drop(space, name), 0);
    }
    return NULL;
}

START_TEST(test_many_threads)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    open_parts(MIB, MIB);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(state_of("memory").used_bytes, 0);
    ck_assert_uint_eq(state_of("disk").used_bytes, 0);
    close_parts();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool parts");
    TCase *tcase = tcase_create("parts");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, test_an_object_is_there_until_it_is_dropped, 0, 2);
    tcase_add_loop_test(tcase, test_an_object_that_arrives_is_not_there, 0, 2);
    tcase_add_loop_test(tcase, test_the_last_write_of_a_name_counts, 0, 2);
    tcase_add_loop_test(tcase, test_a_lease_outlives_its_object, 0, 2);
    tcase_add_loop_test(tcase, test_a_full_part_evicts_nothing, 0, 2);
    tcase_add_test(tcase, test_what_is_wrong_is_refused);
    tcase_add_loop_test(tcase, test_a_list_has_all_that_stays, 0, 2);
    tcase_add_test(tcase, test_a_restart_keeps_the_disk);
    tcase_add_test(tcase, test_a_folder_that_cannot_be_used_is_named);
    tcase_add_loop_test(tcase, test_forgetting_empties_a_part, 0, 2);
    tcase_add_test(tcase, test_a_lost_file_is_a_miss);
    tcase_add_test(tcase, test_many_threads);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
