/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text/zone.h"

#include "base/mix.h"

#include <stdbool.h>
#include <string.h>

static bool is_of_part(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

static bool is_zone(const char *zone)
{
    uint32_t parts = 1, bytes = 0;
    for (const char *at = zone; *at != '\0'; at++) {
        bool ends = *at == '/';
        if ((ends && bytes == 0) || (!ends && !is_of_part(*at)))
            return false;
        parts += ends;
        bytes = ends ? 0 : bytes + 1;
    }
    return bytes > 0 && parts <= TIERCE__ZONE_PARTS_MAX;
}

int tierce__zone_parse(uint32_t prefixes[TIERCE__ZONE_PARTS_MAX], const char *zone, uint64_t seed)
{
    int parts = 0;
    memset(prefixes, 0, TIERCE__ZONE_PARTS_MAX * sizeof(*prefixes));
    if (zone[0] == '\0')
        return 0;
    if (strnlen(zone, TIERCE__ZONE_BYTES) == TIERCE__ZONE_BYTES || !is_zone(zone))
        return TIERCE_E_ARGUMENT;
    uint64_t hash = seed;
    for (const char *at = zone; *at != '\0'; at++) {
        hash = tierce__hash_text(hash, (const char[]){*at, '\0'});
        if (at[1] == '/' || at[1] == '\0')
            prefixes[parts++] = (uint32_t)(tierce__mix(hash) >> 32) | 1;
    }
    return parts;
}
