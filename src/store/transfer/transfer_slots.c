/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "store/transfer/transfer_private.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define SLOTS      TIERCE__TRANSFER_PIPELINE
#define PAGE_FIRST 4096u

static struct tierce__transfer_counters *counters_of(struct tierce__transfer_slot *slot)
{
    return &slot->connection->server->counters;
}

static struct tierce__keeper *keeper_of(struct tierce__transfer_slot *slot)
{
    return slot->connection->server->opts.keeper;
}

static struct tierce_plugin_name space_of(const struct tierce__transfer_slot *slot)
{
    return (struct tierce_plugin_name){slot->connection->space, slot->connection->space_bytes};
}

static struct tierce_plugin_name name_of(const struct tierce__transfer_slot *slot)
{
    return (struct tierce_plugin_name){slot->name, slot->request.name_bytes};
}

/* ---- the ring -------------------------------------------------------------------------------- */

static struct tierce__transfer_slot *slot_at(struct tierce__transfer_connection *c, uint32_t i)
{
    TIERCE_DASSERT(i < c->count);
    return &c->slots[(c->first + i) % SLOTS];
}

bool tierce__transfer_slots_are_full(const struct tierce__transfer_connection *c)
{
    TIERCE_DASSERT(c->count <= SLOTS);
    return c->count == SLOTS;
}

struct tierce__transfer_slot *
tierce__transfer_slot_take(struct tierce__transfer_connection *c,
                           const struct tierce__transfer_request *request, const uint8_t *name)
{
    TIERCE_ASSERT(c->count < SLOTS);
    TIERCE_ASSERT(request->name_bytes <= sizeof(c->slots[0].name));
    struct tierce__transfer_slot *slot = &c->slots[(c->first + c->count++) % SLOTS];
    TIERCE_DASSERT(!slot->has_lease && !slot->has_room && slot->memory == NULL);
    slot->connection = c;
    slot->state = TIERCE__SLOT_RECEIVING;
    slot->request = *request;
    memcpy(slot->name, name, request->name_bytes);
    slot->refused = 0;
    slot->bytes = NULL;
    slot->sent = 0;
    slot->reply = (struct tierce__transfer_reply){.op = request->op, .sequence = c->sequence++};
    return slot;
}

/* A keeper's status as one of the protocol (docs/inside/format/transfer.md). */
static int status_of(enum tierce__transfer_op op, int status)
{
    switch (status) {
    case TIERCE_E_FORMAT:
        return op == TIERCE__TRANSFER_OP_READ ? status : TIERCE_E_DOWN;
    case TIERCE_E_MISS:
    case TIERCE_E_FULL:
    case TIERCE_E_LIMIT:
    case TIERCE_E_REFUSED:
    case TIERCE_E_DEADLINE:
    case TIERCE_E_ARGUMENT:
    case TIERCE_E_UNSUPPORTED:
        return status;
    default:
        return status > -4096 ? status : TIERCE_E_DOWN; /* an errno is one */
    }
}

/* The request is over, with these bytes of the reply, or without. */
static void finish(struct tierce__transfer_slot *slot, int status)
{
    TIERCE_ASSERT(status <= 0 && slot->state != TIERCE__SLOT_READY);
    slot->state = TIERCE__SLOT_READY;
    slot->reply.status = status_of(slot->request.op, status);
    slot->reply.bytes = status == 0 ? slot->reply.bytes : 0;
    tierce__transfer_reply_encode(slot->head, &slot->reply);
    if (status < 0 && status != TIERCE_E_MISS && status != TIERCE_E_FULL)
        tierce__transfer_count(&counters_of(slot)->errors, 1);
}

static void release(struct tierce__transfer_slot *slot)
{
    struct tierce__keeper *keeper = keeper_of(slot);
    if (slot->has_lease)
        keeper->ops->release(keeper, &slot->call.lease);
    if (slot->has_room)
        keeper->ops->abandon(keeper, &slot->room);
    tierce__free(slot->memory);
    slot->memory = NULL;
    slot->memory_bytes = slot->memory_room = 0;
    slot->has_lease = slot->has_room = false;
}

