// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of processes that a launcher has started, seen by one of them. belay-run is the coordinator itself; under
// any other launcher the first rank's process is the coordinator beside its own work, and writes a file for the others.
//
//   int main() {  // torchrun --nproc-per-node 4 --no-python ./train
//     belay::host::world::from_env().run([](belay::host::rank& rank) { rank.world().barrier(); });
//   }
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/comm/launcher.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The world of the environment. `run(body)` calls `body(rank&)` once, in this process, as the rank that it is.
class launched_world {
 public:
  /// Throws `input_error` where the environment makes no sense (see find_launcher), or where its ranks run on several
  /// hosts.
  explicit launched_world(world_options options = {}, where at = where::current());

  /// The rank's number, the number of ranks, and what the launcher's variables said.
  [[nodiscard]] int rank() const noexcept { return found_.rank; }
  [[nodiscard]] int size() const noexcept { return found_.size; }
  [[nodiscard]] const launcher_environment& found() const noexcept { return found_; }

  /// Runs the body as this process's rank and returns what it returns, or throws what it throws. The first rank under
  /// a launcher that is not belay-run returns when all others are done. May be called again where the launcher is not
  /// belay-run.
  template <class Body>
  auto run(Body&& body, where at = where::current()) const {
    using result = std::invoke_result_t<Body&, host::rank&>;
    if constexpr (std::is_void_v<result>) {
      run_once([&](host::rank& self) { body(self); }, at);
    } else {
      std::optional<result> out;
      run_once([&](host::rank& self) { out.emplace(body(self)); }, at);
      return std::move(*out);
    }
  }

  /// Runs the body as this process's rank, a `belay::rank`: what `launch` does.
  void run_ranks(function_ref<void(belay::rank&)> body, where at = where::current()) const;

 private:
  void run_once(function_ref<void(host::rank&)> body, where at) const;

  launcher_environment found_;
  world_options options_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/launched.ipp"  // IWYU pragma: export
#endif
