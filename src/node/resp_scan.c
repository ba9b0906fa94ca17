/* SPDX-License-Identifier: Apache-2.0 */
#include "node/glob.h"
#include "node/resp_session.h"

#include <errno.h>
#include <stdio.h>

/* SCAN: the names of a space, a page at a time. */

#define PATTERN_BYTES_MAX 4096u /* a name of which each byte is escaped, and more */

static const struct tierce__resp_arg *argument(const struct tierce__resp_session *s, size_t index)
{
    return &s->request.args[index];
}

/* SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]; s->at: the pattern's argument, or 0. */
static bool read_scan(struct tierce__resp_session *s, bool *has_type)
{
    int64_t cursor;
    s->at = 0;
    s->number = 10;
    *has_type = true;
    if (!tierce__resp_arg_int(argument(s, 1), &cursor))
        return false;
    s->cursor = (uint64_t)cursor;
    for (size_t i = 2; i + 1 < s->request.count; i += 2) {
        const struct tierce__resp_arg *word = argument(s, i), *value = argument(s, i + 1);
        if (tierce__resp_arg_is(word, "MATCH") && value->bytes <= PATTERN_BYTES_MAX)
            s->at = i + 1;
        else if (tierce__resp_arg_is(word, "COUNT") && tierce__resp_arg_int(value, &s->number) &&
                 s->number > 0)
            continue;
        else if (tierce__resp_arg_is(word, "TYPE"))
            *has_type = tierce__resp_arg_is(value, "string");
        else
            return false;
    }
    return s->request.count % 2 == 0;
}

static void take_name(void *arg_, const struct tierce__object_what *what)
{
    struct tierce__resp_session *s = arg_;
    if (s->at != 0 && !tierce__glob_match(argument(s, s->at)->text, argument(s, s->at)->bytes,
                                          what->name, what->name_bytes))
        return;
    char head[32];
    int n = snprintf(head, sizeof(head), "$%zu\r\n", what->name_bytes);
    tierce__line_put_bytes(&s->line, head, (size_t)n);
    tierce__line_put_bytes(&s->line, what->name, what->name_bytes);
    tierce__line_put_bytes(&s->line, "\r\n", 2);
    s->number_end++;
}

/* COUNT is a hint, and a name may cost as much as its length times that of the pattern. */
static uint32_t names_at_once(const struct tierce__resp_session *s)
{
    enum { NAMES_MAX = 1000, WORK_MAX = 32 << 10 };
    size_t pattern_bytes = s->at != 0 ? argument(s, s->at)->bytes : 0;
    int64_t most =
        pattern_bytes > WORK_MAX / NAMES_MAX ? (int64_t)(WORK_MAX / pattern_bytes) : NAMES_MAX;
    return (uint32_t)(s->number < most ? s->number : most);
}

static void scan_work(void *session)
{
    struct tierce__resp_session *s = session;
    s->rc = tierce__objects_scan(s->who.space, &s->cursor, names_at_once(s), take_name, s);
}

static void after_scan(struct tierce__resp_session *s)
{
    char cursor[24];
    if (s->rc >= 0 && s->line.failed)
        s->rc = -ENOMEM;
    if (s->rc < 0) {
        tierce__resp_error_rc(s, s->rc);
    } else {
        snprintf(cursor, sizeof(cursor), "%llu", (unsigned long long)s->cursor);
        tierce__resp_array(s, 2);
        tierce__resp_text(s, cursor);
        tierce__resp_array(s, (size_t)s->number_end);
        tierce__connection_put(s->connection, s->line.text, s->line.bytes);
    }
    tierce__line_clear(&s->line);
}

void tierce__resp_run_scan(struct tierce__resp_session *s)
{
    bool has_type;
    s->number_end = 0;
    if (!read_scan(s, &has_type)) {
        tierce__resp_error(s, "ERR syntax error");
    } else if (!has_type) {
        s->cursor = 0;
        after_scan(s);
    } else {
        tierce__resp_work(s, scan_work, after_scan);
    }
}
