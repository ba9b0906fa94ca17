/* SPDX-License-Identifier: Apache-2.0 */
/* An engine's chunks as objects for other engines: found in memory and on disk, lent as long as
 * they are sent, bounded, and only for those who know a secret. */
#include "connector_harness.h"
#include "engine_fixture.h"
#include "raw_transfer.h"
#include "silent_log.h"
#include "wait_for.h"

#include "core/chunk/header.h"
#include "core/key/key_text.h"
#include "engine/peer/peer_server.h"
#include "store/remote/transfer/transfer_link.h"

#include <sys/stat.h>
#include <tierce/operate.h>

enum { CHAIN_BLOCKS = 4 * FX_CHUNK_BLOCKS, LIMIT_MS = 60000 };

static struct fixture fx;
static struct tierce_chain *chain;
static struct tierce__peer_keeper *keeper;

static void open_keeper(const struct tierce__peer_keeper_opts *opts)
{
    fx_open(&fx, true, NULL);
    chain = fx_chain(&fx, 1, CHAIN_BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, CHAIN_BLOCKS, fx_ids, false), CHAIN_BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, LIMIT_MS), 0);
    ck_assert_int_eq(tierce__peer_keeper_create(&keeper, fx.engine, opts), 0);
}

/* No pin is left. */
static void close_keeper(void)
{
    struct tierce__peer_keeper_stats stats;
    tierce__peer_keeper_stats(keeper, &stats);
    ck_assert_uint_eq(stats.leases_now, 0);
    ck_assert_uint_eq(stats.reads_now, 0);
    WAIT_FOR(fx_stats(&fx).leases_now == 0); /* chunks may be on their way to the disk */
    tierce__peer_keeper_destroy(keeper);
    tierce_chain_destroy(chain);
    fx_close(&fx);
    fx_remove(&fx);
}

static const struct tierce__peer_keeper_opts no_bounds = {.size = sizeof(no_bounds)};

