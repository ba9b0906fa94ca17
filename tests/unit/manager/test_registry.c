/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: its rules, its file, and that a change that fails changes nothing. */
#include "base/alloc.h"
#include "test_random.h"
#include "vfs_fault.h"
#include "check_main.h"
#include "manager/api/account.h"
#include "registry_case.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- rules ----------------------------------------------------------------------------------- */

START_TEST(test_storages)
{
    ck_assert_int_eq(add_storage("b"), 0);
    ck_assert_int_eq(add_storage("a"), 0);
    ck_assert_int_eq(add_storage("a"), -EEXIST);
    ck_assert_str_eq(why, "storage a already exists");
    size_t count;
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(all[0].name, "a");
    ck_assert_int_eq(all[0].key_count_per_file, 1); /* 0 was given */
    ck_assert_int_eq(tierce__registry_enable_storage(registry, "a", false, why), 0);
    ck_assert(all[0].is_enabled); /* what was acquired stays as it was */
    tierce__registry_release(registry, catalog);
    catalog = tierce__registry_acquire(registry);
    ck_assert(!tierce__catalog_storage(catalog, "a")->is_enabled);
    tierce__registry_release(registry, catalog);

    struct tierce__storage storage = nfs("a");
    storage.root_path = "/other";
    ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), 0);
    ck_assert_uint_eq(number_of_storage("a"), 2);
    storage.name = "c";
    ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), -ENOENT);
    storage.name = "a";
    storage.type = TIERCE__STORAGE_MOONCAKE;
    ck_assert_int_eq(tierce__registry_update_storage(registry, &storage, why), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__registry_enable_storage(registry, "c", true, why), -ENOENT);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "c", why), -ENOENT);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "a", why), 0);
    ck_assert_uint_eq(number_of_storage("a"), 0);
}
END_TEST

START_TEST(test_numbers_are_never_given_again)
{
    ck_assert_int_eq(add_storage("a"), 0);
    ck_assert_int_eq(add_storage("b"), 0);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "b", why), 0);
    reopen();
    ck_assert_int_eq(add_storage("b"), 0);
    ck_assert_uint_eq(number_of_storage("a"), 1);
    ck_assert_uint_eq(number_of_storage("b"), 3);
}
END_TEST

START_TEST(test_values_that_are_refused)
{
    char long_name[600];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    char *names[] = {"", "a/b", "a?b", "a b", "a\nb", long_name, "\xff"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        ck_assert_int_eq(add_storage(names[i]), TIERCE_E_ARGUMENT);
    char *roots[] = {"", "relative", "/a/../b", "/..", "/a?b"};
    for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
        struct tierce__storage storage = nfs("a");
        storage.root_path = roots[i];
        ck_assert_int_eq(tierce__registry_add_storage(registry, &storage, why), TIERCE_E_ARGUMENT);
        storage.type = TIERCE__STORAGE_3FS;
        storage.mountpoint = roots[i];
        ck_assert_int_eq(tierce__registry_add_storage(registry, &storage, why), TIERCE_E_ARGUMENT);
    }
    struct tierce__storage storage = nfs("a");
    storage.key_count_per_file = 65537;
    ck_assert_int_eq(tierce__registry_add_storage(registry, &storage, why), TIERCE_E_ARGUMENT);
    storage.key_count_per_file = -1;
    ck_assert_int_eq(tierce__registry_add_storage(registry, &storage, why), TIERCE_E_ARGUMENT);
    storage.type = (enum tierce__storage_type)77;
    ck_assert_int_eq(tierce__registry_add_storage(registry, &storage, why), TIERCE_E_ARGUMENT);
    struct tierce__group group = group_of("g", NULL, 0);
    group.user_data = "\xc3";
    ck_assert_int_eq(tierce__registry_add_group(registry, &group, why), TIERCE_E_ARGUMENT);
    group.user_data = "";
    group.trigger_used_share = 0.0 / 0.0;
    ck_assert_int_eq(tierce__registry_add_group(registry, &group, why), TIERCE_E_ARGUMENT);
    ck_assert_int_eq(tierce__registry_add_account(registry, "a:b", "p", TIERCE__ROLE_USER, why),
                     TIERCE_E_ARGUMENT);
    reopen(); /* nothing of it came in */
}
END_TEST

