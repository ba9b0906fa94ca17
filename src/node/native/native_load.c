/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of loads. */
#include "node/native/native_calls.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

static uint32_t load_ms(const struct tierce__native_call *call)
{
    const struct tierce__node_config *config = call->native->node->config;
    uint32_t asked = call->ask.load_begin.timeout_ms;
    return asked > 0 && asked < TIERCE_PIN_MS_MAX ? asked : config->load_ms;
}

static uint64_t leased_bytes(const struct tierce__load_lease *lease)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < lease->count; i++)
        bytes += lease->leased[i].object != NULL ? lease->leased[i].bytes : 0;
    return bytes;
}

/* The answer about a lease. */
static int answer_lease(struct tierce__native_call *call,
                        const struct tierce__native_held_load *load)
{
    size_t count = load->lease->count;
    const struct tierce__leased *leased = load->lease->leased;
    struct tierce__native_loan *say = &call->say.load_begin;
    uint8_t *row = tierce__native_make_rows(call, &say->chunks, count, TIERCE__NATIVE_LENT_BYTES);
    if (row == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++, row += TIERCE__NATIVE_LENT_BYTES) {
        bool is_there = leased[i].object != NULL && !leased[i].failed;
        bool waits = leased[i].object == NULL && !leased[i].failed;
        TIERCE_ASSERT(!is_there ||
                      (uint64_t)(leased[i].object - call->native->memory.base) + leased[i].bytes <=
                          call->native->memory.bytes);
        struct tierce__native_lent out = {
            .offset = is_there ? (uint64_t)(leased[i].object - call->native->memory.base) : 0,
            .bytes = leased[i].bytes,
            .index = (uint32_t)leased[i].index,
            .block_count = leased[i].block_count,
            .from = leased[i].from,
            .to = leased[i].to,
            .kind = (uint8_t)leased[i].kind,
            .state = waits            ? TIERCE__NATIVE_WAITS
                     : !is_there      ? TIERCE__NATIVE_FAILED
                     : leased[i].here ? TIERCE__NATIVE_HERE
                                      : TIERCE__NATIVE_COMING,
            .origin = (uint8_t)leased[i].origin};
        memcpy(out.hash, leased[i].hash, TIERCE_HASH_BYTES);
        tierce__native_put_lent(row, &out);
    }
    return 0;
}

/* Pins that another client made stay, because others may load from them too. */
static int lend(struct tierce__native_call *call, struct tierce__native_about *about)
{
    const struct tierce__native_load *ask = &call->ask.load_begin;
    uint32_t timeout_ms = load_ms(call);
    uint64_t late_ms = (uint64_t)timeout_ms + call->native->node->config->pin_ms;
    struct tierce__native_held_load *load = tierce__calloc(1, sizeof(*load));
    if (load == NULL)
        return -ENOMEM;
    bool takes_pins = about->view->part.count == 1 &&
                      tierce__native_unpin(call->client, about->view, ask->session);
    struct tierce__load_lease_what what = {.chain = about->chain->chain,
                                           .from_block = ask->from_block,
                                           .to_block = ask->to_block,
                                           .session = ask->session,
                                           .part = &about->view->part,
                                           .timeout_ms = timeout_ms,
                                           .wait_ms = ask->wait_ms,
                                           .tiers = ask->tiers,
                                           .chain_stays = true,
                                           .keeps_pins = !takes_pins};
    int rc = tierce__load_lease_begin(&load->lease, about->view->shared->view, &what);
    if (rc < 0) {
        tierce__free(load);
        return rc;
    }
    load->bytes = leased_bytes(load->lease);
    load->open.deadline_ns = tierce__now_ns() + late_ms * TIERCE__MS_NS;
    call->say.load_begin.left_ms = (uint32_t)(late_ms < UINT32_MAX ? late_ms : UINT32_MAX);
    bool is_held = tierce__native_hold(call->client, load->bytes);
    rc = is_held ? answer_lease(call, load) : TIERCE_E_FULL;
    if (rc == 0) {
        load->view = tierce__native_keep_view(about);
        load->chain = about->chain;
        about->chain = NULL;
        uint64_t number = tierce__native_add(call->client, TIERCE__NATIVE_LOADS, &load->open);
        call->say.load_begin.load = number;
        if (number > 0)
            return 0;
        tierce__native_end_load(call->client, load, NULL);
        return TIERCE_E_LIMIT;
    }
    load->lease->ops->end(load->lease, NULL);
    if (is_held)
        tierce__native_unhold(call->client, load->bytes);
    tierce__free(load);
    return rc;
}

