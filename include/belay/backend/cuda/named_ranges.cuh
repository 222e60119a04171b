// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An Api whose calls are ranges of NVTX, for Nsight Systems: when the host queues what. A program that does not name it
// pays nothing.
//
//   belay::cuda::named_ranges<belay::cuda::runtime_api> api;
//   belay::cuda::device gpu(api, rank);
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstddef>

#include "belay/backend/cuda/device_api.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// A range of the calling thread, from here to the end of the scope.
class named_range {
 public:
  /// Begins it; `name` is copied.
  explicit named_range(const char* name) noexcept { nvtxRangePushA(name); }
  named_range(const named_range&) = delete;
  named_range& operator=(const named_range&) = delete;
  ~named_range() { nvtxRangePop(); }
};

/// Any Api, with a range around each call that queues work.
template <device_api Api>
class named_ranges : public Api {
 public:
  using Api::Api;
  using typename Api::status_type;
  using typename Api::stream_type;

  /// Calls `Api::each` in a range of its name; each other call of `Api` that queues work has a range of its own name.
  template <class F>
  [[nodiscard]] status_type each(stream_type on, std::size_t count, const F& f) {
    const named_range here("belay each");
    return Api::each(on, count, f);
  }
  template <class G>
  [[nodiscard]] status_type teams(stream_type on, std::size_t rows, const G& g) {
    const named_range here("belay teams");
    return Api::teams(on, rows, g);
  }
  template <class... Arguments>
  requires requires(Api& api, stream_type on, const Arguments&... of) { api.product(on, of...); }
  [[nodiscard]] status_type product(stream_type on, const Arguments&... of) {
    const named_range here("belay product");
    return Api::product(on, of...);
  }
  template <class... Arguments>
  [[nodiscard]] status_type grouped(stream_type on, const Arguments&... of) {
    const named_range here("belay grouped");
    return Api::grouped(on, of...);
  }
  template <class Call>
  requires requires(Api& api, stream_type on, const Call& call) { api.attention(on, call); }
  [[nodiscard]] status_type attention(stream_type on, const Call& call) {
    const named_range here("belay attention");
    return Api::attention(on, call);
  }
  template <class Graph>
  [[nodiscard]] status_type launch(Graph which, stream_type on) {
    const named_range here("belay launch");
    return Api::launch(which, on);
  }
  [[nodiscard]] status_type copy(stream_type on, void* to, const void* from, std::size_t bytes) {
    const named_range here("belay copy");
    return Api::copy(on, to, from, bytes);
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
