/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/config/config_parse.h"
#include "base/json/json_write.h"
#include "base/text/nearest.h"
#include "cli/admin.h"
#include "cli/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS                                                                                    \
    "\n"                                                                                           \
    "  --url URL          the manager's port for administrators (http://127.0.0.1:6492)\n"         \
    "  --meta-url URL     its port for engines (http://127.0.0.1:6382)\n"                          \
    "  --token-file FILE  with a token\n"                                                          \
    "  --user NAME:FILE   an account and the file with its password\n"                             \
    "  --ca-file FILE     PEM, for https\n"                                                        \
    "  --json             prints the answer unchanged\n"                                           \
    "\n"                                                                                           \
    "JSON is a text, a file, or - for standard input.\n"

const char *const tierce__cli_storage_help[] = {
    "  list\n  add JSON           a StorageConfig, such as "
    "{\"global_unique_name\":\"nfs_02\",\"nfs\":{\"root_path\":\"/mnt/kv/\"}}\n"
    "  update JSON\n  enable NAME\n  disable NAME\n  remove NAME        an empty storage. "
    "--abandon: objects that are "
    "being deleted may stay in it\n"
    "  adopt NAME         accepts a storage that has lost its mark, or has another registry's;\n"
    "                     drops all its locations. --keep: keeps them, its blocks are still "
    "there\n"
    "  scrub NAME [start|stop]\n                     compares the index with the storage, and "
    "shows the last comparison.\n                     start --repair: drops locations without a "
    "file, deletes objects of no block;\n                     --rate N: files per second "
    "(1000); --verify SHARE: reads and\n                     verifies a share of the blocks, "
    "such as 0.01; --read-rate SIZE: bytes per\n                     second (64MiB)\n"
    "  drain NAME [show]  empties the storage: nothing is written to it, and its blocks move to\n"
    "                     other storages of their groups. --drop: they are removed\n"
    "  undrain NAME       ends that\n" OPTIONS,
    NULL};
const char *const tierce__cli_group_help[] = {
    "  list\n  show NAME\n  create JSON        an InstanceGroup\n"
    "  update JSON        with a version above the stored one\n  remove NAME\n"
    "  curves             hit rates by capacity, and what another GiB would bring\n"
    "  invalidate NAME    after a weight update: no block of the group's instances is found any\n"
    "                     more. --family FAMILY: only of instances of that model\n"
    "  pilot              the autopilot: modes and bounds of groups, and its steps\n" OPTIONS,
    NULL};
const char *const tierce__cli_instance_help[] = {
    "  list GROUP\n  show ID\n  register JSON      a RegisterInstanceRequest\n"
    "  remove ID          with all its blocks\n"
    "  invalidate ID      after a weight update: no block of it is found any more\n" OPTIONS,
    NULL};
const char *const tierce__cli_cache_help[] = {
    "  locate ID KEY...   the leading cached keys and their locations\n"
    "  look ID KEY...     the state of each key\n  remove ID KEY...\n"
    "  trim ID all|meta|FROM-TO\n                     all blocks; only their metadata; or those "
    "stored in a range of seconds\n" OPTIONS,
    NULL};
const char *const tierce__cli_directory_help[] = {
    "  list               the workers (engines and nodes) whose chunks the manager knows\n"
    "  find GROUP KEY...  who holds the leading chunks, and where to read them; a key has 32\n"
    "                     hexadecimal digits\n"
    "  health GROUP WORKER             the mode and the tiers of an engine or node\n"
    "  pin GROUP WORKER KEY...         keeps chunks in its memory; --for TIME: how long\n"
    "  unpin GROUP WORKER [KEY...]     ends that; without keys, of all its chunks\n"
    "  move GROUP WORKER FROM TO KEY...\n"
    "                     between two tiers, one of them memory; a tier is memory, disk, or 0\n"
    "                     (the fastest) to 7. --copy: both hold them then\n"
    "  move GROUP WORKER KEY... --to OTHER\n"
    "                     to the memory of another worker of the group, which reads them by\n"
    "                     peers:// in its remote.urls; WORKER drops them then, unless --copy\n"
    "  clear GROUP WORKER [TIER...]    removes its chunks; without tiers, of all but remote "
    "stores\n"
    "  compress GROUP WORKER [KEY...]  compresses chunks on its disk, also without disk.codec;\n"
    "                     without keys, all of them\n"
    "  decompress GROUP WORKER [KEY...]  the reverse\n"
    "                     All of them wait for the result; --wait TIME: how long (30s)\n"
    "  result GROUP NUMBER             of a command that was given before\n" OPTIONS,
    NULL};
