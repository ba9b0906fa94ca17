/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tls.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "base/threads/lock.h"
#include "net/stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum tls_file { FILE_CERTIFICATE, FILE_KEY, FILE_AUTHORITY, FILES };
#define RETRY_MS 1000u /* for files that could not be used */

/* A file that is written, replaced or permitted has another one. All 0: there is no such file. */
struct file_stamp {
    uint64_t device, inode, bytes;
    int64_t seconds, nanoseconds;
};

struct tierce__tls_context {
    bool is_bare, follows; /* as of struct tierce__tls */
    bool is_server;
    char *files[FILES];       /* if it follows them; or NULL */
    struct tierce__lock lock; /* SERVE_TLS: all below */
    SSL_CTX *ssl;
    struct file_stamp stamps[FILES]; /* at the last read */
    uint64_t retry_ns; /* when files that could not be used are read again; 0: none are */
};

struct tierce__tls_session {
    SSL *ssl;
    BIO *in, *out; /* owned by ssl; NULL: it works on fd */
    int fd;        /* -1 with in and out */
    bool is_ready, is_bare;
    char peer_name[256];
};

static const unsigned char alpn[] = "\x02h2";
#define ALPN_BYTES (sizeof(alpn) - 1)

#define AT_ONCE (1u << 20) /* then other connections have their turn */
#define JOINED  4096u

/* ---- contexts -------------------------------------------------------------------------------- */

static int complain(char why[256], const char *what, const char *file)
{
    /* The first error is the cause, the following ones its context. */
    unsigned long error = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(error) ? tierce_strerror(-(int)ERR_GET_REASON(error))
                                               : ERR_reason_error_string(error);
    snprintf(why, 256, "cannot load %.150s: %.60s (%s)", file, text != NULL ? text : "TLS", what);
    ERR_clear_error();
    return TIERCE_E_CONFIG;
}

static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_bytes,
                       const unsigned char *offered, unsigned int offered_bytes, void *arg)
{
    (void)ssl;
    (void)arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_bytes, alpn, ALPN_BYTES, offered, offered_bytes) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int make_context(struct tierce__tls_context **out, const SSL_METHOD *method, bool is_bare,
                        char why[256])
{
    struct tierce__tls_context *context = tierce__calloc(1, sizeof(*context));
    snprintf(why, 256, "no memory for TLS");
    if (context == NULL)
        return -ENOMEM;
    ERR_clear_error();
    tierce__lock_init(&context->lock, TIERCE__LOCK_SERVE_TLS);
    context->ssl = SSL_CTX_new(method);
    if (context->ssl == NULL || SSL_CTX_set_min_proto_version(context->ssl, TLS1_2_VERSION) != 1) {
        tierce__tls_context_destroy(context);
        return -ENOMEM;
    }
    SSL_CTX_set_options(context->ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    context->is_bare = is_bare;
    *out = context;
    return 0;
}

static int use_own(SSL_CTX *ssl, const struct tierce__tls *files, char why[256])
{
    const char *certificate = files->certificate, *key = files->key;
    if (certificate != NULL && SSL_CTX_use_certificate_chain_file(ssl, certificate) != 1)
        return complain(why, "TLS certificate", certificate);
    /* Also fails if the key does not match the certificate. */
    if (key != NULL && SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1)
        return complain(why, "TLS key", key);
    if ((certificate != NULL || key != NULL) && SSL_CTX_check_private_key(ssl) != 1)
        return complain(why, "TLS key", key != NULL ? key : "(none)");
    return 0;
}

static int demand_clients(SSL_CTX *ssl, const char *ca_file, char why[256])
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca_file);
    if (names == NULL || SSL_CTX_load_verify_locations(ssl, ca_file, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return complain(why, "TLS client CA", ca_file);
    }
    SSL_CTX_set_client_CA_list(ssl, names);
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return 0;
}

