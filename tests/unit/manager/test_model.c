/* SPDX-License-Identifier: Apache-2.0 */
/* The model: KVCM's JSON both ways, copies, comparison, URIs. */
#include "base/alloc.h"
#include "base/arena.h"
#include "base/json/json_write.h"
#include "check_main.h"
#include "manager/api/account.h"
#include "manager/locate/location_json.h"
#include "manager/storage/places.h"

#include <errno.h>
#include <string.h>

static char why[256];

static struct tierce__storage storage_from(const char *text)
{
    struct tierce__storage storage = {0};
    int rc = tierce__storage_from_json(&storage, text, strlen(text), why);
    ck_assert_msg(rc == 0, "%s", why);
    return storage;
}

static int storage_error(const char *text)
{
    struct tierce__storage storage = {.name = (char *)"untouched"};
    why[0] = '\0';
    int rc = tierce__storage_from_json(&storage, text, strlen(text), why);
    ck_assert_int_ne(rc, 0);
    ck_assert_str_eq(storage.name, "untouched");
    return rc;
}

#define NFS                                                                                        \
    "{\"type\":\"file\",\"is_available\":true,\"global_unique_name\":\"nfs_01\",\"storage_spec\":" \
    "{\"root_path\":\"/tmp/nfs/\",\"key_count_per_file\":8}}"

START_TEST(test_storage_as_kvcm_writes_it)
{
    static const char *const texts[] = {
        NFS,
        "{\"type\":\"hf3fs\",\"is_available\":false,\"global_unique_name\":\"a\",\"storage_spec\":{"
        "\"cluster_name\":\"c\",\"mountpoint\":\"/m\",\"root_dir\":\"d\",\"key_count_per_file\":"
        "4}}",
        "{\"type\":\"mooncake\",\"is_available\":true,\"global_unique_name\":\"b\",\"storage_"
        "spec\":{\"local_hostname\":\"h\",\"metadata_connstring\":\"s\",\"protocol\":\"rdma\","
        "\"rdma_device\":\"mlx\",\"master_server_entry\":\"e\"}}",
        "{\"type\":\"pace\",\"is_available\":true,\"global_unique_name\":\"p\",\"storage_spec\":{"
        "\"enable_vipserver\":true,\"domain\":\"d\",\"timeout\":7}}",
        "{\"type\":\"vcns_hf3fs\",\"is_available\":true,\"global_unique_name\":\"v\",\"storage_"
        "spec\":{\"cluster_name\":\"c\",\"mountpoint\":\"/m\",\"root_dir\":\"d\",\"key_count_per_"
        "file\":4,\"remote_host\":\"r\",\"remote_port\":9,\"meta_storage_uri\":\"u\"}}",
        "{\"type\":\"redis\",\"is_available\":true,\"global_unique_name\":\"r\",\"capacity\":5,"
        "\"storage_spec\":{\"uri\":\"redis://h\"}}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct tierce__storage storage = storage_from(texts[i]), copy = {0};
        char *text = NULL;
        ck_assert_int_eq(tierce__storage_copy(&copy, &storage), 0);
        ck_assert_int_eq(tierce__storage_to_json(&text, &copy, TIERCE__JSON_SHOWN), 0);
        ck_assert_str_eq(text, texts[i]);
        tierce__free(text);
        tierce__storage_clear(&storage);
        tierce__storage_clear(&copy);
    }
}
END_TEST

START_TEST(test_storage_defaults_and_unknown_keys)
{
    struct tierce__storage storage =
        storage_from("{\"type\":\"file\",\"new\":[1],\"storage_spec\":{\"mountpoint\":\"/no\"}}");
    ck_assert(storage.is_enabled);
    ck_assert_int_eq(storage.key_count_per_file, 1);
    ck_assert_str_eq(storage.name, "");
    ck_assert_str_eq(storage.mountpoint, ""); /* not of this type */
    tierce__storage_clear(&storage);
}
END_TEST

