/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_models.h"

#include <stdlib.h>
#include <string.h>

#define NONE TIERCE__NO_SLOT

/* ---- policies that are the minimum of a rank ------------------------------------------------- */

static bool is_candidate(const struct model *m, uint32_t slot)
{
    return m->items[slot].in && !m->items[slot].pinned;
}

static uint32_t oldest(const struct model *m, bool (*may)(const struct model *, uint32_t))
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < m->slots; i++) {
        if (may(m, i) && (best == NONE || m->items[i].used_at < m->items[best].used_at))
            best = i;
    }
    return best;
}

static uint32_t lru_victim(struct model *m)
{
    return oldest(m, is_candidate);
}

static bool has_no_child(const struct model *m, uint32_t slot)
{
    for (uint32_t i = 0; i < m->slots; i++) {
        if (m->items[i].in && m->items[i].parent == slot &&
            m->items[i].parent_stored_at == m->items[slot].stored_at)
            return false;
    }
    return is_candidate(m, slot);
}

static uint32_t leaf_victim(struct model *m)
{
    return oldest(m, has_no_child);
}

void model_note_inner(struct model *m)
{
    for (uint32_t i = 0; i < m->slots; i++) {
        struct model_item *item = &m->items[i];
        if (!is_candidate(m, i) || has_no_child(m, i))
            item->inner_since = 0;
        else if (item->inner_since == 0)
            item->inner_since = ++m->clock;
    }
}

uint32_t model_inner(const struct model *m)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < m->slots; i++) {
        uint64_t since = m->items[i].inner_since;
        if (since > 0 && (best == NONE || since > m->items[best].inner_since))
            best = i;
    }
    return best;
}

static uint32_t fifo_victim(struct model *m)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < m->slots; i++) {
        if (is_candidate(m, i) &&
            (best == NONE || m->items[i].stored_at < m->items[best].stored_at))
            best = i;
    }
    return best;
}

static uint32_t mru_victim(struct model *m)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < m->slots; i++) {
        if (is_candidate(m, i) && (best == NONE || m->items[i].used_at > m->items[best].used_at))
            best = i;
    }
    return best;
}

static uint32_t lfu_victim(struct model *m)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < m->slots; i++) {
        const struct model_item *a = &m->items[i], *b = &m->items[best == NONE ? 0 : best];
        if (is_candidate(m, i) &&
            (best == NONE || a->uses < b->uses || (a->uses == b->uses && a->used_at < b->used_at)))
            best = i;
    }
    return best;
}

uint32_t model_expired(const struct model *m)
{
    uint32_t slot = oldest(m, is_candidate);
    if (strcmp(m->ops->name, "ttl") != 0 || slot == NONE ||
        m->time - m->items[slot].used_time < m->ttl)
        return NONE;
    return slot;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static uint32_t index_of(const struct model_list *list, uint32_t slot)
{
    uint32_t i = 0;
    while (i < list->count && list->slots[i] != slot)
        i++;
    return i;
}

static bool cut(struct model_list *list, uint32_t slot)
{
    uint32_t at = index_of(list, slot);
    if (at == list->count)
        return false;
    list->count--;
    memmove(list->slots + at, list->slots + at + 1, (list->count - at) * sizeof(uint32_t));
    return true;
}

static void put(struct model_list *list, uint32_t at, uint32_t slot)
{
    memmove(list->slots + at + 1, list->slots + at, (list->count - at) * sizeof(uint32_t));
    list->slots[at] = slot;
    list->count++;
}

static void append(struct model_list *list, uint32_t slot)
{
    put(list, list->count, slot);
}

static uint32_t first_candidate(const struct model *m, const struct model_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (is_candidate(m, list->slots[i]))
            return list->slots[i];
    }
    return NONE;
}

static uint64_t list_bytes(const struct model *m, uint32_t list)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->lists[list].count; i++)
        bytes += m->items[m->lists[list].slots[i]].bytes;
    return bytes;
}

/* ---- ghosts ---------------------------------------------------------------------------------- */

