/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/states.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/config/config_parse.h"
#include "core/policy/flat.h"
#include "optimizer/replay/jobs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define REQUESTS_TOLD 4096u /* between two reports of progress */

/* ---- rules ----------------------------------------------------------------------------------- */

static bool take_flag(bool *flag)
{
    bool is_new = !*flag;
    *flag = true;
    return is_new;
}

static bool read_part(struct tierce__state_rule *rule, const char *part)
{
    uint64_t every = 1;
    if (strcmp(part, "last") == 0)
        return take_flag(&rule->last);
    if (strcmp(part, "branch") == 0)
        return take_flag(&rule->branch);
    if (strncmp(part, "every", 5) != 0 || rule->every != 0)
        return false;
    if (part[5] != '\0' && (part[5] != ':' || !tierce__parse_count(&every, part + 6)))
        return false;
    rule->every = every <= UINT32_MAX ? (uint32_t)every : 0;
    return rule->every != 0;
}

int tierce__state_rule_parse(struct tierce__state_rule *out, const char *text)
{
    struct tierce__state_rule rule = {0};
    char part[TIERCE__STATE_RULE_BYTES];
    for (bool more = true; more;) {
        size_t length = strcspn(text, "+");
        if (length >= sizeof(part))
            return TIERCE_E_ARGUMENT;
        memcpy(part, text, length);
        part[length] = '\0';
        if (!read_part(&rule, part))
            return TIERCE_E_ARGUMENT;
        more = text[length] != '\0';
        text += length + more;
    }
    *out = rule;
    return 0;
}

void tierce__state_rule_print(const struct tierce__state_rule *rule,
                              char out[TIERCE__STATE_RULE_BYTES])
{
    char every[20] = "";
    if (rule->every == 1)
        snprintf(every, sizeof(every), "every");
    else if (rule->every > 1)
        snprintf(every, sizeof(every), "every:%" PRIu32, rule->every);
    int length = snprintf(out, TIERCE__STATE_RULE_BYTES, "%s%s%s%s%s", every,
                          every[0] != '\0' && rule->last ? "+" : "", rule->last ? "last" : "",
                          (every[0] != '\0' || rule->last) && rule->branch ? "+" : "",
                          rule->branch ? "branch" : "");
    TIERCE_ASSERT(length > 0 && length < (int)TIERCE__STATE_RULE_BYTES);
}

/* ---- facts of the trace ---------------------------------------------------------------------- */

struct states_work {
    const struct tierce__recording *recording;
    const struct tierce__states_opts *opts;
    struct tierce__recording_totals totals;
    uint32_t *shared; /* [requests] leading full blocks that earlier requests have stored */
    struct tierce__states *out;
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Leading blocks that end at a boundary. Blocks after those that are looked up would not exist if
 * a block before them were partial. */
static uint32_t full_blocks(const struct tierce__recorded *request, uint32_t block_tokens)
{
    uint64_t full = request->input_tokens / block_tokens;
    bool is_known = request->input_tokens > 0 && request->read_count == request->count;
    return is_known && full < request->count ? (uint32_t)full : request->count;
}

/* Sums up the lookups, and finds the shared prefixes. With every boundary kept, these are the hits
 * of a cache without a limit. */
static int scan(struct states_work *work)
{
    struct tierce__states *out = work->out;
    uint32_t tokens = work->opts->block_tokens;
    uint64_t at = 0;
    bool *seen = tierce__calloc((size_t)work->totals.distinct + 1, sizeof(*seen));
    work->shared = tierce__calloc(work->totals.requests + 1, sizeof(*work->shared));
    if (seen == NULL || work->shared == NULL) {
        tierce__free(seen);
        return -ENOMEM;
    }
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording); r != NULL;
         r = tierce__recording_next(work->recording, r), at++) {
        const uint32_t *blocks = tierce__recorded_blocks(r);
        uint32_t full = full_blocks(r, tokens), shared = 0;
        while (shared < full && seen[blocks[shared]])
            shared++;
        for (uint32_t i = 0; i < least(r->stored, full); i++)
            seen[blocks[i]] = true;
        work->shared[at] = shared;
        out->lookups += r->read_count > 0;
        out->tokens += tierce__recorded_tokens(r, r->read_count, tokens);
        out->hit_tokens += tierce__recorded_tokens(r, least(shared, r->read_count), tokens);
    }
    TIERCE_ASSERT(at == work->totals.requests && out->hit_tokens <= out->tokens);
    tierce__free(seen);
    return 0;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* The key of the KV of block b is 2 b, and of the state at its end 2 b + 1: next to each other,
 * because they are looked up together. */