const char *const tierce__cli_account_help[] = {
    "  list\n  add NAME user|admin FILE\n                     the first line of FILE is the "
    "password\n  remove NAME\n" OPTIONS,
    NULL};
const char *const tierce__cli_cluster_help[] = {
    "  info               the leader\n  health\n  metrics\n  demote             the manager gives "
    "up its lease\n"
    "  snapshot           storages, groups, instances and accounts as JSON\n"
    "  restore FILE       of a snapshot\n  log LEVEL          fatal, error, warn, info, "
    "debug\n" OPTIONS,
    NULL};

/* The arguments of a verb. */
enum shape {
    NOTHING,
    NAME,     /* one text, as the field */
    MESSAGE,  /* JSON, as the field; without one, it is the request */
    KEYS,     /* an instance and keys */
    TRIM,     /* an instance and what */
    ACCOUNT,  /* a name, a role, a password's file */
    SNAPSHOT, /* a file's text, as the field */
    PAGE,     /* nothing, and GET */
    ADOPTION, /* one text, as the field, and --keep */
    FAMILY,   /* one text, as the field, and --family */
    SCRUB,    /* one text, as the field, an action, and --repair and --rate */
    DRAIN,    /* one text, as the field, and "show", or --drop */
    UNDRAIN,  /* one text, as the field */
    REMOVAL,  /* one text, as the field, and --abandon */
    CHUNKS,   /* one text, as the field, and chunks' keys */
    WORKER,   /* a command to a worker: admin_worker.c */
    RESULT,   /* a group and a number */
};

struct verb {
    const char *command, *verb, *rpc, *field;
    enum shape shape;
    bool is_meta;
};

enum { VERBS_OF_COMMAND_MAX = 10 };

static const struct verb verbs[] = {
    {"storage", "list", "listStorage", NULL, NOTHING, false},
    {"storage", "add", "addStorage", "storage", MESSAGE, false},
    {"storage", "update", "updateStorage", "storage", MESSAGE, false},
    {"storage", "enable", "enableStorage", "storage_unique_name", NAME, false},
    {"storage", "disable", "disableStorage", "storage_unique_name", NAME, false},
    {"storage", "remove", "removeStorage", "storage_unique_name", REMOVAL, false},
    {"storage", "adopt", "adoptStorage", "storage_unique_name", ADOPTION, false},
    {"storage", "scrub", "scrubStorage", "storage_unique_name", SCRUB, false},
    {"storage", "drain", "drainStorage", "storage_unique_name", DRAIN, false},
    {"storage", "undrain", "drainStorage", "storage_unique_name", UNDRAIN, false},
    {"group", "list", "listInstanceGroup", NULL, NOTHING, false},
    {"group", "show", "getInstanceGroup", "name", NAME, false},
    {"group", "create", "createInstanceGroup", "instance_group", MESSAGE, false},
    {"group", "update", "updateInstanceGroup", "instance_group", MESSAGE, false},
    {"group", "remove", "removeInstanceGroup", "name", NAME, false},
    {"group", "curves", "curves", NULL, PAGE, false},
    {"group", "invalidate", "invalidateNamespace", "instance_group", FAMILY, true},
    {"group", "pilot", "pilot", NULL, PAGE, false},
    {"instance", "list", "listInstanceInfo", "instance_group_name", NAME, false},
    {"instance", "show", "getInstanceInfo", "instance_id", NAME, false},
    {"instance", "register", "registerInstance", NULL, MESSAGE, false},
    {"instance", "remove", "removeInstance", "instance_id", NAME, false},
    {"instance", "invalidate", "invalidateNamespace", "instance_id", NAME, true},
    {"cache", "locate", "getCacheLocation", NULL, KEYS, true},
    {"cache", "look", "getCacheMeta", NULL, KEYS, false},
    {"cache", "remove", "removeCache", NULL, KEYS, false},
    {"cache", "trim", "trimCache", NULL, TRIM, true},
    {"directory", "list", "listWorkers", NULL, NOTHING, true},
    {"directory", "find", "findChunks", "instance_group", CHUNKS, true},
    {"directory", "health", "commandWorker", "instance_group", WORKER, true},
    {"directory", "pin", "commandWorker", "instance_group", WORKER, true},
    {"directory", "unpin", "commandWorker", "instance_group", WORKER, true},
    {"directory", "move", "commandWorker", "instance_group", WORKER, true},
    {"directory", "clear", "commandWorker", "instance_group", WORKER, true},
    {"directory", "compress", "commandWorker", "instance_group", WORKER, true},
    {"directory", "decompress", "commandWorker", "instance_group", WORKER, true},
    {"directory", "result", "getCommand", "instance_group", RESULT, true},
    {"account", "list", "listAccount", NULL, NOTHING, false},
    {"account", "add", "addAccount", NULL, ACCOUNT, false},
    {"account", "remove", "deleteAccount", "user_name", NAME, false},
    {"cluster", "info", "getManagerClusterInfo", NULL, NOTHING, false},
    {"cluster", "health", "checkHealth", NULL, NOTHING, false},
    {"cluster", "metrics", "getMetrics", NULL, NOTHING, false},
    {"cluster", "demote", "leaderDemote", NULL, NOTHING, false},
    {"cluster", "snapshot", "genConfigSnapshot", NULL, NOTHING, false},
    {"cluster", "restore", "loadConfigSnapshot", "config_snapshot", SNAPSHOT, false},
    {"cluster", "log", "updateLogger", "log_level", NAME, false},
};

