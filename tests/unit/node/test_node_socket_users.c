/* SPDX-License-Identifier: Apache-2.0 */
/* Access of other users to a node's native socket: real users, each in its own process.
 */
#include "check_main.h"
#include "native_harness.h"
#include "node_harness.h"

#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <tierce/log.h>

#define NODE_USER  54001
#define GUEST      54002
#define STRANGER   54003
#define GUEST_TEXT "54002"
#define GROUP      54100
#define GROUP_TEXT "54100"

static char folder[64], path[96];
static pid_t node_pid;
static int node_says, says; /* the two ends of what the node tells this test */

/* ---- users ---- */

static void become(uid_t user, gid_t group)
{
    gid_t groups[] = {group};
    if (setgroups(group != 0 ? 1 : 0, groups) != 0 || setgid(user) != 0 || setuid(user) != 0)
        _exit(99);
}

/* Runs `what` as a user in a group besides; returns what it returns. */
static int as_user(uid_t user, gid_t group, int (*what)(const char *arg), const char *arg)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        native_is_mortal = true;
        become(user, group);
        _exit(what(arg));
    }
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A node logs which user it has rejected. */
static void tell_refused(void *arg, enum tierce_log_level level, const char *event,
                         const char *fields)
{
    (void)arg;
    (void)level;
    if (strcmp(event, "native_connection_refused") == 0 &&
        write(says, fields, strlen(fields)) != (ssize_t)strlen(fields))
        _exit(1);
}

/* A process of this test's own user, or of another, that is a node until the end. */
static void start_node(uid_t user, gid_t group, const char *users, const char *groups)
{
    int told[2];
    char byte;
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    ck_assert_int_eq(chown(folder, user, user), 0);
    ck_assert_int_eq(chmod(folder, 0711), 0);
    snprintf(path, sizeof(path), "%s/node.sock", folder);
    ck_assert_int_eq(pipe(told), 0);
    node_pid = fork();
    if (node_pid == 0) {
        struct node_harness node;
        char listen[128], allowed[128], group_flag[128];
        char *argv[] = {listen, allowed, group_flag, (char *)"--listen.resp=false",
                        (char *)"--listen.lm=false"};
        snprintf(listen, sizeof(listen), "--listen.native=%s", path);
        snprintf(allowed, sizeof(allowed), "--listen.native_users=%s", users);
        snprintf(group_flag, sizeof(group_flag), "--listen.native_group=%s", groups);
        become(user, group);
        umask(0077);
        says = told[1];
        tierce_set_log_fn(tell_refused, NULL, TIERCE_LOG_WARN);
        harness_start(&node, 5, argv);
        if (write(says, "", 1) == 1)
            pause();
        _exit(1);
    }
    close(told[1]);
    node_says = told[0];
    ck_assert_int_eq(read(node_says, &byte, 1), 1);
}

