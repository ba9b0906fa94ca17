/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/why/why_compare.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

/* A value such as a UUID may begin before the first byte that differs. */
#define BEFORE_BYTES 40u
/* A list of tools or a chat template is recognised by names and marks around the difference. */
#define AROUND_BYTES 400u

/* ---- the likely cause ------------------------------------------------------------------------ */

/* Values that contain the first byte that differs, in both texts. The first pattern that matches
 * counts. */
static const struct {
    const char *pattern, *what;
} values[] = {
    {"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
     "a random id (UUID)"},
    {"(19|20)[0-9]{2}[-/.][01]?[0-9][-/.][0-3]?[0-9]([T ][0-2]?[0-9]:[0-5][0-9](:[0-5][0-9])?)?",
     "a timestamp"},
    {"[0-2]?[0-9]:[0-5][0-9](:[0-5][0-9])?", "a timestamp"},
    {"[0-3]?[0-9]? ?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* "
     "[0-3]?[0-9],? ?((19|20)[0-9]{2})?",
     "a timestamp"},
    {"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day", "a timestamp"},
    {"[0-9]{10,}", "a timestamp or an id"},
    {"[0-9a-fA-F]*[0-9][0-9a-fA-F]{11,}|[0-9a-fA-F]{11,}[0-9][0-9a-fA-F]*",
     "a random id (hexadecimal)"},
};

/* Parts of a prompt that the texts around the difference show. */
static const struct {
    const char *pattern, *what;
} parts[] = {
    {"\"(parameters|input_schema|function|tools|description)\" *:", "a changed list of tools"},
};

static const char system_mark[] =
    "<\\|im_start\\|>system|<\\|start_header_id\\|>system|<\\|system\\|>|<<SYS>>|"
    "(^|\n)#* *[Ss]ystem:";
static const char user_mark[] =
    "<\\|im_start\\|>user|<\\|start_header_id\\|>user|<\\|user\\|>|<start_of_turn>user|\\[INST\\]|"
    "(^|\n)#* *([Uu]ser|[Hh]uman):";
static const char template_mark[] = "<\\|[a-z_]+\\|>|\\[/?INST\\]|<</?SYS>>|</?s>|<start_of_turn>";

/* A part of a text, copied, and the place in it of the first byte that differs. */
struct excerpt {
    char text[2 * AROUND_BYTES + 1];
    size_t bytes, at;
};

static void cut(struct excerpt *out, const char *text, size_t at, size_t before, size_t after)
{
    size_t bytes = strlen(text);
    TIERCE_DASSERT(at <= bytes && before <= AROUND_BYTES && after <= AROUND_BYTES);
    size_t from = at > before ? at - before : 0;
    size_t to = bytes - at > after ? at + after : bytes;
    out->bytes = to - from;
    out->at = at - from;
    memcpy(out->text, text + from, out->bytes);
    out->text[out->bytes] = '\0';
}

/* The first match of a pattern that ends after byte `after` and begins at or before `until`.
 */
static bool find_match(regmatch_t *out, const char *pattern, const struct excerpt *in, size_t after,
                       size_t until)
{
    regex_t regex;
    bool found = false;
    size_t at = 0;
    if (regcomp(&regex, pattern, REG_EXTENDED) != 0)
        return false;
    while (!found && at <= in->bytes &&
           regexec(&regex, in->text + at, 1, out, at > 0 ? REG_NOTBOL : 0) == 0) {
        out->rm_so += (regoff_t)at;
        out->rm_eo += (regoff_t)at;
        found = (size_t)out->rm_eo > after && (size_t)out->rm_so <= until;
        at = (size_t)out->rm_eo > at ? (size_t)out->rm_eo : at + 1;
    }
    regfree(&regex);
    return found;
}

static bool has_match(const char *pattern, const struct excerpt *in)
{
    regmatch_t match;
    return find_match(&match, pattern, in, 0, in->bytes);
}

/* The end of the pattern's last match before `at`; 0: there is none. The bounds keep each search
 * from measuring the whole text. */
static size_t end_of_last(const char *pattern, const char *text, size_t at)
{
    regex_t regex;
    size_t from = 0, last = 0;
    if (regcomp(&regex, pattern, REG_EXTENDED) != 0)
        return 0;
    while (from < at) {
        regmatch_t match = {.rm_so = (regoff_t)from, .rm_eo = (regoff_t)at};
        if (regexec(&regex, text, 1, &match, REG_STARTEND) != 0)
            break;
        last = (size_t)match.rm_eo;
        from = last > from ? last : from + 1;
    }
    regfree(&regex);
    return last;
}

static void copy_shown(char out[TIERCE__WHY_SHOWN + 1], const char *text, size_t bytes)
{
    bytes = bytes < TIERCE__WHY_SHOWN ? bytes : TIERCE__WHY_SHOWN;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    for (char *c = out; *c != '\0'; c++) {
        if (*c == '\n' || *c == '\r' || *c == '\t')
            *c = ' ';
    }
    tierce__cli_clean(out);
}

/* A value that both texts have at the difference. */
static bool find_value(struct tierce__why_comparison *out, const struct excerpt *here,
                       const struct excerpt *there)
{
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        regmatch_t a, b;
        if (!find_match(&a, values[i].pattern, here, here->at, here->at) ||
            !find_match(&b, values[i].pattern, there, there->at, there->at))
            continue;
        out->cause = values[i].what;
        copy_shown(out->here_value, here->text + a.rm_so, (size_t)(a.rm_eo - a.rm_so));
        copy_shown(out->there_value, there->text + b.rm_so, (size_t)(b.rm_eo - b.rm_so));
        return true;
    }
    return false;
}