static uint64_t ghost_bytes(const struct model *m, uint32_t list)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->ghost_count; i++)
        bytes += m->ghosts[i].list == list ? m->ghosts[i].bytes : 0;
    return bytes;
}

static void ghost_cut(struct model *m, uint32_t at)
{
    m->ghost_count--;
    memmove(m->ghosts + at, m->ghosts + at + 1, (m->ghost_count - at) * sizeof(struct model_ghost));
}

static bool ghost_find(const struct model *m, uint64_t key, uint32_t *at)
{
    for (*at = 0; *at < m->ghost_count; ++*at) {
        if (m->ghosts[*at].key == key)
            return true;
    }
    return false;
}

static bool ghost_drop_oldest(struct model *m, uint32_t list)
{
    for (uint32_t i = 0; i < m->ghost_count; i++) {
        if (m->ghosts[i].list == list) {
            ghost_cut(m, i);
            return true;
        }
    }
    return false;
}

static void ghost_push(struct model *m, uint32_t list, const struct model_item *item, uint32_t room)
{
    uint32_t at;
    if (ghost_find(m, item->key, &at))
        ghost_cut(m, at);
    if (m->ghost_count == room && !ghost_drop_oldest(m, list))
        ghost_drop_oldest(m, !list);
    m->ghosts[m->ghost_count++] =
        (struct model_ghost){.key = item->key, .bytes = item->bytes, .list = list};
}

/* ---- sieve ----------------------------------------------------------------------------------- */

static void sieve_insert(struct model *m, uint32_t slot)
{
    append(&m->lists[0], slot);
}

static void sieve_touch(struct model *m, uint32_t slot)
{
    m->items[slot].used = true;
}

/* The hand's next position; the slot at its position may have been removed. */
static void set_hand(struct model *m, uint32_t at)
{
    m->hand = at < m->lists[0].count ? m->lists[0].slots[at] : NONE;
}

static void sieve_cut(struct model *m, uint32_t slot)
{
    uint32_t at = index_of(&m->lists[0], slot);
    if (cut(&m->lists[0], slot) && m->hand == slot)
        set_hand(m, at);
}

static void sieve_remove(struct model *m, uint32_t slot, bool evicted)
{
    (void)evicted;
    sieve_cut(m, slot);
    cut(&m->aside, slot);
}

static uint32_t sieve_victim(struct model *m)
{
    uint32_t slot;
    while ((slot = first_candidate(m, &m->aside)) != NONE) {
        if (!m->items[slot].used)
            return slot;
        m->items[slot].used = false;
        cut(&m->aside, slot);
        put(&m->lists[0], m->hand == NONE ? m->lists[0].count : index_of(&m->lists[0], m->hand),
            slot);
    }
    while (m->lists[0].count > 0) {
        uint32_t at = m->hand == NONE ? 0 : index_of(&m->lists[0], m->hand);
        slot = m->lists[0].slots[at];
        m->hand = slot;
        if (m->items[slot].used) {
            m->items[slot].used = false;
            set_hand(m, at + 1);
        } else if (m->items[slot].pinned) {
            sieve_cut(m, slot);
            append(&m->aside, slot);
        } else {
            return slot;
        }
    }
    return NONE;
}

/* ---- s3fifo ---------------------------------------------------------------------------------- */

enum { SMALL, MAIN };

static void s3_expect(struct model *m, uint64_t key, uint64_t bytes)
{
    uint32_t at;
    (void)bytes;
    m->expects = true;
    m->expected_key = key;
    m->expects_known = ghost_find(m, key, &at);
    if (m->expects_known)
        ghost_cut(m, at);
}

static void s3_insert(struct model *m, uint32_t slot)
{
    struct model_item *item = &m->items[slot];
    if (!m->expects || m->expected_key != item->key)
        s3_expect(m, item->key, item->bytes);
    m->expects = false;
    item->uses = 0;
    bool fills_main = strcmp(m->ops->name, "s3fifo_lcs") == 0 && !m->has_evicted &&
                      list_bytes(m, SMALL) >= m->capacity / 10;
    append(&m->lists[m->expects_known || fills_main ? MAIN : SMALL], slot);
}

