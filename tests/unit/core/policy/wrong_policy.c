/* SPDX-License-Identifier: Apache-2.0 */
/* A policy that is wrong in one way, by the macro WRONG; for test_plugin_policy.c. */
#include <tierce/plugin_policy.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NOTHING, SYMBOL, TABLE, VERSION, SIZE, CAPS, FUNCTION, NAME, KNOWN_NAME, CREATE, VICTIMS };

static int created;

static int create(void **out, const struct tierce_plugin_policy_opts *opts, char *why,
                  size_t why_room)
{
    *out = &created;
    (void)opts;
    if (WRONG == CREATE) {
        memset(why, 'x', why_room); /* without an end */
        return -EINVAL;
    }
    return 0;
}

static void destroy(void *policy)
{
    (void)policy;
}

static void insert(void *policy, uint32_t slot, const struct tierce_plugin_policy_entry *entry)
{
    (void)policy;
    (void)slot;
    (void)entry;
}

static void touch(void *policy, uint32_t slot, uint64_t now)
{
    (void)policy;
    (void)slot;
    (void)now;
}

static void set_flag(void *policy, uint32_t slot, int flag)
{
    (void)policy;
    (void)slot;
    (void)flag;
}

/* A slot that does not exist, a slot that may be free or pinned, and none. */
static uint32_t victim(void *policy, uint64_t now)
{
    static const uint32_t answers[] = {1000000, 0, TIERCE_PLUGIN_NO_SLOT};
    (void)policy;
    (void)now;
    return answers[created++ % 3];
}

static const struct tierce_plugin_policy policy = {
    .version = TIERCE_PLUGIN_POLICY_VERSION + (WRONG == VERSION),
    .size = sizeof(policy) - (WRONG == SIZE),
    .name = WRONG == NAME         ? "Not a name"
            : WRONG == KNOWN_NAME ? "lru"
                                  : "wrong",
    .caps = WRONG == CAPS ? 64u : 0,
    .create = create,
    .destroy = destroy,
    .insert = insert,
    .touch = touch,
    .set_evictable = set_flag,
    .remove = set_flag,
    .victim = WRONG == FUNCTION ? NULL : victim,
    .expired = victim,
};

#if WRONG_HAS_SYMBOL
const struct tierce_plugin_policy *tierce_plugin_policy(void)
{
    return WRONG == TABLE ? NULL : &policy;
}
#else
const struct tierce_plugin_policy *tierce_other(void);
const struct tierce_plugin_policy *tierce_other(void)
{
    return &policy;
}
#endif
