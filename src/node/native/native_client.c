/* SPDX-License-Identifier: Apache-2.0 */
#include "node/native/native_private.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/threads/lock.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "core/key/key.h"

/* The objects of clients: views, chains, loads, stores, prefetches and pins, and their end. */

/* ---- open objects ---------------------------------------------------------------------------- */

uint64_t tierce__native_add(struct tierce__native_client *client, enum tierce__native_list list,
                            struct tierce__native_open *open)
{
    uint64_t number = 0;
    tierce__lock_take(&client->lock);
    uint32_t max = list == TIERCE__NATIVE_PUSHES ? TIERCE__NATIVE_PUSHES_MAX
                                                 : client->native->node->config->native_open_max;
    bool fits = client->counts[list] < max;
    if (fits) {
        number = open->number = ++client->last_number;
        client->counts[list]++;
        tierce__list_push_front(&client->lists[list], &open->node);
    }
    tierce__lock_drop(&client->lock);
    return number;
}

/* Under the lock. */
static struct tierce__native_open *find(struct tierce__native_client *client,
                                        enum tierce__native_list list, uint64_t number)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE__LIST_FOR_EACH (it, &client->lists[list]) {
        struct tierce__native_open *open =
            TIERCE__CONTAINER_OF(it, struct tierce__native_open, node);
        if (open->number == number)
            return open;
    }
    return NULL;
}

struct tierce__native_open *tierce__native_get(struct tierce__native_client *client,
                                               enum tierce__native_list list, uint64_t number)
{
    tierce__lock_take(&client->lock);
    struct tierce__native_open *open = find(client, list, number);
    bool is_free = open != NULL && !open->busy;
    TIERCE_ASSERT(open == NULL || !open->over);
    if (is_free)
        open->busy = true;
    tierce__lock_drop(&client->lock);
    return is_free ? open : NULL;
}

bool tierce__native_put(struct tierce__native_client *client, struct tierce__native_open *open)
{
    tierce__lock_take(&client->lock);
    TIERCE_ASSERT(open->busy);
    open->busy = false;
    bool over = open->over;
    tierce__lock_drop(&client->lock);
    return !over;
}

struct tierce__native_open *tierce__native_take(struct tierce__native_client *client,
                                                enum tierce__native_list list, uint64_t number,
                                                bool *later)
{
    tierce__lock_take(&client->lock);
    struct tierce__native_open *open = find(client, list, number);
    *later = open != NULL && open->busy;
    if (open != NULL) {
        TIERCE_ASSERT(client->counts[list] > 0 && !open->over);
        tierce__list_remove(&open->node);
        client->counts[list]--;
        open->over = *later;
    }
    tierce__lock_drop(&client->lock);
    return *later ? NULL : open;
}

/* The lock keeps the store from ending meanwhile. It is not marked as busy: its end may come on
 * another connection at the same time, and would find a busy store aborted. */
void tierce__native_note_layers(struct tierce__native_client *client, uint64_t number,
                                uint32_t layers)
{
    tierce__lock_take(&client->lock);
    struct tierce__native_open *open = find(client, TIERCE__NATIVE_STORES, number);
    const struct tierce__native_held_store *store =
        open != NULL ? TIERCE__CONTAINER_OF(open, struct tierce__native_held_store, open) : NULL;
    if (store != NULL && !store->late) {
        const struct tierce_part *part = &store->part;
        uint32_t count = layers < part->layer_count ? layers : part->layer_count;
        tierce__reserve_filled(store->share.reservation, part->first_layer,
                               part->first_layer + count);
    }
    tierce__lock_drop(&client->lock);
}

bool tierce__native_hold(struct tierce__native_client *client, uint64_t bytes)
{
    uint64_t max = client->native->node->config->native_memory_max;
    tierce__lock_take(&client->lock);
    bool fits = client->held_bytes <= max && bytes <= max - client->held_bytes;
    if (fits)
        client->held_bytes += bytes;
    tierce__lock_drop(&client->lock);
    if (fits)
        atomic_fetch_add_explicit(&client->native->transfers, 1, memory_order_relaxed);
    return fits;
}

