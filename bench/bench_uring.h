/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_URING_H
#define TIERCE_CLI_BENCH_URING_H

#include <stdbool.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The least work that moves a file's bytes: one io_uring, O_DIRECT, one registered buffer,
 * transfers of 1 MiB, `depth` of them in flight. The limit of the disk tier.
 */
struct tierce__bare_disk;

/* Makes `path` and preallocates file_bytes; transfers go to and from `buffer`, which outlives it.
 * Errors: errno of the system; -ENOSYS or -EPERM where io_uring is not allowed. */
TIERCE_MUSTUSE int tierce__bare_disk_open(struct tierce__bare_disk **out, const char *path,
                                          uint64_t file_bytes, uint8_t *buffer,
                                          uint64_t buffer_bytes, unsigned depth);

/* Moves [offset, offset + bytes) of the file to or from the start of the buffer; a write ends with
 * fdatasync. Errors: errno of the transfer. */
TIERCE_MUSTUSE int tierce__bare_disk_move(struct tierce__bare_disk *disk, bool write,
                                          uint64_t offset, uint64_t bytes);

/* Closes and removes the file. NULL is accepted. */
void tierce__bare_disk_close(struct tierce__bare_disk *disk);

#endif
