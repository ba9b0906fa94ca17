/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/trace/trace_private.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/map.h"
#include "optimizer/trace/trace_input.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define TRACE_MAGIC       0x43415254u
#define WINDOW_REQUESTS   65536u
#define LINE_BYTES_MAX    ((size_t)64 << 20)
#define BAD_SHARE_MAX     0.01
#define BAD_LINES_FREE    10u /* up to this many never end the reading, whatever their share */
#define HEAD_BYTES_MAX    ((size_t)64 << 10)
#define PROBED_LINES      10u
#define INSTANCES_MAX     65536u
#define INSTANCE_NAME_MAX 255u

static const struct trace_row {
    const char *name;
    const char *summary;
    const struct tierce__trace_format *format;
} formats[] = {
#define TIERCE_TRACE_FORMAT(suffix, name, summary) {name, summary, &tierce__trace_format_##suffix},
#include "optimizer/trace/trace_formats.def"
#undef TIERCE_TRACE_FORMAT
};

#define FORMAT_COUNT (sizeof(formats) / sizeof(formats[0]))

/* Names of instances, and their layers where they are known. */
struct instances {
    char **names;
    struct tierce__trace_layers **layers; /* each in one allocation with its texts */
    uint32_t count, capacity;
    struct tierce__numbers table; /* of the names */
    uint32_t last;                /* usually the same as last time */
};

struct tierce__trace {
    uint32_t magic;
    const struct tierce__trace_format *format;
    void *state;
    struct tierce__input *input;
    struct tierce__trace_order *order;
    struct instances instances;
    double bad_share_max;
    size_t line_bytes_max;
    bool as_they_come;
    uint64_t line;   /* of the record at hand */
    uint64_t record; /* its number, if records are not lines */
    bool ended;
    int error;
    uint64_t block_bytes; /* of the first block with known bytes */
    bool blocks_differ;
    struct tierce__trace_report report;
    char reason[sizeof(((struct tierce__trace_fault *)0)->reason)];
    char why[TIERCE__TRACE_WHY_BYTES];
};

/* ---- formats -------------------------------------------------------------------------------- */

const char *tierce__trace_format_name(size_t index)
{
    return index < FORMAT_COUNT ? formats[index].name : NULL;
}

const char *tierce__trace_format_summary(size_t index)
{
    return index < FORMAT_COUNT ? formats[index].summary : NULL;
}

/* "access, csv, ..." */
static void list_formats(char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < FORMAT_COUNT && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%s", i > 0 ? ", " : "", formats[i].name);
    TIERCE_ASSERT(used < size);
}

static const struct trace_row *find_format(const char *name)
{
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    }
    return NULL;
}

static bool is_blank(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    }
    return true;
}

/* The beginning of a trace: a whole line if it is not too long. */
static int peek_head(struct tierce__input *input, const char **head, size_t *length)
{
    size_t wanted = 1;
    for (;;) {
        int rc = tierce__input_peek(input, head, length, wanted);
        if (rc < 0)
            return rc;
        if (*length < wanted || *length >= HEAD_BYTES_MAX)
            return 0;
        const char *text = *head;
        size_t left = *length;
        while (left > 0 && is_blank(text, 1)) {
            text++;
            left--;
        }
        if (left > 0 && memchr(text, '\n', left) != NULL)
            return 0;
        wanted = *length + 1;
    }
}

/* Detects the format from one of the first lines. */
static const struct trace_row *probe_formats(const char *head, size_t length)
{
    const char *at = head, *end = head + length;
    for (unsigned line = 0; line < PROBED_LINES && at < end; line++) {
        for (size_t i = 0; i < FORMAT_COUNT; i++) {
            if (formats[i].format->probe(at, (size_t)(end - at)))
                return &formats[i];
        }
        const char *found = memchr(at, '\n', (size_t)(end - at));
        at = found != NULL ? found + 1 : end;
    }
    return NULL;
}

