/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coded KV: speed and size of each codec, beside memcpy (the limit), zstd -1 and lz4 on the same
 * bytes in the same run. The limit of a size is the order-0 bound of the exponents of 64 KiB, of a
 * lossy codec the bits of its codes. Lossy codecs have rows for bf16 and fp16, beside zstd;
 * cachegen has rows beside LMCache's coder, whose restored values must be equal (bench_cachegen.h).
 * Rows of the other kernels that the machine can run have the one that it uses as their peer. Loads
 * of coded chunks from a remote store and from memory have rows for bf16
 * (bench/remote/bench_coded.c).
 * --kv names a file of tools/kv_samples.py, whose end says which elements it has; without it the
 * values are made up.
 */
#include "bench/bench.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "bench/bench_cachegen.h"
#include "bench/bench_values.h"
#include "bench/remote/bench_coded.h"
#include "core/codec/codec.h"

#define PART_ELEMENTS TIERCE__BENCH_PART_ELEMENTS
#define RUN_PARTS     32u /* a layer of a chunk of 256 tokens */
#define MADE_UP_RUNS  8u
#define BLOCK_BYTES   65536u
#define ENCODE_GOAL   0.15 /* of memcpy */
#define DECODE_GOAL   0.3
#define SIZE_GOAL     0.97
#define ROW_ELEMENTS  192u /* keys or values of a token */
#define MODEL_LAYERS  30u
#define LOSSY_GOAL    0.05 /* of memcpy, both ways */
#define NAME_BYTES    112u

struct lossy {
    const char *name;
    double code_bits; /* of an element, without scales */
    double size_goal; /* cachegen entropy-codes its codes */
};

static const struct lossy lossy_codecs[] = {
    {"int8", 8, 0.95}, {"fp8", 8, 0.95}, {"int4", 4, 0.85}, {"cachegen", 5, 0.8}};

struct bench_codec {
    const struct tierce__bench *bench;
    const struct lossy *lossy; /* NULL: the lossless codec */
    const struct tierce__codec *codec;
    struct tierce__codec_shape shape;
    const char *source;
    uint64_t bytes, run_bytes, room; /* room: for the coded bytes of a run, by any coder */
    uint8_t *values, *back;
    uint8_t *coded[3]; /* a room for each run; of ours, zstd and lz4 */
    uint64_t *lengths[3];
    ZSTD_CCtx *zstd_out;
    ZSTD_DCtx *zstd_in;
    void *lz4; /* liblz4, or NULL */
    int (*lz4_out)(const char *src, char *dst, int src_bytes, int dst_bytes);
    int (*lz4_in)(const char *src, char *dst, int src_bytes, int dst_bytes);
    struct tierce__bench_cachegen *lmcache; /* or NULL */
    double lmcache_percent;                 /* of what it stores */
    unsigned kernel;                        /* of encode_kernel and decode_kernel */
};

enum coder { OURS, ZSTD, LZ4, CODERS };

/* Time of the processor: all sides are computation on one thread, and other processes are no
 * matter. */
static uint64_t processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t length_of(const struct bench_codec *c, uint64_t at)
{
    return c->bytes - at < c->run_bytes ? c->bytes - at : c->run_bytes;
}

static uint64_t runs_of(const struct bench_codec *c)
{
    return (c->bytes + c->run_bytes - 1) / c->run_bytes;
}

/* ---- encoding and decoding: each run, into a room of its own --------------------------------- */

static int64_t encode_run(struct bench_codec *c, enum coder coder, uint64_t at, uint8_t *dst)
{
    const uint8_t *src = c->values + at;
    uint64_t bytes = length_of(c, at);
    if (coder == OURS) {
        struct tierce__codec_shape shape = c->shape;
        shape.layer = (uint32_t)(at / c->run_bytes * MODEL_LAYERS / runs_of(c));
        return c->codec->encode(dst, c->room, src, bytes, &shape);
    }
    if (coder == LZ4)
        return c->lz4_out((const char *)src, (char *)dst, (int)bytes, (int)c->room);
    size_t length = ZSTD_compressCCtx(c->zstd_out, dst, c->room, src, bytes, 1);
    return ZSTD_isError(length) ? -EIO : (int64_t)length;
}

