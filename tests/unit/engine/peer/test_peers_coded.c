/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that another engine has coded: they are sent as they are stored, and decoded by the
 * reader, whatever happens to the chunk at the holder meanwhile, and with engines of earlier
 * versions. */
#define FX_CHUNK_BLOCKS 11u /* long enough to become shorter */
#define FX_KV_DTYPE     "bfloat16"
#include "peers_fixture.h"

#include "core/key/key_text.h"
#include "store/coded/coded_connector.h"
#include "store/coded/coded_tier.h"
#include "store/remote/transfer/transfer_link.h"

#define KEY "echo 1 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

enum { CHUNKS = CHAIN_BLOCKS / FX_CHUNK_BLOCKS, HEAD = 8192 };

/* ---- engines of earlier versions, and damage on the way ----------------------------------------
 */

static bool holder_is_old, reader_is_old;
static _Atomic bool holder_is_new; /* it sends chunks with a codec that the reader does not have */
static _Atomic int damages;        /* ranges of layers that are damaged from now on */

static bool has_chunks_alone(struct tierce__keeper *keeper, const struct tierce_plugin_name *space)
{
    (void)keeper;
    return space->bytes == strlen(TIERCE__PEER_SPACE) &&
           memcmp(space->text, TIERCE__PEER_SPACE, space->bytes) == 0;
}

int __real_tierce__transfer_server_start(struct tierce__transfer_server **out,
                                         const struct tierce__transfer_server_opts *opts,
                                         char why[256]);
int __wrap_tierce__transfer_server_start(struct tierce__transfer_server **out,
                                         const struct tierce__transfer_server_opts *opts,
                                         char why[256]);

int __wrap_tierce__transfer_server_start(struct tierce__transfer_server **out,
                                         const struct tierce__transfer_server_opts *opts,
                                         char why[256])
{
    static struct tierce__keeper_ops old;
    if (holder_is_old) {
        old = *opts->keeper->ops;
        old.has = has_chunks_alone;
        opts->keeper->ops = &old;
    }
    return __real_tierce__transfer_server_start(out, opts, why);
}

int __real_tierce__transfer_link_create(struct tierce__transfer_link **out, const char *host,
                                        uint16_t port, const char *space,
                                        struct tierce__tls_context *tls);
int __wrap_tierce__transfer_link_create(struct tierce__transfer_link **out, const char *host,
                                        uint16_t port, const char *space,
                                        struct tierce__tls_context *tls);

int __wrap_tierce__transfer_link_create(struct tierce__transfer_link **out, const char *host,
                                        uint16_t port, const char *space,
                                        struct tierce__tls_context *tls)
{
    return __real_tierce__transfer_link_create(out, host, port,
                                               reader_is_old ? TIERCE__PEER_SPACE : space, tls);
}

static int damage(int rc, const struct tierce__link_get *get)
{
    enum { LATER_CODEC = 999 };
    struct tierce__chunk_info info;
    uint32_t codec;
    if (rc == 0 && get->offset == 0 && atomic_load(&holder_is_new) &&
        tierce__chunk_parse_coded(&info, &codec, get->memory, get->length) == 0)
        tierce__chunk_set_codec(get->memory, &info, LATER_CODEC);
    uint64_t from = get->offset < HEAD ? HEAD - get->offset : 0;
    if (rc == 0 && get->length > from && atomic_load(&damages) > 0) {
        atomic_fetch_sub(&damages, 1);
        get->memory[from + (get->length - from) / 2] ^= 4;
    }
    return rc;
}

int __real_tierce__transfer_link_get(struct tierce__transfer_link *link, const char *token,
                                     const struct tierce__link_get *get, uint64_t deadline_ns);
int __wrap_tierce__transfer_link_get(struct tierce__transfer_link *link, const char *token,
                                     const struct tierce__link_get *get, uint64_t deadline_ns);

int __wrap_tierce__transfer_link_get(struct tierce__transfer_link *link, const char *token,
                                     const struct tierce__link_get *get, uint64_t deadline_ns)
{
    return damage(__real_tierce__transfer_link_get(link, token, get, deadline_ns), get);
}

