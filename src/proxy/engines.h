/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PROXY_ENGINES_H
#define TIERCE_PROXY_ENGINES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The engines of one role: their addresses, load and health. The list does not change while the
 * proxy runs. Thread: any; the fields of health checks belong to their loop.
 */

#define TIERCE__ENGINES_MAX    64u
#define TIERCE__ENGINE_URL_MAX 256u
#define TIERCE__ENGINE_ID_MAX  95u /* bytes of a name at the router index */
#define TIERCE__TENANT_MAX     63u /* bytes of a tenant's name, as in files of tokens */

struct tierce__engine {
    const char *url;            /* "http://10.0.0.7:8000", without a slash at the end */
    const char *name;           /* the URL without a name and a password, for logs and metrics */
    const char *id;             /* at the router index, or "" */
    const char *tenant;         /* whose requests it gets; "": those without a tenant */
    uint32_t index;             /* in its list */
    _Atomic uint32_t in_flight; /* requests; relaxed */
    atomic_bool is_down;        /* relaxed: gets no requests */
    atomic_bool was_up;         /* relaxed: a check has succeeded */
    _Atomic uint64_t requests, failures;
    _Atomic uint64_t used;  /* relaxed: when it was chosen last */
    uint32_t failed_checks; /* in a row; of the loop that checks */
};

struct tierce__engines {
    struct tierce__engine *items;
    uint32_t count;
    char *text;            /* behind the URLs */
    _Atomic uint64_t uses; /* relaxed: of all engines; `used` is one of these numbers */
};

/* Whether a text is the http:// or https:// URL of a server without query. Errors, `why` in words:
 * TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__engine_url_check(const char *url, char why[256]);

/* Reads a list of URLs separated by commas or white space. With `needs_ids` each has a name after
 * '#'; ";tenant=NAME" may follow. Errors, `why` in words: TIERCE_E_CONFIG, -ENOMEM. */
TIERCE_MUSTUSE int tierce__engines_init(struct tierce__engines *engines, const char *urls,
                                        bool needs_ids, char why[256]);
/* Accepts a zeroed one. */
void tierce__engines_fini(struct tierce__engines *engines);

/* How many are not down; and whether a check of one has succeeded. */
uint32_t tierce__engines_up(const struct tierce__engines *engines);
bool tierce__engines_ready(const struct tierce__engines *engines);

/* Counts a request to an engine, until tierce__engine_release. */
void tierce__engine_use(struct tierce__engines *engines, struct tierce__engine *engine);
void tierce__engine_release(struct tierce__engine *engine);
/* The same for a request that the engine gets later: it counts as load, and not as a request. */
void tierce__engine_expect(struct tierce__engines *engines, struct tierce__engine *engine);

/* Reports the result of a check, by the loop that checks. Logs changes. */
void tierce__engine_checked(struct tierce__engine *engine, bool is_good, uint32_t failures_max,
                            const char *why);

/* Reports that a connection failed: the engine is down until a check succeeds. */
void tierce__engine_unreachable(struct tierce__engine *engine, const char *why);

#endif
