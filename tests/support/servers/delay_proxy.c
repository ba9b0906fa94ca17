/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slow network for tests in other languages (bench/remote/slow_link.h):
 *
 *     delay_proxy PORT ROUND_TRIP_US [JITTER_US [BYTES_PER_S [SEED]]]
 *
 * It prints "PORT SEED", where clients connect and how its jitter is played again, and then answers
 * each line of standard input by "ok": "cut", "freeze", "thaw", "delay ROUND_TRIP_US". It ends with
 * standard input.
 */
#include "bench/remote/slow_link.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(char **argv, int argc, int i, uint64_t otherwise)
{
    return i < argc ? strtoull(argv[i], NULL, 10) : otherwise;
}

static bool obey(struct tierce__slow_link *link, const char *line)
{
    uint64_t round_trip_us = 0;
    if (strcmp(line, "cut\n") == 0)
        tierce__slow_link_cut(link);
    else if (strcmp(line, "freeze\n") == 0)
        tierce__slow_link_freeze(link, true);
    else if (strcmp(line, "thaw\n") == 0)
        tierce__slow_link_freeze(link, false);
    else if (sscanf(line, "delay %" SCNu64, &round_trip_us) == 1)
        tierce__slow_link_set_round_trip(link, round_trip_us * 1000);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct tierce__slow_link *link = NULL;
    char line[64];
    uint64_t seed = number(argv, argc, 5, tierce__now_ns());
    if (argc < 3)
        return 2;
    int rc = tierce__slow_link_start(
        &link, &(struct tierce__slow_link_opts){.size = sizeof(struct tierce__slow_link_opts),
                                                .port = (uint16_t)number(argv, argc, 1, 0),
                                                .round_trip_ns = number(argv, argc, 2, 0) * 1000,
                                                .jitter_ns = number(argv, argc, 3, 0) * 1000,
                                                .bytes_per_s = number(argv, argc, 4, 0),
                                                .seed = seed});
    if (rc != 0) {
        fprintf(stderr, "delay_proxy: %s\n", tierce_strerror(rc));
        return 1;
    }
    printf("%u %" PRIu64 "\n", (unsigned)tierce__slow_link_port(link), seed);
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        puts(obey(link, line) ? "ok" : "unknown");
        fflush(stdout);
    }
    tierce__slow_link_stop(link);
    return 0;
}
