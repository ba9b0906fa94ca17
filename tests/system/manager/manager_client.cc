/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the manager as C++ engines have it, with grpc++ and the stubs that protoc makes of our
 * own .proto files: walks through what such a client does and ends with 0, or says what was not as it
 * should be.
 *
 *     manager_client HOST:PORT HOST:DEBUG_PORT
 */
#include "debug_service.grpc.pb.h"
#include "meta_service.grpc.pb.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace meta = kv_cache_manager::proto::meta;
namespace debug = kv_cache_manager::proto::debug;

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

using Meta = meta::MetaService::Stub;

static const char *const instance = "cpp";

/* A call with a deadline, which nothing here comes near. */
struct Context : grpc::ClientContext {
    explicit Context(int ms = 30000)
    {
        set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(ms));
    }
};

template <typename Request> static Request request_of()
{
    Request request;
    request.set_trace_id("t");
    request.set_instance_id(instance);
    return request;
}

static void add_keys(meta::StartWriteCacheRequest &request, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        request.add_block_keys(first + i);
}

/* What all calls have: OK of gRPC, and the code of the manager. */
template <typename Request, typename Reply>
static Reply call(Meta &stub, grpc::Status (Meta::*method)(grpc::ClientContext *, const Request &,
                                                           Reply *),
                  const Request &request, meta::ErrorCode expected = meta::OK)
{
    Context context;
    Reply reply;
    grpc::Status status = (stub.*method)(&context, request, &reply);
    if (!status.ok() || reply.header().status().code() != expected) {
        fprintf(stderr, "%s: gRPC %d %s, code %d %s\n", request.GetTypeName().c_str(),
                status.error_code(), status.error_message().c_str(),
                reply.header().status().code(), reply.header().status().message().c_str());
        exit(1);
    }
    REQUIRE(reply.header().request_id().rfind("t_", 0) == 0);
    return reply;
}

static meta::RegisterInstanceRequest registration()
{
    auto request = request_of<meta::RegisterInstanceRequest>();
    request.set_instance_group("default");
    request.set_block_size(4);
    for (const char *name : {"tp0", "tp1"}) {
        auto *spec = request.add_location_spec_infos();
        spec->set_name(name);
        spec->set_size(1024);
    }
    request.mutable_model_deployment()->set_model_name("m");
    request.mutable_model_deployment()->set_dtype("bf16");
    return request;
}

static void register_instance(Meta &stub)
{
    auto reply = call(stub, &Meta::RegisterInstance, registration());
    REQUIRE(!reply.storage_configs().empty());
    call(stub, &Meta::RegisterInstance, registration()); /* the same again is fine */
    auto other = registration();
    other.set_block_size(8);
    call(stub, &Meta::RegisterInstance, other, meta::DUPLICATE_ENTITY);
    auto info = call(stub, &Meta::GetInstanceInfo, request_of<meta::GetInstanceInfoRequest>());
    REQUIRE(info.instance_group() == "default");
    REQUIRE(info.instance_info().location_spec_infos_size() == 2);
}

/* Keys 1 .. 8: the sixth is not written. */
static void write(Meta &stub)
{
    auto request = request_of<meta::StartWriteCacheRequest>();
    add_keys(request, 1, 8);
    request.set_write_timeout_seconds(60);
    auto started = call(stub, &Meta::StartWriteCache, request);
    REQUIRE(started.write_session_id().size() == 32);
    REQUIRE(started.locations_size() == 8);
    REQUIRE(started.locations(0).location_specs(1).name() == "tp1");
    REQUIRE(started.locations(0).location_specs(0).uri().rfind("file://nfs_01/", 0) == 0);
    auto finish = request_of<meta::FinishWriteCacheRequest>();
    finish.set_write_session_id(started.write_session_id());
    for (int i = 0; i < 9; i++)
        finish.mutable_success_blocks()->mutable_bool_masks()->add_values(i != 5);
    call(stub, &Meta::FinishWriteCache, finish, meta::INVALID_ARGUMENT); /* of another length */
    finish.mutable_success_blocks()->mutable_bool_masks()->mutable_values()->Truncate(8);
    call(stub, &Meta::FinishWriteCache, finish);
    auto again = call(stub, &Meta::StartWriteCache, request);
    REQUIRE(again.locations_size() == 1); /* the sixth */
    REQUIRE(again.block_mask().bool_masks().values_size() == 8);
    REQUIRE(!again.block_mask().bool_masks().values(5));
    finish.set_write_session_id(again.write_session_id());
    finish.mutable_success_blocks()->set_offset(0); /* nor now */
    call(stub, &Meta::FinishWriteCache, finish);
}