bool tierce__transfer_slots_hold(const struct tierce__transfer_connection *c)
{
    bool any = false;
    for (uint32_t i = 0; i < c->count && !any; i++) {
        const struct tierce__transfer_slot *slot = &c->slots[(c->first + i) % SLOTS];
        any = slot->has_lease || slot->has_room;
    }
    return any;
}

void tierce__transfer_slots_clear(struct tierce__transfer_connection *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (slot_at(c, i)->state != TIERCE__SLOT_WORKING)
            release(slot_at(c, i));
    }
}

/* ---- answers of the keeper ------------------------------------------------------------------- */

static void found(struct tierce__transfer_slot *slot)
{
    const struct tierce__transfer_request *request = &slot->request;
    const struct tierce__keeper_lease *lease = &slot->call.lease;
    int status = slot->call.status;
    TIERCE_ASSERT(status <= 0);
    slot->has_lease = status == 0;
    if (status == TIERCE_E_MISS)
        tierce__transfer_count(&counters_of(slot)->misses, 1);
    if (status == 0) {
        bool is_other = request->total != 0 && request->total != lease->bytes;
        slot->reply.total = lease->bytes;
        if (is_other || request->offset > lease->bytes ||
            request->length > lease->bytes - request->offset)
            status = TIERCE_E_FORMAT;
    }
    if (status == 0) {
        TIERCE_ASSERT(lease->from <= request->offset);
        slot->bytes = lease->data + (request->offset - lease->from);
        slot->reply.bytes = request->length;
        tierce__transfer_count(&counters_of(slot)->reads, 1);
        tierce__transfer_count(&counters_of(slot)->read_bytes, request->length);
    } else {
        release(slot);
    }
    finish(slot, status);
}

static void kept(struct tierce__transfer_slot *slot)
{
    int status = slot->room.status;
    TIERCE_ASSERT(status <= 0 && !slot->has_room);
    if (status == 0) {
        tierce__transfer_count(&counters_of(slot)->writes, 1);
        tierce__transfer_count(&counters_of(slot)->written_bytes, slot->request.length);
    }
    finish(slot, status);
}

static void dropped(struct tierce__transfer_slot *slot)
{
    TIERCE_ASSERT(slot->call.status <= 0);
    tierce__transfer_count(&counters_of(slot)->drops, slot->call.status == 0);
    finish(slot, slot->call.status);
}

static void answered(struct tierce__transfer_slot *slot)
{
    struct tierce__transfer_connection *c = slot->connection;
    TIERCE_ASSERT(slot->state == TIERCE__SLOT_WORKING && c->working > 0);
    c->working--;
    if (slot->request.op == TIERCE__TRANSFER_OP_READ)
        found(slot);
    else if (slot->request.op == TIERCE__TRANSFER_OP_DROP)
        dropped(slot);
    else
        kept(slot);
}

static void on_answer(struct tierce__task *task)
{
    struct tierce__transfer_slot *slot =
        TIERCE__CONTAINER_OF(task, struct tierce__transfer_slot, task);
    struct tierce__transfer_connection *c = slot->connection;
    answered(slot);
    if (c->is_closing) {
        release(slot);
        tierce__transfer_connection_bury(c);
    } else {
        tierce__transfer_connection_run(c);
    }
}

/* On any thread. An answer within the call needs no message to the loop. */
static void deliver(struct tierce__transfer_slot *slot)
{
    struct tierce__loop *loop = &slot->connection->loop->base;
    if (tierce__loop_is_here(loop) && slot->is_calling) {
        slot->is_answered = true;
        return;
    }
    slot->task.run = on_answer;
    tierce__loop_post(loop, &slot->task);
}

static void on_called(struct tierce__keeper_call *call)
{
    deliver(call->arg);
}

static void on_kept(struct tierce__keeper_room *room)
{
    deliver(room->arg);
}

