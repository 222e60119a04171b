// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a checkpoint holds: its files with a checksum for each chunk, and where every part of every tensor lies in them.
// A folder is a checkpoint once it has its manifest. The text is JSON with a fixed order of fields and its own checksum
// at the end.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/core/box.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/scanner.hpp"

namespace belay::inline BELAY_ABI {

/// The number of bytes that are checksummed together, counted from the beginning of a file.
inline constexpr std::uint64_t checkpoint_chunk = std::uint64_t{1} << 20;  // bytes
[[nodiscard]] constexpr std::uint64_t checkpoint_chunks(std::uint64_t bytes) noexcept {
  return (bytes + checkpoint_chunk - 1) / checkpoint_chunk;
}

/// The part of a tensor's state that is its values; others are named by optimizers: "master", "first_moment".
inline constexpr std::string_view value_part = "value";

/// Elements `first` to `first + count - 1` of `box`, of one part of a tensor's state, in one file.
struct manifest_piece {
  std::string part;
  safetensors::stored_type type = safetensors::stored_type::f32;
  std::size_t file = 0;     // its number in the manifest
  std::uint64_t begin = 0;  // byte in that file
  tensor_box box;
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return count * safetensors::bits(type) / 8; }
};

struct manifest_tensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::vector<manifest_piece> pieces;
};

struct manifest_file {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> checksums;  // CRC-32C of each chunk
};

/// An optimizer: how often it was applied, and what it was made with.
struct manifest_optimizer {
  std::uint64_t steps = 0;
  std::vector<std::pair<std::string, double>> settings;
};

struct manifest {
  std::string id;  // 16 hexadecimal digits of the run; it is in every file too
  std::uint64_t step = 0;
  axes mesh;
  std::vector<manifest_optimizer> optimizers;
  std::vector<std::pair<std::string, std::string>> states;  // of the user, by name
  std::vector<manifest_file> files;
  std::vector<manifest_tensor> tensors;

  /// The tensor of that name, or null.
  [[nodiscard]] const manifest_tensor* find(std::string_view name) const noexcept;
};

inline constexpr std::uint64_t largest_manifest = std::uint64_t{1} << 30;  // bytes
inline constexpr std::string_view checkpoint_format = "belay-checkpoint-1";

/// The text of a manifest. `parse_manifest` reads it.
class manifest_text {
 public:
  [[nodiscard]] static std::string of(const manifest& from);
  /// The list of tensors alone.
  [[nodiscard]] static std::string of(const std::vector<manifest_tensor>& tensors);

  static constexpr std::string_view checksum_field = "\"crc32c\":\"";
  static constexpr std::size_t tail = checksum_field.size() + 8 + 3;  // bytes that the checksum does not cover

 private:
  template <class List, class Each>
  void list(const List& all, Each&& each) {
    bool first = true;
    for (const auto& one : all) {
      if (!std::exchange(first, false)) out_ += ",\n";
      each(one);
    }
  }
  void file(const manifest_file& each);
  void tensor(const manifest_tensor& each);
  // The shortest decimal that gives the same double.
  [[nodiscard]] static std::string decimal(double value);

  std::string out_;
};

/// Of one text.
/// Reads the text of a manifest. What it says is checked against itself: pieces lie within their tensors and files.
class manifest_parser {
 public:
  /// `path` names it in errors.
  manifest_parser(std::string_view text, const std::string& path, where at)
      : scan_(text, path, at, 0), text_(text), path_(path), at_(at) {}

  /// Throws file_error.
  [[nodiscard]] manifest parse();
  /// The list of tensors alone, whose files are not known yet.
  [[nodiscard]] std::vector<manifest_tensor> parse_tensors();

 private:
  void expect_checksum() const;

  void key(std::string_view wanted);
  [[nodiscard]] std::string text_field(std::string_view name, std::uint64_t most);
  [[nodiscard]] std::uint64_t number_field(std::string_view name);
  template <class Each>
  void list(char open, char close, Each&& each) {
    scan_.take(open);
    for (bool first = true; !scan_.take_if(close); first = false) {
      if (!first) scan_.take(',');
      each();
    }
  }

  [[nodiscard]] axes mesh();
  [[nodiscard]] manifest_optimizer optimizer();
  [[nodiscard]] manifest_file file();
  [[nodiscard]] manifest_tensor tensor(const std::vector<manifest_file>* files);
  [[nodiscard]] manifest_piece piece(const manifest_tensor& of, const std::vector<manifest_file>* files);

  safetensors::header_scanner scan_;
  std::string_view text_;
  const std::string& path_;
  where at_;
};

/// The manifest in `text`, which is that of the file at `path`. Throws file_error with the byte where it is wrong.
[[nodiscard]] BELAY_DECL manifest parse_manifest(std::string_view text, const std::string& path,
                                                 where at = where::current());

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/checkpoint/manifest.ipp"  // IWYU pragma: export
#endif
