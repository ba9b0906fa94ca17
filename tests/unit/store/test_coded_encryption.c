/* SPDX-License-Identifier: Apache-2.0 */
/* A disk whose chunks are encrypted: they come back with their keys alone, and no chunk is stored
 * in the clear. */
#include "coded_store.h"
#include "core/chunk/seal_keys.h"
#include "log_record.h"
#include "store/coded/coded_keys.h"
#include "wait_for.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#define MIB   (1ULL << 20)
#define KEY_1 "1 0101010101010101010101010101010101010101010101010101010101010101\n"
#define KEY_2 "2 0202020202020202020202020202020202020202020202020202020202020202\n"
#define WRONG "1 0303030303030303030303030303030303030303030303030303030303030303\n"
/* For a namespace that is not that of the chunks. */
#define OTHER "1 0303030303030303030303030303030303030303030303030303030303030303 00000000\n"

static struct store s;
static const struct tierce__codec *lossless;

/* Sets of keys that exist: they are mappings, which no count of allocations has. */
static _Atomic int sets;

int __real_tierce__seal_keys_parse(struct tierce__seal_keys **out, char *text, size_t length,
                                   char why[TIERCE__SEAL_KEYS_WHY_BYTES]);
int __wrap_tierce__seal_keys_parse(struct tierce__seal_keys **out, char *text, size_t length,
                                   char why[TIERCE__SEAL_KEYS_WHY_BYTES]);

int __wrap_tierce__seal_keys_parse(struct tierce__seal_keys **out, char *text, size_t length,
                                   char why[TIERCE__SEAL_KEYS_WHY_BYTES])
{
    int rc = __real_tierce__seal_keys_parse(out, text, length, why);
    atomic_fetch_add(&sets, rc == 0);
    return rc;
}

void __real_tierce__seal_keys_destroy(struct tierce__seal_keys *keys);
void __wrap_tierce__seal_keys_destroy(struct tierce__seal_keys *keys);

void __wrap_tierce__seal_keys_destroy(struct tierce__seal_keys *keys)
{
    atomic_fetch_sub(&sets, keys != NULL);
    __real_tierce__seal_keys_destroy(keys);
}

static void setup(void)
{
    lossless = tierce__codec_find("lossless");
    s = (struct store){.chunk_bytes = 64 * 1024};
    store_folder(&s);
    ck_assert_int_eq(store_parts(&s, 16 * MIB), 0);
    coded_namespace(&s, "bfloat16");
}

static void teardown(void)
{
    store_close(&s);
    store_parts_end(&s);
    store_remove(&s);
    ck_assert_uint_eq(tierce__alloc_live(), 0);
    ck_assert_int_eq(atomic_load(&sets), 0);
}

/* The keys of a command that prints them. */
static struct tierce__coded_keys *keys_of(const char *text)
{
    char command[512], why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__coded_keys *keys;
    snprintf(command, sizeof(command), "printf '%s'", text);
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .command = command};
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    return keys;
}

static void open_with(const struct tierce__codec *codec, struct tierce__coded_keys *keys)
{
    coded_open(
        &s, 8 * MIB,
        &(struct tierce__coded_opts){.codec = codec, .keys = keys, .encrypts = keys != NULL});
}

/* Whether 32 bytes in a row of a chunk's cells are in the data file. */
static bool is_on_disk(uint64_t n, enum coded_kind kind)
{
    uint64_t bytes = coded_bytes(&s);
    struct tierce__chunk_info info = coded_info(&s, n);
    uint8_t *raw = malloc(bytes), *data = malloc(8 * MIB);
    ck_assert(raw != NULL && data != NULL);
    coded_make(&s, raw, n, kind);
    char *path = tierce__disk_data_path(s.folder);
    int fd = open(path, O_RDONLY);
    tierce__free(path);
    ck_assert_int_ge(fd, 0);
    ssize_t length = read(fd, data, 8 * MIB);
    ck_assert_int_gt(length, 0);
    close(fd);
    bool found = false;
    for (uint64_t at = 0; !found && at + 32 <= info.extent.payload_bytes; at += 512)
        found = memmem(data, (size_t)length, raw + info.extent.header_bytes + at, 32) != NULL;
    free(raw);
    free(data);
    return found;
}

