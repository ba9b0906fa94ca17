/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials that expire, from a server that answers as the metadata service of EC2, a container's
 * agent, STS and SSO do, and that is the store as well: it takes the newest credentials only.
 */
#include "check_main.h"
#include "s3_case.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

static struct {
    _Atomic unsigned given;       /* credentials so far */
    _Atomic unsigned oldest;      /* those that the store still takes */
    _Atomic unsigned refused;     /* requests to the store */
    _Atomic unsigned asked;       /* requests for credentials */
    _Atomic uint64_t asked_ns[8]; /* when the first of them came */
    _Atomic int expires_s;        /* from now, of new credentials */
    _Atomic int broken;           /* what the services answer instead; 0: they work */
    _Atomic bool hangs;
} world;

static char folder[64];
static const char *answer; /* instead of right credentials */

/* ---- the server ------------------------------------------------------------------------------ */

static bool has_header(const struct s3_request *request, const char *line)
{
    char text[256];
    snprintf(text, sizeof(text), "\r\n%s\r\n", line);
    return strcasestr(request->head, text) != NULL;
}

static void expiration(char text[32], time_t seconds)
{
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime(&seconds));
}

static bool give_json(int fd, bool is_sso)
{
    char text[1024], expires[32];
    time_t end = time(NULL) + atomic_load(&world.expires_s);
    unsigned n = atomic_fetch_add(&world.given, 1) + 1;
    expiration(expires, end);
    if (answer != NULL)
        return s3_fake_text(fd, "200 OK", answer);
    if (is_sso)
        snprintf(text, sizeof(text),
                 "{\"roleCredentials\":{\"accessKeyId\":\"KEY%u\",\"secretAccessKey\":"
                 "\"hidden%u\",\"sessionToken\":\"hidden-%u\",\"expiration\":%lld}}",
                 n, n, n, (long long)end * 1000);
    else
        snprintf(text, sizeof(text),
                 "{\"Code\":\"Success\",\"LastUpdated\":\"2026-01-01T00:00:00Z\",\"Type\":"
                 "\"AWS-HMAC\",\"RoleArn\":null,\"AccessKeyId\":\"KEY%u\",\"SecretAccessKey\":"
                 "\"hidden%u\",\"Token\":\"hidden-%u\",\"Expiration\":\"%s\"}\n",
                 n, n, n, expires);
    return s3_fake_text(fd, "200 OK", text);
}

