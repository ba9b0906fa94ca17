/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/trace_write.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json_write.h"
#include "optimizer/trace/intern.h"
#include "optimizer/trace/trace_kvcm.h"

#include <errno.h>
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
    [LOSS_TAILS] = "of # turns that store more blocks than they look up, the others were omitted",
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

static void put_text(struct tierce__trace_writer *writer, const char *text)
{
    fputs(text, writer->file);
}

static void put_number(struct tierce__trace_writer *writer, uint64_t value)
{
    char digits[20];
    size_t at = sizeof(digits);
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    fwrite(digits + at, 1, sizeof(digits) - at, writer->file);
}

static void put_hex(struct tierce__trace_writer *writer, uint64_t value)
{
    static const char hex[] = "0123456789abcdef";
    char digits[16];
    for (int i = 15; i >= 0; i--, value >>= 4)
        digits[i] = hex[value & 15];
    fwrite(digits, 1, sizeof(digits), writer->file);
}

/* A text in quotes. */
static void put_quoted(struct tierce__trace_writer *writer, const char *text)
{
    tierce__json_write_text(&(struct tierce__json_write){.file = writer->file}, NULL, text);
}

static void end_line(struct tierce__trace_writer *writer)
{
    fputc('\n', writer->file);
    writer->lines++;
}

/* ---- formats -------------------------------------------------------------------------------- */

static void put_ids(struct tierce__trace_writer *writer, const uint64_t *blocks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0)
            put_text(writer, ", ");
        put_number(writer, blocks[i]);
    }
}

/* Milliseconds, with decimals if necessary. */
static void put_milliseconds(struct tierce__trace_writer *writer, int64_t time_us)
{
    unsigned fraction = (unsigned)(time_us % 1000);
    int digits = 3;
    put_number(writer, (uint64_t)time_us / 1000);
    if (fraction == 0)
        return;
    for (; fraction % 10 == 0; digits--)
        fraction /= 10;
    fprintf(writer->file, ".%0*u", digits, fraction);
}

