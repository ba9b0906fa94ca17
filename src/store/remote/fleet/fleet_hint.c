/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints of clients about blocks that were used, for the manager's reclaimer: HintCache. A use that
 * the manager saw has no hint there, and of one that memory or disk served it does not know. New
 * blocks get their hint with their write session (fleet_write.c).
 *
 * Nobody waits for a hint. It is lost if the manager does not answer, or if too many wait.
 */
#include "base/alloc.h"
#include "base/log/log.h"
#include "core/key/group.h"
#include "core/key/key_text.h"
#include "store/remote/fleet/fleet_requests.h"

#include <string.h>

#define NAMES_MAX 16384u /* that wait */
#define HINT_MS   5000u

struct fleet_hint {
    struct tierce__list node; /* in fleet->hinted, then in fleet->hints */
    struct tierce__fleet *fleet;
    struct tierce__fleet_part *part;
    enum tierce__policy_hint kind;
    size_t count, sent; /* keys */
    struct tierce__fleet_call call;
    char texts[][TIERCE__KEY_TEXT_BYTES]; /* [count] */
};

bool tierce__fleet_hint_fill(Meta__SessionHint *out, enum tierce__policy_hint kind)
{
    switch (kind) {
    case TIERCE__HINT_CLOSED:
        out->session = (char *)(uintptr_t) "closed";
        return true;
    case TIERCE__HINT_OPEN:
        out->session = (char *)(uintptr_t) "open";
        return true;
    case TIERCE__HINT_SOON:
        out->returns_in_s = TIERCE__HINT_SOON_S;
        return true;
    case TIERCE__HINT_LATER:
        out->returns_in_s = TIERCE__HINT_SOON_S + 1;
        return true;
    case TIERCE__HINT_TTL: /* an engine does not keep the time */
    case TIERCE__HINT_NONE:
    case TIERCE__HINTS:
        break;
    }
    return false;
}

void tierce__fleet_hint(struct tierce__connector *connector, const struct tierce_plugin_name *names,
                        size_t count, enum tierce__policy_hint kind)
{
    struct tierce__fleet *fleet = (struct tierce__fleet *)connector;
    Meta__SessionHint ignored;
    if (count == 0 || !tierce__fleet_hint_fill(&ignored, kind))
        return;
    struct fleet_hint *hint = NULL;
    if (count <= NAMES_MAX)
        hint = tierce__calloc(1, sizeof(*hint) + count * sizeof(hint->texts[0]));
    for (size_t i = 0; hint != NULL && i < count; i++) {
        TIERCE_DASSERT(names[i].bytes < TIERCE__KEY_TEXT_BYTES);
        memcpy(hint->texts[i], names[i].text, names[i].bytes);
    }
    tierce__lock_take(&fleet->lock);
    if (hint == NULL || fleet->hinted_names + count > NAMES_MAX) {
        fleet->lost_hints++;
    } else if (!fleet->closing) {
        hint->fleet = fleet;
        hint->kind = kind;
        hint->count = count;
        fleet->hinted_names += count;
        tierce__list_push_back(&fleet->hinted, &hint->node);
        hint = NULL;
        tierce__fleet_manager_wake(fleet->manager);
    }
    tierce__lock_drop(&fleet->lock);
    tierce__free(hint);
}

static void end(struct fleet_hint *hint)
{
    struct tierce__fleet *fleet = hint->fleet;
    tierce__lock_take(&fleet->lock);
    TIERCE_ASSERT(fleet->hinted_names >= hint->count);
    fleet->hinted_names -= hint->count;
    tierce__lock_drop(&fleet->lock);
    tierce__list_remove(&hint->node);
    tierce__proto_free(hint->call.reply);
    tierce__free(hint);
}

static void send_row(struct fleet_hint *hint);

