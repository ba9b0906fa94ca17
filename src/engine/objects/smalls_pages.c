/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of small values. A page is one buffer of the pool, stored in the memory tier under its own
 * key, so that the tier's policy ranks it among chunks and other pages. It is divided into equal
 * slots. A class consists of all pages of a partition with one slot size.
 *
 * A class without a free slot evicts its own values by the clock algorithm, as many as a page
 * holds; then it requests another page, for which the memory tier evicts by its policy. So a class
 * with many new values grows at the cost of the least recently used pages and chunks.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mix.h"
#include "engine/objects/smalls_private.h"

#define SLOT_ALIGN      32u
#define SLOT_BYTES_MIN  64u
#define PAGE_SMALL_MAX  (64u << 10)
#define PAGE_LARGE_MAX  (256u << 10)
#define PAGE_BYTES_MIN  (16u << 10)
#define PARTITION_BYTES (64ULL << 20) /* one partition per this many bytes of the pool */
#define SLOTS_LEAST     3u            /* per page */
#define CLOCK_STEPS     64u           /* after this many the next value is evicted, used or not */

/* ---- classes --------------------------------------------------------------------------------- */

static uint32_t page_bytes_for(uint64_t cap_bytes, uint64_t share, uint32_t most)
{
    uint32_t bytes = PAGE_BYTES_MIN;
    while (bytes < most && (uint64_t)bytes * 2 * share <= cap_bytes)
        bytes *= 2;
    return bytes;
}

/* Slot sizes that fill a page without waste: from 1024 slots down to 3, an eighth fewer each time.
 */
void tierce__small_classes_init(struct tierce__smalls *smalls, uint64_t cap_bytes)
{
    uint32_t small = page_bytes_for(cap_bytes, 256, PAGE_SMALL_MAX);
    uint32_t large = page_bytes_for(cap_bytes, 64, PAGE_LARGE_MAX);
    uint32_t page = small, slots = small / SLOT_BYTES_MIN, count = 0, last = 0;
    struct tierce__small_class classes[TIERCE__SMALLS_CLASSES] = {0};
    while (slots >= SLOTS_LEAST && count < TIERCE__SMALLS_CLASSES) {
        uint32_t slot_bytes = page / slots / SLOT_ALIGN * SLOT_ALIGN;
        if (slot_bytes > last)
            classes[count++] = (struct tierce__small_class){
                .slot_bytes = slot_bytes, .slots = page / slot_bytes, .page_bytes = page};
        last = slot_bytes;
        slots -= slots >= 16 ? slots / 8 : 1;
        if (page < large && slot_bytes >= page / 8) {
            slots = large / (slot_bytes + slot_bytes / 8);
            page = large;
        }
    }
    TIERCE_DASSERT(count > 0 && count <= TIERCE__SMALLS_CLASSES);
    smalls->class_count = count;
    smalls->record_max = last;
    smalls->partition_count = 1;
    while (smalls->partition_count < TIERCE__SMALLS_PARTITIONS &&
           smalls->partition_count * PARTITION_BYTES < cap_bytes)
        smalls->partition_count *= 2;
    for (uint32_t i = 0; i < smalls->partition_count; i++) {
        struct tierce__small_partition *p = &smalls->partitions[i];
        memcpy(p->classes, classes, sizeof(classes));
        for (uint32_t c = 0; c < count; c++) {
            tierce__list_init(&p->classes[c].pages);
            tierce__list_init(&p->classes[c].free_pages);
        }
    }
}

