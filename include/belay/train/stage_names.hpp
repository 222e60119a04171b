// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Names of tensors over the stages of a pipeline. A file has one tensor of a name, so what two stages call alike is one
// tensor, or one of the two is lost: trained ones are refused when a store is made, unless both stages say that they
// share it, and of others the values are compared where they are written.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// "stage 1 (ranks 4-7)": of a mesh of `shape`, a stage and its ranks.
[[nodiscard]] BELAY_DECL std::string stage_text(const axes& shape, int stage);

/// A sum over elements of a tensor, which is the same however ranks divide them: of each its number, its value, and
/// `kind`, a hash of what it is.
[[nodiscard]] BELAY_DECL std::uint64_t sum_of_elements(std::uint64_t kind, std::uint64_t first,
                                                       std::span<const std::byte> values,
                                                       std::size_t element_bytes) noexcept;

/// Throws usage_error where `sums` of one tensor differ, which are those of `stages`.
BELAY_DECL void expect_one_value(const axes& shape, std::string_view tensor, std::span<const int> stages,
                                 std::span<const std::uint64_t> sums, where at);

/// A trained parameter that stages of a pipeline share, and the ranks of it that have such stages, in their order.
struct tied_name {
  std::uint64_t name;  // as `stage_names::hash_of` has it
  std::vector<int> ranks;
};

/// The parameters that this rank's stages list.
class stage_names {
 public:
  /// A parameter of stage `stage`: `trained`, tied over `uses` stages, or 0. `shape` and `decay` are hashes of what
  /// else is alike where it is tied.
  struct listing {
    std::string name;
    bool trained = true;
    std::size_t uses = 0;
    std::size_t stage = 0;
    std::uint64_t shape = 0;
    std::uint64_t decay = 0;
  };
  void add(listing one);

  [[nodiscard]] static std::uint64_t hash_of(const std::string& name) noexcept;

  /// The trained parameters that are tied over stages of several ranks, in an order that is one on all of them; a
  /// rehearsal knows its own. Throws usage_error on all ranks of the pipeline where two of them have a parameter of one
  /// name that one of them trains and that is not tied; or where stages declare a tied one differently, or are not as
  /// many as it says. Collective over `mesh.pipeline()`.
  [[nodiscard]] std::vector<tied_name> find_ties(const mesh& mesh, where at) const;

 private:
  static constexpr std::uint64_t none = 0;
  enum word : std::size_t { name_word, trained_word, uses_word, stage_word, shape_word, decay_word, words_each };
  // A listing as the words of all ranks have it: `number` counts on its rank.
  struct found_listing {
    int rank;
    std::size_t number;
    std::span<const std::uint64_t> words;
  };

  [[nodiscard]] std::vector<tied_name> ties_of_rehearsal(const mesh& mesh) const;
  [[nodiscard]] std::vector<std::uint64_t> words() const;
  // How listings of one name do not fit together, and the rank of the first that does not fit to those before it.
  enum class mismatch : std::uint8_t { none, not_tied, declarations, count };
  struct found_problem {
    mismatch what = mismatch::none;
    int rank = 0;
    const char* different = "";
  };
  [[nodiscard]] static found_problem problem_with(const axes& shape, std::span<const found_listing> listings);
  [[noreturn]] static void refuse(const axes& shape, const found_problem& problem,
                                  std::span<const found_listing> listings, const std::string& name, where at);

  std::vector<listing> listings_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/stage_names.ipp"  // IWYU pragma: export
#endif
