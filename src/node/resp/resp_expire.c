/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "node/resp/resp_session.h"

#include <stdio.h>
#include <string.h>

/*
 * The expiry of values in SET, SETEX and PSETEX, and the commands that change it: EXPIRE, PEXPIRE,
 * EXPIREAT, PEXPIREAT, PERSIST. The tiers store and verify the expiry with the value, so a value
 * whose expiry changes is stored again.
 */

static bool is_command(const struct tierce__resp_session *s, const char *name)
{
    return tierce__resp_arg_is(&s->request.args[0], name);
}

/* Converts seconds, or a time relative to now, to milliseconds since 1970. */
static bool read_when(int64_t *number, bool is_ms, bool is_at)
{
    return (is_ms || !__builtin_mul_overflow(*number, 1000, number)) &&
           (is_at || !__builtin_add_overflow(*number, (int64_t)(tierce__wall_us() / 1000), number));
}

bool tierce__resp_is_expiry(const struct tierce__resp_arg *word)
{
    return tierce__resp_arg_is(word, "EX") || tierce__resp_arg_is(word, "PX") ||
           tierce__resp_arg_is(word, "EXAT") || tierce__resp_arg_is(word, "PXAT");
}

bool tierce__resp_read_expiry(uint64_t *out_ms, const struct tierce__resp_arg *word,
                              const struct tierce__resp_arg *value)
{
    int64_t number;
    bool is_ms = tierce__resp_arg_is(word, "PX") || tierce__resp_arg_is(word, "PXAT");
    bool is_at = tierce__resp_arg_is(word, "EXAT") || tierce__resp_arg_is(word, "PXAT");
    if (!tierce__resp_arg_int(value, &number) || number <= 0 || !read_when(&number, is_ms, is_at))
        return false;
    *out_ms = (uint64_t)number;
    return true;
}

/* SETEX name seconds value, PSETEX name milliseconds value */
void tierce__resp_setex(struct tierce__resp_session *s)
{
    int64_t number;
    bool is_ms = is_command(s, "PSETEX");
    const struct tierce__resp_arg unit = {.text = is_ms ? "PX" : "EX", .bytes = 2};
    s->set = (struct tierce__resp_set){0};
    if (!tierce__resp_is_name(&s->request.args[1]))
        tierce__resp_error(s, "%s", TIERCE__RESP_KEY_ERROR);
    else if (!tierce__resp_arg_int(&s->request.args[2], &number))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else if (!tierce__resp_read_expiry(&s->set.expires_ms, &unit, &s->request.args[2]))
        tierce__resp_error(s, "ERR invalid expire time in '%s' command",
                           is_ms ? "psetex" : "setex");
    else
        tierce__resp_store(s, 3);
}

/* Whether the end may be changed. A value without one ends later than any other. */
static bool is_wanted(const struct tierce__resp_expire *expire, uint64_t before_ms)
{
    if (expire->persists)
        return before_ms != 0;
    return !(expire->nx && before_ms != 0) && !(expire->xx && before_ms == 0) &&
           !(expire->gt && (before_ms == 0 || expire->at_ms <= (int64_t)before_ms)) &&
           !(expire->lt && before_ms != 0 && expire->at_ms >= (int64_t)before_ms);
}

int tierce__resp_write(struct tierce__resp_session *s, const void *bytes, uint64_t count,
                       uint64_t expires_ms)
{
    const struct tierce__resp_arg *name = &s->request.args[1];
    struct tierce__object *object;
    int rc = tierce__node_create(s->node, &object, s->who.space,
                                 &(struct tierce__object_what){.name = name->text,
                                                               .name_bytes = name->bytes,
                                                               .value_bytes = count,
                                                               .expires_ms = expires_ms,
                                                               .hint = s->hint});
    if (rc < 0)
        return rc;
    memcpy(object->value, bytes, (size_t)count);
    object->deadline_ns = s->deadline_ns;
    return tierce__object_publish(object);
}

static int store_anew(struct tierce__resp_session *s, struct tierce__object *old,
                      uint64_t expires_ms)
{
    return tierce__object_verified(old, old->what.value_bytes)
               ? tierce__resp_write(s, old->value, old->what.value_bytes, expires_ms)
               : TIERCE_E_MISS;
}

