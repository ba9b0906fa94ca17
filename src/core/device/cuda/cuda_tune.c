/* SPDX-License-Identifier: Apache-2.0 */
#include "core/device/cuda/cuda_trial.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"

/* Every method is measured once in every class, whatever the first ones took, and then again while
 * all measurements together have taken less than REPEAT_NS. A class that could not be measured
 * within LAST_NS uses the default method. */
#define REPEAT_NS (200 * (int64_t)TIERCE__MS_NS)
#define LAST_NS   (3000 * (int64_t)TIERCE__MS_NS)
#define ROUNDS    3
/* A method that takes this many times as long as another one is not measured again. */
#define HOPELESS 3

/* ---- ways and classes -------------------------------------------------------------------------
 */

static _Atomic int forced = TIERCE__CUDA_WAYS; /* relaxed: set before devices are tuned */

void tierce__cuda_force(enum tierce__cuda_way way)
{
    TIERCE_ASSERT(way <= TIERCE__CUDA_WAYS);
    atomic_store_explicit(&forced, (int)way, memory_order_relaxed);
}

const char *tierce__cuda_way_name(enum tierce__cuda_way way)
{
    static const char *const names[] = {"copies", "direct", "staged", "fastest"};
    TIERCE_ASSERT(way <= TIERCE__CUDA_WAYS);
    return names[way];
}

static const uint32_t class_bytes[TIERCE__CUDA_CLASSES] = {4 << 10, 16 << 10, 64 << 10, 256 << 10,
                                                           1 << 20};

unsigned tierce__cuda_class(uint64_t bytes)
{
    unsigned class_ = 0;
    while (class_ < TIERCE__CUDA_CLASSES - 1 && bytes > class_bytes[class_])
        class_++;
    return class_;
}

enum tierce__cuda_way tierce__cuda_used(struct tierce__device *device, bool is_load,
                                        unsigned class_)
{
    const struct tierce__cuda_kernel *kernel =
        atomic_load_explicit(&tierce__cuda_of(device)->kernel, memory_order_acquire);
    TIERCE_ASSERT(class_ < TIERCE__CUDA_CLASSES);
    if (kernel == NULL)
        return TIERCE__CUDA_COPIES;
    return kernel->ways[is_load ? TIERCE__DIRECTION_SCATTER : TIERCE__DIRECTION_GATHER][class_];
}

/* ---- measuring --------------------------------------------------------------------------------
 */

static bool is_able(const struct tierce__cuda_kernel *kernel, enum tierce__cuda_way way)
{
    if (way == TIERCE__CUDA_DIRECT)
        return kernel->direct;
    return way == TIERCE__CUDA_COPIES || kernel->staging[0] != 0;
}

/* The shortest times of all methods, 0: not measured. */
struct tuning {
    int64_t ns[TIERCE__DIRECTIONS][TIERCE__CUDA_CLASSES][TIERCE__CUDA_WAYS];
    int64_t spent_ns;
    unsigned measured; /* classes in which every method that is able was measured */
};

static int64_t shortest(const int64_t ns[TIERCE__CUDA_WAYS])
{
    int64_t best = INT64_MAX;
    for (int way = 0; way < TIERCE__CUDA_WAYS; way++)
        best = ns[way] > 0 && ns[way] < best ? ns[way] : best;
    return best;
}

/* Measures the methods of one class once more. Returns false if the time is over. Errors: -ENOMEM,
 * -EIO. */
static int measure(struct tuning *tuning, struct tierce__cuda_trial *trial,
                   enum tierce__direction direction, unsigned class_, int64_t last_ns)
{
    int64_t *best_ns = tuning->ns[direction][class_];
    for (int way = 0; way < TIERCE__CUDA_WAYS; way++) {
        if (!is_able(trial->kernel, (enum tierce__cuda_way)way) ||
            best_ns[way] / HOPELESS > shortest(best_ns))
            continue;
        if (tuning->spent_ns >= last_ns)
            return false;
        int64_t ns = tierce__cuda_trial_run(trial, direction, (enum tierce__cuda_way)way,
                                            class_bytes[class_]);
        if (ns < 0)
            return (int)ns;
        tuning->spent_ns += ns;
        if (best_ns[way] == 0 || ns < best_ns[way])
            best_ns[way] = ns > 0 ? ns : 1;
    }
    return true;
}

