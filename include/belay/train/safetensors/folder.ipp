// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The index of a folder, read; which tensors go into which file of a folder, and the index that says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/printable.hpp"
#include "belay/train/safetensors/folder.hpp"
#include "belay/train/safetensors/scanner.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

BELAY_DECL weight_map parse_index(std::string_view text, const std::string& path, where at) {
  header_scanner scan(text, path, at, 0);
  scan.check_utf8();
  weight_map out;
  std::map<std::string, std::size_t, std::less<>> seen;
  bool found = false;
  scan.take('{');
  for (bool first = true; !scan.take_if('}'); first = false) {
    if (!first) scan.take(',');
    const std::string field = scan.string(256, "a field");
    scan.take(':');
    if (field != "weight_map") {
      scan.skip_value();
      continue;
    }
    if (std::exchange(found, true)) scan.fail(scan.next(), "weight_map is there twice");
    scan.take('{');
    for (bool none = true; !scan.take_if('}'); none = false) {
      if (!none) scan.take(',');
      const std::size_t place = scan.next();
      std::string name = scan.string(4096, "a tensor's name");
      scan.take(':');
      std::string beside = scan.string(255, "a file's name");
      if (!seen.emplace(name, out.size()).second) scan.fail(place, "tensor " + printable(name) + " is there twice");
      if (beside.empty() || beside == "." || beside == ".." ||
          beside.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
        scan.fail(place,
                  "tensor " + printable(name) + " lies in " + printable(beside) + ", which is no file beside it");
      out.emplace_back(std::move(name), std::move(beside));
    }
  }
  scan.finish();
  if (!found) scan.fail(0, "has no weight_map");
  return out;
}

BELAY_DECL file_division::file_division(const std::vector<declaration>& tensors, std::uint64_t largest) {
  for (const declaration& each : tensors) {
    std::uint64_t size = 0;
    static_cast<void>(size_in_bytes(each.type, each.shape, size));  // what no file can hold, its writer refuses
    if (files_.empty() || (!files_.back().empty() && (size > largest || in_last_ > largest - size))) {
      files_.emplace_back();
      in_last_ = 0;
    }
    files_.back().push_back(each);
    in_last_ += size;
    total_ += size;
  }
  if (files_.empty()) files_.emplace_back();
}

BELAY_DECL std::string file_division::name_of(std::size_t number) const {
  if (files_.size() == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number + 1, files_.size());
  return name;
}

BELAY_DECL std::vector<std::string> file_division::names() const {
  std::vector<std::string> out;
  for (std::size_t number = 0; number < files_.size(); ++number) out.push_back(name_of(number));
  if (files_.size() > 1) out.push_back(index_name());
  return out;
}

BELAY_DECL std::string file_division::index() const {
  std::map<std::string_view, std::size_t> file_of;
  for (std::size_t number = 0; number < files_.size(); ++number)
    for (const declaration& each : files_[number]) file_of.emplace(each.name, number);
  std::string out = "{\"metadata\":{\"total_size\":" + std::to_string(total_) + "},\"weight_map\":{";
  bool first = true;
  for (const auto& [name, number] : file_of) {
    if (!std::exchange(first, false)) out += ',';
    append_json(out, name);
    out += ':';
    append_json(out, name_of(number));
  }
  return out + "}}\n";
}

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
