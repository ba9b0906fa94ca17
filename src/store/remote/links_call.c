/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/links_private.h"
#include "base/threads/lock.h"
#include "base/alloc.h"
#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BYTES_KEPT (1u << 20) /* larger copies go with their call */
#define PAGE_FIRST 4096u
#define PAGE_HEAD  2u /* the length before each name */

static size_t least_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int copy_names(struct tierce__links_call *call, const struct tierce__store_req *req,
                      const char *prefix)
{
    static const struct tierce_plugin_name none = {.text = ""};
    bool has_names = req->name_count > 0 || req->op == TIERCE__STORE_LOOKUP;
    const struct tierce_plugin_name *from = has_names ? req->names : &none;
    size_t count = has_names ? req->name_count : 1;
    size_t prefix_bytes = prefix != NULL ? strlen(prefix) : 0, bytes = count * prefix_bytes + 1;
    for (size_t i = 0; i < count; i++)
        bytes += from[i].bytes;
    int rc = TIERCE__GROW(call->names, call->name_room, count, 1);
    if (rc == 0)
        rc = TIERCE__GROW(call->text, call->text_room, bytes, 64);
    call->name_count = count;
    call->prefix_bytes = prefix_bytes;
    char *at = call->text;
    for (size_t i = 0; i < count && rc == 0; i++) {
        call->names[i] = (struct tierce_plugin_name){at, prefix_bytes + from[i].bytes};
        if (prefix_bytes > 0)
            memcpy(at, prefix, prefix_bytes);
        memcpy(at + prefix_bytes, from[i].text, from[i].bytes);
        at += call->names[i].bytes;
    }
    TIERCE_DASSERT(rc < 0 || at <= call->text + call->text_room);
    TIERCE_DASSERT(rc < 0 || (size_t)(at - call->text) + 1 == bytes);
    return rc;
}

int tierce__links_prepare(struct tierce__links_call *call, const struct tierce__store_req *req,
                          const char *prefix)
{
    call->op = req->op;
    call->deadline_ns = req->deadline_ns;
    call->offset = req->offset;
    call->length = req->length;
    call->cursor = req->cursor;
    call->object_bytes = req->op == TIERCE__STORE_GET ? req->object_bytes : 0;
    call->takes_shorter = req->takes_shorter;
    atomic_store_explicit(&call->found, 0, memory_order_relaxed);
    atomic_store_explicit(&call->found_now, 0, memory_order_relaxed);
    call->page.used = 0;
    call->page.no_memory = false;
    call->why[0] = '\0';
    int rc = copy_names(call, req, prefix);
    if (rc == 0 && (req->op == TIERCE__STORE_GET || req->op == TIERCE__STORE_PUT)) {
        TIERCE_ASSERT(req->offset <= req->buf->bytes &&
                      req->length <= req->buf->bytes - req->offset);
        call->buf = req->buf;
        tierce__buf_acquire(call->buf);
    }
    return rc;
}

void tierce__links_call_fini(struct tierce__links_call *call)
{
    tierce__free(call->names);
    tierce__free(call->text);
    tierce__free(call->page.bytes);
    call->names = NULL;
    call->text = NULL;
    call->page = (struct tierce__links_page){0};
    call->name_room = call->text_room = 0;
}

/* ---- pages of names -------------------------------------------------------------------------- */

/* Accepts only names that were asked for and are valid. */
static void collect(void *arg, const struct tierce_plugin_name *full)
{
    struct tierce__links_call *call = arg;
    TIERCE_DASSERT(call->op == TIERCE__STORE_LIST && call->name_count == 1);
    struct tierce__links_page *page = &call->page;
    const struct tierce_plugin_name *begins = &call->names[0];
    if (full->bytes < begins->bytes || full->bytes == call->prefix_bytes ||
        full->bytes > call->prefix_bytes + TIERCE__CONNECTOR_NAME_MAX ||
        memcmp(full->text, begins->text, begins->bytes) != 0 ||
        memchr(full->text, '\0', full->bytes) != NULL)
        return; /* none of ours */
    const struct tierce_plugin_name name = {full->text + call->prefix_bytes,
                                            full->bytes - call->prefix_bytes};
    size_t wanted = page->used + PAGE_HEAD + name.bytes;
    if (TIERCE__GROW(page->bytes, page->size, wanted, PAGE_FIRST) < 0) {
        page->no_memory = true;
        return;
    }
    uint16_t length = (uint16_t)name.bytes;
    memcpy(page->bytes + page->used, &length, PAGE_HEAD);
    memcpy(page->bytes + page->used + PAGE_HEAD, name.text, name.bytes);
    page->used = wanted;
    TIERCE_DASSERT(page->used <= page->size);
}

