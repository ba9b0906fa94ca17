/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_CONFIG_CHECK_H
#define TIERCE_CLI_CONFIG_CHECK_H

#include <tierce/config.h>

#include "store/remote/connector.h"

/*
 * Rules of an engine's configuration that concern several parameters, and URLs of remote stores,
 * checked without opening anything. `command` is the one that prints the message.
 *
 * Thread: any.
 */

/* Without these rules no engine opens, or vLLM does not start. Returns an exit status. */
TIERCE_MUSTUSE int tierce__cli_check_config(const char *command,
                                            const struct tierce_config *config);

/* Checks the form and the scheme of one URL of remote.urls. Its connector is not opened, because
 * that may need files, programs and credentials of the host that uses it. Errors: TIERCE_E_CONFIG,
 * -ENOMEM; `why` in words. */
TIERCE_MUSTUSE int tierce__cli_check_url(const char *text, char why[TIERCE__CONNECTOR_WHY_BYTES]);

#endif
