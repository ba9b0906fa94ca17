/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookups and gets.
 *
 *     LOOKUP   names of one part in a row: registered -> GetCacheLocation -> the next row, or over
 *     GET      a remembered place, or a question for it -> GET at its storage -> over
 *
 * A question for places is one GetCacheLocation for all gets of a part that arrived together.
 * Lookups and pings end with their call, which has their deadline. A get that waits for a question
 * is answered at its own deadline.
 */
#include "base/alloc.h"
#include "core/chunk/coded.h"
#include "core/key/group.h"
#include "store/remote/fleet/fleet_requests.h"

#include <errno.h>
#include <string.h>

#define ROW_MAX TIERCE__LOOKUP_ROW /* keys of a call: its answer stays below the client's limit */

/* The beginning of all that is in fleet->jobs. */
struct fleet_job {
    struct tierce__list node;
    struct tierce__fleet *fleet;
    struct tierce__fleet_call call;
    struct tierce__fleet_wait wait;
    struct tierce__fleet_part *part;
    struct tierce__store_req *req; /* NULL: answered, or a question for places */
};

static void *make_job(struct tierce__fleet *fleet, size_t bytes)
{
    TIERCE_ASSERT(bytes >= sizeof(struct fleet_job));
    struct fleet_job *job = tierce__calloc(1, bytes);
    if (job == NULL)
        return NULL;
    job->fleet = fleet;
    tierce__list_init(&job->node);
    tierce__list_push_back(&fleet->jobs, &job->node);
    return job;
}

static void end_job(struct fleet_job *job)
{
    TIERCE_DASSERT(!tierce__list_empty(&job->node));
    tierce__list_remove(&job->node);
    tierce__proto_free(job->call.reply);
    tierce__free(job);
}

/* Answers the job's request, if that was not done before, and ends the job. */
static void answer_job(struct fleet_job *job, int status)
{
    struct tierce__fleet *fleet = job->fleet;
    struct tierce__store_req *req = job->req;
    end_job(job);
    if (req != NULL)
        tierce__fleet_answer(fleet, req, status);
}

/* ---- what answers say ------------------------------------------------------------------------ */

const char *tierce__fleet_uri_of(const Meta__CacheLocation *location, const char *spec)
{
    for (size_t i = 0; location != NULL && i < location->n_location_specs; i++) {
        const Meta__LocationSpec *it = location->location_specs[i];
        if (strcmp(it->name, spec) == 0 && it->uri[0] != '\0')
            return it->uri;
    }
    return NULL;
}

int tierce__fleet_place_check(struct tierce__fleet *fleet, struct tierce__fleet_part *part,
                              struct tierce__fleet_place *out, char *room, const char *uri)
{
    char why[TIERCE__FLEET_WHY_BYTES] = "";
    int rc = tierce__fleet_place_read(out, room, uri, fleet->stores, why);
    uint64_t most = part->object_bytes + TIERCE__CODED_GROWTH_MAX;
    if (rc == 0 && out->bytes > 0 && out->bytes <= most && out->bytes % TIERCE__CHUNK_ALIGN == 0)
        return 0;
    if (rc == TIERCE_E_MISS)
        tierce__fleet_part_outdated(part);
    if (rc == 0)
        tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager lists %llu bytes for a chunk of instance %s, %s; accepted "
                          "are multiples of 4096 up to %llu",
                          (unsigned long long)out->bytes, part->instance, part->spec,
                          (unsigned long long)most);
    else
        tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_ANSWER, "%s", why);
    return rc == -ENOMEM ? rc : TIERCE_E_MISS;
}

static void ask_for_locations(struct fleet_job *job, int64_t *keys, size_t count,
                              Meta__QueryType query)
{
    char *specs[] = {job->part->spec};
    Meta__GetCacheLocationRequest request = META__GET_CACHE_LOCATION_REQUEST__INIT;
    TIERCE_DASSERT(count > 0 && count <= ROW_MAX);
    request.instance_id = job->part->instance;
    request.query_type = query;
    request.block_keys = keys;
    request.n_block_keys = count;
    request.location_spec_names = specs;
    request.n_location_spec_names = 1;
    job->call.method = "GetCacheLocation";
    job->call.request = &request.base;
    job->call.answers = &meta__get_cache_location_response__descriptor;
    job->call.repeats = true;
    tierce__fleet_manager_start(job->fleet->manager, &job->call);
}

