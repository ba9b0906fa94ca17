/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"
#include "net/zmq_curve.h"

#include <stdio.h>

#define COMMAND "keygen"

const char *const tierce__cli_keygen_help[] = {
    "Makes a pair of keys for KV events that are encrypted (kv_events.curve_key_file): writes the\n"
    "secret key to FILE, mode 0600, and prints the public key, 40 characters. An existing file is\n"
    "never replaced.\n"
    "\n"
    "  --public   prints the public key of an existing file instead\n",
    NULL};

int tierce__cli_keygen(int argc, char **argv)
{
    struct arguments {
        bool is_public;
    } arguments = {0};
    static const struct tierce__option options[] = {
        {"--public", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct arguments, is_public)},
        {NULL}};
    struct tierce__zmq_curve_pair pair;
    char why[256];
    int status = tierce__options_read(COMMAND, options, &arguments, 0, &argc, argv);
    if (status != TIERCE__CLI_OK)
        return status;
    if (argc != 2)
        return tierce__cli_usage(COMMAND, "one FILE is required");
    int rc = arguments.is_public ? tierce__zmq_curve_read(&pair, "FILE", argv[1], why)
                                 : tierce__zmq_curve_create(&pair, argv[1], why);
    if (rc < 0)
        return tierce__cli_fail(COMMAND, "%s", why);
    printf("%s\n", pair.public_key);
    tierce__zmq_curve_wipe(&pair);
    return TIERCE__CLI_OK;
}