int __real_tierce__transfer_link_read_get(struct tierce__transfer_link *link,
                                          const struct tierce__link_get *get, uint64_t deadline_ns);
int __wrap_tierce__transfer_link_read_get(struct tierce__transfer_link *link,
                                          const struct tierce__link_get *get, uint64_t deadline_ns);

int __wrap_tierce__transfer_link_read_get(struct tierce__transfer_link *link,
                                          const struct tierce__link_get *get, uint64_t deadline_ns)
{
    return damage(__real_tierce__transfer_link_read_get(link, get, deadline_ns), get);
}

/* ---- engines --------------------------------------------------------------------------------- */

/* Engine 0 with a parameter; a chain in its slower tier, and not in memory. */
static void open_holder(bool disk, const char *const *sets)
{
    const char *all[10] = {"remote.urls", url};
    for (size_t i = 0; sets[i] != NULL; i++)
        all[2 + i] = sets[i];
    fx_open(&fx[0], disk, all);
}

static bool memory_is_empty(unsigned engine)
{
    struct tierce__tier *memory = fx[engine].engine->levels[0].tier;
    struct tierce__tier_stats stats;
    (void)memory->ops->evict(memory, UINT64_MAX);
    memory->ops->stats(memory, &stats);
    return stats.chunks == 0;
}

static const char *const lossless[] = {"disk.codec", "lossless", NULL};
/* The rate would let only the first chunk pass. */
static const char *const coded_memory[] = {"memory.coded_size", "4MiB", "peers.disk_rate", "1",
                                           NULL};

/* The bytes that engine 1 has read, in chunks of the raw length. */
static uint64_t raw_bytes(void)
{
    return CHUNKS * fx[1].inner->full.extent.object_bytes;
}

static struct tierce__coded_stats holder_codec(void)
{
    struct tierce__coded_stats stats;
    tierce__coded_tier_stats(fx[0].engine->levels[1].coded, &stats);
    return stats;
}

static struct tierce__coded_stats reader_codec(void)
{
    struct tierce__coded_stats stats;
    tierce__coded_connector_stats(fx[1].engine->levels[PEERS_LEVEL].connector, &stats);
    return stats;
}

static void open_both(bool disk, const char *const *sets)
{
    start_manager(0);
    open_holder(disk, sets);
    open_engine(1);
    store(0, 1);
    WAIT_FOR(memory_is_empty(0));
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
}

static void close_both(void)
{
    has_no_lease(0);
    has_no_lease(1);
    close_engine(1);
    close_engine(0);
    running_manager_stop(&manager);
}

/* ---- what is sent ---------------------------------------------------------------------------- */

/* The key of the first chunk, in an engine. */
static struct tierce__key first_key(unsigned engine)
{
    struct tierce_chain *chain = fx_chain(&fx[0], 1, CHAIN_BLOCKS, 0);
    struct tierce__key key = fx[engine].inner->key;
    memcpy(key.hash, tierce_chain_hash(chain, FX_CHUNK_BLOCKS - 1), sizeof(key.hash));
    tierce_chain_destroy(chain);
    return key;
}

static void name_first(unsigned engine, char name[TIERCE__KEY_TEXT_BYTES])
{
    const struct tierce__key key = first_key(engine);
    ck_assert_int_gt(tierce__key_text_format(
                         name, tierce__namespaces_digest(fx[engine].engine->namespaces, key.ns),
                         &key.shard, key.hash),
                     0);
}

