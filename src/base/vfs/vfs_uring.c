/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vfs/vfs.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log/log.h"
#include "base/vfs/vfs_private.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Files over one io_uring.
 *
 * The ring is created disabled and taken by the first thread that submits or polls, because the
 * fast modes (SINGLE_ISSUER, DEFER_TASKRUN) bind it to one thread and that is not the creator.
 * wake() writes to an eventfd which the ring itself reads, so that one wait covers both.
 *
 * The caller's memory is registered slice by slice at first use: registering pins and faults the
 * pages, and doing it for a whole pool at once would stall the start for seconds. A transfer that
 * crosses two slices, or is in a slice that could not be registered, uses unregistered memory.
 */

#define SLICE_BYTES     (64ULL << 20)
#define SLICE_COUNT_MAX 16384u /* the kernel's bound on registered buffers */

enum slice_state { SLICE_UNTRIED, SLICE_REGISTERED, SLICE_REFUSED };

struct uring {
    struct tierce__vfs base;
    struct io_uring ring;
    bool has_ring;
    bool disabled; /* not taken by its owner yet */
    bool woken;
    bool wake_armed;
    int wake_fd;
    uint64_t wake_value;
    unsigned depth;
    unsigned in_flight;
    struct tierce__list waiting; /* accepted, beyond the depth */
    uint8_t *memory;
    uint64_t memory_bytes;
    uint32_t slice_count; /* 0: nothing is registered */
    uint8_t *slices;      /* enum slice_state */
};

/* This vfs's part of a transfer's scratch memory. */
struct pending {
    struct tierce__list node;
    uint64_t moved;
};

_Static_assert(sizeof(struct pending) <= sizeof(((struct tierce__vfs_io *)0)->scratch),
               "a pending transfer fits the scratch");

static struct pending *pending_of(struct tierce__vfs_io *io)
{
    return (struct pending *)(void *)io->scratch;
}

static struct tierce__vfs_io *io_of(struct tierce__list *node)
{
    return (struct tierce__vfs_io *)(void *)((char *)node -
                                             offsetof(struct tierce__vfs_io, scratch));
}

