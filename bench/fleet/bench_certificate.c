/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/fleet/bench_certificate.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <unistd.h>

#define DAY_S 86400

static bool add_names(X509 *certificate)
{
    X509_NAME *name = X509_get_subject_name(certificate);
    X509_EXTENSION *hosts = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
    bool is_done = hosts != NULL &&
                   X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                              (const unsigned char *)"bench", -1, -1, 0) == 1 &&
                   X509_set_issuer_name(certificate, name) == 1 &&
                   X509_add_ext(certificate, hosts, -1) == 1;
    X509_EXTENSION_free(hosts);
    return is_done;
}

static bool fill(X509 *certificate, EVP_PKEY *key)
{
    return X509_set_version(certificate, X509_VERSION_3) == 1 &&
           ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) == 1 &&
           X509_gmtime_adj(X509_getm_notBefore(certificate), -DAY_S) != NULL &&
           X509_gmtime_adj(X509_getm_notAfter(certificate), DAY_S) != NULL &&
           X509_set_pubkey(certificate, key) == 1 && add_names(certificate) &&
           X509_sign(certificate, key, EVP_sha256()) > 0;
}

static bool write_both(const char *path, X509 *certificate, EVP_PKEY *key)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool is_done = PEM_write_X509(file, certificate) == 1 &&
                   PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1;
    return fclose(file) == 0 && is_done;
}

int tierce__bench_certificate(const struct tierce__bench *bench, const char *path)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    bool is_done = key != NULL && certificate != NULL && fill(certificate, key) &&
                   write_both(path, certificate, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return is_done ? 0 : tierce__bench_fail(bench, "cannot make a certificate in %s", path);
}
