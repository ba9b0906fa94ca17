/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_API_PRIVATE_H
#define TIERCE_MANAGER_API_PRIVATE_H

#include "manager/api/api.h"
#include "manager/locate/locator.h"
#include "manager/manager_private.h"
#include "proto/kvcm/proto.h"
#include "proto/kvcm/meta_service.pb-c.h"

/* One RPC on its way. */
struct tierce__api_call {
    struct tierce__manager *manager;
    enum tierce__rpc_id id;
    const struct tierce__caller *caller;
    uint64_t began_ns; /* before its body was read */
    ProtobufCMessage *request, *reply;
    struct tierce__arena arena;            /* until the reply is packed */
    const struct tierce__catalog *catalog; /* tierce__api_catalog */
    uint64_t keys, bytes;                  /* that the call has used, for the account's meter */
    const char *peer;                      /* the client's address; NULL: not known */
    int code;                              /* of the status that was set; values of ErrorCode */
    bool is_outside;                       /* of the scope, and therefore refused */
    char why[TIERCE__WHY_BYTES];
    const char *unknown; /* a text about an unknown name in the request; or NULL */
};

/* Fills the reply. Always leaves a status (tierce__api_say). */
typedef void (*tierce__api_fn)(struct tierce__api_call *api);

/* Whether the call may block on I/O, and so runs on a worker. */
enum tierce__api_waits {
    TIERCE__API_NEVER_WAITS,
    TIERCE__API_WAITS,
    TIERCE__API_WAITS_AS_INSTANCE, /* as the instance that the field instance_id names */
    TIERCE__API_WAITS_IF_LONG,     /* FindChunks with many keys, which would keep others waiting */
};

struct tierce__api_row {
    tierce__api_fn run;
    enum tierce__api_waits waits;
    const char *needs[2]; /* texts that the request must set */
};

/* By RPC id; NULL for RPCs that another file implements. */
extern const struct tierce__api_row tierce__api_meta_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_admin_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_storage_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_cluster_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_kv_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_debug_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_node_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_backup_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_namespace_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_move_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_directory_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_command_rows[TIERCE__RPC_COUNT];

/* Whether a FindChunks has so many keys that it belongs on a worker. */
bool tierce__api_find_is_long(const struct tierce__api_call *api);

/* NULL: no file implements it. */
const struct tierce__api_row *tierce__api_row(enum tierce__rpc_id id);

/* Whether a call may block on I/O. Its request was read. */
bool tierce__api_may_wait(const struct tierce__api_call *api);

/* Runs the call, unless this process does not lead or an injected fault prevents it. */
void tierce__api_run(struct tierce__api_call *api, const struct tierce__fault *fault);

/* Frees the call's messages and memory. */
void tierce__api_clear(struct tierce__api_call *api);

/* Descriptors of the fields that every call has, looked up once. */
struct tierce__api_fields {
    const ProtobufCFieldDescriptor *trace_id,
        *instance_id;                       /* of the request; NULL: this request has none */
    const ProtobufCFieldDescriptor *header; /* of the reply */
    const ProtobufCFieldDescriptor *request_id, *status; /* of the header */
    const ProtobufCFieldDescriptor *tracer_result; /* of the header; NULL: this reply has none */
    const ProtobufCFieldDescriptor *generation, *registry; /* the same */
    const ProtobufCFieldDescriptor *code, *message;        /* of the status */
};
const struct tierce__api_fields *tierce__api_fields(enum tierce__rpc_id id);

/* A text; "" where there is no such message, field or text. */
const char *tierce__api_text_field(const ProtobufCMessage *message,
                                   const ProtobufCFieldDescriptor *field);

