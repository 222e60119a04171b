// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Mapping symmetric memory.
#pragma once

#include <unistd.h>

#include "belay/comm/symmetric_region.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL symmetric_region symmetric_region::map(int ranks, std::size_t bytes, backing kind, where at) {
  symmetric_region out;
  out.stride_ = stride_for(ranks, bytes, at);
  const std::size_t total = out.stride_ * static_cast<std::size_t>(ranks);
  if (total == 0) return out;
  const int access = kind == backing::addresses_only ? PROT_NONE : PROT_READ | PROT_WRITE;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (kind == backing::memory ? 0 : MAP_NORESERVE);
  out.mapping_ = new mapping(total);
  out.mapping_->first = ::mmap(nullptr, total, access, flags, -1, 0);
  if (out.mapping_->first == MAP_FAILED) throw budget_error("symmetric memory", total, 0, at);
  return out;
}

[[gnu::cold]] BELAY_DECL symmetric_region symmetric_region::adopt(int ranks, std::size_t stride, std::byte* first,
                                                                  void* context, void (*release)(void*) noexcept) {
  symmetric_region out;
  out.stride_ = stride;
  out.mapping_ = new mapping(stride * static_cast<std::size_t>(ranks));
  out.mapping_->first = first;
  out.mapping_->context = context;
  out.mapping_->release = release;
  return out;
}

[[gnu::cold]] BELAY_DECL std::size_t symmetric_region::stride_for(int ranks, std::size_t bytes, where at) {
  const checked_size stride = checked_size(bytes).rounded_up(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  if (!(stride * static_cast<std::size_t>(ranks)).fits()) throw budget_error("address space", bytes, 0, at);
  return stride.saturated();
}

}  // namespace belay::inline BELAY_ABI
