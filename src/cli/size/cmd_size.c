/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/file.h"
#include "cli/options.h"
#include "cli/size/kv_shape.h"
#include "core/chunk/header.h"
#include "engine/engine_config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define COMMAND         "size"
#define JSON_BYTES_MAX  (4u << 20)
#define BLOCK_TOKENS    16u     /* vLLM's on GPUs; larger blocks make headers smaller */
#define INDEX_SHARE     0.02    /* of disk.size: the index, and chunks that are being replaced */
#define CHUNK_DISK_MIN  262144u /* disk.size allows one chunk for so many bytes, */
#define CHUNK_MEM_MIN   65536u  /* and memory.size for so many */
#define BYTES_MAX       1e18
#define TOKEN_BYTES_MAX (1u << 26) /* a block of them is a cell of a chunk */
#define GIB             1073741824.0
#define DAY_S           86400.0

const char *const tierce__cli_size_help[] = {
    "Computes the bytes of KV that a number of sessions need, memory.size and disk.size for them, "
    "the\n"
    "writes to the disk, and the network if the KV is in a remote store. Nothing is measured: "
    "sizes\n"
    "follow from config.json, rates from the options.\n"
    "\n"
    "  --model DIR         the folder of the model, or its config.json\n"
    "  --token-bytes SIZE  bytes of KV of a token in all layers, in place of --model\n"
    "  --sessions N        sessions whose KV is kept\n"
    "  --tokens M          tokens of a session\n"
    "  --kv-bytes N        bytes of a value of KV: 2 by default, 1 for fp8, 4 for float32\n"
    "  --chunk-tokens N    chunk.tokens, 256 by default; a multiple of 16\n"
    "  --memory SIZE       memory.size; by default a tenth of the sessions fits\n"
    "  --turn-every TIME   time between two requests of a session, 5min by default\n"
    "  --turn-tokens N     tokens that a request adds to its session, 512 by default\n",
    NULL};

struct size_request {
    const char *model;
    uint64_t token_bytes;
    uint64_t sessions, tokens;
    uint64_t kv_bytes;
    uint64_t chunk_tokens;
    uint64_t memory;
    uint64_t turn_ms, turn_tokens;
};

static const struct tierce__option options[] = {
    {"--model", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct size_request, model)},
    {"--token-bytes", TIERCE__OPTION_SIZE, TIERCE__OPTION_FIELD(struct size_request, token_bytes),
     .min = 1, .max = TOKEN_BYTES_MAX, .wants = "a size like 128KiB"},
    {"--sessions", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct size_request, sessions),
     .min = 1, .max = 1e9},
    {"--tokens", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct size_request, tokens), .min = 1,
     .max = 1e9},
    {"--kv-bytes", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct size_request, kv_bytes),
     .min = 1, .max = 4},
    {"--chunk-tokens", TIERCE__OPTION_COUNT,
     TIERCE__OPTION_FIELD(struct size_request, chunk_tokens), .min = BLOCK_TOKENS, .max = 65536},
    {"--memory", TIERCE__OPTION_SIZE, TIERCE__OPTION_FIELD(struct size_request, memory),
     .min = 1048576, .max = BYTES_MAX, .wants = "a size like 64GiB"},
    {"--turn-every", TIERCE__OPTION_DURATION, TIERCE__OPTION_FIELD(struct size_request, turn_ms),
     .min = 1, .max = 31536000000.0, .wants = "a time like 5min"},
    {"--turn-tokens", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct size_request, turn_tokens),
     .min = 1, .max = 1e9},
    {NULL}};

/* All results; bytes are doubles, because products of the largest options exceed a uint64_t. */
struct size_result {
    double token_bytes;
    uint64_t chunk_bytes; /* of a whole chunk, with its header */
    double chunks;        /* of a session, the tail included */
    double session_bytes;
    double total_bytes;
    double memory, disk;
    double memory_share; /* of the sessions that memory holds */
    double turns;        /* a second, all sessions together */
    double written;      /* bytes a second */
};

