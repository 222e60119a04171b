// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The segments that a world's processes share. The coordinator keeps each until the last of its holders is gone, so
// that it outlives the process that made it.
// IWYU pragma: private, include "belay/backend/host/processes.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Segments by number, each with its holders: a rank as often as it attached. A number is never given twice.
class region_store {
 public:
  struct entry {
    unique_fd file;
    std::size_t bytes = 0;
    std::vector<int> holders;
  };

  /// Takes a segment; `rank` has it.
  [[nodiscard]] std::uint64_t keep(unique_fd file, std::size_t bytes, int rank);

  /// `rank` has it too; nothing where there is no such region (any more).
  [[nodiscard]] const entry* add(std::uint64_t region, int rank);

  /// False where `rank` does not have it.
  bool drop(std::uint64_t region, int rank);

  /// `rank` is gone and has nothing any more.
  void forget(int rank);

  /// The answer to a request of `rank` to keep, attach or drop, and the descriptor that goes with it or -1.
  [[nodiscard]] std::pair<message, int> answer(int rank, received request);

  [[nodiscard]] std::size_t size() const noexcept { return regions_.size(); }

 private:
  std::map<std::uint64_t, entry> regions_;
  std::uint64_t next_ = 1;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/memory/region_store.ipp"  // IWYU pragma: export
#endif
