/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/url.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/config/config_parse.h"
#include "base/text/line.h"
#include "base/text/nearest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool is_control(uint8_t byte)
{
    return byte < ' ' || byte == 0x7f;
}

bool tierce__url_decode(char *text, bool takes_controls)
{
    char *out = text;
    for (const char *at = text; *at != '\0'; at++) {
        uint8_t byte = (uint8_t)*at;
        if (*at == '%') {
            if (at[1] == '\0' || at[2] == '\0' || !tierce__hex_decode(&byte, 1, at + 1))
                return false;
            at += 2;
        }
        if (byte == 0 || (!takes_controls && is_control(byte)))
            return false;
        *out++ = (char)byte;
    }
    *out = '\0';
    return true;
}

/* Cuts the text at the first `at`, and returns the rest after it, or NULL. */
static char *cut(char *text, char at)
{
    char *found = strchr(text, at);
    if (found != NULL)
        *found++ = '\0';
    return found;
}

static bool is_scheme_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
}

static bool is_host_char(char c, bool in_brackets)
{
    return is_scheme_char(c) || (c >= 'A' && c <= 'Z') || c == '_' ||
           (in_brackets && (c == ':' || c == '%'));
}

/* The length of the text before "://", or 0. */
static size_t scheme_bytes(const char *text)
{
    size_t bytes = 0;
    while (is_scheme_char(text[bytes]))
        bytes++;
    return bytes > 0 && strncmp(text + bytes, "://", 3) == 0 ? bytes : 0;
}

/* ---- parsing: each returns what is wrong, or NULL -------------------------------------------- */

static const char *take_user(struct tierce__url *url, char *text)
{
    char *password = cut(text, ':');
    if (!tierce__url_decode(text, false) ||
        (password != NULL && !tierce__url_decode(password, false)))
        return "invalid percent-encoding in the user or password";
    url->user = text;
    url->password = password;
    return NULL;
}

/* host, host:port, [::1]:port. */
static const char *take_host(struct tierce__url *url, char *text)
{
    uint64_t number = 0;
    char *port = NULL;
    bool in_brackets = text[0] == '[';
    if (url->host_count == TIERCE__URL_HOSTS_MAX)
        return "there are more than 16 hosts";
    if (in_brackets) {
        char *behind = cut(++text, ']');
        if (behind == NULL || (behind[0] != '\0' && behind[0] != ':'))
            return "the address in brackets has no closing bracket";
        port = behind[0] == ':' ? behind + 1 : NULL;
    } else {
        port = cut(text, ':');
    }
    if (port != NULL && (!tierce__parse_count(&number, port) || number == 0 || number > UINT16_MAX))
        return "a port must be between 1 and 65535";
    for (const char *at = text; *at != '\0'; at++) {
        if (!is_host_char(*at, in_brackets))
            return "a host name has an invalid character";
    }
    if (text[0] == '\0' && port == NULL)
        return "a host name is empty";
    url->hosts[url->host_count++] =
        (struct tierce__url_host){.name = text, .port = (uint16_t)number};
    return NULL;
}

static const char *take_hosts(struct tierce__url *url, char *text)
{
    const char *wrong = NULL;
    for (char *next; text != NULL && wrong == NULL; text = next) {
        next = cut(text, ',');
        wrong = take_host(url, text);
    }
    return wrong;
}

static const char *take_params(struct tierce__url *url, char *text)
{
    if (text != NULL && strchr(text, '@') != NULL)
        return "an '@' after the '?' must be written %40";
    for (char *next; text != NULL && text[0] != '\0'; text = next) {
        next = cut(text, '&');
        char *value = cut(text, '=');
        if (value == NULL || text[0] == '\0')
            return "a parameter must be name=value";
        if (!tierce__url_decode(text, false) || !tierce__url_decode(value, false))
            return "invalid percent-encoding in a parameter";
        if (url->param_count == TIERCE__URL_PARAMS_MAX)
            return "there are more than 32 parameters";
        url->params[url->param_count].name = text;
        url->params[url->param_count++].value = value;
    }
    return NULL;
}

/* Parses the text after "://". */
static const char *take_rest(struct tierce__url *url, char *text)
{
    const char *wrong = take_params(url, cut(text, '?'));
    size_t bytes = strcspn(text, "/");
    url->path = text + bytes;
    /* Moves the authority one byte to the left, over a byte of "://", so that both parts can be
     * terminated. */
    char *authority = memmove(text - 1, text, bytes);
    authority[bytes] = '\0';
    if (wrong == NULL && !tierce__url_decode(text + bytes, false))
        return "invalid percent-encoding in the path";
    char *hosts = strrchr(authority, '@');
    if (hosts != NULL) {
        *hosts++ = '\0';
        wrong = wrong != NULL ? wrong : take_user(url, authority);
    } else {
        hosts = authority;
    }
    return wrong == NULL && hosts[0] != '\0' ? take_hosts(url, hosts) : wrong;
}

