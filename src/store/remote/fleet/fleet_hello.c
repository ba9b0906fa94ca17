/* SPDX-License-Identifier: Apache-2.0 */
/* The first question to the managers, of a process that has no other one yet. */
#include "base/clock.h"
#include "store/remote/fleet/fleet_requests.h"

enum { TIMEOUT_MS = 5000, AGAIN_MS = 60000 };

static void has_answered(struct tierce__fleet_call *call)
{
    struct tierce__fleet *fleet = call->arg;
    tierce__proto_free(call->reply);
    call->reply = NULL;
    if (call->status == 0 || call->status == TIERCE_E_MISS) /* no such instance: it answers */
        return;
    (void)tierce__fleet_call_failed(fleet, call);
    if (!fleet->hello.is_needless)
        fleet->hello.due_ns = tierce__deadline_in_ms(AGAIN_MS);
}

void tierce__fleet_hello(struct tierce__fleet *fleet, uint64_t *until_ns)
{
    struct tierce__fleet_hello *hello = &fleet->hello;
    char instance[] = "tierce";
    Meta__GetInstanceInfoRequest request = META__GET_INSTANCE_INFO_REQUEST__INIT;
    if (fleet->is_closing)
        return;
    if (hello->due_ns > tierce__now_ns()) {
        *until_ns = hello->due_ns < *until_ns ? hello->due_ns : *until_ns;
        return;
    }
    hello->due_ns = TIERCE__DEADLINE_NEVER;
    request.instance_id = fleet->instance != NULL ? fleet->instance : instance;
    hello->call = (struct tierce__fleet_call){
        .method = "GetInstanceInfo",
        .request = &request.base,
        .answers = &meta__get_instance_info_response__descriptor,
        .deadline_ns = tierce__deadline_in_ms(TIMEOUT_MS),
        .repeats = true,
        .done = has_answered,
        .arg = fleet,
    };
    tierce__fleet_manager_start(fleet->manager, &hello->call);
}
