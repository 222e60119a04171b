// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives of ranks that share a device: what each of them checks, sends and takes. Reductions have the bits of
// the host's.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/backend/cuda/group_member.hpp"
#include "belay/backend/cuda/reduced_slots.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda::collectives {

using counts = std::span<const std::size_t>;

template <class T>
[[nodiscard]] piece piece_of(std::span<T> all, std::size_t first, std::size_t count) noexcept {
  using plain = std::remove_const_t<T>;
  return {reinterpret_cast<std::byte*>(const_cast<plain*>(all.data() + first)), count * sizeof(T)};
}
template <class T>
[[nodiscard]] piece piece_of(std::span<T> all) noexcept {
  return piece_of(all, 0, all.size());
}
// One piece for each rank.
template <class T>
void divide(std::span<piece> out, std::span<T> all, counts parts) noexcept {
  std::size_t first = 0;
  for (std::size_t q = 0; q < out.size(); first += parts[q], ++q) out[q] = piece_of(all, first, parts[q]);
}
template <class T>
void divide_evenly(std::span<piece> out, std::span<T> all) noexcept {
  const std::size_t each = all.size() / out.size();
  for (std::size_t q = 0; q < out.size(); ++q) out[q] = piece_of(all, q * each, each);
}
inline void take_nothing(std::span<piece> out) noexcept { std::fill(out.begin(), out.end(), piece{}); }
[[nodiscard]] inline std::size_t longest_of(counts parts, std::size_t element) noexcept {
  return parts.empty() ? 0 : *std::max_element(parts.begin(), parts.end()) * element;
}

template <reducible T, reduction_tag Op>
void reduce_into(const auto& call, const fingerprint& print, std::size_t pieces, std::size_t place, std::size_t longest,
                 piece out) {
  call.reduce(print, pieces, place, longest, out,
              [&](std::size_t first, std::size_t bytes, const std::byte* slot_memory, std::size_t stride) {
                auto* const to = reinterpret_cast<T*>(out.first + first);
                call.stream().each(bytes / sizeof(T), reduced_slots<Op, T>{slot_memory, stride, call.size(), to});
              });
}

inline void run(operation_tag<operation::barrier>, const auto& call) {
  call.sent()[0] = {};
  take_nothing(call.taken());
  call.move({operation::barrier, reduction::none, {}, -1, 0, 0}, 1, 0, 0);
}

/// All want symmetric memory of the same size.
inline void run(operation_tag<operation::make_symmetric>, const auto& call, std::size_t bytes) {
  call.sent()[0] = {};
  take_nothing(call.taken());
  call.move({operation::make_symmetric, reduction::none, {element_code::opaque, 1}, -1, bytes, 0}, 1, 0, 0);
}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::all_reduce>, const auto& call, std::span<const T> in, std::span<T> out, Op) {
  check_length(out.size(), in.size(), "all_reduce: the output", call.at());
  check_overlap(in, out, out.data(), "all_reduce", call.at());
  call.sent()[0] = piece_of(in);
  const fingerprint print{operation::all_reduce, Op::code, element_code_of<T>(), -1, in.size(), 0};
  reduce_into<T, Op>(call, print, 1, 0, in.size_bytes(), piece_of(out));
}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::reduce_scatter>, const auto& call, std::span<const T> in, std::span<T> out, Op) {
  check_length(in.size(), all_parts(out.size(), call.size()), "reduce_scatter: the input", call.at());
  check_overlap(out, in, in.data() + out.size() * call.rank(), "reduce_scatter", call.at());
  divide_evenly(call.sent(), in);
  const fingerprint print{operation::reduce_scatter, Op::code, element_code_of<T>(), -1, out.size(), 0};
  reduce_into<T, Op>(call, print, call.sent().size(), call.rank(), out.size_bytes(), piece_of(out));
}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::reduce_scatter_v>, const auto& call, std::span<T> inout, counts parts, Op) {
  check_division(inout, parts, call.size(), "reduce_scatter_v", "reduce_scatter_v: the buffer", call.at());
  call.note_counts(parts, parts);
  divide(call.sent(), inout, parts);
  const piece mine = call.sent()[call.rank()];
  const fingerprint print{
      operation::reduce_scatter_v, Op::code, element_code_of<T>(), -1, inout.size(), shape_of(parts)};
  reduce_into<T, Op>(call, print, parts.size(), call.rank(), longest_of(parts, sizeof(T)), mine);
}

template <transferable T>
void run(operation_tag<operation::all_gather>, const auto& call, std::span<const T> in, std::span<T> out) {
  check_length(out.size(), all_parts(in.size(), call.size()), "all_gather: the output", call.at());
  check_overlap(in, out, out.data() + in.size() * call.rank(), "all_gather", call.at());
  call.sent()[0] = piece_of(in);
  divide_evenly(call.taken(), out);
  call.move({operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0}, 1, 0, in.size_bytes());
}

