/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/node_client/client_silence.h"

#include <errno.h>

#include "base/assert.h"
#include "base/clock.h"
#include "engine/node_client/client_socket.h"
#include "net/stream.h"

void tierce__silence_init(struct tierce__silence *s)
{
    *s = (struct tierce__silence){.probe = -1};
}

static void end_probe(struct tierce__silence *s)
{
    TIERCE_DASSERT(s->is_probed || s->probe < 0);
    if (s->probe >= 0)
        tierce__client_disconnect(s->probe);
    s->probe = -1;
    s->is_probed = false;
}

void tierce__silence_fini(struct tierce__silence *s)
{
    end_probe(s);
}

void tierce__silence_note_late(struct tierce__silence *s, uint64_t now_ns)
{
    if (++s->late < TIERCE__SILENCE_LATE_MAX)
        return;
    s->quiet_until_ns = now_ns + TIERCE__SILENCE_QUIET_MS * TIERCE__MS_NS;
    if (s->is_probed)
        return;
    TIERCE_DASSERT(s->probe < 0 && !s->is_silent);
    s->is_probed = true;
    s->probe_at_ns = now_ns;
    s->silent_at_ns = now_ns + TIERCE__SILENCE_MS * TIERCE__MS_NS;
}

static enum tierce__silence_change end_silence(struct tierce__silence *s)
{
    bool was_silent = s->is_silent;
    TIERCE_DASSERT(!was_silent || s->is_probed);
    end_probe(s);
    s->is_silent = false;
    return was_silent ? TIERCE__SILENCE_ENDED : TIERCE__SILENCE_SAME;
}

enum tierce__silence_change tierce__silence_note_answer(struct tierce__silence *s)
{
    s->late = 0;
    return end_silence(s);
}

enum tierce__silence_change tierce__silence_look(struct tierce__silence *s, uint64_t now_ns)
{
    if (!s->is_probed)
        return TIERCE__SILENCE_SAME;
    /* The answer first: a caller that comes long afterwards finds it here. */
    if (s->probe >= 0 && tierce__stream_look(s->probe) != 0)
        return end_silence(s);
    if (s->is_silent || now_ns < s->silent_at_ns)
        return TIERCE__SILENCE_SAME;
    s->is_silent = true;
    return TIERCE__SILENCE_BEGUN;
}

bool tierce__silence_takes_probe(struct tierce__silence *s, uint64_t now_ns)
{
    if (!s->is_probed || s->probe >= 0 || now_ns < s->probe_at_ns)
        return false;
    s->probe_at_ns = now_ns + TIERCE__SILENCE_QUIET_MS * TIERCE__MS_NS;
    return true;
}

enum tierce__silence_change tierce__silence_sent(struct tierce__silence *s, int fd)
{
    if (!s->is_probed || s->probe >= 0) { /* a request was answered meanwhile */
        if (fd >= 0)
            tierce__client_disconnect(fd);
        return TIERCE__SILENCE_SAME;
    }
    if (fd >= 0)
        s->probe = fd;
    if (fd >= 0 || fd == -EAGAIN)
        return TIERCE__SILENCE_SAME;
    return end_silence(s); /* this error shows nothing, unless the node has ended */
}

bool tierce__silence_is_quiet(const struct tierce__silence *s, uint64_t now_ns)
{
    return now_ns < s->quiet_until_ns;
}
