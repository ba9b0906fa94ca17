/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_uring.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include "base/alloc.h"

#define TRANSFER_BYTES (1u << 20)

struct tierce__bare_disk {
    struct io_uring ring;
    bool has_ring;
    int fd;
    char *path;
    uint8_t *buffer;
    unsigned depth;
};

static int open_ring(struct tierce__bare_disk *disk, uint64_t buffer_bytes)
{
    struct io_uring_params params = {.flags =
                                         IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int rc = io_uring_queue_init_params(disk->depth, &disk->ring, &params);
    if (rc == -EINVAL) /* a kernel without these modes */
        rc = io_uring_queue_init(disk->depth, &disk->ring, 0);
    if (rc < 0)
        return rc;
    disk->has_ring = true;
    struct iovec vec = {.iov_base = disk->buffer, .iov_len = buffer_bytes};
    return io_uring_register_buffers(&disk->ring, &vec, 1);
}

int tierce__bare_disk_open(struct tierce__bare_disk **out, const char *path, uint64_t file_bytes,
                           uint8_t *buffer, uint64_t buffer_bytes, unsigned depth)
{
    struct tierce__bare_disk *disk = tierce__calloc(1, sizeof(*disk));
    if (disk == NULL)
        return -ENOMEM;
    disk->buffer = buffer;
    disk->depth = depth;
    disk->path = tierce__strdup(path);
    disk->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    int rc = disk->fd < 0 ? -errno : disk->path == NULL ? -ENOMEM : 0;
    if (rc == 0 && fallocate(disk->fd, 0, 0, (off_t)file_bytes) != 0)
        rc = -errno;
    if (rc == 0)
        rc = open_ring(disk, buffer_bytes);
    if (rc < 0) {
        tierce__bare_disk_close(disk);
        return rc;
    }
    *out = disk;
    return 0;
}

void tierce__bare_disk_close(struct tierce__bare_disk *disk)
{
    if (disk == NULL)
        return;
    if (disk->has_ring)
        io_uring_queue_exit(&disk->ring);
    if (disk->fd >= 0) {
        close(disk->fd);
        if (disk->path != NULL)
            (void)unlink(disk->path);
    }
    tierce__free(disk->path);
    tierce__free(disk);
}

static unsigned length_at(uint64_t at, uint64_t bytes)
{
    return bytes - at < TRANSFER_BYTES ? (unsigned)(bytes - at) : TRANSFER_BYTES;
}

/* Collects completions, at least one. */
static int reap(struct tierce__bare_disk *disk, unsigned *in_flight)
{
    struct io_uring_cqe *cqe;
    unsigned head, seen = 0;
    int rc = 0;
    io_uring_for_each_cqe(&disk->ring, head, cqe)
    {
        if (cqe->res < 0)
            rc = cqe->res;
        else if ((uint64_t)cqe->res != io_uring_cqe_get_data64(cqe))
            rc = -EIO;
        seen++;
    }
    io_uring_cq_advance(&disk->ring, seen);
    *in_flight -= seen;
    return rc;
}

int tierce__bare_disk_move(struct tierce__bare_disk *disk, bool write, uint64_t offset,
                           uint64_t bytes)
{
    unsigned in_flight = 0;
    uint64_t at = 0;
    int rc = 0;
    while (in_flight > 0 || (at < bytes && rc == 0)) {
        while (in_flight < disk->depth && at < bytes && rc == 0) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&disk->ring);
            unsigned length = length_at(at, bytes);
            if (write)
                io_uring_prep_write_fixed(sqe, disk->fd, disk->buffer + at, length, offset + at, 0);
            else
                io_uring_prep_read_fixed(sqe, disk->fd, disk->buffer + at, length, offset + at, 0);
            io_uring_sqe_set_data64(sqe, length);
            at += length;
            in_flight++;
        }
        int waited = io_uring_submit_and_wait(&disk->ring, 1);
        if (waited < 0 && waited != -EINTR)
            return waited;
        int failed = reap(disk, &in_flight);
        if (failed < 0)
            rc = failed;
    }
    if (rc == 0 && write && fdatasync(disk->fd) != 0)
        rc = -errno;
    return rc;
}
