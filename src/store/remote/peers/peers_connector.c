/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     peers://MANAGER:PORT[,MANAGER:PORT][/GROUP]?connections=8&token_file=F
 *     peers+tls://...&ca_file=F
 *
 * Chunks in the memory and on the disks of other engines (engine/peer), which the directory of a
 * manager finds (FindChunks). Read-only. A chunk that a holder does not have any more, or does not
 * serve now, is read from another one, once; after that it is a miss, so no failure of a peer is a
 * failure of this store. The store fails when no manager answers.
 *
 * A chunk that a peer has only coded is read as it is stored there (TIERCE__CONNECTOR_FORMS), and
 * decoded above this connector (store/coded/coded_connector.h).
 *
 * A chunk that proves wrong is not read again from the peers that delivered its bytes
 * (TIERCE__CONNECTOR_REJECTS), and its other holders are asked.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log_repeat.h"
#include "core/chunk/header.h"
#include "core/codec/codec.h"
#include "store/remote/peers/peers_private.h"

enum {
    LINKS = 8,
    REACH_MS = 1000, /* until another address of a peer is tried */
    TRIES = 2,       /* holders that are asked for one range */
};

/* ---- the state of a link --------------------------------------------------------------------- */

/* After a call, as links without a state have it. */
static int note_call(struct peers_link *link, int rc)
{
    bool has_answer = rc != TIERCE_E_DOWN && rc != TIERCE_E_DEADLINE;
    link->state.connects += has_answer && !link->state.is_connected;
    link->state.is_connected = has_answer;
    return rc;
}

/* Ranges that were requested ahead are not read: the connection would be out of step. */
static void drop_asked(struct peers_link *link)
{
    if (link->asked.due > 0)
        tierce__transfer_link_close(link->asked.connection);
    link->asked.due = 0;
}

/* ---- lookups --------------------------------------------------------------------------------- */

static int find_names(void *opened, const struct tierce_plugin_name *names, size_t count,
                      _Atomic size_t *found, uint64_t deadline_ns)
{
    struct peers_link *link = opened;
    size_t there = 0;
    link->why[0] = '\0';
    drop_asked(link);
    for (size_t at = 0; at < count && there == at;) {
        size_t some = 0;
        struct peers_key key;
        while (some < PEERS_NAMES && at + some < count &&
               tierce__peers_parse(&key, &names[at + some]))
            link->numbers[some++] = key.number;
        int64_t got = some > 0 ? tierce__peers_find(link, some, deadline_ns) : 0;
        if (got < 0)
            return note_call(link, (int)got);
        there += (size_t)got;
        atomic_store_explicit(found, there, memory_order_relaxed);
        at += some > 0 ? some : 1;
    }
    return note_call(link, 0);
}

