// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank at a meeting point, and what is checked there before anything is written: what only all contributions together
// can tell.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "belay/backend/host/rendezvous/collective_endpoint.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A rank's place at a meeting point, and how long it waits there: all it takes to run a collective.
template <class Endpoint>
struct basic_collective_context {
  Endpoint* endpoint;
  world_status::clock::duration limit;

  [[nodiscard]] int rank() const noexcept { return endpoint->rank(); }
  [[nodiscard]] int size() const noexcept { return endpoint->size(); }
  [[nodiscard]] const copy_table& copies() const noexcept { return endpoint->copies(); }
  /// The rank `k` places behind this one, in a circle, for k of 0 to size - 1.
  [[nodiscard]] int behind(int k) const noexcept { return endpoint->behind(k); }
  /// What rank `who` payloads, where it is seen from here.
  template <class T>
  [[nodiscard]] const T* input_of(int who) const noexcept {
    return reinterpret_cast<const T*>(endpoint->input_of(who));
  }
  template <class T>
  [[nodiscard]] T* output_of(int who) const noexcept {
    return reinterpret_cast<T*>(endpoint->output_of(who));
  }
};

using collective_context = basic_collective_context<collective_endpoint>;

/// A larger operation's buffers.
template <class In, class Out>
[[nodiscard]] call_buffers call_buffers_of(const fingerprint& print, std::span<In> in, std::span<Out> out) noexcept {
  return {print, in.data(), in.size_bytes(), out.data(), out.size_bytes()};
}
template <class In, class Out>
[[nodiscard]] counted_call_buffers call_buffers_of(const fingerprint& print, std::span<In> in, std::span<Out> out,
                                                   std::span<const std::size_t> send_counts,
                                                   std::span<const std::size_t> receive_counts = {}) noexcept {
  return {call_buffers_of(print, in, out), send_counts, receive_counts};
}

/// Vectors of counts that differ may still have the same hash: where every rank gives the whole division of a
/// buffer, the vectors themselves are compared.
template <class Context>
void expect_same_counts(Context me) {
  const auto counts = [&](int q) { return me.endpoint->send_counts_of(q); };
  const auto first_difference = [&](int a, int b) {
    return std::mismatch(counts(a).begin(), counts(a).end(), counts(b).begin()).first - counts(a).begin();
  };
  const auto alike = [&](int a, int b) { return first_difference(a, b) == me.size(); };
  me.endpoint->expect_alike(alike, [&](int q) {
    std::ptrdiff_t place = me.size();
    for (int other = 0; other < me.size(); ++other) place = std::min(place, first_difference(0, other));
    return me.endpoint->call_text(q) + ", " + std::to_string(counts(q)[static_cast<std::size_t>(place)]) +
           " of them for rank " + std::to_string(me.endpoint->world_rank(static_cast<int>(place)));
  });
}

template <class Context>
void barrier(Context me, const where& at) {
  me.endpoint->eager_round(algorithm::flag_line, {operation::barrier, reduction::none, {}, -1, 0, 0}, nullptr, 0,
                           me.limit, at);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