void tierce__native_unhold(struct tierce__native_client *client, uint64_t bytes)
{
    tierce__lock_take(&client->lock);
    TIERCE_ASSERT(client->held_bytes >= bytes);
    client->held_bytes -= bytes;
    tierce__lock_drop(&client->lock);
    TIERCE_ASSERT(atomic_load_explicit(&client->native->transfers, memory_order_relaxed) > 0);
    atomic_fetch_sub_explicit(&client->native->transfers, 1, memory_order_relaxed);
}

bool tierce__native_rehold(struct tierce__native_client *client, uint64_t *bytes, uint64_t now)
{
    uint64_t max = client->native->node->config->native_memory_max;
    tierce__lock_take(&client->lock);
    TIERCE_ASSERT(client->held_bytes >= *bytes);
    uint64_t others = client->held_bytes - *bytes;
    bool fits = now <= *bytes || (others <= max && now <= max - others);
    if (fits) {
        client->held_bytes = others + now;
        *bytes = now;
    }
    tierce__lock_drop(&client->lock);
    return fits;
}

/* ---- views ----------------------------------------------------------------------------------- */

int tierce__native_view_open(struct tierce__native_client *client, uint64_t *number,
                             const struct tierce_namespace *ns, const struct tierce_shard *shard,
                             const struct tierce_part *part, const char *engine)
{
    struct tierce__native_held_view *view = tierce__calloc(1, sizeof(*view));
    if (view == NULL)
        return -ENOMEM;
    view->part = *part;
    view->refs = 1;
    bool ok = part->index < part->count && part->count <= ns->layer_count &&
              part->layer_count >= 1 && part->layer_count <= ns->layer_count &&
              part->first_layer <= ns->layer_count - part->layer_count &&
              strlen(engine) < TIERCE__NATIVE_ENGINE_BYTES;
    int rc = ok ? tierce__native_share(client, view, ns, shard, engine) : TIERCE_E_ARGUMENT;
    if (rc < 0) {
        tierce__free(view);
        return rc;
    }
    *number = tierce__native_add(client, TIERCE__NATIVE_VIEWS, &view->open);
    if (*number > 0)
        return 0;
    tierce__native_unshare(client->native, view);
    tierce__free(view);
    return TIERCE_E_LIMIT;
}

struct tierce__native_held_view *tierce__native_view_get(struct tierce__native_client *client,
                                                         uint64_t number)
{
    tierce__lock_take(&client->lock);
    struct tierce__native_open *open = find(client, TIERCE__NATIVE_VIEWS, number);
    struct tierce__native_held_view *view =
        open != NULL ? TIERCE__CONTAINER_OF(open, struct tierce__native_held_view, open) : NULL;
    TIERCE_ASSERT(view == NULL || view->refs > 0);
    if (view != NULL)
        view->refs++;
    tierce__lock_drop(&client->lock);
    return view;
}

void tierce__native_view_put(struct tierce__native_client *client,
                             struct tierce__native_held_view *view)
{
    tierce__lock_take(&client->lock);
    TIERCE_ASSERT(view->refs > 0);
    bool is_last = --view->refs == 0;
    tierce__lock_drop(&client->lock);
    if (!is_last)
        return;
    tierce__native_unshare(client->native, view);
    tierce__free(view);
}

/* ---- pins ------------------------------------------------------------------------------------ */

static struct tierce__list *pin_bin(struct tierce__native_client *client, uint64_t session)
{
    tierce__lock_assert_held(&client->lock);
    return &client->pins[(tierce__spread(session) >> 32) % TIERCE__NATIVE_PIN_BINS];
}

/* Under the lock. */
static struct tierce__native_pin *find_pin(struct tierce__native_client *client,
                                           const struct tierce__native_held_view *view,
                                           uint64_t session)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE__LIST_FOR_EACH (it, pin_bin(client, session)) {
        struct tierce__native_pin *pin =
            TIERCE__CONTAINER_OF(it, struct tierce__native_pin, open.node);
        if (pin->open.number == session && pin->view->shared == view->shared)
            return pin;
    }
    return NULL;
}

