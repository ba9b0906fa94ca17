/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/formats/trace_write.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "optimizer/trace/intern.h"
#include "optimizer/trace/formats/trace_kvcm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The kinds of data that may be omitted. */
enum loss {
    LOSS_WRITES,
    LOSS_DROPS,
    LOSS_TAILS,
    LOSS_QUERIES,
    LOSS_INTERNAL,
    LOSS_BYTES,
    LOSS_SESSIONS,
    LOSS_LENGTHS,
    LOSS_CHAINS,
    LOSS_INSTANCES,
    LOSS_FAILED,
    LOSS_SPLITS,
    LOSSES,
};

/* The sentence for each kind; # stands for the number. */
static const char *const loss_texts[LOSSES] = {
    [LOSS_WRITES] = "# writes were omitted: a line is a lookup that stores its missing blocks",
    [LOSS_DROPS] = "# removals were omitted",
    [LOSS_TAILS] =
        "# turns store more blocks than they look up; the additional blocks were omitted",
    [LOSS_QUERIES] = "# lookups that matched any block or a window are now lookups of prefixes",
    [LOSS_INTERNAL] = "# requests lost the information which blocks the engine held itself",
    [LOSS_BYTES] = "# requests lost the sizes of blocks",
    [LOSS_SESSIONS] = "# requests lost their session",
    [LOSS_LENGTHS] = "# requests lost their lengths in tokens",
    [LOSS_CHAINS] = "# requests lost the information which blocks belong together",
    [LOSS_FAILED] = "# writes lost their failed blocks",
    [LOSS_SPLITS] = "# turns that store fewer blocks than they look up are now a read and a write",
    [LOSS_INSTANCES] =
        "# requests lost their instance; each instance's blocks have different numbers",
};

struct tierce__trace_writer;

struct writer_format {
    const char *name;
    bool has_instances;
    void (*put)(struct tierce__trace_writer *writer, const struct tierce__trace_request *request,
                const char *instance);
};

#define WRITER_MAGIC 0x52545257u

struct tierce__trace_writer {
    uint32_t magic;
    FILE *file;
    const struct writer_format *format;
    struct tierce__intern *intern; /* NULL: ids are written as they are */
    uint32_t *numbers;             /* [capacity] of the request at hand */
    uint64_t *blocks;              /* [capacity] */
    size_t capacity;
    uint32_t instance;
    bool began;
    uint64_t lines;
    uint64_t turns; /* of the access format: the number of a turn ties its two lines together */
    uint64_t losses[LOSSES];
};

static void lose(struct tierce__trace_writer *writer, enum loss loss, bool lost)
{
    writer->losses[loss] += lost;
}

/* ---- text ----------------------------------------------------------------------------------- */

static void put_hex(FILE *file, uint64_t value)
{
    static const char hex[] = "0123456789abcdef";
    char digits[16];
    for (int i = 15; i >= 0; i--, value >>= 4)
        digits[i] = hex[value & 15];
    fwrite(digits, 1, sizeof(digits), file);
}

static void end_line(struct tierce__trace_writer *writer)
{
    fputc('\n', writer->file);
    writer->lines++;
}

static void end_object(struct tierce__trace_writer *writer, struct tierce__json_write *json)
{
    tierce__json_write_close(json, '}');
    TIERCE_DASSERT(json->depth == 0);
    end_line(writer);
}

/* ---- formats -------------------------------------------------------------------------------- */

/* KVCM's keys have a sign, other ids have none. */
static void put_ids(struct tierce__json_write *json, const char *name, const uint64_t *blocks,
                    uint32_t count, bool has_sign)
{
    tierce__json_write_open(json, name, '[');
    for (uint32_t i = 0; i < count; i++) {
        if (has_sign)
            tierce__json_write_signed(json, NULL, (int64_t)blocks[i]);
        else
            tierce__json_write_count(json, NULL, blocks[i]);
    }
    tierce__json_write_close(json, ']');
}

