// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// NCCL as an `nccl_api`, for nvcc. This header is all of Belay that includes NCCL; a program that includes it links
// belay::nccl.
//
//   belay::nccl::runtime_nccl nccl;
//   const belay::nccl::library lib(nccl, rank.number());
//   lib.expect_version();  // backend_error: the library that is loaded is older than 2.28.9
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

// Its headers for the device have parameters that nobody uses, or that hide members.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#if defined(__clang__)  // which looks for missed backwards alone, and does not know all that the whole header has
#include <nccl_device/impl/comm__types.h>
#else
#include <nccl_device.h>
#endif
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstring>
#include <string>

#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI::nccl {

static_assert(NCCL_VERSION_CODE >= least_version,
              "belay: the NCCL backend needs NCCL 2.28.9 or later: earlier ones hang, and corrupt small symmetric "
              "operations");

/// The result of a call; `runtime` where CUDA was called beside NCCL.
struct nccl_status {
  /// The call and what both libraries said about it.
  const char* call = "";
  ncclResult_t result = ncclSuccess;
  cudaError_t runtime = cudaSuccess;
};

/// One thread writes the addresses of all members' windows. A template, so that the header may be in several sources.
template <class Window>
__global__ void write_window_pointers(Window window, int ranks, std::byte** table) {
  for (int q = 0; q < ranks; ++q) table[q] = static_cast<std::byte*>(ncclGetLsaPointer(window, 0, q));
}

/// Has no state: communicators are of the device that is current where they are made.
class runtime_nccl {
 public:
  using status_type = nccl_status;
  using communicator_type = ncclComm_t;
  using window_type = ncclWindow_t;
  using stream_type = cuda::runtime_stream;

  /// Whether a call has done what it should, or goes on without blocking.
  [[nodiscard]] static bool succeeded(const status_type& got) noexcept {
    return got.result == ncclSuccess && got.runtime == cudaSuccess;
  }
  [[nodiscard]] static bool in_progress(const status_type& got) noexcept { return got.result == ncclInProgress; }
  /// "ncclCommSplit: invalid usage", and what NCCL has noted last.
  [[nodiscard]] static std::string text(const status_type& got) {
    const std::string call = std::string(got.call) + ": ";
    if (got.runtime != cudaSuccess) return call + cudaGetErrorName(got.runtime);
    const char* const last = ncclGetLastError(nullptr);
    return call + ncclGetErrorString(got.result) + (last == nullptr || *last == '\0' ? "" : ", " + std::string(last));
  }

  /// The version of the headers, that of the library, and an identity for a new communicator.
  [[nodiscard]] static constexpr int compiled_version() noexcept { return NCCL_VERSION_CODE; }
  [[nodiscard]] status_type version(int& loaded) const noexcept { return {"ncclGetVersion", ncclGetVersion(&loaded)}; }
  [[nodiscard]] status_type make_id(unique_id& id) const noexcept {
    static_assert(sizeof(ncclUniqueId) == sizeof(unique_id));
    ncclUniqueId made;
    const status_type got{"ncclGetUniqueId", ncclGetUniqueId(&made)};
    std::memcpy(id.data(), &made, sizeof made);
    return got;
  }

  /// Communicators: made by all ranks, split, asked for errors of before, ended in order or at once; calls as one
  /// group.
  [[nodiscard]] status_type init(communicator_type& made, int ranks, const unique_id& id, int rank,
                                 calls how) const noexcept {
    ncclUniqueId known;
    std::memcpy(&known, id.data(), sizeof known);
    ncclConfig_t config = config_of(how);
    return {"ncclCommInitRankConfig", ncclCommInitRankConfig(&made, ranks, known, rank, &config)};
  }
  [[nodiscard]] status_type split(communicator_type of, int colour, int key, communicator_type& made,
                                  calls how) const noexcept {
    ncclConfig_t config = config_of(how);
    return {"ncclCommSplit", ncclCommSplit(of, colour < 0 ? NCCL_SPLIT_NOCOLOR : colour, key, &made, &config)};
  }
  [[nodiscard]] status_type async_error(communicator_type on, status_type& told) const noexcept {
    told = {"asynchronous"};
    return {"ncclCommGetAsyncError", ncclCommGetAsyncError(on, &told.result)};
  }
  [[nodiscard]] status_type destroy(communicator_type on) const noexcept {
    return {"ncclCommDestroy", ncclCommDestroy(on)};
  }
  [[nodiscard]] status_type abort(communicator_type on) const noexcept { return {"ncclCommAbort", ncclCommAbort(on)}; }
  [[nodiscard]] status_type group_start() const noexcept { return {"ncclGroupStart", ncclGroupStart()}; }
  [[nodiscard]] status_type group_end() const noexcept { return {"ncclGroupEnd", ncclGroupEnd()}; }

