/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/cell_order.h"

#include <string.h>

#include "base/assert.h"

/* ---- the text -------------------------------------------------------------------------------- */

#define PARTS         3u /* what keys and values have in common, then the rest of each */
#define AXIS_SIZE_MAX 65536u

/* An axis, or a digit of one. */
struct axis {
    char name;
    uint32_t size; /* 0: the text does not state it */
};

struct axes {
    unsigned count;
    struct axis items[TIERCE__CELL_AXES_MAX];
};

struct order {
    unsigned parts; /* 1 or 3 */
    struct axes part[PARTS];
};

/* The size after a name: 0 if there is none. False: it is no size above 1, or has another
 * spelling. */
static bool take_size(uint32_t *size, const char **at, const char *end)
{
    const char *begin = *at;
    *size = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        *size = *size * 10 + (uint32_t)(**at - '0');
        if (*size > AXIS_SIZE_MAX)
            return false;
    }
    return *at == begin || (*size > 1 && *begin != '0');
}

static bool parse(struct order *order, const char *at, size_t length)
{
    const char *end = at + length;
    memset(order, 0, sizeof(*order));
    order->parts = 1;
    while (at < end) {
        struct axes *axes = &order->part[order->parts - 1];
        char name = *at++;
        if (name == '.' && order->parts < PARTS) {
            order->parts++;
            continue;
        }
        if (strchr("kthc", name) == NULL || name == '\0' || axes->count == TIERCE__CELL_AXES_MAX)
            return false;
        axes->items[axes->count].name = name;
        if (!take_size(&axes->items[axes->count++].size, &at, end))
            return false;
    }
    return true;
}

/* The axes of the keys (kind 0) or values. False: there are too many. */
static bool join(struct axes *out, const struct order *order, unsigned kind)
{
    *out = order->part[0];
    if (order->parts == 1)
        return true;
    const struct axes *rest = &order->part[1 + kind];
    if (out->count + rest->count > TIERCE__CELL_AXES_MAX)
        return false;
    memcpy(out->items + out->count, rest->items, rest->count * sizeof(rest->items[0]));
    out->count += rest->count;
    return true;
}

/* Channels have sizes, and the first digit of a token has none. */
static bool are_valid(const struct axes *axes)
{
    unsigned kinds = 0, heads = 0, tokens = 0, channels = 0;
    for (unsigned i = 0; i < axes->count; i++) {
        const struct axis *axis = &axes->items[i];
        bool has_size = axis->size > 0;
        kinds += axis->name == 'k';
        heads += axis->name == 'h';
        channels += axis->name == 'c';
        if (has_size != (axis->name == 'c' || (axis->name == 't' && tokens > 0)))
            return false;
        tokens += axis->name == 't';
    }
    return kinds <= 1 && heads <= 1 && tokens >= 1 && channels >= 1;
}

/* The common part ends with k if keys and values have different ones. */
static bool splits_at_kinds(const struct order *order)
{
    const struct axes *common = &order->part[0];
    return order->parts == 1 || (order->parts == PARTS && common->count > 0 &&
                                 common->items[common->count - 1].name == 'k');
}

bool tierce__cell_order_read(struct tierce__cell_order *out, const char *text, size_t length)
{
    struct order order;
    if (length > TIERCE__CELL_ORDER_TEXT_MAX || !parse(&order, text, length) ||
        !splits_at_kinds(&order))
        return false;
    for (unsigned kind = 0; kind < TIERCE__CELL_KINDS; kind++) {
        struct axes axes;
        if (!join(&axes, &order, kind) || !are_valid(&axes))
            return false;
    }
    *out = (struct tierce__cell_order){.length = (uint8_t)length};
    memcpy(out->text, text, length);
    return true;
}

/* ---- places ---------------------------------------------------------------------------------- */

static bool has_kinds(const struct axes *axes)
{
    for (unsigned i = 0; i < axes->count; i++) {
        if (axes->items[i].name == 'k')
            return true;
    }
    return false;
}

/* The product of the sizes that are stated for an axis; 0: more than a cell can have. */
static uint32_t stated(const struct axes *axes, char name)
{
    uint64_t product = 1;
    for (unsigned i = 0; i < axes->count; i++) {
        const struct axis *axis = &axes->items[i];
        if (axis->name == name && axis->size > 0)
            product *= axis->size;
        if (product > AXIS_SIZE_MAX)
            return 0;
    }
    return (uint32_t)product;
}

/* Completes the sizes of the axes. False: the cell cannot have them. */
static bool complete(struct axes *axes, struct tierce__cell_places *places, uint64_t elements)
{
    uint32_t inner = stated(axes, 't'), channels = stated(axes, 'c');
    uint64_t others = (uint64_t)places->kinds * places->tokens * channels;
    if (inner == 0 || places->tokens % inner != 0 || channels == 0 ||
        channels > TIERCE__CELL_CHANNELS_MAX || others == 0 || elements % others != 0 ||
        elements / others > TIERCE__CELL_ROW_MAX / channels || elements == 0)
        return false;
    uint64_t product = 1;
    places->channels = channels;
    places->heads = (uint32_t)(elements / others);
    for (unsigned i = 0; i < axes->count; i++) {
        struct axis *axis = &axes->items[i];
        if (axis->name == 'k')
            axis->size = TIERCE__CELL_KINDS;
        else if (axis->name == 'h')
            axis->size = places->heads;
        else if (axis->size == 0)
            axis->size = places->tokens / inner;
        product *= axis->size;
    }
    return product == elements; /* not if there are heads and the text has none */
}

