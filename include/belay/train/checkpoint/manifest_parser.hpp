// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reads the text of a manifest. What it says is checked against itself: pieces lie within their tensors and files.
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
#include "belay/core/crc32c.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hexadecimal.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/scanner.hpp"
#include "belay/train/safetensors/stored_type.hpp"

namespace belay::inline BELAY_ABI {

/// Of one text.
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
[[nodiscard]] manifest parse_manifest(std::string_view text, const std::string& path, where at = where::current());

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/checkpoint/manifest_parser.ipp"  // IWYU pragma: export
#endif
