/* SPDX-License-Identifier: Apache-2.0 */
#include "check_main.h"
#include "fleet_fake.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "core/key/key_text.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"

#include <pthread.h>

enum { BLOCKS = 8192, SESSIONS = 64, KEYS_MAX = 65, PARTS = 4 };

static const char *const methods[FLEET_FAKE_CALLS] = {
    [FLEET_FAKE_INFO] = "GetInstanceInfo",    [FLEET_FAKE_META] = "GetCacheMeta",
    [FLEET_FAKE_LOCATE] = "GetCacheLocation", [FLEET_FAKE_START] = "StartWriteCache",
    [FLEET_FAKE_FINISH] = "FinishWriteCache", [FLEET_FAKE_REMOVE] = "RemoveCache",
    [FLEET_FAKE_RENEW] = "RenewWriteCache",   [FLEET_FAKE_REPORT] = "ReportCache",
    [FLEET_FAKE_HINT] = "HintCache"};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;

static struct {
    struct store_connector *store;
    struct block {
        int64_t key;
        enum fleet_fake_state state;
        int64_t bytes;
        const char *hint;
    } blocks[BLOCKS];
    size_t block_count;
    struct session {
        bool is_open;
        int64_t keys[KEYS_MAX];
        size_t count;
    } sessions[SESSIONS];
    size_t session_count; /* so far */
    bool holds[FLEET_FAKE_CALLS], is_sized, is_full, is_awake, is_closed;
    _Atomic bool is_marked, is_replaced;
    _Atomic unsigned reopened;
    struct {
        int status;
        char why[128];
        unsigned times;
        bool after;
    } fails[FLEET_FAKE_CALLS];
    unsigned counts[FLEET_FAKE_CALLS], outdated;
    fleet_fake_lie_fn *lies[FLEET_FAKE_CALLS];
    const char *uri;
    uint64_t generation; /* in answers */
    int64_t first_key;
    int registers;
    struct tierce__list calls; /* that are not delivered */
} fake;

/* ---- what tests set -------------------------------------------------------------------------- */

static void lock(void)
{
    pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void fleet_fake_start(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
    memset(&fake, 0, sizeof(fake));
    tierce__list_init(&fake.calls);
    fake.store = store_connector_create(false);
}

void fleet_fake_stop(void)
{
    struct tierce__connector *base = store_connector_base(fake.store);
    if (!fake.is_closed) /* the connector was not opened */
        ck_assert(base->ops->close(base, 0));
    pthread_cond_destroy(&changed);
}

struct store_connector *fleet_fake_store(void)
{
    return fake.store;
}

void fleet_fake_fail(enum fleet_fake_call call, int status, const char *why, unsigned times,
                     bool after)
{
    lock();
    fake.fails[call].status = status;
    snprintf(fake.fails[call].why, sizeof(fake.fails[call].why), "%s", why);
    fake.fails[call].times = times;
    fake.fails[call].after = after;
    unlock();
}

void fleet_fake_hold(enum fleet_fake_call call)
{
    lock();
    fake.holds[call] = true;
    unlock();
}

void fleet_fake_let_go(void)
{
    lock();
    memset(fake.holds, 0, sizeof(fake.holds));
    fake.is_awake = true;
    unlock();
}

static enum fleet_fake_call kind_of(const struct tierce__fleet_call *call)
{
    for (int i = 0; i < FLEET_FAKE_CALLS; i++) {
        if (strcmp(call->method, methods[i]) == 0)
            return (enum fleet_fake_call)i;
    }
    ck_abort_msg("no call %s", call->method);
    return FLEET_FAKE_CALLS;
}

static struct tierce__fleet_call *call_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__fleet_call, node);
}

unsigned fleet_fake_held(void)
{
    unsigned count = 0;
    lock();
    TIERCE__LIST_FOR_EACH (it, &fake.calls)
        count += fake.holds[kind_of(call_of(it))];
    unlock();
    return count;
}

