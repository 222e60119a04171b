// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the buckets give to norm, clip and optimizer: the proof that gradients were reduced over all ranks that
// replicate them and divided by the tokens of the batch, and the list of ranges that this rank owns.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket/gradient_states.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/bucket/replica_group.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

template <class T, class Group>
class gradient_buckets;

/// Whether the range counts in the global norm on this rank. A replicated one counts on rank 0 of its replica group
/// only.
enum class norm_share : std::uint8_t { counted_here, counted_elsewhere };

/// A part of a parameter that this rank updates: whole chunks, but for the last one of the parameter.
template <class T>
struct owned_range {
  std::size_t parameter = 0;  // number in model order of the buckets
  std::size_t offset = 0;     // elements from the parameter's local start
  std::size_t count = 0;
  std::size_t bucket = 0;
  T* value = nullptr;
  compute_type_t<T>* gradient = nullptr;
  weight_decay decay = weight_decay::no;
  norm_share share = norm_share::counted_here;
  file_shards* gradient_file = nullptr;  // where the gradient is in one
};

/// A part of a parameter that this rank updates, to look at: what writes values is an optimizer, or an update of the
/// store, which gathers them.
template <class T>
struct owned_gradient {
  std::size_t parameter = 0;  // number in model order of the store
  std::size_t offset = 0;     // elements from the parameter's local start
  std::size_t count = 0;
  const T* value = nullptr;
  const compute_type_t<T>* gradient = nullptr;  // as is the value, an address alone where shards lie in a file
  weight_decay decay = weight_decay::no;
};

/// All of those of a rank, in the order of memory. Good as long as the gradients.
template <class T>
class owned_gradients {
 public:
  /// Steps through them.
  class iterator {
   public:
    explicit iterator(const owned_range<T>* at) noexcept : at_(at) {}
    [[nodiscard]] owned_gradient<T> operator*() const noexcept { return look(*at_); }
    iterator& operator++() noexcept {
      ++at_;
      return *this;
    }
    friend bool operator==(const iterator&, const iterator&) = default;

   private:
    const owned_range<T>* at_;
  };

  owned_gradients() = default;
  explicit owned_gradients(std::span<const owned_range<T>> ranges) noexcept : ranges_(ranges) {}

  [[nodiscard]] std::size_t size() const noexcept { return ranges_.size(); }
  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
  [[nodiscard]] owned_gradient<T> operator[](std::size_t number) const noexcept { return look(ranges_[number]); }
  [[nodiscard]] iterator begin() const noexcept { return iterator(ranges_.data()); }
  [[nodiscard]] iterator end() const noexcept { return iterator(ranges_.data() + ranges_.size()); }

 private:
  [[nodiscard]] static owned_gradient<T> look(const owned_range<T>& range) noexcept {
    return {range.parameter, range.offset, range.count, range.value, range.gradient, range.decay};
  }
  std::span<const owned_range<T>> ranges_;
};

/// Reduced and divided gradients of one step. Only `gradient_buckets::finish` makes one, and `apply` consumes it; one
/// that ends before is discarded. Valid until the buckets, which outlive it, begin the next step.
template <class T>
class [[nodiscard]] reduced_gradients {
 public:
  reduced_gradients(reduced_gradients&& other) noexcept
      : owned_(std::exchange(other.owned_, {})),
        number_(std::exchange(other.number_, 0)),
        targets_(other.targets_),
        states_(other.states_) {}
  reduced_gradients& operator=(reduced_gradients&&) = delete;
  ~reduced_gradients() {
    if (number_ != 0) states_->discard(number_);
  }

  /// The ranges that this rank owns, in the order of memory; none once consumed.
  [[nodiscard]] std::span<const owned_range<T>> owned() const noexcept { return owned_; }
  /// The number of this reduction, counted by its buckets from 1; 0 once consumed.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// The target tokens by which they were divided.
  [[nodiscard]] std::size_t targets() const noexcept { return targets_; }
  /// Whether the buckets still hold them: false once consumed, and after the next `begin`.
  [[nodiscard]] bool latest() const noexcept { return number_ != 0 && states_->holds(number_); }
  /// Throws usage_error where the buckets have begun another step.
  void expect_latest(where at) const {
    if (!latest())
      throw usage_error("these gradients are of reduction " + std::to_string(number_) +
                            " of their buckets, which have begun another since",
                        at);
  }
  /// For optimizers: the ranges, which are theirs alone. Throws usage_error where the buckets have begun another step.
  [[nodiscard]] std::span<const owned_range<T>> consume(where at) {
    expect_latest(at);
    states_->apply(std::exchange(number_, 0));
    return std::exchange(owned_, {});
  }

 private:
  template <class, class>
  friend class gradient_buckets;
  reduced_gradients(std::span<const owned_range<T>> owned, std::uint64_t number, gradient_states& states) noexcept
      : owned_(owned), number_(number), states_(&states) {}