static void end_node(void)
{
    int status;
    ck_assert_int_eq(kill(node_pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(node_pid, &status, 0), node_pid);
    close(node_says);
    temp_folder_remove(folder);
}

/* ---- what they do ---- */

enum { LET_IN = 10, NO_FILE, TOLD, SHUT };

/* At the door, with bare sockets. */
static int knock(const char *arg)
{
    static struct native_client c;
    (void)arg;
    if (native_connect(path) < 0)
        return errno == EACCES ? NO_FILE : 1;
    int32_t status = native_hello(&c, path, NULL);
    if (status == 0)
        return native_view(&c, 0, FX_LAYERS, 0, 1) == 0 ? LET_IN : 2;
    return status == -EACCES ? TOLD : SHUT;
}

static char last_reason[512];

static void keep_reason(void *arg, enum tierce_log_level level, const char *event,
                        const char *fields)
{
    (void)arg;
    (void)level;
    if (strcmp(event, "node_not_there") == 0)
        snprintf(last_reason, sizeof(last_reason), "%s", fields);
}

/* An engine that asks the node, which is said to be of user `arg`: stores, loads. */
static int use_engine(const char *arg)
{
    static struct fixture fx;
    struct tierce_config *config;
    struct tierce_engine *engine;
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct tierce_namespace ns = fx_namespace();
    tierce_set_log_fn(keep_reason, NULL, TIERCE_LOG_WARN);
    if (tierce_config_create(&config) != 0 ||
        tierce_config_set(config, "node.socket", path, why) != 0 ||
        tierce_config_set(config, "node.user", arg, why) != 0 ||
        tierce_config_set(config, "timeout.lookup", "10s", why) != 0 ||
        tierce_engine_open(&engine, config, why) != 0 ||
        tierce_view_open(&fx.view, engine, &ns, &(struct tierce_shard){0, 1, 0, 1}) != 0)
        return 1;
    for (uint32_t l = 0; l < FX_LAYERS; l++)
        fx.layers[l] = (struct tierce_paged_layer){calloc(FX_BLOCKS, 1024), 1024, fx_cells[l]};
    fx.paged = (struct tierce_paged){sizeof(fx.paged), fx.layers, FX_LAYERS, FX_BLOCKS,
                                     TIERCE_DEVICE_HOST};
    struct tierce_chain *chain = fx_chain(&fx, (uint32_t)getpid(), 8, 0); /* nobody's yet */
    struct tierce_transfer_opts what = fx_what(&fx, chain, 0, 8, fx_ids);
    bool stored = fx_store(&fx, chain, 8, fx_ids, false) == 8;
    fx_wipe(&fx);
    bool loaded = tierce_load(fx.view, &what, NULL) == 8;
    if (stored && loaded)
        return fx_right(&fx, chain, 7, fx_ids[7]) ? LET_IN : 2;
    return strstr(last_reason, "node.user") != NULL             ? NO_FILE
           : strstr(last_reason, "listen.native_users") != NULL ? TOLD
                                                                : SHUT;
}

static mode_t mode(void)
{
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_mode & 0777;
}

START_TEST(nobody_else_by_default)
{
    start_node(NODE_USER, 0, "", "");
    ck_assert_uint_eq(mode(), 0600);
    ck_assert_int_eq(as_user(NODE_USER, 0, knock, NULL), LET_IN);
    ck_assert_int_eq(as_user(0, 0, knock, NULL), LET_IN);
    ck_assert_int_eq(as_user(GUEST, 0, knock, NULL), NO_FILE);
    ck_assert_int_eq(as_user(GUEST, 0, use_engine, "54001"), TOLD);
    end_node();
}
END_TEST

START_TEST(users_that_are_named)
{
    start_node(NODE_USER, 0, " " GUEST_TEXT ", daemon", "");
    ck_assert_uint_eq(mode(), 0666);
    ck_assert_int_eq(as_user(NODE_USER, 0, knock, NULL), LET_IN);
    ck_assert_int_eq(as_user(GUEST, 0, knock, NULL), LET_IN);
    ck_assert_int_eq(as_user(1, 0, knock, NULL), LET_IN); /* daemon */
    ck_assert_int_eq(as_user(STRANGER, 0, knock, NULL), TOLD);
    ck_assert_int_eq(as_user(STRANGER, GROUP, knock, NULL), TOLD);
    end_node();
}
END_TEST

/* As a user whose first group has another number. */
static int knock_from_a_group(const char *arg)
{
    if (setgroups(0, NULL) != 0 || setgid(GROUP) != 0 || setuid(STRANGER) != 0)
        return 99;
    return knock(arg);
}

START_TEST(who_was_refused_is_told)
{
    char got[512] = "", wanted[64];
    start_node(NODE_USER, 0, GUEST_TEXT, "");
    ck_assert_int_eq(as_user(0, 0, knock_from_a_group, NULL), TOLD);
    ck_assert_int_gt(read(node_says, got, sizeof(got) - 1), 0);
    snprintf(wanted, sizeof(wanted), " uid=%d gid=%d ", STRANGER, GROUP);
    ck_assert_msg(strstr(got, wanted) != NULL, "%s", got);
    end_node();
}
END_TEST

START_TEST(members_of_a_group)
{
    start_node(NODE_USER, GROUP, "", GROUP_TEXT);
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_gid, GROUP);
    ck_assert_uint_eq(mode(), 0660);
    ck_assert_int_eq(as_user(STRANGER, GROUP, knock, NULL), LET_IN);
    ck_assert_int_eq(as_user(GROUP, 0, knock, NULL), LET_IN); /* its first group */
    ck_assert_int_eq(as_user(STRANGER, GROUP + 1, knock, NULL), NO_FILE);
    end_node();
    start_node(NODE_USER, GROUP, GUEST_TEXT, GROUP_TEXT);
    ck_assert_uint_eq(mode(), 0666);
    ck_assert_int_eq(as_user(GUEST, 0, knock, NULL), LET_IN);
    ck_assert_int_eq(as_user(STRANGER, GROUP, knock, NULL), LET_IN);
    ck_assert_int_eq(as_user(STRANGER, 0, knock, NULL), TOLD);
    end_node();
}
END_TEST

