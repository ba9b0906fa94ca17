/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "cli/admin.h"

#include <errno.h>
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
    "  update JSON\n  enable NAME\n  disable NAME\n  remove NAME\n" OPTIONS,
    NULL};
const char *const tierce__cli_group_help[] = {
    "  list\n  show NAME\n  create JSON        an InstanceGroup\n"
    "  update JSON        with a version above the stored one\n  remove NAME\n" OPTIONS,
    NULL};
const char *const tierce__cli_instance_help[] = {
    "  list GROUP\n  show ID\n  register JSON      a RegisterInstanceRequest\n"
    "  remove ID          with all its blocks\n" OPTIONS,
    NULL};
const char *const tierce__cli_cache_help[] = {
    "  locate ID KEY...   the leading cached keys and their locations\n"
    "  look ID KEY...     the state of each key\n  remove ID KEY...\n"
    "  trim ID all|meta|FROM-TO\n                     all blocks; only their metadata; or those "
    "stored in a range of seconds\n" OPTIONS,
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
};

struct verb {
    const char *command, *verb, *rpc, *field;
    enum shape shape;
    bool is_meta;
};

static const struct verb verbs[] = {
    {"storage", "list", "listStorage", NULL, NOTHING, false},
    {"storage", "add", "addStorage", "storage", MESSAGE, false},
    {"storage", "update", "updateStorage", "storage", MESSAGE, false},
    {"storage", "enable", "enableStorage", "storage_unique_name", NAME, false},
    {"storage", "disable", "disableStorage", "storage_unique_name", NAME, false},
    {"storage", "remove", "removeStorage", "storage_unique_name", NAME, false},
    {"group", "list", "listInstanceGroup", NULL, NOTHING, false},
    {"group", "show", "getInstanceGroup", "name", NAME, false},
    {"group", "create", "createInstanceGroup", "instance_group", MESSAGE, false},
    {"group", "update", "updateInstanceGroup", "instance_group", MESSAGE, false},
    {"group", "remove", "removeInstanceGroup", "name", NAME, false},
    {"instance", "list", "listInstanceInfo", "instance_group_name", NAME, false},
    {"instance", "show", "getInstanceInfo", "instance_id", NAME, false},
    {"instance", "register", "registerInstance", NULL, MESSAGE, false},
    {"instance", "remove", "removeInstance", "instance_id", NAME, false},
    {"cache", "locate", "getCacheLocation", NULL, KEYS, true},
    {"cache", "look", "getCacheMeta", NULL, KEYS, false},
    {"cache", "remove", "removeCache", NULL, KEYS, false},
    {"cache", "trim", "trimCache", NULL, TRIM, true},
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

static void put_text(struct json_object *request, const char *field, const char *text)
{
    json_object_object_add(request, field, json_object_new_string(text));
}

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

static int read_message(const struct verb *verb, const char *from, struct json_object **request)
{
    char *text = read_text(verb->command, from);
    if (text == NULL)
        return TIERCE__CLI_FAILED;
    struct json_object *message = json_tokener_parse(text);
    tierce__free(text);
    if (message == NULL || !json_object_is_type(message, json_type_object)) {
        json_object_put(message);
        return tierce__cli_fail(verb->command, "%.100s: not a JSON object", from);
    }
    if (verb->field == NULL) {
        json_object_put(*request);
        *request = message;
        return TIERCE__CLI_OK;
    }
    struct json_object *version;
    json_object_object_add(*request, verb->field, message);
    /* An update replaces the version before its own. */
    if (strcmp(verb->rpc, "updateInstanceGroup") == 0 &&
        json_object_object_get_ex(message, "version", &version))
        json_object_object_add(*request, "current_version",
                               json_object_new_int64(json_object_get_int64(version) - 1));
    return TIERCE__CLI_OK;
}

static int read_keys(const struct verb *verb, int count, char **arguments,
                     struct json_object *request)
{
    struct json_object *keys = json_object_new_array();
    put_text(request, "instance_id", arguments[0]);
    json_object_object_add(request, "block_keys", keys);
    put_text(request, "query_type", "QT_PREFIX_MATCH");
    for (int i = 1; i < count; i++) {
        char *end;
        errno = 0;
        long long key = strtoll(arguments[i], &end, 0);
        if (*end != '\0' || end == arguments[i] || errno != 0)
            return tierce__cli_usage(
                verb->command, "\"%.40s\" is not a key; keys are 64-bit numbers", arguments[i]);
        json_object_array_add(keys, json_object_new_int64(key));
    }
    return TIERCE__CLI_OK;
}

static int read_trim(const struct verb *verb, char **arguments, struct json_object *request)
{
    long from, to;
    char rest;
    const char *what = arguments[1];
    put_text(request, "instance_id", arguments[0]);
    if (strcmp(what, "all") == 0 || strcmp(what, "meta") == 0) {
        put_text(request, "strategy",
                 what[0] == 'a' ? "TS_REMOVE_ALL_CACHE" : "TS_REMOVE_ALL_META");
    } else if (sscanf(what, "%ld-%ld%c", &from, &to, &rest) == 2) {
        put_text(request, "strategy", "TS_TIMESTAMP");
        json_object_object_add(request, "begin_timestamp", json_object_new_int64(from));
        json_object_object_add(request, "end_timestamp", json_object_new_int64(to));
    } else {
        return tierce__cli_usage(verb->command, "trim requires all, meta, or FROM-TO in seconds");
    }
    return TIERCE__CLI_OK;
}

static int read_account(const struct verb *verb, char **arguments, struct json_object *request)
{
    bool is_admin = strcmp(arguments[1], "admin") == 0;
    if (!is_admin && strcmp(arguments[1], "user") != 0)
        return tierce__cli_usage(verb->command, "a role must be user or admin, not \"%.40s\"",
                                 arguments[1]);
    char *text = read_text(verb->command, arguments[2]);
    if (text == NULL)
        return TIERCE__CLI_FAILED;
    text[strcspn(text, "\r\n")] = '\0';
    put_text(request, "user_name", arguments[0]);
    put_text(request, "password", text);
    put_text(request, "role", is_admin ? "ROLE_ADMIN" : "ROLE_USER");
    tierce__free(text);
    return TIERCE__CLI_OK;
}

static int read_snapshot(const struct verb *verb, const char *from, struct json_object *request)
{
    char *text = read_text(verb->command, from);
    if (text == NULL)
        return TIERCE__CLI_FAILED;
    put_text(request, verb->field, text);
    tierce__free(text);
    return TIERCE__CLI_OK;
}

static int make_request(const struct verb *verb, int count, char **arguments,
                        struct json_object **request)
{
    static const int wanted[] = {
        [NOTHING] = 0, [NAME] = 1, [MESSAGE] = 1, [TRIM] = 2, [ACCOUNT] = 3, [SNAPSHOT] = 1};
    bool is_list = verb->shape == KEYS;
    int least = is_list ? 2 : wanted[verb->shape];
    if (count < least || (count > least && !is_list))
        return tierce__cli_usage(verb->command, "%s %s takes %d argument%s%s, not %d",
                                 verb->command, verb->verb, least, least == 1 ? "" : "s",
                                 is_list ? " or more" : "", count);
    *request = json_object_new_object();
    switch (verb->shape) {
    case NOTHING:
        break;
    case NAME:
        put_text(*request, verb->field, arguments[0]);
        break;
    case MESSAGE:
        return read_message(verb, arguments[0], request);
    case KEYS:
        return read_keys(verb, count, arguments, *request);
    case TRIM:
        return read_trim(verb, arguments, *request);
    case ACCOUNT:
        return read_account(verb, arguments, *request);
    case SNAPSHOT:
        return read_snapshot(verb, arguments[0], *request);
    }
    return TIERCE__CLI_OK;
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Removes options from the arguments; *count is the number of remaining ones. */
static int read_options(const char *command, int argc, char **argv,
                        struct tierce__admin_target *target, char **left, int *count)
{
    const struct {
        const char *name, **value;
    } options[] = {
        {"--url", &target->admin_url},         {"--meta-url", &target->meta_url},
        {"--token-file", &target->token_file}, {"--user", &target->user},
        {"--ca-file", &target->ca_file},
    };
    static const char *const known[] = {
        "--url", "--meta-url", "--token-file", "--user", "--ca-file", "--json", NULL};
    *count = 0;
    for (int i = 1; i < argc; i++) {
        bool found = strcmp(argv[i], "--json") == 0;
        target->raw = target->raw || found;
        for (size_t o = 0; o < sizeof(options) / sizeof(options[0]) && !found; o++) {
            if (strcmp(argv[i], options[o].name) != 0)
                continue;
            if (i + 1 >= argc)
                return tierce__cli_usage(command, "%s wants a value", argv[i]);
            *options[o].value = argv[++i];
            found = true;
        }
        if (!found && strncmp(argv[i], "--", 2) == 0)
            return tierce__cli_unknown_option(command, argv[i], known);
        if (!found)
            left[(*count)++] = argv[i];
    }
    return TIERCE__CLI_OK;
}

static const struct verb *find_verb(const char *command, const char *verb)
{
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verbs[i].command, command) == 0 && strcmp(verbs[i].verb, verb) == 0)
            return &verbs[i];
    }
    return NULL;
}

