/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "core/key/namespace.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tierce/key.h>

/* The input is two texts with a NUL between them. A text differs from itself nowhere, and two
 * texts differ in as many fields from either side. A text that is read is written again. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_difference(void *arg, const char *field, const char *a, const char *b)
{
    int *count = arg;
    TIERCE_ASSERT(field != NULL && field[0] != '\0');
    TIERCE_ASSERT(a != NULL || b != NULL);
    TIERCE_ASSERT(a == NULL || b == NULL || strcmp(a, b) != 0);
    (*count)++;
}

static char *copy_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    TIERCE_ASSERT(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

static void read_text(const char *text)
{
    struct tierce__namespace_read read;
    char *again;
    if (tierce__namespace_read(&read, text) < 0)
        return;
    TIERCE_ASSERT(tierce_namespace_text(&again, &read.ns) == 0 && strcmp(again, text) == 0);
    tierce_free(again);
    tierce__namespace_read_fini(&read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = size > 0 ? memchr(data, '\0', size) : NULL;
    size_t first = cut != NULL ? (size_t)(cut - data) : size;
    char *a = copy_text(data, first);
    char *b = cut != NULL ? copy_text(cut + 1, size - first - 1) : copy_text(data, size);
    int told = 0, told_back = 0;

    int differences = tierce_namespace_diff(a, b, count_difference, &told);
    int back = tierce_namespace_diff(b, a, count_difference, &told_back);
    TIERCE_ASSERT(differences == back);
    TIERCE_ASSERT(differences < 0 ? told == 0 : told == differences && told_back == back);
    if (differences >= 0)
        TIERCE_ASSERT(tierce_namespace_diff(a, a, NULL, NULL) == 0);
    read_text(a);
    read_text(b);
    free(a);
    free(b);
    return 0;
}
