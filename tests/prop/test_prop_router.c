/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "msgpack_write.h"
#include "router/follower.h"
#include "router/standard_hash.h"
#include "test_random.h"

/*
 * Publishers that lose frames, are killed and start again, followed by the router's index, against
 * the sets that they hold: block by block, and by tokens.
 */

enum {
    PUBLISHERS = 6,
    PROMPTS = 6, /* with tokens; each medium holds a prefix */
    DEPTH = 12,
    LOOSE = 64, /* blocks without tokens, in any medium */
    BLOCK_TOKENS = 4,
    CHANGES = 100000,
    RING = 4096,
    SHORT_RING = 6
};
#define MODEL  "m"
#define SECOND 1000000000ULL

struct frame {
    uint64_t number;
    struct tierce__line payload;
};

/* A publisher, which is also the model of its contents. */
static struct publisher {
    bool has_replay, has_snapshot, from_zero;
    uint32_t ring_max;
    uint64_t number; /* of the next batch */
    struct frame ring[RING];
    uint32_t ring_count;
    struct frame wire[RING]; /* sent, not yet received */
    uint32_t wire_count;
    uint8_t lengths[PROMPTS][TIERCE__KV_MEDIA];
    bool loose[LOOSE][TIERCE__KV_MEDIA];
    struct tierce__follower *follower;
} publishers[PUBLISHERS];

static struct test_random rng;
static struct tierce__directory *directory;
static uint64_t now_ns, changes, exact_checks, inexact_checks;
static bool is_lost;   /* the connection of the publisher at hand */
static bool is_faulty; /* frames are lost, answers are cut */

static const char *const media[] = {"GPU", "CPU", "DISK"};

static bool happens(uint32_t one_in)
{
    return is_faulty && test_random_below(&rng, one_in) == 0;
}

/* Hashes of engines differ; the hashes of tokens do not. */
static uint64_t hash_of(const struct publisher *p, unsigned prompt, unsigned depth)
{
    return tierce__mix((uint64_t)(p - publishers + 1) << 32 | prompt << 16 | depth);
}

static uint32_t token_of(unsigned prompt, unsigned depth, unsigned i)
{
    return prompt * 1000 + depth * BLOCK_TOKENS + i;
}

/* ---- batches --------------------------------------------------------------------------------- */

static void put_stored(struct tierce__line *out, const struct publisher *p, unsigned prompt,
                       unsigned from, unsigned to, unsigned medium)
{
    pack_map(out, 6);
    pack_text(out, "type");
    pack_text(out, "BlockStored");
    pack_text(out, "block_hashes");
    pack_array(out, to - from);
    for (unsigned d = from; d < to; d++)
        pack_uint(out, hash_of(p, prompt, d));
    pack_text(out, "parent_block_hash");
    if (from > 0 && prompt < PROMPTS)
        pack_uint(out, hash_of(p, prompt, from - 1));
    else
        pack_nil(out);
    pack_text(out, "token_ids");
    pack_array(out, prompt < PROMPTS ? (to - from) * BLOCK_TOKENS : 0);
    for (unsigned d = from; d < to && prompt < PROMPTS; d++)
        for (unsigned i = 0; i < BLOCK_TOKENS; i++)
            pack_uint(out, token_of(prompt, d, i));
    pack_text(out, "block_size");
    pack_uint(out, BLOCK_TOKENS);
    pack_text(out, "medium");
    pack_text(out, media[medium]);
}

static void put_removed(struct tierce__line *out, const struct publisher *p, unsigned prompt,
                        unsigned from, unsigned to, unsigned medium)
{
    pack_array(out, 3); /* the older form */
    pack_text(out, "BlockRemoved");
    pack_array(out, to - from);
    for (unsigned d = from; d < to; d++)
        pack_uint(out, hash_of(p, prompt, d));
    pack_text(out, media[medium]);
}

static void begin_batch(struct tierce__line *out, uint32_t events)
{
    pack_array(out, 3);
    pack_real(out, (double)test_random_u64(&rng)); /* the time makes every batch unique */
    pack_array(out, events);
}

static struct tierce__line copy(const struct tierce__line *from)
{
    struct tierce__line to = {0};
    tierce__line_put_bytes(&to, from->text, from->bytes);
    ck_assert(!to.failed);
    return to;
}

