/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_STATUS_H
#define TIERCE_STATUS_H

/*
 * Status codes, and the marks that every public declaration carries.
 *
 * A call returns 0 (or a count) on success, a negative errno value for an error of the operating
 * system, or one of the codes below (all <= -5001) for an error of Tierce's own. A cache miss of
 * one item in a batch is a status of that item, never an error of the call.
 *
 *     int rc = tierce_engine_open(&engine, config, why);
 *     if (rc < 0)
 *         fprintf(stderr, "cannot open the store: %s\n", tierce_strerror(rc));
 *
 * A call that fails leaves its outputs untouched unless its comment says otherwise. A failing tier
 * is not an error of lookup, store and load: it shows as fewer blocks found, stored or loaded.
 *
 * Words that the comments of all headers use:
 *
 *     [in], [out]        direction of a pointer, where the name does not show it
 *     [borrow for X]     the pointer must stay valid for that time, and belongs to its owner
 *     [transfer]         the receiver owns the object from then on
 *     Thread: any        may be called from any thread, by several at once
 *     Does not block     waits for no device, network or other process; it may take short locks
 */

/* TIERCE_API: exported by the library. TIERCE_MUSTUSE: the compiler warns if the result is unused.
 */
#if defined(__GNUC__)
#define TIERCE_API     __attribute__((visibility("default")))
#define TIERCE_MUSTUSE __attribute__((warn_unused_result))
#else
#define TIERCE_API
#define TIERCE_MUSTUSE
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum tierce_error {
#define TIERCE_ERROR(name, value, text) TIERCE_E_##name = (value),
#include <tierce/errors.def>
#undef TIERCE_ERROR
};

/*
 * The text of a status code, in English, without a full stop.
 *
 * Accepts every int: 0, errno values with either sign, codes of Tierce, and unknown numbers.
 * The text is constant storage (for errno values: of the C library) and never NULL.
 * Thread: any. Does not block.
 */
TIERCE_API const char *tierce_strerror(int status);

/*
 * The symbolic name of a status code: "TIERCE_E_MISS" for Tierce's own, "ENOENT" for an errno
 * value, "OK" for 0, "UNKNOWN" otherwise. Constant storage. Thread: any. Does not block.
 */
TIERCE_API const char *tierce_error_name(int status);

#ifdef __cplusplus
}
#endif

#endif
