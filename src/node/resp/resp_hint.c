/* SPDX-License-Identifier: Apache-2.0 */
#include "node/resp/resp_session.h"

#include <tierce/engine.h>

#include "engine/sessions.h"

/*
 * TIERCE.HINT: the hint of the values that later commands of the connection read and write, as
 * tierce_session_hint gives it for the chunks of a session. A value that expires has the hint TTL
 * by itself (tierce__object_use).
 */

static void become(struct tierce__resp_session *s, enum tierce_hint hint)
{
    s->hint = (uint8_t)hint;
    tierce__resp_ok(s);
}

static void run_none(struct tierce__resp_session *s)
{
    become(s, TIERCE_HINT_NONE);
}

static void run_session(struct tierce__resp_session *s)
{
    const struct tierce__resp_arg *word = tierce__resp_arg(s, 2);
    if (tierce__resp_arg_is(word, "OPEN"))
        become(s, TIERCE_HINT_OPEN);
    else if (tierce__resp_arg_is(word, "CLOSED"))
        become(s, TIERCE_HINT_CLOSED);
    else
        tierce__resp_error(s, "ERR SESSION is '%.64s': it must be OPEN or CLOSED",
                           word->text != NULL ? word->text : "");
}

/* False: an error was sent. */
static bool read_seconds(struct tierce__resp_session *s, int64_t *out)
{
    const struct tierce__resp_arg *number = tierce__resp_arg(s, 2);
    if (tierce__resp_arg_int(number, out) && *out >= 0)
        return true;
    tierce__resp_error(s, "ERR %s is '%.64s': it must be a whole number of seconds, at least 0",
                       tierce__resp_arg_is(tierce__resp_arg(s, 1), "TTL") ? "TTL" : "RETURNS_IN",
                       number->text != NULL ? number->text : "");
    return false;
}

static void run_returns_in(struct tierce__resp_session *s)
{
    int64_t seconds;
    if (read_seconds(s, &seconds))
        become(s, seconds <= TIERCE__SOON_S ? TIERCE_HINT_SOON : TIERCE_HINT_LATER);
}

static void run_ttl(struct tierce__resp_session *s)
{
    int64_t seconds;
    if (read_seconds(s, &seconds))
        become(s, seconds > 0 ? TIERCE_HINT_TTL : TIERCE_HINT_CLOSED);
}

void tierce__resp_run_hint(struct tierce__resp_session *s)
{
    static const struct tierce__resp_word words[] = {{"SESSION", 3, run_session},
                                                     {"RETURNS_IN", 3, run_returns_in},
                                                     {"TTL", 3, run_ttl},
                                                     {"NONE", 2, run_none}};
    tierce__resp_dispatch(s, words, sizeof(words) / sizeof(words[0]));
}
