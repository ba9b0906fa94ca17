/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts, and the manager's write sessions.
 *
 *     FREE -> COLLECTS -> REGISTERS -> STARTS -> MOVES -> FINISHES -> FREE
 *              2 ms, or    the part     Start-    PUT to   Finish-
 *              64 puts                  WriteCache storages WriteCache
 *
 * The keys of StartWriteCache are a chain to the manager: it removes a block's successors with it.
 * So a session has puts of one chain, each the successor of the one before, behind the key of the
 * first one's parent. The parent is masked, mostly; if the manager gives it a place, it is not
 * written.
 *
 * A block that the manager masks is held already, is written by another session, or has no room.
 * GetCacheMeta tells which: it is asked beside the transfers, and again after a while for blocks
 * that others write. So a session ends when its own call, its question and its renewal have ended.
 *
 * The answer of FinishWriteCache may be lost with a leader. It is sent again, to the next one; if
 * that does not know the session, GetCacheMeta tells what became of the blocks.
 *
 * A put is answered by its deadline; its session continues, and the block may still be stored.
 */
#include "base/alloc.h"
#include "proto/kvcm/rpcs.h"
#include "store/remote/fleet/fleet_session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SESSIONS        8u
#define COLLECT_MS      2u
#define FINISH_MS       5000u /* each attempt */
#define FINISH_AGAIN_MS 100u

struct tierce__fleet_writes {
    struct tierce__fleet *fleet;
    struct tierce__list waiting; /* puts for which no session was free: requests */
    bool cannot_renew;           /* the manager does not have the call */
    struct fleet_session sessions[SESSIONS];
};

int tierce__fleet_writes_open(struct tierce__fleet_writes **out, struct tierce__fleet *fleet)
{
    struct tierce__fleet_writes *writes = tierce__calloc(1, sizeof(*writes));
    if (writes == NULL)
        return -ENOMEM;
    writes->fleet = fleet;
    tierce__list_init(&writes->waiting);
    for (size_t i = 0; i < SESSIONS; i++)
        writes->sessions[i].fleet = fleet;
    *out = writes;
    return 0;
}

void tierce__fleet_writes_close(struct tierce__fleet_writes *writes)
{
    if (writes == NULL)
        return;
    TIERCE_ASSERT(tierce__list_empty(&writes->waiting));
    for (size_t i = 0; i < SESSIONS; i++)
        tierce__proto_free(writes->sessions[i].started);
    tierce__free(writes);
}

/* ---- answers --------------------------------------------------------------------------------- */

void tierce__fleet_put_answer(struct fleet_put *put, int status, bool had)
{
    struct tierce__store_req *req = put->req;
    if (put->state != PUT_MOVES) /* its storage's answer comes later */
        put->state = PUT_OVER;
    put->req = NULL;
    if (req == NULL)
        return;
    TIERCE_DASSERT(status == 0 || !had);
    req->found = had;
    tierce__fleet_answer(put->session->fleet, req, status);
}

void tierce__fleet_puts_answer(struct fleet_session *s, enum put_state state, int status)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->puts[i].state == state)
            tierce__fleet_put_answer(&s->puts[i], status, false);
    }
}

size_t tierce__fleet_puts_count(const struct fleet_session *s, enum put_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++)
        count += s->puts[i].state == state;
    return count;
}

bool tierce__fleet_puts_awaited(const struct fleet_session *s, enum put_state state)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->puts[i].state == state && s->puts[i].req != NULL)
            return true;
    }
    return false;
}

uint64_t tierce__fleet_puts_deadline(const struct fleet_session *s, uint32_t ms_max)
{
    uint64_t last_ns = 0, most_ns = tierce__deadline_in_ms(ms_max);
    for (size_t i = 0; i < s->count; i++) {
        if (s->puts[i].deadline_ns > last_ns)
            last_ns = s->puts[i].deadline_ns;
    }
    return last_ns < most_ns ? last_ns : most_ns;
}

void tierce__fleet_session_end(struct fleet_session *s)
{
    if (s->state != ENDS || s->moving > 0 || s->is_looking || s->is_renewing ||
        s->look_again_ns != 0)
        return;
    TIERCE_ASSERT(tierce__fleet_puts_count(s, PUT_OVER) == s->count);
    tierce__proto_free(s->started);
    s->started = NULL;
    s->state = FREE;
    s->count = s->given = 0;
    s->retried = s->finish_lost = s->was_lost = false;
}