START_TEST(test_wrong_types_name_their_field)
{
    ck_assert_int_eq(storage_error("{}"), TIERCE_E_FORMAT);
    ck_assert_int_eq(storage_error("{\"type\":\"nothing\"}"), TIERCE_E_FORMAT);
    ck_assert(strstr(why, "type") != NULL);
    storage_error("{\"type\":\"file\",\"storage_spec\":{\"key_count_per_file\":\"8\"}}");
    ck_assert_str_eq(why, "storage_spec.key_count_per_file is not an integer");
    storage_error("{\"type\":\"file\",\"storage_spec\":{\"key_count_per_file\":2147483648}}");
    ck_assert_str_eq(
        why,
        "storage_spec.key_count_per_file is out of range; accepted are -2147483648 to 2147483647");
    storage_error("{\"type\":\"file\",\"storage_spec\":[]}");
    ck_assert_str_eq(why, "storage_spec is not an object");
    storage_error("{\"type\":\"file\",\"is_available\":1}");
    ck_assert_str_eq(why, "is_available is not true or false");
    storage_error("{\"type\":\"file\",\"global_unique_name\":\"a\\u0000b\"}");
    ck_assert_str_eq(why, "global_unique_name holds a NUL byte; strings must not");
    storage_error("{\"type\":\"file\",\"number\":65536}");
    ck_assert_str_eq(why, "number is out of range; accepted are 1 to 65535");
}
END_TEST

START_TEST(test_texts_that_are_no_json)
{
    static const char *const texts[] = {"",          "{", "[]", "7", "{}x", "{\"a\":\"\xff\"}",
                                        "{\"a\":1,}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct tierce__json_doc doc = {0};
        struct tierce__account account;
        ck_assert_int_eq(tierce__model_parse_json(&doc, texts[i], strlen(texts[i]), why),
                         TIERCE_E_FORMAT);
        ck_assert_ptr_null(doc.copy);
        ck_assert_int_eq(tierce__account_from_json(&account, texts[i], strlen(texts[i]), why),
                         TIERCE_E_FORMAT);
    }
    struct tierce__json_doc none = {0};
    tierce__alloc_fail_nth(1);
    ck_assert_int_eq(tierce__model_parse_json(&none, "{}", 2, why), -ENOMEM);
    tierce__alloc_fail_nth(0);
    ck_assert_str_eq(why, tierce_strerror(-ENOMEM));
    /* A depth that a parser would die of. */
    char deep[4096];
    memset(deep, '[', sizeof(deep));
    struct tierce__json_doc doc = {0};
    ck_assert_int_eq(tierce__model_parse_json(&doc, deep, sizeof(deep) - 1, why), TIERCE_E_FORMAT);
    struct tierce__account account;
    memcpy(deep, "{\"a\":", 5);
    ck_assert_int_eq(tierce__account_from_json(&account, deep, sizeof(deep) - 1, why),
                     TIERCE_E_FORMAT);
}
END_TEST

#define GROUP                                                                                      \
    "{\"name\":\"default\",\"storage_candidates\":[\"nfs_01\",\"b\"],\"global_quota_group_name\":" \
    "\"q\",\"max_instance_count\":100,\"quota\":{\"capacity\":30000000000,\"quota_config\":[{"     \
    "\"storage_type\":\"file\",\"storage_type\":4,\"capacity\":10},{\"storage_type\":\"pace\","    \
    "\"capacity\":20}]},\"cache_config\":{\"reclaim_strategy\":{\"storage_unique_name\":\"nfs\","  \
    "\"reclaim_policy\":1,\"trigger_strategy\":{\"used_size\":0,\"used_percentage\":0.8},"         \
    "\"trigger_period_seconds\":60,\"reclaim_step_size\":1,\"reclaim_step_percentage\":10,"        \
    "\"delay_before_delete_ms\":1000},\"cache_prefer_strategy\":2,\"meta_indexer_config\":{"       \
    "\"max_key_count\":1000000,\"mutex_shard_num\":16,\"batch_key_size\":16,\"meta_storage_"       \
    "backend_config\":{\"storage_type\":\"local\",\"storage_uri\":\"\"},\"meta_cache_policy_"      \
    "config\":{\"type\":\"LRU\",\"capacity\":10000,\"cache_shard_bits\":0,\"high_pri_pool_ratio\"" \
    ":0.0},\"persist_metadata_interval_time_ms\":500}},\"user_data\":\"u\",\"version\":3}"

