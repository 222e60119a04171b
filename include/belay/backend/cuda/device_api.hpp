// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the CUDA backend needs of the CUDA runtime and cuBLAS, as an object of a policy. `runtime_api`
// (belay/backend/cuda/runtime_api.cuh) is the real one, and the only place that includes CUDA. Tests have one of the
// host whose streams are late on purpose. No other header of this folder includes more than the standard library.
//
//   my_api api;                             // a belay::cuda::device_api
//   belay::cuda::device<my_api> gpu(api);   // rank 0's
//   belay::cuda::kit<my_api> kit(gpu);
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "belay/backend/cuda/library_choices.hpp"
#include "belay/core/config.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Bytes of a device's memory.
struct device_memory_info {
  std::size_t free = 0;   // bytes that nobody has
  std::size_t total = 0;  // bytes that there are
};

/// Device, memory, streams and events. Every call returns a status: `succeeded(status)` tells whether it did what it
/// says, `text(status)` what the library says otherwise. What a failed call gives is not looked at. Handles of streams
/// and events are copied freely. What is queued on a stream runs in its order, later; an error of it is the status of
/// some later call, and from then on of every call.
///
/// `open()` makes the calling thread, such as the rank's host thread, one of the Api's own device, `open(number)` one
/// of the device with that number: what it makes from then on is of that device. `count_devices` says how many there
/// are, `memory_info` what the opened one has. `allocate` gives memory of the device,
/// which the host does not address; `register_host` lets the device copy to and from pages of the host. `wait` makes
/// later work of a stream begin at the place that `record` gave the event last; an event may be recorded again.
/// `query` tells whether that place is reached; `await` returns when it is, or after about so long.
template <class A>
concept device_runtime = requires(A& api, const typename A::status_type& status, typename A::stream_type stream,
                                  typename A::stream_type& made_stream, typename A::event_type event,
                                  typename A::event_type& made_event, std::byte* memory, std::byte*& made_memory,
                                  void* to, const void* from, std::size_t bytes, bool& reached,
                                  std::chrono::nanoseconds at_most, stream_kind kind, int number, int& devices,
                                  device_memory_info& room) {
  requires std::is_trivially_copyable_v<typename A::stream_type>;
  requires std::is_trivially_copyable_v<typename A::event_type>;
  { api.succeeded(status) } -> std::same_as<bool>;
  { api.text(status) } -> std::same_as<std::string>;
  { api.open() } -> std::same_as<typename A::status_type>;
  { api.open(number) } -> std::same_as<typename A::status_type>;
  { api.count_devices(devices) } -> std::same_as<typename A::status_type>;
  { api.memory_info(room) } -> std::same_as<typename A::status_type>;
  { api.allocate(made_memory, bytes) } -> std::same_as<typename A::status_type>;
  { api.release(memory) } -> std::same_as<typename A::status_type>;
  { api.register_host(memory, bytes) } -> std::same_as<typename A::status_type>;
  { api.unregister_host(memory) } -> std::same_as<typename A::status_type>;
  { api.make_stream(made_stream, kind) } -> std::same_as<typename A::status_type>;
  { api.destroy_stream(stream) } -> std::same_as<typename A::status_type>;
  { api.make_event(made_event) } -> std::same_as<typename A::status_type>;
  { api.destroy_event(event) } -> std::same_as<typename A::status_type>;
  { api.record(event, stream) } -> std::same_as<typename A::status_type>;
  { api.wait(stream, event) } -> std::same_as<typename A::status_type>;
  { api.query(event, reached) } -> std::same_as<typename A::status_type>;
  { api.await(event, at_most, reached) } -> std::same_as<typename A::status_type>;
  { api.copy(stream, to, from, bytes) } -> std::same_as<typename A::status_type>;
};

/// The arithmetic of products of float: as float says, or by tensor cores, which round operands to the 11 bits of TF32.
/// Sums are float both ways.
enum class float_products : std::uint8_t { exact, tf32 };

/// Kernels and products. `each`, `teams`, `product` and `grouped` are those of a `compute_kit`, queued on a stream:
/// never with a count of 0 or an empty c. The width of a may be 0: a sum of nothing. `workspace_bytes` is what products
/// of one stream use beside their operands, in the memory that `use_workspace` gives them; `scratch_bytes` what other
/// kernels of a kit share.
template <class A>
concept device_arithmetic = requires(A& api, typename A::stream_type stream, std::size_t n, kernel::fill<float> f,
                                     kernel_of_rows g, const product_call<float>& call,
                                     const grouped_rows_call<float>& rows, const grouped_stack_call<float>& stack,
                                     kernel::findings_note found, std::byte* memory) {
  { api.each(stream, n, f) } -> std::same_as<typename A::status_type>;
  { api.teams(stream, n, g) } -> std::same_as<typename A::status_type>;
  { api.product(stream, call) } -> std::same_as<typename A::status_type>;
  { api.grouped(stream, rows, found) } -> std::same_as<typename A::status_type>;
  { api.grouped(stream, stack, found) } -> std::same_as<typename A::status_type>;
  { api.workspace_bytes() } -> std::same_as<std::size_t>;
  { api.scratch_bytes() } -> std::same_as<std::size_t>;
  { api.use_workspace(stream, memory, n) } -> std::same_as<typename A::status_type>;
};

