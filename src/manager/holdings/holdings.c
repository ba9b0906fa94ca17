/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/holdings/holdings.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/log/log.h"
#include "base/threads/lock.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#define SILENCE_DEFAULT_MS 10000u
#define SENDERS_DEFAULT    8u
#define WORKERS_DEFAULT    4096u
#define HOLDER_BYTES       42u /* of the table, at most: directory_private.h */
#define NS_OF_MS           1000000ULL
/* The first of those that wait come back after this time, others after multiples of it. */
#define WAIT_MS     250u
#define WAIT_MAX_MS 5000u
/* A sender has its place for so many times the silence, if others wait. */
#define SILENCES_OF_SENDING 6u
/* Entries that a tick looks at, a few at a time: each few with the lock of a shard. */
#define CLEAN_ENTRIES 2048u
#define CLEAN_STEPS   32u
#define WARN_EACH_NS  (60000 * NS_OF_MS)

struct sender {
    struct tierce__directory_id id; /* session 0: nobody */
    uint64_t group;                 /* tierce__directory_group_of */
    uint64_t began_ns, heard_ns;
};

struct tierce__holdings {
    struct tierce__directory *directory;
    struct tierce__worker_commands *commands;
    uint32_t silence_ms, senders_max;

    /* Of the tick: */
    uint64_t told_left_out, told_ns; /* of the last warning */

    struct tierce__lock lock; /* SENDERS: below */
    struct sender *senders;   /* [senders_max] */
    uint64_t refused_ns;      /* the first of the refusals that are counted */
    uint32_t refused;         /* within a second from then on */
    uint64_t displaced;
    uint8_t key[TIERCE__SHA256_BYTES]; /* of the groups' secrets */
};

/* ---- secrets --------------------------------------------------------------------------------- */

static int renew_key(struct tierce__holdings *holdings)
{
    uint8_t key[sizeof(holdings->key)];
    if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key))
        return -EIO;
    tierce__lock_take(&holdings->lock);
    memcpy(holdings->key, key, sizeof(key));
    tierce__lock_drop(&holdings->lock);
    explicit_bzero(key, sizeof(key));
    return 0;
}

void tierce__holdings_secret(struct tierce__holdings *holdings, const char *group,
                             char out[TIERCE__HOLDINGS_SECRET_BYTES])
{
    /* The hash of a text of one length: no secret is the beginning of another's text. */
    uint8_t text[2 * TIERCE__SHA256_BYTES], digest[TIERCE__SHA256_BYTES];
    tierce__lock_take(&holdings->lock);
    memcpy(text, holdings->key, sizeof(holdings->key));
    tierce__lock_drop(&holdings->lock);
    tierce__sha256(text + sizeof(holdings->key), group, strlen(group));
    tierce__sha256(digest, text, sizeof(text));
    tierce__hex_encode(out, digest, sizeof(digest));
    out[TIERCE__HOLDINGS_SECRET_BYTES - 1] = '\0';
    explicit_bzero(text, sizeof(text));
    explicit_bzero(digest, sizeof(digest));
}

/* ---- the whole ------------------------------------------------------------------------------- */

int tierce__holdings_create(struct tierce__holdings **out, const struct tierce__holdings_opts *opts)
{
    TIERCE_DASSERT(opts->size == sizeof(*opts));
    struct tierce__holdings *holdings = tierce__calloc(1, sizeof(*holdings));
    if (holdings == NULL)
        return -ENOMEM;
    holdings->silence_ms = opts->silence_ms > 0 ? opts->silence_ms : SILENCE_DEFAULT_MS;
    holdings->senders_max = opts->senders_max > 0 ? opts->senders_max : SENDERS_DEFAULT;
    tierce__lock_init(&holdings->lock, TIERCE__LOCK_SENDERS);
    holdings->senders = tierce__calloc(holdings->senders_max, sizeof(*holdings->senders));
    int rc = holdings->senders != NULL ? renew_key(holdings) : -ENOMEM;
    uint32_t workers = opts->workers_max > 0 ? opts->workers_max : WORKERS_DEFAULT;
    uint32_t percent =
        opts->group_percent > 0 && opts->group_percent < 100 ? opts->group_percent : 0;
    uint64_t group_workers = ((uint64_t)workers * percent + 99) / 100;
    if (rc == 0)
        rc = tierce__directory_create(
            &holdings->directory,
            &(struct tierce__directory_opts){
                .size = sizeof(struct tierce__directory_opts),
                .workers_max = workers,
                .group_workers_max = (uint32_t)group_workers,
                .group_holders_max = opts->bytes_max / HOLDER_BYTES * percent / 100,
                .bytes_max = opts->bytes_max,
                .silence_ns = holdings->silence_ms * NS_OF_MS,
            });
    if (rc == 0)
        rc = tierce__worker_commands_create(&holdings->commands,
                                            &(struct tierce__worker_commands_opts){
                                                .size = sizeof(struct tierce__worker_commands_opts),
                                                .directory = holdings->directory});
    if (rc == 0)
        *out = holdings;
    else
        tierce__holdings_destroy(holdings);
    return rc;
}