/* The bytes that stored catalogs have. */
#define GROUP_WRITTEN                                                                              \
    "{\"name\":\"default\",\"global_quota_group_name\":\"q\",\"max_instance_count\":100,"          \
    "\"quota\":{"                                                                                  \
    "\"capacity\":30000000000,\"quota_config\":[{\"storage_type\":\"file\",\"capacity\":10},{"     \
    "\"storage_type\":\"pace\",\"capacity\":20}]},\"cache_config\":{\"reclaim_strategy\":{"        \
    "\"storage_unique_name\":\"nfs\",\"reclaim_policy\":1,\"trigger_strategy\":{\"used_size\":0,"  \
    "\"used_percentage\":0.8},\"trigger_period_seconds\":60,\"reclaim_step_size\":1,\"reclaim_"    \
    "step_"                                                                                        \
    "percentage\":10,\"delay_before_delete_ms\":1000},\"cache_prefer_strategy\":2,\"meta_indexer_" \
    "config\":{\"max_key_count\":1000000,\"mutex_shard_num\":16,\"batch_key_size\":16,\"meta_"     \
    "storage_backend_config\":{\"storage_type\":\"local\",\"storage_uri\":\"\"},\"meta_cache_"     \
    "policy"                                                                                       \
    "_config\":{\"type\":\"LRU\",\"capacity\":10000,\"cache_shard_bits\":0,\"high_pri_pool_"       \
    "ratio\":"                                                                                     \
    "0.0},\"persist_metadata_interval_time_ms\":500}},\"user_data\":\"u\",\"version\":3,"          \
    "\"storage_candidates\":[\"nfs_01\",\"b\"]}"

START_TEST(test_group_both_ways)
{
    struct tierce__group group, copy, back;
    char *one = NULL, *two = NULL;
    ck_assert_msg(tierce__group_from_json(&group, GROUP, strlen(GROUP), why) == 0, "%s", why);
    ck_assert_uint_eq(group.type_quota_count, 2); /* the type stands there twice: text and number */
    ck_assert_int_eq(group.type_quotas[0].type, TIERCE__STORAGE_NFS);
    ck_assert_int_eq(group.type_quotas[1].type, TIERCE__STORAGE_TAIRMEMPOOL);
    ck_assert_int_eq(group.type_quotas[1].capacity_bytes, 20);
    ck_assert(group.trigger_used_share == 0.8);
    ck_assert_int_eq(group.persist_interval_ms, 500);
    ck_assert_int_eq(tierce__group_copy(&copy, &group), 0);
    tierce__group_clear(&group);
    ck_assert_int_eq(tierce__group_to_json(&one, &copy, TIERCE__JSON_SHOWN), 0);
    ck_assert_int_eq(tierce__group_from_json(&back, one, strlen(one), why), 0);
    ck_assert_int_eq(tierce__group_to_json(&two, &back, TIERCE__JSON_SHOWN), 0);
    ck_assert_str_eq(one, GROUP_WRITTEN);
    ck_assert_str_eq(one, two);
    ck_assert_ptr_nonnull(strstr(one, "\"used_percentage\":0.8}"));
    ck_assert_ptr_null(strstr(one, "ttl_seconds"));
    tierce__free(one);
    tierce__free(two);
    tierce__group_clear(&copy);
    tierce__group_clear(&back);
}
END_TEST

START_TEST(test_group_defaults)
{
    static const char text[] = "{\"name\":\"g\"}";
    struct tierce__group group;
    ck_assert_int_eq(tierce__group_from_json(&group, text, strlen(text), why), 0);
    ck_assert_int_eq(group.max_key_count, INT64_MAX);
    ck_assert_int_eq(group.mutex_shard_count, 16);
    ck_assert_int_eq(group.batch_key_count, 16);
    ck_assert_int_eq(group.search_cache_mib, 1024);
    ck_assert_int_eq(group.search_cache_shard_bits, 6);
    ck_assert_int_eq(group.persist_interval_ms, 1000);
    tierce__group_clear(&group);
}
END_TEST

#define INSTANCE(groups, extra)                                                                    \
    "{\"quota_group_name\":\"q\",\"instance_group_name\":\"default\",\"instance_id\":\"i\","       \
    "\"block_size\":64,\"location_spec_infos\":[{\"name\":\"tp0\",\"size\":1024},{\"name\":"       \
    "\"tp1\",\"size\":2048}],\"model_deployment\":{\"model_name\":\"m\",\"dtype\":\"fp8\","        \
    "\"use_mla\":true,\"tp_size\":2,\"dp_size\":1,\"lora_name\":\"\",\"pp_size\":1,\"extra\":"     \
    "\"" extra "\",\"user_data\":\"u\"},\"location_spec_groups\":[" groups "]}"
