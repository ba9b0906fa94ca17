/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/clock.h"
#include "core/chunk/coded.h"
#include "core/paged/paged.h"
#include "cli/inspect/inspect.h"
#include "cli/optimize/progress.h"
#include "core/key/key_text.h"
#include "store/coded/coded_keys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/*
 * Another process may evict and overwrite while the chunks are read. So chunks that look damaged
 * are noted, and judged only after the journal was read again. A chunk that the journal still holds
 * at the same offset was valid all the time, and is read once more. A chunk that it no longer holds
 * was evicted and is not damage.
 */

#define WHY_BYTES 160

/* A chunk that did not look right. */
struct suspect {
    struct tierce__key key;
    uint64_t offset;
    uint64_t stored_s;
    bool confirmed;
};

struct verify {
    const struct tierce__inspect *inspect;
    struct tierce__namespaces *namespaces; /* of the scan that runs */
    struct tierce__vfs *vfs;
    struct tierce__vfs_file *data;
    uint8_t *buffer; /* what is stored, then the raw chunk */
    uint64_t buffer_bytes;
    uint8_t *spare;
    uint64_t spare_bytes;
    struct suspect *suspects;
    size_t suspect_count;
    struct tierce__progress progress;
    struct tierce__verify *out;
    struct tierce__coded_keys *keys; /* or NULL */
    bool is_locked;                  /* the chunk in the buffer: only its header is valid */
    bool is_wrong_key;               /* its key did not decrypt it */
    uint64_t bytes_per_s;            /* 0: no limit */
    uint64_t started_ns;
    FILE *report;
    int status; /* the error that ended the scan early */
};

static int grow(uint8_t **buffer, uint64_t *length, uint64_t bytes)
{
    if (bytes <= *length)
        return 0;
    tierce__free(*buffer);
    *length = 0;
    *buffer = tierce__alloc_aligned(TIERCE__CHUNK_ALIGN, bytes);
    if (*buffer == NULL)
        return -ENOMEM;
    *length = bytes;
    return 0;
}

/* The sums of the encrypted layers, which need no key. */
static int check_layers(const struct tierce__coded_info *info, const uint8_t *object)
{
    for (uint32_t i = 0; i < info->chunk.geometry.layer_count; i++) {
        struct tierce__coded_layer layer = tierce__coded_layer(info, object, i);
        if (tierce__sum(object + layer.offset, layer.bytes) != layer.sum)
            return TIERCE_E_CHECKSUM;
    }
    return 0;
}

/* Decrypts and decodes to the spare buffer; without the key, only the header is restored there. */
static int restore(struct verify *v, struct tierce__coded_info *info)
{
    int rc = check_layers(info, v->buffer);
    if (rc == 0 && info->key_number > 0)
        rc = v->keys != NULL ? tierce__coded_keys_unlock(v->keys, "inspect", info, v->buffer)
                             : TIERCE_E_NO_KEY;
    v->is_locked = rc == TIERCE_E_NO_KEY;
    if (rc == 0)
        rc = tierce__coded_decode(v->spare, info, v->buffer);
    tierce__seal_wipe(&info->seal, sizeof(info->seal));
    v->is_wrong_key = rc == TIERCE_E_VERSION;
    if (v->is_locked)
        tierce__coded_restore_header(v->spare, info, v->buffer);
    return v->is_locked ? 0 : rc;
}

/* Decodes the coded chunk in the buffer; the raw one takes its place. */
static int decode(struct verify *v, const struct tierce__disk_entry *entry)
{
    struct tierce__coded_info info;
    int rc = tierce__coded_parse(&info, v->buffer, entry->object_bytes);
    if (rc == 0 && (info.object_bytes != entry->object_bytes ||
                    info.chunk.extent.object_bytes != entry->raw_bytes))
        rc = TIERCE_E_FORMAT;
    if (rc < 0)
        return rc;
    v->status = grow(&v->spare, &v->spare_bytes, entry->raw_bytes);
    if (v->status != 0)
        return 0;
    rc = restore(v, &info);
    uint8_t *coded = v->buffer;
    uint64_t coded_bytes = v->buffer_bytes;
    v->buffer = v->spare;
    v->buffer_bytes = v->spare_bytes;
    v->spare = coded;
    v->spare_bytes = coded_bytes;
    return rc;
}

