/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_REGISTRY_RULES_H
#define TIERCE_MANAGER_REGISTRY_RULES_H

#include "manager/registry/model.h"

/*
 * Validates a single entry before it is added to a registry, and normalizes it (0 keys per file
 * become 1, spec groups are sorted). Errors: TIERCE_E_ARGUMENT, `why` in words; -ENOMEM. Threads:
 * any.
 */
TIERCE_MUSTUSE int tierce__storage_check(struct tierce__storage *storage, char why[256]);
TIERCE_MUSTUSE int tierce__group_check(struct tierce__group *group, char why[256]);
TIERCE_MUSTUSE int tierce__instance_check(struct tierce__instance *instance, char why[256]);
TIERCE_MUSTUSE int tierce__account_check(struct tierce__account *account, char why[256]);

#endif
