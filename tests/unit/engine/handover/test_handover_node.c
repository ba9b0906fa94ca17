/* SPDX-License-Identifier: Apache-2.0 */
/* Offers of a client whose node is restarted. */
#define TIERCE_TEST_NODE
#include <errno.h>

#include "base/alloc.h"
#include "check_main.h"
#include "engine/handover/handover.h"
#include "engine_fixture.h"
#include "log_record.h"
#include "server_process.h"
#include "wait_for.h"

#define LONG_MS 20000u

static struct fixture fx;
static char folder[64];
static struct tierce__handover *handover;

static void restart_node(bool with_tls)
{
    static char texts[4][160];
    char *arguments[6] = {texts[0], (char *)"--memory.size=4MiB", texts[1], texts[2], texts[3]};
    snprintf(texts[0], sizeof(texts[0]), "--listen.native=%s/node", fx.socket_folder);
    snprintf(texts[1], sizeof(texts[1]), "--peers.ca=%s/ca.pem", folder);
    snprintf(texts[2], sizeof(texts[2]), "--peers.certificate=%s/s.pem", folder);
    snprintf(texts[3], sizeof(texts[3]), "--peers.key=%s/s.key", folder);
    harness_stop(&fx.node);
    harness_start(&fx.node, with_tls ? 5 : 2, arguments);
    fx.engine = fx.node.node->engine;
}

/* As soon as the client has found the node, and the node has the port. */
static int expect(void)
{
    static unsigned count;
    char token[40];
    int rc = TIERCE_E_DOWN;
    snprintf(token, sizeof(token), "0123456789abcdef%08u", count++);
    WAIT_WITHIN(30000, (rc = tierce__handover_expect(handover, token, LONG_MS)) != TIERCE_E_DOWN &&
                           rc != -EADDRINUSE && rc != TIERCE_E_DEADLINE);
    return rc;
}

/* Its offers would name the other kind of server, and no decoder could read them. */
START_TEST(a_node_that_is_restarted_with_tls)
{
    char why[TIERCE__HANDOVER_WHY_BYTES];
    tierce_set_log_fn(record_line, NULL, TIERCE_LOG_WARN);
    ck_assert(server_folder(folder) && tls_make_certificates(folder));
    fx_open(&fx, false, NULL);
    ck_assert_int_eq(tierce__handover_start(&handover, fx.client, "127.0.0.1", 0, why), 0);
    ck_assert(!tierce__handover_uses_tls(handover));
    uint16_t port = tierce__handover_port(handover);
    ck_assert_int_eq(expect(), 0);
    tierce_view_close(fx.inner);
    fx.inner = fx.view;
    restart_node(true);
    ck_assert_int_eq(expect(), TIERCE_E_CONFIG);
    ck_assert_int_eq(expect(), TIERCE_E_CONFIG);
    ck_assert_uint_eq(recorded_with("handover_node_changed", "restarted with TLS"), 1);
    restart_node(false);
    ck_assert_int_eq(expect(), 0);
    ck_assert_uint_eq(tierce__handover_port(handover), port);
    tierce__handover_stop(handover);
    fx_close(&fx);
    fx_remove(&fx);
    server_remove(folder);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
}
END_TEST

CHECK_MAIN("handover_node", .seconds = 60, .tests = {a_node_that_is_restarted_with_tls})
