/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "node/resp/glob.h"
#include "node/resp/resp_session.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>

/* SCAN: the names of a space, a page at a time; KEYS: all of them at once. */

#define PATTERN_BYTES_MAX 4096u /* room for a name with every byte escaped, and more */
#define LONG_PATTERN      "ERR the pattern is longer than 4096 bytes"
#define KEYS_BYTES_MAX    (64u << 20) /* of an answer to KEYS, which is buffered until complete */

static const struct tierce__resp_arg *argument(const struct tierce__resp_session *s, size_t index)
{
    TIERCE_ASSERT(index <= s->request.count);
    return &s->request.args[index];
}

#define SYNTAX "ERR syntax error"

/* Parses a cursor as Redis does: digits of an unsigned 64-bit number. */
static bool read_cursor(uint64_t *out, const struct tierce__resp_arg *word)
{
    uint64_t value = 0;
    if (word->text == NULL || word->bytes == 0)
        return false;
    for (size_t i = 0; i < word->bytes; i++) {
        unsigned digit = (unsigned)(unsigned char)word->text[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return false;
    }
    *out = value;
    return true;
}

/* SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]; s->at: the pattern's argument, or 0.
 * Returns NULL, or the error. */
static const char *read_scan(struct tierce__resp_session *s, bool *has_type)
{
    s->at = 0;
    s->number = 10;
    *has_type = true;
    if (!read_cursor(&s->cursor, argument(s, 1)))
        return "ERR invalid cursor";
    for (size_t i = 2; i < s->request.count; i += 2) {
        const struct tierce__resp_arg *word = argument(s, i), *value = argument(s, i + 1);
        if (i + 1 == s->request.count)
            return SYNTAX;
        if (tierce__resp_arg_is(word, "MATCH") && value->bytes > PATTERN_BYTES_MAX)
            return LONG_PATTERN;
        if (tierce__resp_arg_is(word, "MATCH"))
            s->at = i + 1;
        else if (tierce__resp_arg_is(word, "TYPE"))
            *has_type = tierce__resp_arg_is(value, "string");
        else if (!tierce__resp_arg_is(word, "COUNT"))
            return SYNTAX;
        else if (!tierce__resp_arg_int(value, &s->number))
            return "ERR value is not an integer or out of range";
        else if (s->number < 1)
            return SYNTAX;
    }
    return NULL;
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
    TIERCE_ASSERT(most > 0 && s->number > 0);
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
    const char *wrong = read_scan(s, &has_type);
    if (wrong != NULL) {
        tierce__resp_error(s, "%s", wrong);
    } else if (!has_type) {
        s->cursor = 0;
        after_scan(s);
    } else {
        tierce__resp_work(s, scan_work, after_scan);
    }
}

/* ---- KEYS ------------------------------------------------------------------------------------ */

/* A page is complete: starts the next one, or answers. */
static void after_page(struct tierce__resp_session *s)
{
    if (s->rc >= 0 && s->line.failed)
        s->rc = -ENOMEM;
    bool is_long = s->line.bytes > KEYS_BYTES_MAX;
    if (s->rc >= 0 && !is_long && s->cursor != 0)
        return;
    s->step = NULL;
    if (s->rc < 0) {
        tierce__resp_error_rc(s, s->rc);
    } else if (is_long) {
        tierce__resp_error(s, "ERR the names exceed %u MiB: use SCAN", KEYS_BYTES_MAX >> 20);
    } else {
        tierce__resp_array(s, (size_t)s->number_end);
        tierce__connection_put(s->connection, s->line.text, s->line.bytes);
    }
    tierce__line_clear(&s->line);
}

/* Page by page, so that other connections are served in between. */
static void step_keys(struct tierce__resp_session *s)
{
    s->rests = true;
    tierce__resp_work(s, scan_work, after_page);
}

/* KEYS pattern */
void tierce__resp_run_keys(struct tierce__resp_session *s)
{
    if (argument(s, 1)->bytes > PATTERN_BYTES_MAX) {
        tierce__resp_error(s, "%s", LONG_PATTERN);
        return;
    }
    s->at = 1;
    s->number = INT64_MAX;
    s->number_end = 0;
    s->cursor = 0;
    s->step = step_keys;
}
