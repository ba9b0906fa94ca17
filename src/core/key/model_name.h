/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CORE_MODEL_NAME_H
#define TIERCE_CORE_MODEL_NAME_H

#include <stddef.h>

/* The name of a model for a reader, from the JSON of a namespace's field `model`: its name or path,
 * architecture or type, the first that it has. "" if it has none, or is no JSON. Thread: any. */
void tierce__model_name(char *out, size_t size, const char *model);

/* The same from the canonical text of a namespace. */
void tierce__model_name_of_namespace(char *out, size_t size, const char *text);

#endif
