/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/trace_input.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "optimizer/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define INPUT_MAGIC 0x5450494eu
/* The size of one read: it stays in the second-level cache until it is parsed. */
#define BLOCK_BYTES ((size_t)256 << 10)
#define SLACK_BYTES 64u

enum codec { CODEC_PLAIN, CODEC_GZIP, CODEC_ZSTD };

struct tierce__input {
    uint32_t magic;
    int fd; /* -1: none, or standard input, which stays open */
    bool is_stdin;
    const struct tierce__trace_source *source; /* or NULL */
    const uint8_t *memory;                     /* or NULL; neither: the file */
    size_t memory_left;
    uint64_t position, file_length;

    enum codec codec;
    uint8_t *raw; /* [BLOCK_BYTES] not decompressed yet */
    size_t raw_at, raw_end;
    bool raw_ended;
    z_stream zlib;
    bool zlib_open;
    ZSTD_DCtx *zstd;
    bool in_stream; /* a compressed stream has begun and not ended */

    char *text; /* [capacity + SLACK_BYTES] */
    size_t capacity, at, end;
    bool ended;

    size_t line_bytes_max;
    uint64_t lines;
    int error;
    char why[TIERCE__INPUT_WHY_BYTES];
};

__attribute__((format(printf, 3, 4))) static int fail(struct tierce__input *input, int error,
                                                      const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(input->why, sizeof(input->why), format, ap);
    va_end(ap);
    input->error = error;
    return error;
}

/* ---- bytes of the file ---------------------------------------------------------------------- */

/* Some bytes, 0 at the end, or an error. */
static ssize_t read_source(struct tierce__input *input, void *out, size_t size)
{
    ssize_t n;
    if (input->source != NULL) {
        char why[TIERCE__TRACE_WHY_BYTES] = "";
        n = input->source->read(input->source->arg, out, size, why);
        if (n < 0)
            return fail(input, (int)n, "%.255s", why[0] != '\0' ? why : tierce_strerror((int)n));
    } else if (input->memory != NULL) {
        n = (ssize_t)(size < input->memory_left ? size : input->memory_left);
        memcpy(out, input->memory, (size_t)n);
        input->memory += n;
        input->memory_left -= (size_t)n;
    } else {
        do
            n = read(input->is_stdin ? STDIN_FILENO : input->fd, out, size);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return fail(input, -errno, "cannot be read: %s", strerror(errno));
    }
    TIERCE_ASSERT(n >= 0 && (size_t)n <= size);
    input->position += (uint64_t)n;
    return n;
}

/* Fills the raw buffer when it is empty. */
static int fill_raw(struct tierce__input *input)
{
    if (input->raw_at < input->raw_end || input->raw_ended)
        return 0;
    ssize_t n = read_source(input, input->raw, BLOCK_BYTES);
    if (n < 0)
        return (int)n;
    input->raw_at = 0;
    input->raw_end = (size_t)n;
    input->raw_ended = n == 0;
    return 0;
}

/* ---- decompression -------------------------------------------------------------------------- */

static void *zlib_alloc(void *opaque, uInt count, uInt size)
{
    (void)opaque;
    return tierce__calloc(count, size);
}

static void zlib_free(void *opaque, void *ptr)
{
    (void)opaque;
    tierce__free(ptr);
}

/* Checks the bytes after a gzip stream: another stream, padding zeros of a tape, or garbage. */
static int gzip_next_member(struct tierce__input *input)
{
    while (input->raw_at < input->raw_end && input->raw[input->raw_at] == 0)
        input->raw_at++;
    if (input->raw_at == input->raw_end)
        return 0;
    if (inflateReset(&input->zlib) != Z_OK)
        return fail(input, TIERCE_E_FORMAT, "zlib cannot be reset");
    input->in_stream = true;
    return 0;
}

