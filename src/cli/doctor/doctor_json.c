/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define PATH_BYTES_MAX 512

struct diff {
    tierce__doctor_diff_fn *fn;
    void *arg;
    int count;
    bool shared_only; /* a value that one side lacks is not a difference */
    bool failed;      /* no memory for a text */
};

static bool same_text(struct diff *diff, struct tierce__text a, struct tierce__text b)
{
    char *x = NULL, *y = NULL;
    int rc = tierce__json_copy_text(&x, a, "");
    if (rc == 0)
        rc = tierce__json_copy_text(&y, b, "");
    bool same = rc == 0 && strcmp(x, y) == 0;
    diff->failed = diff->failed || rc == -ENOMEM;
    tierce__free(x);
    tierce__free(y);
    return same;
}

/* Scalars and values of different types. Integers compare as they are written, which is exact. */
static bool same_scalar(struct diff *diff, struct tierce__text a, struct tierce__text b)
{
    char kind = tierce__json_value_kind(a);
    if (kind != tierce__json_value_kind(b))
        return false;
    if (a.length == b.length && memcmp(a.at, b.at, a.length) == 0)
        return true;
    if (kind == '0' && (!tierce__json_is_integer(a) || !tierce__json_is_integer(b))) {
        double x = tierce__json_get_number(a, ""), y = tierce__json_get_number(b, "");
        return x <= y && x >= y;
    }
    return kind == '"' && same_text(diff, a, b);
}

/* NULL: no value, or no memory. */
static const char *print(struct diff *diff, struct tierce__line *line, struct tierce__text value)
{
    struct tierce__json_write json = {.line = line};
    if (value.length == 0)
        return NULL;
    tierce__json_write_value(&json, NULL, value);
    tierce__line_put_bytes(line, "", 1);
    diff->failed = diff->failed || line->failed;
    return line->failed ? NULL : line->text;
}

/* One of the values may be empty: then that side lacks it. */
static void report(struct diff *diff, const char *path, struct tierce__text a,
                   struct tierce__text b)
{
    struct tierce__line line_a = {0}, line_b = {0};
    TIERCE_ASSERT(a.length > 0 || b.length > 0);
    if (diff->shared_only && (a.length == 0 || b.length == 0))
        return;
    diff->count++;
    if (diff->fn != NULL)
        diff->fn(diff->arg, path, print(diff, &line_a, a), print(diff, &line_b, b));
    tierce__line_clear(&line_a);
    tierce__line_clear(&line_b);
}

static void diff_values(struct diff *diff, const char *path, struct tierce__text a,
                        struct tierce__text b);

static void join(char out[PATH_BYTES_MAX], const char *path, struct tierce__text key)
{
    int n = snprintf(out, PATH_BYTES_MAX, "%s.%.*s", path, (int)key.length, key.at);
    if (n >= PATH_BYTES_MAX)
        memcpy(out + PATH_BYTES_MAX - 4, "...", 4);
}

/* Each name counts once, with its last value. */
static void diff_objects(struct diff *diff, const char *path, struct tierce__text a,
                         struct tierce__text b)
{
    char below[PATH_BYTES_MAX];
    struct tierce__text name, value, other;
    struct tierce__json each = tierce__json_each(a);
    while (tierce__json_next(&each, &name, &value)) {
        if (tierce__json_find(a, name).at != value.at)
            continue;
        join(below, path, name);
        other = tierce__json_find(b, name);
        if (other.length > 0)
            diff_values(diff, below, value, other);
        else
            report(diff, below, value, other);
    }
    each = tierce__json_each(b);
    while (tierce__json_next(&each, &name, &value)) {
        other = tierce__json_find(a, name);
        if (other.length > 0 || tierce__json_find(b, name).at != value.at)
            continue;
        join(below, path, name);
        report(diff, below, other, value);
    }
}

static void diff_arrays(struct diff *diff, const char *path, struct tierce__text a,
                        struct tierce__text b)
{
    char index[24], below[PATH_BYTES_MAX];
    struct tierce__text name, value, other;
    struct tierce__json each_a = tierce__json_each(a), each_b = tierce__json_each(b);
    for (size_t i = 0; tierce__json_next(&each_a, &name, &value); i++) {
        bool both = tierce__json_next(&each_b, &name, &other);
        TIERCE_ASSERT(both); /* they are as long */
        int n = snprintf(index, sizeof(index), "%zu", i);
        join(below, path, (struct tierce__text){index, (size_t)n});
        diff_values(diff, below, value, other);
    }
}

/* The recursion is bounded by the depth that the parser accepts. */
static void diff_values(struct diff *diff, const char *path, struct tierce__text a,
                        struct tierce__text b)
{
    char kind = tierce__json_value_kind(a);
    bool same_kind = kind == tierce__json_value_kind(b);
    if (same_kind && kind == '{')
        diff_objects(diff, path, a, b);
    else if (same_kind && kind == '[' && tierce__json_count(a) == tierce__json_count(b))
        diff_arrays(diff, path, a, b);
    else if (!same_scalar(diff, a, b))
        report(diff, path, a, b);
}

/* The model's own configuration inside an engine's wrapper; else the value itself. */
static struct tierce__text unwrap(struct tierce__text value)
{
    struct tierce__text config = tierce__json_get(value, "config");
    return tierce__json_value_kind(config) == '{' ? config : value;
}

int tierce__doctor_diff_models(const struct tierce__doctor_model *a,
                               const struct tierce__doctor_model *b, tierce__doctor_diff_fn *fn,
                               void *arg)
{
    struct diff diff = {.fn = fn, .arg = arg, .shared_only = a->raw != b->raw};
    struct tierce__json_doc doc_a = {0}, doc_b = {0};

    int rc = tierce__json_parse(&doc_a, a->json, strlen(a->json), NULL);
    if (rc == 0)
        rc = tierce__json_parse(&doc_b, b->json, strlen(b->json), NULL);
    if (rc == 0) {
        bool mixed = diff.shared_only;
        diff_values(&diff, "model", mixed && !a->raw ? unwrap(doc_a.value) : doc_a.value,
                    mixed && !b->raw ? unwrap(doc_b.value) : doc_b.value);
    }
    tierce__json_doc_clear(&doc_a);
    tierce__json_doc_clear(&doc_b);
    if (rc == 0 && diff.failed)
        rc = -ENOMEM;
    return rc != 0 ? rc : diff.count;
}

bool tierce__doctor_is_json(const char *text)
{
    struct tierce__json_doc doc = {0};
    int rc = tierce__json_parse(&doc, text, strlen(text), NULL);
    tierce__json_doc_clear(&doc);
    return rc == 0;
}