#define F0        "{\"name\":\"f0\",\"spec_names\":[\"tp0\",\"tp1\"]}"
#define F0_TURNED "{\"name\":\"f0\",\"spec_names\":[\"tp1\",\"tp0\"]}"
#define F1        "{\"name\":\"f1\",\"spec_names\":[\"tp1\"]}"

static struct tierce__instance instance_from(const char *text)
{
    struct tierce__instance instance;
    ck_assert_msg(tierce__instance_from_json(&instance, text, strlen(text), why) == 0, "%s", why);
    return instance;
}

START_TEST(test_instance_both_ways)
{
    struct tierce__instance instance = instance_from(INSTANCE(F0 "," F1, "")), copy;
    static const char written[] = INSTANCE(F0 "," F1, "");
    char *text = NULL;
    ck_assert_int_eq(tierce__instance_copy(&copy, &instance), 0);
    tierce__instance_clear(&instance);
    copy.number = 9;
    ck_assert_int_eq(tierce__instance_to_json(&text, &copy, TIERCE__JSON_STORED), 0);
    ck_assert(strncmp(text, written, sizeof(written) - 2) == 0);
    ck_assert_str_eq(text + sizeof(written) - 2, ",\"number\":9}");
    instance = instance_from(text);
    ck_assert_uint_eq(instance.number, 9);
    ck_assert(tierce__instance_is_same(&instance, &copy, why));
    ck_assert_str_eq(instance.model.user_data, "u");
    tierce__free(text);
    tierce__instance_clear(&instance);
    tierce__instance_clear(&copy);
}
END_TEST

START_TEST(test_instance_is_same)
{
    static const struct {
        const char *text, *differs;
    } others[] = {
        {INSTANCE(F1 "," F0_TURNED, ""), NULL},
        {INSTANCE(F0, ""), "location_spec_groups"},
        {INSTANCE(F0 ",{\"name\":\"f1\",\"spec_names\":[\"tp0\"]}", ""), "location_spec_groups"},
        {INSTANCE(F0 "," F1, "x"), "model_deployment.extra"},
    };
    struct tierce__instance a = instance_from(INSTANCE(F0 "," F1, ""));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct tierce__instance b = instance_from(others[i].text);
        bool is_same = tierce__instance_is_same(&a, &b, why);
        ck_assert_int_eq(is_same, others[i].differs == NULL);
        if (!is_same)
            ck_assert_str_eq(why, others[i].differs);
        tierce__instance_clear(&b);
    }
    struct tierce__instance b;
    ck_assert_int_eq(tierce__instance_copy(&b, &a), 0);
    b.block_size++;
    ck_assert(!tierce__instance_is_same(&a, &b, why));
    ck_assert_str_eq(why, "block_size");
    b.block_size--;
    b.specs[1].size++;
    ck_assert(!tierce__instance_is_same(&a, &b, why));
    ck_assert_str_eq(why, "location_spec_infos");
    b.specs[1].size--;
    b.model.use_mla = false;
    ck_assert(!tierce__instance_is_same(&a, &b, why));
    ck_assert_str_eq(why, "model_deployment.use_mla");
    tierce__instance_clear(&a);
    tierce__instance_clear(&b);
}
END_TEST

/* A client that does not know the kind of attention shares the instance of one that does. */
START_TEST(test_attention_is_compared_if_known)
{
    struct tierce__instance a = instance_from(INSTANCE(F0, "")), b;
    ck_assert_int_eq(tierce__instance_copy(&b, &a), 0);
    static char window[] = "window", full[] = "full", family[] = "f", other[] = "g";
    struct tierce__attention none = b.attention;
    b.attention = (struct tierce__attention){window, 128, 0, family, other};
    ck_assert(tierce__instance_is_same(&a, &b, why) && tierce__instance_is_same(&b, &a, why));
    struct tierce__instance c = b;
    c.attention.layers = family;
    ck_assert(!tierce__instance_is_same(&b, &c, why));
    ck_assert_str_eq(why, "attention_layers");
    c.attention.family = other;
    ck_assert(!tierce__instance_is_same(&b, &c, why));
    ck_assert_str_eq(why, "attention_family");
    c.attention.window_tokens++;
    ck_assert(!tierce__instance_is_same(&b, &c, why));
    ck_assert_str_eq(why, "window_tokens");
    c.attention = (struct tierce__attention){full, 0, 0, family, other};
    ck_assert(!tierce__instance_is_same(&b, &c, why));
    ck_assert_str_eq(why, "attention_kind");
    b.attention = none;
    tierce__instance_clear(&a);
    tierce__instance_clear(&b);
}
END_TEST