/* With a codec (_i: 1) and without one; chunks that become shorter and others. */
START_TEST(chunks_come_back)
{
    struct tierce__coded_keys *keys = keys_of(KEY_1);
    const struct tierce__codec *codec = _i > 0 ? lossless : NULL;
    open_with(NULL, NULL);
    ck_assert_int_eq(coded_put(&s, 9, CODED_NOISE), 0);
    store_close(&s);
    ck_assert(is_on_disk(9, CODED_NOISE));
    open_with(codec, keys);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_put(&s, 2, CODED_NOISE), 0);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0); /* it is stored already */
    ck_assert_int_eq(coded_get(&s, 1, CODED_VALUES, 8192, 16384), 0);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_NOISE), 0);
    ck_assert_int_eq(coded_get_all(&s, 9, CODED_NOISE), 0); /* from before */
    struct tierce__coded_stats stats = coded_stats(&s);
    ck_assert_uint_ge(stats.encrypted_chunks, 2);
    ck_assert_uint_eq(stats.encoded_chunks, codec != NULL ? stats.encrypted_chunks - 1 : 0);
    ck_assert(codec != NULL ? stats.decoded_raw_bytes > 0 : stats.decoded_raw_bytes == 0);
    store_close(&s);
    ck_assert(!is_on_disk(1, CODED_VALUES) && !is_on_disk(2, CODED_NOISE));
    open_with(NULL, keys);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_NOISE), 0);
    store_close(&s);
    tierce__coded_keys_close(keys);
}
END_TEST

/* A chunk that no key decrypts is not found any more, and stays on disk. */
static int get_with(struct tierce__coded_keys *keys, uint64_t n)
{
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.keys = keys});
    ck_assert(store_has(&s, n));
    int rc = coded_get_all(&s, n, CODED_VALUES);
    ck_assert_uint_eq(coded_stats(&s).locked_reads, rc == 0 ? 0 : 1);
    ck_assert(store_has(&s, n) == (rc == 0));
    ck_assert_int_eq(coded_get_all(&s, n, CODED_VALUES), rc);
    ck_assert_uint_eq(coded_stats(&s).locked_reads, rc == 0 ? 0 : 1);
    store_close(&s);
    return rc;
}

/* A new key encrypts, all keys decrypt, and without its key a chunk is kept. */
START_TEST(keys_are_rotated)
{
    struct tierce__coded_keys *first = keys_of(KEY_1), *both = keys_of(KEY_1 KEY_2);
    struct tierce__coded_keys *wrong = keys_of(WRONG), *other = keys_of(OTHER);
    open_with(lossless, first);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    store_close(&s);
    open_with(lossless, both);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    ck_assert_int_eq(get_with(NULL, 1), TIERCE_E_NO_KEY);
    ck_assert_int_eq(get_with(wrong, 1), TIERCE_E_NO_KEY);
    ck_assert_int_eq(get_with(other, 1), TIERCE_E_NO_KEY);
    ck_assert_int_eq(get_with(first, 2), TIERCE_E_NO_KEY);
    ck_assert_int_eq(get_with(first, 1), 0);
    ck_assert_int_eq(get_with(both, 1), 0);
    ck_assert_int_eq(get_with(both, 2), 0);
    struct tierce__coded_keys *const all[] = {first, both, wrong, other};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        tierce__coded_keys_close(all[i]);
}
END_TEST

static struct tierce__buf *no_buffer(void *arg, uint64_t bytes)
{
    (void)arg;
    (void)bytes;
    return NULL;
}

/* A chunk that cannot be encrypted is not stored: no memory (_i: 0), no key for its namespace. */
START_TEST(no_chunk_is_stored_in_the_clear)
{
    struct tierce__coded_keys *keys = keys_of(_i == 0 ? KEY_1 : OTHER);
    coded_open(&s, 8 * MIB,
               &(struct tierce__coded_opts){.codec = lossless,
                                            .keys = keys,
                                            .encrypts = true,
                                            .no_pool = _i == 0,
                                            .alloc = _i == 0 ? no_buffer : NULL});
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), _i == 0 ? TIERCE_E_FULL : TIERCE_E_NO_KEY);
    ck_assert_uint_eq(coded_stats(&s).refused_chunks, 1);
    ck_assert(!store_has(&s, 1));
    store_close(&s);
    tierce__coded_keys_close(keys);
}
END_TEST

