/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/file/file_place.h"
#include "base/assert.h"
#include "base/vfs/beneath.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "NAME=digits" at *text; moves *text behind it. False: it is not there, or above `max`. */
static bool take_number(uint64_t *out, const char **text, const char *name, uint64_t max)
{
    size_t bytes = strlen(name);
    const char *at = *text + bytes + 1;
    uint64_t number = 0;
    if (strncmp(*text, name, bytes) != 0 || (*text)[bytes] != '=' || *at < '0' || *at > '9')
        return false;
    TIERCE_DASSERT(max < UINT64_MAX / 10 - 9);
    for (; *at >= '0' && *at <= '9' && number <= max; at++)
        number = number * 10 + (uint64_t)(*at - '0');
    *text = at;
    *out = number;
    return number <= max;
}

/* "size=L" or "blkid=N&size=L". */
static const char *take_numbers(struct tierce__file_place *place, const char *text)
{
    place->has_slots = text[0] == 'b';
    if (place->has_slots &&
        (!take_number(&place->slot, &text, "blkid", TIERCE__FILE_SLOTS_MAX - 1) || *text++ != '&'))
        return "blkid must be a number below 65536, and size must follow it";
    if (!take_number(&place->bytes, &text, "size", TIERCE__FILE_SLOT_BYTES_MAX) ||
        place->bytes == 0)
        return "size must be a number of bytes, from 1 on, of which 65536 fit in a file";
    return *text == '\0' ? NULL : "only blkid and size are accepted behind a path, in this order";
}

static bool has_controls(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return true;
    }
    return false;
}

const char *tierce__file_place_read(struct tierce__file_place *out,
                                    const struct tierce_plugin_name *name)
{
    struct tierce__file_place place = {.has_slots = false};
    const char *wrong = NULL;
    if (name->bytes > TIERCE__CONNECTOR_NAME_MAX)
        return "the name is longer than 512 bytes";
    if (memchr(name->text, '\0', name->bytes) != NULL)
        return "the name has a NUL byte";
    memcpy(place.path, name->text, name->bytes);
    char *numbers = strchr(place.path, '?');
    if (numbers != NULL) {
        *numbers++ = '\0';
        wrong = take_numbers(&place, numbers);
    }
    if (!tierce__beneath_is_path(place.path))
        return "the path is empty or absolute, or has a part that is empty, . or ..";
    if (has_controls(place.path))
        return "the path has a control character";
    TIERCE_DASSERT(wrong != NULL || place.slot < TIERCE__FILE_SLOTS_MAX);
    if (wrong == NULL)
        *out = place;
    return wrong;
}

bool tierce__file_place_write(char *text, size_t room, const struct tierce__file_place *place)
{
    int bytes;
    TIERCE_DASSERT(!place->has_slots || place->bytes > 0);
    if (place->has_slots)
        bytes = snprintf(text, room, "%s?blkid=%" PRIu64 "&size=%" PRIu64, place->path, place->slot,
                         place->bytes);
    else if (place->bytes > 0)
        bytes = snprintf(text, room, "%s?size=%" PRIu64, place->path, place->bytes);
    else
        bytes = snprintf(text, room, "%s", place->path);
    return bytes > 0 && (size_t)bytes < room && (size_t)bytes <= TIERCE__CONNECTOR_NAME_MAX;
}
