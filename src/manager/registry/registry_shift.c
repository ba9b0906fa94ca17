/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas that the autopilot moves, the log of its steps, and both when a client updates a group. */
#include "base/alloc.h"
#include "base/assert.h"
#include "manager/registry/registry_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct tierce__group *find(struct tierce__catalog *catalog, const char *name, char why[256])
{
    struct tierce__group *group = tierce__catalog_find(catalog, TIERCE__KIND_GROUP, name);
    if (group == NULL)
        snprintf(why, 256, "there is no instance group %.200s", name);
    return group;
}

static int check_version(const struct tierce__group *group, int64_t version, char why[256])
{
    if (group->version == version)
        return 0;
    snprintf(why, 256, "instance group %.100s was changed: it has version %lld, not %lld",
             group->name, (long long)group->version, (long long)version);
    return -ESTALE;
}

static int add_bytes(struct tierce__group *group, int64_t *quota, int64_t bytes, char why[256])
{
    int64_t sum;
    if (*quota > 0 && !__builtin_add_overflow(*quota, bytes, &sum) && sum > 0) {
        *quota = sum;
        return 0;
    }
    snprintf(why, 256, "a quota of instance group %.60s is %lld; %lld bytes cannot be added",
             group->name, (long long)*quota, (long long)bytes);
    return TIERCE_E_ARGUMENT;
}

static int64_t *quota_of(struct tierce__group *group, enum tierce__storage_type type)
{
    static int64_t none;
    int64_t *found = &none;
    if (type == TIERCE__STORAGE_NONE)
        return &group->capacity_bytes;
    for (size_t i = 0; i < group->type_quota_count; i++) {
        if (tierce__storage_type_quota(group->type_quotas[i].type) == type)
            found = &group->type_quotas[i].capacity_bytes; /* the last one counts */
    }
    return found;
}

static int move_bytes(struct tierce__group *from, struct tierce__group *to,
                      const struct tierce__quota_shift *shift, char why[256])
{
    bool has_both = from->capacity_bytes > 0 && to->capacity_bytes > 0;
    TIERCE_ASSERT(from != to);
    int rc = check_version(from, shift->from_version, why);
    if (rc == 0)
        rc = check_version(to, shift->to_version, why);
    if (rc == 0)
        rc = add_bytes(from, quota_of(from, shift->type), -shift->bytes, why);
    if (rc == 0)
        rc = add_bytes(to, quota_of(to, shift->type), shift->bytes, why);
    if (rc == 0 && shift->type != TIERCE__STORAGE_NONE && has_both) {
        rc = add_bytes(from, &from->capacity_bytes, -shift->bytes, why);
        if (rc == 0)
            rc = add_bytes(to, &to->capacity_bytes, shift->bytes, why);
    }
    from->version++;
    to->version++;
    return rc;
}

static struct tierce__group_step *find_step(struct tierce__group *group, int64_t id)
{
    for (size_t i = 0; i < group->step_count; i++) {
        if (group->steps[i].id == id)
            return &group->steps[i];
    }
    return NULL;
}

/* Room for one more at the end. */
static int make_room(struct tierce__group *group)
{
    size_t drop = group->step_count == TIERCE__GROUP_STEPS_MAX;
    size_t kept = group->step_count - drop;
    struct tierce__group_step *steps = tierce__calloc(kept + 1, sizeof(*steps));
    if (steps == NULL)
        return -ENOMEM;
    if (drop)
        tierce__free(group->steps[0].from);
    if (kept > 0)
        memcpy(steps, group->steps + drop, kept * sizeof(*steps));
    tierce__free(group->steps);
    group->steps = steps;
    group->step_count = kept;
    return 0;
}

static int put_step(struct tierce__group *group, const struct tierce__group_step *step)
{
    struct tierce__group_step *at = find_step(group, step->id);
    char *from = tierce__strdup(step->from);
    if (from == NULL || (at == NULL && make_room(group) < 0)) {
        tierce__free(from);
        return -ENOMEM;
    }
    if (at != NULL)
        tierce__free(at->from);
    else
        at = &group->steps[group->step_count++];
    *at = *step;
    at->from = from;
    return 0;
}

static int shift_quota(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct tierce__quota_shift *shift = arg;
    struct tierce__group *to = find(catalog, shift->to, why);
    struct tierce__group *from =
        shift->bytes != 0 && to != NULL ? find(catalog, shift->from, why) : NULL;
    if (to == NULL || (shift->bytes != 0 && from == NULL))
        return -ENOENT;
    int rc = shift->bytes != 0 ? move_bytes(from, to, shift, why) : 0;
    return rc == 0 ? put_step(to, shift->step) : rc;
}

