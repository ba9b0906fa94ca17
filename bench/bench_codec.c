/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coded KV: speed and size of each codec, beside memcpy (the limit), zstd -1 and lz4 on the same
 * bytes in the same run. The limit of a size is the order-0 bound of the exponents of 64 KiB, of a
 * lossy codec the bits of its codes. Lossy codecs have rows for bf16 and fp16, beside zstd only.
 * Loads of coded chunks from a remote store and from memory have rows for bf16
 * (bench/remote/bench_coded.c).
 * --kv names a file of tools/kv_samples.py, whose end says which elements it has; without it the
 * values are made up.
 */
#include "bench/bench.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "bench/remote/bench_coded.h"
#include "core/codec/codec.h"

#define PART_ELEMENTS 3072u /* keys or values of 16 tokens, SmolLM2-135M */
#define RUN_PARTS     32u   /* a layer of a chunk of 256 tokens */
#define MADE_UP_RUNS  8u
#define BLOCK_BYTES   65536u
#define ENCODE_GOAL   0.15 /* of memcpy */
#define DECODE_GOAL   0.3
#define SIZE_GOAL     0.97
#define ROW_ELEMENTS  192u /* keys or values of a token */
#define MODEL_LAYERS  30u
#define LOSSY_GOAL    0.05 /* of memcpy, both ways */

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

static int64_t copy_all(void *arg)
{
    struct bench_codec *c = arg;
    uint64_t start = processor_ns();
    for (uint64_t at = 0; at < c->bytes; at += c->run_bytes)
        memcpy(c->back + at, c->values + at, length_of(c, at));
    return (int64_t)(processor_ns() - start);
}

/* ---- values -----------------------------------------------------------------------------------
 */

/* Keys and values with exponents of their own, each half as frequent as the next greater one. */
static void make_up(struct bench_codec *c)
{
    unsigned width = tierce__element_bytes(c->shape.element);
    for (uint64_t i = 0; i < c->bytes / width; i++) {
        uint64_t random = tierce__bench_random(3, i), coins = tierce__bench_random(4, i);
        unsigned lower =
            (unsigned)__builtin_ctzll(coins | 1ULL << 8) + (i / PART_ELEMENTS % 2 ? 3u : 0u);
        if (width == 1)
            c->values[i] = (uint8_t)((random & 0x87) | (13 - lower) << 3);
        else
            tierce__store_le16(c->values + 2 * i,
                               (uint16_t)((random & 0x807f) | (128 - lower) << 7));
    }
}

static int read_values(struct bench_codec *c, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t got = 0;
    ssize_t n = 1;
    while (fd >= 0 && got < c->bytes && n > 0) {
        n = read(fd, c->values + got, c->bytes - got);
        got += n > 0 ? (uint64_t)n : 0;
    }
    if (fd >= 0)
        close(fd);
    return got == c->bytes ? 0 : tierce__bench_fail(c->bench, "%s cannot be read", path);
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

/* Lossy codecs have rows beside zstd only. */
static enum coder peers_end(const struct bench_codec *c)
{
    return c->lossy != NULL ? LZ4 : CODERS;
}

static void case_name(char name[96], const struct bench_codec *c, const char *what, enum coder peer)
{
    snprintf(name, 96, "%s %s%s%s; %s; beside %s", what, c->lossy != NULL ? c->lossy->name : "",
             c->lossy != NULL ? " of " : "", tierce__element_name(c->shape.element), c->source,
             peers[peer]);
}

static int measure_speed(struct bench_codec *c, const char *what,
                         const struct tierce__bench_side sides_of[4], double goal)
{
    struct tierce__bench_side sides[4];
    memcpy(sides, sides_of, sizeof(sides));
    for (unsigned i = 0; i < 4; i++)
        sides[i].arg = c;
    unsigned count = c->lz4 != NULL && c->lossy == NULL ? 4 : 3;
    int rc = tierce__bench_alternate(sides, count, c->bench->seconds);
    if (rc < 0)
        return rc;
    double gb = (double)c->bytes;
    for (enum coder peer = ZSTD; peer < peers_end(c); peer++) {
        bool has_peer = peer == ZSTD || c->lz4 != NULL;
        char name[96];
        case_name(name, c, what, peer);
        tierce__bench_emit(
            c->bench,
            &(struct tierce__bench_row){.case_name = name,
                                        .unit = "GB/s",
                                        .value = gb / sides[0].median_ns,
                                        .limit = gb / sides[1].median_ns,
                                        .goal = goal,
                                        .peer = has_peer ? peers[peer] : NULL,
                                        .peer_value = has_peer ? gb / sides[1 + peer].median_ns : 0,
                                        .value_min = gb / sides[0].max_ns,
                                        .value_max = gb / sides[0].min_ns,
                                        .limit_min = gb / sides[1].max_ns,
                                        .limit_max = gb / sides[1].min_ns});
    }
    return 0;
}

static double coded_percent(const struct bench_codec *c, enum coder coder)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i * c->run_bytes < c->bytes; i++)
        sum += c->lengths[coder][i];
    return (double)sum / (double)c->bytes * 100;
}

