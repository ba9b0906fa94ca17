/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/why/why_fork.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/vfs/vfs.h"
#include "core/chunk/header.h"
#include "store/disk/disk.h"

#define HEADERS_MAX 4096u /* that are read */

struct fork_search {
    const struct tierce__answer *answer;
    const struct tierce__inspect *inspect;
    const struct tierce_chain *chain;
    uint64_t first_block; /* of the missing chunk */
    uint32_t blocks;      /* of the prompt in the missing chunk */
    uint32_t ns;

    struct tierce__vfs *vfs;
    struct tierce__vfs_file *data;
    uint8_t *header; /* [header_bytes] */
    uint64_t header_bytes;
    uint32_t headers, unread;
    int status; /* the error that ended the scan early */

    uint32_t common; /* leading blocks that the nearest chunks share with the missing one */
    uint32_t count, other_root;
    uint8_t branches[TIERCE__BRANCHES_MAX][TIERCE_HASH_BYTES]; /* [count] the blocks after these */
};

/* ---- headers --------------------------------------------------------------------------------- */

static int read_bytes(struct fork_search *search, uint64_t bytes, uint64_t offset)
{
    if (bytes > search->header_bytes) {
        tierce__free(search->header);
        search->header_bytes = 0;
        search->header = tierce__alloc_aligned(TIERCE__CHUNK_ALIGN, bytes);
        if (search->header == NULL)
            return -ENOMEM;
        search->header_bytes = bytes;
    }
    return search->vfs->ops->read(search->vfs, search->data, search->header, bytes, offset);
}

/* A coded chunk has the header of the raw one. */
static int parse(const struct fork_search *search, struct tierce__chunk_info *info,
                 const struct tierce__disk_entry *entry, uint64_t bytes)
{
    uint32_t codec;
    return entry->raw_bytes > 0 ? tierce__chunk_parse_coded(info, &codec, search->header, bytes)
                                : tierce__chunk_parse(info, search->header, bytes);
}

/* Errors: of reading, and those of tierce__chunk_parse. */
static int read_header(struct fork_search *search, struct tierce__chunk_info *info,
                       const struct tierce__disk_entry *entry)
{
    if (entry->object_bytes < TIERCE__CHUNK_ALIGN ||
        entry->offset > INT64_MAX - entry->object_bytes)
        return TIERCE_E_FORMAT;
    uint64_t bytes = TIERCE__CHUNK_ALIGN;
    int rc = read_bytes(search, bytes, entry->offset);
    if (rc == 0)
        rc = parse(search, info, entry, bytes);
    if (rc == TIERCE_E_LIMIT) {
        bytes = tierce__chunk_header_bytes(search->header);
        if (bytes > entry->object_bytes)
            return TIERCE_E_FORMAT;
        rc = read_bytes(search, bytes, entry->offset);
        if (rc == 0)
            rc = parse(search, info, entry, bytes);
    }
    if (rc == 0 && (memcmp(info->hash, entry->key.hash, TIERCE_HASH_BYTES) != 0 ||
                    info->token_start != entry->token_start))
        rc = TIERCE_E_IDENTITY; /* overwritten meanwhile */
    return rc;
}

/* ---- searching ------------------------------------------------------------------------------- */

static const uint8_t *hash_before(const struct fork_search *search)
{
    return tierce_chain_hash(search->chain, (size_t)search->first_block - 1);
}

/* Whether a chunk follows the same prefix as the missing one, as far as the journal knows. */
static bool follows_prefix(const struct fork_search *search, const struct tierce__disk_entry *entry)
{
    static const struct tierce__key none;
    const struct tierce__answer *answer = search->answer;
    if (entry->key.ns != search->ns ||
        entry->token_start != search->first_block * answer->naming.group.block_tokens ||
        memcmp(&entry->key.shard, &answer->shard, sizeof(answer->shard)) != 0)
        return false;
    if (search->first_block == 0)
        return memcmp(&entry->parent, &none, sizeof(none)) == 0;
    return memcmp(entry->parent.hash, hash_before(search), TIERCE_HASH_BYTES) == 0;
}

