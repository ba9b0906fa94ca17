/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_parse.h"
#include "cli/cli.h"
#include "cli/optimize/optimize.h"
#include "cli/optimize/progress.h"
#include "optimizer/analysis/life.h"
#include "optimizer/analysis/timeline.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define COMMAND "optimize"

enum {
    NODES_SHOWN = 24,
    NAME_SHOWN = 128,  /* bytes of an instance's */
    TREES_SHOWN = 8,   /* of as many instances */
    CACHES_SHOWN = 64, /* whose blocks are followed */
};

static double share(uint64_t part, uint64_t all)
{
    return all > 0 ? 100 * (double)part / (double)all : 0;
}

void tierce__optimize_time(char text[32], double seconds)
{
    if (seconds >= 2 * 3600)
        snprintf(text, 32, "%.1f h", seconds / 3600);
    else if (seconds >= 2 * 60)
        snprintf(text, 32, "%.1f min", seconds / 60);
    else if (seconds >= 1)
        snprintf(text, 32, "%.1f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(text, 32, "%.1f ms", seconds * 1e3);
    else if (seconds > 0)
        snprintf(text, 32, "%.1f us", seconds * 1e6);
    else
        snprintf(text, 32, "0");
}

/* ---- facts from the trace -------------------------------------------------------------------- */

static void print_quantiles(FILE *file, const char *name, const struct tierce__histogram *h,
                            bool is_time)
{
    static const double shares[] = {0.1, 0.5, 0.9, 0.99, 1};
    fprintf(file, "  %-34s%12" PRIu64, name, h->count);
    for (size_t i = 0; i < 5; i++) {
        char text[32];
        uint64_t value = tierce__histogram_quantile(h, shares[i]);
        snprintf(text, sizeof(text), "%" PRIu64, value);
        if (is_time)
            tierce__optimize_time(text, (double)value / 1e6);
        fprintf(file, "%12s", h->count > 0 ? text : "-");
    }
    fputc('\n', file);
}

static void print_heads(FILE *file)
{
    fprintf(file, "  %-34s%12s%12s%12s%12s%12s%12s\n", "", "of", "10 % up to", "50 %", "90 %",
            "99 %", "all");
}

static void print_scan(FILE *file, const struct tierce__life *life)
{
    fprintf(
        file,
        "\nlife of blocks: %.2f%% of the %" PRIu64 " blocks looked up had occurred before; %.2f%% "
        "of the %" PRIu32 " different blocks stored are never used again\n",
        share(life->reuses, life->uses), life->uses, share(life->dead, life->stored), life->stored);
    if (life->stored_bytes > 0)
        fprintf(file, "(%.2f%% of their bytes)\n", share(life->dead_bytes, life->stored_bytes));
    print_heads(file);
    print_quantiles(file, "different blocks until used again", &life->distance, false);
    print_quantiles(file, "time until used again", &life->gap_us, true);
    print_quantiles(file, "uses of a block", &life->uses_of, false);
    print_quantiles(file, "time from first to last use", &life->span_us, true);
}

/* A node and its subtree, of the first `end` nodes. */
static void print_node(FILE *file, const struct tierce__life *life, size_t index, size_t end,
                       int level)
{
    const struct tierce__life_node *node = &life->nodes[index];
    char tokens[32] = "-";
    if (node->tokens > 0)
        snprintf(tokens, sizeof(tokens), "%" PRIu64, node->tokens);
    fprintf(file, "  %12" PRIu64 "%9.2f%%%12" PRIu32 "%12" PRIu32 "%12s%12" PRIu32 "  %*s%s\n",
            node->requests, share(node->requests, life->requests), node->depth, node->blocks,
            tokens, node->children, 2 * (level < 20 ? level : 20), "", level > 0 ? "\\_" : "*");
    for (size_t i = index + 1; i < end; i++) {
        if (life->nodes[i].parent == index)
            print_node(file, life, i, end, level + 1);
    }
}

/* The hottest nodes of one instance. */
static void print_tree(FILE *file, const struct tierce__life *life, size_t from, const char *name)
{
    size_t end = from;
    char shown[NAME_SHOWN];
    tierce__text_for_message(shown, sizeof(shown), name);
    while (end < life->node_count && end - from < NODES_SHOWN &&
           life->nodes[end].instance == life->nodes[from].instance)
        end++;
    fprintf(file, "\nthe prefixes with the most requests%s%s:\n", name[0] != '\0' ? " of " : "",
            shown);
    fprintf(file, "  %12s%10s%12s%12s%12s%12s\n", "requests", "of all", "at block", "blocks",
            "tokens", "go on as");
    for (size_t i = from; i < end; i++) {
        uint32_t parent = life->nodes[i].parent;
        if (parent == TIERCE__LIFE_NO_PARENT)
            print_node(file, life, i, end, 0);
    }
}

/* ---- in caches ------------------------------------------------------------------------------- */

static struct tierce__sim_point point_of(const struct tierce__optimize *request,
                                         const struct tierce__cache *cache,
                                         enum tierce__touch_order order, uint64_t capacity,
                                         uint64_t ttl_us)
{
    return (struct tierce__sim_point){.cache = cache,
                                      .order = order,
                                      .capacity = capacity,
                                      .in_bytes = request->in_bytes,
                                      .ttl_us = ttl_us,
                                      .seed = request->seed};
}

/* Caches that are replays, with each capacity that was named and each time to live; how many. */
static size_t list_points(struct tierce__sim_point *out, size_t most,
                          const struct tierce__optimize *request, bool kvcm)
{
    size_t count = 0;
    for (size_t p = 0; p < request->cache_count; p++) {
        const struct tierce__cache *cache = &request->caches[p];
        bool infinite = cache->kind == TIERCE__CACHE_INFINITE;
        bool expires = tierce__cache_expires(cache);
        size_t orders = tierce__cache_has_order(cache) ? request->order_count : 1;
        size_t capacities = infinite ? 1 : request->capacity_count;
        size_t ttls = expires ? request->ttl_count : 1;
        if (tierce__cache_foresees(cache) || (cache->kind == TIERCE__CACHE_KVCM && !kvcm))
            continue;
        if (capacities == 0 || ttls == 0)
            continue;
        for (size_t i = 0; i < orders * capacities * ttls && count < most; i++)
            out[count++] = point_of(request, cache, request->orders[i / (capacities * ttls)],
                                    infinite ? TIERCE__CAPACITY_UNLIMITED
                                             : request->capacities[i / ttls % capacities],
                                    expires ? request->ttls[i % ttls] : 0);
    }
    return count;
}

static void name_point(char out[TIERCE__SWEEP_NAME_BYTES + 8],
                       const struct tierce__optimize *request,
                       const struct tierce__sim_point *point)
{
    char name[TIERCE__SWEEP_NAME_BYTES];
    bool both = request->order_count > 1 && tierce__cache_has_order(point->cache);
    tierce__sweep_name(name,
                       &(struct tierce__sweep_row){.cache = point->cache, .ttl_us = point->ttl_us});
    snprintf(out, TIERCE__SWEEP_NAME_BYTES + 8, "%s%s", name,
             !both                               ? ""
             : point->order == TIERCE__TOUCH_REV ? "/rev"
                                                 : "/fwd");
}

static int print_cached(FILE *file, const struct tierce__optimize *request,
                        const struct tierce__recording *recording)
{
    struct tierce__sim_point points[CACHES_SHOWN];
    size_t count = list_points(points, CACHES_SHOWN, request, false);
    fprintf(file, "\nlife of blocks in a cache:\n%-16s%12s%12s%12s%12s%12s%12s%12s\n", "",
            "capacity", "stored", "left", "unused", "stay 50 %", "90 %", "all");
    for (size_t i = 0; i < count; i++) {
        struct tierce__life_cached life;
        char name[TIERCE__SWEEP_NAME_BYTES + 8], text[32];
        int rc = tierce__life_replay(&life, recording, &points[i]);
        if (rc < 0)
            return tierce__optimize_fail_replay("the replay", rc);
        name_point(name, request, &points[i]);
        tierce__optimize_capacity(text, request, points[i].capacity);
        fprintf(file, "%-16s%12s%12" PRIu64 "%12" PRIu64 "%11.2f%%", name, text, life.stored,
                life.left, share(life.unused, life.left));
        for (int q = 0; q < 3; q++) {
            double at = q == 0 ? 0.5 : q == 1 ? 0.9 : 1;
            tierce__optimize_time(text,
                                  (double)tierce__histogram_quantile(&life.stay_us, at) / 1e6);
            fprintf(file, "%12s", life.left > 0 ? text : "-");
        }
        fputc('\n', file);
    }
    return TIERCE__CLI_OK;
}

int tierce__optimize_run_life(const struct tierce__optimize *request,
                              const struct tierce__optimize_trace *trace)
{
    struct tierce__life life;
    if (!request->sim.life)
        return TIERCE__CLI_OK;
    int rc = tierce__life_scan(&life, trace->recording,
                               &(struct tierce__life_opts){
                                   .size = sizeof(struct tierce__life_opts),
                                   .block_tokens = request->money.block_tokens,
                               });
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "the scan failed: %s", tierce_strerror(rc));
    size_t trees = 0;
    print_scan(stdout, &life);
    for (size_t i = 0; i < life.node_count; i++) {
        if (i > 0 && life.nodes[i].instance == life.nodes[i - 1].instance)
            continue;
        if (trees++ < TREES_SHOWN)
            print_tree(stdout, &life, i, trace->instances[life.nodes[i].instance]);
    }
    if (trees > TREES_SHOWN)
        printf("\nand those of %zu more instances\n", trees - TREES_SHOWN);
    tierce__life_clear(&life);
    return request->has_capacities ? print_cached(stdout, request, trace->recording)
                                   : TIERCE__CLI_OK;
}

