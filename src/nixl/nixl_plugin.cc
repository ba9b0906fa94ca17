/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A back end of NIXL whose objects and file ranges are named values in a node. The node's side is
 * nixl_node.c; here NIXL's C++ types become its arguments.
 */
#include "nixl/nixl_abi.h"
#include "nixl/nixl_node.h"
#include "store/remote/nixl/nixl_version.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <unistd.h>

using namespace tierce_nixl;

namespace
{

constexpr const char *url_param = "url", *url_variable = "TIERCE_NIXL_URL";

/* An object or file: the name of its value. */
class Named : public Registered
{
  public:
    Named(Memory kind, Text text) : Registered(true), memory(kind), name(std::move(text)) {}
    const Memory memory;
    const Text name;
};

class Request : public Transfer
{
  public:
    explicit Request(tierce__nixl_request *made) : request(made) {}
    ~Request() override { tierce__nixl_request_release(request); }
    Request(const Request &) = delete;
    Request &operator=(const Request &) = delete;
    tierce__nixl_request *const request;
};

void complain(const char *what)
{
    std::fprintf(stderr, "tierce: NIXL plug-in: %s\n", what);
}

/* The name of a registered object or file: its text, or else what its number stands for. */
Text name_of(const NamedRange &range, Memory memory)
{
    if (!range.name.empty())
        return range.name;
    if (memory == OBJECT)
        return std::to_string(range.device);
    char path[PATH_MAX];
    const Text link = "/proc/self/fd/" + std::to_string(range.device);
    ssize_t bytes = readlink(link.c_str(), path, sizeof(path));
    return bytes > 0 ? Text(path, static_cast<size_t>(bytes)) : Text();
}

/* A range of a file is a value for itself, which is read from where it was written from. */
Text value_of(const Named &named, uintptr_t offset)
{
    return named.memory == FILE_RANGE ? named.name + "@" + std::to_string(offset) : named.name;
}

class NodeEngine : public Engine
{
  public:
    explicit NodeEngine(const Start &start) : Engine(start)
    {
        char why[TIERCE__NIXL_WHY_BYTES] = "";
        const auto given = start.params->find(url_param);
        const char *variable = std::getenv(url_variable);
        Text url = given != start.params->end() ? given->second : Text();
        if (url.empty() && variable != nullptr)
            url = variable;
        if (url.empty())
            complain("no node: set the parameter url, or TIERCE_NIXL_URL, to tierce://host:port");
        else if (tierce__nixl_node_open(&node_, url.c_str(), why) != 0)
            complain(why);
        has_failed_ = node_ == nullptr;
    }
    ~NodeEngine() override { tierce__nixl_node_close(node_); }

    bool has_remote() const override { return false; }
    bool has_local() const override { return true; }
    bool has_notifications() const override { return false; }
    Memories memories() const override { return supported(); }
    Status connect(const Text &) override { return SUCCESS; }
    Status disconnect(const Text &) override { return SUCCESS; }
    Status unload(Registered *) override { return SUCCESS; }
    Status load_local(Registered *in, Registered *&out) override
    {
        out = in;
        return SUCCESS;
    }

    static Memories supported() { return {DRAM, OBJECT, FILE_RANGE}; }

    Status add(const NamedRange &range, const Memory &memory, Registered *&out) override
    {
        out = nullptr;
        if (memory == DRAM)
            return SUCCESS;
        if (memory != OBJECT && memory != FILE_RANGE)
            return UNSUPPORTED;
        Text name = name_of(range, memory);
        if (name.empty())
            return INVALID;
        out = new Named(memory, std::move(name));
        return SUCCESS;
    }

    Status remove(Registered *registered) override
    {
        delete registered;
        return SUCCESS;
    }