void fleet_fake_set_generation(uint64_t generation)
{
    lock();
    fake.generation = generation;
    unlock();
}

unsigned fleet_fake_count(enum fleet_fake_call call)
{
    lock();
    unsigned count = fake.counts[call];
    unlock();
    return count;
}

void fleet_fake_lie(enum fleet_fake_call call, fleet_fake_lie_fn *lie)
{
    lock();
    fake.lies[call] = lie;
    unlock();
}

/* Locked. */
static struct block *block_of(int64_t key)
{
    for (size_t i = 0; i < fake.block_count; i++) {
        if (fake.blocks[i].key == key)
            return &fake.blocks[i];
    }
    ck_assert_uint_lt(fake.block_count, BLOCKS);
    fake.blocks[fake.block_count] =
        (struct block){.key = key, .bytes = FLEET_FAKE_BYTES, .hint = ""};
    return &fake.blocks[fake.block_count++];
}

void fleet_fake_set(int64_t key, enum fleet_fake_state state)
{
    lock();
    block_of(key)->state = state;
    unlock();
}

enum fleet_fake_state fleet_fake_state(int64_t key)
{
    lock();
    enum fleet_fake_state state = block_of(key)->state;
    unlock();
    return state;
}

const char *fleet_fake_hint(int64_t key)
{
    lock();
    const char *hint = block_of(key)->hint;
    unlock();
    return hint;
}

void fleet_fake_set_full(bool is_full)
{
    lock();
    fake.is_full = is_full;
    unlock();
}

void fleet_fake_set_sized(void)
{
    lock();
    fake.is_sized = true;
    unlock();
}

void fleet_fake_set_uri(const char *format)
{
    lock();
    fake.uri = format;
    unlock();
}

int64_t fleet_fake_first_key(void)
{
    lock();
    int64_t key = fake.first_key;
    unlock();
    return key;
}

void fleet_fake_set_register(int status)
{
    lock();
    fake.registers = status;
    unlock();
}

unsigned fleet_fake_outdated(void)
{
    lock();
    unsigned count = fake.outdated;
    unlock();
    return count;
}

/* ---- the manager's answers ------------------------------------------------------------------- */

static char *text_in(ProtobufCMessage *reply, const char *text)
{
    char *copy = tierce__proto_alloc(reply, strlen(text) + 1);
    if (copy != NULL)
        memcpy(copy, text, strlen(text) + 1);
    return copy;
}

