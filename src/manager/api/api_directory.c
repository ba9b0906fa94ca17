/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/text/url.h"
#include "manager/api/api_directory.h"
#include "manager/holdings/holdings.h"
#include "manager/holdings/worker_commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The directory of the chunks that workers hold: workers' calls, and lookups. */

enum { CHANGES_MAX = 4096, EVICTED = 8, FIND_SHORT = 512, ADDRESSES_MAX = 4 };

#define INVALID_ARGUMENT META__ERROR_CODE__INVALID_ARGUMENT

struct tierce__directory *tierce__api_directory_of(const struct tierce__api_call *api)
{
    return tierce__holdings_directory(api->manager->holdings);
}

const char *tierce__api_group_of(const struct tierce__api_call *api, const char *named)
{
    const char *group = tierce__api_string(named);
    return group[0] == '\0' && api->caller->grant != NULL &&
                   api->caller->grant->reach == TIERCE__REACH_GROUP
               ? api->caller->grant->group
               : group;
}

/* The worker that a request names, if it is of the group. Zeroes: unknown, as one of another group
 * is. */
static struct tierce__directory_id worker_of(const struct tierce__api_call *api, const char *group,
                                             int64_t session, int32_t slot)
{
    struct tierce__directory_id id = {(uint64_t)session, (uint32_t)slot};
    return tierce__directory_is_of(tierce__api_directory_of(api), id, group)
               ? id
               : (struct tierce__directory_id){0};
}

/* Two numbers for each key. False: the status says why. */
static bool are_keys(struct tierce__api_call *api, size_t numbers, size_t chunks_max)
{
    if (numbers % 2 == 0 && numbers / 2 <= chunks_max) {
        api->keys += numbers / 2;
        return true;
    }
    tierce__api_say(api, INVALID_ARGUMENT,
                    "keys: %zu numbers; accepted are two for each chunk, and at most %zu chunks",
                    numbers, chunks_max);
    return false;
}

static struct tierce__directory_key key_at(const int64_t *keys, size_t i)
{
    return (struct tierce__directory_key){(uint64_t)keys[2 * i], (uint64_t)keys[2 * i + 1]};
}

struct tierce__directory_key *tierce__api_read_chunk_keys(struct tierce__api_call *api,
                                                          const int64_t *keys, size_t numbers,
                                                          size_t chunks_max)
{
    if (!are_keys(api, numbers, chunks_max))
        return NULL;
    struct tierce__directory_key *out = tierce__api_alloc(api, numbers / 2 + 1, sizeof(*out));
    for (size_t i = 0; out != NULL && i < numbers / 2; i++)
        out[i] = key_at(keys, i);
    return out;
}

/* ---- workers' calls -------------------------------------------------------------------------- */

/* HOST:PORT for each of up to ADDRESSES_MAX network links, separated by commas; or nothing. */
static bool is_address(const char *text)
{
    char url[TIERCE__DIRECTORY_NAME_BYTES + 16], why[TIERCE__URL_WHY_BYTES];
    struct tierce__url parsed = {0};
    if (text[0] == '\0')
        return true;
    int length = snprintf(url, sizeof(url), "transfer://%s", text);
    if (length < 0 || (size_t)length >= sizeof(url) || tierce__url_parse(&parsed, url, why) < 0)
        return false;
    bool are_all = parsed.host_count >= 1 && parsed.host_count <= ADDRESSES_MAX &&
                   parsed.path[0] == '\0' && parsed.user == NULL && parsed.param_count == 0;
    for (size_t i = 0; are_all && i < parsed.host_count; i++)
        are_all = parsed.hosts[i].port > 0 && parsed.hosts[i].name[0] != '\0';
    tierce__url_clear(&parsed);
    return are_all;
}

/* The answer of JoinDirectory: session, slot, silence, and the secret of the group. */
static void show_joined(struct tierce__api_call *api, const char *group,
                        struct tierce__directory_id id)
{
    Meta__JoinDirectoryResponse *reply = (Meta__JoinDirectoryResponse *)api->reply;
    struct tierce__holdings *holdings = api->manager->holdings;
    reply->session = (int64_t)id.session;
    reply->slot = (int32_t)id.slot;
    reply->silence_ms = tierce__holdings_silence_ms(holdings);
    reply->changes_max = CHANGES_MAX;
    reply->secret = tierce__api_alloc(api, TIERCE__HOLDINGS_SECRET_BYTES, 1);
    if (reply->secret == NULL)
        return;
    tierce__holdings_secret(holdings, group, reply->secret);
    tierce__api_end(api, 0, "join directory", "Worker joined");
}

