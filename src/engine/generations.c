/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/generations.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define HEAD          "tierce-generations 1\n"
#define SUM           "sum "
#define LINE_BYTES    208u /* at most */
#define SUM_BYTES     (sizeof(SUM) - 1 + 16 + 1)
#define SUBJECT_BYTES 160u
#define VALUE_BYTES   48u
#define FILE_MAX      (sizeof(HEAD) + TIERCE__GENERATIONS_MAX * LINE_BYTES + SUM_BYTES)

/* The lines of a file. */
struct content {
    char *text;     /* heap, with a NUL */
    const char *at; /* the first line */
    size_t left;    /* bytes of all lines */
};

/* The beginning of a line: what the generation is of. */
static size_t put_subject(char out[SUBJECT_BYTES], uint64_t store,
                          const struct tierce__invalidated *what)
{
    char hex[2 * TIERCE_HASH_BYTES + 1];
    tierce__hex_encode(hex, what->ns_digest, TIERCE_HASH_BYTES);
    int n = snprintf(out, SUBJECT_BYTES, "%s %u %u %u %u %016" PRIx64 " ", hex,
                     (unsigned)what->shard.tp_rank, (unsigned)what->shard.tp_size,
                     (unsigned)what->shard.pp_rank, (unsigned)what->shard.pp_size, store);
    TIERCE_ASSERT(n > 0 && (size_t)n < SUBJECT_BYTES);
    return (size_t)n;
}

/* The rest of the line. */
static size_t put_value(char out[VALUE_BYTES], const struct tierce__invalidated *what)
{
    int n = snprintf(out, VALUE_BYTES, "%016" PRIx64 " %" PRIu64 "\n", what->registry,
                     what->generation);
    TIERCE_ASSERT(n > 0 && (size_t)n < VALUE_BYTES);
    return (size_t)n;
}

static void put_sum(char out[SUM_BYTES + 1], const char *text, size_t bytes)
{
    snprintf(out, SUM_BYTES + 1, SUM "%016" PRIx64 "\n", (uint64_t)XXH3_64bits(text, bytes));
}

/* Errors: TIERCE_E_FORMAT (not such a file), TIERCE_E_CHECKSUM (damaged), negative errno, -ENOMEM.
 */
static int read_content(struct content *out, const char *path)
{
    const size_t head = sizeof(HEAD) - 1;
    char *text, sum[SUM_BYTES + 1];
    size_t bytes;
    int rc = tierce__read_file(&text, &bytes, path, FILE_MAX);
    if (rc < 0)
        return rc;
    if (bytes < head || memcmp(text, HEAD, head) != 0)
        rc = TIERCE_E_FORMAT;
    else if (bytes < head + SUM_BYTES)
        rc = TIERCE_E_CHECKSUM;
    if (rc == 0) {
        put_sum(sum, text, bytes - SUM_BYTES);
        rc = memcmp(text + bytes - SUM_BYTES, sum, SUM_BYTES) == 0 ? 0 : TIERCE_E_CHECKSUM;
    }
    if (rc < 0) {
        tierce__free(text);
        return rc;
    }
    *out = (struct content){.text = text, .at = text + head, .left = bytes - head - SUM_BYTES};
    return 0;
}

/* The next line with its end, or NULL. */
static const char *next_line(struct content *content, size_t *bytes)
{
    const char *line = content->at;
    const char *end = content->left > 0 ? memchr(line, '\n', content->left) : NULL;
    if (end == NULL)
        return NULL;
    *bytes = (size_t)(end - line) + 1;
    TIERCE_DASSERT(*bytes <= content->left);
    content->at += *bytes;
    content->left -= *bytes;
    return line;
}

bool tierce__generations_has(const char *folder, uint64_t store,
                             const struct tierce__invalidated *what)
{
    char wanted[SUBJECT_BYTES + VALUE_BYTES],
        *path = tierce__join_path(folder, TIERCE__GENERATIONS_FILE);
    struct content content = {0};
    bool has = false;
    size_t bytes, length = put_subject(wanted, store, what);
    const char *line;
    length += put_value(wanted + length, what);
    if (path != NULL && what->registry != 0 && read_content(&content, path) == 0) {
        while (!has && (line = next_line(&content, &bytes)) != NULL)
            has = bytes == length && memcmp(line, wanted, length) == 0;
    }
    tierce__free(content.text);
    tierce__free(path);
    return has;
}

struct tierce__generations {
    struct content content;
    bool is_unknown; /* there is a file, and it cannot be read */
};

