/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "manager/api_private.h"
#include "manager/line_log.h"
#include "wire/proto_json.h"

#include <string.h>

/* Passwords and snapshots, which hold hashes of them, are not for logs. */
static bool is_secret(enum tierce__rpc_id id)
{
    return id == TIERCE__RPC_admin_add_account || id == TIERCE__RPC_admin_gen_config_snapshot ||
           id == TIERCE__RPC_admin_load_config_snapshot;
}

/* Bytes of a JSON string up to its closing quote. */
static size_t string_bytes(const char *text)
{
    size_t n = 0;
    while (text[n] != '\0' && text[n] != '"')
        n += text[n] == '\\' && text[n + 1] != '\0' ? 2 : 1;
    return n;
}

/* Between a text's "redis://" and its last '@' stand a name and a password. */
static void put_without_passwords(struct tierce__line *line, const char *text)
{
    static const char *const schemes[] = {"redis://", "rediss://", "redis+unix://"};
    while (*text != '\0') {
        const char *begin = NULL;
        for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
            const char *found = strstr(text, schemes[i]);
            if (found != NULL && (begin == NULL || found < begin))
                begin = found;
        }
        if (begin == NULL)
            break;
        begin = strstr(begin, "://") + 3;
        size_t length = string_bytes(begin);
        const char *at = memrchr(begin, '@', length);
        tierce__line_put_bytes(line, text, (size_t)(begin - text));
        if (at != NULL)
            tierce__line_put(line, "***");
        text = at != NULL ? at : begin + length;
    }
    tierce__line_put(line, text);
}

static void put_message(struct tierce__line *line, const char *name,
                        const ProtobufCMessage *message, bool is_hidden)
{
    enum { MESSAGE_BYTES_MAX = 64 * 1024 };
    char *text = NULL;
    size_t bytes = 0;
    tierce__line_put(line, name);
    bool shown = !is_hidden && tierce__proto_json_print(&text, &bytes, message) == 0 &&
                 bytes <= MESSAGE_BYTES_MAX;
    if (shown)
        put_without_passwords(line, text);
    else
        tierce__line_put(line, "{}");
    tierce__free(text);
}

/* KVCM's fields in its order, and who it was. */
void tierce__access_log_write(struct tierce__line_log *log, const struct tierce__api_call *api,
                              const struct tierce__call *call, const char *name, uint64_t took_us)
{
    struct tierce__line line = {0};
    if (!tierce__line_log_is_read(log))
        return;
    const struct tierce__api_fields *fields = tierce__api_fields(api->id);
    const ProtobufCMessage *header = *(
        ProtobufCMessage *const *)(const void *)((const char *)api->reply + fields->header->offset);
    int64_t now_us = tierce__manager_now_us(api->manager);
    tierce__line_put(&line, "{\"request_begin_time\":");
    tierce__line_put_int(&line, now_us - (int64_t)took_us);
    tierce__line_put(&line, ",\"client_ip\":");
    tierce__line_put_string(&line, tierce__call_info(call)->peer);
    tierce__line_put(&line, ",\"trace_id\":");
    tierce__line_put_string(&line, tierce__api_text_field(api->request, fields->trace_id));
    tierce__line_put(&line, ",\"request_id\":");
    tierce__line_put_string(&line, tierce__api_text_field(header, fields->request_id));
    tierce__line_put(&line, ",\"api_name\":");
    tierce__line_put_string(&line, tierce__rpcs[api->id].method);
    tierce__line_put(&line, ",\"status_code\":");
    tierce__line_put_int(&line, api->code);
    tierce__line_put(&line, ",\"request_cost_time_us\":");
    tierce__line_put_int(&line, (int64_t)took_us);
    put_message(&line, ",\"request\":", api->request, is_secret(api->id));
    put_message(&line, ",\"response\":", api->reply, is_secret(api->id));
    if (name[0] != '\0') {
        tierce__line_put(&line, ",\"account\":");
        tierce__line_put_string(&line, name);
    }
    tierce__line_put(&line, "}");
    tierce__line_end(&line, log);
}
