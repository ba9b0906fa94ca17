/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a named value in memory that another process writes to while it is read. */
#include "base/bytes.h"
#include "check_main.h"
#include "core/paged/paged.h"
#include "engine/objects/object_form.h"

#include <stdlib.h>

enum { SHORT = 1000, LONG = 60000, CELL_TABLE = 256, AT_VALUE_BYTES = 16 };

static const struct tierce__object_space space;
static uint8_t *object;

/* The sum of the first cell is computed when the header was parsed. */
static void (*writer)(void);

uint64_t __real_tierce__sum(const void *src, size_t n);
uint64_t __wrap_tierce__sum(const void *src, size_t n);
uint64_t __wrap_tierce__sum(const void *src, size_t n)
{
    if (writer != NULL)
        writer();
    writer = NULL;
    return __real_tierce__sum(src, n);
}

static void set_up(void)
{
    object = aligned_alloc(TIERCE__CHUNK_ALIGN, 1 << 20);
    ck_assert_ptr_nonnull(object);
}

static void tear_down(void)
{
    free(object);
}

/* A value that is longer than the header has said: the piece's length in the header. */
static void write_length(void)
{
    tierce__store_le32(object + CELL_TABLE + 4, LONG);
}

/* The first cell states the longer value, and has its sum, from the beginning on. */
START_TEST(a_header_that_changes_after_it_was_parsed_is_another_one)
{
    struct tierce__key key = tierce__object_key(&space, "name", 4);
    struct tierce__object_form got,
        form = {.what = {.name = (const uint8_t *)"name", .name_bytes = 4, .value_bytes = SHORT}};
    uint64_t need;
    ck_assert_int_eq(tierce__object_extent(&form.extent, &form.what), 0);
    tierce__object_begin(object, &form, &space, &key, true);
    uint8_t *cell = object + form.extent.header_bytes;
    size_t cell_bytes = (size_t)(form.value_at - form.extent.header_bytes);
    tierce__chunk_seal(object, form.extent.header_bytes);
    ck_assert_int_eq(tierce__object_parse(&got, &need, object, form.extent.object_bytes, &space,
                                          &key, "name", 4),
                     0);
    tierce__store_le64(cell + AT_VALUE_BYTES, LONG);
    tierce__object_sums(object, SHORT)[0] = tierce__sum(cell, cell_bytes);
    tierce__chunk_seal(object, form.extent.header_bytes);
    writer = write_length;
    ck_assert_int_eq(tierce__object_parse(&got, &need, object, form.extent.object_bytes, &space,
                                          &key, "name", 4),
                     TIERCE_E_IDENTITY);
    ck_assert_ptr_null(writer);
}
END_TEST

CHECK_MAIN("object form", .setup = set_up, .teardown = tear_down,
           .tests = {a_header_that_changes_after_it_was_parsed_is_another_one})
