/* SPDX-License-Identifier: Apache-2.0 */
/* The logs of a manager. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/json/json_write.h"
#include "base/log/log.h"
#include "manager/manager_whole.h"
#include "manager/observe/audit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_log(void *arg, enum tierce_log_level level, const char *event, const char *detail)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARN", "ERROR"};
    struct tierce__manager_whole *whole = arg;
    struct tierce__line line = {0};
    char stamp[TIERCE__LOG_STAMP_BYTES];
    tierce__line_put(&line, tierce__log_stamp(stamp));
    tierce__line_put(&line, " ");
    TIERCE_ASSERT((size_t)level < sizeof(names) / sizeof(names[0]));
    tierce__line_put(&line, names[level]);
    tierce__line_put(&line, " ");
    tierce__line_put(&line, event);
    tierce__line_put(&line, " ");
    tierce__line_put(&line, detail);
    bool is_shown = whole->logs_to_console || level == TIERCE_LOG_ERROR;
    if (is_shown && !line.failed)
        fprintf(stderr, "%.*s\n", (int)line.bytes, line.text);
    tierce__line_end(&line, whole->service_log);
}

void tierce__manager_set_log_level(struct tierce__manager *manager, enum tierce_log_level level)
{
    tierce_set_log_fn(write_log, tierce__manager_whole_of(manager), level);
}

static int open_log(struct tierce__line_log **out, const char *folder, const char *name,
                    char why[256])
{
    char *path = folder[0] != '\0' ? tierce__join_path(folder, name) : NULL;
    int rc = tierce__line_log_open(
        out,
        &(struct tierce__line_log_opts){.size = sizeof(struct tierce__line_log_opts),
                                        .path = path,
                                        .failure = "manager.log_lost"},
        why);
    tierce__free(path);
    return rc;
}

/* Creates and locks the folder. A manager that is being replaced may still end. */
static int take_log_folder(struct tierce__manager_whole *whole, const char *folder, char why[256])
{
    TIERCE_ASSERT(whole->log_lock < 0);
    enum { WAIT_MS = 2000 };
    const char *below = folder[0] == '/' ? "" : " below the working directory";
    if (folder[0] == '\0')
        return 0;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        int rc = -errno;
        snprintf(why, 256,
                 "log.folder: cannot create the folder %.100s%s: %s; set log.folder to a folder "
                 "that this user can write",
                 folder, below, tierce_strerror(rc));
        return rc;
    }
    char *path = tierce__join_path(folder, "kv_cache_manager.lock");
    int rc = path != NULL ? tierce__file_lock(path, WAIT_MS) : -ENOMEM;
    tierce__free(path);
    if (rc >= 0)
        whole->log_lock = rc;
    else if (rc == TIERCE_E_LOCKED)
        snprintf(
            why, 256,
            "log.folder: another manager writes its logs to %.100s%s; end it, or give this one "
            "another log.folder and other ports (listen.*_port)",
            folder, below);
    else
        snprintf(why, 256,
                 "log.folder: cannot lock the folder %.100s%s: %s; set log.folder to a folder that "
                 "this user can write",
                 folder, below, tierce_strerror(rc));
    return rc < 0 ? rc : 0;
}

static int open_audit(struct tierce__manager_whole *whole, const char *folder, char why[256])
{
    char *path = tierce__join_path(folder, "audit.log");
    int rc = path != NULL ? tierce__audit_open(&whole->manager.audit, path, why) : -ENOMEM;
    tierce__free(path);
    return rc;
}

int tierce__manager_open_logs(struct tierce__manager_whole *whole,
                              const struct tierce__manager_config *config, char why[256])
{
    const char *folder = config->log_folder;
    int rc = take_log_folder(whole, folder, why);
    if (rc < 0)
        return rc;
    whole->logs_to_console = config->logs_to_console;
    rc = open_log(&whole->service_log, folder, "kv_cache_manager.log", why);
    if (rc == 0)
        rc = open_log(&whole->manager.events, folder, "event_publisher.log", why);
    if (rc == 0 && config->logs_accesses && folder[0] != '\0')
        rc = open_log(&whole->manager.access_log, folder, "access.log", why);
    if (rc == 0 && config->logs_audit && folder[0] != '\0')
        rc = open_audit(whole, folder, why);
    if (rc == 0 && config->logs_metrics && folder[0] != '\0')
        rc = open_log(&whole->metrics_log, folder, "metrics.log", why);
    if (rc == 0)
        tierce_set_log_fn(write_log, whole, config->log_level);
    return rc;
}

void tierce__manager_close_logs(struct tierce__manager_whole *whole)
{
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__line_log_close(whole->manager.events);
    tierce__line_log_close(whole->manager.access_log);
    tierce__audit_close(whole->manager.audit);
    tierce__line_log_close(whole->metrics_log);
    tierce__line_log_close(whole->service_log);
    if (whole->log_lock >= 0)
        close(whole->log_lock);
}