static void take_ring(struct uring *u)
{
    if (!u->disabled)
        return;
    /* The system call itself: the library declares a function for it and does not export it. */
    long rc =
        syscall(__NR_io_uring_register, u->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    TIERCE_ASSERT(rc == 0);
    u->disabled = false;
}

/* The index of the registered slice that holds a whole transfer, or -1. */
static int slice_of(struct uring *u, const uint8_t *data, uint64_t length)
{
    if (u->slice_count == 0 || data < u->memory)
        return -1;
    uint64_t at = (uint64_t)(data - u->memory);
    if (at >= u->memory_bytes || length > u->memory_bytes - at)
        return -1;
    uint64_t slice = at / SLICE_BYTES;
    TIERCE_DASSERT(slice < u->slice_count);
    if (slice != (at + length - 1) / SLICE_BYTES)
        return -1;
    if (u->slices[slice] == SLICE_UNTRIED) {
        uint64_t start = slice * SLICE_BYTES, left = u->memory_bytes - start;
        struct iovec vec = {.iov_base = u->memory + start,
                            .iov_len = left < SLICE_BYTES ? left : SLICE_BYTES};
        int rc = io_uring_register_buffers_update_tag(&u->ring, (unsigned)slice, &vec, NULL, 1);
        u->slices[slice] = rc == 1 ? SLICE_REGISTERED : SLICE_REFUSED;
        if (rc == -ENOMEM) /* the memlock limit: later slices would only fail the same way */
            for (uint32_t i = 0; i < u->slice_count; i++)
                if (u->slices[i] == SLICE_UNTRIED)
                    u->slices[i] = SLICE_REFUSED;
    }
    return u->slices[slice] == SLICE_REGISTERED ? (int)slice : -1;
}

static struct io_uring_sqe *get_sqe(struct uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (sqe == NULL) {
        io_uring_submit(&u->ring);
        sqe = io_uring_get_sqe(&u->ring);
    }
    return sqe;
}

static void arm_wake(struct uring *u)
{
    if (u->wake_armed)
        return;
    struct io_uring_sqe *sqe = get_sqe(u);
    if (sqe == NULL)
        return; /* the queue is full of transfers, whose completion wakes as well */
    io_uring_prep_read(sqe, u->wake_fd, &u->wake_value, sizeof(u->wake_value), 0);
    io_uring_sqe_set_data(sqe, u);
    u->wake_armed = true;
}

/* Puts a transfer, or the rest of one, into the ring; false if the ring has no room. */
static bool push(struct uring *u, struct tierce__vfs_io *io)
{
    uint64_t moved = pending_of(io)->moved;
    TIERCE_DASSERT(moved < io->length && u->in_flight < u->depth);
    uint8_t *data = io->data + moved;
    unsigned length = (unsigned)(io->length - moved);
    int slice = slice_of(u, data, length);
    struct io_uring_sqe *sqe = get_sqe(u);
    if (sqe == NULL)
        return false;
    uint64_t offset = io->offset + moved;
    if (io->is_write && slice >= 0)
        io_uring_prep_write_fixed(sqe, io->file->fd, data, length, offset, slice);
    else if (io->is_write)
        io_uring_prep_write(sqe, io->file->fd, data, length, offset);
    else if (slice >= 0)
        io_uring_prep_read_fixed(sqe, io->file->fd, data, length, offset, slice);
    else
        io_uring_prep_read(sqe, io->file->fd, data, length, offset);
    io_uring_sqe_set_data(sqe, io);
    u->in_flight++;
    return true;
}

static void submit(struct tierce__vfs *vfs, struct tierce__vfs_io *io)
{
    struct uring *u = (struct uring *)vfs;
    TIERCE_DASSERT(io->length > 0);
    take_ring(u);
    pending_of(io)->moved = 0;
    if (u->in_flight >= u->depth || !tierce__list_empty(&u->waiting) || !push(u, io))
        tierce__list_push_back(&u->waiting, &pending_of(io)->node);
}

static void start_waiting(struct uring *u)
{
    while (u->in_flight < u->depth && !tierce__list_empty(&u->waiting)) {
        struct tierce__list *node = u->waiting.next;
        tierce__list_remove(node);
        if (!push(u, io_of(node))) {
            tierce__list_push_front(&u->waiting, node);
            return;
        }
    }
}

/* Takes in one result; returns 1 if it ended the transfer, 0 if there is more to move. */
static unsigned finish(struct uring *u, struct tierce__vfs_io *io, int res)
{
    struct pending *p = pending_of(io);
    TIERCE_DASSERT(u->in_flight > 0);
    u->in_flight--;
    if (res > 0)
        p->moved += (uint64_t)res;
    TIERCE_DASSERT(p->moved <= io->length);
    /* O_DIRECT ends in the middle of a sector only at the end of the file. */
    bool at_end = res == 0 || (res > 0 && io->file->direct && res % 512 != 0);
    bool again = res == -EINTR || res == -EAGAIN || (res > 0 && !at_end);
    if (p->moved < io->length && again) {
        if (!push(u, io))
            tierce__list_push_front(&u->waiting, &p->node);
        return 0;
    }
    if (p->moved >= io->length)
        io->result = io->length;
    else if (res < 0)
        io->result = res;
    else
        io->result = io->is_write ? -EIO : -ENODATA;
    io->done(io);
    return 1;
}

static unsigned reap(struct uring *u)
{
    unsigned ran = 0;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        void *data = io_uring_cqe_get_data(cqe);
        int res = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (data == u) {
            TIERCE_DASSERT(u->wake_armed);
            u->wake_armed = false;
            u->woken = true;
        } else {
            ran += finish(u, data, res);
        }
    }
    return ran;
}

static unsigned poll_ring(struct tierce__vfs *vfs, uint64_t deadline_ns)
{
    struct uring *u = (struct uring *)vfs;
    take_ring(u);
    unsigned ran = 0;
    for (;;) {
        start_waiting(u);
        arm_wake(u);
        uint64_t now = tierce__now_ns();
        uint64_t left = now < deadline_ns ? deadline_ns - now : 0;
        struct __kernel_timespec ts = {.tv_sec = (long long)(left / 1000000000ULL),
                                       .tv_nsec = (long long)(left % 1000000000ULL)};
        struct io_uring_cqe *cqe;
        bool for_ever = deadline_ns == TIERCE__DEADLINE_NEVER;
        int rc = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, for_ever ? NULL : &ts, NULL);
        ran += reap(u);
        if (ran > 0 || u->woken || rc == -ETIME || tierce__now_ns() >= deadline_ns)
            break;
    }
    u->woken = false;
    return ran;
}