static void tell_page(const struct tierce__links_page *page, const struct tierce__store_req *req)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    for (size_t at = 0; at < page->used;) {
        uint16_t length;
        memcpy(&length, page->bytes + at, PAGE_HEAD);
        TIERCE_DASSERT(at + PAGE_HEAD + length <= page->used);
        req->each(req->arg, &(struct tierce_plugin_name){.text = page->bytes + at + PAGE_HEAD,
                                                         .bytes = length});
        at += PAGE_HEAD + length;
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool tierce__links_is_status(const struct tierce__client *client, int rc)
{
    switch (rc) {
    case 0:
    case TIERCE_E_MISS:
    case TIERCE_E_FULL:
    case TIERCE_E_LIMIT:
    case TIERCE_E_REFUSED:
    case TIERCE_E_DOWN:
    case TIERCE_E_DEADLINE:
    case TIERCE_E_FORMAT:
        return true;
    default:
        return client->object == NULL || (rc < 0 && rc > -4096); /* an errno */
    }
}

static int exists(const struct tierce__client *client, void *link, struct tierce__links_call *call,
                  const struct tierce_plugin_name *names, size_t count)
{
    TIERCE_DASSERT(count > 0 && atomic_load_explicit(&call->found_now, memory_order_relaxed) == 0);
    size_t found = 0;
    if (client->find != NULL)
        return client->find(link, names, count, &call->found_now, call->deadline_ns);
    int rc = client->table.exists(link, names, count, &found, call->deadline_ns);
    if (rc == 0 && found > count) {
        snprintf(call->why, sizeof(call->why),
                 "the plug-in found more names than were passed to it");
        return TIERCE_E_FORMAT;
    }
    atomic_store_explicit(&call->found_now, rc == 0 ? found : 0, memory_order_relaxed);
    return rc;
}

/* As many names at a time as the link takes, up to the first that is not there. */
static int ask_exists(const struct tierce__client *client, void *link,
                      struct tierce__links_call *call)
{
    size_t most = client->names_max > 0 ? client->names_max : SIZE_MAX, some = 0, there = 0;
    size_t found = 0, count = call->name_count;
    int rc = 0;
    while (rc == 0 && there == some && found < count) {
        some = least_of(count - found, most);
        rc = exists(client, link, call, call->names + found, some);
        there = atomic_load_explicit(&call->found_now, memory_order_relaxed);
        TIERCE_ASSERT(there <= some);
        TIERCE_DASSERT(some <= most);
        found += there;
        atomic_store_explicit(&call->found_now, 0, memory_order_relaxed);
        atomic_store_explicit(&call->found, found, memory_order_release);
    }
    TIERCE_DASSERT(found <= count);
    return rc;
}

/* Whether a single name is there, and how long its object is. */
static int measure(const struct tierce__client *client, void *link, struct tierce__links_call *call)
{
    int rc = client->measure(link, call->names, &call->object_bytes, call->deadline_ns);
    if (rc == 0)
        atomic_store_explicit(&call->found, 1, memory_order_release);
    return rc == TIERCE_E_MISS ? 0 : rc;
}

/* The leading names that are known to be there by now. */
size_t tierce__links_found(struct tierce__links_call *call)
{
    TIERCE_DASSERT(call->op == TIERCE__STORE_LOOKUP);
    size_t found = atomic_load_explicit(&call->found, memory_order_acquire);
    return found + atomic_load_explicit(&call->found_now, memory_order_acquire);
}

static int make_call(const struct tierce__client *client, void *link,
                     struct tierce__links_call *call)
{
    const struct tierce_plugin *table = &client->table;
    const struct tierce_plugin_name *name = call->names;
    uint64_t deadline_ns = call->deadline_ns;
    int rc;
    TIERCE_ASSERT((call->op != TIERCE__STORE_GET && call->op != TIERCE__STORE_PUT) ||
                  call->length <= call->buf->bytes - call->offset);
    switch (call->op) {
    case TIERCE__STORE_LOOKUP:
        return client->measure != NULL && call->name_count == 1 ? measure(client, link, call)
                                                                : ask_exists(client, link, call);
    case TIERCE__STORE_GET:
        if (call->takes_shorter)
            return client->get_whole(link, name, call->buf->data, call->length, &call->object_bytes,
                                     deadline_ns);
        if (client->get_form != NULL) {
            const struct tierce__link_get get = tierce__links_get_of(client, call);
            return client->get_form(link, &get, deadline_ns);
        }
        return table->get(link, name, call->buf->data + call->offset, call->offset, call->length,
                          deadline_ns);
    case TIERCE__STORE_PUT:
        return table->put(link, name, call->buf->data, call->length, deadline_ns);
    case TIERCE__STORE_DELETE:
        rc = table->remove(link, name, deadline_ns);
        return rc == TIERCE_E_MISS ? 0 : rc;
    case TIERCE__STORE_LIST:
        rc = table->list(link, name, &call->cursor, collect, call, deadline_ns);
        return rc == 0 && call->page.no_memory ? -ENOMEM : rc;
    case TIERCE__STORE_PING:
        return table->ping(link, deadline_ns);
    case TIERCE__STORE_HIDE:
    case TIERCE__STORE_SHOW:
    case TIERCE__STORE_FLUSH:
    case TIERCE__STORE_CLEAR:
    case TIERCE__STORE_SIBLINGS:
    default:
        TIERCE_ASSERT(false); /* tierce__connector_accept has rejected them */
        return TIERCE_E_ARGUMENT;
    }
}

int tierce__links_make_call(const struct tierce__client *client, void *link,
                            struct tierce__links_call *call)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    int rc = make_call(client, link, call);
    if (tierce__links_is_status(client, rc))
        return rc;
    snprintf(call->why, sizeof(call->why), "the plug-in returned %d, which is not a status", rc);
    return TIERCE_E_FORMAT;
}