/* ---- requests -------------------------------------------------------------------------------- */

static char *read_input(const char *command)
{
    size_t room = 1024 * 1024, bytes = 0, got;
    char *text = tierce__alloc(room + 1);
    while (text != NULL && (got = fread(text + bytes, 1, room - bytes, stdin)) > 0)
        bytes += got;
    if (text == NULL || bytes == room) {
        tierce__free(text);
        tierce__cli_fail(command, "standard input holds more than 1 MiB");
        return NULL;
    }
    text[bytes] = '\0';
    return text;
}

/* Standard input, a file, or the text itself if it begins as JSON. NULL: it failed and said so. */
static char *read_text(const char *command, const char *from)
{
    enum { TEXT_BYTES_MAX = 64 * 1024 * 1024 };
    char *text = NULL;
    if (strcmp(from, "-") == 0)
        return read_input(command);
    if (from[0] == '{') {
        text = tierce__strdup(from);
        if (text == NULL)
            tierce__cli_fail(command, "no memory");
        return text;
    }
    int rc = tierce__cli_read_text(&text, from, TEXT_BYTES_MAX);
    if (rc < 0)
        tierce__cli_fail(command, "%.300s: %s", from, tierce__cli_read_error(rc));
    return text;
}

/* An update replaces the version before its own. */
static void put_version(struct tierce__json_write *request, struct tierce__text message)
{
    char text[32];
    int64_t version = tierce__json_get_int(message, "version", 0);
    if (tierce__json_get(message, "version").length == 0)
        return;
    if (tierce__json_get_text(text, sizeof(text), message, "version"))
        version = strtoll(text, NULL, 10);
    tierce__json_write_signed(request, "current_version", version - 1);
}

/* The answer of `show --json` has the message as a field. */
static struct tierce__text message_of(const struct verb *verb, struct tierce__text given)
{
    struct tierce__text field = {0};
    if (verb->field != NULL)
        field = tierce__json_get(given, verb->field);
    return field.length > 0 && tierce__json_value_kind(field) == '{' ? field : given;
}