/* Milliseconds, with decimals if necessary. */
static void put_milliseconds(struct tierce__trace_writer *writer, int64_t time_us)
{
    unsigned fraction = (unsigned)(time_us % 1000);
    int digits = 3;
    fprintf(writer->file, "%" PRId64, time_us / 1000);
    if (fraction == 0)
        return;
    for (; fraction % 10 == 0; digits--)
        fraction /= 10;
    fprintf(writer->file, ".%0*u", digits, fraction);
}

static void put_mooncake(struct tierce__trace_writer *writer,
                         const struct tierce__trace_request *request, const char *instance)
{
    struct tierce__json_write json = {.file = writer->file, .layout = TIERCE__JSON_WIDE};
    (void)instance;
    lose(writer, LOSS_TAILS, request->read_count < request->count);
    lose(writer, LOSS_QUERIES, request->query != TIERCE__QUERY_PREFIX);
    lose(writer, LOSS_INTERNAL, request->internal != NULL);
    lose(writer, LOSS_BYTES, request->bytes != NULL);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_name(&json, "timestamp");
    put_milliseconds(writer, request->time_us);
    tierce__json_write_count(&json, "input_length", request->input_tokens);
    tierce__json_write_count(&json, "output_length", request->output_tokens);
    put_ids(&json, "hash_ids", request->blocks, request->read_count, false);
    if (request->session != 0)
        tierce__json_write_count(&json, "session_id", request->session - 1);
    end_object(writer, &json);
}

static void put_csv(struct tierce__trace_writer *writer,
                    const struct tierce__trace_request *request, const char *instance)
{
    (void)instance;
    lose(writer, LOSS_TAILS, request->read_count < request->count);
    lose(writer, LOSS_INTERNAL, request->internal != NULL);
    lose(writer, LOSS_SESSIONS, request->session != 0);
    lose(writer, LOSS_LENGTHS, request->input_tokens != 0 || request->output_tokens != 0);
    lose(writer, LOSS_CHAINS, request->count > 1);
    if (!writer->began)
        fputs("time_us,key,size\n", writer->file);
    writer->began = true;
    for (uint32_t i = 0; i < request->read_count; i++) {
        fprintf(writer->file, "%" PRId64 ",%" PRIu64 ",%" PRIu64, request->time_us,
                request->blocks[i], request->bytes != NULL ? request->bytes[i] : 1);
        end_line(writer);
    }
}

/* Returns the number of leading blocks that the engine held; other held blocks are counted as
 * omitted. */
static uint32_t held_count(struct tierce__trace_writer *writer,
                           const struct tierce__trace_request *request)
{
    uint32_t held = 0;
    if (request->internal == NULL)
        return 0;
    while (held < request->count && request->internal[held] != 0)
        held++;
    lose(writer, LOSS_INTERNAL,
         held < request->count && memchr(request->internal + held, 1, request->count - held));
    return held;
}

static void put_access_line(struct tierce__trace_writer *writer,
                            const struct tierce__trace_request *request, const char *instance,
                            const char *op, uint32_t held, uint32_t count)
{
    struct tierce__json_write json = {.file = writer->file};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_count(&json, "tierce_access", 1);
    tierce__json_write_signed(&json, "time_us", request->time_us);
    tierce__json_write_text(&json, "op", op);
    tierce__json_write_text(&json, "namespace", instance);
    if (request->session != 0)
        tierce__json_write_count(&json, "session", request->session);
    if (request->kind == TIERCE__TRACE_TURN)
        tierce__json_write_count(&json, "request", writer->turns);
    if (held > 0)
        tierce__json_write_count(&json, "held", held < count ? held : count);
    tierce__json_write_name(&json, "blocks");
    fputc('"', writer->file);
    for (uint32_t i = 0; i < count; i++)
        put_hex(writer->file, request->blocks[i]);
    fputc('"', writer->file);
    end_object(writer, &json);
}

static void put_access(struct tierce__trace_writer *writer,
                       const struct tierce__trace_request *request, const char *instance)
{
    uint32_t held = held_count(writer, request);
    lose(writer, LOSS_QUERIES, request->query != TIERCE__QUERY_PREFIX);
    lose(writer, LOSS_BYTES, request->bytes != NULL);
    lose(writer, LOSS_LENGTHS, request->input_tokens != 0 || request->output_tokens != 0);
    writer->turns += request->kind == TIERCE__TRACE_TURN;
    if (request->kind != TIERCE__TRACE_WRITE)
        put_access_line(writer, request, instance, "lookup", held, request->read_count);
    if (request->kind != TIERCE__TRACE_READ)
        put_access_line(writer, request, instance, "store", 0, request->count - request->unstored);
}

