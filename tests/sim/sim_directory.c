/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_directory.h"
#include "base/clock.h"
#include "check_main.h"
#include "manager/api/api_private.h"
#include "sim_sched.h"
#include "sim_sockets.h"

/* A file of its own, because names of the manager and of an engine collide. */

enum { SILENCE_MS = 3000, TICK_MS = 200 };

static struct {
    struct tierce__manager manager;
    struct tierce__route routes[TIERCE__RPC_COUNT];
    pthread_t ticker;
    bool ends;
} directory;

SIM_WRAPS(bool, tierce__manager_leads, const struct tierce__manager *manager);

bool __wrap_tierce__manager_leads(const struct tierce__manager *manager)
{
    (void)manager;
    return true;
}

static void *directory_tick(void *arg)
{
    (void)arg;
    while (!directory.ends) {
        sim_sleep_ns(TICK_MS * TIERCE__MS_NS);
        tierce__holdings_tick(directory.manager.holdings, tierce__now_ns());
    }
    return NULL;
}

static void directory_serve(struct tierce__manager *m)
{
    char why[256];
    struct tierce__server *server;
    const struct tierce__listener listener = {
        .protocol = TIERCE__SERVE_GRPC,
        .host = "127.0.0.1",
        .port = DIRECTORY_PORT,
        .routes = directory.routes,
        .route_count = tierce__api_routes(m, TIERCE__SERVE_GRPC, 1u << TIERCE__RPC_PORT_META,
                                          directory.routes)};
    int rc = tierce__server_start(
        &server,
        &(struct tierce__server_opts){.size = sizeof(struct tierce__server_opts),
                                      .listeners = &listener,
                                      .listener_count = 1,
                                      .loops = 1,
                                      .workers = 1},
        why);
    ck_assert_msg(rc == 0, "%s", why);
    atomic_store(&m->server, server);
}

void sim_directory_open(void)
{
    struct tierce__manager *m = &directory.manager;
    char why[256];
    sim_enter_host(DIRECTORY_HOST);
    sim_sockets_up(DIRECTORY_HOST);
    memset(&directory, 0, sizeof(directory));
    int rc = tierce__registry_open(
        &m->registry,
        &(struct tierce__registry_opts){.size = sizeof(struct tierce__registry_opts), .uri = ""},
        why);
    ck_assert_msg(rc == 0, "%s", why);
    rc = tierce__auth_create(&m->auth,
                             &(struct tierce__auth_opts){.size = sizeof(struct tierce__auth_opts),
                                                         .registry = m->registry},
                             why);
    ck_assert_msg(rc == 0, "%s", why);
    ck_assert_int_eq(tierce__faults_create(&m->faults), 0);
    ck_assert_int_eq(tierce__holdings_create(&m->holdings,
                                             &(struct tierce__holdings_opts){
                                                 .size = sizeof(struct tierce__holdings_opts),
                                                 .silence_ms = SILENCE_MS}),
                     0);
    atomic_store(&m->state, TIERCE__MANAGER_LEADS);
    directory_serve(m);
    ck_assert_int_eq(pthread_create(&directory.ticker, NULL, directory_tick, NULL), 0);
    sim_enter_host(0);
}

void sim_directory_close(bool is_killed)
{
    struct tierce__manager *m = &directory.manager;
    if (is_killed)
        sim_sockets_down(DIRECTORY_HOST, sim_below(2) == 0);
    directory.ends = true;
    pthread_join(directory.ticker, NULL);
    tierce__server_stop(atomic_load(&m->server), 1000);
    tierce__holdings_destroy(m->holdings);
    tierce__auth_destroy(m->auth);
    tierce__faults_destroy(m->faults);
    tierce__registry_close(m->registry);
}
