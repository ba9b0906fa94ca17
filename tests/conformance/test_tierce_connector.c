/* SPDX-License-Identifier: Apache-2.0 */
/* Against a node of this process by tierce://: without protection on loopback, with tokens, with
 * TLS, and with client certificates. */
#include "conformance/connector_conformance.h"
#include "core/key/sha256.h"
#include "node_harness.h"
#include "server_process.h"

#include <stdlib.h>

#define CAPS  (TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_LISTS | TIERCE__CONNECTOR_EMPTY_MISSES)
#define TOKEN "s3cret/@ token"

static struct node_harness node;
static char folder[64];

static void write_tokens(const char *path)
{
    uint8_t digest[32];
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    tierce__sha256(digest, TOKEN, strlen(TOKEN));
    fprintf(file, "read,write name ");
    for (size_t i = 0; i < sizeof(digest); i++)
        fprintf(file, "%02x", digest[i]);
    fprintf(file, " tenant\n");
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    fclose(file);
}

struct opts {
    bool tokens, tls, client_ca;
    const char *user, *host, *params; /* of the URL; %s stands for the folder */
};

static bool start(char *url, size_t room, void *ctx)
{
    static char texts[5][128];
    const struct opts *opts = ctx;
    char *argv[5], params[512];
    int argc = 0;
    snprintf(folder, sizeof(folder), "/tmp/tierce-node-XXXXXX");
    if (mkdtemp(folder) == NULL || !tls_make_certificates(folder))
        return false;
    snprintf(texts[argc++], sizeof(texts[0]), "--memory.size=256MiB");
    if (opts->tokens) {
        snprintf(texts[argc++], sizeof(texts[0]), "--auth.token_file=%s/tokens", folder);
        write_tokens(strchr(texts[argc - 1], '=') + 1);
    }
    if (opts->tls) {
        snprintf(texts[argc++], sizeof(texts[0]), "--tls.certificate=%s/s.pem", folder);
        snprintf(texts[argc++], sizeof(texts[0]), "--tls.key=%s/s.key", folder);
    }
    if (opts->client_ca)
        snprintf(texts[argc++], sizeof(texts[0]), "--tls.client_ca=%s/ca.pem", folder);
    for (int i = 0; i < argc; i++)
        argv[i] = texts[i];
    harness_start(&node, argc, argv);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(params, sizeof(params), opts->params, folder, folder, folder);
#pragma GCC diagnostic pop
    snprintf(url, room, "tierce://%s%s:%u%s", opts->user, opts->host, (unsigned)node.ports.resp,
             params);
    return true;
}

static void stop(void *ctx)
{
    (void)ctx;
    harness_stop(&node);
    server_remove(folder);
}

#define MUTUAL "?ca_file=%s/ca.pem&client_certificate=%s/s.pem&client_key=%s/s.key&timeout_ms=60000"

static struct opts plain = {.user = "", .host = "127.0.0.1", .params = "?timeout_ms=60000"},
                   tokens = {.tokens = true,
                             .user = "s3cret%2F%40%20token@",
                             .host = "localhost",
                             .params = "?connections=2&ttl=1h&prefix=a*%%3F%%5B%%5C"
                                       "&timeout_ms=60000"},
                   tls = {.tls = true,
                          .user = "",
                          .host = "127.0.0.1",
                          .params = "?ca_file=%s/ca.pem&timeout_ms=60000"},
                   mutual = {.tokens = true,
                             .tls = true,
                             .client_ca = true,
                             .user = "name:s3cret%2F%40%20token@",
                             .host = "127.0.0.1",
                             .params = MUTUAL};

static const struct connector_factory factories[] = {
    {.name = "node", .start = start, .stop = stop, .ctx = &plain, .caps = CAPS},
    {.name = "node with tokens",
     .start = start,
     .stop = stop,
     .ctx = &tokens,
     .caps = CAPS,
     .is_twin = true},
    {.name = "node by TLS",
     .start = start,
     .stop = stop,
     .ctx = &tls,
     .caps = CAPS,
     .is_twin = true},
    {.name = "node with all", .start = start, .stop = stop, .ctx = &mutual, .caps = CAPS},
};

int main(void)
{
    return connector_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