static void publish(struct publisher *p, struct tierce__line *payload)
{
    pack_uint(payload, 0); /* dp_rank */
    if (p->ring_count == p->ring_max) {
        tierce__line_clear(&p->ring[0].payload);
        memmove(p->ring, p->ring + 1, (p->ring_count - 1) * sizeof(*p->ring));
        p->ring_count--;
    }
    if (!happens(12) && p->wire_count < RING)
        p->wire[p->wire_count++] = (struct frame){p->number, copy(payload)};
    p->ring[p->ring_count++] = (struct frame){p->number++, *payload};
}

static void publish_cleared(struct publisher *p)
{
    struct tierce__line batch = {0};
    memset(p->lengths, 0, sizeof(p->lengths));
    memset(p->loose, 0, sizeof(p->loose));
    begin_batch(&batch, 1);
    pack_map(&batch, 1);
    pack_text(&batch, "type");
    pack_text(&batch, "AllBlocksCleared");
    publish(p, &batch);
}

static void change_prompt(struct publisher *p, struct tierce__line *batch)
{
    unsigned prompt = test_random_below(&rng, PROMPTS);
    unsigned medium = test_random_below(&rng, TIERCE__KV_MEDIA);
    uint8_t *length = &p->lengths[prompt][medium];
    unsigned to = test_random_below(&rng, DEPTH + 1);
    if (to >= *length)
        put_stored(batch, p, prompt, *length, to, medium);
    else
        put_removed(batch, p, prompt, to, *length, medium);
    changes += to > *length ? to - *length : *length - to;
    *length = (uint8_t)to;
}

static void change_loose(struct publisher *p, struct tierce__line *batch)
{
    unsigned block = test_random_below(&rng, LOOSE);
    unsigned medium = test_random_below(&rng, TIERCE__KV_MEDIA);
    bool *is_held = &p->loose[block][medium];
    *is_held = test_random_below(&rng, 2) == 0; /* or it is said again */
    if (*is_held)
        put_stored(batch, p, PROMPTS + block, 0, 1, medium);
    else
        put_removed(batch, p, PROMPTS + block, 0, 1, medium);
    changes++;
}