int tierce__generations_load(struct tierce__generations **out, const char *folder)
{
    struct tierce__generations *made = tierce__calloc(1, sizeof(*made));
    char *path = tierce__join_path(folder, TIERCE__GENERATIONS_FILE);
    int rc = made != NULL && path != NULL ? 0 : -ENOMEM;
    int read = rc == 0 ? read_content(&made->content, path) : 0;
    tierce__free(path);
    if (rc < 0) {
        tierce__free(made);
        return rc;
    }
    made->is_unknown = read < 0 && read != -ENOENT;
    *out = made;
    return 0;
}

void tierce__generations_free(struct tierce__generations *generations)
{
    if (generations == NULL)
        return;
    tierce__free(generations->content.text);
    tierce__free(generations);
}

bool tierce__generations_may_differ(struct tierce__generations *generations, uint64_t store,
                                    const struct tierce__invalidated *what)
{
    char wanted[SUBJECT_BYTES + VALUE_BYTES];
    size_t subject = put_subject(wanted, store, what), bytes, lines = 0;
    size_t length = subject + put_value(wanted + subject, what);
    struct content content = generations->content;
    const char *line;
    if (generations->is_unknown)
        return true;
    while ((line = next_line(&content, &bytes)) != NULL) {
        if (bytes > subject && memcmp(line, wanted, subject) == 0)
            return bytes != length || memcmp(line, wanted, length) != 0;
        lines++;
    }
    return lines >= TIERCE__GENERATIONS_MAX;
}

/* Appends to a text of FILE_MAX bytes. */
static void append(char *text, size_t *used, const char *from, size_t bytes)
{
    TIERCE_ASSERT(*used + bytes < FILE_MAX);
    memcpy(text + *used, from, bytes);
    *used += bytes;
}

/* The new content: the lines of other subjects, the last ones if there are many, and the new line.
 */
static size_t make_text(char *text, struct content *old, uint64_t store,
                        const struct tierce__invalidated *what)
{
    char line[SUBJECT_BYTES + VALUE_BYTES], sum[SUM_BYTES + 1];
    size_t used = 0, bytes, subject = put_subject(line, store, what), count = 0;
    struct content counted = *old;
    const char *other;
    while (next_line(&counted, &bytes) != NULL)
        count++;
    append(text, &used, HEAD, sizeof(HEAD) - 1);
    while ((other = next_line(old, &bytes)) != NULL) {
        bool is_same = bytes > subject && memcmp(other, line, subject) == 0;
        if (count-- < TIERCE__GENERATIONS_MAX && !is_same && bytes <= LINE_BYTES)
            append(text, &used, other, bytes);
    }
    subject += put_value(line + subject, what);
    if (what->registry != 0)
        append(text, &used, line, subject);
    put_sum(sum, text, used);
    append(text, &used, sum, SUM_BYTES);
    return used;
}

static int replace(const char *path, const char *text, size_t bytes)
{
    struct tierce__new_file file = {0};
    int rc = tierce__new_file_open(&file, path);
    if (rc < 0)
        return rc;
    return tierce__new_file_close(&file, fwrite(text, 1, bytes, file.file) == bytes);
}

/* Makes a file damaged, so that no generation of it counts: without it, the first generation 1
 * would keep all chunks. -EEXIST: it is as it was. */
static int spoil(const char *path)
{
    if (truncate(path, sizeof(HEAD) - 1) == 0 || errno == ENOENT)
        return 0;
    return unlink(path) == 0 || errno == ENOENT ? 0 : -EEXIST;
}

int tierce__generations_set(const char *folder, uint64_t store,
                            const struct tierce__invalidated *what)
{
    char *path = tierce__join_path(folder, TIERCE__GENERATIONS_FILE);
    char *text = tierce__alloc(FILE_MAX);
    struct content old = {0};
    int rc = path != NULL && text != NULL ? 0 : -ENOMEM;
    if (rc == 0)
        rc = read_content(&old, path);
    /* Another program's file is not replaced; it has no generation. */
    bool is_foreign = rc == TIERCE_E_FORMAT || rc == -EISDIR || rc == -EINVAL || rc == -EFBIG;
    if (rc == 0 || rc == -ENOENT || rc == TIERCE_E_CHECKSUM)
        rc = replace(path, text, make_text(text, &old, store, what));
    /* An older generation of the file must not be taken for the present one later. */
    if (rc < 0 && !is_foreign && path != NULL && spoil(path) < 0)
        rc = -EEXIST;
    tierce__free(old.text);
    tierce__free(text);
    tierce__free(path);
    return rc;
}