static struct tierce__peer_keeper_stats stats_now(void)
{
    struct tierce__peer_keeper_stats stats;
    tierce__peer_keeper_stats(keeper, &stats);
    return stats;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct call {
    struct tierce__keeper_call base;
    char name[TIERCE__KEY_TEXT_BYTES];
    _Atomic int answers;
};

static void on_answer(struct tierce__keeper_call *base)
{
    atomic_fetch_add(&((struct call *)base->arg)->answers, 1);
}

/* The name of a chunk of the chain. */
static void name_chunk(char name[TIERCE__KEY_TEXT_BYTES], size_t chunk)
{
    const struct tierce__key *key = &fx.inner->key;
    const uint8_t *hash = tierce_chain_hash(chain, (chunk + 1) * FX_CHUNK_BLOCKS - 1);
    ck_assert_int_gt(
        tierce__key_text_format(name, tierce__namespaces_digest(fx.engine->namespaces, key->ns),
                                &key->shard, hash),
        0);
}

static uint32_t limit_ms = LIMIT_MS;

static void begin(struct call *call, const char *space, const char *name)
{
    struct tierce__keeper *base = tierce__peer_keeper_get(keeper);
    memset(call, 0, sizeof(*call));
    snprintf(call->name, sizeof(call->name), "%s", name);
    call->base = (struct tierce__keeper_call){.space = {.text = space, .bytes = strlen(space)},
                                              .name = {call->name, strlen(call->name)},
                                              .deadline_ns = tierce__deadline_in_ms(limit_ms),
                                              .done = on_answer,
                                              .arg = call};
    base->ops->find(base, &call->base);
}

static int end(struct call *call)
{
    WAIT_FOR(atomic_load(&call->answers) > 0);
    ck_assert_int_eq(atomic_load(&call->answers), 1);
    return call->base.status;
}

static void begin_range(struct call *call, size_t chunk, uint64_t offset, uint64_t length)
{
    struct tierce__keeper *base = tierce__peer_keeper_get(keeper);
    *call = (struct call){.base = {.space = {TIERCE__PEER_SPACE, strlen(TIERCE__PEER_SPACE)},
                                   .offset = offset,
                                   .length = length,
                                   .deadline_ns = tierce__deadline_in_ms(LIMIT_MS),
                                   .done = on_answer,
                                   .arg = call}};
    name_chunk(call->name, chunk);
    call->base.name = (struct tierce_plugin_name){call->name, strlen(call->name)};
    base->ops->find(base, &call->base);
}

static int find_range(struct call *call, size_t chunk, uint64_t offset, uint64_t length)
{
    begin_range(call, chunk, offset, length);
    return end(call);
}

static int find(struct call *call, size_t chunk)
{
    char name[TIERCE__KEY_TEXT_BYTES];
    name_chunk(name, chunk);
    begin(call, TIERCE__PEER_SPACE, name);
    return end(call);
}

static int find_named(const char *space, const char *name)
{
    struct call call;
    begin(&call, space, name);
    return end(&call);
}

static void release(struct call *call)
{
    struct tierce__keeper *base = tierce__peer_keeper_get(keeper);
    base->ops->release(base, &call->base.lease);
}

static void forget_memory(void)
{
    ck_assert_int_gt(tierce_engine_clear(fx.engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
}

/* ---- finding --------------------------------------------------------------------------------- */

START_TEST(memory_and_disk_hold_the_same_bytes)
{
    struct call memory[4], disk[4];
    open_keeper(&no_bounds);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(find(&memory[i], i), 0);
    forget_memory(); /* the leases hold what was evicted */
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(find(&disk[i], i), 0);
        ck_assert_uint_eq(memory[i].base.lease.bytes, disk[i].base.lease.bytes);
        ck_assert_ptr_ne(memory[i].base.lease.data, disk[i].base.lease.data);
        ck_assert_int_eq(
            memcmp(memory[i].base.lease.data, disk[i].base.lease.data, disk[i].base.lease.bytes),
            0);
    }
    ck_assert_uint_eq(stats_now().memory_hits, 4);
    ck_assert_uint_eq(stats_now().disk_hits, 4);
    ck_assert_uint_eq(stats_now().leases_now, 8);
    for (size_t i = 0; i < 4; i++) {
        release(&memory[i]);
        release(&disk[i]);
    }
    close_keeper();
}
END_TEST

/* Other chunks take the place of a lent one. */
START_TEST(a_lent_chunk_keeps_its_bytes_when_it_is_evicted)
{
    struct call call;
    open_keeper(&no_bounds);
    ck_assert_int_eq(find(&call, 0), 0);
    size_t bytes = call.base.lease.bytes;
    uint8_t *copy = malloc(bytes);
    memcpy(copy, call.base.lease.data, bytes);
    forget_memory();
    for (uint32_t seed = 2; seed < 80; seed++) {
        struct tierce_chain *other = fx_chain(&fx, seed, CHAIN_BLOCKS, 0);
        ck_assert_int_ge(fx_store(&fx, other, CHAIN_BLOCKS, fx_ids, false), 0);
        tierce_chain_destroy(other);
    }
    ck_assert_int_eq(tierce_engine_flush(fx.engine, LIMIT_MS), 0);
    ck_assert_int_gt(fx_stats(&fx).memory_evictions, 0);
    ck_assert_int_eq(memcmp(copy, call.base.lease.data, bytes), 0);
    release(&call);
    free(copy);
    close_keeper();
}
END_TEST

START_TEST(invalid_and_unknown_names)
{
    char name[TIERCE__KEY_TEXT_BYTES];
    struct call call;
    struct tierce__keeper *base;
    uint64_t bytes = 0;
    open_keeper(&no_bounds);
    base = tierce__peer_keeper_get(keeper);
    name_chunk(name, 0);
    uint32_t namespaces = tierce__namespaces_count(fx.engine->namespaces);
    const struct tierce_plugin_name right = {name, strlen(name)}, ours = {"chunks", 6},
                                    other = {"memory", 6};
    ck_assert(base->ops->has(base, &ours));
    ck_assert(!base->ops->has(base, &other));
    ck_assert_int_eq(base->ops->measure(base, &ours, &right, &bytes), 0);
    ck_assert_int_eq(find(&call, 0), 0);
    ck_assert_uint_eq(bytes, call.base.lease.bytes);
    release(&call);
    ck_assert_int_eq(find_named("memory", name), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(find_named(TIERCE__PEER_SPACE, "../../etc/passwd"), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(find_named(TIERCE__PEER_SPACE, ""), TIERCE_E_ARGUMENT);
    char text[2 * TIERCE_HASH_BYTES + 1], *digit;
    const uint8_t *digest = tierce__namespaces_digest(fx.engine->namespaces, fx.inner->key.ns);
    for (size_t i = 0; i < TIERCE_HASH_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    digit = strstr(name, text);
    ck_assert_ptr_nonnull(digit);
    *digit = *digit == '7' ? '8' : '7';
    ck_assert_int_eq(find_named(TIERCE__PEER_SPACE, name), TIERCE_E_MISS);
    ck_assert_uint_eq(tierce__namespaces_count(fx.engine->namespaces), namespaces);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_BYPASS), 0);
    ck_assert_int_eq(find(&call, 0), TIERCE_E_MISS);
    ck_assert_int_eq(tierce_engine_set_mode(fx.engine, TIERCE_MODE_NORMAL), 0);
    struct tierce__keeper_room room = {0};
    ck_assert_int_eq(base->ops->make(base, &room, &ours, &right, 4096), TIERCE_E_REFUSED);
    close_keeper();
}
END_TEST

/* ---- ranges ---------------------------------------------------------------------------------- */

static uint64_t disk_bytes(void)
{
    struct tierce__tier *tier = fx.engine->levels[1].tier;
    struct tierce__tier_stats stats = {0};
    tier->ops->stats(tier, &stats);
    return stats.get_bytes;
}

/* A reader that asks for a chunk in ranges makes the disk read it once. */
START_TEST(a_range_reads_its_own_pages)
{
    struct call memory, disk;
    open_keeper(&no_bounds);
    ck_assert_int_eq(find(&memory, 0), 0);
    const uint64_t bytes = memory.base.lease.bytes, page = TIERCE__CHUNK_ALIGN;
    ck_assert_uint_ge(bytes, 3 * page);
    forget_memory();
    uint64_t before = disk_bytes();
    for (uint64_t at = 0; at < bytes; at += page) {
        ck_assert_int_eq(find_range(&disk, 0, at, page), 0);
        ck_assert_uint_eq(disk.base.lease.bytes, bytes);
        ck_assert_int_eq(memcmp(memory.base.lease.data + at, disk.base.lease.data + at, page), 0);
        release(&disk);
    }
    ck_assert_uint_eq(disk_bytes() - before, bytes);
    before = disk_bytes();
    ck_assert_int_eq(find_range(&disk, 0, page - 1, 2), 0); /* the ends of two pages */
    ck_assert_int_eq(memcmp(memory.base.lease.data + page - 1, disk.base.lease.data + page - 1, 2),
                     0);
    release(&disk);
    ck_assert_uint_eq(disk_bytes() - before, 2 * page);
    static const uint64_t outside[][2] = {{UINT64_MAX, 1}, {1, UINT64_MAX}, {0, 1}, {4096, 1}};
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        uint64_t offset = outside[i][0], length = outside[i][1];
        ck_assert_int_eq(
            find_range(&disk, 0, i < 2 ? offset : bytes - offset, i < 2 ? length : offset + length),
            TIERCE_E_FORMAT);
    }
    ck_assert_uint_eq(stats_now().lengths, 4);
    ck_assert_uint_eq(disk_bytes() - before, 2 * page);
    release(&memory);
    close_keeper();
}
END_TEST

/* ---- a disk that fails ----------------------------------------------------------------------- */

/* The deadline is the reader's: however short it is, it says nothing about the disk. */
START_TEST(a_short_deadline_does_not_count_against_the_disk)
{
    enum { READS = 40 }; /* more than breaker.errors and breaker.window_errors */
    static struct call calls[READS];
    char name[TIERCE__KEY_TEXT_BYTES];
    open_keeper(&(struct tierce__peer_keeper_opts){.size = sizeof(no_bounds), .disk_reads = READS});
    forget_memory();
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    tierce__fault_set(fault, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_HANG, .times = READS});
    name_chunk(name, 0);
    limit_ms = 50;
    for (size_t i = 0; i < READS; i++)
        begin(&calls[i], TIERCE__PEER_SPACE, name);
    limit_ms = LIMIT_MS;
    for (size_t i = 0; i < READS; i++)
        ck_assert_int_eq(end(&calls[i]), TIERCE_E_MISS);
    ck_assert_uint_eq(stats_now().errors, READS);
    ck_assert(tierce__breaker_closed(&fx.engine->levels[1].health.breaker));
    tierce__fault_set(fault, TIERCE__STORE_GET, NULL);
    ck_assert_int_eq(find(&calls[0], 0), 0);
    release(&calls[0]);
    close_keeper();
}
END_TEST

/* A reader does not ask a host again for a while that answers with a failure; its memory is as good
 * as before. */
START_TEST(a_failed_disk_is_a_miss)
{
    enum { READS = 8 };
    struct call call;
    open_keeper(&no_bounds);
    forget_memory();
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    tierce__fault_set(fault, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO});
    silence_log();
    for (size_t i = 0; i < READS; i++)
        ck_assert_int_eq(find(&call, 0), TIERCE_E_MISS);
    ck_assert(!tierce__breaker_closed(&fx.engine->levels[1].health.breaker));
    ck_assert_uint_eq(stats_now().errors, READS);
    ck_assert_uint_eq(stats_now().misses, 0);
    close_keeper();
}
END_TEST

