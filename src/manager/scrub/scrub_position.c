/* SPDX-License-Identifier: Apache-2.0 */
/* The position of a scrub in the registry. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/log/log.h"
#include "base/text/line.h"
#include "manager/scrub/scrub_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 *     1 PHASE REPAIRS RATE SHARE BYTE_RATE SALT BEGAN_US CURSOR COUNTS... [INSTANCE]
 *
 * Decimal numbers; SHARE is in millionths. The counts are those of the first direction.
 */
enum { VERSION = 1, COUNTS = 11, NUMBERS = 9 + COUNTS, SHARE_ONE = 1000000, SAVE_S = 60 };

static void list_counts(uint64_t *out[COUNTS], struct tierce__scrub_counts *counts)
{
    uint64_t *const all[COUNTS] = {
        &counts->checked,    &counts->missing,          &counts->too_short,
        &counts->too_long,   &counts->unreadable,       &counts->fresh,
        &counts->verified,   &counts->verified_bytes,   &counts->damaged,
        &counts->unprovable, &counts->dropped_locations};
    memcpy(out, all, sizeof(all));
}

int tierce__scrub_position_write(char **out, const struct scrub_run *run)
{
    struct tierce__line line = {0};
    struct tierce__scrub_counts counts = run->at.counts;
    uint64_t *of[COUNTS];
    char number[24];
    list_counts(of, &counts);
    uint64_t numbers[NUMBERS] = {VERSION,
                                 run->phase,
                                 run->repairs,
                                 run->files.rate,
                                 (uint64_t)(run->verify_share * SHARE_ONE),
                                 run->bytes.rate,
                                 run->salt,
                                 (uint64_t)run->began_us,
                                 run->at.cursor};
    for (size_t i = 0; i < COUNTS; i++)
        numbers[NUMBERS - COUNTS + i] = *of[i];
    for (size_t i = 0; i < NUMBERS; i++) {
        snprintf(number, sizeof(number), "%" PRIu64 " ", numbers[i]);
        tierce__line_put(&line, number);
    }
    tierce__line_put(&line, run->at.instance != NULL ? run->at.instance : "");
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

int tierce__scrub_position_read(struct scrub_run *run, const char *text)
{
    uint64_t numbers[NUMBERS], *of[COUNTS];
    TIERCE_DASSERT(run->at.instance == NULL);
    if (!read_numbers(numbers, &text) || numbers[0] != VERSION ||
        numbers[1] > TIERCE__SCRUB_OBJECTS || numbers[2] > 1 || numbers[3] == 0 ||
        numbers[3] > UINT32_MAX || numbers[4] > SHARE_ONE || numbers[5] == 0 ||
        numbers[7] > INT64_MAX || (*text == '\0' && numbers[8] != 0))
        return TIERCE_E_FORMAT;
    if (*text != '\0') {
        run->at.instance = tierce__strdup(text);
        if (run->at.instance == NULL)
            return -ENOMEM;
    }
    run->phase = (enum tierce__scrub_phase)numbers[1];
    run->repairs = numbers[2] != 0;
    run->files.rate = numbers[3];
    run->verify_share = (double)numbers[4] / SHARE_ONE;
    run->bytes.rate = numbers[5];
    run->salt = numbers[6];
    run->began_us = (int64_t)numbers[7];
    run->at.cursor = numbers[8];
    list_counts(of, &run->counts);
    for (size_t i = 0; i < COUNTS; i++)
        *of[i] = numbers[NUMBERS - COUNTS + i];
    run->at.counts = run->counts;
    return 0;
}

static uint64_t clock_ns(const struct tierce__scrub_opts *opts)
{
    return opts->now_ns != NULL ? opts->now_ns(opts->clock_arg) : tierce__now_ns();
}

void tierce__scrub_save_now(struct scrub_run *run)
{
    const struct tierce__scrub_opts *opts = run->opts;
    char *text = NULL, why[256] = "";
    run->saved_ns = clock_ns(opts);
    run->has_saved = true;
    if (!tierce__registry_is_stored(opts->registry))
        return;
    int rc = tierce__scrub_position_write(&text, run);
    if (rc == 0)
        rc = tierce__registry_note_scrub(opts->registry, run->storage.name, text, why);
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
    if (clock_ns(run->opts) - run->saved_ns >= pause_s * 1000 * TIERCE__MS_NS)
        tierce__scrub_save_now(run);
}

void tierce__scrub_forget_position(const struct tierce__scrub_opts *opts, const char *storage)
{
    char why[256] = "";
    if (!tierce__registry_is_stored(opts->registry))
        return;
    int rc = tierce__registry_note_scrub(opts->registry, storage, "", why);
    if (rc < 0 && rc != -ENOENT)
        tierce__log(TIERCE_LOG_WARN, "scrub_position",
                    "storage=%.64s why=\"%s\" consequence=\"another leader repeats the scrub\"",
                    storage, why[0] != '\0' ? why : tierce_strerror(rc));
}
