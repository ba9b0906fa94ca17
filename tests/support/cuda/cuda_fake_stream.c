/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_fake_private.h"

#include "core/device/cuda/cuda_bounce_part.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAM_MAGIC = 0x73747265, EVENT_MAGIC = 0x6576656e };

struct tierce__cu_event {
    unsigned magic;
    unsigned refs; /* the handle, and operations in queues */
    uint64_t recorded, completed;
    uint64_t asked;          /* the last record that a query has found to be pending */
    struct fake_clock clock; /* of the last record */
};

enum kind { COPY, KERNEL, LAUNCH, HOST, RECORD, WAIT };

struct operation {
    struct operation *next;
    enum kind kind;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    void *owned;                 /* freed with the operation */
    TIERCE__CU_HOST_FN function; /* NULL: it is not called */
    void *argument;
    TIERCE__CU_EVENT event;
    uint64_t record; /* of the event */
};

struct tierce__cu_stream {
    unsigned magic, actor;
    TIERCE__CU_CONTEXT context;
    pthread_t thread;
    bool closing, captured, stopped;
    struct operation *first, **last;
    struct fake_clock clock;
    uint64_t asked; /* the last own step that a query has found to be pending */
};

/* Kept when a stream ends: a new stream with its number continues the count. */
static uint64_t steps[FAKE_ACTORS];
static TIERCE__CU_STREAM streams[FAKE_ACTORS]; /* 0 is the host's number */
static TIERCE__CU_STREAM default_streams[FAKE_DEVICES];
static unsigned event_count;
static bool patient;

/* ---- patience -------------------------------------------------------------------------------- */

void cuda_fake_be_patient(bool is_patient)
{
    pthread_mutex_lock(&fake_lock);
    patient = is_patient;
    (void)fake_end(0);
}

/* Whether all streams run. */
static bool all_run(void)
{
    bool run = !fake_is_held() && !fake_is_broken();
    for (unsigned i = 1; i < FAKE_ACTORS; i++)
        run &= streams[i] == NULL || !streams[i]->stopped;
    return run;
}

