/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_RANGES_H
#define TIERCE_NIXL_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Ranges of files as values of a node. A range is a value for itself, so two ranges that overlap
 * would be two copies of the same bytes, one of them old. The ranges that this process has read or
 * written are known here, and one that overlaps another is rejected.
 */

/* Beginning of the name of each range, after the prefix. No object has a name with it. */
#define TIERCE__NIXL_FILE_MARK "//file/"

#define TIERCE__NIXL_FILE_ID_BYTES 128u

/*
 * Writes a text that names a regular file, and changes when the file is removed and made again,
 * truncated, or written to in place of NIXL: device, inode, and the times at which it was made and
 * modified. `path`: NULL: `fd` is the open file. Blocks as stat does. Errors: negative errno,
 * TIERCE_E_UNSUPPORTED: it is not a regular file. Thread: any.
 */
int tierce__nixl_file_id(char out[TIERCE__NIXL_FILE_ID_BYTES], const char *path, int fd);

struct tierce__nixl_ranges;

/* NULL: no memory. */
struct tierce__nixl_ranges *tierce__nixl_ranges_create(void);
void tierce__nixl_ranges_destroy(struct tierce__nixl_ranges *ranges);

/*
 * Notes a range of `bytes` bytes of a file. A range that is known, or its beginning, is accepted
 * again. Ranges of equal length one behind another are kept as one run. The files that were used
 * longest ago are forgotten when there are 65,536 runs. Thread: any. Errors:
 * TIERCE_E_UNSUPPORTED: it overlaps another range, or it ends beyond 2^64; -ENOMEM.
 */
int tierce__nixl_ranges_note(struct tierce__nixl_ranges *ranges, const char *file, uint64_t offset,
                             uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
