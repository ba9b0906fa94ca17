/* SPDX-License-Identifier: Apache-2.0 */
/* A listing: one job is one page of ListObjectsV2, and a mark remembers where the next one begins.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/text/url.h"
#include "store/remote/s3/aws_private.h"
#include "store/remote/s3/s3_private.h"
#include "store/remote/s3/s3_xml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tierce__s3_mark *find_mark(struct tierce__s3 *s3, uint64_t cursor)
{
    TIERCE_DASSERT(cursor > 0);
    for (uint32_t i = 0; i < TIERCE__S3_MARKS; i++) {
        if (s3->marks[i].cursor == cursor)
            return &s3->marks[i];
    }
    return NULL;
}

/* Stores the continuation of a listing; it replaces the listing that has been waiting longest. */
static int make_mark(struct tierce__s3 *s3, uint64_t *cursor, bool of_long_ones, const char *token)
{
    char *copy = token[0] != '\0' ? tierce__strdup(token) : NULL;
    struct tierce__s3_mark *mark = &s3->marks[0];
    if (token[0] != '\0' && copy == NULL)
        return -ENOMEM;
    for (uint32_t i = 1; i < TIERCE__S3_MARKS; i++) {
        if (s3->marks[i].cursor < mark->cursor)
            mark = &s3->marks[i];
    }
    tierce__free(mark->token);
    *mark = (struct tierce__s3_mark){
        .cursor = ++s3->marks_made, .of_long_ones = of_long_ones, .token = copy};
    *cursor = mark->cursor;
    TIERCE_DASSERT(find_mark(s3, *cursor) == mark); /* no other listing has the number */
    return 0;
}

int tierce__s3_page_begin(struct tierce__s3 *s3, struct tierce__s3_job *job)
{
    TIERCE_DASSERT(job->req->op == TIERCE__STORE_LIST && job->token[0] == '\0');
    if (job->req->cursor == 0)
        return 0;
    const struct tierce__s3_mark *mark = find_mark(s3, job->req->cursor);
    if (mark == NULL) {
        tierce__s3_set_why(
            s3, "ListObjectsV2: the cursor is not of a current listing; start the listing again");
        return TIERCE_E_ARGUMENT;
    }
    job->of_long_ones = mark->of_long_ones;
    snprintf(job->token, sizeof(job->token), "%s", mark->token != NULL ? mark->token : "");
    return 0;
}

struct s3_page {
    const struct tierce__s3 *s3;
    struct tierce__store_req *req;
    bool is_encoded, is_more;
    char token[TIERCE__S3_TOKEN_BYTES];
    /* The object that is being read; has_key is false between objects. */
    char key[TIERCE__S3_XML_TEXT_MAX + 1];
    bool has_key;
    uint64_t bytes, unknown_bytes;
    int64_t changed_us, unknown_us;
};

static bool read_page_head(void *arg, const char *path, const char *text, size_t bytes)
{
    struct s3_page *page = arg;
    if (strcmp(path, "ListBucketResult/EncodingType") == 0)
        page->is_encoded = strcmp(text, "url") == 0;
    else if (strcmp(path, "ListBucketResult/IsTruncated") == 0)
        page->is_more = strcmp(text, "true") == 0;
    else if (strcmp(path, "ListBucketResult/NextContinuationToken") == 0) {
        if (bytes >= sizeof(page->token))
            return false;
        memcpy(page->token, text, bytes + 1);
    }
    return true;
}

static void begin_object(struct s3_page *page)
{
    page->has_key = false;
    page->bytes = page->unknown_bytes;
    page->changed_us = page->unknown_us;
}

static bool read_object(void *arg, const char *path, const char *text, size_t bytes)
{
    struct s3_page *page = arg;
    char *end;
    if (strcmp(path, "ListBucketResult/Contents/Key") == 0) {
        TIERCE_ASSERT(bytes <= TIERCE__S3_XML_TEXT_MAX);
        memcpy(page->key, text, bytes + 1);
        page->has_key = true;
    } else if (strcmp(path, "ListBucketResult/Contents/Size") == 0) {
        unsigned long long size = strtoull(text, &end, 10);
        bool is_size = text[0] >= '0' && text[0] <= '9' && *end == '\0';
        page->bytes = is_size ? size : page->unknown_bytes;
    } else if (strcmp(path, "ListBucketResult/Contents/LastModified") == 0) {
        uint64_t seconds = tierce__aws_time(text);
        bool is_time = seconds > 0 && seconds < INT64_MAX / 1000000;
        page->changed_us = is_time ? (int64_t)seconds * 1000000 : page->unknown_us;
    }
    return true;
}

static void end_object(void *arg, const char *path)
{
    struct s3_page *page = arg;
    struct tierce__store_req *req = page->req;
    char name_text[TIERCE__CONNECTOR_NAME_MAX];
    struct tierce_plugin_name name = {.text = name_text};
    if (strcmp(path, "ListBucketResult/Contents") != 0)
        return;
    bool is_ours = page->has_key && (!page->is_encoded || tierce__url_decode(page->key, true)) &&
                   tierce__s3_name(name_text, &name.bytes, page->s3->config.prefix,
                                   page->s3->config.has_paths, page->key);
    bool begins = is_ours && (req->name_count == 0 ||
                              (name.bytes >= req->names[0].bytes &&
                               memcmp(name_text, req->names[0].text, req->names[0].bytes) == 0));
    req->object_bytes = page->bytes;
    req->changed_us = page->changed_us;
    if (begins)
        req->each(req->arg, &name);
    begin_object(page);
}

int tierce__s3_page_end(struct tierce__s3 *s3, struct tierce__s3_job *job,
                        const struct tierce__s3_transfer *transfer)
{
    TIERCE_DASSERT(transfer->job == job && transfer->call == TIERCE__S3_LIST);
    struct s3_page page = {.s3 = s3,
                           .req = job->req,
                           .unknown_bytes = job->req->object_bytes,
                           .unknown_us = job->req->changed_us};
    uint64_t cursor = 0;
    TIERCE_DASSERT(job->req->op == TIERCE__STORE_LIST);
    int rc = tierce__s3_xml_read(transfer->text, transfer->text_bytes, read_page_head, &page);
    if (rc != 0 || page.is_more != (page.token[0] != '\0')) {
        tierce__s3_set_why(s3, "ListObjectsV2: invalid answer");
        return TIERCE_E_FORMAT;
    }
    if (page.is_more)
        rc = make_mark(s3, &cursor, job->of_long_ones, page.token);
    else if (!job->of_long_ones && !s3->config.has_paths)
        rc = make_mark(s3, &cursor, true, "");
    begin_object(&page);
    if (rc == 0)
        rc = tierce__s3_xml_read_groups(transfer->text, transfer->text_bytes, read_object,
                                        end_object, &page);
    if (rc != 0)
        return rc;
    struct tierce__s3_mark *mark = job->req->cursor != 0 ? find_mark(s3, job->req->cursor) : NULL;
    if (mark != NULL) {
        tierce__free(mark->token);
        *mark = (struct tierce__s3_mark){0};
    }
    job->req->cursor = cursor;
    return 0;
}