static void is_hinted(struct tierce__fleet_call *call)
{
    struct fleet_hint *hint = call->arg;
    struct tierce__fleet *fleet = hint->fleet;
    tierce__fleet_part_hear(hint->part, call);
    tierce__proto_free(call->reply);
    call->reply = NULL;
    if (call->status == TIERCE_E_UNSUPPORTED) {
        fleet->cannot_hint = true;
        tierce__log(TIERCE_LOG_WARN, "fleet_no_hints",
                    "store=%s why=\"the manager is of a version without HintCache\" "
                    "hint=\"upgrade it: until then it does not learn how sessions go on\"",
                    fleet->store_name);
    } else if (call->status < 0) {
        (void)tierce__fleet_call_failed(fleet, call);
    }
    if (call->status < 0 || fleet->is_closing)
        end(hint);
    else
        send_row(hint);
}

/* The keys from `sent` on that are of one part. A part that is not registered has no blocks. */
static void send_row(struct fleet_hint *hint)
{
    struct tierce__fleet *fleet = hint->fleet;
    int64_t keys[TIERCE__LOOKUP_ROW];
    size_t row = 0;
    hint->part = NULL;
    for (; hint->sent < hint->count && row < TIERCE__LOOKUP_ROW; hint->sent++) {
        const char *text = hint->texts[hint->sent];
        const struct tierce_plugin_name name = {.text = text, .bytes = strlen(text)};
        struct tierce__fleet_part *part;
        int64_t key;
        if (tierce__fleet_part_of(fleet->parts, &part, &key, &name) < 0 ||
            part->state != TIERCE__FLEET_REGISTERED || !tierce__fleet_part_is_current(part))
            continue;
        if (row > 0 && part != hint->part)
            break;
        hint->part = part;
        keys[row++] = key;
    }
    if (row == 0) {
        end(hint);
        return;
    }
    Meta__SessionHint what = META__SESSION_HINT__INIT;
    Meta__HintCacheRequest request = META__HINT_CACHE_REQUEST__INIT;
    bool is_known = tierce__fleet_hint_fill(&what, hint->kind);
    TIERCE_ASSERT(is_known);
    request.instance_id = hint->part->instance;
    request.block_keys = keys;
    request.n_block_keys = row;
    request.hint = &what;
    hint->call = (struct tierce__fleet_call){.method = "HintCache",
                                             .request = &request.base,
                                             .answers = &meta__common_response__descriptor,
                                             .deadline_ns = tierce__deadline_in_ms(HINT_MS),
                                             .repeats = true,
                                             .done = is_hinted,
                                             .arg = hint};
    tierce__fleet_manager_start(fleet->manager, &hint->call);
}

void tierce__fleet_hints_send(struct tierce__fleet *fleet)
{
    struct tierce__list taken;
    tierce__list_init(&taken);
    tierce__lock_take(&fleet->lock);
    TIERCE__LIST_FOR_EACH_SAFE (node, after, &fleet->hinted) {
        tierce__list_remove(node);
        tierce__list_push_back(&taken, node);
    }
    uint64_t lost = fleet->lost_hints;
    fleet->lost_hints = 0;
    tierce__lock_drop(&fleet->lock);
    if (lost > 0)
        tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_MANAGER,
                          "%llu hints were lost: the manager answers too slowly, or no memory",
                          (unsigned long long)lost);
    TIERCE__LIST_FOR_EACH_SAFE (it, next, &taken) {
        struct fleet_hint *hint = TIERCE__CONTAINER_OF(it, struct fleet_hint, node);
        tierce__list_remove(it);
        tierce__list_push_back(&fleet->hints, it);
        if (fleet->is_closing || fleet->cannot_hint)
            end(hint);
        else
            send_row(hint);
    }
}

void tierce__fleet_hints_free(struct tierce__fleet *fleet)
{
    struct tierce__list *lists[] = {&fleet->hinted, &fleet->hints};
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
        TIERCE__LIST_FOR_EACH_SAFE (it, next, lists[i])
            end(TIERCE__CONTAINER_OF(it, struct fleet_hint, node));
    }
}
