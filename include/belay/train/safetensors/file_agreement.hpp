// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that read or write files together: what one of them meets, all of them throw, at the next call that they make
// together. So no rank waits for one that has given up, and none goes on with half a file.
// IWYU pragma: private, include "belay/train/parameter_files.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "belay/comm/group.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// The text of `root`, on all ranks. Collective over `ranks`, of host memory.
[[nodiscard]] BELAY_DECL std::string broadcast_text(const group& ranks, std::string text, int root, where at);

/// Keeps the first file_error, input_error or usage_error of this rank until all ranks agree.
class file_agreement {
 public:
  /// Calls `body`, unless an earlier one has failed. Other exceptions go on.
  void attempt(function_ref<void()> body);
  [[nodiscard]] bool failed() const noexcept { return kept_.has_value(); }

  /// Where an `attempt` of some rank has failed, throws the error of the lowest such rank on all, with its number.
  /// Collective over `ranks`, of host memory.
  void agree(const group& ranks, where at = where::current());

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

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/safetensors/file_agreement.ipp"  // IWYU pragma: export
#endif
