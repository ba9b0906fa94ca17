/* SPDX-License-Identifier: Apache-2.0 */
#include "net/zmq_curve.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

static const char missing[] = "this libzmq was built without CURVE; use one with libsodium";

bool tierce__zmq_curve_exists(void)
{
    return zmq_has("curve") != 0;
}

bool tierce__zmq_curve_decode(uint8_t out[TIERCE__ZMQ_CURVE_KEY_BYTES], const char *text)
{
    return strlen(text) == TIERCE__ZMQ_CURVE_TEXT_BYTES - 1 && zmq_z85_decode(out, text) != NULL;
}

void tierce__zmq_curve_encode(char out[TIERCE__ZMQ_CURVE_TEXT_BYTES],
                              const uint8_t key[TIERCE__ZMQ_CURVE_KEY_BYTES])
{
    const char *text = zmq_z85_encode(out, key, TIERCE__ZMQ_CURVE_KEY_BYTES);
    TIERCE_ASSERT(text != NULL);
}

void tierce__zmq_curve_wipe(struct tierce__zmq_curve_pair *pair)
{
    OPENSSL_cleanse(pair, sizeof(*pair));
}

bool tierce__zmq_curve_of(struct tierce__zmq_curve_pair *out, const char *secret_key)
{
    uint8_t bytes[TIERCE__ZMQ_CURVE_KEY_BYTES];
    bool is_key = tierce__zmq_curve_decode(bytes, secret_key) &&
                  zmq_curve_public(out->public_key, secret_key) == 0;
    if (is_key)
        memcpy(out->secret_key, secret_key, sizeof(out->secret_key));
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return is_key;
}

/* The key is the file's only word. */
static bool read_key(struct tierce__zmq_curve_pair *out, char *text)
{
    text += strspn(text, " \t\r\n");
    size_t length = strcspn(text, " \t\r\n");
    if (text[length + strspn(text + length, " \t\r\n")] != '\0')
        return false;
    text[length] = '\0';
    return tierce__zmq_curve_of(out, text);
}

int tierce__zmq_curve_read(struct tierce__zmq_curve_pair *out, const char *param, const char *path,
                           char why[256])
{
    enum { FILE_BYTES_MAX = 4096 };
    struct tierce__zmq_curve_pair pair = {0};
    char *text, fault[200];
    size_t bytes;
    if (!tierce__zmq_curve_exists()) {
        snprintf(why, 256, "%.40s: %s", param, missing);
        return TIERCE_E_CONFIG;
    }
    int rc =
        tierce__read_secret_file(&text, &bytes, NULL, path, FILE_BYTES_MAX, fault, sizeof(fault));
    if (rc < 0) {
        snprintf(why, 256, "%.40s: %.200s", param, fault);
        return rc;
    }
    if (strlen(text) != bytes || !read_key(&pair, text)) {
        snprintf(why, 256,
                 "%.40s: %.100s does not hold a secret key of CURVE, 40 characters of Z85; `tierce "
                 "keygen FILE` makes one",
                 param, path);
        rc = TIERCE_E_CONFIG;
    } else {
        *out = pair;
    }
    OPENSSL_cleanse(text, bytes);
    tierce__free(text);
    tierce__zmq_curve_wipe(&pair);
    return rc;
}

/* Writes the file, which must not exist. A process that is killed leaves no file of that name. */
static int write_key(const char *path, const char *secret_key)
{
    struct tierce__new_file file;
    char buffer[2 * TIERCE__ZMQ_CURVE_TEXT_BYTES]; /* to be wiped, unlike a buffer of stdio's own */
    int rc = tierce__new_file_open_first(&file, path);
    if (rc < 0)
        return rc;
    (void)setvbuf(file.file, buffer, _IOFBF, sizeof(buffer));
    bool is_good = fprintf(file.file, "%s\n", secret_key) > 0;
    rc = tierce__new_file_close(&file, is_good);
    OPENSSL_cleanse(buffer, sizeof(buffer));
    return rc == 0 && !is_good ? -EIO : rc;
}

int tierce__zmq_curve_create(struct tierce__zmq_curve_pair *out, const char *path, char why[256])
{
    struct tierce__zmq_curve_pair pair;
    if (!tierce__zmq_curve_exists()) {
        snprintf(why, 256, "%s", missing);
        return TIERCE_E_UNSUPPORTED;
    }
    int rc = zmq_curve_keypair(pair.public_key, pair.secret_key) == 0 ? 0 : -zmq_errno();
    if (rc == 0)
        rc = write_key(path, pair.secret_key);
    if (rc == 0)
        *out = pair;
    else
        snprintf(why, 256, "%.150s cannot be created: %s%s", path, strerror(-rc),
                 rc == -EEXIST ? "; choose another FILE" : "");
    tierce__zmq_curve_wipe(&pair);
    return rc;
}

static bool set_key(void *socket, int option, const char *key)
{
    return zmq_setsockopt(socket, option, key, TIERCE__ZMQ_CURVE_TEXT_BYTES) == 0;
}

int tierce__zmq_curve_serve(void *socket, const struct tierce__zmq_curve_pair *own)
{
    int one = 1;
    bool is_set = zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof(one)) == 0 &&
                  set_key(socket, ZMQ_CURVE_SECRETKEY, own->secret_key);
    return is_set ? 0 : -zmq_errno();
}

int tierce__zmq_curve_join(void *socket, const struct tierce__zmq_curve_pair *own,
                           const char *server_key)
{
    bool is_set = set_key(socket, ZMQ_CURVE_SERVERKEY, server_key) &&
                  set_key(socket, ZMQ_CURVE_PUBLICKEY, own->public_key) &&
                  set_key(socket, ZMQ_CURVE_SECRETKEY, own->secret_key);
    return is_set ? 0 : -zmq_errno();
}