/* Sets header.status of the reply. */
void tierce__api_say(struct tierce__api_call *api, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the status from the result of a locator or registry call; api->why has the reason. Errors
 * without an ErrorCode of their own get a text that contains `doing` ("start write cache"), as in
 * KVCM. */
void tierce__api_fail(struct tierce__api_call *api, int rc, const char *doing);

/* As tierce__api_fail if rc is an error; otherwise sets OK with the text `done`. */
void tierce__api_end(struct tierce__api_call *api, int rc, const char *doing, const char *done);

/* `missing or invalid fields: {Api: {field}}` */
void tierce__api_invalid(struct tierce__api_call *api, const char *field);

/* Zeroed memory that is freed with the reply. NULL: no memory, and the reply's status says so. */
void *tierce__api_alloc(struct tierce__api_call *api, size_t count, size_t bytes);

/* A copy of a text in such memory. */
char *tierce__api_copy(struct tierce__api_call *api, const char *text, size_t bytes);

/* Casts a text to the type of message fields. Messages do not write to it. */
static inline char *tierce__api_text(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* A text of a message field, never NULL. */
static inline const char *tierce__api_string(const char *text)
{
    return text != NULL ? text : "";
}

/* Runs the meta service's function for an admin RPC whose messages have the same fields, and so the
 * same layout; returns its code, which may be one that the admin service does not have. */
int tierce__api_run_as_meta(struct tierce__api_call *api, enum tierce__rpc_id meta);

/* Replaces the code of the status by one that the admin service has. */
void tierce__api_as_admin(struct tierce__api_call *api);

/* Whether the caller's scope holds the instance or group that the request names, in this
 * catalog. */
bool tierce__api_is_in_scope(const struct tierce__api_call *api,
                             const struct tierce__catalog *catalog);
/* Sets the status of a call that is outside the scope. A target that does not exist has the same.
 */
void tierce__api_refuse(struct tierce__api_call *api);

/* The registry's current catalog, held until the reply is packed, so that replies may borrow from
 * it. */
const struct tierce__catalog *tierce__api_catalog(struct tierce__api_call *api);

/* Registers an instance with the registry and the locator, and sets the status; its code is
 * `duplicate` if a different instance has the id. *storages becomes the JSON of the group's
 * storages (in the reply's memory) if it was registered, unless the group was removed meanwhile. */
void tierce__api_register(struct tierce__api_call *api, const struct tierce__instance *instance,
                          char **storages, int duplicate);
/* The same for the instance of a RegisterInstanceRequest. */
void tierce__api_register_request(struct tierce__api_call *api, char **storages);

/* Writes a storage as clients read it in storage_configs: without credentials, which clients read
 * from the file that the storage names. With the id in the mark of a storage that has one, so that
 * a client notices an empty mount point. False: no memory. */
struct tierce__json_write;
bool tierce__api_put_storage(struct tierce__api_call *api, struct tierce__json_write *json,
                             const struct tierce__storage *storage, const char *registry_id);

/* Replies in the call's protocol. */
void tierce__api_reply(struct tierce__call *call, const ProtobufCMessage *message);

/* HTTP: 429 to an account above its limits. */
void tierce__api_reply_limited(struct tierce__call *call, const char *why);

/* later.c: replies after a delay (negative: not within the call's time limit), for an injected
 * fault. The message is serialized before this returns. */
struct tierce__later;
TIERCE_MUSTUSE int tierce__later_create(struct tierce__later **out);
/* Sends the delayed replies; later replies are sent at once. */
void tierce__later_stop(struct tierce__later *later);
void tierce__later_destroy(struct tierce__later *later); /* stopped */
void tierce__later_reply(struct tierce__later *later, struct tierce__call *call,
                         const ProtobufCMessage *message, int32_t delay_ms);

/* call_log.c: KVCM's line of this call. */
void tierce__access_log_write(struct tierce__line_log *log, const struct tierce__api_call *api,
                              const struct tierce__call *call, uint64_t took_us);

/* ---- parts of messages ----------------------------------------------------------------------- */

/* Into the call's arena. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__api_read_mask(struct tierce__api_call *api,
                                         const Meta__BlockMask *message, struct tierce__mask *out);
/* The size= of a URI; 0: it has none. */
uint64_t tierce__api_uri_bytes(const char *uri);
/* NULL: no memory. */
Meta__CacheLocation **tierce__api_show_locations(struct tierce__api_call *api,
                                                 const struct tierce__found *found, size_t count);

#endif
