/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that read each other's chunks, found by the directory of a manager: from memory and disk,
 * with a peer that stops, is killed, has wrong bytes or rejects us, and with another manager. */
#include "peers_fixture.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

/* Calls of FindChunks that the manager has answered, by its metrics. */
static uint64_t lookups(void)
{
    static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n",
                      name[] = "tierce_service_query_counter_total{api_name=\"FindChunks\"";
    static char page[1 << 20];
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(manager.ports.admin_http),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    size_t used = 0;
    ssize_t n;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    ck_assert_int_eq(write(fd, request, sizeof(request) - 1), sizeof(request) - 1);
    while ((n = read(fd, page + used, sizeof(page) - 1 - used)) > 0)
        used += (size_t)n;
    close(fd);
    page[used] = '\0';
    const char *line = strstr(page, name);
    return line != NULL ? strtoull(strchr(line, '}') + 1, NULL, 10) : 0;
}

/* ---- hits ------------------------------------------------------------------------------------ */

START_TEST(chunks_come_from_memory_and_disk_of_the_other)
{
    start_manager(0);
    open_engine(0);
    open_engine(1);
    store(0, 1);
    store(1, 2);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS) && finds(0, 2, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_int_eq(load(0, 2, 0), CHAIN_BLOCKS);
    ck_assert_uint_ge(kept(0).memory_hits, 4);
    ck_assert_uint_ge(kept(1).memory_hits, 4);
    ck_assert_uint_eq(kept(0).disk_hits, 0);
    struct tierce__peers_table_stats read = read_by(1);
    ck_assert_uint_eq(read.chunks, 4);
    ck_assert(
        shows(1, "tierce_peers_reads_total{result=\"served\"}", read.results[TIERCE__PEER_SERVED]));
    ck_assert(shows(1, "tierce_peers_read_bytes_total", read.bytes));
    ck_assert(shows(0, "tierce_peers_served_bytes_total", read.bytes));
    ck_assert(shows(0, "tierce_peers_answers_total{result=\"memory\"}", kept(0).memory_hits));
    ck_assert(shows(1, "tierce_peers_known", 1) && shows(1, "tierce_peers_paused", 0));
    ck_assert(shows(0, "tierce_peers_clients_rejected_total", 0));
    forget_all(1);
    forget(0, 1u << TIERCE_ORIGIN_MEMORY);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_uint_ge(kept(0).disk_hits, 4);
    ck_assert_int_eq(fx_stats(&fx[1]).remote_stored_chunks, 0); /* it is read-only */
    has_no_lease(0);
    has_no_lease(1);
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

/* ---- wrong bytes ----------------------------------------------------------------------------- */

/* Flips a bit of the first chunk in the memory of engine 0. */
static void spoil(uint32_t seed, bool is_header)
{
    struct tierce_chain *chain = fx_chain(&fx[0], seed, CHAIN_BLOCKS, 0);
    struct tierce__key key = fx[0].inner->key;
    memcpy(key.hash, tierce_chain_hash(chain, FX_CHUNK_BLOCKS - 1), sizeof(key.hash));
    struct tierce__buf *buf = tierce__storage_lease(fx[0].engine, &key);
    ck_assert_ptr_nonnull(buf);
    buf->data[is_header ? 100 : 5000] ^= 4;
    tierce__buf_release(buf);
    tierce_chain_destroy(chain);
}

START_TEST(wrong_bytes_are_not_used_and_not_asked_for_again)
{
    bool is_header = _i == 1;
    start_manager(0);
    open_engine(0);
    open_engine(1);
    store(0, 1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    spoil(1, is_header);
    ck_assert_int_lt(load(1, 1, 0), CHAIN_BLOCKS); /* and what is loaded is right */
    if (!is_header)
        ck_assert_int_ge(fx_stats(&fx[1]).checksum_failures, 1);
    uint64_t hits = kept(0).memory_hits;
    ck_assert_int_eq(load(1, 1, 0), 0); /* the beginning is missing */
    ck_assert_uint_eq(kept(0).memory_hits, hits);
    has_no_lease(0);
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

/* The copy of engine 0 is wrong; later engine 1 has a right one. */
START_TEST(the_other_holders_of_a_wrong_chunk_are_asked)
{
    char address[TIERCE__PEER_ADDRESS_BYTES];
    start_manager(0);
    open_engine(0);
    open_engine(2);
    store(0, 1);
    WAIT_FOR(finds(2, 1, CHAIN_BLOCKS));
    spoil(1, false);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_lt(load(2, 1, 0), CHAIN_BLOCKS); /* and none of them is wrong */
    tierce__peer_server_address(tierce__peers_server(fx[0].engine->peers), address);
    WAIT_FOR(recorded("peer_damaged") > 0);
    ck_assert_msg(recorded_with("peer_damaged", address) == 1, "%s", recorded_text());
    WAIT_FOR(read_by(2).results[TIERCE__PEER_DAMAGED] == 1);
    ck_assert_uint_eq(read_by(2).paused_now, 0);
    /* A chunk whose reads are forgotten. */
    struct tierce__key unread = fx[2].inner->key;
    memset(unread.hash, 7, sizeof(unread.hash));
    tierce__storage_quarantine(fx[2].engine, PEERS_LEVEL, &unread, TIERCE_E_CHECKSUM);
    WAIT_FOR(recorded_with("peer_damaged", "all peers are rejected") == 1);
    ck_assert_uint_eq(read_by(2).results[TIERCE__PEER_DAMAGED], 2);
    silence_log();
    open_engine(1);
    store(1, 1);
    WAIT_FOR(load(2, 1, 0) == CHAIN_BLOCKS);
    ck_assert_uint_gt(kept(1).memory_hits, 0);
    for (unsigned i = 0; i < 3; i++)
        close_engine(i);
    running_manager_stop(&manager);
}
END_TEST

/* ---- peers that fail ------------------------------------------------------------------------- */

/* After another leader has begun, one engine has its secret earlier than the other one. */
START_TEST(the_secret_before_is_accepted_for_a_while)
{
    start_manager(0);
    open_engine(0);
    open_engine(1);
    store(0, 1);
    store(0, 2);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS) && finds(1, 2, CHAIN_BLOCKS));
    struct tierce__peers_self *self = tierce__peers_self_of(fx[1].engine->peers);
    tierce__peers_self_set(self, self->session, self->slot, "newer");
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS); /* the reader is ahead */
    ck_assert_uint_eq(read_by(1).results[TIERCE__PEER_REJECTED], 0);
    ck_assert_int_eq(
        tierce__peer_server_set_secret(tierce__peers_server(fx[0].engine->peers), "newer"), 0);
    forget_all(1);
    ck_assert_int_eq(load(1, 2, 0), CHAIN_BLOCKS);
    self->before_until_ns = 0;
    ck_assert_int_eq(
        tierce__peer_server_set_secret(tierce__peers_server(fx[0].engine->peers), "newest"), 0);
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS); /* the holder is ahead */
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

