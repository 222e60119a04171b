// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations of a group of one rank: copies on its communication stream. NCCL takes no part.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <cstddef>
#include <span>

#include "belay/backend/cuda/stream.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Runs what was checked. Throws usage_error for an exchange that does not fit.
template <cuda::device_api Api>
class lone_operations {
 public:
  lone_operations(cuda::stream<Api>& on, int number, where at) noexcept : on_(&on), number_(number), at_(at) {}

  void run(const op_call& call) const {
    if (call.what() == operation::exchange) return exchange(call.exchanged());
    if (call.in != call.out && call.in_count > 0) on_->copy(call.out, call.in, call.in_bytes(), at_);
  }

 private:
  // The n-th send of the rank to itself meets its n-th receive.
  void exchange(std::span<const p2p> transfers) const {
    const auto next = [&](std::size_t from, p2p::direction kind) {
      while (from < transfers.size() && transfers[from].kind != kind) ++from;
      return from;
    };
    std::size_t out = next(0, p2p::direction::send), in = next(0, p2p::direction::receive);
    for (; out < transfers.size() && in < transfers.size();
         out = next(out + 1, p2p::direction::send), in = next(in + 1, p2p::direction::receive)) {
      if (transfers[out].bytes != transfers[in].bytes) break;
      if (transfers[out].bytes > 0) on_->copy(transfers[in].data, transfers[out].data, transfers[out].bytes, at_);
    }
    if (out != in)
      throw usage_error(
          "exchange: what rank " + std::to_string(number_) + " sends itself is not what it expects of itself", at_);
  }

  cuda::stream<Api>* on_;
  int number_;
  where at_;
};

}  // namespace belay::inline BELAY_ABI::nccl
