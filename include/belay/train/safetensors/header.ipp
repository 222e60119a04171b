// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The header of a safetensors file, checked and written.
#pragma once

#include "belay/train/safetensors/header.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

BELAY_DECL std::uint64_t tensor::elements() const noexcept {
  std::uint64_t count = 1;
  for (std::uint64_t extent : shape) count *= extent;
  return count;
}

BELAY_DECL std::vector<std::size_t> order_by_name(const std::vector<tensor>& tensors) {
  return order_of(tensors.size(),
                  [&](std::size_t a, std::size_t b) { return tensors[a].name.compare(tensors[b].name) < 0; });
}

BELAY_DECL const tensor* find_tensor(const std::vector<tensor>& tensors, const std::vector<std::size_t>& by_name,
                                     std::string_view name) noexcept {
  std::size_t first = 0;
  std::size_t last = by_name.size();
  while (first < last) {
    const std::size_t middle = first + (last - first) / 2;
    const tensor& candidate = tensors[by_name[middle]];
    const int order = name.compare(candidate.name);
    if (order == 0) return &candidate;
    (order < 0 ? last : first) = order < 0 ? middle : middle + 1;
  }
  return nullptr;
}

BELAY_DECL bool size_in_bytes(stored_type type, const std::vector<std::uint64_t>& shape,
                              std::uint64_t& bytes) noexcept {
  std::uint64_t total = bits(type);
  for (std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return false;
  }
  bytes = total / 8;
  return total % 8 == 0;
}

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