/* ---- admission ------------------------------------------------------------------------------- */

START_TEST(reads_from_disk_are_bounded_by_their_number)
{
    struct call first, second, third;
    char name[TIERCE__KEY_TEXT_BYTES];
    open_keeper(&(struct tierce__peer_keeper_opts){.size = sizeof(no_bounds), .disk_reads = 1});
    forget_memory();
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    tierce__fault_set(fault, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_HANG, .times = 1});
    name_chunk(name, 0);
    limit_ms = 1500; /* the disk does not answer until then */
    begin(&first, TIERCE__PEER_SPACE, name);
    limit_ms = LIMIT_MS;
    ck_assert_uint_eq(stats_now().reads_now, 1);
    ck_assert_int_eq(find(&second, 1), TIERCE_E_LIMIT);
    ck_assert_uint_eq(stats_now().busy, 1);
    ck_assert_int_eq(atomic_load(&first.answers), 0);
    ck_assert_int_eq(end(&first), TIERCE_E_MISS);
    ck_assert_uint_eq(stats_now().errors, 1);
    ck_assert_int_eq(find(&third, 1), 0);
    release(&third);
    close_keeper();
}
END_TEST

START_TEST(reads_from_disk_are_bounded_by_bytes_a_second)
{
    struct call call;
    open_keeper(
        &(struct tierce__peer_keeper_opts){.size = sizeof(no_bounds), .disk_bytes_per_s = 1});
    ck_assert_int_eq(find(&call, 3), 0); /* memory is not bounded by it */
    release(&call);
    forget_memory();
    ck_assert_int_eq(find(&call, 0), 0); /* paid for in the hours to come */
    release(&call);
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(find(&call, i), TIERCE_E_LIMIT);
    ck_assert_uint_eq(stats_now().disk_hits, 1);
    ck_assert_uint_eq(stats_now().busy, 4);
    close_keeper();
}
END_TEST