static void uri_of(char uri[1024], int64_t key)
{
    if (fake.uri == NULL) {
        snprintf(uri, 1024, "fake://s/%lld?size=%lld", (long long)key,
                 (long long)block_of(key)->bytes);
        return;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(uri, 1024, fake.uri, (long long)key);
#pragma GCC diagnostic pop
}

/* NULL: no memory. `spec` NULL: a location without a place. */
static Meta__CacheLocation *location_of(ProtobufCMessage *reply, int64_t key, const char *spec)
{
    char uri[1024];
    Meta__CacheLocation *location =
        (Meta__CacheLocation *)(void *)tierce__proto_add(reply, &meta__cache_location__descriptor);
    Meta__LocationSpec *it =
        (Meta__LocationSpec *)(void *)tierce__proto_add(reply, &meta__location_spec__descriptor);
    Meta__LocationSpec **list = tierce__proto_alloc(reply, sizeof(*list));
    uri_of(uri, key);
    char *name = text_in(reply, spec != NULL ? spec : "tp0");
    char *place = text_in(reply, spec != NULL ? uri : "");
    if (location == NULL || it == NULL || list == NULL || name == NULL || place == NULL)
        return NULL;
    it->name = name;
    it->uri = place;
    list[0] = it;
    location->location_specs = list;
    location->n_location_specs = 1;
    return location;
}

static bool locate(ProtobufCMessage *out, const ProtobufCMessage *in)
{
    const Meta__GetCacheLocationRequest *request = (const Meta__GetCacheLocationRequest *)in;
    Meta__GetCacheLocationResponse *reply = (Meta__GetCacheLocationResponse *)out;
    bool prefix = request->query_type == META__QUERY_TYPE__QT_PREFIX_MATCH;
    ck_assert_uint_eq(request->n_location_spec_names, 1);
    ck_assert_str_eq(request->instance_id, "i");
    reply->locations =
        tierce__proto_alloc(out, (request->n_block_keys + 1) * sizeof(*reply->locations));
    if (reply->locations == NULL)
        return false;
    for (size_t i = 0; i < request->n_block_keys; i++) {
        bool serves = block_of(request->block_keys[i])->state == FLEET_FAKE_SERVING;
        if (prefix && !serves)
            break;
        reply->locations[i] = location_of(out, request->block_keys[i],
                                          serves ? request->location_spec_names[0] : NULL);
        if (reply->locations[i] == NULL)
            return false;
        reply->n_locations++;
    }
    return true;
}

static bool look(ProtobufCMessage *out, const ProtobufCMessage *in)
{
    const Meta__GetCacheMetaRequest *request = (const Meta__GetCacheMetaRequest *)in;
    Meta__GetCacheMetaResponse *reply = (Meta__GetCacheMetaResponse *)out;
    static const char *const states[] = {"{\"id\":\"\",\"status\":\"CLS_NOT_FOUND\"}",
                                         "{\"id\":\"a\",\"status\":\"CLS_WRITING\"}",
                                         "{\"id\":\"a\",\"status\":\"CLS_SERVING\"}"};
    size_t count = request->n_block_keys;
    reply->locations = tierce__proto_alloc(out, (count + 1) * sizeof(*reply->locations));
    reply->metas = tierce__proto_alloc(out, (count + 1) * sizeof(*reply->metas));
    if (reply->locations == NULL || reply->metas == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        enum fleet_fake_state state = block_of(request->block_keys[i])->state;
        reply->locations[i] =
            location_of(out, request->block_keys[i], state == FLEET_FAKE_SERVING ? "tp0" : NULL);
        reply->metas[i] = text_in(out, states[state]);
        if (reply->locations[i] == NULL || reply->metas[i] == NULL)
            return false;
    }
    reply->n_locations = reply->n_metas = count;
    return true;
}

static const char *hint_text(const Meta__SessionHint *hint)
{
    if (hint == NULL)
        return "";
    ck_assert_int_eq(hint->ttl_s, 0);
    if (hint->returns_in_s > 0)
        return hint->returns_in_s <= TIERCE__HINT_SOON_S ? "soon" : "later";
    return strcmp(hint->session, "open") == 0 ? "open" : "closed";
}

static void hint_blocks(const ProtobufCMessage *in)
{
    const Meta__HintCacheRequest *request = (const Meta__HintCacheRequest *)in;
    for (size_t i = 0; i < request->n_block_keys; i++) {
        struct block *block = block_of(request->block_keys[i]);
        if (block->state == FLEET_FAKE_SERVING)
            block->hint = hint_text(request->hint);
    }
}

static bool start_write(ProtobufCMessage *out, const ProtobufCMessage *in)
{
    const Meta__StartWriteCacheRequest *request = (const Meta__StartWriteCacheRequest *)in;
    Meta__StartWriteCacheResponse *reply = (Meta__StartWriteCacheResponse *)out;
    char id[32];
    size_t count = request->n_block_keys, number = fake.session_count++;
    struct session *session = &fake.sessions[number % SESSIONS];
    ck_assert_uint_le(count, KEYS_MAX);
    ck_assert(request->n_block_sizes == 0 || request->n_block_sizes == count);
    if (count > 1)
        fake.first_key = request->block_keys[0];
    *session = (struct session){.is_open = true};
    Meta__BlockMask *mask =
        (Meta__BlockMask *)(void *)tierce__proto_add(out, &meta__block_mask__descriptor);
    Meta__BoolMasksType *masks =
        (Meta__BoolMasksType *)(void *)tierce__proto_add(out, &meta__bool_masks_type__descriptor);
    protobuf_c_boolean *values = tierce__proto_alloc(out, (count + 1) * sizeof(*values));
    reply->locations = tierce__proto_alloc(out, (count + 1) * sizeof(*reply->locations));
    snprintf(id, sizeof(id), "session%zu", number);
    char *text = text_in(out, id);
    if (mask == NULL || masks == NULL || values == NULL || reply->locations == NULL || text == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct block *block = block_of(request->block_keys[i]);
        values[i] = block->state != FLEET_FAKE_ABSENT || fake.is_full;
        if (values[i])
            continue;
        session->keys[session->count++] = block->key;
        block->hint = hint_text(request->hint);
        bool is_sized = fake.is_sized && i < request->n_block_sizes && request->block_sizes[i] > 0;
        block->bytes = is_sized ? request->block_sizes[i] : FLEET_FAKE_BYTES;
        Meta__CacheLocation *location = location_of(out, block->key, "tp0");
        if (location == NULL)
            return false;
        reply->locations[reply->n_locations++] = location;
    }
    for (size_t i = 0; i < session->count; i++)
        block_of(session->keys[i])->state = FLEET_FAKE_WRITING;
    masks->values = values;
    masks->n_values = count;
    mask->info_case = META__BLOCK_MASK__INFO_BOOL_MASKS;
    mask->bool_masks = masks;
    reply->block_mask = mask;
    reply->write_session_id = text;
    return true;
}

/* TIERCE_E_MISS: no such session. */
static int finish_write(const ProtobufCMessage *in)
{
    const Meta__FinishWriteCacheRequest *request = (const Meta__FinishWriteCacheRequest *)in;
    size_t number = 0;
    if (sscanf(request->write_session_id, "session%zu", &number) != 1 ||
        !fake.sessions[number % SESSIONS].is_open)
        return TIERCE_E_MISS;
    struct session *session = &fake.sessions[number % SESSIONS];
    const Meta__BlockMask *mask = request->success_blocks;
    ck_assert_int_eq(mask->info_case, META__BLOCK_MASK__INFO_BOOL_MASKS);
    ck_assert_uint_eq(mask->bool_masks->n_values, session->count);
    for (size_t i = 0; i < session->count; i++)
        block_of(session->keys[i])->state =
            mask->bool_masks->values[i] ? FLEET_FAKE_SERVING : FLEET_FAKE_ABSENT;
    session->is_open = false;
    return 0;
}

static void drop_reported(const ProtobufCMessage *in)
{
    const Meta__ReportCacheRequest *request = (const Meta__ReportCacheRequest *)in;
    char uri[1024];
    for (size_t i = 0; i < request->n_reports; i++) {
        uri_of(uri, request->reports[i]->block_key);
        ck_assert_int_ne(request->reports[i]->reason, META__REPORT_REASON__RR_UNSPECIFIED);
        if (strcmp(uri, request->reports[i]->uri) == 0)
            block_of(request->reports[i]->block_key)->state = FLEET_FAKE_ABSENT;
    }
}

static int answer(enum fleet_fake_call kind, ProtobufCMessage *out, const ProtobufCMessage *in)
{
    switch (kind) {
    case FLEET_FAKE_META:
        return look(out, in) ? 0 : -ENOMEM;
    case FLEET_FAKE_LOCATE:
        return locate(out, in) ? 0 : -ENOMEM;
    case FLEET_FAKE_START:
        return start_write(out, in) ? 0 : -ENOMEM;
    case FLEET_FAKE_FINISH:
        return finish_write(in);
    case FLEET_FAKE_REMOVE: {
        const Meta__RemoveCacheRequest *request = (const Meta__RemoveCacheRequest *)in;
        for (size_t i = 0; i < request->n_block_keys; i++)
            block_of(request->block_keys[i])->state = FLEET_FAKE_ABSENT;
        return 0;
    }
    case FLEET_FAKE_REPORT:
        drop_reported(in);
        return 0;
    case FLEET_FAKE_HINT:
        hint_blocks(in);
        return 0;
    case FLEET_FAKE_INFO:
    case FLEET_FAKE_RENEW:
    case FLEET_FAKE_CALLS:
        break;
    }
    return 0;
}

/* ---- in place of fleet_manager.c ------------------------------------------------------------- */

static int the_manager; /* there is one */

int tierce__fleet_manager_open(struct tierce__fleet_manager **out,
                               const struct tierce__fleet_manager_opts *opts,
                               char why[TIERCE__FLEET_WHY_BYTES])
{
    (void)opts, (void)why;
    *out = (struct tierce__fleet_manager *)(void *)&the_manager;
    return 0;
}

void tierce__fleet_manager_close(struct tierce__fleet_manager *manager)
{
    if (manager == NULL)
        return;
    lock();
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fake.calls) {
        tierce__list_remove(it);
        tierce__proto_free(call_of(it)->reply);
        call_of(it)->reply = NULL;
    }
    unlock();
}