static int tell_format(struct tierce__trace *trace, const char *wanted)
{
    char names[256], shown[64];
    const char *head;
    size_t length;
    const struct trace_row *row;
    list_formats(names, sizeof(names));
    if (wanted != NULL) {
        row = find_format(wanted);
        tierce__text_for_message(shown, sizeof(shown), wanted);
        if (row == NULL) {
            snprintf(trace->why, sizeof(trace->why),
                     "there is no trace format \"%s\"; the formats are %s", shown, names);
            return TIERCE_E_ARGUMENT;
        }
    } else {
        int rc = peek_head(trace->input, &head, &length);
        if (rc < 0) {
            snprintf(trace->why, sizeof(trace->why), "%s", tierce__input_error(trace->input));
            return rc;
        }
        if (is_blank(head, length)) {
            snprintf(trace->why, sizeof(trace->why), "is empty");
            return TIERCE_E_FORMAT;
        }
        row = probe_formats(head, length);
        if (row == NULL) {
            snprintf(trace->why, sizeof(trace->why),
                     "has an unknown format, judging by its first lines; if it is a trace, pass "
                     "its --format: %s",
                     names);
            return TIERCE_E_FORMAT;
        }
    }
    trace->format = row->format;
    trace->report.format = row->name;
    return 0;
}

/* ---- open and close ------------------------------------------------------------------------- */

/* Initializes everything except the input. On an error `trace->why` has the reason. */
static int prepare(struct tierce__trace *trace, const struct tierce__trace_opts *opts)
{
    int rc = tell_format(trace, opts->format);
    if (rc < 0)
        return rc;
    snprintf(trace->why, sizeof(trace->why), "no memory");
    uint32_t window = opts->window_requests > 0 ? opts->window_requests : WINDOW_REQUESTS;
    rc = tierce__order_create(&trace->order, trace->as_they_come ? 1 : window);
    if (rc == 0) {
        trace->state = tierce__calloc(1, trace->format->state_bytes);
        rc = trace->state == NULL ? -ENOMEM : 0;
    }
    if (rc == 0 && trace->format->init != NULL)
        rc = trace->format->init(trace->state);
    if (rc == 0)
        trace->why[0] = '\0';
    return rc;
}

/* The origin of a trace: one of the three. */
struct trace_origin {
    const char *path;
    const struct tierce__trace_source *source;
    const void *data;
    size_t size;
};

static int open_origin(struct tierce__trace *trace, struct trace_origin from)
{
    size_t most = trace->line_bytes_max;
    if (from.path != NULL)
        return tierce__input_open(&trace->input, from.path, most, trace->why);
    if (from.source != NULL)
        return tierce__input_open_source(&trace->input, from.source, most, trace->why);
    return tierce__input_open_memory(&trace->input, from.data, from.size, most, trace->why);
}

static int open_trace(struct tierce__trace **out, struct trace_origin from,
                      const struct tierce__trace_opts *opts, char why[TIERCE__TRACE_WHY_BYTES])
{
    static const struct tierce__trace_opts defaults = {.size = sizeof(defaults)};
    if (opts == NULL)
        opts = &defaults;
    if (opts->size != sizeof(*opts) || !(opts->bad_share_max >= 0 && opts->bad_share_max <= 1) ||
        opts->window_requests > 1u << 28) {
        snprintf(why, TIERCE__TRACE_WHY_BYTES,
                 "an option of the trace is out of range: accepted are shares from 0 to 1, and "
                 "windows up to 268435456 requests");
        return TIERCE_E_ARGUMENT;
    }
    struct tierce__trace *trace = tierce__calloc(1, sizeof(*trace));
    snprintf(why, TIERCE__TRACE_WHY_BYTES, "no memory");
    if (trace == NULL)
        return -ENOMEM;
    trace->magic = TRACE_MAGIC;
    trace->bad_share_max = opts->bad_share_max > 0 ? opts->bad_share_max : BAD_SHARE_MAX;
    trace->line_bytes_max = opts->line_bytes_max > 0 ? opts->line_bytes_max : LINE_BYTES_MAX;
    trace->as_they_come = opts->as_they_come;
    int rc = open_origin(trace, from);
    if (rc == 0)
        rc = prepare(trace, opts);
    if (rc < 0) {
        memcpy(why, trace->why, TIERCE__TRACE_WHY_BYTES);
        tierce__trace_close(trace);
        return rc;
    }
    *out = trace;
    return 0;
}

