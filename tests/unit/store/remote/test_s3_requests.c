/* SPDX-License-Identifier: Apache-2.0 */
/* The connector of S3 when one request becomes several, or none: parts, pages, cached results; and
 * without memory. */
#include "base/alloc.h"
#include "check_main.h"
#include "s3_case.h"

#include <errno.h>

#define PART (5ull << 20)

/* ---- parts ----------------------------------------------------------------------------------- */

static struct {
    _Atomic int begun, parts, completed, aborted;
    int fail_part;             /* that number is rejected; 0: none */
    _Atomic int slow_part;     /* that number is not answered */
    _Atomic int slow_begin_ms; /* before it is answered */
    int bad_completes;         /* that answer 200 and an error */
    bool no_upload;
    size_t bytes;
} upload;

static bool has(const struct s3_request *request, const char *method, const char *part)
{
    return strcmp(request->method, method) == 0 && strstr(request->target, part) != NULL;
}

static bool complete(int fd, const struct s3_request *request)
{
    ck_assert_ptr_nonnull(strstr((char *)request->body, "<PartNumber>1</PartNumber><ETag>\"p1\""));
    ck_assert_ptr_nonnull(strstr((char *)request->body, "<PartNumber>3</PartNumber><ETag>\"p3\""));
    if (upload.bad_completes-- > 0)
        return s3_fake_error(fd, "200 OK", "InternalError");
    atomic_fetch_add(&upload.completed, 1);
    return s3_fake_text(fd, "200 OK",
                        "  \n<CompleteMultipartUploadResult xmlns=\"x\"><ETag>&quot;e&quot;</ETag>"
                        "</CompleteMultipartUploadResult>");
}

static bool take_upload(int fd, const struct s3_request *request)
{
    char etag[64];
    unsigned number = 0;
    if (request->body_bytes > 0)
        request->body[request->body_bytes] = '\0';
    if (has(request, "POST", "?uploads=")) {
        atomic_fetch_add(&upload.begun, 1);
        s3_fake_sleep(upload.slow_begin_ms);
        return s3_fake_text(fd, "200 OK",
                            upload.no_upload
                                ? "<InitiateMultipartUploadResult><Key/>"
                                  "</InitiateMultipartUploadResult>"
                                : "<InitiateMultipartUploadResult><UploadId>u/+&amp;1</UploadId>"
                                  "</InitiateMultipartUploadResult>");
    }
    ck_assert_ptr_nonnull(strstr(request->target, "uploadId=u%2F%2B%261"));
    if (has(request, "DELETE", "")) {
        atomic_fetch_add(&upload.aborted, 1);
        return s3_fake_text(fd, "204 No Content", "");
    }
    if (has(request, "POST", ""))
        return complete(fd, request);
    const char *part = strstr(request->target, "partNumber=");
    ck_assert(part != NULL && sscanf(part, "partNumber=%u&", &number) == 1);
    if ((int)number == upload.fail_part)
        return s3_fake_error(fd, "403 Forbidden", "AccessDenied");
    if ((int)number == upload.slow_part)
        s3_fake_sleep(60000);
    ck_assert_uint_eq(request->body_bytes, number < 3 ? PART : 1000);
    ck_assert(request->body[0] ==
              (uint8_t)(31u + (number - 1) * PART * 7u + ((number - 1) * PART >> 8)));
    atomic_fetch_add(&upload.parts, 1);
    snprintf(etag, sizeof(etag), "ETag: \"p%u\"\r\n", number);
    return s3_fake_reply(fd, "200 OK", etag, "", 0);
}

static int put_in_parts(uint32_t ms)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_PUT, "n", 0);
    call.req.buf = connector_object(pool, 1, 2 * PART + 1000);
    call.req.length = 2 * PART + 1000;
    call.req.deadline_ns = tierce__deadline_in_ms(ms);
    int rc = connector_call_run(connector, &call);
    ck_assert_uint_eq(atomic_load(&call.req.buf->refs), 1);
    memset(call.req.buf->data, 0, call.req.length); /* whoever still reads it would be seen */
    tierce__buf_release(call.req.buf);
    return rc;
}

