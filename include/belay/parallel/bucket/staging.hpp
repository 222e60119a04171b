// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where a rank that keeps only its shard of the gradients computes them: a bucket has memory from the first addition of
// a micro-batch until its reduction into the shards is over. One bucket is reduced while another is filled; what the
// next one overwrites, the compute stream waits for, not the host.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/pending.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// Memory of gradients of type T, by bucket. The source outlives it. A lease is released when the compute stream waits
/// for what used it: the source gives its memory away no earlier.
template <class T>
class gradient_staging {
 public:
  explicit gradient_staging(std::size_t buckets) : open_(buckets) {}

  void use(lease_source& source) noexcept { source_ = &source; }
  [[nodiscard]] bool has_memory() const noexcept { return source_ != nullptr; }
  /// Reductions of a step, so that it allocates nothing.
  void expect(std::size_t reductions) { started_.reserve(reductions); }

  [[nodiscard]] bool is_open(std::size_t bucket) const noexcept { return open_[bucket].first != nullptr; }
  [[nodiscard]] std::span<T> of(std::size_t bucket) const noexcept {
    return {open_[bucket].first, open_[bucket].count};
  }

  /// The event that the compute stream waits for before `open`: the end of the reductions whose memory that frees.
  [[nodiscard]] stream_event before_open() const noexcept {
    return started_.size() > released_ + most_in_reduction ? started_[started_.size() - 1 - most_in_reduction].free
                                                           : stream_event{};
  }
  /// Gives a bucket memory for `count` elements, not zeroed, which the compute stream may write.
  void open(std::size_t bucket, std::size_t count, where at) {
    while (started_.size() > released_ + most_in_reduction) source_->release(started_[released_++].lease);
    lease& one = open_[bucket];
    if (mark_.kind() == element_kind::unknown)
      mark_ = source_->mark(kind_of_element<T>(), {.purpose = lease_purpose::staged, .at = at});
    const auto take = [&] {
      one.first = reinterpret_cast<T*>(source_->lease_bytes(count * sizeof(T), one.chain, at, mark_));
    };
    try {
      take();
    } catch (const budget_error&) {
      // Where a backward was left out, which the commit names, buckets follow each other that do not in the plan: then
      // none is in reduction meanwhile.
      if (released_ == started_.size()) throw;
      for (; released_ < started_.size(); ++released_) {
        wait(started_[released_], at);
        source_->release(started_[released_].lease);
      }
      take();
    }
    one.count = count;
  }
  /// Where the compute stream does not wait before `open`, the host does.
  void wait_before_open(where at) {
    if (started_.size() <= released_ + most_in_reduction) return;
    for (std::size_t i = released_; i < started_.size() - most_in_reduction; ++i) wait(started_[i], at);
  }
  /// The bucket's memory belongs to the reduction `over` from here on, and to what follows it up to `free`.
  void close(std::size_t bucket, pending&& over, const stream_event& free) {
    source_->used_until(free, open_[bucket].first, open_[bucket].count * sizeof(T));
    started_.push_back({std::move(over), free, std::exchange(open_[bucket].chain, {})});
    open_[bucket] = {};
  }

  /// Later work of `stream`, which computes, comes after all reductions; releases all memory.
  void join(auto& stream, where at) {
    for (reduction& one : started_) {
      if (one.over.open()) std::move(one.over).then(stream, at);
      stream.wait(one.free, at);
    }
    release_all();
  }
  /// Returns when all reductions are over, and releases all memory.
  void wait_all(where at) {
    struct releases {
      gradient_staging* self;
      ~releases() { self->release_all(); }
    } const finally{this};
    for (reduction& one : started_) wait(one, at);
  }

 private:
  static constexpr std::size_t most_in_reduction = 1;

  struct lease {
    T* first = nullptr;
    std::size_t count = 0;
    lease_chain chain;
  };
  struct reduction {
    pending over;
    stream_event free;
    lease_chain lease;
  };

  void wait(reduction& one, where at) {
    if (one.over.open()) std::move(one.over).wait(at);
    one.free.synchronize(at);
    source_->host_waited(one.free);
  }
  void release_all() noexcept {
    for (; released_ < started_.size(); ++released_) source_->release(started_[released_].lease);
    started_.clear();
    released_ = 0;
    for (lease& one : open_) {
      if (one.first != nullptr) source_->release(one.chain);
      one = {};
    }
  }

  lease_source* source_ = nullptr;
  lease_mark mark_;
  std::vector<lease> open_;
  std::vector<reduction> started_;
  std::size_t released_ = 0;
};

}  // namespace belay::inline BELAY_ABI