int tierce__trace_open(struct tierce__trace **out, const char *path,
                       const struct tierce__trace_opts *opts, char why[TIERCE__TRACE_WHY_BYTES])
{
    TIERCE_ASSERT(path != NULL);
    return open_trace(out, (struct trace_origin){.path = path}, opts, why);
}

int tierce__trace_open_memory(struct tierce__trace **out, const void *data, size_t size,
                              const struct tierce__trace_opts *opts,
                              char why[TIERCE__TRACE_WHY_BYTES])
{
    return open_trace(out, (struct trace_origin){.data = data, .size = size}, opts, why);
}

int tierce__trace_open_source(struct tierce__trace **out, const struct tierce__trace_source *source,
                              const struct tierce__trace_opts *opts,
                              char why[TIERCE__TRACE_WHY_BYTES])
{
    TIERCE_ASSERT(source != NULL);
    return open_trace(out, (struct trace_origin){.source = source}, opts, why);
}

void tierce__trace_close(struct tierce__trace *trace)
{
    if (trace == NULL)
        return;
    TIERCE_CHECK_MAGIC(trace, TRACE_MAGIC);
    if (trace->state != NULL && trace->format->fini != NULL)
        trace->format->fini(trace->state);
    tierce__free(trace->state);
    tierce__order_destroy(trace->order);
    tierce__input_close(trace->input);
    for (uint32_t i = 0; i < trace->instances.count; i++) {
        tierce__free(trace->instances.names[i]);
        tierce__free(trace->instances.layers[i]);
    }
    tierce__free(trace->instances.names);
    tierce__free(trace->instances.layers);
    tierce__numbers_fini(&trace->instances.table);
    trace->magic = 0;
    tierce__free(trace);
}

/* ---- functions for formats ------------------------------------------------------------------ */

int tierce__trace_bad(struct tierce__trace *trace, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(trace->reason, sizeof(trace->reason), format, ap);
    va_end(ap);
    return TIERCE_E_FORMAT;
}

static int too_late(struct tierce__trace *trace, int64_t time_us)
{
    return tierce__trace_bad(
        trace, "is %.6g s out of order: more than the window in which requests are sorted",
        (double)(tierce__order_last(trace->order) - time_us) / 1e6);
}

int tierce__trace_emit(struct tierce__trace *trace, const struct tierce__trace_request *request,
                       struct tierce__order_ticket *ticket)
{
    struct tierce__trace_request placed = *request;
    TIERCE_DASSERT(request->read_count <= request->count);
    TIERCE_DASSERT(request->instance == 0 || request->instance < trace->instances.count);
    placed.line = trace->line;
    if (trace->as_they_come && placed.time_us < tierce__order_last(trace->order))
        placed.time_us = tierce__order_last(trace->order);
    int rc = tierce__order_push(trace->order, &placed, ticket);
    if (rc == TIERCE_E_LIMIT)
        return too_late(trace, request->time_us);
    if (rc == 0)
        trace->report.requests++;
    return rc;
}

int tierce__trace_retime(struct tierce__trace *trace, struct tierce__order_ticket ticket,
                         int64_t time_us)
{
    int rc = tierce__order_retime(trace->order, ticket, time_us);
    return rc == TIERCE_E_LIMIT ? too_late(trace, time_us) : rc;
}

struct tierce__order_ticket tierce__trace_emitted(const struct tierce__trace *trace)
{
    return tierce__order_pushed(trace->order);
}

const struct tierce__trace_request *tierce__trace_look(const struct tierce__trace *trace,
                                                       struct tierce__order_ticket ticket)
{
    return tierce__order_look(trace->order, ticket);
}

int tierce__trace_replace(struct tierce__trace *trace, struct tierce__order_ticket ticket,
                          const struct tierce__trace_request *request)
{
    TIERCE_DASSERT(request->read_count <= request->count);
    return tierce__order_replace(trace->order, ticket, request);
}

