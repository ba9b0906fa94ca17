/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_LOG_H
#define TIERCE_LOG_H

#include <tierce/status.h>

/*
 * Logging and panics.
 *
 * Every message is an event with a fixed name and a logfmt tail ("path=/kv err=\"no space\"").
 * Without a callback, messages go to stderr, each after the time in UTC. The lowest level is
 * log.level of the engine that was opened last; WARN before the first engine is opened. Repeated
 * events are limited to a burst per name and second; one message after the burst reports the number
 * of dropped events.
 *
 *     static void to_syslog(void *arg, enum tierce_log_level level, const char *event,
 *                           const char *detail)
 *     {
 *         syslog(level >= TIERCE_LOG_ERROR ? LOG_ERR : LOG_INFO, "%s %s", event, detail);
 *     }
 *     tierce_set_log_fn(to_syslog, NULL, TIERCE_LOG_INFO);
 *
 * docs/using/operation.md and docs/using/troubleshooting.md say what to do about an event.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Values are stable. */
enum tierce_log_level {
    TIERCE_LOG_DEBUG = 0, /* for work on Tierce itself */
    TIERCE_LOG_INFO = 1,  /* normal changes of state */
    TIERCE_LOG_WARN = 2,  /* Tierce continues with less, or has recovered */
    TIERCE_LOG_ERROR = 3, /* an operator should act */
};

/*
 * Receives one event. `event` and `detail` are valid during the call only; neither is NULL and
 * neither ends with a newline. `detail` has at most 1023 bytes; the rest is cut. May be called from
 * any thread, from several at once. Must not call back into Tierce, and should not block: a thread
 * of a tier, or the caller of a load, waits for it.
 */
typedef void tierce_log_fn(void *arg, enum tierce_log_level level, const char *event,
                           const char *detail);

/*
 * Sets the receiver of log events for the process and the lowest level that reaches it. While a
 * receiver is set, log.level of an engine has no effect. [borrow] arg until another receiver is set
 * and the last call has returned. `fn` NULL restores stderr. Thread: any, but set it before other
 * calls; the previous callback may still be running in another thread when this returns.
 */
TIERCE_API void tierce_set_log_fn(tierce_log_fn *fn, void *arg, enum tierce_log_level lowest);

/*
 * Receives the text of a broken invariant of Tierce's own (never of bad input, I/O or memory).
 * If it returns, the process is aborted. Default: print to stderr and abort.
 */
typedef void tierce_panic_fn(const char *text);

/* Sets the panic receiver; NULL restores the default. Thread: any, before other calls. */
TIERCE_API void tierce_set_panic_fn(tierce_panic_fn *fn);

#ifdef __cplusplus
}
#endif

#endif