static int run(const char *command, int argc, char **argv)
{
    struct tierce__admin_target target = {.admin_url = "http://127.0.0.1:6492",
                                          .meta_url = "http://127.0.0.1:6382"};
    struct json_object *request = NULL, *reply = NULL;
    char **left = tierce__calloc((size_t)argc + 1, sizeof(*left));
    int count = 0;
    int status = left != NULL ? read_options(command, argc, argv, &target, left, &count)
                              : tierce__cli_fail(command, "no memory");
    const struct verb *verb =
        status == TIERCE__CLI_OK && count > 0 ? find_verb(command, left[0]) : NULL;
    if (verb != NULL)
        status = make_request(verb, count - 1, left + 1, &request);
    else if (status == TIERCE__CLI_OK)
        status = tierce__cli_usage(command, count > 0 ? "there is no \"%s %.40s\"" : "%s what?",
                                   command, count > 0 ? left[0] : "");
    if (verb != NULL && status == TIERCE__CLI_OK)
        status = tierce__admin_call(&target, command, verb->rpc, verb->is_meta, request, &reply);
    if (status == TIERCE__CLI_OK)
        tierce__admin_print(&target, reply);
    json_object_put(request);
    json_object_put(reply);
    tierce__free(left);
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

int tierce__cli_account(int argc, char **argv)
{
    return run("account", argc, argv);
}

int tierce__cli_cluster(int argc, char **argv)
{
    return run("cluster", argc, argv);
}
