// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the buckets give to norm, clip and optimizer: the proof that gradients were reduced over all ranks that
// replicate them and divided by the tokens of the batch, and the list of ranges that this rank owns.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/file_shares.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

template <class T, class Group>
class gradient_buckets;

/// Whether the range counts in the global norm on this rank. A replicated one counts on rank 0 of its family only.
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
  file_shares* gradient_file = nullptr;  // where the gradient is in one
};

/// A part of a parameter that this rank updates, to look at: what writes values is an optimizer, or an update of the
/// store, which gathers them.
template <class T>
struct owned_gradient {
  std::size_t parameter = 0;  // number in model order of the store
  std::size_t offset = 0;     // elements from the parameter's local start
  std::size_t count = 0;
  const T* value = nullptr;
  const compute_type_t<T>* gradient = nullptr;  // as is the value, an address alone where shares lie in a file
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

/// Reduced and divided gradients of one step. Only `gradient_buckets::finish` makes one, and `apply` consumes it. Valid
/// until the buckets begin the next step.
template <class T>
class [[nodiscard]] reduced_gradients {
 public:
  reduced_gradients(reduced_gradients&& other) noexcept
      : owned_(std::exchange(other.owned_, {})),
        number_(std::exchange(other.number_, 0)),
        targets_(other.targets_),
        latest_(other.latest_) {}
  reduced_gradients& operator=(reduced_gradients&&) = delete;

  /// The ranges that this rank owns, in the order of memory; none once consumed.
  [[nodiscard]] std::span<const owned_range<T>> owned() const noexcept { return owned_; }
  /// The number of this reduction, counted by its buckets from 1; 0 once consumed.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// The target tokens by which they were divided.
  [[nodiscard]] std::size_t targets() const noexcept { return targets_; }
  /// Whether the buckets still hold them: false once consumed, and after the next `begin`.
  [[nodiscard]] bool latest() const noexcept { return number_ != 0 && number_ == *latest_; }

 private:
  template <class, class>
  friend class gradient_buckets;
  reduced_gradients(std::span<const owned_range<T>> owned, std::uint64_t number, std::size_t targets,
                    const std::uint64_t& latest) noexcept
      : owned_(owned), number_(number), targets_(targets), latest_(&latest) {}

  std::span<const owned_range<T>> owned_;
  std::uint64_t number_;
  std::size_t targets_;
  const std::uint64_t* latest_;  // of the buckets: 0 while they hold no reduced gradients
};

}  // namespace belay::inline BELAY_ABI