static void fail_call(struct tierce__fleet_call *call, int status, const char *why)
{
    call->status = status;
    tierce__proto_free(call->reply);
    call->reply = NULL;
    snprintf(call->why, sizeof(call->why), "fake: %s: %s", call->method, why);
}

void tierce__fleet_manager_start(struct tierce__fleet_manager *manager,
                                 struct tierce__fleet_call *call)
{
    enum fleet_fake_call kind = kind_of(call);
    (void)manager;
    tierce__list_init(&call->node);
    call->status = 0;
    call->reply = tierce__proto_create(call->answers);
    call->begun_ns = tierce__now_ns();
    lock();
    call->generation = fake.generation;
    fake.counts[kind]++;
    bool fails = fake.fails[kind].times > 0;
    fake.fails[kind].times -= fails;
    int rc = call->reply == NULL ? -ENOMEM : 0;
    if (rc == 0 && (!fails || fake.fails[kind].after))
        rc = answer(kind, call->reply, call->request);
    if (rc == 0 && !fails && fake.lies[kind] != NULL)
        fake.lies[kind](call->reply);
    if (fails)
        fail_call(call, fake.fails[kind].status, fake.fails[kind].why);
    else if (rc < 0)
        fail_call(call, rc, rc == -ENOMEM ? "no memory" : "no such session");
    tierce__list_push_back(&fake.calls, &call->node);
    unlock();
}

