/* SPDX-License-Identifier: Apache-2.0 */
/* The frequencies of a model's RoPE, and which models are rejected. */
#include "core/blend/rope.h"

#include "base/assert.h"
#include "base/json/json_value.h"
#include "core/codec/codec.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TAU           6.283185307179586476925
#define FREQUENCY_MAX 1e6 /* radians a position; angles of 2^31 positions keep nine digits */

/* Parameters, all of them numbers; NaN where the model has none. */
enum parameter {
    THETA,
    PARTIAL,
    ROTATED,
    FACTOR,
    LOW,
    HIGH,
    ORIGINAL,
    FAST,
    SLOW,
    ALPHA,
    MIXED,
    PARAMETERS
};

struct parameters {
    double number[PARAMETERS];
    bool is_truncated;
    char variant[32];
};

#define BIT(parameter) (1u << (parameter))
#define COMMON         (BIT(THETA) | BIT(PARTIAL) | BIT(ROTATED))

/* Names as in configurations of models. `greater`: the value must be greater. */
static const struct {
    const char *name;
    double usual; /* if the model has none */
    double greater;
} names[PARAMETERS] = {
    [THETA] = {"rope_theta", 10000, 1},
    [PARTIAL] = {"partial_rotary_factor", 1, 0},
    [ROTATED] = {"rope_dim", NAN, 0},
    [FACTOR] = {"factor", NAN, 0},
    [LOW] = {"low_freq_factor", NAN, 0},
    [HIGH] = {"high_freq_factor", NAN, 0},
    [ORIGINAL] = {"original_max_position_embeddings", NAN, 0},
    [FAST] = {"beta_fast", 32, 0},
    [SLOW] = {"beta_slow", 1, 0},
    [ALPHA] = {"alpha", NAN, 0},
    [MIXED] = {"mixed_b", NAN, 0},
};

/* ---- variants: frequency i of `pairs` ---------------------------------------------------------
 */

static double plain(double theta, unsigned i, unsigned pairs)
{
    return pow(theta, -(double)i / pairs);
}

static double frequency_default(const struct parameters *p, unsigned i, unsigned pairs)
{
    return plain(p->number[THETA], i, pairs);
}

static double frequency_linear(const struct parameters *p, unsigned i, unsigned pairs)
{
    return plain(p->number[THETA], i, pairs) / p->number[FACTOR];
}

static double frequency_ntk(const struct parameters *p, unsigned i, unsigned pairs)
{
    double factor = p->number[FACTOR], b = p->number[MIXED];
    if (isnan(b))
        return plain(p->number[THETA] * factor, i, pairs) / pow(factor, 1.0 / pairs);
    return plain(p->number[THETA], i, pairs) / exp(log(factor) / pow(pairs, b) * pow(i + 1.0, b));
}

/* With one pair only, there is nothing to stretch. */
static double frequency_alpha(const struct parameters *p, unsigned i, unsigned pairs)
{
    double power = pairs > 1 ? pairs / (pairs - 1.0) : 0;
    return plain(p->number[THETA] * pow(p->number[ALPHA], power), i, pairs);
}

static double frequency_llama3(const struct parameters *p, unsigned i, unsigned pairs)
{
    double f = plain(p->number[THETA], i, pairs), slow = f / p->number[FACTOR];
    double turns = p->number[ORIGINAL] * f / TAU, low = p->number[LOW], high = p->number[HIGH];
    if (turns > high)
        return f;
    if (turns < low)
        return slow;
    double smooth = low != high ? (turns - low) / (high - low) : 0;
    return (1 - smooth) * slow + smooth * f;
}

/* The pair that turns so often within the original positions. */
static double yarn_pair(const struct parameters *p, double turns, unsigned pairs)
{
    return pairs * log(p->number[ORIGINAL] / (turns * TAU)) / log(p->number[THETA]);
}