START_TEST(each_allocation_fails_once)
{
    struct tierce__coded_keys *keys = keys_of(KEY_1);
    uint64_t made = 1;
    open_with(lossless, keys);
    ck_assert_int_eq(coded_put(&s, 0, CODED_NOISE), 0);
    for (uint64_t nth = 1; nth <= made; nth++) {
        store_close(&s);
        open_with(lossless, keys);
        tierce__alloc_fail_nth(nth);
        int put = coded_put(&s, nth, CODED_NOISE), got = coded_get_all(&s, 0, CODED_NOISE);
        uint64_t count = tierce__alloc_fail_nth(0);
        made = count > made ? count : made;
        ck_assert(put == 0 || put == TIERCE_E_FULL);
        ck_assert(got == 0 || got == TIERCE_E_FULL);
        ck_assert(put != 0 || coded_get_all(&s, nth, CODED_NOISE) == 0);
        ck_assert_int_eq(coded_get_all(&s, 0, CODED_NOISE), 0);
    }
    ck_assert_uint_gt(made, 4);
    store_close(&s);
    for (uint64_t n = 0; n <= made; n++)
        ck_assert(!is_on_disk(n, CODED_NOISE));
    tierce__coded_keys_close(keys);
}
END_TEST

/* ---- where keys come from -------------------------------------------------------------------- */

static void write_keys(const char *path, const char *text, time_t modified)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const struct timespec times[2] = {{.tv_sec = modified}, {.tv_sec = modified}};
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(futimens(fd, times), 0);
    close(fd);
}

/* The operator may have removed the old key, so that not even one more chunk may use it. */
START_TEST(the_first_chunk_after_a_change_uses_the_new_key)
{
    char path[200], why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__seal_key key;
    struct tierce__coded_keys *keys;
    const uint8_t ns[TIERCE_HASH_BYTES] = {0};
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = path};
    struct stat before, now;
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    write_keys(path, KEY_1, 1000);
    ck_assert_int_eq(stat(path, &before), 0);
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    record_log(TIERCE_LOG_WARN);
    do { /* until the time of the change is another one */
        write_keys(path, KEY_2, 1000);
        ck_assert_int_eq(stat(path, &now), 0);
    } while (memcmp(&before.st_ctim, &now.st_ctim, sizeof(now.st_ctim)) == 0);
    for (int i = 0; i < 3; i++)
        ck_assert(tierce__coded_keys_newest(keys, &key, ns) && key.number == 2);
    ck_assert_uint_eq(recorded("encryption_keys_read"), 1);
    unlink(path);
    ck_assert(tierce__coded_keys_newest(keys, &key, ns) && key.number == 2);
    ck_assert_uint_eq(recorded_with("encryption_keys_unreadable", path), 1);
    ck_assert_uint_eq(recorded("encryption_keys_read"), 1);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__coded_keys_close(keys);
}
END_TEST

START_TEST(a_changed_file_of_keys_is_read_again)
{
    char path[200], why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__seal_key key;
    struct tierce__coded_keys *keys;
    const uint8_t ns[TIERCE_HASH_BYTES] = {0};
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = path, .pause_ms = 1};
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    write_keys(path, KEY_1, 1000);
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    write_keys(path, KEY_1 KEY_2, 1000); /* as a copy that preserves the time */
    WAIT_FOR(tierce__coded_keys_newest(keys, &key, ns) && key.number == 2);
    tierce__coded_keys_close(keys);
    ck_assert_int_eq(chmod(path, 0644), 0);
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, path));
    unlink(path);
}
END_TEST

/* A key that is for one namespace must not become one for all. */
START_TEST(a_file_that_is_half_written_is_not_used)
{
    char path[200], why[TIERCE__CODED_KEYS_WHY_BYTES], *text = strdup(KEY_1 KEY_2);
    struct tierce__seal_key key;
    struct tierce__coded_keys *keys;
    const uint8_t ns[TIERCE_HASH_BYTES] = {0};
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = path};
    ck_assert_ptr_nonnull(text);
    text[strlen(text) - 1] = '\0';
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    write_keys(path, KEY_1, 1000);
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    write_keys(path, text, 1000);
    record_log(TIERCE_LOG_WARN);
    ck_assert(tierce__coded_keys_newest(keys, &key, ns) && key.number == 1);
    ck_assert_uint_eq(recorded_with("encryption_keys_unreadable", "does not end with a newline"),
                      1);
    write_keys(path, KEY_1 KEY_2, 1000);
    ck_assert(tierce__coded_keys_newest(keys, &key, ns) && key.number == 2);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__coded_keys_close(keys);
    write_keys(path, text, 1000);
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), TIERCE_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(why, path));
    unlink(path);
    free(text);
}
END_TEST

