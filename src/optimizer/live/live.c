/* SPDX-License-Identifier: Apache-2.0 */
/* The window of requests; live_sweep.c replays it. */
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/live/live.h"

#include <errno.h>
#include <string.h>

#define LIVE_MAGIC 0x4c495632u

enum {
    BLOCKS_MAX = 1 << 20,
    REQUEST_SHARE = 4, /* requests are at most this part of blocks_max */
    FADES_KEPT = 10,   /* requests with a weight below a thousandth are dropped */
    FADES_FULL = 8,    /* of a full window */
};

struct live_kept {
    int64_t time_us;
    uint64_t session, input_tokens, output_tokens;
    uint32_t source, instance;
    uint32_t count, read_count;
    uint32_t window;
    enum tierce__trace_kind kind;
    enum tierce__trace_query query;
};

/* The latest of a source's times, and when it came. */
struct live_source {
    int64_t latest_us;
    uint64_t came_ns;
    bool began;
};

struct tierce__live_window {
    uint32_t magic;
    struct tierce__live_window_opts opts;
    struct tierce__intern *instances; /* (source, its instance) */
    struct live_source *sources;      /* [source_count] */
    uint32_t *source_of;              /* [instance_room] by instance */
    uint32_t source_count, instance_room;
    struct live_kept *requests; /* [request_room]; in use from first_request on */
    size_t first_request, request_end, request_room;
    uint64_t *blocks; /* [block_room]; in use from first_block on */
    size_t first_block, block_end, block_room;
    uint64_t left;
    struct tierce__recording_totals seen;
};

/* ---- create, destroy ------------------------------------------------------------------------- */

int tierce__live_window_create(struct tierce__live_window **out,
                               const struct tierce__live_window_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__live_window *window = tierce__calloc(1, sizeof(*window));
    if (window == NULL)
        return -ENOMEM;
    window->magic = LIVE_MAGIC;
    window->opts = *opts;
    if (window->opts.blocks_max == 0)
        window->opts.blocks_max = BLOCKS_MAX;
    if (tierce__intern_create(&window->instances) < 0) {
        tierce__live_window_destroy(window);
        return -ENOMEM;
    }
    *out = window;
    return 0;
}