static double frequency_yarn(const struct parameters *p, unsigned i, unsigned pairs)
{
    double f = plain(p->number[THETA], i, pairs);
    double low = yarn_pair(p, p->number[FAST], pairs), high = yarn_pair(p, p->number[SLOW], pairs);
    if (p->is_truncated) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, 2.0 * pairs - 1);
    high += low == high ? 0.001 : 0; /* as engines do */
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return f / p->number[FACTOR] * ramp + f * (1 - ramp);
}

struct variant {
    const char *name;
    double (*frequency)(const struct parameters *p, unsigned i, unsigned pairs);
    unsigned required, allowed; /* bits of parameters, besides COMMON */
    const char *reason;         /* of a variant that is rejected */
};

#define YARN BIT(FACTOR) | BIT(ORIGINAL)

static const struct variant variants[] = {
    {"default", frequency_default, 0, 0, NULL},
    {"linear", frequency_linear, BIT(FACTOR), 0, NULL},
    {"ntk", frequency_ntk, BIT(FACTOR), BIT(MIXED), NULL},
    {"yarn", frequency_yarn, YARN, BIT(FAST) | BIT(SLOW), NULL},
    {"deepseek_yarn", frequency_yarn, YARN, BIT(FAST) | BIT(SLOW), NULL},
    {"llama3", frequency_llama3, BIT(FACTOR) | BIT(LOW) | BIT(HIGH) | BIT(ORIGINAL), 0, NULL},
    {"dynamic", frequency_alpha, BIT(ALPHA), 0, NULL},
    {"longrope", NULL, 0, 0, "its frequencies depend on the length of the prompt"},
    {"su", NULL, 0, 0, "its frequencies depend on the length of the prompt"},
    {"mrope", NULL, 0, 0, "a position has three parts"},
    {"proportional", NULL, 0, 0, "its pairs lie across the two halves of a partial rotation"},
};

static const struct variant *find_variant(const char *name)
{
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        if (strcmp(variants[i].name, name) == 0)
            return &variants[i];
    }
    return NULL;
}

/* ---- reading ----------------------------------------------------------------------------------
 */

#define FAIL(rc, ...) (snprintf(why, TIERCE__ROPE_WHY_BYTES, __VA_ARGS__), (rc))

/* Factors of the length of keys, and texts that were read before. */
static bool is_without_effect(struct tierce__text name)
{
    static const char *const without[] = {"rope_type", "type", "mscale", "mscale_all_dim",
                                          "attention_factor"};
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
        if (strlen(without[i]) == name.length && memcmp(without[i], name.at, name.length) == 0)
            return true;
    }
    return false;
}

static bool is_name(struct tierce__text name, const char *other)
{
    return strlen(other) == name.length && memcmp(other, name.at, name.length) == 0;
}

static int read_number(struct parameters *p, char *why, unsigned parameter,
                       struct tierce__text value)
{
    double number = tierce__json_get_number(value, "");
    if (!isfinite(number) || number <= names[parameter].greater)
        return FAIL(TIERCE_E_FORMAT, "%s is %.*s; it must be a number above %g",
                    names[parameter].name, (int)(value.length < 40 ? value.length : 40), value.at,
                    names[parameter].greater);
    p->number[parameter] = number;
    return 0;
}

static int read_member(struct parameters *p, char *why, const struct variant *variant,
                       struct tierce__text name, struct tierce__text value)
{
    char kind = tierce__json_value_kind(value);
    if (kind == 'n' || is_without_effect(name))
        return 0;
    if (is_name(name, "truncate") && variant->frequency == frequency_yarn) {
        p->is_truncated = kind == 't';
        return kind == 't' || kind == 'f' ? 0
                                          : FAIL(TIERCE_E_FORMAT, "truncate must be true or false");
    }
    for (unsigned i = 0; i < PARAMETERS; i++) {
        bool is_allowed = (BIT(i) & (COMMON | variant->required | variant->allowed)) != 0;
        if (is_allowed && is_name(name, names[i].name))
            return read_number(p, why, i, value);
    }
    return FAIL(TIERCE_E_UNSUPPORTED, "the parameter %.*s is not supported with rope_type \"%s\"",
                (int)(name.length < 60 ? name.length : 60), name.at, variant->name);
}

