/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials that expire. Fetching blocks, and the connector's thread must not block, so a thread
 * of its own fetches credentials and renews them before they expire. The connector's lock protects
 * the hand-over.
 *
 *     thread:     fetch into `fresh`, wake the connector, wait until shortly before the expiry or
 *                 until the connector requests new ones
 *     connector:  takes `fresh` before a request; requests new ones when the store rejects them
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "store/remote/s3/aws_private.h"

#include <errno.h>
#include <string.h>

#define LEAD_S       300u  /* renewal this long before the expiry */
#define NO_END_S     3600u /* refresh interval of credentials without an expiry */
#define RETRY_MS     1000u
#define RETRY_MS_MAX 60000u
#define WAIT_MS_MAX  (60u * 60000u)
#define SECOND_MS    1000u
#define YOUNG_MS     1000u /* younger credentials are not renewed on rejection */

struct tierce__s3_login {
    struct tierce__s3 *s3;
    struct tierce__aws_login *aws; /* [borrow] the configuration's */
    pthread_t thread;
    uint64_t expires_s; /* thread only: expiry of the last fetched; 0: never */
    uint64_t taken_ns;  /* the connector's */
    /* Under the connector's lock. */
    struct tierce__s3_credentials fresh;
    bool has_fresh, is_asked, ends;
    int status; /* of the last fetch */
};

/* The time until credentials are fetched again. */
static uint32_t good_for_ms(uint64_t expires_s)
{
    uint64_t now_s = tierce__wall_s();
    uint64_t left_s = expires_s == 0 ? NO_END_S : expires_s > now_s ? expires_s - now_s : 0;
    uint64_t lead_s = left_s / 4 < LEAD_S ? left_s / 4 : LEAD_S;
    TIERCE_DASSERT(lead_s <= left_s);
    uint64_t ms = (left_s - lead_s) * SECOND_MS;
    return ms < SECOND_MS ? SECOND_MS : ms < WAIT_MS_MAX ? (uint32_t)ms : WAIT_MS_MAX;
}

static void hand_over(struct tierce__s3_login *login, const struct tierce__s3_credentials *fresh,
                      int status)
{
    TIERCE_DASSERT(status <= 0);
    struct tierce__s3 *s3 = login->s3;
    tierce__lock_take(&s3->lock);
    login->status = status;
    login->is_asked = false;
    if (status == 0) {
        login->fresh = *fresh;
        login->has_fresh = true;
    }
    curl_multi_wakeup(s3->multi);
    tierce__lock_drop(&s3->lock);
}

/* Blocks for that long; if `may_ask`, only until new ones are requested. Returns false at the end
 * of the thread. */
static bool wait_for(struct tierce__s3_login *login, uint32_t ms, bool may_ask)
{
    TIERCE_DASSERT(!tierce__lock_holds_any());
    struct tierce__s3 *s3 = login->s3;
    uint64_t until_ns = tierce__deadline_in_ms(ms);
    for (;;) {
        tierce__lock_take(&s3->lock);
        bool ends = login->ends, asked = login->is_asked && may_ask;
        tierce__lock_drop(&s3->lock);
        uint64_t now_ns = tierce__now_ns();
        if (ends || asked || now_ns >= until_ns)
            return !ends;
        tierce__curl_wait(login->aws->client, (uint32_t)((until_ns - now_ns) / TIERCE__MS_NS) + 1);
    }
}

static void *work(void *arg)
{
    struct tierce__s3_login *login = arg;
    char why[TIERCE__CONNECTOR_WHY_BYTES];
    uint32_t wait_ms = good_for_ms(login->expires_s), retry_ms = RETRY_MS;
    bool has_any = login->s3->is_logged_in;
    int rc = 0;
    while (!has_any || wait_for(login, wait_ms, rc == 0)) { /* the store cannot shorten retry_ms */
        struct tierce__s3_credentials fresh;
        rc = tierce__aws_login_fetch(login->aws, &fresh, &login->expires_s, why);
        if (rc == TIERCE_E_CANCELLED)
            break;
        if (rc != 0)
            tierce__s3_set_why(login->s3, "%s", why);
        hand_over(login, &fresh, rc);
        explicit_bzero(&fresh, sizeof(fresh));
        has_any = true; /* or the lack of credentials is known */
        wait_ms = rc == 0 ? good_for_ms(login->expires_s) : retry_ms;
        retry_ms = rc == 0 ? RETRY_MS : retry_ms < RETRY_MS_MAX / 2 ? 2 * retry_ms : RETRY_MS_MAX;
    }
    return NULL;
}

int tierce__s3_login_start(struct tierce__s3 *s3)
{
    if (s3->config.login == NULL) {
        s3->is_logged_in = true;
        return 0;
    }
    struct tierce__s3_login *login = tierce__calloc(1, sizeof(*login));
    if (login == NULL)
        return -ENOMEM;
    login->s3 = s3;
    login->aws = s3->config.login;
    login->expires_s = s3->config.expires_s;
    login->taken_ns = tierce__now_ns();
    s3->is_logged_in = s3->config.credentials.access_key[0] != '\0';
    int rc = -pthread_create(&login->thread, NULL, work, login);
    if (rc != 0) {
        tierce__free(login);
        return rc;
    }
    s3->login = login;
    return 0;
}

void tierce__s3_login_stop(struct tierce__s3 *s3)
{
    struct tierce__s3_login *login = s3->login;
    if (login == NULL)
        return;
    tierce__lock_take(&s3->lock);
    TIERCE_DASSERT(!login->ends);
    login->ends = true;
    tierce__lock_drop(&s3->lock);
    tierce__curl_stop(login->aws->client);
    pthread_join(login->thread, NULL);
    explicit_bzero(login, sizeof(*login));
    tierce__free(login);
    s3->login = NULL;
}

int tierce__s3_login_take(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    struct tierce__s3_login *login = s3->login;
    if (login == NULL)
        return 0;
    tierce__lock_take(&s3->lock);
    int status = login->status;
    if (login->has_fresh) {
        s3->config.credentials = login->fresh;
        explicit_bzero(&login->fresh, sizeof(login->fresh));
        login->has_fresh = false;
        login->taken_ns = tierce__now_ns();
        s3->is_logged_in = true;
    }
    tierce__lock_drop(&s3->lock);
    if (s3->is_logged_in)
        return 0;
    return status == 0 || status == TIERCE_E_REFUSED || status == -ENOMEM ? status : TIERCE_E_DOWN;
}

bool tierce__s3_login_ask(struct tierce__s3 *s3)
{
    TIERCE_DASSERT(tierce__s3_is_own(s3));
    struct tierce__s3_login *login = s3->login;
    if (login == NULL || tierce__now_ns() - login->taken_ns < YOUNG_MS * TIERCE__MS_NS)
        return false;
    tierce__lock_take(&s3->lock);
    login->is_asked = true;
    tierce__lock_drop(&s3->lock);
    tierce__curl_wake(login->aws->client);
    return true;
}
