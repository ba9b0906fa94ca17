/* SPDX-License-Identifier: Apache-2.0 */
#include "manager/lmcache/controller_message.h"

#include "base/assert.h"
#include "base/json/json_value.h"
#include "proto/msgpack/msgpack_write.h"

#include <stdio.h>
#include <string.h>

/* ---- the fields and messages ----------------------------------------------------------------- */

enum form { FORM_TEXT, FORM_TEXT_OR_NIL, FORM_NUMBER, FORM_RESULT, FORM_OPERATIONS, FORM_KEYS };

enum field {
    FIELD_INSTANCE,
    FIELD_WORKER,
    FIELD_IP,
    FIELD_PORT,
    FIELD_PEER,
    FIELD_LOCATION,
    FIELD_OPERATIONS,
    FIELD_SYNC,
    FIELD_TOTAL,
    FIELD_BATCHES,
    FIELD_BATCH,
    FIELD_KEYS,
    FIELD_ACTUAL,
    FIELD_HASHES,
    FIELD_TOKENS,
    FIELD_CODE,
    FIELD_ERROR,
    FIELDS,
};

/* Texts: bytes with the NUL. Numbers: from min to max. */
struct field_row {
    const char *name;
    enum form form;
    size_t offset;
    uint64_t min, max;
};

#define AT(member) offsetof(struct tierce__controller_message, member)

static const struct field_row fields[FIELDS] = {
    [FIELD_INSTANCE] = {"instance_id", FORM_TEXT, AT(instance), 1,
                        TIERCE__CONTROLLER_INSTANCE_BYTES},
    [FIELD_WORKER] = {"worker_id", FORM_NUMBER, AT(worker), 0, TIERCE__CONTROLLER_WORKER_MAX},
    [FIELD_IP] = {"ip", FORM_TEXT, AT(host), 1, TIERCE__CONTROLLER_HOST_BYTES},
    [FIELD_PORT] = {"port", FORM_NUMBER, AT(port), 1, 65535},
    [FIELD_PEER] = {"peer_init_url", FORM_TEXT_OR_NIL, AT(peer), 0, TIERCE__CONTROLLER_PEER_BYTES},
    [FIELD_LOCATION] = {"location", FORM_TEXT, AT(location), 1, TIERCE__CONTROLLER_LOCATION_BYTES},
    [FIELD_OPERATIONS] = {"operations", FORM_OPERATIONS, AT(operations), 0, 0},
    [FIELD_SYNC] = {"sync_id", FORM_TEXT, AT(sync), 1, TIERCE__CONTROLLER_SYNC_BYTES},
    [FIELD_TOTAL] = {"total_keys", FORM_NUMBER, AT(total_keys), 0, UINT32_MAX},
    [FIELD_BATCHES] = {"batch_count", FORM_NUMBER, AT(batch_count), 0,
                       TIERCE__CONTROLLER_BATCHES_MAX},
    [FIELD_BATCH] = {"batch_id", FORM_NUMBER, AT(batch), 0, TIERCE__CONTROLLER_BATCHES_MAX - 1},
    [FIELD_KEYS] = {"keys", FORM_KEYS, AT(keys), 0, 0},
    [FIELD_ACTUAL] = {"actual_total_keys", FORM_NUMBER, AT(total_keys), 0, UINT32_MAX},
    [FIELD_HASHES] = {"hashes", FORM_KEYS, AT(hashes), 0, 0},
    [FIELD_TOKENS] = {"num_tokens", FORM_RESULT, AT(result), 0, 0},
    [FIELD_CODE] = {"error_code", FORM_RESULT, AT(result), 0, 0},
    [FIELD_ERROR] = {"error", FORM_TEXT, AT(error), 0, TIERCE__CONTROLLER_WHY_BYTES},
};