int tierce__url_parse(struct tierce__url *out, const char *text, char why[TIERCE__URL_WHY_BYTES])
{
    struct tierce__url url = {0};
    size_t scheme = scheme_bytes(text);
    const char *wrong = NULL;
    if (scheme == 0)
        wrong = "it does not begin with a scheme and ://";
    else if (strnlen(text, TIERCE__URL_BYTES_MAX + 1) > TIERCE__URL_BYTES_MAX)
        wrong = "it is longer than 4096 bytes";
    if (wrong == NULL) {
        url.text = tierce__strdup(text);
        if (url.text == NULL) {
            snprintf(why, TIERCE__URL_WHY_BYTES, "%s", tierce_strerror(-ENOMEM));
            return -ENOMEM;
        }
        url.text_bytes = strlen(text);
        url.text[scheme] = '\0';
        url.scheme = url.text;
        wrong = take_rest(&url, url.text + scheme + 3);
    }
    if (wrong != NULL) {
        tierce__url_clear(&url);
        snprintf(why, TIERCE__URL_WHY_BYTES, "URL: %s", wrong);
        return TIERCE_E_CONFIG;
    }
    *out = url;
    return 0;
}

void tierce__url_clear(struct tierce__url *url)
{
    if (url->text != NULL)
        explicit_bzero(url->text, url->text_bytes);
    tierce__free(url->text);
    *url = (struct tierce__url){0};
}

/* ---- parameters ------------------------------------------------------------------------------ */

static bool is_known(const char *name, const char *const known[])
{
    for (size_t i = 0; known[i] != NULL; i++) {
        if (strcmp(name, known[i]) == 0)
            return true;
    }
    return false;
}

int tierce__url_check_params(const struct tierce__url *url, const char *const known[],
                             char why[TIERCE__URL_WHY_BYTES])
{
    for (size_t i = 0; i < url->param_count; i++) {
        const char *name = url->params[i].name;
        char shown[48];
        tierce__text_for_message(shown, sizeof(shown), name);
        if (!is_known(name, known)) {
            int used = snprintf(why, TIERCE__URL_WHY_BYTES,
                                "URL: unknown parameter \"%s\" (\"%s\"?); there are", shown,
                                tierce__nearest(name, known));
            for (size_t k = 0; known[k] != NULL && used > 0 && used < 256; k++)
                used += snprintf(why + used, TIERCE__URL_WHY_BYTES - (size_t)used, "%s %s",
                                 k > 0 ? "," : "", known[k]);
            return TIERCE_E_CONFIG;
        }
        if (tierce__url_param(url, name) != url->params[i].value) {
            snprintf(why, TIERCE__URL_WHY_BYTES, "URL: parameter \"%s\" is given twice", shown);
            return TIERCE_E_CONFIG;
        }
    }
    return 0;
}

const char *tierce__url_param(const struct tierce__url *url, const char *name)
{
    for (size_t i = 0; i < url->param_count; i++) {
        if (strcmp(url->params[i].name, name) == 0)
            return url->params[i].value;
    }
    return NULL;
}

static bool parse_kind(uint64_t *out, enum tierce__url_kind kind, const char *text)
{
    switch (kind) {
    case TIERCE__URL_SIZE:
        return tierce__parse_size(out, text);
    case TIERCE__URL_MILLISECONDS:
        return tierce__parse_duration(out, text);
    case TIERCE__URL_COUNT:
    default:
        return tierce__parse_count(out, text);
    }
}

static void format_kind(char *text, size_t room, enum tierce__url_kind kind, uint64_t value)
{
    if (kind == TIERCE__URL_SIZE)
        tierce__format_size(text, room, value);
    else if (kind == TIERCE__URL_MILLISECONDS)
        tierce__format_duration(text, room, value);
    else
        snprintf(text, room, "%" PRIu64, value);
}

int tierce__url_param_number(const struct tierce__url *url, uint64_t *value,
                             const struct tierce__url_number *number,
                             char why[TIERCE__URL_WHY_BYTES])
{
    uint64_t parsed = 0;
    char min[32], max[32], shown[48];
    const char *text = tierce__url_param(url, number->name);
    if (text == NULL)
        return 0;
    if (parse_kind(&parsed, number->kind, text) && parsed >= number->min && parsed <= number->max) {
        *value = parsed;
        return 0;
    }
    format_kind(min, sizeof(min), number->kind, number->min);
    format_kind(max, sizeof(max), number->kind, number->max);
    tierce__text_for_message(shown, sizeof(shown), text);
    snprintf(why, TIERCE__URL_WHY_BYTES, "URL: parameter %s is \"%s\"; accepted are %s to %s",
             number->name, shown, min, max);
    return TIERCE_E_CONFIG;
}

