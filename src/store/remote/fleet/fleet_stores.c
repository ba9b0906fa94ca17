/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "base/json/json_value.h"
#include "base/text/utf8.h"
#include "store/remote/fleet/fleet_allowed.h"
#include "store/remote/fleet/fleet_stores_private.h"
#include "store/remote/fleet/storage_at.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define STORES_MAGIC   0x666c7374u
#define JSON_BYTES_MAX (4u << 20)
#define CURRENT_MAX    256u
#define ALL_MAX        1024u /* with those that the manager does not name any more */

static struct tierce__fleet_store *store_of(struct tierce__list *node)
{
    return TIERCE__CONTAINER_OF(node, struct tierce__fleet_store, node);
}

/* ---- the storages of an answer --------------------------------------------------------------- */

/* It may hold a password. */
static void free_url(struct tierce__fleet_store *store)
{
    tierce__free_secret(store->url);
    store->url = NULL;
}

static void free_store(struct tierce__fleet_store *store)
{
    TIERCE_ASSERT(store->use == NULL && tierce__list_empty(&store->waiting));
    tierce__free(store->name);
    tierce__free(store->type);
    tierce__free(store->root);
    free_url(store);
    tierce__free(store);
}

static void free_stores(struct tierce__list *stores)
{
    while (!tierce__list_empty(stores)) {
        struct tierce__fleet_store *store = store_of(stores->next);
        tierce__list_remove(&store->node);
        free_store(store);
    }
}

/* The fields of an entry that say where it is; heap. */
struct fleet_entry {
    char *texts[9];
};

/* Names of JSON, in the order of fleet_entry. */
static const char *const fields[9] = {
    "type",
    "storage_spec.root_path",
    "storage_spec.mountpoint",
    "storage_spec.root_dir",
    "storage_spec.uri",
    "storage_spec.master_server_entry",
    "storage_spec.metadata_connstring",
    "storage_spec.protocol",
    "storage_spec.rdma_device",
};

/* A text, or NULL if there is none. */
static int take_text(char **out, struct tierce__text entry, const char *path,
                     char why[TIERCE__FLEET_WHY_BYTES])
{
    struct tierce__text value = tierce__json_get(entry, path);
    if (value.length == 0)
        return 0;
    int rc = tierce__json_copy_text(out, value, "");
    if (rc == TIERCE_E_FORMAT)
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "storage_configs: %s must be a string without NUL",
                 path);
    return rc;
}

/* The mark of a folder. Another kind of storage that is emptied does not come back. Errors:
 * TIERCE_E_FORMAT, -ENOMEM. */
static int take_mark(struct tierce__fleet_store *store, struct tierce__text entry,
                     char why[TIERCE__FLEET_WHY_BYTES])
{
    const struct tierce__storage_at at = {.type = store->type};
    char *id = NULL;
    int rc = take_text(&id, entry, "mark", why);
    if (rc == 0 && id != NULL && !tierce__storage_id_is(id)) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES,
                 "storage_configs: mark must be 32 hex digits in lower case");
        rc = TIERCE_E_FORMAT;
    }
    if (rc == 0 && id != NULL)
        store->registry = XXH3_64bits(id, strlen(id));
    if (rc == 0 && id != NULL && tierce__storage_at_has_files(&at))
        tierce__storage_mark_write(store->mark, id);
    tierce__free(id);
    return rc;
}

static void clear_entry(struct fleet_entry *entry)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
        tierce__free(entry->texts[i]);
}

/* Errors: -ENOMEM. A storage that cannot be reached has no URL. */
static int locate(struct tierce__fleet_store *store, const struct fleet_entry *entry)
{
    char *const *texts = entry->texts;
    const struct tierce__storage_at at = {.type = texts[0],
                                          .root_path = texts[1],
                                          .mountpoint = texts[2],
                                          .root_dir = texts[3],
                                          .uri = texts[4],
                                          .master = texts[5],
                                          .metadata = texts[6],
                                          .protocol = texts[7],
                                          .device = texts[8],
                                          .python = store->stores->mooncake_python};
    store->type = tierce__strdup(texts[0]);
    store->root = tierce__storage_at_root(&at);
    if (store->type == NULL || store->root == NULL)
        return -ENOMEM;
    if (strcmp(at.type, "mooncake") == 0 && at.python == NULL) {
        snprintf(store->reason, sizeof(store->reason),
                 "storages of Mooncake require mooncake_python=PATH in the fleet URL, and a mover "
                 "requires mover.mooncake_python: an interpreter that has Mooncake's package");
        return 0;
    }
    int rc = tierce__storage_at_url(&store->url, &at, store->reason);
    const char *allowed = store->stores->allowed;
    if (rc == 0 && allowed != NULL && !tierce__fleet_allows(allowed, store->url, store->reason))
        free_url(store);
    return rc == -ENOMEM ? rc : 0;
}

