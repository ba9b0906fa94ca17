/* SPDX-License-Identifier: Apache-2.0 */
/* Election: one manager leads at a time, tokens rise, and a manager that lost its lease knows
 * it. */
#include "base/alloc.h"
#include "base/clock.h"
#include "check_main.h"
#include "redis_server.h"
#include "wait_for.h"
#include "manager/lease/elector.h"
#include "manager/lease/lease.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Long enough for a thread not to be starved of it on a busy machine; and for tests that are right
 * about a lease that is lost on the way. */
enum { LEASE_MS = 5000, SHORT_MS = 1000, INTERVAL_MS = 10 };

static uint32_t lease_ms = LEASE_MS; /* of the nodes that start */

static char why[256];

/* One manager: what its callbacks saw. */
struct node {
    struct tierce__elector *elector;
    const char *id;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned promotions, demotions;
    uint64_t fence;
    bool is_slow, fails, is_inside;
};

static uint64_t last_fence; /* of all nodes of a test; under leading_lock */
static pthread_mutex_t leading_lock = PTHREAD_MUTEX_INITIALIZER;

static int promote(void *arg, uint64_t fence)
{
    struct node *node = arg;
    pthread_mutex_lock(&leading_lock);
    ck_assert(fence == 0 || fence > last_fence);
    last_fence = fence;
    pthread_mutex_unlock(&leading_lock);
    pthread_mutex_lock(&node->lock);
    ck_assert(!tierce__elector_leads(node->elector));
    node->promotions++;
    node->fence = fence;
    node->is_inside = true;
    while (node->is_slow)
        pthread_cond_wait(&node->changed, &node->lock);
    node->is_inside = false;
    int rc = node->fails ? -EIO : 0;
    pthread_mutex_unlock(&node->lock);
    return rc;
}

static void demote(void *arg)
{
    struct node *node = arg;
    pthread_mutex_lock(&node->lock);
    ck_assert(!tierce__elector_leads(node->elector));
    node->demotions++;
    node->is_inside = true;
    while (node->is_slow)
        pthread_cond_wait(&node->changed, &node->lock);
    node->is_inside = false;
    pthread_mutex_unlock(&node->lock);
}

static void start(struct node *node, const char *id, const char *uri)
{
    pthread_mutex_init(&node->lock, NULL);
    pthread_cond_init(&node->changed, NULL);
    node->id = id;
    /* The callbacks need the handle that start hands out. */
    pthread_mutex_lock(&node->lock);
    pthread_mutex_lock(&leading_lock);
    int rc = tierce__elector_start(&node->elector,
                                   &(struct tierce__elector_opts){
                                       .size = sizeof(struct tierce__elector_opts),
                                       .uri = uri,
                                       .node_id = id,
                                       .lease_ms = lease_ms,
                                       .interval_ms = INTERVAL_MS,
                                       .promote = promote,
                                       .demote = demote,
                                       .arg = node,
                                   },
                                   why);
    pthread_mutex_unlock(&leading_lock);
    pthread_mutex_unlock(&node->lock);
    ck_assert_msg(rc == 0, "%s", why);
}

static void stop(struct node *node)
{
    tierce__elector_stop(node->elector);
    node->elector = NULL;
    ck_assert_uint_ge(node->promotions, node->demotions);
}

static bool leads(const struct node *node)
{
    return tierce__elector_leads(node->elector);
}

