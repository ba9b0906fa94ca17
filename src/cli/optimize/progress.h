/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_PROGRESS_H
#define TIERCE_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Progress on stderr, over bytes or over items: a bar where stderr is a terminal, else a line every
 * few seconds. If the total is unknown (0), it shows only the amount done and the rate. Work that
 * ends before the first line is due prints nothing.
 */
struct tierce__progress {
    const char *name; /* [borrow until end] the name of the task */
    const char *unit; /* of items ("requests"); NULL: bytes */
    uint64_t total;   /* 0: not known */
    uint64_t done;
    uint64_t started_ns;
    uint64_t printed_ns;
    bool terminal;
    bool printed;
};

void tierce__progress_begin(struct tierce__progress *progress, const char *name, uint64_t total);
void tierce__progress_add(struct tierce__progress *progress, uint64_t amount);
/* A callback for work that reports its sums: `progress` is a struct tierce__progress. */
void tierce__progress_tell(void *progress, uint64_t done, uint64_t total);
/* Takes the bar away. */
void tierce__progress_end(struct tierce__progress *progress);

/* "1.5 GiB", "12 KiB", "7 B"; 32 bytes suffice. */
void tierce__human_bytes(char *text, size_t size, uint64_t bytes);
/* "3 days", "2 h", "5 min", "1 s"; 32 bytes suffice. */
void tierce__human_seconds(char *text, size_t size, uint64_t seconds);

#endif
