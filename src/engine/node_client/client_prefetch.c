/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prefetch in the node: its handle queries the loaded chunks.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "engine/node_client/client.h"
#include "engine/observe/operate.h"
#include "engine/prefetch/prefetch_private.h"
#include "core/key/key.h"

#define WAIT_MS_MAX 1000u

/* Until there is a node that does it, it has brought nothing. */
static int ask_node(struct tierce_prefetch *p, const struct tierce_chain *chain)
{
    TIERCE_DASSERT(p->owed->op == TIERCE__NATIVE_PREFETCH_END);
    uint64_t view, deadline_ns = tierce__deadline_in_ms(p->engine->settings.lookup_ms);
    struct tierce__node_session *peer = tierce__client_view_peer(p->view, &view, deadline_ns);
    if (peer == NULL)
        return 0;
    const struct tierce_prefetch_opts *opts = &p->opts;
    if ((opts->flags & TIERCE_PREFETCH_VERIFY) != 0 &&
        tierce__node_session_version(peer) < TIERCE__NATIVE_VERSION_VERIFY) {
        tierce__node_session_release(peer); /* that node cannot verify */
        return 0;
    }
    uint32_t timeout_ms = opts->timeout_ms > 0 ? opts->timeout_ms : p->engine->settings.prefetch_ms;
    union tierce__native_request question = {.prefetch_begin = {.view = view,
                                                                .session = opts->session,
                                                                .from_block = opts->from_block,
                                                                .to_block = p->to_block,
                                                                .flags = opts->flags,
                                                                .tiers = opts->tiers,
                                                                .timeout_ms = timeout_ms}};
    struct tierce__asking asking;
    tierce__client_tell_tokens(p->view, peer, view, chain,
                               p->to_block - p->to_block % p->view->chunk_blocks, deadline_ns);
    int rc = tierce__client_ask_chain(&asking, peer, TIERCE__NATIVE_PREFETCH_BEGIN, &question,
                                      &question.prefetch_begin.chain, chain, deadline_ns);
    if (rc == 0) {
        p->owed->question.prefetch_end.number = asking.answer.view.number;
        p->peer = tierce__node_session_acquire(peer);
        tierce__node_session_done(&asking);
    }
    tierce__node_session_release(peer);
    return tierce__client_miss(p->view, rc);
}

int tierce__client_prefetch_begin(struct tierce_prefetch *p, const struct tierce_chain *chain)
{
    bool pin = (p->opts.flags & TIERCE_PREFETCH_PIN) != 0;
    if (p->opts.on_tier != NULL || p->opts.on_done != NULL)
        return TIERCE_E_UNSUPPORTED;
    if (p->to_block > tierce_chain_blocks(chain) ||
        !tierce__chain_fits(chain, p->view->algo, p->view->full.geometry.block_tokens))
        return TIERCE_E_ARGUMENT;
    p->owed = tierce__calloc(1, sizeof(*p->owed));
    if (p->owed == NULL)
        return -ENOMEM;
    tierce__list_init(&p->owed->node);
    p->owed->op = TIERCE__NATIVE_PREFETCH_END;
    uint64_t own = p->opts.from_block / p->view->chunk_blocks * p->view->chunk_blocks;
    own = own < p->to_block ? own : p->to_block;
    p->result = (struct tierce_prefetch_result){
        .size = sizeof(p->result), .blocks = own, .memory_blocks = own, .final = true};
    int rc = 0;
    if (tierce__engine_mode(p->engine) != TIERCE_MODE_BYPASS)
        rc = ask_node(p, chain);
    else if (pin)
        tierce__client_unpin(p->view, p->opts.session);
    if (rc < 0) {
        TIERCE_DASSERT(p->peer == NULL);
        tierce__free(p->owed);
        return rc;
    }
    p->result.final = p->peer == NULL;
    tierce__prefetch_enter(p);
    return 0;
}

