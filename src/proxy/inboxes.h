/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_INBOXES_H
#define TIERCE_PROXY_INBOXES_H

#include "base/json/json_value.h"
#include "base/threads/lock.h"
#include "proxy/engines.h"

/*
 * The inboxes of the engines that answer: where an engine of prefill.urls pushes a prompt's KV
 * while it computes it (docs/using/prefill-decode.md, "Push"). An engine gives tickets on request,
 * each for one prompt. Nothing is configured: an engine that gives none is asked again later, and
 * its prompts are handed over by pull meanwhile.
 *
 *     switch (tierce__inboxes_take(inboxes, engine->index, &place, now_ns)) ...
 *     TIERCE__INBOX_ASK: ask the engine, and then tierce__inboxes_answered(...)
 *
 * Thread: any; a lock of class PROXY_INBOXES inside.
 */

#define TIERCE__INBOX_HOST_MAX     255u
#define TIERCE__INBOX_TICKET_MAX   64u
#define TIERCE__INBOX_HOLDER_BYTES 33u    /* with NUL */
#define TIERCE__INBOX_TICKETS      64u    /* of one answer */
#define TIERCE__INBOX_ASK_MS       2000u  /* how long an engine may take to answer */
#define TIERCE__INBOX_PAUSE_MS     60000u /* before an engine without an inbox is asked again */
#define TIERCE__INBOX_RETRY_MS                                                                     \
    1000u /* before one that did not answer is; each further time doubles it, up to PAUSE_MS */

struct tierce__inbox_place {
    char host[TIERCE__INBOX_HOST_MAX + 1];
    uint16_t port;
    bool uses_tls;
    char ticket[TIERCE__INBOX_TICKET_MAX + 1];
};

enum tierce__inbox_answer {
    TIERCE__INBOX_NONE,   /* no push now */
    TIERCE__INBOX_TICKET, /* the place is set */
    TIERCE__INBOX_ASK,    /* the caller asks the engine; others get NONE meanwhile */
};

struct tierce__inboxes {
    struct tierce__lock lock; /* PROXY_INBOXES */
    struct tierce__inbox_of *items;
    uint32_t count;
    char holder[TIERCE__INBOX_HOLDER_BYTES]; /* by it, engines know who has used tickets before */
};

/* Of so many engines. Errors: -ENOMEM, -EIO (no random bytes). */
TIERCE_MUSTUSE int tierce__inboxes_init(struct tierce__inboxes *inboxes, uint32_t count);
/* Accepts a zeroed one. */
void tierce__inboxes_fini(struct tierce__inboxes *inboxes);

enum tierce__inbox_answer tierce__inboxes_take(struct tierce__inboxes *inboxes, uint32_t index,
                                               struct tierce__inbox_place *out, uint64_t now_ns);
/* An engine has answered: [in] answer: its JSON, or empty if it has not. */
void tierce__inboxes_answered(struct tierce__inboxes *inboxes, uint32_t index,
                              struct tierce__text answer, uint64_t now_ns);
/* An engine may have been restarted: its tickets are dropped, also those of an answer that is due.
 * The engine is asked again. */
void tierce__inboxes_forget(struct tierce__inboxes *inboxes, uint32_t index);
/* An engine has passed a check. If its inbox was forgotten before, the engine is asked without the
 * pause that its failures made. */
void tierce__inboxes_returned(struct tierce__inboxes *inboxes, uint32_t index);

#endif
