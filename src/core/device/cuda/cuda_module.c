/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_module.h"

#include <errno.h>

#include "base/assert.h"
#include "base/log/log.h"

void tierce__cuda_module_init(struct tierce__cuda_module *module,
                              const struct tierce__cuda_module_what *what)
{
    module->what = what;
    tierce__lock_init(&module->lock, what->lock);
}

void tierce__cuda_module_fini(struct tierce__cuda_module *module)
{
    tierce__lock_fini(&module->lock);
}

int tierce__cuda_module_refuse(const struct tierce__cuda *cuda, struct tierce__cuda_module *module,
                               const char *why)
{
    tierce__lock_assert_held(&module->lock);
    module->state = TIERCE__CUDA_MODULE_REFUSED;
    tierce__log(TIERCE_LOG_WARN, module->what->refused, "device=%d why=\"%s\" consequence=\"%s\"",
                cuda->device, why, module->what->consequence);
    return TIERCE_E_UNSUPPORTED;
}

/* Without memory, nothing is refused: there may be some later. */
int tierce__cuda_module_check(struct tierce__cuda *cuda, struct tierce__cuda_module *module,
                              const char *call, TIERCE__CU_RESULT code)
{
    char text[TIERCE__CUDA_TEXT_BYTES];
    if (code == TIERCE__CU_SUCCESS)
        return 0;
    if (code == TIERCE__CU_OUT_OF_MEMORY)
        return tierce__cuda_check(cuda, call, code);
    return tierce__cuda_module_refuse(cuda, module, tierce__cuda_text(cuda->api, call, code, text));
}

static int load_module(struct tierce__cuda *cuda, struct tierce__cuda_module *m)
{
    TIERCE__CU_MODULE module = NULL;
    int rc = tierce__cuda_module_check(cuda, m, "cuModuleLoadData",
                                       cuda->api->module_load(&module, m->what->ptx));
    if (rc == 0)
        m->module = module;
    return rc;
}

/* The function comes last: it shows that nothing is missing. */
static int load_kernel(struct tierce__cuda *cuda, struct tierce__cuda_module *m)
{
    const struct tierce__cuda_api *api = cuda->api;
    TIERCE__CU_FUNCTION function = NULL;
    int processors = 0;
    int rc = m->module != NULL ? 0 : load_module(cuda, m);
    if (rc == 0)
        rc = tierce__cuda_module_check(
            cuda, m, "cuDeviceGetAttribute",
            api->device_attribute(&processors, TIERCE__CU_ATTRIBUTE_MULTIPROCESSORS, cuda->device));
    m->blocks_max = (processors > 0 ? (unsigned)processors : 1) * m->what->blocks_per_processor;
    if (rc == 0)
        rc = tierce__cuda_module_check(cuda, m, "cuModuleGetFunction",
                                       api->module_function(&function, m->module, m->what->kernel));
    if (rc == 0)
        m->function = function;
    return rc;
}

/* A driver that lacks memory may have it later, so the next use tries again. */
static int open_kernel(struct tierce__cuda *cuda, struct tierce__cuda_module *m)
{
    int rc = m->function != NULL ? 0 : load_kernel(cuda, m);
    if (rc == 0)
        rc = m->what->try(cuda);
    if (rc < 0)
        return rc;
    m->state = TIERCE__CUDA_MODULE_USABLE;
    tierce__log(TIERCE_LOG_INFO, m->what->usable, "device=%d thread_blocks=%u note=\"%s\"",
                cuda->device, m->blocks_max, m->what->note);
    return 0;
}

/* The device may have failed in the trial of another thread, for which this one has waited. What
 * that trial has left is in use until close. */
int tierce__cuda_module_prepare(struct tierce__cuda *cuda, struct tierce__cuda_module *module)
{
    int rc = 0;
    tierce__lock_take(&module->lock);
    if (atomic_load_explicit(&cuda->failed, memory_order_relaxed))
        rc = -EIO;
    else if (module->state == TIERCE__CUDA_MODULE_REFUSED)
        rc = TIERCE_E_UNSUPPORTED;
    else if (module->state == TIERCE__CUDA_MODULE_NEW)
        rc = open_kernel(cuda, module);
    tierce__lock_drop(&module->lock);
    return rc;
}

TIERCE__CU_RESULT tierce__cuda_module_launch(const struct tierce__cuda *cuda,
                                             const struct tierce__cuda_module *module,
                                             TIERCE__CU_STREAM stream, unsigned blocks,
                                             unsigned threads, void *parameters)
{
    void *all[] = {parameters};
    unsigned most = module->blocks_max;
    TIERCE_DASSERT(blocks > 0 && module->function != NULL);
    return cuda->api->launch(module->function, blocks < most ? blocks : most, 1, 1, threads, 1, 1,
                             0, stream, all, NULL);
}

void tierce__cuda_module_unload(struct tierce__cuda *cuda, struct tierce__cuda_module *module)
{
    if (module->module != NULL)
        (void)tierce__cuda_check(cuda, "cuModuleUnload", cuda->api->module_unload(module->module));
    module->module = NULL;
}
