/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "engine_fixture.h"
#include "test_random.h"
#include "wait_for.h"
#include "optimizer/replay/replay.h"
#include "optimizer/trace/trace.h"
#include "prop/optimizer/random_recording.h"

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
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/access.jsonl", folder);
    snprintf(old_path, sizeof(old_path), "%s.1", path);
    tierce_set_log_fn(note_warning, NULL, TIERCE_LOG_WARN);
}

static void tear_down(void)
{
    fx_remove(&fx);
    temp_folder_remove(folder);
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
    WAIT_WITHIN(10000, fx_stats(&fx).access_dropped >= least);
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
    enum { BLOCKS = 20000, LINES = TEST_ROUNDS(200) };
    struct tierce__line_log *log;
    struct tierce__line line;
    uint8_t *hashes = calloc(2 * BLOCKS, TIERCE_HASH_BYTES);
    struct tierce__access_what what = {.ns_digest = hashes, .hashes = hashes, .count = 2 * BLOCKS};
    uint64_t lines, dropped;
    ck_assert_int_eq(tierce__access_open(&log, path, 1 << 20), 0);
    tierce__access_begin(log, &line, "lookup", &what);
    tierce__access_end(log, &line, NULL, 0);
    tierce__line_log_counts(log, &lines, &dropped);
    ck_assert_uint_eq(lines, 1);
    ck_assert_uint_eq(dropped, 1);
    what.count = BLOCKS;
    for (unsigned i = 0; i < LINES; i++) {
        tierce__access_begin(log, &line, "lookup", &what);
        tierce__access_end(log, &line, NULL, 0);
    }
    tierce__line_log_counts(log, &lines, &dropped);
    ck_assert_uint_eq(lines, LINES + 1);
    ck_assert_uint_le(dropped, LINES);
    tierce__line_log_close(log);
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

/* ---- a replay of the log beside the engine that wrote it ------------------------------------- */

enum { TREE = 500, REQUESTS = 500, MEMORY_BYTES = 1 << 20 };

struct seen {
    uint64_t ids[TREE]; /* of the log, by node of the tree */
    bool held[TREE];    /* by the engine in the end */
};

static struct tierce_chain *tree_chain(const uint64_t *nodes, uint32_t count)
{
    struct tierce_chain *chain;
    ck_assert_int_eq(tierce_view_chain(&chain, fx.view, NULL), 0);
    for (uint32_t i = 0; i < count * FX_BLOCK_TOKENS; i++) {
        int32_t token = (int32_t)(nodes[i / FX_BLOCK_TOKENS] * 16 + i % FX_BLOCK_TOKENS);
        ck_assert_int_ge(tierce_chain_append(chain, &token, 1, NULL), 0);
    }
    return chain;
}

static bool any_behind(const struct tierce_chain *chain, uint32_t found, uint32_t count)
{
    struct tierce__keys keys;
    bool any = false;
    ck_assert_int_eq(tierce__keys_init(&keys, fx.view, chain, count, count, false), 0);
    for (uint32_t i = found; i < count; i++)
        any = any || tierce__storage_has(fx.engine, &keys.keys[i]);
    tierce__keys_fini(&keys);
    return any;
}

/* As an inference engine asks: looks up, loads what there is, stores the rest, in two parts now and
 * then, and now and then not all that it looked up. A gap is filled in one step: the first of
 * several steps would not know the chunks held after it, and would use them later. */
static void ask_engine(struct test_random *rnd, struct seen *seen, uint64_t request)
{
    uint64_t nodes[RECORDING_DEPTH];
    uint32_t count = 0;
    while (count == 0)
        count = random_chain(rnd, TREE, nodes);
    struct tierce_chain *chain = tree_chain(nodes, count);
    for (uint32_t i = 0; i < count; i++)
        seen->ids[nodes[i]] = id_of(tierce_chain_hash(chain, i));
    uint32_t found = (uint32_t)fx_found(&fx, chain, count, 0, request, NULL);
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, found, fx_ids);
    what.session = request;
    bool in_steps = !any_behind(chain, found, count);
    if (found > 0 && in_steps)
        ck_assert_int_eq(tierce_load(fx.view, &what, NULL), found);
    uint32_t end = count - (found < count && in_steps && test_random_below(rnd, 4) == 0);
    uint32_t part = in_steps ? found + test_random_below(rnd, end - found + 1) : end;
    for (uint32_t n = 0; n < 2; n++, part = end) {
        what.to_block = part;
        if (part > 0 && tierce_store(fx.view, &what) < 0)
            ck_abort_msg("a store failed");
    }
    tierce_chain_destroy(chain);
}

static void find_held(struct seen *seen)
{
    for (uint64_t node = 0; node < TREE; node++) {
        uint64_t nodes[RECORDING_DEPTH];
        uint32_t count = 0;
        for (uint64_t at = node;; at = (at - 2) / 2) {
            nodes[RECORDING_DEPTH - 1 - count++] = at;
            if (at < 2)
                break;
        }
        struct tierce_chain *chain = tree_chain(nodes + RECORDING_DEPTH - count, count);
        struct tierce__keys keys;
        ck_assert_int_eq(tierce__keys_init(&keys, fx.view, chain, count, count, false), 0);
        seen->held[node] = tierce__storage_has(fx.engine, &keys.keys[count - 1]);
        tierce__keys_fini(&keys);
        tierce_chain_destroy(chain);
    }
}

/* Whether the simulator holds a block, by its number. */
static bool simulated[TREE];

