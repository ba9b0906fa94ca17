/* SPDX-License-Identifier: Apache-2.0 */
/* S3 over TLS: which servers are accepted, and which receive nothing. */
#include "check_main.h"
#include "s3_case.h"
#include "tls_front.h"

static struct tls_front front;

static bool have_five_bytes(int fd, const struct s3_request *request)
{
    bool is_get = strcmp(request->method, "GET") == 0;
    return s3_fake_reply(fd, is_get ? "206 Partial Content" : "200 OK",
                         is_get ? "Content-Range: bytes 0-4/5\r\n" : "", "abcde", is_get ? 5 : 0);
}

static void set_up(void)
{
    pool = connector_pool();
    s3_fake_start(have_five_bytes);
    ck_assert(tls_front_start(&front, fake.port));
}

static void tear_down(void)
{
    tls_front_stop(&front);
    s3_fake_stop();
    tierce__pool_destroy(pool);
}

/* `ca` NULL: those of the system. */
static void open_tls(const char *host, unsigned port, const char *ca)
{
    char url[512], file[128] = "";
    if (ca != NULL)
        snprintf(file, sizeof(file), "&ca_file=%s/%s", front.dir, ca);
    /* A busy machine does not make the front late; the server behind it never shakes hands. */
    snprintf(url, sizeof(url), "s3://AKID:hidden@bucket?endpoint=https://%s:%u&timeout_ms=%d%s",
             host, port, port == fake.port ? 1000 : 60000, file);
    open_url(url);
}

START_TEST(whose_authority_is_named)
{
    open_tls("127.0.0.1", front.port, "ca.pem");
    ck_assert_int_eq(run(TIERCE__STORE_GET, 30000), 0);
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    ck_assert_int_eq(run(TIERCE__STORE_LOOKUP, 30000), 1);
    ck_assert_int_eq(run(TIERCE__STORE_DELETE, 30000), 0);
    ck_assert_str_eq(connector_why(connector), "");
    close_connector();
}
END_TEST

static const struct {
    const char *host, *ca;
    bool plain; /* the server without TLS */
    const char *why;
} strangers[] = {
    {"127.0.0.1", "other.pem", false, "certificate"},
    {"127.0.0.1", NULL, false, "certificate"},
    {"localhost", "ca.pem", false, "certificate"}, /* it is another one's */
    {"127.0.0.1", "ca.pem", true, "SSL"},
    {"127.0.0.1", "nowhere.pem", false, "nowhere.pem"},
};

/* No request reaches who is not who it should be, however often it is tried. */
START_TEST(strangers_are_told_nothing)
{
    uint32_t before = atomic_load(&fake.requests);
    open_tls(strangers[_i].host, strangers[_i].plain ? fake.port : front.port, strangers[_i].ca);
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), TIERCE_E_DOWN);
    ck_assert_int_eq(run(TIERCE__STORE_GET, 30000), TIERCE_E_DOWN);
    expect_why(strangers[_i].why);
    ck_assert_uint_eq(atomic_load(&fake.requests), before);
    close_connector();
}
END_TEST

CHECK_MAIN("s3 by TLS", .seconds = 120, .at_once = true, .setup = set_up, .teardown = tear_down,
           .tests = {whose_authority_is_named},
           .loops = {{strangers_are_told_nothing, 0, sizeof(strangers) / sizeof(*strangers)}})