START_TEST(test_groups)
{
    ck_assert_int_eq(add_storage("a"), 0);
    ck_assert_int_eq(add_group("g", "a"), 0);
    ck_assert_int_eq(add_group("g", "a"), -EEXIST);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "a", why), -EBUSY);
    ck_assert_str_eq(why, "storage a is a candidate of instance group g");
    char *storage = "a";
    struct tierce__group group = group_of("g", &storage, 1);
    group.version = 2;
    ck_assert_int_eq(tierce__registry_update_group(registry, &group, 2, why), -ESTALE);
    group.version = 1;
    ck_assert_int_eq(tierce__registry_update_group(registry, &group, 1, why), -ESTALE);
    group.version = 7;
    ck_assert_int_eq(tierce__registry_update_group(registry, &group, 1, why), 0);
    ck_assert_int_eq(tierce__registry_update_group(registry, &group, 1, why), -ESTALE);
    group.name = "h";
    ck_assert_int_eq(tierce__registry_update_group(registry, &group, 7, why), -ENOENT);
    ck_assert_int_eq(add_instance("i", "g"), 0);
    ck_assert_int_eq(tierce__registry_remove_group(registry, "g", why), -EBUSY);
    ck_assert_str_eq(why, "instance group g has instance i");
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    ck_assert_int_eq(tierce__registry_remove_group(registry, "g", why), 0);
    ck_assert_int_eq(tierce__registry_remove_group(registry, "g", why), -ENOENT);
    ck_assert_int_eq(tierce__registry_remove_storage(registry, "a", why), 0);
}
END_TEST

START_TEST(test_instances)
{
    ck_assert_int_eq(add_instance("i", "g"), -ENOENT);
    ck_assert_int_eq(add_group("g", "a"), 0);
    ck_assert_int_eq(add_instance("i", "g"), 0);
    uint64_t version = tierce__registry_version(registry);
    ck_assert_int_eq(add_instance("i", "g"), 1);
    ck_assert_int_eq(add_instance("i", "other"), 1); /* the group is not compared */
    ck_assert_uint_eq(tierce__registry_version(registry), version);
    struct tierce__instance other = instance_of("i", "g");
    other.block_size = 16;
    ck_assert_int_eq(tierce__registry_add_instance(registry, &other, why), -EEXIST);
    ck_assert_str_eq(why, "instance i is registered with another block_size");
    ck_assert_int_eq(add_instance("j", "g"), 0);
    ck_assert_int_eq(add_instance("k", "g"), TIERCE_E_LIMIT); /* max_instance_count 2 */
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "j", why), 0);
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "j", why), -ENOENT);
    ck_assert_int_eq(add_instance("k", "g"), 0);
}
END_TEST

START_TEST(test_kinds_of_attention)
{
    static const struct {
        const char *kind;
        int32_t window, every;
        const char *family, *complaint; /* NULL: none */
    } rows[] = {
        {"", 0, 0, "", NULL},
        {"full", 0, 0, "f", NULL},
        {"window", 128, 0, "f", NULL},
        {"chunked", 64, 0, "", NULL},
        {"linear", 0, 16, "f", NULL},
        {"state", 0, 0, "f", "attention_kind of instance i is state; accepted are all, full"},
        {"window", 0, 0, "f", "window_tokens: window and chunked attention need it"},
        {"full", 9, 0, "f", "window_tokens: only window and chunked"},
        {"all", 0, 9, "f", "every_tokens: only linear"},
        {"window", -1, 0, "f", "window_tokens"},
        {"linear", 0, -1, "f", "every_tokens of instance i is -1"},
        {"", 0, 0, "f", "attention_family: it needs an attention_kind"},
    };
    ck_assert_int_eq(add_group("g", "a"), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tierce__instance instance = instance_of("i", "g");
        instance.attention =
            (struct tierce__attention){(char *)(uintptr_t)rows[i].kind, rows[i].window,
                                       rows[i].every, (char *)(uintptr_t)rows[i].family, NULL};
        int rc = tierce__registry_add_instance(registry, &instance, why);
        ck_assert_int_eq(rc, rows[i].complaint == NULL ? 0 : TIERCE_E_ARGUMENT);
        if (rc < 0)
            ck_assert_msg(strstr(why, rows[i].complaint) != NULL, "%zu: %s", i, why);
        else
            ck_assert_int_eq(tierce__registry_remove_instance(registry, "i", why), 0);
    }
}
END_TEST