#define HAS(field)   (1u << (field))
#define OF_WORKER    (HAS(FIELD_INSTANCE) | HAS(FIELD_WORKER))
#define HAS_PEER     HAS(FIELD_PEER)
#define OF_ADDRESS   (OF_WORKER | HAS(FIELD_IP) | HAS(FIELD_PORT))
#define OF_SYNC      (OF_WORKER | HAS(FIELD_SYNC))
#define OF_SYNC_KEYS (OF_SYNC | HAS(FIELD_LOCATION))

static const struct type_row {
    const char *name;
    enum tierce__controller_type type;
    uint32_t required;
} types[] = {
    {"BatchedKVOperationMsg", TIERCE__CONTROLLER_OPERATIONS,
     OF_WORKER | HAS(FIELD_LOCATION) | HAS(FIELD_OPERATIONS)},
    {"BatchedP2PLookupMsg", TIERCE__CONTROLLER_LOOKUP, OF_WORKER | HAS(FIELD_HASHES)},
    {"HeartbeatMsg", TIERCE__CONTROLLER_HEARTBEAT, OF_ADDRESS | HAS_PEER},
    {"RegisterMsg", TIERCE__CONTROLLER_REGISTER, OF_ADDRESS | HAS_PEER},
    {"DeRegisterMsg", TIERCE__CONTROLLER_DEREGISTER, OF_ADDRESS},
    {"FullSyncStartMsg", TIERCE__CONTROLLER_SYNC_START,
     OF_SYNC_KEYS | HAS(FIELD_TOTAL) | HAS(FIELD_BATCHES)},
    {"FullSyncBatchMsg", TIERCE__CONTROLLER_SYNC_BATCH,
     OF_SYNC_KEYS | HAS(FIELD_BATCH) | HAS(FIELD_KEYS)},
    {"FullSyncEndMsg", TIERCE__CONTROLLER_SYNC_END, OF_SYNC_KEYS | HAS(FIELD_ACTUAL)},
    {"FullSyncStatusMsg", TIERCE__CONTROLLER_SYNC_STATUS, OF_SYNC},
    {"KVAdmitMsg", TIERCE__CONTROLLER_IGNORED, 0},
    {"KVEvictMsg", TIERCE__CONTROLLER_IGNORED, 0},
    {"ClearWorkerRetMsg", TIERCE__CONTROLLER_DONE, HAS(FIELD_TOKENS)},
    {"PinWorkerRetMsg", TIERCE__CONTROLLER_DONE, HAS(FIELD_TOKENS)},
    {"CompressWorkerRetMsg", TIERCE__CONTROLLER_DONE, HAS(FIELD_TOKENS)},
    {"DecompressWorkerRetMsg", TIERCE__CONTROLLER_DONE, HAS(FIELD_TOKENS)},
    {"MoveWorkerRetMsg", TIERCE__CONTROLLER_DONE, HAS(FIELD_TOKENS)},
    {"HealthWorkerRetMsg", TIERCE__CONTROLLER_DONE, HAS(FIELD_CODE)},
    {"ErrorMsg", TIERCE__CONTROLLER_FAILED, HAS(FIELD_ERROR)},
};

/* ---- items ----------------------------------------------------------------------------------- */

/* The message was checked as a whole, so no item ends early. */
static struct tierce__msgpack_item take(struct tierce__msgpack *m)
{
    struct tierce__msgpack_item item = {.type = TIERCE__MSGPACK_NIL};
    (void)tierce__msgpack_next(m, &item);
    return item;
}

/* The next item; everything in it is skipped. */
static struct tierce__msgpack_item take_whole(struct tierce__msgpack *m)
{
    struct tierce__msgpack start = *m;
    (void)tierce__msgpack_skip(m);
    return take(&start);
}

static bool is_word(const struct tierce__msgpack_item *item, const char *word)
{
    return item->type == TIERCE__MSGPACK_TEXT && item->count == strlen(word) &&
           memcmp(item->bytes, word, item->count) == 0;
}