static int read_message(const struct verb *verb, const char *from,
                        struct tierce__json_write *request)
{
    struct tierce__json_doc doc = {0};
    char *text = read_text(verb->command, from);
    int status = TIERCE__CLI_OK;
    if (text == NULL)
        return TIERCE__CLI_FAILED;
    const char *why = "it is of another type";
    if (tierce__json_parse(&doc, text, strlen(text), &why) < 0 ||
        tierce__json_value_kind(doc.value) != '{')
        status = tierce__cli_fail(verb->command, "%.100s: not a JSON object: %s", from, why);
    struct tierce__text message =
        status == TIERCE__CLI_OK ? message_of(verb, doc.value) : doc.value;
    if (status == TIERCE__CLI_OK)
        status = tierce__admin_check(verb->command, verb->rpc, verb->field, message);
    if (status == TIERCE__CLI_OK && verb->field == NULL) {
        tierce__json_write_value(request, NULL, message);
    } else if (status == TIERCE__CLI_OK) {
        tierce__json_write_open(request, NULL, '{');
        tierce__json_write_value(request, verb->field, message);
        if (strcmp(verb->rpc, "updateInstanceGroup") == 0)
            put_version(request, message);
        tierce__json_write_close(request, '}');
    }
    tierce__json_doc_clear(&doc);
    tierce__free(text);
    return status;
}

static int read_keys(const struct verb *verb, int count, char **arguments,
                     struct tierce__json_write *request)
{
    tierce__json_write_text(request, "instance_id", arguments[0]);
    tierce__json_write_text(request, "query_type", "QT_PREFIX_MATCH");
    tierce__json_write_open(request, "block_keys", '[');
    for (int i = 1; i < count; i++) {
        char *end;
        errno = 0;
        long long key = strtoll(arguments[i], &end, 0);
        if (*end != '\0' || end == arguments[i] || errno != 0)
            return tierce__cli_usage(
                verb->command, "\"%.40s\" is not a key; keys are 64-bit numbers", arguments[i]);
        tierce__json_write_signed(request, NULL, key);
    }
    tierce__json_write_close(request, ']');
    return TIERCE__CLI_OK;
}

static int read_trim(const struct verb *verb, char **arguments, struct tierce__json_write *request)
{
    long from, to;
    char rest;
    const char *what = arguments[1];
    tierce__json_write_text(request, "instance_id", arguments[0]);
    if (strcmp(what, "all") == 0 || strcmp(what, "meta") == 0) {
        tierce__json_write_text(request, "strategy",
                                what[0] == 'a' ? "TS_REMOVE_ALL_CACHE" : "TS_REMOVE_ALL_META");
    } else if (sscanf(what, "%ld-%ld%c", &from, &to, &rest) == 2) {
        tierce__json_write_text(request, "strategy", "TS_TIMESTAMP");
        tierce__json_write_signed(request, "begin_timestamp", from);
        tierce__json_write_signed(request, "end_timestamp", to);
    } else {
        return tierce__cli_usage(verb->command, "trim requires all, meta, or FROM-TO in seconds");
    }
    return TIERCE__CLI_OK;
}

/* The text of a file, or its first line only, as a field. */
static int read_file(const struct verb *verb, const char *from, const char *field, bool is_line,
                     struct tierce__json_write *request)
{
    char *text = read_text(verb->command, from);
    if (text == NULL)
        return TIERCE__CLI_FAILED;
    if (is_line)
        text[strcspn(text, "\r\n")] = '\0';
    tierce__json_write_text(request, field, text);
    tierce__free(text);
    return TIERCE__CLI_OK;
}

static int read_account(const struct verb *verb, char **arguments,
                        struct tierce__json_write *request)
{
    bool is_admin = strcmp(arguments[1], "admin") == 0;
    if (!is_admin && strcmp(arguments[1], "user") != 0)
        return tierce__cli_usage(verb->command, "a role must be user or admin, not \"%.40s\"",
                                 arguments[1]);
    tierce__json_write_text(request, "user_name", arguments[0]);
    tierce__json_write_text(request, "role", is_admin ? "ROLE_ADMIN" : "ROLE_USER");
    return read_file(verb, arguments[2], "password", true, request);
}

/* The options, and what they are for. */
struct arguments {
    struct tierce__admin_target target;
    bool keep;    /* of an adoption */
    bool repair;  /* of a scrub */
    bool drop;    /* of draining */
    bool abandon; /* of a removal */
    uint32_t rate;
    double verify;
    uint64_t read_rate;
    const char *family; /* of an invalidation; or NULL */
    struct tierce__admin_worker worker;
};

