/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_META_TOUCHES_H
#define TIERCE_MANAGER_META_TOUCHES_H

#include <stddef.h>
#include <stdint.h>

#include "manager/meta/record.h"

#include <tierce/status.h>

/*
 * A write-behind buffer of key uses, of fixed size, with one entry per key. A thread flushes it
 * every few seconds or when it fills up, so that a blocking store is written once for many uses.
 * Uses that find no room are dropped.
 *
 * Threads: any; `flush` runs on the thread alone, without a lock.
 */

struct tierce__touch {
    uint32_t space;
    int64_t key;
    struct tierce__record_use use;
};

/* The interval of the parameter touch_ms. */
enum { TIERCE__TOUCHES_MS_DEFAULT = 10000, TIERCE__TOUCHES_MS_MAX = 3600000 };

struct tierce__touches;

typedef void (*tierce__touches_flush_fn)(void *arg, const struct tierce__touch *touches,
                                         size_t count);

/* A flushed batch may have entries of several spaces. Errors: -ENOMEM, negative errno (thread). */
TIERCE_MUSTUSE int tierce__touches_start(struct tierce__touches **out, uint32_t interval_ms,
                                         tierce__touches_flush_fn flush, void *arg);

/* Flushes the buffer and destroys it. NULL is accepted. */
void tierce__touches_stop(struct tierce__touches *touches);

/* As tierce__meta_store_ops.touch. */
void tierce__touches_add(struct tierce__touches *touches, uint32_t space, const int64_t *keys,
                         size_t count, const struct tierce__record_use *use);

#endif
