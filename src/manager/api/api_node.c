/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_private.h"

/* The calls of nodes that lend memory and disks to the fleet. */

static void register_node(struct tierce__api_call *api)
{
    tierce__api_say(api, META__ERROR_CODE__UNSUPPORTED, "this manager keeps no pools of nodes");
}

const struct tierce__api_row tierce__api_node_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_meta_register_node] = {register_node, TIERCE__API_WAITS, {"node", "pool"}},
};
