/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_LINKS_WORLD_H
#define TIERCE_TESTS_LINKS_WORLD_H

/* Scripted links for tests, which wait, hang and answer as instructed. */
#include "store/remote/links.h"
#include "connector_harness.h"

#include "base/alloc.h"

#include <errno.h>
#include <pthread.h>

#define LINKS_MAX  8u
#define EXISTS_MAX 3u
/* A test whose calls must begin before their deadline tries longer ones up to this. */
#define TIMEOUT_MS_MAX 12000u

struct world_link {
    uint32_t number;
    bool connected;
    uint64_t connects;
};

/* State shared by the links, under `lock`. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t links, ended; /* created and not destroyed; how often the end was called */
    uint32_t inside;       /* calls that are in a link now */
    bool shut;             /* calls wait until it is false */
    char held;             /* the name of which no link learns whether it is there */
    char held_get;         /* the one of several GETs that is not answered */
    char broken;           /* the name at which a connection ends, once */
    size_t most;           /* GETs that a link was given at once */
    int status;            /* what calls return */
    bool repeats;          /* it is the error of an earlier call */
    uint32_t fail_link;    /* the link, counted from 1, that cannot be created */
    char order[64];        /* the first letters of the names, as they were served */
    size_t served;
    bool store_by_first;  /* link 0 was given a PUT, DELETE or LIST */
    bool busy[LINKS_MAX]; /* two calls of a link at once */
    size_t page;          /* names on a page */
    size_t prefix_bytes;  /* of the client, which a listing of all names gets */
} world = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct tierce__pool *pool;
static struct tierce__connector *connector;

/* Goes into a call, and comes out when the world is open. */
static inline int pass(struct world_link *link, const struct tierce_plugin_name *name, bool stores)
{
    pthread_mutex_lock(&world.lock);
    ck_assert(!world.busy[link->number]);
    world.busy[link->number] = true;
    world.inside++;
    if (name != NULL && world.served < sizeof(world.order) - 1)
        world.order[world.served++] = name->text[0];
    world.store_by_first |= stores && link->number == 0;
    pthread_cond_broadcast(&world.changed);
    while (world.shut)
        pthread_cond_wait(&world.changed, &world.lock);
    world.inside--;
    pthread_cond_broadcast(&world.changed);
    world.busy[link->number] = false;
    link->connects += !link->connected && world.status == 0;
    link->connected = world.status == 0;
    int rc = world.status;
    pthread_mutex_unlock(&world.lock);
    return rc;
}

static inline int link_open(void **out, void *arg)
{
    ck_assert_ptr_eq(arg, &world);
    if (++world.links == world.fail_link) {
        world.links--;
        return -ENOMEM;
    }
    struct world_link *link = tierce__calloc(1, sizeof(*link));
    if (link == NULL) {
        world.links--;
        return -ENOMEM;
    }
    link->number = world.links - 1;
    *out = link;
    return 0;
}

static inline void link_close(void *link)
{
    ck_assert_uint_eq(world.ended, 0);
    world.links--;
    tierce__free(link);
}

static inline bool is_there(char name)
{
    pthread_mutex_lock(&world.lock);
    while (world.held == name)
        pthread_cond_wait(&world.changed, &world.lock);
    pthread_mutex_unlock(&world.lock);
    return name != '-';
}

static inline int link_find(void *link, const struct tierce_plugin_name *names, size_t count,
                            _Atomic size_t *found, uint64_t deadline_ns)
{
    (void)deadline_ns;
    int rc = pass(link, count > 0 ? names : NULL, false);
    ck_assert_uint_le(count, EXISTS_MAX);
    while (rc == 0 && *found < count && is_there(names[*found].text[0]))
        ++*found;
    for (size_t i = 0; i < count; i++) /* the names are there until the call is over */
        ck_assert_uint_gt(names[i].bytes, 0);
    return rc;
}

static inline int link_get(void *link, const struct tierce_plugin_name *name, void *memory,
                           uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    (void)offset;
    (void)deadline_ns;
    int rc = pass(link, name, false);
    memset(memory, name->text[0], length); /* as late as it gets */
    return rc;
}

static inline int link_send_gets(void *link, const struct tierce__link_get *gets, size_t count,
                                 uint64_t deadline_ns)
{
    (void)deadline_ns;
    ck_assert_uint_gt(count, 1);
    ck_assert_uint_gt(((struct world_link *)link)->number,
                      0); /* the first one takes one at a time */
    pthread_mutex_lock(&world.lock);
    world.most = count > world.most ? count : world.most;
    bool ends = gets[0].name->text[0] == world.broken;
    world.broken = ends ? '\0' : world.broken;
    ((struct world_link *)link)->connected = !ends;
    pthread_mutex_unlock(&world.lock);
    return ends ? TIERCE_E_DOWN : 0;
}

static inline int link_read_get(void *link, const struct tierce__link_get *get,
                                uint64_t deadline_ns)
{
    char name = get->name->text[0];
    pthread_mutex_lock(&world.lock);
    while (world.held_get == name)
        pthread_cond_wait(&world.changed, &world.lock);
    bool ends = name == world.broken;
    world.broken = ends ? '\0' : world.broken;
    pthread_mutex_unlock(&world.lock);
    if (!ends)
        return link_get(link, get->name, get->memory, get->offset, get->length, deadline_ns);
    ((struct world_link *)link)->connected = false;
    return TIERCE_E_DOWN;
}

