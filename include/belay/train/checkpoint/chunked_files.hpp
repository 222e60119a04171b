// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The files that a rank writes of a checkpoint, in chunks of one size: where the bytes of each come from.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/train/checkpoint/manifest.hpp"

namespace belay::inline BELAY_ABI {

/// A file that is to be written: its segments, one after another, which stay as they are until the next
/// `before_update` has returned.
struct file_to_write {
  std::string path;
  std::vector<stored_bytes> segments;
  std::uint64_t bytes = 0;               // of all segments
  std::vector<std::uint32_t> checksums;  // of its chunks, once written
};

class chunked_files {
 public:
  chunked_files() = default;
  explicit chunked_files(std::vector<file_to_write> files) : files_(std::move(files)) {
    for (file_to_write& each : files_) {
      each.checksums.assign(static_cast<std::size_t>(checkpoint_chunks(each.bytes)), 0);
      chunks_ += each.checksums.size();
      std::uint64_t end = 0;
      std::vector<std::uint64_t>& ends = ends_.emplace_back();
      for (const stored_bytes& segment : each.segments) ends.push_back(end += segment.size());
    }
  }

  [[nodiscard]] const std::vector<file_to_write>& all() const noexcept { return files_; }
  /// Of all files: chunk `number` of these is one of a file.
  [[nodiscard]] std::size_t chunks() const noexcept { return chunks_; }

  struct place {
    std::size_t file = 0, chunk = 0;
    std::uint64_t begin = 0;  // byte of the file
    std::size_t bytes = 0;
  };
  [[nodiscard]] place place_of(std::size_t number) const noexcept {
    std::size_t f = 0;
    for (; number >= files_[f].checksums.size(); ++f) number -= files_[f].checksums.size();
    const std::uint64_t begin = number * checkpoint_chunk;
    return {f, number, begin, static_cast<std::size_t>(lesser_of(checkpoint_chunk, files_[f].bytes - begin))};
  }
  /// Copies the chunk at `of` to `to`. Throws tier_file_error where it lies in a tier's file that cannot be read.
  void gather(const place& of, std::byte* to, file_staging& staging, where at) const {
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
  void set_checksum(const place& of, std::uint32_t value) noexcept { files_[of.file].checksums[of.chunk] = value; }

 private:
  std::vector<file_to_write> files_;
  std::vector<std::vector<std::uint64_t>> ends_;  // of each file: where each segment ends in it
  std::size_t chunks_ = 0;
};

}  // namespace belay::inline BELAY_ABI
