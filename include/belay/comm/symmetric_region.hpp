// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of the same size on every rank of a group, all of it mapped here. Every rank holds a share of the mapping and
// the last one unmaps it: a rank that leaves early takes nothing away from those that still read.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Whether pages stand behind the addresses: reserved; taken when they are first touched, which most of them may never
/// be (mirrors); or never (a rehearsal).
enum class backing { memory, when_touched, addresses_only };

class symmetric_region {
 public:
  symmetric_region() = default;
  symmetric_region(const symmetric_region& other) noexcept : mapping_(other.mapping_), stride_(other.stride_) {
    if (mapping_ != nullptr) mapping_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  symmetric_region& operator=(symmetric_region other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(stride_, other.stride_);
    return *this;
  }
  ~symmetric_region() {
    if (mapping_ != nullptr && mapping_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete mapping_;
  }

  /// Maps `bytes` for each of `ranks` ranks, page aligned, zero at first. Throws `budget_error`.
  [[nodiscard]] static symmetric_region map(int ranks, std::size_t bytes, backing kind, where at);

  /// Over `ranks` parts of `stride` bytes each that are mapped already; the last holder calls `release(context)`.
  [[nodiscard]] static symmetric_region adopt(int ranks, std::size_t stride, std::byte* first, void* context,
                                              void (*release)(void*) noexcept);

  /// The bytes that a part of `bytes` takes: whole pages. Throws `budget_error` for what no address space holds.
  [[nodiscard]] static std::size_t stride_for(int ranks, std::size_t bytes, where at);

  /// The first byte of `rank`'s part, as seen from here.
  [[nodiscard]] std::byte* at(int rank) const noexcept {
    if (mapping_ == nullptr) return nullptr;
    return static_cast<std::byte*>(mapping_->first) + static_cast<std::size_t>(rank) * stride_;
  }

 private:
  // What copies share: the standard's shared pointer costs every includer more than these lines.
  struct mapping {
    explicit mapping(std::size_t size) noexcept : bytes(size) {}
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;
    ~mapping() {
      if (release != nullptr)
        release(context);
      else if (first != MAP_FAILED)
        ::munmap(first, bytes);
    }

    std::size_t bytes;
    void* first = MAP_FAILED;
    void* context = nullptr;
    void (*release)(void*) noexcept = nullptr;
    std::atomic<int> holders{1};
  };

  mapping* mapping_ = nullptr;
  std::size_t stride_ = 0;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/symmetric_region.ipp"  // IWYU pragma: export
#endif