static int ping_managers(void *opened, uint64_t deadline_ns)
{
    struct peers_link *link = opened;
    link->why[0] = '\0';
    link->numbers[0] = (struct tierce__chunk_number){0};
    int64_t found = tierce__peers_find(link, 1, deadline_ns);
    return note_call(link, found < 0 ? (int)found : 0);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The connection to an address of a peer; a new one takes the place of the one that was not used
 * for longest. NULL: *rc is -ENOMEM, or TIERCE_E_MISS (the peer is not known any more). */
static struct tierce__transfer_link *
connection_to(struct peers_link *link, struct tierce__peer_ref peer, uint32_t at, int *rc)
{
    struct peer_connection *oldest = &link->connections[0];
    bool is_plain = tierce__peers_table_is_plain(link->store->table, peer);
    char host[TIERCE__PEERS_ADDRESS_BYTES];
    uint16_t port;
    for (size_t i = 0; i < PEERS_CONNECTIONS; i++) {
        struct peer_connection *it = &link->connections[i];
        if (it->link != NULL && it->peer.slot == peer.slot &&
            it->peer.generation == peer.generation && it->at == at && it->is_plain == is_plain) {
            it->used = ++link->uses;
            return it->link;
        }
        if (it->used < oldest->used)
            oldest = it;
    }
    *rc = TIERCE_E_MISS;
    if (!tierce__peers_table_address(link->store->table, peer, at, host, &port))
        return NULL;
    if (oldest->link == link->asked.connection)
        link->asked.due = 0;
    tierce__transfer_link_destroy(oldest->link);
    *oldest = (struct peer_connection){
        .peer = peer, .at = at, .is_plain = is_plain, .used = ++link->uses};
    *rc = tierce__transfer_link_create(&oldest->link, host, port,
                                       is_plain ? TIERCE__PEER_SPACE : TIERCE__PEER_SPACE_STORED,
                                       link->store->self->tls);
    if (*rc != 0)
        oldest->link = NULL;
    return oldest->link;
}

/* Whether the beginning of an object is that of the chunk. A header that is not whole is checked by
 * the caller of the connector, as the cells are. */
static bool is_chunk(const struct peers_key *key, const struct tierce__link_get *get)
{
    struct tierce__chunk_info info;
    uint32_t codec;
    if (get->offset != 0 || get->length < TIERCE__CHUNK_FIXED)
        return true;
    int rc = tierce__chunk_parse(&info, get->memory, get->length);
    if (rc == TIERCE_E_VERSION)
        rc = tierce__chunk_parse_coded(&info, &codec, get->memory, get->length);
    if (rc == TIERCE_E_LIMIT || rc == TIERCE_E_VERSION)
        return true;
    return rc == 0 && memcmp(info.hash, key->hash, sizeof(info.hash)) == 0 &&
           memcmp(info.ns_digest, key->ns_digest, sizeof(info.ns_digest)) == 0 &&
           memcmp(&info.shard, &key->shard, sizeof(info.shard)) == 0;
}

/* at: which of its addresses; has_more: another one is tried next. */
static void explain(struct peers_link *link, struct tierce__peer_ref peer, uint32_t at,
                    bool has_more, enum tierce__peer_result result, int rc, const char *fault)
{
    char host[TIERCE__PEERS_ADDRESS_BYTES] = "?";
    uint16_t port = 0;
    (void)tierce__peers_table_address(link->store->table, peer, at, host, &port);
    bool is_failure = tierce__peer_result_is_failure(result);
    bool has_fault =
        (is_failure || result == TIERCE__PEER_LENGTH) && fault != NULL && fault[0] != '\0';
    const char *what = has_fault                        ? fault
                       : result == TIERCE__PEER_BUSY    ? "busy: too many reads from its disk"
                       : result == TIERCE__PEER_MISSED  ? "it does not have the chunk any more"
                       : result == TIERCE__PEER_DAMAGED ? "its bytes are not the chunk"
                       : result == TIERCE__PEER_UNTRIED && rc == TIERCE_E_DEADLINE
                           ? "too little time was left to ask it"
                           : tierce_strerror(rc);
    snprintf(link->why, sizeof(link->why), "peer %.80s:%u: %.150s", host, (unsigned)port, what);
    if (result == TIERCE__PEER_DAMAGED)
        tierce__log_repeated(TIERCE_LOG_ERROR, "peer_damaged", "err=\"%s\"", link->why);
    else if (is_failure && has_more)
        tierce__log_repeated(TIERCE_LOG_WARN, "peer_address_failed",
                             "err=\"%s\" consequence=\"its other addresses are used\"", link->why);
    else if (is_failure)
        tierce__log_repeated(TIERCE_LOG_WARN, "peer_failed",
                             "err=\"%s\" consequence=\"it is not asked for a while\"", link->why);
}

/* A range of a chunk to read. */
struct wanted {
    const struct tierce__link_get *get;
    struct peers_key key;
    uint64_t form; /* the length of the object; 0: of whatever form a peer has */
};

/* Whether it is the beginning of whatever form a peer has. Each chunk is read so once, and once
 * more if its read begins again. */
static bool is_any_form(const struct wanted *wanted)
{
    return wanted->get->offset == 0 && wanted->form == 0;
}

/* An address that cannot be reached must leave time for another one. */
static int read_with(struct tierce__transfer_link *connection, const char *secret,
                     const struct wanted *wanted, uint64_t deadline_ns, bool has_more)
{
    uint64_t reach_ns = tierce__deadline_in_ms(REACH_MS);
    int rc = 0;
    if (has_more)
        rc = tierce__transfer_link_reach(connection, secret,
                                         reach_ns < deadline_ns ? reach_ns : deadline_ns);
    return rc == 0 ? tierce__transfer_link_get(connection, secret, wanted->get, deadline_ns) : rc;
}

/* Whether the range in progress was requested from this peer already. */
static bool was_asked(const struct peers_link *link, struct tierce__peer_ref peer)
{
    const struct peers_asked *asked = &link->asked;
    return asked->due > 0 && !asked->is_taken && asked->peer.slot == peer.slot &&
           asked->peer.generation == peer.generation;
}

/* The answer to a range that was requested ahead. TIERCE_E_REFUSED: it is to be requested again,
 * with the secret of now. */
static int read_asked(struct peers_link *link, struct tierce__transfer_link *connection,
                      const struct wanted *wanted, uint64_t deadline_ns)
{
    link->asked.is_taken = true;
    link->asked.due--;
    int rc = tierce__transfer_link_read_get(connection, wanted->get, deadline_ns);
    if (rc == TIERCE_E_REFUSED) {
        tierce__transfer_link_close(connection);
        link->asked.due = 0;
    }
    return rc;
}

/* With the secret of the group, or else with the one before: the peer may not know the new one. */
static int read_range(struct peers_link *link, struct tierce__transfer_link *connection,
                      const struct wanted *wanted, uint64_t deadline_ns, bool has_more)
{
    int64_t session;
    int32_t slot;
    char secret[TIERCE__PEERS_SECRET_BYTES];
    if (link->asked.due > 0 && link->asked.connection == connection && !link->asked.is_taken) {
        int answer = read_asked(link, connection, wanted, deadline_ns);
        if (answer != TIERCE_E_REFUSED)
            return answer;
    } else if (link->asked.connection == connection) {
        drop_asked(link);
    }
    (void)tierce__peers_self_get(link->store->self, &session, &slot, secret);
    int rc = read_with(connection, secret, wanted, deadline_ns, has_more);
    if (rc == TIERCE_E_REFUSED && !tierce__transfer_link_lacks_space(connection) &&
        tierce__peers_self_before(link->store->self, secret))
        rc = read_with(connection, secret, wanted, deadline_ns, has_more);
    explicit_bzero(secret, sizeof(secret));
    return rc;
}

/* Notes the result where the next reads see it. */
static void note_read(struct peers_link *link, const struct wanted *wanted,
                      struct tierce__peer_ref peer, enum tierce__peer_result result)
{
    struct tierce__peers_table *table = link->store->table;
    if (result == TIERCE__PEER_SERVED) {
        tierce__peers_table_served(table, wanted->key.number, peer);
        tierce__peers_table_add_read(table, is_any_form(wanted), wanted->get->length);
    }
    if (result == TIERCE__PEER_DAMAGED)
        tierce__peers_table_reject(table, wanted->key.number, peer);
    if (result == TIERCE__PEER_MISSED || result == TIERCE__PEER_DAMAGED)
        tierce__peers_table_drop(table, wanted->key.number, peer);
    tierce__peers_table_note(table, peer, result);
}

/* A peer that does not answer must leave time for another one; and the last one enough to answer
 * with a miss, because a request without an answer by its deadline is a failure of the store. */
static uint64_t share_of(uint64_t deadline_ns, bool is_last)
{
    uint64_t now_ns = tierce__now_ns();
    if (deadline_ns == TIERCE__DEADLINE_NEVER || deadline_ns <= now_ns)
        return deadline_ns;
    uint64_t left_ns = deadline_ns - now_ns;
    return now_ns + (is_last ? left_ns - left_ns / 8 : left_ns / 2);
}

/* Whether a connection is for the space of raw chunks. */
static bool is_plain(const struct peers_link *link, const struct tierce__transfer_link *connection)
{
    for (size_t i = 0; i < PEERS_CONNECTIONS; i++)
        if (link->connections[i].link == connection)
            return link->connections[i].is_plain;
    return false;
}

/* Whether a peer has rejected the greeting because it is of an earlier version, without the space
 * of stored chunks. */
static bool is_older(const struct tierce__transfer_link *connection, int rc)
{
    return rc == TIERCE_E_REFUSED && tierce__transfer_link_lacks_space(connection);
}

/* Whether a peer has sent the beginning of a chunk with a codec that this build does not have. */
static bool is_newer(const struct wanted *wanted, int rc)
{
    const struct tierce__link_get *get = wanted->get;
    struct tierce__chunk_info info;
    uint32_t codec;
    return rc == 0 && is_any_form(wanted) &&
           tierce__chunk_parse_coded(&info, &codec, get->memory, get->length) == 0 &&
           tierce__codec_numbered(codec) == NULL;
}

/* True: the range must be read again, because the peer is older or newer. From now on, raw chunks
 * are read there. Another link may have found it out already, so the connection is looked at. */
static bool becomes_plain(struct peers_link *link, const struct tierce__transfer_link *connection,
                          const struct wanted *wanted, struct tierce__peer_ref peer, int rc)
{
    if (is_plain(link, connection) || !(is_older(connection, rc) || is_newer(wanted, rc)))
        return false;
    tierce__peers_table_set_plain(link->store->table, peer);
    *wanted->get->object_bytes = wanted->form; /* not that of the coded object */
    return true;
}

/* Reads over one address of a peer. */
static enum tierce__peer_result read_at(struct peers_link *link, const struct wanted *wanted,
                                        struct tierce__peer_ref peer, uint32_t at, bool has_more,
                                        uint64_t deadline_ns)
{
    int rc;
    uint64_t now_ns = tierce__now_ns(), given_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    struct tierce__transfer_link *connection = connection_to(link, peer, at, &rc);
    if (connection != NULL)
        rc = read_range(link, connection, wanted, deadline_ns, has_more);
    if (connection != NULL && becomes_plain(link, connection, wanted, peer, rc)) {
        connection = connection_to(link, peer, at, &rc);
        if (connection != NULL)
            rc = read_range(link, connection, wanted, deadline_ns, has_more);
    }
    bool is_open = connection != NULL && tierce__transfer_link_is_open(connection);
    enum tierce__peer_result result = tierce__peer_result_of(rc, is_open, given_ns);
    if (rc == 0 && !is_chunk(&wanted->key, wanted->get))
        result = TIERCE__PEER_DAMAGED;
    if (result != TIERCE__PEER_SERVED)
        explain(link, peer, at, has_more, result, rc,
                connection != NULL ? tierce__transfer_link_why(connection) : NULL);
    return result;
}

/* Whether another address of the peer may do better. */
static bool is_of_link(enum tierce__peer_result result)
{
    return result == TIERCE__PEER_UNTRIED || result == TIERCE__PEER_LATE ||
           result == TIERCE__PEER_FAILED;
}

/* Reads from one peer, which may be asked. */
static enum tierce__peer_result read_from(struct peers_link *link, const struct wanted *wanted,
                                          struct tierce__peer_ref peer, uint64_t deadline_ns)
{
    enum tierce__peer_result result = TIERCE__PEER_MISSED; /* it is not known any more */
    bool has_more = true;
    for (uint32_t tried = 0; has_more;) {
        bool is_asked = was_asked(link, peer);
        int at = tierce__peers_table_begin(link->store->table, peer,
                                           is_asked ? ~(1u << link->asked.at) : tried, &has_more);
        if (at < 0)
            break;
        has_more = has_more || (is_asked && link->asked.has_more);
        tried |= 1u << at;
        uint64_t began_ns = tierce__now_ns();
        result = read_at(link, wanted, peer, (uint32_t)at, has_more,
                         has_more ? share_of(deadline_ns, false) : deadline_ns);
        tierce__peers_table_end(link->store->table, peer, (uint32_t)at, result, wanted->get->length,
                                tierce__now_ns() - began_ns);
        has_more = has_more && is_of_link(result);
    }
    note_read(link, wanted, peer, result);
    return result;
}

/* The known holders of a chunk, or else those that the directory names: it is asked once for all
 * ranges of a chunk that nobody has. Returns how many, or an error. */
static int64_t find_holders(struct peers_link *link, struct tierce__chunk_number number,
                            struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX],
                            uint64_t deadline_ns)
{
    struct tierce__peers_table *table = link->store->table;
    size_t count = tierce__peers_table_get(table, number, holders);
    if (count > 0 || tierce__peers_table_is_absent(table, number))
        return (int64_t)count;
    link->numbers[0] = number;
    int64_t found = tierce__peers_find(link, 1, share_of(deadline_ns, false));
    return found < 0 ? found : (int64_t)tierce__peers_table_get(table, number, holders);
}

