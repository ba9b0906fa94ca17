/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/threads.h"
#include "proxy/proxy_private.h"

#include <string.h>

#define LOOK_MS       100u /* interval of looks at all exchanges: a client that left is noticed */
#define RECEIVE_BYTES (256u << 10) /* of a socket to an engine; the kernel doubles it */
#define WAIT_MS       60000u       /* without exchanges and checks */

static struct tierce__exchange *exchange_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__exchange, node);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Moves new exchanges to the thread's list. */
static void take_inbox(struct tierce__relay *relay, bool *is_cut, bool *is_ending)
{
    struct tierce__list fresh;
    tierce__list_init(&fresh);
    tierce__lock_take(&relay->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &relay->inbox) {
        tierce__list_remove(node);
        tierce__list_push_back(&fresh, node);
    }
    *is_cut = relay->is_cut;
    *is_ending = relay->is_ending;
    tierce__lock_drop(&relay->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &fresh) {
        tierce__list_remove(node);
        tierce__list_push_back(&relay->exchanges, node);
        tierce__exchange_begin(exchange_of(node));
    }
}

/* Those that pause again are not resumed a second time. */
static void resume_paused(struct tierce__relay *relay)
{
    struct tierce__list paused;
    if (!atomic_exchange_explicit(&relay->has_room, false, memory_order_acquire))
        return;
    tierce__list_init(&paused);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &relay->paused) {
        tierce__list_remove(node);
        tierce__list_push_back(&paused, node);
    }
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &paused)
        tierce__exchange_resume(TIERCE__CONTAINER_OF(node, struct tierce__exchange, pause));
}

/* An exchange may end, and then is on no list; no other is removed. */
static void look(struct tierce__relay *relay, uint64_t now_ns)
{
    if (relay->look_ns > now_ns)
        return;
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &relay->exchanges)
        tierce__exchange_look(exchange_of(node), now_ns);
    relay->look_ns = now_ns + LOOK_MS * TIERCE__MS_NS;
}

static void cut(struct tierce__relay *relay)
{
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &relay->exchanges)
        tierce__exchange_cut(exchange_of(node));
}

static uint32_t wait_ms(const struct tierce__relay *relay, uint64_t next_ns)
{
    uint64_t now_ns = tierce__now_ns();
    if (!tierce__list_empty(&relay->exchanges) && relay->look_ns < next_ns)
        next_ns = relay->look_ns;
    uint64_t ms = next_ns > now_ns ? (next_ns - now_ns) / TIERCE__MS_NS + 1 : 0;
    return ms < WAIT_MS ? (uint32_t)ms : WAIT_MS;
}

static void *work(void *arg)
{
    struct tierce__relay *relay = arg;
    for (;;) {
        bool is_cut, is_ending;
        take_inbox(relay, &is_cut, &is_ending);
        if (is_cut)
            cut(relay);
        if (is_ending)
            break;
        resume_paused(relay);
        tierce__fetcher_step(relay->fetcher);
        look(relay, tierce__now_ns());
        uint64_t next_ns = TIERCE__DEADLINE_NEVER; /* after the step, which ends checks */
        if (relay->probes != NULL)
            next_ns = tierce__probes_run(relay->probes, tierce__now_ns());
        tierce__fetcher_wait(relay->fetcher, wait_ms(relay, next_ns));
    }
    TIERCE_ASSERT(tierce__list_empty(&relay->exchanges));
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__relay_start(struct tierce__relay *relay, struct tierce__proxy *proxy, bool has_probes)
{
    const struct tierce__proxy_config *config = proxy->config;
    const char *ca_file = config->engine_ca_file;
    relay->proxy = proxy;
    tierce__list_init(&relay->exchanges);
    tierce__list_init(&relay->paused);
    tierce__list_init(&relay->inbox);
    tierce__lock_init(&relay->lock, TIERCE__LOCK_PROXY_RELAY);
    int rc = tierce__fetcher_create(
        &relay->fetcher,
        &(struct tierce__fetcher_opts){.ca_file = ca_file[0] != '\0' ? ca_file : NULL,
                                       .connect_ms = config->connect_ms,
                                       .connections_max = config->requests_max / config->loops + 1,
                                       .receive_bytes = RECEIVE_BYTES});
    if (rc == 0 && has_probes)
        rc = tierce__probes_create(&relay->probes, proxy, relay->fetcher);
    if (rc == 0)
        rc = tierce__thread_start(&relay->thread, work, relay);
    relay->has_thread = rc == 0;
    return rc;
}

void tierce__relay_cut(struct tierce__relay *relay)
{
    tierce__lock_take(&relay->lock);
    relay->is_cut = true;
    tierce__lock_drop(&relay->lock);
    tierce__fetcher_wake(relay->fetcher);
}

void tierce__relay_stop(struct tierce__relay *relay)
{
    if (relay->has_thread) {
        tierce__lock_take(&relay->lock);
        TIERCE_ASSERT(tierce__list_empty(&relay->inbox));
        relay->is_ending = true;
        tierce__lock_drop(&relay->lock);
        tierce__fetcher_wake(relay->fetcher);
        pthread_join(relay->thread, NULL);
    }
    tierce__probes_destroy(relay->probes);
    tierce__fetcher_destroy(relay->fetcher);
    tierce__lock_fini(&relay->lock);
}
