/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/kv_readers.h"

#include "base/alloc.h"
#include "base/log/log_repeat.h"
#include "net/zmq_curve.h"
#include "net/tokens.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

#define ENDPOINT "inproc://zeromq.zap.01" /* where libzmq asks */
#define VERSION  "1.0"
#define TURN     64 /* requests of ZAP before replays have their turn */
#define PARAM    "kv_events.curve_readers_file"

/* The frames of a request of ZAP. */
enum {
    IN_VERSION,
    IN_REQUEST,
    IN_DOMAIN,
    IN_ADDRESS,
    IN_IDENTITY,
    IN_MECHANISM,
    IN_KEY,
    IN_FRAMES
};

struct tierce__kv_readers {
    char *path;
    struct stat file; /* as it was when it was read */
    struct tierce__tokens *allowed;
    void *socket;
};

static bool is_read(uint32_t *out, const char *word)
{
    *out = 1;
    return strcmp(word, "read") == 0;
}

/* Reads the file, whose state is remembered even if it is invalid, so that it is read once. */
static int read_file(struct tierce__kv_readers *r, char why[256])
{
    struct tierce__tokens *fresh = NULL;
    if (stat(r->path, &r->file) != 0)
        memset(&r->file, 0, sizeof(r->file));
    int rc = tierce__tokens_load(
        &fresh,
        &(struct tierce__tokens_opts){.size = sizeof(struct tierce__tokens_opts),
                                      .path = r->path,
                                      .param = PARAM,
                                      .rights = is_read,
                                      .rights_text = "the role must be read",
                                      .key = tierce__zmq_curve_decode,
                                      .key_text = "the third word is not a public key of CURVE, 40 "
                                                  "characters of Z85"},
        why);
    if (rc < 0)
        return rc;
    tierce__tokens_destroy(r->allowed);
    r->allowed = fresh;
    return 0;
}

static bool has_changed(const struct tierce__kv_readers *r)
{
    struct stat now;
    if (stat(r->path, &now) != 0)
        memset(&now, 0, sizeof(now));
    return now.st_mtim.tv_sec != r->file.st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != r->file.st_mtim.tv_nsec || now.st_size != r->file.st_size ||
           now.st_ino != r->file.st_ino || now.st_mode != r->file.st_mode;
}

/* The state of the file before it is read counts: a change during the read is seen next time. */
static void refresh(struct tierce__kv_readers *r)
{
    char why[256];
    if (has_changed(r) && read_file(r, why) < 0)
        tierce__log(TIERCE_LOG_WARN, "kv_readers_kept",
                    "err=\"%s\" consequence=\"the previous keys stay in use\"", why);
}

static bool is_text(zmq_msg_t *frame, const char *text)
{
    return zmq_msg_size(frame) == strlen(text) &&
           memcmp(zmq_msg_data(frame), text, strlen(text)) == 0;
}

static bool is_allowed(struct tierce__kv_readers *r, zmq_msg_t frames[IN_FRAMES])
{
    const uint8_t *key = zmq_msg_data(&frames[IN_KEY]);
    char shown[TIERCE__ZMQ_CURVE_TEXT_BYTES];
    if (!is_text(&frames[IN_VERSION], VERSION) || !is_text(&frames[IN_MECHANISM], "CURVE") ||
        zmq_msg_size(&frames[IN_KEY]) != TIERCE__ZMQ_CURVE_KEY_BYTES)
        return false;
    refresh(r);
    if (tierce__tokens_find_digest(r->allowed, key) != NULL)
        return true;
    tierce__zmq_curve_encode(shown, key);
    tierce__log_repeated(TIERCE_LOG_WARN, "kv_reader_refused",
                         "address=%.*s public_key=\"%s\" hint=\"to admit it, add a line read NAME "
                         "PUBLIC-KEY to " PARAM "\"",
                         (int)zmq_msg_size(&frames[IN_ADDRESS]),
                         (const char *)zmq_msg_data(&frames[IN_ADDRESS]), shown);
    return false;
}

/* Receives a request. False if there is none, or none that can be answered. */
static bool receive(void *socket, zmq_msg_t frames[IN_FRAMES], int *count)
{
    bool more = true;
    for (*count = 0; more; (*count)++) {
        zmq_msg_t frame;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            return false; /* only the first can be missing */
        }
        more = zmq_msg_more(&frame) != 0;
        if (*count < IN_FRAMES) {
            zmq_msg_init(&frames[*count]);
            (void)zmq_msg_move(&frames[*count], &frame);
        }
        zmq_msg_close(&frame);
    }
    return true;
}

static void send_text(void *socket, const char *text, int flags)
{
    (void)zmq_send(socket, text, strlen(text), flags | ZMQ_DONTWAIT);
}

/* RFC 27: version, request, status, its text, user, metadata. */
static void reply(void *socket, zmq_msg_t *request, bool is_good)
{
    send_text(socket, VERSION, ZMQ_SNDMORE);
    (void)zmq_send(socket, zmq_msg_data(request), zmq_msg_size(request),
                   ZMQ_SNDMORE | ZMQ_DONTWAIT);
    send_text(socket, is_good ? "200" : "400", ZMQ_SNDMORE);
    send_text(socket, is_good ? "OK" : "the public key is not allowed", ZMQ_SNDMORE);
    send_text(socket, "", ZMQ_SNDMORE);
    send_text(socket, "", 0);
}

void tierce__kv_readers_answer(struct tierce__kv_readers *readers)
{
    zmq_msg_t frames[IN_FRAMES];
    int count;
    for (int i = 0; readers != NULL && i < TURN && receive(readers->socket, frames, &count); i++) {
        bool is_request = count > IN_REQUEST;
        reply(readers->socket, &frames[is_request ? IN_REQUEST : 0],
              count == IN_FRAMES && is_allowed(readers, frames));
        for (int k = 0; k < count && k < IN_FRAMES; k++)
            zmq_msg_close(&frames[k]);
    }
}

void *tierce__kv_readers_socket(const struct tierce__kv_readers *readers)
{
    return readers != NULL ? readers->socket : NULL;
}

int tierce__kv_readers_open(struct tierce__kv_readers **out, void *context, const char *path,
                            char why[256])
{
    struct tierce__kv_readers *r = tierce__calloc(1, sizeof(*r));
    int linger = 0;
    if (r == NULL)
        return -ENOMEM;
    r->path = tierce__strdup(path);
    int rc = r->path != NULL ? read_file(r, why) : -ENOMEM;
    if (rc == 0) {
        r->socket = zmq_socket(context, ZMQ_REP);
        if (r->socket == NULL || zmq_setsockopt(r->socket, ZMQ_LINGER, &linger, sizeof(linger)) ||
            zmq_bind(r->socket, ENDPOINT) != 0)
            rc = -zmq_errno();
    }
    if (rc == 0)
        *out = r;
    else
        tierce__kv_readers_close(r);
    return rc;
}

void tierce__kv_readers_close(struct tierce__kv_readers *readers)
{
    if (readers == NULL)
        return;
    if (readers->socket != NULL)
        zmq_close(readers->socket);
    tierce__tokens_destroy(readers->allowed);
    tierce__free(readers->path);
    tierce__free(readers);
}
