// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A manifest seen from its tensors' parts: which there are, how large they are, and what a file holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/train/checkpoint.hpp"

namespace belay_checkpoint {

/// The parts of a tensor's state, in the order in which the manifest has them first.
[[nodiscard]] inline std::vector<std::string> parts_of(const belay::manifest_tensor& tensor) {
  std::vector<std::string> out;
  for (const belay::manifest_piece& each : tensor.pieces)
    if (std::find(out.begin(), out.end(), each.part) == out.end()) out.push_back(each.part);
  return out;
}

/// One part of the state of one tensor.
struct tensor_part {
  std::string tensor, part;
};

/// The parts of tensors between two bytes of a file.
[[nodiscard]] inline std::vector<tensor_part> parts_between(const belay::manifest& of, std::size_t file,
                                                            std::uint64_t begin, std::uint64_t end) {
  std::vector<tensor_part> out;
  for (const belay::manifest_tensor& tensor : of.tensors)
    for (const belay::manifest_piece& each : tensor.pieces)
      if (each.file == file && each.begin < end && each.begin + each.bytes() > begin)
        out.push_back({tensor.name, each.part});
  return out;
}

/// Bytes of all files.
[[nodiscard]] inline std::uint64_t bytes_of(const belay::manifest& of) {
  std::uint64_t out = 0;
  for (const belay::manifest_file& each : of.files) out += each.bytes;
  return out;
}

/// Bytes of all tensors together, for each part.
[[nodiscard]] inline std::vector<std::pair<std::string, std::uint64_t>> bytes_by_part(const belay::manifest& of) {
  std::vector<std::pair<std::string, std::uint64_t>> out;
  for (const belay::manifest_tensor& tensor : of.tensors)
    for (const belay::manifest_piece& each : tensor.pieces) {
      auto found = std::find_if(out.begin(), out.end(), [&](const auto& one) { return one.first == each.part; });
      if (found == out.end()) found = out.insert(out.end(), {each.part, 0});
      found->second += each.bytes();
    }
  return out;
}

}  // namespace belay_checkpoint
