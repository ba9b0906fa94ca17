/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A back end of NIXL whose objects and file ranges are named values in a node. The node's side is
 * nixl_node.c; here NIXL's C++ types become its arguments.
 */
#include "nixl/nixl_abi.h"
#include "nixl/nixl_node.h"
#include "nixl/nixl_ranges.h"
#include "store/remote/nixl/nixl_version.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

using namespace tierce_nixl;

namespace
{

constexpr const char *url_param = "url", *url_variable = "TIERCE_NIXL_URL";

/* A registered object: its key. Or a file: its path, or else its descriptor. */
struct Target {
    Memory memory;
    Text name;
    int descriptor;
};

class Named : public Registered
{
  public:
    explicit Named(Target what) : Registered(true), target(std::move(what)) {}
    const Target target;
};

/* A file, and the name of its ranges at the time at which the transfer was made. */
struct File {
    Target target;
    Text id;
};

class Request : public Transfer
{
  public:
    Request(tierce__nixl_request *made, std::vector<File> used)
        : request(made), files(std::move(used))
    {
    }
    ~Request() override { tierce__nixl_request_release(request); }
    Request(const Request &) = delete;
    Request &operator=(const Request &) = delete;
    tierce__nixl_request *const request;
    const std::vector<File> files;
};

void complain(const char *what)
{
    std::fprintf(stderr, "tierce: NIXL plug-in: %s\n", what);
}

Target target_of(const NamedRange &range, Memory memory)
{
    if (memory == OBJECT && range.name.empty())
        return {memory, std::to_string(range.device), -1};
    return {memory, range.name, static_cast<int>(range.device)};
}

/* "": there is no such file, or it is not a regular one. */
Text id_of(const Target &file)
{
    char id[TIERCE__NIXL_FILE_ID_BYTES];
    const char *path = file.name.empty() ? nullptr : file.name.c_str();
    return tierce__nixl_file_id(id, path, file.descriptor) == 0 ? Text(id) : Text();
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
        Target target = target_of(range, memory);
        if (memory == FILE_RANGE && id_of(target).empty()) {
            complain("a file that is registered must exist and be a regular file");
            return INVALID;
        }
        out = new Named(std::move(target));
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
        std::vector<File> files;
        std::vector<size_t> file_of(count);
        std::vector<tierce__nixl_part> parts(count);
        const Named *last = nullptr;
        for (size_t i = 0; i < count; i++) {
            const auto *named = static_cast<const Named *>(remote.items[i].registered);
            if (named == nullptr || local.items[i].bytes != remote.items[i].bytes)
                return INVALID;
            parts[i] = part_of(named->target, remote.items[i].address);
            parts[i].op = operation == WRITE ? TIERCE__NIXL_PART_WRITE : TIERCE__NIXL_PART_READ;
            parts[i].memory = reinterpret_cast<void *>(local.items[i].address);
            parts[i].bytes = local.items[i].bytes;
            if (parts[i].is_range && named != last)
                files.push_back({named->target, id_of(named->target)});
            if (parts[i].is_range)
                file_of[i] = files.size() - 1;
            last = parts[i].is_range ? named : nullptr;
        }
        for (size_t i = 0; i < count; i++) {
            if (parts[i].is_range)
                rename(parts[i], files[file_of[i]].id);
        }
        tierce__nixl_request *request = nullptr;
        if (tierce__nixl_request_create(&request, node_, parts.data(), count) != 0)
            return INVALID;
        out = new Request(request, std::move(files));
        return SUCCESS;
    }

    Status post(const Operation &, const RegisteredList &, const RegisteredList &, const Text &,
                Transfer *&transfer, const Options *) const override
    {
        auto *posted = static_cast<Request *>(transfer);
        for (const File &file : posted->files) {
            if (id_of(file.target) != file.id) {
                complain(
                    "a file was replaced, truncated or written to since its transfer was made");
                return FAILED;
            }
        }
        tierce__nixl_request_start(posted->request);
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
        const Text no_file = "none"; /* of which nothing is stored */
        std::vector<Text> names(count);
        std::vector<tierce__nixl_part> parts(count);
        const std::unique_ptr<bool[]> found(new bool[count + 1]());
        out.assign(count, std::nullopt);
        if (count == 0)
            return SUCCESS;
        for (size_t i = 0; i < count; i++) {
            const Target target = target_of(ranges.items[i], ranges.memory);
            names[i] = ranges.memory == FILE_RANGE ? id_of(target) : target.name;
            parts[i] = part_of(target, ranges.items[i].address);
            parts[i].op = TIERCE__NIXL_PART_FIND;
            parts[i].found = &found[i];
            rename(parts[i], names[i].empty() ? no_file : names[i]);
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
    static tierce__nixl_part part_of(const Target &target, uintptr_t offset)
    {
        tierce__nixl_part part{};
        part.is_range = target.memory == FILE_RANGE;
        part.offset = offset;
        rename(part, target.name);
        return part;
    }

    static void rename(tierce__nixl_part &part, const Text &name)
    {
        part.name = name.data();
        part.name_bytes = name.size();
    }

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
