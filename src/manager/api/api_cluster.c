/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_private.h"
#include "manager/observe/manager_metrics.h"
#include "proto/kvcm/admin_service.pb-c.h"

#include "base/assert.h"
#include "base/log/log.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

/* Metrics, health, leadership, logging: calls that every manager answers, leader or not. */

#define OK META__ERROR_CODE__OK

/* ---- metrics --------------------------------------------------------------------------------- */

struct cluster_listing {
    struct tierce__api_call *api;
    Admin__GetMetricsResponse *reply;
    size_t room;
    bool failed;
};

static bool make_room(struct cluster_listing *l)
{
    TIERCE_ASSERT(l->reply->n_metrics <= l->room);
    if (l->reply->n_metrics < l->room)
        return true;
    size_t room = l->room == 0 ? 64 : l->room * 2;
    Admin__MetricsData **grown = tierce__api_alloc(l->api, room, sizeof(*grown));
    if (grown == NULL)
        return false;
    if (l->room > 0)
        memcpy(grown, l->reply->metrics, l->room * sizeof(*grown));
    l->reply->metrics = grown;
    l->room = room;
    return true;
}

static char *keep(struct cluster_listing *l, const char *text)
{
    char *copy = tierce__api_copy(l->api, text, strlen(text));
    l->failed = l->failed || copy == NULL;
    return copy;
}

static bool put_tags(struct cluster_listing *l, Admin__MetricsData *data,
                     const struct tierce__metric *metric)
{
    Admin__MetricsTag *tags = tierce__api_alloc(l->api, metric->tag_count + 1, sizeof(*tags));
    data->metric_tags =
        tierce__api_alloc(l->api, metric->tag_count + 1, sizeof(*data->metric_tags));
    if (tags == NULL || data->metric_tags == NULL)
        return false;
    for (size_t i = 0; i < metric->tag_count; i++) {
        admin__metrics_tag__init(&tags[i]);
        tags[i].tag_key = keep(l, metric->tags[i].key);
        tags[i].tag_value = keep(l, metric->tags[i].value);
        data->metric_tags[i] = &tags[i];
    }
    data->n_metric_tags = metric->tag_count;
    return !l->failed;
}

static void put_metric(void *arg, const struct tierce__metric *metric)
{
    struct cluster_listing *l = arg;
    Admin__MetricsData *data = tierce__api_alloc(l->api, 1, sizeof(*data));
    Admin__MetricValue *value = tierce__api_alloc(l->api, 1, sizeof(*value));
    l->failed = l->failed || data == NULL || value == NULL || !make_room(l);
    if (l->failed)
        return;
    admin__metrics_data__init(data);
    admin__metric_value__init(value);
    value->value_case = metric->is_counter ? ADMIN__METRIC_VALUE__VALUE_INT_VALUE
                                           : ADMIN__METRIC_VALUE__VALUE_FLOAT_VALUE;
    if (metric->is_counter)
        value->int_value = (int64_t)metric->value;
    else
        value->float_value = metric->value;
    data->metric_name = keep(l, metric->name);
    data->metric_value = value;
    l->failed = !put_tags(l, data, metric) || l->failed;
    TIERCE_ASSERT(l->failed || l->reply->n_metrics < l->room);
    if (!l->failed)
        l->reply->metrics[l->reply->n_metrics++] = data;
}

static void get_metrics(struct tierce__api_call *api)
{
    Admin__GetMetricsResponse *reply = (Admin__GetMetricsResponse *)api->reply;
    struct cluster_listing listing = {.api = api, .reply = reply};
    tierce__metrics_each(api->manager, api->caller->grant, put_metric, &listing);
    if (listing.failed) {
        reply->n_metrics = 0;
        tierce__api_fail(api, -ENOMEM, "get metrics");
        return;
    }
    TIERCE_ASSERT(reply->n_metrics <= listing.room);
    reply->timestamp = tierce__manager_now_us(api->manager);
    tierce__api_say(api, OK, "Metrics retrieved successfully");
}

/* ---- leadership ------------------------------------------------------------------------------ */

