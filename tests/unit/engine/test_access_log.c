/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "engine_fixture.h"
#include "optimizer/trace.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* The engine writes its access log, and the optimizer's reader reads the same requests. */

static struct fixture fx;
static char folder[64], path[128], old_path[132];
static atomic_uint warnings;
static char last_warning[1024];

static void note_warning(void *arg, enum tierce_log_level level, const char *event,
                         const char *detail)
{
    (void)arg;
    if (level < TIERCE_LOG_WARN || strncmp(event, "access_log", 10) != 0)
        return;
    snprintf(last_warning, sizeof(last_warning), "%s %.900s", event, detail);
    atomic_fetch_add(&warnings, 1);
}

static void set_up(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/access.jsonl", folder);
    snprintf(old_path, sizeof(old_path), "%s.1", path);
    tierce_set_log_fn(note_warning, NULL, TIERCE_LOG_WARN);
}

static void tear_down(void)
{
    char command[128];
    fx_remove(&fx);
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static void open_engine(const char *log_path, const char *size)
{
    const char *sets[] = {"access_log.path", log_path, "access_log.size", size, NULL};
    fx_open(&fx, false, sets);
}

static void look_up(const struct tierce_chain *chain, size_t to, size_t held)
{
    struct tierce_found found;
    struct tierce_lookup_opts opts = {.size = sizeof(opts), .from_block = held};
    ck_assert_int_eq(tierce_lookup(fx.view, chain, to, &opts, &found), 0);
}

static struct tierce__trace *open_trace(const char *name)
{
    struct tierce__trace *trace;
    char why[TIERCE__TRACE_WHY_BYTES];
    int rc = tierce__trace_open(
        &trace, name, &(struct tierce__trace_opts){.size = sizeof(struct tierce__trace_opts)}, why);
    ck_assert_msg(rc == 0, "%s", why);
    return trace;
}

static uint64_t id_of(const uint8_t *hash)
{
    uint64_t id = 0;
    for (size_t i = 0; i < 8; i++)
        id = id << 8 | hash[i];
    return id;
}

/* The next line is this one. */
static void check_next(struct tierce__trace *trace, enum tierce__trace_kind kind,
                       const struct tierce_chain *chain, size_t count, size_t held)
{
    struct tierce__trace_request r;
    ck_assert_int_eq(tierce__trace_next(trace, &r), 1);
    ck_assert_int_eq(r.kind, kind);
    ck_assert_uint_eq(r.count, count);
    ck_assert_uint_eq(r.instance, 0);
    ck_assert_uint_eq(r.session, 0);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(r.blocks[i], id_of(tierce_chain_hash(chain, i)));
        ck_assert_uint_eq(r.internal != NULL && r.internal[i] != 0, i < held);
    }
    if (kind == TIERCE__TRACE_READ)
        ck_assert_uint_eq(r.input_tokens, count * FX_BLOCK_TOKENS);
}

START_TEST(what_is_written_is_read)
{
    struct tierce__trace_request end;
    struct stat st;
    open_engine(path, "1MiB");
    struct tierce_chain *a = fx_chain(&fx, 1, 16, 0), *b = fx_chain(&fx, 1001, 20, 8);
    look_up(a, 16, 0);
    ck_assert_int_eq(fx_store(&fx, a, 16, fx_ids, false), 16);
    look_up(a, 15, 4);
    look_up(b, 20, 0);
    ck_assert_int_eq(fx_store(&fx, b, 18, fx_ids, false), 8);
    ck_assert_int_eq(fx_store(&fx, a, 16, fx_ids, false), 0); /* held already */
    ck_assert_int_eq(fx_store(&fx, a, 3, fx_ids, false), 0);  /* less than a chunk */
    struct tierce_transfer_opts what = fx_what(&fx, b, 0, 20, fx_ids);
    struct tierce_store *store;
    ck_assert_int_eq(tierce_store_begin(&store, fx.view, &what), 0);
    tierce_store_abort(store);
    ck_assert_int_eq(fx_stats(&fx).access_lines, 6);
    ck_assert_int_eq(fx_stats(&fx).access_dropped, 0);
    fx_close(&fx);

    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    struct tierce__trace *trace = open_trace(path);
    check_next(trace, TIERCE__TRACE_READ, a, 16, 0);
    check_next(trace, TIERCE__TRACE_WRITE, a, 16, 0);
    check_next(trace, TIERCE__TRACE_READ, a, 15, 4);
    check_next(trace, TIERCE__TRACE_READ, b, 20, 0);
    check_next(trace, TIERCE__TRACE_WRITE, b, 16, 0);
    check_next(trace, TIERCE__TRACE_WRITE, a, 16, 0);
    ck_assert_int_eq(tierce__trace_next(trace, &end), 0);
    ck_assert_uint_eq(tierce__trace_report(trace)->bad_lines, 0);
    ck_assert_str_eq(tierce__trace_report(trace)->format, "access");
    ck_assert_uint_eq(strlen(tierce__trace_instance(trace, 0)), 16);
    tierce__trace_close(trace);
    tierce_chain_destroy(a);
    tierce_chain_destroy(b);
    ck_assert_uint_eq(warnings, 0);
}
END_TEST

