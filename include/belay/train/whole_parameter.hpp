// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A parameter as a whole, outside of layers: to log it, to look at it, to write it to a file of one's own. What is
// divided among ranks is gathered, and given back when the handle ends.
//
//   const auto weight = store.read(net.first.weight);       // on all ranks that divide it
//   print(weight.values());
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/host_access.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/gathers/gathered_bucket.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// Made by `parameter_store::read`. Move-only; the store outlives it.
template <class T>
class [[nodiscard]] whole_parameter {
 public:
  /// Of a parameter that this rank has whole; `access` where the host does not address it.
  whole_parameter(std::span<const T> values, const host_access* access, where at) : values_(values) {
    fetch_through(access, at);
  }
  /// Gathers `bucket`, which has `parameter`, into memory of `source`. Collective over the bucket's ranks, unless this
  /// one reaches their shards.
  template <class Group>
  whole_parameter(lease_source& source, const gathered_bucket<T, Group>& bucket, const parameter_base<T>& parameter,
                  const host_access* access, where at)
      : source_(&source) {
    T* const first =
        reinterpret_cast<T*>(source.lease_bytes(bucket.count * sizeof(T), lease_, at, {kind_of_element<T>(), 0}));
    const std::span<T> whole(first, bucket.count);
    const auto place = std::find_if(bucket.parameters.begin(), bucket.parameters.end(),
                                    [&](const auto& each) { return each.parameter == &parameter; });
    values_ = whole.subspan(place->offset, parameter.local_size());
    if (is_rehearsed(*bucket.group)) return;
    try {
      if constexpr (can_start_local<Group, bucket_pull<T>>) {
        if (bucket.reached != nullptr) {  // after the update, which the communication stream waits for
          const bucket_pull<T> work{first, bucket.reached->first, bucket.counts};
          const start_order order = start_order(at).keeping(bucket.reached);
          bucket.group->start_local(operation::all_gather_v, work, order).wait(at);
          fetch_through(access, at);
          return;
        }
      }
      if (bucket.file != nullptr)
        bucket.file->read(bucket.shard.data(), first + bucket.before, bucket.shard.size_bytes(), at);
      else
        each_in_memory_of(*bucket.group, bucket.shard.size(),
                          kernel::copy<T, T>{bucket.shard.data(), first + bucket.before}, at);
      bucket.group->all_gather_v(whole, bucket.counts, at);
      fetch_through(access, at);
    } catch (...) {
      source.release(lease_);
      throw;
    }
  }
  whole_parameter(whole_parameter&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)),
        lease_(std::exchange(other.lease_, {})),
        fetched_(std::move(other.fetched_)),
        values_(other.values_) {}
  whole_parameter& operator=(whole_parameter&& other) noexcept {
    if (this == &other) return *this;
    release();
    source_ = std::exchange(other.source_, nullptr);
    lease_ = std::exchange(other.lease_, {});
    fetched_ = std::move(other.fetched_);
    values_ = other.values_;
    return *this;
  }
  ~whole_parameter() { release(); }

  /// This rank's part by its placement, all of it, in the parameter's order. In a rehearsal, addresses without memory.
  [[nodiscard]] std::span<const T> values() const noexcept { return values_; }

 private:
  void fetch_through(const host_access* access, where at) {
    if (access == nullptr) return;
    fetched_.resize(values_.size());
    access->fetch(fetched_.data(), values_.data(), values_.size_bytes(), at);
    values_ = fetched_;
  }
  void release() noexcept {
    if (source_ != nullptr) source_->release(lease_);
  }

  lease_source* source_ = nullptr;
  lease_chain lease_;
  std::vector<T> fetched_;  // from a device
  std::span<const T> values_;
};

}  // namespace belay::inline BELAY_ABI