/* The number of leading blocks if it is sufficient, else true and false per block. */
static void put_mask(struct tierce__json_write *json, const uint8_t *internal, uint32_t count)
{
    uint32_t held = 0;
    while (internal != NULL && held < count && internal[held] != 0)
        held++;
    if (internal == NULL || held == count || memchr(internal + held, 1, count - held) == NULL) {
        tierce__json_write_count(json, "block_mask", held);
        return;
    }
    tierce__json_write_open(json, "block_mask", '[');
    for (uint32_t i = 0; i < count; i++)
        tierce__json_write_bool(json, NULL, internal[i] != 0);
    tierce__json_write_close(json, ']');
}

/* A line of KVCM's schema; its fields determine its kind. */
static void put_schema_line(struct tierce__trace_writer *writer,
                            const struct tierce__trace_request *request, const char *instance,
                            enum tierce__trace_kind kind)
{
    bool is_write = kind == TIERCE__TRACE_WRITE, is_turn = kind == TIERCE__TRACE_TURN;
    uint32_t stored = request->count - request->unstored;
    char id[24];
    struct tierce__json_write json = {.file = writer->file};
    TIERCE_DASSERT(request->unstored <= request->count);
    snprintf(id, sizeof(id), "%" PRIu64, writer->lines + 1);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "instance_id", instance);
    tierce__json_write_text(&json, "trace_id", id);
    tierce__json_write_signed(&json, "timestamp_us", request->time_us);
    put_ids(&json, "tokens", NULL, 0, false);
    put_ids(&json, "keys", request->blocks, is_write ? stored : request->read_count, true);
    if (!is_write) {
        tierce__json_write_text(&json, "query_type", tierce__kvcm_query_name(request->query));
        put_mask(&json, request->internal, is_turn ? stored : request->read_count);
        tierce__json_write_count(&json, "sw_size", request->window);
        put_ids(&json, "location_spec_names", NULL, 0, false);
    }
    if (is_turn || request->input_tokens != 0 || request->output_tokens != 0) {
        tierce__json_write_count(&json, "input_len", request->input_tokens);
        tierce__json_write_count(&json, "output_len", request->output_tokens);
    }
    if (is_turn)
        put_ids(&json, "total_keys", request->blocks, stored, true);
    end_object(writer, &json);
}

static void put_schema(struct tierce__trace_writer *writer,
                       const struct tierce__trace_request *request, const char *instance)
{
    bool is_write = request->kind == TIERCE__TRACE_WRITE;
    bool splits = request->kind == TIERCE__TRACE_TURN &&
                  request->count - request->unstored < request->read_count;
    lose(writer, LOSS_SESSIONS, request->session != 0);
    lose(writer, LOSS_BYTES, request->bytes != NULL);
    lose(writer, LOSS_INTERNAL, is_write && request->internal != NULL);
    lose(writer, LOSS_FAILED, is_write && request->unstored != 0);
    lose(writer, LOSS_SPLITS, splits);
    if (splits)
        put_schema_line(writer, request, instance, TIERCE__TRACE_READ);
    put_schema_line(writer, request, instance, splits ? TIERCE__TRACE_WRITE : request->kind);
}

static const struct writer_format writer_formats[] = {{"access", true, put_access},
                                                      {"csv", false, put_csv},
                                                      {"kvcm-schema", true, put_schema},
                                                      {"mooncake", false, put_mooncake}};

#define WRITER_FORMATS (sizeof(writer_formats) / sizeof(writer_formats[0]))

/* ---- entry functions ------------------------------------------------------------------------ */

const char *tierce__trace_writer_format(size_t index)
{
    return index < WRITER_FORMATS ? writer_formats[index].name : NULL;
}

