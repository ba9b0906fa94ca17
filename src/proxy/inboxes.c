/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy/inboxes.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

#define SECONDS_MAX 3600

struct tierce__inbox_of {
    char host[TIERCE__INBOX_HOST_MAX + 1];
    uint16_t port;
    bool uses_tls;
    uint32_t count;
    char tickets[TIERCE__INBOX_TICKETS][TIERCE__INBOX_TICKET_MAX + 1];
    uint64_t expires_ns; /* of the tickets */
    uint64_t ask_ns;     /* not before */
    uint32_t pause_ms;   /* before it is asked after the next failure; 0: RETRY_MS */
    bool is_asked;       /* its answer is due */
    bool is_lost;        /* its connection failed, and no check has passed since */
    bool is_restarted; /* since it was asked: the answer's tickets are those of the previous process
                        */
};

int tierce__inboxes_init(struct tierce__inboxes *inboxes, uint32_t count)
{
    uint8_t random[(TIERCE__INBOX_HOLDER_BYTES - 1) / 2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return -EIO;
    tierce__hex_encode(inboxes->holder, random, sizeof(random));
    inboxes->items = tierce__calloc(count > 0 ? count : 1, sizeof(*inboxes->items));
    if (inboxes->items == NULL)
        return -ENOMEM;
    inboxes->count = count;
    tierce__lock_init(&inboxes->lock, TIERCE__LOCK_PROXY_INBOXES);
    return 0;
}

void tierce__inboxes_fini(struct tierce__inboxes *inboxes)
{
    if (inboxes->items == NULL)
        return;
    explicit_bzero(inboxes->items, inboxes->count * sizeof(*inboxes->items));
    tierce__free(inboxes->items);
    tierce__lock_fini(&inboxes->lock);
    *inboxes = (struct tierce__inboxes){0};
}

enum tierce__inbox_answer tierce__inboxes_take(struct tierce__inboxes *inboxes, uint32_t index,
                                               struct tierce__inbox_place *out, uint64_t now_ns)
{
    enum tierce__inbox_answer answer = TIERCE__INBOX_NONE;
    TIERCE_ASSERT(index < inboxes->count);
    tierce__lock_take(&inboxes->lock);
    struct tierce__inbox_of *inbox = &inboxes->items[index];
    if (inbox->count > 0 && now_ns < inbox->expires_ns) {
        answer = TIERCE__INBOX_TICKET;
        inbox->count--;
        memcpy(out->host, inbox->host, sizeof(out->host));
        memcpy(out->ticket, inbox->tickets[inbox->count], sizeof(out->ticket));
        out->port = inbox->port;
        out->uses_tls = inbox->uses_tls;
    } else if (now_ns >= inbox->ask_ns) {
        answer = TIERCE__INBOX_ASK;
        inbox->is_asked = true;
        inbox->is_restarted = false;
        inbox->ask_ns = now_ns + (TIERCE__INBOX_ASK_MS + TIERCE__INBOX_RETRY_MS) * TIERCE__MS_NS;
    }
    tierce__lock_drop(&inboxes->lock);
    return answer;
}

/* Reads the tickets of an answer. False: it has none that could be used. */
static bool read_inbox(struct tierce__inbox_of *out, struct tierce__text answer, uint64_t now_ns)
{
    struct tierce__text inbox = tierce__json_get(answer, "kv_transfer_params.tierce.inbox");
    struct tierce__text name, value, tickets = tierce__json_get(inbox, "tickets");
    int64_t port = tierce__json_get_int(inbox, "port", 0);
    int64_t seconds = tierce__json_get_int(inbox, "seconds", 0);
    out->count = 0;
    if (tierce__json_value_kind(tickets) != '[' || port <= 0 || port > UINT16_MAX || seconds <= 0 ||
        !tierce__json_get_text(out->host, sizeof(out->host), inbox, "host") || out->host[0] == '\0')
        return false;
    struct tierce__json each = tierce__json_each(tickets);
    while (out->count < TIERCE__INBOX_TICKETS && tierce__json_next(&each, &name, &value))
        if (tierce__json_get_text(out->tickets[out->count], sizeof(out->tickets[0]), value, "") &&
            out->tickets[out->count][0] != '\0')
            out->count++;
    seconds = seconds < SECONDS_MAX ? seconds : SECONDS_MAX;
    /* The engine's clock began earlier than ours: a part of the time is left out. */
    out->expires_ns = now_ns + (uint64_t)seconds * 900u * TIERCE__MS_NS;
    out->port = (uint16_t)port;
    out->uses_tls = tierce__json_get_bool(inbox, "tls");
    return out->count > 0;
}

void tierce__inboxes_answered(struct tierce__inboxes *inboxes, uint32_t index,
                              struct tierce__text answer, uint64_t now_ns)
{
    TIERCE_ASSERT(index < inboxes->count);
    tierce__lock_take(&inboxes->lock);
    struct tierce__inbox_of *inbox = &inboxes->items[index];
    bool has_tickets = answer.length > 0 && read_inbox(inbox, answer, now_ns);
    if (inbox->is_restarted)
        inbox->count = 0;
    else if (has_tickets)
        inbox->is_lost = false;
    inbox->is_asked = inbox->is_restarted = false;
    uint32_t pause_ms = answer.length > 0     ? TIERCE__INBOX_PAUSE_MS
                        : inbox->pause_ms > 0 ? inbox->pause_ms
                                              : TIERCE__INBOX_RETRY_MS;
    inbox->ask_ns = has_tickets ? now_ns : now_ns + pause_ms * TIERCE__MS_NS;
    /* A busy engine is not asked again and again: the client whose request asks waits for it. */
    inbox->pause_ms = has_tickets                             ? 0
                      : 2 * pause_ms < TIERCE__INBOX_PAUSE_MS ? 2 * pause_ms
                                                              : TIERCE__INBOX_PAUSE_MS;
    tierce__lock_drop(&inboxes->lock);
}

void tierce__inboxes_forget(struct tierce__inboxes *inboxes, uint32_t index)
{
    TIERCE_ASSERT(index < inboxes->count);
    tierce__lock_take(&inboxes->lock);
    struct tierce__inbox_of *inbox = &inboxes->items[index];
    explicit_bzero(inbox->tickets, sizeof(inbox->tickets));
    inbox->count = 0;
    inbox->is_lost = true;
    inbox->is_restarted = inbox->is_asked;
    tierce__lock_drop(&inboxes->lock);
}

void tierce__inboxes_returned(struct tierce__inboxes *inboxes, uint32_t index)
{
    TIERCE_ASSERT(index < inboxes->count);
    tierce__lock_take(&inboxes->lock);
    struct tierce__inbox_of *inbox = &inboxes->items[index];
    if (inbox->is_lost && !inbox->is_asked) { /* else a later check does it, after the answer */
        inbox->is_lost = false;
        inbox->ask_ns = 0;
        inbox->pause_ms = 0;
    }
    tierce__lock_drop(&inboxes->lock);
}