static bool take_key(struct tierce__msgpack *m, struct tierce__lmcache_int *key)
{
    struct tierce__msgpack_item item = take_whole(m);
    bool negative = item.type == TIERCE__MSGPACK_INT;
    *key = (struct tierce__lmcache_int){negative ? 0 - item.number : item.number, negative};
    return negative || item.type == TIERCE__MSGPACK_UINT;
}

static bool take_op(struct tierce__msgpack *m, struct tierce__controller_op *op)
{
    bool has_type = false, has_key = false, has_number = false;
    struct tierce__msgpack inner = *m;
    (void)tierce__msgpack_skip(m);
    struct tierce__msgpack_item map = take(&inner);
    for (uint32_t i = 0; map.type == TIERCE__MSGPACK_MAP && i < map.count; i++) {
        struct tierce__msgpack_item name = take_whole(&inner), value;
        if (is_word(&name, "key")) {
            has_key = take_key(&inner, &op->key);
            continue;
        }
        value = take_whole(&inner);
        if (is_word(&name, "op_type")) {
            op->admitted = is_word(&value, "admit");
            has_type = op->admitted || is_word(&value, "evict");
        } else if (is_word(&name, "seq_num")) {
            op->number = value.number;
            has_number = value.type == TIERCE__MSGPACK_UINT;
        }
    }
    return has_type && has_key && has_number;
}

bool tierce__controller_next_op(struct tierce__controller_items *operations,
                                struct tierce__controller_op *op)
{
    if (operations->count == 0)
        return false;
    operations->count--;
    bool is_valid = take_op(&operations->at, op);
    TIERCE_DASSERT(is_valid);
    return is_valid;
}

bool tierce__controller_next_key(struct tierce__controller_items *keys,
                                 struct tierce__lmcache_int *key)
{
    if (keys->count == 0)
        return false;
    keys->count--;
    bool is_valid = take_key(&keys->at, key);
    TIERCE_DASSERT(is_valid);
    return is_valid;
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* A byte of an address or host name. */
static bool is_of_host(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
           (byte >= 'A' && byte <= 'Z') || byte == '.' || byte == '-' || byte == ':' ||
           byte == '_' || byte == '%';
}

/* A text that may stand in a log line and in a name. */
static bool read_text(char *out, const struct field_row *row,
                      const struct tierce__msgpack_item *item)
{
    if (item->type == TIERCE__MSGPACK_NIL)
        return row->form == FORM_TEXT_OR_NIL;
    bool is_cut = row->min == 0 && row->form == FORM_TEXT; /* an error text of any length */
    uint32_t count = item->count;
    if (item->type != TIERCE__MSGPACK_TEXT || count < row->min || (count >= row->max && !is_cut))
        return false;
    if (count >= row->max)
        count = (uint32_t)row->max - 1;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t byte = item->bytes[i];
        bool is_special = byte < 0x20 || byte == 0x7f || byte == '"' || byte == '\\' ||
                          (byte == '/' && row == &fields[FIELD_LOCATION]) ||
                          (row == &fields[FIELD_IP] && !is_of_host(byte));
        if (is_special && !is_cut)
            return false;
        out[i] = is_special ? ' ' : (char)byte;
    }
    out[count] = '\0';
    return true;
}

static bool read_items(struct tierce__controller_items *out, enum form form,
                       struct tierce__msgpack m)
{
    struct tierce__controller_op op;
    struct tierce__msgpack_item array = take(&m);
    if (array.type != TIERCE__MSGPACK_ARRAY || array.count > TIERCE__CONTROLLER_ITEMS_MAX)
        return false;
    *out = (struct tierce__controller_items){.at = m, .count = array.count};
    for (uint32_t i = 0; i < array.count; i++) {
        if (form == FORM_KEYS ? !take_key(&m, &op.key) : !take_op(&m, &op))
            return false;
    }
    return true;
}

