/* SPDX-License-Identifier: Apache-2.0 */
#include "store/remote/nixl/nixl_agents.h"
#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log/log_repeat.h"
#include "base/threads/lock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define AGENT_NAME    "tierce"
#define POLLS_AT_ONCE 64
#define PAUSE_NS_MIN  50000u
#define PAUSE_NS_MAX  1000000u
#define PAUSE_SHARE   8u /* of the time since the transfer began */

struct nixl_agent {
    struct tierce__list node; /* of the idle ones */
    void *agent, *backend;
    void *options; /* names the backend */
    void *memory;  /* a list of one: the registered memory */
    bool is_registered;
};

struct tierce__nixl_agents {
    struct tierce__nixl_api api;
    const char *plugin;
    const struct tierce__nixl_param *params;
    size_t param_count;
    uint8_t *memory;
    uint64_t memory_bytes;
    bool is_shared;
    struct nixl_agent *shared;     /* NULL: an agent for each transfer */
    _Atomic uint64_t object_count; /* objects that were ever registered; relaxed: a number */
    struct tierce__lock lock;
    struct tierce__list idle; /* under the lock */
    uint32_t busy;            /* under the lock */
};

static bool ok(int status)
{
    return status == TIERCE__NIXL_DONE;
}

/* ---- an agent -------------------------------------------------------------------------------- */

static void destroy_agent(const struct tierce__nixl_api *api, struct nixl_agent *agent)
{
    int ignored = 0; /* there is nothing left to do about them */
    if (agent->is_registered)
        ignored = api->deregister_mem(agent->agent, agent->memory, agent->options);
    if (agent->memory != NULL)
        ignored = api->destroy_reg_dlist(agent->memory);
    if (agent->options != NULL)
        ignored = api->destroy_opt_args(agent->options);
    if (agent->backend != NULL)
        ignored = api->destroy_backend(agent->backend);
    if (agent->agent != NULL) /* waits for what the plug-in's queue still has */
        ignored = api->destroy_agent(agent->agent);
    (void)ignored;
    tierce__free(agent);
}

static int make_backend(const struct tierce__nixl_agents *agents, struct nixl_agent *agent)
{
    const struct tierce__nixl_api *api = &agents->api;
    void *params = NULL;
    int status = api->create_params(&params);
    if (!ok(status))
        return status;
    for (size_t i = 0; i < agents->param_count && ok(status); i++)
        status = api->params_add(params, agents->params[i].name, agents->params[i].value);
    if (ok(status))
        status = api->create_backend(agent->agent, agents->plugin, params, &agent->backend);
    int ignored = api->destroy_params(params);
    (void)ignored;
    return status;
}

static int register_memory(struct tierce__nixl_agents *agents, struct nixl_agent *agent)
{
    const struct tierce__nixl_api *api = &agents->api;
    int status = api->create_reg_dlist(TIERCE__NIXL_DRAM, &agent->memory);
    if (ok(status))
        status = api->reg_dlist_add_desc(agent->memory, (uintptr_t)agents->memory,
                                         agents->memory_bytes, 0, "", 0);
    if (ok(status))
        status = api->register_mem(agent->agent, agent->memory, agent->options);
    agent->is_registered = ok(status);
    return status;
}

/* `what` names the step that failed. Errors: -ENOMEM, -EIO. */
static int create_agent(struct nixl_agent **out, struct tierce__nixl_agents *agents,
                        const char **what)
{
    const struct tierce__nixl_agent_config config = {
        .thread_sync = agents->is_shared ? TIERCE__NIXL_LOCKED : TIERCE__NIXL_UNLOCKED};
    const struct tierce__nixl_api *api = &agents->api;
    struct nixl_agent *agent = tierce__calloc(1, sizeof(*agent));
    if (agent == NULL)
        return -ENOMEM;
    *what = "no agent can be created";
    int status = api->create_configured_agent(AGENT_NAME, &config, &agent->agent);
    if (ok(status)) {
        *what = "the plug-in is missing or cannot be used on this machine (NIXL_PLUGIN_DIR)";
        status = make_backend(agents, agent);
    }
    if (ok(status)) {
        *what = "the memory cannot be registered";
        status = api->create_opt_args(&agent->options);
    }
    if (ok(status))
        status = api->opt_args_add_backend(agent->options, agent->backend);
    if (ok(status))
        status = register_memory(agents, agent);
    if (ok(status)) {
        *out = agent;
        return 0;
    }
    destroy_agent(api, agent);
    return -EIO;
}