/* A client looks at whose the node is, too. */
START_TEST(an_engine_names_the_node_s_user)
{
    start_node(NODE_USER, 0, GUEST_TEXT, "");
    ck_assert_int_eq(as_user(GUEST, 0, use_engine, "54001"), LET_IN);
    ck_assert_int_eq(as_user(NODE_USER, 0, use_engine, ""), LET_IN);
    ck_assert_int_eq(as_user(GUEST, 0, use_engine, ""), NO_FILE);
    ck_assert_int_eq(as_user(GUEST, 0, use_engine, "54003"), NO_FILE);
    ck_assert_int_eq(as_user(GUEST, 0, use_engine, "nobody-of-this-name"), NO_FILE);
    ck_assert_int_eq(as_user(STRANGER, 0, use_engine, "54001"), TOLD);
    end_node();
    start_node(0, 0, GUEST_TEXT, "");
    ck_assert_int_eq(as_user(GUEST, 0, use_engine, ""), LET_IN); /* root's */
    end_node();
}
END_TEST

static int start_wrongly(const char *flag)
{
    char listen[128], why[TIERCE_CONFIG_ERROR_BYTES] = "";
    char *argv[] = {listen,
                    (char *)(uintptr_t)flag,
                    (char *)"--listen.resp=false",
                    (char *)"--listen.lm=false",
                    (char *)"--listen.http_port=0",
                    (char *)"--control.socket="};
    char *const no_environment[] = {NULL};
    struct tierce__config_error error;
    struct tierce__node_config config;
    struct tierce__node *node;
    struct stat info;
    snprintf(listen, sizeof(listen), "--listen.native=%s/other.sock", folder);
    if (tierce__node_config_load(&config, 6, argv, no_environment, &error) != 0)
        return 1;
    if (tierce__node_start(&node, &config, why) == 0)
        return 2;
    if (stat(listen + strlen("--listen.native="), &info) == 0)
        return 3; /* no socket is left behind */
    return strstr(why, "listen.native_") != NULL && strstr(why, strchr(flag, '=') + 1) != NULL ? 0
                                                                                               : 4;
}

START_TEST(names_that_are_none)
{
    start_node(NODE_USER, 0, "", "");
    static const char *const flags[] = {"--listen.native_users=no-such-user",
                                        "--listen.native_group=no-such-group",
                                        "--listen.native_group=54100"}; /* not a member */
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        ck_assert_int_eq(as_user(NODE_USER, 0, start_wrongly, flags[i]), 0);
    ck_assert_int_eq(as_user(NODE_USER, 0, start_wrongly, "--listen.native_users=4294967295"), 0);
    end_node();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node_guests");
    TCase *t = tcase_create("allowed");
    tcase_set_timeout(t, 120);
    if (geteuid() == 0) { /* who may be another user */
        tcase_add_test(t, nobody_else_by_default);
        tcase_add_test(t, users_that_are_named);
        tcase_add_test(t, who_was_refused_is_told);
        tcase_add_test(t, members_of_a_group);
        tcase_add_test(t, an_engine_names_the_node_s_user);
        tcase_add_test(t, names_that_are_none);
    }
    suite_add_tcase(suite, t);
    return check_main(suite);
}
