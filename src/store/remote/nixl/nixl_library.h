/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_LIBRARY_H
#define TIERCE_NIXL_LIBRARY_H

#include "store/remote/connector.h"
#include "store/remote/nixl/nixl_version.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * NIXL's C library, libnixl_capi.so, as far as Tierce uses it. It comes without a header, so its
 * functions and numbers are declared here, for exactly one version.
 *
 * The library is loaded on the first use, and stays loaded: it may have threads, and its plug-ins
 * cannot be unloaded.
 */

#define TIERCE__NIXL_LIBRARY "libnixl_capi.so"

/* Answers of its functions; all others are errors. */
#define TIERCE__NIXL_DONE    0
#define TIERCE__NIXL_IN_WORK 1

enum tierce__nixl_memory {
    TIERCE__NIXL_DRAM = 0,
    TIERCE__NIXL_OBJECT = 3,
    TIERCE__NIXL_FILE = 4,
};

enum tierce__nixl_operation {
    TIERCE__NIXL_READ = 0,
    TIERCE__NIXL_WRITE = 1,
};

enum tierce__nixl_sync {
    TIERCE__NIXL_UNLOCKED = 0, /* one thread at a time may use the agent */
    TIERCE__NIXL_LOCKED = 1,   /* any, and each call holds the agent's lock */
};

/* As the library reads it. Zeroed: no threads, no locks. */
struct tierce__nixl_agent_config {
    bool progress_thread, listen_thread;
    int listen_port;
    int thread_sync;
    unsigned int workers;
    uint64_t progress_delay_us, listen_delay_us;
    bool telemetry;
};

struct tierce__nixl_api {
#define TIERCE_NIXL_CALL(name, arguments) int(*name) arguments;
#include "store/remote/nixl/nixl_calls.def"
#undef TIERCE_NIXL_CALL
};

/*
 * Loads the library from an absolute path (tierce__shared_object_open), or, where that is NULL,
 * from where the dynamic linker finds it, and checks its version. Errors, with `why` set:
 * TIERCE_E_CONFIG: it is missing, cannot be loaded, has another version, or lacks a function.
 * Thread: any; blocks on the file system.
 */
TIERCE_MUSTUSE int tierce__nixl_load(struct tierce__nixl_api *out, const char *path,
                                     char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