static int get_range(struct peers_link *link, const struct tierce__link_get *get,
                     uint64_t deadline_ns)
{
    struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX];
    struct wanted wanted = {.get = get, .form = *get->object_bytes};
    link->why[0] = '\0';
    if (!tierce__peers_parse(&wanted.key, get->name))
        return TIERCE_E_MISS;
    if (!tierce__peers_self_await(link->store->self, share_of(deadline_ns, false))) {
        snprintf(link->why, sizeof(link->why), "no manager has sent the secret of the group yet");
        return TIERCE_E_MISS;
    }
    int64_t count = find_holders(link, wanted.key.number, holders, deadline_ns);
    if (count < 0)
        return (int)count;
    for (int64_t i = 0, tries = 0; i < count && tries < TRIES; i++) {
        if (!tierce__peers_table_may_ask(link->store->table, holders[i]))
            continue;
        tries++;
        bool is_last = tries == TRIES || i + 1 == count;
        *get->object_bytes = wanted.form; /* not that of a holder whose bytes were damaged */
        enum tierce__peer_result result =
            read_from(link, &wanted, holders[i], share_of(deadline_ns, is_last));
        if (result == TIERCE__PEER_SERVED)
            return 0;
        if (result == TIERCE__PEER_LENGTH && is_any_form(&wanted))
            return TIERCE_E_FORMAT; /* coded objects are shorter: fewer bytes are to be asked for */
    }
    tierce__peers_table_missed(link->store->table, wanted.key.number);
    if (link->why[0] == '\0')
        snprintf(link->why, sizeof(link->why), "no peer that has the chunk is in service");
    return TIERCE_E_MISS;
}