/* Two files with the same time of change, as a script makes them. A file system whose times are
 * exact has none, so the number of attempts has a bound. */
static void write_twins(const char *one, const char *two, struct stat *st)
{
    struct stat other;
    for (int i = 0; i < 1000; i++) {
        unlink(one); /* a kernel may give an exact time to a file whose time was read */
        unlink(two);
        write_keys(one, KEY_1, 1000);
        write_keys(two, KEY_2, 1000);
        ck_assert_int_eq(stat(one, st), 0);
        ck_assert_int_eq(stat(two, &other), 0);
        if (memcmp(&st->st_ctim, &other.st_ctim, sizeof(other.st_ctim)) == 0)
            return;
    }
}

START_TEST(a_link_to_another_file_is_a_change)
{
    char path[200], one[210], two[210], why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__seal_key key;
    struct tierce__coded_keys *keys;
    const uint8_t ns[TIERCE_HASH_BYTES] = {0};
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = path};
    struct stat st;
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    snprintf(one, sizeof(one), "%s.1", path);
    snprintf(two, sizeof(two), "%s.2", path);
    write_twins(one, two, &st);
    ck_assert_int_eq(symlink(one, path), 0);
    WAIT_FOR(tierce__wall_s() > (uint64_t)st.st_ctim.tv_sec + 1); /* files are young no longer */
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    ck_assert(tierce__coded_keys_newest(keys, &key, ns) && key.number == 1);
    unlink(path);
    ck_assert_int_eq(symlink(two, path), 0);
    ck_assert(tierce__coded_keys_newest(keys, &key, ns) && key.number == 2);
    tierce__coded_keys_close(keys);
    unlink(path);
    unlink(one);
    unlink(two);
}
END_TEST

/* A reader whose file gets the new key after the first chunks with it. */
START_TEST(a_key_that_comes_later_decrypts)
{
    char path[200], why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__coded_keys *both = keys_of(KEY_1 KEY_2), *late;
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = path, .pause_ms = 1};
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    write_keys(path, KEY_1, 1000);
    ck_assert_int_eq(tierce__coded_keys_open(&late, &opts, why), 0);
    open_with(lossless, both);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.keys = late});
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_NO_KEY);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), TIERCE_E_NO_KEY);
    ck_assert_uint_eq(coded_stats(&s).locked_reads, 2);
    write_keys(path, KEY_1 KEY_2, 1001);
    WAIT_FOR(coded_get_all(&s, 1, CODED_VALUES) == 0);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    tierce__coded_keys_close(late);
    tierce__coded_keys_close(both);
    unlink(path);
}
END_TEST

/* ---- lost keys ------------------------------------------------------------------------------- */

static void put_two(struct tierce__coded_keys *keys)
{
    open_with(lossless, keys);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    store_close(&s);
}

/* The key is missing (_i: 0), another one has its number (1), or nothing is encrypted any more. */
START_TEST(a_store_replaces_a_chunk_without_its_key)
{
    struct tierce__coded_keys *old = keys_of(KEY_1);
    struct tierce__coded_keys *now = _i < 2 ? keys_of(_i == 0 ? KEY_2 : WRONG) : NULL;
    put_two(old);
    open_with(lossless, now);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0); /* not known yet: it is stored already */
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_NO_KEY);
    ck_assert(!store_has(&s, 1) && store_has(&s, 2));
    ck_assert_uint_eq(coded_stats(&s).wrong_key_reads, _i == 1);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(store_stats(&s).chunks, 2);
    ck_assert_int_eq(store_flush(&s), 0);
    store_close(&s);
    open_with(lossless, now);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    store_close(&s);
    open_with(lossless, old); /* the other was not replaced */
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), _i < 2 ? TIERCE_E_NO_KEY : 0);
    store_close(&s);
    tierce__coded_keys_close(old);
    tierce__coded_keys_close(now);
}
END_TEST