static bool is_of_scrub(const struct arguments *options)
{
    return options->repair || options->rate > 0 || options->verify > 0 || options->read_rate > 0;
}

/* The action, and its options. */
static int read_scrub(const struct verb *verb, int count, char **arguments,
                      const struct arguments *options, struct tierce__json_write *request)
{
    const char *action = count > 1 ? arguments[1] : "show";
    bool starts = strcmp(action, "start") == 0;
    bool is_known = starts || strcmp(action, "stop") == 0 || strcmp(action, "show") == 0;
    if (count > 2 || !is_known)
        return tierce__cli_usage(verb->command,
                                 "storage scrub accepts a name, and start, stop or show");
    if (!starts && is_of_scrub(options))
        return tierce__cli_usage(verb->command, "--repair, --rate, --verify and --read-rate are "
                                                "options of storage scrub NAME start");
    tierce__json_write_text(request, "action",
                            starts                        ? "SCRUB_START"
                            : strcmp(action, "stop") == 0 ? "SCRUB_STOP"
                                                          : "SCRUB_SHOW");
    if (starts)
        tierce__json_write_bool(request, "repair", options->repair);
    if (starts)
        tierce__json_write_count(request, "rate_per_second", options->rate);
    if (starts)
        tierce__json_write_number(request, "verify_share", options->verify);
    if (starts)
        tierce__json_write_count(request, "bytes_per_second", options->read_rate);
    return TIERCE__CLI_OK;
}

static int read_drain(const struct verb *verb, int count, char **arguments,
                      const struct arguments *options, struct tierce__json_write *request)
{
    bool shows = count > 1 && strcmp(arguments[1], "show") == 0;
    if (count > 2 || (count > 1 && !shows))
        return tierce__cli_usage(verb->command, "storage drain accepts a name, and show");
    if (shows && options->drop)
        return tierce__cli_usage(verb->command, "--drop is an option of storage drain NAME");
    tierce__json_write_text(request, "action", shows ? "DRAIN_SHOW" : "DRAIN_START");
    if (options->drop)
        tierce__json_write_bool(request, "drop", true);
    return TIERCE__CLI_OK;
}

/* Checks that each option belongs to the verb. */
static int check_options(const struct verb *verb, const struct arguments *options)
{
    if (options->keep && verb->shape != ADOPTION)
        return tierce__cli_usage(verb->command, "--keep is an option of storage adopt");
    if (options->family != NULL && verb->shape != FAMILY)
        return tierce__cli_usage(verb->command, "--family is an option of group invalidate");
    if (is_of_scrub(options) && verb->shape != SCRUB)
        return tierce__cli_usage(verb->command, "%s is an option of storage scrub",
                                 options->repair       ? "--repair"
                                 : options->rate > 0   ? "--rate"
                                 : options->verify > 0 ? "--verify"
                                                       : "--read-rate");
    const struct tierce__admin_worker *worker = &options->worker;
    bool is_of_move = worker->keeps || worker->to != NULL;
    if ((worker->pin_ms > 0 || is_of_move || worker->wait_ms > 0) && verb->shape != WORKER)
        return tierce__cli_usage(verb->command, "%s is an option of directory %s",
                                 worker->keeps        ? "--copy"
                                 : is_of_move         ? "--to"
                                 : worker->pin_ms > 0 ? "--for"
                                                      : "--wait",
                                 is_of_move ? "move"
                                 : worker->pin_ms > 0
                                     ? "pin"
                                     : "health, pin, unpin, move, clear, compress and decompress");
    if (options->abandon && verb->shape != REMOVAL)
        return tierce__cli_usage(verb->command, "--abandon is an option of storage remove");
    if (options->drop && verb->shape != DRAIN)
        return tierce__cli_usage(verb->command, "--drop is an option of storage drain");
    return TIERCE__CLI_OK;
}