static bool give_xml(int fd, struct s3_request *request)
{
    char text[1024], expires[32];
    const char *body = (const char *)request->body;
    request->body[request->body_bytes] = '\0';
    ck_assert_ptr_nonnull(strstr(body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&"));
    ck_assert_ptr_nonnull(strstr(body, "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"));
    ck_assert_ptr_nonnull(strstr(body, "WebIdentityToken=hidden.jwt%2B%2F%3D"));
    ck_assert_ptr_nonnull(strstr(body, "RoleSessionName="));
    ck_assert_ptr_null(strstr(request->target, "hidden"));
    unsigned n = atomic_fetch_add(&world.given, 1) + 1;
    expiration(expires, time(NULL) + atomic_load(&world.expires_s));
    snprintf(text, sizeof(text),
             "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/"
             "\">\n <AssumeRoleWithWebIdentityResult>\n  <Credentials>\n   <AccessKeyId>KEY%u"
             "</AccessKeyId><SecretAccessKey>hidden%u</SecretAccessKey><SessionToken>hidden-%u"
             "</SessionToken><Expiration>%s</Expiration></Credentials>"
             "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
             n, n, n, expires);
    return s3_fake_text(fd, "200 OK", text);
}

static bool is_for(const struct s3_request *request, const char *method, const char *target)
{
    return strcmp(request->method, method) == 0 && strcmp(request->target, target) == 0;
}

#define ROLES "/latest/meta-data/iam/security-credentials/"

static bool give_credentials(int fd, struct s3_request *request)
{
    bool has_session = has_header(request, "X-aws-ec2-metadata-token: hidden-session");
    unsigned asked = atomic_fetch_add(&world.asked, 1);
    if (asked < sizeof(world.asked_ns) / sizeof(*world.asked_ns))
        atomic_store(&world.asked_ns[asked], tierce__now_ns());
    while (atomic_load(&world.hangs) && !atomic_load(&fake.ending))
        s3_fake_sleep(5);
    if (atomic_load(&world.broken) != 0) {
        char status[32];
        snprintf(status, sizeof(status), "%d hidden", atomic_load(&world.broken));
        return s3_fake_text(fd, status, "hidden");
    }
    if (is_for(request, "PUT", "/latest/api/token"))
        return has_header(request, "X-aws-ec2-metadata-token-ttl-seconds: 21600")
                   ? s3_fake_text(fd, "200 OK", "hidden-session")
                   : s3_fake_text(fd, "400 Bad Request", "");
    if (is_for(request, "GET", ROLES))
        return has_session ? s3_fake_text(fd, "200 OK", "my-role")
                           : s3_fake_text(fd, "401 Unauthorized", "");
    if (is_for(request, "GET", ROLES "my-role"))
        return has_session ? give_json(fd, false) : s3_fake_text(fd, "401 Unauthorized", "");
    if (is_for(request, "GET", "/agent/creds?a=b"))
        return has_header(request, "Authorization: hidden agent")
                   ? give_json(fd, false)
                   : s3_fake_text(fd, "403 Forbidden", "");
    if (is_for(request, "GET",
               "/federation/credentials?role_name=My%20Role&account_id=123456789012"))
        return has_header(request, "x-amz-sso_bearer_token: hidden-sso")
                   ? give_json(fd, true)
                   : s3_fake_text(fd, "401 Unauthorized", "");
    if (is_for(request, "POST", "/"))
        return give_xml(fd, request);
    ck_abort_msg("%s %s", request->method, request->target);
    return false;
}

static bool serve(int fd, const struct s3_request *request)
{
    unsigned n = 0;
    struct s3_request *own = (struct s3_request *)(uintptr_t)request;
    const char *credential = strstr(request->head, "Credential=");
    char token[64];
    if (strncmp(request->target, "/bucket", 7) != 0)
        return give_credentials(fd, own);
    if (credential != NULL && strncmp(credential, "Credential=ENV/", 15) == 0)
        return s3_fake_text(fd, "200 OK", "");
    ck_assert(credential != NULL && sscanf(credential, "Credential=KEY%u/", &n) == 1);
    snprintf(token, sizeof(token), "x-amz-security-token: hidden-%u", n);
    ck_assert(has_header(request, token));
    if (n >= atomic_load(&world.oldest))
        return s3_fake_text(fd, "200 OK", "");
    atomic_fetch_add(&world.refused, 1);
    return s3_fake_error(fd, "400 Bad Request", "ExpiredToken");
}

/* ---- where credentials come from ------------------------------------------------------------- */

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void set_path(const char *variable, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    setenv(variable, path, 1);
}

static void set_url(const char *variable, const char *path)
{
    char url[128];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", (unsigned)fake.port, path);
    setenv(variable, url, 1);
}

static void use_instance(void)
{
    set_url("AWS_EC2_METADATA_SERVICE_ENDPOINT", "/");
    unsetenv("AWS_EC2_METADATA_DISABLED");
}

static void use_container(void)
{
    set_url("AWS_CONTAINER_CREDENTIALS_FULL_URI", "/agent/creds?a=b");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hidden agent", 1);
}

static void use_pod_identity(void)
{
    set_url("AWS_CONTAINER_CREDENTIALS_FULL_URI", "/agent/creds?a=b");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "another", 1);
    write_file("agent", "hidden agent\n");
    set_path("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "agent");
}

static void use_web_identity(void)
{
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    write_file("jwt", "hidden.jwt+/=\n");
    set_path("AWS_WEB_IDENTITY_TOKEN_FILE", "jwt");
    set_url("AWS_ENDPOINT_URL_STS", "");
}

static void use_web_identity_of_a_profile(void)
{
    char text[512];
    write_file("jwt", "hidden.jwt+/=");
    snprintf(text, sizeof(text),
             "[default]\nrole_arn = x\n[profile p]\nrole_arn=arn:aws:iam::1:role/r\n"
             "web_identity_token_file = %s/jwt\nrole_session_name = me\n",
             folder);
    write_file("config", text);
    setenv("AWS_PROFILE", "p", 1);
    set_url("AWS_ENDPOINT_URL", "/");
}

/* The name of the file is the SHA-1 sum of the session's name or of the start address. */
static void write_sso(const char *of, const char *token, const char *expires)
{
    char command[256], name[160], text[256], sum[41] = "";
    snprintf(command, sizeof(command), "mkdir -p %s/.aws/sso/cache && printf %%s %s | sha1sum",
             folder, of);
    FILE *pipe_of = popen(command, "r");
    ck_assert_int_eq(fscanf(pipe_of, "%40s", sum), 1);
    pclose(pipe_of);
    snprintf(name, sizeof(name), ".aws/sso/cache/%s.json", sum);
    snprintf(text, sizeof(text),
             "{\"startUrl\":\"https://corp.example/start\",\"region\":\"eu-west-1\","
             "\"accessToken\":\"%s\",\"expiresAt\":\"%s\",\"refreshToken\":\"hidden\"}",
             token, expires);
    write_file(name, text);
}

static void use_sso_session(void)
{
    write_sso("corp", "hidden-sso", "2099-01-01T00:00:00Z");
    write_file("config", "[sso-session corp]\nsso_region = eu-west-1\n"
                         "sso_start_url = https://corp.example/start\n"
                         "[default]\nsso_session = corp\nsso_account_id = 123456789012\n"
                         "sso_role_name = My Role\n");
    set_url("AWS_ENDPOINT_URL_SSO", "");
}

static void use_sso_address(void)
{
    write_sso("https://corp.example/start", "hidden-sso", "2099-01-01T00:00:00UTC");
    write_file("config", "[default]\nsso_start_url = https://corp.example/start\n"
                         "sso_region = eu-west-1\nsso_account_id = 123456789012\n"
                         "sso_role_name = My Role\n");
    set_url("AWS_ENDPOINT_URL_SSO", "");
}

static void (*const uses[])(void) = {use_instance,
                                     use_container,
                                     use_pod_identity,
                                     use_web_identity,
                                     use_web_identity_of_a_profile,
                                     use_sso_session,
                                     use_sso_address};
#define USES ((int)(sizeof(uses) / sizeof(*uses)))

static void clear_environment(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",
                                        "AWS_REGION",
                                        "AWS_DEFAULT_REGION",
                                        "AWS_ROLE_ARN",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                        "AWS_SHARED_CREDENTIALS_FILE",
                                        "AWS_ENDPOINT_URL"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
    setenv("HOME", folder, 1);
    set_path("AWS_CONFIG_FILE", "config");
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
}

static void start_world(void)
{
    snprintf(folder, sizeof(folder), "/tmp/tierce-s3-XXXXXX");
    temp_folder_make(folder);
    clear_environment();
    atomic_store(&world.expires_s, 3600);
    pool = connector_pool();
    s3_fake_start(serve);
}

static int try_open(char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    char url[128];
    snprintf(url, sizeof(url), "s3://bucket?endpoint=http://127.0.0.1:%u", (unsigned)fake.port);
    return tierce__connector_open(&connector, url,
                                  &(struct tierce__connector_opts){
                                      .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                  why);
}

static void open_world(void)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    int rc = try_open(why);
    ck_assert_msg(rc == 0, "%s", why);
}

static void end_world(bool is_open)
{
    char command[96];
    if (is_open)
        close_connector();
    s3_fake_stop();
    tierce__pool_destroy(pool);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(each_place_gives_credentials)
{
    start_world();
    uses[_i]();
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    ck_assert_int_eq(run(TIERCE__STORE_DELETE, 30000), 0);
    ck_assert_uint_eq(atomic_load(&world.given), 1);
    ck_assert_uint_eq(atomic_load(&world.refused), 0);
    ck_assert_str_eq(connector_why(connector), "");
    end_world(true);
}
END_TEST

/* The store never sees credentials that have expired. */
START_TEST(they_are_renewed_before_they_expire)
{
    start_world();
    atomic_store(&world.expires_s, 4);
    uses[_i]();
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    uint64_t begin = tierce__now_ns();
    while (atomic_load(&world.given) < 2)
        poll(NULL, 0, 10);
    ck_assert_uint_gt(tierce__now_ns() - begin, 1000 * TIERCE__MS_NS);
    atomic_store(&world.expires_s, 3600);
    while (run(TIERCE__STORE_PUT, 30000) == 0 && atomic_load(&world.oldest) < 2)
        atomic_store(&world.oldest, 2);
    ck_assert_uint_le(atomic_load(&world.refused), 1); /* while they were handed over */
    end_world(true);
}
END_TEST

/* They were revoked: the request that finds out is carried out with new ones. */
START_TEST(they_are_fetched_again_when_the_store_refuses)
{
    start_world();
    uses[_i]();
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    poll(NULL, 0, 1100); /* they are not new any more */
    atomic_store(&world.oldest, 2);
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    ck_assert_uint_eq(atomic_load(&world.given), 2);
    ck_assert_uint_ge(atomic_load(&world.refused), 1);
    end_world(true);
}
END_TEST

/* While the store rejects the old credentials and the agent fails, each request to the store asks
 * for new ones: the agent is queried by its backoff, not by their number. */
START_TEST(an_agent_that_fails_is_not_asked_for_each_request)
{
    start_world();
    use_container();
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    atomic_store(&world.broken, 503);
    atomic_store(&world.oldest, 2);
    while (atomic_load(&world.asked) < 4)
        ck_assert_int_ne(run(TIERCE__STORE_PUT, 30000), 0);
    uint64_t first = atomic_load(&world.asked_ns[1]), second = atomic_load(&world.asked_ns[2]);
    uint64_t third = atomic_load(&world.asked_ns[3]);
    ck_assert_uint_ge(second - first, 1000 * TIERCE__MS_NS);
    ck_assert_uint_ge(third - second, 2000 * TIERCE__MS_NS);
    end_world(true);
}
END_TEST

START_TEST(a_place_that_is_down_comes_back)
{
    start_world();
    use_container();
    atomic_store(&world.broken, _i == 0 ? 503 : 403);
    open_world();
    int rc = run(TIERCE__STORE_PUT, 30000);
    ck_assert_int_eq(rc, _i == 0 ? TIERCE_E_DOWN : TIERCE_E_REFUSED);
    expect_why(_i == 0 ? "agent: HTTP status 503" : "agent: HTTP status 403");
    atomic_store(&world.broken, 0);
    while ((rc = run(TIERCE__STORE_PUT, 30000)) != 0)
        poll(NULL, 0, 10);
    end_world(true);
}
END_TEST

START_TEST(requests_wait_for_the_first_ones)
{
    start_world();
    use_web_identity();
    atomic_store(&world.hangs, true);
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 200), TIERCE_E_DEADLINE);
    atomic_store(&world.hangs, false);
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    end_world(true);
}
END_TEST

START_TEST(close_does_not_wait_for_them)
{
    start_world();
    use_web_identity();
    atomic_store(&world.hangs, true);
    open_world();
    while (atomic_load(&world.asked) == 0)
        poll(NULL, 0, 1);
    uint64_t begin = tierce__now_ns();
    close_connector();
    ck_assert_uint_lt(tierce__now_ns() - begin, 5000 * TIERCE__MS_NS);
    end_world(false);
}
END_TEST

/* Each one set beside all those that come after it. */
START_TEST(places_have_an_order)
{
    start_world();
    use_instance();
    use_container();
    if (_i < 2)
        use_sso_session();
    if (_i < 1)
        use_web_identity();
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    unsigned asked = atomic_load(&world.asked);
    ck_assert_uint_eq(asked, 1); /* the instance takes three */
    close_connector();
    setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hidden", 1);
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    ck_assert_uint_eq(atomic_load(&world.asked), asked);
    end_world(true);
}
END_TEST

static void set_bad_agent(void)
{
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://10.0.0.1/creds", 1);
}

static void set_bad_relative(void)
{
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "@10.0.0.1/creds", 1);
}

