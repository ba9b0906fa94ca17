/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deletions, and reports of places without their block.
 *
 * - A place without the object: ReportCache. The manager drops the location if it still has this
 * place. A folder with a mark is asked for its mark before.
 * - DELETE for a wrong checksum or identity: the same.
 * - Any other DELETE: RemoveCache. A block of several ranks has locations of the others too:
 * GetCacheMeta tells ours, and ReportCache drops it.
 *
 * A manager without ReportCache can only remove whole blocks: then GetCacheMeta tells whether a
 * wrong place is still the same, and the block is removed, because without this part the others
 * serve no reader. Between the two calls another engine may store the block; it is then stored once
 * more. Other deletions of a block that has other ranks' specs are TIERCE_E_UNSUPPORTED there.
 */
#include "base/alloc.h"
#include "store/remote/fleet/fleet_requests.h"
#include "store/remote/fleet/storage_at.h"

#include <errno.h>
#include <string.h>

#define REPORTS_MAX 64u
#define REPORT_MS   5000u

struct fleet_report {
    struct tierce__list node;
    struct tierce__fleet *fleet;
    struct tierce__fleet_part *part;
    int64_t key;
    struct tierce__store_req *req; /* the DELETE; NULL: none, or it was answered */
    Meta__ReportReason reason;     /* RR_RETRACTED: nothing is wrong with the place */
    struct tierce__fleet_wait wait;
    struct tierce__fleet_call call;
    struct tierce__fleet_io io; /* the question for the mark */
    char uri[];                 /* of the wrong place; "": not known */
};

static struct fleet_report *make_report(struct tierce__fleet *fleet,
                                        struct tierce__fleet_part *part, int64_t key,
                                        const char *uri)
{
    size_t bytes = strlen(uri) + 1;
    struct fleet_report *report = tierce__calloc(1, sizeof(*report) + bytes);
    if (report == NULL)
        return NULL;
    report->fleet = fleet;
    report->part = part;
    report->key = key;
    report->call.arg = report->wait.arg = report;
    report->call.deadline_ns = tierce__deadline_in_ms(REPORT_MS);
    memcpy(report->uri, uri, bytes);
    tierce__list_init(&report->node);
    tierce__list_push_back(&fleet->reports, &report->node);
    fleet->report_count++;
    return report;
}

static void end(struct fleet_report *report, int status)
{
    struct tierce__fleet *fleet = report->fleet;
    struct tierce__store_req *req = report->req;
    TIERCE_ASSERT(fleet->report_count > 0);
    fleet->report_count--;
    tierce__list_remove(&report->node);
    tierce__proto_free(report->call.reply);
    tierce__free(report);
    if (req != NULL)
        tierce__fleet_answer(fleet, req, status);
}

static void send(struct fleet_report *report, const char *method, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *answers)
{
    report->call.method = method;
    report->call.request = request;
    report->call.answers = answers;
    report->call.repeats = true; /* removing twice is harmless */
    tierce__fleet_manager_start(report->fleet->manager, &report->call);
}

static int failed(struct fleet_report *report)
{
    int status = report->call.status;
    if (status == TIERCE_E_MISS) { /* without an instance there is no block */
        tierce__fleet_part_outdated(report->part);
        return 0;
    }
    return tierce__fleet_call_failed(report->fleet, &report->call);
}

static void has_removed(struct tierce__fleet_call *call)
{
    struct fleet_report *report = call->arg;
    int status = call->status < 0 ? failed(report) : 0;
    /* A lookup or get may have learnt the place meanwhile. */
    tierce__fleet_places_forget(report->fleet->places, report->part, report->key);
    end(report, status);
}

static void remove_block(struct fleet_report *report)
{
    Meta__RemoveCacheRequest request = META__REMOVE_CACHE_REQUEST__INIT;
    request.instance_id = report->part->instance;
    request.block_keys = &report->key;
    request.n_block_keys = 1;
    report->call.done = has_removed;
    send(report, "RemoveCache", &request.base, &meta__common_response__descriptor);
}

static bool is_wrong(const struct fleet_report *report)
{
    return report->reason != META__REPORT_REASON__RR_RETRACTED;
}

static void look(struct fleet_report *report);

