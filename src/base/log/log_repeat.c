/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log_repeat.h"
#include "base/clock.h"
#include "base/mix.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

/* A plain mutex for the same reason as log.c's. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct tierce__log_recent recent_of_all;

bool tierce__log_repeat_pass(struct tierce__log_repeat table[TIERCE__LOG_REPEAT_SLOTS],
                             uint32_t *held, uint64_t hash, uint64_t now_ns)
{
    struct tierce__log_repeat *r = &table[0];
    for (uint32_t i = 0; i < TIERCE__LOG_REPEAT_SLOTS; i++) {
        if (table[i].passed_ns != 0 && table[i].hash == hash) {
            r = &table[i];
            break;
        }
        if (table[i].passed_ns < r->passed_ns)
            r = &table[i];
    }
    bool known = r->passed_ns != 0 && r->hash == hash;
    if (known && now_ns - r->passed_ns < TIERCE__LOG_REPEAT_PERIOD_NS) {
        r->held++;
        return false;
    }
    *held = known ? r->held : 0;
    *r = (struct tierce__log_repeat){.hash = hash, .passed_ns = now_ns};
    return true;
}

bool tierce__log_event_pass(struct tierce__log_event table[TIERCE__LOG_EVENT_SLOTS],
                            uint32_t *left_out, uint64_t hash, uint64_t now_ns)
{
    struct tierce__log_event *e = &table[0];
    for (uint32_t i = 0; i < TIERCE__LOG_EVENT_SLOTS; i++) {
        if (table[i].since_ns != 0 && table[i].hash == hash) {
            e = &table[i];
            break;
        }
        if (table[i].since_ns < e->since_ns)
            e = &table[i];
    }
    bool known = e->since_ns != 0 && e->hash == hash;
    *left_out = 0;
    if (!known || now_ns - e->since_ns >= TIERCE__LOG_REPEAT_PERIOD_NS) {
        *left_out = known ? e->left_out : 0;
        *e = (struct tierce__log_event){.hash = hash, .since_ns = now_ns};
    }
    bool pass = e->lines < TIERCE__LOG_EVENT_LINES;
    e->lines += pass;
    e->left_out += !pass;
    return pass;
}

/* The message was not logged after all. */
static void take_back(struct tierce__log_recent *recent, uint32_t held, uint64_t event,
                      uint64_t message)
{
    for (uint32_t i = 0; i < TIERCE__LOG_REPEAT_SLOTS; i++)
        if (recent->messages[i].passed_ns != 0 && recent->messages[i].hash == message)
            recent->messages[i] = (struct tierce__log_repeat){0};
    for (uint32_t i = 0; i < TIERCE__LOG_EVENT_SLOTS; i++)
        if (recent->events[i].since_ns != 0 && recent->events[i].hash == event)
            recent->events[i].left_out += held;
}

bool tierce__log_recent_pass(struct tierce__log_recent *recent, struct tierce__log_missing *missing,
                             uint64_t event, uint64_t message, uint64_t now_ns)
{
    struct tierce__log_missing since = {0};
    if (!tierce__log_repeat_pass(recent->messages, &since.held, message, now_ns))
        return false;
    if (!tierce__log_event_pass(recent->events, &since.left_out, event, now_ns)) {
        take_back(recent, since.held, event, message);
        return false;
    }
    *missing = since;
    return true;
}

void tierce__log_repeated(enum tierce_log_level level, const char *event, const char *format, ...)
{
    char detail[960]; /* and the count, within what tierce__log keeps */
    va_list ap;
    va_start(ap, format);
    vsnprintf(detail, sizeof(detail), format, ap);
    va_end(ap);
    char repeated[32] = "", left_out[32] = "";
    struct tierce__log_missing missing;
    uint64_t of_event = tierce__hash_text(TIERCE__HASH_TEXT, event);
    uint64_t hash = tierce__hash_text(of_event, detail), now_ns = tierce__now_ns();
    pthread_mutex_lock(&mutex);
    bool pass = tierce__log_recent_pass(&recent_of_all, &missing, of_event, hash, now_ns);
    pthread_mutex_unlock(&mutex);
    if (!pass)
        return;
    if (missing.held > 0)
        snprintf(repeated, sizeof(repeated), " repeated=%u", missing.held);
    if (missing.left_out > 0)
        snprintf(left_out, sizeof(left_out), " left_out=%u", missing.left_out);
    tierce__log(level, event, "%s%s%s", detail, repeated, left_out);
}