START_TEST(test_spec_groups_in_any_order)
{
    struct tierce__spec_info specs[] = {{"a", 1}, {"b", 2}};
    char *ab[] = {"a", "b"}, *ba[] = {"b", "a"}, *twice[] = {"a", "a"}, *none[] = {"c"};
    struct tierce__spec_group one[] = {{"y", ba, 2}, {"x", ab, 1}};
    struct tierce__spec_group two[] = {{"x", ab, 1}, {"y", ab, 2}};
    struct tierce__spec_group bad[] = {{"x", none, 1}};
    struct tierce__instance instance = instance_of("i", "g");
    instance.specs = specs;
    instance.spec_count = 2;
    instance.spec_groups = one;
    instance.spec_group_count = 2;
    ck_assert_int_eq(add_group("g", "a"), 0);
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), 0);
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), 1);
    instance.spec_groups = two;
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), 1);
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__instance *stored = tierce__catalog_instance(catalog, "i");
    ck_assert_str_eq(stored->spec_groups[0].name, "x");
    ck_assert_str_eq(stored->spec_groups[1].spec_names[0], "a");
    tierce__registry_release(registry, catalog);
    instance.id = "j";
    instance.spec_groups = bad;
    instance.spec_group_count = 1;
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), TIERCE_E_ARGUMENT);
    bad[0].spec_names = twice;
    bad[0].spec_name_count = 2;
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), TIERCE_E_ARGUMENT);
    instance.spec_group_count = 0;
    specs[1].name = "a";
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), TIERCE_E_ARGUMENT);
}
END_TEST

START_TEST(test_sizes_of_specs)
{
    struct tierce__spec_info specs[] = {{"a", INT64_MIN}, {"b", INT64_MAX}};
    struct tierce__instance instance = instance_of("i", "g");
    instance.specs = specs;
    instance.spec_count = 1;
    ck_assert_int_eq(add_group("g", "a"), 0);
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(why, "is -9223372036854775808; accepted are"));
    instance.spec_count = 2;
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), TIERCE_E_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(why, "total size"));
}
END_TEST

/* A registry that no manager can read again, or that no backup can hold, would stop the fleet. */
START_TEST(test_its_size_is_bounded)
{
    enum { SPECS = 8, NAME = 401 };
    static char names[SPECS][NAME + 1];
    struct tierce__spec_info specs[SPECS];
    const struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = uri, .bytes_max = 9000};
    for (size_t i = 0; i < SPECS; i++) {
        memset(names[i], 'n', NAME);
        names[i][0] = (char)('a' + i);
        specs[i] = (struct tierce__spec_info){names[i], 1};
    }
    tierce__registry_close(registry);
    ck_assert_msg(tierce__registry_open(&registry, &opts, why) == 0, "%s", why);
    load(registry, 0);
    struct tierce__instance large = instance_of("large", "g");
    large.specs = specs;
    large.spec_count = SPECS;
    ck_assert_int_eq(add_group("g", "a"), 0);
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), 0);
    large.id = (char *)"larger";
    ck_assert_int_eq(add_group("h", "a"), 0);
    large.group_name = (char *)"h";
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), 0);
    large.id = (char *)"too large";
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), TIERCE_E_LIMIT);
    ck_assert_msg(strstr(why, "of at most 9000; remove instances") != NULL, "%s", why);
    /* It can be changed in all other ways, and has room again afterwards; also if it was read, or
     * restored. */
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(add_group((char[]){'n', (char)('0' + i), '\0'}, "a"), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(
            tierce__registry_remove_group(registry, (char[]){'n', (char)('0' + i), '\0'}, why), 0);
    char *full = snapshot();
    ck_assert_int_eq(tierce__registry_restore(registry, "{}", why), 0);
    ck_assert_int_eq(add_group("g", "a"), 0);
    large.group_name = (char *)"g";
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), 0);
    ck_assert_int_eq(tierce__registry_restore(registry, full, why), 0);
    tierce__free(full);
    large.group_name = (char *)"h";
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "larger", why), 0);
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), 0);
    tierce__registry_close(registry);
    ck_assert_msg(tierce__registry_open(&registry, &opts, why) == 0, "%s", why);
    load(registry, 0);
    large.id = (char *)"larger";
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__registry_remove_instance(registry, "large", why), 0);
    ck_assert_int_eq(tierce__registry_add_instance(registry, &large, why), 0);
}
END_TEST