/* Whether the value is valid. */
static bool read_value(struct tierce__controller_message *out, const struct field_row *row,
                       struct tierce__msgpack m)
{
    void *at = (char *)out + row->offset;
    if (row->form == FORM_OPERATIONS || row->form == FORM_KEYS)
        return read_items(at, row->form, m);
    struct tierce__msgpack_item item = take(&m);
    if (row->form == FORM_TEXT || row->form == FORM_TEXT_OR_NIL)
        return read_text(at, row, &item);
    bool is_unsigned = item.type == TIERCE__MSGPACK_UINT;
    if (row->form == FORM_RESULT) {
        *(int64_t *)at = (int64_t)item.number;
        return item.type == TIERCE__MSGPACK_INT || (is_unsigned && item.number <= INT64_MAX);
    }
    *(uint64_t *)at = item.number;
    return is_unsigned && item.number >= row->min && item.number <= row->max;
}

static bool say_wrong(char why[TIERCE__CONTROLLER_WHY_BYTES], const char *type,
                      const struct field_row *row)
{
    char accepted[96];
    switch (row->form) {
    case FORM_TEXT:
    case FORM_TEXT_OR_NIL:
        snprintf(accepted, sizeof(accepted),
                 "a text of %u to %u bytes without quotes, backslashes%s and control characters",
                 (unsigned)row->min, (unsigned)row->max - 1,
                 row == &fields[FIELD_LOCATION] ? ", slashes" : "");
        break;
    case FORM_NUMBER:
        snprintf(accepted, sizeof(accepted), "a whole number from %llu to %llu",
                 (unsigned long long)row->min, (unsigned long long)row->max);
        break;
    case FORM_RESULT:
        snprintf(accepted, sizeof(accepted), "a whole number of 64 bits");
        break;
    case FORM_OPERATIONS:
        snprintf(accepted, sizeof(accepted), "at most %u maps of op_type, key and seq_num",
                 TIERCE__CONTROLLER_ITEMS_MAX);
        break;
    case FORM_KEYS:
        snprintf(accepted, sizeof(accepted), "at most %u whole numbers",
                 TIERCE__CONTROLLER_ITEMS_MAX);
        break;
    }
    snprintf(why, TIERCE__CONTROLLER_WHY_BYTES,
             "%s: the field %s is missing or invalid; accepted is %s", type, row->name, accepted);
    return false;
}

/* ---- a message ------------------------------------------------------------------------------- */

static const struct type_row *find_type(const struct tierce__msgpack_item *type)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if (is_word(type, types[i].name))
            return &types[i];
    }
    return NULL;
}

/* The fields of the map that are valid, as bits. Each field counts once, the first time. */
static uint32_t read_fields(struct tierce__controller_message *out, struct tierce__msgpack m,
                            uint32_t count, struct tierce__msgpack_item *type)
{
    uint32_t seen = 0, valid = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct tierce__msgpack_item name = take_whole(&m);
        struct tierce__msgpack value = m;
        (void)tierce__msgpack_skip(&m);
        if (is_word(&name, "type")) {
            *type = take(&value);
            continue;
        }
        for (uint32_t f = 0; f < FIELDS; f++) {
            if ((seen & HAS(f)) != 0 || !is_word(&name, fields[f].name))
                continue;
            seen |= HAS(f);
            valid |= read_value(out, &fields[f], value) ? HAS(f) : 0;
            break;
        }
    }
    return valid;
}

