/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "manager/api/event_stream.h"
#include "manager/api/grants.h"
#include "manager/api/needs.h"
#include "manager/registry/catalog.h"
#include "temp_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* SHA-256 of "a", "b" and "c". */
#define A "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
#define B "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"
#define C "2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6"

static char why[256], folder[64];

static void set_up(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-grants-XXXXXX");
    temp_folder_make(folder);
}

static void tear_down(void)
{
    temp_folder_remove(folder);
}

static int load(struct tierce__grants **out, const char *text, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/tokens", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, bytes), (int)bytes);
    close(fd);
    int rc = tierce__grants_load(out, path, why);
    unlink(path);
    return rc;
}

static struct tierce__grants *load_good(const char *text)
{
    struct tierce__grants *grants = NULL;
    why[0] = '\0';
    ck_assert_msg(load(&grants, text, strlen(text)) == 0, "%s", why);
    return grants;
}

static void expect(const struct tierce__grants *grants, const char *token, const char *name,
                   uint32_t rights, const char *group, const char *instance)
{
    struct tierce__grants_line line;
    uint8_t digest[32];
    ck_assert(tierce__grants_find(grants, token, &line, digest));
    ck_assert_str_eq(line.name, name);
    ck_assert_uint_eq(line.grant->rights, rights);
    ck_assert_pstr_eq(line.grant->group, group);
    ck_assert_pstr_eq(line.grant->instance, instance);
    ck_assert_int_eq(line.grant->reach, instance != NULL ? TIERCE__REACH_INSTANCE
                                        : group != NULL  ? TIERCE__REACH_GROUP
                                                         : TIERCE__REACH_ALL);
    ck_assert(tierce__grants_find_digest(grants, digest, &line));
}

START_TEST(test_lines_of_before)
{
    struct tierce__grants *grants = load_good("# all\nadmin ops " A "\n\n  user engine\t" B "\r\n");
    expect(grants, "a", "ops", TIERCE__RIGHTS_ALL, NULL, NULL);
    expect(grants, "b", "engine", TIERCE__RIGHTS_USER, NULL, NULL);
    ck_assert_uint_eq(tierce__grants_token_count(grants), 2);
    struct tierce__grants_line line;
    uint8_t digest[32];
    ck_assert(!tierce__grants_find(grants, "c", &line, digest));
    ck_assert(!tierce__grants_find_account(grants, "ops", &line));
    tierce__grants_destroy(grants);
}
END_TEST

START_TEST(test_roles_and_scopes)
{
    struct tierce__grants *grants =
        load_good("read,write chat " A " chat\ntrim one " B " chat%2Fen/i%20%C3%A9\nread all " C
                  " *\nread,admin boss account chat\n");
    expect(grants, "a", "chat", TIERCE__RIGHT_READ | TIERCE__RIGHT_WRITE, "chat", NULL);
    expect(grants, "b", "one", TIERCE__RIGHT_TRIM, "chat/en", "i \xc3\xa9");
    expect(grants, "c", "all", TIERCE__RIGHT_READ, NULL, NULL);
    struct tierce__grants_line line;
    ck_assert(tierce__grants_find_account(grants, "boss", &line));
    ck_assert_uint_eq(line.grant->rights, TIERCE__RIGHTS_ALL);
    ck_assert_str_eq(line.grant->group, "chat");
    ck_assert_uint_eq(tierce__grants_token_count(grants), 3);
    /* The digest of an account's line is zero, and that of no token. */
    ck_assert(!tierce__grants_find_digest(grants, (uint8_t[32]){0}, &line));
    tierce__grants_destroy(grants);
}
END_TEST

