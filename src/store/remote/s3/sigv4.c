/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/s3/sigv4.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "core/key/sha256.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define ALGORITHM     "AWS4-HMAC-SHA256"
#define SECRET_MAX    256u
#define DATE_BYTES    8u /* of a time */
#define HEADERS_BYTES 256u

static void add(struct tierce__sha256 *sha, const char *text)
{
    tierce__sha256_update(sha, text, strlen(text));
}

static void final_hex(char text[TIERCE__SIGV4_HASH_BYTES], struct tierce__sha256 *sha)
{
    uint8_t digest[TIERCE__SHA256_BYTES];
    tierce__sha256_final(sha, digest);
    tierce__hex_encode(text, digest, sizeof(digest));
}

/* ---- HMAC ------------------------------------------------------------------------------------ */

struct hmac {
    struct tierce__sha256 sha;
    uint8_t outer[TIERCE__SHA256_BLOCK];
};

static void hmac_begin(struct hmac *hmac, const void *key, size_t bytes)
{
    uint8_t inner[TIERCE__SHA256_BLOCK] = {0};
    if (bytes > sizeof(inner))
        tierce__sha256(inner, key, bytes);
    else
        memcpy(inner, key, bytes);
    for (size_t i = 0; i < sizeof(inner); i++) {
        hmac->outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    tierce__sha256_init(&hmac->sha);
    tierce__sha256_update(&hmac->sha, inner, sizeof(inner));
    explicit_bzero(inner, sizeof(inner));
}

static void hmac_end(struct hmac *hmac, uint8_t out[TIERCE__SHA256_BYTES])
{
    tierce__sha256_final(&hmac->sha, out);
    tierce__sha256_init(&hmac->sha);
    tierce__sha256_update(&hmac->sha, hmac->outer, sizeof(hmac->outer));
    tierce__sha256_update(&hmac->sha, out, TIERCE__SHA256_BYTES);
    tierce__sha256_final(&hmac->sha, out);
    explicit_bzero(hmac, sizeof(*hmac));
}

/* `key` becomes the HMAC of the text under it. */
static void derive(uint8_t key[TIERCE__SHA256_BYTES], const char *text, size_t bytes)
{
    struct hmac hmac;
    hmac_begin(&hmac, key, TIERCE__SHA256_BYTES);
    tierce__sha256_update(&hmac.sha, text, bytes);
    hmac_end(&hmac, key);
}

static void signing_key(uint8_t key[TIERCE__SHA256_BYTES],
                        const struct tierce__sigv4_signer *signer, const char *date)
{
    TIERCE_DASSERT(strlen(date) >= DATE_BYTES);
    char secret[SECRET_MAX + 5];
    struct hmac hmac;
    TIERCE_ASSERT(strlen(signer->secret_key) <= SECRET_MAX);
    int bytes = snprintf(secret, sizeof(secret), "AWS4%s", signer->secret_key);
    hmac_begin(&hmac, secret, (size_t)bytes);
    tierce__sha256_update(&hmac.sha, date, DATE_BYTES);
    hmac_end(&hmac, key);
    explicit_bzero(secret, sizeof(secret));
    derive(key, signer->region, strlen(signer->region));
    derive(key, signer->service, strlen(signer->service));
    derive(key, "aws4_request", 12);
}

/* ---- the signed text ------------------------------------------------------------------------- */

void tierce__sigv4_time(char text[TIERCE__SIGV4_TIME_BYTES], uint64_t time_s)
{
    struct tm tm;
    time_t time = (time_t)time_s;
    if (gmtime_r(&time, &tm) == NULL ||
        strftime(text, TIERCE__SIGV4_TIME_BYTES, "%Y%m%dT%H%M%SZ", &tm) == 0)
        snprintf(text, TIERCE__SIGV4_TIME_BYTES, "19700101T000000Z");
    TIERCE_DASSERT(strlen(text) == TIERCE__SIGV4_TIME_BYTES - 1);
}

void tierce__sigv4_hash(char text[TIERCE__SIGV4_HASH_BYTES], const void *data, size_t bytes)
{
    struct tierce__sha256 sha;
    tierce__sha256_init(&sha);
    tierce__sha256_update(&sha, data, bytes);
    final_hex(text, &sha);
}

static void hash_request(char text[TIERCE__SIGV4_HASH_BYTES],
                         const struct tierce__sigv4_request *request, const char *names)
{
    struct tierce__sha256 sha;
    tierce__sha256_init(&sha);
    add(&sha, request->method);
    add(&sha, "\n");
    add(&sha, request->path);
    add(&sha, "\n");
    add(&sha, request->query);
    add(&sha, "\n");
    for (size_t i = 0; i < request->header_count; i++) {
        add(&sha, request->headers[i].name);
        add(&sha, ":");
        add(&sha, request->headers[i].value);
        add(&sha, "\n");
    }
    add(&sha, "\n");
    add(&sha, names);
    add(&sha, "\n");
    add(&sha, request->payload);
    final_hex(text, &sha);
}

/* Whether the names of the headers are in order, as the signature requires it. */
static inline bool are_sorted(const struct tierce__sigv4_request *request)
{
    bool sorted = true;
    for (size_t i = 1; i < request->header_count; i++)
        sorted = sorted && strcmp(request->headers[i - 1].name, request->headers[i].name) < 0;
    return sorted;
}

int tierce__sigv4_sign(char *authorization, size_t room, const struct tierce__sigv4_signer *signer,
                       const struct tierce__sigv4_request *request)
{
    TIERCE_DASSERT(request->path[0] == '/' && are_sorted(request));
    char names[HEADERS_BYTES] = "", hash[TIERCE__SIGV4_HASH_BYTES];
    char time[TIERCE__SIGV4_TIME_BYTES], signature[TIERCE__SIGV4_HASH_BYTES];
    uint8_t key[TIERCE__SHA256_BYTES];
    uint8_t mac[TIERCE__SHA256_BYTES];
    struct hmac hmac;
    size_t used = 0;
    for (size_t i = 0; i < request->header_count && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? ";" : "",
                                 request->headers[i].name);
    if (used >= sizeof(names))
        return TIERCE_E_LIMIT;
    hash_request(hash, request, names);
    tierce__sigv4_time(time, request->time_s);
    signing_key(key, signer, time);
    hmac_begin(&hmac, key, sizeof(key));
    explicit_bzero(key, sizeof(key));
    struct tierce__sha256 *sha = &hmac.sha;
    add(sha, ALGORITHM "\n");
    add(sha, time);
    add(sha, "\n");
    tierce__sha256_update(sha, time, DATE_BYTES);
    add(sha, "/");
    add(sha, signer->region);
    add(sha, "/");
    add(sha, signer->service);
    add(sha, "/aws4_request\n");
    add(sha, hash);
    hmac_end(&hmac, mac);
    tierce__hex_encode(signature, mac, sizeof(mac));
    int bytes = snprintf(authorization, room,
                         ALGORITHM " Credential=%s/%.*s/%s/%s/aws4_request,SignedHeaders=%s,"
                                   "Signature=%.64s",
                         signer->access_key, (int)DATE_BYTES, time, signer->region, signer->service,
                         names, signature);
    return (size_t)bytes < room ? 0 : TIERCE_E_LIMIT;
}
