/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/text/utf8.h"
#include "core/key/group.h"
#include "core/key/namespace.h"
#include "core/key/sha256.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tierce/key.h>

#define STRING_BYTES_MAX (1u << 20)
#define CELL_BYTES_MAX   (1u << 30)
#define COUNT_MAX        65536u
#define LAYER_NUMBER_MAX 65535u

/* The limit of an untrusted text. Five strings of the largest size fit. */
#define TEXT_BYTES_MAX (8u << 20)
#define FIELDS_MAX     64u
#define NAME_BYTES_MAX 64u

void tierce_free(void *ptr)
{
    tierce__free(ptr);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* A growing buffer. After an allocation fails, further bytes are ignored. */
struct namespace_text {
    char *bytes;
    size_t used;
    size_t room;
    bool failed;
};

static void add_bytes(struct namespace_text *text, const char *bytes, size_t size)
{
    if (text->failed)
        return;
    text->failed = TIERCE__GROW(text->bytes, text->room, text->used + size + 1, 256) < 0;
    if (text->failed)
        return;
    TIERCE_DASSERT(text->used + size < text->room);
    memcpy(text->bytes + text->used, bytes, size);
    text->used += size;
    text->bytes[text->used] = '\0';
}

static void add_string(struct namespace_text *text, const char *string)
{
    add_bytes(text, string, strlen(string));
}

static void add_number(struct namespace_text *text, uint32_t number)
{
    char digits[16];
    int n = snprintf(digits, sizeof(digits), "%" PRIu32, number);
    TIERCE_DASSERT(n > 0 && (size_t)n < sizeof(digits));
    add_bytes(text, digits, (size_t)n);
}

static void add_field(struct namespace_text *text, const char *name, const char *value)
{
    TIERCE_DASSERT(strchr(name, '=') == NULL && (value == NULL || strchr(value, '\n') == NULL));
    add_string(text, name);
    add_string(text, "=");
    add_string(text, value != NULL ? value : "");
    add_string(text, "\n");
}

static void add_number_field(struct namespace_text *text, const char *name, uint32_t value)
{
    add_string(text, name);
    add_string(text, "=");
    add_number(text, value);
    add_string(text, "\n");
}

/* Runs of equal layers as "BYTESxLAYERS", joined by commas: 80 equal layers are one run. */
static void add_cell_bytes(struct namespace_text *text, const uint32_t *cell_bytes,
                           uint32_t layer_count)
{
    TIERCE_DASSERT(layer_count >= 1 && layer_count <= TIERCE_LAYERS_MAX);
    add_string(text, "cell_bytes=");
    for (uint32_t i = 0; i < layer_count;) {
        uint32_t run = 1;
        while (i + run < layer_count && cell_bytes[i + run] == cell_bytes[i])
            run++;
        if (i > 0)
            add_string(text, ",");
        add_number(text, cell_bytes[i]);
        add_string(text, "x");
        add_number(text, run);
        i += run;
    }
    add_string(text, "\n");
}

/* The numbers of layers, runs of neighbours as "FIRST-LAST": "0-2,4". */
static void add_layers(struct namespace_text *text, const uint32_t *layers, uint32_t layer_count)
{
    TIERCE_DASSERT(layer_count >= 1 && layer_count <= TIERCE_LAYERS_MAX);
    add_string(text, "layers=");
    for (uint32_t i = 0, run; i < layer_count; i += run) {
        run = 1;
        while (i + run < layer_count && layers[i + run] == layers[i] + run)
            run++;
        if (i > 0)
            add_string(text, ",");
        add_number(text, layers[i]);
        if (run > 1) {
            add_string(text, "-");
            add_number(text, layers[i] + run - 1);
        }
    }
    add_string(text, "\n");
}

static void add_group(struct namespace_text *text, const struct tierce_namespace *ns)
{
    TIERCE_DASSERT(ns->size > TIERCE__NAMESPACE_BYTES_V1 && ns->group != TIERCE_GROUP_ALL);
    add_field(text, "group", tierce_group_name(ns->group));
    if (ns->window > 0)
        add_number_field(text, "window", ns->window);
    add_layers(text, ns->layers, ns->layer_count);
}

static bool string_ok(const char *string)
{
    if (string == NULL)
        return true;
    size_t size = strnlen(string, STRING_BYTES_MAX + 1);
    return size <= STRING_BYTES_MAX && tierce__text_is_plain(string, size);
}

static bool weights_ok(const char *weights)
{
    if (weights == NULL || weights[0] == '\0')
        return false;
    size_t size = strspn(weights, "0123456789abcdef");
    return size <= STRING_BYTES_MAX && weights[size] == '\0';
}

static bool layers_ok(const struct tierce_namespace *ns)
{
    if (ns->layer_count < 1 || ns->layer_count > TIERCE_LAYERS_MAX || ns->cell_bytes == NULL)
        return false;
    for (uint32_t i = 0; i < ns->layer_count; i++)
        if (ns->cell_bytes[i] < 1 || ns->cell_bytes[i] > CELL_BYTES_MAX)
            return false;
    return true;
}

static bool group_ok(const struct tierce_namespace *ns)
{
    if (ns->size == TIERCE__NAMESPACE_BYTES_V1)
        return true;
    bool has_window = ns->group == TIERCE_GROUP_WINDOW || ns->group == TIERCE_GROUP_CHUNKED;
    if (tierce_group_name(ns->group) == NULL || has_window != (ns->window > 0) ||
        (ns->group == TIERCE_GROUP_ALL) != (ns->layers == NULL))
        return false;
    for (uint32_t i = 0; ns->layers != NULL && i < ns->layer_count; i++)
        if (ns->layers[i] > LAYER_NUMBER_MAX)
            return false;
    return ns->group != TIERCE_GROUP_STATE || ns->chunk_blocks == 1;
}

static bool namespace_ok(const struct tierce_namespace *ns)
{
    return (ns->size == sizeof(*ns) || ns->size == TIERCE__NAMESPACE_BYTES_V1) &&
           weights_ok(ns->weights) && string_ok(ns->model) && string_ok(ns->kv_dtype) &&
           string_ok(ns->quantization) && string_ok(ns->layout) && layers_ok(ns) &&
           ns->block_tokens >= 1 && ns->block_tokens <= COUNT_MAX && ns->chunk_blocks >= 1 &&
           ns->chunk_blocks <= COUNT_MAX && tierce_chain_algo_name(ns->algo) != NULL &&
           group_ok(ns);
}

int tierce_namespace_text(char **text, const struct tierce_namespace *ns)
{
    if (text == NULL || ns == NULL || !namespace_ok(ns))
        return TIERCE_E_ARGUMENT;
    struct namespace_text made = {0};
    add_field(&made, "tierce-namespace", "1");
    add_field(&made, "weights", ns->weights);
    add_field(&made, "model", ns->model);
    add_field(&made, "kv_dtype", ns->kv_dtype);
    add_field(&made, "quantization", ns->quantization);
    add_field(&made, "layout", ns->layout);
    add_number_field(&made, "layer_count", ns->layer_count);
    add_cell_bytes(&made, ns->cell_bytes, ns->layer_count);
    add_number_field(&made, "block_tokens", ns->block_tokens);
    add_number_field(&made, "chunk_blocks", ns->chunk_blocks);
    add_field(&made, "algo", tierce_chain_algo_name(ns->algo));
    if (tierce__namespace_group(ns) != TIERCE_GROUP_ALL)
        add_group(&made, ns);
    if (made.failed) {
        tierce__free(made.bytes);
        return -ENOMEM;
    }
    TIERCE_DASSERT(made.used < made.room && made.used <= TEXT_BYTES_MAX);
    *text = made.bytes;
    return 0;
}

void tierce_namespace_digest(uint8_t digest[TIERCE_HASH_BYTES], const char *text)
{
    tierce__sha256(digest, text, strlen(text));
}

/* ---- comparing ------------------------------------------------------------------------------ */

struct namespace_field {
    const char *name;
    const char *value;
};

struct fields {
    char *copy; /* of the text, cut into NUL-terminated pieces */
    size_t count;
    struct namespace_field items[FIELDS_MAX];
};

static const struct namespace_field *find_field(const struct fields *fields, const char *name)
{
    for (size_t i = 0; i < fields->count; i++)
        if (strcmp(fields->items[i].name, name) == 0)
            return &fields->items[i];
    return NULL;
}

static bool name_ok(const char *name)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");
    return size >= 1 && size <= NAME_BYTES_MAX && name[size] == '\0';
}

