/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUFILE_H
#define TIERCE_CUFILE_H

#include <stddef.h>
#include <sys/types.h>

#include <tierce/status.h>

/*
 * The functions of cuFile (GPUDirect Storage) that Tierce calls, found in libcufile.so.0 at run
 * time. The types below are the few that these functions take, with the layout of the library's
 * binary interface on 64-bit Linux.
 */

struct tierce__cu_file_error {
    int code; /* 0, or a number of cufile.h from 5001 on */
    int cuda; /* result of CUDA's driver, with code TIERCE__CU_FILE_CUDA_ERROR */
};
typedef struct tierce__cu_file_error TIERCE__CU_FILE_ERROR;
typedef void *TIERCE__CU_FILE_HANDLE;

struct tierce__cu_file_description {
    int type;
    union {
        int fd;
        void *handle; /* for the size of the union */
    } of;
    const void *functions; /* of a file system in user space; NULL */
};
typedef struct tierce__cu_file_description TIERCE__CU_FILE_DESCRIPTION;

enum {
    TIERCE__CU_FILE_SUCCESS = 0,
    TIERCE__CU_FILE_CUDA_ERROR = 5011,
    TIERCE__CU_FILE_ALREADY_OPEN = 5026, /* by another library of the process */
    TIERCE__CU_FILE_PINNING_FAILED = 5036,
    TIERCE__CU_FILE_TYPE_FD = 1,
};

struct tierce__cufile_api {
#define TIERCE_CUFILE_CALL(name, symbol, result, arguments) result(*name) arguments;
#include "core/device/cuda/cufile_calls.def"
#undef TIERCE_CUFILE_CALL
};

#define TIERCE__CUFILE_WHY_BYTES 192u

/*
 * Loads the library and starts it at the first call of the process; later calls return the same
 * table. The library stays loaded: it has threads. [out] *out: [borrow for the life of the
 * process]; why: the reason of a failure, after which the next call tries again.
 * Errors: TIERCE_E_UNSUPPORTED. Thread: any, with a current context of CUDA. Blocks.
 */
TIERCE_MUSTUSE int tierce__cufile_load(const struct tierce__cufile_api **out,
                                       char why[TIERCE__CUFILE_WHY_BYTES]);

/* Whether the library is present and has all functions; does not start it, and calls nothing of
 * CUDA. Errors: TIERCE_E_UNSUPPORTED, with the reason. Thread: any. Blocks. */
TIERCE_MUSTUSE int tierce__cufile_check(char why[TIERCE__CUFILE_WHY_BYTES]);

/* Writes a text such as "cuFileBufRegister: error 5036 of cufile.h"; returns `text`. */
const char *tierce__cufile_text(const char *call, TIERCE__CU_FILE_ERROR error,
                                char text[TIERCE__CUFILE_WHY_BYTES]);

#endif
