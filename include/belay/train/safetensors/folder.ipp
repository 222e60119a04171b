// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The index of a folder, read.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

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

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
