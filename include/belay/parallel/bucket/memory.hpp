// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory that buckets are bound to.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/places.hpp"
#include "belay/parallel/file_shards.hpp"

namespace belay::inline BELAY_ABI {

/// Values of parameters of T and their gradients, each of `layout.elements()`, or what `places` says where they are
/// divided; what checked builds reduce in, which makes `layout.gradient_elements()` with the gradients; and where
/// gradients are rounded, sent and received, one bucket after the other.
template <class T>
struct bucket_memory {
  using gradient_type = compute_type_t<T>;

  tiered_memory<T> values = {};
  tiered_memory<gradient_type> gradients = {};
  std::span<gradient_type> reductions = {};
  std::span<T> wire = {};
  bucket_places places = {};
  file_shards* value_file = nullptr;  // of shards in tier file
  file_shards* gradient_file = nullptr;

  /// Throws usage_error where it is not what `layout` needs, with `wire_elements` for the wire.
  void expect(const bucket_layout& layout, std::size_t wire_elements, where at) const {
    const std::size_t all = gradients.size() + reductions.size(), needed = all_gradients(layout);
    if (values.size() != elements(&bucket_places::value_elements) || all != needed)
      throw usage_error(
          "the buckets need layout().elements() = " + std::to_string(elements(&bucket_places::value_elements)) +
              " values and layout().gradient_elements() = " + std::to_string(needed) + " gradients, got " +
              std::to_string(values.size()) + " and " + std::to_string(all),
          at);
    if (wire.size() != wire_elements)
      throw usage_error("the buckets need wire_elements() = " + std::to_string(wire_elements) +
                            " elements for the wire, got " + std::to_string(wire.size()),
                        at);
  }
  [[nodiscard]] bool is_bound_to(const bucket_layout& layout) const noexcept {
    return gradients.size() + reductions.size() == all_gradients(layout);
  }

  /// The values of a bucket that this rank keeps: all of them, or its shard.
  [[nodiscard]] std::span<T> values_of(const bucket_layout& layout, std::size_t bucket) const noexcept {
    const auto& b = layout.buckets()[bucket];
    const auto& place = places[bucket];
    return values[place.values_in].subspan(place.values,
                                           layout.replica_group_of(b).divides_values() ? place.own : b.count);
  }
  /// The gradients of a bucket that this rank keeps: all of them, or its shard.
  [[nodiscard]] std::span<gradient_type> gradients_of(const bucket_layout& layout, std::size_t bucket) const noexcept {
    const auto& b = layout.buckets()[bucket];
    const auto& place = places[bucket];
    return gradients[place.gradients_in].subspan(place.gradients,
                                                 layout.replica_group_of(b).divides_gradients() ? place.own : b.count);
  }
  /// Calls `visit(std::span<gradient_type>)` for a part of what is kept of a bucket's gradients: piece by piece, where
  /// it is in a file.
  template <class Visit>
  void change_gradients(std::size_t bucket, std::span<gradient_type> part, Visit&& visit) const {
    if (places[bucket].gradients_in != tier::file) return visit(part);
    gradient_file->change(part, [&](std::size_t, std::span<gradient_type> piece) { visit(piece); });
  }
  /// Where a bucket of whole gradients is reduced.
  [[nodiscard]] std::span<gradient_type> reduction_of(const bucket_layout& layout, std::size_t bucket) const noexcept {
    const auto& b = layout.buckets()[bucket];
    if (b.reduced_at == b.first) return gradients_of(layout, bucket);
    return reductions.subspan(b.reduced_at - layout.elements(), b.count);
  }

 private:
  // In all tiers.
  [[nodiscard]] std::size_t elements(std::size_t (bucket_places::*of)(tier) const noexcept) const noexcept {
    std::size_t all = 0;
    for (std::size_t t = 0; t < tier_count; ++t) all += (places.*of)(static_cast<tier>(t));
    return all;
  }
  [[nodiscard]] std::size_t all_gradients(const bucket_layout& layout) const noexcept {
    return elements(&bucket_places::gradient_elements) + layout.gradient_elements() - layout.elements();
  }
};

}  // namespace belay::inline BELAY_ABI
