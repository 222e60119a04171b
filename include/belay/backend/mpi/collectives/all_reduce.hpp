// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All-reduce: each rank reduces a slice and sends it to all.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <span>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/backend/mpi/collectives/reduction_rounds.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

template <reducible T, reduction_tag Op>
void all_reduce(collective_context me, std::span<const T> in, std::span<T> out, Op, const where& at) {
  check_length(out.size(), in.size(), "all_reduce: the output", at);
  check_overlap(in, out, out.data(), "all_reduce", at);
  me.enter({operation::all_reduce, Op::code, element_code_of<T>(), -1, out.size(), 0}, {}, {}, at);
  const auto slices = [&](int q) { return slice_of(in.size(), me.size(), q); };
  if (me.size() == 1) {
    copy_elements(out.data(), in.data(), in.size());
  } else {
    in_rounds(me.size(), round_length<T>(me.size()), slices, [&](auto range) {
      const element_range mine = range(me.rank());
      reduce_ranges<Op>(me, in.data(), range, out.data() + mine.first);
      me.move([&](int q, transfer& with) {
        with.send(out.data() + mine.first, mine.count);
        with.receive(out.data() + range(q).first, range(q).count);
      });
    });
  }
  me.leave();
}

inline void run_collective(operation_tag<operation::all_reduce>, const auto&... all) { all_reduce(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
