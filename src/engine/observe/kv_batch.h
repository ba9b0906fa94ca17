/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ENGINE_KV_BATCH_H
#define TIERCE_ENGINE_KV_BATCH_H

#include <tierce/events.h>

#include "base/text/line.h"
#include "engine/observe/kv_tokens.h"

/*
 * Events of an engine as a batch of KV events: docs/inside/format/kv-events.md.
 *
 * Thread: one at a time.
 */
struct tierce__kv_form {
    bool arrays; /* positional arrays; else maps */
    uint32_t dp_rank;
    /* The namespaces whose chunks are published: tierce__kv_namespaces_are_valid. NULL, "": all.
     * [borrow] */
    const char *namespaces;
    /* The tokens of chunks, or NULL: events have none. [borrow] */
    struct tierce__kv_tokens *tokens;
    /* The namespace of the last event, whose text need not be searched again. */
    const char *ns_text;
    uint32_t block_tokens;
    bool has_prefixes; /* its chunks stand for the prompt before them */
    /* The last namespace that was compared with the list. */
    const uint8_t *ns_digest;
    bool is_shown;
    uint32_t *found; /* tokens of an event */
    size_t found_room;
};

void tierce__kv_form_fini(struct tierce__kv_form *form);

/* Whether a list names namespaces: beginnings of their digests, of at least 8 hex digits, separated
 * by commas. */
bool tierce__kv_namespaces_are_valid(const char *list);

/* Whether the chunk's event is published: not of remote tiers, nor of named values. */
bool tierce__kv_is_published(const struct tierce_event *e);

/* Batches are cut at this length, because a subscriber that does not read keeps many of them in
 * memory (kv_stream.h). A chunk whose tokens need more has a batch for itself. */
#define TIERCE__KV_BATCH_BYTES (32u << 10)

/* Appends a batch with the events whose number is above `after`, without those of remote tiers,
 * of named values and of namespaces that are not published. *count is the number of events, and
 * then how many of them were taken: not all, if the batch became too long. Returns its hashes; 0:
 * nothing was appended. */
size_t tierce__kv_batch_write(struct tierce__line *out, struct tierce__kv_form *form,
                              const struct tierce_event *events, size_t *count, uint64_t after);

/* Appends a batch that contains AllBlocksCleared alone. */
void tierce__kv_batch_clear(struct tierce__line *out, const struct tierce__kv_form *form);

/* The hash of a chunk in KV events. */
uint64_t tierce__kv_hash(const uint8_t hash[TIERCE_HASH_BYTES]);

#endif
