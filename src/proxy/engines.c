/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/engines.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "base/text/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SEPARATORS ", \t\r\n"

int tierce__engine_url_check(const char *text, char why[256])
{
    struct tierce__url url;
    if (strlen(text) > TIERCE__ENGINE_URL_MAX) {
        snprintf(why, 256, "a URL is longer than %u bytes", TIERCE__ENGINE_URL_MAX);
        return TIERCE_E_CONFIG;
    }
    int rc = tierce__url_parse(&url, text, why);
    if (rc != 0)
        return rc;
    if (strcmp(url.scheme, "http") != 0 && strcmp(url.scheme, "https") != 0) {
        snprintf(why, 256, "the scheme is %.32s, and must be http or https", url.scheme);
        rc = TIERCE_E_CONFIG;
    } else if (url.host_count != 1 || url.hosts[0].name[0] == '\0') {
        snprintf(why, 256, "a URL must name one host, such as http://127.0.0.1:8000");
        rc = TIERCE_E_CONFIG;
    } else if (url.param_count > 0 || strchr(text, '#') != NULL) {
        snprintf(why, 256, "a URL of a server has no parameters and no fragment");
        rc = TIERCE_E_CONFIG;
    }
    tierce__url_clear(&url);
    return rc;
}

/* Cuts ";tenant=NAME" off what follows a '#'. */
static int take_tenant(struct tierce__engine *engine, char *id, char why[256])
{
    static const char mark[] = ";tenant=";
    char *at = strstr(id, mark);
    engine->tenant = "";
    if (at == NULL)
        return 0;
    *at = '\0';
    const char *name = at + strlen(mark);
    size_t n = strlen(name);
    if (n == 0 || n > TIERCE__TENANT_MAX || strchr(name, ';') != NULL) {
        snprintf(why, 256,
                 "';tenant=%.64s' is invalid; a tenant name has 1 to %u bytes without ';'", name,
                 TIERCE__TENANT_MAX);
        return TIERCE_E_CONFIG;
    }
    if (strcmp(name, "default") != 0)
        engine->tenant = name;
    return 0;
}

/* Cuts "#3" off. */
static int take_id(struct tierce__engine *engine, char *url, bool needs_id, char why[256])
{
    char *mark = strchr(url, '#');
    engine->id = engine->tenant = "";
    if (mark == NULL && !needs_id)
        return 0;
    if (mark == NULL) {
        snprintf(why, 256,
                 "with router.url, each URL must end with the engine's instance_id at "
                 "the router index, such as #1");
        return TIERCE_E_CONFIG;
    }
    *mark = '\0';
    engine->id = mark + 1;
    int rc = take_tenant(engine, mark + 1, why);
    if (rc != 0)
        return rc;
    size_t n = strlen(engine->id);
    if (n == 0 && !needs_id && engine->tenant[0] != '\0')
        return 0;
    if (n > 0 && n <= TIERCE__ENGINE_ID_MAX && strchr(engine->id, '#') == NULL)
        return 0;
    snprintf(why, 256, "'#%.32s' is not the instance_id of an engine: 1 to %u bytes without '#'",
             engine->id, TIERCE__ENGINE_ID_MAX);
    return TIERCE_E_CONFIG;
}

static int add_engine(struct tierce__engines *engines, char *url, bool needs_ids, char why[256])
{
    char shown[300];
    if (engines->count == TIERCE__ENGINES_MAX) {
        snprintf(why, 256, "more than %u engines", TIERCE__ENGINES_MAX);
        return TIERCE_E_CONFIG;
    }
    struct tierce__engine *engine = &engines->items[engines->count];
    int rc = take_id(engine, url, needs_ids, why);
    if (rc == 0)
        rc = tierce__engine_url_check(url, why);
    if (rc != 0)
        return rc;
    for (size_t n = strlen(url); n > 0 && url[n - 1] == '/'; n--)
        url[n - 1] = '\0';
    tierce__url_show(shown, sizeof(shown), url);
    engine->url = url;
    engine->name = tierce__strdup(shown);
    if (engine->name == NULL) {
        snprintf(why, 256, "no memory");
        return -ENOMEM;
    }
    engine->index = engines->count++;
    for (uint32_t i = 0; i < engine->index; i++) {
        if (strcmp(engines->items[i].url, url) != 0)
            continue;
        snprintf(why, 256, "%.200s is given twice", shown);
        return TIERCE_E_CONFIG;
    }
    return 0;
}

