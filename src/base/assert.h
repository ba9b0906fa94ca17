/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_ASSERT_H
#define TIERCE_BASE_ASSERT_H

#include <stdint.h>

/*
 * Three grades of assertion, all about our own mistakes and never about input, I/O or memory.
 *
 * TIERCE_ASSERT       always on: cheap and needed to keep a wrong byte from leaving.
 * TIERCE_DASSERT      in TIERCE_CHECKED builds only: checks that cost time on a hot path.
 * TIERCE_CHECK_MAGIC  at every entry that takes a handle: catches a stale or foreign pointer.
 */

/* Reports a broken invariant to the panic receiver, then aborts. Never returns. */
_Noreturn void tierce__panic(const char *file, int line, const char *text);

#define TIERCE_ASSERT(cond)                                                                        \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            tierce__panic(__FILE__, __LINE__, #cond);                                              \
    } while (0)

#ifdef TIERCE_CHECKED
#define TIERCE_DASSERT(cond) TIERCE_ASSERT(cond)
#else
#define TIERCE_DASSERT(cond) ((void)sizeof(cond))
#endif

/* The first member of every handle is `uint32_t magic`; freeing a handle wipes it. */
#define TIERCE_CHECK_MAGIC(obj, value) TIERCE_ASSERT((obj) != NULL && (obj)->magic == (value))

#endif