uint32_t tierce__small_class_of(const struct tierce__smalls *smalls, size_t record_bytes)
{
    const struct tierce__small_class *classes = smalls->partitions[0].classes;
    uint32_t low = 0, high = smalls->class_count - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (classes[middle].slot_bytes < record_bytes)
            low = middle + 1;
        else
            high = middle;
    }
    TIERCE_DASSERT(record_bytes <= classes[low].slot_bytes);
    return low;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t take_free(struct tierce__small_page *page)
{
    uint32_t slot = page->free_first;
    TIERCE_DASSERT(page->free_count > 0 && slot < page->slots && !page->is_leaving);
    TIERCE_DASSERT(page->marks[slot] == TIERCE__SMALL_FREE);
    page->free_first = page->next[slot];
    page->free_count--;
    page->marks[slot] = TIERCE__SMALL_LIVE;
    if (page->free_count == 0)
        tierce__list_remove(&page->free_node);
    TIERCE_DASSERT(page->free_count == 0 || page->free_first < page->slots);
    return page->number << TIERCE__SMALLS_SLOT_BITS | slot;
}

uint32_t tierce__small_slot_free(struct tierce__small_partition *p, uint32_t place)
{
    tierce__lock_assert_held(&p->lock);
    struct tierce__small_page *page = p->pages[place >> TIERCE__SMALLS_SLOT_BITS];
    struct tierce__small_class *class = &p->classes[page->size_class];
    uint32_t slot = place & (TIERCE__SMALLS_SLOTS_MAX - 1);
    TIERCE_DASSERT(slot < page->slots);
    TIERCE_ASSERT(page->marks[slot] != TIERCE__SMALL_FREE);
    page->marks[slot] = TIERCE__SMALL_FREE;
    page->next[slot] = (uint16_t)page->free_first;
    page->free_first = slot;
    if (page->free_count++ == 0)
        tierce__list_push_back(&class->free_pages, &page->free_node);
    bool is_only = class->free_pages.next == class->free_pages.prev;
    TIERCE_DASSERT(page->free_count <= page->slots);
    if (page->free_count < page->slots || is_only || page->is_leaving)
        return TIERCE__SMALLS_NOWHERE;
    page->is_leaving = true;
    tierce__list_remove(&page->free_node);
    return page->number;
}

uint32_t tierce__small_drop(struct tierce__small_partition *p, uint32_t place)
{
    tierce__lock_assert_held(&p->lock);
    tierce__small_uncount(p, place);
    tierce__small_index_remove(p, tierce__small_at(p, place)->hash, place);
    return tierce__small_slot_free(p, place);
}

/* ---- pages ----------------------------------------------------------------------------------- */

void tierce__small_page_free(struct tierce__small_page *page)
{
    if (page == NULL)
        return;
    tierce__free(page->marks);
    tierce__free(page->next);
    tierce__free(page);
}

static struct tierce__small_page *make_page(const struct tierce__small_class *class,
                                            uint32_t size_class)
{
    TIERCE_DASSERT(class->slots > 0 && class->slots <= TIERCE__SMALLS_SLOTS_MAX);
    struct tierce__small_page *page = tierce__calloc(1, sizeof(*page));
    if (page == NULL)
        return NULL;
    tierce__list_init(&page->node);
    tierce__list_init(&page->free_node);
    page->size_class = size_class;
    page->slots = page->free_count = class->slots;
    page->marks = tierce__calloc(class->slots, 1);
    page->next = tierce__alloc(class->slots * sizeof(*page->next));
    if (page->marks == NULL || page->next == NULL) {
        tierce__small_page_free(page);
        return NULL;
    }
    for (uint32_t i = 0; i < class->slots; i++)
        page->next[i] = (uint16_t)(i + 1);
    return page;
}

static struct tierce__key page_key(const struct tierce__smalls *smalls,
                                   const struct tierce__small_partition *p, uint32_t number,
                                   uint32_t generation)
{
    TIERCE_DASSERT(p >= smalls->partitions && p < smalls->partitions + smalls->partition_count);
    struct tierce__key key = {.ns = TIERCE__SMALLS_NS, .shard = {0, 1, 0, 1}};
    tierce__store_le32(key.hash, (uint32_t)(tierce__spread(number) >> 32) ^ generation);
    tierce__store_le32(key.hash + 4, generation);
    tierce__store_le32(key.hash + 8, number);
    tierce__store_le32(key.hash + 12, (uint32_t)(p - smalls->partitions));
    return key;
}

