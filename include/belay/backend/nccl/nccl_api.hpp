// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the NCCL backend needs of NCCL, as an object of a policy. `runtime_nccl` (belay/backend/nccl/runtime_nccl.cuh)
// is the real one, and the only place that includes NCCL. Tests have one of the host that refuses by name what NCCL
// forbids or leaves undefined. A `library` is NCCL as one rank calls it: every call is checked there.
//
//   my_nccl nccl;  // a belay::nccl::nccl_api
//   const belay::nccl::library lib(nccl, rank.number());
//   lib.expect(nccl.make_id(id), "make_id", 0, belay::where::current());
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "belay/backend/cuda/device.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// The identifier that ranks of one communicator share before it is made: rank 0 makes it, the others get it by another
/// way.
using unique_id = std::array<std::byte, 128>;

/// Whether calls on a communicator return before they are done (`non_blocking`: their end is told by `async_error`).
enum class calls : std::uint8_t { blocking, non_blocking };

/// Ranks of a communicator that load and store each other's windows: `rank` of `ranks`, one every `stride`.
struct load_store_team {
  /// The ranks of a team that load and store each other's memory, this one's number, and the step between their
  /// numbers.
  int ranks = 0;
  int rank = 0;
  int stride = 1;
};

/// A version as NCCL counts it: 22809 is 2.28.9.
[[nodiscard]] inline std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}
/// Versions before have hangs and corrupt what small symmetric operations move.
inline constexpr int least_version = 22809;

/// Every call returns a status: `succeeded(status)`, or `in_progress(status)` of a call on a non-blocking communicator
/// whose end is not known yet, or else it has failed as `text(status)` says. What a failed call gives is not looked at.
/// Handles of communicators and windows are copied freely; one that was made from nothing is none. Elements are
/// counted, not bytes.
///
/// `init(made, ranks, id, rank, how)` and `split(of, colour, key, made, how)` make `made`, which stays where it is
/// until they are over. Children share what their parent holds, and who aborts one of them aborts all. A split with a
/// negative colour takes part and makes none. `async_error` tells what a communicator has met since: any thread may
/// ask a blocking one; a non-blocking one is asked by one thread at a time, which while `init` or `split` is under way
/// is theirs, since the answer also ends what they have begun. Any thread may `abort`, which also ends what is queued
/// on streams and the calls of other threads. Between `group_start` and `group_end` the calls of a thread are one.
///
/// `allocate` gives memory for windows. Windows are registered by all ranks alike, with the same bytes, not before the
/// communicator has run a collective; and deregistered before it ends. Where no memory of peers is addressed, the
/// window that is made may equal one of nothing. `team` is empty where peers' windows cannot be loaded and stored,
/// which is no failure; `write_pointers` queues a kernel that writes the address of each member's window into `table`,
/// memory of the device.
template <class N>
concept nccl_library =
    requires(N& api, const typename N::status_type& status, typename N::status_type& told,
             typename N::communicator_type on, typename N::communicator_type& made, typename N::window_type window,
             typename N::window_type& made_window, typename N::stream_type stream, unique_id& id,
             const unique_id& known_id, int& version, int number, calls how, std::byte* memory, std::byte*& made_memory,
             std::byte** table, std::size_t bytes, load_store_team& team, const load_store_team& known_team) {
      requires std::is_trivially_copyable_v<typename N::communicator_type>;
      requires std::is_trivially_copyable_v<typename N::window_type>;
      requires std::equality_comparable<typename N::communicator_type>;
      requires std::equality_comparable<typename N::window_type>;
      { api.succeeded(status) } -> std::same_as<bool>;
      { api.in_progress(status) } -> std::same_as<bool>;
      { api.text(status) } -> std::same_as<std::string>;
      { api.compiled_version() } -> std::same_as<int>;
      { api.version(version) } -> std::same_as<typename N::status_type>;
      { api.make_id(id) } -> std::same_as<typename N::status_type>;
      { api.init(made, number, known_id, number, how) } -> std::same_as<typename N::status_type>;
      { api.split(on, number, number, made, how) } -> std::same_as<typename N::status_type>;
      { api.async_error(on, told) } -> std::same_as<typename N::status_type>;
      { api.destroy(on) } -> std::same_as<typename N::status_type>;
      { api.abort(on) } -> std::same_as<typename N::status_type>;
      { api.group_start() } -> std::same_as<typename N::status_type>;
      { api.group_end() } -> std::same_as<typename N::status_type>;
      { api.allocate(made_memory, bytes) } -> std::same_as<typename N::status_type>;
      { api.release(memory) } -> std::same_as<typename N::status_type>;
      { api.register_window(on, memory, bytes, made_window) } -> std::same_as<typename N::status_type>;
      { api.deregister_window(on, window) } -> std::same_as<typename N::status_type>;
      { api.window_granularity() } -> std::same_as<std::size_t>;
      { api.find_team(on, team) } -> std::same_as<typename N::status_type>;
      { api.write_pointers(stream, window, known_team, table) } -> std::same_as<typename N::status_type>;
    };