static void join_directory(struct tierce__api_call *api)
{
    const Meta__JoinDirectoryRequest *request = (const Meta__JoinDirectoryRequest *)api->request;
    struct tierce__directory_worker worker = {
        .group = tierce__api_group_of(api, request->instance_group),
        .name = tierce__api_string(request->worker),
        .address = tierce__api_string(request->transfer_address),
        .host = tierce__api_string(request->host_id),
        .takes_commands = request->takes_commands,
        .uses_tls = request->transfer_tls,
        .zone = tierce__api_string(request->zone),
        .owner = tierce__grant_has_all(api->caller->grant) ? api->caller->name : "",
    };
    struct tierce__directory_id id = {0};
    if (!is_address(worker.address)) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "transfer_address is '%.128s'; accepted are up to %d HOST:PORT separated "
                        "by commas, of fewer than %u bytes together, and nothing for a worker that "
                        "serves nobody",
                        worker.address, ADDRESSES_MAX, TIERCE__DIRECTORY_NAME_BYTES);
        return;
    }
    int rc = tierce__directory_join(tierce__api_directory_of(api), &worker, tierce__now_ns(), &id);
    if (rc == TIERCE_E_ARGUMENT) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "instance_group or worker is longer than %u bytes, host_id longer than %u, "
                        "or zone invalid; accepted are " TIERCE__ZONE_ACCEPTED,
                        TIERCE__DIRECTORY_NAME_BYTES - 1, TIERCE__DIRECTORY_HOST_BYTES - 1);
        return;
    }
    if (rc == TIERCE_E_FULL) {
        tierce__api_say(api, META__ERROR_CODE__REACH_MAX_ENTITY_CAPACITY,
                        "the group, or the account, has its share of the directory's workers "
                        "(directory.share)");
        return;
    }
    if (rc == TIERCE_E_LIMIT) {
        tierce__api_say(api, META__ERROR_CODE__REACH_MAX_ENTITY_CAPACITY,
                        "the directory has its limit of workers (directory.workers)");
        return;
    }
    if (rc == 0)
        show_joined(api, worker.group, id);
    else
        tierce__api_end(api, rc, "join directory", "");
}

/* NULL: the status says why. */
static struct tierce__directory_change *read_changes(struct tierce__api_call *api,
                                                     const Meta__ReportChunksRequest *request)
{
    if (!are_keys(api, request->n_keys, CHANGES_MAX))
        return NULL;
    size_t count = request->n_keys / 2;
    if (request->n_tiers != count) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "tiers: %zu numbers for %zu chunks; accepted is one for each",
                        request->n_tiers, count);
        return NULL;
    }
    struct tierce__directory_change *changes =
        tierce__api_alloc(api, count + 1, sizeof(struct tierce__directory_change));
    for (size_t i = 0; changes != NULL && i < count; i++) {
        int32_t tier = request->tiers[i];
        if (tier < 0 || tier >= 2 * EVICTED ||
            (tier >= EVICTED && request->kind != META__REPORT_KIND__RK_CHANGES)) {
            tierce__api_say(api, INVALID_ARGUMENT,
                            "tiers: %d; accepted are 0 to %d, and in RK_CHANGES %d to %d for "
                            "evictions",
                            (int)tier, EVICTED - 1, EVICTED, 2 * EVICTED - 1);
            return NULL;
        }
        changes[i] = (struct tierce__directory_change){.key = key_at(request->keys, i),
                                                       .tier = (uint8_t)(tier % EVICTED),
                                                       .admitted = tier < EVICTED};
    }
    return changes;
}

static enum tierce__directory_answer take_report(struct tierce__api_call *api,
                                                 const Meta__ReportChunksRequest *request,
                                                 struct tierce__directory_id id,
                                                 const struct tierce__directory_change *changes,
                                                 uint32_t *wait_ms)
{
    struct tierce__holdings *holdings = api->manager->holdings;
    uint64_t now_ns = tierce__now_ns(), first = (uint64_t)request->first;
    uint64_t sending = (uint64_t)request->sending;
    size_t count = request->n_keys / 2;
    switch (request->kind) {
    case META__REPORT_KIND__RK_BEGIN:
        return tierce__holdings_begin(holdings, id, sending, now_ns, wait_ms);
    case META__REPORT_KIND__RK_CONTENTS:
        return tierce__holdings_add(holdings, id, sending, changes, count, now_ns);
    case META__REPORT_KIND__RK_END:
        return tierce__holdings_end(holdings, id, sending, first, now_ns);
    case META__REPORT_KIND__RK_CHANGES:
    default:
        return tierce__directory_report(tierce__api_directory_of(api), id, first, changes, count,
                                        now_ns);
    }
}