/* A range of the first chunk of engine 0, without the length of its object. */
static int ask_for(uint64_t offset, uint64_t length)
{
    struct tierce__transfer_link *link;
    struct tierce__peers_self *self = tierce__peers_self_of(fx[1].engine->peers);
    char address[TIERCE__PEER_ADDRESS_BYTES], name[TIERCE__KEY_TEXT_BYTES];
    char secret[TIERCE__PEERS_SECRET_BYTES];
    uint8_t bytes[TIERCE__CHUNK_ALIGN];
    int64_t session;
    int32_t slot;
    ck_assert(tierce__peers_self_get(self, &session, &slot, secret));
    tierce__peer_server_address(tierce__peers_server(fx[0].engine->peers), address);
    name_first(1, name);
    const struct tierce_plugin_name text = {name, strlen(name)};
    const struct tierce__link_get get = {
        .name = &text, .memory = bytes, .offset = offset, .length = length};
    uint16_t port = (uint16_t)strtoul(strchr(address, ':') + 1, NULL, 10);
    ck_assert_int_eq(
        tierce__transfer_link_create(&link, "127.0.0.1", port, TIERCE__PEER_SPACE_STORED, NULL), 0);
    int rc = tierce__transfer_link_get(link, secret, &get, tierce__deadline_in_ms(LIMIT_MS));
    tierce__transfer_link_destroy(link);
    return rc;
}

/* From the disk, and from coded memory. */
START_TEST(chunks_are_sent_as_they_are_stored)
{
    open_both(_i == 0, _i == 0 ? lossless : coded_memory);
    ck_assert_uint_eq(holder_codec().encoded_chunks, CHUNKS);
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    struct tierce__peer_keeper_stats sent = kept(0);
    uint64_t bytes = read_by(1).bytes;
    ck_assert_uint_ge(sent.coded_hits, CHUNKS);
    ck_assert_uint_eq(sent.disk_hits, sent.coded_hits);
    ck_assert_uint_eq(sent.coded_bytes, bytes);
    ck_assert_uint_lt(bytes, raw_bytes());
    ck_assert_uint_eq(read_by(1).chunks, CHUNKS);
    ck_assert(shows(0, "tierce_peers_served_coded_bytes_total", bytes));
    ck_assert_uint_eq(holder_codec().decoded_raw_bytes, 0);
    ck_assert_uint_gt(reader_codec().decoded_raw_bytes, reader_codec().decoded_bytes);
    ck_assert(
        shows(1, "tierce_codec_decoded_bytes_total{tier=\"peers\"}", reader_codec().decoded_bytes));
    /* Others from memory, whose beginnings are read first, as those of coded ones. */
    store(0, 2);
    WAIT_FOR(finds(1, 2, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 2, 0), CHAIN_BLOCKS);
    ck_assert_uint_gt(kept(0).memory_hits, CHUNKS);
    ck_assert_uint_eq(read_by(1).chunks, 2 * CHUNKS);
    close_both();
}
END_TEST

/* A holder that encrypts, and one that has encrypted chunks and not their key. */
START_TEST(encrypted_chunks_are_not_sent_as_they_are_stored)
{
    static const char *const encrypts[] = {
        "disk.codec", "lossless", "disk.encryption", "aes-256-gcm", "encryption.key_command",
        KEY,          NULL};
    open_both(true, encrypts);
    ck_assert_uint_eq(holder_codec().encrypted_chunks, CHUNKS);
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_uint_eq(read_by(1).bytes, raw_bytes());
    ck_assert_uint_eq(kept(0).coded_hits, 0);
    forget_all(1);
    has_no_lease(0);
    fx_close(&fx[0]);
    open_holder(true, lossless);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, 0), 0);
    ck_assert_uint_eq(read_by(1).bytes, raw_bytes());
    ck_assert_int_eq(ask_for(0, TIERCE__CHUNK_ALIGN - 1), TIERCE_E_MISS);
    ck_assert_int_eq(ask_for(TIERCE__CHUNK_ALIGN - 1, 2), TIERCE_E_MISS);
    ck_assert_int_eq(ask_for(TIERCE__CHUNK_ALIGN, 1), TIERCE_E_FORMAT);
    ck_assert_uint_eq(kept(0).coded_hits, 0);
    close_both();
}
END_TEST

/* ---- chunks that change while they are read -------------------------------------------------- */

