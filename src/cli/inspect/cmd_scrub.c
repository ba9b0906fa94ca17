/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config/config_parse.h"
#include "cli/options.h"
#include "cli/inspect/inspect.h"
#include "cli/optimize/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const tierce__cli_scrub_help[] = {
    "Reads every chunk of a store folder (disk.path) again and verifies its header, identity and\n"
    "checksums, so that a failing disk is found before its chunks are needed. It changes nothing\n"
    "and takes no lock: an engine may have the folder open. A damaged chunk is a miss, and the\n"
    "engine that reads it removes it.\n"
    "\n"
    "  --rate SIZE   reads at most SIZE per second, such as 100MiB; default: no limit\n"
    "\n"
    "Prints a line for each damaged chunk: its key, a tab, and the damage. Exit status: 0 no "
    "damage,\n"
    "1 damage, or the folder cannot be read, 2 invalid arguments.\n",
    NULL,
};

struct scrub_request {
    const char *folder;
    uint64_t bytes_per_s;
};

static const struct tierce__option options[] = {
    {"--rate", TIERCE__OPTION_SIZE, TIERCE__OPTION_FIELD(struct scrub_request, bytes_per_s),
     .min = 1, .wants = "bytes per second, such as 100MiB"},
    {NULL},
};

static int scrub(const struct scrub_request *request, const struct tierce__inspect *inspect)
{
    struct tierce__verify verify;
    char bytes[32];
    int rc = tierce__inspect_verify(&verify, inspect, request->bytes_per_s, NULL, stdout);
    if (rc != 0)
        return tierce__cli_fail("scrub", "%.300s: the data file cannot be read: %s",
                                request->folder, tierce_strerror(rc));
    tierce__human_bytes(bytes, sizeof(bytes), verify.bytes);
    printf("%" PRIu64 " chunks read (%s): %" PRIu64 " damaged, %" PRIu64
           " evicted meanwhile; %" PRIu64 " lost pages or records in the journal\n",
           verify.chunks, bytes, verify.bad, verify.vanished,
           tierce__inspect_journal_damage(inspect));
    bool damaged = verify.bad > 0 || tierce__inspect_journal_damage(inspect) > 0;
    return damaged ? TIERCE__CLI_FAILED : TIERCE__CLI_OK;
}

int tierce__cli_scrub(int argc, char **argv)
{
    struct scrub_request request = {0};
    struct tierce__inspect inspect = {0};
    int status = tierce__inspect_options(&request.folder, "scrub", options, &request, argc, argv);
    if (status != TIERCE__CLI_OK)
        return status;
    int rc = tierce__inspect_scan(&inspect, request.folder);
    status =
        rc == 0 ? scrub(&request, &inspect) : tierce__inspect_explain("scrub", request.folder, rc);
    tierce__inspect_clear(&inspect);
    return status;
}
