// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All-to-all, with equal parts and with counts.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

template <transferable T>
void all_to_all(collective_context me, std::span<const T> in, std::span<T> out, const where& at) {
  check_all_to_all(in, out, me.size(), at);
  const std::size_t part = in.size() / static_cast<std::size_t>(me.size());
  me.enter({operation::all_to_all, reduction::none, element_code_of<T>(), -1, in.size(), 0}, {}, {}, at);
  const auto place = [&](int q) { return part * static_cast<std::size_t>(q); };
  copy_elements(out.data() + place(me.rank()), in.data() + place(me.rank()), part);
  me.move([&](int q, transfer& with) {
    with.send(in.data() + place(q), part);
    with.receive(out.data() + place(q), part);
  });
  me.leave();
}

template <transferable T>
void all_to_all_v(collective_context me, std::span<const T> in, std::span<const std::size_t> send_counts,
                  std::span<T> out, std::span<const std::size_t> receive_counts, const where& at) {
  check_all_to_all_v(in, send_counts, out, receive_counts, me.size(), at);
  me.enter({operation::all_to_all_v, reduction::none, element_code_of<T>(), -1, 0, 0}, send_counts, receive_counts, at);
  expect_equal_pairs(me);
  const auto own = static_cast<std::size_t>(me.rank());
  copy_elements(out.data() + offset_of(receive_counts, me.rank()), in.data() + offset_of(send_counts, me.rank()),
                send_counts[own]);
  me.move([&](int q, transfer& with) {
    with.send(in.data() + offset_of(send_counts, q), send_counts[static_cast<std::size_t>(q)]);
    with.receive(out.data() + offset_of(receive_counts, q), receive_counts[static_cast<std::size_t>(q)]);
  });
  me.leave();
}

inline void run_collective(operation_tag<operation::all_to_all>, const auto&... all) { all_to_all(all...); }
inline void run_collective(operation_tag<operation::all_to_all_v>, const auto&... all) { all_to_all_v(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
