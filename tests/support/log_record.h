/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TEST_LOG_RECORD_H
#define TIERCE_TEST_LOG_RECORD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tierce/log.h>

/*
 * The log events of a test, one line each: "event fields". Any thread may log; the functions below
 * are for the test's thread. A test that logs more than the room ends at once.
 */

static struct {
    pthread_mutex_t lock;
    size_t bytes;
    char text[64 * 1024];
    char last[64]; /* event */
} log_record = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void record_line(void *arg, enum tierce_log_level level, const char *event,
                               const char *fields)
{
    (void)arg, (void)level;
    pthread_mutex_lock(&log_record.lock);
    size_t room = sizeof(log_record.text) - log_record.bytes;
    int n = snprintf(log_record.text + log_record.bytes, room, "%s %s\n", event, fields);
    if (n < 0 || (size_t)n >= room)
        abort();
    log_record.bytes += (size_t)n;
    snprintf(log_record.last, sizeof(log_record.last), "%s", event);
    pthread_mutex_unlock(&log_record.lock);
}

static inline void forget_recorded(void)
{
    pthread_mutex_lock(&log_record.lock);
    log_record.bytes = 0;
    log_record.text[0] = log_record.last[0] = '\0';
    pthread_mutex_unlock(&log_record.lock);
}

/* Records the events of this level and above from now on, and forgets earlier ones. */
static inline void record_log(enum tierce_log_level lowest)
{
    forget_recorded();
    tierce_set_log_fn(record_line, NULL, lowest);
}

/* How many lines of the event have this text in their fields. "" stands for any event or text. */
static inline unsigned recorded_with(const char *event, const char *text)
{
    unsigned count = 0;
    size_t length = strlen(event);
    pthread_mutex_lock(&log_record.lock);
    for (const char *line = log_record.text, *end; *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        bool is_it = length == 0 || (strncmp(line, event, length) == 0 && line[length] == ' ');
        const char *found = is_it ? strstr(line + length, text) : NULL;
        count += found != NULL && found + strlen(text) <= end;
    }
    pthread_mutex_unlock(&log_record.lock);
    return count;
}

static inline unsigned recorded(const char *event)
{
    return recorded_with(event, "");
}

/* The last event. Not while others log. */
static inline const char *last_recorded(void)
{
    return log_record.last;
}

/* All lines, for messages and for tests of their text. Not while others log. */
static inline const char *recorded_text(void)
{
    return log_record.text;
}

#endif
