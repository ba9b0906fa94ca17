/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/host_port.h"

#include "check_main.h"

#include <string.h>

static const struct {
    const char *text, *host; /* NULL: invalid */
    bool has_port;
    uint16_t port;
} addresses[] = {
    {"h", "h", false, 0},
    {"h:1", "h", true, 1},
    {"10.0.0.5:65535", "10.0.0.5", true, 65535},
    {"h:0", "h", true, 0},
    {"h:007", "h", true, 7},
    {"*:5557", "*", true, 5557},
    {"[::1]:7", "::1", true, 7},
    {"[::1]", "::1", false, 0},
    {"::1", "::1", false, 0},
    {"fe80::1:7", "fe80::1:7", false, 0},
    {"", NULL, false, 0},
    {":7", NULL, false, 0},
    {"[]:7", NULL, false, 0},
    {"[", NULL, false, 0},
    {"[::1", NULL, false, 0},
    {"[::1]7", NULL, false, 0},
    {"[::1]:", NULL, false, 0},
    {"h:", NULL, false, 0},
    {"h:65536", NULL, false, 0},
    {"h:4294967297", NULL, false, 0},
    {"h:-1", NULL, false, 0},
    {"h: 1", NULL, false, 0},
    {"h:1x", NULL, false, 0},
};

START_TEST(an_address_is_split)
{
    struct tierce__host_port at;
    const char *host = addresses[_i].host;
    char padded[64];
    /* The bytes behind the text have no effect. */
    int bytes = snprintf(padded, sizeof(padded), "%s", addresses[_i].text);
    memcpy(padded + bytes, "1:]", 4);
    ck_assert_int_eq(tierce__host_port_split(&at, padded, (size_t)bytes), host != NULL);
    if (host == NULL)
        return;
    ck_assert_uint_eq(at.host_bytes, strlen(host));
    ck_assert_mem_eq(at.host, host, at.host_bytes);
    ck_assert_int_eq(at.has_port, addresses[_i].has_port);
    ck_assert_uint_eq(at.port, addresses[_i].port);
}
END_TEST

START_TEST(an_address_is_read)
{
    char host[4];
    uint16_t port = 3;
    ck_assert(tierce__host_port_read(host, sizeof(host), &port, "[::1]:7"));
    ck_assert_str_eq(host, "::1");
    ck_assert_uint_eq(port, 7);
    ck_assert(!tierce__host_port_read(host, sizeof(host), &port, "four:8"));
    ck_assert(!tierce__host_port_read(host, sizeof(host), &port, "h"));
    ck_assert(!tierce__host_port_read(host, sizeof(host), &port, "h:0"));
    ck_assert_str_eq(host, "::1");
    ck_assert_uint_eq(port, 7);
}
END_TEST

START_TEST(an_address_is_formatted)
{
    char text[10];
    ck_assert_uint_eq(tierce__host_port_format(text, sizeof(text), "h", 7), 3);
    ck_assert_str_eq(text, "h:7");
    ck_assert_uint_eq(tierce__host_port_format(text, sizeof(text), "::1", 65535), 11);
    ck_assert_str_eq(text, "[::1]:655"); /* cut */
}
END_TEST

CHECK_MAIN("host_port", .tests = {an_address_is_read, an_address_is_formatted},
           .loops = {{an_address_is_split, 0, sizeof(addresses) / sizeof(*addresses)}})