static void wait_for(_Atomic int *count, int wanted)
{
    while (atomic_load(count) < wanted)
        poll(NULL, 0, 1);
}

START_TEST(a_long_object_goes_in_parts)
{
    memset(&upload, 0, sizeof(upload));
    upload.bad_completes = 1; /* which is tried again */
    start(take_upload, "&part=5MiB");
    ck_assert_int_eq(put_in_parts(30000), 0);
    ck_assert_int_eq(atomic_load(&upload.parts), 3);
    ck_assert_int_eq(atomic_load(&upload.completed), 1);
    ck_assert_int_eq(atomic_load(&upload.aborted), 0);
    end();
}
END_TEST

START_TEST(an_upload_that_fails_is_aborted)
{
    memset(&upload, 0, sizeof(upload));
    upload.fail_part = 2;
    start(take_upload, "&part=5MiB&connections=2");
    ck_assert_int_eq(put_in_parts(30000), TIERCE_E_REFUSED);
    expect_why("UploadPart: 403 AccessDenied");
    wait_for(&upload.aborted, 1);
    upload.fail_part = 0;
    upload.bad_completes = 100;
    ck_assert_int_eq(put_in_parts(30000), TIERCE_E_DOWN);
    expect_why("CompleteMultipartUpload");
    wait_for(&upload.aborted, 2);
    upload.no_upload = true;
    ck_assert_int_eq(put_in_parts(30000), TIERCE_E_FORMAT);
    ck_assert_int_eq(atomic_load(&upload.completed), 0);
    end();
}
END_TEST

START_TEST(an_upload_that_is_late_is_aborted)
{
    memset(&upload, 0, sizeof(upload));
    upload.slow_part = 1;
    start(take_upload, "&part=5MiB");
    ck_assert_int_eq(put_in_parts(3000), TIERCE_E_DEADLINE);
    wait_for(&upload.aborted, 1);
    upload.slow_part = 0;
    upload.slow_begin_ms = 4000; /* its id comes after the answer */
    ck_assert_int_eq(put_in_parts(2000), TIERCE_E_DEADLINE);
    wait_for(&upload.aborted, 2);
    ck_assert_int_eq(atomic_load(&upload.completed), 0);
    end();
}
END_TEST

static _Atomic uint32_t changes; /* answers until the object does not change any more */

static bool give_range(int fd, const struct s3_request *request)
{
    unsigned long long first, last;
    char headers[256];
    const char *range = strcasestr(request->head, "\r\nRange: bytes=");
    ck_assert(range != NULL && sscanf(range + 15, "%llu-%llu", &first, &last) == 2);
    ck_assert_uint_le(last - first + 1, PART);
    uint32_t left = atomic_load(&changes);
    if (left > 0)
        atomic_store(&changes, left - 1);
    uint8_t *body = (uint8_t *)malloc(last - first + 1);
    for (uint64_t i = first; i <= last; i++)
        body[i - first] = (uint8_t)(left * 31u + i * 7u + (i >> 8));
    snprintf(headers, sizeof(headers),
             "ETag: \"%u\"\r\nContent-Range: bytes %llu-%llu/999999999\r\n", left, first, last);
    bool ok = s3_fake_reply(fd, "206 Partial", headers, body, last - first + 1);
    free(body);
    return ok;
}

START_TEST(pieces_are_of_one_version)
{
    start(give_range, "&part=5MiB&connections=4");
    ck_assert_int_eq(connector_get(connector, pool, "n", 0, 4096, 3 * PART + 10), 0);
    ck_assert_uint_eq(atomic_load(&fake.requests), 4);
    atomic_store(&changes, 3);
    ck_assert_int_eq(connector_get(connector, pool, "n", 0, 0, 3 * PART), 0);
    ck_assert_uint_gt(atomic_load(&fake.requests), 7);
    atomic_store(&changes, 1000);
    ck_assert_int_eq(connector_get(connector, pool, "n", 0, 0, 3 * PART), TIERCE_E_FORMAT);
    expect_why("was replaced during each attempt");
    end();
}
END_TEST

/* ---- pages ----------------------------------------------------------------------------------- */

static const char *page_text;

static bool give_page(int fd, const struct s3_request *request)
{
    (void)request;
    return s3_fake_text(fd, "200 OK", page_text);
}