START_TEST(a_peer_that_rejects_us_is_a_miss)
{
    start_manager(0);
    open_engine(0);
    open_engine(1);
    store(0, 1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    struct tierce__peer_server *server = tierce__peers_server(fx[0].engine->peers);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "another"), 0);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "and another"), 0);
    ck_assert_int_eq(load(1, 1, 0), 0);
    ck_assert_uint_eq(kept(0).memory_hits, 0);
    char why[TIERCE__TIER_WHY_BYTES];
    struct tierce__tier *tier = fx[1].engine->levels[PEERS_LEVEL].tier;
    tier->ops->why(tier, why);
    ck_assert_msg(strstr(why, "127.0.0.1") != NULL, "%s", why);
    ck_assert_int_eq(fx_stats(&fx[1]).remotes_in_service_now, 1);
    ck_assert_uint_ge(read_by(1).results[TIERCE__PEER_REJECTED], 1);
    ck_assert(!shows(0, "tierce_peers_clients_rejected_total", 0));
    ck_assert_uint_eq(peers_have(1, 1), 0); /* while it is not asked, its chunks are not found */
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

/* Of an engine whose first secret comes when a read waits for it. */
static _Atomic(struct tierce__peers_self *) joining;
static char first_secret[TIERCE__PEERS_SECRET_BYTES];
static _Atomic unsigned waits;

bool __real_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns);
bool __wrap_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns);

bool __wrap_tierce__cond_wait(struct tierce__cond *cond, struct tierce__lock *lock,
                              uint64_t deadline_ns)
{
    struct tierce__peers_self *self = atomic_load(&joining);
    if (self == NULL || cond != &self->joined)
        return __real_tierce__cond_wait(cond, lock, deadline_ns);
    atomic_fetch_add(&waits, 1);
    memcpy(self->secret, first_secret, sizeof(self->secret));
    return true;
}

static void lose_secret(struct tierce__peers_self *self, uint64_t first_until_ns)
{
    tierce__lock_take(&self->lock);
    memcpy(first_secret, self->secret, sizeof(first_secret));
    self->secret[0] = '\0';
    self->first_until_ns = first_until_ns;
    tierce__lock_drop(&self->lock);
}

