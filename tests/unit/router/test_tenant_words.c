/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "check_main.h"
#include "net/tenant_words.h"
#include "router/subscriber_curve.h"
#include "temp_folder.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The file of tokens that a router index sends, one for each tenant. */

static char folder[64], path[96], why[256];
static struct tierce__tenant_words tokens;

static void setup(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "%s/tokens", folder);
    tierce__tenant_words_init(&tokens);
}

static void teardown(void)
{
    tierce__tenant_words_fini(&tokens);
    temp_folder_remove(folder);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}

/* Reads such a file; with success its tokens count. */
static int read_bytes(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, 0600), 0);
    char *read = NULL;
    int rc = tierce__tenant_words_read(&read, "snapshot.token_file", "TOKEN", path, why);
    if (rc == 0)
        tierce__tenant_words_replace(&tokens, read);
    else
        ck_assert_ptr_null(read);
    return rc;
}

static void expect(const char *tenant, const char *wanted)
{
    char *found;
    ck_assert_int_eq(tierce__tenant_words_find(&found, &tokens, tenant), 0);
    if (wanted == NULL)
        ck_assert_ptr_null(found);
    else
        ck_assert_str_eq(found, wanted);
    tierce__free_secret(found);
}

static void expect_fault(const char *text, const char *words)
{
    ck_assert_int_eq(read_bytes(text, strlen(text)), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, words) != NULL && strstr(why, "secret") == NULL, "%s", why);
}

/* Each tenant has its own, and nobody gets that of another one. */
START_TEST(a_tenant_has_its_own_token)
{
    static const char text[] = "# comments and empty lines\n\n  secret-a  \t one \r\nsecret-b\n"
                               "secret-c two";
    expect("one", NULL);
    ck_assert_int_eq(read_bytes(text, sizeof(text) - 1), 0);
    expect("one", "Bearer secret-a");
    expect("", "Bearer secret-b");
    expect("two", "Bearer secret-c");
    expect("tw", NULL);
    expect("three", NULL);
    ck_assert_int_eq(read_bytes("x default\n", 10),
                     0); /* the tenant of registrations without one */
    expect("", "Bearer x");
    expect("one", NULL);
}
END_TEST

/* A faulty file is refused with its line, without its words, and the tokens before stay. */
START_TEST(a_faulty_file_changes_nothing)
{
    static const char with_nul[] = "secret\n\0secret two\n";
    ck_assert_int_eq(read_bytes("kept\n", 5), 0);
    expect_fault("", "no such line; a line is TOKEN [TENANT]");
    expect_fault("# secret\n", "no such line; a line is TOKEN [TENANT]");
    expect_fault("secret\nsecret one more\n", "line 2 has more than");
    expect_fault("secret one\n\nsecret one\n", "line 3 is the second one");
    expect_fault("secret a\nsecret c\nsecret b\nsecret c\nsecret a\n", "line 4 is the second one");
    expect_fault("secret\nsecret default\n", "line 2 is the second one");
    ck_assert_int_eq(read_bytes(with_nul, sizeof(with_nul) - 1), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "NUL") != NULL, "%s", why);
    char *key = NULL;
    ck_assert_int_eq(tierce__tenant_words_read(&key, "curve.key_file", "SECRET-KEY", path, why),
                     TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "a line is SECRET-KEY [TENANT]") != NULL, "%s", why);
    ck_assert_int_eq(chmod(path, 0644), 0);
    char *read = NULL;
    ck_assert_int_eq(tierce__tenant_words_read(&read, "snapshot.token_file", "TOKEN", path, why),
                     TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "snapshot.token_file") != NULL, "%s", why);
    ck_assert_int_eq(remove(path), 0);
    ck_assert_int_eq(tierce__tenant_words_read(&read, "snapshot.token_file", "TOKEN", path, why),
                     TIERCE_E_CONFIG);
    expect("", "Bearer kept");
    ck_assert_int_eq(tierce__tenant_words_read(&read, "snapshot.token_file", "TOKEN", "", why), 0);
    ck_assert_ptr_null(read);
}
END_TEST

/* A key that is none is found when the file is read, not when a publisher requires it. */
START_TEST(each_key_is_checked)
{
    static const char good[] = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
    char text[128], *keys = NULL;
    snprintf(text, sizeof(text), "%s\n# x\n%s team\n", good, good);
    ck_assert_int_eq(read_bytes(text, strlen(text)), 0);
    ck_assert_int_eq(tierce__subscriber_keys_read(&keys, path, why), 0);
    ck_assert_ptr_nonnull(keys);
    tierce__free_secret(keys);
    snprintf(text, sizeof(text), "%s\n# x\nsecret%s team\n", good, good + 6);
    text[60] = '~'; /* no character of Z85 */
    ck_assert_int_eq(read_bytes(text, strlen(text)), 0);
    ck_assert_int_eq(tierce__subscriber_keys_read(&keys, path, why), TIERCE_E_CONFIG);
    ck_assert_ptr_null(keys);
    ck_assert_msg(strstr(why, "line 3 has no secret key") != NULL && strstr(why, "secret~") == NULL,
                  "%s", why);
    ck_assert_int_eq(read_bytes("secret\n", 7), 0);
    ck_assert_int_eq(tierce__subscriber_keys_read(&keys, path, why), TIERCE_E_CONFIG);
    ck_assert_int_eq(tierce__subscriber_keys_read(&keys, "", why), 0);
    ck_assert_ptr_null(keys);
}
END_TEST

CHECK_MAIN("tenant_words", .setup = setup, .teardown = teardown,
           .tests = {a_tenant_has_its_own_token, a_faulty_file_changes_nothing,
                     each_key_is_checked})