/* Decompresses from the raw buffer; returns the bytes that came out. */
static ssize_t gzip_step(struct tierce__input *input, char *out, size_t size)
{
    z_stream *z = &input->zlib;
    if (!input->in_stream) {
        int rc = gzip_next_member(input);
        if (rc < 0 || !input->in_stream)
            return rc;
    }
    z->next_in = input->raw + input->raw_at;
    z->avail_in = (uInt)(input->raw_end - input->raw_at);
    z->next_out = (Bytef *)out;
    z->avail_out = (uInt)size;
    int rc = inflate(z, Z_NO_FLUSH);
    input->raw_at = input->raw_end - z->avail_in;
    TIERCE_ASSERT(input->raw_at <= input->raw_end);
    if (rc == Z_STREAM_END)
        input->in_stream = false;
    else if (rc == Z_MEM_ERROR)
        return fail(input, -ENOMEM, "no memory");
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        return fail(input, TIERCE_E_FORMAT, "the gzip stream is damaged at byte %llu of the file",
                    (unsigned long long)(input->position - z->avail_in));
    return (ssize_t)(size - z->avail_out);
}

static ssize_t zstd_step(struct tierce__input *input, char *out, size_t size)
{
    ZSTD_inBuffer from = {input->raw, input->raw_end, input->raw_at};
    ZSTD_outBuffer to = {out, size, 0};
    size_t rc = ZSTD_decompressStream(input->zstd, &to, &from);
    size_t left = input->raw_end - from.pos;
    input->raw_at = from.pos;
    TIERCE_ASSERT(input->raw_at <= input->raw_end);
    if (ZSTD_isError(rc))
        return fail(input, TIERCE_E_FORMAT,
                    "the zstd stream is damaged at byte %llu of the file: %s",
                    (unsigned long long)(input->position - left), ZSTD_getErrorName(rc));
    input->in_stream = rc != 0;
    return (ssize_t)to.pos;
}

/* Some decompressed bytes; 0 at the end. */
static ssize_t read_compressed(struct tierce__input *input, char *out, size_t size)
{
    for (;;) {
        int rc = fill_raw(input);
        if (rc < 0)
            return rc;
        bool drained = input->raw_at == input->raw_end;
        /* The decoder may still hold output, so it is called at the end too. */
        if (drained && !input->in_stream)
            return 0;
        ssize_t n =
            input->codec == CODEC_GZIP ? gzip_step(input, out, size) : zstd_step(input, out, size);
        if (n != 0)
            return n;
        if (drained && input->raw_ended && input->in_stream)
            return fail(input, TIERCE_E_FORMAT, "the compressed stream ends too early");
    }
}

/* Detects the codec by the first bytes, which are in the raw buffer. */
static int find_codec(struct tierce__input *input)
{
    TIERCE_ASSERT(input->codec == CODEC_PLAIN);
    const uint8_t *raw = input->raw;
    uint32_t magic = input->raw_end >= 4 ? tierce__load_le32(raw) : 0;
    if (input->raw_end >= 2 && raw[0] == 0x1f && raw[1] == 0x8b) {
        input->zlib = (z_stream){.zalloc = zlib_alloc, .zfree = zlib_free};
        int rc = inflateInit2(&input->zlib, 15 + 16); /* 16: gzip and nothing else */
        if (rc != Z_OK)
            return fail(input, -ENOMEM, "no memory");
        input->zlib_open = true;
        input->in_stream = true;
        input->codec = CODEC_GZIP;
    } else if (magic == ZSTD_MAGICNUMBER || (magic & 0xfffffff0u) == 0x184d2a50u) {
        input->zstd = ZSTD_createDCtx();
        if (input->zstd == NULL)
            return fail(input, -ENOMEM, "no memory");
        input->codec = CODEC_ZSTD;
    }
    return 0;
}

/* ---- the buffer ----------------------------------------------------------------------------- */

/* Makes room for another block after the unconsumed bytes. */
static int make_room(struct tierce__input *input)
{
    TIERCE_ASSERT(input->at <= input->end && input->end <= input->capacity);
    size_t held = input->end - input->at;
    if (input->at > 0) {
        memmove(input->text, input->text + input->at, held);
        input->at = 0;
        input->end = held;
    }
    if (input->capacity - held >= BLOCK_BYTES)
        return 0;
    size_t capacity = input->capacity < 2 * BLOCK_BYTES ? 2 * BLOCK_BYTES : input->capacity * 2;
    char *text = tierce__realloc(input->text, capacity + SLACK_BYTES);
    if (text == NULL)
        return fail(input, -ENOMEM, "no memory");
    input->text = text;
    input->capacity = capacity;
    TIERCE_ASSERT(input->capacity - held >= BLOCK_BYTES);
    return 0;
}

