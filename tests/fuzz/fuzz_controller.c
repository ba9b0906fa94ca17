/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "manager/lmcache/controller_message.h"

#include <string.h>

/* A message of LMCache's workers: lists that were accepted can be read to their end. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text, size_t room)
{
    TIERCE_ASSERT(memchr(text, '\0', room) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__controller_message message;
    struct tierce__line scratch = {0};
    struct tierce__controller_op op;
    struct tierce__lmcache_int key;
    char why[TIERCE__CONTROLLER_WHY_BYTES] = "";
    if (!tierce__controller_read(&message, &scratch, data, size, why)) {
        TIERCE_ASSERT(why[0] != '\0');
    } else {
        uint32_t operations = message.operations.count, keys = message.keys.count, read = 0;
        check_text(message.instance, sizeof(message.instance));
        check_text(message.location, sizeof(message.location));
        check_text(message.host, sizeof(message.host));
        check_text(message.peer, sizeof(message.peer));
        check_text(message.sync, sizeof(message.sync));
        check_text(message.error, sizeof(message.error));
        TIERCE_ASSERT(message.batch_count <= TIERCE__CONTROLLER_BATCHES_MAX);
        if (message.type == TIERCE__CONTROLLER_OPERATIONS) {
            while (tierce__controller_next_op(&message.operations, &op))
                read++;
            TIERCE_ASSERT(read == operations && read <= TIERCE__CONTROLLER_ITEMS_MAX);
        } else if (message.type == TIERCE__CONTROLLER_SYNC_BATCH) {
            while (tierce__controller_next_key(&message.keys, &key))
                read++;
            TIERCE_ASSERT(read == keys && read <= TIERCE__CONTROLLER_ITEMS_MAX);
        }
    }
    tierce__line_clear(&scratch);
    return 0;
}