static void set_half_a_profile(void)
{
    write_file("config", "[default]\nsso_session = corp\nsso_role_name = r\n");
}

static void set_no_instance(void)
{
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1", 1);
    unsetenv("AWS_EC2_METADATA_DISABLED");
}

static void set_empty_role(void)
{
    write_file("config", "[default]\nsso_session =\nrole_arn =\nweb_identity_token_file=\n"
                         "sso_start_url = https://corp.example/start\nsso_region = eu-west-1\n"
                         "sso_account_id =\nsso_role_name = r\n");
}

static const struct {
    void (*set)(void);
    const char *why;
} wrong[] = {
    {set_bad_agent, "FULL_URI must be https:// or on this machine"},
    {set_bad_relative, "RELATIVE_URI must begin with '/'"},
    {set_half_a_profile, "an SSO profile requires sso_region, sso_account_id and sso_role_name"},
    {set_empty_role, "an SSO profile requires sso_region, sso_account_id and sso_role_name"},
    {set_no_instance, "an EC2 instance's role"},
};

START_TEST(wrong_settings_are_told)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    start_world();
    wrong[_i].set();
    ck_assert_int_eq(try_open(why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, wrong[_i].why) != NULL, "%s", why);
    ck_assert_uint_eq(atomic_load(&fake.requests), 0);
    end_world(false);
}
END_TEST

