/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy's pages: /health, /readyz, /metrics. */
#include "base/alloc.h"
#include "base/text/prometheus.h"
#include "proxy/proxy_private.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *text;
} counters[] = {
#define TIERCE_COUNTER(row, name, text) {"proxy." name, text},
#include "proxy/proxy_counters.def"
#undef TIERCE_COUNTER
};

/* The process runs. */
void tierce__proxy_health(void *arg, struct tierce__call *call)
{
    (void)arg;
    tierce__call_reply_text(call, 200, "ok\n");
}

/* It can answer requests. */
void tierce__proxy_readyz(void *arg, struct tierce__call *call)
{
    const struct tierce__proxy *proxy = arg;
    char text[160];
    if (atomic_load_explicit(&proxy->is_draining, memory_order_relaxed)) {
        tierce__call_reply_text(call, 503, "the proxy is shutting down\n");
        return;
    }
    int n = snprintf(text, sizeof(text), "%u of %u engines of decode.urls are reachable",
                     tierce__engines_up(&proxy->decode), proxy->decode.count);
    if (proxy->prefill.count > 0)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "; %u of %u of prefill.urls",
                      tierce__engines_up(&proxy->prefill), proxy->prefill.count);
    snprintf(text + n, sizeof(text) - (size_t)n, "\n");
    tierce__call_reply_text(call, tierce__engines_ready(&proxy->decode) ? 200 : 503, text);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void put(struct tierce__prometheus *text, const char *name, const char *help, double value)
{
    tierce__prometheus_put(text,
                           &(struct tierce__metric){.name = name, .help = help, .value = value});
}

enum engine_row { IN_FLIGHT, IS_UP, REQUESTS, FAILURES, ENGINE_ROWS };

static const struct {
    const char *name, *help;
    bool is_counter;
} engine_rows[ENGINE_ROWS] = {
    [IN_FLIGHT] = {"proxy.engine_requests_now", "Requests in progress at an engine.", false},
    [IS_UP] = {"proxy.engine_up", "Whether an engine gets requests.", false},
    [REQUESTS] = {"proxy.engine_requests", "Requests to an engine.", true},
    [FAILURES] = {"proxy.engine_failures", "Requests to an engine that failed.", true},
};

static double engine_value(const struct tierce__engine *engine, enum engine_row row)
{
    switch (row) {
    case IN_FLIGHT:
        return atomic_load_explicit(&engine->in_flight, memory_order_relaxed);
    case IS_UP:
        return atomic_load_explicit(&engine->is_down, memory_order_relaxed) ? 0 : 1;
    case REQUESTS:
        return (double)atomic_load_explicit(&engine->requests, memory_order_relaxed);
    case FAILURES:
        return (double)atomic_load_explicit(&engine->failures, memory_order_relaxed);
    case ENGINE_ROWS:
        break;
    }
    return 0;
}

static void put_engines(struct tierce__prometheus *text, enum engine_row row, const char *role,
                        const struct tierce__engines *engines)
{
    for (uint32_t i = 0; i < engines->count; i++) {
        const struct tierce__metric_tag tags[] = {{"role", role},
                                                  {"engine", engines->items[i].name},
                                                  {"tenant", engines->items[i].tenant}};
        tierce__prometheus_put(
            text, &(struct tierce__metric){.name = engine_rows[row].name,
                                           .help = engine_rows[row].help,
                                           .is_counter = engine_rows[row].is_counter,
                                           .value = engine_value(&engines->items[i], row),
                                           .tags = tags,
                                           .tag_count = tags[2].value[0] != '\0' ? 3 : 2});
    }
}

enum tenant_row { TENANT_REQUESTS, TENANT_ERRORS, TENANT_NOW, TENANT_ROWS };

