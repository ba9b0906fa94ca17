/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_MANAGER_H
#define TIERCE_TESTS_SIM_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The manager of a simulated fleet, or of engines that are peers: the whole one, with its gRPC
 * server. The registry is a file.
 * The database of the index is that of sim_store.h, in place of the library's choice; it outlives
 * the manager. The HTTP ports are not served.
 */

enum { SIM_MANAGER_PORT = 6381, SIM_MANAGER_HOST = 5 /* behind those of the engines */ };

/* The database is made, and goes when no manager runs. */
void sim_manager_begin(uint64_t seed);
void sim_manager_end(void);

/* What the first manager finds: the storage "d" of files, and the group "default". */
struct sim_startup {
    const char *root, *slots; /* of the storage: its folder, and the slots of a file */
    const char *reclaim;      /* more fields of the group's reclaim strategy, or "" */
    uint64_t capacity;        /* of the group */
};
void sim_manager_startup(const char *folder, const struct sim_startup *startup);

/* `folder`: of the registry, and of the file that sim_manager_startup has made. */
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
