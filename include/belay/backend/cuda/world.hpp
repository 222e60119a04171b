// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that share a device. Its ranks are those of a world of threads, which stays what they agree over:
// votes, counts and failures travel there.
//
//   belay::cuda::runtime_api api;
//   belay::cuda::world world(api, belay::host::world(4));
//   world.run([](auto& rank) { belay::cuda::kit kit(rank.gpu(), rank.watch()); ... });
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "belay/backend/cuda/kit.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/cuda/rank.hpp"
#include "belay/backend/cuda/shared_device.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// `run(body)` calls `body(rank&)` on a thread for each rank, as `Control` does. Can be run again. The Api outlives it,
/// and it all that bodies make of their ranks' devices.
template <device_api Api, class Control>
class world {
  static_assert(
      requires { requires Control::ranks_are_threads; },
      "belay: ranks that share a device are threads of one process: belay::cuda::world(api, "
      "belay::host::world(ranks))");

 public:
  using api_type = Api;
  using memory_type = tier_memory<Api>;
  using kit_type = kit<Api>;
  /// Of this process.
  static constexpr bool ranks_are_threads = true;

  /// Takes the memory that ranks communicate over, once. Throws backend_error where there is no device, or no room.
  world(Api& api, Control control, const communication_memory& sizes = {}, where at = where::current())
      : control_(std::move(control)), shared_(std::make_shared<shared_device<Api>>(api, control_.size(), sizes, at)) {}

  /// Ranks.
  [[nodiscard]] int size() const noexcept { return control_.size(); }
  /// Runs the body on every rank and returns when all have returned, as `Control` does.
  template <class Body>
  auto run(Body&& body) const {
    shared_->begin_run();
    return control_.run([&](auto& control) {
      rank<Api, std::remove_reference_t<decltype(control)>> self(control, shared_);
      return body(self);
    });
  }

  /// The device of rank `number`.
  [[nodiscard]] const device<Api>& gpu(int number) const noexcept { return shared_->of(number); }
  /// Bytes that a rank's kit uses beside the operands of its products, and for its other kernels.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return kit<Api>::workspace_of(gpu(0).api()); }
  /// The bytes that the device has left for ranks' leases, beside what they communicate over and what libraries take
  /// for their kits, which is measured. Throws backend_error.
  [[nodiscard]] std::size_t available_device_memory(where at = where::current()) const { return shared_->measure(at); }

 private:
  Control control_;
  std::shared_ptr<shared_device<Api>> shared_;
};

}  // namespace belay::inline BELAY_ABI::cuda
