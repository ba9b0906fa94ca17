/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_libcachesim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/remote/bench_peer.h"

struct tierce__libcachesim {
    struct tierce__bench_peer process;
};

/* The library's output goes to stderr; the answers have their own descriptor. */
static const char script[] =
    "import os, sys, time\n"
    "out = os.fdopen(os.dup(1), 'w', buffering=1)\n"
    "os.dup2(2, 1)\n"
    "try:\n"
    "    import libcachesim\n"
    "except ImportError:\n"
    "    print('missing', file=out)\n"
    "    sys.exit()\n"
    "trace = libcachesim.TraceReader(sys.argv[1], libcachesim.TraceType.ORACLE_GENERAL_TRACE)\n"
    "requests = trace.get_num_of_req()\n"
    "print('ready', file=out)\n"
    "for line in sys.stdin:\n"
    "    name, capacity, power = line.split()\n"
    "    start = time.perf_counter_ns()\n"
    "    cache = getattr(libcachesim, name)(cache_size=int(capacity), hashpower=int(power))\n"
    "    trace.reset()\n"
    "    misses = cache.process_trace(trace)[0]\n"
    "    ns = time.perf_counter_ns() - start\n"
    "    print(ns, round((1 - misses) * requests), file=out)\n";

int tierce__libcachesim_open(struct tierce__libcachesim **out, const char *python,
                             const char *trace, char why[TIERCE__LIBCACHESIM_WHY_BYTES])
{
    char line[64];
    struct tierce__libcachesim *peer = tierce__calloc(1, sizeof(*peer));
    if (peer == NULL)
        return -ENOMEM;
    int rc = tierce__bench_peer_start(&peer->process, python, script, trace);
    if (rc < 0) {
        snprintf(why, TIERCE__LIBCACHESIM_WHY_BYTES, "%.100s cannot be started: %s", python,
                 tierce_strerror(rc));
    } else if (fgets(line, sizeof(line), peer->process.answer) == NULL ||
               strcmp(line, "ready\n") != 0) {
        snprintf(why, TIERCE__LIBCACHESIM_WHY_BYTES,
                 "%.100s has no package libcachesim; pass another Python with --python", python);
        rc = -ENOTSUP;
    }
    if (rc < 0) {
        tierce__libcachesim_close(peer);
        return rc;
    }
    *out = peer;
    return 0;
}

int tierce__libcachesim_run(struct tierce__libcachesim *peer, uint64_t *ns, uint64_t *hits,
                            const char *cache, uint64_t capacity, unsigned hash_power)
{
    char line[64];
    unsigned long long took, hit;
    if (fprintf(peer->process.ask, "%s %llu %u\n", cache, (unsigned long long)capacity,
                hash_power) < 0 ||
        fflush(peer->process.ask) != 0)
        return -EPIPE;
    if (fgets(line, sizeof(line), peer->process.answer) == NULL ||
        sscanf(line, "%llu %llu", &took, &hit) != 2)
        return -EPROTO;
    *ns = took;
    *hits = hit;
    return 0;
}

void tierce__libcachesim_close(struct tierce__libcachesim *peer)
{
    if (peer == NULL)
        return;
    tierce__bench_peer_end(&peer->process);
    tierce__free(peer);
}
