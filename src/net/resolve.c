/* SPDX-License-Identifier: Apache-2.0 */
#include "net/resolve.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/threads.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* getaddrinfo_a would do, but its threads are the C library's own, which the thread sanitizer does
 * not survive. */

enum lookup_state {
    LOOKUP_RUNS,     /* on a thread */
    LOOKUP_OVER,     /* the thread has gone: all is the asker's */
    LOOKUP_GIVEN_UP, /* the asker has gone: all is the thread's */
};

struct tierce__resolve {
    char host[256], service[8];
    struct addrinfo hints, *list;
    int code; /* of getaddrinfo */
    int over; /* an eventfd that the thread writes before it goes; -1: there was no thread */
    /* The side that finds that the other one has gone releases it. */
    _Atomic enum lookup_state state;
};

static _Atomic unsigned lookups; /* running threads */

static void release(struct tierce__resolve *r)
{
    if (r->list != NULL)
        freeaddrinfo(r->list);
    if (r->over >= 0)
        close(r->over);
    tierce__free(r);
}

static void *look_up(void *arg)
{
    struct tierce__resolve *r = arg;
    const uint64_t one = 1;
    r->code = getaddrinfo(r->host, r->service, &r->hints, &r->list);
    TIERCE_DASSERT(r->code != 0 || r->list != NULL);
    atomic_fetch_sub_explicit(&lookups, 1, memory_order_relaxed);
    /* Before the state, because the descriptor may be closed after that. */
    (void)!write(r->over, &one, sizeof(one));
    if (atomic_exchange_explicit(&r->state, LOOKUP_OVER, memory_order_acq_rel) == LOOKUP_GIVEN_UP)
        release(r);
    return NULL;
}

/* Without a thread the name remains unresolved. */
static void start_thread(struct tierce__resolve *r)
{
    pthread_t thread;
    unsigned before = atomic_fetch_add_explicit(&lookups, 1, memory_order_relaxed);
    atomic_store_explicit(&r->state, LOOKUP_RUNS, memory_order_relaxed);
    r->over = before < TIERCE__RESOLVE_THREADS ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    if (r->over >= 0 && tierce__thread_start(&thread, look_up, r) == 0) {
        pthread_detach(thread);
        return;
    }
    atomic_fetch_sub_explicit(&lookups, 1, memory_order_relaxed);
    atomic_store_explicit(&r->state, LOOKUP_OVER, memory_order_relaxed);
}

int tierce__resolve_begin(struct tierce__resolve **out, const char *host, uint16_t port)
{
    struct tierce__resolve *r = tierce__calloc(1, sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->over = -1;
    r->state = LOOKUP_OVER;
    snprintf(r->host, sizeof(r->host), "%s", host);
    snprintf(r->service, sizeof(r->service), "%u", (unsigned)port);
    r->hints = (struct addrinfo){.ai_family = AF_UNSPEC,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    r->code = getaddrinfo(r->host, r->service, &r->hints, &r->list);
    if (r->code == EAI_NONAME && strlen(host) < sizeof(r->host)) {
        r->hints.ai_flags = AI_NUMERICSERV;
        r->code = EAI_AGAIN;
        start_thread(r);
    }
    *out = r;
    return 0;
}

int tierce__resolve_poll(struct tierce__resolve *resolve, const struct addrinfo **list, char *why,
                         size_t why_room)
{
    if (atomic_load_explicit(&resolve->state, memory_order_acquire) != LOOKUP_OVER)
        return -EINPROGRESS;
    if (resolve->code == 0) {
        TIERCE_ASSERT(resolve->list != NULL);
        *list = resolve->list;
        return 0;
    }
    snprintf(why, why_room, "%s: %s", resolve->host, gai_strerror(resolve->code));
    return resolve->code == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH;
}

int tierce__resolve_fd(const struct tierce__resolve *resolve)
{
    return resolve->over;
}

void tierce__resolve_end(struct tierce__resolve *resolve)
{
    if (resolve != NULL && atomic_exchange_explicit(&resolve->state, LOOKUP_GIVEN_UP,
                                                    memory_order_acq_rel) == LOOKUP_OVER)
        release(resolve);
}
