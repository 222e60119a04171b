// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory of a device that does not exist: pages that nobody may touch but while a batch of its kernels runs. So a
// line of the host that reads or writes them faults.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <functional>
#include <map>

namespace fakes {

class guarded_memory {
 public:
  guarded_memory() = default;
  guarded_memory(const guarded_memory&) = delete;
  guarded_memory& operator=(const guarded_memory&) = delete;
  ~guarded_memory() {
    for (const auto& [first, bytes] : ranges_) ::munmap(first, bytes);
  }

  /// Null where the system has no room.
  [[nodiscard]] std::byte* map(std::size_t bytes) {
    void* const mapped = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* const first = static_cast<std::byte*>(mapped);
    ranges_.emplace(first, bytes);
    return first;
  }
  [[nodiscard]] bool unmap(std::byte* first) {
    const auto found = ranges_.find(first);
    if (found == ranges_.end()) return false;
    ::munmap(first, found->second);
    ranges_.erase(found);
    return true;
  }
  [[nodiscard]] bool holds(const void* place, std::size_t bytes) const { return within(ranges_, place, bytes); }
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t all = 0;
    for (const auto& [first, bytes] : ranges_) all += bytes;
    return all;
  }
  [[nodiscard]] std::size_t ranges() const noexcept { return ranges_.size(); }

  /// While it lives, kernels run.
  class batch {
   public:
    explicit batch(const guarded_memory& owner) : owner_(&owner) { owner.protect(PROT_READ | PROT_WRITE); }
    batch(const batch&) = delete;
    batch& operator=(const batch&) = delete;
    ~batch() { owner_->protect(PROT_NONE); }

   private:
    const guarded_memory* owner_;
  };

  using range_map = std::map<std::byte*, std::size_t, std::less<>>;
  [[nodiscard]] static bool within(const range_map& ranges, const void* place, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(place);
    auto next = ranges.upper_bound(first);
    if (next == ranges.begin()) return false;
    --next;
    return first + bytes <= next->first + next->second;
  }

 private:
  void protect(int how) const {
    for (const auto& [first, bytes] : ranges_) ::mprotect(first, bytes, how);
  }

  range_map ranges_;
};

}  // namespace fakes
