// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The algorithms by which an operation's bytes go, and the static rules that choose one. All give the same bits. The
// rules use only what all ranks know, so that all choose the same.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/copy.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// `flag_line`: the data (56 bytes or fewer) is in the flag line that announces the call. `eager_buffer`: it is in
/// shared memory behind the flag line, so that ranks wait for each other once. `one_shot`: every rank reduces
/// everything for itself. `push`: every rank reduces a slice and stores it into all outputs. `pull`: it stores the
/// slice into its own output and fetches the others. `staged`: in rounds through bounce buffers, for buffers that peers
/// have not mapped. `cma`: the kernel copies from such buffers (cross-memory attach). Operations that only move bytes
/// store into peers' buffers with `push` and fetch with all others. `name` gives the values of BELAY_ALGORITHM.
enum class algorithm : std::uint8_t { automatic, flag_line, eager_buffer, one_shot, push, pull, staged, cma };

inline constexpr algorithm algorithms[] = {algorithm::automatic, algorithm::flag_line, algorithm::eager_buffer,
                                           algorithm::one_shot,  algorithm::push,      algorithm::pull,
                                           algorithm::staged,    algorithm::cma};

[[nodiscard]] constexpr const char* name(algorithm which) noexcept {
  switch (which) {
    case algorithm::automatic: return "automatic";
    case algorithm::flag_line: return "flag_line";
    case algorithm::eager_buffer: return "eager_buffer";
    case algorithm::one_shot: return "one_shot";
    case algorithm::push: return "push";
    case algorithm::pull: return "pull";
    case algorithm::staged: return "staged";
    case algorithm::cma: return "cma";
  }
  return "unknown";
}

/// Throws input_error, which lists all names, or tells the new one of a name until 0.2.
[[nodiscard]] inline algorithm algorithm_named(std::string_view text) {
  constexpr std::pair<std::string_view, algorithm> before[] = {
      {"line", algorithm::flag_line}, {"page", algorithm::eager_buffer}, {"kernel_copy", algorithm::cma}};
  for (const auto& [old, each] : before)
    if (text == old) throw input_error("the algorithm " + std::string(text) + " is called " + name(each) + " now");
  std::string known;
  for (const algorithm each : algorithms) {
    if (text == name(each)) return each;
    known += (known.empty() ? "" : ", ") + std::string(name(each));
  }
  throw input_error("no algorithm is called " + std::string(text) + ": there are " + known);
}

/// BELAY_ALGORITHM, or automatic.
[[nodiscard]] inline algorithm algorithm_of_environment() {
  const char* const text = environment_variable("BELAY_ALGORITHM");
  return text == nullptr || *text == '\0' ? algorithm::automatic : algorithm_named(text);
}

/// The properties of a call by which its way is chosen; the same on all ranks.
struct selection_input {
  algorithm forced = algorithm::automatic;
  bool direct = true;         // every rank sees every buffer
  bool cma_possible = false;  // the kernel copies for every rank
  bool slices = false;        // of the bytes each rank fetches a slice at a time
  bool root_reduces = false;  // one rank wants the reduction of what all have
  bool in_place = false;      // some rank's output is its input
};

/// Bytes that a line holds.
inline constexpr std::size_t flag_payload_bytes = 56;

/// Bytes of a page in a group of `ranks`.
[[nodiscard]] constexpr std::size_t eager_buffer_bytes(int ranks) noexcept {
  return ranks <= 8 ? 2048 : ranks <= 64 ? 1024 : 256;
}

/// Up to here every peer may read all of a rank's page: more lines on their way cost more than to meet a second time.
inline constexpr std::size_t most_in_all_eager_buffers = 1024;

/// Which ranks write their eager buffers, and how much of one a peer reads.
enum class eager_traffic : std::uint8_t { all, all_in_parts, root };

/// The way of an operation of which each rank brings at most `bytes`, in elements of `element_bytes`, if they can go
/// along where the ranks meet: in a line or a page. Otherwise automatic.
[[nodiscard, gnu::always_inline]] constexpr algorithm choose_small(algorithm forced, std::size_t bytes,
                                                                   std::size_t element_bytes, int ranks,
                                                                   eager_traffic which) noexcept {
  const bool free = forced == algorithm::automatic || forced == algorithm::flag_line;
  if (free && bytes <= flag_payload_bytes && element_bytes <= flag_payload_bytes && ranks < 511)
    return algorithm::flag_line;
  const std::size_t most = free && which == eager_traffic::all
                               ? lesser_of(eager_buffer_bytes(ranks), most_in_all_eager_buffers)
                               : eager_buffer_bytes(ranks);
  return (free || forced == algorithm::eager_buffer) && bytes <= most ? algorithm::eager_buffer : algorithm::automatic;
}

