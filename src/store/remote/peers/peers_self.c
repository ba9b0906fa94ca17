/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/peers/peers_self.h"

#include <string.h>

#include "base/clock.h"

void tierce__peers_self_init(struct tierce__peers_self *self)
{
    memset(self, 0, sizeof(*self));
    tierce__lock_init(&self->lock, TIERCE__LOCK_PEERS_SELF);
    tierce__cond_init(&self->joined);
    self->first_until_ns = tierce__deadline_in_ms(TIERCE__PEERS_FIRST_MS);
}

void tierce__peers_self_fini(struct tierce__peers_self *self)
{
    tierce__cond_fini(&self->joined);
    tierce__lock_fini(&self->lock);
    explicit_bzero(self->secret, sizeof(self->secret));
    explicit_bzero(self->before, sizeof(self->before));
}

void tierce__peers_self_set(struct tierce__peers_self *self, int64_t session, int32_t slot,
                            const char *secret)
{
    size_t bytes = strlen(secret);
    bool fits = bytes < sizeof(self->secret);
    tierce__lock_take(&self->lock);
    self->session = session;
    self->slot = slot;
    if (self->secret[0] != '\0' && strcmp(self->secret, fits ? secret : "") != 0) {
        memcpy(self->before, self->secret, sizeof(self->before));
        self->before_until_ns = tierce__deadline_in_ms(TIERCE__PEERS_OLD_SECRET_MS);
    }
    memcpy(self->secret, fits ? secret : "", fits ? bytes + 1 : 1);
    tierce__cond_broadcast(&self->joined);
    tierce__lock_drop(&self->lock);
}

bool tierce__peers_self_get(struct tierce__peers_self *self, int64_t *session, int32_t *slot,
                            char secret[TIERCE__PEERS_SECRET_BYTES])
{
    tierce__lock_take(&self->lock);
    *session = self->session;
    *slot = self->slot;
    memcpy(secret, self->secret, sizeof(self->secret));
    tierce__lock_drop(&self->lock);
    return secret[0] != '\0';
}

bool tierce__peers_self_await(struct tierce__peers_self *self, uint64_t deadline_ns)
{
    tierce__lock_take(&self->lock);
    uint64_t until_ns = deadline_ns < self->first_until_ns ? deadline_ns : self->first_until_ns;
    while (self->secret[0] == '\0' && tierce__now_ns() < until_ns)
        tierce__cond_wait(&self->joined, &self->lock, until_ns);
    bool is_there = self->secret[0] != '\0';
    tierce__lock_drop(&self->lock);
    return is_there;
}

bool tierce__peers_self_before(struct tierce__peers_self *self,
                               char secret[TIERCE__PEERS_SECRET_BYTES])
{
    tierce__lock_take(&self->lock);
    bool is_there = self->before[0] != '\0' && tierce__now_ns() < self->before_until_ns;
    memcpy(secret, is_there ? self->before : "", is_there ? sizeof(self->before) : 1);
    tierce__lock_drop(&self->lock);
    return is_there;
}