static void print_row(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void print_row(const char *name, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    printf("%-22s", name);
    vprintf(format, ap);
    printf("\n");
    va_end(ap);
}

/* Three digits and a unit. `text` has 32 bytes. */
static const char *show_bytes(char text[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t i = 0;
    for (; bytes >= 1023.5 && i + 1 < sizeof(units) / sizeof(units[0]); i++)
        bytes /= 1024;
    int digits = i == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(text, 32, "%.*f %s", digits, bytes, units[i]);
    return text;
}

/* The bytes of config.json as a shape. */
static int read_shape(struct tierce__kv_shape *shape, const char *path)
{
    char why[TIERCE__KV_SHAPE_WHY_BYTES];
    char *text = NULL, *inside = NULL;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        inside = tierce__join_path(path, "config.json");
        if (inside == NULL)
            return tierce__cli_fail(COMMAND, "%s", tierce_strerror(-ENOMEM));
        path = inside;
    }
    int status = TIERCE__CLI_OK;
    int rc = tierce__cli_read_text(&text, path, JSON_BYTES_MAX);
    if (rc < 0)
        status =
            tierce__cli_usage(COMMAND, "--model: %.200s: %s", path, tierce__cli_read_error(rc));
    else if (tierce__kv_shape_read(shape, text, strlen(text), why) != 0)
        status = tierce__cli_usage(
            COMMAND,
            "--model: %.200s: %s. Give the bytes of KV of a token by --token-bytes "
            "in place of --model",
            path, why);
    tierce__free(text);
    tierce__free(inside);
    return status;
}

static int check_request(const struct size_request *request)
{
    if ((request->model == NULL) == (request->token_bytes == 0))
        return tierce__cli_usage(COMMAND, "either --model or --token-bytes is required");
    if (request->sessions == 0 || request->tokens == 0)
        return tierce__cli_usage(COMMAND, "%s is required",
                                 request->sessions == 0 ? "--sessions" : "--tokens");
    if (request->chunk_tokens % BLOCK_TOKENS != 0)
        return tierce__cli_usage(COMMAND, "--chunk-tokens must be a multiple of %u", BLOCK_TOKENS);
    return TIERCE__CLI_OK;
}

/* The bytes of a chunk with this number of tokens, headers and padding included; 0: none is stored,
 * because the tokens fill no block. */
static int chunk_bytes(uint64_t *out, const struct tierce__kv_shape *shape,
                       const struct size_request *request, uint64_t tokens)
{
    static uint32_t cells[TIERCE_LAYERS_MAX];
    struct tierce__extent extent = {0};
    uint64_t cell = request->token_bytes > 0
                        ? request->token_bytes * BLOCK_TOKENS
                        : shape->layer_values * request->kv_bytes * BLOCK_TOKENS;
    TIERCE_ASSERT(shape->layers >= 1 && shape->layers <= TIERCE_LAYERS_MAX);
    for (uint32_t i = 0; i < shape->layers; i++)
        cells[i] = cell <= UINT32_MAX ? (uint32_t)cell : UINT32_MAX;
    const struct tierce__geometry geometry = {.layer_count = shape->layers,
                                              .cell_bytes = cells,
                                              .block_tokens = BLOCK_TOKENS,
                                              .block_count = (uint32_t)(tokens / BLOCK_TOKENS)};
    if (geometry.block_count > 0 && tierce__chunk_extent(&extent, &geometry) < 0)
        return tierce__cli_usage(
            COMMAND, "a chunk of %" PRIu64 " tokens is too large; lower --chunk-tokens", tokens);
    *out = extent.object_bytes;
    return TIERCE__CLI_OK;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Whole GiB, at least one. */
static double round_gib(double bytes)
{
    return larger(ceil(bytes / GIB), 1) * GIB;
}

static int compute(struct size_result *out, const struct tierce__kv_shape *shape,
                   const struct size_request *request)
{
    struct size_result r = {0};
    uint64_t tail = 0;
    int status = chunk_bytes(&r.chunk_bytes, shape, request, request->chunk_tokens);
    if (status == TIERCE__CLI_OK)
        status = chunk_bytes(&tail, shape, request, request->tokens % request->chunk_tokens);
    if (status != TIERCE__CLI_OK)
        return status;
    double whole = (double)(request->tokens / request->chunk_tokens);
    r.token_bytes = request->token_bytes > 0
                        ? (double)request->token_bytes
                        : (double)shape->layer_values * shape->layers * (double)request->kv_bytes;
    r.chunks = whole + (tail > 0);
    r.session_bytes = whole * (double)r.chunk_bytes + (double)tail;
    r.total_bytes = r.session_bytes * (double)request->sessions;
    double all_chunks = r.chunks * (double)request->sessions;
    if (r.session_bytes == 0 || larger(r.total_bytes, all_chunks * CHUNK_DISK_MIN) > BYTES_MAX)
        return tierce__cli_usage(
            COMMAND, r.session_bytes == 0
                         ? "--tokens must be at least 16, the tokens of a block"
                         : "the sessions require more than 10^18 bytes of memory or disk");
    double in_memory = larger(r.total_bytes, all_chunks * CHUNK_MEM_MIN);
    r.memory = request->memory > 0 ? (double)request->memory : round_gib(in_memory / 10);
    r.memory_share = r.memory >= in_memory ? 1 : r.memory / in_memory;
    r.disk = round_gib(larger(r.total_bytes / (1 - INDEX_SHARE), all_chunks * CHUNK_DISK_MIN));
    r.turns = (double)request->sessions / ((double)request->turn_ms / 1000);
    /* A request writes its new tokens, and the tail before them once more: half a chunk on average.
     */
    double added =
        (double)(request->turn_tokens < request->tokens ? request->turn_tokens : request->tokens);
    r.written = r.turns * (added + (double)request->chunk_tokens / 2) *
                ((double)r.chunk_bytes / (double)request->chunk_tokens);
    *out = r;
    return TIERCE__CLI_OK;
}

static void print_model(const struct tierce__kv_shape *shape, const struct size_request *request,
                        const struct size_result *r)
{
    char text[32], name[64];
    tierce__text_for_message(name, sizeof(name), shape->name[0] != '\0' ? shape->name : "model");
    if (request->model != NULL && shape->kv_heads > 0)
        print_row("model",
                  "%s: %u layers with KV, %u KV heads of %u values, %" PRIu64 " bytes each", name,
                  shape->layers, shape->kv_heads, shape->values, request->kv_bytes);
    else if (request->model != NULL)
        print_row("model",
                  "%s: %u layers with latent attention of %u values, %" PRIu64 " bytes each", name,
                  shape->layers, shape->values, request->kv_bytes);
    if (shape->state_layers > 0)
        print_row("not counted",
                  "the states of %u recurrent layers; tierce inspect shows the chunks of a "
                  "running engine",
                  shape->state_layers);
    print_row("KV of a token", "%s", show_bytes(text, r->token_bytes));
    print_row("chunk", "%" PRIu64 " tokens, %s with its header", request->chunk_tokens,
              show_bytes(text, (double)r->chunk_bytes));
    print_row("session", "%" PRIu64 " tokens, %.0f chunks, %s", request->tokens, r->chunks,
              show_bytes(text, r->session_bytes));
    print_row("all sessions", "%" PRIu64 ", %s", request->sessions,
              show_bytes(text, r->total_bytes));
}

static void print_rates(const struct size_result *r)
{
    char text[32];
    double missing = 1 - r->memory_share, read = r->turns * r->session_bytes;
    double pinned = floor(r->memory / 2 / r->session_bytes);
    print_row("memory holds",
              "%.0f %% of the sessions, and pins those of %.0f requests at a time "
              "(memory.pins: half)",
              100 * r->memory_share, pinned);
    print_row("requests", "%.2f a second", r->turns);
    print_row("loads", "%s a second, of which the disk reads %s", show_bytes(text, read),
              show_bytes((char[32]){0}, read * missing));
    print_row("disk writes", "%s a second, %s a day: %.2f times disk.size",
              show_bytes(text, r->written), show_bytes((char[32]){0}, r->written * DAY_S),
              r->written * DAY_S / r->disk);
    print_row(
        "network",
        "%.1f Gbit/s to load and %.1f Gbit/s to store, if a remote store takes the disk's place",
        read * missing * 8 / 1e9, r->written * 8 / 1e9);
    if (pinned < 1)
        print_row("warning",
                  "memory cannot pin one session: lookups report fewer tokens. Raise --memory");
}

/* A parameter as YAML; above its bound, a comment that says so. */
static void print_param(enum tierce__engine_param param, double bytes)
{
    const struct tierce__param *row = &tierce__engine_params()[param];
    char text[32], most[32];
    tierce__format_size(text, sizeof(text), (uint64_t)bytes);
    tierce__format_size(most, sizeof(most), (uint64_t)row->max);
    if (bytes > row->max)
        printf("# %s: %s on several hosts; it is at most %s on each\n", row->name, text, most);
    else
        printf("%s: %s\n", row->name, text);
}

static void print_config(const struct size_request *request, const struct size_result *r)
{
    printf("\nchunk.tokens: %" PRIu64 "\n", request->chunk_tokens);
    print_param(TIERCE__ENGINE_MEMORY_SIZE, r->memory);
    print_param(TIERCE__ENGINE_DISK_SIZE, r->disk);
}

int tierce__cli_size(int argc, char **argv)
{
    struct size_request request = {
        .kv_bytes = 2, .chunk_tokens = 256, .turn_ms = 300000, .turn_tokens = 512};
    struct tierce__kv_shape shape = {.layers = 1};
    struct size_result result = {0};
    int status = tierce__options_read(COMMAND, options, &request, 0, &argc, argv);
    if (status == TIERCE__CLI_OK && argc != 1)
        status = tierce__cli_usage(COMMAND, "\"%.64s\" is not expected", argv[1]);
    if (status == TIERCE__CLI_OK)
        status = check_request(&request);
    if (status == TIERCE__CLI_OK && request.model != NULL)
        status = read_shape(&shape, request.model);
    if (status == TIERCE__CLI_OK)
        status = compute(&result, &shape, &request);
    if (status != TIERCE__CLI_OK)
        return status;
    print_model(&shape, &request, &result);
    print_rates(&result);
    print_config(&request, &result);
    return TIERCE__CLI_OK;
}
