/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TEST_SILENT_LOG_H
#define TIERCE_TEST_SILENT_LOG_H

#include <tierce/log.h>

/* For programs that provoke faults by the thousand: their log lines would hide a test's own. */

static inline void drop_log_line(void *arg, enum tierce_log_level level, const char *event,
                                 const char *fields)
{
    (void)arg, (void)level, (void)event, (void)fields;
}

/* Log events are dropped until another receiver is set. */
static inline void silence_log(void)
{
    tierce_set_log_fn(drop_log_line, NULL, TIERCE_LOG_ERROR);
}

#endif