static void s3_touch(struct model *m, uint32_t slot)
{
    if (m->chosen == slot)
        m->chosen = NONE;
}

static void s3_remove(struct model *m, uint32_t slot, bool evicted)
{
    uint64_t share = m->capacity * 9 / 10;
    if (m->chosen == slot)
        m->chosen = NONE;
    if (!cut(&m->lists[SMALL], slot))
        cut(&m->lists[MAIN], slot);
    else if (evicted && m->items[slot].bytes <= share)
        ghost_push(m, 0, &m->items[slot], m->slots);
    while (ghost_bytes(m, 0) > share)
        ghost_drop_oldest(m, 0);
}

static uint32_t s3_from_small(struct model *m)
{
    uint32_t slot;
    while ((slot = first_candidate(m, &m->lists[SMALL])) != NONE && m->items[slot].uses >= 2) {
        m->items[slot].uses = 0;
        cut(&m->lists[SMALL], slot);
        append(&m->lists[MAIN], slot);
    }
    return slot;
}

static uint32_t s3_from_main(struct model *m)
{
    uint32_t slot;
    while ((slot = first_candidate(m, &m->lists[MAIN])) != NONE && m->items[slot].uses >= 1) {
        m->items[slot].uses = (m->items[slot].uses < 3 ? m->items[slot].uses : 3) - 1;
        cut(&m->lists[MAIN], slot);
        append(&m->lists[MAIN], slot);
    }
    return slot;
}

static uint32_t s3_victim(struct model *m)
{
    m->has_evicted = true;
    if (m->chosen != NONE && !m->items[m->chosen].pinned)
        return m->chosen;
    m->chosen = NONE;
    if (list_bytes(m, MAIN) > m->capacity - m->capacity / 10 || m->lists[SMALL].count == 0)
        m->chosen = s3_from_main(m);
    if (m->chosen == NONE)
        m->chosen = s3_from_small(m);
    if (m->chosen == NONE)
        m->chosen = s3_from_main(m);
    return m->chosen;
}

/* ---- arc: T1 and T2 are the lists, B1 and B2 their ghosts ------------------------------------ */

static void arc_expect(struct model *m, uint64_t key, uint64_t bytes)
{
    uint32_t at;
    m->expects = true;
    m->expected_key = key;
    m->expects_known = ghost_find(m, key, &at);
    m->expects_again = m->expects_known && m->ghosts[at].list == 1;
    if (!m->expects_known)
        return;
    double b1 = (double)ghost_bytes(m, 0), b2 = (double)ghost_bytes(m, 1);
    if (m->ghosts[at].list == 0)
        m->share += (double)bytes * (b1 >= b2 ? 1 : b2 / b1);
    else
        m->share -= (double)bytes * (b2 >= b1 ? 1 : b1 / b2);
    if (m->share > (double)m->capacity)
        m->share = (double)m->capacity;
    if (m->share < 0)
        m->share = 0;
    ghost_cut(m, at);
}

static void arc_insert(struct model *m, uint32_t slot)
{
    struct model_item *item = &m->items[slot];
    if (!m->expects || m->expected_key != item->key)
        arc_expect(m, item->key, item->bytes);
    m->expects = m->expects_again = false;
    uint64_t c = m->capacity;
    if (!m->expects_known) {
        while (list_bytes(m, 0) + ghost_bytes(m, 0) + item->bytes > c && ghost_drop_oldest(m, 0))
            continue;
        while (list_bytes(m, 0) + ghost_bytes(m, 0) + list_bytes(m, 1) + ghost_bytes(m, 1) +
                       item->bytes >
                   2 * c &&
               ghost_drop_oldest(m, 1))
            continue;
    }
    append(&m->lists[m->expects_known ? 1 : 0], slot);
}

static void arc_touch(struct model *m, uint32_t slot)
{
    if (!cut(&m->lists[0], slot))
        cut(&m->lists[1], slot);
    append(&m->lists[1], slot);
}

