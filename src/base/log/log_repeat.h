/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LOG_REPEAT_H
#define TIERCE_BASE_LOG_REPEAT_H

#include "base/log/log.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * As tierce__log, for conditions that may last for hours: a failing disk, no free descriptor. The
 * same event with the same details is logged once a minute; the next one logged adds the number of
 * suppressed ones ("repeated=12"). Of an event whose details differ each time (a count, a name that
 * another program chooses) at most TIERCE__LOG_EVENT_LINES are logged a minute; the next one logged
 * adds the number of the others ("left_out=30"). Thread: any.
 */
void tierce__log_repeated(enum tierce_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Bounds of the memory for recent messages. */
#define TIERCE__LOG_REPEAT_SLOTS     32u
#define TIERCE__LOG_REPEAT_PERIOD_NS (60ULL * 1000000000ULL)
#define TIERCE__LOG_EVENT_SLOTS      64u /* events; their names are constants of the program */
#define TIERCE__LOG_EVENT_LINES      16u

struct tierce__log_repeat {
    uint64_t hash;
    uint64_t passed_ns; /* 0: empty */
    uint32_t held;
};

/* Whether a message of that hash is logged now; *held gets the number suppressed since the last
 * one. A new message replaces the one logged longest ago. */
bool tierce__log_repeat_pass(struct tierce__log_repeat table[TIERCE__LOG_REPEAT_SLOTS],
                             uint32_t *held, uint64_t hash, uint64_t now_ns);

struct tierce__log_event {
    uint64_t hash;
    uint64_t since_ns; /* of its first line in this period; 0: empty */
    uint32_t lines, left_out;
};

/* Whether another line of that event is logged now; *left_out gets the number left out in the
 * period before. A new event replaces the one whose period began longest ago. */
bool tierce__log_event_pass(struct tierce__log_event table[TIERCE__LOG_EVENT_SLOTS],
                            uint32_t *left_out, uint64_t hash, uint64_t now_ns);

/* Both, for a message of an event: whether it is logged now. A message that its event leaves out
 * does not count as logged, and the copies that were suppressed before it are left out with it. */
struct tierce__log_recent {
    struct tierce__log_repeat messages[TIERCE__LOG_REPEAT_SLOTS];
    struct tierce__log_event events[TIERCE__LOG_EVENT_SLOTS];
};
struct tierce__log_missing {
    uint32_t held, left_out; /* since the last one that was logged */
};
bool tierce__log_recent_pass(struct tierce__log_recent *recent, struct tierce__log_missing *missing,
                             uint64_t event, uint64_t message, uint64_t now_ns);

#endif
