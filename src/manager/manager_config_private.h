/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_CONFIG_PRIVATE_H
#define TIERCE_MANAGER_CONFIG_PRIVATE_H

#include <tierce/status.h>

/* Appends a line to *warnings (NULL or heap). Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__manager_warn(char **warnings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