/* Before they are read: a later change is seen. */
static void read_stamps(struct file_stamp stamps[FILES], char *const files[FILES])
{
    memset(stamps, 0, FILES * sizeof(*stamps));
    for (size_t i = 0; i < FILES; i++) {
        struct stat st;
        if (files[i] != NULL && stat(files[i], &st) == 0)
            stamps[i] = (struct file_stamp){st.st_dev, st.st_ino, (uint64_t)st.st_size,
                                            st.st_ctim.tv_sec, st.st_ctim.tv_nsec};
    }
}

static int take_files(struct tierce__tls_context *context, const struct tierce__tls *files,
                      const char *authority)
{
    const char *const paths[FILES] = {files->certificate, files->key, authority};
    for (size_t i = 0; files->follows && i < FILES; i++) {
        context->files[i] = paths[i] != NULL ? tierce__strdup(paths[i]) : NULL;
        if (paths[i] != NULL && context->files[i] == NULL)
            return -ENOMEM;
    }
    context->follows = files->follows;
    read_stamps(context->stamps, context->files);
    return 0;
}

static int end_context(struct tierce__tls_context **out, struct tierce__tls_context *context,
                       int rc)
{
    if (rc == 0)
        *out = context;
    else
        tierce__tls_context_destroy(context);
    return rc;
}

int tierce__tls_server_context(struct tierce__tls_context **out, const struct tierce__tls *files,
                               char why[256])
{
    struct tierce__tls_context *context = NULL;
    TIERCE_DASSERT(files->certificate != NULL);
    int rc = make_context(&context, TLS_server_method(), files->is_bare, why);
    if (rc != 0)
        return rc;
    if (!context->is_bare)
        SSL_CTX_set_alpn_select_cb(context->ssl, choose_alpn, NULL);
    /* A resumed session would not present its certificate. */
    SSL_CTX_set_session_cache_mode(context->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context->ssl, SSL_OP_NO_TICKET);
    context->is_server = true;
    rc = take_files(context, files, files->client_ca);
    if (rc == 0)
        rc = use_own(context->ssl, files, why);
    if (rc == 0 && files->client_ca != NULL)
        rc = demand_clients(context->ssl, files->client_ca, why);
    return end_context(out, context, rc);
}

int tierce__tls_client_context(struct tierce__tls_context **out, const char *ca_file,
                               const struct tierce__tls *files, char why[256])
{
    struct tierce__tls_context *context = NULL;
    int rc = make_context(&context, TLS_client_method(), files->is_bare, why);
    if (rc != 0)
        return rc;
    SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER, NULL);
    rc = take_files(context, files, ca_file);
    if (rc != 0)
        return end_context(out, context, rc);
    if ((ca_file != NULL ? SSL_CTX_load_verify_locations(context->ssl, ca_file, NULL)
                         : SSL_CTX_set_default_verify_paths(context->ssl)) != 1)
        rc = complain(why, "TLS CA", ca_file != NULL ? ca_file : "the system's");
    if (rc == 0)
        rc = use_own(context->ssl, files, why);
    if (rc == 0 && !context->is_bare &&
        SSL_CTX_set_alpn_protos(context->ssl, alpn, ALPN_BYTES) != 0)
        rc = -ENOMEM;
    return end_context(out, context, rc);
}

void tierce__tls_context_destroy(struct tierce__tls_context *context)
{
    if (context == NULL)
        return;
    SSL_CTX_free(context->ssl);
    for (size_t i = 0; i < FILES; i++)
        tierce__free(context->files[i]);
    tierce__lock_fini(&context->lock);
    tierce__free(context);
}

void tierce__tls_context_exchange(struct tierce__tls_context *context,
                                  struct tierce__tls_context *by)
{
    TIERCE_DASSERT(context != by && context->is_bare == by->is_bare);
    tierce__lock_take(&context->lock);
    SSL_CTX *before = context->ssl;
    context->ssl = by->ssl;
    tierce__lock_drop(&context->lock);
    by->ssl = before; /* running sessions also hold a reference */
}