static int read_range(struct tierce__buf *buf, uint64_t from, uint64_t to)
{
    struct tierce__tier *tier = fx[1].engine->levels[PEERS_LEVEL].tier;
    const struct tierce__key key = first_key(1);
    _Atomic bool is_done = false;
    struct tierce__store_req req = {.op = TIERCE__STORE_GET,
                                    .deadline_ns = tierce__deadline_in_ms(LIMIT_MS),
                                    .keys = &key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .offset = from,
                                    .length = to - from,
                                    .done = on_lookup,
                                    .arg = &is_done};
    tier->ops->submit(tier, &req);
    WAIT_FOR(atomic_load(&is_done));
    return req.status;
}

/* The buffer has the same cells as the chunk of engine 0. */
static void expect_chunk(const struct tierce__buf *buf)
{
    struct tierce__chunk_info info;
    ck_assert_int_eq(tierce__chunk_parse(&info, buf->data, buf->bytes), 0);
    ck_assert_mem_eq(info.hash, first_key(1).hash, sizeof(info.hash));
    ck_assert_uint_eq(tierce__chunk_verify_cells(buf->data, &info), 0);
}

/* The first range is one of the coded object on the disk of the holder. A holder that has the chunk
 * in memory too goes on with it; one that has it there alone sends that. */
START_TEST(a_coded_chunk_is_raw_when_its_rest_is_read)
{
    struct tierce__buf *buf;
    open_both(true, lossless);
    const uint64_t end = fx[1].inner->full.extent.object_bytes, page = TIERCE__CHUNK_ALIGN;
    ck_assert_int_eq(tierce__pool_alloc(fx[1].engine->pool, &buf, end), 0);
    ck_assert_int_eq(read_range(buf, 0, 2 * page), 0);
    uint64_t hits = kept(0).coded_hits;
    ck_assert_uint_gt(hits, 0);
    ck_assert_int_eq(load(0, 1, 0), CHAIN_BLOCKS); /* into memory */
    ck_assert_int_eq(read_range(buf, 2 * page, 6 * page), 0);
    ck_assert_uint_gt(kept(0).coded_hits, hits);
    ck_assert_uint_eq(kept(0).memory_hits, 0);
    forget(0, 1u << TIERCE_ORIGIN_DISK);
    ck_assert_int_eq(load(0, 1, 0), CHAIN_BLOCKS);
    ck_assert_int_eq(read_range(buf, 6 * page, end), 0);
    ck_assert_uint_gt(kept(0).memory_hits, 0);
    ck_assert_uint_gt(kept(0).lengths, 0);
    ck_assert_uint_eq(read_by(1).results[TIERCE__PEER_DAMAGED], 0);
    expect_chunk(buf);
    tierce__buf_release(buf);
    close_both();
}
END_TEST

static void on_found(struct tierce__keeper_call *call)
{
    atomic_store((_Atomic bool *)call->arg, true);
}

/* Asks a keeper of engine 0 for the beginning of the first chunk, as an object of a length. */
static int find_form(struct tierce__keeper *keeper, uint64_t total)
{
    char name[TIERCE__KEY_TEXT_BYTES];
    _Atomic bool is_done = false;
    name_first(0, name);
    struct tierce__keeper_call call = {
        .space = {TIERCE__PEER_SPACE_STORED, strlen(TIERCE__PEER_SPACE_STORED)},
        .name = {name, strlen(name)},
        .length = TIERCE__CHUNK_ALIGN,
        .total = total,
        .deadline_ns = tierce__deadline_in_ms(LIMIT_MS),
        .done = on_found,
        .arg = &is_done};
    keeper->ops->find(keeper, &call);
    WAIT_FOR(atomic_load(&is_done));
    if (call.status == 0)
        keeper->ops->release(keeper, &call.lease);
    return call.status;
}

/* The chunk is raw in memory, and the tier that has the coded one fails, or its lookup does: the
 * answer is not a miss, so the reader begins again here. */