/* Whether the puts came after the last invalidation that is known. */
static bool is_of_now(const struct fleet_session *s)
{
    return tierce__fleet_part_is_current(s->part) && s->generation == s->part->generation &&
           s->registries == s->part->registries;
}

/* ---- FinishWriteCache ------------------------------------------------------------------------ */

/* The last answer of FinishWriteCache. */
static void end_stored(struct fleet_session *s, int status)
{
    TIERCE_DASSERT(s->state == FINISHES);
    for (size_t i = 0; i < s->count && status == 0; i++) {
        struct fleet_put *put = &s->puts[i];
        if (put->state != PUT_STORED)
            continue;
        if (is_of_now(s))
            (void)tierce__fleet_places_put(s->fleet, NULL, s->part, put->key, put->uri);
        tierce__fleet_put_answer(put, 0, false);
    }
    tierce__fleet_puts_answer(s, PUT_STORED, status);
    s->state = ENDS;
    tierce__fleet_session_end(s);
}

/* It may have ended the session, so another answer than OK says nothing. */
static void look_for_stored(struct fleet_session *s)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->puts[i].state == PUT_STORED)
            s->puts[i].state = s->puts[i].req != NULL ? PUT_MASKED : PUT_OVER;
    }
    s->state = ENDS;
    s->was_lost = true;
    if (!s->is_looking && !s->fleet->is_closing)
        tierce__fleet_look_first(s);
    else if (s->fleet->is_closing)
        tierce__fleet_puts_answer(s, PUT_MASKED, TIERCE_E_CANCELLED);
    tierce__fleet_session_end(s);
}

static bool is_lost(int status)
{
    return status == TIERCE_E_DOWN || status == TIERCE_E_DEADLINE;
}

static void has_finished(struct tierce__fleet_call *call)
{
    struct fleet_session *s = call->arg;
    int status = call->status;
    TIERCE_ASSERT(s->state == FINISHES);
    tierce__fleet_part_hear(s->part, call);
    tierce__proto_free(call->reply);
    call->reply = NULL;
    if (status < 0)
        status = tierce__fleet_call_failed(s->fleet, call);
    if (is_lost(status) && tierce__now_ns() < s->finish_until_ns) {
        s->finish_lost = true;
        s->finish_again_ns = tierce__deadline_in_ms(FINISH_AGAIN_MS);
    } else if (status < 0 && s->finish_lost && !is_lost(status)) {
        look_for_stored(s);
    } else {
        end_stored(s, status == TIERCE_E_MISS ? TIERCE_E_DEADLINE : status);
    }
}

static void send_finish(struct fleet_session *s)
{
    protobuf_c_boolean values[BATCH_MAX + 1] = {0};
    Meta__BoolMasksType masks = META__BOOL_MASKS_TYPE__INIT;
    Meta__BlockMask mask = META__BLOCK_MASK__INIT;
    Meta__FinishWriteCacheRequest request = META__FINISH_WRITE_CACHE_REQUEST__INIT;
    TIERCE_ASSERT(s->state == FINISHES && s->given <= BATCH_MAX + 1);
    for (size_t i = 0; i < s->count; i++) {
        if (s->puts[i].state == PUT_STORED)
            values[s->puts[i].number] = true;
    }
    masks.values = values;
    masks.n_values = s->given;
    mask.info_case = META__BLOCK_MASK__INFO_BOOL_MASKS;
    mask.bool_masks = &masks;
    request.instance_id = s->part->instance;
    request.write_session_id = s->id;
    request.success_blocks = &mask;
    s->finish_again_ns = 0;
    s->call = (struct tierce__fleet_call){.method = "FinishWriteCache",
                                          .request = &request.base,
                                          .answers = &meta__common_response__descriptor,
                                          .deadline_ns = tierce__deadline_in_ms(FINISH_MS),
                                          .done = has_finished,
                                          .arg = s};
    tierce__fleet_manager_start(s->fleet->manager, &s->call);
}

static void finish(struct fleet_session *s)
{
    TIERCE_ASSERT(s->state == MOVES);
    s->state = FINISHES;
    s->finish_until_ns = tierce__deadline_in_ms(s->fleet->session_ms);
    send_finish(s);
}