static void has_reported(struct tierce__fleet_call *call)
{
    struct fleet_report *report = call->arg;
    if (call->status == TIERCE_E_UNSUPPORTED) {
        report->fleet->cannot_report = true;
        look(report);
        return;
    }
    int status = call->status < 0 ? failed(report) : 0;
    tierce__fleet_places_forget(report->fleet->places, report->part, report->key);
    end(report, status);
}

static void report_place(struct fleet_report *report, const char *uri)
{
    Meta__ReportedLocation location = META__REPORTED_LOCATION__INIT, *list[] = {&location};
    Meta__ReportCacheRequest request = META__REPORT_CACHE_REQUEST__INIT;
    location.block_key = report->key;
    location.location_spec_name = report->part->spec;
    location.uri = (char *)(uintptr_t)uri;
    location.reason = report->reason;
    request.instance_id = report->part->instance;
    request.reports = list;
    request.n_reports = 1;
    report->call.done = has_reported;
    send(report, "ReportCache", &request.base, &meta__report_cache_response__descriptor);
}

static size_t count_other_specs(const Meta__CacheLocation *location, const char *spec)
{
    size_t count = 0;
    for (size_t i = 0; i < location->n_location_specs; i++) {
        const Meta__LocationSpec *it = location->location_specs[i];
        count += strcmp(it->name, spec) != 0 && it->uri[0] != '\0';
    }
    return count;
}

static void decide(struct fleet_report *report, const Meta__CacheLocation *location)
{
    const char *uri = tierce__fleet_uri_of(location, report->part->spec);
    bool is_same = uri != NULL && (report->uri[0] == '\0' || strcmp(uri, report->uri) == 0);
    if (uri == NULL || (is_wrong(report) && !is_same)) {
        end(report, 0); /* it was removed or replaced meanwhile */
    } else if (!report->fleet->cannot_report) {
        report_place(report, uri);
    } else if (is_wrong(report) || count_other_specs(location, report->part->spec) == 0) {
        remove_block(report);
    } else {
        tierce__fleet_say(report->fleet, TIERCE__FLEET_TROUBLE_MANAGER,
                          "a chunk's share of one rank cannot be deleted alone: instance %s, %s",
                          report->part->instance, report->part->spec);
        end(report, TIERCE_E_UNSUPPORTED);
    }
}

static void has_looked(struct tierce__fleet_call *call)
{
    struct fleet_report *report = call->arg;
    ProtobufCMessage *reply = call->reply;
    const Meta__GetCacheMetaResponse *meta = (const Meta__GetCacheMetaResponse *)reply;
    call->reply = NULL;
    if (call->status < 0) {
        end(report, failed(report));
    } else if (meta->n_locations != 1) {
        tierce__fleet_say(report->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager answered %zu locations for one block", meta->n_locations);
        end(report, -EPROTO);
    } else {
        decide(report, meta->locations[0]);
    }
    tierce__proto_free(reply);
}

static void look(struct fleet_report *report)
{
    Meta__GetCacheMetaRequest request = META__GET_CACHE_META_REQUEST__INIT;
    request.instance_id = report->part->instance;
    request.block_keys = &report->key;
    request.n_block_keys = 1;
    report->call.done = has_looked;
    send(report, "GetCacheMeta", &request.base, &meta__get_cache_meta_response__descriptor);
}

static void tell_manager(struct fleet_report *report)
{
    if (!is_wrong(report) && !report->part->has_groups)
        remove_block(report);
    else if (is_wrong(report) && report->uri[0] != '\0' && !report->fleet->cannot_report)
        report_place(report, report->uri);
    else
        look(report);
}

void tierce__fleet_report(struct tierce__fleet *fleet, struct tierce__fleet_part *part, int64_t key,
                          const char *uri, Meta__ReportReason reason)
{
    if (fleet->is_closing || fleet->report_count >= REPORTS_MAX)
        return;
    struct fleet_report *report = make_report(fleet, part, key, uri);
    if (report == NULL)
        return;
    report->reason = reason;
    tell_manager(report);
}

/* ---- missing objects ------------------------------------------------------------------------- */

/* Without a mark the folder is not the one that the manager means. */
static void has_seen_mark(struct tierce__fleet_io *io)
{
    struct fleet_report *report = TIERCE__CONTAINER_OF(io, struct fleet_report, io);
    struct tierce__fleet *fleet = report->fleet;
    bool has_mark = io->req.status == 0 && io->req.found > 0;
    if (!fleet->is_closing && has_mark) {
        tell_manager(report);
        return;
    }
    if (!fleet->is_closing && io->req.status == 0) {
        tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_STORAGE,
                          "storage %.64s has lost its mark " TIERCE__STORAGE_MARK
                          "; is its file system mounted? No missing block is reported",
                          tierce__fleet_store_name(io->store));
        tierce__fleet_store_reopen(io->store);
    }
    end(report, 0);
}

