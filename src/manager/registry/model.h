/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_MODEL_H
#define TIERCE_MANAGER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "manager/registry/model_fields.h"
#include "store/remote/fleet/storage_at.h"

/*
 * The entities that a manager manages: storages, instance groups, instances, accounts. Plain data.
 * Texts are on the heap, never NULL ("" if empty) and owned by their struct. Storages, groups and
 * instances have a number that the registry assigns once and never reuses; records and places refer
 * to them by it. model_fields.c has a row for each member: its names in JSON and messages, default
 * and limits.
 */

/* Values of KVCM's wire and files; from 100 on our own. */
enum tierce__storage_type {
    TIERCE__STORAGE_NONE = 0,
    TIERCE__STORAGE_3FS = 1,
    TIERCE__STORAGE_MOONCAKE = 2,
    TIERCE__STORAGE_TAIRMEMPOOL = 3,
    TIERCE__STORAGE_NFS = 4,
    TIERCE__STORAGE_VCNS_3FS = 5,
    TIERCE__STORAGE_NODE = 100, /* pools of tierce nodes */
    TIERCE__STORAGE_REDIS = 101,
    TIERCE__STORAGE_S3 = 102,
};

/* "file", "hf3fs", "mooncake", "pace", "vcns_hf3fs"; "tierce", "redis", "s3": in URIs and JSON. */
const char *tierce__storage_type_name(enum tierce__storage_type type);
bool tierce__storage_type_find(enum tierce__storage_type *out, const char *name);

/* The type under which quotas count a type's bytes: VCNS_3FS counts as 3FS, others as
 * themselves. */
enum tierce__storage_type tierce__storage_type_quota(enum tierce__storage_type type);

/* The types that quotas distinguish, by index; TIERCE__STORAGE_NONE after the last. */
enum tierce__storage_type tierce__storage_quota_kind(size_t index);

/* Whether a storage still has the objects that the index names. Only a storage that keeps them is
 * written to and read from. */
enum tierce__contents {
    TIERCE__CONTENTS_KEPT = 0,
    TIERCE__CONTENTS_LOST = 1,      /* lost: the index forgets them, and then it is KEPT again */
    TIERCE__CONTENTS_FORGOTTEN = 2, /* its node is gone: the index forgets them; then GONE */
    TIERCE__CONTENTS_GONE = 3,      /* forgotten. The node must drop its objects before it serves */
};

/* Whether an operator empties a storage. Nothing is written to it; it is still read. */
enum tierce__draining {
    TIERCE__DRAINING_NOT = 0,
    TIERCE__DRAINING_MOVES = 1, /* its blocks move to other candidates of their groups */
    TIERCE__DRAINING_DROPS = 2, /* they are removed */
};

struct tierce__storage {
    uint16_t number; /* 1 .. */
    char *name;      /* global unique name */
    enum tierce__storage_type type;
    bool is_enabled;
    bool check_when_open;
    enum tierce__contents contents;
    enum tierce__draining draining;
    bool is_marked;            /* the mark of this registry was written there, or found */
    char *scrub;               /* the position of a scrub that is under way; "": none is */
    uint64_t capacity_bytes;   /* limit of this storage; 0: unlimited */
    int32_t watermark_percent; /* of capacity_bytes: blocks are reclaimed above it; 0: 95 */
    /* Fields of all types; fields that this type does not have are "" and 0. */
    char *root_path;                            /* NFS */
    char *cluster_name, *mountpoint, *root_dir; /* 3FS, VCNS 3FS */
    int32_t key_count_per_file;                 /* NFS, 3FS; >= 1 */
    bool touch_file_when_create;
    char *remote_host, *meta_storage_uri; /* VCNS 3FS */
    int32_t remote_port;
    char *local_hostname, *metadata_connstring, *protocol, *rdma_device, *master_service_entry;
    const char *mooncake_python; /* not configuration: storages.h sets it for the driver */
    char *domain;                /* TairMemPool */
    int32_t timeout;
    bool enable_vipserver;
    char *uri; /* NODE, REDIS, S3: its address */
    /* NODE: a part of a node. It is named POOL.NODE if it is memory, else POOL.NODE.disk. */
    char *pool, *node, *medium;  /* medium: "memory", "disk" */
    char *incarnation, *host_id; /* of the part, and of its host: as the node sent them */
};

/* Whether the index is forgetting its objects. */
static inline bool tierce__storage_is_forgetting(const struct tierce__storage *storage)
{
    return storage->contents == TIERCE__CONTENTS_LOST ||
           storage->contents == TIERCE__CONTENTS_FORGOTTEN;
}

/* Whether a storage is a part of a node of this pool. */
static inline bool tierce__storage_is_in_pool(const struct tierce__storage *storage,
                                              const char *pool)
{
    return storage->type == TIERCE__STORAGE_NODE && strcmp(storage->pool, pool) == 0;
}

/* Above it, writes would find no room before blocks are evicted. */
#define TIERCE__WATERMARK_PERCENT_MAX 95

