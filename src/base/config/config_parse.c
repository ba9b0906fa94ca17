/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_parse.h"
#include "base/assert.h"
#include "base/text/utf8.h"
#include "base/bytes.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FRACTION_DIGITS_MAX 9

struct config_unit {
    const char *name;
    uint64_t factor;
};

static const struct config_unit size_units[] = {
    {"PiB", 1ULL << 50},
    {"TiB", 1ULL << 40},
    {"GiB", 1ULL << 30},
    {"MiB", 1ULL << 20},
    {"KiB", 1ULL << 10},
    {"B", 1},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000ULL},
    {"TB", 1000000000000ULL},
    {"PB", 1000000000000000ULL},
};

static const struct config_unit duration_units[] = {
    {"h", 3600000}, {"min", 60000}, {"s", 1000}, {"ms", 1}};

static const struct config_unit share_units[] = {{"%", TIERCE__SHARE_ONE / 100}};

/* A decimal number: whole + fraction / 10^fraction_digits. */
struct config_decimal {
    uint64_t whole;
    uint64_t fraction;
    unsigned fraction_digits;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_spaces(const char *p)
{
    while (*p == ' ')
        p++;
    return p;
}

/* Reads a number at *p and moves *p behind it; false for no digit, too many, or overflow. */
static bool read_decimal(struct config_decimal *out, const char **p)
{
    struct config_decimal d = {0};
    const char *at = *p;

    if (!is_digit(*at))
        return false;
    for (; is_digit(*at); at++) {
        if (!tierce__mul_ok(&d.whole, d.whole, 10) ||
            !tierce__add_ok(&d.whole, d.whole, (uint64_t)(*at - '0')))
            return false;
    }
    if (*at == '.') {
        at++;
        if (!is_digit(*at))
            return false;
        for (; is_digit(*at); at++) {
            if (++d.fraction_digits > FRACTION_DIGITS_MAX)
                return false;
            d.fraction = d.fraction * 10 + (uint64_t)(*at - '0');
        }
    }
    TIERCE_DASSERT(d.fraction_digits <= FRACTION_DIGITS_MAX);
    *out = d;
    *p = at;
    return true;
}

/* *out = floor(d * factor); *exact tells whether nothing was dropped. False on overflow. */
static bool scale(uint64_t *out, bool *exact, const struct config_decimal *d, uint64_t factor)
{
    uint64_t power = 1;
    for (unsigned i = 0; i < d->fraction_digits; i++)
        power *= 10;
    TIERCE_DASSERT(d->fraction < power && factor > 0 && factor <= 1ULL << 50);
    /* fraction < power <= 10^9 and factor <= 2^50: split the factor so that no product passes
     * 2^64, since fraction * (factor / power) + fraction * (factor % power) / power is the same. */
    uint64_t rest = d->fraction * (factor % power);
    uint64_t part = d->fraction * (factor / power) + rest / power;
    uint64_t whole;
    if (!tierce__mul_ok(&whole, d->whole, factor) || !tierce__add_ok(&whole, whole, part))
        return false;
    *out = whole;
    *exact = rest % power == 0;
    return true;
}

/* The factor of the unit at `p`, which must end the text; `none` if there is no unit; 0:
 * unknown. */
static uint64_t read_unit(const char *p, const struct config_unit *units, size_t count,
                          uint64_t none)
{
    char name[8];
    size_t len = strcspn(p, " ");

    if (len >= sizeof(name) || *skip_spaces(p + len) != '\0')
        return 0;
    if (len == 0)
        return none;
    memcpy(name, p, len);
    name[len] = '\0';
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(name, units[i].name) == 0)
            return units[i].factor;
    }
    return 0;
}

static bool parse_scaled(uint64_t *out, bool *exact, const char *text,
                         const struct config_unit *units, size_t count, uint64_t none)
{
    struct config_decimal d;
    const char *p = skip_spaces(text);

    if (!read_decimal(&d, &p))
        return false;
    uint64_t factor = read_unit(skip_spaces(p), units, count, none);
    return factor != 0 && scale(out, exact, &d, factor);
}