/* Under the lock: a repeated query waits as long as this is true. */
static bool must_wait(uint64_t *asked, uint64_t step)
{
    bool again = *asked == step;
    *asked = step;
    return patient && again && all_run();
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool event_ok(TIERCE__CU_EVENT event, const char *call)
{
    bool ok = event != NULL && event->magic == EVENT_MAGIC;
    if (!ok)
        fake_violation("%s of an event that does not exist", call);
    return ok;
}

static void release_event(TIERCE__CU_EVENT event)
{
    if (--event->refs > 0)
        return;
    event->magic = 0;
    free(event);
}

unsigned fake_events(void)
{
    return event_count;
}

TIERCE__CU_RESULT cuEventCreate(TIERCE__CU_EVENT *event, unsigned int flags)
{
    TIERCE__CU_RESULT code = fake_begin("cuEventCreate", true);
    (void)flags;
    if (code == TIERCE__CU_SUCCESS) {
        TIERCE__CU_EVENT new = calloc(1, sizeof(*new));
        if (new == NULL)
            abort();
        new->magic = EVENT_MAGIC;
        new->refs = 1;
        event_count++;
        *event = new;
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuEventDestroy_v2(TIERCE__CU_EVENT event)
{
    TIERCE__CU_RESULT code = fake_begin("cuEventDestroy", true);
    if (code == TIERCE__CU_SUCCESS && !event_ok(event, "cuEventDestroy"))
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS) {
        event_count--;
        release_event(event);
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuEventQuery(TIERCE__CU_EVENT event)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuEventQuery");
    if (code == TIERCE__CU_SUCCESS && !event_ok(event, "cuEventQuery"))
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS) {
        while (event->completed < event->recorded && must_wait(&event->asked, event->recorded))
            pthread_cond_wait(&fake_changed, &fake_lock);
        if (event->completed < event->recorded)
            code = TIERCE__CU_NOT_READY;
        else
            fake_clock_join(fake_host_clock(), &event->clock);
    }
    return fake_end(code);
}

/* ---- the thread of a stream ------------------------------------------------------------------ */

static bool may_run(TIERCE__CU_STREAM stream)
{
    const struct operation *op = stream->first;
    if (op == NULL || stream->stopped || fake_is_held() || fake_is_broken())
        return false;
    return op->kind != WAIT || op->event->completed >= op->record;
}

/* Garbage, as at the start of a copy. */
static void spoil_cells(const struct tierce__bounce_part *part)
{
    for (size_t i = 0; part->to_cells && i < part->count; i++)
        memset(part->pieces[i].cells, 0xDB, part->pieces[i].bytes);
}

static void run(const struct operation *op)
{
    unsigned delay_us = fake_delay_us();
    pthread_mutex_unlock(&fake_lock);
    if (op->kind == COPY)
        memset(op->to, 0xDB, op->bytes);
    else if (op->kind == LAUNCH)
        fake_launch_spoil(op->owned);
    else if (op->function != NULL)
        spoil_cells(op->argument);
    if (delay_us > 0)
        usleep(delay_us);
    if (op->kind == LAUNCH)
        fake_launch_run(op->owned);
    else if (op->function != NULL)
        op->function(op->argument);
    else if (op->bytes > 0)
        memcpy(op->to, op->from, op->bytes);
    pthread_mutex_lock(&fake_lock);
}

static void finish(TIERCE__CU_STREAM stream, struct operation *op)
{
    stream->first = op->next;
    if (stream->first == NULL)
        stream->last = &stream->first;
    if (op->kind == RECORD && op->event->completed < op->record)
        op->event->completed = op->record;
    if (op->event != NULL)
        release_event(op->event);
    free(op->owned);
    free(op);
}

static void *run_stream(void *arg)
{
    TIERCE__CU_STREAM stream = arg;
    pthread_mutex_lock(&fake_lock);
    while (!stream->closing || may_run(stream)) {
        if (!may_run(stream)) {
            pthread_cond_wait(&fake_changed, &fake_lock);
            continue;
        }
        struct operation *op = stream->first;
        run(op);
        finish(stream, op);
        pthread_cond_broadcast(&fake_changed);
    }
    while (stream->first != NULL)
        finish(stream, stream->first); /* of a failed device, or after a violation */
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* ---- streams --------------------------------------------------------------------------------- */

static TIERCE__CU_STREAM create_stream(void)
{
    unsigned actor = 1;
    while (actor < FAKE_ACTORS && streams[actor] != NULL)
        actor++;
    TIERCE__CU_STREAM stream = calloc(1, sizeof(*stream));
    if (actor == FAKE_ACTORS || stream == NULL)
        abort();
    stream->magic = STREAM_MAGIC;
    stream->actor = actor;
    stream->context = fake_current();
    stream->last = &stream->first;
    stream->clock.of[actor] = steps[actor];
    streams[actor] = stream;
    if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0)
        abort();
    return stream;
}

/* The stream of a handle, or NULL; the default stream is created at its first use. */
static TIERCE__CU_STREAM stream_of(TIERCE__CU_STREAM stream, const char *call)
{
    TIERCE__CU_STREAM *at = &default_streams[fake_current()->device];
    if (stream == NULL && *at == NULL)
        *at = create_stream();
    if (stream == NULL)
        return *at;
    bool exists = false;
    for (unsigned i = 1; i < FAKE_ACTORS; i++)
        exists |= streams[i] == stream;
    if (!exists || stream->magic != STREAM_MAGIC) {
        fake_violation("%s: the stream does not exist", call);
        return NULL;
    }
    if (stream->context != fake_current()) {
        fake_violation("%s: the stream is of another context", call);
        return NULL;
    }
    return stream;
}

unsigned fake_streams(void)
{
    unsigned count = 0;
    for (unsigned i = 1; i < FAKE_ACTORS; i++)
        count += streams[i] != NULL && streams[i] != default_streams[0] &&
                 streams[i] != default_streams[1];
    return count;
}

bool fake_captures(void)
{
    bool captures = false;
    for (unsigned i = 1; i < FAKE_ACTORS; i++)
        captures |= streams[i] != NULL && streams[i]->captured;
    return captures;
}

void fake_set_capture(TIERCE__CU_STREAM stream, bool captured)
{
    stream->captured = captured;
}

void cuda_fake_stop_stream(TIERCE__CU_STREAM stream, bool stopped)
{
    pthread_mutex_lock(&fake_lock);
    stream->stopped = stopped;
    (void)fake_end(0);
}

TIERCE__CU_RESULT cuStreamCreate(TIERCE__CU_STREAM *stream, unsigned int flags)
{
    TIERCE__CU_RESULT code = fake_begin("cuStreamCreate", true);
    (void)flags;
    if (code == TIERCE__CU_SUCCESS)
        *stream = create_stream();
    return fake_end(code);
}

static void destroy_stream(TIERCE__CU_STREAM stream)
{
    if (stream->first != NULL)
        fake_violation("cuStreamDestroy of a stream with work in progress");
    stream->closing = true;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&fake_lock);
    steps[stream->actor] = stream->clock.of[stream->actor];
    streams[stream->actor] = NULL;
    free(stream);
}

TIERCE__CU_RESULT cuStreamDestroy_v2(TIERCE__CU_STREAM stream)
{
    TIERCE__CU_RESULT code = fake_begin("cuStreamDestroy", true);
    if (code == TIERCE__CU_SUCCESS && stream_of(stream, "cuStreamDestroy") == NULL)
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS)
        destroy_stream(stream);
    return fake_end(code);
}

