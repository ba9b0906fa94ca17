/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "check_main.h"
#include "engine/engine.h"
#include "engine/observe/operate.h"
#include "node_harness.h"
#include "proto/lm/lm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tierce/engine.h>
#include <tierce/log.h>

/*
 * Values whose bytes on disk are damaged: each is a miss, and the connection that asked for it
 * stays usable. TIERCE_TEST_FLIPS sets how many bytes are flipped.
 */

enum { VALUES = 20, BEFORE_VALUE = 8192, SEARCH_STEP = 64, MARK_BYTES = 32 };

static const struct tierce__lm_shape shape = {.format = 1, .dtype = 3, .dims = {2, 4, 16, 16}};

static struct node_harness h;
static char folder[32];
static int resp, lm, data;
static uint32_t seed = 7;
static uint8_t *values[VALUES];
static size_t sizes[VALUES];
static uint64_t misses;

static uint32_t dice(uint32_t below)
{
    seed = seed * 1103515245u + 12345u;
    return (seed >> 8) % below;
}

static void set_up(void)
{
    char path[96], size[] = "--disk.size=128MiB", flush[] = "--disk.flush_interval=10ms";
    snprintf(folder, sizeof(folder), "/tmp/tierce-test-XXXXXX");
    temp_folder_make(folder);
    snprintf(path, sizeof(path), "--disk.path=%s/store", folder);
    char *arguments[] = {path, size, flush};
    harness_start(&h, 3, arguments);
    resp = harness_connect(h.ports.resp);
    lm = harness_connect(h.ports.lm);
    snprintf(path, sizeof(path), "%s/store/data", folder);
    data = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(data, 0);
}