/* The first range of a chunk asks for admission; without the others it was read in vain. */
START_TEST(the_rate_admits_whole_chunks)
{
    const uint64_t page = TIERCE__CHUNK_ALIGN;
    struct call call;
    open_keeper(
        &(struct tierce__peer_keeper_opts){.size = sizeof(no_bounds), .disk_bytes_per_s = 1});
    forget_memory();
    for (uint64_t at = 0; at < 3 * page; at += page) {
        ck_assert_int_eq(find_range(&call, 0, at, page), 0);
        release(&call);
    }
    ck_assert_int_eq(find_range(&call, 1, 0, page), TIERCE_E_LIMIT);
    close_keeper();
}
END_TEST

/* A client that asks for later ranges alone is busy when it has read as much as two whole chunks.
 */
START_TEST(the_debt_of_later_ranges_has_a_bound)
{
    const uint64_t page = TIERCE__CHUNK_ALIGN;
    struct call call;
    uint64_t bytes = 0;
    open_keeper(&(struct tierce__peer_keeper_opts){
        .size = sizeof(no_bounds), .disk_reads = 2, .disk_bytes_per_s = 1});
    forget_memory();
    const uint64_t chunk = fx.inner->full.extent.object_bytes;
    while (find_range(&call, 0, page, page) == 0) {
        release(&call);
        bytes += page;
        ck_assert_uint_le(bytes, 2 * chunk + page); /* the last one is paid for afterwards */
    }
    ck_assert_int_eq(call.base.status, TIERCE_E_LIMIT);
    ck_assert_uint_ge(bytes, 2 * chunk);
    close_keeper();
}
END_TEST

/* As many ranges as the threads of one reader ask for, each as its own read. */
START_TEST(the_reads_of_one_reader_are_admitted)
{
    enum { LINKS = 8 };
    static struct call calls[LINKS];
    open_keeper(&no_bounds);
    forget_memory();
    struct tierce__tier *fault = fx_wrap(&fx, 1);
    tierce__fault_set(fault, TIERCE__STORE_GET,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_DELAY, .delay_ms = 300});
    for (size_t i = 0; i < LINKS; i++)
        begin_range(&calls[i], i % 4, 0, TIERCE__CHUNK_ALIGN);
    ck_assert_uint_eq(stats_now().busy, 0);
    for (size_t i = 0; i < LINKS; i++) {
        ck_assert_int_eq(end(&calls[i]), 0);
        release(&calls[i]);
    }
    close_keeper();
}
END_TEST

