/* SPDX-License-Identifier: Apache-2.0 */
#include "core/key/model_name.h"

#include <string.h>

#include "base/alloc.h"
#include "base/config/config_parse.h"
#include "base/json/json_value.h"
#include "core/key/namespace.h"

/* The first text that names the model; heap, or NULL. */
static char *find_name(struct tierce__text config)
{
    static const char *const paths[] = {"_name_or_path", "name", "architectures", "architectures.0",
                                        "model_type"};
    char *name = NULL;
    for (size_t i = 0; name == NULL && i < sizeof(paths) / sizeof(*paths); i++) {
        if (tierce__json_copy_text(&name, config, paths[i]) == 0 && *name == '\0') {
            tierce__free(name);
            name = NULL;
        }
    }
    return name;
}

void tierce__model_name(char *out, size_t size, const char *model)
{
    struct tierce__json_doc doc = {0};
    char *found = NULL;
    out[0] = '\0';
    if (tierce__json_parse(&doc, model, strlen(model), NULL) == 0) {
        found = find_name(doc.value);
        if (found == NULL)
            found = find_name(tierce__json_get(doc.value, "config"));
        if (found != NULL)
            tierce__text_for_message(out, size, found);
    }
    tierce__free(found);
    tierce__json_doc_clear(&doc);
}

void tierce__model_name_of_namespace(char *out, size_t size, const char *text)
{
    struct tierce__namespace_read read = {0};
    out[0] = '\0';
    if (tierce__namespace_read(&read, text) == 0)
        tierce__model_name(out, size, read.ns.model);
    tierce__namespace_read_fini(&read);
}
