/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/pilot/manager_autopilot.h"

#include "base/assert.h"
#include "manager/manager_config.h"

static bool leads(void *arg)
{
    return tierce__manager_leads(arg);
}

int tierce__manager_open_autopilot(struct tierce__manager *manager,
                                   const struct tierce__manager_config *config)
{
    TIERCE_ASSERT(manager->locator != NULL && manager->ghost != NULL);
    TIERCE_ASSERT(config->autopilot_mode <= TIERCE__AUTOPILOT_ACT);
    return tierce__autopilot_start(&manager->autopilot,
                                   &(struct tierce__autopilot_opts){
                                       .size = sizeof(struct tierce__autopilot_opts),
                                       .locator = manager->locator,
                                       .registry = manager->registry,
                                       .ghost = manager->ghost,
                                       .mode = (enum tierce__autopilot_mode)config->autopilot_mode,
                                       .settle_ms = config->autopilot_settle_ms,
                                       .leads = leads,
                                       .arg = manager,
                                       .has_thread = true});
}
