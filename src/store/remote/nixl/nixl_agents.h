/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_AGENTS_H
#define TIERCE_NIXL_AGENTS_H

#include "store/remote/nixl/nixl_library.h"

/*
 * Transfers between registered memory and files or objects, by a plug-in of NIXL.
 *
 * A transfer has an agent for itself, so that threads share no queue of the plug-in, and an error
 * concerns one transfer. An agent registers the memory when it is created, and is used again. There
 * are as many agents as there were transfers at the same time. A plug-in whose transfers do not
 * affect each other has one agent for all, which registers the memory once.
 */

struct tierce__nixl_agents;

struct tierce__nixl_param {
    const char *name, *value;
};

struct tierce__nixl_agents_opts {
    size_t size;
    const char *library; /* absolute path; NULL: where the dynamic linker finds it */
    const char *plugin;  /* "POSIX"; [borrow until close] */
    /* Of the plug-in. [borrow until close; if is_shared, for the call] */
    const struct tierce__nixl_param *params;
    size_t param_count;
    bool is_shared;  /* one agent, which all threads use, also after errors */
    uint8_t *memory; /* [borrow until close] */
    uint64_t memory_bytes;
};

/* Creates the first agent, so that a missing plug-in is noticed. Errors: TIERCE_E_CONFIG, with
 * `why` set (tierce__nixl_load; the plug-in is missing, or cannot be used here); -ENOMEM, with
 * `why` unchanged. */
TIERCE_MUSTUSE int tierce__nixl_agents_open(struct tierce__nixl_agents **out,
                                            const struct tierce__nixl_agents_opts *opts,
                                            char why[TIERCE__CONNECTOR_WHY_BYTES]);

/* No transfer may be in progress. NULL is accepted. */
void tierce__nixl_agents_close(struct tierce__nixl_agents *agents);

/* Whether this memory is registered. Thread: any. */
bool tierce__nixl_agents_have(const struct tierce__nixl_agents *agents, const void *memory,
                              uint64_t bytes);

struct tierce__nixl_transfer {
    enum tierce__nixl_operation operation;
    const char *key; /* of an object; NULL: a file */
    int fd;          /* of the file */
    void *memory;    /* registered */
    uint64_t bytes, offset;
};

/*
 * Blocks until the transfer has ended; NIXL cannot end one before. Errors: -ENOMEM, -EIO (NIXL
 * reports no reason; a read beyond the end of the file is one). After an error nothing is being
 * transferred, and a part may have been. A read beyond the end of an object may succeed, with the
 * rest of the memory unchanged. Thread: any.
 */
TIERCE_MUSTUSE int tierce__nixl_transfer(struct tierce__nixl_agents *agents,
                                         const struct tierce__nixl_transfer *transfer);

/* Logs that a transfer failed and was repeated without NIXL. */
void tierce__nixl_log_failed(enum tierce__nixl_operation operation, int error);

#endif
