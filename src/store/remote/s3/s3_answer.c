/* SPDX-License-Identifier: Apache-2.0 */
/* Interprets the answers of S3. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/remote/s3/s3_private.h"
#include "store/remote/s3/s3_xml.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#define ERROR_BYTES 64u
#define PLACE_BYTES 256u

static const char *call_name(enum tierce__s3_call call)
{
    static const char *const names[] = {
        [TIERCE__S3_HEAD] = "HeadObject",
        [TIERCE__S3_GET] = "GetObject",
        [TIERCE__S3_PUT] = "PutObject",
        [TIERCE__S3_BEGIN] = "CreateMultipartUpload",
        [TIERCE__S3_PART] = "UploadPart",
        [TIERCE__S3_COMPLETE] = "CompleteMultipartUpload",
        [TIERCE__S3_ABORT] = "AbortMultipartUpload",
        [TIERCE__S3_DELETE] = "DeleteObject",
        [TIERCE__S3_DELETE_MANY] = "DeleteObjects",
        [TIERCE__S3_LIST] = "ListObjectsV2",
        [TIERCE__S3_PING] = "ListObjectsV2",
    };
    TIERCE_DASSERT((size_t)call < sizeof(names) / sizeof(names[0]));
    return names[call];
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct meaning {
    const char *error; /* the Code of S3's answer */
    int status;
    bool again; /* it requests a later retry, and has done nothing */
    const char *words;
} meanings[] = {
    {"NoSuchKey", TIERCE_E_MISS, false, NULL},
    {"NoSuchBucket", TIERCE_E_DOWN, false, "there is no such bucket"},
    {"AccessDenied", TIERCE_E_REFUSED, false,
     "these credentials lack permission (a missing object is also reported so if they lack "
     "ListBucket)"},
    {"InvalidAccessKeyId", TIERCE_E_REFUSED, false, "the access key is unknown to the store"},
    {"SignatureDoesNotMatch", TIERCE_E_REFUSED, false, "the secret key is invalid"},
    {"ExpiredToken", TIERCE_E_REFUSED, false, "the session token has expired"},
    {"InvalidToken", TIERCE_E_REFUSED, false, "the session token is invalid"},
    {"TokenRefreshRequired", TIERCE_E_REFUSED, false, "the session token has expired"},
    {"RequestTimeTooSkewed", TIERCE_E_REFUSED, false,
     "this machine's clock differs too much from the store's"},
    {"AuthorizationHeaderMalformed", TIERCE_E_REFUSED, false, "the region may be wrong"},
    {"PermanentRedirect", TIERCE_E_DOWN, false,
     "the bucket is in another region or at another endpoint; check region= and endpoint="},
    {"TemporaryRedirect", TIERCE_E_DOWN, false,
     "the bucket is in another region or at another endpoint; check region= and endpoint="},
    {"IllegalLocationConstraintException", TIERCE_E_DOWN, false,
     "the bucket is in another region; check region="},
    {"EntityTooLarge", TIERCE_E_LIMIT, false, "larger than the store's limit"},
    {"KeyTooLongError", TIERCE_E_LIMIT, false, "the name is longer than the store's limit"},
    {"InvalidRange", TIERCE_E_FORMAT, false, "the object ends before the range begins"},
    {"QuotaExceeded", TIERCE_E_FULL, false, "the store has no room"},
    {"XMinioStorageFull", TIERCE_E_FULL, false, "the store has no room"},
    {"InsufficientStorage", TIERCE_E_FULL, false, "the store has no room"},
    {"SlowDown", TIERCE_E_DOWN, true, "too many requests"},
    {"ServiceUnavailable", TIERCE_E_DOWN, true, NULL},
    {"InternalError", TIERCE_E_DOWN, true, NULL},
    {"RequestTimeout", TIERCE_E_DOWN, true, NULL},
    {"OperationAborted", TIERCE_E_DOWN, true, NULL},
};

