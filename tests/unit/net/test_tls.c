/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates: which ones a client accepts, and files that are replaced while they are in use. */
#include "check_main.h"
#include "log_record.h"
#include "server_process.h"

#include "net/tls.h"

static char folder[64], texts[6][128];

static void set_up(void)
{
    ck_assert(server_folder(folder) && tls_make_certificates(folder));
    record_log(TIERCE_LOG_WARN);
}

static void tear_down(void)
{
    server_remove(folder);
}

/* In the folder; texts[at] is the path. */
static const char *path_of(unsigned at, const char *name, const char *suffix)
{
    snprintf(texts[at], sizeof(texts[at]), "%s/%s.%s", folder, name, suffix);
    return texts[at];
}

static struct tierce__tls_context *server_of(const char *name)
{
    char why[256];
    struct tierce__tls_context *context;
    const struct tierce__tls files = {.certificate = path_of(0, name, "pem"),
                                      .key = path_of(1, name, "key"),
                                      .is_bare = true,
                                      .follows = true};
    ck_assert_msg(tierce__tls_server_context(&context, &files, why) == 0, "%s", why);
    return context;
}

static struct tierce__tls_context *client_of(const char *authority)
{
    char why[256];
    struct tierce__tls_context *context;
    const struct tierce__tls files = {.is_bare = true, .follows = true};
    ck_assert_msg(tierce__tls_client_context(&context, path_of(2, authority, "pem"), &files, why) ==
                      0,
                  "%s", why);
    return context;
}

/* Moves ciphertext. */
static void carry(struct tierce__tls_session *from, struct tierce__tls_session *to)
{
    uint8_t bytes[4096];
    for (size_t n; (n = tierce__tls_take(from, bytes, sizeof(bytes))) > 0;)
        ck_assert_int_eq(tierce__tls_feed(to, bytes, n), 0);
}

/* "": the client accepts the server as `host`; else why not. */
static const char *greet(struct tierce__tls_context *server, struct tierce__tls_context *client,
                         const char *host)
{
    static char problem[256];
    struct tierce__tls_session *ours, *theirs;
    uint8_t none[1];
    problem[0] = '\0';
    ck_assert_int_eq(tierce__tls_session_create(&ours, client, host), 0);
    ck_assert_int_eq(tierce__tls_session_create(&theirs, server, NULL), 0);
    for (unsigned i = 0; i < 4 && problem[0] == '\0'; i++) {
        if (tierce__tls_read(ours, none, 0) < 0)
            snprintf(problem, sizeof(problem), "%s", tierce__tls_problem(ours));
        carry(ours, theirs);
        (void)!tierce__tls_read(theirs, none, 0);
        carry(theirs, ours);
    }
    ck_assert(problem[0] != '\0' || (tierce__tls_is_ready(ours) && tierce__tls_is_ready(theirs)));
    tierce__tls_session_destroy(ours);
    tierce__tls_session_destroy(theirs);
    return problem;
}

START_TEST(which_certificates_are_accepted)
{
    struct tierce__tls_context *server = server_of("s"), *client = client_of("ca"),
                               *other = client_of("other");
    ck_assert_str_eq(greet(server, client, "127.0.0.1"), "");
    ck_assert_ptr_nonnull(strstr(greet(server, client, "127.0.0.2"), "IP address mismatch"));
    ck_assert_ptr_nonnull(strstr(greet(server, client, "localhost"), "ostname mismatch"));
    ck_assert_ptr_nonnull(strstr(greet(server, other, "127.0.0.1"), "local issuer"));
    tierce__tls_context_destroy(server);
    ck_assert(tls_make_certificate(folder, "old", "ca", "IP:127.0.0.1", -1));
    server = server_of("old");
    ck_assert_ptr_nonnull(strstr(greet(server, client, "127.0.0.1"), "expired"));
    tierce__tls_context_destroy(server);
    tierce__tls_context_destroy(client);
    tierce__tls_context_destroy(other);
}
END_TEST

START_TEST(hosts_of_a_certificate)
{
    ck_assert(tls_make_certificate(folder, "s", "ca", "IP:10.0.0.5,IP:fd00::5,DNS:a.example", 2));
    struct tierce__tls_context *server = server_of("s");
    ck_assert(tierce__tls_context_is_for(server, "10.0.0.5"));
    ck_assert(tierce__tls_context_is_for(server, "fd00:0::5"));
    ck_assert(tierce__tls_context_is_for(server, "a.example"));
    ck_assert(!tierce__tls_context_is_for(server, "10.0.0.6"));
    ck_assert(!tierce__tls_context_is_for(server, "10.0.0.50"));
    ck_assert(!tierce__tls_context_is_for(server, "fd00::6"));
    ck_assert(!tierce__tls_context_is_for(server, "b.example"));
    tierce__tls_context_destroy(server);
}
END_TEST

/* A service renews the certificate; then it is of another authority, which the client is given. */
START_TEST(files_that_are_replaced)
{
    ck_assert(tls_make_certificate(folder, "s", "ca", "IP:127.0.0.1", -1));
    struct tierce__tls_context *server = server_of("s"), *client = client_of("ca");
    ck_assert_ptr_nonnull(strstr(greet(server, client, "127.0.0.1"), "expired"));
    ck_assert(tls_make_certificate(folder, "s", "ca", "IP:127.0.0.1", 2));
    ck_assert_str_eq(greet(server, client, "127.0.0.1"), "");
    ck_assert(tls_make_authority(folder, "new"));
    ck_assert(tls_make_certificate(folder, "s", "new", "IP:127.0.0.1", 2));
    ck_assert_ptr_nonnull(strstr(greet(server, client, "127.0.0.1"), "local issuer"));
    ck_assert_int_eq(rename(path_of(3, "new", "pem"), path_of(4, "ca", "pem")), 0);
    ck_assert_str_eq(greet(server, client, "127.0.0.1"), "");
    ck_assert_uint_eq(recorded("tls_files_kept"), 0);
    tierce__tls_context_destroy(server);
    tierce__tls_context_destroy(client);
}
END_TEST

/* Between the moves of key and certificate they do not fit, and no connection fails for it. */
START_TEST(files_that_do_not_fit)
{
    struct tierce__tls_context *server = server_of("s"), *client = client_of("ca");
    ck_assert(tls_make_certificate(folder, "next", "ca", "IP:127.0.0.1", 2));
    ck_assert_int_eq(rename(path_of(3, "s", "key"), path_of(4, "away", "key")), 0);
    ck_assert_str_eq(greet(server, client, "127.0.0.1"), "");
    ck_assert_uint_eq(recorded_with("tls_files_kept", "s.key: No such file"), 1);
    ck_assert_int_eq(rename(path_of(3, "next", "key"), path_of(4, "s", "key")), 0);
    ck_assert_str_eq(greet(server, client, "127.0.0.1"), "");
    ck_assert_uint_eq(recorded_with("tls_files_kept", "mismatch"), 1);
    ck_assert_int_eq(rename(path_of(3, "next", "pem"), path_of(4, "s", "pem")), 0);
    ck_assert_str_eq(greet(server, client, "127.0.0.1"), "");
    ck_assert_uint_eq(recorded("tls_files_kept"), 2);
    tierce__tls_context_destroy(server);
    tierce__tls_context_destroy(client);
}
END_TEST

CHECK_MAIN("tls", .seconds = 120, .setup = set_up, .teardown = tear_down,
           .tests = {which_certificates_are_accepted, hosts_of_a_certificate,
                     files_that_are_replaced, files_that_do_not_fit})