static Meta__ReportAnswer answer_of(enum tierce__directory_answer answer)
{
    switch (answer) {
    case TIERCE__DIRECTORY_DONE:
        return META__REPORT_ANSWER__RA_DONE;
    case TIERCE__DIRECTORY_RESYNC:
        return META__REPORT_ANSWER__RA_RESYNC;
    case TIERCE__DIRECTORY_LATER:
        return META__REPORT_ANSWER__RA_LATER;
    case TIERCE__DIRECTORY_UNKNOWN:
        break;
    }
    return META__REPORT_ANSWER__RA_UNKNOWN;
}

/* Whether kind and numbers fit. False: the status says why they do not. */
static bool is_report(struct tierce__api_call *api, const Meta__ReportChunksRequest *request)
{
    bool is_first = request->kind == META__REPORT_KIND__RK_CHANGES ||
                    request->kind == META__REPORT_KIND__RK_END;
    bool has_keys = request->kind == META__REPORT_KIND__RK_CHANGES ||
                    request->kind == META__REPORT_KIND__RK_CONTENTS;
    if (request->kind < META__REPORT_KIND__RK_CHANGES ||
        request->kind > META__REPORT_KIND__RK_END) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "kind is %d; accepted are 0 (RK_CHANGES) to 3 (RK_END)",
                        (int)request->kind);
        return false;
    }
    if (request->n_results > TIERCE__WORKER_COMMANDS_OPEN) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "results: %zu; accepted are at most %u in a report, as many as a worker "
                        "can have commands",
                        request->n_results, TIERCE__WORKER_COMMANDS_OPEN);
        return false;
    }
    if (is_first && request->first < 0) {
        tierce__api_say(api, INVALID_ARGUMENT, "first is negative");
        return false;
    }
    if (request->kind != META__REPORT_KIND__RK_CHANGES && request->sending < 1) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "sending is %lld; accepted are 1 and above, and a later sending of the "
                        "contents has a larger number",
                        (long long)request->sending);
        return false;
    }
    if (!has_keys && (request->n_keys > 0 || request->n_tiers > 0)) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "keys: %zu numbers; accepted are none in RK_BEGIN and RK_END, because "
                        "RK_CONTENTS has them",
                        request->n_keys);
        return false;
    }
    return true;
}

static void take_models(struct tierce__api_call *api, const Meta__ReportChunksRequest *request,
                        struct tierce__directory_id id)
{
    const char *models = tierce__api_string(request->models);
    if (models[0] != '\0')
        tierce__directory_set_models(tierce__api_directory_of(api), id, models);
}

static void report_chunks(struct tierce__api_call *api)
{
    const Meta__ReportChunksRequest *request = (const Meta__ReportChunksRequest *)api->request;
    Meta__ReportChunksResponse *reply = (Meta__ReportChunksResponse *)api->reply;
    if (!is_report(api, request))
        return;
    const struct tierce__directory_change *changes = read_changes(api, request);
    if (changes == NULL)
        return;
    struct tierce__directory_id id = worker_of(
        api, tierce__api_group_of(api, request->instance_group), request->session, request->slot);
    uint32_t load = request->load < 0            ? 0
                    : request->load > UINT32_MAX ? UINT32_MAX
                                                 : (uint32_t)request->load;
    uint32_t wait_ms = 0;
    enum tierce__directory_answer answer =
        tierce__directory_beat(tierce__api_directory_of(api), id, load, tierce__now_ns());
    if (answer != TIERCE__DIRECTORY_UNKNOWN) {
        answer = take_report(api, request, id, changes, &wait_ms);
        take_models(api, request, id);
        tierce__api_exchange_commands(api, id);
    }
    reply->answer = answer_of(answer);
    reply->wait_ms = wait_ms;
    tierce__api_end(api, 0, "report chunks", "Report answered");
}

