/* SPDX-License-Identifier: Apache-2.0 */
#include "net/redis/resp_private.h"
#include "net/stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int tierce__resp_stream_wait(const struct tierce__resp_stream *stream, short events, short *got,
                             uint64_t deadline_ns)
{
    return tierce__stream_wait(stream->fd, events, got, deadline_ns);
}

/* A value comes in pieces of some 64 KiB on loopback, and waking for each costs more than copying
 * it: 0.21 and 0.17 s of processor time a GB, 1 MiB at a time (bench redis, 2026-11). */
#define EXPECT_BYTES_MAX (512u << 10)

void tierce__resp_stream_expect(struct tierce__resp_stream *stream, size_t bytes)
{
    int low = (int)(bytes < EXPECT_BYTES_MAX ? bytes : EXPECT_BYTES_MAX);
    low = low > 0 ? low : 1;
    if (stream->low == 0 || stream->low == low || stream->ssl != NULL)
        return;
    int rc = setsockopt(stream->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
    stream->low = rc == 0 ? low : 0;
}

/* ---- TLS ------------------------------------------------------------------------------------- */

/* OpenSSL's own socket BIO writes without MSG_NOSIGNAL: a peer that is gone would end the
 * process. */

static int bio_result(BIO *bio, ssize_t n, bool is_read)
{
    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (is_read)
            BIO_set_retry_read(bio);
        else
            BIO_set_retry_write(bio);
    }
    return (int)n;
}

static int bio_fd(BIO *bio)
{
    return ((const struct tierce__resp_stream *)BIO_get_data(bio))->fd;
}

static int bio_write(BIO *bio, const char *bytes, int count)
{
    return bio_result(bio, send(bio_fd(bio), bytes, (size_t)count, MSG_NOSIGNAL), false);
}

static int bio_read(BIO *bio, char *bytes, int count)
{
    return bio_result(bio, recv(bio_fd(bio), bytes, (size_t)count, 0), true);
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_method;
static pthread_once_t bio_once = PTHREAD_ONCE_INIT;

static void make_bio_method(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tierce socket");
    if (bio_method == NULL)
        return;
    BIO_meth_set_write(bio_method, bio_write);
    BIO_meth_set_read(bio_method, bio_read);
    BIO_meth_set_ctrl(bio_method, bio_ctrl);
}

static BIO *new_bio(struct tierce__resp_stream *stream)
{
    pthread_once(&bio_once, make_bio_method);
    BIO *bio = bio_method != NULL ? BIO_new(bio_method) : NULL;
    if (bio != NULL) {
        BIO_set_data(bio, stream);
        BIO_set_init(bio, 1);
    }
    return bio;
}

static int tls_error(const char *what, const char *file, char why[TIERCE__RESP_WHY_BYTES])
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    snprintf(why, TIERCE__RESP_WHY_BYTES, "%s%s%s: %s", what, file[0] != '\0' ? " " : "", file,
             reason != NULL ? reason : "TLS");
    ERR_clear_error();
    return TIERCE_E_CONFIG;
}

static int load_tls_files(SSL_CTX *context, const struct tierce__resp_opts *opts,
                          char why[TIERCE__RESP_WHY_BYTES])
{
    const char *certificate = opts->client_certificate, *key = opts->client_key;
    if (opts->ca_file != NULL ? SSL_CTX_load_verify_locations(context, opts->ca_file, NULL) != 1
                              : SSL_CTX_set_default_verify_paths(context) != 1)
        return tls_error("cannot load", opts->ca_file != NULL ? opts->ca_file : "the system's CAs",
                         why);
    if (certificate != NULL && SSL_CTX_use_certificate_chain_file(context, certificate) != 1)
        return tls_error("cannot load", certificate, why);
    if (key != NULL && SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        return tls_error("cannot load", key, why);
    return 0;
}

int tierce__resp_stream_init(struct tierce__resp_stream *stream,
                             const struct tierce__resp_opts *opts, char why[TIERCE__RESP_WHY_BYTES])
{
    *stream = (struct tierce__resp_stream){.fd = -1};
    if (!opts->tls)
        return 0;
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (context == NULL) {
        ERR_clear_error();
        return -ENOMEM;
    }
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    int rc = load_tls_files(context, opts, why);
    if (rc != 0) {
        SSL_CTX_free(context);
        return rc;
    }
    stream->context = context;
    return 0;
}

void tierce__resp_stream_fini(struct tierce__resp_stream *stream)
{
    tierce__resp_stream_close(stream);
    SSL_CTX_free(stream->context);
    stream->context = NULL;
}

/* The status of a TLS call that returned n <= 0. */
static int tls_status(struct tierce__resp_stream *stream, int n)
{
    int code = SSL_get_error(stream->ssl, n), error = errno;
    stream->wants = code == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE)
        return -EAGAIN;
    if (code == SSL_ERROR_SSL)
        return -EPROTO;
    return code == SSL_ERROR_SYSCALL && error != 0 ? -error : -ECONNRESET;
}