/// Up to here each rank reduces all: a second exchange of slices costs more than the arithmetic twice.
inline constexpr std::size_t most_one_shot = 2 * 1024;
/// From here on the kernel's single copy usually beats two through staging.
inline constexpr std::size_t least_cma = 32 * 1024;

/// Up to here a staged all_reduce is one_shot too: slices take one more meeting.
inline constexpr std::size_t most_staged_one_shot = 16 * 1024;

/// For an operation of `bytes` a rank that is not small, where every rank sees every buffer and nothing is forced.
[[nodiscard]] constexpr algorithm choose_usual(std::size_t bytes, bool in_place) noexcept {
  // In place nobody may read all of what others write.
  return bytes <= most_one_shot && !in_place ? algorithm::one_shot : algorithm::push;
}

/// For an operation of `bytes` a rank that is not small. A forced way that cannot be gone is not.
[[nodiscard]] constexpr algorithm choose(const selection_input& known, std::size_t bytes) noexcept {
  const algorithm usual = choose_usual(bytes, known.in_place);
  if (known.direct && known.forced == algorithm::automatic) return usual;
  if (known.forced == algorithm::staged) return known.forced;
  if (known.forced == algorithm::cma && known.cma_possible) return known.forced;
  if (!known.direct) {
    // What a root reduces the others stage meanwhile; it alone would call the kernel.
    const std::size_t least = known.slices ? 2 * least_cma : least_cma;
    const bool single = known.cma_possible && !known.root_reduces && bytes >= least;
    return single ? algorithm::cma : algorithm::staged;
  }
  if (known.forced == algorithm::push || known.forced == algorithm::pull) return known.forced;
  return known.forced == algorithm::one_shot && !known.in_place ? known.forced : usual;
}

/// Up to here a root stores into its peer's buffer; lines of a larger one are slower to get from the peer's caches.
inline constexpr std::size_t most_stored_by_root = 128 * 1024;
/// Up to here a root that has nothing to copy for itself stores into its peer's buffer: of a larger one, it and its
/// peer are sooner done when each copies a part.
inline constexpr std::size_t most_stored_by_free_root = 8 * 1024;

/// The variants of an operation: an algorithm and a memory access. All give the same bits. Which is fastest depends on
/// the machine, on the cores of its ranks and on what their caches hold, so a group tries them (see online_tuner.hpp).
struct variant {
  algorithm how = algorithm::automatic;  // by the static rules
  memory_access by = memory_access::automatic;

  [[nodiscard]] bool operator==(const variant&) const = default;
};

/// From this many bytes of the larger buffer on variants are tried, for buffers that peers have mapped and for others.
/// Below, caches hold what was moved last: a loop that never changes its input would teach what is wrong elsewhere.
inline constexpr std::size_t least_tried_mapped = 4 * 1024 * 1024, least_tried_unmapped = 16 * 1024;

/// The properties of a call that are known before its ranks have met.
struct call_kind {
  operation what = operation::none;
  int ranks = 1;
  bool by_vectors = false;    // a reduction by reduce_two
  bool direct = false;        // every rank has every buffer mapped
  bool cma_possible = false;  // the kernel lets ranks read each other's memory
  bool in_place = false;
};

/// The variants of a call; the first is that of the static rules.
[[nodiscard]] inline std::span<const variant> variants_of(const call_kind& call) noexcept {
  using enum memory_access;
  constexpr auto push = algorithm::push, pull = algorithm::pull, usually = algorithm::automatic;
  static constexpr variant usual_only[] = {{}};
  static constexpr variant unseen[] = {
      {}, {algorithm::staged, automatic}, {algorithm::staged, non_temporal}, {algorithm::cma, automatic}};
  static constexpr variant only_staged[] = {{}, {algorithm::staged, non_temporal}};
  static constexpr variant sums[] = {{}, {usually, temporal}, {usually, non_temporal_remote}, {usually, non_temporal}};
  static constexpr variant sums_in_place[] = {{}, {usually, temporal}};
  static constexpr variant parts[] = {{}, {usually, temporal}, {usually, prefetch}, {usually, non_temporal}};
  static constexpr variant other_sums[] = {{}, {pull, automatic}};
  static constexpr variant moves[] = {{}, {push, rep_movsb}, {push, non_temporal}, {pull, rep_movsb}};
  static constexpr variant rooted_moves[] = {{}, {usually, rep_movsb}, {usually, non_temporal}};
  static constexpr variant receipts[] = {{}, {usually, temporal}, {usually, rep_movsb}, {usually, non_temporal}};
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

}  // namespace host
}  // namespace belay::inline BELAY_ABI
