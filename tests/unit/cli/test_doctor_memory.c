/* SPDX-License-Identifier: Apache-2.0 */
/* `tierce doctor` reads a description while allocations fail. */
#include "base/alloc.h"
#include "check_main.h"
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char text[] =
    "block_tokens: 16\n"
    "model:\n"
    "  kind: llama\n"
    "  sizes: [1, 2.5, null, \"a long text, for which the line has to grow: "
    "0123456789012345678901234567890123456789012345678901234567890123456789"
    "0123456789012345678901234567890123456789012345678901234567890123456789\"]\n"
    "  more: {on: true}\n";

static void clear(struct tierce__doctor_set *set)
{
    struct tierce__doctor_set *sets = tierce__alloc(sizeof(*sets));
    ck_assert_ptr_nonnull(sets);
    *sets = *set;
    tierce__doctor_clear(&(struct tierce__doctor_side){.count = 1, .sets = sets});
}

/* A model that is read in part, or whose numbers become texts, would differ from the model of each
 * other instance. The file is not at fault. */
START_TEST(a_model_is_read_as_a_whole)
{
    char path[] = "/tmp/tierce-doctor-XXXXXX", why[TIERCE__DOCTOR_WHY_BYTES], whole[1024] = "";
    int fd = mkstemp(path);
    ck_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    ck_assert_int_eq(close(fd), 0);
    uint64_t failures = 0;
    for (uint64_t nth = 0; nth == 0 || failures == nth - 1; nth++) {
        struct tierce__doctor_set set = {.count = 0};
        why[0] = '\0';
        if (nth > 0)
            tierce__alloc_fail_nth(nth);
        int rc = tierce__doctor_read_yaml(&set, path, why);
        bool failed = nth > 0 && tierce__alloc_fail_nth(0) >= nth;
        failures += failed;
        ck_assert_msg(rc == 0 || failed, "%d: %s", rc, why);
        ck_assert_msg(strstr(why, "JSON") == NULL, "%s", why);
        const char *model = tierce__doctor_find(&set, "model");
        if (nth == 0)
            snprintf(whole, sizeof(whole), "%s", model);
        ck_assert(model == NULL || strcmp(model, whole) == 0);
        clear(&set);
        ck_assert_uint_eq(tierce__alloc_live(), 0);
    }
    ck_assert_uint_gt(strlen(whole), 200);
    ck_assert_uint_gt(failures, 10);
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

CHECK_MAIN("doctor_memory", .tests = {a_model_is_read_as_a_whole})
