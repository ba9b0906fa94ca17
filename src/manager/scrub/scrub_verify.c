/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a share of the blocks. */
#include "base/alloc.h"
#include "base/log/log.h"
#include "base/mix.h"
#include "manager/scrub/scrub_private.h"
#include "store/remote/fleet/fleet_prove.h"

#include <errno.h>

/* Another share in each scrub. */
static bool is_drawn(const struct scrub_run *run, const struct scrub_file *file)
{
    double drawn = (double)(tierce__spread((uint64_t)file->key ^ run->salt) >> 11) / 0x1p53;
    return drawn < run->verify_share;
}

/* The block as a whole, in pieces at the byte rate. */
static int read_block(struct scrub_run *run, const struct scrub_file *file, uint8_t *out)
{
    uint64_t most = tierce__storages_read_max(run->opts->storages, run->storage.type);
    int rc = most > 0 ? 0 : TIERCE_E_UNSUPPORTED;
    for (uint64_t at = 0, n = 0; rc == 0 && at < file->bytes; at += n) {
        n = file->bytes - at < most ? file->bytes - at : most;
        rc = tierce__scrub_pace_bytes(run, n);
        if (rc == 0)
            rc = tierce__storages_read(run->opts->storages, &run->storage, file->path,
                                       file->offset + at, out + at, n);
    }
    return rc;
}

static void judge(struct scrub_run *run, struct scrub_file *file, const uint8_t *bytes)
{
    const char *why = "";
    enum tierce__fleet_proof proof =
        tierce__fleet_prove(bytes, file->bytes, file->key, file->spec, &why);
    run->counts.verified++;
    run->counts.verified_bytes += file->bytes;
    run->counts.unprovable += proof == TIERCE__FLEET_UNPROVABLE;
    file->is_damaged = proof == TIERCE__FLEET_DAMAGED;
    if (!file->is_damaged)
        return;
    file->is_bad = true;
    run->counts.damaged++;
    tierce__log(TIERCE_LOG_WARN, "block_damaged", "storage=%.64s file=%.300s why=\"%s\"",
                run->storage.name, file->path, why);
}

int tierce__scrub_verify(struct scrub_run *run, struct scrub_file *file)
{
    if (!file->is_engines || file->bytes == 0 || file->is_bad || !is_drawn(run, file))
        return 0;
    if (file->bytes > TIERCE__STORAGE_READ_MAX) {
        run->counts.unprovable++;
        return 0;
    }
    uint8_t *bytes = tierce__alloc(file->bytes);
    if (bytes == NULL)
        return -ENOMEM;
    int rc = read_block(run, file, bytes);
    if (rc == 0)
        judge(run, file, bytes);
    tierce__free(bytes);
    if (rc == 0 || rc == -ECANCELED || tierce__scrub_ends(rc))
        return rc;
    /* Missing or too short by now: it was whole a moment ago, and the next scrub finds out. */
    run->counts.unreadable++;
    tierce__scrub_note_unread(run, "not read: %.80s: %s", file->path, tierce_strerror(rc));
    return 0;
}
