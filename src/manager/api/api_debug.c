/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_private.h"
#include "proto/kvcm/debug_service.pb-c.h"

/* Fault injection: a function for each RPC of the debug service. */

#define OK               META__ERROR_CODE__OK
#define INVALID_ARGUMENT META__ERROR_CODE__INVALID_ARGUMENT

static void inject_fault(struct tierce__api_call *api)
{
    enum { DELAY_MS_MAX = 3600000 };
    const Debug__InjectFaultRequest *request = (const Debug__InjectFaultRequest *)api->request;
    struct tierce__fault fault = {
        .kind = (enum tierce__fault_kind)request->fault_type,
        .once = request->fault_trigger_strategy == DEBUG__FAULT_TRIGGER_STRATEGY__ONCE,
        .at_call = request->trigger_at_call,
        .delay_ms = request->delay_ms,
        .code = request->error_code,
    };
    if (request->fault_type != DEBUG__FAULT_TYPE__FT_INTERNAL_ERROR &&
        (request->fault_type < DEBUG__FAULT_TYPE__FT_DELAY ||
         request->fault_type > DEBUG__FAULT_TYPE__FT_DROP))
        tierce__api_say(api, INVALID_ARGUMENT, "%d is not a fault type", (int)request->fault_type);
    else if (request->fault_type == DEBUG__FAULT_TYPE__FT_DELAY &&
             (fault.delay_ms < 0 || fault.delay_ms > DELAY_MS_MAX))
        tierce__api_say(api, INVALID_ARGUMENT, "delay_ms is %d; accepted are 0 to %d",
                        (int)fault.delay_ms, DELAY_MS_MAX);
    else if (tierce__faults_set(api->manager->faults, request->api_name, &fault) < 0)
        tierce__api_say(api, INVALID_ARGUMENT, "there is no API %.100s", request->api_name);
    else
        tierce__api_say(api, OK, "Fault injected successfully");
}

static void remove_fault(struct tierce__api_call *api)
{
    const Debug__RemoveFaultRequest *request = (const Debug__RemoveFaultRequest *)api->request;
    if (tierce__faults_remove(api->manager->faults, request->api_name) < 0)
        tierce__api_say(api, INVALID_ARGUMENT, "no fault is set for %.100s", request->api_name);
    else
        tierce__api_say(api, OK, "Fault removed successfully");
}

static void clear_faults(struct tierce__api_call *api)
{
    tierce__faults_clear(api->manager->faults);
    tierce__api_say(api, OK, "Clear faults successfully");
}

const struct tierce__api_row tierce__api_debug_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_debug_inject_fault] = {inject_fault, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_debug_remove_fault] = {remove_fault, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_debug_clear_faults] = {clear_faults, TIERCE__API_NEVER_WAITS},
};