static void wake(struct tierce__vfs *vfs)
{
    struct uring *u = (struct uring *)vfs;
    uint64_t one = 1;
    ssize_t n = write(u->wake_fd, &one, sizeof(one));
    TIERCE_ASSERT(n == sizeof(one));
}

static void use_memory(struct tierce__vfs *vfs, uint8_t *base, uint64_t bytes)
{
    struct uring *u = (struct uring *)vfs;
    uint64_t count = (bytes + SLICE_BYTES - 1) / SLICE_BYTES;
    if (u->slice_count > 0 || count == 0)
        return;
    if (count > SLICE_COUNT_MAX)
        count = SLICE_COUNT_MAX; /* memory beyond it stays unregistered */
    u->slices = tierce__calloc(count, 1);
    if (u->slices == NULL)
        return;
    if (io_uring_register_buffers_sparse(&u->ring, (unsigned)count) != 0) {
        tierce__free(u->slices);
        u->slices = NULL;
        return;
    }
    u->memory = base;
    u->memory_bytes = bytes < count * SLICE_BYTES ? bytes : count * SLICE_BYTES;
    u->slice_count = (uint32_t)count;
}

static void destroy(struct tierce__vfs *vfs)
{
    struct uring *u = (struct uring *)vfs;
    if (u == NULL)
        return;
    while (u->has_ring && (u->in_flight > 0 || !tierce__list_empty(&u->waiting)))
        (void)poll_ring(vfs, TIERCE__DEADLINE_NEVER);
    TIERCE_DASSERT(!u->has_ring || (u->in_flight == 0 && tierce__list_empty(&u->waiting)));
    if (u->has_ring)
        io_uring_queue_exit(&u->ring);
    if (u->wake_fd >= 0)
        close(u->wake_fd);
    tierce__files_leave(vfs);
    tierce__free(u->slices);
    tierce__free(u);
}

static const struct tierce__vfs_ops uring_ops = {
    .name = "io_uring",
    TIERCE__FILES_OPS,
    .submit = submit,
    .poll = poll_ring,
    .wake = wake,
    .use_memory = use_memory,
    .destroy = destroy,
};

static int init_ring(struct uring *u, unsigned entries)
{
    static const unsigned modes[] = {
        IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0};
    int rc = -EINVAL;
    for (size_t i = 0; i < 2 && rc == -EINVAL; i++) {
        struct io_uring_params params = {.flags = modes[i]};
        rc = io_uring_queue_init_params(entries, &u->ring, &params);
        u->disabled = (modes[i] & IORING_SETUP_R_DISABLED) != 0;
    }
    if (rc == 0 && (u->ring.features & IORING_FEAT_EXT_ARG) == 0) {
        io_uring_queue_exit(&u->ring);
        rc = -ENOSYS;
    }
    u->has_ring = rc == 0;
    if (rc == -ENOSYS || rc == -EPERM || rc == -EINVAL || rc == -EACCES)
        rc = TIERCE_E_UNSUPPORTED;
    return rc;
}

int tierce__vfs_uring_create(struct tierce__vfs **out, unsigned depth)
{
    if (depth == 0 || depth > 4096)
        return TIERCE_E_ARGUMENT;
    struct uring *u = tierce__calloc(1, sizeof(*u));
    if (u == NULL)
        return -ENOMEM;
    u->base.ops = &uring_ops;
    u->base.folder = AT_FDCWD;
    u->depth = depth;
    tierce__list_init(&u->waiting);
    int rc = 0;
    u->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (u->wake_fd < 0)
        rc = -errno;
    if (rc == 0)
        rc = init_ring(u, depth + 1);
    if (rc < 0) {
        destroy(&u->base);
        return rc;
    }
    *out = &u->base;
    return 0;
}
