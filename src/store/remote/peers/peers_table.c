/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/peers/peers_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/text/host_port.h"
#include "base/threads/lock.h"

enum {
    PAUSE_MS = 1000,
    PAUSE_DOUBLINGS = 5,
    RATE_MS = 5000,         /* the rate of a link without reads is known for so long */
    RATE_BYTES = 64 * 1024, /* shorter reads say nothing about it */
};
#define RATE_WEIGHT  0.125 /* of the last read */
#define RATE_DIFFERS 1.75  /* rates are estimates: links that differ by less count as equal */

/* Of a peer, or of one of its links. */
struct condition {
    uint16_t failures;         /* in a row */
    uint64_t out_until_ns;     /* 0: in service */
    uint64_t counted_until_ns; /* failures before this are those of one outage */
};

struct link {
    struct condition condition;
    uint32_t reads;   /* in progress */
    uint64_t last_ns; /* when the last one began */
    double rate;      /* bytes a ns, of all reads together; 0: unknown */
};

struct peer {
    char address[TIERCE__PEERS_ADDRESS_BYTES];
    uint16_t generation;
    uint64_t named_ns;
    struct condition condition;
    uint64_t plain_until_ns; /* it has no space of stored chunks; 0: it may have one */
    uint32_t link_count;
    struct link links[TIERCE__PEERS_LINKS_MAX];
};

struct place {
    struct tierce__chunk_number key;
    struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX];
    struct tierce__peer_ref served[TIERCE__PEERS_HOLDERS_MAX]; /* that delivered bytes of it */
    uint64_t absent_until_ns;                                  /* 0: a lookup found it */
};

/* A chunk that has proved wrong. */
struct wrong {
    struct tierce__chunk_number key;
    bool is_all; /* all peers are rejected */
    uint32_t next;
    struct tierce__peer_ref peers[TIERCE__PEERS_HOLDERS_MAX]; /* those that are; the oldest is
                                                                 replaced */
};

struct tierce__peers_table {
    struct tierce__lock lock; /* PEERS: all below */
    uint64_t counts[TIERCE__PEER_RESULTS], chunks, bytes;
    struct peer peers[TIERCE__PEERS_MAX];
    struct place places[TIERCE__PEERS_PLACES];
    struct wrong wrongs[TIERCE__PEERS_WRONGS];
};

/* ---- results --------------------------------------------------------------------------------- */

enum tierce__peer_result tierce__peer_result_of(int status, bool is_open, uint64_t given_ns)
{
    switch (status) {
    case 0:
        return TIERCE__PEER_SERVED;
    case TIERCE_E_MISS:
        return TIERCE__PEER_MISSED;
    case TIERCE_E_LIMIT:
        return TIERCE__PEER_BUSY;
    case TIERCE_E_FORMAT: /* an object of another length, or bytes that are no reply */
        return is_open ? TIERCE__PEER_LENGTH : TIERCE__PEER_FAILED;
    case TIERCE_E_REFUSED:
        return TIERCE__PEER_REJECTED;
    case TIERCE_E_DEADLINE:
        return given_ns < TIERCE__PEER_PATIENCE_MS * TIERCE__MS_NS ? TIERCE__PEER_UNTRIED
                                                                   : TIERCE__PEER_LATE;
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE:
        return TIERCE__PEER_UNTRIED;
    default:
        return TIERCE__PEER_FAILED;
    }
}

bool tierce__peer_result_is_failure(enum tierce__peer_result result)
{
    return result >= TIERCE__PEER_LATE;
}

/* ---- create and destroy ---------------------------------------------------------------------- */

int tierce__peers_table_create(struct tierce__peers_table **out)
{
    struct tierce__peers_table *table = tierce__calloc(1, sizeof(*table));
    if (table == NULL)
        return -ENOMEM;
    tierce__lock_init(&table->lock, TIERCE__LOCK_PEERS);
    *out = table;
    return 0;
}

