/* SPDX-License-Identifier: Apache-2.0 */
/* Names of chunks as a manager knows them: an instance, a spec and a block key. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/json/json.h"
#include "base/log/log.h"
#include "base/text/utf8.h"
#include "core/chunk/header.h"
#include "core/key/key_text.h"
#include "core/key/namespace.h"
#include "core/key/namespaces.h"
#include "core/key/sha256.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_private.h"
#include "store/remote/fleet/storage_at.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tierce/version.h>

#define PARTS_MAX   256u
#define RANKS_MAX   1024u
#define NAME_BYTES  64u
#define HEX_BYTES   (2u * TIERCE_HASH_BYTES)
#define REGISTER_MS 5000u  /* at most: waiters have deadlines of their own */
#define REJECTED_MS 60000u /* until the manager is asked again */
#define AGAIN_MS    1000u  /* between two registrations of a part */
#define HEAR_MS     5000u  /* without an answer about a part, until the manager is asked */

struct tierce__fleet_parts {
    struct tierce__fleet_manager *manager;
    struct tierce__fleet_stores *stores;
    struct tierce__namespaces *namespaces;
    char *group, *instance; /* instance NULL: by namespace */
    tierce__fleet_invalidated_fn *invalidated;
    void *arg;
    struct tierce__list parts;
    size_t part_count;
    /* The name of a part that was found last: the names of a prompt differ in their hashes. */
    struct tierce__fleet_part *last;
    char last_name[TIERCE__KEY_TEXT_BYTES];
    size_t last_bytes;
    char why[TIERCE__FLEET_WHY_BYTES];
};

/* A part, and what its registration needs. */
struct part {
    struct tierce__fleet_part base;
    struct tierce__fleet_parts *parts;
    char model_name[NAME_BYTES + 16], dtype[NAME_BYTES], extra[TIERCE__ENGINE_EXTRA_BYTES];
    char family[sizeof(((struct tierce__fleet_part *)0)->instance)];
    char layers[256];
    const char *kind; /* of attention */
    int32_t window_tokens;
    bool is_state;
    uint32_t chunk_tokens;
    struct tierce__list waiting; /* tierce__fleet_wait */
    bool outdated;
    int failed; /* how the last registration ended, if the manager is not to be asked again soon */
    struct tierce__fleet_call call;
    struct tierce__fleet_call asking; /* tierce__fleet_parts_ask */
    bool is_asking;
};

static struct part *part_at(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct part, base.node);
}

/* ---- what a registration says about the model ------------------------------------------------ */

/* Cut where a character ends: messages are UTF-8. */
static void copy_name(char *out, size_t room, const char *text, size_t bytes)
{
    size_t used = 0;
    for (size_t n; used < bytes; used += n) {
        n = tierce__utf8_length((const uint8_t *)text + used, bytes - used);
        if (n == 0 || used + n >= room)
            break;
    }
    TIERCE_ASSERT(used < room);
    memcpy(out, text, used);
    out[used] = '\0';
}

/* Takes an object: its "model_type", or that of the "config" in it. */
static bool find_type(struct tierce__json *json, struct tierce__text *type)
{
    struct tierce__text name;
    bool is_found = false;
    if (!tierce__json_object(json))
        return false;
    while (tierce__json_member(json, &name)) {
        char kind = tierce__json_kind(json);
        if (kind == '"' && name.length == 10 && memcmp(name.at, "model_type", 10) == 0)
            is_found |= tierce__json_plain(json, type);
        else if (kind == '{' && !is_found && name.length == 6 && memcmp(name.at, "config", 6) == 0)
            is_found |= find_type(json, type);
        else
            tierce__json_skip(json);
    }
    return is_found;
}

/* For people: the model's type, if the configuration has one, and the beginning of the fingerprint
 * of the weights. */
static void name_model(struct part *part, const struct tierce_namespace *ns)
{
    struct tierce__json json;
    struct tierce__text type = {.at = "model", .length = 5};
    char name[NAME_BYTES];
    /* Behind the model there are the other fields of the text, more than TIERCE__JSON_SLACK. */
    tierce__json_start(&json, ns->model, strlen(ns->model));
    json.takes_nan = true;
    if (!find_type(&json, &type) || type.length == 0)
        type = (struct tierce__text){.at = "model", .length = 5};
    copy_name(name, sizeof(name), type.at, type.length);
    snprintf(part->model_name, sizeof(part->model_name), "%s-%.8s", name, ns->weights);
    if (ns->kv_dtype[0] != '\0')
        copy_name(part->dtype, sizeof(part->dtype), ns->kv_dtype, strlen(ns->kv_dtype));
    else
        snprintf(part->dtype, sizeof(part->dtype), "unknown");
}