static meta::GetCacheLocationResponse get(Meta &stub, meta::QueryType type, int64_t first,
                                          int64_t count, int window = 0, int masked = 0)
{
    auto request = request_of<meta::GetCacheLocationRequest>();
    request.set_query_type(type);
    for (int64_t i = 0; i < count; i++)
        request.add_block_keys(first + i);
    request.set_sw_size(window);
    if (masked > 0)
        request.mutable_block_mask()->set_offset(masked);
    return call(stub, &Meta::GetCacheLocation, request);
}

static int found(const meta::GetCacheLocationResponse &reply)
{
    int n = 0;
    for (const auto &location : reply.locations())
        n += location.type() != meta::ST_UNSPECIFIED;
    return n;
}

static void read(Meta &stub)
{
    REQUIRE(get(stub, meta::QT_PREFIX_MATCH, 1, 8).locations_size() == 5);
    REQUIRE(get(stub, meta::QT_PREFIX_MATCH, 1, 8, 0, 6).locations_size() == 2);
    auto batch = get(stub, meta::QT_BATCH_GET, 1, 10);
    REQUIRE(batch.locations_size() == 10 && found(batch) == 7);
    auto window = get(stub, meta::QT_REVERSE_ROLL_SW_MATCH, 1, 8, 2);
    REQUIRE(window.locations_size() == 8 && found(window) == 2);
    REQUIRE(window.locations(7).type() == meta::ST_NFS);
    auto request = request_of<meta::GetCacheLocationRequest>();
    request.set_query_type(meta::QT_BATCH_GET);
    request.add_block_keys(1);
    request.add_location_spec_names("tp1");
    auto one = call(stub, &Meta::GetCacheLocation, request);
    REQUIRE(one.locations(0).location_specs_size() == 1);
    request.set_instance_id("nobody");
    call(stub, &Meta::GetCacheLocation, request, meta::INSTANCE_NOT_EXIST);
}

static void look_and_remove(Meta &stub)
{
    auto look = request_of<meta::GetCacheMetaRequest>();
    look.add_block_keys(1);
    look.add_block_keys(99);
    auto seen = call(stub, &Meta::GetCacheMeta, look);
    REQUIRE(seen.metas_size() == 2);
    REQUIRE(seen.metas(0).find("CLS_SERVING") != std::string::npos);
    REQUIRE(seen.metas(1).find("CLS_NOT_FOUND") != std::string::npos);
    auto remove = request_of<meta::RemoveCacheRequest>();
    remove.add_block_keys(1);
    remove.add_block_keys(2);
    remove.mutable_block_mask()->set_offset(1); /* the first stays */
    call(stub, &Meta::RemoveCache, remove);
    REQUIRE(get(stub, meta::QT_PREFIX_MATCH, 1, 8).locations_size() == 1);
    auto trim = request_of<meta::TrimCacheRequest>();
    trim.set_strategy(meta::TS_REMOVE_ALL_CACHE);
    call(stub, &Meta::TrimCache, trim);
    REQUIRE(found(get(stub, meta::QT_BATCH_GET, 1, 8)) == 0);
}

/* gzip on the way there, and 50,000 keys: more than a window of HTTP/2 in both directions. */
static void large_and_compressed(Meta &stub)
{
    enum { KEYS = 50000 };
    auto request = request_of<meta::StartWriteCacheRequest>();
    add_keys(request, 1000, KEYS);
    request.set_write_timeout_seconds(60);
    Context context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    meta::StartWriteCacheResponse started;
    grpc::Status status = stub.StartWriteCache(&context, request, &started);
    REQUIRE(status.ok() && started.header().status().code() == meta::OK);
    REQUIRE(started.locations_size() == KEYS);
    REQUIRE(started.ByteSizeLong() > 4u << 20);
    auto finish = request_of<meta::FinishWriteCacheRequest>();
    finish.set_write_session_id(started.write_session_id());
    finish.mutable_success_blocks()->set_offset(KEYS);
    call(stub, &Meta::FinishWriteCache, finish);
    REQUIRE(get(stub, meta::QT_PREFIX_MATCH, 1000, KEYS).locations_size() == KEYS);
}

