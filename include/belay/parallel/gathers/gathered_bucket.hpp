// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A bucket of divided parameters, as gathers see it, and where its values lie on all ranks that this one reaches by
// address: a gather then is a copy that no peer takes part in.
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// How layers get what ranks divide: each rank copies its peers' shards where it reaches their memory, or all ranks
/// gather together, as they always do where none reaches another's.
enum class gather_by : std::uint8_t { reach, collectives };

/// The shards of one bucket, as this rank addresses them: of each rank of the bucket's group. Kept alive by a gather
/// that is under way.
template <class T>
struct reached_shards {
  std::vector<const T*> first;
  std::shared_ptr<const void> layout;
};

/// One rank's copy of a bucket: its peers' shards and its own, `counts[r]` elements of rank r, into `whole`.
template <class T>
struct bucket_pull {
  T* whole;
  std::span<const T* const> shards;
  std::span<const std::size_t> counts;

  void operator()() const noexcept {
    T* next = whole;
    for (std::size_t r = 0; r < shards.size(); next += counts[r++]) std::copy_n(shards[r], counts[r], next);
  }
  /// Copies the shards into `whole` by kernels of a device, which `calls` queues.
  template <class Calls>
  void operator()(Calls& calls) const {
    T* next = whole;
    for (std::size_t r = 0; r < shards.size(); next += counts[r++])
      calls.each(counts[r], kernel::copy<T>{shards[r], next});
  }
};

/// The memory of values of all ranks that divide them, in any of a layout's replica groups.
template <class T>
class reached_values {
 public:
  /// Rank i of them is rank `members[i]` of the world, with the buckets at `places[i]`.
  reached_values(std::span<const int> members, std::vector<bucket_places> places)
      : members_(members.begin(), members.end()), places_(std::move(places)) {}

  /// Values of rank i in tier `in` begin at `first[i]`; `first` is empty where no rank has anything there.
  void lies(tier in, std::vector<const T*> first) { first_[static_cast<std::size_t>(in)] = std::move(first); }

  /// The shards of a bucket that the ranks `group` of the world divide, who are among these.
  [[nodiscard]] std::shared_ptr<const reached_shards<T>> of(std::size_t bucket, std::span<const int> group,
                                                            std::shared_ptr<const void> layout) const;

 private:
  std::vector<int> members_;
  std::vector<bucket_places> places_;
  std::array<std::vector<const T*>, tier_count> first_;
};

/// Counts and offsets are in elements.
template <class T, class Group>
struct gathered_bucket {
  struct bucket_parameter {
    parameter_base<T>* parameter = nullptr;
    std::size_t offset = 0;  // in the bucket
  };

  const Group* group = nullptr;  // the ranks that divide it
  std::span<const T> shard;      // of this rank; addresses where it is in a file
  std::size_t before = 0;        // of the bucket, before the shard
  std::span<const std::size_t> counts;
  std::size_t count = 0;  // of the whole bucket
  std::vector<bucket_parameter> parameters;
  std::shared_ptr<const void> kept;                            // while a gather is under way
  std::shared_ptr<const reached_shards<T>> reached = nullptr;  // null: its ranks gather together
  file_shards* file = nullptr;                                 // where the shard is in one
};

template <class T>
std::shared_ptr<const reached_shards<T>> reached_values<T>::of(std::size_t bucket, std::span<const int> group,
                                                               std::shared_ptr<const void> layout) const {
  auto out = std::make_shared<reached_shards<T>>();
  for (const int member : group) {
    const auto found = std::find(members_.begin(), members_.end(), member);
    const auto number = static_cast<std::size_t>(found - members_.begin());
    const bucket_places::bucket_location& place = places_[number][bucket];
    const std::vector<const T*>& first = first_[static_cast<std::size_t>(place.values_in)];
    out->first.push_back(first.empty() ? nullptr : first[number] + place.values);
  }
  out->layout = std::move(layout);
  return out;
}

}  // namespace belay::inline BELAY_ABI
