/* SPDX-License-Identifier: Apache-2.0 */
#include "router/subscriber_curve.h"

#include "base/alloc.h"
#include "net/zmq_curve.h"

#include <stdio.h>
#include <string.h>

static bool is_key(const char *word, size_t bytes)
{
    struct tierce__zmq_curve_pair pair = {0};
    char text[TIERCE__ZMQ_CURVE_TEXT_BYTES];
    if (bytes != sizeof(text) - 1)
        return false;
    memcpy(text, word, bytes);
    text[bytes] = '\0';
    bool is_good = tierce__zmq_curve_of(&pair, text);
    explicit_bzero(text, sizeof(text));
    tierce__zmq_curve_wipe(&pair);
    return is_good;
}

int tierce__subscriber_keys_read(char **out, const char *path, char why[256])
{
    static const char param[] = "curve.key_file";
    char *text;
    *out = NULL;
    int rc = tierce__tenant_words_read(&text, param, "SECRET-KEY", path, why);
    unsigned number = rc == 0 && text != NULL ? tierce__tenant_words_invalid(text, is_key) : 0;
    if (number > 0) {
        snprintf(why, 256,
                 "%s %.100s: line %u has no secret key of CURVE, 40 characters of Z85; `tierce "
                 "keygen FILE` makes one",
                 param, path, number);
        tierce__free_secret(text);
        return TIERCE_E_CONFIG;
    }
    *out = text;
    return rc;
}

int tierce__subscriber_curve(void *socket, struct tierce__tenant_words *keys, const char *tenant,
                             const char *server_key, char why[256])
{
    struct tierce__zmq_curve_pair pair = {0};
    char *secret = NULL;
    bool has_tenant = tenant[0] != '\0';
    if (server_key[0] == '\0')
        return 0;
    int rc = keys != NULL ? tierce__tenant_words_word(&secret, keys, tenant) : 0;
    if (rc < 0)
        return rc;
    if (secret == NULL || !tierce__zmq_curve_of(&pair, secret)) {
        snprintf(why, 256,
                 "server_key is set, but curve.key_file has no %skey for %s%.40s%s: it needs a "
                 "line SECRET-KEY%s%.40s (`tierce keygen FILE` makes a key)",
                 secret == NULL ? "" : "valid ",
                 has_tenant ? "the tenant '" : "publishers without a tenant", tenant,
                 has_tenant ? "'" : "", has_tenant ? " " : "", tenant);
        rc = TIERCE_E_CONFIG;
    } else {
        rc = tierce__zmq_curve_join(socket, &pair, server_key);
    }
    tierce__free_secret(secret);
    tierce__zmq_curve_wipe(&pair);
    return rc;
}