void tierce__fleet_report_missing(struct tierce__fleet *fleet, struct tierce__fleet_part *part,
                                  int64_t key, const char *uri, struct tierce__fleet_store *store)
{
    static const struct tierce_plugin_name mark = {.text = TIERCE__STORAGE_MARK,
                                                   .bytes = sizeof(TIERCE__STORAGE_MARK) - 1};
    if (!tierce__fleet_store_is_marked(store)) {
        tierce__fleet_report(fleet, part, key, uri, META__REPORT_REASON__RR_MISSING);
        return;
    }
    if (fleet->is_closing || fleet->report_count >= REPORTS_MAX)
        return;
    struct fleet_report *report = make_report(fleet, part, key, uri);
    if (report == NULL)
        return;
    report->reason = META__REPORT_REASON__RR_MISSING;
    report->io.done = has_seen_mark;
    report->io.req = (struct tierce__store_req){.op = TIERCE__STORE_LOOKUP,
                                                .urgency = TIERCE__CONNECTOR_PEEK,
                                                .deadline_ns = report->call.deadline_ns};
    tierce__fleet_io_begin(fleet, &report->io,
                           &(struct tierce__fleet_place){.store = store, .name = mark});
}

/* ---- deletions ------------------------------------------------------------------------------- */

static void delete_registered(struct tierce__fleet_wait *wait, int status)
{
    struct fleet_report *report = wait->arg;
    if (report->req == NULL)
        end(report, 0);
    else if (status < 0)
        end(report, tierce__fleet_register_failed(report->fleet, report->part, status));
    else
        tell_manager(report);
}

void tierce__fleet_delete(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    struct tierce__fleet_part *part;
    int64_t key;
    int rc = tierce__fleet_find_part(fleet, &part, &key, &req->names[0]);
    const struct tierce__fleet_spot *spot =
        rc == 0 ? tierce__fleet_places_find(fleet->places, part, key) : NULL;
    struct fleet_report *report =
        rc == 0 ? make_report(fleet, part, key, spot != NULL ? spot->uri : "") : NULL;
    if (report == NULL) { /* what is no text of a key is not there */
        tierce__fleet_answer(fleet, req, rc == 0 ? -ENOMEM : rc == TIERCE_E_ARGUMENT ? 0 : rc);
        return;
    }
    tierce__fleet_places_forget(fleet->places, part, key);
    report->req = req;
    report->reason = req->left == TIERCE__LEFT_CHECKSUM   ? META__REPORT_REASON__RR_DAMAGED
                     : req->left == TIERCE__LEFT_IDENTITY ? META__REPORT_REASON__RR_IDENTITY
                                                          : META__REPORT_REASON__RR_RETRACTED;
    report->call.deadline_ns = report->wait.deadline_ns = req->deadline_ns;
    report->wait.done = delete_registered;
    tierce__fleet_register(fleet->parts, part, &report->wait);
}

void tierce__fleet_reports_cancel(struct tierce__fleet *fleet)
{
    TIERCE__LIST_FOR_EACH (it, &fleet->reports) {
        struct fleet_report *report = TIERCE__CONTAINER_OF(it, struct fleet_report, node);
        struct tierce__store_req *req = report->req;
        report->req = NULL;
        if (req != NULL)
            tierce__fleet_answer(fleet, req, TIERCE_E_CANCELLED);
    }
}

void tierce__fleet_reports_free(struct tierce__fleet *fleet)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fleet->reports) {
        struct fleet_report *report = TIERCE__CONTAINER_OF(it, struct fleet_report, node);
        TIERCE_ASSERT(report->req == NULL);
        tierce__list_remove(it);
        tierce__free(report);
    }
}
