/* SPDX-License-Identifier: Apache-2.0 */
/* Notes of sessions and deletions: a readable note is written as the same bytes, except for a
 * session of version 1, which is written in version 2, and for the time at which a session ends.
 * The first byte says whether the note is a session ('s') or a deletion. */
#include "base/bytes.h"
#include "manager/locate/locator_private.h"

#include <stdlib.h>
#include <string.h>

static void must(bool condition)
{
    if (!condition)
        abort();
}

/* Whether `again` is the session of `bytes` in version 2: version 1 has no timeout, 8 bytes. */
static bool is_same_session(const uint8_t *again, size_t size, const uint8_t *bytes, size_t count)
{
    enum { TIMEOUT_AT = 1 + TIERCE__SESSION_ID_BYTES + 8 };
    size_t added = bytes[0] == 1 ? 8 : 0;
    return size == count + added && again[0] == 2 &&
           memcmp(again + 1, bytes + 1, TIMEOUT_AT - 1) == 0 &&
           memcmp(again + TIMEOUT_AT + added, bytes + TIMEOUT_AT, count - TIMEOUT_AT) == 0;
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
    must(session->due_us <= session->last_us && session->timeout_us >= 0);
    session->due_us = (int64_t)tierce__load_le64(bytes + 1 + TIERCE__SESSION_ID_BYTES);
    must(tierce__session_write(session, &arena, &again, &size) == 0);
    must(is_same_session(again, size, bytes, count));
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