/* ---- instance and spec ----------------------------------------------------------------------- */

/* "linear" is the word of KVCM's users. */
static const char *kind_of(enum tierce_group group)
{
    const char *name = tierce_group_name(group);
    TIERCE_ASSERT(name != NULL);
    return group == TIERCE_GROUP_STATE ? "linear" : name;
}

static int name_instance(struct part *part, struct tierce__fleet_parts *parts,
                         const struct tierce_namespace *ns)
{
    const struct tierce_shard *shard = &part->base.shard;
    bool is_exact = parts->instance != NULL && ns->group == TIERCE_GROUP_ALL;
    char begin[48], group[32] = "", ranks[16] = "", stage[24] = "";
    snprintf(begin, sizeof(begin), "tierce-%.32s", part->extra);
    if (!is_exact)
        snprintf(group, sizeof(group), "-%s-%.8s", kind_of(ns->group), part->extra + HEX_BYTES + 1);
    if (!is_exact && shard->tp_size > 1)
        snprintf(ranks, sizeof(ranks), "-tp%u", shard->tp_size);
    if (shard->pp_size > 1)
        snprintf(stage, sizeof(stage), "-pp%uof%u", shard->pp_rank, shard->pp_size);
    int n = snprintf(part->base.instance, sizeof(part->base.instance), "%s%s%s%s",
                     parts->instance != NULL ? parts->instance : begin, group, ranks, stage);
    snprintf(part->base.spec, sizeof(part->base.spec), "tp%u", shard->tp_rank);
    part->base.has_groups = shard->tp_size > 1;
    TIERCE_DASSERT(n > 0 && shard->tp_rank < shard->tp_size);
    if ((size_t)n < sizeof(part->base.instance))
        return 0;
    snprintf(parts->why, sizeof(parts->why),
             "the instance in the URL is too long: with \"%s%s%s\" it has %d characters, %zu are "
             "possible",
             group, ranks, stage, n, sizeof(part->base.instance) - 1);
    return TIERCE_E_ARGUMENT;
}

/* The layers of a group, or "all", and the stage. Of very many layers, a digest. */
static void name_layers(struct part *part, const char *text)
{
    const struct tierce_shard *shard = &part->base.shard;
    const char *line = strstr(text, "\nlayers=");
    size_t bytes = line != NULL ? strcspn(line + 8, "\n") : 3;
    char stage[24] = "";
    if (shard->pp_size > 1)
        snprintf(stage, sizeof(stage), " pp%uof%u", shard->pp_rank, shard->pp_size);
    if (bytes < sizeof(part->layers) - sizeof(stage)) {
        snprintf(part->layers, sizeof(part->layers), "%.*s%s", (int)bytes,
                 line != NULL ? line + 8 : "all", stage);
        return;
    }
    uint8_t digest[TIERCE_HASH_BYTES];
    char hex[HEX_BYTES + 1];
    tierce__sha256(digest, line, bytes + 8);
    tierce__hex_encode(hex, digest, sizeof(digest));
    snprintf(part->layers, sizeof(part->layers), "%s%s", hex, stage);
}

/* Instances of one family hold the groups of layers of one model, for engines with equal ranks, and
 * their keys are equal for equal tokens. If the name is too long, there is no family. */