/* Converts one line, whose newline was replaced by a NUL, into a field. */
static int add_line(struct fields *fields, char *line)
{
    TIERCE_DASSERT(strlen(line) <= TEXT_BYTES_MAX);
    char *equals = strchr(line, '=');
    if (equals == NULL || fields->count == FIELDS_MAX)
        return TIERCE_E_FORMAT;
    *equals = '\0';
    struct namespace_field field = {.name = line, .value = equals + 1};
    if (!name_ok(field.name) || !tierce__text_is_plain(field.value, strlen(field.value)) ||
        find_field(fields, field.name) != NULL)
        return TIERCE_E_FORMAT;
    if (fields->count == 0 && strcmp(field.name, "tierce-namespace") != 0)
        return TIERCE_E_FORMAT;
    fields->items[fields->count++] = field;
    return 0;
}

/* Splits a text into its fields. The caller frees fields->copy, also after a failure. */
static int split_text(struct fields *fields, const char *text)
{
    fields->copy = NULL;
    fields->count = 0;
    if (text == NULL || strnlen(text, TEXT_BYTES_MAX + 1) > TEXT_BYTES_MAX || text[0] == '\0')
        return TIERCE_E_FORMAT;
    fields->copy = tierce__strdup(text);
    if (fields->copy == NULL)
        return -ENOMEM;
    for (char *line = fields->copy; *line != '\0';) {
        char *end = strchr(line, '\n');
        if (end == NULL)
            return TIERCE_E_FORMAT;
        *end = '\0';
        int rc = add_line(fields, line);
        if (rc < 0)
            return rc;
        line = end + 1;
    }
    return 0;
}

