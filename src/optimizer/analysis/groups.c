/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/groups.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "optimizer/trace/filter.h"

#include <errno.h>
#include <string.h>

struct membership {
    const uint32_t *group_of;
    size_t group;
};

static bool is_member(void *arg, const struct tierce__recorded *request)
{
    const struct membership *m = arg;
    return m->group_of[request->instance] == m->group;
}

int tierce__group_recording(struct tierce__recording **out,
                            const struct tierce__recording *recording,
                            const struct tierce__groups_opts *opts, size_t group)
{
    struct membership m = {opts->group_of, group};
    return tierce__recording_filter(out, recording, is_member, &m, opts->sweep.folder);
}

static int append_rows(struct tierce__groups *out, size_t group, const struct tierce__sweep *sweep)
{
    struct tierce__groups_row *rows =
        tierce__realloc(out->rows, (out->row_count + sweep->row_count + 1) * sizeof(*rows));
    if (rows == NULL)
        return -ENOMEM;
    out->rows = rows;
    for (size_t i = 0; i < sweep->row_count; i++)
        rows[out->row_count++] = (struct tierce__groups_row){group, sweep->rows[i]};
    return 0;
}

static int run_group(struct tierce__groups *out, const struct tierce__recording *recording,
                     const struct tierce__groups_opts *opts, size_t group)
{
    struct tierce__recording *part = NULL;
    struct tierce__sweep sweep = {0};
    struct tierce__sweep_opts sweep_opts = opts->sweep;
    TIERCE_ASSERT(group < opts->group_count);
    sweep_opts.capacities = &opts->groups[group].capacity;
    sweep_opts.capacity_count = 1;
    int rc = tierce__group_recording(&part, recording, opts, group);
    if (rc == 0)
        rc = tierce__sweep_run(&sweep, part, &sweep_opts);
    if (rc == 0)
        rc = append_rows(out, group, &sweep);
    tierce__sweep_clear(&sweep);
    tierce__recording_destroy(part);
    return rc;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void add_row(struct tierce__sweep_row *sum, const struct tierce__sweep_row *row)
{
    bool unlimited =
        sum->capacity == TIERCE__CAPACITY_UNLIMITED || row->capacity == TIERCE__CAPACITY_UNLIMITED;
    sum->capacity = unlimited ? TIERCE__CAPACITY_UNLIMITED : sum->capacity + row->capacity;
    sum->requests += row->requests;
    sum->blocks += row->blocks;
    sum->internal_blocks += row->internal_blocks;
    sum->hits += row->hits;
    sum->internal_hits += row->internal_hits;
    sum->is_replayed = sum->is_replayed || row->is_replayed;
    sum->evicted += row->evicted;
    sum->refused += row->refused;
    sum->expired += row->expired;
}

/* A sum for each row of the first group that every group has. */
static int add_sums(struct tierce__groups *out)
{
    struct tierce__sweep sums = {0};
    size_t rows = out->row_count;
    sums.rows = tierce__calloc(rows + 1, sizeof(*sums.rows));
    if (sums.rows == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < rows && out->rows[i].group == 0; i++) {
        struct tierce__sweep_row sum = out->rows[i].row;
        size_t found = 1;
        for (size_t k = i + 1; k < rows; k++) {
            if (out->rows[k].group == 0 || !tierce__sweep_same_line(&sum, &out->rows[k].row))
                continue;
            add_row(&sum, &out->rows[k].row);
            found++;
        }
        TIERCE_ASSERT(found <= out->group_count);
        if (found == out->group_count)
            sums.rows[sums.row_count++] = sum;
    }
    int rc = append_rows(out, out->group_count, &sums);
    tierce__sweep_clear(&sums);
    return rc;
}

int tierce__groups_run(struct tierce__groups *out, const struct tierce__recording *recording,
                       const struct tierce__groups_opts *opts)
{
    struct tierce__groups groups = {.group_count = opts->group_count};
    int rc = 0;
    for (size_t g = 0; rc == 0 && g < opts->group_count; g++)
        rc = run_group(&groups, recording, opts, g);
    if (rc == 0)
        rc = add_sums(&groups);
    for (const struct tierce__recorded *r = tierce__recording_first(recording);
         rc == 0 && r != NULL; r = tierce__recording_next(recording, r))
        groups.left_out += opts->group_of[r->instance] == TIERCE__GROUP_NONE;
    if (rc == 0)
        *out = groups;
    else
        tierce__groups_clear(&groups);
    return rc;
}

void tierce__groups_clear(struct tierce__groups *groups)
{
    tierce__free(groups->rows);
    *groups = (struct tierce__groups){0};
}
