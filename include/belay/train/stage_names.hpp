// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Names of tensors over the stages of a pipeline. A file has one tensor of a name, so what two stages call alike is one
// tensor, or one of the two is lost: trained ones are refused when a store is made, and of others the values are
// compared where they are written.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file_agreement.hpp"

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

/// The names of one stage's parameters.
class stage_names {
 public:
  void add_trained(const std::string& name) { add(name, 1); }
  void add_frozen(const std::string& name) { add(name, 0); }

  /// Throws usage_error on all ranks of the pipeline where two stages have a parameter of one name and one of them
  /// trains it. Collective over `mesh.pipeline()`.
  void expect_apart(const mesh& mesh, where at) const {
    const auto& stages = control_of(mesh.pipeline(at));
    std::uint64_t most[] = {words_.size()};
    stages.all_reduce(std::span<std::uint64_t>(most), maximum, at);
    const auto room = static_cast<std::size_t>(most[0]);
    std::vector<std::uint64_t> own = words_, all(room * static_cast<std::size_t>(stages.size()));
    own.resize(room);
    if (room > 0) stages.all_gather(std::span<const std::uint64_t>(own), std::span<std::uint64_t>(all), at);
    const std::optional<name_clash> clash = first_clash(all, room);
    if (!clash) return;
    const std::string name = safetensors::broadcast_text(
        stages, stages.rank() == clash->later ? printable(names_[clash->number]) : std::string(), clash->later, at);
    refuse(mesh.shape(), *clash, name, at);
  }

 private:
  static constexpr std::uint64_t none = 0;
  // Stages that both have parameter `number` of the later one.
  struct name_clash {
    int earlier, later;
    std::size_t number;
  };

  void add(const std::string& name, std::uint64_t trained);
  // In the words of all stages, `room` of each.
  [[nodiscard]] static std::optional<name_clash> first_clash(std::span<const std::uint64_t> all, std::size_t room);
  [[noreturn]] static void refuse(const axes& shape, const name_clash& clash, const std::string& name, where at);

  std::vector<std::string> names_;
  std::vector<std::uint64_t> words_;  // a hash of the name; the lowest bit: trained
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/stage_names.ipp"  // IWYU pragma: export
#endif
