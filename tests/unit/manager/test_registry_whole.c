/* SPDX-License-Identifier: Apache-2.0 */
/* The whole content of a registry at once, and the generations that outlive it. */
#include "base/alloc.h"
#include "manager/registry/catalog.h"
#include "manager/registry/startup.h"
#include "registry_case.h"

#include <errno.h>
#include <string.h>

START_TEST(test_restore)
{
    fill();
    char *text = snapshot();
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    ck_assert_int_eq(add_storage("b"), 0);
    ck_assert_int_eq(tierce__registry_restore(registry, "{\"storages\":[{}]}", why),
                     TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "storages[0]"));
    ck_assert_int_eq(tierce__registry_restore(registry,
                                              "{\"instances\":[{\"instance_id\":\"i\","
                                              "\"instance_group_name\":\"none\"}]}",
                                              why),
                     TIERCE_E_ARGUMENT);
    ck_assert_uint_eq(number_of_storage("b"), 2); /* nothing has changed */
    ck_assert_int_eq(tierce__registry_restore(registry, text, why), 0);
    tierce__free(text);
    ck_assert_uint_eq(number_of_storage("a"), 1);
    ck_assert_uint_eq(number_of_storage("b"), 0);
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    /* The instance was removed: its old state does not belong to the new one. */
    ck_assert_uint_eq(tierce__catalog_instance(catalog, "i")->number, 2);
    tierce__registry_release(registry, catalog);
    ck_assert_int_eq(add_storage("b"), 0);
    ck_assert_uint_eq(number_of_storage("b"), 3);
}
END_TEST

START_TEST(test_startup)
{
    ck_assert_int_eq(tierce__registry_startup(registry, "{\"instance_group\":7}", why),
                     TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "instance_group"));
    ck_assert_int_eq(tierce__registry_startup(registry, NULL, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "STATE_DIRECTORY"));
    char *builtin = tierce__startup_builtin("/var/lib/\"t\"");
    ck_assert_int_eq(tierce__registry_startup(registry, builtin, why), 0);
    tierce__free(builtin);
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__storage *storage = tierce__catalog_storage(catalog, "nfs_01");
    const struct tierce__group *group = tierce__catalog_group(catalog, "default");
    ck_assert_str_eq(storage->root_path, "/var/lib/\"t\"/nfs_01/");
    ck_assert_int_eq(storage->key_count_per_file, 8);
    ck_assert_int_eq(group->capacity_bytes, 30000000000);
    ck_assert_uint_eq(group->type_quota_count, 3);
    ck_assert(group->trigger_used_share == 0.8);
    ck_assert_int_eq(group->prefer_strategy, 2);
    ck_assert_int_eq(group->search_cache_mib, 10000);
    ck_assert_str_eq(group->global_quota_group_name, "default_quota_group");
    tierce__registry_release(registry, catalog);
    uint64_t version = tierce__registry_version(registry);
    ck_assert_int_eq(tierce__registry_startup(registry, NULL, why), 0); /* none was needed */
    ck_assert_int_eq(tierce__registry_startup(registry,
                                              "{\"storage_config\":{\"type\":\"file\","
                                              "\"global_unique_name\":\"x\"}}",
                                              why),
                     0);
    ck_assert_uint_eq(tierce__registry_version(registry), version);
}
END_TEST

static void add_name(void *arg, const char *name)
{
    char *names = arg;
    size_t bytes = strlen(names);
    snprintf(names + bytes, 512 - bytes, "%s\n", name);
}

START_TEST(test_unknown_names_of_a_startup_text)
{
    char names[512] = "";
    char *builtin = tierce__startup_builtin("/var/lib/t");
    tierce__registry_startup_unknown(builtin, add_name, names);
    ck_assert_str_eq(names, "");
    tierce__free(builtin);
    tierce__registry_startup_unknown(
        "{\"storage_confg\":{},\"storage_config\":{\"type\":\"file\",\"global_unique_nam\":\"x\","
        "\"storage_spec\":{\"root_path\":\"/a\",\"bucket\":\"b\"}},\"instance_group\":{\"quota\":"
        "{\"quota_config\":[{\"capacity\":1},{\"storage_type\":\"s3\",\"size\":1}],\"a.b\":0},"
        "\"cache_config\":{\"reclaim_strategy\":{\"ttl\":5}}}}",
        add_name, names);
    ck_assert_str_eq(names, "storage_confg\n"
                            "storage_config.global_unique_nam\n"
                            "storage_config.storage_spec.bucket\n"
                            "instance_group.quota.quota_config[1].size\n"
                            "instance_group.quota.a.b\n"
                            "instance_group.cache_config.reclaim_strategy.ttl\n");
}
END_TEST

/* ---- generations ----------------------------------------------------------------------------- */