/* ---- the transfers --------------------------------------------------------------------------- */

static void has_moved(struct tierce__fleet_io *io)
{
    struct fleet_put *put = TIERCE__CONTAINER_OF(io, struct fleet_put, io);
    struct fleet_session *s = put->session;
    int status = io->req.status;
    char why[TIERCE__FLEET_WHY_BYTES];
    TIERCE_ASSERT(put->state == PUT_MOVES && s->moving > 0);
    s->moving--;
    tierce__buf_release(io->req.buf);
    put->state = status == 0 && s->state == MOVES ? PUT_STORED : PUT_OVER;
    if (status < 0 &&
        !s->fleet->is_closing) { /* close frees the storages before it has all answers */
        tierce__fleet_store_why(io->store, why);
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_STORAGE, "%s: %s",
                          why[0] != '\0' ? why : tierce__fleet_store_name(io->store),
                          tierce_strerror(status));
    }
    if (tierce__fleet_storage_failed(status)) /* it has no room */
        status = TIERCE_E_FULL;
    if (put->state == PUT_OVER)
        tierce__fleet_put_answer(put, status < 0 ? status : TIERCE_E_CANCELLED, false);
    if (s->state == MOVES && s->moving == 0)
        finish(s);
    tierce__fleet_session_end(s);
}

/* Chooses the bytes that fit a place: a manager that does not know the length of a block gives the
 * room of a raw one. NULL: there are none. */
static struct tierce__buf *choose_bytes(const struct tierce__store_req *req, uint64_t room)
{
    if (room == req->length)
        return req->buf;
    return req->coded_bytes > 0 && room == req->object_bytes ? req->raw : NULL;
}

/* Returns the status of a put for whose place there are no bytes. */
static int has_no_bytes(const struct fleet_put *put, const struct tierce__fleet_place *place)
{
    const struct fleet_session *s = put->session;
    bool is_older = put->coded_bytes > 0 && place->bytes == s->part->object_bytes;
    if (is_older)
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "encrypted chunks are not stored, because this manager does not know the "
                          "length of a block; upgrade the manager");
    else
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager gave a place of %llu bytes for a chunk of %llu bytes",
                          (unsigned long long)place->bytes, (unsigned long long)put->req->length);
    return is_older ? TIERCE_E_UNSUPPORTED : TIERCE_E_DOWN;
}

static int move(struct fleet_put *put)
{
    struct fleet_session *s = put->session;
    struct tierce__fleet_place place;
    if (strlen(put->uri) >= sizeof(put->name)) {
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager's URI for a chunk has %zu bytes; at most %u are accepted",
                          strlen(put->uri), NAME_BYTES - 1);
        return -EPROTO;
    }
    int rc = tierce__fleet_place_check(s->fleet, s->part, &place, put->name, put->uri);
    if (rc < 0)
        return rc == TIERCE_E_MISS ? TIERCE_E_DOWN : rc;
    struct tierce__buf *buf = choose_bytes(put->req, place.bytes);
    if (buf == NULL)
        return has_no_bytes(put, &place);
    put->state = PUT_MOVES;
    s->moving++;
    tierce__buf_acquire(buf);
    put->io.done = has_moved;
    put->io.req = (struct tierce__store_req){.op = TIERCE__STORE_PUT,
                                             .urgency = TIERCE__CONNECTOR_STORE,
                                             .deadline_ns = put->deadline_ns,
                                             .buf = buf,
                                             .length = place.bytes};
    tierce__fleet_io_begin(s->fleet, &put->io, &place);
    return 0;
}

/* ---- StartWriteCache ------------------------------------------------------------------------- */

static void register_part(struct fleet_session *s);

static bool is_masked(const Meta__BlockMask *mask, size_t i)
{
    if (mask != NULL && mask->info_case == META__BLOCK_MASK__INFO_OFFSET)
        return mask->offset < 0 || i < (size_t)mask->offset;
    if (mask == NULL || mask->info_case != META__BLOCK_MASK__INFO_BOOL_MASKS)
        return false;
    return i < mask->bool_masks->n_values && mask->bool_masks->values[i];
}