/* Locked. A call that can be delivered, or NULL and the next deadline of those that are held. */
static struct tierce__fleet_call *find_due(uint64_t *until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH (it, &fake.calls) {
        struct tierce__fleet_call *call = call_of(it);
        if (!fake.holds[kind_of(call)])
            return call;
        if (call->deadline_ns <= now_ns) {
            fail_call(call, TIERCE_E_DEADLINE, "no answer in time");
            return call;
        }
        if (call->deadline_ns < *until_ns)
            *until_ns = call->deadline_ns;
    }
    return NULL;
}

static bool wait_until(uint64_t until_ns)
{
    if (until_ns == TIERCE__DEADLINE_NEVER) {
        pthread_cond_wait(&changed, &mutex);
        return true;
    }
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                             .tv_nsec = (long)(until_ns % 1000000000)};
    return pthread_cond_timedwait(&changed, &mutex, &until) == 0;
}

void tierce__fleet_manager_poll(struct tierce__fleet_manager *manager, uint64_t until_ns)
{
    struct tierce__fleet_call *call;
    bool in_time = true;
    (void)manager;
    pthread_mutex_lock(&mutex);
    while ((call = find_due(&until_ns)) == NULL && !fake.is_awake && in_time)
        in_time = tierce__now_ns() < until_ns && wait_until(until_ns);
    fake.is_awake = false;
    if (call != NULL)
        tierce__list_remove(&call->node);
    pthread_mutex_unlock(&mutex);
    if (call != NULL)
        call->done(call);
}