/* The field of the header that differs from the journal; NULL: none. */
static const char *compare_identity(const struct verify *v, const struct tierce__disk_entry *entry,
                                    const struct tierce__chunk_info *info)
{
    static const struct tierce__key none;
    uint32_t layers = info->geometry.layer_count, blocks = info->geometry.block_count;
    const uint8_t *hashes = tierce__chunk_block_hashes(v->buffer, layers);
    const uint8_t *digest = tierce__namespaces_digest(v->namespaces, entry->key.ns);

    if (memcmp(info->ns_digest, digest, TIERCE_HASH_BYTES) != 0)
        return "the header names another namespace";
    if (memcmp(info->hash, entry->key.hash, TIERCE_HASH_BYTES) != 0)
        return "the header names another chunk";
    if (memcmp(&info->shard, &entry->key.shard, sizeof(info->shard)) != 0)
        return "the header names another shard";
    if (memcmp(&entry->parent, &none, sizeof(none)) != 0 &&
        memcmp(info->parent, entry->parent.hash, TIERCE_HASH_BYTES) != 0)
        return "the header names another parent";
    if (info->token_start != entry->token_start || blocks != entry->block_count)
        return "the header names another range of tokens";
    if (info->extent.object_bytes !=
        (entry->raw_bytes > 0 ? entry->raw_bytes : entry->object_bytes))
        return "the header and the journal state different lengths";
    if (memcmp(hashes, entry->first_block, TIERCE_HASH_BYTES) != 0 ||
        memcmp(hashes + (size_t)(blocks - 1) * TIERCE_HASH_BYTES, info->hash, TIERCE_HASH_BYTES) !=
            0)
        return "the hashes of the blocks are not the chunk's";
    return NULL;
}

/* Reads and judges one chunk. Returns whether it is valid; else `why` describes the fault. Sets
 * v->status when it is not the chunk's fault. */
static bool check_chunk(struct verify *v, const struct tierce__disk_entry *entry,
                        char why[WHY_BYTES])
{
    struct tierce__chunk_info info;
    uint64_t bytes = entry->object_bytes;

    if (bytes == 0 || bytes > TIERCE__CHUNK_BYTES_MAX || bytes % TIERCE__CHUNK_ALIGN != 0 ||
        entry->offset % TIERCE__CHUNK_ALIGN != 0 || entry->offset > INT64_MAX - bytes) {
        snprintf(why, WHY_BYTES, "the journal states an impossible location");
        return false;
    }
    v->status = grow(&v->buffer, &v->buffer_bytes, bytes);
    if (v->status != 0)
        return true;
    int rc = v->vfs->ops->read(v->vfs, v->data, v->buffer, bytes, entry->offset);
    if (rc != 0) {
        snprintf(why, WHY_BYTES,
                 rc == -ENODATA ? "the data file ends before the chunk" : "reading: %s",
                 tierce_strerror(rc));
        return false;
    }
    v->is_locked = v->is_wrong_key = false;
    rc = entry->raw_bytes > 0 ? decode(v, entry) : 0;
    if (v->status != 0)
        return true;
    if (rc != 0) {
        snprintf(why, WHY_BYTES, "the %s chunk: %s", v->is_wrong_key ? "encrypted" : "compressed",
                 v->is_wrong_key
                     ? "its key is another one, or the header or the encrypted bytes were changed"
                     : tierce_strerror(rc));
        return false;
    }
    rc = tierce__chunk_parse(&info, v->buffer, entry->raw_bytes > 0 ? entry->raw_bytes : bytes);
    if (rc != 0) {
        snprintf(why, WHY_BYTES, "the header: %s", tierce_strerror(rc));
        return false;
    }
    const char *difference = compare_identity(v, entry, &info);
    if (difference != NULL) {
        snprintf(why, WHY_BYTES, "%s", difference);
        return false;
    }
    if (v->is_locked)
        return true;
    uint64_t cells = tierce__chunk_verify_cells(v->buffer, &info);
    snprintf(why, WHY_BYTES, "%" PRIu64 " of %" PRIu64 " cells do not match their checksums", cells,
             (uint64_t)info.geometry.layer_count * info.geometry.block_count);
    return cells == 0;
}

static bool add_suspect(struct verify *v, const struct tierce__disk_entry *entry)
{
    /* Doubling from 16, so that damage all over a large store stays linear. */
    size_t n = v->suspect_count;
    if (n == 0 || (n >= 16 && (n & (n - 1)) == 0)) {
        size_t room = n == 0 ? 16 : 2 * n;
        struct suspect *grown = tierce__realloc(v->suspects, room * sizeof(*grown));
        if (grown == NULL) {
            v->status = -ENOMEM;
            return false;
        }
        v->suspects = grown;
    }
    v->suspects[v->suspect_count++] =
        (struct suspect){.key = entry->key, .offset = entry->offset, .stored_s = entry->stored_s};
    return true;
}

