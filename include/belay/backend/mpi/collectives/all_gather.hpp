// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All-gather, with equal parts and with counts.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
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
void all_gather(collective_context me, std::span<const T> in, std::span<T> out, const where& at) {
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  check_length(out.size(), all_parts(in.size(), me.size()), "all_gather: the output", at);
  check_overlap(in, out, out.data() + own, "all_gather", at);
  me.enter({operation::all_gather, reduction::none, element_code_of<T>(), -1, in.size(), 0}, {}, {}, at);
  copy_elements(out.data() + own, in.data(), in.size());
  me.move([&](int q, transfer& with) {
    with.send(in.data(), in.size());
    with.receive(out.data() + in.size() * static_cast<std::size_t>(q), in.size());
  });
  me.leave();
}

template <transferable T>
void all_gather_v(collective_context me, std::span<T> inout, std::span<const std::size_t> counts, const where& at) {
  check_division(inout, counts, me.size(), "all_gather_v", "all_gather_v: the buffer", at);
  const std::uint64_t shape = shape_of(counts);
  me.enter({operation::all_gather_v, reduction::none, element_code_of<T>(), -1, inout.size(), shape}, counts, {}, at);
  expect_same_counts(me);
  const auto count_of = [&](int q) { return counts[static_cast<std::size_t>(q)]; };
  me.move([&](int q, transfer& with) {
    with.send(inout.data() + offset_of(counts, me.rank()), count_of(me.rank()));
    with.receive(inout.data() + offset_of(counts, q), count_of(q));
  });
  me.leave();
}

inline void run_collective(operation_tag<operation::all_gather>, const auto&... all) { all_gather(all...); }
inline void run_collective(operation_tag<operation::all_gather_v>, const auto&... all) { all_gather_v(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
