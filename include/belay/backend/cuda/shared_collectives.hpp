// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives of ranks that share a device: what each of them sends and takes. Reductions have the bits of the
// host's.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "belay/backend/cuda/group_member.hpp"
#include "belay/backend/cuda/reduced_slots.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::cuda::collectives {

[[nodiscard]] inline piece piece_of(const std::byte* first, std::size_t bytes) noexcept {
  return {const_cast<std::byte*>(first), bytes};
}
// One piece for each rank, of so many elements.
inline void divide(std::span<piece> out, const std::byte* first, std::span<const std::size_t> parts,
                   std::size_t element) noexcept {
  for (std::size_t q = 0; q < out.size(); first += parts[q] * element, ++q)
    out[q] = piece_of(first, parts[q] * element);
}
inline void divide_evenly(std::span<piece> out, const std::byte* first, std::size_t each) noexcept {
  for (std::size_t q = 0; q < out.size(); ++q) out[q] = piece_of(first + q * each, each);
}
inline void take_nothing(std::span<piece> out) noexcept { std::fill(out.begin(), out.end(), piece{}); }
[[nodiscard]] inline std::size_t longest_of(std::span<const std::size_t> parts, std::size_t element) noexcept {
  return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end()) * element;
}

// `rounds` is a shared_rounds.

void reduce_into(const auto& rounds, const op_call& call, const fingerprint& print, std::size_t pieces,
                 std::size_t place, std::size_t longest, piece out) {
  rounds.reduce(print, pieces, place, longest, out,
                [&](std::size_t first, std::size_t bytes, const std::byte* slot_memory, std::size_t stride) {
                  reduce_slots(rounds.stream(), call, {slot_memory, stride, rounds.size()}, out.first + first,
                               bytes / call.element_bytes());
                });
}

void run_reduction(const auto& rounds, const op_call& call) {
  const std::size_t own = rounds.rank();
  switch (call.what()) {
    case operation::reduce_scatter:
      divide_evenly(rounds.sent(), call.in, call.out_bytes());
      return reduce_into(rounds, call, call.print(call.out_count), rounds.sent().size(), own, call.out_bytes(),
                         piece_of(call.out, call.out_bytes()));
    case operation::reduce_scatter_v: {
      rounds.note_counts(call.parts(), call.parts());
      divide(rounds.sent(), call.in, call.parts(), call.element_bytes());
      const piece mine = rounds.sent()[own];
      return reduce_into(rounds, call, call.print(call.in_count, shape_of(call.parts())), call.parts().size(), own,
                         longest_of(call.parts(), call.element_bytes()), mine);
    }
    default: {
      const bool takes = call.what() != operation::reduce || static_cast<std::size_t>(call.root) == own;
      rounds.sent()[0] = piece_of(call.in, call.in_bytes());
      return reduce_into(rounds, call, call.print(call.in_count), 1, 0, call.in_bytes(),
                         takes ? piece_of(call.out, call.out_bytes()) : piece{});
    }
  }
}

void run_gather(const auto& rounds, const op_call& call) {
  take_nothing(rounds.taken());
  if (call.what() == operation::all_gather || static_cast<std::size_t>(call.root) == rounds.rank())
    divide_evenly(rounds.taken(), call.out, call.in_bytes());
  rounds.sent()[0] = piece_of(call.in, call.in_bytes());
  rounds.move(call.print(call.in_count), 1, 0, call.in_bytes());
}
void run_all_gather_v(const auto& rounds, const op_call& call) {
  rounds.note_counts(call.parts(), call.parts());
  divide(rounds.taken(), call.out, call.parts(), call.element_bytes());
  rounds.sent()[0] = std::exchange(rounds.taken()[rounds.rank()], {});
  if (rounds.size() == 1) return;
  rounds.move(call.print(call.in_count, shape_of(call.parts())), 1, 0, longest_of(call.parts(), call.element_bytes()));
}
void run_all_to_all(const auto& rounds, const op_call& call) {
  const std::size_t each = call.in_bytes() / rounds.sent().size();
  divide_evenly(rounds.sent(), call.in, each);
  divide_evenly(rounds.taken(), call.out, each);
  rounds.move(call.print(call.in_count), rounds.sent().size(), rounds.rank(), each);
}
void run_all_to_all_v(const auto& rounds, const op_call& call) {
  rounds.note_counts(call.parts(), call.received_parts());
  divide(rounds.sent(), call.in, call.parts(), call.element_bytes());
  divide(rounds.taken(), call.out, call.received_parts(), call.element_bytes());
  rounds.move(call.print(0), rounds.sent().size(), rounds.rank(), 0);
}
void run_broadcast(const auto& rounds, const op_call& call) {
  const auto from = static_cast<std::size_t>(call.root);
  take_nothing(rounds.taken());
  rounds.sent()[0] = {};
  (from == rounds.rank() ? rounds.sent()[0] : rounds.taken()[from]) = piece_of(call.out, call.out_bytes());
  rounds.move(call.print(call.in_count), 1, 0, call.in_bytes());
}
void run_scatter(const auto& rounds, const op_call& call) {
  const auto from = static_cast<std::size_t>(call.root);
  std::fill(rounds.sent().begin(), rounds.sent().end(), piece{});
  if (from == rounds.rank()) divide_evenly(rounds.sent(), call.in, call.out_bytes());
  take_nothing(rounds.taken());
  rounds.taken()[from] = piece_of(call.out, call.out_bytes());
  rounds.move(call.print(call.out_count), rounds.sent().size(), rounds.rank(), call.out_bytes());
}

/// Runs a collective that was checked, all but an exchange; of symmetric memory the agreement on its size.
void run(const auto& rounds, const op_call& call) {
  switch (call.what()) {
    case operation::all_reduce:
    case operation::reduce:
    case operation::reduce_scatter:
    case operation::reduce_scatter_v: return run_reduction(rounds, call);
    case operation::all_gather:
    case operation::gather: return run_gather(rounds, call);
    case operation::all_gather_v: return run_all_gather_v(rounds, call);
    case operation::all_to_all: return run_all_to_all(rounds, call);
    case operation::all_to_all_v: return run_all_to_all_v(rounds, call);
    case operation::broadcast: return run_broadcast(rounds, call);
    case operation::scatter: return run_scatter(rounds, call);
    case operation::none:
    case operation::barrier:
    case operation::exchange:
    case operation::make_symmetric:
      rounds.sent()[0] = {};
      take_nothing(rounds.taken());
      return rounds.move(call.print(call.in_count), 1, 0, 0);
  }
}

}  // namespace belay::inline BELAY_ABI::cuda::collectives