bool tierce__trace_waits(const struct tierce__trace *trace, struct tierce__order_ticket ticket)
{
    return tierce__order_waits(trace->order, ticket);
}

void tierce__trace_note_block(struct tierce__trace *trace, uint64_t bytes)
{
    if (trace->block_bytes == 0)
        trace->block_bytes = bytes;
    trace->blocks_differ = trace->blocks_differ || bytes == 0 || trace->block_bytes != bytes;
    trace->report.block_bytes = trace->blocks_differ ? 0 : bytes;
}

uint64_t tierce__trace_session_of(const char *text, size_t length)
{
    uint64_t hash = XXH3_64bits(text, length);
    return hash != 0 ? hash : 1;
}

static bool is_instance(const struct instances *all, uint32_t index, const char *name,
                        size_t length)
{
    return strlen(all->names[index]) == length && memcmp(all->names[index], name, length) == 0;
}

static uint32_t find_instance(const struct instances *all, uint32_t hash, const char *name,
                              size_t length)
{
    TIERCE__NUMBERS_FOR_EACH (it, &all->table, hash) {
        if (is_instance(all, it.number, name, length))
            return it.number;
    }
    return TIERCE__NUMBER_NONE;
}

/* Room for twice as many names. */
static int grow_instances(struct instances *all)
{
    uint32_t capacity = all->capacity > 0 ? all->capacity * 2 : 8;
    char **names = tierce__realloc(all->names, capacity * sizeof(*names));
    if (names == NULL)
        return -ENOMEM;
    all->names = names;
    struct tierce__trace_layers **layers =
        tierce__realloc(all->layers, capacity * sizeof(struct tierce__trace_layers *));
    if (layers == NULL)
        return -ENOMEM;
    all->layers = layers;
    int rc = tierce__numbers_reserve(&all->table, capacity);
    if (rc == 0)
        all->capacity = capacity;
    return rc;
}

int tierce__trace_instance_index(struct tierce__trace *trace, uint32_t *out, const char *name,
                                 size_t length)
{
    struct instances *all = &trace->instances;
    if (all->count > 0 && is_instance(all, all->last, name, length)) {
        *out = all->last;
        return 0;
    }
    if (length > INSTANCE_NAME_MAX || memchr(name, '\0', length) != NULL)
        return tierce__trace_bad(trace,
                                 "the name of an instance is longer than %u bytes or holds "
                                 "a NUL",
                                 INSTANCE_NAME_MAX);
    if (all->count == all->capacity && grow_instances(all) < 0)
        return -ENOMEM;
    uint32_t hash = (uint32_t)XXH3_64bits(name, length);
    uint32_t index = find_instance(all, hash, name, length);
    if (index == TIERCE__NUMBER_NONE) {
        if (all->count == INSTANCES_MAX)
            return tierce__trace_bad(trace, "there are more than %u instances", INSTANCES_MAX);
        char *copy = tierce__alloc(length + 1);
        if (copy == NULL)
            return -ENOMEM;
        memcpy(copy, name, length);
        copy[length] = '\0';
        index = all->count++;
        all->names[index] = copy;
        all->layers[index] = NULL;
        tierce__numbers_put(&all->table, hash, index);
    }
    TIERCE_ASSERT(index < all->count && all->count <= all->capacity);
    *out = all->last = index;
    return 0;
}

static bool are_equal(const struct tierce__trace_layers *a, const struct tierce__trace_layers *b)
{
    return strcmp(a->kind, b->kind) == 0 && strcmp(a->group, b->group) == 0 &&
           strcmp(a->family, b->family) == 0 && strcmp(a->layers, b->layers) == 0 &&
           a->block_tokens == b->block_tokens && a->window_tokens == b->window_tokens &&
           a->every_tokens == b->every_tokens;
}

/* Copies a text to *at, and advances *at past it. */
static const char *put_text(char **at, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *to = memcpy(*at, text, bytes);
    *at += bytes;
    return to;
}

