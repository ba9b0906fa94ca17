/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/api/api_private.h"
#include "manager/backup/backup_page.h"
#include "proto/kvcm/admin_service.pb-c.h"

#include "base/assert.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>

/* Pages of a backup, for `tierce manager backup`. */

/* The content in base64. NULL: no memory, and the status says so. */
static char *encode(struct tierce__api_call *api, const void *content, size_t bytes)
{
    TIERCE_ASSERT(bytes <= TIERCE__BACKUP_FRAME_MAX);
    char *text = tierce__api_alloc(api, (bytes + 2) / 3 * 4 + 1, 1);
    if (text != NULL && bytes > 0)
        (void)EVP_EncodeBlock((unsigned char *)text, content, (int)bytes);
    return text;
}

static void read_backup(struct tierce__api_call *api)
{
    const Admin__ReadBackupRequest *request = (const Admin__ReadBackupRequest *)api->request;
    Admin__ReadBackupResponse *reply = (Admin__ReadBackupResponse *)api->reply;
    struct tierce__elector_state state;
    struct tierce__backup_made page;
    tierce__elector_state(api->manager->elector, &state);
    struct tierce__backup_page_opts opts = {.registry = api->manager->registry,
                                            .locator = api->manager->locator,
                                            .fence = state.fence,
                                            .started_us = (uint64_t)api->manager->started_us};
    int rc = tierce__backup_page_make(&page, &opts, tierce__api_string(request->cursor),
                                      &api->arena, api->why);
    char *content = rc == 0 ? encode(api, page.content, page.bytes) : NULL;
    char *cursor = rc == 0 ? tierce__api_copy(api, page.cursor, strlen(page.cursor)) : NULL;
    if (rc == 0 && (content == NULL || cursor == NULL))
        rc = -ENOMEM;
    if (rc == 0) {
        reply->kind = (int32_t)page.kind;
        reply->page = content;
        reply->cursor = cursor;
        reply->records = (int64_t)page.records;
        reply->unreadable_records = (int64_t)page.unreadable;
    }
    tierce__api_end(api, rc, "read backup", "Page of the backup read successfully");
}

const struct tierce__api_row tierce__api_backup_rows[TIERCE__RPC_COUNT] = {
    [TIERCE__RPC_admin_read_backup] = {read_backup, TIERCE__API_WAITS},
};
