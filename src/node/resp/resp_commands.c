/* SPDX-License-Identifier: Apache-2.0 */
#include "node/resp/resp_session.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The commands that read and write whole values. */

/* ---- reading --------------------------------------------------------------------------------- */

static void reply_found(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__node_count(s->node, TIERCE__NODE_gets, 1);
    if (rc != 0) { /* a failure of a cache is a miss */
        tierce__resp_nil(s);
        return;
    }
    tierce__node_count(s->node, TIERCE__NODE_hits, 1);
    tierce__resp_value(s, object, 0, object->what.value_bytes);
}

void tierce__resp_run_get(struct tierce__resp_session *s)
{
    tierce__resp_find(s, tierce__resp_arg(s, 1), reply_found);
}

static void step_mget(struct tierce__resp_session *s)
{
    TIERCE_ASSERT(s->at < s->request.count);
    size_t at = s->at++;
    if (s->at == s->request.count)
        s->step = NULL;
    tierce__resp_find(s, tierce__resp_arg(s, at), reply_found);
}

void tierce__resp_run_mget(struct tierce__resp_session *s)
{
    tierce__resp_array(s, s->request.count - 1);
    s->step = step_mget;
}

static void reply_range(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    int64_t size = rc == 0 ? (int64_t)object->what.value_bytes : 0;
    int64_t from = s->number < 0 ? size + s->number : s->number;
    int64_t to = s->number_end < 0 ? size + s->number_end : s->number_end;
    from = from < 0 ? 0 : from;
    to = to >= size ? size - 1 : to;
    if (rc == 0 && from <= to && size > 0) {
        tierce__resp_value(s, object, (uint64_t)from, (uint64_t)to + 1);
        return;
    }
    tierce__object_release(object);
    tierce__resp_text(s, "");
}

void tierce__resp_run_getrange(struct tierce__resp_session *s)
{
    if (!tierce__resp_arg_int(tierce__resp_arg(s, 2), &s->number) ||
        !tierce__resp_arg_int(tierce__resp_arg(s, 3), &s->number_end))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else
        tierce__resp_find(s, tierce__resp_arg(s, 1), reply_range);
}

static void reply_strlen(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__resp_int(s, rc == 0 ? (int64_t)object->what.value_bytes : 0);
    tierce__object_release(object);
}

void tierce__resp_run_strlen(struct tierce__resp_session *s)
{
    tierce__resp_find(s, tierce__resp_arg(s, 1), reply_strlen);
}

/* s->number: 1 for milliseconds, 1000 for seconds; s->number_end: 1 since 1970, 0 from now. */
static void reply_ttl(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    TIERCE_ASSERT(s->number == 1 || s->number == 1000);
    int64_t ms = rc != 0 ? -2 : -1;
    if (rc == 0 && object->what.expires_ms != 0) {
        ms = (int64_t)object->what.expires_ms;
        ms -= s->number_end == 1 ? 0 : (int64_t)(tierce__wall_us() / 1000);
        ms = ms > 0 ? ms : 0;
    }
    tierce__object_release(object);
    tierce__resp_int(s, ms < 0 || s->number == 1 ? ms : (ms + 500) / 1000);
}

void tierce__resp_run_ttl(struct tierce__resp_session *s)
{
    s->number = s->command->name[0] == 'P' ? 1 : 1000;
    s->number_end = tierce__resp_arg_is(tierce__resp_arg(s, 0), "EXPIRETIME") ||
                    tierce__resp_arg_is(tierce__resp_arg(s, 0), "PEXPIRETIME");
    tierce__resp_find(s, tierce__resp_arg(s, 1), reply_ttl);
}

static void reply_type(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__object_release(object);
    tierce__resp_simple(s, rc == 0 ? "string" : "none");
}

void tierce__resp_run_type(struct tierce__resp_session *s)
{
    tierce__resp_find(s, tierce__resp_arg(s, 1), reply_type);
}

