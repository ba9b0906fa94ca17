/* SPDX-License-Identifier: Apache-2.0 */
/* An answer names the storages of its own batches only, and a storage that is not named any more is
 * closed. So the copier gets those of all answers that are in progress. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/json/json_value.h"
#include "base/log/log_repeat.h"
#include "base/text/line.h"
#include "mover/mover_private.h"

#include <errno.h>
#include <string.h>

enum { STORAGES_MAX = 256, NAME_ROOM = 512 };

struct mover_storages {
    struct tierce__line line;
    size_t count;
    char names[STORAGES_MAX][NAME_ROOM];
};

static bool is_named(const struct mover_storages *all, const char *name)
{
    for (size_t i = 0; i < all->count; i++) {
        if (strcmp(all->names[i], name) == 0)
            return true;
    }
    return false;
}

/* An entry without a name is passed on: the copier says what is wrong with it. */
static void put_entry(struct mover_storages *all, struct tierce__text entry)
{
    char name[NAME_ROOM];
    if (tierce__json_get_text(name, sizeof(name), entry, "global_unique_name") &&
        is_named(all, name))
        return;
    if (all->count == STORAGES_MAX) {
        char shown[64];
        tierce__text_for_message(shown, sizeof(shown), name);
        tierce__log_repeated(TIERCE_LOG_WARN, "mover_storages",
                             "why=\"the batches in progress have more than %u storages; blocks of "
                             "%s are not moved until others have ended\"",
                             (unsigned)STORAGES_MAX, shown);
        return;
    }
    memcpy(all->names[all->count++], name, sizeof(name));
    tierce__line_put(&all->line, all->line.bytes > 1 ? "," : "");
    tierce__line_put_bytes(&all->line, entry.at, entry.length);
}

/* False: no memory. */
static bool put_answer(struct mover_storages *all, const char *text)
{
    struct tierce__json_doc doc = {0};
    struct tierce__text ignored, entry;
    int rc = tierce__json_parse(&doc, text, strlen(text), NULL);
    struct tierce__json each = tierce__json_each(doc.value);
    while (rc == 0 && tierce__json_next(&each, &ignored, &entry))
        put_entry(all, entry);
    tierce__json_doc_clear(&doc);
    return rc != -ENOMEM;
}

char *tierce__mover_storages(const struct tierce__list *answers)
{
    struct mover_storages *all = tierce__calloc(1, sizeof(*all));
    bool has_all = all != NULL;
    if (all == NULL)
        return NULL;
    tierce__line_put(&all->line, "[");
    TIERCE__LIST_FOR_EACH (node, answers) {
        const struct tierce__mover_answer *answer =
            TIERCE__CONTAINER_OF(node, struct tierce__mover_answer, node);
        const Meta__TakeMovesResponse *taken = (const Meta__TakeMovesResponse *)answer->reply;
        has_all = has_all && put_answer(all, taken->storage_configs);
    }
    tierce__line_put_bytes(&all->line, "]", 2); /* with its NUL */
    char *text = has_all && !all->line.failed ? tierce__strdup(all->line.text) : NULL;
    tierce__line_clear(&all->line);
    tierce__free(all);
    return text;
}
