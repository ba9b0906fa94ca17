/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/tier_conformance.h"
#include "store/disk/disk.h"
#include "tier_fault.h"
#include "temp_folder.h"

#include <stdio.h>
#include <stdlib.h>

struct place {
    bool buffered;
    bool threads;
    uint32_t depth;
    uint32_t io_bytes;
    char folder[64];
    struct tierce__namespaces *namespaces;
};

static int open_disk(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct place *place = (struct place *)ctx;
    snprintf(place->folder, sizeof(place->folder), "test_disk_conformance.XXXXXX");
    int rc = mkdtemp(place->folder) != NULL ? 0 : -1;
    if (rc == 0)
        rc = tierce__namespaces_create(&place->namespaces);
    struct tierce__vfs *vfs = NULL;
    if (rc == 0 && place->threads)
        rc = tierce__vfs_threads_create(&vfs, 4);
    if (rc < 0)
        return rc;
    return tierce__disk_open(out,
                             &(struct tierce__disk_opts){.size = sizeof(struct tierce__disk_opts),
                                                         .path = place->folder,
                                                         .cap_bytes = 16u << 20,
                                                         .policy = tierce__policy_find("lru"),
                                                         .namespaces = place->namespaces,
                                                         .pool = pool,
                                                         .vfs = vfs,
                                                         .io_depth = place->depth,
                                                         .io_bytes = place->io_bytes,
                                                         .queue_bytes = 256u << 20,
                                                         .buffered = place->buffered});
}

static int open_wrapped(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    struct tierce__tier *inner;
    int rc = open_disk(&inner, pool, ctx);
    return rc == 0 ? tierce__fault_create(out, inner) : rc;
}

/* Answers come late and out of order, from the wrapper's thread. */
static int open_late(struct tierce__tier **out, struct tierce__pool *pool, void *ctx)
{
    int rc = open_wrapped(out, pool, ctx);
    struct tierce__fault_rule late = {
        .kind = TIERCE__FAULT_DELAY, .delay_ms = 3, .seed = 1, .per_mille = 100};
    for (int op = TIERCE__STORE_LOOKUP; rc == 0 && op <= TIERCE__STORE_SIBLINGS; op++)
        tierce__fault_set(*out, (enum tierce__store_op)op, &late);
    return rc;
}

static uint32_t intern(void *ctx, unsigned which)
{
    struct place *place = (struct place *)ctx;
    uint8_t digest[TIERCE_HASH_BYTES] = {(uint8_t)(which + 1)};
    int64_t id = tierce__namespaces_intern(place->namespaces, digest, NULL);
    ck_assert_int_ge(id, 0);
    return (uint32_t)id;
}

static void cleanup(void *ctx)
{
    struct place *place = (struct place *)ctx;
    tierce__namespaces_destroy(place->namespaces);
    temp_folder_remove(place->folder);
}

static struct place direct;
static struct place small = {.depth = 2, .io_bytes = 8192};
static struct place plain = {.buffered = true, .threads = true};

static struct place wrapped, late;

static const struct tier_factory factories[] = {
    {"disk", open_disk, cleanup, intern, &direct},
    {"disk with a depth of two", open_disk, cleanup, intern, &small},
    {"disk buffered over threads", open_disk, cleanup, intern, &plain},
    {"disk behind a wrapper", open_wrapped, cleanup, intern, &wrapped},
    {"disk behind a wrapper that is late", open_late, cleanup, intern, &late},
};

int main(void)
{
    return tier_conformance_main(factories, sizeof(factories) / sizeof(factories[0]));
}