void tierce__fleet_manager_wake(struct tierce__fleet_manager *manager)
{
    (void)manager;
    lock();
    fake.is_awake = true;
    unlock();
}

void tierce__fleet_manager_stats(struct tierce__fleet_manager *manager,
                                 struct tierce__tier_stats *out)
{
    (void)manager;
    out->connections = out->connects = 1;
}

/* ---- in place of fleet_part.c ---------------------------------------------------------------- */

struct tierce__fleet_parts {
    struct tierce__fleet_part parts[PARTS];
    tierce__fleet_invalidated_fn *invalidated;
    void *arg;
    size_t count;
};

int tierce__fleet_parts_open(struct tierce__fleet_parts **out,
                             const struct tierce__fleet_parts_opts *opts)
{
    struct tierce__fleet_parts *parts = tierce__calloc(1, sizeof(*parts));
    if (parts == NULL)
        return -ENOMEM;
    parts->invalidated = opts->invalidated;
    parts->arg = opts->arg;
    *out = parts;
    return 0;
}

void tierce__fleet_parts_close(struct tierce__fleet_parts *parts)
{
    tierce__free(parts);
}

int tierce__fleet_part_of(struct tierce__fleet_parts *parts, struct tierce__fleet_part **part,
                          int64_t *block_key, const struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    if (tierce__key_text_parse(digest, &shard, hash, name->text, name->bytes) < 0)
        return TIERCE_E_ARGUMENT;
    memcpy(block_key, hash, sizeof(*block_key));
    size_t at = 0;
    while (at < parts->count && memcmp(&parts->parts[at].shard, &shard, sizeof(shard)) != 0)
        at++;
    if (at == PARTS)
        return TIERCE_E_LIMIT;
    *part = &parts->parts[at];
    if (at < parts->count)
        return 0;
    parts->count++;
    **part = (struct tierce__fleet_part){.shard = shard,
                                         .instance = "i",
                                         .has_groups = shard.tp_size > 1,
                                         .object_bytes = FLEET_FAKE_BYTES,
                                         .serves = 1,
                                         .invalidated = parts->invalidated,
                                         .invalidated_arg = parts->arg};
    snprintf((*part)->spec, sizeof((*part)->spec), "tp%u", (unsigned)shard.tp_rank);
    return 0;
}

struct tierce__fleet_part *tierce__fleet_part_find(struct tierce__fleet_parts *parts,
                                                   const uint8_t ns_digest[TIERCE_HASH_BYTES],
                                                   const struct tierce_shard *shard)
{
    (void)ns_digest;
    for (size_t i = 0; i < parts->count; i++) {
        if (memcmp(&parts->parts[i].shard, shard, sizeof(*shard)) == 0)
            return &parts->parts[i];
    }
    return NULL;
}

void tierce__fleet_parts_ask(struct tierce__fleet_parts *parts, uint64_t *until_ns)
{
    (void)parts, (void)until_ns;
}

const char *tierce__fleet_parts_why(const struct tierce__fleet_parts *parts)
{
    (void)parts;
    return "fake: no part";
}

void tierce__fleet_expire(struct tierce__fleet_parts *parts, uint64_t *until_ns)
{
    (void)parts, (void)until_ns;
}