static void set_slow(struct node *node, bool is_slow)
{
    pthread_mutex_lock(&node->lock);
    node->is_slow = is_slow;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

static void set_fails(struct node *node, bool fails)
{
    pthread_mutex_lock(&node->lock);
    node->fails = fails;
    pthread_mutex_unlock(&node->lock);
}

static unsigned promotions(struct node *node)
{
    pthread_mutex_lock(&node->lock);
    unsigned count = node->promotions;
    pthread_mutex_unlock(&node->lock);
    return count;
}

static unsigned demotions(struct node *node)
{
    pthread_mutex_lock(&node->lock);
    unsigned count = node->demotions;
    pthread_mutex_unlock(&node->lock);
    return count;
}

static bool is_inside(struct node *node)
{
    pthread_mutex_lock(&node->lock);
    bool is = node->is_inside;
    pthread_mutex_unlock(&node->lock);
    return is;
}

static struct tierce__elector_state state_of(struct node *node)
{
    struct tierce__elector_state state;
    tierce__elector_state(node->elector, &state);
    return state;
}

static bool sees(struct node *node, const char *leader)
{
    return strcmp(state_of(node).leader, leader) == 0;
}

/* Waits for longer than a lease: nothing happens in that time, as the callbacks look. */
static void outlast_a_lease(void)
{
    usleep(LEASE_MS * 1100);
}

START_TEST(test_alone)
{
    struct node a = {0};
    uint64_t live = tierce__alloc_live();
    start(&a, "a", "");
    WAIT_FOR(leads(&a));
    struct tierce__elector_state state = state_of(&a);
    ck_assert(state.leads);
    ck_assert_uint_eq(state.fence, 0);
    ck_assert_str_eq(state.leader, "a");
    ck_assert_int_gt(state.lease_until_us, 0);
    outlast_a_lease();
    ck_assert_uint_eq(promotions(&a), 1);
    stop(&a);
    ck_assert_uint_eq(a.demotions, 1);
    ck_assert_uint_eq(tierce__alloc_live(), live);
}
END_TEST

START_TEST(test_two)
{
    struct node a = {0}, b = {0};
    start(&a, "a", "memory://two");
    WAIT_FOR(leads(&a));
    start(&b, "b", "memory://two");
    WAIT_FOR(sees(&b, "a"));
    outlast_a_lease();
    ck_assert(leads(&a) && !leads(&b));
    ck_assert_uint_eq(promotions(&b), 0);
    stop(&a);
    WAIT_FOR(leads(&b)); /* its token was compared in promote */
    ck_assert_uint_gt(b.fence, a.fence);
    start(&a, "a", "memory://two");
    WAIT_FOR(sees(&a, "b"));
    stop(&b);
    WAIT_FOR(leads(&a));
    stop(&a);
}
END_TEST

START_TEST(test_a_slow_promotion_keeps_the_lease)
{
    struct node a = {.is_slow = true}, b = {0};
    start(&a, "a", "memory://slow");
    WAIT_FOR(is_inside(&a));
    start(&b, "b", "memory://slow");
    outlast_a_lease();
    ck_assert(!leads(&a) && !leads(&b));
    ck_assert_uint_eq(promotions(&b), 0);
    set_slow(&a, false);
    WAIT_FOR(leads(&a));
    /* And a slow demotion: the next one begins when it is over. */
    set_slow(&a, true);
    tierce__elector_demote(a.elector);
    ck_assert(!leads(&a)); /* at once */
    WAIT_FOR(is_inside(&a));
    outlast_a_lease();
    ck_assert_uint_eq(promotions(&b), 0);
    tierce__elector_set_campaign_delay(a.elector, 3600 * 1000);
    set_slow(&a, false);
    WAIT_FOR(leads(&b));
    stop(&b);
    stop(&a);
}
END_TEST

START_TEST(test_a_failed_promotion_gives_way)
{
    struct node a = {.fails = true}, b = {0};
    lease_ms = SHORT_MS; /* the time for which it gives way */
    start(&a, "a", "memory://fail");
    WAIT_FOR(promotions(&a) >= 1);
    start(&b, "b", "memory://fail");
    WAIT_FOR(leads(&b));
    ck_assert_uint_eq(demotions(&a), 0);
    set_fails(&a, false);
    stop(&b);
    WAIT_FOR(leads(&a)); /* it tries again */
    stop(&a);
}
END_TEST

START_TEST(test_demote_and_campaign_delay)
{
    struct node a = {0}, b = {0};
    start(&a, "a", "memory://demote");
    WAIT_FOR(leads(&a));
    ck_assert_int_eq(tierce__elector_campaign_delay(a.elector), 0);
    tierce__elector_demote(a.elector);
    ck_assert(!leads(&a));
    WAIT_FOR(leads(&a)); /* without a delay and without others it leads again */
    ck_assert_uint_eq(demotions(&a), 1);
    tierce__elector_set_campaign_delay(a.elector, 3600 * 1000);
    ck_assert_int_eq(tierce__elector_campaign_delay(a.elector), 3600 * 1000);
    start(&b, "b", "memory://demote");
    tierce__elector_demote(a.elector);
    WAIT_FOR(leads(&b));
    WAIT_FOR(sees(&a, "b")); /* who does not run looks */
    stop(&b);
    WAIT_FOR(sees(&a, ""));
    ck_assert_uint_eq(promotions(&a), 2);
    stop(&a);
}
END_TEST

START_TEST(test_a_follower_is_demoted)
{
    struct node a = {0}, b = {0};
    start(&a, "a", "memory://follower");
    WAIT_FOR(leads(&a));
    start(&b, "b", "memory://follower");
    tierce__elector_set_campaign_delay(b.elector, 3600 * 1000);
    tierce__elector_demote(b.elector);
    WAIT_FOR(sees(&b, "a"));
    stop(&a);
    WAIT_FOR(sees(&b, ""));
    ck_assert_uint_eq(promotions(&b), 0);
    stop(&b);
}
END_TEST

START_TEST(test_what_cannot_be_started)
{
    static const char *const uris[] = {"nothing://x", "file://relative", "x", "://"};
    struct tierce__elector *elector = NULL;
    struct tierce__elector_opts opts = {
        .size = sizeof(opts), .node_id = "a", .promote = promote, .demote = demote};
    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        opts.uri = uris[i];
        ck_assert_int_eq(tierce__elector_start(&elector, &opts, why), TIERCE_E_CONFIG);
    }
    char long_id[200];
    memset(long_id, 'x', sizeof(long_id));
    long_id[199] = '\0';
    opts.uri = "";
    opts.node_id = long_id;
    ck_assert_int_eq(tierce__elector_start(&elector, &opts, why), TIERCE_E_CONFIG);
    opts.node_id = "a";
    for (uint64_t nth = 1; nth <= 2; nth++) {
        tierce__alloc_fail_nth(nth);
        ck_assert_int_eq(tierce__elector_start(&elector, &opts, why), -ENOMEM);
        tierce__alloc_fail_nth(0);
    }
}
END_TEST

