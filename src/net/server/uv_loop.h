/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_SERVE_UV_LOOP_H
#define TIERCE_SERVE_UV_LOOP_H

#include <stdatomic.h>
#include <uv.h>

#include "net/server/loop.h"

/* A libuv loop on a thread of its own. */

#define TIERCE__SOCKET_BUFFER (64u << 10)

struct tierce__uv_loop {
    struct tierce__loop base;
    uv_loop_t uv;
    uv_async_t async;
    uv_timer_t timer;
    uv_prepare_t prepare;
    pthread_t thread;
    bool is_ending;
    struct tierce__task drain, give_up; /* posted once each */
    struct tierce__list sockets;
    struct tierce__list dirty;     /* sockets that may have something to send */
    _Atomic uint32_t socket_count; /* relaxed: to choose the loop of a new socket, and to wait */
    uint8_t in[TIERCE__SOCKET_BUFFER], plain[TIERCE__SOCKET_BUFFER], out[TIERCE__SOCKET_BUFFER];
};

/* Errors: -ENOMEM, negative errno. */
TIERCE_MUSTUSE int tierce__uv_loop_start(struct tierce__uv_loop **out);

/* Closes all handles and ends the thread. NULL is accepted. */
void tierce__uv_loop_stop(struct tierce__uv_loop *loop);

#endif