static int make_request(const struct verb *verb, int count, char **arguments,
                        const struct arguments *options, struct tierce__json_write *request)
{
    static const int wanted[] = {
        [NOTHING] = 0,  [NAME] = 1,    [MESSAGE] = 1,  [TRIM] = 2,   [ACCOUNT] = 3,
        [SNAPSHOT] = 1, [PAGE] = 0,    [ADOPTION] = 1, [FAMILY] = 1, [SCRUB] = 1,
        [DRAIN] = 1,    [UNDRAIN] = 1, [REMOVAL] = 1,  [WORKER] = 2, [RESULT] = 2};
    bool is_list = verb->shape == KEYS || verb->shape == CHUNKS;
    bool may_have_more =
        is_list || verb->shape == SCRUB || verb->shape == DRAIN || verb->shape == WORKER;
    int least = is_list ? 2 : wanted[verb->shape], status = TIERCE__CLI_OK;
    if (count < least || (count > least && !may_have_more))
        return tierce__cli_usage(verb->command, "%s %s accepts %d argument%s%s, not %d",
                                 verb->command, verb->verb, least, least == 1 ? "" : "s",
                                 is_list ? " or more" : "", count);
    status = check_options(verb, options);
    if (status != TIERCE__CLI_OK)
        return status;
    if (verb->shape == MESSAGE)
        return read_message(verb, arguments[0], request);
    tierce__json_write_open(request, NULL, '{');
    if (verb->shape == SCRUB)
        status = read_scrub(verb, count, arguments, options, request);
    else if (verb->shape == DRAIN)
        status = read_drain(verb, count, arguments, options, request);
    else if (verb->shape == UNDRAIN)
        tierce__json_write_text(request, "action", "DRAIN_STOP");
    if (verb->shape == NAME || verb->shape == ADOPTION || verb->shape == FAMILY ||
        verb->shape == SCRUB || verb->shape == DRAIN || verb->shape == UNDRAIN ||
        verb->shape == REMOVAL || verb->shape == CHUNKS || verb->shape == RESULT)
        tierce__json_write_text(request, verb->field, arguments[0]);
    if (options->family != NULL)
        tierce__json_write_text(request, "attention_family", options->family);
    if (options->keep)
        tierce__json_write_bool(request, "keep_locations", true);
    if (options->abandon)
        tierce__json_write_bool(request, "abandon_deletions", true);
    if (verb->shape == CHUNKS)
        status = tierce__admin_put_chunks(verb->command, count - 1, arguments + 1, request);
    else if (verb->shape == WORKER)
        status = tierce__admin_put_worker(verb->command, verb->verb, count, arguments,
                                          &options->worker, request);
    else if (verb->shape == RESULT)
        tierce__json_write_text(request, "command", arguments[1]);
    else if (verb->shape == KEYS)
        status = read_keys(verb, count, arguments, request);
    else if (verb->shape == TRIM)
        status = read_trim(verb, arguments, request);
    else if (verb->shape == ACCOUNT)
        status = read_account(verb, arguments, request);
    else if (verb->shape == SNAPSHOT)
        status = read_file(verb, arguments[0], verb->field, false, request);
    tierce__json_write_close(request, '}');
    return status;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static const struct tierce__option options[] = {
    {"--url", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct arguments, target.admin_url)},
    {"--meta-url", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct arguments, target.meta_url)},
    {"--token-file", TIERCE__OPTION_TEXT,
     TIERCE__OPTION_FIELD(struct arguments, target.token_file)},
    {"--user", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct arguments, target.user)},
    {"--ca-file", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct arguments, target.ca_file)},
    {"--json", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct arguments, target.raw)},
    {"--keep", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct arguments, keep)},
    {"--family", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct arguments, family)},
    {"--abandon", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct arguments, abandon)},
    {"--drop", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct arguments, drop)},
    {"--repair", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct arguments, repair)},
    {"--rate", TIERCE__OPTION_COUNT, TIERCE__OPTION_FIELD(struct arguments, rate), .min = 1,
     .max = 1e9},
    {"--verify", TIERCE__OPTION_SHARE, TIERCE__OPTION_FIELD(struct arguments, verify)},
    {"--read-rate", TIERCE__OPTION_SIZE, TIERCE__OPTION_FIELD(struct arguments, read_rate),
     .min = 1, .wants = "bytes per second, such as 64MiB"},
    {"--for", TIERCE__OPTION_DURATION, TIERCE__OPTION_FIELD(struct arguments, worker.pin_ms),
     .min = 1, .max = 86400000, .wants = "a time such as 10m"},
    {"--wait", TIERCE__OPTION_DURATION, TIERCE__OPTION_FIELD(struct arguments, worker.wait_ms),
     .min = 1, .max = 600000, .wants = "a time such as 30s"},
    {"--copy", TIERCE__OPTION_FLAG, TIERCE__OPTION_FIELD(struct arguments, worker.keeps)},
    {"--to", TIERCE__OPTION_TEXT, TIERCE__OPTION_FIELD(struct arguments, worker.to)},
    {NULL},
};

