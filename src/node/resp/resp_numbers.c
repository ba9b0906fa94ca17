/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "node/resp/resp_session.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Commands that read a value and then change it: INCR and its variants, GETDEL and GETEX. They hold
 * the name throughout.
 */

#define FLOAT_DIGITS_MAX 256u  /* of a parsed number */
#define FLOAT_TEXT_BYTES 5200u /* of a printed number: 4933 digits and a fraction */

static void with_name(struct tierce__resp_session *s, void (*change)(struct tierce__resp_session *))
{
    const struct tierce__resp_arg *name = tierce__resp_arg(s, 1);
    struct tierce__object_name *held;
    s->rc = tierce__resp_name_begin(s, &held, name->text, name->bytes);
    if (s->rc < 0)
        return;
    change(s);
    tierce__object_name_end(held);
}

/* Reads the old value into s->set.old. Returns 1, 0 if there is none, or an error; after an error
 * the value must not be changed. */
static int find_old(struct tierce__resp_session *s)
{
    const struct tierce__resp_arg *name = tierce__resp_arg(s, 1);
    int rc = tierce__node_find(s->who.space, &s->set.old, name->text, name->bytes, s->deadline_ns);
    if (rc == 0 && !tierce__object_verified(s->set.old, s->set.old->what.value_bytes)) {
        tierce__object_release(s->set.old);
        s->set.old = NULL;
        rc = TIERCE_E_MISS;
    }
    return rc == TIERCE_E_MISS ? 0 : rc == 0 ? 1 : rc;
}

static void drop_old(struct tierce__resp_session *s)
{
    tierce__object_release(s->set.old);
    s->set.old = NULL;
}

/* ---- whole numbers --------------------------------------------------------------------------- */

/* s->number: the addend; afterwards the sum. */
static void add(struct tierce__resp_session *s)
{
    int64_t before = 0;
    uint64_t expires_ms = 0;
    char text[24];
    int found = find_old(s);
    if (found > 0) {
        const struct tierce__object *old = s->set.old;
        char digits[24]; /* arguments end with NUL, values do not */
        size_t bytes = old->what.value_bytes < sizeof(digits) ? (size_t)old->what.value_bytes
                                                              : sizeof(digits) - 1;
        memcpy(digits, old->value, bytes);
        digits[bytes] = '\0';
        const struct tierce__resp_arg word = {.text = digits, .bytes = bytes};
        expires_ms = old->what.expires_ms;
        bool is_number = old->what.value_bytes == bytes && tierce__resp_arg_int(&word, &before);
        drop_old(s);
        s->set.wrong = is_number ? NULL : "ERR value is not an integer or out of range";
    }
    if (found >= 0 && s->set.wrong == NULL && __builtin_add_overflow(before, s->number, &s->number))
        s->set.wrong = "ERR increment or decrement would overflow";
    s->rc = found < 0 ? found : 0;
    if (s->rc == 0 && s->set.wrong == NULL) {
        int n = snprintf(text, sizeof(text), "%lld", (long long)s->number);
        TIERCE_ASSERT(n > 0 && (size_t)n < sizeof(text));
        s->rc = tierce__resp_write(s, text, (uint64_t)n, expires_ms);
    }
}

static void add_work(void *session)
{
    with_name(session, add);
}

/* The end of every change. Returns true if it was made and its answer must be written. */
static bool has_changed(struct tierce__resp_session *s)
{
    if (s->rc == 0 && s->set.wrong != NULL) {
        tierce__resp_error(s, "%s", s->set.wrong);
        return false;
    }
    tierce__node_count(s->node, s->rc == 0 ? TIERCE__NODE_sets : TIERCE__NODE_sets_dropped, 1);
    if (s->rc < 0)
        tierce__resp_error_rc(s, s->rc);
    return s->rc == 0;
}

static void reply_sum(struct tierce__resp_session *s)
{
    if (has_changed(s))
        tierce__resp_int(s, s->number);
}

/* INCR name, DECR name, INCRBY name number, DECRBY name number */
void tierce__resp_run_incr(struct tierce__resp_session *s)
{
    bool subtracts = s->command->name[0] == 'D';
    s->set = (struct tierce__resp_set){0};
    s->number = 1;
    if (s->request.count == 3 && !tierce__resp_arg_int(tierce__resp_arg(s, 2), &s->number))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else if (subtracts && s->number == INT64_MIN)
        tierce__resp_error(s, "ERR decrement would overflow");
    else if (!tierce__resp_is_name(tierce__resp_arg(s, 1)))
        tierce__resp_error(s, "%s", TIERCE__RESP_KEY_ERROR);
    else {
        s->number = subtracts ? -s->number : s->number;
        tierce__resp_work(s, add_work, reply_sum);
    }
}

/* ---- fractions ------------------------------------------------------------------------------- */

/* Parses a number as Redis does: no blanks, no NaN. */
static bool read_float(long double *out, const char *text, size_t bytes)
{
    char copy[FLOAT_DIGITS_MAX], *end;
    if (bytes == 0 || bytes >= sizeof(copy) || text[0] == ' ' ||
        (text[0] >= '\t' && text[0] <= '\r'))
        return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    errno = 0;
    *out = strtold(copy, &end);
    return end == copy + bytes && !isnan(*out) &&
           !(errno == ERANGE && (isinf(*out) || fpclassify(*out) == FP_ZERO));
}