/* Without a Code that we know. */
static struct meaning meaning_of_number(long http)
{
    if (http == 401 || http == 403)
        return (struct meaning){.status = TIERCE_E_REFUSED,
                                .words = "the credentials are invalid, or lack permission"};
    if (http == 404)
        return (struct meaning){.status = TIERCE_E_MISS};
    if (http == 413)
        return (struct meaning){.status = TIERCE_E_LIMIT, .words = "larger than the store's limit"};
    if (http == 416)
        return (struct meaning){.status = TIERCE_E_FORMAT, .words = "no such range"};
    if (http == 507)
        return (struct meaning){.status = TIERCE_E_FULL, .words = "the store has no room"};
    if (http == 429 || http == 500 || http == 502 || http == 503 || http == 504)
        return (struct meaning){.status = TIERCE_E_DOWN, .again = true};
    if (http >= 300 && http < 400)
        return (struct meaning){.status = TIERCE_E_DOWN, .words = "check endpoint="};
    return (struct meaning){.status = http >= 500 ? TIERCE_E_DOWN : TIERCE_E_FORMAT};
}

/* The Code of an answer; "" for none. The rest of an answer is never shown, because it may repeat
 * parts of our request. */
static void read_error(char error[ERROR_BYTES], const struct tierce__s3_transfer *transfer)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.";
    if (tierce__s3_xml_find(error, ERROR_BYTES, transfer->text, transfer->text_bytes,
                            "Error/Code") != 0 ||
        strspn(error, letters) != strlen(error))
        error[0] = '\0';
}

/* A name that may be shown: none that could be a secret that we sent. */
static void keep_name(char *name)
{
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != strlen(name))
        name[0] = '\0';
}

/* For a bucket in another region: names our region or endpoint, and the one in the store's answer.
 * The redirection is not followed, because the credentials are for the configured endpoint. */
static void tell_place(char text[PLACE_BYTES], const struct tierce__s3_transfer *transfer,
                       const char *error)
{
    const struct tierce__s3_config *config = &transfer->s3->config;
    char region[TIERCE__S3_REGION_MAX + 1], endpoint[80];
    text[0] = '\0';
    if (transfer->http / 100 != 3 && strcmp(error, "AuthorizationHeaderMalformed") != 0 &&
        strcmp(error, "IllegalLocationConstraintException") != 0)
        return;
    snprintf(region, sizeof(region), "%s", transfer->bucket_region);
    if (region[0] == '\0' && tierce__s3_xml_find(region, sizeof(region), transfer->text,
                                                 transfer->text_bytes, "Error/Region") != 0)
        region[0] = '\0';
    if (tierce__s3_xml_find(endpoint, sizeof(endpoint), transfer->text, transfer->text_bytes,
                            "Error/Endpoint") != 0)
        endpoint[0] = '\0';
    keep_name(region);
    keep_name(endpoint);
    snprintf(text, PLACE_BYTES, "%s%s%s%s; asked: %s at %.100s",
             region[0] != '\0' ? "; it is in " : "", region,
             endpoint[0] != '\0' ? "; its endpoint is " : "", endpoint, config->region,
             config->origin);
}

static int refused(const struct tierce__s3_transfer *transfer, bool *again)
{
    TIERCE_DASSERT(transfer->http < 200 || transfer->http >= 300);
    char error[ERROR_BYTES], place[PLACE_BYTES];
    read_error(error, transfer);
    struct meaning meaning = meaning_of_number(transfer->http);
    for (size_t i = 0; i < sizeof(meanings) / sizeof(*meanings); i++) {
        if (strcmp(error, meanings[i].error) == 0)
            meaning = meanings[i];
    }
    enum tierce__s3_call call = transfer->call;
    if (meaning.status == TIERCE_E_MISS) {
        if (call == TIERCE__S3_DELETE || call == TIERCE__S3_ABORT)
            return 0;
        if (call == TIERCE__S3_HEAD || call == TIERCE__S3_GET)
            return TIERCE_E_MISS;
        meaning = (struct meaning){.status = TIERCE_E_DOWN, .words = "check endpoint="};
    }
    *again = meaning.again;
    tell_place(place, transfer, error);
    tierce__s3_set_why(transfer->s3, "%s: %ld%s%s%s%s%s", call_name(call), transfer->http,
                       error[0] != '\0' ? " " : "", error, meaning.words != NULL ? ": " : "",
                       meaning.words != NULL ? meaning.words : "", place);
    return meaning.status;
}