int tierce__registry_shift(struct tierce__registry *registry,
                           const struct tierce__quota_shift *shift, char why[256])
{
    TIERCE_ASSERT(shift->step != NULL && shift->step->from != NULL);
    return tierce__registry_change(registry, shift_quota, shift, why);
}

/* ---- policies and times to live ---------------------------------------------------------------
 */

static int tune_group(struct tierce__catalog *catalog, const void *arg, char why[256])
{
    const struct tierce__group_tuning *tuning = arg;
    struct tierce__group *group = find(catalog, tuning->group, why);
    if (group == NULL)
        return -ENOENT;
    int rc = tuning->policy != 0 ? check_version(group, tuning->version, why) : 0;
    if (rc < 0)
        return rc;
    if (tuning->policy != 0) {
        group->reclaim_policy = tuning->policy;
        group->ttl_s = tuning->ttl_s;
        group->version++;
    }
    return put_step(group, tuning->step);
}

int tierce__registry_tune(struct tierce__registry *registry,
                          const struct tierce__group_tuning *tuning, char why[256])
{
    TIERCE_ASSERT(tuning->step != NULL && tuning->step->from != NULL && tuning->ttl_s >= 0);
    return tierce__registry_change(registry, tune_group, tuning, why);
}

/* ---- updates by clients ---------------------------------------------------------------------- */

static void keep_bounds(int64_t *least, int64_t *most, const int64_t sent[2], int64_t old_least,
                        int64_t old_most)
{
    *least = sent[0] == 0 ? old_least : *least;
    *most = sent[1] == 0 ? old_most : *most;
}

/* Fields that an update leaves at 0 keep their value: older clients do not know them. */
static void keep_rules(struct tierce__group *group, const struct tierce__group *sent,
                       const struct tierce__group *old)
{
    group->ttl_s = sent->ttl_s == 0 ? old->ttl_s : group->ttl_s;
    group->demote = sent->demote == 0 ? old->demote : group->demote;
    if (sent->promote_window_s == 0)
        group->promote_window_s = old->promote_window_s;
}

static void keep_quota(struct tierce__type_quota *quota, const struct tierce__type_quota *sent,
                       const struct tierce__type_quota *old)
{
    TIERCE_DASSERT(quota->type == old->type);
    keep_bounds(&quota->min_bytes, &quota->max_bytes,
                (const int64_t[]){sent->min_bytes, sent->max_bytes}, old->min_bytes,
                old->max_bytes);
    quota->replicas = sent->replicas == 0 ? old->replicas : quota->replicas;
}

/* A text that was not sent stays. */
static int keep_text(char **text, const char *sent, const char *old)
{
    if (sent != NULL && sent[0] != '\0')
        return 0;
    char *kept = tierce__strdup(old);
    if (kept == NULL)
        return -ENOMEM;
    tierce__free(*text);
    *text = kept;
    return 0;
}

/* Clients do not set the steps. They move from the entry that is replaced, which the catalog frees
 * next. */
static void move_steps(struct tierce__group *group, struct tierce__group *old)
{
    TIERCE_DASSERT(group->step_count == 0);
    tierce__free(group->steps);
    group->steps = old->steps;
    group->step_count = old->step_count;
    old->steps = NULL;
    old->step_count = 0;
}

int tierce__group_keep(struct tierce__group *group, const struct tierce__group *sent,
                       struct tierce__group *old)
{
    keep_rules(group, sent, old);
    keep_bounds(&group->min_bytes, &group->max_bytes,
                (const int64_t[]){sent->min_bytes, sent->max_bytes}, old->min_bytes,
                old->max_bytes);
    for (size_t i = 0; i < group->type_quota_count; i++) {
        struct tierce__type_quota *quota = &group->type_quotas[i];
        for (size_t n = 0; n < old->type_quota_count; n++) {
            const struct tierce__type_quota *before = &old->type_quotas[n];
            if (before->type == quota->type)
                keep_quota(quota, &sent->type_quotas[i], before);
        }
    }
    TIERCE_DASSERT(group->step_count == 0 || group->steps != old->steps);
    keep_bounds(&group->ttl_min_s, &group->ttl_max_s,
                (const int64_t[]){sent->ttl_min_s, sent->ttl_max_s}, old->ttl_min_s,
                old->ttl_max_s);
    int rc = keep_text(&group->autopilot, sent->autopilot, old->autopilot);
    if (rc == 0)
        rc = keep_text(&group->autopilot_policies, sent->autopilot_policies,
                       old->autopilot_policies);
    if (rc == 0)
        move_steps(group, old);
    return rc;
}
