/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_H
#define TIERCE_H

/*
 * The whole public interface of libtierce.
 *
 *     cc app.c $(pkg-config --cflags --libs tierce)
 *
 * A first program reads status.h, config.h, key.h, paged.h and engine.h, in this order: it makes a
 * configuration, opens an engine and a view, and stores and loads KV. The other headers are for
 * special needs:
 *
 * - prefetch.h: read chunks into memory before they are loaded
 * - operate.h:  modes, clearing tiers, and copies between tiers
 * - why.h:      the reason why a prompt is not found
 * - events.h:   a directory of the chunks in an engine
 * - log.h:      the program's own receiver of log events
 * - plugin.h:   a remote store of your own (not included here; a plug-in includes it)
 */

#include <tierce/config.h>
#include <tierce/engine.h>
#include <tierce/events.h>
#include <tierce/key.h>
#include <tierce/log.h>
#include <tierce/operate.h>
#include <tierce/paged.h>
#include <tierce/prefetch.h>
#include <tierce/status.h>
#include <tierce/version.h>
#include <tierce/why.h>

#endif
