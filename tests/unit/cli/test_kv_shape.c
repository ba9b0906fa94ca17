/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of models as they are published, shortened to the fields that are read. */
#include "check_main.h"

#include <stdio.h>
#include <string.h>

#include "cli/size/kv_shape.h"

#define LLAMA                                                                                      \
    "\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4096, "                           \
    "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8"
#define DEEPSEEK                                                                                   \
    "\"hidden_size\": 7168, \"num_hidden_layers\": 61, \"num_attention_heads\": 128, "             \
    "\"num_key_value_heads\": 128, \"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64, "              \
    "\"v_head_dim\": 128, \"num_nextn_predict_layers\": 1"
#define FOUR(kind)  "\"" kind "\", \"" kind "\", \"" kind "\", \"" kind "\""
#define EIGHT(kind) FOUR(kind) ", " FOUR(kind)

static const struct model {
    const char *config;
    uint32_t layers, states;
    uint64_t token_values; /* in all layers */
} models[] = {
    {"{" LLAMA "}", 32, 0, 65536},
    {"{" LLAMA ", \"head_dim\": null, \"sliding_window\": null}", 32, 0, 65536},
    {"{" LLAMA ", \"head_dim\": 64}", 32, 0, 32768},
    {"{" DEEPSEEK "}", 61, 0, 61 * 576},
    /* Qwen3-8B: its head_dim is not hidden_size / num_attention_heads for every size. */
    {"{\"hidden_size\": 4096, \"head_dim\": 128, \"num_hidden_layers\": 36, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"use_sliding_window\": false}",
     36, 0, UINT64_C(36) * 2 * 8 * 128},
    /* Gemma 3 27B: text and images, five windows and one full layer in turn. */
    {"{\"text_config\": {\"hidden_size\": 5376, \"head_dim\": 128, \"num_hidden_layers\": 62, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 16, \"sliding_window\": 1024, "
     "\"sliding_window_pattern\": 6}, \"vision_config\": {\"num_hidden_layers\": 27, "
     "\"hidden_size\": 1152, \"num_attention_heads\": 16}}",
     62, 0, UINT64_C(62) * 2 * 16 * 128},
    {"{\"n_layer\": 12, \"n_head\": 12, \"n_embd\": 768}", 12, 0, 12 * 2 * 768},
    {"{\"hidden_size\": 4544, \"num_hidden_layers\": 32, \"num_attention_heads\": 71, "
     "\"multi_query\": true}",
     32, 0, 32 * 2 * 64},
    {"{" LLAMA ", \"layer_types\": [" EIGHT("linear_attention") ", " EIGHT(
         "linear_attention") ", " EIGHT("full_attention") ", " EIGHT("sliding_attention") "]}",
     16, 16, 32768},
    {"{" LLAMA ", \"layers_block_type\": [" EIGHT("recurrent") ", " EIGHT("mamba") ", " EIGHT(
         "conv") ", " FOUR("attention") ", " FOUR("chunked_attention") "]}",
     8, 24, 16384},
    {"{" LLAMA ", \"full_attention_interval\": 4}", 8, 24, 16384},
    {"{" LLAMA ", \"attn_layer_period\": 8, \"attn_layer_offset\": 4}", 4, 28, 8192},
    {"{" LLAMA ", \"num_kv_shared_layers\": 12}", 20, 0, 40960},
    /* MiniMax-Text-01 has 1 for attention and 0 for a state, MiniMax-M2 has only 1. */
    {"{\"num_hidden_layers\": 8, \"hidden_size\": 6144, \"num_attention_heads\": 64, "
     "\"head_dim\": 128, \"num_key_value_heads\": 8, \"attn_type_list\": "
     "[0, 0, 0, 0, 0, 0, 0, 1]}",
     1, 7, 2 * 8 * 128},
    {"{" LLAMA ", \"head_dim\": 192, \"v_head_dim\": 128}", 32, 0, UINT64_C(32) * 8 * (192 + 128)},
};

START_TEST(test_models)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        const struct model *model = &models[i];
        struct tierce__kv_shape shape;
        char why[TIERCE__KV_SHAPE_WHY_BYTES] = "";
        int rc = tierce__kv_shape_read(&shape, model->config, strlen(model->config), why);
        ck_assert_msg(rc == 0, "%s: %s", model->config, why);
        ck_assert_msg(shape.layers == model->layers && shape.state_layers == model->states &&
                          shape.layer_values * shape.layers == model->token_values,
                      "%s: %u layers, %u states, %lu values", model->config, shape.layers,
                      shape.state_layers, (unsigned long)shape.layer_values * shape.layers);
    }
}
END_TEST

static const struct {
    const char *config, *why;
} rejected[] = {
    {"{", "it is not JSON"},
    {"{}", "num_hidden_layers must be 1 to 4096"},
    {"[]", "num_hidden_layers must be 1 to 4096"},
    {"{\"num_hidden_layers\": 5000}", "num_hidden_layers must be"},
    {"{\"num_hidden_layers\": \"32\"}", "num_hidden_layers must be"},
    {"{\"num_hidden_layers\": 2}", "num_attention_heads is missing"},
    {"{\"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"hidden_size\": 4}",
     "no multiple of"},
    {"{" LLAMA ", \"layer_types\": [\"full_attention\"]}", "another length than num_hidden_layers"},
    {"{" LLAMA ", \"layer_types\": [\"new_attention\"]}", "unknown kind \"new_attention\""},
    {"{\"num_hidden_layers\": 4, \"layer_types\": [" FOUR("mamba") "]}", "no layer has KV"},
    {"{" LLAMA ", \"hybrid_override_pattern\": \"M*\"}", "does not list the kinds"},
    {"{" LLAMA ", \"num_kv_shared_layers\": 32}", "no layer has KV"},
    {"{" DEEPSEEK ", \"index_topk\": 2048}", "sparse latent attention"},
    {"{" LLAMA ", \"global_head_dim\": 512}", "heads of different sizes"},
    {"{" LLAMA ", \"swa_num_key_value_heads\": 4}", "different numbers of heads"},
    {"{" DEEPSEEK ", \"linear_attn_config\": {\"full_attn_layers\": [4]}}",
     "does not list the kinds"},
    {"{" LLAMA ", \"is_encoder_decoder\": true}", "an encoder with a decoder"},
};

START_TEST(test_rejected)
{
    for (size_t i = 0; i < sizeof(rejected) / sizeof(rejected[0]); i++) {
        struct tierce__kv_shape shape = {.layers = 77};
        char why[TIERCE__KV_SHAPE_WHY_BYTES] = "";
        int rc = tierce__kv_shape_read(&shape, rejected[i].config, strlen(rejected[i].config), why);
        ck_assert_msg(rc < 0 && strstr(why, rejected[i].why) != NULL, "%s: %d, \"%s\"",
                      rejected[i].config, rc, why);
        ck_assert_uint_eq(shape.layers, 77);
    }
}
END_TEST

CHECK_MAIN("kv_shape", .tests = {test_models, test_rejected})
