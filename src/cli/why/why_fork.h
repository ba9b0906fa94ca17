/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_WHY_FORK_H
#define TIERCE_CLI_WHY_FORK_H

#include "cli/inspect/inspect.h"
#include "engine/why/why_answer.h"

/*
 * The block in which a prompt diverges from the chunks of a store folder. The journal has the first
 * and the last block of each chunk, and the header of the chunk has all blocks. So the headers of
 * the chunks that follow the same prefix as the missing chunk are read. Thread: any.
 */

/*
 * Fills answer->branches for namespace `ns` of inspect->namespaces. [in] answer->miss, whose reason
 * is NEVER_STORED. If headers cannot be read, for example because another process overwrites them,
 * and no other chunk follows the prefix, the branches stay unknown; also if more than 4,096 headers
 * would have to be read.
 * Errors: those of tierce__disk_scan, negative errno, -ENOMEM.
 */
TIERCE_MUSTUSE int tierce__why_fork(struct tierce__answer *answer,
                                    const struct tierce__inspect *inspect, uint32_t ns,
                                    const struct tierce_chain *chain);

#endif
