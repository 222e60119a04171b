// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that are processes of this machine, forked from this one. A rank that is killed, stopped or lost in
// a loop takes nothing with it: the others get an error that names it, and this process, which is no rank, learns how
// each ended. Children die with it.
//
//   const std::vector<double> losses = belay::host::processes(4).run([](belay::host::rank& rank) {
//     double loss = rank.number();
//     rank.world().all_reduce(std::span(&loss, 1), belay::sum);
//     return loss;
//   });
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/backend/host/run_report.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A result that a body may return from another process: none, plain data, or text.
template <class T>
concept sendable_result = std::is_void_v<T> || std::is_trivially_copyable_v<T> || std::same_as<T, std::string>;

/// `processes(4).run(body)` calls `body(rank&)` in four processes, each a rank, with a copy of all this process has.
/// Can be run again.
class processes {
 public:
  /// Throws `usage_error` if there is no rank, `input_error` if BELAY_TIMEOUT makes no sense.
  explicit processes(int ranks, world_options options = {}, where at = where::current());

  /// The number of ranks.
  [[nodiscard]] int size() const noexcept { return ranks_; }

  /// Runs the body on every rank and returns when all processes are gone: nothing, or the bodies' results by rank. If
  /// a rank failed, throws `comm_error` with the first cause: which rank, in which operation, by which signal or exit
  /// code. Throws `usage_error` when other threads of this process are alive, which a fork would not copy;
  /// `budget_error` when there is too little memory for what the ranks share; `file_error`, which names RLIMIT_NOFILE,
  /// when descriptors run out. No child stays, however it ends.
  template <class Body>
  auto run(Body&& body, where at = where::current()) const {
    using result = std::invoke_result_t<Body&, rank&>;
    std::vector<rank_outcome> ends = outcomes(body, at);
    throw_first(ends, at);
    if constexpr (!std::is_void_v<result>) {
      std::vector<result> results;
      results.reserve(ends.size());
      for (rank_outcome& end : ends) results.push_back(decoded<result>(std::move(end.result)));
      return results;
    }
  }

  /// Runs the body on every rank and returns when all processes are gone: how each rank ended, by rank. A rank that
  /// failed throws nothing here; `usage_error`, `budget_error` and `file_error` are thrown as by `run`.
  template <class Body>
  [[nodiscard]] std::vector<rank_outcome> outcomes(Body&& body, where at = where::current()) const {
    using result = std::invoke_result_t<Body&, rank&>;
    static_assert(
        sendable_result<result>,
        "what a rank returns from its process is trivially copyable or a std::string; send the rest to rank 0");
    return run_forked(
        [&](rank& self, std::string& bytes) {
          if constexpr (std::is_void_v<result>) {
            body(self);
          } else if constexpr (std::same_as<result, std::string>) {
            bytes = body(self);
          } else {
            const result value = body(self);
            bytes.assign(reinterpret_cast<const char*>(&value), sizeof value);
          }
        },
        at);
  }

  /// Runs the body on every rank, as `belay::rank`: what `launch` does.
  void run_ranks(function_ref<void(belay::rank&)> body, where at = where::current()) const;

 private:
  template <class Result>
  [[nodiscard]] static Result decoded(std::string bytes) {
    if constexpr (std::same_as<Result, std::string>) {
      return bytes;
    } else {
      alignas(Result) std::byte storage[sizeof(Result)] = {};
      std::memcpy(storage, bytes.data(), bytes.size() < sizeof(Result) ? bytes.size() : sizeof(Result));
      return *std::launder(reinterpret_cast<Result*>(storage));
    }
  }

  using body_ref = function_ref<void(rank&, std::string& result)>;
  struct forked_run;

  [[nodiscard]] std::vector<rank_outcome> run_forked(body_ref body, where at) const;
  void throw_first(const std::vector<rank_outcome>& ends, where at) const;

  int ranks_;
  world_options options_;
  mutable std::optional<abort_cause> last_cause_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/processes.ipp"  // IWYU pragma: export
#endif
