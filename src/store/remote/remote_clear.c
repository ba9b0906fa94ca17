/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/remote_private.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"

/*
 * Deletes the chunks that the store lists: page by page, the names of a page in parallel. First it
 * cancels puts in progress. Chunks that other processes store meanwhile may stay.
 */

enum { DELETIONS = 256 };

struct clear {
    struct tierce__remote *remote;
    struct tierce__store_req *req;
    struct tierce__remote_waiter waiter;
    struct tierce__remote_event listed;
    struct tierce__store_req list;
    struct tierce_plugin_name prefix;
    char prefix_text[TIERCE__KEY_TEXT_BYTES];
    int status; /* the first failure */

    /* The names of a page, one after the other, each with a byte of length before it. */
    uint8_t *page;
    size_t page_bytes, page_room, page_at;
    uint32_t deleting;
    struct clear_deletion {
        struct clear *clear;
        struct tierce__remote_event deleted;
        struct tierce__store_req call;
        struct tierce_plugin_name name;
    } deletions[DELETIONS];
};

static void go_on(struct clear *clear);

static void finish(struct clear *clear)
{
    struct tierce__remote *remote = clear->remote;
    struct tierce__store_req *req = clear->req;
    int status = clear->status;
    TIERCE_DASSERT(clear->deleting == 0);
    tierce__lock_take(&remote->lock);
    TIERCE_DASSERT(clear->status <= 0 && tierce__list_empty(&clear->waiter.node));
    tierce__remote_forget(remote);
    tierce__lock_drop(&remote->lock);
    tierce__free(clear->page);
    tierce__free(clear);
    tierce__remote_answer(remote, req, status);
}

/* ---- the names of a page --------------------------------------------------------------------- */

static void take_name(void *arg, const struct tierce_plugin_name *name)
{
    struct clear *clear = arg;
    TIERCE_DASSERT(clear->deleting == 0);
    if (name->bytes > UINT8_MAX || clear->status < 0)
        return; /* no key is that long */
    size_t need = clear->page_bytes + 1 + name->bytes;
    clear->status = TIERCE__GROW(clear->page, clear->page_room, need, 4096);
    if (clear->status < 0)
        return;
    clear->page[clear->page_bytes] = (uint8_t)name->bytes;
    memcpy(clear->page + clear->page_bytes + 1, name->text, name->bytes);
    clear->page_bytes = need;
    TIERCE_DASSERT(clear->page_bytes <= clear->page_room);
}