static void describe_attention(struct part *part, const struct tierce__fleet_parts *parts,
                               const char *text, const struct tierce_namespace *ns)
{
    enum { DIGITS = 16 };
    uint8_t digest[TIERCE_HASH_BYTES];
    char hex[HEX_BYTES + 1];
    tierce__namespace_pairs(digest, text, ns->block_tokens);
    tierce__hex_encode(hex, digest, sizeof(digest));
    int n = snprintf(part->family, sizeof(part->family), "%s-%.*s-tp%u-pp%u",
                     parts->instance != NULL ? parts->instance : "tierce", DIGITS, hex,
                     part->base.shard.tp_size, part->base.shard.pp_size);
    TIERCE_DASSERT(n > DIGITS);
    if ((size_t)n >= sizeof(part->family))
        part->family[0] = '\0';
    part->kind = kind_of(ns->group);
    part->is_state = ns->group == TIERCE_GROUP_STATE;
    if (ns->group == TIERCE_GROUP_WINDOW || ns->group == TIERCE_GROUP_CHUNKED)
        part->window_tokens = ns->window < INT32_MAX ? (int32_t)ns->window : INT32_MAX;
    name_layers(part, text);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The text of a namespace; NULL: not known (yet). Errors: TIERCE_E_LIMIT, -ENOMEM. */
static int find_text(struct tierce__fleet_parts *parts, const char **text,
                     const uint8_t digest[TIERCE_HASH_BYTES])
{
    int64_t id = tierce__namespaces_intern(parts->namespaces, digest, NULL);
    if (id == TIERCE_E_LIMIT)
        snprintf(parts->why, sizeof(parts->why), "the engine knows too many namespaces");
    if (id < 0)
        return (int)id;
    *text = tierce__namespaces_text(parts->namespaces, (uint32_t)id);
    return 0;
}

static int describe(struct part *part, struct tierce__fleet_parts *parts, const char *text,
                    const struct tierce_namespace *ns)
{
    uint8_t family[TIERCE_HASH_BYTES];
    struct tierce__extent extent;
    uint64_t chunk_tokens = (uint64_t)ns->block_tokens * ns->chunk_blocks;
    int rc = chunk_tokens > INT32_MAX
                 ? TIERCE_E_LIMIT
                 : tierce__chunk_extent(
                       &extent, &(struct tierce__geometry){.layer_count = ns->layer_count,
                                                           .cell_bytes = ns->cell_bytes,
                                                           .block_tokens = ns->block_tokens,
                                                           .block_count = ns->chunk_blocks});
    if (rc < 0) {
        snprintf(parts->why, sizeof(parts->why),
                 "chunks of this namespace are too large for a manager: %u blocks of %u tokens",
                 ns->chunk_blocks, ns->block_tokens);
        return TIERCE_E_ARGUMENT;
    }
    part->chunk_tokens = (uint32_t)chunk_tokens;
    part->base.object_bytes = extent.object_bytes;
    tierce__namespace_family(family, text, chunk_tokens);
    tierce__engine_extra(part->extra, family, part->base.ns_digest);
    name_model(part, ns);
    describe_attention(part, parts, text, ns);
    return name_instance(part, parts, ns);
}

/* Completes a part whose namespace and shard are set. */
static int read_namespace(struct part *part, struct tierce__fleet_parts *parts)
{
    struct tierce__namespace_read read;
    const char *text = NULL;
    char hex[HEX_BYTES + 1];
    int rc = find_text(parts, &text, part->base.ns_digest);
    if (rc < 0)
        return rc;
    rc = text != NULL ? tierce__namespace_read(&read, text) : TIERCE_E_ARGUMENT;
    if (rc == -ENOMEM)
        return rc;
    if (rc < 0) {
        tierce__hex_encode(hex, part->base.ns_digest, TIERCE_HASH_BYTES);
        snprintf(parts->why, sizeof(parts->why), "the text of namespace %s %s", hex,
                 text == NULL ? "is not known; the engine must open it first"
                              : "is not one of this version");
        return TIERCE_E_ARGUMENT;
    }
    rc = describe(part, parts, text, &read.ns);
    tierce__namespace_read_fini(&read);
    return rc;
}

static int make_part(struct tierce__fleet_parts *parts, struct part **out,
                     const uint8_t digest[TIERCE_HASH_BYTES], const struct tierce_shard *shard)
{
    if (shard->tp_size > RANKS_MAX) {
        snprintf(parts->why, sizeof(parts->why), "%u tensor ranks; at most %u are possible",
                 shard->tp_size, RANKS_MAX);
        return TIERCE_E_ARGUMENT;
    }
    if (parts->part_count == PARTS_MAX) {
        snprintf(parts->why, sizeof(parts->why), "there are %u namespaces and ranks, the maximum",
                 PARTS_MAX);
        return TIERCE_E_LIMIT;
    }
    struct part *part = tierce__calloc(1, sizeof(*part));
    if (part == NULL)
        return -ENOMEM;
    part->parts = parts;
    part->base.shard = *shard;
    part->base.serves = 1; /* generation 0 */
    part->base.invalidated = parts->invalidated;
    part->base.invalidated_arg = parts->arg;
    memcpy(part->base.ns_digest, digest, TIERCE_HASH_BYTES);
    tierce__list_init(&part->waiting);
    int rc = read_namespace(part, parts);
    if (rc < 0) {
        tierce__free(part);
        return rc;
    }
    tierce__list_push_back(&parts->parts, &part->base.node);
    parts->part_count++;
    *out = part;
    return 0;
}

/* The part of a namespace and shard, which is made if there is none. */
static int find_or_make(struct tierce__fleet_parts *parts, struct tierce__fleet_part **part,
                        const uint8_t digest[TIERCE_HASH_BYTES], const struct tierce_shard *shard)
{
    struct part *made = NULL;
    *part = tierce__fleet_part_find(parts, digest, shard);
    if (*part != NULL)
        return 0;
    int rc = make_part(parts, &made, digest, shard);
    if (rc == 0)
        *part = &made->base;
    return rc;
}

int tierce__fleet_part_of(struct tierce__fleet_parts *parts, struct tierce__fleet_part **part,
                          int64_t *block_key, const struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    parts->why[0] = '\0';
    bool is_last = parts->last != NULL &&
                   tierce__key_text_parse_like(hash, parts->last_name, parts->last_bytes,
                                               name->text, name->bytes) == 0;
    if (!is_last && tierce__key_text_parse(digest, &shard, hash, name->text, name->bytes) < 0) {
        snprintf(parts->why, sizeof(parts->why), "the name is not the text of a key");
        return TIERCE_E_ARGUMENT;
    }
    *block_key = (int64_t)tierce__load_le64(hash);
    if (is_last) {
        *part = parts->last;
        return 0;
    }
    int rc = find_or_make(parts, part, digest, &shard);
    if (rc < 0)
        return rc;
    TIERCE_ASSERT(name->bytes < sizeof(parts->last_name));
    memcpy(parts->last_name, name->text, name->bytes);
    parts->last_bytes = name->bytes;
    parts->last = *part;
    return 0;
}

const char *tierce__fleet_parts_why(const struct tierce__fleet_parts *parts)
{
    return parts->why;
}

/* ---- registration ---------------------------------------------------------------------------- */

static void answer_waiters(struct part *part, int status)
{
    struct tierce__list waiting;
    tierce__list_init(&waiting);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &part->waiting) {
        tierce__list_remove(node);
        tierce__list_push_back(&waiting, node);
    }
    while (!tierce__list_empty(&waiting)) {
        struct tierce__fleet_wait *wait =
            TIERCE__CONTAINER_OF(waiting.next, struct tierce__fleet_wait, node);
        tierce__list_remove(&wait->node);
        wait->done(wait, status);
    }
}