static void set_disk_speed(double bytes_per_s)
{
    struct tierce__health *health = &fx.engine->levels[1].health;
    tierce__lock_take(&health->lock);
    health->busy_s = 1e6;
    health->busy_bytes = bytes_per_s * 1e6;
    tierce__lock_drop(&health->lock);
}

START_TEST(reads_from_disk_have_a_share_of_its_speed)
{
    struct call call;
    open_keeper(&(struct tierce__peer_keeper_opts){
        .size = sizeof(no_bounds), .disk_percent = 25, .disk_least = 1});
    forget_memory();
    set_disk_speed(4);
    ck_assert_int_eq(find(&call, 0), 0);
    release(&call);
    set_disk_speed(4); /* a byte a second: paid for in the hours to come */
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(find(&call, i), TIERCE_E_LIMIT);
    for (size_t i = 0; i < 4; i++) {
        set_disk_speed(1e15);
        ck_assert_int_eq(find(&call, i), 0);
        release(&call);
    }
    ck_assert_uint_eq(stats_now().disk_hits, 5);
    close_keeper();
}
END_TEST

/* A reader that does not release what it was lent takes no more than the keeper's own memory. */
START_TEST(reads_from_disk_are_bounded_by_their_memory)
{
    static struct call calls[128]; /* of 16 KiB */
    size_t lent = 0;
    struct tierce__keeper *base;
    open_keeper(
        &(struct tierce__peer_keeper_opts){.size = sizeof(no_bounds), .buffer_bytes = 1u << 20});
    base = tierce__peer_keeper_get(keeper);
    const struct tierce_plugin_name ours = {"chunks", 6};
    forget_memory();
    ck_assert(!base->ops->is_short(base, &ours));
    while (lent < 128 && find(&calls[lent], 0) == 0)
        lent++;
    ck_assert_uint_gt(lent, 0);
    ck_assert_uint_lt(lent, 128);
    ck_assert_int_eq(calls[lent].base.status, TIERCE_E_LIMIT);
    ck_assert(base->ops->is_short(base, &ours));
    while (lent > 0)
        release(&calls[--lent]);
    ck_assert_int_eq(find(&calls[0], 0), 0);
    release(&calls[0]);
    close_keeper();
}
END_TEST

/* ---- the server ------------------------------------------------------------------------------ */

static struct tierce__peer_server *server;
static struct tierce__pool *pool;

/* Reads a chunk as a client with this token. Returns the connector's status. */
static int read_as(const char *token, size_t chunk, struct tierce__buf *into, uint64_t length)
{
    char path[80], url[256], address[TIERCE__PEER_ADDRESS_BYTES], name[TIERCE__KEY_TEXT_BYTES];
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    struct tierce__connector *connector;
    struct connector_call call;
    snprintf(path, sizeof(path), "%s/token", fx.folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    fputs(token, file);
    ck_assert_int_eq(fclose(file), 0);
    tierce__peer_server_address(server, address);
    snprintf(url, sizeof(url), "transfer://%s/chunks?connections=2&token_file=%s", address, path);
    const struct tierce__connector_opts opts = {.size = sizeof(opts), .pool = pool};
    ck_assert_msg(tierce__connector_open(&connector, url, &opts, why) == 0, "%s", why);
    name_chunk(name, chunk);
    connector_call_init(&call, TIERCE__STORE_GET, name, 0);
    call.req.buf = into;
    call.req.length = length;
    int status = connector_call_run(connector, &call);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(LIMIT_MS)));
    ck_assert_int_eq(unlink(path), 0);
    return status;
}

/* The server passes the range on. */
START_TEST(a_range_of_a_client_reads_its_own_pages)
{
    struct tierce__transfer_link *link;
    char address[TIERCE__PEER_ADDRESS_BYTES], name[TIERCE__KEY_TEXT_BYTES], why[256];
    uint8_t *bytes = malloc(TIERCE__CHUNK_ALIGN);
    ck_assert_ptr_nonnull(bytes);
    open_keeper(&no_bounds);
    struct call call;
    ck_assert_int_eq(find(&call, 1), 0);
    forget_memory();
    const struct tierce__peer_server_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .keeper = no_bounds};
    ck_assert_msg(tierce__peer_server_start(&server, fx.engine, &opts, why) == 0, "%s", why);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "first"), 0);
    tierce__peer_server_address(server, address);
    name_chunk(name, 1);
    const struct tierce_plugin_name text = {.text = name, .bytes = strlen(name)};
    uint16_t port = (uint16_t)strtoul(strchr(address, ':') + 1, NULL, 10);
    ck_assert_int_eq(tierce__transfer_link_create(&link, "127.0.0.1", port, "chunks", NULL), 0);
    uint64_t before = disk_bytes();
    for (uint64_t at = 0; at < call.base.lease.bytes; at += TIERCE__CHUNK_ALIGN) {
        const struct tierce__link_get get = {
            .name = &text, .memory = bytes, .offset = at, .length = TIERCE__CHUNK_ALIGN};
        ck_assert_int_eq(
            tierce__transfer_link_get(link, "first", &get, tierce__deadline_in_ms(LIMIT_MS)), 0);
        ck_assert_int_eq(memcmp(bytes, call.base.lease.data + at, TIERCE__CHUNK_ALIGN), 0);
    }
    ck_assert_uint_eq(disk_bytes() - before, call.base.lease.bytes);
    tierce__transfer_link_destroy(link);
    tierce__peer_server_stop(server, tierce__deadline_in_ms(LIMIT_MS));
    free(bytes);
    release(&call);
    close_keeper();
}
END_TEST