static const struct {
    const char *text, *fault;
} faulty[] = {
    {"root ops " A, "line 1: a role must be read, write, trim, node, admin or user"},
    {"read, ops " A, "line 1: a role must be"},
    {",read ops " A, "line 1: a role must be"},
    {"readwrite ops " A, "line 1: a role must be"},
    {"user a " B "\n\nread ops", "line 3: there are fewer than three words"},
    {"read ops secret", "line 1: the third word is neither 64 hex digits nor \"account\""},
    {"read ops " A "0", "line 1: the third word is neither"},
    {"read o\001s " A, "line 1: the name is not UTF-8, or has control characters"},
    {"read \xff " A, "line 1: the name is not UTF-8"},
    {"read 1234567890123456789012345678901234567890123456789012345678901234 " A,
     "line 1: the name exceeds 63 bytes"},
    {"read ops " A " a b", "line 1: a word after the scope is not requests=N"},
    {"read ops " A " keys=1 a", "line 1: a word after the scope is not requests=N"},
    {"read ops " A " a keys=1 keys=1", "line 1: a limit is repeated"},
    {"read ops " A " bytes=5Gi", "line 1: the limit bytes is not a size above 0"},
    {"read ops " A " g keys=5\nread ops " B " g keys=6", "line 2: another line of this name has"},
    {"read ops " A " g keys=5\nread ops account g", "line 2: another line of this name has other"},
    {"read ops " A " 1 2 3 4 5 6 7 8 9", "line 1: there are too many words"},
    {"read ops " A " /i", "line 1: a name of the scope is empty"},
    {"read ops " A " g/", "line 1: a name of the scope is empty"},
    {"read ops " A " a/b/c", "line 1: the scope has more than one '/'"},
    {"read ops " A " a%2", "line 1: a % of the scope is not followed by two hex digits"},
    {"read ops " A " a%zz", "line 1: a % of the scope is not followed by two hex digits"},
    {"read ops " A " a%00b", "line 1: a name of the scope is not UTF-8, or has control"},
    {"read ops " A " a%ff", "line 1: a name of the scope is not UTF-8"},
    {"read a " A "\nread b " A, "line 2: another line of this token says otherwise"},
    {"read a " A "\nwrite a " A, "line 2: another line of this token says otherwise"},
    {"read a " A " g\nread a " A " h", "line 2: another line of this token says otherwise"},
    {"read a " A " g\nread a " A " g/i", "line 2: another line of this token says otherwise"},
    {"read a account g\nread a account", "line 2: another line of this account says otherwise"},
};

START_TEST(test_lines_of_one_name_share_their_limits)
{
    struct tierce__grants_line a, b, c;
    uint8_t digest[32];
    struct tierce__grants *grants = load_good("read one " A " g requests=5 bytes=1MiB\nwrite one " B
                                              " bytes=1MiB requests=5\nread other " C "\n");
    ck_assert(tierce__grants_find(grants, "a", &a, digest));
    ck_assert(tierce__grants_find(grants, "b", &b, digest));
    ck_assert(tierce__grants_find(grants, "c", &c, digest));
    ck_assert_ptr_eq(a.meter, b.meter);
    ck_assert_ptr_ne(a.meter, c.meter);
    ck_assert_uint_eq(a.meter->limits.of[TIERCE__USE_REQUESTS], 5);
    ck_assert_uint_eq(a.meter->limits.of[TIERCE__USE_BYTES], 1 << 20);
    ck_assert_uint_eq(c.meter->limits.of[TIERCE__USE_REQUESTS], 0);
    ck_assert_int_eq(b.grant->reach, TIERCE__REACH_ALL);
    /* The next file continues them. */
    struct tierce__grants *next = load_good("read one " C " g requests=9\n");
    tierce__meter_charge(a.meter, 3, 4, 0);
    tierce__grants_adopt(next, grants);
    ck_assert(tierce__grants_find(next, "c", &c, digest));
    ck_assert_uint_eq(c.meter->used[TIERCE__USE_KEYS], 3);
    tierce__grants_destroy(grants);
    tierce__grants_destroy(next);
}
END_TEST

START_TEST(test_faults_are_named)
{
    for (size_t i = 0; i < sizeof(faulty) / sizeof(faulty[0]); i++) {
        struct tierce__grants *grants = NULL;
        const char *text = faulty[i].text;
        ck_assert_msg(load(&grants, text, strlen(text)) == TIERCE_E_CONFIG, "%s", text);
        ck_assert_msg(strstr(why, faulty[i].fault) != NULL, "%s", why);
        ck_assert_msg(strstr(why, "expected ROLES NAME SHA256 [SCOPE] [LIMITS]") != NULL, "%s",
                      why);
        ck_assert_ptr_null(strstr(why, "secret")); /* a token may stand in the wrong place */
        ck_assert_ptr_null(grants);
    }
}
END_TEST

START_TEST(test_lines_behind_a_nul_are_not_lost)
{
    static const char text[] = "user a " A "\n\0user b " B " chat\n";
    struct tierce__grants *grants = NULL;
    ck_assert_int_eq(load(&grants, text, sizeof(text) - 1), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "line 2: it contains a NUL"));
}
END_TEST

START_TEST(test_lines_may_be_repeated)
{
    struct tierce__grants *grants = load_good("read a " A " g\nread a " A " g\nread a " B " g\n");
    expect(grants, "a", "a", TIERCE__RIGHT_READ, "g", NULL);
    tierce__grants_destroy(grants);
}
END_TEST

START_TEST(test_others_may_not_read_the_file)
{
    char path[256];
    struct tierce__grants *grants = NULL;
    snprintf(path, sizeof(path), "%s/tokens", folder);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(fchmod(fd, 0640), 0);
    close(fd);
    ck_assert_int_eq(tierce__grants_load(&grants, path, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "chmod 600"));
    unlink(path);
    ck_assert_int_eq(tierce__grants_load(&grants, path, why), -ENOENT);
}
END_TEST