START_TEST(a_tier_that_fails_is_not_a_miss_of_a_chunk_in_memory)
{
    const struct tierce__peer_keeper_opts opts = {.size = sizeof(opts)};
    enum tierce__store_op op = _i == 0 ? TIERCE__STORE_GET : TIERCE__STORE_LOOKUP;
    struct tierce__peer_keeper_stats stats;
    struct tierce__storage_form form;
    struct tierce__peer_keeper *keeper;
    fx_open(&fx[0], true, lossless);
    store(0, 1);
    const struct tierce__key key = first_key(0);
    ck_assert_int_eq(
        tierce__storage_measure(fx[0].engine, 1, &key, tierce__deadline_in_ms(LIMIT_MS), &form), 0);
    ck_assert_uint_gt(form.coded_bytes, 0);
    struct tierce__tier *fault = fx_wrap(&fx[0], 1);
    ck_assert_int_eq(tierce__peer_keeper_create(&keeper, fx[0].engine, &opts), 0);
    struct tierce__keeper *base = tierce__peer_keeper_get(keeper);
    ck_assert_int_eq(find_form(base, form.coded_bytes), 0);
    silence_log();
    tierce__fault_set(fault, op,
                      &(struct tierce__fault_rule){.kind = TIERCE__FAULT_ERROR, .status = -EIO});
    ck_assert_int_eq(find_form(base, form.coded_bytes), TIERCE_E_FORMAT);
    ck_assert_int_eq(find_form(base, form.bytes), 0);
    tierce__peer_keeper_stats(keeper, &stats);
    ck_assert_uint_eq(stats.errors, 1);
    ck_assert_uint_eq(stats.lengths, 0);
    tierce__fault_set(fault, op, NULL);
    tierce__peer_keeper_destroy(keeper);
    fx_close(&fx[0]);
    fx_remove(&fx[0]);
}
END_TEST

/* The first range is in memory; then the chunk is evicted from there. */
START_TEST(a_raw_chunk_is_coded_when_its_rest_is_read)
{
    struct tierce__buf *buf;
    open_both(true, lossless);
    const uint64_t end = fx[1].inner->full.extent.object_bytes, page = TIERCE__CHUNK_ALIGN;
    ck_assert_int_eq(tierce__pool_alloc(fx[1].engine->pool, &buf, end), 0);
    ck_assert_int_eq(load(0, 1, 0), CHAIN_BLOCKS);
    ck_assert_int_eq(read_range(buf, 0, 2 * page), 0);
    ck_assert_uint_eq(kept(0).memory_hits, 1);
    WAIT_FOR(memory_is_empty(0));
    ck_assert_int_eq(read_range(buf, 2 * page, 6 * page), 0);
    ck_assert_int_eq(read_range(buf, 6 * page, end), 0);
    ck_assert_uint_eq(kept(0).memory_hits, 1);
    ck_assert_uint_gt(kept(0).coded_hits, 0);
    ck_assert_uint_eq(kept(0).disk_hits, kept(0).coded_hits); /* nothing was decoded there */
    expect_chunk(buf);
    tierce__buf_release(buf);
    close_both();
}
END_TEST

/* The first range is in memory; after its eviction there, the fastest tier has the coded chunk, and
 * the disk still has the raw one. */