static struct nixl_agent *pop_idle(struct tierce__nixl_agents *agents)
{
    if (tierce__list_empty(&agents->idle))
        return NULL;
    struct nixl_agent *agent = TIERCE__CONTAINER_OF(agents->idle.next, struct nixl_agent, node);
    tierce__list_remove(&agent->node);
    return agent;
}

static int take_agent(struct nixl_agent **out, struct tierce__nixl_agents *agents)
{
    const char *what = "";
    tierce__lock_take(&agents->lock);
    *out = agents->is_shared ? agents->shared : pop_idle(agents);
    agents->busy++;
    tierce__lock_drop(&agents->lock);
    return *out != NULL ? 0 : create_agent(out, agents, &what);
}

/* An agent for one transfer is not used again if that failed: its queue may still have it. */
static void give_agent(struct tierce__nixl_agents *agents, struct nixl_agent *agent, bool failed)
{
    bool is_own = agent != NULL && agent != agents->shared;
    if (is_own && failed)
        destroy_agent(&agents->api, agent);
    tierce__lock_take(&agents->lock);
    TIERCE_ASSERT(agents->busy > 0);
    agents->busy--;
    if (is_own && !failed)
        tierce__list_push_front(&agents->idle, &agent->node);
    tierce__lock_drop(&agents->lock);
}

/* ---- transfers ------------------------------------------------------------------------------- */

struct nixl_request {
    void *far, *local, *remote, *request;
    uint64_t device; /* the file's descriptor, or a number that no other object has */
    bool is_registered;
};

/* Registers the range of the file or object. */
static int register_far(struct tierce__nixl_agents *agents, struct nixl_agent *agent,
                        struct nixl_request *request, const struct tierce__nixl_transfer *transfer)
{
    const struct tierce__nixl_api *api = &agents->api;
    const char *key = transfer->key != NULL ? transfer->key : "";
    int type = transfer->key != NULL ? TIERCE__NIXL_OBJECT : TIERCE__NIXL_FILE;
    request->device = transfer->key != NULL ? atomic_fetch_add_explicit(&agents->object_count, 1,
                                                                        memory_order_relaxed)
                                            : (uint64_t)transfer->fd;
    int status = api->create_reg_dlist(type, &request->far);
    if (ok(status))
        status = api->reg_dlist_add_desc(request->far, transfer->offset, transfer->bytes,
                                         request->device, key, strlen(key));
    if (ok(status))
        status = api->register_mem(agent->agent, request->far, agent->options);
    request->is_registered = ok(status);
    if (ok(status))
        status = api->create_xfer_dlist(type, &request->remote);
    if (ok(status))
        status = api->xfer_dlist_add_desc(request->remote, transfer->offset, transfer->bytes,
                                          request->device);
    return status;
}

static int prepare(struct tierce__nixl_agents *agents, struct nixl_agent *agent,
                   struct nixl_request *request, const struct tierce__nixl_transfer *transfer)
{
    const struct tierce__nixl_api *api = &agents->api;
    int status = register_far(agents, agent, request, transfer);
    if (ok(status))
        status = api->create_xfer_dlist(TIERCE__NIXL_DRAM, &request->local);
    if (ok(status))
        status = api->xfer_dlist_add_desc(request->local, (uintptr_t)transfer->memory,
                                          transfer->bytes, 0);
    if (ok(status))
        status =
            api->create_xfer_req(agent->agent, (int)transfer->operation, request->local,
                                 request->remote, AGENT_NAME, &request->request, agent->options);
    return status;
}

