/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "core/blend/rope.h"

#include <math.h>
#include <string.h>

/* The frequencies of each variant equal those of vLLM 0.32, whose classes wrote the golden numbers
 * in binary32; variants and parameters that cannot be rotated are rejected with their reason. */

static int init(struct tierce__rope *rope, char *why, uint32_t width, const char *parameters)
{
    return tierce__rope_init(rope, why, parameters, strlen(parameters),
                             &(struct tierce__rope_layout){.style = TIERCE__ROPE_NEOX,
                                                           .row_elements = width,
                                                           .width = width});
}

static const struct {
    uint32_t width, pairs;
    const char *parameters;
    double frequencies[6]; /* of the pairs 0, 1, a quarter, a half, three quarters, the last one */
} golden[] = {
    {64,
     32,
     "{\"rope_type\": \"default\", \"rope_theta\": 100000.0}",
     {1, 0.697830558, 0.0562341288, 0.00316227786, 0.00017782794, 1.43301268e-05}},
    {80,
     16,
     "{\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.4}",
     {1, 0.562341332, 0.100000001, 0.00999999978, 0.00100000005, 0.00017782794}},
    {128,
     64,
     "{\"rope_type\": \"linear\", \"rope_theta\": 10000.0, \"factor\": 4.0}",
     {0.25, 0.216491088, 0.0250000004, 0.00249999994, 0.000250000012, 2.88695483e-05}},
    {64,
     32,
     "{\"rope_type\": \"ntk\", \"rope_theta\": 10000.0, \"factor\": 8.0}",
     {0.937083781, 0.658501625, 0.0557193346, 0.00331309158, 0.000196997586, 1.6669017e-05}},
    {64,
     32,
     "{\"rope_type\": \"ntk\", \"rope_theta\": 10000.0, \"factor\": 8.0, \"mixed_b\": 0.6}",
     {0.771105409, 0.505704045, 0.0378549173, 0.00241052173, 0.000166432234, 1.66690152e-05}},
    {128,
     64,
     "{\"rope_type\": \"dynamic\", \"rope_theta\": 10000.0, \"alpha\": 1000.0}",
     {1, 0.776034355, 0.0173019581, 0.000299357722, 5.17947501e-06, 1.15478201e-07}},
    {128,
     64,
     "{\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, \"factor\": 8.0, "
     "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192}",
     {1, 0.814617217, 0.0376060307, 0.000524846022, 6.64786967e-06, 3.06892588e-07}},
    {128,
     64,
     "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 4.0, "
     "\"original_max_position_embeddings\": 32768}",
     {1, 0.805842221, 0.0316227786, 0.000602941145, 7.90569356e-06, 3.10234441e-07}},
    {64,
     32,
     "{\"rope_type\": \"deepseek_yarn\", \"rope_theta\": 10000.0, \"factor\": 40.0, "
     "\"original_max_position_embeddings\": 4096, \"beta_fast\": 16, \"beta_slow\": 2, "
     "\"truncate\": false, \"mscale\": 1.0, \"mscale_all_dim\": 0.7}",
     {1, 0.749894202, 0.100000001, 0.00579010462, 2.49999994e-05, 3.33380353e-06}},
    {64, 32, "{}", {1, 0.749894202, 0.1, 0.01, 0.001, 0.000133352143}}, /* what engines assume */
};

START_TEST(test_golden)
{
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct tierce__rope rope;
        char why[TIERCE__ROPE_WHY_BYTES];
        int rc = init(&rope, why, golden[i].width, golden[i].parameters);
        ck_assert_msg(rc == 0 && why[0] == '\0', "%s: %s", golden[i].parameters, why);
        uint32_t n = golden[i].pairs, pairs[6] = {0, 1, n / 4, n / 2, 3 * n / 4, n - 1};
        ck_assert_uint_eq(rope.pairs, n);
        for (unsigned p = 0; p < 6; p++) {
            double is = rope.frequencies[pairs[p]], should = golden[i].frequencies[p];
            ck_assert_msg(fabs(is - should) <= 4e-6 * should, "%s: pair %u: %.9g, not %.9g",
                          golden[i].parameters, pairs[p], is, should);
        }
    }
}
END_TEST

START_TEST(test_older_names)
{
    struct tierce__rope rope, other;
    char why[TIERCE__ROPE_WHY_BYTES];
    ck_assert_int_eq(init(&rope, why, 64, "{\"type\": \"linear\", \"factor\": 2}"), 0);
    ck_assert_int_eq(init(&other, why, 64,
                          "{\"rope_type\": \"linear\", \"type\": \"linear\", \"factor\": 2.0, "
                          "\"rope_theta\": 1e4, \"alpha\": null}"),
                     0);
    ck_assert_mem_eq(rope.frequencies, other.frequencies, 32 * sizeof(double));
    ck_assert_int_eq(init(&rope, why, 64, "{\"rope_dim\": 32, \"rope_theta\": 10000}"), 0);
    ck_assert_uint_eq(rope.pairs, 16);
}
END_TEST

