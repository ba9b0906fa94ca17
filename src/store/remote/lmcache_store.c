/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/lmcache_store.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/threads/lock.h"
#include "core/key/key_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/*
 * A request takes several calls of the connector below, one after the other; the answer of each
 * begins the next (`go_on`). A call has the deadline of its request.
 */

#define METADATA_BYTES 28u
#define SCRATCH_BYTES  (1ull << 30) /* address space, of which what is used at once is touched */
#define KV_2LTD        1
#define SUFFIX_MAX     16u

struct lmcache_store {
    struct tierce__connector base;
    struct tierce__connector_ops ops;
    struct tierce__connector *below;
    struct tierce__lmcache_names *names;
    struct tierce__pool *scratch;
    char model[TIERCE__LMCACHE_MODEL_MAX + 1];
    struct tierce__lock lock; /* CONNECTOR: why */
    char why[TIERCE__CONNECTOR_WHY_BYTES];
};

enum step { METADATA, HEADER, KV, REPAIR };

struct lmcache_task {
    struct lmcache_store *store;
    struct tierce__store_req *req;
    struct tierce__store_req call;
    enum step step;
    bool is_foreign;
    struct tierce__lmcache_chunk chunk;
    struct tierce__geometry geometry;
    struct tierce__extent extent;
    uint32_t *cell_bytes;
    struct tierce__buf *kv, *metadata;
    struct tierce_plugin_name name;
    size_t key_bytes;
    char text[TIERCE__CONNECTOR_NAME_MAX + 1];
    uint8_t block_hashes[TIERCE__LMCACHE_BLOCKS_MAX * TIERCE_HASH_BYTES];
};

static struct lmcache_store *store_of(struct tierce__connector *connector)
{
    return (struct lmcache_store *)connector;
}

static void answer(struct tierce__store_req *req, int status)
{
    TIERCE_DASSERT(status <= 0 && !tierce__lock_holds_any());
    req->status = status;
    req->done(req);
}

static void submit_below(struct lmcache_store *store, struct tierce__store_req *call)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    store->below->ops->submit(store->below, call);
}