static void leave_directory(struct tierce__api_call *api)
{
    const Meta__LeaveDirectoryRequest *request = (const Meta__LeaveDirectoryRequest *)api->request;
    struct tierce__directory_id id = worker_of(
        api, tierce__api_group_of(api, request->instance_group), request->session, request->slot);
    (void)tierce__directory_leave(tierce__api_directory_of(api), id);
    tierce__api_end(api, 0, "leave directory", "Worker left");
}

/* ---- lookups --------------------------------------------------------------------------------- */

static char *text(struct tierce__api_call *api, const char *from)
{
    return tierce__api_copy(api, from, strlen(from));
}

/* False: no memory. A worker that has left meanwhile is not shown. */
static bool show_prefix(struct tierce__api_call *api, Meta__FindChunksResponse *reply,
                        const struct tierce__directory_prefix *prefix)
{
    struct tierce__directory_who who;
    if (!tierce__directory_who(tierce__api_directory_of(api), prefix->worker, &who))
        return true;
    Meta__HeldPrefix *out =
        (Meta__HeldPrefix *)tierce__proto_add(api->reply, &meta__held_prefix__descriptor);
    if (out == NULL)
        return false;
    reply->prefixes[reply->n_prefixes++] = out;
    out->worker = text(api, who.name);
    out->transfer_address = text(api, who.address);
    out->host_id = text(api, who.host);
    out->keys = (int32_t)prefix->keys;
    out->load = prefix->load;
    out->same_host = prefix->distance == 0;
    out->distance = (int32_t)prefix->distance;
    out->is_incomplete = prefix->is_incomplete;
    out->transfer_tls = who.uses_tls;
    out->in_tier = tierce__api_alloc(api, TIERCE__DIRECTORY_TIERS_MAX, sizeof(int32_t));
    if (out->in_tier == NULL)
        return false;
    out->n_in_tier = TIERCE__DIRECTORY_TIERS_MAX;
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_TIERS_MAX; i++)
        out->in_tier[i] = (int32_t)prefix->in_tier[i];
    return out->worker != NULL && out->transfer_address != NULL && out->host_id != NULL;
}

/* Runs end before a worker that has left meanwhile. */
static bool show_run(struct tierce__api_call *api, Meta__FindChunksResponse *reply,
                     const struct tierce__directory_run *run, bool *is_over)
{
    struct tierce__directory_who who;
    *is_over = !tierce__directory_who(tierce__api_directory_of(api), run->worker, &who);
    if (*is_over)
        return true;
    Meta__ReadRun *out =
        (Meta__ReadRun *)tierce__proto_add(api->reply, &meta__read_run__descriptor);
    if (out == NULL)
        return false;
    reply->runs[reply->n_runs++] = out;
    out->worker = text(api, who.name);
    out->transfer_address = text(api, who.address);
    out->first = (int32_t)run->first;
    out->keys = (int32_t)run->keys;
    out->slowest_tier = run->slowest;
    out->load = run->load;
    out->same_host = run->distance == 0;
    out->distance = (int32_t)run->distance;
    out->transfer_tls = who.uses_tls;
    return out->worker != NULL && out->transfer_address != NULL;
}

static int show_found(struct tierce__api_call *api, const struct tierce__directory_found *found)
{
    Meta__FindChunksResponse *reply = (Meta__FindChunksResponse *)api->reply;
    reply->prefixes = tierce__api_alloc(api, found->prefix_count + 1, sizeof(*reply->prefixes));
    reply->runs = tierce__api_alloc(api, found->run_count + 1, sizeof(*reply->runs));
    bool is_shown = reply->prefixes != NULL && reply->runs != NULL, is_over = false;
    for (uint32_t i = 0; is_shown && i < found->prefix_count; i++)
        is_shown = show_prefix(api, reply, &found->prefixes[i]);
    for (uint32_t i = 0; is_shown && !is_over && i < found->run_count; i++)
        is_shown = show_run(api, reply, &found->runs[i], &is_over);
    return is_shown ? 0 : -ENOMEM;
}

bool tierce__api_find_is_long(const struct tierce__api_call *api)
{
    return ((const Meta__FindChunksRequest *)api->request)->n_keys / 2 > FIND_SHORT;
}