static void move_given(struct fleet_session *s, const Meta__StartWriteCacheResponse *reply)
{
    for (size_t i = 0; i < s->count; i++) {
        struct fleet_put *put = &s->puts[i];
        if (put->state != PUT_NEW)
            continue;
        TIERCE_ASSERT(put->number < reply->n_locations);
        put->uri = tierce__fleet_uri_of(reply->locations[put->number], s->part->spec);
        int rc = put->req == NULL ? TIERCE_E_DEADLINE : put->uri == NULL ? -EPROTO : move(put);
        if (rc < 0)
            tierce__fleet_put_answer(put, rc, false);
    }
}

/* Keys that are not masked are numbered: the mask of FinishWriteCache refers to them. */
static size_t read_mask(struct fleet_session *s, const Meta__BlockMask *mask)
{
    size_t first = s->has_parent, given = s->has_parent && !is_masked(mask, 0);
    for (size_t i = 0; i < s->count; i++) {
        struct fleet_put *put = &s->puts[i];
        TIERCE_DASSERT(put->state == PUT_NEW);
        if (is_masked(mask, first + i))
            put->state = put->req != NULL ? PUT_MASKED : PUT_OVER;
        else
            put->number = given++;
    }
    return given;
}

static void take_started(struct fleet_session *s)
{
    const Meta__StartWriteCacheResponse *reply = (const Meta__StartWriteCacheResponse *)s->started;
    size_t given = read_mask(s, reply->block_mask);
    size_t id_bytes = strlen(reply->write_session_id);
    s->given = reply->n_locations;
    if (given != s->given || id_bytes >= sizeof(s->id) || (given > 0 && id_bytes == 0)) {
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager answered %zu locations for %zu blocks to be written, and a "
                          "session of %zu characters",
                          s->given, given, id_bytes);
        tierce__fleet_puts_answer(s, PUT_NEW, -EPROTO);
        s->state = ENDS; /* the session ends by its timeout */
    } else {
        memcpy(s->id, reply->write_session_id, id_bytes + 1);
        s->state = given > 0 ? MOVES : ENDS;
        s->renew_ns = tierce__deadline_in_ms(s->fleet->session_ms / 3);
        move_given(s, reply);
    }
    if (tierce__fleet_puts_count(s, PUT_MASKED) > 0)
        tierce__fleet_look_first(s);
    if (s->state == MOVES && s->moving == 0)
        finish(s);
    tierce__fleet_session_end(s);
}

/* The manager has no code for this. */
static bool is_full(const struct tierce__fleet_call *call)
{
    return call->status == TIERCE_E_FULL ||
           (call->status == -EPROTO && strstr(call->why, TIERCE__RPC_NO_ROOM) != NULL);
}

static void fail(struct fleet_session *s, int status)
{
    tierce__fleet_puts_answer(s, PUT_NEW, status);
    s->state = ENDS;
    tierce__fleet_session_end(s);
}

static void has_started(struct tierce__fleet_call *call)
{
    struct fleet_session *s = call->arg;
    TIERCE_ASSERT(s->state == STARTS && s->started == NULL);
    tierce__fleet_part_hear(s->part, call);
    if (call->status == 0) {
        s->started = call->reply;
        call->reply = NULL;
        take_started(s);
        return;
    }
    bool forgotten = call->status == TIERCE_E_MISS || call->status == TIERCE_E_ARGUMENT;
    if (forgotten)
        tierce__fleet_part_outdated(s->part);
    if (forgotten && !s->retried && !s->fleet->is_closing) {
        s->retried = true;
        register_part(s);
    } else if (is_full(call)) {
        tierce__fleet_say(s->fleet, TIERCE__FLEET_TROUBLE_FULL, "%s", call->why);
        fail(s, TIERCE_E_FULL);
    } else {
        int status = tierce__fleet_call_failed(s->fleet, call);
        fail(s, status == TIERCE_E_MISS ? TIERCE_E_DOWN : status);
    }
}