/* The next name that is a key's. */
static bool next_name(struct clear *clear, struct tierce_plugin_name *name)
{
    uint8_t digest[TIERCE_HASH_BYTES], hash[TIERCE_HASH_BYTES];
    struct tierce_shard shard;
    while (clear->page_at < clear->page_bytes) {
        name->bytes = clear->page[clear->page_at];
        name->text = (const char *)clear->page + clear->page_at + 1;
        clear->page_at += 1 + name->bytes;
        TIERCE_DASSERT(clear->page_at <= clear->page_bytes);
        if (tierce__key_text_parse(digest, &shard, hash, name->text, name->bytes) == 0)
            return true;
    }
    return false;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void run_deleted(struct tierce__remote_event *event)
{
    struct clear_deletion *deletion = TIERCE__CONTAINER_OF(event, struct clear_deletion, deleted);
    struct clear *clear = deletion->clear;
    TIERCE_DASSERT(deletion >= clear->deletions && deletion < clear->deletions + DELETIONS);
    int status = tierce__remote_status(&deletion->call);
    TIERCE_DASSERT(clear->deleting > 0 && clear->deleting <= DELETIONS);
    deletion->clear = NULL;
    clear->deleting--;
    clear->req->found += status == 0;
    if (status < 0 && status != TIERCE_E_MISS && clear->status == 0)
        clear->status = status;
    go_on(clear);
}

static void has_deleted(struct tierce__store_req *call)
{
    TIERCE_DASSERT(call->status <= 0);
    struct clear_deletion *deletion = call->arg;
    TIERCE_DASSERT(call == &deletion->call);
    tierce__remote_note(deletion->clear->remote, &deletion->deleted);
}

static void list_page(struct clear *clear)
{
    TIERCE_DASSERT(clear->deleting == 0 && clear->page_at == clear->page_bytes);
    clear->page_bytes = 0;
    clear->page_at = 0;
    tierce__remote_call(clear->remote, &clear->list);
}

/* Deletes as much as may be on its way, then lists the next page. */
static void go_on(struct clear *clear)
{
    struct tierce_plugin_name name;
    while (clear->status == 0 && clear->deleting < DELETIONS && next_name(clear, &name)) {
        struct clear_deletion *deletion = clear->deletions;
        while (deletion->clear != NULL)
            deletion++;
        TIERCE_DASSERT(deletion < clear->deletions + DELETIONS);
        *deletion = (struct clear_deletion){.clear = clear,
                                            .deleted = {.run = run_deleted},
                                            .name = name,
                                            .call = {.op = TIERCE__STORE_DELETE,
                                                     .urgency = TIERCE__CONNECTOR_STORE,
                                                     .deadline_ns = clear->req->deadline_ns,
                                                     .done = has_deleted,
                                                     .arg = deletion,
                                                     .names = &deletion->name,
                                                     .name_count = 1}};
        tierce__list_init(&deletion->deleted.node);
        clear->deleting++;
        tierce__remote_call(clear->remote, &deletion->call);
    }
    if (clear->deleting > 0)
        return;
    if (clear->status == 0 && clear->list.cursor != 0)
        list_page(clear);
    else
        finish(clear);
}

static void run_listed(struct tierce__remote_event *event)
{
    struct clear *clear = TIERCE__CONTAINER_OF(event, struct clear, listed);
    TIERCE_DASSERT(clear->page_at == 0);
    TIERCE_DASSERT(clear->deleting == 0);
    if (clear->status == 0)
        clear->status = tierce__remote_status(&clear->list);
    go_on(clear);
}

static void has_listed(struct tierce__store_req *call)
{
    TIERCE_DASSERT(call->status <= 0);
    struct clear *clear = call->arg;
    TIERCE_DASSERT(call == &clear->list);
    tierce__remote_note(clear->remote, &clear->listed);
}

static void run_taken_back(struct tierce__remote_event *event)
{
    struct tierce__remote_waiter *waiter =
        TIERCE__CONTAINER_OF(event, struct tierce__remote_waiter, over);
    TIERCE_DASSERT(tierce__list_empty(&waiter->node) && tierce__list_empty(&waiter->timed));
    struct clear *clear = TIERCE__CONTAINER_OF(waiter, struct clear, waiter);
    if (waiter->left == 0 && clear->req->only_puts) {
        finish(clear);
        return;
    }
    if (waiter->left == 0) {
        list_page(clear);
        return;
    }
    clear->status = TIERCE_E_DEADLINE; /* the puts that are left are undone all the same */
    finish(clear);
}

/* The common beginning of the names of keys: of all keys, or of those of a namespace. */
static void set_prefix(struct clear *clear, const struct tierce__key *ns_of)
{
    static const char all[] = "tierce1:";
    memcpy(clear->prefix_text, all, sizeof(all));
    size_t bytes = sizeof(all) - 1;
    if (ns_of != NULL) {
        const uint8_t *digest = tierce__namespaces_digest(clear->remote->namespaces, ns_of->ns);
        tierce__hex_encode(clear->prefix_text + bytes, digest, TIERCE_HASH_BYTES);
        bytes += (size_t)2 * TIERCE_HASH_BYTES;
        clear->prefix_text[bytes++] = ':';
    }
    TIERCE_DASSERT(bytes < sizeof(clear->prefix_text));
    clear->prefix = (struct tierce_plugin_name){.text = clear->prefix_text, .bytes = bytes};
}

void tierce__remote_clear(struct tierce__remote *remote, struct tierce__store_req *req)
{
    req->found = 0;
    bool can = req->only_puts ||
               (!remote->read_only && (remote->connector->caps & TIERCE__CONNECTOR_LISTS) != 0);
    struct clear *clear = can ? tierce__calloc(1, sizeof(*clear)) : NULL;
    if (clear == NULL) {
        tierce__remote_answer(remote, req, can ? -ENOMEM : TIERCE_E_UNSUPPORTED);
        return;
    }
    const struct tierce__key *ns_of = req->key_count > 0 ? &req->keys[0] : NULL;
    clear->remote = remote;
    clear->req = req;
    set_prefix(clear, ns_of);
    clear->list = (struct tierce__store_req){.op = TIERCE__STORE_LIST,
                                             .urgency = TIERCE__CONNECTOR_STORE,
                                             .deadline_ns = req->deadline_ns,
                                             .done = has_listed,
                                             .arg = clear,
                                             .names = &clear->prefix,
                                             .name_count = 1,
                                             .each = take_name};
    clear->listed.run = run_listed;
    tierce__list_init(&clear->listed.node);
    tierce__remote_waiter_init(&clear->waiter, remote, req->deadline_ns);
    clear->waiter.ns_of = ns_of;
    clear->waiter.over.run = run_taken_back;
    tierce__lock_take(&remote->lock);
    tierce__remote_forget(remote);
    tierce__lock_drop(&remote->lock);
    tierce__remote_take_back(remote, &clear->waiter);
}
