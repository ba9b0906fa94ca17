/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_DIRECTORY_FIXTURE_H
#define TIERCE_TESTS_DIRECTORY_FIXTURE_H

#include "base/alloc.h"
#include "check_main.h"
#include "directory/directory_private.h"

/* The directory under test, its workers and lookups. */

#define SECOND 1000000000ULL

static struct tierce__directory *directory;

static inline void open_with(struct tierce__directory_opts opts)
{
    opts.size = sizeof(opts);
    ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
}

static inline void setup(void)
{
    open_with((struct tierce__directory_opts){.workers_max = 300});
}

static inline void teardown(void)
{
    tierce__directory_destroy(directory);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static inline struct tierce__directory_key key_of(uint64_t n)
{
    return (struct tierce__directory_key){n * 7, ~n};
}

static inline struct tierce__directory_id join_at(const char *group, const char *name,
                                                  const char *host, uint64_t now_ns)
{
    struct tierce__directory_id id = {0};
    ck_assert_int_eq(tierce__directory_join(
                         directory,
                         &(struct tierce__directory_worker){
                             .group = group, .name = name, .address = "127.0.0.1:1", .host = host},
                         now_ns, &id),
                     0);
    ck_assert_uint_ne(id.session, 0);
    return id;
}

static inline void sync_nothing(struct tierce__directory_id id)
{
    ck_assert_int_eq(tierce__directory_sync_begin(directory, id, 0), TIERCE__DIRECTORY_DONE);
    ck_assert_int_eq(tierce__directory_sync_end(directory, id, 0, 0), TIERCE__DIRECTORY_DONE);
}

static inline struct tierce__directory_id join(const char *group, const char *name,
                                               const char *host)
{
    struct tierce__directory_id id = join_at(group, name, host, 0);
    sync_nothing(id);
    return id;
}

/* Keys [from, to) as changes with the numbers from `first` on. */
static inline enum tierce__directory_answer report(struct tierce__directory_id id, uint64_t first,
                                                   uint64_t from, uint64_t to, uint8_t tier,
                                                   bool admitted)
{
    struct tierce__directory_change changes[512];
    ck_assert_uint_le(to - from, 512);
    for (uint64_t i = from; i < to; i++)
        changes[i - from] =
            (struct tierce__directory_change){.key = key_of(i), .tier = tier, .admitted = admitted};
    return tierce__directory_report(directory, id, first, changes, to - from, 0);
}

static struct tierce__directory_found found;

static inline void find_as(struct tierce__directory_asker asker, uint64_t from, uint64_t to)
{
    struct tierce__directory_key keys[512];
    for (uint64_t i = from; i < to; i++)
        keys[i - from] = key_of(i);
    ck_assert_int_eq(tierce__directory_find(directory, keys, to - from, &asker, &found), 0);
}

static inline void find(const char *group, uint64_t from, uint64_t to)
{
    find_as((struct tierce__directory_asker){.group = group, .host = ""}, from, to);
}

static inline void assert_run(uint32_t at, struct tierce__directory_id id, uint32_t first,
                              uint32_t keys)
{
    ck_assert_uint_lt(at, found.run_count);
    ck_assert_uint_eq(found.runs[at].worker.session, id.session);
    ck_assert_uint_eq(found.runs[at].worker.slot, id.slot);
    ck_assert_uint_eq(found.runs[at].first, first);
    ck_assert_uint_eq(found.runs[at].keys, keys);
}

static inline struct tierce__directory_about about(struct tierce__directory_id id)
{
    struct tierce__directory_about out;
    ck_assert(tierce__directory_about(directory, id, &out));
    return out;
}

static inline struct tierce__directory_stats clean_stats(void)
{
    struct tierce__directory_stats stats;
    for (bool is_dirty = true; is_dirty;) {
        is_dirty = tierce__directory_clean(directory, 64);
        tierce__directory_stats(directory, &stats);
        ck_assert(stats.is_clean == !is_dirty);
    }
    return stats;
}

#endif
