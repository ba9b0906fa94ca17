/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_PRIVATE_H
#define TIERCE_PROXY_PRIVATE_H

#include <pthread.h>

#include "base/latency.h"
#include "base/list.h"
#include "base/text/line.h"
#include "base/threads/lock.h"
#include "net/http_fetch.h"
#include "net/held.h"
#include "net/server/serve.h"
#include "net/tenant_words.h"
#include "net/tokens.h"
#include "proxy/bodies.h"
#include "proxy/engine_choice.h"
#include "proxy/proxy.h"
#include "proxy/tenants.h"

/*
 * The parts of a proxy. A request becomes an exchange, which one relay owns from then on: a thread
 * with all its connections to engines. libmicrohttpd's threads only create exchanges.
 */

enum tierce__proxy_counter {
#define TIERCE_COUNTER(row, name, text) TIERCE__PROXY_COUNT_##row,
#include "proxy/proxy_counters.def"
#undef TIERCE_COUNTER
    TIERCE__PROXY_COUNTERS
};

struct tierce__relay;

#define TIERCE__PROXY_ROUTES 6u

struct tierce__proxy {
    const struct tierce__proxy_config *config;
    struct tierce__engines decode, prefill; /* prefill without engines: each computes its own */
    struct tierce__inboxes inboxes;         /* of `decode` */
    struct tierce__tenants tenants;         /* of both */
    struct tierce__server *server;
    struct tierce__route routes[TIERCE__PROXY_ROUTES];
    struct tierce__relay *relays; /* [config->loops] */
    uint32_t relay_count;
    _Atomic uint32_t next_relay; /* relaxed */
    _Atomic uint32_t active;     /* exchanges; release by the last, acquire by drain */
    _Atomic uint32_t unanswered; /* requests whose answer's end was not handed over yet; relaxed */
    atomic_bool is_draining;     /* relaxed */
    struct tierce__held held;    /* requests, and answers that are not streamed */
    _Atomic uint64_t counters[TIERCE__PROXY_COUNTERS]; /* relaxed */
    struct tierce__latency first_byte, prefill_time;

    struct tierce__lock lock;                                 /* PROXY: tokens */
    struct tierce__tokens *tokens;                            /* of clients; NULL: no file */
    struct tierce__tenant_words engine_tokens, router_tokens; /* that the proxy sends */
};

static inline void tierce__proxy_count(struct tierce__proxy *proxy, enum tierce__proxy_counter row)
{
    atomic_fetch_add_explicit(&proxy->counters[row], 1, memory_order_relaxed);
}

/* The tenant of a call, "" without one, whose token is checked if the proxy requires one. False: it
 * was answered. */
bool tierce__proxy_admit(struct tierce__proxy *proxy, struct tierce__call *call,
                         char tenant[TIERCE__TOKEN_NAME_BYTES]);
/* Answers with an error of the proxy. */
void tierce__proxy_refuse(struct tierce__call *call, unsigned status, const char *why);

/* Whether the engine is one of `decode`, whose indices count for the inboxes. */
static inline bool tierce__proxy_has_inbox(const struct tierce__proxy *proxy,
                                           const struct tierce__engine *engine)
{
    return engine->index < proxy->decode.count && engine == &proxy->decode.items[engine->index];
}

/* After a call of an engine whose connection failed (rc != 0), the engine may have been restarted:
 * its tickets are forgotten. */
static inline void tierce__proxy_forget_inbox(struct tierce__proxy *proxy,
                                              const struct tierce__engine *engine, int rc)
{
    if (rc != 0 && tierce__proxy_has_inbox(proxy, engine))
        tierce__inboxes_forget(&proxy->inboxes, engine->index);
}

/* ---- relay.c: the thread of exchanges -------------------------------------------------------- */

struct tierce__relay {
    struct tierce__proxy *proxy;
    struct tierce__fetcher *fetcher;
    pthread_t thread;
    bool has_thread;
    struct tierce__list exchanges; /* the thread's alone */
    struct tierce__list paused;    /* of those, the ones whose client reads slowly */
    struct tierce__probes *probes; /* of the first relay; NULL: none */
    uint64_t look_ns;              /* when all exchanges are looked at next */
    atomic_bool has_room;          /* a client has read: acquire, release */

    struct tierce__lock lock;
    /* Under the lock (PROXY_RELAY). */
    struct tierce__list inbox; /* new exchanges */
    bool is_cut;               /* all exchanges end with an error */
    bool is_ending;            /* the thread ends when it has none */
};

/* Errors: -ENOMEM, negative errno. After an error too, tierce__relay_stop is due. */
TIERCE_MUSTUSE int tierce__relay_start(struct tierce__relay *relay, struct tierce__proxy *proxy,
                                       bool has_probes);
/* Ends all exchanges. Thread: any. */
void tierce__relay_cut(struct tierce__relay *relay);
/* When there are no exchanges and no server: ends the thread. */
void tierce__relay_stop(struct tierce__relay *relay);

/* ---- probes.c: health checks, on a relay's thread -------------------------------------------- */

struct tierce__probes;
TIERCE_MUSTUSE int tierce__probes_create(struct tierce__probes **out, struct tierce__proxy *proxy,
                                         struct tierce__fetcher *fetcher);
