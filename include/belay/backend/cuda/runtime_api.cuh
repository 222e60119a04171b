// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The CUDA runtime and cuBLAS as a `device_api`, for nvcc. What of Belay includes CUDA ends in .cuh; a program that
// includes it links belay::cuda.
//
//   belay::cuda::runtime_api api;          // device 0
//   belay::cuda::device gpu(api, rank);    // backend_error: no driver, or no such device
//   belay::cuda::kit kit(gpu);
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <type_traits>

#include "belay/backend/cuda/attention_fragments.hpp"
#include "belay/backend/cuda/device_api.hpp"
#include "belay/backend/cuda/element_products.hpp"
#include "belay/backend/cuda/grouped_tiles.hpp"
#include "belay/backend/cuda/launch.cuh"
#include "belay/backend/cuda/products.cuh"
#include "belay/backend/cuda/sorting.cuh"
#include "belay/backend/cuda/tensor_warp.hpp"
#include "belay/core/config.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/findings.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// The result of a call: where it has failed, one of the two codes is not success.
struct runtime_status {
  /// The call and what both libraries said about it.
  const char* call = "";
  cudaError_t runtime = cudaSuccess;
  cublasStatus_t products = CUBLAS_STATUS_SUCCESS;
};

/// A stream, and what multiplies where it is one for computing.
struct runtime_stream {
  /// The order of the work, and the handle of its products.
  cudaStream_t order = nullptr;
  product_handle* products = nullptr;
};

/// One device. There is no default stream, and no device that is current but that of the thread that has opened it.
class runtime_api {
 public:
  using status_type = runtime_status;
  using stream_type = runtime_stream;
  using event_type = cudaEvent_t;
  using graph_type = cudaGraphExec_t;

  /// Bytes of the device that each rank's kernels other than products share: enough for sorts of some million keys.
  static constexpr std::size_t usual_scratch_bytes = std::size_t{16} << 20;
  /// Scratch bytes that are enough for a sort of so many keys, known before there is a device, which has the exact
  /// `sort_bytes`.
  [[nodiscard]] static constexpr std::size_t scratch_for(std::size_t keys) noexcept {
    const std::size_t bytes = 24 * keys + (std::size_t{1} << 20);
    return bytes > usual_scratch_bytes ? bytes : usual_scratch_bytes;
  }

  /// Of the device with that number; `open` looks whether it is there. A kit over it sorts as many keys as fit into
  /// `scratch_bytes`, at some 16 bytes each, which are planned as workspace. `floats` is how it multiplies float, but
  /// for products of experts.
  explicit runtime_api(int device = 0, std::size_t scratch_bytes = usual_scratch_bytes,
                       float_products floats = float_products::exact) noexcept
      : device_(device), scratch_bytes_(scratch_bytes), floats_(floats) {}

  /// Whether the call has done what it should.
  [[nodiscard]] static bool succeeded(const status_type& got) noexcept {
    return got.runtime == cudaSuccess && got.products == CUBLAS_STATUS_SUCCESS;
  }
  /// "cudaMalloc: cudaErrorMemoryAllocation, out of memory". Where there is no driver, CUDA says that it is too old.
  [[nodiscard]] static std::string text(const status_type& got) {
    const std::string call = std::string(got.call) + ": ";
    if (got.products != CUBLAS_STATUS_SUCCESS)
      return call + cublasGetStatusName(got.products) + ", " + cublasGetStatusString(got.products);
    const bool nobody = got.runtime == cudaErrorInsufficientDriver || got.runtime == cudaErrorNoDevice;
    return call + cudaGetErrorName(got.runtime) + ", " + cudaGetErrorString(got.runtime) +
           (nobody ? " (is a driver installed, and a GPU to be seen? nvidia-smi says)" : "");
  }

  /// Makes the device current for the calling thread. An error where there is no driver or no such device.
  [[nodiscard]] status_type open() const noexcept { return open(device_); }
  [[nodiscard]] status_type open(int device) const noexcept {
    int devices = 0;
    const status_type counted = told("cudaGetDeviceCount", cudaGetDeviceCount(&devices));
    return succeeded(counted) ? told("cudaSetDevice", cudaSetDevice(device)) : counted;
  }

  /// How many devices there are, and what the opened one has left.
  [[nodiscard]] status_type count_devices(int& devices) const noexcept {
    return told("cudaGetDeviceCount", cudaGetDeviceCount(&devices));
  }
  [[nodiscard]] status_type memory_info(device_memory_info& room) const noexcept {
    return told("cudaMemGetInfo", cudaMemGetInfo(&room.free, &room.total));
  }