static void add_branch(struct fork_search *search, const uint8_t *block, bool has_other_root)
{
    TIERCE_DASSERT(search->count <= TIERCE__BRANCHES_MAX);
    for (uint32_t i = 0; i < search->count; i++) {
        if (memcmp(search->branches[i], block, TIERCE_HASH_BYTES) == 0)
            return;
    }
    if (search->count == TIERCE__BRANCHES_MAX)
        return;
    memcpy(search->branches[search->count++], block, TIERCE_HASH_BYTES);
    search->other_root += has_other_root;
}

static void compare(struct fork_search *search, const struct tierce__chunk_info *info)
{
    const uint8_t *wanted = tierce_chain_hash(search->chain, (size_t)search->first_block);
    uint32_t common = tierce__chunk_common(search->header, info, wanted, search->blocks);
    TIERCE_DASSERT(common <= search->blocks && common <= info->geometry.block_count);
    if (common < search->common)
        return;
    if (common > search->common)
        search->count = search->other_root = 0;
    search->common = common;
    if (common == info->geometry.block_count)
        return; /* a tail: it ends where the others may differ */
    const uint8_t *blocks = tierce__chunk_block_hashes(search->header, info->geometry.layer_count);
    const uint8_t *root = tierce_chain_root_hash(search->chain);
    add_branch(search, blocks + (size_t)common * TIERCE_HASH_BYTES,
               search->first_block == 0 && memcmp(info->parent, root, TIERCE_HASH_BYTES) != 0);
}

static bool visit(void *arg, const struct tierce__disk_entry *entry)
{
    struct fork_search *search = arg;
    struct tierce__chunk_info info;
    if (!follows_prefix(search, entry))
        return true;
    const uint8_t *wanted = tierce_chain_hash(search->chain, (size_t)search->first_block);
    if (search->common > 0 && memcmp(entry->first_block, wanted, TIERCE_HASH_BYTES) != 0)
        return true; /* others are nearer */
    if (search->headers++ == HEADERS_MAX)
        return false;
    int rc = read_header(search, &info, entry);
    if (rc == 0)
        compare(search, &info);
    else if (rc == -ENOMEM)
        search->status = rc;
    else
        search->unread++;
    return search->status == 0;
}

static int open_data(struct fork_search *search)
{
    char *path = tierce__disk_data_path(search->inspect->path);
    int rc = path != NULL ? tierce__vfs_threads_create(&search->vfs, 1) : -ENOMEM;
    if (rc == 0)
        rc = search->vfs->ops->open(search->vfs, &search->data, path, TIERCE__VFS_READONLY);
    tierce__free(path);
    return rc;
}

static void close_data(struct fork_search *search)
{
    if (search->data != NULL)
        search->vfs->ops->close(search->vfs, search->data);
    if (search->vfs != NULL)
        search->vfs->ops->destroy(search->vfs);
    tierce__free(search->header);
}

static void conclude(struct tierce__branches *out, const struct fork_search *search)
{
    uint64_t at = search->first_block + search->common;
    bool is_whole = search->headers <= HEADERS_MAX;
    *out =
        (struct tierce__branches){.known = is_whole && (search->count > 0 || search->unread == 0),
                                  .from_block = at,
                                  .to_block = at + 1,
                                  .count = search->count,
                                  .other_root = search->other_root};
}

int tierce__why_fork(struct tierce__answer *answer, const struct tierce__inspect *inspect,
                     uint32_t ns, const struct tierce_chain *chain)
{
    TIERCE_DASSERT(answer->miss.reason == TIERCE_MISS_NEVER_STORED);
    TIERCE_DASSERT(answer->miss.block < answer->blocks);
    uint64_t left = answer->blocks - answer->miss.block, step = answer->naming.group.chunk_blocks;
    struct fork_search *search = tierce__calloc(1, sizeof(*search));
    if (search == NULL)
        return -ENOMEM;
    search->answer = answer;
    search->inspect = inspect;
    search->chain = chain;
    search->ns = ns;
    search->first_block = answer->miss.block;
    search->blocks = (uint32_t)(left < step ? left : step);
    int rc = open_data(search);
    if (rc == 0)
        rc = tierce__disk_scan(inspect->path, inspect->namespaces, visit, search);
    if (rc == 0)
        rc = search->status;
    if (rc == 0)
        conclude(&answer->branches, search);
    close_data(search);
    tierce__free(search);
    return rc;
}