/* ---- over time ------------------------------------------------------------------------------- */

static void print_slices(FILE *file, const struct tierce__timeline *timeline)
{
    fputs("policy,order,capacity,from_s,requests,blocks,internal_blocks,hits,internal_hits,stored,"
          "evicted,expired,used\n",
          file);
    for (size_t l = 0; l < timeline->line_count; l++) {
        const struct tierce__sim_point *point = &timeline->lines[l].point;
        char name[TIERCE__SWEEP_NAME_BYTES], capacity[32] = "unlimited";
        bool has_order = tierce__cache_has_order(point->cache);
        tierce__sweep_name(
            name, &(struct tierce__sweep_row){.cache = point->cache, .ttl_us = point->ttl_us});
        if (point->capacity != TIERCE__CAPACITY_UNLIMITED)
            snprintf(capacity, sizeof(capacity), "%" PRIu64, point->capacity);
        for (uint32_t i = 0; i < timeline->slice_count; i++) {
            const struct tierce__timeline_slice *s = &timeline->lines[l].slices[i];
            fprintf(file,
                    "%s,%s,%s,%.6f,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                    ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
                    name,
                    !has_order                          ? "-"
                    : point->order == TIERCE__TOUCH_REV ? "rev"
                                                        : "fwd",
                    capacity, (double)i * (double)timeline->slice_us / 1e6, s->requests, s->blocks,
                    s->internal_blocks, s->hits, s->internal_hits, s->stored, s->evicted,
                    s->expired, s->used);
        }
    }
}

int tierce__optimize_write_timeline(const struct tierce__optimize *request,
                                    const struct tierce__recording *recording)
{
    struct tierce__sim_point points[CACHES_SHOWN];
    struct tierce__timeline timeline;
    if (request->sim.timeline == NULL)
        return TIERCE__CLI_OK;
    int rc =
        tierce__timeline_run(&timeline, recording,
                             &(struct tierce__timeline_opts){
                                 .size = sizeof(struct tierce__timeline_opts),
                                 .points = points,
                                 .point_count = list_points(points, CACHES_SHOWN, request, true),
                                 .match = request->matches[0],
                                 .kvcm = request->kvcm,
                                 .threads = request->threads,
                             });
    if (rc < 0)
        return tierce__optimize_fail_replay("the replay", rc);
    struct tierce__new_file file;
    int status = tierce__optimize_open(&file, request->sim.timeline);
    if (status == TIERCE__CLI_OK) {
        print_slices(file.file, &timeline);
        status = tierce__optimize_close(&file, request->sim.timeline);
    }
    tierce__timeline_clear(&timeline);
    return status;
}
