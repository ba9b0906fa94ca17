/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_MANAGER_HYBRID_H
#define TIERCE_TESTS_MANAGER_HYBRID_H

#include "manager_reclaim.h"

/* Instances of the groups of layers of one model. */

struct hybrid_group {
    const char *id, *kind, *family;
    int32_t block_tokens, window_tokens, every_tokens;
    int64_t bytes; /* of a block */
    const char *layers;
};

static inline void hybrid_add(struct harness *h, const struct hybrid_group *group)
{
    char id[64], kind[16], family[64], layers[16], of[] = "g", none[] = "", model[] = "m",
                                                   part[] = "tp0";
    struct tierce__spec_info spec = {part, group->bytes};
    snprintf(id, sizeof(id), "%s", group->id);
    snprintf(kind, sizeof(kind), "%s", group->kind);
    snprintf(family, sizeof(family), "%s", group->family);
    snprintf(layers, sizeof(layers), "%s", group->layers);
    struct tierce__instance instance = {
        .id = id,
        .group_name = of,
        .quota_group_name = none,
        .block_size = group->block_tokens,
        .specs = &spec,
        .spec_count = 1,
        .user_data = none,
        .model = {model, model, none, none, none, false, 1, 1, 1},
        .attention = {kind, group->window_tokens, group->every_tokens, family, layers},
    };
    int rc = tierce__registry_add_instance(h->registry, &instance, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    rc = tierce__locator_add_instance(h->locator, group->id, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

/* A block is written as the connector does: behind the key of the block before it, which is not
 * written. */
static inline void hybrid_store(struct harness *h, const char *id, const int64_t *before,
                                int64_t key)
{
    int64_t keys[2] = {before != NULL ? *before : key, key};
    size_t count = before != NULL ? 2 : 1, given = 0;
    struct tierce__started started;
    struct tierce__write_request request = {
        .instance_id = id, .keys = keys, .count = count, .timeout_s = 30};
    uint8_t written[2] = {0};
    int rc = tierce__locator_start_write(h->locator, &request, &h->arena, &started, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    if (started.count == 0)
        return;
    if (before != NULL && !tierce__mask_has(&started.mask, 0))
        written[given++] = false;
    if (!tierce__mask_has(&started.mask, count - 1))
        written[given++] = true;
    ck_assert_uint_eq(given, started.count);
    struct tierce__mask mask = {.is_values = true, .values = written, .count = given};
    rc = tierce__locator_finish_write(h->locator, id, started.session, &mask, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
}

static inline bool hybrid_read(struct harness *h, const char *id, int64_t key,
                               struct tierce__record *record)
{
    struct tierce__live *live;
    bool found = false;
    ck_assert_int_eq(tierce__live_acquire(&live, h->locator, id, h->why), 0);
    ck_assert_int_eq(tierce__meta_index_get(live->index, &key, 1, &h->arena, record, &found), 0);
    tierce__live_release(live);
    return found;
}

static inline bool hybrid_has(struct harness *h, const char *id, int64_t key)
{
    struct tierce__record record;
    return hybrid_read(h, id, key, &record);
}

/* A use of one block, a second later. */
static inline void hybrid_use(struct harness *h, const char *id, int64_t key)
{
    struct tierce__got got;
    h->now_us += 1000000;
    int rc = tierce__locator_get(
        h->locator,
        &(struct tierce__get_request){
            .instance_id = id, .query = TIERCE__QUERY_BATCH, .keys = &key, .count = 1},
        &h->arena, &got, h->why);
    ck_assert_msg(rc == 0 && got.hits == 1, "%s: %s", id, h->why);
}

/* The blocks of a chain of `count` keys from `first` on that an instance has, as text. */
static inline const char *hybrid_blocks(struct harness *h, const char *id, int64_t first,
                                        size_t count)
{
    char text[256] = "";
    for (size_t i = 0, used = 0; i < count; i++) {
        if (hybrid_has(h, id, first + (int64_t)i))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%zu", used > 0 ? " " : "",
                                     i + 1);
    }
    return tierce__arena_copy(&h->arena, text, strlen(text));
}

/* Sets the quota of the group so that so many bytes are to be evicted, and reclaims. */
static inline size_t hybrid_evict(struct harness *h, int64_t bytes)
{
    const struct tierce__catalog *catalog = tierce__registry_acquire(h->registry);
    struct tierce__group group = *tierce__catalog_group(catalog, "g");
    struct tierce__usage usage = harness_usage(h);
    group.capacity_bytes = 2 * ((int64_t)usage.serving_bytes - bytes);
    group.trigger_used_share = 0.5;
    group.version++;
    int rc = tierce__registry_update_group(h->registry, &group, group.version - 1, h->why);
    ck_assert_msg(rc == 0, "%s", h->why);
    tierce__registry_release(h->registry, catalog);
    return tierce__reclaimer_step(reclaimer);
}

#endif