#define KEYS "\"AccessKeyId\":\"KEY1\",\"SecretAccessKey\":\"hidden1\","

static const struct {
    const char *answer, *why;
} malformed[] = {
    {"", "the answer is not a JSON object"},
    {"null", "the answer is not a JSON object"},
    {"[]", "the answer is not a JSON object"},
    {"{\"AccessKeyId\":\"KEY1\"", "the answer is not valid JSON"},
    {"{}", "the answer has no AccessKeyId"},
    {"{\"AccessKeyId\":null,\"SecretAccessKey\":\"hidden\"}", "the answer has no AccessKeyId"},
    {"{\"AccessKeyId\":\"KEY1\"}", "the answer has no SecretAccessKey"},
    {"{\"AccessKeyId\":17,\"SecretAccessKey\":\"hidden\"}",
     "AccessKeyId must be a string of at most 128 bytes"},
    {"{\"AccessKeyId\":\"KEY1\",\"SecretAccessKey\":[\"hidden\"]}",
     "SecretAccessKey must be a string of at most 256 bytes"},
    {"{" KEYS "\"Token\":12345}", "Token must be a string of at most 8192 bytes"},
    {"{" KEYS "\"SessionToken\":{\"hidden\":\"hidden\"}}",
     "SessionToken must be a string of at most 8192 bytes"},
    {"{" KEYS "\"Token\":\"hid den\"}", "contain a blank or an unprintable character"},
    {"{" KEYS "\"Token\":\"hidden-1\",\"Expiration\":\"soon\"}", "Expiration is not a time"},
    {"{" KEYS "\"Token\":\"hidden-1\",\"Expiration\":true}", "Expiration is not a time"},
    {"{" KEYS "\"Token\":\"hidden-1\",\"Expiration\":-1}", "Expiration is not a time"},
    {"{" KEYS "\"Token\":\"hidden-1\",\"Expiration\":1e400}", "Expiration is not a time"},
    {"{\"roleCredentials\":\"hidden\"}", "roleCredentials must be an object"},
    {"{\"roleCredentials\":{\"roleCredentials\":{" KEYS "\"Token\":\"hidden-1\"}}}",
     "the answer has no AccessKeyId"},
};