int tierce__engines_init(struct tierce__engines *engines, const char *urls, bool needs_ids,
                         char why[256])
{
    char *rest = NULL;
    int rc = 0;
    TIERCE_ASSERT(engines->items == NULL);
    engines->text = tierce__strdup(urls);
    engines->items = tierce__calloc(TIERCE__ENGINES_MAX, sizeof(*engines->items));
    snprintf(why, 256, "no memory");
    if (engines->text == NULL || engines->items == NULL)
        return -ENOMEM;
    for (char *url = strtok_r(engines->text, SEPARATORS, &rest); rc == 0 && url != NULL;
         url = strtok_r(NULL, SEPARATORS, &rest))
        rc = add_engine(engines, url, needs_ids, why);
    if (rc == 0 && engines->count == 0) {
        snprintf(why, 256, "no URL is given");
        rc = TIERCE_E_CONFIG;
    }
    return rc;
}

void tierce__engines_fini(struct tierce__engines *engines)
{
    for (uint32_t i = 0; i < engines->count; i++)
        tierce__free((void *)(uintptr_t)engines->items[i].name);
    tierce__free(engines->items);
    tierce__free(engines->text);
    *engines = (struct tierce__engines){0};
}

void tierce__engine_expect(struct tierce__engines *engines, struct tierce__engine *engine)
{
    uint64_t number = atomic_fetch_add_explicit(&engines->uses, 1, memory_order_relaxed) + 1;
    TIERCE_ASSERT(engine == &engines->items[engine->index]);
    atomic_store_explicit(&engine->used, number, memory_order_relaxed);
    atomic_fetch_add_explicit(&engine->in_flight, 1, memory_order_relaxed);
}

void tierce__engine_use(struct tierce__engines *engines, struct tierce__engine *engine)
{
    tierce__engine_expect(engines, engine);
    atomic_fetch_add_explicit(&engine->requests, 1, memory_order_relaxed);
}

void tierce__engine_release(struct tierce__engine *engine)
{
    uint32_t before = atomic_fetch_sub_explicit(&engine->in_flight, 1, memory_order_relaxed);
    TIERCE_ASSERT(before > 0);
}

/* ---- health ---------------------------------------------------------------------------------- */

static bool is_down(const struct tierce__engine *engine)
{
    return atomic_load_explicit(&engine->is_down, memory_order_relaxed);
}

uint32_t tierce__engines_up(const struct tierce__engines *engines)
{
    uint32_t up = 0;
    for (uint32_t i = 0; i < engines->count; i++)
        up += is_down(&engines->items[i]) ? 0 : 1;
    return up;
}

bool tierce__engines_ready(const struct tierce__engines *engines)
{
    for (uint32_t i = 0; i < engines->count; i++)
        if (!is_down(&engines->items[i]) &&
            atomic_load_explicit(&engines->items[i].was_up, memory_order_relaxed))
            return true;
    return false;
}

void tierce__engine_unreachable(struct tierce__engine *engine, const char *why)
{
    if (!atomic_exchange_explicit(&engine->is_down, true, memory_order_relaxed))
        tierce__log(TIERCE_LOG_WARN, "proxy_engine_down", "engine=%s why=\"%s\"", engine->name,
                    why);
}

void tierce__engine_checked(struct tierce__engine *engine, bool is_good, uint32_t failures_max,
                            const char *why)
{
    if (!is_good) {
        if (++engine->failed_checks >= failures_max)
            tierce__engine_unreachable(engine, why);
        return;
    }
    engine->failed_checks = 0;
    bool was_down = atomic_exchange_explicit(&engine->is_down, false, memory_order_relaxed);
    bool was_up = atomic_exchange_explicit(&engine->was_up, true, memory_order_relaxed);
    if (was_down || !was_up)
        tierce__log(was_down ? TIERCE_LOG_WARN : TIERCE_LOG_INFO, "proxy_engine_up", "engine=%s",
                    engine->name);
}