static int get_form(void *opened, const struct tierce__link_get *get, uint64_t deadline_ns)
{
    struct peers_link *link = opened;
    drop_asked(link);
    return note_call(link, get_range(link, get, deadline_ns));
}

/* ---- several at a time ----------------------------------------------------------------------- */

/* The known holder that is asked first. Generation 0: none. */
static struct tierce__peer_ref first_holder(struct peers_link *link,
                                            const struct tierce_plugin_name *name)
{
    const struct tierce__peer_ref none = {0};
    struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX];
    struct tierce__peers_table *table = link->store->table;
    struct peers_key key;
    size_t count =
        tierce__peers_parse(&key, name) ? tierce__peers_table_get(table, key.number, holders) : 0;
    for (size_t i = 0; i < count; i++)
        if (!tierce__peers_table_is_out(table, holders[i]))
            return holders[i];
    return none;
}

/*
 * Requests the next ranges together, as far as one peer has them: otherwise each of them costs a
 * round trip. Only over a connection that is there, so that a peer that does not answer is found
 * out by one range, with its bounds; and of a peer that is in service.
 */
static void ask_ahead(struct peers_link *link, uint64_t deadline_ns)
{
    struct peers_asked *asked = &link->asked;
    struct tierce__peers_table *table = link->store->table;
    const struct tierce__link_get *gets = &asked->gets[asked->next];
    size_t left = asked->count - asked->next, count = 0;
    bool goes_on = true;
    for (; goes_on && count < left; count += goes_on) {
        struct tierce__peer_ref peer = first_holder(link, gets[count].name);
        if (count == 0)
            asked->peer = peer;
        goes_on = peer.generation != 0 && peer.slot == asked->peer.slot &&
                  peer.generation == asked->peer.generation;
    }
    if (count < 2)
        return;
    int rc, at = tierce__peers_table_begin(table, asked->peer, 0, &asked->has_more);
    if (at < 0)
        return;
    tierce__peers_table_end(table, asked->peer, (uint32_t)at, TIERCE__PEER_UNTRIED, 0, 0);
    asked->at = (uint32_t)at;
    asked->connection = connection_to(link, asked->peer, asked->at, &rc);
    if (asked->connection == NULL || !tierce__transfer_link_is_open(asked->connection))
        return;
    rc = tierce__transfer_link_send_gets(asked->connection, gets, count,
                                         share_of(deadline_ns, false));
    asked->due = rc == 0 ? count : 0;
}