static uint64_t generation_of(const char *id)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__instance *instance = tierce__catalog_instance(catalog, id);
    ck_assert_ptr_nonnull(instance);
    uint64_t generation = instance->generation;
    tierce__registry_release(registry, catalog);
    return generation;
}

static void invalidate(const char *id)
{
    const struct tierce__namespace_choice choice = {.instance_id = id, .group = "", .family = ""};
    int rc = tierce__registry_invalidate(registry, &choice, why);
    ck_assert_msg(rc == 0, "%s", why);
}

/* An engine that heard nothing meanwhile would take blocks of the first instance for the second's.
 */
START_TEST(test_an_instance_that_returns_has_another_generation)
{
    fill();
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    ck_assert_int_eq(add_instance("i", "g"), 0);
    ck_assert_uint_eq(generation_of("i"), 0); /* nothing was invalidated */
    invalidate("i");
    invalidate("i");
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    reopen();
    ck_assert_int_eq(add_instance("i", "g"), 0);
    ck_assert_uint_eq(generation_of("i"), 3);
    invalidate("i");
    ck_assert_uint_eq(generation_of("i"), 4);
    ck_assert_int_eq(add_instance("i", "g"), 1); /* an equal one */
    ck_assert_uint_eq(generation_of("i"), 4);
}
END_TEST

START_TEST(test_an_import_gives_no_generation_again)
{
    fill();
    char *with = snapshot();
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    char *without = snapshot();
    ck_assert_int_eq(tierce__registry_restore(registry, with, why), 0);
    invalidate("i");
    ck_assert_int_eq(tierce__registry_restore(registry, with, why), 0);
    ck_assert_uint_eq(generation_of("i"), 1);
    ck_assert_int_eq(tierce__registry_restore(registry, without, why), 0);
    reopen();
    ck_assert_int_eq(tierce__registry_restore(registry, with, why), 0);
    ck_assert_uint_eq(generation_of("i"), 2);
    tierce__free(with);
    tierce__free(without);
}
END_TEST

static void stage(const char *text)
{
    ck_assert_int_eq(
        tierce__registry_stage(registry, &(struct tierce__registry_text){.text = text}, why), 0);
    ck_assert_int_eq(tierce__registry_keep(registry, why), 0);
    reopen();
}

static void empty(void)
{
    ck_assert_int_eq(tierce__registry_restore(registry, "{}", why), 0);
}

/* The instance was invalidated after the backup, perhaps more often than before. */
START_TEST(test_a_backup_gives_no_generation_again)
{
    fill();
    invalidate("i");
    char *text = snapshot();
    invalidate("i");
    ck_assert_int_eq(
        tierce__registry_stage(registry, &(struct tierce__registry_text){.text = text}, why),
        -EEXIST);
    ck_assert_ptr_nonnull(strstr(why, "not empty"));
    empty();
    stage(text);
    ck_assert_uint_eq(generation_of("i"), 1); /* its blocks are those of the backup */
    ck_assert_int_eq(add_instance("j", "g"), 0);
    ck_assert_uint_gt(generation_of("j"), 65536);
    invalidate("i");
    ck_assert_uint_gt(generation_of("i"), 65536);
    empty();
    stage(text);
    invalidate("i");
    ck_assert_uint_gt(generation_of("i"), 2 * 65536);
    tierce__free(text);
}
END_TEST

/* The manager that was backed up may still run: its storages are not this one's. */
START_TEST(test_a_backup_has_another_id)
{
    char ids[3][TIERCE__STORAGE_ID_HEX + 1];
    char *text[2];
    text[0] = snapshot();
    ck_assert_int_eq(tierce__registry_identify(registry, why), 0);
    text[1] = snapshot();
    stage(text[0]);
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    ck_assert_str_eq(tierce__catalog_id(catalog), ""); /* it had none, and gets one later */
    tierce__registry_release(registry, catalog);
    for (unsigned i = 0; i < 3; i++) {
        struct tierce__registry_text whole = {.text = text[1], .keeps_id = i == 1};
        ck_assert_int_eq(tierce__registry_stage(registry, &whole, why), 0);
        catalog = tierce__registry_acquire(registry);
        snprintf(ids[i], sizeof(ids[i]), "%s", tierce__catalog_id(catalog));
        tierce__registry_release(registry, catalog);
        ck_assert(tierce__storage_id_is(ids[i]));
        ck_assert((strstr(text[1], ids[i]) != NULL) == (i == 1));
    }
    ck_assert_str_ne(ids[0], ids[2]);
    tierce__free(text[0]);
    tierce__free(text[1]);
}
END_TEST

CHECK_MAIN("registry_whole", .seconds = 60, .setup = set_up, .teardown = tear_down,
           .tests = {test_restore, test_startup, test_unknown_names_of_a_startup_text,
                     test_an_instance_that_returns_has_another_generation,
                     test_an_import_gives_no_generation_again,
                     test_a_backup_gives_no_generation_again, test_a_backup_has_another_id})