/// One whose library has several algorithms for products of T in C, and is told which to take. `algorithms(stream,
/// problem, answers, count)` writes its answers, the one that it holds for the fastest first, as many as there are and
/// have room, and counts them. `product_room(stream)` is the memory that the products of a stream have beside their
/// operands, `product(stream, call, way)` a product by one of the answers.
template <class A, class C, class T>
concept choosing_api = requires(A& api, typename A::stream_type stream, const product_problem& problem,
                                std::span<library_answer<typename A::algorithm_type>> answers, std::size_t& count,
                                const product_call<C, T, T>& call, const typename A::algorithm_type& way) {
  requires std::is_trivially_copyable_v<typename A::algorithm_type>;
  { api.algorithms(stream, problem, answers, count) } -> std::same_as<typename A::status_type>;
  { api.product_room(stream) } -> std::same_as<std::size_t>;
  { api.product(stream, call, way) } -> std::same_as<typename A::status_type>;
};

/// Counting, sorting and selecting, as `kernel::counted_values`, `sorted_places` and `selected_positions` say, queued
/// on a stream, with memory of the device that they use until they have run. `sort_bytes(keys, limit)` is what a sort
/// of so many keys below a limit needs of that.
template <class A>
concept device_sorting = requires(A& api, typename A::stream_type stream, std::span<std::byte> room,
                                  view<const std::int32_t, 1> values, view<std::int32_t, 1> places,
                                  view<std::int64_t, 1> counts, std::size_t limit, std::int64_t* count) {
  { api.histogram(stream, room, values, counts) } -> std::same_as<typename A::status_type>;
  { api.sort_bytes(limit, limit) } -> std::same_as<std::size_t>;
  { api.sort(stream, room, values, limit, places) } -> std::same_as<typename A::status_type>;
  { api.select(stream, room, values, places, count) } -> std::same_as<typename A::status_type>;
};

/// One that has a causal attention too: `attention(stream, call)` queues what the call asks for. Where it has none, a
/// layer makes it of products and kernels of rows. This is where that of a library, such as cuDNN, is put in.
///
///   struct my_api : belay::cuda::runtime_api {
///     using runtime_api::attention;
///     status_type attention(stream_type on, const belay::attention_call<belay::bf16>& call) const;
///     status_type attention(stream_type on, const belay::attention_gradient_call<belay::bf16>& call) const;
///   };
template <class A, class T>
concept attending_api = requires(A& api, typename A::stream_type stream, const attention_call<T>& forward,
                                 const attention_gradient_call<T>& backward) {
  { api.attention(stream, forward) } -> std::same_as<typename A::status_type>;
  { api.attention(stream, backward) } -> std::same_as<typename A::status_type>;
};

/// One that has graphs. From `begin_capture` on, what is queued on a stream is recorded and does not run, and what is
/// queued on a stream that has waited for an event of it since; those are joined again before the end. Only the calling
/// thread is bound: it does not allocate, does not wait for what is recorded, and a captured stream waits for no event
/// from outside. `end_capture` ends that whatever has gone wrong in it, and then makes nothing, else a graph that can
/// be launched. `launch` queues all of it, as often as one likes, with the pointers and scalars of then. A graph that
/// is running may be destroyed.
template <class A>
concept capturing_api = device_runtime<A> &&
    requires(A& api, typename A::stream_type stream, typename A::graph_type graph, typename A::graph_type& made) {
  requires std::is_trivially_copyable_v<typename A::graph_type>;
  { api.begin_capture(stream) } -> std::same_as<typename A::status_type>;
  { api.end_capture(stream, made) } -> std::same_as<typename A::status_type>;
  { api.launch(graph, stream) } -> std::same_as<typename A::status_type>;
  { api.destroy_graph(graph) } -> std::same_as<typename A::status_type>;
};

/// One whose events have times, for traces: `make_timed_event` gives one that is used as any other, and `elapsed` says
/// how many milliseconds the device has needed from one to another, when both are reached. Where it has none, nothing
/// that runs on the device is a span.
template <class A>
concept timing_api = requires(A& api, typename A::event_type& made, typename A::event_type event, float& milliseconds) {
  { api.make_timed_event(made) } -> std::same_as<typename A::status_type>;
  { api.elapsed(event, event, milliseconds) } -> std::same_as<typename A::status_type>;
};

/// All that the backend needs of a device.
template <class A>
concept device_api = device_runtime<A> && device_arithmetic<A> && device_sorting<A>;

}  // namespace belay::inline BELAY_ABI::cuda
