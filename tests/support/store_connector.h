/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_STORE_CONNECTOR_H
#define TIERCE_TESTS_STORE_CONNECTOR_H

#include "store/remote/connector.h"

/*
 * A store in memory behind the connector interface, which does what a test wants: answers at once
 * or later, in another order, not at all, or with an error. It shows what a tier makes of a store;
 * what stores really do is shown by the connectors' own tests.
 */

struct store_connector;

/* `ranges`: whether GET takes any range; else it reads whole objects and tells their length. */
struct store_connector *store_connector_create(bool ranges);
struct tierce__connector *store_connector_base(struct store_connector *store);

/* Answers come from a thread, up to so many ms later, in any order. */
void store_connector_set_late(struct store_connector *store, unsigned ms);

/* Requests of that kind wait until they are let go. */
void store_connector_hold(struct store_connector *store, enum tierce__store_op op);
/* Those held are carried out, the first first, and no more are held. Returns how many. */
size_t store_connector_let_go(struct store_connector *store);
/* One of those held: the one for a name that ends so, or the first for NULL. False: there is
 * none. */
bool store_connector_let_one_go(struct store_connector *store, const char *ending);
size_t store_connector_held(struct store_connector *store);

/* The next `times` requests of that kind fail so, without an effect; `after`: with their effect. */
void store_connector_fail(struct store_connector *store, enum tierce__store_op op, int status,
                          unsigned times, bool after);

/* From now on failures are those of earlier requests, and connections are made for requests. */
void store_connector_mark(struct store_connector *store, bool repeats, bool connected);

/* From now on nothing can be deleted: TIERCE__CONNECTOR_NO_DELETE. */
void store_connector_set_keeps(struct store_connector *store);

/* From now on a GET behind the end of an object is a miss, as of Redis. */
void store_connector_set_misses_behind(struct store_connector *store);

/* From now on a GET names the length of its object: TIERCE__CONNECTOR_FORMS. */
void store_connector_set_forms(struct store_connector *store);

/* GETs are answered between answer_begin and answer_end, and not after an invalidation. */
void store_connector_set_guarded(struct store_connector *store);
void store_connector_invalidate(struct store_connector *store);

/* From now on PUT asks by itself: TIERCE__CONNECTOR_ASKS. */
void store_connector_set_asks(struct store_connector *store);
/* Why the last DELETE was made. */
enum tierce__tier_left store_connector_left(struct store_connector *store);

/* Objects there, and requests of a kind so far. */
size_t store_connector_objects(struct store_connector *store);
unsigned store_connector_count(struct store_connector *store, enum tierce__store_op op);
/* Of the last request. */
enum tierce__connector_urgency store_connector_urgency(struct store_connector *store);
/* Cuts every object to so many bytes. */
void store_connector_cut(struct store_connector *store, uint64_t bytes);

#endif