/* ---- scopes ---------------------------------------------------------------------------------- */

static struct tierce__grant *grant_of(uint32_t rights, const char *scope)
{
    struct tierce__grant *grant = NULL;
    const char *fault = NULL;
    ck_assert_int_eq(tierce__grant_create(&grant, rights, scope, &fault), 0);
    return grant;
}

START_TEST(test_what_a_scope_holds)
{
    static const struct {
        const char *scope;
        bool all, group, other_group, instance, sibling, foreign, meets;
    } rows[] = {
        {NULL, true, true, true, true, true, true, true},
        {"*", true, true, true, true, true, true, true},
        {"g", false, true, false, true, true, false, true},
        {"g/i", false, false, false, true, false, false, true},
        {"h", false, false, true, false, false, true, false},
        {"h/i", false, false, false, false, false, true, false},
        {"%2A", false, false, false, false, false, false, false}, /* a group of this name */
    };
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct tierce__grant *grant = grant_of(TIERCE__RIGHT_READ, rows[r].scope);
        ck_assert_int_eq(tierce__grant_has_all(grant), rows[r].all);
        ck_assert_int_eq(tierce__grant_has_group(grant, "g"), rows[r].group);
        ck_assert_int_eq(tierce__grant_has_group(grant, "h"), rows[r].other_group);
        ck_assert_int_eq(tierce__grant_has_instance(grant, "g", "i"), rows[r].instance);
        ck_assert_int_eq(tierce__grant_has_instance(grant, "g", "j"), rows[r].sibling);
        ck_assert_int_eq(tierce__grant_has_instance(grant, "h", "i"), rows[r].foreign);
        ck_assert_int_eq(tierce__grant_meets_group(grant, "g"), rows[r].meets);
        tierce__grant_drop(grant);
    }
    ck_assert(!tierce__grant_has_all(NULL) && !tierce__grant_has_group(NULL, "g"));
    ck_assert(!tierce__grant_has_instance(NULL, "g", "i") && !tierce__grant_meets_group(NULL, "g"));
}
END_TEST

#define MODEL                                                                                      \
    ",\"location_spec_infos\":[],\"model_deployment\":{\"model_name\":\"m\",\"dtype\":\"d\"}}"

/* Groups g, with storage s, and h, with storage t; an instance of each. */
static struct tierce__catalog *make_catalog(void)
{
    struct tierce__catalog *catalog = NULL;
    ck_assert_int_eq(tierce__catalog_create(&catalog), 0);
    static const char *const groups[] = {"{\"name\":\"g\",\"storage_candidates\":[\"s\"]}",
                                         "{\"name\":\"h\",\"storage_candidates\":[\"t\"]}"};
    static const char *const instances[] = {
        "{\"instance_id\":\"i\",\"instance_group_name\":\"g\"" MODEL,
        "{\"instance_id\":\"j \\\"\",\"instance_group_name\":\"h\"" MODEL};
    for (size_t n = 0; n < 2; n++) {
        struct tierce__group group;
        struct tierce__instance instance;
        ck_assert_int_eq(tierce__group_from_json(&group, groups[n], strlen(groups[n]), why), 0);
        ck_assert_int_eq(tierce__catalog_set(catalog, TIERCE__KIND_GROUP, &group), 0);
        ck_assert_msg(
            tierce__instance_from_json(&instance, instances[n], strlen(instances[n]), why) == 0,
            "%s", why);
        ck_assert_int_eq(tierce__catalog_set(catalog, TIERCE__KIND_INSTANCE, &instance), 0);
    }
    return catalog;
}

static bool sees(const char *scope, const struct tierce__catalog *catalog, const char *source,
                 const char *component)
{
    char line[4096], keys[2600];
    memset(keys, '1', sizeof(keys) - 1); /* more than is read of a line */
    keys[sizeof(keys) - 1] = '\0';
    snprintf(
        line, sizeof(line),
        "{\"id\":\"0123\",\"source\":\"%s\",\"component\":\"%s\",\"type\":\"T\",\"keys\":[%s]}\n",
        source, component, keys);
    struct tierce__grant *grant = grant_of(TIERCE__RIGHT_READ, scope);
    bool seen = tierce__event_is_seen(grant, catalog, line, strlen(line));
    tierce__grant_drop(grant);
    return seen;
}

