/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_WHY_FOLDER_H
#define TIERCE_CLI_WHY_FOLDER_H

#include "engine/why/why_answer.h"
#include "engine/why/why_chunk.h"

/*
 * Why a store folder does not hold a prompt, as JSON. A shard of size 0 stands for the only shard
 * of the namespace. Returns an exit status; errors have been printed. Blocks while the journal is
 * read up to three times.
 */
TIERCE_MUSTUSE int tierce__why_folder(struct tierce__line *json, const char *folder,
                                      const struct tierce__prompt *prompt);

/* The chunks of a folder whose hash begins with these digits, as JSON. Results as above. */
TIERCE_MUSTUSE int tierce__why_folder_hash(struct tierce__line *json, const char *folder,
                                           const struct tierce__hash_prefix *prefix);

#endif