/// Collectives and transfers, queued on a stream. Of memory of the device; all ranks give equal counts. `from` and `to`
/// may be the same place where the operation is in place. `type` has a reduction where one is asked for.
template <class N>
concept nccl_operations = requires(N& api, typename N::communicator_type on, typename N::stream_type stream,
                                   const void* from, void* to, std::size_t count, dtype type, reduction how, int rank) {
  { api.all_reduce(from, to, count, type, how, on, stream) } -> std::same_as<typename N::status_type>;
  { api.reduce_scatter(from, to, count, type, how, on, stream) } -> std::same_as<typename N::status_type>;
  { api.reduce(from, to, count, type, how, rank, on, stream) } -> std::same_as<typename N::status_type>;
  { api.all_gather(from, to, count, type, on, stream) } -> std::same_as<typename N::status_type>;
  { api.all_to_all(from, to, count, type, on, stream) } -> std::same_as<typename N::status_type>;
  { api.broadcast(from, to, count, type, rank, on, stream) } -> std::same_as<typename N::status_type>;
  { api.gather(from, to, count, type, rank, on, stream) } -> std::same_as<typename N::status_type>;
  { api.scatter(from, to, count, type, rank, on, stream) } -> std::same_as<typename N::status_type>;
  { api.send(from, count, type, rank, on, stream) } -> std::same_as<typename N::status_type>;
  { api.receive(to, count, type, rank, on, stream) } -> std::same_as<typename N::status_type>;
};

/// All that the backend needs of NCCL.
template <class N>
concept nccl_api = nccl_library<N> && nccl_operations<N>;

/// Whether NCCL reduces such elements: not those of 16 bits that are integers.
[[nodiscard]] constexpr bool reduced_by_nccl(dtype type) noexcept { return type != dtype::u16 && type != dtype::i16; }

/// Stays where it is: communicators of the rank point to it, and end before it. The policy outlives it.
template <nccl_api N>
class library : public cuda::library_of_rank<N> {
 public:
  /// The Api outlives it; `rank` is for what its errors say.
  explicit library(N& api, int rank = 0) noexcept : cuda::library_of_rank<N>(api, rank) {}

  /// The version that is loaded. Throws backend_error for one before 2.28.9.
  [[nodiscard]] int expect_version(where at = where::current()) const {
    int loaded = 0;
    this->expect(this->api().version(loaded), "version", 0, at);
    if (loaded < least_version)
      throw backend_error({"version", this->rank(), 0,
                           "the NCCL that is loaded is " + version_text(loaded) + "; Belay needs " +
                               version_text(least_version) + " or later: install a newer libnccl.so.2",
                           at});
    return loaded;
  }
};

}  // namespace belay::inline BELAY_ABI::nccl
