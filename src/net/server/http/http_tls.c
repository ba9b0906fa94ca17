/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/file.h"
#include "net/server/http/http_private.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define FILE_BYTES_MAX (1u << 20)

static int read_pem(char **out, const char *path, char why[256])
{
    size_t length;
    int rc = path != NULL ? tierce__read_file(out, &length, path, FILE_BYTES_MAX) : -EINVAL;
    if (rc == 0)
        return 0;
    snprintf(why, 256, "TLS file %.150s: %s", path != NULL ? path : "(no key)",
             tierce_strerror(rc));
    return rc == -ENOMEM ? rc : TIERCE_E_CONFIG;
}

/* ---- credentials ----------------------------------------------------------------------------- */

struct tierce__http_credentials {
    _Atomic uint32_t holders; /* acq_rel: the last one frees */
    gnutls_certificate_credentials_t gnutls;
};

static int use_own(gnutls_certificate_credentials_t gnutls, const char *certificate,
                   const char *key, const struct tierce__tls *files, char why[256])
{
    gnutls_datum_t pem = {(unsigned char *)(uintptr_t)certificate, (unsigned)strlen(certificate)};
    gnutls_datum_t key_pem = {(unsigned char *)(uintptr_t)key, (unsigned)strlen(key)};
    int rc = gnutls_certificate_set_x509_key_mem(gnutls, &pem, &key_pem, GNUTLS_X509_FMT_PEM);
    if (rc < 0)
        snprintf(why, 256, "TLS certificate %.80s and key %.80s: %.50s", files->certificate,
                 files->key, gnutls_strerror(rc));
    return rc < 0 ? TIERCE_E_CONFIG : 0;
}

static int use_authority(gnutls_certificate_credentials_t gnutls, const char *client_ca,
                         const struct tierce__tls *files, char why[256])
{
    gnutls_datum_t pem = {(unsigned char *)(uintptr_t)client_ca, (unsigned)strlen(client_ca)};
    int rc = gnutls_certificate_set_x509_trust_mem(gnutls, &pem, GNUTLS_X509_FMT_PEM);
    if (rc <= 0)
        snprintf(why, 256, "TLS client CA %.150s: %.60s", files->client_ca,
                 rc < 0 ? gnutls_strerror(rc) : "no certificate in the file");
    return rc <= 0 ? TIERCE_E_CONFIG : 0;
}

/* The contents of the files. */
struct pems {
    char *certificate, *key, *client_ca; /* the last one may be NULL */
};

static void free_pems(struct pems *pems)
{
    tierce__free(pems->certificate);
    tierce__free(pems->key);
    tierce__free(pems->client_ca);
}

static int read_pems(struct pems *out, const struct tierce__tls *files, char why[256])
{
    int rc = read_pem(&out->certificate, files->certificate, why);
    if (rc == 0)
        rc = read_pem(&out->key, files->key, why);
    if (rc == 0 && files->client_ca != NULL)
        rc = read_pem(&out->client_ca, files->client_ca, why);
    return rc;
}

static int make_credentials(struct tierce__http_credentials **out, const struct pems *pems,
                            const struct tierce__tls *files, char why[256])
{
    struct tierce__http_credentials *made = tierce__calloc(1, sizeof(*made));
    snprintf(why, 256, "no memory for TLS");
    if (made == NULL)
        return -ENOMEM;
    atomic_init(&made->holders, 1);
    int rc = gnutls_certificate_allocate_credentials(&made->gnutls) != 0 ? -ENOMEM : 0;
    if (rc == 0)
        rc = use_own(made->gnutls, pems->certificate, pems->key, files, why);
    if (rc == 0 && pems->client_ca != NULL)
        rc = use_authority(made->gnutls, pems->client_ca, files, why);
    if (rc == 0)
        *out = made;
    else
        tierce__http_credentials_drop(made);
    return rc;
}