int tierce__native_answer_load_begin(struct tierce__native_call *call)
{
    const struct tierce__native_load *ask = &call->ask.load_begin;
    struct tierce__native_about about;
    if (tierce__native_is_draining(call))
        return TIERCE_E_CLOSED;
    int rc = tierce__native_begin_about(call, &about, ask->view, &ask->chain, ask->from_block,
                                        ask->to_block);
    if (rc == 0)
        rc = lend(call, &about);
    if (rc == TIERCE_E_FULL || rc == TIERCE_E_LIMIT)
        tierce__node_count(call->native->node, TIERCE__NODE_native_refused, 1);
    tierce__native_end_about(call, &about);
    return rc;
}

static struct tierce__native_held_load *load_of(struct tierce__native_open *open)
{
    return open != NULL ? TIERCE__CONTAINER_OF(open, struct tierce__native_held_load, open) : NULL;
}

/* A load that a question was about, which may have been ended meanwhile. */
static void put_load(struct tierce__native_call *call, struct tierce__native_held_load *load)
{
    if (!tierce__native_put(call->client, &load->open))
        tierce__native_end_load(call->client, load, NULL);
}

static int wait_for_layer(struct tierce__native_call *call, struct tierce__native_held_load *load)
{
    struct tierce__native_ready *say = &call->say.load_wait;
    const struct tierce_part *part = &load->view->part;
    uint32_t layer = call->ask.load_wait.layer;
    if (layer >= part->layer_count)
        return TIERCE_E_ARGUMENT;
    layer += part->first_layer;
    size_t count = load->lease->count;
    uint8_t *states = tierce__native_make_rows(call, &say->states, count, 1);
    if (states == NULL)
        return -ENOMEM;
    load->lease->ops->ahead(load->lease, layer);
    for (size_t i = 0; i < count; i++)
        states[i] = load->lease->ops->wait(load->lease, i, layer) ? TIERCE__NATIVE_HERE
                                                                  : TIERCE__NATIVE_FAILED;
    say->ready = tierce__load_lease_ready(load->lease, layer) - part->first_layer;
    return 0;
}

