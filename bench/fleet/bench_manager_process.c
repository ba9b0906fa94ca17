/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fleet/bench_manager_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/manager/bench_startup.h"
#include "net/listen.h"
#include "net/stream.h"

#define START_MS 20000u

static pid_t start_manager(const struct tierce__bench_manager_process *manager, const char *startup)
{
    char port[40], admin_port[48];
    snprintf(port, sizeof(port), "--listen.grpc_port=%u", (unsigned)manager->port);
    snprintf(admin_port, sizeof(admin_port), "--listen.admin_http_port=%u",
             (unsigned)manager->admin_port);
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int log = open(manager->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(null, 0);
    dup2(null, 1);
    dup2(log, 2);
    if (getppid() == parent)
        execl("/proc/self/exe", "tierce", "manager", port, "--listen.http_port=0",
              "--listen.admin_grpc_port=0", admin_port, "--log.folder=", "--metrics.log=false",
              "--serve.drain=0s", startup, (char *)NULL);
    _exit(127);
}

/* Reports why the manager has ended, by the first line of its standard error. */
static int report_end(const struct tierce__bench_manager_process *manager,
                      const struct tierce__bench *bench)
{
    char line[256] = "";
    FILE *file = fopen(manager->log, "re");
    if (file != NULL && fgets(line, sizeof(line), file) == NULL)
        line[0] = '\0';
    if (file != NULL)
        fclose(file);
    return tierce__bench_fail(bench, "the manager's process has ended: %s", line);
}

static bool takes_connections(uint16_t port)
{
    char why[256];
    int fd = -1;
    if (tierce__stream_connect(&fd, "127.0.0.1", port, tierce__deadline_in_ms(START_MS), why,
                               sizeof(why)) != 0)
        return false;
    close(fd);
    return true;
}

static int await_manager(struct tierce__bench_manager_process *manager,
                         const struct tierce__bench *bench)
{
    uint64_t end_ns = tierce__deadline_in_ms(START_MS);
    while (!takes_connections(manager->port)) {
        if (waitpid(manager->pid, NULL, WNOHANG) == manager->pid) {
            manager->pid = 0;
            return report_end(manager, bench);
        }
        if (tierce__now_ns() > end_ns)
            return tierce__bench_fail(bench, "the manager does not listen within 20 s");
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
    }
    return 0;
}

/* Two free ports, which the manager will listen on. */
static int find_ports(struct tierce__bench_manager_process *manager,
                      const struct tierce__bench *bench)
{
    char why[256];
    int fds[2] = {-1, -1};
    manager->port = manager->admin_port = 0;
    int rc = tierce__listen_tcp(&fds[0], &manager->port, "127.0.0.1", why);
    if (rc == 0)
        rc = tierce__listen_tcp(&fds[1], &manager->admin_port, "127.0.0.1", why);
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    return rc == 0 ? 0 : tierce__bench_fail(bench, "%s", why);
}

int tierce__bench_manager_process_start(struct tierce__bench_manager_process *manager,
                                        const struct tierce__bench *bench, const char *type,
                                        const char *spec, const char *pool)
{
    char startup[4160];
    int prefix = snprintf(startup, sizeof(startup), "--startup.file=%s/startup.json", bench->dir);
    if (prefix < 0 || (size_t)prefix >= sizeof(startup))
        return tierce__bench_fail(bench, "the path of the folder is too long");
    int rc = tierce__bench_startup_write(startup + sizeof("--startup.file=") - 1,
                                         &(struct tierce__bench_startup){.type = type,
                                                                         .spec = spec,
                                                                         .index_kind = "local",
                                                                         .index_uri = "",
                                                                         .shards = 16,
                                                                         .pool = pool});
    if (rc < 0)
        return tierce__bench_fail(bench, "%s: %s", startup, tierce_strerror(rc));
    rc = find_ports(manager, bench);
    if (rc < 0)
        return rc;
    snprintf(manager->log, sizeof(manager->log), "%s/manager.log", bench->dir);
    manager->pid = start_manager(manager, startup);
    if (manager->pid < 0)
        return tierce__bench_fail(bench, "the manager's process cannot be started");
    return await_manager(manager, bench);
}

int tierce__bench_manager_process_of_peers(struct tierce__bench_manager_process *manager,
                                           const struct tierce__bench *bench,
                                           char url[TIERCE__BENCH_PEERS_URL_BYTES])
{
    char folder[PATH_MAX], spec[PATH_MAX + 32];
    if (realpath(bench->dir, folder) == NULL)
        return -errno;
    snprintf(spec, sizeof(spec), "{\"root_path\": \"%s/pool/\"}", folder);
    int rc = tierce__bench_manager_process_start(manager, bench, "file", spec, NULL);
    snprintf(url, TIERCE__BENCH_PEERS_URL_BYTES, "peers://127.0.0.1:%u", (unsigned)manager->port);
    return rc;
}

void tierce__bench_manager_process_stop(struct tierce__bench_manager_process *manager)
{
    if (manager->pid <= 0)
        return;
    kill(manager->pid, SIGKILL);
    waitpid(manager->pid, NULL, 0);
    manager->pid = 0;
}
