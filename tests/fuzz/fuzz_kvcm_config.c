/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "cli/optimize/kvcm/kvcm_config.h"

#include <stdlib.h>
#include <string.h>

/*
 * Any text as the configuration of KVCM's optimizer. An accepted configuration keeps the bounds
 * that replays rely on, and has a layout for its own instances; a rejected one yields a reason;
 * nothing leaks.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tierce__kvcm_config *config)
{
    struct tierce__kvcm_layout layout;
    const char **names = NULL, *none[] = {""};
    char why[TIERCE__KVCM_CONFIG_WHY_BYTES] = "";
    TIERCE_ASSERT(config->mode >= TIERCE__KVCM_GROUP_ROUGH &&
                  config->mode <= TIERCE__KVCM_INSTANCE_PRECISE);
    TIERCE_ASSERT(config->batch >= 1 && config->group_count >= 1 && config->format != NULL);
    for (uint32_t i = 0; i < config->instance_count; i++) {
        TIERCE_ASSERT(config->instances[i].group < config->group_count);
        TIERCE_ASSERT(config->instances[i].name != NULL);
    }
    const char *const *traced =
        config->instance_count > 0 ? (const char *const *)&config->instances[0].name : none;
    int rc = tierce__kvcm_config_layout(&layout, &names, config, traced, 1, why);
    TIERCE_ASSERT(rc == 0 || why[0] != '\0');
    if (rc != 0)
        return;
    tierce__kvcm_layout_clear(&layout);
    tierce__free(names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__kvcm_config config = {0};
    char why[TIERCE__KVCM_CONFIG_WHY_BYTES] = "";
    uint64_t live = tierce__alloc_live();
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    int rc = tierce__kvcm_config_read_text(&config, text, why);
    if (rc == 0)
        check(&config);
    else
        TIERCE_ASSERT(why[0] != '\0' && memchr(why, '\0', sizeof(why)) != NULL);
    tierce__kvcm_config_clear(&config);
    free(text);
    TIERCE_ASSERT(tierce__alloc_live() == live);
    return 0;
}
