/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/economy.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define GB  1e9
#define GIB 1073741824.0

/* ---- the steps ------------------------------------------------------------------------------- */

double tierce__prefill_flops(const struct tierce__model_profile *model, double tokens,
                             double squares)
{
    double attention =
        model->layers.value * model->heads.value * (model->qk_dim.value + model->v_dim.value);
    return 2 * model->params.value * tokens + attention * squares;
}

double tierce__gpu_speed(const struct tierce__model_profile *model, const struct tierce__gpu *gpu)
{
    bool is_fp8 = model->weight_bytes.value <= 1 && gpu->flops_fp8.value > 0;
    return gpu->mfu.value * (is_fp8 ? gpu->flops_fp8.value : gpu->flops.value);
}

double tierce__gpu_seconds(const struct tierce__setup *setup, double flops)
{
    return flops / tierce__gpu_speed(&setup->model, &setup->gpu);
}

double tierce__block_bytes(const struct tierce__setup *setup)
{
    return setup->block_bytes > 0 ? (double)setup->block_bytes
                                  : setup->block_tokens * setup->model.bytes.value;
}

/* Bytes of a token in the cache: its share of a block. */
static double token_bytes(const struct tierce__setup *setup)
{
    return tierce__block_bytes(setup) / setup->block_tokens;
}

double tierce__load_seconds(const struct tierce__setup *setup, double tokens)
{
    const struct tierce__storage_profile *s = &setup->storage;
    return tokens > 0 ? s->latency.value + tokens * token_bytes(setup) / s->bandwidth.value : 0;
}

double tierce__compute_seconds(const struct tierce__setup *setup, double n, double p)
{
    const struct tierce__model_profile *m = &setup->model;
    const struct tierce__gpu *g = &setup->gpu;
    double flops = tierce__prefill_flops(m, n - p, n * n - p * p);
    double compute = tierce__gpu_seconds(setup, flops) / g->count.value;
    double read = g->bandwidth.value > 0 ? m->params.value * m->weight_bytes.value /
                                               (g->bandwidth.value * g->count.value)
                                         : 0;
    return compute > read ? compute : read;
}

double tierce__ttft_seconds(const struct tierce__setup *setup, double n, double p, double held)
{
    p = p < n - 1 ? p : n - 1;
    p = p > 0 ? p : 0;
    double load = tierce__load_seconds(setup, p > held ? p - held : 0);
    double compute = tierce__compute_seconds(setup, n, p);
    double layers = setup->model.layers.value > 1 ? setup->model.layers.value : 1;
    return fmax(load, compute) + fmin(load, compute) / layers;
}

double tierce__gpu_cost(const struct tierce__setup *setup, double flops)
{
    return tierce__gpu_seconds(setup, flops) / 3600 * setup->gpu.price.value;
}

double tierce__storage_cost(const struct tierce__storage_profile *storage, double bytes,
                            double written)
{
    double hours = storage->years.value * TIERCE__HOURS_PER_YEAR;
    if (storage->writes.value > 0 && written > 0)
        hours = fmin(hours, storage->writes.value * bytes / written);
    return bytes > 0 ? bytes / GB * storage->price.value / hours : 0;
}

double tierce__break_even_bandwidth(const struct tierce__setup *setup, double tokens,
                                    double squares)
{
    double flops = tierce__prefill_flops(&setup->model, tokens, squares);
    return tokens > 0 ? tokens * token_bytes(setup) / tierce__gpu_seconds(setup, flops) : 0;
}

