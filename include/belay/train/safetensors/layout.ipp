// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The header of a file that is to be written, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/json_text.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/utf8.hpp"
#include "belay/train/safetensors/layout.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

BELAY_DECL metadata_list usual_metadata() {
  metadata_list list;
  list.emplace_back(std::string("format"), std::string("pt"));
  return list;
}

// JSON holds valid UTF-8 only: another text would be read back changed.
BELAY_DECL void expect_utf8(std::string_view text, const char* what, where at) {
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(utf8_length(rest))) {
    if (utf8_length(rest) != 0) continue;
    throw usage_error(
        std::string("these tensors cannot be written: ") + what + " is not valid UTF-8: " + printable(text), at);
  }
}

template <class Scanner>
layout lay_out(const std::vector<declaration>& tensors, const metadata_list& about,
                             where at) {
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

#if defined(BELAY_SEPARATE_COMPILATION)
template layout lay_out<header_scanner>(const std::vector<declaration>&, const metadata_list&, where);
#endif

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
