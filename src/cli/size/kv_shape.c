/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/size/kv_shape.h"
#include "base/assert.h"
#include "base/json/json_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tierce/key.h>

#define FIELD_MAX (1 << 20)

static int fail(char *why, int rc, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int fail(char *why, int rc, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(why, TIERCE__KV_SHAPE_WHY_BYTES, format, ap);
    va_end(ap);
    return rc;
}

/* The first of the names that is a whole number from 1 on; 0: none. Names end with NULL. */
static uint32_t first_number(struct tierce__text model, const char *const names[])
{
    for (; *names != NULL; names++) {
        int64_t value = tierce__json_get_int(model, *names, 0);
        if (value > 0 && value <= FIELD_MAX)
            return (uint32_t)value;
    }
    return 0;
}

static bool has(struct tierce__text model, const char *name)
{
    char kind = tierce__json_value_kind(tierce__json_get(model, name));
    return kind != 0 && kind != 'n';
}

/* Models of images and text keep the part that has KV under one of these names. */
static struct tierce__text text_model(struct tierce__text model)
{
    static const char *const parts[] = {"text_config", "llm_config", "language_config",
                                        "thinker_config.text_config"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct tierce__text part = tierce__json_get(model, parts[i]);
        if (tierce__json_value_kind(part) == '{' &&
            tierce__json_get_int(part, "num_hidden_layers", 0) > 0)
            return part;
    }
    return model;
}

static int check_supported(struct tierce__text model, char *why)
{
    static const struct {
        const char *name, *reason;
    } others[] = {
        {"global_head_dim", "its layers have heads of different sizes"},
        {"num_global_key_value_heads", "its layers have different numbers of heads"},
        {"swa_num_key_value_heads", "its layers have different numbers of heads"},
        {"block_configs", "its layers differ"},
        {"index_topk", "Tierce does not store sparse latent attention"},
    };
    if (tierce__json_get_bool(model, "is_encoder_decoder"))
        return fail(why, TIERCE_E_UNSUPPORTED, "it is an encoder with a decoder");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (has(model, others[i].name))
            return fail(why, TIERCE_E_UNSUPPORTED, "%s (%s)", others[i].reason, others[i].name);
    }
    return 0;
}

/* Counts one layer by the name of its kind; false: the name is not known. */
static bool count_kind(struct tierce__kv_shape *shape, struct tierce__text kind)
{
    static const struct {
        const char *name;
        bool has_kv;
    } kinds[] = {
        {"\"full_attention\"", true},
        {"\"sliding_attention\"", true},
        {"\"chunked_attention\"", true},
        {"\"attention\"", true},
        {"\"linear_attention\"", false},
        {"\"mamba\"", false},
        {"\"recurrent\"", false},
        {"\"conv\"", false},
        {"1", true},
        {"0", false}, /* in attn_type_list */
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strlen(kinds[i].name) != kind.length ||
            memcmp(kinds[i].name, kind.at, kind.length) != 0)
            continue;
        shape->layers += kinds[i].has_kv;
        shape->state_layers += !kinds[i].has_kv;
        return true;
    }
    return false;
}

/* The value that lists the kind of each layer, under one of its names. */
static struct tierce__text list_of_kinds(struct tierce__text model)
{
    static const char *const names[] = {"layer_types", "layers_block_type", "attn_type_list"};
    struct tierce__text list = {0};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        list = tierce__json_get(model, names[i]);
        if (tierce__json_value_kind(list) == '[')
            break;
    }
    return list;
}

static int count_list(struct tierce__kv_shape *shape, struct tierce__text list, char *why)
{
    struct tierce__json each = tierce__json_each(list);
    struct tierce__text name, kind;
    while (tierce__json_next(&each, &name, &kind)) {
        if (!count_kind(shape, kind))
            return fail(why, TIERCE_E_UNSUPPORTED, "a layer has the unknown kind %.*s",
                        (int)(kind.length < 40 ? kind.length : 40), kind.at);
    }
    return 0;
}

/* Attention in every nth of the layers, and states in the others. */
static void count_period(struct tierce__kv_shape *shape, uint32_t layers, uint32_t period,
                         uint32_t offset)
{
    TIERCE_ASSERT(period > 0);
    for (uint32_t i = 0; i < layers; i++) {
        bool is_attention = i % period == offset;
        shape->layers += is_attention;
        shape->state_layers += !is_attention;
    }
}