/* ---- files and processes --------------------------------------------------------------------- */

static char folder[] = "/tmp/tierce-test-elector-XXXXXX";
static char uri[64], elsewhere[64];

static void set_up(void)
{
    temp_folder_make(folder);
    snprintf(uri, sizeof(uri), "file://%s", folder);
    snprintf(elsewhere, sizeof(elsewhere), "%s.away", folder);
}

static void tear_down(void)
{
    temp_folder_remove(folder);
    temp_folder_remove(elsewhere);
}

START_TEST(test_the_place_of_the_lease_goes)
{
    struct node a = {0};
    start(&a, "a", uri);
    WAIT_FOR(leads(&a));
    uint64_t first = a.fence;
    ck_assert_int_eq(rename(folder, elsewhere), 0);
    WAIT_FOR(!leads(&a));
    WAIT_FOR(demotions(&a) == 1);
    ck_assert_int_eq(rename(elsewhere, folder), 0);
    WAIT_FOR(leads(&a));
    ck_assert_uint_gt(a.fence, first);
    stop(&a);
}
END_TEST

/* A manager in a separate process, which answers requests. */
struct child {
    pid_t pid;
    int fd;
};

struct answer {
    uint64_t leads, fence;
};

static void be_child(int fd, const char *id)
{
    struct node node = {0};
    char question;
    start(&node, id, uri);
    while (read(fd, &question, 1) == 1 && question == '?') {
        struct tierce__elector_state state = state_of(&node);
        struct answer answer = {state.leads, state.fence};
        if (write(fd, &answer, sizeof(answer)) != (ssize_t)sizeof(answer))
            break;
    }
    stop(&node);
    _exit(0);
}

static void start_child(struct child *child, const char *id)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    child->pid = fork();
    ck_assert_int_ge(child->pid, 0);
    if (child->pid == 0) {
        close(fds[0]);
        be_child(fds[1], id);
    }
    close(fds[1]);
    child->fd = fds[0];
}

static struct answer ask(struct child *child)
{
    struct answer answer;
    ck_assert_int_eq(write(child->fd, "?", 1), 1);
    ck_assert_int_eq(read(child->fd, &answer, sizeof(answer)), sizeof(answer));
    return answer;
}

static void end_child(struct child *child, int signal)
{
    if (signal != 0)
        kill(child->pid, signal);
    else
        ck_assert_int_eq(write(child->fd, "x", 1), 1); /* others may hold its socket too */
    close(child->fd);
    ck_assert_int_eq(waitpid(child->pid, NULL, 0), child->pid);
}

