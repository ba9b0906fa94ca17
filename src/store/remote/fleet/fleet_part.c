/* SPDX-License-Identifier: Apache-2.0 */
/* What a name is to a manager: an instance, a spec and a block key. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "core/chunk/header.h"
#include "core/key/key_text.h"
#include "core/key/namespaces.h"
#include "core/key/sha256.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX   256u
#define RANKS_MAX   1024u
#define LAYERS_MAX  4096u
#define NAME_BYTES  64u
#define REGISTER_MS 5000u  /* at most: waiters have deadlines of their own */
#define REJECTED_MS 60000u /* until the manager is asked again */
#define AGAIN_MS    1000u  /* between two registrations of a part */

struct tierce__fleet_parts {
    struct tierce__fleet_manager *manager;
    struct tierce__fleet_stores *stores;
    struct tierce__namespaces *namespaces;
    char *group, *instance; /* instance NULL: by namespace */
    struct tierce__list parts;
    size_t part_count;
};

/* A part, and what its registration needs. */
struct part {
    struct tierce__fleet_part base;
    struct tierce__fleet_parts *parts;
    char model_name[NAME_BYTES], dtype[NAME_BYTES], extra[2 * TIERCE_HASH_BYTES + 1];
    uint32_t block_tokens;       /* of a chunk */
    struct tierce__list waiting; /* tierce__fleet_wait */
    bool outdated;
    struct tierce__fleet_call call;
};

static struct part *part_at(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct part, base.node);
}

/* ---- the text of a namespace ----------------------------------------------------------------- */

/* The value of a field of a canonical text: it ends at the line's end. */
static bool find_field(const char *text, const char *name, const char **value, size_t *bytes)
{
    size_t name_bytes = strlen(name);
    for (const char *line = text; *line != '\0';) {
        const char *end = line + strcspn(line, "\n");
        if ((size_t)(end - line) > name_bytes && strncmp(line, name, name_bytes) == 0 &&
            line[name_bytes] == '=') {
            *value = line + name_bytes + 1;
            *bytes = (size_t)(end - *value);
            return true;
        }
        line = *end == '\n' ? end + 1 : end;
    }
    return false;
}

static bool number_field(const char *text, const char *name, uint32_t *out)
{
    const char *value;
    size_t bytes;
    if (!find_field(text, name, &value, &bytes) || bytes == 0 || bytes > 10)
        return false;
    *out = (uint32_t)strtoul(value, NULL, 10);
    return true;
}

/* "BYTESxLAYERS,..." as one number a layer. */
static bool read_cells(const char *text, uint32_t layer_count, uint32_t *cells)
{
    const char *at;
    size_t bytes;
    uint32_t layer = 0;
    if (!find_field(text, "cell_bytes", &at, &bytes))
        return false;
    for (const char *end = at + bytes; at < end;) {
        char *next;
        unsigned long cell = strtoul(at, &next, 10);
        if (*next != 'x')
            return false;
        unsigned long run = strtoul(next + 1, &next, 10);
        if (cell > UINT32_MAX || run > layer_count - layer)
            return false;
        for (unsigned long i = 0; i < run; i++)
            cells[layer++] = (uint32_t)cell;
        at = *next == ',' ? next + 1 : next;
        if (at == next && at < end)
            return false;
    }
    return layer == layer_count;
}

/* The object of a whole chunk. */
static int measure(struct part *part, const char *text)
{
    uint32_t block_tokens, chunk_blocks, layer_count;
    struct tierce__extent extent;
    if (!number_field(text, "block_tokens", &block_tokens) ||
        !number_field(text, "chunk_blocks", &chunk_blocks) ||
        !number_field(text, "layer_count", &layer_count) || layer_count == 0 ||
        layer_count > LAYERS_MAX || (uint64_t)block_tokens * chunk_blocks > INT32_MAX)
        return TIERCE_E_ARGUMENT;
    uint32_t *cells = tierce__calloc(layer_count, sizeof(*cells));
    if (cells == NULL)
        return -ENOMEM;
    int rc = read_cells(text, layer_count, cells) ? 0 : TIERCE_E_ARGUMENT;
    if (rc == 0)
        rc = tierce__chunk_extent(&extent, &(struct tierce__geometry){.layer_count = layer_count,
                                                                      .cell_bytes = cells,
                                                                      .block_tokens = block_tokens,
                                                                      .block_count = chunk_blocks});
    tierce__free(cells);
    if (rc < 0)
        return rc == -ENOMEM ? rc : TIERCE_E_ARGUMENT;
    part->block_tokens = block_tokens * chunk_blocks;
    part->base.object_bytes = extent.object_bytes;
    return 0;
}

