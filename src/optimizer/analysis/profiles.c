/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/analysis/profiles.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/text/nearest.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *tierce__mark_text(enum tierce__mark mark)
{
    TIERCE_ASSERT(mark < TIERCE__MARKS);
    static const char *const texts[TIERCE__MARKS] = {
        [TIERCE__MARK_PLACEHOLDER] = "placeholder",
        [TIERCE__MARK_CONFIG] = "public config",
        [TIERCE__MARK_DATA_SHEET] = "data sheet",
        [TIERCE__MARK_REPORTED] = "reported",
        [TIERCE__MARK_GIVEN] = "given",
        [TIERCE__MARK_MEASURED] = "measured",
    };
    return texts[mark];
}

/* ---- known names ----------------------------------------------------------------------------- */

const struct tierce__profile_key tierce__model_keys[] = {
    {"bytes", offsetof(struct tierce__model_profile, bytes), "a token", 1, 1e12, true, 0},
    {"params", offsetof(struct tierce__model_profile, params), "", 1, 1e18, true, 0},
    {"layers", offsetof(struct tierce__model_profile, layers), "", 0, 1e6, false, 0},
    {"heads", offsetof(struct tierce__model_profile, heads), "", 0, 1e6, false, 0},
    {"qk_dim", offsetof(struct tierce__model_profile, qk_dim), "", 0, 1e6, false, 128},
    {"v_dim", offsetof(struct tierce__model_profile, v_dim), "", 0, 1e6, false, 128},
    {"weight_bytes", offsetof(struct tierce__model_profile, weight_bytes), "", 0.125, 16, false, 2},
    {0},
};

const struct tierce__profile_key tierce__gpu_keys[] = {
    {"flops", offsetof(struct tierce__gpu, flops), "FLOP/s", 1, 1e24, true, 0},
    {"flops_fp8", offsetof(struct tierce__gpu, flops_fp8), "FLOP/s", 0, 1e24, false, 0},
    {"bandwidth", offsetof(struct tierce__gpu, bandwidth), "bytes/s", 0, 1e24, false, 0},
    {"memory", offsetof(struct tierce__gpu, memory), "bytes", 0, 1e18, false, 0},
    {"price", offsetof(struct tierce__gpu, price), "$/h", 0, 1e9, true, 0},
    {"mfu", offsetof(struct tierce__gpu, mfu), "of the peak", 1e-6, 1, false, 0.45},
    {"count", offsetof(struct tierce__gpu, count), "a request", 1, 1e6, false, 1},
    {0},
};

const struct tierce__profile_key tierce__storage_keys[] = {
    {"price", offsetof(struct tierce__storage_profile, price), "$/GB", 0, 1e9, true, 0},
    {"years", offsetof(struct tierce__storage_profile, years), "", 1e-3, 1e3, false, 4},
    {"bandwidth", offsetof(struct tierce__storage_profile, bandwidth), "bytes/s", 1, 1e24, true, 0},
    {"latency", offsetof(struct tierce__storage_profile, latency), "s", 0, 1e6, false, 0},
    {"writes", offsetof(struct tierce__storage_profile, writes), "times", 0, 1e12, false, 0},
    {0},
};

#define FIGURE(amount, kind)                                                                       \
    {                                                                                              \
        .value = (amount), .mark = TIERCE__MARK_##kind                                             \
    }

static const struct tierce__model_profile models[] = {
#define TIERCE_MODEL(id, kv, p, l, h, qk, v, weight, origin)                                       \
    {.name = id,                                                                                   \
     .source = origin,                                                                             \
     .bytes = FIGURE(kv, CONFIG),                                                                  \
     .params = FIGURE(p, CONFIG),                                                                  \
     .layers = FIGURE(l, CONFIG),                                                                  \
     .heads = FIGURE(h, CONFIG),                                                                   \
     .qk_dim = FIGURE(qk, CONFIG),                                                                 \
     .v_dim = FIGURE(v, CONFIG),                                                                   \
     .weight_bytes = FIGURE(weight, CONFIG)},
#include "optimizer/analysis/profiles.def"
#undef TIERCE_MODEL
};

