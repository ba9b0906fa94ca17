/* SPDX-License-Identifier: Apache-2.0 */
#include "node/part/node_mover.h"

#include "base/clock.h"
#include "base/log/log.h"
#include "node/node_config.h"
#include "node/part/node_pool.h"

#include <stdio.h>
#include <string.h>

enum { OBJECTS_MAX = 8, REQUEST_MS = 30000, STOP_MS = 5000 };

const char *tierce__node_mover_url(const struct tierce__node_config *config)
{
    const char *url =
        config->mover_manager[0] != '\0' ? config->mover_manager : config->pool_manager;
    return url[0] == '\0' || strcmp(url, "none") == 0 ? NULL : url;
}

int tierce__node_mover_start(struct tierce__mover **out, const struct tierce__node_config *config,
                             char why[256])
{
    char name[TIERCE__NODE_NAME_BYTES], fault[TIERCE__FLEET_WHY_BYTES] = "";
    const char *url = tierce__node_mover_url(config);
    if (url == NULL)
        return 0;
    const char *python = config->mover_mooncake_python;
    int rc = tierce__node_pool_name(name, config, why);
    if (rc != 0)
        return rc;
    rc = tierce__mover_start(
        out,
        &(struct tierce__mover_opts){.size = sizeof(struct tierce__mover_opts),
                                     .url = url,
                                     .name = name,
                                     .mooncake_python = python[0] != '\0' ? python : NULL,
                                     .memory_bytes = config->mover_memory,
                                     .rate_bytes_per_s = config->mover_rate,
                                     .parallel_max = OBJECTS_MAX,
                                     .timeout_ms = REQUEST_MS},
        fault);
    if (rc != 0 && fault[0] != '\0')
        snprintf(why, 256, "mover.manager: %.240s", fault);
    return rc;
}

void tierce__node_mover_stop(struct tierce__mover *mover, uint64_t deadline_ns)
{
    uint64_t most_ns = tierce__deadline_in_ms(STOP_MS);
    if (!tierce__mover_stop(mover, deadline_ns < most_ns ? deadline_ns : most_ns))
        tierce__log(TIERCE_LOG_WARN, "mover_left", "why=\"a storage did not answer\"");
}

/* ---- what it shows --------------------------------------------------------------------------- */

void tierce__node_mover_status(struct tierce__mover *mover, struct tierce__json_write *json)
{
    struct tierce__mover_state state;
    if (mover == NULL)
        return;
    tierce__mover_state(mover, &state);
    tierce__json_write_open(json, "mover", '{');
    tierce__json_write_bool(json, "is_connected", state.is_connected);
    tierce__json_write_text(json, "why", state.why);
    tierce__json_write_count(json, "calls", state.calls);
    tierce__json_write_count(json, "failures", state.failures);
    tierce__json_write_count(json, "batches", state.batches);
    tierce__json_write_count(json, "finished", state.finished);
    tierce__json_write_count(json, "lost", state.lost);
    tierce__json_write_count(json, "moved_blocks", state.moved_blocks);
    tierce__json_write_count(json, "copied_bytes", state.copies.copied_bytes);
    for (unsigned i = 0; i < TIERCE__COPY_RESULTS; i++)
        tierce__json_write_count(json, tierce__copy_result_name((enum tierce__copy_result)i),
                                 state.copies.objects[i]);
    tierce__json_write_close(json, '}');
}

static void put(struct tierce__prometheus *text, const char *name, const char *help,
                bool is_counter, uint64_t value)
{
    tierce__prometheus_put(
        text, &(struct tierce__metric){
                  .name = name, .help = help, .is_counter = is_counter, .value = (double)value});
}

void tierce__node_mover_metrics(struct tierce__mover *mover, struct tierce__prometheus *text)
{
    struct tierce__mover_state state;
    if (mover == NULL)
        return;
    tierce__mover_state(mover, &state);
    const uint64_t *objects = state.copies.objects;
    put(text, "node.mover_connected", "Whether a manager has answered the mover.", false,
        state.is_connected);
    put(text, "node.mover_batches_now", "Batches of blocks in progress.", false, state.batches);
    put(text, "node.mover_moved_blocks", "Blocks that were copied to another storage.", true,
        state.moved_blocks);
    put(text, "node.mover_copied_bytes", "Bytes of objects that were copied.", true,
        state.copies.copied_bytes);
    put(text, "node.mover_lost_batches", "Batches that the manager ended or was not told about.",
        true, state.lost);
    put(text, "node.mover_sources_bad", "Objects that were missing or damaged.", true,
        objects[TIERCE__COPY_SOURCE_MISSING] + objects[TIERCE__COPY_SOURCE_DAMAGED]);
    put(text, "node.mover_sources_unreachable", "Objects whose storage could not be read.", true,
        objects[TIERCE__COPY_SOURCE_UNREACHABLE]);
    put(text, "node.mover_targets_failed", "Objects that the target did not take.", true,
        objects[TIERCE__COPY_TARGET_FAILED]);
    put(text, "node.mover_unverifiable", "Objects whose bytes nothing proves.", true,
        objects[TIERCE__COPY_UNVERIFIABLE]);
}