/* A digest of what groups of one model have in common. */
static void digest_family(const struct part *part, const char *text,
                          uint8_t digest[TIERCE__SHA256_BYTES])
{
    static const char *const of_groups[] = {"layer_count", "cell_bytes",   "layers",      "group",
                                            "window",      "block_tokens", "chunk_blocks"};
    struct tierce__sha256 sha;
    char tokens[32];
    tierce__sha256_init(&sha);
    for (const char *line = text; *line != '\0';) {
        size_t bytes = strcspn(line, "\n"), name_bytes = strcspn(line, "=\n");
        bool is_own = false;
        for (size_t i = 0; i < sizeof(of_groups) / sizeof(*of_groups); i++)
            is_own = is_own || (strlen(of_groups[i]) == name_bytes &&
                                memcmp(of_groups[i], line, name_bytes) == 0);
        bytes += line[bytes] == '\n';
        if (!is_own)
            tierce__sha256_update(&sha, line, bytes);
        line += bytes;
    }
    int used = snprintf(tokens, sizeof(tokens), "chunk_tokens=%u\n", part->block_tokens);
    tierce__sha256_update(&sha, tokens, (size_t)used);
    tierce__sha256_final(&sha, digest);
}

/* The architecture in a model's canonical JSON, for people; the digest in `extra` tells models
 * apart. */
static void name_model(struct part *part, const char *text)
{
    static const char key[] = "\"model_type\":\"";
    const char *model = NULL, *at;
    size_t bytes = 0;
    snprintf(part->model_name, sizeof(part->model_name), "unnamed");
    if (!find_field(text, "model", &model, &bytes))
        return;
    at = memmem(model, bytes, key, sizeof(key) - 1);
    if (at == NULL)
        return;
    at += sizeof(key) - 1;
    size_t left = bytes - (size_t)(at - model), length = strcspn(at, "\"\n\\");
    if (length > 0 && length < left)
        snprintf(part->model_name, sizeof(part->model_name), "%.*s",
                 length < NAME_BYTES ? (int)length : (int)NAME_BYTES - 1, at);
}

static void name_dtype(struct part *part, const char *text)
{
    const char *value = "";
    size_t bytes = 0;
    bool known = find_field(text, "kv_dtype", &value, &bytes) && bytes > 0;
    snprintf(part->dtype, sizeof(part->dtype), "%.*s",
             known ? (int)(bytes < NAME_BYTES ? bytes : NAME_BYTES) : 7, known ? value : "unknown");
}

/* ---- instance and spec ----------------------------------------------------------------------- */

/* "linear" is what KVCM's users call it. */
static const char *kind_of(const char *text, size_t *bytes)
{
    const char *group = NULL;
    if (!find_field(text, "group", &group, bytes))
        return NULL;
    if (*bytes == 5 && memcmp(group, "state", 5) == 0) {
        *bytes = 6;
        return "linear";
    }
    return group;
}

static int name_instance(struct part *part, const struct tierce__fleet_parts *parts,
                         const char *text)
{
    uint8_t digest[TIERCE__SHA256_BYTES];
    char base[80], hex[9];
    size_t kind_bytes = 0;
    const char *kind = kind_of(text, &kind_bytes);
    digest_family(part, text, digest);
    tierce__hex_encode(part->extra, digest, sizeof(digest));
    tierce__hex_encode(hex, part->base.ns_digest, 4);
    if (parts->instance != NULL)
        snprintf(base, sizeof(base), "%.79s", parts->instance);
    else
        snprintf(base, sizeof(base), "tierce-%.32s", part->extra);
    size_t room = sizeof(part->base.instance),
           used = (size_t)snprintf(part->base.instance, room, "%s", base);
    if (kind != NULL)
        used += (size_t)snprintf(part->base.instance + used, room - used, "-%.*s-%s",
                                 (int)kind_bytes, kind, hex);
    if (part->base.shard.pp_size > 1)
        used += (size_t)snprintf(part->base.instance + used, room - used, "-pp%u",
                                 part->base.shard.pp_rank);
    snprintf(part->base.spec, sizeof(part->base.spec), "tp%u", part->base.shard.tp_rank);
    part->base.has_groups = part->base.shard.tp_size > 1;
    return used < room ? 0 : TIERCE_E_ARGUMENT;
}

/* The text of a namespace; NULL: not known (yet). */
static const char *find_text(struct tierce__fleet_parts *parts,
                             const uint8_t digest[TIERCE_HASH_BYTES])
{
    int64_t id = tierce__namespaces_intern(parts->namespaces, digest, NULL);
    return id >= 0 ? tierce__namespaces_text(parts->namespaces, (uint32_t)id) : NULL;
}