static void tear_down(void)
{
    close(data);
    close(resp);
    close(lm);
    harness_stop(&h);
    for (size_t i = 0; i < VALUES; i++)
        free(values[i]);
    temp_folder_remove(folder);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void make_value(size_t index)
{
    size_t bytes = (512u << 10) + (size_t)dice(700u << 10);
    values[index] = realloc(values[index], bytes);
    ck_assert_ptr_nonnull(values[index]);
    sizes[index] = bytes;
    for (size_t at = 0; at < bytes; at += 4) {
        uint32_t word = dice(1u << 24) ^ (uint32_t)at << 12;
        memcpy(values[index] + at, &word, bytes - at < 4 ? bytes - at : 4);
    }
}

static void ask_lm(enum tierce__lm_command command, const char *key, size_t bytes)
{
    uint8_t message[TIERCE__LM_REQUEST_BYTES];
    struct tierce__lm_request request = {.command = command,
                                         .value_bytes = (uint32_t)bytes,
                                         .shape = shape,
                                         .key = key,
                                         .key_bytes = strlen(key)};
    ck_assert_int_eq(tierce__lm_request_encode(message, &request), 0);
    say_bytes(lm, message, sizeof(message));
}

/* Half of them in each protocol. */
static void put(size_t index)
{
    char key[16], head[64];
    int n = snprintf(key, sizeof(key), "v%zu", index);
    if (index % 2 == 0) {
        ask_lm(TIERCE__LM_PUT, key, sizes[index]);
        say_bytes(lm, values[index], sizes[index]);
        return;
    }
    snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n", n, key, sizes[index]);
    say(resp, head);
    say_bytes(resp, values[index], sizes[index]);
    talk(resp, "\r\n", "+OK\r\n");
}

/* Reads up to a line's end. */
static void hear_line(char *line, size_t room)
{
    size_t at = 0;
    do {
        ck_assert_uint_lt(at + 1, room);
        hear_bytes(resp, line + at++, 1);
    } while (line[at - 1] != '\n');
    line[at] = '\0';
}

/* Whether there is a value; then its length is as it was stored, and its bytes are next. */
static bool hear_head(size_t index)
{
    char key[32], line[32], wanted[32];
    if (index % 2 == 0) {
        uint8_t message[TIERCE__LM_REPLY_BYTES];
        struct tierce__lm_reply reply;
        snprintf(key, sizeof(key), "v%zu", index);
        ask_lm(TIERCE__LM_GET, key, 0);
        hear_bytes(lm, message, sizeof(message));
        ck_assert_int_eq(tierce__lm_reply_decode(&reply, message), 0);
        ck_assert(reply.code == TIERCE__LM_FAIL || reply.value_bytes == sizes[index]);
        return reply.code == TIERCE__LM_SUCCESS;
    }
    snprintf(key, sizeof(key), "GET v%zu\r\n", index);
    say(resp, key);
    hear_line(line, sizeof(line));
    snprintf(wanted, sizeof(wanted), "$%zu\r\n", sizes[index]);
    ck_assert(strcmp(line, "$-1\r\n") == 0 || strcmp(line, wanted) == 0);
    return line[1] != '-';
}

/* The very value, or a miss. */
static void get(size_t index)
{
    if (!hear_head(index)) {
        misses++;
        return;
    }
    uint8_t *got = malloc(sizes[index]);
    ck_assert_ptr_nonnull(got);
    hear_bytes(index % 2 == 0 ? lm : resp, got, sizes[index]);
    ck_assert_int_eq(memcmp(got, values[index], sizes[index]), 0);
    if (index % 2 != 0)
        hear(resp, "\r\n");
    free(got);
}

/* ---- the disk -------------------------------------------------------------------------------- */

static void wait_for_disk(int64_t chunks)
{
    struct tierce_engine_stats stats = {.size = sizeof(stats)};
    do {
        usleep(1000);
        tierce_engine_stats(h.node->engine, &stats);
    } while (stats.disk_durable_chunks_now != chunks || stats.disk_queued_bytes_now != 0);
}

/* Where its bytes lie in the file. */
static size_t find(const uint8_t *file, size_t file_bytes, const uint8_t *value)
{
    for (size_t at = 0; at + MARK_BYTES <= file_bytes; at += SEARCH_STEP) {
        if (memcmp(file + at, value, MARK_BYTES) == 0)
            return at;
    }
    ck_abort_msg("a value is not in the file");
    return 0;
}

/* Flips a byte of the value, or of the header in front of it. */
static void flip(const uint8_t *file, size_t file_bytes, size_t index)
{
    size_t at = find(file, file_bytes, values[index]);
    size_t before = dice(10) == 0 && at >= BEFORE_VALUE ? BEFORE_VALUE : 0;
    size_t where = at - before + dice((uint32_t)(before > 0 ? before : sizes[index]));
    uint8_t byte = file[where] ^ (uint8_t)(1 + dice(255));
    ck_assert_int_eq(pwrite(data, &byte, 1, (off_t)where), 1);
}

static void flip_all(void)
{
    struct stat info;
    ck_assert_int_eq(fstat(data, &info), 0);
    size_t bytes = (size_t)info.st_size;
    uint8_t *file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, data, 0);
    ck_assert_ptr_ne(file, MAP_FAILED);
    for (size_t i = 0; i < VALUES; i++)
        flip(file, bytes, i);
    munmap(file, bytes);
}

START_TEST(test_flipped_bytes_are_misses_and_cut_nothing)
{
    const char *text = getenv("TIERCE_TEST_FLIPS");
    uint64_t flips = text != NULL ? strtoull(text, NULL, 10) : 200;
    for (uint64_t done = 0; done < flips; done += VALUES) {
        for (size_t i = 0; i < VALUES; i++) {
            make_value(i);
            put(i);
        }
        ask_lm(TIERCE__LM_EXIST, "v0", 0); /* answered once what came before it is stored */
        uint8_t message[TIERCE__LM_REPLY_BYTES];
        hear_bytes(lm, message, sizeof(message));
        wait_for_disk(VALUES);
        ck_assert_int_ge(
            tierce__engine_clear_silently(h.node->engine, 1u << TIERCE_ORIGIN_MEMORY, NULL), 0);
        flip_all();
        for (size_t i = 0; i < VALUES; i++)
            get(i);
        talk(resp, "FLUSHDB\r\n", "+OK\r\n");
        ck_assert_int_ge(tierce_engine_clear(h.node->engine, 0, NULL), 0);
        wait_for_disk(0);
    }
    /* Only a byte of the padding before a value may be flipped unnoticed. */
    ck_assert_uint_gt(misses * 100, 85 * (flips / VALUES * VALUES));
    talk(resp, "PING\r\n", "+PONG\r\n");
}
END_TEST