static void take_tier(struct tierce_prefetch *p, const struct tierce__native_rows *rows, uint32_t i)
{
    struct tierce__native_come_tier row;
    if (i >= TIERCE_PREFETCH_TIERS_MAX || tierce__native_get_tier(&row, rows, i) < 0)
        return;
    memcpy(p->tier_names[i], row.name, sizeof(p->tier_names[i]));
    p->result.tiers[i] = (struct tierce_prefetch_tier){
        .name = p->tier_names[i], .promised = row.promised, .loaded = row.loaded};
    p->result.tier_count = i + 1;
    TIERCE_DASSERT(p->result.tier_count <= TIERCE_PREFETCH_TIERS_MAX);
}

static void take_come(struct tierce_prefetch *p, const struct tierce__native_come *come)
{
    struct tierce_prefetch_result *r = &p->result;
    r->blocks = come->blocks < p->to_block ? come->blocks : p->to_block;
    r->memory_blocks = come->memory_blocks < r->blocks ? come->memory_blocks : r->blocks;
    r->final = (come->flags & TIERCE__NATIVE_FINAL) != 0;
    r->cancelled = (come->flags & TIERCE__NATIVE_CANCELLED) != 0;
    r->late = (come->flags & TIERCE__NATIVE_LATE) != 0;
    r->short_of_memory = (come->flags & TIERCE__NATIVE_SHORT) != 0;
    for (uint32_t i = 0; i < come->tiers.count; i++)
        take_tier(p, &come->tiers, i);
    TIERCE_DASSERT(r->tier_count <= TIERCE_PREFETCH_TIERS_MAX);
}

/* Whether the prefetch is overdue by more than `grace_ns`; normally the node reports this
 * itself. */
static bool is_late(const struct tierce_prefetch *p, uint64_t grace_ns)
{
    uint64_t now_ns = tierce__now_ns();
    return now_ns >= grace_ns && now_ns - grace_ns >= p->deadline_ns;
}

static void poll_once(struct tierce_prefetch *p, uint32_t wait_ms)
{
    TIERCE_DASSERT(!p->result.final && p->owed->op == TIERCE__NATIVE_PREFETCH_END);
    union tierce__native_request question = {
        .prefetch_poll = {.prefetch = p->owed->question.prefetch_end.number, .wait_ms = wait_ms}};
    struct tierce__asking asking;
    uint64_t grace_ns = p->engine->settings.lookup_ms * TIERCE__MS_NS;
    int rc = tierce__node_session_ask(&asking, p->peer, TIERCE__NATIVE_PREFETCH_POLL, &question,
                                      tierce__deadline_in_ms(wait_ms) + grace_ns);
    if (rc == 0) {
        take_come(p, &asking.answer.prefetch_poll);
        tierce__node_session_done(&asking);
    } else if (rc != TIERCE_E_DEADLINE && rc != -ENOMEM) {
        p->result.final = p->result.cancelled = true; /* no node continues it */
    }
    if (!p->result.final && is_late(p, grace_ns))
        p->result.final = p->result.late = true;
}

/* Waits in pieces: the node limits the wait for one answer. */
bool tierce__client_prefetch_wait(struct tierce_prefetch *p, uint32_t wait_ms)
{
    TIERCE_DASSERT(p->result.final || p->peer != NULL);
    uint64_t until_ns = tierce__deadline_in_ms(wait_ms), now_ns = tierce__now_ns();
    while (!p->result.final) {
        uint64_t left_ms = now_ns < until_ns ? (until_ns - now_ns) / TIERCE__MS_NS : 0;
        poll_once(p, left_ms < WAIT_MS_MAX ? (uint32_t)left_ms : WAIT_MS_MAX);
        now_ns = tierce__now_ns();
        if (now_ns >= until_ns)
            break;
    }
    return p->result.final;
}

void tierce__client_prefetch_end(struct tierce_prefetch *p)
{
    TIERCE_DASSERT(p->owed->op == TIERCE__NATIVE_PREFETCH_END);
    tierce__lock_take(tierce__prefetch_lock(p));
    TIERCE_DASSERT(!tierce__list_empty(&p->node) && p->refs == 1);
    tierce__list_remove(&p->node);
    tierce__lock_drop(tierce__prefetch_lock(p));
    if (p->peer != NULL)
        (void)tierce__node_session_end(p->peer, p->owed, &p->owed->question);
    else
        tierce__free(p->owed);
    tierce__node_session_release(p->peer);
    tierce__prefetch_free(p);
}