static int64_t decode_run(struct bench_codec *c, enum coder coder, uint64_t at, const uint8_t *src,
                          uint64_t length)
{
    uint8_t *dst = c->back + at;
    uint64_t bytes = length_of(c, at);
    if (coder == OURS)
        return c->codec->decode(dst, bytes, src, length);
    if (coder == LZ4)
        return c->lz4_in((const char *)src, (char *)dst, (int)length, (int)bytes);
    size_t got = ZSTD_decompressDCtx(c->zstd_in, dst, bytes, src, length);
    return ZSTD_isError(got) ? -EIO : (int64_t)got;
}

static int64_t encode_all(struct bench_codec *c, enum coder coder)
{
    uint64_t start = processor_ns(), i = 0;
    for (uint64_t at = 0; at < c->bytes; at += c->run_bytes, i++) {
        int64_t length = encode_run(c, coder, at, c->coded[coder] + i * c->room);
        if (length <= 0)
            return tierce__bench_fail(c->bench, "coder %d cannot encode: %lld", (int)coder,
                                      (long long)length);
        c->lengths[coder][i] = (uint64_t)length;
    }
    return (int64_t)(processor_ns() - start);
}

static int64_t decode_all(struct bench_codec *c, enum coder coder)
{
    uint64_t start = processor_ns(), i = 0;
    for (uint64_t at = 0; at < c->bytes; at += c->run_bytes, i++) {
        int64_t rc = decode_run(c, coder, at, c->coded[coder] + i * c->room, c->lengths[coder][i]);
        if (rc < 0)
            return tierce__bench_fail(c->bench, "coder %d cannot decode: %lld", (int)coder,
                                      (long long)rc);
    }
    return (int64_t)(processor_ns() - start);
}

static int64_t encode_ours(void *arg)
{
    return encode_all(arg, OURS);
}

static int64_t encode_zstd(void *arg)
{
    return encode_all(arg, ZSTD);
}

static int64_t encode_lz4(void *arg)
{
    return encode_all(arg, LZ4);
}

static int64_t decode_ours(void *arg)
{
    return decode_all(arg, OURS);
}

static int64_t decode_zstd(void *arg)
{
    return decode_all(arg, ZSTD);
}

static int64_t decode_lz4(void *arg)
{
    return decode_all(arg, LZ4);
}

static int64_t encode_lmcache(void *arg)
{
    struct bench_codec *c = arg;
    return tierce__bench_cachegen_encode(c->lmcache);
}

static int64_t decode_lmcache(void *arg)
{
    struct bench_codec *c = arg;
    return tierce__bench_cachegen_decode(c->lmcache);
}

static int64_t run_kernel(struct bench_codec *c, int64_t (*run)(struct bench_codec *, enum coder))
{
    tierce__kernel_force(&tierce__codec_kernels, c->kernel);
    int64_t ns = run(c, OURS);
    tierce__kernel_force(&tierce__codec_kernels, UINT_MAX);
    return ns;
}

static int64_t encode_kernel(void *arg)
{
    return run_kernel(arg, encode_all);
}

static int64_t decode_kernel(void *arg)
{
    return run_kernel(arg, decode_all);
}

static int64_t copy_all(void *arg)
{
    struct bench_codec *c = arg;
    uint64_t start = processor_ns();
    for (uint64_t at = 0; at < c->bytes; at += c->run_bytes)
        memcpy(c->back + at, c->values + at, length_of(c, at));
    return (int64_t)(processor_ns() - start);
}