START_TEST(test_a_killed_leader)
{
    struct child a, b;
    start_child(&a, "a");
    WAIT_FOR(ask(&a).leads);
    start_child(&b, "b");
    uint64_t first = ask(&a).fence;
    ck_assert(!ask(&b).leads);
    end_child(&a, SIGKILL);
    WAIT_FOR(ask(&b).leads);
    ck_assert_uint_gt(ask(&b).fence, first);
    end_child(&b, 0);
}
END_TEST

START_TEST(test_a_stopped_leader_knows_that_it_does_not_lead)
{
    struct child nodes[2];
    lease_ms = SHORT_MS;
    start_child(&nodes[0], "a");
    start_child(&nodes[1], "b");
    for (int i = 0; i < 3; i++) {
        struct answer answer = {0};
        int leader = 1;
        WAIT_FOR((answer = ask(&nodes[leader = 1 - leader])).leads);
        uint64_t fence = answer.fence;
        ck_assert_int_eq(kill(nodes[leader].pid, SIGSTOP), 0);
        WAIT_FOR((answer = ask(&nodes[1 - leader])).leads);
        ck_assert_uint_gt(answer.fence, fence);
        fence = answer.fence;
        /* The first thing that it does. It may only lead if it was elected anew. */
        ck_assert_int_eq(write(nodes[leader].fd, "?", 1), 1);
        ck_assert_int_eq(kill(nodes[leader].pid, SIGCONT), 0);
        ck_assert_int_eq(read(nodes[leader].fd, &answer, sizeof(answer)), sizeof(answer));
        ck_assert(!answer.leads || answer.fence > fence);
    }
    end_child(&nodes[0], 0);
    end_child(&nodes[1], 0);
}
END_TEST

START_TEST(test_a_dead_holder_of_another_boot)
{
    char path[128];
    struct node a = {0};
    snprintf(path, sizeof(path), "%s/_TAIR_KVCM_LEADER_KEY.lock", folder);
    FILE *file = fopen(path, "w");
    /* By the clock of its boot it would hold the lease for ever. */
    fprintf(file, "{\"value\":\"old\",\"expire_time_ms\":9000000000000000,\"boot_id\":\"other\","
                  "\"token\":7000000000000000}");
    fclose(file);
    last_fence = 7000000000000000;
    start(&a, "a", uri);
    WAIT_FOR(leads(&a));
    stop(&a);
}
END_TEST

/* While Redis takes no writes a leader has no token. It is replaced as soon as there can be one,
 * and not at the next fifth of the lease. */
START_TEST(test_a_leader_without_a_token_is_elected_anew)
{
    enum { HOUR_MS = 3600 * 1000 };
    struct redis_server redis = {0};
    struct node a = {0};
    ck_assert(redis_start(&redis, NULL));
    snprintf(uri, sizeof(uri), TIERCE__LEASE_REGISTRY "redis://127.0.0.1:%u?cluster_name=c",
             (unsigned)redis.port);
    ck_assert(redis_set(&redis, "maxmemory", "1"));
    lease_ms = HOUR_MS;
    start(&a, "a", uri);
    WAIT_FOR(leads(&a));
    ck_assert_uint_eq(a.fence, 0);
    ck_assert(redis_set(&redis, "maxmemory", "0"));
    WAIT_FOR(promotions(&a) == 2 && leads(&a));
    ck_assert_uint_gt(a.fence, 0);
    ck_assert_uint_eq(demotions(&a), 1);
    stop(&a);
    lease_ms = LEASE_MS;
    redis_stop(&redis);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("elector");
    TCase *tcase = tcase_create("memory");
    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, test_a_slow_promotion_keeps_the_lease);
    tcase_add_test(tcase, test_alone);
    tcase_add_test(tcase, test_two);
    tcase_add_test(tcase, test_a_failed_promotion_gives_way);
    tcase_add_test(tcase, test_demote_and_campaign_delay);
    tcase_add_test(tcase, test_a_follower_is_demoted);
    tcase_add_test(tcase, test_what_cannot_be_started);
    tcase_add_test(tcase, test_a_leader_without_a_token_is_elected_anew);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("file");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_set_timeout(tcase, 240);
    tcase_add_test(tcase, test_the_place_of_the_lease_goes);
    tcase_add_test(tcase, test_a_killed_leader);
    tcase_add_test(tcase, test_a_stopped_leader_knows_that_it_does_not_lead);
    tcase_add_test(tcase, test_a_dead_holder_of_another_boot);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return check_main_at_once(make_suite);
}
