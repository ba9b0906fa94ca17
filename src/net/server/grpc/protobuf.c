/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/grpc/protobuf.h"

#include <stdbool.h>

static bool read_varint(struct tierce__protobuf *in, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (in->bytes == 0)
            return false;
        uint8_t byte = *in->data++;
        in->bytes--;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool skip(struct tierce__protobuf *in, size_t count)
{
    if (count > in->bytes)
        return false;
    in->data += count;
    in->bytes -= count;
    return true;
}

int tierce__protobuf_next(struct tierce__protobuf *in, struct tierce__protobuf_field *out)
{
    uint64_t tag, length;
    if (in->bytes == 0)
        return 0;
    if (!read_varint(in, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX >> 3)
        return TIERCE_E_FORMAT;
    *out = (struct tierce__protobuf_field){.number = (uint32_t)(tag >> 3), .data = in->data};
    bool good = false;
    switch (tag & 7) {
    case 0:
        good = read_varint(in, &out->value);
        break;
    case 1:
        good = skip(in, 8);
        break;
    case 2:
        good = read_varint(in, &length);
        out->data = in->data;
        good = good && skip(in, length);
        out->bytes = good ? (size_t)length : 0;
        break;
    case 5:
        good = skip(in, 4);
        break;
    default:
        break;
    }
    return good ? 1 : TIERCE_E_FORMAT;
}