static void put_mooncake(struct tierce__trace_writer *writer,
                         const struct tierce__trace_request *request, const char *instance)
{
    (void)instance;
    lose(writer, LOSS_TAILS, request->read_count < request->count);
    lose(writer, LOSS_QUERIES, request->query != TIERCE__QUERY_PREFIX);
    lose(writer, LOSS_INTERNAL, request->internal != NULL);
    lose(writer, LOSS_BYTES, request->bytes != NULL);
    put_text(writer, "{\"timestamp\": ");
    put_milliseconds(writer, request->time_us);
    put_text(writer, ", \"input_length\": ");
    put_number(writer, request->input_tokens);
    put_text(writer, ", \"output_length\": ");
    put_number(writer, request->output_tokens);
    put_text(writer, ", \"hash_ids\": [");
    put_ids(writer, request->blocks, request->read_count);
    put_text(writer, "]");
    if (request->session != 0) {
        put_text(writer, ", \"session_id\": ");
        put_number(writer, request->session - 1);
    }
    put_text(writer, "}");
    end_line(writer);
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
        put_text(writer, "time_us,key,size\n");
    writer->began = true;
    for (uint32_t i = 0; i < request->read_count; i++) {
        put_number(writer, (uint64_t)request->time_us);
        put_text(writer, ",");
        put_number(writer, request->blocks[i]);
        put_text(writer, ",");
        put_number(writer, request->bytes != NULL ? request->bytes[i] : 1);
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
    put_text(writer, "{\"tierce_access\":1,\"time_us\":");
    put_number(writer, (uint64_t)request->time_us);
    put_text(writer, ",\"op\":");
    put_quoted(writer, op);
    put_text(writer, ",\"namespace\":");
    put_quoted(writer, instance);
    if (request->session != 0) {
        put_text(writer, ",\"session\":");
        put_number(writer, request->session);
    }
    if (request->kind == TIERCE__TRACE_TURN) {
        put_text(writer, ",\"request\":");
        put_number(writer, writer->turns);
    }
    if (held > 0) {
        put_text(writer, ",\"held\":");
        put_number(writer, held < count ? held : count);
    }
    put_text(writer, ",\"blocks\":\"");
    for (uint32_t i = 0; i < count; i++)
        put_hex(writer, request->blocks[i]);
    put_text(writer, "\"}");
    end_line(writer);
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

/* KVCM's keys have a sign. */
static void put_keys(struct tierce__trace_writer *writer, const char *name, const uint64_t *blocks,
                     uint32_t count)
{
    put_text(writer, ",\"");
    put_text(writer, name);
    put_text(writer, "\":[");
    for (uint32_t i = 0; i < count; i++) {
        put_text(writer, i > 0 ? "," : "");
        put_text(writer, blocks[i] > INT64_MAX ? "-" : "");
        put_number(writer, blocks[i] > INT64_MAX ? 0 - blocks[i] : blocks[i]);
    }
    put_text(writer, "]");
}

/* The number of leading blocks if it is sufficient, else true and false per block. */
static void put_mask(struct tierce__trace_writer *writer, const uint8_t *internal, uint32_t count)
{
    uint32_t held = 0;
    while (internal != NULL && held < count && internal[held] != 0)
        held++;
    put_text(writer, ",\"block_mask\":");
    if (internal == NULL || held == count || memchr(internal + held, 1, count - held) == NULL) {
        put_number(writer, held);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        put_text(writer, i > 0 ? "," : "[");
        put_text(writer, internal[i] != 0 ? "true" : "false");
    }
    put_text(writer, "]");
}

static void put_lengths(struct tierce__trace_writer *writer,
                        const struct tierce__trace_request *request)
{
    put_text(writer, ",\"input_len\":");
    put_number(writer, request->input_tokens);
    put_text(writer, ",\"output_len\":");
    put_number(writer, request->output_tokens);
}

/* A line of KVCM's schema; its fields determine its kind. */
static void put_schema_line(struct tierce__trace_writer *writer,
                            const struct tierce__trace_request *request, const char *instance,
                            enum tierce__trace_kind kind)
{
    bool is_write = kind == TIERCE__TRACE_WRITE, is_turn = kind == TIERCE__TRACE_TURN;
    uint32_t stored = request->count - request->unstored;
    bool has_lengths = request->input_tokens != 0 || request->output_tokens != 0;
    put_text(writer, "{\"instance_id\":");
    put_quoted(writer, instance);
    put_text(writer, ",\"trace_id\":\"");
    put_number(writer, writer->lines + 1);
    put_text(writer, "\",\"timestamp_us\":");
    put_number(writer, (uint64_t)request->time_us);
    put_text(writer, ",\"tokens\":[]");
    put_keys(writer, "keys", request->blocks, is_write ? stored : request->read_count);
    if (!is_write) {
        put_text(writer, ",\"query_type\":");
        put_quoted(writer, tierce__kvcm_query_name(request->query));
        put_mask(writer, request->internal, is_turn ? stored : request->read_count);
        put_text(writer, ",\"sw_size\":");
        put_number(writer, request->window);
        put_text(writer, ",\"location_spec_names\":[]");
    }
    if (is_turn || has_lengths)
        put_lengths(writer, request);
    if (is_turn)
        put_keys(writer, "total_keys", request->blocks, stored);
    put_text(writer, "}");
    end_line(writer);
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
    if (count <= writer->capacity)
        return 0;
    uint32_t *numbers = tierce__realloc(writer->numbers, count * sizeof(*numbers));
    if (numbers == NULL)
        return -ENOMEM;
    writer->numbers = numbers;
    uint64_t *blocks = tierce__realloc(writer->blocks, count * sizeof(*blocks));
    if (blocks == NULL)
        return -ENOMEM;
    writer->blocks = blocks;
    writer->capacity = count;
    return 0;
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
