/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/analysis/states.h"
#include "random_recording.h"

/*
 * The replay of recurrent states against a plain model: objects with the time of their last use,
 * every question answered by a search; and what its interface promises beside.
 */

enum { BLOCKS = 60, REQUESTS = 150, ROUNDS = 40, RULES = 3, OBJECTS = 2 * 3 * BLOCKS };

/* ---- the model ------------------------------------------------------------------------------- */

struct object {
    uint32_t block;
    bool is_state;
    uint64_t used;
};

/* A chain of full blocks that was stored. */
struct chain {
    uint32_t count;
    const uint32_t *blocks;
};

struct model {
    const struct tierce__states_opts *opts;
    struct tierce__states_row row; /* the result; states and bytes at the end */
    struct object objects[OBJECTS];
    size_t count;
    uint64_t clock, bytes;
    struct chain stored[REQUESTS];
    size_t stored_count;
};

static uint64_t size_of(const struct model *m, bool is_state)
{
    return is_state ? m->opts->state_bytes : m->opts->block_bytes;
}

static struct object *find(struct model *m, uint32_t block, bool is_state)
{
    for (size_t i = 0; i < m->count; i++) {
        if (m->objects[i].block == block && m->objects[i].is_state == is_state)
            return &m->objects[i];
    }
    return NULL;
}

static void evict_oldest(struct model *m)
{
    size_t oldest = 0;
    ck_assert_uint_gt(m->count, 0);
    for (size_t i = 1; i < m->count; i++) {
        if (m->objects[i].used < m->objects[oldest].used)
            oldest = i;
    }
    m->bytes -= size_of(m, m->objects[oldest].is_state);
    m->objects[oldest] = m->objects[--m->count];
}

static void use(struct model *m, uint32_t block, bool is_state, bool stores)
{
    struct object *object = find(m, block, is_state);
    uint64_t bytes = size_of(m, is_state);
    if (object != NULL)
        object->used = ++m->clock;
    if (object != NULL || !stores || bytes > m->row.capacity)
        return;
    while (m->bytes + bytes > m->row.capacity)
        evict_oldest(m);
    ck_assert_uint_lt(m->count, OBJECTS);
    m->objects[m->count++] = (struct object){block, is_state, ++m->clock};
    m->bytes += bytes;
    m->row.states_stored += is_state;
}

/* Whether a request may continue after its first t blocks. */
static bool can_resume(struct model *m, const uint32_t *blocks, uint32_t t)
{
    if (t > 0 && find(m, blocks[t - 1], true) == NULL)
        return false;
    for (uint32_t i = 0; i < t; i++) {
        if (find(m, blocks[i], false) == NULL)
            return false;
    }
    return true;
}

static uint32_t longest_shared(const struct model *m, const uint32_t *blocks, uint32_t count)
{
    uint32_t longest = 0;
    for (size_t i = 0; i < m->stored_count; i++) {
        const struct chain *chain = &m->stored[i];
        uint32_t same = 0;
        while (same < count && same < chain->count && chain->blocks[same] == blocks[same])
            same++;
        longest = same > longest ? same : longest;
    }
    return longest;
}

static void model_request(struct model *m, const struct tierce__recorded *r)
{
    const struct tierce__state_rule *rule = &m->row.rule;
    const uint32_t *blocks = tierce__recorded_blocks(r), tokens = m->opts->block_tokens;
    uint32_t full = 0, end = 0, resume = 0, shared;
    bool partial = r->input_tokens > 0 && r->read_count == r->count;
    for (uint32_t i = 0; i < r->count; i++) {
        full += !partial || (uint64_t)(i + 1) * tokens <= r->input_tokens;
        end += i < r->stored && full == i + 1;
    }
    for (uint32_t t = 1; t <= full && t <= (r->read_count > 0 ? r->read_count : end); t++)
        resume = can_resume(m, blocks, t) ? t : resume;
    uint64_t hit = (uint64_t)resume * tokens;
    if (r->read_count > 0)
        m->row.hit_tokens += r->input_tokens > 0 && hit > r->input_tokens ? r->input_tokens : hit;
    shared = longest_shared(m, blocks, full);
    for (uint32_t t = full; t > 0; t--) {
        bool is_wanted = rule->every > 0 && t % rule->every == 0;
        is_wanted = is_wanted || (rule->last && t == end) || (rule->branch && t == shared);
        if (t == resume || (t > resume && t <= end && is_wanted))
            use(m, blocks[t - 1], true, t <= end);
        use(m, blocks[t - 1], false, t <= end);
    }
    m->stored[m->stored_count++] = (struct chain){end, blocks};
}