START_TEST(malformed_answers_are_told)
{
    start_world();
    use_container();
    answer = malformed[_i].answer;
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), TIERCE_E_DOWN);
    expect_why("the container's agent: ");
    expect_why(malformed[_i].why);
    end_world(true);
}
END_TEST

/* The metadata service of an instance exists, and gives no credentials. */
START_TEST(an_instance_without_credentials_says_why)
{
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    start_world();
    use_instance();
    answer = "{}";
    ck_assert_int_eq(try_open(why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "metadata service: the answer has no AccessKeyId; ") != NULL, "%s",
                  why);
    ck_assert_msg(strstr(why, "AWS_SECRET_ACCESS_KEY") != NULL, "%s", why);
    atomic_store(&world.broken, 503);
    ck_assert_int_eq(try_open(why), TIERCE_E_CONFIG);
    ck_assert_msg(strstr(why, "metadata service: HTTP status 503; ") != NULL, "%s", why);
    atomic_store(&world.broken, 0);
    answer = NULL;
    end_world(false);
}
END_TEST

/* A value that is longer than any, and an answer that is. */
START_TEST(answers_that_are_too_long_are_told)
{
    static char text[80 << 10];
    static const char begin[] = "{\"AccessKeyId\":\"";
    size_t bytes = _i == 0 ? 60000 : 70000;
    start_world();
    use_container();
    memset(text, 'K', bytes);
    memcpy(text, begin, sizeof(begin) - 1);
    strcpy(text + bytes, "\"}");
    answer = text;
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), TIERCE_E_DOWN);
    expect_why(_i == 0 ? "AccessKeyId must be a string of at most 128 bytes"
                       : "the answer exceeds 64 KiB");
    end_world(true);
}
END_TEST

