// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Regions, and reading the memory of other processes.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL void address_map::add(std::uint16_t region, std::byte* first, std::size_t bytes, where at) {
  for (std::size_t i = 0; i < most_regions; ++i) {
    mapped_region& each = table_[i];
    if (each.bytes.load(std::memory_order_relaxed) != 0) continue;
    each.first.store(first, std::memory_order_relaxed);
    each.region.store(region, std::memory_order_relaxed);
    each.share({});
    each.bytes.store(bytes, std::memory_order_release);
    if (i >= used_.load(std::memory_order_relaxed)) used_.store(i + 1, std::memory_order_release);
    return;
  }
  throw usage_error("more than " + std::to_string(most_regions) + " regions of symmetric memory at once", at);
}

[[gnu::cold]] BELAY_DECL void address_map::share(const std::byte* first, const rank_set& who) noexcept {
  for (mapped_region& each : table_) {
    const bool here = each.bytes.load(std::memory_order_relaxed) != 0;
    if (here && each.first.load(std::memory_order_relaxed) == first) each.share(who);
  }
}

[[gnu::cold]] BELAY_DECL void address_map::remove(std::uint16_t region) noexcept {
  for (mapped_region& each : table_) {
    if (each.region.load(std::memory_order_relaxed) == region) each.bytes.store(0, std::memory_order_release);
  }
}

BELAY_DECL bool read_process(pid_t pid, memory_reference from, std::size_t offset, void* to,
                             std::size_t bytes) noexcept {
  if (from.region() != 0) {
    errno = EPERM;
    return false;
  }
  std::uint64_t address = from.offset() + offset;
  while (bytes > 0) {
    const iovec here{to, bytes};
    const iovec there{reinterpret_cast<void*>(address), bytes};
    const ssize_t moved = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    to = static_cast<std::byte*>(to) + moved;
    address += static_cast<std::uint64_t>(moved);
    bytes -= static_cast<std::size_t>(moved);
  }
  return true;
}

[[gnu::cold]] BELAY_DECL bool may_read_processes() noexcept {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec nowhere{reinterpret_cast<void*>(std::uintptr_t{16}), 1};
  return ::process_vm_readv(::getppid(), &here, 1, &nowhere, 1, 0) < 0 && errno == EFAULT;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