/* 0: the instance is not known there, so it has no blocks; it is registered again. */
static int failed_to_locate(struct fleet_job *job)
{
    int status = tierce__fleet_call_failed(job->fleet, &job->call);
    if (job->call.status == TIERCE_E_MISS || job->call.status == TIERCE_E_ARGUMENT)
        tierce__fleet_part_outdated(job->part);
    return status == TIERCE_E_MISS ? 0 : status;
}

/* ---- lookups --------------------------------------------------------------------------------- */

struct fleet_lookup {
    struct fleet_job job;
    size_t first, row; /* the row of names that is being asked for */
    int64_t keys[];    /* [row] */
};

static void ask_row(struct tierce__fleet_wait *wait, int status);

/* The names from `first` on that are of one part. The row is empty if the first is no text of a
 * key: such an object cannot exist. Errors: TIERCE_E_LIMIT, -ENOMEM. */
static int begin_row(struct fleet_lookup *lookup)
{
    struct fleet_job *job = &lookup->job;
    const struct tierce__store_req *req = job->req;
    size_t left = req->name_count - lookup->first;
    int rc = 0;
    lookup->row = 0;
    while (lookup->row < left && lookup->row < ROW_MAX) {
        struct tierce__fleet_part *part;
        rc = tierce__fleet_find_part(job->fleet, &part, &lookup->keys[lookup->row],
                                     &req->names[lookup->first + lookup->row]);
        if (rc < 0 || (lookup->row > 0 && part != job->part))
            break;
        job->part = part;
        lookup->row++;
    }
    return lookup->row > 0 || rc == TIERCE_E_ARGUMENT ? 0 : rc;
}

static void go_on(struct fleet_lookup *lookup)
{
    struct fleet_job *job = &lookup->job;
    int rc = lookup->first < job->req->name_count ? begin_row(lookup) : 0;
    bool ends = rc < 0 || lookup->first == job->req->name_count || lookup->row == 0;
    if (ends || !tierce__fleet_part_is_current(job->part))
        answer_job(job, rc);
    else
        tierce__fleet_register(job->fleet->parts, job->part, &job->wait);
}

