/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "optimizer/analysis/profiles.h"

#include <stdio.h>
#include <string.h>

/* Names, keys and marks of models, GPUs and tiers. */

static struct tierce__profiles profiles;
static char why[TIERCE__PROFILE_WHY_BYTES];

START_TEST(a_name_is_found_in_any_case)
{
    struct tierce__model_profile model;
    ck_assert_int_eq(tierce__model_read(&model, &profiles, "Llama-3.1-8B", why), 0);
    ck_assert_str_eq(model.name, "llama-3.1-8b");
    ck_assert_double_eq(model.bytes.value, 2 * 32 * 8 * 128 * 2); /* K and V, 32 layers, 8 heads */
    ck_assert_int_eq(model.bytes.mark, TIERCE__MARK_CONFIG);
    ck_assert_str_eq(model.source, "meta-llama/Llama-3.1-8B");
}
END_TEST

START_TEST(every_profile_is_whole)
{
    struct tierce__model_profile model;
    struct tierce__gpu gpu;
    struct tierce__storage_profile storage;
    for (size_t i = 0; i < profiles.counts[TIERCE__PROFILE_MODEL]; i++)
        ck_assert_int_eq(tierce__model_read(&model, &profiles, profiles.models[i].name, why), 0);
    for (size_t i = 0; i < profiles.counts[TIERCE__PROFILE_GPU]; i++)
        ck_assert_int_eq(tierce__gpu_read(&gpu, &profiles, profiles.gpus[i].name, why), 0);
    for (size_t i = 0; i < profiles.counts[TIERCE__PROFILE_STORAGE]; i++) {
        ck_assert_int_eq(tierce__storage_read(&storage, &profiles, profiles.storages[i].name, why),
                         0);
        ck_assert_int_eq(storage.price.mark, TIERCE__MARK_PLACEHOLDER);
    }
}
END_TEST

START_TEST(a_name_may_be_changed_and_the_change_is_marked)
{
    struct tierce__gpu gpu;
    ck_assert_int_eq(tierce__gpu_read(&gpu, &profiles, "h100,price=2.1,count=8", why), 0);
    ck_assert_double_eq(gpu.price.value, 2.1);
    ck_assert_int_eq(gpu.price.mark, TIERCE__MARK_GIVEN);
    ck_assert_double_eq(gpu.count.value, 8);
    ck_assert_double_eq(gpu.flops.value, 989e12);
    ck_assert_int_eq(gpu.flops.mark, TIERCE__MARK_DATA_SHEET);
    ck_assert_int_eq(gpu.mfu.mark, TIERCE__MARK_PLACEHOLDER);
}
END_TEST

START_TEST(a_profile_may_be_all_given)
{
    struct tierce__model_profile model;
    ck_assert_int_eq(tierce__model_read(&model, &profiles, "bytes=128KiB,params=8e9", why), 0);
    ck_assert_double_eq(model.bytes.value, 131072);
    ck_assert_int_eq(model.bytes.mark, TIERCE__MARK_GIVEN);
    ck_assert_double_eq(model.weight_bytes.value, 2);
    ck_assert_int_eq(model.weight_bytes.mark, TIERCE__MARK_PLACEHOLDER);
    ck_assert_ptr_null(model.source);
}
END_TEST

static void refuse(const char *text, const char *said)
{
    struct tierce__gpu gpu = {.name = "untouched"};
    ck_assert_int_eq(tierce__gpu_read(&gpu, &profiles, text, why), TIERCE_E_ARGUMENT);
    ck_assert_str_eq(gpu.name, "untouched");
    ck_assert_msg(strstr(why, said) != NULL, "%s: %s", text, why);
}

START_TEST(what_is_wrong_is_told)
{
    refuse("h10", "(\"h100\"?)");
    refuse("", "there is no GPU \"\"");
    refuse("h100,prize=2", "(\"price\"?)");
    refuse("h100,price=", "not \"\"");
    refuse("h100,price=-1", "from 0 to");
    refuse("h100,price=nan", "not \"nan\"");
    refuse("h100,mfu=1.5", "to 1;");
    refuse("h100,count=0", "from 1 to");
    refuse("flops=1e15", "requires price=");
    refuse("price=1", "requires flops=");
    refuse("h100,a100", "there is no GPU \"a100\"");
}
END_TEST

START_TEST(a_book_learns)
{
    struct tierce__storage_profile storage;
    enum tierce__profile_kind kind = TIERCE__PROFILE_STORAGE;
    ck_assert_int_eq(tierce__profiles_set(&profiles, kind, "DRAM", "bandwidth", "40GB",
                                          TIERCE__MARK_MEASURED, why),
                     0);
    ck_assert_int_eq(tierce__storage_read(&storage, &profiles, "dram", why), 0);
    ck_assert_double_eq(storage.bandwidth.value, 40e9);
    ck_assert_int_eq(storage.bandwidth.mark, TIERCE__MARK_MEASURED);

    ck_assert_int_eq(
        tierce__profiles_set(&profiles, kind, "tape", "price", "0.01", TIERCE__MARK_GIVEN, why), 0);
    ck_assert_int_eq(tierce__storage_read(&storage, &profiles, "tape", why), TIERCE_E_ARGUMENT);
    ck_assert_msg(strstr(why, "\"tape\" requires bandwidth=") != NULL, "%s", why);
    ck_assert_int_eq(tierce__storage_read(&storage, &profiles, "tape,bandwidth=1GB", why), 0);
    ck_assert_double_eq(storage.price.value, 0.01);
}
END_TEST

START_TEST(a_book_is_bounded)
{
    enum tierce__profile_kind kind = TIERCE__PROFILE_GPU;
    char name[100] = "x,y";
    ck_assert_int_lt(
        tierce__profiles_set(&profiles, kind, name, "price", "1", TIERCE__MARK_GIVEN, why), 0);
    memset(name, 'x', sizeof(name) - 1);
    ck_assert_int_lt(
        tierce__profiles_set(&profiles, kind, name, "price", "1", TIERCE__MARK_GIVEN, why), 0);
    size_t had = profiles.counts[kind];
    for (size_t i = had; i <= TIERCE__PROFILES_MAX; i++) {
        snprintf(name, sizeof(name), "gpu%zu", i);
        int rc = tierce__profiles_set(&profiles, kind, name, "price", "1", TIERCE__MARK_GIVEN, why);
        ck_assert_int_eq(rc, i < TIERCE__PROFILES_MAX ? 0 : TIERCE_E_ARGUMENT);
    }
    /* A name that is there already is changed still; one that fails leaves nothing behind. */
    ck_assert_int_eq(
        tierce__profiles_set(&profiles, kind, "H100", "price", "1", TIERCE__MARK_GIVEN, why), 0);
}
END_TEST

static void start(void)
{
    tierce__profiles_init(&profiles);
}

CHECK_MAIN("profiles", .setup = start,
           .tests = {a_name_is_found_in_any_case, every_profile_is_whole,
                     a_name_may_be_changed_and_the_change_is_marked, a_profile_may_be_all_given,
                     what_is_wrong_is_told, a_book_learns, a_book_is_bounded})