int tierce__http_credentials_read(struct tierce__http_credentials **out,
                                  const struct tierce__tls *files, char why[256])
{
    struct pems pems = {NULL, NULL, NULL};
    int rc = read_pems(&pems, files, why);
    if (rc == 0)
        rc = make_credentials(out, &pems, files, why);
    free_pems(&pems);
    return rc;
}

void tierce__http_credentials_drop(struct tierce__http_credentials *credentials)
{
    TIERCE_ASSERT(credentials == NULL ||
                  atomic_load_explicit(&credentials->holders, memory_order_relaxed) > 0);
    if (credentials == NULL ||
        atomic_fetch_sub_explicit(&credentials->holders, 1, memory_order_acq_rel) > 1)
        return;
    if (credentials->gnutls != NULL)
        gnutls_certificate_free_credentials(credentials->gnutls);
    tierce__free(credentials);
}

int tierce__http_tls_read(struct tierce__http *http, const struct tierce__tls *files, char why[256])
{
    struct pems pems = {NULL, NULL, NULL};
    snprintf(http->priorities, sizeof(http->priorities), "%s",
             "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2");
    int rc = read_pems(&pems, files, why);
    if (rc == 0)
        rc = make_credentials(&http->credentials, &pems, files, why);
    http->certificate = pems.certificate;
    http->key = pems.key;
    http->client_ca = pems.client_ca;
    return rc;
}

void tierce__http_tls_fini(struct tierce__http *http)
{
    tierce__http_credentials_drop(http->credentials);
    tierce__free(http->certificate);
    tierce__free(http->key);
    tierce__free(http->client_ca);
}

/* ---- a connection ---------------------------------------------------------------------------- */

void tierce__http_tls_begin(struct tierce__http *http, struct tierce__http_connection *c,
                            struct MHD_Connection *connection)
{
    gnutls_session_t session =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session;
    tierce__lock_take(&http->lock);
    c->credentials = http->credentials;
    TIERCE_ASSERT(atomic_load_explicit(&c->credentials->holders, memory_order_relaxed) > 0);
    atomic_fetch_add_explicit(&c->credentials->holders, 1, memory_order_relaxed);
    tierce__lock_drop(&http->lock);
    /* On failure the handshake uses the credentials that the daemon was started with. */
    if (gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, c->credentials->gnutls) != 0)
        (void)shutdown(c->fd, SHUT_RDWR);
}

static bool read_name(struct tierce__http_connection *client, gnutls_session_t session)
{
    unsigned count = 0;
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(session, &count);
    gnutls_x509_crt_t certificate;
    if (chain == NULL || count == 0 || gnutls_x509_crt_init(&certificate) != 0)
        return false;
    size_t bytes = sizeof(client->name);
    bool good = gnutls_x509_crt_import(certificate, &chain[0], GNUTLS_X509_FMT_DER) == 0;
    /* No name, one that is too long or has a NUL inside: verified, but nameless. */
    if (good && (gnutls_x509_crt_get_dn_by_oid(certificate, GNUTLS_OID_X520_COMMON_NAME, 0, 0,
                                               client->name, &bytes) != 0 ||
                 strlen(client->name) != bytes))
        client->name[0] = '\0';
    gnutls_x509_crt_deinit(certificate);
    return good;
}

bool tierce__http_tls_accepts(const struct tierce__http *http, struct MHD_Connection *connection,
                              const char **name)
{
    if (http->client_ca == NULL)
        return true;
    struct tierce__http_connection *client =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (client == NULL)
        return false;
    if (!client->is_checked) {
        gnutls_session_t session =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session;
        unsigned status = 1;
        client->is_checked = true;
        client->is_good = gnutls_certificate_verify_peers2(session, &status) == 0 && status == 0 &&
                          read_name(client, session);
    }
    if (client->is_good && client->name[0] != '\0')
        *name = client->name;
    return client->is_good;
}