/* The leading blocks of a row that an answer shows; they are remembered. */
static size_t take_row(struct fleet_lookup *lookup, const Meta__GetCacheLocationResponse *reply)
{
    struct fleet_job *job = &lookup->job;
    size_t count = reply->n_locations, found = 0;
    if (count > lookup->row) {
        tierce__fleet_say(job->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager answered %zu locations for %zu blocks", count, lookup->row);
        return 0;
    }
    for (; found < count; found++) {
        const char *uri = tierce__fleet_uri_of(reply->locations[found], job->part->spec);
        if (uri == NULL ||
            tierce__fleet_places_put(job->fleet, NULL, job->part, lookup->keys[found], uri) < 0)
            break;
    }
    return found;
}

static void has_located(struct tierce__fleet_call *call)
{
    struct fleet_lookup *lookup = call->arg;
    struct fleet_job *job = &lookup->job;
    bool is_current = tierce__fleet_part_hear(job->part, call);
    if (job->req != NULL && !is_current) {
        job->req->found = 0;
        answer_job(job, 0);
        return;
    }
    if (job->req == NULL || call->status < 0) {
        answer_job(job, call->status < 0 ? failed_to_locate(job) : 0);
        return;
    }
    size_t found = take_row(lookup, (const Meta__GetCacheLocationResponse *)call->reply);
    TIERCE_ASSERT(found <= lookup->row);
    tierce__proto_free(call->reply);
    call->reply = NULL;
    job->req->found += found;
    lookup->first += found;
    if (found < lookup->row)
        answer_job(job, 0);
    else
        go_on(lookup);
}

static void ask_row(struct tierce__fleet_wait *wait, int status)
{
    struct fleet_lookup *lookup = wait->arg;
    struct fleet_job *job = &lookup->job;
    if (job->req == NULL)
        end_job(job);
    else if (status < 0)
        answer_job(job, tierce__fleet_register_failed(job->fleet, job->part, status));
    else
        ask_for_locations(job, lookup->keys, lookup->row, META__QUERY_TYPE__QT_PREFIX_MATCH);
}

void tierce__fleet_lookup(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    size_t row_max = req->name_count < ROW_MAX ? req->name_count : ROW_MAX;
    struct fleet_lookup *lookup = NULL;
    req->found = 0;
    if (req->name_count > 0)
        lookup = make_job(fleet, sizeof(*lookup) + row_max * sizeof(lookup->keys[0]));
    if (lookup == NULL) {
        tierce__fleet_answer(fleet, req, req->name_count > 0 ? -ENOMEM : 0);
        return;
    }
    lookup->job.req = req;
    lookup->job.call.deadline_ns = lookup->job.wait.deadline_ns = req->deadline_ns;
    lookup->job.call.done = has_located;
    lookup->job.wait.done = ask_row;
    lookup->job.call.arg = lookup->job.wait.arg = lookup;
    go_on(lookup);
}

/* ---- gets ------------------------------------------------------------------------------------ */

struct fleet_get {
    struct tierce__list node;  /* in fleet->gets */
    struct tierce__list asked; /* in fleet->unplaced, or in a question */
    struct tierce__fleet *fleet;
    struct tierce__store_req *req;
    struct tierce__fleet_part *part;
    int64_t key;
    size_t number;                   /* in the question */
    uint64_t generation, registries; /* of the part, when the reading began */
    uint64_t serves;                 /* of the part, at the same time */
    struct tierce__fleet_spot *spot; /* held; NULL: nothing is read yet */
    struct tierce__fleet_io io;
};

static void answer_get(struct fleet_get *get, int status)
{
    struct tierce__fleet *fleet = get->fleet;
    struct tierce__store_req *req = get->req;
    tierce__list_remove(&get->node);
    tierce__list_remove(&get->asked);
    tierce__fleet_spot_release(get->spot);
    tierce__free(get);
    if (req != NULL)
        tierce__fleet_answer(fleet, req, status);
}

/* Either this sees that the thread waits, or the thread sees the count. */
static void end_early(struct tierce__fleet *fleet, struct tierce__fleet_part *part)
{
    uint32_t before = atomic_fetch_sub_explicit(&part->early, 1, memory_order_seq_cst);
    TIERCE_DASSERT(before > 0);
    if (before > 1 || !atomic_load_explicit(&fleet->awaits_early, memory_order_seq_cst))
        return;
    tierce__lock_take(&fleet->lock);
    tierce__cond_broadcast(&fleet->early_over);
    tierce__lock_drop(&fleet->lock);
}

/*
 * Answers a get whose bytes are there, on the thread of the storage's connector. All other answers
 * are given by the thread of this one. Bytes of a part that is not current any more are never
 * given: either this function sees that the part does not serve, or the thread sees the part's
 * count and waits before it tells the engine.
 */
static bool answer_early(struct tierce__fleet_io *io)
{
    struct fleet_get *get = TIERCE__CONTAINER_OF(io, struct fleet_get, io);
    struct tierce__fleet *fleet = get->fleet;
    struct tierce__fleet_part *part = get->part;
    struct tierce__store_req *req = get->req;
    if (io->req.status != 0)
        return false;
    atomic_fetch_add_explicit(&part->early, 1, memory_order_seq_cst);
    bool serves = get->serves != 0 &&
                  atomic_load_explicit(&part->serves, memory_order_seq_cst) == get->serves;
    if (serves) {
        get->req = NULL;
        req->connected = io->req.connected;
        req->repeats = io->req.repeats;
        tierce__fleet_answer(fleet, req, 0);
    }
    end_early(fleet, part);
    return serves;
}

bool tierce__fleet_answer_begin(struct tierce__connector *connector,
                                const struct tierce__store_guard *guard)
{
    struct tierce__fleet *fleet = (struct tierce__fleet *)connector;
    struct tierce__fleet_part *part = guard->of;
    atomic_fetch_add_explicit(&part->early, 1, memory_order_seq_cst);
    bool serves = guard->number != 0 &&
                  atomic_load_explicit(&part->serves, memory_order_seq_cst) == guard->number;
    if (!serves)
        end_early(fleet, part);
    return serves;
}

void tierce__fleet_answer_end(struct tierce__connector *connector,
                              const struct tierce__store_guard *guard)
{
    end_early((struct tierce__fleet *)connector, guard->of);
}

/* The storage does not have what the manager lists. A FORMAT is not reported: it is also a store's
 * word for requests that it does not understand, and would drop healthy blocks. */
static void lose(struct fleet_get *get)
{
    struct tierce__fleet *fleet = get->fleet;
    tierce__fleet_say(fleet, TIERCE__FLEET_TROUBLE_LOST,
                      "storage %.64s has no object of a chunk of instance %s, %s",
                      tierce__fleet_store_name(get->io.store), get->part->instance,
                      get->part->spec);
    tierce__fleet_places_forget(fleet->places, get->part, get->key);
    tierce__fleet_report_missing(fleet, get->part, get->key, get->spot->uri, get->io.store);
}

static void has_read(struct tierce__fleet_io *io)
{
    struct fleet_get *get = TIERCE__CONTAINER_OF(io, struct fleet_get, io);
    char why[TIERCE__FLEET_WHY_BYTES];
    int status = io->req.status;
    if (get->req == NULL) { /* it was answered */
        answer_get(get, 0);
        return;
    }
    TIERCE_DASSERT(get->spot != NULL && get->req->buf == io->req.buf);
    get->req->connected = io->req.connected;
    get->req->repeats = io->req.repeats;
    /* Close frees the storages before it has all answers. */
    if (get->fleet->is_closing) {
        answer_get(get, status);
        return;
    }
    if (status == TIERCE_E_MISS) {
        lose(get);
    } else if (status < 0 && status != TIERCE_E_CANCELLED) {
        tierce__fleet_store_why(io->store, why);
        tierce__fleet_say(get->fleet, TIERCE__FLEET_TROUBLE_STORAGE, "%s: %s",
                          why[0] != '\0' ? why : tierce__fleet_store_name(io->store),
                          tierce_strerror(status));
        if (status != TIERCE_E_DEADLINE)
            tierce__fleet_places_forget(get->fleet->places, get->part, get->key);
    }
    bool is_stale = get->generation != get->part->generation ||
                    get->registries != get->part->registries ||
                    !tierce__fleet_part_is_current(get->part);
    if (tierce__fleet_storage_failed(status) || (status == 0 && is_stale))
        status = TIERCE_E_MISS;
    answer_get(get, status);
}

static void read_at(struct fleet_get *get, struct tierce__fleet_spot *spot)
{
    TIERCE_DASSERT(get->spot == NULL);
    struct tierce__store_req *req = get->req;
    uint64_t bytes = spot->place.bytes;
    if (bytes > req->length || (bytes < req->length && !req->takes_shorter)) {
        answer_get(get, TIERCE_E_FORMAT);
        return;
    }
    req->object_bytes = bytes;
    tierce__fleet_spot_hold(spot);
    get->spot = spot;
    get->generation = get->part->generation;
    get->registries = get->part->registries;
    get->serves = atomic_load_explicit(&get->part->serves, memory_order_relaxed);
    req->guard = (struct tierce__store_guard){.of = get->part, .number = get->serves};
    get->io.early = answer_early;
    get->io.done = has_read;
    get->io.req = (struct tierce__store_req){.op = TIERCE__STORE_GET,
                                             .urgency = req->urgency,
                                             .deadline_ns = req->deadline_ns,
                                             .buf = req->buf,
                                             .length = bytes};
    tierce__fleet_io_begin(get->fleet, &get->io, &spot->place);
}

void tierce__fleet_get(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    struct fleet_get *get = tierce__calloc(1, sizeof(*get));
    struct tierce__fleet_part *part = NULL;
    int64_t key = 0;
    int rc = get != NULL ? tierce__fleet_find_part(fleet, &part, &key, &req->names[0]) : -ENOMEM;
    if (rc < 0) {
        tierce__free(get);
        tierce__fleet_answer(fleet, req, rc == TIERCE_E_ARGUMENT ? TIERCE_E_MISS : rc);
        return;
    }
    get->fleet = fleet;
    get->req = req;
    get->part = part;
    get->key = key;
    tierce__list_init(&get->node);
    tierce__list_init(&get->asked);
    tierce__list_push_back(&fleet->gets, &get->node);
    if (!tierce__fleet_part_is_current(part)) {
        answer_get(get, TIERCE_E_MISS);
        return;
    }
    struct tierce__fleet_spot *spot = tierce__fleet_places_find(fleet->places, part, key);
    if (spot != NULL) {
        read_at(get, spot);
        return;
    }
    tierce__list_push_back(&fleet->unplaced, &get->asked);
    tierce__fleet_look_by(fleet, req->deadline_ns);
}

/* ---- questions for places -------------------------------------------------------------------- */

struct fleet_question {
    struct fleet_job job;
    struct tierce__list gets; /* that were not answered meanwhile */
    size_t count;
    int64_t keys[];
};

static struct fleet_get *get_of(struct tierce__list *asked)
{
    return TIERCE__CONTAINER_OF(asked, struct fleet_get, asked);
}

static void end_question(struct fleet_question *question, int status)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &question->gets)
        answer_get(get_of(it), status);
    end_job(&question->job);
}