void tierce__peers_table_destroy(struct tierce__peers_table *table)
{
    if (table == NULL)
        return;
    tierce__lock_fini(&table->lock);
    tierce__free(table);
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Host and port of one of a list. False: it is invalid, or there is none with this number. */
static bool split(char host[TIERCE__PEERS_ADDRESS_BYTES], uint16_t *port, const char *list,
                  uint32_t number)
{
    char one[TIERCE__PEERS_ADDRESS_BYTES];
    for (; number > 0 && *list != '\0'; number--)
        list += strcspn(list, ",") + (strchr(list, ',') != NULL);
    size_t bytes = strcspn(list, ",");
    if (number > 0 || bytes >= sizeof(one))
        return false;
    memcpy(one, list, bytes);
    one[bytes] = '\0';
    return tierce__host_port_read(host, TIERCE__PEERS_ADDRESS_BYTES, port, one);
}

/* How many addresses the list has; 0: it is invalid. */
static uint32_t count_links(const char *list)
{
    char host[TIERCE__PEERS_ADDRESS_BYTES];
    uint16_t port;
    uint32_t count = 1;
    for (const char *at = strchr(list, ','); at != NULL; at = strchr(at + 1, ','))
        count++;
    if (strlen(list) >= TIERCE__PEERS_ADDRESS_BYTES || count > TIERCE__PEERS_LINKS_MAX)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!split(host, &port, list, i))
            return 0;
    }
    return count;
}

static struct peer *peer_of(struct tierce__peers_table *table, struct tierce__peer_ref ref)
{
    tierce__lock_assert_held(&table->lock);
    TIERCE_ASSERT(ref.slot < TIERCE__PEERS_MAX);
    struct peer *peer = &table->peers[ref.slot];
    return ref.generation != 0 && peer->generation == ref.generation ? peer : NULL;
}

/* The slot with the address, or the one that it may take. */
static size_t find_slot(const struct tierce__peers_table *table, const char *address)
{
    size_t oldest = 0;
    tierce__lock_assert_held(&table->lock);
    for (size_t i = 0; i < TIERCE__PEERS_MAX; i++) {
        const struct peer *peer = &table->peers[i];
        if (peer->generation != 0 && strcmp(peer->address, address) == 0)
            return i;
        if (peer->named_ns < table->peers[oldest].named_ns)
            oldest = i;
    }
    return oldest;
}

struct tierce__peer_ref tierce__peers_table_name(struct tierce__peers_table *table,
                                                 const char *address)
{
    uint32_t links = count_links(address);
    if (links == 0)
        return (struct tierce__peer_ref){0};
    tierce__lock_take(&table->lock);
    size_t slot = find_slot(table, address);
    struct peer *peer = &table->peers[slot];
    if (peer->generation == 0 || strcmp(peer->address, address) != 0) {
        uint16_t generation = (uint16_t)(peer->generation + 1);
        *peer = (struct peer){.generation = generation != 0 ? generation : 1, .link_count = links};
        memcpy(peer->address, address, strlen(address) + 1);
    }
    peer->named_ns = tierce__now_ns();
    struct tierce__peer_ref ref = {.slot = (uint16_t)slot, .generation = peer->generation};
    tierce__lock_drop(&table->lock);
    return ref;
}

bool tierce__peers_table_address(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                                 uint32_t link, char host[TIERCE__PEERS_ADDRESS_BYTES],
                                 uint16_t *port)
{
    tierce__lock_take(&table->lock);
    const struct peer *it = peer_of(table, peer);
    bool is_there = it != NULL && link < it->link_count && split(host, port, it->address, link);
    tierce__lock_drop(&table->lock);
    return is_there;
}

void tierce__peers_table_set_plain(struct tierce__peers_table *table, struct tierce__peer_ref peer)
{
    tierce__lock_take(&table->lock);
    struct peer *it = peer_of(table, peer);
    if (it != NULL)
        it->plain_until_ns = tierce__deadline_in_ms(TIERCE__PEERS_PLAIN_MS);
    tierce__lock_drop(&table->lock);
}

bool tierce__peers_table_is_plain(struct tierce__peers_table *table, struct tierce__peer_ref peer)
{
    tierce__lock_take(&table->lock);
    const struct peer *it = peer_of(table, peer);
    bool is_plain = it != NULL && it->plain_until_ns > tierce__now_ns();
    tierce__lock_drop(&table->lock);
    return is_plain;
}

static uint64_t pause_end_ns(const struct condition *of)
{
    uint32_t doublings = of->failures < PAUSE_DOUBLINGS ? of->failures : PAUSE_DOUBLINGS;
    return tierce__deadline_in_ms(PAUSE_MS << (doublings > 0 ? doublings - 1 : 0));
}

/* The others wait for the answer of the first one after a pause. */
static void try_after_pause(struct condition *of)
{
    if (of->out_until_ns != 0)
        of->out_until_ns = pause_end_ns(of);
}