START_TEST(test_an_instance_is_bounded)
{
    enum { SPECS = 5000, NAME = 500 };
    char *names = tierce__alloc((size_t)SPECS * (NAME + 1));
    struct tierce__spec_info *specs = tierce__calloc(SPECS, sizeof(*specs));
    for (size_t i = 0; i < SPECS; i++) {
        specs[i] = (struct tierce__spec_info){names + i * (NAME + 1), 1};
        snprintf(specs[i].name, NAME + 1, "%0*zu", NAME, i);
    }
    struct tierce__instance instance = instance_of("i", "g");
    instance.specs = specs;
    instance.spec_count = SPECS;
    ck_assert_int_eq(add_group("g", "a"), 0);
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), TIERCE_E_ARGUMENT);
    ck_assert_msg(strstr(why, "as JSON, of at most 2097152") != NULL, "%s", why);
    instance.spec_count = 3500;
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), 0);
    instance.id = (char *)"j";
    memset(names, 'x', (size_t)SPECS * NAME);
    names[(size_t)SPECS * NAME] = '\0';
    instance.spec_count = 0;
    instance.user_data = names;
    ck_assert_int_eq(tierce__registry_add_instance(registry, &instance, why), TIERCE_E_ARGUMENT);
    tierce__free(specs);
    tierce__free(names);
}
END_TEST

static bool is_password(const char *name, const char *password, enum tierce__role *role)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(registry);
    const struct tierce__account *account = tierce__catalog_account(catalog, name);
    bool is_right = account != NULL && tierce__password_is(account->password_hash, password);
    if (is_right)
        *role = account->role;
    tierce__registry_release(registry, catalog);
    return is_right;
}

START_TEST(test_accounts)
{
    enum tierce__role role = TIERCE__ROLE_USER;
    ck_assert_int_eq(tierce__registry_add_account(registry, "u", "pw", TIERCE__ROLE_ADMIN, why), 0);
    ck_assert_int_eq(tierce__registry_add_account(registry, "u", "x", TIERCE__ROLE_USER, why),
                     -EEXIST);
    reopen();
    ck_assert(is_password("u", "pw", &role));
    ck_assert_int_eq(role, TIERCE__ROLE_ADMIN);
    ck_assert(!is_password("u", "x", &role));
    ck_assert(!is_password("nobody", "pw", &role));
    ck_assert_int_eq(tierce__registry_remove_account(registry, "nobody", why), -ENOENT);
    ck_assert_int_eq(tierce__registry_remove_account(registry, "u", why), 0);
    ck_assert(!is_password("u", "pw", &role));
}
END_TEST

/* ---- the file -------------------------------------------------------------------------------- */

START_TEST(test_all_of_it_comes_back)
{
    fill();
    char *before = snapshot();
    reopen();
    char *after = snapshot();
    ck_assert_str_eq(before, after);
    tierce__free(before);
    tierce__free(after);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
}
END_TEST

START_TEST(test_not_loaded)
{
    fill();
    tierce__registry_drop(registry);
    ck_assert_uint_eq(number_of_storage("a"), 0);
    ck_assert_int_eq(add_storage("b"), TIERCE_E_CLOSED);
    load(registry, 0);
    ck_assert_uint_eq(number_of_storage("a"), 1);
}
END_TEST

