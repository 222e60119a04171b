// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a group over NCCL checks of each operation by itself, and how it is queued. A queue is `operations`, or
// `lone_operations` of one rank. NCCL compares nothing of what ranks are given.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// How reductions are added. `any`: as NCCL does, whose order depends on the machine. `fixed_order`: by Belay, in rank
/// order, with the bits of every backend that sums so; each rank then moves and adds what it takes in that order.
enum class sums : std::uint8_t { any, fixed_order };

/// To say so where a world is made: `nccl::world(api, nccl, control, nccl::adds<nccl::sums::any>{})`.
template <sums>
struct adds {};

/// Whether Belay adds elements of T itself.
template <sums Sums, class T>
inline constexpr bool adds_in_order = Sums == sums::fixed_order || !reduced_by_nccl<T>;

/// Who checks a call: a rank of a group, and where it was called.
struct calling_rank {
  int rank;
  int ranks;
  where at;

  template <class T>
  [[nodiscard]] const T* part_of(const T* whole, std::size_t part) const noexcept {
    return whole + static_cast<std::size_t>(rank) * part;
  }
};

namespace group_calls {

using counts = std::span<const std::size_t>;

// Each `check` throws usage_error, and returns the bytes that messages name; each `queue` does what was checked.

inline std::size_t check(operation_tag<operation::barrier>, const calling_rank&) noexcept { return 0; }
template <sums>
void queue(operation_tag<operation::barrier>, const auto& on) {
  on.barrier();
}

template <reducible T, reduction_tag Op>
std::size_t check(operation_tag<operation::all_reduce>, const calling_rank& of, std::span<const T> in, std::span<T> out,
                  Op) {
  check_length(out.size(), in.size(), "all_reduce: the output", of.at);
  check_overlap(in, out, out.data(), "all_reduce", of.at);
  return in.size_bytes();
}
template <sums Sums, reducible T, reduction_tag Op>
void queue(operation_tag<operation::all_reduce>, const auto& on, std::span<const T> in, std::span<T> out, Op op) {
  if constexpr (adds_in_order<Sums, T>)
    on.template ordered_all_reduce<T>(in, out, op);
  else
    on.template all_reduce<T>(in, out, op);
}

template <reducible T, reduction_tag Op>
std::size_t check(operation_tag<operation::reduce_scatter>, const calling_rank& of, std::span<const T> in,
                  std::span<T> out, Op) {
  check_length(in.size(), all_parts(out.size(), of.ranks), "reduce_scatter: the input", of.at);
  check_overlap(std::span<const T>(out), in, of.part_of(in.data(), out.size()), "reduce_scatter", of.at);
  return in.size_bytes();
}
template <sums Sums, reducible T, reduction_tag Op>
void queue(operation_tag<operation::reduce_scatter>, const auto& on, std::span<const T> in, std::span<T> out, Op op) {
  if constexpr (adds_in_order<Sums, T>)
    on.template ordered_reduce_scatter<T>(in, out, op);
  else
    on.template reduce_scatter<T>(in, out, op);
}

template <reducible T, reduction_tag Op>
std::size_t check(operation_tag<operation::reduce_scatter_v>, const calling_rank& of, std::span<T> inout, counts parts,
                  Op) {
  check_division(inout, parts, of.ranks, "reduce_scatter_v", "reduce_scatter_v: the buffer", of.at);
  return inout.size_bytes();
}
template <sums Sums, reducible T, reduction_tag Op>
void queue(operation_tag<operation::reduce_scatter_v>, const auto& on, std::span<T> inout, counts parts, Op op) {
  if constexpr (adds_in_order<Sums, T>)
    on.template ordered_reduce_scatter_v<T>(inout, parts, op);
  else
    on.template reduce_scatter_v<T>(inout, parts, op);
}

template <reducible T, reduction_tag Op>
std::size_t check(operation_tag<operation::reduce>, const calling_rank& of, std::span<const T> in, std::span<T> out, Op,
                  int root) {
  check_root(root, of.ranks, "reduce", of.at);
  check_bytes(in, "reduce", of.at);
  if (of.rank == root) {
    check_length(out.size(), in.size(), "reduce: the root's output", of.at);
    check_overlap(in, out, out.data(), "reduce", of.at);
  }
  return in.size_bytes();
}
template <sums Sums, reducible T, reduction_tag Op>
void queue(operation_tag<operation::reduce>, const auto& on, std::span<const T> in, std::span<T> out, Op op, int root) {
  if constexpr (adds_in_order<Sums, T>)
    on.template ordered_reduce<T>(in, out, op, root);
  else
    on.template reduce<T>(in, out, op, root);
}

template <transferable T>
std::size_t check(operation_tag<operation::all_gather>, const calling_rank& of, std::span<const T> in,
                  std::span<T> out) {
  check_length(out.size(), all_parts(in.size(), of.ranks), "all_gather: the output", of.at);
  check_overlap(in, out, of.part_of(out.data(), in.size()), "all_gather", of.at);
  return out.size_bytes();
}
template <sums, transferable T>
void queue(operation_tag<operation::all_gather>, const auto& on, std::span<const T> in, std::span<T> out) {
  on.all_gather(std::as_bytes(in), std::as_writable_bytes(out));
}

template <transferable T>
std::size_t check(operation_tag<operation::all_gather_v>, const calling_rank& of, std::span<T> inout, counts parts) {
  check_division(inout, parts, of.ranks, "all_gather_v", "all_gather_v: the buffer", of.at);
  return inout.size_bytes();
}
template <sums, transferable T>
void queue(operation_tag<operation::all_gather_v>, const auto& on, std::span<T> inout, counts parts) {
  on.all_gather_v(std::as_writable_bytes(inout), parts, sizeof(T));
}

template <transferable T>
std::size_t check(operation_tag<operation::all_to_all>, const calling_rank& of, std::span<const T> in,
                  std::span<T> out) {
  check_all_to_all(in, out, of.ranks, of.at);
  return out.size_bytes();
}
template <sums, transferable T>
void queue(operation_tag<operation::all_to_all>, const auto& on, std::span<const T> in, std::span<T> out) {
  on.all_to_all(std::as_bytes(in), std::as_writable_bytes(out));
}

template <transferable T>
std::size_t check(operation_tag<operation::all_to_all_v>, const calling_rank& of, std::span<const T> in, counts sent,
                  std::span<T> out, counts received) {
  check_all_to_all_v(in, sent, out, received, of.ranks, of.at);
  const auto own = static_cast<std::size_t>(of.rank);
  if (sent[own] != received[own])
    throw usage_error("all_to_all_v: rank " + std::to_string(of.rank) + " of the group sends itself " +
                          std::to_string(sent[own]) + " elements and expects " + std::to_string(received[own]),
                      of.at);
  return out.size_bytes();
}
template <sums, transferable T>
void queue(operation_tag<operation::all_to_all_v>, const auto& on, std::span<const T> in, counts sent, std::span<T> out,
           counts received) {
  on.all_to_all_v(std::as_bytes(in), sent, std::as_writable_bytes(out), received, sizeof(T));
}

template <transferable T>
std::size_t check(operation_tag<operation::broadcast>, const calling_rank& of, std::span<T> inout, int root) {
  check_root(root, of.ranks, "broadcast", of.at);
  check_bytes(inout, "broadcast", of.at);
  return inout.size_bytes();
}
template <sums, transferable T>
void queue(operation_tag<operation::broadcast>, const auto& on, std::span<T> inout, int root) {
  on.broadcast(std::as_writable_bytes(inout), root);
}

template <transferable T>
std::size_t check(operation_tag<operation::gather>, const calling_rank& of, std::span<const T> in, std::span<T> out,
                  int root) {
  check_root(root, of.ranks, "gather", of.at);
  check_bytes(in, "gather", of.at);
  if (of.rank == root) {
    check_length(out.size(), all_parts(in.size(), of.ranks), "gather: the root's output", of.at);
    check_overlap(in, out, of.part_of(out.data(), in.size()), "gather", of.at);
  }
  return in.size_bytes();
}
template <sums, transferable T>
void queue(operation_tag<operation::gather>, const auto& on, std::span<const T> in, std::span<T> out, int root) {
  on.gather(std::as_bytes(in), std::as_writable_bytes(out), root);
}

template <transferable T>
std::size_t check(operation_tag<operation::scatter>, const calling_rank& of, std::span<const T> in, std::span<T> out,
                  int root) {
  check_root(root, of.ranks, "scatter", of.at);
  check_bytes(out, "scatter", of.at);
  if (of.rank == root) {
    check_length(in.size(), all_parts(out.size(), of.ranks), "scatter: the root's input", of.at);
    check_overlap(std::span<const T>(out), in, of.part_of(in.data(), out.size()), "scatter", of.at);
  }
  return out.size_bytes();
}
template <sums, transferable T>
void queue(operation_tag<operation::scatter>, const auto& on, std::span<const T> in, std::span<T> out, int root) {
  on.scatter(std::as_bytes(in), std::as_writable_bytes(out), root);
}

inline std::size_t check(operation_tag<operation::exchange>, const calling_rank& of, std::span<const p2p> transfers) {
  return check_transfers(transfers, of.ranks, of.at);
}
template <sums>
void queue(operation_tag<operation::exchange>, const auto& on, std::span<const p2p> transfers) {
  on.exchange(transfers);
}

}  // namespace group_calls
}  // namespace belay::inline BELAY_ABI::nccl