static void append_text(const char *text)
{
    FILE *file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

START_TEST(it_is_appended_to_a_whole_line_with_narrow_rights)
{
    struct stat st;
    append_text("{\"tierce_access\":1,\"ti");
    ck_assert_int_eq(chmod(path, 0644), 0);
    open_engine(path, "1MiB");
    struct tierce_chain *chain = fx_chain(&fx, 1, 4, 0);
    look_up(chain, 4, 0);
    fx_close(&fx);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    struct tierce__trace *trace = open_trace(path);
    check_next(trace, TIERCE__TRACE_READ, chain, 4, 0);
    ck_assert_uint_eq(tierce__trace_report(trace)->bad_lines, 1);
    tierce__trace_close(trace);
    tierce_chain_destroy(chain);
}
END_TEST

static uint64_t size_of(const char *name)
{
    struct stat st;
    return stat(name, &st) == 0 ? (uint64_t)st.st_size : 0;
}

START_TEST(it_never_grows_beyond_its_size)
{
    open_engine(path, "1MiB");
    struct tierce_chain *chain = fx_chain(&fx, 1, 100, 0);
    for (unsigned i = 0; i < 3000; i++) {
        look_up(chain, 100, i % 7);
        if (i % 100 == 0) {
            struct timespec pause = {.tv_nsec = 1000000};
            nanosleep(&pause, NULL);
            ck_assert_uint_le(size_of(path) + size_of(old_path), 1 << 20);
        }
    }
    int64_t lines = fx_stats(&fx).access_lines;
    fx_close(&fx);
    ck_assert_int_eq(lines, 3000);
    ck_assert_uint_le(size_of(path), 1 << 19);
    ck_assert_uint_le(size_of(old_path), 1 << 19);
    ck_assert_uint_gt(size_of(old_path), 0);
    struct tierce__trace *trace = open_trace(path);
    struct tierce__trace_request r;
    while (tierce__trace_next(trace, &r) > 0)
        ck_assert_uint_eq(r.count, 100);
    ck_assert_uint_eq(tierce__trace_report(trace)->bad_lines, 0);
    tierce__trace_close(trace);
    tierce_chain_destroy(chain);
}
END_TEST

static void wait_for_drops(int64_t least)
{
    for (unsigned i = 0; i < 10000 && fx_stats(&fx).access_dropped < least; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_ge(fx_stats(&fx).access_dropped, least);
}

START_TEST(a_full_disk_costs_lines_and_one_warning)
{
    struct rlimit before, full = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
    struct tierce__trace_request end;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    full.rlim_max = before.rlim_max;
    open_engine(path, "1MiB");
    struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &full), 0);
    look_up(chain, 8, 0);
    wait_for_drops(1);
    ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
    wait_for_drops(2);
    ck_assert_uint_eq(size_of(path), 0);
    ck_assert_uint_eq(warnings, 1);
    ck_assert_ptr_nonnull(strstr(last_warning, "access_log_not_written"));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    look_up(chain, 8, 0);
    fx_close(&fx);
    struct tierce__trace *trace = open_trace(path);
    check_next(trace, TIERCE__TRACE_READ, chain, 8, 0);
    ck_assert_int_eq(tierce__trace_next(trace, &end), 0);
    ck_assert_uint_eq(tierce__trace_report(trace)->bad_lines, 0);
    tierce__trace_close(trace);
    tierce_chain_destroy(chain);
}
END_TEST

