/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cufile.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/threads/lock.h"

#define LIBRARY "libcufile.so.0"

static struct tierce__lock lock;
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;
static struct tierce__cufile_api library; /* [lock] until it has started */
static bool has_started;                  /* [lock] */

static const struct {
    const char *name;
    size_t offset; /* of the pointer in the table */
} symbols[] = {
#define TIERCE_CUFILE_CALL(name, symbol, result, arguments)                                        \
    {#symbol, offsetof(struct tierce__cufile_api, name)},
#include "core/device/cuda/cufile_calls.def"
#undef TIERCE_CUFILE_CALL
};

static void init_lock(void)
{
    tierce__lock_init(&lock, TIERCE__LOCK_CUFILE);
}

const char *tierce__cufile_text(const char *call, TIERCE__CU_FILE_ERROR error,
                                char text[TIERCE__CUFILE_WHY_BYTES])
{
    if (error.code == TIERCE__CU_FILE_CUDA_ERROR)
        snprintf(text, TIERCE__CUFILE_WHY_BYTES, "%s: error %d of CUDA's driver", call, error.cuda);
    else
        snprintf(text, TIERCE__CUFILE_WHY_BYTES, "%s: error %d of cufile.h%s", call, error.code,
                 error.code == TIERCE__CU_FILE_PINNING_FAILED
                     ? " (the GPU cannot map the whole buffer; set a smaller one)"
                     : "");
    return text;
}

/* POSIX allows a function pointer in a pointer to data; C does not. */
static int find_symbols(struct tierce__cufile_api *api, char why[TIERCE__CUFILE_WHY_BYTES])
{
    void *opened = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) {
        const char *text = dlerror();
        snprintf(why, TIERCE__CUFILE_WHY_BYTES,
                 "%.90s; install libcufile (CUDA, or pip install nvidia-cufile), and add its "
                 "folder to LD_LIBRARY_PATH",
                 text != NULL ? text : LIBRARY " cannot be loaded");
        return TIERCE_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *address = dlsym(opened, symbols[i].name);
        TIERCE_DASSERT(symbols[i].offset + sizeof(address) <= sizeof(*api));
        memcpy((uint8_t *)api + symbols[i].offset, &address, sizeof(address));
        if (address != NULL)
            continue;
        snprintf(why, TIERCE__CUFILE_WHY_BYTES, LIBRARY " has no %s", symbols[i].name);
        return TIERCE_E_UNSUPPORTED;
    }
    return 0;
}

int tierce__cufile_check(char why[TIERCE__CUFILE_WHY_BYTES])
{
    struct tierce__cufile_api api;
    return find_symbols(&api, why);
}

static int start(char why[TIERCE__CUFILE_WHY_BYTES])
{
    tierce__lock_assert_held(&lock);
    int rc = find_symbols(&library, why);
    if (rc < 0)
        return rc;
    TIERCE__CU_FILE_ERROR error = library.driver_open();
    if (error.code != TIERCE__CU_FILE_SUCCESS && error.code != TIERCE__CU_FILE_ALREADY_OPEN) {
        (void)tierce__cufile_text("cuFileDriverOpen", error, why);
        return TIERCE_E_UNSUPPORTED;
    }
    has_started = true;
    return 0;
}

int tierce__cufile_load(const struct tierce__cufile_api **out, char why[TIERCE__CUFILE_WHY_BYTES])
{
    pthread_once(&lock_once, init_lock);
    tierce__lock_take(&lock);
    int rc = has_started ? 0 : start(why);
    tierce__lock_drop(&lock);
    if (rc == 0)
        *out = &library;
    return rc;
}
