/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config.h"
#include "base/config/config_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Any bytes as a configuration file. An accepted file must be printed as a file that is accepted
 * and has the same values; a rejected file must yield a message; nothing may leak.
 */

static const struct tierce__param table[] = {
    {"size", TIERCE__PARAM_SIZE, "1GiB", 1048576, 17592186044416.0, NULL, ""},
    {"a.text", TIERCE__PARAM_TEXT, "x", 0, 0, NULL, ""},
    {"a.share", TIERCE__PARAM_SHARE, "50%", 0, 1, NULL, ""},
    {"b.time", TIERCE__PARAM_DURATION, "1s", 10, 3600000, NULL, ""},
    {"b.flag", TIERCE__PARAM_BOOL, "no", 0, 0, NULL, ""},
    {"b.pick", TIERCE__PARAM_CHOICE, "one", 0, 0, "one|two", ""},
    {"a.count", TIERCE__PARAM_COUNT, "16", 0, 0, NULL, ""},
};
#define ROWS (sizeof(table) / sizeof(*table))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const struct tierce__config *config)
{
    struct tierce__config *again = NULL;
    struct tierce__config_error error = {""};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (out == NULL)
        return;
    tierce__config_print(config, out);
    fclose(out);
    if (tierce__config_create(&again, table, ROWS, "T") == 0) {
        int rc = tierce__config_load_text(again, "printed", text, len, &error);
        TIERCE_ASSERT(rc == 0);
        for (size_t row = 0; row < ROWS; row++)
            TIERCE_ASSERT(strcmp(tierce__config_canonical(config, row),
                                 tierce__config_canonical(again, row)) == 0);
    }
    tierce__config_destroy(again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__config *config = NULL;
    struct tierce__config_error error = {""};
    uint64_t live = tierce__alloc_live();

    if (tierce__config_create(&config, table, ROWS, "T") != 0)
        return 0;
    int rc = tierce__config_load_text(config, "fuzz\n.yaml", (const char *)data, size, &error);
    if (rc == 0)
        check_round_trip(config);
    else
        TIERCE_ASSERT(error.text[0] != '\0' &&
                      memchr(error.text, '\0', sizeof(error.text)) != NULL);
    tierce__config_destroy(config);
    TIERCE_ASSERT(tierce__alloc_live() == live);
    return 0;
}
