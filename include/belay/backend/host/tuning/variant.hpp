// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The manners in which an operation can be done: which way its bytes go, and how memory is touched on that way. All give
// the same bits. Which is fastest depends on the machine, on where its ranks run and on what their caches hold, so a group
// tries them (see trials.hpp).
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
/// caches; `around_peers`: those into peers' buffers do. `string`: by one string instruction. `library`: by the C library.
enum class touch : std::uint8_t { usual, cached, fetched, owned, around, around_peers, string, library };

[[nodiscard]] constexpr const char* name(touch how) noexcept {
  constexpr const char* names[] = {"usual", "cached", "fetched", "owned", "around", "around_peers", "string", "library"};
  return names[static_cast<std::size_t>(how)];
}

struct variant {
  algorithm how = algorithm::automatic;  // what `choose` says
  touch by = touch::usual;

  [[nodiscard]] bool operator==(const variant&) const = default;
};

/// From so many bytes of the larger buffer on manners are tried, where peers see it and where not. Below caches hold what was
/// moved last: calls in a loop that never changes its input would teach what is wrong for all others.
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
  using enum touch;
  constexpr auto push = algorithm::push, pull = algorithm::pull, usually = algorithm::automatic;
  static constexpr variant usual_only[] = {{}};
  static constexpr variant unseen[] = {{}, {algorithm::staged, usual}, {algorithm::staged, around}, {algorithm::cma, usual}};
  static constexpr variant only_staged[] = {{}, {algorithm::staged, around}};
  static constexpr variant sums[] = {{}, {usually, cached}, {usually, fetched}, {usually, around_peers}, {usually, around}};
  static constexpr variant sums_in_place[] = {{}, {usually, cached}, {usually, fetched}, {usually, owned}, {usually, around}};
  static constexpr variant parts[] = {{}, {usually, cached}, {usually, fetched}, {usually, around}};
  static constexpr variant other_sums[] = {{}, {pull, usual}};
  static constexpr variant moves[] = {{},          {push, cached}, {push, string}, {push, around}, {pull, cached}, {pull, string},
                                     {pull, around}};
  static constexpr variant rooted_moves[] = {{}, {usually, cached}, {usually, string}, {usually, around}};
  static constexpr variant receipts[] = {{}, {usually, cached}, {usually, string}, {usually, around}, {usually, library}};
  const bool moves_bytes = call.what != operation::make_symmetric && call.what != operation::barrier;
  if (call.ranks < 2 || !moves_bytes) return usual_only;
  const bool exchanges_in_place = call.in_place && (call.what == operation::all_to_all || call.what == operation::all_to_all_v);
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
[[nodiscard]] constexpr copy_kind kind_of_copy(touch by) noexcept {
  switch (by) {
    case touch::string: return copy_kind::rep_movsb;
    case touch::around: return copy_kind::streaming;
    case touch::library: return copy_kind::library;
    default: return copy_kind::wide;
  }
}
/// `fast_copy` in the usual manner, or another.
inline void copy_by(touch by, void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) {
  copy_bytes(to, from, bytes, by == touch::usual ? kind_of_copy(bytes) : kind_of_copy(by), whole_bytes);
}
inline void copy_by(touch by, void* to, const void* from, std::size_t bytes) { copy_by(by, to, from, bytes, bytes); }
/// The same of `push_copy`.
inline void push_by(touch by, void* to, const void* from, std::size_t bytes, std::size_t read, std::size_t moved) {
  if (by == touch::usual) push_copy(to, from, bytes, read, moved);
  else copy_bytes(to, from, bytes, kind_of_copy(by), moved);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
