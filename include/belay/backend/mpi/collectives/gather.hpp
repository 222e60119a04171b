// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gather: all send their part to the root.
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
void gather(collective_context me, std::span<const T> in, std::span<T> out, int root, const where& at) {
  check_root(root, me.size(), "gather", at);
  check_bytes(in, "gather", at);
  const std::size_t own = in.size() * static_cast<std::size_t>(me.rank());
  const bool is_root = me.rank() == root;
  if (is_root) {  // no other rank has an output
    check_length(out.size(), all_parts(in.size(), me.size()), "gather: the root's output", at);
    check_overlap(in, out, out.data() + own, "gather", at);
  }
  me.enter({operation::gather, reduction::none, element_code_of<T>(), root, in.size(), 0}, {}, {}, at);
  if (is_root) copy_elements(out.data() + own, in.data(), in.size());
  me.move([&](int q, transfer& with) {
    if (q == root) with.send(in.data(), in.size());
    if (is_root) with.receive(out.data() + in.size() * static_cast<std::size_t>(q), in.size());
  });
  me.leave();
}

inline void run_collective(operation_tag<operation::gather>, const auto&... all) { gather(all...); }

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
