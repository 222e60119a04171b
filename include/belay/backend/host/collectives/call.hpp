// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives of this backend: how one that fits into an eager round is done at once, and what the others are.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's endpoint, and how long a call waits there.
/// Shared by all collectives: the endpoint and the limit of one call, how a buffer divides among ranks, and which
/// variant moves the bytes.
struct collective_context {
  host::collective_endpoint* endpoint;
  world_status::clock::duration limit;

  [[nodiscard]] int rank() const noexcept { return endpoint->rank(); }
  [[nodiscard]] int size() const noexcept { return endpoint->size(); }
};

[[nodiscard]] constexpr std::size_t index_of(int rank) noexcept { return static_cast<std::size_t>(rank); }

/// Where a part of a buffer lies.
struct byte_range {
  std::size_t first = 0;
  std::size_t bytes = 0;
};

/// How a buffer divides among ranks: in parts of `each` bytes, or, where there are `counts`, in so many elements of
/// `each` bytes.
struct division {
  std::size_t each = 0;
  std::span<const std::size_t> counts = {};

  [[nodiscard]] byte_range operator[](int rank) const noexcept {
    const std::size_t q = index_of(rank);
    if (counts.empty()) return {q * each, each};
    return {offset_of(counts, rank) * each, counts[q] * each};
  }
  /// The bytes of the longest part.
  [[nodiscard]] std::size_t longest(int ranks) const noexcept {
    std::size_t out = 0;
    for (int q = 0; q < ranks; ++q) out = greater_of(out, counts.empty() ? each : counts[index_of(q)] * each);
    return out;
  }
};

/// Where all buffers are mapped a rank stores its bytes into its peers' rather than that they fetch them: its own are
/// in its cache, theirs would come out of it line by line.
[[nodiscard]] inline bool stores_into_peers(algorithm how) noexcept {
  return how == algorithm::push || how == algorithm::one_shot;
}
/// Whether a root with one peer stores `bytes` into that peer's buffer rather than that the peer fetches them: where
/// all buffers are mapped, up to `most` bytes. More peers fetch at the same time.
[[nodiscard]] inline bool root_stores(const collective_endpoint& me, algorithm how, std::size_t bytes,
                                      std::size_t most) noexcept {
  return me.size() == 2 && bytes <= most && stores_into_peers(how);
}
/// Of more than `most_unshared` bytes that go between each peer and a root that has nothing to copy for itself: how
/// many the peer copies. The root copies the end of each part, which its caches may still hold.
[[nodiscard]] inline std::size_t copied_by_peers(const collective_endpoint& me, algorithm how, std::size_t bytes,
                                                 std::size_t most_unshared) noexcept {
  if (bytes <= most_unshared || !stores_into_peers(how)) return bytes;
  return (bytes - share_of(bytes, me.size())) / 64 * 64;
}

/// The variant of an operation of `bytes` a rank, once all have entered; `kind` is what is special about it.
[[nodiscard]] inline variant variant_of(const collective_endpoint& me, std::size_t bytes, selection_input kind = {}) {
  variant out = me.chosen();
  if (out.how != algorithm::automatic) return out;
  kind.forced = me.forced_algorithm();
  kind.direct = me.all_direct();
  kind.cma_possible = me.all_copy();
  kind.in_place = me.any_in_place();
  out.how = choose(kind, bytes);
  return out;
}

// The surroundings of a reduction's arithmetic: which arrays it reads and writes, and how, in the calls of this
// backend.

/// A rank's slice of `count` elements, whole cache lines.
[[nodiscard]] inline byte_range slice_of(std::size_t count, std::size_t element_bytes, int rank, int ranks) noexcept {
  const std::size_t share = share_of(count + index_of(ranks) - 1, ranks) * element_bytes;
  const std::size_t slice = (share + 63) / 64 * 64, bytes = count * element_bytes;
  const std::size_t first = lesser_of(bytes, slice * index_of(rank));
  return {first, lesser_of(slice, bytes - first)};
}

/// Reduces `bytes` of each of `me.sources()` into the first of `me.destinations()`, so many of them. Usually around the
/// caches where the machine wants that for a copy that touches as much as the operation does: of `like_copy_of` bytes.
BELAY_DECL void reduce_sources(lane_endpoint& me, const reduction_arithmetic& how, std::size_t destinations,
                               std::size_t bytes, std::size_t like_copy_of, memory_access by = memory_access::automatic,
                               int own = 0);