void tierce__holdings_destroy(struct tierce__holdings *holdings)
{
    if (holdings == NULL)
        return;
    tierce__worker_commands_destroy(holdings->commands);
    tierce__directory_destroy(holdings->directory);
    tierce__lock_fini(&holdings->lock);
    tierce__free(holdings->senders);
    explicit_bzero(holdings->key, sizeof(holdings->key));
    tierce__free(holdings);
}

struct tierce__directory *tierce__holdings_directory(const struct tierce__holdings *holdings)
{
    return holdings->directory;
}

struct tierce__worker_commands *tierce__holdings_commands(const struct tierce__holdings *holdings)
{
    return holdings->commands;
}

uint32_t tierce__holdings_silence_ms(const struct tierce__holdings *holdings)
{
    return holdings->silence_ms;
}

/* ---- who sends its contents ------------------------------------------------------------------ */

static bool is_same(struct tierce__directory_id a, struct tierce__directory_id b)
{
    return a.session == b.session && a.slot == b.slot;
}

static bool is_free(const struct tierce__holdings *holdings, const struct sender *sender,
                    uint64_t now_ns)
{
    return tierce__directory_group_of(holdings->directory, sender->id) == 0 || /* it has left */
           now_ns > sender->heard_ns + holdings->silence_ms * NS_OF_MS / 2;
}

static uint32_t places_of(const struct tierce__holdings *holdings, uint64_t group)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < holdings->senders_max; i++)
        count += holdings->senders[i].group == group;
    return count;
}

/* All places are taken: that of the sender which is to give way to one of `group`, or NULL. */
static struct sender *find_displaced(struct tierce__holdings *holdings, uint64_t group,
                                     uint64_t now_ns)
{
    struct sender *found = NULL;
    uint64_t time_ns = SILENCES_OF_SENDING * holdings->silence_ms * NS_OF_MS;
    uint32_t own = places_of(holdings, group), most = 0;
    for (uint32_t i = 0; i < holdings->senders_max; i++) {
        struct sender *sender = &holdings->senders[i];
        uint32_t places = places_of(holdings, sender->group);
        if (places <= own + 1 && now_ns <= sender->began_ns + time_ns)
            continue;
        bool is_older = places == most && sender->began_ns < found->began_ns;
        if (places > most || is_older) {
            found = sender;
            most = places;
        }
    }
    return found;
}

/* The worker's own place, a free one, or that of a sender that must give way, is the worker's now.
 * False: there is none. */
static bool take_place(struct tierce__holdings *holdings, struct tierce__directory_id id,
                       bool displaces, uint64_t now_ns)
{
    struct sender *place = NULL;
    uint64_t group = tierce__directory_group_of(holdings->directory, id);
    uint64_t began_ns = now_ns;
    tierce__lock_take(&holdings->lock);
    for (uint32_t i = 0; i < holdings->senders_max; i++) {
        struct sender *sender = &holdings->senders[i];
        bool is_own = is_same(sender->id, id);
        if (is_own || (place == NULL && is_free(holdings, sender, now_ns)))
            place = sender;
        if (is_own) {
            began_ns = sender->began_ns;
            break;
        }
    }
    if (place == NULL && displaces && group != 0) {
        place = find_displaced(holdings, group, now_ns);
        holdings->displaced += place != NULL;
    }
    if (place != NULL)
        *place =
            (struct sender){.id = id, .group = group, .began_ns = began_ns, .heard_ns = now_ns};
    tierce__lock_drop(&holdings->lock);
    return place != NULL;
}

static void free_place(struct tierce__holdings *holdings, struct tierce__directory_id id)
{
    tierce__lock_take(&holdings->lock);
    for (uint32_t i = 0; i < holdings->senders_max; i++) {
        if (is_same(holdings->senders[i].id, id))
            holdings->senders[i] = (struct sender){0};
    }
    tierce__lock_drop(&holdings->lock);
}