static void change(struct publisher *p)
{
    struct tierce__line batch = {0};
    uint32_t events = 1 + test_random_below(&rng, 4);
    begin_batch(&batch, events);
    for (uint32_t i = 0; i < events; i++) {
        if (test_random_below(&rng, 2) == 0)
            change_prompt(p, &batch);
        else
            change_loose(p, &batch);
    }
    publish(p, &batch);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static void forget(struct frame *frames, uint32_t *count)
{
    for (uint32_t i = 0; i < *count; i++)
        tierce__line_clear(&frames[i].payload);
    *count = 0;
}

/* Its contents are gone; its numbers begin again, or far above. */
static void start(struct publisher *p)
{
    forget(p->ring, &p->ring_count);
    p->number = p->from_zero ? 0 : p->number + (1 << 20);
    memset(p->lengths, 0, sizeof(p->lengths));
    memset(p->loose, 0, sizeof(p->loose));
    if (!p->from_zero)
        publish_cleared(p);
}

static void lose_connection(struct publisher *p)
{
    if (test_random_below(&rng, 2) == 0)
        forget(p->wire, &p->wire_count); /* otherwise what has arrived is still read */
    tierce__follower_connected(p->follower, false, now_ns);
    is_lost = true;
}

static void connect_again(struct publisher *p)
{
    is_lost = false;
    tierce__follower_connected(p->follower, true, now_ns);
}

static void restart(struct publisher *p)
{
    lose_connection(p);
    start(p);
    for (uint32_t early = test_random_below(&rng, 4); early > 0; early--)
        change(p); /* before anybody is connected */
    forget(p->wire, &p->wire_count);
    connect_again(p);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answer_replay(struct publisher *p, uint64_t from)
{
    bool is_cut = happens(8);
    for (uint32_t i = 0; i < p->ring_count; i++) {
        if (is_cut && test_random_below(&rng, 4) == 0)
            break;
        if (p->ring[i].number >= from)
            tierce__follower_replayed(p->follower, p->ring[i].number, p->ring[i].payload.text,
                                      p->ring[i].payload.bytes, now_ns);
    }
    if (happens(20)) /* the answer was of the one before */
        restart(p);
    tierce__follower_replay_end(p->follower, !is_cut, now_ns);
}

/* A snapshot is not in the order of prompts: a block may come before its parent. */
static uint64_t put_contents(struct tierce__line *out, const struct publisher *p)
{
    uint64_t blocks = 0;
    for (unsigned medium = 0; medium < TIERCE__KV_MEDIA; medium++) {
        begin_batch(out, 3 * PROMPTS + LOOSE);
        for (unsigned prompt = 0; prompt < PROMPTS; prompt++) {
            unsigned length = p->lengths[prompt][medium];
            unsigned second = test_random_below(&rng, length + 1);
            unsigned third = second + test_random_below(&rng, length - second + 1);
            put_stored(out, p, prompt, third, length, medium);
            put_stored(out, p, prompt, 0, second, medium);
            put_stored(out, p, prompt, second, third, medium);
            blocks += p->lengths[prompt][medium];
        }
        for (unsigned block = 0; block < LOOSE; block++) {
            put_stored(out, p, PROMPTS + block, 0, p->loose[block][medium], medium);
            blocks += p->loose[block][medium];
        }
        pack_uint(out, 0);
    }
    return blocks;
}

static void answer_snapshot(struct publisher *p)
{
    struct tierce__line out = {0};
    pack_map(&out, 4);
    pack_text(&out, "version");
    pack_uint(&out, 1);
    pack_text(&out, "sequence");
    pack_uint(&out, p->number - 1);
    pack_text(&out, "topic");
    pack_text(&out, "kv");
    pack_text(&out, "dp_rank");
    pack_uint(&out, 0);
    uint64_t blocks = put_contents(&out, p);
    pack_map(&out, 1);
    pack_text(&out, "end");
    pack_uint(&out, blocks);
    ck_assert(!out.failed);
    size_t bytes = happens(4) ? test_random_below(&rng, (uint32_t)out.bytes) : out.bytes;
    for (size_t at = 0, part; at < bytes; at += part) {
        part = 1 + test_random_below(&rng, 3000);
        part = part < bytes - at ? part : bytes - at;
        ck_assert(tierce__follower_snapshot(p->follower, out.text + at, part));
    }
    tierce__line_clear(&out);
    if (happens(20))
        restart(p);
    tierce__follower_snapshot_end(p->follower, true, now_ns); /* a cut one has no end */
}

static bool step_follower(struct publisher *p)
{
    uint64_t from = 0;
    enum tierce__follower_need need = tierce__follower_needs(p->follower, &from, now_ns);
    if (need == TIERCE__FOLLOWER_BUSY) { /* a step waits for the connection */
        ck_assert(is_lost);
        return false;
    }
    if (need == TIERCE__FOLLOWER_WORK) {
        tierce__follower_work(p->follower, now_ns);
        return true;
    }
    if (need == TIERCE__FOLLOWER_REPLAY) {
        ck_assert(p->has_replay);
        answer_replay(p, from);
        return true;
    }
    if (need == TIERCE__FOLLOWER_SNAPSHOT) {
        ck_assert(p->has_snapshot);
        answer_snapshot(p);
        return true;
    }
    if (p->wire_count == 0)
        return false;
    struct frame frame = p->wire[0];
    memmove(p->wire, p->wire + 1, --p->wire_count * sizeof(frame));
    tierce__follower_batch(p->follower, frame.number, frame.payload.text, frame.payload.bytes,
                           now_ns);
    tierce__line_clear(&frame.payload);
    return true;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static uint8_t held(const struct publisher *p, unsigned prompt, unsigned depth)
{
    uint8_t bits = 0;
    for (unsigned medium = 0; medium < TIERCE__KV_MEDIA; medium++) {
        bool is_held = prompt < PROMPTS ? depth < p->lengths[prompt][medium]
                                        : p->loose[prompt - PROMPTS][medium];
        bits |= (uint8_t)(is_held << medium);
    }
    return bits;
}

static const struct tierce__directory_prefix *prefix_of(const struct tierce__directory_found *found,
                                                        const struct publisher *p)
{
    struct tierce__directory_id id = tierce__follower_id(p->follower);
    for (uint32_t i = 0; i < found->prefix_count; i++) {
        if (found->prefixes[i].worker.session == id.session &&
            found->prefixes[i].worker.slot == id.slot)
            return &found->prefixes[i];
    }
    return NULL;
}

/* By the engine's hash, in the directory. */
static uint8_t shown(const struct publisher *p, unsigned prompt, unsigned depth)
{
    struct tierce__directory_key key = {tierce__engine_scope(MODEL), hash_of(p, prompt, depth)};
    struct tierce__directory_found found;
    uint8_t bits = 0;
    ck_assert_int_eq(
        tierce__directory_find(directory, &key, 1,
                               &(struct tierce__directory_asker){.group = "", .host = ""}, &found),
        0);
    const struct tierce__directory_prefix *prefix = prefix_of(&found, p);
    for (unsigned medium = 0; prefix != NULL && medium < TIERCE__KV_MEDIA; medium++)
        bits |= (uint8_t)((prefix->in_tier[medium] > 0) << medium);
    return bits;
}

static void compare_tokens(unsigned prompt)
{
    struct tierce__directory_key keys[DEPTH];
    struct tierce__directory_found found;
    uint64_t scope = tierce__standard_scope(MODEL, (struct tierce__text){"", 0}, BLOCK_TOKENS);
    for (unsigned d = 0; d < DEPTH; d++) {
        uint32_t tokens[BLOCK_TOKENS];
        for (unsigned i = 0; i < BLOCK_TOKENS; i++)
            tokens[i] = token_of(prompt, d, i);
        keys[d] = (struct tierce__directory_key){
            scope, tierce__standard_hash(d > 0 ? &keys[d - 1].low : NULL, tokens, BLOCK_TOKENS)};
    }
    ck_assert_int_eq(
        tierce__directory_find(directory, keys, DEPTH,
                               &(struct tierce__directory_asker){.group = "", .host = ""}, &found),
        0);
    for (struct publisher *p = publishers; p < publishers + PUBLISHERS; p++) {
        const struct tierce__directory_prefix *prefix = prefix_of(&found, p);
        struct tierce__follower_about about;
        tierce__follower_about(p->follower, &about);
        for (unsigned medium = 0; medium < TIERCE__KV_MEDIA; medium++) {
            uint32_t is = prefix != NULL ? prefix->in_tier[medium] : 0;
            ck_assert_uint_le(is, p->lengths[prompt][medium]);
            if (about.is_exact)
                ck_assert_uint_eq(is, p->lengths[prompt][medium]);
        }
        const uint8_t *lengths = p->lengths[prompt];
        uint8_t memory = lengths[0] > lengths[1] ? lengths[0] : lengths[1];
        if (about.is_exact)
            ck_assert_uint_eq(prefix != NULL ? prefix->in_tier[TIERCE__CONTENTS_MEMORY] : 0,
                              memory);
    }
}

static void compare(struct publisher *p)
{
    struct tierce__follower_about about;
    uint64_t blocks = 0;
    tierce__follower_about(p->follower, &about);
    if (p->has_snapshot || (p->has_replay && p->ring_max == RING))
        ck_assert_msg(about.is_exact, "publisher %d", (int)(p - publishers));
    for (unsigned prompt = 0; prompt < PROMPTS + LOOSE; prompt++) {
        for (unsigned depth = 0; depth < (prompt < PROMPTS ? DEPTH : 1); depth++) {
            uint8_t is = shown(p, prompt, depth), has = held(p, prompt, depth);
            /* Nothing is shown that is not held. */
            ck_assert_msg((is & ~has) == 0, "publisher %d, exact %d, prompt %u, %x for %x",
                          (int)(p - publishers), about.is_exact, prompt, is, has);
            if (about.is_exact)
                ck_assert_msg(is == has, "publisher %d, prompt %u, %x for %x",
                              (int)(p - publishers), prompt, is, has);
            blocks += is != 0;
        }
    }
    ck_assert_uint_eq(about.blocks, blocks);
    exact_checks += about.is_exact;
    inexact_checks += !about.is_exact;
}

/* Faults end; after a while the answers are right. */
static void check_all(void)
{
    is_faulty = false;
    for (unsigned i = 0; i < 4; i++) {
        now_ns += 100 * SECOND;
        for (struct publisher *p = publishers; p < publishers + PUBLISHERS; p++) {
            if (!p->has_replay && i == 0)
                change(p); /* shows that the last ones were lost */
            while (step_follower(p))
                ;
        }
    }
    for (struct publisher *p = publishers; p < publishers + PUBLISHERS; p++)
        compare(p);
    for (unsigned prompt = 0; prompt < PROMPTS; prompt++)
        compare_tokens(prompt);
    is_faulty = true;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void open_publisher(struct publisher *p, unsigned kind)
{
    char name[8];
    snprintf(name, sizeof(name), "%u", kind);
    *p = (struct publisher){.has_replay = kind != 1 && kind != 5,
                            .has_snapshot = kind == 1 || kind == 2 || kind == 4,
                            .from_zero = kind == 0 || kind == 3 || kind == 5,
                            .ring_max = kind == 0 ? RING : SHORT_RING};
    struct tierce__follower_opts opts = {.size = sizeof(opts),
                                         .directory = directory,
                                         .group = "",
                                         .name = name,
                                         .model = MODEL,
                                         .endpoint = "tcp://127.0.0.1:5557",
                                         .has_replay = p->has_replay,
                                         .has_snapshot = p->has_snapshot,
                                         .seed = test_random_u64(&rng),
                                         .blocks_max = 1000,
                                         .check_ns = 10 * SECOND,
                                         .gone_ns = 5 * SECOND,
                                         .retry_ns = SECOND};
    ck_assert_int_eq(tierce__follower_create(&p->follower, &opts, now_ns), 0);
    start(p);
    forget(p->wire, &p->wire_count);
    tierce__follower_connected(p->follower, true, now_ns);
}

static void step(struct publisher *p)
{
    now_ns += test_random_below(&rng, 200) * (SECOND / 1000);
    uint32_t choice = test_random_below(&rng, 1000);
    if (p->ring_count == RING)
        restart(p); /* a publisher that keeps all of its batches, for this long */
    if (choice == 0) {
        restart(p);
    } else if (choice == 1) {
        lose_connection(p);
        now_ns += test_random_below(&rng, 10) * SECOND;
        for (unsigned i = test_random_below(&rng, 30); i > 0; i--)
            (void)step_follower(p);
        connect_again(p);
    } else if (choice == 2) {
        publish_cleared(p);
    } else if (choice < 400) {
        change(p);
    } else {
        (void)step_follower(p);
    }
}

static void close_publisher(struct publisher *p)
{
    forget(p->ring, &p->ring_count);
    forget(p->wire, &p->wire_count);
    tierce__follower_destroy(p->follower);
}

START_TEST(answers_equal_the_publishers_sets)
{
    rng = test_random_start("prop_router");
    struct tierce__directory_opts opts = {.size = sizeof(opts), .workers_max = PUBLISHERS + 1};
    ck_assert_int_eq(tierce__directory_create(&directory, &opts), 0);
    now_ns = SECOND;
    is_faulty = true;
    for (unsigned i = 0; i < PUBLISHERS; i++)
        open_publisher(&publishers[i], i);
    uint64_t wanted = (uint64_t)TEST_ROUNDS(CHANGES) * test_scale();
    for (uint64_t steps = 1; changes < wanted; steps++) {
        step(&publishers[test_random_below(&rng, PUBLISHERS)]);
        if (steps % 1000 == 0)
            check_all();
    }
    check_all();
    printf("%llu changes, %llu comparisons of exact publishers, %llu of inexact ones\n",
           (unsigned long long)changes, (unsigned long long)exact_checks,
           (unsigned long long)inexact_checks);
    ck_assert_uint_gt(exact_checks, inexact_checks);
    ck_assert_uint_gt(inexact_checks, 0);
    for (unsigned i = 0; i < PUBLISHERS; i++)
        close_publisher(&publishers[i]);
    tierce__directory_destroy(directory);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("prop router", .seconds = 100, .tests = {answers_equal_the_publishers_sets})