static int take_gets(void *opened, const struct tierce__link_get *gets, size_t count,
                     uint64_t deadline_ns)
{
    struct peers_link *link = opened;
    (void)deadline_ns;
    TIERCE_ASSERT(count <= TIERCE__LINKS_GETS);
    drop_asked(link);
    memcpy(link->asked.gets, gets, count * sizeof(*gets));
    link->asked.count = count;
    link->asked.next = 0;
    return 0;
}

static int read_get(void *opened, const struct tierce__link_get *get, uint64_t deadline_ns)
{
    struct peers_link *link = opened;
    struct peers_asked *asked = &link->asked;
    TIERCE_ASSERT(asked->next < asked->count);
    if (asked->due > 0 && !tierce__transfer_link_is_open(asked->connection))
        asked->due = 0; /* this range was not answered because an earlier one has failed */
    if (asked->due == 0)
        ask_ahead(link, deadline_ns);
    asked->next++;
    asked->is_taken = false;
    int rc = get_range(link, get, deadline_ns);
    if (!asked->is_taken)
        drop_asked(link);
    return note_call(link, rc);
}

static struct tierce__link_state state_of(const void *opened)
{
    return ((const struct peers_link *)opened)->state;
}

static int put_object(void *opened, const struct tierce_plugin_name *name, const void *memory,
                      uint64_t length, uint64_t deadline_ns)
{
    (void)opened, (void)name, (void)memory, (void)length, (void)deadline_ns;
    return TIERCE_E_UNSUPPORTED;
}