/* Appends another block to the buffer. */
static int fill(struct tierce__input *input)
{
    int rc = input->error != 0 ? input->error : make_room(input);
    if (rc < 0)
        return rc;
    ssize_t n;
    if (input->codec != CODEC_PLAIN) {
        n = read_compressed(input, input->text + input->end, BLOCK_BYTES);
    } else if (input->raw_at < input->raw_end) {
        /* Decodes the first block, from which the codec was detected. */
        n = (ssize_t)(input->raw_end - input->raw_at);
        memcpy(input->text + input->end, input->raw + input->raw_at, (size_t)n);
        input->raw_at = input->raw_end;
    } else {
        n = read_source(input, input->text + input->end, BLOCK_BYTES);
    }
    if (n < 0)
        return (int)n;
    input->end += (size_t)n;
    TIERCE_ASSERT(input->end <= input->capacity);
    input->ended = n == 0;
    memset(input->text + input->end, '\n', SLACK_BYTES);
    return 0;
}

int tierce__input_peek(struct tierce__input *input, const char **at, size_t *length, size_t wanted)
{
    TIERCE_CHECK_MAGIC(input, INPUT_MAGIC);
    if (wanted > input->line_bytes_max)
        return fail(input, TIERCE_E_LIMIT, "a record is longer than %zu bytes",
                    input->line_bytes_max);
    while (!input->ended && input->end - input->at < wanted) {
        int rc = fill(input);
        if (rc < 0)
            return rc;
    }
    *at = input->text + input->at;
    *length = input->end - input->at;
    return 0;
}

void tierce__input_take(struct tierce__input *input, size_t length)
{
    TIERCE_CHECK_MAGIC(input, INPUT_MAGIC);
    TIERCE_ASSERT(length <= input->end - input->at);
    input->at += length;
}

/* Skips the rest of a line that is too long. */
static int drop_line(struct tierce__input *input)
{
    for (;;) {
        size_t held = input->end - input->at;
        const char *found = held > 0 ? memchr(input->text + input->at, '\n', held) : NULL;
        if (found != NULL) {
            input->at = (size_t)(found - input->text) + 1;
            return 0;
        }
        input->at = input->end;
        if (input->ended)
            return 0;
        int rc = fill(input);
        if (rc < 0)
            return rc;
    }
}

int tierce__input_line(struct tierce__input *input, struct tierce__trace_line *line)
{
    TIERCE_CHECK_MAGIC(input, INPUT_MAGIC);
    size_t seen = 0; /* no line end among these */
    for (;;) {
        size_t held = input->end - input->at;
        const char *text = input->text + input->at;
        const char *found = held > seen ? memchr(text + seen, '\n', held - seen) : NULL;
        size_t length = found != NULL ? (size_t)(found - text) : held;
        if (found == NULL && input->ended && held == 0)
            return 0;
        *line =
            (struct tierce__trace_line){.at = text, .length = length, .number = input->lines + 1};
        if (length > input->line_bytes_max) {
            line->too_long = true;
            input->lines++;
            int rc = drop_line(input);
            return rc < 0 ? rc : 1;
        }
        if (found != NULL || input->ended) {
            line->cut = found == NULL;
            input->at += length + !line->cut;
            input->lines++;
            if (length > 0 && text[length - 1] == '\r')
                line->length--;
            return 1;
        }
        seen = held;
        int rc = fill(input);
        if (rc < 0)
            return rc;
    }
}

/* ---- open and close ------------------------------------------------------------------------- */

