/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/backup/restore.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "manager/backup/restore_private.h"

#include <errno.h>
#include <stdio.h>

int tierce__restore_open(struct tierce__restore **out, const struct tierce__restore_opts *opts,
                         char why[256])
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__restore *restore = tierce__calloc(1, sizeof(*restore));
    if (restore == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    restore->opts = *opts;
    restore->opts.path = NULL;
    int rc = tierce__backup_open(&restore->backup, opts->path, why);
    if (rc < 0) {
        tierce__free(restore);
        return rc;
    }
    restore->counts.made_us = tierce__backup_made_us(restore->backup);
    *out = restore;
    return 0;
}

void tierce__restore_close(struct tierce__restore *restore)
{
    if (restore == NULL)
        return;
    TIERCE_ASSERT(restore->locator == NULL);
    tierce__backup_free(restore->backup);
    tierce__free(restore);
}

static void count_entries(struct tierce__restore *restore)
{
    size_t storages, groups, instances;
    const struct tierce__catalog *catalog = tierce__registry_acquire(restore->registry);
    (void)tierce__catalog_storages(catalog, &storages);
    (void)tierce__catalog_groups(catalog, &groups);
    (void)tierce__catalog_instances(catalog, &instances);
    bool has_id = tierce__catalog_id(catalog)[0] != '\0';
    tierce__registry_release(restore->registry, catalog);
    restore->counts = (struct tierce__restored){.made_us = restore->counts.made_us,
                                                .storages = storages,
                                                .groups = groups,
                                                .instances = instances,
                                                .has_other_id = has_id && !restore->opts.keeps_id};
}

int tierce__restore_begin(struct tierce__restore *restore, struct tierce__registry *registry,
                          struct tierce__locator *locator, char why[256])
{
    TIERCE_ASSERT(restore->locator == NULL);
    const struct tierce__registry_text whole = {.text = tierce__backup_catalog(restore->backup),
                                                .keeps_id = restore->opts.keeps_id};
    int rc = tierce__registry_stage(registry, &whole, why);
    if (rc == -EEXIST && !restore->opts.is_lasting) {
        tierce__log(TIERCE_LOG_INFO, "manager.restore_skipped", "%s", why);
        return 0;
    }
    if (rc < 0)
        return rc;
    restore->registry = registry;
    restore->locator = locator;
    count_entries(restore);
    tierce__locator_set_filler(locator, tierce__restore_fill, restore);
    return 0;
}

/* A note that stays does no harm: the registry is not empty any more. */
static void remove_mark(void *arg, struct tierce__live *live)
{
    struct tierce__meta_note note = {.kind = TIERCE__NOTE_RESTORE, .number = 1};
    int rc = tierce__meta_index_write_notes(live->index, &note, 1);
    (void)arg;
    if (rc < 0)
        tierce__log(TIERCE_LOG_WARN, "manager.restore_mark_left", "instance=%s error=%s",
                    live->instance.id, tierce_error_name(rc));
}

static int end(struct tierce__restore *restore, char why[256])
{
    const struct tierce__restored *counts = &restore->counts;
    int rc = tierce__registry_keep(restore->registry, why);
    if (rc < 0) {
        tierce__locator_drop(restore->locator);
        return rc;
    }
    tierce__locator_each(restore->locator, remove_mark, NULL);
    tierce__log(TIERCE_LOG_INFO, "manager.restored",
                "instances=%llu blocks=%llu blocks_left_out=%llu",
                (unsigned long long)counts->instances, (unsigned long long)counts->blocks,
                (unsigned long long)counts->blocks_left);
    if (counts->has_other_id)
        tierce__log(
            TIERCE_LOG_WARN, "manager.restored_beside",
            "effect=\"the storages have the mark of the backup's registry, and are not "
            "used\" hint=\"if no other manager uses them: tierce storage adopt NAME --keep, "
            "for each\"");
    return 0;
}

void tierce__restore_abandon(struct tierce__restore *restore)
{
    if (restore == NULL || restore->locator == NULL)
        return;
    TIERCE_ASSERT(restore->registry != NULL);
    tierce__locator_set_filler(restore->locator, NULL, NULL);
    restore->locator = NULL;
    restore->registry = NULL;
}

int tierce__restore_recover(struct tierce__restore *restore, struct tierce__locator *locator,
                            uint64_t fence, char why[256])
{
    int rc = tierce__locator_recover(locator, fence, why);
    if (restore == NULL || restore->locator == NULL)
        return rc;
    TIERCE_ASSERT(restore->locator == locator && restore->registry != NULL);
    tierce__locator_set_filler(locator, NULL, NULL);
    if (rc == 0)
        rc = end(restore, why);
    tierce__restore_abandon(restore);
    return rc;
}

void tierce__restore_counts(const struct tierce__restore *restore, struct tierce__restored *out)
{
    *out = restore->counts;
}