/* The more workers were refused within the last second, the longer they wait. */
static uint32_t wait_ms(struct tierce__holdings *holdings, uint64_t now_ns)
{
    tierce__lock_take(&holdings->lock);
    if (now_ns > holdings->refused_ns + 1000 * NS_OF_MS) {
        holdings->refused_ns = now_ns;
        holdings->refused = 0;
    }
    uint64_t wait = (uint64_t)WAIT_MS * (1 + holdings->refused++ / holdings->senders_max);
    tierce__lock_drop(&holdings->lock);
    uint32_t most = holdings->silence_ms / 2 < WAIT_MAX_MS ? holdings->silence_ms / 2 : WAIT_MAX_MS;
    return wait < most ? (uint32_t)wait : most;
}

enum tierce__directory_answer tierce__holdings_begin(struct tierce__holdings *holdings,
                                                     struct tierce__directory_id id,
                                                     uint64_t sending, uint64_t now_ns,
                                                     uint32_t *wait)
{
    enum tierce__directory_answer answer = TIERCE__DIRECTORY_LATER;
    if (take_place(holdings, id, true, now_ns)) {
        answer = tierce__directory_sending_begin(holdings->directory, id, sending, now_ns);
        if (answer != TIERCE__DIRECTORY_DONE)
            free_place(holdings, id);
    }
    *wait = answer == TIERCE__DIRECTORY_LATER ? wait_ms(holdings, now_ns) : 0;
    return answer;
}

enum tierce__directory_answer tierce__holdings_add(struct tierce__holdings *holdings,
                                                   struct tierce__directory_id id, uint64_t sending,
                                                   const struct tierce__directory_change *contents,
                                                   size_t count, uint64_t now_ns)
{
    if (!take_place(holdings, id, false, now_ns))
        return TIERCE__DIRECTORY_RESYNC;
    enum tierce__directory_answer answer =
        tierce__directory_sending_add(holdings->directory, id, sending, contents, count, now_ns);
    if (answer != TIERCE__DIRECTORY_DONE)
        free_place(holdings, id);
    return answer;
}

enum tierce__directory_answer tierce__holdings_end(struct tierce__holdings *holdings,
                                                   struct tierce__directory_id id, uint64_t sending,
                                                   uint64_t covered, uint64_t now_ns)
{
    enum tierce__directory_answer answer =
        tierce__directory_sending_end(holdings->directory, id, sending, covered, now_ns);
    if (answer != TIERCE__DIRECTORY_RESYNC) /* a late one is not the end of the present sending */
        free_place(holdings, id);
    return answer;
}

void tierce__holdings_stats(struct tierce__holdings *holdings, struct tierce__holdings_stats *out)
{
    tierce__lock_take(&holdings->lock);
    *out = (struct tierce__holdings_stats){.displaced = holdings->displaced};
    tierce__lock_drop(&holdings->lock);
}

/* ---- all of them ----------------------------------------------------------------------------- */

void tierce__holdings_clear(struct tierce__holdings *holdings)
{
    struct tierce__directory_about about;
    for (uint32_t from = 0; tierce__directory_next(holdings->directory, &from, &about);)
        (void)tierce__directory_leave(holdings->directory, about.id);
    tierce__worker_commands_clear(holdings->commands);
    tierce__lock_take(&holdings->lock);
    for (uint32_t i = 0; i < holdings->senders_max; i++)
        holdings->senders[i] = (struct sender){0};
    tierce__lock_drop(&holdings->lock);
    (void)renew_key(holdings); /* without random numbers the present key stays, which is secret */
}

/* A worker whose chunks are not all known is found less often than it could be. */
static void warn_of_left_out(struct tierce__holdings *holdings, uint64_t now_ns)
{
    uint64_t left_out = tierce__directory_left_out(holdings->directory);
    bool is_soon = holdings->told_ns > 0 && now_ns - holdings->told_ns < WARN_EACH_NS;
    if (left_out == holdings->told_left_out || is_soon)
        return;
    tierce__log(TIERCE_LOG_WARN, "directory_incomplete",
                "left_out=%" PRIu64 " consequence=\"chunks of some workers are not found; tierce "
                "directory list shows which workers are incomplete\" cure=\"raise "
                "directory.memory, or directory.share for one large group\"",
                left_out - holdings->told_left_out);
    holdings->told_left_out = left_out;
    holdings->told_ns = now_ns;
}

void tierce__holdings_tick(struct tierce__holdings *holdings, uint64_t now_ns)
{
    (void)tierce__directory_expire(holdings->directory, now_ns);
    tierce__worker_commands_tick(holdings->commands, now_ns);
    warn_of_left_out(holdings, now_ns);
    for (uint32_t i = 0; i < CLEAN_STEPS; i++) {
        if (!tierce__directory_clean(holdings->directory, CLEAN_ENTRIES))
            return;
    }
}