/* Errors: TIERCE_E_FORMAT, -ENOMEM. */
static int read_store(struct tierce__fleet_store *store, struct tierce__text object,
                      char why[TIERCE__FLEET_WHY_BYTES])
{
    struct fleet_entry entry = {{NULL}};
    int rc = take_text(&store->name, object, "global_unique_name", why);
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields) && rc == 0; i++)
        rc = take_text(&entry.texts[i], object, fields[i], why);
    if (rc == 0 && (store->name == NULL || entry.texts[0] == NULL)) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES,
                 "storage_configs: an entry must have type and global_unique_name");
        rc = TIERCE_E_FORMAT;
    }
    if (rc == 0)
        rc = locate(store, &entry);
    if (rc == 0)
        rc = take_mark(store, object, why);
    clear_entry(&entry);
    return rc;
}

static struct tierce__fleet_store *find_named(const struct tierce__list *all, const char *name,
                                              bool only_current)
{
    TIERCE__LIST_FOR_EACH (node, all) {
        struct tierce__fleet_store *store = store_of(node);
        if ((store->is_current || !only_current) && strcmp(store->name, name) == 0)
            return store;
    }
    return NULL;
}

/* Appends a storage for the entry. */
static int add_store(struct tierce__list *list, struct tierce__fleet_stores *stores,
                     struct tierce__text entry, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct tierce__fleet_store *store = tierce__calloc(1, sizeof(*store));
    if (store == NULL)
        return -ENOMEM;
    store->stores = stores;
    tierce__list_init(&store->node);
    tierce__list_init(&store->waiting);
    int rc = read_store(store, entry, why);
    if (rc == 0 && find_named(list, store->name, false) != NULL) {
        char shown[64];
        tierce__text_for_message(shown, sizeof(shown), store->name);
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "storage_configs: storage %s is given twice", shown);
        rc = TIERCE_E_FORMAT;
    }
    if (rc == 0)
        tierce__list_push_back(list, &store->node);
    else
        free_store(store);
    return rc;
}

static int read_stores(struct tierce__list *list, struct tierce__fleet_stores *stores,
                       const char *json, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct tierce__json_doc doc = {0};
    struct tierce__text ignored, entry;
    size_t bytes = strnlen(json, JSON_BYTES_MAX + 1);
    int rc = TIERCE_E_FORMAT;
    if (bytes <= JSON_BYTES_MAX && tierce__is_utf8(json, bytes))
        rc = tierce__json_parse(&doc, json, bytes, NULL);
    if (rc == 0 &&
        (tierce__json_value_kind(doc.value) != '[' || tierce__json_count(doc.value) > CURRENT_MAX))
        rc = TIERCE_E_FORMAT;
    if (rc == TIERCE_E_FORMAT)
        snprintf(why, TIERCE__FLEET_WHY_BYTES,
                 "storage_configs: not a JSON array of at most %u storages", CURRENT_MAX);
    struct tierce__json each = tierce__json_each(doc.value);
    while (rc == 0 && tierce__json_next(&each, &ignored, &entry))
        rc = add_store(list, stores, entry, why);
    tierce__json_doc_clear(&doc);
    return rc;
}

/* ---- taking them over ------------------------------------------------------------------------ */

static bool is_same(const struct tierce__fleet_store *a, const struct tierce__fleet_store *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->type, b->type) == 0 &&
           strcmp(a->root, b->root) == 0 && strcmp(a->reason, b->reason) == 0 &&
           (a->url == NULL) == (b->url == NULL) && (a->url == NULL || strcmp(a->url, b->url) == 0);
}

static struct tierce__fleet_store *find_same(const struct tierce__list *list,
                                             const struct tierce__fleet_store *wanted)
{
    TIERCE__LIST_FOR_EACH (node, list) {
        if (is_same(store_of(node), wanted))
            return store_of(node);
    }
    return NULL;
}

