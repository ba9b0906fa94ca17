/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/nearest.h"

#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 64, PART_BYTES = 512 };

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0' && !(word[1] >= '0' && word[1] <= '9');
}

/* The option that `word` names, or NULL. *value = the value in the same word, or NULL. */
static const struct tierce__option *find(const struct tierce__option *options, const char *word,
                                         const char **value)
{
    const struct tierce__option *found = NULL;
    size_t length = strcspn(word, "="), count = 0;
    *value = word[length] == '=' ? word + length + 1 : NULL;
    for (; options->name != NULL; options++) {
        bool is_letter = options->name[1] != '-';
        if (is_letter && strncmp(options->name, word, 2) == 0) {
            *value = word[2] != '\0' ? word + 2 : NULL;
            return options;
        }
        if (is_letter || length <= 2 || strncmp(options->name, word, length) != 0)
            continue;
        if (options->name[length] == '\0')
            return options;
        found = options;
        count++;
    }
    return count == 1 && options->may_shorten ? found : NULL;
}

int tierce__option_unknown(const char *command, const char *word, const char *const known[])
{
    char name[64], shown[64];
    TIERCE_ASSERT(known[0] != NULL);
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    tierce__text_for_message(shown, sizeof(shown), word);
    return tierce__cli_usage(command, "there is no option \"%s\"; the nearest is \"%s\"", shown,
                             tierce__nearest(name, known));
}

static int refuse_name(const char *command, const struct tierce__option *options, const char *word)
{
    const char *known[OPTIONS_MAX + 1] = {NULL};
    for (size_t i = 0; options[i].name != NULL; i++) {
        TIERCE_ASSERT(i < OPTIONS_MAX);
        known[i] = options[i].name;
    }
    return tierce__option_unknown(command, word, known);
}

/* ---- values ---------------------------------------------------------------------------------- */

int tierce__option_refuse(const char *command, const char *option, const char *wants,
                          const char *text)
{
    char shown[64];
    TIERCE_ASSERT(wants != NULL);
    tierce__text_for_message(shown, sizeof(shown), text);
    return tierce__cli_usage(command, "%s requires %s: \"%s\"", option, wants, shown);
}

static void put_number(const struct tierce__option *o, void *field, uint64_t value)
{
    TIERCE_ASSERT(o->bytes == sizeof(uint32_t) || o->bytes == sizeof(uint64_t));
    if (o->bytes == sizeof(uint64_t)) {
        *(uint64_t *)field = value;
    } else {
        TIERCE_ASSERT(value <= UINT32_MAX);
        *(uint32_t *)field = (uint32_t)value;
    }
}

static int read_number(const char *command, const struct tierce__option *o, void *field,
                       const char *text)
{
    uint64_t value;
    bool is_count = o->kind == TIERCE__OPTION_COUNT;
    TIERCE_ASSERT(o->bytes == sizeof(uint64_t) || (o->max > 0 && o->max <= UINT32_MAX));
    bool good = is_count                         ? tierce__parse_count(&value, text)
                : o->kind == TIERCE__OPTION_SIZE ? tierce__parse_size(&value, text)
                                                 : tierce__parse_duration(&value, text);
    bool fits = good && (double)value >= o->min && (o->max <= 0 || (double)value <= o->max);
    if (good && !fits && o->wants == NULL)
        return tierce__cli_usage(command, "%s accepts %.0f to %.0f: \"%.60s\"", o->name, o->min,
                                 o->max, text);
    if (!fits)
        return tierce__option_refuse(command, o->name,
                                     is_count && o->wants == NULL ? "a number" : o->wants, text);
    put_number(o, field, value);
    return TIERCE__CLI_OK;
}

static int read_real(const char *command, const struct tierce__option *o, double *field,
                     const char *text)
{
    char *end;
    double value = strtod(text, &end);
    TIERCE_ASSERT(o->bytes == sizeof(*field) && o->max > 0);
    if (end == text || *end != '\0' || !(value >= o->min && value <= o->max))
        return tierce__option_refuse(command, o->name, o->wants, text);
    *field = value;
    return TIERCE__CLI_OK;
}

static int read_share(const char *command, const struct tierce__option *o, double *field,
                      const char *text)
{
    uint64_t share;
    TIERCE_ASSERT(o->bytes == sizeof(*field));
    if (!tierce__parse_share(&share, text) || share == 0 || share > TIERCE__SHARE_ONE)
        return tierce__option_refuse(command, o->name, "a share above 0, up to 1", text);
    *field = (double)share / (double)TIERCE__SHARE_ONE;
    return TIERCE__CLI_OK;
}

static const char *choice_at(const struct tierce__option *o, size_t index)
{
    return o->kind == TIERCE__OPTION_CHOICE ? o->choices[index] : o->names(index);
}