/* A folder that is missing, a folder, a device, a link, a file of another engine. */
START_TEST(a_path_that_cannot_be_written_is_told_and_nothing_else)
{
    char missing[160], link_path[160];
    snprintf(missing, sizeof(missing), "%s/missing/access.jsonl", folder);
    snprintf(link_path, sizeof(link_path), "%s/link", folder);
    ck_assert_int_eq(symlink(path, link_path), 0);
    const char *const paths[] = {missing, folder, "/dev/null", link_path};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        open_engine(paths[i], "1MiB");
        ck_assert_uint_eq(warnings, i + 1);
        ck_assert_ptr_nonnull(strstr(last_warning, "access_log_refused"));
        struct tierce_chain *chain = fx_chain(&fx, 1, 8, 0);
        look_up(chain, 8, 0);
        ck_assert_int_eq(fx_store(&fx, chain, 8, fx_ids, false), 8);
        ck_assert_int_eq(fx_stats(&fx).access_lines, 0);
        tierce_chain_destroy(chain);
        fx_close(&fx);
    }
}
END_TEST

/* Lines that are longer than the buffer, or that nobody has taken out of it yet. */
START_TEST(what_does_not_fit_is_dropped)
{
    enum { BLOCKS = 20000, LINES = 200 };
    struct tierce__access_log *log;
    struct tierce__access_line line;
    uint8_t *hashes = calloc(2 * BLOCKS, TIERCE_HASH_BYTES);
    struct tierce__access_what what = {.ns_digest = hashes, .hashes = hashes, .count = 2 * BLOCKS};
    uint64_t lines, dropped;
    ck_assert_int_eq(tierce__access_open(&log, path, 1 << 20), 0);
    tierce__access_begin(log, &line, "lookup", &what);
    tierce__access_end(log, &line, NULL, 0);
    tierce__access_counts(log, &lines, &dropped);
    ck_assert_uint_eq(lines, 1);
    ck_assert_uint_eq(dropped, 1);
    what.count = BLOCKS;
    for (unsigned i = 0; i < LINES; i++) {
        tierce__access_begin(log, &line, "lookup", &what);
        tierce__access_end(log, &line, NULL, 0);
    }
    tierce__access_counts(log, &lines, &dropped);
    ck_assert_uint_eq(lines, LINES + 1);
    ck_assert_uint_le(dropped, LINES);
    tierce__access_close(log);
    free(hashes);
    struct tierce__trace *trace = open_trace(path);
    struct tierce__trace_request r;
    while (tierce__trace_next(trace, &r) > 0)
        ck_assert_uint_eq(r.count, BLOCKS);
    ck_assert_uint_eq(tierce__trace_report(trace)->bad_lines, 0);
    tierce__trace_close(trace);
}
END_TEST

START_TEST(two_engines_do_not_share_a_file)
{
    static struct fixture other;
    open_engine(path, "1MiB");
    const char *sets[] = {"access_log.path", path, "memory.size", "8MiB", NULL};
    fx_open(&other, false, sets);
    ck_assert_uint_eq(warnings, 1);
    fx_close(&other);
    fx_remove(&other);
    fx_close(&fx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("access_log");
    TCase *t = tcase_create("access_log");
    tcase_set_timeout(t, 50);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, what_is_written_is_read);
    tcase_add_test(t, it_is_appended_to_a_whole_line_with_narrow_rights);
    tcase_add_test(t, it_never_grows_beyond_its_size);
    tcase_add_test(t, a_full_disk_costs_lines_and_one_warning);
    tcase_add_test(t, a_path_that_cannot_be_written_is_told_and_nothing_else);
    tcase_add_test(t, what_does_not_fit_is_dropped);
    tcase_add_test(t, two_engines_do_not_share_a_file);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
