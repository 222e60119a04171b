// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of a rank's device that no peer addresses: what a group over NCCL has for heaps. What peers send is received
// into it.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/nccl/channel.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/kernel/elementwise.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// A rank alone, as a heap sees it. Belongs to the rank's thread.
template <cuda::device_api Api, nccl_api N>
class local_memory {
 public:
  explicit local_memory(std::shared_ptr<channel<Api, N>> in) noexcept : channel_(std::move(in)) {}

  /// One of one, with nobody to wait for.
  [[nodiscard]] static constexpr int rank() noexcept { return 0; }
  [[nodiscard]] static constexpr int size() noexcept { return 1; }
  static void barrier(where = where::current()) noexcept {}

  /// `bytes` of the device, of zeros; they are freed with the last copy, and the device outlives that. Throws
  /// backend_error.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    using memory_type = cuda::device_memory<Api>;
    auto held = std::make_unique<memory_type>(channel_->device(), leased_size(bytes), at);
    channel_->calls().each(held->size_bytes() / sizeof(std::uint64_t),
                           kernel::fill<std::uint64_t>{reinterpret_cast<std::uint64_t*>(held->data()), 0}, at);
    const auto release = [](void* last) noexcept { delete static_cast<memory_type*>(last); };
    std::byte* const first = held->data();
    const std::size_t size = held->size_bytes();
    return symmetric_region::adopt(1, size, first, held.release(), release);
  }

 private:
  std::shared_ptr<channel<Api, N>> channel_;
};

}  // namespace belay::inline BELAY_ABI::nccl