static void set_why(struct lmcache_store *store, const char *why)
{
    tierce__lock_take(&store->lock);
    snprintf(store->why, sizeof(store->why), "%s", why);
    tierce__lock_drop(&store->lock);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* LMCache's key of a chunk; 0: it is longer than names may be. */
static size_t make_key(char text[TIERCE__CONNECTOR_NAME_MAX + 1], const struct lmcache_store *store,
                       const struct tierce__lmcache_chunk *chunk)
{
    const struct tierce_shard *shard = &chunk->shard;
    const struct tierce__lmcache_key key = {.model = store->model,
                                            .model_bytes = strlen(store->model),
                                            .world_size = (uint32_t)shard->tp_size * shard->pp_size,
                                            .worker_id = (uint32_t)shard->pp_rank * shard->tp_size +
                                                         shard->tp_rank,
                                            .hash = tierce__lmcache_hash_of_int(chunk->hash),
                                            .dtype = chunk->form.dtype,
                                            .layer = -1};
    int bytes = tierce__lmcache_key_format(text, TIERCE__CONNECTOR_NAME_MAX - SUFFIX_MAX, &key);
    return bytes > 0 ? (size_t)bytes : 0;
}

static void set_suffix(struct lmcache_task *task, const char *suffix)
{
    size_t bytes = strlen(suffix);
    TIERCE_DASSERT(task->key_bytes > 0 && bytes <= SUFFIX_MAX);
    TIERCE_ASSERT(task->key_bytes + bytes < sizeof(task->text));
    memcpy(task->text + task->key_bytes, suffix, bytes);
    task->name = (struct tierce_plugin_name){.text = task->text, .bytes = task->key_bytes + bytes};
}

static const char *suffix_of(enum step step)
{
    return step == KV ? "kv_bytes" : step == HEADER ? "tierce" : "metadata";
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* length, format, type, and [2, layers, tokens, hidden]. */
static void make_metadata(uint8_t out[METADATA_BYTES], const struct lmcache_task *task)
{
    const struct tierce__lmcache_form *form = &task->chunk.form;
    TIERCE_DASSERT(task->extent.payload_bytes <= INT32_MAX);
    const uint32_t numbers[METADATA_BYTES / 4] = {(uint32_t)task->extent.payload_bytes,
                                                  KV_2LTD,
                                                  (uint32_t)form->dtype_number,
                                                  2,
                                                  form->layer_count,
                                                  form->block_tokens * form->chunk_blocks,
                                                  form->hidden};
    for (size_t i = 0; i < METADATA_BYTES / 4; i++)
        tierce__store_le32(out + 4 * i, numbers[i]);
}

/* A cell is K and V of its tokens; LMCache has all K before all V. */
static void move_cells(const struct lmcache_task *task, uint8_t *payload, uint8_t *kv, bool to_kv)
{
    const struct tierce__lmcache_form *form = &task->chunk.form;
    TIERCE_DASSERT(form->cell_bytes % 2 == 0);
    size_t half = form->cell_bytes / 2, cells = (size_t)form->layer_count * form->chunk_blocks;
    TIERCE_DASSERT(cells * form->cell_bytes == task->extent.payload_bytes);
    for (size_t i = 0; i < 2 * cells; i++) {
        uint8_t *cell = payload + i * half, *plane = kv + (i % 2 * cells + i / 2) * half;
        memcpy(to_kv ? plane : cell, to_kv ? cell : plane, half);
    }
}

/* A header for a chunk that has none. */
static void make_header(struct lmcache_task *task, uint8_t *object)
{
    TIERCE_DASSERT(task->extent.header_bytes + task->extent.payload_bytes <=
                   task->extent.object_bytes);
    TIERCE_DASSERT(task->is_foreign);
    const struct tierce__lmcache_chunk *chunk = &task->chunk;
    struct tierce__chunk_info info = {.shard = chunk->shard,
                                      .algo = chunk->form.algo,
                                      .token_start = chunk->token_start,
                                      .geometry = task->geometry,
                                      .extent = task->extent};
    memcpy(info.ns_digest, chunk->form.ns_digest, TIERCE_HASH_BYTES);
    memcpy(info.hash, chunk->chunk_hash, TIERCE_HASH_BYTES);
    memcpy(info.parent, chunk->parent, TIERCE_HASH_BYTES);
    tierce__chunk_begin(object, &info, task->block_hashes);
    tierce__chunk_sum_cells(object, &task->geometry);
    tierce__chunk_seal(object, task->extent.header_bytes);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void end_task(struct lmcache_task *task, int status)
{
    struct tierce__store_req *req = task->req;
    tierce__buf_release(task->kv);
    tierce__buf_release(task->metadata);
    tierce__free(task->cell_bytes);
    tierce__free(task);
    answer(req, status);
}

static void called_back(struct tierce__store_req *call);

static void call(struct lmcache_task *task, enum step step, enum tierce__store_op op,
                 struct tierce__buf *buf, uint64_t length)
{
    TIERCE_DASSERT(buf != NULL || op == TIERCE__STORE_DELETE);
    const struct tierce__store_req *req = task->req;
    TIERCE_DASSERT(buf == NULL || length <= buf->bytes);
    task->step = step;
    set_suffix(task, suffix_of(step));
    task->call = (struct tierce__store_req){.op = op,
                                            .urgency = req->urgency,
                                            .deadline_ns = req->deadline_ns,
                                            .done = called_back,
                                            .arg = task,
                                            .names = &task->name,
                                            .name_count = 1,
                                            .buf = buf,
                                            .length = length};
    submit_below(task->store, &task->call);
}

/* All three are there, or the first two. */
static void finish_get(struct lmcache_task *task)
{
    TIERCE_DASSERT(task->step == KV && task->kv->bytes >= task->extent.payload_bytes);
    uint8_t *object = task->req->buf->data;
    const struct tierce__extent *extent = &task->extent;
    uint64_t end = extent->header_bytes + extent->payload_bytes;
    TIERCE_DASSERT(end <= extent->object_bytes);
    TIERCE_ASSERT(extent->object_bytes <= task->req->buf->bytes);
    move_cells(task, object + extent->header_bytes, task->kv->data, false);
    memset(object + end, 0, (size_t)(extent->object_bytes - end));
    if (task->is_foreign)
        make_header(task, object);
    end_task(task, 0);
}

static bool is_missing(int status)
{
    return status == TIERCE_E_MISS || status == TIERCE_E_FORMAT;
}

static void go_on_get(struct lmcache_task *task, int status)
{
    TIERCE_DASSERT(task->metadata->bytes >= METADATA_BYTES);
    uint8_t wanted[METADATA_BYTES];
    switch (task->step) {
    case METADATA:
        make_metadata(wanted, task);
        if (status != 0 || memcmp(task->metadata->data, wanted, METADATA_BYTES) != 0)
            end_task(task, status == 0 || is_missing(status) ? TIERCE_E_MISS : status);
        else
            call(task, HEADER, TIERCE__STORE_GET, task->req->buf, task->extent.header_bytes);
        return;
    case HEADER:
        task->is_foreign = is_missing(status);
        if (status != 0 && !task->is_foreign)
            end_task(task, status);
        else
            call(task, KV, TIERCE__STORE_GET, task->kv, task->extent.payload_bytes);
        return;
    case KV:
        if (status == 0)
            finish_get(task);
        else if (is_missing(status))
            call(task, REPAIR, TIERCE__STORE_DELETE, NULL, 0);
        else
            end_task(task, status);
        return;
    case REPAIR:
        end_task(task, TIERCE_E_MISS);
    }
}

static void go_on_put(struct lmcache_task *task, int status)
{
    TIERCE_DASSERT(task->step != REPAIR);
    if (status != 0 || task->step == METADATA) {
        end_task(task, status);
    } else if (task->step == KV) {
        call(task, HEADER, TIERCE__STORE_PUT, task->req->buf, task->extent.header_bytes);
    } else {
        call(task, METADATA, TIERCE__STORE_PUT, task->metadata, METADATA_BYTES);
    }
}

/* Deletes the metadata first, so that half a chunk is never found. */
static void go_on_delete(struct lmcache_task *task, int status)
{
    TIERCE_DASSERT(task->step != REPAIR);
    if (status != 0 || task->step == KV)
        end_task(task, status);
    else
        call(task, task->step == METADATA ? HEADER : KV, TIERCE__STORE_DELETE, NULL, 0);
}

static void called_back(struct tierce__store_req *call)
{
    struct lmcache_task *task = call->arg;
    TIERCE_DASSERT(call == &task->call);
    if (task->req->op == TIERCE__STORE_GET)
        go_on_get(task, call->status);
    else if (task->req->op == TIERCE__STORE_PUT)
        go_on_put(task, call->status);
    else
        go_on_delete(task, call->status);
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* Finds the chunk's description and reserves memory for it. */
static int prepare(struct lmcache_task *task)
{
    struct lmcache_store *store = task->store;
    const struct tierce__store_req *req = task->req;
    const struct tierce__lmcache_form *form = &task->chunk.form;
    if (!tierce__lmcache_names_find(store->names, &task->chunk, task->block_hashes,
                                    req->names[0].text, req->names[0].bytes))
        return TIERCE_E_MISS;
    task->key_bytes = make_key(task->text, store, &task->chunk);
    if (task->key_bytes == 0)
        return TIERCE_E_MISS;
    TIERCE_DASSERT(form->layer_count > 0 && form->chunk_blocks <= TIERCE__LMCACHE_BLOCKS_MAX);
    task->cell_bytes = tierce__calloc(form->layer_count, sizeof(*task->cell_bytes));
    if (task->cell_bytes == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < form->layer_count; i++)
        task->cell_bytes[i] = form->cell_bytes;
    task->geometry = (struct tierce__geometry){.layer_count = form->layer_count,
                                               .cell_bytes = task->cell_bytes,
                                               .block_tokens = form->block_tokens,
                                               .block_count = form->chunk_blocks};
    int rc = tierce__chunk_extent(&task->extent, &task->geometry);
    if (rc == 0 && req->op == TIERCE__STORE_DELETE)
        return 0;
    if (rc == 0 && (req->length != task->extent.object_bytes || req->offset != 0))
        rc = TIERCE_E_MISS; /* not a full chunk */
    if (rc == 0 && task->extent.payload_bytes > INT32_MAX)
        rc = TIERCE_E_LIMIT; /* its length would not fit */
    if (rc == 0)
        rc = tierce__pool_alloc(store->scratch, &task->metadata, METADATA_BYTES);
    if (rc == 0)
        rc = tierce__pool_alloc(store->scratch, &task->kv, task->extent.payload_bytes);
    TIERCE_DASSERT(rc != 0 || (task->metadata->bytes >= METADATA_BYTES &&
                               task->kv->bytes >= task->extent.payload_bytes));
    return rc == TIERCE_E_FULL ? -ENOMEM : rc;
}

/* The chunk that is to be put must be the one of its name. */
static int check_put(const struct lmcache_task *task)
{
    TIERCE_DASSERT(task->extent.header_bytes <= task->req->buf->bytes);
    const struct tierce__lmcache_chunk *chunk = &task->chunk;
    struct tierce__chunk_info info;
    int rc = tierce__chunk_parse(&info, task->req->buf->data, task->extent.header_bytes);
    bool same = rc == 0 && info.geometry.block_count == chunk->form.chunk_blocks &&
                info.extent.object_bytes == task->extent.object_bytes &&
                memcmp(info.hash, chunk->chunk_hash, TIERCE_HASH_BYTES) == 0;
    return same ? 0 : TIERCE_E_UNSUPPORTED;
}

static void begin_task(struct lmcache_store *store, struct tierce__store_req *req)
{
    TIERCE_DASSERT(req->name_count == 1);
    struct lmcache_task *task = tierce__calloc(1, sizeof(*task));
    if (task == NULL) {
        answer(req, -ENOMEM);
        return;
    }
    task->store = store;
    task->req = req;
    bool is_put = req->op == TIERCE__STORE_PUT;
    int rc = prepare(task);
    if (rc == 0 && is_put)
        rc = check_put(task);
    if (rc == TIERCE_E_MISS && is_put) {
        set_why(store, "a chunk has no LMCache name: its layout is not LMCache's, or its "
                       "hash covers more than tokens");
        rc = TIERCE_E_UNSUPPORTED;
    }
    if (rc != 0) {
        end_task(task, rc == TIERCE_E_MISS && req->op == TIERCE__STORE_DELETE ? 0 : rc);
    } else if (is_put) {
        make_metadata(task->metadata->data, task);
        move_cells(task, req->buf->data + task->extent.header_bytes, task->kv->data, true);
        call(task, KV, TIERCE__STORE_PUT, task->kv, task->extent.payload_bytes);
    } else if (req->op == TIERCE__STORE_GET) {
        call(task, METADATA, TIERCE__STORE_GET, task->metadata, METADATA_BYTES);
    } else {
        call(task, METADATA, TIERCE__STORE_DELETE, NULL, 0);
    }
}

/* ---- LOOKUP ---------------------------------------------------------------------------------- */

#define TEXT_BYTES (TIERCE__CONNECTOR_NAME_MAX + 1)

/* A lookup that is one call, with names of its own, and their texts behind them. */
struct lmcache_passing {
    struct tierce__store_req call;
    struct tierce__store_req *req;
    struct tierce_plugin_name names[];
};

static void passed(struct tierce__store_req *call)
{
    struct lmcache_passing *passing = call->arg;
    struct tierce__store_req *req = passing->req;
    int status = call->status;
    TIERCE_DASSERT(status != 0 || call->found <= call->name_count);
    req->found = status == 0 ? call->found : 0;
    tierce__free(passing);
    answer(req, status);
}

/* The leading names that have one in LMCache. */
static size_t take_names(struct lmcache_store *store, struct lmcache_passing *passing)
{
    static const char suffix[] = "metadata";
    const struct tierce__store_req *req = passing->req;
    char *text = (char *)(passing->names + req->name_count);
    size_t count = 0;
    for (; count < req->name_count; count++, text += TEXT_BYTES) {
        struct tierce__lmcache_chunk chunk;
        size_t bytes = 0;
        if (tierce__lmcache_names_find(store->names, &chunk, NULL, req->names[count].text,
                                       req->names[count].bytes))
            bytes = make_key(text, store, &chunk);
        if (bytes == 0)
            break;
        TIERCE_DASSERT(bytes + sizeof(suffix) <= TEXT_BYTES);
        memcpy(text + bytes, suffix, sizeof(suffix) - 1);
        passing->names[count] =
            (struct tierce_plugin_name){.text = text, .bytes = bytes + sizeof(suffix) - 1};
    }
    TIERCE_DASSERT(count <= req->name_count);
    return count;
}

static void look_up(struct lmcache_store *store, struct tierce__store_req *req)
{
    struct lmcache_passing *passing = tierce__alloc(
        sizeof(*passing) + req->name_count * (sizeof(passing->names[0]) + TEXT_BYTES));
    if (passing == NULL) {
        answer(req, -ENOMEM);
        return;
    }
    passing->req = req;
    passing->call = (struct tierce__store_req){.op = TIERCE__STORE_LOOKUP,
                                               .urgency = req->urgency,
                                               .deadline_ns = req->deadline_ns,
                                               .done = passed,
                                               .arg = passing,
                                               .names = passing->names};
    passing->call.name_count = take_names(store, passing);
    if (passing->call.name_count == 0)
        passed(&passing->call);
    else
        submit_below(store, &passing->call);
}

/* ---- the connector's functions --------------------------------------------------------------- */

static void submit(struct tierce__connector *connector, struct tierce__store_req *req)
{
    struct lmcache_store *store = store_of(connector);
    bool is_one = req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT ||
                  req->op == TIERCE__STORE_DELETE;
    req->found = 0;
    if (is_one && req->name_count == 1)
        begin_task(store, req);
    else if (req->op == TIERCE__STORE_LOOKUP)
        look_up(store, req);
    else if (req->op == TIERCE__STORE_PING)
        submit_below(store, req);
    else
        answer(req, is_one ? TIERCE_E_ARGUMENT : TIERCE_E_UNSUPPORTED);
}

/* Reports this layer's own rejection, unless the store below has failed since. */
static void get_why(struct tierce__connector *connector, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct lmcache_store *store = store_of(connector);
    store->below->ops->why(store->below, why);
    if (why[0] != '\0')
        return;
    tierce__lock_take(&store->lock);
    memcpy(why, store->why, sizeof(store->why));
    tierce__lock_drop(&store->lock);
}

static void get_stats(struct tierce__connector *connector, struct tierce__tier_stats *out)
{
    struct lmcache_store *store = store_of(connector);
    store->below->ops->stats(store->below, out);
}

static bool close_store(struct tierce__connector *connector, uint64_t deadline_ns)
{
    struct lmcache_store *store = store_of(connector);
    if (!store->below->ops->close(store->below, deadline_ns))
        return false;
    tierce__pool_destroy(store->scratch);
    tierce__lock_fini(&store->lock);
    tierce__free(store);
    return true;
}

static bool model_is_sane(const char *model)
{
    struct tierce__lmcache_key key = {.model = model,
                                      .model_bytes = strlen(model),
                                      .hash = {.digits = 1},
                                      .dtype = "half",
                                      .layer = -1};
    char text[TIERCE__CONNECTOR_NAME_MAX];
    return strlen(model) <= TIERCE__LMCACHE_MODEL_MAX &&
           tierce__lmcache_key_format(text, sizeof(text), &key) > 0;
}

int tierce__lmcache_store_open(struct tierce__connector **out,
                               const struct tierce__lmcache_store_opts *opts)
{
    if (!model_is_sane(opts->model))
        return TIERCE_E_CONFIG;
    struct lmcache_store *store = tierce__calloc(1, sizeof(*store));
    if (store == NULL)
        return -ENOMEM;
    int rc = tierce__pool_create(
        &store->scratch, &(struct tierce__pool_opts){.size = sizeof(struct tierce__pool_opts),
                                                     .cap_bytes = SCRATCH_BYTES,
                                                     .no_touch = true});
    if (rc != 0) {
        tierce__free(store);
        return rc;
    }
    store->ops = (struct tierce__connector_ops){.scheme = opts->connector->ops->scheme,
                                                .submit = submit,
                                                .why = get_why,
                                                .stats = get_stats,
                                                .close = close_store};
    store->base.ops = &store->ops;
    store->below = opts->connector;
    store->names = opts->names;
    snprintf(store->model, sizeof(store->model), "%s", opts->model);
    tierce__lock_init(&store->lock, TIERCE__LOCK_CONNECTOR);
    *out = &store->base;
    return 0;
}
