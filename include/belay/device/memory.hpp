// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory that an arena divides: a region of a tier, owned, of exact size. `reserved_addresses` has addresses and
// no memory. A rehearsal runs the real code over it, and a kernel that runs by mistake faults at once.
//
//   belay::host_pages region(std::size_t{1} << 20);
//   std::byte* const first = region.data();
//   const belay::reserved_addresses planned(std::size_t{1} << 40);  // costs no memory
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/device/offset_allocator.hpp"

namespace belay::inline BELAY_ABI {

/// A region of memory. It can be moved, and its addresses stay the same.
template <class M>
concept memory_region = std::movable<M> && requires(const M& memory) {
  { memory.data() } -> std::same_as<std::byte*>;
  { memory.size_bytes() } -> std::same_as<std::size_t>;
};

/// Memory of a device that the host does not address. `allocate(bytes)` is more of it, `allocate_host(bytes)` memory of
/// the host that the device copies to and from.
template <class M>
concept device_region = memory_region<M> && requires(const M& memory, std::size_t bytes, where at) {
  { memory.allocate(bytes, at) } -> std::same_as<M>;
  { memory.allocate_host(bytes, at) } -> memory_region;
};

/// Anonymous pages: zeroed, page-aligned, unmapped by the destructor.
class host_pages {
 public:
  host_pages() = default;
  /// Throws budget_error with the number of bytes where the system has no room.
  explicit host_pages(std::size_t bytes, where at = where::current()) : host_pages(bytes, PROT_READ | PROT_WRITE, at) {}
  host_pages(host_pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  host_pages& operator=(host_pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~host_pages() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  /// The first byte and the size.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }

 protected:
  /// Pages with the protection of `mmap`. Throws budget_error.
  host_pages(std::size_t bytes, int protection, where at) : bytes_(bytes) {
    if (bytes == 0) return;
    void* mapped = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
      throw budget_error("host memory: mmap: " + std::string(std::strerror(errno)), bytes, 0, at);
    data_ = static_cast<std::byte*>(mapped);
    if ((protection & PROT_WRITE) != 0) ::madvise(mapped, bytes, MADV_HUGEPAGE);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Gives the whole pages of `memory`, a part of anonymous pages, back to the system: they read as zeros, and take no
/// memory until they are written.
inline void discard_pages(std::byte* first, std::size_t bytes) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(first) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(first) + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

/// Addresses without memory: touching them is a SIGSEGV.
class reserved_addresses : public host_pages {
 public:
  reserved_addresses() = default;
  /// Addresses without memory: a fault where they are touched.
  explicit reserved_addresses(std::size_t bytes, where at = where::current()) : host_pages(bytes, PROT_NONE, at) {}
};

static_assert(memory_region<host_pages> && memory_region<reserved_addresses>);

}  // namespace belay::inline BELAY_ABI
