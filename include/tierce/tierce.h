/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_H
#define TIERCE_H

/* The whole public interface of libtierce: one header per concept. */

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
