/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/bytes.h"
#include "check_main.h"
#include "test_random.h"

#include "core/key/namespace.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tierce/key.h>

static const uint32_t cells[10] = {131072, 131072, 131072, 131072, 131072,
                                   131072, 131072, 131072, 65536,  65536};

static struct tierce_namespace some_namespace(void)
{
    return (struct tierce_namespace){
        .size = sizeof(struct tierce_namespace),
        .weights = "0123abcd",
        .model = "{\"rope_theta\":10000}",
        .kv_dtype = "bfloat16",
        .layout = "vllm-0.32/cpu/avx512 \xc3\xa9",
        .layer_count = 10,
        .cell_bytes = cells,
        .block_tokens = 32,
        .chunk_blocks = 8,
        .algo = TIERCE_CHAIN_SHA256,
    };
}

static const char some_text[] = "tierce-namespace=1\n"
                                "weights=0123abcd\n"
                                "model={\"rope_theta\":10000}\n"
                                "kv_dtype=bfloat16\n"
                                "quantization=\n"
                                "layout=vllm-0.32/cpu/avx512 \xc3\xa9\n"
                                "layer_count=10\n"
                                "cell_bytes=131072x8,65536x2\n"
                                "block_tokens=32\n"
                                "chunk_blocks=8\n"
                                "algo=sha256\n";

START_TEST(the_text_is_canonical)
{
    struct tierce_namespace ns = some_namespace();
    char *text = NULL;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    ck_assert_str_eq(text, some_text);
    tierce_free(text);
    ns.quantization = "";
    ns.algo = TIERCE_CHAIN_VLLM_SHA256_CBOR;
    ns.layer_count = 1;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    ck_assert_ptr_nonnull(strstr(text, "\nalgo=vllm-sha256-cbor\n"));
    ck_assert_ptr_nonnull(strstr(text, "\ncell_bytes=131072x1\n"));
    tierce_free(text);
    tierce_free(NULL);
}
END_TEST

static const uint32_t layers[10] = {0, 1, 2, 4, 7, 8, 9, 10, 30, 65535};

/* A group's text continues the text of the whole model. */
START_TEST(a_group_states_its_kind_window_and_layers)
{
    struct tierce_namespace ns = some_namespace();
    char *text = NULL;
    ns.group = TIERCE_GROUP_WINDOW;
    ns.window = 1024;
    ns.layers = layers;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    ck_assert_mem_eq(text, some_text, strlen(some_text));
    ck_assert_str_eq(text + strlen(some_text),
                     "group=window\nwindow=1024\nlayers=0-2,4,7-10,30,65535\n");
    tierce_free(text);
    ns.group = TIERCE_GROUP_FULL;
    ns.window = 0;
    ns.layer_count = 1;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    ck_assert_ptr_nonnull(strstr(text, "\ngroup=full\nlayers=0\n"));
    tierce_free(text);
    /* Of three ranks with shares of the same layers. */
    ns.layers = (const uint32_t[]){0, 1, 4, 0, 1, 4, 6, 6};
    ns.layer_count = 8;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    ck_assert_ptr_nonnull(strstr(text, "\ngroup=full\nlayers=0-1,4,0-1,4,6,6\n"));
    tierce_free(text);
}
END_TEST

/* A program that was built when the struct ended with `algo`; what follows is not its own. */
START_TEST(a_namespace_without_a_group_is_about_all_layers)
{
    struct tierce_namespace ns = some_namespace();
    char *text = NULL;
    ns.size = offsetof(struct tierce_namespace, window);
    ns.group = (enum tierce_group)77;
    ns.window = 3;
    ns.layers = layers;
    ck_assert_int_eq(tierce_namespace_text(&text, &ns), 0);
    ck_assert_str_eq(text, some_text);
    tierce_free(text);
}
END_TEST

START_TEST(the_digest_is_the_sum_of_the_text)
{
    uint8_t digest[32], expected[32];
    tierce_namespace_digest(digest, some_text);
    ck_assert_int_eq(EVP_Digest(some_text, strlen(some_text), expected, NULL, EVP_sha256(), NULL),
                     1);
    ck_assert_mem_eq(digest, expected, 32);
}
END_TEST

static void check_refused(const struct tierce_namespace *ns)
{
    char mark, *text = &mark;
    ck_assert_int_eq(tierce_namespace_text(&text, ns), TIERCE_E_ARGUMENT);
    ck_assert_ptr_eq(text, &mark);
}