START_TEST(test_copies_of_borrowed_texts)
{
    struct tierce__instance in = {.id = (char *)"i"}, out;
    ck_assert_int_eq(tierce__instance_copy(&out, &in), 0);
    ck_assert_str_eq(out.id, "i");
    ck_assert_str_eq(out.group_name, "");
    ck_assert_str_eq(out.model.dtype, "");
    tierce__instance_clear(&out);
}
END_TEST

/* Each allocation of reading, copying and clearing fails once. */
START_TEST(test_torture_allocations)
{
    const char *texts[] = {NFS, GROUP, INSTANCE(F0 "," F1, "e")};
    uint64_t live = tierce__alloc_live();
    for (int kind = 0; kind < 3; kind++) {
        const char *text = texts[kind];
        size_t bytes = strlen(text);
        int rc = -ENOMEM;
        for (uint64_t nth = 1; rc != 0; nth++) {
            struct tierce__storage storage = {0}, storage_copy = {0};
            struct tierce__group group = {0}, group_copy = {0};
            struct tierce__instance instance = {0}, instance_copy = {0};
            ck_assert_uint_lt(nth, 1000);
            tierce__alloc_fail_nth(nth);
            rc = kind == 0   ? tierce__storage_from_json(&storage, text, bytes, why)
                 : kind == 1 ? tierce__group_from_json(&group, text, bytes, why)
                             : tierce__instance_from_json(&instance, text, bytes, why);
            if (rc == 0)
                rc = kind == 0   ? tierce__storage_copy(&storage_copy, &storage)
                     : kind == 1 ? tierce__group_copy(&group_copy, &group)
                                 : tierce__instance_copy(&instance_copy, &instance);
            tierce__alloc_fail_nth(0);
            ck_assert(rc == 0 || rc == -ENOMEM);
            tierce__storage_clear(&storage);
            tierce__storage_clear(&storage_copy);
            tierce__group_clear(&group);
            tierce__group_clear(&group_copy);
            tierce__instance_clear(&instance);
            tierce__instance_clear(&instance_copy);
            ck_assert_uint_eq(tierce__alloc_live(), live);
        }
    }
}
END_TEST

START_TEST(test_passwords)
{
    char *hash = NULL, *other = NULL;
    ck_assert_int_eq(tierce__password_hash(&hash, "secret"), 0);
    ck_assert_int_eq(tierce__password_hash(&other, "secret"), 0);
    ck_assert_str_ne(hash, other); /* salted */
    ck_assert_ptr_null(strstr(hash, "secret"));
    ck_assert(tierce__password_is(hash, "secret"));
    ck_assert(tierce__password_is(other, "secret"));
    ck_assert(!tierce__password_is(hash, "secre"));
    ck_assert(!tierce__password_is(hash, ""));
    ck_assert(!tierce__password_is(NULL, ""));
    ck_assert(!tierce__password_is("", ""));
    ck_assert(!tierce__password_is("scrypt$14$8$1$00$00", "secret"));
    hash[strlen(hash) - 1] ^= 1;
    ck_assert(!tierce__password_is(hash, "secret"));
    /* One that would take for ever, or all memory. */
    memcpy(other, "scrypt$63", 9);
    ck_assert(!tierce__password_is(other, "secret"));
    tierce__free(hash);
    tierce__free(other);
}
END_TEST

START_TEST(test_account_of_kvcm_gets_a_hash)
{
    static const char kvcm[] = "{\"user_name\":\"u\",\"password\":\"plain\",\"role\":1}";
    struct tierce__account account;
    char *text = NULL;
    ck_assert_int_eq(tierce__account_from_json(&account, kvcm, strlen(kvcm), why), 0);
    ck_assert_int_eq(account.role, TIERCE__ROLE_ADMIN);
    ck_assert(tierce__password_is(account.password_hash, "plain"));
    ck_assert_int_eq(tierce__account_to_json(&text, &account, TIERCE__JSON_STORED), 0);
    ck_assert_ptr_null(strstr(text, "plain"));
    tierce__free(text);
    tierce__account_clear(&account);
}
END_TEST