/* GETDEL verifies the whole value before its length is sent: after it, only a cut would be left. */
START_TEST(test_the_end_of_a_value_rots_in_memory)
{
    uint8_t *memory;
    uint64_t bytes;
    make_value(1);
    put(1);
    tierce__pool_mapping(h.node->engine->pool, &memory, &bytes);
    memory[find(memory, bytes, values[1]) + sizes[1] - 1] ^= 1;
    talk(resp, "GETDEL v1\r\n", "$-1\r\n");
    talk(resp, "PING\r\n", "+PONG\r\n");
}
END_TEST

/* A disk that fails again and again is taken out of service, and the node is not ready then. */
START_TEST(test_a_disk_out_of_service_is_told)
{
    char why[TIERCE__NODE_WHY_BYTES];
    struct tierce__health *health = &h.node->engine->levels[1].health;
    ck_assert_msg(tierce__node_has_disk(h.node, why), "%s", why);
    const struct tierce__key key = {.zero = 0};
    while (tierce__health_serves(health)) {
        struct tierce__store_req req = {
            .op = TIERCE__STORE_PUT, .status = -EIO, .keys = &key, .key_count = 1};
        tierce__health_note(health, &req);
    }
    ck_assert(!tierce__node_has_disk(h.node, why));
    ck_assert_ptr_nonnull(strstr(why, "is out of service"));
}
END_TEST

static char logged[512], refused[512];

static void note_event(void *arg, enum tierce_log_level level, const char *event,
                       const char *detail)
{
    (void)arg;
    (void)level;
    if (strcmp(event, "disk_open_failed") == 0)
        snprintf(logged, sizeof(logged), "%s", detail);
    if (strcmp(event, "store_folder_refused") == 0)
        snprintf(refused, sizeof(refused), "%s", detail);
}

/* With disk.optional it starts, and both name the file and the remedy. */
START_TEST(test_a_folder_that_cannot_be_used)
{
    char *arguments[] = {(char *)"--disk.path=/dev/null/store", (char *)"--disk.optional=true"};
    char why[TIERCE_CONFIG_ERROR_BYTES];
    struct node_harness own;
    struct tierce__node *node = NULL;
    tierce_set_log_fn(note_event, NULL, TIERCE_LOG_INFO);
    harness_start(&own, 2, arguments);
    ck_assert(!tierce__node_has_disk(own.node, why));
    const char *says =
        "disk.path /dev/null/store cannot be used: Not a directory; it is not of the "
        "expected kind: ";
    ck_assert_msg(strncmp(why, says, strlen(says)) == 0, "%s", why);
    ck_assert_ptr_nonnull(strstr(why, "; move it away, or set disk.path to another folder"));
    ck_assert_msg(strstr(logged, "path=\"/dev/null/store\"") != NULL, "%s", logged);
    ck_assert_str_eq(refused, "path=\"/dev/null/store\" reason=\"Not a directory\" "
                              "consequence=\"chunks are kept in memory only\"");
    tierce__node_stop(own.node);
    own.config.disk_is_optional = false;
    ck_assert_int_eq(tierce__node_start(&node, &own.config, why), -ENOTDIR);
    ck_assert_msg(strncmp(why, says, strlen(says)) == 0, "%s", why);
    ck_assert_ptr_nonnull(strstr(why, "; with disk.optional: true the node starts"));
    ck_assert_str_eq(refused, "path=\"/dev/null/store\" reason=\"Not a directory\" "
                              "consequence=\"the node does not start\"");
    tierce__node_config_clear(&own.config);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
}
END_TEST

CHECK_MAIN("node_damage", .seconds = 900, .setup = set_up, .teardown = tear_down,
           .tests = {test_a_disk_out_of_service_is_told, test_a_folder_that_cannot_be_used,
                     test_the_end_of_a_value_rots_in_memory,
                     test_flipped_bytes_are_misses_and_cut_nothing})
