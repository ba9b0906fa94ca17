/* SPDX-License-Identifier: Apache-2.0 */
#include "net/grpc/grpc_text.h"
#include "base/assert.h"
#include "base/text/utf8.h"

#include <stdio.h>
#include <string.h>

static const struct {
    char letter;
    uint64_t ns;
} units[] = {
    {'n', 1},          {'u', 1000},        {'m', 1000000},
    {'S', 1000000000}, {'M', 60000000000}, {'H', 3600000000000},
};

bool tierce__grpc_timeout_parse(uint64_t *out_ns, const char *text)
{
    uint64_t value = 0;
    size_t digits = 0;
    for (; text[digits] >= '0' && text[digits] <= '9'; digits++) {
        if (digits == 8)
            return false;
        value = value * 10 + (uint64_t)(text[digits] - '0');
    }
    if (digits == 0 || text[digits] == '\0' || text[digits + 1] != '\0')
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
        if (units[i].letter != text[digits])
            continue;
        if (__builtin_mul_overflow(value, units[i].ns, out_ns))
            *out_ns = UINT64_MAX;
        return true;
    }
    return false;
}

void tierce__grpc_timeout_print(char text[TIERCE__GRPC_TIMEOUT_BYTES], uint64_t ns)
{
    size_t unit = 0;
    uint64_t value = ns;
    while (value > 99999999 && unit + 1 < sizeof(units) / sizeof(*units)) {
        unit++;
        value = ns / units[unit].ns + (ns % units[unit].ns > 0);
    }
    if (value > 99999999)
        value = 99999999;
    snprintf(text, TIERCE__GRPC_TIMEOUT_BYTES, "%u%c", (unsigned)value, units[unit].letter);
}

size_t tierce__grpc_message_encode(char *out, size_t capacity, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t length = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0';) {
        if (*at >= 0x20 && *at <= 0x7E && *at != '%') {
            if (length + 1 >= capacity)
                break;
            out[length++] = (char)*at++;
            continue;
        }
        uint32_t letter;
        size_t n = tierce__utf8_letter(&letter, at); /* a character is written as a whole */
        if (length + 3 * n >= capacity)
            break;
        for (; n > 0; n--, at++) {
            out[length++] = '%';
            out[length++] = digits[*at >> 4];
            out[length++] = digits[*at & 15];
        }
    }
    TIERCE_ASSERT(length < capacity);
    out[length] = '\0';
    return length;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

size_t tierce__grpc_message_decode(char *out, size_t capacity, const char *text, size_t bytes)
{
    size_t length = 0;
    for (size_t i = 0; i < bytes && length + 1 < capacity; i++) {
        int high = i + 2 < bytes && text[i] == '%' ? hex_digit(text[i + 1]) : -1;
        int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
        if (low < 0) {
            out[length++] = text[i];
            continue;
        }
        out[length++] = (char)(high * 16 + low);
        i += 2;
    }
    TIERCE_ASSERT(length < capacity);
    out[length] = '\0';
    return length;
}

bool tierce__grpc_is_content_type(const char *text)
{
    static const char type[] = "application/grpc";
    size_t n = sizeof(type) - 1;
    return strncmp(text, type, n) == 0 && (text[n] == '\0' || text[n] == '+' || text[n] == ';');
}
