/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ROUTER_ANSWER_H
#define TIERCE_ROUTER_ANSWER_H

#include "base/json/json_write.h"

/*
 * An answer, written as JSON or as MessagePack: maps with names.
 *
 *     tierce__router_answer_begin(&answer, is_msgpack);
 *     tierce__router_answer_text(&answer, "status", "ok");
 *     tierce__router_answer_open(&answer, "instances");
 *     tierce__router_answer_close(&answer);
 *     struct tierce__line *line = tierce__router_answer_end(&answer);
 *
 * The caller closes each map that it opens, and clears the line. Failures are those of the line.
 * Thread: one at a time.
 */

#define TIERCE__ROUTER_ANSWER_DEPTH 8u

struct tierce__router_answer {
    struct tierce__line line;
    struct tierce__json_write json;
    bool is_msgpack;
    unsigned depth; /* of the open maps */
    struct tierce__router_answer_map {
        size_t place;
        uint32_t count;
    } maps[TIERCE__ROUTER_ANSWER_DEPTH];
};

/* `out` must not move afterwards. */
void tierce__router_answer_begin(struct tierce__router_answer *out, bool is_msgpack);
void tierce__router_answer_open(struct tierce__router_answer *answer, const char *name);
void tierce__router_answer_close(struct tierce__router_answer *answer);
void tierce__router_answer_count(struct tierce__router_answer *answer, const char *name,
                                 uint64_t value);
void tierce__router_answer_bool(struct tierce__router_answer *answer, const char *name, bool value);
void tierce__router_answer_text(struct tierce__router_answer *answer, const char *name,
                                const char *text);
struct tierce__line *tierce__router_answer_end(struct tierce__router_answer *answer);

#endif
