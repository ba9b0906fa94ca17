/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which accesses to memory are ordered. Every actor (the host, or a stream) counts its steps; the
 * clock of a step contains the number of each actor's steps that precede it. Enqueuing, recording
 * and waiting for events join clocks. An access is ordered after another access if its clock
 * includes the step of that access, and two accesses to the same bytes, one of them a write, must
 * be ordered. The order of an operation is fixed when it is enqueued, and later calls do not change
 * it, so a new access is compared with all earlier ones, and nothing depends on timing.
 */
#include "cuda_fake_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct access {
    uintptr_t from, to;
    uint64_t step;
    uint16_t actor;
    uint16_t what; /* in texts */
    bool writes;
};

/* Each access is compared with all earlier ones, under fake_lock. The thread sanitizer would check
 * each comparison, which took longer than the copies that are tested. */
#define COMPARES __attribute__((no_sanitize("thread")))

/* The names of accesses, each once: there are few names, and each access is compared with many. */
enum { TEXTS_MAX = 256, TEXT_BYTES = 48 };
static char texts[TEXTS_MAX][TEXT_BYTES];

static struct access *accesses;
static size_t count, room;
static struct fake_clock host_clock;

struct fake_clock *fake_host_clock(void)
{
    return &host_clock;
}

void fake_clock_join(struct fake_clock *clock, const struct fake_clock *other)
{
    for (size_t i = 0; i < FAKE_ACTORS; i++)
        clock->of[i] = clock->of[i] > other->of[i] ? clock->of[i] : other->of[i];
}

static uint16_t text_number(const char *what)
{
    uint16_t i = 0;
    while (i < TEXTS_MAX - 1 && texts[i][0] != '\0' && strncmp(texts[i], what, TEXT_BYTES - 1) != 0)
        i++;
    if (texts[i][0] == '\0')
        snprintf(texts[i], TEXT_BYTES, "%s", what);
    return i;
}

static COMPARES bool is_before(const struct access *access, const struct fake_clock *clock)
{
    return clock->of[access->actor] >= access->step;
}

static COMPARES bool overlaps(const struct access *access, uintptr_t from, uintptr_t to)
{
    return access->from < to && from < access->to;
}

static void keep(const struct access *access)
{
    if (count == room) {
        room = room > 0 ? room * 2 : 256;
        accesses = realloc(accesses, room * sizeof(*accesses));
        if (accesses == NULL)
            abort();
    }
    accesses[count++] = *access;
}

/* Whether an access replaces an older one of the same or fewer bytes that is ordered before it: an
 * access that is ordered after the new one is ordered after both. A read does not replace a write,
 * with which later reads conflict. */
static COMPARES bool replaces(const struct access *access, const struct access *old)
{
    return (access->writes || !old->writes) && access->from <= old->from && old->to <= access->to;
}

COMPARES bool fake_access(const struct fake_clock *clock, unsigned actor, uintptr_t from,
                          size_t bytes, bool writes, const char *what)
{
    struct access access = {.from = from,
                            .to = from + bytes,
                            .step = clock->of[actor],
                            .actor = (uint16_t)actor,
                            .what = text_number(what),
                            .writes = writes};
    bool is_ordered = true;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const struct access *old = &accesses[i];
        bool meets = overlaps(old, access.from, access.to);
        bool before = !meets || is_before(old, clock);
        if (!before && (old->writes || writes)) {
            is_ordered = false;
            fake_violation("%s %s what %s may still %s: no event orders them", what,
                           writes ? "writes" : "reads", texts[old->what],
                           old->writes ? "write" : "read");
        }
        if (meets && before && replaces(&access, old))
            continue;
        if (kept != i)
            accesses[kept] = *old;
        kept++;
    }
    count = kept;
    keep(&access);
    return is_ordered;
}

bool fake_in_progress(uintptr_t from, size_t bytes)
{
    for (size_t i = 0; i < count; i++) {
        if (overlaps(&accesses[i], from, from + bytes) && !is_before(&accesses[i], &host_clock))
            return true;
    }
    return false;
}

void fake_forget_accesses(uintptr_t from, size_t bytes)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (!overlaps(&accesses[i], from, from + bytes))
            accesses[kept++] = accesses[i];
    }
    count = kept;
}

void cuda_fake_tell_host_access(const void *memory, size_t n, bool writes, const char *what)
{
    pthread_mutex_lock(&fake_lock);
    host_clock.of[FAKE_HOST]++;
    (void)fake_access(&host_clock, FAKE_HOST, (uintptr_t)memory, n, writes, what);
    pthread_mutex_unlock(&fake_lock);
}