bool tierce__parse_size(uint64_t *out, const char *text)
{
    uint64_t value;
    bool exact;
    if (!parse_scaled(&value, &exact, text, size_units, sizeof(size_units) / sizeof(*size_units),
                      1))
        return false;
    *out = value;
    return true;
}

static bool parse_exact(uint64_t *out, const char *text, const struct config_unit *units,
                        size_t count, uint64_t none)
{
    uint64_t value;
    bool exact;
    if (!parse_scaled(&value, &exact, text, units, count, none) || !exact)
        return false;
    *out = value;
    return true;
}

bool tierce__parse_duration(uint64_t *out, const char *text)
{
    return parse_exact(out, text, duration_units, sizeof(duration_units) / sizeof(*duration_units),
                       1);
}

bool tierce__parse_count(uint64_t *out, const char *text)
{
    struct config_decimal d;
    const char *p = skip_spaces(text);
    if (!read_decimal(&d, &p) || d.fraction_digits > 0 || *skip_spaces(p) != '\0')
        return false;
    *out = d.whole;
    return true;
}

bool tierce__parse_share(uint64_t *out, const char *text)
{
    return parse_exact(out, text, share_units, sizeof(share_units) / sizeof(*share_units),
                       TIERCE__SHARE_ONE);
}

bool tierce__parse_bool(bool *out, const char *text)
{
    static const char *const names[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcasecmp(text, names[i]) == 0) {
            *out = i % 2 == 1;
            return true;
        }
    }
    return false;
}

void tierce__format_size(char *text, size_t size, uint64_t bytes)
{
    /* The unit that leaves the smallest whole number: 2GB rather than 1953125KiB. */
    uint64_t best = bytes;
    const char *unit = "";
    for (size_t i = 0; i < sizeof(size_units) / sizeof(*size_units); i++) {
        uint64_t factor = size_units[i].factor;
        if (bytes % factor == 0 && bytes / factor < best) {
            best = bytes / factor;
            unit = size_units[i].name;
        }
    }
    snprintf(text, size, "%llu%s", (unsigned long long)best, unit);
}

void tierce__format_duration(char *text, size_t size, uint64_t ms)
{
    /* Hours first, milliseconds last, so that a unit always fits. */
    size_t i = 0;
    while (ms > 0 && ms % duration_units[i].factor != 0)
        i++;
    if (ms == 0)
        i = sizeof(duration_units) / sizeof(*duration_units) - 1;
    snprintf(text, size, "%llu%s", (unsigned long long)(ms / duration_units[i].factor),
             duration_units[i].name);
}

void tierce__format_share(char *text, size_t size, uint64_t billionths)
{
    int n =
        snprintf(text, size, "%llu.%09llu", (unsigned long long)(billionths / TIERCE__SHARE_ONE),
                 (unsigned long long)(billionths % TIERCE__SHARE_ONE));
    while (n > 0 && text[n - 1] == '0')
        text[--n] = '\0';
    if (n > 0 && text[n - 1] == '.')
        text[n - 1] = '\0';
}

bool tierce__text_is_clean(const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;
    for (size_t i = 0; i < len;) {
        size_t n = tierce__utf8_length(p + i, len - i);
        if (n == 0 || tierce__is_control(p + i, n))
            return false;
        i += n;
    }
    return true;
}

void tierce__text_for_message(char *out, size_t size, const char *text)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t len = strlen(text);
    size_t used = 0;
    size_t cut = 0; /* the last place where "..." and the NUL still fit */

    for (size_t i = 0; i < len;) {
        size_t n = tierce__utf8_length(p + i, len - i);
        bool bad = n == 0 || tierce__is_control(p + i, n);
        size_t room = bad ? 1 : n;
        if (used + room >= size) {
            memcpy(out + cut, "...", 4);
            return;
        }
        if (bad)
            out[used] = '?';
        else
            memcpy(out + used, p + i, n);
        used += room;
        i += n == 0 ? 1 : n;
        if (used + 4 <= size)
            cut = used;
    }
    out[used] = '\0';
}
