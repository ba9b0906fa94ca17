/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/codec.h"

#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
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
    return NULL;
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

/* Best first. The last one runs everywhere, so a choice always exists. */
static const struct tierce__codec_kernel *const kernels[] = {
#if defined(__x86_64__)
    &tierce__codec_avx512,
    &tierce__codec_avx2,
#endif
    &tierce__codec_portable,
};

enum { KERNEL_COUNT = sizeof(kernels) / sizeof(kernels[0]) };

/* NULL until the first use. It points only at constants, and two threads that choose at the same
 * time choose the same kernel, so relaxed order is enough. */
static _Atomic(const struct tierce__codec_kernel *) current;

static const struct tierce__codec_kernel *choose_kernel(void)
{
    unsigned i = 0;
    while (i < KERNEL_COUNT - 1 && !kernels[i]->usable())
        i++;
    return kernels[i];
}

const struct tierce__codec_kernel *tierce__codec_kernel(void)
{
    const struct tierce__codec_kernel *kernel =
        atomic_load_explicit(&current, memory_order_relaxed);
    if (kernel == NULL) {
        kernel = choose_kernel();
        atomic_store_explicit(&current, kernel, memory_order_relaxed);
    }
    return kernel;
}

const char *tierce__codec_kernel_name(unsigned index)
{
    return index < KERNEL_COUNT ? kernels[index]->name : NULL;
}

bool tierce__codec_kernel_usable(unsigned index)
{
    return index < KERNEL_COUNT && kernels[index]->usable();
}

bool tierce__codec_kernel_force(unsigned index)
{
    if (index != UINT_MAX && !tierce__codec_kernel_usable(index))
        return false;
    const struct tierce__codec_kernel *kernel =
        index == UINT_MAX ? choose_kernel() : kernels[index];
    atomic_store_explicit(&current, kernel, memory_order_relaxed);
    return true;
}