static bool read_map(struct tierce__controller_message *out, struct tierce__msgpack m,
                     char why[TIERCE__CONTROLLER_WHY_BYTES])
{
    struct tierce__msgpack whole = m;
    struct tierce__msgpack_item type = {.type = TIERCE__MSGPACK_NIL};
    bool is_whole = tierce__msgpack_skip(&whole) == TIERCE__MSGPACK_OK && whole.at == whole.end;
    struct tierce__msgpack_item map = take(&m);
    if (!is_whole || map.type != TIERCE__MSGPACK_MAP) {
        snprintf(why, TIERCE__CONTROLLER_WHY_BYTES,
                 "the frame is invalid; accepted is one map in MessagePack or JSON");
        return false;
    }
    uint32_t valid = read_fields(out, m, map.count, &type);
    const struct type_row *row = find_type(&type);
    if (row == NULL) {
        snprintf(why, TIERCE__CONTROLLER_WHY_BYTES,
                 "the type of the message is missing or unknown; accepted are RegisterMsg, "
                 "HeartbeatMsg and the other messages of LMCache's workers");
        return false;
    }
    for (uint32_t f = 0; f < FIELDS; f++) {
        if ((row->required & ~valid & HAS(f)) != 0)
            return say_wrong(why, row->name, &fields[f]);
    }
    out->type = row->type;
    return true;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool convert_text(struct tierce__line *out, struct tierce__text raw,
                         struct tierce__json *json)
{
    size_t place = tierce__msgpack_begin_text(out), at = out->bytes, bytes = 0;
    tierce__line_put_bytes(out, raw.at, raw.length);
    if (out->failed)
        return false;
    /* Decoding makes a text no longer. */
    if (!tierce__json_unescape(json, out->text + at, &bytes, raw))
        return false;
    out->bytes = at + bytes;
    tierce__msgpack_end_text(out, place);
    return true;
}

static bool convert_number(struct tierce__line *out, struct tierce__json *json)
{
    uint64_t number;
    bool is_negative = *json->at == '-';
    if (!tierce__json_id(json, &number))
        return false;
    if (is_negative)
        tierce__msgpack_put_int(out, (int64_t)number);
    else
        tierce__msgpack_put_uint(out, number);
    return true;
}

/* Appends the next value of a text that was checked as a whole, and so is not nested too deeply.
 * False: a number is not whole or has more than 64 bits, or there is no memory. */
static bool convert(struct tierce__line *out, struct tierce__json *json)
{
    struct tierce__text text;
    size_t place;
    uint32_t count = 0;
    bool is_good = true, has_escapes;
    switch (tierce__json_kind(json)) {
    case '{':
        place = tierce__msgpack_begin_map(out);
        is_good = tierce__json_object(json);
        for (; is_good && tierce__json_member(json, &text); count++) {
            size_t name = tierce__msgpack_begin_text(out);
            tierce__line_put_bytes(out, text.at, text.length);
            tierce__msgpack_end_text(out, name);
            is_good = convert(out, json);
        }
        tierce__msgpack_end_map(out, place, count);
        return is_good;
    case '[':
        place = tierce__msgpack_begin_array(out);
        is_good = tierce__json_array(json);
        for (; is_good && tierce__json_element(json); count++)
            is_good = convert(out, json);
        tierce__msgpack_end_array(out, place, count);
        return is_good;
    case '"':
        return tierce__json_quoted(json, &text, &has_escapes) && convert_text(out, text, json);
    case '0':
        return convert_number(out, json);
    default:
        tierce__msgpack_put_nil(out); /* no field is a truth value */
        return tierce__json_skip(json);
    }
}

static bool read_json(struct tierce__controller_message *out, struct tierce__line *scratch,
                      const void *bytes, size_t count, char why[TIERCE__CONTROLLER_WHY_BYTES])
{
    struct tierce__json_doc doc = {0};
    const char *fault = "no memory";
    scratch->bytes = 0;
    int rc = tierce__json_parse(&doc, bytes, count, &fault);
    bool is_good = rc == 0;
    if (is_good) {
        struct tierce__json json;
        tierce__json_start(&json, doc.value.at, doc.value.length);
        is_good = convert(scratch, &json) && !scratch->failed;
        fault = scratch->failed ? "no memory" : json.why != NULL ? json.why : "a number is invalid";
    }
    tierce__json_doc_clear(&doc);
    if (!is_good) {
        snprintf(why, TIERCE__CONTROLLER_WHY_BYTES,
                 "the frame begins as JSON and is invalid: %.120s; accepted is one object whose "
                 "numbers are whole and have at most 64 bits",
                 fault);
        return false;
    }
    const uint8_t *at = (const uint8_t *)scratch->text;
    return read_map(out, (struct tierce__msgpack){at, at + scratch->bytes}, why);
}

bool tierce__controller_read(struct tierce__controller_message *out, struct tierce__line *scratch,
                             const void *bytes, size_t count,
                             char why[TIERCE__CONTROLLER_WHY_BYTES])
{
    const uint8_t *at = bytes;
    *out = (struct tierce__controller_message){0};
    if (count > 0 && *at == '{')
        return read_json(out, scratch, bytes, count, why);
    return read_map(out, (struct tierce__msgpack){at, at + count}, why);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void begin_answer(struct tierce__line *line, const char *type, unsigned members)
{
    tierce__msgpack_put_map(line, 1 + members);
    tierce__msgpack_put_pair(line, "type", type);
}

static void put_bool(struct tierce__line *line, const char *name, bool value)
{
    tierce__msgpack_put_text(line, name);
    tierce__msgpack_put_bool(line, value);
}

void tierce__controller_put_error(struct tierce__line *line, const char *why)
{
    begin_answer(line, "ErrorMsg", 1);
    tierce__msgpack_put_pair(line, "error", why);
}

void tierce__controller_put_registered(struct tierce__line *line, const char *url)
{
    begin_answer(line, "RegisterRetMsg", 1);
    tierce__msgpack_put_text(line, "extra_config");
    tierce__msgpack_put_map(line, url[0] != '\0' ? 1 : 0);
    if (url[0] != '\0')
        tierce__msgpack_put_pair(line, "heartbeat_url", url);
}

void tierce__controller_put_beat(struct tierce__line *line, const char *reason)
{
    begin_answer(line, "HeartbeatRetMsg", 1);
    tierce__msgpack_put_text(line, "commands");
    tierce__msgpack_put_array(line, reason != NULL ? 1 : 0);
    if (reason == NULL)
        return;
    tierce__msgpack_put_map(line, 3);
    tierce__msgpack_put_pair(line, "command_type", "full_sync");
    tierce__msgpack_put_pair(line, "reason", reason);
    tierce__msgpack_put_text(line, "args");
    tierce__msgpack_put_nil(line);
}

void tierce__controller_put_found(struct tierce__line *line, const char *instance,
                                  const char *location, uint64_t chunks, const char *peer)
{
    begin_answer(line, "BatchedP2PLookupRetMsg", 1);
    tierce__msgpack_put_text(line, "layout_info");
    tierce__msgpack_put_array(line, 1);
    tierce__msgpack_put_array(line, 4);
    tierce__msgpack_put_text(line, instance);
    tierce__msgpack_put_text(line, location);
    tierce__msgpack_put_uint(line, chunks);
    tierce__msgpack_put_text(line, peer);
}

void tierce__controller_put_sync_start(struct tierce__line *line, const char *sync, const char *why)
{
    begin_answer(line, "FullSyncStartRetMsg", 3);
    tierce__msgpack_put_pair(line, "sync_id", sync);
    put_bool(line, "accepted", why == NULL);
    tierce__msgpack_put_text(line, "error_msg");
    if (why != NULL)
        tierce__msgpack_put_text(line, why);
    else
        tierce__msgpack_put_nil(line);
}

void tierce__controller_put_progress(struct tierce__line *line, const char *sync,
                                     const struct tierce__controller_progress *progress)
{
    begin_answer(line, "FullSyncStatusRetMsg", 5);
    tierce__msgpack_put_pair(line, "sync_id", sync);
    put_bool(line, "is_complete", progress->is_complete);
    tierce__msgpack_put_text(line, "global_progress");
    tierce__msgpack_put_float(line, progress->global);
    put_bool(line, "can_exit_freeze", progress->may_continue);
    tierce__msgpack_put_text(line, "missing_batches");
    size_t place = tierce__msgpack_begin_array(line);
    for (uint32_t i = 0; i < progress->missing_count; i++)
        tierce__msgpack_put_uint(line, progress->missing[i]);
    tierce__msgpack_end_array(line, place, progress->missing_count);
}
