/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_REGISTER_H
#define TIERCE_CUDA_REGISTER_H

#include "core/device/cuda/cuda_private.h"

/*
 * The registrations of host memory with CUDA's driver, for all devices of the process. A
 * registration serves every device, and the driver rejects a second one of the same memory. So each
 * has a number of users, which are ranges that a device has pinned:
 *
 *     device 0 pins    [    range 1    ]                [  range 3  ]
 *     device 1 pins            [    range 2    ]
 *     registrations    [ 1     |1 and 2| 2     ]        [     3     ]
 *
 * A range that is pinned registers only its parts that are not registered yet.
 *
 * Thread: any. Locks: REGISTER, held while the driver registers, and REGISTRATIONS.
 */

/* Between enter and leave: begins the use of a range. Errors, nothing is used: TIERCE_E_ARGUMENT (a
 * part was registered by another library; logged), -ENOMEM, TIERCE_E_UNSUPPORTED (the driver cannot
 * register this memory; logged), -EIO. */
TIERCE_MUSTUSE int tierce__cuda_register(struct tierce__cuda *cuda, const void *memory,
                                         size_t bytes);

/* Between enter and leave: ends the use of a range. If this fails, the range stays in use, and the
 * call may be repeated. Errors: -EIO, -ECANCELED. */
TIERCE_MUSTUSE int tierce__cuda_unregister(struct tierce__cuda *cuda, const void *memory,
                                           size_t bytes);

/* The number of bytes from the address to the end of its registration; 0: it has none. */
size_t tierce__cuda_registered_run(const void *address);

#endif
