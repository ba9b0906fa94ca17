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

/* Sets the lowest level that is written to stderr. No effect with a callback (tierce_set_log_fn).
 */
void tierce__log_lowest(enum tierce_log_level lowest);

/* Writes the time as log lines begin with it: UTC, "2026-11-23T09:45:01.123Z". Returns `stamp`. */
#define TIERCE__LOG_STAMP_BYTES 32u
const char *tierce__log_stamp(char stamp[TIERCE__LOG_STAMP_BYTES]);

/* Writes a line of a daemon to stderr, at any log level: the time and "WHO: TEXT". One write call,
 * so a reader gets the whole line. */
void tierce__log_to_stderr(const char *who, const char *text);

#endif