static int add_numbers(struct tierce__small_partition *p)
{
    tierce__lock_assert_held(&p->lock);
    uint32_t room = p->page_room > 0 ? 2 * p->page_room : 16;
    if (room > UINT32_MAX >> TIERCE__SMALLS_SLOT_BITS)
        return -ENOMEM;
    struct tierce__small_page **pages = tierce__realloc(p->pages, room * sizeof(*pages));
    p->pages = pages != NULL ? pages : p->pages;
    uint32_t *numbers = tierce__realloc(p->free_numbers, room * sizeof(*numbers));
    p->free_numbers = numbers != NULL ? numbers : p->free_numbers;
    if (pages == NULL || numbers == NULL)
        return -ENOMEM;
    p->page_room = room;
    TIERCE_DASSERT(p->page_count < p->page_room);
    return 0;
}

/* Assigns a number to the page. Under the lock. */
static int number_page(struct tierce__small_partition *p, struct tierce__small_page *page)
{
    tierce__lock_assert_held(&p->lock);
    if (p->free_number_count == 0 && p->page_count == p->page_room) {
        int rc = add_numbers(p);
        if (rc < 0)
            return rc;
    }
    uint32_t number =
        p->free_number_count > 0 ? p->free_numbers[--p->free_number_count] : p->page_count++;
    TIERCE_DASSERT(number < p->page_room);
    page->number = number;
    page->generation = ++p->generation;
    p->pages[number] = page;
    return 0;
}

static void free_number(struct tierce__small_partition *p, uint32_t number)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_ASSERT(p->pages[number] != NULL && p->free_number_count < p->page_room);
    TIERCE_DASSERT(number < p->page_count);
    p->pages[number] = NULL;
    p->free_numbers[p->free_number_count++] = number;
}

/* Moves the clock hand to the next page, cyclically. */
static void next_page(struct tierce__small_class *class)
{
    struct tierce__list *next = class->hand_page->node.next;
    if (next == &class->pages)
        next = class->pages.next;
    class->hand_page = TIERCE__CONTAINER_OF(next, struct tierce__small_page, node);
    class->hand = 0;
}

static void advance_hand(struct tierce__small_class *class)
{
    TIERCE_DASSERT(class->hand < class->hand_page->slots);
    if (++class->hand == class->hand_page->slots)
        next_page(class);
}

/* Under the lock. The page has no value in the index. */
static void unlink_page(struct tierce__small_partition *p, struct tierce__small_page *page)
{
    tierce__lock_assert_held(&p->lock);
    struct tierce__small_class *class = &p->classes[page->size_class];
    TIERCE_DASSERT(p->live_pages > 0 && p->page_bytes >= class->page_bytes);
    TIERCE_DASSERT(page->size_class < TIERCE__SMALLS_CLASSES && !tierce__list_empty(&page->node));
    if (class->hand_page == page)
        next_page(class);
    if (class->hand_page == page) /* the only page */
        class->hand_page = NULL;
    tierce__list_remove(&page->node);
    tierce__list_remove(&page->free_node);
    free_number(p, page->number);
    p->page_bytes -= class->page_bytes;
    p->live_pages--;
}

static void nothing(struct tierce__store_req *req)
{
    (void)req;
}

/* The memory tier completes every request inside submit. */
static int ask_memory(struct tierce__smalls *smalls, enum tierce__store_op op,
                      const struct tierce__key *key, struct tierce__buf *buf)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__store_req req = {.op = op,
                                    .deadline_ns = TIERCE__DEADLINE_NEVER,
                                    .done = nothing,
                                    .keys = key,
                                    .key_count = 1,
                                    .buf = buf,
                                    .object_bytes = buf != NULL ? buf->bytes : 0,
                                    .block_count = 1,
                                    .left = TIERCE__LEFT_DELETED};
    smalls->memory->ops->submit(smalls->memory, &req);
    TIERCE_DASSERT(req.status <= 0);
    return req.status;
}

/* Whether a page fits without an eviction; an estimate is enough. */
static bool has_room(const struct tierce__smalls *smalls, uint32_t page_bytes)
{
    struct tierce__pool_stats stats;
    tierce__pool_stats(smalls->pool, &stats);
    return stats.used_bytes + page_bytes <= stats.cap_bytes && stats.bufs < stats.buf_count_max;
}