int tierce__resp_change_end(struct tierce__resp_session *s)
{
    const struct tierce__resp_arg *name = &s->request.args[1];
    const struct tierce__resp_expire *expire = &s->expire;
    struct tierce__object *old = NULL;
    bool was = false;
    int rc = tierce__node_find(s->who.space, &old, name->text, name->bytes, s->deadline_ns);
    if (rc != 0)
        return rc == TIERCE_E_MISS ? 0 : rc;
    uint64_t before_ms = old->what.expires_ms;
    bool is_over = !expire->persists && expire->at_ms <= (int64_t)(tierce__wall_us() / 1000);
    if (is_wanted(expire, before_ms)) {
        if (is_over)
            rc = tierce__object_remove_by(s->who.space, name->text, name->bytes, s->deadline_ns,
                                          &was);
        else
            rc = store_anew(s, old, expire->persists ? 0 : (uint64_t)expire->at_ms);
        rc = rc == 0 ? 1 : rc;
    }
    tierce__object_release(old);
    return rc == TIERCE_E_MISS ? 0 : rc;
}

static void change_work(void *session)
{
    struct tierce__resp_session *s = session;
    const struct tierce__resp_arg *name = &s->request.args[1];
    struct tierce__object_name *held;
    s->rc = tierce__resp_name_begin(s, &held, name->text, name->bytes);
    if (s->rc < 0)
        return;
    s->rc = tierce__resp_change_end(s);
    tierce__object_name_end(held);
}

static void reply_changed(struct tierce__resp_session *s)
{
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    else
        tierce__resp_int(s, s->rc);
}

static void begin(struct tierce__resp_session *s)
{
    if (tierce__resp_is_name(&s->request.args[1]))
        tierce__resp_work(s, change_work, reply_changed);
    else
        tierce__resp_int(s, 0);
}

/* NULL, or the error message. */
static const char *read_options(struct tierce__resp_session *s, char unknown[128])
{
    struct tierce__resp_expire *expire = &s->expire;
    for (size_t i = 3; i < s->request.count; i++) {
        const struct tierce__resp_arg *word = &s->request.args[i];
        if (tierce__resp_arg_is(word, "NX"))
            expire->nx = true;
        else if (tierce__resp_arg_is(word, "XX"))
            expire->xx = true;
        else if (tierce__resp_arg_is(word, "GT"))
            expire->gt = true;
        else if (tierce__resp_arg_is(word, "LT"))
            expire->lt = true;
        else {
            snprintf(unknown, 128, "ERR Unsupported option %.80s",
                     word->text != NULL ? word->text : "");
            return unknown;
        }
    }
    if (expire->nx && (expire->xx || expire->gt || expire->lt))
        return "ERR NX and XX, GT or LT options at the same time are not compatible";
    if (expire->gt && expire->lt)
        return "ERR GT and LT options at the same time are not compatible";
    return NULL;
}

void tierce__resp_run_expire(struct tierce__resp_session *s)
{
    bool is_at = is_command(s, "EXPIREAT") || is_command(s, "PEXPIREAT");
    bool is_ms = is_command(s, "PEXPIRE") || is_command(s, "PEXPIREAT");
    s->expire = (struct tierce__resp_expire){0};
    char unknown[128];
    const char *wrong = read_options(s, unknown);
    if (wrong != NULL)
        tierce__resp_error(s, "%s", wrong);
    else if (!tierce__resp_arg_int(&s->request.args[2], &s->expire.at_ms))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else if (!read_when(&s->expire.at_ms, is_ms, is_at))
        tierce__resp_error(s, "ERR invalid expire time in '%s' command",
                           is_at   ? (is_ms ? "pexpireat" : "expireat")
                           : is_ms ? "pexpire"
                                   : "expire");
    else
        begin(s);
}

void tierce__resp_run_persist(struct tierce__resp_session *s)
{
    s->expire = (struct tierce__resp_expire){.persists = true};
    begin(s);
}
