/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/http/http_post.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct collecting {
    struct tierce__http_answer answer;
    size_t bytes_max;
    int rc;
};

static size_t take_bytes(char *bytes, size_t one, size_t count, void *arg)
{
    struct collecting *c = arg;
    size_t n = one * count;
    char *grown = NULL;
    if (n > c->bytes_max - c->answer.bytes)
        c->rc = TIERCE_E_LIMIT;
    else if ((grown = tierce__realloc(c->answer.body, c->answer.bytes + n + 1)) == NULL)
        c->rc = -ENOMEM;
    if (c->rc < 0)
        return CURL_WRITEFUNC_ERROR;
    memcpy(grown + c->answer.bytes, bytes, n);
    c->answer.body = grown;
    c->answer.bytes += n;
    grown[c->answer.bytes] = '\0';
    return n;
}

static int code_of(CURLcode code)
{
    if (code == CURLE_OPERATION_TIMEDOUT)
        return TIERCE_E_DEADLINE;
    if (code == CURLE_COULDNT_CONNECT)
        return -ECONNREFUSED;
    return code == CURLE_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

int tierce__http_post(struct tierce__http_answer *out, CURL *curl, const char *url,
                      const char *text, size_t bytes_max, char why[256])
{
    struct collecting c = {.bytes_max = bytes_max};
    curl_easy_setopt(curl, CURLOPT_URL, url);
    if (text != NULL) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, text);
    } else {
        curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
    }
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &c);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    CURLcode code = curl_easy_perform(curl);
    if (c.rc == 0 && code != CURLE_OK)
        c.rc = code_of(code);
    if (c.rc == 0)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &c.answer.status);
    if (text != NULL)
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, NULL); /* the caller's, for this call only */
    if (c.rc < 0) {
        bool own = c.rc == TIERCE_E_LIMIT || c.rc == -ENOMEM;
        snprintf(why, 256, "%s", own ? tierce_strerror(c.rc) : curl_easy_strerror(code));
        tierce__free(c.answer.body);
        return c.rc;
    }
    *out = c.answer;
    return 0;
}