static const struct verb *find_verb(const char *command, const char *verb)
{
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verbs[i].command, command) == 0 && strcmp(verbs[i].verb, verb) == 0)
            return &verbs[i];
    }
    return NULL;
}

static int refuse_verb(const char *command, const char *verb)
{
    const char *known[VERBS_OF_COMMAND_MAX + 1] = {NULL};
    char shown[64];
    size_t count = 0;
    char all[256] = "";
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verbs[i].command, command) != 0)
            continue;
        TIERCE_ASSERT(count < VERBS_OF_COMMAND_MAX);
        size_t used = strlen(all);
        snprintf(all + used, sizeof(all) - used, "%s%s", count > 0 ? ", " : "", verbs[i].verb);
        known[count++] = verbs[i].verb;
    }
    TIERCE_ASSERT(count > 0);
    if (verb == NULL)
        return tierce__cli_usage(command, "requires an action: %s", all);
    tierce__text_for_message(shown, sizeof(shown), verb);
    return tierce__cli_usage(command, "there is no \"%s %s\"; the nearest is \"%s %s\"", command,
                             shown, command, tierce__nearest(verb, known));
}

static int run(const char *command, int argc, char **argv)
{
    struct arguments arguments = {
        .target = {.admin_url = "http://127.0.0.1:6492", .meta_url = "http://127.0.0.1:6382"}};
    struct tierce__line line = {0};
    struct tierce__json_write request = {.line = &line};
    struct tierce__json_doc reply = {0};
    int status = tierce__options_read(command, options, &arguments, 0, &argc, argv);
    const struct verb *verb =
        status == TIERCE__CLI_OK && argc > 1 ? find_verb(command, argv[1]) : NULL;
    if (verb != NULL)
        status = make_request(verb, argc - 2, argv + 2, &arguments, &request);
    else if (status == TIERCE__CLI_OK)
        status = refuse_verb(command, argv[1]);
    tierce__line_put_bytes(&line, "", 1);
    if (status == TIERCE__CLI_OK && line.failed)
        status = tierce__cli_fail(command, "no memory");
    if (verb != NULL && status == TIERCE__CLI_OK)
        status = tierce__admin_call(&arguments.target, command, verb->rpc, verb->is_meta,
                                    verb->shape != PAGE ? line.text : NULL, &reply);
    if (status == TIERCE__CLI_OK && verb->shape == WORKER)
        status = tierce__admin_show_command(&arguments.target, command, reply.value, argv[2],
                                            arguments.worker.wait_ms);
    else if (status == TIERCE__CLI_OK)
        tierce__admin_print(&arguments.target, verb->rpc, reply.value);
    tierce__line_clear(&line);
    tierce__json_doc_clear(&reply);
    return status;
}

int tierce__cli_storage(int argc, char **argv)
{
    return run("storage", argc, argv);
}

int tierce__cli_group(int argc, char **argv)
{
    return run("group", argc, argv);
}

int tierce__cli_instance(int argc, char **argv)
{
    return run("instance", argc, argv);
}

int tierce__cli_cache(int argc, char **argv)
{
    return run("cache", argc, argv);
}

int tierce__cli_directory(int argc, char **argv)
{
    return run("directory", argc, argv);
}

int tierce__cli_account(int argc, char **argv)
{
    return run("account", argc, argv);
}

int tierce__cli_cluster(int argc, char **argv)
{
    return run("cluster", argc, argv);
}