int tierce__trace_writer_create(struct tierce__trace_writer **out, FILE *file, const char *format,
                                bool renumber)
{
    const struct writer_format *found = NULL;
    for (size_t i = 0; i < WRITER_FORMATS; i++) {
        if (strcmp(writer_formats[i].name, format) == 0)
            found = &writer_formats[i];
    }
    if (found == NULL)
        return TIERCE_E_ARGUMENT;
    struct tierce__trace_writer *writer = tierce__calloc(1, sizeof(*writer));
    if (writer == NULL)
        return -ENOMEM;
    writer->magic = WRITER_MAGIC;
    writer->file = file;
    writer->format = found;
    if (renumber && tierce__intern_create(&writer->intern) < 0) {
        tierce__trace_writer_destroy(writer);
        return -ENOMEM;
    }
    writer->instance = UINT32_MAX;
    *out = writer;
    return 0;
}

void tierce__trace_writer_destroy(struct tierce__trace_writer *writer)
{
    if (writer == NULL)
        return;
    TIERCE_CHECK_MAGIC(writer, WRITER_MAGIC);
    tierce__intern_destroy(writer->intern);
    tierce__free(writer->numbers);
    tierce__free(writer->blocks);
    writer->magic = 0;
    tierce__free(writer);
}

static int reserve(struct tierce__trace_writer *writer, size_t count)
{
    size_t numbers = writer->capacity; /* the capacity of both arrays, once both have grown */
    int rc = TIERCE__GROW(writer->numbers, numbers, count, 1024);
    return rc < 0 ? rc : TIERCE__GROW(writer->blocks, writer->capacity, count, 1024);
}

/* Replaces the blocks of a request by their numbers. */
static int renumber(struct tierce__trace_writer *writer, struct tierce__trace_request *request)
{
    int rc = reserve(writer, request->count);
    if (rc == 0)
        rc = tierce__intern_chain(writer->intern, request->instance, request->blocks,
                                  request->count, writer->numbers);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < request->count; i++)
        writer->blocks[i] = writer->numbers[i];
    request->blocks = writer->blocks;
    return 0;
}

/* Returns whether the instance is the first one, or several are allowed. */
static int check_instance(struct tierce__trace_writer *writer, uint32_t instance)
{
    if (writer->instance == UINT32_MAX)
        writer->instance = instance;
    if (writer->format->has_instances || instance == writer->instance)
        return 0;
    lose(writer, LOSS_INSTANCES, true);
    return writer->intern != NULL ? 0 : TIERCE_E_UNSUPPORTED;
}

int tierce__trace_writer_put(struct tierce__trace_writer *writer,
                             const struct tierce__trace_request *request, const char *instance)
{
    TIERCE_CHECK_MAGIC(writer, WRITER_MAGIC);
    struct tierce__trace_request put = *request;
    if (request->kind == TIERCE__TRACE_DROP) {
        lose(writer, LOSS_DROPS, true);
        return 0;
    }
    if (request->kind == TIERCE__TRACE_WRITE && !writer->format->has_instances) {
        lose(writer, LOSS_WRITES, true);
        return 0;
    }
    int rc = check_instance(writer, request->instance);
    if (rc == 0 && writer->intern != NULL)
        rc = renumber(writer, &put);
    if (rc == 0)
        writer->format->put(writer, &put, instance);
    return rc;
}

uint64_t tierce__trace_writer_lines(const struct tierce__trace_writer *writer)
{
    TIERCE_CHECK_MAGIC(writer, WRITER_MAGIC);
    return writer->lines;
}

bool tierce__trace_writer_loss(const struct tierce__trace_writer *writer, size_t *index, char *out,
                               size_t size)
{
    TIERCE_CHECK_MAGIC(writer, WRITER_MAGIC);
    while (*index < LOSSES && writer->losses[*index] == 0)
        ++*index;
    if (*index >= LOSSES)
        return false;
    const char *text = loss_texts[*index], *mark = strchr(text, '#');
    TIERCE_ASSERT(mark != NULL);
    snprintf(out, size, "%.*s%llu%s", (int)(mark - text), text,
             (unsigned long long)writer->losses[*index], mark + 1);
    ++*index;
    return true;
}