START_TEST(every_field_is_checked)
{
    static const char *const bad_strings[] = {"a\nb",
                                              "\n",
                                              "\x01",
                                              "\t",
                                              "a\x7f",
                                              "\xc2\x85",
                                              "\xc3",
                                              "\xff",
                                              "\xc0\x80",
                                              "\xed\xa0\x80",
                                              "\xf4\x90\x80\x80",
                                              "\xe0\x80\xaf",
                                              "\x80",
                                              "\xf5\x80\x80\x80"};
    for (size_t i = 0; i < sizeof(bad_strings) / sizeof(bad_strings[0]); i++) {
        struct tierce_namespace ns = some_namespace();
        ns.model = bad_strings[i];
        check_refused(&ns);
        ns = some_namespace();
        ns.kv_dtype = bad_strings[i];
        check_refused(&ns);
        ns = some_namespace();
        ns.quantization = bad_strings[i];
        check_refused(&ns);
        ns = some_namespace();
        ns.layout = bad_strings[i];
        check_refused(&ns);
    }
    static const char *const bad_weights[] = {NULL, "", "ABCD", "xyz", "12 3"};
    for (size_t i = 0; i < 5; i++) {
        struct tierce_namespace ns = some_namespace();
        ns.weights = bad_weights[i];
        check_refused(&ns);
    }
    static char long_string[(1 << 20) + 2];
    memset(long_string, 'a', sizeof(long_string) - 1);
    struct tierce_namespace ns = some_namespace();
    ns.model = long_string;
    check_refused(&ns);
    ns = some_namespace();
    ns.weights = long_string;
    check_refused(&ns);
}
END_TEST

START_TEST(a_group_is_checked)
{
    static const uint32_t far[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 65536};
    static const struct {
        int group;
        uint32_t window, chunk_blocks;
        const uint32_t *layers;
    } bad[] = {
        {TIERCE_GROUP_ALL, 0, 8, layers},       {TIERCE_GROUP_ALL, 1, 8, NULL},
        {TIERCE_GROUP_FULL, 0, 8, NULL},        {TIERCE_GROUP_FULL, 1, 8, layers},
        {TIERCE_GROUP_WINDOW, 0, 8, layers},    {TIERCE_GROUP_CHUNKED, 0, 8, layers},
        {TIERCE_GROUP_STATE, 1, 1, layers},     {TIERCE_GROUP_STATE, 0, 2, layers},
        {TIERCE_GROUP_STATE + 1, 0, 1, layers}, {-1, 0, 8, layers},
        {TIERCE_GROUP_FULL, 0, 8, far},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct tierce_namespace ns = some_namespace();
        ns.group = (enum tierce_group)bad[i].group;
        ns.window = bad[i].window;
        ns.chunk_blocks = bad[i].chunk_blocks;
        ns.layers = bad[i].layers;
        check_refused(&ns);
    }
    ck_assert_str_eq(tierce_group_name(TIERCE_GROUP_ALL), "all");
    ck_assert_str_eq(tierce_group_name(TIERCE_GROUP_STATE), "state");
    ck_assert_ptr_null(tierce_group_name((enum tierce_group)(TIERCE_GROUP_STATE + 1)));
    ck_assert_ptr_null(tierce_group_name((enum tierce_group)(-1)));
}
END_TEST

START_TEST(every_number_is_checked)
{
    uint32_t bad_cells[2] = {0, 1};
    struct tierce_namespace ns = some_namespace();
    ns.size = 8;
    check_refused(&ns);
    ns = some_namespace();
    ns.layer_count = 0;
    check_refused(&ns);
    ns.layer_count = 4097;
    check_refused(&ns);
    ns = some_namespace();
    ns.cell_bytes = NULL;
    check_refused(&ns);
    ns.cell_bytes = bad_cells;
    ns.layer_count = 2;
    check_refused(&ns);
    bad_cells[0] = (1u << 30) + 1;
    check_refused(&ns);
    ns = some_namespace();
    ns.block_tokens = 0;
    check_refused(&ns);
    ns.block_tokens = 65537;
    check_refused(&ns);
    ns = some_namespace();
    ns.chunk_blocks = 0;
    check_refused(&ns);
    ns.chunk_blocks = 65537;
    check_refused(&ns);
    ns = some_namespace();
    ns.algo = 9;
    check_refused(&ns);
    check_refused(NULL);
}
END_TEST

struct seen {
    int count;
    char log[512];
};