static char names_told[256];

static void tell(void *arg, const struct tierce_plugin_name *name)
{
    size_t used = strlen(names_told);
    (void)arg;
    snprintf(names_told + used, sizeof(names_told) - used, "[%.*s]", (int)name->bytes, name->text);
}

static int list(const char *prefix, uint64_t *cursor)
{
    struct connector_call call;
    connector_call_init(&call, TIERCE__STORE_LIST, prefix, 0);
    names_told[0] = '\0';
    call.req.each = tell;
    call.req.cursor = *cursor;
    int rc = connector_call_run(connector, &call);
    *cursor = call.req.cursor;
    return rc;
}

#define PAGE(inner) "<?xml version='1.0'?><ListBucketResult>" inner "</ListBucketResult>"
#define KEY(key)    "<Contents><Size>1</Size><Key>" key "</Key></Contents>"

START_TEST(keys_of_others_are_no_names)
{
    uint64_t cursor = 0;
    start(give_page, "");
    page_text = PAGE(KEY("aa") KEY("b") KEY("a b") KEY("a%21") KEY("a!21") KEY("a!2F") KEY("")
                         KEY("a!61") KEY("~") KEY("~YQ") KEY("a/b") KEY(".a") KEY("!00a"));
    ck_assert_int_eq(list("a", &cursor), 0);
    ck_assert_str_eq(names_told, "[aa][a!][a/]");
    page_text = PAGE("<EncodingType>url</EncodingType>" KEY("aa") KEY("a%21%32F") KEY("a%2"));
    cursor = 0;
    ck_assert_int_eq(list("a", &cursor), 0);
    ck_assert_str_eq(names_told, "[aa][a/]");
    ck_assert_uint_ne(cursor, 0); /* the long names come next */
    page_text = PAGE(KEY("aa"));
    ck_assert_int_eq(list("a", &cursor), 0);
    ck_assert_uint_eq(cursor, 0);
    end();
}
END_TEST

START_TEST(a_listing_that_was_forgotten)
{
    uint64_t first = 0, other = 0;
    start(give_page, "");
    page_text = PAGE("<IsTruncated>true</IsTruncated>"
                     "<NextContinuationToken>t</NextContinuationToken>");
    ck_assert_int_eq(list("a", &first), 0);
    for (int i = 0; i < 63; i++) {
        other = 0;
        ck_assert_int_eq(list("a", &other), 0);
    }
    ck_assert_int_eq(list("a", &first), 0); /* it has not been, so far */
    for (int i = 0; i < 64; i++) {
        other = 0;
        ck_assert_int_eq(list("a", &other), 0);
    }
    ck_assert_int_eq(list("a", &first), TIERCE_E_ARGUMENT);
    expect_why("not of a current listing");
    ck_assert_int_eq(list("a", &other), 0);
    end();
}
END_TEST

/* ---- sizes ----------------------------------------------------------------------------------- */

static bool say_found(int fd, const struct s3_request *request)
{
    (void)request;
    return s3_fake_text(fd, "200 OK", "");
}

START_TEST(what_was_there_is_remembered)
{
    start(say_found, "&remember=1h");
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), 0);
    ck_assert_int_eq(connector_exists(connector, "n"), 1);
    ck_assert_int_eq(connector_exists(connector, "n"), 1);
    ck_assert_uint_eq(atomic_load(&fake.requests), 1);
    /* It is 5 bytes long. */
    ck_assert_int_eq(connector_get(connector, pool, "n", 1, 0, 6), TIERCE_E_FORMAT);
    ck_assert_uint_eq(atomic_load(&fake.requests), 1);
    ck_assert_int_eq(run(TIERCE__STORE_DELETE, 10000), 0);
    ck_assert_int_eq(connector_exists(connector, "n"), 1);
    ck_assert_uint_eq(atomic_load(&fake.requests), 3);
    close_connector();
    open_fake("");
    ck_assert_int_eq(run(TIERCE__STORE_PUT, 10000), 0);
    ck_assert_int_eq(connector_exists(connector, "n"), 1);
    ck_assert_uint_eq(atomic_load(&fake.requests), 5); /* without it each lookup asks */
    end();
}
END_TEST

