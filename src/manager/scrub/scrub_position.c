/* SPDX-License-Identifier: Apache-2.0 */
/* The position of a scrub in the registry. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/text/line.h"
#include "base/text/utf8.h"
#include "manager/scrub/scrub_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 *     2 PHASE REPAIRS RATE SHARE BYTE_RATE SALT BEGAN_US CURSOR COUNTS... BYTES INSTANCE UNREAD
 *
 * Decimal numbers; SHARE has the bits of a double. The counts are those of the first direction.
 * Two texts follow, without a space between them: INSTANCE has BYTES bytes, UNREAD is the rest.
 */
enum { VERSION = 2, COUNTS = 11, NUMBERS = 9 + COUNTS + 1, SAVE_S = 60 };
enum { FIRST_COUNT = NUMBERS - 1 - COUNTS };

static void list_counts(uint64_t *out[COUNTS], struct tierce__scrub_counts *counts)
{
    uint64_t *const all[COUNTS] = {
        &counts->checked,    &counts->missing,          &counts->too_short,
        &counts->too_long,   &counts->unreadable,       &counts->fresh,
        &counts->verified,   &counts->verified_bytes,   &counts->damaged,
        &counts->unprovable, &counts->dropped_locations};
    memcpy(out, all, sizeof(all));
}

static uint64_t share_bits(double share)
{
    uint64_t bits;
    memcpy(&bits, &share, sizeof(bits));
    return bits;
}

static double share_of(uint64_t bits)
{
    double share;
    memcpy(&share, &bits, sizeof(share));
    return share;
}

int tierce__scrub_position_write(char **out, const struct scrub_run *run)
{
    struct tierce__line line = {0};
    const char *instance = run->at.instance != NULL ? run->at.instance : "";
    struct tierce__scrub_counts counts = run->at.counts;
    uint64_t *of[COUNTS];
    char number[24];
    list_counts(of, &counts);
    uint64_t numbers[NUMBERS] = {VERSION,
                                 run->phase,
                                 run->repairs,
                                 run->files.rate,
                                 share_bits(run->verify_share),
                                 run->bytes.rate,
                                 run->salt,
                                 (uint64_t)run->began_us,
                                 run->at.cursor};
    for (size_t i = 0; i < COUNTS; i++)
        numbers[FIRST_COUNT + i] = *of[i];
    numbers[NUMBERS - 1] = strlen(instance);
    for (size_t i = 0; i < NUMBERS; i++) {
        snprintf(number, sizeof(number), "%" PRIu64 " ", numbers[i]);
        tierce__line_put(&line, number);
    }
    tierce__line_put(&line, instance);
    tierce__line_put(&line, run->at.unread);
    tierce__line_put_bytes(&line, "", 1);
    if (line.failed) {
        tierce__line_clear(&line);
        return -ENOMEM;
    }
    *out = line.text;
    return 0;
}

static bool read_numbers(uint64_t numbers[NUMBERS], const char **text)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        char *end = NULL;
        errno = 0;
        if (**text < '0' || **text > '9')
            return false;
        numbers[i] = strtoull(*text, &end, 10);
        if (errno != 0 || *end != ' ')
            return false;
        *text = end + 1;
    }
    return true;
}

static bool are_valid(const uint64_t numbers[NUMBERS], const char *texts)
{
    uint64_t instance_bytes = numbers[NUMBERS - 1];
    double share = share_of(numbers[4]);
    return numbers[1] <= TIERCE__SCRUB_OBJECTS && numbers[2] <= 1 && numbers[3] > 0 &&
           numbers[3] <= UINT32_MAX && share >= 0 && share <= 1 && numbers[5] > 0 &&
           numbers[7] <= INT64_MAX && instance_bytes <= strlen(texts) &&
           (instance_bytes > 0 || numbers[8] == 0);
}

int tierce__scrub_position_read(struct scrub_run *run, const char *text,
                                char why[TIERCE__WHY_BYTES])
{
    uint64_t numbers[NUMBERS], *of[COUNTS];
    TIERCE_DASSERT(run->at.instance == NULL);
    if (strncmp(text, "2 ", 2) != 0)
        return tierce__why(why, TIERCE_E_FORMAT,
                           "its position is that of another version of Tierce: %.32s", text);
    if (!read_numbers(numbers, &text) || !are_valid(numbers, text))
        return tierce__why(why, TIERCE_E_FORMAT, "its position is damaged");
    size_t instance_bytes = numbers[NUMBERS - 1];
    if (instance_bytes > 0) {
        run->at.instance = tierce__calloc(1, instance_bytes + 1);
        if (run->at.instance == NULL)
            return -ENOMEM;
        memcpy(run->at.instance, text, instance_bytes);
    }
    snprintf(run->unread, sizeof(run->unread), "%s", text + instance_bytes);
    tierce__utf8_mend(run->unread);
    run->phase = (enum tierce__scrub_phase)numbers[1];
    run->repairs = numbers[2] != 0;
    run->files.rate = numbers[3];
    run->verify_share = share_of(numbers[4]);
    run->bytes.rate = numbers[5];
    run->salt = numbers[6];
    run->began_us = (int64_t)numbers[7];
    list_counts(of, &run->counts);
    for (size_t i = 0; i < COUNTS; i++)
        *of[i] = numbers[FIRST_COUNT + i];
    scrub_reach(run, numbers[8]);
    return 0;
}

void tierce__scrub_save_now(struct scrub_run *run)
{
    const struct tierce__scrub_opts *opts = run->opts;
    char *text = NULL, why[256] = "";
    run->saved_ns = tierce__scrub_now_ns(opts);
    run->has_saved = true;
    if (!tierce__registry_is_stored(opts->registry) || !tierce__scrub_save_begins(run))
        return;
    int rc = tierce__scrub_position_write(&text, run);
    if (rc == 0)
        rc = tierce__registry_note_scrub(opts->registry, run->storage.name, run->storage.number,
                                         text, why);
    tierce__scrub_save_ends(run);
    tierce__free(text);
    if (rc < 0 && rc != -ENOENT)
        tierce__log(TIERCE_LOG_INFO, "scrub_position",
                    "storage=%.64s why=\"%s\" consequence=\"another leader repeats more of the "
                    "scrub\"",
                    run->storage.name, why[0] != '\0' ? why : tierce_strerror(rc));
}

void tierce__scrub_save(struct scrub_run *run, bool waits)
{
    uint64_t pause_s = run->has_saved ? SAVE_S : waits ? 0 : 1;
    if (tierce__scrub_now_ns(run->opts) - run->saved_ns >= pause_s * 1000 * TIERCE__MS_NS)
        tierce__scrub_save_now(run);
}

void tierce__scrub_forget_position(const struct tierce__scrub_opts *opts,
                                   const struct tierce__storage *storage)
{
    char why[256] = "";
    if (!tierce__registry_is_stored(opts->registry))
        return;
    int rc = tierce__registry_note_scrub(opts->registry, storage->name, storage->number, "", why);
    if (rc < 0 && rc != -ENOENT)
        tierce__log(TIERCE_LOG_WARN, "scrub_position",
                    "storage=%.64s why=\"%s\" consequence=\"another leader repeats the scrub\"",
                    storage->name, why[0] != '\0' ? why : tierce_strerror(rc));
}
