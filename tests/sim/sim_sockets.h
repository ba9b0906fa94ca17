/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_SOCKETS_H
#define TIERCE_TESTS_SIM_SOCKETS_H

#include <stdbool.h>

/*
 * Sockets, epoll and eventfd on the scheduler of sim_sched.h. The program is linked with `--wrap`
 * for each function of SIM_WRAPPED_SOCKETS in CMakeLists.txt; every socket that is made between
 * sim_start and sim_stop is simulated, and other descriptors are the system's.
 *
 * A send travels for a time that is drawn, so that connections overtake one another; the bytes of
 * one connection keep their order. Reads and writes take a part of what they could, buffers are
 * small, and SO_RCVLOWAT and edges of epoll are kept. Unix sockets exist as files too, pass
 * descriptors, and are as fast as a copy.
 *
 * Each socket belongs to the host of the thread that has made it (sim_enter_host). All hosts have
 * the address of loopback; their ports differ.
 */

/* Whether connections are reset by chance, and how many have been. */
void sim_sockets_reset_some(bool resets);
uint64_t sim_sockets_resets(void);

/* Cuts the network between two hosts, or joins it again: bytes that were sent meanwhile arrive. */
void sim_sockets_cut(unsigned one, unsigned other, bool is_cut);

/* The host's sockets are gone. Its Unix sockets end for the others, and so do its other sockets,
 * unless it says nothing more: then the others wait until it is up again, or for a limit of their
 * own. Threads of the host that are left find that all their sockets have failed. */
void sim_sockets_down(unsigned host, bool is_silent);

/* The host may have sockets again. No thread of its last life is left. */
void sim_sockets_up(unsigned host);

/* At the end: descriptors that are open. */
unsigned sim_sockets_open(void);

#endif
