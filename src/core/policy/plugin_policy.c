/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin:///path/of/file.so?name=value: a policy in a shared object, which sees the public
 * <tierce/plugin_policy.h> and nothing else. Its victims are checked, so a wrong policy costs hits
 * and nothing else.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/log/log.h"
#include "base/plugin_load.h"
#include "base/threads/lock.h"
#include "core/policy/policy_private.h"
#include <tierce/plugin_policy.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PLUGINS_MAX 16u /* different URLs in a process */
#define CAPS_ALL    TIERCE_PLUGIN_COUNTS_USES

_Static_assert(TIERCE_PLUGIN_NO_SLOT == TIERCE__NO_SLOT, "both have the same value");
_Static_assert(TIERCE__POLICY_WHY_BYTES == TIERCE__URL_WHY_BYTES, "one `why` serves both");

/* A URL that was opened. It stays until the process ends, because statistics and answers point to
 * its name. */
struct policy_plugin {
    struct tierce__policy_ops ops;
    struct tierce_plugin_policy table;
    char name[TIERCE_PLUGIN_POLICY_NAME_MAX + 1];
    char url[TIERCE__URL_BYTES_MAX + 1];
};

static struct tierce__lock plugins_lock; /* POLICY_PLUGINS: the two below, and loading */
static struct policy_plugin plugins[PLUGINS_MAX];
static size_t plugin_count;
static pthread_once_t plugins_once = PTHREAD_ONCE_INIT;

static void init_plugins(void)
{
    tierce__lock_init(&plugins_lock, TIERCE__LOCK_POLICY_PLUGINS);
}

struct plugged {
    struct tierce__policy base;
    const struct tierce_plugin_policy *table;
    void *own;
    uint32_t slot_count, evictable_count;
    uint32_t victim; /* the present one, if it is known; NO_SLOT: not known */
    uint32_t hand;   /* of the search after a wrong answer */
    bool is_reported;
    uint8_t state[]; /* [slot_count] */
};
enum { FREE = 0, PINNED, EVICTABLE };