static void open_file_keys(struct tierce__coded_keys **out, const char *path, const char *text)
{
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = path, .pause_ms = 1};
    write_keys(path, text, 1000);
    ck_assert_int_eq(tierce__coded_keys_open(out, &opts, why), 0);
}

/* Nothing but lookups happens when the key is there. */
START_TEST(a_key_that_comes_back_shows_its_chunks)
{
    char path[200];
    struct tierce__coded_keys *old = keys_of(KEY_1), *late;
    put_two(old);
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    open_file_keys(&late, path, _i == 0 ? KEY_2 : WRONG KEY_2);
    open_with(lossless, late);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_NO_KEY);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), TIERCE_E_NO_KEY);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    ck_assert_uint_eq(store_stats(&s).chunks, 1);
    write_keys(path, KEY_1 KEY_2, 1000);
    WAIT_FOR(store_has(&s, 2));
    ck_assert_uint_eq(store_stats(&s).chunks, 2);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    tierce__coded_keys_close(old);
    tierce__coded_keys_close(late);
    unlink(path);
}
END_TEST

/* Its chunks are not promised, so they are not kept longer for a lookup either: the first that is
 * evicted is the one that was touched. */
START_TEST(a_touch_does_not_renew_a_chunk_without_its_key)
{
    struct tierce__coded_keys *old = keys_of(KEY_1);
    struct tierce__key first = store_key(&s, 1);
    put_two(old);
    open_with(NULL, NULL);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), TIERCE_E_NO_KEY);
    for (uint64_t n = 10; store_stats(&s).evicted_chunks == 0; n++) {
        s.tier->ops->touch(s.tier,
                           &(struct tierce__tier_uses){.keys = &first, .count = 1, .used = 1});
        ck_assert_int_eq(coded_put(&s, n, CODED_NOISE), 0);
        ck_assert_int_eq(store_flush(&s), 0); /* chunks that are not durable are not evicted */
    }
    store_close(&s);
    open_with(NULL, old); /* where it would be found again */
    ck_assert(!store_has(&s, 1));
    store_close(&s);
    tierce__coded_keys_close(old);
}
END_TEST

/* A key that the file has when it is looked for is not missing. */
START_TEST(a_loss_is_logged_when_the_file_has_been_read_again)
{
    char path[200];
    struct tierce__coded_keys *both = keys_of(KEY_1 KEY_2), *late;
    open_with(lossless, both);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    open_file_keys(&late, path, KEY_1);
    write_keys(path, KEY_1 KEY_2, 1000);
    record_log(TIERCE_LOG_ERROR);
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.keys = late});
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), TIERCE_E_NO_KEY);
    WAIT_FOR(coded_get_all(&s, 2, CODED_VALUES) == 0);
    ck_assert_uint_eq(recorded("encryption_key_missing"), 0);
    for (unsigned loss = 1; loss <= 2; loss++) {
        write_keys(path, KEY_1, 1000);
        struct tierce__seal_key key; /* which reads the file */
        const uint8_t ns[TIERCE_HASH_BYTES] = {0};
        ck_assert(tierce__coded_keys_newest(late, &key, ns) && key.number == 1);
        ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), TIERCE_E_NO_KEY);
        WAIT_FOR(recorded("encryption_key_missing") == loss);
        ck_assert_uint_eq(
            recorded_with("encryption_key_missing", "to encryption.key_file, which is read again"),
            loss);
        write_keys(path, KEY_1 KEY_2, 1000);
        WAIT_FOR(coded_get_all(&s, 2, CODED_VALUES) == 0);
    }
    ck_assert_uint_eq(recorded("encryption_key_missing"), 2);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    store_close(&s);
    tierce__coded_keys_close(both);
    tierce__coded_keys_close(late);
    unlink(path);
}
END_TEST

/* Each remedy is for the source of the keys. */
START_TEST(a_loss_names_the_source_of_the_keys)
{
    static const char *const remedies[] = {"set one that has the key with this number",
                                           "let encryption.key_command print the key",
                                           "under this number into the output of"};
    struct tierce__coded_keys *old = keys_of(KEY_1);
    struct tierce__coded_keys *now = _i > 0 ? keys_of(_i == 1 ? KEY_2 : WRONG) : NULL;
    put_two(old);
    record_log(TIERCE_LOG_ERROR);
    ck_assert_int_eq(get_with(now, 1), TIERCE_E_NO_KEY);
    ck_assert_int_eq(get_with(now, 2), TIERCE_E_NO_KEY);
    ck_assert_uint_eq(
        recorded_with(_i < 2 ? "encryption_key_missing" : "encryption_key_wrong", remedies[_i]), 1);
    ck_assert_uint_eq(recorded_with("", "remedy="), 1);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__coded_keys_close(old);
    tierce__coded_keys_close(now);
}
END_TEST