/* The chunk has proved wrong. */
static int reject_object(void *opened, const struct tierce_plugin_name *name, uint64_t deadline_ns)
{
    struct peers_link *link = opened;
    struct tierce__peer_ref peers[TIERCE__PEERS_HOLDERS_MAX];
    struct peers_key key;
    (void)deadline_ns;
    link->why[0] = '\0';
    if (!tierce__peers_parse(&key, name))
        return 0;
    size_t count = tierce__peers_table_reject_served(link->store->table, key.number, peers);
    for (size_t i = 0; i < count; i++)
        explain(link, peers[i], 0, false, TIERCE__PEER_DAMAGED, 0, NULL);
    if (count > 0)
        return 0;
    snprintf(link->why, sizeof(link->why),
             "a chunk is wrong, and it is not known any more which peer delivered it");
    tierce__log_repeated(TIERCE_LOG_ERROR, "peer_damaged",
                         "err=\"%s\" consequence=\"all peers are rejected for this chunk\"",
                         link->why);
    return 0;
}

/* ---- links ----------------------------------------------------------------------------------- */

static int open_link(void **out, void *store)
{
    struct peers_link *link = *out;
    link->store = store;
    const struct tierce__fleet_manager_opts opts = {.size = sizeof(opts),
                                                    .url = &link->store->managers};
    return tierce__fleet_manager_open(&link->manager, &opts, link->why);
}

static void close_link(void *opened)
{
    struct peers_link *link = opened;
    for (size_t i = 0; i < PEERS_CONNECTIONS; i++)
        tierce__transfer_link_destroy(link->connections[i].link);
    tierce__fleet_manager_close(link->manager);
    tierce__free(link);
}

static const char *why_of(void *opened)
{
    return ((struct peers_link *)opened)->why;
}

static void close_store(void *opened)
{
    struct peers_store *store = opened;
    tierce__url_clear(&store->managers);
    tierce__free(store);
}

/* The links report no reason when they are opened. */
static int check_files(const struct tierce__url *managers, char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    struct tierce__fleet_manager *manager;
    const struct tierce__fleet_manager_opts opts = {.size = sizeof(opts), .url = managers};
    int rc = tierce__fleet_manager_open(&manager, &opts, why);
    if (rc == 0)
        tierce__fleet_manager_close(manager);
    return rc;
}

static int open_store(void **out, struct tierce__client *own,
                      const struct tierce__connector_source *source,
                      char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    static const char *const known[] = {"connections", "token_file", "ca_file", NULL};
    (void)own;
    struct peers_store *store = *out;
    int rc = tierce__url_check_params(source->url, known, why);
    if (rc == 0)
        rc = tierce__peers_url(&store->managers, store->group, source->text, why);
    if (rc == 0 && source->opts->peers_self == NULL) {
        snprintf(why, TIERCE__CONNECTOR_WHY_BYTES,
                 "peers:// requires an engine or node with tiers, in remote.urls");
        rc = TIERCE_E_CONFIG;
    }
    if (rc == 0)
        rc = check_files(&store->managers, why);
    if (rc != 0)
        return rc;
    store->self = source->opts->peers_self;
    store->table = store->self->table;
    tierce__host_id(store->host_id);
    return 0;
}

const struct tierce__client tierce__peers_client = {
    .table = {.caps = TIERCE__CONNECTOR_RANGES | TIERCE__CONNECTOR_NO_DELETE |
                      TIERCE__CONNECTOR_NO_PUT | TIERCE__CONNECTOR_PINGS |
                      TIERCE__CONNECTOR_REJECTS | TIERCE__CONNECTOR_FORMS,
              .close = close_store,
              .link_open = open_link,
              .link_close = close_link,
              .put = put_object,
              .remove = reject_object,
              .ping = ping_managers,
              .why = why_of},
    .scheme = "peers",
    .store_bytes = sizeof(struct peers_store),
    .link_bytes = sizeof(struct peers_link),
    .links = LINKS,
    .explains_misses = true,
    .open = open_store,
    .find = find_names,
    .get_form = get_form,
    .send_gets = take_gets,
    .read_get = read_get,
    .state = state_of,
};
