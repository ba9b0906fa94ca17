/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log/log_repeat.h"
#include "base/threads/lock.h"

#define LIBRARY "libcuda.so.1"

static struct tierce__lock lock;
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;
static struct tierce__cuda_api driver;

/* The process that has initialised the driver; 0: none yet. The store (release) of it publishes
 * `driver` to the loads (acquire). */
static _Atomic pid_t owner;

static void init_lock(void)
{
    tierce__lock_init(&lock, TIERCE__LOCK_CUDA);
}

const char *tierce__cuda_text(const struct tierce__cuda_api *api, const char *call,
                              TIERCE__CU_RESULT code, char text[TIERCE__CUDA_TEXT_BYTES])
{
    const char *name = NULL;
    if (api->error_name == NULL || api->error_name(code, &name) != TIERCE__CU_SUCCESS ||
        name == NULL)
        name = "an unknown error";
    snprintf(text, TIERCE__CUDA_TEXT_BYTES, "%s: %s (%d)", call, name, code);
    return text;
}

/* The reason why the driver cannot be used; logged after the lock is released. */
struct refusal {
    char text[192];
};

static int refuse(struct refusal *why, const char *text)
{
    snprintf(why->text, sizeof(why->text), "%s", text);
    return TIERCE_E_UNSUPPORTED;
}

/* ---- the table --------------------------------------------------------------------------------
 */

struct symbol {
    const char *name;
    size_t offset; /* of the pointer in the table */
    int version;   /* the first driver version that has it; 0: all accepted drivers have it */
};

static const struct symbol symbols[] = {
#define TIERCE_CUDA_CALL(name, symbol, arguments)                                                  \
    {#symbol, offsetof(struct tierce__cuda_api, name), 0},
#define TIERCE_CUDA_NEWER(name, symbol, version, arguments)                                        \
    {#symbol, offsetof(struct tierce__cuda_api, name), version},
#include "core/device/cuda/cuda_calls.def"
#undef TIERCE_CUDA_CALL
#undef TIERCE_CUDA_NEWER
};

enum { SYMBOLS = sizeof(symbols) / sizeof(symbols[0]) };

/* POSIX allows a function pointer in a pointer to data; C does not. */
static bool set_symbol(struct tierce__cuda_api *api, const struct symbol *symbol, void *library)
{
    void *address = dlsym(library, symbol->name);
    TIERCE_DASSERT(symbol->offset + sizeof(address) <= sizeof(*api));
    memcpy((uint8_t *)api + symbol->offset, &address, sizeof(address));
    return address != NULL;
}

static int find_required(struct tierce__cuda_api *api, void *library, struct refusal *why)
{
    for (size_t i = 0; i < SYMBOLS; i++) {
        if (symbols[i].version > 0 || set_symbol(api, &symbols[i], library))
            continue;
        snprintf(why->text, sizeof(why->text),
                 LIBRARY " has no %s: install a driver of CUDA 11.0 or newer", symbols[i].name);
        return TIERCE_E_UNSUPPORTED;
    }
    return 0;
}

/* An older driver may export a symbol of a newer driver with another signature. */
static void find_newer(struct tierce__cuda_api *api, void *library)
{
    for (size_t i = 0; i < SYMBOLS; i++) {
        if (symbols[i].version > 0 && symbols[i].version <= api->version)
            (void)set_symbol(api, &symbols[i], library);
    }
}

/* ---- the start --------------------------------------------------------------------------------
 */

static int call_failed(const struct tierce__cuda_api *api, struct refusal *why, const char *call,
                       TIERCE__CU_RESULT code)
{
    char text[TIERCE__CUDA_TEXT_BYTES];
    TIERCE_DASSERT(code != TIERCE__CU_SUCCESS);
    return refuse(why, tierce__cuda_text(api, call, code, text));
}

static int start_driver(struct tierce__cuda_api *api, struct refusal *why)
{
    TIERCE__CU_RESULT code = api->init(0);
    if (code == TIERCE__CU_NOT_INITIALIZED)
        return refuse(why, "cuInit: CUDA was used before a fork; start workers by spawn, or use "
                           "CUDA in the child only");
    if (code != TIERCE__CU_SUCCESS)
        return call_failed(api, why, "cuInit", code);
    code = api->driver_version(&api->version);
    if (code != TIERCE__CU_SUCCESS)
        return call_failed(api, why, "cuDriverGetVersion", code);
    if (api->version >= TIERCE__CUDA_VERSION_MIN)
        return 0;
    snprintf(why->text, sizeof(why->text), "the driver has version %d; at least %d is required",
             api->version, TIERCE__CUDA_VERSION_MIN);
    return TIERCE_E_UNSUPPORTED;
}

/* The library stays loaded after a failure: it may run threads. */
static int load(struct refusal *why)
{
    struct tierce__cuda_api api = {0};
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *text = dlerror();
        return refuse(why, text != NULL ? text : LIBRARY " cannot be loaded");
    }
    int rc = find_required(&api, library, why);
    if (rc == 0)
        rc = start_driver(&api, why);
    if (rc < 0)
        return rc;
    find_newer(&api, library);
    driver = api;
    atomic_store_explicit(&owner, getpid(), memory_order_release);
    return 0;
}

bool tierce__cuda_usable(void)
{
    return atomic_load_explicit(&owner, memory_order_acquire) == getpid();
}

static int load_once(struct refusal *why)
{
    int rc = 0;
    pthread_once(&lock_once, init_lock);
    tierce__lock_take(&lock);
    if (!tierce__cuda_usable())
        rc = load(why);
    tierce__lock_drop(&lock);
    return rc;
}

int tierce__cuda_load(const struct tierce__cuda_api **out)
{
    struct refusal why = {.text = "the parent of this process uses CUDA; open the device in the "
                                  "process that uses it"};
    pid_t of = atomic_load_explicit(&owner, memory_order_acquire);
    int rc = TIERCE_E_UNSUPPORTED;
    /* Before the lock is taken, because another thread of the parent may have held it at the
     * fork. */
    if (of == 0 || of == getpid())
        rc = load_once(&why);
    if (rc == 0)
        *out = &driver;
    else
        tierce__log_repeated(TIERCE_LOG_WARN, "cuda_unusable", "why=\"%s\"", why.text);
    return rc;
}
