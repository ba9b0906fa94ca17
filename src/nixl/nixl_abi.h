/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_NIXL_ABI_H
#define TIERCE_NIXL_ABI_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/*
 * The C++ interface between NIXL 1.5.1 and its plug-ins, as far as this plug-in needs it: numbers,
 * the order of virtual functions, and the members of objects that one side makes and the other
 * reads. The published library comes without headers. Names are ours; NIXL calls through tables of
 * functions only. Both sides have the containers of libstdc++ with the C++11 ABI.
 *
 * tests/system/node/test_nixl_plugin.py loads the plug-in into the published library.
 */

static_assert(_GLIBCXX_USE_CXX11_ABI == 1, "NIXL's strings are those of the C++11 ABI");

namespace tierce_nixl
{

constexpr int api_version = 1;

enum Memory : int { DRAM = 0, OBJECT = 3, FILE_RANGE = 4 };

enum Operation : int { READ = 0, WRITE = 1 };

enum Status : int {
    IN_PROGRESS = 1,
    SUCCESS = 0,
    INVALID = -2,
    FAILED = -3,
    NOT_FOUND = -4,
    UNSUPPORTED = -9,
};

using Text = std::string;
using Params = std::unordered_map<Text, Text>;
using Memories = std::vector<Memory>;
using Answer = std::optional<Params>;

/* A plug-in derives its record of a registered memory from this. */
class Registered
{
  public:
    explicit Registered(bool is_private) : is_private_(is_private) {}
    virtual ~Registered() = default;

  protected:
    bool is_private_;
};

/* A plug-in derives its record of a transfer from this. */
class Transfer
{
  public:
    virtual ~Transfer() = default;
};

struct Range {
    uintptr_t address; /* in an object or file: the offset */
    size_t bytes;
    uint64_t device;
};

struct RegisteredRange : Range {
    Registered *registered;
};

struct NamedRange : Range {
    Text name;
};

/* Made by NIXL only. */
template <class Item> class List
{
  public:
    virtual ~List() = default;
    Memory memory;
    std::vector<Item> items;
};

using RegisteredList = List<RegisteredRange>;
using NamedList = List<NamedRange>;

struct Options; /* of a transfer; not read */
struct RemoteList;

struct Start {
    Text agent, type;
    Params *params;
    bool has_progress_thread;
    uint64_t progress_delay_us;
    int sync;
    bool has_telemetry;
};

/* The members are read by NIXL. */
class Engine
{
  public:
    explicit Engine(const Start &start)
        : type_(start.type), params_(*start.params), agent_(start.agent),
          has_telemetry_(start.has_telemetry)
    {
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    /* In the order of NIXL's table. */
    virtual ~Engine() = default;
    virtual bool has_remote() const = 0;
    virtual bool has_local() const = 0;
    virtual bool has_notifications() const = 0;
    virtual Memories memories() const = 0;
    virtual Status add(const NamedRange &range, const Memory &memory, Registered *&out) = 0;
    virtual Status remove(Registered *registered) = 0;
    virtual Status connect(const Text &agent) = 0;
    virtual Status disconnect(const Text &agent) = 0;
    virtual Status unload(Registered *registered) = 0;
    virtual Status prepare(const Operation &operation, const RegisteredList &local,
                           const RegisteredList &remote, const Text &agent, Transfer *&out,
                           const Options *options) const = 0;
    virtual Status post(const Operation &operation, const RegisteredList &local,
                        const RegisteredList &remote, const Text &agent, Transfer *&transfer,
                        const Options *options) const = 0;
    virtual Status check(Transfer *transfer) const = 0;
    virtual Status release(Transfer *transfer) const = 0;
    virtual Status view_remote(const RemoteList &, void *&, const Options *) const
    {
        return UNSUPPORTED;
    }
    virtual Status view_local(const RegisteredList &, void *&, const Options *) const
    {
        return UNSUPPORTED;
    }
    virtual void release_view(void *) const {}
    virtual Status public_data(const Registered *, Text &) const { return FAILED; }
    virtual Status connection_info(Text &) const { return FAILED; }
    virtual Status load_connection_info(const Text &, const Text &) { return FAILED; }
    virtual Status load_remote(const NamedRange &, const Memory &, const Text &, Registered *&)
    {
        return FAILED;
    }
    virtual Status load_local(Registered *in, Registered *&out) = 0;
    virtual Status notifications(std::vector<std::pair<Text, Text>> &) { return FAILED; }
    virtual Status notify(const Text &, const Text &) const { return FAILED; }
    virtual Status query(const NamedList &ranges, std::vector<Answer> &out) const = 0;
    virtual Status cost(const Operation &, const RegisteredList &, const RegisteredList &,
                        const Text &, Transfer *const &, std::chrono::microseconds &,
                        std::chrono::microseconds &, int &, const void *) const
    {
        return UNSUPPORTED;
    }

  private:
    const Text type_;
    const Params params_;
    std::vector<uint64_t> telemetry_; /* stays empty */
    std::mutex telemetry_lock_;

  protected:
    bool has_failed_ = false; /* NIXL rejects the engine */
    const Text agent_;
    const bool has_telemetry_;
};

struct Plugin {
    int version;
    Engine *(*create)(const Start *start);
    void (*destroy)(Engine *engine);
    const char *(*name)();
    const char *(*plugin_version)();
    Params (*params)();
    Memories (*memories)();
};

} // namespace tierce_nixl

#endif
