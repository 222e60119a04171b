// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where everything will lie in a file that is about to be written: the bytes of the header and the range of each
// tensor, from the declarations alone. The same declarations always give the same bytes.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/json_text.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/utf8.hpp"
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
[[nodiscard]] inline metadata_list usual_metadata() {
  metadata_list list;
  list.emplace_back(std::string("format"), std::string("pt"));
  return list;
}

// JSON holds valid UTF-8 only: another text would be read back changed.
inline void expect_utf8(std::string_view text, const char* what, where at) {
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(utf8_length(rest))) {
    if (utf8_length(rest) != 0) continue;
    throw usage_error(
        std::string("these tensors cannot be written: ") + what + " is not valid UTF-8: " + printable(text), at);
  }
}

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
                             where at = where::current()) {
  layout result;
  std::string text = "{";
  if (!about.empty()) {
    text += "\"__metadata__\":{";
    for (std::size_t i = 0; i < about.size(); ++i) {
      if (i != 0) text += ',';
      expect_utf8(about[i].first, "a metadata key", at);
      expect_utf8(about[i].second, "a metadata value", at);
      append_json(text, about[i].first);
      text += ':';
      append_json(text, about[i].second);
    }
    text += '}';
  }
  std::uint64_t begin = 0;
  for (const declaration& each : tensors) {
    std::uint64_t bytes = 0;
    if (each.name == "__metadata__") throw usage_error("no tensor can be called __metadata__", at);
    if (!size_in_bytes(each.type, each.shape, bytes) || __builtin_add_overflow(begin, bytes, &result.data_bytes)) {
      throw usage_error("the size of tensor " + each.name + " overflows or ends inside a byte", at);
    }
    if (text.size() > 1) text += ',';
    expect_utf8(each.name, "a tensor's name", at);
    append_json(text, each.name);
    text += ":{\"dtype\":\"";
    text += name(each.type);
    text += "\",\"shape\":[";
    for (std::size_t i = 0; i < each.shape.size(); ++i) {
      if (i != 0) text += ',';
      text += std::to_string(each.shape[i]);
    }
    text += "],\"data_offsets\":[" + std::to_string(begin) + ',' + std::to_string(result.data_bytes) + "]}";
    result.tensors.push_back({each.name, each.type, each.shape, begin, result.data_bytes});
    begin = result.data_bytes;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > largest_header) throw usage_error("the header is larger than 100,000,000 bytes", at);
  try {
    static_cast<void>(parse_header<Scanner>(text, result.data_bytes, "declared tensors", at));
  } catch (const file_error& refused) {
    throw usage_error(std::string("these tensors cannot be written: ") + refused.what(), at);
  }
  std::uint64_t length = text.size();
  for (int i = 0; i < 8; ++i, length >>= 8U)
    result.prefix += static_cast<char>(static_cast<unsigned char>(length & 0xFFU));
  result.prefix += text;
  return result;
}

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
