/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/observe/operate_page.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/config/config_parse.h"
#include "base/json/json_write.h"
#include "engine/store/backfill.h"
#include "engine/observe/operate.h"
#include "engine/why/why_prompt.h"

static void refuse(struct tierce__control_answer *answer, const char *why)
{
    answer->status = 400;
    tierce__line_put(&answer->body, why);
    tierce__line_put(&answer->body, "\n");
}

void tierce__mode_page(void *arg, const struct tierce__control_query *query,
                       struct tierce__control_answer *answer)
{
    static const char *const known[] = {"set", NULL};
    struct tierce_engine *engine = arg;
    const char *name = tierce__control_arg(query, "set");
    int mode = name != NULL ? tierce__mode_find(name) : (int)tierce_engine_mode(engine);
    if (!tierce__control_only(query, known) || mode < 0 ||
        tierce_engine_set_mode(engine, (enum tierce_mode)mode) < 0) {
        refuse(answer, "a mode is normal, freeze or bypass");
        return;
    }
    tierce__line_put(&answer->body, tierce_mode_name((enum tierce_mode)mode));
    tierce__line_put(&answer->body, "\n");
}

/* The mask of a tier's name; 0: there is none of that name. */
static uint32_t find_tier(const struct tierce_engine *engine, const char *name)
{
    for (size_t level = 0; level < engine->level_count; level++) {
        if (strcmp(engine->levels[level].tier->ops->name, name) == 0)
            return 1u << engine->levels[level].origin;
    }
    return 0;
}

static void refuse_tier(struct tierce__control_answer *answer, const struct tierce_engine *engine)
{
    answer->status = 400;
    tierce__line_put(&answer->body, "there is no tier of this name; the tiers are:");
    for (size_t level = 0; level < engine->level_count; level++) {
        tierce__line_put(&answer->body, " ");
        tierce__line_put(&answer->body, engine->levels[level].tier->ops->name);
    }
    tierce__line_put(&answer->body, "\n");
}

void tierce__clear_page(void *arg, const struct tierce__control_query *query,
                        struct tierce__control_answer *answer)
{
    static const char *const known[] = {"tier", "namespace", NULL};
    struct tierce_engine *engine = arg;
    const char *tier = tierce__control_arg(query, "tier");
    const char *ns = tierce__control_arg(query, "namespace");
    uint32_t tiers = tier != NULL ? find_tier(engine, tier) : 0;
    struct tierce__key of = {.ns = 0};
    if (!tierce__control_only(query, known)) {
        refuse(answer,
               "a clear accepts the parameters tier and namespace, each once and not empty");
        return;
    }
    if (tier != NULL && tiers == 0) {
        refuse_tier(answer, engine);
        return;
    }
    if (ns != NULL) {
        char why[TIERCE__PROMPT_WHY_BYTES];
        int64_t id = tierce__prompt_namespace(ns, engine->namespaces, NULL, 0, why);
        if (id < 0) {
            refuse(answer, why);
            return;
        }
        of.ns = (uint32_t)id;
    }
    int64_t chunks = tierce__engine_clear(engine, tiers, ns != NULL ? &of : NULL);
    if (chunks < 0) {
        answer->status = 500;
        tierce__line_put(&answer->body, tierce_strerror((int)chunks));
    } else {
        tierce__line_put_int(&answer->body, chunks);
    }
    tierce__line_put(&answer->body, "\n");
}

static void put_backfill(struct tierce_engine *engine, struct tierce__line *out)
{
    struct tierce__json_write json = {.line = out};
    struct tierce__backfill_report report;
    tierce__backfill_report(engine, &report);
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "state", report.state);
    tierce__json_write_text(&json, "reason", report.reason);
    tierce__json_write_count(&json, "chunks", report.chunks);
    tierce__json_write_count(&json, "seen", report.seen);
    tierce__json_write_count(&json, "sent", report.sent);
    tierce__json_write_count(&json, "sent_bytes", report.sent_bytes);
    tierce__json_write_count(&json, "there", report.there);
    tierce__json_write_count(&json, "refused", report.refused);
    tierce__json_write_count(&json, "unreadable", report.unreadable);
    tierce__json_write_count(&json, "ms", report.ms);
    tierce__json_write_close(&json, '}');
    tierce__line_put(out, "\n");
}

static const char *start_backfill(struct tierce_engine *engine, const char *rate)
{
    uint64_t bytes_per_s = 0;
    if (rate != NULL && (!tierce__parse_size(&bytes_per_s, rate) || bytes_per_s == 0))
        return "rate must be a size above 0, such as 64MiB";
    int rc = tierce__backfill_start(engine, bytes_per_s);
    switch (rc) {
    case TIERCE_E_UNSUPPORTED:
        return "a backfill requires disk.path and remote.urls";
    case TIERCE_E_REFUSED:
        return "a backfill requires the mode normal";
    case -EBUSY:
        return "a backfill is already running";
    default:
        return rc < 0 ? tierce_strerror(rc) : NULL;
    }
}

void tierce__backfill_page(void *arg, const struct tierce__control_query *query,
                           struct tierce__control_answer *answer)
{
    static const char *const known[] = {"do", "rate", NULL};
    struct tierce_engine *engine = arg;
    const char *what = tierce__control_arg(query, "do");
    const char *rate = tierce__control_arg(query, "rate"), *why = NULL;
    bool starts = what != NULL && strcmp(what, "start") == 0;
    bool stops = what != NULL && strcmp(what, "stop") == 0;
    if (!tierce__control_only(query, known) || (what != NULL && !starts && !stops) ||
        (rate != NULL && !starts))
        why = "/backfill takes do=start, optionally with rate=SIZE, or do=stop";
    else if (starts)
        why = start_backfill(engine, rate);
    else if (stops)
        tierce__backfill_stop(engine);
    if (why != NULL) {
        refuse(answer, why);
        return;
    }
    answer->type = "application/json";
    put_backfill(engine, &answer->body);
}

void tierce__put_namespaces(struct tierce_engine *engine, struct tierce__line *out)
{
    struct tierce__json_write json = {.line = out};
    uint32_t count = tierce__namespaces_count(engine->namespaces);
    tierce__json_write_open(&json, NULL, '[');
    for (uint32_t id = 0; id < count; id++) {
        char digest[2 * TIERCE_HASH_BYTES + 1];
        tierce__hex_encode(digest, tierce__namespaces_digest(engine->namespaces, id),
                           TIERCE_HASH_BYTES);
        tierce__json_write_open(&json, NULL, '{');
        tierce__json_write_text(&json, "digest", digest);
        tierce__json_write_text(&json, "text", tierce__namespaces_text(engine->namespaces, id));
        tierce__json_write_close(&json, '}');
    }
    tierce__json_write_close(&json, ']');
}