static void report_size(const struct bench_codec *c)
{
    for (enum coder peer = ZSTD; peer < peers_end(c); peer++) {
        bool has_peer = peer == ZSTD || c->lz4 != NULL;
        char name[96];
        case_name(name, c, "size of", peer);
        tierce__bench_emit(c->bench, &(struct tierce__bench_row){
                                         .case_name = name,
                                         .unit = "%",
                                         .sense = TIERCE__BENCH_LESS_IS_BETTER,
                                         .value = coded_percent(c, OURS),
                                         .limit = bound_percent(c),
                                         .goal = c->lossy != NULL ? c->lossy->size_goal : SIZE_GOAL,
                                         .peer = has_peer ? peers[peer] : NULL,
                                         .peer_value = has_peer ? coded_percent(c, peer) : 0});
    }
}

static int measure(struct bench_codec *c)
{
    static const struct tierce__bench_side encoders[4] = {
        {.run = encode_ours}, {.run = copy_all}, {.run = encode_zstd}, {.run = encode_lz4}};
    static const struct tierce__bench_side decoders[4] = {
        {.run = decode_ours}, {.run = copy_all}, {.run = decode_zstd}, {.run = decode_lz4}};
    bool is_exact = c->codec->is_exact;
    int rc = measure_speed(c, "encode", encoders, is_exact ? ENCODE_GOAL : LOSSY_GOAL);
    if (rc < 0)
        return rc;
    report_size(c);
    for (enum coder coder = OURS; coder < (c->lz4 != NULL && is_exact ? CODERS : LZ4); coder++) {
        memset(c->back, 0, c->bytes);
        int64_t ns = decode_all(c, coder);
        if (ns < 0)
            return (int)ns;
        if ((coder != OURS || is_exact) && memcmp(c->back, c->values, c->bytes) != 0)
            return tierce__bench_fail(c->bench, "coder %d has not restored the values", (int)coder);
    }
    return measure_speed(c, "decode", decoders, is_exact ? DECODE_GOAL : LOSSY_GOAL);
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

static int run_codec(struct bench_codec c, const struct lossy *lossy, const char *path)
{
    c.lossy = lossy;
    int rc = set_up(&c);
    if (rc == 0 && path != NULL)
        rc = read_values(&c, path);
    else if (rc == 0)
        make_up(&c);
    if (rc == 0)
        rc = measure(&c);
    if (rc == 0 && lossy == NULL && c.shape.element == TIERCE__ELEMENT_BF16)
        rc = tierce__bench_coded(c.bench, c.values, c.bytes, c.source);
    tear_down(&c);
    return rc;
}

static int run_case(const struct bench_codec *c, const char *path)
{
    bool has_part = c->bytes == 0 || c->bytes >= 2 * PART_ELEMENTS;
    bool has_lossy = tierce__element_bytes(c->shape.element) == 2 && has_part;
    int rc = run_codec(*c, NULL, path);
    for (unsigned i = 0; rc == 0 && has_lossy && i < sizeof(lossy_codecs) / sizeof(lossy_codecs[0]);
         i++)
        rc = run_codec(*c, &lossy_codecs[i], path);
    return rc;
}

static int run_file(const struct tierce__bench *bench)
{
    const char *path = bench->kv, *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
    enum tierce__element element = dot != NULL ? tierce__element_find(dot + 1) : TIERCE__ELEMENTS;
    if (element == TIERCE__ELEMENTS || element == TIERCE__ELEMENT_RAW)
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
    struct bench_codec c = {.bench = bench, .shape.element = element};
    c.source = slash != NULL ? slash + 1 : path;
    c.bytes = (uint64_t)bytes < most ? (uint64_t)bytes : most / BLOCK_BYTES * BLOCK_BYTES;
    return run_case(&c, path);
}

int tierce__bench_codec(const struct tierce__bench *bench)
{
    static const enum tierce__element elements[] = {TIERCE__ELEMENT_BF16, TIERCE__ELEMENT_E4M3};
    if (bench->kv != NULL)
        return run_file(bench);
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < sizeof(elements) / sizeof(elements[0]); i++) {
        struct bench_codec c = {
            .bench = bench, .shape.element = elements[i], .source = "made-up KV"};
        rc = run_case(&c, NULL);
    }
    return rc;
}