template <transferable T>
void run(operation_tag<operation::all_gather_v>, const auto& call, std::span<T> inout, counts parts) {
  check_division(inout, parts, call.size(), "all_gather_v", "all_gather_v: the buffer", call.at());
  call.note_counts(parts, parts);
  divide(call.taken(), inout, parts);
  call.sent()[0] = std::exchange(call.taken()[call.rank()], {});
  if (call.size() == 1) return;
  call.move({operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(), shape_of(parts)}, 1, 0,
            longest_of(parts, sizeof(T)));
}

template <transferable T>
void run(operation_tag<operation::all_to_all>, const auto& call, std::span<const T> in, std::span<T> out) {
  check_all_to_all(in, out, call.size(), call.at());
  divide_evenly(call.sent(), in);
  divide_evenly(call.taken(), out);
  call.move({operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0}, call.sent().size(),
            call.rank(), call.sent()[0].bytes);
}

template <transferable T>
void run(operation_tag<operation::all_to_all_v>, const auto& call, std::span<const T> in, counts send_counts,
         std::span<T> out, counts receive_counts) {
  check_all_to_all_v(in, send_counts, out, receive_counts, call.size(), call.at());
  call.note_counts(send_counts, receive_counts);
  divide(call.sent(), in, send_counts);
  divide(call.taken(), out, receive_counts);
  if (call.size() == 1 && send_counts[0] != receive_counts[0])
    throw usage_error("all_to_all_v: the only rank sends itself " + std::to_string(send_counts[0]) +
                          " elements and expects " + std::to_string(receive_counts[0]),
                      call.at());
  call.move({operation::all_to_all_v, reduction::none, element_code_of<T>(), -1, 0, 0}, send_counts.size(), call.rank(),
            0);
}

template <transferable T>
void run(operation_tag<operation::broadcast>, const auto& call, std::span<T> inout, int root) {
  check_root(root, call.size(), "broadcast", call.at());
  check_bytes(inout, "broadcast", call.at());
  const auto from = static_cast<std::size_t>(root);
  take_nothing(call.taken());
  call.sent()[0] = {};
  (from == call.rank() ? call.sent()[0] : call.taken()[from]) = piece_of(inout);
  call.move({operation::broadcast, reduction::none, element_code_of<T>(), root, inout.size(), 0}, 1, 0,
            inout.size_bytes());
}

template <reducible T, reduction_tag Op>
void run(operation_tag<operation::reduce>, const auto& call, std::span<const T> in, std::span<T> out, Op, int root) {
  check_root(root, call.size(), "reduce", call.at());
  const bool is_root = static_cast<std::size_t>(root) == call.rank();
  if (is_root) {
    check_length(out.size(), in.size(), "reduce: the root's output", call.at());
    check_overlap(in, out, out.data(), "reduce", call.at());
  }
  call.sent()[0] = piece_of(in);
  const fingerprint print{operation::reduce, Op::code, element_code_of<T>(), root, in.size(), 0};
  reduce_into<T, Op>(call, print, 1, 0, in.size_bytes(), is_root ? piece_of(out) : piece{});
}

template <transferable T>
void run(operation_tag<operation::gather>, const auto& call, std::span<const T> in, std::span<T> out, int root) {
  check_root(root, call.size(), "gather", call.at());
  take_nothing(call.taken());
  if (static_cast<std::size_t>(root) == call.rank()) {
    check_length(out.size(), all_parts(in.size(), call.size()), "gather: the root's output", call.at());
    check_overlap(in, out, out.data() + in.size() * call.rank(), "gather", call.at());
    divide_evenly(call.taken(), out);
  }
  call.sent()[0] = piece_of(in);
  call.move({operation::gather, reduction::none, element_code_of<T>(), root, in.size(), 0}, 1, 0, in.size_bytes());
}

template <transferable T>
void run(operation_tag<operation::scatter>, const auto& call, std::span<const T> in, std::span<T> out, int root) {
  check_root(root, call.size(), "scatter", call.at());
  std::fill(call.sent().begin(), call.sent().end(), piece{});
  if (static_cast<std::size_t>(root) == call.rank()) {
    check_length(in.size(), all_parts(out.size(), call.size()), "scatter: the root's input", call.at());
    check_overlap(out, in, in.data() + out.size() * call.rank(), "scatter", call.at());
    divide_evenly(call.sent(), in);
  }
  take_nothing(call.taken());
  call.taken()[static_cast<std::size_t>(root)] = piece_of(out);
  call.move({operation::scatter, reduction::none, element_code_of<T>(), root, out.size(), 0}, call.sent().size(),
            call.rank(), out.size_bytes());
}

}  // namespace belay::inline BELAY_ABI::cuda::collectives