int tierce__trace_set_layers(struct tierce__trace *trace, uint32_t instance,
                             const struct tierce__trace_layers *layers)
{
    TIERCE_ASSERT(instance < trace->instances.count);
    struct tierce__trace_layers **of = &trace->instances.layers[instance];
    if (*of != NULL && are_equal(*of, layers))
        return 0;
    size_t bytes = strlen(layers->kind) + strlen(layers->group) + strlen(layers->family) +
                   strlen(layers->layers) + 4;
    struct tierce__trace_layers *copy = tierce__alloc(sizeof(*copy) + bytes);
    if (copy == NULL)
        return -ENOMEM;
    char *at = (char *)(copy + 1);
    *copy = *layers;
    copy->kind = put_text(&at, layers->kind);
    copy->group = put_text(&at, layers->group);
    copy->family = put_text(&at, layers->family);
    copy->layers = put_text(&at, layers->layers);
    TIERCE_ASSERT(at == (char *)(copy + 1) + bytes);
    tierce__free(*of);
    *of = copy;
    return 0;
}

/* ---- reading -------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static int stop(struct tierce__trace *trace, int error,
                                                      const char *format, ...)
{
    TIERCE_ASSERT(error < 0 && trace->error == 0);
    va_list ap;
    va_start(ap, format);
    vsnprintf(trace->why, sizeof(trace->why), format, ap);
    va_end(ap);
    trace->error = error;
    return error;
}

/* Counts a bad record, whose reason is in trace->reason; fails if there are too many. */
static int count_bad(struct tierce__trace *trace)
{
    struct tierce__trace_report *report = &trace->report;
    report->bad_lines++;
    if (report->fault_count < TIERCE__TRACE_FAULTS_SHOWN) {
        struct tierce__trace_fault *fault = &report->faults[report->fault_count++];
        fault->line = trace->line;
        memcpy(fault->reason, trace->reason, sizeof(fault->reason));
    }
    TIERCE_ASSERT(report->bad_lines <= report->lines);
    if (report->bad_lines <= BAD_LINES_FREE || trace->bad_share_max >= 1 ||
        (double)report->bad_lines <= trace->bad_share_max * (double)report->lines)
        return 0;
    return stop(trace, TIERCE_E_FORMAT,
                "%llu of the first %llu lines are bad, which is more than %g %%; as %s, line %llu: "
                "%s",
                (unsigned long long)report->bad_lines, (unsigned long long)report->lines,
                trace->bad_share_max * 100, report->format,
                (unsigned long long)report->faults[0].line, report->faults[0].reason);
}

static int take_record(struct tierce__trace *trace, const char *at, size_t length, bool cut)
{
    trace->report.lines++;
    int rc = trace->format->record(trace, trace->state, at, length);
    if (rc == TIERCE__TRACE_SKIPPED)
        trace->report.skipped_lines++;
    else if (rc == TIERCE__TRACE_JOINED)
        trace->report.joined_lines++;
    else if (rc == TIERCE__TRACE_NOTICE)
        trace->report.notices++;
    else if (rc == TIERCE_E_FORMAT) {
        trace->report.cut = cut;
        return count_bad(trace);
    } else if (rc < 0)
        return stop(trace, rc, "%s", tierce_strerror(rc));
    return 0;
}

static int input_error(struct tierce__trace *trace, int error)
{
    return stop(trace, error == TIERCE_E_LIMIT ? TIERCE_E_FORMAT : error, "%s",
                tierce__input_error(trace->input));
}

static int next_line(struct tierce__trace *trace)
{
    struct tierce__trace_line line;
    int rc = tierce__input_line(trace->input, &line);
    if (rc < 0)
        return input_error(trace, rc);
    if (rc == 0) {
        trace->ended = true;
        return 0;
    }
    trace->line = line.number;
    if (line.too_long) {
        trace->report.lines++;
        (void)tierce__trace_bad(trace, "exceeds the maximum length of a line, %zu bytes",
                                trace->line_bytes_max);
        return count_bad(trace);
    }
    if (is_blank(line.at, line.length))
        return 0;
    return take_record(trace, line.at, line.length, line.cut);
}

