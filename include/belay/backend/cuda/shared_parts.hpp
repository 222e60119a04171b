// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Symmetric memory of ranks that share a device: one allocation, with a part for each rank, side by side. All address
// all of it.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/kernel/elementwise.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <device_api Api>
class shared_parts {
 public:
  /// `bytes` for each of `ranks` ranks, of zeros, which `in` has written. Throws backend_error.
  shared_parts(stream<Api>& in, int ranks, std::size_t bytes, where at)
      : ranks_(ranks), stride_(leased_size(bytes)), memory_(in.state()->on(), all_of(ranks, stride_), at) {
    const std::size_t words = memory_.size_bytes() / sizeof(std::uint64_t);
    in.each(words, kernel::fill<std::uint64_t>{reinterpret_cast<std::uint64_t*>(memory_.data()), 0});
    in.synchronize(at);
  }

  /// As one rank holds it.
  [[nodiscard]] static symmetric_region region_of(std::shared_ptr<const shared_parts> parts) {
    auto* const held = new std::shared_ptr<const shared_parts>(std::move(parts));
    const auto release = [](void* last) noexcept { delete static_cast<std::shared_ptr<const shared_parts>*>(last); };
    return symmetric_region::adopt((*held)->ranks_, (*held)->stride_, (*held)->memory_.data(), held, release);
  }

 private:
  [[nodiscard]] static std::size_t all_of(int ranks, std::size_t stride) noexcept {
    return (checked_size(stride) * static_cast<std::size_t>(ranks)).saturated();
  }

  int ranks_;
  std::size_t stride_;
  device_memory<Api> memory_;
};

}  // namespace belay::inline BELAY_ABI::cuda