/* A store that serves whole what was asked for whole, and ranges without saying of how many bytes.
 */
static bool give_without_size(int fd, const struct s3_request *request)
{
    static const uint8_t object[5] = {0, 7, 14, 21, 28};
    if (strstr(request->target, "/small") != NULL)
        return s3_fake_reply(fd, "206 Partial Content", "Content-Range: bytes 0-0/1\r\n", object,
                             1);
    if (strstr(request->target, "/range") != NULL)
        return s3_fake_reply(fd, "206 Partial Content", "Content-Range: bytes 0-4/*\r\n", object,
                             5);
    return s3_fake_reply(fd, "200 OK", "", object, 5);
}

START_TEST(only_the_size_of_the_object_itself_is_remembered)
{
    static const char *const names[] = {"whole", "range"};
    start(give_without_size, "&remember=1h");
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(connector_get(connector, pool, "small", 0, 0, 1), 0);
        ck_assert_int_eq(connector_get(connector, pool, names[i], 0, 0, 5), 0);
        ck_assert_int_eq(connector_get(connector, pool, names[i], 0, 0, 5), 0);
    }
    ck_assert_int_eq(connector_get(connector, pool, "whole", 0, 0, 6), TIERCE_E_FORMAT);
    ck_assert_uint_eq(atomic_load(&fake.requests), 6);
    end();
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static bool serve_all(int fd, const struct s3_request *request)
{
    if (has(request, "GET", "list-type"))
        return s3_fake_text(fd, "200 OK",
                            PAGE("<IsTruncated>true</IsTruncated>"
                                 "<NextContinuationToken>t</NextContinuationToken>"));
    if (has(request, "GET", ""))
        return give_range(fd, request);
    if (strstr(request->target, "upload") != NULL)
        return take_upload(fd, request);
    return s3_fake_text(fd, "200 OK", "");
}

START_TEST(each_allocation_fails_once)
{
    memset(&upload, 0, sizeof(upload));
    pool = connector_pool();
    s3_fake_start(serve_all);
    uint64_t live = tierce__alloc_live();
    bool has_failed = true;
    for (uint64_t nth = 1; has_failed; nth++) {
        char url[256], why[TIERCE__CONNECTOR_WHY_BYTES];
        uint64_t cursor = 0;
        struct tierce__connector *opened = NULL;
        snprintf(url, sizeof(url), "s3://AKID:hidden@bucket?endpoint=http://127.0.0.1:%u&part=5MiB",
                 (unsigned)fake.port);
        tierce__alloc_fail_nth(nth);
        int rc =
            tierce__connector_open(&opened, url,
                                   &(struct tierce__connector_opts){
                                       .size = sizeof(struct tierce__connector_opts), .pool = pool},
                                   why);
        if (rc == 0) {
            connector = opened;
            int rcs[] = {run(TIERCE__STORE_PUT, 10000),
                         run(TIERCE__STORE_LOOKUP, 10000),
                         list("a", &cursor),
                         list("a", &cursor),
                         put_in_parts(30000),
                         connector_get(connector, pool, "n", 0, 0, 5)};
            for (size_t i = 0; i < sizeof(rcs) / sizeof(*rcs); i++)
                ck_assert(rcs[i] >= 0 || rcs[i] == -ENOMEM || rcs[i] == TIERCE_E_ARGUMENT);
            ck_assert_uint_eq(connector_stats(connector).waiting, 0);
            close_connector();
        } else {
            ck_assert_int_eq(rc, -ENOMEM);
        }
        has_failed = tierce__alloc_fail_nth(0) >= nth;
        ck_assert_uint_eq(tierce__alloc_live(), live);
    }
    s3_fake_stop();
    tierce__pool_destroy(pool);
}
END_TEST

CHECK_MAIN("s3 in parts", .seconds = 120, .at_once = true,
           .tests = {a_long_object_goes_in_parts, an_upload_that_fails_is_aborted,
                     an_upload_that_is_late_is_aborted, pieces_are_of_one_version,
                     keys_of_others_are_no_names, a_listing_that_was_forgotten,
                     what_was_there_is_remembered, only_the_size_of_the_object_itself_is_remembered,
                     each_allocation_fails_once})