  /// Memory that windows may be made of, and windows: the same on all ranks. Collective, but for `allocate` and
  /// `release`.
  [[nodiscard]] status_type allocate(std::byte*& made, std::size_t bytes) const noexcept {
    void* memory = nullptr;
    const status_type got{"ncclMemAlloc", ncclMemAlloc(&memory, bytes)};
    made = static_cast<std::byte*>(memory);
    return got;
  }
  [[nodiscard]] status_type release(std::byte* memory) const noexcept { return {"ncclMemFree", ncclMemFree(memory)}; }
  [[nodiscard]] status_type register_window(communicator_type on, std::byte* memory, std::size_t bytes,
                                            window_type& made) const noexcept {
    made = nullptr;  // what is not null is taken for a window that grows
    return {"ncclCommWindowRegister", ncclCommWindowRegister(on, memory, bytes, &made, NCCL_WIN_COLL_SYMMETRIC)};
  }
  [[nodiscard]] status_type deregister_window(communicator_type on, window_type window) const noexcept {
    return {"ncclCommWindowDeregister", ncclCommWindowDeregister(on, window)};
  }
  /// The pages of `ncclMemAlloc`.
  [[nodiscard]] static constexpr std::size_t window_granularity() noexcept { return std::size_t{2} << 20; }

  /// The device interface has no stable binary form: another version than the one compiled against has no team.
  [[nodiscard]] status_type find_team(communicator_type on, load_store_team& team) const noexcept {
    team = {};
    int loaded = 0;
    const status_type got = version(loaded);
    if (!succeeded(got) || loaded != NCCL_VERSION_CODE) return got;
#if NCCL_VERSION_CODE >= 23000  // before, a window that is none says as much
    ncclCommProperties_t about = NCCL_COMM_PROPERTIES_INITIALIZER;
    const status_type asked{"ncclCommQueryProperties", ncclCommQueryProperties(on, &about)};
    if (!succeeded(asked) || !about.deviceApiSupport) return asked;
#endif
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER  // since 2.29 they say of which version they are
    const ncclDevCommRequirements none = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    const ncclDevCommRequirements none{};
#endif
    ncclDevComm made;
    const status_type created{"ncclDevCommCreate", ncclDevCommCreate(on, &none, &made)};
    if (!succeeded(created)) return created;
    team = {made.lsaSize, made.lsaRank, 1};
    return {"ncclDevCommDestroy", ncclDevCommDestroy(on, &made)};
  }
  [[nodiscard]] status_type write_pointers(stream_type stream, window_type window, const load_store_team& team,
                                           std::byte** table) const noexcept {
    return {"a kernel's launch", ncclSuccess,
            cuda::launch_kernel(stream.order, {1, 1}, write_window_pointers<window_type>, window, team.ranks, table)};
  }

