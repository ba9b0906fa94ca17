/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_RUNNING_MANAGER_H
#define TIERCE_TESTS_RUNNING_MANAGER_H

#include "check_main.h"
#include "wait_for.h"

#include "base/alloc.h"
#include "manager/manager.h"
#include "manager/manager_config.h"

#include <stdio.h>

/* A whole manager in this process, on free ports of loopback. Its group is "default", on a storage
 * of files in its folder. */

enum { RUNNING_MANAGER_ARGS = 16 };

struct running_manager {
    char folder[64];
    struct tierce__manager_config config;
    struct tierce__manager *manager;
    struct tierce__manager_ports ports;
};

/* `more`: arguments, ended by NULL; or NULL. */
static inline void running_manager_start(struct running_manager *m, const char *const *more)
{
    char state[128], why[256], *args[RUNNING_MANAGER_ARGS + 8];
    static const char *const usual[] = {
        "--listen.grpc_port=0",       "--listen.http_port=0", "--listen.admin_grpc_port=0",
        "--listen.admin_http_port=0", "--log.folder=",        "--metrics.log=false"};
    size_t count = 0;
    snprintf(m->folder, sizeof(m->folder), "/tmp/tierce_managerXXXXXX");
    temp_folder_make(m->folder);
    for (size_t i = 0; i < sizeof(usual) / sizeof(*usual); i++)
        args[count++] = (char *)(uintptr_t)usual[i];
    for (; more != NULL && *more != NULL; more++) {
        ck_assert_uint_lt(count, RUNNING_MANAGER_ARGS + 6);
        args[count++] = (char *)(uintptr_t)*more;
    }
    args[count] = NULL;
    snprintf(state, sizeof(state), "STATE_DIRECTORY=%s", m->folder);
    char *const env[] = {state, NULL};
    struct tierce__config_error error;
    char *warnings = NULL;
    int rc = tierce__manager_config_load(&m->config, count, args, env, &warnings, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    tierce__free(warnings);
    rc = tierce__manager_start(&m->manager, &m->config, why);
    ck_assert_msg(rc == 0, "%s", why);
    tierce__manager_ports(m->manager, &m->ports);
}

static inline void running_manager_stop(struct running_manager *m)
{
    if (m->manager == NULL)
        return;
    tierce__manager_stop(m->manager);
    tierce__manager_config_clear(&m->config);
    m->manager = NULL;
    temp_folder_remove(m->folder);
}

#endif