static void has_found_places(struct tierce__fleet_call *call)
{
    struct fleet_question *question = call->arg;
    struct fleet_job *job = &question->job;
    if (!tierce__fleet_part_hear(job->part, call)) {
        end_question(question, TIERCE_E_MISS);
        return;
    }
    if (call->status < 0) {
        int status = failed_to_locate(job);
        end_question(question, status == 0 ? TIERCE_E_MISS : status);
        return;
    }
    const Meta__GetCacheLocationResponse *reply =
        (const Meta__GetCacheLocationResponse *)call->reply;
    bool fits = reply->n_locations == question->count;
    if (!fits)
        tierce__fleet_say(job->fleet, TIERCE__FLEET_TROUBLE_ANSWER,
                          "the manager answered %zu locations for %zu blocks", reply->n_locations,
                          question->count);
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &question->gets) {
        struct fleet_get *get = get_of(it);
        TIERCE_ASSERT(get->number < question->count && get->part == job->part);
        const char *uri =
            fits ? tierce__fleet_uri_of(reply->locations[get->number], job->part->spec) : NULL;
        struct tierce__fleet_spot *spot = NULL;
        int rc = uri != NULL ? tierce__fleet_places_put(job->fleet, &spot, job->part, get->key, uri)
                             : TIERCE_E_MISS;
        tierce__list_remove(it);
        if (rc == 0)
            read_at(get, spot);
        else
            answer_get(get, rc);
    }
    end_job(job);
}