/* One line a minute, because the manager is not asked more often. */
static void log_rejection(const struct part *part)
{
    tierce__log(TIERCE_LOG_ERROR, "fleet_instance_rejected",
                "instance=%.127s why=\"%.255s\" effect=\"this model's chunks are neither stored in "
                "the pool nor loaded from it\" hint=\"name another instance in the URL, "
                "fleet://HOST:PORT/GROUP/INSTANCE, or remove the wrong one\"",
                part->base.instance, part->base.why);
}

/* A status that only an operator changes. */
static bool is_rejection(int status)
{
    return status == -EEXIST || status == TIERCE_E_ARGUMENT || status == TIERCE_E_FULL;
}

/* A status that does not take a manager's time, or ends with the cause. */
static bool is_passing(int status)
{
    return status == TIERCE_E_DOWN || status == TIERCE_E_DEADLINE || status == -ENOMEM;
}

/* Allowed while a fleet is upgraded, of adjacent versions. */
static void log_version(const struct part *part, const char *version)
{
    char shown[32];
    tierce__text_for_message(shown, sizeof(shown), version);
    tierce__log(TIERCE_LOG_INFO, "fleet_manager_version", "instance=%s manager=\"%s\" engine=%s",
                part->base.instance, shown, tierce_version());
}

static int take_storages(struct part *part)
{
    char why[TIERCE__FLEET_WHY_BYTES] = "";
    const Meta__RegisterInstanceResponse *reply =
        (const Meta__RegisterInstanceResponse *)part->call.reply;
    int rc = tierce__fleet_stores_update(part->parts->stores, reply->storage_configs, why);
    if (reply->manager_version[0] != '\0' && strcmp(reply->manager_version, tierce_version()) != 0)
        log_version(part, reply->manager_version);
    if (rc < 0)
        snprintf(part->call.why, sizeof(part->call.why), "storage_configs: %.220s", why);
    tierce__proto_free(part->call.reply);
    part->call.reply = NULL;
    return rc;
}

