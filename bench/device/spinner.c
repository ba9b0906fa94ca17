/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/device/spinner.h"

#include "base/assert.h"
#include "core/device/kernels/spin.h"

TIERCE__CU_RESULT tierce__spinner_init(struct tierce__spinner *spinner,
                                       const struct tierce__cuda_api *api)
{
    *spinner = (struct tierce__spinner){0};
    TIERCE__CU_MODULE module;
    TIERCE__CU_RESULT code = api->module_load(&module, tierce__spin_ptx);
    if (code != TIERCE__CU_SUCCESS)
        return code;
    code = api->module_function(&spinner->function, module, TIERCE__SPIN_KERNEL);
    if (code != TIERCE__CU_SUCCESS) {
        (void)api->module_unload(module);
        return code;
    }
    spinner->api = api;
    spinner->module = module;
    return code;
}

TIERCE__CU_RESULT tierce__spinner_fini(struct tierce__spinner *spinner)
{
    if (spinner->module == NULL)
        return TIERCE__CU_SUCCESS;
    TIERCE__CU_RESULT code = spinner->api->module_unload(spinner->module);
    *spinner = (struct tierce__spinner){0};
    return code;
}

TIERCE__CU_RESULT tierce__spinner_launch(const struct tierce__spinner *spinner,
                                         TIERCE__CU_STREAM stream, unsigned blocks, uint64_t ns,
                                         const uint32_t *release)
{
    struct tierce__spin spin = {.ns = ns, .release = (uintptr_t)release};
    void *parameters[] = {&spin};
    TIERCE_ASSERT(spinner->module != NULL && blocks > 0);
    return spinner->api->launch(spinner->function, blocks, 1, 1, TIERCE__SPIN_THREADS, 1, 1, 0,
                                stream, parameters, NULL);
}
