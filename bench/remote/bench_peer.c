/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/remote/bench_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int spawn(struct tierce__bench_peer *peer, char *const *argv, const int in[2],
                 const int out[2])
{
    posix_spawn_file_actions_t actions;
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return -rc;
    rc = posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    if (rc == 0)
        rc = posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (rc == 0)
        rc = posix_spawnp(&peer->pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return -rc;
}

int tierce__bench_peer_start(struct tierce__bench_peer *peer, const char *python,
                             const char *script, const char *argument)
{
    char *argv[] = {(char *)(uintptr_t)python, (char *)(uintptr_t) "-c", (char *)(uintptr_t)script,
                    (char *)(uintptr_t)argument, NULL};
    int in[2], out[2];
    *peer = (struct tierce__bench_peer){0};
    if (pipe2(in, O_CLOEXEC) != 0)
        return -errno;
    if (pipe2(out, O_CLOEXEC) != 0) {
        int rc = -errno;
        close(in[0]);
        close(in[1]);
        return rc;
    }
    int rc = spawn(peer, argv, in, out);
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

void tierce__bench_peer_end(struct tierce__bench_peer *peer)
{
    if (peer->ask != NULL)
        fclose(peer->ask);
    if (peer->answer != NULL)
        fclose(peer->answer);
    if (peer->pid > 0)
        waitpid(peer->pid, NULL, 0);
}