START_TEST(only_those_with_a_secret_read)
{
    struct tierce__peer_keeper_stats kept;
    struct tierce__transfer_stats sent;
    struct tierce__buf *buf, *want;
    char why[256], longest[TIERCE__PEER_SECRET_MAX + 2];
    open_keeper(&no_bounds);
    struct call call;
    ck_assert_int_eq(find(&call, 1), 0);
    want = call.base.lease.owner;
    pool = connector_pool();
    ck_assert_int_eq(tierce__pool_alloc(pool, &buf, want->bytes), 0);
    const struct tierce__peer_server_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .keeper = no_bounds};
    ck_assert_msg(tierce__peer_server_start(&server, fx.engine, &opts, why) == 0, "%s", why);
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    ck_assert_int_eq(tierce__peer_server_set_secret(server, ""), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, longest), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(read_as("first", 1, buf, want->bytes), TIERCE_E_REFUSED); /* no secret yet */
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "first"), 0);
    ck_assert_int_eq(read_as("first", 1, buf, want->bytes), 0);
    ck_assert_int_eq(memcmp(buf->data, want->data, want->bytes), 0);
    ck_assert_int_eq(read_as("firsT", 1, buf, want->bytes), TIERCE_E_REFUSED);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "second"), 0);
    ck_assert_int_eq(read_as("first", 2, buf, want->bytes), 0);
    ck_assert_int_eq(read_as("second", 3, buf, want->bytes), 0);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "third"), 0);
    ck_assert_int_eq(read_as("first", 2, buf, want->bytes), TIERCE_E_REFUSED);
    tierce__peer_server_stats(server, &sent, &kept);
    ck_assert_uint_eq(kept.memory_hits, 3);
    ck_assert_uint_eq(sent.refused, 3);
    tierce__peer_server_stop(server, tierce__deadline_in_ms(LIMIT_MS));
    tierce__buf_release(buf);
    tierce__pool_destroy(pool);
    release(&call);
    close_keeper();
}
END_TEST

/* Stores a chunk of 1.6 MiB, for which a keeper with the smallest buffers has no memory. */
static void store_large(char name[TIERCE__KEY_TEXT_BYTES])
{
    enum { CELL = 400 << 10 };
    static const uint32_t cells[] = {CELL};
    static const int32_t ids[FX_CHUNK_BLOCKS] = {0, 1, 2, 3};
    int32_t tokens[FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS] = {0};
    struct tierce_namespace ns = fx_namespace();
    const struct tierce_shard shard = {0, 1, 0, 1};
    struct tierce_view *view;
    struct tierce_chain *large;
    ns.layout = "test of a large chunk";
    ns.layer_count = 1;
    ns.cell_bytes = cells;
    ck_assert_int_eq(tierce_view_open(&view, fx.engine, &ns, &shard), 0);
    ck_assert_int_eq(tierce_view_chain(&large, view, NULL), 0);
    ck_assert_int_ge(tierce_chain_append(large, tokens, FX_CHUNK_BLOCKS * FX_BLOCK_TOKENS, NULL),
                     0);
    uint8_t *memory = calloc(FX_CHUNK_BLOCKS, CELL);
    ck_assert_ptr_nonnull(memory);
    const struct tierce_paged_layer layer = {
        .base = memory, .block_stride = CELL, .block_bytes = CELL};
    const struct tierce_paged paged = {
        .size = sizeof(paged), .layers = &layer, .layer_count = 1, .block_count = FX_CHUNK_BLOCKS};
    const struct tierce_transfer_opts what = {.size = sizeof(what),
                                              .chain = large,
                                              .to_block = FX_CHUNK_BLOCKS,
                                              .paged = &paged,
                                              .block_ids = ids};
    ck_assert_int_eq(tierce_store(view, &what), FX_CHUNK_BLOCKS);
    ck_assert_int_eq(tierce_engine_flush(fx.engine, LIMIT_MS), 0);
    ck_assert_int_gt(tierce__key_text_format(
                         name, tierce__namespaces_digest(fx.engine->namespaces, view->key.ns),
                         &view->key.shard, tierce_chain_hash(large, FX_CHUNK_BLOCKS - 1)),
                     0);
    free(memory);
    tierce_chain_destroy(large);
    tierce_view_close(view);
}