static void find_chunks(struct tierce__api_call *api)
{
    const Meta__FindChunksRequest *request = (const Meta__FindChunksRequest *)api->request;
    size_t count = request->n_keys / 2;
    const struct tierce__directory_key *keys =
        tierce__api_read_chunk_keys(api, request->keys, request->n_keys, CHANGES_MAX);
    struct tierce__directory_found *found =
        keys != NULL ? tierce__api_alloc(api, 1, sizeof(*found)) : NULL;
    if (found == NULL)
        return;
    struct tierce__directory_asker asker = {
        .group = tierce__api_group_of(api, request->instance_group),
        .host = tierce__api_string(request->host_id),
        .exclude = {(uint64_t)request->session, (uint32_t)request->slot},
        .zone = tierce__api_string(request->zone),
    };
    int rc = tierce__directory_find(tierce__api_directory_of(api), keys, count, &asker, found);
    if (rc == TIERCE_E_ARGUMENT) {
        tierce__api_say(api, INVALID_ARGUMENT,
                        "zone is '%.128s'; accepted are " TIERCE__ZONE_ACCEPTED, asker.zone);
        return;
    }
    if (rc == 0)
        rc = show_found(api, found);
    tierce__api_end(api, rc, "find chunks", "Find chunks success");
}

/* ---- all workers ----------------------------------------------------------------------------- */

static bool show_worker(struct tierce__api_call *api, Meta__ListWorkersResponse *reply,
                        const struct tierce__directory_about *about)
{
    uint64_t now_ns = tierce__now_ns();
    Meta__DirectoryWorker *out =
        (Meta__DirectoryWorker *)tierce__proto_add(api->reply, &meta__directory_worker__descriptor);
    if (out == NULL)
        return false;
    reply->workers[reply->n_workers++] = out;
    out->worker = text(api, about->name);
    out->instance_group = text(api, about->group);
    out->transfer_address = text(api, about->address);
    out->host_id = text(api, about->host);
    out->keys = (int64_t)about->keys;
    out->heard_ms = now_ns > about->seen_ns ? (int64_t)((now_ns - about->seen_ns) / 1000000) : 0;
    out->gaps = (int64_t)about->gaps;
    out->left_out = (int64_t)about->left_out;
    out->load = about->load;
    out->is_complete = about->is_whole;
    out->takes_commands = about->takes_commands;
    out->transfer_tls = about->uses_tls;
    out->models = text(api, about->models);
    out->zone = text(api, about->zone);
    out->tier_keys = tierce__api_alloc(api, TIERCE__DIRECTORY_TIERS_MAX, sizeof(*out->tier_keys));
    if (out->tier_keys == NULL)
        return false;
    for (uint32_t i = 0; i < TIERCE__DIRECTORY_TIERS_MAX; i++)
        out->tier_keys[out->n_tier_keys++] = (int64_t)about->tier_keys[i];
    return out->worker != NULL && out->instance_group != NULL && out->transfer_address != NULL &&
           out->host_id != NULL && out->models != NULL && out->zone != NULL;
}

static void list_workers(struct tierce__api_call *api)
{
    const Meta__ListWorkersRequest *request = (const Meta__ListWorkersRequest *)api->request;
    Meta__ListWorkersResponse *reply = (Meta__ListWorkersResponse *)api->reply;
    const char *group = tierce__api_group_of(api, request->instance_group);
    struct tierce__directory_stats stats;
    struct tierce__directory_about about;
    tierce__directory_stats(tierce__api_directory_of(api), &stats);
    /* Workers that join meanwhile are perhaps not shown. */
    size_t room = stats.workers;
    reply->workers = tierce__api_alloc(api, room + 1, sizeof(*reply->workers));
    if (reply->workers == NULL)
        return;
    int rc = 0;
    for (uint32_t from = 0; rc == 0 && reply->n_workers < room &&
                            tierce__directory_next(tierce__api_directory_of(api), &from, &about);) {
        if (group[0] == '\0' || strcmp(group, about.group) == 0)
            rc = show_worker(api, reply, &about) ? 0 : -ENOMEM;
    }
    tierce__api_end(api, rc, "list workers", "List workers success");
}

const struct tierce__api_row tierce__api_directory_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_meta_join_directory] = {join_directory, TIERCE__API_NEVER_WAITS, {"worker"}},
    [TIERCE__RPC_meta_report_chunks] = {report_chunks, TIERCE__API_NEVER_WAITS, {NULL}},
    [TIERCE__RPC_meta_leave_directory] = {leave_directory, TIERCE__API_NEVER_WAITS, {NULL}},
    [TIERCE__RPC_meta_find_chunks] = {find_chunks, TIERCE__API_WAITS_IF_LONG, {NULL}},
    [TIERCE__RPC_meta_list_workers] = {list_workers, TIERCE__API_WAITS, {NULL}},
};
