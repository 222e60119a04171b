// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations of a group of one rank: the checks of any backend, and copies. No shared memory, no peer to wait for.
// IWYU pragma: private, include "belay/belay.hpp"
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace single_rank {

using counts = std::span<const std::size_t>;

inline void run(operation_tag<operation::barrier>, const where&) noexcept {}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::all_reduce>, std::span<const T> in, std::span<T> out, Op, const where& at) {
  check_length(out.size(), in.size(), "all_reduce: the output", at);
  check_overlap(in, out, out.data(), "all_reduce", at);
  copy_elements(out.data(), in.data(), in.size());
}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::reduce_scatter>, std::span<const T> in, std::span<T> out, Op, const where& at) {
  check_length(in.size(), out.size(), "reduce_scatter: the input", at);
  check_overlap(out, in, in.data(), "reduce_scatter", at);
  copy_elements(out.data(), in.data(), in.size());
}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::reduce_scatter_v>, std::span<T> inout, counts parts, Op, const where& at) {
  check_division(inout, parts, 1, "reduce_scatter_v", "reduce_scatter_v: the buffer", at);
}

template <transferable T>
void run(operation_tag<operation::all_gather>, std::span<const T> in, std::span<T> out, const where& at) {
  check_length(out.size(), in.size(), "all_gather: the output", at);
  check_overlap(in, out, out.data(), "all_gather", at);
  copy_elements(out.data(), in.data(), in.size());
}

template <transferable T>
void run(operation_tag<operation::all_gather_v>, std::span<T> inout, counts parts, const where& at) {
  check_division(inout, parts, 1, "all_gather_v", "all_gather_v: the buffer", at);
}

template <transferable T>
void run(operation_tag<operation::all_to_all>, std::span<const T> in, std::span<T> out, const where& at) {
  check_all_to_all(in, out, 1, at);
  copy_elements(out.data(), in.data(), in.size());
}

template <transferable T>
void run(operation_tag<operation::all_to_all_v>, std::span<const T> in, counts sent, std::span<T> out, counts received,
         const where& at) {
  check_all_to_all_v(in, sent, out, received, 1, at);
  if (sent[0] != received[0]) {
    throw usage_error("all_to_all_v: the only rank sends itself " + std::to_string(sent[0]) + " elements and expects " +
                          std::to_string(received[0]),
                      at);
  }
  copy_elements(out.data(), in.data(), in.size());
}

template <transferable T>
void run(operation_tag<operation::broadcast>, std::span<T> inout, int root, const where& at) {
  check_root(root, 1, "broadcast", at);
  check_bytes(inout, "broadcast", at);
}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::reduce>, std::span<const T> in, std::span<T> out, Op, int root, const where& at) {
  check_root(root, 1, "reduce", at);
  check_length(out.size(), in.size(), "reduce: the root's output", at);
  check_overlap(in, out, out.data(), "reduce", at);
  copy_elements(out.data(), in.data(), in.size());
}

template <transferable T>
void run(operation_tag<operation::gather>, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, 1, "gather", at);
  check_length(out.size(), in.size(), "gather: the root's output", at);
  check_overlap(in, out, out.data(), "gather", at);
  copy_elements(out.data(), in.data(), in.size());
}

template <transferable T>
void run(operation_tag<operation::scatter>, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, 1, "scatter", at);
  check_length(in.size(), out.size(), "scatter: the root's input", at);
  check_overlap(out, in, in.data(), "scatter", at);
  copy_elements(out.data(), in.data(), in.size());
}

/// The n-th send of rank `number` of the world to itself meets its n-th receive. Empty, or why they do not fit.
[[nodiscard]] inline std::string exchange(std::span<const p2p> transfers, int number, const where& at) {
  static_cast<void>(check_transfers(transfers, 1, at));
  const auto next = [&](std::size_t from, p2p::direction kind) {
    while (from < transfers.size() && transfers[from].kind != kind) ++from;
    return from;
  };
  const std::string who = "rank " + std::to_string(number);
  std::size_t out = next(0, p2p::direction::send), in = next(0, p2p::direction::receive);
  for (; out < transfers.size() && in < transfers.size();
       out = next(out + 1, p2p::direction::send), in = next(in + 1, p2p::direction::receive)) {
    const p2p& sent = transfers[out];
    const p2p& expected = transfers[in];
    if (sent.bytes != expected.bytes || sent.tag != expected.tag) {
      return who + " sends itself " + std::to_string(sent.bytes) + " bytes with tag " + std::to_string(sent.tag) +
             " and expects " + std::to_string(expected.bytes) + " bytes with tag " + std::to_string(expected.tag);
    }
    if (sent.bytes > 0) std::memmove(expected.data, sent.data, sent.bytes);
  }
  if (out == in) return {};  // both are at the end
  return who +
         (out < transfers.size() ? " sends itself more often than it receives"
                                 : " receives from itself more often than it sends") +
         " in one exchange";
}

/// Runs an operation of rank `number` of `world` in a group of its own. Throws usage_error, and comm_error where the
/// world has failed or an exchange does not fit.
template <operation What, class World, class... Arguments>
void run_in(World& world, int number, const where& at, const Arguments&... arguments) {
  if (world.aborted()) world.raise({What, 0, 0, 0, at});
  if constexpr (What == operation::exchange) {
    const std::string problem = exchange(arguments..., number, at);
    if (problem.empty()) return;
    world.abort({comm_fault::mismatch, {number}, problem, at.text()});
    world.raise({What, 0, 0, 0, at});
  } else {
    run(operation_tag<What>{}, arguments..., at);
  }
}

}  // namespace single_rank
}  // namespace belay::inline BELAY_ABI