/* Prints all digits, without an exponent and without trailing zeros. */
static size_t write_float(char text[FLOAT_TEXT_BYTES], long double value)
{
    size_t n = (size_t)snprintf(text, FLOAT_TEXT_BYTES, "%.17Lf", value);
    TIERCE_ASSERT(n > 0 && n < FLOAT_TEXT_BYTES);
    while (text[n - 1] == '0')
        n--;
    n -= text[n - 1] == '.';
    if (n == 2 && text[0] == '-' && text[1] == '0') {
        text[0] = '0';
        n = 1;
    }
    return n;
}

static void add_float(struct tierce__resp_session *s)
{
    const struct tierce__resp_arg *by = tierce__resp_arg(s, 2);
    long double before = 0, more = 0;
    uint64_t expires_ms = 0;
    char text[FLOAT_TEXT_BYTES];
    int found = find_old(s);
    if (found > 0) {
        const struct tierce__object *old = s->set.old;
        bool is_number =
            read_float(&before, (const char *)old->value, (size_t)old->what.value_bytes);
        expires_ms = old->what.expires_ms;
        drop_old(s);
        s->set.wrong = is_number ? NULL : "ERR value is not a valid float";
    }
    if (s->set.wrong == NULL && !read_float(&more, by->text, by->bytes))
        s->set.wrong = "ERR value is not a valid float";
    long double sum = before + more;
    if (s->set.wrong == NULL && !isfinite(sum))
        s->set.wrong = "ERR increment would produce NaN or Infinity";
    s->rc = found < 0 ? found : 0;
    if (s->rc < 0 || s->set.wrong != NULL)
        return;
    size_t n = write_float(text, sum);
    tierce__line_put_bytes(&s->line, text, n);
    s->rc = s->line.failed ? -ENOMEM : tierce__resp_write(s, text, n, expires_ms);
}

static void add_float_work(void *session)
{
    with_name(session, add_float);
}

static void reply_float(struct tierce__resp_session *s)
{
    if (has_changed(s))
        tierce__resp_bulk(s, s->line.text, s->line.bytes);
    tierce__line_clear(&s->line);
}

void tierce__resp_run_incrbyfloat(struct tierce__resp_session *s)
{
    s->set = (struct tierce__resp_set){0};
    if (tierce__resp_arg(s, 2)->text == NULL)
        tierce__resp_error(s, "ERR value is not a valid float");
    else if (!tierce__resp_is_name(tierce__resp_arg(s, 1)))
        tierce__resp_error(s, "%s", TIERCE__RESP_KEY_ERROR);
    else
        tierce__resp_work(s, add_float_work, reply_float);
}

/* ---- GETDEL and GETEX ------------------------------------------------------------------------ */

static void reply_old(struct tierce__resp_session *s)
{
    struct tierce__object *old = s->set.old;
    s->set.old = NULL;
    tierce__node_count(s->node, TIERCE__NODE_gets, 1);
    if (s->rc < 0) {
        tierce__object_release(old);
        tierce__resp_error_rc(s, s->rc);
    } else if (old == NULL) {
        tierce__resp_nil(s);
    } else {
        tierce__node_count(s->node, TIERCE__NODE_hits, 1);
        tierce__resp_value(s, old, 0, old->what.value_bytes);
    }
}

static void take_out(struct tierce__resp_session *s)
{
    const struct tierce__resp_arg *name = tierce__resp_arg(s, 1);
    bool was;
    s->rc = find_old(s);
    if (s->rc >= 0) /* a value that cannot be read now is removed too */
        s->rc =
            tierce__object_remove_by(s->who.space, name->text, name->bytes, s->deadline_ns, &was);
}

static void take_out_work(void *session)
{
    with_name(session, take_out);
}

void tierce__resp_run_getdel(struct tierce__resp_session *s)
{
    s->set = (struct tierce__resp_set){0};
    if (tierce__resp_is_name(tierce__resp_arg(s, 1)))
        tierce__resp_work(s, take_out_work, reply_old);
    else
        tierce__resp_nil(s);
}

static void get_and_change(struct tierce__resp_session *s)
{
    s->rc = find_old(s);
    if (s->rc > 0 && (s->expire.persists || s->expire.at_ms != 0))
        s->rc = tierce__resp_change_end(s);
}

static void get_and_change_work(void *session)
{
    with_name(session, get_and_change);
}

/* GETEX name [EX seconds | PX ms | EXAT seconds | PXAT ms | PERSIST] */
void tierce__resp_run_getex(struct tierce__resp_session *s)
{
    size_t count = s->request.count;
    uint64_t at_ms = 0;
    int64_t number;
    bool is_read = true;
    s->set = (struct tierce__resp_set){0};
    s->expire = (struct tierce__resp_expire){0};
    if (count == 3)
        is_read = s->expire.persists = tierce__resp_arg_is(tierce__resp_arg(s, 2), "PERSIST");
    else if (count > 3)
        is_read = count == 4 && tierce__resp_is_expiry(tierce__resp_arg(s, 2));
    if (!is_read)
        tierce__resp_error(s, "ERR syntax error");
    else if (count == 4 && !tierce__resp_arg_int(tierce__resp_arg(s, 3), &number))
        tierce__resp_error(s, "ERR value is not an integer or out of range");
    else if (count == 4 &&
             !tierce__resp_read_expiry(&at_ms, tierce__resp_arg(s, 2), tierce__resp_arg(s, 3)))
        tierce__resp_error(s, "ERR invalid expire time in 'getex' command");
    else if (!tierce__resp_is_name(tierce__resp_arg(s, 1)))
        tierce__resp_nil(s);
    else {
        s->expire.at_ms = (int64_t)at_ms;
        tierce__resp_work(s, get_and_change_work, reply_old);
    }
}