static const struct tierce__gpu gpus[] = {
#define TIERCE_GPU(id, bf16, fp8, speed, size, kind, dollars)                                      \
    {.name = id,                                                                                   \
     .flops = FIGURE(bf16, kind),                                                                  \
     .flops_fp8 = FIGURE(fp8, kind),                                                               \
     .bandwidth = FIGURE(speed, kind),                                                             \
     .memory = FIGURE(size, kind),                                                                 \
     .price = FIGURE(dollars, PLACEHOLDER),                                                        \
     .mfu = FIGURE(0.45, PLACEHOLDER),                                                             \
     .count = FIGURE(1, PLACEHOLDER)},
#include "optimizer/analysis/profiles.def"
#undef TIERCE_GPU
};

static const struct tierce__storage_profile storages[] = {
#define TIERCE_STORAGE(id, dollars, life, speed, wait, cycles)                                     \
    {.name = id,                                                                                   \
     .price = FIGURE(dollars, PLACEHOLDER),                                                        \
     .years = FIGURE(life, PLACEHOLDER),                                                           \
     .bandwidth = FIGURE(speed, PLACEHOLDER),                                                      \
     .latency = FIGURE(wait, PLACEHOLDER),                                                         \
     .writes = FIGURE(cycles, PLACEHOLDER)},
#include "optimizer/analysis/profiles.def"
#undef TIERCE_STORAGE
};

void tierce__profiles_init(struct tierce__profiles *out)
{
    *out = (struct tierce__profiles){.counts = {sizeof(models) / sizeof(models[0]),
                                                sizeof(gpus) / sizeof(gpus[0]),
                                                sizeof(storages) / sizeof(storages[0])}};
    memcpy(out->models, models, sizeof(models));
    memcpy(out->gpus, gpus, sizeof(gpus));
    memcpy(out->storages, storages, sizeof(storages));
}

/* The common part of the three: they begin with their name. */
struct profile_kind {
    const char *what, *needed;
    const struct tierce__profile_key *keys;
    size_t offset; /* in struct tierce__profiles */
    size_t size;
};

static const struct profile_kind kinds[] = {
    [TIERCE__PROFILE_MODEL] = {"model", "bytes and params", tierce__model_keys,
                               offsetof(struct tierce__profiles, models),
                               sizeof(struct tierce__model_profile)},
    [TIERCE__PROFILE_GPU] = {"GPU", "flops and price", tierce__gpu_keys,
                             offsetof(struct tierce__profiles, gpus), sizeof(struct tierce__gpu)},
    [TIERCE__PROFILE_STORAGE] = {"tier", "price and bandwidth", tierce__storage_keys,
                                 offsetof(struct tierce__profiles, storages),
                                 sizeof(struct tierce__storage_profile)},
};

/* A profile, which begins with its name. */
static const char *profile_at(const struct tierce__profiles *profiles,
                              const struct profile_kind *kind, size_t index)
{
    TIERCE_ASSERT(index < TIERCE__PROFILES_MAX);
    return (const char *)profiles + kind->offset + index * kind->size;
}