/* The text of rope_type, or of its older name. */
static int read_variant(struct parameters *p, char *why, const struct variant **out,
                        struct tierce__text object)
{
    char older[sizeof(p->variant)];
    bool has_type = tierce__json_get_text(p->variant, sizeof(p->variant), object, "rope_type");
    bool has_older = tierce__json_get_text(older, sizeof(older), object, "type");
    if ((!has_type && tierce__json_get(object, "rope_type").length > 0) ||
        (!has_older && tierce__json_get(object, "type").length > 0))
        return FAIL(TIERCE_E_FORMAT, "rope_type must be a text of at most 31 bytes");
    if (has_type && has_older && strcmp(p->variant, older) != 0)
        return FAIL(TIERCE_E_FORMAT, "rope_type is \"%s\", and type is \"%s\"; they must be equal",
                    p->variant, older);
    if (!has_type)
        memcpy(p->variant, has_older ? older : "default", has_older ? sizeof(older) : 8);
    *out = find_variant(p->variant);
    if (*out == NULL)
        return FAIL(TIERCE_E_UNSUPPORTED,
                    "rope_type is \"%s\"; supported are default, linear, ntk, yarn, deepseek_yarn, "
                    "llama3, and dynamic with alpha",
                    p->variant);
    if ((*out)->reason != NULL)
        return FAIL(TIERCE_E_UNSUPPORTED, "rope_type \"%s\" cannot be rotated: %s", p->variant,
                    (*out)->reason);
    return 0;
}

static int check_required(const struct parameters *p, char *why, const struct variant *variant)
{
    if (variant->frequency == frequency_alpha && isnan(p->number[ALPHA]))
        return FAIL(TIERCE_E_UNSUPPORTED, "rope_type \"dynamic\" cannot be rotated without alpha: "
                                          "its frequencies depend on the length of the prompt");
    for (unsigned i = 0; i < PARAMETERS; i++) {
        if ((variant->required & BIT(i)) != 0 && isnan(p->number[i]))
            return FAIL(TIERCE_E_FORMAT, "rope_type \"%s\" requires %s", variant->name,
                        names[i].name);
    }
    if (p->number[PARTIAL] > 1)
        return FAIL(TIERCE_E_FORMAT, "partial_rotary_factor is %g; it may be at most 1",
                    p->number[PARTIAL]);
    return 0;
}

static int read_parameters(struct parameters *p, char *why, const struct variant **variant,
                           struct tierce__text object)
{
    if (tierce__json_value_kind(object) != '{')
        return FAIL(TIERCE_E_FORMAT, "the parameters must be a JSON object");
    for (unsigned i = 0; i < PARAMETERS; i++)
        p->number[i] = names[i].usual;
    p->is_truncated = true;
    int rc = read_variant(p, why, variant, object);
    struct tierce__json each = tierce__json_each(object);
    struct tierce__text name, value;
    /* "dynamic" with a factor in place of alpha gets the message about alpha. */
    bool is_checked_first = rc == 0 && (*variant)->frequency == frequency_alpha &&
                            tierce__json_value_kind(tierce__json_get(object, "alpha")) != '0';
    if (is_checked_first)
        return check_required(p, why, *variant);
    while (rc == 0 && tierce__json_next(&each, &name, &value))
        rc = read_member(p, why, *variant, name, value);
    return rc == 0 ? check_required(p, why, *variant) : rc;
}

