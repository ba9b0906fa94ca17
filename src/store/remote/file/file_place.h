/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CONNECTOR_FILE_PLACE_H
#define TIERCE_CONNECTOR_FILE_PLACE_H

#include "store/store_req.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The name of an object in a folder with `names=path`, as URIs of a manager's file storages have it
 * behind the storage's root:
 *
 *     demo/tp0/3b1f0c6a52e90007                          a whole file
 *     demo/tp0/3b1f0c6a52e90007?size=65536               a file of that length
 *     demo/tp0/3b1f0c6a52e90007?blkid=3&size=65536       slot 3 of a file, at byte 3 * 65536
 *
 * Thread: any.
 */

#define TIERCE__FILE_SLOTS_MAX      65536u
#define TIERCE__FILE_SLOT_BYTES_MAX (INT64_MAX / TIERCE__FILE_SLOTS_MAX)

struct tierce__file_place {
    char path[TIERCE__CONNECTOR_NAME_MAX + 1]; /* relative; tierce__beneath_is_path */
    bool has_slots;
    uint64_t slot;
    uint64_t bytes; /* of the slot or of the file; 0: not given */
};

/* NULL, or what is wrong with the name. */
const char *tierce__file_place_read(struct tierce__file_place *out,
                                    const struct tierce_plugin_name *name);

/* Writes such a name; false: it is longer than TIERCE__CONNECTOR_NAME_MAX, or `room`. */
bool tierce__file_place_write(char *text, size_t room, const struct tierce__file_place *place);

#endif