START_TEST(test_rejected)
{
    static const struct {
        int rc;
        const char *parameters, *why; /* a part of the reason */
    } cases[] = {
        {TIERCE_E_UNSUPPORTED, "{\"rope_type\": \"longrope\"}",
         "depend on the length of the prompt"},
        {TIERCE_E_UNSUPPORTED, "{\"rope_type\": \"dynamic\", \"factor\": 2.0}", "without alpha"},
        {TIERCE_E_UNSUPPORTED, "{\"rope_type\": \"mrope\"}", "three parts"},
        {TIERCE_E_UNSUPPORTED, "{\"rope_type\": \"proportional\"}", "cannot be rotated"},
        {TIERCE_E_UNSUPPORTED, "{\"rope_type\": \"other\"}", "\"other\"; supported are default"},
        {TIERCE_E_UNSUPPORTED, "{\"mrope_section\": [1, 2]}", "mrope_section is not supported"},
        {TIERCE_E_UNSUPPORTED, "{\"use_fope\": true}", "use_fope is not supported"},
        {TIERCE_E_UNSUPPORTED, "{\"rope_type\": \"default\", \"factor\": 2}", "factor is not"},
        {TIERCE_E_FORMAT, "{\"rope_type\": \"linear\"}", "requires factor"},
        {TIERCE_E_FORMAT, "{\"rope_type\": \"linear\", \"factor\": 0}", "factor is 0; it must be"},
        {TIERCE_E_FORMAT, "{\"rope_type\": \"linear\", \"factor\": NaN}", "factor is NaN"},
        {TIERCE_E_FORMAT, "{\"rope_type\": \"linear\", \"factor\": \"2\"}", "factor is \"2\""},
        {TIERCE_E_FORMAT, "{\"rope_type\": \"linear\", \"factor\": 1e-300}", "would turn by"},
        {TIERCE_E_FORMAT, "{\"rope_theta\": 1}", "rope_theta is 1; it must be a number above 1"},
        {TIERCE_E_FORMAT, "{\"rope_theta\": Infinity}", "rope_theta is Infinity"},
        {TIERCE_E_FORMAT, "{\"rope_type\": 7}", "must be a text"},
        {TIERCE_E_FORMAT, "{\"rope_type\": \"linear\", \"type\": \"ntk\"}", "they must be equal"},
        {TIERCE_E_FORMAT, "{\"rope_dim\": 33}", "33 of 64 elements"},
        {TIERCE_E_FORMAT, "{\"rope_dim\": 66}", "66 of 64 elements"},
        {TIERCE_E_FORMAT, "{\"partial_rotary_factor\": 0.01}", "0 of 64 elements"},
        {TIERCE_E_FORMAT, "{\"partial_rotary_factor\": 1.5}", "at most 1"},
        {TIERCE_E_FORMAT,
         "{\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 9, "
         "\"truncate\": 1}",
         "true or false"},
        {TIERCE_E_FORMAT, "[]", "JSON object"},
        {TIERCE_E_FORMAT, "{\"rope_theta\"", "not JSON"},
        {TIERCE_E_FORMAT, "", "not JSON"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tierce__rope rope, untouched;
        char why[TIERCE__ROPE_WHY_BYTES];
        memset(&rope, 0x5a, sizeof(rope));
        memcpy(&untouched, &rope, sizeof(rope));
        int rc = init(&rope, why, 64, cases[i].parameters);
        ck_assert_msg(rc == cases[i].rc && strstr(why, cases[i].why) != NULL, "%s: %d, %s",
                      cases[i].parameters, rc, why);
        ck_assert_mem_eq(&rope, &untouched, sizeof(rope));
    }
}
END_TEST

START_TEST(test_layouts)
{
    static const struct tierce__rope_layout invalid[] = {
        {TIERCE__ROPE_NEOX, 64, 0, 0},          {TIERCE__ROPE_NEOX, 64, 1, 64},
        {TIERCE__ROPE_NEOX, 64, 65, 1},         {TIERCE__ROPE_NEOX, 64, UINT32_MAX, 2},
        {TIERCE__ROPE_NEOX, 64, 2, UINT32_MAX}, {(enum tierce__rope_style)2, 64, 0, 64},
    };
    struct tierce__rope rope;
    char why[TIERCE__ROPE_WHY_BYTES];
    for (size_t i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++)
        ck_assert_int_eq(tierce__rope_init(&rope, why, "{}", 2, &invalid[i]), TIERCE_E_ARGUMENT);
    /* The latent KV of DeepSeek's models: 64 of 576 elements have a position. */
    ck_assert_int_eq(
        tierce__rope_init(&rope, why, "{}", 2,
                          &(struct tierce__rope_layout){TIERCE__ROPE_GPTJ, 576, 512, 64}),
        0);
    ck_assert_uint_eq(rope.pairs, 32);
    ck_assert_int_eq(
        tierce__rope_init(&rope, why, "{}", 2,
                          &(struct tierce__rope_layout){TIERCE__ROPE_NEOX, 1024, 0, 1024}),
        TIERCE_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(why, "from 2 to 512"));
}
END_TEST

static Suite *rope_suite(void)
{
    Suite *suite = suite_create("rope");
    TCase *tcase = tcase_create("rope");
    tcase_add_test(tcase, test_golden);
    tcase_add_test(tcase, test_older_names);
    tcase_add_test(tcase, test_rejected);
    tcase_add_test(tcase, test_layouts);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main(rope_suite());
}
