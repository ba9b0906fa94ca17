/* SPDX-License-Identifier: Apache-2.0 */
#include "cufile_fake.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "cuda_fake.h"

enum { REGISTERED_MAX = 8, PAGE = 4096, INVALID_VALUE = 5022 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

struct buffer {
    const uint8_t *base;
    size_t bytes;
    unsigned reading;
};

struct file {
    int fd; /* + 1; 0: none */
    unsigned reading;
};

static struct {
    bool opened, held;
    enum cufile_fake_fault fault;
    uint64_t made, fail_at;
    int fail_code;
    struct cufile_fake_counts counts;
    struct buffer buffers[REGISTERED_MAX];
    struct file files[REGISTERED_MAX];
} fake;

/* Takes the lock. Returns the number with which the call fails, or 0. */
static int begin(const char *call)
{
    pthread_mutex_lock(&lock);
    fake.counts.calls++;
    if (++fake.made == fake.fail_at)
        return fake.fail_code;
    if (!fake.opened)
        cuda_fake_violate(call);
    return 0;
}

static TIERCE__CU_FILE_ERROR end(int code)
{
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return (TIERCE__CU_FILE_ERROR){.code = code};
}

/* ---- control ---- */

uint64_t cufile_fake_fail_nth(uint64_t nth, int code)
{
    pthread_mutex_lock(&lock);
    uint64_t made = fake.made;
    fake.made = 0;
    fake.fail_at = nth;
    fake.fail_code = code;
    pthread_mutex_unlock(&lock);
    return made;
}

void cufile_fake_set_fault(enum cufile_fake_fault fault)
{
    pthread_mutex_lock(&lock);
    fake.fault = fault;
    pthread_mutex_unlock(&lock);
}

void cufile_fake_hold(bool held)
{
    pthread_mutex_lock(&lock);
    fake.held = held;
    (void)end(0);
}

struct cufile_fake_counts cufile_fake_counts(void)
{
    pthread_mutex_lock(&lock);
    struct cufile_fake_counts counts = fake.counts;
    pthread_mutex_unlock(&lock);
    return counts;
}

/* ---- the library ---- */

TIERCE__CU_FILE_ERROR cuFileDriverOpen(void)
{
    pthread_mutex_lock(&lock);
    fake.counts.calls++;
    if (++fake.made == fake.fail_at)
        return end(fake.fail_code);
    fake.opened = true;
    return end(0);
}

static struct buffer *find_buffer(const void *base)
{
    for (size_t i = 0; i < REGISTERED_MAX; i++) {
        if (fake.buffers[i].base == base)
            return &fake.buffers[i];
    }
    return NULL;
}

TIERCE__CU_FILE_ERROR cuFileBufRegister(const void *base, size_t bytes, int flags)
{
    int code = begin("cuFileBufRegister before cuFileDriverOpen");
    struct buffer *room = find_buffer(NULL);
    if (code != 0)
        return end(code);
    if (room == NULL || find_buffer(base) != NULL || flags != 0 || base == NULL)
        return end(INVALID_VALUE);
    *room = (struct buffer){.base = base, .bytes = bytes};
    fake.counts.buffers++;
    return end(0);
}

TIERCE__CU_FILE_ERROR cuFileBufDeregister(const void *base)
{
    int code = begin("cuFileBufDeregister before cuFileDriverOpen");
    struct buffer *buffer = find_buffer(base);
    if (code != 0)
        return end(code);
    if (base == NULL || buffer == NULL)
        return end(INVALID_VALUE);
    if (buffer->reading > 0)
        cuda_fake_violate("cuFileBufDeregister of a buffer that is being read into");
    *buffer = (struct buffer){0};
    fake.counts.buffers--;
    return end(0);
}

TIERCE__CU_FILE_ERROR cuFileHandleRegister(TIERCE__CU_FILE_HANDLE *handle,
                                           TIERCE__CU_FILE_DESCRIPTION *what)
{
    int code = begin("cuFileHandleRegister before cuFileDriverOpen");
    for (size_t i = 0; code == 0 && i < REGISTERED_MAX; i++) {
        if (fake.files[i].fd != 0)
            continue;
        fake.files[i] = (struct file){.fd = what->of.fd + 1};
        fake.counts.files++;
        *handle = &fake.files[i];
        return end(what->type == TIERCE__CU_FILE_TYPE_FD ? 0 : INVALID_VALUE);
    }
    return end(code != 0 ? code : INVALID_VALUE);
}

void cuFileHandleDeregister(TIERCE__CU_FILE_HANDLE handle)
{
    struct file *file = handle;
    (void)begin("cuFileHandleDeregister before cuFileDriverOpen");
    if (file->fd == 0 || file->reading > 0)
        cuda_fake_violate("cuFileHandleDeregister of a file that is not registered, or is read");
    *file = (struct file){0};
    fake.counts.files--;
    (void)end(0);
}

/* The bytes of the file, as O_DIRECT requires them. */
static ssize_t read_file(int fd, uint8_t **out, size_t bytes, off_t offset)
{
    void *memory = NULL;
    if (posix_memalign(&memory, PAGE, bytes) != 0)
        abort();
    *out = memory;
    return pread(fd, memory, bytes, offset);
}

static bool is_valid(const struct file *file, const struct buffer *buffer, size_t bytes,
                     off_t offset, off_t at)
{
    bool is_aligned = (bytes | (size_t)offset | (size_t)at) % PAGE == 0;
    if (file->fd == 0 || buffer == NULL || !is_aligned || at < 0 || (size_t)at > buffer->bytes ||
        bytes > buffer->bytes - (size_t)at) {
        cuda_fake_violate("cuFileRead of an invalid file, buffer or range");
        return false;
    }
    return true;
}

ssize_t cuFileRead(TIERCE__CU_FILE_HANDLE handle, void *base, size_t bytes, off_t offset, off_t at)
{
    struct file *file = handle;
    int code = begin("cuFileRead before cuFileDriverOpen");
    struct buffer *buffer = find_buffer(base);
    if (code != 0 || !is_valid(file, buffer, bytes, offset, at)) {
        (void)end(0);
        errno = code == -1 ? EIO : 0;
        return code == -1 ? -1 : code > 0 ? -code : -INVALID_VALUE;
    }
    file->reading++;
    buffer->reading++;
    fake.counts.reading++;
    fake.counts.reads++;
    while (fake.held)
        pthread_cond_wait(&changed, &lock);
    enum cufile_fake_fault fault = fake.fault;
    int fd = file->fd - 1;
    (void)end(0);
    uint8_t *memory;
    ssize_t got = read_file(fd, &memory, fault == CUFILE_FAKE_SHORT ? PAGE : bytes, offset);
    if (got > 0 && fault == CUFILE_FAKE_FLIP)
        memory[got / 2] ^= 8;
    if (got > 0 && fault != CUFILE_FAKE_SKIP)
        cuda_fake_write_device((uintptr_t)base + (uintptr_t)at, memory, (size_t)got, "cuFileRead");
    free(memory);
    pthread_mutex_lock(&lock);
    file->reading--;
    buffer->reading--;
    fake.counts.reading--;
    fake.counts.bytes += got > 0 ? (uint64_t)got : 0;
    (void)end(0);
    return got;
}