/* A storage gets its mark when the manager has probed it, and keeps it. */
static void take_marks(struct tierce__fleet_stores *stores, const struct tierce__list *list)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE__LIST_FOR_EACH (node, list) {
        struct tierce__fleet_store *store = find_same(&stores->all, store_of(node));
        if (store != NULL)
            memcpy(store->mark, store_of(node)->mark, sizeof(store->mark));
    }
}

/* All storages have the mark of one registry, or none yet. */
static uint64_t registry_of(const struct tierce__list *list)
{
    uint64_t registry = 0;
    TIERCE__LIST_FOR_EACH (node, list)
        registry = store_of(node)->registry != 0 ? store_of(node)->registry : registry;
    return registry;
}

/* How many of the storages are new. */
static size_t count_new(const struct tierce__fleet_stores *stores, const struct tierce__list *list)
{
    size_t count = 0;
    TIERCE__LIST_FOR_EACH (node, list)
        count += find_same(&stores->all, store_of(node)) == NULL;
    return count;
}

/* Takes the waiting requests of storages that the manager does not name any more. */
static void retire_old(struct tierce__fleet_stores *stores, const struct tierce__list *list,
                       struct tierce__list *waiting)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE__LIST_FOR_EACH (node, &stores->all) {
        struct tierce__fleet_store *store = store_of(node);
        bool was_current = store->is_current;
        store->is_current = find_same(list, store) != NULL;
        if (store->is_current && !was_current)
            store->why[0] = '\0';
        if (store->is_current)
            continue;
        tierce__fleet_take_waiting(waiting, store);
        tierce__fleet_retire(store);
        if (store->state == TIERCE__FLEET_WANTED)
            store->state = TIERCE__FLEET_CLOSED;
        snprintf(store->why, sizeof(store->why), "the manager has removed or changed it");
    }
}

/* Moves the new ones. */
static void add_new(struct tierce__fleet_stores *stores, struct tierce__list *list)
{
    tierce__lock_assert_held(&stores->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, list) {
        struct tierce__fleet_store *store = store_of(node);
        if (find_same(&stores->all, store) != NULL)
            continue;
        tierce__list_remove(node);
        store->is_current = true;
        tierce__list_push_back(&stores->all, node);
        stores->count++;
    }
    TIERCE_ASSERT(stores->count <= ALL_MAX);
}

int tierce__fleet_stores_update(struct tierce__fleet_stores *stores, const char *json,
                                char why[TIERCE__FLEET_WHY_BYTES])
{
    TIERCE_CHECK_MAGIC(stores, STORES_MAGIC);
    struct tierce__list list, waiting;
    tierce__list_init(&list);
    tierce__list_init(&waiting);
    int rc = read_stores(&list, stores, json, why);
    if (rc == 0 && stores->count + count_new(stores, &list) > ALL_MAX) {
        snprintf(why, TIERCE__FLEET_WHY_BYTES,
                 "storage_configs: the storages have changed more than %u times", ALL_MAX);
        rc = TIERCE_E_FORMAT;
    }
    if (rc == -ENOMEM)
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "%s", tierce_strerror(rc));
    if (rc == 0) {
        tierce__lock_take(&stores->lock);
        retire_old(stores, &list, &waiting);
        take_marks(stores, &list);
        stores->registry = registry_of(&list);
        add_new(stores, &list);
        tierce__lock_drop(&stores->lock);
    }
    free_stores(&list);
    tierce__fleet_answer_all(&waiting, TIERCE_E_DOWN);
    return rc;
}

