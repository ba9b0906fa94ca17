/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/peers/peers_self.h"

#include <string.h>

void tierce__peers_self_init(struct tierce__peers_self *self)
{
    memset(self, 0, sizeof(*self));
    tierce__lock_init(&self->lock, TIERCE__LOCK_PEERS_SELF);
}

void tierce__peers_self_fini(struct tierce__peers_self *self)
{
    tierce__lock_fini(&self->lock);
    explicit_bzero(self->secret, sizeof(self->secret));
}

void tierce__peers_self_set(struct tierce__peers_self *self, int64_t session, int32_t slot,
                            const char *secret)
{
    size_t bytes = strlen(secret);
    bool fits = bytes < sizeof(self->secret);
    tierce__lock_take(&self->lock);
    self->session = session;
    self->slot = slot;
    memcpy(self->secret, fits ? secret : "", fits ? bytes + 1 : 1);
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
