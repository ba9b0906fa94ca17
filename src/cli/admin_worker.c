/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/config/config_parse.h"
#include "cli/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Commands to the workers of a manager's directory: `tierce directory pin GROUP WORKER KEY...`. */

enum {
    TIERS = 8,
    FIRST_PAUSE_MS = 20, /* between two questions for a result, doubled up to the last */
    LAST_PAUSE_MS = 500,
    WAIT_MS = 30000,
    GRACE_MS = 5000, /* the manager itself ends the command at its deadline */
};

/* ---- the request ----------------------------------------------------------------------------- */

static const struct shape {
    const char *verb, *action;
    int tiers; /* before the keys; below 0: any number, and no keys */
    bool takes_keys, needs_keys;
} shapes[] = {
    {"health", "WA_HEALTH", 0, false, false},        {"pin", "WA_PIN", 0, true, true},
    {"unpin", "WA_UNPIN", 0, true, false},           {"move", "WA_MOVE", 2, true, true},
    {"clear", "WA_CLEAR", -1, false, false},         {"compress", "WA_COMPRESS", 0, true, false},
    {"decompress", "WA_DECOMPRESS", 0, true, false},
};

static const struct shape *find_shape(const char *verb)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (strcmp(shapes[i].verb, verb) == 0)
            return &shapes[i];
    }
    return NULL;
}

/* "memory", "disk", or a number. Below 0: none of them. */
static int tier_of(const char *text)
{
    if (strcmp(text, "memory") == 0)
        return 0;
    if (strcmp(text, "disk") == 0)
        return 1;
    return text[0] >= '0' && text[0] < '0' + TIERS && text[1] == '\0' ? text[0] - '0' : -1;
}

static int refuse_tier(const char *command, const char *text)
{
    return tierce__cli_usage(command, "\"%.40s\" is not a tier; a tier is memory, disk, or 0 to %d",
                             text, TIERS - 1);
}

int tierce__admin_put_chunks(const char *command, int count, char **keys,
                             struct tierce__json_write *request)
{
    enum { DIGITS = 32 };
    tierce__json_write_open(request, "keys", '[');
    for (int i = 0; i < count; i++) {
        uint64_t halves[2] = {0, 0};
        bool is_key = strlen(keys[i]) == DIGITS &&
                      strspn(keys[i], "0123456789abcdefABCDEF") == DIGITS &&
                      sscanf(keys[i], "%16" SCNx64 "%16" SCNx64, &halves[0], &halves[1]) == 2;
        if (!is_key)
            return tierce__cli_usage(command,
                                     "\"%.40s\" is not a key of a chunk; a key has 32 hexadecimal "
                                     "digits",
                                     keys[i]);
        tierce__json_write_signed(request, NULL, (int64_t)halves[0]);
        tierce__json_write_signed(request, NULL, (int64_t)halves[1]);
    }
    tierce__json_write_close(request, ']');
    return TIERCE__CLI_OK;
}

static int put_move(const char *command, char **tiers, struct tierce__json_write *request)
{
    static const char *const fields[] = {"from_tier", "to_tier"};
    for (int i = 0; i < 2; i++) {
        int tier = tier_of(tiers[i]);
        if (tier < 0)
            return refuse_tier(command, tiers[i]);
        tierce__json_write_signed(request, fields[i], tier);
    }
    return TIERCE__CLI_OK;
}

static int put_tiers(const char *command, int count, char **tiers,
                     struct tierce__json_write *request)
{
    tierce__json_write_open(request, "tiers", '[');
    for (int i = 0; i < count; i++) {
        int tier = tier_of(tiers[i]);
        if (tier < 0)
            return refuse_tier(command, tiers[i]);
        tierce__json_write_signed(request, NULL, tier);
    }
    tierce__json_write_close(request, ']');
    return TIERCE__CLI_OK;
}

