/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench_libcachesim.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"

struct tierce__libcachesim {
    pid_t pid;
    FILE *ask, *answer;
    char version[32];
};

/* Whatever the library prints goes to stderr; the answers have a descriptor of their own. */
static const char script[] =
    "import os, sys, time\n"
    "out = os.fdopen(os.dup(1), 'w', buffering=1)\n"
    "os.dup2(2, 1)\n"
    "try:\n"
    "    import libcachesim\n"
    "    from importlib.metadata import version\n"
    "except ImportError:\n"
    "    print('missing', file=out)\n"
    "    sys.exit()\n"
    "trace = libcachesim.TraceReader(sys.argv[1], libcachesim.TraceType.ORACLE_GENERAL_TRACE)\n"
    "requests = trace.get_num_of_req()\n"
    "print('ready', version('libcachesim'), file=out)\n"
    "for line in sys.stdin:\n"
    "    name, capacity, power = line.split()\n"
    "    start = time.perf_counter_ns()\n"
    "    cache = getattr(libcachesim, name)(cache_size=int(capacity), hashpower=int(power))\n"
    "    trace.reset()\n"
    "    misses = cache.process_trace(trace)[0]\n"
    "    ns = time.perf_counter_ns() - start\n"
    "    print(ns, round((1 - misses) * requests), file=out)\n";

extern char **environ;

static int start(struct tierce__libcachesim *peer, const char *python, const char *trace,
                 const int in[2], const int out[2])
{
    posix_spawn_file_actions_t actions;
    char *argv[] = {(char *)(uintptr_t)python, (char *)(uintptr_t) "-c", (char *)(uintptr_t)script,
                    (char *)(uintptr_t)trace, NULL};
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return -rc;
    rc = posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (rc == 0)
        rc = posix_spawnp(&peer->pid, python, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return -rc;
}

static int make_pipes(struct tierce__libcachesim *peer, const char *python, const char *trace)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0)
        return -errno;
    if (pipe2(out, O_CLOEXEC) != 0) {
        int rc = -errno;
        close(in[0]);
        close(in[1]);
        return rc;
    }
    int rc = start(peer, python, trace, in, out);
    close(in[0]);
    close(out[1]);
    peer->ask = fdopen(in[1], "w");
    peer->answer = fdopen(out[0], "r");
    if (peer->ask == NULL)
        close(in[1]);
    if (peer->answer == NULL)
        close(out[0]);
    return rc < 0 ? rc : peer->ask == NULL || peer->answer == NULL ? -ENOMEM : 0;
}

int tierce__libcachesim_open(struct tierce__libcachesim **out, const char *python,
                             const char *trace, char why[TIERCE__LIBCACHESIM_WHY_BYTES])
{
    char line[64];
    struct tierce__libcachesim *peer = tierce__calloc(1, sizeof(*peer));
    if (peer == NULL)
        return -ENOMEM;
    int rc = make_pipes(peer, python, trace);
    if (rc < 0) {
        snprintf(why, TIERCE__LIBCACHESIM_WHY_BYTES, "%.100s cannot be started: %s", python,
                 tierce_strerror(rc));
    } else if (fgets(line, sizeof(line), peer->answer) == NULL ||
               sscanf(line, "ready %31s", peer->version) != 1) {
        snprintf(why, TIERCE__LIBCACHESIM_WHY_BYTES,
                 "%.100s has no package libcachesim; --python names another", python);
        rc = -ENOTSUP;
    }
    if (rc < 0) {
        tierce__libcachesim_close(peer);
        return rc;
    }
    *out = peer;
    return 0;
}

const char *tierce__libcachesim_version(const struct tierce__libcachesim *peer)
{
    return peer->version;
}

int tierce__libcachesim_run(struct tierce__libcachesim *peer, uint64_t *ns, uint64_t *hits,
                            const char *cache, uint64_t capacity, unsigned hash_power)
{
    char line[64];
    unsigned long long took, hit;
    if (fprintf(peer->ask, "%s %llu %u\n", cache, (unsigned long long)capacity, hash_power) < 0 ||
        fflush(peer->ask) != 0)
        return -EPIPE;
    if (fgets(line, sizeof(line), peer->answer) == NULL ||
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
    if (peer->ask != NULL)
        fclose(peer->ask);
    if (peer->answer != NULL)
        fclose(peer->answer);
    if (peer->pid > 0)
        waitpid(peer->pid, NULL, 0);
    tierce__free(peer);
}