static int misunderstood(const struct tierce__s3_transfer *transfer, const char *what)
{
    tierce__s3_set_why(transfer->s3, "%s: %s", call_name(transfer->call), what);
    return TIERCE_E_FORMAT;
}

/* The request was not answered whole. */
static int lost(const struct tierce__s3_transfer *transfer, CURLcode code)
{
    TIERCE_DASSERT(code != CURLE_OK);
    const char *text = transfer->error[0] != '\0' ? transfer->error : curl_easy_strerror(code);
    if (code == CURLE_COULDNT_CONNECT && transfer->s3->socket_error != 0)
        text = tierce_strerror(-transfer->s3->socket_error); /* which curl does not tell */
    const char *host = transfer->s3->config.host;
    bool has_host = strstr(text, host) != NULL; /* a name that does not resolve in time has none */
    tierce__s3_set_why(transfer->s3, "%s: %s%s%s", call_name(transfer->call), text,
                       has_host ? "" : ", from ", has_host ? "" : host);
    switch ((int)code) {
    case CURLE_OUT_OF_MEMORY:
        return -ENOMEM;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL: /* HTTP/0.9: whatever speaks there */
    case CURLE_WRITE_ERROR:
    case CURLE_BAD_CONTENT_ENCODING:
        return TIERCE_E_FORMAT;
    default:
        return TIERCE_E_DOWN;
    }
}

/* ---- the answers to requests ----------------------------------------------------------------- */

static int check_object(const struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(transfer->call == TIERCE__S3_GET && transfer->wanted > 0);
    bool is_part = transfer->http == 206 && transfer->has_range &&
                   transfer->range_first == transfer->offset &&
                   transfer->range_last == transfer->offset + transfer->wanted - 1;
    bool is_whole = transfer->http == 200 && transfer->offset == 0;
    if (transfer->http == 200 && transfer->offset > 0)
        return misunderstood(transfer, "the store does not serve ranges");
    if ((!is_part && !is_whole) || transfer->got != transfer->wanted)
        return misunderstood(transfer, "an object with an unexpected length");
    return 0;
}

static bool note_root(void *arg, const char *path, const char *text, size_t bytes)
{
    const char **root = arg;
    (void)text;
    (void)bytes;
    *root = strncmp(path, *root, strlen(*root)) == 0 ? *root : "";
    return true;
}

/* Whether the answer is XML of that root, "Root/". */
static bool has_root(const struct tierce__s3_transfer *transfer, const char *root)
{
    const char *found = root;
    return tierce__s3_xml_read(transfer->text, transfer->text_bytes, note_root, &found) == 0 &&
           found[0] != '\0';
}

/* Anything but an empty result or the names of deleted objects is a failure. */
static bool note_deleted(void *arg, const char *path, const char *text, size_t bytes)
{
    bool *failed = arg;
    (void)text;
    (void)bytes;
    *failed |= strcmp(path, "DeleteResult") != 0 && strncmp(path, "DeleteResult/Deleted/", 21) != 0;
    return true;
}

/* TIERCE_E_FORMAT if at least one object was not deleted, or 200 came with another answer: each is
 * then tried separately. */
static int check_deletions(const struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(transfer->call == TIERCE__S3_DELETE_MANY);
    bool failed = false;
    int rc = tierce__s3_xml_read(transfer->text, transfer->text_bytes, note_deleted, &failed);
    return rc == 0 && !failed ? 0 : TIERCE_E_FORMAT;
}