uint64_t tierce__fleet_stores_registry(struct tierce__fleet_stores *stores)
{
    TIERCE_CHECK_MAGIC(stores, STORES_MAGIC);
    tierce__lock_take(&stores->lock);
    uint64_t registry = stores->registry;
    tierce__lock_drop(&stores->lock);
    return registry;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Stands in place of a request's `arg` while the request is here. */
struct fleet_call {
    struct tierce__fleet_store *store;
    struct tierce__fleet_use *use; /* NULL: it has no connector yet */
    tierce__store_done_fn *done;
    void *arg;
};

/* The credentials may have changed: the next request opens a new connector, which reads them. */
static void reject(struct tierce__fleet_store *store, const struct tierce__fleet_use *use)
{
    tierce__lock_take(&store->stores->lock);
    if (store->use == use && tierce__now_ns() - use->opened_ns >= TIERCE__FLEET_RETRY_NS)
        tierce__fleet_retire(store);
    tierce__lock_drop(&store->stores->lock);
}

static void answered(struct tierce__store_req *req)
{
    struct fleet_call *call = req->arg;
    TIERCE_ASSERT(call->store != NULL && call->done != NULL);
    req->done = call->done;
    req->arg = call->arg;
    if (call->use != NULL && req->status == TIERCE_E_REFUSED)
        reject(call->store, call->use);
    if (call->use != NULL)
        tierce__fleet_let_go(call->store->stores, call->use);
    tierce__free(call);
    req->done(req);
}

void tierce__fleet_hand_over(struct tierce__fleet_use *use, struct tierce__store_req *req)
{
    struct fleet_call *call = req->arg;
    TIERCE_ASSERT(req->done == answered && call->use == NULL);
    call->use = use;
    use->connector->ops->submit(use->connector, req);
}

/* Whether it may be opened now. Under the lock. */
static bool may_open(const struct tierce__fleet_store *store)
{
    tierce__lock_assert_held(&store->stores->lock);
    return store->url != NULL && store->is_current && !store->stores->is_ending &&
           (store->failed_ns == 0 || tierce__now_ns() - store->failed_ns >= TIERCE__FLEET_RETRY_NS);
}

/* Lets a request wait until the connector is open. False: it is not opened now. */
static bool wait_for_open(struct tierce__fleet_store *store, struct tierce__store_req *req)
{
    tierce__lock_assert_held(&store->stores->lock);
    TIERCE_DASSERT(store->state != TIERCE__FLEET_OPEN);
    if (store->state == TIERCE__FLEET_CLOSED) {
        if (!may_open(store))
            return false;
        store->state = TIERCE__FLEET_WANTED;
    }
    tierce__list_init(&req->node);
    tierce__list_push_back(&store->waiting, &req->node);
    tierce__cond_broadcast(&store->stores->wake);
    return true;
}

/* Two holds on the connector of a storage, for a request and its caller; NULL: it is not open. */
static struct tierce__fleet_use *hold(struct tierce__fleet_store *store, uint32_t count)
{
    tierce__lock_assert_held(&store->stores->lock);
    TIERCE_ASSERT((store->state == TIERCE__FLEET_OPEN) == (store->use != NULL));
    if (store->use != NULL)
        store->use->holders += count;
    return store->use;
}

static void refuse(struct tierce__store_req *req, int status)
{
    req->status = status;
    req->done(req);
}

void tierce__fleet_store_submit(struct tierce__fleet_store *store, struct tierce__store_req *req)
{
    struct tierce__fleet_stores *stores = store->stores;
    TIERCE_CHECK_MAGIC(stores, STORES_MAGIC);
    struct fleet_call *call = tierce__alloc(sizeof(*call));
    if (call == NULL) {
        refuse(req, -ENOMEM);
        return;
    }
    *call = (struct fleet_call){.store = store, .done = req->done, .arg = req->arg};
    req->done = answered;
    req->arg = call;
    tierce__lock_take(&stores->lock);
    struct tierce__fleet_use *use = hold(store, 2);
    bool waits = use == NULL && wait_for_open(store, req);
    tierce__lock_drop(&stores->lock);
    if (use == NULL && !waits)
        refuse(req, store->url != NULL ? TIERCE_E_DOWN : TIERCE_E_UNSUPPORTED);
    if (use == NULL)
        return;
    tierce__fleet_hand_over(use, req);
    tierce__fleet_let_go(stores, use);
}

/* ---- questions ------------------------------------------------------------------------------- */

/* Only this thread writes it, so it reads without the lock. */
bool tierce__fleet_store_is_current(const struct tierce__fleet_store *store)
{
    return store->is_current;
}

bool tierce__fleet_store_is_marked(struct tierce__fleet_store *store)
{
    tierce__lock_take(&store->stores->lock);
    bool is_marked = store->mark[0] != '\0';
    tierce__lock_drop(&store->stores->lock);
    return is_marked;
}

void tierce__fleet_store_reopen(struct tierce__fleet_store *store)
{
    tierce__lock_take(&store->stores->lock);
    tierce__fleet_retire(store);
    tierce__lock_drop(&store->stores->lock);
}

unsigned tierce__fleet_store_caps(struct tierce__fleet_store *store)
{
    tierce__lock_take(&store->stores->lock);
    unsigned caps = store->use != NULL ? store->use->connector->caps
                                       : TIERCE__CONNECTOR_NO_REPLACE | TIERCE__CONNECTOR_NO_DELETE;
    tierce__lock_drop(&store->stores->lock);
    return caps;
}

bool tierce__fleet_store_is_part(const struct tierce__fleet_store *store)
{
    return strcmp(store->type, "tierce") == 0;
}

const char *tierce__fleet_store_name(const struct tierce__fleet_store *store)
{
    return store->name;
}

void tierce__fleet_store_why(struct tierce__fleet_store *store, char why[TIERCE__FLEET_WHY_BYTES])
{
    struct tierce__fleet_stores *stores = store->stores;
    char text[TIERCE__CONNECTOR_WHY_BYTES], name[64];
    TIERCE_CHECK_MAGIC(stores, STORES_MAGIC);
    tierce__lock_take(&stores->lock);
    struct tierce__fleet_use *use = hold(store, 1);
    snprintf(text, sizeof(text), "%s", store->url == NULL ? store->reason : store->why);
    tierce__lock_drop(&stores->lock);
    if (use != NULL) {
        use->connector->ops->why(use->connector, text);
        tierce__fleet_let_go(stores, use);
    }
    tierce__text_for_message(name, sizeof(name), store->name);
    why[0] = '\0';
    if (text[0] != '\0')
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "storage %s: %.180s", name, text);
}