struct states_replay {
    const struct tierce__states_opts *opts;
    struct tierce__states_row *row;
    struct tierce__flat flat;
    struct tierce__flat_watch watch;
    uint32_t *keys;  /* [2 * longest] to be used */
    uint64_t *bytes; /* [2 * longest] of them */
};

static bool is_state(uint32_t key)
{
    return (key & 1) != 0;
}

static void count_stored(void *arg, uint32_t key)
{
    struct tierce__states_row *row = arg;
    row->states += is_state(key);
    row->states_stored += is_state(key);
}

static void count_left(void *arg, uint32_t key)
{
    struct tierce__states_row *row = arg;
    TIERCE_DASSERT(!is_state(key) || row->states > 0);
    row->states -= is_state(key);
}

/* After how many of the first `count` blocks a request can continue. */
static uint32_t find_resume(const struct states_replay *s, const uint32_t *blocks, uint32_t count)
{
    const uint32_t *slot_of = s->flat.slot_of;
    uint32_t resume = 0;
    for (uint32_t i = 0; i < count && slot_of[2 * blocks[i]] != TIERCE__NO_SLOT; i++) {
        if (slot_of[2 * blocks[i] + 1] != TIERCE__NO_SLOT)
            resume = i + 1;
    }
    return resume;
}

/* Boundaries of one request, as numbers of blocks. */
struct states_passed {
    uint32_t resume; /* it continues from here */
    uint32_t shared;
    uint32_t end; /* of the blocks that it stores */
};

static bool is_kept(const struct tierce__state_rule *rule, const struct states_passed *passed,
                    uint32_t boundary)
{
    TIERCE_DASSERT(boundary > 0);
    if (boundary <= passed->resume || boundary > passed->end)
        return boundary == passed->resume;
    return (rule->every > 0 && boundary % rule->every == 0) ||
           (rule->last && boundary == passed->end) || (rule->branch && boundary == passed->shared);
}

/* Uses the blocks from `from` on up to `to`, with their states. */
static void use_part(struct states_replay *s, const uint32_t *blocks, uint32_t from, uint32_t to,
                     const struct states_passed *passed)
{
    uint32_t count = 0;
    for (uint32_t i = from; i < to; i++) {
        s->keys[count] = 2 * blocks[i];
        s->bytes[count++] = s->opts->block_bytes;
        if (!is_kept(&s->row->rule, passed, i + 1))
            continue;
        s->keys[count] = 2 * blocks[i] + 1;
        s->bytes[count++] = s->opts->state_bytes;
    }
    (void)tierce__flat_run(&s->flat, &(struct tierce__flat_uses){.keys = s->keys,
                                                                 .bytes = s->bytes,
                                                                 .count = count,
                                                                 .backwards = true,
                                                                 .stores = to <= passed->end,
                                                                 .ticks = true});
}

static void replay_request(struct states_replay *s, const struct tierce__recorded *request,
                           uint32_t shared)
{
    const uint32_t *blocks = tierce__recorded_blocks(request);
    uint32_t full = full_blocks(request, s->opts->block_tokens);
    struct states_passed passed = {.shared = shared, .end = least(request->stored, full)};
    uint32_t looked_up = request->read_count > 0 ? least(request->read_count, full) : passed.end;
    passed.resume = find_resume(s, blocks, looked_up);
    TIERCE_DASSERT(passed.resume <= shared);
    if (request->read_count > 0)
        s->row->hit_tokens +=
            tierce__recorded_tokens(request, passed.resume, s->opts->block_tokens);
    use_part(s, blocks, passed.end, full, &passed);
    use_part(s, blocks, 0, passed.end, &passed);
}

static int begin_row(struct states_replay *s, const struct states_work *work, size_t index)
{
    const struct tierce__states_opts *o = work->opts;
    size_t room = 2 * (size_t)work->totals.longest + 1;
    bool unlimited = work->out->rows[index].capacity == TIERCE__CAPACITY_UNLIMITED;
    *s = (struct states_replay){.opts = o, .row = &work->out->rows[index]};
    s->watch = (struct tierce__flat_watch){count_stored, count_left, s->row};
    s->keys = tierce__alloc(room * sizeof(*s->keys));
    s->bytes = tierce__alloc(room * sizeof(*s->bytes));
    if (s->keys == NULL || s->bytes == NULL)
        return -ENOMEM;
    int rc = tierce__flat_init(
        &s->flat, &(struct tierce__flat_opts){
                      .policy = unlimited ? NULL : tierce__policy_find("lru"),
                      .key_count = work->totals.distinct > 0 ? 2 * work->totals.distinct : 1,
                      .capacity = s->row->capacity,
                      .in_bytes = true,
                  });
    s->flat.watch = &s->watch;
    return rc;
}