TIERCE__CU_RESULT cuStreamQuery(TIERCE__CU_STREAM stream)
{
    TIERCE__CU_RESULT code = fake_begin_unsafe("cuStreamQuery");
    TIERCE__CU_STREAM found =
        code == TIERCE__CU_SUCCESS ? stream_of(stream, "cuStreamQuery") : NULL;
    if (code == TIERCE__CU_SUCCESS && found == NULL)
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS) {
        while (found->first != NULL && must_wait(&found->asked, found->clock.of[found->actor]))
            pthread_cond_wait(&fake_changed, &fake_lock);
        if (found->first != NULL)
            code = TIERCE__CU_NOT_READY;
        else
            fake_clock_join(fake_host_clock(), &found->clock);
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuStreamSynchronize(TIERCE__CU_STREAM stream)
{
    TIERCE__CU_RESULT code = fake_begin("cuStreamSynchronize", true);
    TIERCE__CU_STREAM found =
        code == TIERCE__CU_SUCCESS ? stream_of(stream, "cuStreamSynchronize") : NULL;
    if (found == NULL)
        return fake_end(code != TIERCE__CU_SUCCESS ? code : TIERCE__CU_INVALID_HANDLE);
    while (found->first != NULL && !fake_is_broken())
        pthread_cond_wait(&fake_changed, &fake_lock);
    if (fake_is_broken())
        return fake_end(TIERCE__CU_LAUNCH_FAILED);
    fake_clock_join(fake_host_clock(), &found->clock);
    return fake_end(TIERCE__CU_SUCCESS);
}

TIERCE__CU_RESULT cuStreamIsCapturing(TIERCE__CU_STREAM stream, TIERCE__CU_CAPTURE_STATUS *status)
{
    TIERCE__CU_RESULT code = fake_begin("cuStreamIsCapturing", true);
    TIERCE__CU_STREAM found =
        code == TIERCE__CU_SUCCESS ? stream_of(stream, "cuStreamIsCapturing") : NULL;
    if (code == TIERCE__CU_SUCCESS && found == NULL)
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS)
        *status = found->captured;
    return fake_end(code);
}

static TIERCE__CU_RESULT capture(TIERCE__CU_STREAM stream, const char *call, bool begins)
{
    TIERCE__CU_RESULT code = fake_begin(call, true);
    TIERCE__CU_STREAM on =
        code == TIERCE__CU_SUCCESS && stream != NULL ? stream_of(stream, call) : NULL;
    if (code == TIERCE__CU_SUCCESS && (on == NULL || on->captured == begins))
        code = TIERCE__CU_INVALID_VALUE;
    if (code == TIERCE__CU_SUCCESS)
        on->captured = begins;
    return fake_end(code);
}

TIERCE__CU_RESULT cuStreamBeginCapture_v2(TIERCE__CU_STREAM stream, TIERCE__CU_CAPTURE_MODE mode)
{
    (void)mode; /* other threads are treated as in the mode "global" */
    return capture(stream, "cuStreamBeginCapture", true);
}