static void report(tierce_namespace_diff_fn *fn, void *arg, const char *name,
                   const struct namespace_field *a, const struct namespace_field *b)
{
    if (fn != NULL)
        fn(arg, name, a != NULL ? a->value : NULL, b != NULL ? b->value : NULL);
}

static int diff_fields(const struct fields *a, const struct fields *b, tierce_namespace_diff_fn *fn,
                       void *arg)
{
    TIERCE_DASSERT(a->count <= FIELDS_MAX && b->count <= FIELDS_MAX);
    int differences = 0;
    for (size_t i = 0; i < a->count; i++) {
        const struct namespace_field *field = &a->items[i], *other = find_field(b, field->name);
        if (other != NULL && strcmp(field->value, other->value) == 0)
            continue;
        report(fn, arg, field->name, field, other);
        differences++;
    }
    for (size_t i = 0; i < b->count; i++) {
        const struct namespace_field *field = &b->items[i];
        if (find_field(a, field->name) != NULL)
            continue;
        report(fn, arg, field->name, NULL, field);
        differences++;
    }
    return differences;
}

int tierce_namespace_diff(const char *a, const char *b, tierce_namespace_diff_fn *fn, void *arg)
{
    struct fields fields_a = {0}, fields_b = {0};
    int rc = split_text(&fields_a, a);
    if (rc == 0)
        rc = split_text(&fields_b, b);
    if (rc == 0)
        rc = diff_fields(&fields_a, &fields_b, fn, arg);
    tierce__free(fields_a.copy);
    tierce__free(fields_b.copy);
    return rc;
}

