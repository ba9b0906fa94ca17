/* SPDX-License-Identifier: Apache-2.0 */
/* A reporter, and the commands that it takes, with a manager whose answers are lost, repeated or
 * wrong: this program has functions of its own in place of fleet_manager.c. */
#include "engine_fixture.h"
#include "silent_log.h"
#include "wait_for.h"

#include "base/clock.h"
#include "engine/observe/reporter.h"
#include "proto/kvcm/meta_service.pb-c.h"
#include "proto/kvcm/proto.h"
#include "store/remote/fleet/fleet_manager.h"

#include <pthread.h>

/* ---- the manager ----------------------------------------------------------------------------- */

enum { COMMANDS = 20, SESSION = 77 };

struct tierce__fleet_manager {
    int unused;
};
static struct tierce__fleet_manager the_manager;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;

struct fake {
    struct tierce__fleet_call *call; /* that poll answers */
    bool is_awake;

    int64_t silence_ms, wait_ms; /* wait_ms > 0: RK_BEGIN is answered LATER */
    unsigned command_count;      /* with numbers from 1 on, in every answer */
    bool repeats;                /* also those that were taken */
    int64_t session_of_commands;
    size_t keys_of_commands;
    unsigned losing;  /* so many reports with results are applied, and their answers lost */
    unsigned unknown; /* so many reports are answered RA_UNKNOWN */

    unsigned joins, begins, reports;
    int64_t last_command;
    unsigned results[COMMANDS + 1]; /* how often each came */
    bool is_done[COMMANDS + 1];
    char message[256], models[128]; /* the last ones */
};
static struct fake fake; /* under the mutex */

static void lock(void)
{
    pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

int tierce__fleet_manager_open(struct tierce__fleet_manager **out,
                               const struct tierce__fleet_manager_opts *opts,
                               char why[TIERCE__FLEET_WHY_BYTES])
{
    (void)opts, (void)why;
    *out = &the_manager;
    return 0;
}

void tierce__fleet_manager_close(struct tierce__fleet_manager *manager)
{
    (void)manager;
    lock();
    if (fake.call != NULL) /* given up, with an answer that nobody has seen */
        tierce__proto_free(fake.call->reply);
    fake.call = NULL;
    unlock();
}

static void answer_join(Meta__JoinDirectoryResponse *reply, ProtobufCMessage *root)
{
    reply->session = SESSION + fake.joins++;
    reply->silence_ms = fake.silence_ms;
    reply->changes_max = 1000;
    reply->secret = tierce__proto_alloc(root, 2);
    ck_assert_ptr_nonnull(reply->secret);
    memcpy(reply->secret, "s", 2);
    fake.last_command = 0;
}

static void put_commands(Meta__ReportChunksResponse *reply, int64_t session)
{
    ProtobufCMessage *root = &reply->base;
    reply->commands = tierce__proto_alloc(root, (COMMANDS + 1) * sizeof(*reply->commands));
    for (unsigned i = 1; i <= fake.command_count; i++) {
        if (!fake.repeats && (int64_t)i <= fake.last_command)
            continue;
        Meta__WorkerCommand *command = (Meta__WorkerCommand *)(void *)tierce__proto_add(
            root, &meta__worker_command__descriptor);
        ck_assert_ptr_nonnull(command);
        command->command = i;
        command->session = fake.session_of_commands != 0 ? fake.session_of_commands : session;
        command->action = META__WORKER_ACTION__WA_HEALTH;
        command->timeout_ms = 1000;
        command->keys =
            tierce__proto_alloc(root, (fake.keys_of_commands + 1) * sizeof(*command->keys));
        memset(command->keys, 0, (fake.keys_of_commands + 1) * sizeof(*command->keys));
        command->n_keys = fake.keys_of_commands;
        reply->commands[reply->n_commands++] = command;
    }
}

static void answer_report(Meta__ReportChunksResponse *reply,
                          const Meta__ReportChunksRequest *request)
{
    fake.reports++;
    fake.begins += request->kind == META__REPORT_KIND__RK_BEGIN;
    fake.last_command = request->last_command;
    if (request->models[0] != '\0')
        snprintf(fake.models, sizeof(fake.models), "%s", request->models);
    for (size_t i = 0; i < request->n_results; i++) {
        const Meta__CommandResult *result = request->results[i];
        ck_assert_int_ge(result->command, 1);
        ck_assert_int_le(result->command, COMMANDS);
        fake.results[result->command]++;
        fake.is_done[result->command] = result->is_done;
        snprintf(fake.message, sizeof(fake.message), "%s", result->message);
    }
    bool is_later = request->kind == META__REPORT_KIND__RK_BEGIN && fake.wait_ms > 0;
    reply->answer = is_later ? META__REPORT_ANSWER__RA_LATER : META__REPORT_ANSWER__RA_DONE;
    reply->wait_ms = is_later ? fake.wait_ms : 0;
    put_commands(reply, request->session);
    if (fake.unknown > 0) {
        fake.unknown--;
        reply->answer = META__REPORT_ANSWER__RA_UNKNOWN;
    }
}

void tierce__fleet_manager_start(struct tierce__fleet_manager *manager,
                                 struct tierce__fleet_call *call)
{
    (void)manager;
    call->status = 0;
    call->reply = tierce__proto_create(call->answers);
    ck_assert_ptr_nonnull(call->reply);
    lock();
    if (strcmp(call->method, "JoinDirectory") == 0) {
        answer_join((Meta__JoinDirectoryResponse *)(void *)call->reply, call->reply);
    } else if (strcmp(call->method, "ReportChunks") == 0) {
        answer_report((Meta__ReportChunksResponse *)(void *)call->reply,
                      (const Meta__ReportChunksRequest *)(const void *)call->request);
        const Meta__ReportChunksRequest *report =
            (const Meta__ReportChunksRequest *)(const void *)call->request;
        if (fake.losing > 0 && report->n_results > 0) {
            fake.losing--;
            tierce__proto_free(call->reply);
            call->reply = NULL;
            call->status = TIERCE_E_DEADLINE;
            snprintf(call->why, sizeof(call->why), "the answer was lost");
        }
    }
    fake.call = call;
    unlock();
}

void tierce__fleet_manager_poll(struct tierce__fleet_manager *manager, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                                   .tv_nsec = (long)(until_ns % 1000000000)};
    int rc = 0;
    (void)manager;
    pthread_mutex_lock(&mutex);
    while (fake.call == NULL && !fake.is_awake && rc == 0)
        rc = pthread_cond_timedwait(&changed, &mutex, &until);
    struct tierce__fleet_call *call = fake.call;
    fake.call = NULL;
    fake.is_awake = false;
    pthread_mutex_unlock(&mutex);
    if (call != NULL)
        call->done(call);
}