static bool find(const struct tierce__profiles *profiles, const struct profile_kind *kind,
                 const char *name, size_t *index)
{
    for (size_t i = 0; i < profiles->counts[kind - kinds]; i++) {
        if (strcasecmp(profile_at(profiles, kind, i), name) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* ---- figures --------------------------------------------------------------------------------- */

static struct tierce__figure *figure_of(void *profile, const struct tierce__profile_key *key)
{
    return (struct tierce__figure *)(void *)((char *)profile + key->offset);
}

/* "8e9", "0.45", or a size with a unit. */
static bool parse_number(double *out, const char *text)
{
    char *end;
    uint64_t bytes;
    double number = strtod(text, &end);
    if (end != text && *end == '\0') {
        *out = number;
        return true;
    }
    if (!tierce__parse_size(&bytes, text))
        return false;
    *out = (double)bytes;
    return true;
}

static int no_such_key(const struct profile_kind *kind, const char *key,
                       char why[TIERCE__PROFILE_WHY_BYTES])
{
    const char *nearest = kind->keys->name;
    for (const struct tierce__profile_key *k = kind->keys; k->name != NULL; k++) {
        if (tierce__edit_distance(k->name, key) < tierce__edit_distance(nearest, key))
            nearest = k->name;
    }
    char shown[80];
    tierce__text_for_message(shown, sizeof(shown), key);
    snprintf(why, TIERCE__PROFILE_WHY_BYTES, "a %s has no \"%s\" (\"%s\"?)", kind->what, shown,
             nearest);
    return TIERCE_E_ARGUMENT;
}

static int set_figure(void *profile, const struct profile_kind *kind, const char *key,
                      const char *value, enum tierce__mark mark,
                      char why[TIERCE__PROFILE_WHY_BYTES])
{
    const struct tierce__profile_key *k = kind->keys;
    double number;
    while (k->name != NULL && strcmp(k->name, key) != 0)
        k++;
    if (k->name == NULL)
        return no_such_key(kind, key, why);
    if (!parse_number(&number, value) || !(number >= k->least && number <= k->most)) {
        char shown[80];
        tierce__text_for_message(shown, sizeof(shown), value);
        snprintf(why, TIERCE__PROFILE_WHY_BYTES,
                 "%s of a %s requires a number from %g to %g; not \"%s\"", key, kind->what,
                 k->least, k->most, shown);
        return TIERCE_E_ARGUMENT;
    }
    *figure_of(profile, k) = (struct tierce__figure){.value = number, .mark = mark};
    return 0;
}

/* A profile without known values; required values are negative. */
static void make_empty(void *profile, const struct profile_kind *kind, const char *name)
{
    memset(profile, 0, kind->size);
    snprintf(profile, TIERCE__PROFILE_NAME_BYTES, "%s", name);
    for (const struct tierce__profile_key *k = kind->keys; k->name != NULL; k++)
        figure_of(profile, k)->value = k->is_needed ? -1 : k->usual;
}

int tierce__profiles_set(struct tierce__profiles *profiles, enum tierce__profile_kind kind,
                         const char *name, const char *key, const char *value,
                         enum tierce__mark mark, char why[TIERCE__PROFILE_WHY_BYTES])
{
    const struct profile_kind *k = &kinds[kind];
    size_t index = profiles->counts[kind];
    bool is_new = !find(profiles, k, name, &index);
    if (is_new && (index == TIERCE__PROFILES_MAX || strlen(name) >= TIERCE__PROFILE_NAME_BYTES ||
                   strpbrk(name, ",=") != NULL || !tierce__text_is_clean(name, strlen(name)))) {
        snprintf(why, TIERCE__PROFILE_WHY_BYTES,
                 "a %s's name has up to %u letters without \",\" and \"=\", and there are up to %u",
                 k->what, TIERCE__PROFILE_NAME_BYTES - 1, TIERCE__PROFILES_MAX);
        return TIERCE_E_ARGUMENT;
    }
    char *profile = (char *)profiles + k->offset + index * k->size;
    if (is_new)
        make_empty(profile, k, name);
    int rc = set_figure(profile, k, key, value, mark, why);
    if (rc == 0 && is_new)
        profiles->counts[kind]++;
    TIERCE_ASSERT(profiles->counts[kind] <= TIERCE__PROFILES_MAX);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int no_such_name(const struct tierce__profiles *profiles, const struct profile_kind *kind,
                        const char *name, char why[TIERCE__PROFILE_WHY_BYTES])
{
    char list[TIERCE__PROFILE_WHY_BYTES / 2] = "", shown[80];
    const char *nearest = profile_at(profiles, kind, 0);
    for (size_t i = 0; i < profiles->counts[kind - kinds]; i++) {
        const char *known = profile_at(profiles, kind, i);
        size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", known);
        if (tierce__edit_distance(known, name) < tierce__edit_distance(nearest, name))
            nearest = known;
    }
    tierce__text_for_message(shown, sizeof(shown), name);
    snprintf(why, TIERCE__PROFILE_WHY_BYTES,
             "there is no %s \"%s\" (\"%s\"?); there are %s, or KEY=VALUE,... with %s", kind->what,
             shown, nearest, list, kind->needed);
    return TIERCE_E_ARGUMENT;
}

static int check_all(void *profile, const struct profile_kind *kind,
                     char why[TIERCE__PROFILE_WHY_BYTES])
{
    for (const struct tierce__profile_key *k = kind->keys; k->name != NULL; k++) {
        if (figure_of(profile, k)->value < 0) {
            snprintf(why, TIERCE__PROFILE_WHY_BYTES, "the %s \"%s\" requires %s=...", kind->what,
                     (const char *)profile, k->name);
            return TIERCE_E_ARGUMENT;
        }
    }
    return 0;
}

/* Parses one part of the text: KEY=VALUE, or a name, which must be first. */
static int read_part(void *profile, const struct tierce__profiles *profiles,
                     const struct profile_kind *kind, char *part, bool is_first,
                     char why[TIERCE__PROFILE_WHY_BYTES])
{
    size_t index;
    char *equals = strchr(part, '=');
    if (equals != NULL) {
        *equals = '\0';
        return set_figure(profile, kind, part, equals + 1, TIERCE__MARK_GIVEN, why);
    }
    if (!is_first || !find(profiles, kind, part, &index))
        return no_such_name(profiles, kind, part, why);
    memcpy(profile, profile_at(profiles, kind, index), kind->size);
    return 0;
}

/* Room for each of the three. */
union profile {
    struct tierce__model_profile model;
    struct tierce__gpu gpu;
    struct tierce__storage_profile storage;
};

static int read_profile(void *out, const struct tierce__profiles *profiles,
                        const struct profile_kind *kind, const char *text,
                        char why[TIERCE__PROFILE_WHY_BYTES])
{
    union profile profile;
    char part[128];
    int rc = 0;
    make_empty(&profile, kind, "given");
    for (const char *p = text; rc == 0 && p != NULL;) {
        size_t length = strcspn(p, ",");
        snprintf(part, sizeof(part), "%.*s", (int)(length < sizeof(part) ? length : 0), p);
        rc = read_part(&profile, profiles, kind, part, p == text, why);
        p = p[length] == ',' ? p + length + 1 : NULL;
    }
    if (rc == 0)
        rc = check_all(&profile, kind, why);
    if (rc == 0)
        memcpy(out, &profile, kind->size);
    return rc;
}

int tierce__model_read(struct tierce__model_profile *out, const struct tierce__profiles *profiles,
                       const char *text, char why[TIERCE__PROFILE_WHY_BYTES])
{
    return read_profile(out, profiles, &kinds[TIERCE__PROFILE_MODEL], text, why);
}

int tierce__gpu_read(struct tierce__gpu *out, const struct tierce__profiles *profiles,
                     const char *text, char why[TIERCE__PROFILE_WHY_BYTES])
{
    return read_profile(out, profiles, &kinds[TIERCE__PROFILE_GPU], text, why);
}

int tierce__storage_read(struct tierce__storage_profile *out,
                         const struct tierce__profiles *profiles, const char *text,
                         char why[TIERCE__PROFILE_WHY_BYTES])
{
    return read_profile(out, profiles, &kinds[TIERCE__PROFILE_STORAGE], text, why);
}