/* Generations are counted from 1 by each. */
START_TEST(test_another_registry_has_another_number)
{
    fill();
    ck_assert_uint_eq(tierce__registry_number(registry), 0);
    ck_assert_int_eq(tierce__registry_identify(registry, why), 0);
    uint64_t stored = tierce__registry_number(registry);
    ck_assert_uint_ne(stored, 0);
    reopen();
    ck_assert_uint_eq(tierce__registry_number(registry), stored);
    tierce__registry_close(registry);
    registry = open_one("", NULL);
    load(registry, 0);
    uint64_t first = tierce__registry_number(registry);
    ck_assert(first != 0 && first != stored);
    tierce__registry_close(registry);
    registry = open_one("", NULL);
    load(registry, 0);
    ck_assert(tierce__registry_number(registry) != 0 && tierce__registry_number(registry) != first);
}
END_TEST

START_TEST(test_memory_keeps_what_it_dropped)
{
    tierce__registry_close(registry);
    registry = open_one("", NULL);
    load(registry, 0);
    uint64_t number = tierce__registry_number(registry);
    fill();
    tierce__registry_drop(registry);
    ck_assert_uint_eq(number_of_storage("a"), 0);
    load(registry, 0);
    ck_assert_uint_eq(number_of_storage("a"), 1);
    load(registry, 0); /* again, without a drop */
    ck_assert_uint_eq(number_of_storage("a"), 1);
    ck_assert_uint_eq(tierce__registry_number(registry), number);
}
END_TEST

static void write_text(const char *text, size_t n)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, n, file), n);
    fclose(file);
}

START_TEST(test_foreign_and_damaged_files_are_refused)
{
    fill();
    char text[8192];
    FILE *file = fopen(path, "r");
    size_t n = fread(text, 1, sizeof(text), file);
    fclose(file);
    ck_assert_uint_lt(n, sizeof(text));
    for (size_t i = 0; i < n; i++) {
        text[i] ^= 1;
        write_text(text, n);
        ck_assert_int_lt(tierce__registry_load(registry, 0, why), 0);
        ck_assert_ptr_nonnull(strstr(why, path));
        ck_assert_int_lt(add_storage("b"), 0); /* nor is it overwritten */
        text[i] ^= 1;
    }
    for (size_t cut = 0; cut < n; cut += 7) {
        write_text(text, cut);
        ck_assert_int_eq(tierce__registry_load(registry, 0, why), TIERCE_E_FORMAT);
    }
    write_text("tierce-registry 3 0 0 0\n", 24);
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), TIERCE_E_VERSION);
    ck_assert_ptr_nonnull(strstr(why, "format 3; this build reads 1 to 2"));
    write_text(text, n);
    ck_assert_int_eq(tierce__registry_load(registry, 0, why), 0);
    ck_assert_uint_eq(number_of_storage("a"), 1); /* what was read before stayed meanwhile */
}
END_TEST

START_TEST(test_uris_that_are_refused)
{
    static const char *const uris[] = {"local://", "local:///tmp/", "nothing://x", "x"};
    struct tierce__registry *one = NULL;
    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = uris[i]};
        ck_assert_int_eq(tierce__registry_open(&one, &opts, why), TIERCE_E_CONFIG);
    }
    struct tierce__registry_opts opts = {.size = sizeof(opts), .uri = "local:///nowhere/at/all"};
    ck_assert_int_eq(tierce__registry_open(&one, &opts, why), -ENOENT);
    ck_assert_ptr_nonnull(strstr(why, "/nowhere/at"));
}
END_TEST

START_TEST(test_an_older_leader_is_refused)
{
    struct tierce__registry *newer = open_one(uri, NULL), *older = registry;
    fill();
    load(older, 5);
    load(newer, 6); /* from now on, before anything was written */
    ck_assert_int_eq(add_storage("b"), TIERCE_E_REFUSED);
    ck_assert_uint_eq(number_of_storage("b"), 0);
    ck_assert_int_eq(tierce__registry_load(older, 5, why), TIERCE_E_REFUSED);
    registry = newer;
    ck_assert_int_eq(add_storage("b"), 0);
    registry = older;
    load(registry, 7);
    ck_assert_uint_eq(number_of_storage("b"), 2);
    tierce__registry_close(newer);
}
END_TEST

