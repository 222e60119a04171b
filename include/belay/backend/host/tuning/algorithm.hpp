// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which way an operation's bytes go. All ways give the same bits; which is fastest depends on the size, on whether the
// peers see the buffers, and on the machine. All ranks choose by the same numbers, so they choose the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "belay/backend/host/copy/calibration.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// `line`: the data is in the line by which ranks meet (56 bytes or fewer). `page`: it is in shared memory behind the
/// line, so that ranks meet once, not before and after. `one_shot`: every rank reduces everything
/// for itself. `push`: every rank reduces a slice and stores it into all outputs. `pull`: it stores it into its own,
/// and all fetch the others'. `staged`: through staging in rounds, for buffers that peers cannot see. `kernel_copy`:
/// the kernel copies what a peer cannot see. Operations that move push wherever these would store, all others fetch.
enum class algorithm : std::uint8_t { automatic, flag_line, eager_buffer, one_shot, push, pull, staged, cma };

inline constexpr algorithm algorithms[] = {algorithm::automatic, algorithm::flag_line, algorithm::eager_buffer,
                                           algorithm::one_shot,  algorithm::push,      algorithm::pull,
                                           algorithm::staged,    algorithm::cma};

[[nodiscard]] constexpr const char* name(algorithm which) noexcept {
  switch (which) {
    case algorithm::automatic: return "automatic";
    case algorithm::flag_line: return "line";
    case algorithm::eager_buffer: return "page";
    case algorithm::one_shot: return "one_shot";
    case algorithm::push: return "push";
    case algorithm::pull: return "pull";
    case algorithm::staged: return "staged";
    case algorithm::cma: return "kernel_copy";
  }
  return "unknown";
}

/// Throws input_error, with all names, for what is none.
[[nodiscard]] inline algorithm algorithm_named(std::string_view text) {
  std::string known;
  for (const algorithm each : algorithms) {
    if (text == name(each)) return each;
    known += (known.empty() ? "" : ", ") + std::string(name(each));
  }
  throw input_error("no algorithm is called " + std::string(text) + ": there are " + known);
}

/// BELAY_ALGORITHM, or automatic.
[[nodiscard]] inline algorithm algorithm_of_environment() {
  const char* const text = std::getenv("BELAY_ALGORITHM");
  return text == nullptr || *text == '\0' ? algorithm::automatic : algorithm_named(text);
}

/// What is known of a call when the way is chosen; the same on all ranks.
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

/// Who writes pages, and what of them a peer reads.
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
                               ? std::min(eager_buffer_bytes(ranks), most_in_all_eager_buffers)
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
/// The same of a root that has nothing to copy for itself: it and its peer are sooner done when each copies a part.
inline constexpr std::size_t most_stored_by_free_root = 8 * 1024;

/// Which copy for which size on this machine. Timed once a process, at the first copy that is large enough to differ.
[[nodiscard]] inline const copy_choice& machine_copies() {
  static const copy_choice timed = probe_copies();
  return timed;
}
/// The same for copies of `least_large_copy` or more, at the first of them.
[[nodiscard]] inline const copy_choice& large_machine_copies() {
  static const copy_choice timed = probe_large_copies();
  return timed;
}

/// From here on copies are timed; below they are chosen by what they cost between two cores, which a probe within one
/// rank does not see. The library's is best below a few KiB, one string instruction while its start matters less than
/// the lines that it does not read.
inline constexpr std::size_t least_timed_copy = 128 * 1024, least_string_copy = 4 * 1024, most_string_copy = 16 * 1024;

/// What was timed of copies of `bytes`, `least_timed_copy` or more.
[[nodiscard]] inline const copy_choice& timed_copies(std::size_t bytes) {
  return bytes >= least_large_copy ? large_machine_copies() : machine_copies();
}
/// Whether what each rank reads and writes `bytes` of is better stored around the caches.
[[nodiscard]] inline bool stores_around(std::size_t bytes) {
  return bytes >= least_timed_copy && timed_copies(bytes).streams(bytes);
}

/// What is fastest here for a copy of `bytes`.
[[nodiscard]] inline copy_kind kind_of_copy(std::size_t bytes) {
  if (bytes >= least_timed_copy) return timed_copies(bytes).of(bytes);
  if (bytes < least_string_copy) return copy_kind::library;
  return bytes <= most_string_copy && strings_take_lines() ? copy_kind::rep_movsb : copy_kind::wide;
}

/// Copies by what is fastest here; a piece of `whole_bytes` that are copied after each other.
inline void fast_copy(void* to, const void* from, std::size_t bytes, std::size_t whole_bytes) {
  copy_bytes(to, from, bytes, kind_of_copy(bytes), whole_bytes);
}
inline void fast_copy(void* to, const void* from, std::size_t bytes) { fast_copy(to, from, bytes, bytes); }

/// From the second of these on what ranks store into each other's buffers does not fit into the caches next to the
/// cores, up to the third it does into the one behind them. There, and up to the first, the string instruction takes
/// lines over that vectors would read first.
inline constexpr std::size_t most_short_push = 32 * 1024, least_string_push = 512 * 1024,
                             most_string_push = 4 * 1024 * 1024;

/// Copies as `fast_copy` a piece of the `moved` bytes that a rank stores into its peers' and its own buffers, out of
/// `read` ones of its own.
inline void push_copy(void* to, const void* from, std::size_t bytes, std::size_t read, std::size_t moved) {
  // A copy of n bytes reads as many as it stores.
  copy_kind how = kind_of_copy((read + moved) / 2);
  const bool takes_over = moved <= most_short_push || (moved >= least_string_push && moved < most_string_push);
  if (takes_over && how != copy_kind::streaming && bytes >= least_string_copy && strings_take_lines()) {
    how = copy_kind::rep_movsb;
  }
  copy_bytes(to, from, bytes, how, moved);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