/* Members that are null are absent. */
START_TEST(members_that_are_null_are_absent)
{
    start_world();
    use_container();
    answer = "{" KEYS "\"Token\":\"hidden-1\",\"SessionToken\":null,\"Expiration\":null,"
             "\"Other\":{\"AccessKeyId\":[1,{}]}}";
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), 0);
    end_world(true);
}
END_TEST

START_TEST(an_sso_session_that_has_expired)
{
    start_world();
    use_sso_session();
    write_sso("corp", "hidden-sso", "2020-01-01T00:00:00Z");
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), TIERCE_E_REFUSED);
    expect_why("the SSO session has expired; run `aws sso login`");
    end_world(true);
}
END_TEST

START_TEST(an_sso_token_that_is_no_header)
{
    start_world();
    use_sso_session();
    write_sso("corp", "hidden-sso\\r\\nx-amz-role: other", "2099-01-01T00:00:00Z");
    open_world();
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 30000), TIERCE_E_REFUSED);
    expect_why("the SSO access token contains a line break; run `aws sso login`");
    end_world(true);
}
END_TEST

CHECK_MAIN("s3 login", .seconds = 60,
           .tests = {an_agent_that_fails_is_not_asked_for_each_request,
                     requests_wait_for_the_first_ones, close_does_not_wait_for_them,
                     an_instance_without_credentials_says_why, members_that_are_null_are_absent,
                     an_sso_session_that_has_expired, an_sso_token_that_is_no_header},
           .loops = {{each_place_gives_credentials, 0, USES},
                     {they_are_renewed_before_they_expire, 0, 1},
                     {they_are_renewed_before_they_expire, 3, 4},
                     {they_are_fetched_again_when_the_store_refuses, 1, 2},
                     {a_place_that_is_down_comes_back, 0, 2},
                     {places_have_an_order, 0, 3},
                     {wrong_settings_are_told, 0, sizeof(wrong) / sizeof(*wrong)},
                     {malformed_answers_are_told, 0, sizeof(malformed) / sizeof(*malformed)},
                     {answers_that_are_too_long_are_told, 0, 2}})