int tierce__native_answer_load_wait(struct tierce__native_call *call)
{
    struct tierce__native_held_load *load =
        load_of(tierce__native_get(call->client, TIERCE__NATIVE_LOADS, call->ask.load_wait.load));
    if (load == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    int rc = wait_for_layer(call, load);
    put_load(call, load);
    return rc;
}

/* Handles the client's verdict on a chunk. The node verifies a bad verdict itself, so that a client
 * cannot remove chunks of others. */
static void judge_chunk(struct tierce__load_lease *lease, size_t i, uint32_t verdict)
{
    TIERCE_DASSERT(i < lease->count);
    if (verdict == TIERCE__NATIVE_UNUSED)
        tierce__load_lease_skip(lease, i);
    else if (verdict != TIERCE__NATIVE_GOOD || !lease->leased[i].here)
        tierce__load_lease_look(lease, i, verdict == TIERCE__NATIVE_BAD_CELLS);
}

/* Takes the chunk with all its layers. */
static bool take_chunk(struct tierce__native_client *client, struct tierce__native_held_load *load,
                       size_t i)
{
    const struct tierce_part *part = &load->view->part;
    bool there = load->lease->ops->take(load->lease, i);
    there = tierce__native_rehold(client, &load->bytes, leased_bytes(load->lease)) && there;
    for (uint32_t l = 0; l < part->layer_count && there; l++)
        there = load->lease->ops->wait(load->lease, i, part->first_layer + l);
    if (!there) {
        tierce__load_lease_skip(load->lease, i);
        load->lease->ops->give_back(load->lease, i);
    }
    return there;
}

static int lend_next(struct tierce__native_call *call, struct tierce__native_held_load *load)
{
    const struct tierce__native_next *ask = &call->ask.load_next;
    size_t count = load->lease->count;
    const struct tierce__leased *leased = load->lease->leased;
    if (ask->chunk >= count || ask->chunk < load->next || ask->verdict > TIERCE__NATIVE_UNUSED ||
        !load->lease->is_too_large)
        return TIERCE_E_ARGUMENT;
    if (load->next > 0) {
        judge_chunk(load->lease, load->next - 1, ask->verdict);
        load->lease->ops->give_back(load->lease, load->next - 1);
    }
    load->next = (size_t)ask->chunk + 1;
    call->say.load_next = (struct tierce__native_passed){.state = TIERCE__NATIVE_FAILED};
    if (!take_chunk(call->client, load, ask->chunk))
        return 0;
    leased += ask->chunk;
    TIERCE_ASSERT((uint64_t)(leased->object - call->native->memory.base) + leased->bytes <=
                  call->native->memory.bytes);
    call->say.load_next = (struct tierce__native_passed){
        .offset = (uint64_t)(leased->object - call->native->memory.base),
        .state = TIERCE__NATIVE_HERE,
        .origin = (uint32_t)leased->origin};
    return 0;
}

int tierce__native_answer_load_next(struct tierce__native_call *call)
{
    struct tierce__native_held_load *load =
        load_of(tierce__native_get(call->client, TIERCE__NATIVE_LOADS, call->ask.load_next.load));
    if (load == NULL)
        return TIERCE__NATIVE_UNKNOWN;
    int rc = lend_next(call, load);
    put_load(call, load);
    return rc;
}

/* Handles the client's verdict on each chunk. blocks[i]: loaded. */
static int judge(const struct tierce__native_call *call,
                 const struct tierce__native_held_load *load, uint32_t *blocks)
{
    const struct tierce__native_rows *rows = &call->ask.load_end.verdicts;
    struct tierce__native_result result;
    size_t count = load->lease->count;
    const struct tierce__leased *leased = load->lease->leased;
    if (rows->count != count)
        return TIERCE_E_ARGUMENT;
    for (uint32_t i = 0; i < count; i++) {
        if (tierce__native_get_result(&result, rows, i) < 0 ||
            result.blocks > leased[i].to - leased[i].from)
            return TIERCE_E_ARGUMENT;
        judge_chunk(load->lease, i, result.verdict);
        blocks[i] = leased[i].failed ? 0 : result.blocks;
    }
    return 0;
}

int tierce__native_answer_load_end(struct tierce__native_call *call)
{
    const struct tierce__native_load_end *ask = &call->ask.load_end;
    bool later;
    struct tierce__native_held_load *load =
        load_of(tierce__native_take(call->client, TIERCE__NATIVE_LOADS, ask->load, &later));
    if (load == NULL)
        return later ? 0 : TIERCE__NATIVE_UNKNOWN;
    size_t count = load->lease->count;
    uint32_t *blocks = ask->verdicts.count > 0 ? tierce__calloc(count, sizeof(*blocks)) : NULL;
    int rc = blocks != NULL ? judge(call, load, blocks) : 0;
    tierce__native_end_load(call->client, load, rc == 0 ? blocks : NULL);
    tierce__free(blocks);
    return rc;
}