static void end_row(struct states_replay *s)
{
    s->row->state_bytes = s->row->states * s->opts->state_bytes;
    TIERCE_ASSERT(s->row->state_bytes <= s->flat.used && s->flat.used <= s->row->capacity);
    s->row->kv_bytes = s->flat.used - s->row->state_bytes;
}

static int run_row(void *arg, size_t index, struct tierce__jobs *workers)
{
    const struct states_work *work = arg;
    struct states_replay s;
    uint64_t at = 0;
    int rc = begin_row(&s, work, index);
    for (const struct tierce__recorded *r = tierce__recording_first(work->recording);
         rc == 0 && r != NULL; r = tierce__recording_next(work->recording, r)) {
        replay_request(&s, r, work->shared[at++]);
        if (at % REQUESTS_TOLD == 0 && !tierce__jobs_tell(workers, REQUESTS_TOLD))
            break;
    }
    if (rc == 0)
        end_row(&s);
    tierce__flat_fini(&s.flat);
    tierce__free(s.keys);
    tierce__free(s.bytes);
    return rc;
}

/* ---- all rows -------------------------------------------------------------------------------- */

static bool are_good(const struct tierce__states_opts *opts)
{
    bool good = opts->rule_count > 0 && opts->capacity_count > 0 && opts->block_bytes > 0 &&
                opts->state_bytes > 0 && opts->block_tokens > 0;
    for (size_t i = 0; good && i < opts->capacity_count; i++)
        good = opts->capacities[i] > 0;
    return good;
}

/* Whether two keys a block fit a policy, and all bytes a sum. */
static bool fits(const struct states_work *work)
{
    uint64_t each, all;
    return work->totals.distinct <= TIERCE__POLICY_SLOTS_MAX / 2 &&
           tierce__add_ok(&each, work->opts->block_bytes, work->opts->state_bytes) &&
           tierce__mul_ok(&all, each, work->totals.distinct) && all <= TIERCE__CAPACITY_BYTES_MAX;
}

static int plan(struct states_work *work)
{
    const struct tierce__states_opts *o = work->opts;
    struct tierce__states *out = work->out;
    size_t count = o->capacity_count * o->rule_count;
    *out =
        (struct tierce__states){.rule_count = o->rule_count, .capacity_count = o->capacity_count};
    out->rows = tierce__calloc(count, sizeof(*out->rows));
    if (out->rows == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        out->rows[i] = (struct tierce__states_row){.rule = o->rules[i % o->rule_count],
                                                   .capacity = o->capacities[i / o->rule_count]};
    return scan(work);
}

int tierce__states_run(struct tierce__states *out, const struct tierce__recording *recording,
                       const struct tierce__states_opts *opts)
{
    struct tierce__states states = {0};
    struct states_work work = {.recording = recording,
                               .opts = opts,
                               .totals = tierce__recording_totals(recording),
                               .out = &states};
    if (!are_good(opts) || !fits(&work))
        return !are_good(opts) ? TIERCE_E_ARGUMENT : TIERCE_E_LIMIT;
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    size_t row_count = opts->capacity_count * opts->rule_count;
    int rc = plan(&work);
    if (rc == 0)
        rc = tierce__jobs_run(&(struct tierce__jobs_opts){
            .job_count = row_count,
            .run = run_row,
            .arg = &work,
            .threads = opts->threads,
            .total = row_count * work.totals.requests,
            .progress = opts->progress,
            .progress_arg = opts->progress_arg,
        });
    tierce__free(work.shared);
    for (size_t i = 0; rc == 0 && i < row_count; i++)
        TIERCE_ASSERT(states.rows[i].hit_tokens <= states.hit_tokens);
    if (rc == 0)
        *out = states;
    else
        tierce__states_clear(&states);
    return rc;
}

const struct tierce__states_row *tierce__states_best(const struct tierce__states *states,
                                                     size_t capacity)
{
    TIERCE_ASSERT(capacity < states->capacity_count && states->rule_count > 0);
    const struct tierce__states_row *rows = states->rows + capacity * states->rule_count;
    const struct tierce__states_row *best = &rows[0];
    for (size_t i = 1; i < states->rule_count; i++) {
        if (rows[i].hit_tokens > best->hit_tokens ||
            (rows[i].hit_tokens == best->hit_tokens && rows[i].states_stored < best->states_stored))
            best = &rows[i];
    }
    return best;
}

void tierce__states_clear(struct tierce__states *states)
{
    tierce__free(states->rows);
    *states = (struct tierce__states){0};
}
