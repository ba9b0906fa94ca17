/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/file.h"
#include "serve/http_private.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX (1u << 20)

/* What was found out about a connection's client, once. */
struct client {
    bool is_checked, is_good;
    char name[256];
};

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

/* libmicrohttpd does not tell what it does not like. */
static int check(const struct tierce__http *http, const struct tierce__tls *files, char why[256])
{
    gnutls_certificate_credentials_t credentials;
    if (gnutls_certificate_allocate_credentials(&credentials) != 0)
        return -ENOMEM;
    gnutls_datum_t certificate = {(unsigned char *)http->certificate,
                                  (unsigned)strlen(http->certificate)};
    gnutls_datum_t key = {(unsigned char *)http->key, (unsigned)strlen(http->key)};
    int rc =
        gnutls_certificate_set_x509_key_mem(credentials, &certificate, &key, GNUTLS_X509_FMT_PEM);
    if (rc < 0)
        snprintf(why, 256, "TLS certificate %.80s and key %.80s: %.50s", files->certificate,
                 files->key, gnutls_strerror(rc));
    if (rc >= 0 && http->client_ca != NULL) {
        gnutls_datum_t trust = {(unsigned char *)http->client_ca,
                                (unsigned)strlen(http->client_ca)};
        rc = gnutls_certificate_set_x509_trust_mem(credentials, &trust, GNUTLS_X509_FMT_PEM);
        if (rc <= 0)
            snprintf(why, 256, "TLS client authority %.150s: %.60s", files->client_ca,
                     rc < 0 ? gnutls_strerror(rc) : "no certificate in the file");
        rc = rc > 0 ? 0 : -1;
    }
    gnutls_certificate_free_credentials(credentials);
    return rc >= 0 ? 0 : TIERCE_E_CONFIG;
}

int tierce__http_tls_read(struct tierce__http *http, const struct tierce__tls *files, char why[256])
{
    snprintf(http->priorities, sizeof(http->priorities), "%s",
             "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2");
    int rc = read_pem(&http->certificate, files->certificate, why);
    if (rc == 0)
        rc = read_pem(&http->key, files->key, why);
    if (rc == 0 && files->client_ca != NULL) {
        rc = read_pem(&http->client_ca, files->client_ca, why);
        http->demands_certificate = true;
    }
    return rc == 0 ? check(http, files, why) : rc;
}

void tierce__http_tls_fini(struct tierce__http *http)
{
    tierce__free(http->certificate);
    tierce__free(http->key);
    tierce__free(http->client_ca);
}

void tierce__http_tls_connection(void *arg, struct MHD_Connection *connection, void **context,
                                 enum MHD_ConnectionNotificationCode code)
{
    (void)connection;
    const struct tierce__http *http = arg;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        tierce__free(*context);
        *context = NULL;
    } else if (http->demands_certificate) {
        *context = tierce__calloc(1, sizeof(struct client));
    }
}

static bool read_name(struct client *client, gnutls_session_t session)
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
    if (!http->demands_certificate)
        return true;
    struct client *client =
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