static void send_question(struct tierce__fleet_wait *wait, int status)
{
    struct fleet_question *question = wait->arg;
    struct fleet_job *job = &question->job;
    if (tierce__list_empty(&question->gets))
        end_job(job);
    else if (status < 0)
        end_question(question, tierce__fleet_register_failed(job->fleet, job->part, status));
    else
        ask_for_locations(job, question->keys, question->count, META__QUERY_TYPE__QT_BATCH_GET);
}

/* Moves the gets of the first one's part from `unplaced` to a question. */
static struct fleet_question *make_question(struct tierce__fleet *fleet)
{
    struct tierce__fleet_part *part = get_of(fleet->unplaced.next)->part;
    size_t count = 0;
    TIERCE__LIST_FOR_EACH (it, &fleet->unplaced)
        count += get_of(it)->part == part;
    count = count < ROW_MAX ? count : ROW_MAX;
    struct fleet_question *question =
        make_job(fleet, sizeof(*question) + count * sizeof(question->keys[0]));
    if (question == NULL)
        return NULL;
    tierce__list_init(&question->gets);
    question->job.part = part;
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fleet->unplaced) {
        struct fleet_get *get = get_of(it);
        if (get->part != part || question->count == count)
            continue;
        tierce__list_remove(it);
        tierce__list_push_back(&question->gets, it);
        get->number = question->count;
        question->keys[question->count++] = get->key;
        if (get->req->deadline_ns > question->job.call.deadline_ns)
            question->job.call.deadline_ns = get->req->deadline_ns;
    }
    return question;
}