static void note_difference(void *arg, const char *field, const char *a, const char *b)
{
    struct seen *seen = arg;
    size_t used = strlen(seen->log);
    seen->count++;
    snprintf(seen->log + used, sizeof(seen->log) - used, "%s:%s:%s;", field, a != NULL ? a : "-",
             b != NULL ? b : "-");
}

static int diff(struct seen *seen, const char *a, const char *b)
{
    *seen = (struct seen){0};
    return tierce_namespace_diff(a, b, note_difference, seen);
}

START_TEST(differences_are_told_field_by_field)
{
    struct seen seen;
    ck_assert_int_eq(diff(&seen, some_text, some_text), 0);
    ck_assert_int_eq(seen.count, 0);
    ck_assert_int_eq(diff(&seen, "tierce-namespace=1\nweights=a\nmodel=m\n",
                          "tierce-namespace=1\nweights=b\nmodel=m\n"),
                     1);
    ck_assert_str_eq(seen.log, "weights:a:b;");
    ck_assert_int_eq(
        diff(&seen, "tierce-namespace=1\nold=1\nx=a=b\n", "tierce-namespace=2\nx=\nnew=\n"), 4);
    ck_assert_str_eq(seen.log, "tierce-namespace:1:2;old:1:-;x:a=b:;new:-:;");
    ck_assert_int_eq(
        tierce_namespace_diff("tierce-namespace=1\n", "tierce-namespace=2\n", NULL, NULL), 1);
}
END_TEST

START_TEST(what_is_no_namespace_is_refused)
{
    static const char *const bad[] = {
        "",
        "\n",
        "tierce-namespace=1",
        "weights=1\n",
        "tierce-namespace=1\nweights\n",
        "tierce-namespace=1\n=x\n",
        "tierce-namespace=1\nWeights=x\n",
        "tierce-namespace=1\na b=x\n",
        "tierce-namespace=1\na=x\ry\n",
        "tierce-namespace=1\na=\xff\n",
        "tierce-namespace=1\na=1\na=1\n",
        "tierce-namespace=1\n\n",
        "tierce-namespace=1\ntierce-namespace=1\n",
        "tierce-namespace=1\na=1\nb=2",
    };
    struct seen seen;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(diff(&seen, bad[i], some_text), TIERCE_E_FORMAT);
        ck_assert_int_eq(diff(&seen, some_text, bad[i]), TIERCE_E_FORMAT);
    }
    ck_assert_int_eq(diff(&seen, NULL, some_text), TIERCE_E_FORMAT);
    ck_assert_int_eq(diff(&seen, some_text, NULL), TIERCE_E_FORMAT);

    char many[65 * 8 + 64] = "tierce-namespace=1\n";
    for (int i = 0; i < 63; i++)
        sprintf(many + strlen(many), "f%d=\n", i);
    ck_assert_int_eq(diff(&seen, many, many), 0);
    strcat(many, "g=\n");
    ck_assert_int_eq(diff(&seen, many, many), TIERCE_E_FORMAT);
    char name[128] = "tierce-namespace=1\n";
    memset(name + 19, 'n', 65);
    strcpy(name + 19 + 65, "=\n");
    ck_assert_int_eq(diff(&seen, name, name), TIERCE_E_FORMAT);
    static char large[(8 << 20) + 64];
    memset(large, 'a', sizeof(large) - 2);
    memcpy(large, "tierce-namespace=1\na=", 21);
    large[sizeof(large) - 2] = '\n';
    ck_assert_int_eq(diff(&seen, large, large), TIERCE_E_FORMAT);
}
END_TEST

static void check_read(const struct tierce_namespace *ns)
{
    struct tierce__namespace_read read;
    char *text = NULL, *again = NULL;
    ck_assert_int_eq(tierce_namespace_text(&text, ns), 0);
    ck_assert_int_eq(tierce__namespace_read(&read, text), 0);
    ck_assert_int_eq(tierce_namespace_text(&again, &read.ns), 0);
    ck_assert_str_eq(text, again);
    ck_assert(read.ns.layer_count == ns->layer_count && read.ns.window == ns->window &&
              read.ns.block_tokens == ns->block_tokens && read.ns.group == ns->group);
    ck_assert_mem_eq(read.ns.cell_bytes, ns->cell_bytes, ns->layer_count * sizeof(uint32_t));
    ck_assert_str_eq(read.ns.model, ns->model);
    tierce__namespace_read_fini(&read);
    tierce_free(text);
    tierce_free(again);
}