static void begin_call(struct tierce__transfer_slot *slot)
{
    slot->state = TIERCE__SLOT_WORKING;
    slot->connection->working++;
    slot->is_answered = false;
    slot->is_calling = true;
}

static void end_call(struct tierce__transfer_slot *slot)
{
    slot->is_calling = false;
    if (slot->is_answered)
        answered(slot);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Gives a find or a drop to the keeper. */
static void call_keeper(struct tierce__transfer_slot *slot,
                        void (*function)(struct tierce__keeper *, struct tierce__keeper_call *))
{
    uint32_t most = slot->connection->server->opts.request_ms, wanted = slot->request.wait_ms;
    uint32_t wait_ms = wanted > 0 && wanted < most ? wanted : most;
    slot->call = (struct tierce__keeper_call){.space = space_of(slot),
                                              .name = name_of(slot),
                                              .offset = slot->request.offset,
                                              .length = slot->request.length,
                                              .total = slot->request.total,
                                              .deadline_ns = tierce__deadline_in_ms(wait_ms),
                                              .done = on_called,
                                              .arg = slot};
    tierce__list_init(&slot->call.node);
    begin_call(slot);
    function(keeper_of(slot), &slot->call);
    end_call(slot);
}

/* The bytes of a request follow; `into` NULL: they are skipped. */
static void receive(struct tierce__transfer_slot *slot, uint8_t *into)
{
    struct tierce__transfer_connection *c = slot->connection;
    TIERCE_ASSERT(c->receiving == NULL);
    c->receiving = slot;
    c->body = into;
    c->body_left = slot->request.length;
}

/* The client sends the bytes in any case, because it learns of the status only afterwards. */
static void skip(struct tierce__transfer_slot *slot, int status)
{
    TIERCE_ASSERT(status < 0);
    if (status == TIERCE_E_FULL)
        tierce__transfer_count(&counters_of(slot)->full, 1);
    slot->refused = status;
    receive(slot, NULL);
}

static int make_room(struct tierce__transfer_slot *slot)
{
    const struct tierce__transfer_connection *c = slot->connection;
    const struct tierce__transfer_request *request = &slot->request;
    struct tierce__keeper *keeper = keeper_of(slot);
    struct tierce_plugin_name space = space_of(slot), name = name_of(slot);
    slot->room = (struct tierce__keeper_room){
        .done = on_kept, .arg = slot, .token = {c->token, c->token_bytes}, .peer = c->peer};
    tierce__list_init(&slot->room.node);
    if (keeper->ops->make_range != NULL)
        return keeper->ops->make_range(
            keeper, &slot->room, &space, &name,
            &(struct tierce__keeper_range){request->offset, request->length, request->total});
    if (request->offset != 0 || request->length != request->total)
        return TIERCE_E_UNSUPPORTED;
    return keeper->ops->make(keeper, &slot->room, &space, &name, request->total);
}

static void begin_write(struct tierce__transfer_slot *slot, bool is_allowed)
{
    const struct tierce__transfer_request *request = &slot->request;
    int rc = is_allowed ? make_room(slot) : TIERCE_E_REFUSED;
    if (rc != 0) {
        skip(slot, rc);
        return;
    }
    TIERCE_ASSERT(slot->room.data != NULL && slot->room.bytes == request->length);
    slot->has_room = true;
    receive(slot, slot->room.data);
}

/* Room for the names, and the lengths of their objects behind them. A client without the right
 * makes the server reserve nothing; its names are skipped. */
static void begin_ask(struct tierce__transfer_slot *slot, bool is_allowed)
{
    if (!is_allowed) {
        skip(slot, TIERCE_E_REFUSED);
        return;
    }
    size_t names_bytes = (size_t)slot->request.length, lengths = 8 * (size_t)slot->request.offset;
    TIERCE_DASSERT(names_bytes <= TIERCE__TRANSFER_NAMES_BYTES_MAX);
    slot->memory = tierce__alloc(names_bytes + lengths);
    slot->memory_bytes = names_bytes;
    receive(slot, slot->memory);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void list_one(void *arg, const struct tierce_plugin_name *name)
{
    struct tierce__transfer_slot *slot = arg;
    size_t wanted = slot->memory_bytes + 2 + name->bytes;
    TIERCE_ASSERT(name->bytes > 0 && name->bytes <= TIERCE__TRANSFER_NAME_MAX);
    if (slot->refused != 0)
        return;
    if (wanted > TIERCE__TRANSFER_PAGE_MAX)
        slot->refused = TIERCE_E_LIMIT;
    else if (TIERCE__GROW(slot->memory, slot->memory_room, wanted, PAGE_FIRST) < 0)
        slot->refused = -ENOMEM;
    else
        slot->memory_bytes += tierce__transfer_name_encode(slot->memory + slot->memory_bytes,
                                                           name->text, name->bytes);
}

static void begin_list(struct tierce__transfer_slot *slot)
{
    struct tierce__keeper *keeper = keeper_of(slot);
    struct tierce_plugin_name space = space_of(slot), prefix = name_of(slot);
    uint64_t cursor = slot->request.offset;
    int rc = keeper->ops->list(keeper, &space, &prefix, &cursor, list_one, slot);
    rc = rc == 0 ? slot->refused : rc;
    slot->bytes = slot->memory;
    slot->reply.bytes = slot->memory_bytes;
    slot->reply.cursor = rc == 0 ? cursor : 0;
    finish(slot, rc);
}

/* The lengths of the objects of these names. Returns false if the names are no list. */
static bool measure_all(struct tierce__transfer_slot *slot, uint8_t *lengths, int *status)
{
    struct tierce__keeper *keeper = keeper_of(slot);
    struct tierce_plugin_name space = space_of(slot), name;
    size_t at = 0;
    for (uint64_t i = 0; i < slot->request.offset; i++) {
        uint64_t bytes = TIERCE__TRANSFER_ABSENT;
        if (tierce__transfer_name_decode(&name.text, &name.bytes, slot->memory, slot->memory_bytes,
                                         &at) != 0)
            return false;
        int rc = keeper->ops->measure(keeper, &space, &name, &bytes);
        if (rc != 0 && rc != TIERCE_E_MISS && *status == 0)
            *status = rc;
        tierce__store_le64(lengths + 8 * i, rc == 0 ? bytes : TIERCE__TRANSFER_ABSENT);
    }
    return at == slot->memory_bytes;
}

static bool end_ask(struct tierce__transfer_slot *slot)
{
    int status = 0;
    if (slot->memory == NULL) {
        finish(slot, -ENOMEM);
        return true;
    }
    uint8_t *lengths = slot->memory + slot->memory_bytes;
    if (!measure_all(slot, lengths, &status))
        return false;
    slot->bytes = lengths;
    slot->reply.bytes = 8 * slot->request.offset;
    finish(slot, status);
    return true;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static bool may_begin(const struct tierce__transfer_slot *slot)
{
    bool is_write = slot->request.op == TIERCE__TRANSFER_OP_WRITE ||
                    slot->request.op == TIERCE__TRANSFER_OP_DROP;
    uint32_t right = is_write ? TIERCE__TRANSFER_WRITE : TIERCE__TRANSFER_READ;
    return (slot->connection->rights & right) != 0;
}

void tierce__transfer_slot_begin(struct tierce__transfer_slot *slot)
{
    bool is_allowed = may_begin(slot);
    TIERCE_DASSERT(slot->state == TIERCE__SLOT_RECEIVING);
    switch (slot->request.op) {
    case TIERCE__TRANSFER_OP_WRITE:
        begin_write(slot, is_allowed);
        return;
    case TIERCE__TRANSFER_OP_ASK: /* its names follow in any case */
        begin_ask(slot, is_allowed);
        return;
    case TIERCE__TRANSFER_OP_READ:
        if (is_allowed)
            call_keeper(slot, keeper_of(slot)->ops->find);
        break;
    case TIERCE__TRANSFER_OP_DROP:
        if (is_allowed)
            call_keeper(slot, keeper_of(slot)->ops->drop);
        break;
    case TIERCE__TRANSFER_OP_LIST:
        if (is_allowed)
            begin_list(slot);
        break;
    }
    if (!is_allowed)
        finish(slot, TIERCE_E_REFUSED);
}

bool tierce__transfer_slot_filled(struct tierce__transfer_slot *slot)
{
    struct tierce__keeper *keeper = keeper_of(slot);
    TIERCE_ASSERT(slot->state == TIERCE__SLOT_RECEIVING);
    if (slot->refused != 0) {
        finish(slot, slot->refused);
        return true;
    }
    if (slot->request.op == TIERCE__TRANSFER_OP_ASK)
        return end_ask(slot);
    TIERCE_ASSERT(slot->has_room && slot->request.op == TIERCE__TRANSFER_OP_WRITE);
    slot->has_room = false;
    begin_call(slot);
    keeper->ops->keep(keeper, &slot->room);
    end_call(slot);
    return true;
}

/* ---- output ---------------------------------------------------------------------------------- */

static uint64_t reply_bytes(const struct tierce__transfer_slot *slot)
{
    return sizeof(slot->head) + slot->reply.bytes;
}

bool tierce__transfer_slots_have_output(const struct tierce__transfer_connection *c)
{
    return c->welcome_at < c->welcome_bytes ||
           (c->count > 0 && c->slots[c->first].state == TIERCE__SLOT_READY);
}

/* Appends what is left of a reply. Returns the number of pieces. */
static int gather_reply(struct tierce__transfer_slot *slot, struct iovec pieces[2])
{
    int count = 0;
    uint64_t at = slot->sent, head = sizeof(slot->head);
    TIERCE_DASSERT(at < reply_bytes(slot));
    if (at < head)
        pieces[count++] = (struct iovec){slot->head + at, head - at};
    at = at < head ? 0 : at - head;
    if (slot->reply.bytes > 0)
        pieces[count++] =
            (struct iovec){(void *)(uintptr_t)(slot->bytes + at), (size_t)(slot->reply.bytes - at)};
    return count;
}

/* The welcome, and the replies that are ready, up to the first that is not. */
static int gather(struct tierce__transfer_connection *c, struct iovec pieces[1 + 2 * SLOTS])
{
    int count = 0;
    if (c->welcome_at < c->welcome_bytes)
        pieces[count++] =
            (struct iovec){c->welcome + c->welcome_at, c->welcome_bytes - c->welcome_at};
    for (uint32_t i = 0; i < c->count && slot_at(c, i)->state == TIERCE__SLOT_READY; i++)
        count += gather_reply(slot_at(c, i), pieces + count);
    return count;
}

/* `count` bytes of the gathered ones are sent. */
static void advance(struct tierce__transfer_connection *c, uint64_t count)
{
    uint64_t left = c->welcome_bytes - c->welcome_at, part = left < count ? left : count;
    c->welcome_at += (size_t)part;
    count -= part;
    while (count > 0) {
        struct tierce__transfer_slot *slot = slot_at(c, 0);
        TIERCE_ASSERT(slot->state == TIERCE__SLOT_READY);
        left = reply_bytes(slot) - slot->sent;
        part = left < count ? left : count;
        slot->sent += part;
        count -= part;
        if (part < left)
            return;
        release(slot);
        c->first = (c->first + 1) % SLOTS;
        c->count--;
        c->has_moved = true;
    }
}

bool tierce__transfer_slots_send(struct tierce__transfer_connection *c)
{
    struct iovec pieces[1 + 2 * SLOTS];
    size_t done;
    if (c->is_closing || !c->is_writable || !tierce__transfer_slots_have_output(c))
        return false;
    int rc = tierce__transfer_send(c, pieces, gather(c, pieces), &done);
    if (rc == 0)
        advance(c, done);
    else if (rc != -EAGAIN)
        tierce__transfer_connection_fail(c, rc);
    return rc == 0;
}
