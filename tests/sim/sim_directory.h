/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_SIM_DIRECTORY_H
#define TIERCE_TESTS_SIM_DIRECTORY_H

#include <stdbool.h>

/*
 * The directory of a manager: its table, its calls and its gRPC server, which always leads, on a
 * host of its own. The rest of the manager, which the directory does not need, is left out: index,
 * storages, election, and its HTTP ports.
 */

enum { DIRECTORY_HOST = 1, DIRECTORY_PORT = 6381 };

/* From the host 0. A directory that starts knows nobody, and has another secret. */
void sim_directory_open(void);

/* `is_killed`: its host loses power. */
void sim_directory_close(bool is_killed);

#endif