#define TIERCE__TTL_S_MAX (100ll * 365 * 24 * 60 * 60) /* of groups and of writes */

enum { TIERCE__REPLICAS_MAX = 8 }; /* of a block, in one type of storage */

struct tierce__type_quota {
    enum tierce__storage_type type;
    int64_t capacity_bytes;
    int64_t min_bytes, max_bytes; /* bounds of the autopilot; 0: none */
    int32_t replicas;             /* storages of this type that hold a block; 0: one */
};

/* A step of the autopilot (pilot/autopilot.h). */
enum tierce__step_state {
    TIERCE__STEP_OPEN = 1, /* made, not judged yet */
    TIERCE__STEP_KEPT = 2,
    TIERCE__STEP_UNDONE = 3,
    TIERCE__STEP_NOT_JUDGED = 4,
    TIERCE__STEP_ADVISED = 5, /* not made */
    TIERCE__STEP_STAYS = 6, /* it was wrong, but bounds that were set meanwhile forbid to undo it */
};

enum { TIERCE__GROUP_STEPS_MAX = 16 };

struct tierce__group_step {
    int64_t id;         /* larger than those of all steps before it */
    int64_t at_us;      /* wall clock */
    int64_t changed_us; /* when it got its state */
    int32_t state;      /* enum tierce__step_state */
    char *from;         /* the group that gives the bytes; "": it moves none */
    int32_t quota;      /* enum tierce__storage_type; 0: the groups' own quota */
    int64_t bytes;
    double expected, measured;        /* hit tokens a second */
    int64_t from_version, to_version; /* of both groups, which the step was decided for */
    /* A step that changes the group's policy and time to live; policies 0: it moves a quota. */
    int32_t policy_from, policy_to; /* enum tierce__reclaim_policy */
    int64_t ttl_from_s, ttl_to_s;   /* in effect; 0: none */
};

enum tierce__reclaim_policy {
    TIERCE__RECLAIM_LRU = 1,
    TIERCE__RECLAIM_LFU = 2,
    TIERCE__RECLAIM_TTL = 3,
    TIERCE__RECLAIM_LEAF_LRU = 100,
};

/* An instance group. Comments give the name in KVCM's JSON if it is not obvious. */
struct tierce__group {
    uint16_t number;
    char *name;
    char **storage_candidates; /* names of storages, in order of preference */
    size_t storage_candidate_count;
    char *global_quota_group_name;
    int64_t max_instance_count;
    int64_t capacity_bytes; /* quota.capacity */
    struct tierce__type_quota *type_quotas;
    size_t type_quota_count;
    char *user_data;
    char *autopilot;                  /* "off", "advise", "act"; "": as the manager's */
    char *autopilot_policies;         /* that it may choose, as "lru,lfu"; "": none */
    int64_t min_bytes, max_bytes;     /* bounds of the autopilot for capacity_bytes; 0: none */
    struct tierce__group_step *steps; /* of the autopilot, that gave bytes to this group; the last
                                         TIERCE__GROUP_STEPS_MAX, the oldest first */
    size_t step_count;
    int64_t version;
    /* cache_config.reclaim_strategy */
    char *reclaim_storage_name;
    int32_t reclaim_policy; /* enum tierce__reclaim_policy; unknown values are kept unchanged */
    int64_t trigger_used_bytes;
    double trigger_used_share; /* trigger_strategy.used_percentage: the watermark, 0 .. 1 */
    int32_t trigger_period_s;
    int32_t reclaim_step, reclaim_step_percentage;
    int32_t delay_before_delete_ms;
    int64_t ttl_s;  /* since the last use; not in KVCM; 0: none, but 3600 with RECLAIM_TTL */
    int32_t demote; /* 1: victims move to a colder candidate */
    int64_t
        promote_window_s; /* two reads within it: the block moves to a hotter one; 0: none does */
    int64_t ttl_min_s, ttl_max_s; /* bounds of the autopilot; 0: it does not choose it */
    int32_t prefer_strategy;      /* CachePreferStrategy, 0 .. 8 */
    /* cache_config.meta_indexer_config */
    int64_t max_key_count; /* per instance */
    int64_t mutex_shard_count, batch_key_count;
    char *meta_store_type,
        *meta_store_uri; /* "local" (memory, or RocksDB if a path is given), "rocksdb", "redis" */
    int64_t persist_interval_ms;
    char *search_cache_type;
    int64_t search_cache_mib;
    int32_t search_cache_shard_bits;
    double search_cache_high_pri_ratio;
};

/* The policies of a list as of autopilot_policies (enum tierce__reclaim_policy), each once. Returns
 * their number, at most TIERCE__POLICY_NAMES_MAX; -1: a name is invalid. */
enum { TIERCE__POLICY_NAMES_MAX = 3 };
int tierce__policies_of(const char *list, int32_t out[TIERCE__POLICY_NAMES_MAX]);
/* "lru", "lfu", "ttl", "leaf_lru". */
const char *tierce__reclaim_policy_name(int32_t policy);

