// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The manners in which an operation can be done: which way its bytes go, and how memory is touched on that way. All
// give the same bits. Which is fastest depends on the machine, on where its ranks run and on what their caches hold, so
// a group tries them (see trials.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// `usual`: as one rank's copies are fastest on this machine. `cached`: through the caches. `fetched`: what is read is
/// fetched ahead. `owned`: what is read and then written is fetched ahead to be written. `around`: stores go around the
/// caches; `around_peers`: those into peers' buffers do. `string`: by one string instruction. `library`: by the C
/// library.
enum class memory_access : std::uint8_t {
  automatic,
  temporal,
  prefetch,
  prefetch_exclusive,
  non_temporal,
  non_temporal_remote,
  rep_movsb,
  libc
};

[[nodiscard]] constexpr const char* name(memory_access how) noexcept {
  constexpr const char* names[] = {"automatic",           "temporal",  "prefetch", "prefetch_exclusive", "non_temporal",
                                   "non_temporal_remote", "rep_movsb", "libc"};
  return names[static_cast<std::size_t>(how)];
}

struct variant {
  algorithm how = algorithm::automatic;  // what `choose` says
  memory_access by = memory_access::automatic;

  [[nodiscard]] bool operator==(const variant&) const = default;
};

/// From so many bytes of the larger buffer on manners are tried, where peers see it and where not. Below caches hold
/// what was moved last: calls in a loop that never changes its input would teach what is wrong for all others.
inline constexpr std::size_t least_tried_mapped = 4 * 1024 * 1024, least_tried_unmapped = 16 * 1024;

/// What is known of a larger operation before ranks have met.
struct call_kind {
  operation what = operation::none;
  int ranks = 1;
  bool by_vectors = false;  // reductions are, see reduce_two
  bool direct = false;      // ranks see each other's buffers
  bool cma_possible = false;
  bool in_place = false;
};

/// What comes into question, the usual manner first.
[[nodiscard]] inline std::span<const variant> variants_of(const call_kind& call) noexcept {
  using enum memory_access;
  constexpr auto push = algorithm::push, pull = algorithm::pull, usually = algorithm::automatic;
  static constexpr variant usual_only[] = {{}};
  static constexpr variant unseen[] = {
      {}, {algorithm::staged, automatic}, {algorithm::staged, non_temporal}, {algorithm::cma, automatic}};
  static constexpr variant only_staged[] = {{}, {algorithm::staged, non_temporal}};
  static constexpr variant sums[] = {
      {}, {usually, temporal}, {usually, prefetch}, {usually, non_temporal_remote}, {usually, non_temporal}};
  static constexpr variant sums_in_place[] = {
      {}, {usually, temporal}, {usually, prefetch}, {usually, prefetch_exclusive}, {usually, non_temporal}};
  static constexpr variant parts[] = {{}, {usually, temporal}, {usually, prefetch}, {usually, non_temporal}};
  static constexpr variant other_sums[] = {{}, {pull, automatic}};
  static constexpr variant moves[] = {{},
                                      {push, temporal},
                                      {push, rep_movsb},
                                      {push, non_temporal},
                                      {pull, temporal},
                                      {pull, rep_movsb},
                                      {pull, non_temporal}};
  static constexpr variant rooted_moves[] = {{}, {usually, temporal}, {usually, rep_movsb}, {usually, non_temporal}};
  static constexpr variant receipts[] = {
      {}, {usually, temporal}, {usually, rep_movsb}, {usually, non_temporal}, {usually, libc}};
  const bool moves_bytes = call.what != operation::make_symmetric && call.what != operation::barrier;
  if (call.ranks < 2 || !moves_bytes) return usual_only;
  const bool exchanges_in_place =
      call.in_place && (call.what == operation::all_to_all || call.what == operation::all_to_all_v);
  if (!call.direct) return call.cma_possible && !exchanges_in_place ? unseen : std::span<const variant>(only_staged);
  if (exchanges_in_place) return usual_only;
  switch (call.what) {
    case operation::all_reduce:
    case operation::reduce_scatter:
    case operation::reduce_scatter_v:
    case operation::reduce:
      if (call.by_vectors && call.in_place) return sums_in_place;
      if (call.what == operation::all_reduce) return call.by_vectors ? sums : std::span<const variant>(other_sums);
      return call.by_vectors ? parts : std::span<const variant>(usual_only);
    case operation::all_gather:
    case operation::all_gather_v:
    case operation::all_to_all:
    case operation::all_to_all_v: return moves;
    case operation::broadcast:
    case operation::gather:
    case operation::scatter: return rooted_moves;
    case operation::exchange: return receipts;
    default: return usual_only;
  }
}

/// The kind of copy that a manner other than the usual one asks for.
[[nodiscard]] constexpr copy_kind kind_of_copy(memory_access by) noexcept {
  switch (by) {
    case memory_access::rep_movsb: return copy_kind::rep_movsb;
    case memory_access::non_temporal: return copy_kind::streaming;
    case memory_access::libc: return copy_kind::library;
    default: return copy_kind::wide;
  }
}
/// `fast_copy` in the usual manner, or another.
inline void copy_by(memory_access by, void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) {
  copy_bytes(to, from, bytes, by == memory_access::automatic ? kind_of_copy(bytes) : kind_of_copy(by), whole_bytes);
}
inline void copy_by(memory_access by, void* to, const void* from, std::size_t bytes) {
  copy_by(by, to, from, bytes, bytes);
}
/// The same of `push_copy`.
inline void push_by(memory_access by, void* to, const void* from, std::size_t bytes, std::size_t read,
                    std::size_t moved) {
  if (by == memory_access::automatic)
    push_copy(to, from, bytes, read, moved);
  else
    copy_bytes(to, from, bytes, kind_of_copy(by), moved);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
