// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reduce-scatter, with equal parts and with counts: each rank reduces its part.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/backend/mpi/collectives/reduction_rounds.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/call_mismatch.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

template <reducible T, reduction_tag Op>
void reduce_scatter(collective_context me, std::span<const T> in, std::span<T> out, Op, const where& at) {
  const std::size_t own = out.size() * static_cast<std::size_t>(me.rank());
  check_length(in.size(), all_parts(out.size(), me.size()), "reduce_scatter: the input", at);
  check_overlap(out, in, in.data() + own, "reduce_scatter", at);
  me.enter({operation::reduce_scatter, Op::code, element_code_of<T>(), -1, out.size(), 0}, {}, {}, at);
  const auto ranges = [&](int q) { return element_range{out.size() * static_cast<std::size_t>(q), out.size()}; };
  in_rounds(me.size(), round_length<T>(me.size()), ranges,
            [&](auto range) { reduce_ranges<Op>(me, in.data(), range, out.data() + (range(me.rank()).first - own)); });
  me.leave();
}

template <reducible T, reduction_tag Op>
void reduce_scatter_v(collective_context me, std::span<T> inout, std::span<const std::size_t> counts, Op,
                      const where& at) {
  check_division(inout, counts, me.size(), "reduce_scatter_v", "reduce_scatter_v: the buffer", at);
  const std::uint64_t shape = shape_of(counts);
  me.enter({operation::reduce_scatter_v, Op::code, element_code_of<T>(), -1, inout.size(), shape}, counts, {}, at);
  expect_same_counts(me);
  if (me.size() > 1) {
    const auto ranges = [&](int q) { return element_range{offset_of(counts, q), counts[static_cast<std::size_t>(q)]}; };
    in_rounds(me.size(), round_length<T>(me.size()), ranges,
              [&](auto range) { reduce_ranges<Op>(me, inout.data(), range, inout.data() + range(me.rank()).first); });
  }
  me.leave();
}

inline void run_collective(operation_tag<operation::reduce_scatter>, const auto&... all) { reduce_scatter(all...); }
inline void run_collective(operation_tag<operation::reduce_scatter_v>, const auto&... all) { reduce_scatter_v(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