/* A record without a recognizable end: it is bad, and so is the rest of the trace. */
static int lose_rest(struct tierce__trace *trace, bool cut, const char *why)
{
    trace->ended = true;
    trace->report.lines++;
    trace->report.cut = cut;
    (void)tierce__trace_bad(trace, "%s", why);
    return count_bad(trace);
}

static int next_measured(struct tierce__trace *trace)
{
    const char *at;
    size_t length, wanted = 1;
    int64_t size;
    for (;;) {
        int rc = tierce__input_peek(trace->input, &at, &length, wanted);
        if (rc < 0)
            return input_error(trace, rc);
        if (length == 0) {
            trace->ended = true;
            return 0;
        }
        size = trace->format->measure(at, length);
        if (size != 0 || length < wanted || length >= trace->line_bytes_max)
            break;
        /* Measured from its beginning each time, so the amount doubles each time. */
        wanted = length * 2 < trace->line_bytes_max ? length * 2 : trace->line_bytes_max;
    }
    trace->line = ++trace->record;
    if (size < 0)
        return lose_rest(trace, false, "is damaged, and the rest is not read");
    if (size == 0)
        return lose_rest(trace, length < trace->line_bytes_max,
                         length < trace->line_bytes_max ? "the trace ends in it"
                                                        : "exceeds the maximum length of a record");
    int rc;
    if ((uint64_t)size > trace->line_bytes_max) {
        trace->report.lines++;
        (void)tierce__trace_bad(trace, "exceeds the maximum length of a record, %zu bytes",
                                trace->line_bytes_max);
        rc = count_bad(trace);
    } else {
        rc = take_record(trace, at, (size_t)size, false);
    }
    tierce__input_take(trace->input, (size_t)size);
    return rc;
}

/* The end of a trace: one without requests is an error. */
static int finish(struct tierce__trace *trace)
{
    const struct tierce__trace_report *report = &trace->report;
    if (report->requests > 0)
        return 0;
    if (report->fault_count > 0)
        return stop(trace, TIERCE_E_FORMAT,
                    "holds no request that can be read; as %s, line %llu: %s", report->format,
                    (unsigned long long)report->faults[0].line, report->faults[0].reason);
    return stop(trace, TIERCE_E_FORMAT, "holds no request (%llu lines as %s)",
                (unsigned long long)report->lines, report->format);
}

int tierce__trace_next(struct tierce__trace *trace, struct tierce__trace_request *request)
{
    TIERCE_CHECK_MAGIC(trace, TRACE_MAGIC);
    while (trace->error == 0) {
        if (trace->ended || tierce__order_full(trace->order)) {
            if (tierce__order_pop(trace->order, request))
                return 1;
            TIERCE_ASSERT(trace->ended);
            return finish(trace);
        }
        int rc = trace->format->measure != NULL ? next_measured(trace) : next_line(trace);
        trace->report.reordered = tierce__order_reordered(trace->order);
        if (rc < 0)
            return rc;
    }
    return trace->error;
}

const struct tierce__trace_report *tierce__trace_report(const struct tierce__trace *trace)
{
    TIERCE_CHECK_MAGIC(trace, TRACE_MAGIC);
    return &trace->report;
}

const char *tierce__trace_error(const struct tierce__trace *trace)
{
    TIERCE_CHECK_MAGIC(trace, TRACE_MAGIC);
    return trace->why;
}

const char *tierce__trace_instance(const struct tierce__trace *trace, uint32_t index)
{
    TIERCE_CHECK_MAGIC(trace, TRACE_MAGIC);
    /* A format without names has one instance. */
    if (index == 0 && trace->instances.count == 0)
        return "";
    return index < trace->instances.count ? trace->instances.names[index] : NULL;
}

const struct tierce__trace_layers *tierce__trace_layers(const struct tierce__trace *trace,
                                                        uint32_t index)
{
    TIERCE_CHECK_MAGIC(trace, TRACE_MAGIC);
    return index < trace->instances.count ? trace->instances.layers[index] : NULL;
}

uint64_t tierce__trace_position(const struct tierce__trace *trace, uint64_t *length)
{
    TIERCE_CHECK_MAGIC(trace, TRACE_MAGIC);
    return tierce__input_position(trace->input, length);
}
