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
#include "belay/parallel/bucket/layout.hpp"

namespace belay::inline BELAY_ABI {

/// Values of parameters of T and their gradients, each of `layout.elements()`; what checked builds reduce in, which
/// makes `layout.gradient_elements()` with the gradients; and where gradients are rounded, sent and received, one
/// bucket after the other.
template <class T>
struct bucket_memory {
  using gradient_type = compute_type_t<T>;

  std::span<T> values = {};
  std::span<gradient_type> gradients = {};
  std::span<gradient_type> reductions = {};
  std::span<T> wire = {};

  /// Throws usage_error where it is not what `layout` needs, with `wire_elements` for the wire.
  void expect(const bucket_layout& layout, std::size_t wire_elements, where at) const {
    const std::size_t all = gradients.size() + reductions.size();
    if (values.size() != layout.elements() || all != layout.gradient_elements())
      throw usage_error("the buckets need layout().elements() = " + std::to_string(layout.elements()) +
                            " values and layout().gradient_elements() = " + std::to_string(layout.gradient_elements()) +
                            " gradients, got " + std::to_string(values.size()) + " and " + std::to_string(all),
                        at);
    if (wire.size() != wire_elements)
      throw usage_error("the buckets need wire_elements() = " + std::to_string(wire_elements) +
                            " elements for the wire, got " + std::to_string(wire.size()),
                        at);
  }
  [[nodiscard]] bool is_bound_to(const bucket_layout& layout) const noexcept {
    return gradients.size() + reductions.size() == layout.gradient_elements();
  }

  [[nodiscard]] std::span<gradient_type> gradient_of(const bucket_layout& layout,
                                                     std::size_t parameter) const noexcept {
    return gradients.subspan(layout.offset(parameter), layout.size(parameter));
  }
  /// Where a bucket is reduced.
  [[nodiscard]] std::span<gradient_type> reduction_of(const bucket_layout& layout,
                                                      const bucket_layout::bucket& b) const noexcept {
    if (b.reduced_at == b.first) return gradients.subspan(b.first, b.count);
    return reductions.subspan(b.reduced_at - layout.elements(), b.count);
  }
};

}  // namespace belay::inline BELAY_ABI