static struct plugged *plugged_of(struct tierce__policy *policy)
{
    return (struct plugged *)policy;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct tierce_plugin_policy_entry entry_of(const struct tierce__policy_entry *entry)
{
    return (struct tierce_plugin_policy_entry){
        .key = entry->key, .bytes = entry->bytes, .now = entry->now, .parent = entry->parent};
}

static void set_state(struct plugged *p, uint32_t slot, uint8_t state)
{
    TIERCE_ASSERT(slot < p->slot_count);
    p->evictable_count -= p->state[slot] == EVICTABLE;
    p->evictable_count += state == EVICTABLE;
    p->state[slot] = state;
    p->victim = TIERCE__NO_SLOT;
}

static void plugged_expect(struct tierce__policy *policy, const struct tierce__policy_entry *entry)
{
    struct plugged *p = plugged_of(policy);
    struct tierce_plugin_policy_entry public = entry_of(entry);
    p->victim = TIERCE__NO_SLOT;
    p->table->expect(p->own, &public);
}

static void plugged_insert(struct tierce__policy *policy, uint32_t slot,
                           const struct tierce__policy_entry *entry)
{
    struct plugged *p = plugged_of(policy);
    struct tierce_plugin_policy_entry public = entry_of(entry);
    TIERCE_DASSERT(slot < p->slot_count && p->state[slot] == FREE);
    set_state(p, slot, EVICTABLE);
    p->table->insert(p->own, slot, &public);
}

static void plugged_touch(struct tierce__policy *policy, uint32_t slot, uint64_t now)
{
    struct plugged *p = plugged_of(policy);
    TIERCE_DASSERT(slot < p->slot_count && p->state[slot] != FREE);
    p->victim = TIERCE__NO_SLOT;
    p->table->touch(p->own, slot, now);
}

static void plugged_set_evictable(struct tierce__policy *policy, uint32_t slot, bool evictable)
{
    struct plugged *p = plugged_of(policy);
    TIERCE_DASSERT(slot < p->slot_count && p->state[slot] != FREE);
    if ((p->state[slot] == EVICTABLE) == evictable)
        return;
    set_state(p, slot, evictable ? EVICTABLE : PINNED);
    p->table->set_evictable(p->own, slot, evictable);
}

static void plugged_remove(struct tierce__policy *policy, uint32_t slot, bool evicted)
{
    struct plugged *p = plugged_of(policy);
    TIERCE_DASSERT(slot < p->slot_count && p->state[slot] != FREE);
    set_state(p, slot, FREE);
    p->table->remove(p->own, slot, evicted);
}

static bool is_evictable(const struct plugged *p, uint32_t slot)
{
    return slot < p->slot_count && p->state[slot] == EVICTABLE;
}

static void report_wrong(struct plugged *p, const char *function, uint32_t slot)
{
    if (p->is_reported)
        return;
    p->is_reported = true;
    tierce__log(TIERCE_LOG_ERROR, "policy_plugin_wrong",
                "policy=%s function=%s slot=%u effect=\"another entry is chosen; hit rates may be "
                "low\" reason=\"the plug-in returned a slot that is not evictable\"",
                p->base.ops->name, function, (unsigned)slot);
}

static bool plugged_victim(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct plugged *p = plugged_of(policy);
    if (p->evictable_count == 0)
        return false;
    if (p->victim == TIERCE__NO_SLOT)
        p->victim = p->table->victim(p->own, now);
    if (!is_evictable(p, p->victim)) {
        report_wrong(p, "victim", p->victim);
        while (p->state[p->hand] != EVICTABLE) /* ends, because there is one */
            p->hand = (p->hand + 1) % p->slot_count;
        p->victim = p->hand;
    }
    *slot = p->victim;
    return true;
}

static bool plugged_expired(struct tierce__policy *policy, uint64_t now, uint32_t *slot)
{
    struct plugged *p = plugged_of(policy);
    p->victim = TIERCE__NO_SLOT;
    uint32_t expired = p->table->expired(p->own, now);
    if (expired == TIERCE_PLUGIN_NO_SLOT)
        return false;
    if (!is_evictable(p, expired)) {
        report_wrong(p, "expired", expired);
        return false;
    }
    *slot = expired;
    return true;
}

/* ---- creating -------------------------------------------------------------------------------- */

static int create_own(void **own, const struct policy_plugin *plugin,
                      const struct tierce__policy_opts *opts, char why[TIERCE__POLICY_WHY_BYTES])
{
    struct tierce_plugin_param params[TIERCE__URL_PARAMS_MAX];
    struct tierce_plugin_policy_opts public = {.size = sizeof(public),
                                               .params = params,
                                               .slot_count = opts->slot_count,
                                               .capacity = opts->capacity,
                                               .seed = opts->seed,
                                               .ttl = opts->ttl};
    struct tierce__url url = {0};
    char words[128] = "";
    int rc = tierce__url_parse(&url, plugin->url, why);
    if (rc == 0)
        rc = tierce__plugin_params(params, &public.param_count, &url, NULL, why);
    if (rc == 0) {
        int created = plugin->table.create(own, &public, words, sizeof(words));
        words[sizeof(words) - 1] = '\0';
        if (created != 0) {
            rc = tierce__plugin_refuse(why, url.path,
                                       words[0] != '\0' ? words : tierce_strerror(created));
            rc = created == -ENOMEM ? -ENOMEM : rc;
        }
    }
    tierce__url_clear(&url);
    return rc;
}

static int plugged_create(struct tierce__policy **out, const struct tierce__policy_opts *opts)
{
    char why[TIERCE__POLICY_WHY_BYTES];
    if (!tierce__policy_opts_good(opts) || opts->ops == NULL)
        return TIERCE_E_ARGUMENT;
    const struct policy_plugin *plugin = (const struct policy_plugin *)opts->ops;
    struct plugged *p = tierce__calloc(1, sizeof(*p) + opts->slot_count);
    if (p == NULL)
        return -ENOMEM;
    int rc = create_own(&p->own, plugin, opts, why);
    if (rc < 0) {
        tierce__log(TIERCE_LOG_ERROR, "policy_plugin_refused", "policy=%s reason=\"%s\"",
                    plugin->name, why);
        tierce__free(p);
        return rc;
    }
    p->base.ops = opts->ops;
    p->table = &plugin->table;
    p->slot_count = opts->slot_count;
    p->victim = TIERCE__NO_SLOT;
    *out = &p->base;
    return 0;
}

static void plugged_destroy(struct tierce__policy *policy)
{
    struct plugged *p = plugged_of(policy);
    if (p == NULL)
        return;
    p->table->destroy(p->own);
    tierce__free(p);
}

/* ---- loading --------------------------------------------------------------------------------- */

static const char *find_missing(const struct tierce_plugin_policy *table)
{
    const struct {
        const char *name;
        bool is_there;
    } functions[] = {
        {"create", table->create != NULL}, {"destroy", table->destroy != NULL},
        {"insert", table->insert != NULL}, {"touch", table->touch != NULL},
        {"remove", table->remove != NULL}, {"set_evictable", table->set_evictable != NULL},
        {"victim", table->victim != NULL},
    };
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        if (!functions[i].is_there)
            return functions[i].name;
    }
    return NULL;
}