static bool is_address(const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

/* Sets the name that the certificate must have. */
static bool expect_name(SSL *ssl, const char *host)
{
    if (is_address(host))
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    /* The definition of SSL_set_tlsext_host_name, without its cast that drops const. */
    return SSL_set1_host(ssl, host) == 1 &&
           SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                    (void *)(uintptr_t)host) == 1;
}

static int tls_connect(struct tierce__resp_stream *stream, const char *host, uint64_t deadline_ns,
                       char why[TIERCE__RESP_WHY_BYTES])
{
    stream->ssl = SSL_new(stream->context);
    BIO *bio = stream->ssl != NULL ? new_bio(stream) : NULL;
    if (bio == NULL)
        return -ENOMEM;
    SSL_set_bio(stream->ssl, bio, bio);
    if (!expect_name(stream->ssl, host))
        return -ENOMEM;
    for (;;) {
        ERR_clear_error();
        errno = 0;
        int n = SSL_connect(stream->ssl);
        if (n == 1)
            return 0;
        int rc = tls_status(stream, n);
        if (rc == -EAGAIN)
            rc = tierce__resp_stream_wait(stream, stream->wants, NULL, deadline_ns);
        if (rc != 0) {
            long verified = SSL_get_verify_result(stream->ssl);
            const char *reason = ERR_reason_error_string(ERR_peek_last_error());
            snprintf(why, TIERCE__RESP_WHY_BYTES, "TLS with %s: %s", host,
                     verified != X509_V_OK ? X509_verify_cert_error_string(verified)
                     : reason != NULL      ? reason
                                           : tierce_strerror(rc));
            ERR_clear_error();
            return rc;
        }
    }
}

/* ---- connecting ------------------------------------------------------------------------------ */

int tierce__resp_stream_connect(struct tierce__resp_stream *stream,
                                const struct tierce__resp_opts *opts, uint64_t deadline_ns,
                                char why[TIERCE__RESP_WHY_BYTES])
{
    int fd = -1;
    int rc = tierce__stream_connect(&fd, opts->host, opts->port, deadline_ns, why,
                                    TIERCE__RESP_WHY_BYTES);
    if (rc != 0)
        return rc;
    stream->fd = fd;
    stream->low = opts->host[0] != '/' ? 1 : 0; /* Unix sockets know no such mark */
    if (stream->context != NULL)
        rc = tls_connect(stream, opts->host, deadline_ns, why);
    if (rc != 0) {
        tierce__resp_stream_close(stream);
        if (why[0] == '\0')
            snprintf(why, TIERCE__RESP_WHY_BYTES, "cannot connect to %.180s port %u: %s",
                     opts->host, (unsigned)opts->port, tierce_strerror(rc));
    }
    return rc;
}

void tierce__resp_stream_close(struct tierce__resp_stream *stream)
{
    SSL_free(stream->ssl);
    stream->ssl = NULL;
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

bool tierce__resp_stream_is_quiet(struct tierce__resp_stream *stream)
{
    char byte;
    if (stream->ssl != NULL) {
        /* Tickets of a session may wait to be read; they are no answer. */
        ERR_clear_error();
        errno = 0;
        int n = SSL_peek(stream->ssl, &byte, 1);
        return n <= 0 && tls_status(stream, n) == -EAGAIN;
    }
    return tierce__stream_look(stream->fd) == 0;
}

static int plain_status(struct tierce__resp_stream *stream, ssize_t n, short wants, size_t *done)
{
    if (n > 0) {
        *done = (size_t)n;
        return 0;
    }
    if (n == 0)
        return -ECONNRESET;
    stream->wants = wants;
    return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
}

/* TLS works on one piece, the first that is not empty. */
static const struct iovec *first_piece(const struct iovec *pieces, int count)
{
    while (count-- > 1 && pieces->iov_len == 0)
        pieces++;
    return pieces;
}

int tierce__resp_stream_read(struct tierce__resp_stream *stream, const struct iovec *pieces,
                             int count, size_t *done)
{
    if (stream->ssl == NULL)
        return plain_status(stream, readv(stream->fd, pieces, count), POLLIN, done);
    const struct iovec *piece = first_piece(pieces, count);
    ERR_clear_error();
    errno = 0;
    int n = SSL_read_ex(stream->ssl, piece->iov_base, piece->iov_len, done);
    return n == 1 ? 0 : tls_status(stream, n);
}

int tierce__resp_stream_write(struct tierce__resp_stream *stream, struct iovec *pieces, int count,
                              size_t *done)
{
    if (stream->ssl == NULL) {
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
        return plain_status(stream, sendmsg(stream->fd, &message, MSG_NOSIGNAL), POLLOUT, done);
    }
    const struct iovec *piece = first_piece(pieces, count);
    ERR_clear_error();
    errno = 0;
    int n = SSL_write_ex(stream->ssl, piece->iov_base, piece->iov_len, done);
    return n == 1 ? 0 : tls_status(stream, n);
}
