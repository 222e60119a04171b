// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where a chunk lies, and its bytes from the segments of its file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/train/checkpoint/checkpoint_writer.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL chunked_files::chunked_files(std::vector<file_to_write> files) : files_(std::move(files)) {
  for (file_to_write& each : files_) {
    each.checksums.assign(static_cast<std::size_t>(checkpoint_chunks(each.bytes)), 0);
    chunks_ += each.checksums.size();
    std::uint64_t end = 0;
    std::vector<std::uint64_t>& ends = ends_.emplace_back();
    for (const stored_bytes& segment : each.segments) ends.push_back(end += segment.size());
  }
}

BELAY_DECL auto chunked_files::place_of(std::size_t number) const noexcept -> file_chunk {
  std::size_t f = 0;
  for (; number >= files_[f].checksums.size(); ++f) number -= files_[f].checksums.size();
  const std::uint64_t begin = number * checkpoint_chunk;
  return {f, number, begin, static_cast<std::size_t>(lesser_of(checkpoint_chunk, files_[f].bytes - begin))};
}

BELAY_DECL void chunked_files::gather(const file_chunk& of, std::byte* to, file_staging& staging, where at) const {
  const std::vector<std::uint64_t>& ends = ends_[of.file];
  const std::vector<stored_bytes>& segments = files_[of.file].segments;
  const std::uint64_t end = of.begin + of.bytes;
  auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), of.begin) - ends.begin());
  for (std::uint64_t next = of.begin; next < end; next = ends[i++]) {
    const std::uint64_t begin = ends[i] - segments[i].size();
    const auto count = static_cast<std::size_t>(lesser_of(ends[i], end) - next);
    staging.copy(segments[i].part(static_cast<std::size_t>(next - begin), count), to, at);
    to += count;
  }
}

}  // namespace belay::inline BELAY_ABI