/* The least bytes, of 100, that a coder of order 0 needs for the exponents of each block. */
static double bound_percent(const struct bench_codec *c)
{
    if (c->lossy != NULL)
        return c->lossy->code_bits / 16.0 * 100;
    enum tierce__element element = c->shape.element;
    unsigned width = tierce__element_bytes(element), bits = 8 * width;
    unsigned exponent_bits = element == TIERCE__ELEMENT_BF16   ? 8
                             : element == TIERCE__ELEMENT_E4M3 ? 4
                                                               : 5;
    double sum = 0;
    for (uint64_t at = 0; at < c->bytes; at += BLOCK_BYTES) {
        uint32_t counts[256] = {0};
        uint64_t end = at + BLOCK_BYTES < c->bytes ? at + BLOCK_BYTES : c->bytes;
        for (uint64_t i = at; i + width <= end; i += width) {
            unsigned value = width == 1 ? c->values[i] : tierce__load_le16(c->values + i);
            counts[value >> (bits - 1 - exponent_bits) & ((1u << exponent_bits) - 1)]++;
        }
        double elements = (double)((end - at) / width);
        sum += elements * (bits - exponent_bits);
        for (unsigned i = 0; i < 256; i++)
            sum += counts[i] > 0 ? counts[i] * log2(elements / counts[i]) : 0;
    }
    return sum / 8 / (double)c->bytes * 100;
}

/* ---- rows -------------------------------------------------------------------------------------
 */

static const char *const peers[CODERS] = {[ZSTD] = "zstd -1", [LZ4] = "lz4"};

/* Of lossy codecs' peers only zstd is general. */
static enum coder peers_end(const struct bench_codec *c)
{
    return c->lossy != NULL ? LZ4 : CODERS;
}

/* The last two: "beside " a peer, or "kernel " and its name. */
static void case_name(char name[NAME_BYTES], const struct bench_codec *c, const char *what,
                      const char *word, const char *other)
{
    snprintf(name, NAME_BYTES, "%s %s%s%s; %s; %s%s", what, c->lossy != NULL ? c->lossy->name : "",
             c->lossy != NULL ? " of " : "", tierce__element_name(c->shape.element), c->source,
             word, other);
}

struct peer {
    const char *name; /* NULL: there is none, and no value */
    double value;
};

static void emit_speed(const struct bench_codec *c, const char *name,
                       const struct tierce__bench_side sides[2], double goal, struct peer peer)
{
    double gb = (double)c->bytes;
    tierce__bench_emit(c->bench, &(struct tierce__bench_row){.case_name = name,
                                                             .unit = "GB/s",
                                                             .value = gb / sides[0].median_ns,
                                                             .limit = gb / sides[1].median_ns,
                                                             .goal = goal,
                                                             .peer = peer.name,
                                                             .peer_value = peer.value,
                                                             .value_min = gb / sides[0].max_ns,
                                                             .value_max = gb / sides[0].min_ns,
                                                             .limit_min = gb / sides[1].max_ns,
                                                             .limit_max = gb / sides[1].min_ns});
}

/* Ours, memcpy, zstd, and lz4 or LMCache. */
static int measure_speed(struct bench_codec *c, const char *what,
                         const struct tierce__bench_side sides_of[5], double goal)
{
    struct tierce__bench_side sides[4];
    char name[NAME_BYTES];
    memcpy(sides, sides_of, sizeof(sides));
    if (c->lmcache != NULL)
        sides[3] = sides_of[4];
    for (unsigned i = 0; i < 4; i++)
        sides[i].arg = c;
    bool has_lz4 = c->lz4 != NULL && c->lossy == NULL;
    int rc =
        tierce__bench_alternate(sides, has_lz4 || c->lmcache != NULL ? 4 : 3, c->bench->seconds);
    if (rc < 0)
        return rc;
    for (enum coder coder = ZSTD; coder < peers_end(c); coder++) {
        struct peer peer = {0};
        if (coder == ZSTD || has_lz4)
            peer = (struct peer){peers[coder], (double)c->bytes / sides[1 + coder].median_ns};
        case_name(name, c, what, "beside ", peers[coder]);
        emit_speed(c, name, sides, goal, peer);
    }
    if (c->lmcache == NULL)
        return 0;
    uint64_t sample = tierce__bench_cachegen_sample_bytes(c->lmcache);
    struct peer peer = {tierce__bench_cachegen_name(c->lmcache),
                        (double)sample / sides[3].median_ns};
    case_name(name, c, what, "beside ", peer.name);
    emit_speed(c, name, sides, goal, peer);
    return 0;
}