/* Yes is a promise for a moment. */
static void count_existing(struct tierce__resp_session *s, int rc, struct tierce__object *object)
{
    tierce__node_count(s->node, TIERCE__NODE_questions, 1);
    if (rc == 0) {
        s->number++;
        tierce__short_leases_keep(s->node->leases, object);
    }
    TIERCE_ASSERT(s->number <= (int64_t)s->request.count);
    if (s->at == s->request.count)
        tierce__resp_int(s, s->number);
}

static void step_exists(struct tierce__resp_session *s)
{
    TIERCE_ASSERT(s->at < s->request.count);
    size_t at = s->at++;
    if (s->at == s->request.count)
        s->step = NULL;
    tierce__resp_find(s, tierce__resp_arg(s, at), count_existing);
}

void tierce__resp_run_exists(struct tierce__resp_session *s)
{
    s->number = 0;
    s->step = step_exists;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* NULL, or the error message. */
static const char *read_set_options(struct tierce__resp_session *s)
{
    struct tierce__resp_set *set = &s->set;
    int64_t number;
    for (size_t i = 3; i < s->request.count; i++) {
        const struct tierce__resp_arg *word = tierce__resp_arg(s, i);
        if (tierce__resp_arg_is(word, "NX"))
            set->nx = true;
        else if (tierce__resp_arg_is(word, "XX"))
            set->xx = true;
        else if (tierce__resp_arg_is(word, "GET"))
            set->gets = true;
        else if (tierce__resp_arg_is(word, "KEEPTTL"))
            set->keeps_ttl = true;
        else if (!tierce__resp_is_expiry(word) || i + 1 == s->request.count || set->expires_ms != 0)
            return "ERR syntax error";
        else if (!tierce__resp_arg_int(tierce__resp_arg(s, ++i), &number))
            return "ERR value is not an integer or out of range";
        else if (!tierce__resp_read_expiry(&set->expires_ms, word, tierce__resp_arg(s, i)))
            return "ERR invalid expire time in 'set' command";
    }
    return (set->nx && set->xx) || (set->keeps_ttl && set->expires_ms != 0) ? "ERR syntax error"
                                                                            : NULL;
}

/* The small value inside its command, or the large value whose memory was reserved before. */
static int make_object(struct tierce__resp_session *s, struct tierce__object **out,
                       const struct tierce__resp_arg *name, const struct tierce__resp_arg *value)
{
    if (value->text == NULL) {
        *out = tierce__upload_end(s->incoming);
        s->incoming = NULL;
        return *out != NULL ? 0 : TIERCE_E_FULL;
    }
    int rc = tierce__node_create(s->node, out, s->who.space,
                                 &(struct tierce__object_what){.name = name->text,
                                                               .name_bytes = name->bytes,
                                                               .value_bytes = value->bytes,
                                                               .hint = s->hint});
    if (rc == 0 && value->bytes > 0)
        memcpy((*out)->value, value->text, value->bytes);
    return rc;
}

/* May wait. The name is held, so the conditions do not change. */
static void set_held(struct tierce__resp_session *s)
{
    struct tierce__resp_set *set = &s->set;
    const struct tierce__resp_arg *name = tierce__resp_arg(s, 1);
    if (set->nx || set->xx || set->gets || set->keeps_ttl) {
        int rc =
            tierce__node_find(s->who.space, &set->old, name->text, name->bytes, s->deadline_ns);
        bool exists = rc == 0;
        if (exists && set->keeps_ttl)
            set->expires_ms = set->old->what.expires_ms;
        if ((set->nx && exists) || (set->xx && !exists))
            return;
    }
    if (set->expires_ms != 0)
        tierce__object_expire(set->object, set->expires_ms);
    set->object->deadline_ns = s->deadline_ns;
    set->rc = tierce__object_publish(set->object);
    set->object = NULL;
    set->is_stored = set->rc == 0;
}

static void set_work(void *session)
{
    struct tierce__resp_session *s = session;
    const struct tierce__resp_arg *name = tierce__resp_arg(s, 1);
    struct tierce__object_name *held;
    s->set.rc = tierce__resp_name_begin(s, &held, name->text, name->bytes);
    if (s->set.rc < 0)
        return;
    set_held(s);
    tierce__object_name_end(held);
}

static void after_set(struct tierce__resp_session *s)
{
    struct tierce__resp_set *set = &s->set;
    int rc = s->rc < 0 ? s->rc : set->rc;
    struct tierce__object *old = set->old;
    tierce__object_release(set->object);
    set->object = set->old = NULL;
    tierce__node_count(s->node, set->is_stored ? TIERCE__NODE_sets : TIERCE__NODE_sets_dropped, 1);
    if (rc < 0) {
        tierce__resp_error_rc(s, rc);
    } else if (set->is_nx_command) {
        tierce__resp_int(s, set->is_stored);
    } else if (set->gets && old != NULL) {
        tierce__resp_value(s, old, 0, old->what.value_bytes);
        return;
    } else if (set->gets || !set->is_stored) {
        tierce__resp_nil(s);
    } else {
        tierce__resp_ok(s);
    }
    tierce__object_release(old);
}

void tierce__resp_store(struct tierce__resp_session *s, size_t value)
{
    TIERCE_ASSERT(value < s->request.count);
    int rc = make_object(s, &s->set.object, tierce__resp_arg(s, 1), tierce__resp_arg(s, value));
    if (rc == 0) {
        tierce__resp_work(s, set_work, after_set);
        return;
    }
    tierce__node_count(s->node, TIERCE__NODE_sets_dropped, 1);
    tierce__resp_error_rc(s, rc);
}

void tierce__resp_set(struct tierce__resp_session *s)
{
    s->set = (struct tierce__resp_set){0};
    const char *wrong =
        tierce__resp_is_name(tierce__resp_arg(s, 1)) ? read_set_options(s) : TIERCE__RESP_KEY_ERROR;
    if (wrong != NULL)
        tierce__resp_error(s, "%s", wrong);
    else
        tierce__resp_store(s, 2);
}

/* SETNX name value, GETSET name value */
static void set_plainly(struct tierce__resp_session *s)
{
    if (tierce__resp_is_name(tierce__resp_arg(s, 1)))
        tierce__resp_store(s, 2);
    else
        tierce__resp_error(s, "%s", TIERCE__RESP_KEY_ERROR);
}

void tierce__resp_run_setnx(struct tierce__resp_session *s)
{
    s->set = (struct tierce__resp_set){.nx = true, .is_nx_command = true};
    set_plainly(s);
}

void tierce__resp_run_getset(struct tierce__resp_session *s)
{
    s->set = (struct tierce__resp_set){.gets = true};
    set_plainly(s);
}

/* All of them have their room before the first is published. */
static int make_values(struct tierce__resp_session *s)
{
    TIERCE_ASSERT(s->value_count == 0);
    size_t count = s->request.count / 2;
    s->values = tierce__calloc(count, sizeof(*s->values));
    if (s->values == NULL)
        return -ENOMEM;
    for (; s->value_count < count; s->value_count++) {
        size_t at = 1 + 2 * s->value_count;
        int rc = make_object(s, &s->values[s->value_count], tierce__resp_arg(s, at),
                             tierce__resp_arg(s, at + 1));
        if (rc < 0)
            return rc;
    }
    return 0;
}

void tierce__resp_mset_drop(struct tierce__resp_session *s)
{
    for (size_t i = 0; i < s->value_count; i++)
        tierce__object_release(s->values[i]);
    tierce__free(s->values);
    s->values = NULL;
    s->value_count = 0;
}

/* Not atomic: a concurrent reader may find some new and some old values. */
static void mset_work(void *session)
{
    struct tierce__resp_session *s = session;
    TIERCE_ASSERT(s->value_count == s->request.count / 2);
    bool unsettled = false, one = false;
    for (size_t i = 0; i < s->value_count && s->rc == 0; i++) {
        const struct tierce__resp_arg *name = tierce__resp_arg(s, 1 + 2 * i);
        struct tierce__object_name *held;
        s->rc = tierce__resp_name_begin(s, &held, name->text, name->bytes);
        if (s->rc < 0)
            break;
        s->values[i]->deadline_ns = s->deadline_ns;
        s->rc = tierce__object_publish_unsettled(s->values[i], &one);
        tierce__object_name_end(held);
        s->values[i] = NULL;
        s->number += s->rc == 0;
        unsettled |= one;
        tierce__resp_renew_deadline(s);
    }
    int rc = unsettled ? tierce__objects_settle(s->who.space) : 0;
    s->rc = s->rc < 0 ? s->rc : rc;
}

static void after_mset(struct tierce__resp_session *s)
{
    uint64_t count = s->request.count / 2, stored = (uint64_t)s->number;
    TIERCE_ASSERT(stored <= count);
    tierce__resp_mset_drop(s);
    tierce__node_count(s->node, TIERCE__NODE_sets, stored);
    tierce__node_count(s->node, TIERCE__NODE_sets_dropped, count - stored);
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_ok(s);
}

void tierce__resp_mset(struct tierce__resp_session *s)
{
    bool are_names = true;
    s->number = 0;
    for (size_t i = 1; i < s->request.count; i += 2)
        are_names = are_names && tierce__resp_is_name(tierce__resp_arg(s, i));
    if (s->request.count % 2 == 0) {
        tierce__resp_error(s, "ERR wrong number of arguments for 'mset' command");
    } else if (!are_names) {
        tierce__resp_error(s, "%s", TIERCE__RESP_KEY_ERROR);
    } else {
        s->rc = make_values(s);
        if (s->rc < 0)
            after_mset(s);
        else
            tierce__resp_work(s, mset_work, after_mset);
    }
}

static void del_work(void *session)
{
    struct tierce__resp_session *s = session;
    for (size_t i = 1; i < s->request.count && !tierce__resp_is_late(s); i++) {
        const struct tierce__resp_arg *name = tierce__resp_arg(s, i);
        struct tierce__object_name *held;
        bool was = false;
        if (!tierce__resp_is_name(name))
            continue;
        int rc = tierce__resp_name_begin(s, &held, name->text, name->bytes);
        if (rc == 0) {
            rc = tierce__object_remove_by(s->who.space, name->text, name->bytes, s->deadline_ns,
                                          &was);
            tierce__object_name_end(held);
        }
        s->number += was ? 1 : 0;
        s->rc = rc < 0 ? rc : s->rc;
        if (rc == 0)
            tierce__resp_renew_deadline(s);
    }
}

static void reply_number(struct tierce__resp_session *s)
{
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_int(s, s->number);
}

void tierce__resp_run_del(struct tierce__resp_session *s)
{
    s->number = 0;
    tierce__resp_work(s, del_work, reply_number);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* s->number: 1 for all protocols. lm:// serves the unnamed tenant only. */
static void clear_work(void *session)
{
    struct tierce__resp_session *s = session;
    struct tierce__access *access = s->node->access;
    int64_t count = tierce__objects_clear(s->who.space);
    if (count >= 0 && s->number == 1 &&
        s->who.space == tierce__access_space(access, TIERCE__SPACE_RESP))
        count = tierce__objects_clear(tierce__access_space(access, TIERCE__SPACE_LM));
    s->rc = count < 0 ? (int)count : 0;
}

static void after_clear(struct tierce__resp_session *s)
{
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_ok(s);
}

/* FLUSHDB deletes the values of this protocol, FLUSHALL those of lm:// too. */
void tierce__resp_run_flush(struct tierce__resp_session *s)
{
    s->number = tierce__resp_arg_is(tierce__resp_arg(s, 0), "FLUSHALL");
    bool is_plain =
        s->request.count == 1 ||
        (s->request.count == 2 && (tierce__resp_arg_is(tierce__resp_arg(s, 1), "ASYNC") ||
                                   tierce__resp_arg_is(tierce__resp_arg(s, 1), "SYNC")));
    if (is_plain)
        tierce__resp_work(s, clear_work, after_clear);
    else
        tierce__resp_error(s, "ERR syntax error");
}

void tierce__resp_count_work(void *session)
{
    struct tierce__resp_session *s = session;
    s->number = (int64_t)tierce__objects_count(s->who.space);
}

void tierce__resp_run_dbsize(struct tierce__resp_session *s)
{
    tierce__resp_work(s, tierce__resp_count_work, reply_number);
}
