// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank at a meeting point, and what is checked there: first what this rank was given, before it meets
// anybody; then, before anything is written, what only all contributions together can tell.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <string>

#include "belay/backend/host/meeting.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A rank's place at a meeting point, and how long it waits there: all it takes to run a collective.
template <class Meeting>
struct basic_party {
  Meeting* point;
  health::clock::duration limit;

  [[nodiscard]] int rank() const noexcept { return point->rank(); }
  [[nodiscard]] int size() const noexcept { return point->size(); }
  /// What rank `who` brought, where it is seen from here.
  template <class T>
  [[nodiscard]] const T* input_of(int who) const noexcept {
    return reinterpret_cast<const T*>(point->input_of(who));
  }
  template <class T>
  [[nodiscard]] T* output_of(int who) const noexcept {
    return reinterpret_cast<T*>(point->output_of(who));
  }
  /// What rank `who` brought to a small operation.
  template <class T>
  [[nodiscard]] const T* brought_by(int who) const noexcept {
    return reinterpret_cast<const T*>(point->brought_by(who));
  }
};

using party = basic_party<meeting>;

/// A larger operation's buffers.
template <class In, class Out>
[[nodiscard]] contribution brings(const fingerprint& print, std::span<In> in, std::span<Out> out,
                                  std::span<const std::size_t> send_counts = {},
                                  std::span<const std::size_t> receive_counts = {}) noexcept {
  return {print, in.data(), in.size_bytes(), out.data(), out.size_bytes(), send_counts, receive_counts};
}

/// Where a range begins in a packed buffer.
template <class Count>
[[nodiscard]] std::size_t offset_of(std::span<const Count> counts, int which) noexcept {
  return std::accumulate(counts.begin(), counts.begin() + which, std::size_t{0});
}
template <class Count>
[[nodiscard]] std::size_t total_of(std::span<const Count> counts) noexcept {
  return offset_of(counts, static_cast<int>(counts.size()));
}

inline void check_counts(std::span<const std::size_t> counts, int ranks, const char* what, const where& at) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    throw usage_error(std::string(what) + ": " + std::to_string(counts.size()) + " counts for a group of " +
                          std::to_string(ranks) + " ranks",
                      at);
  }
}
inline void check_length(std::size_t given, std::size_t needed, const char* what, const where& at) {
  if (given != needed) {
    throw usage_error(
        std::string(what) + " holds " + std::to_string(given) + " elements; this call needs " + std::to_string(needed),
        at);
  }
}
inline void check_root(int root, int ranks, const char* what, const where& at) {
  if (root < 0 || root >= ranks) {
    throw usage_error(
        std::string(what) + ": root " + std::to_string(root) + " is no rank of a group of " + std::to_string(ranks),
        at);
  }
}
/// Input and output may be the same memory only where the operation says so.
inline void check_overlap(const void* in, std::size_t in_bytes, const void* out, std::size_t out_bytes,
                          const void* allowed, const char* what, const where& at) {
  if (in_bytes == 0 || out_bytes == 0 || in == allowed) return;
  const auto* a = static_cast<const std::byte*>(in);
  const auto* b = static_cast<const std::byte*>(out);
  const std::less<const std::byte*> before;
  if (before(a, b + out_bytes) && before(b, a + in_bytes)) {
    throw usage_error(std::string(what) + ": input and output overlap other than in place", at);
  }
}

/// Vectors of counts that differ may still have the same hash: where every rank gives the whole division of a
/// buffer, the vectors themselves are compared.
template <class Party>
void expect_same_counts(Party me) {
  const auto counts = [&](int q) { return me.point->send_counts_of(q); };
  const auto first_difference = [&](int a, int b) {
    return std::mismatch(counts(a).begin(), counts(a).end(), counts(b).begin()).first - counts(a).begin();
  };
  const auto alike = [&](int a, int b) { return first_difference(a, b) == me.size(); };
  me.point->expect_alike(alike, [&](int q) {
    std::ptrdiff_t place = me.size();
    for (int other = 0; other < me.size(); ++other) place = std::min(place, first_difference(0, other));
    return me.point->offer_of(q).print().text() + ", " + std::to_string(counts(q)[static_cast<std::size_t>(place)]) +
           " of them for rank " + std::to_string(me.point->world_rank(static_cast<int>(place)));
  });
}

template <class Party>
void barrier(Party me, const where& at) {
  me.point->swap(algorithm::line, {operation::barrier, reduction::none, {}, -1, 0, 0}, nullptr, 0, me.limit, at);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