/* The context of the files as they are now. */
static int load_again(struct tierce__tls_context **out, const struct tierce__tls_context *context,
                      char why[256])
{
    const struct tierce__tls files = {.certificate = context->files[FILE_CERTIFICATE],
                                      .key = context->files[FILE_KEY],
                                      .client_ca = context->files[FILE_AUTHORITY],
                                      .is_bare = context->is_bare};
    return context->is_server ? tierce__tls_server_context(out, &files, why)
                              : tierce__tls_client_context(out, files.client_ca, &files, why);
}

/* Reads files that have changed. Two threads may do so at once: both read the same. */
static void follow(struct tierce__tls_context *context)
{
    char why[256];
    struct tierce__tls_context *fresh = NULL;
    struct file_stamp now[FILES];
    if (!context->follows)
        return;
    read_stamps(now, context->files);
    tierce__lock_take(&context->lock);
    bool is_due = memcmp(now, context->stamps, sizeof(now)) != 0 ||
                  (context->retry_ns != 0 && tierce__now_ns() >= context->retry_ns);
    tierce__lock_drop(&context->lock);
    if (!is_due)
        return;
    int rc = load_again(&fresh, context, why);
    if (rc == 0)
        tierce__tls_context_exchange(context, fresh);
    else
        tierce__log_repeated(TIERCE_LOG_WARN, "tls_files_kept",
                             "err=\"%s\" consequence=\"the previous certificates are used\"", why);
    tierce__lock_take(&context->lock);
    memcpy(context->stamps, now, sizeof(now));
    context->retry_ns = rc == 0 ? 0 : tierce__deadline_in_ms(RETRY_MS);
    tierce__lock_drop(&context->lock);
    tierce__tls_context_destroy(fresh);
}

bool tierce__tls_context_is_for(struct tierce__tls_context *context, const char *host)
{
    struct in6_addr address;
    bool is_address =
        inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
    tierce__lock_take(&context->lock);
    X509 *own = SSL_CTX_get0_certificate(context->ssl);
    bool is_for = own != NULL && (is_address ? X509_check_ip_asc(own, host, 0) == 1
                                             : X509_check_host(own, host, 0, 0, NULL) == 1);
    tierce__lock_drop(&context->lock);
    return is_for;
}

static SSL *new_ssl(struct tierce__tls_context *context)
{
    follow(context);
    tierce__lock_take(&context->lock);
    SSL *ssl = SSL_new(context->ssl);
    tierce__lock_drop(&context->lock);
    return ssl;
}

/* ---- sessions -------------------------------------------------------------------------------- */

static bool expect_name(SSL *ssl, const char *name)
{
    struct in6_addr address;
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1;
    /* SSL_set_tlsext_host_name, whose cast warns. */
    return SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                    (void *)(uintptr_t)name) == 1 &&
           X509_VERIFY_PARAM_set1_host(param, name, 0) == 1;
}

/* OpenSSL's BIO for sockets writes without MSG_NOSIGNAL: a closed connection would end the
 * process. */
static int write_socket(BIO *bio, const char *bytes, int count)
{
    ssize_t n = send((int)BIO_get_fd(bio, NULL), bytes, (size_t)count, MSG_NOSIGNAL);
    BIO_clear_retry_flags(bio);
    if (n < 0 && BIO_sock_should_retry((int)n) != 0)
        BIO_set_retry_write(bio);
    return (int)n;
}

static BIO_METHOD *socket_method; /* NULL: no memory */

static void make_socket_method(void)
{
    const BIO_METHOD *plain = BIO_s_socket();
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOCKET, "socket without signals");
    if (method == NULL)
        return;
    BIO_meth_set_write(method, write_socket);
    BIO_meth_set_read(method, BIO_meth_get_read(plain));
    BIO_meth_set_ctrl(method, BIO_meth_get_ctrl(plain));
    BIO_meth_set_create(method, BIO_meth_get_create(plain));
    BIO_meth_set_destroy(method, BIO_meth_get_destroy(plain));
    socket_method = method;
}