void tierce__probes_destroy(struct tierce__probes *probes);
/* Begins the checks that are due; returns when the next one is. */
uint64_t tierce__probes_run(struct tierce__probes *probes, uint64_t now_ns);

/* ---- exchange.c, exchange_answer.c: one request and its answer ------------------------------- */

enum tierce__exchange_step {
    TIERCE__EXCHANGE_TOKENIZE, /* an engine turns the prompt into tokens */
    TIERCE__EXCHANGE_QUERY,    /* the router index says who holds them */
    TIERCE__EXCHANGE_INBOX,    /* the engine that will answer is asked for tickets */
    TIERCE__EXCHANGE_PREFILL,
    TIERCE__EXCHANGE_DECODE,
    TIERCE__EXCHANGE_STREAM, /* the answer has begun */
};

#define TIERCE__EXCHANGE_TAIL 16u

struct tierce__exchange {
    struct tierce__list node;  /* `inbox` or `exchanges` of the relay */
    struct tierce__list pause; /* `paused` of the relay */
    struct tierce__relay *relay;
    struct tierce__call *call;          /* until its answer begins */
    struct tierce__http_stream *stream; /* from then on, if it is streamed */
    const char *path;                   /* "/v1/completions" */
    enum tierce__exchange_step step;
    uint64_t begun_ns, step_ns;

    char *body; /* the client's, or NULL for a GET */
    size_t body_bytes;
    struct tierce__body request; /* of the body, if it had to be read */
    struct tierce__line made;    /* the body of this step, if it is not the client's */
    struct tierce__tenant *tenant;
    char *authorization;  /* for engines, or NULL */
    char request_id[128]; /* the client's, or our own */
    char traceparent[64]; /* the client's, or "" */
    size_t held;          /* bytes of the body and of its copies */
    size_t made_held;     /* bytes of `made` */

    struct tierce__choice decode_choice, prefill_choice;
    struct tierce__engine *engine; /* of the fetch */
    /* The engine that will answer, chosen before the prefill; counted as its load. NULL: none */
    struct tierce__engine *decoder;
    struct tierce__fetch *fetch;
    uint64_t tried;    /* engines of this step, by their bits */
    uint32_t attempts; /* of this step that failed */
    bool has_params;   /* `made` has the kv_transfer_params of a prefill */
    bool is_made;      /* `made` is the client's request without its kv_transfer_params */

    long status;                     /* of the answer */
    char type[128], retry_after[32]; /* its headers, or "" */
    struct tierce__line answer;      /* not streamed */
    size_t answer_held;
    const char *refusal;              /* why `take` ended the fetch, or NULL: the client is gone */
    unsigned refusal_status;          /* of the answer to the client then */
    uint64_t byte_ns;                 /* when bytes of the stream came last */
    char tail[TIERCE__EXCHANGE_TAIL]; /* the last bytes of the stream */
    size_t tail_bytes;
    struct tierce__line event; /* of the stream: bytes of an event whose end has not come */
    size_t room_wanted;        /* of the stream, while it is paused */
    bool is_within;            /* a part of an event was passed on, because it was too long */
};

/* Creates one for a call, which it takes over. Returns false if there is no memory. Thread: any. */
bool tierce__exchange_create(struct tierce__proxy *proxy, struct tierce__call *call,
                             const char *path, struct tierce__tenant *tenant);

/* All below: on the relay's thread. */
void tierce__exchange_begin(struct tierce__exchange *exchange);
/* Checks client, deadlines and engine; may end it. */
void tierce__exchange_look(struct tierce__exchange *exchange, uint64_t now_ns);
/* A client of the relay has read. If it is this one: goes on, or notices that it is gone. */
void tierce__exchange_resume(struct tierce__exchange *exchange);
/* Ends it because the proxy ends. */
void tierce__exchange_cut(struct tierce__exchange *exchange);

/* exchange_answer.c */
/* `take` of a fetch: collects the answer, or passes a stream on. */
size_t tierce__exchange_take(void *arg, const char *bytes, size_t count);
/* Forgets the answer of the fetch before. */
void tierce__exchange_clear_answer(struct tierce__exchange *exchange);
/* Passes the collected answer on whole. It is over then. */
void tierce__exchange_pass_on(struct tierce__exchange *exchange);
/* Answers with an error of the proxy, or ends the stream with one. It is over then. */
void tierce__exchange_fail(struct tierce__exchange *exchange, unsigned status, const char *why);
/* The stream of the engine has ended; is_delimited: by a mark of its own. It is over then. */
void tierce__exchange_end_stream(struct tierce__exchange *exchange, int rc, const char *why,
                                 bool is_delimited);
/* The client is gone. It is over then. */
void tierce__exchange_drop(struct tierce__exchange *exchange);
/* Releases the engine of the fetch; cancels a fetch in progress. */
void tierce__exchange_let_go(struct tierce__exchange *exchange);
/* Releases the engine that was to answer. */
void tierce__exchange_forget_decoder(struct tierce__exchange *exchange);

/* pages.c */
void tierce__proxy_health(void *arg, struct tierce__call *call);
void tierce__proxy_readyz(void *arg, struct tierce__call *call);
void tierce__proxy_metrics(void *arg, struct tierce__call *call);

#endif
