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

static enum tierce__element read_element(struct tierce__namespaces *namespaces, uint32_t ns,
                                         bool *known)
{
    struct tierce__namespace_read read;
    const char *text = tierce__namespaces_text(namespaces, ns);
    *known = text != NULL; /* another process may have stored the text by the next put */
    if (text == NULL || tierce__namespace_read(&read, text) < 0)
        return TIERCE__ELEMENT_RAW;
    enum tierce__element element = tierce__element_of_dtype(read.ns.kv_dtype);
    tierce__namespace_read_fini(&read);
    return element;
}

enum tierce__element tierce__coded_element_of(struct tierce__coded_elements *elements, uint32_t ns)
{
    TIERCE_ASSERT(ns < NS_MAX);
    /* relaxed: threads that find the same text read the same element. */
    uint8_t noted = atomic_load_explicit(&elements->noted[ns], memory_order_relaxed);
    if (noted > 0)
        return (enum tierce__element)(noted - 1);
    bool known;
    enum tierce__element element = read_element(elements->namespaces, ns, &known);
    if (known)
        atomic_store_explicit(&elements->noted[ns], (uint8_t)(element + 1), memory_order_relaxed);
    return element;
}