static void note_stored(void *arg, uint32_t block)
{
    (void)arg;
    simulated[block] = true;
}

static void note_left(void *arg, uint32_t block)
{
    (void)arg;
    simulated[block] = false;
}

static void note_lookup(void *arg, const struct tierce__recorded *request, const bool *there)
{
    (void)arg;
    (void)request;
    (void)there;
}

static void replay_log(const struct tierce__policy_ops *policy, const struct seen *seen,
                       uint64_t chunk_bytes, const struct tierce_engine_stats *stats)
{
    static uint64_t id_at[TREE]; /* by number */
    uint64_t bytes[RECORDING_DEPTH];
    struct tierce__recording *recording;
    struct tierce__trace_request request;
    struct tierce__trace *trace = open_trace(path);
    ck_assert_int_eq(tierce__recording_create(&recording, NULL), 0);
    for (uint32_t i = 0; i < RECORDING_DEPTH; i++)
        bytes[i] = chunk_bytes;
    while (tierce__trace_next(trace, &request) > 0) {
        request.bytes = bytes;
        ck_assert_int_eq(tierce__recording_add(recording, &request), 0);
    }
    ck_assert_int_eq(tierce__recording_seal(recording), 0);
    tierce__trace_close(trace);
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    ck_assert_uint_eq(totals.requests, REQUESTS);

    struct tierce__replay_watch watch = {note_lookup, note_stored, note_left, NULL};
    struct tierce__match match = {.kind = TIERCE__MATCH_PREFIX};
    struct tierce__replay *replay;
    memset(simulated, 0, sizeof(simulated));
    ck_assert_int_eq(
        tierce__replay_create(
            &replay, &(struct tierce__replay_opts){.size = sizeof(struct tierce__replay_opts),
                                                   .policy = policy,
                                                   .capacity = MEMORY_BYTES,
                                                   .in_bytes = true,
                                                   .whole = true,
                                                   .distinct = totals.distinct,
                                                   .matches = &match,
                                                   .match_count = 1,
                                                   .watch = &watch}),
        0);
    trace = open_trace(path);
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        ck_assert_int_eq(tierce__trace_next(trace, &request), 1);
        for (uint32_t i = 0; i < r->count; i++)
            id_at[tierce__recorded_blocks(r)[i]] = request.blocks[i];
        ck_assert_int_eq(tierce__replay_request(replay, r), 0);
    }
    tierce__trace_close(trace);
    const struct tierce__replay_result *result = tierce__replay_result(replay);
    ck_assert_uint_eq(result->blocks, (uint64_t)stats->lookup_blocks);
    ck_assert_msg(result->hits[0] == (uint64_t)stats->lookup_hit_blocks,
                  "%s: the replay hits %llu times, the engine %lld", policy->name,
                  (unsigned long long)result->hits[0], (long long)stats->lookup_hit_blocks);
    ck_assert_uint_gt(result->evicted, REQUESTS / 4);
    for (uint32_t node = 0; node < TREE; node++) {
        for (uint32_t n = 0; n < totals.distinct; n++)
            ck_assert_msg(id_at[n] != seen->ids[node] || simulated[n] == seen->held[node],
                          "%s: only one of both holds node %u", policy->name, node);
    }
    tierce__replay_destroy(replay);
    tierce__recording_destroy(recording);
}

/* Requests are one use of a chunk to both, however many lines of the log tell of them. */
START_TEST(a_replay_of_the_log_does_what_the_engine_did)
{
    struct test_random rnd = test_random_start("a_replay_of_the_log_does_what_the_engine_did");
    const struct tierce__policy_ops *policy;
    for (size_t n = 0; (policy = tierce__policy_at(n)) != NULL; n++) {
        const char *sets[] = {"access_log.path",
                              path,
                              "access_log.size",
                              "4MiB",
                              "memory.size",
                              "1MiB",
                              "memory.policy",
                              policy->name,
                              NULL};
        struct seen seen = {0};
        /* sampled_lru draws by the number of slots; the tiers report no requests to the other
         * policy. */
        if (strcmp(policy->name, "sampled_lru") == 0 || policy->request != NULL)
            continue;
        (void)unlink(path);
        fx_open(&fx, false, sets);
        tierce_view_close(fx.view);
        struct tierce_namespace ns = fx_namespace();
        ns.chunk_blocks = 1;
        ck_assert_int_eq(
            tierce_view_open(&fx.view, fx.engine, &ns, &(struct tierce_shard){0, 1, 0, 1}), 0);
        ck_assert_uint_eq(fx.engine->settings.memory_bytes, MEMORY_BYTES);
        uint64_t chunk_bytes = tierce__round_up(fx.view->full.extent.object_bytes, 4096);
        for (uint32_t i = 0; i < REQUESTS; i++)
            ask_engine(&rnd, &seen, i + 1);
        find_held(&seen);
        struct tierce_engine_stats stats = fx_stats(&fx);
        fx_close(&fx);
        replay_log(policy, &seen, chunk_bytes, &stats);
    }
}
END_TEST

CHECK_MAIN("access_log", .seconds = 50, .setup = set_up, .teardown = tear_down,
           .tests = {what_is_written_is_read, it_is_appended_to_a_whole_line_with_narrow_rights,
                     it_never_grows_beyond_its_size, a_full_disk_costs_lines_and_one_warning,
                     a_path_that_cannot_be_written_is_told_and_nothing_else,
                     what_does_not_fit_is_dropped, two_engines_do_not_share_a_file,
                     a_replay_of_the_log_does_what_the_engine_did})
