/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FIFO with reinsertion (CLOCK), a policy that Tierce loads from a shared object:
 *
 *     cc -O2 -shared -fPIC -o plugin_policy.so plugin_policy.c
 *     memory.policy: "plugin:///absolute/path/plugin_policy.so?uses=3"
 *
 * Entries are in the order in which they were stored. The oldest one is evicted, unless it was used
 * since it was stored or since it last moved: then it moves to the new end and loses one use. A use
 * changes a counter and no list, so uses are cheap. `uses` is the maximum of the counter.
 *
 * Copy it, and replace the order.
 */
#include <tierce/plugin_policy.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USES     3u
#define USES_MAX 255u

/* Evictable entries are in a ring of slots; the slot after the last one is its head. */
struct entry {
    uint32_t older, newer;
    uint8_t uses;
    uint8_t is_queued;
};

struct fifo {
    uint32_t head; /* = slot_count */
    unsigned uses_max;
    struct entry entries[]; /* [slot_count + 1] */
};

/* ---- the ring -------------------------------------------------------------------------------- */

static void take(struct fifo *fifo, uint32_t slot)
{
    struct entry *entry = &fifo->entries[slot];
    fifo->entries[entry->older].newer = entry->newer;
    fifo->entries[entry->newer].older = entry->older;
    entry->is_queued = 0;
}

static void append(struct fifo *fifo, uint32_t slot)
{
    struct entry *head = &fifo->entries[fifo->head], *entry = &fifo->entries[slot];
    entry->older = head->older;
    entry->newer = fifo->head;
    fifo->entries[head->older].newer = slot;
    head->older = slot;
    entry->is_queued = 1;
}

/* ---- the functions of the table -------------------------------------------------------------- */

static int read_params(unsigned *uses_max, const struct tierce_plugin_policy_opts *opts, char *why,
                       size_t why_room)
{
    for (size_t i = 0; i < opts->param_count; i++) {
        char *end;
        unsigned long value = strtoul(opts->params[i].value, &end, 10);
        if (strcmp(opts->params[i].name, "uses") != 0) {
            snprintf(why, why_room, "unknown parameter %.40s; accepted is uses",
                     opts->params[i].name);
            return -EINVAL;
        }
        if (*end != '\0' || value < 1 || value > USES_MAX) {
            snprintf(why, why_room, "uses is \"%.40s\"; accepted are 1 to %u",
                     opts->params[i].value, USES_MAX);
            return -EINVAL;
        }
        *uses_max = (unsigned)value;
    }
    return 0;
}

static int fifo_create(void **policy, const struct tierce_plugin_policy_opts *opts, char *why,
                       size_t why_room)
{
    unsigned uses_max = USES;
    int rc = read_params(&uses_max, opts, why, why_room);
    if (rc != 0)
        return rc;
    size_t count = (size_t)opts->slot_count + 1;
    struct fifo *fifo = calloc(1, sizeof(*fifo) + count * sizeof(fifo->entries[0]));
    if (fifo == NULL)
        return -ENOMEM;
    fifo->head = opts->slot_count;
    fifo->uses_max = uses_max;
    fifo->entries[fifo->head] = (struct entry){.older = fifo->head, .newer = fifo->head};
    *policy = fifo;
    return 0;
}

static void fifo_insert(void *policy, uint32_t slot, const struct tierce_plugin_policy_entry *entry)
{
    struct fifo *fifo = policy;
    (void)entry;
    fifo->entries[slot].uses = 0;
    append(fifo, slot);
}

static void fifo_touch(void *policy, uint32_t slot, uint64_t now)
{
    struct fifo *fifo = policy;
    (void)now;
    if (fifo->entries[slot].uses < fifo->uses_max)
        fifo->entries[slot].uses++;
}

/* An entry that is being read has left the ring, so no search meets it. It returns to the new end:
 * its use has just ended. */
static void fifo_set_evictable(void *policy, uint32_t slot, int evictable)
{
    struct fifo *fifo = policy;
    if (evictable)
        append(fifo, slot);
    else
        take(fifo, slot);
}

static void fifo_remove(void *policy, uint32_t slot, int evicted)
{
    struct fifo *fifo = policy;
    (void)evicted;
    if (fifo->entries[slot].is_queued)
        take(fifo, slot);
}

/* Each step takes a use away, so there are at most as many steps as uses. */
static uint32_t fifo_victim(void *policy, uint64_t now)
{
    struct fifo *fifo = policy;
    uint32_t oldest = fifo->entries[fifo->head].newer;
    (void)now;
    while (oldest != fifo->head && fifo->entries[oldest].uses > 0) {
        fifo->entries[oldest].uses--;
        take(fifo, oldest);
        append(fifo, oldest);
        oldest = fifo->entries[fifo->head].newer;
    }
    return oldest != fifo->head ? oldest : TIERCE_PLUGIN_NO_SLOT;
}

static const struct tierce_plugin_policy policy = {
    .version = TIERCE_PLUGIN_POLICY_VERSION,
    .size = sizeof(policy),
    .name = "fifo_reinsertion",
    .caps = TIERCE_PLUGIN_COUNTS_USES,
    .create = fifo_create,
    .destroy = free,
    .insert = fifo_insert,
    .touch = fifo_touch,
    .set_evictable = fifo_set_evictable,
    .remove = fifo_remove,
    .victim = fifo_victim,
};

const struct tierce_plugin_policy *tierce_plugin_policy(void)
{
    return &policy;
}
