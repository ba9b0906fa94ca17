/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that read each other's chunks by TLS: who reads from whom, and certificates that are
 * wrong or renewed; and a manager with TLS and tenants. */
#include "peers_fixture.h"
#include "server_process.h"

#include "base/bytes.h"

#include <openssl/evp.h>
#include <sys/stat.h>

static char folder[64];

static void set_up(void)
{
    ck_assert(server_folder(folder) && tls_make_certificates(folder));
}

static void tear_down(void)
{
    server_remove(folder);
}

/* With certificate and key NAME of the folder, and this authority. */
static void open_tls_engine(unsigned i, const char *name, const char *authority)
{
    char certificate[96], key[96], ca[96];
    snprintf(certificate, sizeof(certificate), "%s/%s.pem", folder, name);
    snprintf(key, sizeof(key), "%s/%s.key", folder, name);
    snprintf(ca, sizeof(ca), "%s/%s.pem", folder, authority);
    fx_open(&fx[i], true,
            (const char *[]){"remote.urls", url, "peers.certificate", certificate, "peers.key", key,
                             "peers.ca", ca, NULL});
}

static struct tierce__transfer_stats sent_by(unsigned engine)
{
    struct tierce__transfer_stats sent;
    struct tierce__peer_keeper_stats stats;
    tierce__peer_server_stats(tierce__peers_server(fx[engine].engine->peers), &sent, &stats);
    return sent;
}

/* Two engines with TLS and one without: nobody connects across, so no secret is sent in plain. */
START_TEST(engines_with_tls_and_without)
{
    start_manager(0);
    open_tls_engine(0, "s", "ca");
    open_tls_engine(1, "s", "ca");
    open_engine(2);
    store(0, 1);
    store(2, 2);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_uint_ge(sent_by(0).read_bytes, read_by(1).bytes);
    uint64_t accepted = sent_by(0).accepted;
    WAIT_FOR(has_joined(2)); /* so that nothing but TLS keeps it from the chunks */
    record_log(TIERCE_LOG_WARN);
    WAIT_FOR(peers_have(2, 1) == 0 && recorded_with("peer_refused", "requires TLS") > 0);
    WAIT_FOR(peers_have(1, 2) == 0 && recorded_with("peer_refused", "does not use TLS") > 0);
    ck_assert_int_eq(load(2, 1, 0), 0);
    ck_assert_int_eq(load(1, 2, 0), 0);
    ck_assert_uint_eq(sent_by(0).accepted, accepted);
    ck_assert_uint_eq(sent_by(2).accepted, 0);
    silence_log();
    has_no_lease(0);
    for (unsigned i = 0; i < ENGINES; i++)
        close_engine(i);
    running_manager_stop(&manager);
}
END_TEST

/* A new reader of engine 0 has no chunk, or all of them. */
static void reads(const char *authority, const char *fault)
{
    open_tls_engine(1, "reader", authority);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    record_log(TIERCE_LOG_WARN);
    ck_assert_int_eq(load(1, 1, 0), fault == NULL ? CHAIN_BLOCKS : 0);
    if (fault != NULL)
        ck_assert_msg(recorded_with("peer_failed", fault) > 0, "%s", recorded_text());
    silence_log();
    close_engine(1);
    fx[1] = (struct fixture){0};
}

/* The certificate of engine 0, which is not restarted. */
START_TEST(certificates_that_are_wrong_and_renewed)
{
    start_manager(0);
    ck_assert(tls_make_certificate(folder, "reader", "ca", "IP:127.0.0.1", 2));
    open_tls_engine(0, "s", "ca");
    store(0, 1);
    reads("other", "local issuer");
    ck_assert(tls_make_certificate(folder, "s", "ca", "IP:127.0.0.2", 2));
    reads("ca", "IP address mismatch");
    ck_assert(tls_make_certificate(folder, "s", "ca", "IP:127.0.0.1", -1));
    reads("ca", "expired");
    ck_assert(tls_make_certificate(folder, "s", "ca", "IP:127.0.0.1", 2));
    reads("ca", NULL);
    close_engine(0);
    running_manager_stop(&manager);
}
END_TEST

/* ---- the manager's TLS ----------------------------------------------------------------------- */

/* A file of mode 0600 in the folder. */
static void write_secret(const char *name, const char *text)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, 0600), 0);
}

/* Engines of the tenants a and b, whose tokens are their names. */
static void write_tokens(void)
{
    char lines[256];
    size_t used = 0;
    for (const char *tenant = "ab"; *tenant != '\0'; tenant++) {
        uint8_t digest[32];
        char hex[2 * sizeof(digest) + 1];
        ck_assert_int_eq(EVP_Digest(tenant, 1, digest, NULL, EVP_sha256(), NULL), 1);
        tierce__hex_encode(hex, digest, sizeof(digest));
        used += (size_t)snprintf(lines + used, sizeof(lines) - used, "user engine-%c %s team-%c\n",
                                 *tenant, hex, *tenant);
    }
    write_secret("tokens", lines);
    write_secret("a", "a\n");
    write_secret("b", "b\n");
    write_secret("unknown", "mallory\n");
}

static void start_strict_manager(void)
{
    char tokens[128], certificate[128], key[128];
    write_tokens();
    snprintf(tokens, sizeof(tokens), "--auth.token_file=%s/tokens", folder);
    snprintf(certificate, sizeof(certificate), "--tls.certificate=%s/s.pem", folder);
    snprintf(key, sizeof(key), "--tls.key=%s/s.key", folder);
    running_manager_start(&manager,
                          (const char *[]){"--auth.required=true", "--directory.silence=2s", tokens,
                                           certificate, key, NULL});
}