static const struct {
    const char *name, *help;
} tenant_rows[TENANT_ROWS] = {
    [TENANT_REQUESTS] = {"proxy.tenant_requests", "Requests of a tenant for an engine."},
    [TENANT_ERRORS] = {"proxy.tenant_errors",
                       "Requests of a tenant that ended with an error of the proxy."},
    [TENANT_NOW] = {"proxy.tenant_requests_now", "Requests of a tenant in progress."},
};

static double tenant_value(const struct tierce__tenant *tenant, enum tenant_row row)
{
    return row == TENANT_REQUESTS
               ? (double)atomic_load_explicit(&tenant->requests, memory_order_relaxed)
           : row == TENANT_ERRORS
               ? (double)atomic_load_explicit(&tenant->errors, memory_order_relaxed)
               : atomic_load_explicit(&tenant->in_progress, memory_order_relaxed);
}

/* Writes the metrics of each tenant that has a name. */
static void put_tenants(struct tierce__prometheus *text, const struct tierce__tenants *tenants)
{
    for (enum tenant_row row = 0; row < TENANT_ROWS; row++) {
        for (uint32_t i = 0; i < tenants->count; i++) {
            const struct tierce__metric_tag tag = {"tenant", tenants->items[i].name};
            if (tag.value[0] != '\0')
                tierce__prometheus_put(
                    text, &(struct tierce__metric){.name = tenant_rows[row].name,
                                                   .help = tenant_rows[row].help,
                                                   .is_counter = row != TENANT_NOW,
                                                   .value = tenant_value(&tenants->items[i], row),
                                                   .tags = &tag,
                                                   .tag_count = 1});
        }
    }
}

/* The page names the engines of all tenants. */
static bool may_read_metrics(struct tierce__proxy *proxy, struct tierce__call *call)
{
    char tenant[TIERCE__TOKEN_NAME_BYTES];
    if (!tierce__proxy_admit(proxy, call, tenant))
        return false;
    if (tenant[0] == '\0' || strcmp(tenant, "default") == 0)
        return true;
    tierce__proxy_count(proxy, TIERCE__PROXY_COUNT_DENIED);
    tierce__proxy_refuse(call, 403,
                         "/metrics is about all tenants: it requires a token without a tenant");
    return false;
}

void tierce__proxy_metrics(void *arg, struct tierce__call *call)
{
    struct tierce__proxy *proxy = arg;
    struct tierce__prometheus text = {0};
    size_t bytes = 0;
    if (!may_read_metrics(proxy, call))
        return;
    for (size_t i = 0; i < TIERCE__PROXY_COUNTERS; i++)
        tierce__prometheus_put(
            &text, &(struct tierce__metric){.name = counters[i].name,
                                            .help = counters[i].text,
                                            .is_counter = true,
                                            .value = (double)atomic_load_explicit(
                                                &proxy->counters[i], memory_order_relaxed)});
    put(&text, "proxy.requests_now", "Requests in progress.",
        atomic_load_explicit(&proxy->unanswered, memory_order_relaxed));
    put(&text, "proxy.held_bytes", "Bytes of requests and of answers that are not streamed.",
        (double)atomic_load_explicit(&proxy->held.bytes, memory_order_relaxed));
    for (enum engine_row row = 0; row < ENGINE_ROWS; row++) {
        put_engines(&text, row, "decode", &proxy->decode);
        put_engines(&text, row, "prefill", &proxy->prefill);
    }
    put_tenants(&text, &proxy->tenants);
    tierce__prometheus_put_latency(
        &text,
        &(struct tierce__metric){.name = "proxy.first_byte_seconds",
                                 .help = "Time from a request to the first byte of its answer."},
        &proxy->first_byte);
    tierce__prometheus_put_latency(
        &text,
        &(struct tierce__metric){.name = "proxy.prefill_seconds",
                                 .help = "Time of an engine of prefill.urls for a prompt."},
        &proxy->prefill_time);
    char *page = tierce__prometheus_end(&text, &bytes);
    tierce__call_reply_heap(call, "text/plain; version=0.0.4", page, bytes);
}