static void start(struct fleet_session *s)
{
    int64_t keys[BATCH_MAX + 1] = {s->parent}, sizes[BATCH_MAX + 1] = {0};
    char *groups[BATCH_MAX + 1];
    size_t first = s->has_parent, count = first + s->count;
    Meta__SessionHint hint = META__SESSION_HINT__INIT;
    Meta__StartWriteCacheRequest request = META__START_WRITE_CACHE_REQUEST__INIT;
    TIERCE_ASSERT(s->count > 0 && s->count <= BATCH_MAX);
    bool has_sizes = false;
    for (size_t i = 0; i < s->count; i++) {
        keys[first + i] = s->puts[i].key;
        sizes[first + i] = (int64_t)s->puts[i].coded_bytes;
        has_sizes |= s->puts[i].coded_bytes > 0;
    }
    for (size_t i = 0; i < count; i++)
        groups[i] = s->part->spec;
    request.instance_id = s->part->instance;
    request.block_keys = keys;
    request.n_block_keys = count;
    request.location_spec_group_names = groups;
    request.n_location_spec_group_names = s->part->has_groups ? count : 0;
    request.block_sizes = sizes;
    request.n_block_sizes = has_sizes ? count : 0;
    request.node_host = s->fleet->host_id;
    request.generation = (int64_t)s->generation;
    request.hint = tierce__fleet_hint_fill(&hint, s->hint) ? &hint : NULL;
    request.write_timeout_seconds = (int32_t)((s->fleet->session_ms + 999) / 1000);
    s->state = STARTS;
    s->call = (struct tierce__fleet_call){.method = "StartWriteCache",
                                          .request = &request.base,
                                          .answers = &meta__start_write_cache_response__descriptor,
                                          .deadline_ns =
                                              tierce__fleet_puts_deadline(s, s->fleet->session_ms),
                                          .done = has_started,
                                          .arg = s};
    tierce__fleet_manager_start(s->fleet->manager, &s->call);
}

static void is_registered(struct tierce__fleet_wait *wait, int status)
{
    struct fleet_session *s = wait->arg;
    TIERCE_ASSERT(s->state == REGISTERS);
    if (s->generation == 0) /* the part was not registered before */
        s->generation = s->part->generation;
    if (status < 0)
        fail(s, tierce__fleet_register_failed(s->fleet, s->part, status));
    else if (!tierce__fleet_puts_awaited(s, PUT_NEW))
        fail(s, TIERCE_E_DEADLINE);
    else if (!is_of_now(s))
        fail(s, TIERCE_E_CANCELLED);
    else
        start(s);
}

static void register_part(struct fleet_session *s)
{
    s->state = REGISTERS;
    s->wait = (struct tierce__fleet_wait){.deadline_ns =
                                              tierce__fleet_puts_deadline(s, s->fleet->session_ms),
                                          .done = is_registered,
                                          .arg = s};
    tierce__fleet_register(s->fleet->parts, s->part, &s->wait);
}

/* ---- RenewWriteCache ------------------------------------------------------------------------- */

static void has_renewed(struct tierce__fleet_call *call)
{
    struct fleet_session *s = call->arg;
    s->is_renewing = false;
    if (call->status == TIERCE_E_UNSUPPORTED)
        s->fleet->writes->cannot_renew = true;
    else if (call->status < 0)
        (void)tierce__fleet_call_failed(s->fleet, call);
    tierce__proto_free(call->reply);
    call->reply = NULL;
    tierce__fleet_session_end(s);
}

static void renew(struct fleet_session *s)
{
    Meta__RenewWriteCacheRequest request = META__RENEW_WRITE_CACHE_REQUEST__INIT;
    s->renew_ns = tierce__deadline_in_ms(s->fleet->session_ms / 3);
    if (s->is_renewing || s->fleet->writes->cannot_renew)
        return;
    request.instance_id = s->part->instance;
    request.write_session_id = s->id;
    s->is_renewing = true;
    s->renewal =
        (struct tierce__fleet_call){.method = "RenewWriteCache",
                                    .request = &request.base,
                                    .answers = &meta__renew_write_cache_response__descriptor,
                                    .deadline_ns = s->renew_ns,
                                    .repeats = true,
                                    .done = has_renewed,
                                    .arg = s};
    tierce__fleet_manager_start(s->fleet->manager, &s->renewal);
}

/* ---- the beginning --------------------------------------------------------------------------- */

static bool has_key(const struct fleet_session *s, int64_t key)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->puts[i].key == key)
            return true;
    }
    return false;
}

static int64_t parent_of(const struct tierce__store_req *req)
{
    int64_t key;
    memcpy(&key, req->parent->hash, sizeof(key));
    return key;
}

