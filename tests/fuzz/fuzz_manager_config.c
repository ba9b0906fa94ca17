/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/manager_config.h"
#include "manager/config_kvcm.h"

#include <string.h>

/* Any text as a configuration file of KVCM: taken or rejected with a reason, and nothing leaks. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__config_error error = {""};
    struct tierce__config *values = NULL;
    char text[1024], *warnings = NULL;
    uint64_t live = tierce__alloc_live();
    if (size >= sizeof(text))
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    struct tierce__kvcm_settings *settings = tierce__kvcm_settings_create();
    int rc = tierce__config_create(&values, tierce__manager_params(), TIERCE__MANAGER_PARAMS, "T");
    if (settings != NULL && rc == 0) {
        rc = tierce__kvcm_settings_load_text(settings, "fuzz", text, &error);
        if (rc == 0)
            rc = tierce__kvcm_settings_apply(settings, values, &warnings, &error);
        TIERCE_ASSERT(rc == 0 || error.text[0] != '\0');
    }
    tierce__kvcm_settings_destroy(settings);
    tierce__config_destroy(values);
    tierce__free(warnings);
    TIERCE_ASSERT(tierce__alloc_live() == live);
    return 0;
}
