/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "core/key/namespace.h"
#include "store/coded/coded_parts.h"

#define NS_MAX 65536u /* namespaces of a process */

int tierce__coded_elements_init(struct tierce__coded_elements *elements,
                                struct tierce__namespaces *namespaces)
{
    elements->namespaces = namespaces;
    elements->noted = tierce__calloc(NS_MAX, sizeof(*elements->noted));
    return elements->noted != NULL ? 0 : -ENOMEM;
}

void tierce__coded_elements_fini(struct tierce__coded_elements *elements)
{
    tierce__free(elements->noted);
    elements->noted = NULL;
}

/* A kind as a number above 0. */
#define KIND(element, lossy) ((element) + 1u + TIERCE__ELEMENTS * (lossy))

/* Whether every cell of a namespace can have the order that it states. Layers are counted in the
 * order of the chunk, so the namespace must be that of all layers. */
static bool fits(const struct tierce_namespace *ns, const struct tierce__codec_choice *choice)
{
    struct tierce__cell_places places;
    if (tierce__namespace_group(ns) != TIERCE_GROUP_ALL || ns->layer_count % choice->layers != 0)
        return false;
    for (uint32_t i = 0; i < ns->layer_count; i++) {
        if ((i == 0 || ns->cell_bytes[i] != ns->cell_bytes[i - 1]) &&
            (ns->cell_bytes[i] % 2 != 0 ||
             !tierce__cell_places_init(&places, &choice->order, ns->cell_bytes[i] / 2,
                                       ns->block_tokens)))
            return false;
    }
    return true;
}

static const struct tierce__codec *lossy_of(const struct tierce_namespace *ns,
                                            enum tierce__element element)
{
    struct tierce__codec_choice choice;
    const struct tierce__codec *codec = tierce__codec_of_quantization(ns->quantization, &choice);
    if (codec == NULL || !tierce__codec_codes(codec, element))
        return NULL;
    return !codec->needs_order || fits(ns, &choice) ? codec : NULL;
}

static uint8_t read_kind(struct tierce__namespaces *namespaces, uint32_t ns, bool *known)
{
    struct tierce__namespace_read read;
    const char *text = tierce__namespaces_text(namespaces, ns);
    *known = text != NULL; /* another process may have stored the text by the next put */
    if (text == NULL || tierce__namespace_read(&read, text) < 0)
        return KIND(TIERCE__ELEMENT_RAW, 0);
    enum tierce__element element = tierce__element_of_dtype(read.ns.kv_dtype);
    const struct tierce__codec *lossy = lossy_of(&read.ns, element);
    tierce__namespace_read_fini(&read);
    return (uint8_t)KIND(element, lossy != NULL ? lossy->number : 0);
}

bool tierce__coded_choice_of(struct tierce__codec_choice *out,
                             struct tierce__coded_elements *elements, uint32_t ns)
{
    struct tierce__namespace_read read;
    const char *text = tierce__namespaces_text(elements->namespaces, ns);
    if (text == NULL || tierce__namespace_read(&read, text) < 0)
        return false;
    const struct tierce__codec *codec = tierce__codec_of_quantization(read.ns.quantization, out);
    tierce__namespace_read_fini(&read);
    return codec != NULL && codec->needs_order;
}

struct tierce__coded_kind tierce__coded_kind_of(struct tierce__coded_elements *elements,
                                                uint32_t ns)
{
    TIERCE_ASSERT(ns < NS_MAX);
    /* relaxed: threads that find the same text read the same kind. */
    uint8_t noted = atomic_load_explicit(&elements->noted[ns], memory_order_relaxed);
    if (noted == 0) {
        bool known;
        noted = read_kind(elements->namespaces, ns, &known);
        if (known)
            atomic_store_explicit(&elements->noted[ns], noted, memory_order_relaxed);
    }
    unsigned kind = noted - 1u, number = kind / TIERCE__ELEMENTS;
    return (struct tierce__coded_kind){.element = (enum tierce__element)(kind % TIERCE__ELEMENTS),
                                       .lossy = number > 0 ? tierce__codec_numbered(number) : NULL};
}

bool tierce__coded_may_be(struct tierce__coded_elements *elements,
                          const struct tierce__coded_info *info)
{
    if (info->codec == NULL || info->codec->is_exact)
        return true;
    int64_t ns = tierce__namespaces_find(elements->namespaces, info->chunk.ns_digest);
    return ns >= 0 && tierce__coded_kind_of(elements, (uint32_t)ns).lossy == info->codec;
}