static void judge(struct condition *of, enum tierce__peer_result result)
{
    if (tierce__peer_result_is_failure(result)) {
        if (tierce__now_ns() >= of->counted_until_ns) {
            of->failures = of->failures < UINT16_MAX ? of->failures + 1 : of->failures;
            of->counted_until_ns = of->out_until_ns = pause_end_ns(of);
        }
    } else if (result != TIERCE__PEER_UNTRIED) {
        *of = (struct condition){0};
    }
}

bool tierce__peers_table_may_ask(struct tierce__peers_table *table, struct tierce__peer_ref peer)
{
    tierce__lock_take(&table->lock);
    struct peer *it = peer_of(table, peer);
    bool may = it != NULL && it->condition.out_until_ns <= tierce__now_ns();
    if (may)
        try_after_pause(&it->condition);
    tierce__lock_drop(&table->lock);
    return may;
}

bool tierce__peers_table_is_out(struct tierce__peers_table *table, struct tierce__peer_ref peer)
{
    tierce__lock_take(&table->lock);
    const struct peer *it = peer_of(table, peer);
    bool is_out = it != NULL && it->condition.out_until_ns > tierce__now_ns();
    tierce__lock_drop(&table->lock);
    return is_out;
}

void tierce__peers_table_note(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                              enum tierce__peer_result result)
{
    tierce__lock_take(&table->lock);
    struct peer *it = peer_of(table, peer);
    table->counts[result]++;
    if (it != NULL)
        judge(&it->condition, result);
    tierce__lock_drop(&table->lock);
}

/* ---- links ----------------------------------------------------------------------------------- */

/* Whether its rate is that of now. */
static bool knows_rate(const struct link *link, uint64_t now_ns)
{
    return link->rate > 0 && (link->reads > 0 || now_ns - link->last_ns < RATE_MS * TIERCE__MS_NS);
}

/* Whether a read should rather take link a than b: one that is not paused, then the one that would
 * deliver it first, then the one that had none for longest. */
static bool is_better(const struct link *a, const struct link *b, uint64_t now_ns)
{
    bool a_is_out = a->condition.out_until_ns > now_ns,
         b_is_out = b->condition.out_until_ns > now_ns;
    if (a_is_out != b_is_out)
        return b_is_out;
    bool has_rates = knows_rate(a, now_ns) && knows_rate(b, now_ns) &&
                     (a->rate > RATE_DIFFERS * b->rate || b->rate > RATE_DIFFERS * a->rate);
    double a_wait = has_rates ? (a->reads + 1) / a->rate : a->reads;
    double b_wait = has_rates ? (b->reads + 1) / b->rate : b->reads;
    return a_wait < b_wait || (!(b_wait < a_wait) && a->last_ns < b->last_ns);
}

int tierce__peers_table_begin(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                              uint32_t tried, bool *left)
{
    int best = -1;
    uint64_t now_ns = tierce__now_ns();
    *left = false;
    tierce__lock_take(&table->lock);
    struct peer *it = peer_of(table, peer);
    for (uint32_t i = 0; it != NULL && i < it->link_count; i++) {
        if ((tried & 1u << i) != 0)
            continue;
        *left = best >= 0;
        if (best < 0 || is_better(&it->links[i], &it->links[best], now_ns))
            best = (int)i;
    }
    if (best >= 0) {
        struct link *link = &it->links[best];
        link->reads++;
        link->last_ns = now_ns;
        try_after_pause(&link->condition);
    }
    tierce__lock_drop(&table->lock);
    return best;
}

/* The reads that are in progress share the link. */
static void learn_rate(struct link *link, uint64_t bytes, uint64_t ns)
{
    if (bytes < RATE_BYTES || ns == 0)
        return;
    double rate = (double)bytes * link->reads / (double)ns;
    link->rate = link->rate > 0 ? link->rate + RATE_WEIGHT * (rate - link->rate) : rate;
}

void tierce__peers_table_end(struct tierce__peers_table *table, struct tierce__peer_ref peer,
                             uint32_t link, enum tierce__peer_result result, uint64_t bytes,
                             uint64_t ns)
{
    tierce__lock_take(&table->lock);
    struct peer *it = peer_of(table, peer);
    if (it != NULL) {
        struct link *at = &it->links[link];
        TIERCE_ASSERT(link < it->link_count && at->reads > 0);
        if (result == TIERCE__PEER_SERVED)
            learn_rate(at, bytes, ns);
        at->reads--;
        judge(&at->condition, result);
    }
    tierce__lock_drop(&table->lock);
}

