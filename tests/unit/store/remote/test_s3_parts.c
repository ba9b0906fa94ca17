/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the connector of S3 that need no store: signatures, XML, keys, URLs. */
#include "check_main.h"
#include "base/text/url.h"
#include "store/remote/s3/s3_private.h"
#include "store/remote/s3/s3_xml.h"
#include "store/remote/s3/sigv4.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- signatures ------------------------------------------------------------------------------ */

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* The examples of "Signature Calculations for the Authorization Header" in Amazon S3's API
 * reference, of 2013-05-24. */
static const struct example {
    const char *method, *path, *query, *payload;
    struct tierce__sigv4_header headers[5];
    size_t header_count;
    const char *names, *signature;
} examples[] = {
    {"GET",
     "/test.txt",
     "",
     EMPTY,
     {{"host", "examplebucket.s3.amazonaws.com"},
      {"range", "bytes=0-9"},
      {"x-amz-content-sha256", EMPTY},
      {"x-amz-date", "20130524T000000Z"}},
     4,
     "host;range;x-amz-content-sha256;x-amz-date",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
    {"PUT",
     "/test%24file.text",
     "",
     "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
     {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
      {"host", "examplebucket.s3.amazonaws.com"},
      {"x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"},
      {"x-amz-date", "20130524T000000Z"},
      {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
     5,
     "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
    {"GET",
     "/",
     "lifecycle=",
     EMPTY,
     {{"host", "examplebucket.s3.amazonaws.com"},
      {"x-amz-content-sha256", EMPTY},
      {"x-amz-date", "20130524T000000Z"}},
     3,
     "host;x-amz-content-sha256;x-amz-date",
     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
    {"GET",
     "/",
     "max-keys=2&prefix=J",
     EMPTY,
     {{"host", "examplebucket.s3.amazonaws.com"},
      {"x-amz-content-sha256", EMPTY},
      {"x-amz-date", "20130524T000000Z"}},
     3,
     "host;x-amz-content-sha256;x-amz-date",
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
};

static const struct tierce__sigv4_signer signer = {
    "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "s3"};

START_TEST(signatures_of_amazon)
{
    const struct example *e = &examples[_i];
    char text[512], wanted[512];
    const struct tierce__sigv4_request request = {
        e->method, e->path, e->query, e->headers, e->header_count, e->payload, 1369353600};
    ck_assert_int_eq(tierce__sigv4_sign(text, sizeof(text), &signer, &request), 0);
    snprintf(wanted, sizeof(wanted),
             "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
             "SignedHeaders=%s,Signature=%s",
             e->names, e->signature);
    ck_assert_str_eq(text, wanted);
    ck_assert_int_eq(tierce__sigv4_sign(text, strlen(wanted), &signer, &request), TIERCE_E_LIMIT);
    ck_assert_int_eq(tierce__sigv4_sign(text, strlen(wanted) + 1, &signer, &request), 0);
}
END_TEST

START_TEST(hashes_and_times)
{
    char text[TIERCE__SIGV4_HASH_BYTES], time[TIERCE__SIGV4_TIME_BYTES];
    tierce__sigv4_hash(text, "", 0);
    ck_assert_str_eq(text, EMPTY);
    tierce__sigv4_hash(text, "Welcome to Amazon S3.", 21);
    ck_assert_str_eq(text, examples[1].payload);
    tierce__sigv4_time(time, 1369353600);
    ck_assert_str_eq(time, "20130524T000000Z");
    tierce__sigv4_time(time, 4102444799);
    ck_assert_str_eq(time, "20991231T235959Z");
}
END_TEST

/* ---- XML ------------------------------------------------------------------------------------- */

static char seen[1024];

static bool see(void *arg, const char *path, const char *text, size_t bytes)
{
    size_t used = strlen(seen);
    (void)arg;
    ck_assert_uint_eq(strlen(text), bytes);
    snprintf(seen + used, sizeof(seen) - used, "%s=%s;", path, text);
    return strcmp(text, "stop") != 0;
}

static const struct xml_case {
    const char *xml, *leaves; /* NULL: rejected */
} xmls[] = {
    {"<a/>", "a=;"},
    {"<a></a>", "a=;"},
    {" \r\n\t<?xml version=\"1.0\"?>\n<!-- a --><a b='>' c=\"/>\">x</a>\n", "a=x;"},
    {"\xef\xbb\xbf<a>x</a>", "a=x;"},
    {"<a><b>1</b><b>2</b><c><d/></c></a>", "a/b=1;a/b=2;a/c/d=;"},
    {"<n:a xmlns:n='u'><n:b>1</n:b></n:a>", "a/b=1;"},
    {"<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x41;</a>", "a=<>&\"'AA;"},
    {"<a> x </a >", "a= x ;"},
    {"<a>text<b>1</b>more</a>", "a/b=1;"},
    {"", NULL},
    {"   ", NULL},
    {"x", NULL},
    {"<a>", NULL},
    {"<a", NULL},
    {"<", NULL},
    {"</a>", NULL},
    {"<a></b>", NULL},
    {"<a><b></a></b>", NULL},
    {"<aa></a>", NULL},
    {"<a><ba></a></ba>", NULL},
    {"<a/><b/>", NULL},
    {"<a/>x", NULL},
    {"<a>&none;</a>", NULL},
    {"<a>&amp</a>", NULL},
    {"<a>&#0;</a>", NULL},
    {"<a>&#128;</a>", NULL},
    {"<a>&#;</a>", NULL},
    {"<a>&#x;</a>", NULL},
    {"<a>&#99999999999;</a>", NULL},
    {"<a>&</a>", NULL},
    {"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", NULL},
    {"<a><![CDATA[x]]></a>", NULL},
    {"<a><!-- x --></a>", NULL},
    {"<a b='></a>", NULL},
    {"<a <b></a>", NULL},
    {"<1><2><3><4><5><6><7><8>x</8></7></6></5></4></3></2></1>", "1/2/3/4/5/6/7/8=x;"},
    {"<1><2><3><4><5><6><7><8><9/></8></7></6></5></4></3></2></1>", NULL},
    {"<a>stop</a>", NULL},
};

START_TEST(xml)
{
    const struct xml_case *c = &xmls[_i];
    seen[0] = '\0';
    int rc = tierce__s3_xml_read(c->xml, strlen(c->xml), see, NULL);
    ck_assert_msg(rc == (c->leaves != NULL ? 0 : TIERCE_E_FORMAT), "%s: %d", c->xml, rc);
    if (c->leaves != NULL)
        ck_assert_str_eq(seen, c->leaves);
}
END_TEST

START_TEST(texts_of_xml_have_limits)
{
    static char text_xml[TIERCE__S3_XML_TEXT_MAX + 600];
    char text[8];
    int used = snprintf(text_xml, sizeof(text_xml), "<a>");
    memset(text_xml + used, 'x', TIERCE__S3_XML_TEXT_MAX);
    snprintf(text_xml + used + TIERCE__S3_XML_TEXT_MAX, 8, "</a>");
    ck_assert_int_eq(tierce__s3_xml_read(text_xml, strlen(text_xml), see, NULL), 0);
    snprintf(text_xml + used + TIERCE__S3_XML_TEXT_MAX, 8, "x</a>");
    ck_assert_int_eq(tierce__s3_xml_read(text_xml, strlen(text_xml), see, NULL), TIERCE_E_FORMAT);
    memset(text_xml, 'n', 300);
    text_xml[0] = '<';
    snprintf(text_xml + 300, 8, "/>");
    ck_assert_int_eq(tierce__s3_xml_read(text_xml, strlen(text_xml), see, NULL), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__s3_xml_read("<a>\0</a>", 8, see, NULL), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__s3_xml_find(text, 4, "<a><b>123</b><b>4</b></a>", 25, "a/b"), 0);
    ck_assert_str_eq(text, "123");
    ck_assert_int_eq(tierce__s3_xml_find(text, 3, "<a><b>123</b></a>", 17, "a/b"), TIERCE_E_FORMAT);
    ck_assert_int_eq(tierce__s3_xml_find(text, 3, "<a><b>123</b></a>", 17, "a"), TIERCE_E_MISS);
}
END_TEST

/* ---- keys ------------------------------------------------------------------------------------ */

static void expect_key(const char *name, size_t bytes, const char *wanted)
{
    char key[TIERCE__S3_KEY_BYTES], again[TIERCE__CONNECTOR_NAME_MAX];
    size_t again_bytes = 0;
    tierce__s3_key(key, "p/", false, &(struct tierce_plugin_name){.text = name, .bytes = bytes});
    if (wanted != NULL)
        ck_assert_str_eq(key, wanted);
    ck_assert_uint_le(strlen(key), 702);
    ck_assert(tierce__s3_name(again, &again_bytes, "p/", false, key));
    ck_assert_uint_eq(again_bytes, bytes);
    ck_assert_mem_eq(again, name, bytes);
    ck_assert(!tierce__s3_name(again, &again_bytes, "q/", false, key));
}

START_TEST(keys_and_names)
{
    char name[TIERCE__CONNECTOR_NAME_MAX], key[TIERCE__S3_KEY_BYTES];
    expect_key("a", 1, "p/a");
    expect_key("model@1-0_x=.", 13, "p/model@1-0_x=.");
    expect_key(".a/b", 4, "p/!2Ea!2Fb");
    expect_key("!%~", 3, "p/!21!25!7E");
    for (size_t bytes = 1; bytes <= sizeof(name); bytes++) {
        for (int kind = 0; kind < 3; kind++) {
            for (size_t i = 0; i < bytes; i++)
                name[i] = (char)(kind == 0 ? 'a' : kind == 1 ? '/' : (i * 37 + bytes) % 255 + 1);
            expect_key(name, bytes, NULL);
        }
    }
    /* What begins with a name begins with its key. */
    memset(name, '/', sizeof(name));
    struct tierce_plugin_name begins = {.text = name, .bytes = 200}, whole = begins;
    const struct tierce__s3_config config = {.prefix = "p/"};
    ck_assert(tierce__s3_key_prefix(key, &config, &begins, false));
    whole.bytes = 201;
    char longer[TIERCE__S3_KEY_BYTES];
    tierce__s3_key(longer, "p/", false, &whole);
    ck_assert_int_eq(strncmp(longer, key, strlen(key)), 0);
    begins.bytes = 300;
    ck_assert(!tierce__s3_key_prefix(key, &config, &begins, false));
    ck_assert(tierce__s3_key_prefix(key, &config, &begins, true));
    ck_assert_str_eq(key, "p/~");
}
END_TEST

/* names=path: a key is the prefix and the name. */
START_TEST(keys_of_paths)
{
    static const char *const good[] = {"a", "i/tp0/00ff", "a~b/!", ".a/b.", "a@b:1/...", "+,=-_"};
    static const char *const bad[] = {"",     "/",     "/a",  "a/",   "a//b",    ".",    "..",
                                      "a/..", "./a",   "a/.", "a\nb", "a\x7f",   "../a", "a/../b",
                                      "a b",  "a%2Fb", "a&b", "<a>",  "\xc3\xa4"};
    const struct tierce__s3_config config = {.prefix = "p/", .has_paths = true};
    char key[TIERCE__S3_KEY_BYTES], again[TIERCE__CONNECTOR_NAME_MAX + 1];
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct tierce_plugin_name name = {.text = good[i], .bytes = strlen(good[i])};
        ck_assert_msg(tierce__s3_is_path(&name), "%s", good[i]);
        tierce__s3_key(key, "p/", true, &name);
        ck_assert_str_eq(key + 2, good[i]);
        ck_assert(tierce__s3_name(again, &bytes, "p/", true, key));
        ck_assert_uint_eq(bytes, name.bytes);
        ck_assert_mem_eq(again, good[i], bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct tierce_plugin_name name = {.text = bad[i], .bytes = strlen(bad[i])};
        ck_assert_msg(!tierce__s3_is_path(&name), "%s", bad[i]);
        snprintf(key, sizeof(key), "p/%s", bad[i]);
        ck_assert(!tierce__s3_name(again, &bytes, "p/", true, key));
    }
    ck_assert(!tierce__s3_is_path(&(struct tierce_plugin_name){.text = "a\0b", .bytes = 3}));
    struct tierce_plugin_name begins = {.text = "i/tp", .bytes = 4};
    ck_assert(tierce__s3_key_prefix(key, &config, &begins, false));
    ck_assert_str_eq(key, "p/i/tp");
    /* The longest prefix and name fit, and a longer key is no name. */
    char prefix[TIERCE__S3_PREFIX_MAX + 1], longest[TIERCE__CONNECTOR_NAME_MAX + 1];
    memset(prefix, 'p', sizeof(prefix) - 1);
    memset(longest, 'n', sizeof(longest));
    prefix[sizeof(prefix) - 1] = '\0';
    begins = (struct tierce_plugin_name){.text = longest, .bytes = TIERCE__CONNECTOR_NAME_MAX};
    tierce__s3_key(key, prefix, true, &begins);
    ck_assert(tierce__s3_name(again, &bytes, prefix, true, key));
    ck_assert_uint_eq(bytes, TIERCE__CONNECTOR_NAME_MAX);
    strcat(key, "n");
    ck_assert(!tierce__s3_name(again, &bytes, prefix, true, key));
}
END_TEST

START_TEST(percents)
{
    char text[64];
    ck_assert_uint_eq(tierce__s3_encode(text, sizeof(text), "a/b+c=~", true), 11);
    ck_assert_str_eq(text, "a/b%2Bc%3D~");
    tierce__s3_encode(text, sizeof(text), "a/b", false);
    ck_assert_str_eq(text, "a%2Fb");
    tierce__s3_encode(text, 5, "++", false);
    ck_assert_str_eq(text, "%2B");
    snprintf(text, sizeof(text), "a%%2f+%%C3");
    ck_assert(tierce__url_decode(text, true));
    ck_assert_str_eq(text, "a/+\xc3");
    static const char *const wrong[] = {"%", "%2", "%2g", "%00"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(text, sizeof(text), "%s", wrong[i]);
        ck_assert(!tierce__url_decode(text, true));
    }
}
END_TEST

/* ---- URLs ------------------------------------------------------------------------------------ */

static int configure(struct tierce__s3_config *config, const char *text,
                     char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__url url = {0};
    why[0] = '\0';
    ck_assert_int_eq(tierce__url_parse(&url, text, why), 0);
    int rc = tierce__s3_configure(config, &url, why);
    tierce__url_clear(&url);
    ck_assert_ptr_null(strstr(why, "hidden"));
    return rc;
}

static void set_environment(const char *access, const char *secret, const char *token)
{
    static const char *const names[] = {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",       "AWS_SESSION_TOKEN", "AWS_REGION",
        "AWS_PROFILE",       "AWS_SHARED_CREDENTIALS_FILE", "AWS_DEFAULT_REGION"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
    setenv("HOME", "/nonexistent", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1); /* nobody outside is asked */
    if (access != NULL)
        setenv("AWS_ACCESS_KEY_ID", access, 1);
    if (secret != NULL)
        setenv("AWS_SECRET_ACCESS_KEY", secret, 1);
    if (token != NULL)
        setenv("AWS_SESSION_TOKEN", token, 1);
}

static const struct place {
    const char *url, *origin, *host, *bucket, *prefix, *region;
} places[] = {
    {"s3://a:hidden@bucket", "https://bucket.s3.us-east-1.amazonaws.com",
     "bucket.s3.us-east-1.amazonaws.com", "", "", "us-east-1"},
    {"s3://a:hidden@bucket/a/b?region=eu-central-1", "https://bucket.s3.eu-central-1.amazonaws.com",
     "bucket.s3.eu-central-1.amazonaws.com", "", "a/b/", "eu-central-1"},
    {"s3://a:hidden@bu.cket/a/", "https://s3.us-east-1.amazonaws.com", "s3.us-east-1.amazonaws.com",
     "/bu.cket", "a/", "us-east-1"},
    {"s3://a:hidden@bucket?path_style=true", "https://s3.us-east-1.amazonaws.com",
     "s3.us-east-1.amazonaws.com", "/bucket", "", "us-east-1"},
    {"s3://a:hidden@bucket?endpoint=http://127.0.0.1:9000", "http://127.0.0.1:9000",
     "127.0.0.1:9000", "/bucket", "", "us-east-1"},
    {"s3://a:hidden@bucket?endpoint=http://[::1]:80/", "http://[::1]", "[::1]", "/bucket", "",
     "us-east-1"},
    {"s3://a:hidden@bucket?endpoint=https://s.example:443&path_style=false",
     "https://bucket.s.example", "bucket.s.example", "", "", "us-east-1"},
    {"s3://a:hidden@bucket?endpoint=http://s.example&insecure=true", "http://s.example",
     "s.example", "/bucket", "", "us-east-1"},
};

START_TEST(places_of_buckets)
{
    const struct place *place = &places[_i];
    struct tierce__s3_config config;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    set_environment(NULL, NULL, NULL);
    ck_assert_msg(configure(&config, place->url, why) == 0, "%s: %s", place->url, why);
    ck_assert_str_eq(config.origin, place->origin);
    ck_assert_str_eq(config.host, place->host);
    ck_assert_str_eq(config.bucket, place->bucket);
    ck_assert_str_eq(config.prefix, place->prefix);
    ck_assert_str_eq(config.region, place->region);
    ck_assert_str_eq(config.credentials.secret_key, "hidden");
    tierce__s3_config_clear(&config);
}
END_TEST

static const struct wrong_url {
    const char *url, *why;
} wrong_urls[] = {
    {"s3://a:hidden@", "BUCKET"},
    {"s3:///bucket", "BUCKET"},
    {"s3://a:hidden@bucket:9000", "BUCKET"},
    {"s3://a:hidden@bucket,other", "BUCKET"},
    {"s3://a:hidden@Bucket", "BUCKET"},
    {"s3://a:hidden@bu", "BUCKET"},
    {"s3://a:hidden@bucket-", "BUCKET"},
    {"s3://a:hidden@bu..cket", "BUCKET"},
    {"s3://a:hidden@bucket/a%20b", "prefix"},
    {"s3://a:hidden@bucket//a", "prefix"},
    {"s3://a:hidden@bucket/../a", "prefix"},
    {"s3://a:hidden@bucket/a/./b", "prefix"},
    {"s3://hidden@bucket", "ACCESS_KEY:SECRET_KEY"},
    {"s3://:hidden@bucket", "ACCESS_KEY:SECRET_KEY"},
    {"s3://a:hidden%20x@bucket", "ACCESS_KEY:SECRET_KEY"},
    {"s3://bucket", "AWS_ACCESS_KEY_ID"},
    {"s3://bucket?profile=p", "/nonexistent/.aws/credentials"},
    {"s3://a:hidden@bucket?credentials=x", "credentials_file"},
    {"s3://a:hidden@bucket?part=4MiB", "part"},
    {"s3://a:hidden@bucket?connections=1", "connections"},
    {"s3://a:hidden@bucket?payload=maybe", "payload"},
    {"s3://a:hidden@bucket?path_style=maybe", "path_style is \"maybe\""},
    {"s3://a:hidden@bucket?region=a%20b", "region"},
    {"s3://a:hidden@bucket?endpoint=127.0.0.1:9000", "URL"},
    {"s3://a:hidden@bucket?endpoint=ftp://h", "endpoint"},
    {"s3://a:hidden@bucket?endpoint=http://localhost/path", "endpoint"},
    {"s3://a:hidden@bucket?endpoint=http://a,b", "endpoint"},
    {"s3://a:hidden@bucket?endpoint=http://10.0.0.1:9000", "insecure=true"},
    {"s3://a:hidden@bucket?endpoint=http://localhost.example.com", "insecure=true"},
};

START_TEST(wrong_urls_are_told)
{
    struct tierce__s3_config config;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    set_environment(NULL, NULL, NULL);
    int rc = configure(&config, wrong_urls[_i].url, why);
    ck_assert_msg(rc == TIERCE_E_CONFIG && strstr(why, wrong_urls[_i].why) != NULL, "%s: %d: %s",
                  wrong_urls[_i].url, rc, why);
    tierce__s3_config_clear(&config);
}
END_TEST

START_TEST(credentials_have_an_order)
{
    char path[64] = "/tmp/tierce-s3-XXXXXX", url[256], why[TIERCE__CONNECTOR_WHY_BYTES];
    struct tierce__s3_config config;
    int fd = mkstemp(path);
    static const char text[] = "aws_access_key_id = none\n[default]\r\naws_access_key_id = d\r\n"
                               "aws_secret_access_key = hidden1\r\n"
                               "; aws_session_token = no\n[ p ]\naws_access_key_id=p\n"
                               "aws_session_token=t=\naws_secret_access_key=hidden2";
    ck_assert_int_eq(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    close(fd);
    set_environment("env", "hidden3", "token");
    setenv("AWS_DEFAULT_REGION", "eu-west-1", 1);
    ck_assert_int_eq(configure(&config, "s3://bucket", why), 0);
    ck_assert_str_eq(config.credentials.access_key, "env");
    ck_assert_str_eq(config.credentials.token, "token");
    ck_assert_str_eq(config.region, "eu-west-1");
    tierce__s3_config_clear(&config);
    ck_assert_int_eq(configure(&config, "s3://url:hidden4@bucket", why), 0);
    ck_assert_str_eq(config.credentials.access_key, "url");
    ck_assert_str_eq(config.credentials.token, "");
    tierce__s3_config_clear(&config);
    snprintf(url, sizeof(url), "s3://bucket?credentials_file=%s", path);
    ck_assert_int_eq(configure(&config, url, why), 0);
    ck_assert_str_eq(config.credentials.access_key, "d");
    ck_assert_str_eq(config.credentials.token, "");
    ck_assert(!tierce__s3_renew_credentials(&config));
    tierce__s3_config_clear(&config);
    snprintf(url, sizeof(url), "s3://bucket?credentials_file=%s&profile=p", path);
    ck_assert_int_eq(configure(&config, url, why), 0);
    ck_assert_str_eq(config.credentials.access_key, "p");
    ck_assert_str_eq(config.credentials.token, "t=");
    tierce__s3_config_clear(&config);
    snprintf(url, sizeof(url), "s3://bucket?credentials_file=%s&profile=q", path);
    ck_assert_int_eq(configure(&config, url, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, "[q]"));
    tierce__s3_config_clear(&config);
    set_environment("env", NULL, NULL);
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    setenv("AWS_PROFILE", "p", 1);
    ck_assert_int_eq(configure(&config, "s3://bucket", why), 0);
    ck_assert_str_eq(config.credentials.access_key, "p");
    tierce__s3_config_clear(&config);
    unlink(path);
}
END_TEST

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

CHECK_MAIN("s3 parts",
           .tests = {hashes_and_times, texts_of_xml_have_limits, keys_and_names, keys_of_paths,
                     percents, credentials_have_an_order},
           .loops = {{signatures_of_amazon, 0, COUNT(examples)},
                     {xml, 0, COUNT(xmls)},
                     {places_of_buckets, 0, COUNT(places)},
                     {wrong_urls_are_told, 0, COUNT(wrong_urls)}})
