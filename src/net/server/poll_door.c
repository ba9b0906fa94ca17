/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/poll_door.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "net/listen.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum { ACCEPTED_AT_ONCE = 64, PAUSE_MS = 100 };

static void end_pause(struct tierce__deadline *deadline)
{
    struct tierce__poll_door *door =
        TIERCE__CONTAINER_OF(deadline, struct tierce__poll_door, pause);
    TIERCE_ASSERT(tierce__loop_is_here(&door->loop->base));
    tierce__poll_again(door->loop, &door->source);
}

/* After an error connections may still wait, of which epoll, being edge triggered, does not report
 * anything. */
static void pause_accepting(struct tierce__poll_door *door)
{
    TIERCE_ASSERT(tierce__loop_is_here(&door->loop->base));
    if (tierce__deadline_set(&door->loop->base.deadlines, &door->pause,
                             tierce__deadline_in_ms(PAUSE_MS)) != 0)
        tierce__poll_again(door->loop, &door->source);
}

static void on_ready(struct tierce__poll_source *source, uint32_t events)
{
    (void)events;
    struct tierce__poll_door *door = TIERCE__CONTAINER_OF(source, struct tierce__poll_door, source);
    TIERCE_ASSERT(tierce__loop_is_here(&door->loop->base));
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        struct sockaddr_storage peer;
        bool has_spare = door->spare_fd >= 0;
        int fd = tierce__listen_accept(source->fd, &door->spare_fd, &peer);
        if (fd == -EAGAIN)
            return; /* edge triggered: epoll reports the next connection */
        if (fd >= 0) {
            door->accepted(door, fd, &peer);
            continue;
        }
        tierce__log_repeated(TIERCE_LOG_WARN, door->shortage, "port=%u err=\"%s\"", door->port,
                             tierce_strerror(fd));
        if (fd != -EMFILE || !has_spare) {
            pause_accepting(door);
            return;
        }
    }
    tierce__poll_again(door->loop, source);
}

static void watch(void *arg)
{
    struct tierce__poll_door *door = arg;
    TIERCE_ASSERT(tierce__loop_is_here(&door->loop->base));
    door->watch_rc = tierce__poll_watch(door->loop, &door->source);
}

static void stop_watching(void *arg)
{
    struct tierce__poll_door *door = arg;
    TIERCE_ASSERT(tierce__loop_is_here(&door->loop->base));
    tierce__deadline_unset(&door->loop->base.deadlines, &door->pause);
    tierce__poll_close(&door->source);
}

int tierce__poll_door_open(struct tierce__poll_door *door, const char *host, char why[256])
{
    TIERCE_ASSERT(door->loop != NULL);
    TIERCE_ASSERT(door->accepted != NULL);
    door->source = (struct tierce__poll_source){.fd = -1, .ready = on_ready};
    door->pause = (struct tierce__deadline){.expired = end_pause};
    int rc = tierce__listen_tcp(&door->source.fd, &door->port, host, why);
    if (rc < 0)
        return rc;
    door->spare_fd = tierce__listen_spare();
    tierce__loop_call(&door->loop->base, watch, door);
    if (door->watch_rc < 0) {
        snprintf(why, 256, "port %u cannot be watched: %s", door->port,
                 tierce_strerror(door->watch_rc));
        tierce__poll_door_close(door);
    }
    return door->watch_rc;
}

void tierce__poll_door_close(struct tierce__poll_door *door)
{
    tierce__loop_call(&door->loop->base, stop_watching, door);
    TIERCE_ASSERT(door->source.fd < 0);
    if (door->spare_fd >= 0)
        close(door->spare_fd);
    door->spare_fd = -1;
}

struct tierce__poll_loop *tierce__poll_emptiest(struct tierce__poll_loop *const *loops,
                                                size_t count)
{
    TIERCE_ASSERT(count > 0);
    struct tierce__poll_loop *best = loops[0];
    for (size_t i = 1; i < count; i++)
        if (atomic_load_explicit(&loops[i]->member_count, memory_order_relaxed) <
            atomic_load_explicit(&best->member_count, memory_order_relaxed))
            best = loops[i];
    return best;
}
