/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_pipeline.h"
#include "base/assert.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { KEY = 1, SCRIPT_KEY = 3 /* the first key's place in a script's command */ };

struct tierce__resp_pipeline_command {
    size_t first, count; /* words */
    const struct tierce__resp_script *script;
    bool is_answered;
};

void tierce__resp_pipeline_begin(struct tierce__resp_pipeline *batch,
                                 struct tierce__resp_pool *pool)
{
    TIERCE_DASSERT(pool != NULL);
    *batch = (struct tierce__resp_pipeline){.pool = pool};
    batch->arena = &batch->own_arena;
}

static void give_link(struct tierce__resp_pipeline *batch)
{
    if (batch->link != NULL)
        tierce__resp_pool_give(batch->pool, batch->link);
    batch->link = NULL;
}

void tierce__resp_pipeline_end(struct tierce__resp_pipeline *batch)
{
    TIERCE_DASSERT(batch->arena == &batch->own_arena);
    give_link(batch);
    tierce__arena_clear(&batch->own_arena);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Moves an array to memory of twice its size; NULL: no memory. */
static void *grow(struct tierce__arena *arena, const void *old, size_t count, size_t size)
{
    TIERCE_DASSERT(count > 0);
    void *grown = tierce__arena_alloc(arena, count * 2 * size);
    if (grown != NULL && old != NULL)
        memcpy(grown, old, count * size);
    return grown;
}

void tierce__resp_pipeline_add(struct tierce__resp_pipeline *batch, const void *text, size_t bytes)
{
    enum { FIRST = 32 };
    TIERCE_DASSERT(batch->link == NULL);
    TIERCE_DASSERT(batch->word_count <= batch->word_capacity);
    if (batch->rc == 0 && batch->word_count == batch->word_capacity) {
        size_t half = batch->word_capacity > 0 ? batch->word_capacity : FIRST;
        batch->words = grow(batch->arena, (const void *)batch->words, half, sizeof(char *));
        batch->lengths = grow(batch->arena, batch->lengths, half, sizeof(size_t));
        batch->word_capacity = 2 * half;
        if (batch->words == NULL || batch->lengths == NULL)
            batch->rc = -ENOMEM;
    }
    if (batch->rc < 0)
        return;
    TIERCE_DASSERT(batch->count == 0 || batch->commands[batch->count - 1].first +
                                                batch->commands[batch->count - 1].count ==
                                            batch->word_count);
    batch->words[batch->word_count] = text;
    batch->lengths[batch->word_count++] = bytes;
    if (batch->count > 0)
        batch->commands[batch->count - 1].count++;
}

void tierce__resp_pipeline_add_text(struct tierce__resp_pipeline *batch, const char *text)
{
    tierce__resp_pipeline_add(batch, text, strlen(text));
}

static const char *print(struct tierce__resp_pipeline *batch, size_t *bytes, const char *format,
                         va_list args)
{
    char text[64], *long_text;
    va_list again;
    va_copy(again, args);
    int count = vsnprintf(text, sizeof(text), format, args);
    TIERCE_DASSERT(count >= 0);
    *bytes = (size_t)count;
    if (*bytes < sizeof(text))
        long_text = tierce__arena_copy(batch->arena, text, *bytes);
    else if ((long_text = tierce__arena_alloc(batch->arena, *bytes + 1)) != NULL)
        (void)vsnprintf(long_text, *bytes + 1, format, again);
    va_end(again);
    if (long_text == NULL)
        batch->rc = -ENOMEM;
    return long_text != NULL ? long_text : "";
}

void tierce__resp_pipeline_addf(struct tierce__resp_pipeline *batch, const char *format, ...)
{
    va_list args;
    size_t bytes;
    va_start(args, format);
    const char *text = print(batch, &bytes, format, args);
    va_end(args);
    tierce__resp_pipeline_add(batch, text, bytes);
}

const char *tierce__resp_pipeline_textf(struct tierce__resp_pipeline *batch, const char *format,
                                        ...)
{
    va_list args;
    size_t bytes;
    va_start(args, format);
    const char *text = print(batch, &bytes, format, args);
    va_end(args);
    return text;
}

/* ---- commands -------------------------------------------------------------------------------- */

static void start(struct tierce__resp_pipeline *batch, const struct tierce__resp_script *script)
{
    enum { FIRST = 4 };
    TIERCE_DASSERT(batch->values == NULL);
    TIERCE_DASSERT(batch->count <= batch->capacity);
    if (batch->rc == 0 && batch->count == batch->capacity) {
        size_t half = batch->capacity > 0 ? batch->capacity : FIRST;
        batch->commands = grow(batch->arena, batch->commands, half, sizeof(*batch->commands));
        batch->capacity = 2 * half;
        if (batch->commands == NULL)
            batch->rc = -ENOMEM;
    }
    if (batch->rc == 0)
        batch->commands[batch->count++] =
            (struct tierce__resp_pipeline_command){.first = batch->word_count, .script = script};
}

void tierce__resp_pipeline_command(struct tierce__resp_pipeline *batch, const char *const *words,
                                   size_t count)
{
    TIERCE_DASSERT(count > 0);
    start(batch, NULL);
    for (size_t i = 0; i < count; i++)
        tierce__resp_pipeline_add_text(batch, words[i]);
}

void tierce__resp_pipeline_script(struct tierce__resp_pipeline *batch,
                                  const struct tierce__resp_script *script, const char *const *keys,
                                  size_t count)
{
    bool is_loaded = script->sha[0] != '\0';
    TIERCE_DASSERT(count > 0); /* in a cluster the first key says where it goes */
    start(batch, script);
    batch->writes = true;
    tierce__resp_pipeline_add_text(batch, is_loaded ? "EVALSHA" : "EVAL");
    tierce__resp_pipeline_add_text(batch, is_loaded ? script->sha : script->text);
    tierce__resp_pipeline_addf(batch, "%zu", count);
    for (size_t i = 0; i < count; i++)
        tierce__resp_pipeline_add_text(batch, keys[i]);
}

/* ---- running --------------------------------------------------------------------------------- */

static int append(struct tierce__resp_pipeline *batch,
                  const struct tierce__resp_pipeline_command *command)
{
    TIERCE_DASSERT(command->count > 0);
    TIERCE_DASSERT(command->first + command->count <= batch->word_count);
    return tierce__resp_link_append(batch->link, command->script != NULL ? SCRIPT_KEY : KEY,
                                    &batch->words[command->first], &batch->lengths[command->first],
                                    command->count);
}

/* Sends the commands that are not answered yet, and reads all their answers, so that none is left
 * in the connection. */
static int exchange(struct tierce__resp_pipeline *batch, struct tierce__resp_value *values)
{
    TIERCE_DASSERT(batch->rc == 0 && batch->count > 0);
    int rc = tierce__resp_link_begin(batch->link);
    for (size_t i = 0; rc == 0 && i < batch->count; i++)
        if (!batch->commands[i].is_answered)
            rc = append(batch, &batch->commands[i]);
    if (rc == 0 && batch->writes)
        tierce__resp_link_writes(batch->link);
    if (rc == 0)
        rc = tierce__resp_link_flush(batch->link, batch->deadline_ns);
    for (size_t i = 0; rc == 0 && i < batch->count; i++) {
        if (!batch->commands[i].is_answered)
            rc = tierce__resp_link_read(batch->link, &values[i], batch->deadline_ns);
        else /* its text was forgotten */
            values[i] = (struct tierce__resp_value){.type = TIERCE__RESP_NIL};
    }
    return rc;
}

/* Returns how many scripts a server does not know. They are sent as text next: from then on it
 * knows them under the same hash. */
static size_t use_texts(struct tierce__resp_pipeline *batch,
                        const struct tierce__resp_value *values)
{
    size_t lost = 0;
    for (size_t i = 0; i < batch->count; i++) {
        struct tierce__resp_pipeline_command *command = &batch->commands[i];
        command->is_answered =
            command->script == NULL || !tierce__resp_is_error(&values[i], "NOSCRIPT");
        if (command->is_answered)
            continue;
        TIERCE_DASSERT(command->count >= 2);
        batch->words[command->first] = "EVAL";
        batch->lengths[command->first] = sizeof("EVAL") - 1;
        batch->words[command->first + 1] = command->script->text;
        batch->lengths[command->first + 1] = strlen(command->script->text);
        lost++;
    }
    return lost;
}

/* The first error; a script that a server does not know comes behind all others. */
static const struct tierce__resp_value *find_error(const struct tierce__resp_value *values,
                                                   size_t count)
{
    const struct tierce__resp_value *error = NULL;
    for (size_t i = 0; i < count; i++)
        if (values[i].type == TIERCE__RESP_ERROR &&
            (error == NULL || tierce__resp_is_error(error, "NOSCRIPT")))
            error = &values[i];
    return error;
}

/* The connection was lost during the call. */
static bool is_lost(int rc)
{
    return rc == -ECONNRESET || rc == -EPIPE || rc == -ENOTCONN || rc == -ECONNABORTED;
}

/* Takes a link and memory for the answers. */
static int prepare(struct tierce__resp_pipeline *batch, struct tierce__resp_value **values)
{
    TIERCE_DASSERT(batch->count > 0 || batch->rc < 0);
    int rc = batch->rc;
    if (rc == 0 &&
        (*values = tierce__arena_calloc(batch->arena, batch->count, sizeof(**values))) == NULL)
        rc = -ENOMEM;
    if (rc == 0 && batch->link == NULL)
        rc = tierce__resp_pool_take(batch->pool, &batch->link, batch->deadline_ns);
    batch->values = NULL;
    batch->error = NULL;
    return rc;
}

/* The result of a run, and its words. */
static int conclude(struct tierce__resp_pipeline *batch, const struct tierce__resp_value *values,
                    int rc)
{
    const char *why = rc < 0 && batch->link != NULL ? tierce__resp_link_why(batch->link) : "";
    if (rc == 0) {
        batch->values = values;
        batch->error = find_error(values, batch->count);
    }
    if (batch->error != NULL) {
        rc = -EPROTO;
        why = tierce__resp_words(batch->error);
    }
    if (rc < 0)
        snprintf(batch->why, sizeof(batch->why), "%s", *why != '\0' ? why : tierce_strerror(rc));
    TIERCE_DASSERT(rc < 0 || batch->error == NULL);
    return rc;
}

int tierce__resp_pipeline_run(struct tierce__resp_pipeline *batch)
{
    struct tierce__resp_value *values = NULL;
    int rc = prepare(batch, &values);
    if (rc == 0)
        rc = exchange(batch, values);
    if (is_lost(rc) && batch->repeats)
        rc = exchange(batch, values);
    const struct tierce__resp_value *error = rc == 0 ? find_error(values, batch->count) : NULL;
    if (error != NULL && tierce__resp_is_error(error, "NOSCRIPT") && use_texts(batch, values) > 0)
        rc = exchange(batch, values);
    return conclude(batch, values, rc);
}

int tierce__resp_pipeline_run_at(struct tierce__resp_pipeline *batch, size_t i)
{
    struct tierce__resp_value *values = NULL;
    struct tierce__resp *server = NULL;
    int rc = prepare(batch, &values);
    if (rc == 0)
        rc = tierce__resp_link_begin(batch->link);
    if (rc == 0)
        rc = tierce__resp_link_node(batch->link, i, &server);
    if (rc == 0)
        rc = tierce__resp_begin(server);
    for (size_t c = 0; rc == 0 && c < batch->count; c++)
        rc = tierce__resp_append(server, &batch->words[batch->commands[c].first],
                                 &batch->lengths[batch->commands[c].first],
                                 batch->commands[c].count);
    if (rc == 0)
        rc = tierce__resp_flush(server, batch->deadline_ns);
    for (size_t c = 0; rc == 0 && c < batch->count; c++)
        rc = tierce__resp_read(server, &values[c], batch->deadline_ns);
    return conclude(batch, values, rc);
}