static void check_health(struct tierce__api_call *api)
{
    enum { LOOP_AGE_MS_MAX = 30000 };
    Admin__CheckHealthResponse *reply = (Admin__CheckHealthResponse *)api->reply;
    struct tierce__elector_state state;
    tierce__elector_state(api->manager->elector, &state);
    reply->is_leader = tierce__manager_leads(api->manager);
    reply->is_health = state.loop_age_ms < LOOP_AGE_MS_MAX;
    reply->elector_last_loop_time_ms =
        tierce__manager_now_us(api->manager) / 1000 - (int64_t)state.loop_age_ms;
    tierce__api_say(api, OK, "%s", "");
}

static void get_manager_cluster_info(struct tierce__api_call *api)
{
    Admin__GetManagerClusterInfoResponse *reply =
        (Admin__GetManagerClusterInfoResponse *)api->reply;
    struct tierce__elector_state state;
    struct cluster_listing listing = {.api = api};
    char trouble[256];
    tierce__elector_state(api->manager->elector, &state);
    char *self = keep(&listing, api->manager->node_id), *leader = keep(&listing, state.leader);
    if (listing.failed) {
        tierce__api_fail(api, -ENOMEM, "get manager cluster info");
        return;
    }
    reply->info_updated_time = tierce__manager_now_us(api->manager);
    reply->self_leader_expiration_time = state.leads ? state.lease_until_us : 0;
    reply->self_node_id = self;
    reply->leader_node_id = leader;
    tierce__manager_trouble(api->manager, trouble);
    tierce__api_say(api, OK, "%s%s", trouble[0] != '\0' ? "it cannot lead: " : "", trouble);
}

static void leader_demote(struct tierce__api_call *api)
{
    tierce__elector_demote(api->manager->elector);
    tierce__api_say(api, OK, "Leader demoted successfully");
}

static void get_leader_elector_config(struct tierce__api_call *api)
{
    Admin__GetLeaderElectorConfigResponse *reply =
        (Admin__GetLeaderElectorConfigResponse *)api->reply;
    reply->campaign_delay_time_ms = tierce__elector_campaign_delay(api->manager->elector);
    tierce__api_say(api, OK, "%s", "");
}

static void update_leader_elector_config(struct tierce__api_call *api)
{
    const Admin__UpdateLeaderElectorConfigRequest *request =
        (const Admin__UpdateLeaderElectorConfigRequest *)api->request;
    if (request->campaign_delay_time_ms < 0) {
        tierce__api_invalid(api, "campaign_delay_time_ms");
        return;
    }
    tierce__elector_set_campaign_delay(api->manager->elector, request->campaign_delay_time_ms);
    tierce__api_say(api, OK, "Leader elector config updated successfully");
}

/* ---- logging --------------------------------------------------------------------------------- */

static void update_logger(struct tierce__api_call *api)
{
    static const struct {
        const char *name, *number;
        enum tierce_log_level level;
    } levels[] = {
        {"fatal", "1", TIERCE_LOG_ERROR}, {"error", "2", TIERCE_LOG_ERROR},
        {"warn", "3", TIERCE_LOG_WARN},   {"info", "4", TIERCE_LOG_INFO},
        {"debug", "5", TIERCE_LOG_DEBUG}, {"warning", "3", TIERCE_LOG_WARN},
    };
    const Admin__UpdateLoggerRequest *request = (const Admin__UpdateLoggerRequest *)api->request;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcasecmp(request->log_level, levels[i].name) != 0 &&
            strcmp(request->log_level, levels[i].number) != 0)
            continue;
        tierce__manager_set_log_level(api->manager, levels[i].level);
        tierce__api_say(api, OK, "Logger updated successfully");
        return;
    }
    tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                    "log_level is \"%.40s\"; accepted are fatal, error, warn, info and debug",
                    request->log_level);
}

const struct tierce__api_row tierce__api_cluster_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_admin_get_metrics] = {get_metrics, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_check_health] = {check_health, TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_get_manager_cluster_info] = {get_manager_cluster_info,
                                                    TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_leader_demote] = {leader_demote, TIERCE__API_WAITS},
    [TIERCE__RPC_admin_get_leader_elector_config] = {get_leader_elector_config,
                                                     TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_update_leader_elector_config] = {update_leader_elector_config,
                                                        TIERCE__API_NEVER_WAITS},
    [TIERCE__RPC_admin_update_logger] = {update_logger, TIERCE__API_NEVER_WAITS},
};