/* A text; if the row has `names` or `choices`, it must be one of them. */
static int read_text(const char *command, const struct tierce__option *o, void *field,
                     const char *text)
{
    bool is_choice = o->kind == TIERCE__OPTION_CHOICE, is_any = !is_choice && o->names == NULL;
    char list[256] = "", shown[64];
    size_t at = 0, used = 0;
    for (; !is_any && choice_at(o, at) != NULL && strcmp(choice_at(o, at), text) != 0; at++) {
        const char *between = at == 0                                     ? ""
                              : is_choice && choice_at(o, at + 1) == NULL ? " or "
                                                                          : ", ";
        if (used < sizeof(list))
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", between,
                                     choice_at(o, at));
    }
    if (!is_any && choice_at(o, at) == NULL) {
        tierce__text_for_message(shown, sizeof(shown), text);
        return tierce__cli_usage(command, "%s accepts %s; not \"%s\"", o->name, list, shown);
    }
    TIERCE_ASSERT(is_choice || o->bytes == sizeof(const char *));
    if (is_choice)
        put_number(o, field, (uint64_t)o->min + at);
    else
        *(const char **)field = text;
    return TIERCE__CLI_OK;
}

static int read_list(const char *command, const struct tierce__option *o, void *field,
                     const char *text)
{
    char part[PART_BYTES];
    for (;;) {
        size_t length = strcspn(text, ",");
        if (length >= sizeof(part))
            return tierce__cli_usage(command, "\"%.60s...\" is too long for an element of a list",
                                     text);
        memcpy(part, text, length);
        part[length] = '\0';
        int status = o->read(field, o->name, part);
        if (status != TIERCE__CLI_OK || text[length] == '\0')
            return status;
        text += length + 1;
    }
}

static int read_value(const char *command, const struct tierce__option *o, void *field,
                      const char *text)
{
    switch (o->kind) {
    case TIERCE__OPTION_FLAG:
        TIERCE_ASSERT(o->bytes == sizeof(bool));
        *(bool *)field = true;
        return TIERCE__CLI_OK;
    case TIERCE__OPTION_TEXT:
    case TIERCE__OPTION_CHOICE:
        return read_text(command, o, field, text);
    case TIERCE__OPTION_SHARE:
        return read_share(command, o, field, text);
    case TIERCE__OPTION_NUMBER:
        return read_real(command, o, field, text);
    case TIERCE__OPTION_CALL:
        return o->read(field, o->name, text);
    case TIERCE__OPTION_LIST:
        return read_list(command, o, field, text);
    case TIERCE__OPTION_COUNT:
    case TIERCE__OPTION_SIZE:
    case TIERCE__OPTION_DURATION:
        break;
    }
    return read_number(command, o, field, text);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int refuse_value(const char *command, const struct tierce__option *flag, const char *word)
{
    char shown[64];
    TIERCE_ASSERT(flag->kind == TIERCE__OPTION_FLAG);
    tierce__text_for_message(shown, sizeof(shown), word);
    return tierce__cli_usage(command, "%s takes no value: \"%s\"", flag->name, shown);
}

/* Reads the option argv[*i], and sets *i to its last word. */
static int read_option(const char *command, const struct tierce__option *options, void *out,
                       unsigned verb, int *i, char **argv)
{
    const char *value;
    const struct tierce__option *o = find(options, argv[*i], &value);
    bool is_flag = o != NULL && o->kind == TIERCE__OPTION_FLAG;
    if (o == NULL)
        return refuse_name(command, options, argv[*i]);
    if (is_flag && value != NULL)
        return refuse_value(command, o, argv[*i]);
    if (o->verbs != 0 && (o->verbs & verb) == 0)
        return tierce__cli_usage(command, "%s does not accept %s", argv[0], o->name);
    if (!is_flag && value == NULL)
        value = argv[++*i];
    if (!is_flag && value == NULL)
        return tierce__cli_usage(command, "%s requires a value", o->name);
    return read_value(command, o, (char *)out + o->offset, value);
}

int tierce__options_read(const char *command, const struct tierce__option *options, void *out,
                         unsigned verb, int *argc, char **argv)
{
    int count = 1, status = TIERCE__CLI_OK;
    bool has_ended = false;
    TIERCE_ASSERT(*argc >= 1 && argv[*argc] == NULL);
    for (int i = 1; i < *argc && status == TIERCE__CLI_OK; i++) {
        if (!has_ended && strcmp(argv[i], "--") == 0)
            has_ended = true;
        else if (!has_ended && is_option(argv[i]))
            status = read_option(command, options, out, verb, &i, argv);
        else
            argv[count++] = argv[i];
    }
    TIERCE_ASSERT(count <= *argc);
    if (status == TIERCE__CLI_OK) {
        *argc = count;
        argv[count] = NULL;
    }
    return status;
}
