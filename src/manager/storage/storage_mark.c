/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/storage/storage_mark.h"
#include "base/assert.h"
#include "base/log/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static enum tierce__mark_state no_mark(const struct tierce__storage_ops *ops,
                                       struct tierce__storage_driver *driver,
                                       const struct tierce__storage_mark *mark, char why[128])
{
    bool has_blocks = false;
    if (ops->has_blocks != NULL && ops->has_blocks(driver, &has_blocks) < 0) {
        has_blocks = false;
        if (!mark->is_marked) { /* unknown whose it is: the next probe asks again */
            snprintf(why, 128,
                     "its objects cannot be listed, so it gets no mark and is not used; allow "
                     "ListBucket");
            return TIERCE__MARK_UNKNOWN;
        }
    }
    if (!mark->is_marked && !has_blocks)
        return TIERCE__MARK_ABSENT;
    if (!mark->is_marked) {
        snprintf(why, 128,
                 "it has blocks but no mark: another manager or a lost registry wrote them (tierce "
                 "storage adopt [--keep])");
        return TIERCE__MARK_UNCLAIMED;
    }
    snprintf(why, 128, "its mark " TIERCE__STORAGE_MARK " is missing%s",
             has_blocks
                 ? ", but it has blocks: a lifecycle rule may delete objects (tierce storage "
                   "adopt --keep)"
                 : ": mount it; or, if it is empty, tierce storage adopt");
    return TIERCE__MARK_LOST;
}

enum tierce__mark_state tierce__storage_mark_look(const struct tierce__storage_ops *ops,
                                                  struct tierce__storage_driver *driver,
                                                  const struct tierce__storage_mark *mark,
                                                  char why[128])
{
    char id[TIERCE__STORAGE_ID_HEX + 1] = "";
    TIERCE_ASSERT((ops->read_mark == NULL) == (ops->write_mark == NULL));
    if (ops->read_mark == NULL || mark->id[0] == '\0')
        return TIERCE__MARK_UNKNOWN;
    int rc = ops->read_mark(driver, id, why);
    if (rc == 0 && strcmp(id, mark->id) == 0)
        return TIERCE__MARK_OURS;
    if (rc == -ENOENT)
        return no_mark(ops, driver, mark, why);
    if (rc == 0)
        snprintf(
            why, 128,
            "it has the mark of another registry, %s; if no manager uses it: tierce storage adopt "
            "NAME --keep",
            id);
    else if (rc == TIERCE_E_FORMAT)
        snprintf(why, 128,
                 "its object " TIERCE__STORAGE_MARK
                 " is not a mark (tierce storage adopt NAME --keep)");
    return rc == 0 || rc == TIERCE_E_FORMAT ? TIERCE__MARK_FOREIGN : TIERCE__MARK_UNKNOWN;
}

/* The blocks of such a storage are lost for good. */
static void say_again(void)
{
    tierce__log(TIERCE_LOG_WARN, "storage_emptied",
                "hint=\"a server of a storage has lost its memory, and gets its mark again; the "
                "blocks that it had are misses\"");
}

int tierce__storage_mark_probe(const struct tierce__storage_ops *ops,
                               struct tierce__storage_driver *driver,
                               const struct tierce__storage_mark *mark,
                               enum tierce__mark_state *state, char why[128])
{
    *state = tierce__storage_mark_look(ops, driver, mark, why);
    bool is_again = *state == TIERCE__MARK_LOST && ops->may_forget;
    if (tierce__mark_is_wrong(*state) && !is_again)
        return TIERCE_E_DOWN;
    /* Without a mark it is not used: so the reason must be seen, although all else works. */
    bool is_needed = *state == TIERCE__MARK_UNKNOWN && ops->has_blocks != NULL &&
                     !mark->is_marked && mark->id[0] != '\0';
    char unknown[128];
    snprintf(unknown, sizeof(unknown), "%s", why);
    /* Its own words are better than those of a mark that cannot be read. */
    int rc = ops->probe(driver, why);
    if (rc == 0 && is_needed) {
        snprintf(why, 128, "%s",
                 unknown[0] != '\0' ? unknown
                                    : "its mark " TIERCE__STORAGE_MARK
                                      " cannot be read; allow GetObject and ListBucket");
        return TIERCE_E_DOWN;
    }
    if (rc != 0 || (*state != TIERCE__MARK_ABSENT && !is_again))
        return rc;
    rc = ops->write_mark(driver, mark->id, why);
    if (rc == 0)
        *state = TIERCE__MARK_OURS;
    if (rc == 0 && is_again)
        say_again();
    return rc;
}

int tierce__storage_mark_check(const struct tierce__storage_ops *ops,
                               struct tierce__storage_driver *driver, const char *id, char why[128])
{
    struct tierce__storage_mark mark = {.is_marked = true};
    if (ops->read_mark == NULL)
        return 0;
    snprintf(mark.id, sizeof(mark.id), "%s", id);
    switch (tierce__storage_mark_look(ops, driver, &mark, why)) {
    case TIERCE__MARK_OURS:
        return 0;
    case TIERCE__MARK_UNKNOWN:
    case TIERCE__MARK_ABSENT:
    case TIERCE__MARK_LOST:
    case TIERCE__MARK_FOREIGN:
    case TIERCE__MARK_UNCLAIMED:
        break;
    }
    return TIERCE_E_DOWN;
}

int tierce__storage_mark_measure(const struct tierce__storage_ops *ops,
                                 struct tierce__storage_driver *driver, const char *id,
                                 const char *path, uint64_t *bytes)
{
    char why[128] = "";
    if (ops->measure_marked != NULL)
        return ops->measure_marked(driver, id, path, bytes);
    int rc = tierce__storage_mark_check(ops, driver, id, why);
    if (rc == 0)
        rc = ops->measure(driver, path, bytes);
    int after = rc == 0 || rc == -ENOENT ? tierce__storage_mark_check(ops, driver, id, why) : 0;
    return after < 0 ? after : rc;
}

int tierce__storage_mark_replace(const struct tierce__storage_ops *ops,
                                 struct tierce__storage_driver *driver, const char *id,
                                 char why[128])
{
    TIERCE_ASSERT(ops->write_mark != NULL && tierce__storage_id_is(id));
    int rc = ops->probe(driver, why);
    return rc == 0 ? ops->write_mark(driver, id, why) : rc;
}
