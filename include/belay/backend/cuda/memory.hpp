// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of a device, and memory of the host that the device copies to and from: each one allocation of exact size, for
// an arena to divide.
//
//   belay::arena activations(belay::tier::device, belay::cuda::device_memory(gpu, bytes), leases,
//                            meters[belay::tier::device]);
//   const belay::cuda::pinned_memory batch(gpu, 4096);
#pragma once

#include <cstddef>
#include <utility>

#include "belay/backend/cuda/device.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Pages of the host, of exact size: mapped once, registered once.
template <device_api Api>
class pinned_memory {
 public:
  pinned_memory() = default;
  /// Throws budget_error where the host has no room, backend_error where the pages cannot be registered.
  explicit pinned_memory(const device<Api>& of, std::size_t bytes, where at = where::current()) : pages_(bytes, at) {
    if (bytes == 0) return;
    of.expect(of.api().register_host(pages_.data(), bytes), "register_host", bytes, at);
    device_ = &of;
  }
  pinned_memory(pinned_memory&& other) noexcept
      : pages_(std::move(other.pages_)), device_(std::exchange(other.device_, nullptr)) {}
  pinned_memory& operator=(pinned_memory&& other) noexcept {
    std::swap(pages_, other.pages_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~pinned_memory() {
    if (device_ != nullptr) device_->note(device_->api().unregister_host(pages_.data()), "unregister_host");
  }

  /// Pinned memory of the host, its first byte and its size.
  [[nodiscard]] std::byte* data() const noexcept { return pages_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return pages_.size_bytes(); }

 private:
  host_pages pages_;
  const device<Api>* device_ = nullptr;
};

/// Memory of the device. The host does not address it: what it holds is copied by a stream.
template <device_api Api>
class device_memory {
 public:
  /// Throws backend_error with the number of bytes where the device has no room.
  explicit device_memory(const device<Api>& of, std::size_t bytes, where at = where::current()) : device_(&of) {
    if (bytes == 0) return;
    of.expect(of.api().allocate(data_, bytes), "allocate", bytes, at);
    bytes_ = bytes;
  }
  device_memory(device_memory&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  device_memory& operator=(device_memory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~device_memory() {
    if (bytes_ > 0) device_->note(device_->api().release(data_), "release");
  }

  /// Memory of the device, its first byte and its size.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }

  /// More memory of the same device.
  [[nodiscard]] device_memory allocate(std::size_t bytes, where at = where::current()) const {
    return device_memory(*device_, bytes, at);
  }
  /// Memory of the host that it copies to and from.
  [[nodiscard]] pinned_memory<Api> allocate_host(std::size_t bytes, where at = where::current()) const {
    return pinned_memory<Api>(*device_, bytes, at);
  }

 private:
  const device<Api>* device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Memory of any tier of a rank: of the device, or of the host. Tier host is registered as tier pinned is, since what
/// streams through it is copied to the device and from it; a budget tells them apart. In tier file it has addresses
/// alone.
template <device_api Api>
class tier_memory {
 public:
  /// Throws backend_error or budget_error with the number of bytes where there is no room.
  tier_memory(const device<Api>& of, tier where_it_is, std::size_t bytes, where at = where::current())
      : device_(of, where_it_is == tier::device ? bytes : 0, at) {
    if (where_it_is == tier::pinned || where_it_is == tier::host) pinned_ = pinned_memory<Api>(of, bytes, at);
    if (where_it_is == tier::file) host_ = reserved_addresses(bytes, at);
  }
  explicit tier_memory(device_memory<Api> memory) noexcept : device_(std::move(memory)) {}

  /// The first byte, and how many there are.
  [[nodiscard]] std::byte* data() const noexcept {
    if (host_.size_bytes() > 0) return host_.data();
    return pinned_.size_bytes() > 0 ? pinned_.data() : device_.data();
  }
  [[nodiscard]] std::size_t size_bytes() const noexcept {
    return device_.size_bytes() + pinned_.size_bytes() + host_.size_bytes();
  }

  /// More memory of the device.
  [[nodiscard]] tier_memory allocate(std::size_t bytes, where at = where::current()) const {
    return tier_memory(device_.allocate(bytes, at));
  }
  /// Memory of the host that the device copies to and from.
  [[nodiscard]] pinned_memory<Api> allocate_host(std::size_t bytes, where at = where::current()) const {
    return device_.allocate_host(bytes, at);
  }

 private:
  device_memory<Api> device_;
  pinned_memory<Api> pinned_;
  host_pages host_;
};

}  // namespace belay::inline BELAY_ABI::cuda