struct tierce__link_get tierce__links_get_of(const struct tierce__client *client,
                                             struct tierce__links_call *call)
{
    bool has_forms = (client->table.caps & TIERCE__CONNECTOR_FORMS) != 0;
    TIERCE_DASSERT(call->op == TIERCE__STORE_GET && call->name_count == 1);
    TIERCE_ASSERT(call->offset <= call->buf->bytes &&
                  call->length <= call->buf->bytes - call->offset);
    return (struct tierce__link_get){.name = call->names,
                                     .memory = call->buf->data + call->offset,
                                     .offset = call->offset,
                                     .length = call->length,
                                     .object_bytes = has_forms ? &call->object_bytes : NULL};
}

void tierce__links_hand_over(struct tierce__links_call *call, struct tierce__store_req *req,
                             int status)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    TIERCE_DASSERT(call->op == req->op);
    if (call->op == TIERCE__STORE_LOOKUP)
        req->found = tierce__links_found(call);
    if (status == 0 && call->object_bytes > 0)
        req->object_bytes = call->object_bytes;
    TIERCE_DASSERT(call->op != TIERCE__STORE_LOOKUP || req->found <= req->name_count);
    if (status == 0) {
        req->cursor = call->cursor;
        if (call->op == TIERCE__STORE_LIST)
            tell_page(&call->page, req);
    }
}

void tierce__links_call_end(struct tierce__links_call *call)
{
    tierce__buf_release(call->buf);
    call->buf = NULL;
    if (call->page.size + call->name_room * sizeof(*call->names) + call->text_room > BYTES_KEPT)
        tierce__links_call_fini(call);
}