bool tierce__native_pin(struct tierce__native_client *client, struct tierce__native_held_view *view,
                        uint64_t session, uint32_t pin_ms)
{
    const struct tierce__node_config *config = client->native->node->config;
    struct tierce__native_pin *made = tierce__calloc(1, sizeof(*made));
    if (made == NULL)
        return false;
    tierce__lock_take(&client->lock);
    TIERCE_ASSERT(client->pin_count <= config->native_open_max);
    struct tierce__native_pin *pin = find_pin(client, view, session);
    if (pin == NULL && client->pin_count < config->native_open_max) {
        pin = made;
        made = NULL;
        pin->open.number = session;
        pin->view = view;
        view->refs++;
        client->pin_count++;
        tierce__list_push_front(pin_bin(client, session), &pin->open.node);
    }
    if (pin != NULL)
        pin->open.deadline_ns = tierce__deadline_in_ms(pin_ms > 0 ? pin_ms : config->pin_ms);
    tierce__lock_drop(&client->lock);
    tierce__free(made);
    return pin != NULL;
}

/* Under the lock. */
static void unlink_pin(struct tierce__native_client *client, struct tierce__native_pin *pin)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE_ASSERT(client->pin_count > 0);
    tierce__list_remove(&pin->open.node);
    client->pin_count--;
}

bool tierce__native_unpin(struct tierce__native_client *client,
                          const struct tierce__native_held_view *view, uint64_t session)
{
    tierce__lock_take(&client->lock);
    struct tierce__native_pin *pin = find_pin(client, view, session);
    if (pin != NULL)
        unlink_pin(client, pin);
    tierce__lock_drop(&client->lock);
    if (pin == NULL)
        return false;
    tierce__native_view_put(client, pin->view);
    tierce__free(pin);
    return true;
}

/* Moves the pins of a view, or all (NULL), or the expired ones (now_ns), to `out`. */
static void collect_pins(struct tierce__native_client *client, struct tierce__list *out,
                         const struct tierce__native_held_view *view, uint64_t now_ns)
{
    tierce__lock_take(&client->lock);
    for (size_t bin = 0; bin < TIERCE__NATIVE_PIN_BINS; bin++) {
        TIERCE__LIST_FOR_EACH_SAFE (it, after, &client->pins[bin]) {
            struct tierce__native_pin *pin =
                TIERCE__CONTAINER_OF(it, struct tierce__native_pin, open.node);
            if ((view != NULL && pin->view != view) || pin->open.deadline_ns > now_ns)
                continue;
            unlink_pin(client, pin);
            tierce__list_push_back(out, it);
        }
    }
    tierce__lock_drop(&client->lock);
}

/* The pins themselves too, unless the engine has ended them. */
static void drop_pins(struct tierce__native_client *client,
                      const struct tierce__native_held_view *view, uint64_t now_ns)
{
    struct tierce__list pins;
    tierce__list_init(&pins);
    collect_pins(client, &pins, view, now_ns);
    while (!tierce__list_empty(&pins)) {
        struct tierce__native_pin *pin =
            TIERCE__CONTAINER_OF(pins.next, struct tierce__native_pin, open.node);
        tierce__list_remove(&pin->open.node);
        if (now_ns == UINT64_MAX)
            tierce_unpin(pin->view->shared->view, pin->open.number);
        tierce__native_view_put(client, pin->view);
        tierce__free(pin);
    }
}

bool tierce__native_view_close(struct tierce__native_client *client, uint64_t number)
{
    bool later; /* no view is busy */
    struct tierce__native_open *open =
        tierce__native_take(client, TIERCE__NATIVE_VIEWS, number, &later);
    TIERCE_ASSERT(!later);
    if (open == NULL)
        return false;
    struct tierce__native_held_view *view =
        TIERCE__CONTAINER_OF(open, struct tierce__native_held_view, open);
    drop_pins(client, view, UINT64_MAX);
    tierce__native_view_put(client, view);
    return true;
}

/* ---- chains ---------------------------------------------------------------------------------- */

/* Under the lock. */
static void release_chain(struct tierce__native_client *client,
                          struct tierce__native_held_chain *chain)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE_ASSERT(chain->refs > 0);
    if (--chain->refs > 0)
        return;
    TIERCE_ASSERT(client->chain_bytes >= chain->bytes);
    client->chain_bytes -= chain->bytes;
    tierce_chain_destroy(chain->chain);
    tierce__free(chain);
}

/* Under the lock. */
static void forget_chain(struct tierce__native_client *client,
                         struct tierce__native_held_chain *chain)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE_ASSERT(!tierce__list_empty(&chain->node));
    tierce__list_remove(&chain->node);
    release_chain(client, chain);
}

