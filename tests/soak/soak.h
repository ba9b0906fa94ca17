/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SOAK_H
#define TIERCE_TESTS_SOAK_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tierce/tierce.h>

#include "base/clock.h"
#include "engine/view.h"
#include "test_random.h"
#include "tier_fault.h"

/*
 * Shared by the rounds (test_soak.c), the steps (soak_steps.c) and the subscriber (soak_events.c).
 * Every byte of a block follows from its hash, its namespace, its shard and its layer, so that
 * nobody has to remember what a right byte is.
 */

enum {
    THREADS = 3,
    NAMESPACES = 3,
    PROMPTS = 16,
    BLOCKS_MAX = 40,
    PAGED_BLOCKS = 64,
    LAYERS_MAX = 4,
    BLOCK_STRIDE = 1024,
    FLIGHTS = 3,
    HOLDS = 3,
    PIN_MS = 1000,
    SLACK_MS = 8000, /* a wait may end that much behind its deadline: the machine may be busy */
};

/* Fails with the place in the run. A worker has no test runner around it. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            soak_fail(__FILE__, __LINE__, #condition);                                             \
    } while (0)

_Noreturn void soak_fail(const char *file, int line, const char *condition);

struct prompt {
    size_t blocks;
    size_t shared; /* leading blocks that it has in common with its family's first prompt */
};

struct soak {
    uint64_t seed;
    unsigned round;
    struct prompt prompts[PROMPTS];
    char folder[64];
    struct tierce_config *config;
    struct tierce_engine *engine;
    struct tierce__tier *disk; /* the wrapper around it */
    struct tierce_view *views[NAMESPACES];
    bool spoils;                 /* this round has faults that make bytes wrong */
    bool tainted;                /* wrong bytes may lie in the folder */
    bool roomy;                  /* the folder has room for all there is: nothing is evicted */
    bool endless;                /* this process is to be killed */
    uint64_t (*facts)[PROMPTS];  /* NULL, or [NAMESPACES]: see note_facts */
    _Atomic unsigned clears;     /* twice each, and each move; odd while one is under way */
    _Atomic uint64_t prefetches; /* begun, and not yet told their end */
};

extern struct soak soak;

/* A prefetch under way. */
struct flight {
    struct tierce_prefetch *prefetch; /* NULL: the place is free */
    unsigned ns, prompt;
    uint64_t session, from, to;
    uint64_t begun_ns, give_up_ns;
    unsigned clears;
    bool pin;
};

/* The blocks promised to a session. */
struct hold {
    uint64_t session; /* 0: the place is free */
    unsigned ns, prompt;
    uint64_t from, memory_blocks;
    uint64_t at_ns;
    unsigned clears;
};

struct worker {
    unsigned number, step;
    struct test_random random;
    struct tierce_chain *chains[NAMESPACES][PROMPTS];
    uint8_t *memory[LAYERS_MAX]; /* the engine's, of every namespace in turn */
    struct tierce_paged_layer layers[NAMESPACES][LAYERS_MAX];
    struct tierce_paged paged[NAMESPACES];
    struct flight flights[FLIGHTS];
    struct hold holds[HOLDS];
    uint64_t sessions;
};

/* Namespace 1 differs from 0 in its weights alone, so that both have the same hashes. */
struct tierce_namespace soak_namespace(unsigned ns);
struct tierce_engine_stats soak_stats(void);

/* After the round's views were opened. */
void worker_start(struct worker *w, unsigned number);
/* One random step, and what must hold after it. */
void worker_step(struct worker *w);
/* Gives back what it holds, or forgets some of it, which then must end by itself. */
void worker_stop(struct worker *w);
/* After the round's views were closed. */
void worker_fini(struct worker *w);

/* Blocks of a prompt that are durable and stay so: those of whole chunks, for a longer chunk may
 * take the place of a tail at any time. */
uint64_t soak_durable(const struct worker *w, unsigned ns, unsigned prompt);

/* Notes how many blocks of each prompt of a namespace are durable now, in memory that outlives this
 * process. An operation that may delete some of them removes them from here first. */
void note_facts(struct worker *w, unsigned ns);

/* Subscribes to the round's events. */
void events_start(struct test_random *random);
/* When all is idle: the reported chunks are the stored chunks. */
void events_settle(uint32_t timeout_ms);
/* Adds what there was. */
void events_stop(uint64_t *told, uint64_t *gaps);

/* Loads the first blocks of a prompt with time enough; what is loaded is right. Returns the blocks
 * loaded. */
int64_t worker_load_all(struct worker *w, unsigned ns, unsigned prompt, uint64_t blocks);
/* A lookup and a store of a prompt. */
void worker_ask(struct worker *w, unsigned ns, unsigned prompt);

#endif
