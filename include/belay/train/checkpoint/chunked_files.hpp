// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The files that a rank writes of a checkpoint, in chunks of one size: where the bytes of each come from.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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
  explicit chunked_files(std::vector<file_to_write> files);

  [[nodiscard]] const std::vector<file_to_write>& all() const noexcept { return files_; }
  /// Of all files: chunk `number` of these is one of a file.
  [[nodiscard]] std::size_t chunks() const noexcept { return chunks_; }

  struct file_chunk {
    std::size_t file = 0, chunk = 0;
    std::uint64_t begin = 0;  // byte of the file
    std::size_t bytes = 0;
  };
  [[nodiscard]] file_chunk place_of(std::size_t number) const noexcept;
  /// Copies the chunk at `of` to `to`. Throws tier_file_error where it lies in a tier's file that cannot be read.
  void gather(const file_chunk& of, std::byte* to, file_staging& staging, where at) const;
  void set_checksum(const file_chunk& of, std::uint32_t value) noexcept { files_[of.file].checksums[of.chunk] = value; }

 private:
  std::vector<file_to_write> files_;
  std::vector<std::vector<std::uint64_t>> ends_;  // of each file: where each segment ends in it
  std::size_t chunks_ = 0;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/checkpoint/chunked_files.ipp"  // IWYU pragma: export
#endif