  /// Memory of the device, and host memory that it may copy from and to at full speed.
  [[nodiscard]] status_type allocate(std::byte*& made, std::size_t bytes) const noexcept {
    void* memory = nullptr;
    const status_type got = told("cudaMalloc", cudaMalloc(&memory, bytes));
    made = static_cast<std::byte*>(memory);
    return got;
  }
  [[nodiscard]] status_type release(std::byte* memory) const noexcept { return told("cudaFree", cudaFree(memory)); }
  /// Kernels have the host's own addresses of it: it is asked to be mapped, which of a portable registration alone CUDA
  /// does not promise, and a device whose kernels would need other addresses is refused.
  [[nodiscard]] status_type register_host(std::byte* first, std::size_t bytes) const noexcept {
    int device = 0, same_address = 0;
    const status_type current = told("cudaGetDevice", cudaGetDevice(&device));
    if (!succeeded(current)) return current;
    const status_type asked =
        told("cudaDeviceGetAttribute",
             cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device));
    if (!succeeded(asked)) return asked;
    if (same_address == 0)
      return {
          "kernels of this device cannot use the host's addresses of registered memory "
          "(cudaDevAttrCanUseHostPointerForRegisteredMem is 0)",
          cudaErrorNotSupported};
    return told("cudaHostRegister", cudaHostRegister(first, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  }
  [[nodiscard]] status_type unregister_host(std::byte* first) const noexcept {
    return told("cudaHostUnregister", cudaHostUnregister(first));
  }

  /// A stream that waits for no other, with a handle for its products where it computes. What does not compute is
  /// begun first where both could be: its kernels are few and small, and would stand behind a large one's last block.
  [[nodiscard]] status_type make_stream(stream_type& made, stream_kind kind) const noexcept {
    made = {};
    int least = 0, greatest = 0;
    status_type got = told("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    if (succeeded(got))
      got = told("cudaStreamCreateWithPriority",
                 cudaStreamCreateWithPriority(&made.order, cudaStreamNonBlocking,
                                              kind == stream_kind::compute ? least : greatest));
    if (!succeeded(got) || kind != stream_kind::compute) return got;
    cublasHandle_t handle = nullptr;
    got = told("cublasCreate", cudaSuccess, cublasCreate(&handle));
    if (succeeded(got)) got = told("cublasSetStream", cudaSuccess, cublasSetStream(handle, made.order));
    // fp32 is fp32: neither emulation nor, where it is not asked for, TF32
    if (succeeded(got)) got = told("cublasSetMathMode", cudaSuccess, cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH));
    if (succeeded(got)) {
      made.products = new (std::nothrow) product_handle(handle, floats_);
      if (made.products == nullptr) got = {"memory of the host", cudaErrorMemoryAllocation};
    }
    if (!succeeded(got)) {
      if (handle != nullptr) static_cast<void>(cublasDestroy(handle));
      static_cast<void>(cudaStreamDestroy(made.order));
    }
    return got;
  }
  /// Streams and events: made, recorded in a stream's order, waited for by a stream or by the host for `at_most`.
  [[nodiscard]] status_type destroy_stream(stream_type which) const noexcept {
    status_type products;
    if (const std::unique_ptr<product_handle> its{which.products}; its != nullptr)
      products = told("cublasDestroy", cudaSuccess, cublasDestroy(its->get()));
    const status_type order = told("cudaStreamDestroy", cudaStreamDestroy(which.order));
    return succeeded(order) ? products : order;
  }
  [[nodiscard]] status_type make_event(event_type& made) const noexcept {
    return told("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  }
  /// Events with times, and the time from one to another; both are reached.
  [[nodiscard]] status_type make_timed_event(event_type& made) const noexcept {
    return told("cudaEventCreate", cudaEventCreate(&made));
  }
  [[nodiscard]] status_type elapsed(event_type from, event_type to, float& milliseconds) const noexcept {
    return told("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, from, to));
  }
  [[nodiscard]] status_type destroy_event(event_type which) const noexcept {
    return told("cudaEventDestroy", cudaEventDestroy(which));
  }
  [[nodiscard]] status_type record(event_type which, stream_type on) const noexcept {
    return told("cudaEventRecord", cudaEventRecord(which, on.order));
  }
  [[nodiscard]] status_type wait(stream_type on, event_type which) const noexcept {
    return told("cudaStreamWaitEvent", cudaStreamWaitEvent(on.order, which, 0));
  }
  [[nodiscard]] status_type query(event_type which, bool& reached) const noexcept {
    const cudaError_t got = cudaEventQuery(which);
    reached = got == cudaSuccess;
    const status_type asked = told("cudaEventQuery", got);
    return got == cudaErrorNotReady ? status_type{asked.call} : asked;
  }
  [[nodiscard]] status_type await(event_type which, std::chrono::nanoseconds at_most, bool& reached) const {
    constexpr int busy = 200;  // asked at once so often, then seldom
    const auto end = std::chrono::steady_clock::now() + at_most;
    for (int asked = 0;; ++asked) {
      const status_type got = query(which, reached);
      if (!succeeded(got) || reached || std::chrono::steady_clock::now() >= end) return got;
      if (asked < busy)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  /// Graphs of what a stream is given, captured for the calling thread alone, and ready to be launched.
  [[nodiscard]] status_type begin_capture(stream_type on) const noexcept {
    return told("cudaStreamBeginCapture", cudaStreamBeginCapture(on.order, cudaStreamCaptureModeThreadLocal));
  }
  [[nodiscard]] status_type end_capture(stream_type on, graph_type& made) const noexcept {
    made = nullptr;
    cudaGraph_t recorded = nullptr;
    status_type got = told("cudaStreamEndCapture", cudaStreamEndCapture(on.order, &recorded));
    if (!succeeded(got)) return got;
    got = told("cudaGraphInstantiate", cudaGraphInstantiate(&made, recorded, 0));
    const status_type freed = told("cudaGraphDestroy", cudaGraphDestroy(recorded));
    if (!succeeded(got) || succeeded(freed)) return got;
    static_cast<void>(cudaGraphExecDestroy(made));
    return freed;
  }
  [[nodiscard]] status_type launch(graph_type which, stream_type on) const noexcept {
    return told("cudaGraphLaunch", cudaGraphLaunch(which, on.order));
  }
  [[nodiscard]] status_type destroy_graph(graph_type which) const noexcept {
    return told("cudaGraphExecDestroy", cudaGraphExecDestroy(which));
  }

  /// Work in the order of a stream: a copy in any direction, a kernel of indices, a kernel of teams.
  [[nodiscard]] status_type copy(stream_type on, void* to, const void* from, std::size_t bytes) const noexcept {
    return told("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on.order));
  }
  template <class F>
  [[nodiscard]] status_type each(stream_type on, std::size_t count, const F& f) const {
    return told("a kernel's launch", launch_each(on.order, count, f));
  }
  template <class G>
  [[nodiscard]] status_type teams(stream_type on, std::size_t rows, const G& g) const {
    return told("a kernel's launch", launch_rows(on.order, rows, g));
  }
  using algorithm_type = product_algorithm;
  /// Products of half precisions of one type by cuBLASLt, of which no call asks for an epilogue but beta; what it
  /// answers for a problem; and the memory that it has beside the operands.
  [[nodiscard]] status_type algorithms(stream_type on, const product_problem& problem,
                                       std::span<library_answer<algorithm_type>> answers,
                                       std::size_t& count) const noexcept {
    return told("cublasLtMatmulAlgoGetHeuristic", cudaSuccess, on.products->algorithms(problem, answers, count));
  }
  [[nodiscard]] std::size_t product_room(stream_type on) const noexcept { return on.products->room(); }
  template <class C, half_precision A>
  requires half_operands<C, A, A>
  [[nodiscard]] status_type product(stream_type on, const product_call<C, A, A>& call,
                                    const algorithm_type& by) const noexcept {
    return told("cublasLtMatmul", cudaSuccess, on.products->product(call, by, on.order));
  }
  /// Other products by cuBLAS: fp32 and fp64 as they are, else with converted operands. An element a thread where there
  /// is no workspace to convert to, or no width.
  template <class C, class A, class B>
  [[nodiscard]] status_type product(stream_type on, const product_call<C, A, B>& call) const {
    using number = compute_type_t<C>;
    if (on.products != nullptr && call.a.width() > 0) {
      if constexpr (std::is_same_v<C, number> && std::is_same_v<C, A> && std::is_same_v<C, B>) {
        return told("cublasGemm", cudaSuccess, on.products->product(call));
      } else if (!on.products->panels().empty()) {
        queued_products by{on.order, on.products};
        converted_product(by, call, on.products->panels());
        return told("a product of converted operands", by.launched, by.multiplied);
      }
    }
    return each(on, call.c.rows * call.c.columns, element_product<C, A, B>{call});
  }
  template <class C, class A, class B, class Index>
  [[nodiscard]] status_type grouped(stream_type on, const grouped_rows_call<C, A, B, Index>& call,
                                    const kernel::findings_note& found) const {
    queued_kernels by{on.order};
    queue_grouped<tensor_warp>(by, call, found);
    return told("a kernel's launch", by.launched);
  }
  template <class C, class A, class B, class Index>
  [[nodiscard]] status_type grouped(stream_type on, const grouped_stack_call<C, A, B, Index>& call,
                                    const kernel::findings_note& found) const {
    queued_kernels by{on.order};
    queue_grouped<tensor_warp>(by, call, found);
    return told("a kernel's launch", by.launched);
  }
  /// By Belay's fragments or tiles: forward, with the logarithms of sums, and backward.
  template <class T>
  [[nodiscard]] status_type attention(stream_type on, const attention_call<T>& call) const {
    queued_kernels by{on.order};
    queue_attention<tensor_warp>(by, call);
    return told("a kernel's launch", by.launched);
  }
  template <class T>
  [[nodiscard]] status_type attention(stream_type on, const attention_gradient_call<T>& call) const {
    queued_kernels by{on.order};
    queue_attention<tensor_warp>(by, call);
    return told("a kernel's launch", by.launched);
  }
  /// By CUB, in sorting.cu, in `room`, which is no workspace of products.
  [[nodiscard]] status_type histogram(stream_type on, std::span<std::byte> room, view<const std::int32_t, 1> values,
                                      view<std::int64_t, 1> counts) const {
    return told("cub::DeviceHistogram", queue_histogram(on.order, room, values, counts));
  }
  /// The bytes of room that a sort of so many keys below `limit` needs; 0 where that cannot be asked, which the sort
  /// then tells.
  [[nodiscard]] static std::size_t sort_bytes(std::size_t keys, std::size_t limit) noexcept {
    std::size_t bytes = 0;
    return succeeded(told("cub::DeviceRadixSort", find_sort_bytes(keys, limit, bytes))) ? bytes : 0;
  }
  [[nodiscard]] status_type sort(stream_type on, std::span<std::byte> room, view<const std::int32_t, 1> keys,
                                 std::size_t limit, view<std::int32_t, 1> places) const {
    return told("cub::DeviceRadixSort", queue_sort(on.order, room, keys, limit, places));
  }
  [[nodiscard]] status_type select(stream_type on, std::span<std::byte> room, view<const std::int32_t, 1> values,
                                   view<std::int32_t, 1> positions, std::int64_t* count) const {
    return told("cub::DeviceSelect", queue_select(on.order, room, values, positions, count));
  }
  /// A kernel of blocks, with as many as it says.
  template <class K>
  [[nodiscard]] status_type blocks(stream_type on, const K& k) const {
    return told("a kernel's launch", launch_blocks(on.order, k.blocks(), k));
  }

  /// Memory for products, which a graph may capture: how much, and from where.
  [[nodiscard]] static constexpr std::size_t workspace_bytes() noexcept { return product_handle::workspace_bytes; }
  [[nodiscard]] std::size_t scratch_bytes() const noexcept { return scratch_bytes_; }
  [[nodiscard]] status_type use_workspace(stream_type on, std::byte* memory, std::size_t bytes) const noexcept {
    if (on.products == nullptr) return {};
    return told("cublasSetWorkspace", cudaSuccess, on.products->use_workspace({memory, bytes}));
  }

 private:
  // What is told here no later call of the thread tells again: CUB's launches ask for its last error, and that an event
  // is not reached yet is one too.
  [[nodiscard]] static status_type told(const char* call, cudaError_t got,
                                        cublasStatus_t products = CUBLAS_STATUS_SUCCESS) noexcept {
    const status_type out{call, got, products};
    if (!succeeded(out)) [[unlikely]]
      static_cast<void>(cudaGetLastError());
    return out;
  }

  int device_;
  std::size_t scratch_bytes_;
  float_products floats_;
};

static_assert(device_api<runtime_api> && capturing_api<runtime_api>);
static_assert(choosing_api<runtime_api, bf16, bf16> && choosing_api<runtime_api, float, fp16>);
static_assert(attending_api<runtime_api, float> && attending_api<runtime_api, bf16>);

}  // namespace belay::inline BELAY_ABI::cuda