/* ---- groups of layers of one model ---------------------------------------------------------- */

/* Whether a field describes one group of layers, and not the model. */
static bool is_of_group(const char *name, size_t bytes)
{
    static const char *const of_groups[] = {
        "layer_count", "cell_bytes", "block_tokens", "chunk_blocks", "group", "window", "layers"};
    for (size_t i = 0; i < sizeof(of_groups) / sizeof(of_groups[0]); i++)
        if (strlen(of_groups[i]) == bytes && memcmp(of_groups[i], name, bytes) == 0)
            return true;
    return false;
}

struct group_difference {
    bool in_layers, elsewhere;
};

static void note_difference(void *arg, const char *field, const char *a, const char *b)
{
    struct group_difference *d = arg;
    if (strcmp(field, "layers") == 0)
        d->in_layers = a != NULL && b != NULL;
    else if (!is_of_group(field, strlen(field)))
        d->elsewhere = true;
}

bool tierce__namespace_other_group(const char *text, const char *other)
{
    struct group_difference d = {0};
    return tierce_namespace_diff(text, other, note_difference, &d) > 0 && d.in_layers &&
           !d.elsewhere;
}

/* SHA-256 over the lines of a text without those of one group, and without the line `without`, and
 * then a line "NAME=COUNT". */
static void digest_common(uint8_t digest[TIERCE_HASH_BYTES], const char *text, const char *without,
                          const char *name, uint64_t count)
{
    struct tierce__sha256 sha;
    char last[48];
    tierce__sha256_init(&sha);
    for (const char *line = text; *line != '\0';) {
        size_t bytes = strcspn(line, "\n"), length = strcspn(line, "=\n");
        bytes += line[bytes] == '\n';
        if (!is_of_group(line, length) &&
            (strlen(without) != length || memcmp(without, line, length) != 0))
            tierce__sha256_update(&sha, line, bytes);
        line += bytes;
    }
    int used = snprintf(last, sizeof(last), "%s=%" PRIu64 "\n", name, count);
    TIERCE_DASSERT(used > 0 && (size_t)used < sizeof(last));
    tierce__sha256_update(&sha, last, (size_t)used);
    tierce__sha256_final(&sha, digest);
}

void tierce__namespace_family(uint8_t digest[TIERCE_HASH_BYTES], const char *text,
                              uint64_t chunk_tokens)
{
    digest_common(digest, text, "", "chunk_tokens", chunk_tokens);
}

void tierce__namespace_pairs(uint8_t digest[TIERCE_HASH_BYTES], const char *text,
                             uint64_t block_tokens)
{
    digest_common(digest, text, "layout", "block_tokens", block_tokens);
}

/* ---- reading -------------------------------------------------------------------------------- */

static const char *value_of(const struct fields *fields, const char *name)
{
    const struct namespace_field *field = find_field(fields, name);
    return field != NULL ? field->value : "";
}

/* Takes the digits at *at. */
static bool take_number(const char **at, uint32_t *out)
{
    uint64_t number = 0;
    size_t digits = strspn(*at, "0123456789");
    if (digits < 1 || digits > 10)
        return false;
    for (size_t i = 0; i < digits; i++)
        number = number * 10 + (uint64_t)((*at)[i] - '0');
    *at += digits;
    *out = (uint32_t)number;
    return number <= UINT32_MAX;
}

static bool number_of(const struct fields *fields, const char *name, uint32_t *out)
{
    const char *at = value_of(fields, name);
    return take_number(&at, out) && *at == '\0';
}

static bool take_char(const char **at, char c)
{
    bool is_there = **at == c;
    *at += is_there;
    return is_there;
}