/* A lookup may be answered before the engine has joined the directory. */
START_TEST(a_read_just_after_the_start_waits_for_the_secret)
{
    start_manager(0);
    open_engine(0);
    open_engine(1);
    store(0, 1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    struct tierce__peers_self *self = tierce__peers_self_of(fx[1].engine->peers);
    lose_secret(self, TIERCE__DEADLINE_NEVER);
    atomic_store(&joining, self);
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_uint_eq(atomic_load(&waits), 1);
    forget_all(1);
    lose_secret(self, 0); /* later there is no wait */
    ck_assert_int_eq(load(1, 1, 0), 0);
    ck_assert_uint_eq(atomic_load(&waits), 1);
    atomic_store(&joining, NULL);
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

static void live_until_killed(int from, int to)
{
    if (read(from, url, sizeof(url)) != (ssize_t)sizeof(url))
        _exit(1);
    open_engine(0);
    store(0, 1);
    store(0, 2);
    if (write(to, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static void stop(pid_t peer)
{
    int status;
    ck_assert_int_eq(kill(peer, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(peer, &status, WUNTRACED), peer);
}

/* Stops the peer, and reads from it. False: on this busy machine too little time was left to judge
 * it. The peer must run again before the next attempt, because the directory forgets a peer that is
 * silent for two seconds, and then nothing is read from it. */
static bool is_late(pid_t peer)
{
    WAIT_FOR(finds(1, 2, CHAIN_BLOCKS));
    stop(peer);
    uint64_t began_ns = tierce__now_ns();
    ck_assert_int_eq(load(1, 2, 500), 0);
    ck_assert_uint_lt(tierce__now_ns() - began_ns, 30000 * TIERCE__MS_NS);
    if (read_by(1).results[TIERCE__PEER_LATE] > 0)
        return true;
    ck_assert_int_eq(kill(peer, SIGCONT), 0);
    return false;
}

/* It stops while it is asked, and is killed then. */
START_TEST(a_peer_that_hangs_or_is_killed_is_a_miss)
{
    int down[2], up[2], status;
    char byte;
    snprintf(fx[0].folder, sizeof(fx[0].folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx[0].folder); /* this process removes it */
    ck_assert_int_eq(pipe(down), 0);
    ck_assert_int_eq(pipe(up), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        live_until_killed(down[0], up[1]);
    start_manager(0);
    ck_assert_int_eq(write(down[1], url, sizeof(url)), (ssize_t)sizeof(url));
    ck_assert_int_eq(read(up[0], &byte, 1), 1);
    open_engine(1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS) && finds(1, 2, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    stop(pid);
    ck_assert_int_eq(load(1, 2, TIERCE__PEER_PATIENCE_MS / 2), 0); /* too short to judge it */
    ck_assert_uint_eq(read_by(1).paused_now, 0);
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    WAIT_FOR(is_late(pid));
    ck_assert_int_eq(fx_stats(&fx[1]).remotes_in_service_now, 1); /* the other peers serve */
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(load(1, 2, 0), 0);
    WAIT_FOR(finds(1, 2, 0));                      /* by its silence */
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS); /* its own copy */
    WAIT_FOR(fx_stats(&fx[1]).leases_now == 0);
    close_engine(1);
    temp_folder_remove(fx[0].folder);
    running_manager_stop(&manager);
}
END_TEST

/* The chunk is also in a remote store, which is asked in the load that finds the peer dead. */
START_TEST(a_killed_peer_s_chunks_come_from_the_next_store)
{
    int down[2], up[2], status;
    char byte, shared[64] = "/tmp/tierce-test-XXXXXX";
    temp_folder_make(shared);
    snprintf(fx[0].folder, sizeof(fx[0].folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(fx[0].folder);
    ck_assert_int_eq(pipe(down), 0);
    ck_assert_int_eq(pipe(up), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        live_until_killed(down[0], up[1]);
    start_manager(0);
    size_t used = strlen(url);
    snprintf(url + used, sizeof(url) - used, " file://%s", shared);
    ck_assert_int_eq(write(down[1], url, sizeof(url)), (ssize_t)sizeof(url));
    ck_assert_int_eq(read(up[0], &byte, 1), 1);
    open_engine(1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS) && finds(1, 2, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS); /* now they are connected */
    ck_assert_uint_eq(read_by(1).results[TIERCE__PEER_FAILED], 0);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(load(1, 2, 0), CHAIN_BLOCKS);
    ck_assert_uint_gt(read_by(1).results[TIERCE__PEER_FAILED], 0); /* the peer was asked first */
    WAIT_FOR(fx_stats(&fx[1]).leases_now == 0);
    close_engine(1);
    temp_folder_remove(fx[0].folder);
    temp_folder_remove(shared);
    running_manager_stop(&manager);
}
END_TEST

/* A load reads a chunk by ranges. */
START_TEST(ranges_that_nobody_has_are_looked_up_once)
{
    start_manager(0);
    open_engine(1);
    WAIT_FOR(finds(1, 1, 0));
    struct tierce__key key = fx[1].inner->key;
    memset(key.hash, 7, sizeof(key.hash));
    struct tierce__buf *buf = tierce__storage_alloc(fx[1].engine, 4096);
    ck_assert_ptr_nonnull(buf);
    uint64_t before = lookups(), began_ns = tierce__now_ns();
    for (unsigned i = 0; i < 8; i++)
        ck_assert_int_eq(tierce__storage_read_head(fx[1].engine, PEERS_LEVEL, &key, buf,
                                                   tierce__deadline_in_ms(LIMIT_MS)),
                         TIERCE_E_MISS);
    uint64_t seconds = (tierce__now_ns() - began_ns) / (TIERCE__PEERS_ABSENT_MS * TIERCE__MS_NS);
    uint64_t asked = lookups() - before;
    ck_assert_msg(asked >= 1 && asked <= 1 + seconds, "%" PRIu64, asked);
    tierce__buf_release(buf);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

/* ---- managers -------------------------------------------------------------------------------- */

/* The other manager has another secret, and knows nobody at first. */
START_TEST(a_manager_ends_and_another_begins)
{
    start_manager(0);
    uint16_t port = manager.ports.meta_grpc;
    open_engine(0);
    open_engine(1);
    store(0, 1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    running_manager_stop(&manager);
    (void)load(1, 1, 5000); /* known places, or a miss */
    forget_all(1);
    start_manager(port);
    store(0, 2);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS) && finds(1, 2, CHAIN_BLOCKS));
    WAIT_FOR(load(1, 1, 0) == CHAIN_BLOCKS);
    WAIT_FOR(load(1, 2, 0) == CHAIN_BLOCKS);
    has_no_lease(0);
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

/* A read of a chunk whose holder is known succeeds, but the next lookup would fail again. */
START_TEST(only_a_manager_returns_peers_to_service)
{
    start_manager(0);
    uint16_t port = manager.ports.meta_grpc;
    open_engine(0);
    fx_open(
        &fx[1], true,
        (const char *[]){"remote.urls", url, "breaker.retry", "50ms", "breaker.errors", "1", NULL});
    store(0, 1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS) && load(1, 1, 0) == CHAIN_BLOCKS);
    running_manager_stop(&manager);
    WAIT_FOR(load(1, 2, 500) == 0 && fx_stats(&fx[1]).remotes_in_service_now == 0);
    _Atomic uint64_t *next = &fx[1].engine->levels[PEERS_LEVEL].health.breaker.open_until_ns;
    for (int probes = 0; probes < 3; probes++) {
        uint64_t until = atomic_load(next);
        WAIT_FOR(atomic_load(next) != until);
    }
    ck_assert_int_eq(fx_stats(&fx[1]).breaker_recoveries, 0);
    start_manager(port);
    WAIT_FOR(fx_stats(&fx[1]).remotes_in_service_now == 1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

/* ---- results --------------------------------------------------------------------------------- */

START_TEST(only_a_failure_of_the_peer_pauses_it)
{
    static const struct {
        int status;
        bool is_open;
        uint32_t given_ms;
        enum tierce__peer_result result;
        bool pauses;
    } cases[] = {
        {0, true, 1000, TIERCE__PEER_SERVED, false},
        {TIERCE_E_MISS, true, 1000, TIERCE__PEER_MISSED, false},
        {TIERCE_E_LIMIT, true, 1000, TIERCE__PEER_BUSY, false},
        {TIERCE_E_FORMAT, true, 1000, TIERCE__PEER_LENGTH, false},
        {TIERCE_E_FORMAT, false, 1000, TIERCE__PEER_FAILED, true}, /* no reply of the protocol */
        {-ENOMEM, false, 1000, TIERCE__PEER_UNTRIED, false},
        {-EMFILE, false, 1000, TIERCE__PEER_UNTRIED, false},
        {TIERCE_E_DEADLINE, false, 0, TIERCE__PEER_UNTRIED, false},
        {TIERCE_E_DEADLINE, false, TIERCE__PEER_PATIENCE_MS - 1, TIERCE__PEER_UNTRIED, false},
        {TIERCE_E_DEADLINE, false, TIERCE__PEER_PATIENCE_MS, TIERCE__PEER_LATE, true},
        {TIERCE_E_REFUSED, false, 1000, TIERCE__PEER_REJECTED, true},
        {TIERCE_E_DOWN, false, 1000, TIERCE__PEER_FAILED, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct tierce__peers_table *table;
        ck_assert_int_eq(tierce__peers_table_create(&table), 0);
        struct tierce__peer_ref peer = tierce__peers_table_name(table, "10.0.0.1:81");
        enum tierce__peer_result result = tierce__peer_result_of(cases[i].status, cases[i].is_open,
                                                                 cases[i].given_ms * TIERCE__MS_NS);
        ck_assert_msg(result == cases[i].result, "case %zu: %d", i, (int)result);
        tierce__peers_table_note(table, peer, result);
        ck_assert_msg(tierce__peers_table_is_out(table, peer) == cases[i].pauses, "case %zu", i);
        tierce__peers_table_destroy(table);
    }
}
END_TEST

START_TEST(a_wrong_chunk_is_remembered_for_each_peer)
{
    struct tierce__peers_table *table;
    struct tierce__chunk_number key = {1, 2}, other = {3, 2 + TIERCE__PEERS_WRONGS};
    ck_assert_int_eq(tierce__peers_table_create(&table), 0);
    struct tierce__peer_ref peers[TIERCE__PEERS_HOLDERS_MAX],
        a = tierce__peers_table_name(table, "10.0.0.1:81"),
        b = tierce__peers_table_name(table, "10.0.0.2:81"), both[] = {a, b};
    tierce__peers_table_put(table, key, both, 2);
    tierce__peers_table_served(table, key, a);
    tierce__peers_table_put(table, key, both, 2); /* another lookup meanwhile */
    ck_assert_uint_eq(tierce__peers_table_reject_served(table, key, peers), 1);
    struct tierce__peers_table_stats stats;
    tierce__peers_table_stats(table, &stats);
    ck_assert_uint_eq(stats.results[TIERCE__PEER_DAMAGED], 1);
    ck_assert(peers[0].slot == a.slot && peers[0].generation == a.generation);
    ck_assert(tierce__peers_table_is_rejected(table, key, a));
    ck_assert(!tierce__peers_table_is_rejected(table, key, b));
    ck_assert_uint_eq(tierce__peers_table_get(table, key, peers), 0); /* it is looked up again */
    tierce__peers_table_reject(table, key, b);
    ck_assert(tierce__peers_table_is_rejected(table, key, a) &&
              tierce__peers_table_is_rejected(table, key, b));
    for (unsigned i = 0; i < TIERCE__PEERS_HOLDERS_MAX; i++) { /* the oldest ones are forgotten */
        char name[32];
        snprintf(name, sizeof(name), "10.0.1.%u:81", i);
        peers[i] = tierce__peers_table_name(table, name);
        tierce__peers_table_reject(table, key, peers[i]);
    }
    for (unsigned i = 0; i < TIERCE__PEERS_HOLDERS_MAX; i++)
        ck_assert(tierce__peers_table_is_rejected(table, key, peers[i]));
    ck_assert(!tierce__peers_table_is_rejected(table, key, a));
    ck_assert(!tierce__peers_table_is_rejected(table, other, a)); /* in the same place */
    ck_assert_uint_eq(tierce__peers_table_reject_served(table, other, peers), 0);
    ck_assert(tierce__peers_table_is_rejected(table, other, a) && /* who served it is unknown */
              tierce__peers_table_is_rejected(table, other, b));
    ck_assert(!tierce__peers_table_is_rejected(table, key, peers[0])); /* it was replaced */
    tierce__peers_table_destroy(table);
}
END_TEST

/* ---- links ----------------------------------------------------------------------------------- */

START_TEST(reads_are_spread_over_links_that_work)
{
    struct tierce__peers_table *table;
    char host[TIERCE__PEERS_ADDRESS_BYTES];
    uint16_t port;
    bool left;
    ck_assert_int_eq(tierce__peers_table_create(&table), 0);
    struct tierce__peer_ref peer = tierce__peers_table_name(table, "10.0.0.1:81,[::2]:82,c:83");
    ck_assert(tierce__peers_table_address(table, peer, 1, host, &port));
    ck_assert_str_eq(host, "::2");
    ck_assert_uint_eq(port, 82);
    ck_assert(tierce__peers_table_address(table, peer, 2, host, &port) && port == 83);
    ck_assert(!tierce__peers_table_address(table, peer, 3, host, &port));
    unsigned counts[3] = {0};
    for (unsigned i = 0; i < 9; i++) /* none has ended: the fewest in progress */
        counts[tierce__peers_table_begin(table, peer, 0, &left)]++;
    ck_assert(left && counts[0] == 3 && counts[1] == 3 && counts[2] == 3);
    tierce__peers_table_end(table, peer, 1, TIERCE__PEER_SERVED, 0, 0);
    ck_assert_int_eq(tierce__peers_table_begin(table, peer, 0, &left), 1); /* it was faster */
    for (unsigned i = 0; i < 3; i++)
        tierce__peers_table_end(table, peer, 0, TIERCE__PEER_FAILED, 0, 0);
    for (unsigned i = 0; i < 6; i++) /* link 0 is paused, although it has no reads */
        ck_assert_int_ne(tierce__peers_table_begin(table, peer, 0, &left), 0);
    ck_assert(!tierce__peers_table_is_out(table, peer));
    struct tierce__peers_table_stats stats;
    tierce__peers_table_stats(table, &stats);
    ck_assert(stats.links_paused_now == 1 && stats.paused_now == 0);
    ck_assert_int_eq(tierce__peers_table_begin(table, peer, 1u << 1 | 1u << 2, &left), 0);
    ck_assert(!left); /* the last one is tried all the same */
    tierce__peers_table_end(table, peer, 0, TIERCE__PEER_SERVED, 0, 0);
    ck_assert_int_eq(tierce__peers_table_begin(table, peer, 0, &left), 0); /* it is in service */
    ck_assert_int_eq(tierce__peers_table_begin(table, peer, 7, &left), -1);
    tierce__peers_table_destroy(table);
}
END_TEST

START_TEST(a_faster_link_gets_more_reads)
{
    struct tierce__peers_table *table;
    bool left;
    unsigned counts[2] = {0};
    ck_assert_int_eq(tierce__peers_table_create(&table), 0);
    struct tierce__peer_ref peer = tierce__peers_table_name(table, "10.0.0.1:81,10.1.0.1:81");
    for (unsigned i = 0; i < 2; i++) { /* link 1 delivers a quarter of link 0 */
        int at = tierce__peers_table_begin(table, peer, 0, &left);
        tierce__peers_table_end(table, peer, (uint32_t)at, TIERCE__PEER_SERVED, 1 << 20,
                                at == 0 ? 1000000 : 4000000);
    }
    for (unsigned i = 0; i < 10; i++)
        counts[tierce__peers_table_begin(table, peer, 0, &left)]++;
    ck_assert_msg(counts[0] == 8 && counts[1] == 2, "%u, %u", counts[0], counts[1]);
    tierce__peers_table_destroy(table);
}
END_TEST

/* ---- the table of peers ---------------------------------------------------------------------- */

START_TEST(a_failure_marks_one_peer_alone)
{
    struct tierce__peers_table *table;
    char host[TIERCE__PEERS_ADDRESS_BYTES];
    uint16_t port;
    static const char *const wrong[] = {"",        "host",    "host:",  ":1",
                                        "host:0",  "a:70000", "::1:80", "host:1x",
                                        "a:1,",    ",a:1",    "a:1,b",  "a:1,b:2,c:3,d:4,e:5",
                                        "host: 1", "[]:1"};
    ck_assert_int_eq(tierce__peers_table_create(&table), 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        ck_assert_msg(tierce__peers_table_name(table, wrong[i]).generation == 0, "%s", wrong[i]);
    struct tierce__peer_ref a = tierce__peers_table_name(table, "[::1]:80"),
                            b = tierce__peers_table_name(table, "10.0.0.1:81"), again;
    again = tierce__peers_table_name(table, "[::1]:80");
    ck_assert(again.slot == a.slot && again.generation == a.generation && b.slot != a.slot);
    ck_assert(tierce__peers_table_address(table, a, 0, host, &port));
    ck_assert_str_eq(host, "::1");
    ck_assert_uint_eq(port, 80);
    ck_assert(tierce__peers_table_may_ask(table, a));
    tierce__peers_table_note(table, a, TIERCE__PEER_FAILED);
    ck_assert(!tierce__peers_table_may_ask(table, a));
    ck_assert(tierce__peers_table_is_out(table, a) && !tierce__peers_table_is_out(table, b));
    uint64_t first_ns = tierce__now_ns();
    for (unsigned i = 0; i < 8; i++) /* calls that were in progress: one failure */
        tierce__peers_table_note(table, a, TIERCE__PEER_FAILED);
    WAIT_FOR(!tierce__peers_table_is_out(table, a));
    ck_assert_uint_lt(tierce__now_ns() - first_ns, 8000000000u); /* not the longest pause, 16 s */
    ck_assert(tierce__peers_table_may_ask(table, a));
    ck_assert(!tierce__peers_table_may_ask(table, a)); /* the others wait for its answer */
    tierce__peers_table_note(table, a, TIERCE__PEER_FAILED);
    ck_assert(tierce__peers_table_may_ask(table, b));
    tierce__peers_table_note(table, b, TIERCE__PEER_BUSY); /* no mark */
    ck_assert(tierce__peers_table_may_ask(table, b));
    tierce__peers_table_note(table, a, TIERCE__PEER_SERVED);
    ck_assert(tierce__peers_table_may_ask(table, a));
    struct tierce__chunk_number key = {1, 2}, other = {3, 2};
    struct tierce__peer_ref got[TIERCE__PEERS_HOLDERS_MAX], both[] = {a, b};
    tierce__peers_table_put(table, key, both, 2);
    ck_assert_uint_eq(tierce__peers_table_get(table, key, got), 2);
    ck_assert_uint_eq(tierce__peers_table_get(table, other, got), 0);
    tierce__peers_table_drop(table, key, a);
    ck_assert_uint_eq(tierce__peers_table_get(table, key, got), 1);
    ck_assert_uint_eq(got[0].slot, b.slot);
    tierce__peers_table_missed(table, key); /* b may have it */
    ck_assert(!tierce__peers_table_is_absent(table, key));
    tierce__peers_table_drop(table, key, b);
    ck_assert(!tierce__peers_table_is_absent(table, key));
    tierce__peers_table_missed(table, key);
    ck_assert(tierce__peers_table_is_absent(table, key));
    ck_assert(!tierce__peers_table_is_absent(table, other)); /* in the same place */
    tierce__peers_table_put(table, key, both, 2);
    ck_assert(!tierce__peers_table_is_absent(table, key));
    for (unsigned i = 0; i < TIERCE__PEERS_MAX; i++) { /* others take their slots */
        snprintf(host, sizeof(host), "10.1.0.1:%u", 1000 + i);
        ck_assert_uint_ne(tierce__peers_table_name(table, host).generation, 0);
    }
    ck_assert(!tierce__peers_table_address(table, b, 0, host, &port));
    ck_assert(!tierce__peers_table_may_ask(table, b));
    ck_assert_uint_eq(tierce__peers_table_get(table, key, got), 0);
    struct tierce__peers_table_stats stats;
    tierce__peers_table_stats(table, &stats);
    ck_assert_uint_eq(stats.results[TIERCE__PEER_BUSY], 1);
    ck_assert_uint_eq(stats.known_now, TIERCE__PEERS_MAX);
    tierce__peers_table_destroy(table);
}
END_TEST

/* ---- configuration --------------------------------------------------------------------------- */

static void is_refused_with(const char *urls, const char *param, const char *value,
                            const char *word)
{
    struct tierce_config *config =
        fx_config("", (const char *[]){"remote.urls", urls, param, value, NULL});
    struct tierce_engine *engine;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, word) != NULL, "%s", why);
    tierce_config_destroy(config);
}

static void is_refused(const char *urls, const char *listen, const char *word)
{
    is_refused_with(urls, "peers.listen", listen, word);
}

START_TEST(a_wrong_configuration_is_refused)
{
    is_refused("peers://127.0.0.1:1 peers://127.0.0.1:2", "", "only one");
    is_refused("peers://127.0.0.1:1/a/b", "", "GROUP");
    is_refused("peers://127.0.0.1", "", "port");
    is_refused("peers://127.0.0.1:1?ttl=1h", "", "ttl");
    is_refused("peers://127.0.0.1:1?codec=lossless", "", "stores nothing; remove codec");
    is_refused("peers://127.0.0.1:1?token_file=/none", "",
               "token_file: /none cannot be read: No such file");
    is_refused("peers+tls://127.0.0.1:1?ca_file=/none", "", "/none");
    is_refused("peers://127.0.0.1:1", "127.0.0.1:x", "peers.listen");
    is_refused("peers://127.0.0.1:1", "192.0.2.77", "set an address of this host");
    is_refused("peers://127.0.0.1:1", "127.0.0.1,192.0.2.77", "peers.listen");
    is_refused("peers://127.0.0.1:1", "127.0.0.1,", "commas");
    is_refused("peers://127.0.0.1:1", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5",
               "at most");
    is_refused("peers://127.0.0.1:1", "0.0.0.0:7000", "address of this host");
    is_refused("peers://127.0.0.1:1", "[::]", "address of this host");
    is_refused_with("peers://127.0.0.1:1", "peers.zone", "eu//rack", "eu-1/row-2/rack-7");
    is_refused_with("", "peers.zone", "eu//rack", "is invalid"); /* also without peers */
}
END_TEST

/* The engine reads from others and does not serve them. */
START_TEST(without_a_way_to_a_manager)
{
    record_log(TIERCE_LOG_WARN);
    fx_open(&fx[0], true, (const char *[]){"remote.urls", "peers://255.255.255.255:1", NULL});
    ck_assert_uint_eq(recorded_with("peers_not_served", "set peers.listen"), 1);
    ck_assert_ptr_null(tierce__peers_server(fx[0].engine->peers));
    silence_log();
    close_engine(0);
}
END_TEST

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

/* Puts a file in the place of one of the system, for this process alone. */
static bool replace(const char *system, const char *path, const char *text)
{
    write_file(path, text);
    return mount(path, system, NULL, MS_BIND, NULL) == 0;
}

/* A manager whose name is registered later than an engine starts. */
START_TEST(a_manager_whose_name_appears_later)
{
    char folder[] = "/tmp/tierce-names-XXXXXX", hosts[64], order[64];
    temp_folder_make(folder);
    snprintf(hosts, sizeof(hosts), "%s/hosts", folder);
    snprintf(order, sizeof(order), "%s/nsswitch.conf", folder);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        !replace("/etc/hosts", hosts, "127.0.0.1 localhost\n") ||
        !replace("/etc/nsswitch.conf", order, "hosts: files\n")) {
        printf("names are not tested: this process may not mount files\n");
        temp_folder_remove(folder);
        return;
    }
    start_manager(0);
    snprintf(url, sizeof(url), "peers://manager.later:%u", manager.ports.meta_grpc);
    record_log(TIERCE_LOG_WARN);
    open_engine(0);
    ck_assert_ptr_null(tierce__peers_server(fx[0].engine->peers));
    ck_assert_uint_eq(recorded_with("peers_not_served", "until one does"), 1);
    silence_log();
    store(0, 1);
    write_file(hosts, "127.0.0.1 localhost manager.later\n");
    WAIT_FOR(tierce__peers_server(fx[0].engine->peers) != NULL);
    open_engine(1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, LIMIT_MS), CHAIN_BLOCKS);
    ck_assert_uint_gt(read_by(1).bytes, 0);
    close_engine(1);
    close_engine(0);
    running_manager_stop(&manager);
    ck_assert_int_eq(umount("/etc/hosts"), 0);
    ck_assert_int_eq(umount("/etc/nsswitch.conf"), 0);
    temp_folder_remove(folder);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("peers");
    Suite *suite = suite_create("peers");
    tcase_set_timeout(t, 180);
    tcase_add_test(t, chunks_come_from_memory_and_disk_of_the_other);
    tcase_add_loop_test(t, wrong_bytes_are_not_used_and_not_asked_for_again, 0, 2);
    tcase_add_test(t, the_other_holders_of_a_wrong_chunk_are_asked);
    tcase_add_test(t, the_secret_before_is_accepted_for_a_while);
    tcase_add_test(t, only_a_failure_of_the_peer_pauses_it);
    tcase_add_test(t, reads_are_spread_over_links_that_work);
    tcase_add_test(t, a_faster_link_gets_more_reads);
    tcase_add_test(t, a_wrong_chunk_is_remembered_for_each_peer);
    tcase_add_test(t, a_peer_that_rejects_us_is_a_miss);
    tcase_add_test(t, a_read_just_after_the_start_waits_for_the_secret);
    tcase_add_test(t, ranges_that_nobody_has_are_looked_up_once);
    tcase_add_test(t, a_peer_that_hangs_or_is_killed_is_a_miss);
    tcase_add_test(t, a_killed_peer_s_chunks_come_from_the_next_store);
    tcase_add_test(t, a_manager_ends_and_another_begins);
    tcase_add_test(t, only_a_manager_returns_peers_to_service);
    tcase_add_test(t, a_failure_marks_one_peer_alone);
    tcase_add_test(t, a_wrong_configuration_is_refused);
    tcase_add_test(t, without_a_way_to_a_manager);
    tcase_add_test(t, a_manager_whose_name_appears_later);
    suite_add_tcase(suite, t);
    return check_main(suite);
}