void tierce__live_window_destroy(struct tierce__live_window *window)
{
    if (window == NULL)
        return;
    TIERCE_CHECK_MAGIC(window, LIVE_MAGIC);
    tierce__intern_destroy(window->instances);
    tierce__free(window->sources);
    tierce__free(window->source_of);
    tierce__free(window->requests);
    tierce__free(window->blocks);
    window->magic = 0;
    tierce__free(window);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Makes room for `more` entries after *end in a queue that begins at *first: reuses the space
 * before it, or doubles the memory. */
static int make_room(void **queue, size_t *first, size_t *end, size_t *room, size_t more,
                     size_t each)
{
    size_t used = *end - *first;
    TIERCE_ASSERT(*first <= *end && *end <= *room);
    if (*end + more <= *room)
        return 0;
    if (*first >= used + more) {
        memmove(*queue, (char *)*queue + *first * each, used * each);
        *first = 0;
        *end = used;
        return 0;
    }
    size_t wanted = 2 * (*end + more) + 64;
    void *grown = tierce__realloc(*queue, wanted * each);
    if (grown == NULL)
        return -ENOMEM;
    *queue = grown;
    *room = wanted;
    TIERCE_ASSERT(*end + more <= *room);
    return 0;
}

static int make_request_room(struct tierce__live_window *window, uint32_t blocks)
{
    void *requests = window->requests, *ids = window->blocks;
    int rc = make_room(&requests, &window->first_request, &window->request_end,
                       &window->request_room, 1, sizeof(*window->requests));
    window->requests = requests;
    if (rc == 0)
        rc = make_room(&ids, &window->first_block, &window->block_end, &window->block_room, blocks,
                       sizeof(*window->blocks));
    window->blocks = ids;
    return rc;
}

/* Returns the number of an instance of a source, and registers both. */
static int find_instance(struct tierce__live_window *window, uint32_t source, uint32_t instance,
                         uint32_t *out)
{
    if (source >= window->source_count) {
        struct live_source *sources =
            tierce__realloc(window->sources, ((size_t)source + 1) * sizeof(*sources));
        if (sources == NULL)
            return -ENOMEM;
        memset(sources + window->source_count, 0,
               (source + 1 - window->source_count) * sizeof(*sources));
        window->sources = sources;
        window->source_count = source + 1;
    }
    int rc = tierce__intern_one(window->instances, source, instance, out);
    if (rc < 0 || *out < window->instance_room)
        return rc;
    return TIERCE__GROW(window->source_of, window->instance_room, (size_t)*out + 1, 8);
}

/* ---- adding ---------------------------------------------------------------------------------- */

static void drop_first(struct tierce__live_window *window)
{
    TIERCE_ASSERT(window->first_request < window->request_end);
    window->first_block += window->requests[window->first_request++].count;
    TIERCE_ASSERT(window->first_block <= window->block_end);
    window->left++;
}

/* 2^63 - 1 on overflow. */
static uint64_t age_us(const struct tierce__live_window *window, const struct live_kept *request)
{
    TIERCE_DASSERT(request->source < window->source_count);
    int64_t latest_us = window->sources[request->source].latest_us;
    return latest_us > request->time_us ? (uint64_t)latest_us - (uint64_t)request->time_us : 0;
}

static void drop_old(struct tierce__live_window *window)
{
    const struct tierce__live_window_opts *opts = &window->opts;
    size_t requests_max = opts->blocks_max / REQUEST_SHARE + 1;
    while (window->request_end - window->first_request > 1 &&
           (window->block_end - window->first_block > opts->blocks_max ||
            window->request_end - window->first_request > requests_max))
        drop_first(window);
    while (opts->fade_us > 0 && window->request_end - window->first_request > 1 &&
           age_us(window, &window->requests[window->first_request]) / FADES_KEPT > opts->fade_us)
        drop_first(window);
}

static void count(struct tierce__live_window *window, const struct live_kept *request, bool is_read)
{
    struct tierce__recording_totals *t = &window->seen;
    if (t->requests++ == 0)
        t->first_us = request->time_us;
    t->last_us = request->time_us > t->last_us ? request->time_us : t->last_us;
    t->first_us = request->time_us < t->first_us ? request->time_us : t->first_us;
    t->blocks += request->count;
    t->read_blocks += request->read_count;
    t->longest = request->count > t->longest ? request->count : t->longest;
    t->has_reads = t->has_reads || is_read;
}

int tierce__live_window_add(struct tierce__live_window *window, uint32_t source,
                            const struct tierce__trace_request *request, uint64_t now_ns)
{
    TIERCE_CHECK_MAGIC(window, LIVE_MAGIC);
    TIERCE_DASSERT(request->read_count <= request->count);
    uint32_t instance;
    if (request->kind == TIERCE__TRACE_DROP)
        return 0;
    int rc = find_instance(window, source, request->instance, &instance);
    if (rc == 0)
        rc = make_request_room(window, request->count);
    if (rc < 0)
        return rc;
    bool is_write = request->kind == TIERCE__TRACE_WRITE;
    struct live_kept kept = {
        .time_us = request->time_us,
        .session = request->session,
        .input_tokens = request->input_tokens,
        .output_tokens = request->output_tokens,
        .source = source,
        .instance = instance,
        .count = request->count,
        .read_count = is_write ? 0 : request->read_count,
        .window = request->window,
        .query = request->query,
        .kind = is_write ? TIERCE__TRACE_WRITE : TIERCE__TRACE_TURN,
    };
    struct live_source *from = &window->sources[source];
    window->source_of[instance] = source;
    if (!from->began || request->time_us >= from->latest_us)
        *from =
            (struct live_source){.latest_us = request->time_us, .came_ns = now_ns, .began = true};
    if (request->count > 0)
        memcpy(window->blocks + window->block_end, request->blocks,
               request->count * sizeof(*window->blocks));
    window->block_end += request->count;
    window->requests[window->request_end++] = kept;
    count(window, &kept, request->kind == TIERCE__TRACE_READ);
    drop_old(window);
    return 0;
}

uint64_t tierce__live_window_seen(const struct tierce__live_window *window)
{
    TIERCE_CHECK_MAGIC(window, LIVE_MAGIC);
    return window->seen.requests;
}

/* ---- pictures -------------------------------------------------------------------------------- */

static int record(const struct tierce__live_window *window, struct tierce__recording *recording)
{
    const uint64_t *blocks = window->blocks + window->first_block;
    int rc = 0;
    for (size_t i = window->first_request; rc == 0 && i < window->request_end; i++) {
        const struct live_kept *kept = &window->requests[i];
        rc = tierce__recording_add(recording, &(struct tierce__trace_request){
                                                  .time_us = kept->time_us,
                                                  .session = kept->session,
                                                  .instance = kept->instance,
                                                  .kind = kept->kind,
                                                  .query = kept->query,
                                                  .window = kept->window,
                                                  .count = kept->count,
                                                  .read_count = kept->read_count,
                                                  .blocks = blocks,
                                                  .input_tokens = kept->input_tokens,
                                                  .output_tokens = kept->output_tokens,
                                              });
        blocks += kept->count;
    }
    TIERCE_ASSERT(rc != 0 || blocks == window->blocks + window->block_end);
    return rc == 0 ? tierce__recording_seal(recording) : rc;
}

/* The current time of each instance's source. */
static int64_t *read_clocks(const struct tierce__live_window *window, uint64_t now_ns)
{
    uint32_t instances = tierce__intern_count(window->instances);
    int64_t *now_us = tierce__calloc((size_t)instances + 1, sizeof(*now_us));
    for (uint32_t i = 0; now_us != NULL && i < instances; i++) {
        TIERCE_DASSERT(window->source_of[i] < window->source_count);
        const struct live_source *from = &window->sources[window->source_of[i]];
        uint64_t silent_us = now_ns > from->came_ns ? (now_ns - from->came_ns) / 1000 : 0;
        bool fits = silent_us < (uint64_t)(INT64_MAX - from->latest_us);
        now_us[i] = fits ? from->latest_us + (int64_t)silent_us : INT64_MAX;
    }
    return now_us;
}

/* The fading time. Once requests were dropped, it is so short that the window's oldest requests
 * have little weight. */
static uint64_t choose_fade(const struct tierce__live_window *window)
{
    uint64_t reach_us = 0;
    if (window->opts.fade_us > 0 || window->left == 0)
        return window->opts.fade_us;
    for (size_t i = window->first_request; i < window->request_end; i++) {
        uint64_t age = age_us(window, &window->requests[i]);
        reach_us = age > reach_us ? age : reach_us;
    }
    return reach_us / FADES_FULL;
}

int tierce__live_window_take(const struct tierce__live_window *window,
                             struct tierce__live_picture *out, uint64_t now_ns)
{
    TIERCE_CHECK_MAGIC(window, LIVE_MAGIC);
    TIERCE_DASSERT(window->left + (window->request_end - window->first_request) ==
                   window->seen.requests);
    struct tierce__live_picture picture = {.left = window->left, .totals = window->seen};
    int rc = tierce__recording_create(&picture.recording, NULL);
    if (rc == 0)
        rc = record(window, picture.recording);
    if (rc == 0) {
        picture.now_us = read_clocks(window, now_ns);
        rc = picture.now_us != NULL ? 0 : -ENOMEM;
    }
    if (rc < 0) {
        tierce__live_picture_clear(&picture);
        return rc;
    }
    picture.fade_us = choose_fade(window);
    picture.totals.distinct = tierce__recording_totals(picture.recording).distinct;
    picture.totals.instances = tierce__intern_count(window->instances);
    *out = picture;
    return 0;
}

void tierce__live_picture_clear(struct tierce__live_picture *picture)
{
    tierce__recording_destroy(picture->recording);
    tierce__free(picture->now_us);
    *picture = (struct tierce__live_picture){0};
}