/* "BYTESxLAYERS,..." */
static bool read_cell_bytes(uint32_t *cells, uint32_t layer_count, const char *at)
{
    uint32_t layer = 0, bytes, run;
    do {
        if (!take_number(&at, &bytes) || !take_char(&at, 'x') || !take_number(&at, &run) ||
            run > layer_count - layer)
            return false;
        for (uint32_t i = 0; i < run; i++)
            cells[layer++] = bytes;
    } while (take_char(&at, ','));
    return *at == '\0' && layer == layer_count;
}

/* "FIRST-LAST,..." or single numbers. */
static bool read_layers(uint32_t *layers, uint32_t layer_count, const char *at)
{
    uint32_t layer = 0, first, last;
    do {
        if (!take_number(&at, &first))
            return false;
        last = first;
        if (take_char(&at, '-') && !take_number(&at, &last))
            return false;
        if (last < first || last - first >= layer_count - layer)
            return false;
        for (uint32_t i = 0; i <= last - first; i++)
            layers[layer++] = first + i;
    } while (take_char(&at, ','));
    return *at == '\0' && layer == layer_count;
}

static bool read_group(struct tierce_namespace *ns, const struct fields *fields, uint32_t *layers)
{
    if (find_field(fields, "group") == NULL)
        return true;
    ns->layers = layers;
    return tierce__group_parse(&ns->group, value_of(fields, "group")) &&
           (find_field(fields, "window") == NULL || number_of(fields, "window", &ns->window)) &&
           read_layers(layers, ns->layer_count, value_of(fields, "layers"));
}

static bool read_fields(struct tierce_namespace *ns, const struct fields *fields, uint32_t *numbers)
{
    ns->weights = value_of(fields, "weights");
    ns->model = value_of(fields, "model");
    ns->kv_dtype = value_of(fields, "kv_dtype");
    ns->quantization = value_of(fields, "quantization");
    ns->layout = value_of(fields, "layout");
    ns->cell_bytes = numbers;
    return read_cell_bytes(numbers, ns->layer_count, value_of(fields, "cell_bytes")) &&
           number_of(fields, "block_tokens", &ns->block_tokens) &&
           number_of(fields, "chunk_blocks", &ns->chunk_blocks) &&
           tierce_chain_algo_parse(&ns->algo, value_of(fields, "algo")) == 0 &&
           read_group(ns, fields, numbers + ns->layer_count);
}

/* Bounds, order and further fields are checked by writing the text again. */
static int compare_again(const struct tierce_namespace *ns, const char *text)
{
    char *again = NULL;
    int rc = tierce_namespace_text(&again, ns);
    if (rc == 0 && strcmp(again, text) != 0)
        rc = TIERCE_E_FORMAT;
    tierce__free(again);
    return rc == TIERCE_E_ARGUMENT ? TIERCE_E_FORMAT : rc;
}

int tierce__namespace_read(struct tierce__namespace_read *out, const char *text)
{
    struct fields fields = {0};
    struct tierce__namespace_read made = {.ns = {.size = sizeof(made.ns)}};
    int rc = split_text(&fields, text);
    made.copy = fields.copy;
    if (rc == 0 && (!number_of(&fields, "layer_count", &made.ns.layer_count) ||
                    made.ns.layer_count < 1 || made.ns.layer_count > TIERCE_LAYERS_MAX))
        rc = TIERCE_E_FORMAT;
    if (rc == 0) {
        made.numbers = tierce__calloc(made.ns.layer_count, 2 * sizeof(*made.numbers));
        rc = made.numbers == NULL                           ? -ENOMEM
             : read_fields(&made.ns, &fields, made.numbers) ? compare_again(&made.ns, text)
                                                            : TIERCE_E_FORMAT;
    }
    if (rc < 0) {
        tierce__namespace_read_fini(&made);
        return rc;
    }
    *out = made;
    return 0;
}

void tierce__namespace_read_fini(struct tierce__namespace_read *read)
{
    tierce__free(read->copy);
    tierce__free(read->numbers);
    *read = (struct tierce__namespace_read){0};
}
