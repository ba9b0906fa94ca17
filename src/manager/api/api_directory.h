/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_API_DIRECTORY_H
#define TIERCE_MANAGER_API_DIRECTORY_H

#include "manager/api/api_private.h"

/* Parts that the calls of the directory share (api_directory.c, api_command.c). */

struct tierce__directory *tierce__api_directory_of(const struct tierce__api_call *api);

/* The group that the request names, or that of the caller's scope. */
const char *tierce__api_group_of(const struct tierce__api_call *api, const char *named);

/* The keys of a request, two numbers for each chunk, in the reply's memory. NULL: the status says
 * why. */
struct tierce__directory_key *tierce__api_read_chunk_keys(struct tierce__api_call *api,
                                                          const int64_t *keys, size_t numbers,
                                                          size_t chunks_max);

/* Takes the results of commands that a worker reports, and tells it its next commands. */
void tierce__api_exchange_commands(struct tierce__api_call *api, struct tierce__directory_id id);

#endif