static void registered(struct tierce__fleet_call *call)
{
    struct part *part = call->arg;
    TIERCE_ASSERT(part->base.state == TIERCE__FLEET_REGISTERING);
    int status = call->status == 0 ? take_storages(part) : call->status;
    part->outdated = false;
    part->failed = status == 0 || is_passing(status) ? 0 : status;
    part->base.state = status == 0            ? TIERCE__FLEET_REGISTERED
                       : is_rejection(status) ? TIERCE__FLEET_REJECTED
                                              : TIERCE__FLEET_NEW;
    snprintf(part->base.why, sizeof(part->base.why), "%s", status < 0 ? call->why : "");
    if (call->registry == 0) /* a manager that does not tell it may have marked storages */
        call->registry = tierce__fleet_stores_registry(part->parts->stores);
    tierce__fleet_part_hear(&part->base, call);
    if (part->base.state == TIERCE__FLEET_REJECTED) {
        log_rejection(part);
        status = TIERCE_E_REFUSED;
    }
    answer_waiters(part, status);
}

/* The message's parts, all on this frame: it is packed by start. */
struct registration {
    Meta__RegisterInstanceRequest request;
    Meta__ModelDeployment model;
    Meta__LocationSpecInfo *specs, **spec_list;
    Meta__LocationSpecGroup *groups, **group_list;
    char (*names)[8], **name_list;
    void *memory;
};

/* One spec and one group for each tensor rank. */
static int make_specs(struct registration *r, const struct part *part)
{
    size_t count = part->base.shard.tp_size;
    size_t one = sizeof(*r->specs) + sizeof(*r->spec_list) + sizeof(*r->groups) +
                 sizeof(*r->group_list) + sizeof(*r->name_list) + sizeof(*r->names);
    r->memory = tierce__calloc(count, one);
    if (r->memory == NULL)
        return -ENOMEM;
    r->specs = r->memory;
    r->groups = (void *)(r->specs + count);
    r->spec_list = (void *)(r->groups + count);
    r->group_list = (void *)(r->spec_list + count);
    r->name_list = (void *)(r->group_list + count);
    r->names = (void *)(r->name_list + count);
    for (size_t i = 0; i < count; i++) {
        snprintf(r->names[i], sizeof(r->names[i]), "tp%zu", i);
        r->name_list[i] = r->names[i];
        meta__location_spec_info__init(&r->specs[i]);
        r->specs[i].name = r->names[i];
        r->specs[i].size = (int64_t)part->base.object_bytes;
        r->spec_list[i] = &r->specs[i];
        meta__location_spec_group__init(&r->groups[i]);
        r->groups[i].name = r->names[i];
        r->groups[i].spec_names = &r->name_list[i];
        r->groups[i].n_spec_names = 1;
        r->group_list[i] = &r->groups[i];
    }
    return 0;
}