/* The other kernels of the machine, beside the one that it uses. */
static int measure_kernels(struct bench_codec *c, const char *what,
                           const struct tierce__bench_side sides_of[3], double goal)
{
    bool is_other = false;
    int rc = 0;
    for (c->kernel = 0; rc == 0; c->kernel++) {
        const char *kernel = tierce__kernel_name(&tierce__codec_kernels, c->kernel);
        char name[NAME_BYTES];
        if (kernel == NULL)
            return 0;
        if (!tierce__kernel_usable(&tierce__codec_kernels, c->kernel))
            continue;
        struct tierce__bench_side sides[3];
        memcpy(sides, sides_of, sizeof(sides));
        for (unsigned i = 0; i < 3; i++)
            sides[i].arg = c;
        if (is_other)
            rc = tierce__bench_alternate(sides, 3, c->bench->seconds);
        if (rc == 0 && is_other) {
            case_name(name, c, what, "kernel ", kernel);
            emit_speed(c, name, sides, goal,
                       (struct peer){"the kernel in use", (double)c->bytes / sides[2].median_ns});
        }
        is_other = true;
    }
    return rc;
}

static double coded_percent(const struct bench_codec *c, enum coder coder)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i * c->run_bytes < c->bytes; i++)
        sum += c->lengths[coder][i];
    return (double)sum / (double)c->bytes * 100;
}

static void emit_size(const struct bench_codec *c, const char *beside, struct peer peer)
{
    char name[NAME_BYTES];
    case_name(name, c, "size of", "beside ", beside);
    tierce__bench_emit(c->bench, &(struct tierce__bench_row){
                                     .case_name = name,
                                     .unit = "%",
                                     .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                     .value = coded_percent(c, OURS),
                                     .limit = bound_percent(c),
                                     .goal = c->lossy != NULL ? c->lossy->size_goal : SIZE_GOAL,
                                     .peer = peer.name,
                                     .peer_value = peer.value});
}

static void report_size(const struct bench_codec *c)
{
    for (enum coder coder = ZSTD; coder < peers_end(c); coder++) {
        struct peer peer = {0};
        if (coder == ZSTD || c->lz4 != NULL)
            peer = (struct peer){peers[coder], coded_percent(c, coder)};
        emit_size(c, peers[coder], peer);
    }
    if (c->lmcache != NULL) {
        const char *name = tierce__bench_cachegen_name(c->lmcache);
        emit_size(c, name, (struct peer){name, c->lmcache_percent});
    }
}

/* ---- LMCache ----------------------------------------------------------------------------------
 */

static int start_lmcache(struct bench_codec *c)
{
    uint64_t runs = c->bytes / c->run_bytes;
    if (c->lossy == NULL || strcmp(c->lossy->name, "cachegen") != 0 || runs == 0)
        return 0;
    const struct tierce__bench_cachegen_runs what = {.values = c->values,
                                                     .count = runs,
                                                     .run_bytes = c->run_bytes,
                                                     .element = c->shape.element,
                                                     .part_rows = PART_ELEMENTS / ROW_ELEMENTS,
                                                     .row_elements = ROW_ELEMENTS,
                                                     .layers = MODEL_LAYERS};
    int rc = tierce__bench_cachegen_open(&c->lmcache, c->bench, &what);
    return rc == -ENOTSUP ? 0 : rc;
}

/* Whether LMCache restores the values in c->back. A run with a NaN or an infinity, which is stored
 * as it is, is no run for its quantizer. */
static int compare_lmcache(struct bench_codec *c)
{
    uint64_t runs = c->bytes / c->run_bytes, coded;
    uint8_t *theirs = tierce__alloc(c->run_bytes);
    int rc = theirs != NULL ? tierce__bench_cachegen_restore(c->lmcache, &coded) : -ENOMEM;
    for (uint64_t i = 0; rc == 0 && i < runs; i++) {
        rc = tierce__bench_cachegen_read_run(c->lmcache, theirs);
        if (rc == 0 && c->lengths[OURS][i] < c->run_bytes &&
            memcmp(theirs, c->back + i * c->run_bytes, c->run_bytes) != 0)
            rc = tierce__bench_fail(c->bench, "LMCache restores other values of run %llu",
                                    (unsigned long long)i);
    }
    if (rc == 0)
        c->lmcache_percent = (double)coded / (double)(runs * c->run_bytes) * 100;
    tierce__free(theirs);
    return rc;
}

