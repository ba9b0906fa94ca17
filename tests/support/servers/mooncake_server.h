/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MOONCAKE_SERVER_H
#define TIERCE_TESTS_MOONCAKE_SERVER_H

#include "server_process.h"

#include <dirent.h>

/*
 * A real mooncake_master on loopback, and a process that gives it memory, both a test's own. They
 * end with the test, even if it is killed. Mooncake is where the interpreter is that
 * TIERCE_TEST_MOONCAKE_PYTHON names, or python3.
 */
struct mooncake_server {
    pid_t master, owner;
    int orders, answers; /* pipes to and from the owner */
    uint16_t port, metrics_port;
};

static inline const char *mooncake_python(void)
{
    const char *python = getenv("TIERCE_TEST_MOONCAKE_PYTHON");
    return python != NULL && python[0] != '\0' ? python : "python3";
}

static inline bool mooncake_is_there(void)
{
    char command[1200];
    snprintf(command, sizeof(command), "%s -c 'import mooncake.store' >/dev/null 2>&1",
             mooncake_python());
    return system(command) == 0;
}

/* Runs python with arguments up to a NULL; its standard output goes to `out`, or nowhere. */
static inline pid_t mooncake_run(const char *const *arguments, int out)
{
    const char *argv[16] = {mooncake_python()};
    for (size_t i = 0; arguments[i] != NULL && i < 14; i++)
        argv[i + 1] = arguments[i];
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        dup2(out >= 0 ? out : null, 1);
        dup2(null, 2);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return pid;
}

static inline bool mooncake_run_master(struct mooncake_server *server)
{
    char port[8], metrics_port[8];
    snprintf(port, sizeof(port), "%u", (unsigned)server->port);
    snprintf(metrics_port, sizeof(metrics_port), "%u", (unsigned)server->metrics_port);
    server->master = mooncake_run(
        (const char *const[]){
            "-c",
            "import mooncake, os, sys\n"
            "master = os.path.join(os.path.dirname(mooncake.__file__), 'mooncake_master')\n"
            "os.execv(master, [master, *sys.argv[1:]])",
            "-rpc_port", port, "-metrics_port", metrics_port, "-client_ttl", "30", NULL},
        -1);
    return server_wait(&server->master, server->port, "");
}

/* A server with 256 MiB of memory. It removes all objects for each byte that it reads. */
static inline bool mooncake_run_owner(struct mooncake_server *server)
{
    int orders[2], answers[2];
    char master[32], from[12], byte;
    snprintf(master, sizeof(master), "127.0.0.1:%u", (unsigned)server->port);
    if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0 ||
        fcntl(orders[0], F_SETFD, 0) != 0)
        return false;
    snprintf(from, sizeof(from), "%d", orders[0]);
    server->owner = mooncake_run(
        (const char *const[]){"-c",
                              "import os, sys, time\n"
                              "from mooncake.store import MooncakeDistributedStore\n"
                              "store = MooncakeDistributedStore()\n"
                              "assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 256 << 20, 16 << 20,"
                              " 'tcp', '', sys.argv[1]) == 0\n"
                              "os.write(1, b'r')\n"
                              "while os.read(int(sys.argv[2]), 1):\n"
                              "    os.write(1, b'n' if store.remove_all(True) < 0 else b'y')\n"
                              "time.sleep(100000)",
                              master, from, NULL},
        answers[1]);
    close(orders[0]);
    close(answers[1]);
    server->orders = orders[1];
    server->answers = answers[0];
    return server->owner > 0 && read(server->answers, &byte, 1) == 1;
}

/* Removes all objects. */
static inline bool mooncake_empty(const struct mooncake_server *server)
{
    char byte;
    return write(server->orders, "e", 1) == 1 && read(server->answers, &byte, 1) == 1 &&
           byte == 'y';
}

static inline bool mooncake_start(struct mooncake_server *server)
{
    *server = (struct mooncake_server){.port = server_free_port(),
                                       .metrics_port = server_free_port(),
                                       .orders = -1,
                                       .answers = -1};
    return server->port != 0 && server->metrics_port != 0 && mooncake_run_master(server) &&
           mooncake_run_owner(server);
}

static inline void mooncake_stop(struct mooncake_server *server)
{
    server_kill(&server->owner);
    server_kill(&server->master);
    close(server->orders);
    close(server->answers);
}

/* The children of this process whose command line holds a text. Returns how many, the last in
 * *pid. */
static inline size_t mooncake_children(const char *text, pid_t *pid)
{
    DIR *proc = opendir("/proc");
    size_t count = 0;
    for (struct dirent *entry = readdir(proc); entry != NULL; entry = readdir(proc)) {
        char path[300], line[4096] = "";
        int number = atoi(entry->d_name), parent = 0;
        snprintf(path, sizeof(path), "/proc/%d/stat", number);
        FILE *file = number > 0 ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        bool is_ours = fgets(line, sizeof(line), file) != NULL &&
                       sscanf(strrchr(line, ')'), ") %*c %d", &parent) == 1 && parent == getpid();
        fclose(file);
        snprintf(path, sizeof(path), "/proc/%d/cmdline", number);
        file = is_ours ? fopen(path, "r") : NULL;
        if (file == NULL)
            continue;
        size_t bytes = fread(line, 1, sizeof(line) - 1, file);
        fclose(file);
        if (memmem(line, bytes, text, strlen(text)) != NULL) {
            count++;
            *pid = number;
        }
    }
    closedir(proc);
    return count;
}

#endif