static uint64_t links_paused(const struct peer *peer, uint64_t now_ns)
{
    uint64_t count = 0;
    for (uint32_t i = 0; peer->link_count > 1 && i < peer->link_count; i++)
        count += peer->links[i].condition.out_until_ns > now_ns;
    return count;
}

/* ---- figures --------------------------------------------------------------------------------- */

void tierce__peers_table_add_read(struct tierce__peers_table *table, bool is_beginning,
                                  uint64_t bytes)
{
    tierce__lock_take(&table->lock);
    table->chunks += is_beginning;
    table->bytes += bytes;
    tierce__lock_drop(&table->lock);
}

void tierce__peers_table_stats(struct tierce__peers_table *table,
                               struct tierce__peers_table_stats *out)
{
    uint64_t now_ns = tierce__now_ns();
    tierce__lock_take(&table->lock);
    *out = (struct tierce__peers_table_stats){.chunks = table->chunks, .bytes = table->bytes};
    memcpy(out->results, table->counts, sizeof(out->results));
    for (size_t i = 0; i < TIERCE__PEERS_MAX; i++) {
        out->known_now += table->peers[i].generation != 0;
        out->paused_now +=
            table->peers[i].generation != 0 && table->peers[i].condition.out_until_ns > now_ns;
        out->links_paused_now += links_paused(&table->peers[i], now_ns);
    }
    tierce__lock_drop(&table->lock);
}

/* ---- places ---------------------------------------------------------------------------------- */

static struct place *place_of(struct tierce__peers_table *table, struct tierce__chunk_number key)
{
    tierce__lock_assert_held(&table->lock);
    return &table->places[key.low % TIERCE__PEERS_PLACES];
}

static bool is_of(const struct place *place, struct tierce__chunk_number key)
{
    return place->key.high == key.high && place->key.low == key.low;
}

void tierce__peers_table_put(struct tierce__peers_table *table, struct tierce__chunk_number key,
                             const struct tierce__peer_ref *holders, size_t count)
{
    struct place place = {.key = key};
    TIERCE_ASSERT(count <= TIERCE__PEERS_HOLDERS_MAX);
    for (size_t i = 0; i < count; i++)
        place.holders[i] = holders[i];
    tierce__lock_take(&table->lock);
    struct place *at = place_of(table, key);
    if (is_of(at, key))
        memcpy(place.served, at->served, sizeof(place.served));
    *at = place;
    tierce__lock_drop(&table->lock);
}

/* The holders of a place that are still peers. */
static size_t list_holders(struct tierce__peers_table *table, const struct place *place,
                           struct tierce__chunk_number key,
                           struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX])
{
    size_t count = 0;
    tierce__lock_assert_held(&table->lock);
    for (size_t i = 0; is_of(place, key) && i < TIERCE__PEERS_HOLDERS_MAX; i++) {
        if (peer_of(table, place->holders[i]) != NULL)
            holders[count++] = place->holders[i];
    }
    return count;
}

size_t tierce__peers_table_get(struct tierce__peers_table *table, struct tierce__chunk_number key,
                               struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX])
{
    tierce__lock_take(&table->lock);
    size_t count = list_holders(table, place_of(table, key), key, holders);
    tierce__lock_drop(&table->lock);
    return count;
}

void tierce__peers_table_missed(struct tierce__peers_table *table, struct tierce__chunk_number key)
{
    struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX];
    tierce__lock_take(&table->lock);
    struct place *place = place_of(table, key);
    bool is_held = list_holders(table, place, key, holders) > 0;
    if (!is_held && !is_of(place, key))
        *place = (struct place){.key = key};
    /* The time counts from the first miss: frequent reads would extend it without end. */
    if (!is_held && place->absent_until_ns <= tierce__now_ns())
        place->absent_until_ns = tierce__deadline_in_ms(TIERCE__PEERS_ABSENT_MS);
    tierce__lock_drop(&table->lock);
}

bool tierce__peers_table_is_absent(struct tierce__peers_table *table,
                                   struct tierce__chunk_number key)
{
    tierce__lock_take(&table->lock);
    const struct place *place = place_of(table, key);
    bool is_absent = is_of(place, key) && place->absent_until_ns > tierce__now_ns();
    tierce__lock_drop(&table->lock);
    return is_absent;
}

void tierce__peers_table_drop(struct tierce__peers_table *table, struct tierce__chunk_number key,
                              struct tierce__peer_ref peer)
{
    tierce__lock_take(&table->lock);
    struct place *place = place_of(table, key);
    for (size_t i = 0; is_of(place, key) && i < TIERCE__PEERS_HOLDERS_MAX; i++) {
        if (place->holders[i].slot == peer.slot && place->holders[i].generation == peer.generation)
            place->holders[i] = (struct tierce__peer_ref){0};
    }
    tierce__lock_drop(&table->lock);
}

