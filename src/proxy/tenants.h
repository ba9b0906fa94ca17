/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_TENANTS_H
#define TIERCE_PROXY_TENANTS_H

#include "proxy/engines.h"

/*
 * The tenants of a proxy: which engines belong to each. A client has the tenant of its token
 * (auth.token_file), and its requests go only to engines of this tenant; without a tenant, only to
 * engines without one. The list does not change while the proxy runs. Thread: any.
 */

struct tierce__tenant {
    const char *name;                  /* "": none; [borrow] the engines */
    uint64_t decode, prefill;          /* its engines, as bits by index */
    _Atomic uint64_t requests, errors; /* relaxed, and the next one */
    _Atomic uint32_t in_progress;
};

struct tierce__tenants {
    struct tierce__tenant *items;
    uint32_t count;
};

/* The tenants of the engines. [borrow until fini] both lists. Errors, `why` in words:
 * TIERCE_E_CONFIG (a tenant has engines that compute prompts only), -ENOMEM. */
TIERCE_MUSTUSE int tierce__tenants_init(struct tierce__tenants *tenants,
                                        const struct tierce__engines *decode,
                                        const struct tierce__engines *prefill, char why[256]);
/* Accepts a zeroed one. */
void tierce__tenants_fini(struct tierce__tenants *tenants);

/* NULL: no engine belongs to it. "default" is "". */
struct tierce__tenant *tierce__tenants_find(const struct tierce__tenants *tenants,
                                            const char *name);

#endif