/* Sleeps as long as what was read is more than the limit allows by now. */
static void keep_limit(const struct verify *v)
{
    if (v->bytes_per_s == 0)
        return;
    double due_s = (double)v->out->bytes / (double)v->bytes_per_s;
    double ahead_s = due_s - (double)(tierce__now_ns() - v->started_ns) / 1e9;
    if (ahead_s <= 0)
        return;
    struct timespec wait = {.tv_sec = (time_t)ahead_s};
    wait.tv_nsec = (long)((ahead_s - (double)wait.tv_sec) * 1e9);
    (void)nanosleep(&wait, NULL);
}

/* First look: every chunk. */
static bool look(void *arg, const struct tierce__disk_entry *entry)
{
    struct verify *v = arg;
    char why[WHY_BYTES];
    bool good = check_chunk(v, entry, why);
    if (v->status != 0 || (!good && !add_suspect(v, entry)))
        return false;
    v->out->chunks++;
    v->out->locked += good && v->is_locked;
    v->out->bytes += entry->object_bytes;
    tierce__progress_add(&v->progress, entry->object_bytes);
    keep_limit(v);
    return true;
}

static int compare_suspects(const void *a, const void *b)
{
    const struct suspect *x = a, *y = b;
    return memcmp(&x->key, &y->key, sizeof(x->key));
}

/* Second look: the suspects that the journal still holds where they were. */
static bool look_again(void *arg, const struct tierce__disk_entry *entry)
{
    struct verify *v = arg;
    struct suspect wanted = {.key = entry->key};
    char why[WHY_BYTES], text[TIERCE__KEY_TEXT_BYTES];
    struct suspect *suspect =
        bsearch(&wanted, v->suspects, v->suspect_count, sizeof(*v->suspects), compare_suspects);
    if (suspect == NULL || suspect->offset != entry->offset || suspect->stored_s != entry->stored_s)
        return true;
    if (check_chunk(v, entry, why) || v->status != 0)
        return v->status == 0;
    suspect->confirmed = true;
    v->out->bad++;
    if (tierce__key_text_format(text, tierce__namespaces_digest(v->namespaces, entry->key.ns),
                                &entry->key.shard, entry->key.hash) < 0)
        snprintf(text, sizeof(text), "(a key with an impossible shard)");
    fprintf(v->report, "%s\t%s\n", text, why);
    return true;
}

/* One scan with a table of namespaces of its own: numbers of an earlier scan are not its. */
static int scan(struct verify *v, tierce__disk_visit_fn *visit)
{
    struct tierce__namespaces *namespaces = NULL;
    int rc = tierce__namespaces_create(&namespaces);
    v->namespaces = namespaces;
    if (rc == 0)
        rc = tierce__disk_scan(v->inspect->path, namespaces, visit, v);
    if (rc == 0)
        rc = v->status;
    tierce__namespaces_destroy(namespaces);
    v->namespaces = NULL;
    return rc;
}

/* Opens the data file, bypassing the page cache if possible, because the disk is to be verified. */
static int open_data(struct verify *v)
{
    char *path = tierce__disk_data_path(v->inspect->path);
    int rc = path != NULL ? tierce__vfs_threads_create(&v->vfs, 1) : -ENOMEM;
    if (rc == 0)
        rc = v->vfs->ops->open(v->vfs, &v->data, path, TIERCE__VFS_READONLY | TIERCE__VFS_DIRECT);
    tierce__free(path);
    return rc;
}

static void close_data(struct verify *v)
{
    if (v->data != NULL)
        v->vfs->ops->close(v->vfs, v->data);
    if (v->vfs != NULL)
        v->vfs->ops->destroy(v->vfs);
}

static int look_at_all(struct verify *v)
{
    tierce__progress_begin(&v->progress, "verify", v->inspect->sums.bytes);
    int rc = scan(v, look);
    tierce__progress_end(&v->progress);
    if (rc == 0 && v->suspect_count > 0) {
        qsort(v->suspects, v->suspect_count, sizeof(*v->suspects), compare_suspects);
        rc = scan(v, look_again);
        v->out->vanished = v->suspect_count - v->out->bad;
    }
    return rc;
}

int tierce__inspect_verify(struct tierce__verify *out, const struct tierce__inspect *inspect,
                           uint64_t bytes_per_s, struct tierce__coded_keys *keys, FILE *report)
{
    struct verify v = {.inspect = inspect,
                       .out = out,
                       .keys = keys,
                       .bytes_per_s = bytes_per_s,
                       .started_ns = tierce__now_ns(),
                       .report = report};
    *out = (struct tierce__verify){0};
    if (inspect->sums.chunks == 0)
        return 0;
    int rc = open_data(&v);
    if (rc == 0)
        rc = look_at_all(&v);
    tierce__free(v.suspects);
    tierce__free(v.buffer);
    tierce__free(v.spare);
    close_data(&v);
    return rc;
}