/* ---- chunks that have proved wrong ----------------------------------------------------------- */

static bool is_same(struct tierce__peer_ref a, struct tierce__peer_ref b)
{
    return a.slot == b.slot && a.generation == b.generation;
}

/* Whether it was added; false: there is no room. */
static bool add_ref(struct tierce__peer_ref refs[TIERCE__PEERS_HOLDERS_MAX],
                    struct tierce__peer_ref peer)
{
    size_t at = 0;
    while (at < TIERCE__PEERS_HOLDERS_MAX && refs[at].generation != 0 && !is_same(refs[at], peer))
        at++;
    if (at < TIERCE__PEERS_HOLDERS_MAX)
        refs[at] = peer;
    return at < TIERCE__PEERS_HOLDERS_MAX;
}

static struct wrong *wrong_of(struct tierce__peers_table *table, struct tierce__chunk_number key)
{
    tierce__lock_assert_held(&table->lock);
    return &table->wrongs[key.low % TIERCE__PEERS_WRONGS];
}

static bool is_wrong_of(const struct wrong *wrong, struct tierce__chunk_number key)
{
    return (wrong->is_all || wrong->peers[0].generation != 0) && wrong->key.high == key.high &&
           wrong->key.low == key.low;
}

void tierce__peers_table_served(struct tierce__peers_table *table, struct tierce__chunk_number key,
                                struct tierce__peer_ref peer)
{
    tierce__lock_take(&table->lock);
    struct place *place = place_of(table, key);
    if (is_of(place, key) && !add_ref(place->served, peer))
        place->served[TIERCE__PEERS_HOLDERS_MAX - 1] = peer;
    tierce__lock_drop(&table->lock);
}

static struct wrong *make_wrong(struct tierce__peers_table *table, struct tierce__chunk_number key)
{
    struct wrong *wrong = wrong_of(table, key);
    if (!is_wrong_of(wrong, key))
        *wrong = (struct wrong){.key = key};
    return wrong;
}

static void reject(struct wrong *wrong, struct tierce__peer_ref peer)
{
    if (!add_ref(wrong->peers, peer))
        wrong->peers[wrong->next++ % TIERCE__PEERS_HOLDERS_MAX] = peer;
}

void tierce__peers_table_reject(struct tierce__peers_table *table, struct tierce__chunk_number key,
                                struct tierce__peer_ref peer)
{
    TIERCE_ASSERT(peer.generation != 0);
    tierce__lock_take(&table->lock);
    reject(make_wrong(table, key), peer);
    tierce__lock_drop(&table->lock);
}

size_t tierce__peers_table_reject_served(struct tierce__peers_table *table,
                                         struct tierce__chunk_number key,
                                         struct tierce__peer_ref peers[TIERCE__PEERS_HOLDERS_MAX])
{
    size_t count = 0;
    tierce__lock_take(&table->lock);
    struct place *place = place_of(table, key);
    struct wrong *wrong = make_wrong(table, key);
    for (size_t i = 0; is_of(place, key) && i < TIERCE__PEERS_HOLDERS_MAX; i++) {
        if (place->served[i].generation == 0)
            continue;
        reject(wrong, place->served[i]);
        peers[count++] = place->served[i];
    }
    wrong->is_all = wrong->is_all || count == 0;
    /* Not by a note: the peer answers, and a note would end its pause or begin one. */
    table->counts[TIERCE__PEER_DAMAGED] += count > 0 ? count : 1;
    if (is_of(place, key)) /* the other holders are found again */
        *place = (struct place){0};
    tierce__lock_drop(&table->lock);
    return count;
}

bool tierce__peers_table_is_rejected(struct tierce__peers_table *table,
                                     struct tierce__chunk_number key, struct tierce__peer_ref peer)
{
    tierce__lock_take(&table->lock);
    const struct wrong *wrong = wrong_of(table, key);
    bool is_wrong = is_wrong_of(wrong, key), is_rejected = is_wrong && wrong->is_all;
    for (size_t i = 0; is_wrong && i < TIERCE__PEERS_HOLDERS_MAX; i++)
        is_rejected = is_rejected || is_same(wrong->peers[i], peer);
    tierce__lock_drop(&table->lock);
    return is_rejected;
}