  std::span<const owned_range<T>> owned_;
  std::uint64_t number_;
  std::size_t targets_ = 0;
  gradient_states* states_;  // of the buckets
};

/// The ranges that this rank updates, by where its buckets are bound: in the order of memory and so of buckets.
template <class T, class Group>
[[nodiscard]] std::vector<owned_range<T>> owned_ranges(const bucket_layout& layout,
                                                       const std::vector<bucket_replica_group<Group>>& replica_groups,
                                                       const std::vector<bucket_member<T>>& members,
                                                       const bucket_memory<T>& memory) {
  std::vector<owned_range<T>> out;
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const auto& bucket = layout.buckets()[b];
    const bucket_replica_group<Group>& ranks = replica_groups[bucket.replica_group];
    const auto rank = static_cast<std::size_t>(layout_rank(ranks.group));
    const bool counted = (!bucket.counts.empty() || rank == 0) && (!ranks.copies || layout_rank(*ranks.copies) == 0);
    const norm_share share = counted ? norm_share::counted_here : norm_share::counted_elsewhere;
    const replica_group_shape& replica_group = layout.replica_group_of(bucket);
    const bucket_places::bucket_location& place = memory.places[b];
    layout.each_owned(bucket, rank, [&](const parameter_range& range) {
      const std::size_t in_bucket = layout.offset(range.parameter) - bucket.first + range.offset;
      const std::size_t value = place.values + in_bucket - (replica_group.divides_values() ? place.before : 0);
      const std::size_t gradient = place.gradients + in_bucket - (replica_group.divides_gradients() ? place.before : 0);
      out.push_back({range.parameter, range.offset, range.count, b, memory.values[place.values_in].data() + value,
                     memory.gradients[place.gradients_in].data() + gradient,
                     members[range.parameter].parameter().decay(), share,
                     place.gradients_in == tier::file ? memory.gradient_file : nullptr});
    });
  }
  return out;
}

/// Multiplies the gradients of a range, wherever they are kept, by `scale`; `group` works on those in the memory of a
/// device.
template <class T, class Group>
void scale_gradients(const owned_range<T>& range, const bucket_memory<T>& memory, compute_type_t<T> scale,
                     const Group& group, where at) {
  using gradient_type = compute_type_t<T>;
  const bool on_device = memory.places[range.bucket].gradients_in == tier::device;
  memory.change_gradients(range.bucket, {range.gradient, range.count}, [&](std::span<gradient_type> part) {
    const kernel::scale<gradient_type> scaled{scale, part.data()};
    on_device ? each_in_memory_of(group, part.size(), scaled, at) : kernel::for_each_index(part.size(), scaled);
  });
}

/// Gives every parameter its memory: whole, or of divided values what this rank owns, and of divided gradients none
/// until a backward adds to them.
template <class T, class Contributors>
void bind_members(const bucket_layout& layout, const std::vector<bucket_member<T>>& members,
                  const bucket_memory<T>& memory, std::span<const owned_range<T>> owned, Contributors& contributors) {
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const auto& bucket = layout.buckets()[b];
    const replica_group_shape& replica_group = layout.replica_group_of(bucket);
    const bucket_places::bucket_location& place = memory.places[b];
    for (std::size_t p : bucket.members) {
      const std::size_t in_bucket = layout.offset(p) - bucket.first;
      auto* const value =
          replica_group.divides_values() ? nullptr : memory.values[tier::device].data() + place.values + in_bucket;
      auto* const gradient = replica_group.divides_gradients()
                                 ? nullptr
                                 : memory.gradients[tier::device].data() + place.gradients + in_bucket;
      members[p].parameter().bind(value, gradient, &contributors[p]);
      contributors[p].note_memory(replica_group.divides_gradients() ? contribution_target::memory::needed
                                                                    : contribution_target::memory::given);
      if (!replica_group.divides_values()) continue;
      file_shards* const file = place.values_in == tier::file ? memory.value_file : nullptr;
      std::vector<held_range<T>> held;
      for (const owned_range<T>& range : owned)
        if (range.parameter == p) held.push_back({range.offset, range.count, range.value, file});
      members[p].parameter().hold(std::move(held));
    }
  }
}

/// The host sees what `all` keeps of its parameters on a device by `access`: `parameter_of(p)` is one of them.
template <class Buckets, class ParameterOf>
void set_host_view(const host_access* access, const Buckets& all, const ParameterOf& parameter_of) {
  for (std::size_t b = 0; b < all.layout().buckets().size(); ++b)
    for (const std::size_t p : all.layout().buckets()[b].members)
      if (all.places()[b].values_in == tier::device) parameter_of(p).set_host_view(access);
}

}  // namespace belay::inline BELAY_ABI
