/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"

#include <inttypes.h>

#define COMMAND "optimize"

static const struct tierce__state_rule usual_rules[] = {
    {.every = 1},   {.every = 4},     {.every = 16},
    {.last = true}, {.branch = true}, {.last = true, .branch = true},
};

static double share(uint64_t part, uint64_t all)
{
    return all > 0 ? (double)part / (double)all : 0;
}

int tierce__optimize_check_states(const struct tierce__optimize *request,
                                  const struct tierce__optimize_trace *trace)
{
    if (request->sim.state_bytes == 0)
        return TIERCE__CLI_OK;
    if (request->block_bytes == 0)
        return tierce__cli_usage(COMMAND, "--states requires the bytes of a block of full "
                                          "attention: --block-bytes SIZE or --model NAME");
    if (tierce__optimize_block_tokens(&request->money, trace) == 0)
        return tierce__cli_usage(COMMAND,
                                 "a trace of the format %s does not state the tokens of a block: "
                                 "--states requires --block-tokens N",
                                 trace->format);
    return TIERCE__CLI_OK;
}

/* Lists the given capacities in bytes, then unlimited. Returns their number. */
static size_t list_capacities(uint64_t out[TIERCE__OPTIMIZE_LIST_MAX + 1],
                              const struct tierce__optimize *request)
{
    size_t count = 0;
    for (size_t i = 0; request->has_capacities && i < request->capacity_count; i++) {
        uint64_t blocks = request->capacities[i];
        if (blocks == TIERCE__CAPACITY_UNLIMITED)
            continue;
        bool fits = blocks <= TIERCE__CAPACITY_BYTES_MAX / request->block_bytes;
        out[count++] = fits ? blocks * request->block_bytes : TIERCE__CAPACITY_BYTES_MAX;
    }
    out[count++] = TIERCE__CAPACITY_UNLIMITED;
    return count;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_amount(FILE *file, uint64_t bytes)
{
    char text[32] = "unlimited";
    if (bytes != TIERCE__CAPACITY_UNLIMITED)
        tierce__human_bytes(text, sizeof(text), bytes);
    fprintf(file, "%12s", text);
}

static void print_row(FILE *file, const struct tierce__states *states,
                      const struct tierce__states_row *row, uint64_t state_bytes, bool is_best)
{
    char rule[TIERCE__STATE_RULE_BYTES];
    tierce__state_rule_print(&row->rule, rule);
    fprintf(file, "%-20s", rule);
    print_amount(file, row->capacity);
    fprintf(file, "%14" PRIu64 "%11.2f%%%11.2f%%%12" PRIu64, row->hit_tokens,
            100 * share(row->hit_tokens, states->tokens),
            100 * share(states->hit_tokens - row->hit_tokens, states->tokens), row->states);
    print_amount(file, row->state_bytes);
    print_amount(file, row->kv_bytes);
    print_amount(file, row->states_stored * state_bytes);
    fprintf(file, "%s\n", is_best ? "  best" : "");
}

static void print_states(FILE *file, const struct tierce__optimize *request,
                         const struct tierce__states *states, uint32_t block_tokens)
{
    char state[32], block[32];
    tierce__human_bytes(state, sizeof(state), request->sim.state_bytes);
    tierce__human_bytes(block, sizeof(block), request->block_bytes);
    fprintf(file,
            "\nrecurrent states of %s, and KV of %s per block of %" PRIu32
            " tokens: hits in tokens, shares of the %" PRIu64 " tokens looked up, by LRU:\n",
            state, block, block_tokens, states->tokens);
    fprintf(file, "%-20s%12s%14s%12s%12s%12s%12s%12s%12s\n", "states kept", "capacity", "hits",
            "hit rate", "lost", "states", "in states", "in KV", "written");
    for (size_t c = 0; c < states->capacity_count; c++) {
        const struct tierce__states_row *best = tierce__states_best(states, c);
        for (size_t i = 0; i < states->rule_count; i++) {
            const struct tierce__states_row *row = &states->rows[c * states->rule_count + i];
            print_row(file, states, row, request->sim.state_bytes, row == best);
        }
    }
    fputs(
        "lost: hits of every boundary without a limit, minus hits; states, in states, in KV: held "
        "at the end; written: states over the whole trace\n",
        file);
}

/* ---- the CSV --------------------------------------------------------------------------------- */

static int write_csv(const struct tierce__optimize *request, const struct tierce__states *states,
                     const char *name)
{
    struct tierce__new_file file;
    if (request->sim.state_csv == NULL)
        return TIERCE__CLI_OK;
    int status = tierce__optimize_open(&file, request->sim.state_csv);
    if (status != TIERCE__CLI_OK)
        return status;
    fputs("trace,rule,capacity,requests,tokens,hit_tokens,hit_rate,lost_tokens,states,state_bytes,"
          "kv_bytes,states_stored,best\n",
          file.file);
    for (size_t i = 0; i < states->capacity_count * states->rule_count; i++) {
        const struct tierce__states_row *row = &states->rows[i];
        char rule[TIERCE__STATE_RULE_BYTES];
        tierce__state_rule_print(&row->rule, rule);
        fprintf(file.file, "%s,%s,", name, rule);
        tierce__optimize_print_capacity(file.file, row->capacity);
        fprintf(file.file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f,%" PRIu64, states->lookups,
                states->tokens, row->hit_tokens, share(row->hit_tokens, states->tokens),
                states->hit_tokens - row->hit_tokens);
        fprintf(file.file, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%d\n", row->states,
                row->state_bytes, row->kv_bytes, row->states_stored,
                row == tierce__states_best(states, i / states->rule_count));
    }
    return tierce__optimize_close(&file, request->sim.state_csv);
}

/* ---- running --------------------------------------------------------------------------------- */

static int fail(const struct tierce__optimize *request, int rc)
{
    char state[32], block[32];
    if (rc != TIERCE_E_LIMIT)
        return tierce__optimize_fail_replay("the replay of states", rc);
    tierce__human_bytes(state, sizeof(state), request->sim.state_bytes);
    tierce__human_bytes(block, sizeof(block), request->block_bytes);
    return tierce__cli_fail(COMMAND,
                            "--states: the trace has too many distinct blocks: accepted are fewer "
                            "than 2^31 blocks and at most 4096 PiB, with %s per block and %s per "
                            "state",
                            block, state);
}

int tierce__optimize_run_states(const struct tierce__optimize *request,
                                const struct tierce__optimize_trace *trace, const char *name)
{
    const struct tierce__optimize_sim *sim = &request->sim;
    uint64_t capacities[TIERCE__OPTIMIZE_LIST_MAX + 1];
    struct tierce__states states;
    struct tierce__progress progress;
    if (sim->state_bytes == 0)
        return TIERCE__CLI_OK;
    struct tierce__states_opts opts = {
        .size = sizeof(struct tierce__states_opts),
        .rules = sim->rule_count > 0 ? sim->rules : usual_rules,
        .rule_count =
            sim->rule_count > 0 ? sim->rule_count : sizeof(usual_rules) / sizeof(usual_rules[0]),
        .capacities = capacities,
        .capacity_count = list_capacities(capacities, request),
        .block_bytes = request->block_bytes,
        .state_bytes = sim->state_bytes,
        .block_tokens = tierce__optimize_block_tokens(&request->money, trace),
        .threads = request->threads,
        .progress = tierce__progress_tell,
        .progress_arg = &progress,
    };
    tierce__progress_begin(&progress, "replaying states", 1);
    progress.unit = "requests";
    int rc = tierce__states_run(&states, trace->recording, &opts);
    tierce__progress_end(&progress);
    if (rc < 0)
        return fail(request, rc);
    if (tierce__optimize_piped(request) == 0)
        print_states(stdout, request, &states, opts.block_tokens);
    int status = write_csv(request, &states, name);
    tierce__states_clear(&states);
    return status;
}