/* Whether a put continues the chain that a session collects. */
static bool continues(const struct fleet_session *s, const struct tierce__fleet_part *part,
                      int64_t key, const struct tierce__store_req *req)
{
    return s->state == COLLECTS && s->part == part && s->generation == part->generation &&
           s->registries == part->registries && s->hint == req->origin.hint &&
           s->count < BATCH_MAX && req->parent != NULL &&
           s->puts[s->count - 1].key == parent_of(req) && !has_key(s, key);
}

/* The session that collects the chain of a put, or a free one. NULL: none. */
static struct fleet_session *find_session(struct tierce__fleet_writes *writes,
                                          const struct tierce__fleet_part *part, int64_t key,
                                          const struct tierce__store_req *req)
{
    struct fleet_session *free = NULL;
    for (size_t i = 0; i < SESSIONS; i++) {
        struct fleet_session *s = &writes->sessions[i];
        if (continues(s, part, key, req))
            return s;
        if (s->state == FREE && free == NULL)
            free = s;
    }
    return free;
}

static void add_put(struct fleet_session *s, struct tierce__fleet_part *part, int64_t key,
                    struct tierce__store_req *req)
{
    TIERCE_ASSERT(s->count < BATCH_MAX && (s->state == FREE) == (s->count == 0));
    if (s->state == FREE) {
        s->state = COLLECTS;
        s->part = part;
        s->generation = part->generation;
        s->registries = part->registries;
        s->hint = (enum tierce__policy_hint)req->origin.hint;
        s->has_parent = req->parent != NULL;
        s->parent = s->has_parent ? parent_of(req) : 0;
        s->collect_until_ns = tierce__deadline_in_ms(COLLECT_MS);
    }
    struct fleet_put *put = &s->puts[s->count++];
    put->state = PUT_NEW;
    put->session = s;
    put->req = req;
    put->key = key;
    put->coded_bytes = req->coded_bytes;
    put->deadline_ns = req->deadline_ns;
    put->uri = NULL;
    put->is_asked = false;
}

/* Errors: TIERCE_E_UNSUPPORTED (not a whole chunk of an engine), TIERCE_E_CANCELLED (the engine has
 * not dropped invalidated blocks yet), TIERCE_E_LIMIT, -ENOMEM. */
static int part_of(struct tierce__fleet *fleet, struct tierce__fleet_part **part, int64_t *key,
                   const struct tierce__store_req *req)
{
    int rc = tierce__fleet_find_part(fleet, part, key, &req->names[0]);
    uint64_t raw_bytes = req->coded_bytes > 0 ? req->object_bytes : req->length;
    if (rc == 0 && raw_bytes != (*part)->object_bytes)
        rc = TIERCE_E_UNSUPPORTED; /* a tail, mostly */
    if (rc == 0 && !tierce__fleet_part_is_current(*part))
        rc = TIERCE_E_CANCELLED;
    return rc == TIERCE_E_ARGUMENT ? TIERCE_E_UNSUPPORTED : rc;
}

/* False: no session is free. */
static bool place_put(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    struct tierce__fleet_part *part;
    int64_t key;
    int rc = part_of(fleet, &part, &key, req);
    struct fleet_session *s = rc == 0 ? find_session(fleet->writes, part, key, req) : NULL;
    if (rc == 0 && s == NULL)
        return false;
    tierce__list_remove(&req->node);
    if (rc < 0)
        tierce__fleet_answer(fleet, req, rc);
    else
        add_put(s, part, key, req);
    return true;
}

void tierce__fleet_put(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    req->found = 0;
    tierce__fleet_look_by(fleet, req->deadline_ns);
    if (!tierce__list_empty(&fleet->writes->waiting) || !place_put(fleet, req))
        tierce__list_push_back(&fleet->writes->waiting, &req->node);
}

