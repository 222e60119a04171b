// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Names of tensors over the stages of a pipeline. A file has one tensor of a name, so what two stages call alike is one
// tensor, or one of the two is lost: trained ones are refused when a store is made, and of others the values are
// compared where they are written.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/ranks_text.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file_agreement.hpp"

namespace belay::inline BELAY_ABI {

/// "stage 1 (ranks 4-7)": of a mesh of `shape`, a stage and its ranks.
[[nodiscard]] inline std::string stage_text(const axes& shape, int stage) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(shape.ranks()); ++rank)
    if (coordinate_of(shape, rank).pipeline == stage) ranks.push_back(rank);
  return "stage " + std::to_string(stage) + " (" + ranks_text(ranks) + ")";
}

/// A sum over elements of a tensor, which is the same however ranks divide them: of each its number, its value, and
/// `kind`, a hash of what it is.
[[nodiscard]] inline std::uint64_t sum_of_elements(std::uint64_t kind, std::uint64_t first,
                                                   std::span<const std::byte> values,
                                                   std::size_t element_bytes) noexcept {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i * element_bytes < values.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, values.data() + i * element_bytes, element_bytes);
    out += content_hash().add(kind).add(first + i).add(word).value();
  }
  return out;
}

/// Throws usage_error where `sums` of one tensor differ, which are those of `stages`.
inline void expect_one_value(const axes& shape, std::string_view tensor, std::span<const int> stages,
                             std::span<const std::uint64_t> sums, where at) {
  for (std::size_t i = 1; i < stages.size(); ++i)
    if (sums[i] != sums[0])
      throw usage_error(stage_text(shape, stages[0]) + " and " + stage_text(shape, stages[i]) +
                            " of the pipeline have different tensors called " + printable(std::string(tensor)) +
                            ", of which a file keeps one: number layers over the whole model, so that each has a name "
                            "of its own",
                        at);
}

/// The names of one stage's parameters.
class stage_names {
 public:
  void add_trained(const std::string& name) { add(name, 1); }
  void add_frozen(const std::string& name) { add(name, 0); }

  /// Throws usage_error on all ranks of the pipeline where two stages have a parameter of one name and one of them
  /// trains it. Collective over `mesh.pipeline()`.
  template <class Mesh>
  void expect_apart(const Mesh& mesh, where at) const {
    const auto& stages = control_of(mesh.pipeline(at));
    std::uint64_t most[] = {words_.size()};
    stages.all_reduce(std::span<std::uint64_t>(most), maximum, at);
    const auto room = static_cast<std::size_t>(most[0]);
    std::vector<std::uint64_t> own = words_, all(room * static_cast<std::size_t>(stages.size()));
    own.resize(room);
    if (room > 0) stages.all_gather(std::span<const std::uint64_t>(own), std::span<std::uint64_t>(all), at);
    std::map<std::uint64_t, place> seen;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] == none) continue;
      const place here{static_cast<int>(i / room), (all[i] & 1U) != 0};
      const auto [found, is_new] = seen.emplace(all[i] >> 1U, here);
      if (is_new || found->second.stage == here.stage || !(found->second.trained || here.trained)) continue;
      const std::string name = safetensors::broadcast_text(
          stages, stages.rank() == here.stage ? printable(names_[i % room]) : std::string(), here.stage, at);
      throw usage_error(stage_text(mesh.shape(), found->second.stage) + " and " + stage_text(mesh.shape(), here.stage) +
                            " of the pipeline both have a parameter " + name +
                            ", and would train it apart, while files have one tensor of a name: number layers over "
                            "the whole model; a weight that two layers share is listed on one stage, with both of them",
                        at);
    }
  }

 private:
  static constexpr std::uint64_t none = 0;
  struct place {
    int stage;
    bool trained;
  };

  void add(const std::string& name, std::uint64_t trained) {
    names_.push_back(name);
    words_.push_back(((content_hash().add_text(name).value() | 2U) & ~std::uint64_t{1}) | trained);
  }

  std::vector<std::string> names_;
  std::vector<std::uint64_t> words_;  // a hash of the name; the lowest bit: trained
};

}  // namespace belay::inline BELAY_ABI