int tierce__url_param_flag(const struct tierce__url *url, bool *value, const char *name,
                           char why[TIERCE__URL_WHY_BYTES])
{
    char shown[48];
    const char *text = tierce__url_param(url, name);
    if (text == NULL || tierce__parse_bool(value, text))
        return 0;
    tierce__text_for_message(shown, sizeof(shown), text);
    snprintf(why, TIERCE__URL_WHY_BYTES, "URL: parameter %s is \"%s\"; accepted are true and false",
             name, shown);
    return TIERCE_E_CONFIG;
}

/* ---- showing --------------------------------------------------------------------------------- */

struct shown {
    char *text;
    size_t room, used;
    bool as_it_is; /* bytes outside ASCII too */
};

static void show(struct shown *shown, const char *text, size_t bytes)
{
    TIERCE_DASSERT(shown->used < shown->room);
    size_t left = shown->room - 1 - shown->used;
    bytes = bytes < left ? bytes : left;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        bool plain = shown->as_it_is || (c >= ' ' && c < 0x7f);
        shown->text[shown->used++] = plain ? c : '?';
    }
    shown->text[shown->used] = '\0';
}

/* Names that are percent-encoded are not looked into. */
static bool is_secret(const char *name, size_t bytes)
{
    static const char *const words[] = {"pass", "secret", "token", "key", "credential", "%"};
    char lower[64];
    size_t n = bytes < sizeof(lower) - 1 ? bytes : sizeof(lower) - 1;
    for (size_t i = 0; i < n; i++)
        lower[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
    lower[n] = '\0';
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (strstr(lower, words[i]) != NULL)
            return true;
    }
    return n < bytes;
}

static void show_params(struct shown *shown, const char *text)
{
    for (;;) {
        size_t bytes = strcspn(text, "&"), name = strcspn(text, "=&");
        bool secret = name < bytes && is_secret(text, name);
        show(shown, text, secret ? name + 1 : bytes);
        if (secret)
            show(shown, "***", 3);
        if (text[bytes] == '\0')
            return;
        show(shown, "&", 1);
        text += bytes + 1;
    }
}

/* Malformed URLs are shown too. They may hold a password that is not percent-encoded, so everything
 * up to the last '@' counts as user information, unless the store has no host at all. */
static void show_url(struct shown *shown, const char *url)
{
    size_t scheme = scheme_bytes(url);
    const char *rest = scheme > 0 ? url + scheme + 3 : url;
    const char *at = scheme > 0 && rest[0] == '/' ? NULL : strrchr(rest, '@');
    show(shown, url, (size_t)(rest - url));
    rest = at != NULL ? at + 1 : rest;
    const char *params = strchr(rest, '?');
    show(shown, rest, params != NULL ? (size_t)(params + 1 - rest) : strlen(rest));
    if (params != NULL)
        show_params(shown, params + 1);
}

void tierce__url_show(char *text, size_t room, const char *url)
{
    TIERCE_ASSERT(room > 0);
    text[0] = '\0';
    show_url(&(struct shown){.text = text, .room = room}, url);
}

char *tierce__url_show_all(const char *text)
{
    static const char blanks[] = " \t\r\n";
    size_t room = 4 * strlen(text) + 1; /* "***" may stand where nothing stood */
    struct shown shown = {.text = tierce__alloc(room), .room = room, .as_it_is = true};
    char *words = tierce__strdup(text);
    if (words == NULL || shown.text == NULL) {
        tierce__free(words);
        tierce__free(shown.text);
        return NULL;
    }
    shown.text[0] = '\0';
    for (char *word = words; *word != '\0';) {
        char *end = word + strcspn(word, blanks), blank = *end;
        size_t gap = strspn(end, blanks);
        *end = '\0';
        if (strstr(word, "://") != NULL)
            show_url(&shown, word);
        else
            show(&shown, word, (size_t)(end - word));
        *end = blank;
        show(&shown, end, gap);
        word = end + gap;
    }
    explicit_bzero(words, strlen(words));
    tierce__free(words);
    return shown.text;
}

void tierce__url_store_name(char *text, size_t room, const char *url)
{
    tierce__url_show(text, room, url);
    text[strcspn(text, "?")] = '\0';
}

void tierce__url_put_encoded(struct tierce__line *line, const char *text)
{
    char piece[4];
    for (; *text != '\0'; text++) {
        bool is_plain = strchr("%&=?#@+,;[]", *text) == NULL && *text > ' ' && *text < 0x7f;
        snprintf(piece, sizeof(piece), is_plain ? "%c" : "%%%02X", (unsigned char)*text);
        tierce__line_put(line, piece);
    }
}
