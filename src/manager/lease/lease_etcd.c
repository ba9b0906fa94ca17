/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease in etcd, over its JSON gateway: etcd's lease with a time to live, a key that goes with it
 * and names the holder, and beside it a key that stays and has the last token. The node that
 * creates the first, in one transaction with the next token, leads.
 *
 * In this JSON keys and values are base64, 64-bit numbers are texts, and default values are
 * omitted.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "manager/lease/lease.h"
#include "net/http_client.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ENDPOINTS_MAX = 16,
    TEXT_BYTES = 256, /* of a key or a value */
    BASE64_BYTES = 4 * ((TEXT_BYTES + 2) / 3) + 1,
    ID_BYTES = 24, /* a 64-bit number */
    REPLY_BYTES_MAX = 1 << 20,
    URL_BYTES = 512,
};

struct etcd_lease {
    struct tierce__lease base;
    struct tierce__curl *client;
    char *endpoints[ENDPOINTS_MAX];  /* "host:port" */
    size_t endpoint_count, endpoint; /* the endpoint that answered last */
    const char *protocol;            /* "http", "https" */
    const char *holder;
    char lock_key[BASE64_BYTES], token_key[BASE64_BYTES];
    char id[ID_BYTES]; /* of etcd's lease, or "" */
};

/* ---- texts ----------------------------------------------------------------------------------- */

static void encode(char out[BASE64_BYTES], const char *text)
{
    TIERCE_ASSERT(strlen(text) <= TEXT_BYTES);
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text, (int)strlen(text));
}

/* "" if the value is missing or too long. */
static void decode(char *out, size_t size, const char *base64)
{
    unsigned char bytes[BASE64_BYTES];
    size_t n = strlen(base64);
    int got = n < BASE64_BYTES && n % 4 == 0
                  ? EVP_DecodeBlock(bytes, (const unsigned char *)base64, (int)n)
                  : -1;
    out[0] = '\0';
    if (got < 0)
        return;
    for (size_t i = n; i > 0 && base64[i - 1] == '='; i--)
        got--;
    TIERCE_DASSERT((size_t)(got > 0 ? got : 0) <= sizeof(bytes));
    snprintf(out, size, "%.*s", got > 0 ? got : 0, (const char *)bytes);
}

/* A text of a reply; "" if it is missing or too long. */
static void text_of(char *out, size_t size, struct tierce__text json, const char *path)
{
    (void)tierce__json_get_text(out, size, json, path);
}

