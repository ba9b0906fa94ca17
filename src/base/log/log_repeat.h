/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LOG_REPEAT_H
#define TIERCE_BASE_LOG_REPEAT_H

#include "base/log/log.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * As tierce__log, for conditions that may last for hours: a failing disk, no free descriptor. The
 * same event with the same details is logged once a minute; the next one logged adds the number of
 * suppressed ones ("repeated=12"). If details differ each time (a count, a time), every message is
 * logged. Thread: any.
 */
void tierce__log_repeated(enum tierce_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Bounds of the memory for recent messages. */
#define TIERCE__LOG_REPEAT_SLOTS     32u
#define TIERCE__LOG_REPEAT_PERIOD_NS (60ULL * 1000000000ULL)

struct tierce__log_repeat {
    uint64_t hash;
    uint64_t passed_ns; /* 0: empty */
    uint32_t held;
};

/* Whether a message of that hash is logged now; *held gets the number suppressed since the last
 * one. A new message replaces the one logged longest ago. */
bool tierce__log_repeat_pass(struct tierce__log_repeat table[TIERCE__LOG_REPEAT_SLOTS],
                             uint32_t *held, uint64_t hash, uint64_t now_ns);

#endif
