// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Copies of bytes that lie in a tier's file.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "belay/core/error.hpp"
#include "belay/device/stored_bytes.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL file_staging::file_staging(std::span<std::byte> memory) noexcept {
  void* first = memory.data();
  std::size_t room = memory.size();
  buffers_ = static_cast<std::byte*>(std::align(largest_alignment, 2 * buffer_bytes, first, room));
}

BELAY_DECL void file_staging::copy(const stored_bytes& from, std::byte* to, where at) {
  if (from.size() == 0) return;
  if (from.in_file()) return read(from.file(), from.offset(), {to, from.size()}, at);
  if (from.access() != nullptr) return from.access()->copy(to, from.memory().data(), from.size(), at);
  std::memcpy(to, from.memory().data(), from.size());
}

BELAY_DECL void file_staging::read(const tier_file_reference& file, std::uint64_t offset, std::span<std::byte> to,
                                   where at) {
  if (file.alignment() > largest_alignment || buffers_ == nullptr)
    throw usage_error("a tier file in blocks of " + std::to_string(file.alignment()) +
                          " bytes: checkpoints read blocks of at most " + std::to_string(largest_alignment),
                      at);
  const std::uint64_t end = offset + to.size();
  std::uint64_t started = offset - offset % file.alignment(), next = started;
  file_transfer under_way[2];
  const auto start = [&](std::size_t buffer) {
    if (started >= end) return;
    const std::uint64_t blocks = (end - started + file.alignment() - 1) / file.alignment() * file.alignment();
    const auto count = static_cast<std::size_t>(lesser_of<std::uint64_t>(blocks, buffer_bytes));
    under_way[buffer] = file.start_read(started, {buffers_ + buffer * buffer_bytes, count}, at);
    started += count;
  };
  start(0);
  for (std::size_t buffer = 0; next < end; buffer = 1 - buffer) {
    start(1 - buffer);
    under_way[buffer].wait(at);
    const std::uint64_t first = greater_of(next, offset), last = lesser_of(next + buffer_bytes, end);
    std::memcpy(to.data() + (first - offset), buffers_ + buffer * buffer_bytes + (first - next),
                static_cast<std::size_t>(last - first));
    next += buffer_bytes;
  }
}

}  // namespace belay::inline BELAY_ABI