static void ask_manager(struct part *part)
{
    struct tierce__fleet_parts *parts = part->parts;
    struct registration r = {.request = META__REGISTER_INSTANCE_REQUEST__INIT,
                             .model = META__MODEL_DEPLOYMENT__INIT};
    part->base.state = TIERCE__FLEET_REGISTERING;
    part->base.asked_ns = tierce__now_ns();
    if (make_specs(&r, part) < 0) {
        part->base.state = TIERCE__FLEET_NEW;
        answer_waiters(part, -ENOMEM);
        return;
    }
    r.model.model_name = part->model_name;
    r.model.dtype = part->dtype;
    r.model.tp_size = part->base.shard.tp_size;
    r.model.pp_size = part->base.shard.pp_size;
    r.model.dp_size = 1;
    r.model.extra = part->extra;
    r.request.instance_group = parts->group;
    r.request.instance_id = part->base.instance;
    r.request.block_size = (int32_t)part->chunk_tokens;
    r.request.client_version = (char *)(uintptr_t)tierce_version();
    r.request.attention_kind = (char *)(uintptr_t)part->kind;
    r.request.attention_family = part->family;
    r.request.attention_layers = part->layers;
    r.request.window_tokens = part->window_tokens;
    r.request.every_tokens = part->is_state ? r.request.block_size : 0;
    r.request.model_deployment = &r.model;
    r.request.location_spec_infos = r.spec_list;
    r.request.n_location_spec_infos = part->base.shard.tp_size;
    if (part->base.has_groups) {
        r.request.location_spec_groups = r.group_list;
        r.request.n_location_spec_groups = part->base.shard.tp_size;
    }
    part->call =
        (struct tierce__fleet_call){.method = "RegisterInstance",
                                    .request = &r.request.base,
                                    .answers = &meta__register_instance_response__descriptor,
                                    .deadline_ns = tierce__deadline_in_ms(REGISTER_MS),
                                    .repeats = true,
                                    .done = registered,
                                    .arg = part};
    tierce__fleet_manager_start(parts->manager, &part->call);
    tierce__free(r.memory);
}

/* Whether the manager is to be asked (again). */
static bool must_ask(const struct part *part)
{
    uint64_t age_ns = tierce__now_ns() - part->base.asked_ns;
    switch (part->base.state) {
    case TIERCE__FLEET_NEW:
        return part->failed == 0 || age_ns >= AGAIN_MS * TIERCE__MS_NS;
    case TIERCE__FLEET_REJECTED:
        return age_ns >= REJECTED_MS * TIERCE__MS_NS;
    case TIERCE__FLEET_REGISTERED:
        return part->outdated && age_ns >= AGAIN_MS * TIERCE__MS_NS;
    case TIERCE__FLEET_REGISTERING:
    default:
        return false;
    }
}

/* The answer for a part that the manager is not asked about now. */
static int known_status(const struct part *part)
{
    TIERCE_DASSERT(part->base.state != TIERCE__FLEET_REGISTERING);
    return part->base.state == TIERCE__FLEET_REGISTERED ? 0
           : part->base.state == TIERCE__FLEET_REJECTED ? TIERCE_E_REFUSED
                                                        : part->failed;
}

void tierce__fleet_register(struct tierce__fleet_parts *parts, struct tierce__fleet_part *base,
                            struct tierce__fleet_wait *wait)
{
    struct part *part = TIERCE__CONTAINER_OF(base, struct part, base);
    TIERCE_ASSERT(part->parts == parts);
    bool asks = must_ask(part);
    if (!asks && base->state != TIERCE__FLEET_REGISTERING) {
        wait->done(wait, known_status(part));
        return;
    }
    tierce__list_init(&wait->node);
    tierce__list_push_back(&part->waiting, &wait->node);
    if (asks)
        ask_manager(part);
}

void tierce__fleet_expire(struct tierce__fleet_parts *parts, uint64_t *until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    struct tierce__list late;
    tierce__list_init(&late);
    TIERCE__LIST_FOR_EACH (node, &parts->parts) {
        TIERCE__LIST_FOR_EACH_SAFE (it, after, &part_at(node)->waiting) {
            struct tierce__fleet_wait *wait =
                TIERCE__CONTAINER_OF(it, struct tierce__fleet_wait, node);
            if (wait->deadline_ns <= now_ns) {
                tierce__list_remove(it);
                tierce__list_push_back(&late, it);
            } else if (wait->deadline_ns < *until_ns) {
                *until_ns = wait->deadline_ns;
            }
        }
    }
    while (!tierce__list_empty(&late)) {
        struct tierce__fleet_wait *wait =
            TIERCE__CONTAINER_OF(late.next, struct tierce__fleet_wait, node);
        tierce__list_remove(&wait->node);
        wait->done(wait, TIERCE_E_DEADLINE);
    }
}

void tierce__fleet_part_outdated(struct tierce__fleet_part *base)
{
    TIERCE__CONTAINER_OF(base, struct part, base)->outdated = true;
}

/* ---- generations ----------------------------------------------------------------------------- */

