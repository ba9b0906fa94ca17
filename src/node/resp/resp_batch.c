/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "node/resp/resp_session.h"

#include <errno.h>
#include <string.h>

/*
 * Pipelined SETs on a node with a slower tier. A SET that replaces a value on disk runs on a worker
 * and requires a sync. SETs that arrive together are therefore published together; one sync makes
 * the removal of all old values durable, and then all SETs are answered.
 */

bool tierce__resp_batch_take(struct tierce__resp_session *s)
{
    const struct tierce__resp_arg *args = s->request.args;
    if (!s->node->may_wait || s->request.count != 3 || !tierce__resp_arg_is(&args[0], "SET") ||
        !tierce__resp_is_name(&args[1]) || args[2].text == NULL)
        return false;
    if (s->batch == NULL)
        s->batch = tierce__calloc(1, sizeof(*s->batch));
    if (s->batch == NULL)
        return false;
    size_t at = s->batch->count++;
    TIERCE_ASSERT(at < TIERCE__RESP_BATCH);
    s->batch->sets[at].object = NULL;
    s->batch->sets[at].rc =
        tierce__node_create(s->node, &s->batch->sets[at].object, s->who.space,
                            &(struct tierce__object_what){.name = args[1].text,
                                                          .name_bytes = args[1].bytes,
                                                          .value_bytes = args[2].bytes,
                                                          .hint = s->hint});
    if (s->batch->sets[at].rc == 0 && args[2].bytes > 0)
        memcpy(s->batch->sets[at].object->value, args[2].text, args[2].bytes);
    return true;
}

static bool publish_one(struct tierce__resp_session *s, size_t at)
{
    TIERCE_ASSERT(at < s->batch->count);
    struct tierce__object *object = s->batch->sets[at].object;
    struct tierce__object_name *held;
    bool unsettled = false;
    int rc = TIERCE_E_DEADLINE;
    if (object == NULL)
        return false;
    if (!tierce__resp_is_late(s))
        rc = tierce__resp_name_begin(s, &held, object->what.name, object->what.name_bytes);
    if (rc == 0) {
        object->deadline_ns = s->deadline_ns;
        rc = tierce__object_publish_unsettled(object, &unsettled);
        tierce__object_name_end(held);
        s->batch->sets[at].object = NULL;
    }
    if (rc == 0)
        tierce__resp_renew_deadline(s);
    s->batch->sets[at].rc = rc;
    return unsettled;
}

/* May block, but not for a sync. */
static void batch_work(void *session)
{
    struct tierce__resp_session *s = session;
    for (size_t i = 0; i < s->batch->count; i++)
        s->batch->is_unsettled |= publish_one(s, i);
}

static void answer_batch(struct tierce__resp_session *s)
{
    uint64_t stored = 0;
    for (size_t i = 0; i < s->batch->count; i++) {
        int rc = s->batch->sets[i].rc < 0 ? s->batch->sets[i].rc : s->rc;
        stored += rc == 0;
        if (rc == 0)
            tierce__resp_ok(s);
        else
            tierce__resp_error_rc(s, rc);
    }
    TIERCE_ASSERT(stored <= s->batch->count);
    tierce__node_count(s->node, TIERCE__NODE_sets, stored);
    tierce__node_count(s->node, TIERCE__NODE_sets_dropped, s->batch->count - stored);
    tierce__resp_batch_drop(s);
}

static void after_settle(struct tierce__resp_session *s)
{
    s->rc = s->connection->settle.status;
    answer_batch(s);
}

/* No SET is answered before the removal of the replaced value is durable. */
static void after_batch(struct tierce__resp_session *s)
{
    if (s->rc < 0 || !s->batch->is_unsettled) {
        answer_batch(s);
        return;
    }
    s->after_work = after_settle;
    s->is_working = true;
    tierce__connection_settle(s->connection, s->who.space);
}

void tierce__resp_batch_run(struct tierce__resp_session *s)
{
    if (s->batch == NULL || s->batch->count == 0)
        return;
    s->rc = 0;
    tierce__resp_work(s, batch_work, after_batch);
}

void tierce__resp_batch_drop(struct tierce__resp_session *s)
{
    if (s->batch == NULL)
        return;
    for (size_t i = 0; i < s->batch->count; i++)
        tierce__object_release(s->batch->sets[i].object);
    tierce__free(s->batch);
    s->batch = NULL;
}
