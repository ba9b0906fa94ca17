/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/log/log_repeat.h"
#include "core/key/key_text.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/peers/peers_private.h"

enum { RUNS_MAX = 8, PREFIXES_MAX = 64 };

/* ---- names ----------------------------------------------------------------------------------- */

bool tierce__peers_parse(struct peers_key *key, const struct tierce_plugin_name *name)
{
    if (tierce__key_text_parse(key->ns_digest, &key->shard, key->hash, name->text, name->bytes) !=
        0)
        return false;
    key->number = tierce__chunk_number(key->ns_digest, &key->shard, key->hash);
    return true;
}

/* ---- the directory --------------------------------------------------------------------------- */

static void on_done(struct tierce__fleet_call *call)
{
    *(bool *)call->arg = true;
}

/* The reply to FindChunks for the first `count` numbers of the link, or NULL and the error. */
static Meta__FindChunksResponse *ask(struct peers_link *link, size_t count, uint64_t deadline_ns,
                                     int *status)
{
    bool is_done = false;
    char secret[TIERCE__PEERS_SECRET_BYTES];
    Meta__FindChunksRequest request = META__FIND_CHUNKS_REQUEST__INIT;
    request.instance_group = link->store->group;
    request.host_id = link->store->host_id;
    request.zone = link->store->self->zone;
    (void)tierce__peers_self_get(link->store->self, &request.session, &request.slot, secret);
    explicit_bzero(secret, sizeof(secret));
    for (size_t i = 0; i < count; i++) {
        link->keys[2 * i] = (int64_t)link->numbers[i].high;
        link->keys[2 * i + 1] = (int64_t)link->numbers[i].low;
    }
    request.n_keys = 2 * count;
    request.keys = link->keys;
    struct tierce__fleet_call call = {.method = "FindChunks",
                                      .request = &request.base,
                                      .answers = &meta__find_chunks_response__descriptor,
                                      .deadline_ns = deadline_ns,
                                      .repeats = true,
                                      .done = on_done,
                                      .arg = &is_done};
    tierce__fleet_manager_start(link->manager, &call);
    while (!is_done)
        tierce__fleet_manager_poll(link->manager, deadline_ns);
    *status = call.status;
    if (call.status != 0)
        snprintf(link->why, sizeof(link->why), "%.250s", call.why);
    return call.status == 0 ? (Meta__FindChunksResponse *)call.reply : NULL;
}

/* Chunks [first, end) are with a peer. */
struct held {
    size_t first, end;
    struct tierce__peer_ref peer;
    bool is_out;
};

/* A peer at one of these addresses. Generation 0: none, or it is not read from, because one of both
 * requires TLS and the other one does not have it. */
static struct tierce__peer_ref peer_at(struct peers_link *link, const char *address, bool uses_tls)
{
    const struct tierce__peer_ref none = {0};
    const char *mismatch = tierce__peers_tls_mismatch(link->store->self->tls != NULL, uses_tls);
    if (address[0] == '\0')
        return none;
    if (mismatch == NULL)
        return tierce__peers_table_name(link->store->table, address);
    snprintf(link->why, sizeof(link->why), "peer %.127s: %s", address, mismatch);
    tierce__log_repeated(TIERCE_LOG_WARN, "peer_refused",
                         "err=\"%s\" consequence=\"its chunks are not read\"", link->why);
    return none;
}

/* The runs, and then the other holders, in the order of the directory. Workers without an address
 * serve nobody. The numbers of a manager are not trusted. */
static size_t take_held(struct peers_link *link, struct held held[RUNS_MAX + PREFIXES_MAX],
                        const Meta__FindChunksResponse *reply, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < reply->n_runs && i < RUNS_MAX; i++) {
        const Meta__ReadRun *run = reply->runs[i];
        if (run->first < 0 || run->keys <= 0 || (size_t)run->first >= count)
            continue;
        size_t first = (size_t)run->first, left = count - first;
        held[n].first = first;
        held[n].end = first + ((size_t)run->keys < left ? (size_t)run->keys : left);
        held[n].peer = peer_at(link, run->transfer_address, run->transfer_tls);
        n += held[n].peer.generation != 0;
    }
    for (size_t i = 0; i < reply->n_prefixes && i < PREFIXES_MAX; i++) {
        const Meta__HeldPrefix *prefix = reply->prefixes[i];
        if (prefix->keys <= 0)
            continue;
        held[n].first = 0;
        held[n].end = (size_t)prefix->keys < count ? (size_t)prefix->keys : count;
        held[n].peer = peer_at(link, prefix->transfer_address, prefix->transfer_tls);
        n += held[n].peer.generation != 0;
    }
    return n;
}

/* The holders of one chunk that may be asked, in the order of the reply, each once. */
static size_t holders_of(struct peers_link *link,
                         struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX],
                         const struct held *held, size_t held_count, size_t chunk)
{
    size_t count = 0;
    for (size_t i = 0; i < held_count && count < TIERCE__PEERS_HOLDERS_MAX; i++) {
        bool is_new = !held[i].is_out && chunk >= held[i].first && chunk < held[i].end;
        for (size_t k = 0; k < count; k++)
            is_new = is_new && holders[k].slot != held[i].peer.slot;
        if (is_new && !tierce__peers_table_is_rejected(link->store->table, link->numbers[chunk],
                                                       held[i].peer))
            holders[count++] = held[i].peer;
    }
    return count;
}

int64_t tierce__peers_find(struct peers_link *link, size_t count, uint64_t deadline_ns)
{
    struct held held[RUNS_MAX + PREFIXES_MAX];
    int status;
    size_t found = 0;
    Meta__FindChunksResponse *reply = ask(link, count, deadline_ns, &status);
    if (reply == NULL)
        return status;
    size_t held_count = take_held(link, held, reply, count);
    tierce__proto_free(&reply->base);
    for (size_t i = 0; i < held_count; i++)
        held[i].is_out = tierce__peers_table_is_out(link->store->table, held[i].peer);
    while (found < count) {
        struct tierce__peer_ref holders[TIERCE__PEERS_HOLDERS_MAX];
        size_t n = holders_of(link, holders, held, held_count, found);
        if (n == 0)
            break;
        tierce__peers_table_put(link->store->table, link->numbers[found++], holders, n);
    }
    return (int64_t)found;
}