static void install(struct tierce__small_partition *p, struct tierce__small_page *page,
                    struct tierce__buf *buf)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_ASSERT(buf->bytes >= p->classes[page->size_class].page_bytes);
    TIERCE_DASSERT(page->free_count == page->slots && p->pages[page->number] == page);
    struct tierce__small_class *class = &p->classes[page->size_class];
    page->buf = buf;
    tierce__list_push_back(&class->pages, &page->node);
    tierce__list_push_back(&class->free_pages, &page->free_node);
    p->page_bytes += class->page_bytes;
    p->live_pages++;
}

/* Under the lock, while its bytes exist: removes its values from the index, and the page. */
static void leave(struct tierce__small_partition *p, struct tierce__small_page *page)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_DASSERT(p->pages[page->number] == page);
    for (uint32_t slot = 0; slot < page->slots; slot++) {
        if (page->marks[slot] == TIERCE__SMALL_FREE)
            continue;
        uint32_t place = page->number << TIERCE__SMALLS_SLOT_BITS | slot;
        tierce__small_uncount(p, place);
        tierce__small_index_remove(p, tierce__small_at(p, place)->hash, place);
        p->evicted_values++;
    }
    unlink_page(p, page);
}

static int show(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                const struct tierce__key *key, struct tierce__small_page *page)
{
    struct tierce__buf *buf = page->buf;
    /* From here on page_left may free it. */
    int rc = ask_memory(smalls, TIERCE__STORE_PUT, key, buf);
    if (rc < 0) { /* the tier is closed */
        tierce__lock_take(&p->lock);
        leave(p, page);
        tierce__lock_drop(&p->lock);
        tierce__small_page_free(page);
    }
    tierce__buf_release(buf);
    return rc;
}

/* Adds a page to a class. Releases the lock while it calls the memory tier. The page is in its
 * class before the tier may evict it. */
static int add_page(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                    uint32_t size_class)
{
    tierce__lock_assert_held(&p->lock);
    struct tierce__small_class *class = &p->classes[size_class];
    struct tierce__small_page *page = make_page(class, size_class);
    int rc = page != NULL ? number_page(p, page) : -ENOMEM;
    if (rc < 0) {
        tierce__small_page_free(page);
        return rc;
    }
    uint32_t number = page->number;
    struct tierce__key key = page_key(smalls, p, number, page->generation);
    tierce__lock_drop(&p->lock);
    bool fits = has_room(smalls, class->page_bytes);
    struct tierce__buf *buf = smalls->memory->ops->reserve(
        smalls->memory, &(struct tierce__reserve){.key = &key, .bytes = class->page_bytes});
    tierce__lock_take(&p->lock);
    if (buf == NULL) {
        free_number(p, number);
        tierce__small_page_free(page);
        return TIERCE_E_FULL;
    }
    install(p, page, buf);
    atomic_fetch_add_explicit(&smalls->adds, 1, memory_order_relaxed);
    class->debt = fits ? 0 : class->slots;
    tierce__lock_drop(&p->lock);
    rc = show(smalls, p, &key, page);
    /* If it became empty before, the thread that emptied it found nothing to delete in the tier. */
    tierce__small_page_give(smalls, p, number);
    tierce__lock_take(&p->lock);
    return rc;
}

void tierce__small_page_give(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                             uint32_t number)
{
    if (number == TIERCE__SMALLS_NOWHERE)
        return;
    tierce__lock_take(&p->lock);
    TIERCE_DASSERT(number < p->page_count);
    const struct tierce__small_page *page = p->pages[number];
    bool is_there = page != NULL && page->is_leaving;
    struct tierce__key key = {0};
    if (is_there)
        key = page_key(smalls, p, number, page->generation);
    tierce__lock_drop(&p->lock);
    if (is_there) /* it may have been evicted meanwhile */
        (void)ask_memory(smalls, TIERCE__STORE_DELETE, &key, NULL);
}