static void pause_polls(uint64_t begun_ns)
{
    uint64_t ns = (tierce__now_ns() - begun_ns) / PAUSE_SHARE;
    ns = ns < PAUSE_NS_MIN ? PAUSE_NS_MIN : ns > PAUSE_NS_MAX ? PAUSE_NS_MAX : ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* NIXL has no call that waits for a transfer. */
static int run_request(const struct tierce__nixl_api *api, struct nixl_agent *agent,
                       struct nixl_request *request)
{
    uint64_t begun_ns = tierce__now_ns();
    int status = api->post_xfer_req(agent->agent, request->request, NULL);
    for (unsigned polls = 0; status == TIERCE__NIXL_IN_WORK; polls++) {
        if (polls >= POLLS_AT_ONCE)
            pause_polls(begun_ns);
        status = api->get_xfer_status(agent->agent, request->request);
    }
    return status;
}

static int release(const struct tierce__nixl_api *api, struct nixl_agent *agent,
                   struct nixl_request *request)
{
    int status = TIERCE__NIXL_DONE, ignored = 0;
    if (request->request != NULL) {
        status = api->release_xfer_req(agent->agent, request->request);
        ignored = api->destroy_xfer_req(request->request);
    }
    if (request->remote != NULL)
        ignored = api->destroy_xfer_dlist(request->remote);
    if (request->local != NULL)
        ignored = api->destroy_xfer_dlist(request->local);
    if (request->is_registered &&
        !ok(api->deregister_mem(agent->agent, request->far, agent->options)))
        status = TIERCE__NIXL_IN_WORK; /* the agent would keep the descriptor's number */
    if (request->far != NULL)
        ignored = api->destroy_reg_dlist(request->far);
    (void)ignored;
    return status;
}

int tierce__nixl_transfer(struct tierce__nixl_agents *agents,
                          const struct tierce__nixl_transfer *transfer)
{
    TIERCE_DASSERT(tierce__nixl_agents_have(agents, transfer->memory, transfer->bytes));
    TIERCE_DASSERT((transfer->key != NULL || transfer->fd >= 0) && transfer->bytes > 0);
    struct nixl_request request = {0};
    struct nixl_agent *agent = NULL;
    int rc = take_agent(&agent, agents);
    if (rc == 0) {
        int status = prepare(agents, agent, &request, transfer);
        if (ok(status))
            status = run_request(&agents->api, agent, &request);
        int released = release(&agents->api, agent, &request);
        rc = ok(status) && ok(released) ? 0 : -EIO;
    }
    give_agent(agents, agent, rc != 0);
    return rc;
}

void tierce__nixl_log_failed(enum tierce__nixl_operation operation, int error)
{
    tierce__log_repeated(TIERCE_LOG_WARN, "nixl_failed", "op=%s err=\"%s\" then=plain",
                         operation == TIERCE__NIXL_READ ? "read" : "write", tierce_strerror(error));
}

bool tierce__nixl_agents_have(const struct tierce__nixl_agents *agents, const void *memory,
                              uint64_t bytes)
{
    uintptr_t base = (uintptr_t)agents->memory, at = (uintptr_t)memory;
    return at >= base && at - base <= agents->memory_bytes &&
           bytes <= agents->memory_bytes - (at - base);
}

/* ---- life ------------------------------------------------------------------------------------ */

int tierce__nixl_agents_open(struct tierce__nixl_agents **out,
                             const struct tierce__nixl_agents_opts *opts,
                             char why[TIERCE__CONNECTOR_WHY_BYTES])
{
    const char *what = "";
    struct nixl_agent *first = NULL;
    struct tierce__nixl_agents *agents = tierce__calloc(1, sizeof(*agents));
    if (agents == NULL)
        return -ENOMEM;
    tierce__lock_init(&agents->lock, TIERCE__LOCK_CONNECTOR);
    tierce__list_init(&agents->idle);
    agents->plugin = opts->plugin;
    agents->params = opts->params;
    agents->param_count = opts->param_count;
    agents->is_shared = opts->is_shared;
    agents->memory = opts->memory;
    agents->memory_bytes = opts->memory_bytes;
    int rc = tierce__nixl_load(&agents->api, opts->library, why);
    if (rc == 0) {
        rc = create_agent(&first, agents, &what);
        if (rc == -EIO) {
            snprintf(why, TIERCE__CONNECTOR_WHY_BYTES, "NIXL, plug-in %.32s: %s", opts->plugin,
                     what);
            rc = TIERCE_E_CONFIG;
        }
    }
    if (rc != 0) {
        tierce__nixl_agents_close(agents);
        return rc;
    }
    if (opts->is_shared)
        agents->shared = first;
    else
        tierce__list_push_front(&agents->idle, &first->node);
    *out = agents;
    return 0;
}

void tierce__nixl_agents_close(struct tierce__nixl_agents *agents)
{
    if (agents == NULL)
        return;
    TIERCE_ASSERT(agents->busy == 0);
    for (struct nixl_agent *agent; (agent = pop_idle(agents)) != NULL;)
        destroy_agent(&agents->api, agent);
    if (agents->shared != NULL)
        destroy_agent(&agents->api, agents->shared);
    tierce__lock_fini(&agents->lock);
    tierce__free(agents);
}