/* A part of the prompt around the difference, which begins at `at` in the text. */
static const char *find_part(const char *text, size_t at, const struct excerpt *here,
                             const struct excerpt *there)
{
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (has_match(parts[i].pattern, here) || has_match(parts[i].pattern, there))
            return parts[i].what;
    }
    regmatch_t mark;
    if (find_match(&mark, template_mark, here, here->at, here->at) ||
        find_match(&mark, template_mark, there, there->at, there->at))
        return "a changed chat template";
    size_t system = end_of_last(system_mark, text, at);
    if (system > 0 && end_of_last(user_mark, text, at) < system)
        return "a changed system prompt";
    return NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* The byte where token `i` begins; for the number of tokens, the end of the text. */
static size_t start_of(const struct tierce__why_side *side, uint64_t i)
{
    size_t bytes = strlen(side->source->text);
    TIERCE_DASSERT(i <= side->count && side->count == side->source->count);
    size_t at = i < side->count ? (size_t)side->source->starts[i] : bytes;
    return at < bytes ? at : bytes;
}

/* The texts are equal up to token `token`, and perhaps in the first bytes of this token. */
static void compare_texts(struct tierce__why_comparison *out, const struct tierce__why_side *here,
                          const struct tierce__why_side *there)
{
    const char *a = here->source->text, *b = there->source->text;
    size_t from_a = start_of(here, out->token), from_b = start_of(there, out->token), same = 0;
    static struct excerpt near_a, near_b;
    while (a[from_a + same] != '\0' && a[from_a + same] == b[from_b + same])
        same++;
    cut(&near_a, a, from_a + same, BEFORE_BYTES, TIERCE__WHY_SHOWN - BEFORE_BYTES);
    cut(&near_b, b, from_b + same, BEFORE_BYTES, TIERCE__WHY_SHOWN - BEFORE_BYTES);
    copy_shown(out->here, near_a.text, near_a.bytes);
    copy_shown(out->there, near_b.text, near_b.bytes);
    if (out->is_prefix || find_value(out, &near_a, &near_b))
        return;
    cut(&near_a, a, from_a + same, AROUND_BYTES, AROUND_BYTES);
    cut(&near_b, b, from_b + same, AROUND_BYTES, AROUND_BYTES);
    out->cause = find_part(a, from_a + same, &near_a, &near_b);
}

void tierce__why_compare(struct tierce__why_comparison *out, const struct tierce__why_side *here,
                         const struct tierce__why_side *there)
{
    size_t shorter = here->count < there->count ? here->count : there->count;
    *out = (struct tierce__why_comparison){0};
    while (out->token < shorter && here->tokens[out->token] == there->tokens[out->token])
        out->token++;
    out->is_same = out->token == here->count && out->token == there->count;
    out->is_prefix = !out->is_same && out->token == shorter;
    if (!out->is_same && here->source != NULL && there->source != NULL)
        compare_texts(out, here, there);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Whether the difference explains the end of the hit. */
static void put_verdict(struct tierce__line *out, const struct tierce__why_comparison *c,
                        const struct tierce__why_place *place)
{
    if (place->missing_token < 0 || place->block_tokens == 0)
        return;
    uint64_t missing = (uint64_t)place->missing_token;
    uint64_t block = c->token / place->block_tokens * place->block_tokens;
    if (c->is_same || missing < block)
        tierce__line_put_format(out,
                                "           the hit ends at token %" PRIu64
                                ", before this: the reason above is the cause\n",
                                missing);
    else if (missing == block)
        tierce__line_put_format(out, "           the hit ends with the last block before this\n");
    else
        tierce__line_put_format(
            out, "           the hit reaches token %" PRIu64 ", from another prompt\n", missing);
}

void tierce__why_compare_text(struct tierce__line *out, const struct tierce__why_comparison *c,
                              const struct tierce__why_place *place)
{
    if (c->is_same)
        tierce__line_put_format(
            out, "against    no difference: both prompts have the same %" PRIu64 " tokens\n",
            c->token);
    else
        tierce__line_put_format(out, "against    differs at token %" PRIu64 "%s\n", c->token,
                                c->is_prefix ? ", the end of the shorter prompt" : "");
    put_verdict(out, c, place);
    if (c->here[0] != '\0' || c->there[0] != '\0') {
        tierce__line_put_format(out, "here       \"%s\"\n", c->here);
        tierce__line_put_format(out, "there      \"%s\"\n", c->there);
    }
    if (c->cause != NULL && c->here_value[0] != '\0')
        tierce__line_put_format(out, "cause      %s: \"%s\" here, \"%s\" there\n", c->cause,
                                c->here_value, c->there_value);
    else if (c->cause != NULL)
        tierce__line_put_format(out, "cause      %s\n", c->cause);
}

void tierce__why_compare_json(struct tierce__line *out, const struct tierce__why_comparison *c)
{
    struct tierce__json_write json = {.line = out, .is_html = true};
    tierce__line_put(out, ",\"against\":");
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_count(&json, "token", c->token);
    tierce__json_write_bool(&json, "is_same", c->is_same);
    tierce__json_write_bool(&json, "is_prefix", c->is_prefix);
    tierce__json_write_text(&json, "here", c->here[0] != '\0' ? c->here : NULL);
    tierce__json_write_text(&json, "there", c->there[0] != '\0' ? c->there : NULL);
    tierce__json_write_text(&json, "cause", c->cause);
    tierce__json_write_text(&json, "here_value", c->here_value[0] != '\0' ? c->here_value : NULL);
    tierce__json_write_text(&json, "there_value",
                            c->there_value[0] != '\0' ? c->there_value : NULL);
    tierce__json_write_close(&json, '}');
}