static int measure_round(struct tuning *tuning, struct tierce__cuda_trial *trial, bool is_first)
{
    int64_t last_ns = is_first ? LAST_NS : REPEAT_NS;
    for (unsigned i = 0; i < TIERCE__DIRECTIONS * TIERCE__CUDA_CLASSES; i++) {
        int rc = measure(tuning, trial, (enum tierce__direction)(i % TIERCE__DIRECTIONS),
                         i / TIERCE__DIRECTIONS, last_ns);
        if (rc <= 0)
            return rc;
        tuning->measured += is_first;
    }
    return true;
}

/* The default method, unless another one is faster. */
static enum tierce__cuda_way fastest(const int64_t ns[TIERCE__CUDA_WAYS])
{
    enum tierce__cuda_way best = TIERCE__CUDA_COPIES;
    for (int way = 0; way < TIERCE__CUDA_WAYS; way++) {
        if (ns[way] > 0 && ns[way] < ns[best])
            best = (enum tierce__cuda_way)way;
    }
    return best;
}

static int choose_all(struct tierce__cuda_trial *trial)
{
    struct tuning tuning = {0};
    int rc = true;
    for (int round = 0; round < ROUNDS && rc == true; round++)
        rc = measure_round(&tuning, trial, round == 0);
    if (rc < 0)
        return rc;
    for (int direction = 0; direction < TIERCE__DIRECTIONS; direction++) {
        for (unsigned class_ = 0; class_ < TIERCE__CUDA_CLASSES; class_++)
            trial->kernel->ways[direction][class_] = fastest(tuning.ns[direction][class_]);
    }
    if (tuning.measured < TIERCE__DIRECTIONS * TIERCE__CUDA_CLASSES)
        tierce__log(
            TIERCE_LOG_WARN, "device_not_measured",
            "device=%d classes=%u of=%u consequence=\"the other classes of cells use the copy "
            "engine, which may not be the fastest way\"",
            trial->cuda->device, tuning.measured,
            (unsigned)TIERCE__DIRECTIONS * TIERCE__CUDA_CLASSES);
    return 0;
}

static void force_all(struct tierce__cuda_kernel *kernel, enum tierce__cuda_way way)
{
    kernel->is_forced = true;
    for (unsigned class_ = 0; class_ < TIERCE__CUDA_CLASSES; class_++)
        kernel->ways[TIERCE__DIRECTION_GATHER][class_] =
            kernel->ways[TIERCE__DIRECTION_SCATTER][class_] = way;
}

/* ---- the log ----------------------------------------------------------------------------------
 */

enum { LINE_BYTES = 128 };

/* "4KiB:copies 16KiB:direct ... more:staged" */
static void print_ways(char line[LINE_BYTES], const enum tierce__cuda_way *ways)
{
    size_t at = 0;
    for (unsigned i = 0; i < TIERCE__CUDA_CLASSES; i++) {
        const char *name = tierce__cuda_way_name(ways[i]);
        int n = i + 1 < TIERCE__CUDA_CLASSES
                    ? snprintf(line + at, LINE_BYTES - at, "%uKiB:%s ", class_bytes[i] >> 10, name)
                    : snprintf(line + at, LINE_BYTES - at, "more:%s", name);
        TIERCE_ASSERT(n > 0 && (size_t)n < LINE_BYTES - at);
        at += (size_t)n;
    }
}

static void log_ways(const struct tierce__cuda *cuda, const struct tierce__cuda_kernel *kernel)
{
    char gather[LINE_BYTES], scatter[LINE_BYTES];
    print_ways(gather, kernel->ways[TIERCE__DIRECTION_GATHER]);
    print_ways(scatter, kernel->ways[TIERCE__DIRECTION_SCATTER]);
    tierce__log(TIERCE_LOG_INFO, "device_ways",
                "device=%d store=\"%s\" load=\"%s\" thread_blocks=%u", cuda->device, gather,
                scatter, kernel->blocks_max);
}

static void log_refusal(const struct tierce__cuda *cuda, const struct tierce__cuda_refusal *why,
                        int rc)
{
    tierce__log(
        TIERCE_LOG_WARN, "cuda_no_kernel",
        "device=%d why=\"%s\" consequence=\"the copy engine moves KV, and the host computes "
        "its sums\"",
        cuda->device, why->text[0] != '\0' ? why->text : tierce_strerror(rc));
}