static BIO *new_socket_bio(int fd)
{
    TIERCE_DASSERT(fd >= 0);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_socket_method);
    BIO *bio = socket_method != NULL ? BIO_new(socket_method) : NULL;
    if (bio != NULL)
        BIO_set_fd(bio, fd, BIO_NOCLOSE);
    return bio;
}

/* fd -1: the session has no socket. */
static int make_session(struct tierce__tls_session **out, struct tierce__tls_context *context,
                        int fd, const char *server_name)
{
    struct tierce__tls_session *session = tierce__calloc(1, sizeof(*session));
    if (session == NULL)
        return -ENOMEM;
    session->is_bare = context->is_bare;
    session->fd = fd;
    session->ssl = new_ssl(context);
    BIO *in = fd < 0 ? BIO_new(BIO_s_mem()) : new_socket_bio(fd);
    BIO *out_bio = fd < 0 ? BIO_new(BIO_s_mem()) : in;
    if (session->ssl == NULL || in == NULL || out_bio == NULL) {
        BIO_free(in);
        BIO_free(out_bio != in ? out_bio : NULL);
        goto fail;
    }
    SSL_set_bio(session->ssl, in, out_bio);
    /* Without a socket: buffers only while they are in use, for thousands of idle connections. */
    SSL_set_mode(session->ssl,
                 fd < 0 ? SSL_MODE_RELEASE_BUFFERS
                        : SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    session->in = fd < 0 ? in : NULL;
    session->out = fd < 0 ? out_bio : NULL;
    if (server_name == NULL)
        SSL_set_accept_state(session->ssl);
    else
        SSL_set_connect_state(session->ssl);
    if (server_name == NULL || expect_name(session->ssl, server_name)) {
        *out = session;
        return 0;
    }
fail:
    tierce__tls_session_destroy(session);
    return -ENOMEM;
}

int tierce__tls_session_create(struct tierce__tls_session **out,
                               struct tierce__tls_context *context, const char *server_name)
{
    return make_session(out, context, -1, server_name);
}

void tierce__tls_session_destroy(struct tierce__tls_session *session)
{
    if (session == NULL)
        return;
    SSL_free(session->ssl);
    tierce__free(session);
}

int tierce__tls_feed(struct tierce__tls_session *session, const void *bytes, size_t count)
{
    TIERCE_ASSERT(count <= INT_MAX);
    TIERCE_DASSERT(session->in != NULL);
    return BIO_write(session->in, bytes, (int)count) == (int)count ? 0 : -ENOMEM;
}

/* Returns whether h2 was negotiated; gRPC clients always offer ALPN. */
static bool is_h2(const SSL *ssl)
{
    const unsigned char *chosen;
    unsigned int bytes;
    SSL_get0_alpn_selected(ssl, &chosen, &bytes);
    return bytes == 2 && memcmp(chosen, "h2", 2) == 0;
}

static void read_peer_name(struct tierce__tls_session *session)
{
    X509 *certificate = SSL_get1_peer_certificate(session->ssl);
    if (certificate == NULL)
        return;
    int n = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName,
                                      session->peer_name, sizeof(session->peer_name));
    /* A name with an embedded NUL, or a truncated one, is rejected. */
    if (n < 0 || (size_t)n != strlen(session->peer_name) ||
        (size_t)n >= sizeof(session->peer_name) - 1)
        session->peer_name[0] = '\0';
    X509_free(certificate);
}

/* 1: complete; 0: waits for the peer. */
static int shake_hands(struct tierce__tls_session *session)
{
    TIERCE_DASSERT(!session->is_ready);
    int rc = SSL_do_handshake(session->ssl);
    if (rc != 1) {
        int error = SSL_get_error(session->ssl, rc);
        return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : TIERCE_E_FORMAT;
    }
    if (!session->is_bare && !is_h2(session->ssl))
        return TIERCE_E_FORMAT;
    read_peer_name(session);
    session->is_ready = true;
    return 1;
}

/* NULL: OpenSSL has nothing to say. */
static const char *problem_of(const struct tierce__tls_session *session)
{
    long verified = session != NULL ? SSL_get_verify_result(session->ssl) : X509_V_OK;
    return verified != X509_V_OK ? X509_verify_cert_error_string(verified)
                                 : ERR_reason_error_string(ERR_peek_last_error());
}

