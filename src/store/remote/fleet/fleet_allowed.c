/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/fleet/fleet_allowed.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/host_port.h"
#include "base/text/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define AMAZON "amazonaws.com"

/* One entry of the list. */
struct allowed_item {
    const char *text; /* a folder, or a host without brackets */
    size_t bytes;
    bool is_folder;
    uint16_t port; /* 0: any */
};

static bool take_host(struct allowed_item *item)
{
    struct tierce__host_port at;
    if (!tierce__host_port_split(&at, item->text, item->bytes) || (at.has_port && at.port == 0))
        return false;
    item->text = at.host;
    item->bytes = at.host_bytes;
    item->port = at.port;
    for (size_t i = 0; i < item->bytes; i++) {
        unsigned char c = (unsigned char)item->text[i];
        bool is_wild = c == '*' && i == 0 && item->bytes > 2 && item->text[1] == '.';
        if (c <= ' ' || c >= 0x7f || (strchr("/@?#[]*", c) != NULL && !is_wild))
            return false;
    }
    return item->bytes > 0;
}

/* Takes the next item of a list, which moves behind it. 0: none is left; TIERCE_E_CONFIG. */
static int next_item(struct allowed_item *out, const char **list)
{
    size_t bytes = strcspn(*list, ",");
    if (**list == '\0')
        return 0;
    struct allowed_item item = {.text = *list, .bytes = bytes, .is_folder = (*list)[0] == '/'};
    *list += bytes + ((*list)[bytes] == ',');
    while (item.is_folder && item.bytes > 1 && item.text[item.bytes - 1] == '/')
        item.bytes--;
    if (bytes == 0 || (item.is_folder ? item.bytes < 2 : !take_host(&item)))
        return TIERCE_E_CONFIG;
    *out = item;
    return 1;
}

int tierce__fleet_allowed_check(const char *allowed, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct allowed_item item;
    const char *at = allowed;
    int rc = 0;
    do
        rc = next_item(&item, &at);
    while (rc > 0);
    if (rc == 0 && allowed[0] != '\0' && at[-1] != ',')
        return 0;
    snprintf(
        why, TIERCE__CONNECTOR_WHY_BYTES,
        "URL: storages must be a list of folders (/mnt/kv), hosts (HOST, HOST:PORT) and domains "
        "(*.DOMAIN), separated by commas");
    return TIERCE_E_CONFIG;
}

static bool has_folder(const struct allowed_item *item, const char *path)
{
    return item->is_folder && strncmp(item->text, path, item->bytes) == 0 &&
           (path[item->bytes] == '\0' || path[item->bytes] == '/');
}

static bool has_host(const struct allowed_item *item, const struct tierce__url_host *host)
{
    size_t bytes = strlen(host->name);
    if (item->is_folder || (item->port != 0 && item->port != host->port))
        return false;
    if (item->text[0] != '*')
        return bytes == item->bytes && strncasecmp(item->text, host->name, bytes) == 0;
    return bytes >= item->bytes &&
           strncasecmp(item->text + 1, host->name + bytes - (item->bytes - 1), item->bytes - 1) ==
               0;
}

static bool is_folder_in(const char *allowed, const char *path, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct allowed_item item;
    char shown[120];
    bool is_plain = strstr(path, "/../") == NULL && strstr(path, "/./") == NULL;
    while (is_plain && next_item(&item, &allowed) > 0) {
        if (has_folder(&item, path))
            return true;
    }
    tierce__text_for_message(shown, sizeof(shown), path);
    snprintf(why, TIERCE__FLEET_WHY_BYTES,
             "folder %s is not among storages= of the fleet URL: add it there if managers may name "
             "it",
             shown);
    return false;
}

static bool is_host_in(const char *allowed, const struct tierce__url_host *host,
                       char why[TIERCE__FLEET_WHY_BYTES])
{
    struct allowed_item item;
    char shown[120], port[32] = "";
    while (next_item(&item, &allowed) > 0) {
        if (has_host(&item, host))
            return true;
    }
    tierce__text_for_message(shown, sizeof(shown), host->name);
    if (host->port != 0)
        snprintf(port, sizeof(port), ", port %u,", (unsigned)host->port);
    snprintf(why, TIERCE__FLEET_WHY_BYTES,
             "host %s%s is not among storages= of the fleet URL: add it there if managers may name "
             "it",
             shown, port);
    return false;
}

/* Folders and sockets are paths; a host without a name is this one, and not allowed. */
static bool are_in(const char *allowed, const struct tierce__url *url,
                   char why[TIERCE__FLEET_WHY_BYTES])
{
    static const struct tierce__url_host none = {.name = ""};
    const char *kind = strchr(url->scheme, '+');
    if (strcmp(url->scheme, "file") == 0 || (kind != NULL && strcmp(kind, "+unix") == 0))
        return is_folder_in(allowed, url->path, why);
    bool is = url->host_count > 0 || is_host_in(allowed, &none, why);
    for (size_t i = 0; is && i < url->host_count; i++)
        is = is_host_in(allowed, &url->hosts[i], why);
    return is;
}

/* The URL in a parameter. */
static bool is_text_in(const char *allowed, const char *text, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct tierce__url url = {0};
    char parse_why[TIERCE__URL_WHY_BYTES];
    if (tierce__url_parse(&url, text, parse_why) != 0) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "%.200s", parse_why);
        return false;
    }
    bool is = are_in(allowed, &url, why);
    tierce__url_clear(&url);
    return is;
}

/* The address of Mooncake's metadata; one without a scheme is etcd's. */
static bool is_metadata_in(const char *allowed, const char *metadata,
                           char why[TIERCE__FLEET_WHY_BYTES])
{
    char text[TIERCE__URL_BYTES_MAX];
    if (strcmp(metadata, "P2PHANDSHAKE") == 0) /* there is none */
        return true;
    int n = snprintf(text, sizeof(text), "%s%s", strstr(metadata, "://") != NULL ? "" : "etcd://",
                     metadata);
    if (n < 0 || (size_t)n >= sizeof(text)) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "metadata is longer than %zu bytes",
                 sizeof(text) - sizeof("etcd://"));
        return false;
    }
    return is_text_in(allowed, text, why);
}

bool tierce__fleet_allows(const char *allowed, const char *text, char why[TIERCE__FLEET_WHY_BYTES])
{
    static const struct tierce__url_host amazon = {.name = AMAZON};
    struct tierce__url url = {0};
    char parse_why[TIERCE__URL_WHY_BYTES];
    if (tierce__url_parse(&url, text, parse_why) != 0) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "%.200s", parse_why);
        return false;
    }
    const char *endpoint = tierce__url_param(&url, "endpoint");
    const char *metadata = tierce__url_param(&url, "metadata");
    bool is;
    if (strcmp(url.scheme, "s3") == 0)
        is = endpoint != NULL ? is_text_in(allowed, endpoint, why)
                              : is_host_in(allowed, &amazon, why);
    else
        is = are_in(allowed, &url, why);
    if (is && strcmp(url.scheme, "mooncake") == 0 && metadata != NULL)
        is = is_metadata_in(allowed, metadata, why);
    tierce__url_clear(&url);
    return is;
}
