/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor.h"

#include <errno.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>

#define DEPTH_MAX      128
#define PATH_BYTES_MAX 512

struct diff {
    tierce__doctor_diff_fn *fn;
    void *arg;
    int count;
    bool shared_only; /* a value that one side lacks is not a difference */
    bool failed;      /* no memory for a text */
};

static int parse(struct json_object **out, const char *text)
{
    size_t len = strlen(text);
    if (len > INT_MAX)
        return TIERCE_E_FORMAT;
    struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX);
    if (tokener == NULL)
        return -ENOMEM;
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    *out = json_tokener_parse_ex(tokener, text, (int)len);
    enum json_tokener_error rc = json_tokener_get_error(tokener);
    /* A bare number ends only with the text; one NUL more says so. */
    if (rc == json_tokener_continue) {
        *out = json_tokener_parse_ex(tokener, "", 1);
        rc = json_tokener_get_error(tokener);
    }
    json_tokener_free(tokener);
    return rc == json_tokener_success ? 0 : TIERCE_E_FORMAT;
}

static const char *text_of(struct diff *diff, struct json_object *value)
{
    if (value == NULL)
        return "null";
    const char *text = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN |
                                                                 JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text == NULL)
        diff->failed = true;
    return text != NULL ? text : "";
}

static bool is_number(struct json_object *value)
{
    return json_object_is_type(value, json_type_int) ||
           json_object_is_type(value, json_type_double);
}

/* Scalars and values of different types. */
static bool same_scalar(struct diff *diff, struct json_object *a, struct json_object *b)
{
    if (is_number(a) && is_number(b) &&
        (json_object_is_type(a, json_type_double) || json_object_is_type(b, json_type_double))) {
        double x = json_object_get_double(a), y = json_object_get_double(b);
        return x <= y && x >= y;
    }
    if (json_object_get_type(a) != json_object_get_type(b))
        return false;
    /* Integers compare as text, which is exact over the whole range of int64 and uint64. */
    return strcmp(text_of(diff, a), text_of(diff, b)) == 0;
}

static void report(struct diff *diff, const char *path, const char *a, const char *b)
{
    if (diff->shared_only && (a == NULL || b == NULL))
        return;
    diff->count++;
    if (diff->fn != NULL)
        diff->fn(diff->arg, path, a, b);
}

static void diff_values(struct diff *diff, const char *path, struct json_object *a,
                        struct json_object *b);

static void join(char out[PATH_BYTES_MAX], const char *path, const char *key)
{
    int n = snprintf(out, PATH_BYTES_MAX, "%s.%s", path, key);
    if (n >= PATH_BYTES_MAX)
        memcpy(out + PATH_BYTES_MAX - 4, "...", 4);
}

static void diff_objects(struct diff *diff, const char *path, struct json_object *a,
                         struct json_object *b)
{
    char below[PATH_BYTES_MAX];
    json_object_object_foreach(a, key, value)
    {
        struct json_object *other = NULL;
        join(below, path, key);
        if (json_object_object_get_ex(b, key, &other))
            diff_values(diff, below, value, other);
        else
            report(diff, below, text_of(diff, value), NULL);
    }
    json_object_object_foreach(b, only, there)
    {
        if (json_object_object_get_ex(a, only, NULL))
            continue;
        join(below, path, only);
        report(diff, below, NULL, text_of(diff, there));
    }
}

/* The recursion is bounded by the depth that the parser accepts. */
static void diff_values(struct diff *diff, const char *path, struct json_object *a,
                        struct json_object *b)
{
    char index[24], below[PATH_BYTES_MAX];
    if (json_object_is_type(a, json_type_object) && json_object_is_type(b, json_type_object)) {
        diff_objects(diff, path, a, b);
        return;
    }
    if (json_object_is_type(a, json_type_array) && json_object_is_type(b, json_type_array) &&
        json_object_array_length(a) == json_object_array_length(b)) {
        for (size_t i = 0; i < json_object_array_length(a); i++) {
            snprintf(index, sizeof(index), "%zu", i);
            join(below, path, index);
            diff_values(diff, below, json_object_array_get_idx(a, i),
                        json_object_array_get_idx(b, i));
        }
        return;
    }
    if (!same_scalar(diff, a, b))
        report(diff, path, text_of(diff, a), text_of(diff, b));
}

/* The model's own configuration inside an engine's wrapper; else the tree itself. */
static struct json_object *unwrap(struct json_object *tree)
{
    struct json_object *config = NULL;
    if (json_object_is_type(tree, json_type_object) &&
        json_object_object_get_ex(tree, "config", &config) &&
        json_object_is_type(config, json_type_object))
        return config;
    return tree;
}

int tierce__doctor_diff_models(const struct tierce__doctor_model *a,
                               const struct tierce__doctor_model *b, tierce__doctor_diff_fn *fn,
                               void *arg)
{
    struct diff diff = {.fn = fn, .arg = arg, .shared_only = a->raw != b->raw};
    struct json_object *tree_a = NULL, *tree_b = NULL;

    int rc = parse(&tree_a, a->json);
    if (rc == 0)
        rc = parse(&tree_b, b->json);
    if (rc == 0) {
        bool mixed = diff.shared_only;
        diff_values(&diff, "model", mixed && !a->raw ? unwrap(tree_a) : tree_a,
                    mixed && !b->raw ? unwrap(tree_b) : tree_b);
    }
    json_object_put(tree_a);
    json_object_put(tree_b);
    if (rc == 0 && diff.failed)
        rc = -ENOMEM;
    return rc != 0 ? rc : diff.count;
}

bool tierce__doctor_is_json(const char *text)
{
    struct json_object *tree = NULL;
    int rc = parse(&tree, text);
    json_object_put(tree);
    return rc == 0;
}