START_TEST(a_text_is_read)
{
    struct test_random random = test_random_start("namespaces");
    struct tierce_namespace ns = some_namespace();
    ns.quantization = "";
    check_read(&ns);
    for (size_t i = 0; i < 2000 * test_scale(); i++) {
        uint32_t sizes[12], numbers[12];
        ns.layer_count = 1 + test_random_below(&random, 12);
        ns.block_tokens = 1 + test_random_below(&random, 65536);
        ns.group = (enum tierce_group)test_random_below(&random, 5);
        ns.window = ns.group == TIERCE_GROUP_WINDOW || ns.group == TIERCE_GROUP_CHUNKED
                        ? 1 + test_random_below(&random, 1000)
                        : 0;
        ns.chunk_blocks =
            ns.group == TIERCE_GROUP_STATE ? 1 : 1 + test_random_below(&random, 65536);
        for (size_t j = 0; j < 12; j++) {
            sizes[j] = 1 + test_random_below(&random, j % 3 == 0 ? 1u << 30 : 2);
            numbers[j] = j > 0 && test_random_below(&random, 2) == 0 && numbers[j - 1] < 65535
                             ? numbers[j - 1] + 1
                             : test_random_below(&random, 65536);
        }
        ns.cell_bytes = sizes;
        ns.layers = ns.group != TIERCE_GROUP_ALL ? numbers : NULL;
        check_read(&ns);
    }
}
END_TEST

/* `from`, replaced by `to` in the text of a namespace. */
static int read_changed(const char *from, const char *to)
{
    static char text[512 + sizeof(some_text)];
    struct tierce__namespace_read read = {.copy = text};
    const char *at = strstr(some_text, from);
    ck_assert_ptr_nonnull(at);
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - some_text), some_text, to,
             at + strlen(from));
    int rc = tierce__namespace_read(&read, text);
    if (rc == 0)
        tierce__namespace_read_fini(&read);
    else
        ck_assert_ptr_eq(read.copy, text); /* untouched */
    return rc;
}

START_TEST(other_texts_are_not_read)
{
    static const char *const changes[][2] = {
        {"tierce-namespace=1", "tierce-namespace=2"},
        {"weights=0123abcd", "weights=0123ABCD"},
        {"weights=0123abcd\n", ""},
        {"quantization=\n", ""},
        {"layer_count=10", "layer_count=9"},
        {"layer_count=10", "layer_count=010"},
        {"layer_count=10", "layer_count=0"},
        {"layer_count=10", "layer_count=4294967306"},
        {"layer_count=10", "layer_count=4097"},
        {"layer_count=10", "layer_count=+10"},
        {"layer_count=10\n", ""},
        {"131072x8,65536x2", "131072x8,65536x1"},
        {"131072x8,65536x2", "131072x8,65536x3"},
        {"131072x8,65536x2", "131072x8,65536x4294967298"},
        {"131072x8,65536x2", "131072x8,65536x2,"},
        {"131072x8,65536x2", "131072x8,65536 x2"},
        {"131072x8,65536x2", "131072x4,131072x4,65536x2"},
        {"131072x8,65536x2", "131072x8,0x2"},
        {"131072x8,65536x2", "131072x8,1x0,65536x2"},
        {"131072x8,65536x2", ""},
        {"block_tokens=32", "block_tokens=0"},
        {"block_tokens=32", "block_tokens=65537"},
        {"block_tokens=32", "block_tokens=32 "},
        {"chunk_blocks=8", "chunk_blocks=-8"},
        {"algo=sha256", "algo=sha"},
        {"algo=sha256\n", "algo=sha256\nnew=1\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=full\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=all\nlayers=0-9\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=full\nlayers=0-8\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=full\nlayers=0-10\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=full\nlayers=9-0\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=full\nlayers=0-\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=full\nlayers=0-4294967295\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=window\nlayers=0-9\n"},
        {"algo=sha256\n", "algo=sha256\ngroup=state\nlayers=0-9\n"},
        {"layout=", "layouts="},
    };
    struct tierce__namespace_read read;
    ck_assert_int_eq(read_changed("algo=sha256\n", "algo=sha256\n"), 0);
    ck_assert_int_eq(read_changed("algo=sha256\n", "algo=sha256\ngroup=full\nlayers=0-9\n"), 0);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        ck_assert_msg(read_changed(changes[i][0], changes[i][1]) == TIERCE_E_FORMAT, "%s",
                      changes[i][1]);
    ck_assert_int_eq(tierce__namespace_read(&read, NULL), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__namespace_read(&read, ""), TIERCE_E_FORMAT);
}
END_TEST

