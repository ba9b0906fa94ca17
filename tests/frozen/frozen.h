/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_TESTS_FROZEN_H
#define TIERCE_TESTS_FROZEN_H

#include "check_main.h"

#include <stddef.h>
#include <stdint.h>

/*
 * A file of frozen values in TIERCE_FROZEN (this folder): lines `NAME VALUE`; other lines are empty
 * or begin with '#'. With TIERCE_TEST_FROZEN_WRITE=1 the values that a test compares are appended
 * to FILE.new instead; it replaces FILE where an interface is changed on purpose.
 */

static inline bool frozen_writes(void)
{
    return getenv("TIERCE_TEST_FROZEN_WRITE") != NULL;
}

struct frozen_file {
    FILE *file;
    char *line; /* [name, '\0', value] of the last frozen_next */
    size_t room;
};

/* False: there is no such file. */
static inline bool frozen_try_open(struct frozen_file *frozen, const char *name)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", TIERCE_FROZEN, name);
    *frozen = (struct frozen_file){.file = fopen(path, "re")};
    return frozen->file != NULL;
}

static inline void frozen_close(struct frozen_file *frozen)
{
    free(frozen->line);
    fclose(frozen->file);
}

/* The next line in its parts, [borrow until the next call]; false after the last one. */
static inline bool frozen_next(struct frozen_file *frozen, const char **name, const char **value)
{
    ssize_t bytes;
    while ((bytes = getline(&frozen->line, &frozen->room, frozen->file)) > 0) {
        if (frozen->line[bytes - 1] == '\n')
            frozen->line[bytes - 1] = '\0';
        char *space = strchr(frozen->line, ' ');
        if (frozen->line[0] == '#' || frozen->line[0] == '\0')
            continue;
        ck_assert_msg(space != NULL, "no value: %s", frozen->line);
        *space = '\0';
        *name = frozen->line;
        *value = space + 1;
        return true;
    }
    return false;
}

/* The value of a name, on the heap, or NULL. */
static inline char *frozen_find(const char *file, const char *wanted)
{
    struct frozen_file frozen;
    const char *name, *value;
    char *found = NULL;
    if (!frozen_try_open(&frozen, file))
        return NULL;
    while (found == NULL && frozen_next(&frozen, &name, &value)) {
        if (strcmp(name, wanted) == 0)
            found = strdup(value);
    }
    frozen_close(&frozen);
    return found;
}

/* Each name once. */
static inline void frozen_write(const char *file, const char *name, const char *value)
{
    char path[1024], fresh[256];
    snprintf(fresh, sizeof(fresh), "%s.new", file);
    snprintf(path, sizeof(path), "%s/%s", TIERCE_FROZEN, fresh);
    char *old = frozen_find(fresh, name);
    if (old != NULL) {
        free(old);
        return;
    }
    FILE *out = fopen(path, "ae");
    ck_assert_msg(out != NULL, "%s: %s", path, strerror(errno));
    fprintf(out, "%s %s\n", name, value);
    ck_assert_int_eq(fclose(out), 0);
}

/* Compares a present value with the frozen one. */
static inline void frozen_check(const char *file, const char *name, const char *value)
{
    if (frozen_writes()) {
        frozen_write(file, name, value);
        return;
    }
    char *frozen = frozen_find(file, name);
    ck_assert_msg(frozen != NULL, "%s has no %s", file, name);
    ck_assert_msg(strcmp(frozen, value) == 0, "%s: %s is\n%s\nand was\n%s", file, name, value,
                  frozen);
    free(frozen);
}

/* Bytes in hex, on the heap. */
static inline char *frozen_hex(const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    char *out = malloc(2 * count + 1);
    ck_assert_ptr_nonnull(out);
    for (size_t i = 0; i < count; i++)
        snprintf(out + 2 * i, 3, "%02x", at[i]);
    out[2 * count] = '\0';
    return out;
}

/* The bytes of a hex text, on the heap. */
static inline uint8_t *frozen_bytes(const char *hex, size_t *count)
{
    *count = strlen(hex) / 2;
    uint8_t *out = malloc(*count + 1);
    ck_assert_ptr_nonnull(out);
    for (size_t i = 0; i < *count; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return out;
}

static inline void frozen_check_bytes(const char *file, const char *name, const void *bytes,
                                      size_t count)
{
    char *hex = frozen_hex(bytes, count);
    frozen_check(file, name, hex);
    free(hex);
}

#endif
