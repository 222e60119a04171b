// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where everything will lie in a file that is about to be written: the bytes of the header and the range of each
// tensor, from the declarations alone. The same declarations always give the same bytes.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/stored_type.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// A tensor of a file that is to be written.
struct declaration {
  std::string name;
  stored_type type = stored_type::f32;
  std::vector<std::uint64_t> shape;
};

/// The metadata that other readers expect: {"format": "pt"}.
[[nodiscard]] BELAY_DECL metadata_list usual_metadata();

struct layout {
  std::string prefix;           // length and header, ready to be written at byte 0
  std::vector<tensor> tensors;  // in the order declared; bytes counted from the end of `prefix`
  std::uint64_t data_bytes = 0;

  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return prefix.size() + data_bytes; }
};

/// Places the declared tensors one after another, in their order. The header is padded with spaces, so that the data
/// begins at a multiple of 8. Tensors that a reader with that scanner would refuse are a usage_error.
template <class Scanner = header_scanner>
[[nodiscard]] layout lay_out(const std::vector<declaration>& tensors, const metadata_list& about,
                             where at = where::current());

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/safetensors/layout.ipp"  // IWYU pragma: export
#endif