/// Reduces `bytes` of each of `me.sources()` into `out`. Usually around the caches where the machine wants that for a
/// copy that touches as much as the operation does: of `like_copy_of` bytes.
BELAY_DECL void reduce_sources_into(lane_endpoint& me, const reduction_arithmetic& how, std::byte* out,
                                    std::size_t bytes, std::size_t like_copy_of = 0,
                                    memory_access by = memory_access::automatic);
/// Reduces what lies `first` bytes behind the beginning of all ranks' payloads.
BELAY_DECL void reduce_payloads_into(lane_endpoint& me, const reduction_arithmetic& how, const peer_payloads& payloads,
                                     std::size_t first, std::byte* out, std::size_t bytes);
/// The sources are what lies `first` bytes behind the beginning of all ranks' inputs.
BELAY_DECL void use_inputs(collective_endpoint& me, std::size_t first);
/// Reduces into `out` the `bytes` that lie `first` bytes behind the beginning of all ranks' inputs, where not all of
/// them are mapped: peers' parts are copied by the kernel of the system into this rank's bounce buffer.
BELAY_DECL void reduce_fetched(collective_endpoint& me, const reduction_arithmetic& how, std::size_t first,
                               std::byte* out, std::size_t bytes);

/// Elements [first, first + count) of all ranks' payloads in an eager round, reduced into `out`.
inline void reduce_payloads(lane_endpoint& me, const reduction_arithmetic& how, const peer_payloads& payloads,
                            std::size_t first, std::byte* out, std::size_t count) {
  const std::size_t bytes = count * how.element_bytes;
  if (bytes > flag_payload_bytes) return reduce_payloads_into(me, how, payloads, first * how.element_bytes, out, bytes);
  how.few(payloads, me.size(), first, out, count);
}

/// Runs a collective that was checked, all but an exchange. Throws comm_error.
BELAY_DECL void run_collective(collective_context call, const op_call& what);

inline void barrier(collective_context call, const where& at) {
  call.endpoint->eager_round(algorithm::flag_line, {operation::barrier, reduction::none, {}, -1, 0, 0}, nullptr, 0,
                             call.limit, at);
}
/// Runs an all_reduce that fits into an eager round. A template, so that a benchmark can run it without what makes it
/// safe.
template <class Endpoint>
[[gnu::always_inline]] inline void all_reduce_eagerly(Endpoint& me, world_status::clock::duration limit, algorithm how,
                                                      const op_call& what) {
  me.eager_round(how, what.print(what.out_count), what.in, what.in_bytes(), limit, what.at);
  reduce_payloads(me, *what.arithmetic, me.payloads(), 0, what.out, what.out_count);
}

// Operations that fit into no eager round, each in its own file.

/// Runs an all_reduce that fits into no eager round; both buffers have `print.bytes()`.
BELAY_DECL void all_reduce_by_rendezvous(collective_context call, const fingerprint& print,
                                         const reduction_arithmetic& how, const std::byte* in, std::byte* out,
                                         const where& at);
/// Runs a reduce_scatter that fits into no eager round; `out` has `print.bytes()`, `in` as much for each rank.
BELAY_DECL void reduce_scatter_by_rendezvous(collective_context call, const fingerprint& print,
                                             const reduction_arithmetic& how, const std::byte* in, std::byte* out,
                                             const where& at);
BELAY_DECL void reduce_scatter_v_by_rendezvous(collective_context call, const fingerprint& print,
                                               const reduction_arithmetic& how, std::byte* inout,
                                               std::span<const std::size_t> counts, const where& at);
/// Runs an all_gather that fits into no eager round; `in` has `print.bytes()`, `out` as much for each rank.
BELAY_DECL void all_gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at);
BELAY_DECL void all_gather_v_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                           std::span<const std::size_t> counts, const where& at);
/// Runs an all_to_all that fits into no eager round; both buffers have `print.bytes()`.
BELAY_DECL void all_to_all_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                         std::byte* out, const where& at);
/// Runs an all_to_all_v that fits into no eager round; buffers have as many elements as their counts are together.
BELAY_DECL void all_to_all_v_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                           std::span<const std::size_t> send_counts, std::byte* out,
                                           std::span<const std::size_t> receive_counts, const where& at);