    Status prepare(const Operation &operation, const RegisteredList &local,
                   const RegisteredList &remote, const Text &, Transfer *&out,
                   const Options *) const override
    {
        size_t count = local.items.size();
        if (local.memory != DRAM || count != remote.items.size() || count == 0)
            return INVALID;
        std::vector<Text> names(count);
        std::vector<tierce__nixl_part> parts(count);
        for (size_t i = 0; i < count; i++) {
            const auto *named = static_cast<const Named *>(remote.items[i].registered);
            if (named == nullptr || local.items[i].bytes != remote.items[i].bytes)
                return INVALID;
            names[i] = value_of(*named, remote.items[i].address);
            parts[i].op = operation == WRITE ? TIERCE__NIXL_PART_WRITE : TIERCE__NIXL_PART_READ;
            parts[i].name = names[i].data();
            parts[i].name_bytes = names[i].size();
            parts[i].memory = reinterpret_cast<void *>(local.items[i].address);
            parts[i].bytes = local.items[i].bytes;
            parts[i].offset = named->memory == OBJECT ? remote.items[i].address : 0;
        }
        tierce__nixl_request *request = nullptr;
        if (tierce__nixl_request_create(&request, node_, parts.data(), count) != 0)
            return INVALID;
        out = new Request(request);
        return SUCCESS;
    }

    Status post(const Operation &, const RegisteredList &, const RegisteredList &, const Text &,
                Transfer *&transfer, const Options *) const override
    {
        tierce__nixl_request_start(static_cast<Request *>(transfer)->request);
        return IN_PROGRESS;
    }

    Status check(Transfer *transfer) const override
    {
        return status_of(tierce__nixl_request_status(static_cast<Request *>(transfer)->request));
    }

    Status release(Transfer *transfer) const override
    {
        delete transfer;
        return SUCCESS;
    }

    Status query(const NamedList &ranges, std::vector<Answer> &out) const override
    {
        size_t count = ranges.items.size();
        std::vector<Text> names(count);
        std::vector<tierce__nixl_part> parts(count);
        const std::unique_ptr<bool[]> found(new bool[count + 1]());
        out.assign(count, std::nullopt);
        if (count == 0)
            return SUCCESS;
        for (size_t i = 0; i < count; i++) {
            const Named named(ranges.memory, name_of(ranges.items[i], ranges.memory));
            names[i] = value_of(named, ranges.items[i].address);
            parts[i].op = TIERCE__NIXL_PART_FIND;
            parts[i].name = names[i].data();
            parts[i].name_bytes = names[i].size();
            parts[i].found = &found[i];
        }
        tierce__nixl_request *request = nullptr;
        if (tierce__nixl_request_create(&request, node_, parts.data(), count) != 0)
            return INVALID;
        tierce__nixl_request_start(request);
        int rc = tierce__nixl_request_wait(request);
        tierce__nixl_request_release(request);
        for (size_t i = 0; i < count && rc == 0; i++) {
            if (found[i])
                out[i] = Params();
        }
        return status_of(rc);
    }

  private:
    static Status status_of(int rc)
    {
        if (rc == TIERCE__NIXL_UNDER_WAY)
            return IN_PROGRESS;
        return rc == 0 ? SUCCESS : FAILED;
    }

    tierce__nixl_node *node_ = nullptr;
};

Engine *create(const Start *start)
{
    return new (std::nothrow) NodeEngine(*start);
}

void destroy(Engine *engine)
{
    delete engine;
}

const char *name()
{
    return "TIERCE";
}

const char *plugin_version()
{
    return TIERCE__NIXL_VERSION;
}

Params params()
{
    return {{url_param, ""}};
}

} // namespace

/* NIXL looks for these two names in the library. */
extern "C" __attribute__((visibility("default"))) Plugin *nixl_plugin_init()
{
    static Plugin plugin = {api_version,          create, destroy, name, plugin_version, params,
                            NodeEngine::supported};
    char version[TIERCE__NIXL_VERSION_BYTES] = "";
    tierce__nixl_loaded_version(version, "", 0);
    if (Text(version) == TIERCE__NIXL_VERSION)
        return &plugin;
    std::fprintf(stderr,
                 "tierce: NIXL plug-in: requires NIXL " TIERCE__NIXL_VERSION
                 "; this process has version %s\n",
                 version[0] != '\0' ? version : "unknown");
    return nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini() {}