const char *tierce__tls_problem(const struct tierce__tls_session *session)
{
    const char *text = problem_of(session);
    return text != NULL                            ? text
           : session->is_ready || session->is_bare ? "the peer has ended the session"
                                                   : "the peer does not speak HTTP/2 (ALPN h2)";
}

ssize_t tierce__tls_read(struct tierce__tls_session *session, void *bytes, size_t capacity)
{
    TIERCE_ASSERT(capacity <= INT_MAX);
    ERR_clear_error(); /* SSL_get_error reads the error queue */
    if (!session->is_ready) {
        int rc = shake_hands(session);
        if (rc <= 0)
            return rc;
    }
    if (capacity == 0)
        return 0;
    int n = SSL_read(session->ssl, bytes, (int)capacity);
    TIERCE_DASSERT(n <= (int)capacity);
    if (n > 0)
        return n;
    int error = SSL_get_error(session->ssl, n);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN ? 0 : TIERCE_E_FORMAT;
}

int tierce__tls_write(struct tierce__tls_session *session, const void *bytes, size_t count)
{
    TIERCE_ASSERT(session->is_ready && count > 0 && count <= INT_MAX);
    ERR_clear_error();
    int n = SSL_write(session->ssl, bytes, (int)count);
    if (n == (int)count)
        return 0;
    /* A memory BIO takes everything unless there is no memory. */
    return SSL_get_error(session->ssl, n) == SSL_ERROR_SYSCALL ? -ENOMEM : TIERCE_E_FORMAT;
}

void tierce__tls_end(struct tierce__tls_session *session)
{
    ERR_clear_error();
    if (session->is_ready)
        (void)SSL_shutdown(session->ssl);
}

size_t tierce__tls_take(struct tierce__tls_session *session, void *bytes, size_t capacity)
{
    TIERCE_DASSERT(session->out != NULL);
    if (capacity > INT_MAX)
        capacity = INT_MAX;
    int n = BIO_read(session->out, bytes, (int)capacity);
    TIERCE_DASSERT(n <= (int)capacity);
    return n > 0 ? (size_t)n : 0;
}

bool tierce__tls_is_ready(const struct tierce__tls_session *session)
{
    return session->is_ready;
}

const char *tierce__tls_peer_name(struct tierce__tls_session *session)
{
    return session->peer_name[0] != '\0' ? session->peer_name : NULL;
}

/* ---- a session on a socket ------------------------------------------------------------------- */

/* The status of a call that returned n <= 0. */
static int socket_status(const struct tierce__tls_session *session, int n, short *wants)
{
    int code = SSL_get_error(session->ssl, n), error = errno;
    *wants = code == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE)
        return -EAGAIN;
    if (code == SSL_ERROR_SSL)
        return -EPROTO;
    return code == SSL_ERROR_SYSCALL && error != 0 ? -error : -ECONNRESET;
}

/* SSL_get_error reads both. */
static void clear_errors(const struct tierce__tls_session *session)
{
    TIERCE_DASSERT(session->fd >= 0);
    ERR_clear_error();
    errno = 0;
}

int tierce__tls_session_connect(struct tierce__tls_session **out,
                                struct tierce__tls_context *context, int fd,
                                const char *server_name, uint64_t deadline_ns, char why[256])
{
    struct tierce__tls_session *session = NULL;
    TIERCE_DASSERT(fd >= 0);
    int rc = make_session(&session, context, fd, server_name);
    while (rc == 0) {
        short wants;
        clear_errors(session);
        int n = SSL_do_handshake(session->ssl);
        if (n == 1) {
            session->is_ready = true;
            *out = session;
            return 0;
        }
        rc = socket_status(session, n, &wants);
        if (rc == -EAGAIN)
            rc = tierce__stream_wait(fd, wants, NULL, deadline_ns);
    }
    const char *reason = problem_of(session);
    snprintf(why, 256, "TLS with %.100s: %.100s", server_name,
             reason != NULL ? reason : tierce_strerror(rc));
    ERR_clear_error();
    tierce__tls_session_destroy(session);
    return rc;
}

