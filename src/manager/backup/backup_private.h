/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_BACKUP_PRIVATE_H
#define TIERCE_MANAGER_BACKUP_PRIVATE_H

#include "manager/backup/backup_file.h"

/* Offsets and lengths of docs/inside/format/backup.md. */

#define TIERCE__BACKUP_MAGIC "tierce-backup\r\n\n"

enum {
    HEAD_VERSION = 16,
    HEAD_FLAGS = 20,
    HEAD_MADE = 24,
    HEAD_ID = 32,
    ID_BYTES = 16,
    HEAD_SUM = 48,
    HEAD_BYTES = 56,
    FRAME_HEAD_BYTES = 8,
    FRAME_SUM_BYTES = 8,
    ENTRY_HEAD_BYTES = 12,
    END_BYTES = 16,
};
_Static_assert(sizeof(TIERCE__BACKUP_MAGIC) - 1 == HEAD_VERSION, "the magic fills its field");

/* The sum of a frame: it depends on the file and on the frame's place in it. */
uint64_t tierce__backup_sum(uint64_t seed, uint64_t frame, const void *head, const void *content,
                            size_t bytes);

#endif
