/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OPEN_FOLDERS 8
#define TRIES        100 /* the benchmark may still make files */

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    (void)remove(path);
    return 0;
}

void tierce__bench_remove(const char *path)
{
    (void)nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

static void *watch(void *arg)
{
    struct tierce__bench_guard *guard = (struct tierce__bench_guard *)arg;
    int number;
    if (sigwait(&guard->signals, &number) != 0)
        return NULL;
    for (int i = 0; i < TRIES && access(guard->folder, F_OK) == 0; i++)
        tierce__bench_remove(guard->folder);
    /* Ends as if the signal had not been caught. */
    (void)signal(number, SIG_DFL);
    (void)raise(number);
    (void)pthread_sigmask(SIG_UNBLOCK, &guard->signals, NULL);
    return NULL;
}

/* Signals that would end the process, except those that its parent set to be ignored. */
static void choose_signals(sigset_t *signals)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    (void)sigemptyset(signals);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            (void)sigaddset(signals, numbers[i]);
    }
}

int tierce__bench_guard_begin(struct tierce__bench_guard *guard, char *folder)
{
    guard->folder = folder;
    if (mkdtemp(folder) == NULL)
        return -errno;
    choose_signals(&guard->signals);
    /* A reader that goes away shows as an error of the output. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)pthread_sigmask(SIG_BLOCK, &guard->signals, &guard->before);
    int rc = -pthread_create(&guard->thread, NULL, watch, guard);
    if (rc < 0) {
        (void)pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
        (void)rmdir(folder);
    }
    return rc;
}

void tierce__bench_guard_end(struct tierce__bench_guard *guard)
{
    (void)pthread_cancel(guard->thread);
    (void)pthread_join(guard->thread, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
}