/* ---- tune -------------------------------------------------------------------------------------
 */

static int compare(struct tierce__cuda_trial *trial, enum tierce__cuda_way way,
                   struct tierce__cuda_refusal *why)
{
    uint32_t bytes = 0;
    if (!is_able(trial->kernel, way))
        return 0;
    int rc = tierce__cuda_trial_compare(trial, way, &bytes);
    if (rc == TIERCE_E_CHECKSUM)
        snprintf(why->text, sizeof(why->text),
                 "%s copies of cells of %u bytes differ from the host's",
                 tierce__cuda_way_name(way), bytes);
    return rc;
}

/* Only the methods that may be used are tried. */
static int try_kernel(struct tierce__cuda_trial *trial, struct tierce__cuda_refusal *why)
{
    int way = atomic_load_explicit(&forced, memory_order_relaxed);
    int rc = 0;
    if (way != TIERCE__CUDA_STAGED)
        rc = compare(trial, TIERCE__CUDA_DIRECT, why);
    if (rc == 0 && way != TIERCE__CUDA_DIRECT)
        rc = compare(trial, TIERCE__CUDA_STAGED, why);
    if (rc < 0)
        return rc;
    if (way == TIERCE__CUDA_WAYS)
        return choose_all(trial);
    if (is_able(trial->kernel, (enum tierce__cuda_way)way))
        force_all(trial->kernel, (enum tierce__cuda_way)way);
    return 0;
}

static bool is_used(const struct tierce__cuda_kernel *kernel, enum tierce__cuda_way way)
{
    bool is_used = false;
    for (unsigned class_ = 0; class_ < TIERCE__CUDA_CLASSES; class_++)
        is_used |= kernel->ways[TIERCE__DIRECTION_GATHER][class_] == way ||
                   kernel->ways[TIERCE__DIRECTION_SCATTER][class_] == way;
    return is_used;
}

/* Opens the kernel, tries it, and chooses the methods. */
static int open_tried(struct tierce__cuda *cuda, struct tierce__cuda_refusal *why)
{
    struct tierce__cuda_trial trial;
    int rc = tierce__cuda_enter_good(cuda);
    if (rc == 0) {
        rc = tierce__cuda_kernel_open(&cuda->own_kernel, cuda, why);
        rc = tierce__cuda_leave(cuda, rc);
    }
    if (rc < 0)
        return rc;
    rc = tierce__cuda_trial_init(&trial, cuda, cuda->own_kernel);
    if (rc == 0)
        rc = try_kernel(&trial, why);
    tierce__cuda_trial_fini(&trial);
    return rc;
}

/* Frees the unused memory. If a copy may be in progress, close frees it later. */
static int tidy(struct tierce__cuda *cuda, int rc)
{
    if (atomic_load_explicit(&cuda->failed, memory_order_relaxed))
        return -EIO;
    int freed = tierce__cuda_trial_free(cuda);
    int entered = freed < 0 ? freed : tierce__cuda_enter_good(cuda);
    if (entered < 0)
        return entered;
    if (rc < 0) {
        tierce__cuda_kernel_close(cuda, cuda->own_kernel);
        cuda->own_kernel = NULL;
    } else if (!is_used(cuda->own_kernel, TIERCE__CUDA_STAGED)) {
        tierce__cuda_kernel_unstage(cuda, cuda->own_kernel);
    }
    return tierce__cuda_leave(cuda, rc);
}

void tierce__cuda_tune(struct tierce__device *device)
{
    struct tierce__cuda *cuda = tierce__cuda_of(device);
    struct tierce__cuda_refusal why = {""};
    if (!tierce__cuda_usable() ||
        atomic_exchange_explicit(&cuda->tuned, true, memory_order_relaxed))
        return;
    if (atomic_load_explicit(&forced, memory_order_relaxed) == TIERCE__CUDA_COPIES)
        return;
    int rc = tidy(cuda, open_tried(cuda, &why));
    if (rc < 0) {
        log_refusal(cuda, &why, rc);
        return;
    }
    log_ways(cuda, cuda->own_kernel);
    atomic_store_explicit(&cuda->kernel, cuda->own_kernel, memory_order_release);
}