/* The name of a chunk that memory has, of another chain than `chain`. */
static void name_in_memory(char name[TIERCE__KEY_TEXT_BYTES])
{
    struct tierce_chain *before = chain;
    chain = fx_chain(&fx, 2, CHAIN_BLOCKS, 0);
    ck_assert_int_eq(fx_store(&fx, chain, CHAIN_BLOCKS, fx_ids, false), CHAIN_BLOCKS);
    name_chunk(name, 0);
    tierce_chain_destroy(chain);
    chain = before;
}

/* A client that asks for more than its socket takes, and reads nothing. Returns the socket. */
static int ask_and_do_not_read(uint16_t port, const char *name, uint64_t bytes)
{
    enum { REQUESTS = 2000 };
    uint8_t frame[RAW_HEAD + TIERCE__TRANSFER_NAME_MAX], hello[64];
    char why[256];
    int fd = -1;
    ck_assert_msg(tierce__stream_connect(&fd, "127.0.0.1", port, tierce__deadline_in_ms(LIMIT_MS),
                                         why, sizeof(why)) == 0,
                  "%s", why);
    raw_send(fd, hello, raw_hello(hello, "chunks", "first"));
    ck_assert_int_eq(raw_welcome(fd).status, 0);
    struct iovec piece = {frame, raw_request(frame,
                                             (struct tierce__transfer_request){
                                                 .op = TIERCE__TRANSFER_OP_READ, .length = bytes},
                                             name)};
    int rc = 0;
    for (int i = 0; i < REQUESTS && rc == 0; i++)
        rc = tierce__stream_send(fd, &piece, 1, tierce__deadline_in_ms(500));
    return fd;
}

/* While reads from disk lack memory, a client that holds chunks and takes nothing has a second. */
START_TEST(a_client_that_reads_nothing_is_in_the_way)
{
    struct tierce__peer_keeper_stats kept;
    struct tierce__transfer_stats sent;
    struct tierce__transfer_link *link;
    char address[TIERCE__PEER_ADDRESS_BYTES], name[TIERCE__KEY_TEXT_BYTES],
        other[TIERCE__KEY_TEXT_BYTES], why[256];
    uint8_t byte;
    open_keeper(&no_bounds);
    store_large(name);
    forget_memory();
    name_in_memory(other);
    const struct tierce_plugin_name text = {.text = name, .bytes = strlen(name)};
    const struct tierce__link_get get = {.name = &text, .memory = &byte, .length = 1};
    const struct tierce__peer_server_opts opts = {
        .size = sizeof(opts),
        .host = "127.0.0.1",
        .request_ms = 10 * LIMIT_MS,
        .keeper = {.size = sizeof(no_bounds), .buffer_bytes = 1u << 20}};
    ck_assert_msg(tierce__peer_server_start(&server, fx.engine, &opts, why) == 0, "%s", why);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "first"), 0);
    tierce__peer_server_address(server, address);
    uint16_t port = (uint16_t)strtoul(strchr(address, ':') + 1, NULL, 10);
    int fd = ask_and_do_not_read(port, other, fx.inner->full.extent.object_bytes);
    kept.leases_now = 1;
    ck_assert_int_eq(tierce__transfer_link_create(&link, "127.0.0.1", port, "chunks", NULL), 0);
    uint64_t until_ns = tierce__deadline_in_ms(LIMIT_MS);
    while (kept.leases_now > 0) {
        ck_assert_msg(tierce__now_ns() < until_ns, "it is never in the way");
        ck_assert_int_eq(tierce__transfer_link_get(link, "first", &get, until_ns), TIERCE_E_LIMIT);
        tierce__peer_server_stats(server, &sent, &kept);
    }
    WAIT_FOR((tierce__peer_server_stats(server, &sent, &kept), sent.connections == 1));
    tierce__transfer_link_destroy(link);
    close(fd);
    tierce__peer_server_stop(server, tierce__deadline_in_ms(LIMIT_MS));
    close_keeper();
}
END_TEST