void tierce__small_page_touch(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                              uint32_t number, uint32_t generation, bool is_new)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__key key = page_key(smalls, p, number, generation);
    smalls->memory->ops->touch(
        smalls->memory,
        &(struct tierce__tier_uses){.keys = &key, .count = 1, .origin = {.is_new = is_new}});
}

/* Its bytes exist until this returns. */
void tierce__smalls_page_left(struct tierce__smalls *smalls, const struct tierce__key *key)
{
    TIERCE_DASSERT(tierce__smalls_is_page(key));
    uint32_t at = tierce__load_le32(key->hash + 12), number = tierce__load_le32(key->hash + 8);
    TIERCE_ASSERT(at < smalls->partition_count);
    struct tierce__small_partition *p = &smalls->partitions[at];
    tierce__lock_take(&p->lock);
    TIERCE_ASSERT(number < p->page_count);
    struct tierce__small_page *page = p->pages[number];
    TIERCE_ASSERT(page != NULL && page->generation == tierce__load_le32(key->hash + 4));
    leave(p, page);
    tierce__lock_drop(&p->lock);
    tierce__small_page_free(page);
}

/* ---- eviction -------------------------------------------------------------------------------- */

/* Evicts a value and takes its slot; NOWHERE if the class has no value. All slots are live here:
 * the class has no free ones, and pages that are being freed have no live ones. */
static uint32_t evict_own(struct tierce__small_partition *p, struct tierce__small_class *class)
{
    tierce__lock_assert_held(&p->lock);
    if (tierce__list_empty(&class->pages))
        return TIERCE__SMALLS_NOWHERE;
    if (class->hand_page == NULL) {
        class->hand_page = TIERCE__CONTAINER_OF(class->pages.next, struct tierce__small_page, node);
        class->hand = 0;
    }
    uint64_t steps = 0, most = CLOCK_STEPS + class->slots * p->live_pages;
    for (; steps < most; steps++, advance_hand(class)) {
        struct tierce__small_page *page = class->hand_page;
        uint8_t *mark = &page->marks[class->hand];
        if (*mark == TIERCE__SMALL_FREE)
            continue;
        if ((*mark & TIERCE__SMALL_USED) != 0 && steps < CLOCK_STEPS) {
            *mark = TIERCE__SMALL_LIVE;
            continue;
        }
        uint32_t place = page->number << TIERCE__SMALLS_SLOT_BITS | class->hand;
        tierce__small_uncount(p, place);
        tierce__small_index_remove(p, tierce__small_at(p, place)->hash, place);
        p->evicted_values++;
        *mark = TIERCE__SMALL_LIVE;
        advance_hand(class);
        return place;
    }
    return TIERCE__SMALLS_NOWHERE;
}

uint32_t tierce__small_slot_take(struct tierce__smalls *smalls, struct tierce__small_partition *p,
                                 uint32_t size_class, bool *dropped, int *rc)
{
    tierce__lock_assert_held(&p->lock);
    TIERCE_DASSERT(size_class < smalls->class_count);
    enum { TRIES = 4 }; /* other threads may take all slots of a page that this thread added */
    struct tierce__small_class *class = &p->classes[size_class];
    *dropped = false;
    *rc = TIERCE_E_FULL;
    for (int i = 0; i < TRIES; i++) {
        if (!tierce__list_empty(&class->free_pages))
            return take_free(
                TIERCE__CONTAINER_OF(class->free_pages.next, struct tierce__small_page, free_node));
        if (class->debt > 0) {
            class->debt--;
            uint32_t place = evict_own(p, class);
            if (place != TIERCE__SMALLS_NOWHERE)
                return place;
        }
        *dropped = true;
        *rc = add_page(smalls, p, size_class);
        if (*rc < 0)
            break;
    }
    return tierce__list_empty(&class->free_pages)
               ? evict_own(p, class)
               : take_free(TIERCE__CONTAINER_OF(class->free_pages.next, struct tierce__small_page,
                                                free_node));
}