/* ---- a codec ----------------------------------------------------------------------------------
 */

/* Decodes what was encoded, once, before anything is measured. */
static int check(struct bench_codec *c)
{
    bool is_exact = c->codec->is_exact;
    enum coder end = c->lz4 != NULL && is_exact ? CODERS : LZ4;
    for (enum coder coder = end; coder-- > OURS;) { /* OURS is last, and stays in c->back */
        memset(c->back, 0, c->bytes);
        int64_t ns = encode_all(c, coder);
        if (ns >= 0)
            ns = decode_all(c, coder);
        if (ns < 0)
            return (int)ns;
        if ((coder != OURS || is_exact) && memcmp(c->back, c->values, c->bytes) != 0)
            return tierce__bench_fail(c->bench, "coder %d has not restored the values", (int)coder);
    }
    return c->lmcache != NULL ? compare_lmcache(c) : 0;
}

static int measure(struct bench_codec *c)
{
    static const struct tierce__bench_side encoders[5] = {{.run = encode_ours},
                                                          {.run = copy_all},
                                                          {.run = encode_zstd},
                                                          {.run = encode_lz4},
                                                          {.run = encode_lmcache}};
    static const struct tierce__bench_side decoders[5] = {{.run = decode_ours},
                                                          {.run = copy_all},
                                                          {.run = decode_zstd},
                                                          {.run = decode_lz4},
                                                          {.run = decode_lmcache}};
    static const struct tierce__bench_side encoding[3] = {
        {.run = encode_kernel}, {.run = copy_all}, {.run = encode_ours}};
    static const struct tierce__bench_side decoding[3] = {
        {.run = decode_kernel}, {.run = copy_all}, {.run = decode_ours}};
    double encode_goal = c->codec->is_exact ? ENCODE_GOAL : LOSSY_GOAL,
           decode_goal = c->codec->is_exact ? DECODE_GOAL : LOSSY_GOAL;
    int rc = check(c);
    if (rc == 0)
        rc = measure_speed(c, "encode", encoders, encode_goal);
    if (rc == 0)
        report_size(c);
    if (rc == 0)
        rc = measure_speed(c, "decode", decoders, decode_goal);
    if (rc == 0)
        rc = measure_kernels(c, "encode", encoding, encode_goal);
    return rc == 0 ? measure_kernels(c, "decode", decoding, decode_goal) : rc;
}

/* ---- set-up -----------------------------------------------------------------------------------
 */

static void find_lz4(struct bench_codec *c)
{
    int (*bound)(int) = NULL;
    c->lz4 = dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
    if (c->lz4 == NULL)
        return;
    *(void **)&c->lz4_out = dlsym(c->lz4, "LZ4_compress_default");
    *(void **)&c->lz4_in = dlsym(c->lz4, "LZ4_decompress_safe");
    *(void **)&bound = dlsym(c->lz4, "LZ4_compressBound");
    if (c->lz4_out == NULL || c->lz4_in == NULL || bound == NULL) {
        dlclose(c->lz4);
        c->lz4 = NULL;
        return;
    }
    uint64_t room = (uint64_t)bound((int)c->run_bytes);
    c->room = room > c->room ? room : c->room;
}

static void tear_down(struct bench_codec *c)
{
    uint64_t rooms = (c->bytes / c->run_bytes + 1) * c->room;
    tierce__bench_unmap(c->values, c->bytes);
    tierce__bench_unmap(c->back, c->bytes);
    for (unsigned i = 0; i < CODERS; i++) {
        tierce__bench_unmap(c->coded[i], rooms);
        tierce__free(c->lengths[i]);
    }
    ZSTD_freeCCtx(c->zstd_out);
    ZSTD_freeDCtx(c->zstd_in);
    if (c->lz4 != NULL)
        dlclose(c->lz4);
    tierce__bench_cachegen_close(c->lmcache);
}

