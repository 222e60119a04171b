// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tensors that two stages call alike, found and said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/stage_names.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string stage_text(const axes& shape, int stage) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(shape.ranks()); ++rank)
    if (coordinate_of(shape, rank).pipeline == stage) ranks.push_back(rank);
  return "stage " + std::to_string(stage) + " (" + ranks_text(ranks) + ")";
}

BELAY_DECL std::uint64_t sum_of_elements(std::uint64_t kind, std::uint64_t first, std::span<const std::byte> values,
                                         std::size_t element_bytes) noexcept {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i * element_bytes < values.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, values.data() + i * element_bytes, element_bytes);
    out += content_hash().add(kind).add(first + i).add(word).value();
  }
  return out;
}

BELAY_DECL void expect_one_value(const axes& shape, std::string_view tensor, std::span<const int> stages,
                                 std::span<const std::uint64_t> sums, where at) {
  for (std::size_t i = 1; i < stages.size(); ++i)
    if (sums[i] != sums[0])
      throw usage_error(stage_text(shape, stages[0]) + " and " + stage_text(shape, stages[i]) +
                            " of the pipeline have different tensors called " + printable(std::string(tensor)) +
                            ", of which a file keeps one: number layers over the whole model, so that each has a name "
                            "of its own",
                        at);
}

BELAY_DECL void stage_names::add(const std::string& name, std::uint64_t trained) {
  names_.push_back(name);
  words_.push_back(((content_hash().add_text(name).value() | 2U) & ~std::uint64_t{1}) | trained);
}

BELAY_DECL auto stage_names::first_clash(std::span<const std::uint64_t> all, std::size_t room)
    -> std::optional<name_clash> {
  struct named_stage {
    int stage;
    bool trained;
  };
  std::map<std::uint64_t, named_stage> seen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == none) continue;
    const named_stage here{static_cast<int>(i / room), (all[i] & 1U) != 0};
    const auto [found, is_new] = seen.emplace(all[i] >> 1U, here);
    if (is_new || found->second.stage == here.stage || !(found->second.trained || here.trained)) continue;
    return name_clash{found->second.stage, here.stage, i % room};
  }
  return std::nullopt;
}

BELAY_DECL void stage_names::refuse(const axes& shape, const name_clash& clash, const std::string& name, where at) {
  throw usage_error(stage_text(shape, clash.earlier) + " and " + stage_text(shape, clash.later) +
                        " of the pipeline both have a parameter " + name +
                        ", and would train it apart, while files have one tensor of a name: number layers over "
                        "the whole model; a weight that two layers share is listed on one stage, with both of them",
                    at);
}

}  // namespace belay::inline BELAY_ABI
