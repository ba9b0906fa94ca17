/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_BENCH_PEER_H
#define TIERCE_CLI_BENCH_PEER_H

#include <stdio.h>
#include <sys/types.h>

#include <tierce/status.h>

/*
 * A Python process to compare with. It runs a script that reads lines from its standard input until
 * end of file, and writes its answers to its standard output.
 */
struct tierce__bench_peer {
    pid_t pid;
    FILE *ask, *answer; /* after the process has died, writes fail and reads return end of file */
};

/* `argument` is the script's sys.argv[1]. [borrow] all for the call. The caller must call end, also
 * after an error. Errors: negative errno. */
TIERCE_MUSTUSE int tierce__bench_peer_start(struct tierce__bench_peer *peer, const char *python,
                                            const char *script, const char *argument);

/* Ends its input and waits until it has ended. A zeroed one is accepted. */
void tierce__bench_peer_end(struct tierce__bench_peer *peer);

#endif
