/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "cli/cli.h"
#include "base/assert.h"
#include "cli/inspect/inspect.h"
#include "core/chunk/coded.h"
#include "core/codec/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <tierce/version.h>

static void add(struct tierce__inspect_sums *sums, const struct tierce__disk_entry *entry)
{
    if (sums->chunks == 0 || entry->stored_s < sums->oldest_s)
        sums->oldest_s = entry->stored_s;
    if (sums->chunks == 0 || entry->stored_s > sums->newest_s)
        sums->newest_s = entry->stored_s;
    sums->chunks++;
    sums->bytes += entry->object_bytes;
    if (entry->raw_bytes == 0)
        return;
    sums->coded_chunks++;
    sums->coded_bytes += entry->object_bytes;
    sums->coded_raw_bytes += entry->raw_bytes;
}

/* The sums of a namespace by its id; NULL for no memory. */
static struct tierce__inspect_namespace *namespace_at(struct tierce__inspect *inspect, uint32_t id)
{
    if (id >= inspect->count) {
        size_t count = (size_t)id + 1;
        struct tierce__inspect_namespace *grown =
            tierce__realloc(inspect->items, count * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        memset(grown + inspect->count, 0, (count - inspect->count) * sizeof(*grown));
        inspect->items = grown;
        inspect->count = count;
    }
    return &inspect->items[id];
}

static struct tierce__inspect_shard *shard_of(struct tierce__inspect_namespace *item,
                                              const struct tierce_shard *shard)
{
    for (size_t i = 0; i < item->shard_count; i++) {
        if (memcmp(&item->shards[i].shard, shard, sizeof(*shard)) == 0)
            return &item->shards[i];
    }
    struct tierce__inspect_shard *grown =
        tierce__realloc(item->shards, (item->shard_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return NULL;
    item->shards = grown;
    grown[item->shard_count] = (struct tierce__inspect_shard){.shard = *shard};
    return &grown[item->shard_count++];
}

/* A scan and whether it ran out of memory. */
struct inspect_scan {
    struct tierce__inspect *inspect;
    bool failed;
};

static bool visit(void *arg, const struct tierce__disk_entry *entry)
{
    struct inspect_scan *scan = arg;
    struct tierce__inspect_namespace *item = namespace_at(scan->inspect, entry->key.ns);
    struct tierce__inspect_shard *shard = item != NULL ? shard_of(item, &entry->key.shard) : NULL;
    scan->failed = shard == NULL;
    if (scan->failed)
        return false;
    add(&scan->inspect->sums, entry);
    add(&item->sums, entry);
    add(&shard->sums, entry);
    if (entry->raw_bytes > 0) {
        item->coded_offset = entry->offset;
        item->coded_bytes = entry->object_bytes;
    }
    return true;
}

/* ---- the journal's pages -------------------------------------------------------------------- */

static void ignore(void *arg, const struct tierce__journal_record *record)
{
    (void)arg;
    (void)record;
}

/* The mark first: a process at work moves it after the journal. */
static int read_journal(struct tierce__inspect *out, struct tierce__vfs *vfs, const char *mark_path,
                        const char *path)
{
    struct tierce__vfs_file *file = NULL;
    struct tierce__journal_reader reader = {0};
    struct tierce__journal_mark mark = tierce__journal_mark_read(vfs, mark_path);
    int rc = vfs->ops->open(vfs, &file, path, TIERCE__VFS_READONLY);
    if (rc != 0)
        return rc;
    int64_t length = vfs->ops->length(vfs, file);
    uint64_t capacity = 0;
    rc = length < 0 ? (int)length
                    : tierce__journal_probe(vfs, file, (uint64_t)length, TIERCE__JOURNAL_SCAN_SLOTS,
                                            &capacity);
    if (rc == 0)
        rc = tierce__journal_read_file(&reader, vfs, file, ignore, NULL);
    vfs->ops->close(vfs, file);
    if (rc != 0)
        return rc;
    out->journal = reader;
    out->journal_lost = tierce__journal_lost(&mark, &reader);
    return 0;
}

uint64_t tierce__inspect_journal_damage(const struct tierce__inspect *inspect)
{
    return inspect->journal.missing + inspect->journal.damaged_records + inspect->journal_lost;
}

/* A page that another process is writing may look damaged for a moment, so damaged pages are read
 * twice. */
static int check_journal(struct tierce__inspect *inspect)
{
    struct tierce__vfs *vfs = NULL;
    char *path = tierce__join_path(inspect->path, "journal");
    char *mark = tierce__join_path(inspect->path, TIERCE__JOURNAL_MARK_NAME);
    int rc = path != NULL && mark != NULL ? tierce__vfs_threads_create(&vfs, 1) : -ENOMEM;
    if (rc == 0)
        rc = read_journal(inspect, vfs, mark, path);
    if (rc == 0 && tierce__inspect_journal_damage(inspect) > 0)
        rc = read_journal(inspect, vfs, mark, path);
    if (rc == 0 && inspect->journal.good == 0 && inspect->journal.bad > 0)
        rc = TIERCE_E_FORMAT;
    if (vfs != NULL)
        vfs->ops->destroy(vfs);
    tierce__free(mark);
    tierce__free(path);
    return rc;
}

/* ---- codecs --------------------------------------------------------------------------------- */

#define HEADER_MAX (1u << 20) /* of a header that is read for its codec */

/* The journal does not state the codec, so the header of a coded chunk is read. Another process may
 * have overwritten it since; then the codec stays unknown. */
static int read_codec(struct tierce__inspect_namespace *item, int fd)
{
    uint64_t bytes = item->coded_bytes < HEADER_MAX ? item->coded_bytes : HEADER_MAX;
    uint8_t *header = tierce__alloc_aligned(64, bytes);
    struct tierce__coded_info info;
    if (header == NULL)
        return -ENOMEM;
    if (pread(fd, header, bytes, (off_t)item->coded_offset) == (ssize_t)bytes) {
        char plugin[TIERCE__CODEC_NAME_BYTES];
        if (tierce__coded_plugin_name(plugin, &item->key_number, header, bytes)) {
            memcpy(item->plugin, plugin, sizeof(plugin));
            item->codec = item->plugin;
        } else if (tierce__coded_parse(&info, header, bytes) == 0) {
            item->codec = info.codec != NULL ? info.codec->name : "none";
            item->key_number = info.key_number;
        }
    }
    tierce__free(header);
    return 0;
}

/* Without the data file all codecs stay unknown. */
static int read_codecs(struct tierce__inspect *inspect, const char *data)
{
    int rc = 0, fd = inspect->sums.coded_chunks > 0 ? open(data, O_RDONLY | O_CLOEXEC) : -1;
    for (size_t i = 0; fd >= 0 && rc == 0 && i < inspect->count; i++) {
        if (inspect->items[i].coded_bytes > 0)
            rc = read_codec(&inspect->items[i], fd);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- all ------------------------------------------------------------------------------------ */

int tierce__inspect_scan(struct tierce__inspect *out, const char *path)
{
    struct inspect_scan scan = {.inspect = out};
    struct stat st;
    *out = (struct tierce__inspect){.path = path, .now_s = tierce__wall_s()};

    int rc = tierce__namespaces_create(&out->namespaces);
    if (rc == 0)
        rc = tierce__disk_scan(path, out->namespaces, visit, &scan);
    if (rc == 0 && scan.failed)
        rc = -ENOMEM;
    if (rc == 0)
        rc = check_journal(out);
    if (rc != 0)
        return rc;
    char *data = tierce__disk_data_path(path);
    if (data == NULL)
        return -ENOMEM;
    if (stat(data, &st) == 0)
        out->data_bytes = (uint64_t)st.st_size;
    rc = read_codecs(out, data);
    tierce__free(data);
    return rc;
}

void tierce__inspect_clear(struct tierce__inspect *inspect)
{
    for (size_t i = 0; i < inspect->count; i++)
        tierce__free(inspect->items[i].shards);
    tierce__free(inspect->items);
    tierce__namespaces_destroy(inspect->namespaces);
    *inspect = (struct tierce__inspect){0};
}

int tierce__inspect_options(const char **folder, const char *command,
                            const struct tierce__option *options, void *out, int argc, char **argv)
{
    int status = tierce__options_read(command, options, out, 0, &argc, argv);
    if (status != TIERCE__CLI_OK)
        return status;
    if (argc > 2)
        return tierce__cli_usage(command, "accepts one folder; \"%.100s\" is a second", argv[2]);
    if (argc < 2 || argv[1][0] == '\0')
        return tierce__cli_usage(command, "requires a store folder");
    *folder = argv[1];
    return TIERCE__CLI_OK;
}

int tierce__inspect_explain(const char *command, const char *folder, int rc)
{
    struct stat st;
    TIERCE_ASSERT(folder != NULL);
    int found = stat(folder, &st) == 0 ? 0 : -errno;
    if (found == -ENOENT)
        return tierce__cli_fail(command,
                                "%.300s: there is no such folder; pass the folder that disk.path "
                                "of the configuration names",
                                folder);
    if (found == 0 && !S_ISDIR(st.st_mode))
        return tierce__cli_fail(
            command, "%.300s: is a file; pass the store folder that contains it", folder);
    if (found == -EACCES || rc == -EACCES || rc == -EPERM)
        return tierce__cli_fail(command,
                                "%.300s: no permission to read it; run as the user that the engine "
                                "runs as%s",
                                folder, found == 0 ? " (the folder's owner)" : "");
    if (rc == -ENOENT)
        return tierce__cli_fail(command,
                                "%.300s: is not a store folder: it holds no journal; pass the "
                                "folder that disk.path of the configuration names",
                                folder);
    if (rc == TIERCE_E_VERSION)
        return tierce__cli_fail(
            command,
            "%.300s: was written by a newer Tierce in a format that %s does not "
            "read; use that newer version",
            folder, tierce_version());
    if (rc == TIERCE_E_FORMAT)
        return tierce__cli_fail(command,
                                "%.300s: is not a store folder: its file \"journal\" does not "
                                "belong to Tierce, or is damaged from beginning to end",
                                folder);
    return tierce__cli_fail(command, "%.300s: cannot be read: %s", folder, tierce_strerror(rc));
}
