/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "manager/api/api_model.h"
#include "manager/api/api_private.h"
#include "manager/storage/nodes.h"

#include <errno.h>
#include <string.h>

/* Nodes that lend memory and disks to the fleet: their call, and their parts in the answers of
 * others. */

static uint64_t not_negative(int64_t value)
{
    return value > 0 ? (uint64_t)value : 0;
}

/* NULL: a part is invalid, or there is no memory; the status says so. */
static struct tierce__node_part *read_parts(struct tierce__api_call *api,
                                            const Meta__RegisterNodeRequest *request)
{
    enum { PARTS_MAX = 2 };
    if (request->n_parts > PARTS_MAX ||
        (request->n_parts == PARTS_MAX && request->parts[0]->medium == request->parts[1]->medium)) {
        tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                        "parts: %zu entries; accepted is one for each medium", request->n_parts);
        return NULL;
    }
    struct tierce__node_part *parts = tierce__api_alloc(api, request->n_parts + 1, sizeof(*parts));
    for (size_t i = 0; parts != NULL && i < request->n_parts; i++) {
        const Meta__NodePart *sent = request->parts[i];
        if (sent->medium != META__NODE_MEDIUM__NM_MEMORY &&
            sent->medium != META__NODE_MEDIUM__NM_DISK) {
            tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                            "parts: medium is %d; accepted are 1 (NM_MEMORY) and 2 (NM_DISK)",
                            (int)sent->medium);
            return NULL;
        }
        parts[i] = (struct tierce__node_part){
            .is_disk = sent->medium == META__NODE_MEDIUM__NM_DISK,
            .incarnation = tierce__api_string(sent->incarnation),
            .capacity_bytes = not_negative(sent->capacity_bytes),
            .used_bytes = not_negative(sent->used_bytes),
            .object_count = not_negative(sent->object_count),
        };
    }
    return parts;
}

static bool show_part(struct tierce__api_call *api, Meta__RegisterNodeResponse *reply,
                      Meta__NodeMedium medium, const struct tierce__node_answer *answer)
{
    Meta__RegisteredPart *part =
        (Meta__RegisteredPart *)tierce__proto_add(api->reply, &meta__registered_part__descriptor);
    if (part == NULL)
        return false;
    part->medium = medium;
    part->state = (Meta__NodePartState)answer->state;
    part->storage = tierce__api_copy(api, answer->storage, strlen(answer->storage));
    part->reason = tierce__api_copy(api, answer->reason, strlen(answer->reason));
    reply->parts[reply->n_parts++] = part;
    return part->storage != NULL && part->reason != NULL;
}

static void register_node(struct tierce__api_call *api)
{
    const Meta__RegisterNodeRequest *request = (const Meta__RegisterNodeRequest *)api->request;
    Meta__RegisterNodeResponse *reply = (Meta__RegisterNodeResponse *)api->reply;
    struct tierce__nodes *nodes = api->manager->nodes;
    struct tierce__node_part *parts = read_parts(api, request);
    if (parts == NULL)
        return;
    struct tierce__node_answer *answers =
        tierce__api_alloc(api, request->n_parts + 1, sizeof(*answers));
    reply->parts = tierce__api_alloc(api, request->n_parts + 1, sizeof(Meta__RegisteredPart *));
    if (answers == NULL || reply->parts == NULL)
        return;
    tierce__nodes_register(nodes,
                           &(struct tierce__node_report){
                               .node = tierce__api_string(request->node),
                               .pool = tierce__api_string(request->pool),
                               .address = tierce__api_string(request->address),
                               .version = tierce__api_string(request->version),
                               .host_id = tierce__api_string(request->host_id),
                               .uses_tls = request->uses_tls,
                               .is_leaving = request->is_leaving,
                               .load_bytes_per_s = not_negative(request->load_bytes_per_s),
                               .parts = parts,
                               .part_count = request->n_parts,
                           },
                           answers);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < request->n_parts; i++)
        rc = show_part(api, reply, request->parts[i]->medium, &answers[i]) ? 0 : -ENOMEM;
    reply->lease_ms = tierce__nodes_lease_ms(nodes);
    tierce__api_end(api, rc, "register node", "Node registered");
}

const struct tierce__api_row tierce__api_node_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_meta_register_node] = {register_node, TIERCE__API_WAITS, {"node", "pool"}},
};

/* ---- in other answers ------------------------------------------------------------------------ */

bool tierce__api_show_node(struct tierce__api_call *api, const struct tierce__storage *storage,
                           Admin__TierceStorageSpec *out)
{
    struct tierce__node_seen seen;
    const char *address = strstr(storage->uri, "://");
    address = address != NULL ? address + strlen("://") : storage->uri;
    out->nodes = tierce__api_alloc(api, 1, sizeof(char *));
    if (out->nodes == NULL)
        return false;
    out->nodes[0] = tierce__api_copy(api, address, strcspn(address, "/?"));
    out->n_nodes = out->nodes[0] != NULL;
    out->pool = tierce__api_copy(api, storage->pool, strlen(storage->pool));
    out->node = tierce__api_copy(api, storage->node, strlen(storage->node));
    out->medium = tierce__api_copy(api, storage->medium, strlen(storage->medium));
    out->incarnation = tierce__api_copy(api, storage->incarnation, strlen(storage->incarnation));
    out->host_id = tierce__api_copy(api, storage->host_id, strlen(storage->host_id));
    out->is_emptying = storage->contents != TIERCE__CONTENTS_KEPT;
    bool is_seen = tierce__nodes_seen(api->manager->nodes, storage->number, &seen);
    out->version = tierce__api_copy(api, seen.version, strlen(seen.version));
    if (is_seen) {
        out->heard_ms = seen.heard_ms;
        out->used_bytes = (int64_t)seen.used_bytes;
        out->object_count = (int64_t)seen.object_count;
        out->load_bytes_per_s = (int64_t)seen.load_bytes_per_s;
    }
    return out->nodes[0] != NULL && out->pool != NULL && out->node != NULL && out->medium != NULL &&
           out->incarnation != NULL && out->host_id != NULL && out->version != NULL;
}
