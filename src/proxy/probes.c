/* SPDX-License-Identifier: Apache-2.0 */
/* Health checks: GET /health of each engine, on the thread of one relay. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "proxy/proxy_private.h"

#include <errno.h>
#include <stdio.h>

struct probe {
    struct tierce__probes *probes;
    struct tierce__engine *engine;
    struct tierce__fetch *fetch; /* in progress, or NULL */
    uint64_t next_ns;
};

struct tierce__probes {
    struct tierce__proxy *proxy;
    struct tierce__fetcher *fetcher;
    uint32_t count;
    struct probe items[2 * TIERCE__ENGINES_MAX];
};

static size_t discard(void *arg, const char *bytes, size_t count)
{
    (void)arg;
    (void)bytes;
    return count;
}

/* The proxy lacks something: it learns nothing of the engine. */
static void skip(struct probe *probe, const char *why)
{
    struct tierce__proxy *proxy = probe->probes->proxy;
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_CHECKS_SKIPPED);
    tierce__log_repeated(TIERCE_LOG_WARN, "proxy_check_skipped", "engine=%s why=\"%s\"",
                         probe->engine->name, why);
    probe->next_ns = tierce__deadline_in_ms(proxy->config->health_interval_ms);
}

/* An engine without such a page answers 404: it is reachable. */
static void done(void *arg, int rc, const char *why)
{
    struct probe *probe = arg;
    struct tierce__proxy *proxy = probe->probes->proxy;
    const struct tierce__proxy_config *config = proxy->config;
    char text[64];
    long status = tierce__fetch_status(probe->fetch);
    if (rc == 0 && status >= 500) {
        snprintf(text, sizeof(text), "/health: HTTP status %ld", status);
        why = text;
    }
    probe->fetch = NULL;
    if (tierce__fetch_is_local(rc)) {
        skip(probe, tierce_strerror(rc));
        return;
    }
    probe->next_ns = tierce__deadline_in_ms(config->health_interval_ms);
    bool is_healthy = rc == 0 && status < 500;
    tierce__engine_checked(probe->engine, is_healthy, config->health_failures, why);
    tierce__proxy_forget_inbox(proxy, probe->engine, rc);
    if (is_healthy && tierce__proxy_has_inbox(proxy, probe->engine))
        tierce__inboxes_returned(&proxy->inboxes, probe->engine->index);
}

static void begin(struct probe *probe)
{
    char url[512];
    struct tierce__proxy *proxy = probe->probes->proxy;
    char *token = NULL;
    bool is_copied =
        tierce__tenant_words_find(&token, &proxy->engine_tokens, probe->engine->tenant) == 0;
    struct tierce__curl_header header = {"Authorization", token};
    snprintf(url, sizeof(url), "%s/health", probe->engine->url);
    int rc = !is_copied ? -ENOMEM
                        : tierce__fetch_begin(&probe->fetch, probe->probes->fetcher,
                                              &(struct tierce__fetch_request){
                                                  .url = url,
                                                  .headers = &header,
                                                  .header_count = header.value != NULL ? 1 : 0,
                                                  .timeout_ms = proxy->config->health_timeout_ms,
                                                  .take = discard,
                                                  .done = done,
                                                  .arg = probe});
    tierce__free_secret(token);
    if (rc != 0)
        skip(probe, tierce_strerror(rc));
}

uint64_t tierce__probes_run(struct tierce__probes *probes, uint64_t now_ns)
{
    uint64_t next_ns = TIERCE__DEADLINE_NEVER;
    for (uint32_t i = 0; i < probes->count; i++) {
        struct probe *probe = &probes->items[i];
        if (probe->fetch == NULL && probe->next_ns <= now_ns)
            begin(probe);
        if (probe->fetch == NULL && probe->next_ns < next_ns)
            next_ns = probe->next_ns;
    }
    return next_ns;
}

static void add(struct tierce__probes *probes, const struct tierce__engines *engines)
{
    for (uint32_t i = 0; i < engines->count; i++)
        probes->items[probes->count++] =
            (struct probe){.probes = probes, .engine = &engines->items[i]};
}

int tierce__probes_create(struct tierce__probes **out, struct tierce__proxy *proxy,
                          struct tierce__fetcher *fetcher)
{
    struct tierce__probes *probes = tierce__calloc(1, sizeof(*probes));
    if (probes == NULL)
        return -ENOMEM;
    probes->proxy = proxy;
    probes->fetcher = fetcher;
    add(probes, &proxy->decode);
    add(probes, &proxy->prefill);
    *out = probes;
    return 0;
}

void tierce__probes_destroy(struct tierce__probes *probes)
{
    for (uint32_t i = 0; probes != NULL && i < probes->count; i++)
        if (probes->items[i].fetch != NULL)
            tierce__fetch_cancel(probes->items[i].fetch);
    tierce__free(probes);
}