static int count_pairs(uint32_t *pairs, char *why, const struct parameters *p,
                       const struct tierce__rope_layout *layout)
{
    double rotated =
        !isnan(p->number[ROTATED]) ? p->number[ROTATED] : floor(layout->width * p->number[PARTIAL]);
    if (rotated > layout->width || rotated != floor(rotated) || rotated < 2 ||
        fmod(rotated, 2) != 0 || rotated > 2 * TIERCE__ROPE_PAIRS_MAX)
        return FAIL(TIERCE_E_FORMAT,
                    "%g of %u elements would be rotated; it must be an even number from 2 to %u",
                    rotated, layout->width, 2 * TIERCE__ROPE_PAIRS_MAX);
    *pairs = (uint32_t)(rotated / 2);
    return 0;
}

int tierce__rope_init(struct tierce__rope *rope, char why[TIERCE__ROPE_WHY_BYTES],
                      const char *parameters, size_t bytes,
                      const struct tierce__rope_layout *layout)
{
    why[0] = '\0';
    if (layout->width < 1 || layout->first > layout->row_elements ||
        layout->width > layout->row_elements - layout->first ||
        (layout->style != TIERCE__ROPE_NEOX && layout->style != TIERCE__ROPE_GPTJ))
        return FAIL(TIERCE_E_ARGUMENT, "elements %u to %u of a row of %u cannot be rotated",
                    layout->first, layout->first + layout->width, layout->row_elements);
    struct tierce__json_doc doc = {0};
    const char *reason = NULL;
    int rc = tierce__json_parse(&doc, parameters, bytes, &reason);
    if (rc == TIERCE_E_FORMAT)
        return FAIL(rc, "the parameters are not JSON: %s", reason);
    if (rc < 0)
        return rc;
    struct parameters p;
    struct tierce__rope made = {.layout = *layout};
    const struct variant *variant = NULL;
    rc = read_parameters(&p, why, &variant, doc.value);
    if (rc == 0)
        rc = count_pairs(&made.pairs, why, &p, layout);
    for (unsigned i = 0; rc == 0 && i < made.pairs; i++) {
        made.frequencies[i] = variant->frequency(&p, i, made.pairs);
        if (!(fabs(made.frequencies[i]) <= FREQUENCY_MAX))
            rc = FAIL(TIERCE_E_FORMAT, "a key would turn by %g at each position; at most %g",
                      made.frequencies[i], FREQUENCY_MAX);
    }
    tierce__json_doc_clear(&doc);
    if (rc == 0)
        *rope = made;
    return rc;
}

/* ---- rotations --------------------------------------------------------------------------------
 */

enum tierce__blend_dtype tierce__blend_dtype_of(const char *kv_dtype)
{
    if (strcmp(kv_dtype, "float32") == 0 || strcmp(kv_dtype, "float") == 0 ||
        strcmp(kv_dtype, "fp32") == 0)
        return TIERCE__BLEND_FP32;
    enum tierce__element element = tierce__element_of_dtype(kv_dtype);
    return element == TIERCE__ELEMENT_BF16   ? TIERCE__BLEND_BF16
           : element == TIERCE__ELEMENT_FP16 ? TIERCE__BLEND_FP16
                                             : TIERCE__BLEND_DTYPES;
}

unsigned tierce__blend_dtype_bytes(enum tierce__blend_dtype dtype)
{
    TIERCE_ASSERT(dtype < TIERCE__BLEND_DTYPES);
    return dtype == TIERCE__BLEND_FP32 ? 4 : 2;
}

void tierce__rotation_init(struct tierce__rotation *rotation, const struct tierce__rope *rope,
                           int64_t delta)
{
    TIERCE_ASSERT(delta > -(INT64_C(1) << 31) && delta < (INT64_C(1) << 31));
    TIERCE_ASSERT(rope->pairs >= 1 && rope->pairs <= TIERCE__ROPE_PAIRS_MAX);
    rotation->layout = rope->layout;
    rotation->pairs = rope->pairs;
    rotation->delta = delta;
    for (unsigned i = 0; i < rope->pairs; i++) {
        double angle = (double)delta * rope->frequencies[i];
        rotation->cosine[i] = (float)cos(angle);
        rotation->sine[i] = (float)sin(angle);
    }
}
