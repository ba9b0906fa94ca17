/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/report/report_kvcm.h"
#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_MAX_BYTES 200u

static const char header[] =
    "TimestampUs,CachedBlocksCurrentInstance,CachedBlocksPerInstance,CachedBlocksAllInstance,"
    "InternalReadBlocks,ExternalReadBlocks,TotalReadBlocks,InternalHitBlocks,InternalHitRate,"
    "ExternalHitBlocks,ExternalHitRate,HitRate,AccInternalHitRate,AccExternalHitRate,AccHitRate\n";

struct kvcm_report {
    struct tierce__kvcm_total *totals;
    const struct tierce__kvcm_layout *layout;
    const struct tierce__kvcm *kvcm;
    const char *const *names;
    const char *folder;
    struct tierce__new_file *files; /* [instances] opened with the first row */
    char *why;
};

static int fail(const struct kvcm_report *r, int rc, const char *what, const char *name)
{
    snprintf(r->why, TIERCE__KVCM_WHY_BYTES, "%.380s: %s%s%s", name, what, rc < 0 ? ": " : "",
             rc < 0 ? tierce_strerror(rc) : "");
    return rc;
}

static const char *name_of(const struct kvcm_report *r, uint32_t instance)
{
    return r->names[instance][0] != '\0' ? r->names[instance] : "instance";
}

/* ---- files ----------------------------------------------------------------------------------- */

static int make_folders(const struct kvcm_report *r)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/", r->folder) >= (int)sizeof(path))
        return fail(r, -ENAMETOOLONG, "the folder cannot be created", r->folder);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0777) < 0 && errno != EEXIST)
            return fail(r, -errno, "the folder cannot be created", path);
        *slash = '/';
    }
    return 0;
}

static int check_names(const struct kvcm_report *r)
{
    if (r->layout->instance_count > TIERCE__KVCM_FILES_MAX)
        return fail(r, TIERCE_E_LIMIT, "the trace has more instances than files can be written",
                    r->folder);
    for (uint32_t i = 0; i < r->layout->instance_count; i++) {
        if (strchr(r->names[i], '/') != NULL || strlen(r->names[i]) > NAME_MAX_BYTES)
            return fail(r, TIERCE_E_ARGUMENT, "the instance cannot be the name of a file",
                        r->names[i]);
    }
    return 0;
}

static int open_file(struct kvcm_report *r, uint32_t instance)
{
    char path[PATH_MAX];
    int length =
        snprintf(path, sizeof(path), "%s/%s_hit_rates.csv", r->folder, name_of(r, instance));
    int rc = length < (int)sizeof(path) ? tierce__new_file_open(&r->files[instance], path)
                                        : -ENAMETOOLONG;
    if (rc < 0)
        return fail(r, rc, "cannot be written", path);
    fputs(header, r->files[instance].file);
    return 0;
}

static int close_files(struct kvcm_report *r, int rc)
{
    for (uint32_t i = 0; i < r->layout->instance_count; i++) {
        int closed = tierce__new_file_close(&r->files[i], rc == 0);
        if (closed < 0 && rc == 0)
            rc = fail(r, closed, "its file cannot be written completely", name_of(r, i));
    }
    return rc;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static void print_held(const struct kvcm_report *r, FILE *file, uint32_t instance)
{
    uint64_t all = 0;
    fprintf(file, ", %" PRIu32 ", ", tierce__kvcm_held(r->kvcm, instance));
    for (uint32_t i = 0; i < r->layout->instance_count; i++) {
        uint32_t held = tierce__kvcm_held(r->kvcm, r->layout->members[i]);
        fprintf(file, "%s%" PRIu32, i > 0 ? ";" : "", held);
        all += held;
    }
    fprintf(file, ", %" PRIu64, all);
}

/* Six digits, as the original prints numbers. */
static int print_row(struct kvcm_report *r, const struct tierce__recorded *request,
                     const struct tierce__kvcm_read *read)
{
    const struct tierce__kvcm_total *total = &r->totals[request->instance];
    uint32_t blocks = read->internal_blocks + read->external_blocks;
    uint64_t all = total->internal_blocks + total->external_blocks;
    double internal = share(read->internal_hits, blocks);
    double external = share(read->external_hits, blocks);
    double all_internal = share(total->internal_hits, all);
    double all_external = share(total->external_hits, all);
    int rc = r->files[request->instance].file == NULL ? open_file(r, request->instance) : 0;
    if (rc < 0)
        return rc;
    FILE *file = r->files[request->instance].file;
    fprintf(file, "%" PRId64, request->time_us);
    print_held(r, file, request->instance);
    fprintf(file, ", %" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %" PRIu32 ", %g, %" PRIu32 ", %g",
            read->internal_blocks, read->external_blocks, blocks, read->internal_hits, internal,
            read->external_hits, external);
    fprintf(file, ", %g, %g, %g, %g\n", internal + external, all_internal, all_external,
            all_internal + all_external);
    return 0;
}

static int replay(struct kvcm_report *r, struct tierce__kvcm *kvcm,
                  const struct tierce__recording *recording)
{
    struct tierce__kvcm_read read;
    int rc = 0;
    for (const struct tierce__recorded *q = tierce__recording_first(recording);
         rc == 0 && q != NULL; q = tierce__recording_next(recording, q)) {
        uint64_t requests = tierce__kvcm_result(kvcm)->requests;
        struct tierce__kvcm_total *total = &r->totals[q->instance];
        rc = tierce__kvcm_request(kvcm, q, &read);
        if (rc < 0)
            return fail(r, rc, "the replay failed", name_of(r, q->instance));
        total->requests += tierce__kvcm_result(kvcm)->requests - requests;
        total->internal_blocks += read.internal_blocks;
        total->external_blocks += read.external_blocks;
        total->internal_hits += read.internal_hits;
        total->external_hits += read.external_hits;
        if (read.is_read && r->folder != NULL)
            rc = print_row(r, q, &read);
    }
    return rc;
}

int tierce__kvcm_report(struct tierce__kvcm_total *totals,
                        const struct tierce__recording *recording,
                        const struct tierce__kvcm_layout *layout, const char *const *names,
                        const char *folder, char why[TIERCE__KVCM_WHY_BYTES])
{
    static const struct tierce__match prefix = {TIERCE__MATCH_PREFIX, 0};
    struct kvcm_report r = {
        .totals = totals, .layout = layout, .names = names, .folder = folder, .why = why};
    struct tierce__kvcm *kvcm = NULL;
    memset(totals, 0, layout->instance_count * sizeof(*totals));
    int rc = folder != NULL ? check_names(&r) : 0;
    if (rc == 0 && folder != NULL)
        rc = make_folders(&r);
    if (rc < 0)
        return rc;
    r.files = tierce__calloc(layout->instance_count, sizeof(*r.files));
    rc = r.files == NULL ? -ENOMEM
                         : tierce__kvcm_create(
                               &kvcm, &(struct tierce__kvcm_opts){
                                          .size = sizeof(struct tierce__kvcm_opts),
                                          .layout = layout,
                                          .distinct = tierce__recording_totals(recording).distinct,
                                          .matches = &prefix,
                                          .match_count = 1,
                                      });
    r.kvcm = kvcm;
    if (rc < 0)
        fail(&r, rc, "the cache cannot be created", "kvcm");
    else
        rc = close_files(&r, replay(&r, kvcm, recording));
    tierce__kvcm_destroy(kvcm);
    tierce__free(r.files);
    return rc;
}