int tierce__admin_put_worker(const char *command, const char *verb, int count, char **arguments,
                             const struct tierce__admin_worker *worker,
                             struct tierce__json_write *request)
{
    const struct shape *shape = find_shape(verb);
    int named = shape->tiers > 0 && worker->to == NULL ? shape->tiers : 0, rest = count - 2 - named;
    bool may_have_more = shape->takes_keys || shape->tiers < 0;
    int status = TIERCE__CLI_OK;
    if (rest < (shape->needs_keys ? 1 : 0) || (rest > 0 && !may_have_more))
        return tierce__cli_usage(command, "%s %s accepts GROUP WORKER%s%s%s", command, verb,
                                 named > 0          ? " FROM TO"
                                 : shape->tiers < 0 ? " [TIER...]"
                                                    : "",
                                 shape->needs_keys   ? " KEY..."
                                 : shape->takes_keys ? " [KEY...]"
                                                     : "",
                                 worker->to != NULL ? " --to WORKER" : "");
    if (worker->pin_ms > 0 && strcmp(verb, "pin") != 0)
        return tierce__cli_usage(command, "--for is an option of %s pin", command);
    if (worker->keeps && strcmp(verb, "move") != 0)
        return tierce__cli_usage(command, "--copy is an option of %s move", command);
    if (worker->to != NULL && strcmp(verb, "move") != 0)
        return tierce__cli_usage(command, "--to is an option of %s move", command);
    tierce__json_write_text(request, "instance_group", arguments[0]);
    tierce__json_write_text(request, "worker", arguments[1]);
    tierce__json_write_text(request, "action", shape->action);
    tierce__json_write_count(request, "pin_ms", worker->pin_ms);
    tierce__json_write_count(request, "timeout_ms",
                             worker->wait_ms > 0 ? worker->wait_ms : WAIT_MS);
    if (worker->keeps)
        tierce__json_write_bool(request, "keeps", true);
    if (worker->to != NULL)
        tierce__json_write_text(request, "to_worker", worker->to);
    if (named > 0)
        status = put_move(command, arguments + 2, request);
    if (status == TIERCE__CLI_OK && shape->tiers < 0)
        status = put_tiers(command, rest, arguments + 2, request);
    else if (status == TIERCE__CLI_OK && shape->takes_keys)
        status = tierce__admin_put_chunks(command, rest, arguments + 2 + named, request);
    return status;
}

/* ---- the result ------------------------------------------------------------------------------ */

static void pause_ms(uint32_t ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&time, NULL);
}

static bool is_state(struct tierce__text reply, const char *state)
{
    char text[32];
    return tierce__json_get_text(text, sizeof(text), reply, "state") && strcmp(text, state) == 0;
}

/* Prints the result. A command that has failed is a failure of this one. */
static int show(const struct tierce__admin_target *target, const char *command,
                struct tierce__text reply)
{
    char message[1024] = "", shown[1024];
    if (!is_state(reply, "CS_FAILED")) {
        tierce__admin_print(target, "getCommand", reply);
        return TIERCE__CLI_OK;
    }
    if (target->raw)
        tierce__admin_print(target, "getCommand", reply);
    (void)tierce__json_get_text(message, sizeof(message), reply, "message");
    tierce__text_for_message(shown, sizeof(shown), message);
    return tierce__cli_fail(command, "%s", shown);
}

/* Asks until the command has ended. */
static int await_result(const struct tierce__admin_target *target, const char *command,
                        const char *number, const char *request, uint64_t until_ns)
{
    for (uint32_t ms = FIRST_PAUSE_MS;; ms = 2 * ms < LAST_PAUSE_MS ? 2 * ms : LAST_PAUSE_MS) {
        struct tierce__json_doc reply = {0};
        int status = tierce__admin_call(target, command, "getCommand", true, request, &reply);
        bool is_over = is_state(reply.value, "CS_DONE") || is_state(reply.value, "CS_FAILED");
        bool waits = status == TIERCE__CLI_OK && !is_over && tierce__now_ns() < until_ns;
        if (status == TIERCE__CLI_OK && is_over)
            status = show(target, command, reply.value);
        else if (status == TIERCE__CLI_OK && !waits)
            status = tierce__cli_fail(command,
                                      "command %s has no result yet; tierce directory result GROUP "
                                      "%s asks again",
                                      number, number);
        tierce__json_doc_clear(&reply);
        if (!waits)
            return status;
        pause_ms(ms);
    }
}

int tierce__admin_show_command(const struct tierce__admin_target *target, const char *command,
                               struct tierce__text given, const char *group, uint32_t wait_ms)
{
    char number[32];
    struct tierce__line line = {0};
    struct tierce__json_write json = {.line = &line};
    uint64_t until_ns = tierce__deadline_in_ms((wait_ms > 0 ? wait_ms : WAIT_MS) + GRACE_MS);
    if (!tierce__json_get_text(number, sizeof(number), given, "command"))
        return tierce__cli_fail(command, "the manager's answer has no number of the command");
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_text(&json, "instance_group", group);
    tierce__json_write_text(&json, "command", number);
    tierce__json_write_close(&json, '}');
    tierce__line_put_bytes(&line, "", 1);
    int status = line.failed ? tierce__cli_fail(command, "no memory")
                             : await_result(target, command, number, line.text, until_ns);
    tierce__line_clear(&line);
    return status;
}