/* A chain that starts again, in the list. Under the lock. */
static struct tierce__native_held_chain *new_chain(struct tierce__native_client *client,
                                                   const struct tierce__native_held_view *view,
                                                   uint64_t number, const uint8_t *root)
{
    tierce__lock_assert_held(&client->lock);
    const struct tierce_view *v = view->shared->view;
    struct tierce__native_held_chain *chain = tierce__calloc(1, sizeof(*chain));
    if (chain == NULL)
        return NULL;
    if (tierce__chain_create_hashed(&chain->chain, tierce__view_algo(v),
                                    tierce__view_block_tokens(v), root) < 0) {
        tierce__free(chain);
        return NULL;
    }
    chain->number = number;
    chain->refs = 1;
    tierce__list_push_front(&client->chains, &chain->node);
    return chain;
}

/* Under the lock. */
static struct tierce__native_held_chain *find_chain(struct tierce__native_client *client,
                                                    uint64_t number)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE__LIST_FOR_EACH (it, &client->chains) {
        struct tierce__native_held_chain *chain =
            TIERCE__CONTAINER_OF(it, struct tierce__native_held_chain, node);
        if (chain->number == number)
            return chain;
    }
    return NULL;
}

/* Whether it is of the view, and its blocks before `first` are those that are meant. */
static bool continues(const struct tierce__native_held_chain *chain,
                      const struct tierce__native_held_view *view,
                      const struct tierce__native_chain *asked)
{
    TIERCE_ASSERT(asked->first > 0);
    const struct tierce_view *v = view->shared->view;
    return tierce__chain_fits(chain->chain, tierce__view_algo(v), tierce__view_block_tokens(v)) &&
           tierce_chain_blocks(chain->chain) >= asked->first &&
           memcmp(tierce_chain_hash(chain->chain, asked->first - 1), asked->parent,
                  TIERCE_HASH_BYTES) == 0;
}

/* Makes its blocks those before `first` and the hashes. Under the lock. */
static int extend(struct tierce__native_client *client, struct tierce__native_held_chain *chain,
                  const struct tierce__native_chain *asked)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE_ASSERT(chain->refs == 1 && asked->first <= tierce_chain_blocks(chain->chain));
    uint64_t max = client->native->node->config->native_chains_max;
    if (((uint64_t)asked->first + asked->hashes.count) * TIERCE_HASH_BYTES > max)
        return TIERCE_E_LIMIT;
    tierce__chain_cut(chain->chain, asked->first);
    int64_t blocks =
        tierce_chain_append_hashes(chain->chain, asked->hashes.bytes, asked->hashes.count);
    if (blocks < 0)
        return (int)blocks;
    size_t bytes = sizeof(*chain) + 256 + (size_t)blocks * TIERCE_HASH_BYTES;
    if (bytes > chain->bytes) {
        client->chain_bytes += bytes - chain->bytes;
        chain->bytes = bytes;
    }
    TIERCE_ASSERT(chain->bytes <= client->chain_bytes);
    return 0;
}

/* Another chain of its number, with its blocks before `first`, because a request is using the old
 * one. Under the lock. */
static struct tierce__native_held_chain *split(struct tierce__native_client *client,
                                               const struct tierce__native_held_view *view,
                                               struct tierce__native_held_chain *chain,
                                               uint32_t first)
{
    tierce__lock_assert_held(&client->lock);
    TIERCE_ASSERT(chain->refs > 1);
    struct tierce__native_held_chain *copy =
        new_chain(client, view, chain->number, tierce_chain_root_hash(chain->chain));
    if (copy == NULL)
        return NULL;
    struct tierce__native_chain same = {
        .hashes = {.bytes = tierce_chain_hash(chain->chain, 0), .count = first}};
    if (extend(client, copy, &same) < 0) {
        forget_chain(client, copy);
        return NULL;
    }
    forget_chain(client, chain);
    return copy;
}

static void evict_chains(struct tierce__native_client *client)
{
    tierce__lock_assert_held(&client->lock);
    uint64_t max = client->native->node->config->native_chains_max;
    while (client->chain_bytes > max && client->chains.prev != client->chains.next)
        forget_chain(client, TIERCE__CONTAINER_OF(client->chains.prev,
                                                  struct tierce__native_held_chain, node));
}