START_TEST(test_events_of_a_scope)
{
    struct tierce__catalog *catalog = make_catalog();
    static const struct {
        const char *source, *component, *scopes; /* that see it */
    } rows[] = {
        {"i", "cache_manager", "* g g/i"},
        {"i", "cache_reclaimer", "* g g/i"},
        {"j \\\"", "cache_manager", "* h"},
        {"gone", "cache_manager", "*"},
        {"s", "data_storage", "* g g/i"},
        {"t", "data_storage", "* h h/i"},
        {"node", "leader_elector", "*"},
        {"i", "unknown", "*"},
        {"i\\\",\\\"component", "cache_manager", "*"},
    };
    static const char *const scopes[] = {"*", "g", "g/i", "h", "h/i"};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        for (size_t s = 0; s < sizeof(scopes) / sizeof(scopes[0]); s++) {
            char word[16], list[64];
            snprintf(word, sizeof(word), " %s ", scopes[s]);
            snprintf(list, sizeof(list), " %s ", rows[r].scopes);
            ck_assert_msg(sees(scopes[s], catalog, rows[r].source, rows[r].component) ==
                              (strstr(list, word) != NULL),
                          "%s of %s to %s", rows[r].source, rows[r].component, scopes[s]);
        }
    }
    struct tierce__grant *grant = grant_of(TIERCE__RIGHT_READ, "g");
    static const char *const broken[] = {
        "\n", "{}\n", "{\"source\":\"i\"}\n",
        "{\"id\":1,\"source\":\"i\",\"component\":\"cache_manager\"}\n"};
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
        ck_assert(!tierce__event_is_seen(grant, catalog, broken[i], strlen(broken[i])));
    tierce__grant_drop(grant);
    tierce__catalog_put(catalog);
}
END_TEST

START_TEST(test_storages_of_a_scope)
{
    struct tierce__catalog *catalog = make_catalog();
    static const struct {
        const char *scope;
        bool s, t;
    } rows[] = {{"*", true, true},
                {"g", true, false},
                {"g/x", true, false},
                {"h", false, true},
                {"none", false, false}};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct tierce__grant *grant = grant_of(TIERCE__RIGHT_READ, rows[r].scope);
        ck_assert_int_eq(tierce__grant_has_storage(grant, catalog, "s"), rows[r].s);
        ck_assert_int_eq(tierce__grant_has_storage(grant, catalog, "t"), rows[r].t);
        tierce__grant_drop(grant);
    }
    ck_assert(!tierce__grant_has_storage(NULL, catalog, "s"));
    tierce__catalog_put(catalog);
}
END_TEST

/* ---- the table ------------------------------------------------------------------------------- */

START_TEST(test_every_call_needs_a_right)
{
    for (int id = 0; id < TIERCE__RPC_COUNT; id++) {
        const struct tierce__need *need = tierce__need_of_call((enum tierce__rpc_id)id);
        ck_assert_msg(need->right == TIERCE__RIGHT_READ || need->right == TIERCE__RIGHT_WRITE ||
                          need->right == TIERCE__RIGHT_TRIM || need->right == TIERCE__RIGHT_NODE ||
                          need->right == TIERCE__RIGHT_ADMIN,
                      "%s", need->name);
        /* The role "user" makes the calls of engines, and no others. An operator's command to a
         * worker stands beside the other calls of the directory. */
        ck_assert_msg((need->right == TIERCE__RIGHT_ADMIN) ==
                          (tierce__rpcs[id].port != TIERCE__RPC_PORT_META ||
                           id == TIERCE__RPC_meta_command_worker),
                      "%s", need->name);
        for (uint32_t rights = 0; rights <= TIERCE__RIGHTS_ALL; rights++) {
            for (int scoped = 0; scoped < 2; scoped++) {
                struct tierce__grant *grant = grant_of(rights, scoped ? "g" : "*");
                bool met =
                    (rights & need->right) != 0 && (!scoped || need->target != TIERCE__TARGET_ALL);
                ck_assert_int_eq(tierce__need_is_met(need, grant, "n", why), met);
                ck_assert_int_eq(why[0] == '\0', met);
                tierce__grant_drop(grant);
            }
        }
        ck_assert(!tierce__need_is_met(need, NULL, "n", why));
    }
}
END_TEST

START_TEST(test_a_route_that_is_not_in_the_table)
{
    ck_assert_ptr_null(tierce__need_of_route("/metric"));
    ck_assert_uint_eq(tierce__need_of_route("/metrics")->right, TIERCE__RIGHT_READ);
    ck_assert_uint_eq(tierce__need_of_route("/livez")->right, 0);
}
END_TEST

CHECK_MAIN("grants", .setup = set_up, .teardown = tear_down,
           .tests = {test_lines_of_before, test_roles_and_scopes,
                     test_lines_of_one_name_share_their_limits, test_faults_are_named,
                     test_lines_behind_a_nul_are_not_lost, test_lines_may_be_repeated,
                     test_others_may_not_read_the_file, test_what_a_scope_holds,
                     test_events_of_a_scope, test_storages_of_a_scope,
                     test_every_call_needs_a_right, test_a_route_that_is_not_in_the_table})