int tierce__tls_session_accept(struct tierce__tls_session **out,
                               struct tierce__tls_context *context, int fd)
{
    TIERCE_DASSERT(fd >= 0);
    int rc = make_session(out, context, fd, NULL);
    /* Clients close without a word, and their frames tell whether something is missing. */
    if (rc == 0)
        SSL_set_options((*out)->ssl, SSL_OP_IGNORE_UNEXPECTED_EOF);
    return rc;
}

static int read_once(struct tierce__tls_session *session, const struct iovec *piece, size_t at,
                     size_t *done, short *wants)
{
    TIERCE_DASSERT(at < piece->iov_len);
    clear_errors(session);
    int n = SSL_read_ex(session->ssl, (char *)piece->iov_base + at, piece->iov_len - at, done);
    if (n != 1)
        return socket_status(session, n, wants);
    TIERCE_DASSERT(*done > 0 && *done <= piece->iov_len - at);
    session->is_ready = true;
    return 0;
}

int tierce__tls_socket_read(struct tierce__tls_session *session, const struct iovec *pieces,
                            int count, size_t *done, short *wants)
{
    size_t total = 0;
    int rc = 0;
    TIERCE_DASSERT(count > 0);
    for (int i = 0; i < count && rc == 0; i++) {
        for (size_t at = 0, n; at < pieces[i].iov_len && total < AT_ONCE && rc == 0;) {
            rc = read_once(session, &pieces[i], at, &n, wants);
            at += rc == 0 ? n : 0;
            total += rc == 0 ? n : 0;
        }
    }
    *done = total;
    return total > 0 ? 0 : rc; /* the next call returns it again */
}

/* Short pieces make one record, since each is a message of its own on the wire. Returns the number
 * of bytes in `record`, which is larger than 0 if the first piece is short. */
static size_t join(uint8_t record[JOINED], const struct iovec *pieces, int count, size_t skipped)
{
    size_t bytes = 0;
    if (pieces->iov_len - skipped >= JOINED)
        return 0;
    for (int i = 0; i < count && bytes < JOINED; i++) {
        size_t left = pieces[i].iov_len - skipped, room = JOINED - bytes;
        size_t n = left < room ? left : room;
        if (n > 0)
            memcpy(record + bytes, (const char *)pieces[i].iov_base + skipped, n);
        bytes += n;
        skipped = 0;
    }
    return bytes;
}

int tierce__tls_socket_write(struct tierce__tls_session *session, const struct iovec *pieces,
                             int count, size_t *done, short *wants)
{
    uint8_t record[JOINED];
    size_t total = 0, skipped = 0;
    int n = 1;
    TIERCE_DASSERT(count > 0);
    while (n == 1 && total < AT_ONCE) {
        while (count > 0 && skipped >= pieces->iov_len) {
            skipped -= pieces->iov_len;
            pieces++;
            count--;
        }
        if (count == 0)
            break;
        size_t written = 0, joined = join(record, pieces, count, skipped);
        const void *bytes =
            joined > 0 ? (const char *)record : (const char *)pieces->iov_base + skipped;
        clear_errors(session);
        n = SSL_write_ex(session->ssl, bytes, joined > 0 ? joined : pieces->iov_len - skipped,
                         &written);
        total += n == 1 ? written : 0;
        skipped += n == 1 ? written : 0;
    }
    *done = total;
    return total > 0 ? 0 : socket_status(session, n, wants);
}

bool tierce__tls_socket_is_quiet(struct tierce__tls_session *session)
{
    /* Tickets of a session may wait to be read; they are no answer. */
    char byte;
    short wants;
    clear_errors(session);
    int n = SSL_peek(session->ssl, &byte, 1);
    return n <= 0 && socket_status(session, n, &wants) == -EAGAIN;
}
