// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Scatter: the root sends each rank its part.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/reduction_arithmetic.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

template <transferable T>
void scatter(collective_context me, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, me.size(), "scatter", at);
  check_bytes(out, "scatter", at);
  const std::size_t own = out.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // no other rank has an input
    check_length(in.size(), all_parts(out.size(), me.size()), "scatter: the root's input", at);
    check_overlap(out, in, in.data() + own, "scatter", at);
  }
  me.enter({operation::scatter, reduction::none, element_code_of<T>(), root, out.size(), 0}, {}, {}, at);
  if (is_root) copy_elements(out.data(), in.data() + own, out.size());
  me.move([&](int q, transfer& with) {
    if (is_root) with.send(in.data() + out.size() * static_cast<std::size_t>(q), out.size());
    if (q == root) with.receive(out.data(), out.size());
  });
  me.leave();
}

inline void run_collective(operation_tag<operation::scatter>, const auto&... all) { scatter(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
