/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_S3_SERVER_H
#define TIERCE_TESTS_S3_SERVER_H

#include "server_process.h"

/*
 * A real server of S3, nanio, of a test's own: on a free port of loopback, with an empty bucket
 * "kv-cache", in a folder of its own. It checks signatures. It ends with the test, even if the test
 * is killed.
 */

#define S3_ACCESS        "AKIDTIERCETEST"
#define S3_SECRET        "se/cr+et%key=and~more"
#define S3_SECRET_IN_URL "se%2Fcr%2Bet%25key=and~more"

struct s3_server {
    pid_t pid;
    uint16_t port;
    char dir[64];
};

/* The Python that has nanio (tools/requirements-test.txt): tools/setup's. */
static inline const char *s3_python(void)
{
    static char python[512];
    const char *venv = getenv("TIERCE_VENV");
    snprintf(python, sizeof(python), "%s/bin/python", venv != NULL ? venv : TIERCE_TEST_VENV);
    return python;
}

static inline bool s3_is_there(void)
{
    char command[700]; /* an import would take as long as the start of the server */
    snprintf(command, sizeof(command),
             "%s -c 'import importlib.util as u; exit(u.find_spec(\"nanio\") is None)' 2>/dev/null",
             s3_python());
    return system(command) == 0;
}

static inline bool s3_run(struct s3_server *server)
{
    char port[8];
    snprintf(port, sizeof(port), "%u", (unsigned)server->port);
    server->pid = fork();
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int log = -1;
        setenv("NANIO_ACCESS_KEY", S3_ACCESS, 1);
        setenv("NANIO_SECRET_KEY", S3_SECRET, 1);
        if (chdir(server->dir) == 0 &&
            (log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0600)) >= 0) {
            dup2(log, 1);
            dup2(log, 2);
            execl(s3_python(), s3_python(), "-m", "nanio", "serve", "--data-dir", "data", "--host",
                  "127.0.0.1", "--port", port, "--no-access-log", "--log-level", "warning", NULL);
        }
        _exit(127);
    }
    if (server_wait(&server->pid, server->port, ""))
        return true;
    server_show_log(server->dir, "log");
    return false;
}

/* Makes one more empty bucket. */
static inline bool s3_make_bucket(const struct s3_server *server, const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/data/%.32s", server->dir, name);
    return mkdir(path, 0700) == 0;
}

static inline bool s3_start(struct s3_server *server)
{
    char path[96];
    *server = (struct s3_server){.port = server_free_port()};
    if (server->port == 0 || !server_folder(server->dir))
        return false;
    snprintf(path, sizeof(path), "%s/data", server->dir);
    if (mkdir(path, 0700) != 0)
        return false;
    return s3_make_bucket(server, "kv-cache") && s3_run(server);
}

/* A file "credentials" in the server's folder, with its keys as one profile among others. */
static inline bool s3_write_credentials(const struct s3_server *server, const char *profile)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/credentials", server->dir);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return false;
    fprintf(
        file,
        "# keys\n[default]\naws_access_key_id = other\naws_secret_access_key = other\n\n[%s]\n"
        " aws_secret_access_key=%s \r\naws_access_key_id\t= %s\n[last]\naws_access_key_id = x\n",
        profile, S3_SECRET, S3_ACCESS);
    return fclose(file) == 0;
}

static inline void s3_kill(struct s3_server *server)
{
    server_kill(&server->pid);
}

static inline void s3_stop(struct s3_server *server)
{
    s3_kill(server);
    server_remove(server->dir);
}

#endif
