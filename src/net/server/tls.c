/* SPDX-License-Identifier: Apache-2.0 */
#include "net/server/tls.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/lock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct tierce__tls_context {
    bool is_bare;             /* as of struct tierce__tls */
    struct tierce__lock lock; /* SERVE_TLS */
    SSL_CTX *ssl;
};

struct tierce__tls_session {
    SSL *ssl;
    BIO *in, *out; /* owned by ssl */
    bool is_ready, is_bare;
    char peer_name[256];
};

static const unsigned char alpn[] = "\x02h2";
#define ALPN_BYTES (sizeof(alpn) - 1)

/* ---- contexts -------------------------------------------------------------------------------- */

static int complain(char why[256], const char *what, const char *file)
{
    /* The first error is the cause, the following ones its context. */
    unsigned long error = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(error) ? tierce_strerror(-(int)ERR_GET_REASON(error))
                                               : ERR_reason_error_string(error);
    snprintf(why, 256, "%s %.150s: %.60s", what, file, text != NULL ? text : "it cannot be read");
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

static int make_context(struct tierce__tls_context **out, const SSL_METHOD *method)
{
    struct tierce__tls_context *context = tierce__calloc(1, sizeof(*context));
    if (context == NULL)
        return -ENOMEM;
    tierce__lock_init(&context->lock, TIERCE__LOCK_SERVE_TLS);
    context->ssl = SSL_CTX_new(method);
    if (context->ssl == NULL || SSL_CTX_set_min_proto_version(context->ssl, TLS1_2_VERSION) != 1) {
        tierce__tls_context_destroy(context);
        return -ENOMEM;
    }
    /* Buffers only while they are in use: there may be thousands of idle connections. */
    SSL_CTX_set_mode(context->ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(context->ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    *out = context;
    return 0;
}

static int use_own(SSL_CTX *ssl, const char *certificate, const char *key, char why[256])
{
    if (SSL_CTX_use_certificate_chain_file(ssl, certificate) != 1)
        return complain(why, "TLS certificate", certificate);
    /* Also fails if the key does not match the certificate. */
    if (key == NULL || SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1)
        return complain(why, "TLS key", key != NULL ? key : "(none)");
    return 0;
}

static int demand_clients(SSL_CTX *ssl, const char *ca_file, char why[256])
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca_file);
    if (names == NULL || SSL_CTX_load_verify_locations(ssl, ca_file, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return complain(why, "TLS client authority", ca_file);
    }
    SSL_CTX_set_client_CA_list(ssl, names);
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return 0;
}

int tierce__tls_server_context(struct tierce__tls_context **out, const struct tierce__tls *files,
                               char why[256])
{
    struct tierce__tls_context *context = NULL;
    int rc = make_context(&context, TLS_server_method());
    if (rc != 0) {
        snprintf(why, 256, "no memory for TLS");
        return rc;
    }
    context->is_bare = files->is_bare;
    if (!context->is_bare)
        SSL_CTX_set_alpn_select_cb(context->ssl, choose_alpn, NULL);
    /* A resumed session would not present its certificate. */
    SSL_CTX_set_session_cache_mode(context->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context->ssl, SSL_OP_NO_TICKET);
    rc = use_own(context->ssl, files->certificate, files->key, why);
    if (rc == 0 && files->client_ca != NULL)
        rc = demand_clients(context->ssl, files->client_ca, why);
    if (rc != 0) {
        tierce__tls_context_destroy(context);
        return rc;
    }
    *out = context;
    return 0;
}

int tierce__tls_client_context(struct tierce__tls_context **out, const char *ca_file,
                               const char *certificate, const char *key, char why[256])
{
    struct tierce__tls_context *context = NULL;
    int rc = make_context(&context, TLS_client_method());
    if (rc != 0) {
        snprintf(why, 256, "no memory for TLS");
        return rc;
    }
    SSL_CTX_set_verify(context->ssl, SSL_VERIFY_PEER, NULL);
    if ((ca_file != NULL ? SSL_CTX_load_verify_locations(context->ssl, ca_file, NULL)
                         : SSL_CTX_set_default_verify_paths(context->ssl)) != 1)
        rc = complain(why, "TLS authority", ca_file != NULL ? ca_file : "of the system");
    if (rc == 0 && certificate != NULL)
        rc = use_own(context->ssl, certificate, key, why);
    if (rc == 0 && SSL_CTX_set_alpn_protos(context->ssl, alpn, ALPN_BYTES) != 0)
        rc = -ENOMEM;
    if (rc != 0) {
        tierce__tls_context_destroy(context);
        return rc;
    }
    *out = context;
    return 0;
}

void tierce__tls_context_destroy(struct tierce__tls_context *context)
{
    if (context == NULL)
        return;
    SSL_CTX_free(context->ssl);
    tierce__lock_fini(&context->lock);
    tierce__free(context);
}

void tierce__tls_context_exchange(struct tierce__tls_context *context,
                                  struct tierce__tls_context *by)
{
    tierce__lock_take(&context->lock);
    SSL_CTX *before = context->ssl;
    context->ssl = by->ssl;
    tierce__lock_drop(&context->lock);
    by->ssl = before; /* running sessions also hold a reference */
}

static SSL *new_ssl(struct tierce__tls_context *context)
{
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

int tierce__tls_session_create(struct tierce__tls_session **out,
                               struct tierce__tls_context *context, const char *server_name)
{
    struct tierce__tls_session *session = tierce__calloc(1, sizeof(*session));
    if (session == NULL)
        return -ENOMEM;
    session->is_bare = context->is_bare;
    session->ssl = new_ssl(context);
    session->in = BIO_new(BIO_s_mem());
    session->out = BIO_new(BIO_s_mem());
    if (session->ssl == NULL || session->in == NULL || session->out == NULL) {
        BIO_free(session->in);
        BIO_free(session->out);
        session->in = session->out = NULL;
        tierce__tls_session_destroy(session);
        return -ENOMEM;
    }
    SSL_set_bio(session->ssl, session->in, session->out);
    if (server_name == NULL) {
        SSL_set_accept_state(session->ssl);
    } else {
        SSL_set_connect_state(session->ssl);
        if (!expect_name(session->ssl, server_name)) {
            tierce__tls_session_destroy(session);
            return -ENOMEM;
        }
    }
    *out = session;
    return 0;
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
    if (capacity > INT_MAX)
        capacity = INT_MAX;
    int n = BIO_read(session->out, bytes, (int)capacity);
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
