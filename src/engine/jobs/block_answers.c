/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/jobs/block_answers.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/mix.h"

enum known { KNOWN_NOTHING, KNOWN_MISS, KNOWN_HIT };

struct tierce__block_answer {
    struct tierce__map_node node;
    struct tierce__list age, ask;
    struct tierce__block_key key;
    enum known known;
    bool is_asked; /* its question is queued, or was taken and not answered */
    bool is_told;  /* a lookup has returned the answer, or no caller waits for it */
    uint64_t until_ns;
};

int tierce__answers_init(struct tierce__block_answers *answers,
                         const struct tierce__answers_limits *limits)
{
    TIERCE_ASSERT(limits->count_max > 0);
    *answers = (struct tierce__block_answers){.limits = *limits};
    tierce__list_init(&answers->ages);
    tierce__list_init(&answers->to_ask);
    answers->entries = tierce__calloc(limits->count_max, sizeof(*answers->entries));
    if (answers->entries == NULL)
        return -ENOMEM;
    int rc = tierce__map_reserve(&answers->map, limits->count_max);
    if (rc < 0)
        tierce__answers_fini(answers);
    return rc;
}

void tierce__answers_fini(struct tierce__block_answers *answers)
{
    tierce__map_fini(&answers->map);
    tierce__free(answers->entries);
    *answers = (struct tierce__block_answers){0};
}

/* Block hashes are digests. Those of other engines may have few bytes. */
static uint64_t hash_of(const struct tierce__block_key *key)
{
    uint64_t words[TIERCE_HASH_BYTES / sizeof(uint64_t)];
    memcpy(words, key->hash, sizeof(words));
    return tierce__mix(words[0] ^ tierce__spread(words[1]) ^ key->view);
}

static struct tierce__block_answer *search(const struct tierce__block_answers *answers,
                                           const struct tierce__block_key *key)
{
    struct tierce__map_node *node = tierce__map_find(&answers->map, hash_of(key));
    for (; node != NULL; node = tierce__map_find_next(node)) {
        struct tierce__block_answer *answer =
            TIERCE__CONTAINER_OF(node, struct tierce__block_answer, node);
        if (answer->key.view == key->view &&
            memcmp(answer->key.hash, key->hash, TIERCE_HASH_BYTES) == 0)
            return answer;
    }
    return NULL;
}

static bool can_go(const struct tierce__block_answer *answer, uint64_t now_ns)
{
    return answer->is_told || now_ns >= answer->until_ns;
}

/* An entry for a key that has none; NULL if there is no room. */
static struct tierce__block_answer *add(struct tierce__block_answers *answers,
                                        const struct tierce__block_key *key, uint64_t now_ns)
{
    struct tierce__block_answer *answer;
    if (answers->used < answers->limits.count_max) {
        answer = &answers->entries[answers->used++];
        tierce__list_init(&answer->ask);
        tierce__list_init(&answer->age);
    } else {
        TIERCE_DASSERT(!tierce__list_empty(&answers->ages));
        answer = TIERCE__CONTAINER_OF(answers->ages.next, struct tierce__block_answer, age);
        if (!can_go(answer, now_ns)) {
            answers->crowded++;
            return NULL;
        }
        tierce__map_remove(&answers->map, &answer->node);
        tierce__list_remove(&answer->ask);
    }
    answer->key = *key;
    answer->is_asked = false;
    tierce__map_put(&answers->map, &answer->node, hash_of(key));
    TIERCE_DASSERT(answers->map.count == answers->used);
    return answer;
}

static void set(struct tierce__block_answers *answers, struct tierce__block_answer *answer,
                enum known known, uint64_t until_ns)
{
    answer->known = known;
    answer->until_ns = until_ns;
    answer->is_told = false;
    tierce__list_remove(&answer->age);
    tierce__list_push_back(&answers->ages, &answer->age);
}

static void ask(struct tierce__block_answers *answers, struct tierce__block_answer *answer,
                uint64_t now_ns)
{
    TIERCE_DASSERT(!answer->is_asked && tierce__list_empty(&answer->ask));
    set(answers, answer, KNOWN_NOTHING, now_ns + answers->limits.ask_ns);
    answer->is_asked = true;
    tierce__list_push_back(&answers->to_ask, &answer->ask);
}

static enum tierce__block_found read_answer(struct tierce__block_answer *answer)
{
    TIERCE_DASSERT(answer->known != KNOWN_NOTHING || answer->is_asked);
    if (answer->known == KNOWN_NOTHING)
        return TIERCE__BLOCK_RETRY;
    answer->is_told = true;
    return answer->known == KNOWN_HIT ? TIERCE__BLOCK_HIT : TIERCE__BLOCK_MISS;
}

enum tierce__block_found tierce__answers_find(struct tierce__block_answers *answers,
                                              const struct tierce__block_key *key, uint64_t now_ns)
{
    struct tierce__block_answer *answer = search(answers, key);
    if (answer == NULL) {
        answer = add(answers, key, now_ns);
        if (answer == NULL)
            return TIERCE__BLOCK_MISS;
        ask(answers, answer, now_ns);
    } else if (now_ns >= answer->until_ns) {
        if (answer->is_asked) /* overdue */
            set(answers, answer, KNOWN_MISS, now_ns + answers->limits.keep_ns);
        else
            ask(answers, answer, now_ns);
    }
    return read_answer(answer);
}

bool tierce__answers_next(struct tierce__block_answers *answers, struct tierce__block_key *key,
                          uint64_t now_ns)
{
    while (!tierce__list_empty(&answers->to_ask)) {
        struct tierce__block_answer *answer =
            TIERCE__CONTAINER_OF(answers->to_ask.next, struct tierce__block_answer, ask);
        TIERCE_DASSERT(answer->is_asked && answer->known != KNOWN_HIT);
        tierce__list_remove(&answer->ask);
        if (answer->known == KNOWN_NOTHING && now_ns < answer->until_ns) {
            *key = answer->key;
            return true;
        }
        answer->is_asked = false;
        if (answer->known == KNOWN_NOTHING)
            set(answers, answer, KNOWN_MISS, now_ns + answers->limits.keep_ns);
    }
    return false;
}

void tierce__answers_tell(struct tierce__block_answers *answers,
                          const struct tierce__block_key *key, bool held, uint64_t now_ns)
{
    struct tierce__block_answer *answer = search(answers, key);
    if (answer == NULL || !answer->is_asked || !tierce__list_empty(&answer->ask))
        return;
    TIERCE_DASSERT(answer->known != KNOWN_HIT);
    answer->is_asked = false;
    set(answers, answer, held ? KNOWN_HIT : KNOWN_MISS, now_ns + answers->limits.keep_ns);
}

void tierce__answers_note(struct tierce__block_answers *answers,
                          const struct tierce__block_key *key, bool held, uint64_t now_ns)
{
    struct tierce__block_answer *answer = search(answers, key);
    if (answer == NULL && !held)
        answer = add(answers, key, now_ns);
    if (answer == NULL) /* the next lookup asks */
        return;
    const struct tierce__answers_limits *limits = &answers->limits;
    tierce__list_remove(&answer->ask);
    answer->is_asked = false;
    set(answers, answer, held ? KNOWN_HIT : KNOWN_MISS,
        now_ns + (held ? limits->keep_ns : limits->failed_ns));
    answer->is_told = true;
}
