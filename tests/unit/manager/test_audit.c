/* SPDX-License-Identifier: Apache-2.0 */
/* The audit log: lines of one second that are too many are counted. */
#include "base/file.h"
#include "base/alloc.h"
#include "check_main.h"
#include "manager/observe/audit.h"
#include "temp_folder.h"

#include <string.h>

static char folder[] = "/tmp/tierce-test-audit-XXXXXX";
static char path[64];
static struct tierce__audit *audit;

static void set_up(void)
{
    char why[256];
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/audit.log", folder);
    ck_assert_int_eq(tierce__audit_open(&audit, path, why), 0);
}

static void tear_down(void)
{
    tierce__audit_close(audit);
    temp_folder_remove(folder);
}

static void write_lines(size_t count, int64_t second, enum tierce__audit_outcome outcome,
                        bool is_trim)
{
    for (size_t i = 0; i < count; i++)
        tierce__audit_write(
            audit, second * 1000000,
            &(struct tierce__audit_line){
                .what = "x", .who = "w", .outcome = outcome, .why = "", .is_trim = is_trim});
}

/* The lines in the file; closes it. *text: the whole, on the heap. */
static size_t count_lines(char **text)
{
    size_t bytes, count = 0;
    tierce__audit_close(audit);
    audit = NULL;
    ck_assert_int_eq(tierce__read_file(text, &bytes, path, 1 << 24), 0);
    for (size_t i = 0; i < bytes; i++)
        count += (*text)[i] == '\n';
    return count;
}

START_TEST(removals_are_bounded)
{
    char *text;
    write_lines(TIERCE__AUDIT_TRIMS_MAX + 70, 1, TIERCE__AUDIT_DONE, true);
    write_lines(TIERCE__AUDIT_REFUSED_MAX + 7, 1, TIERCE__AUDIT_DENIED, true);
    write_lines(1, 2, TIERCE__AUDIT_FAILED, true);
    ck_assert_uint_eq(count_lines(&text), TIERCE__AUDIT_TRIMS_MAX + TIERCE__AUDIT_REFUSED_MAX + 1);
    ck_assert_ptr_nonnull(strstr(text, "\"left_out\":70}")); /* by the first refused one */
    ck_assert_ptr_nonnull(strstr(text, "\"left_out\":7}"));
    tierce__free(text);
}
END_TEST

START_TEST(calls_that_administer_are_not)
{
    char *text;
    write_lines(3 * TIERCE__AUDIT_TRIMS_MAX, 1, TIERCE__AUDIT_DONE, false);
    ck_assert_uint_eq(count_lines(&text), 3 * TIERCE__AUDIT_TRIMS_MAX);
    ck_assert_ptr_null(strstr(text, "left_out"));
    tierce__free(text);
}
END_TEST

CHECK_MAIN("audit", .seconds = 30, .setup = set_up, .teardown = tear_down,
           .tests = {removals_are_bounded, calls_that_administer_are_not})