int tierce__fleet_store_find(struct tierce__fleet_store **out, struct tierce__fleet_stores *stores,
                             const char *name, char why[TIERCE__FLEET_WHY_BYTES])
{
    TIERCE_CHECK_MAGIC(stores, STORES_MAGIC);
    struct tierce__fleet_store *store = find_named(&stores->all, name, true);
    char shown[64];
    if (store == NULL) {
        tierce__text_for_message(shown, sizeof(shown), name);
        snprintf(why, TIERCE__FLEET_WHY_BYTES, "storage %s is not one of the group", shown);
        return TIERCE_E_MISS;
    }
    tierce__lock_take(&stores->lock);
    bool can = store->state != TIERCE__FLEET_CLOSED || may_open(store);
    tierce__lock_drop(&stores->lock);
    *out = store;
    if (can)
        return 0;
    tierce__fleet_store_why(store, why);
    return TIERCE_E_UNSUPPORTED;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int copy_texts(struct tierce__fleet_stores *stores,
                      const struct tierce__fleet_stores_opts *opts)
{
    if (opts->mooncake_python != NULL)
        stores->mooncake_python = tierce__strdup(opts->mooncake_python);
    if (opts->allowed != NULL)
        stores->allowed = tierce__strdup(opts->allowed);
    bool all = (opts->mooncake_python == NULL || stores->mooncake_python != NULL) &&
               (opts->allowed == NULL || stores->allowed != NULL);
    return all ? 0 : -ENOMEM;
}

static void free_all(struct tierce__fleet_stores *stores)
{
    tierce__free(stores->mooncake_python);
    tierce__free(stores->allowed);
    tierce__free(stores);
}

int tierce__fleet_stores_open(struct tierce__fleet_stores **out,
                              const struct tierce__fleet_stores_opts *opts)
{
    TIERCE_ASSERT(opts->size == sizeof(*opts));
    struct tierce__fleet_stores *stores = tierce__calloc(1, sizeof(*stores));
    if (stores == NULL)
        return -ENOMEM;
    stores->magic = STORES_MAGIC;
    stores->pool = opts->pool;
    int rc = copy_texts(stores, opts);
    if (rc != 0) {
        free_all(stores);
        return rc;
    }
    tierce__lock_init(&stores->lock, TIERCE__LOCK_FLEET_STORES);
    tierce__cond_init(&stores->wake);
    tierce__list_init(&stores->all);
    tierce__list_init(&stores->retired);
    tierce__list_init(&stores->jobs);
    rc = -pthread_create(&stores->keeper, NULL, tierce__fleet_keep, stores);
    if (rc != 0) {
        tierce__cond_fini(&stores->wake);
        tierce__lock_fini(&stores->lock);
        free_all(stores);
        return rc;
    }
    *out = stores;
    return 0;
}

bool tierce__fleet_stores_close(struct tierce__fleet_stores *stores, uint64_t deadline_ns)
{
    if (stores == NULL)
        return true;
    TIERCE_CHECK_MAGIC(stores, STORES_MAGIC);
    if (!tierce__fleet_keeper_stop(stores, deadline_ns))
        return false; /* a thread still uses it */
    bool all = !stores->has_lost;
    free_stores(&stores->all);
    tierce__cond_fini(&stores->wake);
    tierce__lock_fini(&stores->lock);
    stores->magic = 0;
    free_all(stores);
    return all;
}