/* An answer that comes too late is none, and the connection goes on. */
static void deadlines(Meta &stub, debug::DebugService::Stub &faults)
{
    debug::InjectFaultRequest fault;
    debug::CommonResponse reply;
    fault.set_api_name("GetInstanceInfo");
    fault.set_fault_type(debug::FT_DELAY);
    fault.set_delay_ms(20000);
    Context inject, remove;
    REQUIRE(faults.InjectFault(&inject, fault, &reply).ok());
    REQUIRE(reply.header().status().code() == debug::OK);
    Context hurried(200);
    meta::GetInstanceInfoResponse info;
    auto request = request_of<meta::GetInstanceInfoRequest>();
    REQUIRE(stub.GetInstanceInfo(&hurried, request, &info).error_code() ==
            grpc::StatusCode::DEADLINE_EXCEEDED);
    Context cancelled;
    std::thread canceller([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        cancelled.TryCancel();
    });
    REQUIRE(stub.GetInstanceInfo(&cancelled, request, &info).error_code() ==
            grpc::StatusCode::CANCELLED);
    canceller.join();
    debug::RemoveFaultRequest none;
    none.set_api_name("GetInstanceInfo");
    REQUIRE(faults.RemoveFault(&remove, none, &reply).ok());
    call(stub, &Meta::GetInstanceInfo, request);
}

/* A call by its name, of bytes. */
static grpc::Status raw_call(const std::shared_ptr<grpc::Channel> &channel, const char *method,
                             const std::string &request, std::string *reply)
{
    grpc::GenericStub stub(channel);
    Context context;
    grpc::CompletionQueue queue;
    grpc::Slice slice(request);
    grpc::ByteBuffer in, out(&slice, 1);
    grpc::Status status;
    void *tag;
    bool ok;
    auto call = stub.PrepareUnaryCall(&context, method, out, &queue);
    call->StartCall();
    call->Finish(&in, &status, &tag);
    REQUIRE(queue.Next(&tag, &ok) && ok);
    std::vector<grpc::Slice> slices;
    if (status.ok() && in.Dump(&slices).ok()) {
        for (const auto &part : slices)
            reply->append(reinterpret_cast<const char *>(part.begin()), part.size());
    }
    return status;
}

static void other_services(const std::shared_ptr<grpc::Channel> &channel)
{
    std::string reply;
    REQUIRE(raw_call(channel, "/kv_cache_manager.proto.meta.MetaService/NoSuch", "", &reply)
                .error_code() == grpc::StatusCode::UNIMPLEMENTED);
    REQUIRE(raw_call(channel, "/no.Service/Call", "", &reply).error_code() ==
            grpc::StatusCode::UNIMPLEMENTED);
    REQUIRE(raw_call(channel, "/grpc.health.v1.Health/Check", "", &reply).ok());
    REQUIRE(reply == std::string("\x08\x01")); /* SERVING */
    reply.clear();
    REQUIRE(!raw_call(channel, "/kv_cache_manager.proto.meta.MetaService/GetInstanceInfo",
                      "\xff\xff", &reply)
                 .ok()); /* no message */
}

/* Pings far more often than most servers bear, with a call and without. */
static void pings(const std::string &address)
{
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    auto channel =
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    auto stub = meta::MetaService::NewStub(channel);
    for (int i = 0; i < 5; i++) {
        call(*stub, &Meta::GetInstanceInfo, request_of<meta::GetInstanceInfoRequest>());
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        REQUIRE(channel->GetState(false) == GRPC_CHANNEL_READY);
    }
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(64 << 20);
    auto credentials = grpc::InsecureChannelCredentials();
    auto channel = grpc::CreateCustomChannel(argv[1], credentials, arguments);
    auto stub = meta::MetaService::NewStub(channel);
    auto faults = debug::DebugService::NewStub(grpc::CreateChannel(argv[2], credentials));
    register_instance(*stub);
    write(*stub);
    read(*stub);
    look_and_remove(*stub);
    large_and_compressed(*stub);
    deadlines(*stub, *faults);
    other_services(channel);
    pings(argv[1]);
    return 0;
}
