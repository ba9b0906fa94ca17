/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/json/json_write.h"
#include "manager/api/api_private.h"
#include "base/log/line_log.h"
#include "proto/kvcm/proto_json.h"

#include <string.h>

/* Passwords, snapshots and backups (which contain password hashes), and the secrets of the
 * directory's workers are never logged. */
static bool is_secret(enum tierce__rpc_id id)
{
    return id == TIERCE__RPC_admin_add_account || id == TIERCE__RPC_admin_gen_config_snapshot ||
           id == TIERCE__RPC_admin_load_config_snapshot || id == TIERCE__RPC_admin_read_backup ||
           id == TIERCE__RPC_meta_join_directory;
}

/* The length of a JSON string up to its closing quote. */
static size_t string_bytes(const char *text)
{
    size_t n = 0;
    while (text[n] != '\0' && text[n] != '"')
        n += text[n] == '\\' && text[n + 1] != '\0' ? 2 : 1;
    return n;
}

/* Whether a "://" ends the scheme of a Redis URI: redis, rediss-cluster, unix, ... */
static bool is_of_redis(const char *text, const char *colon)
{
    const char *scheme = colon;
    while (scheme > text &&
           ((scheme[-1] >= 'a' && scheme[-1] <= 'z') || scheme[-1] == '+' || scheme[-1] == '-'))
        scheme--;
    return strncmp(scheme, "redis", 5) == 0 || strncmp(scheme, "valkey", 6) == 0 ||
           strncmp(scheme, "unix", 4) == 0;
}

/* A name and a password stand between such a "://" and the text's last '@'. */
static void put_without_passwords(struct tierce__line *line, const char *text)
{
    const char *colon = strstr(text, "://");
    for (; colon != NULL; colon = strstr(colon + 1, "://")) {
        size_t length = string_bytes(colon);
        const char *at = is_of_redis(text, colon) ? memrchr(colon, '@', length) : NULL;
        if (at == NULL)
            continue;
        TIERCE_DASSERT(at >= colon + 3);
        tierce__line_put_bytes(line, text, (size_t)(colon + 3 - text));
        tierce__line_put(line, "***");
        text = colon = at;
    }
    tierce__line_put(line, text);
}

static void put_message(struct tierce__json_write *json, const char *name,
                        const ProtobufCMessage *message, bool is_hidden)
{
    enum { MESSAGE_BYTES_MAX = 64 * 1024 };
    char *text = NULL;
    size_t bytes = 0;
    tierce__json_write_name(json, name);
    if (!is_hidden && tierce__proto_json_print_max(&text, &bytes, MESSAGE_BYTES_MAX, message) == 0)
        put_without_passwords(json->line, text);
    else
        tierce__line_put(json->line, "{}");
    tierce__free(text);
}

/* KVCM's fields in its order, and the caller's name. */
void tierce__access_log_write(struct tierce__line_log *log, const struct tierce__api_call *api,
                              const struct tierce__call *call, uint64_t took_us)
{
    TIERCE_ASSERT(api->id < TIERCE__RPC_COUNT);
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    const ProtobufCMessage *header = *(
        ProtobufCMessage *const *)(const void *)((const char *)api->reply + fields->header->offset);
    int64_t now_us = tierce__manager_now_us(api->manager);
    struct tierce__json_write json = {.line = &line};
    tierce__json_write_open(&json, NULL, '{');
    tierce__json_write_signed(&json, "request_begin_time", now_us - (int64_t)took_us);
    tierce__json_write_text(&json, "client_ip", tierce__call_info(call)->peer);
    tierce__json_write_text(&json, "trace_id",
                            tierce__api_text_field(api->request, fields->trace_id));
    tierce__json_write_text(&json, "request_id",
                            tierce__api_text_field(header, fields->request_id));
    tierce__json_write_text(&json, "api_name", tierce__rpcs[api->id].method);
    tierce__json_write_signed(&json, "status_code", api->code);
    tierce__json_write_signed(&json, "request_cost_time_us", (int64_t)took_us);
    put_message(&json, "request", api->request, is_secret(api->id));
    put_message(&json, "response", api->reply, is_secret(api->id));
    if (api->caller->name[0] != '\0')
        tierce__json_write_text(&json, "account", api->caller->name);
    tierce__json_write_close(&json, '}');
    TIERCE_DASSERT(line.failed || json.depth == 0);
    tierce__line_end(&line, log);
}
