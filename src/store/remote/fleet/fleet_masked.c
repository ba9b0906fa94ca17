/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that the manager masks in StartWriteCache: they are held already, are written by another
 * session, or have no room. GetCacheMeta tells which. It is asked again for blocks that others
 * write, because such a write takes a moment, mostly.
 */
#include "store/remote/fleet/fleet_session.h"

#include <errno.h>
#include <string.h>

#define LOOK_MS       5000u
#define LOOK_AGAIN_MS 50u
#define LOOK_UNTIL_MS 1000u /* waits so long for a block that another session writes */

enum block_state { BLOCK_ABSENT, BLOCK_SERVES, BLOCK_CHANGES };

/* A block of GetCacheMeta's answer. Another session may write our spec of a block that serves. */
static enum block_state state_of(const struct fleet_session *s,
                                 const Meta__GetCacheMetaResponse *reply, size_t i)
{
    const char *meta = reply->metas[i];
    bool serves = strstr(meta, "\"CLS_SERVING\"") != NULL;
    if (serves && tierce__fleet_uri_of(reply->locations[i], s->part->spec) != NULL)
        return BLOCK_SERVES;
    return strstr(meta, "\"CLS_NOT_FOUND\"") != NULL ? BLOCK_ABSENT : BLOCK_CHANGES;
}

static void answer_absent(struct fleet_put *put)
{
    struct fleet_session *s = put->session;
    if (s->was_lost) {
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_MANAGER,
                          "the end of a write session was not answered, and its blocks are not "
                          "there");
        tierce__fleet_put_answer(put, TIERCE_E_DOWN, false);
    } else {
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_FULL,
                          "the manager gave no place for a chunk of instance %s: a quota or a "
                          "storage has no room",
                          s->part->instance);
        tierce__fleet_put_answer(put, TIERCE_E_FULL, false);
    }
}

static void take_looked(struct fleet_session *s, const Meta__GetCacheMetaResponse *reply)
{
    bool is_late = tierce__now_ns() >= s->look_until_ns;
    size_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct fleet_put *put = &s->puts[i];
        if (!put->is_asked)
            continue;
        enum block_state state = state_of(s, reply, at++);
        if (state == BLOCK_SERVES) {
            tierce__fleet_put_answer(put, 0, true);
        } else if (state == BLOCK_ABSENT) {
            answer_absent(put);
        } else if (is_late) {
            tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_MANAGER,
                              "another session has been writing a chunk of instance %s for %u ms",
                              s->part->instance, LOOK_UNTIL_MS);
            tierce__fleet_put_answer(put, -EBUSY, false);
        }
    }
    TIERCE_ASSERT(at == reply->n_metas);
}

static void has_looked(struct tierce__fleet_call *call)
{
    struct fleet_session *s = call->arg;
    const Meta__GetCacheMetaResponse *reply = (const Meta__GetCacheMetaResponse *)call->reply;
    size_t wanted = 0;
    for (size_t i = 0; i < s->count; i++)
        wanted += s->puts[i].is_asked;
    s->is_looking = false;
    bool is_current = tierce__fleet_part_hear(s->part, call);
    if (s->fleet->is_closing || !is_current || s->generation != s->part->generation ||
        s->registries != s->part->registries) {
        tierce__fleet_puts_answer(s, PUT_MASKED, TIERCE_E_CANCELLED);
    } else if (call->status < 0) {
        tierce__fleet_puts_answer(s, PUT_MASKED, tierce__fleet_call_failed(s->fleet, call));
    } else if (reply->n_metas != wanted || reply->n_locations != wanted) {
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager answered %zu states and %zu locations for %zu blocks",
                          reply->n_metas, reply->n_locations, wanted);
        tierce__fleet_puts_answer(s, PUT_MASKED, -EPROTO);
    } else {
        take_looked(s, reply);
    }
    tierce__proto_free(call->reply);
    call->reply = NULL;
    if (tierce__fleet_puts_awaited(s, PUT_MASKED))
        s->look_again_ns = tierce__deadline_in_ms(LOOK_AGAIN_MS);
    else
        tierce__fleet_puts_answer(s, PUT_MASKED, TIERCE_E_DEADLINE);
    tierce__fleet_session_end(s);
}

void tierce__fleet_look(struct fleet_session *s)
{
    int64_t keys[BATCH_MAX];
    size_t count = 0;
    TIERCE_ASSERT(!s->is_looking);
    for (size_t i = 0; i < s->count; i++) {
        s->puts[i].is_asked = s->puts[i].state == PUT_MASKED;
        if (s->puts[i].is_asked)
            keys[count++] = s->puts[i].key;
    }
    s->look_again_ns = 0;
    if (count == 0)
        return;
    Meta__GetCacheMetaRequest request = META__GET_CACHE_META_REQUEST__INIT;
    request.instance_id = s->part->instance;
    request.block_keys = keys;
    request.n_block_keys = count;
    s->is_looking = true;
    s->look = (struct tierce__fleet_call){.method = "GetCacheMeta",
                                          .request = &request.base,
                                          .answers = &meta__get_cache_meta_response__descriptor,
                                          .deadline_ns = tierce__fleet_puts_deadline(s, LOOK_MS),
                                          .repeats = true,
                                          .done = has_looked,
                                          .arg = s};
    tierce__fleet_manager_start(s->fleet->manager, &s->look);
}

void tierce__fleet_look_first(struct fleet_session *s)
{
    s->look_until_ns = tierce__deadline_in_ms(LOOK_UNTIL_MS);
    tierce__fleet_look(s);
}
