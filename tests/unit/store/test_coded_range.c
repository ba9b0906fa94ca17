/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a coded object in memory that another process writes to while it is read. */
#include "coded_store.h"
#include "store/coded/coded_parts.h"

#define MIB (1ULL << 20)

static struct store s;
static const struct tierce__codec *lossless;
static uint8_t *raw, *coded;
static struct tierce__chunk_info chunk;
static uint64_t coded_length;

static void setup(void)
{
    lossless = tierce__codec_find("lossless");
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace(&s, "bfloat16");
    chunk = coded_info(&s, 1);
    raw = tierce__alloc_aligned(64, coded_bytes(&s));
    ck_assert_ptr_nonnull(raw);
    coded_make(&s, raw, 1, CODED_VALUES);
    uint64_t room = tierce__coded_room(raw, &chunk);
    coded = tierce__alloc_aligned(64, room);
    ck_assert_ptr_nonnull(coded);
    int64_t length = tierce__coded_encode(coded, room, raw, &chunk, lossless, TIERCE__ELEMENT_BF16);
    ck_assert_int_gt(length, 0);
    coded_length = (uint64_t)length;
}

static void teardown(void)
{
    tierce__free(raw);
    tierce__free(coded);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

static uint8_t *table(void)
{
    return coded + chunk.extent.header_bytes;
}

/* The first layer is longer than any object. */
static void write_length(void)
{
    tierce__store_le64(table() + 64, 1ULL << 40);
}

/* The same with valid sums, and with a length of the object that agrees. */
static void write_length_and_sums(void)
{
    uint64_t length = tierce__load_le64(table() + 64);
    tierce__store_le64(table() + 64, 1ULL << 40);
    tierce__store_le64(table() + 16, coded_length - length + (1ULL << 40));
    tierce__store_le64(table() + 8, tierce__sum(table() + 16, TIERCE__CHUNK_ALIGN - 16));
}

static void write_header(void)
{
    tierce__store_le32(coded + TIERCE__CHUNK_FIXED, 1u << 30);
}

/* When memory for the copy is allocated, the head was parsed and not yet copied. */
static void (*writer)(void);

void *__real_tierce__alloc_aligned(size_t align, size_t size);
void *__wrap_tierce__alloc_aligned(size_t align, size_t size);
void *__wrap_tierce__alloc_aligned(size_t align, size_t size)
{
    if (writer != NULL)
        writer();
    writer = NULL;
    return __real_tierce__alloc_aligned(align, size);
}

static struct tierce__coded_elements elements; /* not used, because the codec is exact */

START_TEST(a_head_that_changes_while_it_is_copied_is_damaged)
{
    static void (*const writers[])(void) = {write_length, write_length_and_sums, write_header};
    struct tierce__coded_parsed parsed = {0};
    uint64_t wanted = 0;
    writer = writers[_i];
    ck_assert_int_eq(tierce__coded_parsed_fill(&parsed, &elements, coded, coded_length, &wanted),
                     TIERCE_E_FORMAT);
    ck_assert_ptr_null(writer);
    ck_assert_ptr_null(parsed.bytes);
}
END_TEST

START_TEST(a_head_that_changes_later_is_the_one_that_was_parsed)
{
    struct tierce__coded_parsed parsed = {0};
    struct tierce__coded_range before, after;
    uint64_t wanted = 0;
    ck_assert_int_eq(tierce__coded_parsed_fill(&parsed, &elements, coded, coded_length, &wanted),
                     0);
    tierce__coded_range_plan(&before, &parsed, 0, coded_bytes(&s));
    write_length_and_sums();
    write_header();
    tierce__coded_range_plan(&after, &parsed, 0, coded_bytes(&s));
    ck_assert_uint_eq(before.from, after.from);
    ck_assert_uint_eq(before.to, after.to);
    ck_assert_uint_eq(after.last, CODED_LAYERS);
    ck_assert(tierce__chunk_same(parsed.raw_header, raw, &chunk.geometry));
    tierce__coded_parsed_fini(&parsed);
}
END_TEST

CHECK_MAIN("coded_range", .setup = setup, .teardown = teardown,
           .tests = {a_head_that_changes_later_is_the_one_that_was_parsed},
           .loops = {{a_head_that_changes_while_it_is_copied_is_damaged, 0, 3}})
