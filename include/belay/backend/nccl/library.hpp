// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// NCCL as one rank calls it: an `nccl_api`, and the rank's number for what its errors say. Every call is checked here.
//
//   my_nccl nccl;
//   const belay::nccl::library lib(nccl, rank.number());
//   lib.expect(nccl.make_id(id), "make_id", 0, belay::where::current());
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <string>

#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// Stays where it is: communicators of the rank point to it, and end before it. The policy outlives it.
template <nccl_api N>
class library {
 public:
  using api_type = N;
  using status_type = typename N::status_type;

  /// The Api outlives it; `rank` is for what its errors say.
  explicit library(N& api, int rank = 0) noexcept : api_(&api), rank_(rank) {}
  library(const library&) = delete;
  library& operator=(const library&) = delete;

  /// The Api and the rank's number in the world, of which the library was made.
  [[nodiscard]] N& api() const noexcept { return *api_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

  /// The version that is loaded. Throws backend_error for one before 2.28.9.
  [[nodiscard]] int expect_version(where at = where::current()) const {
    int loaded = 0;
    expect(api_->version(loaded), "version", 0, at);
    if (loaded < least_version)
      throw backend_error({"version", rank_, 0,
                           "the NCCL that is loaded is " + version_text(loaded) + "; Belay needs " +
                               version_text(least_version) + " or later: install a newer libnccl.so.2",
                           at});
    return loaded;
  }

  /// Throws the backend_error of `call`, which was about `bytes`, unless it has succeeded.
  void expect(const status_type& got, const char* call, std::size_t bytes, where at) const {
    if (api_->succeeded(got)) [[likely]]
      return;
    failed_.store(true, std::memory_order_relaxed);
    throw error_of(got, call, bytes, at);
  }
  /// Takes the result of `call` where nothing may throw: one line on standard error says the first failure that no
  /// exception has told.
  void note(const status_type& got, const char* call) const noexcept {
    if (api_->succeeded(got) || failed_.exchange(true, std::memory_order_relaxed)) return;
    std::fprintf(stderr, "%s\n", error_of(got, call, 0, {}).what());
  }
  [[nodiscard]] backend_error error_of(const status_type& got, const std::string& call, std::size_t bytes,
                                       where at) const {
    return backend_error({call, rank_, bytes, api_->text(got), at});
  }

 private:
  N* api_;
  int rank_;
  mutable std::atomic<bool> failed_{false};
};

}  // namespace belay::inline BELAY_ABI::nccl