/// Runs a broadcast that fits into no eager round; `inout` has `print.bytes()`.
BELAY_DECL void broadcast_by_rendezvous(collective_context call, const fingerprint& print, std::byte* inout,
                                        const where& at);
/// Runs a reduce that fits into no eager round; `in` has `print.bytes()`, and only the root has an `out`.
BELAY_DECL void reduce_by_rendezvous(collective_context call, const fingerprint& print, const reduction_arithmetic& how,
                                     const std::byte* in, std::byte* out, const where& at);
/// Runs a gather that fits into no eager round; `in` has `print.bytes()`, and only the root has an `out`.
BELAY_DECL void gather_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                     std::byte* out, const where& at);
/// Runs a scatter that fits into no eager round; `out` has `print.bytes()`, and only the root has an `in`.
BELAY_DECL void scatter_by_rendezvous(collective_context call, const fingerprint& print, const std::byte* in,
                                      std::byte* out, const where& at);

/// Bytes below which a round is not worth its barrier. Above them there are eight rounds or more, so that ranks that
/// fill and ranks that use work at the same time.
inline constexpr std::size_t least_round_bytes = 32 * 1024;

/// The rounds in which `length` bytes of each part go through bounce buffers, of which `parts` of each rank lie in a
/// half at once. Rounds are whole elements.
///
///   for (bounce_rounds now(me, bytes, 1); now.left(); now.advance()) {
///     now.stage(0, in, bytes);
///     me.pass_round();
///     me.copies().copy(out + now.first(), now.part_of(root, 0), now.clipped(bytes));
///   }
/// Buffers that peers cannot load. Their bytes go through each rank's bounce buffer in rounds: all ranks fill one half,
/// pass a barrier, and use what the others filled, while the other half is filled for the next round.
class bounce_rounds {
 public:
  bounce_rounds(collective_endpoint& me, std::size_t length, std::size_t parts, std::size_t element_bytes = 1) noexcept
      : me_(&me), length_(length) {
    const auto whole = [=](std::size_t bytes) { return bytes / element_bytes * element_bytes; };
    const std::size_t room = whole(me.bounce_buffer_bytes() / parts), least = whole(least_round_bytes / parts);
    most_ = greater_of(lesser_of(room, greater_of(whole(length / 8), least)), element_bytes);
    bytes_ = lesser_of(most_, length_);
  }
  [[nodiscard]] bool left() const noexcept { return first_ < length_; }
  void advance() noexcept {
    ++round_;
    first_ += bytes_;
    bytes_ = lesser_of(most_, length_ - first_);
  }

  /// Where the round begins in each part.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  /// How much of the round lies in a part of `length` bytes.
  [[nodiscard]] std::size_t clipped(std::size_t length) const noexcept {
    return first_ >= length ? 0 : lesser_of(bytes_, length - first_);
  }
  /// Part `part` of what rank `who` fills in this round.
  [[nodiscard]] std::byte* part_of(int who, std::size_t part) const noexcept {
    return me_->bounce_buffer_of(who, round_) + part * bytes_;
  }
  /// Fills this rank's part `part` from a part of `length` bytes that begins at `from`.
  void stage(std::size_t part, const std::byte* from, std::size_t length) const {
    const std::size_t bytes = clipped(length);
    me_->copies().copy_by(me_->chosen().by, part_of(me_->rank(), part), from + first_, bytes);
  }

 private:
  collective_endpoint* me_;
  std::size_t length_, most_ = 0;
  std::size_t first_ = 0, bytes_ = 0, round_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/collectives/all_gather.ipp"      // IWYU pragma: export
#include "belay/backend/host/collectives/all_reduce.ipp"      // IWYU pragma: export
#include "belay/backend/host/collectives/all_to_all.ipp"      // IWYU pragma: export
#include "belay/backend/host/collectives/call.ipp"            // IWYU pragma: export
#include "belay/backend/host/collectives/reduce_scatter.ipp"  // IWYU pragma: export
#include "belay/backend/host/collectives/rooted.ipp"          // IWYU pragma: export
#endif
