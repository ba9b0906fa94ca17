/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/codec.h"

#include <string.h>

#include "base/assert.h"
#include "core/codec/codec_plugin.h"
#include "core/codec/lossless_private.h"

static const struct tierce__codec *const codecs[] = {
#define TIERCE_CODEC(suffix, number, name, summary) &tierce__codec_##suffix,
#include "core/codec/codecs.def"
#undef TIERCE_CODEC
};

#define CODEC_COUNT (sizeof(codecs) / sizeof(codecs[0]))

const struct tierce__codec *tierce__codec_find(const char *name)
{
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if (strcmp(codecs[i]->name, name) == 0)
            return codecs[i];
    }
    return NULL;
}

const struct tierce__codec *tierce__codec_numbered(uint32_t number)
{
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if (codecs[i]->number == number)
            return codecs[i];
    }
    return (number & TIERCE__CODEC_PLUGIN) != 0 ? tierce__codec_plugin_numbered(number) : NULL;
}

/* The text "LAYERS-ORDER" after the codec's name. */
static bool read_choice(struct tierce__codec_choice *out, const char *text)
{
    struct tierce__codec_choice choice = {0};
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 4 || text[0] == '0' || text[digits] != '-')
        return false;
    for (size_t i = 0; i < digits; i++)
        choice.layers = choice.layers * 10 + (uint32_t)(text[i] - '0');
    const char *order = text + digits + 1;
    if (choice.layers > TIERCE__CODEC_LAYERS_MAX ||
        !tierce__cell_order_read(&choice.order, order, strlen(order)))
        return false;
    if (out != NULL)
        *out = choice;
    return true;
}

const struct tierce__codec *tierce__codec_of_quantization(const char *quantization,
                                                          struct tierce__codec_choice *choice)
{
    static const char prefix[] = "tierce-";
    if (strncmp(quantization, prefix, sizeof(prefix) - 1) != 0)
        return NULL;
    const char *name = quantization + sizeof(prefix) - 1;
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        const struct tierce__codec *codec = codecs[i];
        size_t length = strlen(codec->name);
        if (codec->is_exact || strncmp(name, codec->name, length) != 0)
            continue;
        if (codec->needs_order ? name[length] == '-' && read_choice(choice, name + length + 1)
                               : name[length] == '\0')
            return codec;
    }
    return NULL;
}

bool tierce__codec_codes(const struct tierce__codec *codec, enum tierce__element element)
{
    return element == TIERCE__ELEMENT_BF16 || element == TIERCE__ELEMENT_FP16 ||
           (codec->is_exact && element != TIERCE__ELEMENT_RAW);
}

static const char *const element_names[TIERCE__ELEMENTS] = {
    [TIERCE__ELEMENT_RAW] = "raw",   [TIERCE__ELEMENT_BF16] = "bf16",
    [TIERCE__ELEMENT_FP16] = "fp16", [TIERCE__ELEMENT_E4M3] = "e4m3",
    [TIERCE__ELEMENT_E5M2] = "e5m2",
};

enum tierce__element tierce__element_find(const char *name)
{
    unsigned i = 0;
    while (i < TIERCE__ELEMENTS && strcmp(element_names[i], name) != 0)
        i++;
    return (enum tierce__element)i;
}

enum tierce__element tierce__element_of_dtype(const char *dtype)
{
    static const struct {
        const char *dtype;
        enum tierce__element element;
    } known[] = {
        {"bfloat16", TIERCE__ELEMENT_BF16}, {"bf16", TIERCE__ELEMENT_BF16},
        {"float16", TIERCE__ELEMENT_FP16},  {"half", TIERCE__ELEMENT_FP16},
        {"fp16", TIERCE__ELEMENT_FP16},     {"fp8", TIERCE__ELEMENT_E4M3},
        {"fp8_e4m3", TIERCE__ELEMENT_E4M3}, {"fp8_e5m2", TIERCE__ELEMENT_E5M2},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].dtype, dtype) == 0)
            return known[i].element;
    }
    return TIERCE__ELEMENT_RAW;
}

const char *tierce__element_name(enum tierce__element element)
{
    TIERCE_ASSERT(element < TIERCE__ELEMENTS);
    return element_names[element];
}

unsigned tierce__element_bytes(enum tierce__element element)
{
    TIERCE_ASSERT(element < TIERCE__ELEMENTS);
    return tierce__splits[element].bytes;
}

/* ---- kernels ----------------------------------------------------------------------------------
 */

static const struct tierce__kernel_head *const kernels[] = {
#if defined(__x86_64__)
    &tierce__codec_avx512.head,
    &tierce__codec_avx2.head,
#endif
#if defined(__aarch64__)
    &tierce__codec_neon.head,
#endif
    &tierce__codec_portable.head,
};

struct tierce__kernel_choice tierce__codec_kernels = TIERCE__KERNEL_CHOICE(kernels);
