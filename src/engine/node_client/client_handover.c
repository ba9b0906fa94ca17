/* SPDX-License-Identifier: Apache-2.0 */
/* HAND_OVER: the node carries out a call of engine/handover/handover.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "engine/node_client/client.h"
#include "engine/view.h"

#define GRACE_MS 2000u /* for an answer to arrive, and for the node's connection to end */

static int take(struct tierce__native_handed *out, char why[TIERCE__CLIENT_WHY_BYTES],
                const struct tierce__native_handed *said)
{
    int status = (int)(int32_t)said->status;
    snprintf(why, TIERCE__CLIENT_WHY_BYTES, "%s", said->why);
    *out = *said;
    out->why = NULL;
    return status <= 0 ? status : TIERCE_E_FORMAT;
}

/* How long the node may take. */
static uint64_t answer_ms(const struct tierce__native_hand *ask)
{
    switch (ask->kind) {
    case TIERCE__NATIVE_HAND_EXPECT:
    case TIERCE__NATIVE_HAND_PUSH:
        return GRACE_MS; /* the time is that of the offer or push */
    case TIERCE__NATIVE_HAND_READ:
    case TIERCE__NATIVE_HAND_READ_OTHER:
        return (uint64_t)ask->timeout_ms + ask->bytes + GRACE_MS;
    default:
        return (uint64_t)ask->timeout_ms + GRACE_MS;
    }
}

/* Whether the node is the one that is meant; else its reference is released. */
static bool is_meant(struct tierce__node_session *peer, uint64_t *node)
{
    uint64_t number = tierce__node_session_number(peer);
    if (node == NULL || *node == 0 || *node == number) {
        if (node != NULL)
            *node = number;
        return true;
    }
    tierce__node_session_release(peer);
    return false;
}

static uint64_t sooner(const struct tierce__client_about *about, uint64_t deadline_ns)
{
    return about->until_ns != 0 && about->until_ns < deadline_ns ? about->until_ns : deadline_ns;
}

/* The node, which knows the views. */
static struct tierce__node_session *find_peer(struct tierce_engine *engine,
                                              const struct tierce__client_about *about,
                                              struct tierce__native_hand *ask)
{
    uint64_t soon_ns = sooner(about, tierce__deadline_in_ms(engine->settings.lookup_ms));
    if (about->view == NULL)
        return tierce__client_peer(engine->client, soon_ns);
    struct tierce__node_session *peer = tierce__client_view_peer(about->view, &ask->view, soon_ns);
    if (peer == NULL || about->other == NULL)
        return peer;
    struct tierce__node_session *same =
        tierce__client_view_peer(about->other, &ask->number, soon_ns);
    bool is_same =
        same != NULL && tierce__node_session_number(same) == tierce__node_session_number(peer);
    tierce__node_session_release(same);
    if (is_same)
        return peer;
    tierce__node_session_release(peer); /* the node was restarted in between */
    return NULL;
}

int tierce__client_hand_over(struct tierce_engine *engine, const struct tierce__client_about *about,
                             const struct tierce__native_hand *ask,
                             struct tierce__native_handed *out, char why[TIERCE__CLIENT_WHY_BYTES])
{
    union tierce__native_request question = {.hand_over = *ask};
    struct tierce__asking asking;
    const struct tierce_chain *chain = about->chain;
    uint64_t deadline_ns = sooner(about, tierce__deadline_in_ms((uint32_t)answer_ms(ask)));
    TIERCE_DASSERT(engine->level_count == 0 && (chain == NULL || about->view != NULL));
    struct tierce__node_session *peer = find_peer(engine, about, &question.hand_over);
    snprintf(why, TIERCE__CLIENT_WHY_BYTES, "no node answers (node.socket)");
    if (peer == NULL || !is_meant(peer, about->node))
        return TIERCE_E_DOWN;
    int rc = TIERCE_E_VERSION;
    if (tierce__node_session_version(peer) < TIERCE__NATIVE_VERSION_HAND_OVER)
        snprintf(why, TIERCE__CLIENT_WHY_BYTES, "the node is of an older version");
    else if (chain != NULL)
        rc = tierce__client_ask_chain(&asking, peer, TIERCE__NATIVE_HAND_OVER, &question,
                                      &question.hand_over.chain, chain, deadline_ns);
    else
        rc = tierce__node_session_ask(&asking, peer, TIERCE__NATIVE_HAND_OVER, &question,
                                      deadline_ns);
    if (rc == 0) {
        rc = take(out, why, &asking.answer.hand_over);
        tierce__node_session_done(&asking);
    } else if (rc > 0) {
        if (about->view != NULL)
            (void)tierce__client_miss(about->view, rc);
        rc = TIERCE_E_MISS;
    }
    tierce__node_session_release(peer);
    return rc;
}

/* Whether the node has not ended since. */
static bool is_there(struct tierce_engine *engine, uint64_t node)
{
    struct tierce__node_session *peer =
        tierce__client_peer(engine->client, tierce__deadline_in_ms(engine->settings.lookup_ms));
    if (peer == NULL || !is_meant(peer, &node))
        return false;
    tierce__node_session_release(peer);
    return true;
}

int tierce__client_push_poll(struct tierce_engine *engine, uint64_t node, uint64_t push,
                             struct tierce__native_pushed *out, char why[TIERCE__CLIENT_WHY_BYTES])
{
    const union tierce__native_request question = {.push_poll = {push}};
    struct tierce__asking asking;
    struct tierce__node_session *peer =
        tierce__client_peer(engine->client, tierce__deadline_in_ms(engine->settings.lookup_ms));
    if (peer == NULL || !is_meant(peer, &node))
        return TIERCE_E_DOWN;
    int rc = tierce__node_session_ask(&asking, peer, TIERCE__NATIVE_PUSH_POLL, &question,
                                      tierce__deadline_in_ms(GRACE_MS));
    if (rc == 0) {
        *out = asking.answer.push_poll;
        snprintf(why, TIERCE__CLIENT_WHY_BYTES, "%s", out->why);
        out->why = why;
        tierce__node_session_done(&asking);
    }
    tierce__node_session_release(peer);
    if (rc == TIERCE_E_DOWN && is_there(engine, node))
        rc = -EAGAIN; /* it is busy */
    return rc > 0 ? TIERCE_E_MISS : rc;
}