/* An engine of team-a by its peers, and, if it `reports` so, by directory.manager; with this token
 * and authority of the folder, or, with ca NULL, without TLS. */
static void open_tenant(unsigned i, const char *token, const char *ca, bool reports)
{
    char peers[256], directory[256], authority[96] = "";
    if (ca != NULL)
        snprintf(authority, sizeof(authority), "&ca_file=%s/%s", folder, ca);
    snprintf(peers, sizeof(peers), "peers%s://127.0.0.1:%u/team-a?token_file=%s/%s%s",
             ca != NULL ? "+tls" : "", manager.ports.meta_grpc, folder, token, authority);
    snprintf(directory, sizeof(directory), "fleet%s", peers + strlen("peers"));
    fx_open(&fx[i], true,
            (const char *[]){"remote.urls", peers, reports ? "directory.manager" : NULL, directory,
                             NULL});
}

/* The directory does not accept the engine, for this reason, and it reads nothing. */
static void is_kept_out(const char *token, const char *ca, const char *why)
{
    uint64_t accepted = sent_by(0).accepted;
    record_log(TIERCE_LOG_WARN);
    open_tenant(2, token, ca, false);
    WAIT_FOR(recorded("directory_unreachable") > 0);
    ck_assert_msg(recorded_with("directory_unreachable", why) == 1, "%s", recorded_text());
    ck_assert_int_eq(load(2, 1, 0), 0);
    ck_assert(!has_joined(2) && !atomic_load(&fx[2].engine->reports.is_complete));
    ck_assert_uint_eq(sent_by(0).accepted, accepted);
    close_engine(2);
    silence_log();
    fx[2] = (struct fixture){0};
}

/* A chunk goes from one engine of a tenant to another one, which both found each other through the
 * manager's TLS: one by directory.manager, one by remote.urls. */
START_TEST(a_manager_with_tls_and_tenants)
{
    start_strict_manager();
    open_tenant(0, "a", "ca.pem", true);
    open_tenant(1, "a", "ca.pem", false);
    store(0, 1);
    WAIT_FOR(finds(1, 1, CHAIN_BLOCKS));
    ck_assert_int_eq(load(1, 1, 0), CHAIN_BLOCKS);
    ck_assert_uint_eq(read_by(1).chunks, CHAIN_BLOCKS / FX_CHUNK_BLOCKS);
    ck_assert_uint_ge(kept(0).memory_hits, CHAIN_BLOCKS / FX_CHUNK_BLOCKS);
    is_kept_out("a", "other.pem", "set ca_file= to the CA of the manager's certificate");
    is_kept_out("a", NULL, "if the manager has TLS, set a scheme with +tls (peers+tls://");
    is_kept_out("unknown", "ca.pem", "unknown token");
    is_kept_out("b", "ca.pem", "group team-a does not exist, or is outside the scope");
    has_no_lease(0);
    close_engine(0);
    close_engine(1);
    running_manager_stop(&manager);
}
END_TEST

/* ---- configuration --------------------------------------------------------------------------- */

/* files: three names in the folder, or NULL. */
static void is_refused(const char *const files[3], const char *listen, const char *word)
{
    static const char *const names[3] = {"peers.certificate", "peers.key", "peers.ca"};
    char paths[3][96], why[TIERCE_CONFIG_ERROR_BYTES];
    const char *sets[11] = {"remote.urls", "peers://127.0.0.1:1", "peers.listen", listen};
    struct tierce_engine *engine;
    for (size_t i = 0, at = 4; i < 3; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s/%s", folder, files[i] != NULL ? files[i] : "");
        if (files[i] != NULL) {
            sets[at++] = names[i];
            sets[at++] = paths[i];
        }
    }
    struct tierce_config *config = fx_config("", sets);
    ck_assert_int_eq(tierce_engine_open(&engine, config, why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, word) != NULL, "%s", why);
    tierce_config_destroy(config);
}

START_TEST(a_wrong_configuration_is_refused)
{
    is_refused((const char *const[]){"s.pem", NULL, "ca.pem"}, "", "set together");
    is_refused((const char *const[]){NULL, "s.key", "ca.pem"}, "", "set together");
    is_refused((const char *const[]){"s.pem", "s.key", NULL}, "", "requires peers.ca");
    is_refused((const char *const[]){NULL, NULL, "ca.pem"}, "", "requires peers.certificate");
    is_refused((const char *const[]){"none.pem", "s.key", "ca.pem"}, "", "none.pem");
    is_refused((const char *const[]){"s.pem", "ca.key", "ca.pem"}, "", "mismatch");
    is_refused((const char *const[]){"s.pem", "s.key", "none.pem"}, "", "peers.ca: ");
    is_refused((const char *const[]){"s.pem", "s.key", "ca.pem"}, "127.0.0.1,127.0.0.2",
               "is not for 127.0.0.2");
}
END_TEST

CHECK_MAIN("peers_tls", .seconds = 180, .setup = set_up, .teardown = tear_down,
           .tests = {engines_with_tls_and_without, certificates_that_are_wrong_and_renewed,
                     a_manager_with_tls_and_tenants, a_wrong_configuration_is_refused})