/* The same of a base64 text. */
static void bytes_of(char *out, size_t size, struct tierce__text json, const char *path)
{
    char base64[BASE64_BYTES];
    text_of(base64, sizeof(base64), json, path);
    decode(out, size, base64);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Makes one call to one endpoint. An unsuccessful answer is -EPROTO; other errors come from the
 * connection. */
static int post_to(struct etcd_lease *lease, size_t endpoint, const char *path, const char *body,
                   struct tierce__json_doc *out)
{
    TIERCE_ASSERT(endpoint < lease->endpoint_count);
    char url[URL_BYTES], why[256];
    struct tierce__curl_answer answer = {0};
    snprintf(url, sizeof(url), "%s://%s/v3/%s", lease->protocol, lease->endpoints[endpoint], path);
    int rc = tierce__curl_call(
        &answer, lease->client,
        &(struct tierce__curl_request){.url = url,
                                       .body = body,
                                       .headers = {{"Content-Type", "application/json"}},
                                       .bytes_max = REPLY_BYTES_MAX},
        why);
    if (rc == 0 && answer.status != 200)
        rc = -EPROTO;
    if (rc == 0)
        rc = tierce__json_parse(out, answer.body, strcspn(answer.body, "\n"), NULL);
    if (rc == 0 && tierce__json_value_kind(out->value) != '{') {
        tierce__json_doc_clear(out);
        rc = -EPROTO;
    }
    tierce__curl_answer_clear(&answer);
    return rc;
}

/* A request, which is written member by member. */
struct etcd_request {
    struct tierce__line line;
    struct tierce__json_write json;
};

static void begin(struct etcd_request *request)
{
    *request = (struct etcd_request){0};
    request->json.line = &request->line;
    tierce__json_write_open(&request->json, NULL, '{');
}

/* Tries the endpoints in turn, beginning with the one that answered last. Clears the request. */
static int post(struct etcd_lease *lease, const char *path, struct etcd_request *request,
                struct tierce__json_doc *out)
{
    int rc = -ENOMEM;
    tierce__json_write_close(&request->json, '}');
    tierce__line_put_bytes(&request->line, "", 1);
    TIERCE_ASSERT(request->json.depth == 0);
    TIERCE_ASSERT(lease->endpoint < lease->endpoint_count);
    for (size_t i = 0; !request->line.failed && i < lease->endpoint_count; i++) {
        size_t endpoint = (lease->endpoint + i) % lease->endpoint_count;
        rc = post_to(lease, endpoint, path, request->line.text, out);
        if (rc == 0)
            lease->endpoint = endpoint;
        if (rc == 0 || rc == -ENOMEM)
            break;
    }
    tierce__line_clear(&request->line);
    return rc;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void put_range(struct tierce__json_write *json, const char *key)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_open(json, "request_range", '{');
    tierce__json_write_text(json, "key", key);
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
}

static void put_put(struct tierce__json_write *json, const char *key, const char *value,
                    const char *id)
{
    char base64[BASE64_BYTES];
    encode(base64, value);
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_open(json, "request_put", '{');
    tierce__json_write_text(json, "key", key);
    tierce__json_write_text(json, "value", base64);
    if (id != NULL)
        tierce__json_write_text(json, "lease", id);
    tierce__json_write_close(json, '}');
    tierce__json_write_close(json, '}');
}

static void put_compare(struct tierce__json_write *json, const char *key, const char *target,
                        const char *field, const char *revision)
{
    tierce__json_write_open(json, NULL, '{');
    tierce__json_write_text(json, "key", key);
    tierce__json_write_text(json, "target", target);
    tierce__json_write_text(json, "result", "EQUAL");
    tierce__json_write_text(json, field, revision);
    tierce__json_write_close(json, '}');
}

/* The only entry that an operation of a transaction found, or empty. */
#define FOUND_BY(n) "responses." #n ".response_range.kvs.0"

/* ---- data in etcd ---------------------------------------------------------------------------- */

struct etcd_seen {
    char holder[TIERCE__LEASE_HOLDER_BYTES]; /* "" for nobody */
    char id[ID_BYTES];                       /* of the holder's lease */
    uint64_t token;
    char token_revision[ID_BYTES];
};

static int see(struct etcd_lease *lease, struct etcd_seen *out)
{
    struct etcd_request request;
    struct tierce__json_doc reply = {0};
    char token[TEXT_BYTES];
    begin(&request);
    tierce__json_write_open(&request.json, "success", '[');
    put_range(&request.json, lease->lock_key);
    put_range(&request.json, lease->token_key);
    tierce__json_write_close(&request.json, ']');
    int rc = post(lease, "kv/txn", &request, &reply);
    if (rc != 0)
        return rc;
    *out = (struct etcd_seen){.token_revision = "0"};
    bytes_of(out->holder, sizeof(out->holder), reply.value, FOUND_BY(0) ".value");
    text_of(out->id, sizeof(out->id), reply.value, FOUND_BY(0) ".lease");
    if (tierce__json_get(reply.value, FOUND_BY(1)).length > 0) {
        bytes_of(token, sizeof(token), reply.value, FOUND_BY(1) ".value");
        out->token = strtoull(token, NULL, 10);
        text_of(out->token_revision, sizeof(out->token_revision), reply.value,
                FOUND_BY(1) ".mod_revision");
    }
    tierce__json_doc_clear(&reply);
    return 0;
}

/* Checks whether the lock exists and is ours: then `id` is its lease. */
static bool is_ours(const struct etcd_lease *lease, const struct etcd_seen *seen)
{
    return lease->id[0] != '\0' && strcmp(seen->id, lease->id) == 0 &&
           strcmp(seen->holder, lease->holder) == 0;
}

/* Makes a call with one text, and takes one of the reply. */
static int ask(struct etcd_lease *lease, const char *path, const char *name, const char *text,
               const char *wanted, char out[ID_BYTES])
{
    struct etcd_request request;
    struct tierce__json_doc reply = {0};
    begin(&request);
    tierce__json_write_text(&request.json, name, text);
    int rc = post(lease, path, &request, &reply);
    if (rc == 0)
        text_of(out, ID_BYTES, reply.value, wanted);
    tierce__json_doc_clear(&reply);
    return rc;
}

static int grant(struct etcd_lease *lease, uint32_t lease_ms)
{
    TIERCE_DASSERT(lease_ms > 0);
    char seconds[ID_BYTES];
    snprintf(seconds, sizeof(seconds), "%u", (lease_ms + 999) / 1000);
    int rc = ask(lease, "lease/grant", "TTL", seconds, "ID", lease->id);
    return rc != 0 ? rc : lease->id[0] != '\0' ? 0 : -EPROTO;
}

static void etcd_give(struct tierce__lease *base)
{
    struct etcd_lease *lease = (struct etcd_lease *)base;
    char ignored[ID_BYTES];
    if (lease->id[0] != '\0')
        (void)ask(lease, "lease/revoke", "ID", lease->id, "ID", ignored);
    lease->id[0] = '\0';
}

/* Creates the lock with the granted lease, unless another node was faster. */
static int create(struct etcd_lease *lease, const struct etcd_seen *seen, uint64_t token,
                  char other[TIERCE__LEASE_HOLDER_BYTES])
{
    TIERCE_ASSERT(lease->id[0] != '\0');
    struct etcd_request request;
    struct tierce__json_doc reply = {0};
    char text[ID_BYTES], id[ID_BYTES];
    begin(&request);
    snprintf(text, sizeof(text), "%" PRIu64, token);
    tierce__json_write_open(&request.json, "compare", '[');
    put_compare(&request.json, lease->lock_key, "CREATE", "create_revision", "0");
    put_compare(&request.json, lease->token_key, "MOD", "mod_revision", seen->token_revision);
    tierce__json_write_close(&request.json, ']');
    tierce__json_write_open(&request.json, "success", '[');
    put_put(&request.json, lease->lock_key, lease->holder, lease->id);
    put_put(&request.json, lease->token_key, text, NULL);
    tierce__json_write_close(&request.json, ']');
    tierce__json_write_open(&request.json, "failure", '[');
    put_range(&request.json, lease->lock_key);
    tierce__json_write_close(&request.json, ']');
    int rc = post(lease, "kv/txn", &request, &reply);
    if (rc != 0)
        return rc;
    /* An earlier try, whose answer was lost, may have succeeded. */
    text_of(id, sizeof(id), reply.value, FOUND_BY(0) ".lease");
    if (!tierce__json_get_bool(reply.value, "succeeded") && strcmp(id, lease->id) != 0) {
        bytes_of(other, TIERCE__LEASE_HOLDER_BYTES, reply.value, FOUND_BY(0) ".value");
        rc = -EBUSY;
    }
    tierce__json_doc_clear(&reply);
    return rc;
}

/* ---- the seam -------------------------------------------------------------------------------- */

static int etcd_take(struct tierce__lease *base, uint32_t lease_ms, uint64_t *token,
                     char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct etcd_lease *lease = (struct etcd_lease *)base;
    struct etcd_seen seen;
    int rc = see(lease, &seen);
    if (rc != 0)
        return rc;
    /* Our earlier lease with an unknown end: revoke it and start again. */
    if (is_ours(lease, &seen)) {
        etcd_give(base);
        return -EAGAIN;
    }
    if (seen.holder[0] != '\0') {
        snprintf(other, TIERCE__LEASE_HOLDER_BYTES, "%s", seen.holder);
        return -EBUSY;
    }
    uint64_t next = 0;
    rc = tierce__lease_next_token(&next, seen.token);
    if (rc == 0)
        rc = grant(lease, lease_ms);
    if (rc == 0)
        rc = create(lease, &seen, next, other);
    if (rc == 0)
        *token = next;
    else if (rc == -EBUSY)
        etcd_give(base);
    return rc;
}

static int keep_alive(struct etcd_lease *lease)
{
    TIERCE_ASSERT(lease->id[0] != '\0');
    char left[ID_BYTES];
    int rc = ask(lease, "lease/keepalive", "ID", lease->id, "result.TTL", left);
    return rc != 0 ? rc : left[0] == '\0' || strcmp(left, "0") == 0 ? TIERCE_E_REFUSED : 0;
}

static int etcd_renew(struct tierce__lease *base, uint32_t lease_ms)
{
    struct etcd_lease *lease = (struct etcd_lease *)base;
    struct etcd_seen seen;
    (void)lease_ms; /* as it was granted */
    if (lease->id[0] == '\0')
        return TIERCE_E_REFUSED;
    int rc = keep_alive(lease);
    /* The lease may exist although an operator deleted its lock. */
    if (rc == 0)
        rc = see(lease, &seen);
    if (rc == 0 && !is_ours(lease, &seen))
        rc = TIERCE_E_REFUSED;
    return rc;
}

static int etcd_look(struct tierce__lease *base, char holder[TIERCE__LEASE_HOLDER_BYTES])
{
    struct etcd_seen seen;
    int rc = see((struct etcd_lease *)base, &seen);
    if (rc == 0)
        snprintf(holder, TIERCE__LEASE_HOLDER_BYTES, "%s", seen.holder);
    return rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void etcd_close(struct tierce__lease *base)
{
    struct etcd_lease *lease = (struct etcd_lease *)base;
    for (size_t i = 0; i < lease->endpoint_count; i++)
        tierce__free(lease->endpoints[i]);
    tierce__curl_destroy(lease->client);
    tierce__free(lease);
}

/* "host:port[,host:port][/prefix]". */
static int parse(struct etcd_lease *lease, const char *rest, char why[256])
{
    TIERCE_DASSERT(lease->endpoint_count == 0);
    char key[TEXT_BYTES];
    const char *end = rest + strcspn(rest, "/");
    const char *prefix = *end == '/' && end[1] != '\0' ? end + 1 : "tierce";
    if (strlen(prefix) > TEXT_BYTES / 2 || strpbrk(rest, "?#@") != NULL || end == rest) {
        snprintf(why, 256, "the URI of etcd must be etcd://host:port[,host:port][/prefix]");
        return TIERCE_E_CONFIG;
    }
    snprintf(key, sizeof(key), "%s/" TIERCE__LEASE_NAME, prefix);
    encode(lease->lock_key, key);
    snprintf(key, sizeof(key), "%s/" TIERCE__LEASE_NAME "/token", prefix);
    encode(lease->token_key, key);
    for (const char *p = rest; p < end;) {
        size_t n = strcspn(p, ",/");
        if (n == 0 || n > TEXT_BYTES || lease->endpoint_count == ENDPOINTS_MAX) {
            snprintf(why, 256, "the URI of etcd has an empty endpoint, or more than %d",
                     ENDPOINTS_MAX);
            return TIERCE_E_CONFIG;
        }
        char *endpoint = tierce__alloc(n + 1);
        if (endpoint == NULL)
            return -ENOMEM;
        memcpy(endpoint, p, n);
        endpoint[n] = '\0';
        lease->endpoints[lease->endpoint_count++] = endpoint;
        p += n + (p[n] == ',');
    }
    return 0;
}

/* The endpoints share the time. */
static int make_client(struct etcd_lease *lease, uint32_t timeout_ms)
{
    TIERCE_ASSERT(lease->endpoint_count > 0 && lease->endpoint_count <= ENDPOINTS_MAX);
    uint32_t each_ms = timeout_ms / (uint32_t)lease->endpoint_count;
    return tierce__curl_create(
        &lease->client, &(struct tierce__curl_opts){.timeout_ms = each_ms > 0 ? each_ms : 1});
}

static int etcd_open(struct tierce__lease **out, const char *uri, const char *holder,
                     uint32_t timeout_ms, char why[256])
{
    TIERCE_DASSERT(holder[0] != '\0' && strlen(holder) < TIERCE__LEASE_HOLDER_BYTES);
    struct etcd_lease *lease = tierce__calloc(1, sizeof(*lease));
    if (lease == NULL)
        return -ENOMEM;
    lease->base.ops = &tierce__lease_etcd;
    lease->protocol = strncmp(uri, "etcds:", 6) == 0 ? "https" : "http";
    lease->holder = holder;
    int rc = parse(lease, strstr(uri, "://") + 3, why);
    if (rc == 0)
        rc = make_client(lease, timeout_ms);
    if (rc == 0)
        *out = &lease->base;
    else
        etcd_close(&lease->base);
    return rc;
}

const struct tierce__lease_ops tierce__lease_etcd = {
    .name = "etcd",
    .open = etcd_open,
    .close = etcd_close,
    .take = etcd_take,
    .renew = etcd_renew,
    .give = etcd_give,
    .look = etcd_look,
};