static int check_table(const struct tierce_plugin_policy *table, const char *path,
                       char why[TIERCE__POLICY_WHY_BYTES])
{
    char what[128] = "";
    const char *missing = find_missing(table), *name = table->name != NULL ? table->name : "";
    size_t length = strnlen(name, TIERCE_PLUGIN_POLICY_NAME_MAX + 1);
    if ((table->caps & ~CAPS_ALL) != 0)
        snprintf(what, sizeof(what), "has unknown caps: %#x", table->caps & ~CAPS_ALL);
    else if (missing != NULL)
        snprintf(what, sizeof(what), "has no function %s", missing);
    else if (length == 0 || length > TIERCE_PLUGIN_POLICY_NAME_MAX ||
             strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != length)
        snprintf(what, sizeof(what),
                 "its name is not 1 to %u lower-case letters, digits and underscores",
                 TIERCE_PLUGIN_POLICY_NAME_MAX);
    else if (tierce__policy_find(name) != NULL)
        snprintf(what, sizeof(what), "its name, %s, is that of a policy of Tierce", name);
    return what[0] != '\0' ? tierce__plugin_refuse(why, path, what) : 0;
}

static void fill_ops(struct policy_plugin *plugin)
{
    const struct tierce_plugin_policy *table = &plugin->table;
    snprintf(plugin->name, sizeof(plugin->name), "%s", table->name);
    plugin->ops = (struct tierce__policy_ops){
        .name = plugin->name,
        .summary = "a policy in a shared object",
        .counts_uses = (table->caps & TIERCE_PLUGIN_COUNTS_USES) != 0,
        .create = plugged_create,
        .destroy = plugged_destroy,
        .expect = table->expect != NULL ? plugged_expect : NULL,
        .insert = plugged_insert,
        .touch = plugged_touch,
        .set_evictable = plugged_set_evictable,
        .remove = plugged_remove,
        .victim = plugged_victim,
        .expired = table->expired != NULL ? plugged_expired : NULL,
    };
}

/* The parameters are checked by a policy that is not used. */
static int try_create(const struct policy_plugin *plugin, char why[TIERCE__POLICY_WHY_BYTES])
{
    void *own = NULL;
    int rc =
        create_own(&own, plugin,
                   &(struct tierce__policy_opts){
                       .size = sizeof(struct tierce__policy_opts), .slot_count = 1, .capacity = 1},
                   why);
    if (rc == 0)
        plugin->table.destroy(own);
    return rc;
}

static int load_plugin(struct policy_plugin *plugin, const char *text,
                       char why[TIERCE__POLICY_WHY_BYTES])
{
    static const struct tierce__plugin_kind kind = {.symbol = "tierce_plugin_policy",
                                                    .header = "plugin_policy.h",
                                                    .version = TIERCE_PLUGIN_POLICY_VERSION,
                                                    .size = sizeof(struct tierce_plugin_policy)};
    struct tierce__url url = {0};
    const void *table;
    void *object = NULL;
    int rc = tierce__url_parse(&url, text, why);
    if (rc == 0)
        rc = tierce__plugin_load(&object, &table, &url, &kind, why);
    if (rc == 0) {
        plugin->table = *(const struct tierce_plugin_policy *)table;
        snprintf(plugin->url, sizeof(plugin->url), "%s", text);
        rc = check_table(&plugin->table, url.path, why);
    }
    if (rc == 0) {
        fill_ops(plugin);
        rc = try_create(plugin, why);
    }
    if (rc < 0 && object != NULL)
        dlclose(object);
    tierce__url_clear(&url);
    return rc;
}

static int open_plugin(const struct tierce__policy_ops **out, const char *text,
                       char why[TIERCE__POLICY_WHY_BYTES])
{
    int rc = 0;
    (void)pthread_once(&plugins_once, init_plugins);
    tierce__lock_take(&plugins_lock);
    size_t i = 0;
    while (i < plugin_count && strcmp(plugins[i].url, text) != 0)
        i++;
    if (i == PLUGINS_MAX) {
        snprintf(why, TIERCE__POLICY_WHY_BYTES,
                 "a process can load at most %u different plug-ins of policies", PLUGINS_MAX);
        rc = TIERCE_E_CONFIG;
    } else if (i == plugin_count) {
        rc = load_plugin(&plugins[i], text, why);
        plugin_count += rc == 0;
    }
    tierce__lock_drop(&plugins_lock);
    if (rc == 0)
        *out = &plugins[i].ops;
    return rc;
}

int tierce__policy_open(const struct tierce__policy_ops **out, const char *name,
                        char why[TIERCE__POLICY_WHY_BYTES])
{
    if (strncmp(name, TIERCE__POLICY_PLUGIN, strlen(TIERCE__POLICY_PLUGIN)) == 0)
        return open_plugin(out, name, why);
    const struct tierce__policy_ops *found = tierce__policy_find(name);
    if (found == NULL) {
        snprintf(why, TIERCE__POLICY_WHY_BYTES, "there is no policy \"%.100s\"", name);
        return TIERCE_E_CONFIG;
    }
    *out = found;
    return 0;
}