/* The file is not read again in time: the process is short. */
START_TEST(a_loss_is_logged_at_close)
{
    char path[200];
    struct tierce__coded_keys *keys;
    snprintf(path, sizeof(path), "%s.keys", s.folder);
    open_file_keys(&keys, path, KEY_1);
    record_log(TIERCE_LOG_ERROR);
    struct tierce__coded_info info = {.key_number = 2};
    ck_assert_int_eq(tierce__coded_keys_unlock(keys, "test", &info, NULL), TIERCE_E_NO_KEY);
    tierce__coded_keys_close(keys);
    ck_assert_uint_eq(recorded_with("encryption_key_missing", "tier=test key=2 "), 1);
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    unlink(path);
}
END_TEST

START_TEST(a_lost_key_is_logged_once)
{
    struct tierce__coded_keys *keys = keys_of(KEY_1);
    record_log(TIERCE_LOG_ERROR);
    for (uint32_t i = 0; i < 300; i++) {
        struct tierce__coded_info info = {.key_number = 2 + i % 100};
        ck_assert_int_eq(tierce__coded_keys_unlock(keys, "test", &info, NULL), TIERCE_E_NO_KEY);
    }
    ck_assert_uint_eq(recorded_with("encryption_key_missing", "key=2 "), 1);
    ck_assert_uint_le(recorded("encryption_key_missing"), 32); /* as many as are noted */
    tierce_set_log_fn(NULL, NULL, TIERCE_LOG_WARN);
    tierce__coded_keys_close(keys);
}
END_TEST

START_TEST(a_command_that_fails_gives_no_keys)
{
    static const char *const commands[] = {"exit 1", "true", "printf 1", "kill -9 $$"};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        char why[TIERCE__CODED_KEYS_WHY_BYTES];
        struct tierce__coded_keys *keys;
        const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .command = commands[i]};
        ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), TIERCE_E_CONFIG);
        ck_assert_ptr_nonnull(strstr(why, "encryption.key_command"));
    }
}
END_TEST

/* Threads of Tierce block all signals, and programs with sockets ignore SIGPIPE: a command that
 * inherits this cannot be ended by them. */
START_TEST(signals_reach_a_command)
{
    static const char command[] =
        "sh -c 'kill -PIPE $$; exit 0'; [ $? -gt 128 ] && printf '" KEY_1 "'";
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__coded_keys *keys;
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .command = command};
    sigset_t all, before;
    sigfillset(&all);
    ck_assert(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, &all, &before), 0);
    int rc = tierce__coded_keys_open(&keys, &opts, why);
    ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    ck_assert_int_eq(rc, 0);
    tierce__coded_keys_close(keys);
}
END_TEST