START_TEST(test_a_writer_that_hangs)
{
    char lock[160];
    snprintf(lock, sizeof(lock), "%s.lock", path);
    load(registry, 1); /* it leads by a lease, and so may not be the only one */
    int fd = open(lock, O_RDWR | O_CREAT, 0600);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(add_storage("a"), TIERCE_E_LOCKED);
    close(fd);
    ck_assert_int_eq(add_storage("a"), 0);
}
END_TEST

START_TEST(test_without_a_lease_there_is_one_only)
{
    struct tierce__registry *other = open_one(uri, NULL);
    fill();
    ck_assert_int_eq(tierce__registry_load(other, 0, why), TIERCE_E_LOCKED);
    ck_assert_ptr_nonnull(strstr(why, "elector.uri"));
    tierce__registry_drop(registry); /* it is still the one */
    load(registry, 0);
    ck_assert_int_eq(add_storage("b"), 0);
    tierce__registry_close(registry);
    registry = other;
    load(registry, 0);
    ck_assert_uint_eq(number_of_storage("b"), 2);
}
END_TEST

/* ---- all at once ----------------------------------------------------------------------------- */

/* ---- torture --------------------------------------------------------------------------------- */

enum { CHANGES = 14 };

/* The n-th of some changes of which each works on what fill() made. */
static int do_change(int n)
{
    char *storage = "a";
    struct tierce__group group = group_of("g", &storage, 1);
    struct tierce__storage other = nfs("a");
    group.version = 2;
    other.root_path = "/x";
    switch (n) {
    case 0:
        return add_storage("b");
    case 1:
        return tierce__registry_update_storage(registry, &other, why);
    case 2:
        return tierce__registry_enable_storage(registry, "a", false, why);
    case 3:
        return add_group("h", "a");
    case 4:
        return tierce__registry_update_group(registry, &group, 1, why);
    case 5:
        return add_instance("j", "g");
    case 6:
        return tierce__registry_remove_instance(registry, "i", why);
    case 7:
        return tierce__registry_restore(registry, "{}", why);
    case 8:
        return tierce__registry_add_account(registry, "u", "p", TIERCE__ROLE_USER, why);
    case 9:
        return tierce__registry_load(registry, 0, why);
    case 10:
        return tierce__registry_mark_storage(registry, "a", why);
    case 11:
        return tierce__registry_identify(registry, why);
    case 12:
        return tierce__registry_load(registry, 9, why);
    default:
        tierce__registry_drop(registry);
        return tierce__registry_load(registry, 0, why);
    }
}

static void begin_again(struct tierce__vfs *files)
{
    tierce__registry_close(registry);
    unlink(path);
    registry = open_one(uri, files);
    load(registry, 0);
    fill();
}

START_TEST(test_torture_allocations)
{
    for (int n = 0; n < CHANGES - 1; n++) {
        int rc = -ENOMEM;
        begin_again(NULL);
        char *before = snapshot();
        for (uint64_t nth = 1; rc != 0; nth++) {
            ck_assert_uint_lt(nth, 1000);
            tierce__alloc_fail_nth(nth);
            rc = do_change(n);
            tierce__alloc_fail_nth(0);
            if (rc == 0)
                break;
            ck_assert_int_eq(rc, -ENOMEM);
            char *after = snapshot();
            ck_assert_str_eq(before, after);
            tierce__free(after);
        }
        tierce__free(before);
    }
}
END_TEST

