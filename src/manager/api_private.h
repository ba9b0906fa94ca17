/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_API_PRIVATE_H
#define TIERCE_MANAGER_API_PRIVATE_H

#include "manager/api.h"
#include "manager/locator.h"
#include "manager/manager_private.h"
#include "wire/proto.h"
#include "wire/proto/meta_service.pb-c.h"

/* One RPC on its way. */
struct tierce__api_call {
    struct tierce__manager *manager;
    enum tierce__rpc_id id;
    uint64_t began_ns; /* before its body was read */
    ProtobufCMessage *request, *reply;
    struct tierce__arena arena;            /* until the reply is packed */
    const struct tierce__catalog *catalog; /* tierce__api_catalog */
    int code;                              /* of the status that was set; values of ErrorCode */
    char why[TIERCE__WHY_BYTES];
    const char *unknown; /* a name in its request that means nothing, in words; or NULL */
};

/* Fills the reply. Always leaves a status (tierce__api_say). */
typedef void (*tierce__api_fn)(struct tierce__api_call *api);

/* Whether it may wait for I/O, and so runs on a worker. */
enum tierce__api_waits {
    TIERCE__API_NEVER_WAITS,
    TIERCE__API_WAITS,
    TIERCE__API_WAITS_AS_INSTANCE, /* that the field instance_id names */
};

struct tierce__api_row {
    tierce__api_fn run;
    enum tierce__api_waits waits;
};

/* By RPC; NULL for those of other files. */
extern const struct tierce__api_row tierce__api_meta_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_admin_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_cluster_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_kv_rows[TIERCE__RPC_COUNT];
extern const struct tierce__api_row tierce__api_debug_rows[TIERCE__RPC_COUNT];

/* What every call has, found in its messages once. */
struct tierce__api_fields {
    const ProtobufCFieldDescriptor *trace_id, *instance_id; /* of the request; NULL: not of this */
    const ProtobufCFieldDescriptor *header;                 /* of the reply */
    const ProtobufCFieldDescriptor *request_id, *status;    /* of the header */
    const ProtobufCFieldDescriptor *code, *message;         /* of the status */
};
const struct tierce__api_fields *tierce__api_fields(enum tierce__rpc_id id);

/* A text; "" where there is no such message, field or text. */
const char *tierce__api_text_field(const ProtobufCMessage *message,
                                   const ProtobufCFieldDescriptor *field);

/* Sets header.status of the reply. */
void tierce__api_say(struct tierce__api_call *api, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Says how a call of the locator or the registry went: `doing` ("start write cache") is part of the
 * text for what has no code of its own, as in KVCM; api->why says why. */
void tierce__api_fail(struct tierce__api_call *api, int rc, const char *doing);

/* Says that, or what was done if nothing failed. */
void tierce__api_end(struct tierce__api_call *api, int rc, const char *doing, const char *done);

/* `missing or invalid fields: {Api: {field}}` */
void tierce__api_invalid(struct tierce__api_call *api, const char *field);

/* Zeroed memory that goes with the reply; NULL, and the reply says so. */
void *tierce__api_alloc(struct tierce__api_call *api, size_t count, size_t bytes);

/* A text as messages want it: they do not write to it. */
static inline char *tierce__api_text(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* A text of a message field, never NULL. */
static inline const char *tierce__api_string(const char *text)
{
    return text != NULL ? text : "";
}

/* Runs the meta service's function for an admin RPC of equal messages; returns its code, which may
 * be one that the admin service does not have. */
int tierce__api_run_as_meta(struct tierce__api_call *api, enum tierce__rpc_id meta);

/* What the registry holds, as it is now, until the reply is packed: replies may borrow from it. */
const struct tierce__catalog *tierce__api_catalog(struct tierce__api_call *api);

/* The registry's and the locator's part of registering; `storages` = JSON of the group's storages
 * (heap), NULL where there is no such group any more. */
TIERCE_MUSTUSE int tierce__api_register(struct tierce__api_call *api,
                                        const struct tierce__instance *instance, char **storages);
/* In the reply's memory; texts are the instance's. NULL: no memory. */
Meta__InstanceInfo *tierce__api_show_instance(struct tierce__api_call *api,
                                              const struct tierce__instance *instance);

/* Replies in the call's protocol. */
void tierce__api_reply(struct tierce__call *call, const ProtobufCMessage *message);

/* later.c: the same after a while (negative: not within the call's time), when a fault asks for it.
 * The message is written before this returns. */
struct tierce__later;
TIERCE_MUSTUSE int tierce__later_create(struct tierce__later **out);
/* Answers what waits; what comes from now on is answered at once. */
void tierce__later_stop(struct tierce__later *later);
void tierce__later_destroy(struct tierce__later *later); /* stopped */
void tierce__later_reply(struct tierce__later *later, struct tierce__call *call,
                         const ProtobufCMessage *message, int32_t delay_ms);

/* access_log.c: KVCM's line of this call. */
void tierce__access_log_write(struct tierce__line_log *log, const struct tierce__api_call *api,
                              const struct tierce__call *call, const char *name, uint64_t took_us);

/* ---- parts of messages ----------------------------------------------------------------------- */

/* Into the call's arena. Errors: -ENOMEM. */
TIERCE_MUSTUSE int tierce__api_read_mask(struct tierce__api_call *api,
                                         const Meta__BlockMask *message, struct tierce__mask *out);
/* NULL: no memory. */
Meta__CacheLocation **tierce__api_show_locations(struct tierce__api_call *api,
                                                 const struct tierce__found *found, size_t count);

#endif
