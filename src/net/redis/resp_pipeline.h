/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NET_RESP_PIPELINE_H
#define TIERCE_NET_RESP_PIPELINE_H

#include "base/arena.h"
#include "net/redis/resp_pool.h"

/*
 * Commands and scripts that are sent together, and their answers.
 *
 *     tierce__resp_pipeline_begin(&batch, pool);
 *     TIERCE__RESP_COMMAND(&batch, "HGET", key, "field");
 *     rc = tierce__resp_pipeline_run(&batch);
 *     if (rc == 0)
 *         use(&batch.values[0]);
 *     tierce__resp_pipeline_end(&batch);
 *
 * An error while commands are added is kept in `rc`, and run returns it. A batch takes a link of
 * the pool when it is run and gives it back when it ends: a thread that runs a second batch before
 * it has ended the first one may wait for itself.
 *
 * Thread: one at a time.
 */

/* A script. With an empty hash its text is sent each time. */
struct tierce__resp_script {
    const char *text;
    char sha[41]; /* of a script that servers have loaded */
};

struct tierce__resp_pipeline {
    uint64_t deadline_ns; /* 0: as resp_client.h says */
    bool writes;          /* the URI's wait_replicas applies; set by scripts */
    bool repeats;         /* sent again once if the connection is lost: reads only */
    int rc;
    /* After run. [borrow until end] */
    const struct tierce__resp_value *values; /* [count] */
    const struct tierce__resp_value *error;  /* the first error reply, or NULL */
    char why[TIERCE__RESP_WHY_BYTES];        /* a sentence about the failure, without passwords */
    /* The words of all commands. */
    struct tierce__arena *arena;
    const char **words;
    size_t *lengths;
    size_t word_count, word_capacity;
    /* Private. */
    struct tierce__resp_pool *pool;
    struct tierce__resp_link *link;
    struct tierce__arena own_arena;
    struct tierce__resp_pipeline_command *commands;
    size_t count, capacity;
};

/* [borrow until end] the pool. */
void tierce__resp_pipeline_begin(struct tierce__resp_pipeline *batch,
                                 struct tierce__resp_pool *pool);
void tierce__resp_pipeline_end(struct tierce__resp_pipeline *batch);

/* Starts a command with its first words, of which the second one is its key. [borrow until end] the
 * texts. */
void tierce__resp_pipeline_command(struct tierce__resp_pipeline *batch, const char *const *words,
                                   size_t count);
#define TIERCE__RESP_COMMAND(batch, ...)                                                           \
    tierce__resp_pipeline_command(batch, (const char *const[]){__VA_ARGS__},                       \
                                  sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* Starts a call of a script with its keys. [borrow until end] all. */
void tierce__resp_pipeline_script(struct tierce__resp_pipeline *batch,
                                  const struct tierce__resp_script *script, const char *const *keys,
                                  size_t count);

/* Adds a word to the command that was started last. [borrow until end] the text; addf copies. */
void tierce__resp_pipeline_add(struct tierce__resp_pipeline *batch, const void *text, size_t bytes);
void tierce__resp_pipeline_add_text(struct tierce__resp_pipeline *batch, const char *text);
void tierce__resp_pipeline_addf(struct tierce__resp_pipeline *batch, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A text by printf rules in the batch's arena; "" for no memory, which `rc` holds. */
const char *tierce__resp_pipeline_textf(struct tierce__resp_pipeline *batch, const char *format,
                                        ...) __attribute__((format(printf, 2, 3)));

/* Sends all commands and reads all answers. Scripts that a server has forgotten are sent as text;
 * if there are several commands, the other answers are then NIL. Errors: -EPROTO: `error` is set;
 * those of adding; TIERCE_E_DEADLINE (no link was free); as tierce__resp_link_begin and _read. */
TIERCE_MUSTUSE int tierce__resp_pipeline_run(struct tierce__resp_pipeline *batch);

/* The same at the i-th server, for commands without a key. May be run again. -ENOENT: there are
 * fewer servers. */
TIERCE_MUSTUSE int tierce__resp_pipeline_run_at(struct tierce__resp_pipeline *batch, size_t i);

#endif
