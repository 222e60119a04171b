// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reduce: each rank reduces a slice and sends it to the root.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <span>
#include <vector>

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
void reduce(collective_context me, std::span<const T> in, std::span<T> out, Op, int root, const where& at) {
  check_root(root, me.size(), "reduce", at);
  check_bytes(in, "reduce", at);
  const bool is_root = me.rank() == root;
  if (is_root) {  // no other rank has an output
    check_length(out.size(), in.size(), "reduce: the root's output", at);
    check_overlap(in, out, out.data(), "reduce", at);
  }
  me.enter({operation::reduce, Op::code, element_code_of<T>(), root, in.size(), 0}, {}, {}, at);
  const auto slices = [&](int q) { return slice_of(in.size(), me.size(), q); };
  if (me.size() == 1) {
    copy_elements(out.data(), in.data(), in.size());
  } else {
    in_rounds(me.size(), round_length<T>(me.size()), slices, [&](auto range) {
      const element_range mine = range(me.rank());
      std::vector<T> total(is_root ? 0 : mine.count);
      T* const result = is_root ? out.data() + mine.first : total.data();
      reduce_ranges<Op>(me, in.data(), range, result);
      me.move([&](int q, transfer& with) {
        if (q == root) with.send(result, mine.count);
        if (is_root) with.receive(out.data() + range(q).first, range(q).count);
      });
    });
  }
  me.leave();
}

inline void run_collective(operation_tag<operation::reduce>, const auto&... all) { reduce(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