static void family_of(uint8_t digest[TIERCE_HASH_BYTES], const struct tierce_namespace *ns)
{
    char *text = NULL;
    ck_assert_int_eq(tierce_namespace_text(&text, ns), 0);
    tierce__namespace_family(digest, text, (uint64_t)ns->block_tokens * ns->chunk_blocks);
    tierce_free(text);
}

START_TEST(groups_of_a_model_are_a_family)
{
    static const uint32_t numbers[] = {1, 3};
    struct tierce_namespace all = some_namespace(), state = all, other = all;
    uint8_t a[TIERCE_HASH_BYTES], b[TIERCE_HASH_BYTES];
    state.layer_count = 2;
    state.layers = numbers;
    state.group = TIERCE_GROUP_STATE;
    state.block_tokens = 256;
    state.chunk_blocks = 1;
    family_of(a, &all);
    family_of(b, &state);
    ck_assert_mem_eq(a, b, sizeof(a));
    state.block_tokens = 255;
    family_of(b, &state);
    ck_assert_mem_ne(a, b, sizeof(a));
    other.kv_dtype = "fp8";
    family_of(b, &other);
    ck_assert_mem_ne(a, b, sizeof(a));
}
END_TEST

static void pairs_of(uint8_t digest[TIERCE_HASH_BYTES], const struct tierce_namespace *ns)
{
    char *text = NULL;
    ck_assert_int_eq(tierce_namespace_text(&text, ns), 0);
    tierce__namespace_pairs(digest, text, ns->block_tokens);
    tierce_free(text);
}

/* Layouts and lengths of chunks may differ. */
START_TEST(groups_with_equal_hashes_have_pairs)
{
    static const uint32_t numbers[] = {1, 3};
    struct tierce_namespace all = some_namespace(), state = all, other = all;
    uint8_t a[TIERCE_HASH_BYTES], b[TIERCE_HASH_BYTES];
    state.layer_count = 2;
    state.layers = numbers;
    state.group = TIERCE_GROUP_STATE;
    state.layout = "of a state";
    state.chunk_blocks = 1;
    pairs_of(a, &all);
    pairs_of(b, &state);
    ck_assert_mem_eq(a, b, sizeof(a));
    state.block_tokens *= 2;
    pairs_of(b, &state);
    ck_assert_mem_ne(a, b, sizeof(a));
    other.weights = "00ff";
    pairs_of(b, &other);
    ck_assert_mem_ne(a, b, sizeof(a));
}
END_TEST

START_TEST(every_failed_allocation_is_reported)
{
    uint64_t live = tierce__alloc_live();
    struct tierce_namespace ns = some_namespace();
    for (uint64_t nth = 1;; nth++) {
        char *text = NULL;
        tierce__alloc_fail_nth(nth);
        int rc = tierce_namespace_text(&text, &ns);
        int differences = tierce_namespace_diff(some_text, some_text, NULL, NULL);
        struct tierce__namespace_read read = {0};
        int rc_read = tierce__namespace_read(&read, some_text);
        tierce__alloc_fail_nth(0);
        ck_assert(rc_read == 0 || (rc_read == -ENOMEM && read.copy == NULL));
        tierce__namespace_read_fini(&read);
        ck_assert(rc == 0 || (rc == -ENOMEM && text == NULL));
        ck_assert(differences == 0 || differences == -ENOMEM);
        tierce_free(text);
        ck_assert_uint_eq(tierce__alloc_live(), live);
        if (rc == 0 && differences == 0 && rc_read == 0) {
            ck_assert_uint_gt(nth, 6);
            break;
        }
    }
}
END_TEST

CHECK_MAIN("namespace",
           .tests = {the_text_is_canonical, a_namespace_without_a_group_is_about_all_layers,
                     a_group_states_its_kind_window_and_layers, a_group_is_checked,
                     the_digest_is_the_sum_of_the_text, every_field_is_checked,
                     every_number_is_checked, differences_are_told_field_by_field,
                     what_is_no_namespace_is_refused, a_text_is_read, other_texts_are_not_read,
                     groups_of_a_model_are_a_family, groups_with_equal_hashes_have_pairs,
                     every_failed_allocation_is_reported})
