/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_private.h"

#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/json/json_write.h"
#include "base/log/log.h"

#include <errno.h>
#include <string.h>

/* Calls of movers, which copy blocks between storages. */

/* ---- batches --------------------------------------------------------------------------------- */

static Meta__BlockMove *show_block(struct tierce__api_call *api, int64_t key,
                                   const struct tierce__found *from, const struct tierce__found *to)
{
    Meta__BlockMove *move = tierce__api_alloc(api, 1, sizeof(*move));
    Meta__MovedPart *parts = tierce__api_alloc(api, to->spec_count + 1, sizeof(*parts));
    Meta__MovedPart **list = tierce__api_alloc(api, to->spec_count + 1, sizeof(Meta__MovedPart *));
    if (move == NULL || parts == NULL || list == NULL)
        return NULL;
    TIERCE_ASSERT(from->spec_count == to->spec_count);
    meta__block_move__init(move);
    move->block_key = key;
    move->parts = list;
    move->n_parts = to->spec_count;
    for (size_t i = 0; i < to->spec_count; i++) {
        meta__moved_part__init(&parts[i]);
        parts[i].location_spec_name = tierce__api_text(to->specs[i].name);
        parts[i].from_uri = tierce__api_text(from->specs[i].uri);
        parts[i].to_uri = tierce__api_text(to->specs[i].uri);
        list[i] = &parts[i];
    }
    return move;
}

static Meta__MoveBatch *show_batch(struct tierce__api_call *api,
                                   const struct tierce__move_batch *batch)
{
    Meta__MoveBatch *shown = tierce__api_alloc(api, 1, sizeof(*shown));
    if (shown == NULL)
        return NULL;
    meta__move_batch__init(shown);
    shown->instance_id = tierce__api_text(batch->instance_id);
    shown->write_session_id = tierce__api_text(batch->session);
    shown->kind = batch->is_copy ? META__MOVE_KIND__MK_COPY : META__MOVE_KIND__MK_MOVE;
    shown->from_storage = tierce__api_text(batch->from_storage);
    shown->to_storage = tierce__api_text(batch->to_storage);
    shown->moves = tierce__api_alloc(api, batch->count + 1, sizeof(Meta__BlockMove *));
    for (size_t i = 0; shown->moves != NULL && i < batch->count; i++) {
        shown->moves[i] = show_block(api, batch->keys[i], &batch->from[i], &batch->to[i]);
        if (shown->moves[i] == NULL)
            return NULL;
        shown->n_moves++;
    }
    return shown->moves != NULL ? shown : NULL;
}

/* Whether a storage is the source or the target of one of the batches. */
static bool is_used(const struct tierce__taken_moves *taken, const char *name)
{
    for (size_t i = 0; i < taken->count; i++) {
        if (strcmp(taken->batches[i].from_storage, name) == 0 ||
            strcmp(taken->batches[i].to_storage, name) == 0)
            return true;
    }
    return false;
}

/* The storages of the batches, as JSON. NULL: no memory. */
static char *show_storages(struct tierce__api_call *api, const struct tierce__taken_moves *taken)
{
    size_t count;
    const struct tierce__catalog *catalog = tierce__api_catalog(api);
    const struct tierce__storage *all = tierce__catalog_storages(catalog, &count);
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line, .is_short = true};
    bool has_all = true;
    tierce__json_write_open(&json, NULL, '[');
    for (size_t i = 0; i < count && has_all; i++)
        has_all = !is_used(taken, all[i].name) ||
                  tierce__api_put_storage(api, &json, &all[i], tierce__catalog_id(catalog));
    tierce__json_write_close(&json, ']');
    char *text = line.failed || !has_all ? NULL : tierce__api_copy(api, line.text, line.bytes);
    tierce__line_clear(&line);
    return text;
}

