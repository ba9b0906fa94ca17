/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/connector.h"
#include "base/clock.h"
#include "store/remote/links.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct connector_scheme {
    const char *name;
    const struct tierce__client *client;
} schemes[] = {
#define TIERCE_CONNECTOR(scheme, name) {scheme, &tierce__##name##_client},
#include "store/remote/connectors.def"
#undef TIERCE_CONNECTOR
};

#define NAMES_MAX (1u << 20) /* of one EXISTS */

#define SCHEME_COUNT (sizeof(schemes) / sizeof(*schemes))

static const struct connector_scheme *find_scheme(const char *name)
{
    for (size_t i = 0; i < SCHEME_COUNT; i++) {
        if (strcmp(schemes[i].name, name) == 0)
            return &schemes[i];
    }
    return NULL;
}

/* `name` NULL: the URL has none. Schemes with a '+' share one message. */
static int refuse_scheme(const char *name, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    size_t room = TIERCE__CONNECTOR_WHY_BYTES;
    int used = name == NULL ? snprintf(why, room, "a URL begins with a scheme and ://; there are")
                            : snprintf(why, room, "no connector for %.16s://; there are", name);
    for (size_t i = 0; i < SCHEME_COUNT && (size_t)used < room; i++) {
        if (strchr(schemes[i].name, '+') == NULL)
            used += snprintf(why + used, room - (size_t)used, "%s %s", i > 0 ? "," : "",
                             schemes[i].name);
    }
    if ((size_t)used < room)
        snprintf(why + used, room - (size_t)used,
                 "; some with +unix, +sentinel, +cluster, +tls, +nixl");
    return TIERCE_E_CONFIG;
}

bool tierce__connector_needs_shared_pool(const char *url)
{
    static const char mooncake[] = "mooncake://", python[] = "python://", fleet[] = "fleet";
    static const char parameter[] = "mooncake_python=";
    if (strncmp(url, mooncake, sizeof(mooncake) - 1) == 0 ||
        strncmp(url, python, sizeof(python) - 1) == 0)
        return true;
    /* A URL ends at a blank in a list of them. */
    const char *at = strstr(url, parameter);
    return strncmp(url, fleet, sizeof(fleet) - 1) == 0 && at != NULL && at > url &&
           (at[-1] == '?' || at[-1] == '&') && (size_t)(at - url) < strcspn(url, " \t\r\n");
}

int tierce__connector_open(struct tierce__connector **out, const char *url,
                           const struct tierce__connector_opts *opts,
                           char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__url parsed = {0};
    char store_name[TIERCE__CONNECTOR_WHY_BYTES / 2];
    why[0] = '\0';
    if (strstr(url, "://") == NULL)
        return refuse_scheme(NULL, why);
    int rc = tierce__url_parse(&parsed, url, why);
    if (rc != 0)
        return rc;
    const struct connector_scheme *scheme = find_scheme(parsed.scheme);
    tierce__url_store_name(store_name, sizeof(store_name), url);
    const struct tierce__connector_source source = {
        .url = &parsed, .text = url, .store_name = store_name, .opts = opts};
    if (scheme == NULL)
        rc = refuse_scheme(parsed.scheme, why);
    else if (scheme->client->make != NULL)
        rc = scheme->client->make(out, &source, why);
    else
        rc = tierce__links_open(out, scheme->client, &source, why);
    if (rc == -EAGAIN && why[0] == '\0')
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "no thread can be started (ulimit -u, pids.max, memory): %s", tierce_strerror(rc));
    else if (rc != 0 && why[0] == '\0')
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "%s", tierce_strerror(rc));
    tierce__url_clear(&parsed);
    return rc;
}

/* ---- requests -------------------------------------------------------------------------------- */

static int check_names(const struct tierce__store_req *req)
{
    bool lists = req->op == TIERCE__STORE_LIST;
    size_t most = req->op == TIERCE__STORE_LOOKUP ? NAMES_MAX
                  : req->op == TIERCE__STORE_PING ? 0
                                                  : 1;
    if (req->name_count > most)
        return most == NAMES_MAX ? TIERCE_E_LIMIT : TIERCE_E_ARGUMENT;
    if (req->name_count == 0 && most == 1 && !lists)
        return TIERCE_E_ARGUMENT;
    for (size_t i = 0; i < req->name_count; i++) {
        const struct tierce_plugin_name *name = &req->names[i];
        if ((name->bytes == 0 && !lists) || name->bytes > TIERCE__CONNECTOR_NAME_MAX ||
            (name->bytes > 0 && memchr(name->text, '\0', name->bytes) != NULL))
            return TIERCE_E_ARGUMENT;
    }
    return 0;
}

static int check_req(const struct tierce__store_req *req, unsigned caps)
{
    bool get = req->op == TIERCE__STORE_GET, put = req->op == TIERCE__STORE_PUT;
    bool is_of_tiers = req->op > TIERCE__STORE_DELETE && req->op < TIERCE__STORE_LIST;
    if ((unsigned)req->op > TIERCE__STORE_PING || is_of_tiers ||
        (unsigned)req->urgency >= TIERCE__CONNECTOR_URGENCIES)
        return TIERCE_E_ARGUMENT;
    if (req->op == TIERCE__STORE_LIST && (caps & TIERCE__CONNECTOR_LISTS) == 0)
        return TIERCE_E_UNSUPPORTED;
    if (req->op == TIERCE__STORE_LIST && req->each == NULL)
        return TIERCE_E_ARGUMENT;
    if ((get || put) && (req->buf == NULL || req->length == 0))
        return TIERCE_E_ARGUMENT;
    if ((get || put) && ((put && req->offset != 0) || req->offset > req->buf->bytes ||
                         req->length > req->buf->bytes - req->offset))
        return TIERCE_E_ARGUMENT;
    if (get && req->offset != 0 && (caps & TIERCE__CONNECTOR_RANGES) == 0)
        return TIERCE_E_UNSUPPORTED;
    if (get && req->takes_shorter && (caps & TIERCE__CONNECTOR_TELLS_LENGTH) == 0)
        return TIERCE_E_UNSUPPORTED;
    int rc = check_names(req);
    if (rc == 0 && req->op == TIERCE__STORE_DELETE && (caps & TIERCE__CONNECTOR_NO_DELETE) != 0 &&
        (caps & TIERCE__CONNECTOR_REJECTS) == 0)
        rc = TIERCE_E_UNSUPPORTED;
    return rc;
}

int tierce__connector_accept(struct tierce__store_req *req, unsigned caps)
{
    req->found = 0;
    tierce__list_init(&req->node);
    int rc = check_req(req, caps);
    return rc == 0 && req->deadline_ns <= tierce__now_ns() ? TIERCE_E_DEADLINE : rc;
}