static uint64_t step_session(struct fleet_session *s, uint64_t now_ns)
{
    uint64_t next_ns = TIERCE__DEADLINE_NEVER;
    if (s->state == COLLECTS && (s->count == BATCH_MAX || s->collect_until_ns <= now_ns))
        register_part(s);
    if (s->state == FINISHES && s->finish_again_ns != 0 && s->finish_again_ns <= now_ns)
        send_finish(s);
    if (s->look_again_ns != 0 && s->look_again_ns <= now_ns)
        tierce__fleet_look(s);
    if (s->state == MOVES && s->renew_ns <= now_ns)
        renew(s);
    const uint64_t due_ns[] = {s->state == COLLECTS ? s->collect_until_ns : 0,
                               s->state == FINISHES ? s->finish_again_ns : 0, s->look_again_ns,
                               s->state == MOVES ? s->renew_ns : 0};
    for (size_t i = 0; i < sizeof(due_ns) / sizeof(*due_ns); i++) {
        if (due_ns[i] != 0 && due_ns[i] < next_ns)
            next_ns = due_ns[i];
    }
    return next_ns;
}

uint64_t tierce__fleet_writes_step(struct tierce__fleet *fleet, uint64_t now_ns)
{
    struct tierce__fleet_writes *writes = fleet->writes;
    uint64_t next_ns = TIERCE__DEADLINE_NEVER;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &writes->waiting) {
        if (!place_put(fleet, TIERCE__CONTAINER_OF(it, struct tierce__store_req, node)))
            break;
    }
    for (size_t i = 0; i < SESSIONS; i++) {
        uint64_t due_ns = step_session(&writes->sessions[i], now_ns);
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    return next_ns;
}

/* ---- the end --------------------------------------------------------------------------------- */

void tierce__fleet_writes_expire(struct tierce__fleet *fleet, uint64_t now_ns)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fleet->writes->waiting) {
        struct tierce__store_req *req = TIERCE__CONTAINER_OF(it, struct tierce__store_req, node);
        if (req->deadline_ns <= now_ns) {
            tierce__list_remove(it);
            tierce__fleet_answer(fleet, req, TIERCE_E_DEADLINE);
        } else {
            tierce__fleet_look_by(fleet, req->deadline_ns);
        }
    }
    for (size_t i = 0; i < SESSIONS * BATCH_MAX; i++) {
        struct fleet_session *s = &fleet->writes->sessions[i / BATCH_MAX];
        struct fleet_put *put = &s->puts[i % BATCH_MAX];
        if (i % BATCH_MAX >= s->count || put->req == NULL)
            continue;
        if (put->deadline_ns > now_ns) {
            tierce__fleet_look_by(fleet, put->deadline_ns);
            continue;
        }
        struct tierce__store_req *req = put->req;
        put->req = NULL; /* its state remains: the session goes on without it */
        tierce__fleet_answer(fleet, req, TIERCE_E_DEADLINE);
    }
}

static void cancel_session(struct fleet_session *s, enum tierce__fleet_stage stage)
{
    bool is_new = s->state == COLLECTS || s->state == REGISTERS;
    bool is_last = stage == TIERCE__FLEET_CANCEL_ALL;
    for (size_t i = 0; i < s->count; i++) {
        struct fleet_put *put = &s->puts[i];
        bool is_over = put->state == PUT_STORED   ? is_last
                       : put->state == PUT_MASKED ? true
                                                  : is_new || stage != TIERCE__FLEET_CANCEL_NEW;
        if (!is_over || put->req == NULL)
            continue;
        struct tierce__store_req *req = put->req;
        put->req = NULL; /* its state remains, as for one that is late */
        tierce__fleet_answer(s->fleet, req, TIERCE_E_CANCELLED);
    }
    if (!s->is_looking)
        tierce__fleet_puts_answer(s, PUT_MASKED, TIERCE_E_CANCELLED);
    s->look_again_ns = 0;
    if (stage == TIERCE__FLEET_CANCEL_UNSTORED && s->state == MOVES)
        finish(s);
}

void tierce__fleet_writes_cancel(struct tierce__fleet *fleet, enum tierce__fleet_stage stage)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fleet->writes->waiting) {
        tierce__list_remove(it);
        tierce__fleet_answer(fleet, TIERCE__CONTAINER_OF(it, struct tierce__store_req, node),
                             TIERCE_E_CANCELLED);
    }
    for (size_t i = 0; i < SESSIONS; i++)
        cancel_session(&fleet->writes->sessions[i], stage);
}

bool tierce__fleet_writes_busy(const struct tierce__fleet *fleet)
{
    for (size_t i = 0; i < SESSIONS; i++) {
        enum session_state state = fleet->writes->sessions[i].state;
        if (state == STARTS || state == MOVES || state == FINISHES)
            return true;
    }
    return false;
}