static inline int link_put(void *link, const struct tierce_plugin_name *name, const void *memory,
                           uint64_t length, uint64_t deadline_ns)
{
    (void)deadline_ns;
    int rc = pass(link, name, true);
    const uint8_t *bytes = memory;
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; i < length; i++)
        sum = (uint8_t)(sum + bytes[i]);
    return rc;
}

static inline int link_remove(void *link, const struct tierce_plugin_name *name,
                              uint64_t deadline_ns)
{
    (void)deadline_ns;
    return pass(link, name, true);
}

static inline int link_list(void *link, const struct tierce_plugin_name *prefix, uint64_t *cursor,
                            tierce_plugin_each_fn *each, void *arg, uint64_t deadline_ns)
{
    (void)deadline_ns;
    int rc = pass(link, NULL, true);
    char text[TIERCE__CONNECTOR_NAME_MAX + 2];
    ck_assert_uint_eq(prefix->bytes, world.prefix_bytes);
    memset(text, 'n', sizeof(text));
    for (size_t i = 0; i < world.page; i++) {
        size_t bytes = i < TIERCE__CONNECTOR_NAME_MAX + 2 ? i : 10; /* two are of a wrong length */
        each(arg, &(struct tierce_plugin_name){.text = text, .bytes = bytes});
    }
    *cursor += 5;
    return rc;
}

static inline int link_ping(void *link, uint64_t deadline_ns)
{
    (void)deadline_ns;
    return pass(link, NULL, false);
}

static inline struct tierce__link_state link_state(const void *opened)
{
    const struct world_link *link = opened;
    return (struct tierce__link_state){link->connects, link->connected, world.repeats};
}

static inline const char *link_why(void *link)
{
    (void)link;
    return world.status == -EIO ? "" : "the reason";
}

static inline void link_end(void *arg)
{
    ck_assert_ptr_eq(arg, &world);
    ck_assert_uint_eq(world.links, 0);
    pthread_mutex_lock(&world.lock);
    world.ended++;
    pthread_mutex_unlock(&world.lock);
}

static inline uint32_t count_ended(void)
{
    pthread_mutex_lock(&world.lock);
    uint32_t ended = world.ended;
    pthread_mutex_unlock(&world.lock);
    return ended;
}

static const struct tierce__client client = {
    .table = {.caps = TIERCE__CONNECTOR_LISTS,
              .close = link_end,
              .link_open = link_open,
              .link_close = link_close,
              .get = link_get,
              .put = link_put,
              .remove = link_remove,
              .list = link_list,
              .ping = link_ping,
              .why = link_why},
    .scheme = "test",
    .names_max = EXISTS_MAX,
    .find = link_find,
    .send_gets = link_send_gets,
    .read_get = link_read_get,
    .state = link_state,
};

static inline int make(uint32_t links, uint32_t waiting_max)
{
    return tierce__links_create(&connector, &(struct tierce__links_opts){.client = &client,
                                                                         .store = &world,
                                                                         .links = links,
                                                                         .waiting_max = waiting_max,
                                                                         .store_name = "test://x"});
}

static inline void start(uint32_t links, uint32_t waiting_max)
{
    pool = connector_pool();
    ck_assert_int_eq(make(links, waiting_max), 0);
}

static inline void set_shut(bool shut)
{
    pthread_mutex_lock(&world.lock);
    world.shut = shut;
    pthread_cond_broadcast(&world.changed);
    pthread_mutex_unlock(&world.lock);
}

static inline void hold(char name)
{
    pthread_mutex_lock(&world.lock);
    world.held = name;
    pthread_cond_broadcast(&world.changed);
    pthread_mutex_unlock(&world.lock);
}

/* Waits until that many calls are inside. */
static inline void await_inside(uint32_t calls)
{
    pthread_mutex_lock(&world.lock);
    while (world.inside != calls)
        pthread_cond_wait(&world.changed, &world.lock);
    pthread_mutex_unlock(&world.lock);
}

/* Waits until that many calls with a name have begun. */
static inline void await_served(size_t calls)
{
    pthread_mutex_lock(&world.lock);
    while (world.served < calls)
        pthread_cond_wait(&world.changed, &world.lock);
    pthread_mutex_unlock(&world.lock);
}

static inline void end(void)
{
    struct tierce__pool_stats stats;
    set_shut(false);
    ck_assert(connector->ops->close(connector, tierce__deadline_in_ms(30000)));
    ck_assert_uint_eq(world.ended, 1);
    tierce__pool_stats(pool, &stats);
    ck_assert_uint_eq(stats.bufs, 0);
    tierce__pool_destroy(pool);
    ck_assert(!world.store_by_first);
}

static inline void submit(struct connector_call *call)
{
    connector->ops->submit(connector, &call->req);
}

/* Occupies a link with a ping, or (a letter) with a store of that name. */
static inline void occupy(struct connector_call *call, const char *store)
{
    connector_call_init(call, store != NULL ? TIERCE__STORE_DELETE : TIERCE__STORE_PING, store, 0);
    submit(call);
}

#endif