struct tierce__fleet_part *tierce__fleet_part_find(struct tierce__fleet_parts *parts,
                                                   const uint8_t ns_digest[TIERCE_HASH_BYTES],
                                                   const struct tierce_shard *shard)
{
    TIERCE__LIST_FOR_EACH (node, &parts->parts) {
        struct tierce__fleet_part *part = &part_at(node)->base;
        if (memcmp(part->ns_digest, ns_digest, TIERCE_HASH_BYTES) == 0 &&
            memcmp(&part->shard, shard, sizeof(*shard)) == 0)
            return part;
    }
    return NULL;
}

static void has_asked(struct tierce__fleet_call *call)
{
    struct part *part = call->arg;
    TIERCE_ASSERT(part->is_asking);
    part->is_asking = false;
    if (call->status == TIERCE_E_MISS)
        tierce__fleet_part_outdated(&part->base);
    tierce__fleet_part_hear(&part->base, call);
    part->base.heard_ns = tierce__now_ns(); /* also of a failure: it is not asked again at once */
    tierce__proto_free(call->reply);
    call->reply = NULL;
}

static void ask_again(struct part *part)
{
    Meta__GetInstanceInfoRequest request = META__GET_INSTANCE_INFO_REQUEST__INIT;
    request.instance_id = part->base.instance;
    part->is_asking = true;
    part->asking =
        (struct tierce__fleet_call){.method = "GetInstanceInfo",
                                    .request = &request.base,
                                    .answers = &meta__get_instance_info_response__descriptor,
                                    .deadline_ns = tierce__deadline_in_ms(REGISTER_MS),
                                    .repeats = true,
                                    .done = has_asked,
                                    .arg = part};
    tierce__fleet_manager_start(part->parts->manager, &part->asking);
}

/* When the manager is asked about a part of which it has answered nothing meanwhile. A part that
 * is not registered may have blocks on disk, and so no reason to register for a request. */
static uint64_t ask_due_ns(const struct part *part)
{
    uint64_t last_ns =
        part->base.heard_ns > part->base.asked_ns ? part->base.heard_ns : part->base.asked_ns;
    uint32_t pause_ms = part->base.state == TIERCE__FLEET_REJECTED ? REJECTED_MS : HEAR_MS;
    return last_ns + pause_ms * TIERCE__MS_NS;
}

void tierce__fleet_parts_ask(struct tierce__fleet_parts *parts, uint64_t *until_ns)
{
    uint64_t now_ns = tierce__now_ns();
    TIERCE__LIST_FOR_EACH (node, &parts->parts) {
        struct part *part = part_at(node);
        uint64_t due_ns = ask_due_ns(part);
        if (part->is_asking || part->base.state == TIERCE__FLEET_REGISTERING)
            continue;
        if (due_ns > now_ns)
            *until_ns = due_ns < *until_ns ? due_ns : *until_ns;
        else if (part->base.state == TIERCE__FLEET_REGISTERED && !part->outdated)
            ask_again(part);
        else
            ask_manager(part);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__fleet_parts_open(struct tierce__fleet_parts **out,
                             const struct tierce__fleet_parts_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts) && opts->group != NULL && opts->namespaces != NULL);
    struct tierce__fleet_parts *parts = tierce__calloc(1, sizeof(*parts));
    if (parts == NULL)
        return -ENOMEM;
    parts->manager = opts->manager;
    parts->stores = opts->stores;
    parts->namespaces = opts->namespaces;
    parts->invalidated = opts->invalidated;
    parts->arg = opts->arg;
    parts->group = tierce__strdup(opts->group);
    parts->instance = opts->instance != NULL ? tierce__strdup(opts->instance) : NULL;
    tierce__list_init(&parts->parts);
    if (parts->group == NULL || (opts->instance != NULL && parts->instance == NULL)) {
        tierce__fleet_parts_close(parts);
        return -ENOMEM;
    }
    *out = parts;
    return 0;
}

void tierce__fleet_parts_close(struct tierce__fleet_parts *parts)
{
    if (parts == NULL)
        return;
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &parts->parts) {
        struct part *part = part_at(node);
        TIERCE__LIST_FOR_EACH_SAFE (wait, next, &part->waiting)
            tierce__list_remove(wait);
        tierce__list_remove(node);
        tierce__free(part);
    }
    tierce__free(parts->group);
    tierce__free(parts->instance);
    tierce__free(parts);
}