TIERCE__CU_RESULT cuStreamEndCapture(TIERCE__CU_STREAM stream, void **graph)
{
    static int empty_graph;
    TIERCE__CU_RESULT code = capture(stream, "cuStreamEndCapture", false);
    *graph = code == TIERCE__CU_SUCCESS ? &empty_graph : NULL;
    return code;
}

TIERCE__CU_RESULT cuGraphDestroy(void *graph)
{
    return fake_end(fake_begin("cuGraphDestroy", false) != TIERCE__CU_SUCCESS || graph == NULL
                        ? TIERCE__CU_INVALID_VALUE
                        : TIERCE__CU_SUCCESS);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* A step of the stream, ordered after all steps that the host's clock includes. */
static struct operation *enqueue(TIERCE__CU_STREAM stream, const struct operation *what)
{
    struct operation *op = malloc(sizeof(*op));
    if (op == NULL)
        abort();
    *op = *what;
    op->next = NULL;
    if (op->event != NULL)
        op->event->refs++;
    *stream->last = op;
    stream->last = &op->next;
    fake_clock_join(&stream->clock, fake_host_clock());
    stream->clock.of[stream->actor]++;
    return op;
}

TIERCE__CU_RESULT cuEventRecord(TIERCE__CU_EVENT event, TIERCE__CU_STREAM stream)
{
    TIERCE__CU_RESULT code = fake_begin("cuEventRecord", true);
    TIERCE__CU_STREAM on = code == TIERCE__CU_SUCCESS ? stream_of(stream, "cuEventRecord") : NULL;
    if (code == TIERCE__CU_SUCCESS && (on == NULL || !event_ok(event, "cuEventRecord")))
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS) {
        if (on->captured)
            fake_violation("cuEventRecord on a stream that is being captured");
        enqueue(on,
                &(struct operation){.kind = RECORD, .event = event, .record = ++event->recorded});
        event->clock = on->clock;
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuStreamWaitEvent(TIERCE__CU_STREAM stream, TIERCE__CU_EVENT event,
                                    unsigned int flags)
{
    TIERCE__CU_RESULT code = fake_begin("cuStreamWaitEvent", true);
    TIERCE__CU_STREAM on =
        code == TIERCE__CU_SUCCESS ? stream_of(stream, "cuStreamWaitEvent") : NULL;
    (void)flags;
    if (code == TIERCE__CU_SUCCESS && (on == NULL || !event_ok(event, "cuStreamWaitEvent")))
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS) {
        (void)enqueue(on,
                      &(struct operation){.kind = WAIT, .event = event, .record = event->recorded});
        fake_clock_join(&on->clock, &event->clock);
    }
    return fake_end(code);
}

static void enqueue_copy(TIERCE__CU_STREAM stream, void *host, TIERCE__CU_ADDRESS device,
                         size_t bytes, bool to_host)
{
    uint8_t *alias = fake_alias(device, bytes);
    const char *what = to_host ? "a copy to the host" : "a copy to the device";
    struct operation *op = enqueue(stream, &(struct operation){.kind = COPY,
                                                               .to = to_host ? host : alias,
                                                               .from = to_host ? alias : host,
                                                               .bytes = bytes});
    bool device_ok =
        fake_access(&stream->clock, stream->actor, (uintptr_t)device, bytes, !to_host, what);
    bool host_ok =
        fake_access(&stream->clock, stream->actor, (uintptr_t)host, bytes, to_host, what);
    if (!device_ok || !host_ok)
        op->bytes = 0;
}

static TIERCE__CU_RESULT check_copy(TIERCE__CU_STREAM stream, void *host, TIERCE__CU_ADDRESS device,
                                    size_t bytes, const char *call)
{
    if (stream == NULL)
        return TIERCE__CU_INVALID_HANDLE;
    if (!fake_check_pinned(host, bytes, call))
        return TIERCE__CU_INVALID_VALUE;
    if (fake_alias(device, bytes) != NULL)
        return TIERCE__CU_SUCCESS;
    fake_violation("%s of device memory that is not in one allocation", call);
    return TIERCE__CU_INVALID_VALUE;
}

static TIERCE__CU_RESULT copy(const char *call, void *host, TIERCE__CU_ADDRESS device, size_t bytes,
                              TIERCE__CU_STREAM stream, bool to_host)
{
    TIERCE__CU_RESULT code = fake_begin(call, true);
    if (code != TIERCE__CU_SUCCESS)
        return fake_end(code);
    fake_count_copy(false);
    TIERCE__CU_STREAM on = stream_of(stream, call);
    code = check_copy(on, host, device, bytes, call);
    if (code == TIERCE__CU_SUCCESS)
        enqueue_copy(on, host, device, bytes, to_host);
    return fake_end(code);
}

TIERCE__CU_RESULT cuMemcpyDtoHAsync_v2(void *to, TIERCE__CU_ADDRESS from, size_t bytes,
                                       TIERCE__CU_STREAM stream)
{
    return copy("cuMemcpyDtoHAsync", to, from, bytes, stream, true);
}

TIERCE__CU_RESULT cuMemcpyHtoDAsync_v2(TIERCE__CU_ADDRESS to, const void *from, size_t bytes,
                                       TIERCE__CU_STREAM stream)
{
    return copy("cuMemcpyHtoDAsync", (void *)(uintptr_t)from, to, bytes, stream, false);
}

/* A batch checks all of its copies first. The default stream is not accepted. */
static TIERCE__CU_RESULT copy_batch(const TIERCE__CU_ADDRESS *to, const TIERCE__CU_ADDRESS *from,
                                    const size_t *bytes, size_t count,
                                    const TIERCE__CU_COPY_ATTRIBUTES *attributes,
                                    const size_t *first, size_t attribute_count,
                                    TIERCE__CU_STREAM stream)
{
    const char *call = "cuMemcpyBatchAsync";
    TIERCE__CU_RESULT code = fake_begin(call, true);
    if (code != TIERCE__CU_SUCCESS)
        return fake_end(code);
    fake_count_copy(true);
    if (stream == NULL || attribute_count != 1 || first[0] != 0 || count == 0 ||
        attributes[0].source_order != TIERCE__CU_SOURCE_ORDER_STREAM || attributes[0].flags != 0) {
        fake_violation("%s with invalid attributes, or on the default stream", call);
        return fake_end(TIERCE__CU_INVALID_VALUE);
    }
    TIERCE__CU_STREAM on = stream_of(stream, call);
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count && code == TIERCE__CU_SUCCESS; i++) {
            bool to_host = fake_alias(from[i], bytes[i]) != NULL;
            void *host = (void *)(uintptr_t)(to_host ? to[i] : from[i]);
            TIERCE__CU_ADDRESS device = to_host ? from[i] : to[i];
            if (pass == 0)
                code = check_copy(on, host, device, bytes[i], call);
            else
                enqueue_copy(on, host, device, bytes[i], to_host);
        }
    }
    return fake_end(code);
}