static void model_run(struct model *m, const struct tierce__recording *recording,
                      const struct tierce__states_opts *opts, struct tierce__state_rule rule,
                      uint64_t capacity)
{
    *m = (struct model){.opts = opts, .row = {.rule = rule, .capacity = capacity}};
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r))
        model_request(m, r);
    for (size_t i = 0; i < m->count; i++)
        m->row.states += m->objects[i].is_state;
    m->row.state_bytes = m->row.states * opts->state_bytes;
    m->row.kv_bytes = m->bytes - m->row.state_bytes;
}

/* ---- against the model ----------------------------------------------------------------------- */

static struct tierce__state_rule random_rule(struct test_random *random)
{
    uint32_t kind = 1 + test_random_below(random, 7);
    return (struct tierce__state_rule){
        .every = (kind & 1) != 0 ? 1 + test_random_below(random, 4) : 0,
        .last = (kind & 2) != 0,
        .branch = (kind & 4) != 0,
    };
}

static void check_rows(const struct tierce__states *states, const struct tierce__recording *trace,
                       const struct tierce__states_opts *opts)
{
    static struct model model;
    for (size_t i = 0; i < states->capacity_count * states->rule_count; i++) {
        const struct tierce__states_row *row = &states->rows[i], *wanted = &model.row;
        model_run(&model, trace, opts, opts->rules[i % opts->rule_count],
                  opts->capacities[i / opts->rule_count]);
        ck_assert(row->rule.every == wanted->rule.every && row->rule.last == wanted->rule.last &&
                  row->rule.branch == wanted->rule.branch);
        ck_assert_uint_eq(row->capacity, wanted->capacity);
        ck_assert_uint_eq(row->hit_tokens, wanted->hit_tokens);
        ck_assert_uint_eq(row->states_stored, wanted->states_stored);
        ck_assert_uint_eq(row->states, wanted->states);
        ck_assert_uint_eq(row->state_bytes, wanted->state_bytes);
        ck_assert_uint_eq(row->kv_bytes, wanted->kv_bytes);
    }
    model_run(&model, trace, opts, (struct tierce__state_rule){.every = 1},
              TIERCE__CAPACITY_UNLIMITED);
    ck_assert_uint_eq(states->hit_tokens, model.row.hit_tokens);
}

START_TEST(rows_are_those_of_a_plain_model)
{
    struct test_random random = test_random_start("test_prop_states");
    uint64_t hits = 0;
    for (unsigned i = 0; i < TEST_ROUNDS(ROUNDS) * test_scale(); i++) {
        struct recording_shape shape = {.requests = REQUESTS,
                                        .blocks = BLOCKS,
                                        .instances = 1 + i % 3,
                                        .reads_and_writes = i % 2 == 1,
                                        .cuts = i % 4 >= 2,
                                        .block_tokens = 4};
        struct tierce__recording *recording = random_recording(&random, &shape);
        struct tierce__state_rule rules[RULES];
        uint64_t capacities[] = {1 + test_random_below(&random, 100),
                                 1 + test_random_below(&random, 1000), TIERCE__CAPACITY_UNLIMITED};
        for (size_t k = 0; k < RULES; k++)
            rules[k] = random_rule(&random);
        struct tierce__states_opts opts = {.size = sizeof(opts),
                                           .rules = rules,
                                           .rule_count = RULES,
                                           .capacities = capacities,
                                           .capacity_count = 3,
                                           .block_bytes = 1 + test_random_below(&random, 5),
                                           .state_bytes = 1 + test_random_below(&random, 20),
                                           .block_tokens = shape.block_tokens,
                                           .threads = 1 + i % 2};
        struct tierce__states states;
        ck_assert_int_eq(tierce__states_run(&states, recording, &opts), 0);
        check_rows(&states, recording, &opts);
        hits += states.rows[0].hit_tokens + states.rows[RULES].hit_tokens;
        tierce__states_clear(&states);
        tierce__recording_destroy(recording);
    }
    ck_assert_uint_gt(hits, 0); /* caches with a limit had some */
}
END_TEST