static int count_layers(struct tierce__kv_shape *shape, struct tierce__text model, char *why)
{
    uint32_t layers = first_number(
        model, (const char *const[]){"num_hidden_layers", "n_layer", "num_layers", NULL});
    uint32_t shared = first_number(model, (const char *const[]){"num_kv_shared_layers", NULL});
    uint32_t interval = first_number(model, (const char *const[]){"full_attention_interval", NULL});
    uint32_t period = first_number(model, (const char *const[]){"attn_layer_period", NULL});
    struct tierce__text list = list_of_kinds(model);
    int rc = 0;
    if (layers == 0 || layers > TIERCE_LAYERS_MAX)
        return fail(why, TIERCE_E_FORMAT, "num_hidden_layers must be 1 to %u", TIERCE_LAYERS_MAX);
    if (tierce__json_value_kind(list) == '[')
        rc = count_list(shape, list, why);
    else if (interval > 0)
        count_period(shape, layers, interval, interval - 1);
    else if (period > 0)
        count_period(shape, layers, period,
                     (uint32_t)tierce__json_get_int(model, "attn_layer_offset", 0));
    else if (has(model, "hybrid_override_pattern") || has(model, "ssm_cfg") ||
             has(model, "state_size") || has(model, "mamba_d_state") ||
             has(model, "linear_attn_config"))
        return fail(why, TIERCE_E_UNSUPPORTED,
                    "it has recurrent states, and does not list the kinds of its layers");
    else
        shape->layers = layers;
    if (rc == 0 && shape->layers + shape->state_layers != layers)
        rc = fail(why, TIERCE_E_FORMAT,
                  "the list of kinds has another length than num_hidden_layers");
    if (rc == 0 && shape->layers <= shared)
        rc = fail(why, TIERCE_E_UNSUPPORTED, "no layer has KV for each token");
    shape->layers -= rc == 0 ? shared : 0;
    return rc;
}

/* Heads of keys and values; models of old leave out what equals the heads of queries. */
static uint32_t count_kv_heads(struct tierce__text model, uint32_t heads)
{
    uint32_t kv_heads =
        first_number(model, (const char *const[]){"num_key_value_heads", "num_kv_heads",
                                                  "n_head_kv", "multi_query_group_num", NULL});
    if (tierce__json_get_bool(model, "multi_query") &&
        !tierce__json_get_bool(model, "new_decoder_architecture"))
        return 1;
    return kv_heads > 0 ? kv_heads : heads;
}

static int read_heads(struct tierce__kv_shape *shape, struct tierce__text model, char *why)
{
    uint32_t rank = first_number(model, (const char *const[]){"kv_lora_rank", NULL});
    uint32_t rotated = first_number(model, (const char *const[]){"qk_rope_head_dim", NULL});
    uint32_t heads = first_number(
        model, (const char *const[]){"num_attention_heads", "n_head", "num_heads", NULL});
    uint32_t hidden =
        first_number(model, (const char *const[]){"hidden_size", "n_embd", "d_model", NULL});
    uint32_t size = first_number(
        model, (const char *const[]){"head_dim", "kv_channels", "attention_head_dim", NULL});
    if (rank > 0 && rotated > 0) {
        shape->values = rank + rotated;
        shape->layer_values = shape->values;
        return 0;
    }
    if (heads == 0)
        return fail(why, TIERCE_E_FORMAT, "num_attention_heads is missing");
    if (size == 0 && (hidden == 0 || hidden % heads != 0))
        return fail(why, TIERCE_E_FORMAT,
                    "head_dim is missing, and hidden_size is no multiple of num_attention_heads");
    shape->values = size > 0 ? size : hidden / heads;
    shape->kv_heads = count_kv_heads(model, heads);
    uint32_t values = first_number(model, (const char *const[]){"v_head_dim", NULL});
    shape->layer_values =
        (uint64_t)shape->kv_heads * (shape->values + (values > 0 ? values : shape->values));
    return 0;
}

int tierce__kv_shape_read(struct tierce__kv_shape *out, const char *text, size_t bytes,
                          char why[TIERCE__KV_SHAPE_WHY_BYTES])
{
    struct tierce__kv_shape shape = {0};
    struct tierce__json_doc doc = {0};
    const char *wrong = NULL;
    int rc = tierce__json_parse(&doc, text, bytes, &wrong);
    if (rc != 0)
        return fail(why, rc, "it is not JSON: %s", wrong != NULL ? wrong : tierce_strerror(rc));
    struct tierce__text model = text_model(doc.value);
    (void)tierce__json_get_text(shape.name, sizeof(shape.name), doc.value, "architectures.0");
    rc = check_supported(model, why);
    if (rc == 0)
        rc = count_layers(&shape, model, why);
    if (rc == 0)
        rc = read_heads(&shape, model, why);
    if (rc == 0)
        *out = shape;
    tierce__json_doc_clear(&doc);
    return rc;
}