TIERCE__CU_RESULT cuMemcpyBatchAsync(TIERCE__CU_ADDRESS *to, TIERCE__CU_ADDRESS *from,
                                     size_t *bytes, size_t count,
                                     TIERCE__CU_COPY_ATTRIBUTES *attributes, size_t *first,
                                     size_t attribute_count, size_t *failed,
                                     TIERCE__CU_STREAM stream)
{
    *failed = SIZE_MAX;
    return copy_batch(to, from, bytes, count, attributes, first, attribute_count, stream);
}

TIERCE__CU_RESULT cuMemcpyBatchAsync_v2(TIERCE__CU_ADDRESS *to, TIERCE__CU_ADDRESS *from,
                                        size_t *bytes, size_t count,
                                        TIERCE__CU_COPY_ATTRIBUTES *attributes, size_t *first,
                                        size_t attribute_count, TIERCE__CU_STREAM stream)
{
    return copy_batch(to, from, bytes, count, attributes, first, attribute_count, stream);
}

/* ---- functions of the host ------------------------------------------------------------------- */

/* The memory that the function of core/device/cuda/cuda_bounce.c uses. */
static bool access_of_host(TIERCE__CU_STREAM on, const struct tierce__bounce_part *part)
{
    const char *what = "a host function";
    size_t used = 0;
    bool ordered = true;
    for (size_t i = 0; i < part->count; i++) {
        const struct tierce__bounce_piece *piece = &part->pieces[i];
        ordered &= fake_access(&on->clock, on->actor, (uintptr_t)piece->cells, piece->bytes,
                               part->to_cells, what);
        used += piece->bytes;
    }
    return fake_access(&on->clock, on->actor, (uintptr_t)part->buffer, used, !part->to_cells,
                       what) &&
           ordered;
}

