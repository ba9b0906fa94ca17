/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"
#include "cli/inspect/inspect.h"
#include "store/coded/coded_keys.h"

#include <stdio.h>
#include <string.h>

const char *const tierce__cli_inspect_help[] = {
    "Lists what a store folder (disk.path) holds: namespaces, shards, chunks, bytes and ages. It\n"
    "changes nothing and takes no lock: an engine may have the folder open.\n"
    "\n"
    "  --verify   reads every chunk, verifies its header, identity and checksums, and lists "
    "damaged\n"
    "             chunks. A chunk that an engine evicts meanwhile is not reported.\n"
    "  --key-file FILE   with --verify: the keys of encrypted chunks (encryption.key_file). "
    "Without\n"
    "             its key, a chunk is verified by its header and the checksums of its encrypted "
    "bytes\n"
    "  --json     prints one JSON object; damaged chunks are then listed on stderr\n"
    "\n"
    "Exit status: 0 no damage, 1 the folder cannot be read, or its journal or a chunk is damaged,\n"
    "2 invalid arguments.\n",
    NULL};

struct inspect_request {
    const char *folder;
    bool verify;
    bool json;
    const char *key_file;
};

static const struct tierce__option options[] = {
    {"--verify", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct inspect_request, verify)},
    {"--key-file", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct inspect_request, key_file),
     .wants = "a file of keys"},
    {"--json", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct inspect_request, json)},
    {NULL},
};

/* Without a file there are none. */
static int open_keys(struct tierce__coded_keys **out, const char *file)
{
    char why[TIERCE__CODED_KEYS_WHY_BYTES];
    if (file == NULL)
        return 0;
    const struct tierce__coded_keys_opts opts = {.size = sizeof(opts), .file = file};
    int rc = file[0] != '\0' ? tierce__coded_keys_open(out, &opts, why) : TIERCE_E_CONFIG;
    if (rc < 0)
        (void)tierce__cli_fail("inspect", "--key-file: %s",
                               file[0] != '\0' ? why : "name a file of keys");
    return rc;
}

static int report(const struct inspect_request *request, const struct tierce__inspect *inspect)
{
    struct tierce__verify verify;
    const struct tierce__verify *done = NULL;
    if (request->verify) {
        struct tierce__coded_keys *keys = NULL;
        int rc = open_keys(&keys, request->key_file);
        if (rc != 0)
            return TIERCE__CLI_FAILED;
        rc = tierce__inspect_verify(&verify, inspect, 0, keys, request->json ? stderr : stdout);
        tierce__coded_keys_close(keys);
        if (rc != 0)
            return tierce__cli_fail("inspect", "%.300s: the data file cannot be read: %s",
                                    request->folder, tierce_strerror(rc));
        done = &verify;
    }
    if (!request->json)
        tierce__inspect_print(inspect, done, stdout);
    else
        tierce__inspect_print_json(inspect, done, stdout);
    bool damaged = done != NULL && done->bad > 0;
    return damaged || tierce__inspect_journal_damage(inspect) > 0 ? TIERCE__CLI_FAILED
                                                                  : TIERCE__CLI_OK;
}

int tierce__cli_inspect(int argc, char **argv)
{
    struct inspect_request request = {0};
    struct tierce__inspect inspect = {0};
    int status = tierce__inspect_options(&request.folder, "inspect", options, &request, argc, argv);
    if (status != TIERCE__CLI_OK)
        return status;
    if (request.key_file != NULL && !request.verify)
        return tierce__cli_usage("inspect", "--key-file requires --verify");
    int rc = tierce__inspect_scan(&inspect, request.folder);
    status = rc == 0 ? report(&request, &inspect)
                     : tierce__inspect_explain("inspect", request.folder, rc);
    tierce__inspect_clear(&inspect);
    return status;
}
