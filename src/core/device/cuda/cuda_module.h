/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_MODULE_H
#define TIERCE_CUDA_MODULE_H

#include "base/threads/lock.h"
#include "core/device/cuda/cuda_private.h"

/*
 * A kernel that is loaded and tried when it is first used. If its results differ from the host's,
 * or a call fails, the device refuses it from then on, and the log has the reason: this does not
 * make the device fail. A fault of the kernel does (an illegal address): the driver fails all later
 * calls in the context, which the inference engine uses too. If the device only lacks memory, the
 * next use tries again.
 */

struct tierce__cuda_module_what {
    const unsigned char *ptx;
    const char *kernel;
    unsigned blocks_per_processor; /* enough threads to hide the time of a read */
    enum tierce__lock_class lock;
    const char *usable, *refused; /* the names of log lines */
    const char *note, *consequence;
    /* Compares the kernel's results with the host's. Under the lock, between enter and leave.
     * Errors: TIERCE_E_UNSUPPORTED (refused), -ENOMEM, -ECANCELED, -EIO. Blocks. */
    int (*try)(struct tierce__cuda *cuda);
};

/* `what` [borrow until fini]. */
void tierce__cuda_module_init(struct tierce__cuda_module *module,
                              const struct tierce__cuda_module_what *what);
void tierce__cuda_module_fini(struct tierce__cuda_module *module);

/* Between enter and leave: 0: the kernel can be used. Errors: those of `try`; -EIO: also if the
 * device has failed meanwhile. Blocks. */
TIERCE_MUSTUSE int tierce__cuda_module_prepare(struct tierce__cuda *cuda,
                                               struct tierce__cuda_module *module);

/* For `try`: refuses the kernel, which is logged. Returns TIERCE_E_UNSUPPORTED. */
int tierce__cuda_module_refuse(const struct tierce__cuda *cuda, struct tierce__cuda_module *module,
                               const char *why);
/* The same for a call that has failed: 0 if it has not, -ENOMEM without memory. */
int tierce__cuda_module_check(struct tierce__cuda *cuda, struct tierce__cuda_module *module,
                              const char *call, TIERCE__CU_RESULT code);

/* Launches the kernel in at most `blocks` thread blocks. */
TIERCE__CU_RESULT tierce__cuda_module_launch(const struct tierce__cuda *cuda,
                                             const struct tierce__cuda_module *module,
                                             TIERCE__CU_STREAM stream, unsigned blocks,
                                             unsigned threads, void *parameters);

/* Between enter and leave, when no launch is in progress. */
void tierce__cuda_module_unload(struct tierce__cuda *cuda, struct tierce__cuda_module *module);

#endif