START_TEST(a_raw_chunk_is_read_on_from_a_slower_tier)
{
    struct tierce__buf *buf;
    open_both(true, coded_memory);
    const uint64_t end = fx[1].inner->full.extent.object_bytes, page = TIERCE__CHUNK_ALIGN;
    ck_assert_int_eq(tierce__pool_alloc(fx[1].engine->pool, &buf, end), 0);
    ck_assert_int_eq(load(0, 1, 0), CHAIN_BLOCKS); /* into memory */
    ck_assert_int_eq(read_range(buf, 0, 2 * page), 0);
    ck_assert_uint_eq(kept(0).memory_hits, 1);
    WAIT_FOR(memory_is_empty(0));
    ck_assert_uint_gt(holder_codec().encoded_chunks, 0);
    ck_assert_int_eq(read_range(buf, 2 * page, end), 0);
    ck_assert_uint_eq(kept(0).lengths, 0);
    ck_assert_uint_eq(kept(0).disk_hits, 1);
    ck_assert_uint_eq(kept(0).coded_hits, 0);
    expect_chunk(buf);
    tierce__buf_release(buf);
    close_both();
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

/* A range that is damaged once is read again; one that always is, is a miss, and is not read again
 * from this peer. */
START_TEST(damage_is_found_before_it_is_decoded)
{
    open_both(true, lossless);
    record_log(TIERCE_LOG_WARN);
    atomic_store(&damages, _i == 0 ? 1 : 1000);
    int64_t loaded = load(1, 1, 0);
    if (_i == 0) {
        ck_assert_int_eq(loaded, CHAIN_BLOCKS);
        ck_assert_int_eq(atomic_load(&damages), 0);
        ck_assert_uint_eq(recorded("peer_damaged"), 0);
    } else {
        ck_assert_int_eq(loaded, 0);
        WAIT_FOR(read_by(1).results[TIERCE__PEER_DAMAGED] > 0);
        ck_assert_uint_ge(recorded("peer_damaged"), 1);
        uint64_t hits = kept(0).coded_hits;
        ck_assert_int_eq(load(1, 1, 0), 0);
        ck_assert_uint_eq(kept(0).coded_hits, hits);
    }
    silence_log();
    close_both();
}
END_TEST

/* ---- other versions -------------------------------------------------------------------------- */

/* A holder without the space of stored chunks, and a reader that does not ask for it: chunks are
 * sent raw. The holder is greeted once with a space that it does not have. */
START_TEST(engines_of_earlier_versions_get_and_send_raw_chunks)
{
    holder_is_old = _i == 0;
    reader_is_old = _i == 1;
    open_both(true, lossless);
    struct tierce__peers_stats stats;
    for (unsigned i = 1; i <= 2; i++) {
        ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
        ck_assert_uint_eq(read_by(1).bytes, i * raw_bytes());
        forget_all(1);
    }
    ck_assert_uint_eq(kept(0).coded_hits, 0);
    ck_assert_uint_eq(read_by(1).results[TIERCE__PEER_REJECTED], 0);
    ck_assert(tierce__peers_stats(fx[0].engine->peers, &stats));
    ck_assert_uint_le(stats.transfers.refused, holder_is_old ? 3 : 0); /* as many as connections */
    ck_assert_uint_eq(stats.transfers.refused > 0, holder_is_old);
    close_both();
}
END_TEST

/* The holder decodes its chunks for a reader that cannot. */
START_TEST(chunks_with_a_codec_of_a_later_version_are_sent_raw)
{
    open_both(true, lossless);
    atomic_store(&holder_is_new, true);
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_uint_eq(recorded("chunk_out_of_service"), 0);
    silence_log();
    ck_assert_uint_eq(reader_codec().decoded_raw_bytes, 0);
    ck_assert_uint_eq(read_by(1).results[TIERCE__PEER_DAMAGED], 0);
    uint64_t hits = kept(0).coded_hits;
    forget_all(1);
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_uint_eq(kept(0).coded_hits, hits); /* none is asked for */
    close_both();
}
END_TEST

CHECK_MAIN("peers_coded", .seconds = 120,
           .tests = {encrypted_chunks_are_not_sent_as_they_are_stored,
                     a_coded_chunk_is_raw_when_its_rest_is_read,
                     a_raw_chunk_is_coded_when_its_rest_is_read,
                     a_raw_chunk_is_read_on_from_a_slower_tier,
                     chunks_with_a_codec_of_a_later_version_are_sent_raw},
           .loops = {{chunks_are_sent_as_they_are_stored, 0, 2},
                     {a_tier_that_fails_is_not_a_miss_of_a_chunk_in_memory, 0, 2},
                     {damage_is_found_before_it_is_decoded, 0, 2},
                     {engines_of_earlier_versions_get_and_send_raw_chunks, 0, 2}})