/* The store has no DeleteObjects: these and all later keys are deleted one by one. */
static int cannot_delete_many(const struct tierce__s3_transfer *transfer, bool *again)
{
    TIERCE_DASSERT(transfer->call == TIERCE__S3_DELETE_MANY);
    long http = transfer->http;
    int status = refused(transfer, again);
    if (http != 404 && http != 405 && http != 411 && http != 501 && status != TIERCE_E_FORMAT &&
        status != TIERCE_E_LIMIT)
        return status;
    *again = false;
    transfer->s3->deletes_alone = true;
    return TIERCE_E_FORMAT;
}

static int check_answer(struct tierce__s3_transfer *transfer, bool *again)
{
    TIERCE_DASSERT(transfer->http >= 200 && transfer->http < 300);
    switch (transfer->call) {
    case TIERCE__S3_GET:
        return check_object(transfer);
    case TIERCE__S3_PART:
        return transfer->etag[0] != '\0' ? 0 : misunderstood(transfer, "an answer without ETag");
    case TIERCE__S3_COMPLETE: /* which begins to answer before it knows how it ends */
        if (has_root(transfer, "Error/")) {
            transfer->http = 500;
            return refused(transfer, again);
        }
        return has_root(transfer, "CompleteMultipartUploadResult/")
                   ? 0
                   : misunderstood(transfer, "invalid answer");
    case TIERCE__S3_BEGIN:
        return has_root(transfer, "InitiateMultipartUploadResult/")
                   ? 0
                   : misunderstood(transfer, "invalid answer");
    case TIERCE__S3_DELETE_MANY:
        return check_deletions(transfer);
    case TIERCE__S3_LIST:
    case TIERCE__S3_PING:
        return has_root(transfer, "ListBucketResult/") ? 0
                                                       : misunderstood(transfer, "invalid answer");
    case TIERCE__S3_HEAD:
    case TIERCE__S3_PUT:
    case TIERCE__S3_ABORT:
    case TIERCE__S3_DELETE:
    default:
        return 0;
    }
}

int tierce__s3_answer(struct tierce__s3_transfer *transfer, CURLcode code, bool *again)
{
    TIERCE_DASSERT(tierce__s3_is_own(transfer->s3) && !transfer->is_running);
    *again = false;
    if (transfer->no_memory)
        return -ENOMEM;
    if (transfer->is_wrong && transfer->call == TIERCE__S3_GET)
        return check_object(transfer);
    if (transfer->is_wrong)
        return misunderstood(transfer, "an answer above the size limit");
    if (code != CURLE_OK)
        return lost(transfer, code);
    if ((transfer->http < 200 || transfer->http >= 300) && transfer->call == TIERCE__S3_DELETE_MANY)
        return cannot_delete_many(transfer, again);
    if (transfer->http < 200 || transfer->http >= 300)
        return refused(transfer, again);
    return check_answer(transfer, again);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Another object of the same hash is taken for this one: at worst a GET finds nothing. */
void tierce__s3_learn(struct tierce__s3 *s3, const char *key, uint64_t bytes)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    if (s3->sizes == NULL)
        return;
    uint64_t name = XXH3_64bits(key, strlen(key)) | 1;
    struct tierce__s3_size *size = &s3->sizes[name / 2 % TIERCE__S3_SIZES];
    if (bytes > 0)
        *size = (struct tierce__s3_size){.name = name, .bytes = bytes, .at_ns = tierce__now_ns()};
    else if (size->name == name)
        size->name = 0;
}

uint64_t tierce__s3_known(const struct tierce__s3 *s3, const char *key)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    if (s3->sizes == NULL)
        return 0;
    uint64_t name = XXH3_64bits(key, strlen(key)) | 1;
    const struct tierce__s3_size *size = &s3->sizes[name / 2 % TIERCE__S3_SIZES];
    bool is_fresh = tierce__now_ns() - size->at_ns < s3->config.remember_ms * TIERCE__MS_NS;
    return size->name == name && is_fresh ? size->bytes : 0;
}