  /// Operations in the order of a stream; counts are elements, of one rank for gathering and scattering ones.
  [[nodiscard]] status_type all_reduce(const void* from, void* to, std::size_t count, dtype type, reduction how,
                                       communicator_type on, stream_type stream) const noexcept {
    return {"ncclAllReduce", ncclAllReduce(from, to, count, type_of(type), op_of(how), on, stream.order)};
  }
  [[nodiscard]] status_type reduce_scatter(const void* from, void* to, std::size_t count, dtype type, reduction how,
                                           communicator_type on, stream_type stream) const noexcept {
    return {"ncclReduceScatter", ncclReduceScatter(from, to, count, type_of(type), op_of(how), on, stream.order)};
  }
  [[nodiscard]] status_type reduce(const void* from, void* to, std::size_t count, dtype type, reduction how, int root,
                                   communicator_type on, stream_type stream) const noexcept {
    return {"ncclReduce", ncclReduce(from, to, count, type_of(type), op_of(how), root, on, stream.order)};
  }
  [[nodiscard]] status_type all_gather(const void* from, void* to, std::size_t count, dtype type, communicator_type on,
                                       stream_type stream) const noexcept {
    return {"ncclAllGather", ncclAllGather(from, to, count, type_of(type), on, stream.order)};
  }
  [[nodiscard]] status_type all_to_all(const void* from, void* to, std::size_t count, dtype type, communicator_type on,
                                       stream_type stream) const noexcept {
    return {"ncclAlltoAll", ncclAlltoAll(from, to, count, type_of(type), on, stream.order)};
  }
  [[nodiscard]] status_type broadcast(const void* from, void* to, std::size_t count, dtype type, int root,
                                      communicator_type on, stream_type stream) const noexcept {
    return {"ncclBroadcast", ncclBroadcast(from, to, count, type_of(type), root, on, stream.order)};
  }
  [[nodiscard]] status_type gather(const void* from, void* to, std::size_t count, dtype type, int root,
                                   communicator_type on, stream_type stream) const noexcept {
    return {"ncclGather", ncclGather(from, to, count, type_of(type), root, on, stream.order)};
  }
  [[nodiscard]] status_type scatter(const void* from, void* to, std::size_t count, dtype type, int root,
                                    communicator_type on, stream_type stream) const noexcept {
    return {"ncclScatter", ncclScatter(from, to, count, type_of(type), root, on, stream.order)};
  }
  [[nodiscard]] status_type send(const void* from, std::size_t count, dtype type, int peer, communicator_type on,
                                 stream_type stream) const noexcept {
    return {"ncclSend", ncclSend(from, count, type_of(type), peer, on, stream.order)};
  }
  [[nodiscard]] status_type receive(void* to, std::size_t count, dtype type, int peer, communicator_type on,
                                    stream_type stream) const noexcept {
    return {"ncclRecv", ncclRecv(to, count, type_of(type), peer, on, stream.order)};
  }

 private:
  [[nodiscard]] static ncclConfig_t config_of(calls how) noexcept {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = how == calls::blocking ? 1 : 0;
    config.splitShare = 1;
    return config;
  }
  [[nodiscard]] static ncclDataType_t type_of(dtype type) noexcept {
    switch (type) {
      case dtype::boolean:
      case dtype::u8: return ncclUint8;
      case dtype::i8: return ncclInt8;
      case dtype::u32: return ncclUint32;
      case dtype::i32: return ncclInt32;
      case dtype::u64: return ncclUint64;
      case dtype::i64: return ncclInt64;
      case dtype::f8_e4m3: return ncclFloat8e4m3;
      case dtype::f8_e5m2: return ncclFloat8e5m2;
      case dtype::u16:
      case dtype::i16:  // only moved
      case dtype::f16: return ncclFloat16;
      case dtype::bf16: return ncclBfloat16;
      case dtype::f32: return ncclFloat32;
      case dtype::f64: return ncclFloat64;
    }
    return ncclNumTypes;
  }
  [[nodiscard]] static ncclRedOp_t op_of(reduction how) noexcept {
    switch (how) {
      case reduction::none: break;
      case reduction::sum: return ncclSum;
      case reduction::minimum: return ncclMin;
      case reduction::maximum: return ncclMax;
      case reduction::product: return ncclProd;
      case reduction::average: return ncclAvg;
    }
    return ncclNumOps;
  }
};

static_assert(nccl_api<runtime_nccl>);

}  // namespace belay::inline BELAY_ABI::nccl
