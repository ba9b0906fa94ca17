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
#include "manager/lease/lease.h"
#include "manager/registry/model_json.h"
#include "net/http_client.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
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
    snprintf(out, size, "%.*s", got > 0 ? got : 0, (const char *)bytes);
}

/* A text of a reply, or "". */
static const char *text_of(struct json_object *json, const char *key)
{
    struct json_object *value;
    return json_object_object_get_ex(json, key, &value) &&
                   json_object_is_type(value, json_type_string)
               ? json_object_get_string(value)
               : "";
}

static struct json_object *at(struct json_object *json, const char *key)
{
    struct json_object *value = NULL;
    return json_object_object_get_ex(json, key, &value) ? value : NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Makes one call to one endpoint. An unsuccessful answer is -EPROTO; other errors come from the
 * connection. */
static int post_to(struct etcd_lease *lease, size_t endpoint, const char *path, const char *body,
                   struct json_object **out)
{
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
        rc = tierce__model_parse(out, answer.body, strcspn(answer.body, "\n"), why);
    tierce__curl_answer_clear(&answer);
    return rc;
}

/* Tries the endpoints in turn, beginning with the one that answered last. `request` [transfer]. */
static int post(struct etcd_lease *lease, const char *path, struct json_object *request,
                struct json_object **out)
{
    const char *body = json_object_to_json_string_ext(request, JSON_C_TO_STRING_PLAIN);
    int rc = -ENOMEM;
    for (size_t i = 0; body != NULL && i < lease->endpoint_count; i++) {
        size_t endpoint = (lease->endpoint + i) % lease->endpoint_count;
        rc = post_to(lease, endpoint, path, body, out);
        if (rc == 0)
            lease->endpoint = endpoint;
        if (rc == 0 || rc == -ENOMEM)
            break;
    }
    json_object_put(request);
    return rc;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Adds a value [transfer]. If memory runs out, the request is incomplete and etcd rejects it. */
static void add(struct json_object *json, const char *key, struct json_object *value)
{
    if (json == NULL || value == NULL || json_object_object_add(json, key, value) != 0)
        json_object_put(value);
}

static void put_text(struct json_object *json, const char *key, const char *text)
{
    add(json, key, json_object_new_string(text));
}

/* NULL: no memory, in this and the next two. */
static struct json_object *push_object(struct json_object *list)
{
    struct json_object *entry = list != NULL ? json_object_new_object() : NULL;
    if (entry == NULL || json_object_array_add(list, entry) == 0)
        return entry;
    json_object_put(entry);
    return NULL;
}

static struct json_object *add_list(struct json_object *json, const char *key)
{
    add(json, key, json_object_new_array());
    return at(json, key);
}

static struct json_object *add_object(struct json_object *json, const char *key)
{
    add(json, key, json_object_new_object());
    return at(json, key);
}

static void add_range(struct json_object *operations, const char *key)
{
    put_text(add_object(push_object(operations), "request_range"), "key", key);
}

static void add_put(struct json_object *operations, const char *key, const char *value,
                    const char *id)
{
    char base64[BASE64_BYTES];
    struct json_object *operation = add_object(push_object(operations), "request_put");
    encode(base64, value);
    put_text(operation, "key", key);
    put_text(operation, "value", base64);
    if (id != NULL)
        put_text(operation, "lease", id);
}

static void add_compare(struct json_object *compares, const char *key, const char *target,
                        const char *field, const char *revision)
{
    struct json_object *compare = push_object(compares);
    put_text(compare, "key", key);
    put_text(compare, "target", target);
    put_text(compare, "result", "EQUAL");
    put_text(compare, field, revision);
}

/* The only entry that the n-th operation of a transaction found, or NULL. */
static struct json_object *found_by(struct json_object *reply, size_t n)
{
    struct json_object *responses = at(reply, "responses");
    if (!json_object_is_type(responses, json_type_array))
        return NULL;
    struct json_object *kvs =
        at(at(json_object_array_get_idx(responses, n), "response_range"), "kvs");
    return json_object_is_type(kvs, json_type_array) ? json_object_array_get_idx(kvs, 0) : NULL;
}

static bool has_succeeded(struct json_object *reply)
{
    struct json_object *value = at(reply, "succeeded");
    return value != NULL && json_object_get_boolean(value);
}

/* ---- data in etcd ---------------------------------------------------------------------------- */

struct seen {
    char holder[TIERCE__LEASE_HOLDER_BYTES]; /* "" for nobody */
    char id[ID_BYTES];                       /* of the holder's lease */
    uint64_t token;
    char token_revision[ID_BYTES];
};

static int see(struct etcd_lease *lease, struct seen *out)
{
    struct json_object *request = json_object_new_object(), *reply = NULL;
    char token[TEXT_BYTES];
    struct json_object *operations = add_list(request, "success");
    add_range(operations, lease->lock_key);
    add_range(operations, lease->token_key);
    int rc = post(lease, "kv/txn", request, &reply);
    if (rc != 0)
        return rc;
    struct json_object *lock = found_by(reply, 0), *last = found_by(reply, 1);
    *out = (struct seen){.token_revision = "0"};
    if (lock != NULL) {
        decode(out->holder, sizeof(out->holder), text_of(lock, "value"));
        snprintf(out->id, sizeof(out->id), "%s", text_of(lock, "lease"));
    }
    if (last != NULL) {
        decode(token, sizeof(token), text_of(last, "value"));
        out->token = strtoull(token, NULL, 10);
        snprintf(out->token_revision, sizeof(out->token_revision), "%s",
                 text_of(last, "mod_revision"));
    }
    json_object_put(reply);
    return 0;
}

/* Checks whether the lock exists and is ours: then `id` is its lease. */
static bool is_ours(const struct etcd_lease *lease, const struct seen *seen)
{
    return lease->id[0] != '\0' && strcmp(seen->id, lease->id) == 0 &&
           strcmp(seen->holder, lease->holder) == 0;
}

static int grant(struct etcd_lease *lease, uint32_t lease_ms)
{
    struct json_object *request = json_object_new_object(), *reply = NULL;
    char seconds[ID_BYTES];
    snprintf(seconds, sizeof(seconds), "%u", (lease_ms + 999) / 1000);
    put_text(request, "TTL", seconds);
    int rc = post(lease, "lease/grant", request, &reply);
    if (rc != 0)
        return rc;
    snprintf(lease->id, sizeof(lease->id), "%s", text_of(reply, "ID"));
    json_object_put(reply);
    return lease->id[0] != '\0' ? 0 : -EPROTO;
}

static void etcd_give(struct tierce__lease *base)
{
    struct etcd_lease *lease = (struct etcd_lease *)base;
    struct json_object *request = json_object_new_object(), *reply = NULL;
    if (lease->id[0] == '\0') {
        json_object_put(request);
        return;
    }
    put_text(request, "ID", lease->id);
    if (post(lease, "lease/revoke", request, &reply) == 0)
        json_object_put(reply);
    lease->id[0] = '\0';
}

/* Creates the lock with the granted lease, unless another node was faster. */
static int create(struct etcd_lease *lease, const struct seen *seen, uint64_t token,
                  char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct json_object *request = json_object_new_object(), *reply = NULL;
    struct json_object *compares = add_list(request, "compare");
    char text[ID_BYTES];
    snprintf(text, sizeof(text), "%" PRIu64, token);
    add_compare(compares, lease->lock_key, "CREATE", "create_revision", "0");
    add_compare(compares, lease->token_key, "MOD", "mod_revision", seen->token_revision);
    struct json_object *operations = add_list(request, "success");
    add_put(operations, lease->lock_key, lease->holder, lease->id);
    add_put(operations, lease->token_key, text, NULL);
    add_range(add_list(request, "failure"), lease->lock_key);
    int rc = post(lease, "kv/txn", request, &reply);
    if (rc != 0)
        return rc;
    struct json_object *lock = has_succeeded(reply) ? NULL : found_by(reply, 0);
    /* An earlier try, whose answer was lost, may have succeeded. */
    if (!has_succeeded(reply) && (lock == NULL || strcmp(text_of(lock, "lease"), lease->id) != 0)) {
        decode(other, TIERCE__LEASE_HOLDER_BYTES, lock != NULL ? text_of(lock, "value") : "");
        rc = -EBUSY;
    }
    json_object_put(reply);
    return rc;
}

/* ---- the seam -------------------------------------------------------------------------------- */

static int etcd_take(struct tierce__lease *base, uint32_t lease_ms, uint64_t *token,
                     char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct etcd_lease *lease = (struct etcd_lease *)base;
    struct seen seen;
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
    uint64_t next = tierce__lease_next_token(seen.token);
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
    struct json_object *request = json_object_new_object(), *reply = NULL;
    put_text(request, "ID", lease->id);
    int rc = post(lease, "lease/keepalive", request, &reply);
    if (rc != 0)
        return rc;
    const char *left = text_of(at(reply, "result"), "TTL");
    rc = *left == '\0' || strcmp(left, "0") == 0 ? TIERCE_E_REFUSED : 0;
    json_object_put(reply);
    return rc;
}

static int etcd_renew(struct tierce__lease *base, uint32_t lease_ms)
{
    struct etcd_lease *lease = (struct etcd_lease *)base;
    struct seen seen;
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
    struct seen seen;
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
    char key[TEXT_BYTES];
    const char *end = rest + strcspn(rest, "/");
    const char *prefix = *end == '/' && end[1] != '\0' ? end + 1 : "tierce";
    if (strlen(prefix) > TEXT_BYTES / 2 || strpbrk(rest, "?#@") != NULL || end == rest) {
        snprintf(why, 256, "the URI of etcd is etcd://host:port[,host:port][/prefix]");
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
    uint32_t each_ms = timeout_ms / (uint32_t)lease->endpoint_count;
    return tierce__curl_create(
        &lease->client, &(struct tierce__curl_opts){.timeout_ms = each_ms > 0 ? each_ms : 1});
}

static int etcd_open(struct tierce__lease **out, const char *uri, const char *holder,
                     uint32_t timeout_ms, char why[256])
{
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