/* The quota that applies to a kind of storage: the last one of the list for that kind. NULL:
 * none. */
const struct tierce__type_quota *tierce__group_type_quota(const struct tierce__group *group,
                                                          enum tierce__storage_type kind);

struct tierce__spec_info {
    char *name;
    int64_t size; /* bytes of one block's part */
};

struct tierce__spec_group {
    char *name;
    char **spec_names; /* sorted */
    size_t spec_name_count;
};

struct tierce__model {
    char *model_name, *dtype, *lora_name, *extra, *user_data;
    bool use_mla;
    int32_t tp_size, dp_size, pp_size;
};

/* The part of a prompt's KV that the instance's layers need (core/key/group.h). */
struct tierce__attention {
    char *kind;                          /* "all", "full", "window", "chunked", "linear"; "": not
                                            known, like KVCM's clients */
    int32_t window_tokens, every_tokens; /* of window and chunked; of linear */
    char *family; /* equal for the groups of layers of a model; "": the instance has no others */
    char *layers; /* of the instance; instances of a family with equal layers replace each other */
};

struct tierce__instance {
    uint32_t number;
    char *id;
    char *group_name;
    char *quota_group_name;
    int32_t block_size;              /* tokens */
    bool is_kv;                      /* of the KV-semantics service: keys are strings */
    struct tierce__spec_info *specs; /* at most 65,535; a record names a spec by its index here */
    size_t spec_count;
    struct tierce__spec_group *spec_groups; /* sorted by name */
    size_t spec_group_count;
    struct tierce__model model;
    struct tierce__attention attention;
    char *user_data;
    uint64_t generation; /* how often its blocks were invalidated */
};

/* Of instances: clients know them from 1 on, and 0 is a client that does not know it. */
#define TIERCE__GENERATION_MAX ((uint64_t)1 << 62)

enum tierce__role { TIERCE__ROLE_USER = 0, TIERCE__ROLE_ADMIN = 1 };

struct tierce__account {
    char *name;
    enum tierce__role role;
    char *password_hash; /* "scrypt$..": salted, never the password */
};

/* Any of them. */
union tierce__entry {
    struct tierce__storage storage;
    struct tierce__group group;
    struct tierce__instance instance;
    struct tierce__account account;
};

/*
 * For each NAME of storage, group, instance and account:
 *
 *     int tierce__NAME_copy(struct tierce__NAME *out, const struct tierce__NAME *in)
 *     void tierce__NAME_clear(struct tierce__NAME *entry)
 *     int tierce__NAME_from_json(struct tierce__NAME *out, const char *text, size_t bytes,
 *                                char why[256])
 *     int tierce__NAME_to_json(char **out, const struct tierce__NAME *entry,
 *                              enum tierce__json_form form)
 *
 * They are tierce__model_copy, _clear, _from_json and _to_json for that type.
 */
#define TIERCE__MODEL_FUNCTIONS(name)                                                              \
    TIERCE_MUSTUSE static inline int tierce__##name##_copy(struct tierce__##name *out,             \
                                                           const struct tierce__##name *in)        \
    {                                                                                              \
        return tierce__model_copy(out, in, &tierce__##name##_fields);                              \
    }                                                                                              \
    static inline void tierce__##name##_clear(struct tierce__##name *entry)                        \
    {                                                                                              \
        tierce__model_clear(entry, &tierce__##name##_fields);                                      \
    }                                                                                              \
    TIERCE_MUSTUSE static inline int tierce__##name##_from_json(                                   \
        struct tierce__##name *out, const char *text, size_t bytes, char why[256])                 \
    {                                                                                              \
        return tierce__model_from_json(out, &tierce__##name##_fields, text, bytes, why);           \
    }                                                                                              \
    TIERCE_MUSTUSE static inline int tierce__##name##_to_json(                                     \
        char **out, const struct tierce__##name *entry, enum tierce__json_form form)               \
    {                                                                                              \
        return tierce__model_to_json(out, entry, &tierce__##name##_fields, form);                  \
    }
TIERCE__MODEL_FUNCTIONS(storage)
TIERCE__MODEL_FUNCTIONS(group)
TIERCE__MODEL_FUNCTIONS(instance)
TIERCE__MODEL_FUNCTIONS(account)

/* Bit of a storage type in the `types` of a field. */
uint32_t tierce__storage_type_bit(enum tierce__storage_type type);

/* Sorts the spec groups and the names in them. */
void tierce__instance_sort(struct tierce__instance *instance);

/* How clients and drivers reach a storage. [borrow] the storage. */
struct tierce__storage_at tierce__storage_at_of(const struct tierce__storage *storage);

/* tierce__storage_at_root of it. */
char *tierce__storage_root(const struct tierce__storage *storage);

/* Whether two registrations of one instance, both sorted, may share it: block size, specs, spec
 * groups and model (without user_data) are equal, and so is the attention, unless one of them does
 * not know it. On false, `why` names the first field. */
bool tierce__instance_is_same(const struct tierce__instance *a, const struct tierce__instance *b,
                              char why[128]);

#endif