/* Under the lock. */
static int get_chain(struct tierce__native_client *client, struct tierce__native_held_chain **out,
                     const struct tierce__native_held_view *view,
                     const struct tierce__native_chain *asked)
{
    tierce__lock_assert_held(&client->lock);
    struct tierce__native_held_chain *chain = find_chain(client, asked->number);
    if (asked->first > 0 && (chain == NULL || !continues(chain, view, asked)))
        return TIERCE__NATIVE_UNKNOWN_CHAIN;
    bool changes = asked->hashes.count > 0 || chain == NULL || asked->first == 0 ||
                   tierce_chain_blocks(chain->chain) > asked->first;
    if (asked->first == 0) {
        if (chain != NULL)
            forget_chain(client, chain);
        chain = new_chain(client, view, asked->number, asked->parent);
    } else if (changes && chain->refs > 1) {
        chain = split(client, view, chain, asked->first);
    }
    if (chain == NULL)
        return -ENOMEM;
    int rc = changes ? extend(client, chain, asked) : 0;
    if (rc < 0) {
        forget_chain(client, chain);
        return rc;
    }
    tierce__list_remove(&chain->node);
    tierce__list_push_front(&client->chains, &chain->node);
    evict_chains(client);
    TIERCE_ASSERT(client->chain_bytes >= chain->bytes);
    /* Chains of loads in progress stay, whatever their total size. */
    if (client->chain_bytes - chain->bytes > client->native->node->config->native_chains_max) {
        forget_chain(client, chain);
        return TIERCE_E_LIMIT;
    }
    chain->refs++;
    *out = chain;
    return 0;
}

int tierce__native_chain_get(struct tierce__native_client *client,
                             struct tierce__native_held_chain **out,
                             const struct tierce__native_held_view *view,
                             const struct tierce__native_chain *asked)
{
    tierce__lock_take(&client->lock);
    int rc = get_chain(client, out, view, asked);
    tierce__lock_drop(&client->lock);
    return rc;
}

void tierce__native_chain_put(struct tierce__native_client *client,
                              struct tierce__native_held_chain *chain)
{
    tierce__lock_take(&client->lock);
    release_chain(client, chain);
    tierce__lock_drop(&client->lock);
}

/* ---- the end of loads, stores and prefetches ------------------------------------------------- */

void tierce__native_end_load(struct tierce__native_client *client,
                             struct tierce__native_held_load *load, const uint32_t *blocks)
{
    tierce__native_unhold(client, load->bytes); /* before who waits for the memory is woken */
    load->lease->ops->end(load->lease, blocks);
    tierce__native_chain_put(client, load->chain);
    tierce__native_view_put(client, load->view);
    tierce__free(load);
}

int64_t tierce__native_end_store(struct tierce__native_client *client,
                                 struct tierce__native_held_store *store, bool complete)
{
    tierce__native_unhold(client, store->bytes); /* before who waits for the memory is woken */
    int64_t blocks = tierce__share_end(&store->share, complete && !store->late);
    tierce__free(store);
    return blocks;
}

