// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory of the same size on every rank of a group, all of it mapped here. Every rank holds a share of the
// mapping and the last one unmaps it: a rank that leaves early takes nothing away from those who still read.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <utility>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Whether pages stand behind the addresses: reserved; taken when they are first touched, which most of them may never
/// be (mirrors); or never (a rehearsal).
enum class backing { memory, when_touched, addresses_only };

class symmetric_region {
 public:
  symmetric_region() = default;
  symmetric_region(const symmetric_region& other) noexcept
      : eager_buffers_(other.eager_buffers_), stride_(other.stride_) {
    if (eager_buffers_ != nullptr) eager_buffers_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  symmetric_region& operator=(symmetric_region other) noexcept {
    std::swap(eager_buffers_, other.eager_buffers_);
    std::swap(stride_, other.stride_);
    return *this;
  }
  ~symmetric_region() {
    if (eager_buffers_ != nullptr && eager_buffers_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1)
      delete eager_buffers_;
  }

  /// Maps `bytes` for each of `ranks` ranks, page aligned, zero at first. Throws `budget_error`.
  [[nodiscard]] static symmetric_region map(int ranks, std::size_t bytes, backing kind, where at) {
    symmetric_region out;
    out.stride_ = stride_for(ranks, bytes, at);
    const std::size_t total = out.stride_ * static_cast<std::size_t>(ranks);
    if (total == 0) return out;
    const int access = kind == backing::addresses_only ? PROT_NONE : PROT_READ | PROT_WRITE;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (kind == backing::memory ? 0 : MAP_NORESERVE);
    out.eager_buffers_ = new mapping(total);
    out.eager_buffers_->first = ::mmap(nullptr, total, access, flags, -1, 0);
    if (out.eager_buffers_->first == MAP_FAILED) throw budget_error("symmetric memory", total, 0, at);
    return out;
  }

  /// Over `ranks` parts of `stride` bytes each that are mapped already; the last holder calls `release(context)`.
  [[nodiscard]] static symmetric_region adopt(int ranks, std::size_t stride, std::byte* first, void* context,
                                              void (*release)(void*) noexcept) {
    symmetric_region out;
    out.stride_ = stride;
    out.eager_buffers_ = new mapping(stride * static_cast<std::size_t>(ranks));
    out.eager_buffers_->first = first;
    out.eager_buffers_->context = context;
    out.eager_buffers_->release = release;
    return out;
  }

  /// What a part of `bytes` takes: whole pages. Throws `budget_error` for what no address space holds.
  [[nodiscard]] static std::size_t stride_for(int ranks, std::size_t bytes, where at) {
    const checked_size stride = checked_size(bytes).rounded_up(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
    if (!(stride * static_cast<std::size_t>(ranks)).fits()) throw budget_error("address space", bytes, 0, at);
    return stride.saturated();
  }

  /// The first byte of `rank`'s part, as seen from here.
  [[nodiscard]] std::byte* at(int rank) const noexcept {
    if (eager_buffers_ == nullptr) return nullptr;
    return static_cast<std::byte*>(eager_buffers_->first) + static_cast<std::size_t>(rank) * stride_;
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

  mapping* eager_buffers_ = nullptr;
  std::size_t stride_ = 0;
};

}  // namespace belay::inline BELAY_ABI