static int open_file(struct tierce__input *input, const char *path)
{
    struct stat st;
    input->is_stdin = strcmp(path, "-") == 0;
    if (!input->is_stdin) {
        input->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (input->fd < 0)
            return fail(input, -errno, "cannot be opened: %s", strerror(errno));
    }
    if (fstat(input->is_stdin ? STDIN_FILENO : input->fd, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return fail(input, -EISDIR, "is a folder; name the file");
        if (S_ISREG(st.st_mode))
            input->file_length = (uint64_t)st.st_size;
    }
    return 0;
}

/* Fills the raw buffer with enough bytes to detect the codec: a pipe may deliver them one by
 * one. */
static int read_head(struct tierce__input *input)
{
    while (input->raw_end < 4) {
        ssize_t n = read_source(input, input->raw + input->raw_end, BLOCK_BYTES - input->raw_end);
        if (n < 0)
            return (int)n;
        if (n == 0)
            break;
        input->raw_end += (size_t)n;
        TIERCE_ASSERT(input->raw_end <= BLOCK_BYTES);
    }
    return find_codec(input);
}

/* The origin of an input's bytes: one of the three. */
struct trace_input_origin {
    const char *path;
    const struct tierce__trace_source *source;
    const void *data;
    size_t size;
};

static int open_input(struct tierce__input **out, struct trace_input_origin from,
                      size_t line_bytes_max, char why[TIERCE__INPUT_WHY_BYTES])
{
    struct tierce__input *input = tierce__calloc(1, sizeof(*input));
    int rc = 0;
    if (input == NULL)
        goto no_memory;
    input->magic = INPUT_MAGIC;
    input->fd = -1;
    input->line_bytes_max = line_bytes_max;
    input->raw = tierce__alloc(BLOCK_BYTES);
    if (input->raw == NULL)
        goto no_memory;
    input->source = from.source;
    if (from.path != NULL) {
        rc = open_file(input, from.path);
    } else if (from.source == NULL) {
        input->memory = from.data;
        input->memory_left = from.size;
        input->file_length = from.size;
    }
    if (rc == 0)
        rc = read_head(input);
    /* A text that another system saved may begin with a byte order mark. */
    const char *head = NULL;
    size_t length = 0;
    if (rc == 0)
        rc = tierce__input_peek(input, &head, &length, 3 < line_bytes_max ? 3 : line_bytes_max);
    if (rc == 0 && length >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0)
        tierce__input_take(input, 3);
    if (rc < 0) {
        snprintf(why, TIERCE__INPUT_WHY_BYTES, "%s", input->why);
        tierce__input_close(input);
        return rc;
    }
    *out = input;
    return 0;
no_memory:
    snprintf(why, TIERCE__INPUT_WHY_BYTES, "no memory");
    tierce__input_close(input);
    return -ENOMEM;
}

int tierce__input_open(struct tierce__input **out, const char *path, size_t line_bytes_max,
                       char why[TIERCE__INPUT_WHY_BYTES])
{
    TIERCE_ASSERT(path != NULL);
    return open_input(out, (struct trace_input_origin){.path = path}, line_bytes_max, why);
}

int tierce__input_open_memory(struct tierce__input **out, const void *data, size_t size,
                              size_t line_bytes_max, char why[TIERCE__INPUT_WHY_BYTES])
{
    return open_input(out, (struct trace_input_origin){.data = size > 0 ? data : "", .size = size},
                      line_bytes_max, why);
}

int tierce__input_open_source(struct tierce__input **out, const struct tierce__trace_source *source,
                              size_t line_bytes_max, char why[TIERCE__INPUT_WHY_BYTES])
{
    TIERCE_ASSERT(source != NULL);
    return open_input(out, (struct trace_input_origin){.source = source}, line_bytes_max, why);
}

void tierce__input_close(struct tierce__input *input)
{
    if (input == NULL)
        return;
    TIERCE_CHECK_MAGIC(input, INPUT_MAGIC);
    if (input->fd >= 0)
        close(input->fd);
    if (input->zlib_open)
        inflateEnd(&input->zlib);
    ZSTD_freeDCtx(input->zstd);
    tierce__free(input->raw);
    tierce__free(input->text);
    input->magic = 0;
    tierce__free(input);
}

const char *tierce__input_error(const struct tierce__input *input)
{
    TIERCE_CHECK_MAGIC(input, INPUT_MAGIC);
    return input->why;
}

uint64_t tierce__input_position(const struct tierce__input *input, uint64_t *length)
{
    TIERCE_CHECK_MAGIC(input, INPUT_MAGIC);
    *length = input->file_length;
    return input->position;
}
