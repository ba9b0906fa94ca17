/* SPDX-License-Identifier: Apache-2.0 */
/* Leases within one process: "alone" (no other manager), and by a name that several managers
 * share. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/threads/lock.h"
#include "manager/lease/lease.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t tierce__lease_wall_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

int tierce__lease_next_token(uint64_t *token, uint64_t before)
{
    uint64_t now = tierce__lease_wall_us();
    if (before >= INT64_MAX)
        return TIERCE_E_LIMIT;
    *token = now > before ? now : before + 1;
    TIERCE_DASSERT(*token > before && *token <= INT64_MAX);
    return 0;
}

const struct tierce__lease_ops *tierce__lease_find(const char *uri)
{
    static const struct {
        const char *scheme;
        const struct tierce__lease_ops *ops;
    } all[] = {
        {"memory://", &tierce__lease_memory},    {"file://", &tierce__lease_file},
        {"redis://", &tierce__lease_redis},      {"rediss://", &tierce__lease_redis},
        {"redis+unix://", &tierce__lease_redis}, {"redis-cluster://", &tierce__lease_redis},
        {"etcd://", &tierce__lease_etcd},        {"rediss-cluster://", &tierce__lease_redis},
        {"etcds://", &tierce__lease_etcd},       {TIERCE__LEASE_REGISTRY, &tierce__lease_registry},
    };
    if (*uri == '\0')
        return &tierce__lease_alone;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strncmp(uri, all[i].scheme, strlen(all[i].scheme)) == 0)
            return all[i].ops;
    return NULL;
}

/* ---- by name --------------------------------------------------------------------------------- */

/* One name. Names are never freed: there is one per cluster in the process. */
struct cell {
    struct cell *next;
    char *name;
    char holder[TIERCE__LEASE_HOLDER_BYTES];
    uint64_t until_ns, token;
};