void tierce__fleet_register(struct tierce__fleet_parts *parts, struct tierce__fleet_part *part,
                            struct tierce__fleet_wait *wait)
{
    (void)parts;
    lock();
    int status = fake.registers;
    unlock();
    part->state = status < 0 ? TIERCE__FLEET_NEW : TIERCE__FLEET_REGISTERED;
    snprintf(part->why, sizeof(part->why), "%s", status < 0 ? "fake: not registered" : "");
    wait->done(wait, status);
}

void tierce__fleet_part_outdated(struct tierce__fleet_part *part)
{
    (void)part;
    lock();
    fake.outdated++;
    unlock();
}

/* ---- in place of fleet_stores.c -------------------------------------------------------------- */

struct tierce__fleet_stores {
    bool is_open;
};
static struct tierce__fleet_stores the_stores;

int tierce__fleet_stores_open(struct tierce__fleet_stores **out,
                              const struct tierce__fleet_stores_opts *opts)
{
    (void)opts;
    the_stores.is_open = true;
    *out = &the_stores;
    return 0;
}

uint64_t tierce__fleet_stores_registry(struct tierce__fleet_stores *stores)
{
    ck_assert(stores->is_open);
    return 1;
}

bool tierce__fleet_stores_close(struct tierce__fleet_stores *stores, uint64_t deadline_ns)
{
    struct tierce__connector *base = store_connector_base(fake.store);
    ck_assert(stores->is_open);
    stores->is_open = false;
    fake.is_closed = true;
    return base->ops->close(base, deadline_ns);
}

int tierce__fleet_place_read(struct tierce__fleet_place *out, char *room, const char *uri,
                             struct tierce__fleet_stores *stores, char why[TIERCE__FLEET_WHY_BYTES])
{
    static const char right[] = "fake://s/", gone[] = "fake://gone/";
    long long key;
    unsigned long long bytes;
    ck_assert(stores->is_open);
    if (strncmp(uri, gone, sizeof(gone) - 1) == 0) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "no storage gone");
        return TIERCE_E_MISS;
    }
    if (strncmp(uri, right, sizeof(right) - 1) != 0 ||
        sscanf(uri + sizeof(right) - 1, "%lld?size=%llu", &key, &bytes) != 2) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "not a place: %.100s", uri);
        return TIERCE_E_FORMAT;
    }
    size_t length = strcspn(uri + sizeof(right) - 1, "?");
    memcpy(room, uri + sizeof(right) - 1, length);
    *out = (struct tierce__fleet_place){.store = (struct tierce__fleet_store *)(void *)&the_stores,
                                        .name = {.text = room, .bytes = length},
                                        .bytes = bytes};
    return 0;
}

void tierce__fleet_store_submit(struct tierce__fleet_store *store, struct tierce__store_req *req)
{
    (void)store;
    struct tierce__connector *base = store_connector_base(fake.store);
    base->ops->submit(base, req);
}

const char *tierce__fleet_store_name(const struct tierce__fleet_store *store)
{
    (void)store;
    return "s";
}

void tierce__fleet_store_why(struct tierce__fleet_store *store, char why[TIERCE__FLEET_WHY_BYTES])
{
    (void)store;
    snprintf(why, TIERCE__FLEET_WHY_BYTES, "s: the fake's");
}

bool tierce__fleet_store_is_current(const struct tierce__fleet_store *store)
{
    (void)store;
    return !atomic_load(&fake.is_replaced);
}

bool tierce__fleet_store_is_marked(struct tierce__fleet_store *store)
{
    (void)store;
    return atomic_load(&fake.is_marked);
}

void tierce__fleet_store_reopen(struct tierce__fleet_store *store)
{
    (void)store;
    atomic_fetch_add(&fake.reopened, 1);
}

void fleet_fake_set_marked(void)
{
    atomic_store(&fake.is_marked, true);
}

void fleet_fake_set_replaced(bool is_replaced)
{
    atomic_store(&fake.is_replaced, is_replaced);
}

unsigned fleet_fake_reopened(void)
{
    return atomic_load(&fake.reopened);
}