double tierce__break_even_residency(const struct tierce__setup *setup, double tokens,
                                    double squares)
{
    double flops = tierce__prefill_flops(&setup->model, tokens, squares);
    double dollars = tierce__gpu_seconds(setup, flops) / 3600 * setup->gpu.price.value;
    double kept = tierce__storage_cost(&setup->storage, tokens * token_bytes(setup), 0) / 3600;
    return tokens > 0 ? dollars / kept : 0;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The hourly value of a cache, for a row or a point of a curve. */
struct worth {
    uint64_t capacity;
    double saved, cost;
};

static double per_hour(const struct tierce__economy *e, double amount)
{
    return amount / e->span_hours;
}

static struct worth worth_of(const struct tierce__economy *e, uint64_t capacity, double tokens,
                             double squares, uint64_t missed)
{
    const struct tierce__setup *s = &e->setup;
    double block = tierce__block_bytes(s), bytes = (double)capacity * block;
    double saved = tierce__gpu_cost(s, tierce__prefill_flops(&s->model, tokens, squares));
    double written = per_hour(e, (double)missed * block);
    return (struct worth){.capacity = capacity,
                          .saved = per_hour(e, saved),
                          .cost = tierce__storage_cost(&s->storage, bytes, written)};
}

static struct worth worth_of_row(const struct tierce__economy *e,
                                 const struct tierce__sweep_row *row)
{
    return worth_of(e, row->capacity, row->hit_tokens, row->hit_squares, tierce__sweep_missed(row));
}

static struct worth worth_of_point(const struct tierce__economy *e,
                                   const struct tierce__sweep_curve *curve, uint64_t capacity,
                                   uint64_t blocks)
{
    const struct tierce__sweep_point *p =
        &curve->points[capacity < curve->length ? capacity : curve->length - 1];
    TIERCE_ASSERT(p->hits <= blocks);
    return worth_of(e, capacity, p->tokens, p->squares, blocks - p->hits);
}

static void value_row(struct tierce__economy *e, struct tierce__economy_row *out,
                      const struct tierce__sweep_row *row)
{
    const struct tierce__setup *s = &e->setup;
    double block = tierce__block_bytes(s);
    struct worth worth = worth_of_row(e, row);
    out->is_valued = true;
    out->hit_tokens = row->hit_tokens;
    out->saved_flops = tierce__prefill_flops(&s->model, row->hit_tokens, row->hit_squares);
    out->saved_share = e->prefill_flops > 0 ? out->saved_flops / e->prefill_flops : 0;
    out->saved_seconds = tierce__gpu_seconds(s, out->saved_flops);
    out->gpus_saved = per_hour(e, out->saved_seconds / 3600);
    out->saved_per_hour = worth.saved;
    out->bytes = (double)row->capacity * block;
    out->written = per_hour(e, (double)tierce__sweep_missed(row) * block);
    out->cost_per_hour = worth.cost;
    out->net_per_hour = worth.saved - worth.cost;
    out->next_gib = NAN;
    out->hull_next = NAN;
    out->break_even_bandwidth = tierce__break_even_bandwidth(s, row->hit_tokens, row->hit_squares);
    out->break_even_residency = tierce__break_even_residency(s, row->hit_tokens, row->hit_squares);
}

/* The cost of all prompts of the trace without a cache. */
static void sum_prompts(struct tierce__economy *e, const struct tierce__recording *recording)
{
    double squares = 0;
    uint32_t block_tokens = e->setup.block_tokens;
    double tokens = 0;
    for (const struct tierce__recorded *r = tierce__recording_first(recording); r != NULL;
         r = tierce__recording_next(recording, r)) {
        if (r->read_count == 0)
            continue;
        double n = (double)tierce__recorded_input(r, block_tokens);
        double held = (double)tierce__recorded_tokens(r, tierce__recorded_held(r), block_tokens);
        TIERCE_ASSERT(held <= n);
        e->prompts++;
        e->prompt_tokens += n;
        tokens += n - held;
        squares += n * n - held * held;
    }
    e->prefill_flops = tierce__prefill_flops(&e->setup.model, tokens, squares);
    e->prefill_gpus = per_hour(e, tierce__gpu_seconds(&e->setup, e->prefill_flops) / 3600);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static const struct tierce__sweep_curve *curve_of(const struct tierce__sweep *sweep,
                                                  const struct tierce__sweep_row *row)
{
    for (size_t i = 0; i < sweep->curve_count; i++) {
        const struct tierce__sweep_curve *c = &sweep->curves[i];
        if (c->cache == row->cache && c->order == row->order && c->match.kind == row->match.kind &&
            c->match.window == row->match.window)
            return c;
    }
    return NULL;
}

static int compare_worths(const void *a, const void *b)
{
    const struct worth *x = a, *y = b;
    return (x->capacity > y->capacity) - (x->capacity < y->capacity);
}

/* The points of a line by capacity, beginning with the empty cache. */
struct economy_line {
    struct worth *worths; /* [count] heap */
    size_t count;
};

static int list_worths(struct economy_line *out, const struct tierce__economy *e,
                       const struct tierce__sweep *sweep, const struct tierce__sweep_row *like)
{
    const struct tierce__sweep_curve *curve = curve_of(sweep, like);
    size_t room = curve != NULL ? curve->length : sweep->row_count + 1;
    out->count = 0;
    out->worths = tierce__calloc(room, sizeof(*out->worths));
    if (out->worths == NULL)
        return -ENOMEM;
    out->count = 1; /* the empty cache */
    for (uint32_t i = 1; curve != NULL && i < curve->length; i++)
        out->worths[out->count++] = worth_of_point(e, curve, i, like->blocks);
    for (size_t i = 0; curve == NULL && i < sweep->row_count; i++) {
        if (e->rows[i].is_valued && tierce__sweep_same_line(&sweep->rows[i], like))
            out->worths[out->count++] = worth_of_row(e, &sweep->rows[i]);
    }
    if (curve == NULL)
        qsort(out->worths, out->count, sizeof(*out->worths), compare_worths);
    TIERCE_ASSERT(out->count <= room);
    return 0;
}

static void find_best(struct tierce__economy_line *out, const struct tierce__economy *e,
                      const struct economy_line *line)
{
    size_t best = 0;
    for (size_t i = 1; i < line->count; i++) {
        if (line->worths[i].saved - line->worths[i].cost >
            line->worths[best].saved - line->worths[best].cost)
            best = i;
    }
    const struct worth *w = &line->worths[best];
    out->capacity = w->capacity;
    out->is_last = best + 1 == line->count && best > 0;
    out->bytes = (double)w->capacity * tierce__block_bytes(&e->setup);
    out->saved_per_hour = w->saved;
    out->cost_per_hour = w->cost;
    out->net_per_hour = w->saved - w->cost;
}

/* Dollars an hour that a block more saves from a to b. */
static double slope(const struct worth *a, const struct worth *b)
{
    TIERCE_ASSERT(b->capacity > a->capacity);
    return (b->saved - a->saved) / (double)(b->capacity - a->capacity);
}

/* Keeps the corners of the concave hull of the line's savings. */
static void make_hull(struct economy_line *line)
{
    size_t kept = 0;
    for (size_t i = 0; i < line->count; i++) {
        struct worth next = line->worths[i];
        if (kept > 0 && next.capacity == line->worths[kept - 1].capacity)
            continue;
        while (kept > 1 && slope(&line->worths[kept - 2], &line->worths[kept - 1]) <=
                               slope(&line->worths[kept - 2], &next))
            kept--;
        line->worths[kept++] = next;
    }
    line->count = kept;
}

/* Dollars saved for each dollar spent from a to b. */
static double saved_per_dollar(const struct worth *a, const struct worth *b)
{
    double saved = b->saved - a->saved, cost = b->cost - a->cost;
    return cost > 0 ? saved / cost : saved > 0 ? INFINITY : 0;
}

/* The return on the next GiB after a row; without a curve, up to the next row. */
static double next_gib(const struct tierce__economy *e, const struct tierce__sweep *sweep,
                       const struct economy_line *line, const struct tierce__sweep_row *row)
{
    const struct tierce__sweep_curve *curve = curve_of(sweep, row);
    struct worth here = worth_of_row(e, row), there;
    if (curve != NULL) {
        double blocks = floor(GIB / tierce__block_bytes(&e->setup));
        uint64_t more = blocks > 1 ? (uint64_t)blocks : 1;
        there = worth_of_point(e, curve, row->capacity + more, row->blocks);
        return saved_per_dollar(&here, &there);
    }
    for (size_t i = 0; i < line->count; i++) {
        if (line->worths[i].capacity > row->capacity)
            return saved_per_dollar(&here, &line->worths[i]);
    }
    return NAN;
}

/* Along the hull from a row on. */
static double hull_next(const struct economy_line *hull, uint64_t capacity, double block_cost,
                        bool is_exact)
{
    for (size_t i = 1; i < hull->count; i++) {
        if (hull->worths[i].capacity > capacity)
            return block_cost > 0 ? slope(&hull->worths[i - 1], &hull->worths[i]) / block_cost
                                  : INFINITY;
    }
    return is_exact ? 0 : NAN;
}

static int value_line(struct tierce__economy *e, struct tierce__economy_line *out,
                      const struct tierce__sweep *sweep)
{
    TIERCE_ASSERT(out->first_row < sweep->row_count);
    const struct tierce__sweep_row *like = &sweep->rows[out->first_row];
    double block_cost = tierce__storage_cost(&e->setup.storage, tierce__block_bytes(&e->setup), 0);
    struct economy_line line = {0};
    out->is_valued = e->rows[out->first_row].is_valued;
    int rc = out->is_valued ? list_worths(&line, e, sweep, like) : 0;
    if (rc < 0 || !out->is_valued)
        return rc;
    out->is_exact = curve_of(sweep, like) != NULL;
    find_best(out, e, &line);
    for (size_t i = 0; i < sweep->row_count; i++) {
        if (e->rows[i].is_valued && tierce__sweep_same_line(&sweep->rows[i], like))
            e->rows[i].next_gib = next_gib(e, sweep, &line, &sweep->rows[i]);
    }
    make_hull(&line);
    for (size_t i = 1; i < line.count; i++) {
        if (slope(&line.worths[i - 1], &line.worths[i]) > block_cost)
            out->hull_capacity = line.worths[i].capacity;
    }
    for (size_t i = 0; i < sweep->row_count; i++) {
        if (e->rows[i].is_valued && tierce__sweep_same_line(&sweep->rows[i], like))
            e->rows[i].hull_next =
                hull_next(&line, sweep->rows[i].capacity, block_cost, out->is_exact);
    }
    tierce__free(line.worths);
    return 0;
}

static void list_lines(struct tierce__economy *e, const struct tierce__sweep *sweep)
{
    for (size_t i = 0; i < sweep->row_count; i++) {
        size_t l = 0;
        while (l < e->line_count &&
               !tierce__sweep_same_line(&sweep->rows[e->lines[l].first_row], &sweep->rows[i]))
            l++;
        if (l == e->line_count)
            e->lines[e->line_count++] = (struct tierce__economy_line){.first_row = i};
    }
    TIERCE_ASSERT(e->line_count <= sweep->row_count);
}

int tierce__economy_run(struct tierce__economy *out, const struct tierce__sweep *sweep,
                        const struct tierce__recording *recording,
                        const struct tierce__setup *setup)
{
    struct tierce__recording_totals totals = tierce__recording_totals(recording);
    if (setup->block_tokens == 0 || setup->block_tokens != sweep->block_tokens ||
        totals.last_us <= totals.first_us)
        return TIERCE_E_ARGUMENT;
    struct tierce__economy e = {.setup = *setup, .row_count = sweep->row_count};
    int rc = 0;
    e.span_hours = ((double)totals.last_us - (double)totals.first_us) / 3.6e9;
    e.rows = tierce__calloc(sweep->row_count + 1, sizeof(*e.rows));
    e.lines = tierce__calloc(sweep->row_count + 1, sizeof(*e.lines));
    if (e.rows == NULL || e.lines == NULL) {
        tierce__economy_clear(&e);
        return -ENOMEM;
    }
    sum_prompts(&e, recording);
    for (size_t i = 0; i < sweep->row_count; i++) {
        const struct tierce__sweep_row *row = &sweep->rows[i];
        if (row->has_tokens && !sweep->in_bytes && row->capacity != TIERCE__CAPACITY_UNLIMITED)
            value_row(&e, &e.rows[i], row);
    }
    list_lines(&e, sweep);
    for (size_t i = 0; rc == 0 && i < e.line_count; i++)
        rc = value_line(&e, &e.lines[i], sweep);
    if (rc == 0)
        *out = e;
    else
        tierce__economy_clear(&e);
    return rc;
}

void tierce__economy_clear(struct tierce__economy *economy)
{
    tierce__free(economy->rows);
    tierce__free(economy->lines);
    *economy = (struct tierce__economy){0};
}
