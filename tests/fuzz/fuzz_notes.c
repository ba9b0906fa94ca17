/* SPDX-License-Identifier: Apache-2.0 */
/* Notes of sessions and deletions: a readable note is written as the same bytes, except for a
 * session that would end too late. The first byte says which of the two. */
#include "base/bytes.h"
#include "manager/locate/locator_private.h"

#include <stdlib.h>
#include <string.h>

static void must(bool condition)
{
    if (!condition)
        abort();
}

static void read_session(struct tierce__locator *locator, const uint8_t *bytes, size_t count)
{
    struct tierce__write_session *session;
    struct tierce__arena arena = {0};
    const void *again;
    size_t size;
    if (tierce__session_read(&session, locator, 7, bytes, count) != 0)
        return;
    must(session->note == 7);
    int64_t due_us = (int64_t)tierce__load_le64(bytes + 1 + TIERCE__SESSION_ID_BYTES);
    must(session->due_us <= due_us);
    session->due_us = due_us;
    must(tierce__session_write(session, &arena, &again, &size) == 0);
    must(size == count && memcmp(again, bytes, count) == 0);
    tierce__arena_clear(&arena);
    tierce__session_destroy(session);
}

static void read_deletion(struct tierce__live *live, const uint8_t *bytes, size_t count)
{
    struct tierce__deletion *deletion;
    struct tierce__meta_note note = {
        .kind = TIERCE__NOTE_DELETION, .number = 7, .value = bytes, .bytes = count};
    struct tierce__meta_note again;
    if (tierce__deletion_read(&deletion, live, &note) != 0)
        return;
    must(tierce__deletion_write(deletion, &again) == 0);
    must(again.number == 7 && again.bytes == count && memcmp(again.value, bytes, count) == 0);
    live->users++; /* the locator behind it has no lock to tell of the last one */
    tierce__deletion_destroy(deletion);
    live->users--;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tierce__locator locator = {.opts = {.seed = 1}};
    static struct tierce__live live = {.locator = &locator};
    if (size == 0)
        return 0;
    if (data[0] == 's')
        read_session(&locator, data + 1, size - 1);
    else
        read_deletion(&live, data + 1, size - 1);
    return 0;
}
