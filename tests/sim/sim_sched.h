/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_SCHED_H
#define TIERCE_TESTS_SIM_SCHED_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A scheduler that runs the threads of a program one at a time, in an order that a seed draws, on a
 * simulated clock. The program is linked with `--wrap` for each function of SIM_WRAPPED in
 * CMakeLists.txt: mutexes, conditions, threads, the clock and random numbers of all code that is
 * linked statically become those of this file. The code itself is the one that ships.
 *
 * A thread may lose its turn wherever it takes or releases a mutex, waits, signals, starts a
 * thread, sleeps or yields. Time passes when all threads wait; a wait with a deadline may also
 * expire while other threads could run, as on a machine that is busy. If all threads wait without a
 * deadline, the run fails, and every thread is listed.
 *
 * Code that blocks outside these functions (a pipe, a futex; a socket without sim_sockets.h) stops
 * the simulation, and so does a loop that waits for another thread without a call of them. Files do
 * not block here.
 *
 * The program has one run, in one process: threads that exist before sim_start are not simulated.
 */

/* Declares a function and the one in its place. */
#define SIM_WRAPS(type, name, ...)                                                                 \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

/* The calling thread becomes the first one. Everything until then belongs to one thread. */
void sim_start(uint64_t seed);

/* The calling thread is the last one: the rest of the program is not simulated. */
void sim_stop(void);

/* A random number below `bound`, of the same sequence that draws the order. */
uint64_t sim_below(uint64_t bound);

/* Nanoseconds of the simulated clock. Time does not pass by asking here. */
uint64_t sim_now_ns(void);

void sim_sleep_ns(uint64_t ns);

#define SIM_NEVER UINT64_MAX

/* When something happens that a thread awaits: a time that has passed if it has, SIM_NEVER if only
 * another thread can bring it about. It is asked whenever the turn passes. */
typedef uint64_t sim_when_fn(const void *arg);

/* Waits for it, until `until_ns`. False: that time has come first. */
bool sim_await(sim_when_fn *when, const void *arg, uint64_t until_ns);

/* A place where the calling thread may lose its turn. */
void sim_may_pass(void);

/* Between sim_start and sim_stop. */
bool sim_is_on(void);

/* The host that a thread belongs to: that of the thread that has started it; 0 at first. */
enum { SIM_HOSTS = 8 };
unsigned sim_host(void);
void sim_enter_host(unsigned host);

/* None of the host's threads runs for that time, as if it were stopped; not the calling one's. */
void sim_stall(unsigned host, uint64_t ns);

/* How long the calling thread's host has been stalled since the start: also what is left of a
 * stall.
 */
uint64_t sim_stalled_ns(void);

/* From now on no deadline expires while threads can run; or it may again, when all that have asked
 * for it say so. */
void sim_keep_time(bool keeps);

/* How far deadlines have expired while threads could run, since the start: a bound on a time that
 * was measured grows by as much. */
uint64_t sim_stolen_ns(void);

/* All that was drawn and decided so far, and the time: equal in two runs of a seed. */
uint64_t sim_digest(void);

/* Times that the turn has passed from thread to thread. */
uint64_t sim_switches(void);

#endif