void tierce__fleet_manager_wake(struct tierce__fleet_manager *manager)
{
    (void)manager;
    lock();
    fake.is_awake = true;
    unlock();
}

void tierce__fleet_manager_stats(struct tierce__fleet_manager *manager,
                                 struct tierce__tier_stats *out)
{
    (void)manager, (void)out;
}

/* ---- an engine and its reporter -------------------------------------------------------------- */

static struct fixture fx;
static struct tierce__reporter *reporter;
static _Atomic unsigned carried_out;

static void on_log(void *arg, enum tierce_log_level level, const char *event, const char *fields)
{
    (void)arg, (void)level, (void)fields;
    if (strcmp(event, "directory_command") == 0)
        atomic_fetch_add(&carried_out, 1);
}

static void start(void)
{
    pthread_condattr_t attributes;
    char why[256];
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    fake.silence_ms = fake.silence_ms > 0 ? fake.silence_ms : 1000;
    fx_open(&fx, false, NULL);
    tierce_set_log_fn(on_log, NULL, TIERCE_LOG_INFO);
    const struct tierce__reporter_opts opts = {.size = sizeof(opts), .url = "fleet://127.0.0.1:1"};
    ck_assert_int_eq(tierce__reporter_start(&reporter, fx.engine, &opts, why), 0);
}

static void stop(void)
{
    tierce__reporter_stop(reporter);
    silence_log();
    fx_close(&fx);
    fx_remove(&fx);
}

static struct fake seen(void)
{
    lock();
    struct fake copy = fake;
    unlock();
    return copy;
}