static int make_part(struct tierce__fleet_parts *parts, struct part **out,
                     const uint8_t digest[TIERCE_HASH_BYTES], const struct tierce_shard *shard)
{
    const char *text = find_text(parts, digest);
    if (text == NULL || shard->tp_size > RANKS_MAX)
        return TIERCE_E_ARGUMENT;
    if (parts->part_count == PARTS_MAX)
        return TIERCE_E_LIMIT;
    struct part *part = tierce__calloc(1, sizeof(*part));
    if (part == NULL)
        return -ENOMEM;
    part->parts = parts;
    part->base.shard = *shard;
    memcpy(part->base.ns_digest, digest, TIERCE_HASH_BYTES);
    tierce__list_init(&part->waiting);
    int rc = measure(part, text);
    if (rc == 0)
        rc = name_instance(part, parts, text);
    if (rc < 0) {
        tierce__free(part);
        return rc;
    }
    name_model(part, text);
    name_dtype(part, text);
    tierce__list_push_back(&parts->parts, &part->base.node);
    parts->part_count++;
    *out = part;
    return 0;
}

int tierce__fleet_part_of(struct tierce__fleet_parts *parts, struct tierce__fleet_part **part,
                          int64_t *block_key, const struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    struct part *made = NULL;
    if (tierce__key_text_parse(digest, &shard, hash, name->text, name->bytes) < 0)
        return TIERCE_E_ARGUMENT;
    *block_key = (int64_t)tierce__load_le64(hash);
    TIERCE__LIST_FOR_EACH (node, &parts->parts) {
        struct part *it = part_at(node);
        if (memcmp(it->base.ns_digest, digest, sizeof(digest)) == 0 &&
            memcmp(&it->base.shard, &shard, sizeof(shard)) == 0) {
            *part = &it->base;
            return 0;
        }
    }
    int rc = make_part(parts, &made, digest, &shard);
    if (rc == 0)
        *part = &made->base;
    return rc;
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

static void reject(struct part *part)
{
    bool is_new = part->base.state != TIERCE__FLEET_REJECTED;
    part->base.state = TIERCE__FLEET_REJECTED;
    snprintf(part->base.why, sizeof(part->base.why), "%.255s", part->call.why);
    if (is_new)
        tierce__log(TIERCE_LOG_ERROR, "fleet_instance_rejected",
                    "instance=%.127s why=\"%.255s\" effect=\"nothing of this model is stored in "
                    "the pool or "
                    "loaded from it\" hint=\"name another instance in the URL, "
                    "fleet://HOST:PORT/GROUP/INSTANCE, "
                    "or remove the wrong one\"",
                    part->base.instance, part->base.why);
}

/* A status by which the manager will not change its mind soon. */
static bool is_final(int status)
{
    return status == -EEXIST || status == TIERCE_E_ARGUMENT || status == TIERCE_E_FULL ||
           status == -EPROTO;
}

static void registered(struct tierce__fleet_call *call)
{
    struct part *part = call->arg;
    int status = call->status;
    char why[TIERCE__FLEET_WHY_BYTES];
    if (status == 0) {
        const Meta__RegisterInstanceResponse *reply =
            (const Meta__RegisterInstanceResponse *)call->reply;
        status = tierce__fleet_stores_update(part->parts->stores, reply->storage_configs, why);
        if (status < 0)
            snprintf(call->why, sizeof(call->why), "storage_configs: %.220s", why);
        tierce__proto_free(call->reply);
    }
    part->outdated = false;
    if (status == 0) {
        part->base.state = TIERCE__FLEET_REGISTERED;
        part->base.why[0] = '\0';
    } else if (is_final(status)) {
        reject(part);
        status = TIERCE_E_REFUSED;
    } else {
        part->base.state = TIERCE__FLEET_NEW;
        snprintf(part->base.why, sizeof(part->base.why), "%.255s", call->why);
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
    r.request.block_size = (int32_t)part->block_tokens;
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
        return true;
    case TIERCE__FLEET_REJECTED:
        return age_ns >= REJECTED_MS * TIERCE__MS_NS;
    case TIERCE__FLEET_REGISTERED:
        return part->outdated && age_ns >= AGAIN_MS * TIERCE__MS_NS;
    case TIERCE__FLEET_REGISTERING:
    default:
        return false;
    }
}

void tierce__fleet_register(struct tierce__fleet_parts *parts, struct tierce__fleet_part *base,
                            struct tierce__fleet_wait *wait)
{
    struct part *part = TIERCE__CONTAINER_OF(base, struct part, base);
    TIERCE_ASSERT(part->parts == parts);
    bool asks = must_ask(part);
    if (!asks && base->state == TIERCE__FLEET_REGISTERED) {
        wait->done(wait, 0);
    } else if (!asks && base->state == TIERCE__FLEET_REJECTED) {
        wait->done(wait, TIERCE_E_REFUSED);
    } else {
        tierce__list_init(&wait->node);
        tierce__list_push_back(&part->waiting, &wait->node);
        if (asks)
            ask_manager(part);
    }
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
        TIERCE_ASSERT(tierce__list_empty(&part->waiting));
        tierce__list_remove(node);
        tierce__free(part);
    }
    tierce__free(parts->group);
    tierce__free(parts->instance);
    tierce__free(parts);
}