/* A digit of the numbers of the channels, which are below `known` so far, by their inner digits. */
static uint32_t add_channels(struct tierce__cell_kind *kind, uint32_t known, uint32_t size,
                             uint32_t stride)
{
    for (uint32_t i = known; i < known * size; i++)
        kind->channel[i] = kind->channel[i % known] + i / known * stride;
    return known * size;
}

/* From the innermost axis outwards, with complete sizes. */
static void place(struct tierce__cell_kind *out, const struct axes *axes, unsigned kind)
{
    uint32_t stride = 1, channels = 1;
    memset(out, 0, sizeof(*out));
    for (unsigned i = axes->count; i-- > 0;) {
        uint32_t size = axes->items[i].size;
        switch (axes->items[i].name) {
        case 'k':
            out->first = kind * stride;
            break;
        case 'h':
            out->head_stride = stride;
            break;
        case 't':
            out->token[out->token_count].size = size;
            out->token[out->token_count++].stride = stride;
            break;
        default:
            channels = add_channels(out, channels, size, stride);
            break;
        }
        stride *= size;
    }
    out->is_dense = out->channel[channels - 1] == channels - 1;
}

/* The number of places below k, of axes that have it, with complete sizes. */
static uint64_t places_below_kinds(const struct axes *axes)
{
    uint64_t places = 1;
    for (unsigned i = axes->count; i-- > 0 && axes->items[i].name != 'k';)
        places *= axes->items[i].size;
    return places;
}

bool tierce__cell_places_init(struct tierce__cell_places *out,
                              const struct tierce__cell_order *order, uint64_t elements,
                              uint32_t tokens)
{
    struct order parsed;
    struct axes axes[TIERCE__CELL_KINDS];
    if (elements > UINT32_MAX || !parse(&parsed, order->text, order->length) ||
        !join(&axes[0], &parsed, 0) || !join(&axes[1], &parsed, 1))
        return false;
    memset(out, 0, sizeof(*out));
    out->kinds = has_kinds(&axes[0]) ? TIERCE__CELL_KINDS : 1;
    out->tokens = tokens;
    for (unsigned kind = 0; kind < out->kinds; kind++) {
        uint32_t channels = out->channels;
        if (!complete(&axes[kind], out, elements) || (kind > 0 && channels != out->channels))
            return false;
        place(&out->of[kind], &axes[kind], kind);
    }
    /* Otherwise some places would belong to keys and values, and others to neither. */
    return out->kinds == 1 || places_below_kinds(&axes[0]) == places_below_kinds(&axes[1]);
}

/* ---- copies ---------------------------------------------------------------------------------- */

#define ELEMENT_BYTES 2u

static uint32_t token_place(const struct tierce__cell_kind *kind, uint32_t token)
{
    uint32_t at = kind->first;
    for (uint32_t i = 0; i < kind->token_count; i++) {
        at += token % kind->token[i].size * kind->token[i].stride;
        token /= kind->token[i].size;
    }
    return at;
}

void tierce__cell_gather(uint8_t *row, const struct tierce__cell_places *places, unsigned kind,
                         uint32_t token, const uint8_t *cell)
{
    const struct tierce__cell_kind *of = &places->of[kind];
    const uint8_t *from = cell + (size_t)ELEMENT_BYTES * token_place(of, token);
    size_t bytes = (size_t)ELEMENT_BYTES * places->channels;
    TIERCE_DASSERT(token < places->tokens);
    for (uint32_t head = 0; head < places->heads; head++, row += bytes) {
        const uint8_t *at = from + (size_t)ELEMENT_BYTES * head * of->head_stride;
        if (of->is_dense)
            memcpy(row, at, bytes);
        for (uint32_t i = 0; !of->is_dense && i < places->channels; i++)
            memcpy(row + ELEMENT_BYTES * i, at + (size_t)ELEMENT_BYTES * of->channel[i],
                   ELEMENT_BYTES);
    }
}

void tierce__cell_scatter(uint8_t *cell, const struct tierce__cell_places *places, unsigned kind,
                          uint32_t token, const uint8_t *row)
{
    const struct tierce__cell_kind *of = &places->of[kind];
    uint8_t *to = cell + (size_t)ELEMENT_BYTES * token_place(of, token);
    size_t bytes = (size_t)ELEMENT_BYTES * places->channels;
    TIERCE_DASSERT(token < places->tokens);
    for (uint32_t head = 0; head < places->heads; head++, row += bytes) {
        uint8_t *at = to + (size_t)ELEMENT_BYTES * head * of->head_stride;
        if (of->is_dense)
            memcpy(at, row, bytes);
        for (uint32_t i = 0; !of->is_dense && i < places->channels; i++)
            memcpy(at + (size_t)ELEMENT_BYTES * of->channel[i], row + ELEMENT_BYTES * i,
                   ELEMENT_BYTES);
    }
}