/* Its exit code is then unknown, and what it printed may be a part only. */
START_TEST(a_command_whose_status_is_lost_gives_no_keys)
{
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__coded_keys *keys;
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts),
                                                 .command = "printf '" KEY_1 "'; exit 1"};
    ck_assert(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
    int rc = tierce__coded_keys_open(&keys, &opts, why);
    ck_assert(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
    ck_assert_int_eq(rc, TIERCE_E_CONFIG);
}
END_TEST

/* The command has closed its output some time before it ends. */
START_TEST(a_command_may_end_after_its_output)
{
    tierce__coded_keys_close(keys_of(KEY_1 "'; exec >&-; sleep '0.1"));
}
END_TEST

/* A store of keys that hangs: the command prints a key at first, and then waits for a pipe. */
static struct tierce__coded_keys *keys_of_a_pipe(const char *pipe)
{
    char command[900], why[TIERCE__CODED_KEYS_WHY_BYTES];
    struct tierce__coded_keys *keys;
    const struct tierce__coded_keys_opts opts = {
        .size = sizeof(opts), .command = command, .pause_ms = 1};
    snprintf(command, sizeof(command),
             "if [ -p '%s' ]; then cat '%s'; exit; else mkfifo '%s'; printf '" KEY_1 "'; fi", pipe,
             pipe, pipe);
    ck_assert_int_eq(tierce__coded_keys_open(&keys, &opts, why), 0);
    return keys;
}

/* Opens the pipe if a command waits for it; otherwise -1. */
static int open_pipe(const char *pipe)
{
    return open(pipe, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
}

START_TEST(gets_are_answered_while_the_command_hangs)
{
    static const char text[] = KEY_1 KEY_2;
    char pipe[200];
    struct tierce__coded_keys *first = keys_of(KEY_1), *both = keys_of(text), *late;
    snprintf(pipe, sizeof(pipe), "%s.pipe", s.folder);
    late = keys_of_a_pipe(pipe);
    open_with(lossless, first);
    ck_assert_int_eq(coded_put(&s, 1, CODED_VALUES), 0);
    store_close(&s);
    open_with(lossless, both);
    ck_assert_int_eq(coded_put(&s, 2, CODED_VALUES), 0);
    store_close(&s);
    coded_open(&s, 8 * MIB, &(struct tierce__coded_opts){.keys = late, .decode_threads = 1});
    int fd = -1;
    WAIT_FOR(coded_get_all(&s, 2, CODED_VALUES) == TIERCE_E_NO_KEY && (fd = open_pipe(pipe)) >= 0);
    ck_assert_int_eq(coded_get_all(&s, 1, CODED_VALUES), 0);
    ck_assert_int_eq(coded_get_all(&s, 2, CODED_VALUES), TIERCE_E_NO_KEY);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    WAIT_FOR(coded_get_all(&s, 2, CODED_VALUES) == 0);
    store_close(&s);
    tierce__coded_keys_close(first);
    tierce__coded_keys_close(both);
    tierce__coded_keys_close(late);
    unlink(pipe);
}
END_TEST

/* It has ten seconds, which close does not wait for: the other end of the pipe is closed. */
START_TEST(a_command_that_hangs_is_ended_by_close)
{
    char pipe[200];
    struct tierce__coded_info info = {.key_number = 2};
    snprintf(pipe, sizeof(pipe), "%s.pipe", s.folder);
    struct tierce__coded_keys *late = keys_of_a_pipe(pipe);
    int fd = -1;
    ck_assert(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    WAIT_FOR(tierce__coded_keys_unlock(late, "test", &info, NULL) == TIERCE_E_NO_KEY &&
             (fd = open_pipe(pipe)) >= 0);
    uint64_t begun = tierce__now_ns();
    tierce__coded_keys_close(late);
    ck_assert_uint_lt(tierce__now_ns() - begun, 8000 * TIERCE__MS_NS);
    struct pollfd end = {.fd = fd};
    WAIT_FOR(poll(&end, 1, 0) == 1); /* the reader, which the command has started, ends as well */
    ck_assert_int_eq(write(fd, "x", 1), -1);
    close(fd);
    unlink(pipe);
}
END_TEST

CHECK_MAIN("coded_encryption", .seconds = 60, .at_once = true, .setup = setup, .teardown = teardown,
           .tests = {keys_are_rotated, each_allocation_fails_once,
                     the_first_chunk_after_a_change_uses_the_new_key,
                     a_changed_file_of_keys_is_read_again, a_link_to_another_file_is_a_change,
                     a_file_that_is_half_written_is_not_used, a_command_that_fails_gives_no_keys,
                     a_key_that_comes_later_decrypts, signals_reach_a_command,
                     a_command_whose_status_is_lost_gives_no_keys,
                     a_command_may_end_after_its_output, gets_are_answered_while_the_command_hangs,
                     a_command_that_hangs_is_ended_by_close,
                     a_touch_does_not_renew_a_chunk_without_its_key,
                     a_loss_is_logged_when_the_file_has_been_read_again, a_loss_is_logged_at_close,
                     a_lost_key_is_logged_once},
           .loops = {{chunks_come_back, 0, 2},
                     {no_chunk_is_stored_in_the_clear, 0, 2},
                     {a_store_replaces_a_chunk_without_its_key, 0, 3},
                     {a_key_that_comes_back_shows_its_chunks, 0, 2},
                     {a_loss_names_the_source_of_the_keys, 0, 3}})
