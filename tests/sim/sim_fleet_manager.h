/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_FLEET_MANAGER_H
#define TIERCE_TESTS_SIM_FLEET_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The manager of a simulated fleet: the whole one, with its gRPC server. The registry is a file.
 * The database of the index is that of sim_store.h, in place of the library's choice; it outlives
 * the manager. The HTTP ports are not served.
 */

enum { SIM_MANAGER_PORT = 6381, SIM_MANAGER_HOST = 4 };

/* The database is made, and goes when no manager runs. */
void sim_manager_begin(uint64_t seed);
void sim_manager_end(void);

/* `folder`: of the registry, and of the file "startup". */
void sim_manager_open(const char *folder);
void sim_manager_stop(void);

/* How many calls of a thousand fail in the database, by chance; 1000: nothing is read or written,
 * because the manager is dead. */
void sim_manager_fail(uint32_t permille);

/* Of the group "default". */
struct sim_usage {
    uint64_t keys, sessions, bytes;
};
struct sim_usage sim_manager_usage(void);
bool sim_manager_leads(void);

/* Removes all blocks of all instances. False: it could not. */
bool sim_manager_trim(void);

#endif
