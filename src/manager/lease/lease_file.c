/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease in a file, for the processes of one host. The file is KVCM's: JSON with the holder as
 * "value" and the end as "expire_time_ms" of the monotonic clock, under flock. That clock restarts
 * with each boot, so the file also has the boot's id; and it has the token.
 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/json/json_value.h"
#include "base/json/json_write.h"
#include "base/text/utf8.h"
#include "manager/lease/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    FILE_BYTES_MAX = 4096,
    BOOT_BYTES = 40,
};

struct file_lease {
    struct tierce__lease base;
    char *path;
    const char *holder;
    char boot[BOOT_BYTES];
    uint32_t timeout_ms;
    uint64_t token;
};

struct lease_file_content {
    char holder[TIERCE__LEASE_HOLDER_BYTES];
    int64_t until_ms;
    uint64_t token;
    size_t bytes; /* of the file */
};

static void read_boot(char out[BOOT_BYTES])
{
    /* Not by tierce__read_file: files of /proc report size 0. */
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, BOOT_BYTES - 1) : 0;
    if (fd >= 0)
        close(fd);
    out[got > 0 ? got : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

static int file_open(struct tierce__lease **out, const char *uri, const char *holder,
                     uint32_t timeout_ms, char why[256])
{
    TIERCE_DASSERT(holder[0] != '\0' && strlen(holder) < TIERCE__LEASE_HOLDER_BYTES);
    const char *rest = uri + strlen("file://");
    if (rest[0] != '/') {
        snprintf(why, 256, "file:// requires an absolute path of a folder");
        return TIERCE_E_CONFIG;
    }
    if (access(rest, W_OK | X_OK) != 0) {
        int rc = -errno;
        snprintf(why, 256, "elector.uri: the folder %.150s: %.60s", rest, tierce_strerror(rc));
        return rc;
    }
    struct file_lease *lease = tierce__calloc(1, sizeof(*lease));
    if (lease == NULL)
        return -ENOMEM;
    lease->path = tierce__join_path(rest, TIERCE__LEASE_NAME ".lock");
    if (lease->path == NULL) {
        tierce__free(lease);
        return -ENOMEM;
    }
    lease->base.ops = &tierce__lease_file;
    lease->holder = holder;
    lease->timeout_ms = timeout_ms;
    read_boot(lease->boot);
    *out = &lease->base;
    return 0;
}

static void file_close(struct tierce__lease *base)
{
    tierce__free(((struct file_lease *)base)->path);
    tierce__free(base);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Returns a descriptor that holds the lock until it is closed, or an error. */
static int lock_file(const struct file_lease *lease)
{
    int fd = tierce__file_lock(lease->path, lease->timeout_ms);
    TIERCE_DASSERT(lease->timeout_ms > 0);
    return fd == TIERCE_E_LOCKED ? TIERCE_E_DEADLINE : fd;
}

/* Reads the file. Nobody holds an invalid lease or one of another boot. */
static int read_content(const struct file_lease *lease, int fd, struct lease_file_content *out)
{
    char text[FILE_BYTES_MAX];
    struct tierce__json_doc doc = {0};
    *out = (struct lease_file_content){0};
    ssize_t n = pread(fd, text, sizeof(text), 0);
    if (n < 0)
        return -errno;
    out->bytes = (size_t)n;
    if (n == 0 || out->bytes == sizeof(text) || !tierce__is_utf8(text, out->bytes))
        return 0;
    int rc = tierce__json_parse(&doc, text, out->bytes, NULL);
    if (rc != 0)
        return rc == -ENOMEM ? rc : 0;
    bool has_boot =
        tierce__json_get_text(text, sizeof(text), doc.value, "boot_id") && *text != '\0';
    if (!has_boot || strcmp(text, lease->boot) == 0) {
        (void)tierce__json_get_text(text, sizeof(text), doc.value, "value");
        snprintf(out->holder, sizeof(out->holder), "%.*s", (int)TIERCE__LEASE_HOLDER_BYTES - 1,
                 text);
        out->until_ms = tierce__json_get_int(doc.value, "expire_time_ms", 0);
    }
    int64_t token = tierce__json_get_int(doc.value, "token", 0);
    out->token = token > 0 ? (uint64_t)token : 0;
    tierce__json_doc_clear(&doc);
    return 0;
}

/* Makes one write that covers the old content, so that a reader never sees a mix of both. */
static int write_content(const struct file_lease *lease, int fd,
                         const struct lease_file_content *content, size_t bytes_before)
{
    TIERCE_DASSERT(content->holder[0] != '\0' || content->until_ms == 0);
    TIERCE_DASSERT(content->token <= INT64_MAX);
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "value", content->holder);
    tierce__json_write_signed(&json, "expire_time_ms", content->until_ms);
    tierce__json_write_text(&json, "boot_id", lease->boot);
    tierce__json_write_count(&json, "token", content->token);
    tierce__json_write_close(&json, '}');
    size_t n = line.bytes;
    while (!line.failed && line.bytes < bytes_before && bytes_before < FILE_BYTES_MAX)
        tierce__line_put(&line, " ");
    int rc = line.failed || n >= FILE_BYTES_MAX ? -ENOMEM : 0;
    if (rc == 0) {
        TIERCE_ASSERT(line.bytes >= bytes_before || bytes_before >= FILE_BYTES_MAX);
        ssize_t written = pwrite(fd, line.text, line.bytes, 0);
        rc = written == (ssize_t)line.bytes ? 0 : written < 0 ? -errno : -ENOSPC;
    }
    if (rc == 0 && bytes_before > line.bytes && ftruncate(fd, (off_t)line.bytes) != 0)
        rc = -errno;
    tierce__line_clear(&line);
    return rc;
}

static int64_t now_ms(void)
{
    return (int64_t)(tierce__now_ns() / TIERCE__MS_NS);
}

/* ---- the seam -------------------------------------------------------------------------------- */

static int file_take(struct tierce__lease *base, uint32_t lease_ms, uint64_t *token,
                     char other[TIERCE__LEASE_HOLDER_BYTES])
{
    struct file_lease *lease = (struct file_lease *)base;
    struct lease_file_content content;
    int fd = lock_file(lease);
    if (fd < 0)
        return fd;
    int rc = read_content(lease, fd, &content);
    if (rc == 0 && content.until_ms > now_ms() && strcmp(content.holder, lease->holder) != 0) {
        snprintf(other, TIERCE__LEASE_HOLDER_BYTES, "%s", content.holder);
        rc = -EBUSY;
    }
    if (rc == 0)
        rc = tierce__lease_next_token(&content.token, content.token);
    if (rc == 0) {
        snprintf(content.holder, sizeof(content.holder), "%s", lease->holder);
        content.until_ms = now_ms() + lease_ms;
        TIERCE_ASSERT(content.token > 0);
        rc = write_content(lease, fd, &content, content.bytes);
    }
    if (rc == 0)
        *token = lease->token = content.token;
    close(fd);
    return rc;
}

static bool is_ours(const struct file_lease *lease, const struct lease_file_content *content)
{
    TIERCE_DASSERT(lease->holder[0] != '\0');
    return content->token == lease->token && strcmp(content->holder, lease->holder) == 0 &&
           content->until_ms > now_ms();
}

static int file_renew(struct tierce__lease *base, uint32_t lease_ms)
{
    struct file_lease *lease = (struct file_lease *)base;
    struct lease_file_content content;
    int fd = lock_file(lease);
    if (fd < 0)
        return fd;
    int rc = read_content(lease, fd, &content);
    if (rc == 0 && !is_ours(lease, &content))
        rc = TIERCE_E_REFUSED;
    if (rc == 0) {
        content.until_ms = now_ms() + lease_ms;
        rc = write_content(lease, fd, &content, content.bytes);
    }
    close(fd);
    return rc;
}

static void file_give(struct tierce__lease *base)
{
    struct file_lease *lease = (struct file_lease *)base;
    struct lease_file_content content;
    int fd = lock_file(lease);
    if (fd < 0)
        return;
    if (read_content(lease, fd, &content) == 0 && is_ours(lease, &content)) {
        /* The token stays, so that the next one is larger. */
        content.holder[0] = '\0';
        content.until_ms = 0;
        (void)!write_content(lease, fd, &content, content.bytes);
    }
    close(fd);
}

static int file_look(struct tierce__lease *base, char holder[TIERCE__LEASE_HOLDER_BYTES])
{
    struct file_lease *lease = (struct file_lease *)base;
    struct lease_file_content content;
    int fd = lock_file(lease);
    if (fd < 0)
        return fd;
    int rc = read_content(lease, fd, &content);
    if (rc == 0)
        snprintf(holder, TIERCE__LEASE_HOLDER_BYTES, "%s",
                 content.until_ms > now_ms() ? content.holder : "");
    close(fd);
    return rc;
}

const struct tierce__lease_ops tierce__lease_file = {
    .name = "file",
    .open = file_open,
    .close = file_close,
    .take = file_take,
    .renew = file_renew,
    .give = file_give,
    .look = file_look,
};
