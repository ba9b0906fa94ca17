/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_LOG_H
#define TIERCE_BASE_LOG_H

#include <tierce/log.h>

/*
 * Emits one event: a fixed lower-case name and a logfmt tail made by printf rules.
 *
 *     tierce__log(TIERCE_LOG_WARN, "disk_read_failed", "path=%s err=\"%s\"", path, why);
 *
 * Never blocks for long, never allocates, cuts details beyond 1 KiB. Do not call it per chunk on
 * the data path, nor while holding a lock.
 */
void tierce__log(enum tierce_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
