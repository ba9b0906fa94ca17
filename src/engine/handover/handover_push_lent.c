/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/handover/handover_push_lent.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/log/log_repeat.h"
#include "engine/node_client/client.h"
#include "engine/store/store_watch.h"
#include "engine/view.h"

#define SHORT_MS 1000u

enum lent_end {
    LENT_GOES_ON,
    LENT_ENDED, /* the node may not know it: is_over repeats it */
    LENT_TOLD,
};

struct tierce__lent_push {
    struct tierce_engine *engine;
    uint64_t node;   /* that knows the push: tierce__node_session_number */
    uint64_t number; /* there */
    _Atomic int end; /* enum lent_end; relaxed */
};

/* A call about the push. */
static int ask_node(struct tierce__lent_push *push, const struct tierce_view *view,
                    const struct tierce_chain *chain, struct tierce__native_hand ask,
                    uint64_t *number)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said = {0};
    uint64_t node = push->node;
    const struct tierce__client_about about = {.view = view, .chain = chain, .node = &node};
    ask.number = push->number;
    ask.timeout_ms = SHORT_MS;
    ask.host = ask.token = ask.why = "";
    int rc = tierce__client_hand_over(push->engine, &about, &ask, &said, why);
    if (rc == 0 && number != NULL)
        *number = said.number;
    return rc;
}

int tierce__lent_push_begin(struct tierce__lent_push **out, struct tierce_view *view,
                            const struct tierce__push_to *to)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    struct tierce__native_handed said;
    struct tierce__lent_push *push = tierce__calloc(1, sizeof(*push));
    if (push == NULL)
        return -ENOMEM;
    push->engine = view->engine;
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_PUSH,
                                            .port = to->port,
                                            .uses_tls = to->uses_tls,
                                            .wait_ms = to->wait_ms,
                                            .timeout_ms = to->timeout_ms,
                                            .host = to->host,
                                            .token = to->ticket,
                                            .why = ""};
    const struct tierce__client_about about = {.view = view, .node = &push->node};
    int rc = tierce__client_hand_over(view->engine, &about, &ask, &said, why);
    if (rc == TIERCE_E_ARGUMENT && why[0] == '\0') {
        tierce__log_repeated(TIERCE_LOG_WARN, "node_pushes_nothing",
                             "err=\"the node is of an older version\" consequence=\"prompts are "
                             "not pushed: decoders read them\" remedy=\"upgrade the node\"");
        rc = TIERCE_E_UNSUPPORTED;
    }
    if (rc < 0) {
        tierce__free(push);
        return rc;
    }
    push->number = said.number;
    *out = push;
    return 0;
}

int64_t tierce__lent_push_held(struct tierce__lent_push *push, struct tierce_view *view,
                               const struct tierce_chain *chain, uint64_t to_block)
{
    uint64_t chunks = 0;
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_PUSH_HELD,
                                            .to_block = to_block};
    int rc = ask_node(push, view, chain, ask, &chunks);
    return rc == -ENOMEM ? rc : (int64_t)(chunks < to_block ? chunks : to_block);
}

int tierce__lent_push_watch(struct tierce__lent_push *push, struct tierce_store *store)
{
    uint64_t node;
    struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_PUSH_STORE};
    const struct tierce_view *view = tierce__store_at_node(store, &node, &ask.session);
    if (node != push->node)
        return 0; /* the node was restarted, and with it the push has ended */
    int rc = ask_node(push, view, NULL, ask, NULL);
    return rc == -ENOMEM ? rc : tierce__store_tell(store);
}

void tierce__lent_push_end(struct tierce__lent_push *push)
{
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_PUSH_END};
    int rc = ask_node(push, NULL, NULL, ask, NULL);
    int end = rc == 0 || rc == TIERCE_E_MISS ? LENT_TOLD : LENT_ENDED;
    atomic_store_explicit(&push->end, end, memory_order_relaxed);
}

bool tierce__lent_push_is_over(struct tierce__lent_push *push, struct tierce__pushed *out)
{
    struct tierce__pushed unused;
    struct tierce__native_pushed said;
    out = out != NULL ? out : &unused;
    *out = (struct tierce__pushed){0};
    if (atomic_load_explicit(&push->end, memory_order_relaxed) == LENT_ENDED)
        tierce__lent_push_end(push);
    int rc = tierce__client_push_poll(push->engine, push->node, push->number, &said, out->why);
    if (rc == TIERCE_E_DEADLINE || rc == -EAGAIN || rc == -ENOMEM)
        return false; /* it is asked again */
    if (rc < 0) {
        out->status = rc;
        snprintf(out->why, sizeof(out->why), "the node does not answer, or was restarted");
        return true;
    }
    out->chunks = said.chunks;
    out->bytes = said.bytes;
    out->present = said.present;
    out->left_out = said.left_out;
    out->over_ns = said.over_ns;
    out->status = (int)(int32_t)said.status;
    return said.is_over == 1;
}

void tierce__lent_push_destroy(struct tierce__lent_push *push)
{
    const struct tierce__native_hand ask = {.kind = TIERCE__NATIVE_HAND_PUSH_CLOSE};
    (void)ask_node(push, NULL, NULL, ask, NULL); /* or it ends with the client, or as forgotten */
    tierce__free(push);
}
