/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/tier_conformance.h"
#include "store_connector.h"
#include "store/coded/coded_connector.h"
#include "store/remote/remote.h"

#include <stdlib.h>

/* A remote tier over a store that answers at once, late, or gives objects only whole. */

struct place {
    bool whole;
    unsigned late_ms;
    bool codes; /* behind the connector that encodes and decodes */
    struct tierce__namespaces *namespaces;
};

static struct tierce__buf *alloc_coded(void *arg, uint64_t bytes)
{
    struct tierce__buf *buf;
    return tierce__pool_alloc(arg, &buf, bytes) == 0 ? buf : NULL;
}

static struct tierce__connector *wrap(struct place *place, struct tierce__connector *below,
                                      struct tierce__pool *pool)
{
    struct tierce__connector *connector = below;
    if (place->codes)
        ck_assert_int_eq(
            tierce__coded_connector_open(&connector,
                                         &(struct tierce__coded_connector_opts){
                                             .size = sizeof(struct tierce__coded_connector_opts),
                                             .connector = below,
                                             .name = "store",
                                             .codec = tierce__codec_find("lossless"),
                                             .namespaces = place->namespaces,
                                             .alloc = alloc_coded,
                                             .alloc_arg = pool}),
            0);
    return connector;
}

static int open_remote(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct place *place = ctx;
    int rc = tierce__namespaces_create(&place->namespaces);
    struct store_connector *store = store_connector_create(!place->whole);
    if (place->late_ms > 0)
        store_connector_set_late(store, place->late_ms);
    return rc < 0 ? rc
                  : tierce__remote_open(
                        out, &(struct tierce__remote_opts){
                                 .size = sizeof(struct tierce__remote_opts),
                                 .connector = wrap(place, store_connector_base(store), pool),
                                 .namespaces = place->namespaces,
                                 .name = "store"});
}

static uint32_t intern(void *ctx, unsigned which)
{
    struct place *place = ctx;
    uint8_t digest[TIERCE_HASH_BYTES] = {(uint8_t)(which + 1)};
    int64_t id = tierce__namespaces_intern(place->namespaces, digest, NULL);
    ck_assert_int_ge(id, 0);
    return (uint32_t)id;
}

static void cleanup(void *ctx)
{
    struct place *place = ctx;
    tierce__namespaces_destroy(place->namespaces);
}

static struct place at_once,
    whole = {.whole = true}, late = {.late_ms = 1}, late_and_whole = {.late_ms = 1, .whole = true},
    coded = {.codes = true}, coded_and_late = {.codes = true, .late_ms = 1},
    coded_and_whole = {.codes = true, .late_ms = 1, .whole = true};

static const struct tier_factory factories[] = {
    {"remote", open_remote, cleanup, intern, &at_once},
    {"remote that gives objects whole", open_remote, cleanup, intern, &whole},
    {"remote that is late", open_remote, cleanup, intern, &late},
    {"remote that is late and gives objects whole", open_remote, cleanup, intern, &late_and_whole},
    {"remote behind the connector that encodes", open_remote, cleanup, intern, &coded},
    {"the same that is late", open_remote, cleanup, intern, &coded_and_late},
    {"the same that is late and gives objects whole", open_remote, cleanup, intern,
     &coded_and_whole},
};

int main(void)
{
    return tier_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