static int show_taken(struct tierce__api_call *api, const struct tierce__taken_moves *taken)
{
    Meta__TakeMovesResponse *reply = (Meta__TakeMovesResponse *)api->reply;
    char *storages = show_storages(api, taken);
    reply->batches = tierce__api_alloc(api, taken->count + 1, sizeof(Meta__MoveBatch *));
    reply->lost = tierce__api_alloc(api, taken->lost_count + 1, sizeof(char *));
    if (storages == NULL || reply->batches == NULL || reply->lost == NULL)
        return -ENOMEM;
    reply->storage_configs = storages;
    reply->lease_ms = TIERCE__MOVE_LEASE_S * 1000;
    reply->wait_ms = taken->wait_ms;
    for (size_t i = 0; i < taken->lost_count; i++)
        reply->lost[reply->n_lost++] = tierce__api_text(taken->lost[i]);
    for (size_t i = 0; i < taken->count; i++) {
        reply->batches[i] = show_batch(api, &taken->batches[i]);
        if (reply->batches[i] == NULL)
            return -ENOMEM;
        reply->n_batches++;
    }
    return 0;
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* False: the status says what is wrong. */
static bool read_held(struct tierce__api_call *api, const Meta__TakeMovesRequest *request,
                      struct tierce__held_moves *held)
{
    for (size_t i = 0; i < request->n_held; i++) {
        held[i] = (struct tierce__held_moves){
            .instance_id = tierce__api_string(request->held[i]->instance_id),
            .session = tierce__api_string(request->held[i]->write_session_id)};
        if (held[i].instance_id[0] != '\0' && held[i].session[0] != '\0')
            continue;
        tierce__api_invalid(api, held[i].session[0] == '\0' ? "held: {write_session_id}"
                                                            : "held: {instance_id}");
        return false;
    }
    return true;
}

static void log_taken(const Meta__TakeMovesRequest *request,
                      const struct tierce__taken_moves *taken)
{
    char mover[64];
    tierce__text_for_message(mover, sizeof(mover), request->mover);
    for (size_t i = 0; i < taken->count; i++)
        tierce__log(TIERCE_LOG_DEBUG, "moves.taken",
                    "mover=\"%s\" instance=%.64s from=%s to=%s blocks=%zu", mover,
                    taken->batches[i].instance_id, taken->batches[i].from_storage,
                    taken->batches[i].to_storage, taken->batches[i].count);
}

static void take_moves(struct tierce__api_call *api)
{
    const Meta__TakeMovesRequest *request = (const Meta__TakeMovesRequest *)api->request;
    struct tierce__taken_moves taken;
    struct tierce__held_moves *held = tierce__api_alloc(api, request->n_held + 1, sizeof(*held));
    if (held == NULL || !read_held(api, request, held))
        return;
    if (request->blocks_max < 0 || request->bytes_max < 0) {
        tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT, "%s must be at least 0, not %lld",
                        request->blocks_max < 0 ? "blocks_max" : "bytes_max",
                        request->blocks_max < 0 ? (long long)request->blocks_max
                                                : (long long)request->bytes_max);
        return;
    }
    int rc = tierce__locator_take_moves(
        api->manager->locator,
        &(struct tierce__take_moves){.host_id = tierce__api_string(request->host_id),
                                     .blocks_max = (size_t)request->blocks_max,
                                     .bytes_max = (uint64_t)request->bytes_max,
                                     .held = held,
                                     .held_count = request->n_held},
        &api->arena, &taken, api->why);
    if (rc == 0) {
        log_taken(request, &taken);
        rc = show_taken(api, &taken);
    }
    tierce__api_end(api, rc, "take moves", "Moves taken");
}

/* False: the status says what is wrong. */
static bool read_results(struct tierce__api_call *api, const Meta__FinishMovesRequest *request,
                         enum tierce__move_result *results)
{
    for (size_t i = 0; i < request->n_results; i++) {
        int sent = (int)request->results[i];
        if (sent < META__MOVE_RESULT__MR_COPIED || sent > META__MOVE_RESULT__MR_UNDONE) {
            tierce__api_say(api, META__ERROR_CODE__INVALID_ARGUMENT,
                            "results: entry %zu is %d; accepted are 1 (MR_COPIED) to 7 "
                            "(MR_UNDONE)",
                            i, sent);
            return false;
        }
        results[i] =
            (enum tierce__move_result)(TIERCE__MOVED + sent - META__MOVE_RESULT__MR_COPIED);
    }
    return true;
}

static void finish_moves(struct tierce__api_call *api)
{
    const Meta__FinishMovesRequest *request = (const Meta__FinishMovesRequest *)api->request;
    Meta__FinishMovesResponse *reply = (Meta__FinishMovesResponse *)api->reply;
    size_t moved = 0;
    enum tierce__move_result *results =
        tierce__api_alloc(api, request->n_results + 1, sizeof(*results));
    if (results == NULL || !read_results(api, request, results))
        return;
    int rc = tierce__locator_finish_moves(api->manager->locator, request->instance_id,
                                          request->write_session_id, results, request->n_results,
                                          &moved, api->why);
    reply->moved_blocks = (int32_t)moved;
    if (rc == -ESRCH)
        tierce__api_say(api, META__ERROR_CODE__WRITE_SESSION_UNKNOWN, "%s", api->why);
    else
        tierce__api_end(api, rc, "finish moves", "Moves finished");
}

const struct tierce__api_row tierce__api_move_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_meta_take_moves] = {take_moves, TIERCE__API_WAITS, {"mover"}},
    [TIERCE__RPC_meta_finish_moves] = {finish_moves,
                                       TIERCE__API_WAITS_AS_INSTANCE,
                                       {"instance_id", "write_session_id"}},
};
