/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "router/follower.h"

#include <string.h>

/* Batches of KV events, and a snapshot: what is counted is what is there. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void apply(const uint8_t *data, size_t size)
{
    static struct tierce__contents c;
    c = (struct tierce__contents){.model = "m", .blocks_max = 1000};
    for (int i = 0; i < 2; i++) {
        bool is_batch = tierce__contents_apply(&c, data, size);
        TIERCE_ASSERT(is_batch || c.count == 0);
    }
    uint64_t held = 0;
    for (uint32_t i = 0; i < c.used; i++) {
        const struct tierce__contents_block *block = &c.blocks[i];
        held += block->media != 0;
        TIERCE_ASSERT(block->media == 0 ||
                      tierce__contents_find(&c, block->hash, block->space) == block);
    }
    TIERCE_ASSERT(held == c.count && held <= c.blocks_max);
    tierce__contents_fini(&c);
}

static void read_snapshot(const uint8_t *data, size_t size)
{
    struct tierce__directory *directory;
    struct tierce__follower *f;
    struct tierce__follower_about about;
    uint64_t from;
    if (tierce__directory_create(
            &directory, &(struct tierce__directory_opts){
                            .size = sizeof(struct tierce__directory_opts), .workers_max = 2}) != 0)
        return;
    struct tierce__follower_opts opts = {.size = sizeof(opts),
                                         .directory = directory,
                                         .group = "",
                                         .name = "a",
                                         .model = "m",
                                         .endpoint = "tcp://127.0.0.1:5557",
                                         .has_snapshot = true,
                                         .blocks_max = 1000};
    TIERCE_ASSERT(tierce__follower_create(&f, &opts, 1) == 0);
    tierce__follower_connected(f, true, 1);
    TIERCE_ASSERT(tierce__follower_needs(f, &from, 1) == TIERCE__FOLLOWER_SNAPSHOT);
    bool is_good = tierce__follower_snapshot(f, data, size / 2) &&
                   tierce__follower_snapshot(f, data + size / 2, size - size / 2);
    tierce__follower_snapshot_end(f, is_good, 1);
    while (tierce__follower_needs(f, &from, 1) == TIERCE__FOLLOWER_WORK)
        tierce__follower_work(f, 1);
    tierce__follower_about(f, &about);
    TIERCE_ASSERT(about.is_exact || about.blocks == 0);
    tierce__follower_destroy(f);
    tierce__directory_destroy(directory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    apply(data, size);
    read_snapshot(data, size);
    return 0;
}