static bool have_results(unsigned count)
{
    unsigned have = 0;
    struct fake now = seen();
    for (unsigned i = 1; i <= COMMANDS; i++)
        have += now.results[i] > 0;
    return have >= count;
}

static void wait_for_reports(unsigned more)
{
    unsigned from = seen().reports;
    WAIT_FOR(seen().reports >= from + more);
}

static void give_commands(unsigned count, unsigned losing, unsigned unknown)
{
    lock();
    fake.command_count = count;
    fake.losing = losing;
    fake.unknown = unknown;
    unlock();
}

/* A worker that waited for so long would be removed, and nobody would find its chunks. */
START_TEST(a_pause_without_end)
{
    fake.wait_ms = INT64_MAX / 2;
    start();
    WAIT_FOR(seen().begins >= 2);
    lock();
    fake.wait_ms = 0;
    unlock();
    WAIT_FOR(atomic_load(&fx.engine->reports.is_complete));
    stop();
}
END_TEST

START_TEST(a_command_is_carried_out_once)
{
    fake.repeats = true;
    fake.command_count = 2;
    start();
    WAIT_FOR(have_results(2));
    wait_for_reports(3);
    ck_assert_uint_eq(atomic_load(&carried_out), 2);
    struct fake now = seen();
    for (unsigned i = 1; i <= 2; i++) {
        ck_assert_uint_eq(now.results[i], 1);
        ck_assert(now.is_done[i]);
    }
    ck_assert_ptr_nonnull(strstr(now.message, "mode normal; tier 0 (memory): in service"));
    ck_assert_str_eq(now.models, "test"); /* the model_type of fx_namespace */
    stop();
}
END_TEST

/* More than the worker has room for: they wait with the manager. */
START_TEST(many_commands)
{
    fake.command_count = COMMANDS;
    start();
    WAIT_FOR(have_results(COMMANDS));
    wait_for_reports(1);
    ck_assert_uint_eq(atomic_load(&carried_out), COMMANDS);
    ck_assert_int_eq(seen().last_command, COMMANDS);
    stop();
}
END_TEST

START_TEST(a_result_is_sent_until_it_is_answered)
{
    start();
    WAIT_FOR(atomic_load(&fx.engine->reports.is_complete));
    give_commands(1, 2, 0);
    WAIT_FOR(seen().results[1] == 3);
    wait_for_reports(2);
    ck_assert_uint_eq(seen().results[1], 3);
    ck_assert_uint_eq(atomic_load(&carried_out), 1);
    stop();
}
END_TEST

START_TEST(what_an_earlier_session_was_told)
{
    start();
    WAIT_FOR(atomic_load(&fx.engine->reports.is_complete));
    give_commands(3, 0, 1); /* the answer with the commands: the worker joins again */
    WAIT_FOR(seen().joins == 2);
    WAIT_FOR(have_results(3));
    wait_for_reports(1);
    for (unsigned i = 1; i <= 3; i++)
        ck_assert(seen().is_done[i]);
    ck_assert_int_eq(seen().last_command, 3); /* of the new session */
    stop();
}
END_TEST

static void wrong_commands(const char *why)
{
    fake.command_count = 1;
    start();
    WAIT_FOR(have_results(1));
    struct fake now = seen();
    ck_assert(!now.is_done[1]);
    ck_assert_msg(strstr(now.message, why) != NULL, "%s", now.message);
    ck_assert_uint_eq(atomic_load(&carried_out), 0);
    stop();
}

START_TEST(a_command_for_another_session)
{
    fake.session_of_commands = 1;
    wrong_commands("another session");
}
END_TEST

START_TEST(a_command_with_half_a_key)
{
    fake.keys_of_commands = 3;
    wrong_commands("odd number of keys");
}
END_TEST

START_TEST(a_command_with_too_many_keys)
{
    fake.keys_of_commands = 2050;
    wrong_commands("more than 1024 chunks");
}
END_TEST

CHECK_MAIN("reporter lies", .seconds = 60, .setup = silence_log, .at_once = true,
           .tests = {a_pause_without_end, a_command_is_carried_out_once, many_commands,
                     a_result_is_sent_until_it_is_answered, what_an_earlier_session_was_told,
                     a_command_for_another_session, a_command_with_half_a_key,
                     a_command_with_too_many_keys})