void tierce__native_end_prefetch(struct tierce__native_client *client,
                                 struct tierce__native_held_prefetch *prefetch)
{
    tierce_prefetch_end(prefetch->prefetch);
    tierce__native_view_put(client, prefetch->view);
    tierce__free(prefetch);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* One load that is late, taken out; or NULL. */
static struct tierce__native_held_load *take_late_load(struct tierce__native_client *client,
                                                       uint64_t now_ns)
{
    struct tierce__native_held_load *late = NULL;
    tierce__lock_take(&client->lock);
    TIERCE__LIST_FOR_EACH (it, &client->lists[TIERCE__NATIVE_LOADS]) {
        struct tierce__native_open *open =
            TIERCE__CONTAINER_OF(it, struct tierce__native_open, node);
        if (!open->busy && open->deadline_ns <= now_ns)
            late = TIERCE__CONTAINER_OF(open, struct tierce__native_held_load, open);
    }
    if (late != NULL) {
        TIERCE_ASSERT(client->counts[TIERCE__NATIVE_LOADS] > 0);
        tierce__list_remove(&late->open.node);
        client->counts[TIERCE__NATIVE_LOADS]--;
    }
    tierce__lock_drop(&client->lock);
    return late;
}

/* One store that is late, marked as busy; or NULL. */
static struct tierce__native_held_store *late_store(struct tierce__native_client *client,
                                                    uint64_t now_ns)
{
    struct tierce__native_held_store *late = NULL;
    tierce__lock_take(&client->lock);
    TIERCE__LIST_FOR_EACH (it, &client->lists[TIERCE__NATIVE_STORES]) {
        struct tierce__native_open *open =
            TIERCE__CONTAINER_OF(it, struct tierce__native_open, node);
        struct tierce__native_held_store *store =
            TIERCE__CONTAINER_OF(open, struct tierce__native_held_store, open);
        if (!open->busy && !store->late && open->deadline_ns <= now_ns)
            late = store;
    }
    if (late != NULL)
        late->late = late->open.busy = true;
    tierce__lock_drop(&client->lock);
    return late;
}

/* Aborts the stores that are late, without a lock: stores of others that waited for them go on in
 * this thread, and do I/O. Their spaces stay with the client, which may still write to them. */
static void expire_stores(struct tierce__native_client *client, uint64_t now_ns)
{
    struct tierce__native_held_store *store;
    while ((store = late_store(client, now_ns)) != NULL) {
        tierce__share_give_up(&store->share);
        tierce__node_count(client->native->node, TIERCE__NODE_native_stores_expired, 1);
        tierce__log(TIERCE_LOG_WARN, "native_store_expired", "pid=%llu bytes=%llu",
                    (unsigned long long)client->pid, (unsigned long long)store->bytes);
        if (!tierce__native_put(client, &store->open))
            (void)tierce__native_end_store(client, store, false);
    }
}

static void expire_client(struct tierce__native_client *client, uint64_t now_ns)
{
    struct tierce__native_held_load *load;
    while ((load = take_late_load(client, now_ns)) != NULL) {
        tierce__node_count(client->native->node, TIERCE__NODE_native_loads_expired, 1);
        tierce__log(TIERCE_LOG_WARN, "native_load_expired", "pid=%llu bytes=%llu",
                    (unsigned long long)client->pid, (unsigned long long)load->bytes);
        tierce__native_end_load(client, load, NULL);
    }
    expire_stores(client, now_ns);
    tierce__native_expire_pushes(client, now_ns);
    drop_pins(client, NULL, now_ns);
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct tierce__native_client *make_client(struct tierce__native *native, uint64_t pid)
{
    struct tierce__native_client *client = tierce__calloc(1, sizeof(*client));
    if (client == NULL)
        return NULL;
    client->native = native;
    client->pid = pid;
    client->connections = 1;
    if (getrandom(client->id, sizeof(client->id), 0) != (ssize_t)sizeof(client->id)) {
        tierce__free(client);
        return NULL;
    }
    tierce__lock_init(&client->lock, TIERCE__LOCK_NATIVE_CLIENT);
    for (size_t i = 0; i < TIERCE__NATIVE_LISTS; i++)
        tierce__list_init(&client->lists[i]);
    for (size_t i = 0; i < TIERCE__NATIVE_PIN_BINS; i++)
        tierce__list_init(&client->pins[i]);
    tierce__list_init(&client->chains);
    return client;
}

int tierce__native_join(struct tierce__native_connection *connection,
                        const struct tierce__native_hello *hello)
{
    static const uint8_t none[TIERCE__NATIVE_ID_BYTES];
    struct tierce__native *native = connection->native;
    struct tierce__native_client *client = NULL;
    if (memcmp(hello->client, none, sizeof(none)) == 0) {
        client = make_client(native, hello->pid);
        if (client == NULL)
            return -ENOMEM;
        tierce__lock_take(&native->lock);
        tierce__list_push_back(&native->clients, &client->node);
        tierce__lock_drop(&native->lock);
        connection->client = client;
        connection->sends_pool = true;
        return 0;
    }
    tierce__lock_take(&native->lock);
    TIERCE__LIST_FOR_EACH (it, &native->clients) {
        struct tierce__native_client *other =
            TIERCE__CONTAINER_OF(it, struct tierce__native_client, node);
        if (memcmp(other->id, hello->client, sizeof(none)) == 0)
            client = other;
    }
    TIERCE_ASSERT(client == NULL || client->connections > 0);
    if (client != NULL)
        client->connections++;
    tierce__lock_drop(&native->lock);
    connection->client = client;
    return client != NULL ? 0 : TIERCE_E_CLOSED;
}

static struct tierce__native_open *take_any(struct tierce__native_client *client,
                                            enum tierce__native_list list)
{
    struct tierce__list *head = &client->lists[list];
    if (tierce__list_empty(head))
        return NULL;
    struct tierce__native_open *open =
        TIERCE__CONTAINER_OF(head->next, struct tierce__native_open, node);
    TIERCE_ASSERT(!open->busy); /* no connection is left that could ask */
    tierce__list_remove(&open->node);
    return open;
}

/* No other thread uses the client any more. */
static void end_client(struct tierce__native_client *client)
{
    struct tierce__native_open *open;
    TIERCE_ASSERT(client->connections == 0);
    tierce__native_end_handover(client);
    uint32_t loads = client->counts[TIERCE__NATIVE_LOADS];
    uint32_t stores = client->counts[TIERCE__NATIVE_STORES];
    if (loads + stores > 0) {
        tierce__node_count(client->native->node, TIERCE__NODE_native_clients_gone, 1);
        tierce__log(TIERCE_LOG_WARN, "native_client_gone", "pid=%llu loads=%u stores=%u",
                    (unsigned long long)client->pid, loads, stores);
    }
    while ((open = take_any(client, TIERCE__NATIVE_PUSHES)) != NULL)
        tierce__native_end_push(client, open);
    while ((open = take_any(client, TIERCE__NATIVE_STORES)) != NULL)
        (void)tierce__native_end_store(
            client, TIERCE__CONTAINER_OF(open, struct tierce__native_held_store, open), false);
    while ((open = take_any(client, TIERCE__NATIVE_LOADS)) != NULL)
        tierce__native_end_load(
            client, TIERCE__CONTAINER_OF(open, struct tierce__native_held_load, open), NULL);
    while ((open = take_any(client, TIERCE__NATIVE_PREFETCHES)) != NULL)
        tierce__native_end_prefetch(
            client, TIERCE__CONTAINER_OF(open, struct tierce__native_held_prefetch, open));
    TIERCE_ASSERT(client->held_bytes == 0);
    drop_pins(client, NULL, UINT64_MAX);
    while ((open = take_any(client, TIERCE__NATIVE_VIEWS)) != NULL)
        tierce__native_view_put(client,
                                TIERCE__CONTAINER_OF(open, struct tierce__native_held_view, open));
    TIERCE_ASSERT(client->pin_count == 0);
    tierce__lock_take(&client->lock);
    while (!tierce__list_empty(&client->chains))
        forget_chain(client, TIERCE__CONTAINER_OF(client->chains.next,
                                                  struct tierce__native_held_chain, node));
    tierce__lock_drop(&client->lock);
    TIERCE_ASSERT(client->chain_bytes == 0);
    tierce__lock_fini(&client->lock);
    tierce__free(client);
}

/* Also the end of a reference that the clock has had. */
static void leave_client(struct tierce__native_client *client)
{
    struct tierce__native *native = client->native;
    tierce__lock_take(&native->lock);
    TIERCE_ASSERT(client->connections > 0);
    bool is_last = --client->connections == 0;
    if (is_last)
        tierce__list_remove(&client->node);
    tierce__lock_drop(&native->lock);
    if (is_last)
        end_client(client);
}

void tierce__native_leave(struct tierce__native_connection *connection)
{
    if (connection->client != NULL)
        leave_client(connection->client);
    connection->client = NULL;
}

/* A client that is not looked at yet, with a reference that leave_client ends; or NULL. */
static struct tierce__native_client *next_client(struct tierce__native *native, size_t index)
{
    struct tierce__native_client *found = NULL;
    tierce__lock_take(&native->lock);
    TIERCE__LIST_FOR_EACH (it, &native->clients) {
        if (found == NULL && index-- == 0)
            found = TIERCE__CONTAINER_OF(it, struct tierce__native_client, node);
    }
    TIERCE_ASSERT(found == NULL || found->connections > 0);
    if (found != NULL)
        found->connections++;
    tierce__lock_drop(&native->lock);
    return found;
}

/* If a client ends during the walk, another client may be skipped until the next call. */
void tierce__native_expire(struct tierce__native *native)
{
    struct tierce__native_client *client;
    for (size_t i = 0; (client = next_client(native, i)) != NULL; i++) {
        expire_client(client, tierce__now_ns());
        leave_client(client);
    }
    tierce__native_reap_pushes(native, false);
}