/* ---- the interface --------------------------------------------------------------------------- */

START_TEST(rules_are_read_and_written)
{
    static const char *const same[] = {"every",          "every:2",
                                       "last",           "branch",
                                       "every+last",     "every:4294967295+last+branch",
                                       "every:3+branch", "last+branch"};
    static const char *const bad[] = {"",
                                      "every:",
                                      "every:0",
                                      "every:4294967296",
                                      "every:-1",
                                      "every: ",
                                      "all",
                                      "last+",
                                      "+last",
                                      "last+last",
                                      "every2",
                                      "branch,last",
                                      "every+every:2",
                                      "lastbranch",
                                      "every:00000000000000000000000000000000000000000000000001"};
    struct tierce__state_rule rule = {.every = 77};
    char text[TIERCE__STATE_RULE_BYTES];
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        ck_assert_int_eq(tierce__state_rule_parse(&rule, same[i]), 0);
        tierce__state_rule_print(&rule, text);
        ck_assert_str_eq(text, same[i]);
    }
    ck_assert_int_eq(tierce__state_rule_parse(&rule, "branch+every:1+last"), 0);
    tierce__state_rule_print(&rule, text);
    ck_assert_str_eq(text, "every+last+branch");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(tierce__state_rule_parse(&rule, bad[i]), TIERCE_E_ARGUMENT);
    ck_assert(rule.every == 1 && rule.last && rule.branch);
}
END_TEST

START_TEST(options_out_of_range_are_refused)
{
    struct test_random random = test_random_start("test_prop_states");
    struct tierce__recording *recording =
        random_recording(&random, &(struct recording_shape){.requests = 20, .blocks = BLOCKS});
    const struct tierce__state_rule rule = {.last = true};
    const uint64_t capacity = TIERCE__CAPACITY_UNLIMITED, none = 0;
    const struct tierce__states_opts good = {.size = sizeof(good),
                                             .rules = &rule,
                                             .rule_count = 1,
                                             .capacities = &capacity,
                                             .capacity_count = 1,
                                             .block_bytes = 1,
                                             .state_bytes = 1,
                                             .block_tokens = 1};
    struct tierce__states states = {0};
    struct tierce__states_opts opts[7];
    for (size_t i = 0; i < 7; i++)
        opts[i] = good;
    opts[0].rule_count = 0;
    opts[1].capacity_count = 0;
    opts[2].block_bytes = 0;
    opts[3].state_bytes = 0;
    opts[4].block_tokens = 0;
    opts[5].capacities = &none;
    opts[6].state_bytes = TIERCE__CAPACITY_BYTES_MAX;
    for (size_t i = 0; i < 7; i++)
        ck_assert_int_eq(tierce__states_run(&states, recording, &opts[i]),
                         i < 6 ? TIERCE_E_ARGUMENT : TIERCE_E_LIMIT);
    ck_assert_ptr_null(states.rows);
    ck_assert_int_eq(tierce__states_run(&states, recording, &good), 0);
    tierce__states_clear(&states);
    tierce__recording_destroy(recording);
}
END_TEST

START_TEST(the_best_has_most_hits_then_fewest_states)
{
    struct tierce__states_row rows[] = {
        {.hit_tokens = 5, .states_stored = 1}, {.hit_tokens = 7, .states_stored = 9},
        {.hit_tokens = 7, .states_stored = 8}, {.hit_tokens = 7, .states_stored = 8},
        {.hit_tokens = 3, .states_stored = 4}, {.hit_tokens = 3, .states_stored = 4},
        {.hit_tokens = 2, .states_stored = 0}, {.hit_tokens = 1, .states_stored = 0}};
    const struct tierce__states states = {.rows = rows, .rule_count = 4, .capacity_count = 2};
    ck_assert_ptr_eq(tierce__states_best(&states, 0), &rows[2]);
    ck_assert_ptr_eq(tierce__states_best(&states, 1), &rows[4]);
}
END_TEST

CHECK_MAIN("states",
           .tests = {rows_are_those_of_a_plain_model, rules_are_read_and_written,
                     options_out_of_range_are_refused, the_best_has_most_hits_then_fewest_states})
