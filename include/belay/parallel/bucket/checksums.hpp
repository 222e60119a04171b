// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A checksum of every gradient at its last contribution of a step. A backward that adds to the gradient afterwards
// would not be part of the reduction; on one rank it would go unnoticed.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// A checksum for each parameter, and the call after which it was taken.
class gradient_checksums {
 public:
  static constexpr std::size_t no_micro_batch = largest_value<std::size_t>;

  explicit gradient_checksums(std::size_t parameters) : taken_(parameters) {}

  /// The last contribution to `parameter` was that of `micro_batch`, or `no_micro_batch`.
  void note(std::size_t parameter, std::size_t micro_batch, where at) noexcept {
    taken_[parameter] = {0, micro_batch, at, false};
  }
  /// Takes the checksum of a gradient that has all contributions, once after `note`. The gradient must not change from
  /// here on.
  template <class T>
  void seal(std::size_t parameter, std::span<T> gradient) noexcept {
    checksum& one = taken_[parameter];
    if (!std::exchange(one.sealed, true)) one.hash = hash_of(gradient);
  }
  /// Whether the gradient has changed since it was sealed.
  template <class T>
  [[nodiscard]] bool changed(std::size_t parameter, std::span<T> gradient) const noexcept {
    return taken_[parameter].hash != hash_of(gradient);
  }
  /// "micro-batch 3 at file:line", the last contribution to `parameter`.
  [[nodiscard]] std::string text(std::size_t parameter) const {
    const checksum& last = taken_[parameter];
    const bool none = last.micro_batch == no_micro_batch;
    return (none ? "a step of no micro-batches" : "micro-batch " + std::to_string(last.micro_batch)) + " at " +
           last.at.text();
  }
  /// A hash of all bits of a gradient.
  template <class T>
  [[nodiscard]] static std::uint64_t hash_of(std::span<T> gradient) noexcept {
    return content_hash().add_bytes(gradient.data(), gradient.size_bytes()).value();
  }

 private:
  struct checksum {
    std::uint64_t hash = 0;
    std::size_t micro_batch = 0;
    where at;
    bool sealed = false;
  };

  std::vector<checksum> taken_;
};

}  // namespace belay::inline BELAY_ABI