struct memory_lease {
    struct tierce__lease base;
    struct cell *cell;
    const char *holder;
    uint64_t token;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct tierce__lock cells_lock;
static struct cell *cells;

static void init_cells(void)
{
    tierce__lock_init(&cells_lock, TIERCE__LOCK_LEASES);
}

/* NULL: no memory. */
static struct cell *find_cell(const char *name)
{
    tierce__lock_assert_held(&cells_lock);
    struct cell *cell = cells;
    while (cell != NULL && strcmp(cell->name, name) != 0)
        cell = cell->next;
    if (cell != NULL)
        return cell;
    cell = tierce__calloc(1, sizeof(*cell));
    if (cell == NULL)
        return NULL;
    cell->name = tierce__strdup(name);
    if (cell->name == NULL) {
        tierce__free(cell);
        return NULL;
    }
    TIERCE_DASSERT(cells == NULL || strcmp(cells->name, name) != 0);
    cell->next = cells;
    cells = cell;
    return cell;
}

static int memory_open(struct tierce__lease **out, const char *uri, const char *holder,
                       uint32_t timeout_ms, char why[256])
{
    TIERCE_DASSERT(holder[0] != '\0' && strlen(holder) < TIERCE__LEASE_HOLDER_BYTES);
    struct memory_lease *lease = tierce__calloc(1, sizeof(*lease));
    (void)timeout_ms;
    why[0] = '\0';
    if (lease == NULL)
        return -ENOMEM;
    pthread_once(&once, init_cells);
    tierce__lock_take(&cells_lock);
    lease->cell = find_cell(uri);
    tierce__lock_drop(&cells_lock);
    if (lease->cell == NULL) {
        tierce__free(lease);
        return -ENOMEM;
    }
    lease->base.ops = &tierce__lease_memory;
    lease->holder = holder;
    *out = &lease->base;
    return 0;
}

static void memory_close(struct tierce__lease *lease)
{
    tierce__free(lease);
}

static bool is_held(const struct cell *cell)
{
    tierce__lock_assert_held(&cells_lock);
    return cell->until_ns > tierce__now_ns();
}

static int memory_take(struct tierce__lease *base, uint32_t lease_ms, uint64_t *token,
                       char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct memory_lease *lease = (struct memory_lease *)base;
    struct cell *cell = lease->cell;
    int rc = 0;
    tierce__lock_take(&cells_lock);
    if (is_held(cell) && strcmp(cell->holder, lease->holder) != 0) {
        snprintf(other, TIERCE__LEASE_HOLDER_BYTES, "%s", cell->holder);
        rc = -EBUSY;
    } else {
        rc = tierce__lease_next_token(&cell->token, cell->token);
    }
    if (rc == 0) {
        snprintf(cell->holder, sizeof(cell->holder), "%s", lease->holder);
        cell->until_ns = tierce__deadline_in_ms(lease_ms);
        TIERCE_ASSERT(cell->token > lease->token);
        TIERCE_ASSERT(cell->token > 0 && cell->holder[0] != '\0');
        *token = lease->token = cell->token;
    }
    tierce__lock_drop(&cells_lock);
    return rc;
}

static int memory_renew(struct tierce__lease *base, uint32_t lease_ms)
{
    struct memory_lease *lease = (struct memory_lease *)base;
    tierce__lock_take(&cells_lock);
    TIERCE_DASSERT(lease->cell->token >= lease->token);
    bool is_ours = is_held(lease->cell) && lease->cell->token == lease->token;
    if (is_ours)
        lease->cell->until_ns = tierce__deadline_in_ms(lease_ms);
    tierce__lock_drop(&cells_lock);
    return is_ours ? 0 : TIERCE_E_REFUSED;
}

static void memory_give(struct tierce__lease *base)
{
    struct memory_lease *lease = (struct memory_lease *)base;
    tierce__lock_take(&cells_lock);
    TIERCE_DASSERT(lease->cell->token >= lease->token);
    if (lease->cell->token == lease->token)
        lease->cell->until_ns = 0;
    tierce__lock_drop(&cells_lock);
}

static int memory_look(struct tierce__lease *base, char holder[TIERCE__LEASE_HOLDER_BYTES])
{
    const struct memory_lease *lease = (struct memory_lease *)base;
    tierce__lock_take(&cells_lock);
    TIERCE_DASSERT(!is_held(lease->cell) || lease->cell->holder[0] != '\0');
    snprintf(holder, TIERCE__LEASE_HOLDER_BYTES, "%s",
             is_held(lease->cell) ? lease->cell->holder : "");
    tierce__lock_drop(&cells_lock);
    return 0;
}

const struct tierce__lease_ops tierce__lease_memory = {
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .take = memory_take,
    .renew = memory_renew,
    .give = memory_give,
    .look = memory_look,
};

/* ---- alone ----------------------------------------------------------------------------------- */

struct alone {
    struct tierce__lease base;
    const char *holder;
    bool is_held;
};

static int alone_open(struct tierce__lease **out, const char *uri, const char *holder,
                      uint32_t timeout_ms, char why[256])
{
    struct alone *alone = tierce__calloc(1, sizeof(*alone));
    (void)uri;
    (void)timeout_ms;
    why[0] = '\0';
    if (alone == NULL)
        return -ENOMEM;
    alone->base.ops = &tierce__lease_alone;
    alone->holder = holder;
    *out = &alone->base;
    return 0;
}

static int alone_take(struct tierce__lease *lease, uint32_t lease_ms, uint64_t *token,
                      char other[TIERCE__LEASE_HOLDER_BYTES])
{
    (void)lease_ms;
    other[0] = '\0';
    ((struct alone *)lease)->is_held = true;
    *token = 0;
    return 0;
}

static int alone_renew(struct tierce__lease *lease, uint32_t lease_ms)
{
    TIERCE_DASSERT(((const struct alone *)lease)->is_held);
    (void)lease;
    (void)lease_ms;
    return 0;
}

static void alone_give(struct tierce__lease *lease)
{
    ((struct alone *)lease)->is_held = false;
}

static int alone_look(struct tierce__lease *lease, char holder[TIERCE__LEASE_HOLDER_BYTES])
{
    const struct alone *alone = (struct alone *)lease;
    snprintf(holder, TIERCE__LEASE_HOLDER_BYTES, "%s", alone->is_held ? alone->holder : "");
    return 0;
}

const struct tierce__lease_ops tierce__lease_alone = {
    .name = "alone",
    .open = alone_open,
    .close = memory_close,
    .take = alone_take,
    .renew = alone_renew,
    .give = alone_give,
    .look = alone_look,
};
