// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that read or write files together: what one of them meets, all of them throw, at the next call that they make
// together. So no rank waits for one that has given up, and none goes on with half a file.
// IWYU pragma: private, include "belay/train/parameter_files.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/group.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// The number that messages call a rank of a group by: its number in the world, where the group knows that.
template <communicator Group>
[[nodiscard]] int world_rank(const Group& group, int rank) {
  if constexpr (requires { group.members(); }) return group.members()[static_cast<std::size_t>(rank)];
  return rank;
}

/// The text of `root`, on all ranks. Collective over `group`.
template <communicator Group>
[[nodiscard]] std::string broadcast_text(const Group& group, std::string text, int root, where at) {
  std::uint64_t size[] = {text.size()};
  group.broadcast(std::span<std::uint64_t>(size), root, at);
  text.resize(static_cast<std::size_t>(size[0]));
  if (!text.empty()) group.broadcast(std::span<char>(text.data(), text.size()), root, at);
  return text;
}

/// Keeps the first file_error, input_error or usage_error of this rank until all ranks agree.
class file_agreement {
 public:
  /// Calls `body`, unless an earlier one has failed. Other exceptions go on.
  void attempt(function_ref<void()> body);
  [[nodiscard]] bool failed() const noexcept { return kept_.has_value(); }

  /// Where an `attempt` of some rank has failed, throws the error of the lowest such rank on all, with its number.
  /// Collective over `group`, of host memory.
  template <communicator Group>
  void agree(const Group& group, where at = where::current());

 private:
  enum class failure_type : std::uint64_t { none, of_file, of_input, of_usage };
  struct failure {
    failure_type what;
    std::uint64_t offset;
    std::string path, message;
  };

  // Without the site, which is another on the other ranks.
  [[nodiscard]] static std::string said_by(const error& problem);

  std::optional<failure> kept_;
};

class writing_ranks;

/// The ranks of a group, of host memory, for a `writer` that each of them makes: rank 0 makes the files, and every rank
/// writes its own ranges into them.
///
///   safetensors::writer out(safetensors::written_by(mesh.control()), "models/mine", division);
///   out.write("lm_head.weight", first_element, std::span<const float>(part));   // what no other rank writes
///   out.commit();
[[nodiscard]] BELAY_DECL std::unique_ptr<writing_ranks> written_by(const group& of);

template <communicator Group>
void file_agreement::agree(const Group& group, where at) {
  if (!is_rehearsed(group)) {
    const failure mine = kept_.value_or(failure{failure_type::none, 0, {}, {}});
    const std::array<std::uint64_t, 2> own{static_cast<std::uint64_t>(mine.what), mine.offset};
    std::vector<std::uint64_t> all(own.size() * static_cast<std::size_t>(group.size()));
    group.all_gather(std::span<const std::uint64_t>(own), std::span<std::uint64_t>(all), at);
    for (int rank = 0; rank < group.size(); ++rank) {
      const std::uint64_t* const there = all.data() + own.size() * static_cast<std::size_t>(rank);
      if (static_cast<failure_type>(there[0]) == failure_type::none) continue;
      const std::string path = broadcast_text(group, mine.path, rank, at);
      const std::string message = broadcast_text(group, mine.message, rank, at);
      const int number = world_rank(group, rank);
      if (static_cast<failure_type>(there[0]) == failure_type::of_file)
        throw file_error(path, there[1], message, at, number);
      const std::string text = "rank " + std::to_string(number) + ": " + message;
      if (static_cast<failure_type>(there[0]) == failure_type::of_input) throw input_error(text, at);
      throw usage_error(text, at);
    }
  }
}

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/safetensors/file_agreement.ipp"  // IWYU pragma: export
#endif