/* A connection whose token is no longer accepted is opened anew with the present one. */
START_TEST(an_open_connection_gets_the_new_secret)
{
    struct tierce__transfer_link *link;
    struct tierce__peer_keeper_stats kept;
    struct tierce__transfer_stats sent = {0};
    char address[TIERCE__PEER_ADDRESS_BYTES], name[TIERCE__KEY_TEXT_BYTES], why[256];
    uint8_t byte;
    open_keeper(&no_bounds);
    const struct tierce__peer_server_opts opts = {
        .size = sizeof(opts), .host = "127.0.0.1", .keeper = no_bounds};
    ck_assert_msg(tierce__peer_server_start(&server, fx.engine, &opts, why) == 0, "%s", why);
    tierce__peer_server_address(server, address);
    name_chunk(name, 1);
    const struct tierce_plugin_name text = {.text = name, .bytes = strlen(name)};
    const struct tierce__link_get get = {.name = &text, .memory = &byte, .length = 1};
    uint16_t port = (uint16_t)strtoul(strchr(address, ':') + 1, NULL, 10);
    ck_assert_int_eq(tierce__transfer_link_create(&link, "127.0.0.1", port, "chunks", NULL), 0);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "first"), 0);
    uint64_t deadline_ns = tierce__deadline_in_ms(LIMIT_MS);
    ck_assert_int_eq(tierce__transfer_link_reach(link, "first", deadline_ns), 0);
    ck_assert_int_eq(tierce__transfer_link_get(link, "first", &get, deadline_ns), 0);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "second"), 0);
    ck_assert_int_eq(tierce__peer_server_set_secret(server, "third"), 0);
    while (sent.accepted < 2) { /* the server looks at its tokens once a second */
        ck_assert_int_eq(tierce__transfer_link_get(link, "third", &get, deadline_ns), 0);
        tierce__peer_server_stats(server, &sent, &kept);
    }
    ck_assert_int_eq(tierce__transfer_link_get(link, "first", &get, deadline_ns), 0);
    tierce__transfer_link_destroy(link);
    tierce__peer_server_stop(server, tierce__deadline_in_ms(LIMIT_MS));
    close_keeper();
}
END_TEST

/* A read that began after the end would use the engine for longer than the server lives. */
START_TEST(no_read_begins_after_the_end)
{
    struct call call;
    open_keeper(&no_bounds);
    forget_memory();
    struct tierce__keeper *base = tierce__peer_keeper_get(keeper);
    base->ops->end(base, tierce__deadline_in_ms(LIMIT_MS));
    ck_assert_int_eq(find(&call, 1), TIERCE_E_CLOSED);
    close_keeper();
}
END_TEST

int main(void)
{
    TCase *finding = tcase_create("finding"), *admission = tcase_create("admission"),
          *serving = tcase_create("server");
    Suite *suite = suite_create("peer_keeper");
    tcase_set_timeout(finding, 120);
    tcase_set_timeout(admission, 120);
    tcase_set_timeout(serving, 120);
    tcase_add_test(finding, memory_and_disk_hold_the_same_bytes);
    tcase_add_test(finding, a_lent_chunk_keeps_its_bytes_when_it_is_evicted);
    tcase_add_test(finding, invalid_and_unknown_names);
    tcase_add_test(finding, a_range_reads_its_own_pages);
    tcase_add_test(finding, a_short_deadline_does_not_count_against_the_disk);
    tcase_add_test(finding, a_failed_disk_is_a_miss);
    tcase_add_test(admission, reads_from_disk_are_bounded_by_their_number);
    tcase_add_test(admission, the_rate_admits_whole_chunks);
    tcase_add_test(admission, the_debt_of_later_ranges_has_a_bound);
    tcase_add_test(admission, the_reads_of_one_reader_are_admitted);
    tcase_add_test(admission, reads_from_disk_are_bounded_by_bytes_a_second);
    tcase_add_test(admission, reads_from_disk_have_a_share_of_its_speed);
    tcase_add_test(admission, reads_from_disk_are_bounded_by_their_memory);
    tcase_add_test(serving, a_range_of_a_client_reads_its_own_pages);
    tcase_add_test(serving, only_those_with_a_secret_read);
    tcase_add_test(serving, a_client_that_reads_nothing_is_in_the_way);
    tcase_add_test(serving, an_open_connection_gets_the_new_secret);
    tcase_add_test(serving, no_read_begins_after_the_end);
    suite_add_tcase(suite, finding);
    suite_add_tcase(suite, admission);
    suite_add_tcase(suite, serving);
    return check_main(suite);
}
