// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every backend checks of a call by itself: what this rank was given, before it waits for any other.
// IWYU pragma: private, include "belay/belay.hpp"
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// What each of `ranks` gets of `total`, rounded down. A power of two divides by a shift, because a division takes long
/// beside a small operation.
[[nodiscard]] constexpr std::size_t share_of(std::size_t total, int ranks) noexcept {
  const auto n = static_cast<unsigned>(ranks);
  return std::has_single_bit(n) ? total >> std::countr_zero(n) : total / n;
}

/// Elements of a buffer that holds `each` of every rank.
[[nodiscard]] constexpr checked_size all_parts(std::size_t each, int ranks) noexcept {
  return checked_size(each) * static_cast<std::size_t>(ranks);
}

/// Where a range begins in a packed buffer, of counts that were checked.
template <class Count>
[[nodiscard]] std::size_t offset_of(std::span<const Count> counts, int which) noexcept {
  return std::accumulate(counts.begin(), counts.begin() + which, std::size_t{0});
}
template <class Count>
[[nodiscard]] std::size_t total_of(std::span<const Count> counts) noexcept {
  return offset_of(counts, static_cast<int>(counts.size()));
}

/// The text of an error is put together out of line, so that correct calls stay short.
template <class Words>
[[noreturn, gnu::cold, gnu::noinline]] void refuse_call(Words words, const where& at) {
  throw usage_error(words(), at);
}

template <class Words>
[[noreturn, gnu::cold, gnu::noinline]] void refuse_size(Words words, const where& at) {
  throw size_error(words(), at);
}

/// The bytes of a buffer fit into a number. A span does not check what it was made with.
template <class T>
void check_bytes(std::span<T> buffer, const char* what, const where& at) {
  if (buffer.size() <= largest_size / sizeof(T)) return;
  const auto words = [given = buffer.size(), what] {
    return std::string(what) + ": a buffer of " + std::to_string(given) + " elements of " + std::to_string(sizeof(T)) +
           " bytes is";
  };
  refuse_size(words, at);
}
/// A buffer of `given` elements is as long as the call needs it.
inline void check_length(std::size_t given, checked_size needed, const char* what, const where& at) {
  if (given == needed.saturated()) return;
  const auto words = [=] {
    return std::string(what) + " holds " + std::to_string(given) + " elements; this call needs";
  };
  if (!needed.fits()) refuse_size(words, at);
  refuse_call([=] { return words() + " " + std::to_string(needed.saturated()); }, at);
}
/// One count for each rank, which together divide a buffer: then all offsets lie within it.
template <class T>
void check_division(std::span<T> buffer, std::span<const std::size_t> counts, int ranks, const char* what,
                    const char* whose, const where& at) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    const auto words = [given = counts.size(), ranks, what] {
      return std::string(what) + ": " + std::to_string(given) + " counts for a group of " + std::to_string(ranks) +
             " ranks";
    };
    refuse_call(words, at);
  }
  checked_size total;
  for (std::size_t count : counts) total += count;
  if (!(total * sizeof(T)).fits()) {
    const auto words = [=] {
      std::size_t rank = 0;
      for (checked_size so_far = counts[0]; (so_far * sizeof(T)).fits(); so_far += counts[rank]) ++rank;
      return std::string(what) + ": the counts up to that of rank " + std::to_string(rank) + ", which is " +
             std::to_string(counts[rank]) + " elements of " + std::to_string(sizeof(T)) + " bytes, are together";
    };
    refuse_size(words, at);
  }
  check_length(buffer.size(), total, whose, at);
}
inline void check_root(int root, int ranks, const char* what, const where& at) {
  if (root >= 0 && root < ranks) return;
  const auto words = [=] {
    return std::string(what) + ": root " + std::to_string(root) + " is no rank of a group of " + std::to_string(ranks);
  };
  refuse_call(words, at);
}
/// Input and output overlap only where the operation is in place.
template <class In, class Out>
void check_overlap(std::span<In> in, std::span<Out> out, const void* allowed, const char* what, const where& at) {
  check_bytes(in, what, at);
  check_bytes(out, what, at);
  if (in.empty() || out.empty() || in.data() == allowed) return;
  const auto* a = reinterpret_cast<const std::byte*>(in.data());
  const auto* b = reinterpret_cast<const std::byte*>(out.data());
  const std::less<const std::byte*> before;
  if (!before(a, b + out.size_bytes()) || !before(b, a + in.size_bytes())) return;
  refuse_call([what] { return std::string(what) + ": input and output overlap other than in place"; }, at);
}

template <class T>
void check_all_to_all(std::span<const T> in, std::span<T> out, int ranks, const where& at) {
  check_length(out.size(), in.size(), "all_to_all: the output", at);
  check_overlap(in, out, out.data(), "all_to_all", at);
  if (share_of(in.size(), ranks) * static_cast<std::size_t>(ranks) == in.size()) return;
  const auto words = [given = in.size(), ranks] {
    return "all_to_all: " + std::to_string(given) + " elements do not divide among " + std::to_string(ranks) +
           " ranks; use all_to_all_v";
  };
  refuse_call(words, at);
}
/// In place where each rank is sent as much as it sends.
template <class T>
void check_all_to_all_v(std::span<const T> in, std::span<const std::size_t> send_counts, std::span<T> out,
                        std::span<const std::size_t> receive_counts, int ranks, const where& at) {
  check_division(in, send_counts, ranks, "all_to_all_v: what is sent", "all_to_all_v: the input", at);
  check_division(out, receive_counts, ranks, "all_to_all_v: what is received", "all_to_all_v: the output", at);
  const bool exchanges = std::equal(send_counts.begin(), send_counts.end(), receive_counts.begin());
  check_overlap(in, out, exchanges ? out.data() : nullptr, "all_to_all_v", at);
}

/// Transfers with ranks of the group, whose bytes together fit into a number, which is returned.
template <class Transfer>
[[nodiscard]] std::size_t check_transfers(std::span<const Transfer> transfers, int ranks, const where& at) {
  checked_size bytes;
  for (const Transfer& transfer : transfers) {
    bytes += transfer.bytes;
    if (transfer.peer >= 0 && transfer.peer < ranks) continue;
    const auto words = [peer = transfer.peer, ranks] {
      return "exchange: peer " + std::to_string(peer) + " is no rank of a group of " + std::to_string(ranks);
    };
    refuse_call(words, at);
  }
  if (bytes.fits()) return bytes.saturated();
  const auto words = [&] {
    std::size_t first = 0;
    for (checked_size so_far = transfers[0].bytes; so_far.fits(); so_far += transfers[first].bytes) ++first;
    return "exchange: " + std::to_string(transfers[first].bytes) + " bytes with rank " +
           std::to_string(transfers[first].peer) + " are, with those before,";
  };
  refuse_size(words, at);
}

/// The members of a new group, ascending: ranks of a world of `ranks`, each once, `own` among them.
inline void check_members(std::span<const int> sorted, int ranks, int own, const where& at) {
  if (sorted.empty()) throw usage_error("a group needs at least one rank", at);
  if (sorted.front() < 0 || sorted.back() >= ranks) {
    throw usage_error("a group names a rank outside of the world of " + std::to_string(ranks), at);
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw usage_error("a group names a rank twice", at);
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), own)) {
    throw usage_error("rank " + std::to_string(own) + " makes a group that it is not in", at);
  }
}

}  // namespace belay::inline BELAY_ABI
