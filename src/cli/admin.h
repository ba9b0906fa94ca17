/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_ADMIN_H
#define TIERCE_CLI_ADMIN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json/json_value.h"
#include "cli/cli.h"

/*
 * Calling a manager from the command line: `tierce storage`, `group`, `instance`, `cache`,
 * `account`, `cluster` are rows of one table (cmd_admin.c), the call is JSON over HTTP
 * (admin_call.c), and the result is printed as a table or JSON (admin_print.c).
 */

struct tierce__admin_target {
    const char *admin_url, *meta_url; /* "http://127.0.0.1:6492", "http://127.0.0.1:6382" */
    const char *token_file;           /* or NULL */
    const char *user;                 /* NAME:PASSWORD-FILE, or NULL */
    const char *ca_file;              /* or NULL */
    bool raw;                         /* print JSON */
};

/* Posts `request`, JSON, to the RPC of that name; NULL: gets the page of that name. *reply = the
 * reply, which the caller clears in any case. Returns an exit status; unless it is TIERCE__CLI_OK,
 * why was printed. */
int tierce__admin_call(const struct tierce__admin_target *target, const char *command,
                       const char *rpc, bool is_meta, const char *request,
                       struct tierce__json_doc *reply);

/* The reply's lists as tables, the rest as lines; or as JSON. */
void tierce__admin_print(const struct tierce__admin_target *target, struct tierce__text reply);

#endif