START_TEST(test_torture_files)
{
    struct tierce__vfs *inner = NULL;
    ck_assert_int_eq(tierce__vfs_threads_create(&inner, 1), 0);
    ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, false), 0);
    for (int n = 0; n < CHANGES; n++) {
        int rc = -EIO;
        for (uint64_t nth = 1; rc != 0; nth++) {
            ck_assert_uint_lt(nth, 100);
            tierce__vfs_fault_clear(vfs);
            begin_again(vfs);
            char *before = snapshot();
            tierce__vfs_fault_add(vfs,
                                  &(struct tierce__vfs_fault_rule){.kind = TIERCE__FAULT_ANY,
                                                                   .action = TIERCE__FAULT_FAIL,
                                                                   .nth = nth,
                                                                   .error = -EIO});
            rc = do_change(n);
            tierce__vfs_fault_clear(vfs);
            if (rc != 0) {
                /* Neither in memory (a drop has emptied that) nor in the file. */
                ck_assert_int_eq(rc, -EIO);
                for (int again = n == CHANGES - 1; again < 2; again++) {
                    if (again)
                        load(registry, 0);
                    char *after = snapshot();
                    ck_assert_str_eq(before, after);
                    tierce__free(after);
                }
            }
            tierce__free(before);
        }
    }
}
END_TEST

/* A change that was acknowledged survives a power cut: the new file is synced before it is renamed
 * over the old one. */
START_TEST(test_power_cut)
{
    for (uint64_t seed = 1; seed <= TEST_ROUNDS(40); seed++) {
        struct tierce__vfs *inner = NULL;
        ck_assert_int_eq(tierce__vfs_threads_create(&inner, 1), 0);
        ck_assert_int_eq(tierce__vfs_fault_create(&vfs, inner, true), 0);
        tierce__vfs_fault_seed(vfs, seed);
        begin_again(vfs);
        char *before = snapshot();
        tierce__vfs_fault_power_cut(vfs);
        tierce__registry_close(registry);
        vfs->ops->destroy(vfs);
        vfs = NULL;
        registry = open_one(uri, NULL);
        load(registry, 0);
        char *after = snapshot();
        ck_assert_str_eq(before, after);
        tierce__free(before);
        tierce__free(after);
    }
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

static atomic_bool is_over;

static void *read_always(void *arg)
{
    struct tierce__registry *one = arg;
    while (!atomic_load(&is_over)) {
        size_t storages, groups;
        const struct tierce__catalog *catalog = tierce__registry_acquire(one);
        const struct tierce__storage *all = tierce__catalog_storages(catalog, &storages);
        tierce__catalog_groups(catalog, &groups);
        /* Each change adds or removes both kinds together, in two steps. */
        ck_assert(storages == groups || storages == groups + 1);
        for (size_t i = 0; i < storages; i++)
            ck_assert_ptr_eq(tierce__catalog_storage(catalog, all[i].name), &all[i]);
        tierce__registry_release(one, catalog);
    }
    return NULL;
}

START_TEST(test_readers_see_whole_catalogs)
{
    pthread_t threads[3];
    tierce__registry_close(registry);
    registry = open_one("", NULL);
    load(registry, 0);
    for (size_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, read_always, registry);
    for (unsigned i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof(name), "s%u", i % 20);
        if (i / 20 % 2 == 0) {
            ck_assert_int_eq(add_storage(name), 0);
            ck_assert_int_eq(add_group(name, name), 0);
        } else {
            ck_assert_int_eq(tierce__registry_remove_group(registry, name, why), 0);
            ck_assert_int_eq(tierce__registry_remove_storage(registry, name, why), 0);
        }
    }
    atomic_store(&is_over, true);
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

CHECK_MAIN("registry", .seconds = 120, .at_once = true, .setup = set_up, .teardown = tear_down,
           .tests = {test_storages,
                     test_numbers_are_never_given_again,
                     test_values_that_are_refused,
                     test_groups,
                     test_instances,
                     test_kinds_of_attention,
                     test_spec_groups_in_any_order,
                     test_sizes_of_specs,
                     test_its_size_is_bounded,
                     test_an_instance_is_bounded,
                     test_accounts,
                     test_all_of_it_comes_back,
                     test_not_loaded,
                     test_another_registry_has_another_number,
                     test_memory_keeps_what_it_dropped,
                     test_foreign_and_damaged_files_are_refused,
                     test_uris_that_are_refused,
                     test_an_older_leader_is_refused,
                     test_a_writer_that_hangs,
                     test_without_a_lease_there_is_one_only,
                     test_torture_allocations,
                     test_torture_files,
                     test_power_cut,
                     test_readers_see_whole_catalogs})
