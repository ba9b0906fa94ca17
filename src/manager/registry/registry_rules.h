/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_REGISTRY_RULES_H
#define TIERCE_MANAGER_REGISTRY_RULES_H

#include "manager/registry/catalog.h"

/*
 * Validates a single entry before it is added to a registry, and normalizes it (0 keys per file
 * become 1, spec groups are sorted). Errors: TIERCE_E_ARGUMENT, `why` in words; -ENOMEM. Threads:
 * any.
 */
TIERCE_MUSTUSE int tierce__entry_check(enum tierce__registry_kind kind, void *entry, char why[256]);

#endif