/* ---- URIs ------------------------------------------------------------------------------------ */

static const char *uri_of(const char *storage_text, char *instance_id, uint32_t slot,
                          struct tierce__arena *arena)
{
    struct tierce__storage storage = storage_from(storage_text);
    struct tierce__spec_info specs[] = {{(char *)"tp0", 100}};
    struct tierce__instance instance = {.id = instance_id, .specs = specs, .spec_count = 1};
    /* Of 8 slots where the storage has several a file, or had when it was taken. */
    uint64_t file = storage.key_count_per_file > 1 || slot > 0 ? 0x2a0007 : 0x2a0000;
    struct tierce__spec_place place = {.file = file, .slot = slot, .bytes = 100};
    const char *uri = tierce__place_uri(&storage, &instance, &place, arena);
    tierce__storage_clear(&storage);
    return uri;
}

START_TEST(test_uris)
{
    struct tierce__arena arena = {0};
    ck_assert_str_eq(uri_of(NFS, "inst", 3, &arena),
                     "file://nfs_01/tmp/nfs/inst/tp0/00000000002a0007?blkid=3&size=100");
    ck_assert_str_eq(uri_of("{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":{"
                            "\"root_path\":\"/r\"}}",
                            "inst", 0, &arena),
                     "file://n/r/inst/tp0/00000000002a0000?size=100");
    /* A slot that was taken while its storage had several a file. */
    ck_assert_str_eq(uri_of("{\"type\":\"file\",\"global_unique_name\":\"n\",\"storage_spec\":{"
                            "\"root_path\":\"/r\"}}",
                            "inst", 1, &arena),
                     "file://n/r/inst/tp0/00000000002a0007?blkid=1&size=100");
    ck_assert_str_eq(uri_of("{\"type\":\"hf3fs\",\"global_unique_name\":\"n\",\"storage_spec\":{"
                            "\"mountpoint\":\"/m/\",\"root_dir\":\"/d\",\"key_count_per_file\":8}}",
                            "a/../b?c", 0, &arena),
                     "hf3fs://n/m/d/a~2f..~2fb~3fc/tp0/00000000002a0007?blkid=0&size=100");
    ck_assert_str_eq(
        uri_of("{\"type\":\"mooncake\",\"global_unique_name\":\"n\"}", "..", 0, &arena),
        "mooncake://n/?key=~2e~2e/tp0/00000000002a0000&size=100");
    ck_assert_str_eq(uri_of("{\"type\":\"redis\",\"global_unique_name\":\"n\"}", "i", 0, &arena),
                     "redis://n/i/tp0/00000000002a0000?size=100");
    ck_assert_str_eq(uri_of("{\"type\":\"pace\",\"global_unique_name\":\"n\"}", "i", 0, &arena),
                     "pace://n/i/tp0/00000000002a0000?size=100");
    tierce__arena_clear(&arena);
}
END_TEST

START_TEST(test_paths)
{
    struct tierce__arena arena = {0};
    struct tierce__storage storage = storage_from(NFS);
    struct tierce__spec_info specs[] = {{(char *)"tp0", 100}};
    struct tierce__instance instance = {.id = (char *)"i", .specs = specs, .spec_count = 1};
    struct tierce__spec_place place = {.file = 1, .bytes = 100};
    ck_assert_str_eq(tierce__place_path(&storage, &instance, &place, &arena),
                     "/tmp/nfs/i/tp0/0000000000000001");
    place.uri = "file://nfs_01/tmp/nfs/x/y_5a?blkid=0&size=100";
    ck_assert_str_eq(tierce__place_path(&storage, &instance, &place, &arena), "/tmp/nfs/x/y_5a");
    ck_assert_str_eq(tierce__place_uri(&storage, &instance, &place, &arena), place.uri);
    place.uri = "nonsense";
    ck_assert_str_eq(tierce__place_path(&storage, &instance, &place, &arena), "");
    place = (struct tierce__spec_place){.spec = 1, .file = 1};
    ck_assert_str_eq(tierce__place_path(&storage, &instance, &place, &arena), "");
    tierce__arena_clear(&arena);
    tierce__storage_clear(&storage);
}
END_TEST

START_TEST(test_parts_of_uris)
{
    size_t n = 0;
    ck_assert_ptr_null(tierce__uri_storage("file:/x", &n));
    ck_assert_ptr_null(tierce__uri_storage("file:///x", &n));
    const char *name = tierce__uri_storage("file://nfs_01/tmp?size=1", &n);
    ck_assert_uint_eq(n, 6);
    ck_assert(strncmp(name, "nfs_01", 6) == 0);
    ck_assert_uint_eq(tierce__uri_size("a://b/c?blkid=7&size=123"), 123);
    ck_assert_uint_eq(tierce__uri_size("a://b/c?size=5&x=1"), 5);
    ck_assert_uint_eq(tierce__uri_size("a://b/size=5"), 0);
    ck_assert_uint_eq(tierce__uri_size("a://b/c?mysize=5"), 0);
    ck_assert_uint_eq(tierce__uri_size("a://b/c?size=-5"), 0);
    ck_assert_uint_eq(tierce__uri_size("a://b/c?size=99999999999999999999"), 0);
}
END_TEST

START_TEST(test_locations)
{
    static const char text[] =
        "{\"id\":\"abcd1234\",\"status\":3,\"type\":4,\"spec_size\":2,\"location_specs\":["
        "{\"name\":\"tp1\",\"uri\":\"file://n/a?size=7\"},"
        "{\"name\":\"tp0\",\"uri\":\"file://n/b?size=8\"}]}";
    struct tierce__instance instance = instance_from(INSTANCE(F0, ""));
    struct tierce__arena arena = {0};
    struct tierce__location location;
    enum tierce__location_status status;
    struct tierce__line line = {0};
    struct tierce__json_write back = {.line = &line};
    struct tierce__json_doc doc = {0};
    ck_assert_int_eq(tierce__json_parse(&doc, text, strlen(text), NULL), 0);
    ck_assert_int_eq(
        tierce__location_from_json(&location, &status, doc.value, &instance, &arena, why), 0);
    tierce__json_doc_clear(&doc);
    ck_assert_int_eq(status, TIERCE__LOCATION_SERVING);
    ck_assert_uint_eq(location.place_count, 2);
    ck_assert_uint_eq(location.places[0].spec, 1);
    ck_assert_uint_eq(location.places[1].bytes, 8);
    ck_assert_int_eq(
        tierce__location_to_json(&back, NULL, &location, status, &instance, NULL, &arena), 0);
    tierce__line_put_bytes(&line, "", 1);
    ck_assert_str_eq(line.text, text);
    tierce__line_clear(&line);
    static const char *const bad[] = {
        "{}",
        "{\"id\":\"short\"}",
        "{\"id\":\"abcd1234\",\"status\":9}",
        "{\"id\":\"abcd1234\",\"status\":3,\"type\":\"file\"}",
        "{\"id\":\"abcd1234\",\"status\":3,\"type\":4,\"location_specs\":{}}",
        "{\"id\":\"abcd1234\",\"status\":3,\"type\":4,\"location_specs\":[7]}",
        "{\"id\":\"abcd1234\",\"status\":3,\"type\":4,\"location_specs\":[{\"name\":\"tp0\"}]}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(tierce__json_parse(&doc, bad[i], strlen(bad[i]), NULL), 0);
        ck_assert_int_eq(
            tierce__location_from_json(&location, &status, doc.value, &instance, &arena, why),
            TIERCE_E_FORMAT);
        tierce__json_doc_clear(&doc);
    }
    tierce__arena_clear(&arena);
    tierce__instance_clear(&instance);
}
END_TEST

CHECK_MAIN("model", .seconds = 60,
           .tests = {test_storage_as_kvcm_writes_it, test_storage_defaults_and_unknown_keys,
                     test_wrong_types_name_their_field, test_texts_that_are_no_json,
                     test_group_both_ways, test_group_defaults, test_instance_both_ways,
                     test_instance_is_same, test_attention_is_compared_if_known,
                     test_copies_of_borrowed_texts, test_torture_allocations, test_passwords,
                     test_account_of_kvcm_gets_a_hash, test_uris, test_paths, test_parts_of_uris,
                     test_locations})