void tierce__fleet_reads_ask(struct tierce__fleet *fleet)
{
    while (!tierce__list_empty(&fleet->unplaced)) {
        struct fleet_question *question = make_question(fleet);
        if (question == NULL) {
            answer_get(get_of(fleet->unplaced.next), -ENOMEM);
            continue;
        }
        TIERCE_DASSERT(question->count > 0);
        struct fleet_job *job = &question->job;
        job->wait.deadline_ns = job->call.deadline_ns;
        job->call.done = has_found_places;
        job->wait.done = send_question;
        job->call.arg = job->wait.arg = question;
        tierce__fleet_register(fleet->parts, job->part, &job->wait);
    }
}

void tierce__fleet_reads_expire(struct tierce__fleet *fleet, uint64_t now_ns)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fleet->gets) {
        struct fleet_get *get = TIERCE__CONTAINER_OF(it, struct fleet_get, node);
        if (get->spot != NULL) /* its connector answers by the deadline */
            continue;
        if (get->req->deadline_ns <= now_ns)
            answer_get(get, TIERCE_E_DEADLINE);
        else
            tierce__fleet_look_by(fleet, get->req->deadline_ns);
    }
}

/* ---- pings ----------------------------------------------------------------------------------- */

static void has_pinged(struct tierce__fleet_call *call)
{
    struct fleet_job *job = call->arg;
    int status = call->status;
    if (status < 0 && status != TIERCE_E_MISS) /* an instance that is not there is an answer too */
        status = tierce__fleet_call_failed(job->fleet, call);
    answer_job(job, status == TIERCE_E_MISS ? 0 : status);
}

void tierce__fleet_ping(struct tierce__fleet *fleet, struct tierce__store_req *req)
{
    struct fleet_job *job = make_job(fleet, sizeof(*job));
    if (job == NULL) {
        tierce__fleet_answer(fleet, req, -ENOMEM);
        return;
    }
    char other[] = "tierce";
    Meta__GetInstanceInfoRequest request = META__GET_INSTANCE_INFO_REQUEST__INIT;
    request.instance_id = fleet->instance != NULL ? fleet->instance : other;
    job->req = req;
    job->call.method = "GetInstanceInfo";
    job->call.request = &request.base;
    job->call.answers = &meta__get_instance_info_response__descriptor;
    job->call.deadline_ns = req->deadline_ns;
    job->call.repeats = true;
    job->call.done = has_pinged;
    job->call.arg = job;
    tierce__fleet_manager_start(fleet->manager, &job->call);
}

/* ---- the end --------------------------------------------------------------------------------- */

void tierce__fleet_reads_cancel(struct tierce__fleet *fleet)
{
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fleet->gets) {
        struct fleet_get *get = TIERCE__CONTAINER_OF(it, struct fleet_get, node);
        if (get->spot == NULL)
            answer_get(get, TIERCE_E_CANCELLED);
    }
    TIERCE__LIST_FOR_EACH (job_node, &fleet->jobs) {
        struct fleet_job *job = TIERCE__CONTAINER_OF(job_node, struct fleet_job, node);
        struct tierce__store_req *req = job->req;
        job->req = NULL;
        if (req != NULL)
            tierce__fleet_answer(fleet, req, TIERCE_E_CANCELLED);
    }
}

void tierce__fleet_reads_free(struct tierce__fleet *fleet)
{
    TIERCE_ASSERT(tierce__list_empty(&fleet->gets));
    TIERCE__LIST_FOR_EACH_SAFE (it, after, &fleet->jobs) {
        struct fleet_job *job = TIERCE__CONTAINER_OF(it, struct fleet_job, node);
        TIERCE_DASSERT(job->req == NULL);
        tierce__list_remove(it);
        tierce__free(job); /* the manager freed a reply that was not delivered */
    }
}