static int set_up(struct bench_codec *c)
{
    c->run_bytes = (uint64_t)RUN_PARTS * PART_ELEMENTS * tierce__element_bytes(c->shape.element);
    c->shape.part_bytes = c->run_bytes / RUN_PARTS;
    c->bytes = c->bytes > 0 ? c->bytes : MADE_UP_RUNS * c->run_bytes;
    c->codec = tierce__codec_find(c->lossy != NULL ? c->lossy->name : "lossless");
    c->shape.row_bytes = (uint64_t)ROW_ELEMENTS * tierce__element_bytes(c->shape.element);
    c->shape.layers = MODEL_LAYERS;
    if (c->lossy != NULL) /* whole rows and parts */
        c->bytes -= c->bytes % c->shape.part_bytes;
    c->room = tierce__codec_bound(c->run_bytes);
    uint64_t room = ZSTD_compressBound(c->run_bytes), runs = c->bytes / c->run_bytes + 1;
    c->room = room > c->room ? room : c->room;
    find_lz4(c);
    bool is_complete = (c->values = tierce__bench_map(c->bytes)) != NULL &&
                       (c->back = tierce__bench_map(c->bytes)) != NULL &&
                       (c->zstd_out = ZSTD_createCCtx()) != NULL &&
                       (c->zstd_in = ZSTD_createDCtx()) != NULL;
    for (unsigned i = 0; i < CODERS && is_complete; i++)
        is_complete = (c->coded[i] = tierce__bench_map(runs * c->room)) != NULL &&
                      (c->lengths[i] = tierce__calloc(runs, sizeof(uint64_t))) != NULL;
    return is_complete ? 0 : -ENOMEM;
}

static int run_codec(struct bench_codec c, const struct lossy *lossy)
{
    c.lossy = lossy;
    int rc = set_up(&c);
    if (rc == 0 && c.bench->kv != NULL)
        rc = tierce__bench_values_read(c.bench, c.values, c.bytes);
    else if (rc == 0)
        tierce__bench_values_make_up(c.values, c.bytes, c.shape.element);
    if (rc == 0)
        rc = start_lmcache(&c);
    if (rc == 0)
        rc = measure(&c);
    if (rc == 0 && lossy == NULL && c.shape.element == TIERCE__ELEMENT_BF16)
        rc = tierce__bench_coded(c.bench, c.values, c.bytes, c.source);
    tear_down(&c);
    return rc;
}

static int run_case(const struct bench_codec *c)
{
    bool has_part = c->bytes == 0 || c->bytes >= 2 * PART_ELEMENTS;
    bool has_lossy = tierce__element_bytes(c->shape.element) == 2 && has_part;
    int rc = run_codec(*c, NULL);
    for (unsigned i = 0; rc == 0 && has_lossy && i < sizeof(lossy_codecs) / sizeof(lossy_codecs[0]);
         i++)
        rc = run_codec(*c, &lossy_codecs[i]);
    return rc;
}

static int run_file(const struct tierce__bench *bench)
{
    const char *path = bench->kv;
    enum tierce__element element = tierce__bench_values_element(bench);
    if (element == TIERCE__ELEMENTS)
        return tierce__bench_fail(bench,
                                  "the name of %s must end with .bf16, .fp16, .e4m3 or .e5m2: the "
                                  "files of tools/kv_samples.py do",
                                  path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    if (fd >= 0)
        close(fd);
    if (bytes <= 0)
        return tierce__bench_fail(bench, "%s cannot be read, or is empty", path);
    uint64_t most = bench->memory_bytes / (2 + CODERS);
    struct bench_codec c = {
        .bench = bench, .shape.element = element, .source = tierce__bench_values_source(bench)};
    c.bytes = (uint64_t)bytes < most ? (uint64_t)bytes : most / BLOCK_BYTES * BLOCK_BYTES;
    return run_case(&c);
}

int tierce__bench_codec(const struct tierce__bench *bench)
{
    static const enum tierce__element elements[] = {TIERCE__ELEMENT_BF16, TIERCE__ELEMENT_E4M3};
    if (bench->kv != NULL)
        return run_file(bench);
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < sizeof(elements) / sizeof(elements[0]); i++) {
        struct bench_codec c = {.bench = bench,
                                .shape.element = elements[i],
                                .source = tierce__bench_values_source(bench)};
        rc = run_case(&c);
    }
    return rc;
}
