/* SPDX-License-Identifier: Apache-2.0 */
#include "core/chunk/seal_keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/bytes.h"

#define SCOPE_DIGITS_MIN 8u

struct keys_row {
    struct tierce__seal_key key;
    char scope[2 * TIERCE_HASH_BYTES + 1]; /* hex digits; "": every namespace */
};

/* Mapped, so that no core dump has it. */
struct tierce__seal_keys {
    size_t bytes; /* of the mapping */
    size_t count;
    struct keys_row rows[];
};

static int complain(char why[TIERCE__SEAL_KEYS_WHY_BYTES], size_t line, const char *fault)
{
    snprintf(why, TIERCE__SEAL_KEYS_WHY_BYTES,
             "line %zu: %s; expected NUMBER KEY [NAMESPACE], with a KEY of 64 hex digits", line,
             fault);
    return TIERCE_E_CONFIG;
}

/* Splits a line into at most `max` words. Returns how many it has, or max + 1. */
static size_t split(char *line, char **words, size_t max)
{
    size_t count = 0;
    char *save = NULL;
    for (char *word = strtok_r(line, " \t\r", &save); word != NULL;
         word = strtok_r(NULL, " \t\r", &save)) {
        if (count == max)
            return max + 1;
        words[count++] = word;
    }
    return count;
}

static bool read_number(uint32_t *out, const char *word)
{
    uint64_t number = 0;
    if (word[0] == '\0' || strlen(word) > 10 || strspn(word, "0123456789") != strlen(word))
        return false;
    for (const char *p = word; *p != '\0'; p++)
        number = 10 * number + (uint64_t)(*p - '0');
    *out = (uint32_t)number;
    return number > 0 && number <= UINT32_MAX;
}

static bool read_scope(char scope[2 * TIERCE_HASH_BYTES + 1], const char *word)
{
    size_t digits = strlen(word);
    if (digits < SCOPE_DIGITS_MIN || digits > 2 * (size_t)TIERCE_HASH_BYTES ||
        strspn(word, "0123456789abcdef") != digits)
        return false;
    memcpy(scope, word, digits + 1);
    return true;
}

static bool has_number(const struct tierce__seal_keys *keys, uint32_t number)
{
    for (size_t i = 0; i < keys->count; i++) {
        if (keys->rows[i].key.number == number)
            return true;
    }
    return false;
}

/* Returns what is wrong with the line, or NULL. */
static const char *read_line(struct tierce__seal_keys *keys, char *line)
{
    char *words[3] = {NULL, NULL, NULL};
    size_t count = split(line, words, 3);
    struct keys_row *row = &keys->rows[keys->count];
    if (count == 0)
        return NULL;
    if (keys->count == TIERCE__SEAL_KEYS_MAX)
        return "there are more than 1024 keys";
    if (count < 2 || count > 3)
        return "it does not have two or three words";
    if (!read_number(&row->key.number, words[0]))
        return "the number is not 1 to 4294967295";
    if (has_number(keys, row->key.number))
        return "another line has the same number";
    if (strlen(words[1]) != 2 * (size_t)TIERCE__SEAL_KEY_BYTES ||
        !tierce__hex_decode(row->key.bytes, TIERCE__SEAL_KEY_BYTES, words[1]))
        return "the key is not 64 hex digits";
    if (count == 3 && !read_scope(row->scope, words[2]))
        return "the namespace is not 8 to 64 hex digits in lower case";
    keys->count++;
    return NULL;
}

static int read_all(struct tierce__seal_keys *keys, char *text, size_t length,
                    char why[TIERCE__SEAL_KEYS_WHY_BYTES])
{
    size_t number = 1;
    if (strlen(text) != length)
        return complain(why, number, "the text contains a NUL");
    for (char *line = text; line != NULL; number++) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end = '\0';
        line[strcspn(line, "#")] = '\0';
        const char *fault = read_line(keys, line);
        if (fault != NULL)
            return complain(why, number, fault);
        line = end != NULL ? end + 1 : NULL;
    }
    if (keys->count > 0)
        return 0;
    return complain(why, 1, "there is no key");
}

int tierce__seal_keys_parse(struct tierce__seal_keys **out, char *text, size_t length,
                            char why[TIERCE__SEAL_KEYS_WHY_BYTES])
{
    size_t bytes =
        sizeof(struct tierce__seal_keys) + (size_t)TIERCE__SEAL_KEYS_MAX * sizeof(struct keys_row);
    struct tierce__seal_keys *keys =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (keys == MAP_FAILED) {
        snprintf(why, TIERCE__SEAL_KEYS_WHY_BYTES, "no memory");
        return -ENOMEM;
    }
    (void)madvise(keys, bytes, MADV_DONTDUMP);
    keys->bytes = bytes;
    int rc = read_all(keys, text, length, why);
    if (rc < 0)
        tierce__seal_keys_destroy(keys);
    else
        *out = keys;
    return rc;
}

bool tierce__seal_keys_equal(const struct tierce__seal_keys *a, const struct tierce__seal_keys *b)
{
    bool equal = a->count == b->count;
    for (size_t i = 0; equal && i < a->count; i++) {
        const struct keys_row *x = &a->rows[i], *y = &b->rows[i];
        equal = x->key.number == y->key.number && strcmp(x->scope, y->scope) == 0 &&
                memcmp(x->key.bytes, y->key.bytes, sizeof(x->key.bytes)) == 0;
    }
    return equal;
}

void tierce__seal_keys_destroy(struct tierce__seal_keys *keys)
{
    if (keys == NULL)
        return;
    size_t bytes = keys->bytes;
    tierce__seal_wipe(keys, bytes);
    (void)munmap(keys, bytes);
}

static bool is_for(const struct keys_row *row, const char *digest)
{
    return strncmp(row->scope, digest, strlen(row->scope)) == 0;
}

/* The row with the greatest number, of those of the namespace if it has any. `number` 0: any. */
static const struct tierce__seal_key *find(const struct tierce__seal_keys *keys, uint32_t number,
                                           const uint8_t ns_digest[TIERCE_HASH_BYTES])
{
    char digest[2 * TIERCE_HASH_BYTES + 1];
    const struct keys_row *best = NULL;
    tierce__hex_encode(digest, ns_digest, TIERCE_HASH_BYTES);
    for (size_t i = 0; i < keys->count; i++) {
        const struct keys_row *row = &keys->rows[i];
        if ((number > 0 && row->key.number != number) || !is_for(row, digest))
            continue;
        bool is_own = row->scope[0] != '\0', best_is_own = best != NULL && best->scope[0] != '\0';
        if (best == NULL || (is_own && !best_is_own) ||
            (is_own == best_is_own && row->key.number > best->key.number))
            best = row;
    }
    return best != NULL ? &best->key : NULL;
}

const struct tierce__seal_key *tierce__seal_keys_newest(const struct tierce__seal_keys *keys,
                                                        const uint8_t ns_digest[TIERCE_HASH_BYTES])
{
    return find(keys, 0, ns_digest);
}

const struct tierce__seal_key *
tierce__seal_keys_numbered(const struct tierce__seal_keys *keys, uint32_t number,
                           const uint8_t ns_digest[TIERCE_HASH_BYTES])
{
    TIERCE_ASSERT(number > 0);
    return find(keys, number, ns_digest);
}