static void arc_remove(struct model *m, uint32_t slot, bool evicted)
{
    uint32_t list = cut(&m->lists[0], slot) ? 0 : 1;
    cut(&m->lists[1], slot);
    if (evicted)
        ghost_push(m, list, &m->items[slot], m->slots + 1);
}

static uint32_t arc_victim(struct model *m)
{
    double t1 = (double)list_bytes(m, 0);
    uint32_t list = t1 > m->share || (m->expects_again && t1 == m->share) ? 0 : 1;
    uint32_t slot = first_candidate(m, &m->lists[list]);
    return slot != NONE ? slot : first_candidate(m, &m->lists[!list]);
}

/* ---- hazard ---------------------------------------------------------------------------------- */

static void hazard_start(struct model *m, const struct tierce__policy_opts *opts)
{
    hazard_model_init(&m->hazard, opts->slot_count, opts->capacity);
}

static void hazard_stop(struct model *m)
{
    hazard_model_fini(&m->hazard);
}

/* After a change: leaves that are not pinned are listed. */
static void hazard_list(struct model *m)
{
    for (uint32_t i = 0; i < m->slots; i++)
        hazard_model_list(&m->hazard, i, has_no_child(m, i), true);
}

static void hazard_insert(struct model *m, uint32_t slot)
{
    const struct model_item *item = &m->items[slot];
    hazard_model_insert(&m->hazard, slot,
                        &(struct tierce__policy_entry){.key = item->key, .origin = item->origin});
    hazard_list(m);
}

static void hazard_touch(struct model *m, uint32_t slot)
{
    hazard_model_touch(&m->hazard, slot);
}

static void hazard_remove(struct model *m, uint32_t slot, bool evicted)
{
    hazard_model_remove(&m->hazard, slot, evicted);
    m->items[slot].in = false;
    hazard_list(m);
}

static void hazard_pin(struct model *m, uint32_t slot)
{
    (void)slot;
    hazard_list(m);
}

static uint32_t hazard_victim(struct model *m)
{
    return hazard_model_victim(&m->hazard);
}

static void hazard_request(struct model *m, const struct tierce__policy_request *request)
{
    hazard_model_request(&m->hazard, request);
}

static bool hazard_admits(struct model *m, const struct tierce__policy_entry *entry)
{
    return hazard_model_admits(&m->hazard, entry, hazard_model_victim(&m->hazard));
}

static void hazard_skip(struct model *m, const struct tierce__policy_entry *entry)
{
    hazard_model_skip(&m->hazard, entry);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct model_ops models[] = {
    {.name = "lru", .victim = lru_victim},
    {.name = "fifo", .victim = fifo_victim},
    {.name = "mru", .victim = mru_victim},
    {.name = "lfu", .victim = lfu_victim},
    {.name = "leaf_lru", .victim = leaf_victim},
    {.name = "ttl", .victim = lru_victim},
    {.name = "sampled_lru", .victim = lru_victim},
    {.name = "sieve",
     .insert = sieve_insert,
     .touch = sieve_touch,
     .remove = sieve_remove,
     .victim = sieve_victim},
    {.name = "s3fifo",
     .expect = s3_expect,
     .insert = s3_insert,
     .touch = s3_touch,
     .remove = s3_remove,
     .victim = s3_victim},
    {.name = "s3fifo_lcs",
     .expect = s3_expect,
     .insert = s3_insert,
     .touch = s3_touch,
     .remove = s3_remove,
     .victim = s3_victim},
    {.name = "arc",
     .expect = arc_expect,
     .insert = arc_insert,
     .touch = arc_touch,
     .remove = arc_remove,
     .victim = arc_victim},
    {.name = "hazard",
     .start = hazard_start,
     .stop = hazard_stop,
     .insert = hazard_insert,
     .touch = hazard_touch,
     .remove = hazard_remove,
     .victim = hazard_victim,
     .pin = hazard_pin,
     .request = hazard_request,
     .admits = hazard_admits,
     .skip = hazard_skip},
};

const struct model_ops *model_ops_at(size_t index)
{
    return index < sizeof(models) / sizeof(models[0]) ? &models[index] : NULL;
}