TIERCE__CU_RESULT cuLaunchHostFunc(TIERCE__CU_STREAM stream, TIERCE__CU_HOST_FN function,
                                   void *argument)
{
    TIERCE__CU_RESULT code = fake_begin("cuLaunchHostFunc", true);
    TIERCE__CU_STREAM on =
        code == TIERCE__CU_SUCCESS ? stream_of(stream, "cuLaunchHostFunc") : NULL;
    if (code == TIERCE__CU_SUCCESS && on == NULL)
        code = TIERCE__CU_INVALID_HANDLE;
    if (code == TIERCE__CU_SUCCESS) {
        fake_count_host();
        struct operation *op = enqueue(
            on, &(struct operation){.kind = HOST, .function = function, .argument = argument});
        if (!access_of_host(on, argument))
            op->function = NULL;
    }
    return fake_end(code);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void enqueue_kernel(TIERCE__CU_STREAM stream, const struct operation *kernel,
                           TIERCE__CU_ADDRESS device, bool writes, const char *what)
{
    pthread_mutex_lock(&fake_lock);
    TIERCE__CU_STREAM on = fake_current() != NULL ? stream_of(stream, what) : NULL;
    if (on == NULL || fake_alias(device, kernel->bytes) == NULL)
        abort(); /* a mistake of the test */
    struct operation *op = enqueue(on, kernel);
    if (!fake_access(&on->clock, on->actor, (uintptr_t)device, op->bytes, writes, what))
        op->bytes = 0;
    (void)fake_end(0);
}

void cuda_fake_kernel_write(TIERCE__CU_STREAM stream, TIERCE__CU_ADDRESS to, const void *bytes,
                            size_t n, const char *what)
{
    void *owned = malloc(n);
    if (owned == NULL)
        abort();
    memcpy(owned, bytes, n);
    struct operation op = {
        .kind = KERNEL, .to = fake_alias(to, n), .from = owned, .bytes = n, .owned = owned};
    enqueue_kernel(stream, &op, to, true, what);
}

void cuda_fake_kernel_read(TIERCE__CU_STREAM stream, void *out, TIERCE__CU_ADDRESS from, size_t n,
                           const char *what)
{
    struct operation op = {.kind = KERNEL, .to = out, .from = fake_alias(from, n), .bytes = n};
    enqueue_kernel(stream, &op, from, false, what);
}

/* The memory that our kernel uses. */
static bool access_of_launch(TIERCE__CU_STREAM on, const struct tierce__launch *device)
{
    const char *what = "the copying kernel";
    bool ordered = device->count == 0 || fake_access(&on->clock, on->actor, (uintptr_t)device->sums,
                                                     device->count * sizeof(uint64_t), true, what);
    for (uint32_t i = 0; i < device->count; i++) {
        ordered &= fake_access(&on->clock, on->actor, (uintptr_t)device->from[i], device->bytes,
                               false, what);
        ordered &=
            fake_access(&on->clock, on->actor, (uintptr_t)device->to[i], device->bytes, true, what);
    }
    return ordered;
}

TIERCE__CU_RESULT fake_enqueue_launch(TIERCE__CU_STREAM stream, const struct fake_launch *launch,
                                      const struct tierce__launch *device,
                                      const struct tierce__decode_launch *decode)
{
    TIERCE__CU_STREAM on = stream_of(stream, "cuLaunchKernel");
    if (on == NULL)
        return TIERCE__CU_INVALID_HANDLE;
    struct fake_launch *own = malloc(sizeof(*own));
    if (own == NULL)
        abort();
    *own = *launch;
    (void)enqueue(on, &(struct operation){.kind = LAUNCH, .owned = own});
    if (!access_of_launch(on, device))
        own->what.count = 0;
    for (size_t i = 0; i < FAKE_RANGES && launch->used[i].bytes > 0; i++) {
        if (!fake_access(&on->clock, on->actor, (uintptr_t)launch->used[i].at,
                         launch->used[i].bytes, i == 0, launch->name))
            own->rotate.items = own->distances.tokens = 0;
    }
    if (decode->count > 0 && !fake_decode_access(&on->clock, on->actor, decode))
        own->decode.count = 0;
    return TIERCE__CU_SUCCESS;
}
